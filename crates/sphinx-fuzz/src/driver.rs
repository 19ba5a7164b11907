//! The driver that ships, against a peer that has the keys and says anything, under an application that
//! reads, writes and lets go as it likes, and with jobs that end late.
//!
//! What the core tells a driver is the business of [`session`](crate::session); here the oracles are outside:
//! the packets that leave, the data that is read, the memory that is held, and the time.

use std::collections::{BTreeMap, BTreeSet};

use sphinx_driver::{
    BufferPool, Driver, Executor, JobKind, Origin, Outbox, PacketProtection, Queues, Workshop,
};
use sphinx_proto::wire::{
    Blocks, ConnectionId, Fragment, Frame, FrameIter, HEADER_LEN, Header, MAX_SYMBOL_LEN, OVERHEAD,
    PREAMBLE_LEN, PacketKind, Preamble, Sack, WindowSpan,
};
use sphinx_proto::{Config, Nanos, Role, Session, Tuple};
use sphinx_sim::{Local, LocalSlicer, Plain, Rng};

use crate::Input;
use crate::session::{cid, config, place, without};

const MS: Nanos = 1_000_000;

/// Steps of one input.
const STEPS_MAX: u32 = 300;
/// Turns at one point in time before the driver counts as stuck.
const TURNS_MAX: u32 = 300;
/// Points in time at which it may want to be woken while nothing comes in.
const WAKES_MAX: u32 = 20_000;
/// Datagrams of the peer that may come again.
const REPEATED_MAX: usize = 32;

/// Ends jobs late, or at once.
struct Late {
    rng: Rng,
    max: [Nanos; 3],
}

impl Executor for Late {
    fn done_at(&mut self, now: Nanos, kind: JobKind) -> Option<Nanos> {
        let max = self.max[kind as usize];
        (max > 0).then(|| now + self.rng.below(max))
    }
}

/// What leaves, and what is wrong about it.
struct Wire {
    peer: Plain,
    next: u64,
    left_out: BTreeSet<u64>,
    len_max: usize,
    sent: Vec<Vec<u8>>,
}

impl Outbox for Wire {
    fn len_bytes(&self) -> usize {
        0
    }

    fn push(&mut self, _to: &Tuple, len: usize) -> &mut [u8] {
        assert!(len <= self.len_max, "too long");
        self.sent.push(vec![0xaa; len]);
        self.sent.last_mut().expect("just made")
    }
}

impl Wire {
    /// Every packet has a number of its own, opens, and is one that an honest end sends.
    fn check(&mut self) {
        for mut datagram in std::mem::take(&mut self.sent) {
            let header = self.peer.unprotect(&mut datagram).expect("a header");
            let number = self.next & !0xffff_ffff | u64::from(header.packet_number);
            assert!(number >= self.next, "a number is used again");
            // Numbers are left out one at a time.
            assert!(number <= self.next + 1, "more than one number is left out");
            self.left_out.extend(self.next..number);
            self.next = number + 1;
            let opened = self.peer.open(&header, number, &mut datagram, 0, 0);
            let body = &datagram[opened.expect("it is sealed")];
            match header.kind {
                PacketKind::Control => {
                    let is_probe = body.first() == Some(&1) && body[1..].iter().all(|b| *b == 0);
                    let frames = FrameIter::new(if is_probe { &body[..1] } else { body });
                    frames.for_each(|frame| assert!(frame.is_ok(), "a frame of its own"));
                }
                PacketKind::Fragment => assert!(Fragment::split(body).is_some()),
                PacketKind::Symbol => assert!(!body.is_empty()),
            }
        }
    }
}

/// A stream that the application reads in order.
#[derive(Default)]
struct Reading {
    at: u64,
    ended: bool,
}

struct Victim {
    driver: Driver<Plain, Late>,
    queues: Queues<Local>,
    workshop: Workshop,
    wire: Wire,
    now: Nanos,
    is_client: bool,
    recv_window: u64,
    idle_timeout: Nanos,
    /// Of the peer's packets.
    next_number: u64,
    came: Vec<Vec<u8>>,
    writers: BTreeMap<u16, LocalSlicer>,
    readers: BTreeMap<u16, Reading>,
    random: Rng,
    ids: Rng,
    opens_late: bool,
    has_ended: bool,
}

