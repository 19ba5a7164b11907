//! Hand-off, packet by packet: what an agent tells the next one of a flow, and what that does with it (rules §3 in
//! `docs/pep.md`).

mod common;

use std::net::SocketAddr;

use bytes::Bytes;
use common::{Segment, outputs};
use sphinx_pep::{
    Agent, Bypass, Cause, Config, Laws, Output, Place, Side,
    handoff::{Handover, Move},
};

const MS: u64 = 1_000_000;
const PAYLOAD: u32 = 1000;
/// An empty list of segments.
const NOTHING: [u32; 0] = [];

/// An agent, and the laws that it is held to: what another agent hands to it has come in there.
struct Base {
    agent: Agent,
    laws: Laws,
}

impl Base {
    fn new(config: Config) -> Base {
        Base {
            agent: Agent::new(config),
            laws: Laws::default(),
        }
    }

    fn outputs(&mut self) -> Vec<Output> {
        outputs(&mut self.agent, &mut self.laws)
    }
}

/// A download by way of two agents, one after the other.
struct Path {
    bases: [Base; 2],
    now: u64,
    isn: u32,
}

fn ends() -> [SocketAddr; 2] {
    [([192, 0, 2, 1], 443).into(), ([10, 0, 0, 9], 50_000).into()]
}

fn peer() -> SocketAddr {
    ([192, 0, 2, 7], 7750).into()
}

impl Path {
    /// With the handshake done at the first one: 2 ms over the hop, 100 ms on the wired side.
    fn new() -> Path {
        Path::with(Config::default())
    }

    /// The first agent has these settings.
    fn with(config: Config) -> Path {
        let mut path = Path {
            bases: [Base::new(config), Base::new(Config::default())],
            now: MS,
            isn: u32::MAX - 2500,
        };
        let syn = Segment {
            syn: true,
            sack_permitted: true,
            sequence: 77,
            window: 1000,
            ..Segment::default()
        };
        path.put(0, Side::Mobile, &syn);
        path.now += 100 * MS;
        let sequence = path.isn;
        let answer = Segment {
            ack: Some(78),
            sequence,
            ..syn
        };
        path.put(0, Side::Fixed, &answer);
        path.now += 2 * MS;
        assert_eq!(path.ack(0, 0, &[]), [Cause::Passed]);
        path
    }

    fn packet(&self, from: Side, segment: &Segment) -> Bytes {
        let [fixed, mobile] = ends();
        match from {
            Side::Fixed => segment.packet(fixed, mobile),
            Side::Mobile => segment.packet(mobile, fixed),
        }
    }

    fn put(&mut self, base: usize, from: Side, segment: &Segment) -> Vec<Output> {
        let packet = self.packet(from, segment);
        let now = self.now;
        let base = &mut self.bases[base];
        base.laws.input(from, &packet);
        base.agent.handle_packet(now, from, packet);
        base.outputs()
    }

    fn number(&self, n: u32) -> u32 {
        self.isn.wrapping_add(1).wrapping_add(n * PAYLOAD)
    }

    /// The `n`-th segment of the fixed host.
    fn segment(&self, n: u32) -> Segment {
        Segment {
            sequence: self.number(n),
            ack: Some(78),
            window: 500,
            payload: vec![n as u8; PAYLOAD as usize],
            ..Segment::default()
        }
    }

    /// The segment comes to an agent, which passes it.
    fn data(&mut self, base: usize, n: u32) {
        let outputs = self.put(base, Side::Fixed, &self.segment(n));
        assert_eq!(outputs.len(), 1);
        assert_eq!(outputs[0].cause, Cause::Passed);
    }

    /// The mobile host has everything before the `n`-th segment, and these ranges.
    fn answer(&mut self, base: usize, n: u32, blocks: &[(u32, u32)]) -> Vec<Output> {
        let number = |n: u32| self.number(n);
        let segment = Segment {
            sequence: 78,
            ack: Some(number(n)),
            window: 1000,
            sack: blocks
                .iter()
                .map(|(a, b)| (number(*a), number(*b)))
                .collect(),
            ..Segment::default()
        };
        self.put(base, Side::Mobile, &segment)
    }

