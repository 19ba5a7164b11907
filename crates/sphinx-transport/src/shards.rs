//! Several engines behind one UDP port of a server: which one has a session, and how datagrams that arrive at another one's socket get there.
//!
//! Each engine has a socket, or queues of a card (AF_XDP, DPDK), sessions and memory of its own. A keyed hash of the connection id names the shard of a datagram, and all ids that a
//! shard makes name it. Where the kernel steers by the same hash nothing needs to be handed over but the first packets of clients whose session is to be at
//! another shard, which has fewer, and what arrives while sockets come and go.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use sphinx_driver::Origin;
use sphinx_net::Waker;
use sphinx_net::udp::Steering;
use sphinx_workers::{WORKERS_MAX, usable_cpus, workers_for};

use crate::options::Options;

/// Most shards of a server.
pub const SHARDS_MAX: usize = 64;
/// What may be on its way to a shard from all others: runs of datagrams, each of at most 64 KiB.
const HANDOVERS_MAX: usize = 256;

/// How many shards and, for each, workers a server has that was not told: what is given stays. One shard for each group of processors as large as an
/// engine and its workers; `docs/line-rate.md` says why. Of these `cpus`, or without any, of all that this process may use.
pub fn auto_shards(
    shards: Option<usize>,
    workers: Option<usize>,
    cpus: &[usize],
) -> (usize, usize) {
    let usable = match cpus {
        [] => usable_cpus().map_or(1, |cpus| cpus.len()),
        cpus => cpus.len(),
    };
    shards_for(shards, workers, usable)
}

fn shards_for(shards: Option<usize>, workers: Option<usize>, usable: usize) -> (usize, usize) {
    let workers = workers.unwrap_or_else(|| workers_for(usable / shards.unwrap_or(1).max(1)));
    let shards = shards.unwrap_or_else(|| usable / workers.saturating_add(1));
    (shards.clamp(1, SHARDS_MAX), workers)
}

/// What one of several shards is asked for: its part of the memory and of the processors, of which the first ones are the engines'.
pub(crate) fn options_of(options: &Options, shard: usize, shards: usize) -> Options {
    let cpus = &options.cpus;
    let (engines, theirs) = cpus.split_at(shards.min(cpus.len()));
    let engine = engines.iter().cycle().skip(shard).take(1);
    // There are no more, whatever was asked for.
    let workers = options.workers.min(WORKERS_MAX);
    let theirs = theirs.iter().cycle().skip(shard * workers);
    let workers = theirs.take(workers);
    Options {
        memory: options.memory / shards as u64,
        cpus: engine.chain(workers).copied().collect(),
        ..options.clone()
    }
}

/// Which shard ids are to name.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    steering: Steering,
    shard: usize,
}

impl Place {
    /// Those of all shards, in their order.
    pub(crate) fn all(steering: &Steering) -> impl Iterator<Item = Self> {
        let shards = 0..steering.shards();
        shards.map(|shard| Self {
            steering: steering.clone(),
            shard,
        })
    }

    /// Its number.
    pub(crate) fn shard(&self) -> usize {
        self.shard
    }

    /// Whether an id leads there.
    pub(crate) fn is_named_by(&self, id: [u8; 8]) -> bool {
        self.steering.of_id(id) == self.shard
    }
}

/// How many sessions each shard of a server has, as one of them sees it: new ones begin where there are fewest.
#[derive(Debug)]
pub(crate) struct Loads {
    all: Arc<[AtomicUsize]>,
    place: Place,
    told: usize,
}

impl Loads {
    /// Those of all shards, in their order.
    pub(crate) fn all(steering: &Steering) -> impl Iterator<Item = Self> {
        let all: Arc<[AtomicUsize]> = (0..steering.shards())
            .map(|_| AtomicUsize::new(0))
            .collect();
        Place::all(steering).map(move |place| Self {
            all: Arc::clone(&all),
            place,
            told: 0,
        })
    }

