//! How long samples are: short where it is urgent, long enough to average out noise, and longer the more the
//! delay varies by itself.

use super::super::sampler::{Sample, Span};
use super::super::{MS, Nanos, bytes_in};
use super::{Bbr, Phase, UP_GAIN};

/// Shortest sample in multiples of the jitter: in start-up, where more packets follow in the next round …
const STARTUP_JITTER: Nanos = 3;
/// … of a probe up, which must tell a quarter more …
const UP_JITTER: Nanos = 10;
/// … and of the other phases, where several must agree.
const CRUISE_JITTER: Nanos = 6;
/// Faster than that times the estimate a link cannot be: packets of start-up leave at twice the estimate.
const STARTUP_FASTEST: f64 = 2.5;

impl Bbr {
    /// Length of a sample.
    pub(super) fn sample_span(&self) -> Span {
        let rtt = self.rtt();
        let (least, jitters) = match self.phase {
            Phase::Startup => {
                let least = self.startup.sample_window(rtt);
                (least.max(self.startup_span()), 0)
            }
            // The bucket of a policer may hide its limit for a while.
            Phase::Up if self.caution() > 0 => (self.train_time(), 0),
            Phase::Up => ((rtt / 4).max(4 * MS), UP_JITTER),
            _ => ((rtt / 2).max(8 * MS), CRUISE_JITTER),
        };
        Span { least, jitters }
    }

    /// Time that a sample of start-up must span beyond what start-up itself asks for. (A round must have room
    /// for one.)
    fn startup_span(&self) -> Nanos {
        (STARTUP_JITTER * self.sampler.jitter()).min(self.rtt() / 2)
    }

    /// Time for which a queue has to stand to show the rate of the link.
    pub(super) fn standing_span(&self) -> Nanos {
        let jitter = self.sampler.jitter();
        self.rtt().max(STARTUP_JITTER.saturating_mul(jitter))
    }

    /// Time for which a round of start-up must send faster than the estimate for samples to show it.
    pub(super) fn startup_train(&self) -> Nanos {
        match self.startup_span() {
            span if span > MS => span.max(self.rtt() / 4) + self.rtt() / 4,
            _ => 0,
        }
    }

    /// Length of a probe up where there may be a policer, time and bytes.
    fn train_time(&self) -> Nanos {
        let jitter = self.sampler.jitter();
        (self.rtt() / 4).max(12 * MS).max(UP_JITTER * jitter)
    }

    pub(super) fn train(&self) -> f64 {
        bytes_in(UP_GAIN * self.up_from, self.train_time())
    }

    /// Fewest packets in a sample.
    pub(super) fn sample_packets(&self) -> u64 {
        if self.phase == Phase::Startup { 8 } else { 16 }
    }

    /// No link is believed to be faster; packets that come closer together have been held back.
    pub(super) fn fastest(&self) -> f64 {
        match self.phase {
            Phase::Startup => STARTUP_FASTEST * self.bw,
            _ => UP_GAIN * self.bw,
        }
    }

    /// A sample needs enough packets and time; unfinished ones serve only where it is urgent.
    pub(super) fn is_usable(&self, s: &Sample) -> bool {
        let span = s.send_interval.max(s.recv_interval);
        match s.run.phase {
            Phase::Startup => s.packets >= 8 && span >= (4 * MS / 5).max(self.startup_span()),
            _ => {
                let whole = s.window_full || s.app_limited;
                s.packets >= 16
                    && ((span >= 2 * MS && whole) || (span >= 8 * MS && is_much_slower(s)))
            }
        }
    }

    /// The delay varies too much for the sample to show the link.
    pub(super) fn is_brief(&self, s: &Sample) -> bool {
        s.recv_interval < STARTUP_JITTER.saturating_mul(s.jitter)
    }

    /// Start-up has measured less time than shows anything, as has turned out: the delay varies.
    pub(super) fn is_start_up_refuted(&self) -> bool {
        self.measured_over < STARTUP_JITTER * self.sampler.jitter()
    }
}

/// Whether a sample that jitter has made long shows before its end that the link has become much slower: even if the
/// delay had varied as far as it does.
fn is_much_slower(s: &Sample) -> bool {
    s.jitter > 0 && s.recv_interval.saturating_sub(s.jitter) > s.send_interval / 2 * 3
}

#[cfg(test)]
mod tests {
    use super::super::super::CcParams;
    use super::super::super::sampler::Run;
    use super::*;

    /// Jitter is computed from the peer's clock, and may be anything.
    #[test]
    fn any_jitter_is_survived() {
        let bbr = Bbr::new(CcParams::default());
        let sample = |jitter| Sample {
            run: Run::new(0, Phase::Startup),
            packets: 100,
            packets_lost: 0,
            delivered_bytes: 100_000,
            lost_bytes: 0,
            send_interval: 10 * MS,
            recv_interval: 10 * MS,
            jitter,
            app_limited: false,
            is_late: false,
            window_full: true,
        };
        assert!(bbr.is_brief(&sample(Nanos::MAX)) && !bbr.is_brief(&sample(MS)));
    }
}
