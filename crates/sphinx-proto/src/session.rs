//! One secure association between two endpoints, as a state machine.

mod moving;

use std::collections::VecDeque;

use sphinx_fec::{CodeId, Row};

use crate::Nanos;
use crate::block::SymbolChoice;
use crate::fragment::fragments_for;
use crate::ids::{LocalIds, PeerIds};
use crate::mtu::PathMtu;
use crate::pacer::Pacer;
use crate::path::Paths;
use crate::receiver::{Progress, Receiver};
use crate::sender::{Idle, Sender};
use crate::types::{
    BLOCK_OVERHEAD, Config, Content, Event, Job, PacketMeta, PartPlacement, Placement, Role,
    SessionStats, Slot, Transmit, block_cost,
};
use crate::wire::{
    FRAGMENT_PREFIX_LEN, Fragment, Frame, FrameIter, Header, MAX_SYMBOL_LEN, OVERHEAD, PacketKind,
    block_symbols_max,
};

const MS: Nanos = 1_000_000;

/// UDP payload that every path carries (RFC 9000 §14).
pub const BASE_DATAGRAM: u16 = 1200;
/// When copies of CLOSE are sent, counted from the first.
const CLOSE_TIMES: [Nanos; 6] = [0, 5 * MS, 20 * MS, 60 * MS, 150 * MS, 300 * MS];
/// Longest encoding of a CLOSE frame.
const CLOSE_LEN_MAX: usize = 300;
/// How long a closed session still answers.
const DRAIN: Nanos = 400 * MS;
/// Longest silence of an idle end.
const KEEP_ALIVE_MAX: Nanos = 3_000 * MS;
/// Bytes of a control packet that feedback leaves for a PING and new connection ids.
const CONTROL_RESERVE: usize = 16 + 8 * (1 + 8 + 8);
/// From this round of repair on symbols that do not fit the path leave whole every other time of this
/// length.
const RISK_FROM_ROUND: u8 = 4;
const RISK_TIME: Nanos = 2_000 * MS;
/// Symbols of a full block: what the link carries in this time …
const BLOCK_TIME: Nanos = 10 * MS;
/// … within these bounds.
const BLOCK_SYMBOLS: (u64, u64) = (32, 256);
/// Full blocks that fit a window at least.
const BLOCKS_PER_WINDOW: u64 = 8;
/// Smallest send window.
const SEND_WINDOW_MIN: u64 = 512 * 1024;
/// Source data handed over ahead of sending: what the link carries in this time, at least 64 KiB.
const UNSENT_TIME: Nanos = 8 * MS;
const UNSENT_MIN: u64 = 64 * 1024;

#[derive(Debug)]
enum Life {
    Open,
    /// This end closes: copies of CLOSE so far, when the first was due.
    Closing {
        code: u64,
        reason: String,
        copies: usize,
        since: Nanos,
    },
    /// The peer closed: answers owed, and until when to answer.
    Draining {
        answers: u32,
        until: Nanos,
    },
    Finished,
}

/// One session on one path.
///
/// The core never reads a clock, a socket or a random number: the same calls give the same
/// packets. It never touches payload either: memory is named by [`Slot`]s.
///
/// * **Inputs**: [`submit`](Self::submit) (a block to send), [`handle_symbol`](Self::handle_symbol)
///   and [`handle_control`](Self::handle_control) (packets that have opened),
///   [`job_done`](Self::job_done), [`release`](Self::release), [`handle_timeout`](Self::handle_timeout),
///   [`close`](Self::close).
/// * **Outputs**: after any input, drain [`poll_job`](Self::poll_job), [`poll_event`](Self::poll_event) and
///   [`poll_transmit`](Self::poll_transmit) until they give nothing, then sleep until
///   [`poll_timeout`](Self::poll_timeout) and call `handle_timeout`.
/// * Time is in nanoseconds of any origin and never steps back.
pub struct Session {
    config: Config,
    life: Life,
    sender: Sender,
    receiver: Receiver,
    pacer: Pacer,
    mtu: PathMtu,
    events: VecDeque<Event>,
    jobs: VecDeque<Job>,
    pending_jobs: Vec<(u64, Event)>,
    next_job: u64,
    /// Data waits outside for window or credit.
    backlog: bool,
    /// Packets that may leave beyond the window, to find out about a silent path.
    probes: u32,
    ping: bool,
    paths: Paths,
    local_ids: LocalIds,
    peer_ids: PeerIds,
    fresh_id_at: Nanos,
    /// A symbol that is leaving in parts, its next part, and the packet number of the first.
    leaving: Option<(SymbolChoice, Fragment, u64)>,
    /// PINGs sent into a silence.
    silence: u32,
    app_limited_told: bool,
    last_sent: Nanos,
    last_received: Nanos,
    counts: SessionStats,
}

