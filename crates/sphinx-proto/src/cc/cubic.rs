//! CUBIC (RFC 9438) with HyStart++ (RFC 9406): what most of the Internet does, for comparison. Every loss counts as
//! congestion, so random loss keeps it slow.

use crate::PacketNumber;

use super::{AckSummary, CcParams, MS, Nanos, PacketInfo, RateControl, SEC, Time, rate_of};

/// Round trip assumed before the first sample.
const INITIAL_RTT: Nanos = 100 * MS;
/// Packets of the first window (RFC 6928).
const INITIAL_PACKETS: f64 = 10.0;
/// Packets of the smallest congestion window.
const MIN_PACKETS: f64 = 2.0;
/// C, in packets per cubic second, and β (RFC 9438, section 4.1.2).
const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// How much faster than the window turns over packets leave, so that the window is the limit (as Linux does).
const PACING_START: f64 = 2.0;
const PACING_GAIN: f64 = 1.2;
/// Limits of the delay that ends slow start, the share of the round trip in between, samples of a round, and how slow start goes
/// on once it is seen: a quarter as fast, for so many rounds (RFC 9406, section 4.3).
const DELAY_MIN: Nanos = 4 * MS;
const DELAY_MAX: Nanos = 16 * MS;
const DELAY_SHARE: u64 = 8;
const ROUND_SAMPLES: u32 = 8;
const CAUTIOUS_GROWTH: f64 = 0.25;
const CAUTIOUS_ROUNDS: u32 = 5;

/// A window that grows with the cube of the time since the last loss.
#[derive(Debug)]
pub struct Cubic {
    packet: f64,
    /// Windows in packets: the present one, and that at which slow start ends.
    cwnd: f64,
    threshold: f64,
    start: SlowStart,
    growth: Option<Growth>,
    /// The window before the last reduction, as far as it is to be reached again.
    most: f64,
    srtt: Option<Nanos>,
    min_rtt: Option<Nanos>,
    /// Packets sent before this one were sent before the last reduction; their losses belong to it.
    recovery_until_pn: PacketNumber,
    next_pn: PacketNumber,
    app_limited_until_pn: PacketNumber,
}

/// Growth since the last reduction.
#[derive(Debug, Clone, Copy)]
struct Growth {
    /// `None` until the first acknowledgement since then: time begins with that.
    epoch: Option<Epoch>,
    /// Window of the cubic function at its inflection, and time to there in seconds.
    origin: f64,
    k: f64,
    /// Window that a Reno sender would have, and the one from which on that grows by a packet each round trip.
    reno: f64,
    before: f64,
}

/// The time that the cubic function goes by.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    since: Time,
    /// When the window grew last: time in which the application sent less does not count (RFC 9438, section 5.8).
    grew_at: Time,
}

impl Growth {
    /// How much of the epoch is over now that the window grows.
    fn elapsed(&mut self, now: Time, rtt: Nanos) -> Nanos {
        let epoch = self.epoch.get_or_insert(Epoch {
            since: now,
            grew_at: now,
        });
        let idle = (now - epoch.grew_at).saturating_sub(2 * rtt);
        epoch.since += idle;
        epoch.grew_at = now;
        now - epoch.since
    }

    /// The window of the cubic function, so long after the epoch began.
    fn cubic(&self, elapsed: Nanos) -> f64 {
        let t = elapsed as f64 / SEC as f64 - self.k;
        C * t * t * t + self.origin
    }
}

/// Rounds of slow start (RFC 9406).
#[derive(Debug, Default)]
struct SlowStart {
    round_until_pn: PacketNumber,
    samples: u32,
    round_min: Option<Nanos>,
    before_min: Option<Nanos>,
    /// Smallest round trip when delay was seen to grow, and rounds since.
    cautious: Option<(Nanos, u32)>,
}

impl SlowStart {
    /// A round trip was measured.
    fn on_sample(&mut self, rtt: Nanos) {
        self.samples += 1;
        let least = self.round_min.map_or(rtt, |least| least.min(rtt));
        self.round_min = Some(least);
        if self.samples < ROUND_SAMPLES {
            return;
        }
        match (self.cautious, self.before_min) {
            (None, Some(before)) => {
                let limit = (before / DELAY_SHARE).clamp(DELAY_MIN, DELAY_MAX);
                if least >= before + limit {
                    self.cautious = Some((least, 0));
                }
            }
            // The delay has fallen again: it was no queue of ours.
            (Some((baseline, _)), _) if least < baseline => self.cautious = None,
            _ => {}
        }
    }

