//! `fft-rs`: Reed–Solomon over GF(2^16) by fast transforms, for large blocks.
//!
//! The work grows with n log n instead of n · R, at the price of a fixed cost
//! for every decoded block; it pays off from about a thousand symbols on. The
//! arithmetic is that of the `reed-solomon-simd` crate, and needs the cargo
//! feature `fft-rs`: without it every use of the code is [`Error::NotBuilt`].
//!
//! # Example
//! ```
//! use sphinx_fec::{Encoder, Error, CodeId, fft_rs};
//!
//! let (n, symbol_len) = (2000, 64);
//! let source = vec![7; n * symbol_len];
//! let rows: Vec<_> = fft_rs::first_flight(150).collect();
//! let mut symbols = vec![0; rows.len() * symbol_len];
//! let result = Encoder::new().encode_rows(n, symbol_len, &source, &rows, &mut symbols);
//! if fft_rs::IS_BUILT {
//!     assert_eq!(result, Ok(()));
//! } else {
//!     assert_eq!(result, Err(Error::NotBuilt { code: CodeId::FftRs }));
//! }
//! ```
//!
//! # Rows
//! The 24-bit row number is `size << 16 | index`: the transform makes
//! 2^`size` repairs (at most 2^15), of which this is number `index`. A sender
//! chooses the size for as many repairs as it will ever send, with
//! [`size_for`]; repairs of different sizes do not work together. Symbols have
//! an even number of bytes.

use alloc::vec::Vec;

use crate::code::{CodeId, Error, Row};
use crate::decode::Repair;

/// Largest number of source symbols in a block of this code.
pub const SYMBOLS_MAX: usize = 1 << 15;

/// Largest number of repairs of a block.
pub const REPAIRS_MAX: usize = 1 << SIZE_MAX;

const SIZE_MAX: u32 = 15;
const INDEX_BITS: u32 = 16;

/// Whether this build has the arithmetic.
pub const IS_BUILT: bool = cfg!(feature = "fft-rs");

/// The smallest transform that makes `repairs` repairs; `None` if none is
/// large enough.
#[must_use]
pub fn size_for(repairs: usize) -> Option<u32> {
    (repairs <= REPAIRS_MAX).then(|| repairs.max(1).next_power_of_two().trailing_zeros())
}

/// The row number of repair `index` from a transform of a certain size; `None`
/// if there is no such repair.
#[must_use]
pub fn row(size: u32, index: u32) -> Option<Row> {
    let exists = size <= SIZE_MAX && index >> size == 0;
    exists.then(|| Row::from_low_bits(size << INDEX_BITS | index))
}

/// The repair rows of a block's first flight, in order; none if there cannot be
/// that many.
pub fn first_flight(repairs: usize) -> impl Iterator<Item = (CodeId, Row)> {
    let size = size_for(repairs);
    (0..repairs as u32).filter_map(move |i| Some((CodeId::FftRs, row(size?, i)?)))
}

/// Size and index of a row; `None` for numbers that are no row.
#[must_use]
pub fn split(number: Row) -> Option<(u32, u32)> {
    let (size, index) = (
        number.number() >> INDEX_BITS,
        number.number() & ((1 << INDEX_BITS) - 1),
    );
    row(size, index).map(|_| (size, index))
}

/// The size of the transform that all `rows` come from, with the error for the
/// first that does not belong.
fn common_size(n: usize, rows: impl Iterator<Item = (CodeId, Row)>) -> Result<u32, Error> {
    let mut common = None;
    for (code, row) in rows {
        let error = Error::Row { code, n, row };
        let (size, _) = match code {
            CodeId::FftRs => split(row).ok_or(error)?,
            _ => return Err(error),
        };
        if *common.get_or_insert(size) != size {
            return Err(error);
        }
    }
    Ok(common.unwrap_or(0))
}

/// Encoder and decoder of this code, with their memory.
#[derive(Default)]
pub(crate) struct Coder {
    #[cfg(feature = "fft-rs")]
    encoder: Option<reed_solomon_simd::ReedSolomonEncoder>,
    #[cfg(feature = "fft-rs")]
    decoder: Option<reed_solomon_simd::ReedSolomonDecoder>,
}

impl core::fmt::Debug for Coder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Coder").finish_non_exhaustive()
    }
}

impl Coder {
    /// Computes repairs; sizes of buffers were checked by the caller.
    pub(crate) fn encode(
        &mut self,
        n: usize,
        symbol_len: usize,
        source: &[u8],
        rows: &[(CodeId, Row)],
        out: &mut [u8],
    ) -> Result<(), Error> {
        let size = common_size(n, rows.iter().copied())?;
        check_symbol(symbol_len)?;
        #[cfg(feature = "fft-rs")]
        {
            let result = self.encode_built(n, symbol_len, source, size, rows, out);
            // All parameters were checked, so the library has nothing to refuse.
            result.map_err(|_| Error::BlockSize { n })
        }
        #[cfg(not(feature = "fft-rs"))]
        {
            let _ = (size, source, out);
            Err(Error::NotBuilt {
                code: CodeId::FftRs,
            })
        }
    }

