//! One end: what an engine and its application do in a turn, with a meter.

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use sphinx_driver::keys::{Keys, OpenError, Permit, SealError};
use sphinx_driver::{
    Application, BufferPool, Driver, OpenPacket, Origin, Outbox, POOL_BYTES, PacketProtection,
    PoolBuffer, Queues, SealPacket, SharedSlicer, Slicer, Workshop,
};
use sphinx_net::{
    Counters, Destination, DropReason, Dropped, Ecn, PacketIo, PacketRx, PacketTx, TURN_RECEIVES,
};
use sphinx_proto::wire::{ConnectionId, Header};
use sphinx_proto::{Config, Nanos, PacketNumber, PathId, Role, Session, StreamId, Time, Tuple};

use crate::meter::{Meter, Stage};
use crate::workers::Coding;

/// Bytes that the application writes at once.
const WRITE_BYTES: usize = 64 << 10;

/// Measures the packet protection within the driver.
struct Metered {
    keys: Keys,
    meter: Rc<Meter>,
}

impl PacketProtection for Metered {
    /// A measured session has one path.
    fn of_path(&self, _: PathId) -> Option<Self> {
        None
    }

    fn seal(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        let keys = &mut self.keys;
        self.meter.measure(Stage::Seal, || {
            PacketProtection::seal(keys, header, packet_number, datagram)
        })
    }

    fn seal_from(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        body: &[u8],
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        let keys = &mut self.keys;
        self.meter.measure(Stage::Seal, || {
            PacketProtection::seal_from(keys, header, packet_number, body, datagram)
        })
    }

    fn seal_run(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        bodies: (&[u8], usize),
        datagrams: &mut [u8],
    ) -> Result<(), SealError> {
        let keys = &mut self.keys;
        self.meter.measure(Stage::Seal, || {
            PacketProtection::seal_run(keys, header, packet_number, bodies, datagrams)
        })
    }

    fn permit(&mut self, packet_number: PacketNumber) -> Result<Permit, SealError> {
        self.keys.permit(packet_number)
    }

    fn sealing(&self) -> Arc<dyn SealPacket> {
        self.keys.sealing()
    }

    fn acked(&mut self, packet_number: PacketNumber) {
        self.keys.acked(packet_number);
    }

    fn wants_answer(&self) -> bool {
        self.keys.wants_answer()
    }

    fn unprotect(&self, datagram: &mut [u8]) -> Option<Header> {
        let keys = &self.keys;
        self.meter
            .measure(Stage::Unprotect, || keys.unprotect(datagram))
    }

    fn unprotect_all(&self, datagrams: &mut [u8], stride: usize) {
        let keys = &self.keys;
        self.meter
            .measure(Stage::Unprotect, || keys.unprotect_all(datagrams, stride));
    }

    fn open(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        datagram: &mut [u8],
        now: Time,
        pto: Nanos,
    ) -> Result<Range<usize>, OpenError> {
        let keys = &mut self.keys;
        self.meter.measure(Stage::Open, || {
            PacketProtection::open(keys, header, packet_number, datagram, now, pto)
        })
    }

    fn open_into(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        packet: (&[u8], &mut [u8]),
        now: Time,
        pto: Nanos,
    ) -> Result<(), OpenError> {
        let keys = &mut self.keys;
        self.meter.measure(Stage::Open, || {
            PacketProtection::open_into(keys, header, packet_number, packet, now, pto)
        })
    }

    fn choose(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        now: Time,
    ) -> Result<u64, OpenError> {
        self.keys.choose(header, packet_number, now)
    }

    fn opening(&self, epoch: u64) -> Option<Arc<dyn OpenPacket>> {
        self.keys.opening(epoch)
    }

    fn note(
        &mut self,
        epoch: u64,
        packet_number: PacketNumber,
        is_open: bool,
        now: Time,
        pto: Nanos,
    ) -> Result<(), OpenError> {
        self.keys.note(epoch, packet_number, is_open, now, pto)
    }
}

/// An application in the same thread, which looks by itself.
struct Here;

impl Application for Here {
    type Signal = ();
    type Slicer = HereSlicer;
}

#[derive(Clone)]
struct HereSlicer(Rc<RefCell<Slicer>>);

impl SharedSlicer for HereSlicer {
    fn try_with<R>(&self, look: impl FnOnce(&mut Slicer) -> R) -> Option<R> {
        Some(look(&mut self.0.borrow_mut()))
    }
}

/// Which packets are thrown away before anybody looks at them.
pub(crate) struct Loss {
    /// Of 2^64 packets, so many are thrown away.
    lost: u64,
    /// A sequence without a pattern (splitmix64).
    state: u64,
}

