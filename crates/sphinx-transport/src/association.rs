//! One session inside the engine: the protocol core, its keys, and the memory that its slots name.

mod sending;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant};

use sphinx_fec::{BlockDecoder, CodeId, Encoder, RowMaker};
use sphinx_net::{BufferPool, Ecn, SendQueue};
use sphinx_proto::wire::{
    ConnectionId, Fragment, Header, PREAMBLE_LEN, PacketKind, Preamble, WindowSpan,
    expand_packet_number,
};
use sphinx_proto::{Event, Job, Nanos, PacketMeta, Placement, Session, Slot, Tuple};

use crate::blocks::{RxBlocks, TxBlock, TxBlocks};
use crate::control::Traffic;
use crate::error::{Error, ErrorKind, closed_by_peer};
use crate::keys::{Arrival, Opener, ReplayWindow, Sealer};
use crate::memory::PeerPaths;
use crate::options::Options;
use crate::recv_stream::{Chunk, Incoming};
use crate::routes::Source;
use crate::send_stream::{PAUSE, ReadyBlock, Watch};
use crate::shared::{Inner, Shared, StreamEnd};
use crate::stats::Stats;
use crate::windows::Windows;

/// How often the application's view of the counters is renewed.
const STATS_INTERVAL: Nanos = 5_000_000;

/// Working memory that all sessions of an engine share.
pub(crate) struct Workshop {
    pub(crate) pool: BufferPool,
    pub(crate) encoder: Encoder,
    pub(crate) decoder: BlockDecoder,
    /// Uses all repairs together, those of peeling codes too.
    pub(crate) thorough_decoder: BlockDecoder,
    /// Rows of sliding windows.
    pub(crate) rows: RowMaker,
    pub(crate) queue: SendQueue,
    /// A repair symbol of which parts are sent.
    pub(crate) symbol: Vec<u8>,
    pub(crate) segments_max: usize,
}

/// Follows the order of one stream's blocks (the paper's Data Assembler).
#[derive(Default)]
struct Assembler {
    next_offset: u64,
    /// What the preambles of complete blocks say for which earlier ones are missing, by number.
    ahead: BTreeMap<u64, Preamble>,
}

impl Assembler {
    /// A block is complete: whether its place in the stream can be right. No two blocks overlap.
    fn add(&mut self, block: u64, preamble: Preamble, incoming: &mut Incoming) -> bool {
        let end = |p: &Preamble| p.offset.saturating_add(u64::from(p.len));
        let before = self.ahead.range(..block).next_back();
        let after = self.ahead.range(block..).next();
        let fits = preamble.offset >= before.map_or(self.next_offset, |(_, p)| end(p))
            && after.is_none_or(|(_, p)| p.offset >= end(&preamble));
        self.ahead.insert(block, preamble);
        while let Some(next) = self.ahead.remove(&incoming.next_block) {
            if next.offset != self.next_offset || incoming.ended {
                return false;
            }
            incoming.next_block += 1;
            incoming.ended = next.end_of_stream;
            self.next_offset = end(&next);
        }
        fits
    }
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
    /// Where to remember the path at the end.
    paths: Option<PeerPaths>,
    retired: Vec<ConnectionId>,
    /// Symbols of which parts have arrived, by place.
    parts: Vec<Vec<u8>>,
    shared: Arc<Shared>,
    tx: TxBlocks,
    rx: RxBlocks,
    windows: Windows,
    assemblers: BTreeMap<u16, Assembler>,
    invalid: u64,
    replayed: u64,
    bytes_delivered: u64,
    bytes_received: u64,
    /// What the control plane has sent and received for this session.
    control: Traffic,
    /// Datagrams of the endpoint that belonged to nobody, now and when this session began.
    strays: u64,
    strays_before: u64,
    /// How long the session had lasted when it was over for the application.
    lasted: Option<Duration>,
    stats_at: Nanos,
    stats_names: Stats,
    /// When to look again whether a writer pauses.
    pause_at: Option<Nanos>,
    /// Of every stream with blocks that wait for window or credit, the shape of the next one.
    waiting: Vec<(u16, u16, u16)>,
    /// How the control connection is to be closed.
    farewell: (u64, String),
}

