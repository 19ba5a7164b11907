//! Paths that meet in one bottleneck, and paths that do not.

use std::time::Duration;

use sphinx_link::{Depth, Jitter, LinkConfig};
use sphinx_proto::cc::{CcKind, Couple};
use sphinx_proto::{Bond, Nanos, PathPolicy, PathState};
use sphinx_sim::{MS, SEC, Scenario, Shared, Write, far, link};

use crate::random::number;
use crate::table::bernoulli;

type Ways = (LinkConfig, LinkConfig);

/// What is counted is from here on: by then paths that meet have been found.
const FROM: Nanos = 6 * SEC;

/// A link with a queue of so many round trips.
fn queue(mbit: u64, rtt_ms: u64, trips: f64, seed: u64) -> Ways {
    let (mut there, back) = link(mbit, rtt_ms, bernoulli(0.0), seed);
    there.queue = Depth::Bytes((trips * (mbit * rtt_ms * 125) as f64) as u64);
    (there, back)
}

fn jitter((mut there, mut back): Ways, ms: u64) -> Ways {
    for way in [&mut there, &mut back] {
        way.jitter = Jitter {
            max: Duration::from_millis(ms),
            ..Jitter::default()
        };
    }
    (there, back)
}

/// A session whose paths lead to common links, and others of one path, with CUBIC.
struct Case {
    commons: Vec<Ways>,
    /// Of each path its own link, and which of the common ones is behind it.
    paths: Vec<(Ways, usize)>,
    /// For each CUBIC session, the common link that it uses.
    cubics: Vec<usize>,
    /// Bytes that are written at a time, and how often; `None`: there is always something.
    bursts: Option<(u64, Nanos)>,
    /// What a byte costs on each path, if the cheapest ones are to be used.
    costs: Vec<u32>,
    seed: u64,
    until: Nanos,
}

/// What the case came to from [`FROM`] on.
struct Outcome {
    /// Mbit/s of our session, and of all others.
    ours: f64,
    others: f64,
    /// For how many seconds each of our paths rested.
    rested: Vec<f64>,
    /// Whether each of them carries something at the end.
    is_used: Vec<bool>,
}

impl Case {
    fn new(commons: Vec<Ways>, paths: Vec<(Ways, usize)>, cubics: &[usize], seed: u64) -> Self {
        Self {
            commons,
            paths,
            cubics: cubics.to_vec(),
            bursts: None,
            costs: Vec::new(),
            seed,
            until: 30 * SEC,
        }
    }

    /// All paths lead to one link, where `cubics` others are.
    fn meeting(common: Ways, far_ms: &[u64], cubics: usize, seed: u64) -> Self {
        let paths = far_ms.iter().map(|ms| (far(*ms), 0)).collect();
        Self::new(vec![common], paths, &vec![0; cubics], seed)
    }

    /// Two paths over links of their own, with or without another flow on each.
    fn apart(one: Ways, other: Ways, cubics: &[usize], seed: u64) -> Self {
        let paths = vec![(far(0), 0), (far(0), 1)];
        Self::new(vec![one, other], paths, cubics, seed)
    }

    fn run(&self, couple: Couple) -> Outcome {
        let mut ways = self.paths.iter();
        let (first, place) = ways.next().expect("a path");
        let mut ours = Scenario::new(first.clone());
        let mut places = vec![*place];
        for (way, place) in ways {
            ours = ours.path(0, way.clone());
            places.push(*place);
        }
        (ours.seed, ours.couple) = (self.seed, couple);
        if !self.costs.is_empty() {
            ours.bond = Bond::Cheapest;
            let policy = |cost| PathPolicy {
                cost,
                ..PathPolicy::default()
            };
            ours.policies = self.costs.iter().copied().map(policy).collect();
        }
        let (len, interval) = self.bursts.unwrap_or((4_000_000_000, self.until));
        let writes = (0..self.until / interval).map(|index| Write {
            at: index * interval,
            stream: 0,
            len,
            end_of_stream: false,
        });
        ours.client.writes.extend(writes);
        let mut sessions = vec![(ours, places)];
        for (index, place) in self.cubics.iter().enumerate() {
            let mut cubic = Scenario::new(far(0)).bulk(4_000_000_000);
            (cubic.cc, cubic.seed) = (CcKind::Cubic, self.seed + 100 + index as u64);
            sessions.push((cubic, vec![*place]));
        }
        let mut shared = Shared::over(&self.commons, &sessions);
        shared.run_until(FROM);
        let received = |shared: &Shared| -> Vec<u64> {
            let ends = shared.sessions.iter();
            ends.map(|[_, server]| server.bytes_received).collect()
        };
        let before = received(&shared);
        let mut rested = vec![0.0; self.paths.len()];
        while shared.now < self.until {
            shared.run_until(shared.now + 100 * MS);
            let stats = shared.sessions[0][0].session().path_stats();
            for (path, rested) in stats.iter().zip(&mut rested) {
                *rested += f64::from(u8::from(path.state == PathState::Met)) / 10.0;
            }
        }
        let after = received(&shared).into_iter();
        let rate = |(after, before): (u64, u64)| {
            (after - before) as f64 * 8e3 / (self.until - FROM) as f64
        };
        let mut rates = after.zip(before).map(rate);
        Outcome {
            ours: rates.next().expect("ours"),
            others: rates.sum(),
            rested,
            is_used: { shared.sessions[0][0].session().path_stats().into_iter() }
                .map(|path| path.state == PathState::Working)
                .collect(),
        }
    }
}

