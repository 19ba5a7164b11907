//! One session: the core, its packet protection, and the memory that its slots name.

mod arriving;
mod datagrams;
mod exchange;
mod generations;
mod lanes;
mod leaving;
mod receiving;
mod segments;
mod sending;

use std::collections::BTreeSet;

use sphinx_fec::{BlockDecoder, Encoder, RowMaker};
use sphinx_proto::cc::CcKind;
use sphinx_proto::wire::{ConnectionId, ResetToken};
use sphinx_proto::{
    Introduction, Nanos, PacketMeta, PacketNumber, PathId, PathNews, Profile, Room, Session,
    StreamId, Time, Tuple, Urgency,
};

use crate::blocks::{RxBlocks, TxBlocks};
use crate::executor::Executor;
use crate::generations::Generations;
use crate::pool::BufferPool;
use crate::protection::PacketProtection;
use crate::window::Window;
use crate::work::{DecodeJob, Fault, Outcome, Spare, Task, TaskId, Work};
use arriving::Arriving;
use lanes::Lanes;
use leaving::Leaving;
pub(crate) use sending::Source;

/// Working memory for payload, which any number of sessions can share in one thread.
pub struct Workshop {
    pub(crate) pool: BufferPool,
    pub(crate) encoder: Encoder,
    pub(crate) decoder: BlockDecoder,
    /// Uses all repairs together, those of peeling codes too.
    pub(crate) thorough_decoder: BlockDecoder,
    /// Rows of sliding windows, of repairs that leave and that arrive.
    pub(crate) rows: RowMaker,
    /// A symbol of which parts are sent.
    pub(crate) symbol: Vec<u8>,
    /// Runs whose memory is used again.
    pub(crate) spare: Spare,
}

impl Workshop {
    /// Takes the memory of blocks from `pool`.
    pub fn new(pool: BufferPool) -> Self {
        Self {
            pool,
            encoder: Encoder::new(),
            decoder: BlockDecoder::new(),
            thorough_decoder: BlockDecoder::new().maximum_likelihood(),
            rows: RowMaker::new(),
            symbol: Vec::new(),
            spare: Spare::default(),
        }
    }

    /// Where the memory of blocks comes from.
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Memory to be exchanged for that of datagrams that have arrived: 64 KiB of whatever content.
    pub fn take_memory(&mut self) -> Vec<u8> {
        self.spare.memory()
    }

    /// Memory that is not needed after all.
    pub fn keep_memory(&mut self, memory: Vec<u8>) {
        self.spare.keep_memory(memory);
    }
}

/// Where and when a datagram came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// When it arrived; at most the present time.
    pub received_at: Time,
    /// The addresses that it travelled between.
    pub tuple: Tuple,
    /// ECN codepoint, 0–3.
    pub ecn: u8,
}

impl Origin {
    /// What the core is told of a packet that came so.
    fn meta(&self, now: Time, packet_number: PacketNumber, datagram_len: usize) -> PacketMeta {
        PacketMeta {
            now,
            received_at: self.received_at,
            packet_number,
            tuple: self.tuple,
            ecn: self.ecn,
            datagram_len,
        }
    }
}

/// Why a session is over for its application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndReason {
    /// A block that has all it needs did not decode: a fault of this end.
    CannotDecode(sphinx_fec::Error),
    /// A packet was not encoded or sealed: a fault of this end, or the key is used up.
    CannotSeal(String),
    /// The application closed it.
    Closed {
        /// Close code.
        code: u64,
        /// The reason as text for people.
        reason: String,
    },
    /// The peer closed it.
    ClosedByPeer {
        /// Close code.
        code: u64,
        /// The reason as text for people.
        reason: String,
    },
    /// So many packets did not open that the keys are not to be trusted any longer.
    Forgeries,
    /// The budget of the last path is spent.
    OutOfBudget,
    /// The network says that nobody listens at the peer's address, and nothing is heard from it.
    PeerGone,
    /// Nothing was heard from the peer for the idle timeout.
    PeerLost,
    /// The peer answers, and nothing has come further for the idle timeout.
    Stalled {
        /// A stream whose share of the window is full because the peer's application does not read it.
        held_up: Option<StreamId>,
    },
    /// The peer broke the protocol.
    Violation(&'static str),
    /// A job on its payload panicked: a fault of this end.
    WorkerPanicked,
}

