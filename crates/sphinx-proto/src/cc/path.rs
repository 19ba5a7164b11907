//! Round trip and queueing delay of one path.
//!
//! A queue is what is above the smallest delay. Where the delay varies without a queue, the smallest one is rare:
//! there the usual delay of the round that was fastest of late counts instead, within what jitter explains.

use super::{AckSummary, MS, Nanos, SEC, Time};

/// A minimum is believed for this long (draft-ietf-ccwg-bbr, MinRTTFilterLen), or for
/// [`WINDOW_ROUNDS`] round trips if that is longer.
const WINDOW: Nanos = 10 * SEC;
const WINDOW_ROUNDS: Nanos = 100;
/// Rounds in which the usual delay is looked for; each cycle empties the queue once.
const USUAL_ROUNDS: u64 = 8;
/// Readings of a round that give a mean.
const USUAL_MIN: u32 = 4;
/// The usual delay is above the smallest by at most so many times the jitter: packets that keep their order wait
/// for each other, the longer the denser they are.
const USUAL_MOST: Nanos = 8;
/// The longest queue of so long a time, and of the one before, is remembered.
const LONGEST: Nanos = 2 * SEC;
/// A smallest round trip that was larger by this had a queue in it.
const FALL: Nanos = 2 * MS;
/// Readings whose minimum is the present queueing delay: one late packet is no queue.
const RECENT: usize = 3;

/// Minimum over the last one to two windows, of time or of rounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RotatingMin {
    current: Option<i64>,
    previous: Option<i64>,
    /// Nanoseconds since the clock's origin, or rounds.
    rotated_at: u64,
}

impl RotatingMin {
    pub(crate) fn get(&self) -> Option<i64> {
        self.current.into_iter().chain(self.previous).min()
    }

    /// Whether an update now begins a window.
    fn is_due(&self, now: u64, window: u64) -> bool {
        now.saturating_sub(self.rotated_at) > window
    }

    /// By how much the minimum rises when a window begins.
    fn rise(&self) -> Option<u64> {
        u64::try_from(self.current?.saturating_sub(self.previous?)).ok()
    }

    pub(crate) fn update(&mut self, now: u64, window: u64, value: i64) -> i64 {
        if self.is_due(now, window) {
            self.previous = self.current.take();
            self.rotated_at = now;
        }
        self.current = Some(self.current.map_or(value, |c| c.min(value)));
        self.get().unwrap_or(value)
    }
}

/// Mean delay of each round.
#[derive(Debug, Default)]
struct RoundMean {
    sum: i128,
    readings: u32,
    rounds: u64,
    least: RotatingMin,
}

impl RoundMean {
    fn add(&mut self, delay: i64) {
        self.sum += i128::from(delay);
        self.readings += 1;
    }

    /// A round ended; whether it was one of usual sending.
    fn end(&mut self, usual: bool) {
        let (sum, readings) = (self.sum, self.readings);
        (self.sum, self.readings) = (0, 0);
        if usual && readings >= USUAL_MIN {
            self.rounds += 1;
            let mean = sum / i128::from(readings);
            self.least.update(self.rounds, USUAL_ROUNDS, mean as i64);
        }
    }

    /// How far the usual delay is above the `smallest` one, 0 to `most`.
    fn above(&self, smallest: i64, most: Nanos) -> i64 {
        let above = self
            .least
            .get()
            .map_or(0, |usual| usual.saturating_sub(smallest));
        above.clamp(0, i64::try_from(most).unwrap_or(i64::MAX))
    }
}

/// Tracks the smallest round trip and how far packets are above it now.
#[derive(Debug, Default)]
pub(super) struct PathDelay {
    min_rtt: Option<Nanos>,
    /// When a round trip close to the smallest one was last seen, or to the usual one where jitter makes that rare.
    confirmed_at: Time,
    smoothed_rtt: f64,
    deviation: f64,
    base: RotatingMin,
    /// The least by which round trips of the present window of `base` were above the smallest one.
    least_above: Nanos,
    is_base_queued: bool,
    usual_rtt: RoundMean,
    usual_one_way: RoundMean,
    /// Part of the usual round trip above the smallest one that is jitter.
    held: Nanos,
    /// Latest readings of the queueing delay.
    recent: [Nanos; RECENT],
    /// The same, above the smallest delay whatever jitter explains.
    above: [Nanos; RECENT],
    latest: Nanos,
    next: usize,
    /// Longest queue of late and of the time before, and when that ended.
    longest: [Nanos; 2],
    longest_since: Time,
    has_fallen: bool,
}

