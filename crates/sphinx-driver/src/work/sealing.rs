//! Encoding and sealing packets elsewhere.

use std::sync::Arc;

use sphinx_fec::span::{self, SpanBlock};
use sphinx_proto::wire::{
    FRAGMENT_PREFIX_LEN, Fragment, HEADER_LEN, OVERHEAD, SymbolId, put_varint,
};
use sphinx_proto::{Content, PathId, Slot, Transmit};

use super::{RUN_BYTES_MAX, RUN_PACKETS_MAX};
use crate::blocks::TxSymbols;
use crate::driver::{Source, Workshop};
use crate::executor::WorkerId;
use crate::keys::Permit;
use crate::outbox::Outbox;
use crate::pool::PoolBuffer;
use crate::protection::SealPacket;

/// Why a session ends with a fault of this end.
pub(crate) const GONE: &str = "a symbol of a block that is gone";

/// Packets of one path and epoch that leave one after another, and the blocks that they are of.
pub(crate) struct SealRun {
    pub(crate) path: PathId,
    pub(crate) epoch: u64,
    key: Arc<dyn SealPacket>,
    /// The worker that the blocks belong to, if there is one.
    pub(crate) owner: Option<WorkerId>,
    pub(crate) blocks: Vec<(Slot, Arc<TxSymbols>)>,
    pub(crate) packets: Vec<Sealing>,
    /// Where the datagrams have been sealed, one after another.
    sealed: Option<PoolBuffer>,
    /// Bytes of the datagrams.
    bytes: usize,
    /// Bytes that were copied into the datagrams.
    pub(crate) copied: usize,
}

/// A packet of a run.
pub(crate) struct Sealing {
    pub(crate) transmit: Transmit,
    /// The right to seal the packet, until it is used.
    permit: Option<Permit>,
}

impl Sealing {
    /// Length of the datagram.
    pub(crate) fn len(&self) -> usize {
        self.transmit.body_len + OVERHEAD
    }
}

impl SealRun {
    pub(crate) fn new(path: PathId, epoch: u64, key: Arc<dyn SealPacket>) -> Self {
        Self {
            path,
            epoch,
            key,
            owner: None,
            blocks: Vec::new(),
            packets: Vec::new(),
            sealed: None,
            bytes: 0,
            copied: 0,
        }
    }

    /// Begins again with the memory of this one.
    pub(crate) fn begin_again(&mut self, path: PathId, epoch: u64, key: Arc<dyn SealPacket>) {
        (self.path, self.epoch, self.key) = (path, epoch, key);
        self.owner = None;
        (self.bytes, self.copied) = (0, 0);
        self.sealed = None;
    }

    /// Lets go of what its packets needed.
    pub(crate) fn clear(&mut self) {
        self.packets.clear();
        self.blocks.clear();
    }

    /// Whether it is full, for one more datagram of `len` bytes.
    pub(crate) fn is_full(&self, len: usize) -> bool {
        self.packets.len() >= RUN_PACKETS_MAX || self.bytes + len > RUN_BYTES_MAX
    }