/// What a driver has counted, besides what the core does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams that did not open, or whose bodies make no sense.
    pub invalid: u64,
    /// Datagrams that had been received before, or are so old that the replay window cannot tell.
    pub replayed: u64,
    /// Data bytes that the peer has confirmed.
    pub bytes_delivered: u64,
    /// Data bytes of the blocks that are complete at this end.
    pub bytes_received: u64,
    /// Bytes that were copied on their way, in both directions: into blocks and frames, and with workers into runs and out of them. Not what the
    /// application writes and reads, nor what is encoded, decoded or within the back end.
    pub copied_bytes: u64,
    /// Bytes that were multiplied and added over GF(2^8) for rows of generations (`docs/protocol.md` §14), at this end.
    pub field_operations: u64,
}

/// One session and everything that its payload needs.
///
/// * **Inputs**: [`handle_datagram`](Self::handle_datagram), unless the driver [is full](Self::is_full), [`handle_timeout`](Self::handle_timeout),
///   [`supply`](Self::supply), and what the network says: [`peer_refused`](Self::peer_refused),
///   [`datagram_too_large`](Self::datagram_too_large), [`local_address_lost`](Self::local_address_lost).
/// * **The application**: [`exchange`](Self::exchange) fetches what it has left in the queues and puts there
///   what has arrived.
/// * **Outputs**: [`transmit`](Self::transmit), [`poll_end`](Self::poll_end),
///   [`take_path_changes`](Self::take_path_changes), [`take_retired`](Self::take_retired).
///
/// After any input, and when the application wants it ([`Queues::take_wanted`](crate::Queues::take_wanted)):
/// `handle_timeout`, `exchange`, `supply`, `transmit`, then sleep until [`poll_timeout`](Self::poll_timeout).
/// [`Time`] is that of the core, which never steps back.
pub struct Driver<P, E> {
    core: Session,
    lanes: Lanes<P>,
    executor: E,
    source: Source,
    retired: Vec<ConnectionId>,
    path_changes: Vec<Tuple>,
    path_news: Vec<(PathId, PathNews)>,
    /// Memory of symbols that arrive in fragments, by the place that the core has given each.
    parts: Vec<Vec<u8>>,
    tx: TxBlocks,
    rx: RxBlocks,
    window: Window,
    generations: Generations,
    /// Tasks made so far; the next one gets this number.
    tasks: u64,
    /// Packets that workers open.
    arriving: Arriving,
    /// Packets that workers seal.
    leaving: Leaving,
    /// Why a worker could not seal a packet; ends the session.
    seal_fault: Option<String>,
    /// Blocks that workers have decoded, or failed to, and that the core has not been told of.
    decoded: Vec<(DecodeJob, Result<(), sphinx_fec::Error>)>,
    counters: Counters,
    /// Data bytes and datagrams that the peer has confirmed and that do not count as delivered yet: not before the peer is certain.
    confirmed: (u64, u64),
    end: Option<EndReason>,
    has_ended: bool,
    /// Between [`be_provisional`](Self::be_provisional) and [`be_certain`](Self::be_certain): nothing counts as delivered, and CLOSE is put off.
    is_provisional: bool,
    /// Code and reason with which the application has closed, until the core may send CLOSE.
    closing: Option<(u64, String)>,
    /// When to look again whether an application pauses in writing, so that what it has written so far is sent.
    pause_at: Option<Time>,
    /// The next block of a stream, if it has to wait until more of what was handed over has left: stream, urgency and shape.
    waiting: Option<(StreamId, Urgency, (u16, u16))>,
    /// The same for the next block of datagrams: urgency and shape.
    waiting_datagrams: Option<(Urgency, (u16, u16))>,
    /// Bytes by which datagrams are ahead of streams of the same urgency, while both have something to send: they take turns by it.
    datagrams_lead: i64,
    /// When the next datagram expires or is due to be given to the application.
    datagrams_at: Option<Time>,
    /// [`Session::window_news`] when it was last tried to send for the streams that are held up.
    window_news: u64,
    /// Finished streams of which the core has the last piece, and the peer not yet; and those that the peer has by now.
    ending: BTreeSet<StreamId>,
    delivered: Vec<StreamId>,
    /// Pieces of all streams that have arrived ahead of missing ones; bounded, as their places are kept.
    ahead: usize,
}

