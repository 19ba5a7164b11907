//! Addresses and MTUs that change under a session, and those who pretend that they do.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use sphinx_link::LinkConfig;
use sphinx_proto::Nanos;
use sphinx_sim::{ADDRESSES, MS, Pair, SEC, Scenario, link};

use crate::table::bernoulli;

/// Another port of the client's NAT, and another network.
const REBOUND: ([u8; 4], u16) = ([10, 0, 0, 1], 1001);
const ELSEWHERE: ([u8; 4], u16) = ([10, 9, 9, 9], 1000);
const RELAY: ([u8; 4], u16) = ([203, 0, 113, 1], 9);
const VICTIM: ([u8; 4], u16) = ([192, 0, 2, 1], 7);

fn scenario(loss: f64, seed: u64) -> Scenario {
    Scenario::new(link(100, 40, bernoulli(loss), seed)).on_links(|link| link.loss = bernoulli(loss))
}

/// Runs to `at`, then the client is at `address`; `own`: it knows.
fn move_client(pair: &mut Pair, at: Nanos, address: ([u8; 4], u16), own: bool) {
    pair.run_until(at, |_| false);
    let client = &mut pair.ends[0];
    client.address = address.into();
    if own {
        client.own_address = address.into();
    }
}

/// When the server found the client at `address`.
fn found_at(pair: &Pair, address: ([u8; 4], u16)) -> Option<Nanos> {
    let paths = &pair.server().paths;
    let found = paths
        .iter()
        .find(|(_, tuple)| tuple.remote == SocketAddr::from(address));
    found.map(|(at, _)| *at)
}

/// The last thing that `pair` still has to send takes its time.
fn reconfigure(pair: &mut Pair, side: usize, change: impl FnOnce(&mut LinkConfig)) {
    let now = pair.now;
    let mut config = pair.links[side].config().clone();
    change(&mut config);
    pair.links[side]
        .reconfigure(now, config)
        .expect("a valid link");
}

#[test]
fn a_nat_forgets_its_mapping() {
    for loss in [0.0, 0.06, 0.2] {
        let mut pair = scenario(loss, 1).both_ways(8_000_000).build();
        move_client(&mut pair, 300 * MS, REBOUND, false);
        let rate = pair.client().session().stats().pacing_rate;
        pair.must_transfer(20 * SEC);
        let found = found_at(&pair, REBOUND).expect("found");
        // Half a round trip until a packet arrives from there, one for challenge and answer.
        if loss == 0.0 {
            assert!(found < 300 * MS + 100 * MS, "{} ms", found / MS);
        }
        assert!(found < SEC, "{} ms at loss {loss}", found / MS);
        let server = pair.server().session().stats();
        assert_eq!(server.path_changes, 1);
        assert!(server.rtt < 200 * MS && rate > 0);
        // The client noticed nothing.
        assert_eq!(pair.client().session().stats().path_changes, 0);
    }
}

#[test]
fn a_nat_forgets_while_the_client_only_receives() {
    for seed in 0..10 {
        let mut pair = scenario(0.03, seed);
        pair.server.writes = scenario(0.0, 0).bulk(8_000_000).client.writes;
        let mut pair = pair.build();
        move_client(&mut pair, 300 * MS, REBOUND, false);
        pair.must_transfer(20 * SEC);
        let found = found_at(&pair, REBOUND).expect("found");
        assert!(found < 1500 * MS, "seed {seed}: {} ms", found / MS);
    }
}

#[test]
fn the_client_moves_to_another_network() {
    for loss in [0.0, 0.06, 0.2] {
        let mut pair = scenario(loss, 2).both_ways(8_000_000).build();
        let before = pair.client().session().tuple();
        move_client(&mut pair, 300 * MS, ELSEWHERE, true);
        let ids = pair.ends.each_ref().map(|end| end.cids_used.clone());
        pair.must_transfer(20 * SEC);
        let found = found_at(&pair, ELSEWHERE).expect("found");
        assert!(found < SEC, "{} ms at loss {loss}", found / MS);
        assert_eq!(pair.client().session().tuple().remote, before.remote);
        for (end, ids) in pair.ends.iter().zip(ids) {
            let stats = end.session().stats();
            assert_eq!(stats.path_changes, 1, "both ends begin a new path");
            // No connection id is used both before and after the change.
            assert_eq!(ids.len(), 1);
            assert_eq!(end.cids_used.len(), 2);
            assert_ne!(end.cids_used[1], ids[0]);
            assert_eq!(stats.symbol_len, 1434, "the MTU was found again");
        }
    }
}

#[test]
fn the_client_moves_again_and_again() {
    let mut pair = scenario(0.03, 3).both_ways(30_000_000).build();
    for n in 0..6u8 {
        let at = 400 * MS * (u64::from(n) + 1);
        move_client(
            &mut pair,
            at,
            ([10, 1, 0, n], 1000 + u16::from(n)),
            n % 2 == 0,
        );
    }
    pair.must_transfer(40 * SEC);
    let server = pair.server();
    assert!(server.session().stats().path_changes >= 6);
    assert!(server.cids.len() <= 9 && server.cids_used.len() >= 6);
}

