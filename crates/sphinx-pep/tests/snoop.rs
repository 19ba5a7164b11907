//! What Snoop does with packets one by one: the situations of the rules in `docs/pep.md`.

mod common;

use std::net::SocketAddr;

use bytes::Bytes;
use common::{Segment, outputs};
use etherparse::{NetSlice, SlicedPacket};
use sphinx_pep::{
    Agent, Bypass, Cause, Config, Laws, Output, Profile, Radio, Release, Side, Stage,
    acks::{AckCc, AckFilter, Marks, Mode, ReturnQueue},
    rdb::Rdb,
    returning::Returning,
    rsfc::Rsfc,
};

const MS: u64 = 1_000_000;
const PAYLOAD: u32 = 1000;

/// A connection through an agent, seen packet by packet.
struct Path {
    agent: Agent,
    laws: Laws,
    now: u64,
    fixed: SocketAddr,
    mobile: SocketAddr,
    /// Initial sequence number of the fixed host.
    isn: u32,
    sack: bool,
}

impl Path {
    fn new(profile: Profile) -> Path {
        let config = Config {
            stage: Stage::Snoop(profile),
            ..Config::default()
        };
        Path::with(config, 5000, true)
    }

    /// With the handshake done: 2 ms over the hop, 100 ms on the wired side.
    fn with(config: Config, isn: u32, sack: bool) -> Path {
        let mut path = Path::silent(config, isn, sack);
        path.open();
        path
    }

    fn open(&mut self) {
        let syn = Segment {
            syn: true,
            sack_permitted: self.sack,
            sequence: 77,
            window: 1000,
            ..Segment::default()
        };
        self.up(syn.clone());
        self.now += 100 * MS;
        self.down(Segment {
            ack: Some(78),
            sequence: self.isn,
            ..syn
        });
        self.now += 2 * MS;
        assert_eq!(self.ack(0), [Cause::Passed]);
    }

    fn silent(config: Config, isn: u32, sack: bool) -> Path {
        Path {
            agent: Agent::new(config),
            laws: Laws::default(),
            now: MS,
            fixed: ([192, 0, 2, 1], 443).into(),
            mobile: ([10, 0, 0, 9], 50_000).into(),
            isn,
            sack,
        }
    }

    fn outputs(&mut self) -> Vec<Output> {
        outputs(&mut self.agent, &mut self.laws)
    }

    fn put(&mut self, from: Side, packet: Bytes) -> Vec<Output> {
        self.laws.input(from, &packet);
        self.agent.handle_packet(self.now, from, packet);
        self.outputs()
    }

    fn down(&mut self, segment: Segment) -> Vec<Output> {
        let packet = segment.packet(self.fixed, self.mobile);
        self.put(Side::Fixed, packet)
    }

    fn up(&mut self, segment: Segment) -> Vec<Output> {
        let packet = segment.packet(self.mobile, self.fixed);
        self.put(Side::Mobile, packet)
    }

    /// Number of the first byte of the `n`-th segment.
    fn number(&self, n: u32) -> u32 {
        self.isn.wrapping_add(1).wrapping_add(n * PAYLOAD)
    }

    fn segment(&self, n: u32) -> Segment {
        Segment {
            sequence: self.number(n),
            ack: Some(78),
            window: 500,
            payload: vec![n as u8; PAYLOAD as usize],
            ..Segment::default()
        }
    }

    /// The `n`-th segment comes from the fixed host.
    fn data(&mut self, n: u32) {
        let outputs = self.down(self.segment(n));
        assert_eq!(outputs.len(), 1, "{outputs:?}");
        assert_eq!(
            (outputs[0].to, outputs[0].cause),
            (Side::Mobile, Cause::Passed)
        );
    }

    fn answer(&self, n: u32, blocks: &[(u32, u32)]) -> Segment {
        let number = |n: u32| self.number(n);
        Segment {
            sequence: 78,
            ack: Some(self.number(n)),
            window: 1000,
            sack: match self.sack {
                true => blocks
                    .iter()
                    .map(|(a, b)| (number(*a), number(*b)))
                    .collect(),
                false => Vec::new(),
            },
            ..Segment::default()
        }
    }

    /// The mobile host has everything before the `n`-th segment.
    fn ack(&mut self, n: u32) -> Vec<Cause> {
        self.sack(n, &[])
    }

    /// As `ack`, and the mobile host reports these ranges of segments by SACK.
    fn sack(&mut self, n: u32, blocks: &[(u32, u32)]) -> Vec<Cause> {
        let answer = self.answer(n, blocks);
        causes(&self.up(answer))
    }

    fn wait(&mut self, ms: u64) -> Vec<Output> {
        let end = self.now + ms * MS;
        let mut outputs = Vec::new();
        while let Some(at) = self.agent.next_timeout().filter(|at| *at <= end) {
            self.now = at.max(self.now);
            self.agent.handle_timeout(self.now);
            outputs.extend(self.outputs());
        }
        self.now = end;
        outputs
    }

    /// Which segments have been repaired.
    fn repairs(&self, outputs: &[Output]) -> Vec<u32> {
        let repairs = outputs
            .iter()
            .filter(|output| output.cause == Cause::Repair);
        repairs
            .map(|output| {
                let segment = Segment::read(&output.packet).expect("a segment");
                segment.sequence.wrapping_sub(self.number(0)) / PAYLOAD
            })
            .collect()
    }
}

fn causes(outputs: &[Output]) -> Vec<Cause> {
    outputs.iter().map(|output| output.cause).collect()
}

#[test]
fn the_first_duplicate_is_held_and_its_hole_repaired() {
    // Numbers that wrap, and others.
    for isn in [5000, u32::MAX - 1500] {
        let mut path = Path::with(Config::default(), isn, true);
        (0..4).for_each(|n| path.data(n));
        path.now += 2 * MS;
        assert_eq!(path.ack(1), [Cause::Passed]);
        let answer = path.answer(1, &[(2, 3)]);
        let outputs = path.up(answer);
        assert_eq!(path.repairs(&outputs), [1]);
        assert_eq!(causes(&outputs), [Cause::Repair]);
        // The repair is the packet itself.
        assert_eq!(
            outputs[0].packet,
            path.segment(1).packet(path.fixed, path.mobile)
        );
        assert_eq!(path.sack(1, &[(2, 4)]), []);
        path.now += 2 * MS;
        assert_eq!(path.ack(4), [Cause::Passed]);
        // The sender need not be told of the loss any more.
        assert_eq!(path.wait(1000), []);
        let counts = path.agent.counts();
        assert_eq!((counts.held, counts.repaired, counts.spurious), (2, 1, 0));
    }
}

#[test]
fn without_sack_the_hole_is_known_from_duplicates() {
    let mut path = Path::with(Config::default(), 5000, false);
    (0..5).for_each(|n| path.data(n));
    assert_eq!(path.ack(1), [Cause::Passed]);
    assert_eq!(path.ack(1), [Cause::Repair]);
    assert_eq!(path.ack(1), []);
    assert_eq!(path.ack(5), [Cause::Passed]);
}

#[test]
fn a_burst_of_three_of_ten_is_repaired_at_once() {
    let mut path = Path::new(Profile::Sack);
    (0..10).for_each(|n| path.data(n));
    path.now += 2 * MS;
    assert_eq!(path.ack(3), [Cause::Passed]);
    let answer = path.answer(3, &[(6, 7)]);
    let outputs = path.up(answer);
    assert_eq!(path.repairs(&outputs), [3, 4, 5]);
    // Each repair tells of progress: it passes, what it says of holes does not.
    let answer = path.answer(4, &[(6, 10)]);
    let outputs = path.up(answer);
    assert_eq!(causes(&outputs), [Cause::Concealed]);
    let passed = Segment::read(&outputs[0].packet).unwrap();
    assert_eq!((passed.ack, passed.sack.len()), (Some(path.number(4)), 0));
    assert_eq!(path.ack(10), [Cause::Passed]);
}

#[test]
fn a_lost_repair_is_repeated_by_time() {
    let mut path = Path::new(Profile::Sack);
    (0..4).for_each(|n| path.data(n));
    path.now += 2 * MS;
    path.ack(1);
    assert_eq!(path.sack(1, &[(2, 4)]), [Cause::Repair]);
    let outputs = path.wait(60);
    assert!(path.repairs(&outputs).len() >= 2, "{outputs:?}");
    assert!(outputs.iter().all(|output| output.cause == Cause::Repair));
}

#[test]
fn the_tail_is_repaired_by_time() {
    for profile in [Profile::Sack, Profile::Ll, Profile::Classic] {
        let mut path = Path::new(profile);
        (0..3).for_each(|n| path.data(n));
        path.now += 2 * MS;
        path.ack(2);
        let outputs = path.wait(500);
        assert!(
            path.repairs(&outputs).starts_with(&[2]),
            "{profile:?}: {outputs:?}"
        );
    }
}

/// Before the sender does so, which waits for a round trip of the path and 200 ms.
#[test]
fn the_first_segment_is_repaired_by_what_the_handshake_took() {
    let mut path = Path::new(Profile::Sack);
    path.data(0);
    let outputs = path.wait(100);
    assert_eq!(path.repairs(&outputs), [0]);
    // The fixed host opens, and nothing but a SYN was heard of the mobile one.
    let mut path = Path::silent(Config::default(), 4999, true);
    let syn = Segment {
        syn: true,
        sack_permitted: true,
        sequence: 4999,
        window: 1000,
        ..Segment::default()
    };
    path.down(syn.clone());
    path.now += 2 * MS;
    path.up(Segment {
        ack: Some(5000),
        sequence: 77,
        ..syn
    });
    path.now += 100 * MS;
    path.data(0);
    let outputs = path.wait(100);
    assert_eq!(path.repairs(&outputs), [0]);
    // A second and third segment tell that nobody waits for more.
    let mut path = Path::new(Profile::Sack);
    (0..3).for_each(|n| path.data(n));
    let outputs = path.wait(60);
    assert_eq!(path.repairs(&outputs), [0]);
    // Two segments over a slow hop are no loss.
    let mut path = Path::new(Profile::Sack);
    (0..2).for_each(|n| path.data(n));
    assert_eq!(path.wait(48), []);
}

