//! The receiving half: what a symbol does to its block, and a block to the streams that it holds parts of.

use sphinx_fec::{Added, CodeId};

use crate::blocks::{Assembly, Complete, Completion, Key, RxBlocks, Shape};
use crate::config::Config;
use crate::streams::RecvStreams;
use crate::types::{
    CoveredBlock, PartPlacement, Placement, Slot, StreamId, StreamPart, share_cost,
};
use crate::wire::{
    Fragment, Frame, Header, MAX_SYMBOL_LEN, SymbolId, WindowSpan, block_symbols_max,
    expand_packet_number,
};

/// What arrives at this end.
pub(crate) struct Receiver {
    streams: RecvStreams,
    blocks: RxBlocks,
    completion: Completion,
    /// Symbols of which a part has arrived.
    assembly: Assembly,
    symbols_redundant: u64,
    packets_refused: u64,
}

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
    /// All that is needed is there.
    Complete { block: u64, complete: Complete },
    /// The peer broke the protocol.
    Violation(&'static str),
}

impl Receiver {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            streams: RecvStreams::new(config.role.other(), config.recv_window, config.recv_credit),
            blocks: RxBlocks::default(),
            completion: Completion::default(),
            assembly: Assembly::default(),
            symbols_redundant: 0,
            packets_refused: 0,
        }
    }

    /// Whether a block has begun to arrive and lacks symbols.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Symbols that were not needed.
    pub(crate) fn symbols_redundant(&self) -> u64 {
        self.symbols_redundant
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
    fn open(&mut self, id: u64, shape: Shape, code: Option<CodeId>) -> Opened {
        if self.completion.is_complete(id) {
            return Opened::Complete;
        }
        match self.blocks.get(id) {
            Some((slot, known)) if known == shape => return Opened::Open(slot),
            Some(_) => return Opened::Refused,
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

    /// An authenticated symbol of `symbol_len` bytes: where it belongs.
    pub(crate) fn on_symbol(
        &mut self,
        header: &Header,
        symbol_len: usize,
    ) -> (Placement, Progress) {
        let refused = (Placement::Discard, Progress::None);
        let Ok(symbol) = header.symbol() else {
            return (Placement::Discard, Progress::Violation("unknown code"));
        };
        let code = symbol.code();
        // A window's repairs have a body of their own.
        let n = header.n;
        if code == Some(CodeId::Window) || !is_possible(n, symbol_len) {
            self.refuse();
            return refused;
        }
        let symbol_len = symbol_len as u16;
        let id = self.expand_block(header.block);
        let slot = match self.open(id, Shape { n, symbol_len }, code) {
            Opened::Open(slot) => slot,
            Opened::Complete => {
                self.already_complete();
                return refused;
            }
            Opened::Refused => {
                self.refuse();
                return refused;
            }
        };
        match self.blocks.add(id, symbol) {
            Added::Invalid => {
                self.refuse();
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
                (placement, self.advance(id))
            }
        }
    }

    fn expand_block(&self, block: u32) -> u64 {
        expand_packet_number(block, self.completion.base())
    }

    /// A symbol came for a block that needs none.
    fn already_complete(&mut self) {
        self.symbols_redundant += 1;
        self.completion.repeat_news();
    }

    /// More of a block is known: what follows.
    fn advance(&mut self, block: u64) -> Progress {
        let Some(complete) = self.blocks.take_complete(block) else {
            return Progress::None;
        };
        self.completion.on_complete(block);
        Progress::Complete { block, complete }
    }

    /// An authenticated part of a symbol: where it goes, and the symbol's place if this was the last part.
    pub(crate) fn on_fragment(
        &mut self,
        header: &Header,
        fragment: Fragment,
    ) -> Option<(PartPlacement, Progress)> {
        let key = Key {
            block: self.expand_block(header.block),
            code: header.code,
            row: header.row,
            symbol_len: fragment.symbol_len,
            count: fragment.count,
        };
        let (place, is_whole) = self.assembly.add(key, fragment.index)?;
        let (whole, progress) = if is_whole {
            let (placement, progress) = self.on_symbol(header, usize::from(fragment.symbol_len));
            (Some(placement), progress)
        } else {
            (None, Progress::None)
        };
        let part = PartPlacement {
            place,
            symbol_len: fragment.symbol_len,
            offset: fragment.range().start,
            whole,
        };
        Some((part, progress))
    }

    // ---- sliding windows --------------------------------------------------------------------------

    /// An authenticated repair of a window: the blocks it covers, oldest first; `None` if it is of no use.
    /// Its arithmetic is the driver's, as is its rank: it says which symbols it has restored.
    pub(crate) fn on_window(
        &mut self,
        header: &Header,
        span: &WindowSpan,
    ) -> Option<Vec<CoveredBlock>> {
        let newest = self.expand_block(header.block);
        let blocks: Vec<_> = span.blocks().collect();
        let first = newest.checked_sub(blocks.len() as u64 - 1);
        let is_named = blocks.first().is_some_and(|(n, _)| *n == header.n);
        let (Some(first), true) = (first, is_named && header.code == CodeId::Window.to_wire())
        else {
            self.refuse();
            return None;
        };
        let mut covered = Vec::with_capacity(blocks.len());
        for (block, (n, symbol_len)) in (first..=newest).zip(blocks.into_iter().rev()) {
            if !is_possible(n, usize::from(symbol_len)) {
                self.refuse();
                return None;
            }
            let slot = match self.open(block, Shape { n, symbol_len }, None) {
                Opened::Open(slot) => Some(slot),
                Opened::Complete => None,
                Opened::Refused => {
                    self.refuse();
                    return None;
                }
            };
            covered.push(CoveredBlock {
                block,
                slot,
                n,
                symbol_len,
                count: if block == newest { span.upto() } else { n },
            });
        }
        if covered.iter().all(|block| block.slot.is_none()) {
            self.already_complete();
            return None;
        }
        Some(covered)
    }

    /// The driver has restored a source symbol.
    pub(crate) fn on_restored(&mut self, block: u64, index: u16) -> Progress {
        match self.blocks.add(block, SymbolId::Source(index)) {
            Added::Innovative => self.advance(block),
            _ => Progress::None,
        }
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
        is_possible.then_some(()).ok_or("a stream that cannot be")
    }

    /// From now on the peer may fill the whole window. Whether it could not before.
    pub(crate) fn open_window(&mut self) -> bool {
        self.streams.open_window()
    }

    /// All of a stream is here, to its end.
    pub(crate) fn on_whole(&mut self, stream: StreamId) {
        self.streams.on_whole(stream);
    }

    /// The application has taken a part of this cost. Whether the sender must be sure to hear of it, since it may be
    /// waiting for nothing else.
    pub(crate) fn on_taken(&mut self, stream: StreamId, cost: u64) -> bool {
        self.streams.on_taken(stream, cost)
    }

    // ---- feedback ---------------------------------------------------------------------------------

    /// Credit of the peer (`docs/protocol.md` §7).
    pub(crate) fn credit(&self) -> u64 {
        self.streams.credit()
    }

    /// The last feedback is in a packet that is repeated until it is acknowledged: its credit counts as told.
    pub(crate) fn told_reliably(&mut self) {
        self.streams.told_reliably();
    }

    /// The next feedback tells of blocks and every stream; where it has no room for all, the ones after it do.
    pub(crate) fn report_all(&mut self) {
        self.completion.report();
        self.streams.report_all();
    }

    /// Writes what there is to tell of blocks (Block-SACK), and of streams while it fits before `limit`.
    pub(crate) fn write_blocks(&mut self, limit: usize, flight_over: bool, out: &mut Vec<u8>) {
        if let Some(blocks) = self.completion.feedback(&self.blocks, flight_over) {
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
