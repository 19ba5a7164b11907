//! Takes what nobody else wants, as LEDBAT++ does (draft-irtf-iccrg-ledbat-plus-plus): a queue that grows means that
//! somebody else sends, or this end too much.
//!
//! - *Delay* is the round trip above the smallest one of the last minutes. Round trips need no clocks that agree; so a queue on
//!   the way back makes it yield as well.
//! - *The target* is a tenth of the round trip, [`TARGET_MIN`] to [`TARGET_MAX`]: LEDBAT++ has 60 ms, but whoever meets random loss
//!   beside it would lose as much of its rate as the round trip grows, and a short queue would never reach it.
//! - *Above it* the window falls, at once, to what the link carries with half of that queue, but not below a half. It can be less than a
//!   packet: then that many leave per round trip.
//! - *Below* the window grows by a step per round trip; the step doubles while hardly any queue shows, up to a quarter of the
//!   window. There is no other slow start.
//! - *Now and then* half the window is left free for a round trip, for the queue to empty: the smallest round trip is seen again, by others
//!   that began beside a queue as well, and what is lost at half the rate.
//! - *Loss* without delay is the channel's, unless far more is lost than before and a smaller window makes that vanish ([`Losses`]):
//!   then there is a policer, or a queue too short to be seen. CE halves the window.

use crate::PacketNumber;

use super::loss::{Counts, Dispersion, Pace};
use super::{AckSummary, CcParams, MS, Nanos, PacketInfo, RateControl, SEC, Time, rate_of};

/// Round trip assumed before the first sample.
const INITIAL_RTT: Nanos = 100 * MS;
/// Packets of the first window, and of the smallest one; fewest that may be in flight.
const INITIAL_PACKETS: f64 = 10.0;
const MIN_PACKETS: f64 = 0.5;
const MIN_IN_FLIGHT: f64 = 2.0;
/// How much faster than the window turns over packets leave.
const PACING_GAIN: f64 = 1.1;
/// Queueing delay that the window is made for: part of the round trip, and bounds.
const TARGET_PART: Nanos = 10;
const TARGET_MIN: Nanos = 2 * MS;
const TARGET_MAX: Nanos = 10 * MS;
/// Growth per round trip in packets at first, and as a share of the window at most.
const STEP_MIN: f64 = 1.0;
const STEP_MAX: f64 = 0.25;
/// Most that the window falls in one round trip.
const FALL_MAX: f64 = 0.5;
/// Readings whose minimum is the present delay: one late packet is no queue (RFC 6817, CURRENT_FILTER).
const READINGS: usize = 4;
/// Round trips between two in which the queue is left to empty, and the window then.
const SLOW_EVERY: u32 = 50;
const SLOW_WINDOW: f64 = 0.5;
/// Packets that are judged together by their losses, with a window that is in doubt, and that are remembered of earlier ones; so
/// many that lost this share are added to those.
const LOSS_GROUP: f64 = 48.0;
const SUSPECT_GROUP: f64 = 128.0;
const LOSS_MEMORY: f64 = 2000.0;
const PRIOR: Counts = Counts {
    packets: 8.0,
    lost: 0.16,
};
/// More loss than before, as a share, in packets and in standard errors, that is not chance.
const LOSS_STEP: f64 = 0.05;
const LOSS_PACKETS: f64 = 6.0;
const LOSS_ERRORS: f64 = 4.0;
/// Part of the window that would lose no more than is known which is taken: else nothing would be learned of the channel.
const LOSS_ROOM: f64 = 0.95;
/// Rounds for which a window that was found to lose no more is kept, its growth per round trip after that, and by how much it must
/// be exceeded to count as a wrong one.
const CEILING_ROUNDS: u32 = 8;
const CEILING_STEP: f64 = 1.0 / 32.0;
const CEILING_BEYOND: f64 = 1.25;
/// Smaller windows in a row that change nothing before the channel is held to have become worse.
const TRIALS: u32 = 2;
/// Rounds after which the fate of its packets is known.
const LOW_ROUNDS: u32 = 3;
/// Smallest round trips are kept for so many minutes (RFC 6817, BASE_HISTORY).
const MINUTES: usize = 10;

/// Smallest round trip of each of the last minutes.
#[derive(Debug, Default)]
struct BaseDelay {
    minutes: [Option<Nanos>; MINUTES],
    minute: u64,
}

