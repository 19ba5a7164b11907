//! Flows of datagrams that are given out in their order or by their time.

use std::collections::VecDeque;
use std::ops::Range;

use super::Time;
use super::clock::Clock;
use super::numbers::Numbers;
use super::waiting::Waiting;
use crate::pool::PoolBuffer;

/// What a waiting datagram costs besides its memory, bytes.
const OVERHEAD: usize = 128;

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

/// A flow's place among those that make room for others: whether it is open, when it was heard of last, and its number.
pub(super) type Place = (bool, Time, u64);

/// A flow of live messages.
#[derive(Default)]
pub(super) struct Live<S> {
    pub(super) clock: Clock,
    /// Numbers that have arrived or will not, and how many these are.
    pub(super) settled: Numbers,
    settled_count: u64,
    /// In how many ranges they are at most from now on. As many as can be told at once, one more, are kept of missing ones that the application has not taken.
    pub(super) ranges_max: usize,
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
        let (news, given_up) = self.settled.insert(numbers, self.ranges_max);
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
        if self.missing.len() > self.ranges_max + 1 {
            self.missing.pop_front();
        }
    }

    /// A message that was dropped to make room for others counts as missing.
    pub(super) fn miss_one(&mut self, number: Option<u64>) {
        if let Some(number) = number {
            self.miss(number..number.saturating_add(1));
        }
    }

    /// Takes what has arrived and has not been given out.
    pub(super) fn take_unread(&mut self) -> impl Iterator<Item = Arrived> {
        self.waiting.take_all().chain(self.ready.drain(..))
    }

    /// Its place, if it has this number. Those that have ended, or that nobody wants any more, are before those that are open as far as is known.
    pub(super) fn place(&self, flow: u64) -> Place {
        let is_open = self.total.is_none() && !self.is_unwanted;
        (is_open, self.used_at, flow)
    }

    /// Whether nothing more will come.
    pub(super) fn is_over(&self) -> bool {
        let is_settled = |(total, _)| self.settled_count >= total;
        self.waiting.is_empty() && self.total.is_some_and(is_settled)
    }
}