impl Session {
    /// A session whose keys are ready.
    pub fn new(config: Config, now: Nanos) -> Self {
        let limit = config
            .peer_datagram_max
            .min((MAX_SYMBOL_LEN + OVERHEAD) as u16);
        let mtu = PathMtu::new(BASE_DATAGRAM, &config.mtu_candidates, limit);
        let sender = Sender::new(
            config.profile,
            config.code,
            moving::rate_control(&config),
            config.initial_rtt,
            config.peer_window,
            u32::from(BASE_DATAGRAM + config.ip_overhead),
            now,
        );
        let peer_parity = u16::from(config.role == Role::Client);
        let receiver = Receiver::new(peer_parity, config.recv_window);
        Self {
            life: Life::Open,
            sender,
            receiver,
            pacer: Pacer::new(now),
            mtu,
            events: VecDeque::new(),
            jobs: VecDeque::new(),
            pending_jobs: Vec::new(),
            next_job: 0,
            backlog: false,
            probes: 0,
            ping: false,
            paths: Paths::new(config.tuple),
            local_ids: LocalIds::new(config.local_cid),
            peer_ids: PeerIds::new(config.peer_cid),
            fresh_id_at: now,
            leaving: None,
            silence: 0,
            app_limited_told: false,
            last_sent: now,
            last_received: now,
            counts: SessionStats::default(),
            config,
        }
    }

    // ---- sending ------------------------------------------------------------------------------

    /// Source symbols and symbol size of a full block at present.
    pub fn block_shape(&self) -> (u16, u16) {
        let symbol_len = self.mtu.current() - OVERHEAD as u16;
        let per_block = bytes_in(self.sender.cc.pacing_rate(), BLOCK_TIME) / u64::from(symbol_len);
        // Small windows hold several blocks, so that one can be sent while another is repaired.
        let window = self.config.peer_window.min(self.config.send_window);
        let most = (window / BLOCKS_PER_WINDOW).saturating_sub(BLOCK_OVERHEAD);
        let n = per_block
            .clamp(BLOCK_SYMBOLS.0, BLOCK_SYMBOLS.1)
            .min(most / u64::from(symbol_len))
            .max(1);
        (n as u16, symbol_len)
    }

    /// Whether a block may be handed over now: window, credit and the amount of unsent data allow it.
    pub fn can_submit(&self, n: u16, symbol_len: u16) -> bool {
        let cost = block_cost(n, symbol_len);
        let ahead = bytes_in(self.sender.cc.pacing_rate(), UNSENT_TIME).max(UNSENT_MIN);
        matches!(self.life, Life::Open)
            && self.sender.has_credit(cost)
            && self.sender.has_room()
            && self.sender.unsent_bytes() < ahead
            && (self.sender.open_cost() == 0
                || self.sender.open_cost() + cost <= self.send_window())
    }

    /// BDP × (2 + ln(symbols in flight) / ln(1/p)): enough for the rounds of repair that the
    /// unluckiest symbol in flight is expected to need.
    fn send_window(&self) -> u64 {
        let symbols = (self.sender.cc.cwnd() / 1500).max(2) as f64;
        let plr = self.sender.monitor.plr().clamp(1e-6, 0.9);
        let rounds = 2.0 + symbols.ln() / (1.0 / plr).ln();
        let window = (self.sender.cc.cwnd() as f64 * rounds) as u64;
        window.max(SEND_WINDOW_MIN).min(self.config.send_window)
    }

