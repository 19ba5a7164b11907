//! Sessions at rest that say little: what they send, what they survive, and what they notice.

use std::time::Duration;

use sphinx_driver::EndReason;
use sphinx_link::Blackout;
use sphinx_proto::Nanos;
use sphinx_sim::{MS, Pair, SEC, Scenario, Write, link};

use crate::table::bernoulli;

/// Of `sphx tunnel` and `sphx server`.
const IDLE_TIMEOUT: Nanos = 75 * SEC;
const MINUTE: Nanos = 60 * SEC;
/// Longest silence of the client.
const SILENCE: Nanos = 22 * SEC;

fn quiet(rtt_ms: u64, seed: u64) -> Scenario {
    Scenario {
        idle_timeout: [IDLE_TIMEOUT; 2],
        quiet: [true; 2],
        ..Scenario::new(link(100, rtt_ms, bernoulli(0.0), seed))
    }
}

/// Packets that the ends have sent.
fn sent(pair: &Pair) -> [u64; 2] {
    [0, 1].map(|end| pair.links[end].counters().offered_packets)
}

fn must_live(pair: &Pair, what: &str) {
    for end in &pair.ends {
        assert!(end.events.is_empty(), "{what}: {:?}", end.events);
    }
}

/// The client hands over some bytes, which have to be there within `time`.
fn must_carry(pair: &mut Pair, time: Nanos, what: &str) {
    let (now, before) = (pair.now, pair.server().bytes_received);
    pair.ends[0].write(Write {
        at: now,
        stream: 1,
        len: 10_000,
        end_of_stream: false,
    });
    let arrived = pair.run_until(now + time, |pair| {
        pair.server().bytes_received >= before + 10_000
    });
    assert!(arrived, "{what}");
}

#[test]
fn four_packets_a_minute() {
    for (rtt_ms, bytes) in [(1, 0), (20, 0), (20, 5_000_000), (600, 100_000)] {
        let mut pair = quiet(rtt_ms, 1).bulk(bytes).build();
        pair.run_until(MINUTE, |_| false);
        let [up, down] = sent(&pair);
        let mut last = up;
        let mut last_at = pair.now;
        while pair.now < 11 * MINUTE {
            let now = pair.now;
            pair.run_until(now + 100 * MS, |_| false);
            if sent(&pair)[0] > last {
                (last, last_at) = (sent(&pair)[0], pair.now);
            }
            let silence = pair.now - last_at;
            assert!(silence <= SILENCE + 200 * MS, "a NAT has forgotten it");
        }
        must_live(&pair, "at rest");
        let packets = (sent(&pair)[0] - up, sent(&pair)[1] - down);
        assert!(
            packets.0 + packets.1 <= 40,
            "round trip {rtt_ms} ms, {bytes} bytes before: {packets:?} in ten minutes"
        );
        must_carry(&mut pair, 3 * SEC, "after ten minutes");
    }
}

/// Packets of keep-alives are packets all the same: after some hundreds of them nothing else begins.
#[test]
fn a_night_is_like_a_minute() {
    let mut pair = quiet(20, 10).build();
    pair.run_until(8 * 60 * MINUTE, |_| false);
    must_live(&pair, "a night");
    let packets: u64 = sent(&pair).iter().sum();
    assert!(packets <= 8 * 60 * 4 + 20, "{packets}");
    must_carry(&mut pair, 3 * SEC, "in the morning");
}

#[test]
fn half_of_them_may_be_lost() {
    for seed in 0..20 {
        let scenario = quiet(50, seed).on_links(|link| link.loss = bernoulli(0.5));
        let mut pair = scenario.build();
        pair.run_until(20 * MINUTE, |_| false);
        must_live(&pair, &format!("seed {seed}"));
        let packets: u64 = sent(&pair).iter().sum();
        assert!(packets < 20 * 20, "seed {seed}: {packets}");
    }
}

#[test]
fn a_blackout_of_a_minute_is_survived_whenever_it_begins() {
    for begins in (0..70).step_by(3).chain([21, 22, 43, 44, 65, 66]) {
        let from = MINUTE + begins * SEC - 10 * MS;
        let scenario = quiet(20, 3).bulk(10_000).on_links(|link| {
            link.blackouts.push(Blackout {
                start: Duration::from_nanos(from),
                end: Duration::from_nanos(from + MINUTE),
            });
        });
        let mut pair = scenario.build();
        pair.run_until(from + 3 * MINUTE, |_| false);
        let what = format!("a blackout from {begins} s on");
        must_live(&pair, &what);
        must_carry(&mut pair, 2 * SEC, &what);
    }
}

