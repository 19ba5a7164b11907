//! The receiving half: blocks, rank, and what feedback says.

use std::collections::BTreeMap;

use sphinx_fec::{Added, CodeId, Row, RowMaker, Tracker};

use crate::Nanos;
use crate::ranges::RangeSet;
use crate::session::{PacketMeta, Placement, Slot, block_cost};
use crate::wire::{
    Blocks, Frame, Header, MAX_BLOCK_RANGES, MAX_BLOCK_SYMBOLS, MAX_DEFICITS, MAX_SACK_RANGES,
    MAX_SYMBOL_LEN, Sack,
};

/// Streams that a peer may ever send on.
const STREAMS_MAX: usize = 256;
/// Packets that may wait for one SACK.
const PACKETS_PER_SACK: u32 = 64;
/// Bounds of the time that packets wait for a SACK.
const SACK_DELAY_MIN: Nanos = 250_000;
const SACK_DELAY_MAX: Nanos = 10_000_000;

#[derive(Debug)]
struct RxBlock {
    slot: Slot,
    n: u16,
    symbol_len: u16,
    tracker: Tracker,
    /// Whether a repair symbol was kept: then the block goes through the decoder, even if the
    /// last symbol to arrive was a source symbol.
    has_repairs: bool,
}

#[derive(Debug, Default)]
struct RxStream {
    /// Every block below is complete.
    base: u64,
    complete: RangeSet,
    open: BTreeMap<u64, RxBlock>,
    /// Highest block of which a symbol arrived, plus one.
    seen: u64,
    /// Something changed since the last BLOCKS frame.
    dirty: bool,
}

pub(crate) struct Receiver {
    /// Lowest bit of the ids of the peer's streams.
    peer_parity: u16,
    streams: BTreeMap<u16, RxStream>,
    rows: RowMaker,
    received: RangeSet,
    largest: Option<(u64, Nanos)>,
    ect: u64,
    ce: u64,
    sack_sequence: u64,
    unacked: u32,
    sack_at: Option<Nanos>,
    last_eliciting: Nanos,
    /// The last packet carried the last-of-flight mark: even the newest block's deficit counts.
    flight_over: bool,
    window: u64,
    /// Costs of all blocks opened here, and of those the application has taken.
    opened_cost: u64,
    released_cost: u64,
    /// Costs by slot; `None` when the slot is free.
    slots: Vec<Option<u64>>,
    free_slots: Vec<Slot>,
    pub(crate) symbols_redundant: u64,
    pub(crate) packets_refused: u64,
}

/// What the symbol did to its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More symbols are needed, or it brought nothing.
    None,
    /// All source symbols are there.
    Whole { stream: u16, block: u64, slot: Slot },
    /// Missing symbols can be computed.
    Decodable { stream: u16, block: u64, slot: Slot },
}

impl Receiver {
    pub(crate) fn new(peer_parity: u16, window: u64) -> Self {
        Self {
            peer_parity,
            streams: BTreeMap::new(),
            rows: RowMaker::new(),
            received: RangeSet::default(),
            largest: None,
            ect: 0,
            ce: 0,
            sack_sequence: 0,
            unacked: 0,
            sack_at: None,
            last_eliciting: 0,
            flight_over: false,
            window,
            opened_cost: 0,
            released_cost: 0,
            slots: Vec::new(),
            free_slots: Vec::new(),
            symbols_redundant: 0,
            packets_refused: 0,
        }
    }

    /// How long packets may wait for a SACK.
    pub(crate) fn sack_delay(rtt: Nanos) -> Nanos {
        (rtt / 8).clamp(SACK_DELAY_MIN, SACK_DELAY_MAX)
    }

    // ---- packets --------------------------------------------------------------------------------

    /// Note an opened packet for the next SACK.
    pub(crate) fn on_packet(&mut self, meta: &PacketMeta, eliciting: bool, rtt: Nanos) {
        self.received.insert_one(meta.packet_number);
        self.received.truncate_low(MAX_SACK_RANGES);
        if self.largest.is_none_or(|(pn, _)| meta.packet_number > pn) {
            self.largest = Some((meta.packet_number, meta.received_at));
        }
        match meta.ecn {
            0b01 | 0b10 => self.ect += 1,
            0b11 => self.ce += 1,
            _ => {}
        }
        if !eliciting {
            return;
        }
        let delay = Self::sack_delay(rtt);
        self.unacked += 1;
        self.flight_over = meta.last_of_flight;
        let first_after_idle = meta.now.saturating_sub(self.last_eliciting) > 2 * rtt.max(delay);
        self.last_eliciting = meta.now;
        let at = if meta.last_of_flight
            || meta.ecn == 0b11
            || self.unacked >= PACKETS_PER_SACK
            || first_after_idle
        {
            meta.now
        } else {
            meta.now + delay
        };
        self.want_sack(at);
    }

