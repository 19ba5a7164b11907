//! Sealing packets, and what the way that they take needs.

use std::net::SocketAddr;

use sphinx_driver::BufferPool;
use sphinx_fec::span::{self, SpanBlock};
use sphinx_fec::{Encoder, RowMaker};
use sphinx_net::{Destination, DropReason, Dropped, Ecn};
use sphinx_proto::wire::{
    ConnectionId, FRAGMENT_PREFIX_LEN, Fragment, HEADER_LEN, OVERHEAD, SymbolId,
};
use sphinx_proto::{Content, Nanos, Transmit};

use super::{Association, Workshop};
use crate::blocks::TxBlocks;

impl Association {
    /// Seals a packet into the queue.
    pub(super) fn seal(
        &mut self,
        transmit: &Transmit,
        workshop: &mut Workshop,
    ) -> Result<(), String> {
        let to = Destination {
            remote: transmit.to.remote,
            local_ip: self.source.address(&transmit.to),
            ecn: Ecn::Ect0,
        };
        let len = transmit.body_len + OVERHEAD;
        let tools = Tools {
            encoder: &mut workshop.encoder,
            rows: &mut workshop.rows,
            pool: &workshop.pool,
            symbol: &mut workshop.symbol,
        };
        let datagram = workshop.queue.push(&to, len, workshop.segments_max);
        let body = &mut datagram[HEADER_LEN..][..transmit.body_len];
        let sealed = write_body(&mut self.tx, transmit, tools, body).and_then(|()| {
            self.sealer
                .seal(&transmit.header, transmit.packet_number, datagram)
                .map_err(|error| error.to_string())
        });
        if sealed.is_err() {
            // It has its place in the queue; no plaintext leaves.
            datagram.fill(0);
        }
        sealed
    }

    // ---- the path -----------------------------------------------------------------------------

    /// What the core needs from a source of randomness; `spare_id` gives connection ids that are
    /// from then on this session's.
    pub(crate) fn supply(
        &mut self,
        mut challenge: impl FnMut() -> [u8; 8],
        mut spare_id: impl FnMut() -> ConnectionId,
    ) {
        for _ in 0..self.core.challenges_wanted() {
            self.core.add_challenge(challenge());
        }
        for _ in 0..self.core.connection_ids_wanted() {
            self.core.add_connection_id(spare_id());
        }
    }

    /// Spare connection ids that are not this session's any more.
    pub(crate) fn take_retired(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.retired)
    }

    /// The network says that nobody listens at `remote`; whether that is where the peer is.
    pub(crate) fn on_refused(&mut self, now: Nanos, remote: SocketAddr) -> bool {
        let is_peer = remote == self.core.tuple().remote;
        if is_peer {
            self.core.peer_refused(now);
        }
        is_peer
    }

    /// The operating system did not send datagrams to `to`; whether they may have been this session's.
    pub(crate) fn on_dropped(&mut self, now: Nanos, to: &Destination, dropped: &Dropped) -> bool {
        if to.remote != self.core.tuple().remote {
            return false;
        }
        match dropped.reason {
            DropReason::TooLarge => self.core.datagram_too_large(now, dropped.segment_size),
            // The address is gone (EINVAL is among the other errors), or the network is.
            DropReason::Unreachable | DropReason::Other => {
                self.source.on_refused();
                self.core.local_address_lost(now);
            }
            _ => {}
        }
        true
    }
}

/// What encoding needs from the workshop.
struct Tools<'a> {
    encoder: &'a mut Encoder,
    rows: &'a mut RowMaker,
    pool: &'a BufferPool,
    symbol: &'a mut Vec<u8>,
}

/// What a packet carries, before it is sealed.
fn write_body(
    tx: &mut TxBlocks,
    transmit: &Transmit,
    tools: Tools<'_>,
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
            span::encode(tools.rows, *row, &blocks, &mut body[prefix.len()..])
                .map_err(|error| error.to_string())?;
        }
        Content::Symbol {
            slot,
            symbol: SymbolId::Source(index),
        } => {
            let block = tx.get_mut(*slot).ok_or(GONE)?;
            let at = usize::from(*index) * block.symbol_len;
            let source = &block.memory[at..][..block.symbol_len];
            write_symbol(source, transmit.fragment, body);
        }
        Content::Symbol {
            slot,
            symbol: SymbolId::Repair(code, row),
        } => {
            let block = tx.get_mut(*slot).ok_or(GONE)?;
            let Tools {
                encoder,
                pool,
                symbol,
                ..
            } = tools;
            match transmit.fragment {
                None => block.encode(*code, *row, encoder, pool, body),
                part => {
                    symbol.resize(block.symbol_len, 0);
                    let encoded = block.encode(*code, *row, encoder, pool, symbol);
                    write_symbol(symbol, part, body);
                    encoded
                }
            }
            .map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// A symbol, or the part of it that travels in one packet.
fn write_symbol(symbol: &[u8], fragment: Option<Fragment>, body: &mut [u8]) {
    match fragment {
        None => body.copy_from_slice(symbol),
        Some(fragment) => {
            let (prefix, part) = body.split_at_mut(FRAGMENT_PREFIX_LEN);
            prefix.copy_from_slice(&fragment.encode());
            part.copy_from_slice(&symbol[fragment.range()]);
        }
    }
}
