//! What is sent again, and when (§1.2 "dupACK", "Timer").

use super::{Cached, Context, Profile, Release, Snoop, moving::NEVER};
use crate::{Cause, MS, Time, sequence::nearest};

/// Repairs of one packet, without those that the sender's own restarted.
pub(super) const REPAIRS_MAX: u32 = 8;
/// What receivers may wait before they acknowledge a lone segment.
const DELAYED_ACK_NS: Time = 40 * MS;
/// Segments reported behind a hole before it counts as lost: where the hop keeps the order, and where
/// it was seen not to.
const THRESHOLDS: [u64; 2] = [1, 3];
/// Repairs that are remembered, to recognise those that were not needed.
const REMEMBERED_MAX: usize = 32;

impl Snoop {
    /// Sends again what is missing and can be (§1.2 "dupACK").
    pub(super) fn repair(&mut self, context: &mut Context<'_>) {
        // Where losses are reported, that is done at once (`lost`), and again where that is reported.
        if self.congested || self.window == 0 || self.attributed.is_some() {
            return;
        }
        let asks = self.yielded.is_none() && self.hidden.is_none();
        if asks && self.rtt.queue_stands() {
            let missing = self.holes().next().is_some();
            if missing {
                return self.yield_to_sender(context.counts, Release::Congestion);
            }
        }
        let threshold = THRESHOLDS[self.reorders];
        // What lies in one hole has the same reports behind it. Looked through for each packet, they would take a receiver's word for as long as a thousand packets.
        let missing = self.holes().flat_map(|(start, end)| {
            let behind = match self.sack {
                true => self.reported.bytes_behind(end).div_ceil(self.segment_bytes),
                false => self.classic.duplicates,
            };
            let missing = self.cache.overlapping(start, end);
            missing.map(move |(start, cached)| (start, cached, behind))
        });
        let due: Vec<u64> = missing
            .filter(|&(_, cached, behind)| {
                let fresh = cached.repairs == 0 && !cached.sender_repaired;
                let lost = match fresh {
                    true => behind >= threshold && !self.may_repeat(context.now),
                    false => self.is_overtaken(cached),
                };
                // What has never gone over this hop has its own turn (`resume`).
                cached.departed != NEVER
                    && cached.repairs < REPAIRS_MAX
                    && !self.is_outdated(cached)
                    && (lost || self.due(cached) <= context.now)
            })
            .map(|(start, ..)| start)
            .collect();
        for start in due {
            self.send_again(context, start);
        }
    }

    /// Without SACK, whether a duplicate acknowledgement that comes now may answer something that came twice, instead of something behind a hole.
    /// A repair that is not needed would be answered so too, and if that was taken for another hole there would be no end of it.
    fn may_repeat(&self, now: Time) -> bool {
        let until = |at: Time| at.saturating_add(self.rtt.timeout());
        !self.sack && self.repeated.is_some_and(|at| now < until(at))
    }

    /// The ranges that are missing before the last one that was reported.
    pub(super) fn holes(&self) -> impl Iterator<Item = (u64, u64)> {
        let duplicates = !self.sack && self.classic.duplicates > 0;
        // Without SACK only the first hole is known, by duplicate acknowledgements.
        let head = duplicates.then(|| {
            let head = self.cache.at(self.acknowledged);
            let end = head.map_or(self.acknowledged + 1, |it| it.1.end);
            (self.acknowledged, end)
        });
        head.into_iter()
            .chain(self.reported.holes(self.acknowledged))
    }

    /// The holes that the sender was not told to repair.
    pub(super) fn own_holes(&self) -> impl Iterator<Item = (u64, u64)> {
        let from = self.yielded.unwrap_or(0);
        self.holes().filter(move |(start, _)| *start >= from)
    }

    /// Whether the hop has lost a range, as far as that has to be reported.
    pub(super) fn is_attributed(&self, start: u64, end: u64) -> bool {
        let attributed = self.attributed.as_ref();
        attributed.is_none_or(|ranges| ranges.gaps(start, end).is_empty())
    }

    /// The base station has reported these ranges lost on the hop (rules §2.1).
    pub(crate) fn lost(&mut self, context: &mut Context<'_>, ranges: &[(u32, u32)]) {
        for &(left, right) in ranges {
            let left = nearest(self.acknowledged, left).max(self.acknowledged);
            let right = nearest(self.acknowledged, right);
            let Some(attributed) = &mut self.attributed else {
                return;
            };
            if left >= right || right > self.highest {
                continue;
            }
            attributed.add(left, right);
            if self.leaves_alone() {
                continue;
            }
            let lost: Vec<u64> = self
                .cache
                .overlapping(left, right)
                .filter(|(_, cached)| cached.repairs < REPAIRS_MAX && !self.is_outdated(cached))
                .map(|(start, _)| start)
                .collect();
            for start in lost {
                self.send_again(context, start);
            }
        }
    }

    /// Cached packets in some holes, oldest first.
    pub(super) fn missing(
        &self,
        holes: impl Iterator<Item = (u64, u64)>,
    ) -> impl Iterator<Item = (u64, &Cached)> {
        holes.flat_map(|(start, end)| self.cache.overlapping(start, end))
    }

    /// Whether the receiver would discard a packet for its timestamp, as it has seen later ones at that place
    /// of the stream (PAWS, RFC 7323 §5): what the sender has sent again meanwhile makes older packets
    /// useless.
    pub(super) fn is_outdated(&self, cached: &Cached) -> bool {
        match (cached.sent, self.echoed) {
            (Some(sent), Some(echoed)) => (sent.wrapping_sub(echoed) as i32) < -1,
            _ => false,
        }
    }

