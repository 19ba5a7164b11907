//! What belongs to the pair of addresses that packets travel between. A peer that moves gets a new one.

use crate::cc::{self, Before, CcParams, Limited, PacketInfo};
use crate::config::{Config, PathMemory};
use crate::session::BASE_DATAGRAM;
use crate::types::Tuple;
use crate::wire::{MAX_SYMBOL_LEN, OVERHEAD};
use crate::{Nanos, PacketNumber, Time};

use super::ecn::{Ecn, EcnMode};
use super::monitor::Monitor;
use super::mtu::{BlackHole, PathMtu, WORTHWHILE};
use super::pacer::Pacer;
use super::reordering::Reordering;
use super::rtt::Rtt;
use super::sent::Settled;
use super::timer::ProbeTimer;

/// Packets of a block, as the paper has them.
const BLOCK_PACKETS: u32 = 100;

/// What is needed to begin at new addresses, as [`Config`] says.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    kind: cc::CcKind,
    /// Rate that is not to be exceeded, IP bytes per second.
    limit: Option<u64>,
    /// IP and UDP headers, bytes.
    pub(super) ip_overhead: u16,
    mtu_candidates: Vec<u16>,
    datagram_max: u16,
    ecn: EcnMode,
}

impl Settings {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            kind: config.cc,
            limit: config.limit,
            ip_overhead: config.ip_overhead,
            mtu_candidates: config.mtu_candidates.clone(),
            datagram_max: config
                .peer_datagram_max
                .min((MAX_SYMBOL_LEN + OVERHEAD) as u16),
            ecn: match (config.ecn, &config.paper) {
                // The window of the paper's mode is halved at a mark, as in classic ECN.
                (EcnMode::L4s, Some(_)) => EcnMode::Classic,
                (mode, _) => mode,
            },
        }
    }

    /// Those of the same session where the peer is found elsewhere, or has other limits, as `config` says.
    pub(super) fn again(&self, config: &Config) -> Self {
        Self {
            kind: self.kind,
            limit: self.limit,
            ..Self::new(config)
        }
    }

    pub(super) fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    fn small_packet(&self) -> u32 {
        u32::from(BASE_DATAGRAM + self.ip_overhead)
    }

    /// The controller of new paths; whether it is another one.
    pub(super) fn set_cc(&mut self, kind: cc::CcKind) -> bool {
        std::mem::replace(&mut self.kind, kind) != kind
    }

    fn rate_control(&self, rtt: Option<Nanos>, memory: Option<PathMemory>) -> Limited {
        let params = CcParams {
            packet_bytes: self.small_packet(),
            block_packets: BLOCK_PACKETS,
            rtt,
            memory,
            before: None,
        };
        Limited::new(self.kind.build(params), self.limit)
    }

    fn path_mtu(&self, remembered: Option<u16>) -> PathMtu {
        PathMtu::new(
            BASE_DATAGRAM,
            &self.mtu_candidates,
            self.datagram_max,
            remembered,
        )
    }
}

/// What is known of one pair of addresses.
pub(crate) struct Address {
    pub(super) tuple: Tuple,
    /// Packets below this number left for other addresses; their fate says nothing about these.
    first_packet: PacketNumber,
    pub(super) rtt: Rtt,
    pub(super) monitor: Monitor,
    pub(super) cc: Limited,
    pub(super) pacer: Pacer,
    pub(super) mtu: PathMtu,
    pub(super) hole: BlackHole,
    pub(super) ecn: Ecn,
    pub(super) reordering: Reordering,
    pub(super) timer: ProbeTimer,
    /// Bytes in flight of the packets that rate control hears of.
    pub(super) bytes_in_flight: u64,
}

impl Address {
    /// Where the handshake found the peer.
    pub(super) fn first(settings: &Settings, config: &Config, now: Time) -> Self {
        let memory = config.memory;
        Self {
            tuple: config.tuple,
            first_packet: PacketNumber::ZERO,
            rtt: Rtt::new(config.initial_rtt),
            monitor: Monitor::remembering(memory.map(|memory| memory.plr)),
            cc: settings.rate_control(Some(config.initial_rtt), memory),
            pacer: Pacer::new(now),
            mtu: settings
                .path_mtu(memory.map(|memory| memory.datagram_len))
                .after(WORTHWHILE),
            hole: BlackHole::new(settings.small_packet()),
            ecn: Ecn::new(settings.ecn, PacketNumber::ZERO),
            reordering: Reordering::default(),
            timer: ProbeTimer::new(now),
            bytes_in_flight: 0,
        }
    }

