//! TCP inside: a model of Linux's CUBIC whose packets a session carries as `Outbox` and `Device` do, over an emulated path, in virtual time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use sphinx_driver::SendAs;
use sphinx_link::{GilbertElliott, Loss};
use sphinx_netdev::header::{ICMP, TCP};
use sphinx_proto::wire::{Datagram, Delivery, FlowKind};
use sphinx_proto::{Nanos, RepairMode, Session};
use sphinx_sim::linux::{Ack, Receiver, Sender};
use sphinx_sim::{Carried, MS, SEC, Scenario, link};

use super::MTU;
use super::fq_codel::FqCodel;
use super::outbox::OUTBOX_BYTES_MAX;
use super::path::Path;

/// Headers of IPv4, and of TCP with timestamps.
const HEADERS: usize = 52;
const PORTS: usize = 20;
/// What is known of a path is looked at so often.
const PATH_TIME: Nanos = 50 * MS;
const PING_TIME: Nanos = 20 * MS;

/// What the programs at the ends do, and what becomes of it.
#[derive(Default)]
struct Inner {
    sender: Sender,
    receiver: Receiver,
    /// Echoes that wait to be answered, and their times there and back.
    pings: Vec<u64>,
    asked: u64,
    answered: Vec<Nanos>,
}

/// One end of the tunnel.
struct Tunnel {
    inner: Rc<RefCell<Inner>>,
    /// The end with the sender.
    sends: bool,
    queue: FqCodel,
    path: Option<(Nanos, Path)>,
    /// When the next echo is asked for.
    next_ping: Nanos,
}

fn packet(protocol: u8, len: usize, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; len.max(HEADERS + body.len())];
    packet[0] = 0x45;
    packet[9] = protocol;
    packet[12..20].copy_from_slice(&[10, 9, 0, 2, 10, 9, 0, 1]);
    if protocol == ICMP {
        packet[PORTS] = 8;
    }
    packet[HEADERS..][..body.len()].copy_from_slice(body);
    packet
}

fn words(data: &[u8]) -> Vec<u64> {
    data[HEADERS..]
        .as_chunks()
        .0
        .iter()
        .map(|word| u64::from_be_bytes(*word))
        .collect()
}

impl Tunnel {
    fn push(&mut self, now: Nanos, protocol: u8, len: usize, of: &[u64]) {
        let body: Vec<u8> = of.iter().flat_map(|word| word.to_be_bytes()).collect();
        self.queue.push(now, packet(protocol, len, &body));
    }

    fn acknowledge(&mut self, now: Nanos, ack: Option<Ack>) {
        if let Some(ack) = ack {
            let mut of = vec![ack.next, ack.echo, ack.blocks.len() as u64];
            of.extend(ack.blocks.iter().flat_map(|block| [block.0, block.1]));
            self.push(now, TCP, 0, &of);
        }
    }

    /// What the programs do.
    fn act(&mut self, now: Nanos) {
        let inner = Rc::clone(&self.inner);
        let mut inner = inner.borrow_mut();
        if !self.sends {
            let ack = inner.receiver.timeout(now);
            self.acknowledge(now, ack);
            for ping in std::mem::take(&mut inner.pings) {
                self.push(now, ICMP, 100, &[ping]);
            }
            return;
        }
        inner.sender.timeout(now);
        while let Some(number) = inner.sender.poll(now) {
            self.push(now, TCP, MTU, &[number, now / MS]);
        }
        while self.next_ping <= now {
            self.push(now, ICMP, 100, &[self.next_ping]);
            inner.asked += 1;
            self.next_ping += PING_TIME;
        }
    }

    fn path(&mut self, now: Nanos, session: &Session) -> Path {
        if let Some((_, path)) = self.path.filter(|(at, _)| now < at + PATH_TIME) {
            return path;
        }
        let stats = session.stats();
        let (_, symbol_len) = session.block_shape(1);
        let header = Datagram {
            flow: 0,
            delivery: Delivery::Plain,
            len: usize::from(symbol_len),
        };
        let unfragmented = usize::from(symbol_len) - header.header_len();
        let rtt = Duration::from_nanos(stats.rtt);
        let path = Path::new(unfragmented, rtt, stats.plr, stats.pacing_rate);
        self.queue.suit(path.rtt);
        self.path = Some((now, path));
        path
    }
}

impl Carried for Tunnel {
    fn next_event(&self) -> Option<Nanos> {
        let inner = self.inner.borrow();
        match self.sends {
            true => [
                inner.sender.next_event(0).filter(|at| *at > 0),
                Some(self.next_ping),
            ]
            .into_iter()
            .flatten()
            .min(),
            false => inner.receiver.next_event(),
        }
    }

    fn hear(&mut self, now: Nanos, data: &[u8]) {
        let inner = Rc::clone(&self.inner);
        let mut inner = inner.borrow_mut();
        let of = words(data);
        match (data[9], self.sends) {
            (ICMP, true) => inner.answered.push(now - of[0]),
            (ICMP, false) => inner.pings.push(of[0]),
            (_, true) => {
                let blocks = of[3..].chunks_exact(2).map(|it| (it[0], it[1]));
                let ack = Ack {
                    next: of[0],
                    echo: of[1],
                    blocks: blocks.take(of[2] as usize).collect(),
                };
                inner.sender.acknowledge(now, &ack);
            }
            (_, false) => {
                let ack = inner.receiver.receive(now, of[0], of[1]);
                self.acknowledge(now, ack);
            }
        }
    }

