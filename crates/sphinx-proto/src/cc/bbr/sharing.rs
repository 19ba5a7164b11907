//! One of several flows in a queue that marks.
//!
//! Marks at the estimate tell that others have a part of the link: a flow that has it alone knows its rate, and meets marks only when it probes. Where
//! all fall by the same part and rise by the same part, shares stay what they are. So a flow that meets such marks falls by a part of its
//! rate, and rises with the time since, whatever its rate: with each mark the shares come closer to each other (Chiu and Jain, 1989), as
//! all see the same queue. What it gains bends upwards, as with H-TCP, so that two flows on a fast link need hardly longer than fifty on a slow one.
//!
//! Now and then a flow ignores a mark. If marks go on, nobody else has slowed down: it is alone, and probes as before.

use super::super::{Nanos, SEC, Time, bytes_in, rate_of};

/// The rate grows by a full packet in this time, in each such time: so much at first, …
const GROWTH: Nanos = SEC / 20;
/// … twice that after this time without a mark, five times after twice this time.
const BEND: Nanos = SEC / 5;
/// Beside somebody who does not yield to a queue the window grows by so many packets in a second, and by so many more with each second squared since
/// the latest fall: about as CUBIC's does after a loss (RFC 9438, section 4.2).
const SLOW_GROWTH: f64 = 2.5;
const SLOW_BEND: f64 = 0.5;
/// Beside BBR, which leaves no more than it is made to, the rate also grows by this part of it in a second.
const GROWTH_BESIDE_BBR: f64 = 0.2;
/// Growth in a round trip at most, and none until it is known whether the latest fall was enough: so much at first, twice that when growth bends, …
const GROWTH_AT_FIRST: f64 = 0.1;
/// … and never more than this.
const GROWTH_MOST: f64 = 0.25;
/// After so long without a mark there is nobody else.
const QUIET: Nanos = 3 * SEC;
/// One mark of so many is ignored.
const IGNORED: u64 = 16;
/// Round trips after which marks belong to what was sent since the latest reaction, and after which all others have reacted, who may hear of them later.
const REACTION: Nanos = 2;
const OTHERS_REACTION: Nanos = 4;
/// Marks within this time, or so many round trips, come from the same queue.
const AGAIN: Nanos = 2 * BEND;
const AGAIN_ROUNDS: Nanos = 16;
/// The same, of the rounds of a flow that sends so little that enough packets for a judgement take longer.
const AGAIN_LONG_ROUNDS: Nanos = 8;

/// What the queue says of a mark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Evidence {
    /// Nothing: a probe of this flow may have left such a queue.
    Nothing,
    /// The queue is longer than a probe leaves, if the link is not slow.
    Queue,
    /// The queue is longer than a probe leaves: there are other flows.
    Others,
}

/// Who keeps up the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Filler {
    /// Flows like this one.
    Ours,
    /// A flow that does not yield to this one.
    Other,
    /// BBR, which has most of the link.
    Bbr,
}

/// Whether others use the link too, and what follows from it.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    state: Option<Shared>,
    /// Latest mark while nobody else was known.
    met_at: Option<Time>,
}

#[derive(Debug)]
struct Shared {
    /// Latest mark that was obeyed or ignored, and which of both.
    marked_at: Time,
    is_ignored: bool,
    grown_at: Time,
    /// The queue is asked, which does not mark: [`super::crowd`] knows when there is nobody else.
    is_by_queue: bool,
}

impl Shared {
    fn new(now: Time) -> Self {
        Self {
            marked_at: now,
            is_ignored: false,
            grown_at: now,
            is_by_queue: false,
        }
    }

    /// A mark would be one of what was sent since the latest reaction.
    fn would_react(&self, now: Time, rtt: Nanos) -> bool {
        let rounds = match self.is_ignored {
            true => OTHERS_REACTION,
            false => REACTION,
        };
        now.saturating_sub(self.marked_at) >= rounds * rtt
    }
}

/// Chance that flows with other numbers do not share.
pub(super) fn is_one_in(many: u64, number: u64) -> bool {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 < (1 << 32) / many
}

impl Sharing {
    pub(super) fn is_on(&self) -> bool {
        self.state.is_some()
    }

    /// Whether a queue that does not mark is shared.
    pub(super) fn is_by_queue(&self) -> bool {
        self.state.as_ref().is_some_and(|shared| shared.is_by_queue)
    }

    /// There are others in a queue that does not mark.
    pub(super) fn begin(&mut self, now: Time) {
        self.state = Some(Shared {
            is_by_queue: true,
            ..Shared::new(now)
        });
    }

    /// Forgets what is known of other flows.
    pub(super) fn end(&mut self) {
        self.state = None;
    }

    /// Whether a mark would count now.
    pub(super) fn would_react(&self, now: Time, rtt: Nanos) -> bool {
        (self.state.as_ref()).is_some_and(|shared| shared.would_react(now, rtt))
    }