impl BaseDelay {
    fn update(&mut self, now: Time, rtt: Nanos) {
        let minute = now.as_nanos() / (60 * SEC);
        let passed = minute.saturating_sub(self.minute).min(MINUTES as u64);
        for gone in 1..=passed {
            self.minutes[((self.minute + gone) % MINUTES as u64) as usize] = None;
        }
        self.minute = self.minute.max(minute);
        let least = &mut self.minutes[(self.minute % MINUTES as u64) as usize];
        *least = Some(least.map_or(rtt, |least| least.min(rtt)));
    }

    fn get(&self) -> Option<Nanos> {
        self.minutes.iter().flatten().min().copied()
    }
}

/// Delay of the latest packets that left with the present window.
#[derive(Debug, Default)]
struct Readings {
    latest: [Nanos; READINGS],
    count: usize,
}

impl Readings {
    fn add(&mut self, rtt: Nanos) {
        self.latest[self.count % READINGS] = rtt;
        self.count += 1;
    }

    /// The smallest of them, once there are enough for a window of so many packets.
    fn least(&self, window: f64) -> Option<Nanos> {
        let wanted = (window / 2.0).clamp(1.0, READINGS as f64) as usize;
        let known = &self.latest[..self.count.min(READINGS)];
        known.iter().min().copied().filter(|_| self.count >= wanted)
    }
}

/// Tells losses that the window causes from those of the channel, where no queue shows.
#[derive(Debug)]
struct Losses {
    /// Packets and losses that show the loss rate of the channel.
    known: Counts,
    /// Latest packets, and those that left with half the window.
    latest: Counts,
    low: Counts,
    dispersion: Dispersion,
    /// Excess because of which the window was made smaller, and how often in a row that changed nothing.
    tried: f64,
    failed: u32,
}

impl Losses {
    fn new() -> Self {
        Self {
            known: PRIOR,
            latest: Counts::default(),
            low: Counts::default(),
            dispersion: Dispersion::default(),
            tried: 0.0,
            failed: 0,
        }
    }

    /// Starts counting anew: the packets so far have been judged.
    fn restart(&mut self) {
        self.latest = Counts::default();
    }

    /// By how much the losses of so many packets may differ from what is known by chance.
    fn chance(&self, packets: f64) -> f64 {
        let p = self.known.ratio();
        let samples = 1.0 / packets + 1.0 / self.known.packets;
        LOSS_ERRORS * (p * (1.0 - p) * samples * self.dispersion.burstiness()).sqrt()
    }

    /// A round trip has passed. `suspect`: the window is one that has been found too large before. What it loses is never
    /// taken for the channel's then.
    fn judge(&mut self, suspect: bool) -> Cause {
        let latest = self.latest;
        let n = latest.packets;
        if n < if suspect { SUSPECT_GROUP } else { LOSS_GROUP } {
            return Cause::Unknown;
        }
        self.restart();
        let excess = latest.ratio() - self.known.ratio();
        if excess < LOSS_STEP.max(LOSS_PACKETS / n).max(self.chance(n)) {
            (self.tried, self.failed) = (0.0, 0);
            if !suspect {
                self.known.packets += n;
                self.known.lost += latest.lost;
                self.known
                    .scale((LOSS_MEMORY / self.known.packets).min(1.0));
                let (n, lost) = (n as u64, latest.lost as u64);
                self.dispersion.note(Pace::Cruise, n, lost);
            }
            return Cause::Chance;
        }
        if !suspect && self.tried > 0.0 && excess > self.tried / 2.0 {
            self.failed += 1;
        }
        if self.failed >= TRIALS {
            (self.tried, self.failed) = (0.0, 0);
            self.known = latest;
            self.low = Counts::default();
            return Cause::Channel;
        }
        self.tried = excess;
        Cause::Window(excess / (1.0 - self.known.ratio()))
    }

    /// Whatever was thought to be the channel's: what half the window does not lose is not.
    fn judge_low(&mut self) {
        let low = &mut self.low;
        low.scale((LOSS_MEMORY / low.packets.max(1.0)).min(1.0));
        let low = *low;
        if low.packets > LOSS_GROUP && low.ratio() + self.chance(low.packets) < self.known.ratio() {
            self.known = low;
        }
    }
}

/// Why packets are lost.
enum Cause {
    /// Too few packets to tell.
    Unknown,
    /// The losses are those of chance: no more than before.
    Chance,
    /// This share would not be lost with a smaller window.
    Window(f64),
    /// Smaller windows have changed nothing: the channel has become worse.
    Channel,
}

