//! The way of acknowledgements: of those that wait for a thin link, the ones go of which a later one says everything (rules in
//! `docs/ack-path.md`, whose section numbers comments give).
//!
//! `ack` compares two of them, `queue` is the link's, fair to each flow, `beyond` looks whether packets wait behind it, `ratio` lets fewer of them go
//! while that queue is long, and `marks` tells another machine of that.

mod ack;
mod beyond;
mod marks;
mod queue;
mod ratio;

use serde::Serialize;

use self::ratio::Ratio;
pub(crate) use self::{
    ack::{Ack, Stream},
    beyond::Beyond,
    queue::Queue,
};
pub use self::{
    marks::{Mark, MarkOpener, MarkPost, MarkSealer},
    ratio::{AckCc, Marks, RATIO_MAX},
};
use crate::{Cause, Output, Time, segment::Segment, stats::Counts};

/// What is done about acknowledgements towards the hop, so that they do not crowd it. At least one of the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AckFilter {
    /// The agent's own queue in front of the hop.
    pub queue: Option<ReturnQueue>,
    /// Of the plain ones of a flow, at most one in so many nanoseconds goes on: the newest.
    pub every_ns: Option<Time>,
}

/// A queue in front of a thin link, for all packets; fair to each flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ReturnQueue {
    /// Slightly less than what the link carries, in bits per second at the IP layer; at least 1.
    pub bits_per_second: u64,
    /// What may wait, in bytes. A flow with less than its share of it has room when others have filled it.
    pub bytes: usize,
    /// Flows of which only acknowledgements wait go before others.
    pub acks_first: bool,
    /// Which acknowledgements of those that wait are dropped.
    pub mode: Mode,
}

/// How many acknowledgements of a flow wait that one would do for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Two wait where one would do, so that the loss of one of them changes nothing.
    #[default]
    Conservative,
    /// One waits; all others that it makes needless are dropped.
    Aggressive,
    /// All of them: nothing is dropped but what has no room, as for [`AckCc`] alone.
    Keep,
    /// All with a lower number go, whatever else they say: the rule of the published simulator (ns-2 2.35), for figures.
    Ns2,
}

/// Why an acknowledgement was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dropped {
    /// A later acknowledgement in the queue acknowledges more.
    Acked,
    /// The one behind it has a lower number in ns-2's terms ([`Mode::Ns2`]).
    Ns2,
    /// The one behind it acknowledges the same, and SACKs more.
    Sacked,
    /// One for several goes on while the queue is long ([`AckCc`]).
    Thinned,
}

/// Why an acknowledgement with another one behind it was not dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    /// It, or the one behind it, repeats what was said before: a sign of loss to its reader.
    Duplicate,
    /// The one behind it says something else of congestion; or, of an AccECN connection, acknowledges too much at once.
    Ecn,
    /// The one behind it acknowledges less: it was overtaken.
    Older,
    /// The acknowledgement has options that are not understood, or MPTCP's.
    Options,
    /// It is no acknowledgement of what came: it wants an answer. Or the one behind it is, or is sent again, which its reader may discard.
    Probe,
    /// It reports a copy, or SACKs what the one behind it does not.
    Sack,
    /// The timestamps of the one behind it are earlier, or there are none.
    Timestamps,
    /// It opens the window, or allows more than the one behind it.
    Window,
}

/// An acknowledgement that waits for its interval to end.
#[derive(Debug)]
struct Held {
    ack: Ack,
    output: Output,
}

/// Whether a plain acknowledgement has to wait, and for what.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// It goes at once.
    AtOnce,
    /// One goes in this many nanoseconds.
    Every(Time),
    /// One goes for several ([`AckCc`]), of which there are so many at most; `marked` if those of this flow wait too long for the link.
    Ratio { most: u32, marked: bool },
}

/// What is known of a flow's acknowledgements.
#[derive(Debug)]
pub(crate) struct Acks {
    ratio: Ratio,
    stream: Stream,
    /// The last acknowledgement that went on to the link, or to the queue.
    passed: Option<Ack>,
    held: Option<Held>,
    /// Time between two plain acknowledgements, in nanoseconds; 0 if they need not wait.
    every: Time,
    /// The next plain acknowledgement goes at this time at the earliest.
    next: Time,
}

