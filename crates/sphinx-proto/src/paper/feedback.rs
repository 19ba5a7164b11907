//! What the receiver says, and when.

use std::collections::VecDeque;

use crate::PacketNumber;
use crate::wire::{BlockSack, Frame, LossReport, PaperCounts, SymbolSack};

/// Packets of feedback that may wait to leave; of more, the oldest say nothing that the others do not.
const WAITING_MAX: usize = 1024;

/// Packets of one period, which all have numbers from `period` × its length on.
#[derive(Debug, Default, Clone, Copy)]
struct Period {
    number: u64,
    arrived: u32,
}

/// The receiving end: what it has counted, and the feedback that waits to leave.
#[derive(Debug)]
pub(crate) struct Feedback {
    of: u32,
    period: Period,
    loss: Option<LossReport>,
    waiting: VecDeque<Vec<u8>>,
}

impl Feedback {
    /// Counts losses over periods of `of` packets.
    pub(crate) fn new(of: u32) -> Self {
        Self {
            of,
            period: Period::default(),
            loss: None,
            waiting: VecDeque::new(),
        }
    }

    /// A packet of the peer's, of whatever kind. With the first one of a later period, the one before that is over.
    pub(crate) fn on_packet(&mut self, packet_number: PacketNumber) {
        let number = packet_number.get() / u64::from(self.of);
        if number > self.period.number {
            let passed = number - 1;
            let is_known = passed == self.period.number;
            let arrived = if is_known { self.period.arrived } else { 0 };
            self.loss = Some(LossReport {
                period: passed,
                lost: self.of.saturating_sub(arrived),
                of: self.of,
            });
            self.period = Period { number, arrived: 0 };
        }
        if number == self.period.number {
            self.period.arrived += 1;
        }
    }

    /// A packet with a symbol has arrived.
    pub(crate) fn say_symbols(&mut self, mut sack: SymbolSack, room: usize) {
        sack.fit(room);
        let mut body = Vec::new();
        Frame::PaperSymbols(sack).encode(&mut body);
        self.push(body);
    }

    /// A block is decoded, or a symbol of a decoded one has arrived: `rest` writes what else there is to tell.
    pub(crate) fn say_blocks(
        &mut self,
        counts: PaperCounts,
        (base, decoded): (crate::BlockId, Vec<(crate::BlockId, crate::BlockId)>),
        rest: impl FnOnce(&mut Vec<u8>),
    ) {
        let sack = BlockSack {
            counts,
            loss: self.loss,
            base,
            decoded,
        };
        let mut body = Vec::new();
        Frame::PaperBlocks(sack).encode(&mut body);
        rest(&mut body);
        self.push(body);
    }

    fn push(&mut self, body: Vec<u8>) {
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(body);
    }

    /// The next packet of feedback.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        self.waiting.pop_front()
    }

    /// Whether feedback waits to leave.
    pub(crate) fn is_due(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::pn;

    #[test]
    fn losses_are_those_of_the_latest_whole_period() {
        let mut feedback = Feedback::new(100);
        let mut arrive = |numbers: &mut dyn Iterator<Item = u64>| {
            numbers.for_each(|number| feedback.on_packet(pn(number)));
            feedback.loss.map(|loss| (loss.period, loss.lost))
        };
        assert_eq!(arrive(&mut (0..100).filter(|n| n % 10 > 0)), None);
        assert_eq!(arrive(&mut [100].into_iter()), Some((0, 10)));
        // A packet that comes late still counts as lost.
        assert_eq!(arrive(&mut [90].into_iter()), Some((0, 10)));
        assert_eq!(arrive(&mut [350].into_iter()), Some((2, 100)));
    }
}