    /// Whether a packet that left for the hop after this one has arrived (RACK, RFC 8985). That a repair was
    /// lost is so known within a round trip of the hop; unless a queue may have dropped it, which more repairs would
    /// only keep full. Only for packets that were sent again: the first
    /// time, segments are counted.
    fn is_overtaken(&self, cached: &Cached) -> bool {
        let margin = match self.reorders {
            0 => 0,
            _ => self.rtt.smoothed() / 4,
        };
        !self.rtt.is_long() && self.newest_delivered > cached.departed.saturating_add(margin)
    }

    /// When a cached packet that was sent again, or of which nothing was heard, counts as lost.
    pub(super) fn due(&self, cached: &Cached) -> Time {
        let backoff = cached.repairs.max(self.rtt.backoff()).min(REPAIRS_MAX);
        let timeout = self.rtt.timeout() << backoff;
        // Where nothing is missing, the receiver may wait for the segment behind it.
        let is_whole = self.reported.is_empty() && self.classic.duplicates == 0;
        let delayed = if is_whole { self.until_next(cached) } else { 0 };
        // What may have overtaken it in the own queue has delayed it.
        let overtaken = self.overtaken(cached);
        cached
            .left()
            .saturating_add(timeout + delayed)
            .saturating_add(overtaken)
    }

    /// How long after a packet the one behind it has left for the hop, as far as its receiver waits for that.
    fn until_next(&self, cached: &Cached) -> Time {
        let until = match self.cache.at(cached.end) {
            Some((_, next)) => next.left().saturating_sub(cached.left()),
            None if cached.end == self.highest => DELAYED_ACK_NS,
            // The next segment was dropped, or is not kept.
            None => 0,
        };
        until.min(DELAYED_ACK_NS)
    }

    /// By how much repairs in the own queue may have delayed a packet since its departure was foretold: those that
    /// came after it has left count too, as nobody remembers when that was.
    pub(super) fn overtaken(&self, cached: &Cached) -> Time {
        self.repairing.saturating_sub(cached.repairing)
    }

    pub(super) fn send_again(&mut self, context: &mut Context<'_>, start: u64) {
        let Some(cached) = self.cache.get_mut(start) else {
            return;
        };
        cached.repairs += 1;
        (cached.departed, cached.takes, cached.repairing) = (context.now, 0, self.repairing);
        let (end, packet) = (cached.end, cached.packet.clone());
        if self.repaired.len() == REMEMBERED_MAX {
            self.repaired.remove(0);
        }
        self.repaired.push((start, end));
        self.repeated = self.repeated.max(Some(context.now));
        context.counts.repaired += 1;
        context.emit(packet, Cause::Repair);
    }

    /// When [`timeout`](Snoop::timeout) has something to do.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let release = self.held.as_ref().map(|held| held.since + self.hold_max());
        let repair = self.next_repair().map(|(_, at)| at);
        match (release, repair) {
            (Some(release), Some(repair)) => Some(release.min(repair)),
            _ => release.or(repair),
        }
    }

    /// A time that [`deadline`](Snoop::deadline) is not before. It is asked for with every packet, and where nothing is missing, it takes a tenth as long.
    pub(crate) fn deadline_at_least(&self) -> Time {
        let is_whole = self.reported.is_empty() && self.classic.duplicates == 0;
        if !is_whole || self.held.is_some() || self.profile == Profile::Classic {
            return 0;
        }
        let head = self.cache.first();
        head.map_or(Time::MAX, |it| {
            it.departed.saturating_add(self.rtt.timeout())
        })
    }

    /// The packet that is repaired by time, and when (§1.2 "Timer": one timer, earliest hole; without
    /// holes, the tail).
    pub(super) fn next_repair(&self) -> Option<(u64, Time)> {
        if self.congested || self.window == 0 {
            return None;
        }
        if self.profile == Profile::Classic {
            return self.classic_timer();
        }
        if self.attributed.is_some() {
            return None;
        }
        let is_whole = self.reported.is_empty() && self.classic.duplicates == 0;
        let candidate = match is_whole {
            true => None,
            false => self.first_missing(),
        };
        let head = || self.cache.at(self.acknowledged);
        let candidate = candidate.or_else(head);
        candidate
            .filter(|(_, cached)| cached.repairs < REPAIRS_MAX && !self.is_outdated(cached))
            .map(|(start, cached)| (start, self.due(cached)))
    }

    /// Apart from the usual case above, which has no holes to look through.
    #[inline(never)]
    fn first_missing(&self) -> Option<(u64, &Cached)> {
        self.missing(self.holes()).next()
    }

    pub(crate) fn timeout(&mut self, context: &mut Context<'_>) {
        let now = context.now;
        if self
            .held
            .as_ref()
            .is_some_and(|held| held.since + self.hold_max() <= now)
        {
            self.let_go(context, Release::Time);
        }
        if let Some((start, at)) = self.next_repair()
            && at <= now
        {
            if self.cache.get_mut(start).is_some_and(|it| it.repairs == 0) {
                self.rtt.back_off();
            }
            self.send_again(context, start);
        }
        let stuck = self
            .missing(self.own_holes())
            .any(|(_, cached)| cached.repairs >= REPAIRS_MAX);
        if stuck && self.profile == Profile::Sack {
            self.let_go(context, Release::Limit);
        }
    }
}
