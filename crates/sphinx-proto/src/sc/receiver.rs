//! Generations that arrive: their rank, what may be given out in order, and when to warn.

use std::collections::BTreeMap;

use sphinx_fec::generation::{GENERATION_MAX, Generation};
use sphinx_fec::{Added, CodeId, RowMaker};

use super::Sc;
use crate::wire::{SymbolId, Warning};
use crate::{BlockId, Nanos, PathId, Time};

/// When so many symbols of later generations have arrived on a path, all of them of the same one
/// perhaps, no more of an earlier generation is expected on it.
const OVERTAKEN: usize = 3;
/// A path on which nothing has arrived for so many times the longest round trip is ignored.
const LIVE_ROUNDS: Nanos = 2;

/// What a driver may give to the application now, in the order of these values: all symbols of the
/// generation before `upto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InOrder {
    /// The generation.
    pub block: BlockId,
    /// Symbols of it before this one may be given to the application.
    pub upto: u16,
    /// These are all of its symbols: the generation is not kept any longer.
    pub is_whole: bool,
}

/// Round-trip times over all paths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rtts {
    pub(crate) shortest: Nanos,
    pub(crate) longest: Nanos,
}

/// A symbol that has arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inbound {
    pub(crate) block: BlockId,
    pub(crate) shape: (u16, u16),
    pub(crate) symbol: SymbolId,
}

#[derive(Debug)]
struct Inflow {
    shape: (u16, u16),
    rank: Generation<[u8; 0]>,
    arrived_at: Time,
}

/// What has arrived on a path.
#[derive(Debug)]
struct Seen {
    path: PathId,
    /// Generations of the symbols that arrived there, one entry for each symbol; the highest ones
    /// only, the highest first.
    top: [u64; OVERTAKEN],
    at: Time,
}

/// Measures how many bytes arrive in a round trip: in the present one, and in the one before.
#[derive(Debug)]
struct Arrivals {
    since: Time,
    bytes: u64,
    before: u64,
}

impl Arrivals {
    fn note(&mut self, now: Time, span: Nanos, bytes: u64) {
        if now >= self.since.saturating_add(span) {
            let is_next = now < self.since.saturating_add(2 * span);
            self.before = if is_next { self.bytes } else { 0 };
            (self.since, self.bytes) = (now, 0);
        }
        self.bytes += bytes;
    }

    fn in_round(&self) -> u64 {
        self.before.max(self.bytes)
    }
}

/// Generations being received.
#[derive(Debug)]
pub(crate) struct ScReceiver {
    scheme: Sc,
    rows: RowMaker,
    generations: BTreeMap<BlockId, Inflow>,
    /// The oldest generation that is not complete, and since when it is the oldest.
    head: BlockId,
    head_since: Time,
    /// When the peer was last warned of that generation. From then on its symbols are given out
    /// only when it is complete: rows in answer may cover symbols that would otherwise have left
    /// the buffer.
    warned_at: Option<Time>,
    /// How often the peer was warned of that generation.
    repeats: usize,
    /// A WARNING that is to leave.
    due: Option<Warning>,
    in_order: Vec<InOrder>,
    seen: Vec<Seen>,
    arrivals: Arrivals,
    warnings: u64,
}

impl ScReceiver {
    pub(crate) fn new(scheme: Sc, now: Time) -> Self {
        Self {
            scheme,
            rows: RowMaker::new(),
            generations: BTreeMap::new(),
            head: BlockId::ZERO,
            head_since: now,
            warned_at: None,
            repeats: 0,
            due: None,
            in_order: Vec::new(),
            seen: Vec::new(),
            arrivals: Arrivals {
                since: now,
                bytes: 0,
                before: 0,
            },
            warnings: 0,
        }
    }

    /// WARNINGs sent.
    pub(crate) fn warnings(&self) -> u64 {
        self.warnings
    }

