//! DualPI2, the coupled queues of RFC 9332 with the PI2 of its appendix A.
//!
//! A controller of proportional and integral gain finds one probability p' for both queues. Classic packets are marked or dropped with
//! p'^2, those of low latency marked with k·p', so that the rates of both kinds of flows come out alike (section 2.1). The queue of
//! low latency has a step threshold of its own, and the larger probability counts. Where marks are all that there are (p' above 1/k),
//! both queues drop with p'^2 (section 4.2.3).
//!
//! Like Linux's (`sch_dualpi2`), it draws each packet's lot at random instead of spacing the signals, watches the longer of both delays,
//! and leaves the classic queue a tenth of the link at least.

use super::Signal;
use crate::{
    Time,
    config::DualPi2,
    nanos,
    random::{Draws, Element},
};

/// The classic queue's least share of the link, of [`SHARES`].
const CLASSIC_SHARE: i64 = 1;
const SHARES: i64 = 10;
/// A probability below which the controller is at rest.
const NOTHING: f64 = 1e-12;

/// One of the two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Band {
    /// ECT(1) and CE.
    Low,
    /// Everything else.
    Classic,
}

impl Band {
    /// That of packets with this ECN field (RFC 9331, section 5.1).
    pub(crate) fn of(ecn: u8) -> Band {
        match ecn & 1 {
            1 => Band::Low,
            _ => Band::Classic,
        }
    }
}

/// Since when the first packet of each queue waits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heads {
    pub(crate) low: Option<Time>,
    pub(crate) classic: Option<Time>,
}

impl Heads {
    /// The longer one of the delays of both queues.
    fn delay(&self, now: Time) -> Time {
        let since = self.low.into_iter().chain(self.classic).min();
        since.map_or(0, |since| now.saturating_sub(since))
    }
}

/// A packet at the head of its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    pub(crate) band: Band,
    pub(crate) index: u64,
    /// How long it has waited.
    pub(crate) sojourn: Time,
    /// Whether the packet found another one waiting in its queue.
    pub(crate) is_behind: bool,
}

/// The state of RFC 9332, appendix A.
#[derive(Clone, Debug)]
pub(crate) struct DualPi2State {
    settings: DualPi2,
    draws: Draws,
    /// p', 0 to 1, and the delay that it was last changed for.
    base: f64,
    delay: Time,
    updated_at: Time,
    /// What the classic queue may send before the other one, in parts of bytes.
    credit: i64,
}

impl DualPi2State {
    pub(crate) fn new(settings: &DualPi2, seed: u64) -> DualPi2State {
        DualPi2State {
            settings: *settings,
            draws: Draws::new(seed, Element::DualPi2),
            base: 0.0,
            delay: 0,
            updated_at: 0,
            credit: 0,
        }
    }

    /// Time has passed, in which the first packets were these; to be told before they change.
    pub(crate) fn advance(&mut self, now: Time, heads: Heads) {
        let every = nanos(self.settings.tupdate).max(1);
        while now.saturating_sub(self.updated_at) >= every {
            self.updated_at += every;
            self.update(heads.delay(self.updated_at));
            if self.base < NOTHING && heads.delay(now) == 0 {
                // At rest: no packet waits and the probability has decayed, so that the remaining updates would change nothing.
                self.updated_at = now - now.saturating_sub(self.updated_at) % every;
                self.delay = 0;
            }
        }
    }

    /// `dualpi2_update` of the appendix.
    fn update(&mut self, delay: Time) {
        let seconds = |span: Time| span as f64 / 1e9;
        let error = seconds(delay) - self.settings.target.as_secs_f64();
        let growth = seconds(delay) - seconds(self.delay);
        let change = self.settings.alpha * error + self.settings.beta * growth;
        self.base = (self.base + change).clamp(0.0, 1.0);
        self.delay = delay;
    }

    /// Probability p_C of a signal in the classic queue, 0–1.
    fn classic(&self) -> f64 {
        self.base * self.base
    }

    /// Probability p_CL of a mark that couples the low-latency queue to the classic one, 0–1.
    fn coupled(&self) -> f64 {
        (self.settings.coupling * self.base).min(1.0)
    }

    /// Whether marks are not enough any more.
    fn is_overloaded(&self) -> bool {
        self.settings.coupling * self.base >= 1.0
    }

    /// The queue whose turn it is, of those with something to send: a weighted round robin.
    pub(crate) fn turn(&self, heads: Heads) -> Option<Band> {
        match (heads.low, heads.classic) {
            (None, None) => None,
            (Some(_), None) => Some(Band::Low),
            (None, Some(_)) => Some(Band::Classic),
            (Some(_), Some(_)) if self.credit <= 0 => Some(Band::Low),
            (Some(_), Some(_)) => Some(Band::Classic),
        }
    }

