//! Payload that can be checked anywhere.

/// Bytes until the pattern repeats: a prime, so that no packet size divides it.
const PERIOD: usize = 65_521;

/// A seeded, endless payload. Comparing with it is as cheap as comparing memory, so the check adds
/// next to nothing to the CPU time that is measured.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// Two periods, so that every piece of one period lies in one slice.
    table: Vec<u8>,
}

impl Pattern {
    /// The pattern of a seed.
    pub fn new(seed: u64) -> Pattern {
        let mut state = seed;
        let mut table = Vec::with_capacity(2 * PERIOD);
        while table.len() < PERIOD {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            table.extend(mix(state).to_le_bytes());
        }
        table.truncate(PERIOD);
        table.extend_from_within(..);
        Pattern { table }
    }

    /// The bytes from `offset` on: `max` of them, or one period (65521) if that is less.
    pub fn piece(&self, offset: u64, max: u64) -> &[u8] {
        let start = (offset % PERIOD as u64) as usize;
        let length = max.min(PERIOD as u64) as usize;
        &self.table[start..start + length]
    }

    /// Whether these are the bytes from `offset` on.
    pub fn matches(&self, offset: u64, bytes: &[u8]) -> bool {
        let mut at = offset;
        bytes.chunks(PERIOD).all(|chunk| {
            let expected = self.piece(at, chunk.len() as u64);
            at = at.wrapping_add(chunk.len() as u64);
            chunk == expected
        })
    }
}

/// Spreads a counter over 64 bits (the finaliser of SplitMix64).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_fit_together() {
        let pattern = Pattern::new(7);
        let mut whole = Vec::new();
        while whole.len() < 200_000 {
            whole.extend_from_slice(pattern.piece(whole.len() as u64, 70_000));
        }
        assert!(pattern.matches(0, &whole));
        assert!(pattern.matches(12_345, &whole[12_345..]));
        assert!(!pattern.matches(12_346, &whole[12_345..]));
        assert!(!Pattern::new(8).matches(0, &whole));
        whole[199_999] ^= 1;
        assert!(!pattern.matches(0, &whole));
        assert!(pattern.matches(5, &[]));
    }
}
