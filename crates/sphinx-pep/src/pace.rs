//! Pacing (sender adaptation) beside a sender that does not pace (rules in `docs/ack-path.md`, §7): where one acknowledgement tells of many segments,
//! it sends many at once.

use std::collections::VecDeque;

use crate::{Output, Time, acks::Ack, segment::Segment, sequence::nearest, stats::Counts};

/// How many of the longest segments may go back to back.
const BURST: u64 = 4;
/// A new round trip counts for one part in so many of the smoothed one, as with senders (RFC 6298).
const GAIN: u64 = 8;
/// Round trips that seem longer are not counted: what they were measured of was lost.
const RTT_NS_MAX: Time = 10_000_000_000;
/// Bytes of one flow that wait at most; beyond that the packet that has waited longest goes, as other flows would have to make room otherwise.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// A packet that waits.
#[derive(Debug)]
struct Waiting {
    since: Time,
    /// Sequence numbers that the segment takes.
    length: u64,
    output: Output,
    ack: Option<Ack>,
}

/// The segments of one flow towards the hop.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// Position behind the last byte that was sent, and position up to which all is acknowledged.
    highest: u64,
    acknowledged: u64,
    /// Length of the longest segment so far, in bytes of the stream.
    longest: u64,
    srtt: Option<Time>,
    /// The end of a segment whose acknowledgement is waited for, and when it left.
    timed: Option<(u64, Time)>,
    /// Sequence numbers that the latest segment takes; see [`offer`](Pacer::offer).
    length: u64,
    /// Bytes that might go at once at the time `at`.
    credit: u64,
    at: Time,
    waiting: VecDeque<Waiting>,
    /// What the waiting packets take: sequence numbers (`ahead`), and bytes of memory.
    ahead: u64,
    bytes: usize,
}

impl Pacer {
    /// A pacer for a stream whose first byte is at the position `first`.
    pub(crate) fn new(first: u64) -> Pacer {
        Pacer {
            highest: first,
            acknowledged: first,
            longest: 0,
            srtt: None,
            timed: None,
            length: 0,
            credit: 0,
            at: 0,
            waiting: VecDeque::new(),
            ahead: 0,
            bytes: 0,
        }
    }

    /// The round trip of the handshake.
    pub(crate) fn set_rtt(&mut self, rtt: Time) {
        self.srtt.get_or_insert(rtt);
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of::<Pacer>() + self.bytes
    }

    /// Whether more waits than [`WAITING_BYTES_MAX`].
    pub(crate) fn is_full(&self) -> bool {
        self.bytes > WAITING_BYTES_MAX
    }

    /// When the first packet that waits is to go.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let first = self.waiting.front()?;
        Some(self.ready(first.length).min(self.latest(first.since)))
    }

    /// A segment comes from the sender: when it goes on, as far as is known now.
    pub(crate) fn data(&mut self, now: Time, segment: &Segment) -> Time {
        self.length = u64::from(segment.sequence_len());
        if self.length > 0 {
            let end = nearest(self.highest, segment.sequence) + self.length;
            if end <= self.highest {
                // A retransmission: which of the two is acknowledged cannot be told (Karn).
                self.timed = None;
            }
            self.highest = self.highest.max(end);
            self.longest = self.longest.max(self.length);
        }
        self.refill(now);
        self.ready(self.ahead + self.length)
            .clamp(now, self.latest(now))
    }

    /// Bytes in flight, and those that are about to be.
    fn window(&self) -> u64 {
        let window = self.highest.saturating_sub(self.acknowledged);
        window.max(BURST * self.longest).max(1)
    }

    fn refill(&mut self, now: Time) {
        let Some(srtt) = self.srtt.filter(|srtt| *srtt > 0) else {
            self.credit = u64::MAX / 2;
            return;
        };
        let elapsed = u128::from(now.saturating_sub(self.at));
        let (window, srtt) = (u128::from(self.window()), u128::from(srtt));
        let more = elapsed * window / srtt;
        let credit = u128::from(self.credit) + more;
        let most = u128::from(BURST * self.longest);
        self.credit = u64::try_from(credit.min(most)).unwrap_or(u64::MAX / 2);
        // The time that is worth less than a byte is left for the next call.
        let taken = Time::try_from((more * srtt).div_ceil(window)).unwrap_or(Time::MAX);
        self.at = self.at.saturating_add(taken);
    }

    /// The earliest time at which this many bytes may go.
    fn ready(&self, bytes: u64) -> Time {
        let missing = u128::from(bytes.saturating_sub(self.credit));
        let srtt = u128::from(self.srtt.unwrap_or(0));
        let wait = (missing * srtt).div_ceil(u128::from(self.window()));
        self.at
            .saturating_add(Time::try_from(wait).unwrap_or(Time::MAX))
    }

    /// No packet waits longer than a round trip.
    fn latest(&self, since: Time) -> Time {
        since.saturating_add(self.srtt.unwrap_or(0))
    }

    /// The receiver acknowledges.
    pub(crate) fn acknowledgment(&mut self, now: Time, segment: &Segment) {
        let position = nearest(self.acknowledged, segment.acknowledgment);
        self.refill(now);
        self.acknowledged = self.acknowledged.max(position.min(self.highest));
        let timed = self.timed.take_if(|(end, _)| *end <= position);
        let Some((_, at)) = timed else { return };
        let sample = now.saturating_sub(at);
        if sample < RTT_NS_MAX {
            let known = self.srtt.unwrap_or(sample);
            self.srtt = Some(known - known / GAIN + sample / GAIN);
        }
    }

    /// A packet that goes now, or waits. The first one of a segment that is no acknowledgement alone is the segment that has come last.
    pub(crate) fn offer(
        &mut self,
        now: Time,
        output: Output,
        ack: Option<Ack>,
        counts: &mut Counts,
    ) -> Option<(Output, Option<Ack>)> {
        let is_pure = ack.as_ref().is_some_and(Ack::is_pure);
        let length = if is_pure {
            0
        } else {
            std::mem::take(&mut self.length)
        };
        self.refill(now);
        if self.waiting.is_empty() && length <= self.credit {
            self.goes(now, length);
            return Some((output, ack));
        }
        counts.paced += 1;
        self.ahead += length;
        self.bytes += size_of::<Waiting>() + output.packet.len();
        self.waiting.push_back(Waiting {
            since: now,
            length,
            output,
            ack,
        });
        None
    }

    fn goes(&mut self, now: Time, length: u64) {
        self.credit = self.credit.saturating_sub(length);
        if length > 0 {
            let end = self.highest.saturating_sub(self.ahead);
            self.timed.get_or_insert((end, now));
        }
    }

    /// The next packet that goes by now, or any if `all` are to go.
    pub(crate) fn due(
        &mut self,
        now: Time,
        all: bool,
        counts: &mut Counts,
    ) -> Option<(Output, Option<Ack>)> {
        self.refill(now);
        let is_due = self.is_full() || self.deadline().is_some_and(|at| at <= now);
        let it = self.waiting.pop_front_if(|_| is_due || all)?;
        self.ahead -= it.length;
        self.bytes -= size_of::<Waiting>() + it.output.packet.len();
        self.goes(now, it.length);
        let waited = now.saturating_sub(it.since);
        counts.paced_ns_max = counts.paced_ns_max.max(waited);
        Some((it.output, it.ack))
    }
}
