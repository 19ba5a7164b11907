//! What the application's threads and the engine share about one session, and its public handle.

#[cfg(all(test, loom))]
pub(crate) mod models;

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, TryLockError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sphinx_driver::{Application, BufferPool, Queues, SharedSlicer, Slicer};
use sphinx_net::Waker;
use sphinx_proto::wire::ConnectionId;
use sphinx_proto::{Nanos, PathMemory, Role, StreamId, Time};

use crate::access::Peer;
use crate::control::Resumption;
use crate::error::{Error, ErrorKind, close_code};
use crate::memory::PathFile;
use crate::options::{Cc, Profile, Service};
use crate::paths::PathWish;
use crate::recv_stream::RecvStream;
use crate::resumptions::ResumptionFile;
use crate::send_stream::SendStream;
use crate::signal::{Signal, Waiter};
use crate::stats::{PathEvent, Stats};
use crate::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard};

/// Largest close code that has an encoding.
pub(crate) const CODE_MAX: u64 = (1 << 62) - 1;
/// How long [`Session::close`] waits for the peer's answer.
pub(crate) const CLOSE_WAIT: Duration = Duration::from_millis(350);

/// The application's side: threads and tasks.
pub(crate) struct Threads;

impl Application for Threads {
    type Signal = Signal;
    type Slicer = LockedSlicer;
}

/// The slicer of a stream, which its writer fills while the engine looks on.
#[derive(Clone)]
pub(crate) struct LockedSlicer(Arc<Mutex<Slicer>>);

