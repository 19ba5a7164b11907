//! Flow control: slow readers and small windows stop the sender and nothing else.

use std::collections::BTreeSet;

use sphinx_sim::{MS, Pair, Reader, SEC, Scenario, Write, link};

use crate::table::bernoulli;

/// A reader of 2 MB/s behind a link of 25 MB/s: the sender stops at the window, and what it sends
/// meanwhile is little more than what is read.
#[test]
fn a_slow_reader_stops_the_sender() {
    for p in [0.0, 0.1] {
        let mut scenario = Scenario::new(link(200, 20, bernoulli(p), 1)).bulk(8_000_000);
        scenario.server.reader = Reader::Slow(2_000_000);
        scenario.recv_window = 1 << 20;
        let mut pair = scenario.build();
        pair.must_transfer(10 * SEC);
        let time = pair.now as f64 / 1e9;
        assert!((3.0..4.5).contains(&time), "{time} s at {p}");
        assert!(pair.server().rx_held_max > 700_000, "the window was used");
        let wire = pair.links[0].counters().offered_bytes as f64 * (1.0 - p) / 8e6;
        assert!(wire < 1.15, "{wire} at {p}");
    }
}

/// Slow is not stalled: a transfer that takes far longer than the idle timeout goes on for as long as somebody reads.
#[test]
fn a_slow_reader_stalls_nothing() {
    let mut scenario = Scenario::new(link(100, 20, bernoulli(0.0), 2)).bulk(4_000_000);
    scenario.server.reader = Reader::Slow(500_000);
    scenario.recv_window = 1 << 20;
    scenario.idle_timeout = [2 * SEC; 2];
    let mut pair = scenario.build();
    pair.must_transfer(12 * SEC);
    assert!(pair.now > 3 * scenario.idle_timeout[0], "{} ns", pair.now);
}

/// Who reads nothing at all ends a session for both, unless it may pause: then one stays for as long as anybody likes, and new streams go on.
#[test]
fn a_reader_that_may_pause_stalls_nothing() {
    for may_pause in [false, true] {
        let mut scenario = Scenario::new(link(100, 20, bernoulli(0.03), 3)).bulk(12_000_000);
        scenario.recv_window = 4 << 20;
        scenario.idle_timeout = [2 * SEC; 2];
        scenario.readers_may_pause = may_pause;
        scenario.server.unread = BTreeSet::from([0]);
        scenario.client.writes.push(Write {
            at: 20 * SEC,
            stream: 1,
            len: 1_000_000,
            end_of_stream: true,
        });
        let mut pair = scenario.build();
        let done = pair.run_until(40 * SEC, |pair| pair.ends[1].stream_ended(1));
        assert_eq!(done, may_pause);
        assert_eq!(pair.ends[0].events.is_empty(), may_pause);
    }
}

#[test]
fn a_window_of_two_blocks() {
    for seed in 0..5 {
        let scenario = Scenario::new(link(100, 20, bernoulli(0.1), seed)).both_ways(2_000_000);
        let mut scenario = scenario.on_links(|link| link.loss = bernoulli(0.1));
        scenario.recv_window = 800_000;
        scenario.build().must_transfer(10 * SEC);
    }
}

/// New credit is lost on its way back again and again.
#[test]
fn lost_credit_is_asked_for() {
    for seed in 0..5 {
        let mut scenario = Scenario::new(link(100, 20, bernoulli(0.05), seed)).bulk(2_000_000);
        scenario.backward.loss = bernoulli(0.5);
        scenario.recv_window = 400_000;
        scenario.server.reader = Reader::Slow(4_000_000);
        let mut pair = scenario.build();
        pair.must_transfer(10 * SEC);
        assert!(pair.now < 3 * SEC, "{} ns", pair.now);
    }
}

/// Sending memory is bounded although nothing comes back.
#[test]
fn the_send_window_bounds_memory() {
    let mut scenario = Scenario::new(link(1000, 200, bernoulli(0.0), 1)).bulk(100_000_000);
    scenario.send_window = 2 << 20;
    let mut pair = scenario.build();
    let mut held_max = 0;
    assert!(pair.run_until(60 * SEC, |pair| {
        held_max = held_max.max(pair.client().tx_held());
        pair.client().all_delivered()
    }));
    assert!(held_max <= 2 << 20, "{held_max}");
}

