//! One of several flows in a queue that does not mark.
//!
//! To a flow with a small part of a link a full queue looks like a channel that loses, and jitter looks like a queue that stands. What is neither: a flow
//! that has the link alone gets all of what it sends less of when it probes ([`Meter`]), and one among others gets only its part. So
//! a flow whose probes show less than the whole, behind a queue that is seen to come and go, follows the rule of [`super::sharing`] with a queue in place of marks.
//! So does one whose lower rates do not make a queue go that loses packets, and one that seems to lose much and has never seen a queue, as it may
//! have been full ever since. A flow goes back to its own ways when probes of a full link show the whole.
//!
//! If the queue stands although all of ours would have emptied it, somebody is there who does not yield ([`Rival`]). Then only losses count, until it is gone.

use super::super::sampler::Sample;
use super::super::{MS, Nanos, SEC, Time, time_for};
use super::listener::Listener;
use super::meter::{Meter, Part};
use super::rival::Rival;
use super::sharing::{Filler, is_one_in};
use super::{Bbr, CE_FACTOR, Phase, UP_GAIN};

/// Queueing delay at which all send less, and below which a queue is gone.
const QUEUE: Nanos = 8 * MS;
const GONE: Nanos = 2 * MS;
/// Loss rate at which all send less, as at [`QUEUE`].
const LOSS: f64 = 0.05;
/// What is left of the rate at least where much of it is lost.
const LEFT_AT_LEAST: f64 = 0.5;
/// Packets after which half of them are forgotten.
const LOSS_PACKETS: f64 = 64.0;
/// Of so much that is lost not all is the channel's, however short the queue seems.
const LOSS_LOW: f64 = 0.3;
/// So many times in a row a rate below the estimate has not made a queue go, and of so many packets too many were lost.
const STOOD: u32 = 2;
const STOOD_PACKETS: f64 = 32.0;
/// Where the delay varies no queue is ever seen to go. There it is somebody else's if of the packets below the estimate it loses this part, too.
const LOSS_BELOW: f64 = 0.025;
/// A flow has [ten packets](super::MIN_PACKETS) under way at least. Where the link holds fewer than these, its own lower rates do not make the queue go.
const FEWEST_PACKETS: f64 = 5.0;
/// Loss of a channel that may be the work of a queue which has been full ever since.
const LOSS_UNSEEN: f64 = 0.1;
/// No channel loses so much of so many packets: there is a queue that is full. A flow that has had the whole link waits so many round trips: the link may have
/// become slower.
const FLOOD: f64 = 0.5;
const FLOOD_PACKETS: f64 = 64.0;
const FLOOD_ROUNDS: Nanos = 8;
/// For so many round trips behind its first start-up a flow may still take back what it found the link to carry. What it sent so much faster than it knows now
/// to be right has filled the queue by itself.
const CORRECTED_ROUNDS: Nanos = 4;
const TOO_FAST: f64 = 1.15;
/// A queue that has been seen is longer than this, than this part of the round trip, and than so many packets.
const SEEN: Nanos = MS;
const SEEN_PART: Nanos = 10;
const SEEN_PACKETS: f64 = 2.0;
/// A delay below this part of the longest one is not one of a full queue, …
const LOW_PART: Nanos = 4;
/// … nor is one below this delay.
const LOW: Nanos = MS / 2;

