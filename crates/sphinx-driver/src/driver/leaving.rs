//! Packets that are sealed elsewhere, and leave in the order of their numbers.

use std::collections::VecDeque;

use sphinx_proto::wire::OVERHEAD;
use sphinx_proto::{Content, Slot, Time, Transmit};

use super::sending::NO_KEYS;
use super::{Driver, EndReason, Workshop};
use crate::executor::{Executor, WorkerId};
use crate::outbox::Outbox;
use crate::protection::PacketProtection;
use crate::work::{GONE, SealRun, Task, TaskId, Work};

/// Most bytes of datagrams that workers have, or that are sealed and have not been put into the outbox.
const SEALED_BYTES_MAX: usize = 512 << 10;

/// Packets that workers seal, in runs: they leave in the order of their numbers, whichever run is sealed first.
#[derive(Default)]
pub(super) struct Leaving {
    /// The run that packets are being added to.
    filling: Option<Box<SealRun>>,
    /// The runs before it, each there once a worker has given it back.
    runs: VecDeque<(TaskId, Option<Box<SealRun>>)>,
    /// Bytes of the datagrams in all runs.
    bytes: usize,
    /// When packets were last looked for, if runs at workers left no room for any.
    held_up: Option<Time>,
    /// Working memory.
    slots: Vec<Slot>,
}

impl Leaving {
    /// Whether no run is under way, so that a packet may leave at once.
    fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether the oldest run has come back, so that its packets can leave.
    pub(super) fn is_ready(&self) -> bool {
        self.runs.front().is_some_and(|(_, run)| run.is_some())
    }

    /// Whether what was due at this time waits for a worker to give a run back, which wakes the session.
    pub(super) fn is_held_up(&self, due: Time) -> bool {
        self.held_up.is_some_and(|looked| due <= looked)
    }

    /// A worker gives a run back.
    pub(super) fn put(&mut self, id: TaskId, run: Box<SealRun>) {
        let mut runs = self.runs.iter_mut();
        match runs.find(|(its, _)| *its == id) {
            Some((_, place)) => *place = Some(run),
            None => debug_assert!(false, "a run that nobody waits for"),
        }
    }

    /// A worker could not seal a run, or has panicked: later ones no longer wait for it.
    pub(super) fn lose(&mut self, id: TaskId, run: &SealRun) {
        self.runs.retain(|(its, _)| *its != id);
        self.bytes -= run.bytes();
    }
}

impl<P: PacketProtection, E: Executor> Driver<P, E> {
    /// Has what may leave now sealed elsewhere, and puts into `out` what has been.
    pub(super) fn send_by_runs(
        &mut self,
        now: Time,
        limit: usize,
        workshop: &mut Workshop,
        out: &mut impl Outbox,
    ) -> Result<(), EndReason> {
        // Bytes that this session may have at workers, besides what is in the outbox already.
        let room = limit.saturating_sub(out.len_bytes()).min(SEALED_BYTES_MAX);
        self.leaving.held_up = None;
        self.collect(now);
        self.release_sealed(limit, workshop, out)?;
        let has_room = |leaving: &Leaving, out: &_| {
            Outbox::len_bytes(out) + leaving.bytes < limit && leaving.bytes < SEALED_BYTES_MAX
        };
        while has_room(&self.leaving, out) {
            let Some(mut transmit) = self.core.poll_transmit(now) else {
                break;
            };
            self.fill(now, transmit.clone(), workshop)?;
            while has_room(&self.leaving, out)
                && self.core.poll_following(now, &mut transmit, 1) > 0
            {
                self.fill(now, transmit.clone(), workshop)?;
            }
        }
        self.finish_filling(now, workshop, out)?;
        self.collect(now);
        self.release_sealed(limit, workshop, out)?;
        let leaving = &mut self.leaving;
        if room > 0 && leaving.bytes >= room && !leaving.is_ready() {
            leaving.held_up = Some(now);
        }
        Ok(())
    }