/// A stream that nobody reads takes its share of the window and no more: others go on.
#[test]
fn an_unread_stream_does_not_hold_up_the_others() {
    for window in [1_500_000, 4 << 20] {
        for reader in [Reader::AnyOrder, Reader::InOrder] {
            let mut scenario = Scenario::new(link(100, 20, bernoulli(0.03), 5)).bulk(12_000_000);
            scenario.recv_window = window;
            scenario.server.reader = reader;
            scenario.server.unread = BTreeSet::from([0]);
            for stream in [1, 2, 3] {
                scenario.client.writes.push(Write {
                    at: stream * 200 * MS,
                    stream,
                    len: 3_000_000,
                    end_of_stream: true,
                });
            }
            let mut pair = scenario.build();
            let done = pair.run_until(60 * SEC, |pair| {
                [1, 2, 3].iter().all(|id| pair.ends[1].stream_ended(*id))
            });
            assert!(done, "{window} {reader:?}");
            assert!(!pair.ends[1].stream_ended(0));
            assert!(pair.ends[1].rx_held_max <= window);
        }
    }
}

/// Until its application accepts the session a server takes as little as it has said, and then all of the window, however much of the
/// feedback is lost.
#[test]
fn a_session_that_nobody_has_accepted_holds_little() {
    for (loss, credit) in [(0.0, 64 << 10), (0.06, 1 << 20), (0.3, 10_000)] {
        for seed in 0..8 {
            let mut scenario = Scenario::new(link(100, 40, bernoulli(loss), seed)).bulk(4_000_000);
            scenario.accepted = Some((3 * SEC, credit));
            let mut pair = scenario
                .on_links(|link| link.loss = bernoulli(loss))
                .build();
            pair.run_until(2900 * MS, |_| false);
            let held = pair.server().rx_held_max;
            assert!(held <= credit && held > credit / 3, "{held} of {credit}");
            // Nothing was sent in vain while it waited.
            assert_eq!(pair.server().session().stats().packets_refused, 0);
            pair.must_transfer(30 * SEC);
        }
    }
}

/// What a client gives up before the session is accepted is not known to be read: it keeps to what it has been granted.
#[test]
fn giving_up_a_stream_grants_no_window() {
    for seed in 0..8 {
        let credit = 64 << 10;
        let mut scenario = Scenario::new(link(100, 40, bernoulli(0.3), seed));
        let write = |stream| Write {
            at: 20 * MS * stream,
            stream,
            len: 2_000_000,
            end_of_stream: true,
        };
        scenario.client.writes = (0..2).map(write).collect();
        scenario.client.resets = vec![(10 * MS, 0)];
        scenario.accepted = Some((3 * SEC, credit));
        let mut pair = scenario.build();
        pair.run_until(2900 * MS, |_| false);
        // Nothing was sent in vain while it waited.
        assert_eq!(pair.server().session().stats().packets_refused, 0);
        let all = |pair: &mut Pair| pair.server().bytes_received >= 2_000_000;
        assert!(pair.run_until(4 * SEC, all), "seed {seed}");
    }
}

/// A small window grows to what a long path needs, where the receiver lets it.
#[test]
fn a_window_grows_to_what_the_path_needs() {
    let took = |window_max, loss| {
        let mut scenario = Scenario::new(link(100, 200, bernoulli(loss), 3)).bulk(40_000_000);
        (scenario.recv_window, scenario.window_max) = (512 << 10, window_max);
        let mut pair = scenario.build();
        pair.must_transfer(200 * SEC);
        let stats = pair.client().session().stats();
        assert_eq!(stats.peer_window, pair.server().session().recv_window());
        (pair.now, stats)
    };
    for loss in [0.0, 0.02] {
        let (small, held) = took(0, loss);
        let (grown, went) = took(64 << 20, loss);
        assert!(
            grown < 8 * SEC && small > 2 * grown,
            "{grown} instead of {small}"
        );
        assert!(
            (4 << 20..=16 << 20).contains(&went.peer_window),
            "{}",
            went.peer_window
        );
        assert_eq!(held.peer_window, 512 << 10);
        assert!(held.window_limited > small / 3 && went.window_limited < grown / 3);
    }
}

