//! The filter of acknowledgements, packet by packet: one test for each rule of `docs/ack-path.md`, and a naive filter beside it on random
//! queues.
//!
//! `SPHINX_PEP_QUEUES` says how many random queues are taken.

mod common;

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use common::{Random, Segment, outputs};
use sphinx_pep::{
    Agent, Cause, Config, Counts, Laws, Output, Side, Stage,
    acks::{AckFilter, Dropped, Kept, Mode, ReturnQueue},
};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// What a full packet takes twelve seconds at: nothing that comes at once leaves before the last of it has come.
const SLOW: u64 = 1000;

/// A host, the agent, and a server behind a thin link, which sends. Numbers are counted from the SYNs'.
struct Path {
    agent: Agent,
    laws: Laws,
    now: u64,
    port: u16,
}

fn queue(mode: Mode) -> AckFilter {
    AckFilter {
        queue: Some(ReturnQueue {
            bits_per_second: SLOW,
            bytes: 100_000,
            acks_first: false,
            mode,
        }),
        every_ns: None,
    }
}

fn every(ms: u64) -> AckFilter {
    AckFilter {
        queue: None,
        every_ns: Some(ms * MS),
    }
}

fn syn() -> Segment {
    Segment {
        syn: true,
        mss: Some(1000),
        scale: Some(7),
        sack_permitted: true,
        window: 65_535,
        ..Segment::default()
    }
}

/// An acknowledgement of the host, which has sent nothing.
fn ack(number: u32) -> Segment {
    Segment {
        sequence: 1,
        ack: Some(number),
        window: 1000,
        ..Segment::default()
    }
}

impl Path {
    fn new(filter: AckFilter) -> Path {
        Path::with(
            filter,
            &syn(),
            &Segment {
                ack: Some(1),
                ..syn()
            },
        )
    }

    /// A path whose SYNs are these.
    fn with(filter: AckFilter, syn: &Segment, answer: &Segment) -> Path {
        let config = Config {
            stage: Stage::Pass,
            ack_filter: Some(filter),
            ..Config::default()
        };
        let mut path = Path::of(config);
        path.open(syn, answer);
        path
    }

    fn of(config: Config) -> Path {
        Path {
            agent: Agent::new(config),
            laws: Laws::default(),
            now: 0,
            port: 40_000,
        }
    }

    fn open(&mut self, syn: &Segment, answer: &Segment) {
        self.put(Side::Fixed, syn);
        self.put(Side::Mobile, answer);
        self.put(Side::Fixed, &ack(1));
        self.wait(100 * SECOND);
    }

    fn packet(&self, from: Side, segment: &Segment) -> Bytes {
        let host = ([10, 0, 0, 1], self.port).into();
        let server = ([10, 0, 0, 2], 443).into();
        match from {
            Side::Fixed => segment.packet(host, server),
            Side::Mobile => segment.packet(server, host),
        }
    }

    fn put(&mut self, from: Side, segment: &Segment) -> Vec<Output> {
        let packet = self.packet(from, segment);
        self.laws.input(from, &packet);
        self.agent.handle_packet(self.now, from, packet);
        self.take()
    }

    fn take(&mut self) -> Vec<Output> {
        outputs(&mut self.agent, &mut self.laws)
    }

    /// Lets this time pass, in nanoseconds; what came out meanwhile, and when.
    fn wait(&mut self, time: u64) -> Vec<(u64, Output)> {
        let end = self.now + time;
        let mut outputs = Vec::new();
        while let Some(at) = self.agent.next_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.agent.handle_timeout(self.now);
            let now = self.now;
            outputs.extend(self.take().into_iter().map(|output| (now, output)));
        }
        self.now = end;
        outputs
    }

    /// What comes out of segments of the host that come at once.
    fn through(&mut self, segments: &[Segment]) -> Vec<Segment> {
        let mut outputs = Vec::new();
        for segment in segments {
            outputs.extend(self.put(Side::Fixed, segment));
        }
        let later = self.wait(10_000 * SECOND);
        outputs.extend(later.into_iter().map(|(_, output)| output));
        outputs.iter().map(|it| read(&it.packet)).collect()
    }

    fn counts(&self) -> Counts {
        self.agent.counts()
    }
}

