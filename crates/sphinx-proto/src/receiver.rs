//! The receiving half: what a symbol does to its block, and a block to the streams that it holds parts of.

use std::collections::VecDeque;

use sphinx_fec::span::SpanLimits;
use sphinx_fec::{Added, CodeId, Row};

use crate::blocks::{
    Assembly, Complete, Completion, Covering, Key, Restoring, RxBlocks, Shape, Taken,
};
use crate::config::Config;
use crate::sc::{Inbound, Rtts, ScReceiver, symbol_cost};
use crate::streams::{IMPOSSIBLE, RecvStreams, RecvWindow, Resetting};
use crate::types::{
    AbandonedBlock, CoveredBlock, Incomplete, PartPlacement, PastBlock, Place, Placement, Slot,
    StreamId, StreamPart, share_cost,
};
use crate::wire::{
    Fragment, Frame, Header, MAX_NAMED, MAX_SYMBOL_LEN, NamedBlock, PaperCounts, Reset, SpanBlock,
    SymbolId, SymbolSack, WindowSpan, block_symbols_max,
};
use crate::{BlockId, PathId, Time, WindowNumber};

/// What the peer is told whose blocks hold more of a stream than its RESET says.
const TOO_MUCH: &str = "more of a stream than there is";

/// What arrives at this end.
pub(crate) struct Receiver {
    streams: RecvStreams,
    blocks: RxBlocks,
    completion: Completion,
    restoring: Restoring,
    completed: VecDeque<Completed>,
    /// Symbols of which a part has arrived.
    assembly: Assembly,
    /// The paper's mode.
    is_paper: bool,
    /// With generations: their state; and when and on which path the symbol being handled has
    /// arrived.
    sc: Option<ScReceiver>,
    arrival: Option<(Time, PathId, Rtts)>,
    is_news: bool,
    /// How many symbols the block of the latest symbol lacks, if it lacks any.
    lacking: Option<u32>,
    symbols_redundant: u64,
    /// Bytes of received symbols that brought a block further.
    symbol_bytes: u64,
    packets_refused: u64,
}

/// Whether a block takes symbols.
enum Opened {
    Open(Slot),
    Complete,
    /// The block is beyond the window or another limit, or is known with another shape.
    Refused,
}

/// A block that is complete or can be decoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Completed {
    pub(crate) block: BlockId,
    pub(crate) complete: Complete,
    /// In a session with sliding windows: what the driver is to keep and to forget of complete
    /// blocks.
    pub(crate) window: Option<PastBlock>,
}

/// The peer broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) &'static str);

impl Receiver {
    pub(crate) fn new(config: &Config, now: Time) -> Self {
        Self {
            streams: RecvStreams::new(
                config.role,
                config.recv_streams,
                RecvWindow::new(config.recv_window, config.recv_credit, now),
            ),
            blocks: RxBlocks::new(config.paper.is_some()),
            completion: Completion::default(),
            restoring: Restoring::new(config.recv_window),
            completed: VecDeque::new(),
            assembly: Assembly::new(config.recv_window),
            is_paper: config.paper.is_some(),
            sc: config.sc.map(|sc| ScReceiver::new(sc, now)),
            arrival: None,
            is_news: false,
            lacking: None,
            symbols_redundant: 0,
            symbol_bytes: 0,
            packets_refused: 0,
        }
    }

