//! Encoding and sealing packets, and what the way that they take needs.

use std::net::IpAddr;

use sphinx_proto::wire::{ConnectionId, OVERHEAD, ResetToken, SymbolId};
use sphinx_proto::{Bond, Content, PathId, PathNews, PathPolicy, Time, Transmit, Tuple};

use super::{Driver, EndReason, Workshop};
use crate::executor::{Executor, JobKind};
use crate::outbox::Outbox;
use crate::protection::PacketProtection;
use crate::work::{Body, GONE, body_of};

/// Why a session ends with a fault of this end.
pub(super) const NO_KEYS: &str = "a path without keys";

impl<P: PacketProtection, E: Executor> Driver<P, E> {
    /// Seals what may leave now into `out`, until it holds `limit` bytes.
    pub fn transmit(
        &mut self,
        now: Time,
        limit: usize,
        workshop: &mut Workshop,
        out: &mut impl Outbox,
    ) {
        for path in self.lanes.wanting_answers() {
            self.core.ask(path);
        }
        if let Err(end) = self.send(now, limit, workshop, out) {
            // Not even CLOSE could be sent.
            self.core.abandon();
            self.end(end);
        }
    }

    fn send(
        &mut self,
        now: Time,
        limit: usize,
        workshop: &mut Workshop,
        out: &mut impl Outbox,
    ) -> Result<(), EndReason> {
        let source = self.source;
        self.core
            .hold_up(|path, to| out.is_full(&source.tuple(path, to)));
        if self.executor.takes(JobKind::Seal) {
            return self.send_by_runs(now, limit, workshop, out);
        }
        while out.len_bytes() < limit {
            let Some(mut transmit) = self.core.poll_transmit(now) else {
                return Ok(());
            };
            let to = self.source.tuple(transmit.path, &transmit.to);
            self.seal(&transmit, &to, workshop, out)?;
            let len = transmit.body_len + OVERHEAD;
            loop {
                let most = limit.saturating_sub(out.len_bytes()).div_ceil(len);
                let count = self.core.poll_following(now, &mut transmit, most);
                if count == 0 {
                    break;
                }
                self.seal_run(&mut transmit, count, &to, out)?;
            }
        }
        Ok(())
    }

    fn seal(
        &mut self,
        transmit: &Transmit,
        to: &Tuple,
        workshop: &mut Workshop,
        out: &mut impl Outbox,
    ) -> Result<(), EndReason> {
        let datagram = out.push(to, transmit.ecn, transmit.body_len + OVERHEAD);
        let tx = &self.tx;
        let symbols_of = |slot| tx.get(slot).map(|block| &*block.symbols);
        let sealed = body_of(symbols_of, transmit, workshop, datagram).and_then(|body| {
            let lane = self.lanes.of(transmit.path).ok_or(NO_KEYS)?;
            let (header, packet_number) = (&transmit.header, transmit.packet_number);
            let sealed = match body {
                Body::Elsewhere(body) => {
                    let protection = &mut lane.protection;
                    protection.seal_from(header, packet_number, body, datagram)
                }
                Body::Written { copied } => {
                    self.counters.copied_bytes += copied as u64;
                    lane.protection.seal(header, packet_number, datagram)
                }
            };
            sealed.map_err(|error| error.to_string())
        });
        if sealed.is_err() {
            // It has its place in the queue; no plaintext leaves.
            datagram.fill(0);
        }
        sealed.map_err(EndReason::CannotSeal)
    }

    /// Seals so many packets, of which `transmit` is the first one, and the others follow it.
    fn seal_run(
        &mut self,
        transmit: &mut Transmit,
        count: usize,
        to: &Tuple,
        out: &mut impl Outbox,
    ) -> Result<(), EndReason> {
        let (body_len, mut left) = (transmit.body_len, count);
        let len = body_len + OVERHEAD;
        while left > 0 {
            let datagrams = out.push_run(to, transmit.ecn, len, left);
            let some = datagrams.len() / len;
            let bodies = match &transmit.content {
                Content::Symbol {
                    slot,
                    symbol: SymbolId::Source(index),
                    ..
                } => {
                    let block = self.tx.get(*slot);
                    block.and_then(|block| block.symbols.sources(*index, some))
                }
                _ => None,
            };
            let sealed = bodies.ok_or(GONE.to_owned()).and_then(|bodies| {
                let lane = self.lanes.of(transmit.path).ok_or(NO_KEYS)?;
                let (header, packet_number) = (&transmit.header, transmit.packet_number);
                let bodies = (bodies, body_len);
                (lane.protection)
                    .seal_run(header, packet_number, bodies, datagrams)
                    .map_err(|error| error.to_string())
            });
            if sealed.is_err() {
                datagrams.fill(0);
            }
            sealed.map_err(EndReason::CannotSeal)?;
            transmit.advance(some as u16);
            left = left.saturating_sub(some.max(1));
        }
        Ok(())
    }

