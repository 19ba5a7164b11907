//! Models of the threads that meet at a session: loom runs them in every order (`make loom`).
//!
//! Their engines look at a session as the real one does and sleep until the doorbell rings, without a timeout. What
//! they are not told of is never seen: loom reports a deadlock.

mod arriving;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};

use loom::thread::{self, JoinHandle};
use sphinx_driver::keys::{Direction, SessionSecret};
use sphinx_driver::{Origin, PAUSE, StreamEnd, Workshop};
use sphinx_net::{Interest, MemoryIo, PacketIo, PacketTx};
use sphinx_proto::wire::MAX_DATAGRAM;
use sphinx_proto::{Config, ConnectionIds, PathId, Session as Core, Tuple};
use sphinx_workers::Coding;

use super::*;
use crate::association::{Association, EndpointCounts};
use crate::options::Options;
use crate::signal::models::block_on;
use crate::stats::Load;

/// Threads are taken away from their work so often, at most, wherever that makes a difference; whoever waits gives way
/// without being counted. More finds nothing that two do not, and takes minutes.
const PREEMPTIONS: usize = 2;
/// Of the engine's thread, whose calls are deep, in words.
const STACK: usize = 1 << 16;

/// Pauses of writers and of the pacer are shorter, timers for what the network does with packets longer.
const SOON: Nanos = 20 * PAUSE;

/// Runs `model` in every order that its threads may come in.
pub(crate) fn in_every_order(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.max_branches = 10_000;
    builder.check(model);
}

/// Counters of an endpoint that counts nothing.
fn counts() -> EndpointCounts {
    EndpointCounts {
        strays: 0,
        load: Load::default(),
        io: "memory",
    }
}

/// The connection id of an end.
fn cid(role: Role) -> ConnectionId {
    let n = if role == Role::Client { 1 } else { 2 };
    ConnectionId::new([n; 8]).expect("not zero")
}

/// A session, its engine's doorbell, and what ends the engine's sleep.
#[derive(Clone)]
pub(crate) struct Meeting {
    role: Role,
    shared: Arc<Shared>,
    doorbell: Arc<Doorbell>,
    waker: Waker,
    /// Packets of the peer that arrive, one with each turn of the engine.
    arriving: VecDeque<Vec<u8>>,
    /// When the engine begins, by its clock.
    begins: Time,
}

impl Meeting {
    pub(crate) fn new() -> Self {
        Self::of(Role::Client)
    }

    fn of(role: Role) -> Self {
        let waker = Waker::new().unwrap();
        let doorbell = Arc::new(Doorbell::new(waker.clone()));
        // A clock that begins later stands at zero: what a model does must depend on the order alone.
        let base = Instant::now() + Duration::from_secs(3600);
        let shared = Arc::new(Shared::new(
            Arc::clone(&doorbell),
            cid(role),
            BufferPool::new(1 << 20),
            peer(),
            (role, 16, MAX_DATAGRAM),
            base,
            Time::ZERO,
        ));
        shared.set_shape((2, 100));
        Self {
            role,
            shared,
            doorbell,
            waker,
            arriving: VecDeque::new(),
            begins: Time::ZERO,
        }
    }

    pub(crate) fn session(&self) -> Session {
        Session::new(Arc::clone(&self.shared))
    }

    /// A thread that looks at the session whenever it is told to, and for each packet, until it finds at the end of a turn that `done`,
    /// and then lets go of it.
    fn engine(self, mut done: impl FnMut(&mut Inner) -> bool + Send + 'static) -> JoinHandle<()> {
        let builder = thread::Builder::new().stack_size(STACK);
        let run = move || {
            let mut engine = Engine::new(self);
            loop {
                engine.turn();
                if !engine.meeting.arriving.is_empty() {
                    continue;
                }
                if done(&mut engine.meeting.shared.lock()) {
                    return;
                }
                let ready = engine.meeting.waker.wait(None, Interest::Read, None);
                assert!(ready.unwrap().woken);
            }
        };
        builder.spawn(run).unwrap()
    }
}

fn peer() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 1).into()
}

