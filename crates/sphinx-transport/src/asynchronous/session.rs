//! A session for tasks.

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};

use super::datagram::Waiters;
use super::{RecvStream, SendStream};
use crate::error::Error;
use crate::signal::Waiter;

/// An authenticated association with a peer: [`crate::Session`] for tasks. Cheap to clone.
///
/// When the last clone goes, of either kind, the session is closed with code 6.
pub struct Session {
    session: crate::Session,
    accepting_uni: Waiter,
    accepting_bi: Waiter,
    opening_uni: Waiter,
    opening_bi: Waiter,
    ending: Waiter,
    datagrams: Waiters,
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
            accepting_uni: Waiter::new(&signals.accepting_uni),
            accepting_bi: Waiter::new(&signals.accepting_bi),
            opening_uni: Waiter::new(&signals.opening_uni),
            opening_bi: Waiter::new(&signals.opening_bi),
            ending: Waiter::new(&signals.ending),
            datagrams: Waiters::new(&session),
            session,
        }
    }
}

impl From<Session> for crate::Session {
    fn from(session: Session) -> Self {
        session.session
    }
}

fn both_ways((send, recv): (crate::SendStream, crate::RecvStream)) -> (SendStream, RecvStream) {
    (send.into(), recv.into())
}

impl Session {
    pub(super) fn datagrams(&mut self) -> (&crate::Session, &mut Waiters) {
        (&self.session, &mut self.datagrams)
    }

    /// The same session, for what does not wait: its statistics, limits and rate control, the peer's address, why it has ended.
    pub fn as_blocking(&self) -> &crate::Session {
        &self.session
    }

    /// Opens the next stream to the peer; waits while as many are open as [may be](crate::Session::open_uni).
    ///
    /// *Cancelling* opens none.
    ///
    /// # Errors
    /// When the session has ended.
    pub async fn open_uni(&self) -> Result<SendStream, Error> {
        let mut waiter = Waiter::new(&self.session.signals().opening_uni);
        let opened = poll_fn(|cx| self.session.poll_open_uni(&mut waiter, cx)).await;
        opened.map(SendStream::from)
    }

    /// [`open_uni`](Self::open_uni), polled.
    ///
    /// # Errors
    /// When the session has ended.
    pub fn poll_open_uni(&mut self, cx: &mut Context<'_>) -> Poll<Result<SendStream, Error>> {
        let opened = self.session.poll_open_uni(&mut self.opening_uni, cx);
        opened.map_ok(SendStream::from)
    }

    /// Waits for the next stream that the peer opens with [`open_uni`](Self::open_uni), in the order of ids.
    ///
    /// *Cancelling* takes nothing: a stream that has arrived is the next call's.
    ///
    /// # Errors
    /// When the session ends.
    pub async fn accept_uni(&self) -> Result<RecvStream, Error> {
        let mut waiter = Waiter::new(&self.session.signals().accepting_uni);
        let accepted = poll_fn(|cx| self.session.poll_accept_uni(&mut waiter, cx)).await;
        accepted.map(RecvStream::from)
    }

    /// [`accept_uni`](Self::accept_uni), polled.
    ///
    /// # Errors
    /// When the session ends.
    pub fn poll_accept_uni(&mut self, cx: &mut Context<'_>) -> Poll<Result<RecvStream, Error>> {
        let accepted = self.session.poll_accept_uni(&mut self.accepting_uni, cx);
        accepted.map_ok(RecvStream::from)
    }

    /// Opens the next stream on which both ends send; waits while as many are open as [may be](crate::Session::open_bi).
    ///
    /// *Cancelling* opens none.
    ///
    /// # Errors
    /// When the session has ended.
    pub async fn open_bi(&self) -> Result<(SendStream, RecvStream), Error> {
        let mut waiter = Waiter::new(&self.session.signals().opening_bi);
        let opened = poll_fn(|cx| self.session.poll_open_bi(&mut waiter, cx)).await;
        opened.map(both_ways)
    }

    /// [`open_bi`](Self::open_bi), polled.
    ///
    /// # Errors
    /// When the session has ended.
    pub fn poll_open_bi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(SendStream, RecvStream), Error>> {
        let opened = self.session.poll_open_bi(&mut self.opening_bi, cx);
        opened.map_ok(both_ways)
    }

    /// Waits for the next stream that the peer opens with [`open_bi`](Self::open_bi), in the order of ids.
    ///
    /// *Cancelling* takes nothing: a stream that has arrived is the next call's.
    ///
    /// # Errors
    /// When the session ends.
    pub async fn accept_bi(&self) -> Result<(SendStream, RecvStream), Error> {
        let mut waiter = Waiter::new(&self.session.signals().accepting_bi);
        let accepted = poll_fn(|cx| self.session.poll_accept_bi(&mut waiter, cx)).await;
        accepted.map(both_ways)
    }

    /// [`accept_bi`](Self::accept_bi), polled.
    ///
    /// # Errors
    /// When the session ends.
    pub fn poll_accept_bi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(SendStream, RecvStream), Error>> {
        let accepted = self.session.poll_accept_bi(&mut self.accepting_bi, cx);
        accepted.map_ok(both_ways)
    }

    /// Waits until the [handshake is over](crate::Session::is_confirmed).
    ///
    /// *Cancelling* changes nothing.
    ///
    /// # Errors
    /// When the session ends before.
    pub async fn wait_confirmed(&self) -> Result<(), Error> {
        let mut waiter = Waiter::new(&self.session.signals().confirming);
        poll_fn(|cx| self.session.poll_confirmed(&mut waiter, cx)).await
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
