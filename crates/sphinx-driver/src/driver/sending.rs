//! Encoding and sealing packets, and what the way that they take needs.

use std::net::IpAddr;

use sphinx_fec::span::{self, SpanBlock};
use sphinx_proto::wire::{
    ConnectionId, FRAGMENT_PREFIX_LEN, Fragment, HEADER_LEN, Header, OVERHEAD, SymbolId, put_varint,
};
use sphinx_proto::{Content, PacketNumber, PathId, PathNews, Time, Transmit, Tuple};

use super::{Driver, EndReason, Workshop};
use crate::blocks::{TxBlock, TxBlocks};
use crate::executor::{Executor, JobKind};
use crate::outbox::Outbox;
use crate::protection::PacketProtection;

/// A fault of this end.
const NO_KEYS: &str = "a path without keys";

/// A packet that is being sealed elsewhere.
pub(super) struct Leaving {
    pub(super) at: Time,
    path: PathId,
    to: Tuple,
    header: Header,
    packet_number: PacketNumber,
    datagram: Vec<u8>,
}

impl<P: PacketProtection, E: Executor> Driver<P, E> {
    /// Seals what may leave now into `out`, until it holds `limit` bytes.
    pub fn transmit(
        &mut self,
        now: Time,
        limit: usize,
        workshop: &mut Workshop,
        out: &mut impl Outbox,
    ) {
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
        self.send_sealed(now, out)?;
        while out.len_bytes() < limit {
            let Some(transmit) = self.core.poll_transmit(now) else {
                return Ok(());
            };
            match self.executor.done_at(now, JobKind::Seal) {
                None => self.seal(&transmit, workshop, out)?,
                Some(at) => self.defer_sealing(at, &transmit, workshop)?,
            }
        }
        Ok(())
    }

    fn seal(
        &mut self,
        transmit: &Transmit,
        workshop: &mut Workshop,
        out: &mut impl Outbox,
    ) -> Result<(), EndReason> {
        let to = self.source.tuple(transmit.path, &transmit.to);
        let datagram = out.push(&to, transmit.body_len + OVERHEAD);
        let body = &mut datagram[HEADER_LEN..][..transmit.body_len];
        let sealed = write_body(&mut self.tx, transmit, workshop, body).and_then(|()| {
            let lane = self.lanes.of(transmit.path).ok_or(NO_KEYS)?;
            lane.protection
                .seal(&transmit.header, transmit.packet_number, datagram)
                .map_err(|error| error.to_string())
        });
        if sealed.is_err() {
            // It has its place in the queue; no plaintext leaves.
            datagram.fill(0);
        }
        sealed.map_err(EndReason::CannotSeal)
    }

    /// Writes a packet's body while its blocks are there; it is sealed later.
    fn defer_sealing(
        &mut self,
        at: Time,
        transmit: &Transmit,
        workshop: &mut Workshop,
    ) -> Result<(), EndReason> {
        let mut datagram = vec![0; transmit.body_len + OVERHEAD];
        let body = &mut datagram[HEADER_LEN..][..transmit.body_len];
        write_body(&mut self.tx, transmit, workshop, body).map_err(EndReason::CannotSeal)?;
        let before = self.leaving.back().map_or(Time::ZERO, |last| last.at);
        self.leaving.push_back(Leaving {
            at: at.max(before),
            path: transmit.path,
            to: transmit.to,
            header: transmit.header,
            packet_number: transmit.packet_number,
            datagram,
        });
        Ok(())
    }

    fn send_sealed(&mut self, now: Time, out: &mut impl Outbox) -> Result<(), EndReason> {
        while let Some(packet) = self.leaving.pop_front_if(|packet| packet.at <= now) {
            if !self.core.has_path(packet.path) {
                continue;
            }
            let Some(lane) = self.lanes.of(packet.path) else {
                return Err(EndReason::CannotSeal(NO_KEYS.to_owned()));
            };
            let to = self.source.tuple(packet.path, &packet.to);
            let datagram = out.push(&to, packet.datagram.len());
            datagram.copy_from_slice(&packet.datagram);
            let sealed = lane
                .protection
                .seal(&packet.header, packet.packet_number, datagram);
            if let Err(error) = sealed {
                datagram.fill(0);
                return Err(EndReason::CannotSeal(error.to_string()));
            }
        }
        Ok(())
    }

    // ---- the path -----------------------------------------------------------------------------

