//! Decoding symbol by symbol as they arrive, for block and sliding-window
//! codes alike.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::bits;
use crate::code::{CodeId, Decoding, Error, Row, check_block};
use crate::decode::{BlockDecoder, Repair};
use crate::echelon::Echelon;
use crate::eliminate::Missing;
use crate::engine::{Columns, Engine, Start, Term};
use crate::fft_rs;
use crate::peeler::Peeler;
use crate::rows::RowMaker;
use crate::tracker::Added;

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
/// The work is done as symbols arrive: a repair is reduced by what is known and
/// by the repairs before it at once, so the last symbol costs about as much as
/// any other, and missing symbols come out as soon as they are determined. No
/// memory is allocated for a block once the largest one was seen.
///
/// Repairs of all codes can be mixed, but for those of `fft-rs`, which is a
/// transform of the whole block: they are kept and decoded with the last one.
#[derive(Debug)]
pub struct BlockReceiver {
    first: u64,
    n: usize,
    symbol_len: usize,
    engine: Engine,
    is_maximum_likelihood: bool,
    maker: RowMaker,
    known: Vec<u64>,
    known_count: usize,
    missing: Missing,
    /// Rows over `missing`, with their payload.
    echelon: Echelon,
    peeler: Peeler,
    /// Names and bytes of the repairs that wait: to be peeled, or transformed.
    waiting: Vec<(CodeId, Row)>,
    symbols: Vec<u8>,
    /// Symbols that became known but were not worked on yet, with the waiting
    /// repair that restores them, if it is one. In their order: a symbol that
    /// elimination has restored is not to be peeled by what came of another.
    queue: VecDeque<(u16, Option<u32>)>,
    restored: VecDeque<u16>,
    terms: Vec<Term>,
    symbol: Vec<u8>,
    transform: Option<Box<BlockDecoder>>,
}

impl BlockReceiver {
    /// A receiver for the block of `n` symbols of `symbol_len` bytes that
    /// starts with symbol number `first` of its stream.
    ///
    /// # Errors
    /// If `n` is 0 or above [`fft_rs::SYMBOLS_MAX`]; blocks that only that code
    /// has take no other repairs.
    pub fn new(first: u64, n: usize, symbol_len: usize) -> Result<Self, Error> {
        let mut receiver = Self {
            first,
            n,
            symbol_len,
            engine: Engine::detect(),
            is_maximum_likelihood: false,
            maker: RowMaker::new(),
            known: Vec::new(),
            known_count: 0,
            missing: Missing::default(),
            echelon: Echelon::default(),
            peeler: Peeler::default(),
            waiting: Vec::new(),
            symbols: Vec::new(),
            queue: VecDeque::new(),
            restored: VecDeque::new(),
            terms: Vec::new(),
            symbol: Vec::new(),
            transform: None,
        };
        receiver.reset(first, n, symbol_len)?;
        Ok(receiver)
    }

    /// Computes with a certain engine, before anything was added.
    #[must_use]
    pub fn with_engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// Makes the receiver restore what all repairs together determine, those
    /// of peeling codes too, before anything was added.
    #[must_use]
    pub fn maximum_likelihood(mut self) -> Self {
        self.is_maximum_likelihood = true;
        self
    }

    /// Starts over with another block, keeping the working memory.
    ///
    /// # Errors
    /// As for [`Self::new`]; the receiver is then unchanged.
    pub fn reset(&mut self, first: u64, n: usize, symbol_len: usize) -> Result<(), Error> {
        check_block(CodeId::FftRs, n)?;
        self.first = first;
        self.n = n;
        self.symbol_len = symbol_len;
        self.known.clear();
        self.known.resize(bits::words(n), 0);
        self.known_count = 0;
        self.echelon.reset(0, 0);
        self.peeler.clear();
        self.waiting.clear();
        self.symbols.clear();
        self.queue.clear();
        self.restored.clear();
        Ok(())
    }

    /// The symbols that arrived or were restored, as a bit map (see [`bits`]).
    #[must_use]
    pub fn known(&self) -> &[u64] {
        &self.known
    }

    fn check_memory(&self, memory: &[u8]) {
        let expected = self.n.saturating_mul(self.symbol_len);
        assert_eq!(memory.len(), expected, "memory for another block");
    }

