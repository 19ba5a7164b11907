//! ICM: how lost symbols are compensated, and when.
//!
//! What is lost is always known from the packet log. [`Icm`] decides when it is compensated: at once,
//! by the paper's block rule, or by a timer.

use super::Sender;
use crate::Nanos;
use crate::block::TxBlock;
use crate::coding;
use crate::config::{Icm, Profile};
use crate::selector::{EPSILON_REACTIVE, flight_repair};
use crate::wire::SymbolId;

/// Repair rows of one block that the peer may claim without any packet of it being lost, per
/// source symbol.
const CLAIMS_PER_SYMBOL_MAX: u32 = 8;
/// Symbols in a row of `lt`, about.
const LT_DEGREE: u32 = 8;
/// Rounds of repair in which bulk data is patient: repair is pooled and has no margin, since later
/// data fills the link while what is still missing is found out.
const PATIENT_ROUNDS: u8 = 3;
/// The paper's rule: a SACK reports on more blocks than this …
const RULE_BLOCKS: usize = 2;
/// … and on more symbols of the latest one.
const RULE_SYMBOLS: u32 = 3;

impl Sender {
    fn is_peeling(&self) -> bool {
        coding::is_peeling(self.code)
    }

    /// A symbol has arrived, perhaps after it was given up; whether the block may have needed it.
    pub(super) fn symbol_arrived(&mut self, sequence: u64, symbol: SymbolId, late: bool) -> bool {
        self.latest_seen = self.latest_seen.max(sequence);
        let peeling = self.is_peeling();
        let Some(block) = self.block_mut(sequence) else {
            return true;
        };
        let source = symbol.source();
        block.arrived(source);
        let needed = block.acked <= block.needed();
        if !late {
            block.in_flight -= 1;
        } else if block.undo_loss(source, peeling) {
            self.repairs.remove(&sequence);
        }
        needed
    }

    /// A symbol will not arrive.
    pub(super) fn symbol_lost(&mut self, sequence: u64, round: u8, symbol: SymbolId) {
        let originals = self.is_peeling() || self.icm == Icm::Paper;
        let Some(block) = self.block_mut(sequence) else {
            return;
        };
        block.in_flight -= 1;
        block.lost_round = block.lost_round.max(round);
        if originals {
            block.lost_sources.extend(symbol.source());
        }
        match self.icm {
            Icm::Default => self.compensate(sequence, round),
            Icm::Paper | Icm::Off => {
                self.waiting.insert(sequence);
            }
        }
    }

    /// Replace what the block now lacks by fresh repair rows (ReFEC), or by the originals.
    fn compensate(&mut self, sequence: u64, round: u8) {
        let plr = self.monitor.plr();
        let patient =
            self.profile == Profile::Bulk && !self.unsent.is_empty() && round < PATIENT_ROUNDS;
        let peeling = self.is_peeling();
        let carry = self.carry;
        let Some(block) = self.block_mut(sequence) else {
            return;
        };
        let mut left = carry;
        let rows = if peeling {
            // Only when the whole flight has passed is it known what peeling could not restore.
            if block.in_flight > 0 || block.unsent() > 0 || block.due > 0 {
                return;
            }
            (block.lost_sources.len() as u32).max(1)
        } else {
            let missing = block.deficit();
            if missing == 0 {
                return;
            }
            if patient {
                // Later blocks keep the link full: send the expectation, pooled over all blocks.
                left += f64::from(missing) * plr / (1.0 - plr).max(0.05);
                let extra = left.floor();
                left -= extra;
                missing + extra as u32
            } else {
                let needed = block.needed().saturating_sub(block.acked);
                flight_repair(needed, block.expected(), plr, EPSILON_REACTIVE).max(missing)
            }
        };
        block.due += rows;
        block.rounds = block.rounds.max(round.saturating_add(1));
        if rows > 0 {
            self.repairs.insert(sequence);
        }
        self.carry = left;
    }

    /// The receiver says that a block whose flight has passed lacks `deficit` symbols. Normally the
    /// packet log already knows; this covers rows that turned out to be dependent.
    ///
    /// To be called after the SACK that came with it, which says what is still in flight.
    pub(crate) fn on_deficit(&mut self, stream: u16, id: u64, deficit: u32) {
        let Some(tx) = self.streams.get(&stream) else {
            return;
        };
        let Some(at) = id.checked_sub(tx.first_id) else {
            return;
        };
        let Some(&sequence) = tx.sequences.get(at as usize) else {
            return;
        };
        let at_once = self.icm == Icm::Default;
        let Some(block) = self.block_mut(sequence) else {
            return;
        };
        if block.flight_passed() {
            block.wanted = deficit;
            if at_once {
                self.grant_claim(sequence);
            } else {
                self.waiting.insert(sequence);
            }
        }
    }