impl<P: PacketProtection, E: Executor> Driver<P, E> {
    /// Drives a session that has just begun.
    pub fn new(core: Session, protection: P, executor: E, is_client: bool) -> Self {
        Self {
            core,
            lanes: Lanes::new(protection),
            executor,
            source: Source::new(is_client),
            retired: Vec::new(),
            path_changes: Vec::new(),
            path_news: Vec::new(),
            parts: Vec::new(),
            tx: TxBlocks::default(),
            rx: RxBlocks::default(),
            window: Window::default(),
            generations: Generations::default(),
            tasks: 0,
            arriving: Arriving::default(),
            leaving: Leaving::default(),
            seal_fault: None,
            decoded: Vec::new(),
            counters: Counters::default(),
            confirmed: (0, 0),
            end: None,
            has_ended: false,
            is_provisional: false,
            closing: None,
            pause_at: None,
            waiting: None,
            waiting_datagrams: None,
            datagrams_lead: 0,
            datagrams_at: None,
            window_news: 0,
            ending: BTreeSet::new(),
            delivered: Vec::new(),
            ahead: 0,
        }
    }

    /// The session: its counters, estimates, path and state.
    pub fn core(&self) -> &Session {
        &self.core
    }

    /// The packet protection of the session's first path.
    pub fn protection(&self) -> &P {
        self.lanes.first()
    }

    /// The handshake is over, before which the session began, and the peer has what has left so far: `confirm` gives the first path the keys of what
    /// leaves from now on.
    pub fn confirm(&mut self, introduction: Option<&Introduction>, confirm: impl FnOnce(&mut P)) {
        confirm(self.lanes.first_mut());
        self.core.confirm(introduction);
    }

    /// The handshake is over, before which the session began, and the peer knows nothing of it: all that has left so far leaves again, protected
    /// with these keys. The rest as [`Session::begin_again`].
    pub fn begin_again(
        &mut self,
        now: Time,
        place: (Tuple, Nanos),
        introduction: &Introduction,
        protection: P,
    ) {
        self.lanes.begin_again(protection);
        self.core.begin_again(now, place, introduction);
        self.confirmed = (0, 0);
        self.is_provisional = false;
    }

    /// Until [`be_certain`](Self::be_certain), nobody knows that the peer is the one that the application means, or will stay: nothing counts as delivered, and the
    /// peer of a session that is closed is not told so.
    pub fn be_provisional(&mut self) {
        self.is_provisional = true;
    }

    /// The peer is the one that the application means, and has the session: what it has confirmed counts from now on. Ends
    /// [`be_provisional`](Self::be_provisional).
    pub fn be_certain(&mut self) {
        self.is_provisional = false;
    }

    /// What has been counted since the session began.
    pub fn counters(&self) -> Counters {
        Counters {
            field_operations: self.tx.operations() + self.generations.operations(),
            ..self.counters
        }
    }

    /// Memory of blocks that were handed over and not delivered, bytes, as the window counts it.
    pub fn sending_cost(&self) -> u64 {
        self.tx.cost()
    }

    /// Memory of received blocks that have not been read, bytes, as the window counts it.
    pub fn receiving_cost(&self) -> u64 {
        self.rx.cost()
    }

    /// Pieces of streams that have arrived, taken or not, and for which earlier ones are missing: the place of each is kept.
    pub fn pieces_ahead(&self) -> usize {
        self.ahead
    }

    /// Bytes of blocks that have been delivered and are kept for sliding windows, at most a quarter of the window and 2 MiB;
    /// and of what waits for a block to be decoded, at most 256 KiB and a packet.
    pub fn window_bytes(&self) -> usize {
        self.window.bytes()
    }

