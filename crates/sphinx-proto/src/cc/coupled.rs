//! What paths of one session do that meet in one bottleneck, and of that windows that grow together: the Linked Increases Algorithm (RFC 6356) and its
//! opportunistic kin (OLIA, draft-khalili-mptcp-congestion-control).
//!
//! Where several paths meet, each for itself takes the share of a flow. Coupled windows take together about what one flow would on the best of
//! them; both algorithms are rules for windows that grow additively, and only [`AimdEcn`](super::AimdEcn) has one. For all others there is
//! [`Couple::Auto`] (`paths/meeting.rs`).

use std::fmt;

use super::Nanos;

/// What paths of a session do that meet in one bottleneck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Couple {
    /// Those whose queues rise and fall together count as one: of these, one carries what there is
    /// ([`PathState::Met`](crate::PathState::Met)).
    #[default]
    Auto,
    /// No coupling: each path is a flow of its own.
    Off,
    /// Linked increases (RFC 6356): together no faster than one flow on the best path.
    Lia,
    /// Opportunistic linked increases: besides, what good paths with small windows gain others give up.
    Olia,
}

impl Couple {
    /// All couplings.
    pub const ALL: [Couple; 4] = [Couple::Auto, Couple::Off, Couple::Lia, Couple::Olia];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Lia => "lia",
            Self::Olia => "olia",
        }
    }

    /// Of each path, how much of what its window would grow by alone it grows by. Less than nothing: it shrinks.
    pub(crate) fn gains(self, windows: &[Window]) -> impl Iterator<Item = f64> + '_ {
        let rates: f64 = windows.iter().map(|one| one.bytes / one.rtt).sum();
        let all = rates * rates;
        // Increase of a single flow on the best path.
        let best = windows.iter().map(|one| one.bytes / (one.rtt * one.rtt));
        let best = best.fold(0.0, f64::max);
        let shift = Shift::new(windows);
        windows.iter().map(move |one| match self {
            Self::Auto | Self::Off => 1.0,
            Self::Lia => (one.bytes * best / all).min(1.0),
            Self::Olia => {
                let rate = one.bytes / one.rtt;
                rate * rate / all + shift.of(one)
            }
        })
    }
}

impl fmt::Display for Couple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The window of one path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    bytes: f64,
    /// Round-trip time in seconds.
    rtt: f64,
    /// What was acknowledged between losses.
    between_losses: f64,
}

impl Window {
    pub(crate) fn new(bytes: u64, rtt: Nanos, between_losses: u64) -> Self {
        Self {
            bytes: bytes.max(1) as f64,
            rtt: rtt.max(1) as f64 / 1e9,
            between_losses: between_losses as f64,
        }
    }

    /// What one flow alone would get there: its rate is as the root of this.
    fn quality(&self) -> f64 {
        self.between_losses / (self.rtt * self.rtt)
    }
}

/// OLIA's second term: from the largest windows to the best paths, as long as these are not the same.
struct Shift {
    paths: f64,
    quality: f64,
    largest: f64,
    /// How many of the best paths have not the largest window, and how many have the largest one.
    gaining: f64,
    losing: f64,
}

impl Shift {
    fn new(windows: &[Window]) -> Self {
        let quality = windows.iter().map(Window::quality).fold(0.0, f64::max);
        let largest = windows.iter().map(|one| one.bytes).fold(0.0, f64::max);
        let count = |is: &dyn Fn(&&Window) -> bool| windows.iter().filter(is).count() as f64;
        Self {
            paths: windows.len() as f64,
            quality,
            largest,
            gaining: count(&|one| one.quality() >= quality && one.bytes < largest),
            losing: count(&|one| one.bytes >= largest),
        }
    }