/// A round trip in which the queue is left to empty.
#[derive(Debug, Clone, Copy)]
struct Slow {
    /// The window before, packets.
    window: f64,
    /// Its first packet; and the one that ends it, once the first has arrived.
    from_pn: PacketNumber,
    until_pn: Option<PacketNumber>,
}

/// A window that yields to every queue, and to no random loss.
#[derive(Debug)]
pub struct Scavenger {
    packet: f64,
    /// Window, and its growth per round trip, in packets.
    window: f64,
    step: f64,
    base: BaseDelay,
    readings: Readings,
    srtt: Option<Nanos>,
    /// Smallest queueing delay of this round, as far as it has been judged.
    queue: Option<Nanos>,
    next_pn: PacketNumber,
    /// Packets sent before this one were sent with another window.
    window_from_pn: PacketNumber,
    round_until_pn: PacketNumber,
    app_limited_until_pn: PacketNumber,
    /// Rounds since the queue was left to empty, and packets that left meanwhile.
    rounds: u32,
    slow: Option<Slow>,
    low: std::ops::Range<PacketNumber>,
    losses: Losses,
    /// Window of the latest rounds: packets whose losses are known now left with the older one.
    past: [f64; 2],
    /// A window beyond which more was lost, and the rounds for which it is kept.
    ceiling: Option<(f64, u32)>,
    /// Packets before this one left with a window that was found too large: their losses are known.
    loss_from_pn: PacketNumber,
    /// The window before nothing came back any more.
    silent: Option<f64>,
}

impl Scavenger {
    /// Starts with ten packets, or with what the controller before it had under way without a queue.
    pub fn new(params: CcParams) -> Self {
        let packet = f64::from(params.packet_bytes.max(1));
        let window = match params.before {
            Some(before) => (before.window() / packet).max(MIN_PACKETS),
            None => INITIAL_PACKETS,
        };
        let step = match params.before {
            Some(before) if !before.is_starting => STEP_MIN,
            _ => (STEP_MAX * window).max(STEP_MIN),
        };
        let mut scavenger = Self {
            packet,
            window,
            step,
            base: BaseDelay::default(),
            readings: Readings::default(),
            srtt: None,
            queue: None,
            next_pn: PacketNumber::ZERO,
            window_from_pn: PacketNumber::ZERO,
            round_until_pn: PacketNumber::ZERO,
            app_limited_until_pn: PacketNumber::ZERO,
            rounds: 0,
            slow: None,
            low: PacketNumber::ZERO..PacketNumber::ZERO,
            losses: Losses::new(),
            past: [window; 2],
            ceiling: None,
            loss_from_pn: PacketNumber::ZERO,
            silent: None,
        };
        if let Some(before) = params.before {
            scavenger.srtt = Some(before.srtt);
            scavenger.base.update(before.now, before.min_rtt);
        }
        scavenger
    }

    fn target(&self) -> Nanos {
        let base = self.base.get().unwrap_or(INITIAL_RTT);
        (base / TARGET_PART).clamp(TARGET_MIN, TARGET_MAX)
    }

    /// From now on the window is `share` of what it was.
    fn fall(&mut self, share: f64) {
        let share = share.clamp(FALL_MAX, 1.0);
        self.window = (self.window * share).max(MIN_PACKETS);
        if let Some(slow) = &mut self.slow {
            slow.window = (slow.window * share).max(MIN_PACKETS);
        }
        self.step = STEP_MIN;
        self.change_window();
    }

    fn change_window(&mut self) {
        self.window_from_pn = self.next_pn;
        self.readings = Readings::default();
        self.queue = None;
    }

    /// A packet that left with the present window has told of the delay.
    fn on_reading(&mut self, rtt: Nanos) {
        self.readings.add(rtt);
        let (Some(least), Some(base)) = (self.readings.least(self.window), self.base.get()) else {
            return;
        };
        let (queue, target) = (least.saturating_sub(base), self.target());
        self.queue = Some(self.queue.map_or(queue, |least| least.min(queue)));
        if queue > target {
            self.fall((base + target / 2) as f64 / (base + queue) as f64);
        }
    }

    fn grow(&mut self, packets: f64) {
        let is_held = self
            .ceiling
            .is_some_and(|(most, rounds)| rounds > 0 && self.window >= most);
        if self.slow.is_none() && !is_held {
            self.window += self.step * packets / self.window.max(1.0);
        }
    }

