//! Seeded packet loss.

/// Which packets are lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Each with this probability, whatever happened to the others.
    Independent {
        /// The probability.
        rate: f64,
    },
    /// Gilbert–Elliott: everything is lost in a bad state, nothing in a good
    /// one.
    Bursts {
        /// Share of lost packets in the long run.
        rate: f64,
        /// Mean number of packets lost in a row, above the 1 / (1 − rate) of
        /// independent losses: a link that loses so much cannot have shorter
        /// bursts in this model.
        mean: f64,
    },
}

impl Loss {
    /// Independent losses, or bursts if their mean is above what independent
    /// losses have.
    #[must_use]
    pub fn new(rate: f64, mean_burst: Option<f64>) -> Self {
        match mean_burst {
            Some(mean) if mean * (1.0 - rate) > 1.0 => Self::Bursts { rate, mean },
            _ => Self::Independent { rate },
        }
    }

    /// The share of lost packets.
    #[must_use]
    pub fn rate(&self) -> f64 {
        match *self {
            Self::Independent { rate } | Self::Bursts { rate, .. } => rate,
        }
    }

    /// The mean number of packets lost in a row; 1 where that is as many as
    /// chance brings.
    #[must_use]
    pub fn mean_burst(&self) -> f64 {
        match *self {
            Self::Independent { .. } => 1.0,
            Self::Bursts { mean, .. } => mean,
        }
    }

    /// Whether so many packets show what losses do: where these come in bursts,
    /// there have to be thirty of them.
    #[must_use]
    pub fn is_told_by(&self, packets: usize) -> bool {
        match *self {
            Self::Independent { .. } => true,
            Self::Bursts { rate, mean } => packets as f64 * rate / mean >= 30.0,
        }
    }
}

/// A link that loses packets.
#[derive(Clone, Debug)]
pub struct Channel {
    loss: Loss,
    is_bad: bool,
    random: Random,
}

impl Channel {
    /// A channel; the same seed loses the same packets.
    #[must_use]
    pub fn new(loss: Loss, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let is_bad = random.chance(loss.rate());
        Self {
            loss,
            is_bad,
            random,
        }
    }

    /// Whether the next packet is lost.
    pub fn loses_next(&mut self) -> bool {
        match self.loss {
            Loss::Independent { rate } => self.random.chance(rate),
            Loss::Bursts { rate, mean } => {
                let leave = 1.0 / mean.max(1.0);
                let enter = leave * rate / (1.0 - rate).max(1e-9);
                let lost = self.is_bad;
                let change = if lost { leave } else { enter };
                self.is_bad ^= self.random.chance(change);
                lost
            }
        }
    }
}

/// A small random generator (`SplitMix64`), for simulations only.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator; the same seed gives the same numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        ((self.bits() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// Random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for chunk in bytes.chunks_mut(8) {
            let bits = self.bits().to_le_bytes();
            chunk.copy_from_slice(&bits[..chunk.len()]);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_lose_what_they_should() {
        let independent = |rate: f64| 1.0 / (1.0 - rate);
        for (rate, mean, expected) in [
            (0.06, None, independent(0.06)),
            (0.06, Some(8.0), 8.0),
            (0.8, Some(20.0), 20.0),
            // Links that lose so much have longer bursts already where losses are independent.
            (0.06, Some(1.05), independent(0.06)),
            (0.8, Some(2.0), independent(0.8)),
            (0.95, Some(1.5), independent(0.95)),
        ] {
            let loss = Loss::new(rate, mean);
            let mut channel = Channel::new(loss, 4);
            let (mut lost, mut bursts, mut before) = (0, 0, false);
            for _ in 0..400_000 {
                let is_lost = channel.loses_next();
                lost += usize::from(is_lost);
                bursts += usize::from(is_lost && !before);
                before = is_lost;
            }
            let found = f64::from(lost as u32) / 4e5;
            assert!((found / rate - 1.0).abs() < 0.1, "{loss:?}: {found}");
            let mean = lost as f64 / bursts as f64;
            assert!((mean / expected - 1.0).abs() < 0.1, "{loss:?}: {mean}");
        }
    }
}
