//! Flows of datagrams that are given out in their order or by their time.

use std::collections::VecDeque;
use std::ops::Range;

use super::Time;
use super::clock::Clock;
use super::numbers::{Numbers, RANGES_MAX};
use super::waiting::Waiting;
use crate::pool::PoolBuffer;

/// What one costs besides its memory.
const OVERHEAD: usize = 128;
/// Ranges of missing numbers that the application has not taken: as many as can be told at once.
const MISSING_MAX: usize = RANGES_MAX + 1;

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
    /// Until those before them are here or missing, or one's own time is over.
    pub(super) waiting: Waiting,
    pub(super) used_at: Time,
}

/// A flow of live messages.
#[derive(Default)]
pub(super) struct Live<S> {
    pub(super) clock: Clock,
    /// Numbers that have arrived or will not, and how many these are.
    settled: Numbers,
    settled_count: u64,
    /// Messages are given out when their time has come: with equal lives in their order, all as long after they were sent.
    pub(super) on_time: bool,
    pub(super) waiting: Waiting,
    pub(super) ready: VecDeque<Arrived>,
    pub(super) missing: VecDeque<Range<u64>>,
    /// How many there have been, and when the last of these are not waited for any more.
    pub(super) total: Option<(u64, Time)>,
    pub(super) latest_due: Time,
    pub(super) is_unwanted: bool,
    pub(super) used_at: Time,
    pub(super) signal: S,
}

impl<S> Live<S> {
    /// Notes that one has arrived. Whether that is news, and how many others are given up for it.
    pub(super) fn arrive(&mut self, number: u64) -> (bool, u64) {
        let (news, missed) = self.settle(number..number.saturating_add(1));
        (!news.is_empty(), missed)
    }

    /// Gives up those of these that have not arrived: how many are news.
    pub(super) fn give_up(&mut self, numbers: Range<u64>) -> u64 {
        let (news, mut missed) = self.settle(numbers);
        for numbers in news {
            missed += numbers.end - numbers.start;
            self.miss(numbers);
        }
        missed
    }

    /// These have arrived, or will not: which of them are news, and how many others are given up since too much is missing.
    fn settle(&mut self, numbers: Range<u64>) -> (Vec<Range<u64>>, u64) {
        let len = |numbers: &Range<u64>| numbers.end - numbers.start;
        let (news, given_up) = self.settled.insert(numbers);
        let missed = given_up.as_ref().map_or(0, len);
        self.settled_count += missed + news.iter().map(len).sum::<u64>();
        if let Some(numbers) = given_up {
            self.miss(numbers);
        }
        (news, missed)
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

    /// One that has arrived makes room for others.
    pub(super) fn miss_one(&mut self, number: Option<u64>) {
        if let Some(number) = number {
            self.miss(number..number.saturating_add(1));
        }
    }

    /// Takes what has arrived and has not been given out.
    pub(super) fn take_unread(&mut self) -> impl Iterator<Item = Arrived> {
        self.waiting.take_all().chain(self.ready.drain(..))
    }

    /// Whether, as far as is known, its sender goes on with it, and somebody wants that.
    pub(super) fn is_open(&self) -> bool {
        self.total.is_none() && !self.is_unwanted
    }

    /// Whether nothing more will come.
    pub(super) fn is_over(&self) -> bool {
        let is_settled = |(total, _)| self.settled_count >= total;
        self.waiting.is_empty() && self.total.is_some_and(is_settled)
    }
}
