//! Copies of handshake datagrams, so that losing one does not cost a probe timeout
//! (`docs/protocol.md` §2).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::ConnId;

/// When, after the original, a datagram is sent again.
const DELAYS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(15)];
/// Most copies waiting, of all connections: 5 MB. Further ones are not made.
const MAX_COPIES: usize = 4096;

/// Copies waiting for their time, in order.
#[derive(Default)]
pub(super) struct Copies {
    /// By due time, then in the order in which they were made.
    waiting: BTreeMap<(Instant, u64), Copy>,
    made: u64,
}

/// A datagram and the connection that it belongs to.
type Copy = (ConnId, Box<[u8]>);

impl Copies {
    /// `datagram` of `id` is being sent for the first time.
    pub(super) fn make(&mut self, now: Instant, id: ConnId, datagram: &[u8]) {
        for delay in DELAYS {
            if self.waiting.len() < MAX_COPIES {
                self.made += 1;
                self.waiting
                    .insert((now + delay, self.made), (id, datagram.into()));
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
