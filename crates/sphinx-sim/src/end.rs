//! One end: a session's driver, the application that uses it, and what the surroundings of both supply.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use sphinx_driver::{
    BufferPool, Counters, DATAGRAM_BYTES, DatagramCounts, Driver, EndReason, Origin, Outbox,
    PacketProtection, PoolBuffer, Queues, Workshop,
};
use sphinx_link::{Datagram, Packet};
use sphinx_proto::cc::CcKind;
use sphinx_proto::wire::ConnectionId;
use sphinx_proto::{
    Bond, Config, Nanos, PathId, PathNews, PathPolicy, Role, Session, StreamId, Time, Tuple,
};

use crate::app::{Carried, Heard, Listener, Local, Readers, Talker, Writers, carry};
use crate::arrivals::Arrivals;
use crate::data::Rng;
use crate::late::Late;
use crate::plan::{Plan, Ways, Write};

/// ECN codepoint of a capable packet (RFC 3168).
/// Turns of a driver at one point in time after which it counts as stuck.
const TURNS_MAX: u32 = 100_000;
/// Bytes of blocks that are kept for sliding windows, if a quarter of the window is not less.
const COPIES_MAX: usize = 2 << 20;
/// Bytes that may wait for a block to be decoded where sliding windows are used: 256 KiB and what one packet adds.
const WAITING_MAX: usize = 260 << 10;
/// Idle memory that an end keeps for blocks: so that they find what others left there.
const POOL_BYTES: usize = 4 << 20;

/// The datagrams of one turn, with the addresses that the driver wants; and where the socket is that takes no more, if there is one.
#[derive(Default)]
struct Sent(Vec<(Tuple, u8, Vec<u8>)>, Option<IpAddr>);

impl Outbox for Sent {
    fn len_bytes(&self) -> usize {
        0
    }

    fn is_full(&self, to: &Tuple) -> bool {
        self.1.is_some() && to.local_ip == self.1
    }

    fn push(&mut self, to: &Tuple, ecn: u8, len: usize) -> &mut [u8] {
        self.0.push((*to, ecn, vec![0xaa; len]));
        self.0.last_mut().map_or(&mut [], |(.., datagram)| datagram)
    }

    /// As a back end that sends from any memory: what is copied here is on its way.
    fn push_sealed(
        &mut self,
        to: &Tuple,
        ecn: u8,
        memory: PoolBuffer,
        lens: &mut dyn Iterator<Item = usize>,
    ) -> usize {
        let mut rest = &memory[..];
        for len in lens {
            let (datagram, behind) = rest.split_at(len);
            self.0.push((*to, ecn, datagram.to_vec()));
            rest = behind;
        }
        0
    }
}

/// A session, its driver and its application.
pub struct End<P> {
    driver: Driver<P, Late>,
    queues: Queues<Local>,
    workshop: Workshop,
    writers: Writers,
    readers: Readers,
    talker: Talker,
    listener: Listener,
    carried: Option<Box<dyn Carried>>,
    arrivals: Arrivals,
    random: Rng,
    ids: Rng,
    /// When the rate that it may send at changes.
    limits: VecDeque<(Nanos, Option<u64>)>,
    /// When its controller changes.
    controllers: VecDeque<(Nanos, CcKind)>,
    /// Source symbols and symbol size of full blocks, instead of what the session proposes.
    shape: Option<(u16, u16)>,
    ways: Ways,
    /// What may be received, before its application accepts the session and after.
    recv_credit: u64,
    recv_window: u64,
    /// The largest window so far, how far it may grow, and when it changes all the same.
    window_largest: u64,
    window_max: u64,
    pub(crate) windows: VecDeque<(Nanos, u64)>,
    /// Further paths that are to be opened: when, from where, and to where; and those that are or will be soon.
    to_open: VecDeque<(Nanos, Tuple, PathPolicy)>,
    opening: Vec<(Tuple, PathPolicy)>,
    /// When it wants another mode of several paths.
    pub(crate) bonds: VecDeque<(Nanos, Bond)>,
    further: Vec<SocketAddr>,
    /// When its application will accept the session.
    pub(crate) accepted_at: Option<Nanos>,
    seals_later: bool,
    /// Whether packets gather while the driver allows it; those that do, with the times of their arrival, and until when.
    gathers: bool,
    gathered: VecDeque<(Nanos, Datagram)>,
    gather_until: Option<Time>,
    /// Something other than time or the application has given the driver something to do.
    is_woken: bool,
    /// The application has not heard the session's latest news.
    is_news: bool,
    sent: Sent,

