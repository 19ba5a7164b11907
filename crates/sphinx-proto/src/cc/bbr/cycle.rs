//! The cycle of cruise, probe up and probe down: what samples mean there, and when phases change.
//!
//! A policer gives no queue to see, so that its losses look like the channel's. Three things tell it:
//! a probe up loses more than the channel does (the controller becomes *cautious*: probes are rarer,
//! shorter, and believed less); losses at the estimate vanish when the rate is lowered a little
//! ([`Bbr::try_lower`], every round while cautious); and losses at the estimate exceed those of probe
//! down, over several cycles ([`Bbr::end_cycle`]).

use super::super::loss::Sudden;
use super::super::sampler::Sample;
use super::super::{MS, Nanos, SEC, Time, time_for};
use super::crowd::FIRST_ROUNDS;
use super::{Bbr, CE_FACTOR, Phase, UP_GAIN};

/// Growth that proves new capacity in probe up.
const GROWTH: f64 = 1.12;
/// Rounds at the estimated rate, and the most after fruitless probes that cost packets.
const CRUISE_ROUNDS: u32 = 4;
const CRUISE_ROUNDS_MAX: u32 = 64;
/// The same for so long after the rate of a link has changed whose delay varies, too.
const VARYING_ROUNDS: u32 = 1;
const VARIED_TIME: Nanos = 2 * SEC;
/// Probes are no more frequent than if a round took this long: on short paths they would be all there is.
const CYCLE_ROUND: Nanos = 9 * MS;
/// Fruitless probes that are remembered.
const CAUTION_MAX: u32 = 4;
/// Samples in a row with more loss than the channel's before the estimate is in doubt.
const LOSSY_SAMPLES: u32 = 4;
/// Probes in a row that must find capacity, besides one for each fruitless one, before a policer's bucket
/// cannot be what they find.
const DOUBTED_PROBES: u32 = 2;
/// Rounds at an estimate in doubt before it is compared again.
const DOUBT_ROUNDS: u32 = 4;
/// Longest comparison while little is known about the channel, rounds.
const UNSURE_ROUNDS: u64 = 6;
/// Least and most of the estimate that one probe of a policer is believed to show.
const SINK: f64 = 0.9;
const RISE: f64 = 1.06;
/// Behind a policer the estimate grows by this part for each packet of those that lost no more than the channel loses, and for so many at once.
const CLEAN_GROWTH: f64 = 1e-5;
const CLEAN_MOST: f64 = 1000.0;
/// Half of the rate lasts no longer, however few packets that is.
const LISTEN_ROUNDS: Nanos = 40;
/// Packets at least below the estimate in a cycle, and the time to which that may extend probe down.
const LOW_PACKETS: f64 = 40.0;
const LOW_TIME: Nanos = 4 * MS;
/// Slow samples lower the estimate if they span this time: on short paths they are shorter than the pauses of a
/// receiver that shares its processor, or of a radio that gathers packets.
const SLOW_TIME: Nanos = 10 * MS;

/// Round trips below the estimate at most after marks that others have met too: by then the queue is theirs.
const SHARED_DOWN: Nanos = 4;

impl Bbr {
    /// Loss beyond the channel's that is still taken for chance.
    pub(super) fn tolerance(&self, s: &Sample, channel: f64) -> f64 {
        let n = s.packets.max(1) as f64;
        let spread = channel.max(1.0 / n) * (1.0 - channel) / n * self.loss.burstiness();
        let spread = spread.sqrt();
        let chance = (3.0 * spread).max(0.03);
        // Sent at g times the estimate, a policer at the estimate would lose 1 − (1 − p) / g: half
        // way there it is the likelier cause.
        let gain = s.full_rate() / self.bw.max(1.0);
        if gain > 1.1 {
            let likely = (1.0 - channel) * (1.0 - 1.0 / gain) / 2.0;
            chance.min(likely.max(1.5 * spread))
        } else {
            chance
        }
    }

