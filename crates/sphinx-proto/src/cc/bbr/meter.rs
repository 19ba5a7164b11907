//! Which part of what a link carries is ours.
//!
//! Who sends `g` times as much as before gets `g` times as much, if the link has room for that; the same as before, if nobody else uses the link and it
//! is full; and something in between, if others do: `g / (1 + (g − 1) · u / C)` of what it got, where `u / C` is its part. Neither what the
//! channel loses nor whether the queue is full matters to that, as both are compared with the time before.

use std::collections::VecDeque;

use super::super::SEC;
use super::super::sampler::Sample;

/// Number of readings that are kept.
const READINGS: usize = 8;
/// Less of a probe says nothing.
const GAIN_MIN: f64 = 1.1;
/// One reading counts as no less and no more than that: where few packets arrive, some are far off.
const READING: (f64, f64) = (-0.5, 1.5);
/// The error of a reading, in those of what arrived of a probe: a probe of 1.25 tells a fifth of what it is.
const ERROR_GAIN: f64 = 5.0;
/// Smallest standard error that a mean is given.
const ERROR_MIN: f64 = 0.02;
/// Part of a cruise that is kept when more of it is known: what others send grows with time, and a probe is to be compared with what was just before it.
const KEPT: f64 = 0.5;
/// A cruise of which so much is kept is as good as two samples: chance has a part in it too.
const CHANCE_OF_BOTH: f64 = 1.5;
/// Weight of the latest probe in what chance does to a reading.
const CHANCE_GAIN: f64 = 0.25;

/// Bytes, and nanoseconds.
#[derive(Debug, Default)]
struct Sums {
    sent: f64,
    sent_in: f64,
    arrived: f64,
    arrived_in: f64,
}

/// A mean of readings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// 1 if nobody else uses the link; noise may take it to −0.5 and 1.5.
    pub(super) mean: f64,
    /// Standard error of the mean.
    pub(super) error: f64,
    pub(super) readings: usize,
    /// What was sent before the probes, bytes per second.
    pub(super) rate: f64,
}

impl Part {
    /// The part of the same link at another rate.
    pub(super) fn at(self, rate: f64) -> Part {
        if self.rate == 0.0 {
            return self;
        }
        Part {
            mean: self.mean * rate / self.rate,
            error: self.error * rate / self.rate,
            rate,
            ..self
        }
    }
}

/// What a single probe tells of this flow's part of the link.
#[derive(Clone, Copy, Debug)]
struct Reading {
    part: f64,
    /// Rate before the probe, bytes per second.
    rate: f64,
}

/// Compares probes with the cruises before them.
#[derive(Debug, Default)]
pub(super) struct Meter {
    cruise: Sums,
    readings: VecDeque<Reading>,
    /// Variance of what arrives of a probe by losses alone.
    chance: f64,
}

impl Meter {
    /// A cruise begins.
    pub(super) fn begin(&mut self) {
        self.cruise = Sums::default();
    }

    /// Forgets all readings.
    pub(super) fn clear(&mut self) {
        self.readings.clear();
    }

    /// Whether there are as many readings as are remembered.
    pub(super) fn is_full(&self) -> bool {
        self.readings.len() == READINGS
    }

    /// Number of readings.
    pub(super) fn readings(&self) -> usize {
        self.readings.len()
    }

    /// A whole sample of a cruise.
    pub(super) fn on_cruise(&mut self, s: &Sample) {
        let add = |sum: &mut f64, more: u64| *sum = KEPT * *sum + more as f64;
        let cruise = &mut self.cruise;
        add(&mut cruise.sent, s.delivered_bytes + s.lost_bytes);
        add(&mut cruise.sent_in, s.send_interval);
        add(&mut cruise.arrived, s.delivered_bytes);
        add(&mut cruise.arrived_in, s.recv_interval);
    }

    /// A whole sample of the probe that follows. Whether it could be read.
    pub(super) fn on_probe(&mut self, s: &Sample) -> bool {
        let cruise = &self.cruise;
        let sent = (s.delivered_bytes + s.lost_bytes) as f64 / s.send_interval as f64;
        let arrived = s.delivered_bytes as f64 / s.recv_interval as f64;
        let gain = sent * cruise.sent_in / cruise.sent;
        let got = arrived * cruise.arrived_in / cruise.arrived;
        let is_read = gain > GAIN_MIN && got > 0.0 && gain.is_finite() && got.is_finite();
        if is_read {
            self.note_chance(s);
            self.read((gain / got - 1.0) / (gain - 1.0), sent / gain);
        }
        is_read
    }

    /// A whole sample of a probe of a full link, where nothing could have arrived faster: it was sent `gain` times as fast as the cruise that filled it.
    pub(super) fn on_full(&mut self, s: &Sample, gain: f64) {
        let arrives = self.arrives();
        let sent = (s.delivered_bytes + s.lost_bytes) as f64 / s.send_interval as f64;
        let carried = s.delivered_bytes as f64 / arrives / s.recv_interval as f64;
        let over = sent / carried - 1.0;
        if over.is_finite() {
            self.note_chance(s);
            self.read(over / (gain - 1.0), sent / gain);
        }
    }

