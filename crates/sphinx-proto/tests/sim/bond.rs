//! What several paths are for: modes, roles, costs, limits and budgets.

use std::num::NonZeroU64;

use sphinx_fec::CodeId;
use sphinx_proto::cc::{CcKind, Couple};
use sphinx_proto::{Bond, Icm, Nanos, PathId, PathNews, PathPolicy, PathRole, Sc};
use sphinx_sim::{MS, Pair, SEC, Scenario, Write, link};

use crate::random::number;
use crate::several::{FIRST, SECOND, cut, goodput, heard, random_paths, two};
use crate::table::bernoulli;

/// Interval of paced writes.
const INTERVAL: Nanos = 10 * MS;

fn bonded(scenario: Scenario, bond: Bond, policies: &[PathPolicy]) -> Scenario {
    Scenario {
        bond,
        policies: policies.to_vec(),
        ..scenario
    }
}

/// The client writes at so many Mbit/s, every [`INTERVAL`], for so long: how many bytes each time, and how often.
fn paced(scenario: &mut Scenario, mbit: u64, time: Nanos) -> (u64, u64) {
    let (len, count) = (mbit * 1250, time / INTERVAL);
    let write = |index| Write {
        at: index * INTERVAL,
        stream: 0,
        len,
        end_of_stream: index + 1 == count,
    };
    scenario.client.writes.extend((0..count).map(write));
    (len, count)
}

/// The longest time in which nothing came further in order, from `since` on.
fn longest_gap(pair: &Pair, (len, count): (u64, u64), since: Nanos) -> Nanos {
    let arrivals = pair.server().message_arrivals(len, count);
    let (mut last, mut gap) = (0, 0);
    for (index, arrived) in arrivals.into_iter().enumerate() {
        let arrived = arrived.expect("it arrived").max(last);
        if index as u64 * INTERVAL >= since && last > 0 {
            gap = gap.max(arrived - last);
        }
        last = arrived;
    }
    gap
}

/// IP bytes that both ends have brought onto the path with this index.
fn carried(pair: &Pair, path: usize) -> u64 {
    let links = match path {
        0 => &pair.links,
        _ => &pair.further[path - 1],
    };
    links.iter().map(|link| link.counters().sent_bytes).sum()
}

const BACKUP: PathPolicy = PathPolicy {
    role: PathRole::Backup,
    cost: 0,
    weight: 1,
    limit: None,
    budget: None,
};

fn cost(cost: u32) -> PathPolicy {
    PathPolicy {
        cost,
        ..PathPolicy::default()
    }
}

fn seeds() -> u64 {
    number("SPHINX_PATHS_SEEDS").unwrap_or(1)
}

#[test]
fn a_standby_carries_nothing_until_it_is_needed() {
    for (bond, policies) in [
        (Bond::Backup, &[][..]),
        (Bond::Aggregate, &[PathPolicy::default(), BACKUP]),
        (
            Bond::Redundant { copies: 0 },
            &[PathPolicy::default(), BACKUP],
        ),
    ] {
        for rtts in [[50, 50], [50, 5]] {
            let scenario = two([40, 40], rtts, [0.01; 2], 3).both_ways(20_000_000);
            let mut pair = bonded(scenario, bond, policies).build();
            pair.must_transfer(30 * SEC);
            // Probes of its MTU, copies of challenges until the answers are there, and a PING now and then.
            let standby = carried(&pair, 1);
            assert!(standby < 30_000, "{bond} {rtts:?}: {standby}");
        }
    }
}

