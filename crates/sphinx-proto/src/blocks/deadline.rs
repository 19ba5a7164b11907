//! Repair of datagrams, which are of no use after a while.
//!
//! A loss is answered with repair if that can arrive in time. While there is time for yet another
//! answer after it, an answer has just as many symbols as are missing; the last answer for which
//! there is time has as many more as make it likely to suffice. Repair is sent ahead of loss where
//! no answer would be in time, or where the application wants it because later datagrams wait for a
//! lost one. In the second case losses are answered only once all repairs that could restore them
//! have arrived or are lost.

use crate::types::{RepairMode, Urgency};
use crate::{BlockId, Nanos, Time};

use super::Redundancy;
use super::coding;
use super::selector::{EPSILON_REACTIVE, flight_repair};
use super::store::{BlockStore, TxBlock};

/// A datagram is short if its symbol has at most so many bytes.
const BRIEF_MAX: u16 = 256;
/// Repairs of a short datagram follow it within this time, and are at most so many.
const BRIEF_AFTER: Nanos = 2_000_000;
const BRIEF_ROWS_MAX: u32 = 2;
/// On paths with a shorter round trip an answer to a loss is soon enough.
const BRIEF_RTT_MIN: Nanos = 20_000_000;

/// What a packet that leaves now takes to arrive, and to be answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Horizon {
    pub(crate) now: Time,
    /// Smoothed round-trip time.
    pub(crate) rtt: Nanos,
    /// How long after its departure a packet that is not acknowledged counts as lost, while later
    /// packets are acknowledged; the delay of the SACK that says so is included.
    pub(crate) loss_after: Nanos,
}

impl Horizon {
    /// If what leaves now is lost as well, how many answers to that can follow in time, one after
    /// the other; `None` if what leaves now arrives too late itself.
    pub(super) fn answers(&self, until: Time) -> Option<u64> {
        let left = until.checked_sub(self.now + self.rtt / 2)?;
        Some(left / self.loss_after.max(1))
    }

    /// Repair symbols to send ahead of loss per source symbol, for a block of n that is of use
    /// until `until` and is protected alone; 0 where an answer to a loss would be in time, or even
    /// what leaves now would not be.
    pub(crate) fn repair_ahead(
        &self,
        redundancy: Redundancy,
        (n, until): (u16, Time),
        plr: f64,
    ) -> f64 {
        if redundancy.code.is_none() || self.answers(until) != Some(0) {
            return 0.0;
        }
        let n = u32::from(n);
        f64::from(flight_repair(n, n, plr, redundancy.epsilon)) / f64::from(n)
    }
}

impl TxBlock {
    /// Whether lost symbols of this block are to be replaced: always those of streams; those of
    /// datagrams if they may be, and what leaves now arrives in time.
    pub(super) fn is_worth_repair(&self, horizon: Horizon) -> bool {
        let is_in_time = |until| horizon.answers(until).is_some();
        self.lifetime
            .is_none_or(|it| it.repair != RepairMode::None && is_in_time(it.until))
    }
}

impl BlockStore {
    /// When repair of a block of datagrams must leave at the latest, if it is needed ahead of loss
    /// because no answer to a loss can arrive in time.
    pub(crate) fn needs_repair_ahead(&self, sequence: BlockId, horizon: Horizon) -> Option<Time> {
        let lifetime = self.get(sequence)?.lifetime;
        let lifetime = lifetime.filter(|it| it.repair != RepairMode::None)?;
        let is_all = horizon.answers(lifetime.until) == Some(0);
        is_all.then(|| lifetime.until.earlier_by(horizon.rtt / 2))
    }

    /// Whether a block of datagrams is to be repaired ahead of loss together with others, although answers would be in time.
    pub(crate) fn may_share(&self, sequence: BlockId) -> bool {
        let lifetime = self.get(sequence).and_then(|block| block.lifetime);
        lifetime.is_some_and(|it| it.repair == RepairMode::Together)
    }

    /// The last source symbol leaves of a block whose losses can be answered in time. A short
    /// datagram that is more urgent than most gets repairs ahead of loss all the same: people wait
    /// for it (keystrokes, echoes, name lookups), and beside bulk data it is hardly any bytes. The
    /// repairs leave a little later, so that one burst of losses does not take both.
    pub(crate) fn protect_brief(
        &mut self,
        redundancy: Redundancy,
        sequence: BlockId,
        (now, rtt): (Time, Nanos),
        plr: f64,
    ) {
        let Some(block) = self.get(sequence).filter(|_| redundancy.code.is_some()) else {
            return;
        };
        let repaired = block.lifetime.filter(|it| it.repair != RepairMode::None);
        let is_brief = block.n == 1 && block.symbol_len <= BRIEF_MAX;
        let is_first = block.urgency < Urgency::default();
        if repaired.is_none() || !is_brief || !is_first || rtt < BRIEF_RTT_MIN {
            return;
        }
        let rows = flight_repair(1, 1, plr, redundancy.epsilon).min(BRIEF_ROWS_MAX);
        self.owe_rides(sequence, rows, now + BRIEF_AFTER);
    }

