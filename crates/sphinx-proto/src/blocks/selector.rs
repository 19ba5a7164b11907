//! The Parameter Selector: how much repair a flight gets, ahead of loss (ProFEC) and after it (ReFEC).

use sphinx_fec::params;

use crate::Time;
use crate::cc::rate_of;

use super::riding::GAP_MIN;

/// Block failure probability that is accepted in the first flight of what is protected ahead, unless
/// a [`Config`](crate::Config) says otherwise.
pub const EPSILON: f64 = 0.002;
/// Probability that a reactive round fails although it was meant to be the last one.
pub(crate) const EPSILON_REACTIVE: f64 = 0.002;

/// Most repair symbols that one decision may ask for; more would be a flood on a dead path.
const LIMIT: u32 = 1024;

/// Smallest r with P(fewer than `needed` of `in_flight` + r symbols arrive) ≤ `epsilon`, each lost
/// independently with probability `plr`.
///
/// With `in_flight` = `needed` = n this is the proactive repair of a block of n symbols; with
/// `in_flight` = 0 and `needed` = m it is the reactive answer r(m) to a deficit, less m.
pub(crate) fn flight_repair(needed: u32, in_flight: u32, plr: f64, epsilon: f64) -> u32 {
    if needed == 0 {
        return 0;
    }
    let plr = plr.clamp(0.0, 0.95);
    let mut repair = needed.saturating_sub(in_flight);
    if plr == 0.0 {
        return repair;
    }
    while repair < LIMIT && shortfall(in_flight + repair, needed, plr) > epsilon {
        repair += 1;
    }
    repair
}

/// Proactive repair where losses come in bursts. Remembers its last answer, which takes tens of
/// microseconds to find.
#[derive(Debug, Default)]
pub(crate) struct BurstRepair {
    question: (u32, u32, u32),
    answer: u32,
}

impl BurstRepair {
    /// Symbols for which the answer is computed; what larger blocks need grows less than they do.
    const SYMBOLS: u32 = 256;
    /// Steps of the loss rate and of the mean burst, rounded up, so that not every packet asks anew.
    const PLR_STEPS: f64 = 1000.0;
    const BURST_STEPS: f64 = 10.0;

    /// As [`flight_repair`], if `burst` packets are lost in a row on average. What bursts take beyond
    /// independent losses is bounded by `spare` repairs for every symbol, and by two; where these
    /// would not do, as a burst takes the whole of a small flight, by one.
    pub(crate) fn flight_repair(
        &mut self,
        (needed, in_flight): (u32, u32),
        (plr, burst): (f64, f64),
        epsilon: f64,
        spare: f64,
    ) -> u32 {
        let independent = flight_repair(needed, in_flight, plr, epsilon);
        if burst <= 1.0 || needed == 0 {
            return independent;
        }
        let n = needed.min(Self::SYMBOLS);
        let plr = (plr.clamp(0.0, 0.95) * Self::PLR_STEPS).ceil();
        let burst = (burst * Self::BURST_STEPS).ceil();
        let question = (n, plr as u32, burst as u32);
        if self.question != question {
            let (plr, burst) = (plr / Self::PLR_STEPS, burst / Self::BURST_STEPS);
            let n = n as usize;
            let mut repair = params::burst_repair_for(n, plr, burst, 1, epsilon, 2 * n);
            if repair == 2 * n {
                repair = n;
            }
            (self.question, self.answer) = (question, repair as u32);
        }
        let share = (f64::from(self.answer) / f64::from(n)).min(spare);
        let repair = (share * f64::from(needed)).round() as u32;
        (needed + repair)
            .saturating_sub(in_flight)
            .clamp(independent, LIMIT.max(independent))
    }
}

/// What the application hands over between one protected flight and the next.
#[derive(Debug, Default)]
pub(crate) struct Offered {
    latest: Option<Time>,
    /// Bytes of flights that have ended since, too shortly for a rate of their own.
    held: u64,
    /// Smoothed, bytes per second.
    rate: Option<f64>,
}

impl Offered {
    /// Share of the capacity that blocks and their repairs may take; more makes blocks wait for the
    /// repairs of others.
    const LOAD: f64 = 0.8;

    /// Repairs for every symbol for which `capacity`, bytes per second, leaves room, now that
    /// another flight of `bytes` ends.
    pub(crate) fn spare(&mut self, now: Time, bytes: u64, capacity: u64) -> f64 {
        let span = self.latest.map(|latest| now.saturating_sub(latest));
        match span {
            Some(span) if span < GAP_MIN => self.held += bytes,
            Some(span) => {
                let sample = rate_of((self.held + bytes) as f64, span);
                let rate = self.rate.get_or_insert(sample);
                *rate += (sample - *rate) / 8.0;
                (self.latest, self.held) = (Some(now), 0);
            }
            None => self.latest = Some(now),
        }
        let rate = self.rate.unwrap_or(0.0).max(1.0);
        (Self::LOAD * capacity as f64 / rate - 1.0).max(0.0)
    }
}

