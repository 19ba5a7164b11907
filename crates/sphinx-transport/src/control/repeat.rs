//! Copies of handshake datagrams, so that losing one does not cost a probe timeout
//! (`docs/protocol.md` §2).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ConnId;

/// When, after the original, a datagram is sent again. Three within 15 ms meet random loss; the
/// later ones meet bursts, and are seldom sent on short paths because the answer comes before.
const DELAYS: [Duration; 4] = [
    Duration::from_millis(5),
    Duration::from_millis(15),
    Duration::from_millis(50),
    Duration::from_millis(150),
];
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

impl Copies {
    /// `datagram` of `id` is being sent for the first time.
    pub(super) fn make(&mut self, now: Instant, id: ConnId, stage: Stage, datagram: &[u8]) {
        let datagram: Arc<[u8]> = datagram.into();
        for delay in DELAYS {
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
