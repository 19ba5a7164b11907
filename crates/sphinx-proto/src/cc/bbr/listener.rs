//! The part of a link behind a channel that seems to lose much.
//!
//! Who comes to a queue that is full, and never sees it empty, takes what the queue loses for the channel's, and to what arrives of a probe
//! chance does as much as others do. So such a flow sends half as much for a thousand packets from time to time. Alone on its channel it loses the same part
//! of them. In a full queue less is lost when one sends less, by so much as the others get of what it leaves.

use super::super::sampler::Sample;
use super::super::{Nanos, SEC, Time};

/// The rate, in estimates.
pub(super) const GAIN: f64 = 0.5;
/// Packets at that rate, and at the whole one those that are remembered, and needed.
const PACKETS: f64 = 1000.0;
const REMEMBERED: f64 = 2000.0;
const NEEDED: f64 = 500.0;
/// Shortest time between two trials of the lower rate.
const EVERY: Nanos = 5 * SEC;
/// A trial says nothing if its rate was above this share of the whole one.
const GAIN_MOST: f64 = 0.8;
/// A part that somebody else has, by so many standard errors: a flow alone that sends a little more than there is room for seems to have a small one.
const PART: (f64, f64) = (0.08, 0.75);
const ERRORS: f64 = 2.0;

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Bytes, and nanoseconds.
    sent: f64,
    sent_in: f64,
    packets: f64,
    lost: f64,
}

impl Sums {
    fn add(&mut self, s: &Sample) {
        self.sent += (s.delivered_bytes + s.lost_bytes) as f64;
        self.sent_in += s.send_interval as f64;
        self.packets += s.packets as f64;
        self.lost += s.packets_lost as f64;
    }

    fn rate(&self) -> f64 {
        self.sent / self.sent_in
    }

    /// Share that has arrived.
    fn arrived(&self) -> f64 {
        1.0 - self.lost / self.packets
    }
}

/// Compares half of the rate with the whole.
#[derive(Debug, Default)]
pub(super) struct Listener {
    whole: Sums,
    half: Sums,
    is_on: bool,
    began_at: Option<Time>,
}

impl Listener {
    /// A rate below the estimate begins; `suspects`: somebody else may be in the queue. It is a half, if [`is_on`](Self::is_on) says so then.
    pub(super) fn begin(&mut self, suspects: bool, now: Time) {
        let is_early = (self.began_at).is_some_and(|at| now.saturating_sub(at) < EVERY);
        self.is_on = suspects && !is_early && self.whole.packets >= NEEDED;
        if self.is_on {
            self.half = Sums::default();
            self.began_at = Some(now);
        }
    }

    /// Whether the rate is to be halved.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// A sample of the whole rate.
    pub(super) fn on_whole(&mut self, s: &Sample) {
        self.whole.add(s);
        if self.whole.packets > REMEMBERED {
            let all = &mut self.whole;
            for sum in [
                &mut all.sent,
                &mut all.sent_in,
                &mut all.packets,
                &mut all.lost,
            ] {
                *sum /= 2.0;
            }
        }
    }

    /// A sample of half of the rate, while [it is to be that](Self::is_on). Whether it shows that others have a part.
    pub(super) fn on_half(&mut self, s: &Sample) -> bool {
        self.half.add(s);
        if self.half.packets < PACKETS {
            return false;
        }
        self.is_on = false;
        let (half, whole) = (&self.half, &self.whole);
        let gain = half.rate() / whole.rate();
        let ratio = whole.arrived() / half.arrived();
        let lost = whole.lost / whole.packets;
        let variance = lost / (1.0 - lost) * (1.0 / half.packets + 1.0 / whole.packets);
        let part = (1.0 - ratio) / (1.0 - gain);
        let error = ERRORS * ratio / (1.0 - gain) * variance.sqrt();
        gain < GAIN_MOST && part - error > PART.0 && part + error < PART.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::MS;
    use crate::cc::bbr::Phase;
    use crate::cc::sampler::Run;
    use crate::time::time;

    /// 100 packets at `rate` beside others at `others`, over a link of 100 with a channel that loses the share `loss`.
    fn sample(rate: f64, others: f64, loss: f64) -> Sample {
        let over = ((rate + others) / 100.0).max(1.0);
        let lost = 100.0 * (1.0 - (1.0 - loss) / over);
        Sample {
            run: Run::new(0, Phase::Cruise),
            packets: 100,
            packets_lost: lost as u64,
            delivered_bytes: (1500.0 * (100.0 - lost)) as u64,
            lost_bytes: (1500.0 * lost) as u64,
            send_interval: (100.0 * MS as f64 / rate) as u64,
            recv_interval: (100.0 * MS as f64 / rate * over) as u64,
            jitter: 0,
            app_limited: false,
            is_late: false,
            window_full: true,
        }
    }

    fn hears(rate: f64, others: f64, loss: f64) -> bool {
        let mut listener = Listener::default();
        for _ in 0..30 {
            listener.on_whole(&sample(rate, others, loss));
        }
        listener.begin(true, time(SEC));
        assert!(listener.is_on());
        let hears = (0..10).any(|_| listener.on_half(&sample(GAIN * rate, others, loss)));
        assert!(!listener.is_on());
        // The next trial has to wait.
        listener.begin(true, time(2 * SEC));
        assert!(!listener.is_on());
        hears
    }

    #[test]
    fn others_in_a_full_queue_are_heard() {
        for others in [80.0, 100.0, 120.0] {
            assert!(hears(40.0, others, 0.0), "{others}");
        }
        assert!(hears(40.0, 100.0, 0.1));
    }

    #[test]
    fn a_channel_that_loses_is_nobody_else() {
        for loss in [0.1, 0.3, 0.5] {
            assert!(!hears(50.0, 0.0, loss), "{loss}");
            assert!(!hears(100.0, 0.0, loss), "{loss}");
            assert!(!hears(103.0, 0.0, loss), "{loss}");
        }
    }

    #[test]
    fn too_little_to_compare_with_is_no_reason_to_send_less() {
        let mut listener = Listener::default();
        listener.on_whole(&sample(40.0, 100.0, 0.0));
        listener.begin(true, time(SEC));
        assert!(!listener.is_on());
    }
}
