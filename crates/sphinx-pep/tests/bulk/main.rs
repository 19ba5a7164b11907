//! What the profiles are worth to a sender of today: a download of a model of Linux (CUBIC, RACK, undoing)
//! over an emulated hop, in virtual time.
//!
//! `cargo test -p sphinx-pep --test bulk -- --nocapture` prints the figures.

#[path = "../common/mod.rs"]
mod common;
mod handoff;
mod marks;
mod upload;
mod windows;

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use common::Segment;
use sphinx_link::{Depth, IpPacket, Jitter, Link, LinkConfig, Loss, Rate};
use sphinx_pep::{Agent, Config, Counts, Laws, Output, Profile, Radio, Side, Stage};
use sphinx_sim::linux::{Ack, Receiver, Sender};

pub(crate) type Time = u64;
const MS: Time = 1_000_000;

const PAYLOAD: u32 = 1400;
const RATE: u64 = 50_000_000;
const ISN: u32 = 4_000_000_000;
/// The time before this is warm-up and is not measured.
const WARM: Time = 3_000 * MS;
const END: Time = 12_000 * MS;

struct Case {
    profile: Option<Profile>,
    rate: u64,
    loss: f64,
    /// Whether the agent has the queue of the hop.
    radio: bool,
    /// The hop repeats what it loses itself, so that packets come late, in order.
    jitter: Time,
    /// A sender that losses do not slow down has so many bits in a second to send.
    paced: Option<u64>,
    seed: u64,
}

impl Default for Case {
    fn default() -> Case {
        Case {
            profile: None,
            rate: RATE,
            loss: 0.0,
            radio: false,
            jitter: 0,
            paced: None,
            seed: 1,
        }
    }
}

#[derive(Debug)]
struct Ended {
    mbit: f64,
    /// The longest time in which nothing arrived in order.
    pause: Time,
    /// From writing to arriving in order, of each segment, if they were paced.
    delays: Vec<Time>,
    sender: Sender,
    counts: Counts,
}

fn ends() -> [SocketAddr; 2] {
    [([192, 0, 2, 1], 443).into(), ([10, 0, 0, 9], 40_000).into()]
}

/// The handshake, which the links do not carry: 4 ms over the hop, 96 ms on the wired side.
fn open(agent: &mut Agent) -> Time {
    let [fixed, mobile] = ends();
    let syn = Segment {
        syn: true,
        sack_permitted: true,
        sequence: 77,
        window: 60_000,
        timestamps: Some((1, 0)),
        ..Segment::default()
    };
    agent.handle_packet(MS, Side::Mobile, syn.packet(mobile, fixed));
    let answer = Segment {
        ack: Some(78),
        sequence: ISN,
        ..syn
    };
    agent.handle_packet(97 * MS, Side::Fixed, answer.packet(fixed, mobile));
    let now = 101 * MS;
    agent.handle_packet(
        now,
        Side::Mobile,
        answer_packet(&Ack::default(), now, ends()),
    );
    while agent.poll_output().is_some() {}
    now
}

fn data_packet(number: u64, now: Time, [from, to]: [SocketAddr; 2]) -> Bytes {
    let segment = Segment {
        sequence: ISN.wrapping_add(1).wrapping_add(number as u32 * PAYLOAD),
        ack: Some(78),
        window: 60_000,
        timestamps: Some(((now / MS) as u32, 1)),
        payload: vec![number as u8; PAYLOAD as usize],
        ..Segment::default()
    };
    segment.packet(from, to)
}

/// An answer to data that goes `from` one end `to` the other.
fn answer_packet(ack: &Ack, now: Time, [from, to]: [SocketAddr; 2]) -> Bytes {
    let at = |number: u64| ISN.wrapping_add(1).wrapping_add(number as u32 * PAYLOAD);
    let segment = Segment {
        sequence: 78,
        ack: Some(at(ack.next)),
        window: 60_000,
        sack: ack.blocks.iter().map(|it| (at(it.0), at(it.1))).collect(),
        timestamps: Some(((now / MS) as u32, ack.echo as u32)),
        ..Segment::default()
    };
    segment.packet(to, from)
}

/// Reads a number of the stream; `last` is any of the last ones.
fn number(sequence: u32, last: u64) -> u64 {
    let bytes = sequence.wrapping_sub(ISN).wrapping_sub(1);
    let near = (last as u32).wrapping_mul(PAYLOAD);
    let steps = bytes.wrapping_sub(near) as i32 / PAYLOAD as i32;
    last.saturating_add_signed(i64::from(steps))
}

/// What an answer says to a sender.
fn read_answer(segment: &Segment, sender: &Sender) -> Ack {
    let at = |sequence: u32| number(sequence, sender.oldest());
    Ack {
        next: at(segment.ack.expect("an acknowledgement")),
        blocks: segment.sack.iter().map(|it| (at(it.0), at(it.1))).collect(),
        echo: segment.timestamps.map_or(0, |it| u64::from(it.1)),
    }
}

