//! One session inside the engine: the protocol core, its keys, and the memory that its slots name.

use std::collections::BTreeMap;
use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant};

use sphinx_fec::{BlockDecoder, CodeId, Encoder, Repair, Row, bits};
use sphinx_net::{BufferPool, Destination, DropReason, Dropped, Ecn, PoolBuffer, SendQueue};
use sphinx_proto::wire::{
    ConnectionId, FRAGMENT_PREFIX_LEN, Fragment, HEADER_LEN, Header, OVERHEAD, PacketKind, Preamble,
    expand_packet_number,
};
use sphinx_proto::{
    Content, Event, Job, Nanos, PacketMeta, Placement, Session, Slot, Transmit, Tuple,
};

use crate::error::{Error, ErrorKind};
use crate::keys::{Arrival, Opener, ReplayWindow, SealError, Sealer};
use crate::options::Options;
use crate::routes::Source;
use crate::shared::{Chunk, PAUSE, ReadyBlock, Shared};
use crate::stats::Stats;

/// How often the application's view of the counters is renewed.
const STATS_INTERVAL: Nanos = 5_000_000;

/// Working memory that all sessions of an engine share.
pub(crate) struct Workshop {
    pub(crate) pool: BufferPool,
    pub(crate) encoder: Encoder,
    pub(crate) decoder: BlockDecoder,
    pub(crate) queue: SendQueue,
    /// A repair symbol of which parts are sent.
    pub(crate) symbol: Vec<u8>,
    pub(crate) segments_max: usize,
}

/// A block being sent.
struct TxBlock {
    memory: PoolBuffer,
    n: usize,
    symbol_len: usize,
    data_len: u32,
}

/// A block being received.
struct RxBlock {
    memory: PoolBuffer,
    n: usize,
    symbol_len: usize,
    /// Source symbols that arrived.
    have: Vec<u64>,
    repairs: Vec<(CodeId, Row, PoolBuffer)>,
}

/// Puts the blocks of one stream in order (the paper's Data Assembler).
#[derive(Default)]
struct Assembler {
    next_block: u64,
    next_offset: u64,
    ended: bool,
    waiting: BTreeMap<u64, Slot>,
}

/// Bytes and packets of the control plane that belong to this session.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ControlTraffic {
    pub(crate) ip_bytes_sent: u64,
    pub(crate) packets_sent: u64,
    pub(crate) ip_bytes_received: u64,
}

/// Where and when a datagram came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) received_at: Nanos,
    pub(crate) tuple: Tuple,
    pub(crate) ecn: Ecn,
}

pub(crate) struct Association {
    core: Session,
    sealer: Sealer,
    opener: Opener,
    replay: ReplayWindow,
    source: Source,
    retired: Vec<ConnectionId>,
    /// Symbols of which parts have arrived, by place.
    parts: Vec<Vec<u8>>,
    shared: Arc<Shared>,
    tx: Vec<Option<TxBlock>>,
    tx_free: Vec<Slot>,
    rx: Vec<Option<RxBlock>>,
    assemblers: BTreeMap<u16, Assembler>,
    invalid: u64,
    replayed: u64,
    bytes_delivered: u64,
    bytes_received: u64,
    pub(crate) control: ControlTraffic,
    started: Nanos,
    stats_at: Nanos,
    stats_names: Stats,
}

impl Association {
    pub(crate) fn new(
        core: Session,
        sealer: Sealer,
        opener: Opener,
        source: Source,
        shared: Arc<Shared>,
        options: &Options,
        started: Nanos,
    ) -> Self {
        let stats_names = Stats {
            cc: options.cc.name(),
            codec: options.codec.name(),
            profile: options.profile.name(),
            io: "udp",
            ..Stats::default()
        };
        Self {
            core,
            sealer,
            opener,
            replay: ReplayWindow::new(),
            source,
            retired: Vec::new(),
            parts: Vec::new(),
            shared,
            tx: Vec::new(),
            tx_free: Vec::new(),
            rx: Vec::new(),
            assemblers: BTreeMap::new(),
            invalid: 0,
            replayed: 0,
            bytes_delivered: 0,
            bytes_received: 0,
            control: ControlTraffic::default(),
            started,
            stats_at: 0,
            stats_names,
        }
    }

    // ---- receiving ----------------------------------------------------------------------------