fn read(packet: &[u8]) -> Segment {
    Segment::read(packet).expect("a segment")
}

fn numbers(segments: &[Segment]) -> Vec<u32> {
    segments.iter().filter_map(|it| it.ack).collect()
}

/// Of some acknowledgements behind the first one, which finds an empty link, those that are left, by number.
fn left(mode: Mode, segments: &[Segment]) -> (Vec<u32>, Counts) {
    let mut path = Path::new(queue(mode));
    let first = Segment {
        // ECE and timestamps as in the next acknowledgement.
        ece: segments[0].ece,
        timestamps: segments[0].timestamps,
        ..ack(2)
    };
    let all: Vec<Segment> = [first].iter().chain(segments).cloned().collect();
    let out = path.through(&all);
    assert_eq!(out[0], all[0]);
    (numbers(&out[1..]), path.counts())
}

/// Why the older one of two is kept; it is dropped if nothing was changed.
fn kept(change: impl Fn(&mut Segment, &mut Segment)) -> Kept {
    let stamped = |number: u32, stamp: u32| Segment {
        timestamps: Some((stamp, stamp)),
        ..ack(number)
    };
    let (mut old, mut new) = (stamped(1000, 5), stamped(2000, 6));
    let plain = left(Mode::Aggressive, &[old.clone(), new.clone()]);
    assert_eq!(plain.0, [2000]);
    change(&mut old, &mut new);
    let (numbers, counts) = left(Mode::Aggressive, &[old.clone(), new.clone()]);
    assert_eq!(numbers, [old.ack, new.ack].map(|it| it.expect("a number")));
    assert_eq!(counts.acks_dropped.len(), 0, "{counts:?}");
    let reasons: Vec<Kept> = counts.acks_kept.into_keys().collect();
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    reasons[0]
}

#[test]
fn what_acknowledges_less_goes() {
    let all = [1000, 2000, 3000, 4000].map(ack);
    let (numbers, counts) = left(Mode::Aggressive, &all);
    assert_eq!(numbers, [4000]);
    assert_eq!(counts.acks_dropped.get(&Dropped::Acked), Some(&3));
    // The handshake's, and one that found an empty link.
    assert_eq!(counts.acks_seen, 6);
    let (numbers, counts) = left(Mode::Conservative, &all);
    assert_eq!(numbers, [3000, 4000]);
    assert_eq!(counts.acks_dropped.get(&Dropped::Acked), Some(&2));
    assert_eq!(counts.acks_kept.len(), 0, "{counts:?}");
}

#[test]
fn what_sacks_less_goes() {
    let sacks = |right: u32| Segment {
        sack: vec![(2000, right)],
        ..ack(1000)
    };
    let all = [ack(1000), sacks(3000), sacks(4000), sacks(5000)];
    let (numbers, counts) = left(Mode::Aggressive, &all);
    assert_eq!(numbers, [1000]);
    assert_eq!(counts.acks_dropped.get(&Dropped::Sacked), Some(&3));
    assert_eq!(left(Mode::Conservative, &all).0, [1000, 1000]);
}

#[test]
fn what_is_sacked_may_be_acknowledged_by_then() {
    let old = Segment {
        sack: vec![(2000, 3000), (5000, 6000)],
        ..ack(1000)
    };
    let new = Segment {
        sack: vec![(4000, 6000)],
        ..ack(3000)
    };
    assert_eq!(left(Mode::Aggressive, &[old.clone(), new]).0, [3000]);
    // A part of it is, and the rest is reported.
    let new = Segment {
        sack: vec![(5000, 6000)],
        ..ack(2500)
    };
    assert_eq!(left(Mode::Aggressive, &[old, new]).0, [1000, 2500]);
}

#[test]
fn other_sack_blocks_keep_it() {
    let why = kept(|old, new| {
        old.sack = vec![(3000, 4000)];
        new.sack = vec![(3500, 5000)];
    });
    assert_eq!(why, Kept::Sack);
}

#[test]
fn reports_of_copies_are_kept() {
    // Of what is acknowledged, and of what is reported (RFC 2883).
    assert_eq!(kept(|old, _| old.sack = vec![(500, 600)]), Kept::Sack);
    let within = |old: &mut Segment, new: &mut Segment| {
        old.sack = vec![(3000, 3500), (3000, 4000)];
        new.sack = vec![(3000, 4000)];
    };
    assert_eq!(kept(within), Kept::Sack);
}

