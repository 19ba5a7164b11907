//! The paths of a session: which there are, which of them work, and what each of them is for at present (`docs/protocol.md` §10.4, §10.5).

mod choice;
mod meeting;
mod policy;

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use crate::admission::Capacity;
use crate::cc::{Couple, Window};
use crate::config::{Config, Role};
use crate::demand::Demand;
use crate::ids::{LocalIds, PeerIds};
use crate::path::{PATH, Path, SACK_DELAY_MAX};
use crate::scheduler::{Duty, Scheduler};
use crate::sender::{Reach, Sender};
use crate::types::{Tuple, Urgency};
use crate::wire::{ConnectionId, Frame, PathStatus, ResetToken};
use crate::{CidSequence, Nanos, PathId, Time};

use choice::{Limiter, Thrift};
use meeting::Meeting;
pub use policy::{Bond, PathPolicy, PathRole, PathState};

/// Most paths of a session that are open at a time.
pub const PATHS_MAX: usize = 8;
/// A path whose round trip is longer than the shortest one by more than this part of it, and by more than this, is *slow*:
/// repairs take the fast ones.
const SLOW_PART: Nanos = 4;
const SLOW_MIN: Nanos = 5_000_000;
/// What faster paths carry in this time beyond a round trip is left to them of the peer's window: so much longer a loss holds up what is read.
const RESERVE_TIME: Nanos = 5_000_000;

/// What has been sent and received on a path.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) ip_bytes_sent: u64,
    pub(crate) packets_sent: u64,
    pub(crate) ip_bytes_received: u64,
    pub(crate) packets_received: u64,
}

/// A path, and what belongs to it alone.
pub(crate) struct Lane {
    pub(crate) path: Path,
    pub(crate) scheduler: Scheduler,
    pub(crate) local_ids: LocalIds,
    pub(crate) peer_ids: PeerIds,
    pub(crate) last_sent: Time,
    pub(crate) counts: Counts,
    /// Packets of this path still wait in this host for its socket: it gets no more symbols until they have left.
    pub(crate) is_held_up: bool,
    /// Its next SACK is to leave on the fastest path too, where the peer hears it sooner.
    is_untold: bool,
    /// Role, cost and limits of the path.
    policy: PathPolicy,
    /// Why it carries no data even if it works, as [`Paths::arrange`] decides; `None`: it may carry data.
    barred: Option<PathState>,
    /// Its queueing delays, from which it is found out whether it shares a bottleneck with another path ([`Couple::Auto`]).
    meeting: Option<Meeting>,
}

impl Lane {
    fn new(path: Path, (local, peer_ids): (ConnectionId, PeerIds), now: Time) -> Self {
        Self {
            local_ids: LocalIds::new(path.id(), local),
            peer_ids,
            path,
            scheduler: Scheduler::new(now),
            last_sent: now,
            counts: Counts::default(),
            is_held_up: false,
            is_untold: false,
            policy: PathPolicy::default(),
            barred: None,
            meeting: None,
        }
    }

    pub(crate) fn id(&self) -> PathId {
        self.path.id()
    }

    /// Whether the peer answers on this path.
    pub(crate) fn works(&self) -> bool {
        self.path.is_validated() && !self.path.is_suspect()
    }

    /// Role, cost and limits of the path.
    pub(crate) fn policy(&self) -> PathPolicy {
        self.policy
    }

    /// Whether the path works and may carry data.
    pub(crate) fn is_chosen(&self) -> bool {
        self.works() && self.barred.is_none()
    }
}

/// The paths of a session, of which there is one at least.
pub(crate) struct Paths {
    /// Open paths, by rising id.
    lanes: Vec<Lane>,
    /// How many paths may be open at a time.
    most: usize,
    /// Paths that are not open yet, and the connection id that this end has given out for each. One can be opened once both ends have given one out.
    ready_here: BTreeMap<PathId, ConnectionId>,
    /// The same, with the connection id that the peer has given out.
    ready_there: BTreeMap<PathId, PeerIds>,
    /// One above the highest id of a path that was opened or given up so far: ids are never used twice.
    next: u32,
    bond: Bond,
    couple: Couple,
    thrift: Thrift,
    limiter: Option<Limiter>,
    /// The newest PATH_STATUS of the client for each path: its number and what it says.
    told: BTreeMap<PathId, (u64, PathPolicy)>,
    /// The client sends PATH_STATUS for every path but the first: until it has come for a path, others are used.
    awaits_status: bool,
}