    fn ack(&mut self, base: usize, n: u32, blocks: &[(u32, u32)]) -> Vec<Cause> {
        let outputs = self.answer(base, n, blocks);
        outputs.iter().map(|output| output.cause).collect()
    }

    /// The segments that come out for the mobile host.
    fn sent(&self, outputs: &[Output]) -> Vec<u32> {
        let to_mobile = outputs.iter().filter(|it| it.to == Side::Mobile);
        let segments = to_mobile.map(|it| Segment::read(&it.packet).expect("a segment"));
        segments
            .map(|it| it.sequence.wrapping_sub(self.number(0)) / PAYLOAD)
            .collect()
    }

    fn hand_over(&mut self, kind: Move) -> usize {
        let [_, mobile] = ends();
        let agent = &mut self.bases[0].agent;
        let flows = agent.hand_over(self.now, mobile.ip(), peer(), kind);
        flows.expect("room for another mobile host")
    }

    fn messages(&mut self) -> Vec<Handover> {
        let agent = &mut self.bases[0].agent;
        std::iter::from_fn(|| agent.poll_handover())
            .map(|(to, message)| {
                assert_eq!(to, peer());
                message
            })
            .collect()
    }

    /// What the first agent has to tell goes to the second; what comes out there.
    fn tell(&mut self) -> Vec<u32> {
        let messages = self.messages();
        self.give(&messages)
    }

    fn give(&mut self, messages: &[Handover]) -> Vec<u32> {
        let now = self.now;
        let base = &mut self.bases[1];
        for message in messages {
            if let Some(packet) = message.packet() {
                base.laws.input(Side::Fixed, packet);
            }
            base.agent.handle_handover(now, message);
        }
        let outputs = base.outputs();
        self.sent(&outputs)
    }

    fn arrive(&mut self) -> Vec<u32> {
        let [_, mobile] = ends();
        let base = &mut self.bases[1];
        base.agent.arrived(self.now, mobile.ip());
        let outputs = base.outputs();
        self.sent(&outputs)
    }

    fn wait(&mut self, base: usize, ms: u64) -> Vec<u32> {
        let end = self.now + ms * MS;
        let mut outputs = Vec::new();
        let agent = |path: &Path| path.bases[base].agent.next_timeout();
        while let Some(at) = agent(self).filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let (now, base) = (self.now, &mut self.bases[base]);
            base.agent.handle_timeout(now);
            outputs.extend(base.outputs());
        }
        self.now = end;
        self.sent(&outputs)
    }
}

#[test]
fn a_flow_that_has_left_is_resumed_by_the_next_agent() {
    let mut path = Path::new();
    (0..6).for_each(|n| path.data(0, n));
    // The third one was lost, the fifth is there: held, and repaired.
    path.ack(0, 2, &[]);
    assert_eq!(path.ack(0, 2, &[(4, 5)]), [Cause::Repair, Cause::Repair]);
    assert_eq!(path.hand_over(Move::Leave), 1);
    // All that the mobile host has not said to have, at once.
    assert_eq!(path.tell(), [2, 3, 5]);
    let status = path.bases[1].agent.status();
    assert_eq!((status.flows_taken_over, status.counts.resumed), (1, 3));
    assert_eq!(path.bases[0].agent.status().flows_handed_over, 1);
    // Where it was, nothing is repaired any more, and what was held is not released.
    assert_eq!(path.wait(0, 400), NOTHING);
    assert_eq!(path.bases[0].agent.counts().released.len(), 0);
    // The next agent helps from here on.
    path.now += 2 * MS;
    assert_eq!(path.ack(1, 6, &[]), [Cause::Passed]);
    (6..9).for_each(|n| path.data(1, n));
    path.now += 2 * MS;
    path.ack(1, 7, &[]);
    let outputs = path.answer(1, 7, &[(8, 9)]);
    assert_eq!(path.sent(&outputs), [7]);
    assert_eq!(outputs.len(), 1);
    assert_eq!(path.bases[1].agent.counts().held, 1);
    assert_eq!(path.bases[1].agent.counts().bypassed.len(), 0);
}

