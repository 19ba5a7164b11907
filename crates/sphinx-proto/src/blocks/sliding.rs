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
    /// Oldest first.
    pub(crate) slots: Vec<Slot>,
    pub(crate) row: Row,
}

/// The sliding window of a session.
#[derive(Debug, Default)]
pub(crate) struct SlidingWindow {
    /// Repairs for every source symbol.
    rate: f64,
    /// Owed, in fractions of one.
    owed: f64,
    /// The newest block of a window whose repair is due.
    due: Option<BlockId>,
    /// The next row of any.
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
            self.owed -= 1.0;
            self.due = Some(sequence);
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
        let sequence = self.due.take()?;
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
        Some(WindowChoice {
            choice,
            span,
            slots,
            row,
        })
    }
}