/// A segment with data arrives: the answer that is due at once, if any.
fn receive(receiver: &mut Receiver, now: Time, packet: &IpPacket) -> Option<Ack> {
    let segment = Segment::read(&packet.0).expect("a segment");
    let stamp = segment.timestamps.map_or(0, |it| u64::from(it.0));
    let number = number(segment.sequence, receiver.expected);
    receiver.receive(now, number, stamp)
}

/// A link that only takes time.
fn link(delay: Time, seed: u64) -> LinkConfig {
    LinkConfig {
        delay: Duration::from_nanos(delay),
        queue: Depth::Packets(100_000),
        seed,
        ..LinkConfig::default()
    }
}

/// An agent, and the laws that it is held to.
struct Watched {
    agent: Agent,
    laws: Laws,
}

impl Watched {
    fn new(config: Config) -> Watched {
        Watched {
            agent: Agent::new(config),
            laws: Laws::default(),
        }
    }

    fn put(&mut self, now: Time, from: Side, packet: Bytes) {
        self.laws.input(from, &packet);
        self.agent.handle_packet(now, from, packet);
    }

    fn take(&mut self) -> Option<Output> {
        let output = self.agent.poll_output()?;
        self.laws.output(&output).expect("the laws");
        Some(output)
    }
}

fn run(case: &Case) -> Ended {
    let queue = Duration::from_millis(50);
    let hop = LinkConfig {
        rate: Rate::Constant(case.rate),
        queue: Depth::Time(queue),
        loss: Loss::Bernoulli(case.loss),
        jitter: Jitter {
            max: Duration::from_nanos(case.jitter),
            ..Jitter::default()
        },
        ..link(2 * MS, case.seed)
    };
    // Fixed to agent, agent to fixed, agent to mobile, mobile to agent.
    let links = [link(48 * MS, 1), link(48 * MS, 2), hop, link(2 * MS, 3)];
    let mut links = links.map(|config| Link::new(config).expect("a link"));
    let radio = case.radio.then_some(Radio {
        bits_per_second: case.rate * 49 / 50,
        queue_bytes: (case.rate as usize / 8) / 20,
    });
    let mut agent = case.profile.map(|profile| {
        Watched::new(Config {
            stage: Stage::Snoop(profile),
            radio,
            ..Config::default()
        })
    });
    let mut now = agent.as_mut().map_or(101 * MS, |it| open(&mut it.agent));
    let (start, mut sender, mut receiver) = (now, Sender::default(), Receiver::default());
    let (mut warm, mut last, mut pause) = (0, now, 0);
    let interval = case
        .paced
        .map(|rate| u64::from(PAYLOAD) * 8_000_000_000 / rate);
    sender.steady = interval.is_some();
    let mut delays = Vec::new();
    while now < start + END {
        if let Some(interval) = interval {
            sender.written = (now - start) / interval + 1;
        }
        while let Some(number) = sender.poll(now) {
            links[0].enqueue(now, IpPacket(data_packet(number, now, ends()).to_vec()));
        }
        for (from, link, onward) in [(Side::Fixed, 0, 2), (Side::Mobile, 3, 1)] {
            while let Some(delivery) = links[link].poll(now) {
                match &mut agent {
                    Some(agent) => agent.put(now, from, delivery.packet.0.into()),
                    None => links[onward].enqueue(now, delivery.packet),
                }
            }
        }
        if let Some(agent) = &mut agent {
            agent.agent.handle_timeout(now);
            while let Some(output) = agent.take() {
                let link = if output.to == Side::Mobile { 2 } else { 1 };
                links[link].enqueue(now, IpPacket(output.packet.to_vec()));
            }
        }
        let mut answers: Vec<Ack> = receiver.timeout(now).into_iter().collect();
        while let Some(delivery) = links[2].poll(now) {
            let before = receiver.expected;
            answers.extend(receive(&mut receiver, now, &delivery.packet));
            if receiver.expected > before {
                pause = pause.max(now - last);
                last = now;
                let written = |number| start + number * interval.unwrap_or(0);
                delays.extend((before..receiver.expected).map(|it| now - written(it)));
            }
        }
        for answer in answers {
            links[3].enqueue(now, IpPacket(answer_packet(&answer, now, ends()).to_vec()));
        }
        while let Some(delivery) = links[1].poll(now) {
            let segment = Segment::read(&delivery.packet.0).expect("a segment");
            sender.acknowledge(now, &read_answer(&segment, &sender));
        }
        if now <= start + WARM {
            warm = receiver.expected;
        }
        let events = links.iter().filter_map(Link::next_event);
        let timers = sender
            .next_event(now)
            .into_iter()
            .chain(receiver.next_event());
        let agent = agent.as_ref().and_then(|it| it.agent.next_timeout());
        let writes = interval.map(|interval| start + sender.written * interval);
        now = events
            .chain(timers)
            .chain(agent)
            .chain(writes)
            .min()
            .expect("an event")
            .max(now);
        sender.timeout(now);
    }
    let bits = (receiver.expected - warm) * u64::from(PAYLOAD) * 8;
    Ended {
        mbit: bits as f64 / (END - WARM) as f64 * 1e3,
        pause: pause.max(now - last),
        delays,
        sender,
        counts: agent.map(|it| it.agent.counts()).unwrap_or_default(),
    }
}

