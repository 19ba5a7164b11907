//! How long the handshake takes on lossy links.

use super::*;

/// When the ends were established, sorted: client, server.
fn times(loss: f64, one_way: Duration, seeds: u64) -> [Vec<Duration>; 2] {
    let identity = Identity::generate();
    let ticket = ticket_of(&identity);
    let mut times = [Vec::new(), Vec::new()];
    for seed in 0..seeds {
        let mut net = Net::pair(&identity);
        net.rng = Rng(seed * 1000 + 7);
        net.loss = loss;
        net.one_way = one_way;
        net.connect(&ticket, Service::PERF);
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

fn check(loss: f64, one_way: Duration, median: Duration, longest: Duration) {
    let times = times(loss, one_way, 200);
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
    check(0.2, ms(5), ms(25), ms(800));
}

#[test]
fn thirty_percent_both_ways() {
    check(0.3, ms(5), ms(40), ms(1500));
}

#[test]
fn thirty_percent_on_a_long_path() {
    check(0.3, ms(100), ms(350), ms(2500));
}

#[test]
fn half_lost_both_ways() {
    check(0.5, ms(5), ms(100), ms(5000));
}
