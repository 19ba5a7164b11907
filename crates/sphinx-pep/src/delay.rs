//! How long packets of a host wait on their way, beyond what they need: by their timestamps, without a common clock.

use crate::{
    MS, Time,
    sequence::{first, nearest},
};

/// Timestamps count milliseconds or, if they are this fast, microseconds: two units, a factor of 1000 apart. A queue that grows or drains at once makes one of
/// them look like the other only for as long as hardly any time has passed on one of the two clocks.
const BETWEEN_NS: Time = 31_623;
/// Before that, the unit is not known; until then, each packet may show that it was the other one. Later only a clock that stood still would.
const UNIT_AFTER_NS: Time = 20 * MS;
const UNIT_UNTIL_NS: Time = 60_000 * MS;
/// A clock of another unit (RFC 7323 allows all up to a second) goes away from both without end. One of these two goes away by what packets wait: that is at most
/// about as much as the time for which the sender has sent, as long as its packets fill a queue, and later what the longest queue takes. So it is another one if the
/// two times differ by more than this and the shorter one.
const OTHER_NS: Time = 2_000 * MS;
/// A clock of half or twice the unit never goes away by that: it looks like a queue that fills. But no queue fills without end: the clock is compared with the time
/// here once in so long, and if it has gone away by more than this, twice running and in the same direction, it has another unit until it has not.
const COMPARED_NS: Time = 15_000 * MS;
const DRIFT_NS: i64 = 6_000 * MS as i64;
/// Clocks stand still while their host sleeps. A silence that is so long, and of which the clock knows nothing, was such a sleep, if the unit was seen to be right
/// for as long before.
const SLEEP_NS: Time = 10_000 * MS;
/// A quarter of the time after which timestamps in microseconds begin anew: after a silence of twice as long, nobody knows how often they have.
const LAP_NS: Time = (1 << 30) * 1000;
/// Clocks differ by no more than so many millionths: by as much, what is taken for the shortest delay grows with time. So it follows a clock that is too
/// slow, and a queue that never ends is lost sight of by 12 ms in a minute.
const SKEW_PPM: i64 = 200;

/// The delay of one host's packets against the shortest one.
#[derive(Debug, Default)]
pub(crate) struct Delay {
    /// When the first timestamp came, and the position of the latest one: timestamps wrap, positions do not.
    first: Option<(Time, u64)>,
    last: u64,
    /// When the last packet came.
    seen: Time,
    tick_ns: Option<i64>,
    /// By the last packet, the clock has another unit than is known here.
    is_other: bool,
    /// By the last packet, the clock may have another unit; packets that wait would make it look so too.
    is_doubtful: bool,
    /// When the clock was compared with the time here last, its position then, and by how much it had gone away from that since the time before.
    compared: Option<(Time, u64, i64)>,
    /// The clock goes away from the time here without end.
    drifts: bool,
    /// The shortest delay, in nanoseconds relative to the first packet's, and when it was seen.
    shortest: Option<(i64, Time)>,
}

impl Delay {
    /// A packet came with this timestamp: what it has waited, if that can be told.
    pub(crate) fn see(&mut self, now: Time, sent: u32) -> Option<Time> {
        if self.has_lost_count(now, sent) {
            *self = Delay::default();
        }
        self.seen = now;
        let Some((begin, start)) = self.first else {
            let start = first(sent);
            self.first = Some((now, start));
            self.last = start;
            return None;
        };
        let at = nearest(self.last, sent);
        self.last = self.last.max(at);
        let ticks = at as i64 - start as i64;
        let elapsed = now.saturating_sub(begin);
        let is_open = self.tick_ns.is_none() || elapsed < UNIT_UNTIL_NS;
        if is_open && elapsed >= UNIT_AFTER_NS && ticks > 0 {
            let is_fast = elapsed / ticks.unsigned_abs() < BETWEEN_NS;
            let tick_ns = if is_fast { 1000 } else { MS as i64 };
            if self.tick_ns.replace(tick_ns) != Some(tick_ns) {
                // The first packet's own: what seemed to be shorter by the other unit was not.
                self.shortest = Some((0, begin));
            }
        }
        let clock = ticks.saturating_mul(self.tick_ns.unwrap_or(0)).max(0) as Time;
        self.compare(now, at);
        let away = elapsed.abs_diff(clock);
        self.is_other = self.drifts || away > elapsed.min(clock) + OTHER_NS;
        self.is_doubtful = away > elapsed / 3;
        let delay = self.against_first(now, at)?;
        let known = self.shortest.map(|(shortest, at)| {
            let grown = (now.saturating_sub(at) as i64 / 1_000_000).saturating_mul(SKEW_PPM);
            shortest.saturating_add(grown)
        });
        let shortest = known.map_or(delay, |known| known.min(delay));
        if known.is_none_or(|known| delay <= known) {
            self.shortest = Some((shortest, now));
        }
        Time::try_from(delay.saturating_sub(shortest)).ok()
    }

