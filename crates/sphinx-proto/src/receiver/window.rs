//! Repairs of a sliding window, which cover symbols of several blocks.
//!
//! Their arithmetic is the driver's, as is their rank: it says which symbols they have restored.

use sphinx_fec::{Added, CodeId};

use super::{Opened, Progress, Receiver};
use crate::Nanos;
use crate::types::CoveredBlock;
use crate::wire::{Header, WindowSpan};

impl Receiver {
    /// An authenticated repair of a window: the blocks it covers, oldest first; `None` if it is of no use.
    pub(crate) fn on_window(
        &mut self,
        header: &Header,
        span: &WindowSpan,
    ) -> Option<Vec<CoveredBlock>> {
        let newest = self.expand_block(header.stream, header.block);
        let blocks: Vec<_> = span.blocks().collect();
        let first = newest.checked_sub(blocks.len() as u64 - 1);
        let is_named = blocks.first().is_some_and(|(n, _)| *n == header.n);
        let (Some(first), true) = (first, is_named && header.code == CodeId::Window.to_wire())
        else {
            self.packets_refused += 1;
            return None;
        };
        let mut covered = Vec::with_capacity(blocks.len());
        for (block, (n, symbol_len)) in (first..=newest).zip(blocks.into_iter().rev()) {
            if !self.is_possible(header.stream, n, usize::from(symbol_len)) {
                self.packets_refused += 1;
                return None;
            }
            let slot = match self.open(header.stream, block, (n, symbol_len), None) {
                Opened::Open(slot) => Some(slot),
                Opened::Complete => None,
                Opened::Refused => {
                    self.packets_refused += 1;
                    return None;
                }
            };
            covered.push(CoveredBlock {
                block,
                slot,
                n,
                symbol_len,
                count: if block == newest { span.upto() } else { n },
            });
        }
        if covered.iter().all(|block| block.slot.is_none()) {
            self.already_complete(header.stream);
            return None;
        }
        Some(covered)
    }

    /// The driver has restored a source symbol.
    pub(crate) fn on_restored(
        &mut self,
        now: Nanos,
        stream: u16,
        block: u64,
        index: u16,
    ) -> Progress {
        let open = Self::block_mut(&mut self.streams, stream, block);
        match open.map(|open| open.tracker.add_source(usize::from(index))) {
            Some(Added::Innovative) => self.advance(now, stream, block),
            _ => Progress::None,
        }
    }
}
