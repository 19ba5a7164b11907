//! The receiving half: blocks, and how much of them is known.

mod feedback;
mod window;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use sphinx_fec::{Added, CodeId, Row, RowMaker, Tracker};

use crate::Nanos;
use crate::blocks::{Assembly, Key, is_rateless, is_transform, is_transform_possible};
use crate::path::Arrivals;
use crate::ranges::RangeSet;
use crate::streams::{COMMON_SHARE, common_part};
use crate::types::{PacketMeta, PartPlacement, Placement, STREAMS_MAX, Slot, block_cost};
use crate::wire::{
    BLOCKS_AHEAD_MAX, Fragment, Header, MAX_SACK_RANGES, MAX_SYMBOL_LEN, SymbolId,
    block_symbols_max, expand_packet_number,
};

/// Packets that may wait for one SACK: this part of those so far, within bounds. Rate control measures the
/// first trains, of which SACKs may be lost.
const SACK_PART: u64 = 16;
const PACKETS_PER_SACK: (u64, u64) = (2, 64);
/// Bounds of the time that packets wait for a SACK.
const SACK_DELAY_MIN: Nanos = 250_000;
const SACK_DELAY_MAX: Nanos = 10_000_000;
/// SACKs never follow each other more closely, whatever asks for them.
const SACK_INTERVAL_MIN: Nanos = 250_000;
/// A complete block is told in so many SACKs, so that all of them must be lost before the sender does not
/// know of it.
const BLOCKS_REPEATS: u8 = 3;
/// How often the last SACK is repeated when nothing more arrives, each time after twice as long: the sender
/// may be waiting for it.
const TAIL_REPEATS: u8 = 3;

#[derive(Debug)]
struct RxBlock {
    slot: Slot,
    n: u16,
    symbol_len: u16,
    tracker: Tracker,
    /// Repair symbols kept. With one the block goes through the decoder, even if the last symbol
    /// to arrive was a source symbol.
    repairs: u16,
    /// They are those of a transform, which no others can be mixed with.
    is_transform: bool,
    /// Rows of peeling codes are eliminated like others: fewer of them are needed, and no more than n
    /// are kept.
    maximum_likelihood: bool,
}

impl RxBlock {
    /// An authenticated repair symbol.
    fn add_repair(&mut self, rows: &mut RowMaker, code: CodeId, row: Row) -> Added {
        let is_transform = is_transform(code);
        if is_transform && !is_transform_possible(self.n, self.symbol_len, row) {
            return Added::Invalid;
        }
        if self.repairs > 0 && is_transform != self.is_transform {
            return Added::Redundant;
        }
        let added = self.tracker.add_repair(rows, code, row);
        if added == Added::Innovative {
            self.repairs += 1;
            self.is_transform = is_transform;
        }
        added
    }
}

#[derive(Debug, Default)]
struct RxStream {
    /// Every block below is complete.
    base: u64,
    complete: RangeSet,
    open: BTreeMap<u64, RxBlock>,
    /// Highest block of which a symbol arrived, plus one.
    seen: u64,
    /// SACKs that will have a BLOCKS frame even if nothing is open.
    news: u8,
    /// Costs of all blocks opened, of those the application has taken, and of these told.
    opened: u64,
    taken: u64,
    taken_told: u64,
}

impl RxStream {
    /// The block has all it needs.
    fn complete(&mut self, id: u64) {
        self.open.remove(&id);
        self.complete.insert_one(id);
        let lowest = self.complete.iter().next();
        if let Some((low, high)) = lowest
            && low <= self.base
        {
            self.base = high + 1;
            self.complete.remove_below(self.base);
        }
        self.news = BLOCKS_REPEATS;
    }
}

