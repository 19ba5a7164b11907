//! One end: a session and the smallest driver that moves real bytes with it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use sphinx_fec::span::{self, SpanBlock};
use sphinx_fec::{BlockDecoder, CodeId, Encoder, Repair, Row, RowMaker, bits};
use sphinx_link::Packet;
use sphinx_proto::wire::{
    ConnectionId, FRAGMENT_PREFIX_LEN, Fragment, HEADER_LEN, Header, OVERHEAD, PREAMBLE_LEN,
    PacketKind, Preamble, WindowSpan, expand_packet_number,
};
use sphinx_proto::{
    Config, Content, CoveredBlock, Event, Job, Nanos, PacketMeta, Placement, Session, Slot,
    Transmit, Tuple, block_cost,
};

use crate::data::{Rng, fill};
use crate::spans::{Spans, View};

/// IPv4 and UDP headers.
pub(crate) const IP_OVERHEAD: u16 = 28;
/// Numbers below the largest by more than this are late (`docs/protocol.md` §4).
const REPLAY_WINDOW: u64 = 1 << 16;
const ECT0: u8 = 0b10;
const CE: u8 = 0b11;

/// A datagram on the link: unsealed, but with the size of a sealed one.
#[derive(Debug, Clone)]
pub(crate) struct Datagram {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    header: [u8; HEADER_LEN],
    body: Vec<u8>,
    ecn: u8,
    /// Would not open.
    corrupted: bool,
}

impl Datagram {
    /// UDP payload.
    pub(crate) fn len(&self) -> usize {
        OVERHEAD + self.body.len()
    }
}

impl Packet for Datagram {
    fn ip_len(&self) -> usize {
        usize::from(IP_OVERHEAD) + OVERHEAD + self.body.len()
    }

    fn mark_ce(&mut self) -> bool {
        let capable = self.ecn != 0;
        if capable {
            self.ecn = CE;
        }
        capable
    }

    fn corruptible_bits(&self) -> u64 {
        8 * (OVERHEAD + self.body.len()) as u64
    }

    fn flip_bit(&mut self, _bit: u64) {
        self.corrupted = true;
    }

    fn duplicate(&self) -> Self {
        self.clone()
    }
}

/// The application hands over `len` bytes, which end a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write {
    pub(crate) at: Nanos,
    pub(crate) stream: u16,
    pub(crate) len: u64,
    pub(crate) end_of_stream: bool,
}

/// When the application takes received blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Reader {
    /// As soon as they are complete, in any order (files).
    AnyOrder,
    /// In order (streams).
    InOrder,
    /// In order, this many bytes per second.
    Slow(u64),
}

#[derive(Debug, Default)]
struct TxStream {
    /// Messages not wholly cut into blocks: bytes left, end of stream.
    messages: VecDeque<(u64, bool)>,
    offset: u64,
}

#[derive(Debug, Default)]
struct RxStream {
    /// Blocks complete and not in order yet: id to (offset, length, end, slot).
    early: BTreeMap<u64, (Preamble, Slot)>,
    next_block: u64,
    in_order: u64,
    received: u64,
    ended: bool,
}

#[derive(Debug, Default)]
struct RxSlot {
    n: usize,
    symbol_len: usize,
    source: Vec<u8>,
    have: Vec<u64>,
    repairs: Vec<(CodeId, Row, Vec<u8>)>,
    in_use: bool,
}

impl RxSlot {
    fn view(&self) -> View<'_> {
        View {
            source: &self.source,
            symbol_len: self.symbol_len,
            have: &self.have,
        }
    }
}

/// What is to happen at one end.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) writes: Vec<Write>,
    pub(crate) reader: Reader,
    /// Decoding takes up to this long.
    pub(crate) job_delay_max: Nanos,
    pub(crate) ecn: bool,
    /// A stream that is never read.
    pub(crate) unread: Option<u16>,
    /// Symbols and symbol size of full blocks, instead of what the session proposes.
    pub(crate) shape: Option<(u16, u16)>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            writes: Vec::new(),
            reader: Reader::AnyOrder,
            job_delay_max: 0,
            ecn: false,
            unread: None,
            shape: None,
        }
    }
}