    /// Where the network finds this end.
    pub address: SocketAddr,
    /// The address that this end takes for its own.
    pub own_address: SocketAddr,
    /// Connection ids that this end answers to.
    pub cids: BTreeSet<ConnectionId>,
    /// Those of the peer that it has used, in order.
    pub cids_used: Vec<ConnectionId>,
    /// What has become of its paths, and when.
    pub path_news: Vec<(Nanos, PathId, PathNews)>,
    /// When its path changed, and to what.
    pub paths: Vec<(Nanos, Tuple)>,
    /// The most memory of blocks received and not taken, as the window counts it.
    pub rx_held_max: u64,
    /// The most that sliding windows kept besides, bytes.
    pub window_bytes_max: usize,
    /// IP bytes of all datagrams that this end sent.
    pub ip_bytes_sent: u64,
    /// Bytes that have arrived in order, of all streams.
    pub bytes_received: u64,
    /// When and why the session ended.
    pub events: Vec<(Nanos, EndReason)>,
}

impl<P: PacketProtection> End<P> {
    /// An end that does what `plan` says. `seed` is that of its bytes and chances; `peer` the seed and the
    /// number of streams of what it receives.
    pub(crate) fn new(
        config: Config,
        protection: P,
        address: SocketAddr,
        (plan, window_max): (&Plan, u64),
        seed: u64,
        peer: (u64, &Plan),
    ) -> Self {
        let role = config.role;
        let is_client = role == Role::Client;
        let (packet, decoding) = (plan.packet_delay_max, plan.job_delay_max);
        let jobs_seed = seed ^ 0x6a6f_6273;
        let late = match plan.workers {
            0 => Late::new(jobs_seed, [packet, decoding, packet]),
            workers => Late::crew(jobs_seed, workers),
        };
        let late = late.panicking(plan.panics_at);
        Self {
            recv_credit: config.recv_credit.min(config.recv_window),
            recv_window: config.recv_window,
            window_largest: config.recv_window,
            window_max,
            windows: VecDeque::new(),
            to_open: VecDeque::new(),
            opening: Vec::new(),
            bonds: VecDeque::new(),
            further: Vec::new(),
            accepted_at: None,
            cids: BTreeSet::from([config.local_cid]),
            // Both ends allow as many.
            queues: Queues::new(role, config.recv_streams),
            driver: Driver::new(
                Session::new(config, Time::ZERO),
                protection,
                late,
                is_client,
            ),
            workshop: Workshop::new(BufferPool::new(POOL_BYTES)),
            writers: Writers::new(seed, plan),
            readers: Readers::new(plan, peer.0, peer.1),
            talker: Talker::new(seed, &plan.says),
            listener: Listener::new(peer.0, &peer.1.says, plan.on_time),
            carried: None,
            arrivals: Arrivals::default(),
            random: Rng::new(seed ^ 0x6368_616c),
            ids: Rng::new(seed ^ 0x6369_6473),
            shape: plan.shape,
            ways: plan.ways,
            limits: plan.limits.clone().into(),
            controllers: plan.controllers.clone().into(),
            seals_later: plan.packet_delay_max > 0,
            gathers: plan.gathers,
            gathered: VecDeque::new(),
            gather_until: None,
            is_woken: true,
            is_news: false,
            sent: Sent::default(),
            address,
            own_address: address,
            cids_used: Vec::new(),
            path_news: Vec::new(),
            paths: Vec::new(),
            rx_held_max: 0,
            window_bytes_max: 0,
            ip_bytes_sent: 0,
            bytes_received: 0,
            events: Vec::new(),
        }
    }

