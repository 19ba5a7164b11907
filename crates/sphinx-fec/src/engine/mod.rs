//! The arithmetic engines: sums of multiples of symbols, by whatever
//! instructions the processor has.
//!
//! Everything the codes do to payload is one operation, [`Engine::combine`]:
//! `out = start + Σ coefficient · symbol`, or [`Engine::combine_rows`] for
//! several such sums over the same symbols. An engine keeps a stretch of `out`
//! in registers while it walks the terms, so a source byte costs one load and
//! `out` is stored once. All engines give identical bytes; [`Scalar`] is the
//! definition that the others are tested against.
//!
//! [`Scalar`]: Engine::scalar

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod gfni;
#[cfg(target_arch = "x86_64")]
mod gfni512;
mod kernel;
mod kind;
#[cfg(target_arch = "aarch64")]
mod neon;
mod row_set;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod ssse3;
#[cfg(test)]
mod tests;

use core::fmt;

use kind::{KINDS, Kind};
pub(crate) use row_set::RowSet;

/// Bytes of the longest register of any engine.
pub(crate) const REGISTER_MAX: usize = 64;

/// Bytes of a stage for one symbol: a strip of it, prepared for multiplications.
const STAGE_BYTES: usize = 256;

/// One addend of [`Engine::combine`]: `coefficient · symbol[index]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Term {
    /// Number of the symbol within its block, from 0.
    pub index: u16,
    /// Factor in GF(2^8). A term with coefficient 0 adds nothing.
    pub coefficient: u8,
}

/// What [`Engine::combine`] adds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The previous content of `out` is overwritten.
    Zero,
    /// The terms are added to the previous content of `out`.
    Accumulate,
}

/// A stretch of columns of equally long symbols that lie one after another in
/// one buffer.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// The symbols: number `i` starts at byte `i * symbol_len`.
    pub symbols: &'a [u8],
    /// Bytes of each symbol.
    pub symbol_len: usize,
    /// First byte of the stretch within each symbol.
    pub first: usize,
}

/// Where [`Engine::combine_rows`] writes: row `k` to the `len` bytes from
/// `starts[k]`.
#[derive(Debug)]
pub struct Targets<'a> {
    /// The memory of all rows.
    pub bytes: &'a mut [u8],
    /// The first byte of each row.
    pub starts: &'a [usize],
    /// Bytes to write in each row.
    pub len: usize,
}

/// A set of instructions to compute with.
///
/// Only engines that this processor can run can be obtained, so a value of
/// this type is the proof that its instructions exist.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Engine(Kind);

impl Engine {
    /// Name of the environment variable that forces an engine by its name.
    pub const ENVIRONMENT: &'static str = "SPHINX_FEC_ENGINE";

