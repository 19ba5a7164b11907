//! Rank tracking from coefficients alone, for those who never touch payload.

use alloc::vec;
use alloc::vec::Vec;

use crate::bits;
use crate::code::{CodeId, Decoding, Error, Row, check_block};
use crate::echelon::Echelon;
use crate::engine::Engine;
use crate::fft_rs;
use crate::peeler::Peeler;
use crate::rows::RowMaker;

/// What a received symbol was worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It brings decoding further: keep it.
    Innovative,
    /// It says nothing new, or nothing that can be made use of: drop it.
    Redundant,
    /// There is no such symbol in this block: the sender is at fault.
    Invalid,
}

/// Knows from the names of the received symbols whether a block can be
/// decoded, and how much is missing if not.
///
/// As long as nothing is missing a repair costs a comparison, and the tracker
/// has no memory but two bit maps. Otherwise its memory is bounded by about
/// `n² + 300 n` bytes and the work for one symbol by one pass over that,
/// whatever rows arrive.
///
/// Repairs that decode by elimination and repairs that decode by peeling can
/// be mixed. What peeling restores counts as known for elimination, but not
/// the other way round, before elimination can restore everything; a
/// [`BlockDecoder`](crate::BlockDecoder) follows the same rule. Repairs of
/// [`fft_rs`] go with no others: those that come first count.
#[derive(Clone, Debug)]
pub struct Tracker {
    n: usize,
    engine: Engine,
    /// Source symbols that arrived.
    received: Vec<u64>,
    received_count: usize,
    /// Source symbols that arrived or were peeled.
    known: Vec<u64>,
    known_count: usize,
    /// The symbols that the columns of `echelon` stand for, in order: those
    /// unknown when its first row came.
    columns: Vec<u16>,
    echelon: Echelon,
    peeler: Peeler,
    is_maximum_likelihood: bool,
    /// Rows of `fft-rs` that arrived, sorted.
    transformed: Vec<Row>,
}

impl Tracker {
    /// A tracker for a block of `n` source symbols, of which nothing has
    /// arrived.
    ///
    /// # Errors
    /// If `n` is 0 or above [`SYMBOLS_MAX`](crate::SYMBOLS_MAX).
    pub fn new(n: usize) -> Result<Self, Error> {
        Self::for_code(CodeId::Rlc, n)
    }

    /// A tracker for a block of `n` source symbols that repairs of a certain
    /// code will follow; any code without larger blocks may come instead.
    ///
    /// # Errors
    /// If `n` is 0 or too large for the code.
    pub fn for_code(code: CodeId, n: usize) -> Result<Self, Error> {
        check_block(code, n)?;
        Ok(Self {
            n,
            engine: Engine::detect(),
            received: vec![0; bits::words(n)],
            received_count: 0,
            known: vec![0; bits::words(n)],
            known_count: 0,
            columns: Vec::new(),
            echelon: Echelon::default(),
            peeler: Peeler::default(),
            is_maximum_likelihood: false,
            transformed: Vec::new(),
        })
    }

    /// Makes the tracker expect that a
    /// [`BlockDecoder::maximum_likelihood`](crate::BlockDecoder::maximum_likelihood)
    /// decodes, before anything was added.
    #[must_use]
    pub fn maximum_likelihood(mut self) -> Self {
        self.is_maximum_likelihood = true;
        self
    }

    /// Starts over with another block, keeping memory and the way of decoding.
    ///
    /// # Errors
    /// As for [`Self::new`]; the tracker is then unchanged.
    pub fn reset(&mut self, n: usize) -> Result<(), Error> {
        check_block(CodeId::Rlc, n)?;
        self.n = n;
        for map in [&mut self.received, &mut self.known] {
            map.clear();
            map.resize(bits::words(n), 0);
        }
        self.received_count = 0;
        self.known_count = 0;
        self.columns.clear();
        self.echelon.reset(0, 0);
        self.peeler.clear();
        self.transformed.clear();
        Ok(())
    }

    /// Takes note of source symbol `i`.
    ///
    /// A symbol that peeling had restored before is redundant, as is a
    /// duplicate.
    #[inline]
    pub fn add_source(&mut self, i: usize) -> Added {
        if i >= self.n {
            return Added::Invalid;
        }
        if !bits::contains(&self.received, i) {
            bits::insert(&mut self.received, i);
            self.received_count += 1;
        }
        if bits::contains(&self.known, i) {
            return Added::Redundant;
        }
        self.learn(i as u16);
        Added::Innovative
    }

