//! One secure association between two endpoints, as a state machine.

mod alive;
mod bond;
mod ending;
mod frames;
mod introduction;
mod moving;
mod paper;
mod paths;
mod receiving;
mod refusal;
mod sc;
mod sending;

use std::collections::VecDeque;

use crate::admission::{Admission, Capacity};
use crate::blocks::Horizon;
use crate::cc::{CcKind, time_for};
use crate::config::{Config, PathMemory, Profile};
use crate::control_queue::ControlQueue;
use crate::demand::Demand;
use crate::jobs::Jobs;
use crate::paper::Paper;
use crate::paths::{Lane, Paths};
use crate::receiver::Receiver;
use crate::scheduler::Duty;
use crate::sender::Sender;
use crate::types::{
    Event, Lifetime, RepairMode, Room, SessionStats, Slot, StreamId, StreamPart, Urgency,
    block_cost, share_cost,
};
use crate::wire::{
    FlowNews, Frame, MAX_RESET_BLOCKS, MAX_SYMBOL_LEN, OVERHEAD, VARINT_MAX, block_symbols_max,
};
use crate::{Nanos, PacketNumber, PathId, Time};
pub use ending::CLOSE_LOST;
use ending::{CLOSE_TIMES, DRAIN, Life};
pub use introduction::Introduction;
use refusal::Refusals;

const MS: Nanos = 1_000_000;

/// UDP payload that every path carries (RFC 9000 §14).
pub const BASE_DATAGRAM: u16 = 1200;

/// Time between complete reports to a peer that asks.
const REPORT_INTERVAL: Nanos = 10 * MS;

/// Memory for so many events is kept while there are none.
const EVENTS_KEPT: usize = 1 << 12;

/// Packets wait for the next departure no longer than this: a round trip that is measured includes the wait. At a rate so low that
/// departures are a second apart, round trips would seem to take a second, and make the rate of a window lower still.
const GATHER_MAX: Nanos = MS;

/// One session.
///
/// The core never reads a clock, a socket or a random number: the same calls give the same
/// packets. It never touches symbols either: memory is named by [`Slot`]s.
///
/// # Driving it
///
/// *Inputs* tell what has happened:
///
/// | input | what has happened |
/// | --- | --- |
/// | [`handle_packet`](Self::handle_packet) | a packet has opened that has not opened before |
/// | [`handle_bundled`](Self::handle_bundled) | a packet that has opened holds several symbols; for each, in their order, before anything else |
/// | [`handle_replay`](Self::handle_replay) | one that has opened before has come again |
/// | [`handle_timeout`](Self::handle_timeout) | the time of [`poll_timeout`](Self::poll_timeout) has come |
/// | [`submit`](Self::submit), [`submit_datagrams`](Self::submit_datagrams), [`tell_flow`](Self::tell_flow), [`set_backlog`](Self::set_backlog), [`set_profile`](Self::set_profile), [`set_limit`](Self::set_limit), [`set_cc`](Self::set_cc), [`reset_stream`](Self::reset_stream) | the application has data, or more than there is [room](Self::room_for) for, or wants it otherwise, or not any more |
/// | [`block_unpacked`](Self::block_unpacked), [`stream_whole`](Self::stream_whole) | what a complete block holds, and that a stream is here to its end |
/// | [`open_window`](Self::open_window) | the application wants what the peer sends |
/// | [`set_recv_window`](Self::set_recv_window), [`set_send_window`](Self::set_send_window) | there is memory for more, at best as much as [`recv_window_wanted`](Self::recv_window_wanted) says, or for less |
/// | [`taken`](Self::taken) | the application has taken a part of a stream |
/// | [`job_done`](Self::job_done) | work on payload has been done |
/// | [`add_random`](Self::add_random), [`add_connection_id`](Self::add_connection_id) | here is randomness, as many times as [`random_wanted`](Self::random_wanted) and [`connection_ids_wanted`](Self::connection_ids_wanted) say |
/// | [`datagram_too_large`](Self::datagram_too_large), [`local_address_lost`](Self::local_address_lost), [`peer_refused`](Self::peer_refused), [`hold_up`](Self::hold_up) | the operating system has said so |
/// | [`ask`](Self::ask) | the keys of a path wait for an acknowledgement |
/// | [`confirm`](Self::confirm), [`begin_again`](Self::begin_again), [`expect_reset`](Self::expect_reset) | the handshake is over, before which the session began; what the peer has said in it |
/// | [`close`](Self::close), [`abandon`](Self::abandon) | the session is to end |
///
/// *Outputs* are taken until they give nothing, in this order, after any input:
///
/// 1. [`poll_job`](Self::poll_job): work to do, now or later; in which order says [`Job`](crate::Job);
/// 2. [`poll_event`](Self::poll_event): what the application must hear of, memory to be freed, ids to be forgotten;
/// 3. [`poll_transmit`](Self::poll_transmit): packets, and right behind one, if that is wanted for less work, those that
///    [`poll_following`](Self::poll_following) gives. Symbols are to be read before the next input, as it may free their blocks.
///
/// Then the driver sleeps until [`poll_timeout`](Self::poll_timeout), which is later than now, or the next input. What
/// is late does no harm but to speed. Everything else only looks.
///
/// * [`Time`] has any origin and never steps back: nothing but the times in SACKs depends on the origin.
/// * Whatever a peer sends, nothing panics, and memory and work per packet are bounded.
/// * A session is finished when `poll_timeout` gives nothing.
pub struct Session {
    config: Config,
    life: Life,
    sender: Sender,
    receiver: Receiver,
    paths: Paths,
    control_queue: ControlQueue,
    events: VecDeque<Event>,
    jobs: Jobs,
    admission: Admission,
    demand: Demand,
    /// When the streams were last reported because the peer asked.
    reported_at: Time,
    fresh_id_at: Time,
    /// PINGs sent into a silence.
    silence: u32,
    refusals: Option<Refusals>,
    words: bond::Words,
    paper: Option<paper::Ends>,
    last_sent: Time,
    last_received: Time,
    /// When something left that is to be answered, for the first time since then.
    asked_at: Option<Time>,
    /// What is next whatever else there is to send, behind the packet that left last.
    following: Option<sending::Following>,
    counts: SessionStats,
}

