//! Which symbol of which generation leaves next, and how losses and WARNINGs are answered. Repair
//! symbols are called rows here: those decided on before a generation leaves go *ahead* of it, the
//! others *answer* losses or a WARNING.

use std::collections::BTreeMap;

use sphinx_fec::CodeId;
use sphinx_fec::generation::{self, GENERATION_MAX};

use super::redundancy::{Ahead, LossRate, to_deliver};
use super::{Sc, symbol_cost};
use crate::blocks::SymbolChoice;
use crate::types::Slot;
use crate::wire::{SymbolId, Warning};
use crate::{BlockId, Nanos, PathId, Time};

/// Number of different rows that a generation can have; after these they repeat.
const INDEX_MAX: u32 = sphinx_fec::rlc::INDEX_COUNT;

/// The path for which a symbol is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneView {
    pub(crate) path: PathId,
    /// A symbol that leaves on another path now arrives sooner.
    pub(crate) is_slow: bool,
    /// New symbols wait for the fastest path (ECF).
    pub(crate) waits: bool,
    /// The peer's credit.
    pub(crate) credit: u64,
}

/// What is known of a path.
#[derive(Debug, Default)]
struct Lane {
    losses: LossRate,
    /// Symbols sent on it since the last generation began.
    sent: u32,
}

#[derive(Debug)]
struct Generation {
    slot: Slot,
    n: u16,
    symbol_len: u16,
    has_begun: bool,
    /// Rows that are to leave before the source symbols.
    ahead: u16,
    next_source: u16,
    /// How many rows were decided on ahead; rows that answer have the indices above. Then the next
    /// index of each kind.
    planned: u32,
    next_ahead: u32,
    next_answer: u32,
    /// Symbols that have arrived, those in flight, and those in flight that are answers.
    arrived: u32,
    in_flight: u32,
    answers: u32,
    /// Rows that answer losses or a WARNING and have not left.
    owed: u32,
    /// Source symbols that have arrived, and those that count as lost, as bit maps.
    acked: u64,
    lost: u64,
    /// From the last WARNING: symbols before this one had been given to the application.
    warned: Option<u16>,
    /// How many of the symbols that have left the peer may have to store; at most `n`.
    charged: u16,
}

impl Generation {
    fn unsent(&self) -> u16 {
        self.n - self.next_source
    }

    fn is_sent(&self) -> bool {
        self.has_begun && self.unsent() == 0 && self.ahead == 0
    }

    /// Symbols that have arrived or may still arrive without a further decision.
    fn expected(&self) -> u32 {
        let to_come = u32::from(self.unsent()) + u32::from(self.ahead) + self.owed;
        self.arrived + self.in_flight + to_come
    }

    fn is_answer(&self, symbol: SymbolId) -> bool {
        match symbol {
            SymbolId::Source(_) => false,
            SymbolId::Repair(_, row) => generation::split(row).1 >= self.planned,
        }
    }

    /// The first symbol that rows in answer cover. The peer may have given out those before, and
    /// then cannot use rows that cover them.
    fn first(&self) -> usize {
        let unknown = match self.lost {
            0 => !self.acked,
            lost => lost,
        };
        let first = self.warned.map_or(unknown.trailing_zeros(), u32::from);
        (first as usize).min(usize::from(self.n) - 1)
    }
}

/// A symbol that may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pick {
    /// A row that answers a WARNING.
    Answer(BlockId),
    /// A row ahead of its generation.
    Ahead(BlockId),
    Source(BlockId),
    /// A source symbol again, on the path that lost it: its place in `again`.
    Again(usize),
}

/// Generations on their way.
#[derive(Debug)]
pub(crate) struct ScSender {
    scheme: Sc,
    generations: BTreeMap<BlockId, Generation>,
    lanes: BTreeMap<PathId, Lane>,
    ahead: Ahead,
    /// The loss rate over all paths, as they were used by the latest generation.
    plr: f64,
    /// Without coding: source symbols that are to be sent again, and on which path.
    again: Vec<(PathId, BlockId, u16)>,
    /// What the peer may have to store of all symbols that have left, bytes of its buffer.
    charged: u64,
    rows_ahead: u64,
    warnings: u64,
}

