//! Two sessions whose drivers have three workers each, in orders of threads that shuttle chooses: keys change while packets are elsewhere, and
//! sessions close. Every byte arrives, in order, and what is sealed with one key is opened with it.
//!
//! ```text
//! make shuttle SCHEDULES=10000
//! ```

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use shuttle::scheduler::{RandomScheduler, Scheduler};
use shuttle::{Config as Schedule, Runner, thread};
use sphinx_driver::keys::{Direction, Keys, SessionSecret};
use sphinx_driver::{
    Application, BufferPool, Driver, EndReason, Origin, Outbox, Queues, SharedSlicer, Slicer,
    Workshop,
};
use sphinx_proto::cc::CcKind;
use sphinx_proto::wire::ConnectionId;
use sphinx_proto::{Config, ConnectionIds, PathId, Role, Session, StreamId, Time, Tuple};

use super::Coding;
use crate::crew::Crew;

/// Schedules of an ordinary run.
const SCHEDULES: usize = 300;
const WORKERS: usize = 3;
/// Packets of an epoch: several epochs in a transfer.
const EPOCH_PACKETS: u64 = 64;
const BYTES: usize = 300_000;
/// On its way at a time: less than an epoch, of which something has to be acknowledged before it ends.
const AHEAD_MAX: usize = 40_000;
/// Turns after which a transfer hangs.
const TURNS_MAX: u64 = 20_000;
/// From one turn of the ends to the next.
const TURN: u64 = 200_000;

struct Here;

impl Application for Here {
    type Signal = ();
    type Slicer = HereSlicer;
}

#[derive(Clone)]
struct HereSlicer(Rc<RefCell<Slicer>>);

impl SharedSlicer for HereSlicer {
    fn try_with<R>(&self, look: impl FnOnce(&mut Slicer) -> R) -> Option<R> {
        Some(look(&mut self.0.borrow_mut()))
    }
}

/// A wire that loses nothing.
#[derive(Default)]
struct Wire(VecDeque<Vec<u8>>);

