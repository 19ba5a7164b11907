//! The Monitor: the packet loss rate, how it varies, and whether losses come in bursts.

use sphinx_fec::params::LossHistogram;

use crate::PacketNumber;

use std::{collections::VecDeque, mem};

/// Packets per bucket.
const BUCKET: u8 = 128;
/// The latest buckets: the loss rate rests on the last 4096 packets.
const RECENT: usize = 32;
/// Buckets kept: what is known of bursts rests on the last 65 536 packets. In 4096 packets there are five bursts of sixteen at 2 %.
const BUCKETS: usize = 512;
/// Fewer buckets say nothing of how unevenly they lose: 1024 packets.
const BUCKETS_MIN: usize = 8;
/// Assumed before anything is known: half a loss in twenty-five packets. So the estimate of a path that loses nothing is below
/// the usual aim of 0.2 % after 225 packets. One that loses twice as many as that has then shown it with a chance of 60 %, and
/// whoever learns later has protected too little what one loss hits.
const PRIOR_PACKETS: f64 = 25.0;
const PRIOR_PLR: f64 = 0.02;
/// So many packets an earlier session's estimate counts for.
const REMEMBERED_PACKETS: f64 = 100.0;
/// Before so many packets are known, the estimate is mostly a guess.
const COLD: u64 = 64;
/// After so many packets without loss the path counts as clean,
const CLEAN: u64 = 3000;
/// and where losses come in bursts only after so many times the mean distance of these.
const CLEAN_DISTANCES: f64 = 8.0;

/// Losses in one direction, as they were measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Losses {
    /// Share of the last 4096 packets that was lost, 0–1.
    pub recent: f64,
    /// Share of all packets so far that was lost, 0–1.
    pub mean: f64,
    /// Mean number of packets lost in a row among the last 4096; 1 if losses are independent.
    pub burst: f64,
}

/// Losses among [`BUCKET`] packets.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    lost: u8,
    /// Times that a packet was lost and the one before it was not.
    bursts: u8,
}

/// What losses that come in bursts are like.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bursts {
    /// Share of packets that is lost.
    plr: f64,
    /// Packets that are lost in a row on the link of Gilbert's model that loses as unevenly.
    mean: f64,
}

/// Estimates the packet loss rate (PLR) from packets found acknowledged or lost.
#[derive(Debug, Clone)]
pub(crate) struct Monitor {
    /// Full buckets, oldest first.
    buckets: VecDeque<Bucket>,
    /// Losses of the full buckets.
    history: LossHistogram,
    /// What they say of bursts; `None` if losses are independent.
    bursts: Option<Bursts>,
    current: Bucket,
    packets: u8,
    last_lost: Option<PacketNumber>,
    packets_total: u64,
    path_packets: u64,
    lost_total: u64,
    since_loss: u64,
    /// PLR of an earlier session, where one is known.
    remembered: Option<f64>,
}

impl Default for Monitor {
    fn default() -> Self {
        Self {
            buckets: VecDeque::new(),
            history: LossHistogram::new(usize::from(BUCKET)),
            bursts: None,
            current: Bucket::default(),
            packets: 0,
            last_lost: None,
            packets_total: 0,
            path_packets: 0,
            lost_total: 0,
            since_loss: 0,
            remembered: None,
        }
    }
}

impl Monitor {
    /// A Monitor that begins with the PLR, 0–1, of an earlier session on the same path.
    pub(crate) fn remembering(plr: Option<f64>) -> Self {
        Self {
            remembered: plr.map(|plr| plr.clamp(0.0, 0.9)),
            ..Self::default()
        }
    }

    /// One packet was acknowledged.
    pub(crate) fn acknowledged(&mut self) {
        self.since_loss += 1;
        self.count(1);
    }

    /// So many packets were acknowledged, and none between them was lost.
    pub(crate) fn acknowledged_in_a_row(&mut self, mut count: u64) {
        while count > 0 {
            let some = count.min(u64::from(BUCKET - self.packets));
            self.since_loss += some;
            self.count(some as u8);
            count -= some;
        }
    }

    /// The packet with this number was lost.
    pub(crate) fn lost(&mut self, packet_number: PacketNumber) {
        let continues = self.last_lost.is_some_and(|last| last + 1 == packet_number);
        self.last_lost = Some(packet_number);
        self.lost_total += 1;
        self.since_loss = 0;
        self.current.lost += 1;
        self.current.bursts += u8::from(!continues);
        self.count(1);
    }

