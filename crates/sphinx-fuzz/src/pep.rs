//! An agent for TCP, with any packets at any time, and the messages that packets come in.

use etherparse::{PacketBuilder, TcpHeader};
use sphinx_netdev::nfqueue::read;
use sphinx_pep::{
    Agent, Config, FlowKey, Key, Laws, Place, Profile, Radio, Side, Stage,
    acks::{AckCc, AckFilter, Mark, MarkOpener, MarkSealer, Marks, Mode, ReturnQueue},
    eln::{LossReport, Opener, Sealer},
    handoff::{self, Handover, Move},
    rdb::{self, Rdb, Response, Thin},
    returning::Returning,
    rsfc::{self, Rsfc},
};

use crate::Input;

/// The most that all flows may take.
const MEMORY_BYTES_MAX: usize = 64 << 20;

/// Segments of a few connections, right and wrong ones, from either side, with time passing, an agent that is late
/// or gets other settings: the laws hold, memory is bounded, timers come to rest.
pub fn agent(data: &[u8]) {
    let input = &mut Input::new(data);
    let mut driver = Driver {
        agent: Agent::new(config(input)),
        laws: Laws::default(),
        now: 0,
        told: Vec::new(),
    };
    let mut packets = 0_usize;
    while !input.is_empty() && packets < 300 {
        packets += 1;
        let kind = input.byte();
        let from = match kind & 1 {
            0 => Side::Fixed,
            _ => Side::Mobile,
        };
        if kind >= 0xf0 {
            driver.move_mobile((kind >> 1 & 7) | (packets as u8) << 3);
        }
        if input.rarely(4) {
            driver.pass_time(input.number(4));
        }
        if input.rarely(64) {
            driver.agent.handle_lag(driver.now, input.number(3));
            driver.take();
        }
        if input.rarely(128) {
            driver.agent.reconfigure(driver.now, config(input));
            driver.take();
        }
        if input.rarely(32) {
            let report = report(input);
            driver.agent.handle_report(driver.now, &report);
            let mark = Mark { flow: report.flow };
            driver.agent.handle_mark(driver.now, &mark);
            driver.take();
        }
        let packet = match input.rarely(16) {
            true => input.take(60).to_vec(),
            false => segment(input, from),
        };
        if kind & 14 == 14 && driver.passes_joined(from, &packet) {
            continue;
        }
        driver.put(from, packet);
    }
    driver.rest();
}

fn config(input: &mut Input<'_>) -> Config {
    let kind = input.byte();
    let path = if kind & 128 != 0 { input.byte() } else { 0 };
    Config {
        ack_cc: (path & 1 != 0).then(|| ack_cc(input, path)),
        returning: [
            Returning::Pass,
            Returning::Reconstruct,
            Returning::NoLimitedTransmit,
            Returning::Reconstruct,
        ][usize::from(path >> 4 & 3)],
        pace: path & 64 != 0,
        stage: match kind & 64 {
            // Only acknowledgements are of interest.
            0 if kind & 128 != 0 && kind & 3 == 3 => Stage::Pass,
            0 => {
                Stage::Snoop([Profile::Sack, Profile::Classic, Profile::Ll][usize::from(kind % 3)])
            }
            _ => Stage::Rdb(thin(input)),
        },
        radio: (kind & 4 != 0).then(|| Radio {
            bits_per_second: input.any(),
            queue_bytes: input.number(2) as usize,
        }),
        dry_run: kind & 8 != 0,
        place: match kind & 16 {
            0 => Place::Base,
            _ => Place::Mobile,
        },
        reports: kind & 32 != 0,
        rsfc: (kind & 132 == 132).then(|| Rsfc {
            mode: match path & 128 {
                0 => rsfc::Mode::Rsfc,
                _ => rsfc::Mode::Rledbat,
            },
            target_ns: (kind & 1 != 0).then(|| input.number(3)),
        }),
        ack_filter: (kind & 128 != 0).then(|| ack_filter(input)),
        ..Config::default()
    }
}

fn ack_cc(input: &mut Input<'_>, path: u8) -> AckCc {
    let queue = (path & 2 != 0).then(|| return_queue(input, path));
    let mark_ns = input.number(3);
    AckCc {
        queue,
        mark_ns,
        most: u32::from(path >> 3),
        marks: [Marks::Own, Marks::Own, Marks::Tell, Marks::Hear][mark_ns as usize & 3],
    }
}

fn ack_filter(input: &mut Input<'_>) -> AckFilter {
    let kind = input.byte();
    AckFilter {
        queue: (kind & 1 == 0).then(|| return_queue(input, kind)),
        every_ns: (kind & 16 != 0).then(|| input.number(4)),
    }
}

fn return_queue(input: &mut Input<'_>, kind: u8) -> ReturnQueue {
    let modes = [Mode::Aggressive, Mode::Conservative, Mode::Ns2, Mode::Keep];
    ReturnQueue {
        bits_per_second: input.number(3),
        bytes: input.number(2) as usize,
        acks_first: kind & 2 != 0,
        mode: modes[usize::from(kind >> 2 & 3)],
    }
}

