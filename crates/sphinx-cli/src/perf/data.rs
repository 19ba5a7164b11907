//! The measured streams themselves.

use std::thread;
use std::time::Duration;

use sphinx_netdev::usage::monotonic_ns;
use sphinx_transport::{ErrorKind, Stats};

use super::bulk::{Bulk, threads};
use super::clock::ClockOffset;
use super::control::{Direction, Limit, Pacing, Plan};
use super::pattern::Pattern;
use super::samples::Samples;
use crate::channel::{Channel, Incoming, MessageIn, MessageOut, Outgoing};
use crate::failure::{Outcome, fail, local_io, protocol};
use crate::report::{BlockNumbers, Progress};

/// In front of every block, inside its size: index u64, scheduled time u64 (ns), size u32.
const HEADER_BYTES: usize = 20;
/// How often whoever waits for a block's time looks whether there is anybody left to send it to.
const SESSION_POLL_INTERVAL: Duration = Duration::from_millis(500);

pub(super) struct Sent {
    pub(super) bytes: u64,
    pub(super) stats: Stats,
}

pub(super) struct Received {
    pub(super) bytes: u64,
    pub(super) stats: Stats,
    pub(super) blocks: Option<BlockNumbers>,
}

/// Sends on `plan.streams` new streams side by side; returns when everything has been delivered.
pub(super) fn send<C: Channel>(channel: &C, plan: &Plan, progress: &Progress) -> Outcome<Sent> {
    let pattern = Pattern::new(plan.seed);
    let has_ended = || channel.stats().has_ended;
    let work = |index| SendWork {
        plan,
        pattern: &pattern,
        progress,
        index: u16::try_from(index).unwrap_or(u16::MAX),
        has_ended: &has_ended,
    };
    let bytes = match plan.pacing {
        Some(pacing) => {
            let (mode, deadline) = (pacing.mode(), pacing.deadline());
            let open = |_| channel.send_messages(mode, deadline);
            let outs: Outcome<Vec<_>> = (0..plan.streams).map(open).collect();
            // The first block is due when all threads are there.
            let first_due_ns = monotonic_ns() + 2_000_000;
            let sent = side_by_side(outs?, |(index, out)| {
                work(index).blocks(out, pacing, first_due_ns)
            })?;
            sent.into_iter().sum()
        }
        None => {
            let open = |_| Ok(channel.open_uni()?.into_task());
            let outs: Outcome<Vec<_>> = (0..plan.streams).map(open).collect();
            let bulk = Bulk {
                plan,
                pattern: &pattern,
                progress,
            };
            let outs = threads::<C, _>(outs?);
            let sent = side_by_side(outs, |(_, streams)| bulk.send(streams))?;
            sent.into_iter().sum()
        }
    };
    Ok(Sent {
        bytes,
        stats: channel.stats(),
    })
}

/// Receives the peer's next `plan.streams` streams to their ends.
pub(super) fn receive<C: Channel>(
    channel: &C,
    plan: &Plan,
    offset: ClockOffset,
    progress: &Progress,
) -> Outcome<Received> {
    let pattern = Pattern::new(plan.seed);
    let work = |index| ReceiveWork {
        plan,
        pattern: &pattern,
        progress,
        index: u16::try_from(index).unwrap_or(u16::MAX),
        offset,
    };
    let (bytes, blocks) = match plan.pacing {
        Some(pacing) => {
            let accept = |_| channel.recv_messages(pacing.mode());
            let ins: Outcome<Vec<_>> = (0..plan.streams).map(accept).collect();
            let received = side_by_side(ins?, |(index, input)| {
                let work = work(index);
                match pacing.mode().is_lossy() {
                    true => work.lossy_blocks(input, pacing),
                    false => work.blocks(input, pacing),
                }
            })?;
            let mut bytes = 0;
            let mut samples = Samples::default();
            for (stream_bytes, stream_samples) in received {
                bytes += stream_bytes;
                samples.merge(stream_samples);
            }
            (bytes, Some(samples.numbers(pacing.messages)))
        }
        None => {
            let accept = |_| Ok(channel.accept_uni()?.into_task());
            let ins: Outcome<Vec<_>> = (0..plan.streams).map(accept).collect();
            let bulk = Bulk {
                plan,
                pattern: &pattern,
                progress,
            };
            let ins = threads::<C, _>(ins?);
            let received = side_by_side(ins, |(_, streams)| bulk.receive(streams))?;
            (received.into_iter().sum(), None)
        }
    };
    Ok(Received {
        bytes,
        stats: channel.stats(),
        blocks,
    })
}

