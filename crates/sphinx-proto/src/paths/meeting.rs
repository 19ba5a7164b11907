//! Paths that meet in one bottleneck count as one there ([`Couple::Auto`]): of these, one carries what there is, and the others rest.
//!
//! What shows it is that their queues rise and fall together and by as much (RFC 8382 looks for the same, with what a receiver knows). A path that
//! rests goes on being asked. As long as its small packets wait as long as those of the path that carries, it rests; a guess that was wrong ends
//! within seconds, as its queue is gone, and a right one with the common bottleneck.

use std::cmp::Reverse;

use crate::path::Reading;
use crate::{Nanos, PathId, Time};

use super::{Bond, Couple, Lane, PathState, Paths};

/// Delays are compared by the smallest ones of such times. A queue that others share rises and falls over several round trips; jitter, or an end
/// that is late, seldom holds up everything for so long.
const BIN: Nanos = 50_000_000;
/// Bins that are kept: the latest ones.
const BINS: usize = 128;
/// Bins in which both paths must have readings before one of them may be made to rest.
const BINS_MIN: usize = 48;
/// Bins in which both must have readings since one rests, before it is decided whether that goes on.
const BINS_RESTING: usize = 24;
/// A path that rests is asked (PING) in every ASK_EVERY-th bin.
const ASK_EVERY: u64 = 2;
/// Queues that vary by less than this (standard deviation, nanoseconds) say nothing.
const VARIES: f64 = 1e6;
/// Queues that are so [alike] are one (0.8 to 1.0 were seen), and those that are less so are several (up to 0.43 where two paths probe in step).
const MEET: f64 = 0.8;
const APART: f64 = 0.4;
/// Paths that all lose more than this may do so to each other, and a queue that is always full does not vary: one of them rests on trial.
const LOSE_MUCH: f64 = 0.25;
/// Bins that a path goes on resting without enough readings, or on trial without a sign that the bottleneck is shared.
const UNKNOWN_MAX: u64 = 200;
/// Bins for which a path that rested without reason is not made to rest again; each time after, twice as many, at most SPARED_MAX (a minute).
const SPARED: u64 = 200;
const SPARED_MAX: u64 = 1200;

/// The smallest delays in one span of [`BIN`].
#[derive(Debug, Clone, Copy, Default)]
struct Bin {
    /// Which span, counted from 1 at the origin of time; 0: the bin is empty.
    index: u64,
    least: Reading,
}

/// A path's queueing delays, and the path with which it shares a bottleneck, if one has been found. Times are counted in bins.
#[derive(Debug)]
pub(super) struct Meeting {
    /// A ring: the bin with index i is at i modulo [`BINS`].
    bins: Vec<Bin>,
    /// Index of the newest bin.
    latest: u64,
    /// The path rests because it shares a bottleneck with this one, which carries the data.
    with: Option<PathId>,
    /// It rests on trial ([`LOSE_MUCH`]): no delays have shown yet that the bottleneck is shared.
    is_trial: bool,
    /// When delays last showed that it is; when the path began to rest, before that.
    sign: u64,
    /// Only bins after this one count: those since the path last began or ceased to rest.
    since: u64,
    /// The path is not made to rest before this time.
    spared_until: u64,
    /// How long it will be spared the next time that it has rested without reason.
    spared_for: u64,
}

/// Whether a path is to go on resting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Yes: both still share a bottleneck.
    Meets,
    /// No: their queues differ, or are too short to matter.
    Apart,
    /// Yes for now: there are too few readings since it rests, or it rests on trial and the queue may not have drained yet.
    Waits,
    /// No: there have been too few readings for too long.
    NoNews,
}

impl Default for Meeting {
    fn default() -> Self {
        Self {
            bins: vec![Bin::default(); BINS],
            latest: 0,
            with: None,
            is_trial: false,
            sign: 0,
            since: 0,
            spared_until: 0,
            spared_for: SPARED,
        }
    }
}

impl Meeting {
    /// The path for which this one rests, if it does.
    pub(super) fn with(&self) -> Option<PathId> {
        self.with
    }

    /// Adds a reading. Returns whether it begins a new bin.
    fn add(&mut self, now: Time, reading: Reading) -> bool {
        // About when the packet was in the queue, wherever on the path that is.
        let at = now.as_nanos().saturating_sub(reading.rtt / 2);
        let index = at / BIN + 1;
        let bin = &mut self.bins[index as usize % BINS];
        if bin.index == index {
            bin.least.rtt = bin.least.rtt.min(reading.rtt);
            bin.least.one_way = bin.least.one_way.min(reading.one_way);
        } else if bin.index < index {
            let least = reading;
            *bin = Bin { index, least };
        }
        let is_first = index > self.latest;
        self.latest = self.latest.max(index);
        is_first
    }