#[test]
fn what_is_held_is_released_before_the_sender_times_out() {
    let mut path = Path::new(Profile::Sack);
    (0..4).for_each(|n| path.data(n));
    path.now += 2 * MS;
    path.ack(1);
    path.sack(1, &[(2, 4)]);
    let start = path.now;
    let outputs = path.wait(400);
    let released = outputs
        .iter()
        .position(|output| output.cause == Cause::Released);
    let released = &outputs[released.expect("a release")];
    assert_eq!(
        released.packet,
        path.answer(1, &[(2, 4)]).packet(path.mobile, path.fixed)
    );
    let counts = path.agent.counts();
    assert_eq!(counts.releases(Release::Time), 1);
    let held = counts.held_ns_max;
    assert!((100 * MS..200 * MS).contains(&held), "{held}: {counts:?}");
    assert!(path.now > start);
    // From now on the sender hears everything.
    assert!(path.sack(1, &[(2, 4)]).contains(&Cause::Passed));
}

#[test]
fn what_was_lost_before_the_hop_is_the_senders() {
    let mut path = Path::new(Profile::Sack);
    [0, 1, 3, 4].into_iter().for_each(|n| path.data(n));
    path.now += 2 * MS;
    path.ack(2);
    assert_eq!(path.sack(2, &[(3, 4)]), [Cause::Passed]);
    assert_eq!(path.sack(2, &[(3, 5)]), [Cause::Passed]);
    assert_eq!(path.agent.counts().releases(Release::NotCached), 1);
    // Its repair is not ours to repeat at once, nor what follows ours to hold.
    path.data(2);
    assert_eq!(path.sack(2, &[(3, 5)]), [Cause::Passed]);
    assert_eq!(path.ack(5), [Cause::Passed]);
    // A later loss of the hop is repaired.
    (5..8).for_each(|n| path.data(n));
    assert_eq!(path.sack(5, &[(6, 7)]), [Cause::Repair]);
}

#[test]
fn a_repair_by_the_sender_passes_and_ends_the_suppression() {
    let mut path = Path::new(Profile::Sack);
    (0..4).for_each(|n| path.data(n));
    path.now += 2 * MS;
    path.ack(1);
    assert_eq!(path.sack(1, &[(2, 3)]), [Cause::Repair]);
    path.data(1);
    assert_eq!(path.sack(1, &[(2, 4)]), [Cause::Passed]);
    assert_eq!(path.agent.counts().releases(Release::SenderRepaired), 1);
}

#[test]
fn repairs_overtake_what_waits_for_the_hop() {
    let config = Config {
        radio: Some(Radio {
            bits_per_second: 1_000_000,
            queue_bytes: 100_000,
        }),
        ..Config::default()
    };
    let mut path = Path::with(config, 5000, true);
    for n in 0..3 {
        path.wait(10);
        path.data(n);
    }
    path.wait(10);
    path.ack(1);
    // One is on its way, two wait.
    path.data(3);
    for n in 4..6 {
        assert_eq!(path.down(path.segment(n)), []);
    }
    assert_eq!(path.sack(1, &[(2, 3)]), []);
    let outputs = path.wait(50);
    assert_eq!(
        causes(&outputs),
        [Cause::Repair, Cause::Passed, Cause::Passed]
    );
    assert_eq!(path.repairs(&outputs), [1]);
}

/// Without SACK, what an acknowledgement jumps to has been there since before the hole was filled.
#[test]
fn what_waited_behind_a_hole_tells_no_round_trip() {
    for profile in [Profile::Sack, Profile::Classic] {
        let config = Config {
            stage: Stage::Snoop(profile),
            ..Config::default()
        };
        let mut path = Path::with(config, 5000, false);
        for n in 0..8 {
            path.data(n);
            path.now += 2 * MS;
            path.ack(n + 1);
        }
        // The first of four is lost, and so are its repairs, for half a second; then another one, of which no duplicate tells.
        (8..12).for_each(|n| path.data(n));
        path.now += 2 * MS;
        path.ack(8);
        path.ack(8);
        path.wait(500);
        path.ack(10);
        path.wait(500);
        path.ack(12);
        // The tail of the next ones is found missing as soon as ever.
        path.data(12);
        path.data(13);
        let repairs = path.wait(160);
        assert!(path.repairs(&repairs).starts_with(&[12]), "{profile:?}");
    }
}

/// On a slow hop a repair takes as long as a round trip: where packets that wait behind it counted as late, each would be
/// repaired in its turn.
#[test]
fn repairs_do_not_make_those_late_that_wait_behind_them() {
    let config = Config {
        radio: Some(Radio {
            bits_per_second: 2_000_000,
            queue_bytes: 100_000,
        }),
        ..Config::default()
    };
    let mut path = Path::with(config, 5000, true);
    // All have left before the first is repaired, and each is noticed by what comes behind it, not by time.
    let mut lost: Vec<u32> = (12..18).step_by(2).chain([45]).collect();
    let (mut arrived, mut expected) = (std::collections::BTreeSet::new(), 0);
    // What has left arrives 40 ms later, and is answered at once.
    let mut answers = std::collections::VecDeque::new();
    let mut outputs: Vec<Output> = (0..60).flat_map(|n| path.down(path.segment(n))).collect();
    while expected < 60 {
        for output in outputs.drain(..).filter(|it| it.to == Side::Mobile) {
            let segment = Segment::read(&output.packet).expect("a segment");
            let n = segment.sequence.wrapping_sub(path.number(0)) / PAYLOAD;
            match lost.iter().position(|it| *it == n) {
                Some(index) => _ = lost.remove(index),
                None => answers.push_back((path.now + 40 * MS, n)),
            }
        }
        let timeout = path.agent.next_timeout();
        let answer = answers.front().map(|(at, _)| *at);
        let next = timeout.into_iter().chain(answer).min().expect("an event");
        path.now = path.now.max(next);
        if let Some((_, n)) = answers.pop_front_if(|(at, _)| *at <= path.now) {
            arrived.insert(n);
            while arrived.remove(&expected) {
                expected += 1;
            }
            let mut blocks: Vec<(u32, u32)> = Vec::new();
            for &n in &arrived {
                match blocks.last_mut() {
                    Some(block) if block.1 == n => block.1 += 1,
                    _ => blocks.push((n, n + 1)),
                }
            }
            let answer = path.answer(expected, &blocks);
            outputs.extend(path.up(answer));
        }
        path.agent.handle_timeout(path.now);
        outputs.extend(path.outputs());
    }
    assert_eq!(path.agent.counts().repaired, 4);
}

/// What has waited longest goes, so that the sender hears of it first.
#[test]
fn drops_of_the_agents_own_queue_are_not_repaired() {
    let config = Config {
        radio: Some(Radio {
            bits_per_second: 1_000_000,
            queue_bytes: 2500,
        }),
        ..Config::default()
    };
    let mut path = Path::with(config, 5000, true);
    path.wait(50);
    let mut passed: Vec<Output> = (0..6).flat_map(|n| path.down(path.segment(n))).collect();
    passed.extend(path.wait(20));
    let passed = passed.iter().map(|output| {
        let segment = Segment::read(&output.packet).expect("a segment");
        segment.sequence.wrapping_sub(path.number(0)) / PAYLOAD
    });
    // The first one does not wait.
    assert_eq!(passed.collect::<Vec<_>>(), [0, 4, 5]);
    let flow = path.agent.flows().pop().expect("a flow").counts;
    assert_eq!(flow.dropped_queue, 3);
    path.ack(1);
    assert_eq!(path.sack(1, &[(4, 5)]), [Cause::Passed]);
    assert_eq!(path.sack(1, &[(4, 6)]), [Cause::Passed]);
    // They are not repaired when time passes either.
    assert_eq!(path.wait(1000), []);
    // There is room again: what the sender repairs passes, and what it sends then is the agent's business.
    for n in [1, 2, 3, 6, 7, 8] {
        path.wait(9);
        path.data(n);
    }
    path.wait(9);
    path.ack(6);
    assert_eq!(path.sack(6, &[(7, 8)]), [Cause::Repair]);
    assert_eq!(path.agent.counts().repaired, 1);
}

/// There was room for it when it came, and none when it had waited for its turn behind the others of its burst.
#[test]
fn drops_of_the_fair_queue_are_not_repaired() {
    let config = Config {
        pace: true,
        ack_filter: Some(AckFilter {
            queue: Some(ReturnQueue {
                bits_per_second: 1_000_000,
                // Four packets.
                bytes: 4200,
                acks_first: false,
                mode: Mode::Conservative,
            }),
            every_ns: None,
        }),
        ..Config::default()
    };
    let mut path = Path::with(config, 5000, true);
    path.wait(200);
    // One leaves, three wait in the queue, and the fifth waits for a fifth of a round trip.
    for n in 0..5 {
        path.down(path.segment(n));
    }
    // Meanwhile others come, each of which has its share.
    let mobile = path.mobile;
    for port in 1..6 {
        path.mobile.set_port(port);
        path.down(path.segment(0));
    }
    path.mobile = mobile;
    path.wait(40);
    let flow = path.agent.newest_flows(10).into_iter();
    let flow = flow.filter(|it| it.key.mobile == mobile);
    let dropped: Vec<u64> = flow.map(|it| it.counts.dropped_queue).collect();
    assert_eq!(dropped, [1]);
    assert_eq!(path.ack(4), [Cause::Passed]);
    for n in 5..7 {
        path.wait(50);
        path.data(n);
    }
    path.now += 2 * MS;
    assert_eq!(path.sack(4, &[(5, 7)]), [Cause::Passed]);
    // It is not repaired when time passes either.
    assert_eq!(path.wait(1000), []);
    let counts = path.agent.counts();
    assert_eq!((counts.repaired, counts.dropped_queue), (0, 1));
    assert_eq!(counts.releases(Release::NotCached), 1);
}