    /// A queue sends so many bytes while the other one has something too, or has not.
    pub(crate) fn sends(&mut self, band: Band, bytes: usize, both_wait: bool) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX / SHARES);
        self.credit = match (both_wait, band) {
            (false, _) => 0,
            (true, Band::Low) => self.credit + CLASSIC_SHARE * bytes,
            (true, Band::Classic) => self.credit - (SHARES - CLASSIC_SHARE) * bytes,
        };
    }

    /// What happens to a packet that leaves its queue: `dualpi2_dequeue` of the appendix, with its overload.
    pub(crate) fn signal(&self, leaving: Leaving) -> Option<Signal> {
        let draws = self.draws.within(leaving.index);
        let (of_drop, of_mark) = (0, 1);
        let is_hit = draws.chance(of_drop, self.classic());
        match leaving.band {
            Band::Classic if is_hit && self.is_overloaded() => Some(Signal::Drop),
            Band::Classic => is_hit.then_some(Signal::Mark),
            Band::Low if is_hit && self.is_overloaded() => Some(Signal::Drop),
            Band::Low => {
                // A packet that waits only for the one being sent finds no queue, however slow the link is (Th_len of the appendix).
                let is_late = leaving.sojourn >= nanos(self.settings.step) && leaving.is_behind;
                (is_late || draws.chance(of_mark, self.coupled())).then_some(Signal::Mark)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Time = 1_000_000;

    fn at(base: f64) -> DualPi2State {
        DualPi2State {
            base,
            ..DualPi2State::new(&DualPi2::default(), 1)
        }
    }

    /// Shares of marked and of dropped packets that have waited so long.
    fn shares(state: &DualPi2State, band: Band, sojourn: Time) -> (f64, f64) {
        let count = 100_000;
        let of = |signal| {
            let hit = (0..count).filter(|&index| {
                let leaving = Leaving {
                    band,
                    index,
                    sojourn,
                    is_behind: true,
                };
                state.signal(leaving) == Some(signal)
            });
            hit.count() as f64 / count as f64
        };
        (of(Signal::Mark), of(Signal::Drop))
    }

    fn is_near(got: f64, wanted: f64) -> bool {
        (got - wanted).abs() < 0.005
    }

    #[test]
    fn classic_is_marked_by_the_square_and_low_latency_by_the_double() {
        for base in [0.0, 0.05, 0.2, 0.4] {
            let state = at(base);
            let (classic, dropped) = shares(&state, Band::Classic, MS);
            assert!(is_near(classic, base * base) && dropped == 0.0, "{base}");
            let (low, dropped) = shares(&state, Band::Low, 0);
            assert!(is_near(low, 2.0 * base) && dropped == 0.0, "{base}");
            // p_CL is the coupling factor, 2, times the square root of p_C.
            assert!((low - 2.0 * classic.sqrt()).abs() < 0.02, "{base}");
        }
    }

    #[test]
    fn a_step_marks_what_has_waited_in_low_latency_only() {
        let state = at(0.0);
        assert_eq!(shares(&state, Band::Low, MS - 1), (0.0, 0.0));
        assert_eq!(shares(&state, Band::Low, MS), (1.0, 0.0));
        assert_eq!(shares(&state, Band::Classic, 50 * MS), (0.0, 0.0));
        let alone = Leaving {
            band: Band::Low,
            index: 0,
            sojourn: 5 * MS,
            is_behind: false,
        };
        assert_eq!(state.signal(alone), None);
    }

    #[test]
    fn overload_drops_in_both_queues() {
        let state = at(0.6);
        for band in [Band::Low, Band::Classic] {
            let (_, dropped) = shares(&state, band, 0);
            assert!(is_near(dropped, 0.36), "{band:?}: {dropped}");
        }
        let (marked, _) = shares(&state, Band::Low, 0);
        assert!(is_near(marked, 0.64), "{marked}");
    }

    #[test]
    fn the_controller_follows_its_gains() {
        let mut state = at(0.1);
        // 20 ms above the target, and 35 ms more than before.
        let heads = Heads {
            low: None,
            classic: Some(0),
        };
        state.updated_at = 19 * MS;
        state.advance(35 * MS, heads);
        let wanted = 0.1 + 0.16 * 0.020 + 3.2 * 0.035;
        assert!((state.base - wanted).abs() < 1e-9, "{}", state.base);
        // As long as before, and nothing between two updates.
        state.advance(35 * MS + MS, heads);
        assert!((state.base - wanted).abs() < 1e-9);
    }

    #[test]
    fn silence_forgets_at_once_however_long_it_is() {
        let mut state = at(0.5);
        state.advance(Time::MAX, Heads::default());
        assert_eq!((state.base, state.delay), (0.0, 0));
        assert!(Time::MAX - state.updated_at < 16 * MS);
    }

    #[test]
    fn classic_packets_have_a_tenth_of_the_link() {
        let mut state = at(0.0);
        let heads = Heads {
            low: Some(0),
            classic: Some(0),
        };
        let classic = (0..1000).filter(|_| {
            let band = state.turn(heads).unwrap();
            state.sends(band, 1500, true);
            band == Band::Classic
        });
        assert_eq!(classic.count(), 100);
        let only = |low, classic| state.turn(Heads { low, classic });
        assert_eq!(only(None, None), None);
        assert_eq!(only(Some(0), None), Some(Band::Low));
        assert_eq!(only(None, Some(0)), Some(Band::Classic));
    }
}
