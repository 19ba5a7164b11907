//! Seeded bytes and numbers.

/// SplitMix64: small, fast, and good enough to choose scenarios and bytes.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in `0..bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound.max(1)
    }

    /// Uniform in `low..=high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        (self.word() >> 11) as f64 / ((1u64 << 53) as f64) < probability
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The bytes of a stream, each a function of the seed and its offset.
pub(crate) fn fill(seed: u64, offset: u64, out: &mut [u8]) {
    let mut at = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let word = mix(seed ^ (at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
        let skip = (at % 8) as usize;
        let len = rest.len().min(8 - skip);
        rest[..len].copy_from_slice(&word[skip..skip + len]);
        rest = &mut rest[len..];
        at += len as u64;
    }
}
