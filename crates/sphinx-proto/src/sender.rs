//! The sending half: streams and their blocks, and the symbol that goes next.

use sphinx_fec::CodeId;

use crate::blocks::{
    Ahead, BlockStore, Compensation, Horizon, Idle, NewBlock, Protection, Redundancy, Rides,
    SlidingWindow, SymbolChoice, Tail, TxBlock, Waiting, WaitingBlock, WindowChoice,
};
use crate::config::{Config, Profile};
use crate::control_queue::ControlQueue;
use crate::path::{Arrived, Contents, Monitor, Path, Probes};
use crate::ranges::RangeSet;
use crate::sc::{Kind, LaneView, ScSender};
use crate::streams::SendStreams;
use crate::types::{Lifetime, Slot, StreamId, StreamPart, Urgency, block_cost};
use crate::wire::{BUNDLE_MAX, Blocks, MAX_RESET_BLOCKS, OVERHEAD, Reset, Streams, SymbolId};
use crate::{BlockId, Nanos, PacketNumber, PathId, Time, WindowNumber};

/// Longest time that a repair waits for a packet to ride in; half a round trip if that is shorter.
const RIDE_WAIT_MAX: Nanos = 25_000_000;

/// What is awaited leaves such a part of the peer's window to other streams: less than these leave to it, a quarter of what is common.
const AWAITED_LEAVES: u64 = 8;

/// Counters of the sending half.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) source: u64,
    pub(crate) repair_proactive: u64,
    pub(crate) repair_reactive: u64,
    /// Bytes of the proactive and of the reactive repairs.
    pub(crate) repair_proactive_bytes: u64,
    pub(crate) repair_reactive_bytes: u64,
    /// Packets in which repairs rode, and bytes of these.
    pub(crate) bundles: u64,
    pub(crate) bundled_bytes: u64,
    pub(crate) blocks: u64,
    pub(crate) blocks_second_round: u64,
    pub(crate) bytes_complete: u64,
}

/// What this end sends.
pub(crate) struct Sender {
    redundancy: Redundancy,
    /// Most repairs of other blocks that ride in one packet.
    bundle: u8,
    streams: SendStreams,
    blocks: BlockStore,
    /// Blocks that the peer has reported as complete, of those after the oldest one on its way: hearing of them again changes nothing.
    told: RangeSet<BlockId>,
    waiting: Waiting,
    compensation: Compensation,
    protection: Protection,
    window: SlidingWindow,
    ahead: Ahead,
    counters: Counters,
    /// In the paper's mode `paper::sender` chooses the symbols; this one keeps the blocks, streams and counters.
    is_passive: bool,
    /// The sender of generations, in sessions that use them: it chooses the symbols then.
    sc: Option<ScSender>,
    /// The peer has confirmed something new since [`take_progress`](Self::take_progress) was last called.
    progress: bool,
    /// When the last symbol left.
    last_symbol: Time,
}

