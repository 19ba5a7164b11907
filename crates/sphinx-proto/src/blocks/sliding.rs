//! Repairs of a sliding window, which follow the source symbols at an even rate.

use sphinx_fec::{CodeId, Row};

use crate::BlockId;
use crate::types::Slot;
use crate::wire::{SymbolId, WindowSpan};

use super::coding;
use super::store::{BlockStore, SymbolChoice};

/// A repair of a window to send.
pub(crate) struct WindowChoice {
    pub(crate) choice: SymbolChoice,
    pub(crate) span: WindowSpan,
    /// Memory of the covered blocks, oldest first.
    pub(crate) slots: Vec<Slot>,
    pub(crate) row: Row,
}

/// The sliding window of a session.
#[derive(Debug, Default)]
pub(crate) struct SlidingWindow {
    /// Repairs for every source symbol.
    rate: f64,
    /// Repairs owed, as a fraction of one.
    owed: f64,
    /// The newest block of a window whose repairs are due, and how many are: where most packets are lost, more than one behind each source symbol.
    due: Option<(BlockId, u32)>,
    /// Row of the next repair of any window.
    next_row: u32,
}

impl SlidingWindow {
    /// A source symbol of this block is about to be sent, the first of it if it `begins`: perhaps a repair is due
    /// behind it.
    pub(crate) fn owe(&mut self, sequence: BlockId, begins: bool, plr: f64) {
        if begins {
            self.rate = coding::window_rate(plr);
        }
        self.owed += self.rate;
        if self.owed >= 1.0 {
            self.due = Some((sequence, self.owed as u32));
            self.owed = self.owed.fract();
        }
    }

    /// Whether a repair is due.
    pub(crate) fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// The repair that is due, if its body has at most `room` bytes. It counts as one of the newest block
    /// that it covers, which it helps if no other needs it more.
    pub(crate) fn take_due(
        &mut self,
        blocks: &mut BlockStore,
        room: usize,
    ) -> Option<WindowChoice> {
        let (sequence, count) = self.due.take()?;
        let newest = blocks.get(sequence)?;
        let mut span = WindowSpan::new(newest.sent_sources(), newest.n, newest.symbol_len)?;
        if span.body_len() > room {
            return None;
        }
        let mut slots = vec![newest.slot];
        for before in blocks.first_sequence().until(sequence).rev() {
            // What lies before a complete block has had its round trip.
            let Some(block) = blocks.get(before) else {
                break;
            };
            let is_enough = span.symbols() >= coding::WINDOW_SYMBOLS;
            if is_enough || block.unsent() > 0 || !span.extend(0, block.n, block.symbol_len, room) {
                break;
            }
            slots.push(block.slot);
        }
        slots.reverse();
        let row = Row::new(self.next_row % (Row::MAX.number() + 1))?;
        let choice = newest.choice(sequence, SymbolId::Repair(CodeId::Window, row));
        self.next_row = self.next_row.wrapping_add(1);
        blocks.get_mut(sequence)?.add_windowed();
        self.due = (count > 1).then_some((sequence, count - 1));
        Some(WindowChoice {
            choice,
            span,
            slots,
            row,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PathId;
    use crate::blocks::NewBlock;
    use crate::blocks::store::Demands;
    use crate::types::Urgency;

    /// Where more than one is needed behind each source symbol, the rest was sent when the losses were over.
    #[test]
    fn as_many_repairs_leave_as_losses_take_and_none_afterwards() {
        const SYMBOLS: u16 = 64;
        let mut store = BlockStore::default();
        let new = NewBlock {
            streams: Box::default(),
            slot: Slot(0),
            n: SYMBOLS,
            symbol_len: 100,
            tail: false,
            urgency: Urgency::default(),
            lifetime: None,
        };
        let sequence = store.push(new, Demands::default());
        let mut window = SlidingWindow::default();
        let mut repairs = 0;
        for index in 0..SYMBOLS {
            store.take_source(PathId::FIRST);
            window.owe(sequence, index == 0, 0.6);
            while window.is_due() {
                repairs += u32::from(window.take_due(&mut store, 1200).is_some());
            }
        }
        let rate = coding::window_rate(0.6);
        let wanted = rate * f64::from(SYMBOLS);
        assert!(rate > 1.0 && (f64::from(repairs) - wanted).abs() <= 1.0);
        for index in 0..SYMBOLS {
            window.owe(sequence, index == 0, 0.0);
            assert!(!window.is_due());
        }
    }
}
