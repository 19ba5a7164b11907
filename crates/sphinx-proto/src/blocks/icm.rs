//! ICM: how lost symbols are compensated, and when.
//!
//! What is lost is always known from the packet log. [`Icm`] decides when it is compensated: at once,
//! by the paper's block rule, or by a timer.

use std::collections::BTreeSet;

use crate::config::{Icm, Profile};
use crate::path::Monitor;
use crate::types::RepairMode;
use crate::wire::SymbolId;
use crate::{BlockId, Nanos, Time};

use super::Redundancy;
use super::coding;
use super::deadline::Horizon;
use super::selector::{EPSILON_REACTIVE, flight_repair};
use super::store::{BlockStore, TxBlock};

/// Repair rows of one block that the peer may claim without any packet of it being lost, per
/// source symbol.
const CLAIMS_PER_SYMBOL_MAX: u32 = 8;
/// Mean degree of a row of `lt`, about: source symbols that it combines.
const LT_DEGREE: u32 = 8;
/// Rounds of repair in which bulk data is patient: repair is pooled and has no margin, since later
/// data fills the link while what is still missing is found out.
const PATIENT_ROUNDS: u8 = 3;
/// The paper's rule: a SACK reports on more blocks than this …
const RULE_BLOCKS: usize = 2;
/// … and on more symbols of the latest block than this.
const RULE_SYMBOLS: u32 = 3;
/// A loss that shared repairs may restore waits for the peer's feedback 1/SHARED_PART of a round trip longer than these repairs take: as long as a
/// SACK may be delayed.
const SHARED_PART: Nanos = 8;

/// Losses that the peer or the packet log has shown and that no repair has been sent for yet.
#[derive(Debug, Default)]
pub(crate) struct Compensation {
    /// Fraction of a repair packet owed to later deficits (pooled ReFEC).
    carry: f64,
    /// Sequences with losses whose compensation waits ([`Icm::Paper`], [`Icm::Off`]).
    waiting: BTreeSet<BlockId>,
    /// Blocks of datagrams that have lost symbols, and from when on repairs that they share with others cannot have restored them any more.
    shared: BTreeSet<(Time, BlockId)>,
    /// Highest block of which a symbol has arrived.
    latest_seen: BlockId,
    /// Highest block that is complete.
    latest_complete: BlockId,
}

impl Compensation {
    /// Symbols of a block have arrived; `late`: after they had been declared lost. Returns whether the block may have needed any of them.
    #[inline]
    pub(crate) fn symbols_arrived(
        &mut self,
        blocks: &mut BlockStore,
        redundancy: Redundancy,
        (sequence, symbols, late): (BlockId, impl Iterator<Item = SymbolId>, bool),
    ) -> bool {
        self.latest_seen = self.latest_seen.max(sequence);
        let Some(mut block) = blocks.get_mut(sequence) else {
            return true;
        };
        let mut is_needed = false;
        for symbol in symbols {
            let Some(late) = block.arrived(symbol, late) else {
                continue;
            };
            is_needed |= block.acked() <= block.needed();
            if late && block.undo_loss(symbol, redundancy.is_peeling()) {
                blocks.forgive(sequence);
                let Some(again) = blocks.get_mut(sequence) else {
                    break;
                };
                block = again;
            }
        }
        is_needed
    }

    /// A symbol has been declared lost. `horizon` tells whether an answer to it can still be in time, for blocks of datagrams.
    pub(crate) fn symbol_lost(
        &mut self,
        blocks: &mut BlockStore,
        redundancy: Redundancy,
        (sequence, round, symbol): (BlockId, u8, SymbolId),
        horizon: Horizon,
        monitor: &Monitor,
    ) {
        let originals = redundancy.is_peeling() || redundancy.icm == Icm::Paper;
        let Some(block) = blocks.get_mut(sequence) else {
            return;
        };
        if !block.lost(symbol, round) {
            return;
        }
        if let Some(lifetime) = block.lifetime {
            let lost = (sequence, round);
            if horizon.now >= lifetime.until && block.flight_passed() {
                // Too late for any repair, and nothing of the block is on its way any more.
                blocks.doom(sequence);
                return;
            }
            if round == 0 && horizon.now < block.shared_until {
                self.shared.insert((block.shared_until, sequence));
                return;
            }
            if lifetime.repair != RepairMode::None {
                blocks.answer_in_time(redundancy, lost, horizon, monitor.plr());
            } else {
                blocks.doom(sequence);
            }
            return;
        }
        if originals {
            block.lost_sources.extend(symbol.source());
        }
        match redundancy.icm {
            Icm::Default => self.compensate(blocks, redundancy, (sequence, round), monitor),
            Icm::Paper | Icm::Off => {
                self.waiting.insert(sequence);
            }
        }
    }

    /// When the next loss is answered that shared repairs may have restored, unless the peer reports on it before: a little later than its report is
    /// expected. At the end of a flight no further report may come.
    pub(crate) fn shared_deadline(&self, rtt: Nanos) -> Option<Time> {
        let (at, _) = self.shared.first()?;
        Some(at.saturating_add(rtt / SHARED_PART))
    }

