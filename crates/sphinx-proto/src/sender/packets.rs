//! What becomes of sent packets: acknowledgements and losses.

use super::Sender;
use crate::Nanos;
use crate::block::SymbolChoice;
use crate::cc::{AckSummary, Arrival, PacketInfo, RateControl};
use crate::fragment::Meaning;
use crate::rtt::Rtt;
use crate::sent::{Carried, Settled};
use crate::wire::Sack;

impl Sender {
    pub(crate) fn largest_acked(&self) -> Option<u64> {
        self.log.largest_acked()
    }

    /// Next packet number.
    pub(crate) fn next_pn(&self) -> u64 {
        self.log.next_pn()
    }

    fn record(&mut self, now: Nanos, ip_bytes: u32, carried: Carried, eliciting: bool) {
        let pn = self.log.next_pn();
        self.log.record(now, ip_bytes, carried, eliciting);
        if !eliciting {
            // An end that only receives would keep all its SACKs.
            self.forget_settled(now);
            return;
        }
        self.last_sent = now;
        if self.log.packets_in_flight() == 1 {
            self.last_news = now;
        }
        if carried.counts() {
            let in_flight = self.log.bytes_in_flight();
            self.cc.on_sent(now, pn, ip_bytes, in_flight);
        }
    }

    pub(crate) fn sent_symbol(&mut self, now: Nanos, ip_bytes: u32, choice: &SymbolChoice) {
        if let Some(block) = self.block_mut(choice.sequence) {
            block.in_flight += 1;
            block.last_sent = now;
        }
        let carried = Carried::Symbol {
            block: choice.sequence,
            round: choice.round,
            symbol: choice.symbol,
        };
        self.record(now, ip_bytes, carried, true);
    }

    /// Record one part of a symbol; the first one has packet number `first`.
    pub(crate) fn sent_fragment(
        &mut self,
        now: Nanos,
        ip_bytes: u32,
        choice: &SymbolChoice,
        (first, count): (u64, u8),
    ) {
        let pn = self.next_pn();
        self.groups.sent(first, pn, count);
        if let Some(block) = self.block_mut(choice.sequence) {
            block.in_flight += u32::from(pn == first);
            block.last_sent = now;
        }
        let carried = Carried::Fragment {
            block: choice.sequence,
            round: choice.round,
            symbol: choice.symbol,
            after: (pn - first) as u32,
        };
        self.record(now, ip_bytes, carried, true);
    }

    /// Whether the block has not been completed meanwhile.
    pub(crate) fn is_open(&mut self, sequence: u64) -> bool {
        self.block_mut(sequence).is_some()
    }

    pub(crate) fn sent_ids(&mut self, now: Nanos, ip_bytes: u32, highest: u64) {
        self.record(now, ip_bytes, Carried::ConnectionIds(highest), true);
    }

    pub(crate) fn sent_control(&mut self, now: Nanos, ip_bytes: u32, eliciting: bool) {
        self.record(now, ip_bytes, Carried::Frames, eliciting);
    }

    pub(crate) fn sent_mtu_probe(&mut self, now: Nanos, ip_bytes: u32, size: u16) {
        self.record(now, ip_bytes, Carried::MtuProbe(size), true);
    }

    /// Symbol-SACK. `false`: the peer acknowledges what was never sent.
    pub(crate) fn on_sack(&mut self, now: Nanos, sack: &Sack) -> bool {
        let Some(&(_, largest)) = sack.ranges.first() else {
            return true;
        };
        if largest >= self.log.next_pn() {
            return false;
        }
        self.window_news += u64::from(sack.credit > self.credit);
        self.credit = self.credit.max(sack.credit);
        let mut acked = std::mem::take(&mut self.acked);
        acked.clear();
        self.log.acknowledge(now, &sack.ranges, &mut acked);
        for packet in &acked {
            self.on_packet_acked(packet);
        }
        if acked.iter().any(|packet| packet.on_path) {
            self.last_news = now;
        }
        let on_time = acked.iter().filter(|p| !p.late && p.counts());
        self.acked_infos.clear();
        self.acked_infos.extend(on_time.map(|p| p.info));
        self.acked = acked;

        // Only the largest packet's arrival time is known.
        let newest = self.acked_infos.iter().find(|p| p.pn == largest).copied();
        let rtt_sample = newest.map(|newest| {
            let delay = sack.delay_us.saturating_mul(1000);
            let sample = now.saturating_sub(newest.sent_at);
            self.rtt.update(sample, delay);
            sample.saturating_sub(delay).max(1)
        });
        self.detect_losses(now);
        let ce_marked = self
            .ecn
            .on_sack(sack.ect, sack.ce, self.acked_infos.len() as u64);
        let arrival = newest.map(|newest| Arrival {
            pn: newest.pn,
            received_at: sack.time_us.saturating_mul(1000),
        });
        self.tell_rate_control(now, rtt_sample, arrival, ce_marked);
        self.forget_settled(now);
        true
    }

