//! Repairs of a sliding window, which follow the source symbols at an even rate.

use sphinx_fec::{CodeId, Row};

use super::Sender;
use crate::block::SymbolChoice;
use crate::coding;
use crate::types::Slot;
use crate::wire::{SymbolId, WindowSpan};

/// A repair of a window to send.
pub(crate) struct WindowChoice {
    pub(crate) choice: SymbolChoice,
    pub(crate) span: WindowSpan,
    /// Oldest first.
    pub(crate) slots: Vec<Slot>,
    pub(crate) row: Row,
}

impl Sender {
    /// A source symbol of this block is about to be sent: perhaps a repair is due behind it.
    pub(super) fn owe_window(&mut self, sequence: u64, stream: u16, begins: bool) {
        let plr = self.monitor.plr();
        let Some(tx) = self.streams.get_mut(&stream) else {
            return;
        };
        if begins {
            tx.window_rate = coding::window_rate(plr);
        }
        tx.window_owed += tx.window_rate;
        if tx.window_owed >= 1.0 {
            tx.window_owed -= 1.0;
            self.window_due = Some(sequence);
        }
    }

    /// The repair that is due, if its body has at most `room` bytes. It counts as one of the newest block
    /// that it covers, which it helps if no other needs it more.
    pub(crate) fn next_window(&mut self, room: usize) -> Option<WindowChoice> {
        let sequence = self.window_due.take()?;
        let newest = self.block(sequence)?;
        let mut span = WindowSpan::new(newest.next_source, newest.n, newest.symbol_len)?;
        if span.body_len() > room {
            return None;
        }
        let tx = self.streams.get(&newest.stream)?;
        let mut slots = vec![newest.slot];
        for id in (tx.first_id..newest.id).rev() {
            let sequence = tx.sequences.get((id - tx.first_id) as usize);
            // What lies before a complete block has had its round trip.
            let Some(block) = sequence.and_then(|at| self.block(*at)) else {
                break;
            };
            let is_enough = span.symbols() >= coding::WINDOW_SYMBOLS;
            if is_enough || block.unsent() > 0 || !span.extend(block.n, block.symbol_len, room) {
                break;
            }
            slots.push(block.slot);
        }
        slots.reverse();
        let row = Row::new(self.window_row % (Row::MAX.number() + 1))?;
        let choice = newest.choice(sequence, SymbolId::Repair(CodeId::Window, row));
        self.window_row = self.window_row.wrapping_add(1);
        self.counters.repair_proactive += 1;
        self.counters.repair_proactive_bytes += u64::from(choice.symbol_len);
        if let Some(block) = self.block_mut(sequence) {
            block.windowed += 1;
        }
        Some(WindowChoice {
            choice,
            span,
            slots,
            row,
        })
    }
}