impl LockedSlicer {
    pub(crate) fn new(stream: StreamId) -> Self {
        Self(Arc::new(Mutex::new(Slicer::new(stream))))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Slicer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedSlicer for LockedSlicer {
    fn try_with<R>(&self, look: impl FnOnce(&mut Slicer) -> R) -> Option<R> {
        match self.0.try_lock() {
            Ok(mut slicer) => Some(look(&mut slicer)),
            Err(TryLockError::Poisoned(slicer)) => Some(look(&mut slicer.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

pub(crate) struct Inner {
    pub(crate) queues: Queues<Threads>,
    /// An application has accepted the session.
    pub(crate) is_accepted: bool,
    /// What the application has changed since the engine last looked: the profile, …
    pub(crate) profile: Option<Profile>,
    /// … the limit of the rate, IP bytes per second, if there is to be one, …
    pub(crate) limit: Option<Option<u64>>,
    /// … the bound of the memory, bytes, if there is to be one, …
    pub(crate) memory: Option<Option<u64>>,
    /// … and rate control.
    pub(crate) cc: Option<Cc>,
    pub(crate) closed: Option<Error>,
    /// The code of the peer's CLOSE, if that is what ended the session.
    pub(crate) peer_code: Option<u64>,
    /// The peer has answered CLOSE, or waiting for that makes no sense.
    pub(crate) close_answered: bool,
    pub(crate) stats: Stats,
    /// Events of paths that the application has not taken; only the latest are kept.
    pub(crate) path_events: VecDeque<PathEvent>,
    /// Changes of paths that the application has asked for.
    pub(crate) path_wishes: Vec<PathWish>,
    /// The longest datagram that the peer takes, bytes; 0: it takes none.
    pub(crate) datagram_max: usize,
    /// The handshake is over.
    pub(crate) is_confirmed: bool,
    /// At a client, until it is written: what a later session may begin with, in which file to keep
    /// it, and when it was agreed on, Unix seconds.
    pub(crate) resumption: Option<(ResumptionFile, Resumption, u64)>,
    /// What is known so far of the path to this address, and worth remembering.
    pub(crate) learned: Option<(IpAddr, PathMemory)>,
    /// At a client, until it is written: the file in which to remember that.
    paths: Option<PathFile>,
    /// When the last packet of the peer was opened.
    pub(crate) heard_at: Option<Instant>,
    /// When the first packet since then left that the peer must acknowledge.
    pub(crate) asked_at: Option<Instant>,
}

/// Tells the engine in which sessions the application has left something for it.
pub(crate) struct Doorbell {
    rung: Mutex<Vec<ConnectionId>>,
    waker: Waker,
}

impl Doorbell {
    pub(crate) fn new(waker: Waker) -> Self {
        Self {
            rung: Mutex::default(),
            waker,
        }
    }

    fn ring(&self, session: ConnectionId) {
        self.rung
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(session);
        self.waker.wake();
    }

    /// Replaces what `into` holds by the sessions that have rung since the last call.
    pub(crate) fn take(&self, into: &mut Vec<ConnectionId>) {
        into.clear();
        std::mem::swap(
            into,
            &mut *self.rung.lock().unwrap_or_else(PoisonError::into_inner),
        );
    }
}

/// Signals for what does not concern a single stream.
#[derive(Default)]
pub(crate) struct Signals {
    /// The peer has opened a stream that may be accepted, of either kind.
    pub(crate) accepting_uni: Signal,
    pub(crate) accepting_bi: Signal,
    /// Another stream may be opened.
    pub(crate) opening_uni: Signal,
    pub(crate) opening_bi: Signal,
    /// The session has ended, or the peer has answered CLOSE.
    pub(crate) ending: Signal,
    /// The handshake is over.
    pub(crate) confirming: Signal,
}

/// State behind every handle of a session.
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    signals: Signals,
    doorbell: Arc<Doorbell>,
    session: ConnectionId,
    /// The doorbell has been rung and the engine has not looked yet.
    ringing: AtomicBool,
    pool: BufferPool,
    remote: Mutex<SocketAddr>,
    /// How the client has shown who it is; `None` at the client.
    who: Option<Peer>,
    service: Service,
    /// Zero of the engine's clock.
    base: Instant,
    /// When the first handshake datagram left or arrived.
    started: Instant,
    /// Block shape: n in the high half, symbol size in the low half.
    shape: AtomicU32,
}

impl Shared {
    pub(crate) fn new(
        doorbell: Arc<Doorbell>,
        session: ConnectionId,
        pool: BufferPool,
        remote: SocketAddr,
        (role, streams_max, datagram_max): (Role, u64, usize),
        base: Instant,
        since: Time,
    ) -> Self {
        let inner = Inner {
            queues: Queues::new(role, streams_max),
            is_accepted: false,
            profile: None,
            limit: None,
            memory: None,
            cc: None,
            closed: None,
            peer_code: None,
            close_answered: false,
            stats: Stats::default(),
            path_events: VecDeque::new(),
            path_wishes: Vec::new(),
            datagram_max,
            is_confirmed: true,
            resumption: None,
            learned: None,
            paths: None,
            heard_at: None,
            asked_at: None,
        };
        Self {
            inner: Mutex::new(inner),
            signals: Signals::default(),
            doorbell,
            session,
            ringing: AtomicBool::new(false),
            pool,
            remote: Mutex::new(remote),
            who: None,
            service: Service::Application,
            base,
            started: base + Duration::from_nanos(since.as_nanos()),
            shape: AtomicU32::new(0),
        }
    }

    /// The same, with the file in which to remember what it learns about its path.
    pub(crate) fn remembering(self, paths: Option<PathFile>) -> Self {
        self.lock().paths = paths;
        self
    }

    /// The same, with this client and for this service.
    pub(crate) fn of(self, who: Option<Peer>, service: Service) -> Self {
        Self {
            who,
            service,
            ..self
        }
    }

    pub(crate) fn set_shape(&self, (n, symbol_len): (u16, u16)) {
        self.shape.store(
            u32::from(n) << 16 | u32::from(symbol_len),
            Ordering::Relaxed,
        );
    }

    /// The engine's time.
    pub(crate) fn now(&self) -> Time {
        let span = self.base.elapsed().as_nanos();
        Time::from_nanos(span.min(u128::from(u64::MAX)) as Nanos)
    }

    /// Time since the first handshake datagram.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn pool(&self) -> &BufferPool {
        &self.pool
    }

    pub(crate) fn shape(&self) -> (u16, u16) {
        let shape = self.shape.load(Ordering::Relaxed);
        ((shape >> 16) as u16, shape as u16)
    }

    /// Locks the queues. A lock that a panic has poisoned is taken all the same: no change of the
    /// queues can panic halfway.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer has another address from now on.
    pub(crate) fn set_remote(&self, remote: SocketAddr) {
        *self.remote.lock().unwrap_or_else(PoisonError::into_inner) = remote;
    }

    /// Frees the lock and notifies those who wait for what has changed. The signals that belong to
    /// no single stream are notified as long as their condition holds, not only when it begins to:
    /// who comes too late for one stream is notified again while there is another.
    pub(crate) fn notify(&self, mut inner: MutexGuard<'_, Inner>) {
        let streams = inner.queues.take_changed();
        let is_over = inner.closed.is_some();
        let (signals, queues) = (&self.signals, &inner.queues);
        let news = [
            (&signals.accepting_uni, is_over || queues.can_accept_uni()),
            (&signals.accepting_bi, is_over || queues.can_accept_bi()),
            (&signals.opening_uni, is_over || queues.can_open_uni()),
            (&signals.opening_bi, is_over || queues.can_open_bi()),
            (&signals.ending, is_over || inner.close_answered),
            (&signals.confirming, is_over || inner.is_confirmed),
        ];
        drop(inner);
        for (signal, _) in news.into_iter().filter(|(_, is_so)| *is_so) {
            signal.notify();
        }
        for stream in streams {
            stream.notify();
        }
    }

    /// Changes the queues, and wakes the engine if they hold something for it now.
    pub(crate) fn update<R>(&self, change: impl FnOnce(&mut Inner) -> R) -> R {
        let mut inner = self.lock();
        let result = change(&mut inner);
        self.leave(inner);
        result
    }

    /// Frees the lock; the engine is told of what has been left for it.
    fn leave(&self, mut inner: MutexGuard<'_, Inner>) {
        let wanted = inner.queues.take_wanted();
        drop(inner);
        if wanted {
            self.wake();
        }
    }

    /// The engine is to look at the queues.
    fn wake(&self) {
        if !self.ringing.swap(true, Ordering::AcqRel) {
            self.doorbell.ring(self.session);
        }
    }

    /// The engine is to do something about paths. If the session is over the wish is dropped, so
    /// that whoever waits for its answer sees at once that none comes.
    pub(crate) fn wish(&self, wish: PathWish) {
        let mut inner = self.lock();
        if inner.closed.is_some() {
            return;
        }
        inner.path_wishes.push(wish);
        drop(inner);
        self.wake();
    }

    /// The engine looks now. To be called before the queues are locked: what is left in them later
    /// rings again.
    pub(crate) fn answer(&self) {
        self.ringing.store(false, Ordering::Release);
    }

    /// Writes to files what the session has learned about its path and what a later one may begin
    /// with, once. To be called by the thread that lets go of the session, and without the lock:
    /// files may be slow, and neither the engine nor other threads are to wait for them.
    fn remember(&self) {
        let mut inner = self.lock();
        let resumption = inner.resumption.take();
        let learned = inner.learned;
        let path = learned.zip(inner.paths.take_if(|_| learned.is_some()));
        drop(inner);
        if let Some((file, resumption, agreed_at)) = resumption {
            file.keep(resumption, agreed_at);
        }
        if let Some(((remote, memory), paths)) = path {
            paths.remember(remote, memory);
        }
    }

    /// Wait until `ready` gives a value, or the session ends; `changed` says when to look again.
    pub(crate) fn wait<T>(
        &self,
        changed: &Signal,
        mut ready: impl FnMut(&mut Inner) -> Option<T>,
    ) -> Result<T, Error> {
        let mut inner = self.lock();
        loop {
            if let Some(value) = ready(&mut inner) {
                self.leave(inner);
                return Ok(value);
            }
            if let Some(error) = &inner.closed {
                return Err(error.clone());
            }
            inner = changed.wait(inner);
        }
    }

    /// The same for a task, which is woken when it is to look again.
    pub(crate) fn poll<T>(
        &self,
        waiter: &mut Waiter,
        cx: &Context<'_>,
        mut ready: impl FnMut(&mut Inner) -> Option<T>,
    ) -> Poll<Result<T, Error>> {
        self.poll_until(waiter, cx, |inner| {
            let over = |inner: &Inner| inner.closed.clone().map(Err);
            ready(inner).map(Ok).or_else(|| over(inner))
        })
    }

    /// The same for what does not fail when the session ends.
    fn poll_until<T>(
        &self,
        waiter: &mut Waiter,
        cx: &Context<'_>,
        ready: impl FnOnce(&mut Inner) -> Option<T>,
    ) -> Poll<T> {
        let mut inner = self.lock();
        if let Some(value) = ready(&mut inner) {
            self.leave(inner);
            return Poll::Ready(value);
        }
        let unused = waiter.register(cx.waker());
        drop(inner);
        drop(unused);
        Poll::Pending
    }
}

/// An authenticated association with a peer. Cheap to clone, safe to use from several threads.
///
/// When the last clone goes, the session is closed with code 6.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
    _guard: Arc<CloseOnDrop>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("remote", &self.remote_addr())
            .field("closed", &self.closed())
            .finish_non_exhaustive()
    }
}

struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.update(|inner| {
            let reason = "the application let go of the session";
            inner.queues.close(close_code::CANCELLED, reason);
        });
        self.0.remember();
    }
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let guard = CloseOnDrop(Arc::clone(&shared));
        Self {
            shared,
            _guard: Arc::new(guard),
        }
    }

