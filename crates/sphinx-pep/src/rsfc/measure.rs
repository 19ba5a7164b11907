//! What is measured of an upload: what its packets wait, how fast they come, and the shortest round trip (§2).

use crate::{MS, Time, delay::Delay};

/// The shortest round trip is the minimum of the last one to two periods of this length.
const RTT_WINDOW_NS: Time = 30_000 * MS;
/// The rate is measured over a round trip, and over so long at least.
const RATE_NS_MIN: Time = 100 * MS;
/// How many of the latest packets are looked at: the one among them that waited least counts.
const LATELY: usize = 3;
/// Round trips that seem longer are not counted: what they were measured of was lost.
const RTT_NS_MAX: Time = 10_000 * MS;
/// Where every packet has waited so long, the link was never idle, and what came is what it carries.
const BUSY_NS: Time = 5 * MS;

/// A minimum of the last while.
#[derive(Debug)]
struct Shortest {
    buckets: [Time; 2],
    since: Time,
}

impl Default for Shortest {
    fn default() -> Shortest {
        Shortest {
            buckets: [Time::MAX; 2],
            since: 0,
        }
    }
}

impl Shortest {
    fn add(&mut self, now: Time, sample: Time) {
        if now.saturating_sub(self.since) > RTT_WINDOW_NS {
            self.buckets = [Time::MAX, self.buckets[0]];
            self.since = now;
        }
        self.buckets[0] = self.buckets[0].min(sample);
    }

    fn get(&self) -> Option<Time> {
        let least = self.buckets[0].min(self.buckets[1]);
        (least < Time::MAX).then_some(least)
    }
}

/// What is measured of one upload.
#[derive(Debug, Default)]
pub(super) struct Measure {
    delay: Delay,
    /// What the last packets have waited: a single one that was late met no queue.
    lately: [Option<Time>; LATELY],
    /// The shortest delay that was given up last, or that is watched.
    given_up: Option<i64>,
    /// From an acknowledgement here to what answers it, where nothing waits, and the timestamp that is waited for.
    beyond: Shortest,
    asked: Option<(u32, Time)>,
    last: Option<Time>,
    /// The last two such times: a single one that is longer is of a sender that had nothing to send.
    recent: [Option<Time>; 2],
    /// From data here to its acknowledgement: the rest of the way.
    here: Shortest,
    passed: Option<(u64, Time)>,
    rate: u64,
    /// What the link carries of it: the rate while packets wait, which others of the host share.
    link: u64,
    /// The shortest time that a packet of this period has waited.
    idlest: Option<Time>,
    flight_max: u64,
    bytes: u64,
    since: Option<Time>,
}

impl Measure {
    pub(super) fn set_rtt(&mut self, now: Time, rtt: Time) {
        self.beyond.add(now, rtt);
        self.last = Some(rtt);
        self.here.add(now, 0);
    }

    /// The shortest time that one of the last packets has waited, in nanoseconds.
    pub(super) fn waited(&self) -> Option<Time> {
        let known = self.lately.iter().flatten().min();
        known.copied()
    }

    /// Whether nobody knows what packets wait, for the unit of their timestamps.
    pub(super) fn has_other_unit(&self) -> bool {
        self.delay.has_other_unit()
    }

    /// What the last packet has waited, and the last few at least.
    pub(super) fn waits(&self) -> (Time, Time) {
        (self.lately[0].unwrap_or(0), self.waited().unwrap_or(0))
    }

    /// Rate of the upload in bytes per second.
    pub(super) fn rate(&self) -> u64 {
        self.rate
    }

    /// Bytes per second that come as long as packets wait: less than that is for want of a window.
    pub(super) fn link_rate(&self) -> u64 {
        self.link
    }

    /// The most bytes that have come in a round trip.
    pub(super) fn flight_max(&self) -> u64 {
        self.flight_max
    }

    /// The shortest round trip, in nanoseconds.
    pub(super) fn rtt_min(&self) -> Option<Time> {
        Some(self.beyond.get()? + self.here.get()?)
    }

    /// By how much a round trip is longer at present than the shortest one, apart from what packets wait on their way here: answers wait too, behind a
    /// download for example. A sixteenth of the shortest one is left out: a queue in front of the link of which nobody knows must not count as
    /// such, or it would never end.
    pub(super) fn longer(&self) -> Time {
        let [Some(first), Some(second)] = self.recent else {
            return 0;
        };
        let shortest = self.beyond.get().unwrap_or(Time::MAX);
        first
            .min(second)
            .saturating_sub(shortest)
            .saturating_sub(shortest / 16)
    }

    /// The last round trip, with what was waited.
    pub(super) fn rtt(&self) -> Option<Time> {
        Some(self.last? + self.here.get()?)
    }

    /// The way has become longer than it was: what was shortest is none any more.
    pub(super) fn forget(&mut self) {
        self.given_up = self.delay.forget();
        self.beyond = Shortest::default();
        self.recent = [None; 2];
        self.lately = [None; LATELY];
    }

