//! The sending half: blocks, and what to send next.

mod icm;
mod packets;
mod timers;
mod window;

pub(crate) use window::WindowChoice;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sphinx_fec::{CodeId, bits};

use crate::Nanos;
use crate::block::{SymbolChoice, TxBlock};
use crate::cc::{PacketInfo, RateControl};
use crate::coding;
use crate::config::{Icm, Profile};
use crate::ecn::Ecn;
use crate::fragment::Groups;
use crate::monitor::Monitor;
use crate::mtu::BlackHole;
use crate::rtt::Rtt;
use crate::selector::{BurstRepair, Offered};
use crate::sent::{SentLog, Settled};
use crate::shares::Shares;
use crate::types::{Slot, block_cost};
use crate::wire::{BLOCKS_AHEAD_MAX, Blocks, SymbolId};

/// Counters of the sending half.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) source: u64,
    pub(crate) repair_proactive: u64,
    pub(crate) repair_reactive: u64,
    /// Bytes of these symbols.
    pub(crate) repair_proactive_bytes: u64,
    pub(crate) repair_reactive_bytes: u64,
    pub(crate) blocks: u64,
    pub(crate) blocks_second_round: u64,
    pub(crate) packets_lost: u64,
    pub(crate) losses_spurious: u64,
    pub(crate) bytes_complete: u64,
}

/// Why the sender has nothing to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idle {
    /// The application has handed over nothing more.
    Application,
    /// More data waits outside for window or credit.
    Window,
}

/// Blocks of one stream by id.
#[derive(Debug, Default)]
struct TxStream {
    next_id: u64,
    /// Sequences of blocks from `first_id` up, complete ones included until they leave the front.
    sequences: VecDeque<u64>,
    first_id: u64,
    /// Costs of all blocks, and of those that the peer's application has taken.
    opened: u64,
    taken: u64,
    /// Repairs of the sliding window for every source symbol, and those owed.
    window_rate: f64,
    window_owed: f64,
}

impl TxStream {
    /// Cost of all blocks that the peer's application has not taken, as far as is known.
    fn held(&self) -> u64 {
        self.opened - self.taken
    }
}

pub(crate) struct Sender {
    profile: Profile,
    code: Option<CodeId>,
    icm: Icm,
    /// Block failure probability of what is protected ahead.
    epsilon: f64,
    bursts: BurstRepair,
    offered: Offered,
    pub(crate) rtt: Rtt,
    pub(crate) monitor: Monitor,
    pub(crate) cc: Box<dyn RateControl>,
    streams: BTreeMap<u16, TxStream>,
    /// Blocks by sequence from `first_sequence`; `None` once complete.
    blocks: VecDeque<Option<TxBlock>>,
    first_sequence: u64,
    /// Sequences with unsent source symbols, in order.
    unsent: VecDeque<u64>,
    unsent_bytes: u64,
    /// The newest block of a sliding window whose repair is due, and the next row of any.
    window_due: Option<u64>,
    window_row: u32,
    /// Sequences with repair due.
    repairs: BTreeSet<u64>,
    /// Fraction of a repair packet owed to later deficits (pooled ReFEC).
    carry: f64,
    /// Sequences with losses whose compensation waits (`Icm::Paper`, `Icm::Off`).
    waiting: BTreeSet<u64>,
    /// Highest sequence of which a symbol arrived, and of a complete block.
    latest_seen: u64,
    latest_complete: u64,
    /// Sum of the costs of all blocks ever opened, and of those still incomplete.
    opened_cost: u64,
    open_cost: u64,
    credit: u64,
    /// The peer's window, and the cost of all blocks known to be taken.
    window: u64,
    taken: u64,
    shares: Shares,
    /// How often more credit, or more that has been taken, was heard of.
    pub(crate) window_news: u64,
    /// More has been confirmed, since this was last looked at.
    pub(crate) progress: bool,