    /// Whether a generation has begun to arrive and is not complete.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.generations.is_empty()
    }

    /// The next symbols that may be given to the application.
    pub(crate) fn next_in_order(&mut self) -> Option<InOrder> {
        match self.in_order.is_empty() {
            true => None,
            false => Some(self.in_order.remove(0)),
        }
    }

    /// A symbol has arrived. `has_room`: the buffer has room for it. Returns whether it is of use,
    /// and whether it completes its generation.
    pub(crate) fn add(&mut self, now: Time, inbound: &Inbound, has_room: bool) -> (Added, bool) {
        let &Inbound {
            block,
            shape,
            symbol,
        } = inbound;
        let (n, _) = shape;
        let is_row = |code| code == CodeId::Rlc;
        if usize::from(n) > GENERATION_MAX || symbol.code().is_some_and(|code| !is_row(code)) {
            return (Added::Invalid, false);
        }
        if block < self.head {
            return (Added::Redundant, false);
        }
        let known = self.generations.get(&block);
        if known.is_some_and(|known| known.shape != shape) {
            return (Added::Invalid, false);
        }
        let is_known = known.is_some();
        if !has_room && self.would_be(inbound) == Added::Innovative {
            return (Added::Invalid, false);
        }
        if !is_known {
            let Ok(rank) = Generation::new(usize::from(n)) else {
                return (Added::Invalid, false);
            };
            let arrived_at = now;
            let new = Inflow {
                shape,
                rank,
                arrived_at,
            };
            self.generations.insert(block, new);
        }
        let Some(inflow) = self.generations.get_mut(&block) else {
            return (Added::Invalid, false);
        };
        let was_whole = inflow.rank.is_whole();
        let added = add(&mut inflow.rank, &mut self.rows, symbol);
        let is_whole = inflow.rank.is_whole() && !was_whole;
        if added == Added::Innovative {
            inflow.arrived_at = now;
        } else if inflow.rank.is_empty() {
            // An invalid symbol begins no generation.
            self.generations.remove(&block);
        }
        if added == Added::Innovative {
            self.advance(now);
        }
        (added, is_whole)
    }

    /// What [`add`](Self::add) would make of the symbol, which is not stored.
    fn would_be(&mut self, inbound: &Inbound) -> Added {
        let rank = match self.generations.get(&inbound.block) {
            Some(inflow) => Some(inflow.rank.clone()),
            None => Generation::new(usize::from(inbound.shape.0)).ok(),
        };
        rank.map_or(Added::Invalid, |mut rank| {
            add(&mut rank, &mut self.rows, inbound.symbol)
        })
    }

    /// Lets the application have all symbols that are in order.
    fn advance(&mut self, now: Time) {
        while let Some(inflow) = self.generations.get_mut(&self.head) {
            let is_whole = inflow.rank.is_whole();
            let waits = !is_whole && (self.warned_at.is_some() || self.scheme == Sc::Rlnc);
            let before = inflow.rank.taken();
            while !waits && inflow.rank.take().is_some() {}
            let taken = inflow.rank.taken();
            if taken > before {
                self.in_order.push(InOrder {
                    block: self.head,
                    upto: taken as u16,
                    is_whole,
                });
            }
            if !is_whole {
                return;
            }
            self.generations.remove(&self.head);
            self.head += 1;
            self.head_since = now;
            self.warned_at = None;
            self.repeats = 0;
        }
    }

    // ---- warnings -----------------------------------------------------------------------------------

    /// A symbol has arrived on this path: `free` bytes of the buffer are left.
    pub(crate) fn on_arrival(
        &mut self,
        now: Time,
        (path, block): (PathId, BlockId),
        (bytes, free): (u64, u64),
        rtts: Rtts,
    ) {
        self.arrivals.note(now, rtts.shortest, bytes);
        let seen = match self.seen.iter_mut().find(|seen| seen.path == path) {
            Some(seen) => seen,
            None => {
                let live = |seen: &Seen| now < seen.at.saturating_add(LIVE_ROUNDS * rtts.longest);
                self.seen.retain(live);
                self.seen.push(Seen {
                    path,
                    top: [0; OVERTAKEN],
                    at: now,
                });
                // The entry that was pushed just now.
                let last = self.seen.len() - 1;
                &mut self.seen[last]
            }
        };
        seen.at = now;
        let mut id = block.get();
        for top in &mut seen.top {
            if id > *top {
                std::mem::swap(&mut id, top);
            }
        }
        self.consider(now, free, rtts);
    }

    /// Queues a WARNING if one is due.
    pub(crate) fn consider(&mut self, now: Time, free: u64, rtts: Rtts) {
        let again = self.warned_at.map(|at| at.saturating_add(rtts.shortest));
        if !self.scheme.is_coded() || again.is_some_and(|at| now < at) || !self.is_waiting() {
            return;
        }
        let is_due = free < self.arrivals.in_round()
            || self.is_overtaken(now, rtts)
            || now >= self.silent_at(rtts);
        if !is_due {
            return;
        }
        let head = self.generations.get(&self.head);
        let first = head.map_or(0, |head| head.rank.taken());
        let deficit = head.map_or(GENERATION_MAX, |head| {
            usize::from(head.shape.0) - head.rank.rank()
        });
        self.warned_at = Some(now);
        self.repeats += 1;
        self.warnings += 1;
        self.due = Some(Warning {
            block: self.head,
            first: first as u64,
            deficit: deficit as u64,
            free,
        });
    }

    /// Whether no more of the oldest generation is expected: on every path in use [`OVERTAKEN`]
    /// symbols of later ones have arrived.
    fn is_overtaken(&self, now: Time, rtts: Rtts) -> bool {
        let head = self.head.get();
        let live = |seen: &&Seen| now < seen.at.saturating_add(LIVE_ROUNDS * rtts.longest);
        let mut paths = self.seen.iter().filter(live).peekable();
        paths.peek().is_some() && paths.all(|seen| seen.top.iter().all(|top| *top > head))
    }

    /// When nothing of the oldest generation has arrived for longer than the longest round trip, if
    /// nothing does before.
    fn silent_at(&self, rtts: Rtts) -> Time {
        let head = self.generations.get(&self.head);
        let since = head.map_or(self.head_since, |head| head.arrived_at);
        let since = since.max(self.warned_at.unwrap_or(since));
        since.saturating_add(rtts.longest + rtts.longest / 8)
    }

    /// When a WARNING may be due if nothing arrives before.
    pub(crate) fn timeout(&self, rtts: Rtts) -> Option<Time> {
        if self.due.is_some() {
            return Some(Time::ZERO);
        }
        (self.scheme.is_coded() && self.is_waiting()).then(|| self.silent_at(rtts))
    }

    /// Whether symbols arrive on this path, so that a WARNING on it will reach the peer.
    pub(crate) fn is_heard(&self, now: Time, path: PathId, rtts: Rtts) -> bool {
        let mut seen = self.seen.iter().filter(|seen| seen.path == path);
        seen.any(|seen| now < seen.at.saturating_add(rtts.longest))
    }

    /// How often the peer has been warned of the oldest generation.
    pub(crate) fn repeats(&self) -> usize {
        self.repeats
    }

    /// A WARNING that is to leave now.
    pub(crate) fn take_warning(&mut self) -> Option<Warning> {
        self.due.take()
    }
}

fn add(rank: &mut Generation<[u8; 0]>, rows: &mut RowMaker, symbol: SymbolId) -> Added {
    match symbol {
        SymbolId::Source(index) => rank.add_source(usize::from(index), []),
        SymbolId::Repair(_, row) => rank.add_row(rows, row, []),
    }
}