impl Paths {
    pub(crate) fn new(config: &Config, now: Time) -> Self {
        let ids = (config.local_cid, PeerIds::new(config.peer_cid));
        let mut paths = Self {
            lanes: vec![Lane::new(Path::new(config, now), ids, now)],
            most: usize::from(config.paths_max).clamp(1, PATHS_MAX),
            ready_here: BTreeMap::new(),
            ready_there: BTreeMap::new(),
            next: 1,
            bond: config.bond.unwrap_or_default(),
            // What is published, and what it is compared with, is left as it is.
            couple: match (config.sc, config.couple) {
                (Some(_), Couple::Auto) => Couple::Off,
                (_, couple) => couple,
            },
            thrift: Thrift::default(),
            limiter: None,
            told: BTreeMap::new(),
            awaits_status: config.role == Role::Server && config.bond.is_some(),
        };
        paths.set_limit(now, config.limit);
        paths.set_policy(PATH, config.policy);
        paths
    }

    pub(crate) fn len(&self) -> usize {
        self.lanes.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lanes.iter_mut()
    }

    pub(crate) fn at(&self, index: usize) -> &Lane {
        &self.lanes[index]
    }

    pub(crate) fn at_mut(&mut self, index: usize) -> &mut Lane {
        &mut self.lanes[index]
    }