impl Sender {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            redundancy: Redundancy::new(config),
            bundle: config.bundle.min(BUNDLE_MAX),
            streams: SendStreams::new(config.role, config.peer_window, config.peer_credit),
            blocks: BlockStore::default(),
            told: RangeSet::default(),
            waiting: Waiting::default(),
            compensation: Compensation::default(),
            protection: Protection::default(),
            window: SlidingWindow::default(),
            ahead: Ahead::default(),
            counters: Counters::default(),
            is_passive: config.paper.is_some() || config.sc.is_some(),
            sc: config.sc.map(ScSender::new),
            progress: false,
            last_symbol: Time::ZERO,
        }
    }

    pub(crate) fn blocks(&self) -> &BlockStore {
        &self.blocks
    }

    pub(crate) fn streams(&self) -> &SendStreams {
        &self.streams
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Changes the profile for blocks that have had no proactive repair yet; what has been decided for others stays.
    pub(crate) fn set_profile(&mut self, profile: Profile) {
        self.redundancy.profile = profile;
    }

    /// Takes a block of these parts; whether it `may_wait` for room: if all of it is of one stream.
    pub(crate) fn submit(
        &mut self,
        slot: Slot,
        (n, symbol_len): (u16, u16),
        (tail, urgency): (bool, Urgency),
        parts: &[StreamPart],
        may_wait: bool,
    ) {
        self.streams.hand_over(parts);
        let new = NewBlock {
            streams: parts.iter().map(|part| part.stream).collect(),
            slot,
            n,
            symbol_len,
            tail,
            urgency,
            lifetime: None,
        };
        match *parts {
            [part] if may_wait => self.waiting.push(WaitingBlock {
                new,
                part,
                is_awaited: false,
            }),
            _ => {
                self.streams.open(parts);
                self.push(new);
            }
        }
    }

    // ---- blocks that wait for room ----------------------------------------------------------------

    /// Blocks that have been handed over and have no place in the peer's window yet.
    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Whether a block that waits may be on its way now, in its turn.
    pub(crate) fn has_room_for(&self, block: &WaitingBlock, room: u64) -> bool {
        let cost = block.part.cost;
        let (streams, stream) = (&self.streams, block.part.stream);
        // What is awaited is not held up by what others hold, else all that is behind it would be, for ever; and leaves these something, as
        // nobody may read it. Nor is the first block of a stream held up, which was cut when there was more room.
        let by_credit = match (block.is_awaited, streams.held(stream)) {
            (_, 0) => streams.credit_left(),
            (true, _) => {
                let for_others = streams.window() / AWAITED_LEAVES;
                streams.credit_left().saturating_sub(for_others)
            }
            (false, _) => 0,
        };
        let most = streams.most(stream).max(by_credit);
        self.blocks.has_room() && cost <= room && cost <= most
    }

    /// Where the next block is that may be on its way in its turn. A stream that is not read does not hold the others up; those of one
    /// stream leave in their order.
    fn next_with_room(&self, room: u64) -> Option<usize> {
        let mut held_up = Vec::new();
        for (at, block) in self.waiting.iter().enumerate() {
            let stream = block.part.stream;
            if held_up.contains(&stream) {
                continue;
            }
            if self.has_room_for(block, room) {
                return Some(at);
            }
            held_up.push(stream);
        }
        None
    }

    fn open_waiting(&mut self, at: usize) -> Option<BlockId> {
        let WaitingBlock { new, part, .. } = self.waiting.take(at)?;
        self.streams.open(&[part]);
        let sequence = self.blocks.next_sequence();
        self.push(new);
        Some(sequence)
    }

    /// Opens blocks in their turn, until so many bytes are to be sent, as long as there is room for them: `room`, beside what the peer
    /// allows.
    pub(crate) fn open_in_turn(&mut self, bytes: u64, room: u64) {
        let mut room = room;
        while !self.waiting.is_empty() && self.blocks.in_turn_bytes(bytes) < bytes {
            let Some(at) = self.next_with_room(room) else {
                return;
            };
            let opened = self.open_waiting(at);
            let opened = opened.and_then(|sequence| self.blocks.get(sequence));
            room = room.saturating_sub(opened.map_or(0, TxBlock::cost));
        }
    }

    /// What a slow path is to carry next: what it has begun, or else the first block that will be needed when it has arrived there.
    fn find_ahead(&self, path: PathId, reach: &Reach) -> Option<Place> {
        if let Some(sequence) = self.blocks.carried_by(path) {
            return Some(Place::Open(sequence));
        }
        let mut before = 0;
        for (sequence, block, bytes) in self.blocks.in_turn() {
            let is_untouched = block.sent_sources() == 0;
            let is_needed = match block.lifetime {
                // Blocks with a lifetime leave in no fixed order.
                Some(_) => reach.is_behind,
                None => before >= reach.bytes(bytes),
            };
            if is_untouched && is_needed {
                return Some(Place::Open(sequence));
            }
            before += bytes;
        }
        // Whatever this one takes of the window, what is before it must have room.
        let mut reserve = reach.reserve;
        for (at, block) in self.waiting.iter().enumerate() {
            let cost = block.part.cost;
            if before >= reach.bytes(block.bytes()) {
                let has_room = self.blocks.has_room()
                    && cost <= reach.room
                    && cost + reserve <= self.streams.most(block.part.stream);
                return has_room.then_some(Place::Waiting(at));
            }
            before += block.bytes();
            reserve = reserve.max(cost);
        }
        None
    }

    /// Whether there is something for a slow path.
    pub(crate) fn has_ahead(&self, path: PathId, reach: &Reach) -> bool {
        self.find_ahead(path, reach).is_some()
    }

    /// The next symbol of a slow path.
    pub(crate) fn next_ahead(
        &mut self,
        now: Time,
        path: &Path,
        reach: &Reach,
    ) -> Option<SymbolChoice> {
        let carrier = path.id();
        let sequence = match self.find_ahead(carrier, reach)? {
            Place::Open(sequence) => sequence,
            Place::Waiting(at) => self.open_waiting(at)?,
        };
        if self.blocks.carried_by(carrier).is_none() {
            self.blocks.carry(carrier, sequence);
        }
        self.next_source(now, path)
    }

    /// What slow paths have begun and these do not carry any more is for all of them.
    pub(crate) fn carry_only_on(&mut self, may_carry: impl Fn(PathId) -> bool) {
        self.blocks.carry_only_on(may_carry);
    }

    /// Takes a block of datagrams.
    pub(crate) fn submit_datagrams(
        &mut self,
        slot: Slot,
        (n, symbol_len): (u16, u16),
        urgency: Urgency,
        lifetime: Lifetime,
    ) {
        // Rows of sliding windows may need it.
        let is_kept = self.redundancy.code == Some(CodeId::Window);
        self.streams.open_datagrams(block_cost(n, symbol_len));
        self.push(NewBlock {
            streams: Box::default(),
            slot,
            n,
            symbol_len,
            tail: is_kept,
            urgency,
            lifetime: (!is_kept).then_some(lifetime),
        });
    }

    fn push(&mut self, new: NewBlock) {
        let demands = self.redundancy.demands(new.n);
        self.blocks.push(new, demands);
        self.counters.blocks += 1;
    }

    /// The peer's first window is known now, of which less was assumed.
    pub(crate) fn meet(&mut self, window: u64, credit: u64) {
        self.streams.meet(window, credit);
    }

    /// Gives up the blocks of datagrams whose time is over; those that may have arrived are waited for, for `patience`. Which these are and
    /// what each costs, rising; their memory goes to `abandoned`.
    pub(crate) fn give_up_expired(
        &mut self,
        now: Time,
        patience: Nanos,
        abandoned: &mut Vec<Slot>,
    ) -> Vec<(BlockId, u64)> {
        let mut gone = Vec::new();
        while let Some(sequence) = self.blocks.next_expired(now, patience) {
            if let Some(block) = self.blocks.settle(sequence) {
                self.compensation.forget(sequence);
                self.streams.close_datagrams(block.cost());
                gone.push((sequence, block.cost()));
                abandoned.push(block.slot);
            }
        }
        gone.sort_unstable();
        gone
    }

    // ---- what the peer says -----------------------------------------------------------------------

    /// Block-SACK. The memory of what it completes goes to `delivered`.
    pub(crate) fn on_blocks(&mut self, blocks: &Blocks, delivered: &mut Vec<Slot>) {
        let (first, next) = (self.blocks.first_sequence(), self.blocks.next_sequence());
        for sequence in first.until(blocks.base.min(next)) {
            delivered.extend(self.complete_block(sequence));
        }
        // A packet has room for hundreds of frames that say the same of thousands.
        let mut news = Vec::new();
        for &(low, high) in &blocks.complete {
            let (low, end) = (low.max(first), next.min(high + 1));
            if low < end {
                let high = BlockId::new(end.get() - 1);
                self.told
                    .insert(low, high, |low, high| news.push((low, high)));
            }
        }
        for (low, high) in news {
            for sequence in low.until(high + 1) {
                delivered.extend(self.complete_block(sequence));
            }
        }
        self.told.remove_below(self.blocks.first_sequence());
    }

    /// The peer has the block: its memory may go.
    pub(crate) fn complete_block(&mut self, sequence: BlockId) -> Option<Slot> {
        let block = self.blocks.settle(sequence)?;
        self.compensation.settled(sequence);
        if let Some(sc) = &mut self.sc {
            sc.forget(sequence);
        }
        if block.streams.is_empty() {
            self.streams.close_datagrams(block.cost());
        }
        self.streams.complete(&block.streams);
        self.progress = true;
        self.counters.bytes_complete += block.bytes();
        self.counters.blocks_second_round += u64::from(block.had_second_round());
        Some(block.slot)
    }

    /// Gives a stream up, unless it has ended: what the peer must hear. The memory of its blocks, which will never be complete, goes to `abandoned`.
    pub(crate) fn reset(
        &mut self,
        stream: StreamId,
        code: u64,
        abandoned: &mut Vec<Slot>,
    ) -> Vec<Reset> {
        let Some(cost) = self.streams.reset(stream) else {
            return Vec::new();
        };
        // The peer has not heard of blocks that still wait.
        for WaitingBlock { new, part, .. } in self.waiting.take_stream(stream) {
            self.streams.complete(&[part.stream]);
            abandoned.push(new.slot);
        }
        // A sliding window's repairs need the symbols of its blocks.
        let blocks = match self.redundancy.code {
            Some(CodeId::Window) => Vec::new(),
            // Generations are given out in order: none may be missing.
            _ if self.sc.is_some() => Vec::new(),
            _ => self.blocks.of_stream(stream),
        };
        for (sequence, _) in &blocks {
            if let Some(block) = self.blocks.settle(*sequence) {
                self.compensation.settled(*sequence);
                self.streams.complete(&block.streams);
                abandoned.push(block.slot);
            }
        }
        let mut chunks: Vec<_> = blocks.chunks(MAX_RESET_BLOCKS).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        let reset = |blocks: &[(BlockId, u64)]| Reset {
            stream,
            code,
            cost,
            blocks: blocks.to_vec(),
        };
        chunks.into_iter().map(reset).collect()
    }

    /// What has been taken of streams. `false`: of streams that this end cannot have opened.
    pub(crate) fn on_streams(&mut self, streams: &Streams) -> bool {
        self.streams.on_taken(streams)
    }

    /// Streams that have ended since the last call.
    pub(crate) fn take_ended(&mut self) -> Vec<StreamId> {
        self.streams.take_ended()
    }

    /// Streams with nothing more to come of which no block is on its way any more, since the last call: the peer has everything of those that were not given up.
    pub(crate) fn take_delivered(&mut self) -> Vec<StreamId> {
        self.streams.take_delivered()
    }

    /// In this packet the peer allows blocks of so much cost in all.
    pub(crate) fn on_credit(&mut self, packet_number: PacketNumber, credit: u64) {
        self.streams.on_credit(packet_number, credit);
    }

    /// In this packet the peer says that its window has another size. The credit to be told, if it has shrunk.
    pub(crate) fn on_window(
        &mut self,
        packet_number: PacketNumber,
        number: WindowNumber,
        size: u64,
    ) -> Option<u64> {
        self.streams.on_window(packet_number, number, size)
    }

    /// The window keeps this end from using the path: its number, if the peer has not been told.
    pub(crate) fn note_held(&mut self) -> Option<WindowNumber> {
        self.streams.note_held()
    }

    /// The receiver lacks `deficit` symbols of a block whose flight has passed. To be called after the SACK that came
    /// with it, which says what is still in flight.
    pub(crate) fn on_deficit(
        &mut self,
        now: Time,
        (sequence, deficit): (BlockId, u32),
        path: &Path,
    ) {
        let (blocks, redundancy) = (&mut self.blocks, self.redundancy);
        let lacking = (path.horizon(now), sequence, deficit);
        self.compensation
            .on_deficit(blocks, redundancy, lacking, path.monitor());
    }

    /// Everything in a packet with feedback has been heard.
    pub(crate) fn on_feedback(&mut self, now: Time, path: &Path) {
        let (blocks, rtt) = (&mut self.blocks, path.rtt().smoothed());
        self.compensation
            .on_feedback(blocks, self.redundancy, (now, rtt), path.monitor());
        let heard = (path.horizon(now), true);
        self.compensation
            .answer_shared(blocks, self.redundancy, heard, path.monitor());
    }

    /// Whether more has been confirmed since this was last asked.
    pub(crate) fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.progress)
    }

    // ---- the paper's mode -------------------------------------------------------------------------

    /// Whether symbols are chosen elsewhere.
    pub(crate) fn is_passive(&self) -> bool {
        self.is_passive
    }

    /// The latest block is sent elsewhere: its sequence.
    pub(crate) fn hand_over_latest(&mut self) -> Option<BlockId> {
        self.blocks.hand_over_latest()
    }

    /// A symbol that was chosen elsewhere leaves; what answers feedback begins a second round of its block.
    pub(crate) fn count_sent(
        &mut self,
        block: BlockId,
        symbol: SymbolId,
        bytes: u16,
        reactive: bool,
    ) {
        let counters = &mut self.counters;
        let bytes = u64::from(bytes);
        if reactive {
            counters.repair_reactive += 1;
            counters.repair_reactive_bytes += bytes;
            if let Some(block) = self.blocks.get_mut(block) {
                block.begin_second_round();
            }
        } else if symbol.source().is_some() {
            counters.source += 1;
        } else {
            counters.repair_proactive += 1;
            counters.repair_proactive_bytes += bytes;
        }
    }

    // ---- generations ------------------------------------------------------------------------------

    /// Generations on their way, if that is how the session works.
    pub(crate) fn sc(&self) -> Option<&ScSender> {
        self.sc.as_ref()
    }

    pub(crate) fn sc_mut(&mut self) -> Option<&mut ScSender> {
        self.sc.as_mut()
    }

    /// The next symbol of a generation for this path, which leaves now.
    pub(crate) fn next_of_generation(&mut self, lane: LaneView) -> Option<SymbolChoice> {
        let (choice, kind) = self.sc.as_mut()?.next(lane)?;
        let (block, bytes) = (choice.sequence, choice.symbol_len);
        let is_ahead = kind == Kind::Ahead;
        self.count_sent(block, choice.symbol, bytes, kind == Kind::Reactive);
        debug_assert!(!is_ahead || choice.symbol.source().is_none());
        Some(choice)
    }

    // ---- what to send -----------------------------------------------------------------------------

    /// Whether there is a symbol to send.
    pub(crate) fn has_symbol(&self) -> bool {
        let is_owing = self.blocks.is_owing() || self.window.is_due() || self.ahead.is_due();
        is_owing || self.blocks.has_unsent()
    }

    /// Nothing that is as urgent is left to send: protects what is on its way, once per block.
    pub(crate) fn protect_tail(&mut self, now: Time, idle: Idle, urgency: Urgency, path: &Path) {
        let tail = Tail {
            now,
            idle,
            capacity: path.cc().bandwidth_estimate(),
            urgency,
            rides: Some(self.rides(path)).filter(|_| path.is_thin()),
        };
        let (blocks, redundancy) = (&mut self.blocks, self.redundancy);
        self.protection
            .protect_tail(blocks, redundancy, tail, path.monitor());
    }

    fn rides(&self, path: &Path) -> Rides {
        Rides {
            most: self.bundle,
            wait: RIDE_WAIT_MAX.min(path.rtt().smoothed() / 2),
            room: usize::from(path.mtu()) - OVERHEAD,
        }
    }

    /// Repairs that ride in the packet of this symbol.
    pub(crate) fn next_riders(
        &mut self,
        now: Time,
        main: &SymbolChoice,
        path: &Path,
    ) -> Vec<SymbolChoice> {
        if self.blocks.rides_until().is_none() {
            return Vec::new();
        }
        let rides = (now, self.rides(path));
        let riders = self
            .blocks
            .next_riders(self.redundancy, path.monitor(), main, rides);
        let bytes = riders.iter().map(|rider| u64::from(rider.symbol_len));
        let (count, bytes) = (riders.len() as u64, bytes.sum::<u64>());
        self.counters.repair_proactive += count;
        self.counters.repair_proactive_bytes += bytes;
        self.counters.bundles += u64::from(count > 0);
        self.counters.bundled_bytes += bytes;
        riders
    }

    /// The next symbol: the most urgent one, and of these repair of the oldest deficient block first, then new source symbols.
    pub(crate) fn next_symbol(&mut self, now: Time, path: &Path) -> Option<SymbolChoice> {
        if !self.blocks.owes_first() {
            return self.next_source(now, path);
        }
        let (choice, ahead) = self.blocks.next_repair(self.redundancy, path.monitor())?;
        let bytes = u64::from(choice.symbol_len);
        if ahead {
            self.counters.repair_proactive += 1;
            self.counters.repair_proactive_bytes += bytes;
        } else {
            self.counters.repair_reactive += 1;
            self.counters.repair_reactive_bytes += bytes;
        }
        Some(choice)
    }

    /// How many source symbols of its block are next behind this symbol, which has just left, as long as nothing is heard: all but the last one,
    /// behind which repair may be due.
    pub(crate) fn follow(&self, choice: &SymbolChoice) -> u32 {
        let others = self.window.is_due() || self.ahead.is_due() || !self.waiting.is_empty();
        if others || choice.is_copy || self.redundancy.code == Some(CodeId::Window) {
            return 0;
        }
        self.blocks.follow(choice)
    }

    /// The next of the symbols that [`follow`](Self::follow) one of this block.
    pub(crate) fn following(&self, block: BlockId) -> Option<u16> {
        self.blocks.following(block)
    }

    /// A source symbol leaves together with those behind it, `count` in all.
    pub(crate) fn take_following(&mut self, block: BlockId, count: u16) {
        self.blocks.take_following(block, count);
        self.counters.source += u64::from(count);
    }

    fn next_source(&mut self, now: Time, path: &Path) -> Option<SymbolChoice> {
        let monitor = path.monitor();
        let (choice, index) = self
            .blocks
            .next_source(self.redundancy, path.id(), monitor)?;
        self.counters.source += 1;
        if index + 1 == choice.n {
            self.protect_in_time(now, choice.sequence, path);
        }
        let block = self.blocks.get(choice.sequence);
        if let Some(urgency) = block
            .filter(|b| b.tail && b.unsent() == 0)
            .map(|b| b.urgency)
            && self.has_symbol()
            && !self.blocks.has_symbol_before(urgency)
        {
            // What is less urgent goes on; to these it is as if nothing did.
            self.protect_tail(now, Idle::Application, urgency, path);
        }
        if self.redundancy.code == Some(CodeId::Window) {
            let begins = index == 0;
            self.window.owe(choice.sequence, begins, monitor.plr());
        }
        Some(choice)
    }

    /// The last source symbol of a block leaves: if it holds datagrams, and only repair ahead of loss would be in time or is wanted, that is due.
    fn protect_in_time(&mut self, now: Time, sequence: BlockId, path: &Path) {
        let horizon = path.horizon(now);
        let (redundancy, plr) = (self.redundancy, path.monitor().plr());
        let room = usize::from(path.mtu()) - OVERHEAD;
        let blocks = &mut self.blocks;
        let Some(last) = blocks.needs_repair_ahead(sequence, horizon) else {
            if blocks.may_share(sequence) {
                let losses = path.monitor().of_flights();
                let moment = (now, horizon.rtt);
                self.ahead
                    .share(blocks, redundancy, sequence, moment, losses, room);
            }
            blocks.protect_brief(redundancy, sequence, (now, horizon.rtt), plr);
            return;
        };
        let block = (sequence, last);
        if !self
            .ahead
            .cover(blocks, redundancy, block, (now, plr), room)
        {
            blocks.protect_alone(redundancy, sequence, plr);
        }
    }

    /// Repairs ahead of loss for every symbol of a block of n that is of use until then, as `horizon` shows when it leaves.
    pub(crate) fn repair_ahead(&self, n: u16, until: Time, horizon: Horizon, plr: f64) -> f64 {
        horizon.repair_ahead(self.redundancy, (n, until), plr)
    }

    /// A repair over several blocks that is due, if its body has at most `room` bytes.
    pub(crate) fn next_window(
        &mut self,
        now: Time,
        room: usize,
        path: &Path,
    ) -> Option<WindowChoice> {
        let blocks = &mut self.blocks;
        let window = match self.window.take_due(blocks, room) {
            Some(window) => window,
            None if self.ahead.is_due() => self.ahead.take_due(blocks, path.horizon(now), room)?,
            None => return None,
        };
        self.counters.repair_proactive += 1;
        self.counters.repair_proactive_bytes += u64::from(window.choice.symbol_len);
        Some(window)
    }

    /// A symbol leaves, or a part of it.
    pub(crate) fn note_sent(&mut self, now: Time, choice: &SymbolChoice) {
        self.last_symbol = now;
        self.blocks.note_sent(choice.sequence, now);
    }

    /// The symbol, which leaves, is to leave on another path too; whether anybody waits for it.
    pub(crate) fn add_copy(&mut self, choice: &SymbolChoice) -> bool {
        let block = self.blocks.get_mut(choice.sequence);
        block.map(|block| block.add_copy(choice.symbol)).is_some()
    }

    /// Whether this copy is of use: its block is not complete, and no other copy has arrived.
    pub(crate) fn wants_copy(&self, choice: &SymbolChoice) -> bool {
        let block = self.blocks.get(choice.sequence);
        block.is_some_and(|block| !block.has_copy(choice.symbol))
    }

    /// A copy leaves.
    pub(crate) fn count_copy(&mut self, choice: &SymbolChoice) {
        self.counters.repair_proactive += 1;
        self.counters.repair_proactive_bytes += u64::from(choice.symbol_len);
    }

    // ---- time -------------------------------------------------------------------------------------

    /// When a packet counts as lost by time, a block is to be compensated, a repair has waited long enough for a packet to ride in, or a
    /// probe is due.
    pub(crate) fn timeout(&self, path: &Path, company: Company) -> Option<Time> {
        let wait = path.probe_wait();
        let overdue = self
            .compensation
            .deadline(&self.blocks, self.redundancy, wait);
        let silence = company.others.then(|| silence_at(path));
        let timers = [
            path.loss_deadline(),
            silence.flatten(),
            self.probe_deadline(path, company),
            overdue,
            self.compensation.shared_deadline(path.rtt().smoothed()),
            self.blocks.rides_until(),
            self.ahead.ends_at(),
        ];
        timers.into_iter().flatten().min()
    }

    fn probe_deadline(&self, path: &Path, company: Company) -> Option<Time> {
        // The peer lacks something although nothing is left to send.
        let waiting = !self.blocks.is_empty() && !self.has_symbol() && !self.is_passive;
        if !company.others {
            return path.probe_deadline(waiting);
        }
        // What is in flight on others may be what it lacks.
        let from = self.last_symbol.saturating_add(company.patience?);
        let is_asking = waiting && !path.has_in_flight();
        let at = is_asking.then(|| path.probe_deadline(true)).flatten()?;
        Some(at.max(from))
    }

    /// A probe is due: repair for the oldest incomplete blocks that have been sent. How many packets are to leave;
    /// one in any case, which will be a PING if there is nothing to repair.
    fn probe(&mut self, now: Time, path: &Path) -> u32 {
        if self.is_passive {
            return 1;
        }
        let (monitor, rtt) = (path.monitor(), path.rtt().smoothed());
        let (blocks, redundancy) = (&mut self.blocks, self.redundancy);
        // Silence: no later block will tell of these.
        self.compensation
            .on_silence(blocks, redundancy, (now, rtt), monitor);
        let Probes { most, again } = path.probes();
        if blocks.is_owing() || blocks.has_unsent() {
            // There are symbols to send anyway; they serve as probes.
            return most;
        }
        let horizon = path.horizon(now);
        blocks
            .owe_probes((most, again), horizon, monitor.plr())
            .max(1)
    }
}

