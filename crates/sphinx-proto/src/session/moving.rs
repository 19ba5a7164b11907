//! What a session does when its path changes: other addresses, another MTU (`docs/protocol.md` §10).

use super::{BASE_DATAGRAM, Life, MS, Session};
use crate::Nanos;
use crate::cc::{self, CcParams, RateControl};
use crate::config::{Config, PathMemory};
use crate::pacer::Pacer;
use crate::path::{Letter, Moved};
use crate::types::{Event, Transmit, Tuple};
use crate::wire::{ConnectionId, Frame, OVERHEAD};

/// Silence after which a receiver that lacks symbols says where it is.
const SILENCE: (Nanos, Nanos) = (50 * MS, 1_000 * MS);
/// A fresh connection id is taken at most so often without a change of path.
const FRESH_ID_INTERVAL: Nanos = 1_000 * MS;

impl Session {
    /// Challenges and answers to them.
    pub(super) fn poll_path(&mut self, now: Nanos) -> Option<Transmit> {
        let len_max = usize::from(BASE_DATAGRAM);
        let (letter, frame): (Letter, fn([u8; 8]) -> Frame<'static>) =
            match self.paths.poll_response(len_max) {
                Some(letter) => (letter, Frame::PathResponse),
                None => {
                    let pto = self.probe_timeout();
                    let letter = self.paths.poll_challenge(now, pto, len_max)?;
                    (letter, Frame::PathChallenge)
                }
            };
        let mut body = Vec::with_capacity(letter.len);
        frame(letter.data).encode(&mut body);
        body.resize(letter.len - OVERHEAD, 0);
        // Not to be acknowledged as far as the sender is concerned: what becomes of a packet on
        // another path says nothing about this one.
        let transmit = self.control(now, body, false);
        Some(Transmit {
            to: letter.to,
            ..transmit
        })
    }

    /// The peer has proved that it is elsewhere.
    pub(super) fn moved(&mut self, now: Nanos, moved: Moved) {
        self.counts.path_changes += 1;
        self.peer_ids.change();
        if !moved.same_hosts {
            self.sender
                .begin_path(now, rate_control(&self.config, None), moved.round_trip);
            self.pacer = Pacer::new(now);
            self.mtu.fall(now);
        }
        let current = self.paths.current();
        self.events.push_back(Event::PathChanged(current));
    }

    /// What acknowledgements and losses say to others than the sender.
    pub(super) fn news_of_packets(&mut self, now: Nanos) {
        if let Some(size) = self.sender.mtu_acked.take() {
            self.mtu.acked(size);
        }
        for (highest, acked) in self.sender.ids_settled.drain(..) {
            self.local_ids.settled(highest, acked);
        }
        if let Some((ip_bytes, sent_at)) = self.sender.large_arrived.take() {
            let size = ip_bytes.saturating_sub(u32::from(self.config.ip_overhead));
            let size = u16::try_from(size).unwrap_or(u16::MAX);
            self.mtu.carried(sent_at, size);
        }
        let (rtt, plr) = (self.sender.rtt.smoothed(), self.sender.monitor.plr());
        if self.sender.hole.is_found(rtt, plr) {
            self.sender.hole.forget();
            if self.mtu.current() > BASE_DATAGRAM {
                self.counts.mtu_falls += 1;
                self.mtu.fall(now);
            }
        }
        self.tell_packet_size();
    }

    fn tell_packet_size(&mut self) {
        let ip_bytes = self.mtu.current().saturating_add(self.config.ip_overhead);
        self.sender.cc.set_packet_bytes(u32::from(ip_bytes));
    }

    /// The operating system refused a UDP payload of `size` as too large.
    pub fn datagram_too_large(&mut self, now: Nanos, size: usize) {
        let size = u16::try_from(size).unwrap_or(u16::MAX);
        let before = self.mtu.current();
        self.mtu.too_large(now, size);
        self.counts.mtu_falls += u64::from(self.mtu.current() < before);
        self.tell_packet_size();
    }

    /// The operating system cannot send from this end's address any more: what follows will come from
    /// another one, and is not to be linked with what came before.
    pub fn local_address_lost(&mut self, now: Nanos) {
        if now >= self.fresh_id_at {
            self.fresh_id_at = now + FRESH_ID_INTERVAL;
            self.peer_ids.change();
        }
    }

    /// Where packets go at present.
    pub fn tuple(&self) -> Tuple {
        self.paths.current()
    }

    /// How many calls of [`Session::add_challenge`] are wanted, so that new paths can be validated.
    pub fn challenges_wanted(&self) -> usize {
        self.paths.challenges_wanted()
    }

    /// Eight random bytes that nobody can guess.
    pub fn add_challenge(&mut self, random: [u8; 8]) {
        self.paths.add_challenge(random);
    }

    /// How many calls of [`Session::add_connection_id`] are wanted.
    pub fn connection_ids_wanted(&self) -> usize {
        match self.life {
            Life::Open => self.local_ids.wanted(),
            _ => 0,
        }
    }

    /// A random connection id; from now on packets that carry it belong to this session.
    pub fn add_connection_id(&mut self, cid: ConnectionId) {
        self.local_ids.add(cid);
    }

    /// When a receiver that misses symbols asks for a sign of life.
    pub(super) fn silence_timeout(&self) -> Option<Nanos> {
        if !self.receiver.is_waiting() {
            return None;
        }
        let wait = (4 * self.probe_timeout()).clamp(SILENCE.0, SILENCE.1);
        let wait = (wait << self.silence.min(8)).min(SILENCE.1);
        Some(self.last_received.max(self.last_sent) + wait)
    }
}

/// Rate control for a path about which `memory` tells.
pub(super) fn rate_control(config: &Config, memory: Option<PathMemory>) -> Box<dyn RateControl> {
    let params = CcParams {
        packet_bytes: u32::from(BASE_DATAGRAM + config.ip_overhead),
        block_packets: 100,
        memory,
    };
    cc::build(config.cc, params)
}