/// Runs one input.
pub fn hostile_peer(data: &[u8]) {
    let input = &mut Input::new(data);
    let mut victim = Victim::new(input);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        victim.step(input);
    }
    victim.fall_silent();
}

impl Victim {
    fn new(input: &mut Input<'_>) -> Self {
        let config: Config = config(input);
        let seed = input.number(2);
        let late = Late {
            rng: Rng::new(seed),
            max: [0, 1, 2].map(|_| input.pick(&[0, 0, MS, 50 * MS])),
        };
        let opens_late = late.max[JobKind::Open as usize] > 0;
        let is_client = config.role == Role::Client;
        let largest = MAX_SYMBOL_LEN + OVERHEAD;
        Self {
            wire: Wire {
                peer: Plain::default(),
                next: 0,
                left_out: BTreeSet::new(),
                len_max: largest.min(usize::from(config.peer_datagram_max)),
                sent: Vec::new(),
            },
            recv_window: config.recv_window,
            idle_timeout: config.idle_timeout,
            driver: Driver::new(Session::new(config, 0), Plain::default(), late, is_client),
            queues: Queues::new(is_client),
            // What others left in the memory of blocks shows.
            workshop: Workshop::new(BufferPool::new(1 << 20)),
            now: 0,
            is_client,
            next_number: 0,
            came: Vec::new(),
            writers: BTreeMap::new(),
            readers: BTreeMap::new(),
            random: Rng::new(seed ^ 1),
            ids: Rng::new(seed ^ 2),
            opens_late,
            has_ended: false,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        match kind & 0x0f {
            0..5 => self.symbol(input),
            5 | 6 => self.control(input),
            7 => self.again(input),
            8 | 9 => self.write(input),
            10 | 11 => self.read(input),
            12 => self.rare(input),
            _ => {
                let span = match input.byte() {
                    span @ 0..0xf0 => Nanos::from(span) * MS / 8,
                    _ => self.idle_timeout / 2,
                };
                self.wait(span);
            }
        }
        // The engine may be busy elsewhere.
        if kind & 0x80 == 0 {
            self.settle();
        }
    }

    // ---- the peer -----------------------------------------------------------------------------

    fn packet(&mut self, input: &mut Input<'_>, mut header: Header, body: &[u8]) {
        let flags = input.byte();
        self.next_number += u64::from(flags & 3);
        let number = self.next_number;
        self.next_number += 1;
        header.packet_number = number as u32;
        header.last_of_flight = flags & 4 != 0;
        let mut datagram = vec![0; body.len() + OVERHEAD];
        datagram[HEADER_LEN..][..body.len()].copy_from_slice(body);
        let sealed = Plain::default().seal(&header, number, &mut datagram);
        sealed.expect("any number is the first one");
        if self.came.len() < REPEATED_MAX {
            self.came.push(datagram.clone());
        }
        self.arrive(datagram, flags);
    }

    fn arrive(&mut self, mut datagram: Vec<u8>, flags: u8) {
        let from = if flags & 0xe0 == 0xe0 {
            flags >> 3 & 3
        } else {
            0
        };
        let origin = Origin {
            received_at: self.now,
            tuple: place(from),
            ecn: flags >> 3 & 3,
        };
        let before = self.driver.core().stats().packets_received;
        self.driver
            .handle_datagram(self.now, origin, &mut datagram, &mut self.workshop);
        assert!(self.driver.core().stats().packets_received <= before + 1);
        self.check_memory();
    }

    /// A packet comes again, or damaged: neither opens.
    fn again(&mut self, input: &mut Input<'_>) {
        let index = input.byte();
        let Some(mut datagram) = self.came.get(usize::from(index) % REPEATED_MAX).cloned() else {
            return;
        };
        let flags = input.byte();
        if flags & 1 != 0 {
            let bit = input.below(datagram.len() as u64 * 8) as usize;
            datagram[bit / 8] ^= 1 << (bit % 8);
        }
        let before = self.driver.core().stats().packets_received;
        self.arrive(datagram, flags);
        // Its first copy may be among the jobs that are not done yet.
        let opened = self.driver.core().stats().packets_received - before;
        assert!(opened == 0 || self.opens_late, "opened again");
    }

    fn symbol(&mut self, input: &mut Input<'_>) {
        let flags = input.byte();
        let stream = u16::from(flags & 3) * 2 + u16::from(self.is_client);
        let block = input.below(6) as u32;
        let (n, len) = match input.byte() {
            shape @ 0..0xc0 => ([1, 2, 3, 7, 20, 60][usize::from(shape & 7) % 6], 100),
            0xc0..0xf0 => (input.below(40) as u16 + 1, 20),
            _ => (input.below(1024) as u16 + 1, input.below(9100) as usize),
        };
        let code = match flags & 0x20 {
            0 => 0,
            _ => input.pick(&[1, 2, 1, 2, 3, 4, 5, 6, 63]),
        };
        let row = match input.byte() {
            row @ 0..0xc0 => u32::from(row),
            _ => input.number(3) as u32,
        };
        let header = Header {
            kind: PacketKind::Symbol,
            phase: false,
            last_of_flight: false,
            cid: cid(8),
            packet_number: 0,
            block,
            stream,
            code,
            n,
            row,
        };
        let mut symbol = vec![flags; len];
        if flags & 0x40 != 0 && row == 0 && len >= PREAMBLE_LEN {
            let preamble = Preamble {
                offset: u64::from(block) * input.below(2000),
                len: input.below(u64::from(n) * len as u64) as u32,
                end_of_stream: input.rarely(5),
            };
            symbol[..PREAMBLE_LEN].copy_from_slice(&preamble.encode());
        }
        if code == 6 {
            let upto = 1 + input.below(u64::from(n)) as u16;
            let Some(mut span) = WindowSpan::new(upto, n, len as u16) else {
                return;
            };
            for _ in 0..input.below(6) {
                span.extend(n, len as u16, usize::MAX);
            }
            let body = [span.encode(), vec![row as u8; span.symbol_len()]].concat();
            return self.packet(input, header, &body);
        }
        if flags & 0x90 != 0x90 {
            return self.packet(input, header, &symbol);
        }
        let part = input.byte();
        let fragment = Fragment {
            symbol_len: len as u16,
            index: part & 7,
            count: 2 + (part >> 3 & 7) % 7,
        };
        let range = match fragment.index < fragment.count {
            true => fragment.range(),
            false => 0..0,
        };
        let header = Header {
            kind: PacketKind::Fragment,
            ..header
        };
        let body = [&fragment.encode()[..], &symbol[range]].concat();
        self.packet(input, header, &body);
    }

    fn control(&mut self, input: &mut Input<'_>) {
        let header = Header::control(cid(8), 0, false);
        let mut body = Vec::new();
        match input.byte() {
            kind @ 0..0xa0 => {
                let newest = self.wire.next.saturating_sub(1);
                let high = newest.saturating_sub(u64::from(kind & 7));
                let low = high.saturating_sub(u64::from(input.byte()));
                let sack = Sack {
                    sequence: 0,
                    delay_us: 0,
                    time_us: self.now / 1000,
                    ect: 0,
                    ce: 0,
                    credit: input.pick(&[1 << 20, 1 << 30, 0, 2000]),
                    // To name a number that was left out ends the session: seldom.
                    ranges: match input.rarely(32) {
                        true => vec![(low, high)],
                        false => without(&[(low, high)], &self.wire.left_out),
                    },
                };
                Frame::Sack(sack).encode(&mut body);
                // A frame cannot name a block below its base.
                let base = input.below(6);
                let blocks = Blocks {
                    stream: u16::from(kind >> 3 & 3) * 2 + u16::from(!self.is_client),
                    base,
                    taken: input.any() >> 2,
                    complete: Vec::new(),
                    deficits: vec![(base + input.below(6), input.below(40) as u32)],
                };
                Frame::Blocks(blocks).encode(&mut body);
            }
            0xa0..0xc0 => Frame::Ping.encode(&mut body),
            0xc0..0xe0 => {
                let data = input.number(8).to_be_bytes();
                Frame::PathChallenge(data).encode(&mut body);
            }
            0xe0..0xf8 => {
                let len = usize::from(input.byte());
                body.extend_from_slice(input.take(len));
            }
            _ => Frame::Close {
                code: input.any() >> 2,
                reason: "enough",
            }
            .encode(&mut body),
        }
        self.packet(input, header, &body);
    }

    // ---- the application ----------------------------------------------------------------------

    fn write(&mut self, input: &mut Input<'_>) {
        let flags = input.byte();
        let id = u16::from(flags & 3) * 2 + u16::from(!self.is_client);
        let queues = &mut self.queues;
        if queues.has_ended() {
            return;
        }
        let slicer = self.writers.entry(id).or_insert_with(|| {
            queues.begin_sending(id);
            LocalSlicer::new(id)
        });
        if slicer.with(|slicer| slicer.is_finished()) || !queues.has_room(id) {
            return;
        }
        let shape = self.driver.core().block_shape(queues.writers());
        let pool = self.workshop.pool();
        let data = vec![flags; input.below(9000) as usize];
        let written = slicer.with(|slicer| slicer.write(self.now, &data, shape, pool));
        if written.begins {
            queues.watch(slicer.clone());
        }
        let block = written.block.or_else(|| match flags >> 4 {
            0..4 => slicer.with(|slicer| slicer.flush(pool)),
            4 => {
                queues.finish_sending(id);
                slicer.with(|slicer| slicer.finish(shape, pool))
            }
            _ => None,
        });
        if let Some(block) = block {
            queues.push(block);
        }
    }

    fn read(&mut self, input: &mut Input<'_>) {
        let flags = input.byte();
        let id = u16::from(flags & 3) * 2 + u16::from(self.is_client);
        if flags >= 0xf0 {
            self.readers.remove(&id);
            return self.queues.abandon(id, None);
        }
        let reading = self.readers.entry(id).or_default();
        while let Some(chunk) = self.queues.incoming(id).take_in_order() {
            assert!(!reading.ended, "data behind the end");
            assert_eq!(chunk.offset(), reading.at, "a gap");
            reading.at += chunk.data().len() as u64;
            reading.ended = chunk.end_of_stream();
            self.queues.release(chunk.into_slot());
        }
    }

    /// What happens to a session once or now and then.
    fn rare(&mut self, input: &mut Input<'_>) {
        match input.byte() {
            0..0x60 => self
                .driver
                .datagram_too_large(self.now, input.number(2) as usize),
            0x60..0xa0 => self.driver.local_address_lost(self.now),
            0xa0..0xe0 => self.driver.peer_refused(self.now),
            0xe0..0xfc => self.queues.close(input.any() >> 2, "done"),
            _ => self.driver.abandon(),
        }
    }

    // ---- the engine ---------------------------------------------------------------------------

    fn check_memory(&self) {
        let held = self.driver.receiving_cost();
        assert!(held <= self.recv_window, "over the window");
    }

    fn turn(&mut self) {
        self.driver.handle_timeout(self.now, &mut self.workshop);
        let pool = self.workshop.pool();
        self.driver.exchange(self.now, &mut self.queues, pool);
        let (random, ids) = (&mut self.random, &mut self.ids);
        let spare = || ConnectionId::new((ids.word() | 1).to_be_bytes()).expect("not zero");
        self.driver.supply(|| random.word().to_be_bytes(), spare);
        self.driver.take_retired();
        self.driver.take_path_changes();
        self.driver
            .transmit(self.now, usize::MAX, &mut self.workshop, &mut self.wire);
        self.wire.check();
        if let Some(end) = self.driver.poll_end() {
            assert!(!self.has_ended, "ended twice, then by {end:?}");
            self.has_ended = true;
            self.queues.end();
        }
        self.queues.take_changed();
        self.check_memory();
    }

    /// Everything that is due now.
    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            self.turn();
            let is_due = self.driver.poll_timeout().is_some_and(|at| at <= self.now);
            if !(self.queues.take_wanted() | is_due) {
                return;
            }
        }
        panic!("busy at {} ns", self.now);
    }

    /// Lets time pass as the driver asks for it.
    fn wait(&mut self, span: Nanos) {
        let until = self.now + span;
        for _ in 0..WAKES_MAX {
            self.settle();
            match self.driver.poll_timeout().filter(|at| *at <= until) {
                Some(at) => self.now = at,
                None => {
                    self.now = until;
                    return;
                }
            }
        }
        panic!("woken without end");
    }

    /// Nothing more comes: the session comes to its end by itself, and rests.
    fn fall_silent(&mut self) {
        let over = self.now + self.idle_timeout + 1000 * MS;
        for _ in 0..WAKES_MAX {
            self.settle();
            let Some(at) = self.driver.poll_timeout() else {
                break;
            };
            assert!(at <= over || self.driver.is_finished(), "goes on for ever");
            self.now = at;
        }
        assert!(self.driver.is_finished());
    }
}
