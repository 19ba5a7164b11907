//! One secure association between two endpoints, as a state machine.

mod moving;
mod receiving;
mod refusal;
mod sending;

use std::collections::VecDeque;

use crate::Nanos;
use crate::blocks::{SymbolChoice, block_symbols, symbol_reserve};
use crate::config::{Config, PathMemory, Profile};
use crate::control_queue::ControlQueue;
use crate::ids::{LocalIds, PeerIds};
use crate::path::Path;
use crate::receiver::Receiver;
use crate::sender::{Carriage, Sender};
use crate::types::{BLOCK_OVERHEAD, Event, Job, Room, SessionStats, Slot, block_cost};
use crate::wire::{Fragment, Frame, MAX_SYMBOL_LEN, OVERHEAD, block_symbols_max};
use refusal::Refusals;

const MS: Nanos = 1_000_000;

/// UDP payload that every path carries (RFC 9000 §14).
pub const BASE_DATAGRAM: u16 = 1200;
/// When copies of CLOSE are sent, counted from the first.
const CLOSE_TIMES: [Nanos; 6] = [0, 5 * MS, 20 * MS, 60 * MS, 150 * MS, 300 * MS];
/// How long a closed session still answers.
const DRAIN: Nanos = 400 * MS;
/// Longest silence of an idle end.
const KEEP_ALIVE_MAX: Nanos = 3_000 * MS;
/// Symbols of a full block: what the link carries in this time, as far as the code allows …
const BLOCK_TIME: Nanos = 10 * MS;
/// … and at least so many.
const BLOCK_SYMBOLS_MIN: u64 = 32;
/// Full blocks that fit a window at least.
const BLOCKS_PER_WINDOW: u64 = 8;
/// … and of every stream.
const BLOCKS_PER_STREAM: u64 = 4;
/// Smallest symbol of a block that is made to fit what is left of the window.
const PART_SYMBOL_MIN: u64 = 64;
/// PINGs behind the probes of a silent path: one of them or its answer may be lost too.
const SMALL_PROBES: u8 = 2;
/// Smallest send window.
const SEND_WINDOW_MIN: u64 = 512 * 1024;
/// Source data handed over ahead of sending: what the link carries in this time, at least 64 KiB.
const UNSENT_TIME: Nanos = 8 * MS;
const UNSENT_MIN: u64 = 64 * 1024;

/// A session of which nothing is confirmed, although nothing waits for being read, counts as stalled after so many
/// idle timeouts: repairs back off, and those of `--icm paper` and `off` come seldom.
const STALL_UNREPAIRED: Nanos = 4;
/// How long a stream is held up before the peer is asked for news, at least, and the longest time between such
/// questions.
const ASK_WAIT_MIN: Nanos = 20 * MS;
const ASK_WAIT_MAX: Nanos = 500 * MS;
/// Time between complete reports to a peer that asks.
const REPORT_INTERVAL: Nanos = 10 * MS;

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
/// * **Inputs**: [`submit`](Self::submit) (a block to send), [`handle_packet`](Self::handle_packet) (a packet that
///   has opened), [`job_done`](Self::job_done), [`release`](Self::release), [`handle_timeout`](Self::handle_timeout),
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
    path: Path,
    control_queue: ControlQueue,
    events: VecDeque<Event>,
    jobs: VecDeque<Job>,
    pending_jobs: Vec<(u64, Event)>,
    next_job: u64,
    /// Data waits outside for window or credit.
    backlog: bool,
    /// A stream of which data waits for the peer's application to read, when to ask next whether it has, and
    /// after what time again.
    held_up: Option<u16>,
    ask_at: Option<Nanos>,
    ask_wait: Nanos,
    /// When something to be sent was last confirmed or read at the other end, or began to wait; and whether it
    /// begins now.
    progress_at: Nanos,
    begins: bool,
    /// When a SACK last came.
    answered_at: Nanos,
    /// When the streams were last reported because the peer asked.
    reported_at: Nanos,
    /// Packets that may leave beyond the window, to find out about a silent path.
    probes: u32,
    ping: bool,
    /// PINGs that are to follow the probes.
    small_probes: u8,
    local_ids: LocalIds,
    peer_ids: PeerIds,
    fresh_id_at: Nanos,
    /// A symbol that is leaving in parts, its next part, and the packet number of the first.
    leaving: Option<(SymbolChoice, Fragment, u64)>,
    /// PINGs sent into a silence.
    silence: u32,
    refusals: Option<Refusals>,
    app_limited_told: bool,
    last_sent: Nanos,
    last_received: Nanos,
    counts: SessionStats,
}