    /// So many packets more, with which the bucket is full at most.
    fn count(&mut self, packets: u8) {
        self.packets_total += u64::from(packets);
        self.path_packets += u64::from(packets);
        self.packets += packets;
        if self.packets >= BUCKET {
            self.end_bucket();
        }
    }

    fn end_bucket(&mut self) {
        self.forget(self.buckets.len().saturating_sub(BUCKETS - 1));
        let full = mem::take(&mut self.current);
        self.history.record(usize::from(full.lost));
        self.buckets.push_back(full);
        self.packets = 0;
        if self.has_changed() {
            self.forget(self.buckets.len() - RECENT);
        }
        self.bursts = self.find_bursts();
    }

    /// Forgets so many of the oldest buckets.
    fn forget(&mut self, count: usize) {
        for bucket in self.buckets.drain(..count) {
            self.history.forget(usize::from(bucket.lost));
        }
    }

    /// Whether the latest buckets lose so much more or less than those before them that it is no chance: four standard
    /// deviations.
    fn has_changed(&self) -> bool {
        let Some(older) = self.buckets.len().checked_sub(RECENT) else {
            return false;
        };
        if older < RECENT {
            return false;
        }
        let (older, all) = (older as f64, self.buckets.len() as f64);
        let recent = self.sum(RECENT, |bucket| bucket.lost) - f64::from(self.current.lost);
        let difference = recent / RECENT as f64 - (self.history.mean() * all - recent) / older;
        let variance = self.history.variance() * (1.0 / RECENT as f64 + 1.0 / older);
        difference * difference > 16.0 * variance
    }

    /// Two looks at bursts, which agree if everything is lost in one: packets lost in a row, and buckets that lose much
    /// more than others. The latter takes many buckets to be exact, the former sees nothing of bursts in which every
    /// other packet arrives.
    fn find_bursts(&self) -> Option<Bursts> {
        if self.buckets.len() < BUCKETS_MIN {
            return None;
        }
        let mean = self.in_a_row(BUCKETS).max(self.history.burst());
        let plr = self.history.loss_rate();
        (mean > 1.0).then_some(Bursts { plr, mean })
    }

    /// A packet counted as lost had only been late.
    pub(crate) fn spurious(&mut self) {
        self.take_back();
    }

    /// There never was a packet that counted as lost. `alone`: neither of those beside it was lost.
    pub(crate) fn never_sent(&mut self, alone: bool) {
        self.packets_total = self.packets_total.saturating_sub(1);
        let bucket = self.take_back();
        if let Some(bucket) = bucket.filter(|_| alone) {
            bucket.bursts = bucket.bursts.saturating_sub(1);
        }
    }

    /// One loss fewer; the bucket that it was in, as far as is known.
    fn take_back(&mut self) -> Option<&mut Bucket> {
        self.lost_total = self.lost_total.saturating_sub(1);
        if self.current.lost > 0 {
            self.current.lost -= 1;
            return Some(&mut self.current);
        }
        let bucket = self
            .buckets
            .iter_mut()
            .rev()
            .find(|bucket| bucket.lost > 0)?;
        self.history.forget(usize::from(bucket.lost));
        bucket.lost -= 1;
        self.history.record(usize::from(bucket.lost));
        Some(bucket)
    }

    /// A Monitor for the packets from now on, which travel another way through the network. Only the totals
    /// go on.
    pub(crate) fn successor(&self) -> Self {
        Self {
            packets_total: self.packets_total,
            lost_total: self.lost_total,
            ..Self::default()
        }
    }

    /// Estimated PLR, 0–1: the mean of the last 4096 packets, pulled towards 2 %, or what is
    /// remembered, while few are known; 0 once the path counts as clean.
    pub(crate) fn plr(&self) -> f64 {
        if self.is_clean() {
            return 0.0;
        }
        let packets = self.recent_packets();
        let lost = self.sum(RECENT, |bucket| bucket.lost);
        if packets >= 1000.0 {
            lost / packets
        } else {
            let assumed = (PRIOR_PLR, PRIOR_PACKETS);
            let (prior, weight) = self
                .remembered
                .map_or(assumed, |plr| (plr, REMEMBERED_PACKETS));
            (lost + weight * prior) / (packets + weight)
        }
    }

    fn is_clean(&self) -> bool {
        let packets = f64::from(BUCKET) * self.buckets.len() as f64;
        let since = self.since_loss as f64;
        // The distance of bursts before the latest one.
        let is_far = |bursts: Bursts| {
            let lost = bursts.plr * packets;
            since * lost >= CLEAN_DISTANCES * bursts.mean * (packets - since)
        };
        self.since_loss >= CLEAN && self.bursts.is_none_or(is_far)
    }

