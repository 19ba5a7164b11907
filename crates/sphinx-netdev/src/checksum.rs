//! The Internet checksum (RFC 1071): sums with end-around carry, of as many bytes at once as a register holds.

/// Words of 64 bits that one turn of the loop adds.
const WORDS: usize = 16;

/// A sum of 16-bit words in ones' complement, in the byte order of the machine: what is added begins at an even place.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of so few bytes that it does not overflow; their number is a multiple of four.
    #[inline]
    pub fn few(bytes: &[u8]) -> Sum {
        let words = bytes.as_chunks::<4>().0.iter();
        Sum(words.map(|word| u64::from(u32::from_ne_bytes(*word))).sum())
    }

    /// The sum of the bytes of both; `few` is a sum of few bytes.
    #[inline]
    pub fn and(self, few: Sum) -> Sum {
        let (sum, carry) = self.0.overflowing_add(few.0);
        Sum(sum + u64::from(carry))
    }

    /// The sum with these bytes behind the others.
    #[inline]
    pub fn with(self, bytes: &[u8]) -> Sum {
        let (blocks, rest) = bytes.as_chunks::<{ 8 * WORDS }>();
        let (mut sum, mut carry) = (self.0, false);
        for block in blocks {
            for word in block.as_chunks::<8>().0 {
                (sum, carry) = sum.carrying_add(u64::from_ne_bytes(*word), carry);
            }
        }
        let (words, rest) = rest.as_chunks::<8>();
        for word in words {
            (sum, carry) = sum.carrying_add(u64::from_ne_bytes(*word), carry);
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        (sum, carry) = sum.carrying_add(u64::from_ne_bytes(last), carry);
        // What is left of a sum with a carry is less than what a register holds, once the carry is added.
        let (sum, carry) = sum.overflowing_add(u64::from(carry));
        Sum(sum + u64::from(carry))
    }

    /// The number that goes into the header's field; 0 for data whose checksum field is right.
    #[inline]
    pub fn checksum(self) -> u16 {
        let half = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let quarter = (half >> 16) + (half & 0xffff);
        let folded = (quarter >> 16) + (quarter & 0xffff);
        let folded = (folded >> 16) + (folded & 0xffff);
        u16::from_be_bytes((!(folded as u16)).to_ne_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Word by word, as RFC 1071 says it.
    fn plainly(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn sums_are_those_of_single_words() {
        let mut state = 7u64;
        let noise: Vec<u8> = (0..1500)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        for bytes in [noise, vec![0xff; 1500], vec![0; 1500]] {
            for length in (0..200).chain([1460, 1499, 1500]) {
                let (head, tail) = bytes[..length].split_at(length / 4 * 2);
                let sum = Sum::default().with(head).with(tail);
                let few = Sum::few(&bytes[..40]).and(Sum::few(&bytes[40..44]));
                assert_eq!(few.checksum(), plainly(&bytes[..44]));
                assert_eq!(sum.checksum(), plainly(&bytes[..length]), "{length} bytes");
            }
        }
    }
}