    /// Looks whether the clock goes away from the time here without end.
    fn compare(&mut self, now: Time, at: u64) {
        let Some(((begin, start), tick_ns)) = self.first.zip(self.tick_ns) else {
            return;
        };
        let (then, from, before) = self.compared.unwrap_or((begin, start, 0));
        let elapsed = now.saturating_sub(then);
        if elapsed < COMPARED_NS {
            return;
        }
        let clock = (at as i64 - from as i64).saturating_mul(tick_ns);
        let away = (elapsed as i64).saturating_sub(clock);
        self.drifts = before.min(away) > DRIFT_NS || before.max(away) < -DRIFT_NS;
        self.compared = Some((now, at, away));
    }

    /// Whether the clock has stood still since the last packet, or has begun anew too often: what is known of it says nothing of this packet.
    fn has_lost_count(&self, now: Time, sent: u32) -> bool {
        let silence = now.saturating_sub(self.seen);
        let Some((begin, _)) = self.first.filter(|_| silence > SLEEP_NS) else {
            return false;
        };
        let ticks = nearest(self.last, sent) as i64 - self.last as i64;
        let clock = ticks.saturating_mul(self.tick_ns.unwrap_or(0)).max(0) as Time;
        // One of another unit goes on as it went before, so that it is never trusted for long.
        let is_known = !self.is_other && !self.is_doubtful;
        let is_sure = is_known && self.seen.saturating_sub(begin) >= SLEEP_NS;
        silence.abs_diff(clock) > OTHER_NS && (is_sure || silence > LAP_NS)
    }

    /// A packet's delay against the first one's.
    fn against_first(&self, now: Time, at: u64) -> Option<i64> {
        let (begin, start) = self.first?;
        let ticks = at as i64 - start as i64;
        let tick_ns = self.tick_ns.filter(|_| !self.is_other)?;
        let elapsed = now.saturating_sub(begin) as i64;
        Some(elapsed.saturating_sub(ticks.saturating_mul(tick_ns)))
    }

    /// Whether the unit is known. It is not when everything begins, perhaps anew.
    pub(crate) fn has_unit(&self) -> bool {
        self.tick_ns.is_some()
    }

    /// Whether nothing can be told, as the clock has another unit. That may be taken back: a queue that grows makes any clock look slow for a while.
    pub(crate) fn has_other_unit(&self) -> bool {
        self.is_other
    }

    /// What a packet with this timestamp has waited if it comes now, if that can be told; nothing is learned from it.
    pub(crate) fn of(&self, now: Time, sent: u32) -> Option<Time> {
        if self.has_lost_count(now, sent) {
            return None;
        }
        let delay = self.against_first(now, nearest(self.last, sent))?;
        let waited = delay.saturating_sub(self.shortest()?);
        Some(Time::try_from(waited).unwrap_or(0))
    }

    /// What was shortest is so no longer; against the first packet's, if that was known.
    pub(crate) fn forget(&mut self) -> Option<i64> {
        self.shortest.take().map(|it| it.0)
    }

    /// The shortest delay, against the first packet's.
    pub(crate) fn shortest(&self) -> Option<i64> {
        self.shortest.map(|it| it.0)
    }

    /// Adds `more` to the shortest delay.
    pub(crate) fn rebase(&mut self, more: Time) {
        if let Some((shortest, _)) = &mut self.shortest {
            *shortest = shortest.saturating_add_unsigned(more);
        }
    }