#[test]
fn a_silent_cut_is_a_short_gap() {
    for seed in 0..seeds() {
        for (bond, most) in [
            (Bond::Aggregate, 110),
            // What had arrived, although the acknowledgements were cut, is asked for on the standby as soon as news are late.
            (Bond::Backup, 110),
            // As long as without a cut: one interval.
            (Bond::Redundant { copies: 0 }, 15),
        ] {
            let mut scenario = two([40, 40], [50, 50], [0.0; 2], seed);
            let load = paced(&mut scenario, 20, 5 * SEC);
            let ends = &mut (&mut scenario.forward, &mut scenario.backward);
            cut(ends, 2 * SEC + seed * 7 * MS, 4 * SEC);
            let mut pair = bonded(scenario, bond, &[]).build();
            pair.must_transfer(30 * SEC);
            let gap = longest_gap(&pair, load, 1900 * MS);
            println!("seed {seed} {bond}: {} ms", gap / MS);
            assert!(gap <= most * MS, "{bond}: {} ms", gap / MS);
            let back = heard(&pair, FIRST, PathNews::Back).expect("it came back");
            assert!(back < 6 * SEC, "{bond}: back at {} ms", back / MS);
        }
    }
}

/// What a path has not answered for is no loss of its channel, against which repair would be sent ahead once it is back.
#[test]
fn an_outage_is_not_repaired_ahead_afterwards() {
    for bond in [Bond::Backup, Bond::Aggregate] {
        let run = |is_cut: bool| {
            let mut scenario = two([40, 40], [50, 50], [0.0; 2], 3);
            paced(&mut scenario, 20, 8 * SEC);
            let ends = &mut (&mut scenario.forward, &mut scenario.backward);
            if is_cut {
                cut(ends, 2 * SEC, 4 * SEC);
            }
            let mut pair = bonded(scenario, bond, &[]).build();
            pair.run_until(5 * SEC, |_| false);
            let ahead = pair.client().session().stats().repair_proactive;
            pair.must_transfer(30 * SEC);
            let stats = pair.client().session().stats();
            let after = stats.repair_proactive - ahead;
            println!("{bond}, cut {is_cut}: {after} beside {}", stats.source_sent);
            after
        };
        let (with, without) = (run(true), run(false));
        assert!(with <= without + 100, "{bond}: {with}, {without} without");
    }
}

/// Whatever the mode: what is written arrives during the cut, and the path is used again soon.
#[test]
fn every_mode_goes_on_after_a_silent_cut() {
    let bonds = [
        (Bond::Aggregate, None),
        (Bond::Redundant { copies: 0 }, None),
        (Bond::Backup, None),
        (Bond::Cheapest, None),
    ];
    let schemes = [Sc::Systematic, Sc::Rlnc, Sc::MinRtt, Sc::Ecf];
    let schemes = schemes.map(|sc| (Bond::Aggregate, Some(sc)));
    for (bond, sc) in bonds.into_iter().chain(schemes) {
        let name = sc.map_or(bond.name(), Sc::name);
        let mut gaps = Vec::new();
        for seed in 0..number("SPHINX_PATHS_SEEDS").unwrap_or(4) {
            // Some ends take their time for a packet, and some have little memory.
            let delay = [0, MS, 0, 3 * MS][seed as usize % 4];
            let window = [24 << 20, 24 << 20, 512 << 10, 1 << 20][seed as usize % 4];
            let mut scenario = two([40, 40], [50, 50], [0.0; 2], seed);
            let load = paced(&mut scenario, 20, 6 * SEC);
            scenario.client.packet_delay_max = delay;
            scenario.server.packet_delay_max = delay;
            scenario.recv_window = window;
            scenario.sc = sc;
            let (from, until) = (2 * SEC + seed * 1_300_000, 4 * SEC);
            let ends = &mut (&mut scenario.forward, &mut scenario.backward);
            cut(ends, from, until);
            let mut pair = bonded(scenario, bond, &[cost(1), cost(2)]).build();
            pair.must_transfer(30 * SEC);
            let gap = longest_gap(&pair, load, 1900 * MS);
            gaps.push(gap / MS);
            assert!(gap <= 400 * MS, "{name}, seed {seed}: {} ms", gap / MS);
            let back = heard(&pair, FIRST, PathNews::Back).expect("it came back");
            assert!(back < until + 2 * SEC, "{name}: back at {} ms", back / MS);
        }
        println!("{name}: {gaps:?} ms");
    }
}