    pub(crate) fn push(&mut self, transmit: Transmit, permit: Permit) {
        let sealing = Sealing {
            transmit,
            permit: Some(permit),
        };
        self.bytes += sealing.len();
        self.packets.push(sealing);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn run(&mut self, workshop: &mut Workshop) -> Result<(), String> {
        let mut memory = workshop.pool.take(self.bytes);
        let mut rest = &mut memory[..];
        let mut sealed = Ok(());
        for at in 0..self.packets.len() {
            let (datagram, behind) = rest.split_at_mut(self.packets[at].len());
            sealed = sealed.and(self.seal(at, workshop, datagram));
            rest = behind;
        }
        self.sealed = Some(memory);
        sealed
    }

    /// Writes and seals a packet.
    pub(crate) fn seal(
        &mut self,
        at: usize,
        workshop: &mut Workshop,
        datagram: &mut [u8],
    ) -> Result<(), String> {
        const TWICE: &str = "a packet that was sealed before";
        let blocks = &self.blocks;
        let symbols_of = |wanted: Slot| {
            let mut blocks = blocks.iter();
            let found = blocks.find(|(slot, _)| *slot == wanted);
            found.map(|(_, symbols)| &**symbols)
        };
        let Sealing { transmit, permit } = &mut self.packets[at];
        let sealed = body_of(symbols_of, transmit, workshop, datagram).and_then(|body| {
            let permit = permit.take().ok_or(TWICE)?;
            let header = &transmit.header;
            let sealed = match body {
                Body::Elsewhere(body) => self.key.seal_from(permit, header, body, datagram),
                Body::Written { copied } => {
                    self.copied += copied;
                    self.key.seal(permit, header, datagram)
                }
            };
            sealed.map_err(|error| error.to_string())
        });
        if sealed.is_err() {
            // It has its place in the queue; no plaintext leaves.
            datagram.fill(0);
        }
        sealed
    }

    /// Puts the sealed datagrams into `out`, from addresses that `source` chooses.
    pub(crate) fn leave(&mut self, source: &Source, out: &mut impl Outbox) {
        let (Some(memory), [first, others @ ..]) = (self.sealed.take(), &self.packets[..]) else {
            return;
        };
        let path = self.path;
        let goes_along = |packet: &Sealing| {
            let (one, other) = (&packet.transmit, &first.transmit);
            (one.to, one.ecn) == (other.to, other.ecn)
        };
        if others.iter().all(goes_along) {
            let to = source.tuple(path, &first.transmit.to);
            let mut lens = self.packets.iter().map(Sealing::len);
            self.copied += out.push_sealed(&to, first.transmit.ecn, memory, &mut lens);
            return;
        }
        // Only while the path is being looked for, or as its codepoint changes.
        let mut rest = &memory[..];
        for packet in &self.packets {
            let (datagram, behind) = rest.split_at(packet.len());
            let to = source.tuple(path, &packet.transmit.to);
            out.push(&to, packet.transmit.ecn, datagram.len())
                .copy_from_slice(datagram);
            self.copied += datagram.len();
            rest = behind;
        }
    }
}

/// What a packet carries, before it is sealed.
pub(crate) enum Body<'a> {
    /// These bytes, from where they are sealed into the datagram.
    Elsewhere(&'a [u8]),
    /// It has been written into the datagram, and so many bytes of it were copied from symbols that were there.
    Written { copied: usize },
}

/// What `datagram` is to carry. A source symbol alone is not copied into it, but sealed into it.
pub(crate) fn body_of<'a>(
    symbols_of: impl Fn(Slot) -> Option<&'a TxSymbols>,
    transmit: &'a Transmit,
    workshop: &mut Workshop,
    datagram: &mut [u8],
) -> Result<Body<'a>, String> {
    let body = &mut datagram[HEADER_LEN..][..transmit.body_len];
    let mut copied = 0;
    match &transmit.content {
        Content::Control(frames) => return Ok(Body::Elsewhere(frames)),
        Content::Window { span, slots, row } => {
            let mut blocks = Vec::with_capacity(slots.len());
            for slot in slots {
                let block = symbols_of(*slot).ok_or(GONE)?;
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
        Content::Symbol { slot, symbol, more } => {
            let block = symbols_of(*slot).ok_or(GONE)?;
            copied += match (transmit.fragment, *symbol) {
                (None, SymbolId::Source(index)) => return Ok(Body::Elsewhere(block.source(index))),
                (None, repair) => write_symbol(block, (repair, *more), workshop, body)?,
                (Some(part), symbol) => write_part(block, symbol, part, workshop, body)?,
            };
        }
        Content::Bundle {
            slot,
            symbol,
            riders,
        } => {
            let block = symbols_of(*slot).ok_or(GONE)?;
            let mut prefix = Vec::new();
            put_varint(&mut prefix, block.symbol_len as u64);
            let (main, mut body) = split_body(body, &prefix, block.symbol_len)?;
            copied += write_symbol(block, (*symbol, 0), workshop, main)?;
            for riding in riders {
                let block = symbols_of(riding.slot).ok_or(GONE)?;
                prefix.clear();
                riding.rider.encode_prefix(&mut prefix);
                let (place, rest) = split_body(body, &prefix, block.symbol_len)?;
                copied += write_symbol(block, (riding.symbol, 0), workshop, place)?;
                body = rest;
            }
        }
    }
    Ok(Body::Written { copied })
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

/// A whole symbol of a block, which so many more repairs are to follow. How many bytes of it were copied.
fn write_symbol(
    block: &TxSymbols,
    (symbol, more): (SymbolId, u32),
    workshop: &mut Workshop,
    out: &mut [u8],
) -> Result<usize, String> {
    match symbol {
        SymbolId::Source(index) => {
            out.copy_from_slice(block.source(index));
            Ok(out.len())
        }
        SymbolId::Repair(code, row) => {
            let Workshop {
                encoder,
                pool,
                rows,
                ..
            } = workshop;
            let row_made = block.encode_row(row, rows, out);
            if row_made.map_err(|error| error.to_string())? {
                return Ok(0);
            }
            let encoded = block.encode((code, row), more, encoder, pool, out);
            encoded.map_err(|error| error.to_string())
        }
    }
}

/// The part of a symbol that travels in one packet. How many bytes were copied.
fn write_part(
    block: &TxSymbols,
    symbol: SymbolId,
    part: Fragment,
    workshop: &mut Workshop,
    body: &mut [u8],
) -> Result<usize, String> {
    let mut whole = std::mem::take(&mut workshop.symbol);
    whole.resize(block.symbol_len, 0);
    let written = write_symbol(block, (symbol, 0), workshop, &mut whole);
    let (prefix, bytes) = body.split_at_mut(FRAGMENT_PREFIX_LEN);
    prefix.copy_from_slice(&part.encode());
    bytes.copy_from_slice(&whole[part.range()]);
    workshop.symbol = whole;
    written.map(|copied| copied + bytes.len())
}
