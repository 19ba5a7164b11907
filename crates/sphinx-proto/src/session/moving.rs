//! What a session does when its path changes: other addresses, another MTU (`docs/protocol.md` §10).

use std::net::SocketAddr;

use super::{Life, MS, Session};
use crate::paths::Lane;
use crate::types::{Event, Tuple};
use crate::wire::{ConnectionId, Frame, ResetToken};
use crate::{CidSequence, Nanos, PacketNumber, PathId, Time};

/// Shortest and longest silence after which a receiver that lacks symbols sends a PING: its address
/// may have changed, and only a packet tells the peer.
const SILENCE: (Nanos, Nanos) = (50 * MS, 1_000 * MS);
/// The connection id is changed at most once in this time when this end's address is lost.
const FRESH_ID_INTERVAL: Nanos = 1_000 * MS;

impl Session {
    /// The peer has proved that its address has changed.
    pub(super) fn moved(&mut self, at: usize) {
        self.counts.path_changes += 1;
        let lane = self.paths.at_mut(at);
        lane.peer_ids.change();
        let tuple = lane.path.tuple();
        self.events.push_back(Event::PathChanged(tuple));
    }

    /// A datagram of `len` bytes whose packet had opened before has come again, from `tuple`. It is not opened again, and only where it
    /// came from matters: the original of a packet whose copy was faster comes from where the peer is.
    pub fn handle_replay(
        &mut self,
        now: Time,
        tuple: Tuple,
        (path, packet_number): (PathId, PacketNumber),
        len: usize,
    ) {
        if matches!(self.life, Life::Open)
            && let Some(at) = self.paths.index(path)
        {
            let path = &mut self.paths.at_mut(at).path;
            path.on_replay(now, tuple, packet_number, len);
        }
    }

    /// The operating system refused a UDP payload of `size` as too large, of this path if that is known.
    pub fn datagram_too_large(&mut self, now: Time, path: Option<PathId>, size: usize) {
        let is_it = |lane: &&mut Lane| path.is_none_or(|path| lane.id() == path);
        for lane in self.paths.iter_mut().filter(is_it) {
            lane.path.datagram_too_large(now, size);
        }
    }

    /// What left since `from` left later than that, as who drives the session had no processor for a while: its time on
    /// the way is no sign of a slow path.
    pub fn left_late(&mut self, from: Time) {
        for lane in self.paths.iter_mut() {
            lane.path.left_late(from);
        }
    }

    /// The operating system cannot send from this end's address of the first path any more: what follows will come from
    /// another one, and is not to be linked with what came before. Further paths stay where they begin.
    pub fn local_address_lost(&mut self, now: Time) {
        if now >= self.fresh_id_at
            && let Some(at) = self.paths.index(PathId::FIRST)
        {
            self.fresh_id_at = now + FRESH_ID_INTERVAL;
            self.paths.at_mut(at).peer_ids.change();
        }
    }

    /// Where packets go at present.
    pub fn tuple(&self) -> Tuple {
        self.paths.main().path.tuple()
    }

    /// The open paths, and where the packets of each go at present.
    pub fn tuples(&self) -> impl Iterator<Item = (PathId, Tuple)> {
        self.paths.iter().map(|lane| (lane.id(), lane.path.tuple()))
    }

    /// How many calls of [`Session::add_random`] are wanted, so that new paths can be validated and packet numbers left
    /// out.
    pub fn random_wanted(&self) -> usize {
        let lanes = self.paths.iter();
        lanes.map(|lane| lane.path.random_wanted()).sum()
    }

    /// Eight random bytes that nobody can guess; without them the session works, but the peer can deceive it.
    pub fn add_random(&mut self, random: [u8; 8]) {
        let mut lanes = self.paths.iter_mut();
        if let Some(lane) = lanes.find(|lane| lane.path.random_wanted() > 0) {
            lane.path.add_random(random);
        }
    }

    /// How many calls of [`Session::add_connection_id`] are wanted.
    pub fn connection_ids_wanted(&self) -> usize {
        match self.life {
            Life::Open => self.paths.ids_wanted(),
            _ => 0,
        }
    }

    /// A random connection id; from now on packets that carry it belong to this session. `token`:
    /// its reset token, which the peer is told.
    pub fn add_connection_id(&mut self, cid: ConnectionId, token: Option<ResetToken>) {
        let Some(frame) = self.paths.add_id(cid) else {
            return;
        };
        let token = match (&frame, token) {
            (&Frame::NewConnectionId { path, sequence, .. }, Some(token)) => {
                Some(Frame::ResetToken {
                    path,
                    sequence,
                    token,
                })
            }
            _ => None,
        };
        self.control_queue.push_with(&frame, token.as_ref());
    }

    /// The peer has given in the handshake the reset token of its first connection id.
    pub fn expect_reset(&mut self, token: ResetToken) {
        self.paths.tell(PathId::FIRST, CidSequence::ZERO, token);
    }

    /// The reset token that the peer would show if it had forgotten the session, for each path on
    /// which it has given one for the connection id in use; and the address that would come from.
    pub fn reset_tokens(&self) -> impl Iterator<Item = (SocketAddr, &ResetToken)> {
        let lanes = self.paths.iter();
        lanes.filter_map(|lane| Some((lane.path.tuple().remote, lane.peer_ids.token()?)))
    }

    /// When a receiver that lacks symbols sends a PING, after a silence that doubles each time.
    pub(super) fn silence_timeout(&self) -> Option<Time> {
        if !self.receiver.is_waiting() {
            return None;
        }
        let wait = (4 * self.probe_timeout()).clamp(SILENCE.0, SILENCE.1);
        let wait = (wait << self.silence.min(8)).min(SILENCE.1);
        Some(self.last_received.max(self.last_sent) + wait)
    }
}
