//! Opening packets, and making blocks of what they carry.

use sphinx_fec::Error;
use sphinx_proto::wire::{ConnectionId, FRAGMENT_PREFIX_LEN, Header};
use sphinx_proto::{
    AbandonedBlock, Job, PacketNumber, PartPlacement, PathId, Placement, Received, Time,
};

use super::{Driver, EndReason, Origin, Workshop};
use crate::executor::{Executor, JobKind};
use crate::keys::{Arrival, OpenError};
use crate::protection::PacketProtection;
use crate::window::{Step, WindowRepair};
use crate::work::{DecodeJob, OpenRun, Opening, Task, TaskId, Work};

impl<P: PacketProtection, E: Executor> Driver<P, E> {
    /// Removes the header protection of a datagram; `None` if it cannot be a packet, or has been seen before.
    pub(super) fn accept(
        &mut self,
        now: Time,
        origin: &Origin,
        datagram: &mut [u8],
    ) -> Option<(PathId, Header, PacketNumber)> {
        let path = self.path_of(datagram)?;
        let header = self.lanes.of(path)?.protection.unprotect(datagram);
        let packet_number = self.expand(now, origin, (path, header.as_ref(), datagram.len()))?;
        Some((path, header?, packet_number))
    }

    /// The path of a datagram; `None` of one that is late, of a path that is no more.
    pub(super) fn path_of(&self, datagram: &[u8]) -> Option<PathId> {
        let path = ConnectionId::of_datagram(datagram).and_then(|cid| self.core.path_of_cid(cid));
        path.filter(|path| self.core.has_path(*path))
    }

    /// The number of a packet of so many bytes, if it can be one and has not been seen before.
    pub(super) fn expand(
        &mut self,
        now: Time,
        origin: &Origin,
        (path, header, len): (PathId, Option<&Header>, usize),
    ) -> Option<PacketNumber> {
        let Some(header) = header else {
            self.counters.invalid += 1;
            return None;
        };
        let replay = &self.lanes.of(path)?.replay;
        let packet_number = PacketNumber::expand(header.packet_number, replay.expected());
        let arrival = replay.check(packet_number);
        if arrival != Arrival::New {
            self.seen_before(now, *origin, (path, packet_number), arrival, len);
            return None;
        }
        Some(packet_number)
    }

    /// A packet was opened elsewhere, or did not open.
    pub(super) fn take_in(
        &mut self,
        now: Time,
        run: &OpenRun,
        packet: &Opening,
        datagram: &[u8],
        workshop: &mut Workshop,
    ) {
        let Opening {
            origin,
            header,
            packet_number,
            body,
            ..
        } = packet;
        if !self.core.has_path(run.path) {
            return;
        }
        let Some(lane) = self.lanes.of(run.path) else {
            return;
        };
        // It may have come twice since it was looked at first.
        let arrival = lane.replay.check(*packet_number);
        if arrival != Arrival::New {
            let packet = (run.path, *packet_number);
            return self.seen_before(now, *origin, packet, arrival, datagram.len());
        }
        let pto = self.core.probe_timeout();
        let noted = lane
            .protection
            .note(run.epoch, *packet_number, body.is_some(), now, pto);
        match (noted, body) {
            (Ok(()), Some(body)) => {
                lane.replay.commit(*packet_number);
                let packet = (header, *packet_number, datagram.len());
                self.handle_packet(now, *origin, packet, &datagram[body.clone()], workshop);
            }
            (Err(error), _) => self.did_not_open(now, error),
            (Ok(()), None) => self.did_not_open(now, OpenError::Invalid),
        }
    }

    fn seen_before(
        &mut self,
        now: Time,
        origin: Origin,
        packet: (PathId, PacketNumber),
        arrival: Arrival,
        len: usize,
    ) {
        self.counters.replayed += 1;
        if arrival == Arrival::Replay {
            self.core.handle_replay(now, origin.tuple, packet, len);
        }
    }

