//! The two feedback frames of the paper's mode (`docs/protocol.md` §13).

use super::frame::{decode_ranges, encode_ranges};
use super::{MAX_BLOCK_SYMBOLS, Reader, WireError, put_varint};
use crate::numbers::BlockId;

/// Most blocks that a Symbol-SACK names beside the latest one.
pub const MAX_NAMED: usize = 64;
/// Longest encoding of a Symbol-SACK without the blocks that it names, and of what comes before a bit map.
const FIXED_LEN_MAX: usize = 2 + 6 * 8 + NAME_LEN_MAX + 1024 / 8;
const NAME_LEN_MAX: usize = 8 + 2;

/// What both frames say of the packets, and of the window (§7).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PaperCounts {
    /// Packets seen with ECT(0) or ECT(1).
    pub ect: u64,
    /// Packets seen with CE.
    pub ce: u64,
    /// Sum of block costs that the sender may reach.
    pub credit: u64,
}

/// A block and its symbols that the receiver has or has peeled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedBlock {
    /// The block.
    pub block: BlockId,
    /// Its source symbols; 0 if nothing of it has arrived.
    pub n: u16,
    /// ⌈n/8⌉ bytes; symbol i is bit i mod 8, from the lowest, of byte i / 8. Bits behind the last symbol are 0.
    pub recovered: Vec<u8>,
}

impl NamedBlock {
    /// How many symbols are recovered.
    pub fn count(&self) -> u32 {
        self.recovered.iter().map(|byte| byte.count_ones()).sum()
    }

    /// Whether the symbol is recovered.
    pub fn has(&self, index: u16) -> bool {
        let byte = self.recovered.get(usize::from(index / 8));
        byte.is_some_and(|byte| byte >> (index % 8) & 1 == 1)
    }

    /// Bytes on the wire, at most.
    fn len_max(&self) -> usize {
        NAME_LEN_MAX + self.recovered.len()
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.n));
        out.extend_from_slice(&self.recovered);
    }

    fn decode(block: BlockId, r: &mut Reader<'_>) -> Result<Self, WireError> {
        const BAD: WireError = WireError::Invalid("recovered symbols");
        let n = r.varint()?;
        if n > u64::from(MAX_BLOCK_SYMBOLS) {
            return Err(BAD);
        }
        let n = n as u16;
        let recovered = r.take(usize::from(n).div_ceil(8))?.to_vec();
        let spare = recovered.last().filter(|_| !n.is_multiple_of(8));
        if spare.is_some_and(|last| last >> (n % 8) != 0) {
            return Err(BAD);
        }
        Ok(Self {
            block,
            n,
            recovered,
        })
    }
}

/// Symbol-SACK of the paper: which symbols are recovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SymbolSack {
    /// Packets and window.
    pub counts: PaperCounts,
    /// The most recent block of which a symbol has arrived.
    pub latest: NamedBlock,
    /// Every block below that is not among `unrecovered` is decoded. At most the latest.
    pub upto: BlockId,
    /// Blocks below `upto`, and so before the latest, that are not decoded, rising.
    pub unrecovered: Vec<NamedBlock>,
}

impl SymbolSack {
    /// Leaves out what does not fit into `room` bytes.
    pub fn fit(&mut self, room: usize) {
        let mut left = room.saturating_sub(FIXED_LEN_MAX);
        let mut fits = |named: &NamedBlock| {
            let len = named.len_max();
            let fits = len <= left;
            left = left.saturating_sub(len);
            fits
        };
        let keep = self.unrecovered.iter().take(MAX_NAMED);
        let keep = keep.map_while(|named| fits(named).then_some(())).count();
        if let Some(first) = self.unrecovered.get(keep) {
            self.upto = first.block;
            self.unrecovered.truncate(keep);
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(21);
        encode_counts(&self.counts, out);
        put_varint(out, self.latest.block.get());
        self.latest.encode(out);
        put_varint(out, self.latest.block - self.upto);
        put_varint(out, self.unrecovered.len() as u64);
        let mut next = BlockId::ZERO;
        for named in &self.unrecovered {
            put_varint(out, named.block - next);
            named.encode(out);
            next = named.block + 1;
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        const BAD: WireError = WireError::Invalid("named block");
        let counts = decode_counts(r)?;
        let latest = NamedBlock::decode(BlockId::new(r.varint()?), r)?;
        let below = r.varint()?;
        let upto = latest.block.get().checked_sub(below).ok_or(BAD)?;
        let count = r.varint()?;
        if latest.n == 0 || count > MAX_NAMED as u64 {
            return Err(BAD);
        }
        let mut unrecovered = Vec::new();
        let mut next = 0_u64;
        for _ in 0..count {
            let block = next.checked_add(r.varint()?).filter(|block| *block < upto);
            let block = block.ok_or(BAD)?;
            unrecovered.push(NamedBlock::decode(BlockId::new(block), r)?);
            next = block + 1;
        }
        Ok(Self {
            counts,
            latest,
            upto: BlockId::new(upto),
            unrecovered,
        })
    }
}

/// The packet loss rate of one period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossReport {
    /// Number of the period, from 0.
    pub period: u64,
    /// Packets of it that had not arrived when one of a later period did.
    pub lost: u32,
    /// Packets of a period, at least one.
    pub of: u32,
}

/// Block-SACK of the paper: which blocks are decoded, and the latest packet loss rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockSack {
    /// Packets and window.
    pub counts: PaperCounts,
    /// Losses of the latest period that is over.
    pub loss: Option<LossReport>,
    /// Every block below is decoded.
    pub base: BlockId,
    /// Decoded blocks above, inclusive, rising, disjoint and not adjacent; the first begins above `base`.
    pub decoded: Vec<(BlockId, BlockId)>,
}