    /// The packet with this number was acknowledged; `true` if slow start is over.
    fn on_acked(&mut self, pn: PacketNumber, next_pn: PacketNumber) -> bool {
        if pn < self.round_until_pn {
            return false;
        }
        self.round_until_pn = next_pn;
        self.before_min = self.round_min.take().or(self.before_min);
        self.samples = 0;
        match &mut self.cautious {
            Some((_, rounds)) => {
                *rounds += 1;
                *rounds >= CAUTIOUS_ROUNDS
            }
            None => false,
        }
    }
}

impl Cubic {
    /// Starts with ten packets, or with what the controller before it had under way without a queue.
    pub fn new(params: CcParams) -> Self {
        let packet = f64::from(params.packet_bytes.max(1));
        let cwnd = match params.before {
            Some(before) => (before.window() / packet).max(MIN_PACKETS),
            None => INITIAL_PACKETS,
        };
        let threshold = match params.before {
            Some(before) if !before.is_starting => cwnd,
            _ => f64::INFINITY,
        };
        Self {
            packet,
            cwnd,
            threshold,
            start: SlowStart::default(),
            growth: None,
            most: 0.0,
            srtt: params.before.map(|before| before.srtt),
            min_rtt: params.before.map(|before| before.min_rtt),
            recovery_until_pn: PacketNumber::ZERO,
            next_pn: PacketNumber::ZERO,
            app_limited_until_pn: PacketNumber::ZERO,
        }
    }

    fn reduce(&mut self) {
        // Fast convergence: a window that was not reached again leaves room to others.
        self.most = match self.cwnd < self.most {
            true => self.cwnd * f64::midpoint(1.0, BETA),
            false => self.cwnd,
        };
        let before = self.cwnd;
        self.threshold = (self.cwnd * BETA).max(MIN_PACKETS);
        self.cwnd = self.threshold;
        self.recovery_until_pn = self.next_pn;
        self.growth = None;
        self.begin_growth(before);
    }

    /// From now on the window is that of congestion avoidance; `before`: what it was before it was reduced.
    fn begin_growth(&mut self, before: f64) {
        let most = self.most.max(self.cwnd);
        self.growth = Some(Growth {
            epoch: None,
            origin: most,
            k: ((most - self.cwnd) / C).cbrt(),
            reno: self.cwnd,
            before,
        });
    }

    /// So many packets were acknowledged while the window was full.
    fn grow(&mut self, now: Time, packets: f64) {
        if self.is_starting() {
            let share = match self.start.cautious {
                Some(_) => CAUTIOUS_GROWTH,
                None => 1.0,
            };
            self.cwnd += packets * share;
            return;
        }
        if self.growth.is_none() {
            self.begin_growth(self.cwnd);
        }
        let rtt = self.srtt.unwrap_or(INITIAL_RTT);
        let Some(growth) = &mut self.growth else {
            return;
        };
        let elapsed = growth.elapsed(now, rtt);
        let alpha = match growth.reno < growth.before {
            true => 3.0 * (1.0 - BETA) / (1.0 + BETA),
            false => 1.0,
        };
        growth.reno += alpha * packets / self.cwnd;
        if growth.cubic(elapsed) < growth.reno {
            self.cwnd = self.cwnd.max(growth.reno);
            return;
        }
        let target = growth
            .cubic(elapsed + rtt)
            .clamp(self.cwnd, 1.5 * self.cwnd);
        self.cwnd += (target - self.cwnd) / self.cwnd * packets;
    }
}

impl RateControl for Cubic {
    fn on_sent(&mut self, _now: Time, pn: PacketNumber, _ip_bytes: u32, _bytes_in_flight: u64) {
        self.next_pn = pn.saturating_add(1);
    }

