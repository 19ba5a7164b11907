//! What a session does with its paths as a whole: opening and abandoning them, and what is due on each (`docs/protocol.md` §10.4).

use super::{Life, Session};
use crate::admission::Capacity;
use crate::paths::{Lane, PathPolicy};
use crate::scheduler::Duty;
use crate::sender::{Carriage, Company};
use crate::types::{Event, PacketMeta, PathNews, PathStats, Tuple};
use crate::wire::{ConnectionId, Frame, Header};
use crate::{CidSequence, Nanos, PacketNumber, PathId, Time};

/// A block that waits gets its place in the peer's window when it would leave within this time,
/// nanoseconds, or is among the next so many bytes.
const SOON: Nanos = 2_000_000;
const SOON_MIN: u64 = 4 * 1024;

impl Session {
    /// The path that packets with this connection id are of; `None` for one that is no more.
    #[inline]
    pub fn path_of_cid(&self, cid: ConnectionId) -> Option<PathId> {
        self.paths.of_cid(cid)
    }

    /// Whether the path is open, or may be opened.
    #[inline]
    pub fn has_path(&self, path: PathId) -> bool {
        self.paths.index(path).is_some() || self.paths.is_ready(path)
    }

    /// Whether both ends allow more than one path.
    pub fn may_have_several_paths(&self) -> bool {
        self.paths.may_be_several()
    }

    /// Opens another path, on which packets travel between these addresses; `None` while there is no room for one, or its connection
    /// ids are not there yet. Nothing but challenges leaves on it until the [peer has answered](Event::Path).
    pub fn open_path(&mut self, now: Time, tuple: Tuple, policy: PathPolicy) -> Option<PathId> {
        if !matches!(self.life, Life::Open) {
            return None;
        }
        let path = self.paths.open(now, tuple, policy)?;
        self.say_status(path);
        Some(path)
    }

    /// Gives a path up, unless it is not open or the last one on which the peer has answered: what is on its way there counts as lost. Whether it was.
    pub fn abandon_path(&mut self, now: Time, path: PathId) -> bool {
        let remains = |lane: &Lane| lane.id() != path && lane.path.is_validated();
        let may_go = self.paths.iter().any(remains);
        matches!(self.life, Life::Open) && may_go && self.drop_path(now, path, PathNews::Abandoned)
    }

    /// Holds up those of several paths for which `is_so` holds, as their sockets have not sent what
    /// they were given: until the next call they get no symbols, and other paths carry them.
    /// [`poll_timeout`](Self::poll_timeout) does not heed it, so that whoever has said so asks
    /// again soon.
    pub fn hold_up(&mut self, is_so: impl Fn(PathId, &Tuple) -> bool) {
        let are_several = self.paths.len() > 1;
        for lane in self.paths.iter_mut() {
            lane.is_held_up = are_several && is_so(lane.id(), &lane.path.tuple());
        }
    }

    /// Counters and estimates of the open paths.
    pub fn path_stats(&self) -> Vec<PathStats> {
        let stats = self.paths.iter().enumerate().map(|(at, lane)| PathStats {
            id: lane.id().get(),
            tuple: lane.path.tuple(),
            state: self.paths.state(at, &self.sender, &self.demand),
            policy: lane.policy(),
            rtt: lane.path.rtt().smoothed(),
            min_rtt: lane.path.rtt().min(),
            plr: lane.path.monitor().plr(),
            pacing_rate: lane.path.cc().pacing_rate(),
            datagram_len: lane.path.mtu(),
            ip_bytes_sent: lane.counts.ip_bytes_sent,
            packets_sent: lane.counts.packets_sent,
            ip_bytes_received: lane.counts.ip_bytes_received,
            packets_received: lane.counts.packets_received,
        });
        stats.collect()
    }

    /// The place of a packet's path among the open ones. If the path is not open yet and may be,
    /// the packet opens it.
    pub(super) fn path_of(&mut self, meta: &PacketMeta, header: &Header) -> Option<usize> {
        let id = self.paths.of_cid(header.cid)?;
        if let Some(at) = self.paths.index(id) {
            return Some(at);
        }
        let may_open = matches!(self.life, Life::Open);
        if !may_open || !self.paths.opened_by_peer(meta.now, id, meta.tuple) {
            return None;
        }
        self.paths.index(id)
    }