    /// The bins that count, oldest first: index, and the shortest queueing delay in it, nanoseconds.
    fn queues(&self) -> Vec<(u64, f64)> {
        let after = self.latest.saturating_sub(BINS as u64).max(self.since);
        let recent = || self.bins.iter().filter(|bin| bin.index > after);
        let rtt = recent().map(|bin| bin.least.rtt).min().unwrap_or(0);
        let one_way = recent().map(|bin| bin.least.one_way).min().unwrap_or(0);
        let queue = |bin: &Bin| {
            // A queue shows in both. A step of the peer's clock does not, nor does a queue on the way back.
            let one_way = bin.least.one_way.wrapping_sub(one_way) as u64;
            (bin.index, one_way.min(bin.least.rtt - rtt) as f64)
        };
        let mut queues: Vec<(u64, f64)> = recent().map(queue).collect();
        queues.sort_unstable_by_key(|(index, _)| *index);
        queues
    }

    /// The queueing delays of both paths in the bins for which both are known.
    fn pairs(&self, other: &Self) -> Vec<[f64; 2]> {
        let mut theirs = other.queues().into_iter().peekable();
        let mut pairs = Vec::with_capacity(BINS);
        for (index, queue) in self.queues() {
            while theirs.next_if(|(its, _)| *its < index).is_some() {}
            if let Some((_, its)) = theirs.next_if(|(its, _)| *its == index) {
                pairs.push([queue, its]);
            }
        }
        pairs
    }

    /// Whether the delays of two paths that both carry data show that they share a bottleneck.
    fn has_queue_of(&self, other: &Self) -> bool {
        let pairs = self.pairs(other);
        let alike = alike(&pairs, 1.0).filter(|_| pairs.len() >= BINS_MIN);
        alike.is_some_and(|alike| alike >= MEET)
    }

    /// For a path that rests: whether it still shares a bottleneck with `other`. As it sends few packets, its smallest delay may not have been seen,
    /// so that the means of the two series are not compared.
    fn judge(&self, other: &Self, now: u64) -> Verdict {
        let pairs = self.pairs(other);
        let alike = alike(&pairs, 0.0);
        let has_waited = now > self.sign + UNKNOWN_MAX;
        match alike {
            _ if pairs.len() < BINS_RESTING && has_waited => Verdict::NoNews,
            _ if pairs.len() < BINS_RESTING => Verdict::Waits,
            Some(alike) if alike >= APART => Verdict::Meets,
            // The queue that both have filled together takes a while to drain.
            None if self.is_trial && !has_waited => Verdict::Waits,
            _ => Verdict::Apart,
        }
    }

    fn rest(&mut self, with: PathId, is_trial: bool) {
        (self.with, self.is_trial) = (Some(with), is_trial);
        (self.since, self.sign) = (self.latest, self.latest);
    }

    /// The path ceases to rest. `was_wrong`: it had no reason to, so that it is spared for a while.
    fn wake(&mut self, was_wrong: bool) {
        (self.with, self.since) = (None, self.latest);
        if was_wrong {
            self.spared_until = self.latest + self.spared_for;
            self.spared_for = (2 * self.spared_for).min(SPARED_MAX);
        }
    }
}

/// How far two series are the same (Lin's concordance correlation coefficient): 1 if they are, 0 if they have nothing in common. `means`: how much it counts
/// that their means differ, 0 to 1. `None`: they hardly vary.
fn alike(pairs: &[[f64; 2]], means: f64) -> Option<f64> {
    let count = pairs.len() as f64;
    let mean = |of: &dyn Fn(&[f64; 2]) -> f64| pairs.iter().map(of).sum::<f64>() / count;
    let middle = [0, 1].map(|at| mean(&|pair| pair[at]));
    let variances = [0, 1].map(|at| mean(&|pair| (pair[at] - middle[at]).powi(2)));
    let common = mean(&|pair| (pair[0] - middle[0]) * (pair[1] - middle[1]));
    let differ = means * (middle[0] - middle[1]).powi(2);
    let most = variances[0].max(variances[1]);
    (most >= VARIES * VARIES).then(|| 2.0 * common / (variances[0] + variances[1] + differ))
}

impl Lane {
    /// The path that it meets in a bottleneck.
    fn meets(&self) -> Option<PathId> {
        self.meeting.as_ref().and_then(Meeting::with)
    }

    fn loses_much(&self) -> bool {
        self.path.monitor().plr() > LOSE_MUCH && !self.path.cc().is_starting()
    }
}

impl Paths {
    /// Whether a path that meets another one is to rest.
    fn counts_meetings(&self) -> bool {
        let is_for_rate = matches!(self.bond, Bond::Aggregate | Bond::Cheapest);
        self.couple == Couple::Auto && self.lanes.len() > 1 && is_for_rate
    }

