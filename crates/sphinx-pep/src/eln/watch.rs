//! What a mobile host sends, seen behind the hop (rules §2.1).

use super::{LossReport, RANGES_MAX, hop::Hop};
use crate::{FlowKey, MS, Time, segment::Segment, sequence::nearest, snoop::Rtt, stats::Counts};

/// Holes of one flow that are followed; of more, the sender hears.
const HOLES_MAX: usize = 64;
/// Segments behind a hole before it counts as lost: where the hop keeps the order, and where it was seen not to.
const THRESHOLDS: [u32; 2] = [1, 3];
/// Most reports of one hole.
const REPORTS_MAX: u32 = 8;
/// By so much a segment has to have left behind a repair to tell that this was lost: timestamps tell milliseconds, and agents are late at times.
const MARGIN_NS: Time = 5 * MS;

/// Something that is missing, and that the hop has lost.
#[derive(Clone, Copy, Debug)]
struct Hole {
    start: u64,
    end: u64,
    /// Segments beyond the hole that have come after it.
    behind: u32,
    reports: u32,
    /// When the hole was last reported.
    at: Time,
    /// Something has come that left the mobile host later than the repair: that was lost, or the report.
    overtaken: bool,
}

/// The upload of one flow.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Position behind the last byte that has come.
    highest: u64,
    /// When something has come last.
    came: Time,
    holes: Vec<Hole>,
    /// The time from a report to the repair that it asks for.
    answers: Rtt,
    hop: Hop,
    /// Index into `THRESHOLDS`.
    reorders: usize,
    /// Segments have passed unseen: what is missing before the next one has perhaps come.
    blind: bool,
}

impl Watch {
    /// `first` is the position of the mobile host's first byte.
    pub(crate) fn new(first: u64) -> Watch {
        Watch {
            highest: first,
            came: 0,
            holes: Vec::new(),
            answers: Rtt::new(),
            hop: Hop::new(),
            reorders: 0,
            blind: false,
        }
    }

    /// Bytes of memory besides the flow's own.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Watch>() + self.holes.capacity() * size_of::<Hole>()
    }

    /// Begins anew with the next segment, as others will pass unseen.
    pub(crate) fn forget(&mut self) {
        self.holes.clear();
        self.hop.skip();
        self.blind = true;
    }

    /// The handshake has told how long the hop takes to the mobile host and back: so long, at least, does the
    /// repair of what is reported.
    pub(crate) fn see_hop_rtt(&mut self, now: Time, rtt: Time) {
        self.answers.add(now, rtt);
    }

    /// A segment from the mobile host, without SYN or RST.
    pub(crate) fn data(&mut self, now: Time, segment: &Segment, counts: &mut Counts) {
        let length = u64::from(segment.sequence_len());
        let start = nearest(self.highest, segment.sequence);
        let end = start + length;
        if length == 0 {
            return;
        }
        if std::mem::take(&mut self.blind) {
            self.highest = self.highest.max(end);
            return;
        }
        self.came = now;
        self.see_overtaken(now, segment);
        if start < self.highest {
            self.hop.again(segment);
            self.fill(now, start, end);
        } else if start == self.highest {
            self.hop.next(now, segment);
        } else {
            let missing = start - self.highest;
            let is_congestion = self.hop.is_congestion(now, segment, missing);
            if is_congestion || self.holes.len() == HOLES_MAX {
                counts.unattributed += 1;
            } else {
                counts.attributed += 1;
                self.holes.push(Hole {
                    start: self.highest,
                    end: start,
                    behind: 0,
                    reports: 0,
                    at: now,
                    overtaken: false,
                });
            }
        }
        self.highest = self.highest.max(end);
        let behind = self.holes.iter_mut().filter(|hole| hole.end <= start);
        behind.for_each(|hole| hole.behind += 1);
    }

    /// The fixed host has everything before a position.
    pub(crate) fn acknowledgment(&mut self, segment: &Segment) {
        let position = nearest(self.highest, segment.acknowledgment);
        // One of more than has come by here is perhaps of nobody who knows what was sent.
        if position <= self.highest {
            self.holes.retain(|hole| hole.end > position);
        }
    }

    /// What a segment that comes now tells of repairs that left before it (RACK, RFC 8985). They may wait in front of the hop for longer than any repair
    /// before; to ask for more of them meanwhile would make the queue longer still.
    fn see_overtaken(&mut self, now: Time, segment: &Segment) {
        if self.reorders > 0 || self.holes.is_empty() {
            return;
        }
        let Some(undelayed) = self.hop.undelayed(now, segment) else {
            return;
        };
        let answer = match self.answers.base() {
            0 => return,
            base => base + MARGIN_NS,
        };
        for hole in &mut self.holes {
            hole.overtaken |= hole.reports > 0 && undelayed > hole.at.saturating_add(answer);
        }
    }

    /// Takes a range that has come out of the holes.
    fn fill(&mut self, now: Time, start: u64, end: u64) {
        let mut rest = Vec::new();
        for hole in self.holes.drain(..) {
            if hole.end <= start || end <= hole.start {
                rest.push(hole);
                continue;
            }
            let took = now.saturating_sub(hole.at);
            match hole.reports {
                // It was only late: the hop does not keep the order.
                0 => self.reorders = 1,
                1 if took < self.answers.base() / 2 => self.reorders = 1,
                1 => self.answers.add(now, took),
                // After several reports, which of them the repair follows cannot be told (Karn).
                _ => {}
            }
            let parts = [
                (hole.start, hole.end.min(start)),
                (hole.start.max(end), hole.end),
            ];
            let parts = parts.into_iter().filter(|(start, end)| start < end);
            rest.extend(parts.map(|(start, end)| Hole { start, end, ..hole }));
        }
        rest.truncate(HOLES_MAX);
        self.holes = rest;
    }

    fn due(&self, hole: &Hole) -> Option<Time> {
        match hole.reports {
            0 => (hole.behind >= THRESHOLDS[self.reorders]).then_some(0),
            REPORTS_MAX.. => None,
            _ if hole.overtaken => Some(0),
            reports => {
                let backoff = (reports - 1).max(self.answers.backoff()).min(REPORTS_MAX);
                // Repairs may wait behind what comes now.
                let since = hole.at.max(self.came);
                Some(since.saturating_add(self.answers.timeout() << backoff))
            }
        }
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        self.holes.iter().filter_map(|hole| self.due(hole)).min()
    }

    /// What is to be reported by now.
    pub(crate) fn report(&mut self, now: Time, flow: FlowKey) -> Option<LossReport> {
        if self.deadline().is_none_or(|at| at > now) {
            return None;
        }
        let mut holes = std::mem::take(&mut self.holes);
        let due = |hole: &&mut Hole| self.due(hole).is_some_and(|at| at <= now);
        let (mut ranges, mut backs_off) = (Vec::new(), false);
        for hole in holes.iter_mut().filter(due).take(RANGES_MAX) {
            if hole.reports == 1 && !hole.overtaken {
                backs_off = true;
            }
            hole.reports += 1;
            (hole.at, hole.overtaken) = (now, false);
            ranges.push((hole.start as u32, hole.end as u32));
        }
        self.holes = holes;
        if backs_off {
            self.answers.back_off();
        }
        Some(LossReport { flow, ranges })
    }
}
