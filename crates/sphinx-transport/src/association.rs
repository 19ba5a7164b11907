//! One session inside the engine: its driver, and what only a session on a network has: the application's
//! threads, the control plane's share of the traffic, a memory of the path.

mod early;
#[cfg(all(test, not(loom)))]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use sphinx_driver::keys::Keys;
use sphinx_driver::{Driver, EndReason, Origin, Outbox, PoolBuffer, Workshop};
use sphinx_net::{Destination, DropReason, Dropped, Ecn, PacketTx};
use sphinx_proto::wire::{ConnectionId, ResetToken};
use sphinx_proto::{
    Nanos, PATHS_MAX, Paper, PathId, PathNews, PathState, Sc, Session, Time, Tuple,
};
use sphinx_workers::Coding;

use crate::control::{Params, Traffic};
use crate::engine::{Further, STOPPED};
use crate::error::{Error, ErrorKind, close_code, closed_by_peer};
use crate::options::{Cc, Options};
use crate::paths::{PathWish, begins_there_too};
use crate::shared::{CLOSE_WAIT, Inner, Shared};
use crate::stats::{Load, PathEvent, PathFigures, Stats};
use early::Phase;

/// How often the application's view of the counters is renewed.
const STATS_INTERVAL: Nanos = 5_000_000;
/// News of paths that the application has not taken: the latest.
const PATH_EVENTS_MAX: usize = 64;
/// Why a session ends that the server knows nothing of.
const FORGOTTEN: &str =
    "the server does not know this session any more: it was started again, or had given it up";

/// Frames of a packet back end, as a driver takes them.
struct Frames<'a, Tx: PacketTx> {
    tx: &'a mut Tx,
    /// What there is no frame for is lost, as it would be in a queue that is full.
    lost: Vec<u8>,
}

impl<Tx: PacketTx> Outbox for Frames<'_, Tx> {
    fn len_bytes(&self) -> usize {
        self.tx.taken_bytes()
    }

    fn is_full(&self, to: &Tuple) -> bool {
        self.tx.is_full(&destination(to, 0))
    }

    fn push(&mut self, to: &Tuple, ecn: u8, len: usize) -> &mut [u8] {
        match self.tx.frame(&destination(to, ecn), len) {
            Some(frame) => frame,
            None => {
                self.lost.resize(len, 0);
                &mut self.lost
            }
        }
    }

    fn push_run(&mut self, to: &Tuple, ecn: u8, len: usize, most: usize) -> &mut [u8] {
        match self.tx.frames(&destination(to, ecn), len, most) {
            Some(frames) => frames,
            None => {
                self.lost.resize(len, 0);
                &mut self.lost
            }
        }
    }

    fn push_sealed(
        &mut self,
        to: &Tuple,
        ecn: u8,
        memory: PoolBuffer,
        lens: &mut dyn Iterator<Item = usize>,
    ) -> usize {
        self.tx
            .take_over(&destination(to, ecn), Box::new(memory), lens)
    }
}

fn destination(to: &Tuple, ecn: u8) -> Destination {
    Destination {
        remote: to.remote,
        local_ip: to.local_ip,
        ecn: Ecn::from_bits(ecn),
    }
}

pub(crate) struct Association {
    driver: Driver<Keys, Coding>,
    is_client: bool,
    phase: Phase,
    /// Further paths that are to be opened, as soon as the peer's connection ids for them are there; the next one last.
    further: Vec<Further>,
    /// The application has named paths in its options.
    has_options: bool,
    /// Local addresses of the session's paths but the first, in the order in which they were asked for, later ones included.
    begins: Vec<IpAddr>,
    /// Local address of the first path, if its socket is bound to one.
    first: Option<IpAddr>,
    path_wishes: Vec<PathWish>,
    /// A path has been closed since [`take_left`](Self::take_left) was last called.
    has_left: bool,
    shared: Arc<Shared>,
    /// What the control plane has sent and received for this session.
    control: Traffic,
    /// Counters of the endpoint now.
    endpoint: EndpointCounts,
    /// The same when this session began: it reports the difference.
    endpoint_before: EndpointCounts,
    /// How long the session lasted until it was over for the application; `None` before that.
    lasted: Option<Duration>,
    stats_at: Time,
    stats_names: Stats,
    idle_timeout: Duration,
    /// Close code and reason for the control connection once the session is over.
    farewell: (u64, String),
    /// The application has closed a session whose handshake is not over: until when it is waited for, so that CLOSE can be sent.
    close_until: Option<Time>,
    /// Bytes that the application lets the session hold in each direction, if it says so.
    memory: Option<u64>,
    /// The session's share of the endpoint's memory for sending, bytes.
    send_share: Option<u64>,
}

