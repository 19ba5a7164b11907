//! What it means when the network says that nobody listens at the peer's address (ICMP "port unreachable").
//!
//! Nothing proves who wrote such a message, so it ends nothing by itself. It only makes this end ask, and
//! shortens how long it waits for the answer: docs/decisions/0017-refusals.md.

use super::ending::CLOSE_LOST;
use super::{Life, MS, Session};
use crate::types::Event;
use crate::{Nanos, Time};

/// If refusals go on, a peer counts as gone when it is silent for so much longer than a live peer
/// can be.
const MARGIN: Nanos = 500 * MS;
/// So many refusals …
const COUNT_MIN: u32 = 3;
/// … over so long a time: one broken packet, or a queue of them, is not enough.
const SPAN_MIN: Nanos = 1_000 * MS;
/// Refusals are forgotten after so long without another one. Hosts send about one per second to a
/// peer.
const REFUSAL_LIFETIME: Nanos = 1_500 * MS;
/// Time between PINGs to a peer that is said to be gone.
const ASK_INTERVAL: Nanos = 250 * MS;

/// Refusals since the last packet that opened.
#[derive(Debug)]
pub(super) struct Refusals {
    first: Time,
    last: Time,
    count: u32,
    asked: Time,
}

impl Session {
    /// The network says that nobody listens where the peer is. Anybody may have said so.
    pub fn peer_refused(&mut self, now: Time) {
        if !matches!(self.life, Life::Open) {
            return;
        }
        let refusals = self.refusals.get_or_insert(Refusals {
            first: now,
            last: now,
            count: 0,
            asked: now,
        });
        refusals.last = now;
        refusals.count = refusals.count.saturating_add(1);
    }

    pub(super) fn refusals_timeout(&self) -> Option<Time> {
        self.refusals
            .as_ref()
            .map(|refusals| refusals.asked + ASK_INTERVAL)
    }

    /// Sends another PING, forgets the refusals, or ends the session.
    pub(super) fn consider_refusals(&mut self, now: Time) {
        let silence_max = self.peer_silence_max();
        let Some(refusals) = &mut self.refusals else {
            return;
        };
        if now < refusals.asked + ASK_INTERVAL {
            return;
        }
        let lasting =
            refusals.count >= COUNT_MIN && refusals.last.saturating_sub(refusals.first) >= SPAN_MIN;
        // In a quiet session a peer that is not asked is silent for long. It is asked from the
        // first refusal on, so the silence counts from then.
        let heard_at = match self.config.quiet {
            true => self.last_received.max(refusals.first),
            false => self.last_received,
        };
        if now > refusals.last + REFUSAL_LIFETIME {
            self.refusals = None;
        } else if lasting && now >= heard_at + silence_max + MARGIN {
            self.events.push_back(Event::PeerGone);
            self.close(now, CLOSE_LOST, "nobody listens at this end's address");
        } else {
            refusals.asked = now;
            self.paths.main_mut().scheduler.ping();
        }
    }
}
