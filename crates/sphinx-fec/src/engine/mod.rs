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
mod gfni;
#[cfg(target_arch = "x86_64")]
mod gfni512;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
mod row_set;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod ssse3;
#[cfg(test)]
mod tests;

use core::fmt;

pub(crate) use row_set::RowSet;

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
/// `k * stride + first`.
#[derive(Debug)]
pub struct Targets<'a> {
    /// The memory of all rows.
    pub bytes: &'a mut [u8],
    /// Bytes from the start of a row to that of the next.
    pub stride: usize,
    /// Where in each row to begin.
    pub first: usize,
    /// Bytes to write in each row.
    pub len: usize,
}

/// A set of instructions to compute with.
///
/// Only engines that this processor can run can be obtained, so a value of
/// this type is the proof that its instructions exist.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Engine(Kind);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Ssse3,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx2Gfni,
    #[cfg(target_arch = "x86_64")]
    Avx512Gfni,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// From the simplest to the fastest.
const KINDS: &[Kind] = &[
    Kind::Scalar,
    #[cfg(target_arch = "x86_64")]
    Kind::Ssse3,
    #[cfg(target_arch = "x86_64")]
    Kind::Avx2,
    #[cfg(target_arch = "x86_64")]
    Kind::Avx2Gfni,
    #[cfg(target_arch = "x86_64")]
    Kind::Avx512Gfni,
    #[cfg(target_arch = "aarch64")]
    Kind::Neon,
];

