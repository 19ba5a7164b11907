//! Which symbol goes next, and what the receiver's feedback brings about.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sphinx_fec::{CodeId, RowMaker, bits, fft_rs, lt, rs, srlt};

use super::selector::Selector;
use super::settings::{Paper, Resend, share};
use super::window::Window;
use crate::types::Slot;
use crate::wire::{BlockSack, LossReport, NamedBlock, SymbolId, SymbolSack};
use crate::{BlockId, Nanos, Time};

/// Seeds between the first ones of two blocks. With the same packets behind every block, as many blocks would fail as these
/// packets leave, and not as many as random ones do: between 34 and 58 % where T is a half (`docs/paper.md`).
const SEEDS_APART: u64 = 97;
/// Seeds that are tried for a packet over missing symbols.
const TRIES: u32 = 1 << 12;

/// A symbol that leaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice {
    pub(crate) block: BlockId,
    pub(crate) slot: Slot,
    pub(crate) n: u16,
    pub(crate) symbol_len: u16,
    pub(crate) symbol: SymbolId,
    /// Whether the symbol answers feedback or a timer.
    pub(crate) reactive: bool,
}

/// A block on its way.
#[derive(Debug)]
struct Block {
    slot: Slot,
    n: u16,
    symbol_len: u16,
    /// What the receiver is known to have, as a bit map.
    recovered: Vec<u64>,
    next_original: u16,
    /// Of the packets behind the originals: degree, and how many are left; none before the first is due.
    ahead: Option<(u32, u32)>,
    next_row: u32,
    /// What a compensation has left to send.
    again: VecDeque<SymbolId>,
    /// When its first packet left, until a Symbol-SACK names the block.
    unanswered_since: Option<Time>,
    /// When its original packets left first, as far as they have.
    originals_sent: Vec<Time>,
    /// When a packet of it left last.
    last_sent: Time,
    compensated: Option<Time>,
}

impl Block {
    fn first_flight_is_over(&self) -> bool {
        self.next_original >= self.n && self.ahead.is_some_and(|(_, left)| left == 0)
    }

    fn is_sent(&self) -> bool {
        self.first_flight_is_over() && self.again.is_empty()
    }

    /// Takes in what a Symbol-SACK says of this block; since when what it answers had been on its way: the last of the original packets that
    /// nobody knew to be recovered, counted from when it left first (after a loss that is too long, and has the next one wait), or the first packet of all.
    fn learn(&mut self, named: &NamedBlock) -> Option<Time> {
        let first = self.unanswered_since.take();
        let mut sent = None;
        for index in (0..self.n.min(named.n)).filter(|index| named.has(*index)) {
            let index = usize::from(index);
            if !bits::contains(&self.recovered, index) {
                bits::insert(&mut self.recovered, index);
                sent = self.originals_sent.get(index).copied();
            }
        }
        sent.or(first)
    }

    fn missing(&self) -> Vec<u16> {
        let missing = bits::absent(&self.recovered, usize::from(self.n));
        missing.map(|index| index as u16).collect()
    }
}

/// The sending end.
pub(crate) struct PaperSender {
    settings: Paper,
    selector: Selector,
    window: Window,
    blocks: BTreeMap<BlockId, Block>,
    /// Blocks whose first flight is not over, in turn, and those that are compensated.
    fresh: VecDeque<BlockId>,
    again: BTreeSet<BlockId>,
    /// Blocks of which everything has been sent, by the time of their last packet.
    waiting: BTreeSet<(Time, BlockId)>,
    /// How long a packet was without an answer, lately. What measures the path's round trip are few packets, which a
    /// full queue drops: it may be far above what they have seen.
    answered_within: Nanos,
    rows: RowMaker,
}

impl PaperSender {
    /// `adapts`: the window grows and shrinks.
    pub(crate) fn new(settings: Paper, adapts: bool) -> Self {
        Self {
            settings,
            selector: Selector::new(settings),
            window: Window::new(settings.window, adapts),
            blocks: BTreeMap::new(),
            fresh: VecDeque::new(),
            again: BTreeSet::new(),
            waiting: BTreeSet::new(),
            answered_within: 0,
            rows: RowMaker::new(),
        }
    }