impl ScSender {
    pub(crate) fn new(scheme: Sc) -> Self {
        Self {
            scheme,
            generations: BTreeMap::new(),
            lanes: BTreeMap::new(),
            ahead: Ahead::default(),
            plr: 0.0,
            again: Vec::new(),
            charged: 0,
            rows_ahead: 0,
            warnings: 0,
        }
    }

    /// WARNINGs that have come.
    pub(crate) fn warnings(&self) -> u64 {
        self.warnings
    }

    /// Bytes of source symbols that have not left.
    pub(crate) fn unsent_bytes(&self) -> u64 {
        let unsent = |g: &Generation| u64::from(g.unsent()) * u64::from(g.symbol_len);
        let newest = self.generations.values().rev();
        newest.take_while(|g| !g.is_sent()).map(unsent).sum()
    }

    /// How much of this credit is not used, bytes.
    pub(crate) fn credit_left(&self, credit: u64) -> u64 {
        credit.saturating_sub(self.charged)
    }

    /// Whether a generation may be handed over: at most one may wait.
    pub(crate) fn has_room(&self) -> bool {
        let mut newest = self.generations.values().rev();
        newest.nth(1).is_none_or(Generation::is_sent)
    }

    /// Adds a generation.
    pub(crate) fn push(&mut self, id: BlockId, slot: Slot, (n, symbol_len): (u16, u16)) {
        debug_assert!(usize::from(n) <= GENERATION_MAX);
        let generation = Generation {
            slot,
            n,
            symbol_len,
            has_begun: false,
            ahead: 0,
            next_source: 0,
            planned: 0,
            next_ahead: 0,
            next_answer: 0,
            arrived: 0,
            in_flight: 0,
            answers: 0,
            owed: 0,
            acked: 0,
            lost: 0,
            warned: None,
            charged: 0,
        };
        self.generations.insert(id, generation);
    }

    /// The peer has the whole generation.
    pub(crate) fn forget(&mut self, id: BlockId) {
        if let Some(generation) = self.generations.remove(&id) {
            let left = u64::from(generation.n - generation.charged);
            self.charged += left * symbol_cost(generation.symbol_len);
            self.again.retain(|(_, block, _)| *block != id);
        }
    }

    // ---- what to send -----------------------------------------------------------------------------

    /// Whether there is a symbol for this path.
    pub(crate) fn has_symbol(&self, lane: LaneView) -> bool {
        self.pick(lane).is_some()
    }

    /// Whether the peer has room for another symbol of the generation.
    fn has_credit(&self, g: &Generation, lane: LaneView) -> bool {
        g.charged == g.n || self.charged + symbol_cost(g.symbol_len) <= lane.credit
    }

    /// The symbol that would leave next on this path.
    fn pick(&self, lane: LaneView) -> Option<Pick> {
        if !self.scheme.is_coded() {
            // What was lost on a path that is closed may leave on any other.
            let of_lane = |(path, ..): &(PathId, BlockId, u16)| {
                *path == lane.path || !self.lanes.contains_key(path)
            };
            if let Some(at) = self.again.iter().position(of_lane) {
                return Some(Pick::Again(at));
            }
        } else if !lane.is_slow {
            let mut owed = self.generations.iter().filter(|(_, g)| g.owed > 0);
            // While fewer than `n` symbols have left, the peer may have to store an answer as well,
            // so that it needs credit.
            if let Some((id, _)) = owed.next().filter(|(_, g)| self.has_credit(g, lane)) {
                return Some(Pick::Answer(*id));
            }
        }
        if lane.waits {
            return None;
        }
        // At most two generations have symbols to send: `has_room` sees to it.
        let newest = self.generations.iter().rev();
        let waiting: Vec<_> = newest.take_while(|(_, g)| !g.is_sent()).collect();
        for (id, g) in waiting.into_iter().rev() {
            if !self.has_credit(g, lane) {
                return None;
            }
            if g.ahead > 0 && (!lane.is_slow || self.scheme == Sc::Rlnc) {
                return Some(Pick::Ahead(*id));
            }
            if g.unsent() > 0 {
                return Some(Pick::Source(*id));
            }
        }
        None
    }