/// The median over some seeds, in Mbit/s.
fn median(name: &str, profile: Option<Profile>, loss: f64, radio: bool) -> f64 {
    // Without loss, all are the same.
    let seeds = if loss > 0.0 { 3 } else { 1 };
    let mut rates = Vec::new();
    for seed in 1..=seeds {
        let ended = run(&Case {
            profile,
            loss,
            radio,
            seed,
            ..Case::default()
        });
        let (sender, counts) = (&ended.sender, &ended.counts);
        println!(
            "{name:<12} seed {seed} {:5.1} Mbit/s, {} recoveries ({} undone), {} sent again, \
             {} time-outs | {} repaired, {} spurious, held {:.0} ms, {:?}",
            ended.mbit,
            sender.recoveries,
            sender.undone,
            sender.sent_again,
            sender.timeouts,
            counts.repaired,
            counts.spurious,
            counts.held_ns_max as f64 / 1e6,
            counts.released,
        );
        rates.push(ended.mbit);
    }
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

#[test]
fn a_cubic_download_with_the_queue_in_the_agent_gets_most_of_the_error_free_rate() {
    let whole = median("no loss", None, 0.0, false);
    let sack = median("sack, radio", Some(Profile::Sack), 0.01, true);
    println!("no loss {whole:.1}, sack {sack:.1}");
    assert!(sack >= 0.9 * whole, "{sack} of {whole}");
}

#[test]
fn a_cubic_download_behind_a_foreign_queue_is_ten_times_faster() {
    let none = median("none", None, 0.01, false);
    let sack = median("sack", Some(Profile::Sack), 0.01, false);
    let ll = median("ll", Some(Profile::Ll), 0.01, false);
    println!("none {none:.1}, sack {sack:.1}, ll {ll:.1}");
    assert!(sack >= 10.0 * none, "{sack} and {none}");
}

#[test]
fn an_agent_costs_a_hop_without_loss_nothing() {
    let none = median("none", None, 0.0, false);
    let sack = median("sack", Some(Profile::Sack), 0.0, false);
    println!("none {none:.1}, sack {sack:.1}");
    assert!(sack >= 0.97 * none, "{sack} of {none}");
}

/// A start that fills a short queue costs a time-out at most; nothing waits for longer than that (25 seeds of this were tried).
#[test]
fn no_download_behind_a_foreign_queue_comes_to_rest() {
    for seed in 11..=18 {
        let ended = run(&Case {
            profile: Some(Profile::Sack),
            rate: 20_000_000,
            loss: 0.01,
            seed: 10 * seed + 1,
            ..Case::default()
        });
        let (pause, timeouts) = (ended.pause, ended.sender.timeouts);
        println!("seed {seed}: {} ms, {timeouts} time-outs", pause / MS);
        assert!(pause < 1_000 * MS && timeouts <= 1, "seed {seed}: {pause}");
    }
}

/// What comes late on a hop that repeats lost packets itself was not lost.
#[test]
fn an_agent_costs_a_hop_that_repeats_itself_nothing() {
    for (jitter, seed) in [(5 * MS, 1), (15 * MS, 1), (15 * MS, 3)] {
        let [none, sack] = [None, Some(Profile::Sack)].map(|profile| {
            let case = Case {
                profile,
                jitter,
                seed,
                ..Case::default()
            };
            run(&case)
        });
        let counts = &sack.counts;
        println!(
            "{} ms, seed {seed}: {:.1} and {:.1} Mbit/s, {} repaired, {} spurious",
            jitter / MS,
            none.mbit,
            sack.mbit,
            counts.repaired,
            counts.spurious
        );
        assert!(
            sack.mbit >= 0.98 * none.mbit,
            "{} of {}",
            sack.mbit,
            none.mbit
        );
    }
}

/// Where losses do not slow down the sender, each still holds up what is behind it for a round trip of the whole path; with an agent,
/// for one of the hop.
#[test]
fn in_order_delay_is_that_of_the_hop() {
    let extra = |profile, seed| {
        let mut delays = run(&Case {
            profile,
            loss: 0.01,
            paced: Some(20_000_000),
            seed,
            ..Case::default()
        })
        .delays;
        delays.sort_unstable();
        (delays[delays.len() * 99 / 100] - delays[0]) as f64 / 1e6
    };
    for seed in 1..=3 {
        let (none, sack) = (extra(None, seed), extra(Some(Profile::Sack), seed));
        println!(
            "seed {seed}: 99 % within {none:.1} ms, with sack {sack:.1} ms more than the shortest"
        );
        assert!(sack <= none / 5.0, "{sack} of {none}");
    }
}