impl Session {
    /// A session whose keys are ready.
    pub fn new(config: Config, now: Nanos) -> Self {
        Self {
            life: Life::Open,
            sender: Sender::new(&config),
            receiver: Receiver::new(&config),
            path: Path::new(&config, now),
            control_queue: ControlQueue::default(),
            events: VecDeque::new(),
            jobs: VecDeque::new(),
            pending_jobs: Vec::new(),
            next_job: 0,
            backlog: false,
            held_up: None,
            ask_at: None,
            ask_wait: 0,
            progress_at: now,
            begins: false,
            answered_at: now,
            reported_at: now,
            probes: 0,
            ping: false,
            small_probes: 0,
            local_ids: LocalIds::new(config.local_cid),
            peer_ids: PeerIds::new(config.peer_cid),
            fresh_id_at: now,
            leaving: None,
            silence: 0,
            refusals: None,
            app_limited_told: false,
            last_sent: now,
            last_received: now,
            counts: SessionStats::default(),
            config,
        }
    }

    // ---- sending ------------------------------------------------------------------------------

    /// Source symbols and symbol size of a full block at present, where so many streams are written to.
    pub fn block_shape(&self, streams: u16) -> (u16, u16) {
        let reserve = symbol_reserve(self.config.code);
        let symbol_len = self.path.mtu() - OVERHEAD as u16 - reserve;
        let most_symbols = block_symbols(self.config.code);
        let per_block = bytes_in(self.path.cc().pacing_rate(), BLOCK_TIME) / u64::from(symbol_len);
        // Small windows hold several blocks, so that one can be sent while another is repaired; and several of
        // every stream.
        let window = self.config.peer_window.min(self.config.send_window);
        let blocks = BLOCKS_PER_WINDOW.max(BLOCKS_PER_STREAM * u64::from(streams));
        let most = (window / blocks).saturating_sub(BLOCK_OVERHEAD);
        let mut n = per_block
            .clamp(BLOCK_SYMBOLS_MIN, u64::from(most_symbols))
            .min(most / u64::from(symbol_len))
            .max(1) as u16;
        // What streams that nobody reads leave of the window is for the blocks of the others.
        while n > 1 && self.sender.streams().common_left() < 2 * block_cost(n, symbol_len) {
            n /= 2;
        }
        (n, symbol_len)
    }

    /// Whether a block of this stream may be handed over now: window, credit, the stream's share of it and
    /// the amount of unsent data decide.
    ///
    /// A block of a stream that waits for nothing of its own to be read is never [held up](Room::HeldUp).
    pub fn room_for(&self, stream: u16, n: u16, symbol_len: u16) -> Room {
        let most = self.sender.streams().most(stream);
        let (fits, shape) = if block_cost(n, symbol_len) <= most {
            (Room::Whole, (n, symbol_len))
        } else {
            match part(most, symbol_len).filter(|_| self.sender.streams().held(stream) == 0) {
                Some((n, symbol_len)) => (Room::Part(n, symbol_len), (n, symbol_len)),
                None => return Room::HeldUp,
            }
        };
        match self.can_open(shape.0, shape.1) {
            true => fits,
            false => Room::Later,
        }
    }

    /// Changes when a stream that is [held up](Room::HeldUp) may not be any more.
    pub fn window_news(&self) -> u64 {
        self.sender.streams().news()
    }

    /// Whether a block of this stream may be handed over now, whole.
    pub fn can_submit(&self, stream: u16, n: u16, symbol_len: u16) -> bool {
        self.room_for(stream, n, symbol_len) == Room::Whole
    }

    /// Whether some stream's block may be handed over.
    fn can_open(&self, n: u16, symbol_len: u16) -> bool {
        let cost = block_cost(n, symbol_len);
        let ahead = bytes_in(self.path.cc().pacing_rate(), UNSENT_TIME).max(UNSENT_MIN);
        matches!(self.life, Life::Open)
            && self.sender.streams().has_credit(cost)
            && self.sender.blocks().has_room()
            && self.sender.blocks().unsent_bytes() < ahead
            && (self.sender.blocks().open_cost() == 0
                || self.sender.blocks().open_cost() + cost <= self.send_window())
    }