pub(crate) struct Receiver {
    /// Lowest bit of the ids of the peer's streams.
    peer_parity: u16,
    streams: BTreeMap<u16, RxStream>,
    rows: RowMaker,
    received: RangeSet,
    pub(crate) arrivals: Arrivals,
    largest: Option<(u64, Nanos)>,
    ect: u64,
    ce: u64,
    sack_sequence: u64,
    unacked: u64,
    sack_at: Option<Nanos>,
    last_sack: Option<Nanos>,
    /// When the last SACK is repeated unless more arrives, repetitions left, and the time between them.
    tail_at: Option<Nanos>,
    tail_repeats: u8,
    tail_delay: Nanos,
    /// Largest packets of the last `SACK_REPEATS` SACKs, oldest first.
    told: VecDeque<u64>,
    /// The stream whose turn it is in the next BLOCKS frame.
    feedback_turn: u16,
    last_eliciting: Nanos,
    /// The last packet carried the last-of-flight mark: even the newest block's deficit counts.
    flight_over: bool,
    window: u64,
    /// Costs of all blocks opened here, and of those the application has taken.
    opened_cost: u64,
    released_cost: u64,
    /// Credit in the last SACK with a PING.
    credit_told: u64,
    /// Incomplete blocks of all streams.
    open_blocks: usize,
    /// Symbols of which a part has arrived.
    assembly: Assembly,
    /// Costs and streams by slot; `None` when the slot is free.
    slots: Vec<Option<(u64, u16)>>,
    free_slots: Vec<Slot>,
    pub(crate) symbols_redundant: u64,
    pub(crate) packets_refused: u64,
}

/// Source symbols, and bytes of each.
type Shape = (u16, u16);

/// Whether a block takes symbols.
enum Opened {
    Open(Slot),
    Complete,
    /// It is beyond the window or another limit, or of another shape.
    Refused,
}

/// What the symbol did to its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More symbols are needed, or it brought nothing.
    None,
    /// All source symbols are there.
    Whole { stream: u16, block: u64, slot: Slot },
    /// Missing symbols can be computed.
    Decodable {
        stream: u16,
        block: u64,
        slot: Slot,
        maximum_likelihood: bool,
    },
    /// The peer broke the protocol.
    Violation(&'static str),
}