    /// The application accepts the session: what the peer sends may fill its window from now on.
    pub(crate) fn accept(&self) {
        self.shared.lock().is_accepted = true;
        self.shared.wake();
    }

    /// What the session is for.
    pub fn service(&self) -> Service {
        self.shared.service
    }

    /// How the client has shown who it is; `None` at its own end.
    pub fn peer(&self) -> Option<Peer> {
        self.shared.who
    }

    /// Whether the handshake is over, which shows that the other end is who it should be. It always is of a session that did not begin with
    /// [early data](crate::Options::early_data).
    pub fn is_confirmed(&self) -> bool {
        self.shared.lock().is_confirmed
    }

    /// Waits until the handshake is over.
    ///
    /// # Errors
    /// When the session ends before.
    pub fn wait_confirmed(&self) -> Result<(), Error> {
        let confirming = &self.shared.signals.confirming;
        (self.shared).wait(confirming, |inner| inner.is_confirmed.then_some(()))
    }

    pub(crate) fn poll_confirmed(
        &self,
        waiter: &mut Waiter,
        cx: &Context<'_>,
    ) -> Poll<Result<(), Error>> {
        (self.shared).poll(waiter, cx, |inner| inner.is_confirmed.then_some(()))
    }

    /// The peer's present address.
    pub fn remote_addr(&self) -> SocketAddr {
        *self
            .shared
            .remote
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the next stream to the peer, which cannot answer on it. The peer hears of it with the first data. The 257th that is open at a time
    /// waits until the [handshake is over](Self::is_confirmed), which says how many the peer allows.
    ///
    /// # Errors
    /// When the session has ended, or as many streams are open as the peer allows, up to 10 240: finished ones are until the peer's application
    /// has read them, and those that were given up until it has heard of that.
    pub fn open_uni(&self) -> Result<SendStream, Error> {
        let stream = self.open(Queues::open_uni)?;
        Ok(self.sending(stream))
    }

    /// Opens the next stream on which both ends send. The peer hears of it with the first data.
    ///
    /// # Errors
    /// Those of [`open_uni`](Self::open_uni); such streams are counted apart, and until the answer has been read too.
    pub fn open_bi(&self) -> Result<(SendStream, RecvStream), Error> {
        let stream = self.open(Queues::open_bi)?;
        Ok((self.sending(stream), self.receiving(stream)))
    }

    fn open(&self, open: fn(&mut Queues<Threads>) -> Option<StreamId>) -> Result<StreamId, Error> {
        let confirming = &self.shared.signals.confirming;
        self.shared.wait(confirming, |inner| {
            if inner.closed.is_some() {
                return None;
            }
            let opened = open(&mut inner.queues).map(Ok);
            // Before it is confirmed, what the peer allows is an assumption.
            opened.or_else(|| {
                let open_max = inner.queues.open_max();
                let message = format!("the peer allows at most {open_max} open streams at a time");
                let error = Error::new(ErrorKind::Usage, message);
                inner.is_confirmed.then_some(Err(error))
            })
        })?
    }

    fn sending(&self, stream: StreamId) -> SendStream {
        let signal = self.shared.lock().queues.sending_signal(stream);
        SendStream::new(stream, Arc::clone(&self.shared), &signal)
    }

    fn receiving(&self, stream: StreamId) -> RecvStream {
        RecvStream::new(stream, Arc::clone(&self.shared))
    }

    /// As [`open_uni`](Self::open_uni), but waits while too many streams are open.
    pub(crate) fn poll_open_uni(
        &self,
        waiter: &mut Waiter,
        cx: &Context<'_>,
    ) -> Poll<Result<SendStream, Error>> {
        let opened = self.poll_open(waiter, cx, Queues::open_uni);
        opened.map_ok(|stream| self.sending(stream))
    }

    /// As [`open_bi`](Self::open_bi), but waits while too many streams are open.
    pub(crate) fn poll_open_bi(
        &self,
        waiter: &mut Waiter,
        cx: &Context<'_>,
    ) -> Poll<Result<(SendStream, RecvStream), Error>> {
        let opened = self.poll_open(waiter, cx, Queues::open_bi);
        opened.map_ok(|stream| (self.sending(stream), self.receiving(stream)))
    }

    fn poll_open(
        &self,
        waiter: &mut Waiter,
        cx: &Context<'_>,
        open: fn(&mut Queues<Threads>) -> Option<StreamId>,
    ) -> Poll<Result<StreamId, Error>> {
        self.shared.poll(waiter, cx, |inner| {
            let is_over = inner.closed.is_some();
            (!is_over).then(|| open(&mut inner.queues)).flatten()
        })
    }

    /// Waits for the next stream that the peer opens with [`open_uni`](Self::open_uni), in the order of ids.
    ///
    /// # Errors
    /// When the session ends.
    pub fn accept_uni(&self) -> Result<RecvStream, Error> {
        let accepting = &self.shared.signals.accepting_uni;
        let accepted = self
            .shared
            .wait(accepting, |inner| inner.queues.accept_uni());
        accepted.map(|stream| self.receiving(stream))
    }

    /// Waits for the next stream that the peer opens with [`open_bi`](Self::open_bi), in the order of ids. An answer that is not wanted is
    /// [finished](SendStream::finish) or dropped, which resets it.
    ///
    /// # Errors
    /// When the session ends.
    pub fn accept_bi(&self) -> Result<(SendStream, RecvStream), Error> {
        let accepting = &self.shared.signals.accepting_bi;
        let accepted = self
            .shared
            .wait(accepting, |inner| inner.queues.accept_bi());
        accepted.map(|stream| (self.sending(stream), self.receiving(stream)))
    }

    pub(crate) fn poll_accept_uni(
        &self,
        waiter: &mut Waiter,
        cx: &Context<'_>,
    ) -> Poll<Result<RecvStream, Error>> {
        let accepted = self
            .shared
            .poll(waiter, cx, |inner| inner.queues.accept_uni());
        accepted.map_ok(|stream| self.receiving(stream))
    }

    pub(crate) fn poll_accept_bi(
        &self,
        waiter: &mut Waiter,
        cx: &Context<'_>,
    ) -> Poll<Result<(SendStream, RecvStream), Error>> {
        let accepted = self
            .shared
            .poll(waiter, cx, |inner| inner.queues.accept_bi());
        accepted.map_ok(|stream| (self.sending(stream), self.receiving(stream)))
    }

    /// Most that this end sends from now on, as [`Options::limit`](crate::Options::limit) says for the beginning; `None`: as much as rate
    /// control finds right.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.shared.lock().limit = Some(limit);
        self.shared.wake();
    }