    /// Takes note of a repair symbol.
    ///
    /// `rows` is working memory that all trackers of a thread can share.
    pub fn add_repair(&mut self, rows: &mut RowMaker, code: CodeId, row: Row) -> Added {
        if self.is_decodable() {
            return Added::Redundant;
        }
        if code.decoding() == Decoding::Transform {
            return self.add_transformed(row);
        }
        let Ok(terms) = rows.terms(code, self.n, row) else {
            return Added::Invalid;
        };
        if !self.transformed.is_empty() {
            return Added::Redundant;
        }
        let known = &self.known;
        let is_unknown = |index: u16| !bits::contains(known, usize::from(index));
        let is_peeling = code.decoding() == Decoding::Peeling;
        match is_peeling && !self.is_maximum_likelihood {
            false => {
                if self.echelon.rank() == 0 {
                    self.columns.clear();
                    let unknown = bits::absent(known, self.n).map(|i| i as u16);
                    self.columns.extend(unknown);
                    self.echelon.reset(self.columns.len(), 0);
                }
                let columns = &self.columns;
                let is_new = self.echelon.insert(self.engine, |row| {
                    for term in terms.iter().filter(|term| is_unknown(term.index)) {
                        if let Ok(column) = columns.binary_search(&term.index) {
                            row[column] = term.coefficient;
                        }
                    }
                });
                if is_new {
                    Added::Innovative
                } else {
                    Added::Redundant
                }
            }
            true => {
                let mut unknown = terms.iter().map(|t| t.index).filter(|i| is_unknown(*i));
                let Some(first) = unknown.next() else {
                    return Added::Redundant;
                };
                let Some(second) = unknown.next() else {
                    self.learn(first);
                    return Added::Innovative;
                };
                if self.peeler.size() + terms.len() > self.peeler_size_max() {
                    return Added::Redundant;
                }
                let members = [first, second].into_iter().chain(unknown);
                self.peeler.add(row.number(), members);
                Added::Innovative
            }
        }
    }

    /// Any `n` symbols will do, but only of one transform, and not together
    /// with repairs of other codes, nor with what these have restored.
    fn add_transformed(&mut self, row: Row) -> Added {
        let Some((size, _)) = fft_rs::split(row) else {
            return Added::Invalid;
        };
        let first = self.transformed.first().and_then(|row| fft_rs::split(*row));
        let Err(at) = self.transformed.binary_search(&row) else {
            return Added::Redundant;
        };
        let is_peeled = !self.peeler.is_empty() || self.known_count > self.received_count;
        let is_mixed = is_peeled || self.echelon.rank() > 0;
        if first.is_some_and(|(first, _)| first != size) || is_mixed || !fft_rs::IS_BUILT {
            return Added::Redundant;
        }
        self.transformed.insert(at, row);
        Added::Innovative
    }

    /// A sender at the paper's operating points comes nowhere near this, even
    /// if all its repairs arrive before the first source symbol.
    fn peeler_size_max(&self) -> usize {
        32 * self.n + 1024
    }

    /// Makes a symbol known, and all that peeling restores in turn.
    #[inline]
    fn learn(&mut self, symbol: u16) {
        let Self {
            known,
            known_count,
            echelon,
            columns,
            peeler,
            engine,
            ..
        } = self;
        let mut note = |symbol: u16| {
            let i = usize::from(symbol);
            if bits::contains(known, i) {
                return false;
            }
            bits::insert(known, i);
            *known_count += 1;
            if echelon.rank() > 0
                && let Ok(column) = columns.binary_search(&symbol)
            {
                echelon.substitute(*engine, column, &[]);
            }
            true
        };
        // Most blocks have no rows that wait.
        if note(symbol) && !peeler.is_empty() {
            peeler.learn(symbol, |_, symbol| note(symbol));
        }
    }

    /// Source symbols in the block.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Source symbols that have not arrived.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.n - self.received_count
    }

    /// Independent symbols still needed to decode the block: the symbols that
    /// neither arrived nor can be peeled, less the rank of the repairs that
    /// decode by elimination over them.
    #[must_use]
    pub fn deficit(&self) -> usize {
        let unknown = self.n - self.known_count;
        unknown.saturating_sub(self.echelon.rank() + self.transformed.len())
    }

    /// Whether a decoder can restore all missing symbols now.
    #[must_use]
    pub fn is_decodable(&self) -> bool {
        self.deficit() == 0
    }

    /// The source symbols that arrived, as a bit map (see [`bits`]).
    #[must_use]
    pub fn received(&self) -> &[u64] {
        &self.received
    }

    /// The source symbols that arrived or that peeling restores, as a bit map.
    #[must_use]
    pub fn known(&self) -> &[u64] {
        &self.known
    }
}