/// Where half of the room is less than a packet, what comes has to go.
#[test]
fn repairs_are_not_dropped_for_what_comes() {
    let config = Config {
        radio: Some(Radio {
            bits_per_second: 1_000_000,
            queue_bytes: 1500,
        }),
        ..Config::default()
    };
    let mut path = Path::with(config, 5000, true);
    for n in 0..3 {
        path.wait(10);
        path.data(n);
    }
    path.wait(10);
    path.ack(1);
    // One is on its way when the repair begins to wait.
    path.data(3);
    assert_eq!(path.sack(1, &[(2, 3)]), []);
    assert_eq!(path.down(path.segment(4)), []);
    assert_eq!(path.agent.counts().dropped_queue, 1);
    let outputs = path.wait(20);
    assert_eq!(path.repairs(&outputs), [1]);
    path.data(5);
    path.ack(4);
    assert_eq!(path.sack(4, &[(5, 6)]), [Cause::Passed]);
}

/// A receiver may say that it lacks everything that is cached.
#[test]
fn what_comes_has_its_part_beside_many_repairs() {
    let mut path = Path::new(Profile::Sack);
    (0..40).for_each(|n| path.data(n));
    let config = Config {
        radio: Some(Radio {
            bits_per_second: 1_000_000,
            queue_bytes: 10_000,
        }),
        ..Config::default()
    };
    path.agent.reconfigure(path.now, config);
    path.now += 2 * MS;
    path.ack(1);
    // One goes, and 37 wait, 8 ms each.
    assert_eq!(path.sack(1, &[(39, 40)]), [Cause::Repair]);
    for n in 40..44 {
        assert_eq!(path.down(path.segment(n)), []);
    }
    assert_eq!(path.agent.counts().dropped_queue, 0);
    // Half of the room is for what comes, and no more.
    assert_eq!(path.down(path.segment(44)), []);
    assert_eq!(path.agent.counts().dropped_queue, 1);
    // Ten repairs are as much as the queue holds. From then on, each second packet is a new one.
    let mut outputs = causes(&path.wait(200));
    outputs.retain(|it| *it != Cause::Released);
    let (first, then) = outputs.split_at(10);
    assert_eq!(first, [Cause::Repair; 10]);
    assert_eq!(then[..7], [Cause::Passed, Cause::Repair].repeat(4)[..7]);
    assert!(then[7..].iter().all(|it| *it == Cause::Repair));
    // None of them was sent again while it waited.
    assert_eq!(path.agent.counts().repaired, 38);
}

/// What waited behind a packet that was dropped left sooner than was foretold: it has overtaken no repair, and gives no round trip.
#[test]
fn what_waits_behind_a_dropped_packet_leaves_sooner() {
    let config = Config {
        radio: Some(Radio {
            bits_per_second: 1_000_000,
            queue_bytes: 10_600,
        }),
        ..Config::default()
    };
    let mut path = Path::with(config, 5000, true);
    for n in 0..4 {
        path.wait(50);
        path.data(n);
        path.wait(2);
        path.ack(n + 1);
    }
    path.wait(50);
    // One goes, and ten wait, 8 ms each; five more take the places of the first five of them.
    for n in 4..20 {
        path.down(path.segment(n));
    }
    assert_eq!(path.agent.counts().dropped_queue, 5);
    path.wait(2);
    path.ack(5);
    path.wait(26);
    // So the third of those that are left has arrived by now, and the second one is lost. What says so twice says it once.
    let blocks = [(10, 11), (12, 13)];
    assert_eq!(path.sack(5, &blocks), [Cause::Passed]);
    let outputs = path.wait(6);
    assert_eq!(path.repairs(&outputs), [11]);
    path.sack(5, &blocks);
    assert_eq!(path.agent.counts().repaired, 1);
    // The hop takes 2 ms as ever: with 21, no queue stands.
    path.wait(200);
    path.ack(20);
    for n in 20..30 {
        path.wait(50);
        path.data(n);
        path.wait(21);
        path.ack(n + 1);
    }
    path.wait(50);
    for n in 30..32 {
        path.data(n);
        path.wait(21);
    }
    assert_eq!(path.sack(30, &[(31, 32)]), [Cause::Repair]);
}

/// What waits when the queue gets faster, or goes, leaves sooner than was foretold too.
#[test]
fn what_waits_when_the_rate_changes_gives_no_round_trip() {
    let radio = |bits_per_second| {
        Some(Radio {
            bits_per_second,
            queue_bytes: 100_000,
        })
    };
    let config = Config {
        radio: radio(1_000_000),
        ..Config::default()
    };
    // Before the time that was foretold for the last one, and behind it.
    let cases = [30, 45].map(|answered| [None, radio(100_000_000)].map(|it| (answered, it)));
    for (answered, radio) in cases.into_iter().flatten() {
        let mut path = Path::with(config.clone(), 5000, true);
        let send = |path: &mut Path, n: u32| {
            path.wait(50);
            path.data(n);
            path.wait(30);
            assert_eq!(path.ack(n + 1), [Cause::Passed]);
        };
        (0..4).for_each(|n| send(&mut path, n));
        path.wait(50);
        // One goes, and five wait, 8 ms each.
        for n in 4..10 {
            path.down(path.segment(n));
        }
        let other = Config {
            radio,
            ..config.clone()
        };
        path.agent.reconfigure(path.now, other);
        path.outputs();
        path.wait(answered);
        path.ack(10);
        // The hop takes 30 ms as ever: no queue stands.
        (10..20).for_each(|n| send(&mut path, n));
        path.wait(50);
        path.data(20);
        path.wait(1);
        path.data(21);
        path.wait(30);
        let outputs = path.sack(20, &[(21, 22)]);
        assert_eq!(outputs, [Cause::Repair], "{answered} {radio:?}");
    }
}

#[test]
fn what_a_long_segment_takes_on_a_slow_hop_is_no_queue() {
    let config = Config {
        radio: Some(Radio {
            bits_per_second: 250_000,
            queue_bytes: 100_000,
        }),
        ..Config::default()
    };
    let mut path = Path::with(config, 5000, true);
    let number = |position: u32| 5001 + position;
    let segment = |position: u32, length: u32| Segment {
        sequence: number(position),
        ack: Some(78),
        window: 500,
        payload: vec![7; length as usize],
        ..Segment::default()
    };
    // Each is alone. The hop takes what its length takes (a long one 48 ms), and 10 ms.
    let mut position = 0;
    for n in 0..21 {
        let length = if n == 0 { 60 } else { 1448 };
        path.down(segment(position, length));
        position += length;
        path.wait(u64::from(length + 40) * 8 / 250 + 10);
        let answer = Segment {
            ack: Some(number(position)),
            ..path.answer(0, &[])
        };
        assert_eq!(causes(&path.up(answer)), [Cause::Passed]);
    }
    path.down(segment(position, 1448));
    path.down(segment(position + 1448, 1448));
    assert_eq!(causes(&path.wait(97)), [Cause::Passed]);
    let answer = Segment {
        ack: Some(number(position)),
        sack: vec![(number(position + 1448), number(position + 2 * 1448))],
        ..path.answer(0, &[])
    };
    assert_eq!(causes(&path.up(answer)), [Cause::Repair]);
    assert_eq!(path.agent.counts().releases(Release::Congestion), 0);
}

/// The answer comes before the time at which the segment would have left by the configured rate.
#[test]
fn a_slow_hop_that_is_faster_than_its_queue_is_short() {
    let config = Config {
        radio: Some(Radio {
            bits_per_second: 100_000,
            queue_bytes: 100_000,
        }),
        ..Config::default()
    };
    let mut path = Path::with(config, 5000, true);
    // Each takes 83 ms by that rate, and is answered after 70.
    let send = |path: &mut Path, n: u32| {
        path.wait(200);
        path.data(n);
        path.wait(70);
        assert_eq!(path.ack(n + 1), [Cause::Passed]);
    };
    (0..20).for_each(|n| send(&mut path, n));
    // Each second one is lost. The sixth is repaired as early as the first: 5 ms and a delayed acknowledgement behind the time at which it should have left.
    for n in (20..32).step_by(2) {
        path.wait(200);
        path.data(n);
        let outputs = path.wait(150);
        assert_eq!(path.repairs(&outputs), [n]);
        path.ack(n + 1);
        send(&mut path, n + 1);
    }
}