    /// Hand over a block of n × symbol_len bytes that lies in `slot`; its id within the stream.
    /// `tail`: the application ends a message or the stream here.
    ///
    /// The caller keeps symbol_len in 1–9000, n from 1 to [`block_symbols_max`] and asks
    /// [`Session::can_submit`] first.
    pub fn submit(&mut self, stream: u16, slot: Slot, n: u16, symbol_len: u16, tail: bool) -> u64 {
        debug_assert!((1..=block_symbols_max(usize::from(symbol_len))).contains(&usize::from(n)));
        debug_assert!((1..=MAX_SYMBOL_LEN).contains(&usize::from(symbol_len)));
        self.app_limited_told = false;
        self.sender.submit(stream, slot, n, symbol_len, tail)
    }

    /// Tell whether more data waits outside for window or credit.
    pub fn set_backlog(&mut self, backlog: bool) {
        self.backlog = backlog;
    }

    /// Whether the peer has every block of the stream.
    pub fn stream_delivered(&self, stream: u16) -> bool {
        self.sender.stream_delivered(stream)
    }

    /// The next packet to send now.
    pub fn poll_transmit(&mut self, now: Nanos) -> Option<Transmit> {
        match &mut self.life {
            Life::Open => {}
            Life::Closing {
                code,
                reason,
                copies,
                since,
            } => {
                let due = CLOSE_TIMES
                    .get(*copies)
                    .is_some_and(|after| *since + after <= now);
                if !due {
                    return None;
                }
                *copies += 1;
                // What has arrived counts for the peer, even if it hears of it only now.
                let mut body = Vec::new();
                self.receiver.report_all();
                let room = usize::from(BASE_DATAGRAM) - OVERHEAD - CLOSE_LEN_MAX;
                self.receiver.write_feedback(now, room, &mut body);
                Frame::Close {
                    code: *code,
                    reason,
                }
                .encode(&mut body);
                return Some(self.control(now, body, false));
            }
            Life::Draining { answers, .. } => {
                *answers = answers.checked_sub(1)?;
                let mut body = Vec::new();
                Frame::Close {
                    code: 0,
                    reason: "",
                }
                .encode(&mut body);
                return Some(self.control(now, body, false));
            }
            Life::Finished => return None,
        }
        if let Some(transmit) = self.poll_path(now) {
            return Some(transmit);
        }
        if let Some(size) = self.mtu.poll(now, self.sender.rtt.smoothed()) {
            let mut body = vec![0; usize::from(size) - OVERHEAD];
            body[0] = 1;
            return Some(self.mtu_probe(now, body, size));
        }
        if let Some(transmit) = self.poll_control(now) {
            return Some(transmit);
        }
        self.poll_symbol(now)
    }

    fn poll_control(&mut self, now: Nanos) -> Option<Transmit> {
        let sack_due = self.receiver.sack_timeout().is_some_and(|at| at <= now);
        if !sack_due && !self.ping && !self.local_ids.is_due() {
            return None;
        }
        let mut body = Vec::new();
        // Feedback must get through whatever becomes of the path MTU.
        let room = usize::from(BASE_DATAGRAM) - OVERHEAD - CONTROL_RESERVE;
        self.receiver.write_feedback(now, room, &mut body);
        let eliciting = std::mem::take(&mut self.ping);
        if eliciting {
            Frame::Ping.encode(&mut body);
        }
        if self.local_ids.is_due()
            && let Some(highest) = self.local_ids.write(&mut body)
        {
            let ip_bytes = self.account_sent(now, body.len());
            let transmit = self.control_transmit(body);
            self.sender.sent_ids(now, ip_bytes, highest);
            return Some(transmit);
        }
        Some(self.control(now, body, eliciting))
    }