    pub(super) fn on_cycle_sample(&mut self, s: Sample, rate: f64, lossy: bool, now: Time) {
        if lossy && s.run.phase == Phase::Up && !self.up_lost_too_much {
            // What this probe seemed to find was the bucket of a policer or the room in a queue.
            self.up_lost_too_much = true;
            self.bw = self.bw.min(self.probe_from);
        }
        if s.run.phase == Phase::Startup && self.up_lost_too_much {
            // What was sent before the policer was recognised.
            return;
        }
        let limited = lossy || (s.stretched(32) && self.has_queue());
        let suspect = s.run.phase == Phase::Up && self.caution() > 0;
        // What lowers the estimate must not be the jitter's.
        let highest = s.rate_at_most(rate, self.bw);
        if suspect {
            let error = self.loss.rate_error(s.packets) * self.bw;
            // A full bucket gives way once, an empty one does not; and one burst of losses must not
            // cost much.
            let most = if self.growths > 0 { UP_GAIN } else { RISE };
            if (rate > self.bw + error || rate < self.bw - 2.0 * error) && !s.app_limited {
                self.bw += (rate.clamp(SINK * self.bw, most * self.bw) - self.bw) / 2.0;
            }
        } else if !limited && s.stretched(8) && s.run.phase == Phase::Up {
            // The queue is too short to be seen, yet the link was the limit.
            self.bw += ((rate - self.bw) / 2.0).max(0.0);
        } else if !limited && s.run.phase == Phase::Cruise && self.is_behind_policer() {
            // It is sent at the estimate, so that more than that is noise.
        } else if !limited {
            self.bw = self.bw.max(rate);
        } else if rate > self.bw {
            self.bw += (rate - self.bw) / 2.0;
        } else if s.run.phase == Phase::Up && !s.app_limited {
            self.bw += (highest - self.bw) / 2.0;
        } else if !s.app_limited && highest < 0.75 * self.bw && self.has_queue() {
            if self.slow_samples == 0 {
                self.slow_since = now;
            }
            self.slow_samples += 1;
            if self.slow_samples >= 2 && now.saturating_sub(self.slow_since) >= SLOW_TIME {
                self.bw = highest;
                self.loss.end_trial();
                self.varied_at = Some(now);
                self.enter(Phase::Drain, now);
                return;
            }
        } else if !s.app_limited && self.has_queue() {
            self.slow_samples = 0;
            self.bw += (highest - self.bw) / 8.0;
        }
        if s.run.phase == Phase::Cruise && self.phase == Phase::Cruise && s.window_full {
            self.lossy_samples = if lossy && !self.has_queue() {
                self.lossy_samples + 1
            } else {
                0
            };
            if self.lossy_samples >= LOSSY_SAMPLES && !self.in_doubt {
                // The channel became worse or a policer stricter: a lower rate will tell.
                self.in_doubt = true;
                self.enter(Phase::Down, now);
                return;
            }
        }
        if s.run.id >= self.phase_run && self.phase == Phase::Up {
            if !limited && rate > GROWTH * self.up_from {
                self.growths += 1;
                // The bucket of a policer gives way for a while: look again before growing.
                let caution = self.caution().max(u32::from(self.may_be_one_again()));
                let proven = caution == 0 || self.growths > caution + DOUBTED_PROBES;
                if proven {
                    self.varied_at = Some(now);
                }
                self.enter(if proven { Phase::Startup } else { Phase::Up }, now);
            } else if s.window_full {
                self.enter(Phase::Down, now);
            }
        }
    }

