//! A flow goes over another hop: what is known of it is handed to the agent there, and what the hop that it has left may
//! have swallowed is sent again (rules §3).

use bytes::Bytes;

use super::{CACHE_BYTES_MAX, Cache, Cached, Context, Setup, Snoop};
use crate::{
    Cause, Time,
    segment::Segment,
    sequence::{first, nearest},
};

/// [`Cached::departed`] of a packet that has not gone over this hop, as far as is known.
pub(super) const NEVER: Time = 0;
/// Packets that go over a new hop before anything has come back (the initial window of RFC 6928), how many more each
/// acknowledgement lets go, and the most of them at once.
const FIRST: usize = 10;
const PER_ACKNOWLEDGMENT: usize = 2;
const CREDIT_MAX: usize = 64;
/// Ranges that are told of; a receiver says the others again.
pub(crate) const RANGES_MAX: usize = 32;
/// More than a receiver can have reported behind what it acknowledges: the largest window there is.
pub(crate) const SPAN_MAX: u32 = 1 << 30;

/// What one agent tells another one of a stream; sequence numbers as on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) sack: bool,
    pub(crate) acknowledged: u32,
    /// Behind the last byte that has passed; at most [`SPAN_MAX`] after `acknowledged`.
    pub(crate) highest: u32,
    pub(crate) window: u16,
    /// The bits AE, CWR and ECE.
    pub(crate) ecn: u8,
    pub(crate) echoed: Option<u32>,
    pub(crate) yielded: Option<u32>,
    pub(crate) path_rtt_us: u32,
    /// Smoothed round-trip time of the hop, and its variation.
    pub(crate) hop_rtt_us: Option<(u32, u32)>,
    /// Ranges that the receiver has reported; at most [`RANGES_MAX`].
    pub(crate) reported: Vec<(u32, u32)>,
}

/// What is sent again on a hop that the flow has come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resuming {
    /// Every packet before this position has gone over the hop.
    from: u64,
    /// Packets that may go before the receiver has answered any.
    credit: usize,
}

fn microseconds(time: Time) -> u32 {
    u32::try_from(time / 1000).unwrap_or(u32::MAX)
}

impl Snoop {
    /// What another agent has to know.
    pub(crate) fn state(&self) -> State {
        let reported = self.reported.iter().take(RANGES_MAX);
        State {
            sack: self.sack,
            acknowledged: self.acknowledged as u32,
            highest: self.highest as u32,
            window: self.window,
            ecn: self.ecn,
            echoed: self.echoed,
            yielded: self.yielded.map(|position| position as u32),
            path_rtt_us: microseconds(self.path_rtt),
            hop_rtt_us: (self.rtt.measured())
                .map(|(smoothed, variation)| (microseconds(smoothed), microseconds(variation))),
            reported: reported.map(|it| (it.0 as u32, it.1 as u32)).collect(),
        }
    }

    /// What is cached, oldest first, and whether the sender has repaired it.
    pub(crate) fn cached(&self) -> impl Iterator<Item = (Bytes, bool)> {
        let cached = self.cache.overlapping(self.acknowledged, u64::MAX);
        cached.map(|(_, it)| (it.packet.clone(), it.sender_repaired))
    }

    /// What is cached of a segment of the sender, which may have gone with a smaller window, and whether it is the sender's repair.
    pub(crate) fn caches(&self, segment: &Segment) -> Option<(Bytes, bool)> {
        let start = nearest(self.highest, segment.sequence);
        let end = start + u64::from(segment.sequence_len());
        let sent = segment.options.timestamps.map(|(sent, _)| sent);
        let (at, cached) = self.cache.at(start)?;
        let is_it = (at, cached.end, cached.sent) == (start, end, sent);
        is_it.then(|| (cached.packet.clone(), cached.sender_repaired))
    }

    /// How far the receiver has acknowledged, and whether that is everything.
    pub(crate) fn progress(&self) -> (u64, bool) {
        (self.acknowledged, self.acknowledged == self.highest)
    }

    /// The flow goes over another hop from now on: nothing is kept from the sender any more, and what was is for the
    /// other agent to know.
    pub(crate) fn leave(&mut self) {
        self.held = None;
        self.hidden = None;
        self.resuming = None;
    }

    /// A stream of which another agent tells. What is known of its hop is a guess at this one.
    pub(crate) fn taken_over(profile: super::Profile, state: &State) -> Snoop {
        let mut snoop = Snoop::new(Setup {
            profile,
            by_report: false,
            first: first(state.acknowledged),
            sack: state.sack,
            path_rtt: Time::from(state.path_rtt_us) * 1000,
            window: state.window,
        });
        if let Some((smoothed, variation)) = state.hop_rtt_us {
            let time = |us: u32| Time::from(us) * 1000;
            snoop.rtt.guess(time(smoothed), time(variation));
        }
        snoop
    }

