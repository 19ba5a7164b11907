//! Start-up by paced trains.
//!
//! The first flight begins with a train whose dispersion at the receiver measures the link; as nothing can be
//! known of it before a round trip has passed, more follows at a low, even pace. Each later
//! round begins with a train at twice what was measured, and goes on at the measured rate itself: until
//! packets come out slower than they went in, when the link's rate is known and only the window still
//! has to grow; or until several groups of packets in a row lose far more than earlier rounds did
//! without any queue, which a policer does and a channel hardly ever. What arrived since the first of
//! those groups is then the policer's rate.

use super::sampler::{CLOCK_NOISE, Sample, Settled};
use super::{MS, Nanos, Time, bytes_in, rate_of};

/// First flight, packets.
pub(super) const INITIAL_PACKETS: f64 = 32.0;
/// What follows the first train, packets, and the part of the round trip over which they are spread, so that 100 kB need no second flight.
/// On short paths that would save little and be fast.
const FOLLOWING_PACKETS: f64 = 64.0;
const FOLLOWING_PART: f64 = 0.6;
const FOLLOWING_RTT: Nanos = 30 * MS;
/// On a remembered path they are as many as this part of its rate would be in that time, up to twice as many, and leave at that one.
const FOLLOWING_RATE: f64 = 0.5;
const FOLLOWING_PACE: f64 = 2.0 / 3.0;
/// Fewest packets of a flight when hardly anything of the first ones arrives.
const FEWEST_PACKETS: f64 = 4.0;
/// Time over which the first flight is spread. Later ones are no faster either while nothing is measured, however short the round trip: a window
/// in some microseconds would be a rate that no link has.
const INITIAL_SPREAD: Nanos = 2 * MS;
/// Part of a round trip, and time and packets at least, that leave faster than the estimate in each round;
/// the rest follows at the estimate, so that little is lost if that was too much. (Rounds and samples last a
/// millisecond or two on the shortest paths: a train must be a good part of them to show.)
const TRAIN_PART: Nanos = 4;
const TRAIN_TIME: Nanos = MS;
const TRAIN_PACKETS: f64 = 64.0;
/// Growth of the window in one round at most.
const CWND_GROWTH: f64 = 32.0;
/// Pacing relative to the estimate while packets come out as fast as they go in.
const GAIN: f64 = 2.0;
/// A round that delivers less than this times the last one found nothing new
/// (draft-ietf-ccwg-bbr, section 5.3.1.2).
const GROWTH: f64 = 1.25;
/// More loss than in the round before, as a share, that shows a policer when growth ends.
const LOSS_STEP: f64 = 0.1;
/// More loss than in the round before in so many groups of packets in a row shows a policer at once;
/// standard errors of that loss besides. (A burst of channel losses hits one or two groups.)
const LOSSY_GROUPS: u32 = 4;
const GROUP_PACKETS: u64 = 24;
/// A loss that was known before is that of so many packets.
const KNOWN_PACKETS: f64 = 200.0;
const GROUP_ERRORS: f64 = 3.0;
/// The same where no queue can have lost them, errors of what is known of the channel included.
const SHARP_ERRORS: f64 = 2.0;
/// Few packets say little about the channel: so many that lost this share are added to those of a round.
const PRIOR_PACKETS: f64 = 8.0;
const PRIOR_LOSS: f64 = 0.02;
/// Where the application sends little, the rounds of a start-up are many and short: what they say of the channel is kept for so many packets.
const CLEAN_PACKETS: u64 = 512;
/// Rounds in a row that lose more than this share of so many packets end a start-up, whatever it takes the link for: one may have met a burst.
/// (Losses make arrivals uneven, and where they are uneven no round counts as one that has found nothing new.)
const FLOOD: f64 = 0.6;
const FLOOD_PACKETS: u64 = 16;
const FLOODS: u32 = 2;
/// Growth of the estimate in a round by what its samples may have been, at most, where the delay varies by itself.
const BELIEVED: f64 = 1.25;
/// A round that loses less than this has met no full queue.
const LOSS_CLEAN: f64 = 0.05;
/// Stretched samples that measure the link …
const STRETCHED: u32 = 2;
/// … and the part of a round trip that the last of them spans, as long as the train still stretches it:
/// short ones are mostly noise.
const STRETCHED_PART: Nanos = 8;

