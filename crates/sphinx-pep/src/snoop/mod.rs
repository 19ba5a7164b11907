//! Snoop: what the lossy hop lost is sent again from a cache in front of it, and the sender does not hear of
//! it. From fixed to mobile hosts the losses are known from acknowledgements; from mobile to fixed ones
//! those tell of losses everywhere, and the base station has to report which ones were the hop's (rules §2).
//!
//! `reports` reads what the receiver says, `repair` sends again, `holding` keeps from the sender what it
//! need not know; `moving` is for flows that go from one hop to another, `classic` has the rules of
//! [`Profile::Classic`].
//! Section numbers in comments are those of the rules in `docs/pep.md`.

mod cache;
mod classic;
mod holding;
mod moving;
mod reaction;
mod repair;
mod reports;
mod rtt;

use bytes::Bytes;
use serde::Serialize;

use self::{
    cache::{Cache, Cached},
    classic::Classic,
    moving::Resuming,
    reaction::Reaction,
};
pub(crate) use self::{
    moving::{RANGES_MAX, SPAN_MAX, State},
    rtt::Rtt,
};
use crate::{
    Cause, MS, Output, Side, Time, radio::Departure, ranges::Ranges, segment::Segment,
    sequence::nearest, stats::Counts,
};

/// Cached bytes of a flow, overhead included.
pub(crate) const CACHE_BYTES_MAX: usize = 1 << 20;
/// The variation of a round trip that only the handshake has told, at least: its packets are short, and alone on the hop. Four of these are what the first segments
/// may take longer, and less than any sender waits before it sends them again.
const GUESSED_NS_MIN: Time = 12 * MS;

/// How lost packets are repaired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Repairs all holes, and holds back what tells the sender of them: the newest duplicate
    /// acknowledgement, from the first on.
    #[default]
    Sack,
    /// The rules of the published simulator (ns-2 2.35): one hole at a time, found by counting
    /// duplicate acknowledgements, of which all but the first are dropped.
    Classic,
    /// Repairs like `Sack` and holds nothing back: what repair alone is worth.
    Ll,
}

/// Why a sender was left to repair a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Release {
    /// A queue stood on the hop: it was congestion.
    Congestion,
    /// The memory was needed for other flows.
    Evicted,
    /// The connection ends, or a segment came that had to pass behind it.
    Followed,
    /// The packet was repaired as often as is allowed.
    Limit,
    /// It was lost before it came here, or was dropped by the agent's own queue.
    NotCached,
    /// The base station has not reported that the hop lost it.
    NotReported,
    /// The receiver would discard what is cached, for its timestamp.
    Outdated,
    /// The agent was too late.
    Overload,
    /// The sender has repaired it already.
    SenderRepaired,
    /// Held for as long as is good for the sender.
    Time,
    /// The sender is one that losses do not slow down, such as BBR.
    Undeterred,
}

/// What a flow begins with.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) profile: Profile,
    /// Only what the base station reports lost is for the agent to repair.
    pub(crate) by_report: bool,
    /// Position of the first byte of the sender.
    pub(crate) first: u64,
    /// Whether SACK was negotiated.
    pub(crate) sack: bool,
    pub(crate) path_rtt: Time,
    /// The receiver's, as far as its SYN has told: without scale, so that it says no more than whether there is one.
    pub(crate) window: u16,
}

/// What a call may change besides the flow.
pub(crate) struct Context<'a> {
    pub(crate) now: Time,
    /// Where data goes; acknowledgements go the other way.
    pub(crate) hop: Side,
    pub(crate) counts: &'a mut Counts,
    pub(crate) out: &'a mut Vec<Output>,
}

impl Context<'_> {
    /// Sends a packet over the hop.
    fn emit(&mut self, packet: Bytes, cause: Cause) {
        let to = self.hop;
        self.out.push(Output { to, packet, cause });
    }

    /// Sends a packet to the sender.
    fn emit_back(&mut self, packet: Bytes, cause: Cause) {
        let to = self.hop.other();
        self.out.push(Output { to, packet, cause });
    }

    fn pass(&mut self, segment: &Segment) {
        self.emit_back(segment.packet.clone(), Cause::Passed);
    }
}

/// The newest acknowledgement that is held back; it contains what older ones said.
#[derive(Debug)]
struct Held {
    packet: Bytes,
    position: u64,
    since: Time,
}

