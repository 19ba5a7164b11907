//! Repair sent ahead of loss for datagrams whose deadline leaves no time to answer a loss, or that the application wants so ([`RepairMode::Together`]):
//! one repair covers several datagrams.
//!
//! A datagram that is protected alone needs enough symbols to arrive almost surely by itself: at 10 % loss three in all for one source symbol. Where
//! others follow before its deadline, they share repairs, which leave between the source symbols at an even rate: at 10 % loss one repair for every
//! two source symbols is enough for seven of them. If nothing follows, the repairs still owed leave at once.

use std::collections::{BTreeMap, VecDeque};

use sphinx_fec::{CodeId, Row};

use crate::types::RepairMode;
use crate::wire::{SymbolId, WINDOW_PREFIX_LEN, WindowSpan};
use crate::{BlockId, Nanos, Time};

use super::Redundancy;
use super::coding;
use super::deadline::Horizon;
use super::selector::flight_repair;
use super::sliding::WindowChoice;
use super::store::BlockStore;

/// Source symbols that must be expected to follow a symbol before its deadline for it to share repairs; with fewer, its block is protected alone.
const FOLLOWING_MIN: u32 = 2;
/// Following symbols that the repair rate is computed for, at most: more hardly change it.
const FOLLOWING_MAX: u32 = 32;
/// The repair rate (repairs per source symbol) is a multiple of 1/PARTS.
const PARTS: u32 = 8;
/// Recent blocks from which it is estimated how many symbols follow one another.
const RECENT_MAX: usize = 64;
/// Blocks that share repairs although answers would be in time: at least so many leave within half a round trip, and a repair covers at most so many.
const SHARING_MIN: usize = 4;
const SHARING_MAX: usize = 512;
/// From so many on a share of 10⁻⁵ may need an answer, as far as that takes no more repairs than so many times what is lost; their rate is a multiple of
/// one in so many. Fewer take more repairs for a larger share, but are fewer bytes: a connection that begins is not to wait.
const SHARING_MANY: usize = 64;
const SHARED_EPSILON: f64 = 1e-5;
const SHARED_MAX: f64 = 2.5;
const SHARED_PARTS: u32 = 32;

/// Repairs ahead of loss, each over all blocks of datagrams that it can still restore in time.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// When blocks left, and how many source symbols each has, oldest first.
    recent: VecDeque<(Time, u16)>,
    rate: Rate,
    /// When the latest blocks left that share repairs although answers would be in time, and their rate.
    sharing: VecDeque<Time>,
    shared: Rate,
    /// Source symbols of these blocks since the flow last paused, at most [`FOLLOWING_MAX`]: the next pause protects them like a flight that ends.
    /// 0 while blocks without time for an answer are covered.
    last: u32,
    /// Present rate: repairs per source symbol.
    present: f64,
    /// The fraction of a repair that is owed, and whole repairs that are to leave now.
    owed: f64,
    due: u32,
    /// The newest block that these repairs cover; they cover those before it too, as far as these can be restored in time.
    newest: BlockId,
    /// If no block follows before this time, the flow counts as paused, and the repairs for what it has sent leave.
    ends_at: Option<Time>,
    next_row: u32,
}

impl Ahead {
    /// The last source symbol of a block that needs repair ahead leaves; repairs that leave after `last` come too late, and their bodies have
    /// at most `room` bytes. Whether it is protected with others: else that is to be done for it alone.
    pub(crate) fn cover(
        &mut self,
        blocks: &BlockStore,
        redundancy: Redundancy,
        (sequence, last): (BlockId, Time),
        (now, plr): (Time, f64),
        room: usize,
    ) -> bool {
        let Some((code, block)) = redundancy.code.zip(blocks.get(sequence)) else {
            return false;
        };
        let slack = last.saturating_sub(now);
        let (following, gap) = self.note(now, slack, block.n);
        self.ends_at = None;
        let n = u32::from(block.n);
        let alone = f64::from(flight_repair(n, n, plr, redundancy.epsilon)) / f64::from(n);
        let following_max = following.min(FOLLOWING_MAX);
        let rate = self
            .rate
            .of(following_max, plr, (redundancy.epsilon, PARTS));
        if !is_possible(code, block.symbol_len, room) || following < FOLLOWING_MIN || rate >= alone
        {
            self.owed = 0.0;
            return false;
        }
        self.owe(sequence, rate, n);
        self.last = 0;
        self.ends_at = Some(now + (gap + gap / 2).min(slack - slack / 4));
        true
    }