#[test]
fn redundant_is_as_fast_as_the_best_path_and_hardly_repairs() {
    for (rates, rtts, losses) in [
        ([50, 50], [40, 40], [0.05, 0.05]),
        ([50, 5], [20, 20], [0.0, 0.0]),
        ([5, 50], [20, 200], [0.02, 0.02]),
        ([80, 300], [30, 10], [0.0, 0.01]),
    ] {
        let bytes = 20_000_000;
        let alone = |at: usize| {
            let way = link(rates[at], rtts[at], bernoulli(losses[at]), 5 + at as u64);
            let mut pair = Scenario::new(way).bulk(bytes).build();
            pair.must_transfer(60 * SEC);
            goodput(&pair, bytes)
        };
        let best = alone(0).max(alone(1));
        let scenario = two(rates, rtts, losses, 5).bulk(bytes);
        let mut pair = bonded(scenario, Bond::Redundant { copies: 0 }, &[]).build();
        pair.must_transfer(60 * SEC);
        let share = goodput(&pair, bytes) / best;
        println!("{rates:?} {rtts:?} {losses:?}: {share:.3}");
        assert!(share > 0.95, "{rates:?} {rtts:?}: {share:.3} of the best");
    }
}

/// What is lost on all paths may be sent again as it was, and be lost again.
#[test]
fn redundant_survives_symbols_that_are_lost_again() {
    for (code, icm) in [
        (CodeId::Srlt, Icm::Default),
        (CodeId::FftRs, Icm::Default),
        (CodeId::Rlc, Icm::Paper),
    ] {
        for seed in 0..4 {
            let mut scenario = two([40, 40], [30, 50], [0.3; 2], seed).bulk(2_000_000);
            (scenario.code, scenario.icm) = (Some(code), icm);
            let mut pair = bonded(scenario, Bond::Redundant { copies: 0 }, &[]).build();
            pair.must_transfer(30 * SEC);
            println!("{code:?} {icm:?}, seed {seed}: {} ms", pair.now / MS);
        }
    }
}

#[test]
fn cheap_paths_carry_what_they_can() {
    for seed in 0..seeds() {
        for (offered, dear_may, dear_must) in [(20, 0.01, 0.0), (60, 0.7, 0.3)] {
            let mut scenario = two([30, 100], [30, 15], [0.0; 2], seed);
            paced(&mut scenario, offered, 10 * SEC);
            let policies = [cost(0), cost(5)];
            let mut pair = bonded(scenario, Bond::Cheapest, &policies).build();
            pair.must_transfer(15 * SEC);
            let (cheap, dear) = (carried(&pair, 0) as f64, carried(&pair, 1) as f64);
            let share = dear / (cheap + dear);
            println!("seed {seed}, {offered} Mbit/s: {share:.4} of the bytes are dear");
            assert!(
                share <= dear_may,
                "{offered}: {share:.3} of the bytes are dear"
            );
            assert!(
                share >= dear_must,
                "{offered}: {share:.3} of the bytes are dear"
            );
        }
    }
}

#[test]
fn a_dear_path_takes_over_and_is_left_again() {
    let mut scenario = two([30, 30], [50, 50], [0.0; 2], 4);
    let load = paced(&mut scenario, 15, 8 * SEC);
    let ends = &mut (&mut scenario.forward, &mut scenario.backward);
    cut(ends, 2 * SEC, 3 * SEC);
    let mut pair = bonded(scenario, Bond::Cheapest, &[cost(1), cost(2)]).build();
    pair.run_until(5 * SEC, |_| false);
    let dear = carried(&pair, 1);
    assert!(dear > 1_000_000, "{dear}");
    pair.must_transfer(20 * SEC);
    let more = carried(&pair, 1) - dear;
    assert!(more < 10_000, "{more} after the cheap one was back");
    let gap = longest_gap(&pair, load, 1900 * MS);
    assert!(gap <= 150 * MS, "{} ms", gap / MS);
}