#[test]
fn duplicates_are_kept() {
    for mode in [Mode::Aggressive, Mode::Conservative, Mode::Ns2] {
        let (numbers, counts) = left(mode, &[1000; 4].map(ack));
        assert_eq!(numbers, [1000; 4]);
        let kept = counts.acks_kept.get(&Kept::Duplicate);
        assert_eq!(kept, Some(&3).filter(|_| mode != Mode::Ns2));
    }
    // Behind them too: whoever counts them counts the same.
    let all = [1000, 1000, 1000, 1000, 5000].map(ack);
    let (numbers, _) = left(Mode::Aggressive, &all);
    assert_eq!(numbers, [1000, 1000, 1000, 1000, 5000]);
}

#[test]
fn a_window_that_opens_is_told() {
    let wider = Segment {
        window: 2000,
        ..ack(1000)
    };
    let all = [
        ack(1000),
        wider.clone(),
        Segment {
            ack: Some(2000),
            ..wider
        },
    ];
    let (numbers, counts) = left(Mode::Aggressive, &all);
    assert_eq!(numbers, [1000, 1000, 2000]);
    assert_eq!(counts.acks_kept.get(&Kept::Window), Some(&1));
    // The window opens after it was closed.
    let closed = Segment {
        window: 0,
        ..ack(1000)
    };
    let all = [closed, ack(2000), ack(3000)];
    assert_eq!(left(Mode::Aggressive, &all).0, [2000, 3000]);
}

#[test]
fn no_right_edge_is_lost() {
    // 1000 bytes more, and 8 units of 128 bytes less.
    assert_eq!(kept(|_, new| new.window -= 8), Kept::Window);
    let same = Segment {
        window: 1000 - 7,
        ..ack(2000)
    };
    assert_eq!(left(Mode::Aggressive, &[ack(1000), same]).0, [2000]);
}

#[test]
fn timestamps_never_go_backwards() {
    assert_eq!(
        kept(|_, new| new.timestamps = Some((4, 6))),
        Kept::Timestamps
    );
    assert_eq!(
        kept(|_, new| new.timestamps = Some((6, 4))),
        Kept::Timestamps
    );
    assert_eq!(kept(|_, new| new.timestamps = None), Kept::Timestamps);
    assert_eq!(kept(|old, _| old.timestamps = None), Kept::Timestamps);
    let stamped = |number, stamp| Segment {
        timestamps: Some((stamp, stamp)),
        ..ack(number)
    };
    // Timestamps wrap.
    let all = [stamped(1000, u32::MAX), stamped(2000, 3)];
    assert_eq!(left(Mode::Aggressive, &all).0, [2000]);
}

#[test]
fn what_says_something_else_of_congestion_keeps_it() {
    assert_eq!(kept(|_, new| new.ece = true), Kept::Ecn);
    assert_eq!(kept(|_, new| new.cwr = true), Kept::Ecn);
    assert_eq!(kept(|_, new| new.ae = true), Kept::Ecn);
    let echo = |number| Segment {
        ece: true,
        ..ack(number)
    };
    // In the middle of the same, and at either end of it.
    let all = [ack(1000), echo(2000), echo(3000), ack(4000)];
    assert_eq!(left(Mode::Aggressive, &all).0, [1000, 3000, 4000]);
}

/// Whoever reads the counter of AccECN takes it for one that has gone round if too much is acknowledged at once.
#[test]
fn a_counter_of_congestion_is_not_lost_count_of() {
    let accecn = Segment {
        ae: true,
        cwr: true,
        ece: true,
        ..syn()
    };
    let answer = Segment {
        ack: Some(1),
        cwr: true,
        ..syn()
    };
    let mut path = Path::with(queue(Mode::Aggressive), &accecn, &answer);
    let all: Vec<Segment> = (1..=20).map(|n| ack(1 + 2000 * n)).collect();
    let out = numbers(&path.through(&all));
    // Six segments of 1000 bytes at most.
    assert!(
        out.windows(2).all(|pair| pair[1] - pair[0] <= 6000),
        "{out:?}"
    );
    assert!(out.len() < 10, "{out:?}");
    assert!(path.counts().acks_kept.contains_key(&Kept::Ecn));
}

