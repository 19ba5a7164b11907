//! Somebody in the same queue who does not yield to it.
//!
//! A queue that all of ours would have emptied, and that stands all the same, is that of a flow which heeds losses only, as CUBIC does, or
//! not even these, as BBR does. Beside it one that yields to queues gets nothing. So only losses count then, and the rate grows as CUBIC's does
//! ([`super::sharing`]).
//!
//! BBR empties the queue every ten seconds, to see the round trip, and fills it again at once. Otherwise it sends a little more than there is room for, and loses the
//! same few packets in a hundred whatever others do. Who has less than half of the link beside such a one does not heed losses at all. Crowds
//! of ours must not do so: they lose more, or have few packets under way each, and a queue that they keep full does not go and come back. Nor does one of theirs
//! go every ten seconds: who has seen that twice knows whom it meets, and asks for less.

use std::ops::Range;

use super::super::sampler::Sample;
use super::super::{Nanos, SEC, Time};
use super::meter::Part;

/// A queue that stands for so long is somebody's who does not yield; …
const STANDS: Nanos = 3 * SEC;
/// … for so many round trips, if somebody like that has been there no longer ago than this.
const STANDS_ROUNDS: Nanos = 8;
const REMEMBERED: Nanos = 12 * SEC;
/// BBR empties the queue when it has not seen the smallest round trip for ten seconds, and takes a few round trips for that.
const BBR_PERIOD: Range<Nanos> = 10 * SEC..11 * SEC;
/// The mean loss is that of so long.
const LOSS_OVER: Nanos = 2 * SEC;
/// Within this it may be due to one who heeds no losses, …
const LOSS: Range<f64> = 0.01..0.05;
/// … and within this beside one who is known for that.
const LOSS_BY_BBR: Range<f64> = 0.0..0.1;
/// A part of the link that is enough, …
const ENOUGH: f64 = 0.5;
/// … as so many readings say, without which it is not known.
const READINGS: usize = 4;
/// Packets that a flow has under way at least, one that does not heed losses beside somebody unknown.
const PACKETS: f64 = 25.0;

/// Whether somebody does not yield.
#[derive(Debug, Default)]
pub(super) struct Rival {
    is_there: bool,
    /// When it was there last.
    met_at: Option<Time>,
    /// When it came back after it had been away.
    back_at: Option<Time>,
    /// When it went away last, and for how long it had not until then.
    went_at: Option<Time>,
    interval: Nanos,
    /// Mean loss while it is there.
    loss: f64,
    sampled_at: Time,
}

impl Rival {
    pub(super) fn is_there(&self) -> bool {
        self.is_there
    }

    /// Whether it goes away as BBR does.
    pub(super) fn is_bbr(&self) -> bool {
        BBR_PERIOD.contains(&self.interval)
    }

    /// The queue is gone.
    pub(super) fn note_gone(&mut self, now: Time) {
        if self.is_there {
            self.interval = self.went_at.map_or(0, |at| now.saturating_sub(at));
            self.went_at = Some(now);
        }
        self.is_there = false;
    }

    /// There has been a queue for the time `stood`; `rtt` is the round trip with it.
    pub(super) fn note_queue(&mut self, now: Time, stood: Nanos, rtt: Nanos) {
        let is_known = (self.met_at).is_some_and(|at| now.saturating_sub(at) < REMEMBERED);
        let stands = match is_known {
            true => STANDS.min(STANDS_ROUNDS * rtt),
            false => STANDS,
        };
        if !self.is_there && stood > stands {
            self.is_there = true;
            self.back_at = is_known.then_some(now);
            if !is_known {
                self.loss = 0.0;
            }
        }
        if self.is_there {
            self.met_at = Some(now);
        }
    }

    /// A sample of what this flow has sent.
    pub(super) fn on_sample(&mut self, s: &Sample, now: Time) {
        let span = now.saturating_sub(self.sampled_at).min(SEC);
        self.sampled_at = now;
        if self.is_there {
            self.loss += (s.loss() - self.loss) * span as f64 / LOSS_OVER as f64;
        }
    }

