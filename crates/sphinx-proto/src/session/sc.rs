//! A session that codes over generations for a bounded receive buffer (`docs/protocol.md` §14): its
//! symbols and WARNINGs.

use super::Session;
use super::sending::UNACKNOWLEDGED;
use crate::sc::{InOrder, LaneView, Rtts, Sc, symbol_cost};
use crate::scheduler::Sources;
use crate::streams::IMPOSSIBLE;
use crate::types::{Room, Slot, StreamPart, Transmit};
use crate::wire::{Frame, OVERHEAD};
use crate::{BASE_DATAGRAM, Nanos, PathId, Time};

/// A path is slow if its round trip exceeds the shortest one by more than the shortest one divided
/// by `SLOW_PART`, and by more than `SLOW_MIN` nanoseconds: repair rows on it would arrive later
/// than the source symbols on others.
const SLOW_PART: Nanos = 8;
const SLOW_MIN: Nanos = 1_000_000;
/// ECF: margin, as a fraction, by which a slow path must be faster to be used. It keeps the choice
/// from alternating.
const ECF_PART: f64 = 0.25;
/// A generation that is not full is closed when the application has written nothing for this time,
/// nanoseconds, or for the round trip divided by `PAUSE_PART` if that is shorter.
const PAUSE_MAX: Nanos = 5_000_000;
const PAUSE_PART: Nanos = 8;

impl Session {
    /// How several paths and a bounded buffer are used, if that is how the session works.
    pub fn sc(&self) -> Option<Sc> {
        self.config.sc
    }

    /// The next symbols of received generations that may be given to the application, in order. To
    /// be asked for after every packet, once its symbol is stored.
    pub fn next_in_order(&mut self) -> Option<InOrder> {
        self.receiver.sc_mut()?.next_in_order()
    }

    /// A symbol of a generation held these parts, whose costs are filled in: of one that is alone in it all that it holds, of others a piece of
    /// their only segment. `false`: the peer broke the protocol.
    pub fn parts_in_order(&mut self, now: Time, parts: &[StreamPart]) -> bool {
        let is_possible = self.receiver.on_pieces(parts);
        if !is_possible {
            self.violation(now, IMPOSSIBLE);
        }
        is_possible
    }

    /// A symbol in order, of this many bytes, held no data: its place in the buffer is free again.
    pub fn nothing_in_order(&mut self, symbol_len: u16) {
        self.receiver.on_nothing(symbol_cost(symbol_len));
    }

    /// What a stream has begun to fill is sent when its application has written nothing for so
    /// long, nanoseconds; `None`: when it has written nothing for the driver's usual time.
    pub fn pause(&self) -> Option<Nanos> {
        self.config.sc?;
        let rtt = self.paths.main().path.rtt().smoothed();
        Some(PAUSE_MAX.min(rtt / PAUSE_PART))
    }

    // ---- sending --------------------------------------------------------------------------------

    /// Whether another generation may be handed over.
    pub(super) fn sc_room(&self) -> Option<Room> {
        let sc = self.sender.sc()?;
        Some(match sc.has_room() {
            true => Room::Whole,
            false => Room::Later,
        })
    }

    /// Symbols of a full generation, and bytes of each.
    pub(super) fn sc_shape(&self) -> Option<(u16, u16)> {
        let symbol_len = self.paths.capacity().mtu - OVERHEAD as u16;
        let buffer = self.sender.streams().window();
        Some(self.config.sc?.shape(buffer, symbol_len))
    }

    /// A block has been handed over.
    pub(super) fn give_to_sc(&mut self, slot: Slot, shape: (u16, u16)) {
        if self.config.sc.is_some()
            && let Some(block) = self.sender.hand_over_latest()
            && let Some(sc) = self.sender.sc_mut()
        {
            sc.push(block, slot, shape);
        }
    }

    fn lane_view(&self, at: usize) -> Option<LaneView> {
        let lane = self.paths.at(at);
        let path = &lane.path;
        if !path.is_validated() || path.is_suspect() && self.paths.others_work(at) {
            return None;
        }
        let rtt = path.rtt().smoothed();
        let shortest = self.paths.shortest_rtt().unwrap_or(rtt);
        let is_slow = rtt > shortest + (shortest / SLOW_PART).max(SLOW_MIN);
        let waits = is_slow && self.config.sc == Some(Sc::Ecf) && self.waits_for_fastest(at);
        Some(LaneView {
            path: lane.id(),
            is_slow,
            waits,
            credit: self.sender.streams().credit(),
        })
    }