    /// Takes in a row that decodes by elimination.
    fn eliminate(&mut self, memory: &[u8], repair: Repair<'_>) -> Added {
        if self.echelon.rank() == 0 {
            self.missing.number(&self.known, self.n);
            let width = self.missing.symbols.len();
            self.echelon.reset(width, self.symbol_len);
        }
        let Ok(terms) = self.maker.terms(repair.code, self.n, repair.row) else {
            return Added::Invalid;
        };
        let width = self.missing.symbols.len();
        self.terms.clear();
        let is_new = self.echelon.insert(self.engine, |row| {
            for term in terms {
                if bits::contains(&self.known, usize::from(term.index)) {
                    self.terms.push(*term);
                } else if let Some(column) = self.missing.column(term.index) {
                    row[column] = term.coefficient;
                }
            }
            let payload = &mut row[width..];
            payload.copy_from_slice(repair.symbol);
            let columns = Columns {
                symbols: memory,
                symbol_len: self.symbol_len,
                first: 0,
            };
            self.engine
                .combine(payload, Start::Accumulate, columns, &self.terms);
        });
        if is_new {
            Added::Innovative
        } else {
            Added::Redundant
        }
    }

    /// Takes in a row that decodes by peeling.
    fn wait(&mut self, repair: Repair<'_>) -> Added {
        let Ok(terms) = self.maker.terms(repair.code, self.n, repair.row) else {
            return Added::Invalid;
        };
        let known = &self.known;
        let mut unknown = terms
            .iter()
            .map(|term| term.index)
            .filter(|index| !bits::contains(known, usize::from(*index)));
        let id = self.waiting.len() as u32;
        let Some(first) = unknown.next() else {
            return Added::Redundant;
        };
        // An honest sender does not send so many.
        if self.waiting.len() > 4 * self.n + 64 {
            return Added::Redundant;
        }
        match unknown.next() {
            None => self.queue.push_back((first, Some(id))),
            Some(second) => {
                let members = [first, second].into_iter().chain(unknown);
                self.peeler.add(id, members);
            }
        }
        self.waiting.push((repair.code, repair.row));
        self.symbols.extend_from_slice(repair.symbol);
        Added::Innovative
    }

    /// Works on what became known until nothing more does.
    fn settle(&mut self, memory: &mut [u8]) {
        let before = self.restored.len();
        self.settle_all(memory);
        self.restored.make_contiguous()[before..].sort_unstable();
    }

    fn settle_all(&mut self, memory: &mut [u8]) {
        loop {
            while let Some((symbol, source)) = self.queue.pop_front() {
                self.settle_one(memory, symbol, source);
            }
            if self.echelon.rank() == 0 {
                return;
            }
            let symbol_len = self.symbol_len;
            let Self {
                echelon,
                missing,
                queue,
                restored,
                ..
            } = self;
            echelon.take_solved(|column, bytes| {
                let symbol = missing.symbols[column];
                let at = usize::from(symbol) * symbol_len;
                memory[at..at + symbol_len].copy_from_slice(bytes);
                queue.push_back((symbol, None));
                restored.push_back(symbol);
            });
            if queue.is_empty() {
                return;
            }
        }
    }

    /// Makes a symbol known, after restoring it from a waiting repair if that
    /// is where it comes from.
    fn settle_one(&mut self, memory: &mut [u8], symbol: u16, source: Option<u32>) {
        let index = usize::from(symbol);
        if bits::contains(&self.known, index) {
            return;
        }
        let at = index * self.symbol_len;
        if let Some(id) = source {
            self.peel(memory, symbol, id as usize);
            memory[at..at + self.symbol_len].copy_from_slice(&self.symbol);
            self.restored.push_back(symbol);
        }
        bits::insert(&mut self.known, index);
        self.known_count += 1;
        if self.echelon.rank() > 0
            && let Some(column) = self.missing.column(symbol)
        {
            let value = &memory[at..at + self.symbol_len];
            self.echelon.substitute(self.engine, column, value);
        }
        let Self { peeler, queue, .. } = self;
        peeler.learn(symbol, |id, symbol| {
            queue.push_back((symbol, Some(id)));
            // It is known only once its bytes are; then it is learned.
            false
        });
    }