    log: SentLog,
    last_sent: Nanos,
    /// Probe timeouts since an acknowledgement that brought something forward.
    probes_unanswered: u32,
    /// When something was last acknowledged, or first sent after that.
    last_news: Nanos,
    last_probe: Nanos,
    ecn: Ecn,
    pub(crate) counters: Counters,
    /// Slots whose blocks are complete.
    freed: VecDeque<(Slot, u16, u64)>,
    /// Symbols in flight in parts.
    groups: Groups,
    pub(crate) hole: BlackHole,
    /// IP bytes of the last large packet to arrive, and when it left.
    pub(crate) large_arrived: Option<(u32, Nanos)>,
    /// Path MTU probes acknowledged.
    pub(crate) mtu_acked: Option<u16>,
    /// Packets with connection ids acknowledged (`true`) or lost.
    pub(crate) ids_settled: Vec<(u64, bool)>,
    // Scratch for one SACK.
    acked: Vec<Settled>,
    lost: Vec<Settled>,
    acked_infos: Vec<PacketInfo>,
    lost_infos: Vec<PacketInfo>,
}

impl Sender {
    pub(crate) fn new(
        (profile, code, icm, epsilon): (Profile, Option<CodeId>, Icm, f64),
        cc: Box<dyn RateControl>,
        initial_rtt: Nanos,
        credit: u64,
        (small_packet, plr): (u32, Option<f64>),
        now: Nanos,
    ) -> Self {
        Self {
            profile,
            code,
            icm,
            epsilon,
            bursts: BurstRepair::default(),
            offered: Offered::default(),
            rtt: Rtt::new(initial_rtt),
            monitor: Monitor::remembering(plr),
            cc,
            streams: BTreeMap::new(),
            blocks: VecDeque::new(),
            first_sequence: 0,
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            window_due: None,
            window_row: 0,
            repairs: BTreeSet::new(),
            carry: 0.0,
            waiting: BTreeSet::new(),
            latest_seen: 0,
            latest_complete: 0,
            opened_cost: 0,
            open_cost: 0,
            credit,
            window: credit,
            taken: 0,
            shares: Shares::new(credit),
            window_news: 0,
            progress: false,
            log: SentLog::default(),
            last_sent: now,
            probes_unanswered: 0,
            last_news: now,
            last_probe: now,
            ecn: Ecn::default(),
            counters: Counters::default(),
            freed: VecDeque::new(),
            groups: Groups::default(),
            hole: BlackHole::new(small_packet),
            large_arrived: None,
            mtu_acked: None,
            ids_settled: Vec::new(),
            acked: Vec::new(),
            lost: Vec::new(),
            acked_infos: Vec::new(),
            lost_infos: Vec::new(),
        }
    }

    fn block(&self, sequence: u64) -> Option<&TxBlock> {
        let at = sequence.checked_sub(self.first_sequence)?;
        self.blocks.get(usize::try_from(at).ok()?)?.as_ref()
    }

    fn block_mut(&mut self, sequence: u64) -> Option<&mut TxBlock> {
        let at = sequence.checked_sub(self.first_sequence)?;
        self.blocks.get_mut(usize::try_from(at).ok()?)?.as_mut()
    }

    // ---- blocks -----------------------------------------------------------------------------

    /// Cost of all incomplete blocks.
    pub(crate) fn open_cost(&self) -> u64 {
        self.open_cost
    }

    /// Whether the peer's credit allows another block.
    pub(crate) fn has_credit(&self, cost: u64) -> bool {
        self.opened_cost + cost <= self.credit
    }

    /// What of the window belongs to no stream alone and is free.
    pub(crate) fn common_left(&self) -> u64 {
        self.shares.common_left()
    }

    /// Cost of the stream's blocks that the peer's application has not taken, as far as is known.
    pub(crate) fn held(&self, stream: u16) -> u64 {
        self.streams.get(&stream).map_or(0, TxStream::held)
    }

    /// Largest cost of a further block of the stream that credit and its share of the window allow.
    pub(crate) fn most(&self, stream: u16) -> u64 {
        let credit = self.credit.saturating_sub(self.opened_cost);
        self.shares.most(self.held(stream)).min(credit)
    }

    /// Whether another block keeps within [`BLOCKS_AHEAD_MAX`].
    pub(crate) fn has_room(&self) -> bool {
        (self.blocks.len() as u64) < BLOCKS_AHEAD_MAX
    }

    /// Bytes of source symbols handed over and not sent.
    pub(crate) fn unsent_bytes(&self) -> u64 {
        self.unsent_bytes
    }

