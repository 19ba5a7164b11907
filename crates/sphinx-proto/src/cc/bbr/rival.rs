//! Somebody in the same queue who does not yield to it.
//!
//! A queue that all of ours would have emptied, and that stands all the same, is that of a flow which heeds losses only, as CUBIC does, or
//! not even these, as BBR does. Beside it one that yields to queues gets nothing. So only losses count then, and the rate grows as CUBIC's does
//! ([`super::sharing`]).
//!
//! BBR empties the queue every ten seconds, to see the round trip, and fills it again at once. Otherwise it sends a little more than there is room for, and loses the
//! same few packets in a hundred whatever others do. Who has less than half of the link beside such a one does not heed losses at all. Crowds
//! of ours must not do so. They empty a queue for about a round trip, and BBR for two tenths of a second longer; their queues stand for any time, and BBR's for no
//! more than those ten seconds.

use std::ops::Range;

use super::super::sampler::Sample;
use super::super::{MS, Nanos, SEC, Time};
use super::meter::Part;

/// A queue that stands for so long is somebody's who does not yield; …
const STANDS: Nanos = 3 * SEC;
/// … for so many round trips, if somebody like that has been there no longer ago than this.
const STANDS_ROUNDS: Nanos = 8;
const REMEMBERED: Nanos = 12 * SEC;
/// BBR empties the queue when it has not seen the smallest round trip for ten seconds (draft-cardwell-iccrg-bbr-congestion-control-00, section 4.3.5; of Linux,
/// `bbr_min_rtt_win_sec`), …
const BBR_PERIOD: Range<Nanos> = 10 * SEC..11 * SEC;
/// … or a little sooner where it saw that before the queue was full.
const BBR_PERIOD_SEEN: Range<Nanos> = 9 * SEC..11 * SEC;
/// Who comes to BBR's queue has seen less of its ten seconds, but this to be sure.
const BBR_STANDS: Range<Nanos> = 4 * SEC..11 * SEC;
/// It stays away for 200 ms, or a round trip, and the queue goes and comes back within one more. Of the smallest round trips at least one, and at most two, belong to
/// that.
const BBR_AWAY: Range<Nanos> = 150 * MS..300 * MS;
/// After so long its queue is back to stay. One that still comes and goes is that of a crowd of ours, which becomes equal.
const BBR_BACK: Nanos = 1500 * MS;
/// It is still BBR if it has not been away like that for so long.
const BBR_REMEMBERED: Nanos = 25 * SEC;
/// Span over which the mean loss is taken, …
const LOSS_OVER: Nanos = 2 * SEC;
/// … and the highest mean loss that is endured.
const LOSS_MOST: f64 = 0.1;
/// A part of the link that is enough, …
const ENOUGH: f64 = 0.5;
/// … as so many readings say, without which it is not known.
const READINGS: usize = 4;
/// As long as less than this is known, by so many readings, rates grow faster.
const FEW: f64 = 0.4;
const READINGS_OF_FEW: usize = 2;

/// A time without the queue.
#[derive(Clone, Copy, Debug)]
struct Absence {
    began: Time,
    /// Time since the absence before; 0 if none is known.
    interval: Nanos,
    /// How long the queue had stood before the absence.
    stood: Nanos,
    has_ended: bool,
}

/// Detects flows that do not yield, and whether they run BBR.
#[derive(Debug, Default)]
pub(super) struct Rival {
    is_there: bool,
    /// When it was there last, and for how long its queue had stood then.
    met_at: Option<Time>,
    stood: Nanos,
    absence: Option<Absence>,
    /// When the rival was last known to run BBR.
    bbr_at: Option<Time>,
    /// Mean loss rate while there is a rival.
    loss: f64,
    sampled_at: Time,
}

impl Rival {
    pub(super) fn is_there(&self) -> bool {
        self.is_there
    }

    /// Whether the rival leaves the queue empty from time to time as BBR does.
    pub(super) fn is_bbr(&self) -> bool {
        match (self.bbr_at, self.met_at) {
            (Some(known), Some(met)) => met.saturating_sub(known) < BBR_REMEMBERED,
            _ => false,
        }
    }