/// In the mean of three runs: what a pair of flows has differs from one to the next.
#[test]
fn paths_that_meet_take_the_share_of_one() {
    for far_ms in [&[0, 0][..], &[0, 5, 10]] {
        let (mut auto, mut free) = (0.0, 0.0);
        for seed in 1..4 {
            let common = || link(10, 40, bernoulli(0.0), seed);
            let ours = |far_ms, couple| Case::meeting(common(), far_ms, 1, seed).run(couple).ours;
            let alone = ours(&[0], Couple::Auto);
            auto += ours(far_ms, Couple::Auto) / alone / 3.0;
            free += ours(far_ms, Couple::Off) / alone / 3.0;
        }
        println!("{far_ms:?}: {auto:.2} of one flow, {free:.2} without");
        assert!((0.8..1.15).contains(&auto), "{far_ms:?}: {auto:.2}");
        assert!(free > 1.1, "{far_ms:?}: nothing to couple: {free:.2}");
    }
}

/// The dearer one helps after a second, and then they are found to meet.
#[test]
fn of_paths_that_meet_the_cheaper_one_goes_on() {
    for seed in 1..4 {
        let case = Case {
            costs: vec![5, 1],
            until: 16 * SEC,
            ..Case::meeting(link(10, 40, bernoulli(0.0), seed), &[0, 0], 1, seed)
        };
        let outcome = case.run(Couple::Auto);
        println!("{:?}, {:?}", outcome.rested, outcome.is_used);
        assert!(
            outcome.rested[1] == 0.0 && outcome.is_used[1],
            "seed {seed}"
        );
        assert!(outcome.rested[0] > 1.0, "seed {seed}");
    }
}

#[test]
fn paths_that_do_not_meet_carry_what_they_did() {
    for cubics in [&[][..], &[0, 1]] {
        let case = || {
            let ways = [1, 9].map(|seed| link(10, 40, bernoulli(0.0), seed));
            let [one, other] = ways;
            Case::apart(one, other, cubics, 1)
        };
        let (auto, free) = (case().run(Couple::Auto), case().run(Couple::Off));
        let share = auto.ours / free.ours;
        println!("{} others: {share:.3}, {:?}", cubics.len(), auto.rested);
        assert!(share > 0.97, "{} others: {share:.3}", cubics.len());
    }
}

/// Both always lose as much: one rests on trial, and is not needed less.
#[test]
fn two_bad_channels_are_not_taken_for_one_queue() {
    let case = || {
        let [one, other] = [1, 9].map(|seed| link(5, 40, bernoulli(0.35), seed));
        Case::apart(one, other, &[], 1)
    };
    let (auto, free) = (case().run(Couple::Auto), case().run(Couple::Off));
    println!("{:.2} and {:.2}, {:?}", auto.ours, free.ours, auto.rested);
    assert!(auto.ours > 0.75 * free.ours, "{:.2}", auto.ours);
}