    /// The next symbol for this path, which leaves now.
    pub(crate) fn next(&mut self, lane: LaneView) -> Option<(SymbolChoice, Kind)> {
        self.begin_next();
        let pick = self.pick(lane)?;
        let (id, kind) = match pick {
            Pick::Answer(id) => (id, Kind::Reactive),
            Pick::Ahead(id) => (id, Kind::Ahead),
            Pick::Source(id) => (id, Kind::Source),
            Pick::Again(at) => (self.again[at].1, Kind::Reactive),
        };
        let scheme = self.scheme;
        let g = self.generations.get_mut(&id)?;
        let symbol = match pick {
            Pick::Answer(_) => {
                g.owed -= 1;
                g.answers += 1;
                let first = if scheme == Sc::Rlnc { 0 } else { g.first() };
                g.next_answer += 1;
                row(first, g.next_answer - 1)
            }
            Pick::Ahead(_) => {
                g.ahead -= 1;
                g.next_ahead += 1;
                row(0, g.next_ahead - 1)
            }
            Pick::Source(_) => {
                g.next_source += 1;
                SymbolId::Source(g.next_source - 1)
            }
            Pick::Again(at) => SymbolId::Source(self.again.remove(at).2),
        };
        g.in_flight += 1;
        let is_again = matches!(pick, Pick::Again(_));
        if g.charged < g.n && !is_again {
            g.charged += 1;
            self.charged += symbol_cost(g.symbol_len);
        }
        let choice = SymbolChoice {
            sequence: id,
            round: u8::from(kind == Kind::Reactive),
            slot: g.slot,
            n: g.n,
            symbol_len: g.symbol_len,
            symbol,
            last_of_flight: false,
            more: 0,
            is_copy: false,
        };
        self.lanes.entry(lane.path).or_default().sent += 1;
        Some((choice, kind))
    }

    /// Begins the oldest generation of which nothing has left, once all source symbols before it
    /// have left: its redundancy is decided on as late as that.
    fn begin_next(&mut self) {
        let newest = self.generations.iter().rev();
        let fresh = newest.take_while(|(_, g)| !g.has_begun).last();
        let Some((id, _)) = fresh else { return };
        let id = *id;
        let before = self.generations.range(..id).next_back();
        // Rows of the one before may still wait for a fast path: a slow path goes on with this one
        // meanwhile.
        if before.is_some_and(|(_, g)| g.unsent() > 0) {
            return;
        }
        self.measure();
        let Some(g) = self.generations.get_mut(&id) else {
            return;
        };
        g.has_begun = true;
        let ahead = match self.scheme.is_coded() {
            true => self.ahead.rows(g.n, self.plr),
            false => 0,
        };
        self.rows_ahead += u64::from(ahead);
        g.ahead = ahead;
        if self.scheme == Sc::Rlnc {
            g.ahead += g.n;
            g.next_source = g.n;
        }
        g.planned = u32::from(g.ahead);
        g.next_answer = g.planned;
    }

    /// The loss rate over all paths, weighted by the symbols sent on each: p = Σ shareᵢ · pᵢ.
    fn measure(&mut self) {
        let sent: u32 = self.lanes.values().map(|lane| lane.sent).sum();
        if sent == 0 {
            return;
        }
        let weighted = |lane: &Lane| f64::from(lane.sent) * lane.losses.rate();
        self.plr = self.lanes.values().map(weighted).sum::<f64>() / f64::from(sent);
        for lane in self.lanes.values_mut() {
            lane.sent = 0;
        }
    }