    /// The queue has gone: an absence of the rival may begin.
    pub(super) fn note_gone(&mut self, now: Time) {
        // A queue that has stood for less belongs to the absence before it.
        if self.is_there && self.stood >= STANDS {
            self.absence = Some(Absence {
                began: now,
                interval: (self.absence).map_or(0, |last| now.saturating_sub(last.began)),
                stood: self.stood,
                has_ended: false,
            });
        } else if (self.absence).is_some_and(|absence| now.saturating_sub(absence.began) > BBR_BACK)
        {
            self.bbr_at = None;
        }
        self.is_there = false;
    }

    /// There has been a queue for the time `stood`; `rtt` is the round trip with it, `rtt_min` without.
    pub(super) fn note_queue(&mut self, now: Time, stood: Nanos, (rtt, rtt_min): (Nanos, Nanos)) {
        let is_known = (self.met_at).is_some_and(|at| now.saturating_sub(at) < REMEMBERED);
        let stands = match is_known {
            true => STANDS.min(STANDS_ROUNDS * rtt),
            false => STANDS,
        };
        if !self.is_there && stood > stands {
            self.is_there = true;
            if !is_known {
                self.loss = 0.0;
            }
            let ended = (self.absence.as_mut()).filter(|absence| !absence.has_ended);
            if let Some(absence) = ended {
                absence.has_ended = true;
                let absence = *absence;
                let lasted = now.saturating_sub(absence.began).saturating_sub(stood);
                self.judge(now, absence, lasted, rtt_min);
            }
        }
        if self.is_there {
            self.met_at = Some(now);
            self.stood = stood;
        }
    }