    /// Whether the window allows another block.
    pub(crate) fn has_room(&self) -> bool {
        self.blocks.len() < self.window.blocks() as usize
    }

    /// The window, in blocks.
    pub(crate) fn window(&self) -> u32 {
        self.window.blocks()
    }

    /// Loss rate p at present, 0–1.
    pub(crate) fn plr(&self) -> f64 {
        self.selector.plr()
    }

    /// Takes a block.
    pub(crate) fn push(&mut self, id: BlockId, slot: Slot, (n, symbol_len): (u16, u16)) {
        let is_rateless = self.settings.code == CodeId::Lt;
        let block = Block {
            slot,
            n,
            symbol_len,
            recovered: vec![0; bits::words(usize::from(n))],
            next_original: if is_rateless { n } else { 0 },
            ahead: None,
            next_row: match self.settings.code {
                CodeId::Srlt | CodeId::Lt => first_seed(id),
                _ => 0,
            },
            again: VecDeque::new(),
            unanswered_since: None,
            originals_sent: Vec::new(),
            last_sent: Time::ZERO,
            compensated: None,
        };
        self.blocks.insert(id, block);
        self.fresh.push_back(id);
    }

    /// The block is decoded or given up.
    pub(crate) fn forget(&mut self, id: BlockId) {
        if let Some(block) = self.blocks.remove(&id) {
            self.waiting.remove(&(block.last_sent, id));
            self.again.remove(&id);
        }
    }

    // ---- what to send -----------------------------------------------------------------------------

    /// Whether there is a symbol to send.
    pub(crate) fn has_symbol(&mut self) -> bool {
        while let Some(id) = self.fresh.front() {
            match self.blocks.get(id) {
                Some(block) if !block.first_flight_is_over() => return true,
                _ => self.fresh.pop_front(),
            };
        }
        !self.again.is_empty()
    }

    /// The next symbol, which leaves now: what is compensated first, then the blocks in turn, each with its originals and
    /// then its ProFEC packets.
    pub(crate) fn next(&mut self, now: Time) -> Option<Choice> {
        if let Some(id) = self.again.first().copied() {
            let block = self.blocks.get_mut(&id)?;
            let symbol = block.again.pop_front()?;
            if block.again.is_empty() {
                self.again.remove(&id);
            }
            return self.leaves(now, id, symbol, true);
        }
        while self.has_symbol() {
            let id = *self.fresh.front()?;
            if let Some(symbol) = self.next_fresh(id) {
                return self.leaves(now, id, symbol, false);
            }
            if let Some(block) = self.blocks.get(&id).filter(|block| block.is_sent()) {
                self.waiting.insert((block.last_sent, id));
            }
        }
        None
    }

    fn next_fresh(&mut self, id: BlockId) -> Option<SymbolId> {
        let block = self.blocks.get_mut(&id)?;
        let symbol = if block.next_original < block.n {
            block.next_original += 1;
            SymbolId::Source(block.next_original - 1)
        } else {
            let (degree, left) = *block
                .ahead
                .get_or_insert_with(|| ahead(&self.settings, &self.selector, block.n));
            block.ahead = Some((degree, left.checked_sub(1)?));
            match next_row(&self.settings, &self.selector, block, degree) {
                Some(symbol) => symbol,
                None => {
                    // The code has no more rows for this block.
                    block.ahead = Some((degree, 0));
                    return None;
                }
            }
        };
        if block.next_original >= block.n && block.ahead.is_none() {
            // Nobody waits for what there is none of.
            let ahead = ahead(&self.settings, &self.selector, block.n);
            block.ahead = Some(ahead);
        }
        Some(symbol)
    }

    fn leaves(
        &mut self,
        now: Time,
        id: BlockId,
        symbol: SymbolId,
        reactive: bool,
    ) -> Option<Choice> {
        let block = self.blocks.get_mut(&id)?;
        self.waiting.remove(&(block.last_sent, id));
        if block.last_sent == Time::ZERO {
            block.unanswered_since = Some(now);
        }
        block.last_sent = now;
        if !reactive && matches!(symbol, SymbolId::Source(_)) {
            block.originals_sent.push(now);
        }
        if block.is_sent() {
            self.waiting.insert((now, id));
        }
        Some(Choice {
            block: id,
            slot: block.slot,
            n: block.n,
            symbol_len: block.symbol_len,
            symbol,
            reactive,
        })
    }

