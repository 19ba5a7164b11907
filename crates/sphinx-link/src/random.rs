//! Counter-based pseudo-random draws.
//!
//! SplitMix64 is a counter followed by a mixing function, so its i-th output can be computed
//! directly. Every element of a link has its own key, and the draw for a packet depends only on
//! (seed, element, packet index): never on time, and never on what other elements draw.

/// The increment of SplitMix64: 2^64 divided by the golden ratio, made odd.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The elements that draw, one key each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Element {
    Loss = 1,
    LossStart = 2,
    LossState = 3,
    Corruption = 4,
    Duplication = 5,
    Jitter = 6,
    DuplicateJitter = 7,
    Reorder = 8,
    Red = 9,
    Period = 10,
    Rate = 11,
    Retry = 12,
    Shift = 13,
    Backoff = 14,
    DualPi2 = 15,
}

/// The random numbers of one element: a function from packet index to value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draws {
    key: u64,
}

impl Draws {
    pub(crate) fn new(seed: u64, element: Element) -> Draws {
        Draws {
            key: mix(seed ^ mix((element as u64).wrapping_mul(GAMMA))),
        }
    }

    /// A uniform 64-bit value for the packet with this index.
    pub(crate) fn bits(self, index: u64) -> u64 {
        mix(self
            .key
            .wrapping_add(index.wrapping_add(1).wrapping_mul(GAMMA)))
    }

    /// True with the given probability (0 to 1) for the packet with this index.
    pub(crate) fn chance(self, index: u64, probability: f64) -> bool {
        self.uniform(index) < probability
    }

    /// A uniform value from 0 to below 1 for this index.
    pub(crate) fn uniform(self, index: u64) -> f64 {
        // 53 bits are what an f64 holds exactly, so that the value is the same everywhere.
        (self.bits(index) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A uniform value in `0..=max` for the packet with this index.
    pub(crate) fn up_to(self, index: u64, max: u64) -> u64 {
        ((u128::from(self.bits(index)) * (u128::from(max) + 1)) >> 64) as u64
    }

    /// A separate sequence of draws that belongs to the packet with this index.
    pub(crate) fn within(self, index: u64) -> Draws {
        Draws {
            key: self.bits(index),
        }
    }
}

/// The output function of SplitMix64.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A hash of some bytes and of what came before them.
pub(crate) fn mix_bytes(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| {
        mix(hash.wrapping_add(GAMMA) ^ u64::from(byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_splitmix64_sequence() {
        let draws = Draws { key: 1_234_567 };
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973];
        assert_eq!([draws.bits(0), draws.bits(1)], expected);
    }

    #[test]
    fn elements_draw_independently() {
        let loss = Draws::new(1, Element::Loss);
        let jitter = Draws::new(1, Element::Jitter);
        let equal = (0..64)
            .filter(|&i| (loss.bits(i) ^ jitter.bits(i)) & 1 == 0)
            .count();
        assert!((16..=48).contains(&equal), "{equal} of 64 low bits agree");
    }

    #[test]
    fn up_to_reaches_both_ends_and_never_more() {
        let draws = Draws::new(7, Element::Jitter);
        let values: Vec<u64> = (0..1000).map(|i| draws.up_to(i, 3)).collect();
        assert_eq!(
            (values.iter().min(), values.iter().max()),
            (Some(&0), Some(&3))
        );
        assert_eq!(draws.up_to(5, 0), 0);
        assert_eq!(draws.up_to(5, u64::MAX), draws.bits(5));
    }
}
