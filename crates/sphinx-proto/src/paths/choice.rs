//! Which of the paths that work carry data at present, as mode, roles and costs have it, and how fast all of them may be together.

use std::num::NonZeroU64;

use crate::demand::Demand;
use crate::path::Pacer;
use crate::sender::Sender;
use crate::types::Urgency;
use crate::{Nanos, PathId, Time};

use super::policy::{Bond, PathPolicy, PathState};
use super::{Lane, Paths};

/// How long cheaper paths must have had more to carry than they could before dearer ones help, and over what time it is seen that
/// they are not needed any more.
const BUSY_PERIOD: Nanos = 1_000_000_000;
/// What cheaper paths carry in this time is left to them.
const SOON: Nanos = 20_000_000;
/// Dearer paths are not needed where all together carry less than this share, in percent, of what the cheaper ones could.
const ENOUGH_PERCENT: u64 = 90;

/// When dearer paths help ([`Bond::Cheapest`]).
#[derive(Debug, Default)]
pub(super) struct Thrift {
    /// How many costs above the lowest one are worth paying.
    dearer: usize,
    /// Since when something has waited to be sent all the time.
    busy_since: Option<Time>,
    /// Since when what is carried is counted, and how much had been before.
    counted_since: Time,
    counted: u64,
}

impl Thrift {
    /// A path is no more, on which so much was sent: what those that are left carry is counted without it.
    pub(super) fn forget(&mut self, sent: u64) {
        self.counted = self.counted.saturating_sub(sent);
    }
}

/// The rate that all paths keep within together.
pub(super) struct Limiter {
    rate: u64,
    pacer: Pacer,
}

impl Lane {
    /// Sets what the path is to be used for; `limit` is that of the session.
    pub(super) fn set_policy(&mut self, policy: PathPolicy, limit: Option<u64>) {
        self.policy = policy;
        let own = policy.limit.map(NonZeroU64::get);
        let limits = [own, limit].into_iter().flatten();
        self.path.set_limit(limits.min());
    }

    /// Whether all that its user allows has been sent and received.
    fn is_spent(&self) -> bool {
        let carried = self.counts.ip_bytes_sent + self.counts.ip_bytes_received;
        self.policy.budget.is_some_and(|budget| carried >= budget)
    }
}

impl Paths {
    /// What several paths are for.
    pub(crate) fn bond(&self) -> Bond {
        self.bond
    }

    pub(crate) fn set_bond(&mut self, bond: Bond) {
        self.bond = bond;
        self.thrift = Thrift::default();
        self.arrange();
    }

    /// Sets what the path is to be used for, if it is open.
    pub(crate) fn set_policy(&mut self, path: PathId, policy: PathPolicy) {
        if let Some(index) = self.index(path) {
            let limit = self.limit();
            self.lanes[index].set_policy(policy, limit);
        }
        self.arrange();
    }

    /// What the path is to be used for, if it is open.
    pub(crate) fn policy(&self, path: PathId) -> Option<PathPolicy> {
        let index = self.index(path)?;
        Some(self.lanes[index].policy)
    }

    /// Where what leaves on the path at this place is to leave too, best first.
    pub(crate) fn copies_to(&self, at: usize) -> impl Iterator<Item = usize> + use<> {
        let (order, count) = self.order();
        let chosen = order.into_iter().take(count);
        let chosen: Vec<usize> = chosen.filter(|at| self.lanes[*at].is_chosen()).collect();
        let copies = self.bond.copies(chosen.len());
        let others = chosen.into_iter().filter(move |other| *other != at);
        others.take(copies.saturating_sub(1))
    }

    /// Whether some path has a budget.
    pub(crate) fn have_budget(&self) -> bool {
        self.lanes.iter().any(|lane| lane.policy.budget.is_some())
    }

    /// A path whose budget is spent.
    pub(crate) fn spent(&self) -> Option<PathId> {
        self.lanes.iter().find(|lane| lane.is_spent()).map(Lane::id)
    }

    /// Looks which paths carry data: to be called whenever one of them may have begun or ceased to work.
    pub(crate) fn arrange(&mut self) {
        for index in 0..self.lanes.len() {
            self.lanes[index].barred = self.bars(index);
        }
        self.bar_those_that_meet();
    }

    /// Why the path carries nothing although it may work.
    fn bars(&self, index: usize) -> Option<PathState> {
        if self.lanes.len() == 1 {
            return None;
        }
        let lane = &self.lanes[index];
        let is_told = |lane: &Lane| {
            let id = lane.id();
            !self.awaits_status || id == PathId::FIRST || self.told.contains_key(&id)
        };
        let working = || {
            let lanes = self.lanes.iter();
            lanes.filter(move |lane| lane.works() && is_told(lane))
        };
        if !is_told(lane) && working().next().is_some() {
            return Some(PathState::Standby);
        }
        // Where no path works, any may carry data.
        let role = working().map(|lane| lane.policy.role).min()?;
        if lane.policy.role > role {
            return Some(PathState::Standby);
        }
        match self.bond {
            Bond::Aggregate | Bond::Redundant { .. } => None,
            Bond::Backup => {
                let place = |lane: &Lane| (lane.policy.role, lane.id());
                let first = working().map(place).min()?;
                (place(lane) > first).then_some(PathState::Standby)
            }
            Bond::Cheapest => {
                let peers = working().filter(|lane| lane.policy.role == role);
                let mut costs: Vec<u32> = peers.map(|lane| lane.policy.cost).collect();
                costs.sort_unstable();
                costs.dedup();
                let most = costs.get(self.thrift.dearer).or(costs.last())?;
                (lane.policy.cost > *most).then_some(PathState::Dear)
            }
        }
    }