    fn on_ack(&mut self, ack: &AckSummary<'_>) {
        if ack.srtt > 0 {
            self.srtt = Some(ack.srtt);
        }
        if let Some(rtt) = ack.rtt_sample {
            self.min_rtt = Some(self.min_rtt.map_or(rtt, |least| least.min(rtt)));
            self.start.on_sample(rtt);
        }
        let since_reduction = |p: &PacketInfo| p.pn >= self.recovery_until_pn;
        let is_marked = ack.ce_marked > 0 && ack.acked.iter().any(since_reduction);
        if is_marked || ack.lost.iter().any(since_reduction) {
            return self.reduce();
        }
        let newest = ack.acked.iter().map(|p| p.pn).max();
        let is_over = newest.is_some_and(|pn| self.start.on_acked(pn, self.next_pn));
        let is_full = |p: &&PacketInfo| since_reduction(p) && p.pn >= self.app_limited_until_pn;
        let useful = ack.acked.iter().filter(is_full);
        let bytes: u64 = useful.map(|p| u64::from(p.ip_bytes)).sum();
        if bytes > 0 {
            self.grow(ack.now, bytes as f64 / self.packet);
        }
        if is_over && self.is_starting() {
            self.threshold = self.cwnd;
        }
    }

    fn on_app_limited(&mut self, _now: Time) {
        self.app_limited_until_pn = self.next_pn;
    }

    fn on_persistent_loss(&mut self, _now: Time) {
        if self.cwnd > MIN_PACKETS {
            self.reduce();
        }
        // As after a retransmission timeout: slow start up to where the last loss has led.
        self.cwnd = MIN_PACKETS;
        self.start = SlowStart::default();
        self.growth = None;
    }

    fn pacing_rate(&self) -> u64 {
        let gain = if self.is_starting() {
            PACING_START
        } else {
            PACING_GAIN
        };
        let rtt = self.srtt.unwrap_or(INITIAL_RTT);
        ((gain * rate_of(self.cwnd * self.packet, rtt)) as u64).max(1)
    }

    fn cwnd(&self) -> u64 {
        (self.cwnd * self.packet) as u64
    }

    fn bandwidth_estimate(&self) -> u64 {
        let rtt = self.srtt.unwrap_or(INITIAL_RTT);
        (rate_of(self.cwnd * self.packet, rtt) as u64).max(1)
    }

    fn min_rtt(&self) -> Option<Nanos> {
        self.min_rtt
    }

    fn is_starting(&self) -> bool {
        self.cwnd < self.threshold
    }

    fn set_packet_bytes(&mut self, ip_bytes: u32) {
        let packet = f64::from(ip_bytes.max(1));
        if packet == self.packet {
            // It is said again with every SACK, and growth is not to begin anew.
            return;
        }
        // The window stays what it is in bytes.
        let scale = self.packet / packet;
        self.packet = packet;
        self.cwnd = (self.cwnd * scale).max(MIN_PACKETS);
        self.threshold *= scale;
        self.most *= scale;
        if let Some(growth) = self.growth {
            self.begin_growth(growth.before * scale);
        }
    }

    fn phase_name(&self) -> &'static str {
        match (self.is_starting(), self.start.cautious) {
            (true, None) => "slow-start",
            (true, Some(_)) => "cautious-start",
            (false, _) => "avoidance",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::time;

    /// Windows after a loss, and packets acknowledged one by one from then on, by a clock that shows `begun` at first. `heard`: what else the
    /// controller hears each time.
    fn windows(begun: Nanos, heard: fn(&mut Cubic)) -> Vec<u64> {
        let mut cubic = Cubic::new(CcParams::default());
        let acks = (0..30_u64).map(|number| {
            let now = time(begun + number.saturating_sub(1) * 150 * MS);
            let packet = PacketInfo {
                pn: PacketNumber::new(number),
                sent_at: now,
                ip_bytes: 1500,
            };
            cubic.on_sent(now, packet.pn, packet.ip_bytes, 0);
            let (acked, lost): (&[_], &[_]) = match number {
                0 => (&[], &[packet]),
                _ => (&[packet], &[]),
            };
            cubic.on_ack(&AckSummary {
                now,
                acked,
                lost,
                rtt_sample: Some(100 * MS),
                srtt: 100 * MS,
                arrival: None,
                ce_marked: 0,
                is_scalable: false,
                ecn_capable: false,
                bytes_in_flight: 0,
            });
            heard(&mut cubic);
            cubic.cwnd()
        });
        acks.collect()
    }

    #[test]
    fn growth_does_not_depend_on_what_the_clock_shows() {
        assert_eq!(windows(0, |_| ()), windows(SEC, |_| ()));
    }

    #[test]
    fn a_packet_size_that_is_said_again_changes_nothing() {
        let again = |cubic: &mut Cubic| cubic.set_packet_bytes(1500);
        assert_eq!(windows(SEC, again), windows(SEC, |_| ()));
    }
}
