//! Data packets that arrive before their session's keys.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sphinx_proto::Time;
use sphinx_proto::wire::ConnectionId;

use crate::driver::Origin;

/// Bytes held for one session.
const SESSION_BYTES_MAX: usize = 256 << 10;
/// Bytes held in all: clients that never prove anything must not cost more.
const HELD_BYTES_MAX: usize = 8 << 20;
/// Counted for every packet besides its bytes.
const PACKET_OVERHEAD: usize = 64;

/// A data packet that came early.
pub struct Held {
    /// Where the packet came from, and when.
    pub origin: Origin,
    /// Bytes of the packet.
    pub datagram: Vec<u8>,
}

/// What is held for one handshake under way.
pub struct Waiting {
    /// When the handshake began.
    pub since: Time,
    /// In the order in which they came.
    pub packets: Vec<Held>,
    bytes: usize,
}

/// The packets of all handshakes under way.
#[derive(Default)]
pub struct Holding {
    handshakes: HashMap<ConnectionId, Waiting>,
    /// Bytes of all of them, and of those that are held beside them.
    bytes: Arc<AtomicUsize>,
}

impl Holding {
    /// One that holds nothing yet, and has the limit in common with this one.
    pub fn beside(&self) -> Self {
        Self {
            handshakes: HashMap::new(),
            bytes: Arc::clone(&self.bytes),
        }
    }

    /// A handshake has begun: hold what comes for this id.
    pub fn begin(&mut self, cid: ConnectionId, now: Time) {
        self.handshakes.insert(
            cid,
            Waiting {
                since: now,
                packets: Vec::new(),
                bytes: 0,
            },
        );
    }

    /// When it began, if it is under way.
    pub fn since(&self, cid: ConnectionId) -> Option<Time> {
        self.handshakes.get(&cid).map(|waiting| waiting.since)
    }

    /// Holds a packet within the limits; whether its session is known at all.
    pub fn hold(&mut self, cid: ConnectionId, origin: Origin, datagram: &[u8]) -> bool {
        let Some(waiting) = self.handshakes.get_mut(&cid) else {
            return false;
        };
        let bytes = datagram.len() + PACKET_OVERHEAD;
        let all = self.bytes.load(Ordering::Relaxed);
        if waiting.bytes + bytes <= SESSION_BYTES_MAX && all + bytes <= HELD_BYTES_MAX {
            waiting.bytes += bytes;
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            waiting.packets.push(Held {
                origin,
                datagram: datagram.to_vec(),
            });
        }
        true
    }

    /// The handshake is over, one way or the other.
    pub fn end(&mut self, cid: ConnectionId) -> Option<Waiting> {
        let waiting = self.handshakes.remove(&cid)?;
        self.bytes.fetch_sub(waiting.bytes, Ordering::Relaxed);
        Some(waiting)
    }
}

impl Drop for Holding {
    /// What is held beside it has the room from now on.
    fn drop(&mut self) {
        let held = self.handshakes.values().map(|waiting| waiting.bytes);
        self.bytes.fetch_sub(held.sum(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use sphinx_proto::Tuple;

    use super::*;

    const ORIGIN: Origin = Origin {
        received_at: Time::ZERO,
        tuple: Tuple {
            remote: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1),
            local_ip: None,
        },
        ecn: 0,
    };

    fn cid(n: u32) -> ConnectionId {
        ConnectionId::new((u64::from(n) << 32).to_be_bytes()).expect("not zero")
    }

    #[test]
    fn only_what_a_handshake_waits_for_is_held() {
        let mut holding = Holding::default();
        assert!(!holding.hold(cid(1), ORIGIN, &[1]));
        holding.begin(cid(1), Time::from_nanos(7));
        assert!(holding.hold(cid(1), ORIGIN, &[1, 2]));
        let waiting = holding.end(cid(1)).expect("known");
        assert_eq!(waiting.since, Time::from_nanos(7));
        assert_eq!(waiting.packets.len(), 1);
        assert_eq!(waiting.packets[0].datagram, [1, 2]);
        assert!(!holding.hold(cid(1), ORIGIN, &[1]));
    }

    #[test]
    fn memory_is_bounded_and_comes_back() {
        let mut holding = Holding::default();
        let packets = |holding: &mut Holding, cid| {
            (0..300).for_each(|_| assert!(holding.hold(cid, ORIGIN, &[0; 1200])));
        };
        for n in 1..=100 {
            holding.begin(cid(n), Time::ZERO);
            packets(&mut holding, cid(n));
        }
        assert!((HELD_BYTES_MAX - 1300..=HELD_BYTES_MAX).contains(&all(&holding)));
        let first = holding.end(cid(1)).expect("known");
        assert!((SESSION_BYTES_MAX - 1300..=SESSION_BYTES_MAX).contains(&first.bytes));
        let last = holding.end(cid(100)).expect("known");
        assert_eq!(last.packets.len(), 0);
        (2..100).for_each(|n| drop(holding.end(cid(n))));
        assert_eq!(all(&holding), 0);
    }

    fn all(holding: &Holding) -> usize {
        holding.bytes.load(Ordering::Relaxed)
    }

    /// Each session that has begun before its handshake is over holds its own.
    #[test]
    fn what_is_held_apart_has_one_limit() {
        let endpoint = Holding::default();
        let mut sessions = Vec::new();
        for n in 1..=100 {
            let mut session = endpoint.beside();
            session.begin(cid(n), Time::ZERO);
            for _ in 0..300 {
                assert!(session.hold(cid(n), ORIGIN, &[0; 1200]));
            }
            sessions.push(session);
        }
        assert!((HELD_BYTES_MAX - 1300..=HELD_BYTES_MAX).contains(&all(&endpoint)));
        let waiting = sessions[99].end(cid(100)).expect("known");
        assert_eq!(waiting.packets.len(), 0);
        // One is confirmed, and others end before they are.
        let waiting = sessions[0].end(cid(1)).expect("known");
        assert!((SESSION_BYTES_MAX - 1300..=SESSION_BYTES_MAX).contains(&waiting.bytes));
        sessions.truncate(1);
        assert_eq!(all(&endpoint), 0);
    }
}