    /// BDP × (2 + ln(symbols in flight) / ln(1/p)): enough for the rounds of repair that the
    /// unluckiest symbol in flight is expected to need.
    fn send_window(&self) -> u64 {
        let symbols = (self.path.cc().cwnd() / 1500).max(2) as f64;
        let plr = self.path.monitor().plr().clamp(1e-6, 0.9);
        let rounds = 2.0 + symbols.ln() / (1.0 / plr).ln();
        let window = (self.path.cc().cwnd() as f64 * rounds) as u64;
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
        self.begins |= !self.has_data();
        self.sender.submit(stream, slot, (n, symbol_len), tail)
    }

    /// What redundancy is for from now on.
    pub fn set_profile(&mut self, profile: Profile) {
        self.sender.set_profile(profile);
    }

    /// Tell whether more data waits outside for window or credit, and a stream of which some is
    /// [held up](Room::HeldUp).
    pub fn set_backlog(&mut self, backlog: bool, held_up: Option<u16>) {
        self.begins |= backlog && !self.has_data();
        self.backlog = backlog;
        self.held_up = held_up;
        if held_up.is_none() {
            (self.ask_at, self.ask_wait) = (None, 0);
        }
    }

    /// Whether there is anything that the peer does not have.
    fn has_data(&self) -> bool {
        self.backlog || self.sender.blocks().open_cost() > 0
    }

    /// Whether the peer has every block of the stream.
    pub fn stream_delivered(&self, stream: u16) -> bool {
        self.sender.streams().is_delivered(stream)
    }

    // ---- events, time, end -------------------------------------------------------------------

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Present probe timeout without backoff: how long a packet may still be under way.
    pub fn probe_timeout(&self) -> Nanos {
        self.path.probe_timeout()
    }

    /// Largest packet number that the peer has acknowledged.
    pub fn largest_acked(&self) -> Option<u64> {
        self.path.largest_acked()
    }

