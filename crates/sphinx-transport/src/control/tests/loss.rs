//! How long the handshake takes on lossy links.

use super::*;

/// When the ends were established, sorted: client, server.
fn times(loss: f64, one_way: Duration, seeds: u64, is_known: bool) -> [Vec<Duration>; 2] {
    let identity = Identity::generate();
    let ticket = ticket_of(&identity);
    let mut times = [Vec::new(), Vec::new()];
    for seed in 0..seeds {
        let mut net = Net::pair(&identity);
        net.rng = Rng(seed * 1000 + 7);
        net.loss = loss;
        net.one_way = one_way;
        let id = net.connect(&ticket, Service::PERF);
        if is_known {
            net.ends[0].control.remember(id, 2 * one_way, loss);
        }
        assert!(
            net.run_until_established(ms(10_000)),
            "seed {seed}: {:?} {:?}",
            net.ends[0].events,
            net.ends[1].events
        );
        for (end, times) in net.ends.iter().zip(&mut times) {
            times.extend(end.established_at());
        }
    }
    times.iter_mut().for_each(|times| times.sort());
    times
}

/// A first contact: nobody knows that the path loses anything, so a copy of what is lost follows after 50 ms, or 1.25 round trips.
fn check(loss: f64, one_way: Duration, median: Duration, longest: Duration) {
    check_all(loss, one_way, false, (median, longest));
}

fn check_all(
    loss: f64,
    one_way: Duration,
    is_known: bool,
    (median, longest): (Duration, Duration),
) {
    let times = times(loss, one_way, 200, is_known);
    for (end, times) in ["client", "server"].iter().zip(&times) {
        let at = |share: usize| times[(times.len() - 1) * share / 100];
        println!(
            "loss {loss} rtt {:?} {end}: p10 {:?} p50 {:?} p90 {:?} p99 {:?} max {:?}",
            one_way * 2,
            at(10),
            at(50),
            at(90),
            at(99),
            at(100)
        );
        assert!(at(50) <= median, "{end}: median {:?}", at(50));
        assert!(at(100) <= longest, "{end}: longest {:?}", at(100));
    }
}

#[test]
fn no_loss() {
    check(0.0, ms(5), ms(15), ms(15));
}

#[test]
fn twenty_percent_both_ways() {
    check(0.2, ms(5), ms(65), ms(800));
}

#[test]
fn thirty_percent_both_ways() {
    check(0.3, ms(5), ms(120), ms(1500));
}

#[test]
fn thirty_percent_on_a_long_path() {
    check(0.3, ms(100), ms(450), ms(5000));
}

#[test]
fn half_lost_both_ways() {
    check(0.5, ms(5), ms(400), ms(10_000));
}

/// Copies go at once where an earlier session has met losses.
#[test]
fn known_paths() {
    check_all(0.2, ms(5), true, (ms(25), ms(800)));
    check_all(0.3, ms(5), true, (ms(40), ms(1500)));
}