    /// Whether a block has begun to arrive and lacks symbols.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.blocks.is_empty() || self.sc.as_ref().is_some_and(ScReceiver::is_waiting)
    }

    /// Symbols that were not needed.
    pub(crate) fn symbols_redundant(&self) -> u64 {
        self.symbols_redundant
    }

    /// Bytes of symbols that were of use.
    pub(crate) fn symbol_bytes(&self) -> u64 {
        self.symbol_bytes
    }

    /// How many symbols the block of the latest symbol lacks, if it lacks any.
    pub(crate) fn lacking(&self) -> Option<u32> {
        self.lacking
    }

    /// Packets that broke a limit.
    pub(crate) fn packets_refused(&self) -> u64 {
        self.packets_refused
    }

    /// A packet breaks a limit.
    pub(crate) fn refuse(&mut self) {
        self.packets_refused += 1;
    }

    // ---- symbols --------------------------------------------------------------------------------

    /// The incomplete block with this id, which is made if window and limits allow; `code` is that of its
    /// first symbol.
    fn open(&mut self, id: BlockId, shape: Shape, code: Option<CodeId>) -> Opened {
        // A block that is being received is not complete, so it need not be looked up there.
        match self.blocks.get(id) {
            Some((slot, known)) if known == shape => return Opened::Open(slot),
            Some(_) => return Opened::Refused,
            None if self.completion.is_complete(id) => return Opened::Complete,
            None => {}
        }
        if !self.completion.may_open(id) || !self.streams.has_room(shape.cost()) {
            return Opened::Refused;
        }
        let Some(slot) = self.blocks.open(id, shape, code) else {
            return Opened::Refused;
        };
        self.completion.on_open(id);
        self.streams.on_open(shape.cost());
        Opened::Open(slot)
    }

    /// The place of the source symbol that this header announces, if its block is under way and of this shape.
    pub(crate) fn place_of(&self, header: &Header, symbol_len: usize) -> Option<Place> {
        let Ok(SymbolId::Source(index)) = header.symbol() else {
            return None;
        };
        let block = self.expand_block(header.block);
        let (slot, shape) = self.blocks.get(block)?;
        let fits = shape.n == header.n && usize::from(shape.symbol_len) == symbol_len;
        // A run may only be handled at once if no single symbol of it has consequences: repairs may
        // restore others, and the paper's mode answers each.
        let is_plain =
            !self.is_paper && !self.restoring.has_begun() && !self.blocks.has_repairs(block);
        fits.then_some(Place {
            slot,
            index,
            run: if is_plain {
                shape.n.saturating_sub(index)
            } else {
                1
            },
            block,
            n: shape.n,
            symbol_len: shape.symbol_len,
        })
    }

    /// An authenticated source symbol, which was opened into its place, or `count` of them one
    /// behind the other. Returns where the first belongs.
    pub(crate) fn on_placed(&mut self, place: &Place, count: u16) -> Placement {
        let shape = Shape {
            n: place.n,
            symbol_len: place.symbol_len,
        };
        let followers = place.index + 1..place.index + count.max(1);
        let added = self.blocks.add_missing(place.block, shape, followers);
        self.symbol_bytes += added * u64::from(place.symbol_len);
        let symbol = SymbolId::Source(place.index);
        match self.blocks.add(place.block, shape, symbol) {
            Some(taken) => self.on_taken_in(place.block, shape, symbol, taken),
            None => self.discard(),
        }
    }

    fn discard(&mut self) -> Placement {
        self.refuse();
        Placement::Discard
    }

    /// An authenticated symbol of `symbol_len` bytes: where it belongs.
    pub(crate) fn on_symbol(
        &mut self,
        header: &Header,
        symbol_len: usize,
    ) -> Result<Placement, Violation> {
        let Ok(symbol) = header.symbol() else {
            return Err(Violation("unknown code"));
        };
        let code = symbol.code();
        // Repairs of sliding windows come in packets of another form.
        let n = header.n;
        if code == Some(CodeId::Window) || !is_possible(n, symbol_len) {
            return Ok(self.discard());
        }
        let symbol_len = symbol_len as u16;
        let id = self.expand_block(header.block);
        if self.sc.is_some() {
            return Ok(self.on_generation(id, (n, symbol_len), symbol));
        }
        let shape = Shape { n, symbol_len };
        let taken = match self.blocks.add(id, shape, symbol) {
            Some(taken) => Some(taken),
            None => match self.open(id, shape, code) {
                Opened::Open(_) => self.blocks.add(id, shape, symbol),
                Opened::Complete => {
                    self.already_complete();
                    return Ok(Placement::Discard);
                }
                Opened::Refused => None,
            },
        };
        Ok(match taken {
            Some(taken) => self.on_taken_in(id, shape, symbol, taken),
            None => self.discard(),
        })
    }

    /// What follows from what a symbol did to its block.
    fn on_taken_in(
        &mut self,
        id: BlockId,
        Shape { n, symbol_len }: Shape,
        symbol: SymbolId,
        taken: Taken,
    ) -> Placement {
        match taken.added {
            Added::Invalid => return self.discard(),
            Added::Redundant => {
                self.symbols_redundant += 1;
                return Placement::Discard;
            }
            Added::Innovative => {}
        }
        self.symbol_bytes += u64::from(symbol_len);
        if let SymbolId::Source(index) = symbol {
            self.restoring.learn(id, index);
        }
        self.lacking = Some(taken.lacking);
        if taken.lacking == 0 || self.restoring.has_begun() {
            self.advance(id);
            self.lacking = self.blocks.lacks(id);
        }
        Placement::Block {
            slot: taken.slot,
            n,
            symbol_len,
            symbol,
        }
    }

    /// A symbol of a generation.
    fn on_generation(&mut self, block: BlockId, shape: (u16, u16), symbol: SymbolId) -> Placement {
        let (n, symbol_len) = shape;
        let cost = symbol_cost(symbol_len);
        let has_room = self.streams.has_room(cost);
        let (Some(sc), Some((now, path, rtts))) = (&mut self.sc, self.arrival) else {
            return Placement::Discard;
        };
        if self.completion.is_complete(block) {
            let free = self.streams.window().free();
            sc.on_arrival(now, (path, block), (cost, free), rtts);
            self.already_complete();
            return Placement::Discard;
        }
        let inbound = Inbound {
            block,
            shape,
            symbol,
        };
        let (added, is_whole) = match self.completion.may_open(block) {
            true => sc.add(now, &inbound, has_room),
            false => (Added::Invalid, false),
        };
        if added == Added::Innovative {
            self.streams.on_open(cost);
            self.completion.on_open(block);
        }
        if is_whole {
            self.completion.on_complete(block);
            self.is_news = true;
        }
        if added != Added::Invalid {
            let free = self.streams.window().free();
            sc.on_arrival(now, (path, block), (cost, free), rtts);
        }
        match added {
            Added::Invalid => self.refuse(),
            Added::Redundant => self.symbols_redundant += 1,
            Added::Innovative => {
                self.symbol_bytes += u64::from(symbol_len);
                return Placement::Generation {
                    block,
                    n,
                    symbol_len,
                    symbol,
                };
            }
        }
        Placement::Discard
    }

    /// A packet has arrived on this path, whose symbol is handled next.
    pub(crate) fn note_arrival(&mut self, now: Time, path: PathId, rtts: Rtts) {
        self.arrival = Some((now, path, rtts));
    }

    /// Whether a generation has become complete since the last call.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.is_news)
    }

    /// Generations that arrive, if that is how the session works.
    pub(crate) fn sc(&self) -> Option<&ScReceiver> {
        self.sc.as_ref()
    }

    pub(crate) fn sc_mut(&mut self) -> Option<&mut ScReceiver> {
        self.sc.as_mut()
    }

    /// Time has passed: perhaps the peer is to be warned.
    pub(crate) fn consider_warning(&mut self, now: Time, rtts: Rtts) {
        let free = self.streams.window().free();
        if let Some(sc) = &mut self.sc {
            sc.consider(now, free, rtts);
        }
    }

    /// Symbols in order held these pieces of streams. `false`: the peer may not send on one of the
    /// streams.
    pub(crate) fn on_pieces(&mut self, parts: &[StreamPart]) -> bool {
        parts.iter().all(|part| self.streams.on_received(part))
    }

    /// Symbols that held no data have left the buffer.
    pub(crate) fn on_nothing(&mut self, cost: u64) {
        self.streams.on_empty(cost);
    }

    fn expand_block(&self, block: u32) -> BlockId {
        BlockId::expand(block, self.completion.base())
    }

    /// A symbol came for a complete block: the peer seems not to know, so that is reported again.
    fn already_complete(&mut self) {
        self.symbols_redundant += 1;
        self.completion.repeat_news();
    }

    /// More symbols of a block are here. It may be complete, and rows of windows that cover it may
    /// restore symbols of other blocks, and so on.
    fn advance(&mut self, mut block: BlockId) {
        loop {
            if let Some(complete) = self.blocks.take_complete(block) {
                self.completion.on_complete(block);
                let window = self.restoring.complete(block, complete.shape);
                self.completed.push_back(Completed {
                    block,
                    complete,
                    window,
                });
            }
            let Some((of, index)) = self.restoring.next_restored() else {
                return;
            };
            self.blocks.restore(of, index);
            block = of;
        }
    }

    /// The next block that has become complete.
    pub(crate) fn next_completed(&mut self) -> Option<Completed> {
        self.completed.pop_front()
    }

    /// An authenticated part of a symbol: where it goes, and the symbol's place if this was the last part.
    pub(crate) fn on_fragment(
        &mut self,
        header: &Header,
        fragment: Fragment,
    ) -> Option<(PartPlacement, Result<(), Violation>)> {
        let key = Key {
            block: self.expand_block(header.block),
            code: header.code,
            row: header.row,
            symbol_len: fragment.symbol_len,
            count: fragment.count,
        };
        let (place, is_whole) = self.assembly.add(key, fragment.index)?;
        let whole = is_whole.then(|| self.on_symbol(header, usize::from(fragment.symbol_len)));
        let (whole, result) = match whole {
            Some(Err(violation)) => (Some(Placement::Discard), Err(violation)),
            Some(Ok(placement)) => (Some(placement), Ok(())),
            None => (None, Ok(())),
        };
        let part = PartPlacement {
            place,
            symbol_len: fragment.symbol_len,
            offset: fragment.range().start,
            whole,
        };
        Some((part, result))
    }

    // ---- sliding windows --------------------------------------------------------------------------

    /// An authenticated repair of a window: its row and the blocks it covers, oldest first; `None` if it is of no use.
    pub(crate) fn on_window(
        &mut self,
        header: &Header,
        span: &WindowSpan,
    ) -> Option<(Row, Vec<CoveredBlock>)> {
        if self.sc.is_some() {
            // Generations have rows of their own.
            self.refuse();
            return None;
        }
        let newest = self.expand_block(header.block);
        let blocks: Vec<_> = span.blocks().collect();
        let is_named = blocks.first().is_some_and(|named| named.n == header.n);
        let is_named = is_named && header.code == CodeId::Window.to_wire();
        let begins_before_all = blocks
            .last()
            .is_some_and(|oldest| oldest.back > newest.get());
        let row = Row::new(header.row).filter(|_| is_named && !begins_before_all);
        let Some(row) = row else {
            self.refuse();
            return None;
        };
        self.restoring.begin();
        let mut covered = Vec::with_capacity(blocks.len());
        let mut is_of_use = true;
        for SpanBlock {
            back,
            n,
            symbol_len,
        } in blocks.into_iter().rev()
        {
            let block = BlockId::new(newest.get() - back);
            if !is_possible(n, usize::from(symbol_len)) {
                self.refuse();
                return None;
            }
            let shape = Shape { n, symbol_len };
            let incomplete = match self.open(block, shape, None) {
                Opened::Open(slot) => Some(Incomplete {
                    slot,
                    known: self.blocks.stored(block).unwrap_or_default().to_vec(),
                }),
                Opened::Complete => {
                    is_of_use = is_of_use && self.restoring.remembers(block, shape);
                    None
                }
                Opened::Refused => {
                    self.refuse();
                    return None;
                }
            };
            covered.push(CoveredBlock {
                block,
                incomplete,
                n,
                symbol_len,
                count: if block == newest { span.upto() } else { n },
            });
        }
        if covered.iter().all(|block| block.incomplete.is_none()) {
            self.already_complete();
            return None;
        }
        let covering = covered.iter().map(|block| Covering {
            block: block.block,
            count: block.count,
            known: block.incomplete.as_ref().map(|block| &block.known[..]),
        });
        let (maker, symbol_len) = (self.blocks.maker(), span.symbol_len());
        let is_new = || self.restoring.add(maker, row, covering, symbol_len) == Added::Innovative;
        if !(is_of_use && is_new()) {
            self.symbols_redundant += 1;
            return None;
        }
        self.advance(newest);
        Some((row, covered))
    }

    /// Limits of the rows of sliding windows that are kept.
    pub(crate) fn window_limits(&self) -> SpanLimits {
        self.restoring.limits()
    }

    // ---- streams ----------------------------------------------------------------------------------

    /// A complete block holds these parts, whose costs are found out; its slot is free.
    ///
    /// # Errors
    /// If the peer may not send on one of the streams.
    pub(crate) fn on_parts(
        &mut self,
        slot: Slot,
        parts: &mut [StreamPart],
    ) -> Result<(), &'static str> {
        let Some(shape) = self.blocks.free(slot) else {
            return Ok(());
        };
        if parts.is_empty() {
            self.streams.on_empty(shape.cost());
        }
        share_cost(shape.cost(), parts);
        let is_possible = parts.iter().all(|part| self.streams.on_received(part));
        is_possible.then_some(()).ok_or(IMPOSSIBLE)
    }

    /// The peer has given a stream up. Returns whether the application must be told. Blocks that
    /// will never be complete, whose memory is to be freed, go to `abandoned`.
    ///
    /// # Errors
    /// What the peer did wrong.
    pub(crate) fn on_reset(
        &mut self,
        reset: &Reset,
        abandoned: &mut Vec<AbandonedBlock>,
    ) -> Result<bool, &'static str> {
        let resetting = self.streams.on_reset(reset)?;
        if resetting == Resetting::Ended {
            return Ok(false);
        }
        for &block in &reset.blocks {
            let is_news = self.give_up(block, abandoned)?;
            if is_news && !self.streams.on_abandoned(reset.stream, block.1) {
                return Err(TOO_MUCH);
            }
        }
        match self.streams.after_reset(reset.stream) {
            true => Ok(resetting == Resetting::Begins),
            false => Err(TOO_MUCH),
        }
    }

    /// No more comes of these blocks of datagrams, each with what it costs. Those that will never
    /// be complete, whose memory is to be freed, go to `abandoned`.
    ///
    /// # Errors
    /// What the peer did wrong.
    pub(crate) fn on_gone(
        &mut self,
        blocks: &[(BlockId, u64)],
        abandoned: &mut Vec<AbandonedBlock>,
    ) -> Result<(), &'static str> {
        for &block in blocks {
            if self.give_up(block, abandoned)? {
                self.streams.on_empty(block.1);
            }
        }
        Ok(())
    }

    /// A block of this cost counts as complete from now on, as no more of it comes. Returns whether
    /// it did not before.
    fn give_up(
        &mut self,
        (id, cost): (BlockId, u64),
        abandoned: &mut Vec<AbandonedBlock>,
    ) -> Result<bool, &'static str> {
        if self.completion.is_complete(id) {
            return Ok(false);
        }
        match self.blocks.get(id) {
            Some((_, shape)) if shape.cost() != cost => return Err("a block of another cost"),
            Some(_) => {
                self.restoring.give_up(id);
                let slot = self.blocks.abandon(id);
                abandoned.extend(slot.map(|slot| AbandonedBlock { block: id, slot }));
            }
            None if self.completion.may_open(id) && self.streams.has_room(cost) => {
                self.streams.on_open(cost);
            }
            None => return Err("a block beyond the window"),
        }
        self.completion.on_open(id);
        self.completion.on_complete(id);
        Ok(true)
    }

    /// The memory of a block that will never be complete has gone: its slot is free.
    pub(crate) fn on_forgotten(&mut self, slot: Slot) {
        self.blocks.free(slot);
    }

    /// The peer hears of a stream that this end has opened.
    pub(crate) fn begin(&mut self, stream: StreamId) {
        self.streams.begin(stream);
    }

    /// The peer wants no more of what this end sends on a stream. `false`: there can be no such stream.
    pub(crate) fn on_stopped(&mut self, stream: StreamId) -> bool {
        self.streams.on_stopped(stream)
    }

    /// The peer has taken all of the answer on a stream that it has opened.
    pub(crate) fn on_answer_over(&mut self, stream: StreamId) {
        self.streams.on_answer_over(stream);
    }

    /// The application reads no more of the stream. Returns whether more of it may arrive.
    pub(crate) fn let_go(&mut self, stream: StreamId) -> bool {
        self.streams.let_go(stream)
    }

    /// Streams that were given up and have ended, since the last call.
    pub(crate) fn take_over(&mut self) -> Vec<StreamId> {
        self.streams.take_over()
    }

    /// What the peer sends on.
    pub(crate) fn streams(&self) -> &RecvStreams {
        &self.streams
    }

    /// The peer may fill the whole window from now on. Returns whether it could not before.
    pub(crate) fn open_window(&mut self) -> bool {
        self.streams.open_window()
    }

    /// Changes the size of the window. Returns its new number, which the peer is to be told, if it
    /// changes.
    pub(crate) fn resize_window(&mut self, size: u64) -> Option<WindowNumber> {
        self.streams.resize_window(size)
    }

    /// The window with this number has held the peer up.
    pub(crate) fn on_held(&mut self, number: WindowNumber) {
        self.streams.on_held(number);
    }

    /// The peer has accepted the smaller window with this number, and keeps within this credit.
    /// `false`: it cannot have had that credit, or has used more.
    pub(crate) fn on_shrunk(&mut self, number: WindowNumber, credit: u64) -> bool {
        self.streams.on_shrunk(number, credit)
    }

    /// All of a stream is here, to its end.
    pub(crate) fn on_whole(&mut self, stream: StreamId) {
        self.streams.on_whole(stream);
    }

    /// The application has taken a part of this cost. Returns whether the peer must be told
    /// reliably, as it may be waiting for nothing but the credit.
    pub(crate) fn on_taken(&mut self, now: Time, stream: StreamId, cost: u64) -> bool {
        self.streams.on_taken(now, stream, cost)
    }

    // ---- feedback ---------------------------------------------------------------------------------

    /// The last feedback is in a packet that is repeated until it is acknowledged: its credit counts as told.
    pub(crate) fn told_reliably(&mut self) {
        self.streams.told_reliably();
    }

    /// The next feedback reports blocks and all streams; what has no room in it follows in the ones
    /// after it.
    pub(crate) fn report_all(&mut self) {
        self.completion.report();
        self.streams.report_all();
    }

    // ---- the paper's mode -------------------------------------------------------------------------

    /// The id of the block that a header names.
    pub(crate) fn block_of(&self, header: &Header) -> BlockId {
        self.expand_block(header.block)
    }

    /// Whether a symbol of the block has been taken, and more are to come.
    pub(crate) fn has_opened(&self, block: BlockId) -> bool {
        self.blocks.get(block).is_some()
    }

    /// Whether the block is decoded.
    pub(crate) fn is_complete(&self, block: BlockId) -> bool {
        self.completion.is_complete(block)
    }

    /// Symbol-SACK of the paper's mode: which symbols are recovered of the latest block, which has
    /// n, and of earlier blocks that are not decoded.
    pub(crate) fn symbol_sack(
        &self,
        (latest, n): (BlockId, u16),
        counts: PaperCounts,
    ) -> SymbolSack {
        let base = self.completion.base().min(latest);
        let earlier = base.until(latest);
        let missing = earlier.filter(|block| !self.completion.is_complete(*block));
        let unrecovered = missing
            .take(MAX_NAMED + 1)
            .map(|block| self.named(block, 0));
        SymbolSack {
            counts,
            latest: self.named(latest, n),
            upto: latest,
            unrecovered: unrecovered.collect(),
        }
    }

    /// Which symbols of a block are recovered. A block that is not being received counts as whole,
    /// with `n` symbols.
    fn named(&self, block: BlockId, n: u16) -> NamedBlock {
        let Some((n, known)) = self.blocks.known(block) else {
            let mut recovered = vec![u8::MAX; usize::from(n).div_ceil(8)];
            if let Some(last) = recovered.last_mut().filter(|_| !n.is_multiple_of(8)) {
                *last = (1 << (n % 8)) - 1;
            }
            return NamedBlock {
                block,
                n,
                recovered,
            };
        };
        let bytes = known.iter().flat_map(|word| word.to_le_bytes());
        NamedBlock {
            block,
            n,
            recovered: bytes.take(usize::from(n).div_ceil(8)).collect(),
        }
    }

    /// Decoded blocks: all below the first value, and these ranges.
    pub(crate) fn decoded(&self) -> (BlockId, Vec<(BlockId, BlockId)>) {
        self.completion.complete()
    }

    /// Writes feedback about streams, as much as fits before `limit`.
    pub(crate) fn write_streams(&mut self, limit: usize, out: &mut Vec<u8>) {
        self.streams.write(limit, out);
    }

    // ---- feedback, ours ---------------------------------------------------------------------------

    /// Writes feedback about blocks (Block-SACK), and about streams as much as fits before `limit`.
    pub(crate) fn write_blocks(&mut self, limit: usize, flight_over: bool, out: &mut Vec<u8>) {
        if self.is_paper {
            // The paper's mode writes a Block-SACK of its own.
        } else if let Some(blocks) = self.completion.feedback(&self.blocks, flight_over) {
            Frame::Blocks(blocks).encode(out);
        }
        self.streams.write(limit, out);
    }
}

/// Whether there can be a block of this shape.
fn is_possible(n: u16, symbol_len: usize) -> bool {
    (1..=MAX_SYMBOL_LEN).contains(&symbol_len)
        && (1..=block_symbols_max(symbol_len)).contains(&usize::from(n))
}