/// P(fewer than `needed` of `sent` arrive).
fn shortfall(sent: u32, needed: u32, plr: f64) -> f64 {
    if sent < needed {
        return 1.0;
    }
    // P(lost > spare) = 1 − Σ_{l ≤ spare} C(sent, l) p^l (1−p)^(sent−l), summed upwards from l = 0.
    let spare = sent - needed;
    let mut term = (f64::from(sent) * (-plr).ln_1p()).exp();
    let mut within = term;
    let odds = plr / (1.0 - plr);
    for l in 0..spare {
        term *= f64::from(sent - l) / f64::from(l + 1) * odds;
        within += term;
    }
    (1.0 - within).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::time;

    #[test]
    fn matches_the_published_tables() {
        // Proactive, n = 100, 1 % failure (spec table: MDS column).
        for (plr, r) in [
            (0.01, 4),
            (0.02, 6),
            (0.04, 10),
            (0.06, 13),
            (0.1, 20),
            (0.2, 39),
        ] {
            assert_eq!(flight_repair(100, 100, plr, 0.01), r, "plr {plr}");
        }
        // Reactive r(m) at 6 % and 20 %.
        for (m, r) in [(1, 2), (2, 4), (3, 5), (4, 6), (6, 8)] {
            assert_eq!(flight_repair(m, 0, 0.06, 0.01), r, "m {m}");
        }
        for (m, r) in [(1, 3), (2, 5), (4, 9)] {
            assert_eq!(flight_repair(m, 0, 0.2, 0.01), r, "m {m}");
        }
    }

    #[test]
    fn bursts_take_more() {
        let mut bursts = BurstRepair::default();
        let mut repair = |n, plr, burst| bursts.flight_repair((n, n), (plr, burst), 0.01, 9.0);
        assert_eq!(repair(100, 0.06, 1.0), 13);
        // Spec table: 25 and 51, computed for a mean burst of three and ten.
        assert!((24..=27).contains(&repair(100, 0.06, 3.0)));
        assert!((49..=55).contains(&repair(100, 0.06, 10.0)));
        assert_eq!(repair(4, 0.06, 10.0), 4);
        let quarter = repair(256, 0.06, 3.0);
        assert_eq!(repair(1024, 0.06, 3.0), 4 * quarter);
        let mut repair = |flight, losses, spare| bursts.flight_repair(flight, losses, 0.01, spare);
        assert_eq!(repair((4, 6), (0.06, 10.0), 9.0), 2);
        assert_eq!(repair((0, 6), (0.06, 10.0), 9.0), 0);
        assert_eq!(repair((100, 100), (0.06, 10.0), 0.3), 30);
        assert_eq!(repair((100, 100), (0.06, 10.0), 0.0), 13);
        assert!(repair((9, 9), (f64::NAN, 1e300), 9.0) <= 9);
        // Long bursts may call for more repairs than the block has symbols.
        let more = bursts.flight_repair((88, 88), (0.1, 16.0), 0.002, 9.0);
        assert!((110..=120).contains(&more), "{more}");
    }

    #[test]
    fn room_for_repairs_follows_the_load() {
        let mut offered = Offered::default();
        // A single flight tells of no load, so that there is room for any repair.
        assert!(offered.spare(time(0), 100_000, 25_000_000) > 100.0);
        // 100 kB every 8 ms are 12.5 MB/s.
        for i in 1..20 {
            let spare = offered.spare(time(i * 8_000_000), 100_000, 25_000_000);
            assert!((spare - 0.6).abs() < 1e-6, "{spare}");
        }
        for i in 1..100 {
            offered.spare(time(160_000_000 + i * 4_000_000), 100_000, 25_000_000);
        }
        assert_eq!(offered.spare(time(564_000_000), 100_000, 25_000_000), 0.0);
    }

    /// A tenth of a millisecond between two of them stood for 12 MB/s, and bursts met no repairs.
    #[test]
    fn flights_that_end_together_count_as_one() {
        for apart in [0, 100_000] {
            let mut offered = Offered::default();
            for i in 0..20 {
                let now = i * 20_000_000;
                offered.spare(time(now), 1200, 1_200_000);
                let spare = offered.spare(time(now + apart), 1200, 1_200_000);
                // 120 kB/s of 960.
                assert!(i == 0 || (spare - 7.0).abs() < 1e-6, "{spare}");
            }
        }
    }

    #[test]
    fn edges() {
        assert_eq!(flight_repair(0, 10, 0.5, 0.01), 0);
        assert_eq!(flight_repair(7, 7, 0.0, 0.01), 0);
        assert_eq!(flight_repair(7, 3, 0.0, 0.01), 4);
        assert!(flight_repair(1024, 1024, 2.0, 1e-9) <= LIMIT);
        assert!(flight_repair(1, 0, f64::NAN, 0.01) <= LIMIT);
    }
}
