//! Whether a queue in front of the hop has dropped what is missing, or the hop has lost it (rules §2.1
//! "Congestion check").

use crate::{MS, Time, delay::Delay, segment::Segment, snoop::Rtt};

/// A queue that is so much shorter than the longest one is not full. Timestamps tell milliseconds.
const ROOM_NS: Time = 4 * MS;
/// The longest delay is the maximum of the last one to two periods of this length.
const WINDOW_NS: Time = 30_000 * MS;
/// Packets by which the pace is told, and how many of them have to agree.
const PACES: usize = 8;
const AGREE: usize = 6;
/// A pace is the time that the hop takes for so many bytes.
const PACE_BYTES: u64 = 1024;

/// What the packets of one mobile host tell of the hop.
#[derive(Debug)]
pub(super) struct Hop {
    waiting: Waiting,
    pace: Pace,
}

impl Hop {
    pub(super) fn new() -> Hop {
        Hop {
            waiting: Waiting::new(),
            pace: Pace::default(),
        }
    }

    /// A segment came that was sent for the first time, and is the one expected.
    pub(super) fn next(&mut self, now: Time, segment: &Segment) {
        self.waiting.add(now, segment);
        self.pace.next(now, segment.packet.len());
    }

    /// A segment came in the place of a missing one, or twice.
    pub(super) fn again(&mut self, segment: &Segment) {
        self.pace.between += segment.packet.len() as u64;
    }

    /// When a segment would have come if no queue had delayed it; `None` if that is not known.
    pub(super) fn undelayed(&self, now: Time, segment: &Segment) -> Option<Time> {
        let (sent, _) = segment.options.timestamps?;
        let waited = self.waiting.delay.of(now, sent)?;
        let waited = waited.saturating_sub(self.waiting.waited.base());
        Some(now.saturating_sub(waited))
    }

    /// A segment came for the first time, behind so many bytes that are missing; whether they were
    /// probably dropped by a queue.
    pub(super) fn is_congestion(&mut self, now: Time, segment: &Segment, missing: u64) -> bool {
        // What was dropped came behind the last one, or before this one.
        let waiting = &mut self.waiting;
        let (stood, was_full) = (waiting.waited.queue_stands(), waiting.is_full());
        waiting.add(now, segment);
        let (stands, is_full) = (waiting.waited.queue_stands(), waiting.is_full());
        let payload = (segment.payload as u64).max(1);
        let headers = segment.packet.len() as u64 - segment.payload as u64;
        let missing = missing + missing.div_ceil(payload) * headers;
        let used = self.pace.used(now, segment.packet.len() as u64, missing);
        self.pace.mark(now);
        if !self.waiting.is_known {
            return true;
        }
        // A hop without a queue idles, which takes time too.
        let used = used.filter(|_| stood && stands);
        (stood || stands) && !used.unwrap_or(!was_full && !is_full)
    }

    /// Packets have passed unseen, as the agent was late: by which those that it saw last looked late too. How long
    /// the queue gets is to be learned anew.
    pub(super) fn skip(&mut self) {
        self.pace = Pace::default();
        self.waiting.longest = [0; 2];
    }
}

/// How long packets of the mobile host wait in front of the hop.
#[derive(Debug)]
struct Waiting {
    delay: Delay,
    /// What they have waited; the shortest of the last 30 to 60 s is part of the way.
    waited: Rtt,
    last: Time,
    /// The longest delays of this period and of the one before ([`WINDOW_NS`]).
    longest: [Time; 2],
    longest_since: Time,
    /// The delay of the last packet can be told, as the unit of its timestamp is known.
    is_known: bool,
}

impl Waiting {
    fn new() -> Waiting {
        Waiting {
            delay: Delay::default(),
            waited: Rtt::new(),
            last: 0,
            longest: [0; 2],
            longest_since: 0,
            is_known: false,
        }
    }

    fn add(&mut self, now: Time, segment: &Segment) {
        let sent = segment.options.timestamps.map(|(sent, _)| sent);
        let waited = sent.and_then(|sent| self.delay.see(now, sent));
        self.is_known = sent.is_some() && !self.delay.has_other_unit();
        if !self.is_known {
            return;
        }
        // The first ones, of which the unit is not known yet, came within too short a time to have waited long.
        let waited = waited.unwrap_or(0);
        self.last = waited;
        self.waited.add(now, waited);
        if now.saturating_sub(self.longest_since) > WINDOW_NS {
            self.longest = [waited, self.longest[0]];
            self.longest_since = now;
        }
        self.longest[0] = self.longest[0].max(waited);
    }

    /// Whether the queue was about as long as it ever gets. Only then does one drop that has no other
    /// reason than its length.
    fn is_full(&self) -> bool {
        self.last + ROOM_NS >= self.longest[0].max(self.longest[1])
    }
}

/// How fast the hop takes packets from a queue that stands. What the hop loses has taken its time there, what
/// the queue drops has not.
#[derive(Debug, Default)]
struct Pace {
    /// When the last segment came that was sent for the first time.
    last: Option<Time>,
    /// Bytes that were sent again and have come since then.
    between: u64,
    /// Time that the hop took for `PACE_BYTES`, in nanoseconds.
    paces: [Time; PACES],
    count: usize,
}

impl Pace {
    fn next(&mut self, now: Time, bytes: usize) {
        if let Some(last) = self.last {
            let bytes = bytes as u64 + self.between;
            self.paces[self.count % PACES] = now.saturating_sub(last) * PACE_BYTES / bytes.max(1);
            self.count += 1;
        }
        self.mark(now);
    }

    fn mark(&mut self, now: Time) {
        self.last = Some(now);
        self.between = 0;
    }

    /// Whether the hop has spent the time for what is missing, before it brought so many bytes; `None` if the
    /// pace is too irregular to tell: others share the queue, or the machine is busy.
    fn used(&self, now: Time, bytes: u64, missing: u64) -> Option<bool> {
        let last = self.last.filter(|_| self.count >= PACES)?;
        let mut paces = self.paces;
        paces.sort_unstable();
        let pace = paces[PACES / 2];
        let agree = paces.iter().filter(|it| it.abs_diff(pace) <= pace / 4);
        if pace == 0 || agree.count() < AGREE {
            return None;
        }
        // What is missing may be as much as sequence numbers allow.
        let time = |bytes: u64| bytes.saturating_mul(pace) / PACE_BYTES;
        let took = now.saturating_sub(last);
        let (own, missing) = (time(bytes + self.between), time(missing));
        let half = time(bytes) / 2;
        (took <= own + missing + half).then_some(took + half >= own + missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_may_be_as_large_as_sequence_numbers_allow() {
        let mut pace = Pace::default();
        let minute = 60_000 * MS;
        let mut now = 0;
        for _ in 0..=PACES {
            now += minute;
            pace.next(now, 100);
        }
        now += minute;
        assert_eq!(pace.used(now, 100, 1 << 31), Some(false));
    }
}
