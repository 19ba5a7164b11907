//! Two sessions and the second implementation of their ends, which is told what they are told and must do what they do.

use std::collections::VecDeque;
use std::net::SocketAddr;

use sphinx_proto::cc::CcKind;
use sphinx_proto::wire::{ConnectionId, Frame, FrameIter, OVERHEAD, PacketKind};
use sphinx_proto::{
    Config, ConnectionIds, Content, Delta, Event, Nanos, PacketMeta, Paper, Received, Resend, Role,
    Room, Session, Slot, StreamId, StreamPart, Time, Transmit, Triggers, Tuple, Urgency,
};
use sphinx_sim::Rng;

use crate::reference::{Receiver, Said, Sender};

const DELAY: Nanos = 5_000_000;
const BLOCKS: u32 = 24;

pub(crate) fn session(role: Role, own: u8, peer: u8, paper: Paper) -> Session {
    let cid = |n| ConnectionId::new([n; 8]).expect("not zero");
    let tuple = Tuple {
        remote: SocketAddr::from(([10, 0, 0, peer], 1)),
        local_ip: None,
    };
    let ids = ConnectionIds {
        local: cid(own),
        peer: cid(peer),
    };
    let mut config = Config::new(role, tuple, ids);
    config.initial_rtt = 2 * DELAY;
    config.paper = Some(paper);
    config.cc = CcKind::Fixed(12_500_000);
    Session::new(config, Time::ZERO)
}