    fn on_packet_acked(&mut self, packet: &Settled) {
        if packet.counts() {
            if packet.late {
                self.counters.losses_spurious += 1;
                self.counters.packets_lost -= 1;
                self.monitor.spurious();
            } else {
                self.monitor.acknowledged();
            }
            let PacketInfo {
                sent_at, ip_bytes, ..
            } = packet.info;
            self.hole.acked(sent_at, ip_bytes);
            if self.hole.is_large(ip_bytes) {
                self.large_arrived = Some((ip_bytes, sent_at));
            }
        }
        let mut progress = true;
        match packet.carried {
            Carried::Symbol { block, symbol, .. } => {
                progress = self.symbol_arrived(block, symbol, packet.late);
            }
            Carried::Fragment {
                block,
                symbol,
                after,
                ..
            } => match self.groups.acked(packet.info.pn - u64::from(after)) {
                Meaning::Arrived => progress = self.symbol_arrived(block, symbol, false),
                Meaning::ArrivedLate => progress = self.symbol_arrived(block, symbol, true),
                Meaning::Nothing | Meaning::Lost => {}
            },
            Carried::MtuProbe(size) => self.mtu_acked = self.mtu_acked.max(Some(size)),
            Carried::ConnectionIds(highest) => self.ids_settled.push((highest, true)),
            // A PING beside probes brings blocks no further.
            Carried::Frames => progress = self.blocks.is_empty(),
        }
        if progress {
            self.probes_unanswered = 0;
        }
        let is_symbol = matches!(
            packet.carried,
            Carried::Symbol { .. } | Carried::Fragment { .. }
        );
        self.progress |= progress && is_symbol;
    }

    /// Finds lost packets and compensates them; they are in `lost_infos` afterwards.
    pub(super) fn detect_losses(&mut self, now: Nanos) {
        let mut lost = std::mem::take(&mut self.lost);
        lost.clear();
        self.log
            .detect_losses(now, self.rtt.loss_delay(), &mut lost);
        self.on_packets_lost(&lost);
        self.lost = lost;
    }

    fn on_packets_lost(&mut self, lost: &[Settled]) {
        self.lost_infos.clear();
        for packet in lost {
            if packet.counts() {
                self.lost_infos.push(packet.info);
                self.counters.packets_lost += 1;
                self.monitor.lost(packet.info.pn);
                self.hole.lost(packet.info.sent_at, packet.info.ip_bytes);
            }
            match packet.carried {
                Carried::Symbol {
                    block,
                    round,
                    symbol,
                } => self.symbol_lost(block, round, symbol),
                Carried::Fragment {
                    block,
                    round,
                    symbol,
                    after,
                } => {
                    let first = packet.info.pn - u64::from(after);
                    if self.groups.lost(first) == Meaning::Lost {
                        self.symbol_lost(block, round, symbol);
                    }
                }
                Carried::ConnectionIds(highest) => self.ids_settled.push((highest, false)),
                Carried::MtuProbe(_) | Carried::Frames => {}
            }
        }
    }

    pub(super) fn tell_rate_control(
        &mut self,
        now: Nanos,
        rtt_sample: Option<Nanos>,
        arrival: Option<Arrival>,
        ce_marked: u64,
    ) {
        self.cc.on_ack(&AckSummary {
            now,
            acked: &self.acked_infos,
            lost: &self.lost_infos,
            rtt_sample,
            srtt: self.rtt.smoothed(),
            arrival,
            ce_marked,
            ecn_capable: self.ecn.is_capable(),
            bytes_in_flight: self.log.bytes_in_flight(),
        });
    }

    fn forget_settled(&mut self, now: Nanos) {
        let mut lost = std::mem::take(&mut self.lost);
        lost.clear();
        self.log.forget(now, 3 * self.rtt.loss_delay(), &mut lost);
        if !lost.is_empty() {
            self.on_packets_lost(&lost);
            self.acked_infos.clear();
            self.tell_rate_control(now, None, None, 0);
        }
        self.lost = lost;
        self.groups.forget_below(self.log.first_pn());
    }

    /// From now on packets travel another way through the network.
    pub(crate) fn begin_path(&mut self, now: Nanos, cc: Box<dyn RateControl>, round_trip: Nanos) {
        self.cc = cc;
        self.rtt = Rtt::new(round_trip);
        self.monitor.begin_path();
        self.log.begin_path();
        self.hole.forget();
        self.probes_unanswered = 0;
        self.last_news = now;
        self.ecn.begin_path();
    }
}