fn thin(input: &mut Input<'_>) -> Rdb {
    let (kind, limit) = (input.byte(), input.byte());
    Rdb {
        mode: match kind & 1 {
            0 => rdb::Mode::Paper,
            _ => rdb::Mode::Auto,
        },
        thin: [Thin::Always, Thin::Dpifl, Thin::Spifl(3)][usize::from(kind >> 1 & 3) % 3],
        max_packets: u32::from(kind >> 3 & 3),
        max_bytes: usize::from(limit & 15) * 100,
        response: [
            Response::Auto,
            Response::Ecn,
            Response::Window,
            Response::None,
        ][usize::from(kind >> 5 & 3)],
        max_extra: (limit & 16 != 0).then(|| input.any()),
        ..Rdb::default()
    }
}

/// What a base station may say of one of the flows.
fn report(input: &mut Input<'_>) -> LossReport {
    let flow = FlowKey {
        fixed: ([10, 0, 0, 1], 1000).into(),
        mobile: ([10, 0, 0, 2], 80).into(),
    };
    let mut number = || (u32::MAX - 1000).wrapping_add(u32::from(input.byte()) * 16);
    LossReport {
        flow,
        ranges: vec![(number(), number()), (number(), number())],
    }
}

/// Datagrams that pretend to be reports; none is, as nobody guesses the key.
pub fn reports(data: &[u8]) {
    let key = Key::new([7; 32]);
    let mut opener = Opener::new(key.clone(), 1);
    assert_eq!(opener.open(1, data), None);
    // What is behind the seal is read with care too.
    let report = LossReport {
        flow: FlowKey {
            fixed: ([10, 0, 0, 1], 1000).into(),
            mobile: ([10, 0, 0, 2], 80).into(),
        },
        ranges: data
            .as_chunks::<4>()
            .0
            .iter()
            .map(|it| (u32::from_be_bytes(*it), u32::from_le_bytes(*it)))
            .take(32)
            .collect(),
    };
    assert_eq!(
        opener.open(1, &Sealer::new(key, 1).seal(1, &report)),
        Some(report)
    );
}

/// Messages on flows of which another agent tells, and datagrams that pretend to be such; none is, as nobody guesses the key.
pub fn handovers(data: &[u8]) {
    let key = Key::new([7; 32]);
    let mut opener = handoff::Opener::new(key.clone(), 1);
    assert_eq!(opener.open(1, data), None);
    // What is behind the seal is read with care too, and there is one way to write it.
    let Some(message) = Handover::read(data) else {
        return;
    };
    let mut written = Vec::new();
    message.write(&mut written);
    assert_eq!(written, data);
    let sealed = handoff::Sealer::new(key, 1).seal(1, &message);
    assert_eq!(opener.open(1, &sealed).as_ref(), Some(&message));
}

/// Marks of flows from another agent, and datagrams that pretend to be such; none is, as nobody guesses the key.
pub fn marks(data: &[u8]) {
    let key = Key::new([7; 32]);
    let mut opener = MarkOpener::new(key.clone(), 1);
    assert_eq!(opener.open(1, data), None);
    // What is behind the seal is read with care too, and there is one way to write it.
    let Some(mark) = Mark::read(data) else {
        return;
    };
    let mut written = Vec::new();
    mark.write(&mut written);
    assert_eq!(written, data);
    let sealed = MarkSealer::new(key, 1).seal(1, &mark);
    assert_eq!(opener.open(1, &sealed), Some(mark));
    assert_eq!(opener.open(1, &sealed), None);
}

/// Messages of the packet filter's queue: packets are parts of them, in order.
pub fn queue(data: &[u8]) {
    let mut end = 0;
    read(data, |queued| {
        let start = queued
            .packet
            .as_ptr()
            .addr()
            .saturating_sub(data.as_ptr().addr());
        if !queued.packet.is_empty() {
            assert!(start >= end && start + queued.packet.len() <= data.len());
            end = start + queued.packet.len();
        }
    });
}

struct Driver {
    agent: Agent,
    laws: Laws,
    now: u64,
    /// Messages on flows, which come back from an agent that was told of them.
    told: Vec<Handover>,
}

impl Driver {
    /// A mobile host leaves, may leave or comes, or another agent tells of its flows.
    fn move_mobile(&mut self, what: u8) {
        let mobile = match what & 1 {
            0 => [10, 0, 0, 2].into(),
            _ => [2; 16].into(),
        };
        let peer = ([10, 0, 0, 7], 7750).into();
        let (now, agent) = (self.now, &mut self.agent);
        match what >> 1 & 3 {
            0 => _ = agent.hand_over(now, mobile, peer, Move::Prefill),
            1 => _ = agent.hand_over(now, mobile, peer, Move::Leave),
            2 => _ = agent.arrived(now, mobile),
            _ => {
                let which = usize::from(what >> 3) % self.told.len().max(1);
                if let Some(message) = self.told.get(which) {
                    agent.handle_handover(now, message);
                }
            }
        }
        self.take();
    }

