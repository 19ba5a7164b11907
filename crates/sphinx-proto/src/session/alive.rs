//! Keep-alive: what an idle end sends, and when a peer that is not heard counts as lost.

use super::{MS, Session};
use crate::config::Role;
use crate::{Nanos, PathId, Time};

/// An idle end is never silent for longer than this.
const KEEP_ALIVE_MAX: Nanos = 3_000 * MS;
/// A peer's idle timeout below this counts as this.
const PEER_IDLE_TIMEOUT_MIN: Nanos = 1_000 * MS;
/// Longest silence of the client of a quiet session. Many NATs forget what has not been used for 30 s.
const QUIET_KEEP_ALIVE_MAX: Nanos = 22_000 * MS;
/// After so many of these silences without an answer the client asks for one.
const QUIET_UNANSWERED: u64 = 3;

impl Session {
    /// Longest silence of an idle end of a session that is not quiet.
    pub(super) fn keep_alive(&self) -> Nanos {
        (self.shorter_idle_timeout() / 4).clamp(MS, KEEP_ALIVE_MAX)
    }

    fn quiet_keep_alive(&self) -> Nanos {
        (self.shorter_idle_timeout() / 3).clamp(MS, QUIET_KEEP_ALIVE_MAX)
    }

    /// The shorter idle timeout of both ends, so that both keep alive for the same one. A peer's is
    /// bounded below, so that it cannot make this end send without need.
    fn shorter_idle_timeout(&self) -> Nanos {
        let own = self.config.idle_timeout;
        let theirs = self.config.peer_idle_timeout.unwrap_or(own);
        own.min(theirs.max(PEER_IDLE_TIMEOUT_MIN))
    }

    /// After this time without a packet on a path this end sends one; `None`: the other end keeps
    /// the path alive.
    pub(super) fn silence_max(&self) -> Option<Nanos> {
        match (self.config.quiet, self.config.role) {
            (false, _) => Some(self.keep_alive()),
            (true, Role::Client) => Some(self.quiet_keep_alive()),
            (true, Role::Server) => None,
        }
    }

    /// The longest time for which a live peer that is not asked is silent, even if its address has
    /// changed.
    pub(super) fn peer_silence_max(&self) -> Nanos {
        match (self.config.quiet, self.config.role) {
            (true, Role::Server) => self.quiet_keep_alive(),
            // The server keeps its address, and the client asks it.
            (true, Role::Client) | (false, _) => KEEP_ALIVE_MAX,
        }
    }

    /// When the peer counts as lost. In a quiet session that is counted from when it was asked for an answer: it says nothing
    /// by itself for so long that a blackout at the end of that would be the end of the session.
    pub(super) fn idle_at(&self) -> Time {
        let pause = match (self.config.quiet, self.asked_at, self.config.role) {
            (false, ..) => 0,
            (true, Some(asked), _) => return asked + self.config.idle_timeout,
            (true, None, Role::Client) => QUIET_UNANSWERED * self.quiet_keep_alive(),
            (true, None, Role::Server) => self.quiet_keep_alive(),
        };
        self.last_received + pause + self.config.idle_timeout
    }

    /// The peer is to acknowledge a packet of this path: a PING leaves, unless something is under way that will be acknowledged. An end that only
    /// receives sends nothing but feedback there, which nobody acknowledges.
    pub fn ask(&mut self, path: PathId) {
        if let Some(at) = self.paths.index(path) {
            let lane = self.paths.at_mut(at);
            if !lane.path.has_in_flight() {
                lane.scheduler.ping();
            }
        }
    }

    /// Sends something on every path on which nothing was sent for long.
    pub(super) fn keep_paths_alive(&mut self, now: Time) {
        let Some(silence_max) = self.silence_max() else {
            return;
        };
        // If the peer was heard within the last two and a half silences, it need not be asked. The
        // half is there because an answer arrives a little after it was asked for.
        let answered = (QUIET_UNANSWERED - 1) * silence_max + silence_max / 2;
        let is_heard = self.config.quiet && now < self.last_received + answered;
        for lane in self.paths.iter_mut() {
            if !lane.path.is_validated() || now < lane.last_sent + silence_max {
                continue;
            }
            match is_heard && lane.path.acks().largest().is_some() {
                // Repeating the last SACK keeps the path alive, and the peer does not answer it.
                true => lane.path.want_sack(now),
                false => lane.scheduler.ping(),
            }
        }
    }
}