#[test]
fn options_that_are_not_understood_keep_it() {
    // An experiment (RFC 6994), MPTCP, AccECN.
    for other in [vec![253, 4, 1, 2], vec![30, 4, 0x20, 0], vec![172, 2, 1, 1]] {
        assert_eq!(kept(|old, _| old.other = other.clone()), Kept::Options);
        let old = Segment { other, ..ack(1000) };
        assert_eq!(left(Mode::Ns2, &[old, ack(2000)]).0, [1000, 2000]);
    }
}

#[test]
fn what_wants_an_answer_is_kept() {
    // A keep-alive's number is one that the peer has (RFC 9293, 3.8.4).
    assert_eq!(kept(|old, _| old.sequence = 0), Kept::Probe);
}

/// Kernels answer what they have already, and do not look at what it acknowledges.
#[test]
fn what_may_be_discarded_says_nothing_for_another() {
    assert_eq!(kept(|_, new| new.sequence = 0), Kept::Probe);
    let data = |number| Segment {
        payload: vec![7; 10],
        ..ack(number)
    };
    let plain = Segment {
        sequence: 11,
        ..ack(1500)
    };
    // The last segment sends the same data again as the first one.
    let all = [data(1000), plain, data(2000)];
    assert_eq!(left(Mode::Aggressive, &all).0, [1000, 1500, 2000]);
}

#[test]
fn what_is_more_than_an_acknowledgement_is_kept() {
    let data = |number| Segment {
        payload: vec![7; 10],
        ..ack(number)
    };
    let push = Segment {
        psh: true,
        ..ack(1000)
    };
    let end = Segment {
        fin: true,
        ..ack(1000)
    };
    for first in [data(1000), push, end] {
        for mode in [Mode::Aggressive, Mode::Ns2] {
            let next = first.sequence + first.payload.len() as u32 + u32::from(first.fin);
            let last = Segment {
                sequence: next,
                ..ack(2000)
            };
            let (numbers, _) = left(mode, &[first.clone(), last]);
            assert_eq!(numbers, [1000, 2000], "{first:?}");
        }
    }
    // But data says what an acknowledgement before it does.
    assert_eq!(left(Mode::Aggressive, &[ack(1000), data(2000)]).0, [2000]);
}

#[test]
fn what_was_overtaken_keeps_the_later_one() {
    let (numbers, counts) = left(Mode::Aggressive, &[ack(2000), ack(1000)]);
    assert_eq!(numbers, [2000, 1000]);
    assert_eq!(counts.acks_kept.get(&Kept::Older), Some(&1));
}

#[test]
fn the_simulators_rule_looks_at_numbers_only() {
    let echo = Segment {
        ece: true,
        sack: vec![(9000, 9500)],
        ..ack(1000)
    };
    let (numbers, counts) = left(Mode::Ns2, &[echo, ack(1500), ack(1500), ack(2000)]);
    assert_eq!(numbers, [2000]);
    assert_eq!(counts.acks_dropped.get(&Dropped::Ns2), Some(&3));
}

#[test]
fn sequence_numbers_wrap() {
    let start = u32::MAX - 1500;
    let numbered = |number: u32| Segment {
        sequence: start.wrapping_add(1),
        ack: Some(start.wrapping_add(number)),
        window: 1000,
        sack: vec![(start.wrapping_add(5000), start.wrapping_add(5000 + number))],
        ..Segment::default()
    };
    let first = Segment {
        sequence: start,
        ..syn()
    };
    let answer = Segment {
        ack: Some(start.wrapping_add(1)),
        ..first.clone()
    };
    let mut path = Path::of(Config {
        stage: Stage::Pass,
        ack_filter: Some(queue(Mode::Aggressive)),
        ..Config::default()
    });
    path.put(Side::Fixed, &first);
    path.put(Side::Mobile, &answer);
    path.wait(100 * SECOND);
    let out = path.through(&[1000, 2000, 3000, 4000].map(numbered));
    assert_eq!(
        numbers(&out),
        [1000, 4000].map(|it: u32| start.wrapping_add(it))
    );
}

