//! The part of a driver that takes in repairs of sliding windows.

use std::collections::{BTreeMap, BTreeSet};

use sphinx_fec::span::{Covered, SpanBlock, SpanDecoder};
use sphinx_fec::{Row, RowMaker};
use sphinx_proto::{CoveredBlock, Slot};

/// Blocks that are remembered after they have been taken.
const PAST_MAX: usize = 64;

/// A received block as this part sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) source: &'a [u8],
    pub(super) symbol_len: usize,
    pub(super) have: &'a [u64],
}

/// All incoming windows of an end.
pub(super) struct Spans {
    maker: RowMaker,
    decoders: BTreeMap<u16, SpanDecoder>,
    /// Ids and slots of blocks that repairs have covered, and where all symbols are there.
    slots: BTreeMap<(u16, u64), Slot>,
    whole: BTreeSet<Slot>,
    past: BTreeMap<(u16, u64), (Vec<u8>, usize)>,
}

impl Spans {
    pub(super) fn new() -> Self {
        Self {
            maker: RowMaker::new(),
            decoders: BTreeMap::new(),
            slots: BTreeMap::new(),
            whole: BTreeSet::new(),
            past: BTreeMap::new(),
        }
    }

    pub(super) fn add_repair<'a>(
        &mut self,
        (stream, row): (u16, u32),
        covered: &[CoveredBlock],
        symbol: &[u8],
        view: impl Fn(Slot) -> View<'a>,
    ) {
        let mut blocks = Vec::new();
        for block in covered {
            let name = (stream, block.block);
            let count = usize::from(block.count);
            let first = 1024 * block.block;
            if let Some(slot) = block.slot {
                self.slots.insert(name, slot);
            }
            let slot = self.slots.get(&name).copied();
            let (symbols, symbol_len, known) = match (slot, self.past.get(&name)) {
                (Some(slot), _) => {
                    let view = view(slot);
                    if block.slot.is_none() && !self.whole.contains(&slot) {
                        return;
                    }
                    (view.source, view.symbol_len, block.slot.map(|_| view.have))
                }
                (None, Some((bytes, symbol_len))) => (&bytes[..], *symbol_len, None),
                (None, None) => return,
            };
            assert_eq!(symbol_len, usize::from(block.symbol_len));
            blocks.push(Covered {
                block: SpanBlock {
                    symbols,
                    symbol_len,
                    count,
                },
                first,
                known,
            });
        }
        let fits = |decoder: &SpanDecoder| decoder.symbol_len() >= symbol.len();
        if !self.decoders.get(&stream).is_some_and(fits) {
            let decoder = SpanDecoder::new(256, symbol.len()).expect("sizes");
            self.decoders.insert(stream, decoder);
        }
        let Some(decoder) = self.decoders.get_mut(&stream) else {
            return;
        };
        let row = Row::new(row).expect("24 bits");
        decoder.add_repair(&mut self.maker, row, &blocks, symbol);
    }

    /// A symbol has arrived.
    pub(super) fn learn(&mut self, stream: u16, block: u32, index: u16, symbol: &[u8]) {
        let decoder = self.decoders.get_mut(&stream);
        if let Some(decoder) = decoder.filter(|decoder| symbol.len() <= decoder.symbol_len()) {
            decoder.learn(1024 * u64::from(block) + u64::from(index), symbol);
        }
    }

    /// All of a block is there.
    pub(super) fn learn_block(&mut self, (stream, block): (u16, u64), slot: Slot, view: View<'_>) {
        self.whole.insert(slot);
        let first = 1024 * block;
        if let Some(decoder) = self.decoders.get_mut(&stream) {
            for number in decoder.unknown(first, first + 1024).collect::<Vec<_>>() {
                let at = (number - first) as usize * view.symbol_len;
                decoder.learn(number, &view.source[at..at + view.symbol_len]);
            }
        }
    }

    /// A block's memory goes.
    pub(super) fn taken(&mut self, slot: Slot, source: Vec<u8>, symbol_len: usize) {
        self.whole.remove(&slot);
        let name = self
            .slots
            .iter()
            .find(|(_, at)| **at == slot)
            .map(|(name, _)| *name);
        if let Some(name) = name {
            self.slots.remove(&name);
            self.past.insert(name, (source, symbol_len));
            if self.past.len() > PAST_MAX {
                self.past.pop_first();
            }
        }
    }

    /// The next symbol that is known now: its stream, block, slot, index and bytes.
    pub(super) fn next_restored(&mut self) -> Option<(u16, u64, Slot, u16, Vec<u8>)> {
        for (stream, decoder) in &mut self.decoders {
            while let Some((number, value)) = decoder.next_restored() {
                let (block, index) = (number / 1024, (number % 1024) as u16);
                if let Some(slot) = self.slots.get(&(*stream, block)) {
                    return Some((*stream, block, *slot, index, value));
                }
            }
        }
        None
    }
}