    /// The index of the path among those that are open. Methods that take or give an `index`, or a path "at this place", mean this.
    pub(crate) fn index(&self, id: PathId) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.id() == id)
    }

    /// Whether there is or was a path with this id.
    pub(crate) fn has_been(&self, id: PathId) -> bool {
        id == PATH || self.most > 1 && id.get() < self.next
    }

    /// The path that packets with this connection id are of, if it may be open.
    pub(crate) fn of_cid(&self, cid: ConnectionId) -> Option<PathId> {
        if self.most == 1 {
            return Some(PATH);
        }
        let has = |lane: &&Lane| lane.local_ids.has(cid);
        if let Some(lane) = self.lanes.iter().find(has) {
            return Some(lane.id());
        }
        let mut ready = self.ready_here.iter();
        if let Some((id, _)) = ready.find(|(_, ready)| **ready == cid) {
            return Some(*id);
        }
        // Any other id is one of the handshake, which belongs to the first path.
        self.index(PATH).map(|_| PATH)
    }

    /// The main path: the one with the shortest round trip of those that work and carry data; if there is none, the best of the others.
    fn main_index(&self) -> usize {
        if self.lanes.len() == 1 {
            return 0;
        }
        let rank = |lane: &Lane| {
            let rtt = lane.path.rtt().smoothed();
            let is_barred = lane.barred.is_some();
            (
                !lane.path.is_validated(),
                lane.path.is_suspect(),
                is_barred,
                rtt,
            )
        };
        let lanes = self.lanes.iter().enumerate();
        let best = lanes.min_by_key(|(_, lane)| rank(lane));
        best.map_or(0, |(index, _)| index)
    }

    /// The working path with the shortest round trip.
    pub(crate) fn fastest(&self) -> Option<&Lane> {
        let lanes = self.lanes.iter().filter(|lane| lane.works());
        lanes.min_by_key(|lane| lane.path.rtt().smoothed())
    }

    /// The smoothed round-trip time of the fastest path that works.
    pub(crate) fn shortest_rtt(&self) -> Option<Nanos> {
        self.fastest().map(|lane| lane.path.rtt().smoothed())
    }

    pub(crate) fn main(&self) -> &Lane {
        &self.lanes[self.main_index()]
    }

    pub(crate) fn main_mut(&mut self) -> &mut Lane {
        let index = self.main_index();
        &mut self.lanes[index]
    }

    /// Indices of all open paths in the order in which packets are offered to them, best first, and how many they are.
    pub(crate) fn order(&self) -> ([usize; PATHS_MAX], usize) {
        let mut order = [0; PATHS_MAX];
        let count = self.lanes.len();
        if count > 1 {
            for (index, place) in order.iter_mut().take(count).enumerate() {
                *place = index;
            }
            order[..count].sort_by_key(|index| {
                let lane = &self.lanes[*index];
                let cost = match self.bond {
                    Bond::Cheapest => lane.policy.cost,
                    _ => 0,
                };
                let rtt = lane.path.rtt().smoothed() / u64::from(lane.policy.weight.max(1));
                (!lane.works(), lane.barred.is_some(), cost, rtt, *index)
            });
        }
        (order, count)
    }

    /// Whether any open path is validated. None may be: the validated ones may have been given up before the last one was.
    pub(crate) fn is_any_validated(&self) -> bool {
        self.lanes.iter().any(|lane| lane.path.is_validated())
    }

    /// Whether another path than this one works.
    pub(crate) fn others_work(&self, index: usize) -> bool {
        let mut lanes = self.lanes.iter().enumerate();
        lanes.any(|(other, lane)| other != index && lane.works())
    }

    /// What all paths in use carry together.
    pub(crate) fn capacity(&self) -> Capacity {
        if let [lane] = &self.lanes[..] {
            return Capacity::of(&lane.path);
        }
        let in_use = || {
            let any_works = self.lanes.iter().any(Lane::works);
            let lanes = self.lanes.iter();
            lanes.filter(move |lane| lane.is_chosen() || !any_works && lane.path.is_validated())
        };
        let copies = self.bond.copies(in_use().count()).max(1) as u64;
        let slowest = in_use().map(|lane| lane.path.rtt().smoothed()).max();
        let slowest = slowest.unwrap_or(1).max(1);
        let mut all: Option<Capacity> = None;
        for lane in in_use() {
            let mut one = Capacity::of(&lane.path);
            // What fast paths carry is not confirmed, in order, before what slow ones do.
            let times = slowest / lane.path.rtt().smoothed().max(1);
            one.cwnd = one.cwnd.saturating_mul(times.clamp(1, 64));
            all = Some(match all {
                None => one,
                Some(all) => Capacity {
                    mtu: all.mtu.min(one.mtu),
                    rate: all.rate.saturating_add(one.rate),
                    cwnd: all.cwnd.saturating_add(one.cwnd),
                    plr: all.plr.max(one.plr),
                    is_uneven: false,
                },
            });
        }
        let all = all.unwrap_or_else(|| Capacity::of(&self.main().path));
        Capacity {
            rate: all.rate / copies,
            cwnd: all.cwnd / copies,
            is_uneven: self.look_ahead(0).is_some(),
            ..all
        }
    }

    // ---- feedback ---------------------------------------------------------------------------------

    /// The path at this place tells what has arrived on it. Where faster ones repair what is lost there, it is told on the fastest too: a loss is
    /// known, and repaired, before the news of it could have come on its own path.
    pub(crate) fn note_feedback(&mut self, now: Time, index: usize) {
        if let Some(main) = self.told_on(index) {
            self.lanes[index].is_untold = true;
            self.lanes[main].path.want_sack(now);
        }
    }

    /// The index of the faster path on which SACKs of this one are repeated; `None` if they leave on their own path alone.
    pub(crate) fn told_on(&self, index: usize) -> Option<usize> {
        let is_repaired = matches!(self.bond, Bond::Aggregate | Bond::Cheapest);
        if self.lanes.len() == 1 || !is_repaired || !self.lanes[index].is_chosen() {
            return None;
        }
        self.reach(index, 0)?;
        let main = self.main_index();
        (main != index && self.lanes[main].is_chosen()).then_some(main)
    }

    /// Indices of the paths whose SACKs are to leave on this one too: none unless it is the main path.
    pub(crate) fn untold(&self, index: usize) -> impl Iterator<Item = usize> {
        let is_main = self.lanes.len() > 1 && self.main_index() == index;
        let lanes = self.lanes.iter().enumerate();
        lanes
            .filter(move |(_, lane)| is_main && lane.is_untold)
            .map(|(other, _)| other)
    }

    /// The SACK of the path at this place has left on the main path too.
    pub(crate) fn told(&mut self, index: usize) {
        self.lanes[index].is_untold = false;
    }

    /// The path at this place has heard of its packets: paths that may meet are looked at, and coupled windows grow as all of them allow.
    pub(crate) fn couple(&mut self, now: Time, at: usize) {
        if !matches!(self.couple, Couple::Lia | Couple::Olia) {
            return self.look_for_meetings(now, at);
        }
        let window = |lane: &Lane| {
            let cc = lane.path.cc();
            let between = cc.between_losses().filter(|_| lane.is_chosen())?;
            Some(Window::new(cc.cwnd(), lane.path.rtt().smoothed(), between))
        };
        let windows: Vec<Window> = self.lanes.iter().filter_map(window).collect();
        let mut gains = self.couple.gains(&windows);
        for lane in self.lanes.iter_mut().filter(|lane| window(lane).is_some()) {
            lane.path.set_gain(gains.next().unwrap_or(1.0));
        }
    }

    // ---- what each is for -------------------------------------------------------------------------

    /// If the path is slow ([`SLOW_PART`], [`SLOW_MIN`]): how far ahead of the faster ones it takes data. `room`: bytes that may be on their way in
    /// addition to what is.
    fn reach(&self, index: usize, room: u64) -> Option<Reach> {
        let lane = &self.lanes[index];
        let rtt = lane.path.rtt().smoothed();
        let (mut shortest, mut rate) = (rtt, 0_u64);
        // With [`Bond::Cheapest`] only paths that cost no more count as faster: a cheap path never waits for a dearer one.
        let is_thrifty = self.bond == Bond::Cheapest;
        let may_wait = |other: &&Lane| {
            other.is_chosen() && (!is_thrifty || other.policy.cost <= lane.policy.cost)
        };
        for other in self.lanes.iter().filter(may_wait) {
            let its = other.path.rtt().smoothed();
            if its < rtt {
                shortest = shortest.min(its);
                rate = rate.saturating_add(other.path.cc().bandwidth_estimate());
            }
        }
        let lag = rtt - shortest;
        if lag <= (shortest / SLOW_PART).max(SLOW_MIN) {
            return None;
        }
        let reserve = u128::from(rate) * u128::from(shortest + RESERVE_TIME) / 1_000_000_000;
        Some(Reach {
            lag,
            repair: shortest + SACK_DELAY_MAX,
            plr: lane.path.monitor().plr(),
            symbol: u64::from(lane.path.mtu()),
            faster: rate,
            own: lane.path.cc().bandwidth_estimate(),
            reserve: u64::try_from(reserve).unwrap_or(u64::MAX),
            room,
            is_behind: false,
        })
    }

    /// How many bytes the application has to hand over ahead of sending so that slow paths find data far enough back in the queue, with blocks of
    /// `block` bytes; `None`: no path is slow.
    pub(crate) fn look_ahead(&self, block: u64) -> Option<u64> {
        if self.lanes.len() == 1 || matches!(self.bond, Bond::Redundant { .. }) {
            return None;
        }
        let chosen = (0..self.lanes.len()).filter(|index| self.lanes[*index].is_chosen());
        let reaches = chosen.filter_map(|index| self.reach(index, 0));
        reaches.map(|reach| reach.bytes(block)).max()
    }

    /// What the path is for at present; `room`: what may be on its way beside what is, bytes.
    pub(crate) fn duty(&self, index: usize, sender: &Sender, demand: &Demand, room: u64) -> Duty {
        let lane = &self.lanes[index];
        if !lane.path.is_validated() {
            return Duty::Validation;
        }
        if self.lanes.len() == 1 {
            return Duty::All;
        }
        if lane.path.is_suspect() {
            return match self.others_work(index) {
                true => Duty::Probes,
                false => Duty::All,
            };
        }
        if lane.barred.is_some() {
            return Duty::Standby;
        }
        if matches!(self.bond, Bond::Redundant { .. }) {
            // Every symbol leaves on several paths, so that none is waited for because it left on a slow one.
            return Duty::All;
        }
        if self.is_spared(index, sender, demand) {
            return Duty::Rest;
        }
        let Some(mut reach) = self.reach(index, room) else {
            return Duty::All;
        };
        // A slow path takes unordered data only if more is queued than faster paths can send until its packets arrive.
        let unsent = sender.blocks().unsent_before(Urgency::LEAST) + sender.waiting().bytes();
        let left = match demand.backlog() {
            true => sender.streams().credit_left().saturating_add(unsent),
            false => unsent,
        };
        reach.is_behind = reach.bytes(0) < left;
        match sender.has_ahead(lane.id(), &reach) {
            true => Duty::Ahead(reach),
            false => Duty::Rest,
        }
    }

    /// What the path is doing.
    pub(crate) fn state(&self, index: usize, sender: &Sender, demand: &Demand) -> PathState {
        let lane = &self.lanes[index];
        match self.duty(index, sender, demand, u64::MAX) {
            Duty::Validation => PathState::Validating,
            Duty::All | Duty::Ahead(_) if lane.path.is_suspect() => PathState::Suspect,
            Duty::All | Duty::Ahead(_) => PathState::Working,
            Duty::Rest if self.is_spared(index, sender, demand) => PathState::Dear,
            Duty::Rest => PathState::Resting,
            Duty::Standby => lane.barred.unwrap_or(PathState::Standby),
            Duty::Probes => PathState::Suspect,
        }
    }

    /// The index of the path on which the `copy`-th CLOSE leaves: paths that work take turns.
    pub(crate) fn for_close(&self, copy: usize) -> usize {
        let (order, count) = self.order();
        let works = |at: &&usize| self.lanes[**at].works();
        let count = order[..count].iter().take_while(works).count().max(1);
        order[copy % count]
    }

    /// The largest of the paths' minimum round-trip times.
    pub(crate) fn slowest_rtt(&self) -> Nanos {
        let rtts = self.lanes.iter().map(|lane| lane.path.rtt().min());
        rtts.max().unwrap_or(0)
    }

    /// Whether both ends allow several paths.
    pub(crate) fn may_be_several(&self) -> bool {
        self.most > 1
    }

    // ---- opening and abandoning ------------------------------------------------------------------

    /// Paths that may still be opened.
    fn to_come(&self) -> usize {
        self.most - self.lanes.len()
    }

    /// How many connection ids of this end are wanted.
    pub(crate) fn ids_wanted(&self) -> usize {
        let spare: usize = self.lanes.iter().map(|lane| lane.local_ids.wanted()).sum();
        spare + self.to_come().saturating_sub(self.ready_here.len())
    }

    /// A connection id of this end: what the peer is told.
    pub(crate) fn add_id(&mut self, cid: ConnectionId) -> Option<Frame<'static>> {
        let mut lanes = self.lanes.iter_mut();
        if let Some(lane) = lanes.find(|lane| lane.local_ids.wanted() > 0) {
            return lane.local_ids.add(cid);
        }
        if self.ready_here.len() >= self.to_come() {
            // The id becomes a spare one of the first path.
            return self.lanes[0].local_ids.add(cid);
        }
        let newest = self.ready_here.last_key_value().map(|(id, _)| id.get() + 1);
        let path = PathId::new(newest.unwrap_or(self.next).max(self.next));
        self.ready_here.insert(path, cid);
        Some(Frame::NewConnectionId {
            path,
            sequence: CidSequence::ZERO,
            cid,
        })
    }

    /// The peer gives an id out. `false`: for a path that cannot be.
    pub(crate) fn offer(&mut self, path: PathId, sequence: CidSequence, cid: ConnectionId) -> bool {
        if let Some(index) = self.index(path) {
            self.lanes[index].peer_ids.offer(sequence, cid);
            return true;
        }
        // One that this end has given out itself was never open, whatever has been opened since.
        if self.has_been(path) && !self.is_ready(path) {
            return true;
        }
        if self.most == 1 {
            return false;
        }
        if let Some(ids) = self.ready_there.get_mut(&path) {
            // The peer has opened it, and they have overtaken the first packet of a longer path: they are told once.
            ids.offer(sequence, cid);
        } else if sequence == CidSequence::ZERO && self.ready_there.len() < PATHS_MAX {
            self.ready_there.insert(path, PeerIds::new(cid));
        }
        true
    }

    /// The peer says what it shows if it knows nothing any more of the session that this id of a path is of.
    pub(crate) fn tell(&mut self, path: PathId, sequence: CidSequence, token: ResetToken) {
        let open = self.lanes.iter_mut().find(|lane| lane.id() == path);
        let ids = match open {
            Some(lane) => Some(&mut lane.peer_ids),
            None => self.ready_there.get_mut(&path),
        };
        if let Some(ids) = ids {
            ids.tell(sequence, token);
        }
    }

    /// Whether a path with this id may be opened.
    pub(crate) fn is_ready(&self, id: PathId) -> bool {
        self.ready_here.contains_key(&id)
    }

    /// A path that was prepared and not opened is given up: the connection id that this end had given out for it.
    pub(crate) fn take_back(&mut self, id: PathId) -> Option<ConnectionId> {
        let here = self.ready_here.remove(&id)?;
        self.ready_there.remove(&id);
        self.told.remove(&id);
        self.next = self.next.max(id.get() + 1);
        Some(here)
    }

    /// Opens the next path, on which packets travel between these addresses. `None`: there is no room for one, or not yet.
    pub(crate) fn open(&mut self, now: Time, tuple: Tuple, policy: PathPolicy) -> Option<PathId> {
        let mut ready = self.ready_here.keys();
        let id = *ready.find(|id| self.ready_there.contains_key(id))?;
        if !self.begin(now, id, tuple, true) {
            return None;
        }
        self.set_policy(id, policy);
        Some(id)
    }

    /// The peer has opened a path: a packet of it has been authenticated. Returns whether it is open now; `false` if there was no room for it.
    pub(crate) fn opened_by_peer(&mut self, now: Time, id: PathId, tuple: Tuple) -> bool {
        let policy = self.told.get(&id).map(|(_, policy)| *policy);
        let begins = self.begin(now, id, tuple, false);
        if begins {
            self.set_policy(id, policy.unwrap_or_default());
        }
        begins
    }

    /// PATH_STATUS: the client says what a path is to be used for. `false` if there never was such a path, which breaks the protocol.
    pub(crate) fn on_status(&mut self, status: &PathStatus) -> bool {
        let id = status.path;
        if self.index(id).is_none() && !self.is_ready(id) {
            return self.has_been(id);
        }
        let policy = PathPolicy {
            role: status.role,
            cost: status.cost,
            limit: NonZeroU64::new(status.limit),
            ..PathPolicy::default()
        };
        let known = self.told.get(&id);
        if known.is_none_or(|(number, _)| status.number > *number) {
            self.told.insert(id, (status.number, policy));
            self.set_policy(id, policy);
        }
        true
    }

    /// MAX_PATHS: the peer allows this many open paths. A smaller number than before changes nothing.
    pub(crate) fn allow(&mut self, paths: u8) {
        if self.may_be_several() {
            self.most = self.most.max(usize::from(paths).min(PATHS_MAX));
        }
    }

    fn begin(&mut self, now: Time, id: PathId, tuple: Tuple, chosen: bool) -> bool {
        if self.to_come() == 0 || !self.ready_there.contains_key(&id) {
            return false;
        }
        let main = self.main_index();
        let Some(random) = self.lanes[main].path.take_random() else {
            return false;
        };
        let (Some(here), Some(there)) = (self.ready_here.remove(&id), self.ready_there.remove(&id))
        else {
            return false;
        };
        let main = &self.lanes[main].path;
        let path = main.further(id, tuple, now, random, chosen);
        self.next = self.next.max(id.get() + 1);
        self.lanes.push(Lane::new(path, (here, there), now));
        self.lanes.sort_by_key(Lane::id);
        self.arrange();
        true
    }

    /// Removes an open path and returns it; `None` if it is not open, or the only one.
    pub(crate) fn remove(&mut self, id: PathId) -> Option<Lane> {
        let index = self.index(id).filter(|_| self.lanes.len() > 1)?;
        let lane = self.lanes.remove(index);
        self.told.remove(&id);
        self.thrift.forget(lane.counts.ip_bytes_sent);
        self.end_meetings(id);
        self.arrange();
        Some(lane)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::config::ConnectionIds;
    use crate::time::time;

    const SECOND: PathId = PathId::new(1);
    const THIRD: PathId = PathId::new(2);

    fn cid(n: u8) -> ConnectionId {
        ConnectionId::new([n; 8]).expect("not zero")
    }

    fn tuple() -> Tuple {
        Tuple {
            remote: SocketAddr::from(([10, 0, 0, 1], 1)),
            local_ip: None,
        }
    }

    /// Gives out all the ids that are wanted: for which paths.
    fn give_out(paths: &mut Paths) -> Vec<PathId> {
        let mut given = Vec::new();
        while paths.ids_wanted() > 0 {
            let frame = paths.add_id(cid(100 + given.len() as u8));
            let Some(Frame::NewConnectionId { path, sequence, .. }) = frame else {
                panic!("{frame:?}");
            };
            given.extend((sequence == CidSequence::ZERO).then_some(path));
        }
        given
    }

    /// Paths of a session that allows three: the first is open, two are still to be opened.
    fn three() -> Paths {
        let ids = ConnectionIds {
            local: cid(1),
            peer: cid(2),
        };
        let mut config = Config::new(Role::Client, tuple(), ids);
        config.paths_max = 3;
        let mut paths = Paths::new(&config, time(0));
        assert_eq!(give_out(&mut paths), [SECOND, THIRD]);
        paths
    }

    /// The peer gives its id out for a path, and the next one is opened.
    fn offered(paths: &mut Paths, path: PathId) -> Option<PathId> {
        assert!(paths.offer(path, CidSequence::ZERO, cid(50)));
        opened(paths)
    }

    fn opened(paths: &mut Paths) -> Option<PathId> {
        for n in 1.. {
            if paths.main().path.random_wanted() == 0 {
                break;
            }
            paths.main_mut().path.add_random([n; 8]);
        }
        paths.open(time(0), tuple(), PathPolicy::default())
    }

    /// What tells of an id may be lost, and be sent again when a later path is open.
    #[test]
    fn an_id_that_comes_late_is_as_good_as_others() {
        let mut paths = three();
        assert_eq!(offered(&mut paths, THIRD), Some(THIRD));
        assert_eq!(offered(&mut paths, SECOND), Some(SECOND));
        let ids = paths.iter().map(Lane::id);
        assert_eq!(ids.collect::<Vec<_>>(), [PATH, SECOND, THIRD]);
        // No path is opened twice.
        assert!(paths.remove(SECOND).is_some());
        assert_eq!(offered(&mut paths, SECOND), None);
        assert_eq!(give_out(&mut paths), [PathId::new(3)]);
        assert_eq!(opened(&mut paths), None);
        assert_eq!(offered(&mut paths, PathId::new(3)), Some(PathId::new(3)));
    }

    /// As of all ids, so of those of paths that are not open yet.
    #[test]
    fn a_path_begins_with_what_was_said_of_its_first_id() {
        let token = |n| ResetToken::new([n; ResetToken::LEN]);
        let mut paths = three();
        // Before the id itself.
        paths.tell(SECOND, CidSequence::ZERO, token(1));
        assert!(paths.offer(SECOND, CidSequence::ZERO, cid(50)));
        paths.tell(SECOND, CidSequence::ZERO, token(2));
        paths.tell(SECOND, CidSequence::new(1), token(3));
        assert_eq!(opened(&mut paths), Some(SECOND));
        let tokens = paths.iter().map(|lane| lane.peer_ids.token().copied());
        assert_eq!(tokens.collect::<Vec<_>>(), [None, Some(token(2))]);
    }

    /// However much the first path has sent, which keeps within the limit by itself: 23 days at the limit.
    #[test]
    fn the_limit_of_all_begins_with_the_second_path() {
        const SECONDS: u64 = 2_000_000;
        const LIMIT: u64 = 1_000_000;
        let mut paths = three();
        paths.set_limit(time(0), Some(LIMIT));
        paths.spend(SECONDS * LIMIT);
        assert_eq!(offered(&mut paths, SECOND), Some(SECOND));
        let now = time(SECONDS * 1_000_000_000);
        assert!(paths.within_limit(now));
        // With two paths open, the bytes of both count.
        paths.spend(LIMIT);
        assert!(!paths.within_limit(now) && paths.limit_opens() > Some(now));
    }

    /// One end must not take for no limit what is hardly anything at the other one.
    #[test]
    fn the_least_limit_is_one_byte_a_second() {
        const SEC: Nanos = 1_000_000_000;
        let mut paths = three();
        assert_eq!(offered(&mut paths, SECOND), Some(SECOND));
        for (number, limit) in [(1, 1), (2, 0), (3, u64::MAX)] {
            let told = PathStatus {
                path: SECOND,
                number,
                role: PathRole::Primary,
                cost: 0,
                limit,
            };
            assert!(paths.on_status(&told));
            let policy = paths.policy(SECOND).expect("open");
            assert_eq!(policy.limit.map_or(0, NonZeroU64::get), limit);
        }
        // The limit of all paths together is not told to the peer.
        paths.set_limit(time(0), Some(0));
        paths.spend(3_100);
        assert!(!paths.within_limit(time(SEC)));
        assert!(paths.within_limit(time(200 * SEC)));
    }

    #[test]
    fn a_path_that_is_taken_back_is_replaced() {
        let mut paths = three();
        assert!(paths.offer(SECOND, CidSequence::ZERO, cid(50)));
        assert!(paths.take_back(SECOND).is_some());
        assert!(!paths.is_ready(SECOND) && paths.has_been(SECOND));
        assert_eq!(paths.take_back(SECOND), None);
        assert_eq!(offered(&mut paths, SECOND), None);
        assert_eq!(give_out(&mut paths), [PathId::new(3)]);
        assert_eq!(offered(&mut paths, THIRD), Some(THIRD));
    }

    /// What tells of them leaves on another path than the first packet of theirs, which may take longer, and is not sent again.
    #[test]
    fn spare_ids_may_be_there_before_their_path() {
        let mut paths = three();
        let offer = |paths: &mut Paths, n: u8| {
            let sequence = CidSequence::new(u64::from(n));
            assert!(paths.offer(SECOND, sequence, cid(50 + n)));
        };
        offer(&mut paths, 1);
        (0..3).for_each(|n| offer(&mut paths, n));
        assert_eq!(opened(&mut paths), Some(SECOND));
        let index = paths.index(SECOND).expect("open");
        let ids = &mut paths.at_mut(index).peer_ids;
        for n in 0..3 {
            assert_eq!(ids.current(), cid(50 + n));
            ids.change();
        }
    }

    /// The sum over the paths lacks what a removed path had carried.
    #[test]
    fn costs_are_weighed_behind_a_path_that_is_gone() {
        let mut paths = three();
        paths.set_bond(Bond::Cheapest);
        for (path, cost) in [(SECOND, 1), (THIRD, 2)] {
            assert_eq!(offered(&mut paths, path), Some(path));
            let policy = PathPolicy {
                cost,
                ..PathPolicy::default()
            };
            paths.set_policy(path, policy);
            let index = paths.index(path).expect("open");
            paths.at_mut(index).counts.ip_bytes_sent = 1_000_000;
        }
        // More waits than the cheapest one carries.
        let sec = 1_000_000_000;
        for at in [0, sec] {
            paths.weigh_costs(time(at), true);
        }
        assert!(paths.remove(THIRD).is_some());
        paths.weigh_costs(time(3 * sec), false);
    }
}