    /// The last source symbol of a block leaves that is to share repairs although answers would be in time; the bodies of repairs have
    /// at most `room` bytes. Where there are not enough others, it does not.
    pub(crate) fn share(
        &mut self,
        blocks: &mut BlockStore,
        redundancy: Redundancy,
        sequence: BlockId,
        (now, rtt): (Time, Nanos),
        (plr, burst): (f64, f64),
        room: usize,
    ) {
        let since = now.earlier_by(rtt / 2);
        while self.sharing.front().is_some_and(|at| *at < since) {
            self.sharing.pop_front();
        }
        let (others, first) = (self.sharing.len(), self.sharing.front().copied());
        if others == SHARING_MAX {
            self.sharing.pop_front();
        }
        self.sharing.push_back(now);
        let Some((code, block)) = redundancy.code.zip(blocks.get_mut(sequence)) else {
            return;
        };
        if !is_possible(code, block.symbol_len, room) || others < SHARING_MIN {
            return;
        }
        let rate = match others < SHARING_MANY {
            true => {
                let aim = (redundancy.epsilon, PARTS);
                let following = in_steps(others as u32);
                self.shared.of(following, plr, aim).min(1.0)
            }
            false => {
                // Losses in bursts of mean length b are treated like single losses among b times fewer symbols.
                let following = in_steps((others as f64 / burst.max(1.0)) as u32);
                let aim = (SHARED_EPSILON, SHARED_PARTS);
                let rate = self.shared.of(following, plr, aim);
                rate.min(SHARED_MAX * plr)
            }
        };
        // As many blocks are expected to follow as came before, in the same time.
        let span = now.saturating_sub(first.unwrap_or(now));
        let cover = span.min(rtt / 2);
        let n = u32::from(block.n);
        // At a low loss rate there may be no repair at all within that time: then a loss must not wait for one.
        let is_covered = rate * (others as f64) * f64::from(n) >= 1.0;
        let wait = if is_covered { cover } else { 0 };
        // A round trip after the last shared repair the peer's feedback says what is still missing.
        block.shared_until = now + wait + rtt;
        self.owe(sequence, rate, n);
        self.last = (self.last + n).min(FOLLOWING_MAX);
        self.ends_at = Some(now + cover / 2);
    }

    fn owe(&mut self, newest: BlockId, rate: f64, symbols: u32) {
        self.newest = newest;
        self.present = rate;
        self.owed += rate * f64::from(symbols);
        self.due += self.owed as u32;
        self.owed = self.owed.fract();
    }

    /// A block of n source symbols leaves. How many such symbols followed others soon enough, at least, and the longest time between two blocks.
    fn note(&mut self, now: Time, slack: Nanos, n: u16) -> (u32, Nanos) {
        let since = now.earlier_by(2 * slack);
        let are_many = self.recent.len() == RECENT_MAX;
        if are_many {
            self.recent.pop_front();
        }
        while self.recent.front().is_some_and(|(at, _)| *at < since) {
            self.recent.pop_front();
        }
        // A quarter of the time is left for the repairs, which leave behind the last symbol that they cover.
        let reach = slack - slack / 4;
        let whole = self.recent.iter().take_while(|(at, _)| *at + reach <= now);
        let of = |(place, (at, _)): (usize, &(Time, u16))| -> u32 {
            let later = self.recent.iter().skip(place + 1);
            let soon = later.take_while(|(later, _)| *later <= *at + reach);
            soon.map(|(_, n)| u32::from(*n)).sum()
        };
        let following = whole.enumerate().map(of).min();
        let following = following.unwrap_or(if are_many { FOLLOWING_MAX } else { 0 });
        self.recent.push_back((now, n));
        let times = self.recent.iter().map(|(at, _)| *at);
        let gaps = times.clone().zip(times.skip(1)).map(|(a, b)| b - a);
        (following, gaps.max().unwrap_or(0))
    }

    /// When the flow counts as paused unless another block follows before.
    pub(crate) fn ends_at(&self) -> Option<Time> {
        self.ends_at
    }

    /// If the flow has paused, the repairs that would have left between later symbols are due now.
    pub(crate) fn on_timeout(
        &mut self,
        blocks: &BlockStore,
        (redundancy, plr): (Redundancy, f64),
        horizon: Horizon,
    ) {
        if self.ends_at.is_none_or(|at| at > horizon.now) {
            return;
        }
        self.ends_at = None;
        self.owed = 0.0;
        let last = std::mem::take(&mut self.last);
        self.due += match last {
            0 => {
                let symbols = in_time(blocks, self.newest, horizon);
                let symbols: u32 = symbols.map(|(_, n)| u32::from(n)).sum();
                (self.present * f64::from(symbols)).ceil() as u32
            }
            _ => flight_repair(last, last, plr, redundancy.epsilon),
        };
    }

    /// Whether a repair is due.
    pub(crate) fn is_due(&self) -> bool {
        self.due > 0
    }