/// What the real engine does for a session when it has rung.
struct Engine {
    meeting: Meeting,
    association: Association,
    workshop: Workshop,
    /// Where packets go, and where nobody or a model receives them.
    io: MemoryIo,
    other: MemoryIo,
    now: Time,
    rung: Vec<ConnectionId>,
}

impl Engine {
    fn new(meeting: Meeting) -> Self {
        let tuple = Tuple {
            remote: peer(),
            local_ip: None,
        };
        let role = meeting.role;
        let ids = ConnectionIds {
            local: cid(role),
            peer: cid(role.other()),
        };
        let direction = match role {
            Role::Client => Direction::ClientToServer,
            Role::Server => Direction::ServerToClient,
        };
        let keys = SessionSecret::new(&[1; 32], &[2; 32]).keys(direction, PathId::FIRST);
        let association = Association::new(
            Core::new(Config::new(role, tuple, ids), Time::ZERO),
            (keys, Coding::Inline),
            role == Role::Client,
            Arc::clone(&meeting.shared),
            &Options::default(),
            counts(),
        );
        let (io, other) = MemoryIo::pair(peer(), peer(), 64).unwrap();
        Self {
            association,
            workshop: Workshop::new(meeting.shared.pool.clone()),
            io,
            other,
            now: meeting.begins,
            rung: Vec::new(),
            meeting,
        }
    }

    /// Looks if the session has rung or a packet has come, and then for as long as timers are due soon.
    fn turn(&mut self) {
        self.meeting.doorbell.take(&mut self.rung);
        let has_heard = self.hear();
        let mut timer = (has_heard || !self.rung.is_empty()).then_some(self.now);
        while let Some(at) = timer.filter(|at| *at <= self.now + SOON) {
            self.now = self.now.max(at);
            self.service();
            timer = self.association.poll_timeout();
            thread::yield_now();
        }
    }

    /// Takes the next packet that arrives, if there is one.
    fn hear(&mut self) -> bool {
        let Some(mut datagram) = self.meeting.arriving.pop_front() else {
            return false;
        };
        let origin = Origin {
            received_at: self.now,
            tuple: Tuple {
                remote: peer(),
                local_ip: None,
            },
            ecn: 0,
        };
        self.association
            .handle_datagram(self.now, origin, &mut datagram, &mut self.workshop);
        true
    }

    fn service(&mut self) {
        let (now, workshop) = (self.now, &mut self.workshop);
        self.association
            .service(now, Instant::now(), None, counts(), workshop);
        let tx = self.io.tx();
        self.association.transmit(now, usize::MAX, workshop, tx);
        tx.flush(&mut Vec::new()).unwrap();
    }
}

/// The core has all of the first `count` streams.
fn submitted(count: u64) -> impl Fn(&mut Inner) -> bool {
    move |inner| {
        (0..count).all(|index| {
            let end = inner.queues.stream_end(StreamId::new(Role::Client, index));
            end == Some(StreamEnd::Submitted)
        })
    }
}

#[test]
fn what_applications_leave_is_seen_by_an_engine_that_sleeps() {
    in_every_order(|| {
        let meeting = Meeting::new();
        let session = meeting.session();
        for _ in 0..2 {
            let mut stream = session.open_uni().unwrap();
            thread::spawn(move || stream.finish().unwrap());
        }
        meeting.engine(submitted(2)).join().unwrap();
    });
}

#[test]
fn a_writer_that_waits_is_woken() {
    in_every_order(|| {
        let meeting = Meeting::new();
        let session = meeting.session();
        let mut stream = session.open_uni().unwrap();
        let writer = thread::spawn(move || {
            // More pieces than may be queued.
            for _ in 0..3 {
                stream.write_all(b"x").unwrap();
                stream.flush().unwrap();
            }
            stream.finish().unwrap();
        });
        meeting.engine(submitted(1)).join().unwrap();
        writer.join().unwrap();
    });
}