/// Names for reports in the paper's mode: ICM, rate control, code and profile.
fn paper_names(paper: &Paper, options: &Options) -> [&'static str; 4] {
    let triggers = paper.icm;
    let icm = match triggers.block || triggers.symbol {
        true => "paper",
        false => "off",
    };
    let cc = match options.cc {
        cc @ Cc::Fixed(_) => cc,
        _ => Cc::AimdEcn,
    };
    [icm, cc.name(), paper.code.name(), "paper"]
}

/// Names of the settings in use, for sessions with generations.
fn sc_names(sc: Sc, options: &Options) -> [&'static str; 4] {
    let codec = match sc {
        Sc::Systematic | Sc::Rlnc => "rlc",
        Sc::MinRtt | Sc::Ecf => "none",
    };
    ["default", options.cc.name(), codec, sc.name()]
}

/// Received data of a session that ended before the application accepted it, and may accept it still.
pub(crate) struct Unclaimed {
    shared: Weak<Shared>,
    pub(crate) bytes: u64,
}

impl Unclaimed {
    /// Whether nobody has accepted it, and somebody may.
    pub(crate) fn waits(&self) -> bool {
        let shared = self.shared.upgrade();
        shared.is_some_and(|shared| !shared.lock().is_accepted)
    }
}

/// What an endpoint has counted for all its sessions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndpointCounts {
    /// Datagrams that belonged to nobody.
    pub(crate) strays: u64,
    pub(crate) load: Load,
    /// Name of the back end.
    pub(crate) io: &'static str,
}

impl Association {
    pub(crate) fn new(
        core: Session,
        (keys, coding): (Keys, Coding),
        is_client: bool,
        shared: Arc<Shared>,
        options: &Options,
        endpoint: EndpointCounts,
    ) -> Self {
        let names = match (core.paper(), core.sc()) {
            (Some(paper), _) => paper_names(paper, options),
            (None, Some(sc)) => sc_names(sc, options),
            (None, None) => [
                options.icm.name(),
                options.cc.name(),
                options.codec.name(),
                options.profile.name(),
            ],
        };
        let [icm, cc, codec, profile] = names;
        let stats_names = Stats {
            icm,
            cc,
            codec,
            profile,
            io: endpoint.io,
            ..Stats::default()
        };
        Self {
            driver: Driver::new(core, keys, coding, is_client),
            is_client,
            phase: Phase::Certain,
            further: Vec::new(),
            has_options: is_client && !options.paths.is_empty(),
            begins: Vec::new(),
            first: None,
            path_wishes: Vec::new(),
            has_left: false,
            shared,
            control: Traffic::default(),
            endpoint,
            endpoint_before: endpoint,
            lasted: None,
            stats_at: Time::ZERO,
            stats_names,
            idle_timeout: options.idle_timeout,
            farewell: (0, String::new()),
            close_until: None,
            memory: None,
            send_share: None,
        }
    }

    // ---- the engine's turn --------------------------------------------------------------------

    /// A data-plane datagram with one of this session's connection ids.
    pub(crate) fn handle_datagram(
        &mut self,
        now: Time,
        origin: Origin,
        datagram: &mut [u8],
        workshop: &mut Workshop,
    ) {
        if !self.holds(origin, datagram) {
            self.driver.handle_datagram(now, origin, datagram, workshop);
        }
    }

    /// Such datagrams that have arrived as one, each of `stride` bytes but for the last one.
    pub(crate) fn handle_segments(
        &mut self,
        now: Time,
        origin: Origin,
        (datagrams, stride): (&mut [u8], usize),
        workshop: &mut Workshop,
    ) {
        if !self.is_early() {
            let segments = (datagrams, stride);
            return self.driver.handle_segments(now, origin, segments, workshop);
        }
        for datagram in datagrams.chunks_mut(stride) {
            self.handle_datagram(now, origin, datagram, workshop);
        }
    }