/// Runs `job` for each, a stream or all of a thread, on a thread of its own.
fn side_by_side<S: Send, T: Send>(
    streams: Vec<S>,
    job: impl Fn((usize, S)) -> Outcome<T> + Sync,
) -> Outcome<Vec<T>> {
    thread::scope(|scope| {
        let job = &job;
        let start = |item| {
            let builder = thread::Builder::new().name("stream".to_owned());
            builder.spawn_scoped(scope, move || job(item))
        };
        let started: Vec<_> = streams.into_iter().enumerate().map(start).collect();
        let mut results = Vec::with_capacity(started.len());
        for thread in started {
            let thread = thread.map_err(|error| local_io("start", "a thread", error))?;
            let result = thread.join();
            results.push(result.unwrap_or_else(|_| Err(fail(ErrorKind::Other, "a thread failed"))));
        }
        results.into_iter().collect()
    })
}

struct SendWork<'a> {
    plan: &'a Plan,
    pattern: &'a Pattern,
    progress: &'a Progress,
    index: u16,
    /// Whether the session is over.
    has_ended: &'a (dyn Fn() -> bool + Sync),
}

impl SendWork<'_> {
    /// Every block at its time; those that are late go at once and keep their scheduled time.
    fn blocks(
        &self,
        mut out: Box<dyn MessageOut>,
        pacing: Pacing,
        first_due_ns: u64,
    ) -> Outcome<u64> {
        let blocks = pacing.blocks(self.plan.limit).map_err(protocol)?;
        // Sleeps end within a microsecond of their time instead of the usual 50; where the kernel refuses that, they do not.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1000));
        let mut block = vec![0; pacing.block_bytes as usize];
        let mut sent = 0;
        let give_up_ns = self.give_up_ns(first_due_ns);
        for index in own_blocks(self.index, self.plan.streams, blocks) {
            let due = first_due_ns.saturating_add(index.saturating_mul(pacing.interval_ns));
            let (header, body) = block.split_at_mut(HEADER_BYTES);
            header[..8].copy_from_slice(&index.to_be_bytes());
            header[8..16].copy_from_slice(&due.to_be_bytes());
            header[16..].copy_from_slice(&(pacing.block_bytes as u32).to_be_bytes());
            self.pattern
                .fill(0, index.wrapping_mul(pacing.block_bytes), body);
            let now = monotonic_ns();
            // If the session is over, finishing the stream of blocks reports why.
            if now > give_up_ns || !self.wait_until(due) {
                break;
            }
            out.send(&block)?;
            sent += pacing.block_bytes;
            self.progress.add_bytes(pacing.block_bytes);
        }
        out.finish()?;
        Ok(sent)
    }
}

impl SendWork<'_> {
    /// Waits for the time of a block, which a client may set years ahead; false if the session is over before.
    fn wait_until(&self, due_ns: u64) -> bool {
        loop {
            let left = Duration::from_nanos(due_ns.saturating_sub(monotonic_ns()));
            thread::sleep(left.min(SESSION_POLL_INTERVAL));
            if left <= SESSION_POLL_INTERVAL {
                return true;
            }
            if (self.has_ended)() {
                return false;
            }
        }
    }

    /// A sender that has fallen behind stops at the end of the time it was given, or soon after: a
    /// stall in the last block is waited for, a hopeless backlog is not.
    fn give_up_ns(&self, first_due_ns: u64) -> u64 {
        match self.plan.limit {
            Limit::Bytes(_) => u64::MAX,
            Limit::Nanoseconds(time) => first_due_ns
                .saturating_add(time)
                .saturating_add(time / 10 + 100_000_000),
        }
    }
}

