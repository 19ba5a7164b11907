//! The two ends of the paper's mode once more, written from `docs/protocol.md` §13 alone: with numbers, lists and loops,
//! and nothing of the crate but the frames that a packet is written in.

use std::collections::{BTreeMap, BTreeSet};

use sphinx_proto::wire::{BlockSack, LossReport, NamedBlock, SymbolSack};
use sphinx_proto::{BlockId, Paper, Resend};

/// A packet: block, code (0: an original) and row.
pub(crate) type Packet = (u64, u8, u32);

const CODE_SRLT: u8 = 2;

fn share(millionths: u32) -> f64 {
    f64::from(millionths) / 1e6
}

// ---- the equations ----------------------------------------------------------------------------------

/// P(k): the probability that k draws out of n, with replacement, contain each of q, by a chain: after each draw, how many
/// of the q have been seen.
fn coverage(n: usize, q: usize, k: usize) -> f64 {
    let mut seen = vec![0.0; q + 1];
    seen[0] = 1.0;
    for _ in 0..k {
        for c in (0..=q).rev() {
            let stays = seen[c] * (1.0 - (q - c) as f64 / n as f64);
            let comes = match c {
                0 => 0.0,
                _ => seen[c - 1] * (q - c + 1) as f64 / n as f64,
            };
            seen[c] = stays + comes;
        }
    }
    seen[q]
}

/// Degree and number for n symbols.
pub(crate) fn plan(n: usize, p: f64, delta: f64, threshold: f64) -> (u32, u32) {
    let cap = (n / 2).clamp(1, 512);
    let mut degree = 1;
    while degree < cap && (degree + 1) as f64 * (p + delta) <= 1.0 + 1e-9 * (p + delta) {
        degree += 1;
    }
    let q = (0..=n)
        .find(|q| *q as f64 >= n as f64 * p - 1e-9)
        .unwrap_or(n);
    if q == 0 {
        return (degree as u32, 0);
    }
    let k = match n {
        1 => 1,
        _ => (q..).find(|k| coverage(n, q, *k) > threshold).unwrap_or(q),
    };
    let count = (k as f64 / (degree as f64 * (1.0 - p)) - 1e-9).ceil();
    (degree as u32, count as u32)
}

/// The index list of a row: degree and seed, as the header has them.
fn members(n: u16, row: u32) -> Vec<u16> {
    let degree = (row >> 15) + 1;
    let mut state = 2_u64 << 62 | u64::from(n) << 40 | u64::from(row);
    let mut draw = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) >> 32
    };
    let mut symbols: Vec<u16> = (0..n).collect();
    for i in 0..degree as usize {
        let left = u64::from(n) - i as u64;
        symbols.swap(i, i + ((draw() * left) >> 32) as usize);
    }
    symbols.truncate(degree as usize);
    symbols
}

// ---- the sender --------------------------------------------------------------------------------------

struct Sending {
    n: u16,
    /// What has not left of the first flight, or of a compensation, in turn.
    queue: Vec<(u8, u32)>,
    originals_left: u16,
    planned: bool,
    seeds: u32,
    has: BTreeSet<u16>,
    first: Option<u64>,
    originals: BTreeMap<u16, u64>,
    last: u64,
    compensated: Option<u64>,
    again: bool,
}

/// The sending end. Times are in nanoseconds.
pub(crate) struct Sender {
    paper: Paper,
    blocks: BTreeMap<u64, Sending>,
    reports: Vec<(u64, f64)>,
    /// Blocks that a Symbol-SACK has named, and how long the last packet took that one answered.
    answered: BTreeSet<u64>,
    took: u64,
}

impl Sender {
    pub(crate) fn new(paper: Paper) -> Self {
        Self {
            paper,
            blocks: BTreeMap::new(),
            reports: Vec::new(),
            answered: BTreeSet::new(),
            took: 0,
        }
    }

    pub(crate) fn push(&mut self, id: u64, n: u16) {
        let block = Sending {
            n,
            queue: (0..n).map(|i| (0, u32::from(i))).collect(),
            originals_left: n,
            planned: false,
            seeds: (97 * id % (1 << 15)) as u32,
            has: BTreeSet::new(),
            first: None,
            originals: BTreeMap::new(),
            last: 0,
            compensated: None,
            again: false,
        };
        self.blocks.insert(id, block);
    }

    pub(crate) fn outstanding(&self) -> Vec<u64> {
        self.blocks.keys().copied().collect()
    }

    fn p(&self) -> f64 {
        let latest = &self.reports[self.reports.len().saturating_sub(10)..];
        match latest.len() {
            0 => share(self.paper.initial),
            count => latest.iter().map(|report| report.1).sum::<f64>() / count as f64,
        }
    }

    fn delta(&self) -> f64 {
        let sphinx_proto::Delta::Share(delta) = self.paper.delta else {
            let (p, latest) = (
                self.p(),
                &self.reports[self.reports.len().saturating_sub(10)..],
            );
            let squares: f64 = latest
                .iter()
                .map(|report| (report.1 - p) * (report.1 - p))
                .sum();
            return (squares / latest.len().max(1) as f64).sqrt();
        };
        share(delta)
    }