#[test]
fn there_and_back() {
    let mut pair = scenario(0.03, 4).both_ways(10_000_000).build();
    move_client(&mut pair, 300 * MS, REBOUND, false);
    move_client(&mut pair, 900 * MS, ADDRESSES[0], false);
    pair.must_transfer(20 * SEC);
    assert_eq!(pair.server().session().stats().path_changes, 2);
}

/// Somebody on the way copies every packet of the client and sends the copy ahead with a forged source.
#[test]
fn copied_packets_from_elsewhere_move_nothing() {
    let copied = Rc::new(RefCell::new(0));
    for every in [1, 7] {
        *copied.borrow_mut() = 0;
        let mut pair = scenario(0.03, 5).both_ways(8_000_000).build();
        let bytes = Rc::clone(&copied);
        let mut count = 0;
        pair.tap = Some(Box::new(move |_, side, datagram| {
            count += 1;
            if side == 1 || count % every != 0 {
                return Vec::new();
            }
            *bytes.borrow_mut() += datagram.payload.len() as u64;
            let mut copy = datagram.clone();
            copy.source = VICTIM.into();
            vec![copy]
        }));
        pair.must_transfer(20 * SEC);
        assert_eq!(pair.server().paths, []);
        assert_eq!(pair.server().session().stats().path_changes, 0);
        let astray = pair.astray.get(&VICTIM.into()).copied().unwrap_or(0);
        println!(
            "every {every}: {astray} bytes to the victim, {} forged",
            copied.borrow()
        );
        assert!(astray <= 3 * *copied.borrow());
        // Far less than that, in fact: challenges are few.
        assert!(astray * 20 < pair.server().ip_bytes_sent);
    }
}

/// Somebody beside the way copies every packet of both ends until `until`, has the copies overtake them, and passes on whatever is
/// sent to him: he wins every race.
fn relay(pair: &mut Pair, until: Nanos) {
    let stop = Rc::new(Cell::new(false));
    let stopped = Rc::clone(&stop);
    pair.tap = Some(Box::new(move |_, side, datagram| {
        if stopped.get() {
            return Vec::new();
        }
        let mut copy = datagram.clone();
        copy.source = RELAY.into();
        copy.destination = ADDRESSES[1 - side].into();
        vec![copy]
    }));
    pair.run_until(until, |_| false);
    stop.set(true);
}

#[test]
fn a_relay_that_wins_every_race_does_not_capture_the_path() {
    for (loss, seed) in [(0.0, 13), (0.03, 14), (0.2, 15)] {
        let mut pair = scenario(loss, seed).both_ways(20_000_000).build();
        relay(&mut pair, 3 * SEC);
        for (side, end) in pair.ends.iter().enumerate() {
            let place = end.session().tuple().remote;
            assert_eq!(place, ADDRESSES[1 - side].into(), "loss {loss}");
            assert_eq!(end.paths, [], "loss {loss}: not even for a moment");
        }
        // Challenges and their answers.
        let astray = pair.astray.get(&RELAY.into()).copied().unwrap_or(0);
        let sent: u64 = pair.ends.iter().map(|end| end.ip_bytes_sent).sum();
        println!("loss {loss}: {astray} of {sent} bytes to the relay");
        assert!(astray * 10 < sent, "loss {loss}: {astray} of {sent}");
        pair.must_transfer(40 * SEC);
    }
}

/// One packet from elsewhere, then nothing: eight challenges at most, three times its bytes at most.
#[test]
fn a_silent_candidate_gets_three_times_its_bytes() {
    let mut scenario = scenario(0.0, 6);
    scenario.client.writes = Scenario::new(link(1, 1, bernoulli(0.0), 0))
        .blocks(10_000, 20 * MS, 100)
        .client
        .writes;
    let mut pair = scenario.build();
    let forged = Rc::new(RefCell::new(0));
    let bytes = Rc::clone(&forged);
    pair.tap = Some(Box::new(move |_, side, datagram| {
        // A short packet: its limit is below one padded challenge.
        if side == 1 || *bytes.borrow() > 0 || datagram.payload.len() > 200 {
            return Vec::new();
        }
        *bytes.borrow_mut() += datagram.payload.len() as u64;
        let mut copy = datagram.clone();
        copy.source = VICTIM.into();
        vec![copy]
    }));
    pair.must_transfer(20 * SEC);
    let astray = pair.astray.get(&VICTIM.into()).copied().unwrap_or(0);
    assert!(
        *forged.borrow() > 0 && astray <= 3 * *forged.borrow(),
        "{astray}"
    );
    assert_eq!(pair.server().paths, []);
}

