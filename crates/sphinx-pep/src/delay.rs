//! How long packets of a host wait on their way, beyond what they need: by their timestamps, without a common clock.

use crate::{MS, Time};

/// Timestamps count milliseconds or, if they are this fast, microseconds: two units, a factor of 1000 apart, so that not even a queue that grows at once
/// makes one of them look like the other.
const BETWEEN_NS: Time = 31_623;
/// Before that, the unit is not known.
const UNIT_AFTER_NS: Time = 20 * MS;
/// The shortest delay is that of one to two of these: clocks that differ by 100 millionths differ by 6 ms after one.
const WINDOW_NS: Time = 60_000 * MS;

/// The delay of one host's packets against the shortest one.
#[derive(Debug, Default)]
pub(crate) struct Delay {
    /// When a timestamp came first, and the last one: positions, as timestamps wrap.
    first: Option<(Time, u64)>,
    last: u64,
    tick_ns: Option<Time>,
    /// The shortest ones of this window and of the one before; against the first packet's.
    shortest: [i64; 2],
    since: Time,
}

impl Delay {
    /// A packet came with this timestamp: what it has waited, if that can be told.
    pub(crate) fn see(&mut self, now: Time, sent: u32) -> Option<Time> {
        let Some((begin, first)) = self.first else {
            let first = crate::sequence::first(sent);
            self.first = Some((now, first));
            self.last = first;
            return None;
        };
        let at = crate::sequence::nearest(self.last, sent);
        self.last = self.last.max(at);
        let ticks = at as i64 - first as i64;
        let elapsed = now.saturating_sub(begin);
        if self.tick_ns.is_none() && elapsed >= UNIT_AFTER_NS && ticks > 0 {
            let tick = elapsed / ticks.unsigned_abs();
            self.tick_ns = Some(if tick < BETWEEN_NS { 1000 } else { MS });
            (self.shortest, self.since) = ([0, i64::MAX], now);
        }
        let sent_after = ticks.saturating_mul(i64::try_from(self.tick_ns?).ok()?);
        let delay = (elapsed as i64).saturating_sub(sent_after);
        if now.saturating_sub(self.since) > WINDOW_NS {
            self.shortest = [delay, self.shortest[0]];
            self.since = now;
        }
        self.shortest[0] = self.shortest[0].min(delay);
        let shortest = self.shortest[0].min(self.shortest[1]);
        Time::try_from(delay.saturating_sub(shortest)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets every 10 ms, of which the ones from 1 s to 2 s wait for 50 ms; a clock that wraps on the way and is too fast.
    #[test]
    fn what_waits_is_known_without_a_common_clock() {
        for (tick, start) in [(MS, 7), (MS, u32::MAX - 900), (1000, u32::MAX - 900_000)] {
            let mut delay = Delay::default();
            for n in 0..60_000_u64 {
                let at = n * 10 * MS;
                let waits = if (100..200).contains(&(n % 1000)) {
                    50
                } else {
                    0
                };
                // 100 millionths.
                let clock = (at + at / 10_000) / tick;
                let sent = start.wrapping_add(clock as u32);
                let seen = delay.see(at + (30 + waits) * MS, sent);
                if n > 10 {
                    let seen = seen.expect("a delay") / MS;
                    assert!(seen.abs_diff(waits) <= 13, "{tick} {n}: {seen} of {waits}");
                }
            }
        }
    }
}