impl Receiver {
    pub(crate) fn new(peer_parity: u16, window: u64) -> Self {
        Self {
            peer_parity,
            streams: BTreeMap::new(),
            rows: RowMaker::new(),
            received: RangeSet::default(),
            arrivals: Arrivals::default(),
            largest: None,
            ect: 0,
            ce: 0,
            sack_sequence: 0,
            unacked: 0,
            sack_at: None,
            last_sack: None,
            tail_at: None,
            tail_repeats: 0,
            tail_delay: SACK_DELAY_MAX,
            told: VecDeque::new(),
            feedback_turn: 0,
            last_eliciting: 0,
            flight_over: false,
            window,
            opened_cost: 0,
            released_cost: 0,
            credit_told: window,
            open_blocks: 0,
            assembly: Assembly::default(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            symbols_redundant: 0,
            packets_refused: 0,
        }
    }

    /// Largest packet number opened.
    pub(crate) fn largest(&self) -> Option<u64> {
        self.largest.map(|(pn, _)| pn)
    }

    /// Whether a block has begun to arrive and lacks symbols.
    pub(crate) fn is_waiting(&self) -> bool {
        self.open_blocks > 0
    }

    /// How long packets may wait for a SACK.
    pub(crate) fn sack_delay(rtt: Nanos) -> Nanos {
        (rtt / 8).clamp(SACK_DELAY_MIN, SACK_DELAY_MAX)
    }

    // ---- packets --------------------------------------------------------------------------------

    /// Note an opened packet for the next SACK.
    pub(crate) fn on_packet(
        &mut self,
        meta: &PacketMeta,
        eliciting: bool,
        last_of_flight: bool,
        rtt: Nanos,
    ) {
        self.received.insert_one(meta.packet_number);
        self.arrivals.on_packet(meta.packet_number);
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
        self.tail_at = None;
        self.tail_repeats = TAIL_REPEATS;
        self.tail_delay = (delay / 2).max(SACK_INTERVAL_MIN);
        self.unacked += 1;
        let (least, most) = PACKETS_PER_SACK;
        let packets_per_sack = (meta.packet_number / SACK_PART).clamp(least, most);
        self.flight_over = last_of_flight;
        let first_after_idle = meta.now.saturating_sub(self.last_eliciting) > 2 * rtt.max(delay);
        self.last_eliciting = meta.now;
        let at = if last_of_flight
            || meta.ecn == 0b11
            || self.unacked >= packets_per_sack
            || first_after_idle
        {
            meta.now
        } else {
            meta.now + delay
        };
        self.want_sack(at);
    }

    fn want_sack(&mut self, at: Nanos) {
        let at = self
            .last_sack
            .map_or(at, |last| at.max(last + SACK_INTERVAL_MIN));
        self.sack_at = Some(self.sack_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Whether there can be such a block; if so its stream exists from now on.
    fn is_possible(&mut self, stream: u16, n: u16, symbol_len: usize) -> bool {
        let is_possible = stream & 1 == self.peer_parity
            && (1..=MAX_SYMBOL_LEN).contains(&symbol_len)
            && (1..=block_symbols_max(symbol_len)).contains(&usize::from(n))
            && (self.streams.contains_key(&stream) || (self.streams.len() as u64) < STREAMS_MAX);
        if is_possible {
            self.streams.entry(stream).or_default();
        }
        is_possible
    }

    /// The incomplete block with this id, which is made if window and limits allow; `code` is that of its
    /// first symbol.
    fn open(&mut self, stream_id: u16, id: u64, shape: Shape, code: Option<CodeId>) -> Opened {
        let Some(stream) = self.streams.get_mut(&stream_id) else {
            return Opened::Refused;
        };
        if id < stream.base || stream.complete.contains(id) {
            return Opened::Complete;
        }
        let vacant = match stream.open.entry(id) {
            Entry::Occupied(entry) => {
                let block = entry.into_mut();
                return if (block.n, block.symbol_len) == shape {
                    Opened::Open(block.slot)
                } else {
                    Opened::Refused
                };
            }
            Entry::Vacant(entry) => entry,
        };
        let (n, symbol_len) = shape;
        let cost = block_cost(n, symbol_len);
        let over = self.opened_cost + cost > self.released_cost + self.window;
        let (false, true, Ok(tracker)) = (
            over,
            id < stream.base + BLOCKS_AHEAD_MAX,
            Tracker::new(usize::from(n)),
        ) else {
            return Opened::Refused;
        };
        // Of a block of `lt` no source symbol is sent.
        let maximum_likelihood = is_rateless(code);
        self.opened_cost += cost;
        self.open_blocks += 1;
        stream.opened += cost;
        stream.seen = stream.seen.max(id + 1);
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(None);
            Slot(self.slots.len() as u32 - 1)
        });
        self.slots[slot.0 as usize] = Some((cost, stream_id));
        vacant.insert(RxBlock {
            slot,
            n,
            symbol_len,
            tracker: if maximum_likelihood {
                tracker.maximum_likelihood()
            } else {
                tracker
            },
            repairs: 0,
            is_transform: false,
            maximum_likelihood,
        });
        Opened::Open(slot)
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
        let Ok(symbol) = header.symbol() else {
            return (Placement::Discard, Progress::Violation("unknown code"));
        };
        let code = symbol.code();
        // A window's repairs have a body of their own.
        if code == Some(CodeId::Window) || !self.is_possible(stream_id, n, symbol_len) {
            self.packets_refused += 1;
            return refused;
        }
        let symbol_len = symbol_len as u16;
        let id = self.expand_block(stream_id, header.block);
        let slot = match self.open(stream_id, id, (n, symbol_len), code) {
            Opened::Open(slot) => slot,
            Opened::Complete => {
                self.already_complete(stream_id);
                return refused;
            }
            Opened::Refused => {
                self.packets_refused += 1;
                return refused;
            }
        };
        let Some(block) = Self::block_mut(&mut self.streams, stream_id, id) else {
            return refused;
        };
        let added = match symbol {
            SymbolId::Source(index) => block.tracker.add_source(usize::from(index)),
            // Peeling may want more; the missing symbols themselves will come.
            SymbolId::Repair(..) if block.repairs >= n => Added::Redundant,
            SymbolId::Repair(code, row) => block.add_repair(&mut self.rows, code, row),
        };
        match added {
            Added::Invalid => {
                self.packets_refused += 1;
                refused
            }
            Added::Redundant => {
                self.symbols_redundant += 1;
                refused
            }
            Added::Innovative => {
                let placement = Placement::Block {
                    slot,
                    n,
                    symbol_len,
                    symbol,
                };
                (placement, self.advance(now, stream_id, id))
            }
        }
    }

    fn expand_block(&self, stream: u16, block: u32) -> u64 {
        let base = self.streams.get(&stream).map_or(0, |stream| stream.base);
        expand_packet_number(block, base)
    }

    fn block_mut(
        streams: &mut BTreeMap<u16, RxStream>,
        stream: u16,
        id: u64,
    ) -> Option<&mut RxBlock> {
        streams.get_mut(&stream)?.open.get_mut(&id)
    }

    /// A symbol came for a block that needs none.
    fn already_complete(&mut self, stream: u16) {
        self.symbols_redundant += 1;
        // The peer has not heard that the block is complete.
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.news = BLOCKS_REPEATS;
        }
    }