/// The other end need not know: one that is not quiet asks every three seconds, and is answered once each time.
#[test]
fn one_end_alone_may_be_quiet() {
    let timeouts = [15 * SEC, IDLE_TIMEOUT];
    for (quiet_end, timeout) in [
        (0, timeouts[0]),
        (0, timeouts[1]),
        (1, timeouts[0]),
        (1, timeouts[1]),
    ] {
        let mut scenario = quiet(20, 8).bulk(10_000);
        scenario.quiet = [quiet_end == 0, quiet_end == 1];
        scenario.idle_timeout[1 - quiet_end] = timeout;
        let what = format!("end {quiet_end} is quiet, the other one waits for {timeout} ns");
        let mut pair = scenario.build();
        pair.run_until(MINUTE, |_| false);
        let before = sent(&pair);
        pair.run_until(11 * MINUTE, |_| false);
        must_live(&pair, &what);
        let packets = [0, 1].map(|end| sent(&pair)[end] - before[end]);
        let [own, other] = [packets[quiet_end], packets[1 - quiet_end]];
        assert!(own <= 300 && other <= 300, "{what}: {own}, {other}");
        must_carry(&mut pair, 3 * SEC, &what);
        // Both notice that the other one is dead.
        for dead in [0, 1] {
            let mut pair = scenario.build();
            pair.run_until(MINUTE, |_| false);
            pair.cut[dead] = true;
            pair.run_until(5 * MINUTE, |_| false);
            let events = &pair.ends[1 - dead].events;
            let is_lost = matches!(events[..], [(_, EndReason::PeerLost)]);
            assert!(is_lost, "{what}; {dead} is dead: {events:?}");
        }
    }
}

/// However little patience the other end has, it is heard of in time.
#[test]
fn the_shorter_idle_timeout_counts_for_both() {
    for short in [1, 5, 15, 40] {
        for end in [0, 1] {
            let mut scenario = quiet(20, 9).bulk(10_000);
            scenario.idle_timeout[end] = short * SEC;
            let mut pair = scenario.build();
            let what = format!("end {end} waits for {short} s");
            pair.run_until(5 * MINUTE, |_| false);
            must_live(&pair, &what);
            must_carry(&mut pair, 3 * SEC, &what);
        }
    }
}

#[test]
fn who_has_something_to_send_notices_that_the_peer_is_dead() {
    for rest in [0, 10, 19, 21, 50] {
        let mut pair = quiet(20, 4).bulk(10_000).build();
        pair.run_until(MINUTE, |_| false);
        pair.cut[1] = true;
        let now = pair.now;
        pair.run_until(now + rest * SEC, |_| false);
        let at = pair.now;
        pair.ends[0].write(Write {
            at,
            stream: 1,
            len: 100,
            end_of_stream: false,
        });
        pair.run_until(at + IDLE_TIMEOUT + SEC, |_| false);
        let events = &pair.client().events;
        assert!(
            matches!(events[..], [(_, EndReason::PeerLost)]),
            "after {rest} s: {events:?}"
        );
    }
}

#[test]
fn who_has_nothing_to_send_notices_it_a_minute_later() {
    for (end, most) in [(0, 3 * SILENCE), (1, SILENCE)] {
        let mut pair = quiet(20, 5).build();
        pair.run_until(MINUTE, |_| false);
        pair.cut[1 - end] = true;
        let from = pair.now;
        pair.run_until(from + 10 * MINUTE, |_| false);
        let [(at, EndReason::PeerLost)] = pair.ends[end].events[..] else {
            panic!("{:?}", pair.ends[end].events);
        };
        assert!(at <= from + most + IDLE_TIMEOUT + SEC, "end {end}: {at}");
    }
}

/// A live server answers; one whose port is closed is gone before long although nobody had anything to send.
#[test]
fn refusals_end_what_is_not_there() {
    for (is_there, seed) in [(true, 1), (false, 2)] {
        let mut pair = quiet(600, seed).bulk(10_000).build();
        pair.run_until(MINUTE + 15 * SEC, |_| false);
        pair.cut[1] = !is_there;
        let from = pair.now;
        while pair.now < from + 10 * SEC && !pair.client().session().is_finished() {
            let now = pair.now;
            pair.ends[0].peer_refused(now);
            pair.run_until(now + 500 * MS, |_| false);
        }
        match pair.client().events[..] {
            [] => assert!(is_there),
            [(at, EndReason::PeerGone)] => {
                assert!(
                    !is_there && at > from + 3 * SEC && at < from + 5 * SEC,
                    "{at}"
                );
            }
            ref other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_client_that_has_moved_is_heard_before_long() {
    let mut pair = quiet(20, 6).bulk(10_000).build();
    pair.run_until(MINUTE + SEC, |_| false);
    pair.ends[0].address = ([10, 9, 9, 9], 999).into();
    let now = pair.now;
    pair.ends[1].write(Write {
        at: now,
        stream: 0,
        len: 1000,
        end_of_stream: true,
    });
    let found = pair.run_until(now + SILENCE + SEC, |pair| {
        pair.client().bytes_received == 1000
    });
    assert!(found, "what waits for it has not arrived");
}

#[test]
fn it_looks_for_the_path_mtu_while_it_is_used() {
    let mut pair = quiet(20, 7).bulk(5_000_000).build();
    pair.must_transfer(10 * SEC);
    let symbol_len = pair.client().session().stats().symbol_len;
    assert!(symbol_len > 1400, "{symbol_len}");
}
