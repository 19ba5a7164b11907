//! The blocks on their way: which of their symbols were sent, which have arrived, and how much
//! repair is still to be sent ("owed").

use std::collections::{BTreeSet, VecDeque};

use sphinx_fec::bits;

use crate::types::{Lifetime, Slot, StreamId, Urgency, block_cost};
use crate::wire::{BLOCKS_AHEAD_MAX, SymbolId};
use crate::{BlockId, Nanos, PathId, Time};

use super::copied::Copied;

/// What [`BlockStore::push`] is told of a block.
#[derive(Debug)]
pub(crate) struct NewBlock {
    /// Of which streams it holds a part, once for each part.
    pub(crate) streams: Box<[StreamId]>,
    pub(crate) slot: Slot,
    /// Source symbols, and bytes of each.
    pub(crate) n: u16,
    pub(crate) symbol_len: u16,
    /// The application ended a message or the stream here.
    pub(crate) tail: bool,
    /// Urgency of what it holds.
    pub(crate) urgency: Urgency,
    /// Of a block of datagrams: until when it is of use, and how it is repaired.
    pub(crate) lifetime: Option<Lifetime>,
}

/// What a code asks of a block.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Demands {
    /// Symbols beyond n that must arrive for the block to be decoded.
    pub(super) surplus: u32,
    /// Source symbols may be sent twice (`fft-rs`): those that have arrived are remembered, so that
    /// a second copy does not count.
    pub(super) repeats_sources: bool,
}

/// A block on its way.
#[derive(Debug)]
pub(crate) struct TxBlock {
    /// Of which streams it holds a part, once for each part.
    pub(crate) streams: Box<[StreamId]>,
    pub(crate) slot: Slot,
    pub(crate) n: u16,
    pub(crate) symbol_len: u16,
    pub(crate) tail: bool,
    pub(crate) urgency: Urgency,
    /// Of a block of datagrams. Its repair depends on the time that it has left, not on the flight
    /// that it is part of.
    pub(crate) lifetime: Option<Lifetime>,
    /// Of a block of datagrams: when to check whether it is to be given up.
    looked_at: Time,
    /// Next source symbol to send for the first time.
    next_source: u16,
    /// Next repair row.
    pub(super) next_row: u32,
    in_flight: u32,
    acked: u32,
    /// Repair rows that are to be sent, and how many of them were decided on before any loss was
    /// seen. Only [`BlockStore`] changes them, as it keeps the set of blocks that have some.
    due: u32,
    due_ahead: u32,
    /// Repair rows ahead of loss that wait to share packets with symbols of later blocks, and until
    /// when the next one waits.
    rides: u32,
    ride_until: Time,
    /// Until this time repairs that protect it together with other blocks may still restore it, and
    /// the peer says whether they have.
    pub(super) shared_until: Time,
    /// Sliding-window repairs that are counted as repairs of this block.
    pub(super) windowed: u32,
    /// Repair rows that were sent only because the peer said that it lacks symbols. They are
    /// bounded, as the peer can say that for ever.
    pub(super) claimed: u32,
    /// Rounds of repair so far: 1 once a first transmission had to be replaced.
    pub(super) rounds: u8,
    /// Nothing is left to decide about its repair ahead of loss as a part of a flight.
    pub(super) protected: bool,
    surplus: u32,
    /// Spread of its proactive rows (`rlc`), their degree (`srlt`), or the transform (`fft-rs`).
    pub(super) shape: u32,
    /// Source symbols whose packets were lost; kept where compensation may use the originals
    /// themselves: for codes that decode by peeling, and in the paper's mode.
    pub(super) lost_sources: Vec<u16>,
    /// Source symbols that have arrived, as a bit map; empty unless some may be sent twice.
    arrived: Vec<u64>,
    /// How many symbols the peer says it lacks, until that is answered.
    pub(super) wanted: u32,
    /// Latest round of repair of which a packet was lost.
    pub(super) lost_round: u8,
    /// When a symbol was sent last.
    last_sent: Time,
    /// When it was compensated last.
    pub(super) compensated: Option<Time>,
    /// Fate of the symbols that leave on several paths.
    copied: Copied,
}