    /// A repair that is due, if its body can have at most `room` bytes. It counts as one of the newest block that it covers.
    pub(crate) fn take_due(
        &mut self,
        blocks: &mut BlockStore,
        horizon: Horizon,
        room: usize,
    ) -> Option<WindowChoice> {
        self.due = self.due.checked_sub(1)?;
        let mut covered = in_time(blocks, self.newest, horizon);
        let newest = covered
            .next()
            .and_then(|(at, _)| Some((at, blocks.get(at)?)));
        let Some((sequence, newest)) = newest else {
            self.due = 0;
            return None;
        };
        let mut span = WindowSpan::new(newest.n, newest.n, newest.symbol_len)?;
        if span.body_len() > room {
            return None;
        }
        let mut slots = vec![newest.slot];
        let mut before = sequence;
        for (at, _) in covered {
            let (Some(block), Ok(skipped)) = (blocks.get(at), u8::try_from(before - at - 1)) else {
                break;
            };
            if !span.extend(skipped, block.n, block.symbol_len, room) {
                break;
            }
            slots.push(block.slot);
            before = at;
        }
        slots.reverse();
        let row = Row::new(self.next_row % (Row::MAX.number() + 1))?;
        self.next_row = self.next_row.wrapping_add(1);
        let choice = newest.choice(sequence, SymbolId::Repair(CodeId::Window, row));
        blocks.get_mut(sequence)?.add_windowed();
        Some(WindowChoice {
            choice,
            span,
            slots,
            row,
        })
    }
}

/// Whether repairs may cover several blocks of this symbol size.
fn is_possible(code: CodeId, symbol_len: u16, room: usize) -> bool {
    // The window of such a session covers everything; of a rateless code there are no source symbols.
    let has_room = WINDOW_PREFIX_LEN + usize::from(symbol_len) <= room;
    code != CodeId::Window && !coding::is_rateless(Some(code)) && has_room
}

/// Blocks of datagrams up to this one, newest first, that have left and that a repair which leaves now can restore in time, and how many source
/// symbols each has.
fn in_time(
    blocks: &BlockStore,
    newest: BlockId,
    horizon: Horizon,
) -> impl Iterator<Item = (BlockId, u16)> + '_ {
    let sequences = blocks
        .first_sequence()
        .until(newest + 1)
        .rev()
        .take(2 * SHARING_MAX);
    let known = sequences.filter_map(|at| Some((at, blocks.get(at)?)));
    let of_use = known.filter(move |(_, block)| {
        let lifetime = block.lifetime.filter(|it| it.repair != RepairMode::None);
        lifetime.is_some_and(|lifetime| horizon.answers(lifetime.until).is_some())
            && block.unsent() == 0
    });
    of_use.map(|(at, block)| (at, block.n))
}

/// The largest number of four in each doubling that is not above this, so that not every block asks for another rate.
fn in_steps(following: u32) -> u32 {
    let step = (following + 1).next_power_of_two() / 8;
    following - following % step.max(1)
}

/// Repairs for every source symbol. Remembers its answers, which take long to find where many symbols follow.
#[derive(Debug, Default)]
struct Rate {
    answers: BTreeMap<(u32, u32, u32), f64>,
}

impl Rate {
    /// Largest rate that is tried.
    const MAX: u32 = 4;
    /// Answers that are remembered.
    const ANSWERS_MAX: usize = 64;
    /// Steps of the loss rate, rounded up, so that not every packet asks anew.
    const PLR_STEPS: f64 = 250.0;

    /// With which a symbol is lost and not restored with a probability of at most `epsilon`, if `following` others leave while it can be.
    /// The rate is found to one part of so many.
    fn of(&mut self, following: u32, plr: f64, (epsilon, parts): (f64, u32)) -> f64 {
        let steps = (plr.clamp(0.0, 0.95) * Self::PLR_STEPS).ceil();
        let question = (following, steps as u32, parts);
        if let Some(rate) = self.answers.get(&question) {
            return *rate;
        }
        if self.answers.len() == Self::ANSWERS_MAX {
            self.answers.clear();
        }
        let plr = steps / Self::PLR_STEPS;
        let rates = (0..Self::MAX * parts).map(|step| f64::from(step) / f64::from(parts));
        let rates: Vec<f64> = rates.collect();
        let at = rates.partition_point(|rate| shortfall(following, *rate, plr) > epsilon);
        let rate = rates.get(at).copied().unwrap_or(f64::from(Self::MAX));
        self.answers.insert(question, rate);
        rate
    }
}

