//! Opening packets, and making blocks of what they carry.

use sphinx_fec::Error;
use sphinx_proto::wire::{ConnectionId, FRAGMENT_PREFIX_LEN, Header};
use sphinx_proto::{
    AbandonedBlock, Job, JobId, PacketMeta, PacketNumber, PartPlacement, Placement, Received, Time,
};

use super::{Driver, EndReason, Origin, Workshop};
use crate::blocks::RxBlock;
use crate::executor::{Executor, JobKind};
use crate::keys::{Arrival, OpenError};
use crate::protection::PacketProtection;
use crate::window::{Step, WindowRepair};

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
        now: Time,
        origin: Origin,
        datagram: &mut [u8],
        workshop: &mut Workshop,
    ) {
        match self.executor.done_at(now, JobKind::Open) {
            None => self.open(now, origin, datagram, workshop),
            Some(at) => self.defer(at, Deferred::Open(origin, datagram.to_vec())),
        }
    }

    fn defer(&mut self, at: Time, job: Deferred) {
        self.deferred.insert((at, self.deferred_count), job);
        self.deferred_count += 1;
    }

    /// The jobs whose results are there now.
    pub(super) fn finish_deferred(&mut self, now: Time, workshop: &mut Workshop) {
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

    fn open(&mut self, now: Time, origin: Origin, datagram: &mut [u8], workshop: &mut Workshop) {
        let path = ConnectionId::of_datagram(datagram).and_then(|cid| self.core.path_of_cid(cid));
        let Some(path) = path.filter(|path| self.core.has_path(*path)) else {
            // Late, of a path that is no more.
            return;
        };
        let Some(lane) = self.lanes.of(path) else {
            return;
        };
        let Some(header) = lane.protection.unprotect(datagram) else {
            self.counters.invalid += 1;
            return;
        };
        let packet_number = PacketNumber::expand(header.packet_number, lane.replay.expected());
        match lane.replay.check(packet_number) {
            Arrival::New => {}
            arrival @ (Arrival::Replay | Arrival::Late) => {
                self.counters.replayed += 1;
                if arrival == Arrival::Replay {
                    let (tuple, len) = (origin.tuple, datagram.len());
                    self.core
                        .handle_replay(now, tuple, (path, packet_number), len);
                }
                return;
            }
        }
        let pto = self.core.probe_timeout();
        let opened = lane
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
        lane.replay.commit(packet_number);
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
            Received::Bundle(symbols) => {
                for symbol in symbols {
                    let placement = self.core.handle_bundled(now, &symbol);
                    let bytes = &body[symbol.at];
                    self.store(now, &symbol.header, placement, bytes, workshop);
                }
            }
            Received::Part(to) => {
                self.store_part(now, &header, to, &body[FRAGMENT_PREFIX_LEN..], workshop);
            }
            Received::Window { span, row, covered } => {
                let symbol = body[span.body_len() - span.symbol_len()..].to_vec();
                self.window.push(Step::Repair(WindowRepair {
                    row,
                    covered,
                    symbol,
                }));
                self.settle(now, workshop);
            }
            Received::Abandoned(blocks) => {
                for block in blocks {
                    self.window.push(Step::Abandoned(block));
                }
                self.settle(now, workshop);
            }
        }
    }

    fn store_part(
        &mut self,
        now: Time,
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
        now: Time,
        header: &Header,
        placement: Placement,
        symbol: &[u8],
        workshop: &mut Workshop,
    ) {
        if let Placement::Generation {
            block,
            n,
            symbol: id,
            ..
        } = placement
        {
            return self.store_of_generation(now, (block, n, id), symbol, workshop);
        }
        self.rx.store(placement, symbol, &workshop.pool);
        self.window.stored(header.block, &placement);
        self.settle(now, workshop);
    }

    /// Does what the core wants to be done.
    fn settle(&mut self, now: Time, workshop: &mut Workshop) {
        while let Some(job) = self.core.poll_job() {
            if job.window.is_some() {
                self.window.push(Step::Job(job));
            } else {
                self.begin(now, job, workshop);
            }
        }
        loop {
            if let Some(job) = self.window.overdue() {
                self.finish_early(now, job, workshop);
            }
            let Some(step) = self.window.next_step() else {
                return;
            };
            let done = match step {
                Step::Repair(repair) => {
                    let (limits, rows) = (self.core.window_limits(), &mut workshop.rows);
                    let (rx, pool) = (&mut self.rx, &workshop.pool);
                    self.window.add_repair(&repair, limits, rows, rx, pool)
                }
                Step::Stored { block, index } => self.window.learn(block, index, &mut self.rx),
                Step::Job(job) => {
                    self.begin(now, job, workshop);
                    Ok(())
                }
                Step::Abandoned(block) => {
                    self.forget(block);
                    Ok(())
                }
            };
            if let Err(error) = done {
                self.cannot_decode(now, error);
            }
        }
    }

    /// A block will never be complete, and nothing before waits for it.
    fn forget(&mut self, block: AbandonedBlock) {
        self.window.give_up(block.block);
        if let Some((_, cost)) = self.rx.remove(block.slot) {
            self.rx.release(cost);
        }
        self.core.block_forgotten(block.slot);
    }

    fn begin(&mut self, now: Time, job: Job, workshop: &mut Workshop) {
        if job.decoding.is_none() {
            return self.finish(now, &job);
        }
        let Some(block) = self.rx.take(job.slot) else {
            debug_assert!(false, "a job for a block of which nothing is stored");
            return;
        };
        match self.executor.done_at(now, JobKind::Decode) {
            None => self.decode(now, &job, block, workshop),
            Some(at) => {
                if job.window.is_some() {
                    self.window.wait_for(job.id);
                }
                self.defer(at, Deferred::Decode(job, block));
            }
        }
    }

    /// More waits for a block to be decoded than is good: it is decoded at once.
    fn finish_early(&mut self, now: Time, id: JobId, workshop: &mut Workshop) {
        let is_it =
            |deferred: &Deferred| matches!(deferred, Deferred::Decode(job, _) if job.id == id);
        let mut deferred = self.deferred.iter();
        let Some(key) = deferred.find(|(_, job)| is_it(job)).map(|(key, _)| *key) else {
            return;
        };
        if let Some(Deferred::Decode(job, block)) = self.deferred.remove(&key) {
            self.decode(now, &job, block, workshop);
        }
    }

    fn decode(&mut self, now: Time, job: &Job, mut block: RxBlock, workshop: &mut Workshop) {
        let decoder = match job.decoding {
            Some(decoding) if decoding.maximum_likelihood => &mut workshop.thorough_decoder,
            _ => &mut workshop.decoder,
        };
        let decoded = block.decode(decoder);
        self.rx.put_back(job.slot, block);
        match decoded {
            Ok(()) => self.finish(now, job),
            Err(error) => self.cannot_decode(now, error),
        }
    }

    /// All of a block is in its memory.
    fn finish(&mut self, now: Time, job: &Job) {
        if let Some(past) = job.window
            && let Err(error) = self.window.complete(job, past, &mut self.rx)
        {
            return self.cannot_decode(now, error);
        }
        self.core.job_done(job.id);
    }

    /// The core follows the rank of the same rows, so this cannot happen; if it ever did, the data would be
    /// wrong, and the session must not go on.
    fn cannot_decode(&mut self, now: Time, error: Error) {
        debug_assert!(false, "out of step with the core: {error}");
        self.core.close(now, 1, "cannot decode");
        self.end(EndReason::CannotDecode(error));
    }
}