    /// A data-plane datagram with this session's connection id.
    pub(crate) fn handle_datagram(
        &mut self,
        now: Nanos,
        origin: Origin,
        datagram: &mut [u8],
        workshop: &mut Workshop,
    ) {
        let Some(header) = self.opener.unprotect(datagram) else {
            self.invalid += 1;
            return;
        };
        let packet_number = expand_packet_number(header.packet_number, self.replay.expected());
        match self.replay.check(packet_number) {
            Arrival::New => {}
            Arrival::Replay | Arrival::Late => {
                self.replayed += 1;
                return;
            }
        }
        let pto = self.core.probe_timeout();
        let Ok(body) = self.opener.open(&header, packet_number, datagram, now, pto) else {
            self.invalid += 1;
            return;
        };
        self.replay.commit(packet_number);
        let meta = PacketMeta {
            now,
            received_at: origin.received_at,
            packet_number,
            cid: header.cid,
            tuple: origin.tuple,
            ecn: origin.ecn.bits(),
            datagram_len: datagram.len(),
            last_of_flight: header.last_of_flight,
        };
        let body = &datagram[body];
        match header.kind {
            PacketKind::Control => self.core.handle_control(&meta, body),
            PacketKind::Symbol => self.handle_symbol(&meta, &header, body, workshop),
            PacketKind::Fragment => self.handle_fragment(&meta, &header, body, workshop),
        }
    }

    fn handle_symbol(
        &mut self,
        meta: &PacketMeta,
        header: &Header,
        symbol: &[u8],
        workshop: &mut Workshop,
    ) {
        let placement = self.core.handle_symbol(meta, header, symbol.len());
        self.place(placement, symbol, workshop);
    }

    fn handle_fragment(
        &mut self,
        meta: &PacketMeta,
        header: &Header,
        body: &[u8],
        workshop: &mut Workshop,
    ) {
        let Some((fragment, part)) = Fragment::split(body) else {
            self.invalid += 1;
            return;
        };
        let Some(to) = self.core.handle_fragment(meta, header, fragment) else {
            return;
        };
        let at = usize::from(to.place);
        if self.parts.len() <= at {
            self.parts.resize_with(at + 1, Vec::new);
        }
        let symbol = &mut self.parts[at];
        symbol.resize(usize::from(to.symbol_len), 0);
        symbol[to.offset..][..part.len()].copy_from_slice(part);
        if let Some(whole) = to.whole {
            let symbol = std::mem::take(symbol);
            self.place(whole, &symbol, workshop);
            self.parts[at] = symbol;
        }
    }

    /// Store a symbol, and decode what it completes.
    fn place(&mut self, placement: Placement, symbol: &[u8], workshop: &mut Workshop) {
        match placement {
            Placement::Discard => {}
            Placement::Source { slot, n, symbol_len, index } => {
                let block = self.rx_block(slot, n, symbol_len, &workshop.pool);
                let at = usize::from(index) * block.symbol_len;
                block.memory[at..][..symbol.len()].copy_from_slice(symbol);
                bits::insert(&mut block.have, usize::from(index));
            }
            Placement::Repair { slot, n, symbol_len, code, row } => {
                let mut memory = workshop.pool.take(symbol.len());
                memory.copy_from_slice(symbol);
                let block = self.rx_block(slot, n, symbol_len, &workshop.pool);
                block.repairs.push((code, row, memory));
            }
        }
        while let Some(job) = self.core.poll_job() {
            self.decode(job, &mut workshop.decoder);
        }
    }

    fn rx_block(
        &mut self,
        slot: Slot,
        n: u16,
        symbol_len: u16,
        pool: &BufferPool,
    ) -> &mut RxBlock {
        let at = slot.0 as usize;
        if self.rx.len() <= at {
            self.rx.resize_with(at + 1, || None);
        }
        let (n, symbol_len) = (usize::from(n), usize::from(symbol_len));
        self.rx[at].get_or_insert_with(|| RxBlock {
            memory: pool.take(n * symbol_len),
            n,
            symbol_len,
            have: vec![0; bits::words(n)],
            repairs: Vec::new(),
        })
    }

    fn decode(&mut self, job: Job, decoder: &mut BlockDecoder) {
        if let Some(Some(block)) = self.rx.get_mut(job.decode.0 as usize) {
            let repairs: Vec<Repair<'_>> = block
                .repairs
                .iter()
                .map(|(code, row, symbol)| Repair { code: *code, row: *row, symbol })
                .collect();
            let decoded =
                decoder.decode(block.n, block.symbol_len, &mut block.memory, &block.have, &repairs);
            // The core follows the rank of the same rows, so this cannot fail; if it ever did, the
            // data would be wrong, and the session must not go on.
            if let Err(error) = decoded {
                self.end(Error::new(ErrorKind::Other, format!("internal error: {error}")));
                return;
            }
            block.repairs.clear();
        }
        self.core.job_done(job.id);
    }