/// The agent's state of one flow.
#[derive(Debug)]
pub(crate) struct Snoop {
    profile: Profile,
    sack: bool,
    path_rtt: Time,
    cache: Cache,
    /// What the receiver has reported behind `acknowledged`.
    reported: Ranges,
    /// What the base station has reported lost, where that is needed.
    attributed: Option<Ranges>,
    reaction: Reaction,
    acknowledged: u64,
    /// What an acknowledgement was of that has not passed here. Either it has passed unseen, and its sender goes on from there; or whoever sent the acknowledgement
    /// does not know the stream.
    unseen: Option<u64>,
    window: u16,
    ecn: u8,
    /// Position behind the last byte that passed.
    highest: u64,
    /// Largest payload seen, in bytes.
    segment_bytes: u64,
    rtt: Rtt,
    held: Option<Held>,
    /// The first missing byte that the sender is not told of, and since when.
    hidden: Option<(u64, Time)>,
    /// The sender has been told of what is missing before this position, and has to repair it.
    yielded: Option<u64>,
    /// What is missing before `yielded` is a sign of congestion: the agent does not repair it.
    congested: bool,
    /// When something left for the hop last that the receiver may have had already: without SACK, its answer looks like the report of a hole.
    repeated: Option<Time>,
    /// The time that repairs of all flows in the agent's own queues take on the hop, so far. They overtake what waits,
    /// and delay it by that.
    repairing: Time,
    /// The timestamp that the receiver echoed last: the latest one at `acknowledged`.
    echoed: Option<u32>,
    /// Of all packets that have arrived, when the latest one left for the hop.
    newest_delivered: Time,
    /// Index into `THRESHOLDS`.
    reorders: usize,
    repaired: Vec<(u64, u64)>,
    /// What is still to be sent over this hop, if the flow has come from another one.
    resuming: Option<Resuming>,
    classic: Classic,
}

impl Snoop {
    pub(crate) fn new(setup: Setup) -> Snoop {
        Snoop {
            profile: setup.profile,
            sack: setup.sack,
            path_rtt: setup.path_rtt,
            cache: Cache::default(),
            reported: Ranges::default(),
            attributed: setup.by_report.then(Ranges::default),
            reaction: Reaction::default(),
            acknowledged: setup.first,
            unseen: None,
            window: setup.window,
            ecn: 0,
            highest: setup.first,
            segment_bytes: 1,
            rtt: Rtt::new(),
            held: None,
            hidden: None,
            yielded: None,
            congested: false,
            repeated: None,
            repairing: 0,
            echoed: None,
            newest_delivered: 0,
            reorders: 0,
            repaired: Vec::new(),
            resuming: None,
            classic: Classic::default(),
        }
    }

    pub(crate) fn set_path_rtt(&mut self, rtt: Time) {
        self.path_rtt = rtt;
    }

    /// The handshake has told how long the hop takes to the receiver and back.
    pub(crate) fn guess_hop_rtt(&mut self, rtt: Time) {
        self.rtt.guess(rtt, (rtt / 2).max(GUESSED_NS_MIN));
    }

    /// To be told before everything else, where the queue of the hop is the agent's; see `repairing`.
    pub(crate) fn see_queue(&mut self, repairing: Time) {
        self.repairing = repairing;
    }

    /// Bytes of memory besides the flow's own.
    pub(crate) fn bytes(&self) -> usize {
        let held = self.held.as_ref().map_or(0, |held| held.packet.len());
        self.cache.bytes() + held
    }

    /// A segment from the sender that passes now, or would pass but for the agent's own queue
    /// (`admitted`), behind which it goes over the hop at `departs`.
    ///
    /// §1.1 "data": old segments and those that the queue drops are not cached, so that congestion
    /// stays visible; those that the sender repeats are its own repair.
    pub(crate) fn data(
        &mut self,
        context: &mut Context<'_>,
        segment: &Segment,
        departs: Option<Departure>,
    ) {
        let length = u64::from(segment.sequence_len());
        let start = nearest(self.highest, segment.sequence);
        let end = start + length;
        if length == 0 {
            return;
        }
        if let Some(position) = self.unseen.take_if(|position| *position <= start) {
            self.acknowledged = self.acknowledged.max(position);
            self.cache.remove_below(self.acknowledged);
            self.end_yielding(self.acknowledged);
        }
        if start < self.highest {
            self.repeated = self.repeated.max(departs.map(|it| it.at));
        }
        if end <= self.acknowledged {
            return;
        }
        self.segment_bytes = self.segment_bytes.max(segment.payload as u64);
        let is_new = start >= self.highest;
        self.highest = self.highest.max(end);
        let Some(Departure {
            at: departed,
            takes,
        }) = departs
        else {
            // What the queue drops was perhaps cached before.
            return self.see_sender_repair(start, end, None);
        };
        let sent = segment.options.timestamps.map(|(sent, _)| sent);
        let repairing = self.repairing;
        let follows = self.cache.ends_by(start);
        let known = match follows {
            true => None,
            false => self.cache.get_mut(start),
        };
        if known.is_some_and(|cached| cached.end == end) {
            // The bytes may be others than before: timestamps go on.
            let cached = Cached {
                packet: segment.packet.clone(),
                end,
                departed,
                takes,
                repairing,
                sent,
                repairs: 0,
                sender_repaired: true,
            };
            return self.cache.insert(start, cached);
        }
        if !follows && self.cache.overlaps(start, end) {
            self.drop_others(start, segment);
            if self.cache.overlaps(start, end) {
                return self.see_sender_repair(start, end, departs);
            }
        }
        if self.cache.bytes() + Cache::cost(&segment.packet) > CACHE_BYTES_MAX {
            return;
        }
        // §1.1: what comes behind its place is a repair by the sender if its loss was reported, and
        // otherwise reordered on the way here.
        let sender_repaired = !is_new && self.reported.end().is_some_and(|last| start < last);
        context.counts.cached += 1;
        let cached = Cached {
            packet: segment.packet.clone(),
            end,
            departed,
            takes,
            repairing,
            sent,
            repairs: 0,
            sender_repaired,
        };
        self.cache.insert(start, cached);
        if self.profile == Profile::Classic {
            self.classic.cached();
        }
    }

