//! One secure association between two endpoints, as a state machine.

use std::collections::VecDeque;

use sphinx_fec::{CodeId, Row};

use crate::Nanos;
use crate::block::SymbolChoice;
use crate::cc::{self, CcKind, CcParams};
use crate::mtu::PathMtu;
use crate::pacer::Pacer;
use crate::receiver::{Progress, Receiver};
use crate::sender::{Idle, Sender};
use crate::wire::{
    ConnectionId, Frame, FrameIter, Header, MAX_SYMBOL_LEN, OVERHEAD, PacketKind, block_symbols_max,
};

const MS: Nanos = 1_000_000;

/// UDP payload that every path carries (RFC 9000 §14).
pub const BASE_DATAGRAM: u16 = 1200;
/// Charged to the window for every block besides its symbols.
const BLOCK_OVERHEAD: u64 = 512;
/// When copies of CLOSE are sent, counted from the first.
const CLOSE_TIMES: [Nanos; 6] = [0, 5 * MS, 20 * MS, 60 * MS, 150 * MS, 300 * MS];
/// Longest encoding of a CLOSE frame.
const CLOSE_LEN_MAX: usize = 300;
/// How long a closed session still answers.
const DRAIN: Nanos = 400 * MS;
/// Longest silence of an idle end.
const KEEP_ALIVE_MAX: Nanos = 3_000 * MS;
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

/// What a block costs in the flow-control window, bytes (`docs/protocol.md` §7).
pub fn block_cost(n: u16, symbol_len: u16) -> u64 {
    u64::from(n) * u64::from(symbol_len) + BLOCK_OVERHEAD
}

/// Which end opened the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Sends on even streams.
    Client,
    /// Sends on odd streams.
    Server,
}

/// What redundancy is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Goodput: repair follows loss; only what ends a stream is protected ahead.
    Bulk,
    /// Completion time: whenever nothing more waits to be sent, what is on its way is protected so
    /// that it fails with a probability of at most 0.2 %.
    Latency,
}

/// A place for one block's memory, kept by whoever drives the session. Sending and receiving
/// slots are numbered separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// What a session is told at its beginning.
#[derive(Debug, Clone)]
pub struct Config {
    /// This end.
    pub role: Role,
    /// Connection id that the peer chose.
    pub peer_cid: ConnectionId,
    /// Redundancy.
    pub profile: Profile,
    /// Code of repair symbols; `None` sends no proactive repair (losses are still repaired).
    pub code: Option<CodeId>,
    /// Rate control.
    pub cc: CcKind,
    /// Round-trip time of the handshake.
    pub initial_rtt: Nanos,
    /// Silence after which the peer counts as lost.
    pub idle_timeout: Nanos,
    /// Memory for received blocks, bytes (§7).
    pub recv_window: u64,
    /// Most memory for blocks on their way, bytes.
    pub send_window: u64,
    /// The peer's window at the start, bytes.
    pub peer_window: u64,
    /// IP and UDP header bytes: 28 for IPv4, 48 for IPv6.
    pub ip_overhead: u16,
    /// UDP payloads to probe for, rising.
    pub mtu_candidates: Vec<u16>,
    /// Largest UDP payload that the peer accepts.
    pub peer_datagram_max: u16,
}

/// A received packet that has opened.
#[derive(Debug, Clone, Copy)]
pub struct PacketMeta {
    /// Present time.
    pub now: Nanos,
    /// When the packet arrived, on the same clock.
    pub received_at: Nanos,
    /// Full packet number.
    pub packet_number: u64,
    /// ECN codepoint, 0–3.
    pub ecn: u8,
    /// Whole datagram, bytes.
    pub datagram_len: usize,
    /// The header's mark.
    pub last_of_flight: bool,
}

/// Where a received symbol goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Nowhere.
    Discard,
    /// Source symbol `index` of the block in `slot`; its memory is n × symbol_len bytes, and is
    /// new if the slot was free.
    Source {
        /// Block memory.
        slot: Slot,
        /// Source symbols in the block.
        n: u16,
        /// Bytes per symbol.
        symbol_len: u16,
        /// Position.
        index: u16,
    },
    /// A repair symbol to keep until the block decodes.
    Repair {
        /// Block memory.
        slot: Slot,
        /// Source symbols in the block.
        n: u16,
        /// Bytes per symbol.
        symbol_len: u16,
        /// Code that made it.
        code: CodeId,
        /// Its row.
        row: Row,
    },
}

/// Work on payload that the core asks for. Jobs of different blocks are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// For [`Session::job_done`].
    pub id: u64,
    /// Restore the missing source symbols of the block in this slot.
    pub decode: Slot,
}

/// Something the application must hear of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// All of a received block is in its slot. Call [`Session::release`] when the data is taken.
    BlockComplete {
        /// Stream id.
        stream: u16,
        /// Block id within the stream.
        block: u64,
        /// Block memory.
        slot: Slot,
    },
    /// The peer has a whole block: its memory may go.
    BlockDelivered {
        /// Stream id.
        stream: u16,
        /// Block id within the stream.
        block: u64,
        /// Block memory.
        slot: Slot,
    },
    /// The peer has closed.
    Closed {
        /// An exit code, or the application's.
        code: u64,
        /// For people.
        reason: String,
    },
    /// Nothing has been heard for the idle timeout.
    PeerLost,
    /// The peer broke the protocol; CLOSE has been queued.
    Violation(&'static str),
}