impl BlockSack {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(22);
        encode_counts(&self.counts, out);
        put_varint(out, self.loss.map_or(0, |loss| loss.period + 1));
        if let Some(loss) = self.loss {
            put_varint(out, u64::from(loss.lost));
            put_varint(out, u64::from(loss.of));
        }
        encode_ranges(self.base, &self.decoded, out);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let counts = decode_counts(r)?;
        let loss = match r.varint()?.checked_sub(1) {
            None => None,
            Some(period) => Some(decode_loss(period, r)?),
        };
        let (base, decoded) = decode_ranges(r)?;
        Ok(Self {
            counts,
            loss,
            base,
            decoded,
        })
    }
}

fn decode_loss(period: u64, r: &mut Reader<'_>) -> Result<LossReport, WireError> {
    const BAD: WireError = WireError::Invalid("loss rate");
    let lost = u32::try_from(r.varint()?).map_err(|_| BAD)?;
    let of = u32::try_from(r.varint()?).map_err(|_| BAD)?;
    (of > 0 && lost <= of)
        .then_some(LossReport { period, lost, of })
        .ok_or(BAD)
}

fn encode_counts(counts: &PaperCounts, out: &mut Vec<u8>) {
    for value in [counts.ect, counts.ce, counts.credit] {
        put_varint(out, value);
    }
}

fn decode_counts(r: &mut Reader<'_>) -> Result<PaperCounts, WireError> {
    Ok(PaperCounts {
        ect: r.varint()?,
        ce: r.varint()?,
        credit: r.varint()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Frame, FrameIter};
    use proptest::prelude::*;

    fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        frame.encode(&mut out);
        out
    }

    fn named(block: u64, n: u16, recovered: &[u8]) -> NamedBlock {
        NamedBlock {
            block: BlockId::new(block),
            n,
            recovered: recovered.to_vec(),
        }
    }

    const COUNTS: PaperCounts = PaperCounts {
        ect: 9,
        ce: 1,
        credit: 500,
    };

    fn symbols() -> SymbolSack {
        SymbolSack {
            counts: COUNTS,
            latest: named(7, 10, &[0x0f, 0]),
            upto: BlockId::new(7),
            unrecovered: vec![named(3, 10, &[0xff, 1]), named(5, 0, &[])],
        }
    }

    #[test]
    fn vectors() {
        let frame = Frame::PaperSymbols(symbols());
        let bytes = [
            21, 9, 1, 0x41, 0xf4, 7, 10, 0x0f, 0, 0, 2, 3, 10, 0xff, 1, 1, 0,
        ];
        assert_eq!(bytes_of(&frame), bytes);
        assert_eq!(FrameIter::new(&bytes).next(), Some(Ok(frame)));
        let frame = Frame::PaperBlocks(BlockSack {
            counts: COUNTS,
            loss: Some(LossReport {
                period: 2,
                lost: 6,
                of: 100,
            }),
            base: BlockId::new(3),
            decoded: vec![
                (BlockId::new(4), BlockId::new(4)),
                (BlockId::new(6), BlockId::new(7)),
            ],
        });
        let bytes = [22, 9, 1, 0x41, 0xf4, 3, 6, 0x40, 100, 3, 2, 1, 0, 1, 1];
        assert_eq!(bytes_of(&frame), bytes);
        assert_eq!(FrameIter::new(&bytes).next(), Some(Ok(frame)));
    }

    #[test]
    fn what_cannot_be() {
        for bad in [
            &[21, 0, 0, 0, 7, 0, 0, 0][..],         // the latest block is unknown
            &[21, 0, 0, 0, 7, 9, 1, 4, 0, 0],       // bits behind the last symbol
            &[21, 0, 0, 0, 7, 9, 1, 0, 8, 0],       // below no block
            &[21, 0, 0, 0, 7, 9, 1, 0, 0, 1, 7, 0], // not below the limit
            &[21, 0, 0, 0, 7, 0x48, 0, 0, 0, 0],    // 2048 symbols
            &[22, 0, 0, 0, 1, 5, 4, 0, 0],          // more lost than sent
            &[22, 0, 0, 0, 1, 0, 0, 0, 0],          // a period of nothing
        ] {
            assert!(
                matches!(FrameIter::new(bad).next(), Some(Err(_))),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn what_does_not_fit_is_left_to_the_next() {
        let mut sack = symbols();
        sack.unrecovered = (0..200)
            .map(|block| named(block, 1000, &[0; 125]))
            .collect();
        sack.latest = named(200, 1000, &[1; 125]);
        sack.upto = BlockId::new(200);
        sack.fit(1162);
        assert_eq!(sack.upto, BlockId::new(sack.unrecovered.len() as u64));
        let len = bytes_of(&Frame::PaperSymbols(sack.clone())).len();
        assert!(!sack.unrecovered.is_empty() && len <= 1162, "{len}");
    }

    proptest! {
        #[test]
        fn total(mut body in prop::collection::vec(any::<u8>(), 0..200), kind in 21..23_u8) {
            body.insert(0, kind);
            if let Some(Ok(frame)) = FrameIter::new(&body).next() {
                let bytes = bytes_of(&frame);
                prop_assert_eq!(FrameIter::new(&bytes).next(), Some(Ok(frame)));
            }
        }
    }
}