    fn plan(&self, n: usize) -> (u32, u32) {
        plan(n, self.p(), self.delta(), share(self.paper.threshold))
    }

    pub(crate) fn next(&mut self, now: u64) -> Option<Packet> {
        let compensated = self.blocks.iter().find(|(_, block)| block.again);
        let fresh = self
            .blocks
            .iter()
            .find(|(_, block)| !block.again && !block.queue.is_empty());
        let id = *compensated.or(fresh)?.0;
        let block = self.blocks.get_mut(&id)?;
        let (code, row) = block.queue.remove(0);
        block.first.get_or_insert(now);
        if code == 0 {
            block.originals.entry(row as u16).or_insert(now);
        }
        block.last = now;
        block.again &= !block.queue.is_empty();
        if !block.planned {
            block.originals_left -= 1;
            if block.originals_left == 0 {
                block.planned = true;
                let n = block.n;
                let (degree, count) = self.plan(usize::from(n));
                let block = self.blocks.get_mut(&id)?;
                for _ in 0..count {
                    let seed = block.seeds % (1 << 15);
                    block.queue.push((CODE_SRLT, (degree - 1) << 15 | seed));
                    block.seeds += 1;
                }
            }
        }
        Some((id, code, row))
    }

    fn decode(&mut self, gone: impl Fn(u64) -> bool) {
        self.blocks.retain(|id, _| !gone(*id));
    }

    pub(crate) fn on_symbols(&mut self, now: u64, rtt: u64, sack: &SymbolSack) {
        let named: BTreeSet<u64> = sack.unrecovered.iter().map(|b| b.block.get()).collect();
        self.decode(|id| id < sack.upto.get() && !named.contains(&id));
        for named in sack.unrecovered.iter().chain([&sack.latest]) {
            if let Some(block) = self.blocks.get_mut(&named.block.get()) {
                let is_first = self.answered.insert(named.block.get());
                let new =
                    (0..block.n.min(named.n)).filter(|i| named.has(*i) && !block.has.contains(i));
                let sent = new.max().and_then(|i| block.originals.get(&i));
                let first = block.first.filter(|_| is_first);
                if let Some(since) = sent.copied().or(first) {
                    self.took = now - since;
                }
                block.has.extend((0..named.n).filter(|i| named.has(*i)));
            }
        }
        self.blocks
            .retain(|_, block| block.has.len() < usize::from(block.n));
        let says_enough = sack.latest.count() > u32::from(self.paper.symbols);
        if self.paper.icm.symbol
            && sack.unrecovered.len() + 1 > usize::from(self.paper.blocks)
            && says_enough
        {
            named
                .into_iter()
                .for_each(|id| self.compensate_now(id, now, rtt));
        }
    }

    pub(crate) fn on_blocks(&mut self, now: u64, rtt: u64, sack: &BlockSack) {
        if let Some(LossReport { period, lost, of }) = sack.loss
            && self.reports.last().is_none_or(|last| last.0 < period)
        {
            self.reports.push((period, f64::from(lost) / f64::from(of)));
        }
        let within = |id: u64| {
            sack.decoded
                .iter()
                .any(|(low, high)| (low.get()..=high.get()).contains(&id))
        };
        self.decode(|id| id < sack.base.get() || within(id));
        if let Some((_, highest)) = sack.decoded.last()
            && self.paper.icm.block
        {
            for id in self.outstanding() {
                if id < highest.get() {
                    self.compensate_now(id, now, rtt);
                }
            }
        }
    }

    fn compensate_now(&mut self, id: u64, now: u64, rtt: u64) {
        let rtt = rtt.max(self.took);
        let Some(block) = self.blocks.get(&id) else {
            return;
        };
        if block.planned
            && block.queue.is_empty()
            && block.compensated.is_none_or(|at| now >= at + rtt)
        {
            self.compensate(id, now);
        }
    }

    fn compensate(&mut self, id: u64, now: u64) {
        let Some(block) = self.blocks.get(&id) else {
            return;
        };
        let missing: Vec<u16> = match self.paper.resend {
            Resend::Missing => (0..block.n).filter(|i| !block.has.contains(i)).collect(),
            Resend::Block => (0..block.n).collect(),
        };
        let (degree, count) = self.plan(missing.len());
        let Some(block) = self.blocks.get_mut(&id) else {
            return;
        };
        block.compensated = Some(now);
        let part = match self.paper.resend {
            Resend::Missing => share(self.paper.part),
            Resend::Block => 1.0,
        };
        let part = (missing.len() as f64 * part - 1e-9).ceil() as usize;
        block
            .queue
            .extend(missing[..part].iter().map(|i| (0, u32::from(*i))));
        for _ in 0..count {
            let row = match self.paper.resend {
                Resend::Block => ((degree - 1) << 15) | (block.seeds % (1 << 15)),
                Resend::Missing => {
                    let wide = (u32::from(block.n) * degree).div_ceil(missing.len() as u32);
                    let wide = wide.min(u32::from(block.n) / 2).max(degree);
                    let row = |seed: u32| ((wide - 1) << 15) | (seed % (1 << 15));
                    let fits = |seed: &u32| {
                        let members = members(block.n, row(*seed));
                        let hits = members.iter().filter(|i| missing.contains(i)).count();
                        hits == degree as usize || *seed == block.seeds + (1 << 12) - 1
                    };
                    let seed = (block.seeds..).find(fits).expect("the last one tried fits");
                    block.seeds = seed;
                    row(seed)
                }
            };
            block.seeds += 1;
            block.queue.push((CODE_SRLT, row));
        }
        block.again = true;
    }

