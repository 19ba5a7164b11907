//! What names a repair symbol: the code, the row number, and the errors of
//! impossible combinations.

use std::fmt;

/// Largest number of source symbols in a block.
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
}

impl CodeId {
    /// The wire number that stands for "a source symbol, not a repair".
    pub const SOURCE: u8 = 0;

    /// The number of this code on the wire.
    #[must_use]
    pub fn to_wire(self) -> u8 {
        match self {
            Self::Rlc => 1,
            Self::Srlt => 2,
        }
    }

    /// The code with number `wire`; `None` for numbers without a code,
    /// [`Self::SOURCE`] included.
    #[must_use]
    pub fn from_wire(wire: u8) -> Option<Self> {
        match wire {
            1 => Some(Self::Rlc),
            2 => Some(Self::Srlt),
            _ => None,
        }
    }

    /// The name used on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rlc => "rlc",
            Self::Srlt => "srlt",
        }
    }

    /// How a receiver of this code decodes.
    #[must_use]
    pub fn decoding(self) -> Decoding {
        match self {
            Self::Rlc => Decoding::Elimination,
            Self::Srlt => Decoding::Peeling,
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
    /// The number of source symbols is 0 or above [`SYMBOLS_MAX`].
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
    /// The repairs do not determine all missing symbols.
    NotDecodable {
        /// Further independent symbols needed.
        deficit: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockSize { n } => {
                write!(f, "a block has 1 to {SYMBOLS_MAX} symbols, not {n}")
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

impl std::error::Error for Error {}

/// Accepts the numbers of symbols a block can have.
pub(crate) fn check_block_size(n: usize) -> Result<(), Error> {
    if (1..=SYMBOLS_MAX).contains(&n) {
        Ok(())
    } else {
        Err(Error::BlockSize { n })
    }
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
    use super::*;

    #[test]
    fn wire_numbers_round_trip() {
        let codes: Vec<_> = (0..64).filter_map(CodeId::from_wire).collect();
        assert_eq!(codes, [CodeId::Rlc, CodeId::Srlt]);
        for code in codes {
            assert_eq!(CodeId::from_wire(code.to_wire()), Some(code));
        }
        assert_eq!(CodeId::from_wire(CodeId::SOURCE), None);
    }

    #[test]
    fn rows_have_24_bits() {
        assert_eq!(Row::new(0xff_ffff), Some(Row::MAX));
        assert_eq!(Row::new(0x100_0000), None);
    }
}