#[test]
fn a_task_that_writes_is_woken() {
    in_every_order(|| {
        let meeting = Meeting::new();
        let session = meeting.session();
        let mut stream = session.open_uni().unwrap();
        let writer = thread::spawn(move || {
            for _ in 0..3 {
                assert_eq!(block_on(|cx| stream.poll_write(cx, b"x")).unwrap(), 1);
                block_on(|cx| stream.poll_flush(cx)).unwrap();
            }
            block_on(|cx| stream.poll_finish(cx)).unwrap();
        });
        meeting.engine(submitted(1)).join().unwrap();
        writer.join().unwrap();
    });
}

#[test]
fn tasks_that_wait_hear_of_the_end() {
    in_every_order(|| {
        let meeting = Meeting::new();
        let session = meeting.session();
        let reader = thread::spawn({
            let stream = StreamId::new(Role::Server, 1);
            let mut stream = RecvStream::new(stream, Arc::clone(&meeting.shared));
            move || block_on(|cx| stream.poll_read(cx, 1, |_| ())).unwrap_err()
        });
        let waiting = thread::spawn({
            let session = session.clone();
            let mut waiter = Waiter::new(&session.signals().ending);
            move || block_on(|cx| session.poll_closed(&mut waiter, cx))
        });
        let engine = meeting.engine(|inner| inner.closed.is_some());
        session.begin_close(0, "");
        for thread in [reader, waiting] {
            assert_eq!(thread.join().unwrap().kind(), ErrorKind::Interrupted);
        }
        engine.join().unwrap();
    });
}

#[test]
fn a_task_that_closes_a_session_hears_that_the_engine_has_gone() {
    in_every_order(|| {
        let meeting = Meeting::new();
        let session = meeting.session();
        let closing = thread::spawn(move || {
            session.begin_close(0, "");
            let mut waiter = Waiter::new(&session.signals().ending);
            block_on(|cx| session.poll_close_answered(&mut waiter, cx));
        });
        meeting
            .engine(|inner| inner.closed.is_some())
            .join()
            .unwrap();
        closing.join().unwrap();
    });
}

#[test]
fn everybody_who_waits_hears_of_the_end() {
    in_every_order(|| {
        let meeting = Meeting::new();
        let session = meeting.session();
        let reader = thread::spawn({
            // Not the one that is going to be accepted.
            let stream = StreamId::new(Role::Server, 1);
            let mut stream = RecvStream::new(stream, Arc::clone(&meeting.shared));
            move || stream.read(&mut [0]).unwrap_err()
        });
        let accepting = thread::spawn({
            let session = session.clone();
            move || session.accept_uni().unwrap_err()
        });
        let engine = meeting.engine(|inner| inner.closed.is_some());
        session.shared.update(|inner| inner.queues.close(0, ""));
        for thread in [reader, accepting] {
            assert_eq!(thread.join().unwrap().kind(), ErrorKind::Interrupted);
        }
        engine.join().unwrap();
    });
}

#[test]
fn whoever_closes_a_session_hears_that_the_engine_has_gone() {
    in_every_order(|| {
        let meeting = Meeting::new();
        let session = meeting.session();
        let closing = thread::spawn(move || session.close(0, ""));
        meeting
            .engine(|inner| inner.closed.is_some())
            .join()
            .unwrap();
        closing.join().unwrap();
    });
}

/// Bytes that are neither flushed nor enough for a piece are sent when the writer pauses, whenever the engine looks.
#[test]
fn what_a_writer_leaves_open_is_cut_when_it_pauses() {
    in_every_order(|| {
        let meeting = Meeting::new();
        let session = meeting.session();
        let mut stream = session.open_uni().unwrap();
        let is_left = Arc::new(AtomicBool::new(false));
        let engine = meeting.clone().engine({
            let (is_left, waker) = (Arc::clone(&is_left), meeting.waker.clone());
            let mut is_last = false;
            move |_| {
                // One more turn, which begins after the last byte.
                let was_last = std::mem::replace(&mut is_last, is_left.load(Ordering::Acquire));
                if is_last {
                    waker.wake();
                }
                was_last
            }
        });
        for _ in 0..2 {
            stream.write_all(b"x").unwrap();
        }
        is_left.store(true, Ordering::Release);
        meeting.waker.wake();
        engine.join().unwrap();
        // There is nothing to flush, or it would fail now that the engine has gone.
        stream.flush().unwrap();
    });
}
