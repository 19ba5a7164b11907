//! Datagrams and live messages for tasks. Live messages are sent by [`crate::LiveSender`], which never waits.

use std::future::poll_fn;
use std::ops::Range;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Session;
use crate::datagram::{DatagramInfo, DatagramOptions, LiveInfo, LiveOptions, LiveSender};
use crate::error::Error;
use crate::signal::Waiter;

/// Receives live messages: [`crate::LiveReceiver`] for tasks.
#[derive(Debug)]
pub struct LiveReceiver(crate::LiveReceiver);

impl From<crate::LiveReceiver> for LiveReceiver {
    fn from(receiver: crate::LiveReceiver) -> Self {
        Self(receiver)
    }
}

impl From<LiveReceiver> for crate::LiveReceiver {
    fn from(receiver: LiveReceiver) -> Self {
        receiver.0
    }
}

impl LiveReceiver {
    /// Waits for the next message, as [`crate::LiveReceiver::recv`] does.
    ///
    /// *Cancelling* takes nothing: a message that has arrived is the next call's.
    ///
    /// # Errors
    /// Those of [`crate::LiveReceiver::recv`].
    pub async fn recv(&mut self, buf: &mut [u8]) -> Result<Option<LiveInfo>, Error> {
        poll_fn(|cx| self.0.poll_recv(cx, buf)).await
    }

    /// [`recv`](Self::recv), polled.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    pub fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<Option<LiveInfo>, Error>> {
        self.0.poll_recv(cx, buf)
    }

    /// As [`crate::LiveReceiver::set_on_time`].
    pub fn set_on_time(&mut self, on_time: bool) {
        self.0.set_on_time(on_time);
    }

    /// As [`crate::LiveReceiver::set_latency`].
    pub fn set_latency(&mut self, latency: Duration) {
        self.0.set_latency(latency);
    }

    /// As [`crate::LiveReceiver::take_missing`].
    pub fn take_missing(&mut self) -> Vec<Range<u64>> {
        self.0.take_missing()
    }
}

impl Session {
    /// Sends a datagram, as [`crate::Session::send_datagram`] does; never waits.
    ///
    /// # Errors
    /// Those of [`crate::Session::send_datagram`].
    pub fn send_datagram(&self, data: &[u8], options: &DatagramOptions) -> Result<(), Error> {
        self.as_blocking().send_datagram(data, options)
    }

    /// Sends a datagram, but waits while there is no room without another one going, as [`crate::Session::send_datagram_wait`] does.
    ///
    /// *Cancelling* sends nothing.
    ///
    /// # Errors
    /// Those of [`crate::Session::send_datagram`].
    pub async fn send_datagram_wait(
        &self,
        data: &[u8],
        options: &DatagramOptions,
    ) -> Result<(), Error> {
        let session = self.as_blocking();
        let mut waiter = session.datagram_room_waiter();
        poll_fn(|cx| session.poll_send_datagram(&mut waiter, cx, (data, options))).await
    }

    /// Waits until the datagrams that wait for their turn take at most so many bytes: for whoever has a queue of their own, and decides late
    /// what goes next. What is handed over leaves within some milliseconds.
    ///
    /// *Cancelling* changes nothing.
    ///
    /// # Errors
    /// When the session has ended.
    pub async fn datagrams_below(&self, bytes: usize) -> Result<(), Error> {
        let session = self.as_blocking();
        let mut waiter = session.datagram_room_waiter();
        poll_fn(|cx| session.poll_datagrams_below(&mut waiter, cx, bytes)).await
    }

    /// [`send_datagram_wait`](Self::send_datagram_wait), polled. Nothing has been sent while it is pending.
    ///
    /// # Errors
    /// Those of [`crate::Session::send_datagram`].
    pub fn poll_send_datagram_wait(
        &mut self,
        cx: &mut Context<'_>,
        data: &[u8],
        options: &DatagramOptions,
    ) -> Poll<Result<(), Error>> {
        let (session, waiters) = self.datagrams();
        session.poll_send_datagram(&mut waiters.sending, cx, (data, options))
    }

    /// Waits for a datagram, as [`crate::Session::recv_datagram`] does.
    ///
    /// *Cancelling* takes nothing: a datagram that has arrived is the next call's.
    ///
    /// # Errors
    /// Those of [`crate::Session::recv_datagram`].
    pub async fn recv_datagram(&self, buf: &mut [u8]) -> Result<DatagramInfo, Error> {
        let session = self.as_blocking();
        let mut waiter = session.datagram_waiter();
        poll_fn(|cx| session.poll_recv_datagram(&mut waiter, cx, buf)).await
    }

    /// The same, with its bytes in place of what `buf` holds: whoever waits on many sessions has memory only for what has arrived.
    ///
    /// *Cancelling* takes nothing: a datagram that has arrived is the next call's.
    ///
    /// # Errors
    /// When the session has ended.
    pub async fn take_datagram(&self, buf: &mut Vec<u8>) -> Result<DatagramInfo, Error> {
        let session = self.as_blocking();
        let mut waiter = session.datagram_waiter();
        poll_fn(|cx| session.poll_take_datagram(&mut waiter, cx, buf)).await
    }

    /// [`recv_datagram`](Self::recv_datagram), polled.
    ///
    /// # Errors
    /// Those of [`crate::Session::recv_datagram`].
    pub fn poll_recv_datagram(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<DatagramInfo, Error>> {
        let (session, waiters) = self.datagrams();
        session.poll_recv_datagram(&mut waiters.receiving, cx, buf)
    }

    /// Begins a flow of live messages, as [`crate::Session::open_live`] does. Sending them never waits.
    ///
    /// # Errors
    /// Those of [`crate::Session::open_live`].
    pub fn open_live(&self, options: &LiveOptions) -> Result<LiveSender, Error> {
        self.as_blocking().open_live(options)
    }

    /// Waits for a flow of live messages that the peer has begun.
    ///
    /// *Cancelling* takes nothing: a flow that has begun is the next call's.
    ///
    /// # Errors
    /// When the session has ended.
    pub async fn accept_live(&self) -> Result<LiveReceiver, Error> {
        let session = self.as_blocking();
        let mut waiter = session.live_waiter();
        let accepted = poll_fn(|cx| session.poll_accept_live(&mut waiter, cx)).await;
        accepted.map(LiveReceiver::from)
    }

    /// [`accept_live`](Self::accept_live), polled.
    ///
    /// # Errors
    /// When the session has ended.
    pub fn poll_accept_live(&mut self, cx: &mut Context<'_>) -> Poll<Result<LiveReceiver, Error>> {
        let (session, waiters) = self.datagrams();
        let accepted = session.poll_accept_live(&mut waiters.accepting, cx);
        accepted.map_ok(LiveReceiver::from)
    }
}

/// Of the task that polls a session for datagrams and live messages.
pub(super) struct Waiters {
    sending: Waiter,
    receiving: Waiter,
    accepting: Waiter,
}

impl Waiters {
    pub(super) fn new(session: &crate::Session) -> Self {
        Self {
            sending: session.datagram_room_waiter(),
            receiving: session.datagram_waiter(),
            accepting: session.live_waiter(),
        }
    }
}
