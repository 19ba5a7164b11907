//! What a sender does about losses that it did not see (RFC 5681, RFC 3168): it is told that there was congestion, or gets less room.

use serde::Serialize;

use super::Response;
use crate::{Time, segment::Slowing};

/// How a sender was slowed down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Slowed {
    /// By the echo of congestion (ECE), until it answered (CWR): it halves its window as after a loss.
    Ecn,
    /// By a smaller window of the receiver, for a round trip.
    Window,
    /// Not at all: it had less in flight than the smallest window that it is given.
    NoEffect,
}

/// A flow's response, at most once in a round trip.
#[derive(Debug, Default)]
pub(super) struct Responding {
    /// Acknowledgements carry ECE until the sender answers with CWR.
    ece: bool,
    /// The smaller window in bytes, and until when it is told.
    clamp: Option<(u64, Time)>,
    /// The sender is not slowed down again before this time.
    next: Time,
}

/// The flow at the time of a loss.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    /// ECN (RFC 3168) was negotiated.
    pub(super) ecn: bool,
    pub(super) rtt: Time,
    pub(super) flight_bytes: u64,
    pub(super) mss: u64,
}

impl Responding {
    /// A loss was repaired that the sender does not know of. Returns what is done about it, if that is something new.
    pub(super) fn loss(&mut self, now: Time, response: Response, it: Situation) -> Option<Slowed> {
        if now < self.next || response == Response::None {
            return None;
        }
        self.next = now + it.rtt;
        let by_ecn = match response {
            Response::Auto | Response::Ecn => it.ecn,
            Response::Window | Response::None => false,
        };
        if by_ecn {
            self.ece = true;
            return Some(Slowed::Ecn);
        }
        if response == Response::Ecn {
            return Some(Slowed::NoEffect);
        }
        let least = 2 * it.mss;
        if it.flight_bytes < least {
            return Some(Slowed::NoEffect);
        }
        self.clamp = Some((least.max(it.flight_bytes / 2), now + it.rtt));
        Some(Slowed::Window)
    }

    /// The sender has reduced its window (CWR), so ECE is no longer set.
    pub(super) fn answered(&mut self) {
        self.ece = false;
    }

    /// What the next acknowledgement is to say, of a receiver with this scale of its window.
    pub(super) fn slowing(&mut self, now: Time, scale: u8) -> Slowing {
        self.clamp = self.clamp.filter(|(_, until)| now < *until);
        let window = self.clamp.map(|(bytes, _)| {
            // Rounded up, so that the window is not smaller than meant.
            let units = bytes.div_ceil(1 << scale.min(14));
            u16::try_from(units).unwrap_or(u16::MAX)
        });
        let ece = self.ece;
        Slowing { ece, window }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MS;

    const FLOW: Situation = Situation {
        ecn: false,
        rtt: 100 * MS,
        flight_bytes: 10_000,
        mss: 1000,
    };

    #[test]
    fn one_response_in_a_round_trip() {
        let mut it = Responding::default();
        let ecn = Situation { ecn: true, ..FLOW };
        assert_eq!(it.loss(MS, Response::Auto, ecn), Some(Slowed::Ecn));
        assert_eq!(it.loss(100 * MS, Response::Auto, ecn), None);
        assert!(it.slowing(500 * MS, 7).ece);
        it.answered();
        assert_eq!(it.slowing(500 * MS, 7), Slowing::default());
        assert_eq!(it.loss(101 * MS, Response::Auto, ecn), Some(Slowed::Ecn));
    }

    #[test]
    fn a_window_is_smaller_for_a_round_trip() {
        let mut it = Responding::default();
        assert_eq!(it.loss(0, Response::Auto, FLOW), Some(Slowed::Window));
        assert_eq!(it.slowing(99 * MS, 7).window, Some(40));
        assert_eq!(it.slowing(100 * MS, 7), Slowing::default());
        let thin = Situation {
            flight_bytes: 1999,
            ..FLOW
        };
        assert_eq!(
            it.loss(200 * MS, Response::Window, thin),
            Some(Slowed::NoEffect)
        );
        assert_eq!(it.slowing(200 * MS, 7), Slowing::default());
        assert_eq!(
            it.loss(400 * MS, Response::Ecn, FLOW),
            Some(Slowed::NoEffect)
        );
        assert_eq!(it.loss(600 * MS, Response::None, FLOW), None);
    }
}