/// What it had carried is missing from what the others have, by which it is known whether dear ones are needed.
#[test]
fn a_dear_path_may_be_given_up_while_it_helps() {
    let third = link(100, 40, bernoulli(0.0), 9);
    let mut scenario = two([30, 100], [30, 15], [0.0; 2], 5).path(0, third);
    paced(&mut scenario, 60, 12 * SEC);
    let policies = [cost(0), cost(5), cost(5)];
    let mut pair = bonded(scenario, Bond::Cheapest, &policies).build();
    pair.run_until(8 * SEC, |_| false);
    let (now, helped) = (pair.now, carried(&pair, 1));
    assert!(helped > 12_000_000, "{helped}");
    assert!(pair.ends[0].abandon_path(now, SECOND));
    let before = carried(&pair, 2);
    pair.must_transfer(20 * SEC);
    let instead = carried(&pair, 2) - before;
    assert!(instead > 5_000_000, "{instead}");
}

/// Paths that meet nowhere are as full as uncoupled ones: windows that are halved in a queue of one round trip leave it full.
#[test]
fn coupled_paths_lose_nothing_where_they_do_not_meet() {
    let bytes = 40_000_000;
    let rate = |couple| {
        let mut scenario = two([20, 20], [40, 40], [0.0; 2], 5).bulk(bytes);
        scenario.cc = CcKind::AimdEcn;
        scenario.couple = couple;
        let mut pair = scenario.build();
        pair.must_transfer(60 * SEC);
        goodput(&pair, bytes)
    };
    let free = rate(Couple::Off);
    for couple in [Couple::Lia, Couple::Olia] {
        let share = rate(couple) / free;
        println!("{couple}: {share:.3} of {free:.1} Mbit/s");
        assert!(share > 0.95, "{couple}: {share:.3}");
    }
}

#[test]
fn a_spent_budget_ends_the_path() {
    let budget = 3_000_000;
    let policy = PathPolicy {
        budget: Some(budget),
        ..PathPolicy::default()
    };
    let scenario = two([40, 40], [30, 30], [0.0; 2], 6).bulk(30_000_000);
    let mut pair = bonded(scenario, Bond::Aggregate, &[PathPolicy::default(), policy]).build();
    pair.must_transfer(30 * SEC);
    assert!(heard(&pair, SECOND, PathNews::Spent).is_some());
    let used = carried(&pair, 1);
    assert!((budget * 9 / 10..budget + 20_000).contains(&used), "{used}");
    // Without another path the transfer does not finish.
    let scenario = Scenario::new(link(40, 30, bernoulli(0.0), 6)).bulk(30_000_000);
    let mut pair = bonded(scenario, Bond::Aggregate, &[policy]).build();
    assert!(!pair.run_transfer(30 * SEC));
    let used = carried(&pair, 0);
    assert!((budget * 9 / 10..budget + 20_000).contains(&used), "{used}");
    assert!(!pair.client().events.is_empty() && !pair.server().events.is_empty());
}

#[test]
fn limits_hold_for_each_path_and_for_all() {
    let limited = PathPolicy {
        limit: NonZeroU64::new(1_000_000),
        ..PathPolicy::default()
    };
    let bytes = 20_000_000;
    // The limit holds in both directions, as the server is told of it.
    let scenario = two([40, 40], [30, 30], [0.0; 2], 7).both_ways(bytes);
    let mut pair = bonded(scenario, Bond::Aggregate, &[PathPolicy::default(), limited]).build();
    pair.must_transfer(30 * SEC);
    for (end, link) in pair.further[0].iter().enumerate() {
        let rate = link.counters().offered_bytes as f64 / (pair.now as f64 / 1e9);
        assert!(
            (850_000.0..1_060_000.0).contains(&rate),
            "end {end}: {rate:.0}"
        );
    }
    let mut scenario = two([40, 40], [30, 30], [0.0; 2], 7).bulk(bytes);
    scenario.client.limits = vec![(0, Some(4_000_000))];
    let mut pair = scenario.build();
    pair.must_transfer(30 * SEC);
    let both: u64 = [&pair.links[0], &pair.further[0][0]]
        .map(|link| link.counters().offered_bytes)
        .iter()
        .sum();
    let rate = both as f64 / (pair.now as f64 / 1e9);
    assert!((3_600_000.0..4_100_000.0).contains(&rate), "{rate:.0}");
}