    /// Share of what the cruise before has sent that has arrived: all, where it had no whole sample.
    fn arrives(&self) -> f64 {
        match self.cruise.sent {
            0.0 => 1.0,
            sent => self.cruise.arrived / sent,
        }
    }

    fn note_chance(&mut self, s: &Sample) {
        let arrives = self.arrives().clamp(0.1, 1.0);
        let variance = CHANCE_OF_BOTH * (1.0 - arrives) / arrives / s.packets.max(1) as f64;
        self.chance += (variance - self.chance) * CHANCE_GAIN;
    }

    /// `rate` in bytes per nanosecond.
    fn read(&mut self, part: f64, rate: f64) {
        if self.is_full() {
            self.readings.pop_front();
        }
        self.readings.push_back(Reading {
            part: part.clamp(READING.0, READING.1),
            rate: rate * SEC as f64,
        });
    }

    /// Mean and error over all readings.
    pub(super) fn part(&self) -> Part {
        let n = self.readings.len().max(2) as f64;
        let mean_of = |pick: fn(&Reading) -> f64| self.readings.iter().map(pick).sum::<f64>() / n;
        let mean = mean_of(|it| it.part);
        let squares = self.readings.iter().map(|it| (it.part - mean).powi(2));
        let spread = (squares.sum::<f64>() / (n - 1.0) / n).sqrt();
        let by_losses = ERROR_GAIN * (self.chance / n).sqrt();
        Part {
            mean,
            error: spread.max(by_losses).max(ERROR_MIN),
            readings: self.readings.len(),
            rate: mean_of(|it| it.rate),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::MS;
    use crate::cc::bbr::Phase;
    use crate::cc::sampler::Run;

    /// 100 ms of what a flow sends at `rate` beside others at `others`, over a link of 100 that loses the share `loss`.
    fn sample(phase: Phase, rate: f64, others: f64, loss: f64) -> Sample {
        let over = ((rate + others) / 100.0).max(1.0);
        let bytes = rate * 15_000.0;
        Sample {
            run: Run::new(0, phase),
            packets: (bytes / 1500.0) as u64,
            packets_lost: (bytes / 1500.0 * loss) as u64,
            delivered_bytes: (bytes * (1.0 - loss)) as u64,
            lost_bytes: (bytes * loss) as u64,
            send_interval: 100 * MS,
            recv_interval: (100.0 * over * MS as f64) as u64,
            jitter: 0,
            app_limited: false,
            is_late: false,
            window_full: true,
        }
    }

    fn part(rate: f64, others: f64, loss: f64) -> Part {
        let mut meter = Meter::default();
        for _ in 0..4 {
            meter.begin();
            meter.on_cruise(&sample(Phase::Cruise, rate, others, loss));
            assert!(meter.on_probe(&sample(Phase::Up, 1.25 * rate, others, loss)));
        }
        meter.part()
    }

    #[test]
    fn a_probe_shows_which_part_of_the_link_is_ours() {
        for loss in [0.0, 0.3] {
            for ours in [100.0, 50.0, 10.0] {
                let part = part(ours, 100.0 - ours, loss);
                assert!((part.mean - ours / 100.0).abs() < 0.01, "{part:?}");
                assert_eq!(part.readings, 4);
                // What chance may do to few packets.
                assert!((part.error > ERROR_MIN) == (loss > 0.0), "{part:?}");
            }
            // Room for more.
            assert!(part(50.0, 0.0, loss).mean.abs() < 0.01);
        }
    }

    #[test]
    fn so_does_one_of_a_full_link() {
        for (ours, loss) in [(100.0, 0.0), (100.0, 0.2), (20.0, 0.0), (20.0, 0.2)] {
            let mut meter = Meter::default();
            meter.on_cruise(&sample(Phase::Cruise, ours, 100.0 - ours, loss));
            meter.on_full(&sample(Phase::Up, 1.25 * ours, 100.0 - ours, loss), 1.25);
            meter.on_full(&sample(Phase::Up, 1.25 * ours, 100.0 - ours, loss), 1.25);
            assert!((meter.part().mean - ours / 100.0).abs() < 0.01);
        }
    }

    /// The error by chance was 0/0 then, and so for ever.
    #[test]
    fn a_probe_without_a_cruise_before_it_leaves_what_chance_does() {
        let mut meter = Meter::default();
        meter.on_full(&sample(Phase::Up, 125.0, 0.0, 0.2), 1.25);
        for _ in 0..4 {
            meter.begin();
            meter.on_cruise(&sample(Phase::Cruise, 50.0, 50.0, 0.2));
            assert!(meter.on_probe(&sample(Phase::Up, 62.5, 50.0, 0.2)));
        }
        assert!(meter.chance > 0.0, "{}", meter.chance);
    }

    #[test]
    fn a_part_follows_the_rate() {
        let part = part(40.0, 60.0, 0.0);
        let half = part.at(part.rate / 2.0);
        assert!((half.mean - 0.2).abs() < 0.01, "{half:?}");
        assert!((half.at(part.rate).mean - part.mean).abs() < 1e-9);
        // Without readings nothing is known at any rate.
        assert_eq!(Meter::default().part().at(1e6).mean, 0.0);
    }
}