#[test]
fn a_standing_queue_makes_losses_the_senders() {
    let mut path = Path::new(Profile::Sack);
    let mut next = 0;
    // Round trips of 2 ms at first, then of 60 ms.
    for round in 0..60 {
        path.data(next);
        path.data(next + 1);
        path.now += if round < 20 { 2 } else { 60 } * MS;
        next += 2;
        path.ack(next);
    }
    let repaired = path.agent.counts().repaired;
    (next..next + 4).for_each(|n| path.data(n));
    path.now += 60 * MS;
    assert_eq!(path.sack(next, &[(next + 1, next + 2)]), [Cause::Passed]);
    assert_eq!(path.sack(next, &[(next + 1, next + 4)]), [Cause::Passed]);
    let counts = path.agent.counts();
    assert_eq!((counts.repaired, counts.held), (repaired, 0));
    assert_eq!(counts.releases(Release::Congestion), 1);
    // What is acknowledged has passed unseen, and with it what was the sender's: it is told of the next loss anew.
    path.ack(next + 10);
    (next + 10..next + 14).for_each(|n| path.data(n));
    path.now += 60 * MS;
    let blocks = [(next + 11, next + 12)];
    assert_eq!(path.sack(next + 10, &blocks), [Cause::Passed]);
    let counts = path.agent.counts();
    assert_eq!((counts.repaired, counts.held), (repaired, 0));
    assert_eq!(counts.releases(Release::Congestion), 2);
}

#[test]
fn window_updates_pass_without_telling_of_holes() {
    let mut path = Path::new(Profile::Sack);
    (0..4).for_each(|n| path.data(n));
    path.ack(1);
    path.sack(1, &[(2, 3)]);
    let mut update = path.answer(1, &[(2, 4)]);
    update.window = 2000;
    let outputs = path.up(update.clone());
    assert_eq!(causes(&outputs), [Cause::Concealed]);
    let passed = Segment::read(&outputs[0].packet).expect("a right checksum");
    assert_eq!((passed.window, passed.sack.len()), (2000, 0));
    // If the sender has to be told, it is told what came last.
    let outputs = path.wait(400);
    let released = outputs
        .iter()
        .find(|output| output.cause == Cause::Released);
    assert_eq!(
        released.unwrap().packet,
        update.packet(path.mobile, path.fixed)
    );
}

#[test]
fn data_ends_and_signals_pass_behind_what_was_held() {
    let data = |segment: &mut Segment| segment.payload = vec![1; 10];
    let fin = |segment: &mut Segment| segment.fin = true;
    let ece = |segment: &mut Segment| segment.ece = true;
    for change in [data as fn(&mut Segment), fin, ece] {
        let mut path = Path::new(Profile::Sack);
        (0..4).for_each(|n| path.data(n));
        path.ack(1);
        path.sack(1, &[(2, 3)]);
        let mut segment = path.answer(1, &[(2, 4)]);
        change(&mut segment);
        assert_eq!(causes(&path.up(segment)), [Cause::Released, Cause::Passed]);
    }
    let mut path = Path::new(Profile::Sack);
    (0..4).for_each(|n| path.data(n));
    path.ack(1);
    path.sack(1, &[(2, 3)]);
    let mut reset = path.answer(1, &[]);
    (reset.rst, reset.ack) = (true, None);
    assert_eq!(causes(&path.up(reset)), [Cause::Released, Cause::Passed]);
    assert_eq!(path.agent.flows_known(), 0);
    let ended = path.agent.poll_ended().expect("a flow");
    assert_eq!((ended.key.mobile, ended.counts.held), (path.mobile, 1));
}

#[test]
fn options_that_are_not_known_pass_and_are_not_edited() {
    let mut path = Path::new(Profile::Sack);
    (0..4).for_each(|n| path.data(n));
    path.ack(1);
    // MPTCP, and an experiment: repaired, and told.
    for option in [[30, 4, 0, 0], [253, 4, 0, 0]] {
        let mut answer = path.answer(1, &[(2, 3)]);
        answer.other = option.to_vec();
        let packet = answer.packet(path.mobile, path.fixed);
        let outputs = path.up(answer);
        assert!(
            outputs
                .iter()
                .any(|it| it.packet == packet && it.cause == Cause::Passed)
        );
    }
    assert_eq!(path.agent.counts().repaired, 1);
    assert_eq!(path.agent.counts().held, 0);
}

#[test]
fn only_what_is_left_alone_passes_joined() {
    let mut path = Path::new(Profile::Sack);
    let joined = Segment {
        payload: vec![1; 40_000],
        ..path.segment(0)
    };
    let joined = joined.packet(path.fixed, path.mobile);
    let passes =
        |path: &mut Path, packet: &[u8]| path.agent.pass_joined(path.now, Side::Fixed, packet);
    // Its segments are cached, so they come one by one.
    assert!(!passes(&mut path, &joined));
    assert_eq!(path.agent.counts().from_fixed, 1);
    // Another flow is not known yet, and then known to have begun before.
    let other: SocketAddr = ([10, 0, 0, 8], 50_000).into();
    let unknown = path.segment(0).packet(path.fixed, other);
    assert!(!passes(&mut path, &unknown));
    path.put(Side::Fixed, unknown.clone());
    assert!(passes(&mut path, &unknown));
    // What is no TCP has no flow.
    assert!(passes(&mut path, &[0x45; 60]));
    let counts = path.agent.counts();
    assert_eq!(counts.bypasses(Bypass::MidStream), 2);
    assert_eq!(counts.from_fixed, 4);
    // In the agent's own queue, and in its counts of what would be done, there are segments.
    let radio = Radio {
        bits_per_second: 1_000_000,
        queue_bytes: 100_000,
    };
    for config in [
        Config {
            radio: Some(radio),
            ..Config::default()
        },
        Config {
            dry_run: true,
            ..Config::default()
        },
    ] {
        path.agent.reconfigure(path.now, config);
        assert!(!passes(&mut path, &unknown));
    }
    path.agent.reconfigure(path.now, Config::default());
    path.agent.handle_lag(path.now, 20 * MS);
    assert!(passes(&mut path, &joined));
    assert_eq!(path.agent.counts().bypasses(Bypass::Overload), 1);
}

/// Thick streams pass `rdb` whole, and uploads what looks at acknowledgements towards the hop only; but not what else is there for each segment.
#[test]
fn what_another_stage_looks_at_does_not_pass_joined() {
    let passes = |path: &mut Path| {
        let joined = Segment {
            sequence: 78,
            ack: Some(path.number(0)),
            payload: vec![1; 40_000],
            ..Segment::default()
        };
        let joined = joined.packet(path.mobile, path.fixed);
        path.agent.pass_joined(path.now, Side::Mobile, &joined)
    };
    let passes_with = |config: &Config| passes(&mut Path::with(config.clone(), 5000, true));
    let filter = Some(AckFilter {
        queue: None,
        every_ns: Some(20 * MS),
    });
    let cc = Some(AckCc {
        queue: None,
        mark_ns: 50 * MS,
        most: 25,
        marks: Marks::Hear,
    });
    let rdb = Config {
        stage: Stage::Rdb(Rdb::default()),
        ..Config::default()
    };
    let pass = Config {
        stage: Stage::Pass,
        ack_filter: filter,
        ack_cc: cc,
        ..Config::default()
    };
    assert!(passes_with(&rdb) && passes_with(&pass));
    for config in [&rdb, &pass] {
        let rsfc = Some(Rsfc::default());
        let with = [
            (
                "rsfc",
                Config {
                    rsfc,
                    ..config.clone()
                },
            ),
            (
                "returning",
                Config {
                    returning: Returning::Reconstruct,
                    ..config.clone()
                },
            ),
            (
                "pace",
                Config {
                    pace: true,
                    ..config.clone()
                },
            ),
            (
                "reports",
                Config {
                    reports: true,
                    ..config.clone()
                },
            ),
        ];
        for (name, config) in with {
            assert!(!passes_with(&config), "{name}, {:?}", config.stage);
        }
    }
    let filters = [
        Config {
            ack_filter: filter,
            ..rdb.clone()
        },
        Config {
            ack_cc: cc,
            ..rdb.clone()
        },
    ];
    assert!(!filters.iter().any(passes_with));
    // Nor where the flow has begun with what is there no longer.
    for reports in [true, false] {
        let begun = Config {
            reports,
            ..Config::default()
        };
        let mut path = Path::with(begun, 5000, true);
        for config in [&rdb, &pass] {
            path.agent.reconfigure(path.now, config.clone());
            assert!(!passes(&mut path), "{:?}", config.stage);
        }
    }
}

/// A connection that is over is forgotten soon, which has to be known for that.
#[test]
fn the_end_of_a_stream_does_not_pass_joined() {
    let filter = AckFilter {
        queue: None,
        every_ns: Some(20 * MS),
    };
    let pass = Config {
        stage: Stage::Pass,
        ack_filter: Some(filter),
        ..Config::default()
    };
    let rdb = Config {
        stage: Stage::Rdb(Rdb::default()),
        ..Config::default()
    };
    for config in [pass, rdb] {
        let mut path = Path::with(config, 5000, true);
        for fin in [false, true] {
            let joined = Segment {
                sequence: 78,
                ack: Some(path.number(0)),
                payload: vec![1; 40_000],
                fin,
                ..Segment::default()
            };
            let joined = joined.packet(path.mobile, path.fixed);
            let passes = path.agent.pass_joined(path.now, Side::Mobile, &joined);
            assert_eq!(passes, !fin);
        }
    }
}

/// Somebody who does not know where the stream is sends data in the fixed host's name. The receiver discards that, and must not get it again when it has room.
#[test]
fn what_nobody_has_room_for_is_not_kept() {
    let mut path = Path::new(Profile::Sack);
    path.data(0);
    path.now += 2 * MS;
    path.ack(1);
    let cached = path.agent.counts().cached;
    for n in [10_000, 1_000_000, 2_000_000] {
        let forged = Segment {
            payload: vec![0xee; PAYLOAD as usize / 2],
            ..path.segment(n)
        };
        let outputs = path.down(forged);
        assert_eq!(causes(&outputs), [Cause::Passed]);
    }
    assert_eq!(path.agent.counts().cached, cached);
    assert!(is_helped(&mut path, 1));
}

