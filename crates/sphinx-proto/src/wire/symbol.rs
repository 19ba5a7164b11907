//! Which symbol of a block a packet carries.

use sphinx_fec::{CodeId, Row};

use super::WireError;

/// The name of a symbol within its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SymbolId {
    /// The source symbol with this index, from 0.
    Source(u16),
    /// This row of an erasure code over the block's source symbols; of [`CodeId::Window`], over those of several
    /// blocks.
    Repair(CodeId, Row),
}

impl SymbolId {
    /// From a header's fields `code` and `row`.
    ///
    /// # Errors
    /// If no code has this number.
    pub fn from_wire(code: u8, row: u32) -> Result<Self, WireError> {
        if code == CodeId::SOURCE {
            // Blocks are smaller than that: an index beyond 16 bits is as wrong as the largest one.
            return Ok(Self::Source(u16::try_from(row).unwrap_or(u16::MAX)));
        }
        let code = CodeId::from_wire(code).ok_or(WireError::Invalid("code"))?;
        let row = Row::new(row).ok_or(WireError::Invalid("row"))?;
        Ok(Self::Repair(code, row))
    }

    /// A header's fields `code` and `row`.
    pub fn to_wire(self) -> (u8, u32) {
        match self {
            Self::Source(index) => (CodeId::SOURCE, u32::from(index)),
            Self::Repair(code, row) => (code.to_wire(), row.number()),
        }
    }

    /// The index of a source symbol.
    pub fn source(self) -> Option<u16> {
        match self {
            Self::Source(index) => Some(index),
            Self::Repair(..) => None,
        }
    }

    /// The code of a repair symbol.
    pub fn code(self) -> Option<CodeId> {
        match self {
            Self::Source(_) => None,
            Self::Repair(code, _) => Some(code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unknown_codes_are_errors() {
        assert!(SymbolId::from_wire(63, 0).is_err());
        assert_eq!(SymbolId::from_wire(0, 7), Ok(SymbolId::Source(7)));
        let far = SymbolId::from_wire(0, 1 << 16);
        assert_eq!(far, Ok(SymbolId::Source(u16::MAX)));
    }

    proptest! {
        #[test]
        fn survives(code in 0..64u8, row in 0..1u32 << 16) {
            if let Ok(id) = SymbolId::from_wire(code, row) {
                prop_assert_eq!(id.to_wire(), (code, row));
            }
        }
    }
}