    // ---- events ---------------------------------------------------------------------------------

    fn handle_events(&mut self, now: Nanos) {
        while let Some(event) = self.core.poll_event() {
            match event {
                Event::BlockComplete { stream, block, slot } => {
                    let assembler = self.assemblers.entry(stream).or_default();
                    assembler.waiting.insert(block, slot);
                    self.assemble(now, stream);
                }
                Event::BlockDelivered { slot, .. } => {
                    if let Some(block) = self.tx.get_mut(slot.0 as usize).and_then(Option::take) {
                        self.bytes_delivered += u64::from(block.data_len);
                        self.tx_free.push(slot);
                    }
                }
                Event::PathChanged(tuple) => {
                    self.source.on_path_changed();
                    self.shared.set_remote(tuple.remote);
                }
                Event::ConnectionIdRetired(cid) => self.retired.push(cid),
                Event::Closed { code, reason } => {
                    let kind = ErrorKind::of_close_code(code);
                    let message = match (kind, reason.as_str()) {
                        (ErrorKind::Cancelled, "") => "the peer closed the session".to_owned(),
                        (ErrorKind::Cancelled, reason) => format!("the peer cancelled: {reason}"),
                        (_, reason) => format!("the peer gave up: {reason}"),
                    };
                    self.end(Error::new(kind, message));
                }
                Event::PeerLost => self.end(
                    Error::new(ErrorKind::PeerLost, "nothing heard from the peer for the idle timeout")
                        .with_hint("check the network and the other end, then start again"),
                ),
                Event::Violation(what) => {
                    self.end(Error::new(ErrorKind::Protocol, format!("the peer broke the protocol: {what}")));
                }
            }
        }
    }

    /// Give out the blocks of a stream that are next in order.
    fn assemble(&mut self, now: Nanos, stream: u16) {
        let Some(assembler) = self.assemblers.get_mut(&stream) else { return };
        let mut chunks = Vec::new();
        while let Some(slot) = assembler.waiting.remove(&assembler.next_block) {
            let Some(block) = self.rx.get_mut(slot.0 as usize).and_then(Option::take) else {
                continue;
            };
            let preamble = Preamble::decode(&block.memory[..block.n * block.symbol_len]);
            let Ok(preamble) = preamble else {
                return self.violation(now, "malformed block");
            };
            if preamble.offset != assembler.next_offset || assembler.ended {
                return self.violation(now, "block out of place");
            }
            assembler.next_block += 1;
            assembler.next_offset += u64::from(preamble.len);
            assembler.ended = preamble.end_of_stream;
            self.bytes_received += u64::from(preamble.len);
            let from = sphinx_proto::wire::PREAMBLE_LEN;
            chunks.push(Chunk {
                memory: block.memory,
                slot,
                from,
                to: from + preamble.len as usize,
                end_of_stream: preamble.end_of_stream,
            });
        }
        if chunks.is_empty() {
            return;
        }
        let mut inner = self.shared.lock();
        let incoming = inner.incoming.entry(stream).or_default();
        if incoming.abandoned {
            let slots: Vec<Slot> = chunks.iter().map(|chunk| chunk.slot).collect();
            inner.released.extend(slots);
        } else {
            incoming.chunks.extend(chunks);
        }
        self.shared.notify();
    }

    fn violation(&mut self, now: Nanos, what: &'static str) {
        self.core.close(now, 5, what);
        self.end(Error::new(ErrorKind::Protocol, format!("the peer broke the protocol: {what}")));
    }

    /// The session is over for the application; the first reason stays.
    pub(crate) fn end(&self, error: Error) {
        let mut inner = self.shared.lock();
        inner.closed.get_or_insert(error);
        self.shared.notify();
    }

    // ---- sending ------------------------------------------------------------------------------

    /// Everything that is due: the application's wishes, timers, events. Returns when to look
    /// again for an application that pauses.
    pub(crate) fn service(&mut self, now: Nanos, clock: Instant) -> Option<Duration> {
        let pause = self.exchange(now, clock);
        if self.core.poll_timeout().is_some_and(|at| at <= now) {
            self.core.handle_timeout(now);
        }
        self.handle_events(now);
        if let Some(largest) = self.core.largest_acked() {
            self.sealer.acked(largest);
        }
        pause
    }

