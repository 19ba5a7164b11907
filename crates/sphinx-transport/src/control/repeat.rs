//! Copies of handshake datagrams, so that losing one does not cost a probe timeout of QUIC's
//! (`docs/protocol.md` §2).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ConnId;

/// When, after the original, a datagram is sent again on a path that is known to lose some, and one that
/// nothing answers. Three within 15 ms meet random loss; the later ones meet bursts, and are seldom
/// sent on short paths because the answer comes before.
const EARLY: [Duration; 4] = [
    Duration::from_millis(5),
    Duration::from_millis(15),
    Duration::from_millis(50),
    Duration::from_millis(150),
];
/// Elsewhere a copy waits for the answer: so long where the round trip is not known, and may be longer than all of these …
const UNKNOWN: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
];
/// … and a quarter of a round trip and this longer than that where it is; then as long again, three times.
const LATENESS: Duration = Duration::from_millis(5);
/// A path that is known to lose this share is one where a datagram is better sent twice.
const LOSSY: f64 = 0.01;
/// Most copies waiting, of all connections: 5 MB. Further ones are not made.
const MAX_COPIES: usize = 4096;

/// Copies waiting for their time, in order.
#[derive(Default)]
pub(super) struct Copies {
    /// By due time, then in the order in which they were made.
    waiting: BTreeMap<(Instant, u64), Copy>,
    made: u64,
}

/// A datagram to be sent again.
pub(super) struct Copy {
    /// The connection that it belongs to.
    pub(super) id: ConnId,
    /// How far that connection was; in another stage the copy is of no use.
    pub(super) stage: Stage,
    pub(super) datagram: Arc<[u8]>,
}

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// TLS is not finished.
    Handshake,
    /// The messages are not exchanged, as far as this end knows.
    Messages,
    /// There is nothing to say.
    Settled,
    /// This end says that it is over.
    Closing,
    /// The peer has said so.
    Closed,
}

/// What is known of a path that decides when copies are sent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Known {
    /// Round trip, if anything has told it.
    pub(super) rtt: Option<Duration>,
    /// Share of packets that an earlier session lost, 0–1.
    pub(super) plr: f64,
}

impl Known {
    /// How long after the original each copy is sent. `awaited`: an answer shows that the original has arrived.
    pub(super) fn delays(&self, awaited: bool) -> impl Iterator<Item = Duration> + use<> {
        let is_early = !awaited || self.plr >= LOSSY;
        let late = self.rtt.map_or(UNKNOWN, |rtt| {
            [1, 2, 3, 4].map(|times| times * (rtt + rtt / 4 + LATENESS))
        });
        if is_early { EARLY } else { late }.into_iter()
    }
}

impl Copies {
    /// `datagram` of `id` is being sent for the first time, and is to be sent again after these `delays`.
    pub(super) fn make(
        &mut self,
        now: Instant,
        (id, stage): (ConnId, Stage),
        datagram: &Arc<[u8]>,
        delays: impl Iterator<Item = Duration>,
    ) {
        for delay in delays {
            if self.waiting.len() < MAX_COPIES {
                self.made += 1;
                let copy = Copy {
                    id,
                    stage,
                    datagram: datagram.clone(),
                };
                self.waiting.insert((now + delay, self.made), copy);
            }
        }
    }

    /// A copy whose time has come.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Copy> {
        let first = self.waiting.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// When the next copy is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((due, _), _)| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_wait_for_an_answer_where_nothing_is_known_to_be_lost() {
        let ms = Duration::from_millis;
        let delays = |rtt, plr, awaited| -> Vec<_> {
            let known = Known { rtt, plr };
            known.delays(awaited).collect()
        };
        assert_eq!(delays(None, 0.0, true), UNKNOWN);
        assert_eq!(
            delays(Some(ms(40)), 0.009, true),
            [55, 110, 165, 220].map(ms)
        );
        assert_eq!(delays(Some(ms(40)), 0.01, true), EARLY);
        // Nothing answers an end.
        assert_eq!(delays(Some(ms(40)), 0.0, false), EARLY);
    }
}