    fn on_round(&mut self) {
        self.round_until_pn = self.next_pn;
        match self.queue.take() {
            Some(queue) if queue < self.target() / 2 => {
                let most = (STEP_MAX * self.window).max(STEP_MIN);
                self.step = (2.0 * self.step).min(most);
            }
            Some(_) => self.step = STEP_MIN,
            None => {}
        }
        self.past = [self.past[1], self.window];
        if let Some((most, rounds)) = &mut self.ceiling
            && self.window >= *most
        {
            *rounds = rounds.saturating_sub(1);
            let most = (CEILING_STEP * self.window).max(STEP_MIN);
            self.step = self.step.min(most);
        }
        self.rounds += 1;
        if self.slow.is_none() && self.rounds == LOW_ROUNDS {
            self.losses.judge_low();
        }
        if self.slow.is_none() && self.rounds >= SLOW_EVERY && self.window > READINGS as f64 {
            self.rounds = 0;
            self.slow = Some(Slow {
                window: self.window,
                from_pn: self.next_pn,
                until_pn: None,
            });
            self.low = self.next_pn..PacketNumber::MAX;
            self.window *= SLOW_WINDOW;
        }
    }

    /// The packet with this number has arrived: has the queue had its time to empty?
    fn end_slow(&mut self, pn: PacketNumber) {
        let Some(slow) = &mut self.slow else { return };
        if pn < slow.from_pn {
            return;
        }
        let until = *slow.until_pn.get_or_insert(self.next_pn);
        if pn >= until {
            self.window = slow.window;
            self.slow = None;
            self.low.end = self.next_pn;
            self.rounds = 0;
            self.change_window();
        }
    }

    /// What was lost beside no queue: by the channel, or because so much is sent?
    fn judge_losses(&mut self, ack: &AckSummary<'_>, newest: Option<PacketNumber>) {
        for (packets, lost) in [(ack.acked, 0), (ack.lost, 1)] {
            for packet in packets {
                if self.low.contains(&packet.pn) {
                    self.losses.low.add(1, lost);
                } else if packet.pn >= self.loss_from_pn {
                    self.losses.latest.add(1, lost);
                }
            }
        }
        if newest.is_none_or(|pn| pn < self.round_until_pn) {
            return;
        }
        let suspect = self.ceiling.is_some_and(|(most, _)| self.window > most);
        match self.losses.judge(suspect) {
            Cause::Unknown => {}
            Cause::Chance => {
                let is_refuted = |(most, _): &(f64, u32)| self.past[0] > CEILING_BEYOND * most;
                self.ceiling = self.ceiling.filter(|ceiling| !is_refuted(ceiling));
            }
            Cause::Window(excess) => {
                let was = self.window.min(self.past[0]);
                self.fall(LOSS_ROOM * (1.0 - excess) * was / self.window);
                self.ceiling = Some((self.window, CEILING_ROUNDS));
                self.loss_from_pn = self.next_pn;
            }
            Cause::Channel => self.ceiling = None,
        }
    }
}

impl RateControl for Scavenger {
    fn on_sent(&mut self, _now: Time, pn: PacketNumber, _ip_bytes: u32, _bytes_in_flight: u64) {
        self.next_pn = pn.saturating_add(1);
    }

    fn on_ack(&mut self, ack: &AckSummary<'_>) {
        if ack.srtt > 0 {
            self.srtt = Some(ack.srtt);
        }
        if !ack.acked.is_empty()
            && let Some(window) = self.silent.take()
        {
            self.window = (window / 2.0).max(MIN_PACKETS);
            self.change_window();
            self.losses.restart();
            self.loss_from_pn = self.next_pn;
        }
        let newest = ack.acked.iter().map(|p| p.pn).max();
        if let (Some(rtt), Some(pn)) = (ack.rtt_sample, newest) {
            self.base.update(ack.now, rtt);
            if pn >= self.window_from_pn {
                self.on_reading(rtt);
            }
        }
        let is_of_window = |p: &&PacketInfo| p.pn >= self.window_from_pn;
        if ack.ce_marked > 0 && ack.acked.iter().any(|p| is_of_window(&p)) {
            self.fall(FALL_MAX);
        }
        self.judge_losses(ack, newest);
        let is_full = |p: &&PacketInfo| p.pn >= self.window_from_pn.max(self.app_limited_until_pn);
        let useful = ack.acked.iter().filter(is_full);
        let bytes: u64 = useful.map(|p| u64::from(p.ip_bytes)).sum();
        self.grow(bytes as f64 / self.packet);
        if let Some(pn) = newest {
            self.end_slow(pn);
            if pn >= self.round_until_pn {
                self.on_round();
            }
        }
    }