#[test]
fn a_flow_that_is_pre_filled_sleeps_until_the_mobile_host_is_heard() {
    let mut path = Path::new();
    assert_eq!(path.hand_over(Move::Prefill), 1);
    (0..4).for_each(|n| path.data(0, n));
    path.ack(0, 2, &[]);
    assert_eq!(path.tell(), NOTHING);
    assert_eq!(path.wait(1, 5_000), NOTHING);
    // The agent at which the mobile host is helps as ever.
    assert_eq!(path.ack(0, 2, &[(3, 4)]), [Cause::Repair]);
    // It moves: a segment that comes to the next agent meanwhile is not lost behind those before it.
    path.data(1, 4);
    assert_eq!(path.wait(1, 300), NOTHING);
    let outputs = path.answer(1, 2, &[(4, 5)]);
    assert_eq!(path.sent(&outputs), [2, 3]);
    // The sender hears of the progress, which the first agent had heard of last, and not of the hole.
    let causes: Vec<Cause> = outputs.iter().map(|it| it.cause).collect();
    assert_eq!(causes, [Cause::Concealed, Cause::Repair, Cause::Repair]);
    // The receiver has all segments now.
    assert_eq!(path.ack(1, 5, &[]), [Cause::Passed]);
}

#[test]
fn a_mobile_host_that_is_said_to_be_here_gets_what_passed_before_it_came() {
    let mut path = Path::new();
    path.hand_over(Move::Prefill);
    (0..2).for_each(|n| path.data(0, n));
    path.tell();
    // These go over the next hop, where nobody is yet.
    (2..4).for_each(|n| path.data(1, n));
    path.now += 80 * MS;
    assert_eq!(path.arrive(), [0, 1, 2, 3]);
    assert_eq!(path.arrive(), NOTHING);
    // What is late where the mobile host was comes after it.
    path.data(0, 4);
    assert_eq!(path.tell(), [4]);
}

/// A receiver may discard what comes with the timestamp of before.
#[test]
fn what_the_sender_repairs_meanwhile_is_what_the_next_agent_sends() {
    let mut path = Path::new();
    path.hand_over(Move::Prefill);
    for (n, sent) in [(0, 1000), (1, 1001), (0, 1500)] {
        let segment = Segment {
            timestamps: Some((sent, 7)),
            ..path.segment(n)
        };
        path.put(0, Side::Fixed, &segment);
        assert_eq!(path.tell(), NOTHING);
    }
    let [_, mobile] = ends();
    path.bases[1].agent.arrived(path.now, mobile.ip());
    let outputs = path.bases[1].outputs();
    let packets = outputs.iter().map(|it| Segment::read(&it.packet));
    let sent: Vec<_> = packets
        .map(|it| it.and_then(|it| it.timestamps).map(|(sent, _)| sent))
        .collect();
    assert_eq!(sent, [Some(1500), Some(1001)]);
}

#[test]
fn what_is_resumed_comes_no_faster_than_the_hop_answers() {
    let mut path = Path::new();
    (0..40).for_each(|n| path.data(0, n));
    path.hand_over(Move::Leave);
    let first: Vec<u32> = (0..10).collect();
    assert_eq!(path.tell(), first);
    path.now += 2 * MS;
    let outputs = path.answer(1, 2, &[]);
    assert_eq!(path.sent(&outputs), [10, 11]);
    // What is missing behind that was not lost here: it has not been sent.
    let outputs = path.answer(1, 2, &[(39, 40)]);
    assert_eq!(path.sent(&outputs), [12, 13]);
    // If nothing comes back at all, the first is tried again by its time.
    let again = path.wait(1, 2_000);
    assert!(
        again.iter().all(|n| *n == 2) && !again.is_empty(),
        "{again:?}"
    );
}