    /// Whether datagrams that have arrived as one are to be given to it with their memory.
    pub(crate) fn takes_joined(&self, len: usize) -> bool {
        !self.is_early() && self.driver.takes_joined(len)
    }

    /// Such datagrams: their memory, their bytes in it, and those of each.
    pub(crate) fn handle_joined(
        &mut self,
        now: Time,
        origin: Origin,
        joined: (Vec<u8>, usize, usize),
        workshop: &mut Workshop,
    ) {
        self.driver.handle_joined(now, origin, joined, workshop);
    }

    /// The control plane has done its part.
    pub(crate) fn settled(&mut self, traffic: Traffic) {
        self.control = traffic;
    }

    /// Everything that is due: timers, events, the application's wishes. `endpoint` is what has been
    /// counted for all sessions.
    pub(crate) fn service(
        &mut self,
        now: Time,
        clock: Instant,
        traffic: Option<Traffic>,
        endpoint: EndpointCounts,
        workshop: &mut Workshop,
    ) {
        self.control = traffic.unwrap_or(self.control);
        self.endpoint = endpoint;
        self.driver.handle_timeout(now, workshop);
        self.look_for_certainty();
        let shared = Arc::clone(&self.shared);
        shared.answer();
        let mut inner = shared.lock();
        if inner.is_accepted {
            self.driver.open_window(now);
        }
        if let Some(limit) = inner.limit.take() {
            self.driver.set_limit(limit);
        }
        if let Some(memory) = inner.memory.take() {
            self.limit_memory(now, memory);
        }
        self.path_wishes.append(&mut inner.path_wishes);
        let cc = inner.cc.take();
        if let Some(cc) = cc {
            self.driver.set_cc(now, cc);
            self.stats_names.cc = cc.name();
        }
        let profile = inner.profile.take();
        if let Some(profile) = profile {
            self.driver.set_profile(profile.core());
            self.stats_names.profile = profile.name();
        }
        let pool = workshop.pool();
        let mut news =
            self.driver.exchange(now, &mut inner.queues, pool) || cc.is_some() || profile.is_some();
        if let Some(end) = self.driver.poll_end() {
            let wait = CLOSE_WAIT.as_nanos() as Nanos;
            self.close_until = self.driver.holds_close().then(|| now + wait);
            self.ended(&mut inner, end);
        }
        if self.close_until.take_if(|until| *until <= now).is_some() {
            inner.close_answered = true;
            news = true;
        }
        self.open_further(now);
        self.tell_of_paths(&mut inner);
        for tuple in self.driver.take_path_changes() {
            shared.set_remote(tuple.remote);
        }
        let core = self.driver.core();
        shared.set_shape(core.block_shape(inner.queues.writers()));
        if core.is_closed_by_peer() && !inner.close_answered {
            inner.close_answered = true;
            news = true;
        }
        let [heard_at, asked_at] = [Some(core.last_received()), core.asked_at()].map(|at| {
            let ago = Duration::from_nanos(now.saturating_sub(at?));
            clock.checked_sub(ago)
        });
        (inner.heard_at, inner.asked_at) = (heard_at, asked_at);
        if now >= self.stats_at || news {
            self.stats_at = now + STATS_INTERVAL;
            self.publish(&mut inner);
        }
        if news || inner.queues.has_changed() {
            shared.notify(inner);
        }
    }

    /// What its application wants of paths, since the last call.
    pub(crate) fn take_path_wishes(&mut self) -> Vec<PathWish> {
        std::mem::take(&mut self.path_wishes)
    }

    /// Does it; `attach` opens a socket at an address, and on an interface if one is named.
    pub(crate) fn follow(
        &mut self,
        now: Time,
        wish: PathWish,
        attach: impl FnOnce(IpAddr, Option<&str>) -> io::Result<()>,
    ) {
        match wish {
            PathWish::Add {
                path,
                device,
                answer,
            } => {
                let added = self.add_path(now, path, || attach(path.local, device.as_deref()));
                // Whoever asked may have gone.
                let _ = answer.try_send(added);
            }
            PathWish::Abandon { path, answer } => {
                let _ = answer.try_send(self.driver.abandon_path(now, path));
            }
            PathWish::Policy { path, policy } => {
                self.driver.set_path_policy(path, policy);
            }
            PathWish::Bond(bond) => self.driver.set_bond(bond),
        }
    }