/// What the window has no room for may be near enough to be kept. When the stream is there, it is seen that it is none of it.
#[test]
fn what_somebody_else_has_sent_is_not_sent_again() {
    let mut path = Path::new(Profile::Sack);
    path.data(0);
    path.now += 2 * MS;
    path.ack(1);
    let forged = Segment {
        sequence: path.number(2) + PAYLOAD / 2,
        payload: vec![0xee; PAYLOAD as usize],
        ..path.segment(2)
    };
    path.down(forged);
    (1..6).for_each(|n| path.data(n));
    path.now += 2 * MS;
    // The hop has lost the segment that passed in the place of the forged one.
    let answer = path.answer(2, &[(4, 6)]);
    let mut outputs = path.up(answer);
    assert_eq!(path.repairs(&outputs), [2, 3]);
    outputs.extend(path.wait(1000));
    for output in outputs {
        let segment = Segment::read(&output.packet).expect("a segment");
        assert!(!segment.payload.contains(&0xee), "{segment:?}");
    }
}

/// A sender that sends the same again in other segments is nobody else.
#[test]
fn the_same_in_other_segments_stays_cached() {
    let mut path = Path::new(Profile::Ll);
    (0..4).for_each(|n| path.data(n));
    let joined = Segment {
        payload: [[1; PAYLOAD as usize], [2; PAYLOAD as usize]].concat(),
        ..path.segment(1)
    };
    path.down(joined);
    path.now += 2 * MS;
    path.ack(1);
    let answer = path.answer(1, &[(3, 4)]);
    let mut outputs = path.up(answer);
    outputs.extend(path.wait(100));
    assert!(path.repairs(&outputs).contains(&1), "{outputs:?}");
}

/// Somebody who does not know where the stream is acknowledges in the mobile host's name. The sender discards what acknowledges more than it has sent.
#[test]
fn what_was_not_sent_is_not_taken_for_acknowledged() {
    let mut path = Path::new(Profile::Sack);
    assert!(is_helped(&mut path, 0));
    for far in [1 << 20, 1 << 30] {
        let forged = Segment {
            ack: Some(path.number(3).wrapping_add(far)),
            ..path.answer(3, &[])
        };
        assert_eq!(causes(&path.up(forged)), [Cause::Passed]);
    }
    assert!(is_helped(&mut path, 3));
}

/// Whoever drives the agent may ask who has sent a packet.
#[test]
fn numbers_that_nobody_guesses_tell_who_has_sent_a_packet() {
    let mut path = Path::silent(Config::default(), 5000, true);
    let is_of_host = |path: &Path, from: Side, segment: &Segment| {
        let packet = match from {
            Side::Fixed => segment.packet(path.fixed, path.mobile),
            Side::Mobile => segment.packet(path.mobile, path.fixed),
        };
        path.agent.is_of_host(from, &packet)
    };
    let syn = Segment {
        syn: true,
        sequence: 77,
        window: 60_000,
        ..Segment::default()
    };
    // A SYN alone proves nothing: anybody may send one.
    assert!(!is_of_host(&path, Side::Mobile, &syn));
    path.up(syn.clone());
    let answers = |number: u32| Segment {
        ack: Some(number),
        sequence: 5000,
        ..syn.clone()
    };
    assert!(!is_of_host(&path, Side::Fixed, &answers(79)));
    assert!(is_of_host(&path, Side::Fixed, &answers(78)));
    path.down(answers(78));
    let up = |sequence: u32, number: u32| Segment {
        sequence,
        ack: Some(number),
        window: 60_000,
        ..Segment::default()
    };
    for (sequence, number) in [(78, 5000), (78, 5002), (77, 5001), (79, 5001), (500, 9000)] {
        assert!(!is_of_host(&path, Side::Mobile, &up(sequence, number)));
    }
    assert!(is_of_host(&path, Side::Mobile, &up(78, 5001)));
    path.up(up(78, 5001));
    // What the fixed host sends, also when it sends it again, until that is acknowledged.
    for n in 0..2 {
        assert!(is_of_host(&path, Side::Fixed, &path.segment(n)));
        path.down(path.segment(n));
    }
    assert!(is_of_host(&path, Side::Fixed, &path.segment(0)));
    assert!(is_of_host(&path, Side::Mobile, &path.answer(1, &[])));
    path.ack(2);
    assert!(!is_of_host(&path, Side::Fixed, &path.segment(0)));
    assert!(!is_of_host(&path, Side::Mobile, &path.answer(1, &[])));
    assert!(is_of_host(&path, Side::Mobile, &path.answer(2, &[])));
    // What is acknowledged far ahead makes nothing right.
    path.up(up(78, path.number(2).wrapping_add(1 << 30)));
    let ahead = up(78, path.number(2).wrapping_add(1 << 30));
    assert!(!is_of_host(&path, Side::Mobile, &ahead));
    // Of a connection that began before, nothing is known that could not be anybody's.
    path.mobile.set_port(1);
    (0..3).for_each(|n| path.data(n));
    path.ack(1);
    path.ack(2);
    assert!(!is_of_host(&path, Side::Mobile, &path.answer(3, &[])));
}

#[test]
fn flows_that_are_not_understood_are_left_alone() {
    let run = |path: &mut Path| {
        (0..4).for_each(|n| path.data(n));
        assert_eq!(path.ack(1), [Cause::Passed]);
        assert_eq!(path.sack(1, &[(2, 3)]), [Cause::Passed]);
        assert_eq!(path.wait(1000), []);
    };
    // Its SYN was missed.
    let mut path = Path::silent(Config::default(), 5000, true);
    run(&mut path);
    assert_eq!(path.agent.counts().bypasses(Bypass::MidStream), 6);
    // TCP-MD5.
    let mut path = Path::new(Profile::Sack);
    let mut signed = path.segment(0);
    signed.other = [&[19, 18][..], &[0; 16], &[1, 1]].concat();
    path.down(signed);
    run(&mut path);
    assert_eq!(path.agent.counts().bypasses(Bypass::Authenticated), 7);
}

#[test]
fn packets_that_are_not_understood_pass() {
    let mut path = Path::new(Profile::Sack);
    let good = path.segment(0).packet(path.fixed, path.mobile).to_vec();
    let changed = |change: fn(&mut Vec<u8>)| {
        let mut packet = good.clone();
        change(&mut packet);
        packet
    };
    let cases = [
        (changed(|p| p[30] ^= 1), Bypass::Checksum),
        (changed(|p| p[6] |= 0x20), Bypass::Fragment),
        (changed(|p| p.truncate(900)), Bypass::Malformed),
        (changed(|p| p.push(0)), Bypass::Malformed),
        (changed(|p| p[9] = 17), Bypass::NotTcp),
        (changed(|p| p[0] = 0x55), Bypass::NotTcp),
        (changed(|p| p[2..4].fill(0)), Bypass::Joined),
        (Vec::new(), Bypass::NotTcp),
    ];
    for (packet, why) in cases {
        let packet = Bytes::from(packet);
        let outputs = path.put(Side::Fixed, packet.clone());
        assert_eq!(outputs.len(), 1);
        assert_eq!(outputs[0].packet, packet);
        assert!(path.agent.counts().bypasses(why) > 0, "{why:?}");
    }
    let mut joined = path.segment(0);
    joined.payload = vec![7; 20_000];
    assert_eq!(path.down(joined).len(), 1);
    assert_eq!(path.agent.counts().bypasses(Bypass::Joined), 2);
    assert_eq!(path.agent.counts().cached, 0);
}

#[test]
fn ports_used_again_begin_a_new_flow() {
    let mut path = Path::new(Profile::Sack);
    (0..4).for_each(|n| path.data(n));
    path.ack(1);
    path.sack(1, &[(2, 3)]);
    let syn = Segment {
        syn: true,
        sack_permitted: true,
        sequence: 123_456,
        ..Segment::default()
    };
    // What the old connection had to say comes first.
    assert_eq!(
        causes(&path.up(syn.clone())),
        [Cause::Released, Cause::Passed]
    );
    // The same SYN again changes nothing.
    assert_eq!(causes(&path.up(syn.clone())), [Cause::Passed]);
    assert_eq!(path.agent.flows_seen(), 1);
    // The answer says that there is another connection.
    let answer = Segment {
        ack: Some(123_457),
        sequence: 9000,
        ..syn
    };
    assert_eq!(causes(&path.down(answer)), [Cause::Passed]);
    assert_eq!(path.agent.flows_seen(), 2);
    assert_eq!(path.agent.poll_ended().map(|it| it.counts.held), Some(1));
    assert_eq!(path.wait(1000), []);
    assert_eq!(path.agent.flows()[0].bypass, None);
}

#[test]
fn a_syn_that_is_refused_ends_what_was_known() {
    let mut path = Path::new(Profile::Sack);
    (0..2).for_each(|n| path.data(n));
    let syn = Segment {
        syn: true,
        sequence: 123_456,
        ..Segment::default()
    };
    path.up(syn);
    let refuses = |acknowledges: u32| Segment {
        rst: true,
        ack: Some(acknowledges),
        ..Segment::default()
    };
    path.down(refuses(123_458));
    assert_eq!(path.agent.flows_known(), 1);
    path.down(refuses(123_457));
    assert_eq!(path.agent.flows_known(), 0);
}