    /// Packets over which the loss rate is averaged.
    fn recent_packets(&self) -> f64 {
        let full = self.buckets.len().min(RECENT);
        f64::from(BUCKET) * full as f64 + f64::from(self.packets)
    }

    /// Over the latest buckets, so many, and the one that is not full.
    fn sum(&self, buckets: usize, of: impl Fn(&Bucket) -> u8) -> f64 {
        let latest = self.buckets.iter().rev().take(buckets);
        let counts = latest.chain([&self.current]).map(of);
        f64::from(counts.map(u32::from).sum::<u32>())
    }

    /// Mean number of packets lost in a row, among the last 4096 packets; 1, as if losses were
    /// independent, unless that many in a row would be a strange chance.
    pub(crate) fn burst(&self) -> f64 {
        self.in_a_row(RECENT)
    }

    fn in_a_row(&self, buckets: usize) -> f64 {
        let lost = self.sum(buckets, |bucket| bucket.lost);
        if lost == 0.0 {
            return 1.0;
        }
        let bursts = self.sum(buckets, |bucket| bucket.bursts).max(1.0);
        let packets = f64::from(BUCKET) * self.buckets.len().min(buckets) as f64;
        // Losses right behind another: a share of the PLR if they are independent.
        let chance = lost * lost / (packets + f64::from(self.packets)).max(1.0);
        if lost - bursts > chance + 3.0 * chance.sqrt() + 3.0 {
            lost / bursts
        } else {
            1.0
        }
    }

    /// PLR and mean burst from which a flight's repair is reckoned.
    pub(crate) fn of_flights(&self) -> (f64, f64) {
        match self.bursts {
            _ if self.is_clean() => (0.0, 1.0),
            Some(bursts) => (bursts.plr, bursts.mean),
            None if self.buckets.len() < BUCKETS_MIN => (self.plr(), self.burst()),
            None => (self.plr(), 1.0),
        }
    }

    /// Standard deviation of the PLR over the latest buckets of 128 packets (the paper's δ), 0–1.
    pub(crate) fn deviation(&self) -> f64 {
        if self.buckets.len() < 2 {
            return 0.0;
        }
        let latest = self.buckets.iter().rev().take(RECENT);
        let rates = latest.map(|bucket| f64::from(bucket.lost) / f64::from(BUCKET));
        let count = rates.len() as f64;
        let mean = rates.clone().sum::<f64>() / count;
        let squares = rates.map(|r| (r - mean).powi(2)).sum::<f64>();
        (squares / (count - 1.0)).sqrt()
    }

    /// What has been measured, without anything assumed; `None` before the first packet.
    pub(crate) fn losses(&self) -> Option<Losses> {
        let mean = self.lost_total as f64 / self.packets_total as f64;
        (self.packets_total > 0).then(|| Losses {
            recent: self.sum(RECENT, |bucket| bucket.lost) / self.recent_packets().max(1.0),
            mean,
            burst: self.burst(),
        })
    }

    /// Whether so little is known that the estimate is mostly a guess.
    pub(crate) fn is_cold(&self) -> bool {
        self.path_packets < COLD && self.remembered.is_none()
    }

    /// Whether packets are known to be lost: in this session, lately, or in the one before. What is assumed does not count.
    pub(crate) fn knows_loss(&self) -> bool {
        let measured = self.sum(RECENT, |bucket| bucket.lost) > 0.0;
        let remembered = self.remembered.is_some_and(|plr| plr > 0.0);
        (measured || remembered) && self.plr() > 0.0 && !self.is_cold()
    }