    /// Its place among the options' paths.
    fn add_path(
        &mut self,
        now: Time,
        path: Further,
        attach: impl FnOnce() -> io::Result<()>,
    ) -> Result<usize, Error> {
        if self.begins_at(path.local) {
            return Err(begins_there_too(path.local));
        }
        if !self.driver.core().may_have_several_paths() {
            let why = "this session has one path: begin it with --path, and with an other end that knows several";
            return Err(Error::new(ErrorKind::Usage, why));
        }
        let open = self.driver.core().tuples().count();
        if open + self.further.len() >= PATHS_MAX {
            let why = format!("a session has at most {PATHS_MAX} paths");
            return Err(Error::new(ErrorKind::Usage, why));
        }
        attach()
            .map_err(|error| Error::new(ErrorKind::LocalIo, error.to_string()).caused_by(error))?;
        // Of one that was there before, the latest is meant.
        self.begins.push(path.local);
        self.further.insert(0, path);
        self.open_further(now);
        Ok(self.begins.len())
    }

    /// Whether a path of this session begins at the address, or is to.
    pub(crate) fn begins_at(&self, local: IpAddr) -> bool {
        let mut open = self.driver.core().tuples();
        let is_awaited = self.further.iter().any(|known| known.local == local);
        is_awaited
            || open.any(|(path, tuple)| self.local_of(path.get(), tuple.local_ip) == Some(local))
    }

    /// Where paths of its began, and none does any more, once after each end of one.
    pub(crate) fn take_left(&mut self) -> Vec<IpAddr> {
        if !std::mem::take(&mut self.has_left) {
            return Vec::new();
        }
        let mut left = self.begins.clone();
        left.retain(|local| !self.begins_at(*local));
        left
    }

    /// The first path begins at this address, if it is known; further ones are to be opened, in this order.
    pub(crate) fn will_open(&mut self, first: Option<IpAddr>, mut further: Vec<Further>) {
        self.first = first;
        self.begins = further.iter().map(|path| path.local).collect();
        further.reverse();
        self.further = further;
    }

    /// What has become of paths, for the application.
    fn tell_of_paths(&mut self, inner: &mut Inner) {
        for (path, news) in self.driver.take_path_news() {
            self.has_left |= matches!(news, PathNews::Abandoned | PathNews::Spent);
            let figures = inner.stats.paths.iter().flatten();
            let known = figures.clone().find(|known| known.id == path.get());
            let now = self.driver.core().path_stats().into_iter();
            let local = now
                .filter(|stats| stats.id == path.get())
                .map(|stats| self.local_of(stats.id, stats.tuple.local_ip));
            let local = local.chain(known.map(|known| known.local)).flatten().next();
            let event = PathEvent {
                elapsed: self.shared.elapsed(),
                id: path.get(),
                option: self.option_of(path.get(), local),
                local,
                news,
            };
            if inner.path_events.len() == PATH_EVENTS_MAX {
                inner.path_events.pop_front();
            }
            inner.path_events.push_back(event);
        }
    }

    fn open_further(&mut self, now: Time) {
        let remote = self.driver.core().tuple().remote;
        while let Some(path) = self.further.last() {
            let tuple = Tuple {
                remote: path.remote.unwrap_or(remote),
                local_ip: Some(path.local),
            };
            if self.driver.open_path(now, tuple, path.policy).is_none() {
                return;
            }
            self.further.pop();
        }
    }

    /// Seal what may leave now into frames of `tx`, until `limit` bytes of them are taken.
    pub(crate) fn transmit(
        &mut self,
        now: Time,
        limit: usize,
        workshop: &mut Workshop,
        tx: &mut impl PacketTx,
    ) {
        let mut out = Frames {
            tx,
            lost: Vec::new(),
        };
        match self.allowance() {
            None => self.driver.transmit(now, limit, workshop, &mut out),
            Some(_) => self.transmit_little(now, limit, workshop, &mut out),
        }
        if let Some(end) = self.driver.poll_end() {
            let shared = Arc::clone(&self.shared);
            let mut inner = shared.lock();
            self.ended(&mut inner, end);
            shared.notify(inner);
        }
    }

    /// What was sent since `from` left later than that.
    pub(crate) fn left_late(&mut self, from: Time) {
        self.driver.left_late(from);
    }

