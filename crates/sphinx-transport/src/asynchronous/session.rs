//! A session for tasks.

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};

use super::{RecvStream, SendStream};
use crate::error::Error;
use crate::signal::Waiter;

/// An authenticated association with a peer: [`crate::Session`] for tasks. Cheap to clone.
///
/// When the last clone goes, of either kind, the session is closed with code 6.
pub struct Session {
    session: crate::Session,
    accepting: Waiter,
    opening: Waiter,
    ending: Waiter,
}

impl Clone for Session {
    fn clone(&self) -> Self {
        self.session.clone().into()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.session.fmt(f)
    }
}

impl From<crate::Session> for Session {
    fn from(session: crate::Session) -> Self {
        let signals = session.signals();
        Self {
            accepting: Waiter::new(&signals.accepting),
            opening: Waiter::new(&signals.opening),
            ending: Waiter::new(&signals.ending),
            session,
        }
    }
}

impl From<Session> for crate::Session {
    fn from(session: Session) -> Self {
        session.session
    }
}

impl Session {
    /// The same session, for what does not wait: its statistics, limits, the peer's address, why it has ended.
    pub fn as_blocking(&self) -> &crate::Session {
        &self.session
    }

    /// Opens the next stream towards the peer; waits while as many are open as [may be](crate::Session::open_stream).
    ///
    /// *Cancelling* opens none.
    ///
    /// # Errors
    /// When the session has ended.
    pub async fn open_stream(&self) -> Result<SendStream, Error> {
        let mut waiter = Waiter::new(&self.session.signals().opening);
        let opened = poll_fn(|cx| self.session.poll_open_stream(&mut waiter, cx)).await;
        opened.map(SendStream::from)
    }

    /// [`open_stream`](Self::open_stream), polled.
    ///
    /// # Errors
    /// When the session has ended.
    pub fn poll_open_stream(&mut self, cx: &mut Context<'_>) -> Poll<Result<SendStream, Error>> {
        let opened = self.session.poll_open_stream(&mut self.opening, cx);
        opened.map_ok(SendStream::from)
    }

    /// Waits for the next stream that the peer opens, in the order of ids.
    ///
    /// *Cancelling* takes nothing: a stream that has arrived is the next call's.
    ///
    /// # Errors
    /// When the session ends.
    pub async fn accept_stream(&self) -> Result<RecvStream, Error> {
        let mut waiter = Waiter::new(&self.session.signals().accepting);
        let accepted = poll_fn(|cx| self.session.poll_accept_stream(&mut waiter, cx)).await;
        accepted.map(RecvStream::from)
    }

    /// [`accept_stream`](Self::accept_stream), polled.
    ///
    /// # Errors
    /// When the session ends.
    pub fn poll_accept_stream(&mut self, cx: &mut Context<'_>) -> Poll<Result<RecvStream, Error>> {
        let accepted = self.session.poll_accept_stream(&mut self.accepting, cx);
        accepted.map_ok(RecvStream::from)
    }

    /// Ends the session as [`crate::Session::close`] does, and waits until the peer has answered, or has not for a third of a second or so.
    ///
    /// *Cancelling* does not take that back: the peer is told all the same, as long as the process lives. Nothing happens before
    /// the first poll.
    pub async fn close(&self, code: u64, reason: &str) {
        self.session.begin_close(code, reason);
        let mut waiter = Waiter::new(&self.session.signals().ending);
        poll_fn(|cx| self.session.poll_close_answered(&mut waiter, cx)).await;
    }

    /// Waits until the session ends: why it has.
    ///
    /// *Cancelling* changes nothing.
    pub async fn closed(&self) -> Error {
        let mut waiter = Waiter::new(&self.session.signals().ending);
        poll_fn(|cx| self.session.poll_closed(&mut waiter, cx)).await
    }

    /// [`closed`](Self::closed), polled.
    pub fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        self.session.poll_closed(&mut self.ending, cx)
    }
}
