//! A packet number space: the numbers of the packets sent, what becomes of them, and what is known of the
//! peer's. It outlives the addresses that its packets travel between.

use std::collections::BTreeMap;

use crate::wire::SymbolId;
use crate::{BlockId, Nanos, PacketNumber, Time};

use super::acks::Acks;
use super::ecn::EcnCounts;
use super::fragments::{Groups, Meaning};
use super::gathering::Gathering;
use super::monitor::Monitor;
use super::pauses::Pauses;
use super::sent::{Carried, SentLog, Settled};

/// How much of a symbol has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// A part of it.
    Part,
    /// All of it.
    Whole,
    /// All of it, after it had been given up.
    Late,
}

/// Who owns what packets carry, and hears what becomes of it.
pub(crate) trait Contents {
    /// A symbol of the block with this sequence has arrived; whether the block may have needed it.
    fn symbol_arrived(&mut self, block: BlockId, symbol: SymbolId, arrived: Arrived) -> bool {
        self.symbols_arrived(block, std::iter::once(symbol), arrived)
    }

    /// Several have, one after the other; whether the block may have needed any of them.
    fn symbols_arrived(
        &mut self,
        block: BlockId,
        symbols: impl Iterator<Item = SymbolId>,
        arrived: Arrived,
    ) -> bool;

    /// A symbol will not arrive; `monitor` has been told of its packet.
    fn symbol_lost(&mut self, block: BlockId, round: u8, symbol: SymbolId, monitor: &Monitor);

    /// The reliable frames of this packet have arrived.
    fn frames_arrived(&mut self, packet_number: PacketNumber);

    /// The reliable frames of this packet are lost.
    fn frames_lost(&mut self, packet_number: PacketNumber);

    /// Whether the peer has every block.
    fn is_empty(&self) -> bool;
}

/// A symbol that rides in a packet beside its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Riding {
    pub(crate) block: BlockId,
    pub(crate) round: u8,
    pub(crate) symbol: SymbolId,
}

/// The numbers of one path's packets.
#[derive(Debug)]
pub(crate) struct PacketSpace {
    pub(super) sent: SentLog,
    pub(super) acks: Acks,
    pub(super) gathering: Gathering,
    /// Symbols in flight in parts.
    fragments: Groups,
    /// What rides in which packet, of those in the log.
    riders: BTreeMap<PacketNumber, Box<[Riding]>>,
    /// What the peer says of the marks of its arrivals.
    pub(super) ecn: EcnCounts,
    /// When the last packet left that is to be acknowledged.
    pub(super) last_sent: Time,
    pub(super) pauses: Pauses,
}

impl PacketSpace {
    pub(super) fn new(now: Time) -> Self {
        Self {
            sent: SentLog::default(),
            acks: Acks::new(now),
            gathering: Gathering::default(),
            fragments: Groups::default(),
            riders: BTreeMap::new(),
            ecn: EcnCounts::default(),
            last_sent: now,
            pauses: Pauses::default(),
        }
    }

    /// Packet [`SentLog::next_pn`] carries a fragment of `count`; its number is `after` above that of the first.
    pub(super) fn sent_fragment(&mut self, after: u32, count: u8) {
        let pn = self.sent.next_pn();
        self.fragments.sent(pn - u64::from(after), pn, count);
    }

    /// Packet [`SentLog::next_pn`] carries these symbols behind its own.
    pub(super) fn sent_riders(&mut self, riders: Box<[Riding]>) {
        self.riders.insert(self.sent.next_pn(), riders);
    }

    /// Whether anything rides in some packet.
    pub(super) fn has_riders(&self) -> bool {
        !self.riders.is_empty()
    }

    fn riders(&self, pn: PacketNumber) -> &[Riding] {
        self.riders.get(&pn).map_or(&[], |riders| riders)
    }

    /// Tells of an acknowledged packet; whether it brings anything forward.
    #[inline]
    pub(super) fn arrived(&mut self, packet: &Settled, contents: &mut impl Contents) -> bool {
        match packet.carried {
            Carried::Symbol { block, symbol, .. } => {
                let arrived = if packet.late {
                    Arrived::Late
                } else {
                    Arrived::Whole
                };
                let mut is_news = contents.symbol_arrived(block, symbol, arrived);
                for rider in self.riders(packet.info.pn) {
                    is_news |= contents.symbol_arrived(rider.block, rider.symbol, arrived);
                }
                is_news
            }
            Carried::Fragment {
                block,
                symbol,
                after,
                ..
            } => {
                let arrived = match self.fragments.acked(packet.info.pn - u64::from(after)) {
                    Meaning::Arrived => Arrived::Whole,
                    Meaning::ArrivedLate => Arrived::Late,
                    Meaning::Nothing | Meaning::Lost => Arrived::Part,
                };
                contents.symbol_arrived(block, symbol, arrived)
            }
            Carried::MtuProbe(_) => true,
            Carried::Frames { reliable } => {
                if reliable {
                    contents.frames_arrived(packet.info.pn);
                }
                // A PING beside probes brings blocks no further.
                reliable || contents.is_empty()
            }
        }
    }

    /// Tells of a lost packet.
    pub(super) fn lost(
        &mut self,
        packet: &Settled,
        contents: &mut impl Contents,
        monitor: &Monitor,
    ) {
        match packet.carried {
            Carried::Symbol {
                block,
                round,
                symbol,
            } => {
                contents.symbol_lost(block, round, symbol, monitor);
                for rider in self.riders(packet.info.pn) {
                    contents.symbol_lost(rider.block, rider.round, rider.symbol, monitor);
                }
            }
            Carried::Fragment {
                block,
                round,
                symbol,
                after,
            } => {
                let first = packet.info.pn - u64::from(after);
                if self.fragments.lost(first) == Meaning::Lost {
                    contents.symbol_lost(block, round, symbol, monitor);
                }
            }
            Carried::Frames { reliable: true } => contents.frames_lost(packet.info.pn),
            Carried::MtuProbe(_) | Carried::Frames { reliable: false } => {}
        }
    }

    /// Forgets packets whose fate is known; those that a full log gives up are in `lost`.
    pub(super) fn forget(&mut self, now: Time, patience: Nanos, lost: &mut Vec<Settled>) {
        self.sent.forget(now, patience, lost);
    }

    /// To be called once the lost packets that [`Self::forget`] gave have been told of.
    pub(super) fn forget_contents(&mut self) {
        let first = self.sent.first_pn();
        self.fragments.forget_below(first);
        while let Some(oldest) = self
            .riders
            .first_entry()
            .filter(|oldest| *oldest.key() < first)
        {
            oldest.remove();
        }
    }
}