    /// Moves through the phases.
    pub(super) fn step(&mut self, now: Time, in_flight: f64, round_done: bool) {
        if self.scalable.is_on() {
            self.step_scalable(now, in_flight);
            return;
        }
        if self.sharing.is_on() {
            self.step_shared(now);
            return;
        }
        self.watch_alone();
        if !matches!(self.phase, Phase::Startup | Phase::Blackout) && self.is_start_up_refuted() {
            self.measured_over = Nanos::MAX;
            self.enter(Phase::Startup, now);
            return;
        }
        let in_phase = now.saturating_sub(self.phase_at);
        let round = self.rtt().max(self.min_round());
        match self.phase {
            Phase::Startup | Phase::Blackout => {}
            Phase::Drain | Phase::Down => {
                let drained = in_flight <= self.bdp() + self.slack();
                // Nothing tells a policer from a channel but a round at a lower rate.
                let compared = !(self.up_lost_too_much || self.in_doubt)
                    || (in_phase >= round
                        && (!self.loss.is_unsure() || in_phase > UNSURE_ROUNDS * round));
                let excess = (in_flight - self.bdp()).max(0.0);
                let patience = round
                    .saturating_mul(3 + UNSURE_ROUNDS)
                    .saturating_add(time_for(excess, self.bw));
                let shown = time_for(LOW_PACKETS * self.packet_bytes, self.bw).min(LOW_TIME);
                // One that has not come to its end is none of what drains a queue.
                let listens = self.phase == Phase::Down
                    && self.crowd.listener.is_on()
                    && in_phase < LISTEN_ROUNDS * round;
                if !listens && ((drained && compared && in_phase >= shown) || in_phase > patience) {
                    self.end_low_rate(now);
                    self.enter(Phase::Cruise, now);
                }
            }
            Phase::Cruise => {
                let rounds = if self.in_doubt {
                    DOUBT_ROUNDS
                } else if self.varies(now) {
                    VARYING_ROUNDS
                } else if self.looks_around() || self.has_had_queue() {
                    FIRST_ROUNDS
                } else {
                    (CRUISE_ROUNDS << self.caution().min(8)).min(CRUISE_ROUNDS_MAX)
                };
                let long = in_phase >= Nanos::from(rounds) * CYCLE_ROUND;
                if self.rounds_in_phase() >= u64::from(rounds) && long {
                    self.end_cycle(now);
                } else if self.caution() > 0 && round_done {
                    self.try_lower();
                }
            }
            Phase::Up => {
                // A sample that tells a quarter more from jitter takes several round trips. A queue tells sooner that there is no more.
                let is_vain = self.is_delay_vague() && self.has_queue();
                if self.rounds_in_phase() >= 3 || is_vain {
                    self.enter(Phase::Down, now);
                }
            }
            Phase::ProbeRtt => {
                if self.rounds_in_phase() >= 2 {
                    if let Some(rtt) = self.probe_rtt_min {
                        self.delay.replace_min_rtt(now, rtt);
                    }
                    self.enter(Phase::Cruise, now);
                }
            }
        }
    }

    /// Among others: down after marks or a queue, otherwise at a rate that grows with time.
    fn step_shared(&mut self, now: Time) {
        let rtt = self.delay.smoothed();
        let present = (self.bw, self.phase == Phase::Cruise);
        let (paces, filler) = ((self.packet_bytes, rtt), self.filled_by());
        let (bw, falls) = self.sharing.on_time(now, present, paces, filler);
        self.bw = bw;
        let is_by_queue = self.sharing.is_by_queue();
        if falls {
            self.fall(now, CE_FACTOR);
        } else if is_by_queue && self.watch_queue(now) {
        } else if self.phase == Phase::Down {
            let in_phase = now.saturating_sub(self.phase_at);
            let drained = if is_by_queue {
                self.is_crowd_drained()
            } else {
                self.delay.queue() < self.queue_threshold()
            };
            if in_phase > rtt && (drained || in_phase > SHARED_DOWN * rtt) {
                self.enter(Phase::Cruise, now);
            }
        }
    }

    /// Delay and rate of the link vary, as they do over radio: the next probe may find more again.
    fn varies(&self, now: Time) -> bool {
        let lately = |at| now.saturating_sub(at) < VARIED_TIME;
        self.varied_at.is_some_and(lately) && self.is_delay_vague() && self.caution() == 0
    }

    /// Fruitless probes in a row that cost packets.
    pub(super) fn caution(&self) -> u32 {
        if self.up_lost_too_much {
            self.lossy_probes + 1
        } else {
            self.lossy_probes
        }
    }

    /// Start-up has met a policer, and no queue has been seen since, as a policer has none.
    fn is_behind_policer(&self) -> bool {
        self.is_policed && self.is_without_queue()
    }

    /// Losses beyond the channel's at the estimate: are they the policer's, or has the channel become
    /// worse? A slightly lower rate tells.
    pub(super) fn try_lower(&mut self) {
        let again = self.loss.is_trying();
        match self.loss.sudden() {
            Sudden::Nothing => {
                if self.is_behind_policer() {
                    let packets = self.loss.take_clean().min(CLEAN_MOST);
                    self.bw *= 1.0 + CLEAN_GROWTH * packets;
                }
                return;
            }
            Sudden::Excess(excess) => {
                if !again {
                    self.before_trial = self.bw;
                }
                self.bw *= 1.0 - excess;
            }
            Sudden::Channel => self.bw = self.bw.max(self.before_trial),
        }
        // A new run, as the packets under way left at the old rate.
        self.trial_run = self.sampler.start_run(Phase::Cruise);
    }