    fn poll_symbol(&mut self, now: Nanos) -> Option<Transmit> {
        let rate = self.sender.cc.pacing_rate();
        let allowed = self.sender.window_open() && self.pacer.ready(now, rate);
        if self.probes == 0 && !allowed {
            return None;
        }
        if let Some(transmit) = self.poll_part(now) {
            return Some(transmit);
        }
        if !self.sender.has_symbol() {
            self.sender.protect_tail(self.idle_kind());
        }
        let Some(mut choice) = self.sender.next_symbol() else {
            if self.probes > 0 {
                // Nothing to repair: ask for a sign of life.
                self.probes = 0;
                let mut body = Vec::new();
                Frame::Ping.encode(&mut body);
                return Some(self.control(now, body, true));
            }
            let (n, symbol_len) = self.block_shape();
            let starved = !self.backlog || !self.can_submit(n, symbol_len);
            if starved && !self.app_limited_told {
                self.app_limited_told = true;
                self.sender.cc.on_app_limited(now);
            }
            return None;
        };
        if !self.sender.has_symbol() {
            self.sender.protect_tail(self.idle_kind());
        }
        choice.last_of_flight = !self.sender.has_symbol() && !self.backlog || self.probes == 1;
        self.probes = self.probes.saturating_sub(1);
        let count = fragments_for(choice.symbol_len, self.mtu.current());
        if count > 1 && !self.risks_whole(now, &choice) {
            let part = Fragment {
                symbol_len: choice.symbol_len,
                index: 0,
                count,
            };
            self.leaving = Some((choice, part, self.sender.next_pn()));
            return self.poll_part(now);
        }
        Some(self.symbol(now, &choice))
    }

    /// Whether a symbol that does not fit the path is to leave whole all the same.
    ///
    /// All parts of a symbol must arrive, which is rare where most packets are lost; and there it may be
    /// an error that the path is narrow: overload can look the same. So symbols in trouble leave whole
    /// every other while. The arrival of one proves the error.
    fn risks_whole(&self, now: Nanos, choice: &SymbolChoice) -> bool {
        choice.round >= RISK_FROM_ROUND && (now / RISK_TIME) % 2 == 1
    }

    /// The next part of a symbol that is too large for the path.
    fn poll_part(&mut self, now: Nanos) -> Option<Transmit> {
        let (mut choice, part, first) = self.leaving.take()?;
        if !self.sender.is_open(choice.sequence) {
            // The peer has the block: its memory may be gone.
            return None;
        }
        let is_last = part.index + 1 == part.count;
        let last_of_flight = std::mem::replace(&mut choice.last_of_flight, false);
        choice.last_of_flight = last_of_flight && is_last;
        let body_len = FRAGMENT_PREFIX_LEN + part.range().len();
        let ip_bytes = self.account_sent(now, body_len);
        let transmit = self.symbol_transmit(&choice, Some(part), body_len);
        self.pacer.spent(u64::from(ip_bytes));
        self.sender
            .sent_fragment(now, ip_bytes, &choice, (first, part.count));
        if !is_last {
            let index = part.index + 1;
            choice.last_of_flight = last_of_flight;
            self.leaving = Some((choice, Fragment { index, ..part }, first));
        }
        Some(transmit)
    }

    fn has_symbol(&self) -> bool {
        self.leaving.is_some() || self.sender.has_symbol()
    }

    fn idle_kind(&self) -> Idle {
        if self.backlog {
            Idle::Window
        } else {
            Idle::Application
        }
    }

    fn symbol(&mut self, now: Nanos, choice: &SymbolChoice) -> Transmit {
        let body_len = usize::from(choice.symbol_len);
        let ip_bytes = self.account_sent(now, body_len);
        let transmit = self.symbol_transmit(choice, None, body_len);
        self.pacer.spent(u64::from(ip_bytes));
        self.sender.sent_symbol(now, ip_bytes, choice);
        transmit
    }

    fn symbol_transmit(
        &self,
        choice: &SymbolChoice,
        fragment: Option<Fragment>,
        body_len: usize,
    ) -> Transmit {
        let packet_number = self.sender.next_pn();
        let content = match choice.code {
            None => Content::Source {
                slot: choice.slot,
                index: choice.row as u16,
            },
            Some(code) => Content::Repair {
                slot: choice.slot,
                code,
                row: Row::new(choice.row).unwrap_or(Row::MAX),
            },
        };
        let header = Header {
            kind: fragment.map_or(PacketKind::Symbol, |_| PacketKind::Fragment),
            phase: false,
            last_of_flight: choice.last_of_flight,
            cid: self.peer_ids.current(),
            packet_number: packet_number as u32,
            block: choice.block as u32,
            stream: choice.stream,
            code: choice.code.map_or(CodeId::SOURCE, CodeId::to_wire),
            n: choice.n,
            row: choice.row,
        };
        Transmit {
            packet_number,
            to: self.paths.current(),
            header,
            content,
            fragment,
            body_len,
        }
    }