    /// Answers losses that shared repairs have not restored. `is_heard`: a report of the peer has just said so; otherwise none has come in time.
    pub(crate) fn answer_shared(
        &mut self,
        blocks: &mut BlockStore,
        redundancy: Redundancy,
        (horizon, is_heard): (Horizon, bool),
        monitor: &Monitor,
    ) {
        let silence = match is_heard {
            true => 0,
            false => horizon.rtt / SHARED_PART,
        };
        let is_over = |at: Time| at.saturating_add(silence) <= horizon.now;
        while let Some(&(at, sequence)) = self.shared.first().filter(|first| is_over(first.0)) {
            self.shared.remove(&(at, sequence));
            blocks.answer_in_time(redundancy, (sequence, 0), horizon, monitor.plr());
        }
    }

    /// The block will never be complete.
    pub(crate) fn forget(&mut self, sequence: BlockId) {
        self.waiting.remove(&sequence);
    }

    /// The block is complete.
    pub(crate) fn settled(&mut self, sequence: BlockId) {
        self.forget(sequence);
        self.latest_complete = self.latest_complete.max(sequence);
    }

    /// Replace what the block now lacks by fresh repair rows (ReFEC), or by the originals.
    fn compensate(
        &mut self,
        blocks: &mut BlockStore,
        redundancy: Redundancy,
        (sequence, round): (BlockId, u8),
        monitor: &Monitor,
    ) {
        let plr = monitor.plr();
        let patient =
            redundancy.profile == Profile::Bulk && blocks.has_unsent() && round < PATIENT_ROUNDS;
        let Some(block) = blocks.get_mut(sequence) else {
            return;
        };
        let rows = if redundancy.is_peeling() {
            // Only when the whole flight has passed is it known what peeling could not restore.
            if !block.flight_passed() {
                return;
            }
            (block.lost_sources.len() as u32).max(1)
        } else {
            let missing = block.deficit();
            if missing == 0 {
                return;
            }
            if patient {
                // Later blocks keep the link full meanwhile: send what is expected to be needed and no margin, with one carry for all blocks.
                self.carry += f64::from(missing) * plr / (1.0 - plr).max(0.05);
                let extra = self.carry.floor();
                self.carry -= extra;
                missing + extra as u32
            } else {
                let needed = block.needed().saturating_sub(block.acked());
                flight_repair(needed, block.expected(), plr, EPSILON_REACTIVE).max(missing)
            }
        };
        block.rounds = block.rounds.max(round.saturating_add(1));
        blocks.owe(sequence, rows, false);
    }

    /// The receiver says that a block whose flight has passed lacks `deficit` symbols. Normally the
    /// packet log already knows; this covers rows that turned out to be dependent.
    ///
    /// To be called after the SACK that came with it, which says what is still in flight. Of datagrams `horizon` says whether an answer would be in time.
    pub(crate) fn on_deficit(
        &mut self,
        blocks: &mut BlockStore,
        redundancy: Redundancy,
        (horizon, sequence, deficit): (Horizon, BlockId, u32),
        monitor: &Monitor,
    ) {
        let is_wanted = |block: &TxBlock| {
            let is_over = block.flight_passed() && block.shared_until <= horizon.now;
            is_over && block.is_worth_repair(horizon)
        };
        let Some(block) = blocks.get_mut(sequence).filter(|block| is_wanted(block)) else {
            return;
        };
        block.wanted = deficit;
        if redundancy.icm == Icm::Default {
            grant_claim(blocks, redundancy, sequence, monitor);
        } else {
            self.waiting.insert(sequence);
        }
    }

    // ---- the paper's rule, timers ---------------------------------------------------------------

    /// Everything in a packet with feedback has been heard: the paper's rule. Each block is compensated at most
    /// once in `rtt`.
    pub(crate) fn on_feedback(
        &mut self,
        blocks: &mut BlockStore,
        redundancy: Redundancy,
        (now, rtt): (Time, Nanos),
        monitor: &Monitor,
    ) {
        if redundancy.icm == Icm::Paper {
            let below = self.known_missing_below(blocks);
            self.compensate_below(blocks, redundancy, (now, rtt, below), monitor);
        }
    }

    /// No later block will show the losses of those that wait, so they are compensated now, each at most once in `rtt`.
    pub(crate) fn on_silence(
        &mut self,
        blocks: &mut BlockStore,
        redundancy: Redundancy,
        (now, rtt): (Time, Nanos),
        monitor: &Monitor,
    ) {
        self.compensate_below(blocks, redundancy, (now, rtt, BlockId::MAX), monitor);
    }