#[test]
fn one_in_an_interval_and_the_newest() {
    let mut path = Path::new(every(10));
    let mut out = Vec::new();
    for n in 0..100 {
        let now = path.now;
        out.extend(
            path.put(Side::Fixed, &ack(1000 + 100 * n))
                .into_iter()
                .map(|it| (now, it)),
        );
        out.extend(path.wait(MS));
    }
    out.extend(path.wait(SECOND));
    // The first one goes at once, and the last one before silence 10 ms after the one before it.
    assert!((10..=11).contains(&out.len()), "{}", out.len());
    assert!(out.windows(2).all(|pair| pair[1].0 - pair[0].0 == 10 * MS));
    let last = &out.last().expect("some").1;
    assert_eq!(read(&last.packet).ack, Some(1000 + 9900));
    assert_eq!(last.cause, Cause::Released);
    let counts = path.counts();
    assert_eq!(
        counts.acks_dropped.get(&Dropped::Acked),
        Some(&(100 - out.len() as u64))
    );
}

/// What is no plain progress goes at once, and what waits goes before it, or is said by it.
#[test]
fn news_does_not_wait() {
    let echo = Segment {
        ece: true,
        ..ack(3000)
    };
    let sack = Segment {
        sack: vec![(4000, 5000)],
        ..ack(2000)
    };
    let wider = Segment {
        window: 1500,
        ..ack(2000)
    };
    let data = Segment {
        payload: vec![1; 5],
        ..ack(3000)
    };
    let reset = Segment {
        rst: true,
        ..ack(2000)
    };
    for (news, before) in [
        (echo, true),
        (sack, false),
        (wider, true),
        (data, false),
        (reset, true),
        (ack(2000), true),
    ] {
        let mut path = Path::new(every(10));
        assert_eq!(path.put(Side::Fixed, &ack(1000)).len(), 1);
        assert_eq!(path.put(Side::Fixed, &ack(2000)).len(), 0);
        let out = path.put(Side::Fixed, &news);
        let out: Vec<Segment> = out.iter().map(|it| read(&it.packet)).collect();
        let expected = match before {
            true => vec![ack(2000), news],
            false => vec![news],
        };
        assert_eq!(out, expected);
        assert_eq!(path.wait(SECOND), []);
    }
}

/// What is held or waits goes when the agent is no longer to do so, is late, or forgets the flow.
#[test]
fn nothing_is_lost_but_with_the_agent() {
    let pass = Config {
        stage: Stage::Pass,
        ..Config::default()
    };
    let mut path = Path::new(every(50));
    path.put(Side::Fixed, &ack(1000));
    path.put(Side::Fixed, &ack(2000));
    path.agent.handle_lag(path.now, 50 * MS);
    let out = path.take();
    assert_eq!(read(&out[0].packet), ack(2000));
    let mut path = Path::new(queue(Mode::Conservative));
    let all = [1000, 2000, 3000].map(ack);
    all.iter().for_each(|it| _ = path.put(Side::Fixed, it));
    path.agent.reconfigure(path.now, pass);
    let out = path.take();
    let out: Vec<Segment> = out.iter().map(|it| read(&it.packet)).collect();
    assert_eq!(numbers(&out), [2000, 3000]);
}

#[test]
fn a_dry_run_drops_nothing_and_counts() {
    let mut path = Path::of(Config {
        stage: Stage::Pass,
        ack_filter: Some(queue(Mode::Aggressive)),
        dry_run: true,
        ..Config::default()
    });
    path.open(
        &syn(),
        &Segment {
            ack: Some(1),
            ..syn()
        },
    );
    let all = [1000, 2000, 3000, 4000].map(ack);
    assert_eq!(path.through(&all), all);
    assert_eq!(path.counts().acks_dropped.get(&Dropped::Acked), Some(&2));
}

/// Of connections that began before the agent, nothing is known: they wait in turn, and nothing of them is dropped.
#[test]
fn what_began_before_is_not_filtered() {
    let mut path = Path::of(Config {
        stage: Stage::Pass,
        ack_filter: Some(queue(Mode::Aggressive)),
        ..Config::default()
    });
    let all = [1000, 2000, 3000].map(ack);
    assert_eq!(path.through(&all), all);
    assert_eq!(path.counts().acks_seen, 0);
}

