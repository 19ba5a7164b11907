//! The arithmetic engines: sums of multiples of symbols, by whatever
//! instructions the processor has.
//!
//! Everything the codes do to payload is one operation, [`Engine::combine`]:
//! `out = start + Σ coefficient · symbol`. An engine keeps a stretch of `out`
//! in registers while it walks the terms, so a source byte costs one load and
//! `out` is stored once. All engines give identical bytes; [`Scalar`] is the
//! definition that the others are tested against.
//!
//! [`Scalar`]: Engine::scalar

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod gfni;
mod scalar;

use std::fmt;
use std::sync::OnceLock;

/// One addend of [`Engine::combine`]: `coefficient · symbol[index]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx2Gfni,
}

/// From the simplest to the fastest.
const KINDS: &[Kind] = &[
    Kind::Scalar,
    #[cfg(target_arch = "x86_64")]
    Kind::Avx2,
    #[cfg(target_arch = "x86_64")]
    Kind::Avx2Gfni,
];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Gfni => "avx2-gfni",
        }
    }

    fn is_supported(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Gfni => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni"),
        }
    }
}

impl Engine {
    /// Name of the environment variable that forces an engine by its name.
    pub const ENVIRONMENT: &'static str = "SPHINX_FEC_ENGINE";

    /// The engine of this process, chosen once: the one named by
    /// [`Self::ENVIRONMENT`] if the processor has it, else the fastest there is.
    #[must_use]
    pub fn detect() -> Self {
        static CHOSEN: OnceLock<Engine> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            std::env::var(Self::ENVIRONMENT)
                .ok()
                .and_then(|name| Self::by_name(&name))
                .or_else(|| Self::available().last())
                .unwrap_or_else(Self::scalar)
        })
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
        let end = usize::from(last) * columns.symbol_len + columns.first + out.len();
        assert!(
            end <= columns.symbols.len(),
            "a term lies outside the symbols"
        );
        match self.0 {
            Kind::Scalar => scalar::combine(out, start, columns, terms),
            // SAFETY: an engine of this kind exists only if the processor has
            // AVX2, and all stretches were just checked to lie in the buffer.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { avx2::combine(out, start, columns, terms) },
            // SAFETY: as above, with AVX2 and GFNI.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Gfni => unsafe { gfni::combine(out, start, columns, terms) },
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

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({})", self.name())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gf256;

    #[test]
    fn the_scalar_engine_is_always_there() {
        assert_eq!(Engine::by_name("scalar"), Some(Engine::scalar()));
        assert_eq!(Engine::by_name("abacus"), None);
        assert!(Engine::available().any(|engine| engine == Engine::detect()));
    }

    #[test]
    fn no_terms_leave_zero_or_the_start() {
        for engine in Engine::available() {
            let columns = Columns {
                symbols: &[],
                symbol_len: 4,
                first: 0,
            };
            let mut out = [7; 4];
            engine.combine(&mut out, Start::Accumulate, columns, &[]);
            assert_eq!(out, [7; 4]);
            engine.combine(&mut out, Start::Zero, columns, &[]);
            assert_eq!(out, [0; 4]);
        }
    }

    #[test]
    #[should_panic(expected = "outside the symbols")]
    fn a_term_behind_the_buffer_is_refused() {
        let columns = Columns {
            symbols: &[0; 11],
            symbol_len: 4,
            first: 0,
        };
        let term = Term {
            index: 2,
            coefficient: 1,
        };
        Engine::detect().combine(&mut [0; 4], Start::Zero, columns, &[term]);
    }

    proptest! {
        /// Any length (so any tail), any alignment of source and target, any
        /// coefficients, zero and one included.
        #[test]
        fn all_engines_agree_with_the_definition(
            seed: u64,
            symbol_len in 1_usize..700,
            first in 0_usize..70,
            shift in 0_usize..64,
            accumulate: bool,
            xor_only: bool,
            coefficients in prop::collection::vec(any::<u8>(), 1..20),
        ) {
            let first = first.min(symbol_len - 1);
            let len = symbol_len - first;
            let mut state = seed;
            let mut byte = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 56) as u8
            };
            let symbols: Vec<u8> = (0..coefficients.len() * symbol_len).map(|_| byte()).collect();
            let before: Vec<u8> = (0..len).map(|_| byte()).collect();
            let start = if accumulate { Start::Accumulate } else { Start::Zero };
            let terms: Vec<Term> = coefficients
                .iter()
                .enumerate()
                .map(|(i, c)| Term { index: i as u16, coefficient: if xor_only { 1 } else { *c } })
                .collect();
            let mut expected = if accumulate { before.clone() } else { vec![0; len] };
            for term in &terms {
                for (i, byte) in expected.iter_mut().enumerate() {
                    let at = usize::from(term.index) * symbol_len + first + i;
                    *byte ^= gf256::mul(term.coefficient, symbols[at]);
                }
            }
            for engine in Engine::available() {
                let mut memory = vec![0xaa; shift + len + 64];
                memory[shift..shift + len].copy_from_slice(&before);
                let columns = Columns { symbols: &symbols, symbol_len, first };
                engine.combine(&mut memory[shift..shift + len], start, columns, &terms);
                prop_assert_eq!(&memory[shift..shift + len], &expected[..], "{:?}", engine);
                prop_assert!(memory[..shift].iter().all(|b| *b == 0xaa));
                prop_assert!(memory[shift + len..].iter().all(|b| *b == 0xaa));
            }
        }
    }
}