    fn say(&mut self, now: Nanos, session: &Session, waiting: usize) -> Option<(Vec<u8>, SendAs)> {
        self.act(now);
        let path = self.path(now, session);
        if waiting > path.ahead {
            return None;
        }
        let departure = self.queue.pop(now)?;
        let manner = path.manner(u64::from(!self.sends), &departure);
        let send_as = SendAs {
            flow: manner.flow,
            kind: manner.ordered.then_some(FlowKind::Ordered),
            urgency: manner.urgency,
            life: manner.life.as_nanos() as Nanos,
            repair: match manner.together {
                true => RepairMode::Together,
                false => RepairMode::InTime,
            },
        };
        Some((departure.packet, send_as))
    }
}

/// What a run of the tunnel came to.
#[derive(Debug)]
struct Figures {
    /// Payload of the connection, of what the link lets through: over all of its time, and over the second half.
    share: f64,
    later: f64,
    /// IP bytes sent for each byte of the packets inside that have arrived.
    wire: f64,
    /// Times of echoes there and back, milliseconds.
    ping_p50: u64,
    ping_p99: u64,
    /// Of those that were asked for a second and longer ago.
    pings_lost: f64,
}

/// A connection over a link of `mbit` and `rtt_ms` that loses the share `mean`, for so many seconds from its beginning on.
fn run((mbit, rtt_ms): (u64, u64), (mean, loss): (f64, Loss), seconds: u64) -> Figures {
    const SEED: u64 = 1;
    let (forward, backward) = link(mbit, rtt_ms, loss, SEED);
    let mut pair = Scenario::new((forward, backward)).build();
    let inner = Rc::new(RefCell::new(Inner::default()));
    for side in 0..2 {
        pair.ends[side].carry(Box::new(Tunnel {
            inner: Rc::clone(&inner),
            sends: side == 0,
            queue: FqCodel::new(OUTBOX_BYTES_MAX, SEED),
            path: None,
            next_ping: 0,
        }));
    }
    pair.run_until(seconds * SEC / 2, |_| false);
    let first_half = inner.borrow().receiver.expected as f64;
    pair.run_until(seconds * SEC, |_| false);
    let inner = inner.borrow();
    let segments = inner.receiver.expected as f64;
    let share = |segments: f64, seconds: f64| {
        segments * ((MTU - HEADERS) * 8) as f64 / (seconds * mbit as f64 * 1e6 * (1.0 - mean))
    };
    let mut pings = inner.answered.clone();
    pings.sort_unstable();
    let at = |share: usize| pings.get(pings.len() * share / 100).map_or(0, |ns| ns / MS);
    let asked = inner.asked - SEC / PING_TIME;
    Figures {
        share: share(segments, seconds as f64),
        later: share(segments - first_half, seconds as f64 / 2.0),
        wire: pair.client().ip_bytes_sent as f64 / (segments * MTU as f64),
        ping_p50: at(50),
        ping_p99: at(99),
        pings_lost: 1.0 - (pings.len() as f64 / asked as f64).min(1.0),
    }
}

/// A connection inside fills most of what a lossy path lets through, and an echo beside it hardly waits but for its own losses.
/// `share`: of what the link lets through, over all of the time and over its second half; `late`: ms that one echo in a hundred waits at most.
fn assert_fills(
    link: (u64, u64),
    (mean, loss): (f64, Loss),
    seconds: u64,
    (share, later): (f64, f64),
    late: u64,
) {
    let figures = run(link, (mean, loss), seconds);
    println!("{link:?}, {mean} lost: {figures:?}");
    let (_, rtt) = link;
    assert!(
        figures.share >= share && figures.later >= later,
        "{figures:?}"
    );
    assert!(figures.wire <= 1.3, "{figures:?}");
    assert!(figures.ping_p50 <= rtt + 8, "{figures:?}");
    assert!(figures.ping_p99 <= rtt + late, "{figures:?}");
    assert!(figures.pings_lost <= 0.001, "{figures:?}");
}

fn random() -> (f64, Loss) {
    (0.06, Loss::Bernoulli(0.06))
}

fn bursts() -> (f64, Loss) {
    (
        0.05,
        Loss::GilbertElliott(GilbertElliott::bursts(0.05, 8.0)),
    )
}

// Each is a test of its own, so that they share the processors: together they are the longest test of the workspace.

#[test]
fn tcp_inside_fills_a_short_path_that_loses() {
    assert_fills((50, 10), random(), 30, (0.8, 0.85), 25);
}

#[test]
fn tcp_inside_fills_a_path_that_loses() {
    assert_fills((50, 100), random(), 30, (0.65, 0.7), 45);
}

#[test]
fn tcp_inside_fills_a_path_that_loses_in_bursts() {
    assert_fills((50, 100), bursts(), 30, (0.5, 0.6), 120);
}

#[test]
fn tcp_inside_fills_a_long_and_fast_path_that_loses() {
    assert_fills((200, 100), random(), 20, (0.5, 0.7), 45);
}

#[test]
fn tcp_inside_fills_a_fast_path_that_loses_in_bursts() {
    assert_fills((200, 50), bursts(), 20, (0.45, 0.6), 60);
}