    /// A packet comes that may be of several segments: whether it is to go on as it is.
    fn passes_joined(&mut self, from: Side, packet: &[u8]) -> bool {
        let passes = self.agent.pass_joined(self.now, from, packet);
        assert_eq!(self.agent.poll_output(), None);
        passes
    }

    fn put(&mut self, from: Side, packet: Vec<u8>) {
        let packet = packet.into();
        self.laws.input(from, &packet);
        self.agent.handle_packet(self.now, from, packet);
        self.take();
    }

    fn take(&mut self) {
        while let Some(output) = self.agent.poll_output() {
            if let Err(law) = self.laws.output(&output) {
                panic!("{law}: {output:?}");
            }
        }
        while let Some(report) = self.agent.poll_report() {
            assert!((1..=32).contains(&report.ranges.len()));
        }
        while self.agent.poll_mark().is_some() {}
        while let Some((_, message)) = self.agent.poll_handover() {
            // Enough for all kinds of them.
            if self.told.len() < 64 {
                self.told.push(message);
            }
        }
        assert!(self.agent.memory_bytes() <= MEMORY_BYTES_MAX);
    }

    fn pass_time(&mut self, ns: u64) {
        let end = self.now + ns;
        let mut calls = 0;
        while let Some(at) = self.agent.next_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.agent.handle_timeout(self.now);
            self.take();
            calls += 1;
            // Two flows with ten repairs of each of some packets, and a queue.
            assert!(calls < 100_000, "no rest at {}", self.now);
        }
        self.now = end;
    }

    /// Without packets, all timers end.
    fn rest(&mut self) {
        let mut calls = 0;
        while let Some(at) = self.agent.next_timeout().filter(|at| *at < u64::MAX / 8) {
            self.now = self.now.max(at);
            self.agent.handle_timeout(self.now);
            self.take();
            calls += 1;
            assert!(calls < 100_000, "no rest at {}", self.now);
        }
    }
}

/// A segment whose numbers are near to those of others, of one of two flows; often with a right checksum.
fn segment(input: &mut Input<'_>, from: Side) -> Vec<u8> {
    let flags = input.byte();
    let shape = input.byte();
    let port = 1000 + u16::from(shape & 1);
    let base = u32::MAX - 1000;
    let (own, other) = match from {
        Side::Fixed => ((1, port), (2, 80)),
        Side::Mobile => ((2, 80), (1, port)),
    };
    let number = |input: &mut Input<'_>| base.wrapping_add(u32::from(input.byte()) * 16);
    let mut header = TcpHeader::new(own.1, other.1, number(input), 1);
    (header.syn, header.fin, header.rst) = (flags & 1 != 0, flags & 6 == 6, flags & 0x18 == 0x18);
    header.ack = flags & 0x20 == 0;
    header.ece = flags & 0xc0 == 0xc0;
    header.cwr = match header.syn {
        true => header.ece && !header.ack,
        false => flags & 0xc0 == 0x40,
    };
    header.acknowledgment_number = number(input);
    header.window_size = u16::from(shape >> 6) << (shape >> 2 & 12);
    let mut options = Vec::new();
    if header.syn {
        options.extend([1, 1, 4, 2]);
        if shape & 4 != 0 {
            options.extend([2, 4, 5, 180]);
        }
    }
    if flags & 0xc0 == 0x80 {
        options.extend([1, 1, 8, 10]);
        options.extend(number(input).to_be_bytes());
        options.extend(number(input).to_be_bytes());
    }
    if shape & 2 != 0 {
        let blocks = input.below(4) as u8;
        options.extend([1, 1, 5, 2 + 8 * blocks]);
        for _ in 0..2 * blocks {
            options.extend(number(input).to_be_bytes());
        }
    }
    if input.rarely(16) {
        let length = input.below(8) as usize;
        options.extend(input.take(length));
    }
    options.truncate(40);
    if header.set_options_raw(&options).is_err() {
        return Vec::new();
    }
    // The same bytes whenever a place of the stream is sent.
    let first = header.sequence_number;
    let byte = |n: u32| (first.wrapping_add(n).wrapping_mul(2_654_435_761) >> 24) as u8;
    let payload: Vec<u8> = (0..u32::from(shape >> 2 & 15) * 16).map(byte).collect();
    let mut packet = Vec::new();
    let builder = match shape & 1 {
        0 => PacketBuilder::ipv4([10, 0, 0, own.0], [10, 0, 0, other.0], 9),
        _ => PacketBuilder::ipv6([own.0; 16], [other.0; 16], 9),
    };
    let builder = builder.tcp_header(header);
    if builder.write(&mut packet, &payload).is_err() {
        return Vec::new();
    }
    if input.rarely(32) {
        let at = input.below(packet.len() as u64) as usize;
        packet[at] ^= input.byte();
    }
    packet
}
