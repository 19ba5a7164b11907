//! A download whose acknowledgements wait in front of a thin link: the machine that has the queue there marks, and the receiver's lets fewer go. Marks go
//! over the sealed channel, where others may listen, repeat and forge.

use std::{net::SocketAddr, time::Duration};

use sphinx_link::{Depth, IpPacket, Link, LinkConfig, Rate};
use sphinx_pep::{
    Agent, Config, Counts, Key, Output, Side, Stage,
    acks::{AckCc, Mark, MarkOpener, MarkSealer, Marks, Mode, ReturnQueue},
};
use sphinx_sim::linux::{Receiver, Sender};

use super::{MS, PAYLOAD, Time, Watched, common::Segment, number, read_answer, windows};

const END: Time = 40_000 * MS;
/// Rate of the thin link from the receiver, in bit/s.
const RATE_BACK: u64 = 28_800;
/// Window in segments: 100 kB, as published.
const WINDOW: u64 = 100_000 / PAYLOAD as u64;
/// Time of day at the beginning, in nanoseconds since 1970.
const TODAY: u64 = 1_800_000_000_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    Nobody,
    /// The agent that has the queue, alone.
    One,
    Two {
        attacked: bool,
    },
}

#[derive(Debug)]
struct Ended {
    /// When each segment arrived in order.
    whole: Vec<(Time, u64)>,
    /// Of the agent that has the queue, and of the receiver's.
    counts: [Counts; 2],
    /// What was refused of what others sent to the receiver's agent.
    refused: u64,
}

impl Ended {
    fn mbit(&self) -> f64 {
        let (first, last) = (self.whole[0].1, self.whole[self.whole.len() - 1].1);
        ((last - first) * u64::from(PAYLOAD) * 8) as f64 * 1e3 / END as f64
    }
}

/// The sender is beyond the thin link, seen from the receiver.
fn ends() -> [SocketAddr; 2] {
    [([10, 0, 0, 9], 40_000).into(), ([192, 0, 2, 1], 443).into()]
}

fn watched(cc: Option<AckCc>) -> Watched {
    Watched::new(Config {
        stage: Stage::Pass,
        ack_cc: cc,
        ..Config::default()
    })
}

/// What an agent puts out by `now`.
fn take(it: &mut Watched, now: Time) -> Option<Output> {
    if it.agent.next_timeout().is_some_and(|at| at <= now) {
        it.agent.handle_timeout(now);
    }
    it.take()
}

/// From the machine with the queue to the receiver's, with somebody beside it who has no key.
struct Channel {
    sealer: MarkSealer,
    opener: MarkOpener,
    heard: Vec<Vec<u8>>,
    refused: u64,
}

impl Channel {
    fn new() -> Channel {
        let key = Key::new([5; 32]);
        // This mark was sealed before the receiver's agent began.
        let before = MarkSealer::new(key.clone(), 1).seal(TODAY - 1, &mark());
        Channel {
            sealer: MarkSealer::new(key.clone(), 2),
            opener: MarkOpener::new(key, TODAY),
            heard: vec![before],
            refused: 0,
        }
    }

    fn carry(&mut self, now: Time, from: &mut Agent, to: &mut Agent) {
        while let Some(mark) = from.poll_mark() {
            let datagram = self.sealer.seal(TODAY + now, &mark);
            let mark = self.opener.open(TODAY + now, &datagram).expect("a mark");
            self.heard.push(datagram);
            to.handle_mark(now, &mark);
        }
    }

    fn attack(&mut self, now: Time, to: &mut Agent) {
        let forged = self.heard.iter().rev().take(3).map(|datagram| {
            let mut forged = datagram.clone();
            let at = now as usize % forged.len();
            forged[at] ^= 1;
            forged
        });
        let all: Vec<_> = self
            .heard
            .iter()
            .rev()
            .take(3)
            .cloned()
            .chain(forged)
            .collect();
        for datagram in all.iter().chain(self.heard.first()) {
            match self.opener.open(TODAY + now, datagram) {
                Some(mark) => to.handle_mark(now, &mark),
                None => self.refused += 1,
            }
        }
    }
}

fn mark() -> Mark {
    let [fixed, mobile] = ends();
    Mark {
        flow: sphinx_pep::FlowKey { fixed, mobile },
    }
}

