//! Datagrams and live messages for tasks. What sends them never waits: [`crate::Session`] and [`crate::LiveSender`] do that.

use std::future::poll_fn;
use std::ops::Range;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Session;
use crate::datagram::{DatagramInfo, LiveInfo};
use crate::error::Error;

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
}
