//! A session in the paper's mode, whose symbols and feedback leave by rules of their own.

use super::Session;
use super::sending::{ONLY, UNACKNOWLEDGED};
use crate::blocks::SymbolChoice;
use crate::cc::CcKind;
use crate::config::Config;
use crate::paper::{Choice, Feedback, Paper, PaperSender};
use crate::types::{PacketMeta, Slot, Transmit};
use crate::wire::{BlockSack, Header, OVERHEAD, PaperCounts, SymbolSack};
use crate::{BASE_DATAGRAM, BlockId, PacketNumber, Time};

/// The sending and the receiving end of the mode.
pub(super) struct Ends {
    settings: Paper,
    /// Symbols leave at a fixed rate, instead of a window of blocks at once.
    is_paced: bool,
    sender: PaperSender,
    feedback: Feedback,
    /// The highest block of which a symbol has arrived, and its symbols.
    latest: Option<(BlockId, u16)>,
}

impl Ends {
    pub(super) fn new(config: &Config) -> Option<Self> {
        let settings = config.paper?;
        let is_paced = matches!(config.cc, CcKind::Fixed(_));
        Some(Self {
            settings,
            is_paced,
            sender: PaperSender::new(settings, !is_paced),
            feedback: Feedback::new(settings.period),
            latest: None,
        })
    }

    pub(super) fn settings(&self) -> &Paper {
        &self.settings
    }

    /// Loss rate p, as the receiver has reported it.
    pub(super) fn plr(&self) -> f64 {
        self.sender.plr()
    }

    /// Bytes of full blocks that the window allows.
    pub(super) fn window_bytes(&self) -> u64 {
        let block = u64::from(self.settings.n) * u64::from(self.settings.symbol);
        u64::from(self.sender.window()) * block
    }

    /// Symbols of a full block, and bytes of each.
    pub(super) fn shape(&self) -> (u16, u16) {
        (self.settings.n, self.settings.symbol)
    }
}

impl Session {
    /// Whether the paper's window, if that is what counts, allows another block.
    pub(super) fn paper_has_room(&self) -> bool {
        self.paper
            .as_ref()
            .is_none_or(|ends| ends.sender.has_room())
    }

    /// A block has been handed over.
    pub(super) fn give_to_paper(&mut self, slot: Slot, shape: (u16, u16)) {
        if let Some(ends) = &mut self.paper
            && let Some(block) = self.sender.hand_over_latest()
        {
            ends.sender.push(block, slot, shape);
        }
    }

    // ---- sending ------------------------------------------------------------------------------

    /// The next symbol in this mode, asked for when nothing else is to leave.
    pub(super) fn paper_symbol(&mut self, now: Time) -> Option<Transmit> {
        let ends = self.paper.as_mut()?;
        if !ends.sender.has_symbol() {
            self.paths.main_mut().path.rest();
            return None;
        }
        if ends.is_paced && !self.paths.main_mut().path.is_open(now) {
            return None;
        }
        let choice = loop {
            let choice = ends.sender.next(now)?;
            if self.sender.blocks().get(choice.block).is_some() {
                break choice;
            }
            // Its stream was given up, or its time is over.
            ends.sender.forget(choice.block);
        };
        let Choice {
            block,
            symbol,
            reactive,
            ..
        } = choice;
        self.sender
            .count_sent(block, symbol, choice.symbol_len, reactive);
        let choice = SymbolChoice {
            sequence: block,
            round: u8::from(reactive),
            slot: choice.slot,
            n: choice.n,
            symbol_len: choice.symbol_len,
            symbol,
            last_of_flight: false,
            more: 0,
            is_copy: false,
        };
        let body_len = usize::from(choice.symbol_len);
        let ip_bytes = self.account_sent(now, ONLY, body_len);
        let transmit = self.symbol_transmit(ONLY, &choice, None, body_len);
        self.sent(now, ONLY, ip_bytes, UNACKNOWLEDGED);
        self.paths.main_mut().path.pace(ip_bytes);
        Some(transmit)
    }