    /// The last source symbol of a block that needs repair ahead leaves, and it is protected alone.
    pub(crate) fn protect_alone(&mut self, redundancy: Redundancy, sequence: BlockId, plr: f64) {
        let (Some(code), Some(block)) = (redundancy.code, self.get_mut(sequence)) else {
            return;
        };
        let needed = block.needed().saturating_sub(block.acked());
        let rows = flight_repair(needed, block.expected(), plr, redundancy.epsilon);
        if rows > 0 {
            block.shape = coding::shape(code, block, rows, (plr, 1.0), redundancy.epsilon);
            self.owe(sequence, rows, true);
        }
    }

    /// A symbol of a block of datagrams, sent in this round, is lost.
    pub(super) fn answer_in_time(
        &mut self,
        redundancy: Redundancy,
        (sequence, round): (BlockId, u8),
        horizon: Horizon,
        plr: f64,
    ) {
        let Some(block) = self.get_mut(sequence) else {
            return;
        };
        let until = block.lifetime.map_or(Time::ZERO, |lifetime| lifetime.until);
        // Shared repairs that have arrived may have restored other blocks instead: this one counts
        // as lacking a symbol at least.
        let least = u32::from(block.shared_until > Time::ZERO && block.flight_passed());
        let (missing, expected) = (block.deficit().max(least), block.expected());
        let rows = match horizon.answers(until) {
            None => 0,
            Some(0) if missing > 0 => {
                let needed = block.needed().saturating_sub(block.acked());
                // An answer is needed only with the probability of a loss. So it may fail more
                // often than a block may, by the inverse of that.
                let epsilon = (redundancy.epsilon / plr.max(redundancy.epsilon)).min(0.5);
                flight_repair(needed, expected, plr, epsilon).max(missing)
            }
            // It has waited for shared repairs first: spare symbols make a second answer unlikely.
            Some(_) if block.shared_until > Time::ZERO => {
                flight_repair(missing, 0, plr, EPSILON_REACTIVE)
            }
            Some(_) => missing,
        };
        if rows > 0 {
            block.rounds = block.rounds.max(round.saturating_add(1));
            self.owe(sequence, rows, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::store::Demands;
    use crate::blocks::{Compensation, NewBlock};
    use crate::path::Monitor;
    use crate::time::time;
    use crate::types::{Lifetime, Slot};
    use crate::wire::{ConnectionId, SymbolId};
    use crate::{Config, ConnectionIds, PathId, Role, Tuple};

    const MS: Nanos = 1_000_000;
    const SEC: Nanos = 1000 * MS;

    fn redundancy() -> Redundancy {
        let tuple = Tuple {
            remote: ([127, 0, 0, 1], 1).into(),
            local_ip: None,
        };
        let id = || ConnectionId::new([1; 8]).expect("not zero");
        let ids = ConnectionIds {
            local: id(),
            peer: id(),
        };
        Redundancy::new(&Config::new(Role::Client, tuple, ids))
    }

    /// A block of n symbols of datagrams that are of use for 100 ms, all of which have left.
    fn sent(n: u16, repair: RepairMode) -> (BlockStore, BlockId) {
        let mut store = BlockStore::default();
        let new = NewBlock {
            streams: Box::default(),
            slot: Slot(0),
            n,
            symbol_len: 100,
            tail: true,
            urgency: Urgency::default(),
            lifetime: Some(Lifetime {
                until: time(100 * MS),
                repair,
            }),
        };
        let sequence = store.push(new, Demands::default());
        for _ in 0..n {
            store.take_source(PathId::FIRST);
        }
        (store, sequence)
    }

    fn horizon(ms: u64) -> Horizon {
        Horizon {
            now: time(ms * MS),
            rtt: 40 * MS,
            loss_after: 50 * MS,
        }
    }

    /// A source symbol of the first transmission is found to be lost.
    fn lose(
        compensation: &mut Compensation,
        store: &mut BlockStore,
        (sequence, index): (BlockId, u16),
        ms: u64,
    ) {
        let lost = (sequence, 0, SymbolId::Source(index));
        let monitor = Monitor::default();
        compensation.symbol_lost(store, redundancy(), lost, horizon(ms), &monitor);
    }

    /// The peer goes on saying what it lacks until it hears that no more comes.
    #[test]
    fn what_would_come_too_late_is_not_sent_whoever_asks_for_it() {
        let (monitor, redundancy) = (Monitor::default(), redundancy());
        for (ms, is_in_time) in [(79, true), (81, false)] {
            let (mut store, sequence) = sent(2, RepairMode::InTime);
            let mut compensation = Compensation::default();
            let arrived = std::iter::once(SymbolId::Source(0));
            compensation.symbols_arrived(&mut store, redundancy, (sequence, arrived, false));
            lose(&mut compensation, &mut store, (sequence, 1), ms);
            assert_eq!(store.is_owing(), is_in_time, "{ms} ms");
            let lacking = (horizon(ms), sequence, 1);
            compensation.on_deficit(&mut store, redundancy, lacking, &monitor);
            assert_eq!(store.is_owing(), is_in_time, "{ms} ms: a claim");
            let probes = store.owe_probes((2, false), horizon(ms), 0.06);
            assert_eq!(probes > 0, is_in_time, "{ms} ms: a probe");
        }
    }

    #[test]
    fn what_is_over_is_owed_nothing_and_waited_for_while_it_is_on_its_way() {
        let (mut store, sequence) = sent(2, RepairMode::InTime);
        let mut compensation = Compensation::default();
        store.owe(sequence, 2, false);
        store.owe_rides(sequence, 1, time(110 * MS));
        assert_eq!(store.next_expired(time(99 * MS), 80 * MS), None);
        assert!(store.is_owing());
        assert_eq!(store.next_expired(time(100 * MS), 80 * MS), None);
        assert!(!store.is_owing() && store.rides_until().is_none());
        lose(&mut compensation, &mut store, (sequence, 0), 120);
        assert_eq!(store.next_expired(time(120 * MS), 80 * MS), None);
        lose(&mut compensation, &mut store, (sequence, 1), 121);
        assert!(!store.is_owing());
        let expired = store.next_expired(time(121 * MS), 80 * MS);
        assert_eq!(expired, Some(sequence));
    }

    /// The last feedback of a flight can come before shared repairs have had their time.
    #[test]
    fn a_loss_that_shares_repairs_is_answered_although_nothing_is_heard() {
        let (monitor, redundancy) = (Monitor::default(), redundancy());
        for (ms, is_heard, is_answered) in [
            (59, true, false),
            (60, true, true),
            (60, false, false),
            (65, false, true),
        ] {
            let (mut store, sequence) = sent(1, RepairMode::Together);
            let mut compensation = Compensation::default();
            assert_eq!(compensation.shared_deadline(40 * MS), None);
            let block = store.get_mut(sequence).expect("just sent");
            block.shared_until = time(60 * MS);
            lose(&mut compensation, &mut store, (sequence, 0), 50);
            assert_eq!(compensation.shared_deadline(40 * MS), Some(time(65 * MS)));
            let moment = (horizon(ms), is_heard);
            compensation.answer_shared(&mut store, redundancy, moment, &monitor);
            assert_eq!(store.is_owing(), is_answered, "{ms} ms, {is_heard}");
            let is_waiting = compensation.shared_deadline(40 * MS).is_some();
            assert_eq!(is_waiting, !is_answered);
        }
    }

    #[test]
    fn answers_that_fit() {
        let horizon = Horizon {
            now: time(1000 * MS),
            rtt: 50 * MS,
            loss_after: 60 * MS,
        };
        for (left, answers) in [
            (24, None),
            (25, Some(0)),
            (84, Some(0)),
            (85, Some(1)),
            (145, Some(2)),
        ] {
            assert_eq!(
                horizon.answers(time((1000 + left) * MS)),
                answers,
                "{left} ms"
            );
        }
    }

    /// Repairs follow a block that is urgent and short, on a path that loses packets and has a long
    /// round trip.
    #[test]
    fn urgent_short_datagrams_are_followed_by_repairs() {
        let redundancy = redundancy();
        let repairs = |urgency: u8, symbol_len, repair, rtt: Nanos, plr| {
            let mut store = BlockStore::default();
            let new = NewBlock {
                streams: Box::default(),
                slot: Slot(0),
                n: 1,
                symbol_len,
                tail: true,
                urgency: Urgency::new(urgency),
                lifetime: Some(Lifetime {
                    until: time(SEC),
                    repair,
                }),
            };
            let sequence = store.push(new, Demands::default());
            store.take_source(PathId::FIRST);
            store.protect_brief(redundancy, sequence, (time(5 * MS), rtt), plr);
            // The repairs do not leave at once, but a moment later.
            assert!(!store.is_owing());
            store.end_rides(time(5 * MS) + BRIEF_AFTER);
            store.get(sequence).expect("there").due()
        };
        let (in_time, rtt) = (RepairMode::InTime, 50 * MS);
        assert_eq!(repairs(2, 100, in_time, rtt, 0.06), 2);
        assert_eq!(repairs(2, 100, RepairMode::Together, rtt, 0.01), 1);
        assert_eq!(repairs(2, 100, in_time, rtt, 0.0), 0);
        assert_eq!(repairs(3, 100, in_time, rtt, 0.06), 0);
        assert_eq!(repairs(2, 1000, in_time, rtt, 0.06), 0);
        assert_eq!(repairs(2, 100, RepairMode::None, rtt, 0.06), 0);
        assert_eq!(repairs(2, 100, in_time, 10 * MS, 0.06), 0);
    }
}