    /// Bytes that this end holds for the session, in each direction, at most from now on, but not less than what the session began with; `None`: its
    /// share of [`Options::memory`](crate::Options::memory).
    pub fn set_memory(&self, memory: Option<u64>) {
        self.shared.lock().memory = Some(memory);
        self.shared.wake();
    }

    /// What controls the rate of this end from now on, instead of [`Options::cc`](crate::Options::cc). It takes the place of the one before
    /// with the engine's next turn, and begins with the rate, the round trips and the window that this had found; nothing under
    /// way is lost.
    pub fn set_cc(&self, cc: Cc) {
        self.shared.lock().cc = Some(cc);
        self.shared.wake();
    }

    /// What redundancy is for from now on, instead of what the session's options say: for an
    /// application that learns only from its peer what is to be sent.
    pub fn set_profile(&self, profile: Profile) {
        self.shared.lock().profile = Some(profile);
        self.shared.wake();
    }

    /// What has become of paths since the last call, in turn: of the latest 64, where nobody has asked for long.
    pub fn take_path_events(&self) -> Vec<PathEvent> {
        self.shared.lock().path_events.drain(..).collect()
    }

    /// Counters and estimates, at most some milliseconds old, but for those of datagrams, which are of this moment; those of the
    /// session's end once it is over.
    pub fn stats(&self) -> Stats {
        let inner = self.shared.lock();
        let elapsed = match &inner.closed {
            None => self.shared.elapsed(),
            Some(_) => inner.stats.elapsed,
        };
        let since = |at: Option<Instant>| match (&inner.closed, at) {
            (None, Some(at)) => at.elapsed(),
            _ => Duration::ZERO,
        };
        Stats {
            elapsed,
            silence: since(inner.heard_at),
            unanswered: since(inner.asked_at),
            has_ended: inner.closed.is_some(),
            datagrams: inner.queues.datagram_counts(),
            ..inner.stats
        }
    }

