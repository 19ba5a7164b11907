//! The memory that the core's slots name: blocks being sent and blocks being received.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sphinx_fec::{
    BlockDecoder, CodeId, Encoder, Error, Repair, Row, RowMaker, bits, fft_rs, generation, rlc,
};
use sphinx_proto::wire::SymbolId;
use sphinx_proto::{Placement, Slot, block_cost};

use crate::datagrams::Sent;
use crate::executor::WorkerId;
use crate::pool::{BufferPool, PoolBuffer};

/// At most so many repairs of a block are computed together, which bounds their memory.
const TOGETHER_MOST: u32 = 32;

/// A block being sent.
pub(crate) struct TxBlock {
    pub(crate) symbols: Arc<TxSymbols>,
    pub(crate) data_len: u64,
    /// The datagrams that it holds, if it is a block of datagrams.
    pub(crate) datagrams: Vec<Sent>,
    /// The worker that has sealed a symbol of it, and gets the next ones too.
    pub(crate) owner: Option<WorkerId>,
}

impl TxBlock {
    pub(crate) fn new(
        memory: PoolBuffer,
        (n, symbol_len): (u16, u16),
        data_len: u64,
        datagrams: Vec<Sent>,
    ) -> Self {
        let symbols = TxSymbols::new(memory, (n, symbol_len), None);
        Self {
            symbols: Arc::new(symbols),
            data_len,
            datagrams,
            owner: None,
        }
    }

    /// A generation: a block whose repairs are rows of generations.
    pub(crate) fn generation(memory: PoolBuffer, shape: (u16, u16), data_len: u64) -> Self {
        let symbols = TxSymbols::new(memory, shape, Some(AtomicU64::new(0)));
        Self {
            symbols: Arc::new(symbols),
            data_len,
            datagrams: Vec::new(),
            owner: None,
        }
    }
}

/// A block's source symbols. They do not change: any thread may read them.
pub(crate) struct TxSymbols {
    pub(crate) memory: PoolBuffer,
    pub(crate) n: usize,
    pub(crate) symbol_len: usize,
    /// Repairs that were computed together when one of them was wanted.
    made: Mutex<Option<Made>>,
    /// Of a generation: how many bytes were multiplied and added for its rows.
    operations: Option<AtomicU64>,
}

impl TxSymbols {
    fn new(memory: PoolBuffer, (n, symbol_len): (u16, u16), operations: Option<AtomicU64>) -> Self {
        Self {
            memory,
            n: usize::from(n),
            symbol_len: usize::from(symbol_len),
            made: Mutex::default(),
            operations,
        }
    }