impl Association {
    pub(crate) fn new(
        core: Session,
        (sealer, opener): (Sealer, Opener),
        (source, paths): (Source, Option<PeerPaths>),
        shared: Arc<Shared>,
        options: &Options,
        strays: u64,
    ) -> Self {
        let stats_names = Stats {
            icm: options.icm.name(),
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
            paths,
            retired: Vec::new(),
            parts: Vec::new(),
            shared,
            tx: TxBlocks::default(),
            rx: RxBlocks::default(),
            windows: Windows::default(),
            assemblers: BTreeMap::new(),
            invalid: 0,
            replayed: 0,
            bytes_delivered: 0,
            bytes_received: 0,
            control: Traffic::default(),
            strays,
            strays_before: strays,
            lasted: None,
            stats_at: 0,
            stats_names,
            pause_at: None,
            waiting: Vec::new(),
            farewell: (0, String::new()),
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
            PacketKind::Symbol if header.code == CodeId::Window.to_wire() => {
                self.handle_window(&meta, &header, body, workshop);
            }
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
        self.store(meta.now, header, placement, symbol, workshop);
    }

    fn handle_window(
        &mut self,
        meta: &PacketMeta,
        header: &Header,
        body: &[u8],
        workshop: &mut Workshop,
    ) {
        let Some((span, symbol)) = WindowSpan::split(body) else {
            self.invalid += 1;
            return;
        };
        let covered = self.core.handle_window(meta, header, &span);
        let (rx, pool) = (&mut self.rx, &workshop.pool);
        self.windows
            .add_repair(header, &span, &covered, symbol, rx, pool);
        self.settle(meta.now, workshop);
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
            self.store(meta.now, header, whole, &symbol, workshop);
            self.parts[at] = symbol;
        }
    }

    /// Store a symbol, and decode what it completes.
    fn store(
        &mut self,
        now: Nanos,
        header: &Header,
        placement: Placement,
        symbol: &[u8],
        workshop: &mut Workshop,
    ) {
        self.rx.store(placement, symbol, &workshop.pool);
        self.windows.stored(header, &placement, symbol);
        self.settle(now, workshop);
    }

    /// Whatever can be restored now.
    fn settle(&mut self, now: Nanos, workshop: &mut Workshop) {
        loop {
            self.decode_all(now, workshop);
            let Some(restored) = self.windows.next_restored(&mut self.rx) else {
                return;
            };
            let (stream, block) = (restored.stream, restored.block);
            self.core
                .symbol_restored(now, stream, block, restored.index);
        }
    }

    fn decode_all(&mut self, now: Nanos, workshop: &mut Workshop) {
        while let Some(job) = self.core.poll_job() {
            let decoder = if job.maximum_likelihood {
                &mut workshop.thorough_decoder
            } else {
                &mut workshop.decoder
            };
            self.decode(now, job, decoder);
        }
    }

    fn decode(&mut self, now: Nanos, job: Job, decoder: &mut BlockDecoder) {
        // The core follows the rank of the same rows, so this cannot fail; if it ever did, the data
        // would be wrong, and the session must not go on.
        if let Err(error) = self.rx.decode(job.decode, decoder) {
            self.core.close(now, 1, "cannot decode");
            self.end(Error::new(
                ErrorKind::Other,
                format!("internal error: {error}"),
            ));
            return;
        }
        self.windows.learn_block(job.decode, &self.rx);
        self.core.job_done(job.id);
    }

    // ---- events ---------------------------------------------------------------------------------

