//! Path MTU discovery with padded probes (compare RFC 8899).

use crate::Nanos;

/// Copies of each probe, so that random loss does not hide a larger MTU.
const COPIES: u8 = 3;

/// Finds the largest UDP payload that the path carries, upwards from a safe size.
#[derive(Debug)]
pub(crate) struct PathMtu {
    current: u16,
    candidates: Vec<u16>,
    copies_sent: u8,
    next_copy: Nanos,
}

impl PathMtu {
    /// `candidates` rise; sizes not above `base` or above `limit` are ignored.
    pub(crate) fn new(base: u16, candidates: &[u16], limit: u16) -> Self {
        let mut candidates: Vec<u16> = candidates
            .iter()
            .copied()
            .filter(|c| (base + 1..=limit).contains(c))
            .collect();
        candidates.reverse();
        Self {
            current: base,
            candidates,
            copies_sent: 0,
            next_copy: 0,
        }
    }

    /// Validated UDP payload in bytes.
    pub(crate) fn current(&self) -> u16 {
        self.current
    }

    /// Size of a probe to send now.
    pub(crate) fn poll(&mut self, now: Nanos, rtt: Nanos) -> Option<u16> {
        let size = *self.candidates.last()?;
        if now < self.next_copy {
            return None;
        }
        if self.copies_sent == COPIES {
            // All copies had time to be acknowledged: the path does not carry this size.
            self.candidates.clear();
            return None;
        }
        self.copies_sent += 1;
        let wait = if self.copies_sent == COPIES {
            3 * rtt + 50_000_000
        } else {
            rtt / 4
        };
        self.next_copy = now + wait;
        Some(size)
    }

    /// When [`PathMtu::poll`] has something to do.
    pub(crate) fn timeout(&self) -> Option<Nanos> {
        (!self.candidates.is_empty()).then_some(self.next_copy)
    }

    /// A probe of `size` was acknowledged.
    pub(crate) fn acked(&mut self, size: u16) {
        if size > self.current {
            self.current = size;
            self.candidates.retain(|c| *c > size);
            self.copies_sent = 0;
            self.next_copy = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn climbs_and_stops() {
        let mut mtu = PathMtu::new(1200, &[1200, 1472, 8972], 9000);
        assert_eq!(mtu.poll(0, 8), Some(1472));
        assert_eq!(mtu.poll(1, 8), None);
        assert_eq!(mtu.poll(2, 8), Some(1472));
        mtu.acked(1472);
        assert_eq!((mtu.current(), mtu.poll(3, 8)), (1472, Some(8972)));
        mtu.acked(1472);
        let mut now = 3;
        let mut copies = 1;
        while let Some(at) = mtu.timeout() {
            now = now.max(at);
            copies += usize::from(mtu.poll(now, 8).is_some());
        }
        assert_eq!((mtu.current(), copies), (1472, 3));
    }
}