    /// When the last packet opened; when the session began, before the first.
    pub fn last_received(&self) -> Nanos {
        self.last_received
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
        let pacer = self.path.next_departure().filter(|_| self.has_symbol());
        let timers = [
            self.sender.timeout(&self.path),
            self.path.acks().timeout(),
            self.path.mtu_timeout(),
            self.path.challenge_timeout(),
            self.local_ids.timeout(),
            self.silence_timeout(),
            self.ask_at,
            self.stall_timeout(),
            self.refusals_timeout(),
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
        self.consider_refusals(now);
        if matches!(self.life, Life::Finished) {
            return;
        }
        if self.stall_timeout().is_some_and(|at| at <= now) {
            return self.stalled(now);
        }
        if now >= self.last_sent + self.keep_alive() {
            self.ping = true;
        }
        if self.ask_at.is_some_and(|at| at <= now) {
            self.ping = true;
            self.ask_later(now);
        }
        self.look_for_losses(now);
        self.path.settle(now);
        if self.silence_timeout().is_some_and(|at| at <= now) {
            self.silence += 1;
            self.ping = true;
        }
        while let Some((sequence, cid)) = self.local_ids.poll_retired(now) {
            self.control_queue
                .cancel(&Frame::NewConnectionId { sequence, cid });
            self.events.push_back(Event::ConnectionIdRetired(cid));
        }
    }

    /// Loss by time, and probes of a silent path.
    fn look_for_losses(&mut self, now: Nanos) {
        let mut carriage = Carriage {
            sender: &mut self.sender,
            control: &mut self.control_queue,
        };
        let probes = carriage.on_timeout(&mut self.path, now);
        self.probes = self.probes.max(probes);
        // If only large packets vanish, the answer to a small one shows it.
        if probes > 0 && self.path.mtu() > BASE_DATAGRAM {
            self.small_probes = SMALL_PROBES;
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

    // ---- waiting for the peer's application ---------------------------------------------------

    /// The news that a stream has been read may be lost: ask for it, ever more seldom.
    fn ask_later(&mut self, now: Nanos) {
        let first = self.probe_timeout().max(ASK_WAIT_MIN);
        self.ask_wait = (2 * self.ask_wait).clamp(first, ASK_WAIT_MAX.max(first));
        self.ask_at = Some(now + self.ask_wait);
    }

    /// Before anything is sent: whether something begins to wait now.
    fn note_waiting(&mut self, now: Nanos) {
        if std::mem::take(&mut self.begins) {
            self.progress_at = now;
        }
        if self.held_up.is_some() && self.ask_at.is_none() {
            self.ask_later(now);
        }
    }

    /// When a session with data to send counts as stalled. Time in which no feedback comes does not count:
    /// that is the path, or a lost peer.
    fn stall_timeout(&self) -> Option<Nanos> {
        // A path on which repairs are as seldom as that is slow; a reader who takes nothing has stopped.
        let times = if self.held_up.is_some() {
            1
        } else {
            STALL_UNREPAIRED
        };
        let patience = times.saturating_mul(self.config.idle_timeout);
        let at = self.progress_at.saturating_add(patience);
        let answered = at <= self.answered_at + 2 * self.keep_alive();
        (self.has_data() && answered && !self.begins).then_some(at)
    }

    /// A SACK has come: what it does not tell has not happened.
    fn answered(&mut self, now: Nanos) {
        let silent = now.saturating_sub(self.answered_at);
        if silent > self.keep_alive() {
            self.progress_at += silent;
        }
        self.answered_at = now;
    }

    fn stalled(&mut self, now: Nanos) {
        let held_up = self.held_up;
        self.events.push_back(Event::Stalled { held_up });
        let reason = match held_up {
            Some(stream) => format!("nothing of stream {stream} was read at this end for too long"),
            None => "nothing sent to this end was confirmed for too long".to_owned(),
        };
        self.close(now, 6, &reason);
    }

    fn violation(&mut self, now: Nanos, what: &'static str) {
        if matches!(self.life, Life::Open) {
            self.events.push_back(Event::Violation(what));
            self.close(now, 5, what);
        }
    }

    /// Whether the peer has answered CLOSE, or closed itself.
    pub fn is_closed_by_peer(&self) -> bool {
        matches!(self.life, Life::Draining { .. } | Life::Finished)
    }

    /// Whether nothing more will happen.
    pub fn is_finished(&self) -> bool {
        matches!(self.life, Life::Finished)
    }

    /// What is worth remembering about the path; `None` until its rate and its losses have been
    /// measured.
    pub fn path_memory(&self) -> Option<PathMemory> {
        self.path.memory()
    }

    /// Counters and estimates.
    pub fn stats(&self) -> SessionStats {
        let (path, sent) = (&self.path, self.sender.counters());
        SessionStats {
            source_sent: sent.source,
            repair_proactive: sent.repair_proactive,
            repair_reactive: sent.repair_reactive,
            repair_proactive_bytes: sent.repair_proactive_bytes,
            repair_reactive_bytes: sent.repair_reactive_bytes,
            blocks: sent.blocks,
            blocks_second_round: sent.blocks_second_round,
            block_bytes_delivered: sent.bytes_complete,
            mtu_falls: path.mtu_falls(),
            losses_spurious: path.losses_spurious(),
            losses_sent: path.monitor().losses(),
            losses_received: self.path.acks().losses(),
            plr: path.monitor().plr(),
            rtt: path.rtt().smoothed(),
            min_rtt: path.rtt().min(),
            pacing_rate: path.cc().pacing_rate(),
            cwnd: path.cc().cwnd(),
            symbol_len: path.mtu() - OVERHEAD as u16,
            symbols_redundant: self.receiver.symbols_redundant(),
            packets_refused: self.receiver.packets_refused(),
            ..self.counts
        }
    }
}

/// The largest shape that costs at most `most`, with symbols of at most this size.
fn part(most: u64, symbol_len: u16) -> Option<(u16, u16)> {
    let bytes = most.checked_sub(BLOCK_OVERHEAD)?;
    let n = bytes / u64::from(symbol_len);
    if n > 0 {
        return Some((n.min(u64::from(u16::MAX)) as u16, symbol_len));
    }
    // Some codes need an even size.
    let symbol_len = bytes as u16 & !1;
    (bytes >= PART_SYMBOL_MIN).then_some((1, symbol_len))
}

fn bytes_in(rate: u64, span: Nanos) -> u64 {
    (u128::from(rate) * u128::from(span) / 1_000_000_000).min(u128::from(u64::MAX)) as u64
}