    /// Whether there were any.
    fn handle_events(&mut self, now: Nanos, inner: &mut Inner) -> bool {
        let mut any = false;
        while let Some(event) = self.core.poll_event() {
            any = true;
            match event {
                Event::BlockComplete {
                    stream,
                    block,
                    slot,
                } => {
                    self.assemble(now, (stream, block), slot, inner);
                }
                Event::BlockDelivered { slot, .. } => {
                    let block = self.tx.remove(slot);
                    self.bytes_delivered += block.map_or(0, |block| u64::from(block.data_len));
                }
                Event::Closed { code, reason } => {
                    inner.peer_code = inner.closed.is_none().then_some(code);
                    self.end_in(inner, closed_by_peer(code, &reason));
                }
                Event::PathChanged(tuple) => {
                    self.source.on_path_changed();
                    self.shared.set_remote(tuple.remote);
                }
                Event::ConnectionIdRetired(cid) => self.retired.push(cid),
                Event::PeerLost => {
                    self.farewell = (6, "nothing heard from this end for too long".to_owned());
                    let error = Error::new(
                        ErrorKind::PeerLost,
                        "nothing heard from the peer for the idle timeout",
                    );
                    let hint = "check the network and the other end, then start again";
                    self.end_in(inner, error.with_hint(hint));
                }
                Event::Violation(what) => self.violation(inner, now, what),
            }
        }
        any
    }

    /// Give a complete block to its stream.
    fn assemble(&mut self, now: Nanos, (stream, block): (u16, u64), slot: Slot, inner: &mut Inner) {
        self.windows.leaves(stream, block, slot, &self.rx);
        let Some(memory) = self.rx.remove(slot) else {
            return self.violation(inner, now, "block without symbols");
        };
        let Ok(preamble) = Preamble::decode(&memory) else {
            return self.violation(inner, now, "malformed block");
        };
        let incoming = inner.incoming.entry(stream).or_default();
        let assembler = self.assemblers.entry(stream).or_default();
        if !assembler.add(block, preamble, incoming) {
            return self.violation(inner, now, "block out of place");
        }
        self.bytes_received += u64::from(preamble.len);
        if incoming.abandoned {
            return self.core.release(now, slot);
        }
        let chunk = Chunk {
            memory,
            slot,
            from: PREAMBLE_LEN,
            to: PREAMBLE_LEN + preamble.len as usize,
            offset: preamble.offset,
            end_of_stream: preamble.end_of_stream,
        };
        incoming.blocks.insert(block, chunk);
    }

    fn violation(&mut self, inner: &mut Inner, now: Nanos, what: &'static str) {
        self.core.close(now, 5, what);
        self.farewell = (5, what.to_owned());
        let message = format!("the peer broke the protocol: {what}");
        self.end_in(inner, Error::new(ErrorKind::Protocol, message));
    }

    /// The session is over for the application; the first reason stays.
    pub(crate) fn end(&mut self, error: Error) {
        let shared = Arc::clone(&self.shared);
        self.end_in(&mut shared.lock(), error);
        shared.notify();
    }

    fn end_in(&mut self, inner: &mut Inner, error: Error) {
        self.lasted.get_or_insert(self.shared.elapsed());
        // Before the application hears of the end: it may exit at once.
        if let (Some(paths), Some(memory)) = (self.paths.take(), self.core.path_memory()) {
            paths.remember(self.core.tuple().remote.ip(), memory);
        }
        inner.closed.get_or_insert(error);
        // What is still counted is on its way out; the clock stands.
        inner.stats = self.stats();
    }

    // ---- the engine's turn --------------------------------------------------------------------

    /// Everything that is due: timers, events, the application's wishes. `strays` are the datagrams of
    /// the endpoint that belonged to nobody.
    pub(crate) fn service(
        &mut self,
        now: Nanos,
        clock: Instant,
        traffic: Option<Traffic>,
        strays: u64,
    ) {
        self.control = traffic.unwrap_or(self.control);
        self.strays = strays;
        if self.core.poll_timeout().is_some_and(|at| at <= now) {
            self.core.handle_timeout(now);
        }
        if let Some(largest) = self.core.largest_acked() {
            self.sealer.acked(largest);
        }
        self.shared.set_shape(self.core.block_shape());
        self.exchange(now, clock);
    }

