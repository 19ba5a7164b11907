//! Round trip and queueing delay of one path.

use super::{AckSummary, MS, Nanos, SEC};

/// A minimum is believed for this long (draft-ietf-ccwg-bbr, MinRTTFilterLen), or for
/// [`WINDOW_ROUNDS`] round trips if that is longer.
const WINDOW: Nanos = 10 * SEC;
const WINDOW_ROUNDS: Nanos = 100;
/// Readings whose minimum is the present queueing delay: one late packet is no queue.
const RECENT: usize = 3;

/// Minimum over the last one to two windows.
#[derive(Clone, Copy, Debug, Default)]
struct RotatingMin {
    current: Option<i64>,
    previous: Option<i64>,
    rotated_at: Nanos,
}

impl RotatingMin {
    fn update(&mut self, now: Nanos, window: Nanos, value: i64) -> i64 {
        if now.saturating_sub(self.rotated_at) > window {
            self.previous = self.current.take();
            self.rotated_at = now;
        }
        let current = self.current.map_or(value, |c| c.min(value));
        self.current = Some(current);
        self.previous.map_or(current, |p| p.min(current))
    }
}

/// Tracks the smallest round trip and how far packets are above it now.
#[derive(Debug, Default)]
pub(super) struct PathDelay {
    min_rtt: Option<Nanos>,
    /// When a round trip close to the minimum was last seen.
    confirmed_at: Nanos,
    smoothed_rtt: f64,
    deviation: f64,
    base: RotatingMin,
    /// Latest readings of the queueing delay.
    recent: [Nanos; RECENT],
    latest: Nanos,
    next: usize,
}

impl PathDelay {
    /// Smallest round trip believed in.
    pub(super) fn min_rtt(&self) -> Option<Nanos> {
        self.min_rtt
    }

    /// Mean deviation of the round trip, as in RFC 9002, section 5.3.
    pub(super) fn deviation(&self) -> Nanos {
        self.deviation as Nanos
    }

    /// Present queueing delay: the smallest of the last few readings.
    pub(super) fn queue(&self) -> Nanos {
        self.recent.iter().copied().min().unwrap_or(0)
    }

    /// Queueing delay of the latest reading.
    pub(super) fn latest_queue(&self) -> Nanos {
        self.latest
    }

    /// Whether the minimum has not been seen for so long that it must be measured again.
    pub(super) fn is_stale(&self, now: Nanos) -> bool {
        let rounds = self.min_rtt.unwrap_or(0).saturating_mul(WINDOW_ROUNDS);
        now.saturating_sub(self.confirmed_at) > WINDOW.max(rounds)
    }

    /// Whether a round trip close to the minimum was seen after `since`.
    pub(super) fn confirmed_since(&self, since: Nanos) -> bool {
        self.confirmed_at >= since
    }

    /// Replaces the minimum by a new measurement.
    pub(super) fn replace_min_rtt(&mut self, now: Nanos, rtt: Nanos) {
        self.min_rtt = Some(rtt);
        self.confirmed_at = now;
        self.base = RotatingMin::default();
        self.recent = [0; RECENT];
    }

    /// Takes in one SACK.
    pub(super) fn on_ack(&mut self, ack: &AckSummary<'_>) {
        let Some(rtt) = ack.rtt_sample else { return };
        let min_rtt = match self.min_rtt {
            Some(min) => min.min(rtt),
            None => {
                self.smoothed_rtt = rtt as f64;
                rtt
            }
        };
        self.min_rtt = Some(min_rtt);
        if rtt <= min_rtt.saturating_add(min_rtt / 8).saturating_add(MS / 2) {
            self.confirmed_at = ack.now;
        }
        let error = rtt as f64 - self.smoothed_rtt;
        self.smoothed_rtt += error / 8.0;
        self.deviation += (error.abs() - self.deviation) / 4.0;

        // The one-way delay is free of reverse-path queues but suffers from clock steps and drift;
        // the round trip the other way round. A forward queue shows in both.
        let mut queue = rtt.saturating_sub(min_rtt);
        if let Some(arrival) = ack.arrival
            && let Some(packet) = ack.acked.iter().find(|p| p.pn == arrival.pn)
        {
            let one_way = arrival.received_at.wrapping_sub(packet.sent_at) as i64;
            let base = self.base.update(ack.now, WINDOW, one_way);
            queue = queue.min(one_way.saturating_sub(base).max(0) as Nanos);
        }
        self.latest = queue;
        self.recent[self.next] = queue;
        self.next = (self.next + 1) % RECENT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::{Arrival, PacketInfo};

    fn feed(delay: &mut PathDelay, now: Nanos, rtt: Nanos, received_at: Nanos) {
        let pn = now;
        let sent_at = now - rtt;
        delay.on_ack(&AckSummary {
            now,
            acked: &[PacketInfo {
                pn,
                sent_at,
                ip_bytes: 1500,
            }],
            lost: &[],
            rtt_sample: Some(rtt),
            srtt: rtt,
            arrival: Some(Arrival { pn, received_at }),
            ce_marked: 0,
            ecn_capable: false,
            bytes_in_flight: 0,
        });
    }

    #[test]
    fn a_queue_shows_in_both_delays() {
        let mut delay = PathDelay::default();
        for i in 1..10 {
            feed(&mut delay, i * SEC, 10 * MS, i * SEC - 5 * MS);
        }
        assert_eq!(delay.queue(), 0);
        // The receiver's clock steps by an hour: the round trip knows better.
        feed(&mut delay, 10 * SEC, 10 * MS, 3610 * SEC);
        assert_eq!(delay.latest_queue(), 0);
        // A queue on the way back: the one-way delay knows better.
        feed(&mut delay, 11 * SEC, 30 * MS, 11 * SEC - 25 * MS);
        assert_eq!(delay.latest_queue(), 0);
        // A queue on the way there.
        for i in 12..15 {
            feed(&mut delay, i * SEC, 30 * MS, i * SEC - 5 * MS);
        }
        assert_eq!(delay.queue(), 20 * MS);
        assert_eq!(delay.min_rtt(), Some(10 * MS));
    }
}