    /// The peer has answered a challenge on the path at this place.
    pub(super) fn answered(&mut self, meta: &PacketMeta, at: usize, data: [u8; 8]) {
        let path = &mut self.paths.at_mut(at).path;
        let was_validated = path.is_validated();
        if !path.on_response(meta.now, meta.tuple, data) {
            return;
        }
        if was_validated {
            self.moved(at);
        } else {
            self.events
                .push_back(Event::Path(path.id(), PathNews::Opened));
            self.paths.arrange();
            if self.config.quiet {
                // The round trip so far is measured from the first challenge, however many were
                // lost, and may be far too long: the path would seem too slow to carry anything. In
                // a quiet session nothing may leave for long that would measure it anew, so a PING
                // does.
                self.paths.at_mut(at).scheduler.ping();
            }
        }
    }

    /// Closes the path, and tells the peer, which may not know. Returns whether it was open.
    pub(super) fn drop_path(&mut self, now: Time, id: PathId, news: PathNews) -> bool {
        let Some(at) = self.paths.index(id) else {
            return false;
        };
        self.drop_all_copies(now, at);
        let lane = self.paths.at_mut(at);
        let mut carriage = Carriage {
            path: id,
            horizon: lane.path.horizon(now),
            sender: &mut self.sender,
            control: &mut self.control_queue,
        };
        lane.path.give_up_flight(now, &mut carriage);
        if let Some(sc) = self.sender.sc_mut() {
            sc.on_path_gone(id);
        }
        let Some(lane) = self.paths.remove(id) else {
            return false;
        };
        for (sequence, cid) in lane.local_ids.all() {
            self.control_queue.cancel(&Frame::NewConnectionId {
                path: id,
                sequence,
                cid,
            });
            // The id of the handshake stays: the driver knows the session by it.
            if cid != self.config.local_cid {
                self.events.push_back(Event::ConnectionIdRetired(cid));
            }
        }
        self.control_queue.push(&Frame::PathAbandon { path: id });
        self.events.push_back(Event::Path(id, news));
        true
    }

    /// The peer has given up a path of which nothing has arrived here: it will not be opened.
    pub(super) fn take_back(&mut self, id: PathId) {
        if let Some(cid) = self.paths.take_back(id) {
            self.control_queue.cancel(&Frame::NewConnectionId {
                path: id,
                sequence: CidSequence::ZERO,
                cid,
            });
            self.events.push_back(Event::ConnectionIdRetired(cid));
            self.events.push_back(Event::Path(id, PathNews::Abandoned));
        }
    }

    /// The number that orders credit and windows by time: that of the packet. Where there may be
    /// several paths, which number packets on their own, windows never shrink, so that order does
    /// not matter.
    pub(super) fn credit_number(&self, meta: &PacketMeta) -> PacketNumber {
        match self.paths.may_be_several() {
            true => PacketNumber::MAX,
            false => meta.packet_number,
        }
    }

    // ---- blocks that wait for room ----------------------------------------------------------------

    /// How many more bytes may be on their way.
    fn room_left(&self) -> u64 {
        match self.sender.waiting().is_empty() {
            true => u64::MAX,
            false => self
                .admission
                .room_left(&self.sender, self.paths.capacity()),
        }
    }

    /// Gives blocks that wait their places in the peer's window, in their turn and no earlier than
    /// paths need it. Returns how many more bytes may be on their way after that.
    pub(super) fn open_waiting(&mut self, capacity: Option<Capacity>) -> u64 {
        let paths = &self.paths;
        self.sender
            .carry_only_on(|path| paths.index(path).is_some_and(|at| paths.at(at).is_chosen()));
        if self.sender.waiting().is_empty() {
            return u64::MAX;
        }
        let capacity = capacity.unwrap_or_else(|| self.paths.capacity());
        let soon = u128::from(capacity.rate) * u128::from(SOON) / 1_000_000_000;
        let soon = (soon as u64).max(SOON_MIN);
        let room = self.admission.room_left(&self.sender, capacity);
        self.sender.open_in_turn(soon, room);
        self.room_left()
    }

    // ---- time -----------------------------------------------------------------------------------

