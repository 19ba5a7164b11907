//! What becomes of sent packets: who hears of acknowledgements and losses, and in which order.

use crate::cc::{AckSummary, Arrival, PacketInfo, RateControl as _};
use crate::session::BASE_DATAGRAM;
use crate::wire::Sack;
use crate::{BlockId, Nanos, Time};

use super::ecn::{EcnUse, Told};
use super::sent::{Carried, Settled};
use super::space::{Arrived, Contents};
use super::{Path, Reading};

/// What rate control hears of after a SACK or a timeout, kept from one to the next for its memory.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    acked: Vec<Settled>,
    lost: Vec<Settled>,
    pub(super) acked_infos: Vec<PacketInfo>,
    pub(super) lost_infos: Vec<PacketInfo>,
}

/// What a SACK says of arrivals beside the packets.
#[derive(Debug, Default)]
struct Observed {
    rtt_sample: Option<Nanos>,
    arrival: Option<Arrival>,
    ce_marked: u64,
}

impl Path {
    /// Symbol-SACK. `false`: the peer acknowledges what was never sent.
    pub(crate) fn on_sack(&mut self, now: Time, sack: &Sack, contents: &mut impl Contents) -> bool {
        let Some(&(_, largest)) = sack.ranges.first() else {
            return true;
        };
        if !self.space.sent.may_have(&sack.ranges) {
            return false;
        }
        let mut acked = std::mem::take(&mut self.scratch.acked);
        acked.clear();
        self.space.sent.acknowledge(&sack.ranges, &mut acked);
        for run in acked.chunk_by(Settled::goes_on) {
            match self.run_of(run) {
                Some(block) => self.on_run_acked(run, block, contents),
                None => {
                    for packet in run {
                        self.on_packet_acked(now, packet, contents);
                    }
                }
            }
        }
        let address = &mut self.address;
        if acked.iter().any(|packet| address.has_sent(packet.info.pn)) {
            address.timer.on_news(now);
        }
        let is_answer = |since| acked.iter().any(|packet| packet.info.sent_at >= since);
        if self
            .suspect_since
            .take_if(|since| is_answer(*since))
            .is_some()
        {
            self.address.timer.on_progress();
        }
        let address = &mut self.address;
        let on_time = acked.iter().filter(|p| !p.late && address.counts(p));
        let infos = &mut self.scratch.acked_infos;
        infos.clear();
        infos.extend(on_time.map(|p| p.info));
        self.scratch.acked = acked;

        // Only the largest packet's arrival time is known.
        let newest = infos.iter().rev().find(|p| p.pn == largest).copied();
        let rtt_sample = newest.and_then(|newest| {
            let delay = sack.delay_us.saturating_mul(1000);
            let sample = now.saturating_sub(newest.sent_at);
            address.rtt.update(now, sample, delay);
            address.rtt.without_delay(sample, delay)
        });
        // Who is wrong about the delay is so about the time of arrival.
        let newest = newest.filter(|_| rtt_sample.is_some());
        self.detect_losses(now, contents);
        let address = &mut self.address;
        let told = Told {
            now,
            rtt: address.rtt.smoothed(),
            next: self.space.sent.next_pn(),
            ect: sack.ect,
            ce: sack.ce,
        };
        let can_scale = address.cc.can_scale();
        let used_before = address.ecn.in_use(can_scale);
        let acked = self.scratch.acked_infos.iter().map(|packet| packet.pn);
        let counts = &mut self.space.ecn;
        let ce_marked = address.ecn.on_sack(counts, told, acked, can_scale);
        let arrival = newest.map(|newest| Arrival {
            pn: newest.pn,
            received_at: Time::from_nanos(sack.time_us.saturating_mul(1000)),
        });
        self.reading = newest.zip(arrival).map(|(newest, arrival)| Reading {
            rtt: rtt_sample.unwrap_or_default(),
            one_way: arrival.received_at.wrapping_sub(newest.sent_at) as i64,
        });
        let observed = Observed {
            rtt_sample,
            arrival,
            ce_marked,
        };
        self.tell_rate_control(now, observed);
        let used = self.address.ecn.in_use(can_scale);
        // What marks have made of the rate is worth nothing. (Who answers to ECT(1) sees by itself that packets leave without.)
        if used == EcnUse::Mangled && !matches!(used_before, EcnUse::Mangled | EcnUse::L4s) {
            let from = (self.next_pn(), self.packet_bytes());
            self.address
                .change_rate_control(&self.settings, from, true, now);
        }
        self.forget_settled(now, contents);
        true
    }

    /// The block of these packets, which [go on](Settled::goes_on), if they are several and can be told of together.
    fn run_of(&self, run: &[Settled]) -> Option<BlockId> {
        let [first, _, ..] = run else {
            return None;
        };
        match first.carried {
            Carried::Symbol { block, .. } => {
                (self.address.counts(first) && !self.space.has_riders()).then_some(block)
            }
            _ => None,
        }
    }