    /// The queue is back: decides by the time of absence whether the rival runs BBR.
    fn judge(&mut self, now: Time, absence: Absence, lasted: Nanos, rtt_min: Nanos) {
        let least = BBR_AWAY.start + rtt_min;
        let most = BBR_AWAY.end + 2 * rtt_min;
        let is_like_bbr = (least..most).contains(&lasted)
            && BBR_STANDS.contains(&absence.stood)
            && (absence.interval == 0 || BBR_PERIOD_SEEN.contains(&absence.interval));
        if is_like_bbr || BBR_PERIOD.contains(&absence.interval) {
            self.bbr_at = Some(now);
        } else if lasted < least {
            self.bbr_at = None;
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

    /// Whether losses are not to be heeded by a flow which has that part of the link.
    pub(super) fn is_to_be_endured(&self, part: &Part) -> bool {
        let has_enough = part.readings >= READINGS && part.mean - part.error > ENOUGH;
        self.is_there && self.is_bbr() && self.loss < LOSS_MOST && !has_enough
    }

    /// Whether a flow which has that part of the link has far less than its own.
    pub(super) fn leaves_little(&self, part: &Part) -> bool {
        let has_more = part.readings >= READINGS_OF_FEW && part.mean >= FEW;
        self.is_to_be_endured(part) && !has_more
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
    const RTT_MIN: Nanos = 40 * MS;

    fn lossy(lost: u64) -> Sample {
        Sample {
            run: Run::new(0, Phase::Cruise),
            packets: 100,
            packets_lost: lost,
            delivered_bytes: (100 - lost) * 1500,
            lost_bytes: lost * 1500,
            send_interval: RTT,
            recv_interval: RTT,
            jitter: 0,
            app_limited: false,
            is_late: false,
            window_full: true,
        }
    }

    fn part(mean: f64) -> Part {
        Part {
            rate: 1e6,
            mean,
            error: 0.02,
            readings: READINGS,
        }
    }

    #[test]
    fn who_comes_back_is_known_at_once() {
        let mut rival = Rival::default();
        rival.note_queue(time(10 * SEC), 2 * SEC, (RTT, RTT_MIN));
        assert!(!rival.is_there());
        rival.note_queue(time(12 * SEC), 4 * SEC, (RTT, RTT_MIN));
        assert!(rival.is_there());
        rival.note_gone(time(12 * SEC));
        rival.note_queue(time(13 * SEC), 600 * MS, (RTT, RTT_MIN));
        assert!(!rival.is_there());
        rival.note_queue(time(13 * SEC), 700 * MS, (RTT, RTT_MIN));
        assert!(rival.is_there());
        // A queue that comes back after a long time tells of no rival.
        rival.note_gone(time(14 * SEC));
        rival.note_queue(time(30 * SEC), SEC, (RTT, RTT_MIN));
        assert!(!rival.is_there());
    }

    /// A queue that has stood for `stood` at the time `now`, goes away for `away`, and comes back.
    fn goes_and_comes(rival: &mut Rival, now: Time, stood: Nanos, away: Nanos) -> Time {
        rival.note_queue(now, stood, (RTT, RTT_MIN));
        rival.note_gone(now);
        rival.note_gone(now + away);
        let back = now + away + SEC;
        rival.note_queue(back, SEC, (RTT, RTT_MIN));
        back
    }

    fn loses(rival: &mut Rival, now: Time, lost: u64) {
        for round in 0..100 {
            rival.on_sample(&lossy(lost), now + round * RTT);
        }
    }

    #[test]
    fn bbr_is_known_by_the_first_time_that_it_is_away() {
        let is_bbr = |stood, away| {
            let mut rival = Rival::default();
            goes_and_comes(&mut rival, time(20 * SEC), stood, away);
            rival.is_bbr()
        };
        assert!(is_bbr(10 * SEC, 240 * MS));
        assert!(is_bbr(5 * SEC, 200 * MS));
        // Crowds of ours are away for less, and stay for any time.
        assert!(!is_bbr(10 * SEC, 100 * MS));
        assert!(!is_bbr(3 * SEC + MS, 240 * MS));
        assert!(!is_bbr(15 * SEC, 240 * MS));
        assert!(!is_bbr(10 * SEC, SEC));
    }

    #[test]
    fn whoever_is_away_at_other_times_is_not_bbr() {
        let after = |interval: Nanos, away: Nanos| {
            let mut rival = Rival::default();
            goes_and_comes(&mut rival, time(20 * SEC), 5 * SEC, 240 * MS);
            let again = time(20 * SEC) + interval;
            goes_and_comes(&mut rival, again, 5 * SEC, away);
            rival.is_bbr()
        };
        assert!(after(10 * SEC + 300 * MS, 240 * MS));
        // The queue of this flow may hide a part of it, or last longer.
        assert!(after(10 * SEC + 300 * MS, 100 * MS));
        assert!(after(7 * SEC, SEC));
        assert!(!after(7 * SEC, 100 * MS));
    }

    #[test]
    fn a_queue_that_comes_back_for_a_moment_is_of_the_same_absence() {
        let mut rival = Rival::default();
        let back = goes_and_comes(&mut rival, time(20 * SEC), 10 * SEC, 240 * MS);
        goes_and_comes(&mut rival, back + MS, SEC + MS, 20 * MS);
        assert!(rival.is_bbr());
    }

    #[test]
    fn a_queue_that_goes_on_to_come_and_go_is_not_bbrs() {
        let mut rival = Rival::default();
        let back = goes_and_comes(&mut rival, time(20 * SEC), 10 * SEC, 240 * MS);
        rival.note_gone(back + SEC);
        assert!(!rival.is_bbr());
    }

    #[test]
    fn losses_beside_bbr_are_endured_up_to_half_of_the_link() {
        let after = |lost: u64| {
            let mut rival = Rival::default();
            let back = goes_and_comes(&mut rival, time(20 * SEC), 10 * SEC, 240 * MS);
            loses(&mut rival, back, lost);
            rival
        };
        assert!(after(3).is_to_be_endured(&part(0.2)));
        assert!(after(0).is_to_be_endured(&part(0.51)));
        assert!(!after(3).is_to_be_endured(&part(0.6)));
        assert!(!after(20).is_to_be_endured(&part(0.2)));
        assert!(after(3).leaves_little(&part(0.2)));
        assert!(!after(3).leaves_little(&part(0.45)));
        let mut gone = after(3);
        gone.note_gone(time(30 * SEC));
        assert!(!gone.is_to_be_endured(&part(0.2)));
    }

    #[test]
    fn bbr_is_forgotten_if_it_is_not_away_again() {
        let mut rival = Rival::default();
        let back = goes_and_comes(&mut rival, time(20 * SEC), 10 * SEC, 240 * MS);
        rival.note_queue(back + 20 * SEC, 21 * SEC, (RTT, RTT_MIN));
        assert!(rival.is_bbr());
        rival.note_queue(back + 26 * SEC, 27 * SEC, (RTT, RTT_MIN));
        assert!(!rival.is_bbr());
    }
}