    /// Repair for what only the peer says is missing.
    fn grant_claim(&mut self, sequence: u64) {
        let plr = self.monitor.plr();
        let rateless = coding::is_rateless(self.code);
        let Some(block) = self.block_mut(sequence) else {
            return;
        };
        let n = u32::from(block.n);
        let rows = flight_repair(block.wanted.min(n), 0, plr, EPSILON_REACTIVE);
        // One row in so many holds a certain symbol.
        let rows = rows.max(if rateless { n / LT_DEGREE } else { 0 });
        block.wanted = 0;
        block.due = rows.min(CLAIMS_PER_SYMBOL_MAX * n - block.claimed);
        block.claimed += block.due;
        if block.due > 0 {
            block.rounds = block.rounds.saturating_add(1);
            self.repairs.insert(sequence);
        }
    }

    // ---- the paper's rule, timers ---------------------------------------------------------------

    /// Everything in a packet with feedback has been heard: the paper's rule.
    pub(crate) fn on_feedback(&mut self, now: Nanos) {
        if self.icm == Icm::Paper {
            self.compensate_waiting(now, self.known_missing_below());
        }
    }

    /// Blocks below this sequence that are not complete count as missing.
    fn known_missing_below(&self) -> u64 {
        let reported = self.latest_seen.saturating_sub(self.first_sequence) as usize + 1;
        let incomplete = self.blocks.iter().take(reported).flatten();
        let is_many = incomplete.take(RULE_BLOCKS + 1).count() > RULE_BLOCKS;
        let latest = self.block(self.latest_seen);
        if is_many && latest.is_some_and(|block| block.acked > RULE_SYMBOLS) {
            self.latest_seen
        } else {
            // A Block-SACK shows the same, whatever the Symbol-SACKs said.
            self.latest_complete
        }
    }

    /// Compensate waiting blocks below this sequence, each at most once per round trip.
    pub(super) fn compensate_waiting(&mut self, now: Nanos, below: u64) {
        let rtt = self.rtt.smoothed();
        self.compensate_where(now, |sequence, block| {
            let damped = block
                .compensated
                .is_some_and(|at| now < at.saturating_add(rtt));
            sequence < below && !damped
        });
    }

    /// When the next waiting block is to be compensated by its timer.
    pub(super) fn block_deadline(&self, max_ack_delay: Nanos) -> Option<Nanos> {
        if self.icm != Icm::Off {
            return None;
        }
        let peeling = self.is_peeling();
        let wait = self.probe_wait(max_ack_delay);
        let ready = self.waiting.iter().filter_map(|at| self.block(*at));
        ready
            .filter(|block| block.is_deficient(peeling))
            .map(|block| block.last_sent.saturating_add(wait))
            .min()
    }

    /// Compensate blocks whose timers have run out.
    pub(super) fn compensate_overdue(&mut self, now: Nanos, max_ack_delay: Nanos) {
        if self.icm != Icm::Off {
            return;
        }
        let wait = self.probe_wait(max_ack_delay);
        self.compensate_where(now, |_, block| block.last_sent.saturating_add(wait) <= now);
    }

    fn compensate_where(&mut self, now: Nanos, due: impl Fn(u64, &TxBlock) -> bool) {
        let peeling = self.is_peeling();
        let is_due = |sequence: &u64| {
            self.block(*sequence)
                .is_some_and(|block| block.is_deficient(peeling) && due(*sequence, block))
        };
        let chosen: Vec<u64> = self.waiting.iter().copied().filter(is_due).collect();
        for sequence in chosen {
            self.waiting.remove(&sequence);
            let Some(block) = self.block_mut(sequence) else {
                continue;
            };
            block.compensated = Some(now);
            if block.deficit() > 0 || peeling && !block.lost_sources.is_empty() {
                let round = block.lost_round;
                self.compensate(sequence, round);
            } else {
                self.grant_claim(sequence);
            }
        }
    }
}