/// Readings without which nothing is known, and rounds of a cruise while more is to be found out.
const READINGS: usize = 4;
pub(super) const FIRST_ROUNDS: u32 = 4;
/// The largest part that is not the whole, and the standard errors by which it has to be below that: either of both will do.
const PARTS: [(f64, f64); 2] = [(0.85, 1.5), (0.94, 2.5)];
/// The same behind a channel that loses this or more, by which readings are worse.
const PARTS_LOSSY: [(f64, f64); 2] = [(0.75, 1.5), (0.9, 3.0)];
const LOSSY: f64 = 0.03;
/// Part and standard errors, as above, where no queue has been seen.
const PART_UNSEEN: (f64, f64) = (0.75, 2.0);
/// A queue does not come so fast; if so many do, of which each later mark makes a part forgotten (so that it takes three), it is the delay that
/// varies, and so it is taken to be for a while.
const JUMP: Nanos = 12 * MS;
const JUMPS: f64 = 2.0;
const JUMPS_FORGET: f64 = 1.0 / 16.0;
const VARIES: Nanos = 10 * SEC;
/// A flow that sends a little less than the estimate has room for that.
const PART_OF_WARY: f64 = 0.1;
/// Parts from this one on count as the whole link.
const WHOLE: f64 = 0.8;
/// One in so many marks is answered by a probe: ours meet them together, and should not probe together.
const PROBED: u64 = 8;
/// A probe of a full link ends after so many round trips at the latest.
const PROBE_ROUNDS: Nanos = 3;
/// Round trips between probes beside somebody who does not yield.
const RIVAL_ROUNDS: u64 = 16;

/// Whether others use the link too, as far as no marks tell.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    pub(super) meter: Meter,
    pub(super) listener: Listener,
    /// Packets of a queue that may be full, and those of them that were lost.
    packets: f64,
    lost: f64,
    /// When the first packet behind the first start-up had been answered.
    began: Option<Time>,
    /// Since when too many packets have been lost; `None`: they are not.
    flooded_since: Option<Time>,
    /// Rates below the estimate in a row that did not make the queue go, and when the first of them ended.
    stood: u32,
    stood_since: Time,
    /// Packets at these rates since the queue was short, and those of them that were lost.
    low_packets: f64,
    low_lost: f64,
    /// When the queue was short last, for a flow that takes the link for its own.
    low_at: Time,
    /// Longest queueing delay since it joined, unless that has not been long ago.
    longest: Nanos,
    gone_at: Time,
    /// The bandwidth estimate when it joined.
    joined_at: f64,
    /// How many queues came too fast, with fading memory.
    jumps: f64,
    varies_until: Time,
    rival: Rival,
    /// It has been one of several flows before.
    has_left: bool,
}

impl Crowd {
    fn restart(&mut self, now: Time) {
        self.meter.clear();
        self.stood = 0;
        self.jumps = 0.0;
        self.flooded_since = None;
        (self.packets, self.lost) = (0.0, 0.0);
        self.longest = 0;
        self.gone_at = now;
        if self.rival.is_bbr() {
            self.rival.note_gone(now);
        } else {
            self.rival = Rival::default();
        }
    }

    fn note(&mut self, s: &Sample) {
        self.packets += s.packets as f64;
        self.lost += s.packets_lost as f64;
    }

    /// Packets that left below the estimate have been settled.
    pub(super) fn on_low(&mut self, packets: u64, lost: u64) {
        self.low_packets += packets as f64;
        self.low_lost += lost as f64;
    }

    /// Even what left below the estimate met a full queue.
    fn loses_below(&self) -> bool {
        self.low_packets >= STOOD_PACKETS && self.low_lost > LOSS_BELOW * self.low_packets
    }

    fn forget_half(&mut self, packets: f64) {
        if self.packets > packets {
            self.packets /= 2.0;
            self.lost /= 2.0;
        }
    }
}

/// Whether a part is less than the whole.
fn is_less(part: &Part, (most, errors): (f64, f64)) -> bool {
    part.mean + errors * part.error < most
}

fn is_whole(part: &Part) -> bool {
    part.readings >= READINGS && part.mean - part.error > WHOLE
}

impl Bbr {
    fn longest_queue(&self) -> Nanos {
        let of_late = self.delay.longest_queue();
        match self.sharing.is_by_queue() {
            true => of_late.max(self.crowd.longest),
            false => of_late,
        }
    }

    /// A queue has been seen to come and go.
    pub(super) fn has_seen_queue(&self) -> bool {
        let packets = time_for(SEEN_PACKETS * self.packet_bytes, self.bw);
        self.longest_queue() > SEEN.max(self.rtt() / SEEN_PART).max(packets)
    }