struct Run {
    now: Nanos,
    ends: [Session; 2],
    sender: Sender,
    receiver: Receiver,
    /// What the receiver must still tell the sender.
    owed: VecDeque<Said>,
    /// (arrival, to, packet), by the time.
    wire: VecDeque<(Nanos, usize, Transmit)>,
    rng: Rng,
    loss: u64,
    feedback_loss: u64,
    handed_over: u32,
    symbols: u64,
    reactive: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let paper = Paper {
            n: [10, 40, 100][rng.below(3) as usize],
            threshold: [300_000, 500_000, 900_000][rng.below(3) as usize],
            delta: [Delta::Share(0), Delta::Measured, Delta::Share(21_000)][rng.below(3) as usize],
            period: 100 + rng.below(300) as u32,
            icm: [(true, true), (true, false), (false, true), (false, false)]
                .map(|(block, symbol)| Triggers { block, symbol })[rng.below(4) as usize],
            resend: if rng.below(4) == 0 {
                Resend::Block
            } else {
                Resend::Missing
            },
            part: [1_000_000, 500_000][rng.below(2) as usize],
            timer_us: [11_000, 50_000][rng.below(2) as usize],
            window: 2 + rng.below(10) as u16,
            ..Paper::default()
        };
        Self {
            now: 0,
            ends: [
                session(Role::Client, 1, 2, paper),
                session(Role::Server, 2, 1, paper),
            ],
            sender: Sender::new(paper),
            receiver: Receiver::new(paper),
            owed: VecDeque::new(),
            wire: VecDeque::new(),
            loss: rng.below(25),
            feedback_loss: [0, 10, 50][rng.below(3) as usize],
            rng,
            handed_over: 0,
            symbols: 0,
            reactive: 0,
        }
    }

    /// Hands over what the window allows.
    fn supply(&mut self) {
        let stream = StreamId::new(Role::Client, 0);
        while self.handed_over < BLOCKS {
            let shape = self.ends[0].block_shape(1);
            if self.ends[0].room_for(stream, Urgency::default(), shape) != Room::Whole {
                return;
            }
            let mut parts = [StreamPart {
                stream,
                bytes: 1,
                end_of_stream: false,
                cost: 0,
            }];
            let slot = Slot(self.handed_over);
            self.ends[0].submit(slot, shape, (false, Urgency::default()), &mut parts);
            self.sender.push(u64::from(self.handed_over), shape.0);
            self.handed_over += 1;
        }
    }

    /// Whether a packet of an end is what the second implementation sends too.
    fn check(&mut self, end: usize, packet: &Transmit) {
        match &packet.content {
            Content::Symbol { .. } => {
                assert_eq!(end, 0);
                let header = &packet.header;
                let sent = (u64::from(header.block), header.code, header.row);
                assert_eq!(Some(sent), self.sender.next(self.now), "at {} ns", self.now);
                self.symbols += 1;
            }
            Content::Control(body) => {
                for frame in FrameIter::new(body) {
                    let said = match frame.expect("well formed") {
                        Frame::PaperSymbols(sack) => {
                            Said::Symbols(sack.latest, sack.upto, sack.unrecovered)
                        }
                        Frame::PaperBlocks(sack) => {
                            Said::Blocks(sack.loss, sack.base, sack.decoded)
                        }
                        _ => continue,
                    };
                    assert_eq!(end, 1);
                    assert_eq!(Some(said), self.owed.pop_front(), "at {} ns", self.now);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn deliver(&mut self, to: usize, packet: &Transmit) {
        let time = Time::from_nanos(self.now);
        let meta = PacketMeta {
            now: time,
            received_at: time,
            packet_number: packet.packet_number,
            tuple: Tuple {
                remote: SocketAddr::from(([10, 0, 0, 2 - to as u8], 1)),
                local_ip: None,
            },
            ecn: 0,
            datagram_len: packet.body_len + OVERHEAD,
        };
        let body = match &packet.content {
            Content::Control(body) => body.clone(),
            _ => vec![0; packet.body_len],
        };
        if to == 1 {
            self.receiver.on_number(packet.packet_number.get());
            if packet.header.kind == PacketKind::Symbol {
                let header = &packet.header;
                let symbol = (u64::from(header.block), header.code, header.row);
                self.owed.extend(self.receiver.on_symbol(header.n, symbol));
            }
        } else {
            let rtt = self.ends[0].stats().rtt;
            for frame in FrameIter::new(&body) {
                match frame.expect("well formed") {
                    Frame::PaperSymbols(sack) => self.sender.on_symbols(self.now, rtt, &sack),
                    Frame::PaperBlocks(sack) => self.sender.on_blocks(self.now, rtt, &sack),
                    _ => {}
                }
            }
        }
        let received = self.ends[to].handle_packet(&meta, &packet.header, &body);
        assert!(!matches!(
            received,
            Received::Bundle(_) | Received::Window { .. }
        ));
        self.settle(to);
    }

    /// What a driver does that has nothing to do with payload.
    fn settle(&mut self, end: usize) {
        let time = Time::from_nanos(self.now);
        while let Some(job) = self.ends[end].poll_job() {
            self.ends[end].job_done(job.id);
        }
        while let Some(event) = self.ends[end].poll_event() {
            match event {
                Event::BlockComplete { slot, .. } => {
                    let stream = StreamId::new(Role::Client, 0);
                    let mut parts = [StreamPart {
                        stream,
                        bytes: 1,
                        end_of_stream: false,
                        cost: 0,
                    }];
                    assert!(self.ends[end].block_unpacked(time, slot, &mut parts));
                    let cost = parts[0].cost;
                    self.ends[end].taken(time, stream, cost);
                }
                Event::BlockDelivered { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn is_done(&self) -> bool {
        self.handed_over == BLOCKS && self.sender.outstanding().is_empty() && self.wire.is_empty()
    }

    fn run(&mut self) {
        for _ in 0..200_000 {
            let time = Time::from_nanos(self.now);
            self.supply();
            if self.sender.timeout().is_some_and(|at| at <= self.now) {
                self.sender.on_timeout(self.now);
            }
            for end in 0..2 {
                if self.ends[end].poll_timeout().is_some_and(|at| at <= time) {
                    self.ends[end].handle_timeout(time);
                }
                self.settle(end);
                while let Some(packet) = self.ends[end].poll_transmit(time) {
                    self.check(end, &packet);
                    let percent = if end == 0 {
                        self.loss
                    } else {
                        self.feedback_loss
                    };
                    if self.rng.below(100) >= percent {
                        self.wire.push_back((self.now + DELAY, 1 - end, packet));
                    }
                    self.supply();
                }
            }
            assert!(
                self.owed.is_empty(),
                "what the receiver has not said: {:?}",
                self.owed
            );
            if self.is_done() {
                assert!(self.ends[0].stats().block_bytes_delivered > 0);
                self.reactive = self.ends[0].stats().repair_reactive;
                return;
            }
            let timers = (0..2)
                .filter_map(|end| self.ends[end].poll_timeout())
                .map(Time::as_nanos);
            let arrivals = self.wire.iter().map(|(at, ..)| *at);
            let next = timers
                .chain(arrivals)
                .chain(self.sender.timeout())
                .min()
                .expect("something");
            self.now = next.max(self.now);
            while let Some((at, to, packet)) = self.wire.pop_front() {
                if at > self.now {
                    self.wire.push_front((at, to, packet));
                    break;
                }
                self.deliver(to, &packet);
            }
        }
        panic!(
            "not done at {} ns: {:?} {:?}",
            self.now,
            self.sender.outstanding(),
            self.ends[0].stats()
        );
    }
}

#[test]
fn a_second_implementation_sends_the_same_packets() {
    let seeds = std::env::var("SPHINX_PAPER_SEEDS")
        .ok()
        .and_then(|seeds| seeds.parse().ok());
    let (mut symbols, mut reactive) = (0, 0);
    for seed in 0..seeds.unwrap_or(250) {
        let mut run = Run::new(seed);
        run.run();
        symbols += run.symbols;
        reactive += run.reactive;
    }
    println!("{symbols} packets with symbols, {reactive} of them reactive");
    assert!(reactive > 0);
}

#[test]
fn the_equations_say_what_the_issue_says() {
    let counts =
        [0.3, 0.5, 0.9].map(|threshold| crate::reference::plan(100, 0.06, 0.0, threshold).1);
    assert_eq!(counts, [12, 15, 27]);
    assert_eq!(crate::reference::plan(100, 0.06, 0.021, 0.5), (12, 20));
    assert_eq!(crate::reference::plan(8, 0.06, 0.0, 0.5), (4, 2));
    for n in [1, 2, 3, 8, 32, 100] {
        for p in [0.0, 0.003, 0.01, 0.06, 0.1, 0.24, 0.5] {
            for threshold in [0.3, 0.5, 0.9] {
                let crate_says = sphinx_proto::redundant(n, p, 0.004, threshold);
                let says = crate::reference::plan(usize::from(n), p, 0.004, threshold);
                assert_eq!(
                    (crate_says.degree, crate_says.count),
                    says,
                    "{n} {p} {threshold}"
                );
            }
        }
    }
}