    fn want_sack(&mut self, at: Nanos) {
        self.sack_at = Some(self.sack_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// An authenticated symbol of `symbol_len` bytes: where it belongs.
    pub(crate) fn on_symbol(
        &mut self,
        now: Nanos,
        header: &Header,
        symbol_len: usize,
    ) -> (Placement, Progress) {
        let refused = (Placement::Discard, Progress::None);
        let (n, stream_id) = (header.n, header.stream);
        let known_stream = self.streams.contains_key(&stream_id);
        if stream_id & 1 != self.peer_parity
            || symbol_len == 0
            || symbol_len > MAX_SYMBOL_LEN
            || n == 0
            || n > MAX_BLOCK_SYMBOLS
            || (!known_stream && self.streams.len() >= STREAMS_MAX)
        {
            self.packets_refused += 1;
            return refused;
        }
        let symbol_len = symbol_len as u16;
        let stream = self.streams.entry(stream_id).or_default();
        let id = crate::wire::expand_packet_number(header.block, stream.base);
        if id < stream.base || stream.complete.contains(id) {
            self.symbols_redundant += 1;
            // The peer has not heard that the block is complete.
            stream.dirty = true;
            return refused;
        }
        if !stream.open.contains_key(&id) {
            let cost = block_cost(n, symbol_len);
            let over = self.opened_cost + cost > self.released_cost + self.window;
            let Ok(tracker) = Tracker::new(usize::from(n)) else { return refused };
            if over {
                self.packets_refused += 1;
                return refused;
            }
            self.opened_cost += cost;
            let slot = match self.free_slots.pop() {
                Some(slot) => slot,
                None => {
                    self.slots.push(None);
                    Slot(self.slots.len() as u32 - 1)
                }
            };
            self.slots[slot.0 as usize] = Some(cost);
            stream.open.insert(id, RxBlock { slot, n, symbol_len, tracker, has_repairs: false });
            stream.seen = stream.seen.max(id + 1);
        }
        let Some(block) = stream.open.get_mut(&id) else { return refused };
        if block.n != n || block.symbol_len != symbol_len {
            self.packets_refused += 1;
            return refused;
        }
        let slot = block.slot;
        let (added, placement) = if header.code == CodeId::SOURCE {
            let index = header.row;
            let added = block.tracker.add_source(index as usize);
            (added, Placement::Source { slot, n, symbol_len, index: index as u16 })
        } else {
            match (CodeId::from_wire(header.code), Row::new(header.row)) {
                (Some(code), Some(row)) => (
                    block.tracker.add_repair(&mut self.rows, code, row),
                    Placement::Repair { slot, n, symbol_len, code, row },
                ),
                _ => (Added::Invalid, Placement::Discard),
            }
        };
        match added {
            Added::Invalid => {
                self.packets_refused += 1;
                return refused;
            }
            Added::Redundant => {
                self.symbols_redundant += 1;
                return refused;
            }
            Added::Innovative => block.has_repairs |= header.code != CodeId::SOURCE,
        }
        if !block.tracker.is_decodable() {
            return (placement, Progress::None);
        }
        let progress = if block.has_repairs {
            Progress::Decodable { stream: stream_id, block: id, slot }
        } else {
            Progress::Whole { stream: stream_id, block: id, slot }
        };
        stream.open.remove(&id);
        stream.complete.insert_one(id);
        if let Some((low, high)) = stream.complete.iter().next()
            && low <= stream.base
        {
            stream.base = high + 1;
            stream.complete.remove_below(stream.base);
        }
        stream.dirty = true;
        self.want_sack(now);
        (placement, progress)
    }

    /// The application has taken a complete block: its memory is free again.
    pub(crate) fn release(&mut self, now: Nanos, slot: Slot) {
        if let Some(cost) = self.slots.get_mut(slot.0 as usize).and_then(Option::take) {
            self.free_slots.push(slot);
            let held_before = self.opened_cost - self.released_cost;
            self.released_cost += cost;
            // A sender that had run into the window must hear of the new room at once.
            if held_before > self.window / 2 && self.opened_cost - self.released_cost <= self.window / 2 {
                self.want_sack(now);
            }
        }
    }

    // ---- feedback ---------------------------------------------------------------------------

    /// When a SACK is due.
    pub(crate) fn sack_timeout(&self) -> Option<Nanos> {
        self.largest.and(self.sack_at)
    }

    /// Write SACK and BLOCKS frames into `out`, at most `room` bytes.
    ///
    /// Block-SACKs come first: the sender then does not compensate losses in blocks that are complete.
    pub(crate) fn write_feedback(&mut self, now: Nanos, room: usize, out: &mut Vec<u8>) {
        let Some((_, received_at)) = self.largest else { return };
        self.sack_at = None;
        self.unacked = 0;
        let limit = out.len() + room / 2;
        for (&id, stream) in &mut self.streams {
            if out.len() >= limit {
                break;
            }
            if stream.dirty || !stream.open.is_empty() {
                stream.dirty = false;
                Frame::Blocks(blocks_frame(id, stream, self.flight_over)).encode(out);
            }
        }
        let largest_first = self.received.iter().rev();
        let mut sack = Sack {
            sequence: self.sack_sequence,
            delay_us: now.saturating_sub(received_at) / 1000,
            time_us: received_at / 1000,
            ect: self.ect,
            ce: self.ce,
            credit: self.released_cost + self.window,
            ranges: largest_first.take(room / 16).collect(),
        };
        sack.ranges.truncate(MAX_SACK_RANGES);
        self.sack_sequence += 1;
        Frame::Sack(sack).encode(out);
    }
}

/// State of one stream; deficits are those of blocks whose flight has passed: all but the newest,
/// and that one too at the end of a flight.
fn blocks_frame(id: u16, stream: &RxStream, flight_over: bool) -> Blocks {
    let passed = if flight_over { stream.seen } else { stream.seen.saturating_sub(1) };
    Blocks {
        stream: id,
        base: stream.base,
        complete: stream.complete.iter().take(MAX_BLOCK_RANGES.min(64)).collect(),
        deficits: stream
            .open
            .range(..passed)
            .take(MAX_DEFICITS.min(32))
            .map(|(id, block)| (*id, block.tracker.deficit() as u32))
            .collect(),
    }
}
