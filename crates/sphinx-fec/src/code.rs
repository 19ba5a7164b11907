//! What names a repair symbol: the code, the row number, and the errors of
//! impossible combinations.

use core::fmt;

use crate::fft_rs;

/// Largest number of source symbols in a block of any code but `fft-rs`.
pub const SYMBOLS_MAX: usize = 4096;

/// An erasure code, as numbered on the wire (6 bits).
///
/// Number 0 is not a code: it marks a source symbol, sent as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CodeId {
    /// Systematic random linear code over GF(2^8); see [`rlc`](crate::rlc).
    Rlc,
    /// Semi-random LT code of the Sphinx paper; see [`srlt`](crate::srlt).
    Srlt,
    /// Traditional LT code, rateless; see [`lt`](crate::lt).
    Lt,
    /// Reed–Solomon over GF(2^8) for at most 256 symbols in all; see
    /// [`rs`](crate::rs).
    Rs,
    /// Reed–Solomon over GF(2^16) for large blocks; see
    /// [fft-rs](crate::fft_rs).
    FftRs,
    /// Sliding-window random linear code over GF(2^8); see
    /// [`window`](crate::window).
    Window,
}

impl CodeId {
    /// All codes.
    pub const ALL: [Self; 6] = [
        Self::Rlc,
        Self::Srlt,
        Self::Lt,
        Self::Rs,
        Self::FftRs,
        Self::Window,
    ];

    /// The wire number that stands for "a source symbol, not a repair".
    pub const SOURCE: u8 = 0;

    /// The number of this code on the wire.
    #[must_use]
    pub fn to_wire(self) -> u8 {
        match self {
            Self::Rlc => 1,
            Self::Srlt => 2,
            Self::Lt => 3,
            Self::Rs => 4,
            Self::FftRs => 5,
            Self::Window => 6,
        }
    }

    /// The code with number `wire`; `None` for numbers without a code,
    /// [`Self::SOURCE`] included.
    #[must_use]
    pub fn from_wire(wire: u8) -> Option<Self> {
        match wire {
            1 => Some(Self::Rlc),
            2 => Some(Self::Srlt),
            3 => Some(Self::Lt),
            4 => Some(Self::Rs),
            5 => Some(Self::FftRs),
            6 => Some(Self::Window),
            _ => None,
        }
    }

    /// The name used on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rlc => "rlc",
            Self::Srlt => "srlt",
            Self::Lt => "lt",
            Self::Rs => "rs",
            Self::FftRs => "fft-rs",
            Self::Window => "window",
        }
    }

    /// The code with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.name() == name)
    }

    /// How a receiver of this code decodes.
    #[must_use]
    pub fn decoding(self) -> Decoding {
        match self {
            Self::Rlc | Self::Rs | Self::Window => Decoding::Elimination,
            Self::Srlt | Self::Lt => Decoding::Peeling,
            Self::FftRs => Decoding::Transform,
        }
    }
}

/// How repair symbols become source symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoding {
    /// Gaussian elimination over the missing symbols: `m` independent repairs
    /// restore `m` missing symbols.
    Elimination,
    /// LT peeling: a repair is used when exactly one of its symbols is
    /// unknown. Cheaper, and needs more repairs.
    Peeling,
    /// Fast transforms over the whole block: any `n` symbols restore it.
    Transform,
}

/// Number of a repair symbol within its block, 24 bits.
///
/// Code, block size and row fix the coefficients of a repair symbol: nothing
/// else about it has to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row(u32);

impl Row {
    /// The largest row number.
    pub const MAX: Self = Self((1 << 24) - 1);

    /// The row with this number, if it fits into 24 bits.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (number <= Self::MAX.0).then_some(Self(number))
    }

    /// The row number in the low 24 bits of `bits`.
    pub(crate) const fn from_low_bits(bits: u32) -> Self {
        Self(bits & Self::MAX.0)
    }

    /// The number itself.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

/// Why a block, a row or a buffer cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The number of source symbols is 0 or above [`SYMBOLS_MAX`] (or
    /// [`fft_rs::SYMBOLS_MAX`] for that code).
    BlockSize {
        /// The refused number of symbols.
        n: usize,
    },
    /// The code has no such row for this block size.
    Row {
        /// The code that was asked.
        code: CodeId,
        /// Source symbols in the block.
        n: usize,
        /// The refused row.
        row: Row,
    },
    /// A buffer does not have the length that block and symbol size demand.
    Length {
        /// Bytes the buffer should have.
        expected: usize,
        /// Bytes it has.
        found: usize,
    },
    /// The code does not work on symbols of this length.
    SymbolLength {
        /// The code that was asked.
        code: CodeId,
        /// The refused length in bytes.
        symbol_len: usize,
    },
    /// This build of the crate does not contain the code.
    NotBuilt {
        /// The code that was asked.
        code: CodeId,
    },
    /// The repairs do not determine all missing symbols.
    NotDecodable {
        /// Further independent symbols needed.
        deficit: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockSize { n } => write!(f, "no block of this code has {n} symbols"),
            Self::SymbolLength { code, symbol_len } => {
                let name = code.name();
                write!(f, "code {name} has no symbols of {symbol_len} bytes")
            }
            Self::NotBuilt { code } => {
                write!(f, "code {} is not part of this build", code.name())
            }
            Self::Row { code, n, row } => {
                let (name, row) = (code.name(), row.number());
                write!(f, "code {name} has no row {row} for a block of {n} symbols")
            }
            Self::Length { expected, found } => {
                write!(f, "a buffer has {found} bytes instead of {expected}")
            }
            Self::NotDecodable { deficit } => {
                write!(f, "{deficit} more independent symbols are needed to decode")
            }
        }
    }
}

impl core::error::Error for Error {}

/// Accepts the numbers of symbols a block can have.
pub(crate) fn check_block_size(n: usize) -> Result<(), Error> {
    if (1..=SYMBOLS_MAX).contains(&n) {
        Ok(())
    } else {
        Err(Error::BlockSize { n })
    }
}

/// Accepts the numbers of symbols a block of a certain code can have.
pub(crate) fn check_block(code: CodeId, n: usize) -> Result<(), Error> {
    if code == CodeId::FftRs && (1..=fft_rs::SYMBOLS_MAX).contains(&n) {
        return Ok(());
    }
    check_block_size(n)
}

/// Accepts a buffer of exactly `expected` bytes.
pub(crate) fn check_length(expected: usize, found: usize) -> Result<(), Error> {
    if expected == found {
        Ok(())
    } else {
        Err(Error::Length { expected, found })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn wire_numbers_round_trip() {
        let codes: Vec<_> = (0..64).filter_map(CodeId::from_wire).collect();
        assert_eq!(codes, CodeId::ALL);
        for code in codes {
            assert_eq!(CodeId::from_wire(code.to_wire()), Some(code));
            assert_eq!(CodeId::by_name(code.name()), Some(code));
        }
        assert_eq!(CodeId::from_wire(CodeId::SOURCE), None);
    }

    #[test]
    fn rows_have_24_bits() {
        assert_eq!(Row::new(0xff_ffff), Some(Row::MAX));
        assert_eq!(Row::new(0x100_0000), None);
    }
}