    fn on_app_limited(&mut self, _now: Time) {
        self.app_limited_until_pn = self.next_pn;
    }

    fn on_persistent_loss(&mut self, _now: Time) {
        if self.silent.is_none() {
            self.silent = Some(self.slow.take().map_or(self.window, |slow| slow.window));
            self.low.end = self.low.end.min(self.next_pn);
            self.step = STEP_MIN;
        }
        self.window = MIN_IN_FLIGHT;
    }

    fn pacing_rate(&self) -> u64 {
        let rtt = self.srtt.unwrap_or(INITIAL_RTT);
        ((PACING_GAIN * rate_of(self.window * self.packet, rtt)) as u64).max(1)
    }

    fn cwnd(&self) -> u64 {
        (self.window.max(MIN_IN_FLIGHT) * self.packet) as u64
    }

    fn bandwidth_estimate(&self) -> u64 {
        let rtt = self.srtt.unwrap_or(INITIAL_RTT);
        (rate_of(self.window * self.packet, rtt) as u64).max(1)
    }

    fn min_rtt(&self) -> Option<Nanos> {
        self.base.get()
    }

    fn is_starting(&self) -> bool {
        self.step >= STEP_MAX * self.window
    }

    fn set_packet_bytes(&mut self, ip_bytes: u32) {
        let packet = f64::from(ip_bytes.max(1));
        // The window stays what it is in bytes.
        let scale = self.packet / packet;
        self.packet = packet;
        self.window = (self.window * scale).max(MIN_PACKETS);
        self.past = self.past.map(|window| window * scale);
        if let Some((most, _)) = &mut self.ceiling {
            *most *= scale;
        }
        if let Some(slow) = &mut self.slow {
            slow.window *= scale;
        }
        if let Some(silent) = &mut self.silent {
            *silent *= scale;
        }
    }

    fn phase_name(&self) -> &'static str {
        match (self.silent, self.slow) {
            (Some(_), _) => "silent",
            (None, Some(_)) => "slow",
            (None, None) if self.window < MIN_IN_FLIGHT => "yield",
            (None, None) => "avoidance",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::time;

    #[test]
    fn the_smallest_round_trip_is_kept_for_ten_minutes() {
        let mut base = BaseDelay::default();
        base.update(time(30 * SEC), 20 * MS);
        for minute in 1..10 {
            base.update(time(minute * 60 * SEC), 50 * MS);
            assert_eq!(base.get(), Some(20 * MS), "minute {minute}");
        }
        base.update(time(600 * SEC), 50 * MS);
        assert_eq!(base.get(), Some(50 * MS));
        // However long nothing was measured.
        base.update(Time::MAX, 70 * MS);
        assert_eq!(base.get(), Some(70 * MS));
    }

    #[test]
    fn one_late_packet_is_no_queue() {
        let mut readings = Readings::default();
        for rtt in [30, 10, 30] {
            readings.add(rtt * MS);
        }
        assert_eq!(readings.least(100.0), None);
        assert_eq!(readings.least(2.0), Some(10 * MS));
        readings.add(40 * MS);
        assert_eq!(readings.least(100.0), Some(10 * MS));
        for _ in 0..2 {
            readings.add(30 * MS);
        }
        assert_eq!(readings.least(100.0), Some(30 * MS));
    }

    /// With the path MTU a window that was found too large, or left of late, would seem to be another one.
    #[test]
    fn windows_stay_what_they_are_in_bytes() {
        let params = CcParams {
            packet_bytes: 750,
            ..CcParams::default()
        };
        let mut scavenger = Scavenger::new(params);
        scavenger.ceiling = Some((4.0 * INITIAL_PACKETS, CEILING_ROUNDS));
        let before = scavenger.cwnd();
        scavenger.set_packet_bytes(1500);
        assert_eq!(scavenger.cwnd(), before);
        assert_eq!(scavenger.past, [INITIAL_PACKETS / 2.0; 2]);
        let ceiling = (2.0 * INITIAL_PACKETS, CEILING_ROUNDS);
        assert_eq!(scavenger.ceiling, Some(ceiling));
    }
}