    fn control(&mut self, now: Nanos, body: Vec<u8>, eliciting: bool) -> Transmit {
        let ip_bytes = self.account_sent(now, body.len());
        let transmit = self.control_transmit(body);
        self.sender.sent_control(now, ip_bytes, eliciting);
        transmit
    }

    fn mtu_probe(&mut self, now: Nanos, body: Vec<u8>, size: u16) -> Transmit {
        let ip_bytes = self.account_sent(now, body.len());
        let transmit = self.control_transmit(body);
        self.sender.sent_mtu_probe(now, ip_bytes, size);
        transmit
    }

    fn control_transmit(&self, body: Vec<u8>) -> Transmit {
        let packet_number = self.sender.next_pn();
        Transmit {
            packet_number,
            to: self.paths.current(),
            header: Header::control(self.peer_ids.current(), packet_number as u32, false),
            fragment: None,
            body_len: body.len(),
            content: Content::Control(body),
        }
    }

    fn account_sent(&mut self, now: Nanos, body_len: usize) -> u32 {
        let ip_bytes = (body_len + OVERHEAD) as u32 + u32::from(self.config.ip_overhead);
        self.last_sent = now;
        self.counts.packets_sent += 1;
        self.counts.ip_bytes_sent += u64::from(ip_bytes);
        ip_bytes
    }

    // ---- receiving ------------------------------------------------------------------------------

    fn received(&mut self, meta: &PacketMeta, eliciting: bool) {
        let newest = self
            .receiver
            .largest()
            .is_none_or(|pn| meta.packet_number > pn);
        self.paths
            .on_packet(meta.now, meta.tuple, meta.datagram_len, newest);
        let pto = self.probe_timeout();
        self.local_ids.on_packet(meta.now, meta.cid, newest, pto);
        self.silence = 0;
        self.last_received = meta.now;
        self.counts.packets_received += 1;
        self.counts.ip_bytes_received +=
            meta.datagram_len as u64 + u64::from(self.config.ip_overhead);
        let rtt = self.sender.rtt.smoothed();
        self.receiver.on_packet(meta, eliciting, rtt);
    }

    /// A symbol packet has opened: where its symbol of `symbol_len` bytes goes. The caller stores the symbol
    /// before it polls for jobs and events.
    pub fn handle_symbol(
        &mut self,
        meta: &PacketMeta,
        header: &Header,
        symbol_len: usize,
    ) -> Placement {
        self.received(meta, true);
        if !matches!(self.life, Life::Open) {
            return Placement::Discard;
        }
        let (placement, progress) = self.receiver.on_symbol(meta.now, header, symbol_len);
        self.progress(progress);
        placement
    }

    /// A fragment packet has opened: where its part goes, and the symbol of which it is the last one.
    /// The caller stores both before it polls for jobs and events.
    pub fn handle_fragment(
        &mut self,
        meta: &PacketMeta,
        header: &Header,
        fragment: Fragment,
    ) -> Option<PartPlacement> {
        self.received(meta, true);
        if !matches!(self.life, Life::Open) {
            return None;
        }
        let (part, progress) = self.receiver.on_fragment(meta.now, header, fragment)?;
        self.progress(progress);
        Some(part)
    }

    fn progress(&mut self, progress: Progress) {
        match progress {
            Progress::None => {}
            Progress::Whole {
                stream,
                block,
                slot,
            } => {
                self.events.push_back(Event::BlockComplete {
                    stream,
                    block,
                    slot,
                });
            }
            Progress::Decodable {
                stream,
                block,
                slot,
            } => {
                let id = self.next_job;
                self.next_job += 1;
                self.pending_jobs.push((
                    id,
                    Event::BlockComplete {
                        stream,
                        block,
                        slot,
                    },
                ));
                self.jobs.push_back(Job { id, decode: slot });
            }
        }
    }