    /// What the core needs from a source of randomness: `random` gives bytes that nobody can guess, `spare_id` connection ids that are
    /// from then on this session's.
    pub fn supply(
        &mut self,
        mut random: impl FnMut() -> [u8; 8],
        mut spare_id: impl FnMut() -> ConnectionId,
    ) {
        for _ in 0..self.core.random_wanted() {
            self.core.add_random(random());
        }
        for _ in 0..self.core.connection_ids_wanted() {
            self.core.add_connection_id(spare_id());
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
    pub fn open_path(&mut self, now: Time, tuple: Tuple) -> Option<PathId> {
        self.core.open_path(now, tuple)
    }

    /// Gives a path up; whether it was open, and is not the last one.
    pub fn abandon_path(&mut self, now: Time, path: PathId) -> bool {
        self.core.abandon_path(now, path)
    }

    /// The network says that nobody listens at the peer's address. Anybody can forge that.
    pub fn peer_refused(&mut self, now: Time) {
        self.core.peer_refused(now);
    }

    /// The operating system did not send a datagram of `len` bytes, to there if that is known: it is larger than the interface takes.
    pub fn datagram_too_large(&mut self, now: Time, to: Option<&Tuple>, len: usize) {
        self.core.datagram_too_large(now, to, len);
    }

    /// The operating system did not send from this end's address, or not to the peer's network.
    pub fn local_address_lost(&mut self, now: Time) {
        self.source.on_refused();
        self.core.local_address_lost(now);
    }
}

/// What a packet carries, before it is sealed.
fn write_body(
    tx: &mut TxBlocks,
    transmit: &Transmit,
    workshop: &mut Workshop,
    body: &mut [u8],
) -> Result<(), String> {
    const GONE: &str = "a symbol of a block that is gone";
    match &transmit.content {
        Content::Control(frames) => body.copy_from_slice(frames),
        Content::Window { span, slots, row } => {
            let mut blocks = Vec::with_capacity(slots.len());
            for slot in slots {
                let block = tx.get(*slot).ok_or(GONE)?;
                blocks.push(SpanBlock {
                    symbols: &block.memory[..block.n * block.symbol_len],
                    symbol_len: block.symbol_len,
                    count: block.n,
                });
            }
            if let Some(newest) = blocks.last_mut() {
                newest.count = usize::from(span.upto());
            }
            let prefix = span.encode();
            body[..prefix.len()].copy_from_slice(&prefix);
            span::encode(&mut workshop.rows, *row, &blocks, &mut body[prefix.len()..])
                .map_err(|error| error.to_string())?;
        }
        Content::Symbol { slot, symbol } => {
            let block = tx.get_mut(*slot).ok_or(GONE)?;
            match transmit.fragment {
                None => write_symbol(block, *symbol, workshop, body)?,
                Some(part) => write_part(block, *symbol, part, workshop, body)?,
            }
        }
        Content::Bundle {
            slot,
            symbol,
            riders,
        } => {
            let block = tx.get_mut(*slot).ok_or(GONE)?;
            let mut prefix = Vec::new();
            put_varint(&mut prefix, block.symbol_len as u64);
            let (main, mut body) = split_body(body, &prefix, block.symbol_len)?;
            write_symbol(block, *symbol, workshop, main)?;
            for riding in riders {
                let block = tx.get_mut(riding.slot).ok_or(GONE)?;
                prefix.clear();
                riding.rider.encode_prefix(&mut prefix);
                let (place, rest) = split_body(body, &prefix, block.symbol_len)?;
                write_symbol(block, riding.symbol, workshop, place)?;
                body = rest;
            }
        }
    }
    Ok(())
}

/// Writes what comes before a symbol: where the symbol goes, and what is behind it.
fn split_body<'a>(
    body: &'a mut [u8],
    prefix: &[u8],
    symbol_len: usize,
) -> Result<(&'a mut [u8], &'a mut [u8]), String> {
    const TOO_SHORT: &str = "a bundle that is longer than its packet";
    let (before, body) = body.split_at_mut_checked(prefix.len()).ok_or(TOO_SHORT)?;
    before.copy_from_slice(prefix);
    let places = body.split_at_mut_checked(symbol_len);
    places.ok_or_else(|| TOO_SHORT.to_owned())
}

/// A whole symbol of a block.
fn write_symbol(
    block: &mut TxBlock,
    symbol: SymbolId,
    workshop: &mut Workshop,
    out: &mut [u8],
) -> Result<(), String> {
    match symbol {
        SymbolId::Source(index) => out.copy_from_slice(block.source(index)),
        SymbolId::Repair(code, row) => {
            let Workshop {
                encoder,
                pool,
                rows,
                ..
            } = workshop;
            let row_made = block.encode_row(row, rows, out);
            if row_made.map_err(|error| error.to_string())? {
                return Ok(());
            }
            let encoded = block.encode(code, row, encoder, pool, out);
            encoded.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// The part of a symbol that travels in one packet.
fn write_part(
    block: &mut TxBlock,
    symbol: SymbolId,
    part: Fragment,
    workshop: &mut Workshop,
    body: &mut [u8],
) -> Result<(), String> {
    let mut whole = std::mem::take(&mut workshop.symbol);
    whole.resize(block.symbol_len, 0);
    let written = write_symbol(block, symbol, workshop, &mut whole);
    let (prefix, bytes) = body.split_at_mut(FRAGMENT_PREFIX_LEN);
    prefix.copy_from_slice(&part.encode());
    bytes.copy_from_slice(&whole[part.range()]);
    workshop.symbol = whole;
    written
}

/// From which of this end's addresses a session sends.
///
/// A server answers from the address that its client knows. A client lets routing choose, so that it
/// keeps working when its address changes; so does a server whose address is gone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
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
    fn tuple(&self, path: PathId, to: &Tuple) -> Tuple {
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