    /// Puts a packet into the run that is being filled.
    fn fill(
        &mut self,
        now: Time,
        transmit: Transmit,
        workshop: &mut Workshop,
    ) -> Result<(), EndReason> {
        let fault = |why: &str| EndReason::CannotSeal(why.to_owned());
        let lane = self.lanes.of(transmit.path).ok_or_else(|| fault(NO_KEYS))?;
        let permit = lane.protection.permit(transmit.packet_number);
        let permit = permit.map_err(|error| EndReason::CannotSeal(error.to_string()))?;
        let (path, epoch) = (transmit.path, permit.epoch());
        let len = transmit.body_len + OVERHEAD;

        let mut slots = std::mem::take(&mut self.leaving.slots);
        slots_of(&transmit.content, &mut slots);
        let owner = |slot: &Slot| self.tx.get(*slot).and_then(|block| block.owner);
        let owner = slots.iter().find_map(owner);
        let fits = |run: &SealRun| {
            let is_theirs = run.owner.is_none() || owner.is_none() || run.owner == owner;
            is_theirs && (run.path, run.epoch) == (path, epoch) && !run.is_full(len)
        };
        if let Some(full) = self.leaving.filling.take_if(|run| !fits(run)) {
            self.hand_over_sealing(now, full, workshop)?;
        }
        let leaving = &mut self.leaving;
        let run = match &mut leaving.filling {
            Some(run) => run,
            none => {
                let lane = self.lanes.of(path).ok_or_else(|| fault(NO_KEYS))?;
                let key = lane.protection.sealing();
                none.insert(workshop.spare.sealing(path, epoch, key))
            }
        };
        run.owner = run.owner.or(owner);
        for slot in slots.drain(..) {
            if !run.blocks.iter().any(|(its, _)| *its == slot) {
                let block = self.tx.get(slot).ok_or_else(|| fault(GONE))?;
                run.blocks.push((slot, block.symbols.clone()));
            }
        }
        leaving.slots = slots;
        leaving.bytes += len;
        run.push(transmit, permit);
        Ok(())
    }

    /// No more packets leave in this turn.
    fn finish_filling(
        &mut self,
        now: Time,
        workshop: &mut Workshop,
        out: &mut impl Outbox,
    ) -> Result<(), EndReason> {
        let Some(mut run) = self.leaving.filling.take() else {
            return Ok(());
        };
        if !self.leaving.is_empty() || run.bytes() >= self.executor.bytes_min() {
            return self.hand_over_sealing(now, run, workshop);
        }
        // Too little to wake anybody up for.
        self.leaving.bytes -= run.bytes();
        for at in 0..run.packets.len() {
            let packet = &run.packets[at];
            let to = self.source.tuple(run.path, &packet.transmit.to);
            let datagram = out.push(&to, packet.transmit.ecn, packet.len());
            let sealed = run.seal(at, workshop, datagram);
            sealed.map_err(EndReason::CannotSeal)?;
        }
        self.counters.copied_bytes += run.copied as u64;
        workshop.spare.keep_sealing(run);
        Ok(())
    }

    fn hand_over_sealing(
        &mut self,
        now: Time,
        run: Box<SealRun>,
        workshop: &mut Workshop,
    ) -> Result<(), EndReason> {
        let (owner, slots) = (run.owner, &mut self.leaving.slots);
        slots.clear();
        slots.extend(run.blocks.iter().map(|(slot, _)| *slot));
        let id = self.next_task();
        self.leaving.runs.push_back((id, None));
        match self
            .executor
            .hand_over(now, Task::new(id, Work::Seal(run)), owner)
        {
            Ok(worker) => self.give_blocks_to(worker),
            Err(mut task) => {
                // Everybody has enough to do.
                task.run(workshop);
                self.take_back(now, task);
            }
        }
        Ok(())
    }

    /// The blocks of a run belong to whoever seals it, unless they belong to somebody.
    fn give_blocks_to(&mut self, worker: WorkerId) {
        for slot in self.leaving.slots.drain(..) {
            if let Some(block) = self.tx.get_mut(slot) {
                block.owner.get_or_insert(worker);
            }
        }
    }

    /// Puts what has been sealed into `out`, as far as nothing before it has not, until it holds `limit` bytes.
    fn release_sealed(
        &mut self,
        limit: usize,
        workshop: &mut Workshop,
        out: &mut impl Outbox,
    ) -> Result<(), EndReason> {
        if let Some(fault) = self.seal_fault.take() {
            return Err(EndReason::CannotSeal(fault));
        }
        while out.len_bytes() < limit && self.leaving.is_ready() {
            let Some((_, Some(mut run))) = self.leaving.runs.pop_front() else {
                break;
            };
            self.leaving.bytes -= run.bytes();
            // What is of a path that is no more is of no use.
            if self.core.has_path(run.path) {
                run.leave(&self.source, out);
            }
            self.counters.copied_bytes += run.copied as u64;
            workshop.spare.keep_sealing(run);
        }
        Ok(())
    }
}

/// The blocks that a packet is of.
fn slots_of(content: &Content, slots: &mut Vec<Slot>) {
    slots.clear();
    match content {
        Content::Control(_) => {}
        Content::Symbol { slot, .. } => slots.push(*slot),
        Content::Window { slots: covered, .. } => slots.extend(covered),
        Content::Bundle { slot, riders, .. } => {
            slots.push(*slot);
            slots.extend(riders.iter().map(|rider| rider.slot));
        }
    }
}