    /// Bars the paths that share a bottleneck with a path that carries data.
    pub(super) fn bar_those_that_meet(&mut self) {
        if !self.counts_meetings() {
            return;
        }
        for index in 0..self.lanes.len() {
            let with = self.lanes[index].meets().and_then(|with| self.index(with));
            if with.is_some_and(|with| self.lanes[with].is_chosen()) {
                let barred = &mut self.lanes[index].barred;
                *barred = barred.or(Some(PathState::Met));
            }
        }
    }

    /// A path has been closed: those that rested because of it carry data again.
    pub(super) fn end_meetings(&mut self, id: PathId) {
        for lane in &mut self.lanes {
            if let Some(meeting) = &mut lane.meeting
                && meeting.with == Some(id)
            {
                meeting.wake(false);
            }
        }
    }

    /// The path at this place has a new delay reading: adds it, and with the first one of a bin asks paths that rest, or compares queues.
    pub(super) fn look_for_meetings(&mut self, now: Time, at: usize) {
        if !self.counts_meetings() {
            return;
        }
        let lane = &mut self.lanes[at];
        let Some(reading) = lane.path.take_reading() else {
            return;
        };
        let meeting = lane.meeting.get_or_insert_default();
        let (is_first, latest) = (meeting.add(now, reading), meeting.latest);
        if !is_first || !lane.is_chosen() {
            return;
        }
        if latest.is_multiple_of(ASK_EVERY) {
            let id = lane.id();
            let resting = self.lanes.iter_mut().filter(|it| it.meets() == Some(id));
            resting.for_each(|it| it.scheduler.ping());
        } else {
            self.weigh_meetings(at, latest);
        }
    }

    /// Looks which paths meet the one at this place, and whether those that rest because of it still do.
    fn weigh_meetings(&mut self, at: usize, latest: u64) {
        for other in (0..self.lanes.len()).filter(|other| *other != at) {
            let [one, its] = [&self.lanes[at], &self.lanes[other]];
            let Some((ours, theirs)) = one.meeting.as_ref().zip(its.meeting.as_ref()) else {
                continue;
            };
            if its.meets() == Some(one.id()) {
                let verdict = theirs.judge(ours, latest);
                self.confirm(other, verdict, latest);
                continue;
            }
            let is_spared = latest < ours.spared_until.max(theirs.spared_until);
            if is_spared || !one.is_chosen() || !its.is_chosen() {
                continue;
            }
            let is_seen = ours.has_queue_of(theirs);
            if is_seen || [one, its].into_iter().all(Lane::loses_much) {
                let [our_rank, its_rank] = [one, its].map(|lane| self.rank(lane));
                match our_rank < its_rank {
                    true => self.rest(at, other, !is_seen),
                    false => self.rest(other, at, !is_seen),
                }
            }
        }
    }

    /// Of paths that meet, the one with the highest rank goes on: if bytes have a price the cheaper one, else the one that carries more, so that
    /// most is left if they do not meet.
    fn rank(&self, lane: &Lane) -> (Reverse<u32>, u64) {
        let cost = match self.bond {
            Bond::Cheapest => lane.policy().cost,
            _ => 0,
        };
        (Reverse(cost), lane.path.cc().bandwidth_estimate())
    }

    /// Makes the path at place `at` rest because it shares a bottleneck with the one at place `with`; so do those that rested because of it.
    fn rest(&mut self, at: usize, with: usize, is_trial: bool) {
        let [id, with] = [at, with].map(|place| self.lanes[place].id());
        for lane in &mut self.lanes {
            let is_it = lane.id() == id;
            if let Some(meeting) = &mut lane.meeting
                && (is_it || meeting.with == Some(id))
            {
                meeting.rest(with, is_trial);
            }
        }
        self.arrange();
    }