    /// Packets sent at the estimate were marked. Whether to send less; `number` decides what is ignored, and is not the same for others.
    pub(super) fn on_marks(
        &mut self,
        now: Time,
        (rtt, long_round): (Nanos, Nanos),
        number: u64,
        evidence: Evidence,
    ) -> bool {
        let Some(shared) = &mut self.state else {
            let last = self.met_at.replace(now);
            let span = AGAIN.max((AGAIN_ROUNDS * rtt).max(AGAIN_LONG_ROUNDS * long_round));
            let is_again = last.is_some_and(|last| now.saturating_sub(last) < span);
            if evidence == Evidence::Others || (evidence == Evidence::Queue && is_again) {
                self.state = Some(Shared::new(now));
            }
            return true;
        };
        if !shared.would_react(now, rtt) {
            return false;
        }
        if shared.is_ignored {
            self.state = None;
            return true;
        }
        shared.marked_at = now;
        shared.is_ignored = is_one_in(IGNORED, number) && !shared.is_by_queue;
        !shared.is_ignored
    }

    /// Time has passed, at the rate `bw` or below it: the rate from now on, and whether to send less. Without marks for long there is
    /// nobody else, unless there is a queue of somebody who does not yield, beside which rates grow slowly.
    pub(super) fn on_time(
        &mut self,
        now: Time,
        (bw, is_cruising): (f64, bool),
        (packet_bytes, rtt): (f64, Nanos),
        filler: Filler,
    ) -> (f64, bool) {
        let Some(shared) = &mut self.state else {
            return (bw, false);
        };
        let span = now.saturating_sub(shared.grown_at);
        shared.grown_at = now;
        let since = now.saturating_sub(shared.marked_at);
        if shared.is_ignored {
            // Without marks for half as long again, the others have made the queue shorter.
            let falls = since > OTHERS_REACTION * rtt * 3 / 2;
            shared.is_ignored = !falls;
            return (bw, falls);
        }
        if since > QUIET && filler == Filler::Ours {
            self.state = None;
        } else if is_cruising && since > REACTION * rtt {
            let seconds = since as f64 / SEC as f64;
            let bend = since as f64 / BEND as f64;
            let slow = rate_of(packet_bytes, rtt) * (SLOW_GROWTH + SLOW_BEND * seconds * seconds);
            let growth = match filler {
                Filler::Ours => {
                    rate_of(rate_of(packet_bytes, GROWTH), GROWTH) * (1.0 + bend * bend)
                }
                Filler::Other => slow,
                Filler::Bbr => slow + GROWTH_BESIDE_BBR * bw,
            };
            let most = (GROWTH_AT_FIRST * (1.0 + bend)).min(GROWTH_MOST);
            let most = rate_of(most * bw, rtt);
            return (bw + bytes_in(growth.min(most), span), false);
        }
        (bw, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::MS;
    use crate::time::time;

    const RTT: Nanos = 20 * MS;

    fn shared() -> Sharing {
        let mut sharing = Sharing::default();
        assert!(sharing.on_marks(time(SEC), (RTT, RTT), 0, Evidence::Others));
        assert!(sharing.is_on());
        sharing
    }

    #[test]
    fn what_a_probe_leaves_tells_of_nobody() {
        let mut sharing = Sharing::default();
        for at in 1..9 {
            assert!(sharing.on_marks(time(at * 100 * MS), (RTT, RTT), 0, Evidence::Nothing));
        }
        assert!(sharing.on_marks(time(2 * SEC), (RTT, RTT), 0, Evidence::Queue));
        assert!(!sharing.is_on());
        assert!(sharing.on_marks(time(2 * SEC + 300 * MS), (RTT, RTT), 0, Evidence::Queue));
        assert!(sharing.is_on());
    }

    #[test]
    fn all_rates_grow_alike() {
        let grown = |bw| {
            let mut sharing = shared();
            let (after, falls) = sharing.on_time(
                time(SEC + 200 * MS),
                (bw, true),
                (1500.0, RTT),
                Filler::Ours,
            );
            assert!(!falls);
            after - bw
        };
        assert_eq!(grown(1e6), grown(1e8));
        assert!(grown(1e4) < grown(1e6));
    }

    #[test]
    fn marks_that_go_on_although_all_have_heard_of_them_mean_nobody_else() {
        // 0 is ignored.
        let at = |rounds| time(SEC + rounds * RTT);
        let mut alone = shared();
        assert!(!alone.on_marks(at(3), (RTT, RTT), 0, Evidence::Others));
        assert!(!alone.on_marks(at(6), (RTT, RTT), 0, Evidence::Others));
        assert!(alone.on_marks(at(8), (RTT, RTT), 0, Evidence::Others));
        assert!(!alone.is_on());

        let mut one_of_many = shared();
        assert!(!one_of_many.on_marks(at(3), (RTT, RTT), 0, Evidence::Others));
        let (_, falls) = one_of_many.on_time(at(10), (1e6, true), (1500.0, RTT), Filler::Ours);
        assert!(falls && one_of_many.is_on());
    }
}