    /// More of a block is known: what follows.
    fn advance(&mut self, now: Nanos, stream: u16, id: u64) -> Progress {
        let Some(block) = Self::block_mut(&mut self.streams, stream, id) else {
            return Progress::None;
        };
        if !block.tracker.is_decodable() {
            return Progress::None;
        }
        let slot = block.slot;
        let progress = if block.repairs > 0 {
            Progress::Decodable {
                stream,
                block: id,
                slot,
                maximum_likelihood: block.maximum_likelihood,
            }
        } else {
            Progress::Whole {
                stream,
                block: id,
                slot,
            }
        };
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.complete(id);
        }
        self.open_blocks -= 1;
        self.want_sack(now);
        progress
    }

    /// An authenticated part of a symbol: where it goes, and the symbol's place if this was the last part.
    pub(crate) fn on_fragment(
        &mut self,
        now: Nanos,
        header: &Header,
        fragment: Fragment,
    ) -> Option<(PartPlacement, Progress)> {
        let key = Key {
            stream: header.stream,
            block: self.expand_block(header.stream, header.block),
            code: header.code,
            row: header.row,
            symbol_len: fragment.symbol_len,
            count: fragment.count,
        };
        let (place, whole) = self.assembly.add(key, fragment.index)?;
        let (placement, progress) = if whole {
            let (placement, progress) =
                self.on_symbol(now, header, usize::from(fragment.symbol_len));
            (Some(placement), progress)
        } else {
            (None, Progress::None)
        };
        let part = PartPlacement {
            place,
            symbol_len: fragment.symbol_len,
            offset: fragment.range().start,
            whole: placement,
        };
        Some((part, progress))
    }

    /// The application has taken a complete block: its memory is free again. Whether the sender must
    /// be sure to hear of it, since it may be waiting for nothing else.
    pub(crate) fn release(&mut self, now: Nanos, slot: Slot) -> bool {
        let taken = self.slots.get_mut(slot.0 as usize).and_then(Option::take);
        let Some((cost, stream)) = taken else {
            return false;
        };
        self.free_slots.push(slot);
        self.released_cost += cost;
        let untold = self.credit() - self.credit_told;
        let left = self.credit_told.saturating_sub(self.opened_cost);
        // With much of the window held by streams that are not read, the rest matters the more.
        let scarce = left < self.window / 8 && 3 * untold >= left;
        let mut urgent = left < self.window / 2 && untold >= self.window / 4 || scarce;
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.taken += cost;
            stream.news = stream.news.max(1);
            // The sender may be waiting for this stream's share of the window, as far as it knows.
            let held = stream.opened - stream.taken_told;
            let in_use = self.opened_cost - self.released_cost;
            let free = common_part(self.window).saturating_sub(in_use);
            let share = COMMON_SHARE.saturating_mul(free);
            if 2 * held >= share && 4 * (stream.taken - stream.taken_told) >= held {
                stream.news = BLOCKS_REPEATS;
                urgent = true;
            }
        }
        if urgent {
            self.want_sack(now);
        }
        urgent
    }

    fn credit(&self) -> u64 {
        self.released_cost + self.window
    }
}