/// What a round or a sample of start-up means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Keep growing.
    Grow,
    /// The link's rate is known and the window can hold it.
    Found,
    /// More does not arrive however much is sent, yet no queue slows packets down.
    Policed,
}

/// A round that has ended, and what is known then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) lasted: Nanos,
    pub(super) rtt: Nanos,
    pub(super) has_queue: bool,
    /// A mark has told of a queue, at any time.
    pub(super) is_marked: bool,
    /// Duration of the shortest train that the next round needs, nanoseconds.
    pub(super) train: Nanos,
    pub(super) packet_bytes: f64,
}

/// State of one start-up.
#[derive(Debug)]
pub(super) struct Startup {
    cwnd: f64,
    round_cwnd: f64,
    /// Best finished sample of this round, the unfinished one, and the best of the last round.
    best: f64,
    unfinished: f64,
    /// What the best may have been if the delay varies by itself.
    most: f64,
    last_best: f64,
    flat_rounds: u32,
    /// Rounds in a row in which most packets were lost.
    floods: u32,
    stretched: u32,
    /// The latest sample is stretched, and a longer one will tell more.
    measuring: bool,
    /// No faster than the estimate for the rest of this round.
    braked: bool,
    app_limited: bool,
    /// The last round was limited by the application: the estimate is what that sends, and not what the link can do.
    is_estimate_low: bool,
    packets: u64,
    packets_lost: u64,
    /// Packets acknowledged and lost in a round, for as long as there is no sample.
    unmeasured: (usize, usize),
    /// Bytes that left in this round.
    round_sent: f64,
    /// Loss rate of the last round, 1 if there was none.
    last_loss: f64,
    /// Packets from which `last_loss` was computed.
    last_packets: f64,
    group: (u64, u64),
    /// The latest group was one that no queue can have lost.
    is_sharp: bool,
    /// Packets, and lost ones, of the round without lossy groups.
    clean: (u64, u64),
    lossy_groups: u32,
    /// Bytes delivered until the end of the first of them, and when that was; before, of the latest group that was none, or of the first packets.
    lossy_from: Option<(u64, Time)>,
    /// What has arrived since, if anything has, as the rate of a link with the last round's loss.
    lossy_rate: Option<f64>,
    /// Bytes that may still leave faster than the estimate in this round.
    train: f64,
    /// There has been a sample, in this start-up or before it.
    measured: bool,
    /// Pace of what follows the first train, bytes per second.
    following: Option<f64>,
    /// Since when a queue has stood: bytes delivered until then, and the time.
    queued_from: Option<(u64, Time)>,
}

impl Startup {
    /// Start-up of a new path, of which the handshake has shown the round trip, and an earlier session the rate.
    pub(super) fn new(packet_bytes: f64, rtt: Option<Nanos>, rate: Option<f64>) -> Self {
        let mut startup = Self {
            measured: false,
            ..Self::with_cwnd(INITIAL_PACKETS * packet_bytes, None)
        };
        if let Some(rtt) = rtt.filter(|rtt| *rtt >= FOLLOWING_RTT) {
            let spread = FOLLOWING_PART * rtt as f64;
            let most = FOLLOWING_PACKETS * packet_bytes;
            let (bytes, pace) = match rate {
                Some(rate) => {
                    let bytes = bytes_in(FOLLOWING_RATE * rate, spread as Nanos).min(2.0 * most);
                    let even = rate_of(bytes, spread as Nanos);
                    (bytes, even * FOLLOWING_PACE / FOLLOWING_RATE)
                }
                None => (most, rate_of(most, spread as Nanos)),
            };
            startup.cwnd += bytes;
            startup.following = Some(pace);
        }
        startup
    }