    // ---- what the receiver says -------------------------------------------------------------------

    /// A Symbol-SACK: blocks that it shows to be decoded go to `decoded`.
    pub(crate) fn on_symbols(
        &mut self,
        (now, rtt): (Time, Nanos),
        sack: &SymbolSack,
        decoded: &mut Vec<BlockId>,
    ) {
        let mut named = sack.unrecovered.iter().map(|named| named.block).peekable();
        for (id, _) in self.blocks.range(..sack.upto) {
            while named.next_if(|block| block < id).is_some() {}
            if named.peek() != Some(id) {
                decoded.push(*id);
            }
        }
        for named in sack.unrecovered.iter().chain([&sack.latest]) {
            if let Some(block) = self.blocks.get_mut(&named.block) {
                if let Some(since) = block.learn(named) {
                    self.answered_within = now - since;
                }
                if block.missing().is_empty() {
                    decoded.push(named.block);
                }
            }
        }
        for id in decoded.iter() {
            self.forget(*id);
        }
        let rtt = rtt.max(self.answered_within);
        self.window.on_feedback(now, rtt, sack.counts, None);
        let settings = self.settings;
        let reported = sack.unrecovered.len() + 1;
        let applies = reported > usize::from(settings.blocks)
            && sack.latest.count() > u32::from(settings.symbols);
        if settings.icm.symbol && applies {
            for named in &sack.unrecovered {
                self.compensate_at_once((now, rtt), named.block);
            }
        }
    }

    /// A Block-SACK, likewise.
    pub(crate) fn on_blocks(
        &mut self,
        (now, rtt): (Time, Nanos),
        sack: &BlockSack,
        decoded: &mut Vec<BlockId>,
    ) {
        let rtt = rtt.max(self.answered_within);
        let selector = &mut self.selector;
        let is_new = |loss: &LossReport| selector.on_report(*loss);
        let lossy = sack.loss.filter(is_new).map(|loss| loss.lost > 0);
        self.window.on_feedback(now, rtt, sack.counts, lossy);
        decoded.extend(self.blocks.range(..sack.base).map(|(id, _)| *id));
        for (low, high) in &sack.decoded {
            decoded.extend(self.blocks.range(*low..=*high).map(|(id, _)| *id));
        }
        for id in decoded.iter() {
            self.forget(*id);
        }
        if let Some((_, highest)) = sack.decoded.last().filter(|_| self.settings.icm.block) {
            let earlier: Vec<_> = self.blocks.range(..*highest).map(|(id, _)| *id).collect();
            for id in earlier {
                self.compensate_at_once((now, rtt), id);
            }
        }
    }

    /// At most once per round trip and block, and not before all of it has been sent.
    fn compensate_at_once(&mut self, (now, rtt): (Time, Nanos), id: BlockId) {
        let is_due = |block: &Block| {
            block.is_sent() && block.compensated.is_none_or(|before| now >= before + rtt)
        };
        if self.blocks.get(&id).is_some_and(is_due) {
            self.compensate(now, id);
        }
    }

