//! BBR as Linux has it (version 1): a rate and a window from what is delivered, and none of both from what is lost. Without its detection of
//! policers.

use std::collections::VecDeque;

use sphinx_proto::Nanos as Time;

use crate::MS;

const STARTUP_GAIN: f64 = 2.885;
const WINDOW_GAIN: f64 = 2.0;
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const RATE_ROUNDS: u64 = 10;
const EXTRA_ROUNDS: u64 = 5;
const RTT_LASTS: Time = 10_000 * MS;
const PROBE_RTT: Time = 200 * MS;
const WINDOW_MIN: f64 = 4.0;
/// Segments that are handed over at once, and for which the window has room beyond what the rate asks for.
const QUANTA: f64 = 6.0;

/// What is noted of a segment when it is sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamp {
    /// Segments delivered by then, and when the last of them was.
    delivered: u64,
    delivered_at: Time,
    /// When the segment was sent that was the last one delivered.
    first_at: Time,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Startup,
    Drain,
    Probe(usize),
    ProbeRtt { until: Option<Time> },
}

/// What an acknowledgement has changed.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Segments that were delivered.
    pub delivered: u64,
    /// Segments that were found lost.
    pub lost: u64,
    /// Segments that were out before.
    pub before: u64,
    /// Segments that are out now.
    pub pipe: u64,
    /// A measured round-trip time.
    pub rtt: Option<Time>,
    /// What was lost is not repaired yet.
    pub recovers: bool,
}

/// Counts in segments and nanoseconds.
#[derive(Debug)]
pub struct Bbr {
    mode: Mode,
    delivered: u64,
    delivered_at: Time,
    first_at: Time,
    /// Of what an acknowledgement delivers, the stamp of what was sent last, and when that was.
    newest: Option<(Stamp, Time)>,
    round: u64,
    round_until: u64,
    /// Segments in a nanosecond, by round.
    rates: VecDeque<(u64, f64)>,
    rtt_min: Time,
    rtt_min_at: Time,
    full: f64,
    full_rounds: u32,
    is_full: bool,
    cycle_at: Time,
    window: f64,
    window_before: f64,
    recovers: bool,
    conserves: bool,
    next_at: Time,
    /// What comes at once beyond the rate, at most: of these rounds and of those before.
    extra: [f64; 2],
    extra_round: u64,
    epoch_at: Time,
    epoch_delivered: f64,
}

impl Bbr {
    /// Before anything is sent.
    #[expect(clippy::new_without_default, reason = "nothing asks for one")]
    pub fn new() -> Bbr {
        Bbr {
            mode: Mode::Startup,
            delivered: 0,
            delivered_at: 0,
            first_at: 0,
            newest: None,
            round: 0,
            round_until: 0,
            rates: VecDeque::new(),
            rtt_min: Time::MAX,
            rtt_min_at: 0,
            full: 0.0,
            full_rounds: 0,
            is_full: false,
            cycle_at: 0,
            window: 10.0,
            window_before: 0.0,
            recovers: false,
            conserves: false,
            next_at: 0,
            extra: [0.0; 2],
            extra_round: 0,
            epoch_at: 0,
            epoch_delivered: 0.0,
        }
    }

    /// Segments that may be out.
    pub fn window(&self) -> f64 {
        self.window
    }

    /// The next segment may go then, as far as the rate is concerned.
    pub fn next_at(&self) -> Time {
        self.next_at
    }

    /// A segment is sent while so many others are out.
    pub fn send(&mut self, now: Time, pipe: u64) -> Stamp {
        if pipe == 0 {
            (self.first_at, self.delivered_at) = (now, now);
        }
        let rate = self.pacing_rate();
        if rate > 0.0 {
            self.next_at = self.next_at.max(now) + (1.0 / rate) as Time;
        }
        Stamp {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_at: self.first_at,
        }
    }

    /// Segments in a nanosecond that may be sent; 0 while nothing is known.
    pub fn pacing_rate(&self) -> f64 {
        self.rate() * self.pacing_gain()
    }

    /// A segment is delivered that was sent `at`.
    pub fn deliver(&mut self, now: Time, stamp: Stamp, at: Time) {
        self.delivered += 1;
        self.delivered_at = now;
        if self
            .newest
            .is_none_or(|it| (stamp.delivered, at) > (it.0.delivered, it.1))
        {
            self.newest = Some((stamp, at));
            self.first_at = at;
        }
    }

    /// There has been no answer for long.
    pub fn time_out(&mut self) {
        self.save();
        (self.full, self.full_rounds) = (0.0, 0);
        self.window = 1.0;
    }

    /// An acknowledgement has come, behind what it [delivers](Self::deliver).
    pub fn acknowledge(&mut self, now: Time, change: &Change) {
        let starts_round = self.see_rate(now);
        self.see_extra(now, change.delivered as f64);
        if starts_round && !self.is_full {
            self.full_rounds += 1;
            if self.rate() >= 1.25 * self.full {
                (self.full, self.full_rounds) = (self.rate(), 0);
            }
            self.is_full = self.full_rounds >= 3;
        }
        self.change_mode(now, change);
        self.see_rtt(now, change);
        self.set_window(change);
    }