    /// Start-up from a window that has been in use, bytes, over a channel that loses the share `loss`,
    /// if that is known.
    pub(super) fn with_cwnd(cwnd: f64, loss: Option<f64>) -> Self {
        Self {
            cwnd,
            round_cwnd: cwnd,
            best: 0.0,
            unfinished: 0.0,
            most: 0.0,
            last_best: 0.0,
            flat_rounds: 0,
            floods: 0,
            stretched: 0,
            measuring: false,
            braked: false,
            app_limited: false,
            is_estimate_low: false,
            packets: 0,
            packets_lost: 0,
            unmeasured: (0, 0),
            round_sent: 0.0,
            last_loss: loss.unwrap_or(1.0),
            last_packets: KNOWN_PACKETS,
            group: (0, 0),
            is_sharp: false,
            clean: (0, 0),
            lossy_groups: 0,
            lossy_from: None,
            lossy_rate: None,
            train: cwnd,
            measured: true,
            following: None,
            queued_from: None,
        }
    }

    /// Start-up from a remembered rate: its first round does not go beyond it, and more loss than
    /// `loss` in it shows a policer.
    pub(super) fn resumed(cwnd: f64, loss: Option<f64>) -> Self {
        Self {
            braked: true,
            train: 0.0,
            ..Self::with_cwnd(cwnd, loss)
        }
    }

    /// Estimate to start from, bytes per second.
    pub(super) fn initial_rate(&self) -> f64 {
        rate_of(self.round_cwnd, INITIAL_SPREAD) / GAIN
    }

    /// Window, bytes.
    pub(super) fn cwnd(&self) -> f64 {
        self.cwnd
    }

    /// Pacing relative to the estimate.
    pub(super) fn gain(&self, bw: f64) -> f64 {
        if let Some(pace) = self.following.filter(|_| self.train <= 0.0) {
            return pace / bw.max(1.0);
        }
        match self.lossy_groups {
            0 if self.stretched == 0
                && !self.braked
                && (self.train > 0.0 || self.is_estimate_low) =>
            {
                GAIN
            }
            0 => 1.0,
            1 if !self.is_sharp => 1.0,
            // What arrived is all that there is, if this is a policer. (If it is a burst, the next group says so within a millisecond or two.)
            _ => self
                .lossy_rate
                .map_or(1.0, |rate| (rate / bw.max(1.0)).clamp(0.25, 1.0)),
        }
    }

    /// A packet left. Whether the first train ends with it, and others follow that tell nothing of the link.
    pub(super) fn on_sent(&mut self, bytes: u32) -> bool {
        let was_train = self.train > 0.0;
        self.train -= f64::from(bytes);
        self.round_sent += f64::from(bytes);
        was_train && self.train <= 0.0 && self.following.is_some()
    }

    /// A round begins, and with it a train.
    fn begin_train(&mut self, bw: f64, time: Nanos, packet_bytes: f64) {
        let bytes = bytes_in(GAIN * bw, time);
        self.train = bytes.max(TRAIN_PACKETS * packet_bytes);
    }

    /// Length of a sample.
    pub(super) fn sample_window(&self, rtt: Nanos) -> Nanos {
        (rtt / 4).max(2 * MS)
    }

    /// Packets were acknowledged and lost.
    pub(super) fn on_ack(&mut self, acked: usize, lost: usize) {
        self.unmeasured.0 += acked;
        self.unmeasured.1 += lost;
    }

    /// The application did not fill the window in this round.
    pub(super) fn on_app_limited(&mut self) {
        self.app_limited = true;
    }

