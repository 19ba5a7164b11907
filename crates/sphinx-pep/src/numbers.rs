//! Where the two streams of a connection are: by that, a reset that its receiver obeys is told from one that it does not (RFC 5961 §3).

use crate::{Side, segment::Segment};

/// The window scale that is assumed where the SYNs were not seen: the largest one (RFC 7323).
const SCALE_MAX: u8 = 14;
/// By so much more than is known a receiver may have room: windows have perhaps passed unseen, and those of MPTCP are of several streams.
const UNSEEN_BYTES: u32 = 4 << 20;

/// What one host sends.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// Sequence number behind the last byte that has passed here.
    sent: Option<u32>,
    /// Sequence number that the other host has acknowledged, and the right edge of its window.
    acknowledged: Option<u32>,
    edge: Option<u32>,
    /// Behind the last byte that has passed here and was acknowledged. An acknowledgement of more is perhaps of nobody who knows the stream.
    confirmed: Option<u32>,
    /// Sequence number behind its FIN.
    fin: Option<u32>,
    /// Scale of the windows that tell `edge`: those in segments of the other host.
    scale: u8,
}

/// What both hosts send.
#[derive(Debug)]
pub(crate) struct Numbers([Stream; 2]);

impl Numbers {
    /// The numbers of a connection whose beginning was not seen.
    pub(crate) fn missed() -> Numbers {
        Numbers(
            [Stream {
                sent: None,
                acknowledged: None,
                edge: None,
                confirmed: None,
                fin: None,
                scale: SCALE_MAX,
            }; 2],
        )
    }

    /// Of a connection of which one host has asked, up to `end` and with that window, and `answer` comes from the other one. `scales` are those of their windows, in this
    /// order.
    pub(crate) fn opened(
        by: Side,
        (end, window): (u32, u16),
        answer: &Segment,
        scales: [u8; 2],
    ) -> Numbers {
        let mut numbers = Numbers::missed();
        let other = by.other();
        let [of_asker, of_other] = scales.map(|scale| scale.min(SCALE_MAX));
        numbers.0[by as usize].sent = Some(end);
        numbers.0[by as usize].scale = of_other;
        numbers.0[other as usize].scale = of_asker;
        numbers.see(other, answer);
        let answered = &mut numbers.0[other as usize];
        answered.confirmed = answered.sent;
        // Data may follow before anything is acknowledged (RFC 7413).
        answered.edge = answered
            .sent
            .map(|sent| sent.wrapping_add(u32::from(window)));
        numbers
    }

    /// A segment passes, which is no reset.
    pub(crate) fn see(&mut self, from: Side, segment: &Segment) {
        let end = segment.sequence.wrapping_add(segment.sequence_len());
        let own = &mut self.0[from as usize];
        // Nobody takes what is beyond the window: it might be there to make a reset look right.
        let is_sent = own.edge.is_some_and(|edge| !is_later(end, edge));
        if is_sent || own.sent.is_none() {
            advance(&mut own.sent, end);
            // Nothing follows the end of a stream: one that comes behind its place is somebody else's.
            let ends = segment.fin && own.sent == Some(end);
            own.fin = own.fin.or(ends.then_some(end));
        }
        if segment.ack {
            let other = &mut self.0[from.other() as usize];
            // The window in a SYN is not scaled.
            let scale = if segment.syn { 0 } else { other.scale };
            let window = u32::from(segment.window) << scale;
            advance(&mut other.acknowledged, segment.acknowledgment);
            if other
                .sent
                .is_some_and(|sent| !is_later(segment.acknowledgment, sent))
            {
                advance(&mut other.confirmed, segment.acknowledgment);
            }
            advance(&mut other.edge, segment.acknowledgment.wrapping_add(window));
        }
    }

    /// Whether the other host may have room for what a segment of one has. It discards what is beyond.
    pub(crate) fn may_be_taken(&self, from: Side, segment: &Segment) -> bool {
        let end = segment.sequence.wrapping_add(segment.sequence_len());
        let edge = self.0[from as usize].edge;
        segment.payload == 0
            || edge.is_none_or(|edge| !is_later(end, edge.wrapping_add(UNSEEN_BYTES)))
    }

    /// Whether one host has sent what is before a number, as far as is known.
    pub(crate) fn has_sent(&self, from: Side, number: u32) -> bool {
        let sent = self.0[from as usize].sent;
        sent.is_some_and(|sent| !is_later(number, sent))
    }

    /// Whether a segment of one host begins where its stream is, and acknowledges what the other one has sent and has not been told of before.
    pub(crate) fn fit(&self, from: Side, segment: &Segment) -> bool {
        let is_in_flight = |by: Side, number: u32| {
            let confirmed = self.0[by as usize].confirmed;
            self.has_sent(by, number) && confirmed.is_some_and(|it| !is_later(it, number))
        };
        is_in_flight(from, segment.sequence) && is_in_flight(from.other(), segment.acknowledgment)
    }

    /// Whether both hosts have ended what they send, and have acknowledged that.
    pub(crate) fn are_over(&self) -> bool {
        self.0.iter().all(|stream| {
            let known = stream.fin.zip(stream.confirmed);
            known.is_some_and(|(fin, confirmed)| !is_later(fin, confirmed))
        })
    }

    /// Whether the other host may expect this number of one, as far as is known.
    pub(crate) fn expects(&self, from: Side, sequence: u32) -> bool {
        let stream = &self.0[from as usize];
        let is_next = stream.sent.is_none_or(|sent| sent == sequence);
        is_next || stream.acknowledged == Some(sequence)
    }
}

fn is_later(number: u32, than: u32) -> bool {
    (number.wrapping_sub(than) as i32) > 0
}

fn advance(known: &mut Option<u32>, number: u32) {
    if known.is_none_or(|known| is_later(number, known)) {
        *known = Some(number);
    }
}