    /// Whether losses are not to be heeded by a flow which has that part of the link and so many packets under way.
    pub(super) fn is_to_be_endured(&self, now: Time, part: &Part, packets: f64) -> bool {
        let is_back = (self.back_at).is_some_and(|at| now.saturating_sub(at) < REMEMBERED);
        let is_known = part.readings >= READINGS;
        let may_be = match self.is_bbr() {
            true => {
                let has_enough = is_known && part.mean - part.error > ENOUGH;
                LOSS_BY_BBR.contains(&self.loss) && !has_enough
            }
            false => {
                let has_enough = is_known && part.mean > ENOUGH;
                let may_be_bbr = self.interval == 0;
                may_be_bbr && LOSS.contains(&self.loss) && !has_enough && packets >= PACKETS
            }
        };
        self.is_there && is_back && may_be
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::MS;
    use crate::cc::bbr::Phase;
    use crate::cc::sampler::Run;
    use crate::time::time;

    const RTT: Nanos = 80 * MS;

    fn lossy(lost: u64) -> Sample {
        Sample {
            run: Run {
                id: 0,
                phase: Phase::Cruise,
            },
            packets: 100,
            packets_lost: lost,
            delivered_bytes: (100 - lost) * 1500,
            lost_bytes: lost * 1500,
            send_interval: RTT,
            recv_interval: RTT,
            jitter: 0,
            app_limited: false,
            window_full: true,
        }
    }

    fn part(mean: f64) -> Part {
        Part {
            mean,
            error: 0.02,
            readings: READINGS,
        }
    }

    #[test]
    fn who_comes_back_is_known_at_once() {
        let mut rival = Rival::default();
        rival.note_queue(time(10 * SEC), 2 * SEC, RTT);
        assert!(!rival.is_there());
        rival.note_queue(time(12 * SEC), 4 * SEC, RTT);
        assert!(rival.is_there());
        rival.note_gone(time(12 * SEC));
        rival.note_queue(time(13 * SEC), 600 * MS, RTT);
        assert!(!rival.is_there());
        rival.note_queue(time(13 * SEC), 700 * MS, RTT);
        assert!(rival.is_there());
        // Not after long.
        rival.note_gone(time(14 * SEC));
        rival.note_queue(time(30 * SEC), SEC, RTT);
        assert!(!rival.is_there());
    }

    #[test]
    fn steady_losses_of_one_who_comes_back_are_endured_up_to_half_of_the_link() {
        let end = time(19 * SEC);
        let after = |lost: u64| {
            let mut rival = Rival::default();
            rival.note_queue(time(10 * SEC), 4 * SEC, RTT);
            rival.note_gone(time(10 * SEC));
            rival.note_queue(time(11 * SEC), SEC, RTT);
            for round in 0..100 {
                rival.on_sample(&lossy(lost), time(11 * SEC + round * RTT));
            }
            rival
        };
        assert!(after(3).is_to_be_endured(end, &part(0.2), 40.0));
        assert!(!after(3).is_to_be_endured(end, &part(0.6), 40.0));
        assert!(!after(3).is_to_be_endured(end, &part(0.2), 10.0));
        assert!(!after(0).is_to_be_endured(end, &part(0.2), 40.0));
        assert!(!after(10).is_to_be_endured(end, &part(0.2), 40.0));
        // BBR would have been away again.
        assert!(!after(3).is_to_be_endured(time(24 * SEC), &part(0.2), 40.0));
    }

    #[test]
    fn who_goes_every_ten_seconds_is_known() {
        let after = |interval: Nanos| {
            let mut rival = Rival::default();
            let mut now = time(10 * SEC);
            for _ in 0..3 {
                rival.note_queue(now, 4 * SEC, RTT);
                rival.note_gone(now + SEC / 2);
                // What goes on going is not one more.
                rival.note_gone(now + SEC);
                now += interval;
            }
            rival.note_queue(now, 4 * SEC, RTT);
            for round in 0..100 {
                rival.on_sample(&lossy(7), now + round * RTT);
            }
            (rival.is_bbr(), rival, now + 8 * SEC)
        };
        assert!(!after(3 * SEC).0);
        let (is_bbr, rival, now) = after(10 * SEC + 300 * MS);
        assert!(is_bbr);
        // More losses, fewer packets, and a part that may be less than half.
        assert!(rival.is_to_be_endured(now, &part(0.51), 10.0));
        assert!(!rival.is_to_be_endured(now, &part(0.6), 10.0));
    }
}
