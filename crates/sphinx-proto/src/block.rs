//! A block on its way: what of it was sent, what arrived, what is owed.

use sphinx_fec::bits;

use crate::Nanos;
use crate::types::Slot;
use crate::wire::SymbolId;

/// A block on its way.
#[derive(Debug)]
pub(crate) struct TxBlock {
    pub(crate) stream: u16,
    pub(crate) id: u64,
    pub(crate) slot: Slot,
    pub(crate) n: u16,
    pub(crate) symbol_len: u16,
    /// The application ended a message or the stream here.
    pub(crate) tail: bool,
    /// Next source symbol to send for the first time.
    pub(crate) next_source: u16,
    /// Next repair row.
    pub(crate) next_row: u32,
    pub(crate) in_flight: u32,
    pub(crate) acked: u32,
    /// Repair rows decided but not sent.
    pub(crate) due: u32,
    /// Of `due`, those decided before any loss was seen.
    pub(crate) due_proactive: u32,
    /// Repairs of a sliding window that count as this block's.
    pub(crate) windowed: u32,
    /// Repair rows that only the peer's word asked for.
    pub(crate) claimed: u32,
    /// Rounds of repair so far: 1 once a first transmission had to be replaced.
    pub(crate) rounds: u8,
    /// Has had its proactive repair.
    pub(crate) protected: bool,
    /// Symbols that must arrive beyond n.
    pub(crate) surplus: u32,
    /// Spread of its proactive rows (`rlc`), their degree (`srlt`), or the transform (`fft-rs`).
    pub(crate) shape: u32,
    /// Source symbols whose packets were lost; kept where compensation may use the originals
    /// themselves: for codes that decode by peeling, and in the paper's mode.
    pub(crate) lost_sources: Vec<u16>,
    /// Source symbols that have arrived, as a bit map; kept where one may be sent twice (`fft-rs`).
    pub(crate) arrived: Vec<u64>,
    /// Symbols that the peer says are missing, while that waits for the block's turn.
    pub(crate) wanted: u32,
    /// Latest round of the packets that were lost.
    pub(crate) lost_round: u8,
    /// When a symbol was sent last.
    pub(crate) last_sent: Nanos,
    /// When it was compensated last.
    pub(crate) compensated: Option<Nanos>,
}

impl TxBlock {
    pub(crate) fn new(
        stream: u16,
        id: u64,
        slot: Slot,
        n: u16,
        symbol_len: u16,
        tail: bool,
        surplus: u32,
    ) -> Self {
        Self {
            stream,
            id,
            slot,
            n,
            symbol_len,
            tail,
            next_source: 0,
            next_row: 0,
            in_flight: 0,
            acked: 0,
            due: 0,
            due_proactive: 0,
            windowed: 0,
            claimed: 0,
            rounds: 0,
            protected: false,
            surplus,
            shape: 1,
            lost_sources: Vec::new(),
            arrived: Vec::new(),
            wanted: 0,
            lost_round: 0,
            last_sent: 0,
            compensated: None,
        }
    }

    pub(crate) fn unsent(&self) -> u32 {
        u32::from(self.n - self.next_source)
    }

    /// A symbol has arrived; it counts unless it is the copy of another.
    pub(crate) fn arrived(&mut self, source: Option<u16>) {
        let copy = source.map(usize::from).filter(|_| !self.arrived.is_empty());
        let is_new = copy.is_none_or(|at| !bits::contains(&self.arrived, at));
        if let Some(at) = copy {
            bits::insert(&mut self.arrived, at);
        }
        self.acked += u32::from(is_new);
    }

    /// Symbols that must arrive.
    pub(crate) fn needed(&self) -> u32 {
        u32::from(self.n) + self.surplus
    }

    /// Symbols decided on whose fate is not known.
    pub(crate) fn expected(&self) -> u32 {
        self.in_flight + self.unsent() + self.due
    }

    /// Symbols that must still be decided on so that enough can arrive at all.
    pub(crate) fn deficit(&self) -> u32 {
        self.needed().saturating_sub(self.acked + self.expected())
    }

    /// A symbol of this block to send next.
    pub(crate) fn choice(&self, sequence: u64, symbol: SymbolId) -> SymbolChoice {
        SymbolChoice {
            sequence,
            round: self.rounds,
            stream: self.stream,
            block: self.id,
            slot: self.slot,
            n: self.n,
            symbol_len: self.symbol_len,
            symbol,
            last_of_flight: false,
        }
    }
}

/// What [`next_symbol`](crate::sender::Sender::next_symbol) decided to send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SymbolChoice {
    pub(crate) sequence: u64,
    /// Round of repair that the symbol belongs to.
    pub(crate) round: u8,
    pub(crate) stream: u16,
    pub(crate) block: u64,
    pub(crate) slot: Slot,
    pub(crate) n: u16,
    pub(crate) symbol_len: u16,
    pub(crate) symbol: SymbolId,
    pub(crate) last_of_flight: bool,
}