    /// The queue is not full now: what is lost is the channel's.
    fn is_queue_low(&self) -> bool {
        let low = (self.longest_queue() / LOW_PART).max(LOW);
        self.has_seen_queue() && self.delay.above_smallest() < low && !self.delay.is_base_queued()
    }

    /// It was one of several, and too few probes have been read since to say that it is not: what they find may be what the others leave for a moment.
    pub(super) fn may_be_one_again(&self) -> bool {
        self.crowd.has_left && !self.crowd.meter.is_full()
    }

    /// Too little is known of others yet, and probing more often costs nobody anything: if there is a policer, no queue shows.
    pub(super) fn looks_around(&self) -> bool {
        // At every acknowledgement: of most flows as much is known as can be.
        if self.crowd.meter.is_full() {
            return false;
        }
        let is_first = self.crowd.meter.readings() < READINGS;
        let may_be_policed = self.caution() > 0 && !self.has_seen_queue();
        // Below a policer's rate nothing is lost: who seems to lose much even then is behind a channel, or in a queue that others keep full.
        self.loss.channel() > LOSS_UNSEEN || (is_first && !may_be_policed)
    }

    /// There has been a queue for all of this cruise. One's own goes when less is sent.
    pub(super) fn has_had_queue(&self) -> bool {
        self.crowd.low_at < self.phase_at && self.has_seen_queue() && self.has_queue()
    }

    /// A channel that loses much, or a queue that others have kept full since before this flow began.
    fn may_be_unseen(&self, part: &Part) -> bool {
        self.loss.channel() > LOSS_UNSEEN
            && part.readings >= READINGS
            && part.mean > part.error
            && is_less(part, PART_UNSEEN)
    }

    /// A sample of a flow that takes the link for its own. Whether it has turned out to be one of several.
    pub(super) fn meets_others(&mut self, s: &Sample, now: Time) -> bool {
        // Where ECN marks come, they tell of others; where the link varies, queues do not.
        let is_known = self.ce_round.is_some() || now < self.crowd.varies_until;
        if s.app_limited || !s.window_full || is_known {
            return false;
        }
        let is_one = match s.run.phase {
            Phase::Cruise => {
                self.crowd.meter.on_cruise(s);
                self.crowd.listener.on_whole(s);
                let is_flooded = !self.was_too_fast(s, now) && self.is_flooded(s, now);
                is_flooded || self.is_queue_of_others()
            }
            Phase::Up if self.phase == Phase::Up && s.run.id >= self.phase_run => {
                self.crowd.meter.on_probe(s) && self.is_part_small()
            }
            Phase::Down if self.phase == Phase::Down && s.run.id >= self.phase_run => {
                self.crowd.listener.is_on() && self.crowd.listener.on_half(s)
            }
            _ => false,
        };
        if is_one {
            self.crowd.restart(now);
            self.crowd.joined_at = self.bw;
            self.enter(Phase::Down, now);
            self.sharing.begin(now);
        }
        is_one
    }

    /// A rate below the estimate begins: a half, if a queue may never have been seen because it has been full ever since.
    pub(super) fn begin_low_rate(&mut self, now: Time) {
        let suspects = self.loss.channel() > LOSS_UNSEEN
            && !self.has_seen_queue()
            && self.sampler.jitter() == 0
            && self.crowd.meter.is_full()
            && !self.sharing.is_on();
        self.crowd.listener.begin(suspects, now);
    }

    /// Shortly behind the start-up: more was sent than the link carries, as is known now.
    fn was_too_fast(&mut self, s: &Sample, now: Time) -> bool {
        let began = *self.crowd.began.get_or_insert(now);
        let sent = (s.delivered_bytes + s.lost_bytes) as f64 / s.send_interval as f64 * SEC as f64;
        now.saturating_sub(began) < CORRECTED_ROUNDS * self.rtt() && sent > TOO_FAST * self.bw
    }

