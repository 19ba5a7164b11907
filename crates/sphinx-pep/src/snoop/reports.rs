//! What the receiver says (§1.2).

use super::{Context, Profile, Release, Snoop, holding::Verdict};
use crate::{Time, segment::Segment, sequence::nearest};

impl Snoop {
    /// A segment from the receiver, with ACK and without SYN or RST. Passes it, holds it or drops it.
    pub(crate) fn acknowledgment(&mut self, context: &mut Context<'_>, segment: &Segment) {
        let position = nearest(self.acknowledged, segment.acknowledgment);
        if position > self.highest {
            // It acknowledges what has not passed here: what is known is old, unless its reader has not sent that either, and discards it.
            self.forget(context, Release::NotCached);
            self.unseen = Some(position);
            return context.pass(segment);
        }
        self.unseen = None;
        if position < self.acknowledged {
            return context.pass(segment);
        }
        if self.profile == Profile::Classic {
            return self.classic_acknowledgment(context, segment, position);
        }
        if self.attributed.is_some() {
            self.reaction.see(self.flight(), self.segment_bytes);
        }
        let is_new = position > self.acknowledged;
        let reported = self.report(context, segment, position);
        if is_new {
            self.advance(context, position);
        }
        let same_window = segment.window == self.window;
        let new_signal = segment.ecn != self.ecn;
        self.see(segment);
        if segment.payload > 0 || segment.fin || new_signal {
            // It has to pass, behind what came before it. §1.2: FIN ends the suppression.
            self.let_go(context, Release::Followed);
            self.repair(context);
            return context.pass(segment);
        }
        let outstanding = self.highest > self.acknowledged;
        let is_duplicate = !is_new && same_window && outstanding;
        if !self.sack && is_duplicate {
            // Without SACK, each one reports that something arrived behind the hole.
            self.classic.duplicates += 1;
        }
        let missing = match self.sack {
            true => !self.reported.is_empty(),
            false => is_duplicate || (self.held.is_some() && !is_new),
        };
        if !missing {
            if is_new {
                self.hidden = None;
            }
            return context.pass(segment);
        }
        if is_duplicate && self.sack && !reported && segment.sack().is_empty() {
            // It says nothing of the hole: an answer to something else.
            return context.pass(segment);
        }
        self.repair(context);
        let verdict = self.verdict(context.now);
        match verdict {
            Verdict::Hide(from) => {
                // Where the first hole is the sender's, there may be news for it.
                let says_nothing = is_duplicate && from == position;
                if says_nothing && segment.may_be_edited() {
                    return self.hold(context, segment, from);
                }
                return self.conceal(context, segment, from);
            }
            Verdict::Yield(why) => self.yield_to_sender(context.counts, why),
            Verdict::Tell => self.hidden = None,
        }
        // The one that passes says all that a held one did.
        self.held = None;
        context.pass(segment);
    }

    /// Takes in SACK blocks; true if one of them is about the present hole.
    pub(super) fn report(
        &mut self,
        context: &mut Context<'_>,
        segment: &Segment,
        position: u64,
    ) -> bool {
        let mut any = false;
        for (index, &(left, right)) in segment.sack().iter().enumerate() {
            let (left, right) = (nearest(position, left), nearest(position, right));
            if left >= right || right > self.highest {
                continue;
            }
            if right <= position || (index == 0 && self.is_inside_second(segment, position)) {
                // D-SACK (RFC 2883): it came twice.
                self.see_duplicate(context, left, right);
                continue;
            }
            any = true;
            let left = left.max(position);
            self.see_arrivals(context.now, left, right);
            self.reported.add(left, right);
            // Whoever has it does not need it again. Otherwise what comes behind a hole that the sender has to
            // repair, for a round trip of the whole path, would leave no room for what comes next.
            self.cache.remove_within(left, right);
        }
        any
    }

    /// Whether the first block repeats part of the second one.
    pub(super) fn is_inside_second(&self, segment: &Segment, position: u64) -> bool {
        let [first, second, ..] = segment.sack() else {
            return false;
        };
        let at = |number| nearest(position, number);
        at(first.0) >= at(second.0) && at(first.1) <= at(second.1)
    }

    pub(super) fn see_duplicate(&mut self, context: &mut Context<'_>, left: u64, right: u64) {
        let before = self.repaired.len();
        self.repaired
            .retain(|&(start, end)| start < left || end > right);
        if self.repaired.len() < before {
            context.counts.spurious += 1;
            self.reorders = 1;
        }
    }

