//! Opening packets, and making blocks of what they carry.

use sphinx_fec::Error;
use sphinx_proto::wire::{FRAGMENT_PREFIX_LEN, Header, expand_packet_number};
use sphinx_proto::{Job, Nanos, PacketMeta, PartPlacement, Placement, Received};

use super::{Driver, EndReason, Origin, Workshop};
use crate::blocks::RxBlock;
use crate::executor::{Executor, JobKind};
use crate::keys::{Arrival, OpenError};
use crate::protection::PacketProtection;

/// A job that is done elsewhere: what it needs, and what becomes of it.
pub(super) enum Deferred {
    Open(Origin, Vec<u8>),
    Decode(Job, RxBlock),
}

impl<P: PacketProtection, E: Executor> Driver<P, E> {
    /// A data-plane datagram with one of this session's connection ids. It is opened in place; its bytes are
    /// of no use afterwards.
    pub fn handle_datagram(
        &mut self,
        now: Nanos,
        origin: Origin,
        datagram: &mut [u8],
        workshop: &mut Workshop,
    ) {
        match self.executor.done_at(now, JobKind::Open) {
            None => self.open(now, origin, datagram, workshop),
            Some(at) => self.defer(at, Deferred::Open(origin, datagram.to_vec())),
        }
    }

    fn defer(&mut self, at: Nanos, job: Deferred) {
        self.deferred.insert((at, self.deferred_count), job);
        self.deferred_count += 1;
    }

    /// The jobs whose results are there now.
    pub(super) fn finish_deferred(&mut self, now: Nanos, workshop: &mut Workshop) {
        while let Some(first) = self.deferred.first_entry().filter(|job| job.key().0 <= now) {
            match first.remove() {
                Deferred::Open(origin, mut datagram) => {
                    self.open(now, origin, &mut datagram, workshop);
                }
                Deferred::Decode(job, block) => {
                    self.decode(now, &job, block, workshop);
                    self.settle(now, workshop);
                }
            }
        }
    }

    fn open(&mut self, now: Nanos, origin: Origin, datagram: &mut [u8], workshop: &mut Workshop) {
        let Some(header) = self.protection.unprotect(datagram) else {
            self.counters.invalid += 1;
            return;
        };
        let packet_number = expand_packet_number(header.packet_number, self.replay.expected());
        match self.replay.check(packet_number) {
            Arrival::New => {}
            arrival @ (Arrival::Replay | Arrival::Late) => {
                self.counters.replayed += 1;
                if arrival == Arrival::Replay {
                    let (tuple, len) = (origin.tuple, datagram.len());
                    self.core.handle_replay(now, tuple, packet_number, len);
                }
                return;
            }
        }
        let pto = self.core.probe_timeout();
        let opened = self
            .protection
            .open(&header, packet_number, datagram, now, pto);
        let body = match opened {
            Ok(body) => body,
            Err(error) => {
                self.counters.invalid += 1;
                if error == OpenError::TooManyInvalid {
                    self.core.close(now, 5, "too many packets did not open");
                    self.end(EndReason::Forgeries);
                }
                return;
            }
        };
        self.replay.commit(packet_number);
        let meta = PacketMeta {
            now,
            received_at: origin.received_at,
            packet_number,
            tuple: origin.tuple,
            ecn: origin.ecn,
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
                self.window
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
        self.window.stored(header, &placement, symbol);
        self.settle(now, workshop);
    }

    /// Whatever can be restored now.
    fn settle(&mut self, now: Nanos, workshop: &mut Workshop) {
        loop {
            self.begin_decoding(now, workshop);
            let Some(restored) = self.window.next_restored(&mut self.rx) else {
                return;
            };
            self.core
                .symbol_restored(now, restored.block, restored.index);
        }
    }

    fn begin_decoding(&mut self, now: Nanos, workshop: &mut Workshop) {
        while let Some(job) = self.core.poll_job() {
            let Some(block) = self.rx.take(job.decode) else {
                debug_assert!(false, "a job for a block of which nothing is stored");
                continue;
            };
            match self.executor.done_at(now, JobKind::Decode) {
                None => self.decode(now, &job, block, workshop),
                Some(at) => self.defer(at, Deferred::Decode(job, block)),
            }
        }
    }

    fn decode(&mut self, now: Nanos, job: &Job, mut block: RxBlock, workshop: &mut Workshop) {
        let decoder = if job.maximum_likelihood {
            &mut workshop.thorough_decoder
        } else {
            &mut workshop.decoder
        };
        let decoded = block.decode(decoder);
        self.rx.put_back(job.decode, block);
        match decoded {
            Ok(()) => {
                self.window.learn_block(job.decode, &self.rx);
                self.core.job_done(job.id);
            }
            Err(error) => self.cannot_decode(now, error),
        }
    }

    /// The core follows the rank of the same rows, so this cannot happen; if it ever did, the data would be
    /// wrong, and the session must not go on.
    fn cannot_decode(&mut self, now: Nanos, error: Error) {
        self.core.close(now, 1, "cannot decode");
        self.end(EndReason::CannotDecode(error));
    }
}