    /// All of these packets have arrived, with symbols of this block: as if each had been told of.
    fn on_run_acked(&mut self, run: &[Settled], block: BlockId, contents: &mut impl Contents) {
        let Some(last) = run.last() else {
            return;
        };
        let PacketInfo {
            sent_at, ip_bytes, ..
        } = last.info;
        let address = &mut self.address;
        address.acked_in_a_row(run.len() as u64, sent_at, ip_bytes);
        if address.hole.is_large(ip_bytes) {
            let size = ip_bytes.saturating_sub(u32::from(self.settings.ip_overhead));
            let size = u16::try_from(size).unwrap_or(u16::MAX);
            // If this one left late enough to say something, it says what the others do.
            address.mtu.carried(sent_at, size);
        }
        let symbols = run.iter().filter_map(|packet| packet.carried.symbol());
        if contents.symbols_arrived(block, symbols, Arrived::Whole) {
            address.timer.on_progress();
        }
    }

    fn on_packet_acked(&mut self, now: Time, packet: &Settled, contents: &mut impl Contents) {
        let address = &mut self.address;
        address.acked(now, packet);
        if address.counts(packet) {
            self.losses_spurious += u64::from(packet.late);
            let ip_bytes = packet.info.ip_bytes;
            if address.hole.is_large(ip_bytes) {
                let size = ip_bytes.saturating_sub(u32::from(self.settings.ip_overhead));
                let size = u16::try_from(size).unwrap_or(u16::MAX);
                address.mtu.carried(packet.info.sent_at, size);
            }
        }
        // Whatever the addresses: while the peer validates new ones, probes leave from them already. Should the path be
        // too narrow, that shows as a black hole.
        if let Carried::MtuProbe(size) = packet.carried {
            address.mtu.acked(size);
        }
        if self.space.arrived(packet, contents) {
            address.timer.on_progress();
        }
    }

    /// Finds lost packets and tells of them; they are in `lost_infos` afterwards.
    fn detect_losses(&mut self, now: Time, contents: &mut impl Contents) {
        let mut lost = std::mem::take(&mut self.scratch.lost);
        lost.clear();
        let delay = self.address.rtt.loss_delay();
        let thresholds = self.address.reordering.thresholds(now, delay);
        self.space.sent.detect_losses(now, thresholds, &mut lost);
        self.on_packets_lost(&lost, contents);
        self.scratch.lost = lost;
    }

    fn on_packets_lost(&mut self, lost: &[Settled], contents: &mut impl Contents) {
        self.scratch.lost_infos.clear();
        for packet in lost {
            self.address.lost(packet);
            if self.address.counts(packet) {
                self.scratch.lost_infos.push(packet.info);
            }
            self.space.lost(packet, contents, &self.address.monitor);
        }
    }

    fn tell_rate_control(&mut self, now: Time, observed: Observed) {
        let address = &mut self.address;
        address.cc.on_ack(&AckSummary {
            now,
            acked: &self.scratch.acked_infos,
            lost: &self.scratch.lost_infos,
            rtt_sample: observed.rtt_sample,
            srtt: address.rtt.smoothed(),
            arrival: observed.arrival,
            ce_marked: observed.ce_marked,
            is_scalable: address.ecn.is_scalable(address.cc.can_scale()),
            ecn_capable: address.ecn.is_capable(),
            bytes_in_flight: address.bytes_in_flight,
        });
    }

    pub(super) fn forget_settled(&mut self, now: Time, contents: &mut impl Contents) {
        let mut lost = std::mem::take(&mut self.scratch.lost);
        lost.clear();
        let patience = 3 * self.address.rtt.loss_delay();
        self.space.forget(now, patience, &mut lost);
        if !lost.is_empty() {
            self.on_packets_lost(&lost, contents);
            self.scratch.acked_infos.clear();
            self.tell_rate_control(now, Observed::default());
        }
        self.scratch.lost = lost;
        self.space.forget_contents();
    }

    /// Everything in a packet, or about a timeout, has been heard: whether the path has become too narrow.
    pub(crate) fn settle(&mut self, now: Time) {
        let address = &mut self.address;
        let (rtt, plr) = (address.rtt.smoothed(), address.monitor.plr());
        if address.hole.is_found(rtt, plr) {
            address.hole.forget();
            if address.mtu.current() > BASE_DATAGRAM {
                self.mtu_falls += 1;
                address.mtu.fall(now);
            }
        }
        self.tell_packet_size();
    }

    /// IP bytes of a full packet.
    pub(super) fn packet_bytes(&self) -> u32 {
        u32::from(self.mtu().saturating_add(self.settings.ip_overhead))
    }

    pub(super) fn tell_packet_size(&mut self) {
        let ip_bytes = self.packet_bytes();
        self.address.cc.set_packet_bytes(ip_bytes);
    }

    /// The path does not answer, and others do: what is in flight counts as lost, so that they carry it.
    pub(crate) fn give_up_flight(&mut self, now: Time, contents: &mut impl Contents) {
        let mut lost = std::mem::take(&mut self.scratch.lost);
        lost.clear();
        self.space.sent.lose_all(&mut lost);
        self.on_packets_lost(&lost, contents);
        self.scratch.lost = lost;
        self.scratch.acked_infos.clear();
        self.tell_rate_control(now, Observed::default());
    }

    /// Declares packets lost by time, if that is due.
    pub(crate) fn lose_overdue(&mut self, now: Time, contents: &mut impl Contents) {
        if self.loss_deadline().is_some_and(|at| at <= now) {
            self.detect_losses(now, contents);
            if !self.scratch.lost_infos.is_empty() {
                self.scratch.acked_infos.clear();
                self.tell_rate_control(now, Observed::default());
            }
        }
    }
}