#[test]
fn an_agent_that_has_acknowledged_data_tells_that_nothing_is_missing() {
    let mut path = Path::new();
    path.hand_over(Move::Prefill);
    (0..4).for_each(|n| path.data(0, n));
    path.ack(0, 4, &[]);
    path.tell();
    assert_eq!(path.arrive(), NOTHING);
}

#[test]
fn what_comes_to_the_next_agent_before_it_was_told_is_caught_up_with() {
    let mut path = Path::new();
    (0..3).for_each(|n| path.data(0, n));
    path.data(1, 3);
    assert_eq!(path.ack(1, 1, &[]), [Cause::Passed]);
    let bypassed = |path: &Path| path.bases[1].agent.counts().bypasses(Bypass::MidStream);
    assert_eq!(bypassed(&path), 2);
    path.hand_over(Move::Leave);
    // The first agent does not know that the mobile host has the first one.
    assert_eq!(path.tell(), [0, 1, 2]);
    path.now += 2 * MS;
    assert_eq!(path.ack(1, 3, &[]), [Cause::Passed]);
    // It knows nothing of the fourth; that is acknowledged all the same.
    assert_eq!(path.ack(1, 4, &[]), [Cause::Passed]);
    assert_eq!(bypassed(&path), 2);
}

#[test]
fn old_news_do_not_undo_what_an_agent_has_seen_itself() {
    let mut path = Path::new();
    path.hand_over(Move::Prefill);
    (0..3).for_each(|n| path.data(0, n));
    let messages = path.messages();
    assert_eq!(path.give(&messages), NOTHING);
    assert_eq!(path.arrive(), [0, 1, 2]);
    path.now += 2 * MS;
    assert_eq!(path.ack(1, 3, &[]), [Cause::Passed]);
    assert_eq!(path.give(&messages), NOTHING);
    assert_eq!(path.wait(1, 2_000), NOTHING);
}

#[test]
fn another_connection_is_not_taken_for_the_one_that_is_told_of() {
    let mut path = Path::new();
    (0..3).for_each(|n| path.data(0, n));
    path.hand_over(Move::Leave);
    let messages = path.messages();
    // The ports are used again at the next agent, from the beginning.
    let syn = Segment {
        syn: true,
        sack_permitted: true,
        sequence: 1_000_000,
        window: 1000,
        ..Segment::default()
    };
    path.put(1, Side::Mobile, &syn);
    assert_eq!(path.give(&messages), NOTHING);
    let answer = Segment {
        ack: Some(1_000_001),
        sequence: 500_000,
        ..syn
    };
    path.put(1, Side::Fixed, &answer);
    assert_eq!(path.give(&messages), NOTHING);
    assert_eq!(path.bases[1].agent.status().flows_taken_over, 0);
    // One that was authenticated is left alone.
    let mut path = Path::new();
    path.hand_over(Move::Leave);
    let mut signed = path.segment(0);
    signed.other = [19, 18].into_iter().chain([7; 16]).chain([1, 1]).collect();
    path.put(1, Side::Fixed, &signed);
    path.tell();
    assert_eq!(path.bases[1].agent.status().flows_taken_over, 0);
}

#[test]
fn a_packet_of_another_flow_is_not_sent() {
    let mut path = Path::new();
    path.data(0, 0);
    path.hand_over(Move::Leave);
    let messages = path.messages();
    let mut bytes = Vec::new();
    messages[1].write(&mut bytes);
    // The port of the fixed host, in the message and not in the packet: they have changed places with others.
    let port = 443_u16.to_be_bytes();
    let at = bytes.windows(2).position(|it| it == port).expect("a port");
    bytes[at + 1] ^= 1;
    let forged = Handover::read(&bytes).expect("a message");
    assert_eq!(path.give(&[forged]), NOTHING);
    assert_eq!(path.arrive(), NOTHING);
}