/// RFC 5961: who gets them goes on with the connection.
#[test]
fn resets_and_syns_that_nobody_obeys_change_nothing() {
    let mut path = Path::new(Profile::Sack);
    (0..4).for_each(|n| path.data(n));
    path.ack(1);
    let reset = |sequence: u32| Segment {
        rst: true,
        sequence,
        ..Segment::default()
    };
    let syn = |sequence: u32| Segment {
        syn: true,
        sequence,
        ..Segment::default()
    };
    let far = 1 << 30;
    // What is sent beyond the window does not make a reset behind it right.
    let beyond = Segment {
        payload: vec![1],
        sequence: 78 + far,
        ..path.answer(1, &[])
    };
    for segment in [beyond, reset(79 + far), reset(77), reset(79), syn(78 + far)] {
        assert_eq!(causes(&path.up(segment)), [Cause::Passed]);
    }
    let expected = path.number(1);
    for segment in [reset(expected + far), reset(expected + 1), syn(expected)] {
        assert_eq!(causes(&path.down(segment)), [Cause::Passed]);
    }
    // A SYN that answers no SYN of the other side ends nothing either.
    let answer = Segment {
        ack: Some(5),
        ..syn(expected)
    };
    assert_eq!(causes(&path.down(answer)), [Cause::Passed]);
    assert_eq!(path.sack(1, &[(2, 3)]), [Cause::Repair]);
    assert_eq!((path.agent.flows_seen(), path.agent.flows_known()), (1, 1));
    // A reset with the expected sequence number ends the flow, whoever sent it.
    assert_eq!(path.down(reset(expected)).len(), 2);
    assert_eq!(path.agent.flows_known(), 0);
}

#[test]
fn memory_is_bounded_and_an_evicted_flow_lets_go() {
    let mut path = Path::new(Profile::Sack);
    (0..4).for_each(|n| path.data(n));
    path.ack(1);
    assert_eq!(path.sack(1, &[(2, 3)]), [Cause::Repair]);
    // Other flows fill the memory. Time stands still.
    let mobile = path.mobile;
    let mut released = 0;
    for port in 1..120 {
        path.mobile.set_port(port);
        let syn = Segment {
            syn: true,
            ..Segment::default()
        };
        path.up(syn.clone());
        let answer = Segment {
            ack: Some(1),
            sequence: 5000,
            ..syn
        };
        path.down(answer);
        path.ack(0);
        for n in 0..190 {
            let mut segment = path.segment(8 * n);
            segment.payload = vec![7; 8 * PAYLOAD as usize];
            let outputs = path.down(segment);
            released += outputs
                .iter()
                .filter(|it| it.cause == Cause::Released)
                .count();
        }
        assert!(path.agent.memory_bytes() <= 64 << 20);
    }
    assert_eq!(released, 1);
    assert!(path.agent.memory_bytes() > 60 << 20);
    // It is known all the same: only what is cached of it is gone.
    let flows = path.agent.flows();
    assert!(flows.iter().any(|flow| flow.key.mobile == mobile));
    assert_eq!(flows.len(), 120);
    assert_eq!(path.agent.counts().releases(Release::Evicted), 1);
    // No flow caches more than its share.
    assert!(flows.iter().all(|flow| flow.counts.cached < 130));
}

/// The connection has a loss, which is repaired: it is still helped. `n` is a segment that has not come yet.
fn is_helped(path: &mut Path, n: u32) -> bool {
    (n..n + 3).for_each(|n| path.data(n));
    path.now += 2 * MS;
    let is_repaired = path.sack(n, &[(n + 1, n + 2)]) == [Cause::Repair];
    path.ack(n + 3);
    is_repaired
}

#[test]
fn flows_that_are_not_helped_push_out_none_that_is() {
    let mut path = Path::new(Profile::Sack);
    assert!(is_helped(&mut path, 0));
    let (mobile, fixed) = (path.mobile, path.fixed);
    let syn = Segment {
        syn: true,
        ..Segment::default()
    };
    // Somebody looks for open ports. Then for others, of hosts that nobody has seen.
    for host in 0..2 {
        path.fixed = ([198, 51, 100, host], 0).into();
        for port in 0..=u16::MAX {
            path.fixed.set_port(port);
            path.now += MS / 10;
            path.up(syn.clone());
        }
    }
    let agent = &path.agent;
    assert!(agent.memory_bytes() > 60 << 20 && agent.memory_bytes() <= 64 << 20);
    (path.mobile, path.fixed) = (mobile, fixed);
    assert!(is_helped(&mut path, 3));
    // A connection may begin meanwhile.
    path.mobile.set_port(1);
    path.open();
    assert!(is_helped(&mut path, 0));
    // What was not answered is forgotten after a minute.
    path.now += 60_001 * MS;
    path.agent.handle_timeout(path.now);
    assert_eq!(path.agent.flows_known(), 2);
}

/// The kernel of a server answers each SYN, also those that nobody waits to be answered.
#[test]
fn syns_that_are_answered_push_out_none_that_is_open() {
    let mut path = Path::new(Profile::Sack);
    assert!(is_helped(&mut path, 0));
    let fixed = path.fixed;
    let syn = Segment {
        syn: true,
        ..Segment::default()
    };
    for n in 0..60_000_u16 {
        path.fixed = ([198, 51, 100, 1], n + 1).into();
        path.down(syn.clone());
        path.up(Segment {
            ack: Some(1),
            sequence: 5000,
            ..syn.clone()
        });
    }
    let agent = &path.agent;
    assert!(agent.memory_bytes() > 60 << 20 && agent.memory_bytes() <= 64 << 20);
    path.fixed = fixed;
    assert!(is_helped(&mut path, 3));
    path.now += 60_001 * MS;
    path.agent.handle_timeout(path.now);
    assert_eq!(path.agent.flows_known(), 1);
}

/// Somebody who asks in the name of another host does not see the answer, and guesses its number.
#[test]
fn guesses_at_an_answer_open_no_connection() {
    for (guess, is_open) in [(0, true), (1, false), (1 << 20, false)] {
        let mut path = Path::silent(Config::default(), 5000, true);
        let syn = Segment {
            syn: true,
            sequence: 77,
            window: 1000,
            ..Segment::default()
        };
        path.up(syn.clone());
        path.down(Segment {
            ack: Some(78),
            sequence: path.isn,
            ..syn
        });
        path.up(Segment {
            ack: Some(path.number(0) + guess),
            ..path.answer(0, &[])
        });
        path.now += 60_001 * MS;
        path.agent.handle_timeout(path.now);
        assert_eq!(path.agent.flows_known() == 1, is_open, "{guess}");
    }
}

#[test]
fn memory_that_is_full_of_what_is_helped_leaves_room_for_a_beginning() {
    let mut path = Path::silent(Config::default(), 5000, true);
    // Terminals at which nobody types.
    let idle = 2000..2500;
    for port in idle.clone() {
        path.mobile.set_port(port);
        path.open();
    }
    for port in 1..120 {
        path.mobile.set_port(port);
        path.open();
        (0..700).for_each(|n| path.data(n));
        // What is cached of the first one is gone, or of others by then.
        assert!(path.agent.memory_bytes() <= 64 << 20);
    }
    assert!(path.agent.memory_bytes() > 60 << 20);
    path.mobile.set_port(1000);
    path.open();
    assert!(is_helped(&mut path, 0));
    // None is forgotten for what is cached of others.
    assert_eq!(path.agent.flows_known(), 120 + idle.len());
    path.mobile.set_port(idle.start);
    assert!(is_helped(&mut path, 0));
}

#[test]
fn memory_that_is_full_of_connections_forgets_those_used_least_lately() {
    let mut path = Path::silent(Config::default(), 5000, true);
    let first = path.mobile;
    path.open();
    let mobiles = (0..60_000_u32).map(|n| ([10, 1, 0, (n >> 15) as u8], n as u16 | 1 << 15));
    for mobile in mobiles {
        path.mobile = mobile.into();
        path.open();
    }
    let agent = &path.agent;
    assert!(agent.memory_bytes() > 60 << 20 && agent.memory_bytes() <= 64 << 20);
    assert!(is_helped(&mut path, 0));
    path.mobile = first;
    assert!(!is_helped(&mut path, 0));
}

#[test]
fn a_connection_that_is_silent_for_two_hours_is_still_helped() {
    let mut path = Path::new(Profile::Sack);
    assert!(is_helped(&mut path, 0));
    // Something is cached, of which nothing was heard since.
    (3..103).for_each(|n| path.data(n));
    let cached = path.agent.memory_bytes();
    path.wait(600_000);
    assert_eq!(path.agent.memory_bytes(), cached);
    path.wait(60_000);
    path.agent.handle_timeout(path.now);
    assert!(path.agent.memory_bytes() < cached - 100 * PAYLOAD as usize);
    path.ack(103);
    path.wait(7_400_000);
    path.agent.handle_timeout(path.now);
    assert!(is_helped(&mut path, 103));
    path.wait(7_441_000);
    path.agent.handle_timeout(path.now);
    assert_eq!(path.agent.flows_known(), 0);
}

#[test]
fn a_connection_that_is_over_is_forgotten_after_a_minute() {
    let mut path = Path::new(Profile::Sack);
    let end = |segment: Segment| Segment {
        fin: true,
        payload: Vec::new(),
        ..segment
    };
    path.down(end(path.segment(0)));
    let answer = Segment {
        ack: Some(path.number(0).wrapping_add(1)),
        ..path.answer(0, &[])
    };
    path.up(end(answer.clone()));
    // It is half-closed for as long as the mobile host's is not acknowledged.
    path.now += 61_000 * MS;
    path.agent.handle_timeout(path.now);
    assert_eq!(path.agent.flows_known(), 1);
    path.down(Segment {
        sequence: path.number(0).wrapping_add(1),
        ack: Some(79),
        window: 500,
        ..Segment::default()
    });
    path.now += 59_000 * MS;
    path.agent.handle_timeout(path.now);
    assert_eq!(path.agent.flows_known(), 1);
    path.now += 2_000 * MS;
    path.agent.handle_timeout(path.now);
    assert_eq!(path.agent.flows_known(), 0);
}