    /// ECF (Lim et al., CoNEXT 2017): whether the fastest path would have sent all that is left before what leaves here now has arrived. What is left
    /// is at most what the peer's credit allows.
    fn waits_for_fastest(&self, at: usize) -> bool {
        let (Some(sc), Some(fastest)) = (self.sender.sc(), self.paths.fastest()) else {
            return false;
        };
        let (slow, fast) = (&self.paths.at(at).path, &fastest.path);
        let credit = sc.credit_left(self.sender.streams().credit());
        let left = match self.demand.backlog() {
            true => credit,
            false => credit.min(sc.unsent_bytes()),
        } as f64;
        let rounds = |path: &crate::path::Path| left / path.cc().cwnd().max(1) as f64;
        let (rtt_fast, rtt_slow) = (fast.rtt().smoothed() as f64, slow.rtt().smoothed() as f64);
        let margin = fast.rtt().variance().max(slow.rtt().variance()) as f64;
        (1.0 + rounds(fast)) * rtt_fast < (1.0 + ECF_PART) * (rtt_slow + margin)
            && rounds(slow).max(1.0) * rtt_slow >= 2.0 * rtt_fast + margin
    }

    /// Whether there is a symbol for the path at this place.
    pub(super) fn sc_has_symbol(&self, at: usize) -> bool {
        let Some(sc) = self.sender.sc() else {
            return false;
        };
        self.lane_view(at).is_some_and(|lane| sc.has_symbol(lane))
    }

    /// The next symbol in this mode, asked for when nothing else is to leave.
    pub(super) fn sc_symbol(&mut self, now: Time) -> Option<Transmit> {
        self.sender.sc()?;
        let is_held = !self.paths.within_limit(now);
        let (order, count) = self.paths.order();
        for at in order.into_iter().take(count) {
            let view = self.lane_view(at);
            let lane = self.paths.at_mut(at);
            if lane.is_held_up || !lane.path.is_open(now) {
                continue;
            }
            let mut sources = Sources {
                duty: crate::scheduler::Duty::All,
                is_held,
                capacity: None,
                path: &mut lane.path,
                sender: &mut self.sender,
                control: &self.control_queue,
                demand: &self.demand,
                admission: &self.admission,
            };
            if let Some(next) = lane.scheduler.next_of(now, &mut sources, view) {
                return Some(self.make(now, at, next));
            }
        }
        None
    }

    // ---- receiving ------------------------------------------------------------------------------

    fn sc_rtts(&self) -> Rtts {
        let rtts = self.paths.iter().map(|lane| lane.path.rtt().smoothed());
        Rtts {
            shortest: self.paths.shortest_rtt().unwrap_or_default().max(1),
            longest: rtts.max().unwrap_or_default().max(1),
        }
    }

    /// A packet has arrived on this path, whose symbol is handled next.
    pub(super) fn note_sc_arrival(&mut self, now: Time, path: PathId) {
        if self.config.sc.is_some() {
            let rtts = self.sc_rtts();
            self.receiver.note_arrival(now, path, rtts);
        }
    }

    /// A WARNING that is to leave.
    pub(super) fn sc_warning(&mut self, now: Time) -> Option<Transmit> {
        let warning = self.receiver.sc_mut()?.take_warning()?;
        let mut body = Vec::new();
        // An end that only receives sends nothing that is acknowledged, so it does not notice a
        // dead path. Therefore the WARNING leaves on a path on which symbols arrive. If none has
        // brought any, as the peer's credit is used up, the paths are tried in turn.
        let rtts = self.sc_rtts();
        let (order, count) = self.paths.order();
        let receiver = self.receiver.sc()?;
        let mut best = order.into_iter().take(count);
        let heard = best.find(|at| receiver.is_heard(now, self.paths.at(*at).id(), rtts));
        let at = heard.unwrap_or(order[receiver.repeats() % count]);
        let room = usize::from(BASE_DATAGRAM) - OVERHEAD - 40;
        let path = &mut self.paths.at_mut(at).path;
        path.write_feedback(now, room, &mut self.receiver, &mut body);
        Frame::Warning(warning).encode(&mut body);
        Some(self.control(now, at, body, UNACKNOWLEDGED))
    }

    pub(super) fn sc_timeout(&self) -> Option<Time> {
        self.receiver.sc()?.timeout(self.sc_rtts())
    }

    pub(super) fn sc_timed_out(&mut self, now: Time) {
        if self.config.sc.is_some() {
            let rtts = self.sc_rtts();
            self.receiver.consider_warning(now, rtts);
        }
    }
}