    /// Take over what the application's threads have left, and tell them what happened.
    fn exchange(&mut self, now: Nanos, clock: Instant) {
        let shared = Arc::clone(&self.shared);
        shared.answer();
        let mut inner = shared.lock();
        for slot in inner.released.drain(..) {
            self.core.release(now, slot);
        }
        let mut news = self.handle_events(now, &mut inner);
        if let Some(profile) = inner.profile.take() {
            self.core.set_profile(profile.core());
            self.stats_names.profile = profile.name();
            news = true;
        }
        if let Some((code, reason)) = inner.close.take()
            && inner.closed.is_none()
        {
            news = true;
            self.core.close(now, code, &reason);
            let error = Error::new(ErrorKind::Interrupted, "the session was closed at this end");
            self.end_in(&mut inner, error);
            self.farewell = (code, reason);
        }
        if inner.closed.is_some() {
            inner.ready.clear();
            inner.filling.clear();
        }
        news |= self.submit_ready(&mut inner);
        if self.watch_writers(&mut inner, now, clock) {
            news |= self.submit_ready(&mut inner);
        }
        self.waiting.clear();
        for block in &inner.ready {
            if self
                .waiting
                .iter()
                .all(|(stream, ..)| *stream != block.stream)
            {
                let (n, symbol_len) = (block.n, block.symbol_len);
                self.waiting.push((block.stream, n, symbol_len));
            }
        }
        self.core.set_backlog(!self.waiting.is_empty());
        for (stream, end) in &mut inner.ends {
            if *end == StreamEnd::Submitted && self.core.stream_delivered(*stream) {
                *end = StreamEnd::Delivered;
                news = true;
            }
        }
        if self.core.is_closed_by_peer() && !inner.close_answered {
            inner.close_answered = true;
            news = true;
        }
        if now >= self.stats_at || news {
            self.stats_at = now + STATS_INTERVAL;
            inner.stats = self.stats();
        }
        drop(inner);
        if news {
            shared.notify();
        }
    }

    /// Hand queued blocks to the core while there is room; whether any was.
    fn submit_ready(&mut self, inner: &mut Inner) -> bool {
        let mut any = false;
        while let Some(block) = self.next_ready(inner).and_then(|at| inner.ready.remove(at)) {
            if block.last {
                inner.ends.insert(block.stream, StreamEnd::Submitted);
            }
            self.submit(block);
            any = true;
        }
        any
    }

    /// The first queued block that may be submitted. Those of one stream keep their order; a stream that is
    /// not read at the other end does not hold the others up.
    fn next_ready(&self, inner: &Inner) -> Option<usize> {
        let mut held_up = Vec::new();
        inner.ready.iter().position(|block| {
            let (stream, n, symbol_len) = (block.stream, block.n, block.symbol_len);
            if held_up.contains(&stream) {
                return false;
            }
            let can = self.core.can_submit(stream, n, symbol_len);
            if !can {
                held_up.push(stream);
            }
            can
        })
    }

    /// Cut the blocks of writers that pause; whether there were any.
    fn watch_writers(&mut self, inner: &mut Inner, now: Nanos, clock: Instant) -> bool {
        let mut again: Option<Duration> = None;
        let mut any = false;
        for slicer in std::mem::take(&mut inner.filling) {
            let watch = match slicer.try_lock() {
                Ok(mut slicer) => slicer.watch(&self.shared, clock, inner),
                Err(TryLockError::Poisoned(slicer)) => {
                    slicer.into_inner().watch(&self.shared, clock, inner)
                }
                // Being written to at this moment.
                Err(TryLockError::WouldBlock) => Watch::Again(PAUSE),
            };
            match watch {
                Watch::Cut(block) => {
                    inner.ready.push_back(block);
                    any = true;
                }
                Watch::Again(after) => {
                    again = Some(again.map_or(after, |sooner| sooner.min(after)));
                    inner.filling.push(slicer);
                }
                Watch::Full => inner.filling.push(slicer),
                Watch::Empty => {}
            }
        }
        self.pause_at = again.map(|after| now + after.as_nanos() as Nanos);
        any
    }