    fn compensate(&mut self, now: Time, id: BlockId) {
        let Some(block) = self.blocks.get_mut(&id) else {
            return;
        };
        block.compensated = Some(now);
        let mut again = VecDeque::new();
        let (settings, selector) = (&self.settings, &self.selector);
        let missing = match settings.resend {
            Resend::Missing => block.missing(),
            Resend::Block => (0..block.n).collect(),
        };
        let m = missing.len() as u16;
        let whole = settings.resend == Resend::Block;
        if settings.code != CodeId::Lt {
            let part = if whole { 1.0 } else { share(settings.part) };
            let part = (f64::from(m) * part - 1e-9).ceil() as usize;
            let originals = missing[..part].iter();
            again.extend(originals.map(|index| SymbolId::Source(*index)));
        }
        match settings.code {
            CodeId::Srlt if whole => {
                let (degree, count) = ahead(settings, selector, block.n);
                again
                    .extend((0..count).filter_map(|_| next_row(settings, selector, block, degree)));
            }
            CodeId::Srlt => {
                let refec = selector.redundant(m);
                for _ in 0..refec.count {
                    again.push_back(over_missing(&mut self.rows, block, &missing, refec.degree));
                }
            }
            CodeId::Lt => {
                let count = match whole {
                    true => selector.lt(block.n, block.n),
                    false => (f64::from(m) / (1.0 - selector.plr()).max(0.05)).ceil() as u32,
                };
                again.extend((0..count).filter_map(|_| next_row(settings, selector, block, 0)));
            }
            _ if whole => {
                let count = selector.fixed(block.n);
                again.extend((0..count).filter_map(|_| next_row(settings, selector, block, 0)));
            }
            _ => {}
        }
        block.again = again;
        if !block.again.is_empty() {
            self.waiting.remove(&(block.last_sent, id));
            self.again.insert(id);
        }
    }

    // ---- time -------------------------------------------------------------------------------------

    /// When a block has waited long enough.
    pub(crate) fn timeout(&self) -> Option<Time> {
        let (last_sent, _) = self.waiting.first()?;
        Some(*last_sent + self.settings.timer())
    }

    /// Blocks that have waited long enough are compensated.
    pub(crate) fn on_timeout(&mut self, now: Time) {
        while let Some((last_sent, id)) = self.waiting.first().copied() {
            if last_sent + self.settings.timer() > now {
                return;
            }
            self.compensate(now, id);
            if self.waiting.remove(&(last_sent, id)) {
                // There was nothing to send.
                return;
            }
        }
    }
}

/// Seed of the first packet of a block that is drawn at random.
fn first_seed(id: BlockId) -> u32 {
    (id.get().wrapping_mul(SEEDS_APART) % u64::from(srlt::SEED_COUNT)) as u32
}

/// Degree and number of the packets behind the originals of a block of n.
fn ahead(settings: &Paper, selector: &Selector, n: u16) -> (u32, u32) {
    match settings.code {
        CodeId::Srlt => {
            let profec = selector.redundant(n);
            (profec.degree, profec.count)
        }
        CodeId::Lt => (0, selector.lt(n, n)),
        _ => (0, selector.fixed(n)),
    }
}

/// The block's next packet of XORs or repair, if the code has one.
fn next_row(
    settings: &Paper,
    selector: &Selector,
    block: &mut Block,
    degree: u32,
) -> Option<SymbolId> {
    let (code, index) = (settings.code, block.next_row);
    let row = match code {
        CodeId::Srlt => srlt::row(degree, index % srlt::SEED_COUNT),
        CodeId::Lt => lt::Shape::default().row(index),
        CodeId::Rs => rs::row(usize::from(block.n), index as usize)?,
        _ => {
            let size = fft_rs::size_for(selector.fixed(block.n).max(1) as usize)?;
            fft_rs::row(size, index)?
        }
    };
    block.next_row += 1;
    Some(SymbolId::Repair(code, row))
}

/// A ReFEC packet: the next row of the block's with exactly `degree` of the missing symbols, and of degree ⌈degree · n / m⌉, at
/// most ⌊n/2⌋ and at least `degree`, over all of them. To who has the others it is the XOR of those missing, and its header is
/// that of every other packet.
fn over_missing(rows: &mut RowMaker, block: &mut Block, missing: &[u16], degree: u32) -> SymbolId {
    let n = usize::from(block.n);
    let wide = (degree as usize * n).div_ceil(missing.len().max(1));
    let wide = wide.min(n / 2).max(degree as usize).max(1) as u32;
    let mut index = block.next_row;
    let row = loop {
        let row = srlt::row(wide, index % srlt::SEED_COUNT);
        index += 1;
        let hits = rows.terms(CodeId::Srlt, n, row).map_or(0, |terms| {
            let is_missing = |index| missing.binary_search(index).is_ok();
            terms.iter().filter(|term| is_missing(&term.index)).count()
        });
        if hits == degree as usize || index - block.next_row == TRIES {
            break row;
        }
    };
    block.next_row = index;
    SymbolId::Repair(CodeId::Srlt, row)
}