    /// Ends the session: CLOSE is sent, sealed and repeated. Returns when the peer has answered, or
    /// after a third of a second. Blocked calls of other threads return with an error.
    ///
    /// Before the [handshake is over](Self::is_confirmed) CLOSE does not leave, but as soon as it is, if the process lives for so long. Who wants the peer to
    /// hear it [waits for that](Self::wait_confirmed) first.
    ///
    /// What was learned about the path is in the file of [`Options::path_memory`](crate::Options::path_memory) then, as it is
    /// when the last clone has gone.
    ///
    /// The codes are those of the command line; the peer reports 0 and 6 as
    /// [`ErrorKind::Cancelled`], 9 as [`ErrorKind::RemoteIo`], and so on.
    pub fn close(&self, code: u64, reason: &str) {
        self.begin_close(code, reason);
        self.wait_until(CLOSE_WAIT, |inner| inner.close_answered.then_some(()));
        self.shared.remember();
    }

    pub(crate) fn begin_close(&self, code: u64, reason: &str) {
        self.shared
            .update(|inner| inner.queues.close(code.min(CODE_MAX), reason));
    }

    /// The peer has answered CLOSE, or the engine has repeated it as long as that makes sense, or waited for so long to be able to send it; what was learned about the path has
    /// been written then.
    pub(crate) fn poll_close_answered(&self, waiter: &mut Waiter, cx: &Context<'_>) -> Poll<()> {
        let shared = &self.shared;
        let answered = shared.poll_until(waiter, cx, |inner| inner.close_answered.then_some(()));
        answered.map(|()| shared.remember())
    }