/// Whether the processor has all of these features: asked at run time with the
/// standard library, otherwise what the build was told.
#[cfg(target_arch = "x86_64")]
macro_rules! has {
    ($($feature:tt),+) => {{
        #[cfg(feature = "std")]
        let has = $(std::arch::is_x86_feature_detected!($feature))&&+;
        #[cfg(not(feature = "std"))]
        let has = $(cfg!(target_feature = $feature))&&+;
        has
    }};
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Self::Ssse3 => "ssse3",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Gfni => "avx2-gfni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Gfni => "avx512-gfni",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
        }
    }

    fn is_supported(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Ssse3 => has!("ssse3"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => has!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Gfni => has!("avx2", "gfni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Gfni => has!("avx2", "gfni", "avx512f", "avx512bw"),
            // Part of every 64-bit ARM processor.
            #[cfg(target_arch = "aarch64")]
            Self::Neon => true,
        }
    }

    /// Rows computed together, at most 4: the more, the less often source bytes
    /// are loaded, until the registers do not hold their sums any more.
    fn rows_at_once(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Ssse3 => 2,
            _ => 4,
        }
    }

    /// Bytes in a register; stretches should be of at least this length.
    fn lane(self) -> usize {
        match self {
            Self::Scalar => 1,
            #[cfg(target_arch = "x86_64")]
            Self::Ssse3 => 16,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::Avx2Gfni => 32,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Gfni => 64,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => 16,
        }
    }
}

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

    /// The fastest engine that the processor can run.
    fn fastest() -> Self {
        Self::available().last().unwrap_or_else(Self::scalar)
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
        // SAFETY: the stretch of the last symbol, and so of all, was checked.
        unsafe { self.combine_checked(out, start, columns, terms, is_xor) };
    }

    /// `combine` after its checks.
    ///
    /// # Safety
    /// For every term the bytes `index * symbol_len + first ..` of length
    /// `out.len()` lie in the symbols, and `is_xor` only if all coefficients
    /// are 1.
    unsafe fn combine_checked(
        self,
        out: &mut [u8],
        start: Start,
        columns: Columns<'_>,
        terms: &[Term],
        is_xor: bool,
    ) {
        match self.0 {
            Kind::Scalar => scalar::combine(out, start, columns, terms),
            // SAFETY: an engine of this kind exists only if the processor has
            // SSSE3; the rest is the caller's promise.
            #[cfg(target_arch = "x86_64")]
            Kind::Ssse3 => unsafe { ssse3::combine(out, start, columns, terms, is_xor) },
            // SAFETY: as above, with AVX2.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { avx2::combine(out, start, columns, terms, is_xor) },
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
    /// # Panics
    /// If rows of the target overlap or end behind its memory, if the matrix
    /// is not made of whole rows, or if the stretch of a symbol ends behind
    /// the buffer.
    pub fn combine_rows(
        self,
        targets: Targets<'_>,
        start: Start,
        columns: Columns<'_>,
        symbols: &[u16],
        matrix: &[u8],
    ) {
        let Some(last) = symbols.iter().max() else {
            assert!(matrix.is_empty(), "coefficients without symbols");
            return;
        };
        columns.check(*last, targets.len);
        let rows = matrix.len() / symbols.len();
        assert_eq!(rows * symbols.len(), matrix.len(), "part of a row");
        if rows == 0 {
            return;
        }
        assert!(targets.len <= targets.stride || rows == 1, "rows overlap");
        let end = (rows - 1)
            .checked_mul(targets.stride)
            .and_then(|at| at.checked_add(targets.first))
            .and_then(|at| at.checked_add(targets.len));
        let is_inside = end.is_some_and(|end| end <= targets.bytes.len());
        assert!(is_inside, "a row outside the target");
        let mut row = 0;
        while row < rows {
            let count = if targets.len < self.0.lane() {
                1
            } else {
                (rows - row).min(self.0.rows_at_once())
            };
            let offset = row * targets.stride + targets.first;
            let part = &matrix[row * symbols.len()..(row + count) * symbols.len()];
            let few = Few {
                out: &mut targets.bytes[offset..],
                offsets: [0, 1, 2, 3].map(|k| k * targets.stride),
                len: targets.len,
                start,
                columns,
                symbols,
                matrix: part,
            };
            match count {
                4 => self.few_rows::<4>(few),
                3 => self.few_rows::<3>(few),
                2 => self.few_rows::<2>(few),
                _ => self.one_row(few),
            }
            row += count;
        }
    }

    /// Adds to two different rows of the targets:
    /// `row += Σ matrix[k][j] · symbol[symbols[j]]` for the two rows of the
    /// matrix.
    ///
    /// # Panics
    /// As for [`Self::combine_rows`].
    pub(crate) fn add_to_pair(
        self,
        targets: Targets<'_>,
        rows: [usize; 2],
        columns: Columns<'_>,
        symbols: &[u16],
        matrix: &[u8],
    ) {
        let Targets {
            bytes,
            stride,
            first,
            len,
        } = targets;
        let Some(last) = symbols.iter().max() else {
            return;
        };
        columns.check(*last, len);
        assert_eq!(matrix.len(), 2 * symbols.len(), "part of a row");
        assert!(rows[0] != rows[1] && len <= stride, "rows overlap");
        let end = rows[0].max(rows[1]).checked_mul(stride);
        let end = end.and_then(|at| at.checked_add(first + len));
        let is_inside = end.is_some_and(|end| end <= bytes.len());
        assert!(is_inside, "a row outside the target");
        let offsets = rows.map(|row| row * stride + first);
        if len >= self.0.lane() {
            self.few_rows::<2>(Few {
                out: bytes,
                offsets: [offsets[0], offsets[1], 0, 0],
                len,
                start: Start::Accumulate,
                columns,
                symbols,
                matrix,
            });
            return;
        }
        for (offset, matrix) in offsets.into_iter().zip(matrix.chunks_exact(symbols.len())) {
            self.one_row(Few {
                out: &mut bytes[offset..],
                offsets: [0; 4],
                len,
                start: Start::Accumulate,
                columns,
                symbols,
                matrix,
            });
        }
    }

    /// At most four rows of `combine_rows`, whose stretches were checked.
    fn few_rows<const K: usize>(self, few: Few<'_>) {
        let Few {
            out,
            offsets,
            len,
            start,
            columns,
            symbols,
            matrix,
        } = few;
        let offsets: [usize; K] = core::array::from_fn(|k| offsets[k]);
        let matrix: [&[u8]; K] =
            core::array::from_fn(|k| &matrix[k * symbols.len()..(k + 1) * symbols.len()]);
        match self.0 {
            Kind::Scalar => {
                for (row, offset) in matrix.iter().zip(offsets) {
                    let out = &mut out[offset..offset + len];
                    scalar::combine_row(out, start, columns, symbols, row);
                }
            }
            // SAFETY: an engine of this kind exists only if the processor has
            // SSSE3; `combine_rows` checked that the rows lie apart from each
            // other in `out`, that all stretches lie in the symbols, and that
            // they fill a register.
            #[cfg(target_arch = "x86_64")]
            Kind::Ssse3 => unsafe {
                ssse3::combine_rows(out, offsets, len, start, columns, symbols, matrix);
            },
            // SAFETY: as above, with AVX2.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe {
                avx2::combine_rows(out, offsets, len, start, columns, symbols, matrix);
            },
            // SAFETY: as above, with AVX2 and GFNI.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Gfni => unsafe {
                gfni::combine_rows(out, offsets, len, start, columns, symbols, matrix);
            },
            // SAFETY: as above, with AVX-512 F and BW and GFNI.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Gfni => unsafe {
                gfni512::combine_rows(out, offsets, len, start, columns, symbols, matrix);
            },
            // SAFETY: as above, with NEON.
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => unsafe {
                neon::combine_rows(out, offsets, len, start, columns, symbols, matrix);
            },
        }
    }

    /// A single row of `combine_rows`, term by term in small batches.
    fn one_row(self, few: Few<'_>) {
        let out = &mut few.out[..few.len];
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

/// The arguments of a few rows of [`Engine::combine_rows`], the first of them
/// at the start of `out`.
struct Few<'a> {
    out: &'a mut [u8],
    offsets: [usize; 4],
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