/// If more symbols of a block than this are expected to be lost, the time of their repair counts as part of the block's way.
const LOST_LIKELY: f64 = 0.1;

/// Where a block of the sender is found.
enum Place {
    /// Among the blocks on their way, under this id.
    Open(BlockId),
    /// Among the blocks that wait for room in the peer's window, at this index.
    Waiting(usize),
}

/// A slow path takes data from further back in the queue than the fast ones, so that it arrives when what lies before it has arrived. This is what
/// tells how far back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reach {
    /// How much later a packet arrives that leaves now on this path instead of the fastest one.
    pub(crate) lag: Nanos,
    /// How much later still the repair of a lost symbol arrives.
    pub(crate) repair: Nanos,
    /// Loss rate of this path, 0–1.
    pub(crate) plr: f64,
    /// Size of the symbols that `plr` is applied to, bytes.
    pub(crate) symbol: u64,
    /// What all faster paths carry, bytes per second.
    pub(crate) faster: u64,
    /// What this path carries, bytes per second.
    pub(crate) own: u64,
    /// The part of the peer's credit that this path leaves to faster ones, bytes.
    pub(crate) reserve: u64,
    /// What may be on its way in addition to what is, over all paths, bytes.
    pub(crate) room: u64,
    /// More data is queued than faster paths carry before a packet that leaves here now arrives.
    pub(crate) is_behind: bool,
}