impl TxBlock {
    pub(super) fn new(new: NewBlock, demands: Demands) -> Self {
        let marks = if demands.repeats_sources {
            bits::words(usize::from(new.n))
        } else {
            0
        };
        Self {
            streams: new.streams,
            slot: new.slot,
            n: new.n,
            symbol_len: new.symbol_len,
            tail: new.tail,
            urgency: new.urgency,
            lifetime: new.lifetime,
            looked_at: new.lifetime.map_or(Time::ZERO, |lifetime| lifetime.until),
            next_source: 0,
            next_row: 0,
            in_flight: 0,
            acked: 0,
            due: 0,
            due_ahead: 0,
            rides: 0,
            ride_until: Time::ZERO,
            shared_until: Time::ZERO,
            windowed: 0,
            claimed: 0,
            rounds: 0,
            protected: new.lifetime.is_some(),
            surplus: demands.surplus,
            shape: 1,
            lost_sources: Vec::new(),
            arrived: vec![0; marks],
            wanted: 0,
            lost_round: 0,
            last_sent: Time::ZERO,
            compensated: None,
            copied: Copied::default(),
        }
    }

    /// The block's cost in the flow-control window, bytes.
    pub(crate) fn cost(&self) -> u64 {
        block_cost(self.n, self.symbol_len)
    }

    /// Bytes of its source symbols.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.n) * u64::from(self.symbol_len)
    }

    /// A loss of it is answered, by a mode that sends its own repair: the paper's, or generations.
    pub(crate) fn begin_second_round(&mut self) {
        self.rounds = self.rounds.max(1);
    }

    /// Whether a loss of it had to be answered with repair.
    pub(crate) fn had_second_round(&self) -> bool {
        self.rounds > 0
    }

    /// Source symbols that have been sent.
    pub(crate) fn sent_sources(&self) -> u16 {
        self.next_source
    }

    pub(crate) fn unsent(&self) -> u32 {
        u32::from(self.n - self.next_source)
    }

    /// Symbols that the peer has acknowledged.
    pub(super) fn acked(&self) -> u32 {
        self.acked
    }

    /// Repair rows that it is owed.
    pub(crate) fn due(&self) -> u32 {
        self.due
    }

    /// Whether the source symbol is known to have arrived, where that is remembered.
    pub(super) fn has_arrived(&self, index: usize) -> bool {
        bits::contains(&self.arrived, index)
    }

    /// Symbols that must arrive.
    pub(super) fn needed(&self) -> u32 {
        u32::from(self.n) + self.surplus
    }

    /// Symbols beyond n that must arrive.
    pub(super) fn surplus(&self) -> u32 {
        self.surplus
    }

    /// Symbols that may still arrive without a further decision: those in flight and those that are
    /// going to be sent.
    pub(super) fn expected(&self) -> u32 {
        self.in_flight + self.unsent() + self.due + self.rides
    }

    /// How many more symbols must be sent for the block to be decoded even if all the expected ones
    /// arrive.
    pub(super) fn deficit(&self) -> u32 {
        self.needed().saturating_sub(self.acked + self.expected())
    }

    /// Whether no symbol waits to be sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.unsent() == 0 && self.due == 0 && self.rides == 0
    }

    /// Whether no symbol waits to be sent, and of all that were sent it is known whether they have
    /// arrived.
    pub(super) fn flight_passed(&self) -> bool {
        self.in_flight == 0 && self.is_sent()
    }

    /// When a symbol was sent last.
    pub(crate) fn last_sent(&self) -> Time {
        self.last_sent
    }

    /// A symbol of it leaves, or a part of one.
    pub(super) fn sent(&mut self, now: Time) {
        self.last_sent = now;
    }

    /// A sliding-window repair that counts as a repair of this block is going to be sent.
    pub(super) fn add_windowed(&mut self) {
        self.windowed += 1;
        self.in_flight += 1;
    }

    /// A packet with the symbol has arrived; `late`: it had been counted as lost. A symbol counts
    /// once, however many copies of it arrive. Returns whether the symbol had been counted as lost;
    /// `None` if a copy had arrived before.
    pub(super) fn arrived(&mut self, symbol: SymbolId, late: bool) -> Option<bool> {
        let (is_first, settled) = self.copied.arrived(symbol, late);
        self.in_flight -= settled;
        if !is_first {
            return None;
        }
        let copy = symbol.source().map(usize::from);
        let copy = copy.filter(|_| !self.arrived.is_empty());
        let is_new = copy.is_none_or(|at| !bits::contains(&self.arrived, at));
        if let Some(at) = copy {
            bits::insert(&mut self.arrived, at);
        }
        self.acked += u32::from(is_new);
        Some(settled == 0)
    }

    /// A packet with the symbol counts as lost. Returns whether the symbol does, which needs that
    /// all its copies are lost.
    pub(super) fn lost(&mut self, symbol: SymbolId, round: u8) -> bool {
        let given_up = self.copied.lost(symbol);
        if given_up == 0 {
            return false;
        }
        self.in_flight -= given_up;
        self.lost_round = self.lost_round.max(round);
        true
    }

    /// The symbol, which leaves, is to leave on another path too.
    pub(crate) fn add_copy(&mut self, symbol: SymbolId) {
        self.copied.add(symbol);
    }

    /// Whether one of the copies of this symbol has arrived.
    pub(crate) fn has_copy(&self, symbol: SymbolId) -> bool {
        self.copied.has_arrived(symbol)
    }

    /// A symbol of this block to send next. It may have been sent before, and on several paths.
    pub(super) fn choice_again(&mut self, sequence: BlockId, symbol: SymbolId) -> SymbolChoice {
        self.copied.again(symbol);
        self.choice(sequence, symbol)
    }

    /// A symbol of this block to send next.
    pub(crate) fn choice(&self, sequence: BlockId, symbol: SymbolId) -> SymbolChoice {
        SymbolChoice {
            sequence,
            round: self.rounds,
            slot: self.slot,
            n: self.n,
            symbol_len: self.symbol_len,
            symbol,
            more: match self.due_ahead {
                0 => self.due,
                ahead => ahead,
            },
            last_of_flight: false,
            is_copy: false,
        }
    }
}