    /// Its window for received blocks, bytes, the one that its path could use if that is more, and the most that may be held.
    pub(crate) fn window(&self) -> (u64, Option<u64>, u64) {
        let core = self.driver.core();
        let most = |wanted: u64| self.memory.map_or(wanted, |memory| wanted.min(memory));
        let wanted = core.recv_window_wanted().map(most);
        (
            core.recv_window(),
            wanted.filter(|wanted| *wanted > core.recv_window()),
            core.recv_window_cost(),
        )
    }

    /// The window for received blocks is so large from now on, bytes.
    pub(crate) fn set_window(&mut self, now: Time, size: u64) {
        self.driver.set_recv_window(now, size);
    }

    /// A window that has grown beyond this fair share of the memory shrinks to it, or to what it was at the beginning. Whether it does.
    pub(crate) fn shrink_window(&mut self, now: Time, fair: u64) -> bool {
        let core = self.driver.core();
        let size = fair.max(core.recv_window_min());
        let shrinks = core.recv_window() > size;
        if shrinks {
            self.driver.set_recv_window(now, size);
        }
        shrinks
    }

    /// Memory for blocks on their way from now on, bytes.
    pub(crate) fn set_send_window(&mut self, bytes: u64) {
        self.send_share = Some(bytes);
        // As for what is received, it is not less than what the session began with.
        let least = self.driver.core().recv_window_min();
        let most = self.memory.map_or(bytes, |most| bytes.min(most.max(least)));
        self.driver.set_send_window(most);
    }

    /// What the application lets this end hold.
    fn limit_memory(&mut self, now: Time, memory: Option<u64>) {
        self.memory = memory;
        if let Some(memory) = memory {
            self.shrink_window(now, memory);
        }
        if let Some(share) = self.send_share {
            self.set_send_window(share);
        }
    }

    /// When [`Association::service`] and [`Association::transmit`] are to be called next, if nothing
    /// happens before.
    pub(crate) fn poll_timeout(&mut self) -> Option<Time> {
        let driver = match self.is_silent() {
            // What is due could not leave.
            true => None,
            false => self.driver.poll_timeout(),
        };
        driver.into_iter().chain(self.close_until).min()
    }

    /// Until when nobody needs to look at datagrams that arrive, if that is worth it.
    pub(crate) fn gather_until(&self, now: Time) -> Option<Time> {
        self.driver.core().gather_until(now)
    }

    /// Whether so much has arrived that workers have not opened that no more should be received.
    pub(crate) fn is_full(&self) -> bool {
        self.driver.is_full()
    }

    /// What the core needs from a source of randomness; `spare_id` gives connection ids that are
    /// from then on this session's, and what this end shows of each if it has forgotten the session.
    pub(crate) fn supply(
        &mut self,
        random: impl FnMut() -> [u8; 8],
        spare_id: impl FnMut() -> (ConnectionId, Option<ResetToken>),
    ) {
        self.driver.supply(random, spare_id);
    }

    /// Spare connection ids that are not this session's any more.
    pub(crate) fn take_retired(&mut self) -> Vec<ConnectionId> {
        self.driver.take_retired()
    }

    /// The network says that nobody listens at `remote`; whether that is where the peer is.
    pub(crate) fn on_refused(&mut self, now: Time, remote: SocketAddr) -> bool {
        let is_peer = remote == self.driver.core().tuple().remote;
        if is_peer {
            self.driver.peer_refused(now);
        }
        is_peer
    }

    /// The operating system did not send datagrams to `to`; whether they may have been this session's.
    pub(crate) fn on_dropped(&mut self, now: Time, to: &Destination, dropped: &Dropped) -> bool {
        let to = Tuple {
            remote: to.remote,
            local_ip: to.local_ip,
        };
        let Some(path) = self.driver.path_to(&to) else {
            return false;
        };
        match dropped.reason {
            DropReason::TooLarge => {
                self.driver
                    .datagram_too_large(now, Some(path), dropped.segment_size);
            }
            // The address is gone (EINVAL is among the other errors), or the network is. Further paths keep theirs all the same.
            DropReason::Unreachable | DropReason::Other if path == PathId::FIRST => {
                self.driver.local_address_lost(now);
            }
            _ => {}
        }
        true
    }

    // ---- the end ------------------------------------------------------------------------------

    /// Nothing will happen any more.
    pub(crate) fn is_finished(&self) -> bool {
        self.driver.is_finished()
    }