    pub(crate) fn submit(
        &mut self,
        stream: u16,
        slot: Slot,
        n: u16,
        symbol_len: u16,
        tail: bool,
    ) -> u64 {
        let sequence = self.first_sequence + self.blocks.len() as u64;
        let tx = self.streams.entry(stream).or_default();
        let id = tx.next_id;
        tx.next_id += 1;
        tx.sequences.push_back(sequence);
        let cost = block_cost(n, symbol_len);
        let held = tx.held();
        tx.opened += cost;
        self.shares.changed(held, tx.held());
        self.opened_cost += cost;
        self.open_cost += cost;
        self.unsent_bytes += u64::from(n) * u64::from(symbol_len);
        self.counters.blocks += 1;
        let surplus = coding::surplus(self.code, n);
        let mut block = TxBlock::new(stream, id, slot, n, symbol_len, tail, surplus);
        if coding::is_finite(self.code) {
            block.arrived = vec![0; bits::words(usize::from(n))];
        }
        self.blocks.push_back(Some(block));
        self.unsent.push_back(sequence);
        id
    }

    /// A complete block's slot, stream and id: its memory may go.
    pub(crate) fn poll_freed(&mut self) -> Option<(Slot, u16, u64)> {
        self.freed.pop_front()
    }

    /// Whether every block of the stream is complete at the receiver.
    pub(crate) fn stream_delivered(&self, stream: u16) -> bool {
        self.streams
            .get(&stream)
            .is_none_or(|s| s.sequences.is_empty())
    }

    fn complete_block(&mut self, stream: u16, id: u64) {
        let Some(tx) = self.streams.get(&stream) else {
            return;
        };
        let Some(at) = id.checked_sub(tx.first_id) else {
            return;
        };
        let Some(&sequence) = tx.sequences.get(at as usize) else {
            return;
        };
        let index = (sequence - self.first_sequence) as usize;
        let Some(block) = self.blocks.get_mut(index).and_then(Option::take) else {
            return;
        };
        self.progress = true;
        self.open_cost -= block_cost(block.n, block.symbol_len);
        if block.unsent() > 0 {
            // Only a peer that completes what it cannot have gets here.
            self.unsent_bytes -= u64::from(block.unsent()) * u64::from(block.symbol_len);
            self.unsent.retain(|s| *s != sequence);
        }
        self.repairs.remove(&sequence);
        self.waiting.remove(&sequence);
        self.latest_complete = self.latest_complete.max(sequence);
        self.counters.bytes_complete += u64::from(block.n) * u64::from(block.symbol_len);
        if block.rounds > 0 {
            self.counters.blocks_second_round += 1;
        }
        self.freed.push_back((block.slot, stream, id));
        while let Some(None) = self.blocks.front() {
            self.blocks.pop_front();
            self.first_sequence += 1;
        }
        if let Some(tx) = self.streams.get_mut(&stream) {
            while tx.sequences.front().is_some_and(|s| {
                s.checked_sub(self.first_sequence)
                    .is_none_or(|at| matches!(self.blocks.get(at as usize), Some(None)))
            }) {
                tx.sequences.pop_front();
                tx.first_id += 1;
            }
        }
    }

    /// Block-SACK.
    pub(crate) fn on_blocks(&mut self, blocks: &Blocks) {
        let Some(tx) = self.streams.get_mut(&blocks.stream) else {
            return;
        };
        let (held, taken) = (tx.held(), tx.taken);
        tx.taken = taken.max(blocks.taken.min(tx.opened));
        self.shares.changed(held, tx.held());
        self.window_news += u64::from(tx.taken > taken);
        // A SACK that said so may have been lost.
        self.taken += tx.taken - taken;
        self.credit = self.credit.max(self.window.saturating_add(self.taken));
        let (first, next) = (tx.first_id, tx.next_id);
        for id in first..blocks.base.min(next) {
            self.complete_block(blocks.stream, id);
        }
        for &(low, high) in &blocks.complete {
            for id in low.max(first)..=high.min(next.saturating_sub(1)) {
                self.complete_block(blocks.stream, id);
            }
        }
    }

    // ---- what to send -----------------------------------------------------------------------

    /// Whether a symbol could be sent if window and pacer allow.
    pub(crate) fn has_symbol(&self) -> bool {
        !self.repairs.is_empty() || !self.unsent.is_empty() || self.window_due.is_some()
    }

    /// What is protected already stays so.
    pub(crate) fn set_profile(&mut self, profile: Profile) {
        self.profile = profile;
    }

    pub(crate) fn window_open(&self) -> bool {
        self.log.bytes_in_flight() < self.cc.cwnd()
    }