/// A symbol that is to be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SymbolChoice {
    pub(crate) sequence: BlockId,
    /// Round of repair that the symbol belongs to.
    pub(crate) round: u8,
    pub(crate) slot: Slot,
    pub(crate) n: u16,
    pub(crate) symbol_len: u16,
    pub(crate) symbol: SymbolId,
    /// How many repairs are to be sent besides: those ahead of loss if there are any, otherwise
    /// all.
    pub(crate) more: u32,
    pub(crate) last_of_flight: bool,
    /// The symbol has left on another path already or is about to: the state of its block does not
    /// change with this copy.
    pub(crate) is_copy: bool,
}

/// All blocks on their way, in the order in which they were handed over: each has a sequence, from 0, which is its id
/// on the wire.
///
/// "Owed" repair is repair that has been decided on and not sent. It changes only here, by
/// [`owe`](Self::owe), [`take_due`](Self::take_due), [`forgive`](Self::forgive),
/// [`owe_nothing`](Self::owe_nothing) and [`settle`](Self::settle): a block is among `owed` if and
/// only if rows of it are due. In the same way [`owe_rides`](Self::owe_rides),
/// [`take_ride`](Self::take_ride), [`end_rides`](Self::end_rides), `owe_nothing` and `settle` keep
/// `riding`.
#[derive(Debug, Default)]
pub(crate) struct BlockStore {
    /// From sequence `first` up; `None` once complete.
    blocks: VecDeque<Option<TxBlock>>,
    first: BlockId,
    /// Blocks with unsent source symbols, the most urgent first; and bytes of these symbols by
    /// urgency.
    unsent: BTreeSet<(Urgency, BlockId)>,
    unsent_bytes: [u64; Urgency::LEVELS],
    /// Blocks with unsent source symbols that are reserved for slow paths, one for each path: they
    /// leave before their turn, to arrive in it.
    carried: Vec<(PathId, BlockId)>,
    /// Blocks that are owed repair, the most urgent first.
    owed: BTreeSet<(Urgency, BlockId)>,
    /// When to check whether a block of datagrams is to be given up, the earliest first.
    expiring: BTreeSet<(Time, BlockId)>,
    /// Blocks with rows that wait to share packets with symbols of other blocks, and until when
    /// they wait, the earliest first.
    riding: BTreeSet<(Time, BlockId)>,
    /// Sums of the window costs of all incomplete blocks, by urgency, bytes.
    open_cost: [u64; Urgency::LEVELS],
}