    /// Restores the symbols `missing`; sizes of buffers were checked by the
    /// caller. Repairs of other codes are passed over.
    pub(crate) fn decode(
        &mut self,
        n: usize,
        symbol_len: usize,
        source: &mut [u8],
        missing: &[u16],
        repairs: &[Repair<'_>],
    ) -> Result<(), Error> {
        let ours = |repair: &&Repair<'_>| repair.code == CodeId::FftRs;
        let rows = repairs.iter().filter(ours).map(|r| (r.code, r.row));
        let size = common_size(n, rows.clone())?;
        check_symbol(symbol_len)?;
        let mut indices: Vec<u32> = rows.map(|(_, row)| row.number()).collect();
        indices.sort_unstable();
        indices.dedup();
        if indices.len() < missing.len() {
            let deficit = missing.len() - indices.len();
            return Err(Error::NotDecodable { deficit });
        }
        #[cfg(feature = "fft-rs")]
        {
            let repairs = repairs.iter().filter(ours);
            let result = self.decode_built(n, symbol_len, source, missing, size, repairs);
            result.map_err(|_| Error::BlockSize { n })
        }
        #[cfg(not(feature = "fft-rs"))]
        {
            let _ = (size, source);
            Err(Error::NotBuilt {
                code: CodeId::FftRs,
            })
        }
    }

    #[cfg(feature = "fft-rs")]
    fn encode_built(
        &mut self,
        n: usize,
        symbol_len: usize,
        source: &[u8],
        size: u32,
        rows: &[(CodeId, Row)],
        out: &mut [u8],
    ) -> Result<(), reed_solomon_simd::Error> {
        use reed_solomon_simd::ReedSolomonEncoder;
        let encoder = match &mut self.encoder {
            Some(encoder) => {
                encoder.reset(n, 1 << size, symbol_len)?;
                encoder
            }
            none => none.insert(ReedSolomonEncoder::new(n, 1 << size, symbol_len)?),
        };
        for symbol in source.chunks_exact(symbol_len) {
            encoder.add_original_shard(symbol)?;
        }
        let result = encoder.encode()?;
        for (&(_, row), out) in rows.iter().zip(out.chunks_exact_mut(symbol_len)) {
            let index = row.number() & ((1 << INDEX_BITS) - 1);
            if let Some(repair) = result.recovery(index as usize) {
                out.copy_from_slice(repair);
            }
        }
        Ok(())
    }

    #[cfg(feature = "fft-rs")]
    fn decode_built<'a>(
        &mut self,
        n: usize,
        symbol_len: usize,
        source: &mut [u8],
        missing: &[u16],
        size: u32,
        repairs: impl Iterator<Item = &'a Repair<'a>>,
    ) -> Result<(), reed_solomon_simd::Error> {
        use reed_solomon_simd::{Error, ReedSolomonDecoder};
        let decoder = match &mut self.decoder {
            Some(decoder) => {
                decoder.reset(n, 1 << size, symbol_len)?;
                decoder
            }
            none => none.insert(ReedSolomonDecoder::new(n, 1 << size, symbol_len)?),
        };
        let mut lost = missing.iter().map(|i| usize::from(*i)).peekable();
        for (i, symbol) in source.chunks_exact(symbol_len).enumerate() {
            if lost.next_if_eq(&i).is_none() {
                decoder.add_original_shard(i, symbol)?;
            }
        }
        for repair in repairs {
            let index = repair.row.number() & ((1 << INDEX_BITS) - 1);
            match decoder.add_recovery_shard(index as usize, repair.symbol) {
                Ok(()) | Err(Error::DuplicateRecoveryShardIndex { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let result = decoder.decode()?;
        for i in missing {
            let at = usize::from(*i);
            if let Some(symbol) = result.restored_original(at) {
                source[at * symbol_len..(at + 1) * symbol_len].copy_from_slice(symbol);
            }
        }
        Ok(())
    }
}

fn check_symbol(symbol_len: usize) -> Result<(), Error> {
    if symbol_len > 0 && symbol_len.is_multiple_of(2) {
        Ok(())
    } else {
        let code = CodeId::FftRs;
        Err(Error::SymbolLength { code, symbol_len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_name_size_and_index() {
        assert_eq!(size_for(0), Some(0));
        assert_eq!(size_for(14), Some(4));
        assert_eq!(size_for(16), Some(4));
        assert_eq!(size_for(32768), Some(15));
        assert_eq!(size_for(32769), None);
        assert_eq!(row(4, 15).and_then(split), Some((4, 15)));
        assert_eq!(row(4, 16), None);
        assert_eq!(row(16, 0), None);
        assert_eq!(split(Row::MAX), None);
        assert_eq!(first_flight(14).count(), 14);
        assert_eq!(first_flight(40_000).count(), 0);
    }

    #[test]
    fn sizes_are_not_mixed() {
        let rows = [
            (CodeId::FftRs, row(3, 0).unwrap()),
            (CodeId::FftRs, row(4, 0).unwrap()),
        ];
        assert!(common_size(10, rows.into_iter()).is_err());
        assert_eq!(common_size(10, rows.into_iter().take(1)), Ok(3));
    }
}