    /// This shard has so many sessions, unfinished handshakes among them.
    pub(crate) fn tell(&mut self, sessions: usize) {
        // What others have just placed here stays counted until it arrives.
        if std::mem::replace(&mut self.told, sessions) != sessions {
            self.all[self.place.shard].store(sessions, Ordering::Relaxed);
        }
    }

    /// Where a session is to be whose client's first packets have this id, if that is another shard: one with fewer than the `sessions` of this one.
    /// It counts there at once. What has been placed here by another shard stays.
    pub(crate) fn place_elsewhere(&self, id: [u8; 8], sessions: usize) -> Option<usize> {
        if !self.place.is_named_by(id) {
            return None;
        }
        let others = (0..self.all.len()).filter(|shard| *shard != self.place.shard);
        let counts = others.map(|shard| (self.all[shard].load(Ordering::Relaxed), shard));
        let (fewest, shard) = counts.min()?;
        (fewest < sessions).then(|| {
            self.all[shard].fetch_add(1, Ordering::Relaxed);
            shard
        })
    }
}

/// What one shard hands over to another: it arrived at the socket of the one and is for sessions of the other.
pub(crate) enum Handover {
    /// Datagrams, one after another, all of the same length but the last one.
    Datagrams {
        origin: Origin,
        stride: usize,
        payload: Vec<u8>,
    },
    /// The network says that nobody listens there. The kernel tells any socket of the port.
    Refused(SocketAddr),
}

/// One of several engines of an endpoint, as the others see it.
struct Neighbour {
    handovers: SyncSender<Handover>,
    waker: Waker,
}

/// What an engine has that is one of several.
pub(crate) struct Shard {
    place: Place,
    steered_by: &'static str,
    loads: Option<Loads>,
    /// Zero of the clock of all of them.
    base: Instant,
    handovers: Receiver<Handover>,
    /// All shards, this one among them.
    all: Arc<[Neighbour]>,
}

