//! Decoding symbol by symbol as they arrive, for block and sliding-window
//! codes alike.

use crate::code::Error;
use crate::decode::{BlockDecoder, Repair};
use crate::engine::Engine;
use crate::rows::RowMaker;
use crate::tracker::{Added, Tracker};
use crate::{CodeId, Row, bits};

/// A decoder that is fed with symbols in the order of their arrival.
///
/// Source symbols are numbered through their stream, from 0. Their memory
/// belongs to the caller, who passes it to every call: slots of one symbol
/// each, of which the decoder only says which symbol goes where. A block
/// decoder has a slot for every symbol of its block, a sliding-window decoder
/// reuses them in a ring.
///
/// A repair covers the symbols `first .. first + count`: the whole block for a
/// block code, the window at the time of sending for a sliding-window code.
pub trait SymbolDecoder {
    /// The slot of source symbol `symbol`; `None` if it is not, or no longer,
    /// of interest.
    fn slot(&self, symbol: u64) -> Option<usize>;

    /// Takes note that the caller has written source symbol `symbol` to its
    /// slot.
    ///
    /// # Panics
    /// If `memory` has not the length the decoder was made for.
    fn add_source(&mut self, memory: &mut [u8], symbol: u64) -> Added;

    /// Takes in a repair of the symbols `first .. first + count`.
    ///
    /// # Panics
    /// If `memory` has not the length the decoder was made for.
    fn add_repair(
        &mut self,
        memory: &mut [u8],
        first: u64,
        count: usize,
        repair: Repair<'_>,
    ) -> Added;

    /// The next source symbol that decoding has written to its slot, each
    /// once, in rising order as far as they became known together.
    fn next_restored(&mut self) -> Option<u64>;

    /// Independent symbols needed to restore all that is missing.
    fn deficit(&self) -> usize;
}

/// Decodes one block at a time, from symbols as they arrive.
///
/// It copies the repairs that its [`Tracker`] calls innovative until the block
/// can be decoded; that memory is kept for the next block.
#[derive(Debug)]
pub struct BlockReceiver {
    first: u64,
    n: usize,
    symbol_len: usize,
    tracker: Tracker,
    maker: RowMaker,
    decoder: BlockDecoder,
    /// Names and bytes of the repairs kept.
    names: Vec<(CodeId, Row)>,
    symbols: Vec<u8>,
    /// Symbols that were missing when the block was decoded, last one first.
    restored: Vec<u16>,
}

impl BlockReceiver {
    /// A receiver for the block of `n` symbols of `symbol_len` bytes that
    /// starts with symbol number `first` of its stream.
    ///
    /// # Errors
    /// If `n` is 0 or above [`SYMBOLS_MAX`](crate::SYMBOLS_MAX).
    pub fn new(first: u64, n: usize, symbol_len: usize) -> Result<Self, Error> {
        Ok(Self {
            first,
            n,
            symbol_len,
            tracker: Tracker::new(n)?,
            maker: RowMaker::new(),
            decoder: BlockDecoder::with_engine(Engine::detect()),
            names: Vec::new(),
            symbols: Vec::new(),
            restored: Vec::new(),
        })
    }

    /// Starts over with another block, keeping the working memory.
    ///
    /// # Errors
    /// As for [`Self::new`]; the receiver is then unchanged.
    pub fn reset(&mut self, first: u64, n: usize, symbol_len: usize) -> Result<(), Error> {
        self.tracker = Tracker::new(n)?;
        self.first = first;
        self.n = n;
        self.symbol_len = symbol_len;
        self.names.clear();
        self.symbols.clear();
        self.restored.clear();
        Ok(())
    }

    /// What is known about the block.
    #[must_use]
    pub fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    fn check_memory(&self, memory: &[u8]) {
        let expected = self.n * self.symbol_len;
        assert_eq!(memory.len(), expected, "memory for another block");
    }

    /// Restores what is missing as soon as that is possible.
    fn decode_if_possible(&mut self, memory: &mut [u8]) {
        if !self.tracker.is_decodable() || self.tracker.missing() == 0 {
            return;
        }
        let symbols = self.symbols.chunks_exact(self.symbol_len.max(1));
        let symbols = symbols.chain(std::iter::repeat(&[][..]));
        let repairs: Vec<Repair<'_>> = self
            .names
            .iter()
            .zip(symbols)
            .map(|(&(code, row), symbol)| Repair { code, row, symbol })
            .collect();
        let have = self.tracker.received();
        let result = self
            .decoder
            .decode(self.n, self.symbol_len, memory, have, &repairs);
        debug_assert!(result.is_ok(), "tracker and decoder disagree");
        if result.is_ok() {
            let missing = bits::absent(have, self.n).map(|i| i as u16);
            self.restored.extend(missing);
            self.restored.reverse();
            for i in &self.restored {
                self.tracker.add_source(usize::from(*i));
            }
        }
    }
}

impl SymbolDecoder for BlockReceiver {
    fn slot(&self, symbol: u64) -> Option<usize> {
        let slot = symbol.checked_sub(self.first)?;
        (slot < self.n as u64).then_some(slot as usize)
    }

    fn add_source(&mut self, memory: &mut [u8], symbol: u64) -> Added {
        self.check_memory(memory);
        let Some(slot) = self.slot(symbol) else {
            return Added::Invalid;
        };
        let added = self.tracker.add_source(slot);
        self.decode_if_possible(memory);
        added
    }

    fn add_repair(
        &mut self,
        memory: &mut [u8],
        first: u64,
        count: usize,
        repair: Repair<'_>,
    ) -> Added {
        self.check_memory(memory);
        if first != self.first || count != self.n || repair.symbol.len() != self.symbol_len {
            return Added::Invalid;
        }
        let Repair { code, row, symbol } = repair;
        let added = self.tracker.add_repair(&mut self.maker, code, row);
        if added == Added::Innovative {
            self.names.push((code, row));
            self.symbols.extend_from_slice(symbol);
            self.decode_if_possible(memory);
        }
        added
    }

    fn next_restored(&mut self) -> Option<u64> {
        self.restored.pop().map(|i| self.first + u64::from(i))
    }

    fn deficit(&self) -> usize {
        self.tracker.deficit()
    }
}