    /// Nothing is left to send: protect what is on its way, once per block.
    pub(crate) fn protect_tail(&mut self, now: Nanos, idle: Idle) {
        let Some(code) = self.code else { return };
        let ended = idle == Idle::Application
            && self.blocks.iter().flatten().last().is_some_and(|b| b.tail);
        if self.profile == Profile::Bulk && !ended {
            return;
        }
        let is_bare = |block: &TxBlock| !block.protected && block.acked < block.needed();
        let bare = self.blocks.iter().flatten().filter(|block| is_bare(block));
        let bytes = bare
            .map(|block| u64::from(block.n) * u64::from(block.symbol_len))
            .sum();
        if bytes == 0 {
            return;
        }
        let losses = (self.monitor.plr(), self.monitor.burst());
        let cold = self.monitor.is_cold();
        let spare = self.offered.spare(now, bytes, self.cc.bandwidth_estimate());
        for (index, block) in self.blocks.iter_mut().enumerate() {
            let Some(block) = block.as_mut().filter(|block| is_bare(block)) else {
                continue;
            };
            block.protected = true;
            // Repairs of a window say nothing about the symbols behind them.
            let needed = block.needed() + block.windowed - block.acked;
            let flight = (needed, block.expected());
            let mut repair = self
                .bursts
                .flight_repair(flight, losses, self.epsilon, spare);
            if cold {
                repair = repair.max(2);
            }
            if repair > 0 {
                block.shape = coding::shape(code, block.n, repair);
                block.due += repair;
                block.due_proactive += repair;
                self.repairs.insert(self.first_sequence + index as u64);
            }
        }
    }

    /// The next symbol: repair of the oldest deficient block first, then new source symbols.
    pub(crate) fn next_symbol(&mut self) -> Option<SymbolChoice> {
        match self.repairs.first() {
            Some(&sequence) => self.next_repair(sequence),
            None => self.next_source(),
        }
    }

    fn next_repair(&mut self, sequence: u64) -> Option<SymbolChoice> {
        let code = self.code.unwrap_or(CodeId::Rlc);
        let originals_first = coding::is_peeling(self.code) || self.icm == Icm::Paper;
        let plr = self.monitor.plr();
        let block = self.block_mut(sequence)?;
        block.due -= 1;
        let proactive = block.due_proactive > 0;
        block.due_proactive = block.due_proactive.saturating_sub(1);
        let first = (originals_first && !proactive).then(|| block.lost_sources.pop());
        let symbol = match first.flatten() {
            Some(index) => SymbolId::Source(index),
            None => match coding::next_row(code, block, proactive, plr) {
                Some((code, row)) => SymbolId::Repair(code, row),
                None => SymbolId::Source(coding::original(block)),
            },
        };
        let done = block.due == 0;
        let choice = block.choice(sequence, symbol);
        if done {
            self.repairs.remove(&sequence);
        }
        if proactive {
            self.counters.repair_proactive += 1;
            self.counters.repair_proactive_bytes += u64::from(choice.symbol_len);
        } else {
            self.counters.repair_reactive += 1;
            self.counters.repair_reactive_bytes += u64::from(choice.symbol_len);
        }
        Some(choice)
    }

    fn next_source(&mut self) -> Option<SymbolChoice> {
        let &sequence = self.unsent.front()?;
        let code = self.code;
        let (plr, deviation) = (self.monitor.plr(), self.monitor.deviation());
        let block = self.block_mut(sequence)?;
        let index = block.next_source;
        block.next_source += 1;
        let rateless = code.filter(|_| coding::is_rateless(code));
        let row = rateless.and_then(|code| coding::next_row(code, block, true, plr));
        let symbol = row.map_or(SymbolId::Source(index), |(code, row)| {
            SymbolId::Repair(code, row)
        });
        let mut choice = block.choice(sequence, symbol);
        choice.round = 0;
        if block.unsent() == 0 {
            let mut behind = block.surplus;
            // The paper's code sends its ProFEC packets behind every block.
            if coding::is_peeling(code) {
                (block.shape, behind) = coding::semi_random(block.n, plr, deviation);
                block.protected = true;
            }
            block.due += behind;
            block.due_proactive += behind;
            if behind > 0 {
                self.repairs.insert(sequence);
            }
            self.unsent.pop_front();
        }
        self.unsent_bytes -= u64::from(choice.symbol_len);
        self.counters.source += 1;
        if code == Some(CodeId::Window) {
            self.owe_window(sequence, choice.stream, index == 0);
        }
        Some(choice)
    }
}