    /// When the next block has waited for too long.
    pub(crate) fn timeout(&self) -> Option<u64> {
        let waiting = self
            .blocks
            .values()
            .filter(|block| block.planned && block.queue.is_empty());
        waiting
            .map(|block| block.last + self.paper.timer_us * 1000)
            .min()
    }

    pub(crate) fn on_timeout(&mut self, now: u64) {
        for id in self.outstanding() {
            let block = &self.blocks[&id];
            let is_over = block.last + self.paper.timer_us * 1000 <= now;
            if block.planned && block.queue.is_empty() && is_over {
                self.compensate(id, now);
            }
        }
    }
}

// ---- the receiver ------------------------------------------------------------------------------------

#[derive(Default)]
struct Receiving {
    n: u16,
    has: BTreeSet<u16>,
    rows: Vec<Vec<u16>>,
}

impl Receiving {
    /// Peels until nothing changes.
    fn peel(&mut self) {
        loop {
            let has = &self.has;
            let left = |row: &Vec<u16>| -> Vec<u16> {
                row.iter().copied().filter(|i| !has.contains(i)).collect()
            };
            let Some(one) = self.rows.iter().map(left).find(|left| left.len() == 1) else {
                return;
            };
            self.has.insert(one[0]);
        }
    }

    fn is_decoded(&self) -> bool {
        self.n > 0 && self.has.len() == usize::from(self.n)
    }
}

/// What the receiving end says, but for what concerns the window.
#[derive(Debug, PartialEq)]
pub(crate) enum Said {
    Symbols(NamedBlock, BlockId, Vec<NamedBlock>),
    Blocks(Option<LossReport>, BlockId, Vec<(BlockId, BlockId)>),
}

/// The receiving end.
pub(crate) struct Receiver {
    period: u64,
    arrived: BTreeMap<u64, u32>,
    blocks: BTreeMap<u64, Receiving>,
    loss: Option<LossReport>,
}

impl Receiver {
    pub(crate) fn new(paper: Paper) -> Self {
        Self {
            period: u64::from(paper.period),
            arrived: BTreeMap::new(),
            blocks: BTreeMap::new(),
            loss: None,
        }
    }

    /// A packet of whatever kind.
    pub(crate) fn on_number(&mut self, number: u64) {
        let of = number / self.period;
        let latest = self
            .arrived
            .last_key_value()
            .map_or(0, |(period, _)| *period);
        if of > latest {
            let before = self.arrived.get(&(of - 1)).copied().unwrap_or(0);
            self.loss = Some(LossReport {
                period: of - 1,
                lost: self.period as u32 - before,
                of: self.period as u32,
            });
        }
        if of >= latest {
            *self.arrived.entry(of).or_default() += 1;
        }
    }

    pub(crate) fn on_symbol(&mut self, n: u16, (id, code, row): Packet) -> Vec<Said> {
        let block = self.blocks.entry(id).or_default();
        block.n = n;
        match code {
            0 => {
                block.has.insert(row as u16);
            }
            _ => block.rows.push(members(n, row)),
        }
        block.peel();
        let is_decoded = block.is_decoded();
        let latest = *self.blocks.last_key_value().expect("this one").0;
        let name = |id: u64| {
            let (mut n, mut recovered) = (0, Vec::new());
            if let Some(block) = self.blocks.get(&id) {
                n = block.n;
                recovered = vec![0; usize::from(n).div_ceil(8)];
                for i in &block.has {
                    recovered[usize::from(i / 8)] |= 1 << (i % 8);
                }
            }
            NamedBlock {
                block: BlockId::new(id),
                n,
                recovered,
            }
        };
        let decoded = |id: &u64| self.blocks.get(id).is_some_and(Receiving::is_decoded);
        let earlier = (0..latest).filter(|id| !decoded(id)).map(name).collect();
        let mut said = vec![Said::Symbols(name(latest), BlockId::new(latest), earlier)];
        if is_decoded {
            let base = (0..).find(|id| !decoded(id)).expect("there is an end");
            let mut ranges: Vec<(BlockId, BlockId)> = Vec::new();
            for id in (base..=latest).filter(decoded) {
                match ranges.last_mut() {
                    Some((_, high)) if high.get() + 1 == id => *high = BlockId::new(id),
                    _ => ranges.push((BlockId::new(id), BlockId::new(id))),
                }
            }
            said.push(Said::Blocks(self.loss, BlockId::new(base), ranges));
        }
        said
    }
}