    /// The session.
    pub fn session(&self) -> &Session {
        self.driver.core()
    }

    /// The session's packet protection.
    pub fn protection(&self) -> &P {
        self.driver.protection()
    }

    /// The next time at which this end has something to do.
    pub(crate) fn next_event(&mut self) -> Option<Nanos> {
        let timers = [
            self.driver.poll_timeout().map(Time::as_nanos),
            self.look_at().map(Time::as_nanos),
            self.writers.next_write(),
            self.talker.next(),
            self.carried
                .as_ref()
                .and_then(|carried| carried.next_event()),
            self.readers.next_read(),
            self.accepted_at,
            self.limits.front().map(|(at, _)| *at),
            self.windows.front().map(|(at, _)| *at),
            self.controllers.front().map(|(at, _)| *at),
            self.to_open.front().map(|(at, ..)| *at),
            self.bonds.front().map(|(at, _)| *at),
        ];
        timers.into_iter().flatten().min()
    }

    // ---- what the application knows -----------------------------------------------------------

    /// Whether everything written so far was cut into blocks and all of it arrived.
    pub fn all_delivered(&self) -> bool {
        let mut streams = self.writers.streams();
        self.writers.are_done() && streams.all(|(id, _)| self.session().stream_delivered(id))
    }

    /// Whether the stream has arrived to its end.
    pub fn stream_ended(&self, index: u64) -> bool {
        self.arrivals.has_ended(index)
    }

    /// Bytes that the application has read of a stream, if that was all of it.
    pub fn stream_read(&self, index: u64) -> Option<u64> {
        self.readers.whole(index)
    }

    /// Whether the stream was given up before its end had been read.
    pub fn stream_given_up(&self, index: u64) -> bool {
        self.readers.was_given_up(index)
    }