    /// Feedback that is to leave.
    pub(super) fn next_paper_feedback(&mut self) -> Option<Vec<u8>> {
        self.paper.as_mut()?.feedback.next()
    }

    // ---- what arrives -------------------------------------------------------------------------

    pub(super) fn note_paper_packet(&mut self, packet_number: PacketNumber) {
        if let Some(ends) = &mut self.paper {
            ends.feedback.on_packet(packet_number);
        }
    }

    /// A packet with a symbol has arrived: queues the feedback about it, as this mode answers each
    /// one.
    pub(super) fn say_paper_symbol(&mut self, header: &Header) {
        if self.paper.is_none() {
            return;
        }
        let counts = self.paper_counts();
        let Some(ends) = &mut self.paper else {
            return;
        };
        let block = self.receiver.block_of(header);
        let is_complete = self.receiver.is_complete(block);
        if !is_complete && !self.receiver.has_opened(block) {
            // The symbol was refused.
            return;
        }
        if ends.latest.is_none_or(|(latest, _)| block >= latest) {
            ends.latest = Some((block, header.n));
        }
        // Feedback must get through whatever becomes of the path MTU.
        let room = usize::from(BASE_DATAGRAM) - OVERHEAD;
        if let Some(latest) = ends.latest {
            let sack = self.receiver.symbol_sack(latest, counts);
            ends.feedback.say_symbols(sack, room);
        }
        if is_complete {
            let decoded = self.receiver.decoded();
            let receiver = &mut self.receiver;
            let streams = |out: &mut Vec<u8>| receiver.write_streams(room, out);
            ends.feedback.say_blocks(counts, decoded, streams);
        }
    }

    fn paper_counts(&self) -> PaperCounts {
        let (ect, ce) = self.paths.main().path.acks().marks();
        PaperCounts {
            ect,
            ce,
            credit: self.receiver.streams().window().credit(),
        }
    }

    // ---- what the peer says -------------------------------------------------------------------

    pub(super) fn on_paper_symbols(
        &mut self,
        meta: &PacketMeta,
        sack: &SymbolSack,
        delivered: &mut Vec<Slot>,
    ) {
        self.on_paper_feedback(
            meta,
            sack.counts.credit,
            delivered,
            |sender, at, decoded| {
                sender.on_symbols(at, sack, decoded);
            },
        );
    }

    pub(super) fn on_paper_blocks(
        &mut self,
        meta: &PacketMeta,
        sack: &BlockSack,
        delivered: &mut Vec<Slot>,
    ) {
        self.on_paper_feedback(
            meta,
            sack.counts.credit,
            delivered,
            |sender, at, decoded| {
                sender.on_blocks(at, sack, decoded);
            },
        );
    }

    fn on_paper_feedback(
        &mut self,
        meta: &PacketMeta,
        credit: u64,
        delivered: &mut Vec<Slot>,
        handle: impl FnOnce(&mut PaperSender, (Time, crate::Nanos), &mut Vec<BlockId>),
    ) {
        let Some(ends) = &mut self.paper else {
            return;
        };
        let mut decoded = Vec::new();
        let at = (meta.now, self.paths.main().path.rtt().smoothed());
        handle(&mut ends.sender, at, &mut decoded);
        self.sender.on_credit(meta.packet_number, credit);
        for block in decoded {
            delivered.extend(self.sender.complete_block(block));
        }
    }

    // ---- time ---------------------------------------------------------------------------------

    pub(super) fn paper_timeout(&mut self) -> Option<Time> {
        let ends = self.paper.as_mut()?;
        if ends.feedback.is_due() {
            return Some(Time::ZERO);
        }
        let departs = match ends.sender.has_symbol() {
            true if ends.is_paced => self.paths.main().path.next_departure(false),
            true => Some(Time::ZERO),
            false => None,
        };
        departs.into_iter().chain(ends.sender.timeout()).min()
    }

    pub(super) fn paper_timed_out(&mut self, now: Time) {
        if let Some(ends) = &mut self.paper {
            ends.sender.on_timeout(now);
        }
    }
}
