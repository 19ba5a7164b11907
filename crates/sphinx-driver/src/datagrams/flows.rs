//! Flows of datagrams that are given out in their order or by their time.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::Time;
use super::clock::Clock;
use super::numbers::Numbers;
use crate::pool::PoolBuffer;

/// What one costs besides its memory.
const OVERHEAD: usize = 128;
/// Ranges of missing numbers that the application has not taken.
const MISSING_MAX: usize = 256;

/// A datagram that has arrived.
pub struct Arrived {
    pub(super) flow: u64,
    pub(super) number: Option<u64>,
    pub(super) sent: Option<Time>,
    pub(super) memory: PoolBuffer,
    pub(super) data: Range<usize>,
}

impl Arrived {
    /// Its flow, among those of its kind.
    pub fn flow(&self) -> u64 {
        self.flow
    }

    /// Datagrams of the flow before it, if they are counted.
    pub fn number(&self) -> Option<u64> {
        self.number
    }

    /// When its sender handed it over, by this end's clock, if the fastest of late took no time.
    pub fn sent(&self) -> Option<Time> {
        self.sent
    }

    /// What was sent.
    pub fn data(&self) -> &[u8] {
        &self.memory[self.data.clone()]
    }

    pub(super) fn cost(&self) -> usize {
        self.memory.capacity() + OVERHEAD
    }
}

/// What becomes of a flow of live messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveEnd {
    /// More may come.
    Open,
    /// Its sender has ended it, and all that came has been taken.
    Ended,
}

/// A flow of datagrams that are given out in their order.
#[derive(Default)]
pub(super) struct Ordered {
    pub(super) clock: Clock,
    /// The next number to give out.
    pub(super) next: u64,
    /// Numbers that will not arrive.
    pub(super) missing: Numbers,
    /// By number, and when it is given out whatever is missing.
    pub(super) waiting: BTreeMap<u64, (Time, Arrived)>,
    pub(super) used_at: Time,
}

/// A flow of live messages.
#[derive(Default)]
pub(super) struct Live<S> {
    pub(super) clock: Clock,
    /// Numbers that have arrived or will not, and how many these are.
    settled: Numbers,
    pub(super) settled_count: u64,
    /// Messages are given out when their time has come, all as long after they were sent.
    pub(super) on_time: bool,
    /// By number, and when it is given out.
    pub(super) waiting: BTreeMap<u64, (Time, Arrived)>,
    pub(super) ready: VecDeque<Arrived>,
    pub(super) missing: VecDeque<Range<u64>>,
    /// How many there have been, and when the last of these are not waited for any more.
    pub(super) total: Option<(u64, Time)>,
    pub(super) latest_due: Time,
    pub(super) is_unwanted: bool,
    pub(super) signal: S,
}

impl<S> Live<S> {
    /// These have arrived, or will not: which of them are news.
    pub(super) fn settle(&mut self, numbers: Range<u64>) -> Vec<Range<u64>> {
        let news = self.settled.insert(numbers);
        let count: u64 = news.iter().map(|numbers| numbers.end - numbers.start).sum();
        self.settled_count += count;
        news
    }

    /// These will not arrive, or not in time.
    pub(super) fn miss(&mut self, numbers: Range<u64>) {
        match self.missing.back_mut() {
            Some(last) if last.end == numbers.start => last.end = numbers.end,
            _ => self.missing.push_back(numbers),
        }
        if self.missing.len() > MISSING_MAX {
            self.missing.pop_front();
        }
    }

    /// Whether nothing more will come.
    pub(super) fn is_over(&self, now: Time) -> bool {
        let is_complete = |(total, until): (u64, Time)| {
            self.waiting.is_empty() && (self.settled_count >= total || now >= until)
        };
        self.total.is_some_and(is_complete)
    }
}