/// An upload does not hold up what acknowledges a download, nor fill the queue for it.
#[test]
fn flows_share_the_link() {
    for acks_first in [false, true] {
        let mut path = Path::of(Config {
            stage: Stage::Pass,
            ack_filter: Some(AckFilter {
                queue: Some(ReturnQueue {
                    bits_per_second: 120_000,
                    // 13 of the upload's packets, and no acknowledgement.
                    bytes: 19_510,
                    acks_first,
                    mode: Mode::Conservative,
                }),
                every_ns: None,
            }),
            ..Config::default()
        });
        let answer = Segment {
            ack: Some(1),
            ..syn()
        };
        path.open(&syn(), &answer);
        path.port += 1;
        path.open(&syn(), &answer);
        // 30 packets of 100 ms, of which one is on its way and 13 have room.
        for n in 0..30 {
            let data = Segment {
                sequence: 1 + 1460 * n,
                payload: vec![0; 1460],
                ..ack(1)
            };
            path.put(Side::Fixed, &data);
        }
        assert!((12..20).contains(&path.counts().dropped_queue));
        path.port -= 1;
        let mut waited = Vec::new();
        for n in 0..10 {
            path.put(Side::Fixed, &ack(1000 + n));
            let out = path.wait(100 * MS);
            let found = out.iter().find(|it| read(&it.1.packet).payload.is_empty());
            waited.push(found.map(|it| it.0 + 100 * MS - path.now));
        }
        // At most the packet that is on its way.
        let most = waited.iter().map(|it| it.unwrap_or(u64::MAX)).max();
        assert!(most <= Some(100 * MS), "{acks_first}: {waited:?}");
    }
}

/// Each packet of somebody who looks for open ports is the first one of a connection, and there are more of them than the link carries.
#[test]
fn connections_that_begin_leave_room_for_others() {
    let mut path = Path::of(Config {
        stage: Stage::Pass,
        ack_filter: Some(AckFilter {
            queue: Some(ReturnQueue {
                bits_per_second: 480_000,
                bytes: 4000,
                acks_first: false,
                mode: Mode::Conservative,
            }),
            every_ns: None,
        }),
        ..Config::default()
    });
    let answer = Segment {
        ack: Some(1),
        ..syn()
    };
    path.open(&syn(), &answer);
    let port = path.port;
    let mut told = [0, 0];
    for n in 0..4000_u16 {
        path.port = 1 + n;
        let mut outputs = path.put(Side::Fixed, &syn());
        if n % 10 == 0 {
            path.port = port;
            outputs.extend(path.put(Side::Fixed, &ack(1000 + u32::from(n))));
        }
        outputs.extend(path.wait(MS / 2).into_iter().map(|it| it.1));
        let acks = outputs.iter().filter(|it| !read(&it.packet).syn);
        told[usize::from(n / 2000)] += acks.count();
    }
    // The second half is a second, in which all that waits goes seven times.
    assert!(told[1] > 5, "{told:?}");
}

// The naive filter.

/// Bytes that one unit of these streams has.
const UNIT: u32 = 100;

fn units(from: u32, to: u32) -> BTreeSet<u32> {
    (from / UNIT..to / UNIT).collect()
}

fn of(segment: &Segment) -> u32 {
    segment.ack.expect("an acknowledgement") - 1
}

fn block((left, right): (u32, u32)) -> BTreeSet<u32> {
    units(left - 1, right - 1)
}

fn is_pure(segment: &Segment) -> bool {
    segment.payload.is_empty() && !segment.fin && !segment.psh
}

/// The first block, if it reports a copy.
fn copy(segment: &Segment) -> Option<(u32, u32)> {
    let first = *segment.sack.first()?;
    let second = segment.sack.get(1).copied();
    let known = second.is_some_and(|second| block(second).is_superset(&block(first)));
    (known || first.0 - 1 < of(segment)).then_some(first)
}

/// Units behind the number that it reports.
fn reported(segment: &Segment) -> BTreeSet<u32> {
    let all: BTreeSet<u32> = segment.sack.iter().flat_map(|it| block(*it)).collect();
    let acknowledged = units(0, of(segment));
    all.difference(&acknowledged).copied().collect()
}

