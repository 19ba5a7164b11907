//! What is kept from the sender, and for how long (§1.2 "Release", "T_hold").

use super::{Context, Held, Profile, Release, Snoop, repair::REPAIRS_MAX};
use crate::{Cause, MS, Side, Time, segment::Segment, stats::Counts};

/// An acknowledgement is never held for longer: Linux senders time out after 200 ms at the earliest.
const HOLD_NS_MAX: Time = 150 * MS;
/// The part of a Linux sender's time-out that does not depend on the path.
const SENDER_TIMEOUT_NS: Time = 200 * MS;

impl Snoop {
    /// Why the sender has to be told, if it has to.
    pub(super) fn refusal(&self, now: Time) -> Option<Release> {
        if self.profile == Profile::Ll || self.yielded.is_some() {
            return Some(Release::Followed);
        }
        if self
            .holes()
            .any(|(start, end)| !self.cache.covers(start, end))
        {
            return Some(Release::NotCached);
        }
        for (_, cached) in self.missing() {
            if cached.sender_repaired {
                return Some(Release::SenderRepaired);
            }
            if cached.repairs >= REPAIRS_MAX {
                return Some(Release::Limit);
            }
        }
        let since = self.silent_since.unwrap_or(now);
        (now.saturating_sub(since) >= self.hold_max()).then_some(Release::Time)
    }

    /// How long the sender may be kept in the dark (§1.2 T_hold).
    pub(super) fn hold_max(&self) -> Time {
        let sender_timeout = self.path_rtt + SENDER_TIMEOUT_NS;
        let path = self.path_rtt + self.path_rtt / 2;
        (sender_timeout / 2).min(path).min(HOLD_NS_MAX)
    }

    pub(super) fn hold(&mut self, context: &mut Context<'_>, segment: &Segment, position: u64) {
        context.counts.held += 1;
        self.keep(context, segment, position);
    }

    /// A new window, or progress that leaves holes, passes at once; what it says of them waits
    /// (§1.2 "pure window update"; a partial acknowledgement tells the sender the same).
    pub(super) fn conceal(&mut self, context: &mut Context<'_>, segment: &Segment, position: u64) {
        if self.sack && segment.sack().is_empty() {
            return context.pass(segment);
        }
        match segment.without_sack() {
            Some(packet) => {
                context.counts.concealed += 1;
                self.keep(context, segment, position);
                context.emit(Side::Fixed, packet, Cause::Concealed);
            }
            None => {
                self.let_go(context, Release::Followed);
                context.pass(segment);
            }
        }
    }

    pub(super) fn keep(&mut self, context: &Context<'_>, segment: &Segment, position: u64) {
        let since = *self.silent_since.get_or_insert(context.now);
        self.held = Some(Held {
            packet: segment.packet.clone(),
            position,
            since,
        });
    }

    /// The sender is told, now and until what is known to be missing is acknowledged.
    pub(super) fn yield_to_sender(&mut self, counts: &mut Counts, why: Release) {
        if self.yielded.is_some() || self.profile == Profile::Ll && why == Release::Followed {
            return;
        }
        counts.release(why);
        self.congested = why == Release::Congestion;
        let last = self.reported.end().unwrap_or(self.highest);
        self.yielded = Some(last.max(self.acknowledged + 1));
    }

    /// Passes what is held, if anything is.
    pub(super) fn let_go(&mut self, context: &mut Context<'_>, why: Release) {
        if self.held.is_some() {
            self.count_hold(context);
            self.yield_to_sender(context.counts, why);
        }
        if let Some(held) = self.held.take() {
            context.emit(Side::Fixed, held.packet, Cause::Released);
        }
    }

    pub(super) fn count_hold(&self, context: &mut Context<'_>) {
        if let Some(held) = &self.held {
            let held = context.now.saturating_sub(held.since);
            context.counts.held_ns_max = context.counts.held_ns_max.max(held);
        }
    }
}