/// Somebody who does not know where the streams are sends their ends in the names of both hosts, which are discarded.
#[test]
fn ends_behind_their_place_end_no_connection() {
    let mut path = Path::new(Profile::Sack);
    assert!(is_helped(&mut path, 0));
    let forged = |segment: Segment| Segment {
        fin: true,
        payload: Vec::new(),
        sequence: segment.sequence.wrapping_sub(1 << 30),
        ..segment
    };
    let (down, up) = (forged(path.segment(3)), forged(path.answer(3, &[])));
    path.down(down);
    path.up(up);
    path.now += 61_000 * MS;
    path.agent.handle_timeout(path.now);
    assert_eq!(path.agent.flows_known(), 1);
    assert!(is_helped(&mut path, 3));
}

/// An agent that is late lets go of what it holds for all flows, which keeps none of them from being silent.
#[test]
fn a_late_agent_keeps_no_silent_connection() {
    let mut path = Path::new(Profile::Sack);
    path.mobile.set_port(1);
    path.open();
    for _ in 0..3 {
        path.wait(2_500_000);
        path.agent.handle_lag(path.now, 50 * MS);
        path.now += 200 * MS;
        // One of the two is heard each time.
        path.ack(0);
    }
    let flows = path.agent.flows().into_iter();
    let known: Vec<SocketAddr> = flows.map(|flow| flow.key.mobile).collect();
    assert_eq!(known, [path.mobile]);
}

#[test]
fn repairs_that_were_not_needed_are_counted_and_make_it_careful() {
    let mut path = Path::new(Profile::Sack);
    (0..4).for_each(|n| path.data(n));
    path.ack(1);
    assert_eq!(path.sack(1, &[(2, 3)]), [Cause::Repair]);
    path.ack(4);
    // D-SACK: the first had only been late.
    assert_eq!(path.sack(4, &[(1, 2)]), [Cause::Passed]);
    assert_eq!(path.agent.counts().spurious, 1);
    (4..9).for_each(|n| path.data(n));
    assert_eq!(path.sack(4, &[(5, 6)]), []);
    assert_eq!(path.sack(4, &[(5, 7)]), []);
    assert_eq!(path.sack(4, &[(5, 8)]), [Cause::Repair]);
}

#[test]
fn the_control_repairs_and_holds_nothing() {
    let mut path = Path::new(Profile::Ll);
    (0..4).for_each(|n| path.data(n));
    path.ack(1);
    assert_eq!(path.sack(1, &[(2, 3)]), [Cause::Repair, Cause::Passed]);
    assert_eq!(path.sack(1, &[(2, 4)]), [Cause::Passed]);
    assert_eq!(path.ack(4), [Cause::Passed]);
    assert_eq!(path.agent.counts().held, 0);
}

#[test]
fn the_classic_profile_counts_duplicates() {
    let mut path = Path::new(Profile::Classic);
    (0..8).for_each(|n| path.data(n));
    path.ack(1);
    // The first passes, the second repairs, the expected rest is dropped.
    assert_eq!(path.sack(1, &[(2, 3)]), [Cause::Passed]);
    assert_eq!(path.sack(1, &[(2, 4)]), [Cause::Repair]);
    for n in 5..9 {
        assert_eq!(path.sack(1, &[(2, n)]), []);
    }
    assert_eq!(path.ack(8), [Cause::Passed]);
    // One that was lost before the hop is the sender's.
    [9, 10, 11].into_iter().for_each(|n| path.data(n));
    for n in 10..12 {
        assert_eq!(path.sack(8, &[(9, n)]), [Cause::Passed]);
    }
}

#[test]
fn a_dry_run_changes_nothing_and_counts() {
    let config = Config {
        dry_run: true,
        ..Config::default()
    };
    let mut path = Path::with(config, 5000, true);
    (0..4).for_each(|n| path.data(n));
    path.ack(1);
    assert_eq!(path.sack(1, &[(2, 3)]), [Cause::Passed]);
    assert_eq!(path.wait(1000), []);
    let counts = path.agent.counts();
    assert!(counts.held == 1 && counts.repaired > 0);
}

#[test]
fn a_late_agent_only_passes_packets_until_it_is_in_time_again() {
    let mut path = Path::new(Profile::Sack);
    (0..4).for_each(|n| path.data(n));
    path.ack(1);
    assert_eq!(path.sack(1, &[(2, 3)]), [Cause::Repair]);
    // 5 ms are allowed.
    path.agent.handle_lag(path.now, 5 * MS);
    assert!(!path.agent.is_overloaded() && path.outputs().is_empty());
    // What is held goes, and nothing else is done.
    path.agent.handle_lag(path.now, 5 * MS + 1);
    assert_eq!(causes(&path.outputs()), [Cause::Released]);
    assert_eq!(path.sack(1, &[(2, 4)]), [Cause::Passed]);
    path.data(4);
    assert_eq!(path.wait(50), []);
    // It lasts until the lag has been small for 100 ms.
    path.agent.handle_lag(path.now, 6 * MS);
    path.now += 99 * MS;
    path.agent.handle_lag(path.now, MS);
    path.data(5);
    let counts = path.agent.counts();
    assert_eq!(counts.bypasses(Bypass::Overload), 3);
    assert_eq!(counts.releases(Release::Overload), 1);
    assert_eq!(
        (path.agent.overloads(), path.agent.lag_ns_max()),
        (1, 6 * MS)
    );
    path.now += MS;
    path.agent.handle_lag(path.now, MS);
    assert!(!path.agent.is_overloaded());
    // The flow is helped as before, but for what passed meanwhile.
    assert_eq!(path.ack(6), [Cause::Passed]);
    (6..9).for_each(|n| path.data(n));
    assert_eq!(path.sack(6, &[(7, 8)]), [Cause::Repair]);
}

#[test]
fn ports_that_are_used_again_during_an_overload_are_another_flow() {
    let mut path = Path::new(Profile::Sack);
    path.data(0);
    path.agent.handle_lag(path.now, 50 * MS);
    // The SYNs of another connection, with other numbers.
    path.isn = 3_000_000_000;
    let syn = Segment {
        syn: true,
        sequence: 999,
        window: 1000,
        ..Segment::default()
    };
    path.up(syn.clone());
    path.down(Segment {
        ack: Some(1000),
        sequence: path.isn,
        ..syn
    });
    path.sack = false;
    path.now += 200 * MS;
    assert_eq!(path.agent.flows_seen(), 2);
    (0..4).for_each(|n| path.data(n));
    assert_eq!(path.ack(1), [Cause::Passed]);
    assert_eq!(path.ack(1), [Cause::Repair]);
    let flows = path.agent.flows();
    assert_eq!((flows.len(), flows[0].bypass), (1, None));
}

#[test]
fn settings_change_under_way() {
    let config = Config {
        radio: Some(Radio {
            bits_per_second: 1_000_000,
            queue_bytes: 10_000,
        }),
        ..Config::default()
    };
    let mut path = Path::with(config, 5000, true);
    path.wait(100);
    // One is on its way, two wait for the hop.
    let passed: Vec<usize> = (0..3).map(|n| path.down(path.segment(n)).len()).collect();
    assert_eq!(passed, [1, 0, 0]);
    let other = Config {
        radio: None,
        stage: Stage::Snoop(Profile::Ll),
        ..Config::default()
    };
    path.agent.reconfigure(path.now, other.clone());
    assert_eq!(causes(&path.outputs()), [Cause::Passed; 2]);
    // The flow that is known keeps its profile.
    path.data(3);
    path.ack(1);
    assert_eq!(path.sack(1, &[(2, 3)]), [Cause::Repair]);
    // A dry run leaves nothing behind that it would not send.
    let dry = Config {
        dry_run: true,
        ..other.clone()
    };
    path.agent.reconfigure(path.now, dry);
    assert_eq!(causes(&path.outputs()), [Cause::Released]);
    assert_eq!(path.sack(1, &[(2, 4)]), [Cause::Passed]);
    path.agent.reconfigure(path.now, other);
    assert_eq!(path.wait(1000), []);
    assert_eq!(path.ack(4), [Cause::Passed]);
    (4..8).for_each(|n| path.data(n));
    assert_eq!(path.sack(4, &[(5, 6)]), [Cause::Repair]);
}

#[test]
fn only_what_is_wanted_is_helped() {
    let matching = |text: &str| Config {
        matches: vec![text.parse().unwrap()],
        ..Config::default()
    };
    for (text, helps) in [
        ("port 443", true),
        ("host 10.0.0.0/8", true),
        ("port 80", false),
    ] {
        let mut path = Path::with(matching(text), 5000, true);
        (0..4).for_each(|n| path.data(n));
        assert_eq!(path.ack(1), [Cause::Passed]);
        let expected = if helps { Cause::Repair } else { Cause::Passed };
        assert_eq!(path.sack(1, &[(2, 3)])[0], expected, "{text}");
        let bypass = (!helps).then_some(Bypass::NotWanted);
        assert_eq!(path.agent.flows()[0].bypass, bypass, "{text}");
    }
    // A flow that has begun stays what it is.
    let mut path = Path::with(matching("port 443"), 5000, true);
    path.agent.reconfigure(path.now, matching("port 80"));
    (0..4).for_each(|n| path.data(n));
    assert_eq!(path.sack(1, &[(2, 3)])[0], Cause::Repair);
}