    fn is_flooded(&mut self, s: &Sample, now: Time) -> bool {
        let crowd = &mut self.crowd;
        crowd.note(s);
        if crowd.lost <= FLOOD * crowd.packets {
            crowd.flooded_since = None;
        } else if crowd.packets >= FLOOD_PACKETS {
            crowd.flooded_since.get_or_insert(now);
        }
        crowd.forget_half(2.0 * FLOOD_PACKETS);
        let since = crowd.flooded_since;
        since.is_some_and(|since| now.saturating_sub(since) >= self.patience())
    }

    /// Time has passed for a flow that takes the link for its own.
    pub(super) fn watch_alone(&mut self) {
        // Less than two packets is no queue.
        let packets = time_for(SEEN_PACKETS * self.packet_bytes, self.bw);
        let low = (self.delay.longest_queue() / LOW_PART).max(LOW.max(packets));
        if self.delay.above_smallest() < low {
            self.crowd.stood = 0;
            (self.crowd.low_packets, self.crowd.low_lost) = (0.0, 0.0);
            self.crowd.low_at = self.latest;
        }
    }

    /// Ends a time at a rate below the estimate.
    pub(super) fn end_low_rate(&mut self, now: Time) {
        if self.crowd.stood == 0 {
            self.crowd.stood_since = now;
        }
        self.crowd.stood += 1;
    }

    /// How long something has to go on that may also be due to a link which has become slower: as long as it takes to find that out, for a
    /// flow that has had all of it.
    fn patience(&self) -> Nanos {
        match is_whole(&self.crowd.meter.part()) {
            true => FLOOD_ROUNDS * self.delay.smoothed(),
            false => 0,
        }
    }

    /// One's own queue would have gone, and a channel does not wait for a queue to lose packets.
    fn is_queue_of_others(&self) -> bool {
        let crowd = &self.crowd;
        let is_known = self.bdp() >= FEWEST_PACKETS * self.packet_bytes;
        let loses = crowd.packets >= STOOD_PACKETS && crowd.lost > LOSS * crowd.packets;
        let lasts = self.latest.saturating_sub(crowd.stood_since) >= self.patience();
        is_known
            && crowd.stood >= STOOD
            && lasts
            && loses
            && (crowd.loses_below() || !self.does_delay_vary())
            && self.has_seen_queue()
    }

    /// Where the delay varies by itself estimates are low and probes find room, so that nothing can be said.
    fn is_part_small(&self) -> bool {
        let part = self.crowd.meter.part();
        if part.readings < READINGS || self.sampler.jitter() > 0 {
            return false;
        }
        if !self.has_seen_queue() {
            return self.crowd.meter.is_full() && self.may_be_unseen(&part);
        }
        let room = if self.lossy_probes >= 2 {
            PART_OF_WARY
        } else {
            0.0
        };
        let parts = match self.loss.channel() < LOSSY {
            true => PARTS,
            false => PARTS_LOSSY,
        };
        parts
            .iter()
            .any(|(most, errors)| is_less(&part, (most - room, *errors)))
    }

    /// Takes a sample while this flow is one of several.
    pub(super) fn on_crowd_sample(&mut self, s: &Sample, now: Time) {
        let is_full = s.window_full && !s.app_limited;
        match s.run.phase {
            Phase::Up if self.phase == Phase::Up && s.run.id >= self.phase_run && is_full => {
                self.crowd.meter.on_full(s, UP_GAIN);
                let part = self.crowd.meter.part();
                if is_whole(&part) {
                    self.leave_crowd(now);
                } else {
                    self.end_crowd_probe(now);
                }
                return;
            }
            Phase::Up => return,
            Phase::Cruise if is_full => self.crowd.meter.on_cruise(s),
            _ => {}
        }
        self.crowd.rival.on_sample(s, now);
        if self.crowd.rival.is_to_be_endured(&self.part_now()) {
            return;
        }
        let is_channel = !self.crowd.rival.is_there() && s.loss() < LOSS_LOW;
        if is_channel && self.is_queue_low() {
            return;
        }
        self.crowd.note(s);
        if self.crowd.lost > LOSS * self.crowd.packets {
            self.fall_among_others(now);
        } else {
            self.crowd.forget_half(LOSS_PACKETS);
        }
    }

