//! Sliding windows at the receiving end: what their repairs restore in blocks under way, and the blocks
//! behind them that later repairs still cover.

use std::collections::{BTreeMap, VecDeque};

use sphinx_fec::RowMaker;
use sphinx_fec::span::{Covered, SpanBlock, SpanDecoder};
use sphinx_proto::wire::{Header, SymbolId, WindowSpan};
use sphinx_proto::{CoveredBlock, Placement, Slot};

use crate::blocks::RxBlocks;
use crate::pool::BufferPool;

/// Streams of a session with a window; repairs of others are dropped.
const STREAMS_MAX: usize = 8;
/// Unknown symbols of a stream that repairs may wait for.
const UNKNOWN_MAX: usize = 512;
/// Blocks kept behind those under way, and their bytes, of one stream.
const HISTORY_MAX: usize = 32;
const HISTORY_BYTES: usize = 1 << 20;
/// Symbols of a block, as numbers of symbols count them (`docs/protocol.md` §5).
const BLOCK_STRIDE: u64 = 1024;

/// A symbol that was restored: where it belongs in its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Restored {
    pub(crate) stream: u16,
    pub(crate) block: u64,
    pub(crate) index: u16,
}

/// The windows of a session's incoming streams.
#[derive(Default)]
pub(crate) struct Windows {
    streams: BTreeMap<u16, Window>,
    maker: RowMaker,
}

struct Window {
    decoder: SpanDecoder,
    /// Blocks under way or not yet in order, by the low bits of their ids.
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

impl Windows {
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
        let is_known = self.streams.contains_key(&header.stream);
        if covered.is_empty() || !is_known && self.streams.len() >= STREAMS_MAX {
            return;
        }
        let Some(window) = Self::window(&mut self.streams, header.stream, span.symbol_len()) else {
            return;
        };
        for block in covered {
            if let Some(slot) = block.slot {
                rx.reserve(slot, block.n, block.symbol_len, pool);
                window.slots.insert(block.block as u32, (block.block, slot));
            }
        }
        let Window {
            decoder,
            slots,
            history,
            ..
        } = window;
        let blocks = covered
            .iter()
            .map(|block| view_of(block, slots, history, rx));
        let blocks: Option<Vec<Covered<'_>>> = blocks.collect();
        let (Some(blocks), Some(row)) = (blocks, sphinx_fec::Row::new(header.row)) else {
            return;
        };
        decoder.add_repair(&mut self.maker, row, &blocks, symbol);
    }

    fn window(
        streams: &mut BTreeMap<u16, Window>,
        stream: u16,
        symbol_len: usize,
    ) -> Option<&mut Window> {
        let fits = |window: &Window| window.decoder.symbol_len() >= symbol_len;
        if !streams.get(&stream).is_some_and(fits) {
            // A larger symbol than any before: what waits is given up.
            let decoder = SpanDecoder::new(UNKNOWN_MAX, symbol_len).ok()?;
            match streams.get_mut(&stream) {
                Some(window) => window.decoder = decoder,
                None => {
                    let window = Window {
                        decoder,
                        slots: BTreeMap::new(),
                        history: VecDeque::new(),
                        history_bytes: 0,
                    };
                    streams.insert(stream, window);
                }
            }
        }
        streams.get_mut(&stream)
    }

    /// A symbol has been stored in a block under way.
    pub(crate) fn stored(&mut self, header: &Header, placement: &Placement, symbol: &[u8]) {
        let Some(window) = self.streams.get_mut(&header.stream) else {
            return;
        };
        let Some((id, _)) = window.slots.get(&header.block) else {
            // Of no interest before a repair covers its block, which then finds it.
            return;
        };
        if let Placement::Block {
            symbol: SymbolId::Source(index),
            ..
        } = placement
            && symbol.len() <= window.decoder.symbol_len()
        {
            window
                .decoder
                .learn(BLOCK_STRIDE * id + u64::from(*index), symbol);
        }
    }

    /// All of a block is in its memory.
    pub(crate) fn learn_block(&mut self, slot: Slot, rx: &RxBlocks) {
        let of_slot = |window: &Window| {
            let mut slots = window.slots.values();
            slots.find(|(_, at)| *at == slot).map(|(id, _)| *id)
        };
        for window in self.streams.values_mut() {
            if let (Some(id), Some((memory, symbol_len, _))) = (of_slot(window), rx.view(slot)) {
                window.learn_all(id, memory, symbol_len);
            }
        }
    }

    /// A whole block leaves for the application.
    pub(crate) fn leaves(&mut self, stream: u16, id: u64, slot: Slot, rx: &RxBlocks) {
        let Some(window) = self.streams.get_mut(&stream) else {
            return;
        };
        window.slots.remove(&(id as u32));
        if let Some((memory, symbol_len, _)) = rx.view(slot) {
            window.history_bytes += memory.len();
            window.history.push_back(PastBlock {
                id,
                symbol_len,
                bytes: memory.to_vec(),
            });
        }
        while window.history.len() > HISTORY_MAX || window.history_bytes > HISTORY_BYTES {
            let Some(oldest) = window.history.pop_front() else {
                break;
            };
            window.history_bytes -= oldest.bytes.len();
        }
    }

    /// The next symbol that repairs have restored; it is in its block's memory.
    pub(crate) fn next_restored(&mut self, rx: &mut RxBlocks) -> Option<Restored> {
        for (stream, window) in &mut self.streams {
            while let Some((number, value)) = window.decoder.next_restored() {
                let (block, index) = (number / BLOCK_STRIDE, (number % BLOCK_STRIDE) as u16);
                let slot = window.slots.get(&(block as u32));
                if slot.is_some_and(|(_, slot)| rx.restore(*slot, index, &value)) {
                    return Some(Restored {
                        stream: *stream,
                        block,
                        index,
                    });
                }
            }
        }
        None
    }
}

impl Window {
    fn learn_all(&mut self, id: u64, memory: &[u8], symbol_len: usize) {
        let first = BLOCK_STRIDE * id;
        let unknown: Vec<u64> = self.decoder.unknown(first, first + BLOCK_STRIDE).collect();
        for number in unknown {
            let at = (number - first) as usize * symbol_len;
            if let Some(value) = memory.get(at..at + symbol_len) {
                self.decoder.learn(number, value);
            }
        }
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
