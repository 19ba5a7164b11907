//! The thread that drives the two directions.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
    time::{ClockId, clock_gettime},
};
use sphinx_netdev::tun::serve_in_time;

use super::{
    FrontCounters, Inside, Lateness, Observer, Side, Stage,
    pool::{Pool, PooledPacket},
    port::Port,
};
use crate::{Link, LinkConfig, Pair, Record, Time, nanos};

/// Most packets read from one interface before others have their turn.
const BATCH: usize = 32;
/// Rest after a round with packets. It bounds the rounds per second, and so the CPU time, at the
/// price of so much delay; what comes meanwhile is handled together.
const REST: Duration = Duration::from_micros(40);
/// Most time between two publications of the counters while packets flow.
const PUBLISH_NS: Time = 1_000_000;
/// Between two looks at an interface that has been turned off, and may be gone.
const OFF_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The sides of the interfaces.
const SIDES: [Side; 2] = [Side::Left, Side::Right];

/// What the thread and its owner share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Set after a change of the orders in `state`.
    ordered: AtomicBool,
    /// Interrupts the thread's sleep, after `ordered` has been set.
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    counters: FrontCounters,
    records: [Vec<Record>; 2],
    stop: bool,
    reconfigure: [Option<LinkConfig>; 2],
}

impl Shared {
    pub(super) fn new() -> io::Result<Shared> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Shared {
            state: Mutex::default(),
            ordered: AtomicBool::new(false),
            wake,
        })
    }

    pub(super) fn counters(&self) -> FrontCounters {
        self.lock().counters.clone()
    }

    pub(super) fn take_records(&self, direction: usize, into: &mut Vec<Record>) {
        into.append(&mut self.lock().records[direction]);
    }

    pub(super) fn reconfigure(&self, direction: usize, config: LinkConfig) {
        self.order(|state| state.reconfigure[direction] = Some(config));
    }

    pub(super) fn stop(&self) {
        self.order(|state| state.stop = true);
    }

    fn order(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        // The flag is set first: the wake-up may let the other thread run before this one, and it has to find the flag.
        self.ordered.store(true, Ordering::Release);
        // Fails only if 2^64 - 2 wake-ups are pending already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is valid after every single change, even one that was followed by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an engine works with.
pub(super) struct Setup {
    pub(super) interfaces: [Port; 2],
    pub(super) links: [LinkConfig; 2],
    /// Bytes in front of the IP header.
    pub(super) header: usize,
    pub(super) mtu: usize,
    /// Time 0 of the links.
    pub(super) start: Instant,
    pub(super) observer: Option<Box<dyn Observer>>,
    pub(super) stage: Option<Box<dyn Stage>>,
}

/// The thread's own state. Direction 0 goes from interface 0 to interface 1, direction 1 back.
pub(super) struct Engine {
    interfaces: [Port; 2],
    links: Pair<PooledPacket>,
    pool: Pool,
    /// Packets that were received and not handed to a link yet; empty between rounds.
    arrived: Vec<PooledPacket>,
    shared: Arc<Shared>,
    start: Instant,
    observer: Option<Box<dyn Observer>>,
    stage: Option<Box<dyn Stage>>,
    lateness: Lateness,
    ignored: u64,
    refused: u64,
    /// Since when the counters differ from the published ones.
    unpublished_since: Option<Time>,
}

impl Engine {
    /// To be called by the thread that will run it.
    pub(super) fn new(setup: Setup, shared: Arc<Shared>) -> io::Result<Engine> {
        Ok(Engine {
            interfaces: setup.interfaces,
            links: Pair::new(setup.links).map_err(io::Error::other)?,
            pool: Pool::new(setup.header, setup.mtu),
            arrived: Vec::new(),
            shared,
            start: setup.start,
            observer: setup.observer,
            stage: setup.stage,
            lateness: Lateness::default(),
            ignored: 0,
            refused: 0,
            unpublished_since: None,
        })
    }

    /// Runs until told to stop, or an interface is gone.
    pub(super) fn run(mut self) -> io::Result<()> {
        // Best effort: without the right to real-time priority packets may be late, which is measured.
        let _ = serve_in_time();
        loop {
            if self.shared.ordered.swap(false, Ordering::Acquire) && self.obey()? {
                self.publish();
                return Ok(());
            }
            let mut most = 0;
            for direction in [0, 1] {
                most = most
                    .max(self.receive(direction)?)
                    .max(self.deliver(direction));
            }
            let now = self.now();
            self.serve_stage(now);
            if most > 0 {
                self.unpublished_since.get_or_insert(now);
            }
            if self
                .unpublished_since
                .is_some_and(|since| now - since >= PUBLISH_NS)
            {
                self.publish();
            }
            match most {
                0 => self.sleep(now)?,
                BATCH.. => {}
                _ => std::thread::sleep(REST),
            }
        }
    }

    fn now(&self) -> Time {
        nanos(self.start.elapsed())
    }

    /// Takes what an interface has, up to a batch, and returns how much that was. Without the interface there is no link.
    fn receive(&mut self, direction: usize) -> io::Result<usize> {
        for count in 0..BATCH {
            let mut arrived = std::mem::take(&mut self.arrived);
            let result = self.interfaces[direction].receive(&self.pool, &mut arrived);
            for packet in arrived.drain(..) {
                self.enter(direction, packet);
            }
            self.arrived = arrived;
            match result {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
                Err(_) => {
                    self.refused += 1;
                    return Ok(count + 1);
                }
            }
        }
        Ok(BATCH)
    }

    /// A packet has come.
    fn enter(&mut self, direction: usize, mut packet: PooledPacket) {
        if !self.interfaces[direction].is_for_the_link(&packet) {
            self.ignored += 1;
            let other = &self.interfaces[1 - direction];
            if other.passes_all() && other.send(&packet).is_err() {
                self.refused += 1;
            }
            return;
        }
        packet.cut_padding();
        let now = self.now();
        if let Some(observer) = &mut self.observer {
            observer.packet(SIDES[direction], now, packet.bytes());
        }
        match &mut self.stage {
            Some(stage) if direction == 0 => {
                stage.packet(Side::Left, now, packet.bytes());
                self.drain_stage(now);
            }
            _ => self.links.enqueue(now, direction, packet),
        }
    }

    /// Lets the stage do what is due.
    fn serve_stage(&mut self, now: Time) {
        if let Some(stage) = &mut self.stage
            && stage.next_timeout().is_some_and(|at| at <= now)
        {
            stage.timeout(now);
            self.drain_stage(now);
        }
    }

    /// What the stage lets go on goes on.
    fn drain_stage(&mut self, now: Time) {
        let Some(stage) = &mut self.stage else { return };
        stage.drain(&mut |to, packet| {
            let Some(packet) = self.pool.copy(packet) else {
                self.refused += 1;
                return;
            };
            match to {
                Side::Right => self.links.enqueue(now, 0, packet),
                Side::Left => {
                    if let Some(observer) = &mut self.observer {
                        observer.packet(Side::Left, now, packet.bytes());
                    }
                    self.refused += u64::from(self.interfaces[0].send(&packet).is_err());
                }
            }
        });
    }

    /// Delivers what is due, up to a batch, and returns how much that was.
    fn deliver(&mut self, direction: usize) -> usize {
        for count in 0..BATCH {
            let now = self.now();
            let Some(delivery) = self.links.poll(now, direction) else {
                return count;
            };
            self.lateness.add(now - delivery.at);
            if direction == 1
                && let Some(stage) = &mut self.stage
            {
                stage.packet(Side::Right, now, delivery.packet.bytes());
                self.drain_stage(now);
                continue;
            }
            if let Some(observer) = &mut self.observer {
                observer.packet(SIDES[1 - direction], now, delivery.packet.bytes());
            }
            if self.interfaces[1 - direction]
                .send(&delivery.packet)
                .is_err()
            {
                self.refused += 1;
            }
        }
        BATCH
    }

    /// Waits for a packet, an order, or the next event of a link.
    fn sleep(&mut self, now: Time) -> io::Result<()> {
        let stage = self.stage.as_ref().and_then(|stage| stage.next_timeout());
        let event = self.links.next_event().into_iter().chain(stage).min();
        let timeout = event.map(|event| Duration::from_nanos(event.saturating_sub(now)));
        let soon = [
            (self.unpublished_since.is_some()).then_some(Duration::from_nanos(PUBLISH_NS)),
            self.interfaces
                .iter()
                .any(Port::is_off)
                .then_some(OFF_POLL_INTERVAL),
        ];
        let timeout = soon.into_iter().flatten().chain(timeout).min();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut files = [
            PollFd::new(&self.interfaces[0], PollFlags::IN),
            PollFd::new(&self.interfaces[1], PollFlags::IN),
            PollFd::new(&self.shared.wake, PollFlags::IN),
        ];
        match poll(&mut files, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !files[2].revents().is_empty() {
            // Empties the counter of wake-ups, whose orders may have been carried out already.
            let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
        }
        Ok(())
    }

    /// Carries out orders; returns true if one was to stop.
    fn obey(&mut self) -> io::Result<bool> {
        let (stop, reconfigure) = {
            let mut state = self.shared.lock();
            (state.stop, std::mem::take(&mut state.reconfigure))
        };
        let now = self.now();
        for (direction, config) in reconfigure.into_iter().enumerate() {
            if let Some(config) = config {
                let changed = self.links.reconfigure(now, direction, config);
                changed.map_err(io::Error::other)?;
            }
        }
        Ok(stop)
    }

    fn publish(&mut self) {
        self.unpublished_since = None;
        if let Some(observer) = &mut self.observer {
            observer.pause();
        }
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let mut state = self.shared.lock();
        for (link, records) in self.links.links_mut().iter_mut().zip(&mut state.records) {
            if records.len() < link.config().records {
                link.take_records(records);
            }
        }
        let [forward, back] = [0, 1].map(|direction| self.links.link(direction));
        state.counters = FrontCounters {
            left_to_right: *forward.counters(),
            right_to_left: *back.counters(),
            left_to_right_inside: inside(forward),
            right_to_left_inside: inside(back),
            left_to_right_wait_p95: forward.waits().quantile(0.95),
            lateness: self.lateness.clone(),
            cpu: Duration::try_from(cpu).unwrap_or_default(),
            ignored: self.ignored,
            refused: self.refused,
            records_missed: forward.records_missed() + back.records_missed(),
        };
    }
}

fn inside(link: &Link<PooledPacket>) -> Inside {
    Inside {
        queue_bytes: link.queue_bytes(),
        packets: link.packets_inside(),
    }
}