    fn leave_crowd(&mut self, now: Time) {
        self.crowd.restart(now);
        self.crowd.has_left = true;
        self.sharing.end();
        self.enter(Phase::Down, now);
    }

    /// The queue as one of several sees it. Whether the phase has changed by that.
    pub(super) fn watch_queue(&mut self, now: Time) -> bool {
        let queue = self.delay.above_smallest();
        self.crowd.longest = self.crowd.longest.max(queue);
        if queue < GONE {
            self.crowd.gone_at = now;
            self.crowd.rival.note_gone(now);
        } else {
            let stood = now.saturating_sub(self.crowd.gone_at);
            let rtts = (self.delay.smoothed(), self.rtt());
            self.crowd.rival.note_queue(now, stood, rtts);
        }
        let is_rival = self.crowd.rival.is_there();
        match self.phase {
            Phase::Up => {
                let most = PROBE_ROUNDS * self.delay.smoothed();
                if now.saturating_sub(self.phase_at) > most {
                    self.end_crowd_probe(now);
                }
                true
            }
            Phase::Cruise if is_rival && self.rounds_in_phase() >= RIVAL_ROUNDS => {
                self.enter(Phase::Up, now);
                true
            }
            Phase::Cruise if queue > QUEUE && !is_rival => self.on_long_queue(now),
            _ => false,
        }
    }

    fn on_long_queue(&mut self, now: Time) -> bool {
        let is_jump = now.saturating_sub(self.crowd.gone_at) < JUMP;
        let reacts = self.on_crowd_mark(now);
        if reacts {
            self.crowd.jumps *= 1.0 - JUMPS_FORGET;
            self.crowd.jumps += f64::from(u8::from(is_jump));
        }
        if self.crowd.jumps >= JUMPS {
            self.bw = self.bw.max(self.crowd.joined_at);
            self.crowd.varies_until = now + VARIES;
            self.leave_crowd(now);
        }
        reacts
    }

    /// Whether there is a queue that somebody who does not yield keeps up.
    pub(super) fn does_queue_stand(&self) -> bool {
        self.sharing.is_by_queue() && self.crowd.rival.is_there()
    }

    /// Who keeps up the queue.
    pub(super) fn filled_by(&self) -> Filler {
        if !self.does_queue_stand() {
            Filler::Ours
        } else if self.crowd.rival.leaves_little(&self.part_now()) {
            Filler::Bbr
        } else {
            Filler::Other
        }
    }

    /// The part of a full link at the present rate: readings are up to ten seconds old.
    fn part_now(&self) -> Part {
        self.crowd.meter.part().at(self.bw)
    }

    /// Whether the queue has emptied since this flow fell.
    pub(super) fn is_crowd_drained(&self) -> bool {
        self.delay.above_smallest() < GONE
    }

    /// All are asked to send less. Whether that changes the phase.
    fn on_crowd_mark(&mut self, now: Time) -> bool {
        let rtt = self.delay.smoothed();
        if !self.sharing.would_react(now, rtt) {
            return false;
        }
        let is_probed = is_one_in(PROBED, self.sampler.last_pn().get());
        if is_probed && self.phase == Phase::Cruise && self.rounds_in_phase() >= 2 {
            self.enter(Phase::Up, now);
        } else {
            self.fall_among_others(now);
        }
        true
    }

    fn end_crowd_probe(&mut self, now: Time) {
        if self.crowd.rival.is_there() {
            self.enter(Phase::Cruise, now);
            return;
        }
        self.fall_among_others(now);
        if self.phase == Phase::Up {
            self.fall(now, CE_FACTOR);
        }
    }

    /// Where much is lost all send so much more than the link carries, however many they are, and all fall by that.
    fn fall_among_others(&mut self, now: Time) {
        let lost = self.crowd.lost / self.crowd.packets.max(1.0);
        (self.crowd.packets, self.crowd.lost) = (0.0, 0.0);
        self.on_shared(now, (1.0 - lost).clamp(LEFT_AT_LEAST, CE_FACTOR));
    }
}