/// The common link is wider than the way of one path to it: both are needed, and their queues are not there.
#[test]
fn paths_with_narrow_ways_to_a_wide_link_are_all_used() {
    let narrow = |seed| link(6, 4, bernoulli(0.0), seed);
    let paths = vec![(narrow(2), 0), (narrow(3), 0)];
    let common = link(10, 40, bernoulli(0.0), 1);
    let outcome = Case::new(vec![common], paths, &[], 1).run(Couple::Auto);
    println!("{:.2}, {:?}", outcome.ours, outcome.rested);
    assert!(outcome.ours > 7.5, "{:.2}", outcome.ours);
}

#[test]
#[ignore = "a table for people"]
fn table_of_meetings() {
    type Make = fn(u64) -> Case;
    let cases: &[(&str, Make)] = &[
        ("meet, 20 Mbit/s, 40 ms", |s| {
            Case::meeting(queue(20, 40, 1.0, s), &[0, 0], 1, s)
        }),
        ("meet, 1 % lost", |s| {
            Case::meeting(link(20, 40, bernoulli(0.01), s), &[0, 0], 1, s)
        }),
        ("meet, 50 Mbit/s, 20 ms", |s| {
            Case::meeting(queue(50, 20, 1.0, s), &[0, 0], 1, s)
        }),
        ("meet, a queue of 4 round trips", |s| {
            Case::meeting(queue(20, 40, 4.0, s), &[0, 0], 1, s)
        }),
        ("meet, of half a round trip", |s| {
            Case::meeting(queue(20, 40, 0.5, s), &[0, 0], 1, s)
        }),
        ("meet, one 30 ms farther", |s| {
            Case::meeting(queue(20, 40, 1.0, s), &[0, 30], 1, s)
        }),
        ("meet, one 100 ms farther", |s| {
            Case::meeting(queue(20, 40, 1.0, s), &[0, 100], 1, s)
        }),
        ("three meet", |s| {
            Case::meeting(queue(20, 40, 1.0, s), &[0, 5, 10], 1, s)
        }),
        ("meet, two others", |s| {
            Case::meeting(queue(20, 40, 1.0, s), &[0, 0], 2, s)
        }),
        ("meet, nobody else", |s| {
            Case::meeting(queue(20, 40, 1.0, s), &[0, 0], 0, s)
        }),
        ("meet behind jitter of 10 ms", |s| {
            let path = || (jitter(far(0), 10), 0);
            Case::new(vec![queue(20, 40, 1.0, s)], vec![path(), path()], &[0], s)
        }),
        ("meet, ways of 12 Mbit/s to it", |s| {
            let path = |seed| (queue(12, 2, 1.0, seed), 0);
            let paths = vec![path(s + 1), path(s + 2)];
            Case::new(vec![queue(20, 40, 1.0, s)], paths, &[0], s)
        }),
        ("apart", |s| {
            Case::apart(queue(20, 40, 1.0, s), queue(20, 40, 1.0, s + 9), &[], s)
        }),
        ("apart, another on each", |s| {
            let ways = [s, s + 9].map(|seed| queue(20, 40, 1.0, seed));
            let [one, other] = ways;
            Case::apart(one, other, &[0, 1], s)
        }),
        ("apart, 6 % lost", |s| {
            let [one, other] = [s, s + 9].map(|seed| link(20, 40, bernoulli(0.06), seed));
            Case::apart(one, other, &[], s)
        }),
        ("apart, jitter of 15 ms", |s| {
            let [one, other] = [s, s + 9].map(|seed| jitter(queue(20, 40, 1.0, seed), 15));
            Case::apart(one, other, &[], s)
        }),
        ("apart, bursts of 1 MB", |s| Case {
            bursts: Some((1_000_000, 500 * MS)),
            ..Case::apart(queue(20, 40, 1.0, s), queue(20, 40, 1.0, s + 9), &[], s)
        }),
    ];
    println!("Mbit/s, of all others beside it, and seconds of 24 that each path rests");
    for (name, make) in cases {
        for seed in 1..=number("SPHINX_SIM_SEEDS").unwrap_or(3) {
            let alone = {
                let mut case = make(seed);
                case.paths.truncate(1);
                case.run(Couple::Off).ours
            };
            let [off, auto] = [Couple::Off, Couple::Auto].map(|it| make(seed).run(it));
            println!(
                "{name:32} {seed}: one path {alone:5.2}; off {:5.2}, {:5.2}; auto {:5.2}, {:5.2}, {:.0?}",
                off.ours, off.others, auto.ours, auto.others, auto.rested
            );
        }
    }
}