impl PathDelay {
    /// Of a path whose round trips have been measured.
    pub(super) fn known(min_rtt: Nanos, smoothed_rtt: Nanos) -> Self {
        Self {
            min_rtt: Some(min_rtt),
            smoothed_rtt: smoothed_rtt as f64,
            ..Self::default()
        }
    }

    /// Smallest round trip believed in.
    pub(super) fn min_rtt(&self) -> Option<Nanos> {
        self.min_rtt
    }

    /// Round trip without a queue, jitter included.
    pub(super) fn base_rtt(&self) -> Option<Nanos> {
        self.min_rtt.map(|min| min.saturating_add(self.held))
    }

    /// A round ended, in which packets were sent about as fast as the link takes them, or not.
    pub(super) fn on_round(&mut self, usual: bool) {
        self.usual_rtt.end(usual);
        self.usual_one_way.end(usual);
    }

    /// Smoothed round trip, as in RFC 9002, section 5.3.
    pub(super) fn smoothed(&self) -> Nanos {
        self.smoothed_rtt as Nanos
    }

    /// Mean deviation of the round trip, as in RFC 9002, section 5.3.
    pub(super) fn deviation(&self) -> Nanos {
        self.deviation as Nanos
    }

    /// Present queueing delay: the smallest of the last few readings.
    pub(super) fn queue(&self) -> Nanos {
        self.recent.iter().copied().min().unwrap_or(0)
    }

    /// How far the delay is above the smallest one, whether or not jitter explains it.
    pub(super) fn above_smallest(&self) -> Nanos {
        self.above.iter().copied().min().unwrap_or(0)
    }

    /// How far the delay was above the smallest one at most, in the latest two to four seconds.
    pub(super) fn longest_queue(&self) -> Nanos {
        self.longest.into_iter().max().unwrap_or(0)
    }

    /// Whether the smallest one-way delay was forgotten while there was a queue, so that a queue seems shorter than it is. Round trips remember it.
    pub(super) fn is_base_queued(&self) -> bool {
        self.is_base_queued
    }

    /// Takes in a one-way delay of a packet whose round trip was `above` the smallest one: the smallest one-way delay.
    fn update_base(&mut self, now: Time, one_way: i64, above: Nanos) -> i64 {
        let now = now.as_nanos();
        let falls = |base: i64| base.saturating_sub(one_way) > FALL as i64;
        if above < FALL || self.base.get().is_some_and(falls) {
            self.is_base_queued = false;
        }
        if self.base.is_due(now, WINDOW) {
            let rise = self.base.rise().unwrap_or(0);
            self.is_base_queued |= rise > FALL && self.least_above.saturating_add(FALL) >= rise;
            self.least_above = Nanos::MAX;
        }
        self.least_above = self.least_above.min(above);
        self.base.update(now, WINDOW, one_way)
    }

    /// Whether the smallest round trip has turned out to be much smaller since this was asked.
    pub(super) fn take_fall(&mut self) -> bool {
        std::mem::take(&mut self.has_fallen)
    }

    /// Queueing delay of the latest reading.
    pub(super) fn latest_queue(&self) -> Nanos {
        self.latest
    }

    /// Whether the minimum has not been seen for so long that it must be measured again.
    pub(super) fn is_stale(&self, now: Time) -> bool {
        let rounds = self.min_rtt.unwrap_or(0).saturating_mul(WINDOW_ROUNDS);
        now.saturating_sub(self.confirmed_at) > WINDOW.max(rounds)
    }

    /// Whether a round trip close to the minimum was seen after `since`.
    pub(super) fn confirmed_since(&self, since: Time) -> bool {
        self.confirmed_at >= since
    }

    /// Replaces the minimum by a new measurement.
    pub(super) fn replace_min_rtt(&mut self, now: Time, rtt: Nanos) {
        self.min_rtt = Some(rtt);
        self.confirmed_at = now;
        self.base = RotatingMin::default();
        self.is_base_queued = false;
        self.recent = [0; RECENT];
        self.above = [0; RECENT];
        self.longest = [0; 2];
    }