    /// Where the handshake has found the peer after all, beginning with packet `first_packet`.
    pub(super) fn again(
        &self,
        settings: &Settings,
        config: &Config,
        first_packet: PacketNumber,
        now: Time,
    ) -> Self {
        Self {
            first_packet,
            ..Self::first(settings, config, now)
        }
    }

    /// Where a further path begins; until it is validated, the round trip is that of another one.
    pub(super) fn further(settings: &Settings, tuple: Tuple, rtt: Nanos, now: Time) -> Self {
        Self {
            tuple,
            first_packet: PacketNumber::ZERO,
            rtt: Rtt::new(rtt),
            monitor: Monitor::remembering(None),
            cc: settings.rate_control(None, None),
            pacer: Pacer::new(now),
            mtu: settings.path_mtu(None),
            hole: BlackHole::new(settings.small_packet()),
            ecn: Ecn::new(settings.ecn, PacketNumber::ZERO),
            reordering: Reordering::default(),
            timer: ProbeTimer::new(now),
            bytes_in_flight: 0,
        }
    }

    /// Where the peer is from now on, beginning with packet `first_packet`; validation took `round_trip`.
    pub(super) fn successor(
        &self,
        settings: &Settings,
        tuple: Tuple,
        (first_packet, round_trip): (PacketNumber, Nanos),
        now: Time,
    ) -> Self {
        let mut mtu = settings.path_mtu(None);
        mtu.fall(now);
        Self {
            tuple,
            first_packet,
            rtt: Rtt::new(round_trip),
            monitor: self.monitor.successor(),
            cc: settings.rate_control(None, None),
            pacer: Pacer::new(now),
            mtu,
            hole: BlackHole::new(settings.small_packet()),
            ecn: Ecn::new(settings.ecn, first_packet),
            reordering: Reordering::default(),
            timer: ProbeTimer::new(now),
            bytes_in_flight: 0,
        }
    }

    /// The controller of `settings` takes the place of the present one, beginning with packet `first_packet`, with a start-up if it
    /// `starts`; full packets have `packet_bytes`.
    pub(super) fn change_rate_control(
        &mut self,
        settings: &Settings,
        (first_packet, packet_bytes): (PacketNumber, u32),
        starts: bool,
        now: Time,
    ) {
        let old = self.cc.unlimited();
        let before = Before {
            now,
            rate: old.bandwidth_estimate(),
            cwnd: old.cwnd(),
            min_rtt: old.min_rtt().unwrap_or(self.rtt.min()),
            srtt: self.rtt.smoothed(),
            is_starting: starts || old.is_starting(),
        };
        let params = CcParams {
            packet_bytes,
            block_packets: BLOCK_PACKETS,
            rtt: None,
            memory: None,
            before: Some(before),
        };
        self.cc.replace(settings.kind.build(params), first_packet);
        self.ecn.restart(first_packet);
    }

    /// Whether the packet left for these addresses.
    pub(super) fn has_sent(&self, packet_number: PacketNumber) -> bool {
        packet_number >= self.first_packet
    }

    /// Whether rate control and the Monitor hear of the packet.
    pub(super) fn counts(&self, packet: &Settled) -> bool {
        self.has_sent(packet.info.pn) && packet.carried.counts()
    }

    /// A packet has arrived.
    #[inline]
    pub(super) fn acked(&mut self, now: Time, packet: &Settled) {
        let PacketInfo {
            pn,
            sent_at,
            ip_bytes,
        } = packet.info;
        if packet.late && self.has_sent(pn) {
            let delay = now.saturating_sub(sent_at);
            self.reordering.note_late(now, packet.overtaken_by, delay);
        }
        if !self.counts(packet) {
            return;
        }
        if packet.given_up {
            self.monitor.acknowledged();
        } else if packet.late {
            self.monitor.spurious();
        } else {
            self.bytes_in_flight -= u64::from(ip_bytes);
            self.monitor.acknowledged();
        }
        self.hole.acked(sent_at, ip_bytes);
    }

    /// So many packets have arrived in time that rate control and the Monitor hear of, each of so many bytes; the last of them left then.
    pub(super) fn acked_in_a_row(&mut self, count: u64, sent_at: Time, ip_bytes: u32) {
        self.bytes_in_flight -= count * u64::from(ip_bytes);
        self.monitor.acknowledged_in_a_row(count);
        self.hole.acked(sent_at, ip_bytes);
    }

    /// A packet counts as lost.
    pub(super) fn lost(&mut self, packet: &Settled) {
        if self.counts(packet) {
            self.bytes_in_flight -= u64::from(packet.info.ip_bytes);
            if !packet.given_up {
                self.monitor.lost(packet.info.pn);
            }
            self.hole.lost(packet.info.sent_at, packet.info.ip_bytes);
        }
    }
}