    /// Packets of this start-up were settled; the rate behind a policer if they show one. `is_sharp`: only a policer or the channel can have
    /// lost them, and a group of them is short.
    pub(super) fn on_settled(&mut self, s: &Settled, is_sharp: bool) -> Option<f64> {
        let end = (s.delivered_until, s.received_at);
        let from = *self.lossy_from.get_or_insert(end);
        if s.app_limited {
            // A pause may follow, in which nothing arrives.
            self.lossy_from = None;
        }
        self.packets += s.packets;
        self.packets_lost += s.packets_lost;
        self.group.0 += s.packets;
        self.group.1 += s.packets_lost;
        if self.group.0 < GROUP_PACKETS {
            return None;
        }
        self.is_sharp = is_sharp;
        let (n, lost) = std::mem::take(&mut self.group);
        let is_lossy = lost as f64 > n as f64 * self.loss_bearable(n);
        if !is_lossy {
            self.clean = (self.clean.0 + n, self.clean.1 + lost);
        }
        // What arrives of too little data does not tell the rate of a policer.
        if !is_lossy || s.app_limited {
            self.lossy_groups = 0;
            self.lossy_rate = None;
            self.lossy_from = Some(end).filter(|_| !s.app_limited);
            return None;
        }
        self.lossy_groups += 1;
        let bytes = end.0.saturating_sub(from.0);
        let time = end.1.saturating_sub(from.1);
        let delivered = rate_of(bytes as f64, time.saturating_add(CLOCK_NOISE));
        self.lossy_rate = (bytes > 0).then(|| delivered / (1.0 - self.channel().0).max(0.1));
        if self.lossy_groups == 1 {
            // Before, a bucket may have held some.
            self.lossy_from = Some(end);
        }
        self.lossy_rate
            .filter(|_| self.lossy_groups >= LOSSY_GROUPS)
    }

    /// Whether there is a queue, now that packets were settled. A link with a queue is never idle: what arrives from the time on when there was
    /// one is all that it can do, and known once the queue has stood for `least`; but not if the application sends little, and others fill the
    /// queue. In bytes per second, without what the channel has lost.
    pub(super) fn on_queue(&mut self, s: &Settled, has_queue: bool, least: Nanos) -> Option<f64> {
        if !has_queue || s.app_limited {
            self.queued_from = None;
            return None;
        }
        let now = (s.delivered_until, s.received_at);
        let from = *self.queued_from.get_or_insert(now);
        let bytes = now.0.saturating_sub(from.0);
        let time = now.1.saturating_sub(from.1);
        (time >= least).then(|| rate_of(bytes as f64, time.saturating_add(CLOCK_NOISE)))
    }

    /// Loss in earlier rounds at lower rates.
    pub(super) fn loss(&self) -> Option<f64> {
        (self.last_loss < 1.0).then_some(self.last_loss)
    }

    /// What the channel loses as far as is known, and of how many packets. (What this round has lost tells too, if that is less: a policer
    /// adds to the losses of the channel.)
    fn channel(&self) -> (f64, f64) {
        let (p, known) = (self.last_loss, self.last_packets);
        let (n, lost) = (self.clean.0 as f64, self.clean.1 as f64);
        let both = (lost + p * known) / (n + known);
        match self.is_sharp && p < 1.0 && both < p {
            true => (both, n + known),
            false => (p, known),
        }
    }

    /// Share of `n` packets that may be lost in a row of groups if the channel is what it was.
    fn loss_bearable(&self, n: u64) -> f64 {
        let (p, known) = self.channel();
        let n = n.max(1) as f64;
        let (errors, samples) = match self.is_sharp {
            true => (SHARP_ERRORS, 1.0 / n + 1.0 / known),
            false => (GROUP_ERRORS, 1.0 / n),
        };
        p + LOSS_STEP.max(errors * (p * (1.0 - p) * samples).sqrt())
    }

    /// A sample and the `rate` it stands for, stretched or not. Returns the new estimate.
    pub(super) fn on_sample(
        &mut self,
        s: &Sample,
        (rate, stretched): (f64, bool),
        bw: f64,
        rtt: Nanos,
    ) -> f64 {
        if s.is_late {
            // The sender was late, so that the link may be faster than this.
            self.measured = true;
            return bw.max(rate);
        }
        let mut bw = bw;
        let finished = s.window_full;
        self.measuring = stretched && !finished && s.recv_interval < rtt / STRETCHED_PART;
        if stretched {
            let rate = s.rate_at_most(rate, bw);
            bw = if self.stretched == 0 || !self.measured {
                rate
            } else {
                (bw + rate) / 2.0
            };
            self.stretched += 1;
        } else if finished && self.stretched < STRETCHED {
            // Once measured, packets leave at the link's rate and are stretched no more.
            self.stretched = 0;
        }
        self.measured = true;
        self.most = self.most.max(s.rate_at_most(rate, f64::INFINITY));
        if finished {
            self.best = self.best.max(rate);
            self.unfinished = 0.0;
        } else {
            self.unfinished = rate;
        }
        bw.max(rate)
    }