    /// Streams that the application gave up, or that its peer wanted no more of, and when.
    pub fn given_up(&self) -> impl Iterator<Item = (StreamId, Nanos)> + '_ {
        self.writers.given_up()
    }

    /// Whether the application has written the end of this stream.
    pub fn has_finished(&self, index: u64) -> bool {
        self.writers.has_finished(index)
    }

    /// Whether the application wanted no more of a stream before it had read its end.
    pub fn has_stopped(&self, index: u64) -> bool {
        self.readers.was_stopped(index)
    }

    /// Whether the application does not read this stream.
    pub fn leaves_unread(&self, index: u64) -> bool {
        self.readers.leaves_unread(index)
    }

    /// Prints what its application waits for.
    pub(crate) fn explain(&self) {
        self.writers.explain();
        self.readers.explain();
    }

    /// Whether packets that the session has counted may not have left.
    pub(crate) fn seals_later(&self) -> bool {
        self.seals_later
    }

    /// Bytes written so far.
    pub fn bytes_written(&self) -> u64 {
        self.writers.bytes()
    }

    /// Indices of the streams that this end has opened, and the bytes written to each.
    pub fn streams(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let streams = self.writers.streams();
        streams.map(|(id, bytes)| (id.index(), bytes))
    }

    /// (arrival, index of the stream, offset, length) of every piece of a stream.
    pub fn pieces_received(&self) -> &[(Nanos, u64, u64, u32)] {
        &self.arrivals.pieces
    }

    /// When each of `count` messages of `len` bytes on the first stream had arrived whole.
    pub fn message_arrivals(&self, len: u64, count: u64) -> Vec<Option<Nanos>> {
        let mut messages = vec![(0, 0); count as usize];
        let pieces = self.arrivals.pieces.iter().filter(|piece| piece.1 == 0);
        for &(at, _, offset, bytes) in pieces {
            let (last, arrived) = &mut messages[(offset / len) as usize];
            *last = at;
            *arrived += u64::from(bytes);
        }
        let whole = |(last, arrived)| (arrived == len).then_some(last);
        messages.into_iter().map(whole).collect()
    }

    /// Datagrams that its application was given.
    pub fn heard(&self) -> &[Heard] {
        &self.listener.heard
    }

    /// Whether it has sent datagrams.
    pub(crate) fn has_said_any(&self) -> bool {
        self.datagram_counts().sent > 0
    }

    /// Whether all datagrams have been sent, and what became of each is known.
    pub fn has_said_all(&self) -> bool {
        let counts = self.datagram_counts();
        let known = counts.delivered + counts.expired + counts.evicted + counts.lost;
        self.talker.next().is_none() && known == counts.sent
    }

    /// Numbers of live messages that it was told not to wait for, by flow.
    pub fn missing(&self) -> &BTreeMap<u64, Vec<Range<u64>>> {
        &self.listener.missing
    }

    /// How many flows of live messages have ended.
    pub fn live_ended(&self) -> u64 {
        self.listener.ended
    }

    /// What has come of the datagrams that applications sent.
    pub fn datagram_counts(&self) -> DatagramCounts {
        self.queues.datagram_counts()
    }

    /// What has come of the packets.
    pub fn counters(&self) -> Counters {
        self.driver.counters()
    }

    /// Memory of blocks handed over and not delivered, as the window counts it.
    pub fn tx_held(&self) -> u64 {
        self.driver.sending_cost()
    }

    /// Memory of blocks received and not taken, as the window counts it.
    pub fn rx_held(&self) -> u64 {
        self.driver.receiving_cost()
    }

    /// From now on this application has the datagrams of this end.
    pub fn carry(&mut self, carried: Box<dyn Carried>) {
        self.carried = Some(carried);
    }

    // ---- what happens to it -------------------------------------------------------------------

    /// The application hands over something that is not in its plan, but for `at` not before what is.
    pub fn write(&mut self, write: Write) {
        self.writers.add(write);
    }

    /// The application ends the session.
    pub fn close(&mut self, code: u64, reason: &str) {
        self.queues.close(code, reason);
    }

    /// The session has begun before its handshake is over.
    pub fn be_provisional(&mut self) {
        self.driver.be_provisional();
    }

    /// The handshake is over.
    pub fn be_certain(&mut self) {
        self.driver.be_certain();
        self.is_woken = true;
    }

    /// The network says that nobody listens at the peer's address.
    pub fn peer_refused(&mut self, now: Nanos) {
        self.driver.peer_refused(Time::from_nanos(now));
        self.is_woken = true;
    }

    /// The operating system says that datagrams of `len` bytes are too large.
    pub fn datagram_too_large(&mut self, now: Nanos, len: usize) {
        self.driver
            .datagram_too_large(Time::from_nanos(now), None, len);
        self.is_woken = true;
    }

    /// From which addresses datagrams would leave now, if the socket at this one took no more. They are lost.
    pub fn would_leave(&mut self, now: Nanos, full: Option<IpAddr>) -> Vec<Option<IpAddr>> {
        self.sent.1 = full;
        let now = Time::from_nanos(now);
        (self.driver).transmit(now, usize::MAX, &mut self.workshop, &mut self.sent);
        let sent = std::mem::take(&mut self.sent).0;
        sent.into_iter().map(|(to, ..)| to.local_ip).collect()
    }

    /// A path is to be opened at this time, between these addresses.
    pub(crate) fn will_open(
        &mut self,
        at: Nanos,
        (from, to): (SocketAddr, SocketAddr),
        policy: PathPolicy,
    ) {
        let tuple = Tuple {
            remote: to,
            local_ip: Some(from.ip()),
        };
        self.to_open.push_back((at, tuple, policy));
        self.further.push(from);
    }

    /// Whether the network finds this end at the address.
    pub(crate) fn is_at(&self, address: SocketAddr) -> bool {
        self.address == address || self.further.contains(&address)
    }

    /// Gives a path up; whether it was there, and is not the last one.
    pub fn abandon_path(&mut self, now: Nanos, path: PathId) -> bool {
        self.is_woken = true;
        self.driver.abandon_path(Time::from_nanos(now), path)
    }

    fn open_paths(&mut self, now: Nanos) {
        while let Some((_, tuple, policy)) = self.to_open.pop_front_if(|(at, ..)| *at <= now) {
            self.opening.push((tuple, policy));
        }
        let (driver, clock) = (&mut self.driver, Time::from_nanos(now));
        let before = self.opening.len();
        self.opening
            .retain(|(tuple, policy)| driver.open_path(clock, *tuple, *policy).is_none());
        self.is_woken |= self.opening.len() < before;
    }

    /// A datagram arrives.
    pub(crate) fn receive(&mut self, now: Nanos, datagram: Datagram) {
        let clock = Time::from_nanos(now);
        match self.gather_until.filter(|until| *until > clock) {
            Some(_) => self.gathered.push_back((now, datagram)),
            None => self.look(clock, clock, datagram),
        }
    }

    /// When the datagrams are looked at that have gathered, if there are any.
    fn look_at(&self) -> Option<Time> {
        self.gather_until.filter(|_| !self.gathered.is_empty())
    }

    fn look_at_gathered(&mut self, now: Time) {
        let wakes = [self.look_at(), self.driver.poll_timeout()];
        if wakes.into_iter().flatten().any(|at| at <= now) {
            while let Some((at, datagram)) = self.gathered.pop_front() {
                self.look(Time::from_nanos(at), now, datagram);
            }
        }
    }

    fn look(&mut self, received_at: Time, clock: Time, mut datagram: Datagram) {
        let payload = &mut datagram.payload;
        let cid = ConnectionId::of_datagram(payload);
        if !cid.is_some_and(|cid| self.cids.contains(&cid)) {
            return;
        }
        let origin = Origin {
            received_at,
            tuple: Tuple {
                remote: datagram.source,
                local_ip: Some(match self.further.contains(&datagram.destination) {
                    true => datagram.destination.ip(),
                    false => self.own_address.ip(),
                }),
            },
            ecn: datagram.ecn,
        };
        self.driver
            .handle_datagram(clock, origin, payload, &mut self.workshop);
        self.is_woken = true;
        self.rx_held_max = self.rx_held_max.max(self.rx_held());
        let most = match self.accepted_at {
            Some(_) => self.recv_credit,
            None => self.window_largest,
        };
        assert!(self.rx_held_max <= most, "more blocks than the window");
        assert!(self.rx_held() <= self.session().recv_window_cost());
        assert!(self.queues.datagram_bytes() <= DATAGRAM_BYTES);
        self.window_bytes_max = self.window_bytes_max.max(self.driver.window_bytes());
        let copies_max = (self.recv_window as usize / 4).min(COPIES_MAX);
        assert!(
            self.window_bytes_max <= copies_max + WAITING_MAX,
            "more for sliding windows than they may have"
        );
    }

    /// Lets application and driver do what is due, as often as one has something for the other, and collects
    /// what they send.
    pub(crate) fn drive(&mut self, now: Nanos, out: &mut Vec<Datagram>) {
        let clock = Time::from_nanos(now);
        self.look_at_gathered(clock);
        for _ in 0..TURNS_MAX {
            let shape = self.session().block_shape(self.queues.writers());
            let shape = self.shape.unwrap_or(shape);
            let pool = self.workshop.pool();
            let known = match self.ways {
                Ways::Answers => self.readers.accepted(),
                Ways::One | Ways::Asks => Vec::new(),
            };
            self.writers
                .step(now, &mut self.queues, &known, shape, pool);
            self.talker.step(now, &mut self.queues, pool);
            if let Some(carried) = &mut self.carried {
                let both = (&mut self.queues, pool);
                carry(carried.as_mut(), now, self.driver.core(), both);
            }
            // Nobody reads what nobody has accepted.
            if self.accepted_at.is_none() {
                self.listener.step(now, &mut self.queues);
                let is_news = std::mem::take(&mut self.is_news);
                let asked = match self.ways {
                    Ways::Asks => self.writers.streams().map(|(id, _)| id).collect(),
                    Ways::One | Ways::Answers => Vec::new(),
                };
                self.readers.step(now, &mut self.queues, &asked, is_news);
            }

            if self.accepted_at.take_if(|at| *at <= now).is_some() {
                self.driver.open_window(clock);
                self.is_woken = true;
            }
            while let Some((_, limit)) = self.limits.pop_front_if(|(at, _)| *at <= now) {
                self.driver.set_limit(limit);
                self.is_woken = true;
            }
            while let Some((_, size)) = self.windows.pop_front_if(|(at, _)| *at <= now) {
                self.set_window(clock, size);
            }
            if let Some(size) = self
                .session()
                .recv_window_wanted()
                .map(|size| size.min(self.window_max))
                && size > self.session().recv_window()
            {
                self.set_window(clock, size);
            }
            self.open_paths(now);
            while let Some((_, bond)) = self.bonds.pop_front_if(|(at, _)| *at <= now) {
                self.driver.set_bond(bond);
                self.is_woken = true;
            }
            while let Some((_, cc)) = self.controllers.pop_front_if(|(at, _)| *at <= now) {
                self.driver.set_cc(clock, cc);
                self.is_woken = true;
            }
            let is_wanted = self.queues.take_wanted();
            let is_due = self.driver.poll_timeout().is_some_and(|at| at <= clock);
            if !(is_wanted | is_due | std::mem::take(&mut self.is_woken)) {
                return;
            }
            self.turn(now, out);
        }
        panic!("stuck in a loop at {now} ns");
    }

    fn set_window(&mut self, now: Time, size: u64) {
        self.driver.set_recv_window(now, size);
        self.window_largest = self.window_largest.max(size);
        self.is_woken = true;
    }

    /// A turn of the driver, as an engine takes it.
    fn turn(&mut self, now: Nanos, out: &mut Vec<Datagram>) {
        let clock = Time::from_nanos(now);
        self.driver.handle_timeout(clock, &mut self.workshop);
        let pool = self.workshop.pool();
        self.is_news |= self.driver.exchange(clock, &mut self.queues, pool);
        self.arrivals.note(now, &self.queues);
        self.bytes_received = self.arrivals.bytes;
        let (random, ids, cids) = (&mut self.random, &mut self.ids, &mut self.cids);
        let spare_id = || {
            let cid = ConnectionId::new((ids.word() | 1).to_be_bytes()).expect("not zero");
            cids.insert(cid);
            (cid, None)
        };
        self.driver.supply(|| random.word().to_be_bytes(), spare_id);
        for cid in self.driver.take_retired() {
            assert!(self.cids.remove(&cid), "an id of this end");
        }
        let news = self.driver.take_path_news().into_iter();
        self.path_news
            .extend(news.map(|(path, news)| (now, path, news)));
        let changes = self.driver.take_path_changes().into_iter();
        self.paths.extend(changes.map(|tuple| (now, tuple)));
        self.driver
            .transmit(clock, usize::MAX, &mut self.workshop, &mut self.sent);
        let gathers = self.gathers.then(|| self.session().gather_until(clock));
        self.gather_until = gathers.flatten();
        if let Some(reason) = self.driver.poll_end() {
            self.events.push((now, reason));
            self.queues.end();
        }
        for signal in self.queues.take_changed() {
            signal.raise();
            self.is_news = true;
        }
        for (to, ecn, payload) in std::mem::take(&mut self.sent.0) {
            let further = self
                .further
                .iter()
                .find(|place| Some(place.ip()) == to.local_ip);
            let datagram = Datagram {
                source: *further.unwrap_or(&self.address),
                destination: to.remote,
                ecn,
                payload,
            };
            self.ip_bytes_sent += datagram.ip_len() as u64;
            let cid = ConnectionId::of_datagram(&datagram.payload);
            if let Some(cid) = cid.filter(|cid| self.cids_used.last() != Some(cid)) {
                self.cids_used.push(cid);
            }
            out.push(datagram);
        }
    }
}