    /// Take over what the application's threads have left, and tell them what happened.
    fn exchange(&mut self, now: Nanos, clock: Instant) -> Option<Duration> {
        self.shared.set_shape(self.core.block_shape());
        let shared = Arc::clone(&self.shared);
        let mut inner = shared.lock();
        for slot in inner.released.drain(..) {
            self.core.release(now, slot);
        }
        let mut next_look = None;
        let slicers = std::mem::take(&mut inner.slicers);
        for slicer in &slicers {
            let paused = match slicer.try_lock() {
                Ok(mut slicer) => slicer.poll_pause(&shared, clock),
                Err(TryLockError::Poisoned(slicer)) => {
                    slicer.into_inner().poll_pause(&shared, clock)
                }
                // Being written to at this moment.
                Err(TryLockError::WouldBlock) => Err(Some(PAUSE)),
            };
            match paused {
                Ok(block) => inner.ready.push_back(block),
                Err(again) => {
                    next_look = next_look.into_iter().chain(again).min();
                }
            }
        }
        inner.slicers = slicers;
        let mut taken = false;
        while let Some(block) = inner.ready.front() {
            if !self.core.can_submit(block.n, block.symbol_len) {
                break;
            }
            if let Some(block) = inner.ready.pop_front() {
                self.submit(block);
                taken = true;
            }
        }
        self.core.set_backlog(!inner.ready.is_empty());
        if let Some((code, reason)) = &inner.close {
            self.core.close(now, *code, reason);
            inner.closed.get_or_insert_with(|| {
                Error::new(ErrorKind::Interrupted, "the session was closed at this end")
            });
            inner.ready.clear();
            taken = true;
        }
        let queued: Vec<u16> = inner.ready.iter().map(|block| block.stream).collect();
        for (stream, delivered) in &mut inner.finished {
            if !*delivered && !queued.contains(stream) && self.core.stream_delivered(*stream) {
                *delivered = true;
                taken = true;
            }
        }
        if self.core.is_closed_by_peer() && !inner.close_answered {
            inner.close_answered = true;
            taken = true;
        }
        if now >= self.stats_at || taken && inner.closed.is_some() {
            self.stats_at = now + STATS_INTERVAL;
            inner.stats = self.stats(now);
        }
        if taken {
            shared.notify();
        }
        next_look
    }

    fn submit(&mut self, block: ReadyBlock) {
        let slot = self.tx_free.pop().unwrap_or_else(|| {
            self.tx.push(None);
            Slot(self.tx.len() as u32 - 1)
        });
        let (n, symbol_len) = (block.n, block.symbol_len);
        self.tx[slot.0 as usize] = Some(TxBlock {
            memory: block.memory,
            n: usize::from(n),
            symbol_len: usize::from(symbol_len),
            data_len: block.data_len,
        });
        self.core.submit(block.stream, slot, n, symbol_len, block.tail);
    }

    /// Seal what may leave now into the queue, until it holds `limit` bytes.
    pub(crate) fn transmit(&mut self, now: Nanos, limit: usize, workshop: &mut Workshop) {
        while workshop.queue.len_bytes() < limit {
            let Some(transmit) = self.core.poll_transmit(now) else { return };
            if let Err(error) = self.seal(&transmit, workshop) {
                let message = format!("packets cannot be encrypted any more: {error}");
                // Not even CLOSE can be sealed.
                return self.abandon(Error::new(ErrorKind::Other, message));
            }
        }
    }

    fn seal(&mut self, transmit: &Transmit, workshop: &mut Workshop) -> Result<(), SealError> {
        let destination = Destination {
            remote: transmit.to.remote,
            local_ip: self.source.address(&transmit.to),
            ecn: Ecn::Ect0,
        };
        let len = transmit.body_len + OVERHEAD;
        let datagram = workshop.queue.push(&destination, len, workshop.segments_max);
        let body = &mut datagram[HEADER_LEN..][..transmit.body_len];
        let block_of = |slot: Slot| self.tx.get(slot.0 as usize).and_then(Option::as_ref);
        let written = match &transmit.content {
            Content::Control(frames) => {
                body.copy_from_slice(frames);
                true
            }
            Content::Source { slot, index } => block_of(*slot).is_some_and(|block| {
                let symbol =
                    &block.memory[usize::from(*index) * block.symbol_len..][..block.symbol_len];
                write_symbol(symbol, transmit.fragment, body);
                true
            }),
            Content::Repair { slot, code, row } => block_of(*slot).is_some_and(|block| {
                let source = &block.memory[..block.n * block.symbol_len];
                let (encoder, n, len) = (&mut workshop.encoder, block.n, block.symbol_len);
                let Some(fragment) = transmit.fragment else {
                    return encoder.encode(*code, n, len, source, *row, body).is_ok();
                };
                workshop.symbol.resize(len, 0);
                let encoded = encoder.encode(*code, n, len, source, *row, &mut workshop.symbol);
                write_symbol(&workshop.symbol, Some(fragment), body);
                encoded.is_ok()
            }),
        };
        let sealed = if written {
            self.sealer.seal(&transmit.header, transmit.packet_number, datagram)
        } else {
            Ok(())
        };
        if !written || sealed.is_err() {
            // What leaves instead opens nowhere: to the protocol, a lost packet. No plaintext does.
            datagram.fill(0);
        }
        sealed
    }

