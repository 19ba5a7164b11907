//! The first twelve bytes of every block (`docs/protocol.md` §5).

use super::WireError;

/// Length of the preamble in bytes.
pub const PREAMBLE_LEN: usize = 12;

const END_OF_STREAM: u32 = 8 << 28;
const LEN_MASK: u32 = (1 << 28) - 1;

/// What a block holds of its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// Offset in the stream of the block's first data byte.
    pub offset: u64,
    /// Data bytes in the block, without preamble and padding.
    pub len: u32,
    /// No block follows in this stream.
    pub end_of_stream: bool,
}

impl Preamble {
    /// Bytes on the wire.
    pub fn encode(&self) -> [u8; PREAMBLE_LEN] {
        let mut out = [0; PREAMBLE_LEN];
        out[..8].copy_from_slice(&self.offset.to_be_bytes());
        let flags = if self.end_of_stream { END_OF_STREAM } else { 0 };
        out[8..].copy_from_slice(&(flags | (self.len & LEN_MASK)).to_be_bytes());
        out
    }

    /// Of a whole block's bytes; its length must fit the block.
    pub fn decode(block: &[u8]) -> Result<Self, WireError> {
        let (head, data) = block
            .split_first_chunk::<PREAMBLE_LEN>()
            .ok_or(WireError::Truncated)?;
        let [o0, o1, o2, o3, o4, o5, o6, o7, f0, f1, f2, f3] = *head;
        let word = u32::from_be_bytes([f0, f1, f2, f3]);
        let preamble = Self {
            offset: u64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
            len: word & LEN_MASK,
            end_of_stream: word & END_OF_STREAM != 0,
        };
        if word & !(LEN_MASK | END_OF_STREAM) != 0 {
            return Err(WireError::Invalid("preamble flags"));
        }
        if preamble.len as usize > data.len() {
            return Err(WireError::Invalid("preamble length"));
        }
        Ok(preamble)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_limits() {
        let preamble = Preamble {
            offset: 1 << 40,
            len: 5,
            end_of_stream: true,
        };
        let mut block = preamble.encode().to_vec();
        assert_eq!(
            Preamble::decode(&block),
            Err(WireError::Invalid("preamble length"))
        );
        block.extend_from_slice(&[0; 6]);
        assert_eq!(Preamble::decode(&block), Ok(preamble));
        block[8] |= 0x40;
        assert_eq!(
            Preamble::decode(&block),
            Err(WireError::Invalid("preamble flags"))
        );
        assert_eq!(Preamble::decode(&block[..11]), Err(WireError::Truncated));
    }
}
