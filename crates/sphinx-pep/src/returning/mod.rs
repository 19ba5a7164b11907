//! What is done about acknowledgements that come from the hop, behind everything else (rules in `docs/ack-path.md`): reconstruction at the far end
//! of a thin link (§6), and, for experiments, a sender without Limited Transmit (§8).

mod reconstruct;

use serde::Serialize;

use self::reconstruct::Spacer;
use crate::{
    Cause, Output, Time,
    acks::{Ack, Stream},
    segment::Segment,
    sequence::nearest,
    stats::Counts,
};

/// What is done about acknowledgements that come from the hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Returning {
    /// Nothing: acknowledgements pass.
    #[default]
    Pass,
    /// Where one acknowledges many segments, copies that acknowledge fewer go before it, with time between them.
    Reconstruct,
    /// The first two that repeat what was said wait for the third: their reader is one without Limited Transmit (RFC 3042). For experiments.
    NoLimitedTransmit,
}

/// Repetitions that are a sign of loss.
const SIGN_OF_LOSS: u32 = 3;

/// What is known of the acknowledgements of one flow.
#[derive(Debug)]
pub(crate) struct Arriving {
    stream: Stream,
    /// The last acknowledgement that went on.
    passed: Option<Ack>,
    spacer: Spacer,
    /// How often the last acknowledgement was repeated, and the repetitions that wait.
    repeated: u32,
    held: Vec<Output>,
    /// Position behind what has gone over the hop.
    highest: u64,
}

impl Arriving {
    /// Of a host whose acknowledgements `stream` reads; they begin at `first`, and segments towards it have up to `mss` bytes.
    pub(crate) fn new(stream: Stream, first: u64, mss: u16) -> Arriving {
        Arriving {
            stream,
            passed: None,
            spacer: Spacer::new(u64::from(mss)),
            repeated: 0,
            held: Vec::new(),
            highest: first,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let held = self.held.iter().map(|it| it.packet.len());
        size_of::<Arriving>() + held.sum::<usize>() + self.spacer.bytes()
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        self.spacer.deadline()
    }

    /// A segment goes over the hop.
    pub(crate) fn data(&mut self, now: Time, segment: &Segment) {
        let length = u64::from(segment.sequence_len());
        if length == 0 {
            return;
        }
        let end = nearest(self.highest, segment.sequence) + length;
        match end > self.highest {
            true => self.spacer.sent(now, end),
            // It was sent before: its sender repairs a loss.
            false => self.spacer.recover(self.highest),
        }
        self.highest = self.highest.max(end);
    }

    /// A segment that came from the hop, and what is to go on for it: puts into `out` what goes now.
    pub(crate) fn offer(
        &mut self,
        now: Time,
        what: Returning,
        (segment, output): (&Segment, Output),
        counts: &mut Counts,
        out: &mut Vec<Output>,
    ) {
        let ack = self.stream.read(segment);
        self.spacer.supersede(counts, out);
        let repeats = match (&ack, &self.passed) {
            (Some(ack), Some(passed)) => ack.repeats(passed) && ack.position() < self.highest,
            _ => false,
        };
        match repeats {
            true => {
                self.repeated = self.repeated.saturating_add(1);
                self.spacer.recover(self.highest);
            }
            false => self.repeated = 0,
        }
        let waits = what == Returning::NoLimitedTransmit && repeats && self.repeated < SIGN_OF_LOSS;
        if waits {
            counts.duplicates_held += 1;
            return self.held.push(output);
        }
        out.extend(self.held.drain(..).map(released));
        // One of more than has gone over the hop is perhaps of nobody who knows what was sent: copies of it would be many that are discarded.
        let Some(ack) = ack.filter(|ack| ack.position() <= self.highest) else {
            return out.push(output);
        };
        self.spacer.see(now, ack.position());
        let output = match (what, &self.passed) {
            (Returning::Reconstruct, Some(passed)) => {
                let scale = self.stream.scale();
                self.spacer
                    .take(now, (passed, &ack), (segment, scale), output)
            }
            _ => Some(output),
        };
        self.spacer.told(&ack);
        self.passed = Some(ack);
        out.extend(output);
        self.due(now, counts, out);
    }

    /// Lets out the acknowledgements that are due by `now`.
    pub(crate) fn due(&mut self, now: Time, counts: &mut Counts, out: &mut Vec<Output>) {
        self.spacer.due(now, counts, out);
    }

    /// What waits goes. Others may pass unseen from now on.
    pub(crate) fn let_go(&mut self, counts: &mut Counts, out: &mut Vec<Output>) {
        self.spacer.supersede(counts, out);
        out.extend(self.held.drain(..).map(released));
        (self.passed, self.repeated) = (None, 0);
    }
}

/// A packet that was changed keeps its cause.
fn released(output: Output) -> Output {
    let cause = match output.cause {
        Cause::Passed => Cause::Released,
        cause => cause,
    };
    Output { cause, ..output }
}
