//! Whether the sender slows down for the losses that it hears of (rules §2.1 "undeterred").

/// Less than this share of what was on its way before, in per cent, is slower: CUBIC goes to 70 %, Reno to 50.
const SLOWER_PERCENT: u64 = 78;
/// With fewer segments in flight, a reaction cannot be told.
const FLIGHT_MIN: u64 = 8;
/// So many losses in a row without an effect show that losses do not slow the sender down.
const IGNORED: u32 = 2;

/// What the sender had on its way when it was told of a loss, and afterwards.
#[derive(Debug, Default)]
pub(super) struct Reaction {
    /// Bytes in flight before the last acknowledgement.
    flight: u64,
    /// Bytes in flight when the sender was told of losses, until it has repaired them.
    told: Option<u64>,
    /// It has repaired everything that it was told of.
    repaired: bool,
    ignored: u32,
}

impl Reaction {
    /// An acknowledgement is about to be read: as much as this is on its way, in segments of that length.
    pub(super) fn see(&mut self, flight: u64, segment_bytes: u64) {
        self.flight = flight;
        if !std::mem::take(&mut self.repaired) {
            return;
        }
        let Some(told) = self.told.take() else { return };
        if 100 * flight < SLOWER_PERCENT * told {
            self.ignored = 0;
        } else if told >= FLIGHT_MIN * segment_bytes {
            self.ignored = (self.ignored + 1).min(IGNORED);
        }
    }

    /// The sender is told of losses now, which it has to repair.
    pub(super) fn told(&mut self) {
        (self.told, self.repaired) = (self.told.or(Some(self.flight)), false);
    }

    pub(super) fn repaired(&mut self) {
        self.repaired = true;
    }

    /// Whether losses do not slow the sender down, as with BBR.
    pub(super) fn is_undeterred(&self) -> bool {
        self.ignored >= IGNORED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells of a loss, with so many segments on their way before and afterwards.
    fn lose(reaction: &mut Reaction, before: u64, after: u64) -> bool {
        reaction.see(1000 * before, 1000);
        reaction.told();
        reaction.see(500 * before, 1000);
        reaction.told();
        reaction.repaired();
        reaction.see(1000 * after, 1000);
        reaction.is_undeterred()
    }

    #[test]
    fn whoever_ignores_two_losses_is_undeterred_until_one_slows_it_down() {
        let mut reaction = Reaction::default();
        assert!(!lose(&mut reaction, 20, 20) && lose(&mut reaction, 20, 17));
        assert!(lose(&mut reaction, 20, 22) && lose(&mut reaction, 20, 16));
        assert!(!lose(&mut reaction, 20, 14) && !lose(&mut reaction, 14, 14));
        assert!(!lose(&mut reaction, 14, 10));
        // Losses tell nothing where few segments are on their way.
        for _ in 0..9 {
            assert!(!lose(&mut reaction, 7, 7));
        }
        assert!(!lose(&mut reaction, 14, 14) && lose(&mut reaction, 14, 14));
    }
}