    /// Whether a round trip has begun.
    fn see_rate(&mut self, now: Time) -> bool {
        let Some((stamp, at)) = self.newest.take() else {
            return false;
        };
        let starts = stamp.delivered >= self.round_until;
        if starts {
            self.round += 1;
            self.round_until = self.delivered;
            self.conserves = false;
        }
        let took = (now - stamp.delivered_at).max(at.saturating_sub(stamp.first_at));
        if took > 0 && (self.rtt_min == Time::MAX || took >= self.rtt_min) {
            let rate = (self.delivered - stamp.delivered) as f64 / took as f64;
            self.rates.retain(|it| it.1 > rate);
            self.rates.push_back((self.round, rate));
        }
        let round = self.round;
        self.rates.retain(|it| it.0 + RATE_ROUNDS > round);
        starts
    }

    fn see_extra(&mut self, now: Time, delivered: f64) {
        if self.round >= self.extra_round + EXTRA_ROUNDS {
            self.extra = [0.0, self.extra[0]];
            self.extra_round = self.round;
        }
        let mut expected = self.rate() * (now - self.epoch_at) as f64;
        if self.epoch_delivered <= expected {
            (self.epoch_delivered, self.epoch_at, expected) = (0.0, now, 0.0);
        }
        self.epoch_delivered += delivered;
        let extra = (self.epoch_delivered - expected).min(self.window);
        self.extra[0] = self.extra[0].max(extra);
    }

    fn change_mode(&mut self, now: Time, change: &Change) {
        let (before, full_cycle) = (change.before as f64, now - self.cycle_at > self.rtt_min);
        match self.mode {
            Mode::Startup if self.is_full => self.mode = Mode::Drain,
            Mode::Drain if change.pipe as f64 <= self.product() => {
                (self.mode, self.cycle_at) = (Mode::Probe(2), now);
            }
            Mode::Probe(at) => {
                let is_over = match at {
                    0 => full_cycle && (change.lost > 0 || before >= 1.25 * self.product()),
                    1 => full_cycle || before <= self.product(),
                    _ => full_cycle,
                };
                if is_over {
                    (self.mode, self.cycle_at) = (Mode::Probe((at + 1) % CYCLE.len()), now);
                }
            }
            _ => {}
        }
    }

    fn see_rtt(&mut self, now: Time, change: &Change) {
        let is_old = now > self.rtt_min_at + RTT_LASTS;
        if let Some(rtt) = change.rtt
            && (rtt <= self.rtt_min || is_old)
        {
            (self.rtt_min, self.rtt_min_at) = (rtt, now);
        }
        match self.mode {
            Mode::ProbeRtt { until: None } if change.pipe as f64 <= WINDOW_MIN => {
                let until = Some(now + PROBE_RTT);
                self.mode = Mode::ProbeRtt { until };
            }
            Mode::ProbeRtt { until: Some(at) } if at <= now => {
                self.rtt_min_at = now;
                self.window = self.window.max(self.window_before);
                self.mode = match self.is_full {
                    true => Mode::Probe(2),
                    false => Mode::Startup,
                };
                self.cycle_at = now;
            }
            Mode::ProbeRtt { .. } => {}
            _ if is_old => {
                self.save();
                self.mode = Mode::ProbeRtt { until: None };
            }
            _ => {}
        }
    }

    fn set_window(&mut self, change: &Change) {
        let delivered = change.delivered as f64;
        self.window = (self.window - change.lost as f64).max(1.0);
        if change.recovers && !self.recovers {
            self.save();
            self.conserves = true;
            self.round_until = self.delivered;
            self.window = change.pipe as f64 + delivered;
        } else if !change.recovers && self.recovers {
            self.window = self.window.max(self.window_before);
            self.conserves = false;
        }
        self.recovers = change.recovers;
        if self.conserves {
            self.window = self.window.max(change.pipe as f64 + delivered);
        } else if delivered > 0.0 {
            let target = self.target();
            if self.is_full {
                self.window = (self.window + delivered).min(target);
            } else if self.window < target || self.delivered < 10 {
                self.window += delivered;
            }
            self.window = self.window.max(WINDOW_MIN);
        }
        if matches!(self.mode, Mode::ProbeRtt { .. }) {
            self.window = self.window.min(WINDOW_MIN);
        }
    }

    fn save(&mut self) {
        let special = self.recovers || matches!(self.mode, Mode::ProbeRtt { .. });
        self.window_before = match special {
            true => self.window_before.max(self.window),
            false => self.window,
        };
    }

    fn target(&self) -> f64 {
        if self.rtt_min == Time::MAX || self.rates.is_empty() {
            return self.window;
        }
        let gain = match self.mode {
            Mode::Startup | Mode::Drain => STARTUP_GAIN,
            Mode::Probe(_) => WINDOW_GAIN,
            Mode::ProbeRtt { .. } => 1.0,
        };
        let extra = match self.is_full {
            true => self.extra[0].max(self.extra[1]),
            false => 0.0,
        };
        let extra = extra.min(self.rate() * (100 * MS) as f64);
        (gain * self.product()).ceil() + QUANTA + extra
    }

    /// What fits into the path without a queue.
    fn product(&self) -> f64 {
        self.rate() * self.rtt_min as f64
    }

    /// The highest of the last rounds.
    fn rate(&self) -> f64 {
        self.rates.iter().map(|it| it.1).fold(0.0, f64::max)
    }

    fn pacing_gain(&self) -> f64 {
        match self.mode {
            Mode::Startup => STARTUP_GAIN,
            Mode::Drain => 1.0 / STARTUP_GAIN,
            Mode::Probe(at) => CYCLE[at],
            Mode::ProbeRtt { .. } => 1.0,
        }
    }
}