impl BlockStore {
    /// Adds a block. Returns its sequence.
    pub(crate) fn push(&mut self, new: NewBlock, demands: Demands) -> BlockId {
        let sequence = self.next_sequence();
        let block = TxBlock::new(new, demands);
        let urgency = block.urgency;
        self.open_cost[urgency.at()] += block.cost();
        self.unsent_bytes[urgency.at()] += block.bytes();
        if block.lifetime.is_some() {
            self.expiring.insert((block.looked_at, sequence));
        }
        self.blocks.push_back(Some(block));
        self.unsent.insert((urgency, sequence));
        sequence
    }

    // ---- blocks that are of use for a while -------------------------------------------------------

    /// When the next block of datagrams may have to be given up.
    pub(crate) fn next_expiry(&self) -> Option<Time> {
        self.expiring.first().map(|(at, _)| *at)
    }

    /// A block of datagrams that is to be given up, as its time is over. If all its source symbols
    /// have left and some symbol is in flight, that is waited for before, no longer than `patience`.
    pub(crate) fn next_expired(&mut self, now: Time, patience: Nanos) -> Option<BlockId> {
        while let Some(&(at, sequence)) = self.expiring.first().filter(|(at, _)| *at <= now) {
            let block = self.get(sequence)?;
            let until = block.lifetime.map_or(Time::ZERO, |lifetime| lifetime.until);
            let last = until.saturating_add(patience);
            let may_arrive = block.unsent() == 0 && block.in_flight > 0;
            if at < until || now >= last || !may_arrive {
                return Some(sequence);
            }
            self.look_at(sequence, last);
            self.owe_nothing(sequence);
        }
        None
    }

    /// Takes back all repair that the block is owed: it would arrive too late.
    fn owe_nothing(&mut self, sequence: BlockId) {
        let Some(block) = self.get_mut(sequence) else {
            return;
        };
        (block.due, block.due_ahead, block.rides) = (0, 0, 0);
        let owed = (block.urgency, sequence);
        let riding = (block.ride_until, sequence);
        self.owed.remove(&owed);
        self.riding.remove(&riding);
    }

    fn look_at(&mut self, sequence: BlockId, at: Time) {
        let Some(block) = self.get_mut(sequence) else {
            return;
        };
        let before = std::mem::replace(&mut block.looked_at, at);
        self.expiring.remove(&(before, sequence));
        self.expiring.insert((at, sequence));
    }

    /// The block is to be given up at once: [`next_expired`](Self::next_expired) gives it.
    pub(super) fn doom(&mut self, sequence: BlockId) {
        self.look_at(sequence, Time::ZERO);
    }

    /// The sequence of the next block.
    pub(crate) fn next_sequence(&self) -> BlockId {
        self.first + self.blocks.len() as u64
    }

    /// Sequence of the oldest block that is kept.
    pub(crate) fn first_sequence(&self) -> BlockId {
        self.first
    }

    pub(crate) fn get(&self, sequence: BlockId) -> Option<&TxBlock> {
        let at = sequence.checked_sub(self.first)?;
        self.blocks.get(usize::try_from(at).ok()?)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, sequence: BlockId) -> Option<&mut TxBlock> {
        let at = sequence.checked_sub(self.first)?;
        self.blocks.get_mut(usize::try_from(at).ok()?)?.as_mut()
    }