/// The blocks that go over stream `stream`.
fn own_blocks(stream: u16, streams: u16, blocks: u64) -> impl Iterator<Item = u64> {
    (u64::from(stream)..blocks).step_by(usize::from(streams.max(1)))
}

struct ReceiveWork<'a> {
    plan: &'a Plan,
    pattern: &'a Pattern,
    progress: &'a Progress,
    index: u16,
    offset: ClockOffset,
}

impl ReceiveWork<'_> {
    fn blocks(&self, mut input: Box<dyn MessageIn>, pacing: Pacing) -> Outcome<(u64, Samples)> {
        let blocks = pacing.blocks(self.plan.limit).map_err(protocol)?;
        let mut block = vec![0; pacing.block_bytes as usize];
        let mut samples = Samples::default();
        let mut bytes = 0;
        for index in own_blocks(self.index, self.plan.streams, blocks) {
            let filled = input.recv(&mut block)?.unwrap_or(0);
            if filled == 0 && matches!(self.plan.limit, Limit::Nanoseconds(_)) {
                let streams = u64::from(self.plan.streams.max(1));
                samples.add_unsent((blocks - index).div_ceil(streams));
                return Ok((bytes, samples));
            }
            if filled < block.len() {
                return Err(fail(ErrorKind::Integrity, "blocks are missing at the end"));
            }
            if self.take(&block, pacing, &mut samples)? != index {
                return Err(damaged());
            }
            bytes += pacing.block_bytes;
        }
        match input.recv(&mut block)? {
            None => Ok((bytes, samples)),
            Some(_) => Err(protocol("more blocks than agreed")),
        }
    }

    /// Blocks of which some may be missing, in any order.
    fn lossy_blocks(
        &self,
        mut input: Box<dyn MessageIn>,
        pacing: Pacing,
    ) -> Outcome<(u64, Samples)> {
        let blocks = pacing.blocks(self.plan.limit).map_err(protocol)?;
        let mut seen = vec![false; usize::try_from(blocks).unwrap_or(usize::MAX)];
        let mut block = vec![0; pacing.block_bytes as usize];
        let mut samples = Samples::default();
        let mut bytes = 0;
        while let Some(len) = input.recv(&mut block)? {
            if len < block.len() {
                return Err(damaged());
            }
            let index = self.take(&block, pacing, &mut samples)?;
            let seen = usize::try_from(index).ok().and_then(|at| seen.get_mut(at));
            if seen.is_none_or(|seen| std::mem::replace(seen, true)) {
                return Err(damaged());
            }
            bytes += pacing.block_bytes;
        }
        Ok((bytes, samples))
    }

    /// A block has arrived: its index, if it is what was agreed.
    fn take(&self, block: &[u8], pacing: Pacing, samples: &mut Samples) -> Outcome<u64> {
        let now = monotonic_ns();
        let (header, body) = block.split_at(HEADER_BYTES);
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let (index, due) = (number(&header[..8]), number(&header[8..16]));
        let at = index.wrapping_mul(pacing.block_bytes);
        if number(&header[16..]) != pacing.block_bytes || !self.pattern.matches(0, at, body) {
            return Err(damaged());
        }
        match index.saturating_mul(pacing.interval_ns) < self.offset.warmup_ns {
            true => samples.add_warmup(),
            false => samples.add(self.latency_ns(due, now)),
        }
        self.progress.add_bytes(pacing.block_bytes);
        Ok(index)
    }

    /// From the scheduled time on the sender's clock to `now` on ours.
    fn latency_ns(&self, due: u64, now: u64) -> u64 {
        let ahead = match self.plan.direction {
            Direction::Up => self.offset.ns,
            Direction::Down => self.offset.ns.saturating_neg(),
        };
        let latency = i128::from(now) - i128::from(ahead) - i128::from(due);
        // An estimated offset can make a short latency look negative.
        u64::try_from(latency.max(0)).unwrap_or(u64::MAX)
    }
}

pub(super) fn damaged() -> crate::failure::Failure {
    fail(ErrorKind::Integrity, "data arrived damaged or out of place")
}