/// A session and its driver.
pub(crate) struct End {
    pub(crate) session: Session,
    plan: Plan,
    seed: u64,
    peer_seed: u64,
    rng: Rng,
    recv_window: u64,
    /// Where the network finds this end, and what it calls itself.
    pub(crate) address: SocketAddr,
    pub(crate) own_address: SocketAddr,
    /// Connection ids that this end answers to, and those that it has used.
    pub(crate) cids: BTreeSet<ConnectionId>,
    pub(crate) cids_used: Vec<ConnectionId>,
    pub(crate) paths: Vec<(Nanos, Tuple)>,

    writes: VecDeque<Write>,
    tx: BTreeMap<u16, TxStream>,
    tx_turn: u16,
    tx_slots: Vec<Vec<u8>>,
    tx_free: Vec<Slot>,
    encoder: Encoder,
    rows: RowMaker,
    last_pn: Option<u64>,

    rx: BTreeMap<u16, RxStream>,
    rx_slots: Vec<RxSlot>,
    rx_held: u64,
    pub(crate) rx_held_max: u64,
    parts: Vec<Vec<u8>>,
    decoder: BlockDecoder,
    thorough_decoder: BlockDecoder,
    jobs: BTreeMap<(Nanos, u64), Job>,
    to_release: VecDeque<(Nanos, Slot)>,
    reader_free_at: Nanos,
    spans: Spans,
    seen: BTreeSet<u64>,
    largest: Option<u64>,

    pub(crate) ip_bytes_sent: u64,
    /// Bytes delivered, in the order of the reader.
    pub(crate) bytes_received: u64,
    /// (arrival, stream, offset, length) of every complete block.
    pub(crate) blocks_received: Vec<(Nanos, u16, u64, u32)>,
    pub(crate) events: Vec<(Nanos, Event)>,
}

impl End {
    pub(crate) fn new(
        config: Config,
        address: SocketAddr,
        plan: Plan,
        seed: u64,
        peer_seed: u64,
    ) -> Self {
        let mut writes = plan.writes.clone();
        writes.sort_by_key(|w| w.at);
        Self {
            recv_window: config.recv_window,
            address,
            own_address: address,
            cids: BTreeSet::from([config.local_cid]),
            cids_used: Vec::new(),
            paths: Vec::new(),
            session: Session::new(config, 0),
            writes: writes.into(),
            plan,
            seed,
            peer_seed,
            rng: Rng::new(seed ^ 0x6a6f_6273),
            tx: BTreeMap::new(),
            tx_turn: 0,
            tx_slots: Vec::new(),
            tx_free: Vec::new(),
            encoder: Encoder::new(),
            rows: RowMaker::new(),
            last_pn: None,
            rx: BTreeMap::new(),
            rx_slots: Vec::new(),
            rx_held: 0,
            rx_held_max: 0,
            parts: vec![Vec::new(); 64],
            decoder: BlockDecoder::new(),
            thorough_decoder: BlockDecoder::new().maximum_likelihood(),
            jobs: BTreeMap::new(),
            to_release: VecDeque::new(),
            reader_free_at: 0,
            spans: Spans::new(),
            seen: BTreeSet::new(),
            largest: None,
            ip_bytes_sent: 0,
            bytes_received: 0,
            blocks_received: Vec::new(),
            events: Vec::new(),
        }
    }

    /// The next time at which this end has something to do.
    pub(crate) fn next_event(&mut self) -> Option<Nanos> {
        let timers = [
            self.session.poll_timeout(),
            self.writes.front().map(|w| w.at),
            self.jobs.first_key_value().map(|((at, _), _)| *at),
            self.to_release.front().map(|r| r.0),
        ];
        timers.into_iter().flatten().min()
    }

    /// Whether everything written so far was cut into blocks and all of it arrived.
    pub(crate) fn all_delivered(&self) -> bool {
        self.writes.is_empty()
            && self
                .tx
                .iter()
                .all(|(id, tx)| tx.messages.is_empty() && self.session.stream_delivered(*id))
    }

    /// Whether the stream has arrived to its end.
    pub(crate) fn stream_ended(&self, stream: u16) -> bool {
        self.rx.get(&stream).is_some_and(|rx| rx.ended)
    }

    /// Bytes cut into blocks so far.
    pub(crate) fn bytes_written(&self) -> u64 {
        self.tx.values().map(|tx| tx.offset).sum()
    }