    /// Computes the one unknown symbol of a waiting repair.
    fn peel(&mut self, memory: &[u8], symbol: u16, id: usize) {
        let (code, row) = self.waiting[id];
        self.symbol.clear();
        let bytes = &self.symbols[id * self.symbol_len..][..self.symbol_len];
        self.symbol.extend_from_slice(bytes);
        // The row existed when the repair was taken in.
        if let Ok(terms) = self.maker.terms(code, self.n, row) {
            self.terms.clear();
            let others = terms.iter().filter(|term| term.index != symbol);
            self.terms.extend(others);
            let columns = Columns {
                symbols: memory,
                symbol_len: self.symbol_len,
                first: 0,
            };
            self.engine
                .combine(&mut self.symbol, Start::Accumulate, columns, &self.terms);
        }
    }

    /// Whether no repair is kept.
    fn is_without_repairs(&self) -> bool {
        self.waiting.is_empty() && self.echelon.rank() == 0
    }

    /// Takes in a repair of `fft-rs`; the last one restores the block.
    fn transform(&mut self, memory: &mut [u8], repair: Repair<'_>) -> Added {
        let Some((size, _)) = fft_rs::split(repair.row) else {
            return Added::Invalid;
        };
        let others = self.waiting.iter().map(|(_, row)| *row);
        let fits = |other| fft_rs::split(other).is_some_and(|(s, _)| s == size);
        if self.deficit() == 0 || !others.clone().all(|o| fits(o) && o != repair.row) {
            return Added::Redundant;
        }
        self.waiting.push((repair.code, repair.row));
        self.symbols.extend_from_slice(repair.symbol);
        self.transform_if_possible(memory)
    }

    fn transform_if_possible(&mut self, memory: &mut [u8]) -> Added {
        let is_transform = matches!(self.waiting.first(), Some((CodeId::FftRs, _)));
        let missing = self.n - self.known_count;
        if !is_transform || missing == 0 || self.waiting.len() < missing {
            return Added::Innovative;
        }
        let symbols = self.symbols.chunks_exact(self.symbol_len.max(1));
        let repairs: Vec<Repair<'_>> = self
            .waiting
            .iter()
            .zip(symbols)
            .map(|(&(code, row), symbol)| Repair { code, row, symbol })
            .collect();
        let decoder = self.transform.get_or_insert_default();
        let result = decoder.decode(self.n, self.symbol_len, memory, &self.known, &repairs);
        if result.is_err() {
            // Symbols of odd length, or not part of this build.
            self.waiting.clear();
            self.symbols.clear();
            return Added::Invalid;
        }
        let lost: Vec<usize> = bits::absent(&self.known, self.n).collect();
        for i in lost {
            bits::insert(&mut self.known, i);
            self.restored.push_back(i as u16);
        }
        self.known_count = self.n;
        Added::Innovative
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
        if bits::contains(&self.known, slot) {
            return Added::Redundant;
        }
        self.queue.push_back((slot as u16, None));
        self.settle(memory);
        self.transform_if_possible(memory);
        Added::Innovative
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
        if self.known_count == self.n {
            return Added::Redundant;
        }
        let is_transforming = matches!(self.waiting.first(), Some((CodeId::FftRs, _)));
        let added = match repair.code.decoding() {
            Decoding::Transform if is_transforming || self.is_without_repairs() => {
                return self.transform(memory, repair);
            }
            _ if is_transforming => Added::Redundant,
            Decoding::Transform => Added::Redundant,
            Decoding::Peeling if !self.is_maximum_likelihood => self.wait(repair),
            Decoding::Peeling | Decoding::Elimination => self.eliminate(memory, repair),
        };
        if added == Added::Innovative {
            self.settle(memory);
        }
        added
    }

    fn next_restored(&mut self) -> Option<u64> {
        self.restored.pop_front().map(|i| self.first + u64::from(i))
    }

    fn deficit(&self) -> usize {
        let unknown = self.n - self.known_count;
        let is_transforming = matches!(self.waiting.first(), Some((CodeId::FftRs, _)));
        let transformed = if is_transforming {
            self.waiting.len()
        } else {
            0
        };
        unknown.saturating_sub(self.echelon.rank() + transformed)
    }
}
