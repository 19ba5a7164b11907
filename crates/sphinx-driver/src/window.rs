//! The sliding window at the receiving end: what its repairs restore in blocks under way, and the blocks
//! behind them that later repairs still cover.

use std::collections::{BTreeMap, VecDeque};

use sphinx_fec::RowMaker;
use sphinx_fec::span::{Covered, SpanBlock, SpanDecoder};
use sphinx_proto::wire::{Header, SymbolId, WindowSpan};
use sphinx_proto::{CoveredBlock, Placement, Slot};

use crate::blocks::RxBlocks;
use crate::pool::BufferPool;

/// Unknown symbols that repairs may wait for.
const UNKNOWN_MAX: usize = 512;
/// Blocks kept behind those under way, and their bytes.
const HISTORY_MAX: usize = 32;
const HISTORY_BYTES: usize = 1 << 20;
/// Symbols of a block, as numbers of symbols count them (`docs/protocol.md` §5).
const BLOCK_STRIDE: u64 = 1024;

/// A symbol that was restored: where it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Restored {
    pub(crate) block: u64,
    pub(crate) index: u16,
}

/// The window of what a session receives.
#[derive(Default)]
pub(crate) struct Window {
    /// There is one as soon as a repair has come.
    decoder: Option<SpanDecoder>,
    maker: RowMaker,
    /// Blocks under way, by the low bits of their ids.
    slots: BTreeMap<u32, (u64, Slot)>,
    /// Copies of whole blocks, oldest first.
    history: VecDeque<PastBlock>,
    history_bytes: usize,
}

struct PastBlock {
    id: u64,
    symbol_len: usize,
    bytes: Vec<u8>,
}

impl Window {
    /// Takes in a repair of these blocks.
    pub(crate) fn add_repair(
        &mut self,
        header: &Header,
        span: &WindowSpan,
        covered: &[CoveredBlock],
        symbol: &[u8],
        rx: &mut RxBlocks,
        pool: &BufferPool,
    ) {
        let fits = |decoder: &SpanDecoder| decoder.symbol_len() >= span.symbol_len();
        if !self.decoder.as_ref().is_some_and(fits) {
            // A larger symbol than any before: what waits is given up.
            self.decoder = SpanDecoder::new(UNKNOWN_MAX, span.symbol_len()).ok();
        }
        let Some(decoder) = &mut self.decoder else {
            return;
        };
        for block in covered {
            if let Some(slot) = block.slot {
                rx.reserve(slot, block.n, block.symbol_len, pool);
                self.slots.insert(block.block as u32, (block.block, slot));
            }
        }
        let blocks = covered
            .iter()
            .map(|block| view_of(block, &self.slots, &self.history, rx));
        let blocks: Option<Vec<Covered<'_>>> = blocks.collect();
        let (Some(blocks), Some(row)) = (blocks, sphinx_fec::Row::new(header.row)) else {
            return;
        };
        decoder.add_repair(&mut self.maker, row, &blocks, symbol);
    }

    /// A symbol has been stored in a block under way.
    pub(crate) fn stored(&mut self, header: &Header, placement: &Placement, symbol: &[u8]) {
        let Some(decoder) = &mut self.decoder else {
            return;
        };
        let Some((id, _)) = self.slots.get(&header.block) else {
            // Of no interest before a repair covers its block, which then finds it.
            return;
        };
        if let Placement::Block {
            symbol: SymbolId::Source(index),
            ..
        } = placement
            && symbol.len() <= decoder.symbol_len()
        {
            decoder.learn(BLOCK_STRIDE * id + u64::from(*index), symbol);
        }
    }

    /// All of a block is in its memory.
    pub(crate) fn learn_block(&mut self, slot: Slot, rx: &RxBlocks) {
        let mut slots = self.slots.values();
        let Some((id, _)) = slots.find(|(_, at)| *at == slot) else {
            return;
        };
        let (Some(decoder), Some((memory, symbol_len, _))) = (&mut self.decoder, rx.view(slot))
        else {
            return;
        };
        let first = BLOCK_STRIDE * id;
        let unknown: Vec<u64> = decoder.unknown(first, first + BLOCK_STRIDE).collect();
        for number in unknown {
            let at = (number - first) as usize * symbol_len;
            if let Some(value) = memory.get(at..at + symbol_len) {
                decoder.learn(number, value);
            }
        }
    }

    /// A whole block leaves for the application.
    pub(crate) fn leaves(&mut self, id: u64, slot: Slot, rx: &RxBlocks) {
        if self.decoder.is_none() {
            return;
        }
        self.slots.remove(&(id as u32));
        if let Some((memory, symbol_len, _)) = rx.view(slot) {
            self.history_bytes += memory.len();
            self.history.push_back(PastBlock {
                id,
                symbol_len,
                bytes: memory.to_vec(),
            });
        }
        while self.history.len() > HISTORY_MAX || self.history_bytes > HISTORY_BYTES {
            let Some(oldest) = self.history.pop_front() else {
                break;
            };
            self.history_bytes -= oldest.bytes.len();
        }
    }

    /// The next symbol that repairs have restored; it is in its block's memory.
    pub(crate) fn next_restored(&mut self, rx: &mut RxBlocks) -> Option<Restored> {
        while let Some((number, value)) = self.decoder.as_mut()?.next_restored() {
            let (block, index) = (number / BLOCK_STRIDE, (number % BLOCK_STRIDE) as u16);
            let slot = self.slots.get(&(block as u32));
            if slot.is_some_and(|(_, slot)| rx.restore(*slot, index, &value)) {
                return Some(Restored { block, index });
            }
        }
        None
    }
}

/// A covered block's memory; `None` if it has been forgotten.
fn view_of<'a>(
    block: &CoveredBlock,
    slots: &BTreeMap<u32, (u64, Slot)>,
    history: &'a VecDeque<PastBlock>,
    rx: &'a RxBlocks,
) -> Option<Covered<'a>> {
    let first = BLOCK_STRIDE * block.block;
    let known = slots.get(&(block.block as u32)).map(|(_, slot)| *slot);
    let (symbols, symbol_len, have) = match block.slot.or(known) {
        Some(slot) => {
            let (memory, symbol_len, have) = rx.view(slot)?;
            // Without a slot from the core it is whole, though symbols of it never arrived.
            (memory, symbol_len, block.slot.map(|_| have))
        }
        None => {
            let past = history.iter().rev().find(|past| past.id == block.block)?;
            (&past.bytes[..], past.symbol_len, None)
        }
    };
    (symbol_len == usize::from(block.symbol_len)).then_some(Covered {
        block: SpanBlock {
            symbols,
            symbol_len,
            count: usize::from(block.count),
        },
        first,
        known: have,
    })
}