    pub(super) fn did_not_open(&mut self, now: Time, error: OpenError) {
        self.counters.invalid += 1;
        if error == OpenError::TooManyInvalid {
            self.core.close(now, 5, "too many packets did not open");
            self.end(EndReason::Forgeries);
        }
    }

    /// A packet is the peer's, and new.
    pub(super) fn handle_packet(
        &mut self,
        now: Time,
        origin: Origin,
        (header, packet_number, datagram_len): (&Header, PacketNumber, usize),
        body: &[u8],
        workshop: &mut Workshop,
    ) {
        let meta = origin.meta(now, packet_number, datagram_len);
        match self.core.handle_packet(&meta, header, body) {
            Received::Nothing => {}
            Received::Symbol(placement) => self.store(now, header, placement, body, workshop),
            Received::Bundle(symbols) => {
                for symbol in symbols {
                    let placement = self.core.handle_bundled(now, &symbol);
                    let bytes = &body[symbol.at];
                    self.store(now, &symbol.header, placement, bytes, workshop);
                }
            }
            Received::Part(to) => {
                self.store_part(now, header, to, &body[FRAGMENT_PREFIX_LEN..], workshop);
            }
            Received::Window { span, row, covered } => {
                let symbol = body[span.body_len() - span.symbol_len()..].to_vec();
                self.counters.copied_bytes += symbol.len() as u64;
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
        self.counters.copied_bytes += part.len() as u64;
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
        let copied = self.rx.store(placement, symbol, &workshop.pool);
        self.counters.copied_bytes += copied as u64;
        self.window.stored(header.block, &placement);
        self.settle(now, workshop);
    }

    /// Does what the core wants to be done.
    pub(super) fn settle(&mut self, now: Time, workshop: &mut Workshop) {
        while let Some(job) = self.core.poll_job() {
            if job.window.is_some() {
                self.window.push(Step::Job(job));
            } else {
                self.begin(now, job, workshop);
            }
        }
        while !self.window.is_idle() {
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
        let mut decoding = DecodeJob { job, block };
        let kind = decoding.kind();
        if !self.executor.takes(kind) {
            let decoded = decoding.run(workshop);
            return self.decoded(now, decoding, decoded);
        }
        let id = self.next_task();
        let task = Task::new(id, Work::Decode(Box::new(decoding)));
        match self.executor.hand_over(now, task, None) {
            Ok(_) if kind == JobKind::DecodeForWindow => self.window.wait_for(id),
            Ok(_) => {}
            Err(mut task) => {
                // Everybody has enough to do.
                task.run(workshop);
                self.take_back(now, task);
                self.finish_decoded(now);
            }
        }
    }

    /// More waits for a block to be decoded than is good: it is decoded at once.
    fn finish_early(&mut self, now: Time, id: TaskId, workshop: &mut Workshop) {
        if let Some(mut task) = self.executor.recall(id) {
            task.run(workshop);
            self.take_back(now, task);
        }
        self.finish_decoded(now);
    }

    /// What follows from blocks that have come back.
    pub(super) fn finish_decoded(&mut self, now: Time) {
        for (decoding, decoded) in std::mem::take(&mut self.decoded) {
            self.decoded(now, decoding, decoded);
        }
    }

    /// A block comes back from being decoded.
    fn decoded(&mut self, now: Time, decoding: DecodeJob, decoded: Result<(), Error>) {
        let DecodeJob { job, block } = decoding;
        self.rx.put_back(job.slot, block);
        match decoded {
            Ok(()) => self.finish(now, &job),
            Err(error) => self.cannot_decode(now, error),
        }
    }

    /// All of a block is in its memory.
    fn finish(&mut self, now: Time, job: &Job) {
        if let Some(past) = job.window {
            match self.window.complete(job, past, &mut self.rx) {
                Ok(copied) => self.counters.copied_bytes += copied as u64,
                Err(error) => return self.cannot_decode(now, error),
            }
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