    /// Blocks below this sequence that are not complete count as missing.
    fn known_missing_below(&self, blocks: &BlockStore) -> BlockId {
        let reported = blocks.iter().take_while(|(at, _)| *at <= self.latest_seen);
        let is_many = reported.take(RULE_BLOCKS + 1).count() > RULE_BLOCKS;
        let latest = blocks.get(self.latest_seen);
        if is_many && latest.is_some_and(|block| block.acked() > RULE_SYMBOLS) {
            self.latest_seen
        } else {
            // A complete block shows that those before it lack symbols, even if the Symbol-SACKs that would say so were lost.
            self.latest_complete
        }
    }

    fn compensate_below(
        &mut self,
        blocks: &mut BlockStore,
        redundancy: Redundancy,
        (now, rtt, below): (Time, Nanos, BlockId),
        monitor: &Monitor,
    ) {
        let due = |sequence, block: &TxBlock| {
            let damped = block
                .compensated
                .is_some_and(|at| now < at.saturating_add(rtt));
            sequence < below && !damped
        };
        self.compensate_where(blocks, redundancy, now, monitor, due);
    }

    /// When the next waiting block is to be compensated by its timer, `wait` after its last symbol.
    pub(crate) fn deadline(
        &self,
        blocks: &BlockStore,
        redundancy: Redundancy,
        wait: Nanos,
    ) -> Option<Time> {
        if redundancy.icm != Icm::Off {
            return None;
        }
        let peeling = redundancy.is_peeling();
        let ready = self.waiting.iter().filter_map(|at| blocks.get(*at));
        ready
            .filter(|block| block.is_deficient(peeling))
            .map(|block| block.last_sent().saturating_add(wait))
            .min()
    }

    /// Compensate blocks whose timers have run out.
    pub(crate) fn on_timeout(
        &mut self,
        blocks: &mut BlockStore,
        redundancy: Redundancy,
        (now, wait): (Time, Nanos),
        monitor: &Monitor,
    ) {
        if redundancy.icm == Icm::Off {
            let due = |_, block: &TxBlock| block.last_sent().saturating_add(wait) <= now;
            self.compensate_where(blocks, redundancy, now, monitor, due);
        }
    }

    fn compensate_where(
        &mut self,
        blocks: &mut BlockStore,
        redundancy: Redundancy,
        now: Time,
        monitor: &Monitor,
        due: impl Fn(BlockId, &TxBlock) -> bool,
    ) {
        let peeling = redundancy.is_peeling();
        let is_due = |sequence: &BlockId| {
            let block = blocks.get(*sequence);
            block.is_some_and(|block| block.is_deficient(peeling) && due(*sequence, block))
        };
        let chosen: Vec<BlockId> = self.waiting.iter().copied().filter(is_due).collect();
        for sequence in chosen {
            self.waiting.remove(&sequence);
            let Some(block) = blocks.get_mut(sequence) else {
                continue;
            };
            block.compensated = Some(now);
            if block.has_lost(peeling) {
                let round = block.lost_round;
                self.compensate(blocks, redundancy, (sequence, round), monitor);
            } else {
                grant_claim(blocks, redundancy, sequence, monitor);
            }
        }
    }
}

/// Owes repair for a deficit that the peer reports and that no lost packet explains: bounded, as the claim may be false.
fn grant_claim(
    blocks: &mut BlockStore,
    redundancy: Redundancy,
    sequence: BlockId,
    monitor: &Monitor,
) {
    let Some(block) = blocks.get_mut(sequence) else {
        return;
    };
    let n = u32::from(block.n);
    let rows = flight_repair(block.wanted.min(n), 0, monitor.plr(), EPSILON_REACTIVE);
    // With `lt` a given symbol is in about one of n/LT_DEGREE rows.
    let rateless = coding::is_rateless(redundancy.code);
    let rows = rows.max(if rateless { n / LT_DEGREE } else { 0 });
    let rows = rows.min(CLAIMS_PER_SYMBOL_MAX * n - block.claimed);
    block.wanted = 0;
    block.claimed += rows;
    block.rounds = block.rounds.saturating_add(u8::from(rows > 0));
    blocks.owe(sequence, rows, false);
}

impl TxBlock {
    /// Whether symbols have been lost that compensation replaces.
    fn has_lost(&self, peeling: bool) -> bool {
        self.deficit() > 0 || peeling && !self.lost_sources.is_empty()
    }

    /// Whether compensation has something to do, once its time has come.
    fn is_deficient(&self, peeling: bool) -> bool {
        let lost = self.has_lost(peeling);
        if peeling || !lost {
            self.flight_passed() && (lost || self.wanted > 0)
        } else {
            self.is_sent()
        }
    }

    /// A symbol that had been declared lost has arrived: whether one of the repair rows that are owed for it is not needed any more.
    fn undo_loss(&mut self, symbol: SymbolId, peeling: bool) -> bool {
        let before = self.lost_sources.len();
        self.lost_sources
            .retain(|lost| Some(*lost) != symbol.source());
        if peeling {
            // Under peeling the number of symbols does not tell whether enough have arrived; but an original is not needed twice.
            self.lost_sources.len() < before
        } else {
            self.acked() + self.expected() > self.needed()
        }
    }
}