impl Session {
    /// A session whose keys are ready.
    pub fn new(config: Config, now: Time) -> Self {
        let mut session = Self {
            life: Life::Open,
            sender: Sender::new(&config),
            receiver: Receiver::new(&config, now),
            paths: Paths::new(&config, now),
            control_queue: ControlQueue::default(),
            events: VecDeque::new(),
            jobs: Jobs::default(),
            admission: Admission::new(&config),
            demand: Demand::new(now),
            reported_at: now,
            fresh_id_at: now,
            silence: 0,
            refusals: None,
            words: bond::Words::default(),
            paper: paper::Ends::new(&config),
            last_sent: now,
            last_received: now,
            asked_at: None,
            following: None,
            counts: SessionStats::default(),
            config,
        };
        session.answer_bond();
        session
    }

    // ---- sending ------------------------------------------------------------------------------

    /// Source symbols and symbol size of a full block at present, where so many streams have something to send.
    pub fn block_shape(&self, streams: u64) -> (u16, u16) {
        if let Some(ends) = &self.paper {
            return ends.shape();
        }
        if let Some(shape) = self.sc_shape() {
            return shape;
        }
        self.admission
            .block_shape(&self.sender, self.paths.capacity(), streams)
    }

    /// Whether a block of this stream and shape (source symbols, bytes of each) may be handed over now: window, credit, the stream's
    /// share of it and the amount of unsent data that is as urgent decide.
    ///
    /// A block of a stream that waits for nothing of its own to be read is never [held up](Room::HeldUp), if the peer's
    /// window is at least 360 KiB and holds no more than it has room for since it shrank, all of it has been granted (which it counts as when anything of a stream has been taken), and no datagrams are under way, unless four times as many streams have been opened as there were when others filled the window.
    pub fn room_for(&self, stream: StreamId, urgency: Urgency, shape: (u16, u16)) -> Room {
        if let Some(room) = self.sc_room() {
            return match self.life {
                Life::Open => room,
                _ => Room::Later,
            };
        }
        let capacity = self.paths.capacity();
        let room = match self.look_ahead(shape, capacity) {
            Some(bytes) => self
                .admission
                .room_ahead(&self.sender, stream, shape, bytes),
            None => self
                .admission
                .room_for(&self.sender, capacity, (stream, urgency), shape),
        };
        match room {
            Room::Whole | Room::Part(..) if !matches!(self.life, Life::Open) => Room::Later,
            Room::Whole | Room::Part(..) if !self.paper_has_room() => Room::Later,
            room => room,
        }
    }

