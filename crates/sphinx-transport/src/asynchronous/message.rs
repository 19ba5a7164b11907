//! Messages on streams for tasks.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use sphinx_driver::prefix_of;
use sphinx_proto::Urgency;

use super::{RecvStream, SendStream};
use crate::error::Error;
use crate::unordered::check_len;

/// Sends messages, whole and in order, on a stream: [`crate::MessageSender`] for tasks.
#[derive(Debug)]
pub struct MessageSender {
    stream: SendStream,
    /// The message that was begun and not yet taken by the stream, its length in front, and how far it has been.
    begun: Vec<u8>,
    at: usize,
}

/// Receives messages: [`crate::MessageReceiver`] for tasks.
#[derive(Debug)]
pub struct MessageReceiver(crate::MessageReceiver);

impl From<crate::MessageReceiver> for MessageReceiver {
    fn from(receiver: crate::MessageReceiver) -> Self {
        Self(receiver)
    }
}

impl From<MessageReceiver> for crate::MessageReceiver {
    fn from(receiver: MessageReceiver) -> Self {
        receiver.0
    }
}

impl SendStream {
    /// Sends messages from now on, as [`crate::SendStream::into_messages`] says.
    pub fn into_messages(self) -> MessageSender {
        MessageSender {
            stream: self,
            begun: Vec::new(),
            at: 0,
        }
    }
}

impl RecvStream {
    /// Receives messages from now on, each of at most 16 MiB.
    pub fn into_messages(self) -> MessageReceiver {
        crate::RecvStream::from(self).into_messages().into()
    }
}

impl MessageSender {
    /// Sends a message of at most 16 MiB, which leaves at once; waits while window and queue are full.
    ///
    /// *Cancelling* never leaves a part of a message in the stream. Either nothing of this one has been taken, or all of it: then
    /// [`is_sending`](Self::is_sending) tells so, and what the stream had no room for goes on with the next call of any kind. Who gave up one call
    /// that way goes on with [`flush`](Self::flush), since another `send` would be another message.
    ///
    /// # Errors
    /// Those of [`SendStream::write`]; and if the message is too long: nothing of it is sent then.
    pub async fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        poll_fn(|cx| self.poll_send(cx, message)).await?;
        self.flush().await
    }

    /// Takes a message as soon as those before are through. Nothing of it has been taken while this is pending, and all of it when it is ready:
    /// what the stream has no room for then is left to [`poll_flush`](Self::poll_flush).
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub fn poll_send(&mut self, cx: &mut Context<'_>, message: &[u8]) -> Poll<Result<(), Error>> {
        check_len(message)?;
        ready!(self.poll_flush(cx))?;
        self.begun = prefix_of(message.len());
        self.begun.extend_from_slice(message);
        self.at = 0;
        match self.poll_flush(cx) {
            Poll::Ready(sent) => Poll::Ready(sent),
            Poll::Pending => Poll::Ready(Ok(())),
        }
    }

    /// Whether a message has been begun of which the stream has not taken everything: a call of [`send`](Self::send) was cancelled.
    pub fn is_sending(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Goes on with a message that was begun, until the stream has taken it.
    ///
    /// *Cancelling* loses nothing: the next call goes on.
    ///
    /// # Errors
    /// Those of [`SendStream::write`].
    pub async fn flush(&mut self) -> Result<(), Error> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// [`flush`](Self::flush), polled.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush).
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.begun.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while self.at < self.begun.len() {
            let rest = &self.begun[self.at..];
            self.at += ready!(self.stream.poll_write(cx, rest))?;
        }
        ready!(self.stream.poll_flush(cx))?;
        self.begun = Vec::new();
        Poll::Ready(Ok(()))
    }

    /// How urgent the messages are from now on.
    pub fn set_urgency(&mut self, urgency: Urgency) {
        self.stream.set_urgency(urgency);
    }

    /// The stream, once it has taken all of what was begun: to finish or to reset it, or to wait until everything has arrived.
    ///
    /// *Cancelling* resets the stream with code 0, as dropping this does.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush).
    pub async fn into_stream(mut self) -> Result<SendStream, Error> {
        self.flush().await?;
        Ok(self.stream)
    }
}

impl MessageReceiver {
    /// Takes no longer messages than this, bytes, at most 16 MiB.
    #[must_use]
    pub fn at_most(self, most: usize) -> Self {
        Self(self.0.at_most(most))
    }

    /// Waits for the next message and copies it into `buf`: its length; `None` when the stream has ended.
    ///
    /// *Cancelling* takes nothing: what has arrived of a message is kept, and the message is the next call's.
    ///
    /// # Errors
    /// Those of [`crate::MessageReceiver::recv`].
    pub async fn recv(&mut self, buf: &mut [u8]) -> Result<Option<usize>, Error> {
        poll_fn(|cx| self.poll_recv(cx, buf)).await
    }

    /// [`recv`](Self::recv), polled.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    pub fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<Option<usize>, Error>> {
        self.0.poll_recv(cx, buf)
    }

    /// Waits for the next message; `None` when the stream has ended.
    ///
    /// *Cancelling* takes nothing, as with [`recv`](Self::recv).
    ///
    /// # Errors
    /// Those of [`crate::MessageReceiver::recv_vec`].
    pub async fn recv_vec(&mut self) -> Result<Option<Vec<u8>>, Error> {
        poll_fn(|cx| self.poll_recv_vec(cx)).await
    }

    /// [`recv_vec`](Self::recv_vec), polled.
    ///
    /// # Errors
    /// Those of [`recv_vec`](Self::recv_vec).
    pub fn poll_recv_vec(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Vec<u8>>, Error>> {
        self.0.poll_recv_vec(cx)
    }

    /// As [`crate::MessageReceiver::next_len`].
    pub fn next_len(&self) -> Option<usize> {
        self.0.next_len()
    }
}
