//! The sliding window at the receiving end: the payload of the rows that the core keeps, and of
//! complete blocks that later repairs may still cover.
//!
//! The core knows from coefficients alone which symbols are restored and when blocks are complete.
//! What it says is done here in the same order, though later while a block is being decoded. So the
//! same symbols are restored.

use std::collections::{BTreeMap, VecDeque};

use sphinx_fec::span::{Covered, SpanBlock, SpanDecoder, SpanLimits};
use sphinx_fec::{Added, Error, Row, RowMaker};
use sphinx_proto::wire::SymbolId;
use sphinx_proto::{
    AbandonedBlock, BlockId, CoveredBlock, Job, PastBlock, Placement, SYMBOL_STRIDE, Slot,
};

use crate::blocks::RxBlocks;
use crate::pool::BufferPool;
use crate::work::TaskId;

/// Bytes of the steps that may wait while a block is being decoded: what a fast path brings in some
/// milliseconds.
const WAITING_MAX: usize = 256 << 10;
/// Reported if core and driver no longer keep the same rows and blocks, which cannot happen: both
/// follow the same steps.
const OUT_OF_STEP: Error = Error::NotDecodable { deficit: 1 };

/// Something to be done here in the order in which the core has done it.
pub(crate) enum Step {
    /// A repair that the core keeps.
    Repair(WindowRepair),
    /// A source symbol is in the memory of the block with these low bits of an id.
    Stored { block: u32, index: u16 },
    /// A block has all it needs.
    Job(Job),
    /// A block will never be complete.
    Abandoned(AbandonedBlock),
}

/// A repair of some blocks, oldest first.
pub(crate) struct WindowRepair {
    pub(crate) row: Row,
    pub(crate) covered: Vec<CoveredBlock>,
    pub(crate) symbol: Vec<u8>,
}

impl Step {
    fn bytes(&self) -> usize {
        let beside = match self {
            Self::Repair(repair) => {
                let known = |block: &CoveredBlock| {
                    let incomplete = block.incomplete.as_ref();
                    incomplete.map_or(0, |block| size_of_val(&block.known[..]))
                };
                let known: usize = repair.covered.iter().map(known).sum();
                repair.symbol.len() + size_of_val(&repair.covered[..]) + known
            }
            Self::Stored { .. } | Self::Job(_) | Self::Abandoned(_) => 0,
        };
        size_of::<Self>() + beside
    }
}

/// The window of what a session receives.
#[derive(Default)]
pub(crate) struct Window {
    /// The rows; `None` until the first repair arrives.
    decoder: Option<SpanDecoder>,
    /// Covered blocks that are not complete, by the low bits of their ids.
    slots: BTreeMap<u32, (BlockId, Slot)>,
    /// Copies of complete blocks, the order in which they became complete, and their bytes.
    past: BTreeMap<BlockId, Past>,
    past_order: VecDeque<BlockId>,
    past_bytes: usize,
    /// Steps that wait, and their bytes.
    steps: VecDeque<Step>,
    waiting_bytes: usize,
    /// The task that everything else waits for.
    busy: Option<TaskId>,
}

struct Past {
    symbol_len: usize,
    bytes: Vec<u8>,
}

impl Window {
    // ---- the order of things ----------------------------------------------------------------------

    /// Something is to be done after everything before.
    pub(crate) fn push(&mut self, step: Step) {
        self.waiting_bytes += step.bytes();
        self.steps.push_back(step);
    }

    /// A symbol has been stored in the block under way with these low bits of an id.
    #[inline]
    pub(crate) fn stored(&mut self, block: u32, placement: &Placement) {
        let is_in_use = self.decoder.is_some() || !self.steps.is_empty();
        if let Placement::Block {
            symbol: SymbolId::Source(index),
            ..
        } = *placement
            && is_in_use
        {
            self.push(Step::Stored { block, index });
        }
    }