/// The law that repairs are what has come is checked too.
#[test]
fn repairs_may_have_a_dscp_of_their_own() {
    for (mobile, fixed) in [
        ("10.0.0.9:5", "192.0.2.1:443"),
        ("[fd00::9]:5", "[fd00::1]:443"),
    ] {
        let config = Config {
            repair_dscp: Some(46),
            ..Config::default()
        };
        let mut path = Path::silent(config, 5000, true);
        (path.mobile, path.fixed) = (mobile.parse().unwrap(), fixed.parse().unwrap());
        path.open();
        (0..4).for_each(|n| path.data(n));
        let answer = path.answer(1, &[(2, 3)]);
        let repair = path.up(answer).swap_remove(0);
        assert_eq!(repair.cause, Cause::Repair);
        let sliced = SlicedPacket::from_ip(&repair.packet).unwrap();
        let dscp = match sliced.net.unwrap() {
            NetSlice::Ipv4(ip) => {
                let header = ip.header().to_header();
                assert_eq!(header.calc_header_checksum(), header.header_checksum);
                header.dscp
            }
            NetSlice::Ipv6(ip) => ip.header().to_header().dscp(),
            NetSlice::Arp(_) => panic!("no IP"),
        };
        assert_eq!(dscp.value(), 46);
    }
}

/// A connection over a hop whose round trip is known to be 2 ms.
fn measured(profile: Profile) -> Path {
    let mut path = Path::new(profile);
    for n in 0..30 {
        path.data(n);
        path.now += 2 * MS;
        path.ack(n + 1);
    }
    path
}

/// What a connection takes of which nothing is cached.
fn empty() -> usize {
    Path::new(Profile::Sack).agent.memory_bytes()
}

#[test]
fn what_is_acknowledged_is_not_kept() {
    let path = measured(Profile::Sack);
    let flow = Path::silent(Config::default(), 5000, true);
    assert_eq!(flow.agent.memory_bytes(), 0);
    assert_eq!(path.agent.memory_bytes(), empty());
}

/// The same bytes in another packet, shorter or longer than the first one.
#[test]
fn what_is_sent_again_with_other_options_is_counted_as_it_is() {
    for [first, again] in [[false, true], [true, false]] {
        let mut path = measured(Profile::Sack);
        for has_timestamps in [first, again] {
            path.down(Segment {
                timestamps: has_timestamps.then_some((1, 1)),
                ..path.segment(30)
            });
        }
        path.ack(31);
        assert_eq!(path.agent.memory_bytes(), empty());
    }
}

#[test]
fn a_lone_segment_may_wait_for_its_acknowledgement() {
    let mut path = measured(Profile::Sack);
    path.data(30);
    // The time-out is 7 ms; a receiver may delay an acknowledgement by 40 ms.
    assert_eq!(path.wait(46), []);
    let outputs = path.wait(2);
    assert_eq!(path.repairs(&outputs), [30]);
    // Its acknowledgement tells nothing of the round trip (Karn), however late it is.
    let outputs = path.wait(150);
    assert!(path.repairs(&outputs).iter().all(|n| *n == 30));
    path.now += 50 * MS;
    path.ack(31);
    path.data(31);
    // Until something has told a round trip again, the time-out stays doubled: perhaps the hop has become slower.
    assert_eq!(path.wait(53), []);
    let outputs = path.wait(2);
    assert_eq!(path.repairs(&outputs), [31]);
}

#[test]
fn a_packet_is_repaired_eight_times_at_most() {
    let mut path = measured(Profile::Ll);
    (30..34).for_each(|n| path.data(n));
    path.ack(31);
    let mut repairs = 0;
    for _ in 0..40 {
        // The receiver repeats the same acknowledgement.
        let answer = path.answer(31, &[(32, 34)]);
        let mut outputs = path.up(answer);
        outputs.extend(path.wait(10_000));
        repairs += path.repairs(&outputs).len();
    }
    assert_eq!(repairs, 8);
}

#[test]
fn a_lost_repair_is_repeated_once_a_later_packet_has_arrived() {
    for profile in [Profile::Sack, Profile::Ll] {
        let mut path = measured(profile);
        (30..34).for_each(|n| path.data(n));
        path.now += 2 * MS;
        let answer = path.answer(30, &[(31, 32)]);
        let outputs = path.up(answer);
        assert_eq!(path.repairs(&outputs), [30]);
        path.now += MS / 2;
        path.data(34);
        path.now += 2 * MS;
        // Those that went before the repair tell nothing of it.
        let answer = path.answer(30, &[(31, 34)]);
        let outputs = path.up(answer);
        assert!(path.repairs(&outputs).is_empty());
        let answer = path.answer(30, &[(31, 35)]);
        let outputs = path.up(answer);
        assert_eq!(path.repairs(&outputs), [30], "{profile:?}");
    }
}

#[test]
fn a_sender_that_repairs_one_hole_does_not_hear_of_later_ones() {
    let mut path = Path::new(Profile::Sack);
    // The third was lost on the way here.
    [0, 1, 3, 4, 5, 6, 7].into_iter().for_each(|n| path.data(n));
    path.now += 2 * MS;
    path.ack(2);
    assert_eq!(path.sack(2, &[(3, 5)]), [Cause::Passed]);
    // The sixth is lost on the hop.
    let answer = path.answer(2, &[(6, 7), (3, 5)]);
    let outputs = path.up(answer);
    assert_eq!(causes(&outputs), [Cause::Repair, Cause::Concealed]);
    assert_eq!(path.repairs(&outputs), [5]);
    let passed = Segment::read(&outputs[1].packet).expect("a right checksum");
    assert_eq!(passed.sack, path.answer(2, &[(3, 5)]).sack);
    // Repaired here, it may be told of.
    assert_eq!(path.sack(2, &[(3, 8)]), [Cause::Passed]);
    assert_eq!(path.agent.counts().releases(Release::NotCached), 1);
    assert_eq!(path.wait(1), []);
    path.data(2);
    assert_eq!(path.ack(8), [Cause::Passed]);
}

#[test]
fn what_is_hidden_from_a_sender_that_repairs_is_told_in_time() {
    let mut path = Path::new(Profile::Sack);
    [0, 1, 3, 4, 5, 6].into_iter().for_each(|n| path.data(n));
    path.ack(2);
    path.sack(2, &[(3, 5)]);
    path.sack(2, &[(6, 7), (3, 5)]);
    let outputs = path.wait(200);
    let released = outputs.iter().find(|it| it.cause == Cause::Released);
    assert_eq!(
        released.expect("a release").packet,
        path.answer(2, &[(6, 7), (3, 5)])
            .packet(path.mobile, path.fixed)
    );
    assert_eq!(path.agent.counts().releases(Release::Time), 1);
}

#[test]
fn ranges_that_a_repair_joins_give_no_round_trip() {
    let mut path = measured(Profile::Sack);
    (30..36).for_each(|n| path.data(n));
    path.now += 2 * MS;
    path.sack(30, &[(31, 33)]);
    path.sack(30, &[(34, 36), (31, 33)]);
    path.now += 40 * MS;
    // What ends the range was there 40 ms ago.
    path.sack(30, &[(31, 36)]);
    path.ack(36);
    path.data(36);
    assert_eq!(path.wait(46), []);
    let outputs = path.wait(2);
    assert_eq!(path.repairs(&outputs), [36]);
}

#[test]
fn what_packets_wait_for_is_counted_for_each_flow() {
    let config = Config {
        radio: Some(Radio {
            bits_per_second: 1_000_000,
            queue_bytes: 100_000,
        }),
        ..Config::default()
    };
    let mut path = Path::with(config, 5000, true);
    path.wait(100);
    // One goes at once, each other one behind 1040 bytes more; an idle hop counts as begun a millisecond ago.
    (0..3).for_each(|n| drop(path.down(path.segment(n))));
    path.agent.handle_waiting(path.now - 3 * MS);
    path.down(path.segment(3));
    path.agent.handle_waiting(path.now - MS);
    path.down(path.segment(4));
    let flow = path.agent.flows().pop().expect("a flow").counts;
    let step = 1040 * 8 * 1000;
    assert_eq!(flow.queued_ns, 10 * step - 4 * MS);
    assert_eq!(flow.queued_ns_max, 4 * step - MS);
    assert_eq!(flow.waited_ns_max, 3 * MS);
}

#[test]
fn what_the_receiver_has_leaves_the_cache() {
    let mut path = Path::new(Profile::Sack);
    (0..4).for_each(|n| path.data(n));
    path.ack(1);
    let whole = path.agent.memory_bytes();
    assert_eq!(path.sack(1, &[(2, 4)]), [Cause::Repair]);
    // Two packets went, a short one is held.
    assert!(path.agent.memory_bytes() + 2 * PAYLOAD as usize <= whole);
}

#[test]
fn what_the_receiver_would_discard_for_its_timestamp_is_the_senders() {
    // The newest one that it has seen in its place is of the same time, and later.
    for (echoed, expected) in [(101, vec![Cause::Repair]), (102, vec![Cause::Passed])] {
        let mut path = Path::new(Profile::Sack);
        for n in 0..4 {
            let timestamps = Some((100, 1));
            path.down(Segment {
                timestamps,
                ..path.segment(n)
            });
        }
        let mut answer = path.answer(1, &[(2, 3)]);
        path.ack(1);
        answer.timestamps = Some((1, echoed));
        assert_eq!(causes(&path.up(answer)), expected);
        let outdated = path.agent.counts().releases(Release::Outdated);
        assert_eq!(outdated, u64::from(echoed > 101));
    }
}
