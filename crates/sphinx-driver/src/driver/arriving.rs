//! Packets that are opened elsewhere, and of which the core hears in the order of their arrival.

use std::collections::VecDeque;

use sphinx_proto::wire::Header;
use sphinx_proto::{PacketNumber, PathId, Time};

use super::{Driver, Origin, Workshop};
use crate::executor::{Executor, JobKind};
use crate::keys::OpenError;
use crate::protection::PacketProtection;
use crate::work::{OpenRun, Task, TaskId, Work};

/// Bytes of datagrams that wait to be opened, from which on no more are received.
const ARRIVING_BYTES_MAX: usize = 512 << 10;

/// Received packets that workers open, in runs: the core hears of them in the order of arrival, whichever run is open first.
#[derive(Default)]
pub(super) struct Arriving {
    /// The run that packets are being added to.
    filling: Option<Box<OpenRun>>,
    /// The runs before it: when the first packet of each arrived, and the run itself once a worker has given it back.
    runs: VecDeque<(TaskId, Time, Option<Box<OpenRun>>)>,
    /// Bytes of the datagrams in all runs.
    bytes: usize,
}

impl Arriving {
    /// Whether a packet that arrived at or before this time has not been opened yet.
    pub(super) fn is_behind(&self, time: Time) -> bool {
        let first = self.runs.front();
        first.is_some_and(|(_, arrived, _)| *arrived <= time)
    }

    /// Whether the oldest run has come back, so that the core can hear of it.
    pub(super) fn is_ready(&self) -> bool {
        self.runs.front().is_some_and(|(.., run)| run.is_some())
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes >= ARRIVING_BYTES_MAX
    }

    /// A worker gives a run back.
    pub(super) fn put(&mut self, id: TaskId, run: Box<OpenRun>) {
        let mut runs = self.runs.iter_mut();
        match runs.find(|(its, ..)| *its == id) {
            Some((.., place)) => *place = Some(run),
            None => debug_assert!(false, "a run that nobody waits for"),
        }
    }

    /// A worker has lost a run (it panicked): later ones no longer wait for it.
    pub(super) fn lose(&mut self, id: TaskId, run: &OpenRun) {
        self.runs.retain(|(its, ..)| *its != id);
        self.bytes -= run.bytes();
    }

    fn next(&mut self) -> Option<Box<OpenRun>> {
        if !self.is_ready() {
            return None;
        }
        let (.., run) = self.runs.pop_front()?;
        let run = run?;
        self.bytes -= run.bytes();
        Some(run)
    }
}

impl<P: PacketProtection, E: Executor> Driver<P, E> {
    /// Whether so much has arrived that is not open that no more should be received before some of it is.
    pub fn is_full(&self) -> bool {
        self.arriving.is_full()
    }

    /// A packet without header protection is to be opened elsewhere.
    pub(super) fn open_later(
        &mut self,
        now: Time,
        origin: Origin,
        (path, header, packet_number): (PathId, &Header, PacketNumber),
        datagram: &[u8],
        workshop: &mut Workshop,
    ) {
        let Some(lane) = self.lanes.of(path) else {
            return;
        };
        let epoch = match lane.protection.choose(header, packet_number, now) {
            Ok(epoch) => epoch,
            Err(error) => return self.did_not_open(now, error),
        };
        let fits =
            |run: &OpenRun| (run.path, run.epoch) == (path, epoch) && !run.is_full(datagram.len());
        if let Some(full) = self.arriving.filling.take_if(|run| !fits(run)) {
            self.hand_over_opening(now, full, workshop);
        }
        let arriving = &mut self.arriving;
        let run = match &mut arriving.filling {
            Some(run) => run,
            none => {
                let lane = self.lanes.of(path);
                let Some(key) = lane.and_then(|lane| lane.protection.opening(epoch)) else {
                    return self.did_not_open(now, OpenError::Invalid);
                };
                let run = none.insert(workshop.spare.opening(path, epoch, key));
                run.set_memory(workshop.spare.memory(), 0);
                run
            }
        };
        run.copy(origin, *header, packet_number, datagram);
        arriving.bytes += datagram.len();
        self.counters.copied_bytes += datagram.len() as u64;
    }

    /// Whether datagrams that have arrived as one are to be given away together with their memory ([`handle_joined`](Self::handle_joined)):
    /// whether so many bytes are worth a run of their own for somebody else.
    pub fn takes_joined(&self, len: usize) -> bool {
        self.opens_elsewhere() && len >= self.executor.bytes_min()
    }