#[test]
fn challenges_survive_heavy_loss() {
    for seed in 0..20 {
        let mut pair = scenario(0.4, seed).both_ways(2_000_000).build();
        move_client(&mut pair, 300 * MS, ELSEWHERE, true);
        pair.must_transfer(60 * SEC);
        let found = found_at(&pair, ELSEWHERE).expect("found");
        assert!(found < 3 * SEC, "seed {seed}: {} ms", found / MS);
    }
}

#[test]
fn ids_are_handed_out_even_where_most_is_lost() {
    let mut pair = scenario(0.5, 7).both_ways(100_000).build();
    pair.must_transfer(30 * SEC);
    for end in &pair.ends {
        assert_eq!(end.cids.len(), 3, "the first and two spare ones");
    }
}

#[test]
fn the_path_becomes_narrow() {
    for loss in [0.0, 0.06, 0.2] {
        let mut pair = scenario(loss, 8).both_ways(10_000_000).build();
        pair.run_until(400 * MS, |_| false);
        let before = pair.server().bytes_received;
        for side in 0..2 {
            reconfigure(&mut pair, side, |link| link.mtu = Some(1280));
        }
        // Two or three probe timeouts later data flows again.

        pair.run_until(800 * MS, |_| false);
        let stats = pair.client().session().stats();
        assert_eq!(
            (stats.mtu_falls > 0, stats.symbol_len),
            (true, 1162),
            "loss {loss}"
        );
        pair.run_until(1000 * MS, |_| false);
        let after = pair.server().bytes_received;
        assert!(after > before + 500_000, "loss {loss}: {before} {after}");
        pair.must_transfer(20 * SEC);
    }
}

#[test]
fn a_narrow_path_becomes_wide_again() {
    let mut pair = scenario(0.01, 9).bulk(200_000_000).build();
    pair.run_until(400 * MS, |_| false);
    reconfigure(&mut pair, 0, |link| link.mtu = Some(1280));
    pair.run_until(2 * SEC, |_| false);
    assert_eq!(pair.client().session().stats().symbol_len, 1214);
    reconfigure(&mut pair, 0, |link| link.mtu = Some(1500));
    pair.must_transfer(80 * SEC);
    assert_eq!(pair.client().session().stats().symbol_len, 1434);
}

/// Symbols of 8934 bytes in eight fragments.
#[test]
fn from_jumbo_frames_to_the_smallest() {
    let mut pair = scenario(0.03, 10)
        .both_ways(10_000_000)
        .on_links(|link| link.mtu = Some(9000))
        .build();
    pair.run_until(400 * MS, |_| false);
    assert_eq!(pair.client().session().stats().symbol_len, 8934);
    for side in 0..2 {
        reconfigure(&mut pair, side, |link| link.mtu = Some(1280));
    }
    pair.must_transfer(30 * SEC);
}

#[test]
fn the_interface_says_that_it_is_narrow() {
    let mut pair = scenario(0.02, 11).both_ways(8_000_000).build();
    pair.run_until(400 * MS, |_| false);
    for side in 0..2 {
        reconfigure(&mut pair, side, |link| link.mtu = Some(1280));
        let now = pair.now;
        pair.ends[side].datagram_too_large(now, 1472);
        assert_eq!(pair.ends[side].session().stats().symbol_len, 1162);
    }
    pair.must_transfer(20 * SEC);
    assert_eq!(pair.client().session().stats().mtu_falls, 1);
}

#[test]
fn loss_alone_does_not_narrow_the_path() {
    let mut falls = 0;
    for seed in 0..10 {
        let mut pair = scenario(0.2, seed).both_ways(5_000_000).build();
        pair.must_transfer(20 * SEC);
        falls += pair
            .ends
            .iter()
            .map(|end| end.session().stats().mtu_falls)
            .sum::<u64>();
    }
    assert_eq!(falls, 0);
}

#[test]
fn fragments_survive_reordering_and_duplication() {
    let mut pair = scenario(0.05, 12)
        .both_ways(6_000_000)
        .on_links(|link| {
            link.duplication = 0.3;
            link.jitter = sphinx_link::Jitter {
                max: std::time::Duration::from_millis(8),
                order: sphinx_link::Order::Free,
            };
        })
        .build();
    pair.run_until(300 * MS, |_| false);
    for side in 0..2 {
        reconfigure(&mut pair, side, |link| link.mtu = Some(1280));
    }
    pair.must_transfer(20 * SEC);
}

#[test]
fn a_black_hole_is_found_within_eight_round_trips() {
    for loss in [0.0, 0.06, 0.2] {
        for seed in 0..12 {
            let mut pair = scenario(loss, seed).both_ways(10_000_000).build();
            pair.run_until(400 * MS, |_| false);
            for side in 0..2 {
                reconfigure(&mut pair, side, |link| link.mtu = Some(1280));
            }
            let rtt = pair.client().session().stats().rtt;
            let has_fallen = |pair: &mut Pair| pair.client().session().stats().mtu_falls > 0;
            let found = pair.run_until(400 * MS + 8 * rtt, has_fallen);
            assert!(found, "loss {loss}, seed {seed}");
        }
    }
}