    // ---- the path -----------------------------------------------------------------------------

    /// What the core needs from a source of randomness: `random` gives bytes that nobody can guess, `spare_id` connection ids that are
    /// from then on this session's, each with what this end shows of it if it has forgotten the session.
    pub fn supply(
        &mut self,
        mut random: impl FnMut() -> [u8; 8],
        mut spare_id: impl FnMut() -> (ConnectionId, Option<ResetToken>),
    ) {
        for _ in 0..self.core.random_wanted() {
            self.core.add_random(random());
        }
        for _ in 0..self.core.connection_ids_wanted() {
            let (cid, token) = spare_id();
            self.core.add_connection_id(cid, token);
        }
    }

    /// Spare connection ids that are not this session's any more.
    pub fn take_retired(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.retired)
    }

    /// Where the path has led since the last call, in turn.
    pub fn take_path_changes(&mut self) -> Vec<Tuple> {
        std::mem::take(&mut self.path_changes)
    }

    /// What has become of paths since the last call, in turn.
    pub fn take_path_news(&mut self) -> Vec<(PathId, PathNews)> {
        std::mem::take(&mut self.path_news)
    }

    /// Opens another path, on which packets travel between these addresses; `None` if there is no room for one, or not yet.
    pub fn open_path(&mut self, now: Time, tuple: Tuple, policy: PathPolicy) -> Option<PathId> {
        self.core.open_path(now, tuple, policy)
    }

    /// What several paths are for from now on.
    pub fn set_bond(&mut self, bond: Bond) {
        self.core.set_bond(bond);
    }

    /// What a path is to be used for from now on; whether it is open.
    pub fn set_path_policy(&mut self, path: PathId, policy: PathPolicy) -> bool {
        self.core.set_path_policy(path, policy)
    }

    /// Gives a path up; whether it was open, and is not the last one.
    pub fn abandon_path(&mut self, now: Time, path: PathId) -> bool {
        self.core.abandon_path(now, path)
    }

    /// The network says that nobody listens at the peer's address. Anybody can forge that.
    pub fn peer_refused(&mut self, now: Time) {
        self.core.peer_refused(now);
    }

    /// The path whose datagrams leave with these addresses.
    pub fn path_to(&self, to: &Tuple) -> Option<PathId> {
        let mut tuples = self.core.tuples();
        let found = tuples.find(|(path, tuple)| self.source.tuple(*path, tuple) == *to);
        found.map(|(path, _)| path)
    }

    /// The operating system did not send a datagram of `len` bytes, of this path if that is known: it is larger than the interface takes.
    pub fn datagram_too_large(&mut self, now: Time, path: Option<PathId>, len: usize) {
        self.core.datagram_too_large(now, path, len);
    }

    /// What was sent since `from` left later than that ([`Session::left_late`]).
    ///
    /// [`Session::left_late`]: sphinx_proto::Session::left_late
    pub fn left_late(&mut self, from: Time) {
        self.core.left_late(from);
    }

    /// The operating system did not send from this end's address of the first path, or not to the peer's network.
    pub fn local_address_lost(&mut self, now: Time) {
        self.source.on_refused();
        self.core.local_address_lost(now);
    }
}

/// From which of this end's addresses a session sends.
///
/// A server answers from the address that its client knows. A client lets routing choose, so that it
/// keeps working when its address changes; so does a server whose address is gone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    is_client: bool,
    refused: bool,
}

impl Source {
    pub(super) fn new(is_client: bool) -> Self {
        Self {
            is_client,
            refused: false,
        }
    }

    /// The addresses of a datagram; routing chooses this end's where it is not named.
    /// Of further paths a client chooses it too: it is what makes them others.
    pub(crate) fn tuple(&self, path: PathId, to: &Tuple) -> Tuple {
        let is_first = path == PathId::FIRST;
        let insists = |_: &IpAddr| !is_first || !self.is_client && !self.refused;
        Tuple {
            remote: to.remote,
            local_ip: to.local_ip.filter(insists),
        }
    }

    /// The operating system did not send from the address.
    fn on_refused(&mut self) {
        self.refused = true;
    }

    /// The path has changed, and this end's address with it, perhaps.
    pub(super) fn on_path_changed(&mut self) {
        self.refused = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_insists_on_its_address_while_it_can() {
        let local = IpAddr::from([10, 0, 0, 1]);
        let tuple = Tuple {
            remote: ([10, 0, 0, 2], 1).into(),
            local_ip: Some(local),
        };
        assert_eq!(
            Source::new(true).tuple(PathId::FIRST, &tuple).local_ip,
            None
        );
        let mut source = Source::new(false);
        assert_eq!(source.tuple(PathId::FIRST, &tuple).local_ip, Some(local));
        source.on_refused();
        assert_eq!(source.tuple(PathId::FIRST, &tuple).local_ip, None);
        source.on_path_changed();
        assert_eq!(source.tuple(PathId::FIRST, &tuple).local_ip, Some(local));
    }
}