    /// A range is reported. What of it is cached has just arrived. The rest may have been there for long, as
    /// where a repair joins two ranges: it left the cache when it was reported first.
    fn see_arrivals(&mut self, now: Time, left: u64, right: u64) {
        self.newest_delivered = self.newest_with(now, self.cache.overlapping(left, right));
        // Round-trip time from the last packet, if it was sent once (Karn).
        let last = self.cache.overlapping(left, right).last();
        if let Some(sample) = last.and_then(|(_, cached)| self.sample(now, cached)) {
            self.rtt.add(now, sample);
        }
    }

    /// Whether nothing was missing before what is acknowledged next, which has then just arrived. Without SACK, only duplicates
    /// and repairs tell.
    fn is_in_order(&self) -> bool {
        let head = self.cache.at(self.acknowledged);
        let once = |cached: &super::Cached| cached.repairs == 0 && !cached.sender_repaired;
        self.classic.duplicates == 0 && head.is_some_and(|(_, cached)| once(cached))
    }

    /// The round trip of a packet that has just arrived, without what it takes itself, or a long one would look as if a queue stood on a slow hop: if it was
    /// sent once (Karn), and when it left is known. It was not then if it was foretold for
    /// later. An answer that comes before the packet should have left as a whole is that of a short hop, which is faster than its queue here was told.
    fn sample(&self, now: Time, cached: &super::Cached) -> Option<Time> {
        let once = cached.repairs == 0 && !cached.sender_repaired;
        let known = self.overtaken(cached) == 0 && cached.departed <= now;
        (once && known).then(|| now.saturating_sub(cached.left()))
    }

    /// When the packet left for the hop that left last of all that have arrived, these included. Of one that was sent twice, an answer that comes sooner than the
    /// shortest round trip is an answer to the first sending (RFC 8985), which says nothing of the second.
    fn newest_with<'a>(
        &self,
        now: Time,
        arrived: impl Iterator<Item = (u64, &'a super::Cached)>,
    ) -> Time {
        let base = self.rtt.base();
        let counts = |cached: &super::Cached| {
            let once = cached.repairs == 0 && !cached.sender_repaired;
            once || now.saturating_sub(cached.departed) >= base
        };
        let arrived = arrived.map(|(_, it)| it).filter(|it| counts(it));
        let newest = arrived.map(|it| it.departed).max();
        // What was in front of it in the own queue may have been dropped: it has left sooner than was foretold.
        let newest = newest.map(|at| at.min(now.saturating_sub(base)));
        self.newest_delivered.max(newest.unwrap_or(0))
    }

    /// Something more is acknowledged (§1.2 "New ACK").
    pub(super) fn advance(&mut self, context: &mut Context<'_>, position: u64) {
        let was_whole = self.reported.is_empty();
        let is_fresh = was_whole && self.is_in_order();
        // Behind what was missing, it was reported before.
        let head = match was_whole {
            true => None,
            false => self.cache.at(self.acknowledged),
        };
        let newest = self.newest_with(context.now, head.into_iter());
        let last = self.cache.remove_below(position);
        let newest = match &last {
            _ if !was_whole => newest,
            Some(cached) if cached.end == position => {
                self.newest_with(context.now, [(position - 1, cached)].into_iter())
            }
            // The position is within a cached packet, or that is not cached any more.
            _ => self.newest_with(context.now, self.cache.at(position - 1).into_iter()),
        };
        self.newest_delivered = newest;
        self.acknowledged = position;
        self.reported.remove_below(position);
        if let Some(attributed) = &mut self.attributed {
            attributed.remove_below(position);
        }
        let sample = last.and_then(|cached| self.sample(context.now, &cached));
        if let Some(sample) = sample.filter(|_| is_fresh) {
            self.rtt.add(context.now, sample);
        }
        if self.reported.contains(position) {
            // What was reported and is not acknowledged was given up by the receiver (RFC 2018 §8).
            self.reported.clear();
        }
        if self
            .held
            .as_ref()
            .is_some_and(|held| held.position < position)
        {
            self.count_hold(context);
            self.held = None;
        }
        // The sender hears of progress: its patience begins anew.
        self.hidden = None;
        self.classic.duplicates = 0;
        self.end_yielding(position);
    }

    /// What the sender was left to repair is repaired.
    pub(super) fn end_yielding(&mut self, position: u64) {
        if self.yielded.is_some_and(|until| until <= position) {
            self.yielded = None;
            self.congested = false;
            self.reaction.repaired();
        }
    }
}