    // ---- what becomes of it -----------------------------------------------------------------------

    /// A symbol has arrived; `late`: it had been counted as lost. Returns whether the peer needed
    /// it, as far as is known.
    pub(crate) fn on_arrived(
        &mut self,
        path: PathId,
        at: (Time, Nanos),
        (id, symbol): (BlockId, SymbolId),
        late: bool,
    ) -> bool {
        if !late {
            let lane = self.lanes.entry(path).or_default();
            lane.losses.note(at, false);
        } else if let Some(lane) = self.lanes.get_mut(&path) {
            lane.losses.take_back();
        }
        let Some(g) = self.generations.get_mut(&id) else {
            return true;
        };
        if !late {
            g.in_flight -= 1;
            g.answers -= u32::from(g.is_answer(symbol));
        }
        let is_new = match symbol {
            SymbolId::Source(index) => {
                let bit = 1 << index;
                let is_new = g.acked & bit == 0;
                g.acked |= bit;
                g.lost &= !bit;
                let same = (id, index);
                self.again.retain(|(_, id, index)| (*id, *index) != same);
                is_new
            }
            SymbolId::Repair(..) => true,
        };
        g.arrived += u32::from(is_new);
        if late && is_new {
            // One answer less is needed.
            g.owed = g.owed.saturating_sub(1);
        }
        g.arrived <= u32::from(g.n)
    }

    /// A symbol counts as lost.
    pub(crate) fn on_lost(
        &mut self,
        path: PathId,
        at: (Time, Nanos),
        (id, symbol): (BlockId, SymbolId),
    ) {
        let lane = self.lanes.entry(path).or_default();
        lane.losses.note(at, true);
        let Some(g) = self.generations.get_mut(&id) else {
            return;
        };
        g.in_flight -= 1;
        g.answers -= u32::from(g.is_answer(symbol));
        if let SymbolId::Source(index) = symbol
            && g.acked & 1 << index == 0
        {
            g.lost |= 1 << index;
            if !self.scheme.is_coded() {
                self.again.push((path, id, index));
            }
        }
        if self.scheme.is_coded() {
            let needed = u32::from(g.n);
            let missing = needed.saturating_sub(g.expected());
            g.owed += to_deliver(missing, self.plr);
        }
    }

    /// The peer says that this generation holds up the others, and how many symbols it lacks: that
    /// counts for at most as many as were not given out. The answer has more rows, as some are lost.
    pub(crate) fn on_warning(&mut self, warning: &Warning) {
        let Some(g) = self.generations.get_mut(&warning.block) else {
            // The generation has been completed meanwhile.
            return;
        };
        if !self.scheme.is_coded() || !g.has_begun {
            return;
        }
        self.warnings += 1;
        let first = warning.first.min(u64::from(g.n) - 1) as u16;
        g.warned = Some(first.max(g.warned.unwrap_or(0)));
        let deficit = warning.deficit.min(u64::from(g.n - first)) as u32;
        // Symbols that have not left will come anyway.
        let to_come = u32::from(g.unsent()) + u32::from(g.ahead);
        let wanted = to_deliver(deficit.saturating_sub(to_come), self.plr);
        g.owed += wanted.saturating_sub(g.owed + g.answers);
    }

    /// A path is closed or does not answer: other paths send again what was to be sent again on it.
    pub(crate) fn on_path_gone(&mut self, path: PathId) {
        self.lanes.remove(&path);
    }
}

/// What a symbol is sent for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Source,
    Ahead,
    Reactive,
}

/// A row of a generation, over its symbols from `first` on.
fn row(first: usize, index: u32) -> SymbolId {
    SymbolId::Repair(CodeId::Rlc, generation::row(first, index % INDEX_MAX))
}

#[cfg(test)]
mod tests;