    /// Whether dearer paths are to help, or not any more. `is_waiting`: symbols wait for a path to carry them.
    pub(crate) fn weigh_costs(&mut self, now: Time, is_waiting: bool) {
        if self.bond != Bond::Cheapest || self.lanes.len() == 1 {
            return;
        }
        let carried: u64 = self
            .lanes
            .iter()
            .map(|lane| lane.counts.ip_bytes_sent)
            .sum();
        let thrift = &mut self.thrift;
        if !is_waiting {
            thrift.busy_since = None;
        }
        let before = thrift.dearer;
        let is_busy =
            is_waiting && now.saturating_sub(*thrift.busy_since.get_or_insert(now)) >= BUSY_PERIOD;
        let counted_for = now.saturating_sub(thrift.counted_since);
        if is_busy
            && self
                .lanes
                .iter()
                .any(|lane| lane.barred == Some(PathState::Dear))
        {
            thrift.dearer += 1;
        } else if thrift.dearer > 0 && counted_for >= BUSY_PERIOD {
            let costs = self.lanes.iter().filter(|lane| lane.is_chosen());
            let dearest = costs.map(|lane| lane.policy.cost).max();
            let cheaper = { self.lanes.iter() }
                .filter(|lane| lane.is_chosen() && Some(lane.policy.cost) < dearest);
            let could = cheaper.map(|lane| lane.path.cc().bandwidth_estimate());
            let could: u128 = could.map(u128::from).sum();
            let could = could * u128::from(counted_for) / 1_000_000_000;
            let did = u128::from(carried.saturating_sub(thrift.counted));
            if did * 100 < could * u128::from(ENOUGH_PERCENT) {
                thrift.dearer -= 1;
            }
        }
        if counted_for >= BUSY_PERIOD || thrift.dearer != before {
            (thrift.counted_since, thrift.counted) = (now, carried);
        }
        if thrift.dearer != before {
            thrift.busy_since = None;
            self.arrange();
        }
    }

    /// Whether cheaper paths carry soon what waits, so that this one is spared although it helps.
    pub(super) fn is_spared(&self, index: usize, sender: &Sender, demand: &Demand) -> bool {
        let cost = self.lanes[index].policy.cost;
        if self.bond != Bond::Cheapest || demand.backlog() {
            return false;
        }
        let is_cheaper = |lane: &&Lane| lane.is_chosen() && lane.policy.cost < cost;
        let cheaper = self.lanes.iter().filter(is_cheaper);
        let rates = cheaper.map(|lane| u128::from(lane.path.cc().bandwidth_estimate()));
        let soon = rates.sum::<u128>() * u128::from(SOON) / 1_000_000_000;
        let unsent = sender.blocks().unsent_before(Urgency::LEAST) + sender.waiting().bytes();
        u128::from(unsent) < soon
    }

    // ---- the rate of all of them -------------------------------------------------------------------

    /// The limit of the session, IP bytes per second.
    fn limit(&self) -> Option<u64> {
        self.limiter.as_ref().map(|limiter| limiter.rate)
    }

    /// All paths together send no more than this, IP bytes per second; 0 counts as 1.
    pub(crate) fn set_limit(&mut self, now: Time, limit: Option<u64>) {
        let limit = limit.map(|rate| rate.max(1));
        self.limiter = limit.map(|rate| Limiter {
            rate,
            pacer: Pacer::new(now),
        });
        for lane in &mut self.lanes {
            lane.set_policy(lane.policy, limit);
        }
    }

    /// Whether the limit of the session allows a packet of symbols now. One path keeps within it by itself.
    pub(crate) fn within_limit(&mut self, now: Time) -> bool {
        let is_one = self.lanes.len() == 1;
        let limiter = self.limiter.as_mut().filter(|_| !is_one);
        limiter.is_none_or(|limiter| limiter.pacer.ready(now, || limiter.rate))
    }

    /// When the limit of all paths together lets packets leave again.
    pub(crate) fn limit_opens(&self) -> Option<Time> {
        let limiter = self.limiter.as_ref().filter(|_| self.lanes.len() > 1)?;
        Some(limiter.pacer.next(limiter.rate, false))
    }

    /// A packet of symbols leaves. What one path has sent alone, within the limit by itself, must not hold up all of them once there are several: the
    /// pacer does not earn back terabytes.
    pub(crate) fn spend(&mut self, ip_bytes: u64) {
        let is_one = self.lanes.len() == 1;
        if let Some(limiter) = self.limiter.as_mut().filter(|_| !is_one) {
            limiter.pacer.spent(ip_bytes);
        }
    }
}