    /// PLR of the path as far as it is worth remembering, 0–1.
    pub(crate) fn worth_remembering(&self) -> Option<f64> {
        (self.path_packets >= 1000).then(|| self.plr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::pn;

    #[test]
    fn starts_careful_and_becomes_exact() {
        let mut monitor = Monitor::default();
        assert!(monitor.plr() > 0.0 && monitor.is_cold() && !monitor.knows_loss());
        for i in 0..10_000 {
            match i % 16 {
                0 => monitor.lost(pn(i)),
                _ => monitor.acknowledged(),
            }
        }
        assert_eq!(monitor.burst(), 1.0);
        assert!((monitor.plr() - 0.0625).abs() < 0.001 && monitor.knows_loss());
        let mean = |monitor: &Monitor| monitor.losses().map(|losses| losses.mean);
        assert!((mean(&monitor).unwrap() - 0.0625).abs() < 1e-9);
        assert!(monitor.deviation() < 0.01);
        for _ in 0..2900 {
            monitor.acknowledged();
        }
        assert!(monitor.plr() > 0.0);
        for _ in 0..3000 {
            monitor.acknowledged();
        }
        assert_eq!(monitor.plr(), 0.0);
        assert!(!monitor.knows_loss());
    }

    #[test]
    fn what_is_remembered_is_a_beginning() {
        let mut monitor = Monitor::remembering(Some(0.06));
        assert!(!monitor.is_cold() && monitor.worth_remembering().is_none());
        assert!(monitor.knows_loss());
        assert!((monitor.plr() - 0.06).abs() < 1e-9);
        for _ in 0..900 {
            monitor.acknowledged();
        }
        assert!(monitor.plr() < 0.01);
        assert!(monitor.successor().is_cold());
    }

    #[test]
    fn bursts_are_told_from_chance() {
        let burst = |row: u64, period: u64| {
            let mut monitor = Monitor::default();
            for i in 0..8000 {
                match i % period < row {
                    true => monitor.lost(pn(i)),
                    false => monitor.acknowledged(),
                }
            }
            monitor.burst()
        };
        assert_eq!(burst(1, 20), 1.0);
        assert!((burst(2, 40) - 2.0).abs() < 0.1);
        assert!((burst(8, 160) - 8.0).abs() < 0.5);

        let mut state = 1_u64;
        for seed in 0..50 {
            let mut monitor = Monitor::default();
            for i in 0..8000 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(seed);
                match (state >> 33) % 100 < 6 {
                    true => monitor.lost(pn(i)),
                    false => monitor.acknowledged(),
                }
            }
            assert_eq!(monitor.burst(), 1.0, "seed {seed}");
        }
    }

    /// A Monitor after so many packets, of which those were lost that `is_lost`.
    fn after(packets: u64, is_lost: impl Fn(u64) -> bool) -> Monitor {
        let mut monitor = Monitor::default();
        for i in 0..packets {
            match is_lost(i) {
                true => monitor.lost(pn(i)),
                false => monitor.acknowledged(),
            }
        }
        monitor
    }

    #[test]
    fn flights_are_protected_by_all_that_is_alike() {
        // Sixteen packets of 320, all of them: as many in a row.
        let (plr, burst) = after(60_000, |i| i % 320 < 16).of_flights();
        assert!((plr - 0.05).abs() < 0.002 && burst >= 15.9, "{plr} {burst}");
        // Every other one of them: none in a row, but many together.
        let monitor = after(60_000, |i| i % 320 < 32 && i % 2 == 0);
        assert_eq!(monitor.burst(), 1.0);
        let (plr, burst) = monitor.of_flights();
        assert!((plr - 0.05).abs() < 0.002 && burst > 5.0, "{plr} {burst}");
        // Few packets: in a row or not is all that is known.
        let (_, burst) = after(900, |i| i % 160 < 8).of_flights();
        assert!((burst - 8.0).abs() < 0.1, "{burst}");
    }

    #[test]
    fn what_has_changed_is_forgotten() {
        let monitor = after(60_000, |i| i % 80 < 8 && i < 50_000 || i % 800 < 8);
        let (plr, burst) = monitor.of_flights();
        assert!((plr - 0.01).abs() < 0.002 && burst > 7.0, "{plr} {burst}");
    }

    #[test]
    fn between_bursts_a_path_is_not_clean() {
        let mut monitor = after(60_000, |i| i % 2000 < 16);
        for _ in 0..8000 {
            monitor.acknowledged();
        }
        assert!(monitor.of_flights().0 > 0.0);
        for _ in 0..10_000 {
            monitor.acknowledged();
        }
        assert_eq!(monitor.of_flights(), (0.0, 1.0));
    }

    #[test]
    fn spurious_losses_are_taken_back() {
        let mut monitor = Monitor::default();
        for i in 0..500 {
            monitor.lost(pn(i));
            monitor.spurious();
        }
        assert_eq!(monitor.losses().unwrap().mean, 0.0);
    }

    #[test]
    fn nothing_is_assumed_where_nothing_was_measured() {
        let mut monitor = Monitor::remembering(Some(0.5));
        assert_eq!(monitor.losses(), None);
        monitor.acknowledged();
        let losses = monitor.losses().unwrap();
        assert_eq!((losses.recent, losses.mean, losses.burst), (0.0, 0.0, 1.0));
    }
}