    fn submit(&mut self, block: ReadyBlock) {
        let (n, symbol_len) = (block.n, block.symbol_len);
        let slot = self.tx.insert(TxBlock {
            memory: block.memory,
            n: usize::from(n),
            symbol_len: usize::from(symbol_len),
            data_len: block.data_len,
            transformed: None,
        });
        self.core
            .submit(block.stream, slot, n, symbol_len, block.tail);
    }

    /// Seal what may leave now into the queue, until it holds `limit` bytes.
    pub(crate) fn transmit(&mut self, now: Nanos, limit: usize, workshop: &mut Workshop) {
        while workshop.queue.len_bytes() < limit {
            let Some(transmit) = self.core.poll_transmit(now) else {
                return;
            };
            if let Err(why) = self.seal(&transmit, workshop) {
                // Not even CLOSE could be sent.
                self.core.abandon();
                self.end(Error::new(ErrorKind::Other, format!("cannot send: {why}")));
                return;
            }
        }
    }

    /// When [`Association::service`] and [`Association::transmit`] are to be called next, if nothing
    /// happens before.
    pub(crate) fn poll_timeout(&mut self) -> Option<Nanos> {
        let mut waiting = self.waiting.iter();
        if waiting.any(|(stream, n, symbol_len)| self.core.can_submit(*stream, *n, *symbol_len)) {
            // Sending has made room for a block that waits.
            return Some(0);
        }
        self.core
            .poll_timeout()
            .into_iter()
            .chain(self.pause_at)
            .min()
    }

    /// Nothing will happen any more.
    pub(crate) fn is_finished(&self) -> bool {
        self.core.is_finished()
    }

    /// The session is finished: last words to the application. How to close the control connection.
    pub(crate) fn finish(&mut self) -> (u64, String) {
        self.end(Error::new(ErrorKind::Other, "the session has ended"));
        std::mem::take(&mut self.farewell)
    }

    /// The peer has closed the control connection: it no longer knows this session.
    pub(crate) fn refused(&mut self, error: Error) {
        self.end(error);
        self.core.abandon();
    }

    /// Begin to close, for an engine that stops.
    pub(crate) fn stop(&mut self, now: Nanos) {
        const REASON: &str = "the other end has stopped";
        self.core.close(now, 6, REASON);
        self.farewell = (6, REASON.to_owned());
        self.end(Error::new(
            ErrorKind::Interrupted,
            "the endpoint was closed at this end",
        ));
    }

    fn stats(&self) -> Stats {
        let core = self.core.stats();
        let redundancy = core.repair_proactive as f64 / core.source_sent.max(1) as f64;
        let ip_overhead = if self.core.tuple().remote.is_ipv4() {
            28
        } else {
            48
        };
        let control = &self.control;
        Stats {
            elapsed: self.lasted.unwrap_or_else(|| self.shared.elapsed()),
            wire_bytes_sent: core.ip_bytes_sent
                + control.bytes_sent
                + ip_overhead * control.datagrams_sent,
            wire_packets_sent: core.packets_sent + control.datagrams_sent,
            wire_bytes_received: core.ip_bytes_received
                + control.bytes_received
                + ip_overhead * control.datagrams_received,
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
            invalid_datagrams: self.invalid
                + core.packets_refused
                + (self.strays - self.strays_before),
            replayed_datagrams: self.replayed,
            bytes_delivered: self.bytes_delivered,
            bytes_received: self.bytes_received,
            symbol_bytes: u32::from(core.symbol_len),
            ..self.stats_names
        }
    }
}

impl Drop for Association {
    /// However the engine ends, nobody waits for it any longer.
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner.close_answered = true;
        inner
            .closed
            .get_or_insert_with(|| Error::new(ErrorKind::Other, "the engine has stopped"));
        drop(inner);
        self.shared.notify();
    }
}