    /// Streams that this end sends on.
    pub(crate) fn streams(&self) -> impl Iterator<Item = u16> + '_ {
        self.tx.keys().copied()
    }

    /// Memory of blocks handed over and not delivered, as the window counts it.
    pub(crate) fn tx_held(&self) -> u64 {
        let blocks = self.tx_slots.iter().filter(|block| !block.is_empty());
        blocks.map(|block| block.len() as u64 + 512).sum()
    }

    /// Send slots in use.
    pub(crate) fn tx_slots_in_use(&self) -> usize {
        self.tx_slots.len() - self.tx_free.len()
    }

    /// Lets this end do what is due and collects what it sends.
    pub(crate) fn drive(&mut self, now: Nanos, out: &mut Vec<Datagram>) {
        if self.session.poll_timeout().is_some_and(|at| at <= now) {
            self.session.handle_timeout(now);
        }
        for _ in 0..self.session.challenges_wanted() {
            let random = self.rng.below(u64::MAX).to_be_bytes();
            self.session.add_challenge(random);
        }
        for _ in 0..self.session.connection_ids_wanted() {
            let cid = ConnectionId::new(self.rng.below(u64::MAX).to_be_bytes());
            let cid = cid.expect("not zero");
            self.cids.insert(cid);
            self.session.add_connection_id(cid);
        }
        while let Some(write) = self.writes.pop_front_if(|w| w.at <= now) {
            let tx = self.tx.entry(write.stream).or_default();
            tx.messages.push_back((write.len, write.end_of_stream));
        }
        while let Some(job) = self.jobs.first_entry().filter(|job| job.key().0 <= now) {
            let job = job.remove();
            self.decode(job);
            self.session.job_done(job.id);
        }
        while let Some((_, slot)) = self.to_release.pop_front_if(|r| r.0 <= now) {
            self.release(now, slot);
        }
        loop {
            while let Some(job) = self.session.poll_job() {
                self.start_job(now, job);
            }
            while let Some(event) = self.session.poll_event() {
                self.on_event(now, event);
            }
            self.slice();
            let before = out.len();
            while let Some(transmit) = self.session.poll_transmit(now) {
                let datagram = self.seal(transmit);
                out.push(datagram);
            }
            if out.len() == before {
                break;
            }
        }
    }

    // ---- sending ----------------------------------------------------------------------------

    /// Cuts what the application has written into blocks, one stream after the other.
    fn slice(&mut self) {
        let mut held_up = BTreeSet::new();
        while let Some(stream) = self.next_stream(&held_up) {
            let (n_full, s_full) = self.plan.shape.unwrap_or(self.session.block_shape());
            let Some(tx) = self.tx.get_mut(&stream) else {
                break;
            };
            let Some(&(left, ends)) = tx.messages.front() else {
                break;
            };
            let capacity = u64::from(n_full) * u64::from(s_full) - PREAMBLE_LEN as u64;
            let len = left.min(capacity);
            let total = len + PREAMBLE_LEN as u64;
            let n = total.div_ceil(u64::from(s_full));
            // Some codes need symbols of an even size.
            let symbol_len = total.div_ceil(n).next_multiple_of(2).min(u64::from(s_full));
            let (n, symbol_len) = (n as u16, symbol_len as u16);
            if !self.session.can_submit(stream, n, symbol_len) {
                held_up.insert(stream);
                continue;
            }
            let tail = len == left;
            let mut block = vec![0; usize::from(n) * usize::from(symbol_len)];
            let preamble = Preamble {
                offset: tx.offset,
                len: len as u32,
                end_of_stream: tail && ends,
            };
            block[..PREAMBLE_LEN].copy_from_slice(&preamble.encode());
            let data = &mut block[PREAMBLE_LEN..PREAMBLE_LEN + len as usize];
            fill(self.seed ^ u64::from(stream), tx.offset, data);
            tx.offset += len;
            if tail {
                tx.messages.pop_front();
            } else {
                tx.messages[0].0 -= len;
            }
            let slot = self.tx_free.pop().unwrap_or_else(|| {
                self.tx_slots.push(Vec::new());
                Slot(self.tx_slots.len() as u32 - 1)
            });
            self.tx_slots[slot.0 as usize] = block;
            self.session.submit(stream, slot, n, symbol_len, tail);
            self.tx_turn = stream;
        }
        let backlog = self.tx.values().any(|tx| !tx.messages.is_empty());
        self.session.set_backlog(backlog);
    }

    /// The next stream with data, in turn, that is not held up.
    fn next_stream(&self, held_up: &BTreeSet<u16>) -> Option<u16> {
        let waiting =
            |(id, tx): &(&u16, &TxStream)| !tx.messages.is_empty() && !held_up.contains(id);
        let after = self.tx.range(self.tx_turn + 1..).find(waiting);
        after
            .or_else(|| self.tx.iter().find(waiting))
            .map(|(id, _)| *id)
    }

    fn seal(&mut self, transmit: Transmit) -> Datagram {
        assert!(
            self.last_pn
                .is_none_or(|last| transmit.packet_number > last),
            "packet numbers rise"
        );
        assert_eq!(transmit.header.packet_number, transmit.packet_number as u32);
        self.last_pn = Some(transmit.packet_number);
        if self.cids_used.last() != Some(&transmit.header.cid) {
            self.cids_used.push(transmit.header.cid);
        }
        let n = usize::from(transmit.header.n);
        let len = match transmit.fragment {
            None => transmit.body_len,
            Some(fragment) => usize::from(fragment.symbol_len),
        };
        let body = match transmit.content {
            Content::Control(body) => body,
            Content::Window { span, slots, row } => {
                let mut sizes: Vec<_> = span.blocks().collect();
                sizes.reverse();
                let blocks = slots.iter().zip(sizes).enumerate();
                let blocks: Vec<SpanBlock<'_>> = blocks
                    .map(|(i, (slot, (n, symbol_len)))| SpanBlock {
                        symbols: &self.tx_slots[slot.0 as usize],
                        symbol_len: usize::from(symbol_len),
                        count: usize::from(if i + 1 == slots.len() { span.upto() } else { n }),
                    })
                    .collect();
                let mut symbol = vec![0; span.symbol_len()];
                span::encode(&mut self.rows, row, &blocks, &mut symbol).expect("a row that exists");
                [span.encode(), symbol].concat()
            }
            Content::Source { slot, index } => {
                let at = usize::from(index) * len;
                self.tx_slots[slot.0 as usize][at..at + len].to_vec()
            }
            Content::Repair { slot, code, row } => {
                let mut out = vec![0; len];
                let source = &self.tx_slots[slot.0 as usize];
                self.encoder
                    .encode(code, n, len, source, row, &mut out)
                    .expect("a row that exists");
                out
            }
        };
        let body = match transmit.fragment {
            None => body,
            Some(fragment) => {
                assert_eq!(transmit.header.kind, PacketKind::Fragment);
                [&fragment.encode()[..], &body[fragment.range()]].concat()
            }
        };
        assert_eq!(body.len(), transmit.body_len);
        let datagram = Datagram {
            from: self.address,
            to: transmit.to.remote,
            header: transmit.header.encode(),
            body,
            ecn: if self.plan.ecn { ECT0 } else { 0 },
            corrupted: false,
        };
        self.ip_bytes_sent += datagram.ip_len() as u64;
        datagram
    }

    // ---- receiving --------------------------------------------------------------------------

    /// A datagram arrives.
    pub(crate) fn receive(&mut self, now: Nanos, datagram: &Datagram) {
        if datagram.corrupted {
            return;
        }
        let header = Header::decode(&datagram.header).expect("an honest header");
        if !self.cids.contains(&header.cid) {
            return;
        }
        let expected = self.largest.map_or(0, |pn| pn + 1);
        let packet_number = expand_packet_number(header.packet_number, expected);
        let late = packet_number + REPLAY_WINDOW <= expected;
        if late || !self.seen.insert(packet_number) {
            return;
        }
        self.largest = self.largest.max(Some(packet_number));
        while self
            .seen
            .first()
            .is_some_and(|pn| pn + REPLAY_WINDOW < expected)
        {
            self.seen.pop_first();
        }
        let meta = PacketMeta {
            now,
            received_at: now,
            packet_number,
            cid: header.cid,
            tuple: Tuple {
                remote: datagram.from,
                local_ip: Some(self.own_address.ip()),
            },
            ecn: datagram.ecn,
            datagram_len: OVERHEAD + datagram.body.len(),
            last_of_flight: header.last_of_flight,
        };
        match header.kind {
            PacketKind::Control => self.session.handle_control(&meta, &datagram.body),
            PacketKind::Fragment => {
                let (fragment, part) = Fragment::split(&datagram.body).expect("an honest fragment");
                assert_eq!(part.len() + FRAGMENT_PREFIX_LEN, datagram.body.len());
                let Some(place) = self.session.handle_fragment(&meta, &header, fragment) else {
                    return;
                };
                let symbol = &mut self.parts[usize::from(place.place)];
                symbol.resize(usize::from(place.symbol_len), 0);
                symbol[place.offset..][..part.len()].copy_from_slice(part);
                if let Some(whole) = place.whole {
                    let symbol = std::mem::take(symbol);
                    self.place(whole, &symbol);
                }
            }
            PacketKind::Symbol if header.code == CodeId::Window.to_wire() => {
                let (span, symbol) = WindowSpan::split(&datagram.body).expect("an honest window");
                let covered = self.session.handle_window(&meta, &header, &span);
                self.take_window(&header, &covered, symbol);
                self.restore(now);
            }
            PacketKind::Symbol => {
                let len = datagram.body.len();
                let placement = self.session.handle_symbol(&meta, &header, len);
                self.place(placement, &datagram.body);
                if let Placement::Source { index, .. } = placement {
                    self.spans
                        .learn(header.stream, header.block, index, &datagram.body);
                    self.restore(now);
                }
            }
        }
    }

    fn place(&mut self, placement: Placement, symbol: &[u8]) {
        match placement {
            Placement::Discard => {}
            Placement::Source {
                slot,
                n,
                symbol_len,
                index,
            } => {
                let rx = self.rx_slot(slot, n, symbol_len);
                let at = usize::from(index) * symbol.len();
                rx.source[at..at + symbol.len()].copy_from_slice(symbol);
                bits::insert(&mut rx.have, usize::from(index));
            }
            Placement::Repair {
                slot,
                n,
                symbol_len,
                code,
                row,
            } => {
                let rx = self.rx_slot(slot, n, symbol_len);
                rx.repairs.push((code, row, symbol.to_vec()));
                assert!(
                    rx.repairs.len() <= rx.n,
                    "no more repairs than symbols are kept"
                );
            }
        }
    }

    fn take_window(&mut self, header: &Header, covered: &[CoveredBlock], symbol: &[u8]) {
        if covered.is_empty() {
            return;
        }
        for block in covered {
            if let Some(slot) = block.slot {
                self.rx_slot(slot, block.n, block.symbol_len);
            }
        }
        let rx_slots = &self.rx_slots;
        let view = |slot: Slot| rx_slots[slot.0 as usize].view();
        let name = (header.stream, header.row);
        self.spans.add_repair(name, covered, symbol, view);
    }

    /// Stores what windows have restored.
    fn restore(&mut self, now: Nanos) {
        while let Some((stream, block, slot, index, value)) = self.spans.next_restored() {
            let rx = &mut self.rx_slots[slot.0 as usize];
            let at = usize::from(index) * rx.symbol_len;
            rx.source[at..at + rx.symbol_len].copy_from_slice(&value[..rx.symbol_len]);
            bits::insert(&mut rx.have, usize::from(index));
            self.session.symbol_restored(now, stream, block, index);
        }
    }

    fn rx_slot(&mut self, slot: Slot, n: u16, symbol_len: u16) -> &mut RxSlot {
        let index = slot.0 as usize;
        if self.rx_slots.len() <= index {
            self.rx_slots.resize_with(index + 1, RxSlot::default);
        }
        let (n_bytes, cost) = (usize::from(n), block_cost(n, symbol_len));
        let rx = &mut self.rx_slots[index];
        if !rx.in_use {
            *rx = RxSlot {
                n: n_bytes,
                symbol_len: usize::from(symbol_len),
                source: vec![0; n_bytes * usize::from(symbol_len)],
                have: vec![0; bits::words(n_bytes)],
                repairs: Vec::new(),
                in_use: true,
            };
            self.rx_held += cost;
            self.rx_held_max = self.rx_held_max.max(self.rx_held);
            assert!(
                self.rx_held <= self.recv_window,
                "more blocks than the window"
            );
        }
        rx
    }

    fn start_job(&mut self, now: Nanos, job: Job) {
        if self.plan.job_delay_max == 0 {
            self.decode(job);
            self.session.job_done(job.id);
        } else {
            let at = now + self.rng.below(self.plan.job_delay_max);
            self.jobs.insert((at, job.id), job);
        }
    }

    fn decode(&mut self, job: Job) {
        let rx = &mut self.rx_slots[job.decode.0 as usize];
        let decoder = if job.maximum_likelihood {
            &mut self.thorough_decoder
        } else {
            &mut self.decoder
        };
        let repairs: Vec<Repair<'_>> = rx
            .repairs
            .iter()
            .map(|(code, row, symbol)| Repair {
                code: *code,
                row: *row,
                symbol,
            })
            .collect();
        decoder
            .decode(rx.n, rx.symbol_len, &mut rx.source, &rx.have, &repairs)
            .expect("the core asks only when it can be done");
    }

    fn on_event(&mut self, now: Nanos, event: Event) {
        match event {
            Event::BlockDelivered { slot, .. } => {
                self.tx_slots[slot.0 as usize] = Vec::new();
                self.tx_free.push(slot);
            }
            Event::BlockComplete {
                stream,
                block,
                slot,
            } => {
                self.on_block(now, stream, block, slot);
            }
            Event::PathChanged(tuple) => self.paths.push((now, tuple)),
            Event::ConnectionIdRetired(cid) => {
                assert!(self.cids.remove(&cid), "an id of this end");
            }
            other => self.events.push((now, other)),
        }
    }

    /// A whole block: its bytes must be those that were sent.
    fn on_block(&mut self, now: Nanos, stream: u16, block: u64, slot: Slot) {
        let view = self.rx_slots[slot.0 as usize].view();
        self.spans.learn_block((stream, block), slot, view);
        self.restore(now);
        let source = &self.rx_slots[slot.0 as usize].source;
        let preamble = Preamble::decode(source).expect("an honest preamble");
        let (data, padding) = source[PREAMBLE_LEN..].split_at(preamble.len as usize);
        let mut expected = vec![0; data.len()];
        fill(
            self.peer_seed ^ u64::from(stream),
            preamble.offset,
            &mut expected,
        );
        assert!(data == expected, "bytes of stream {stream} block {block}");
        assert!(padding.iter().all(|b| *b == 0));
        self.blocks_received
            .push((now, stream, preamble.offset, preamble.len));

        let rx = self.rx.entry(stream).or_default();
        assert!(block >= rx.next_block, "block {block} came twice");
        rx.received += u64::from(preamble.len);
        assert!(
            rx.early.insert(block, (preamble, slot)).is_none(),
            "block {block} came twice"
        );
        if self.plan.reader == Reader::AnyOrder && self.plan.unread != Some(stream) {
            self.to_release.push_back((now, slot));
        }
        while let Some((preamble, slot)) = rx.early.remove(&rx.next_block) {
            assert!(!rx.ended, "data behind the end of the stream");
            assert_eq!(preamble.offset, rx.in_order, "a gap in stream {stream}");
            rx.next_block += 1;
            rx.in_order += u64::from(preamble.len);
            rx.ended = preamble.end_of_stream;
            self.bytes_received += u64::from(preamble.len);
            match self.plan.reader {
                _ if self.plan.unread == Some(stream) => {}
                Reader::AnyOrder => {}
                Reader::InOrder => self.to_release.push_back((now, slot)),
                Reader::Slow(rate) => {
                    let time = u64::from(preamble.len) * 1_000_000_000 / rate;
                    self.reader_free_at = self.reader_free_at.max(now) + time;
                    self.to_release.push_back((self.reader_free_at, slot));
                }
            }
        }
        while let Some((_, slot)) = self.to_release.pop_front_if(|r| r.0 <= now) {
            self.release(now, slot);
        }
    }

    fn release(&mut self, now: Nanos, slot: Slot) {
        let rx = std::mem::take(&mut self.rx_slots[slot.0 as usize]);
        assert!(rx.in_use);
        self.spans.taken(slot, rx.source, rx.symbol_len);
        self.rx_held -= block_cost(rx.n as u16, rx.symbol_len as u16);
        self.session.release(now, slot);
    }
}