impl Reach {
    /// Bytes that faster paths carry until a block of `block` bytes that this path begins to send now has arrived.
    pub(crate) fn bytes(&self, block: u64) -> u64 {
        let sending = u128::from(block) * 1_000_000_000 / u128::from(self.own.max(1));
        let lost = block as f64 / self.symbol as f64 * self.plr;
        let repair = if lost > LOST_LIKELY { self.repair } else { 0 };
        let late = u128::from(self.lag + repair) + sending;
        let bytes = u128::from(self.faster) * late / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// What the other paths of the session mean for the timers of one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Company {
    /// Another path works: it takes over if this one does not answer.
    pub(crate) others: bool,
    /// Set for the one path that probes when everything has been sent and the peer still lacks symbols: how long after the last symbol it does so.
    pub(crate) patience: Option<Nanos>,
}

/// The owners of what packets of a path carry, which hear of its arrivals and losses: blocks, and frames that are repeated.
pub(crate) struct Carriage<'a> {
    /// The path whose packets these are.
    pub(crate) path: PathId,
    pub(crate) horizon: Horizon,
    pub(crate) sender: &'a mut Sender,
    pub(crate) control: &'a mut ControlQueue,
}

impl Carriage<'_> {
    /// A copy of a symbol will not leave.
    pub(crate) fn copy_lost(&mut self, copy: &SymbolChoice, monitor: &Monitor) {
        self.symbol_lost(copy.sequence, copy.round, copy.symbol, monitor);
    }

    /// Time has passed: losses, compensation and probes. How many probes are to leave beyond the window.
    pub(crate) fn on_timeout(&mut self, path: &mut Path, now: Time, company: Company) -> u32 {
        path.lose_overdue(now, self);
        self.sender.blocks.end_rides(now);
        let losses = (self.sender.redundancy, path.monitor().plr());
        self.sender
            .ahead
            .on_timeout(&self.sender.blocks, losses, self.horizon);
        let wait = path.probe_wait();
        let sender = &mut *self.sender;
        let (blocks, redundancy) = (&mut sender.blocks, sender.redundancy);
        sender
            .compensation
            .on_timeout(blocks, redundancy, (now, wait), path.monitor());
        let silent = (self.horizon, false);
        sender
            .compensation
            .answer_shared(blocks, redundancy, silent, path.monitor());
        if company.others && silence_at(path).is_some_and(|at| at <= now) {
            // The path is given up for now: its flight counts as lost, and a probe asks whether it works again.
            path.on_probe_timeout(now);
            path.suspect(now);
            path.give_up_flight(now, self);
            return 1;
        }
        let sender = &mut *self.sender;
        let probe_at = sender.probe_deadline(path, company);
        if probe_at.is_none_or(|at| at > now) {
            return 0;
        }
        path.on_probe_timeout(now);
        sender.probe(now, path)
    }
}

