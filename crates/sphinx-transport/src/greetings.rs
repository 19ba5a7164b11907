//! A limit on the work that strangers can cause.
//!
//! A QUIC Initial packet is the dearest datagram that anybody can send us: its keys follow from the
//! packet itself, so it has to be decrypted before it can be found to be garbage. Everything else is
//! dropped for the price of a look at its first bytes.

use sphinx_proto::Nanos;

/// Initial packets that are looked at: what a thousand handshakes a second send, repetitions
/// included. Under a flood new clients get through more slowly, and sessions go on.
const PER_SECOND: u64 = 10_000;
/// As many at once after a quiet time.
const BURST: u64 = 2_000;
const INTERVAL: Nanos = 1_000_000_000 / PER_SECOND;

/// Admits Initial packets at a limited rate.
#[derive(Default)]
pub(crate) struct Greetings {
    /// When as many as possible may come at once again.
    rested_at: Nanos,
}

impl Greetings {
    /// Whether one more may be looked at.
    pub(crate) fn admit(&mut self, now: Nanos) -> bool {
        let rested_at = self.rested_at.max(now) + INTERVAL;
        let admitted = rested_at <= now + BURST * INTERVAL;
        if admitted {
            self.rested_at = rested_at;
        }
        admitted
    }
}

/// Whether a control-plane datagram begins with an Initial packet (RFC 9000 §17.2.2).
pub(crate) fn is_initial(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|byte| byte & 0xf0 == 0xc0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut greetings = Greetings::default();
        let mut admitted = |now, offered| (0..offered).filter(|_| greetings.admit(now)).count();
        assert_eq!(admitted(0, 5_000), 2_000);
        assert_eq!(admitted(100_000_000, 5_000), 1_000);
        assert_eq!(admitted(10_000_000_000, 5_000), 2_000);
    }

    #[test]
    fn other_packets_are_not_initial() {
        // Long headers of the types Initial, 0-RTT, Handshake and Retry; a short header.
        let found = [0xc3, 0xd3, 0xe3, 0xf3, 0x43].map(|byte| is_initial(&[byte]));
        assert_eq!(found, [true, false, false, false, false]);
        assert!(!is_initial(&[]));
    }
}