#[test]
fn a_mobile_host_that_comes_back_is_helped_where_it_was() {
    let mut path = Path::new();
    (0..3).for_each(|n| path.data(0, n));
    path.hand_over(Move::Leave);
    path.tell();
    // It was not away at all, or is back.
    path.now += 10 * MS;
    let outputs = path.answer(0, 1, &[(2, 3)]);
    assert_eq!(path.sent(&outputs), [1]);
    path.data(0, 3);
    // The other agent is not told any more.
    assert_eq!(path.messages().len(), 0);
}

#[test]
fn nobody_is_told_in_a_dry_run_or_by_a_mobile_host_or_for_ever() {
    for config in [
        Config {
            dry_run: true,
            ..Config::default()
        },
        Config {
            place: Place::Mobile,
            ..Config::default()
        },
    ] {
        let mut agent = Agent::new(config);
        let mobile = ends()[1].ip();
        assert_eq!(agent.hand_over(0, mobile, peer(), Move::Prefill), Some(0));
    }
    let mut path = Path::new();
    path.hand_over(Move::Prefill);
    path.messages();
    path.now += 59_000 * MS;
    path.data(0, 0);
    assert_eq!(path.messages().len(), 1);
    path.now += 2_000 * MS;
    path.data(0, 1);
    assert_eq!(path.messages().len(), 0);
    // An agent that passes everything from now on tells nobody of it.
    path.hand_over(Move::Prefill);
    path.messages();
    let agent = &mut path.bases[0].agent;
    let dry_run = Config {
        dry_run: true,
        ..agent.config().clone()
    };
    agent.reconfigure(path.now, dry_run);
    path.data(0, 2);
    assert_eq!(path.messages().len(), 0);
}

#[test]
fn what_is_told_is_bounded() {
    let mut path = Path::new();
    (0..600).for_each(|n| path.data(0, n));
    for _ in 0..100 {
        path.hand_over(Move::Prefill);
    }
    assert_eq!(path.messages().len(), 16_384);
    let mobile = |n: u8| std::net::IpAddr::from([10, 0, 1, n]);
    let agent = &mut path.bases[1].agent;
    let mut told = |n, kind| agent.hand_over(0, mobile(n), peer(), kind);
    let followed = (0..200).filter(|n| told(*n, Move::Prefill).is_some());
    assert_eq!(followed.count(), 64);
    // Hosts that have gone take the places of those that may go, and leave theirs to nobody.
    let followed = (100..200).filter(|n| told(*n, Move::Leave).is_some());
    assert_eq!(followed.count(), 64);
    assert!(agent.poll_handover().is_none());
}

#[test]
fn what_waits_for_other_agents_counts_as_memory() {
    let mut path = Path::new();
    let before = path.bases[0].agent.memory_bytes();
    path.data(0, 0);
    let cached = path.bases[0].agent.memory_bytes();
    path.hand_over(Move::Prefill);
    // What is known of the flow, and with the packet.
    let told = path.bases[0].agent.memory_bytes() - cached;
    assert!(told >= cached - before, "{told}");
    path.messages();
    assert_eq!(path.bases[0].agent.memory_bytes(), cached);
}

/// Connections that an agent is to leave alone are not told of, and what it is told of them does nothing.
#[test]
fn connections_that_are_not_wanted_are_left_alone() {
    let others = || Config {
        matches: vec!["port 80".parse().expect("conditions")],
        ..Config::default()
    };
    let mut path = Path::new();
    path.bases[1] = Base::new(others());
    path.data(0, 0);
    assert_eq!(path.hand_over(Move::Leave), 1);
    assert_eq!(path.tell(), NOTHING);
    assert_eq!(path.bases[1].agent.flows_known(), 0);
    let mut path = Path::with(others());
    path.data(0, 0);
    assert_eq!(path.hand_over(Move::Leave), 0);
    assert_eq!(path.messages().len(), 0);
}
