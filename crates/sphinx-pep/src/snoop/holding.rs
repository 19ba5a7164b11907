//! What is kept from the sender, and for how long (§1.2 "Release", "T_hold").

use super::{Context, Held, Profile, Release, Snoop, repair::REPAIRS_MAX};
use crate::{Cause, MS, Time, segment::Segment, sequence::nearest, stats::Counts};

/// An acknowledgement is never held for longer: Linux senders time out after 200 ms at the earliest.
const HOLD_NS_MAX: Time = 150 * MS;
/// The part of a Linux sender's time-out that does not depend on the path.
const SENDER_TIMEOUT_NS: Time = 200 * MS;

/// What the sender is to hear of a segment that tells of holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All of it: nothing that is missing is for the agent to repair.
    Tell,
    /// All of it, as the sender has to repair what is missing.
    Yield(Release),
    /// What it says of positions before this one, where the first hole is that will be repaired here.
    Hide(u64),
}

impl Snoop {
    pub(super) fn verdict(&self, now: Time) -> Verdict {
        // Where the loss is a sign of congestion, the sender hears everything.
        if self.profile == Profile::Ll || self.congested {
            return Verdict::Tell;
        }
        let Some((first, _)) = self.own_holes().next() else {
            return Verdict::Tell;
        };
        if self.leaves_alone() {
            return Verdict::Yield(Release::Undeterred);
        }
        if self
            .own_holes()
            .any(|(start, end)| !self.cache.covers(start, end))
        {
            return Verdict::Yield(Release::NotCached);
        }
        if self
            .own_holes()
            .any(|(start, end)| !self.is_attributed(start, end))
        {
            return Verdict::Yield(Release::NotReported);
        }
        for (_, cached) in self.missing(self.own_holes()) {
            if cached.sender_repaired {
                return Verdict::Yield(Release::SenderRepaired);
            }
            if self.is_outdated(cached) {
                return Verdict::Yield(Release::Outdated);
            }
            if cached.repairs >= REPAIRS_MAX {
                return Verdict::Yield(Release::Limit);
            }
        }
        let since = self.hidden.filter(|(from, _)| *from == first);
        let patience = since.map_or(0, |(_, since)| now.saturating_sub(since));
        match patience < self.hold_max() {
            true => Verdict::Hide(first),
            false => Verdict::Yield(Release::Time),
        }
    }

    /// How long the sender may be kept in the dark (§1.2 T_hold).
    pub(super) fn hold_max(&self) -> Time {
        let sender_timeout = self.path_rtt + SENDER_TIMEOUT_NS;
        let path = self.path_rtt + self.path_rtt / 2;
        (sender_timeout / 2).min(path).min(HOLD_NS_MAX)
    }

    pub(super) fn hold(&mut self, context: &mut Context<'_>, segment: &Segment, from: u64) {
        context.counts.held += 1;
        self.keep(context, segment, from);
    }

    /// A new window, progress that leaves holes, or news for a sender that repairs holes before `from`, passes
    /// at once; what it says of positions behind `from` waits (§1.2 "pure window update").
    pub(super) fn conceal(&mut self, context: &mut Context<'_>, segment: &Segment, from: u64) {
        if self.sack && segment.sack().is_empty() {
            return context.pass(segment);
        }
        let position = self.acknowledged;
        match segment.with_sack(|(_, right)| nearest(position, right) <= from) {
            // It has nothing to hide; without SACK, the acknowledgement itself is what tells.
            Some(packet) if self.sack && packet == segment.packet => context.pass(segment),
            Some(packet) => {
                context.counts.concealed += 1;
                self.keep(context, segment, from);
                context.emit_back(packet, Cause::Concealed);
            }
            None => {
                self.let_go(context, Release::Followed);
                context.pass(segment);
            }
        }
    }

    fn keep(&mut self, context: &Context<'_>, segment: &Segment, from: u64) {
        let since = match self.hidden {
            Some((at, since)) if at == from => since,
            _ => context.now,
        };
        self.hidden = Some((from, since));
        self.held = Some(Held {
            packet: segment.packet.clone(),
            position: self.acknowledged,
            since,
        });
    }

    /// The sender is told of what is known to be missing, now and until that is acknowledged. What is lost
    /// later is none of its business yet.
    pub(super) fn yield_to_sender(&mut self, counts: &mut Counts, why: Release) {
        let last = self.reported.end().unwrap_or(self.highest);
        let last = last.max(self.acknowledged + 1);
        if self.yielded.is_some_and(|until| until >= last) {
            return;
        }
        counts.release(why);
        self.reaction.told();
        self.congested |= why == Release::Congestion;
        self.yielded = Some(last);
    }

    /// Passes what is held, if anything is.
    pub(crate) fn let_go(&mut self, context: &mut Context<'_>, why: Release) {
        if self.held.is_some() {
            self.count_hold(context);
            self.yield_to_sender(context.counts, why);
        }
        if let Some(held) = self.held.take() {
            context.emit_back(held.packet, Cause::Released);
        }
    }

    pub(super) fn count_hold(&self, context: &mut Context<'_>) {
        if let Some(held) = &self.held {
            let held = context.now.saturating_sub(held.since);
            context.counts.held_ns_max = context.counts.held_ns_max.max(held);
        }
    }
}
