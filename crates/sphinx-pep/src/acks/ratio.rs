//! Congestion control of acknowledgements (§5): while they wait too long for the link, one goes on for several.

use serde::Serialize;

use super::ReturnQueue;
use crate::{MS, Time, stats::Counts};

/// How long an acknowledgement waits at most for others to come.
pub(super) const WAIT_NS_MAX: Time = 100 * MS;
/// Default of [`AckCc::most`].
const RATIO: u32 = 25;
/// Largest value of [`AckCc::most`].
pub const RATIO_MAX: u32 = 100;
/// Default of [`AckCc::mark_ns`], in nanoseconds.
const MARK_NS: Time = 50 * MS;
/// A round trip of a connection of which none is known, as it has no timestamps or nothing comes back.
const ROUND_NS: Time = 1_000 * MS;

/// Least time between two marks of a flow: less than any round trip over a link on which packets wait.
const TELL_NS: Time = 20 * MS;

/// Where acknowledgements wait, and where fewer go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Marks {
    /// Both at this agent.
    #[default]
    Own,
    /// They wait here; an agent of the machine that sends them is told ([`Agent::poll_mark`](crate::Agent::poll_mark)).
    Tell,
    /// Fewer go on here; an agent in front of the link tells when ([`Agent::handle_mark`](crate::Agent::handle_mark)).
    Hear,
}

/// How acknowledgements become fewer while they wait for the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AckCc {
    /// The agent's own queue in front of the hop, if [`AckFilter::queue`](super::AckFilter::queue) is none. One of the two has to be there, but with
    /// [`Marks::Hear`].
    pub queue: Option<ReturnQueue>,
    /// How long a flow's packets may wait there before it is marked, in nanoseconds.
    pub mark_ns: Time,
    /// For how many acknowledgements one goes on at most; [`RATIO_MAX`] at most.
    pub most: u32,
    /// Which of the two this agent does, if another one does the rest.
    pub marks: Marks,
}

impl Default for AckCc {
    fn default() -> AckCc {
        AckCc {
            queue: None,
            mark_ns: MARK_NS,
            most: RATIO,
            marks: Marks::Own,
        }
    }
}

/// The state of a flow: for how many acknowledgements one goes on at present.
#[derive(Debug)]
pub(super) struct Ratio {
    ratio: u32,
    /// Whether `ratio` has been doubled in this round trip.
    is_doubled: bool,
    /// The timestamp whose echo ends the round trip, if there are timestamps, and when the round trip began.
    round: Option<(Option<u32>, Time)>,
    is_over: bool,
    /// Acknowledgements of this round trip and the one before it.
    seen: u32,
    before: u32,
    /// Acknowledgements that came since the last one that went on.
    since: u32,
    /// When another agent said that acknowledgements wait too long, and when this agent told another one so.
    heard: Option<Time>,
    told: Option<Time>,
}

impl Default for Ratio {
    fn default() -> Ratio {
        Ratio {
            ratio: 1,
            is_doubled: false,
            round: None,
            is_over: false,
            seen: 0,
            before: 0,
            since: 0,
            heard: None,
            told: None,
        }
    }
}

impl Ratio {
    /// A packet from the link echoes this timestamp.
    pub(super) fn echoed(&mut self, echo: u32) {
        if let Some((Some(sent), _)) = self.round {
            self.is_over |= echo.wrapping_sub(sent) as i32 >= 0;
        }
    }

    pub(super) fn hear(&mut self, now: Time) {
        self.heard = Some(now);
    }

    /// One that was said long ago is of another queue than there is now.
    pub(super) fn take_mark(&mut self, now: Time) -> bool {
        let heard = self.heard.take();
        heard.is_some_and(|at| now.saturating_sub(at) < ROUND_NS)
    }

    pub(super) fn may_tell(&mut self, now: Time) -> bool {
        let may = self.told.is_none_or(|at| now.saturating_sub(at) >= TELL_NS);
        if may {
            self.told = Some(now);
        }
        may
    }

    /// Takes note of an acknowledgement that has come.
    pub(super) fn see(
        &mut self,
        now: Time,
        sent: Option<u32>,
        (most, marked): (u32, bool),
        counts: &mut Counts,
    ) {
        let (_, began) = *self.round.get_or_insert((sent, now));
        if self.is_over || now.saturating_sub(began) >= ROUND_NS {
            if !self.is_doubled {
                self.ratio = self.ratio.saturating_sub(1).max(1);
            }
            (self.before, self.seen) = (self.seen, 0);
            (self.is_over, self.is_doubled) = (false, false);
            self.round = Some((sent, now));
        }
        if marked && !self.is_doubled {
            self.is_doubled = true;
            self.ratio = self.ratio.saturating_mul(2);
            counts.acks_marked += 1;
        }
        self.ratio = self.ratio.clamp(1, most.clamp(1, RATIO_MAX));
        counts.ack_ratio_max = counts.ack_ratio_max.max(u64::from(self.ratio));
        self.seen = self.seen.saturating_add(1);
        self.since = self.since.saturating_add(1);
    }

    /// Whether another one will do for the one that has just come: two at least go in each round trip.
    pub(super) fn is_one_of_several(&self) -> bool {
        self.since < self.ratio.min(self.before / 2)
    }

    pub(super) fn passed(&mut self) {
        self.since = 0;
    }
}
