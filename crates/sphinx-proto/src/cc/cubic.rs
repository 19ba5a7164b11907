//! CUBIC (RFC 9438) with HyStart++ (RFC 9406): what most of the Internet does, for comparison. Every loss counts as
//! congestion, so random loss keeps it slow.

use super::{AckSummary, CcParams, MS, Nanos, PacketInfo, RateControl, SEC, rate_of};

/// Round trip assumed before the first sample.
const INITIAL_RTT: Nanos = 100 * MS;
/// Packets of the first window (RFC 6928).
const INITIAL_PACKETS: f64 = 10.0;
/// Packets of the smallest one.
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
    recovery_until_pn: u64,
    next_pn: u64,
    app_limited_until_pn: u64,
}

/// Growth since the last reduction.
#[derive(Debug, Clone, Copy)]
struct Growth {
    since: Nanos,
    /// When it grew last: time in which the application sent less does not count (RFC 9438, section 5.8).
    grew_at: Nanos,
    /// Window of the cubic function at its inflection, and time to there in seconds.
    origin: f64,
    k: f64,
    /// Window that a Reno sender would have, and the one from which on that grows by a packet each round trip.
    reno: f64,
    before: f64,
}

impl Growth {
    fn cubic(&self, at: Nanos) -> f64 {
        let t = (at - self.since) as f64 / SEC as f64 - self.k;
        C * t * t * t + self.origin
    }
}

/// Rounds of slow start (RFC 9406).
#[derive(Debug, Default)]
struct SlowStart {
    round_until_pn: u64,
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
            // The delay was a passing one.
            (Some((baseline, _)), _) if least < baseline => self.cautious = None,
            _ => {}
        }
    }

    /// The packet with this number was acknowledged; `true` if slow start is over.
    fn on_acked(&mut self, pn: u64, next_pn: u64) -> bool {
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
            recovery_until_pn: 0,
            next_pn: 0,
            app_limited_until_pn: 0,
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
            since: 0,
            grew_at: 0,
            origin: most,
            k: ((most - self.cwnd) / C).cbrt(),
            reno: self.cwnd,
            before,
        });
    }

    /// So many packets were acknowledged while the window was full.
    fn grow(&mut self, now: Nanos, packets: f64) {
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
        if growth.grew_at == 0 {
            (growth.since, growth.grew_at) = (now, now);
        }
        let idle = (now - growth.grew_at).saturating_sub(2 * rtt);
        growth.since += idle;
        growth.grew_at = now;
        let alpha = match growth.reno < growth.before {
            true => 3.0 * (1.0 - BETA) / (1.0 + BETA),
            false => 1.0,
        };
        growth.reno += alpha * packets / self.cwnd;
        if growth.cubic(now) < growth.reno {
            self.cwnd = self.cwnd.max(growth.reno);
            return;
        }
        let target = growth.cubic(now + rtt).clamp(self.cwnd, 1.5 * self.cwnd);
        self.cwnd += (target - self.cwnd) / self.cwnd * packets;
    }
}

impl RateControl for Cubic {
    fn on_sent(&mut self, _now: Nanos, pn: u64, _ip_bytes: u32, _bytes_in_flight: u64) {
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

    fn on_app_limited(&mut self, _now: Nanos) {
        self.app_limited_until_pn = self.next_pn;
    }

    fn on_persistent_loss(&mut self, _now: Nanos) {
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
        // The window stays what it is in bytes.
        let scale = self.packet / packet;
        self.packet = packet;
        self.cwnd = (self.cwnd * scale).max(MIN_PACKETS);
        self.threshold *= scale;
        self.most *= scale;
        if self.growth.is_some() {
            self.begin_growth(self.cwnd);
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