    fn operations(&self) -> u64 {
        let operations = self.operations.as_ref();
        operations.map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// A source symbol.
    pub(crate) fn source(&self, index: u16) -> &[u8] {
        let at = usize::from(index) * self.symbol_len;
        &self.memory[at..][..self.symbol_len]
    }

    /// So many source symbols, from this one on; `None` if there are fewer.
    pub(crate) fn sources(&self, index: u16, count: usize) -> Option<&[u8]> {
        let at = usize::from(index) * self.symbol_len;
        self.memory.get(at..at + count * self.symbol_len)
    }

    /// Computes a row into `out` if this is a generation. Returns whether it is.
    pub(crate) fn encode_row(
        &self,
        row: Row,
        rows: &mut RowMaker,
        out: &mut [u8],
    ) -> Result<bool, Error> {
        let (n, len) = (self.n, self.symbol_len);
        let Some(operations) = &self.operations else {
            return Ok(false);
        };
        let symbols = generation::encode(rows, row, len, &self.memory[..n * len], out)?;
        operations.fetch_add(symbols * len as u64, Ordering::Relaxed);
        Ok(true)
    }

    /// Computes a repair symbol into `out`. `more` are to follow, and are computed with it where
    /// that costs little. Returns how many bytes were copied: a symbol's, if it was computed with
    /// others.
    pub(crate) fn encode(
        &self,
        wanted: (CodeId, Row),
        more: u32,
        encoder: &mut Encoder,
        pool: &BufferPool,
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let (n, len) = (self.n, self.symbol_len);
        let source = &self.memory[..n * len];
        let made = self.made.lock();
        // A panic leaves no half-made value behind: it is assigned as a whole.
        let mut made = made.unwrap_or_else(PoisonError::into_inner);
        let known = made.as_ref().and_then(|made| made.at(wanted));
        let index = match known {
            Some(index) => index,
            None => {
                let rows = made_together(wanted, more);
                let Some(index) = rows.iter().position(|row| *row == wanted) else {
                    let (code, row) = wanted;
                    encoder.encode(code, n, len, source, row, out)?;
                    return Ok(0);
                };
                let (first, count) = (rows[0], rows.len());
                let mut symbols = pool.take(count * len);
                encoder.encode_rows(n, len, source, &rows, &mut symbols[..count * len])?;
                *made = Some(Made {
                    first,
                    count,
                    symbols,
                });
                index
            }
        };
        if let Some(made) = &*made {
            out.copy_from_slice(&made.symbols[index * len..][..len]);
        }
        Ok(len)
    }
}

/// Repairs of a block that were computed together; their bytes lie one behind the other.
struct Made {
    /// Code and row of the first repair; the rows of the others follow it.
    first: (CodeId, Row),
    count: usize,
    symbols: PoolBuffer,
}

impl Made {
    /// Position of a row among these repairs, if it is one of them.
    fn at(&self, (code, row): (CodeId, Row)) -> Option<usize> {
        let (made, first) = self.first;
        let index = row.number().checked_sub(first.number())? as usize;
        (code == made && index < self.count).then_some(index)
    }
}

/// The rows that are best computed together with this one, itself among them; none if it is best
/// computed alone. Loading a block takes longer than multiplying it, so several rows of it (`rlc`)
/// cost hardly more than one, and one row of a transform (`fft-rs`) as much as all.
fn made_together((code, row): (CodeId, Row), more: u32) -> Vec<(CodeId, Row)> {
    match code {
        CodeId::FftRs => {
            let size = fft_rs::split(row).map_or(0, |(size, _)| size);
            fft_rs::first_flight(1 << size).collect()
        }
        CodeId::Rlc if more > 0 => {
            let (spread, first) = rlc::split(row);
            let count = more.saturating_add(1).min(TOGETHER_MOST);
            let rows = first..(first + count).min(rlc::INDEX_COUNT);
            rows.map(|index| (code, rlc::row(spread, index))).collect()
        }
        _ => Vec::new(),
    }
}

/// Blocks being sent.
#[derive(Default)]
pub(crate) struct TxBlocks {
    blocks: Vec<Option<TxBlock>>,
    free: Vec<Slot>,
    /// How many of them are generations; and bytes multiplied and added for rows of generations
    /// that are gone.
    generations: usize,
    operations: u64,
}

impl TxBlocks {
    pub(crate) fn insert(&mut self, block: TxBlock) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            Slot(self.blocks.len() as u32 - 1)
        });
        self.generations += usize::from(block.symbols.operations.is_some());
        self.blocks[slot.0 as usize] = Some(block);
        slot
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&TxBlock> {
        self.blocks.get(slot.0 as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut TxBlock> {
        self.blocks.get_mut(slot.0 as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<TxBlock> {
        let block = self.blocks.get_mut(slot.0 as usize)?.take()?;
        self.free.push(slot);
        self.generations -= usize::from(block.symbols.operations.is_some());
        self.operations += block.symbols.operations();
        Some(block)
    }

    /// Bytes that were multiplied and added for rows of generations.
    pub(crate) fn operations(&self) -> u64 {
        if self.generations == 0 {
            return self.operations;
        }
        let blocks = self.blocks.iter().flatten();
        self.operations + blocks.map(|block| block.symbols.operations()).sum::<u64>()
    }

    /// What the blocks cost in the window.
    pub(crate) fn cost(&self) -> u64 {
        let blocks = self.blocks.iter().flatten();
        blocks
            .map(|TxBlock { symbols, .. }| block_cost(symbols.n as u16, symbols.symbol_len as u16))
            .sum()
    }
}

/// A block being received.
pub(crate) struct RxBlock {
    memory: PoolBuffer,
    n: usize,
    symbol_len: usize,
    /// Which source symbols have arrived or were restored, as a bit map.
    have: Vec<u64>,
    /// Repair symbols that arrived, and their bytes one after another: a hostile peer's tiny symbols
    /// must not take much more memory than the window counts.
    repairs: Vec<(CodeId, Row)>,
    repair_bytes: Vec<u8>,
}

impl RxBlock {
    /// Bytes of its source symbols and repairs.
    pub(crate) fn bytes(&self) -> usize {
        self.n * self.symbol_len + self.repair_bytes.len()
    }

    /// Restores the missing source symbols.
    pub(crate) fn decode(&mut self, decoder: &mut BlockDecoder) -> Result<(), Error> {
        let symbols = self.repair_bytes.chunks_exact(self.symbol_len);
        let repairs: Vec<Repair<'_>> = std::iter::zip(&self.repairs, symbols)
            .map(|(&(code, row), symbol)| Repair { code, row, symbol })
            .collect();
        decoder.decode(
            self.n,
            self.symbol_len,
            &mut self.memory,
            &self.have,
            &repairs,
        )?;
        self.have.fill(u64::MAX);
        self.repairs = Vec::new();
        self.repair_bytes = Vec::new();
        Ok(())
    }
}

/// Blocks being received.
#[derive(Default)]
pub(crate) struct RxBlocks {
    blocks: Vec<Option<RxBlock>>,
    /// What the block in each slot costs in the window; 0 for those that are free.
    costs: Vec<u64>,
    /// Sum of the costs of these blocks, and of data that was taken out of blocks and not read yet.
    cost: u64,
}

impl RxBlocks {
    /// Stores a symbol where the core wants it. Returns how many bytes were copied.
    pub(crate) fn store(
        &mut self,
        placement: Placement,
        symbol: &[u8],
        pool: &BufferPool,
    ) -> usize {
        match placement {
            // Generations are stored elsewhere.
            Placement::Discard | Placement::Generation { .. } => 0,
            Placement::Block {
                slot,
                n,
                symbol_len,
                symbol: id,
            } => {
                let block = self.block(slot, n, symbol_len, pool);
                match id {
                    SymbolId::Source(index) => {
                        debug_assert!(!bits::contains(&block.have, usize::from(index)), "twice");
                        let at = usize::from(index) * block.symbol_len;
                        block.memory[at..][..symbol.len()].copy_from_slice(symbol);
                        bits::insert(&mut block.have, usize::from(index));
                    }
                    SymbolId::Repair(code, row) => {
                        // In the paper's mode four times as many as a block has symbols, otherwise fewer than it has.
                        debug_assert!(
                            block.repairs.len() < 4 * block.n.max(8),
                            "more than are kept"
                        );
                        block.repairs.push((code, row));
                        block.repair_bytes.extend_from_slice(symbol);
                    }
                }
                symbol.len()
            }
        }
    }

    /// The memory for source symbols from this one on, up to the first that is here already, in a
    /// block that has memory.
    #[inline]
    pub(crate) fn vacancies(
        &mut self,
        slot: Slot,
        index: u16,
    ) -> impl Iterator<Item = &mut [u8]> + '_ {
        let block = self.blocks.get_mut(slot.0 as usize);
        let block = block.and_then(Option::as_mut);
        let places = block.into_iter().flat_map(move |block| {
            let (from, len) = (usize::from(index), block.symbol_len);
            let memory = block.memory.get_mut(from * len..block.n * len);
            let memory = memory.unwrap_or_default().chunks_exact_mut(len);
            std::iter::zip(from.., memory)
                .take_while(|(index, _)| !bits::contains(&block.have, *index))
        });
        places.map(|(_, place)| place)
    }

    /// So many source symbols, from this one on, have been written into their places.
    #[inline]
    pub(crate) fn occupy(&mut self, slot: Slot, index: u16, count: u16) {
        match self.blocks.get_mut(slot.0 as usize) {
            Some(Some(block)) => {
                for index in index..index + count {
                    bits::insert(&mut block.have, usize::from(index));
                }
            }
            _ => debug_assert!(false, "a place in a block that is not there"),
        }
    }

    /// Makes memory for a block of which nothing has arrived yet.
    pub(crate) fn reserve(&mut self, slot: Slot, n: u16, symbol_len: u16, pool: &BufferPool) {
        self.block(slot, n, symbol_len, pool);
    }

    /// A block's symbols, and the bytes of each.
    pub(crate) fn view(&self, slot: Slot) -> Option<(&[u8], usize)> {
        let block = self.blocks.get(slot.0 as usize)?.as_ref()?;
        let symbols = &block.memory[..block.n * block.symbol_len];
        Some((symbols, block.symbol_len))
    }

    /// The same, if all source symbols of the block are here.
    pub(crate) fn whole(&self, slot: Slot) -> Option<(&[u8], usize)> {
        let block = self.blocks.get(slot.0 as usize)?.as_ref()?;
        let is_whole = bits::absent(&block.have, block.n).next().is_none();
        self.view(slot).filter(|_| is_whole)
    }

    /// A source symbol, if it is here.
    pub(crate) fn symbol(&self, slot: Slot, index: u16) -> Option<&[u8]> {
        let block = self.blocks.get(slot.0 as usize)?.as_ref()?;
        let (index, len) = (usize::from(index), block.symbol_len);
        bits::contains(&block.have, index).then(|| &block.memory[index * len..][..len])
    }

    /// Stores a symbol that a sliding window has restored; padding at its end is cut off. Returns
    /// whether there is such a place.
    pub(crate) fn restore(&mut self, slot: Slot, index: u16, symbol: &[u8]) -> bool {
        let Some(Some(block)) = self.blocks.get_mut(slot.0 as usize) else {
            return false;
        };
        let (index, len) = (usize::from(index), block.symbol_len);
        let is_symbol = index < block.n && symbol.len() >= len;
        if is_symbol {
            block.memory[index * len..][..len].copy_from_slice(&symbol[..len]);
            bits::insert(&mut block.have, index);
        }
        is_symbol
    }

    fn block(&mut self, slot: Slot, n: u16, symbol_len: u16, pool: &BufferPool) -> &mut RxBlock {
        let at = slot.0 as usize;
        if self.blocks.len() <= at {
            self.blocks.resize_with(at + 1, || None);
            self.costs.resize(at + 1, 0);
        }
        let cost = block_cost(n, symbol_len);
        let (n, symbol_len) = (usize::from(n), usize::from(symbol_len));
        let (costs, sum) = (&mut self.costs, &mut self.cost);
        let block = self.blocks[at].get_or_insert_with(|| {
            debug_assert_eq!(costs[at], 0, "a slot whose block is being decoded");
            costs[at] = cost;
            *sum += cost;
            RxBlock {
                memory: pool.take(n * symbol_len),
                n,
                symbol_len,
                have: vec![0; bits::words(n)],
                repairs: Vec::new(),
                repair_bytes: Vec::new(),
            }
        });
        debug_assert_eq!((block.n, block.symbol_len), (n, symbol_len));
        block
    }

    /// Takes a block away to be decoded; until it is put back its slot holds nothing.
    pub(crate) fn take(&mut self, slot: Slot) -> Option<RxBlock> {
        self.blocks.get_mut(slot.0 as usize)?.take()
    }

    /// A block comes back from being decoded.
    pub(crate) fn put_back(&mut self, slot: Slot, block: RxBlock) {
        let before = self.blocks[slot.0 as usize].replace(block);
        debug_assert!(before.is_none(), "a slot that holds two blocks");
    }

    /// Adds the cost of a stored symbol of a generation.
    pub(crate) fn charge(&mut self, cost: u64) {
        self.cost += cost;
    }

    /// Data of this cost has been read by the application.
    pub(crate) fn release(&mut self, cost: u64) {
        self.cost -= cost;
    }

    /// Cost in the window of all that has arrived and was not read.
    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }

    /// Takes a complete block out. Returns its memory, n × symbol size bytes, and the cost to
    /// [`release`](Self::release) when it has been read.
    pub(crate) fn remove(&mut self, slot: Slot) -> Option<(PoolBuffer, u64)> {
        let memory = self.take(slot)?.memory;
        let cost = self
            .costs
            .get_mut(slot.0 as usize)
            .map_or(0, std::mem::take);
        Some((memory, cost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_sent_blocks_are_used_again() {
        let pool = BufferPool::new(0);
        let block = || TxBlock::new(pool.take(4), (2, 2), 1, Vec::new());
        let mut blocks = TxBlocks::default();
        let (one, two) = (blocks.insert(block()), blocks.insert(block()));
        assert_ne!(one, two);
        assert!(blocks.get_mut(one).is_some());
        assert!(blocks.remove(one).is_some());
        assert!(blocks.get_mut(one).is_none() && blocks.remove(one).is_none());
        assert_eq!(blocks.insert(block()), one);
        assert!(blocks.get_mut(Slot(9)).is_none());
    }

    /// What a row's number says is what it holds, whichever transform was wanted before.
    #[test]
    fn a_row_of_another_transform_is_made_anew() {
        let (n, symbol_len) = (5_usize, 4_usize);
        let pool = BufferPool::new(0);
        let mut memory = pool.take(n * symbol_len);
        memory.copy_from_slice(&(1..=20).collect::<Vec<u8>>());
        let mut encoder = Encoder::new();
        let block = TxBlock::new(memory, (5, 4), 1, Vec::new()).symbols;
        for (size, index) in [(3, 0), (1, 1), (3, 7), (1, 0)] {
            let row = fft_rs::row(size, index).expect("a row");
            let (mut got, mut expected) = ([0; 4], [0; 4]);
            let code = CodeId::FftRs;
            block
                .encode((code, row), 0, &mut encoder, &pool, &mut got)
                .expect("a row that exists");
            encoder
                .encode(code, n, symbol_len, &block.memory, row, &mut expected)
                .expect("a row that exists");
            assert_eq!(got, expected, "{size} {index}");
        }
    }

    /// Whatever was announced, and whatever comes then.
    #[test]
    fn repairs_that_are_made_together_are_those_that_are_made_alone() {
        let (n, symbol_len) = (40_usize, 4_usize);
        let pool = BufferPool::new(0);
        let mut memory = pool.take(n * symbol_len);
        memory.copy_from_slice(&(0..160).collect::<Vec<u8>>());
        let mut encoder = Encoder::new();
        let block = TxBlock::new(memory, (40, 4), 1, Vec::new()).symbols;
        let rows = [
            (1, 0, 2),
            (1, 1, 1),
            (1, 2, 0),
            (1, 3, 0),
            (3, 4, 100),
            (3, 35, 69),
            (1, 36, 3),
            (3, 36, 68),
            (1, rlc::INDEX_COUNT - 1, 9),
        ];
        for (spread, index, more) in rows {
            let row = rlc::row(spread, index);
            let (mut got, mut expected) = ([0; 4], [0; 4]);
            block
                .encode((CodeId::Rlc, row), more, &mut encoder, &pool, &mut got)
                .expect("a row that exists");
            encoder
                .encode(
                    CodeId::Rlc,
                    n,
                    symbol_len,
                    &block.memory,
                    row,
                    &mut expected,
                )
                .expect("a row that exists");
            assert_eq!(got, expected, "{spread} {index}");
        }
    }

    fn vacancy(blocks: &mut RxBlocks, index: u16) -> Option<&mut [u8]> {
        blocks.vacancies(Slot(0), index).next()
    }

    /// What has not been opened may be written only where nobody looks: neither into a block that is not there, nor over a symbol.
    #[test]
    fn only_places_without_a_symbol_are_given_out() {
        let pool = BufferPool::new(0);
        let mut blocks = RxBlocks::default();
        assert!(vacancy(&mut blocks, 0).is_none());
        assert_eq!(pool.stats().used_bytes, 0);
        let (slot, n, symbol_len) = (Slot(0), 2, 4);
        let symbol = SymbolId::Source(1);
        let placement = Placement::Block {
            slot,
            n,
            symbol_len,
            symbol,
        };
        assert_eq!(blocks.store(placement, &[7; 4], &pool), 4);
        assert!(vacancy(&mut blocks, 1).is_none() && vacancy(&mut blocks, 2).is_none());
        vacancy(&mut blocks, 0).expect("a place").fill(0xee);
        assert!(blocks.symbol(slot, 0).is_none() && blocks.whole(slot).is_none());
        assert_eq!(blocks.vacancies(slot, 0).count(), 1);
        vacancy(&mut blocks, 0).expect("still").fill(5);
        blocks.occupy(slot, 0, 1);
        assert!(vacancy(&mut blocks, 0).is_none());
        let (whole, _) = blocks.whole(slot).expect("both are there");
        assert_eq!(whole, [5, 5, 5, 5, 7, 7, 7, 7]);
        let block = blocks.take(slot).expect("there");
        assert!(vacancy(&mut blocks, 0).is_none(), "it is being decoded");
        blocks.put_back(slot, block);
    }

    #[test]
    fn repair_symbols_restore_a_block() {
        let (n, symbol_len, slot) = (5_u16, 3_u16, Slot(2));
        let source: Vec<u8> = (1..=15).collect();
        let pool = BufferPool::new(0);
        let mut blocks = RxBlocks::default();
        for index in [0, 3, 4] {
            let placement = Placement::Block {
                slot,
                n,
                symbol_len,
                symbol: SymbolId::Source(index),
            };
            blocks.store(placement, &source[usize::from(index) * 3..][..3], &pool);
        }
        for row in [4, 9] {
            let (code, row) = (CodeId::Rlc, Row::new(row).expect("small"));
            let mut symbol = [0; 3];
            Encoder::new()
                .encode(code, 5, 3, &source, row, &mut symbol)
                .expect("a block");
            blocks.store(
                Placement::Block {
                    slot,
                    n,
                    symbol_len,
                    symbol: SymbolId::Repair(code, row),
                },
                &symbol,
                &pool,
            );
        }
        let mut block = blocks.take(slot).expect("stored");
        assert!(blocks.view(slot).is_none());
        block.decode(&mut BlockDecoder::new()).expect("enough rows");
        blocks.put_back(slot, block);
        let (memory, cost) = blocks.remove(slot).expect("stored");
        assert_eq!(memory[..], source);
        assert_eq!(cost, block_cost(n, symbol_len));
        assert!(blocks.remove(slot).is_none());
        assert_eq!(blocks.cost(), cost);
        blocks.release(cost);
        assert_eq!(blocks.cost(), 0);
    }
}