    /// Incomplete blocks with their sequences, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (BlockId, &TxBlock)> {
        self.first
            .until(self.next_sequence())
            .zip(&self.blocks)
            .filter_map(|(sequence, block)| Some((sequence, block.as_ref()?)))
    }

    /// The newest incomplete block of streams that are as urgent as this, or more.
    pub(super) fn last_before(&self, urgency: Urgency) -> Option<&TxBlock> {
        let mut newest = self.blocks.iter().rev().flatten();
        newest.find(|block| block.urgency <= urgency && block.lifetime.is_none())
    }

    /// Whether blocks that are as urgent as this, or more, have symbols to send.
    pub(crate) fn has_symbol_before(&self, urgency: Urgency) -> bool {
        let is_before = |(first, _): &(Urgency, BlockId)| *first <= urgency;
        self.owed.first().is_some_and(is_before) || self.unsent.first().is_some_and(is_before)
    }

    /// Whether the peer has all blocks.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Whether another block keeps within [`BLOCKS_AHEAD_MAX`].
    pub(crate) fn has_room(&self) -> bool {
        (self.blocks.len() as u64) < BLOCKS_AHEAD_MAX
    }

    /// Sum of the costs of all incomplete blocks.
    pub(crate) fn open_cost(&self) -> u64 {
        self.open_cost_before(Urgency::LEAST)
    }

    /// Sum of the costs of the incomplete blocks that are as urgent as this, or more.
    pub(crate) fn open_cost_before(&self, urgency: Urgency) -> u64 {
        self.open_cost[..=urgency.at()].iter().sum()
    }

    /// Bytes of source symbols handed over and not sent, that are as urgent as this, or more.
    pub(crate) fn unsent_before(&self, urgency: Urgency) -> u64 {
        self.unsent_bytes[..=urgency.at()].iter().sum()
    }

    /// Whether source symbols wait to be sent for the first time.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whether a block is owed repair.
    pub(crate) fn is_owing(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Whether repair is next: of what is equally urgent, it goes before new symbols.
    pub(crate) fn owes_first(&self) -> bool {
        let urgency = |(urgency, _): &(Urgency, BlockId)| *urgency;
        match (self.owed.first(), self.unsent.first()) {
            (Some(owed), Some(unsent)) => urgency(owed) <= urgency(unsent),
            (owed, _) => owed.is_some(),
        }
    }

    // ---- what slow paths carry --------------------------------------------------------------------

    /// The block that is reserved for this path, if it has unsent source symbols.
    pub(crate) fn carried_by(&self, path: PathId) -> Option<BlockId> {
        let carried = self.carried.iter().find(|(carrier, _)| *carrier == path);
        carried.map(|(_, sequence)| *sequence)
    }

    /// The block is reserved for this path from now on.
    pub(crate) fn carry(&mut self, path: PathId, sequence: BlockId) {
        self.carried.push((path, sequence));
    }

    /// Blocks that are reserved for paths for which `may_carry` is false may leave on any path
    /// again.
    pub(crate) fn carry_only_on(&mut self, may_carry: impl Fn(PathId) -> bool) {
        self.carried.retain(|(path, _)| may_carry(*path));
    }

    /// Blocks with unsent source symbols that are reserved for no path, in the order in which they
    /// leave, and bytes of these symbols.
    pub(crate) fn in_turn(&self) -> impl Iterator<Item = (BlockId, &TxBlock, u64)> {
        let is_carried = |sequence| self.carried.iter().any(|(_, other)| *other == sequence);
        let unsent = self.unsent.iter().map(|(_, sequence)| *sequence);
        unsent
            .filter(move |sequence| !is_carried(*sequence))
            .filter_map(|sequence| {
                let block = self.get(sequence)?;
                let bytes = u64::from(block.unsent()) * u64::from(block.symbol_len);
                Some((sequence, block, bytes))
            })
    }

    /// Bytes of the unsent source symbols of blocks that are reserved for no path; counting stops
    /// at `enough`.
    pub(crate) fn in_turn_bytes(&self, enough: u64) -> u64 {
        let mut sum = 0;
        for (_, _, bytes) in self.in_turn() {
            sum += bytes;
            if sum >= enough {
                break;
            }
        }
        sum
    }

    /// The block whose source symbol is next on this path: the one that is reserved for it; else
    /// the first that is reserved for no path; else the first of all, which another path has
    /// reserved.
    fn next_unsent(&self, path: PathId) -> Option<(Urgency, BlockId)> {
        let first = *self.unsent.first()?;
        if self.carried.is_empty() {
            return Some(first);
        }
        let sequence = self.carried_by(path);
        let sequence = sequence.or_else(|| self.in_turn().next().map(|(sequence, ..)| sequence));
        let Some(block) = sequence.and_then(|sequence| self.get(sequence)) else {
            return Some(first);
        };
        sequence.map(|sequence| (block.urgency, sequence))
    }

    /// The next source symbol for this path that has not been sent: its block's sequence and its index. It counts as sent, and in flight.
    pub(super) fn take_source(&mut self, path: PathId) -> Option<(BlockId, u16)> {
        let (urgency, sequence) = self.next_unsent(path)?;
        let index = self.following(sequence)?;
        self.take_following(sequence, 1);
        if self.get(sequence)?.unsent() == 0 {
            self.unsent.remove(&(urgency, sequence));
            self.carried.retain(|(_, carried)| *carried != sequence);
        }
        Some((sequence, index))
    }

    /// How many source symbols of the same block are bound to leave right after `choice`, if that
    /// is the source symbol that was sent last. The last one of the block is not among them: its
    /// departure decides on repair.
    pub(crate) fn follow(&self, choice: &SymbolChoice) -> u32 {
        let is_alone = self.carried.is_empty() && self.riding.is_empty() && !self.owes_first();
        let sequence = choice.sequence;
        let Some(block) = self.get(sequence).filter(|_| is_alone && choice.round == 0) else {
            return 0;
        };
        let is_latest = choice.symbol.source().map(|index| index + 1) == Some(block.next_source);
        match is_latest && self.unsent.first() == Some(&(block.urgency, sequence)) {
            true => block.unsent().saturating_sub(1),
            false => 0,
        }
    }

    /// The index of the next source symbol of this block.
    pub(crate) fn following(&self, sequence: BlockId) -> Option<u16> {
        let block = self.get(sequence).filter(|b| b.unsent() > 0)?;
        Some(block.next_source)
    }

    /// The next `count` source symbols of this block count as sent, and in flight. There must be as
    /// many that are unsent.
    pub(crate) fn take_following(&mut self, sequence: BlockId, count: u16) {
        let Some(block) = self.get_mut(sequence) else {
            return;
        };
        block.next_source += count;
        block.in_flight += u32::from(count);
        let bytes = u64::from(count) * u64::from(block.symbol_len);
        let urgency = block.urgency;
        self.unsent_bytes[urgency.at()] -= bytes;
    }

    /// The block is owed so many more repair rows; `ahead`: not because of a loss.
    pub(super) fn owe(&mut self, sequence: BlockId, rows: u32, ahead: bool) {
        let Some(block) = self.get_mut(sequence).filter(|_| rows > 0) else {
            return;
        };
        block.due += rows;
        block.due_ahead += if ahead { rows } else { 0 };
        let urgency = block.urgency;
        self.owed.insert((urgency, sequence));
    }

    /// A repair row is going to be sent, of the oldest of the most urgent blocks that are owed
    /// some; it counts as in flight. Returns the block's sequence, and whether the row was owed
    /// ahead of loss.
    pub(super) fn take_due(&mut self) -> Option<(BlockId, bool)> {
        let &(urgency, sequence) = self.owed.first()?;
        let block = self.get_mut(sequence)?;
        let ahead = block.due_ahead > 0;
        block.due -= 1;
        block.due_ahead -= u32::from(ahead);
        block.in_flight += 1;
        if block.due == 0 {
            self.owed.remove(&(urgency, sequence));
        }
        Some((sequence, ahead))
    }

    /// Takes back one row that was owed because of a loss, if there is one.
    pub(super) fn forgive(&mut self, sequence: BlockId) {
        let Some(block) = self.get_mut(sequence).filter(|b| b.due > b.due_ahead) else {
            return;
        };
        block.due -= 1;
        if block.due == 0 {
            let urgency = block.urgency;
            self.owed.remove(&(urgency, sequence));
        }
    }

    /// So many repair rows of the block, ahead of loss, are to share packets with symbols of later
    /// blocks. The first one waits for such a packet until this time.
    pub(super) fn owe_rides(&mut self, sequence: BlockId, rows: u32, until: Time) {
        let Some(block) = self.get_mut(sequence).filter(|_| rows > 0) else {
            return;
        };
        let before = (block.ride_until, sequence);
        block.rides += rows;
        block.ride_until = until;
        self.riding.remove(&before);
        self.riding.insert((until, sequence));
    }

    /// A repair row is going to share a packet with a symbol of block `main`: a row of an older
    /// block that fits, of these the one whose wait ends first. It counts as in flight; the next
    /// row of its block waits until `until`.
    pub(super) fn take_ride(
        &mut self,
        main: BlockId,
        until: Time,
        fits: impl Fn(BlockId, &TxBlock) -> bool,
    ) -> Option<BlockId> {
        let rides = |(at, sequence): &(Time, BlockId)| {
            let block = self.get(*sequence).filter(|_| *sequence < main)?;
            let is_wanted = block.acked < block.needed() && fits(*sequence, block);
            is_wanted.then_some((*at, *sequence))
        };
        let place = self.riding.iter().find_map(rides)?;
        self.riding.remove(&place);
        let (_, sequence) = place;
        let block = self.get_mut(sequence)?;
        block.rides -= 1;
        block.in_flight += 1;
        block.ride_until = until;
        if block.rides > 0 {
            self.riding.insert((until, sequence));
        }
        Some(sequence)
    }

    /// Rows that have found no packet to share until now are owed like others.
    pub(crate) fn end_rides(&mut self, now: Time) {
        while let Some(&(until, sequence)) = self.riding.first().filter(|(until, _)| *until <= now)
        {
            self.riding.remove(&(until, sequence));
            let Some(block) = self.get_mut(sequence) else {
                continue;
            };
            let rows = std::mem::take(&mut block.rides);
            if block.acked < block.needed() {
                self.owe(sequence, rows, true);
            }
        }
    }

    /// When the first row stops waiting for a packet to share.
    pub(crate) fn rides_until(&self) -> Option<Time> {
        self.riding.first().map(|(until, _)| *until)
    }

    /// The blocks that hold data of this stream only, rising, and what each costs in the window.
    pub(crate) fn of_stream(&self, stream: StreamId) -> Vec<(BlockId, u64)> {
        let only = self.iter().filter(|(_, block)| *block.streams == [stream]);
        only.map(|(sequence, block)| (sequence, block.cost()))
            .collect()
    }

    /// The newest block will be sent by the paper's mode or as a generation, and no symbol of it
    /// from here. Returns its sequence.
    pub(crate) fn hand_over_latest(&mut self) -> Option<BlockId> {
        let sequence = self.next_sequence().get().checked_sub(1)?;
        let block = self.blocks.back_mut()?.as_mut()?;
        let bytes = u64::from(block.unsent()) * u64::from(block.symbol_len);
        block.next_source = block.n;
        block.protected = true;
        let urgency = block.urgency;
        let sequence = BlockId::new(sequence);
        self.unsent_bytes[urgency.at()] -= bytes;
        self.unsent.remove(&(urgency, sequence));
        Some(sequence)
    }

    /// The peer has the whole block, or needs it no more: nothing more is owed.
    pub(crate) fn settle(&mut self, sequence: BlockId) -> Option<TxBlock> {
        let at = usize::try_from(sequence.checked_sub(self.first)?).ok()?;
        let block = self.blocks.get_mut(at)?.take()?;
        let place = (block.urgency, sequence);
        self.open_cost[block.urgency.at()] -= block.cost();
        if block.unsent() > 0 {
            // Its stream was given up, or the peer acknowledges a block that it cannot have.
            let unsent = u64::from(block.unsent()) * u64::from(block.symbol_len);
            self.unsent_bytes[block.urgency.at()] -= unsent;
            self.unsent.remove(&place);
            self.carried.retain(|(_, carried)| *carried != sequence);
        }
        self.owed.remove(&place);
        self.expiring.remove(&(block.looked_at, sequence));
        self.riding.remove(&(block.ride_until, sequence));
        while let Some(None) = self.blocks.front() {
            self.blocks.pop_front();
            self.first += 1;
        }
        Some(block)
    }
}

#[cfg(test)]
mod tests;