    /// See [`fallen`](Measure::fallen).
    pub(super) fn watch(&mut self) {
        self.given_up = self.delay.shortest();
    }

    /// By how much the way is shorter than it seemed when it was watched.
    pub(super) fn fallen(&self) -> Time {
        let fallen = self.delay.shortest().zip(self.given_up);
        let fallen = fallen.map_or(0, |(now, then)| then.saturating_sub(now));
        Time::try_from(fallen).unwrap_or(0)
    }

    /// By how much the way is longer than what was given up.
    pub(super) fn risen(&self) -> Time {
        let risen = self.delay.shortest().zip(self.given_up);
        let risen = risen.map_or(0, |(now, then)| now.saturating_sub(then));
        Time::try_from(risen).unwrap_or(0)
    }

    /// What the last packets have waited, they have not: the way has become longer by that.
    pub(super) fn rebase(&mut self) {
        self.delay.rebase(self.waited().unwrap_or(0));
        self.beyond = Shortest::default();
        self.recent = [None; 2];
        self.lately = [None; LATELY];
    }

    /// Packets wait longer than it seems, by so much. If that is more than a quarter of the round trip, the first of them met a queue already.
    pub(super) fn expect(&mut self, more: Time, rtt_min: Time) {
        if more > rtt_min / 4 {
            self.delay.shorten(more);
            for waited in self.lately.iter_mut().flatten() {
                *waited = waited.saturating_add(more);
            }
        }
    }

    /// A queue stands: no minimum is given up for being old.
    pub(super) fn hold(&mut self, now: Time) {
        self.beyond.since = now;
    }

    pub(super) fn data(&mut self, now: Time, (sent, echo): (u32, u32), payload: usize, end: u64) {
        let waited = self.delay.see(now, sent);
        if let Some(waited) = waited {
            self.lately.rotate_right(1);
            self.lately[0] = Some(waited);
        } else if self.has_other_unit() {
            self.lately = [None; LATELY];
        }
        if !self.delay.has_unit() {
            // It was against another packet than what is shortest from now on.
            self.given_up = None;
        }
        let answered = self
            .asked
            .take_if(|(asked, _)| echo.wrapping_sub(*asked) as i32 >= 0);
        if let Some((_, at)) = answered {
            let sample = now.saturating_sub(at);
            if sample < RTT_NS_MAX {
                // Without what the packet has waited: where a queue never ends, no sample is without it.
                let without = sample.saturating_sub(waited.unwrap_or(0));
                self.beyond.add(now, without);
                self.recent = [Some(without), self.recent[0]];
                self.last = Some(sample);
            }
        }
        if payload == 0 {
            return;
        }
        self.passed.get_or_insert((end, now));
        let since = *self.since.get_or_insert(now);
        self.bytes += payload as u64;
        let waited = waited.unwrap_or(0);
        let idlest = self.idlest.map_or(waited, |idlest| idlest.min(waited));
        self.idlest = Some(idlest);
        let elapsed = now.saturating_sub(since);
        let period = self.rtt_min().unwrap_or(0).max(RATE_NS_MIN);
        if elapsed >= period {
            let rate = u128::from(self.bytes) * 1_000_000_000 / u128::from(elapsed);
            let rate = u64::try_from(rate).unwrap_or(u64::MAX / 4);
            let flight = u128::from(rate) * u128::from(self.rtt().unwrap_or(0)) / 1_000_000_000;
            let flight = u64::try_from(flight).unwrap_or(u64::MAX);
            self.flight_max = self.flight_max.max(flight.min(u64::MAX / 8));
            let with = |before: u64| match before {
                0 => rate,
                before => before.midpoint(rate),
            };
            self.rate = with(self.rate);
            if idlest >= BUSY_NS || rate > self.link {
                self.link = with(self.link);
            }
            (self.bytes, self.since, self.idlest) = (0, Some(now), None);
        }
    }

    pub(super) fn acknowledgment(&mut self, now: Time, sent: u32, position: u64) {
        let stale = |it: &(u32, Time)| now.saturating_sub(it.1) >= RTT_NS_MAX;
        if self.asked.is_none_or(|it| stale(&it)) {
            self.asked = Some((sent, now));
        }
        if let Some((_, at)) = self.passed.take_if(|(end, _)| *end <= position) {
            self.here.add(now, now.saturating_sub(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By how much round trips are longer than 64 ms, if the last two took so long.
    fn longer(milliseconds: [Time; 2]) -> Time {
        let mut measure = Measure::default();
        measure.set_rtt(0, 64 * MS);
        let mut now = 1000 * MS;
        for (sent, round) in milliseconds.into_iter().enumerate() {
            measure.acknowledgment(now, sent as u32, 0);
            now += round * MS;
            measure.data(now, (7, sent as u32), 0, 0);
        }
        measure.longer() / MS
    }

    #[test]
    fn answers_wait_where_two_round_trips_are_longer_by_more_than_a_sixteenth() {
        assert_eq!(longer([68, 68]), 0);
        assert_eq!(longer([84, 100]), 16);
        assert_eq!(longer([100, 64]), 0);
    }
}