    /// Takes in one SACK; delays of two packets may differ by `jitter` without a queue.
    pub(super) fn on_ack(&mut self, ack: &AckSummary<'_>, jitter: Nanos) {
        let Some(rtt) = ack.rtt_sample else { return };
        let min_rtt = match self.min_rtt {
            Some(min) => {
                self.has_fallen |= rtt.saturating_add(FALL) < min;
                min.min(rtt)
            }
            None => {
                self.smoothed_rtt = rtt as f64;
                rtt
            }
        };
        self.min_rtt = Some(min_rtt);
        let base = min_rtt.saturating_add(self.held);
        if rtt <= base.saturating_add(base / 8).saturating_add(MS / 2) {
            self.confirmed_at = ack.now;
        }
        let error = rtt as f64 - self.smoothed_rtt;
        self.smoothed_rtt += error / 8.0;
        self.deviation += (error.abs() - self.deviation) / 4.0;

        // The one-way delay is free of reverse-path queues but suffers from clock steps and drift;
        // the round trip the other way round. A forward queue shows in both.
        let most = jitter.saturating_mul(USUAL_MOST);
        self.held = self.usual_rtt.above(min_rtt as i64, most) as Nanos;
        self.usual_rtt.add(rtt as i64);
        let mut queue = rtt.saturating_sub(min_rtt.saturating_add(self.held));
        let mut above = rtt.saturating_sub(min_rtt);
        if let Some(arrival) = ack.arrival
            && let Some(packet) = ack.acked.iter().find(|p| p.pn == arrival.pn)
        {
            let one_way = arrival.received_at.wrapping_sub(packet.sent_at) as i64;
            let base = self.update_base(ack.now, one_way, above);
            above = above.min(one_way.saturating_sub(base).max(0) as Nanos);
            let base = base.saturating_add(self.usual_one_way.above(base, most));
            self.usual_one_way.add(one_way);
            queue = queue.min(one_way.saturating_sub(base).max(0) as Nanos);
        }
        self.latest = queue;
        self.recent[self.next] = queue;
        self.above[self.next] = above;
        self.next = (self.next + 1) % RECENT;
        if ack.now.saturating_sub(self.longest_since) > LONGEST {
            self.longest = [0, self.longest[0]];
            self.longest_since = ack.now;
        }
        self.longest[0] = self.longest[0].max(self.above_smallest());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::{Arrival, PacketInfo};
    use crate::numbers::pn;
    use crate::time::time;

    /// Timestamps come from the peer, and may be anything.
    #[test]
    fn any_clock_is_survived() {
        let mut delay = PathDelay::default();
        let ahead = [1 << 63, (1 << 63) - 1, 0, u64::MAX, 1 << 63];
        for (n, ahead) in ahead.into_iter().cycle().take(20).enumerate() {
            let now = SEC + n as u64 * 7 * SEC;
            let rtt = if n == 0 { 40 * MS } else { 60 * MS };
            feed(&mut delay, now, rtt, (now - rtt).wrapping_add(ahead));
        }
    }

    /// Of a queue that stands while the smallest one-way delay is forgotten.
    #[test]
    fn a_queue_that_stands_is_not_taken_to_be_short() {
        let mut delay = PathDelay::default();
        let at = |n: u64| SEC + n * 100 * MS;
        feed(&mut delay, at(0), 40 * MS, at(0) - 20 * MS);
        for n in 1..400 {
            feed(&mut delay, at(n), 70 * MS, at(n) - 20 * MS);
        }
        assert_eq!(delay.above_smallest(), 0);
        assert!(delay.is_base_queued());
        feed(&mut delay, at(400), 45 * MS, at(400) - 20 * MS);
        assert!(!delay.is_base_queued());
    }

    fn feed(delay: &mut PathDelay, now: Nanos, rtt: Nanos, received_at: Nanos) {
        feed_jitter(delay, now, rtt, received_at, 0);
    }

    fn feed_jitter(
        delay: &mut PathDelay,
        now: Nanos,
        rtt: Nanos,
        received_at: Nanos,
        jitter: Nanos,
    ) {
        let pn = pn(now);
        let (sent_at, received_at) = (time(now - rtt), time(received_at));
        let ack = AckSummary {
            now: time(now),
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
            is_scalable: false,
            ecn_capable: false,
            bytes_in_flight: 0,
        };
        delay.on_ack(&ack, jitter);
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

    #[test]
    fn a_delay_that_varies_is_no_queue() {
        let queue = |jitter| {
            let mut delay = PathDelay::default();
            let mut now = SEC;
            feed_jitter(&mut delay, now, 10 * MS, now - 5 * MS, jitter);
            for round in 0..20 {
                for reading in 0..10 {
                    now += MS;
                    // Once at the minimum, mostly 8 to 10 ms above it.
                    let extra = match (round, reading) {
                        (0, 0) => 0,
                        _ => (8 + reading % 3) * MS,
                    };
                    let rtt = 10 * MS + extra;
                    feed_jitter(&mut delay, now, rtt, now - 5 * MS, jitter);
                }
                delay.on_round(true);
            }
            assert_eq!(delay.min_rtt(), Some(10 * MS));
            (delay.queue(), delay.base_rtt().unwrap())
        };
        // Packets do not come in clumps: a queue of 8 ms.
        assert_eq!(queue(0), (8 * MS, 10 * MS));
        let (queue, base) = queue(4 * MS);
        assert!(queue < MS && base > 18 * MS, "{queue} {base}");
    }
}