impl Loss {
    pub(crate) fn new(loss: f64) -> Self {
        Self {
            lost: (loss.clamp(0.0, 1.0) * u64::MAX as f64) as u64,
            state: 1,
        }
    }

    fn is_none(&self) -> bool {
        self.lost == 0
    }

    fn loses(&mut self) -> bool {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31) < self.lost
    }
}

/// Frames of the socket.
struct Frames<'a, Tx> {
    tx: &'a mut Tx,
    /// Where a packet goes for which there is no frame.
    lost: Vec<u8>,
}

impl<Tx: PacketTx> Outbox for Frames<'_, Tx> {
    fn len_bytes(&self) -> usize {
        self.tx.taken_bytes()
    }

    fn push(&mut self, to: &Tuple, _ecn: u8, len: usize) -> &mut [u8] {
        match self.tx.frame(&destination(to), len) {
            Some(frame) => frame,
            None => {
                self.lost.resize(len, 0);
                &mut self.lost
            }
        }
    }

    fn push_run(&mut self, to: &Tuple, _ecn: u8, len: usize, most: usize) -> &mut [u8] {
        match self.tx.frames(&destination(to), len, most) {
            Some(frames) => frames,
            None => {
                self.lost.resize(len, 0);
                &mut self.lost
            }
        }
    }

    fn push_sealed(
        &mut self,
        to: &Tuple,
        _ecn: u8,
        memory: PoolBuffer,
        lens: &mut dyn Iterator<Item = usize>,
    ) -> usize {
        self.tx.take_over(&destination(to), Box::new(memory), lens)
    }
}

fn destination(to: &Tuple) -> Destination {
    Destination {
        remote: to.remote,
        local_ip: to.local_ip,
        ecn: Ecn::NotEct,
    }
}

/// The connection id of this number, below 2^32.
pub(crate) fn id(number: u64) -> ConnectionId {
    ConnectionId::new((number | 1 << 56).to_be_bytes()).expect("its first byte is 1")
}

/// One of the two ends of the measured session.
pub(crate) struct End<'a, Io> {
    pub(crate) meter: Rc<Meter>,
    /// Bytes that its application has read.
    pub(crate) received: u64,
    role: Role,
    driver: Driver<Metered, Coding>,
    workshop: Workshop,
    queues: Queues<Here>,
    io: &'a mut Io,
    /// Most bytes that it sends in a turn.
    turn_bytes: usize,
    begin: Instant,
    slicer: Option<(StreamId, HereSlicer)>,
    data: Vec<u8>,
    ids: u64,
}