    /// A control packet has opened.
    pub fn handle_control(&mut self, meta: &PacketMeta, body: &[u8]) {
        let eliciting = FrameIter::new(body)
            .flatten()
            .any(|frame| frame.is_ack_eliciting());
        self.received(meta, eliciting);
        let mut deficits = Vec::new();
        let mut closed = None;
        for frame in FrameIter::new(body) {
            let Ok(frame) = frame else {
                return self.violation(meta.now, "malformed frame");
            };
            match frame {
                Frame::Padding | Frame::Ping => {}
                Frame::NewConnectionId { sequence, cid } => self.peer_ids.offer(sequence, cid),
                Frame::PathChallenge(data) => {
                    self.paths.on_challenge(meta.tuple, data, meta.datagram_len);
                }
                Frame::PathResponse(data) => {
                    if let Some(moved) = self.paths.on_response(meta.now, meta.tuple, data) {
                        self.moved(meta.now, moved);
                    }
                }
                Frame::Close { code, reason } => closed = Some((code, reason)),
                Frame::Blocks(blocks) => {
                    self.sender.on_blocks(&blocks);
                    deficits.push((blocks.stream, blocks.deficits));
                }
                Frame::Sack(sack) => {
                    if !self.sender.on_sack(meta.now, &sack) {
                        return self.violation(meta.now, "acknowledged a packet never sent");
                    }
                }
            }
        }
        for (stream, deficits) in deficits {
            for (block, deficit) in deficits {
                self.sender.on_deficit(stream, block, deficit);
            }
        }
        self.news_of_packets(meta.now);
        while let Some((slot, stream, block)) = self.sender.poll_freed() {
            self.events.push_back(Event::BlockDelivered {
                stream,
                block,
                slot,
            });
        }
        if let Some((code, reason)) = closed {
            self.peer_closed(meta.now, code, reason);
        }
    }

    fn peer_closed(&mut self, now: Nanos, code: u64, reason: &str) {
        match &mut self.life {
            Life::Open => {
                let reason = reason.to_owned();
                self.events.push_back(Event::Closed { code, reason });
                self.life = Life::Draining {
                    answers: 2,
                    until: now + DRAIN,
                };
            }
            Life::Draining { answers, .. } => *answers = (*answers + 1).min(2),
            // Our CLOSE was answered, or both ends closed at once.
            Life::Closing { .. } => {
                self.life = Life::Draining {
                    answers: 1,
                    until: now + DRAIN,
                }
            }
            Life::Finished => {}
        }
    }

    fn violation(&mut self, now: Nanos, what: &'static str) {
        if matches!(self.life, Life::Open) {
            self.events.push_back(Event::Violation(what));
            self.close(now, 5, what);
        }
    }

    /// The application has taken a received block's data.
    pub fn release(&mut self, now: Nanos, slot: Slot) {
        // The PING makes the news of more room reliable.
        self.ping |= self.receiver.release(now, slot);
    }

    /// Work to do on payload.
    pub fn poll_job(&mut self) -> Option<Job> {
        self.jobs.pop_front()
    }