    /// How many bytes may be handed over before the peer has room for them, in blocks of this shape: what faster paths send in the meantime if one
    /// of them is slow, and what is handed over ahead of sending.
    fn look_ahead(&self, (n, symbol_len): (u16, u16), capacity: Capacity) -> Option<u64> {
        if self.sender.is_passive() {
            return None;
        }
        let block = u64::from(n) * u64::from(symbol_len);
        // Nothing overtakes what waits: it would take the room of what is before it.
        let is_waiting = !self.sender.waiting().is_empty();
        let behind = self.paths.look_ahead(block);
        let behind = behind.or(is_waiting.then_some(0))?;
        Some(behind.saturating_add(self.admission.ahead(capacity)))
    }

    /// Changes when a stream that is [held up](Room::HeldUp) may not be any more.
    pub fn window_news(&self) -> u64 {
        self.sender.streams().news()
    }

    /// Whether a block of these parts, of different streams, may be handed over now; their costs are filled in.
    pub fn can_submit(
        &self,
        shape: (u16, u16),
        urgency: Urgency,
        parts: &mut [StreamPart],
    ) -> bool {
        if let Some(room) = self.sc_room() {
            // What shares a packet is a generation of one symbol.
            return matches!(self.life, Life::Open) && room == Room::Whole && shape.0 == 1;
        }
        share_cost(block_cost(shape.0, shape.1), parts);
        matches!(self.life, Life::Open)
            && self.sender.waiting().is_empty()
            && self.paper_has_room()
            && self
                .admission
                .can_open(&self.sender, self.paths.capacity(), urgency, shape)
            && self.sender.streams().have_room(parts)
    }

    /// Hand over a block of n × symbol_len bytes that lies in `slot`, with these parts, whose costs are filled in.
    /// `tail`: the application ends a message or a stream here. Its symbols, repairs included, leave before those of less urgent blocks.
    ///
    /// The caller keeps symbol_len in 1–9000, n from 1 to [`block_symbols_max`] and asks
    /// [`Session::room_for`] first.
    pub fn submit(
        &mut self,
        slot: Slot,
        (n, symbol_len): (u16, u16),
        (tail, urgency): (bool, Urgency),
        parts: &mut [StreamPart],
    ) {
        debug_assert!((1..=block_symbols_max(usize::from(symbol_len))).contains(&usize::from(n)));
        debug_assert!((1..=MAX_SYMBOL_LEN).contains(&usize::from(symbol_len)));
        for lane in self.paths.iter_mut() {
            lane.scheduler.on_submit();
        }
        self.demand.begins(self.has_data());
        match self.config.sc {
            Some(_) => crate::sc::share_cost((n, symbol_len), parts),
            None => share_cost(block_cost(n, symbol_len), parts),
        }
        for part in parts.iter() {
            self.receiver.begin(part.stream);
        }
        let may_wait = self
            .look_ahead((n, symbol_len), self.paths.capacity())
            .is_some();
        self.sender
            .submit(slot, (n, symbol_len), (tail, urgency), parts, may_wait);
        self.give_to_paper(slot, (n, symbol_len));
        self.give_to_sc(slot, (n, symbol_len));
    }

    /// Whether a block of datagrams of this shape may be handed over now: window, credit and the amount of unsent data that is as
    /// urgent decide.
    pub fn can_submit_datagrams(&self, shape: (u16, u16), urgency: Urgency) -> bool {
        let cost = block_cost(shape.0, shape.1);
        matches!(self.life, Life::Open)
            && self.config.sc.is_none()
            && self.paper_has_room()
            && self.sender.streams().have_room_for_datagrams(cost)
            && self
                .admission
                .can_open(&self.sender, self.paths.capacity(), urgency, shape)
    }

    /// When the last symbol of a block of datagrams leaves, if it is handed over now and the present rate holds. What is to leave before it takes
    /// as much repair as this block does.
    pub fn last_leaves(
        &self,
        now: Time,
        (n, symbol_len): (u16, u16),
        urgency: Urgency,
        lifetime: Lifetime,
    ) -> Time {
        let bytes = u64::from(n) * u64::from(symbol_len);
        let ahead = self.sender.blocks().unsent_before(urgency);
        let cc = self.paths.main().path.cc();
        let rate = cc.pacing_rate().min(cc.bandwidth_estimate()).max(1);
        let after = |bytes: f64| now.saturating_add(time_for(bytes, rate as f64));
        let leaves = after((ahead + bytes) as f64);
        if ahead == 0 || lifetime.repair == RepairMode::None {
            return leaves;
        }
        let (plr, until) = (self.paths.main().path.monitor().plr(), lifetime.until);
        let horizon = Horizon {
            now: leaves,
            ..self.paths.main().path.horizon(now)
        };
        let share = self.sender.repair_ahead(n, until, horizon, plr);
        after(ahead as f64 * (1.0 + share) + bytes as f64)
    }