    /// A segment that had passed here has been dropped by the agent's own queue.
    pub(crate) fn dropped(&mut self, segment: &Segment) {
        let start = nearest(self.highest, segment.sequence);
        let end = start + u64::from(segment.sequence_len());
        self.cache.remove_within(start, end);
    }

    /// The sender has sent a range again, in other segments; `departs` as for [`data`](Snoop::data).
    fn see_sender_repair(&mut self, start: u64, end: u64, departs: Option<Departure>) {
        let starts: Vec<u64> = self.cache.overlapping(start, end).map(|it| it.0).collect();
        let repairing = self.repairing;
        for start in starts {
            if let Some(cached) = self.cache.get_mut(start) {
                cached.sender_repaired = true;
                if let Some(Departure { at, takes }) = departs {
                    (cached.departed, cached.takes, cached.repairing) = (at, takes, repairing);
                }
            }
        }
    }

    /// What is cached with other bytes than the sender sends there now is not the sender's: somebody has sent it in its name before the stream was there. Its receiver may
    /// have had no room for it then, and would take it as a repair.
    #[inline(never)]
    fn drop_others(&mut self, start: u64, segment: &Segment) {
        let (own, end) = (segment.data(), start + segment.payload as u64);
        let is_other = |first: u64, cached: &Cached| {
            let Ok(cached) = Segment::parse(cached.packet.clone()) else {
                return true;
            };
            let known = cached.data();
            let from = start.max(first);
            let own = own.iter().skip((from - start) as usize);
            let known = known.iter().skip((from - first) as usize);
            own.zip(known).any(|(own, known)| own != known)
        };
        let overlapping = self.cache.overlapping(start, end);
        let others: Vec<(u64, u64)> = overlapping
            .filter(|(first, cached)| is_other(*first, cached))
            .map(|(first, cached)| (first, cached.end))
            .collect();
        for (first, end) in others {
            self.cache.remove_within(first, end);
        }
    }

    /// Whether a number is one of what the sender has sent and the receiver has not acknowledged, or of what comes next.
    pub(crate) fn is_in_flight(&self, sequence: u32) -> bool {
        let position = nearest(self.acknowledged, sequence);
        (self.acknowledged..=self.highest).contains(&position)
    }

    /// Bytes on their way, as far as is known.
    fn flight(&self) -> u64 {
        let sent = self.highest.saturating_sub(self.acknowledged);
        sent.saturating_sub(self.reported.bytes_behind(self.acknowledged))
    }

    /// Whether nothing is repaired or held here, as the sender does as well without: an acknowledgement that comes late, and then says
    /// much at once, would let BBR send more than the path has room for.
    fn leaves_alone(&self) -> bool {
        self.attributed.is_some() && self.reaction.is_undeterred()
    }

    /// Remembers what later segments are compared with.
    fn see(&mut self, segment: &Segment) {
        (self.window, self.ecn) = (segment.window, segment.ecn);
        self.echoed = segment.options.timestamps.map(|(_, echoed)| echoed);
    }

    /// Passes what is held and drops the cache.
    pub(crate) fn forget(&mut self, context: &mut Context<'_>, why: Release) {
        self.let_go(context, why);
        self.cache.clear();
        self.reported.clear();
        if let Some(attributed) = &mut self.attributed {
            attributed.clear();
        }
        self.classic = Classic::default();
        self.hidden = None;
    }
}