    /// The job has been done.
    pub fn job_done(&mut self, id: u64) {
        if let Some(at) = self.pending_jobs.iter().position(|(job, _)| *job == id) {
            let (_, event) = self.pending_jobs.swap_remove(at);
            self.events.push_back(event);
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // ---- time, end --------------------------------------------------------------------------

    fn max_ack_delay(&self) -> Nanos {
        Receiver::sack_delay(self.sender.rtt.smoothed())
    }

    /// Present probe timeout without backoff: how long a packet may still be under way.
    pub fn probe_timeout(&self) -> Nanos {
        self.sender.rtt.pto(self.max_ack_delay())
    }

    /// Largest packet number that the peer has acknowledged.
    pub fn largest_acked(&self) -> Option<u64> {
        self.sender.largest_acked()
    }

    fn keep_alive(&self) -> Nanos {
        (self.config.idle_timeout / 4).clamp(MS, KEEP_ALIVE_MAX)
    }

    /// When [`Session::handle_timeout`] and [`Session::poll_transmit`] are to be called next;
    /// `None` once the session is finished.
    pub fn poll_timeout(&mut self) -> Option<Nanos> {
        match &self.life {
            Life::Open => {}
            Life::Closing { copies, since, .. } => {
                let next = CLOSE_TIMES.get(*copies).copied().unwrap_or(DRAIN);
                return Some(since + next);
            }
            Life::Draining { until, .. } => return Some(*until),
            Life::Finished => return None,
        }
        let rate = self.sender.cc.pacing_rate();
        let pacer = (self.has_symbol() && self.sender.window_open()).then(|| self.pacer.next(rate));
        let timers = [
            self.sender.timeout(self.max_ack_delay()),
            self.receiver.sack_timeout(),
            self.mtu.timeout(),
            self.paths.timeout(),
            self.local_ids.timeout(),
            self.silence_timeout(),
            pacer,
            Some(self.last_sent + self.keep_alive()),
            Some(self.last_received + self.config.idle_timeout),
        ];
        timers.into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Nanos) {
        match &self.life {
            Life::Open => {}
            Life::Closing { copies, since, .. } => {
                if *copies >= CLOSE_TIMES.len() && now >= since + DRAIN {
                    self.life = Life::Finished;
                }
                return;
            }
            Life::Draining { until, .. } => {
                if now >= *until {
                    self.life = Life::Finished;
                }
                return;
            }
            Life::Finished => return,
        }
        if now >= self.last_received + self.config.idle_timeout {
            self.events.push_back(Event::PeerLost);
            self.life = Life::Finished;
            return;
        }
        if now >= self.last_sent + self.keep_alive() {
            self.ping = true;
        }
        let delay = self.max_ack_delay();
        let probes = self.sender.on_timeout(now, delay);
        self.probes = self.probes.max(probes);
        // If only large packets vanish, the answer to a small one shows it.
        self.ping |= probes > 0 && self.mtu.current() > BASE_DATAGRAM;
        self.news_of_packets(now);
        if self.silence_timeout().is_some_and(|at| at <= now) {
            self.silence += 1;
            self.ping = true;
        }
        while let Some(cid) = self.local_ids.poll_retired(now) {
            self.events.push_back(Event::ConnectionIdRetired(cid));
        }
    }

    /// End the session: CLOSE is sent several times.
    pub fn close(&mut self, now: Nanos, code: u64, reason: &str) {
        if matches!(self.life, Life::Open) {
            self.life = Life::Closing {
                code,
                reason: reason.to_owned(),
                copies: 0,
                since: now,
            };
        }
    }

    /// End the session without a word.
    pub fn abandon(&mut self) {
        self.life = Life::Finished;
    }

    /// Whether the peer has answered CLOSE, or closed itself.
    pub fn is_closed_by_peer(&self) -> bool {
        matches!(self.life, Life::Draining { .. } | Life::Finished)
    }

    /// Whether nothing more will happen.
    pub fn is_finished(&self) -> bool {
        matches!(self.life, Life::Finished)
    }

    /// Counters and estimates.
    pub fn stats(&self) -> SessionStats {
        let sender = &self.sender;
        SessionStats {
            source_sent: sender.counters.source,
            repair_proactive: sender.counters.repair_proactive,
            repair_reactive: sender.counters.repair_reactive,
            blocks: sender.counters.blocks,
            blocks_second_round: sender.counters.blocks_second_round,
            block_bytes_delivered: sender.counters.bytes_complete,
            losses_spurious: sender.counters.losses_spurious,
            plr_mean: sender.monitor.plr_mean(),
            plr: sender.monitor.plr(),
            rtt: sender.rtt.smoothed(),
            min_rtt: sender.rtt.min(),
            pacing_rate: sender.cc.pacing_rate(),
            cwnd: sender.cc.cwnd(),
            symbol_len: self.mtu.current() - OVERHEAD as u16,
            symbols_redundant: self.receiver.symbols_redundant,
            packets_refused: self.receiver.packets_refused,
            ..self.counts
        }
    }
}

fn bytes_in(rate: u64, span: Nanos) -> u64 {
    (u128::from(rate) * u128::from(span) / 1_000_000_000).min(u128::from(u64::MAX)) as u64
}
