//! What the mobile host says (§1.2).

use super::{Context, Profile, Release, Snoop};
use crate::{Time, segment::Segment, sequence::nearest};

impl Snoop {
    /// A segment from the mobile host, with ACK and without SYN or RST. Passes it, holds it or drops it.
    pub(crate) fn acknowledgment(&mut self, context: &mut Context<'_>, segment: &Segment) {
        let position = nearest(self.acknowledged, segment.acknowledgment);
        if position > self.highest {
            // It acknowledges what has not passed here.
            self.forget(context, Release::NotCached);
            (self.acknowledged, self.highest) = (position, position);
            self.end_yielding(position);
            self.see(segment);
            return context.pass(segment);
        }
        if position < self.acknowledged {
            return context.pass(segment);
        }
        if self.profile == Profile::Classic {
            return self.classic_acknowledgment(context, segment, position);
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
                self.silent_since = None;
            }
            return context.pass(segment);
        }
        if is_duplicate && self.sack && !reported && segment.sack().is_empty() {
            // It says nothing of the hole: an answer to something else.
            return context.pass(segment);
        }
        self.repair(context);
        match self.refusal(context.now) {
            None if is_duplicate && segment.may_be_edited() => {
                self.hold(context, segment, position);
            }
            None => self.conceal(context, segment, position),
            Some(why) => {
                self.yield_to_sender(context.counts, why);
                // The one that passes says all that a held one did.
                self.held = None;
                context.pass(segment);
            }
        }
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
            if self.reported.add(left, right) {
                self.sample_sacked(context.now, right);
            }
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

    /// Round-trip time from the packet that a SACK block ends with, sent once (Karn).
    pub(super) fn sample_sacked(&mut self, now: Time, right: u64) {
        let newest = self.cache.overlapping(right - 1, right).next();
        if let Some((_, cached)) = newest.filter(|(_, c)| c.repairs == 0 && !c.sender_repaired) {
            let sample = now.saturating_sub(cached.departed);
            self.rtt.add(now, sample);
        }
    }

    /// Something more is acknowledged (§1.2 "New ACK").
    pub(super) fn advance(&mut self, context: &mut Context<'_>, position: u64) {
        let was_whole = self.reported.is_empty();
        let last = self.cache.remove_below(position);
        self.acknowledged = position;
        self.reported.remove_below(position);
        if let Some(cached) = last
            && was_whole
            && cached.repairs == 0
            && !cached.sender_repaired
        {
            let sample = context.now.saturating_sub(cached.departed);
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
        self.silent_since = None;
        self.classic.duplicates = 0;
        self.end_yielding(position);
    }

    /// What the sender was left to repair is repaired.
    fn end_yielding(&mut self, position: u64) {
        if self.yielded.is_some_and(|until| until <= position) {
            self.yielded = None;
            self.congested = false;
        }
    }
}