    fn of(&self, one: &Window) -> f64 {
        let is_largest = one.bytes >= self.largest;
        match self.gaining > 0.0 {
            false => 0.0,
            true if is_largest => -1.0 / (self.paths * self.losing),
            true if one.quality() >= self.quality => 1.0 / (self.paths * self.gaining),
            true => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testflows::{App, Link, World};
    use super::super::{CcKind, CcParams, MS, RateControl, SEC};
    use super::*;

    fn gains(couple: Couple, windows: &[(u64, u64, u64)]) -> Vec<f64> {
        let windows: Vec<Window> = windows
            .iter()
            .map(|(bytes, rtt_ms, between)| Window::new(*bytes, rtt_ms * MS, *between))
            .collect();
        couple.gains(&windows).collect()
    }

    #[test]
    fn one_path_grows_as_ever() {
        for couple in Couple::ALL {
            let gain = gains(couple, &[(30_000, 50, 1_000_000)])[0];
            assert!((gain - 1.0).abs() < 1e-9, "{couple}: {gain}");
        }
    }

    /// RFC 6356, section 3: alpha = total × max(w / rtt²) / (Σ w / rtt)², and each acknowledgement counts alpha / total or 1 / w, whichever
    /// is less.
    #[test]
    fn linked_increases_are_those_of_the_rfc() {
        let (one, two): ((f64, f64), (f64, f64)) = ((60_000.0, 0.02), (30_000.0, 0.1));
        let total = one.0 + two.0;
        let best = (one.0 / one.1 / one.1).max(two.0 / two.1 / two.1);
        let sum = one.0 / one.1 + two.0 / two.1;
        let alpha = total * best / (sum * sum);
        let found = gains(Couple::Lia, &[(60_000, 20, 0), (30_000, 100, 0)]);
        for (gain, bytes) in found.into_iter().zip([one.0, two.0]) {
            let expected = (alpha / total).min(1.0 / bytes) * bytes;
            assert!((gain - expected).abs() < 1e-9, "{gain} {expected}");
        }
    }

    /// The second path is as good and has the smaller window: it gains what the first one gives up.
    #[test]
    fn good_paths_with_small_windows_gain() {
        let found = gains(
            Couple::Olia,
            &[(60_000, 50, 1_000_000), (20_000, 50, 1_000_000)],
        );
        let (first, second) = (9.0 / 16.0 - 0.5, 1.0 / 16.0 + 0.5);
        assert!((found[0] - first).abs() < 1e-9 && (found[1] - second).abs() < 1e-9);
        // Where the best path has the largest window, nothing moves.
        let still = gains(
            Couple::Olia,
            &[(60_000, 50, 1_000_000), (20_000, 50, 10_000)],
        );
        assert!((still[0] - 9.0 / 16.0).abs() < 1e-9, "{still:?}");
    }

    fn reno() -> Box<dyn RateControl> {
        CcKind::AimdEcn.build(CcParams {
            block_packets: 1,
            ..CcParams::default()
        })
    }

    /// What `paths` of one session get together of a bottleneck beside CUBIC.
    fn beside_cubic(paths: usize, couple: Couple, link: &Link) -> f64 {
        let cubic = CcKind::Cubic.build(CcParams::default());
        let mut world = World::new(link.clone()).add(cubic, App::Saturating, 0);
        for path in 0..paths {
            world = world.add(reno(), App::Saturating, path as u64 * 500 * MS);
        }
        let reports = world.couple(1..=paths, couple).run(200 * SEC);
        let ours = reports[1..].iter();
        ours.map(|one| one.rate(50 * SEC, 200 * SEC)).sum()
    }

    #[test]
    fn in_a_common_bottleneck_they_count_as_one_flow() {
        for (rate, rtt, loss) in [(20.0, 40, 0.0), (20.0, 40, 0.0005), (50.0, 20, 0.0)] {
            let link = Link::new(rate, rtt, loss);
            let alone = beside_cubic(1, Couple::Off, &link);
            let free = beside_cubic(2, Couple::Off, &link) / alone;
            let [lia, olia] =
                [Couple::Lia, Couple::Olia].map(|it| beside_cubic(2, it, &link) / alone);
            println!("{rate} {rtt} {loss}: lia {lia:.2}, olia {olia:.2}, free {free:.2}");
            for coupled in [lia, olia] {
                assert!((0.75..=1.25).contains(&coupled), "{coupled}");
            }
            assert!(free > 1.25, "nothing to couple: {free}");
        }
    }
}
