//! Which symbol of the blocks goes next.

use sphinx_fec::CodeId;

use crate::config::Icm;
use crate::path::Monitor;
use crate::wire::{Bundle, Rider, SymbolId};
use crate::{BlockId, PathId, Time};

use super::Redundancy;
use super::coding;
use super::deadline::Horizon;
use super::riding::Rides;
use super::selector::{EPSILON_REACTIVE, flight_repair};
use super::store::{BlockStore, SymbolChoice, TxBlock};

impl BlockStore {
    /// A repair of the oldest block that is owed some, and whether it was owed ahead of loss.
    pub(crate) fn next_repair(
        &mut self,
        redundancy: Redundancy,
        monitor: &Monitor,
    ) -> Option<(SymbolChoice, bool)> {
        let originals_first = redundancy.is_peeling() || redundancy.icm == Icm::Paper;
        let (sequence, ahead) = self.take_due()?;
        let block = self.get_mut(sequence)?;
        let original = (originals_first && !ahead).then(|| block.lost_sources.pop());
        let symbol = match original.flatten() {
            Some(index) => SymbolId::Source(index),
            None => fresh_symbol(redundancy, block, ahead, monitor),
        };
        Some((block.choice_again(sequence, symbol), ahead))
    }

    /// Repairs of older blocks that ride in the packet of `main`, as many as may and fit.
    pub(crate) fn next_riders(
        &mut self,
        redundancy: Redundancy,
        monitor: &Monitor,
        main: &SymbolChoice,
        (now, rides): (Time, Rides),
    ) -> Vec<SymbolChoice> {
        let until = now.saturating_add(rides.wait);
        let mut space = Bundle::space(rides.room, usize::from(main.symbol_len));
        let mut riders: Vec<SymbolChoice> = Vec::new();
        while riders.len() < usize::from(rides.most) {
            let len = |block: &TxBlock| Rider::len_max(usize::from(block.symbol_len));
            let fits = |sequence, block: &TxBlock| {
                let mut aboard = riders.iter();
                len(block) <= space && aboard.all(|rider| rider.sequence != sequence)
            };
            let Some(sequence) = self.take_ride(main.sequence, until, fits) else {
                break;
            };
            let Some(block) = self.get_mut(sequence) else {
                break;
            };
            space -= len(block);
            let symbol = fresh_symbol(redundancy, block, true, monitor);
            riders.push(block.choice_again(sequence, symbol));
        }
        riders
    }

    /// The next source symbol to send for the first time, and its index; a rateless code sends a
    /// repair row in its place.
    pub(crate) fn next_source(
        &mut self,
        redundancy: Redundancy,
        path: PathId,
        monitor: &Monitor,
    ) -> Option<(SymbolChoice, u16)> {
        let code = redundancy.code;
        let (sequence, index) = self.take_source(path)?;
        let block = self.get_mut(sequence)?;
        let rateless = code.filter(|_| coding::is_rateless(code));
        let row = rateless.and_then(|code| coding::next_row(code, block, true, monitor.plr()));
        let symbol = row.map_or(SymbolId::Source(index), |(code, row)| {
            SymbolId::Repair(code, row)
        });
        let mut choice = block.choice(sequence, symbol);
        choice.round = 0;
        if block.unsent() == 0 {
            let mut behind = block.surplus();
            // The paper's code sends its ProFEC packets behind every block.
            if redundancy.is_peeling() {
                let (plr, deviation) = (monitor.plr(), monitor.deviation());
                (block.shape, behind) = coding::semi_random(block.n, plr, deviation);
                block.protected = true;
            }
            self.owe(sequence, behind, true);
        }
        Some((choice, index))
    }

    /// A symbol of the block leaves, or a part of it.
    pub(crate) fn note_sent(&mut self, sequence: BlockId, now: Time) {
        if let Some(block) = self.get_mut(sequence) {
            block.sent(now);
        }
    }

    /// Owes the oldest incomplete blocks repair rows as probes, at most so many; `again`: earlier
    /// probes were not answered. Datagrams that would arrive too late, as `horizon` says, are
    /// passed over. Returns how many rows these are.
    pub(crate) fn owe_probes(
        &mut self,
        (most, again): (u32, bool),
        horizon: Horizon,
        plr: f64,
    ) -> u32 {
        let mut probes = 0;
        for sequence in self.first_sequence().until(self.next_sequence()) {
            let block = self.get_mut(sequence);
            let Some(block) = block.filter(|block| block.is_worth_repair(horizon)) else {
                continue;
            };
            // Nobody knows whether the whole flight was lost or only its SACK. One packet gets an
            // answer either way; further ones are for the case that this one is lost too.
            let rows = if again {
                most - probes
            } else {
                flight_repair(1, 0, plr, EPSILON_REACTIVE).min(most)
            };
            block.rounds = block.rounds.max(1);
            self.owe(sequence, rows, false);
            probes += rows;
            if probes >= most {
                break;
            }
        }
        probes
    }
}

/// A repair row of the block that has not been sent; where the code has no more of them, a source
/// symbol again.
fn fresh_symbol(
    redundancy: Redundancy,
    block: &mut TxBlock,
    ahead: bool,
    monitor: &Monitor,
) -> SymbolId {
    let code = redundancy.code.unwrap_or(CodeId::Rlc);
    match coding::next_row(code, block, ahead, monitor.plr()) {
        Some((code, row)) => SymbolId::Repair(code, row),
        None => SymbolId::Source(coding::original(block)),
    }
}
