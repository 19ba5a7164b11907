//! Acknowledgements between those that came (§6), as in RFC 3449, 5.2.2 and ns-2.

use super::released;
use crate::{Cause, MS, Output, Time, acks::Ack, segment::Segment, stats::Counts};

/// Segments that an acknowledgement is for where none was dropped on its way.
const SEGMENTS: u64 = 2;
/// Most copies that go before one acknowledgement.
const COPIES_MAX: u64 = 64;
/// The time between two acknowledgements before any was measured.
const INTERVAL_NS: Time = 10 * MS;
/// The shortest round trip is the minimum of the last one to two periods of this length.
const WINDOW_NS: Time = 30_000 * MS;

/// An acknowledgement that waits for its copies to go first.
#[derive(Debug)]
struct Pending {
    output: Output,
    segment: Segment,
    ack: Ack,
    scale: u8,
    /// Position, right edge and echoed timestamp of the copy before, and the bytes from one copy to the next.
    position: u64,
    edge: u64,
    echo: u32,
    stride: u64,
    /// Copies that are left, when the next one goes, and the time between two.
    left: u64,
    next: Time,
    spacing: Time,
}

/// Puts copies before the acknowledgements of one flow.
#[derive(Debug)]
pub(super) struct Spacer {
    mss: u64,
    pending: Option<Pending>,
    interval: Time,
    seen: Option<Time>,
    /// The shortest round trips over the hop in this period and in the one before.
    shortest: [Time; 2],
    since: Time,
    timed: Option<(u64, Time)>,
    /// Up to this position, a sender may take a partial acknowledgement for the sign of another loss (RFC 6582).
    recover: u64,
    /// The rightmost right edge of a window that the sender was told.
    edge: u64,
}

impl Spacer {
    pub(super) fn new(mss: u64) -> Spacer {
        Spacer {
            mss: mss.max(1),
            pending: None,
            interval: INTERVAL_NS,
            seen: None,
            shortest: [Time::MAX; 2],
            since: 0,
            timed: None,
            recover: 0,
            edge: 0,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let pending = self.pending.as_ref();
        pending.map_or(0, |it| 2 * it.output.packet.len())
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.pending.as_ref().map(|it| it.next)
    }

    /// Takes note that new data, which ends at `end`, goes over the hop.
    pub(super) fn sent(&mut self, now: Time, end: u64) {
        self.timed.get_or_insert((end, now));
    }

    /// A loss is repaired, of what has been sent up to there.
    pub(super) fn recover(&mut self, highest: u64) {
        self.recover = self.recover.max(highest);
        self.timed = None;
    }

    /// Takes note that an acknowledgement of this position came.
    pub(super) fn see(&mut self, now: Time, position: u64) {
        let Some((_, at)) = self.timed.take_if(|(end, _)| *end <= position) else {
            return;
        };
        if now.saturating_sub(self.since) > WINDOW_NS {
            self.shortest = [Time::MAX, self.shortest[0]];
            self.since = now;
        }
        self.shortest[0] = self.shortest[0].min(now.saturating_sub(at));
    }

    /// Takes note of an acknowledgement that went on.
    pub(super) fn told(&mut self, ack: &Ack) {
        self.edge = self.edge.max(ack.edge());
    }

    /// The one that waits goes: another one has come.
    pub(super) fn supersede(&mut self, counts: &mut Counts, out: &mut Vec<Output>) {
        if let Some(pending) = self.pending.take() {
            counts.acks_superseded += pending.left;
            out.push(released(pending.output));
        }
    }

    /// An acknowledgement behind the one that went on before; itself, if it goes at once.
    pub(super) fn take(
        &mut self,
        now: Time,
        (passed, ack): (&Ack, &Ack),
        (segment, scale): (&Segment, u8),
        output: Output,
    ) -> Option<Output> {
        let rtt = self.shortest[0].min(self.shortest[1]);
        let is_plain =
            passed.is_plain() && ack.follows(passed) && passed.position() >= self.recover;
        let before = self.seen.replace(now);
        if !is_plain || rtt == Time::MAX {
            return Some(output);
        }
        if let Some(before) = before {
            // One that is silent for long says nothing about the link.
            let sample = now.saturating_sub(before).min(rtt);
            self.interval = (3 * self.interval + sample) / 4;
        }
        let gap = ack.position() - passed.position();
        let step = SEGMENTS * self.mss;
        if gap <= step {
            return Some(output);
        }
        // The real one follows the last copy.
        let copies = gap.div_ceil(step) - 1;
        let copies = copies.min(COPIES_MAX);
        self.pending = Some(Pending {
            output,
            segment: segment.clone(),
            ack: ack.clone(),
            scale,
            position: passed.position(),
            edge: self.edge,
            echo: passed.echo().unwrap_or(0),
            stride: step.max(gap / (copies + 1)),
            left: copies,
            next: now,
            spacing: self.interval.min(rtt) / (copies + 1),
        });
        None
    }

    pub(super) fn due(&mut self, now: Time, counts: &mut Counts, out: &mut Vec<Output>) {
        while let Some(pending) = &mut self.pending
            && pending.next <= now
        {
            if pending.left == 0 {
                return self.supersede(counts, out);
            }
            pending.left -= 1;
            pending.next = pending.next.saturating_add(pending.spacing);
            if let Some(copy) = pending.copy() {
                counts.acks_synthesised += 1;
                out.push(copy);
            }
        }
    }
}

impl Pending {
    /// The next one: of less, with the earlier TSecr, and a right edge between those of the two real ones. `None` if there is none such.
    fn copy(&mut self) -> Option<Output> {
        let position = self.position + self.stride;
        if position >= self.ack.position() {
            return None;
        }
        self.position = position;
        let unit = 1_u64 << self.scale;
        let most = self.ack.edge().saturating_sub(position) / unit;
        let least = self.edge.saturating_sub(position).div_ceil(unit);
        let window = u64::from(self.segment.window).max(least);
        let window = u16::try_from(window)
            .ok()
            .filter(|it| u64::from(*it) <= most)?;
        let packet = self
            .segment
            .acknowledging(position as u32, window, self.echo)?;
        self.edge = position + (u64::from(window) << self.scale);
        Some(Output {
            to: self.output.to,
            packet,
            cause: Cause::Reconstructed,
        })
    }
}
