//! The pseudo-random numbers that rows are made of. They are part of the wire
//! format: both ends must draw the same ones.

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// `SplitMix64` (Steele, Lea, Flood, OOPSLA 2014): a counter and a mixing
/// function, so the i-th number can be had without the ones before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplitMix {
    state: u64,
}

impl SplitMix {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(crate) fn next(&mut self) -> u64 {
        let number = self.at(0);
        self.state = self.state.wrapping_add(STEP);
        number
    }

    /// The number that `ahead` calls of `next` would skip to, without drawing
    /// it.
    pub(crate) fn at(self, ahead: u64) -> u64 {
        mix(self.state.wrapping_add(STEP.wrapping_mul(ahead + 1)))
    }

    /// A number from `0..bound` by multiplication; the bias is below
    /// `bound / 2^32`.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }
}

/// The mixing function: a bijection in which every bit depends on all others.
fn mix(z: u64) -> u64 {
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_numbers_for_seed_zero() {
        // Published with the reference implementation of SplitMix64.
        let mut rng = SplitMix::new(0);
        assert_eq!(rng.at(2), 0x06c4_5d18_8009_454f);
        assert_eq!(rng.next(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(rng.next(), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(rng.next(), 0x06c4_5d18_8009_454f);
    }
}