    /// The shortest delay was shorter by so much: no packet has come that did not wait.
    pub(crate) fn shorten(&mut self, less: Time) {
        if let Some((shortest, _)) = &mut self.shortest {
            *shortest = shortest.saturating_sub_unsigned(less);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link of 2 Mbit/s for ten minutes, on which packets of random lengths come at random times, with up to 5 ms of jitter: the error, in
    /// nanoseconds, of every packet, in ascending order.
    fn errors(tick: Time, start: u32, skew_ppm: i64, late: Time) -> Vec<Time> {
        let mut delay = Delay::default();
        let (mut seed, mut now, mut busy, mut arrived) = (1_u64, 0, 0, 0);
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let mut errors = Vec::new();
        while now < 600_000 * MS {
            // Busy and idle times of up to some seconds.
            let is_busy = !(now / (3_000 * MS)).is_multiple_of(3);
            now += random(if is_busy { 11 * MS } else { 30 * MS });
            busy = busy.max(now) + (1 + random(1500)) * 4000;
            let waited = busy - now;
            let clock = (now as i64 + now as i64 / 1_000_000 * skew_ppm) as u64 / tick;
            // None overtakes another one.
            arrived = arrived.max(busy + 30 * MS + random(5 * MS));
            if now < late {
                continue;
            }
            if let Some(seen) = delay.see(arrived, start.wrapping_add(clock as u32)) {
                errors.push(seen.abs_diff(waited));
            }
        }
        errors.sort_unstable();
        errors
    }

    /// The first packets of a connection may look as if the unit were the other one. When they came, and their timestamps:
    #[test]
    fn a_unit_that_seemed_to_be_the_other_one_is_not_kept() {
        // Milliseconds: the link stood still for a second after the handshake, and then let everything go at once.
        let stalled = [(950, 0), (951, 0), (951, 900), (975, 963)];
        // Microseconds: a burst stood in a queue.
        let burst = [(0, 0), (6, 100), (12, 200), (24, 300)];
        for (tick, first, way) in [(MS, stalled, 12 * MS), (1000, burst, 0)] {
            let mut delay = Delay::default();
            for (now, sent) in first {
                delay.see(now * MS, sent);
            }
            // A packet each 10 ms, in front of a queue that comes and goes each second.
            for n in 3..500_u64 {
                let sent = u64::from(first[3].1) * tick + n * 10 * MS;
                let waits = 2 * (n % 100).min(100 - n % 100) * MS;
                let seen = delay.see(sent + way + waits, (sent / tick) as u32);
                let error = seen.expect("a unit").abs_diff(waits);
                assert!(
                    n < 200 || error <= 5 * MS,
                    "{tick}, {n}: {seen:?} for {waits}"
                );
            }
        }
    }

    #[test]
    fn a_clock_of_another_unit_tells_nothing() {
        // Nanoseconds of a tick, and whether it is one of the two.
        for (tick, is_known) in [
            (MS, true),
            (1000, true),
            (10 * MS / 3, false),
            (4 * MS, false),
            (10 * MS, false),
            (500 * MS, false),
            (1000 * MS, false),
            (MS / 10, false),
            (10_000, false),
        ] {
            let mut delay = Delay::default();
            for n in 0..2000_u64 {
                let now = n * 10 * MS;
                let seen = delay.see(now, (now / tick) as u32);
                if now >= 10_000 * MS {
                    assert_eq!(seen.is_some(), is_known, "{tick}, {n}");
                    assert_eq!(delay.has_other_unit(), !is_known, "{tick}, {n}");
                }
            }
        }
    }

    /// Of a host that never stops sending, and of one that does now and then.
    #[test]
    fn a_clock_of_half_or_twice_the_unit_is_no_queue() {
        let ticks = [2 * MS, MS / 2, 2000, 500];
        let courses = ticks.into_iter().flat_map(|it| [(it, 0), (it, 15_000)]);
        for (tick, pause) in courses {
            let mut delay = Delay::default();
            let mut now = 0;
            for _ in 0..8 {
                for _ in 0..1200 {
                    delay.see(now * MS, (now * MS / tick) as u32);
                    now += 10;
                    let is_late = now >= 60_000;
                    assert!(!is_late || delay.has_other_unit(), "{tick}, {pause}, {now}");
                }
                now += pause;
            }
        }
    }

    /// A sender in its slow start sends two segments for each one that has come, so that each waits for as long as has been sent.
    #[test]
    fn a_queue_that_fills_makes_no_other_unit() {
        for tick in [MS, 1000] {
            let mut delay = Delay::default();
            for n in 0..500_u64 {
                let sent = n * 10 * MS;
                let waits = sent.min(3000 * MS);
                let seen = delay.see(sent + waits, (sent / tick) as u32);
                assert!(!delay.has_other_unit(), "{tick}, {n}");
                assert!(n < 4 || seen.is_some_and(|it| it.abs_diff(waits) <= 5 * MS));
            }
            // A link that stands still for longer is doubted, until as much has been sent again.
            let [stood, later] = [5_000, 30_000].map(|at| at * MS);
            delay.see(stood + 8_000 * MS, (stood / tick) as u32);
            assert!(delay.has_other_unit());
            delay.see(later, (later / tick) as u32);
            assert!(!delay.has_other_unit());
        }
    }

    /// A packet each 10 ms from one time to another, of a host that has slept for some time before; whether anything was told of the last second.
    fn is_told(delay: &mut Delay, [from, to]: [Time; 2], slept: Time, tick: Time) -> bool {
        let mut is_told = true;
        for now in (from * MS..to * MS).step_by(10 * MS as usize) {
            let seen = delay.see(now, ((now - slept * MS) / tick) as u32);
            is_told &= now + 1000 * MS < to * MS || seen.is_some_and(|it| it <= MS);
        }
        assert_eq!(delay.has_other_unit(), !is_told, "{tick}, {to}");
        is_told
    }

    #[test]
    fn a_clock_that_has_stood_still_is_known_again_at_once() {
        let minute = 60_000;
        for tick in [MS, 1000] {
            let mut delay = Delay::default();
            assert!(is_told(&mut delay, [0, 20 * minute], 0, tick));
            // The host sleeps for 90 minutes; what comes first tells nothing before it is seen.
            let [woken, slept] = [110 * minute, 90 * minute];
            let sent = ((woken - slept) * MS / tick) as u32;
            assert_eq!(delay.of(woken * MS, sent), None, "{tick}");
            assert!(is_told(&mut delay, [woken, woken + 20_000], slept, tick));
            // The host sleeps again, and its packets tell so within 2 s instead of 20 s.
            let [woken, slept] = [112 * minute, 91 * minute];
            assert!(is_told(&mut delay, [woken, woken + 2_000], slept, tick));
        }
    }

    #[test]
    fn what_comes_after_a_long_silence_is_told_though_microseconds_begin_anew() {
        let minute = 60_000;
        for silence in [20, 36, 50, 72, 100, 200] {
            for begin in [2_000, 60_000] {
                let mut delay = Delay::default();
                assert!(is_told(&mut delay, [0, begin], 0, 1000));
                let later = begin + silence * minute;
                let is_told = is_told(&mut delay, [later, later + 2_000], 0, 1000);
                assert!(is_told, "{begin}, {silence}");
            }
        }
    }

    #[test]
    fn a_silence_makes_no_known_unit_of_another_one() {
        let ticks = [10 * MS / 3, 4 * MS, 10 * MS, 500 * MS, MS / 10];
        for (tick, begin) in ticks.into_iter().flat_map(|it| [(it, 1_000), (it, 12_000)]) {
            let mut delay = Delay::default();
            for now in (0..begin).step_by(10) {
                delay.see(now * MS, (now * MS / tick) as u32);
            }
            for later in [60_000, 120_000, 600_000] {
                assert!(!is_told(&mut delay, [later, later + 2_000], 0, tick));
            }
        }
    }

    #[test]
    fn what_waits_is_known_without_a_common_clock() {
        let wraps = u32::MAX - 100_000;
        for (tick, start, skew, late) in [
            (MS, 7, 0, 0),
            (MS, wraps, 100, 0),
            (MS, wraps, -100, 0),
            (1000, wraps, 100, 0),
            (1000, 7, -100, 0),
            // From the middle of a busy time on.
            (MS, wraps, 100, 4_500 * MS),
        ] {
            let errors = errors(tick, start, skew, late);
            let at = |percent: usize| errors[errors.len() * percent / 100] as f64 / 1e6;
            println!(
                "{tick} {skew} ppm, from {late}: {} and {} ms",
                at(50),
                at(95)
            );
            assert!(
                at(50) <= 5.0 && at(95) <= 15.0,
                "{tick} {skew}: {} {}",
                at(50),
                at(95)
            );
        }
    }
}