#[test]
fn several_paths_are_no_slower_than_the_best() {
    for (rates, rtts, losses, least) in [
        ([50, 50], [40, 40], [0.0, 0.0], 1.94),
        ([300, 80], [10, 30], [0.0, 0.0], 1.16),
        ([10, 10], [20, 200], [0.01, 0.1], 0.95),
        ([10, 10], [20, 200], [0.001, 0.05], 0.95),
        ([60, 10], [20, 60], [0.01, 0.0], 0.95),
        ([100, 10], [20, 300], [0.0, 0.05], 0.95),
        ([20, 20], [40, 40], [0.0, 0.3], 0.95),
    ] {
        let mut shares = Vec::new();
        for seed in 0..seeds() {
            // Five seconds of the sum.
            let bytes = (rates[0] + rates[1]) * 625_000;
            let alone = |at: usize| {
                let way = link(rates[at], rtts[at], bernoulli(losses[at]), seed + at as u64);
                let mut pair = Scenario::new(way).bulk(bytes).build();
                pair.must_transfer(300 * SEC);
                goodput(&pair, bytes)
            };
            let best = alone(0).max(alone(1));
            let mut pair = two(rates, rtts, losses, seed).bulk(bytes).build();
            pair.must_transfer(300 * SEC);
            shares.push(goodput(&pair, bytes) / best);
        }
        shares.sort_by(f64::total_cmp);
        println!("{rates:?} {rtts:?} {losses:?}: {shares:.3?} of the best path");
        let median = shares[shares.len() / 2];
        assert!(
            median >= least,
            "{rates:?} {rtts:?} {losses:?}: {median:.3} of the best"
        );
    }
}

/// Modes change at any moment, paths have any role, and bytes arrive as they were sent.
#[test]
fn modes_of_any_kind() {
    let count = number("SPHINX_PATHS_SEEDS").unwrap_or(15);
    let first = number("SPHINX_SIM_FIRST").unwrap_or(0);
    for seed in first..first + count {
        let (mut scenario, abandons) = random_paths(seed);
        let mut rng = sphinx_sim::Rng::new(seed ^ 0x626f_6e64);
        let any = |rng: &mut sphinx_sim::Rng| {
            rng.pick(&[
                Bond::Aggregate,
                Bond::Redundant { copies: 0 },
                Bond::Redundant { copies: 2 },
                Bond::Backup,
                Bond::Cheapest,
            ])
        };
        scenario.bond = any(&mut rng);
        for _ in 0..rng.below(4) {
            scenario.bonds.push((rng.below(4000) * MS, any(&mut rng)));
        }
        scenario.bonds.sort_by_key(|(at, _)| *at);
        for _ in 0..=scenario.further.len() {
            scenario.policies.push(PathPolicy {
                role: rng.pick(&[PathRole::Primary, PathRole::Primary, PathRole::Backup]),
                cost: rng.below(3) as u32,
                weight: rng.within(1, 4) as u32,
                limit: rng.pick(&[None, None, NonZeroU64::new(50_000)]),
                budget: None,
            });
        }
        println!("seed {seed}");
        let mut pair = scenario.build();
        pair.run_until(abandons, |_| false);
        let (now, side) = (pair.now, seed as usize % 2);
        if seed % 3 == 0 {
            pair.ends[side].abandon_path(now, PathId::new(seed as u32 / 3 % 4));
        }
        pair.must_transfer(900 * SEC);
        println!("  {} ms", pair.now / MS);
    }
}