    /// Nothing more will happen in the session: the application hears of it, if it has not. Returns close code and reason for the control connection.
    pub(crate) fn finish(&mut self) -> (u64, String) {
        self.end(Error::new(ErrorKind::Other, "the session has ended"));
        std::mem::take(&mut self.farewell)
    }

    /// The peer has closed the control connection: it no longer knows this session.
    pub(crate) fn refused(&mut self, error: Error) {
        self.end(error);
        self.driver.abandon();
    }

    /// Nothing can come of the session, as the peer does not keep to the protocol: it is told why.
    pub(crate) fn give_up(&mut self, why: &str) {
        self.farewell = (close_code::PROTOCOL, why.to_owned());
        self.refused(Error::new(ErrorKind::Protocol, why));
    }

    /// What a server has said that it shows if it has forgotten the session.
    pub(crate) fn expect_reset(&mut self, server: &Params) {
        if let Some(token) = server.reset_token {
            self.driver.expect_reset(token);
        }
    }

    /// A datagram from `remote` that is of no session shows this: whether the peer says so that it has forgotten this one, which is over then. Only the peer knows
    /// what it has promised to show.
    pub(crate) fn on_reset(&mut self, remote: SocketAddr, shown: &[u8; ResetToken::LEN]) -> bool {
        let core = self.driver.core();
        let is_promised = |(from, token): (SocketAddr, &ResetToken)| {
            from == remote && verify_slices_are_equal(token.bytes(), shown).is_ok()
        };
        let is_theirs = core.reset_tokens().any(is_promised);
        if is_theirs {
            let why = io::Error::from(io::ErrorKind::ConnectionReset);
            self.refused(Error::new(ErrorKind::PeerLost, FORGOTTEN).caused_by(why));
        }
        is_theirs
    }

    /// Begin to close, for an engine that stops.
    pub(crate) fn stop(&mut self, now: Time) {
        self.driver.close(now, close_code::CANCELLED, STOPPED);
        self.farewell = (close_code::CANCELLED, STOPPED.to_owned());
        self.end(Error::new(
            ErrorKind::Interrupted,
            "the endpoint was closed at this end",
        ));
    }

    /// Closes the session because the client's ticket or key was revoked.
    pub(crate) fn turn_out(&mut self, now: Time) {
        const REASON: &str = "this ticket or key was revoked";
        self.driver.close(now, close_code::AUTHENTICATION, REASON);
        self.farewell = (close_code::AUTHENTICATION, REASON.to_owned());
        self.end(Error::new(
            ErrorKind::Authentication,
            "the client's ticket or key was revoked",
        ));
    }

    /// The session is over for the application; the first reason stays.
    pub(crate) fn end(&mut self, error: Error) {
        let shared = Arc::clone(&self.shared);
        let mut inner = shared.lock();
        self.end_in(&mut inner, error);
        shared.notify(inner);
    }

    /// The driver has ended the session for this reason.
    fn ended(&mut self, inner: &mut Inner, end: EndReason) {
        if let EndReason::ClosedByPeer { code, .. } = end {
            inner.peer_code = inner.closed.is_none().then_some(code);
        }
        self.farewell = farewell(&end);
        self.end_in(inner, error_of(end, self.idle_timeout));
    }

    fn end_in(&mut self, inner: &mut Inner, error: Error) {
        self.lasted.get_or_insert(self.shared.elapsed());
        inner.closed.get_or_insert(error);
        inner.queues.end();
        // The last figures: the session's clock has stopped, though packets may still leave.
        self.publish(inner);
    }

    /// What has arrived of a session that is over and that nobody has accepted, bytes: its application may still take it. `None` of any other.
    pub(crate) fn unclaimed(&self) -> Option<Unclaimed> {
        let inner = self.shared.lock();
        let bytes = self.driver.receiving_cost() + inner.queues.datagram_bytes() as u64;
        (!inner.is_accepted && bytes > 0).then(|| Unclaimed {
            shared: Arc::downgrade(&self.shared),
            bytes,
        })
    }

    /// Lets the application know, before anything has come, what the handshake has shown.
    pub(crate) fn introduce(&self) {
        self.publish(&mut self.shared.lock());
    }

