//! Careful resume: using what an earlier session knew about the path, and retreating when it no longer
//! holds (draft-ietf-tsvwg-careful-resume).
//!
//! | phase of the draft | here |
//! | --- | --- |
//! | reconnaissance | the first train of start-up, as on an unknown path |
//! | unvalidated | if the train agrees with the memory, one round trip paced at half the remembered rate |
//! | validating | the feedback on that round: start-up goes on from there, doubling at most |
//! | safe retreat | more loss than remembered, a queue, or CE: the estimate becomes what arrived |
//!
//! The last two need no code here: start-up measures the link from packets that come out slower than
//! they went in, and recognises a policer by more loss than the remembered one.

use super::Nanos;
use crate::config::PathMemory;

/// Part of the remembered rate that is used before it is validated.
const JUMP: f64 = 0.5;
/// Losses in the first train beyond what is remembered, in standard errors and packets.
const LOSS_ERRORS: f64 = 3.0;
const LOSS_PACKETS: f64 = 2.0;

/// What the first train has shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jump {
    /// Smallest round trip.
    pub(super) rtt: Nanos,
    /// There is a queue already.
    pub(super) has_queue: bool,
    /// Packets settled, and those lost.
    pub(super) loss: (u64, u64),
    /// The link's rate where the train was stretched by it, bytes per second.
    pub(super) link: Option<f64>,
}

/// Memory that has not been used or refuted yet.
#[derive(Debug)]
pub(super) struct CarefulResume(Option<PathMemory>);

impl CarefulResume {
    pub(super) fn new(memory: Option<PathMemory>) -> Self {
        Self(memory)
    }

    /// Whether the first train is still to be judged.
    pub(super) fn is_waiting(&self) -> bool {
        self.0.is_some()
    }

    /// Judges the first train, once: the rate to jump to and the loss rate to expect there, or `None`
    /// if this is not the path that is remembered.
    pub(super) fn judge(&mut self, seen: &Jump) -> Option<(f64, f64)> {
        let memory = self.0.take()?;
        let rate = JUMP * memory.rate as f64;
        let plr = memory.plr.clamp(0.0, 0.9);
        // Half to ten times, as in the draft: a path that is shorter or much longer is another one.
        let same_rtt = (memory.rtt / 2..=memory.rtt.saturating_mul(10)).contains(&seen.rtt);
        let (packets, lost) = (seen.loss.0 as f64, seen.loss.1 as f64);
        let expected = packets * plr;
        let bearable = expected + LOSS_ERRORS * (expected * (1.0 - plr)).sqrt() + LOSS_PACKETS;
        let fast_enough = seen.link.is_none_or(|link| link >= rate);
        (same_rtt && !seen.has_queue && lost <= bearable && fast_enough).then_some((rate, plr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::MS;

    #[test]
    fn only_the_same_path_is_resumed() {
        let memory = PathMemory {
            rate: 10_000_000,
            rtt: 50 * MS,
            plr: 0.05,
            datagram_len: 1472,
        };
        let same = Jump {
            rtt: 52 * MS,
            has_queue: false,
            loss: (32, 2),
            link: None,
        };
        let judge = |seen| CarefulResume::new(Some(memory)).judge(&seen);
        assert_eq!(judge(same), Some((5e6, 0.05)));
        assert!(
            judge(Jump {
                link: Some(9e6),
                ..same
            })
            .is_some()
        );
        for other in [
            Jump {
                rtt: 20 * MS,
                ..same
            },
            Jump {
                rtt: 600 * MS,
                ..same
            },
            Jump {
                has_queue: true,
                ..same
            },
            Jump {
                loss: (32, 10),
                ..same
            },
            Jump {
                link: Some(4e6),
                ..same
            },
        ] {
            assert_eq!(judge(other), None, "{other:?}");
        }
        let mut resume = CarefulResume::new(Some(memory));
        resume.judge(&same);
        assert!(!resume.is_waiting());
    }
}