    /// Another agent tells more of a stream that is known. Of one that already passes here (`is_live`), the receiver is asked
    /// about the rest.
    pub(crate) fn merge(&mut self, state: &State, is_live: bool) {
        let position = nearest(self.acknowledged, state.acknowledged);
        if position < self.acknowledged {
            return;
        }
        let at = |sequence: u32| nearest(position, sequence);
        self.highest = self.highest.max(at(state.highest));
        self.acknowledged = position;
        self.cache.remove_below(position);
        self.reported.remove_below(position);
        for &(left, right) in &state.reported {
            let (left, right) = (at(left).max(position), at(right));
            if left < right && right <= self.highest {
                self.reported.add(left, right);
                self.cache.remove_within(left, right);
            }
        }
        if self.reported.contains(position) {
            self.reported.clear();
        }
        self.end_yielding(position);
        if !is_live {
            (self.window, self.ecn, self.echoed) = (state.window, state.ecn, state.echoed);
            let told = state.yielded.map(at).filter(|until| *until > position);
            self.yielded = told.or(self.yielded);
        }
    }

    /// Another agent has cached this; it has not gone over this hop.
    pub(crate) fn put(&mut self, segment: &Segment, sender_repaired: bool) {
        let length = u64::from(segment.sequence_len());
        let start = nearest(self.acknowledged, segment.sequence);
        let end = start + length;
        let missing = !self.reported.gaps(start, end).is_empty();
        let room = self.cache.bytes() + Cache::cost(&segment.packet) <= CACHE_BYTES_MAX;
        let acknowledged = self.acknowledged.max(self.unseen.unwrap_or(0));
        let is_ours = length > 0 && end > acknowledged && end <= self.highest;
        // What the sender has repaired has a later timestamp, without which the receiver may discard it.
        let known = self.cache.get_mut(start);
        let renews = known.is_some_and(|it| it.end == end && it.departed == NEVER);
        let overlaps = !renews && self.cache.overlaps(start, end);
        if !is_ours || !missing || !room || overlaps {
            return;
        }
        let sent = segment.options.timestamps.map(|(sent, _)| sent);
        let cached = Cached {
            packet: segment.packet.clone(),
            end,
            departed: NEVER,
            takes: 0,
            repairing: self.repairing,
            sent,
            // It may have gone over the other hop: it tells no round trip (Karn).
            repairs: 1,
            sender_repaired,
        };
        self.cache.insert(start, cached);
        if let Some(resuming) = &mut self.resuming {
            resuming.from = resuming.from.min(start);
        }
    }

    /// The mobile host is behind this hop now. It may lack all that was sent to it by another hop; and with `all`, what went over
    /// this one before, when it was not there.
    pub(crate) fn arrive(&mut self, context: &mut Context<'_>, all: bool) {
        if all {
            self.cache.forget_departures();
        }
        self.resuming = Some(Resuming {
            from: self.acknowledged,
            credit: FIRST,
        });
        self.resume(context);
    }

    /// Something has come back over the hop: more of what it has not carried may go.
    pub(crate) fn resume_more(&mut self, context: &mut Context<'_>) {
        if let Some(resuming) = &mut self.resuming {
            resuming.credit = (resuming.credit + PER_ACKNOWLEDGMENT).min(CREDIT_MAX);
            self.resume(context);
        }
    }

    /// Sends what has never gone over this hop, as far as that is allowed at once.
    pub(crate) fn resume(&mut self, context: &mut Context<'_>) {
        let Some(Resuming { from, credit }) = self.resuming else {
            return;
        };
        if self.window == 0 {
            return;
        }
        let due: Vec<u64> = self
            .cache
            .overlapping(from.max(self.acknowledged), self.highest)
            .filter(|(_, it)| it.departed == NEVER && !self.is_outdated(it))
            .map(|(start, _)| start)
            .take(credit)
            .collect();
        for &start in &due {
            let Some(cached) = self.cache.get_mut(start) else {
                continue;
            };
            (cached.departed, cached.repairing) = (context.now, self.repairing);
            let packet = cached.packet.clone();
            context.counts.resumed += 1;
            context.emit(packet, Cause::Repair);
        }
        let credit = credit - due.len();
        let from = match (credit, due.last()) {
            (0, Some(last)) => last + 1,
            (0, None) => from,
            _ => self.highest,
        };
        self.resuming = Some(Resuming { from, credit });
    }
}
