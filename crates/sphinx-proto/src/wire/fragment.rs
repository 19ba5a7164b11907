//! The beginning of a FRAGMENT packet's body (`docs/protocol.md` §10.1).

use std::ops::Range;

use super::MAX_SYMBOL_LEN;

/// Bytes of a fragment's body before its part of the symbol.
pub const FRAGMENT_PREFIX_LEN: usize = 3;
/// Most fragments of one symbol.
pub const FRAGMENTS_MAX: u8 = 8;

/// Which part of a symbol a packet carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// Size of the whole symbol, 1–9000 bytes.
    pub symbol_len: u16,
    /// Position, below `count`.
    pub index: u8,
    /// Fragments of the symbol, 2–8.
    pub count: u8,
}

impl Fragment {
    /// The bytes of the symbol that the fragment carries.
    pub fn range(&self) -> Range<usize> {
        let len = usize::from(self.symbol_len);
        let step = len.div_ceil(usize::from(self.count.max(1)));
        let from = (usize::from(self.index) * step).min(len);
        from..(from + step).min(len)
    }

    /// The first bytes of the body.
    pub fn encode(&self) -> [u8; FRAGMENT_PREFIX_LEN] {
        let [high, low] = self.symbol_len.to_be_bytes();
        [
            high,
            low,
            self.index << 4 | (self.count.wrapping_sub(1) & 0xf),
        ]
    }

    /// A whole body: what it is, and its part of the symbol.
    pub fn split(body: &[u8]) -> Option<(Self, &[u8])> {
        let (prefix, part) = body.split_first_chunk::<FRAGMENT_PREFIX_LEN>()?;
        let fragment = Self {
            symbol_len: u16::from_be_bytes([prefix[0], prefix[1]]),
            index: prefix[2] >> 4,
            count: (prefix[2] & 0xf) + 1,
        };
        let is_valid = usize::from(fragment.symbol_len) <= MAX_SYMBOL_LEN
            && (2..=FRAGMENTS_MAX).contains(&fragment.count)
            && fragment.index < fragment.count
            && !part.is_empty()
            && fragment.range().len() == part.len();
        is_valid.then_some((fragment, part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn vector() {
        let second = Fragment {
            symbol_len: 1433,
            index: 1,
            count: 2,
        };
        assert_eq!(second.encode(), [0x05, 0x99, 0x11]);
        assert_eq!(second.range(), 717..1433);
        let mut body = second.encode().to_vec();
        body.resize(3 + 716, 7);
        assert_eq!(Fragment::split(&body), Some((second, &[7; 716][..])));
        body.push(7);
        assert_eq!(Fragment::split(&body), None);
    }

    proptest! {
        #[test]
        fn parts_make_the_whole(symbol_len in 57u16..=9000, count in 2u8..=8) {
            let mut next = 0;
            for index in 0..count {
                let fragment = Fragment { symbol_len, index, count };
                let range = fragment.range();
                prop_assert_eq!(range.start, next);
                next = range.end;
                let mut body = fragment.encode().to_vec();
                body.resize(FRAGMENT_PREFIX_LEN + range.len(), 0);
                prop_assert_eq!(Fragment::split(&body).map(|(f, _)| f), Some(fragment));
            }
            prop_assert_eq!(next, usize::from(symbol_len));
        }

        #[test]
        fn parsing_is_total(body in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some((fragment, part)) = Fragment::split(&body) {
                prop_assert!(fragment.range().end <= usize::from(fragment.symbol_len));
                prop_assert_eq!(&body[..3], &fragment.encode()[..]);
                prop_assert_eq!(part.len(), fragment.range().len());
            }
        }
    }
}