impl<'a, Io: PacketIo> End<'a, Io> {
    /// Its packets are coded as workers do it, or in place.
    pub(crate) fn new(
        (config, keys, meter): (Config, Keys, Meter),
        (io, turn_bytes): (&'a mut Io, usize),
        workers: bool,
    ) -> Self {
        let (role, streams) = (config.role, config.recv_streams);
        let meter = Rc::new(meter);
        let pool = BufferPool::new(POOL_BYTES);
        let coding = match workers {
            true => Coding::apart(&pool, &meter),
            false => Coding::in_place(),
        };
        let metered = Metered {
            keys,
            meter: Rc::clone(&meter),
        };
        let session = Session::new(config, Time::ZERO);
        Self {
            meter,
            received: 0,
            role,
            driver: Driver::new(session, metered, coding, role == Role::Client),
            workshop: Workshop::new(pool),
            queues: Queues::new(role, streams),
            io,
            turn_bytes,
            begin: Instant::now(),
            slicer: None,
            data: (0..WRITE_BYTES)
                .map(|at| (at * 7 + at / 251) as u8)
                .collect(),
            ids: 2,
        }
    }

    /// Its application opens the stream.
    pub(crate) fn open(&mut self) {
        let stream = self.queues.open_uni();
        self.slicer = stream.map(|stream| {
            let slicer = Rc::new(RefCell::new(Slicer::new(stream)));
            (stream, HereSlicer(slicer))
        });
    }

    /// Its application writes until there is no room.
    pub(crate) fn write(&mut self) -> io::Result<()> {
        let now = self.now();
        let shape = self.driver.core().block_shape(self.queues.writers());
        let Some((stream, slicer)) = &self.slicer else {
            return Err(io::Error::other("there is no stream"));
        };
        while self.queues.has_room(*stream) {
            let pool = self.workshop.pool();
            let written = self.meter.measure(Stage::Slice, || {
                slicer.0.borrow_mut().write(now, &self.data, shape, pool)
            });
            if written.begins {
                self.queues.watch(slicer.clone());
            }
            if let Some(piece) = written.piece {
                self.queues.push(piece);
            }
        }
        Ok(())
    }

    /// Its application takes what is there.
    pub(crate) fn read(&mut self) {
        let stream = StreamId::new(self.role.other(), 0);
        while let Some(chunk) = self.queues.incoming(stream).take_in_order() {
            self.received += chunk.data().len() as u64;
            self.queues.release(chunk.into_taken());
        }
    }

    /// One turn of an engine; how many packets it received and sent.
    pub(crate) fn turn(&mut self, loss: &mut Loss) -> io::Result<u64> {
        let before = self.packets();
        for _ in 0..TURN_RECEIVES {
            if self.receive(loss)? == 0 {
                break;
            }
        }
        let now = self.now();
        let (driver, workshop) = (&mut self.driver, &mut self.workshop);
        self.meter
            .measure(Stage::Timers, || driver.handle_timeout(now, workshop));
        let stage = match self.role {
            Role::Client => Stage::HandOver,
            Role::Server => Stage::Deliver,
        };
        let (queues, pool) = (&mut self.queues, self.workshop.pool());
        self.meter
            .measure(stage, || driver.exchange(now, queues, pool));
        self.supply();
        let now = self.now();
        let mut out = Frames {
            tx: self.io.tx(),
            lost: Vec::new(),
        };
        let (driver, workshop) = (&mut self.driver, &mut self.workshop);
        self.meter.measure(Stage::Encode, || {
            driver.transmit(now, self.turn_bytes, workshop, &mut out);
        });
        let tx = self.io.tx();
        if tx.taken_bytes() > 0 {
            let mut dropped = Vec::new();
            self.meter.measure(Stage::Send, || tx.flush(&mut dropped))?;
            self.heed(&dropped);
        }
        Ok(self.packets() - before)
    }

    fn receive(&mut self, loss: &mut Loss) -> io::Result<usize> {
        let io = &mut *self.io;
        let count = self.meter.measure(Stage::Receive, || io.rx().recv())?;
        let now = self.now();
        for index in 0..count {
            let Some(received) = self.io.rx().received(index) else {
                break;
            };
            let origin = Origin {
                received_at: now,
                tuple: Tuple {
                    remote: received.remote,
                    local_ip: received.local_ip,
                },
                ecn: received.ecn.bits(),
            };
            let (len, stride) = (received.payload.len(), received.stride);
            if loss.is_none() && self.driver.takes_joined(len) {
                let mut memory = self.workshop.take_memory();
                if self.io.rx().exchange(index, &mut memory) {
                    let (driver, workshop) = (&mut self.driver, &mut self.workshop);
                    self.meter.measure(Stage::Place, || {
                        driver.handle_joined(now, origin, (memory, len, stride), workshop);
                    });
                    continue;
                }
                self.workshop.keep_memory(memory);
            }
            let Some(mut received) = self.io.rx().received(index) else {
                break;
            };
            let (driver, workshop) = (&mut self.driver, &mut self.workshop);
            if loss.is_none() {
                self.meter.measure(Stage::Place, || {
                    driver.handle_segments(now, origin, (received.payload, stride), workshop);
                });
                continue;
            }
            for datagram in received.segments() {
                if loss.loses() {
                    continue;
                }
                self.meter.measure(Stage::Place, || {
                    driver.handle_datagram(now, origin, datagram, workshop);
                });
            }
        }
        Ok(count)
    }

    fn heed(&mut self, dropped: &[(Destination, Dropped)]) {
        let now = self.now();
        for (_, dropped) in dropped {
            if dropped.reason == DropReason::TooLarge {
                self.driver
                    .datagram_too_large(now, None, dropped.segment_size);
            }
        }
    }

    fn supply(&mut self) {
        let ids = &mut self.ids;
        let spare = || {
            *ids += 1;
            (id(*ids), None)
        };
        // A constant is random enough: nobody on loopback guesses.
        self.driver.supply(|| [7; 8], spare);
    }

    /// An error if the session is over.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        match self.driver.poll_end() {
            None => Ok(()),
            Some(end) => Err(io::Error::other(format!("the session has ended: {end:?}"))),
        }
    }

    pub(crate) fn sent(&self) -> Counters {
        self.io.counters()
    }

    fn packets(&self) -> u64 {
        let counters = self.io.counters();
        counters.recv_datagrams + counters.send_datagrams
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.begin.elapsed().as_nanos() as u64)
    }
}