fn edge(segment: &Segment) -> u32 {
    of(segment) + (u32::from(segment.window) << 7)
}

/// Whether a segment has to go whatever follows; `before` came before it, and `next` is where the host's stream is.
fn must_go(before: Option<&Segment>, it: &Segment, next: u32) -> bool {
    let known = it.other.is_empty() && is_pure(it) && it.sequence == next && copy(it).is_none();
    let repeats = before.is_some_and(|before| {
        let same = of(before) == of(it);
        let opens = same && edge(it) > edge(before);
        let was_closed = before.window == 0 && it.window > 0;
        opens || was_closed || (same && reported(it).len() <= reported(before).len())
    });
    !known || repeats
}

/// Whether `new` says all that `old` says.
fn says(new: &Segment, old: &Segment) -> bool {
    let flags = |it: &Segment| (it.ae, it.cwr, it.ece);
    let stamps = match (new.timestamps, old.timestamps) {
        (Some(new), Some(old)) => new.0 >= old.0 && new.1 >= old.1,
        (None, None) => true,
        _ => false,
    };
    let acknowledged = units(0, of(new));
    let known = |ranges: &(u32, u32)| {
        let behind: BTreeSet<u32> = block(*ranges).difference(&acknowledged).copied().collect();
        behind.is_empty() || new.sack.iter().any(|it| block(*it).is_superset(&behind))
    };
    let more =
        of(new) > of(old) || (of(new) == of(old) && reported(new).len() > reported(old).len());
    flags(new) == flags(old)
        && stamps
        && edge(new) >= edge(old)
        && old.sack.iter().all(known)
        && more
}

/// A queue, looked through from its head again and again. Of each, whether it has to go, and whether its reader may discard it.
#[derive(Default)]
struct Naive {
    queue: VecDeque<(Segment, bool, bool)>,
    last: Option<Segment>,
    next: u32,
}

impl Naive {
    fn push(&mut self, segment: &Segment, spare: usize) {
        let must = must_go(self.last.as_ref(), segment, self.next);
        let is_behind = segment.sequence < self.next;
        self.next = self
            .next
            .max(segment.sequence + segment.payload.len() as u32);
        self.last = Some(segment.clone());
        self.queue.push_back((segment.clone(), must, is_behind));
        let goes = |queue: &VecDeque<(Segment, bool, bool)>, at: usize| {
            let (Some(old), Some(new)) = (queue.get(at), queue.get(at + 1)) else {
                return false;
            };
            !old.1 && !new.2 && says(&new.0, &old.0)
        };
        while let Some(at) =
            (0..self.queue.len()).find(|at| (0..=spare).all(|more| goes(&self.queue, at + more)))
        {
            self.queue.remove(at);
        }
    }
}

/// What the reader of acknowledgements ends with.
#[derive(Debug, Default, PartialEq)]
struct Reader {
    acknowledged: u32,
    reported: BTreeSet<u32>,
    edge: u32,
    /// Changes of what is said of congestion.
    congestion: Vec<(bool, bool, bool)>,
    copies: Vec<(u32, u32)>,
    echoed: Option<u32>,
}

impl Reader {
    fn read(&mut self, segment: &Segment) {
        self.acknowledged = self.acknowledged.max(of(segment));
        self.reported
            .extend(segment.sack.iter().flat_map(|it| block(*it)));
        let acknowledged = self.acknowledged;
        self.reported.retain(|it| *it >= acknowledged / UNIT);
        self.edge = self.edge.max(edge(segment));
        let flags = (segment.ae, segment.cwr, segment.ece);
        if self.congestion.last() != Some(&flags) {
            self.congestion.push(flags);
        }
        self.copies.extend(copy(segment));
        self.echoed = self.echoed.max(segment.timestamps.map(|it| it.1));
    }
}

/// What a receiver might say, and what none does.
struct Host {
    has: BTreeSet<u32>,
    window: u16,
    stamp: Option<u32>,
    echo: bool,
    next: u32,
}

impl Host {
    fn acknowledged(&self) -> u32 {
        (0..).find(|unit| !self.has.contains(unit)).unwrap_or(0)
    }

