//! A client's attempts to connect: handshakes with the addresses of its peer, the next one begun while those before it are not answered.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::Remote;
use super::early::Beginner;
use crate::control::ConnId;
use crate::endpoint::attempt_delay;
use crate::error::{Error, ErrorKind};

/// An attempt to connect is over after so many refusals …
const REFUSALS_MIN: u32 = 3;
/// … over so long a time: who forges them has to go on, and who starts the other end at the same moment
/// is waited for. Handshake datagrams are repeated within it.
const REFUSED_FOR: Duration = Duration::from_millis(250);

/// A handshake of a client.
struct Attempt {
    id: ConnId,
    remote: SocketAddr,
    /// How often the network has said that nobody listens there, and when for the first time.
    refusals: u32,
    refused_since: Option<Instant>,
}

/// The attempts of a client; a server has none.
#[derive(Default)]
pub(super) struct Attempts {
    /// Index of the peer's address that is tried next.
    next: usize,
    /// Handshakes under way.
    under_way: Vec<Attempt>,
    /// Why the last attempt failed, or the clearest answer so far.
    failure: Option<Error>,
    /// The first attempt, if its session is to begin before the handshake is over.
    beginner: Option<Beginner>,
}

impl Attempts {
    /// The next address to try, if it is due this long after the engine has begun: at its time, or as soon as no handshake is under way.
    pub(super) fn next_due<'a>(
        &mut self,
        remotes: &'a [Remote],
        elapsed: Duration,
    ) -> Option<&'a Remote> {
        let remote = remotes.get(self.next)?;
        if elapsed < attempt_delay(self.next) && !self.under_way.is_empty() {
            return None;
        }
        self.next += 1;
        Some(remote)
    }

    /// When the next address is due, counted from when the engine has begun; `None`: all have been tried.
    pub(super) fn next_delay(&self, remotes: &[Remote]) -> Option<Duration> {
        (self.next < remotes.len()).then(|| attempt_delay(self.next))
    }

    /// Whether all addresses have been tried and no handshake is under way.
    pub(super) fn are_over(&self, remotes: &[Remote]) -> bool {
        self.under_way.is_empty() && self.next >= remotes.len()
    }

    /// A handshake with this address has begun.
    pub(super) fn begin(&mut self, id: ConnId, remote: SocketAddr) {
        self.under_way.push(Attempt {
            id,
            remote,
            refusals: 0,
            refused_since: None,
        });
    }

    /// No handshake could begin with an address.
    pub(super) fn cannot_begin(&mut self, why: Error) {
        self.failure.get_or_insert(why);
    }

    /// The session of this attempt is to begin at once, unless another one is to.
    pub(super) fn will_begin(&mut self, beginner: Option<Beginner>) {
        self.beginner = self.beginner.take().or(beginner);
    }

    /// The attempt whose session is to begin at once.
    pub(super) fn take_beginner(&mut self) -> Option<Beginner> {
        self.beginner.take()
    }

    /// The network says that nobody listens at `remote`: the attempt there, if that has been said often and long enough to be believed.
    pub(super) fn on_refused(&mut self, clock: Instant, remote: SocketAddr) -> Option<ConnId> {
        let mut under_way = self.under_way.iter_mut();
        let attempt = under_way.find(|attempt| attempt.remote == remote)?;
        attempt.refusals += 1;
        let since = *attempt.refused_since.get_or_insert(clock);
        let lasting = clock.duration_since(since) >= REFUSED_FOR;
        (lasting && attempt.refusals >= REFUSALS_MIN).then_some(attempt.id)
    }

    /// An attempt has failed; nothing happens if this is none that is under way.
    pub(super) fn fail(&mut self, id: ConnId, error: Error) {
        if !self.under_way.iter().any(|attempt| attempt.id == id) {
            return;
        }
        self.forget(id);
        // The clearest answer wins: being refused says more than not being answered.
        let failure = self.failure.as_ref();
        if failure.is_none_or(|known| known.kind() == ErrorKind::Unreachable) {
            self.failure = Some(error);
        }
    }

    /// Why attempts have failed, as clearly as it is known.
    pub(super) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// The attempt is not under way any more.
    pub(super) fn forget(&mut self, id: ConnId) {
        self.under_way.retain(|attempt| attempt.id != id);
    }

    /// Those under way, which are not to go on.
    pub(super) fn take_all(&mut self) -> Vec<ConnId> {
        self.under_way.drain(..).map(|attempt| attempt.id).collect()
    }
}