/// How probable it is that a symbol is lost and stays so while `following` others leave, each lost with probability `plr`, with `rate` repairs for each.
///
/// What is lost comes back when as many repairs have arrived as symbols are missing. The number of these is followed from symbol to symbol: a loss makes it
/// larger by one, a repair that arrives smaller.
fn shortfall(following: u32, rate: f64, plr: f64) -> f64 {
    /// Missing symbols at most; more do not come back in time anyway.
    const MISSING: usize = 64;
    /// Positions of the symbol between two repairs over which the mean is taken.
    const PHASES: u32 = 4;
    let lose = |missing: &mut [f64; MISSING + 1]| {
        for at in (0..MISSING).rev() {
            let lost = missing[at] * plr;
            missing[at] -= lost;
            missing[at + 1] += lost;
        }
    };
    let restore = |missing: &mut [f64; MISSING + 1]| {
        for at in 1..=MISSING {
            let arrived = missing[at] * (1.0 - plr);
            missing[at] -= arrived;
            missing[at - 1] += arrived;
        }
    };
    let of_phase = |phase: u32| {
        let offset = f64::from(phase) / f64::from(PHASES);
        let sent = |symbols: u32| (offset + rate * f64::from(symbols)) as u32;
        let repairs = |symbol: u32| sent(symbol + 1) - sent(symbol);
        let mut missing = [0.0; MISSING + 1];
        missing[0] = 1.0;
        for symbol in 0..following {
            lose(&mut missing);
            (0..repairs(symbol)).for_each(|_| restore(&mut missing));
        }
        // The symbol in question is lost here.
        missing.rotate_right(1);
        missing[0] = 0.0;
        for symbol in following..=2 * following {
            if symbol > following {
                lose(&mut missing);
            }
            for _ in 0..repairs(symbol) {
                restore(&mut missing);
                // The symbol in question has been restored.
                missing[0] = 0.0;
            }
        }
        plr * missing.iter().sum::<f64>()
    };
    (0..PHASES).map(of_phase).sum::<f64>() / f64::from(PHASES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PathId;
    use crate::blocks::NewBlock;
    use crate::blocks::store::Demands;
    use crate::config::{Icm, Profile};
    use crate::time::time;
    use crate::types::{Lifetime, Slot, Urgency};

    /// Blocks leave every half a millisecond; how long a loss of the latest one waits beyond a round trip of 100 ms.
    #[test]
    fn losses_wait_for_repairs_only_where_some_are_sent() {
        const MS: Nanos = 1_000_000;
        let redundancy = Redundancy {
            profile: Profile::Latency,
            code: Some(CodeId::Rlc),
            icm: Icm::Default,
            epsilon: 0.002,
        };
        for (plr, waits) in [(0.06, 50), (0.01, 50), (0.001, 0), (0.0, 0)] {
            let (mut store, mut ahead) = (BlockStore::default(), Ahead::default());
            let (mut now, mut latest) = (Time::ZERO, BlockId::ZERO);
            for at in 0..=200 {
                now = time(at * MS / 2);
                let new = NewBlock {
                    streams: Box::default(),
                    slot: Slot(0),
                    n: 1,
                    symbol_len: 100,
                    tail: true,
                    urgency: Urgency::default(),
                    lifetime: Some(Lifetime {
                        until: time(1000 * MS),
                        repair: RepairMode::Together,
                    }),
                };
                latest = store.push(new, Demands::default());
                store.take_source(PathId::FIRST);
                let moment = (now, 100 * MS);
                ahead.share(&mut store, redundancy, latest, moment, (plr, 1.0), 1200);
            }
            let block = store.get(latest).expect("just sent");
            let wait = block.shared_until.saturating_sub(now) / MS;
            assert_eq!(wait, 100 + waits, "{plr} lost");
        }
    }

    #[test]
    fn the_more_follow_the_fewer_repairs_are_needed() {
        let mut rate = Rate::default();
        for (following, plr, expected) in [
            (2, 0.1, 1.0),
            (7, 0.1, 0.5),
            (20, 0.1, 0.375),
            (7, 0.02, 0.25),
            (7, 0.3, 1.25),
            (7, 0.0, 0.0),
            (1, 0.9, 4.0),
        ] {
            let found = rate.of(following, plr, (0.002, PARTS));
            assert_eq!(found, expected, "{following} follow, {plr} lost");
        }
    }

    /// One symbol before, one that follows, and a repair for each; one in ten is lost.
    #[test]
    fn a_case_by_hand() {
        // It is lost, and so is its repair, or that restores the one before; what then misses one symbol, or two …
        let one: f64 = (1.0 - 0.01) * 0.1 + 0.01 * 0.9;
        let two = 0.01 * 0.1;
        // … goes on to do so, unless the next one and its repair arrive and one is enough.
        let still = one + two - one * 0.9 * 0.9;
        let found = shortfall(1, 1.0, 0.1);
        assert!((found - 0.1 * still).abs() < 1e-12, "{found}");
    }
}
