//! When an end that hears nothing sends a probe (RFC 9002 §6.2).

use crate::{Nanos, Time};

use super::monitor::Monitor;

/// Longest wait between probes of silent addresses, and of some that have been silent for long although they
/// used to lose little: they are interrupted, and a probe at a time finds out when they are not.
const PROBE_INTERVAL_MAX: Nanos = 500_000_000;
const PROBE_INTERVAL_LONG: Nanos = 1_000_000_000;
const INTERRUPTED_AFTER: u32 = 8;
const INTERRUPTED_PLR_MAX: f64 = 0.2;

/// How often the number of probes doubles while they are not answered.
const PROBE_DOUBLINGS: u32 = 2;

/// No path counts as suspect sooner than this: an end whose processor does something else is silent for as long as a processor is
/// given away, and its path is none the worse for that.
const SUSPECT_AFTER: Nanos = 20_000_000;

/// Addresses are dead, and not merely losing a burst, after so many probes without an answer …
const PERSISTENT_PROBES: u32 = 3;
/// … and so many probe timeouts of silence (compare RFC 9002 §7.6).
const PERSISTENT_PTOS: u64 = 3;
/// … and no sooner than this, however short the path: an end whose processor does something else is silent too. (QUIC's three probe timeouts are hardly
/// shorter, as the peer's delay of 25 ms is in each: RFC 9002 §7.6.1, RFC 9000 §18.2.)
const PERSISTENT_AFTER: Nanos = 100_000_000;

/// The probe timer of one pair of addresses.
#[derive(Debug)]
pub(crate) struct ProbeTimer {
    /// Probe timeouts since an acknowledgement that brought something forward.
    unanswered: u32,
    /// When something was last acknowledged, or first sent after that.
    last_news: Time,
    last_probe: Time,
    /// When the peer was last asked elsewhere what has arrived.
    asked_elsewhere: Option<Time>,
}

/// How many probes are to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Probes {
    pub(crate) most: u32,
    /// Earlier probes were not answered.
    pub(crate) again: bool,
}

impl ProbeTimer {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            unanswered: 0,
            last_news: now,
            last_probe: now,
            asked_elsewhere: None,
        }
    }

    /// Something was acknowledged, or is in flight where nothing was before.
    pub(crate) fn on_news(&mut self, now: Time) {
        self.last_news = now;
    }

    /// An acknowledgement brought something forward.
    pub(crate) fn on_progress(&mut self) {
        self.unanswered = 0;
    }

    /// How long a symbol's fate may stay unknown where the probe timeout is `pto`; longer the longer nothing is
    /// heard.
    pub(crate) fn wait(&self, pto: Nanos, monitor: &Monitor) -> Nanos {
        // Losing one probe or its answer is nothing special on a lossy path.
        let doublings = self.unanswered.saturating_sub(1).min(6);
        let longest = if self.is_interrupted(monitor) {
            PROBE_INTERVAL_LONG
        } else {
            PROBE_INTERVAL_MAX
        };
        (pto << doublings).min(longest.max(pto))
    }

    /// Whether the silence is not a matter of chance.
    fn is_interrupted(&self, monitor: &Monitor) -> bool {
        self.unanswered >= INTERRUPTED_AFTER && monitor.plr() < INTERRUPTED_PLR_MAX
    }

    /// When the next probe is due, if the last packet to be acknowledged left at `last_sent`.
    pub(crate) fn deadline(&self, last_sent: Time, wait: Nanos) -> Time {
        // A window that is still open must not hide that nothing comes back.
        let heard = self.last_news.saturating_add(wait).max(self.last_probe);
        last_sent.min(heard).saturating_add(wait)
    }

    /// When a path counts as suspect, if others can take over: nothing has come back for the whole wait.
    pub(crate) fn suspect_at(&self, wait: Nanos) -> Time {
        let asked = self.last_news.max(self.last_probe);
        let silent = self.last_news.saturating_add(SUSPECT_AFTER);
        asked.saturating_add(wait).max(silent)
    }

    /// When the peer is to be asked elsewhere what has arrived, once for each silence: news should have been there for `late`. `oldest`: when the
    /// oldest packet left that is on its way, for `rtt` usually.
    pub(crate) fn ask_elsewhere_at(&self, oldest: Time, rtt: Nanos, late: Nanos) -> Option<Time> {
        let expected = self.last_news.max(oldest.saturating_add(rtt));
        let is_asked = self.asked_elsewhere.is_some_and(|at| at >= self.last_news);
        (!is_asked).then(|| expected.saturating_add(late))
    }

    /// The peer has been asked about this path on another one.
    pub(crate) fn on_asked_elsewhere(&mut self, now: Time) {
        self.asked_elsewhere = Some(now);
    }

    /// A probe is due. Whether the silence has become a blackout.
    pub(crate) fn on_timeout(&mut self, now: Time, pto: Nanos) -> bool {
        self.unanswered += 1;
        self.last_probe = now;
        let silence = now.saturating_sub(self.last_news);
        self.unanswered >= PERSISTENT_PROBES
            && silence >= (PERSISTENT_PTOS * pto).max(PERSISTENT_AFTER)
    }

    /// How many probes the present timeout sends.
    pub(crate) fn probes(&self, monitor: &Monitor) -> Probes {
        // One burst of losses may swallow several: where the last ones have not been answered, more follow.
        let again = self.unanswered.saturating_sub(1).min(PROBE_DOUBLINGS);
        Probes {
            most: if self.is_interrupted(monitor) {
                1
            } else {
                2 << again
            },
            again: again > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * MS)
    }

    #[test]
    fn a_short_stop_is_not_taken_for_silence() {
        let mut timer = ProbeTimer::new(at(0));
        timer.on_news(at(100));
        // A path of tenths of a millisecond, and one of 50.
        assert_eq!(timer.suspect_at(MS), at(120));
        assert_eq!(timer.suspect_at(60 * MS), at(160));
        // A probe gets the time for its answer.
        timer.on_timeout(at(101), MS);
        assert_eq!(timer.suspect_at(MS), at(120));
        timer.on_timeout(at(119), MS);
        assert_eq!(timer.suspect_at(2 * MS), at(121));
    }

    #[test]
    fn a_short_stop_is_no_blackout() {
        // A path of tenths of a millisecond, and one of 50.
        for (pto, probes) in [
            (MS, [101, 103, 107, 115, 131, 163, 199, 200]),
            (60 * MS, [160, 200, 240, 260, 270, 275, 279, 280]),
        ] {
            let mut timer = ProbeTimer::new(at(0));
            timer.on_news(at(100));
            let blackout = probes.map(|ms| timer.on_timeout(at(ms), pto));
            assert_eq!(
                blackout,
                [false, false, false, false, false, false, false, true]
            );
        }
    }
}
