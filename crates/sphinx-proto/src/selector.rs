//! The Parameter Selector: how much repair a flight gets (`DESIGN`: profiles, ICM).

/// Block failure probability that the latency profile accepts in the first flight.
pub(crate) const EPSILON: f64 = 0.002;
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
    fn edges() {
        assert_eq!(flight_repair(0, 10, 0.5, 0.01), 0);
        assert_eq!(flight_repair(7, 7, 0.0, 0.01), 0);
        assert_eq!(flight_repair(7, 3, 0.0, 0.01), 4);
        assert!(flight_repair(1024, 1024, 2.0, 1e-9) <= LIMIT);
        assert!(flight_repair(1, 0, f64::NAN, 0.01) <= LIMIT);
    }
}