    // ---- the path -----------------------------------------------------------------------------

    /// What the core needs from a source of randomness; `spare_id` gives connection ids that are
    /// from then on this session's.
    pub(crate) fn supply(
        &mut self,
        mut challenge: impl FnMut() -> [u8; 8],
        mut spare_id: impl FnMut() -> ConnectionId,
    ) {
        for _ in 0..self.core.challenges_wanted() {
            self.core.add_challenge(challenge());
        }
        for _ in 0..self.core.connection_ids_wanted() {
            self.core.add_connection_id(spare_id());
        }
    }

    /// Spare connection ids that are not this session's any more.
    pub(crate) fn take_retired(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.retired)
    }

    /// The operating system did not send datagrams to `to`.
    pub(crate) fn on_dropped(&mut self, now: Nanos, to: &Destination, dropped: &Dropped) {
        let current = self.core.tuple();
        if to.remote != current.remote {
            return;
        }
        match dropped.reason {
            DropReason::TooLarge => self.core.datagram_too_large(now, dropped.segment_size),
            // The address is gone (EINVAL is among the other errors), or the network is.
            DropReason::Unreachable | DropReason::Other => {
                self.source.on_refused();
                self.core.local_address_lost(now);
            }
            _ => {}
        }
    }

    /// When [`Association::service`] and [`Association::transmit`] are to be called next.
    pub(crate) fn poll_timeout(&mut self) -> Option<Nanos> {
        self.core.poll_timeout()
    }

    /// Nothing will happen any more.
    pub(crate) fn is_finished(&self) -> bool {
        self.core.is_finished()
    }

    /// Last words to the application.
    pub(crate) fn finish(&mut self, now: Nanos) {
        let stats = self.stats(now);
        let mut inner = self.shared.lock();
        inner.stats = stats;
        inner.close_answered = true;
        inner
            .closed
            .get_or_insert_with(|| Error::new(ErrorKind::Other, "the session has ended"));
        self.shared.notify();
    }

    /// The peer has refused this end after all: no CLOSE would be understood.
    pub(crate) fn abandon(&mut self, error: Error) {
        self.end(error);
        self.core.abandon();
    }

    /// Begin to close, for an engine that stops.
    pub(crate) fn close(&mut self, now: Nanos, code: u64, reason: &str) {
        self.core.close(now, code, reason);
    }

    fn stats(&self, now: Nanos) -> Stats {
        let core = self.core.stats();
        let redundancy = core.repair_proactive as f64 / core.source_sent.max(1) as f64;
        Stats {
            elapsed: Duration::from_nanos(now.saturating_sub(self.started)),
            wire_bytes_sent: core.ip_bytes_sent + self.control.ip_bytes_sent,
            wire_packets_sent: core.packets_sent + self.control.packets_sent,
            wire_bytes_received: core.ip_bytes_received + self.control.ip_bytes_received,
            repair_proactive: core.repair_proactive,
            repair_reactive: core.repair_reactive,
            source_sent: core.source_sent,
            plr_mean: core.plr_mean,
            plr: core.plr,
            redundancy,
            rtt: Duration::from_nanos(core.rtt),
            min_rtt: Duration::from_nanos(core.min_rtt),
            pacing_rate: core.pacing_rate,
            cwnd: core.cwnd,
            blocks: core.blocks,
            blocks_second_round: core.blocks_second_round,
            invalid_datagrams: self.invalid + core.packets_refused,
            replayed_datagrams: self.replayed,
            bytes_delivered: self.bytes_delivered,
            bytes_received: self.bytes_received,
            symbol_bytes: u32::from(core.symbol_len),
            ..self.stats_names
        }
    }
}

/// A symbol, or the part of it that travels in one packet.
fn write_symbol(symbol: &[u8], fragment: Option<Fragment>, body: &mut [u8]) {
    match fragment {
        None => body.copy_from_slice(symbol),
        Some(fragment) => {
            let (prefix, part) = body.split_at_mut(FRAGMENT_PREFIX_LEN);
            prefix.copy_from_slice(&fragment.encode());
            part.copy_from_slice(&symbol[fragment.range()]);
        }
    }
}