    fn speak(&mut self, random: &mut Random) -> Segment {
        let first = self.acknowledged();
        let gap = if random.chance(20) {
            random.below(4) as u32
        } else {
            0
        };
        let length = random.below(3) as u32;
        self.has.extend(first + gap..first + gap + length);
        if random.chance(15) {
            self.has.insert(first);
        }
        let first = self.acknowledged();
        let mut sack: Vec<(u32, u32)> = Vec::new();
        let number = |unit: u32| 1 + unit * UNIT;
        for unit in self.has.range(first..) {
            match sack.last_mut() {
                Some(last) if last.1 == number(*unit) => last.1 = number(unit + 1),
                _ => sack.push((number(*unit), number(unit + 1))),
            }
        }
        sack.reverse();
        sack.truncate(3);
        if random.chance(3) {
            let unit = random.below(u64::from(first) + 1) as u32;
            sack.insert(0, (number(unit), number(unit + 1)));
            sack.truncate(3);
        }
        if random.chance(5) {
            self.window = random.below(40) as u16;
        }
        self.echo ^= random.chance(4);
        if let Some(stamp) = &mut self.stamp {
            *stamp += random.below(2) as u32;
        }
        let has_option = sack.len() < 2 && random.chance(2);
        let stamp = self.stamp.map(|it| it - u32::from(random.chance(2)));
        let segment = Segment {
            sequence: self.next - u32::from(random.chance(2)),
            ack: Some(number(first - u32::from(first > 0 && random.chance(2)))),
            window: self.window,
            sack,
            timestamps: stamp.map(|it| (it, it)),
            ece: self.echo,
            cwr: random.chance(1),
            psh: random.chance(1),
            payload: vec![9; if random.chance(3) { 10 } else { 0 }],
            other: if has_option {
                vec![253, 2, 1, 1]
            } else {
                Vec::new()
            },
            ..Segment::default()
        };
        let end = segment.sequence + segment.payload.len() as u32;
        self.next = self.next.max(end);
        segment
    }
}

fn compare(seed: u64) -> u64 {
    let random = &mut Random(seed);
    let (mode, spare) = match random.chance(50) {
        true => (Mode::Aggressive, 0),
        false => (Mode::Conservative, 1),
    };
    let mut path = Path::new(queue(mode));
    let mut naive = Naive {
        next: 1,
        last: Some(ack(1)),
        ..Naive::default()
    };
    let mut host = Host {
        has: BTreeSet::new(),
        window: 30,
        stamp: random.chance(60).then_some(100),
        echo: false,
        next: 1,
    };
    let (mut all, mut some) = (Reader::default(), Reader::default());
    let mut goes = |naive: &mut Naive, outputs: Vec<Output>| {
        for output in outputs {
            let segment = read(&output.packet);
            let (expected, ..) = naive.queue.pop_front().expect("one that waits");
            let bare = Segment {
                other: Vec::new(),
                ..expected
            };
            assert_eq!(segment, bare, "seed {seed}");
            some.read(&segment);
        }
    };
    for _ in 0..2 + random.below(20) {
        let segment = host.speak(random);
        all.read(&segment);
        naive.push(&segment, spare);
        let outputs = path.put(Side::Fixed, &segment);
        goes(&mut naive, outputs);
        if random.chance(30) {
            let outputs = path.wait(random.below(3000) * MS);
            goes(&mut naive, outputs.into_iter().map(|it| it.1).collect());
        }
    }
    let outputs = path.wait(10_000 * SECOND);
    goes(&mut naive, outputs.into_iter().map(|it| it.1).collect());
    assert_eq!(naive.queue.len(), 0, "seed {seed}");
    assert_eq!(all, some, "seed {seed}");
    path.counts().acks_dropped.values().sum()
}

#[test]
fn random_queues_are_those_of_a_naive_filter() {
    let queues = std::env::var("SPHINX_PEP_QUEUES").ok();
    let queues = queues.map_or(2000, |queues| queues.parse().expect("a number"));
    let dropped: u64 = (0..queues).map(compare).sum();
    println!("{dropped} dropped of {queues} queues");
    assert!(dropped > queues, "{dropped} dropped");
}