    pub(super) fn end_cycle(&mut self, now: Time) {
        let caution = if self.up_lost_too_much {
            self.caution()
        } else {
            self.lossy_probes / 2
        };
        self.lossy_probes = caution.min(CAUTION_MAX);
        self.up_lost_too_much = false;
        let excess = self.loss.end_cycle(caution > 0);
        self.in_doubt = excess > 0.0;
        if self.in_doubt {
            self.bw *= 1.0 - excess;
            self.up_lost_too_much = true;
            self.enter(Phase::Down, now);
            return;
        }
        let confirmed = self.delay.confirmed_since(self.phase_at);
        self.cycles_without_min = if confirmed {
            0
        } else {
            self.cycles_without_min + 1
        };
        if self.cycles_without_min >= 4 || self.delay.is_stale(now) {
            self.cycles_without_min = 0;
            self.enter(Phase::ProbeRtt, now);
        } else {
            self.probe_from = self.bw;
            self.growths = 0;
            self.enter(Phase::Up, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::loss::Pace;
    use super::super::super::sampler::Run;
    use super::super::super::{AckSummary, CcParams, RateControl};
    use super::*;
    use crate::time::time;

    /// A sample of a cruise of one second, all of which arrives.
    fn whole() -> Sample {
        Sample {
            run: Run::new(0, Phase::Cruise),
            packets: 1000,
            packets_lost: 200,
            delivered_bytes: 1_200_000,
            lost_bytes: 300_000,
            send_interval: SEC,
            recv_interval: SEC,
            jitter: 0,
            app_limited: false,
            is_late: false,
            window_full: true,
        }
    }

    /// Half of the rate that had come to no end, as a start-up or a slower link came between, made the next drain last for forty round trips.
    #[test]
    fn what_drains_waits_for_no_half_of_the_rate() {
        let mut bbr = Bbr::new(CcParams::default());
        bbr.crowd.listener.on_whole(&whole());
        bbr.crowd.listener.begin(true, time(SEC));
        assert!(bbr.crowd.listener.is_on());
        bbr.enter(Phase::Drain, time(SEC));
        bbr.step(time(2 * SEC), 0.0, false);
        assert_eq!(bbr.phase(), Phase::Cruise);
    }

    /// At the full rate more is lost than at a lower one.
    fn lose(bbr: &mut Bbr) {
        bbr.loss.on_settled(Pace::Cruise, 1000, 300, true);
        bbr.try_lower();
    }

    /// Tries a lower rate than 10 MB/s.
    fn trying() -> Bbr {
        let mut bbr = Bbr::new(CcParams::default());
        bbr.loss.on_settled(Pace::Low, 1000, 10, true);
        bbr.bw = 10e6;
        lose(&mut bbr);
        assert!(bbr.loss.is_trying() && bbr.bw < 10e6);
        bbr
    }

    /// The rate before a trial came back behind a start-up that had found less.
    #[test]
    fn a_start_up_ends_a_trial() {
        let mut bbr = trying();
        bbr.enter(Phase::Startup, time(SEC));
        bbr.bw = 1e6;
        bbr.enter(Phase::Cruise, time(2 * SEC));
        for _ in 0..3 {
            lose(&mut bbr);
        }
        assert!(bbr.bandwidth_estimate() <= 1_000_000, "{}", bbr.bw);
    }

    /// It came back behind a link that had become much slower, too.
    #[test]
    fn a_slower_link_ends_a_trial() {
        let mut bbr = trying();
        bbr.enter(Phase::Cruise, time(SEC));
        for rtt in [10, 50, 50, 50] {
            let ack = AckSummary {
                now: time(SEC),
                acked: &[],
                lost: &[],
                rtt_sample: Some(rtt * MS),
                srtt: rtt * MS,
                arrival: None,
                ce_marked: 0,
                is_scalable: false,
                ecn_capable: true,
                bytes_in_flight: 0,
            };
            bbr.delay.on_ack(&ack, 0);
        }
        let stretched = Sample {
            recv_interval: 2 * SEC,
            ..whole()
        };
        for now in [2 * SEC, 2 * SEC + SLOW_TIME] {
            bbr.on_cycle_sample(stretched, 1e6, false, time(now));
        }
        assert_eq!(bbr.phase(), Phase::Drain);
        for _ in 0..3 {
            lose(&mut bbr);
        }
        assert!(bbr.bandwidth_estimate() <= 1_000_000, "{}", bbr.bw);
    }
}