    /// Lets the window follow the estimate; `bdp` and `slack` in bytes.
    pub(super) fn grow(&mut self, cwnd_gain: f64, bdp: f64, slack: f64) -> Verdict {
        let target = cwnd_gain * bdp + slack;
        self.cwnd = self.cwnd.max(target.min(CWND_GROWTH * self.round_cwnd));
        if self.stretched >= STRETCHED && !self.measuring && self.cwnd >= 1.25 * bdp {
            Verdict::Found
        } else {
            Verdict::Grow
        }
    }

    /// A round ended of which most was lost: the estimate that what arrived in it supports.
    fn on_flood(&mut self, bw: f64, round: &Round) -> (f64, Verdict) {
        let Round {
            lasted,
            rtt,
            packet_bytes,
            ..
        } = *round;
        let arrived = (self.packets - self.packets_lost) as f64 * packet_bytes;
        let bw = bw.min(rate_of(arrived, lasted) / (1.0 - FLOOD)).max(1.0);
        let least = FEWEST_PACKETS * packet_bytes;
        self.cwnd = self.cwnd.min(2.0 * bytes_in(bw, rtt)).max(least);
        self.round_cwnd = self.cwnd;
        self.braked = true;
        (self.best, self.unfinished, self.most) = (0.0, 0.0, 0.0);
        (self.packets, self.packets_lost) = (0, 0);
        self.floods += 1;
        let verdict = if self.floods < FLOODS {
            Verdict::Grow
        } else {
            Verdict::Found
        };
        (bw, verdict)
    }