/// When a path that does not answer is given up for others that work.
fn silence_at(path: &Path) -> Option<Time> {
    match path.is_suspect() {
        true => path.probe_deadline(true),
        false => path.suspect_at(),
    }
}

impl Contents for Carriage<'_> {
    fn symbols_arrived(
        &mut self,
        block: BlockId,
        symbols: impl Iterator<Item = SymbolId>,
        arrived: Arrived,
    ) -> bool {
        let sender = &mut *self.sender;
        let news = match arrived {
            Arrived::Part => true,
            Arrived::Whole | Arrived::Late => {
                let late = arrived == Arrived::Late;
                let (blocks, redundancy) = (&mut sender.blocks, sender.redundancy);
                match &mut sender.sc {
                    Some(sc) => {
                        let at = (self.horizon.now, self.horizon.rtt);
                        symbols.fold(false, |is_news, symbol| {
                            is_news | sc.on_arrived(self.path, at, (block, symbol), late)
                        })
                    }
                    None => sender.compensation.symbols_arrived(
                        blocks,
                        redundancy,
                        (block, symbols, late),
                    ),
                }
            }
        };
        sender.progress |= news;
        news
    }

    fn symbol_lost(&mut self, block: BlockId, round: u8, symbol: SymbolId, monitor: &Monitor) {
        if let Some(sc) = &mut self.sender.sc {
            let at = (self.horizon.now, self.horizon.rtt);
            return sc.on_lost(self.path, at, (block, symbol));
        }
        let (blocks, redundancy) = (&mut self.sender.blocks, self.sender.redundancy);
        let lost = (block, round, symbol);
        self.sender
            .compensation
            .symbol_lost(blocks, redundancy, lost, self.horizon, monitor);
    }

    fn frames_arrived(&mut self, packet_number: PacketNumber) {
        self.control.arrived((self.path, packet_number));
    }

    fn frames_lost(&mut self, packet_number: PacketNumber) {
        self.control.lost((self.path, packet_number));
    }

    fn is_empty(&self) -> bool {
        self.sender.blocks.is_empty()
    }
}

#[cfg(test)]
mod tests;