    /// Does what the verdict on the resting path at this place says.
    fn confirm(&mut self, at: usize, verdict: Verdict, latest: u64) {
        let Some(meeting) = &mut self.lanes[at].meeting else {
            return;
        };
        match verdict {
            Verdict::Meets => (meeting.sign, meeting.is_trial) = (latest, false),
            Verdict::Apart => meeting.wake(true),
            Verdict::NoNews => meeting.wake(false),
            Verdict::Waits => {}
        }
        if meeting.with.is_none() {
            self.arrange();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::time;

    const MS: Nanos = 1_000_000;

    /// What is read at the end of the `index`th time of a path with this queue, on clocks that differ by `step`.
    fn add(meeting: &mut Meeting, index: u64, queue: Nanos, step: i64) {
        let rtt = 40 * MS + queue;
        let one_way = -7_000_000_000 + step + (rtt - 20 * MS) as i64;
        meeting.add(time(10 * BIN + index * BIN), Reading { rtt, one_way });
    }

    /// Rises and falls with this period, nanoseconds.
    fn tooth(index: u64, period: u64) -> Nanos {
        index % period * 3 * MS
    }

    #[test]
    fn one_queue_is_told_from_two() {
        let [mut one, mut same, mut other] = [(); 3].map(|()| Meeting::default());
        for index in 0..100 {
            add(&mut one, index, tooth(index, 11), 0);
            add(&mut same, index, tooth(index, 11) + index % 2 * MS, 0);
            add(&mut other, index, tooth(index, 13), 0);
            assert_eq!(
                one.has_queue_of(&same),
                index + 1 >= BINS_MIN as u64,
                "{index}"
            );
            assert!(!one.has_queue_of(&other), "{index}");
        }
    }

    #[test]
    fn a_step_of_the_peers_clock_is_no_queue() {
        let [mut one, mut other] = [(); 2].map(|()| Meeting::default());
        for index in 0..100 {
            let step = if index < 50 { 0 } else { 80_000_000 };
            add(&mut one, index, tooth(index, 11), step);
            add(&mut other, index, tooth(index, 13), step);
            assert!(!one.has_queue_of(&other), "{index}");
        }
    }

    #[test]
    fn nothing_follows_from_queues_that_hardly_vary() {
        let [mut one, mut other] = [(); 2].map(|()| Meeting::default());
        for index in 0..100 {
            add(&mut one, index, index % 3 * MS / 2, 0);
            add(&mut other, index, index % 3 * MS / 2, 0);
            assert!(!one.has_queue_of(&other), "{index}");
        }
    }

    /// What is thought of one that rests after each of so many times, in every other one of which it is asked, if it has this queue.
    fn verdicts(is_trial: bool, times: u64, queue: fn(u64) -> Nanos) -> Vec<Verdict> {
        let [mut one, mut resting] = [(); 2].map(|()| Meeting::default());
        add(&mut one, 0, 0, 0);
        add(&mut resting, 0, 0, 0);
        resting.rest(PathId::FIRST, is_trial);
        let mut verdicts = Vec::new();
        for index in 1..=times {
            add(&mut one, index, tooth(index, 11), 0);
            if index % ASK_EVERY == 0 {
                add(&mut resting, index, queue(index), 0);
            }
            verdicts.push(resting.judge(&one, one.latest));
        }
        verdicts
    }

    #[test]
    fn what_rests_is_judged_by_what_it_still_sees() {
        let enough = BINS_RESTING * ASK_EVERY as usize;
        for (queue, expected) in [
            (
                (|index| tooth(index, 11)) as fn(u64) -> Nanos,
                Verdict::Meets,
            ),
            (|index| tooth(index, 13), Verdict::Apart),
            (|_| 0, Verdict::Apart),
        ] {
            let verdicts = verdicts(false, 100, queue);
            assert!(
                verdicts[..enough - 1]
                    .iter()
                    .all(|it| *it == Verdict::Waits)
            );
            assert_eq!(verdicts[enough + 4], expected);
        }
    }

    #[test]
    fn without_news_a_path_carries_again() {
        let [mut one, mut resting] = [(); 2].map(|()| Meeting::default());
        add(&mut resting, 0, 0, 0);
        resting.rest(PathId::FIRST, false);
        for index in 1..=UNKNOWN_MAX + 1 {
            add(&mut one, index, tooth(index, 11), 0);
            let expected = match index > UNKNOWN_MAX {
                true => Verdict::NoNews,
                false => Verdict::Waits,
            };
            assert_eq!(resting.judge(&one, one.latest), expected, "{index}");
        }
    }

    #[test]
    fn a_trial_waits_for_full_queues_to_end() {
        let [mut one, mut resting] = [(); 2].map(|()| Meeting::default());
        add(&mut resting, 0, 0, 0);
        resting.rest(PathId::FIRST, true);
        for index in 1..=UNKNOWN_MAX + 1 {
            add(&mut one, index, 0, 0);
            add(&mut resting, index, 0, 0);
            let expected = match index > UNKNOWN_MAX {
                true => Verdict::Apart,
                false => Verdict::Waits,
            };
            assert_eq!(resting.judge(&one, one.latest), expected, "{index}");
        }
    }

    #[test]
    fn what_rested_without_reason_is_spared_for_longer_each_time() {
        let mut meeting = Meeting::default();
        let mut spared = Vec::new();
        for _ in 0..8 {
            meeting.rest(PathId::FIRST, false);
            meeting.wake(true);
            spared.push(meeting.spared_until);
        }
        assert_eq!(spared, [200, 400, 800, 1200, 1200, 1200, 1200, 1200]);
        meeting.rest(PathId::FIRST, false);
        meeting.wake(false);
        assert_eq!(meeting.with(), None);
        assert_eq!(meeting.spared_until, 1200, "it had its reason");
    }
}