impl TxBlock {
    /// Everything decided so far has been sent, and its fate is known.
    fn flight_passed(&self) -> bool {
        self.in_flight == 0 && self.unsent() == 0 && self.due == 0
    }

    /// Whether compensation has something to do, once its time has come.
    fn is_deficient(&self, peeling: bool) -> bool {
        let is_sent = self.unsent() == 0 && self.due == 0;
        let lost = self.deficit() > 0 || peeling && !self.lost_sources.is_empty();
        if peeling || !lost {
            self.flight_passed() && (lost || self.wanted > 0)
        } else {
            is_sent
        }
    }

    /// A symbol that counted as lost was late: take back a repair row decided for it. Whether none is
    /// due any more.
    fn undo_loss(&mut self, source: Option<u16>, peeling: bool) -> bool {
        let before = self.lost_sources.len();
        self.lost_sources.retain(|lost| Some(*lost) != source);
        let covered = self.acked + self.expected() > self.needed();
        // Peeling may need more than n symbols, but no original twice.
        let spare = if peeling {
            self.lost_sources.len() < before
        } else {
            covered
        };
        if spare && self.due > self.due_proactive {
            self.due -= 1;
        }
        self.due == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::{self, CcKind, CcParams};
    use crate::selector::EPSILON;
    use crate::types::Slot;
    use crate::wire::{Blocks, Sack};
    use sphinx_fec::CodeId;

    const MS: Nanos = 1_000_000;
    const RTT: Nanos = 10 * MS;
    const ACK_DELAY: Nanos = MS;

    /// A sender of blocks of ten symbols, and the packets that the peer has.
    struct Bench {
        sender: Sender,
        now: Nanos,
        /// With the time of sending.
        arrived: Vec<(u64, Nanos)>,
        repairs: Vec<(Nanos, u64, bool)>,
    }

    impl Bench {
        fn new(icm: Icm, code: CodeId, blocks: u32) -> Self {
            let cc = cc::build(CcKind::Fixed(10_000_000), CcParams::default());
            let mut sender = Sender::new(
                (Profile::Bulk, Some(code), icm, EPSILON),
                cc,
                RTT,
                1 << 30,
                (1228, None),
                0,
            );
            for slot in 0..blocks {
                sender.submit(0, Slot(slot), 10, 1000, false);
            }
            Self {
                sender,
                now: 0,
                arrived: Vec::new(),
                repairs: Vec::new(),
            }
        }

        /// Sends a packet every 100 µs; those in `lost` (counted from here) do not arrive.
        fn send(&mut self, count: u64, lost: &[u64]) {
            for index in 0..count {
                let Some(choice) = self.sender.next_symbol() else {
                    return;
                };
                if choice.round > 0 {
                    let original = choice.symbol.source().is_some();
                    self.repairs.push((self.now, choice.block, original));
                }
                if !lost.contains(&index) {
                    self.arrived.push((self.sender.next_pn(), self.now));
                }
                self.sender.sent_symbol(self.now, 1100, &choice);
                self.now += MS / 10;
            }
        }

        /// The peer reports everything that arrived so far.
        fn sack(&mut self) {
            self.report(self.now);
        }

        /// The peer reports what was sent until then and arrived.
        fn report(&mut self, until: Nanos) {
            let known = self.arrived.iter().filter(|(_, sent_at)| *sent_at <= until);
            let ranges = known.rev().map(|(pn, _)| (*pn, *pn)).collect();
            let sack = Sack {
                time_us: self.now / 1000,
                ranges,
                ..Sack::default()
            };
            assert!(self.sender.on_sack(self.now, &sack));
            self.sender.on_feedback(self.now);
        }

        fn due(&self, sequence: u64) -> u32 {
            self.sender.block(sequence).map_or(0, |block| block.due)
        }
    }

    #[test]
    fn default_compensates_what_is_lost_at_once() {
        let mut bench = Bench::new(Icm::Default, CodeId::Rlc, 4);
        bench.send(6, &[1]);
        bench.now += RTT;
        bench.sack();
        assert!(bench.due(0) > 0);
    }

    #[test]
    fn paper_waits_for_more_than_two_blocks_and_three_symbols() {
        let mut bench = Bench::new(Icm::Paper, CodeId::Rlc, 8);
        bench.send(10, &[1, 4]);
        bench.send(10, &[2]);
        bench.now += RTT;
        bench.sack();
        assert_eq!((bench.due(0), bench.due(1)), (0, 0), "two blocks");
        bench.send(3, &[]);
        bench.sack();
        assert_eq!((bench.due(0), bench.due(1)), (0, 0), "three symbols");
        bench.send(1, &[]);
        bench.sack();
        assert!(bench.due(0) >= 2 && bench.due(1) >= 1);
        // Lost originals go first, the rest is repair.
        bench.send(6, &[]);
        let kinds: Vec<_> = bench.repairs.iter().map(|r| (r.1, r.2)).collect();
        assert_eq!(kinds[..2], [(0, true), (0, true)]);
        assert!(kinds.contains(&(1, true)), "{kinds:?}");
    }

    #[test]
    fn paper_is_damped_to_once_per_round_trip() {
        let mut bench = Bench::new(Icm::Paper, CodeId::Rlc, 40);
        bench.send(10, &[1]);
        bench.send(10, &[1]);
        bench.send(4, &[]);
        bench.now += RTT;
        bench.sack();
        let first = bench.now;
        assert_eq!((bench.due(0), bench.due(1)), (1, 1));
        // Both compensations are lost, and later packets tell so before a round trip is over.
        bench.send(2, &[0, 1]);
        bench.send(20, &[]);
        bench.sack();
        assert_eq!((bench.due(0), bench.due(1)), (0, 0));
        while bench.now < first + 2 * RTT && bench.due(0) == 0 {
            bench.send(1, &[]);
            bench.sack();
        }
        assert!(bench.due(0) > 0);
        let waited = bench.now - first;
        assert!(waited >= bench.sender.rtt.smoothed(), "{waited}");
    }

    #[test]
    fn paper_hears_of_a_missing_block_from_a_later_one() {
        let mut bench = Bench::new(Icm::Paper, CodeId::Rlc, 8);
        bench.send(10, &[1]);
        bench.send(10, &[]);
        bench.now += RTT;
        bench.sack();
        assert_eq!(bench.due(0), 0);
        bench.sender.on_blocks(&Blocks {
            complete: vec![(1, 1)],
            ..Blocks::default()
        });
        bench.sack();
        assert_eq!(bench.due(0), 1);
    }

    #[test]
    fn paper_finds_tails_by_the_probe_timer() {
        let mut bench = Bench::new(Icm::Paper, CodeId::Rlc, 1);
        bench.send(10, &[1, 2, 3, 4]);
        bench.now += RTT;
        bench.sack();
        assert_eq!(bench.due(0), 0);
        bench.now = bench.sender.timeout(ACK_DELAY).expect("a probe");
        assert!(bench.sender.on_timeout(bench.now, ACK_DELAY) > 0);
        assert!(bench.due(0) >= 4);
    }

    #[test]
    fn off_waits_for_the_timer_of_the_block() {
        for code in [CodeId::Rlc, CodeId::Srlt] {
            let mut bench = Bench::new(Icm::Off, code, 200);
            bench.send(3, &[1]);
            while bench
                .sender
                .block(0)
                .is_some_and(|b| b.unsent() + b.due > 0)
            {
                bench.send(1, &[]);
            }
            let sent = bench.sender.block(0).map_or(0, |block| block.last_sent);
            let timer = loop {
                assert_eq!(bench.due(0), 0, "{code:?}");
                bench.send(1, &[]);
                bench.report(bench.now.saturating_sub(RTT));
                match bench.sender.block_deadline(ACK_DELAY) {
                    Some(at) if at <= bench.now => break at,
                    _ => {}
                }
            };
            assert!(timer > sent + RTT, "{code:?}");
            assert_eq!(bench.due(0), 0, "{code:?}");
            bench.sender.on_timeout(bench.now, ACK_DELAY);
            assert!(bench.due(0) > 0, "{code:?}");
        }
    }

    #[test]
    fn a_late_symbol_takes_its_repair_back() {
        for icm in [Icm::Default, Icm::Paper] {
            let mut bench = Bench::new(icm, CodeId::Rlc, 3);
            bench.send(24, &[2]);
            bench.now += RTT;
            bench.sack();
            let due = bench.due(0);
            assert!(due > 0, "{icm:?}");
            bench.arrived.insert(2, (2, 0));
            bench.sack();
            assert_eq!(bench.due(0), due - 1, "{icm:?}");
        }
    }
}
