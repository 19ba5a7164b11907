//! Video over HTTP, as DASH does it: what there is to fetch.
//!
//! No trace of the paper's stream is public, so segments are synthesised: a ladder of qualities, and
//! per segment a size that varies around the quality's bit rate, from a seed.

use std::{str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::link::Random;

/// The qualities, in bits per second: a usual ladder up to 1080p, and one of 4K.
pub const LADDER: [u64; 10] = [
    235_000, 375_000, 560_000, 750_000, 1_050_000, 1_750_000, 2_350_000, 3_000_000, 4_300_000,
    16_000_000,
];

/// How far the size of a segment may be from that of its bit rate, either way.
const VARIATION: f64 = 0.3;

/// A video and how it is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Video {
    /// How long the player runs.
    pub watch: Duration,
    /// Playing time of one segment.
    pub segment: Duration,
    /// How much the player keeps ahead at most; it then waits until there is room for a segment.
    pub buffer: Duration,
    /// Which quality the player asks for.
    pub quality: Quality,
    /// Seed of the segments' sizes.
    pub seed: u64,
}

/// How a player chooses the quality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Quality {
    /// Always this rung of [`LADDER`], as in the paper.
    Fixed(usize),
    /// BOLA: by the buffer level alone (utility ln(size/smallest), γp = 5, as in the paper of that
    /// name, INFOCOM 2016).
    Bola,
}

impl FromStr for Quality {
    type Err = String;

    fn from_str(text: &str) -> Result<Quality, String> {
        let expected = || {
            format!(
                "'{text}' is neither 'bola' nor one of 0 to {}",
                LADDER.len() - 1
            )
        };
        match text.parse::<usize>() {
            Ok(rung) if rung < LADDER.len() => Ok(Quality::Fixed(rung)),
            Err(_) if text == "bola" => Ok(Quality::Bola),
            _ => Err(expected()),
        }
    }
}

impl Quality {
    /// The quality as [`FromStr`] reads it.
    pub fn name(self) -> String {
        match self {
            Quality::Fixed(rung) => rung.to_string(),
            Quality::Bola => "bola".to_owned(),
        }
    }
}

impl Video {
    /// Bytes of a segment at a rung of the ladder. Complex scenes are large at every rung.
    pub fn segment_bytes(&self, index: u64, rung: usize) -> u64 {
        let mut random = Random(self.seed ^ index.wrapping_mul(0xd6e8_feb8_6659_fd93));
        random.next();
        let factor = 1.0 + VARIATION * (2.0 * random.uniform() - 1.0);
        let bits = LADDER[rung.min(LADDER.len() - 1)] as f64 * self.segment.as_secs_f64();
        (bits * factor / 8.0) as u64
    }

    /// The next segment's rung, when `level` is buffered.
    pub fn choose(&self, level: Duration) -> usize {
        match self.quality {
            Quality::Fixed(rung) => rung,
            Quality::Bola => bola(level, self.buffer, self.segment),
        }
    }

    /// The video in a few words.
    pub fn description(&self) -> String {
        let quality = match self.quality {
            Quality::Fixed(rung) => format!("{} Mbit/s", LADDER[rung] as f64 / 1e6),
            Quality::Bola => "chosen by BOLA".to_owned(),
        };
        format!(
            "video in segments of {} s, quality {quality}, buffer {} s, watched for {} s",
            self.segment.as_secs_f64(),
            self.buffer.as_secs_f64(),
            self.watch.as_secs_f64()
        )
    }
}

/// γp of BOLA: how much not to stall is worth, in units of utility.
const BOLA_GAMMA_P: f64 = 5.0;

/// The rung with the largest (V·(utility + γp) − level) / size, V such that the best rung is chosen
/// when there is room for one segment only.
fn bola(level: Duration, buffer: Duration, segment: Duration) -> usize {
    let segments = |time: Duration| time.as_secs_f64() / segment.as_secs_f64();
    let utility = |rung: usize| (LADDER[rung] as f64 / LADDER[0] as f64).ln();
    let control = (segments(buffer) - 1.0).max(1.0) / (utility(LADDER.len() - 1) + BOLA_GAMMA_P);
    let score = |rung: usize| {
        (control * (utility(rung) + BOLA_GAMMA_P) - segments(level)) / LADDER[rung] as f64
    };
    (0..LADDER.len())
        .max_by(|a, b| score(*a).total_cmp(&score(*b)))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIDEO: Video = Video {
        watch: Duration::from_secs(60),
        segment: Duration::from_secs(2),
        buffer: Duration::from_secs(30),
        quality: Quality::Bola,
        seed: 1,
    };

    #[test]
    fn sizes_vary_around_the_rate() {
        let mean = (0..500)
            .map(|index| VIDEO.segment_bytes(index, 8) as f64)
            .sum::<f64>()
            / 500.0;
        assert!((mean / (4.3e6 * 2.0 / 8.0) - 1.0).abs() < 0.03, "{mean}");
        assert_eq!(VIDEO.segment_bytes(7, 2), VIDEO.segment_bytes(7, 2));
        let ratio = VIDEO.segment_bytes(7, 8) as f64 / VIDEO.segment_bytes(7, 0) as f64;
        assert!((ratio - 4300.0 / 235.0).abs() < 0.01, "{ratio}");
    }

    #[test]
    fn bola_asks_for_more_the_more_it_has() {
        let rungs: Vec<usize> = (0..=30)
            .map(|seconds| VIDEO.choose(Duration::from_secs(seconds)))
            .collect();
        assert!(rungs.is_sorted(), "{rungs:?}");
        assert_eq!((rungs[0], rungs[29]), (0, LADDER.len() - 1));
    }

    #[test]
    fn qualities_have_names() {
        for quality in [Quality::Fixed(9), Quality::Bola] {
            assert_eq!(quality.name().parse(), Ok(quality));
        }
        assert!("10".parse::<Quality>().is_err());
        assert!("best".parse::<Quality>().is_err());
    }
}
