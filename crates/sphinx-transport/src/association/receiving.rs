//! Opening packets, and making blocks and streams of what they carry.

use std::collections::BTreeMap;
use std::sync::Arc;

use sphinx_fec::BlockDecoder;
use sphinx_proto::wire::{
    FRAGMENT_PREFIX_LEN, Header, PREAMBLE_LEN, Preamble, expand_packet_number,
};
use sphinx_proto::{Job, Nanos, PacketMeta, PartPlacement, Placement, Received, Slot};

use super::{Association, Origin, Workshop};
use crate::error::{Error, ErrorKind};
use crate::recv_stream::{Chunk, Incoming};
use crate::shared::Inner;
use sphinx_driver::keys::Arrival;

/// Follows the order of one stream's blocks (the paper's Data Assembler).
#[derive(Default)]
pub(super) struct Assembler {
    next_offset: u64,
    /// What the preambles of complete blocks say for which earlier ones are missing, by number.
    ahead: BTreeMap<u64, Preamble>,
}

impl Assembler {
    /// A block is complete: whether its place in the stream can be right. No two blocks overlap.
    fn add(&mut self, block: u64, preamble: Preamble, incoming: &mut Incoming) -> bool {
        let end = |p: &Preamble| p.offset.saturating_add(u64::from(p.len));
        let before = self.ahead.range(..block).next_back();
        let after = self.ahead.range(block..).next();
        let fits = preamble.offset >= before.map_or(self.next_offset, |(_, p)| end(p))
            && after.is_none_or(|(_, p)| p.offset >= end(&preamble));
        self.ahead.insert(block, preamble);
        while let Some(next) = self.ahead.remove(&incoming.next_block) {
            if next.offset != self.next_offset || incoming.ended {
                return false;
            }
            incoming.next_block += 1;
            incoming.ended = next.end_of_stream;
            self.next_offset = end(&next);
        }
        fits
    }
}

impl Association {
    /// A data-plane datagram with this session's connection id.
    pub(crate) fn handle_datagram(
        &mut self,
        now: Nanos,
        origin: Origin,
        datagram: &mut [u8],
        workshop: &mut Workshop,
    ) {
        let Some(header) = self.opener.unprotect(datagram) else {
            self.invalid += 1;
            return;
        };
        let packet_number = expand_packet_number(header.packet_number, self.replay.expected());
        match self.replay.check(packet_number) {
            Arrival::New => {}
            Arrival::Replay | Arrival::Late => {
                self.replayed += 1;
                return;
            }
        }
        let pto = self.core.probe_timeout();
        let Ok(body) = self.opener.open(&header, packet_number, datagram, now, pto) else {
            self.invalid += 1;
            return;
        };
        self.replay.commit(packet_number);
        let meta = PacketMeta {
            now,
            received_at: origin.received_at,
            packet_number,
            tuple: origin.tuple,
            ecn: origin.ecn.bits(),
            datagram_len: datagram.len(),
        };
        let body = &datagram[body];
        match self.core.handle_packet(&meta, &header, body) {
            Received::Nothing => {}
            Received::Symbol(placement) => self.store(now, &header, placement, body, workshop),
            Received::Part(to) => {
                self.store_part(now, &header, to, &body[FRAGMENT_PREFIX_LEN..], workshop);
            }
            Received::Window { span, covered } => {
                let symbol = &body[span.body_len() - span.symbol_len()..];
                let (rx, pool) = (&mut self.rx, &workshop.pool);
                self.windows
                    .add_repair(&header, &span, &covered, symbol, rx, pool);
                self.settle(now, workshop);
            }
        }
    }

    fn store_part(
        &mut self,
        now: Nanos,
        header: &Header,
        to: PartPlacement,
        part: &[u8],
        workshop: &mut Workshop,
    ) {
        let at = usize::from(to.place);
        if self.parts.len() <= at {
            self.parts.resize_with(at + 1, Vec::new);
        }
        let symbol = &mut self.parts[at];
        symbol.resize(usize::from(to.symbol_len), 0);
        symbol[to.offset..][..part.len()].copy_from_slice(part);
        if let Some(whole) = to.whole {
            let symbol = std::mem::take(symbol);
            self.store(now, header, whole, &symbol, workshop);
            self.parts[at] = symbol;
        }
    }

    /// Store a symbol, and decode what it completes.
    fn store(
        &mut self,
        now: Nanos,
        header: &Header,
        placement: Placement,
        symbol: &[u8],
        workshop: &mut Workshop,
    ) {
        self.rx.store(placement, symbol, &workshop.pool);
        self.windows.stored(header, &placement, symbol);
        self.settle(now, workshop);
    }

    /// Whatever can be restored now.
    fn settle(&mut self, now: Nanos, workshop: &mut Workshop) {
        loop {
            self.decode_all(now, workshop);
            let Some(restored) = self.windows.next_restored(&mut self.rx) else {
                return;
            };
            let (stream, block) = (restored.stream, restored.block);
            self.core
                .symbol_restored(now, stream, block, restored.index);
        }
    }

    fn decode_all(&mut self, now: Nanos, workshop: &mut Workshop) {
        while let Some(job) = self.core.poll_job() {
            let decoder = if job.maximum_likelihood {
                &mut workshop.thorough_decoder
            } else {
                &mut workshop.decoder
            };
            self.decode(now, job, decoder);
        }
    }

    fn decode(&mut self, now: Nanos, job: Job, decoder: &mut BlockDecoder) {
        // The core follows the rank of the same rows, so this cannot fail; if it ever did, the data
        // would be wrong, and the session must not go on.
        if let Err(error) = self.rx.decode(job.decode, decoder) {
            self.core.close(now, 1, "cannot decode");
            self.end(Error::new(
                ErrorKind::Other,
                format!("internal error: {error}"),
            ));
            return;
        }
        self.windows.learn_block(job.decode, &self.rx);
        self.core.job_done(job.id);
    }

    /// Give a complete block to its stream.
    pub(super) fn assemble(
        &mut self,
        now: Nanos,
        (stream, block): (u16, u64),
        slot: Slot,
        inner: &mut Inner,
    ) {
        self.windows.leaves(stream, block, slot, &self.rx);
        let Some(memory) = self.rx.remove(slot) else {
            return self.violation(inner, now, "block without symbols");
        };
        let Ok(preamble) = Preamble::decode(&memory) else {
            return self.violation(inner, now, "malformed block");
        };
        let incoming = inner.incoming.entry(stream).or_default();
        let assembler = self.assemblers.entry(stream).or_default();
        if !assembler.add(block, preamble, incoming) {
            return self.violation(inner, now, "block out of place");
        }
        self.bytes_received += u64::from(preamble.len);
        if incoming.abandoned {
            return self.core.release(now, slot);
        }
        let chunk = Chunk {
            memory,
            slot,
            from: PREAMBLE_LEN,
            to: PREAMBLE_LEN + preamble.len as usize,
            offset: preamble.offset,
            end_of_stream: preamble.end_of_stream,
        };
        incoming.blocks.insert(block, chunk);
        inner.changed.push(Arc::clone(&incoming.changed));
    }
}