    /// How long what leaves now is on its way, as far as the other end can tell: half of the smallest round trip, and the queue.
    pub fn one_way(&self) -> Nanos {
        let rtt = self.paths.main().path.rtt();
        rtt.smoothed().saturating_sub(rtt.base() / 2)
    }

    /// The smallest round-trip time of the latest seconds.
    pub fn base_rtt(&self) -> Nanos {
        self.paths.main().path.rtt().base()
    }

    /// Hands over a block of datagrams, as [`submit`](Self::submit) does one of streams, after asking
    /// [`can_submit_datagrams`](Self::can_submit_datagrams). When its time is over it is [abandoned](Event::BlockAbandoned), unless
    /// it has been delivered.
    pub fn submit_datagrams(
        &mut self,
        slot: Slot,
        shape: (u16, u16),
        urgency: Urgency,
        lifetime: Lifetime,
    ) {
        for lane in self.paths.iter_mut() {
            lane.scheduler.on_submit();
        }
        self.demand.begins(self.has_data());
        self.sender.submit_datagrams(slot, shape, urgency, lifetime);
        self.give_to_paper(slot, shape);
    }

    /// Tells the peer something about a flow of datagrams, until it has heard it.
    pub fn tell_flow(&mut self, news: FlowNews) {
        if matches!(self.life, Life::Open) {
            self.control_queue.push(&Frame::Flow(news));
        }
    }

    /// Gives up a stream that this end sends on, for a reason of the application's. Nothing more of it may be handed over, and what
    /// the peer lacks of it is not repaired. Nothing happens to one that has [ended](Event::StreamEnded) or was given up before.
    pub fn reset_stream(&mut self, stream: StreamId, code: u64) {
        if !matches!(self.life, Life::Open) {
            return;
        }
        self.receiver.begin(stream);
        let mut abandoned = Vec::new();
        let code = code.min(VARINT_MAX);
        for reset in self.sender.reset(stream, code, &mut abandoned) {
            self.control_queue.push(&Frame::Reset(reset));
        }
        let abandoned = abandoned.into_iter();
        let abandoned = abandoned.map(|slot| Event::BlockAbandoned { slot });
        self.events.extend(abandoned);
        self.note_ended();
    }

    /// What is sent from now on, as [`Config::limit`] says for the beginning.
    ///
    /// [`Config::limit`]: crate::Config::limit
    pub fn set_limit(&mut self, limit: Option<u64>) {
        let now = self.last_sent.max(self.last_received);
        self.paths.set_limit(now, limit);
    }

    /// Memory for blocks on their way, bytes, as [`Config::send_window`] says for the beginning. If it becomes less, nothing
    /// more is handed over until it suffices.
    ///
    /// [`Config::send_window`]: crate::Config::send_window
    pub fn set_send_window(&mut self, bytes: u64) {
        self.admission.set_send_window(bytes);
    }

    /// From now on this controls the rate, instead of [`Config::cc`]. It begins with the rate, the round trips and the window
    /// of the one before; packets under way stay under way.
    ///
    /// [`Config::cc`]: crate::Config::cc
    pub fn set_cc(&mut self, now: Time, cc: CcKind) {
        for lane in self.paths.iter_mut() {
            lane.path.set_cc(now, cc);
        }
    }

    /// What redundancy is for from now on.
    pub fn set_profile(&mut self, profile: Profile) {
        self.sender.set_profile(profile);
    }

    /// Tell whether more data waits outside for window or credit, and a stream of which some is
    /// [held up](Room::HeldUp).
    pub fn set_backlog(&mut self, backlog: bool, held_up: Option<StreamId>) {
        let has_data = self.has_data();
        self.demand.set(backlog, held_up, has_data);
    }

    /// Whether there is anything that the peer does not have.
    fn has_data(&self) -> bool {
        self.demand.backlog()
            || self.sender.blocks().open_cost() > 0
            || !self.sender.waiting().is_empty()
    }