    /// What the application may look at.
    fn publish(&self, inner: &mut Inner) {
        inner.stats = self.stats();
        let core = self.driver.core();
        let remote = core.tuple().remote.ip();
        inner.learned = core.path_memory().map(|memory| (remote, memory));
    }

    fn stats(&self) -> Stats {
        let (counters, core) = (self.driver.counters(), self.driver.core());
        let paths = self.path_figures();
        let bond = core.bond();
        let (remote, core) = (core.tuple().remote, core.stats());
        let ip_overhead = if remote.is_ipv4() { 28 } else { 48 };
        let control = &self.control;
        Stats {
            silence: Duration::ZERO,
            unanswered: Duration::ZERO,
            has_ended: false,
            elapsed: self.lasted.unwrap_or_else(|| self.shared.elapsed()),
            wire_bytes_sent: core.ip_bytes_sent
                + control.bytes_sent
                + ip_overhead * control.datagrams_sent,
            wire_packets_sent: core.packets_sent + control.datagrams_sent,
            wire_bytes_received: core.ip_bytes_received
                + control.bytes_received
                + ip_overhead * control.datagrams_received,
            repair_proactive: core.repair_proactive,
            repair_reactive: core.repair_reactive,
            source_sent: core.source_sent,
            repair_proactive_bytes: core.repair_proactive_bytes,
            repair_reactive_bytes: core.repair_reactive_bytes,
            bundles: core.bundles,
            bundled_bytes: core.bundled_bytes,
            losses_sent: core.losses_sent,
            losses_received: core.losses_received,
            plr: core.plr,
            rtt: Duration::from_nanos(core.rtt),
            min_rtt: Duration::from_nanos(core.min_rtt),
            pacing_rate: core.pacing_rate,
            ecn: core.ecn.name(),
            packets_marked: core.packets_marked,
            cwnd: core.cwnd,
            recv_window: core.recv_window,
            peer_window: core.peer_window,
            window_limited: Duration::from_nanos(core.window_limited),
            streams_peak: core.streams_peak,
            blocks: core.blocks,
            blocks_second_round: core.blocks_second_round,
            invalid_datagrams: counters.invalid
                + core.packets_refused
                + (self.endpoint.strays - self.endpoint_before.strays),
            replayed_datagrams: counters.replayed,
            bytes_delivered: counters.bytes_delivered,
            bytes_received: counters.bytes_received,
            symbol_bytes: u32::from(core.symbol_len),
            warnings_sent: core.warnings_sent,
            warnings_received: core.warnings_received,
            field_operations: counters.field_operations,
            copied_bytes: counters.copied_bytes,
            bond,
            paths,
            load: self.endpoint.load.since(&self.endpoint_before.load),
            ..self.stats_names
        }
    }
}

impl Association {
    /// What the application may know of the paths.
    fn path_figures(&self) -> [Option<PathFigures>; PATHS_MAX] {
        let mut figures = [None; PATHS_MAX];
        for (place, path) in figures.iter_mut().zip(self.driver.core().path_stats()) {
            let (state, reason) = state_of(path.state);
            let local = self.local_of(path.id, path.tuple.local_ip);
            *place = Some(PathFigures {
                id: path.id,
                option: self.option_of(path.id, local),
                local,
                remote: path.tuple.remote,
                state,
                reason,
                policy: path.policy,
                wire_bytes_sent: path.ip_bytes_sent,
                wire_bytes_received: path.ip_bytes_received,
                wire_packets_sent: path.packets_sent,
                rtt: Duration::from_nanos(path.rtt),
                min_rtt: Duration::from_nanos(path.min_rtt),
                plr: path.plr,
                pacing_rate: path.pacing_rate,
            });
        }
        figures
    }

    /// Where a path begins: as its packets say, or before one has come, as its socket does.
    fn local_of(&self, id: u32, told: Option<IpAddr>) -> Option<IpAddr> {
        let bound = self.first.filter(|_| id == PathId::FIRST.get());
        told.or(bound)
    }

    /// Index of the path among those of the options.
    fn option_of(&self, id: u32, local: Option<IpAddr>) -> Option<usize> {
        if id == PathId::FIRST.get() {
            return self.has_options.then_some(0);
        }
        let mut begins = self.begins.iter();
        begins
            .rposition(|begin| Some(*begin) == local)
            .map(|at| at + 1)
    }
}