impl Acks {
    pub(crate) fn new(stream: Stream) -> Acks {
        Acks {
            ratio: Ratio::default(),
            stream,
            passed: None,
            held: None,
            every: 0,
            next: 0,
        }
    }

    /// Bytes of memory besides the flow's own.
    pub(crate) fn bytes(&self) -> usize {
        let held = self
            .held
            .as_ref()
            .map_or(0, |held| held.output.packet.len());
        size_of::<Acks>() + held
    }

    /// When something goes by itself.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.held.as_ref().map(|_| self.next)
    }

    /// The machine that has the queue says that they wait too long.
    pub(crate) fn hear_mark(&mut self, now: Time) {
        self.ratio.hear(now);
    }

    /// Whether that was said lately, and has not been looked at.
    pub(crate) fn take_mark(&mut self, now: Time) -> bool {
        self.ratio.take_mark(now)
    }

    /// Whether the mark may be sent to the other agent at this time.
    pub(crate) fn may_tell(&mut self, now: Time) -> bool {
        self.ratio.may_tell(now)
    }

    /// A packet came from the link that echoes this timestamp.
    pub(crate) fn echoed(&mut self, echo: u32) {
        self.ratio.echoed(echo);
    }

    /// A segment towards the link, and `output`, which is to go there for it: puts into `out` what goes now (§2, §5).
    pub(crate) fn offer(
        &mut self,
        now: Time,
        pace: Pace,
        (segment, output): (&Segment, Output),
        counts: &mut Counts,
        out: &mut Vec<(Output, Option<Ack>)>,
    ) {
        self.every = match pace {
            Pace::AtOnce => 0,
            Pace::Every(time) => time,
            Pace::Ratio { .. } => ratio::WAIT_NS_MAX,
        };
        let ack = self.stream.read(segment);
        counts.acks_seen += u64::from(ack.as_ref().is_some_and(Ack::is_pure));
        if let Some(held) = self.held.take() {
            let before = self.passed.as_ref().map(Ack::position);
            let said = ack.as_ref().map(|ack| ack.says(&held.ack, before));
            match said {
                Some(Ok(why)) => counts.drop_ack(match pace {
                    Pace::Ratio { .. } => Dropped::Thinned,
                    _ => why,
                }),
                other => {
                    // What is no acknowledgement at all, a reset say, comes behind it too.
                    if let Some(Err(why)) = other {
                        counts.keep_ack(why);
                    }
                    out.push(self.pass(now, held));
                }
            }
        }
        let Some(ack) = ack else {
            return out.push((output, None));
        };
        let follows = self.passed.as_ref().is_some_and(|it| ack.follows(it));
        let waits = match pace {
            Pace::AtOnce => false,
            Pace::Every(_) => true,
            Pace::Ratio { most, marked } => {
                self.ratio.see(now, ack.sent(), (most, marked), counts);
                // A sender that hears of congestion is to hear of it at once.
                follows && !ack.has_ecn() && self.ratio.is_one_of_several()
            }
        };
        let it = Held { ack, output };
        match waits && follows && now < self.next {
            true => self.held = Some(it),
            false => out.push(self.pass(now, it)),
        }
    }

    /// The acknowledgement that waits, if its time has come.
    pub(crate) fn due(&mut self, now: Time) -> Option<(Output, Option<Ack>)> {
        match self.deadline() {
            Some(at) if at <= now => self.let_go(now),
            _ => None,
        }
    }

    /// The acknowledgement that waits, whatever its time.
    pub(crate) fn let_go(&mut self, now: Time) -> Option<(Output, Option<Ack>)> {
        let Held { ack, output } = self.held.take()?;
        // A packet that was changed keeps its cause.
        let cause = match output.cause {
            Cause::Passed => Cause::Released,
            cause => cause,
        };
        let output = Output { cause, ..output };
        Some(self.pass(now, Held { ack, output }))
    }

    fn pass(&mut self, now: Time, Held { ack, output }: Held) -> (Output, Option<Ack>) {
        if ack.is_plain() {
            self.next = now.saturating_add(self.every);
        }
        self.ratio.passed();
        self.passed = Some(ack.clone());
        (output, Some(ack))
    }
}

impl Counts {
    pub(crate) fn drop_ack(&mut self, why: Dropped) {
        *self.acks_dropped.entry(why).or_default() += 1;
    }

    pub(crate) fn keep_ack(&mut self, why: Kept) {
        *self.acks_kept.entry(why).or_default() += 1;
    }
}