impl Outbox for Wire {
    fn len_bytes(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    fn push(&mut self, _: &Tuple, _: u8, len: usize) -> &mut [u8] {
        self.0.push_back(vec![0; len]);
        self.0.back_mut().expect("just made")
    }
}

struct End {
    driver: Driver<Keys, Coding>,
    queues: Queues<Here>,
    workshop: Workshop,
    slicer: Option<(StreamId, HereSlicer)>,
    written: usize,
    read: Vec<u8>,
    end: Option<EndReason>,
    ids: u64,
    crew: Crew<sphinx_driver::Task>,
}

fn id(number: u64) -> ConnectionId {
    ConnectionId::new((number | 1 << 56).to_be_bytes()).expect("its first byte is 1")
}

fn tuple(port: u16) -> Tuple {
    Tuple {
        remote: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        local_ip: None,
    }
}

fn byte(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

impl End {
    fn new(role: Role, [local, peer]: [u64; 2], port: u16) -> Self {
        let direction = match role {
            Role::Client => Direction::ClientToServer,
            Role::Server => Direction::ServerToClient,
        };
        let secret = SessionSecret::new(&[1; 32], &[2; 32]);
        let sealer = secret.sealer(direction, PathId::FIRST);
        let keys = Keys {
            sealer: sealer.with_epoch_packets(EPOCH_PACKETS),
            opener: secret.opener(direction.reverse(), PathId::FIRST),
            origin: None,
        };
        let ids = ConnectionIds {
            local: id(local),
            peer: id(peer),
        };
        let mut config = Config::new(role, tuple(port), ids);
        // Runs of packets that are worth handing over.
        config.cc = CcKind::Fixed(500_000_000);
        config.initial_rtt = 1_000_000;
        let streams = config.recv_streams;
        let pool = BufferPool::new(1 << 20);
        let tools = {
            let pool = pool.clone();
            move || Workshop::new(pool.clone())
        };
        let crew = Crew::start(WORKERS, &[], tools, || ()).expect("threads");
        let coding = Coding::Workers(crew.join(local));
        let session = Session::new(config, Time::ZERO);
        Self {
            driver: Driver::new(session, keys, coding, role == Role::Client),
            queues: Queues::new(role, streams),
            workshop: Workshop::new(pool),
            slicer: None,
            written: 0,
            read: Vec::new(),
            end: None,
            ids: 10 * local,
            crew,
        }
    }

    /// Writes what may be on its way, of which the peer has read so much.
    fn write(&mut self, now: Time, read: usize) {
        if self.slicer.is_none() {
            self.slicer = self.queues.open_uni().map(|stream| {
                let slicer = Rc::new(RefCell::new(Slicer::new(stream)));
                (stream, HereSlicer(slicer))
            });
        }
        let Some((stream, slicer)) = &self.slicer else {
            return;
        };
        let shape = self.driver.core().block_shape(self.queues.writers());
        let most = BYTES.min(read + AHEAD_MAX);
        while self.queues.has_room(*stream) && self.written < most {
            let chunk: Vec<u8> = (self.written..most.min(self.written + 10_000))
                .map(byte)
                .collect();
            let pool = self.workshop.pool();
            let written = slicer.0.borrow_mut().write(now, &chunk, shape, pool);
            self.written += written.len;
            if written.begins {
                self.queues.watch(slicer.clone());
            }
            if let Some(piece) = written.piece {
                self.queues.push(piece);
            }
        }
    }

    fn read(&mut self, from: Role) {
        let stream = StreamId::new(from, 0);
        while let Some(chunk) = self.queues.incoming(stream).take_in_order() {
            self.read.extend_from_slice(chunk.data());
            self.queues.release(chunk.into_taken());
        }
    }

    /// Takes what has come, and sends.
    fn turn(&mut self, now: Time, from: &mut Wire, port: u16, to: &mut Wire) {
        while !self.driver.is_full() {
            let Some(mut datagram) = from.0.pop_front() else {
                break;
            };
            let origin = Origin {
                received_at: now,
                tuple: tuple(port),
                ecn: 0,
            };
            self.driver
                .handle_datagram(now, origin, &mut datagram, &mut self.workshop);
        }
        self.driver.handle_timeout(now, &mut self.workshop);
        self.driver
            .exchange(now, &mut self.queues, self.workshop.pool());
        let ids = &mut self.ids;
        let spare = || {
            *ids += 1;
            (id(*ids), None)
        };
        self.driver.supply(|| [7; 8], spare);
        self.driver.transmit(now, 256 << 10, &mut self.workshop, to);
        self.end = self.end.take().or_else(|| self.driver.poll_end());
    }
}

/// Runs in as many orders as are asked for.
fn explore(world: impl Fn() + Send + Sync + 'static) {
    let schedules = std::env::var("SPHINX_SCHEDULES").ok();
    let schedules = schedules.map_or(SCHEDULES, |text| text.parse().expect("a number"));
    let mut config = Schedule::new();
    // Coding takes more stack than shuttle gives.
    config.stack_size = 1 << 20;
    config.max_steps = shuttle::MaxSteps::None;
    let scheduler: Box<dyn Scheduler + Send> = Box::new(RandomScheduler::new(schedules));
    Runner::new(scheduler, config).run(world);
}

/// Both ends, and the wires from the one to the other.
struct World {
    ends: [End; 2],
    wires: [Wire; 2],
    now: u64,
}

impl World {
    fn new() -> Self {
        Self {
            ends: [
                End::new(Role::Client, [1, 2], 2),
                End::new(Role::Server, [2, 1], 1),
            ],
            wires: Default::default(),
            now: 0,
        }
    }

    /// Turns until then.
    fn until(&mut self, done: impl Fn(&[End; 2]) -> bool) {
        let begin = self.now;
        while !done(&self.ends) {
            let now = Time::from_nanos(self.now);
            let [client, server] = &mut self.ends;
            let [there, back] = &mut self.wires;
            client.write(now, server.read.len());
            server.write(now, client.read.len());
            client.turn(now, back, 2, there);
            server.turn(now, there, 1, back);
            client.read(Role::Server);
            server.read(Role::Client);
            self.now += TURN;
            assert!(self.now - begin < TURNS_MAX * TURN, "it hangs");
            // Workers may come further.
            thread::yield_now();
        }
    }
}

#[test]
fn every_byte_arrives_across_epochs_and_both_ends_close() {
    explore(|| {
        let mut world = World::new();
        world.until(|ends| ends.iter().all(|end| end.read.len() == BYTES));
        for end in &world.ends {
            assert!(end.read.iter().copied().eq((0..BYTES).map(byte)));
            let keys = end.driver.protection();
            assert!(keys.sealer.epoch() >= 2 && keys.opener.epoch() >= 2);
            let counters = end.driver.counters();
            assert_eq!((counters.invalid, counters.replayed), (0, 0));
            assert!(end.crew.busy_ns() > 0, "its workers did nothing");
        }
        world.ends[0].queues.close(7, "enough");
        world.until(|ends| ends.iter().all(|end| end.end.is_some()));
        assert!(matches!(
            &world.ends[1].end,
            Some(EndReason::ClosedByPeer { code: 7, .. })
        ));
    });
}

/// Nothing waits for what is elsewhere when a session closes, and what comes back is nobody's.
#[test]
fn a_session_closes_while_its_packets_are_elsewhere() {
    explore(|| {
        let mut world = World::new();
        world.until(|[_, server]| server.read.len() > BYTES / 4);
        world.ends[0].queues.close(7, "enough");
        world.until(|ends| ends.iter().all(|end| end.end.is_some()));
        assert!(matches!(
            &world.ends[1].end,
            Some(EndReason::ClosedByPeer { code: 7, .. })
        ));
    });
}