/// What a packet to send carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Source symbol `index` of the block in `slot`.
    Source {
        /// Block memory.
        slot: Slot,
        /// Position.
        index: u16,
    },
    /// Repair symbol to be computed from the block in `slot`.
    Repair {
        /// Block memory.
        slot: Slot,
        /// Code.
        code: CodeId,
        /// Row.
        row: Row,
    },
    /// Frames, ready to be sealed.
    Control(Vec<u8>),
}

/// A packet descriptor: everything but the payload. The packet number is used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// Full packet number.
    pub packet_number: u64,
    /// Header; the key phase is the sealer's business.
    pub header: Header,
    /// Body.
    pub content: Content,
    /// Bytes of the body: the symbol size or the frames' length.
    pub body_len: usize,
}

/// Counters and estimates of one session.
#[derive(Debug, Clone, Copy, Default)]
pub struct SessionStats {
    /// Data-plane IP bytes sent.
    pub ip_bytes_sent: u64,
    /// Data-plane packets sent.
    pub packets_sent: u64,
    /// Data-plane IP bytes received and opened.
    pub ip_bytes_received: u64,
    /// Data-plane packets received and opened.
    pub packets_received: u64,
    /// Source symbols sent for the first time.
    pub source_sent: u64,
    /// Repair symbols sent before loss was seen.
    pub repair_proactive: u64,
    /// Repair symbols sent after loss was seen.
    pub repair_reactive: u64,
    /// Blocks opened by this end.
    pub blocks: u64,
    /// Of these, complete only after loss had been answered.
    pub blocks_second_round: u64,
    /// Bytes of blocks that the peer has completed.
    pub block_bytes_delivered: u64,
    /// Losses that turned out to be late packets.
    pub losses_spurious: u64,
    /// Mean loss rate since the start, 0–1.
    pub plr_mean: f64,
    /// Present estimate of the loss rate, 0–1.
    pub plr: f64,
    /// Smoothed round-trip time.
    pub rtt: Nanos,
    /// Smallest round-trip time.
    pub min_rtt: Nanos,
    /// Pacing rate, IP bytes per second.
    pub pacing_rate: u64,
    /// Congestion window, IP bytes.
    pub cwnd: u64,
    /// Largest symbol on the present path MTU.
    pub symbol_len: u16,
    /// Symbols received that were not needed.
    pub symbols_redundant: u64,
    /// Received packets that broke a limit.
    pub packets_refused: u64,
}

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
    path_response: Option<[u8; 8]>,
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
        let params = CcParams {
            packet_bytes: u32::from(BASE_DATAGRAM + config.ip_overhead),
            block_packets: 100,
            hint: None,
        };
        let sender = Sender::new(
            config.profile,
            config.code,
            cc::build(config.cc, params),
            config.initial_rtt,
            config.peer_window,
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
            path_response: None,
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
        if !sack_due && !self.ping && self.path_response.is_none() {
            return None;
        }
        let mut body = Vec::new();
        let room = usize::from(self.mtu.current()) - OVERHEAD - 16;
        self.receiver.write_feedback(now, room, &mut body);
        if let Some(data) = self.path_response.take() {
            Frame::PathResponse(data).encode(&mut body);
        }
        let eliciting = std::mem::take(&mut self.ping);
        if eliciting {
            Frame::Ping.encode(&mut body);
        }
        Some(self.control(now, body, eliciting))
    }

    fn poll_symbol(&mut self, now: Nanos) -> Option<Transmit> {
        let rate = self.sender.cc.pacing_rate();
        let allowed = self.sender.window_open() && self.pacer.ready(now, rate);
        if self.probes == 0 && !allowed {
            return None;
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
        Some(self.symbol(now, &choice))
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
        let packet_number = self.sender.next_pn();
        self.pacer.spent(u64::from(ip_bytes));
        self.sender.sent_symbol(now, ip_bytes, choice);
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
            kind: PacketKind::Symbol,
            phase: false,
            last_of_flight: choice.last_of_flight,
            cid: self.config.peer_cid,
            packet_number: packet_number as u32,
            block: choice.block as u32,
            stream: choice.stream,
            code: choice.code.map_or(CodeId::SOURCE, CodeId::to_wire),
            n: choice.n,
            row: choice.row,
        };
        Transmit {
            packet_number,
            header,
            content,
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
            header: Header::control(self.config.peer_cid, packet_number as u32, false),
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
        placement
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
                Frame::Padding | Frame::Ping | Frame::NewConnectionId { .. } => {}
                Frame::PathResponse(_) => {}
                Frame::PathChallenge(data) => self.path_response = Some(data),
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
        if let Some(size) = self.sender.mtu_acked.take() {
            self.mtu.acked(size);
        }
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
        let pacer =
            (self.sender.has_symbol() && self.sender.window_open()).then(|| self.pacer.next(rate));
        let timers = [
            self.sender.timeout(self.max_ack_delay()),
            self.receiver.sack_timeout(),
            self.mtu.timeout(),
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
        self.probes = self.probes.max(self.sender.on_timeout(now, delay));
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