    /// Whether packets are opened elsewhere. Not before it is certain who the peer is: should it be another one, nothing that the first has sent may be heard any more,
    /// and whether it is depends on whether anything of it has opened.
    pub(super) fn opens_elsewhere(&self) -> bool {
        !self.is_provisional && self.executor.takes(JobKind::Open)
    }

    /// Datagrams of this session's that have arrived as one: each has `stride` bytes, but the last one, and `len` all together at the beginning of
    /// `memory`. They are opened there.
    pub fn handle_joined(
        &mut self,
        now: Time,
        origin: Origin,
        (mut memory, len, stride): (Vec<u8>, usize, usize),
        workshop: &mut Workshop,
    ) {
        if let Some(before) = self.arriving.filling.take() {
            self.hand_over_opening(now, before, workshop);
        }
        let mut run: Option<Box<OpenRun>> = None;
        // From where on others follow that need another key, of which the first one has lost its header protection.
        let mut rest = None;
        for from in (0..len).step_by(stride.max(1)) {
            let at = from..len.min(from + stride);
            let datagram = &mut memory[at.clone()];
            let Some((path, header, packet_number)) = self.accept(now, &origin, datagram) else {
                continue;
            };
            let Some(lane) = self.lanes.of(path) else {
                continue;
            };
            let epoch = match lane.protection.choose(&header, packet_number, now) {
                Ok(epoch) => epoch,
                Err(error) => {
                    self.did_not_open(now, error);
                    continue;
                }
            };
            let run = match &mut run {
                Some(run) if (run.path, run.epoch) == (path, epoch) => run,
                Some(_) => {
                    rest = Some((path, header, packet_number, memory[from..len].to_vec()));
                    break;
                }
                none => match lane.protection.opening(epoch) {
                    Some(key) => none.insert(workshop.spare.opening(path, epoch, key)),
                    None => {
                        self.did_not_open(now, OpenError::Invalid);
                        continue;
                    }
                },
            };
            run.push(origin, header, packet_number, at);
        }
        match run {
            Some(mut run) => {
                run.set_memory(memory, len);
                self.arriving.bytes += len;
                self.hand_over_opening(now, run, workshop);
            }
            None => workshop.spare.keep_memory(memory),
        }
        let Some((path, header, packet_number, mut rest)) = rest else {
            return;
        };
        let mut datagrams = rest.chunks_mut(stride.max(1));
        if let Some(first) = datagrams.next() {
            let packet = (path, &header, packet_number);
            self.open_later(now, origin, packet, first, workshop);
        }
        for datagram in datagrams {
            self.handle_datagram(now, origin, datagram, workshop);
        }
    }

    /// All that has arrived in this turn is to be opened.
    pub(super) fn finish_arriving(&mut self, now: Time, workshop: &mut Workshop) {
        let Some(run) = self.arriving.filling.take() else {
            return;
        };
        let is_small = run.bytes() < self.executor.bytes_min();
        if is_small && self.arriving.runs.is_empty() {
            // Too little to wake anybody up for.
            let id = self.begin_run(&run);
            let mut task = Task::new(id, Work::Open(run));
            task.run(workshop);
            self.take_back(now, task);
        } else {
            self.hand_over_opening(now, run, workshop);
        }
    }

    fn begin_run(&mut self, run: &OpenRun) -> TaskId {
        let id = self.next_task();
        let first = run.packets.first();
        let arrived = first.map_or(Time::ZERO, |packet| packet.origin.received_at);
        self.arriving.runs.push_back((id, arrived, None));
        id
    }

    fn hand_over_opening(&mut self, now: Time, run: Box<OpenRun>, workshop: &mut Workshop) {
        let id = self.begin_run(&run);
        let task = Task::new(id, Work::Open(run));
        if let Err(mut task) = self.executor.hand_over(now, task, None) {
            // Everybody has enough to do.
            task.run(workshop);
            self.take_back(now, task);
        }
    }

    /// The core hears of packets that are open, as far as nothing that came before them is not.
    pub(super) fn take_in_opened(&mut self, now: Time, workshop: &mut Workshop) {
        while let Some(run) = self.arriving.next() {
            for packet in &run.packets {
                let datagram = run.datagram(packet);
                self.take_in(now, &run, packet, datagram, workshop);
            }
            workshop.spare.keep_opening(run);
        }
    }
}