    /// Whether nothing waits to be done, or is being done.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.busy.is_none() && self.steps.is_empty()
    }

    /// What is to be done next, unless it has to wait for a job.
    pub(crate) fn next_step(&mut self) -> Option<Step> {
        if self.busy.is_some() {
            return None;
        }
        let step = self.steps.pop_front()?;
        self.waiting_bytes -= step.bytes();
        Some(step)
    }

    /// Everything waits for this task, which is done elsewhere.
    pub(crate) fn wait_for(&mut self, task: TaskId) {
        self.busy = Some(task);
    }

    /// The task that others wait for, if so many do that it must end now.
    pub(crate) fn overdue(&self) -> Option<TaskId> {
        self.busy.filter(|_| self.waiting_bytes > WAITING_MAX)
    }

    /// Bytes of blocks that are kept and of what waits.
    pub(crate) fn bytes(&self) -> usize {
        self.past_bytes + self.waiting_bytes
    }

    // ---- what is done -----------------------------------------------------------------------------

    /// Takes in a repair.
    pub(crate) fn add_repair(
        &mut self,
        repair: &WindowRepair,
        limits: SpanLimits,
        maker: &mut RowMaker,
        rx: &mut RxBlocks,
        pool: &BufferPool,
    ) -> Result<(), Error> {
        let WindowRepair {
            row,
            covered,
            symbol,
        } = repair;
        for block in covered {
            if let Some(incomplete) = &block.incomplete {
                let slot = incomplete.slot;
                rx.reserve(slot, block.n, block.symbol_len, pool);
                self.slots
                    .insert(block.block.truncated(), (block.block, slot));
            }
        }
        let blocks = covered.iter().map(|block| view_of(block, &self.past, rx));
        let blocks: Option<Vec<_>> = blocks.collect();
        let blocks = blocks.ok_or(OUT_OF_STEP)?;
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            none => none.insert(SpanDecoder::new(limits)?),
        };
        match decoder.add_repair(maker, *row, &blocks, symbol) {
            Added::Innovative => self.store_restored(rx),
            _ => Err(OUT_OF_STEP),
        }
    }

    /// A source symbol is in its block's memory.
    pub(crate) fn learn(&mut self, block: u32, index: u16, rx: &mut RxBlocks) -> Result<(), Error> {
        // Before a repair covers its block the symbol need not be noted: the repair will find it in
        // the block's memory.
        let (Some(decoder), Some((id, slot))) = (&mut self.decoder, self.slots.get(&block)) else {
            return Ok(());
        };
        let value = rx.symbol(*slot, index).ok_or(OUT_OF_STEP)?;
        decoder.learn(SYMBOL_STRIDE * id.get() + u64::from(index), value);
        self.store_restored(rx)
    }

    /// All source symbols of a block are in its memory. Returns how many bytes were copied.
    pub(crate) fn complete(
        &mut self,
        job: &Job,
        past: PastBlock,
        rx: &mut RxBlocks,
    ) -> Result<usize, Error> {
        self.busy = None;
        let id = past.block;
        let (memory, symbol_len) = rx.whole(job.slot).ok_or(OUT_OF_STEP)?;
        if let Some(decoder) = &mut self.decoder {
            let first = SYMBOL_STRIDE * id.get();
            let unknown: Vec<u64> = decoder.unknown(first, first + SYMBOL_STRIDE).collect();
            for number in unknown {
                let at = (number - first) as usize * symbol_len;
                let value = memory.get(at..at + symbol_len).ok_or(OUT_OF_STEP)?;
                decoder.learn(number, value);
            }
        }
        let copied = memory.len();
        self.past_bytes += copied;
        let copy = Past {
            symbol_len,
            bytes: memory.to_vec(),
        };
        self.past.insert(id, copy);
        self.past_order.push_back(id);
        let forget = past.forget.min(self.past_order.len());
        for oldest in self.past_order.drain(..forget) {
            let gone = self.past.remove(&oldest);
            self.past_bytes -= gone.map_or(0, |gone| gone.bytes.len());
        }
        // A symbol of the block may have restored another one of the same block, so its slot is
        // needed until here.
        self.store_restored(rx)?;
        self.slots.remove(&id.truncated());
        Ok(copied)
    }

    /// A block will never be complete.
    pub(crate) fn give_up(&mut self, block: BlockId) {
        if let Some(decoder) = &mut self.decoder {
            let first = SYMBOL_STRIDE * block.get();
            decoder.give_up(first, first + SYMBOL_STRIDE);
        }
        self.slots.remove(&block.truncated());
    }

    /// Writes what repairs have restored into the memory of its blocks.
    fn store_restored(&mut self, rx: &mut RxBlocks) -> Result<(), Error> {
        while let Some((number, value)) = self.decoder.as_mut().and_then(SpanDecoder::next_restored)
        {
            let (block, index) = (number / SYMBOL_STRIDE, (number % SYMBOL_STRIDE) as u16);
            let slot = self.slots.get(&(block as u32));
            if !slot.is_some_and(|(_, slot)| rx.restore(*slot, index, &value)) {
                return Err(OUT_OF_STEP);
            }
        }
        Ok(())
    }
}

/// A covered block's memory; `None` if it is not there.
fn view_of<'a>(
    block: &'a CoveredBlock,
    past: &'a BTreeMap<BlockId, Past>,
    rx: &'a RxBlocks,
) -> Option<Covered<'a>> {
    let (symbols, symbol_len, known) = match &block.incomplete {
        Some(incomplete) => {
            let (memory, symbol_len) = rx.view(incomplete.slot)?;
            (memory, symbol_len, Some(&incomplete.known[..]))
        }
        None => {
            let past = past.get(&block.block)?;
            (&past.bytes[..], past.symbol_len, None)
        }
    };
    (symbol_len == usize::from(block.symbol_len)).then_some(Covered {
        block: SpanBlock {
            symbols,
            symbol_len,
            count: usize::from(block.count),
        },
        first: SYMBOL_STRIDE * block.block.get(),
        known,
    })
}