fn run(who: Who) -> Ended {
    let link = |ms, bits, packets| {
        Link::new(LinkConfig {
            delay: Duration::from_millis(ms),
            rate: Rate::Constant(bits),
            queue: Depth::Packets(packets),
            ..LinkConfig::default()
        })
        .expect("a link")
    };
    let (mut down, mut back) = (link(5, 10_000_000, 100), link(50, RATE_BACK, 50));
    let queue = ReturnQueue {
        bits_per_second: 28_000,
        bytes: 4096,
        acks_first: false,
        mode: Mode::Keep,
    };
    let cc = |queue, marks| {
        Some(AckCc {
            queue,
            marks,
            ..AckCc::default()
        })
    };
    let (queued, receivers) = match who {
        Who::Nobody => (None, None),
        Who::One => (cc(Some(queue), Marks::Own), None),
        Who::Two { .. } => (cc(Some(queue), Marks::Tell), cc(None, Marks::Hear)),
    };
    let (mut queued, mut receivers) = (watched(queued), watched(receivers));
    let mut channel = Channel::new();
    let [host, server] = ends();
    let syn = Segment {
        syn: true,
        sack_permitted: true,
        sequence: 77,
        window: 65_535,
        scale: Some(7),
        mss: Some(1460),
        timestamps: Some((1, 0)),
        ..Segment::default()
    };
    let answer = Segment {
        ack: Some(78),
        sequence: super::ISN,
        timestamps: Some((1, 1)),
        ..syn.clone()
    };
    for agent in [&mut receivers, &mut queued] {
        agent.put(0, Side::Fixed, syn.packet(host, server));
        agent.put(110 * MS, Side::Mobile, answer.packet(server, host));
    }
    let (mut sender, mut receiver) = (Sender::default(), Receiver::default());
    sender.edge = WINDOW;
    let mut echo = 1;
    let mut whole = Vec::new();
    let mut now = 110 * MS;
    // What the handshake left in the queue is of no interest.
    while take(&mut queued, now + 1000 * MS).is_some() || take(&mut receivers, now).is_some() {}
    while now < END {
        while let Some(number) = sender.poll(now) {
            let packet = windows::data(number, now, echo).packet(server, host);
            down.enqueue(now, IpPacket(packet.to_vec()));
        }
        while let Some(delivery) = down.poll(now) {
            queued.put(now, Side::Mobile, delivery.packet.0.into());
        }
        let mut answers = Vec::new();
        // Either agent may have a packet for the other one.
        loop {
            let mut moved = false;
            while let Some(output) = take(&mut queued, now) {
                moved = true;
                match output.to {
                    Side::Fixed => receivers.put(now, Side::Mobile, output.packet),
                    Side::Mobile => back.enqueue(now, IpPacket(output.packet.to_vec())),
                }
            }
            while let Some(output) = take(&mut receivers, now) {
                moved = true;
                if output.to == Side::Mobile {
                    queued.put(now, Side::Fixed, output.packet);
                    continue;
                }
                let segment = Segment::read(&output.packet).expect("a segment");
                let number = number(segment.sequence, receiver.expected);
                let stamp = u64::from(segment.timestamps.expect("one").0);
                answers.extend(receiver.receive(now, number, stamp));
                whole.push((now, receiver.expected));
            }
            answers.extend(receiver.timeout(now));
            for said in answers.drain(..) {
                moved = true;
                let packet = windows::answer(&said, now).packet(host, server);
                receivers.put(now, Side::Fixed, packet);
            }
            channel.carry(now, &mut queued.agent, &mut receivers.agent);
            if who == (Who::Two { attacked: true }) {
                channel.attack(now, &mut receivers.agent);
            }
            if !moved {
                break;
            }
        }
        while let Some(delivery) = back.poll(now) {
            let segment = Segment::read(&delivery.packet.0).expect("a segment");
            echo = segment.timestamps.expect("one").0;
            let ack = read_answer(&segment, &sender);
            sender.edge = sender.edge.max(ack.next + WINDOW);
            sender.acknowledge(now, &ack);
        }
        now = (sender.next_event(now).into_iter())
            .chain(receiver.next_event())
            .chain(down.next_event())
            .chain(back.next_event())
            .chain(queued.agent.next_timeout())
            .chain(receivers.agent.next_timeout())
            .min()
            .expect("an event")
            .max(now);
        sender.timeout(now);
    }
    Ended {
        whole,
        counts: [&queued, &receivers].map(|it| it.agent.counts()),
        refused: channel.refused,
    }
}

#[test]
fn marks_from_another_machine_let_fewer_acknowledgements_go() {
    let [nobody, one, two] = [Who::Nobody, Who::One, Who::Two { attacked: false }].map(run);
    let mbit = [&nobody, &one, &two].map(Ended::mbit);
    println!("no agent, one, two: {mbit:.2?} Mbit/s; {:?}", two.counts);
    assert!(
        mbit[2] >= 1.8 * mbit[0] && mbit[2] >= 0.9 * mbit[1],
        "{mbit:?}"
    );
    let [queued, receivers] = &two.counts;
    assert!(
        queued.acks_marked > 0 && receivers.acks_marked > 0,
        "{two:?}"
    );
    assert!(queued.acks_dropped.is_empty(), "{queued:?}");
    assert!(!receivers.acks_dropped.is_empty(), "{receivers:?}");
    // Who listens, repeats and forges changes nothing.
    let attacked = run(Who::Two { attacked: true });
    assert!(attacked.refused > 1000);
    assert_eq!((attacked.whole, attacked.counts), (two.whole, two.counts));
}