/// Whoever reads slowly has a small window, however often it is full.
#[test]
fn a_slow_reader_has_a_small_window() {
    let mut scenario = Scenario::new(link(100, 40, bernoulli(0.02), 3)).bulk(8_000_000);
    (scenario.recv_window, scenario.window_max) = (512 << 10, 64 << 20);
    scenario.server.reader = Reader::Slow(1_000_000);
    let mut pair = scenario.build();
    pair.must_transfer(60 * SEC);
    assert_eq!(pair.server().session().recv_window(), 512 << 10);
}

/// What nobody uses any more is given back, and grows again.
#[test]
fn a_window_that_is_not_used_shrinks() {
    let mut scenario = Scenario::new(link(100, 200, bernoulli(0.02), 3)).bulk(20_000_000);
    (scenario.recv_window, scenario.window_max) = (512 << 10, 64 << 20);
    scenario.client.writes.push(Write {
        at: 40 * SEC,
        stream: 1,
        len: 20_000_000,
        end_of_stream: true,
    });
    let mut pair = scenario.build();
    let largest = |pair: &mut Pair, until| {
        let mut largest = 0;
        pair.run_until(until, |pair| {
            largest = largest.max(pair.server().session().recv_window());
            false
        });
        largest
    };
    assert!(largest(&mut pair, 10 * SEC) >= 4 << 20);
    pair.run_until(35 * SEC, |_| false);
    for end in &pair.ends {
        assert_eq!(end.session().recv_window_cost(), 512 << 10);
    }
    assert_eq!(pair.client().session().stats().peer_window, 512 << 10);
    assert!(largest(&mut pair, 60 * SEC) >= 4 << 20);
    pair.must_transfer(120 * SEC);
}

/// Share of a link's capacity without loss that a transfer of 30 s reaches, with the window of a first session and what it may grow to; and
/// of its last 10 s.
fn filled(mbit: u64, rtt_ms: u64, loss: f64, window_max: u64) -> (f64, f64) {
    const TIME: u64 = 30;
    let mut scenario = Scenario::new(link(mbit, rtt_ms, bernoulli(loss), 3)).bulk(u64::MAX >> 8);
    (scenario.recv_window, scenario.window_max) = (24 << 20, window_max);
    scenario.send_window = window_max;
    let mut pair = scenario.build();
    let share =
        |bytes: u64, seconds: u64| bytes as f64 * 8e-6 / (seconds * mbit) as f64 / (1.0 - loss);
    println!("{mbit} Mbit/s, {rtt_ms} ms, loss {loss}");
    let (mut all, mut before) = (0, 0);
    for time in 1..=TIME {
        pair.run_until(time * SEC, |_| false);
        all = pair.server().bytes_received;
        if time == TIME - 10 {
            before = all;
        }
        let stats = pair.client().session().stats();
        println!(
            "  {:.3} of the first {time} s; window {} MiB, held up for {} ms",
            share(all, time),
            stats.peer_window >> 20,
            stats.window_limited / MS
        );
    }
    (share(all, TIME), share(all - before, 10))
}

const GIB: u64 = 1 << 30;

/// Told nothing of the path, with three quarters of what the endpoint may hold.
#[test]
#[ignore = "a minute, and a gigabyte of memory: make long-paths"]
fn a_window_fills_a_long_and_fast_path() {
    let (all, last) = filled(1_000, 600, 0.0, GIB / 4 / 4 * 3);
    assert!(all > 0.85 && last > 0.9, "{all} {last}");
}

#[test]
#[ignore = "minutes, and gigabytes of memory: make long-paths"]
fn a_window_fills_a_long_and_fast_path_that_loses() {
    let (all, last) = filled(10_000, 200, 0.01, GIB * 3 / 2 / 4 * 3);
    assert!(all > 0.9 && last > 0.9, "{all} {last}");
}