impl Shard {
    /// As many as `steering` knows, with the wakers of their engines; `steered_by`: what decides where a datagram arrives.
    pub(crate) fn all(
        steering: &Steering,
        wakers: Vec<Waker>,
        steered_by: &'static str,
    ) -> Vec<Self> {
        let (neighbours, handovers): (Vec<_>, Vec<_>) = wakers
            .into_iter()
            .map(|waker| {
                let (sender, receiver) = sync_channel(HANDOVERS_MAX);
                let handovers = sender;
                (Neighbour { handovers, waker }, receiver)
            })
            .unzip();
        let all: Arc<[Neighbour]> = neighbours.into();
        let base = Instant::now();
        let shards = Loads::all(steering).zip(handovers);
        let shards = shards.map(|(loads, handovers)| Self {
            place: loads.place.clone(),
            loads: Some(loads),
            steered_by,
            base,
            handovers,
            all: Arc::clone(&all),
        });
        shards.collect()
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// For what decides where sessions begin; once.
    pub(crate) fn take_loads(&mut self) -> Option<Loads> {
        self.loads.take()
    }

    pub(crate) fn base(&self) -> Instant {
        self.base
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// What decides at which socket, or queue of a card, a datagram arrives.
    pub(crate) fn steering(&self) -> &'static str {
        self.steered_by
    }

    /// The shard that a datagram belongs to, if that is another one.
    pub(crate) fn elsewhere(&self, datagram: &[u8]) -> Option<usize> {
        let shard = self.place.steering.of_datagram(datagram);
        (shard != self.place.shard).then_some(shard)
    }

    /// Hands something over; whether there was room. It is lost otherwise, as in a full socket.
    pub(crate) fn hand_over(&self, to: usize, handover: Handover) -> bool {
        let Some(neighbour) = self.all.get(to) else {
            return false;
        };
        let is_sent = neighbour.handovers.try_send(handover).is_ok();
        neighbour.waker.wake();
        is_sent
    }

    /// Tells all others.
    pub(crate) fn tell_refused(&self, remote: SocketAddr) {
        for other in (0..self.count()).filter(|other| *other != self.place.shard) {
            self.hand_over(other, Handover::Refused(remote));
        }
    }

    /// What others have handed over.
    pub(crate) fn next_handover(&self) -> Option<Handover> {
        self.handovers.try_recv().ok()
    }

    /// Lets the others look at what has changed.
    pub(crate) fn wake_others(&self) {
        for neighbour in self.all.iter() {
            neighbour.waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_fills_the_machine_and_keeps_what_was_given() {
        let auto = [1, 2, 3, 4, 8, 16, 64].map(|usable| shards_for(None, None, usable));
        let expected = [(1, 0), (2, 0), (3, 0), (1, 3), (1, 4), (3, 4), (12, 4)];
        assert_eq!(auto, expected);
        assert_eq!(shards_for(Some(2), None, 8), (2, 3));
        assert_eq!(shards_for(Some(2), None, 2), (2, 0));
        assert_eq!(shards_for(None, Some(0), 8), (8, 0));
        assert_eq!(shards_for(None, Some(9), 4), (1, 9));
        assert_eq!(shards_for(Some(0), Some(0), 4), (1, 0));
        assert_eq!(shards_for(None, Some(0), 1000), (SHARDS_MAX, 0));
        assert_eq!(shards_for(None, Some(usize::MAX), 4), (1, usize::MAX));
    }

    #[test]
    fn new_sessions_go_where_there_are_fewest() {
        let steering = Steering::new([3; 8], 3);
        let id_of = |shard| {
            let mut ids = (0..).map(u64::to_be_bytes);
            ids.find(|id| steering.of_id(*id) == shard).expect("one")
        };
        let mut loads: Vec<_> = Loads::all(&steering).collect();
        for (shard, sessions) in [5, 3, 4].into_iter().enumerate() {
            loads[shard].tell(sessions);
        }
        // Each counts where it has been sent to before it has arrived there.
        let placed: Vec<_> = (0..4)
            .map(|_| loads[0].place_elsewhere(id_of(0), 5))
            .collect();
        assert_eq!(placed, [Some(1), Some(1), Some(2), None]);
        loads[1].tell(3);
        assert_eq!(loads[0].place_elsewhere(id_of(0), 5), None, "on their way");
        loads[1].tell(2);
        assert_eq!(loads[2].place_elsewhere(id_of(2), 5), Some(1));
        assert_eq!(loads[2].place_elsewhere(id_of(0), 9), None, "placed here");
        assert_eq!(loads[1].place_elsewhere(id_of(1), 2), None);
        let one = Steering::new([3; 8], 1);
        let alone = Loads::all(&one).next().expect("one");
        assert_eq!(alone.place_elsewhere(id_of(0), 9), None);
    }

    #[test]
    fn processors_are_the_engines_first_and_then_the_workers() {
        let cpus_of = |cpus: &[usize], shards: usize, workers| {
            let options = Options {
                cpus: cpus.to_vec(),
                workers,
                memory: 60,
                ..Options::default()
            };
            let of = |shard| {
                let of = options_of(&options, shard, shards);
                assert_eq!(of.memory, 60 / shards as u64);
                of.cpus
            };
            (0..shards).map(of).collect::<Vec<_>>()
        };
        assert_eq!(cpus_of(&[4, 5, 6, 7, 8, 9], 2, 2), [[4, 6, 7], [5, 8, 9]]);
        assert_eq!(cpus_of(&[4, 5, 6], 2, 1), [[4, 6], [5, 6]]);
        assert_eq!(cpus_of(&[4, 5], 2, 3), [[4], [5]]);
        assert_eq!(cpus_of(&[4], 3, 0), [[4], [4], [4]]);
        assert_eq!(cpus_of(&[], 2, 1), [const { Vec::<usize>::new() }; 2]);
        let most = cpus_of(&[4, 5, 6], 2, usize::MAX);
        assert!(most.iter().all(|cpus| cpus.len() == 1 + WORKERS_MAX));
    }
}