    /// Whether the peer has everything of the stream that was handed over.
    pub fn stream_delivered(&self, stream: StreamId) -> bool {
        self.sender.streams().is_delivered(stream)
    }

    /// Streams with nothing more to come of which no block is on its way any more, since the last call: the peer has everything of those that were not given up.
    pub fn take_delivered(&mut self) -> Vec<StreamId> {
        self.sender.take_delivered()
    }

    // ---- events, time, end -------------------------------------------------------------------

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if event.is_none() && self.events.capacity() > EVENTS_KEPT {
            // Whoever says much at once is not to have the memory for it kept.
            self.events = VecDeque::new();
        }
        event
    }

    /// Settings of the paper's mode, if the session uses it.
    pub fn paper(&self) -> Option<&Paper> {
        self.paper.as_ref().map(paper::Ends::settings)
    }

    /// Present probe timeout without backoff: how long a packet may still be under way.
    pub fn probe_timeout(&self) -> Nanos {
        self.paths.main().path.probe_timeout()
    }

    /// Largest packet number of a path that the peer has acknowledged.
    pub fn largest_acked(&self, path: PathId) -> Option<PacketNumber> {
        let index = self.paths.index(path)?;
        self.paths.at(index).path.largest_acked()
    }

    /// When the last packet opened; when the session began, before the first.
    pub fn last_received(&self) -> Time {
        self.last_received
    }

    /// When the first packet left that wants an answer, since the last packet of the peer opened.
    pub fn asked_at(&self) -> Option<Time> {
        self.asked_at
    }

    /// When [`Session::handle_timeout`] and [`Session::poll_transmit`] are to be called next;
    /// `None` once the session is finished.
    pub fn poll_timeout(&mut self) -> Option<Time> {
        match &self.life {
            Life::Open => {}
            Life::Closing { copies, since, .. } => {
                let next = CLOSE_TIMES.get(*copies).copied().unwrap_or(DRAIN);
                return Some(*since + next);
            }
            Life::Draining { until, .. } => return Some(*until),
            Life::Finished => return None,
        }
        let paper = self.paper_timeout();
        let lanes = (0..self.paths.len()).filter_map(|index| self.lane_timeout(index));
        let idle = Some(self.idle_at());
        if !self.paths.is_any_validated() {
            // Nothing else can leave.
            return lanes.chain(idle).min();
        }
        let timers = [
            paper,
            self.sc_timeout(),
            lanes.min(),
            self.silence_timeout(),
            self.demand.ask_at(),
            self.sender.blocks().next_expiry(),
            self.window_idle().map(|idle| idle.0),
            self.stall_timeout(),
            self.refusals_timeout(),
            idle,
        ];
        timers.into_iter().flatten().min()
    }

    /// Until when nobody needs to look at packets that arrive, if that is worth it; [`poll_timeout`](Self::poll_timeout) holds all the
    /// same. They come so fast that many can be handled together, or nothing that they say could make a packet leave sooner.
    pub fn gather_until(&self, now: Time) -> Option<Time> {
        if !matches!(self.life, Life::Open) {
            return None;
        }
        if self.paper.is_some() || self.config.sc.is_some() {
            // In these modes each packet is answered, or may be, at once.
            return None;
        }
        if self.paths.len() > 1 {
            // What comes on one path may let a packet leave on another.
            return None;
        }
        let Lane {
            path, scheduler, ..
        } = self.paths.main();
        let arriving = path.gather_until(now, self.receiver.lacking());
        let paced = || {
            let departure = path.next_departure(self.demand.backlog())?;
            let has_symbol = scheduler.has_symbol(&self.sender, Duty::All);
            (departure > now && has_symbol).then_some(departure.min(now + GATHER_MAX))
        };
        arriving.or_else(paced)
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        match &self.life {
            Life::Open => {}
            Life::Closing { copies, since, .. } => {
                if *copies >= CLOSE_TIMES.len() && now >= *since + DRAIN {
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
        if now >= self.idle_at() {
            self.events.push_back(Event::PeerLost);
            // It may live, and hear more than is heard of it.
            self.close(
                now,
                CLOSE_LOST,
                "it heard nothing from this end for its idle timeout",
            );
            return;
        }
        self.consider_refusals(now);
        if !matches!(self.life, Life::Open) {
            return;
        }
        if self.stall_timeout().is_some_and(|at| at <= now) {
            return self.stalled(now, self.demand.held_up());
        }
        if self.control_queue.is_overfull() {
            return self.stalled(now, None);
        }
        self.keep_paths_alive(now);
        if let Some((_, size)) = self.window_idle().filter(|idle| idle.0 <= now) {
            self.set_recv_window(now, size);
        }
        if self.demand.ask_at().is_some_and(|at| at <= now) {
            self.paths.main_mut().scheduler.ping();
            self.demand
                .ask_later(now, self.paths.main().path.probe_timeout());
        }
        self.paper_timed_out(now);
        self.sc_timed_out(now);
        self.look_for_losses(now);
        self.look_at_copies(now);
        for index in 0..self.paths.len() {
            let path = &mut self.paths.at_mut(index).path;
            path.settle(now);
            if path.poll_moved(now) {
                self.moved(index);
            }
        }
        if self.silence_timeout().is_some_and(|at| at <= now) {
            self.silence += 1;
            self.paths.main_mut().scheduler.ping();
        }
        self.retire_ids(now);
    }

    /// Datagrams whose time is over are repaired no more, and the peer waits for them no more.
    pub(super) fn give_up_expired(&mut self, now: Time) {
        let mut abandoned = Vec::new();
        let patience = 2 * self.paths.main().path.rtt().smoothed();
        let gone = self.sender.give_up_expired(now, patience, &mut abandoned);
        for blocks in gone.chunks(MAX_RESET_BLOCKS) {
            self.control_queue.push(&Frame::Gone(blocks.to_vec()));
        }
        let abandoned = abandoned.into_iter();
        self.events
            .extend(abandoned.map(|slot| Event::BlockAbandoned { slot }));
    }

    // ---- waiting for the peer's application ---------------------------------------------------

    fn stall_timeout(&self) -> Option<Time> {
        if self.config.readers_may_pause && self.demand.held_up().is_some() {
            return None;
        }
        let patience = (self.config.idle_timeout, self.keep_alive());
        self.demand.stall_timeout(patience, self.has_data())
    }

    /// What is worth remembering about the path; `None` until its rate and its losses have been
    /// measured.
    pub fn path_memory(&self) -> Option<PathMemory> {
        self.paths.main().path.memory()
    }

    /// Counters and estimates.
    pub fn stats(&self) -> SessionStats {
        let (main, sent) = (self.paths.main(), self.sender.counters());
        let path = &main.path;
        SessionStats {
            source_sent: sent.source,
            repair_proactive: sent.repair_proactive,
            repair_reactive: sent.repair_reactive,
            repair_proactive_bytes: sent.repair_proactive_bytes,
            repair_reactive_bytes: sent.repair_reactive_bytes,
            bundles: sent.bundles,
            bundled_bytes: sent.bundled_bytes,
            blocks: sent.blocks,
            blocks_second_round: sent.blocks_second_round,
            block_bytes_delivered: sent.bytes_complete,
            mtu_falls: self.paths.iter().map(|lane| lane.path.mtu_falls()).sum(),
            losses_spurious: self
                .paths
                .iter()
                .map(|lane| lane.path.losses_spurious())
                .sum(),
            losses_sent: path.monitor().losses(),
            losses_received: path.acks().losses(),
            plr: self
                .paper
                .as_ref()
                .map_or(path.monitor().plr(), paper::Ends::plr),
            rtt: path.rtt().smoothed(),
            min_rtt: path.rtt().min(),
            pacing_rate: path.cc().pacing_rate(),
            ecn: path.ecn().0,
            packets_marked: path.ecn().1,
            cwnd: self
                .paper
                .as_ref()
                .map_or(path.cc().cwnd(), paper::Ends::window_bytes),
            recv_window: self.receiver.streams().window().size(),
            peer_window: self.sender.streams().window(),
            window_limited: main
                .scheduler
                .held_for(self.last_sent.max(self.last_received)),
            streams_peak: self
                .sender
                .streams()
                .peak()
                .max(self.receiver.streams().peak()),
            symbol_len: self.paths.capacity().mtu - OVERHEAD as u16,
            symbols_redundant: self.receiver.symbols_redundant(),
            packets_refused: self.receiver.packets_refused(),
            symbol_bytes_received: self.receiver.symbol_bytes(),
            warnings_sent: self.receiver.sc().map_or(0, |sc| sc.warnings()),
            warnings_received: self.sender.sc().map_or(0, |sc| sc.warnings()),
            ..self.counts
        }
    }
}

#[cfg(test)]
mod tests;