/// What a path is doing, and why it carries nothing if it does not.
fn state_of(state: PathState) -> (&'static str, Option<&'static str>) {
    match state {
        PathState::Validating => (
            "validating",
            Some("the other end has not answered there yet"),
        ),
        PathState::Working => ("working", None),
        PathState::Resting => (
            "resting",
            Some("it is slower, and others would wait for it"),
        ),
        PathState::Standby => ("standby", Some("other paths carry everything")),
        PathState::Dear => ("standby", Some("cheaper paths suffice")),
        PathState::Met => (
            "resting",
            Some("it leads into the same bottleneck as another path"),
        ),
        PathState::Suspect => ("suspect", Some("it does not answer")),
    }
}

impl Drop for Association {
    /// However the engine ends, nobody waits for it any longer.
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner.close_answered = true;
        inner
            .closed
            .get_or_insert_with(|| Error::new(ErrorKind::Other, "the engine has stopped"));
        inner.path_wishes.clear();
        inner.queues.end();
        self.shared.notify(inner);
    }
}

/// What an end means to the application.
fn error_of(end: EndReason, idle_timeout: Duration) -> Error {
    let seconds = idle_timeout.as_secs_f64();
    match end {
        EndReason::CannotDecode(why) => Error::new(ErrorKind::Other, format!("internal error: {why}")),
        EndReason::CannotSeal(why) => Error::new(ErrorKind::Other, format!("cannot send: {why}")),
        EndReason::Closed { .. } => {
            Error::new(ErrorKind::Interrupted, "the session was closed at this end")
        }
        EndReason::ClosedByPeer { code, reason } => closed_by_peer(code, &reason),
        EndReason::Forgeries => Error::new(
            ErrorKind::Protocol,
            "so many packets did not open that a forged one might: the session is not safe any longer",
        ),
        EndReason::OutOfBudget => Error::new(
            ErrorKind::Cancelled,
            "the budget of the last path is spent",
        )
        .caused_by(io::Error::from(io::ErrorKind::QuotaExceeded)),
        EndReason::PeerGone => Error::new(
            ErrorKind::PeerLost,
            "the peer is gone: its port is closed (ICMP port unreachable), and nothing is heard from it",
        )
        .caused_by(io::Error::from(io::ErrorKind::ConnectionRefused)),
        EndReason::PeerLost => Error::new(
            ErrorKind::PeerLost,
            "nothing heard from the peer for the idle timeout",
        ),
        EndReason::Stalled {
            held_up: Some(stream),
        } => Error::new(
            ErrorKind::Stalled,
            format!(
                "no progress for {seconds} s: the other end answers, but its application has not read \
                 stream {stream}, whose share of the window is full"
            ),
        ),
        EndReason::Stalled { held_up: None } => Error::new(
            ErrorKind::Stalled,
            format!(
                "no progress for {seconds} s: the other end answers, but confirms nothing of what \
                 this end sends"
            ),
        )
        .caused_by(io::Error::from(io::ErrorKind::TimedOut)),
        EndReason::Violation(what) => Error::new(
            ErrorKind::Protocol,
            format!("the peer broke the protocol: {what}"),
        ),
        EndReason::WorkerPanicked => Error::new(
            ErrorKind::Other,
            "internal error: a worker has panicked over data of this session",
        ),
    }
}

/// How the control connection is closed after an end: code and reason.
fn farewell(end: &EndReason) -> (u64, String) {
    let (code, reason) = match end {
        EndReason::Closed { code, reason } => (*code, reason.as_str()),
        EndReason::ClosedByPeer { .. }
        | EndReason::CannotDecode(_)
        | EndReason::CannotSeal(_)
        | EndReason::WorkerPanicked => (close_code::DONE, ""),
        EndReason::Forgeries => (close_code::PROTOCOL, "too many packets did not open"),
        EndReason::OutOfBudget => (close_code::CANCELLED, "the budget of its paths is spent"),
        // Whoever hears of it lives, and has cancelled nothing.
        EndReason::PeerGone => (close_code::LOST, "nobody listens at this end's address"),
        EndReason::PeerLost => (
            close_code::LOST,
            "it heard nothing from this end for its idle timeout",
        ),
        EndReason::Stalled { .. } => (close_code::LOST, "no progress for too long"),
        EndReason::Violation(what) => (close_code::PROTOCOL, *what),
    };
    (code, reason.to_owned())
}