    /// The engine of this process, chosen once: the one named by
    /// [`Self::ENVIRONMENT`] if the processor has it, else the fastest there
    /// is. Without the standard library there is no environment to ask.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(feature = "std")]
        {
            static CHOSEN: std::sync::OnceLock<Engine> = std::sync::OnceLock::new();
            *CHOSEN.get_or_init(|| {
                std::env::var(Self::ENVIRONMENT)
                    .ok()
                    .and_then(|name| Self::by_name(&name))
                    .unwrap_or_else(Self::fastest)
            })
        }
        #[cfg(not(feature = "std"))]
        Self::fastest()
    }

    /// The fastest engine that the processor can run, of those that need not be asked for by name.
    fn fastest() -> Self {
        Self::available()
            .filter(|engine| engine.0.may_be_chosen())
            .last()
            .unwrap_or_else(Self::scalar)
    }

    /// The table-driven engine that needs no special instructions.
    #[must_use]
    pub fn scalar() -> Self {
        Self(Kind::Scalar)
    }

    /// The engine called `name`, if the processor can run it.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::available().find(|engine| engine.name() == name)
    }

    /// All engines that the processor can run, from the simplest to the
    /// fastest.
    pub fn available() -> impl Iterator<Item = Self> {
        KINDS
            .iter()
            .filter(|kind| kind.is_supported())
            .map(|kind| Self(*kind))
    }

    /// The name by which the engine can be forced.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Computes `out = start + Σ coefficient · symbol` over the columns
    /// `first .. first + out.len()` of the symbols.
    ///
    /// # Panics
    /// If the stretch of a term's symbol ends behind the buffer.
    pub fn combine(self, out: &mut [u8], start: Start, columns: Columns<'_>, terms: &[Term]) {
        let Some(last) = terms.iter().map(|term| term.index).max() else {
            if start == Start::Zero {
                out.fill(0);
            }
            return;
        };
        columns.check(last, out.len());
        let is_xor = terms.iter().all(|term| term.coefficient == 1);
        match self.0 {
            Kind::Scalar => scalar::combine(out, start, columns, terms),
            // SAFETY: an engine of this kind exists only if the processor has
            // SSSE3; the stretch of the last symbol, and so of all, was checked.
            #[cfg(target_arch = "x86_64")]
            Kind::Ssse3 => unsafe { ssse3::combine(out, start, columns, terms, is_xor) },
            // SAFETY: as above, with AVX2.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { avx2::combine(out, start, columns, terms, is_xor) },
            // SAFETY: as above, with AVX-512 F and BW.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { avx512::combine(out, start, columns, terms, is_xor) },
            // SAFETY: as above, with AVX2 and GFNI.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Gfni => unsafe { gfni::combine(out, start, columns, terms, is_xor) },
            // SAFETY: as above, with AVX-512 F and BW and GFNI.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Gfni => unsafe { gfni512::combine(out, start, columns, terms, is_xor) },
            // SAFETY: as above, with NEON.
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => unsafe { neon::combine(out, start, columns, terms, is_xor) },
        }
    }

    /// Computes several sums over the same symbols:
    /// `row k = start + Σ matrix[k][j] · symbol[symbols[j]]`, where the rows of
    /// the matrix lie one after another. Cheaper than a call of
    /// [`Self::combine`] for each row, as a source byte is loaded once for
    /// several of them.
    ///
    /// Rows must not overlap: what they then contain is not specified.
    ///
    /// # Panics
    /// If a row ends behind the memory of the targets, if the matrix has not
    /// an element for every row and symbol, or if the stretch of a symbol ends
    /// behind the buffer.
    pub fn combine_rows(
        self,
        targets: Targets<'_>,
        start: Start,
        columns: Columns<'_>,
        symbols: &[u16],
        matrix: &[u8],
    ) {
        let Targets { bytes, starts, len } = targets;
        let elements = starts.len() * symbols.len();
        assert_eq!(matrix.len(), elements, "a matrix of another size");
        let end = starts
            .iter()
            .max()
            .map_or(Some(0), |at| at.checked_add(len));
        let is_inside = end.is_some_and(|end| end <= bytes.len());
        assert!(is_inside, "a row outside the target");
        let Some(last) = symbols.iter().max() else {
            if start == Start::Zero {
                let rows = starts.iter();
                rows.for_each(|at| bytes[*at..*at + len].fill(0));
            }
            return;
        };
        columns.check(*last, len);
        let at_once = if len < self.0.lane() {
            1
        } else {
            self.0.rows_at_once()
        };
        let rows = starts.chunks(at_once);
        for (starts, matrix) in rows.zip(matrix.chunks(at_once * symbols.len())) {
            let few = Few {
                out: &mut *bytes,
                starts,
                len,
                start,
                columns,
                symbols,
                matrix,
            };
            match starts.len() {
                4 => self.few_rows::<4>(few),
                3 => self.few_rows::<3>(few),
                2 => self.few_rows::<2>(few),
                _ => self.one_row(few),
            }
        }
    }

    /// At most four rows of `combine_rows`, whose stretches were checked.
    fn few_rows<const K: usize>(self, few: Few<'_>) {
        let Few {
            out,
            starts,
            len,
            start,
            columns,
            symbols,
            matrix,
        } = few;
        let starts: [usize; K] = core::array::from_fn(|k| starts[k]);
        let matrix: [&[u8]; K] =
            core::array::from_fn(|k| &matrix[k * symbols.len()..(k + 1) * symbols.len()]);
        match self.0 {
            Kind::Scalar => {
                for (row, at) in matrix.iter().zip(starts) {
                    let out = &mut out[at..at + len];
                    scalar::combine_row(out, start, columns, symbols, row);
                }
            }
            // SAFETY: an engine of this kind exists only if the processor has
            // SSSE3; `combine_rows` checked that the rows lie in `out`, that all
            // stretches lie in the symbols, and that they fill a register.
            #[cfg(target_arch = "x86_64")]
            Kind::Ssse3 => unsafe {
                ssse3::combine_rows(out, starts, len, start, columns, symbols, matrix);
            },
            // SAFETY: as above, with AVX2.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe {
                avx2::combine_rows(out, starts, len, start, columns, symbols, matrix);
            },
            // SAFETY: as above, with AVX-512 F and BW.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe {
                avx512::combine_rows(out, starts, len, start, columns, symbols, matrix);
            },
            // SAFETY: as above, with AVX2 and GFNI.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Gfni => unsafe {
                gfni::combine_rows(out, starts, len, start, columns, symbols, matrix);
            },
            // SAFETY: as above, with AVX-512 F and BW and GFNI.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Gfni => unsafe {
                gfni512::combine_rows(out, starts, len, start, columns, symbols, matrix);
            },
            // SAFETY: as above, with NEON.
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => unsafe {
                neon::combine_rows(out, starts, len, start, columns, symbols, matrix);
            },
        }
    }

    /// Adds `factors[k] · symbol` to row `k`, for rows as long as the symbol
    /// that lie one after another. Their length is a multiple of
    /// [`REGISTER_MAX`], and may be short.
    ///
    /// # Panics
    /// If it is not, or the number of rows and factors differ.
    pub(crate) fn add_multiples(self, rows: &mut [u8], symbol: &[u8], factors: &[u8]) {
        let len = symbol.len();
        assert!(
            len.is_multiple_of(REGISTER_MAX) && len > 0,
            "part of a register"
        );
        assert_eq!(rows.len(), factors.len() * len, "factors for other rows");
        match self.0 {
            Kind::Scalar => scalar::add_multiples(rows, symbol, factors),
            // SAFETY: an engine of this kind exists only if the processor has
            // SSSE3; the lengths were just checked.
            #[cfg(target_arch = "x86_64")]
            Kind::Ssse3 => unsafe { ssse3::add_multiples(rows, symbol, factors) },
            // SAFETY: as above, with AVX2.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { avx2::add_multiples(rows, symbol, factors) },
            // SAFETY: as above, with AVX-512 F and BW.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { avx512::add_multiples(rows, symbol, factors) },
            // SAFETY: as above, with AVX2 and GFNI.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Gfni => unsafe { gfni::add_multiples(rows, symbol, factors) },
            // SAFETY: as above, with AVX-512 F and BW and GFNI.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Gfni => unsafe { gfni512::add_multiples(rows, symbol, factors) },
            // SAFETY: as above, with NEON.
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => unsafe { neon::add_multiples(rows, symbol, factors) },
        }
    }

    /// All rows of a set.
    ///
    /// # Safety
    /// `len` fills a register and the `len` bytes from the target of each row
    /// lie in `out`; the stretches of all symbols up to the last of the set lie
    /// in the symbols; `stage` has [`STAGE_BYTES`] for each of them, aligned to
    /// 64 bytes, and nobody else uses it.
    unsafe fn combine_set(
        self,
        out: &mut [u8],
        len: usize,
        start: Start,
        columns: Columns<'_>,
        set: &RowSet,
        stage: Option<*mut u8>,
    ) {
        match self.0 {
            Kind::Scalar => scalar::combine_set(out, len, start, columns, set),
            // SAFETY: an engine of this kind exists only if the processor has
            // SSSE3; the rest is the caller's promise.
            #[cfg(target_arch = "x86_64")]
            Kind::Ssse3 => unsafe { ssse3::combine_set(out, len, start, columns, set, stage) },
            // SAFETY: as above, with AVX2.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { avx2::combine_set(out, len, start, columns, set, stage) },
            // SAFETY: as above, with AVX-512 F and BW.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { avx512::combine_set(out, len, start, columns, set, stage) },
            // SAFETY: as above, with AVX2 and GFNI.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Gfni => unsafe { gfni::combine_set(out, len, start, columns, set, stage) },
            // SAFETY: as above, with AVX-512 F and BW and GFNI.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Gfni => unsafe {
                gfni512::combine_set(out, len, start, columns, set, stage);
            },
            // SAFETY: as above, with NEON.
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => unsafe { neon::combine_set(out, len, start, columns, set, stage) },
        }
    }

    /// Whether many rows over the same symbols are best computed by
    /// [`Self::combine_rows`], and not by a [`RowSet`].
    pub(crate) fn combines_rows_best(self) -> bool {
        !self.0.has_stage()
    }

    /// What a coefficient is multiplied with for `combine_set`.
    fn packing(self) -> u32 {
        self.0.packing()
    }

    /// A single row of `combine_rows`, term by term in small batches.
    fn one_row(self, few: Few<'_>) {
        let at = few.starts[0];
        let out = &mut few.out[at..at + few.len];
        let mut start = few.start;
        let mut terms = [Term::default(); 64];
        for (symbols, row) in few.symbols.chunks(64).zip(few.matrix.chunks(64)) {
            for ((term, &index), &coefficient) in terms.iter_mut().zip(symbols).zip(row) {
                *term = Term { index, coefficient };
            }
            self.combine(out, start, few.columns, &terms[..symbols.len()]);
            start = Start::Accumulate;
        }
    }

    /// Computes `out += coefficient · symbol` over whole slices.
    ///
    /// # Panics
    /// If the slices differ in length.
    pub fn mul_add(self, out: &mut [u8], symbol: &[u8], coefficient: u8) {
        assert_eq!(out.len(), symbol.len(), "slices of different lengths");
        let columns = Columns {
            symbols: symbol,
            symbol_len: symbol.len(),
            first: 0,
        };
        let term = Term {
            index: 0,
            coefficient,
        };
        self.combine(out, Start::Accumulate, columns, &[term]);
    }
}

/// The arguments of a few rows of [`Engine::combine_rows`].
struct Few<'a> {
    out: &'a mut [u8],
    starts: &'a [usize],
    len: usize,
    start: Start,
    columns: Columns<'a>,
    symbols: &'a [u16],
    matrix: &'a [u8],
}

impl Columns<'_> {
    /// Panics unless the symbols up to `last` have `len` bytes from `first`
    /// within the buffer.
    fn check(&self, last: u16, len: usize) {
        let end = usize::from(last)
            .checked_mul(self.symbol_len)
            .and_then(|at| at.checked_add(self.first))
            .and_then(|at| at.checked_add(len));
        let is_inside = end.is_some_and(|end| end <= self.symbols.len());
        assert!(is_inside, "a term lies outside the symbols");
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({})", self.name())
    }
}
