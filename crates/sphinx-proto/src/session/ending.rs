//! How a session ends (`docs/protocol.md` §9).

use super::{MS, Session};
use crate::types::{Event, StreamId};
use crate::{Nanos, Time};

/// When copies of CLOSE are sent, counted from the first.
pub(super) const CLOSE_TIMES: [Nanos; 6] = [0, 5 * MS, 20 * MS, 60 * MS, 150 * MS, 300 * MS];
/// Close code of an end that gives up, and has cancelled nothing (`docs/protocol.md` §2).
pub const CLOSE_LOST: u64 = 12;
/// How long a closed session still answers.
pub(super) const DRAIN: Nanos = 400 * MS;

#[derive(Debug)]
pub(super) enum Life {
    Open,
    /// This end closes: how many copies of CLOSE have left, and when the first was due.
    Closing {
        code: u64,
        reason: String,
        copies: usize,
        since: Time,
    },
    /// The peer closed: how many answers are to leave, and until when CLOSE is answered.
    Draining {
        answers: u32,
        until: Time,
    },
    Finished,
}

impl Session {
    /// End the session: CLOSE is sent several times.
    pub fn close(&mut self, now: Time, code: u64, reason: &str) {
        if matches!(self.life, Life::Open) {
            self.life = Life::Closing {
                code,
                reason: reason.to_owned(),
                copies: 0,
                since: now,
            };
        }
    }

    /// Ends the session without telling the peer.
    pub fn abandon(&mut self) {
        self.life = Life::Finished;
    }

    pub(super) fn peer_closed(&mut self, now: Time, code: u64, reason: &str) {
        match &mut self.life {
            Life::Open => {
                let reason = reason.to_owned();
                self.events.push_back(Event::Closed { code, reason });
                self.life = Life::Draining {
                    answers: 2,
                    until: now + DRAIN,
                };
            }
            Life::Draining { answers, .. } => *answers = (*answers + 1).min(2),
            // Our CLOSE was answered, or both ends closed at once.
            Life::Closing { .. } => {
                self.life = Life::Draining {
                    answers: 1,
                    until: now + DRAIN,
                }
            }
            Life::Finished => {}
        }
    }

    pub(super) fn stalled(&mut self, now: Time, held_up: Option<StreamId>) {
        self.events.push_back(Event::Stalled { held_up });
        let reason = match held_up {
            Some(stream) => format!("nothing of stream {stream} was read at this end for too long"),
            None => "nothing sent to this end was confirmed for too long".to_owned(),
        };
        self.close(now, CLOSE_LOST, &reason);
    }

    pub(super) fn violation(&mut self, now: Time, what: &'static str) {
        if matches!(self.life, Life::Open) {
            self.events.push_back(Event::Violation(what));
            self.close(now, 5, what);
        }
    }

    /// Whether the peer has answered CLOSE, or closed itself.
    pub fn is_closed_by_peer(&self) -> bool {
        matches!(self.life, Life::Draining { .. } | Life::Finished)
    }

    /// Whether nothing more will happen.
    pub fn is_finished(&self) -> bool {
        matches!(self.life, Life::Finished)
    }
}