    /// Why the session has ended, once it has.
    pub(crate) fn poll_closed(&self, waiter: &mut Waiter, cx: &Context<'_>) -> Poll<Error> {
        self.shared
            .poll_until(waiter, cx, |inner| inner.closed.clone())
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn signals(&self) -> &Signals {
        &self.shared.signals
    }

    /// Waits until the session ends, at most for `patience`: why it has ended, if it has. A peer that gives up its streams mostly
    /// says why as it ends the session.
    pub fn wait_closed(&self, patience: Duration) -> Option<Error> {
        self.wait_until(patience, |inner| inner.closed.clone())
    }

    fn wait_until<T>(
        &self,
        patience: Duration,
        ready: impl Fn(&mut Inner) -> Option<T>,
    ) -> Option<T> {
        // A deadline beyond what the clock can say is none.
        let deadline = Instant::now().checked_add(patience);
        let mut inner = self.shared.lock();
        loop {
            let value = ready(&mut inner);
            if value.is_some() {
                return value;
            }
            inner = self.shared.signals.ending.wait_until(inner, deadline)?;
        }
    }

    /// The code that the peer closed the session with, if that is how it ended. A peer that had
    /// nothing more to say closes with 0, one that gave up with another.
    pub fn peer_code(&self) -> Option<u64> {
        self.shared.lock().peer_code
    }

    /// Why the session has ended, if it has.
    pub fn closed(&self) -> Option<Error> {
        self.shared.lock().closed.clone()
    }
}