    /// What the paths besides the one at this place mean for its probes.
    fn company(&self, at: usize) -> Company {
        if self.paths.len() == 1 {
            return Company::default();
        }
        let is_main = self.paths.main().id() == self.paths.at(at).id();
        let waits = self.paths.iter().map(|lane| lane.path.probe_wait());
        Company {
            others: self.paths.others_work(at),
            patience: is_main.then(|| waits.max()).flatten(),
        }
    }

    /// When a path on standby is to send a PING, and which: if all other working paths are on
    /// standby, no feedback comes on them that would tell whether the path at this place has failed
    /// or only its feedback is lost.
    fn ask_elsewhere(&self, at: usize) -> Option<(Time, usize)> {
        let lane = self.paths.at(at);
        if self.paths.len() == 1 || !lane.is_chosen() || self.sender.is_passive() {
            return None;
        }
        let others = || (0..self.paths.len()).filter(|other| *other != at);
        if others().any(|other| self.paths.at(other).is_chosen()) {
            return None;
        }
        let (order, count) = self.paths.order();
        let mut best = order.into_iter().take(count).filter(|other| *other != at);
        let asks = best.find(|other| self.paths.at(*other).works())?;
        Some((lane.path.ask_elsewhere_at()?, asks))
    }

    /// Smoothed round trip of the path on which feedback about the one at this place goes back, if
    /// that is another one.
    pub(super) fn told_on(&self, at: usize) -> Option<Nanos> {
        // The other modes do not repair blocks by this feedback.
        if self.paths.len() == 1 || self.sender.is_passive() {
            return None;
        }
        let main = self.paths.told_on(at)?;
        Some(self.paths.at(main).path.rtt().smoothed())
    }

    /// When something is due on the path at this place.
    pub(super) fn lane_timeout(&self, at: usize) -> Option<Time> {
        let lane = self.paths.at(at);
        let path = &lane.path;
        if !path.is_validated() {
            return path.challenge_timeout();
        }
        let duty = self
            .paths
            .duty(at, &self.sender, &self.demand, self.room_left());
        // A path on standby probes no sizes beyond what the paths in use carry.
        let is_wide = duty == Duty::Standby && path.mtu() >= self.paths.capacity().mtu;
        let pacer = path
            .next_departure(self.demand.backlog())
            .filter(|_| lane.scheduler.has_symbol(&self.sender, duty) || self.sc_has_symbol(at))
            .map(|at| self.paths.limit_opens().map_or(at, |opens| opens.max(at)));
        let timers = [
            self.sender.timeout(path, self.company(at)),
            path.acks().timeout(),
            path.mtu_timeout().filter(|_| !is_wide),
            path.challenge_timeout(),
            lane.local_ids.timeout(),
            pacer,
            self.silence_max().map(|most| lane.last_sent + most),
            self.ask_elsewhere(at).map(|(due, _)| due),
        ];
        timers.into_iter().flatten().min()
    }

    /// Declares packets lost whose time is over, and has silent paths probed.
    pub(super) fn look_for_losses(&mut self, now: Time) {
        for at in 0..self.paths.len() {
            if let Some((_, asks)) = self.ask_elsewhere(at).filter(|(due, _)| *due <= now) {
                self.paths.at_mut(at).path.on_asked_elsewhere(now);
                self.paths.at_mut(asks).scheduler.ping();
            }
            let company = self.company(at);
            let lane = self.paths.at_mut(at);
            let was_suspect = lane.path.is_suspect();
            let mut carriage = Carriage {
                path: lane.id(),
                horizon: lane.path.horizon(now),
                sender: &mut self.sender,
                control: &mut self.control_queue,
            };
            let probes = carriage.on_timeout(&mut lane.path, now, company);
            lane.scheduler.probe(probes, lane.path.mtu());
            if lane.path.is_suspect() && !was_suspect {
                if let Some(sc) = self.sender.sc_mut() {
                    sc.on_path_gone(lane.id());
                }
                self.events
                    .push_back(Event::Path(lane.id(), PathNews::Suspect));
                self.paths.arrange();
            }
        }
        self.give_up_expired(now);
    }

    pub(super) fn retire_ids(&mut self, now: Time) {
        for lane in self.paths.iter_mut() {
            while let Some((sequence, cid)) = lane.local_ids.poll_retired(now) {
                self.control_queue.cancel(&Frame::NewConnectionId {
                    path: lane.path.id(),
                    sequence,
                    cid,
                });
                self.events.push_back(Event::ConnectionIdRetired(cid));
            }
        }
    }
}
