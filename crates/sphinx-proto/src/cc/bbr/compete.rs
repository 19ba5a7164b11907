//! Beside those who fill a queue: a fixed part of what the link carries.
//!
//! Who waits for losses fills any queue, and who keeps two of his own bandwidth-delay products under way does so beside others. A window that
//! yields to delay gets nothing there, and one that does not may get anything. What the link carries is known even so: where a queue never
//! empties, a flow that sends at `s` instead of its usual rate `u`, beside others who send on as before, gets the part of the link that its packets have of
//! all that arrive at the queue, `r = C·s / (s + C − u)`. So a round trip at a higher rate tells `C`, whoever the others are, and nothing
//! is asked of delay or loss. The others take a round trip to notice.

use super::super::loss::Counts;
use super::super::sampler::Sample;
use super::super::{MS, Nanos, Time, bytes_in, rate_of};
use super::{Bbr, Phase};

/// Part of the link. Somewhat less than half, so that two of ours do not take everything from a third.
pub(super) const PART: f64 = 0.45;
/// Paces of a cycle, a round trip each.
const GAINS: [f64; 8] = [1.5, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// What earlier probes still count when a new one begins, and how many of them what was known before stands for.
const MEMORY: f64 = 0.9;
const PRIOR: f64 = 4.0;
/// Weight of one sample at the usual pace.
const USUAL_GAIN: f64 = 1.0 / 8.0;
/// Change of the rate in one cycle at most.
const STEP: f64 = 1.25;
/// Loss of a cycle beyond the channel's that makes the part smaller, by this factor, and what is taken back after one without: there are more than one of ours.
const LOSS_STEP: f64 = 0.1;
const LESS: f64 = 0.9;
const MORE: f64 = 1.05;
const PART_MIN: f64 = 0.02;
/// Others have left when there has been hardly any queue for so long.
const EMPTY_TIME: Nanos = 1000 * MS;
const EMPTY_ROUNDS: u64 = 6;

/// What is known of the link and of the others.
#[derive(Debug)]
pub(super) struct Compete {
    part: f64,
    /// Place in the cycle of paces, and the first runs of its parts: faster, slower, as usual.
    place: usize,
    runs: [u64; 3],
    /// Rate at the usual pace, bytes per second, and how much more than it gets it sends, as a factor.
    usual: f64,
    crowd: f64,
    /// How much more probes sent than usual, and how much larger that factor was: the link is the one over the other.
    more: f64,
    crowded: f64,
    /// Packets of this cycle, and whether it is not the first one.
    settled: Counts,
    is_known: bool,
    /// When there was a queue last, and the round.
    queue_at: (Time, u64),
    /// Until when.
    until: Time,
}

impl Default for Compete {
    fn default() -> Self {
        Self {
            part: PART,
            place: 0,
            runs: [0; 3],
            usual: 0.0,
            crowd: 1.0,
            more: 0.0,
            crowded: 0.0,
            settled: Counts::default(),
            is_known: false,
            queue_at: (Time::ZERO, 0),
            until: Time::ZERO,
        }
    }
}

impl Compete {
    /// The link's rate, once a probe has shown it.
    fn capacity(&self) -> Option<f64> {
        (self.more > 0.0).then(|| {
            (self.more / self.crowded.max(f64::MIN_POSITIVE))
                .clamp(self.usual, self.usual / PART_MIN)
        })
    }

    pub(super) fn gain(&self) -> f64 {
        GAINS[self.place]
    }
}

impl Bbr {
    /// Beside others who do not yield, at this rate first, for so long.
    pub(super) fn compete(&mut self, rate: f64, time: Nanos, now: Time) {
        self.bw = rate;
        self.enter(Phase::Compete, now);
        let (more, crowded) = match self.compete.capacity() {
            Some(_) => (self.compete.more, self.compete.crowded),
            None => {
                let more = PRIOR * (GAINS[0] - 1.0) * rate;
                (more, more * PART / rate)
            }
        };
        self.compete = Compete {
            more,
            crowded,
            place: 2,
            runs: [u64::MAX, u64::MAX, self.phase_run],
            usual: rate,
            queue_at: (now, self.round),
            until: now + time,
            ..Compete::default()
        };
    }

    /// Bytes that may be under way: a pause in which nothing arrives must not fill the queue for long.
    pub(super) fn compete_window(&self) -> f64 {
        2.0 * bytes_in(self.bw, self.delay.smoothed_rtt()) + self.slack()
    }

    pub(super) fn on_compete_sample(&mut self, s: &Sample) {
        if s.app_limited {
            return;
        }
        // What a full queue drops, it does not carry.
        let delivered = s.delivered_bytes as f64 / (1.0 - self.loss.channel());
        let bytes = (s.delivered_bytes + s.lost_bytes) as f64;
        let sent = rate_of(bytes, s.send_interval);
        let got = rate_of(delivered.min(bytes), s.recv_interval);
        if sent <= 0.0 || got <= 0.0 {
            return;
        }
        let compete = &mut self.compete;
        let [faster, slower, usual] = compete.runs;
        if (faster..slower).contains(&s.run.id) {
            compete.more += sent - compete.usual;
            // At most as if nobody else were there: what is beyond that is the others' doing.
            let alone = (sent / compete.usual - 1.0).max(0.0);
            compete.crowded += (sent / got - compete.crowd).clamp(0.0, alone);
        } else if !(slower..usual).contains(&s.run.id) {
            compete.usual += (sent - compete.usual) * USUAL_GAIN;
            compete.crowd += (sent / got - compete.crowd) * USUAL_GAIN;
        }
    }

    /// A round ended.
    pub(super) fn compete_round(&mut self, now: Time) {
        let round = self.last_round;
        self.share.use_now(now);
        if self.sampler.jitter() > 0 {
            self.refuse_share(now);
            self.enter(Phase::Cruise, now);
            return;
        }
        if round
            .queue()
            .is_some_and(|queue| queue > self.queue_threshold())
        {
            self.compete.queue_at = (now, self.round);
        }
        let (at, since) = self.compete.queue_at;
        if now.saturating_sub(at) > EMPTY_TIME && self.round - since > EMPTY_ROUNDS {
            self.enter(Phase::Startup, now);
            return;
        }
        if now > self.compete.until {
            self.enter(Phase::Share, now);
            return;
        }
        self.compete.settled.add(round.packets(), round.lost());
        self.compete.place = (self.compete.place + 1) % GAINS.len();
        let place = self.compete.place;
        if place < self.compete.runs.len() {
            self.compete.runs[place..].fill(u64::MAX);
            self.compete.runs[place] = self.sampler.start_run(Phase::Compete);
        }
        if place == 0 {
            // In the first cycle the others learn that there is less for them.
            let settled = std::mem::take(&mut self.compete.settled);
            let has_lost =
                settled.ratio() > self.loss.channel() + LOSS_STEP && self.compete.is_known;
            let factor = if has_lost { LESS } else { MORE };
            self.compete.part = (self.compete.part * factor).clamp(PART_MIN, PART);
            self.compete.is_known = true;
            self.compete.more *= MEMORY;
            self.compete.crowded *= MEMORY;
        }
        if place == GAINS.len() - 1
            && let Some(capacity) = self.compete.capacity()
        {
            let due = self.compete.part * capacity;
            self.bw = due.clamp(self.bw / STEP, STEP * self.bw);
        }
    }
}