    /// A round ended; returns the estimate that it supports.
    pub(super) fn on_round(&mut self, bw: f64, round: &Round) -> (f64, Verdict) {
        let Round {
            rtt,
            has_queue,
            is_marked,
            train,
            packet_bytes,
            ..
        } = *round;
        self.begin_train(
            bw,
            (rtt / TRAIN_PART).max(TRAIN_TIME).max(train),
            packet_bytes,
        );
        self.following = None;
        let app_limited = std::mem::take(&mut self.app_limited);
        self.is_estimate_low = app_limited;
        let is_window_used = 2.0 * std::mem::take(&mut self.round_sent) >= self.round_cwnd;
        let mut bw = bw;
        if !self.measured {
            // Too few packets or SACKs for a sample.
            let (acked, lost) = std::mem::take(&mut self.unmeasured);
            if lost > acked {
                // Hardly anything comes through. Beside a queue, because the first flight was more than the
                // path holds; else because it met a burst.
                if has_queue {
                    self.cwnd = (self.round_cwnd / 2.0).max(FEWEST_PACKETS * packet_bytes);
                    self.braked = true;
                    bw = rate_of(self.cwnd, rtt.max(INITIAL_SPREAD));
                }
            } else if !app_limited && !has_queue && is_window_used {
                // Grow as slow start does. (An end that only receives has rounds too, of a few frames.)
                self.cwnd = self.cwnd.max(2.0 * self.round_cwnd);
                self.braked = false;
                bw = bw.max(rate_of(self.cwnd, rtt.max(INITIAL_SPREAD)));
            }
            self.round_cwnd = self.cwnd;
            return (bw, Verdict::Grow);
        }
        let is_flood =
            self.packets >= FLOOD_PACKETS && self.packets_lost as f64 > FLOOD * self.packets as f64;
        if is_flood {
            return self.on_flood(bw, round);
        }
        self.floods = 0;
        self.round_cwnd = self.cwnd;
        let this = self.best.max(self.unfinished);
        let loss = self.packets_lost as f64 / self.packets.max(1) as f64;
        let is_clean = is_window_used && !has_queue && loss < LOSS_CLEAN;
        if this <= 0.0 {
            // Where SACKs come in clumps, so does what a full window lets go, and no sample spans the gaps between them. If a window has come back
            // without one, it is too small to measure with.
            let has_come_back = 2.0 * self.packets as f64 * packet_bytes >= self.round_cwnd;
            if has_come_back && is_clean && !app_limited && !is_marked && train > 0 {
                self.cwnd = 2.0 * self.round_cwnd;
            }
            return (bw, Verdict::Grow);
        }
        let most = std::mem::take(&mut self.most).max(this);
        let flat = most < GROWTH * self.last_best;
        let jumped = self.packets >= 16 && loss > self.last_loss + LOSS_STEP;
        if !app_limited {
            self.flat_rounds = if flat { self.flat_rounds + 1 } else { 0 };
        }
        if self.stretched == 0 {
            // Where the delay varies by itself (which makes trains longer) no sample of a round shows all that the link did. How much that may
            // have been is believed in part until packets queue or get lost.
            let growth = if train > 0 && is_clean { BELIEVED } else { 1.0 };
            bw = this.max(self.last_best).max(most.min(growth * bw));
        }
        self.last_best = this;
        let (n, lost) = self.clean;
        if n > 0 {
            let prior = PRIOR_PACKETS * PRIOR_LOSS;
            self.last_packets = n as f64 + PRIOR_PACKETS;
            self.last_loss = (lost as f64 + prior) / self.last_packets;
        }
        if !app_limited {
            self.clean = (0, 0);
        } else if n > CLEAN_PACKETS {
            self.clean = (n / 2, lost / 2);
        }
        self.best = 0.0;
        self.unfinished = 0.0;
        self.packets = 0;
        self.packets_lost = 0;
        self.braked = false;
        if self.flat_rounds >= 2 || (self.flat_rounds >= 1 && jumped) {
            (
                this.max(bw.min(most)),
                if jumped {
                    Verdict::Policed
                } else {
                    Verdict::Found
                },
            )
        } else {
            (bw, Verdict::Grow)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SEC;
    use super::super::bbr::Phase;
    use super::super::sampler::Run;
    use super::*;
    use crate::time::time;

    /// So many packets more, of which so many were lost, until the time `at`.
    fn settled(at: Nanos, delivered_until: u64, (packets, lost): (u64, u64)) -> Settled {
        Settled {
            run: Run::new(0, Phase::Startup),
            packets,
            packets_lost: lost,
            delivered_until,
            received_at: time(at),
            queue: 0,
            app_limited: false,
            sample: None,
        }
    }

    /// The rate was once that of all that had ever arrived, over the time since the peer's clock began.
    #[test]
    fn a_first_group_that_loses_much_tells_what_has_arrived_in_it() {
        let mut startup = Startup::resumed(1e6, Some(0.01));
        let (at, before) = (3600 * SEC, 1_000_000);
        startup.on_settled(&settled(at, before, (1, 0)), true);
        startup.on_settled(&settled(at + 12 * MS, before + 18_000, (23, 12)), true);
        // 1.5 MB/s.
        let gain = startup.gain(3e6);
        assert!((0.45..0.55).contains(&gain), "{gain}");
        // A lossy first group at once after a resumption tells nothing.
        let mut startup = Startup::resumed(1e6, Some(0.01));
        startup.on_settled(&settled(at, before, (24, 12)), true);
        assert_eq!(startup.gain(3e6), 1.0);
    }

    /// Messages that lost much once a second were taken for a policer's rate, and what a queue of others let through of them for the link's.
    #[test]
    fn what_the_application_sends_is_no_rate_of_the_link() {
        let ends = |app_limited: bool| {
            let mut startup = Startup::resumed(1e6, Some(0.01));
            let messages = (1..10).map(|n| Settled {
                app_limited,
                ..settled(n * SEC, n * 18 * 1500, (24, 6))
            });
            let mut ends = [false; 2];
            for message in messages {
                ends[0] |= startup.on_settled(&message, false).is_some();
                ends[1] |= startup.on_queue(&message, true, 40 * MS).is_some();
            }
            ends
        };
        assert_eq!(ends(true), [false; 2]);
        assert_eq!(ends(false), [true; 2]);
    }
}