    /// What is sent at most from now on, IP bytes per second.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.core.set_limit(limit);
    }

    /// What controls the rate from now on, beginning with what has been found out so far.
    pub fn set_cc(&mut self, now: Time, cc: CcKind) {
        self.core.set_cc(now, cc);
    }

    /// What redundancy is for from now on.
    pub fn set_profile(&mut self, profile: Profile) {
        self.core.set_profile(profile);
    }

    /// The application wants what the peer sends: that may fill the whole window from now on.
    pub fn open_window(&mut self, now: Time) {
        self.core.open_window(now);
    }

    /// The receive window is so large from now on, bytes. A smaller one needs the peer's consent: until that is here, nothing changes it again.
    pub fn set_recv_window(&mut self, now: Time, size: u64) {
        self.core.set_recv_window(now, size);
    }

    /// Memory for blocks on their way from now on, bytes.
    pub fn set_send_window(&mut self, bytes: u64) {
        self.core.set_send_window(bytes);
    }

    // ---- time ---------------------------------------------------------------------------------

    /// What has arrived, timers that are due, and jobs that are done.
    ///
    /// A timer waits for packets that came before it and are being opened: what they say may be that it was not needed.
    pub fn handle_timeout(&mut self, now: Time, workshop: &mut Workshop) {
        self.finish_arriving(now, workshop);
        self.finish_tasks(now, workshop);
        if self.next_timer().is_some_and(|at| at <= now) {
            self.core.handle_timeout(now);
        }
        let core = &self.core;
        self.lanes.on_acked(|path| core.largest_acked(path));
    }

    fn next_timer(&mut self) -> Option<Time> {
        let at = self.core.poll_timeout();
        at.filter(|at| !self.arriving.is_behind(*at))
    }

    /// When the driver is to be called next, if nothing happens before: at once for a time that has passed.
    pub fn poll_timeout(&mut self) -> Option<Time> {
        let mut waiting = self.waiting.iter();
        if waiting.any(|(stream, urgency, shape)| {
            self.core.room_for(*stream, *urgency, *shape) != Room::Later
        }) {
            // Sending has made room for a block that waits.
            return Some(Time::ZERO);
        }
        let mut waiting = self.waiting_datagrams.iter();
        if waiting.any(|(urgency, shape)| self.core.can_submit_datagrams(*shape, *urgency)) {
            return Some(Time::ZERO);
        }
        if self.leaving.is_ready() || self.arriving.is_ready() || !self.decoded.is_empty() {
            return Some(Time::ZERO);
        }
        let (core, done) = (self.next_timer(), self.executor.next_done());
        // Looking again would not let it leave sooner: it would keep a processor from the workers.
        let core = core.filter(|at| !self.leaving.is_held_up(*at));
        let timers = [core, self.pause_at, self.datagrams_at, done];
        timers.into_iter().flatten().min()
    }

    /// Nothing will happen any more.
    pub fn is_finished(&self) -> bool {
        self.core.is_finished()
    }

    // ---- jobs done elsewhere --------------------------------------------------------------------

    fn next_task(&mut self) -> TaskId {
        self.tasks += 1;
        TaskId(self.tasks)
    }

    /// Fetches what has been done elsewhere.
    fn collect(&mut self, now: Time) {
        while let Some(task) = self.executor.take_done(now) {
            self.take_back(now, task);
        }
    }

    /// A task comes back. What follows from it is for the right moment.
    fn take_back(&mut self, now: Time, task: Task) {
        let Task { id, work, outcome } = task;
        let has_panicked = outcome == Outcome::None;
        match work {
            Work::Open(run) if has_panicked => self.arriving.lose(id, &run),
            Work::Open(run) => self.arriving.put(id, run),
            Work::Seal(run) if outcome == Outcome::Done => self.leaving.put(id, run),
            Work::Seal(run) => {
                self.leaving.lose(id, &run);
                if let Outcome::Failed(Fault::Sealing(why)) = outcome {
                    self.seal_fault = Some(why);
                }
            }
            Work::Decode(job) if has_panicked => self.rx.put_back(job.job.slot, job.block),
            Work::Decode(job) => {
                let decoded = match outcome {
                    Outcome::Failed(Fault::Decoding(error)) => Err(error),
                    _ => Ok(()),
                };
                self.decoded.push((*job, decoded));
            }
        }
        if has_panicked {
            self.core.close(now, 1, "internal error");
            self.end(EndReason::WorkerPanicked);
        }
    }

    /// What follows from jobs that have been done elsewhere.
    fn finish_tasks(&mut self, now: Time, workshop: &mut Workshop) {
        self.collect(now);
        while self.arriving.is_ready() || !self.decoded.is_empty() {
            self.take_in_opened(now, workshop);
            if !self.decoded.is_empty() {
                self.finish_decoded(now);
                self.settle(now, workshop);
            }
            self.collect(now);
        }
    }

    // ---- the end ------------------------------------------------------------------------------

    /// Begins to close the session, and tells its application nothing.
    pub fn close(&mut self, now: Time, code: u64, reason: &str) {
        self.core.close(now, code, reason);
    }

    /// The peer has said in the handshake what it shows if it has forgotten the session.
    pub fn expect_reset(&mut self, token: ResetToken) {
        self.core.expect_reset(token);
    }

    /// Ends the session without a word to the peer.
    pub fn abandon(&mut self) {
        self.core.abandon();
    }

    /// Whether the application has closed the session, and the peer is to be told when it is [certain](Self::be_certain).
    pub fn holds_close(&self) -> bool {
        self.closing.is_some()
    }

    /// Why the session is over for its application; given once.
    pub fn poll_end(&mut self) -> Option<EndReason> {
        self.end.take()
    }

    /// The session is over for the application; the first reason stays.
    fn end(&mut self, end: EndReason) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.end = Some(end);
        }
    }
}
