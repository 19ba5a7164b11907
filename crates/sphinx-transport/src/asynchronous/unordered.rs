//! Messages in no order for tasks.

use std::future::poll_fn;
use std::task::{Context, Poll};

use super::{SendStream, Session};
use crate::error::Error;
use crate::unordered::check_len;

/// Receives messages in the order in which they are complete: [`crate::UnorderedReceiver`] for tasks.
#[derive(Debug)]
pub struct UnorderedReceiver(crate::UnorderedReceiver);

impl From<crate::UnorderedReceiver> for UnorderedReceiver {
    fn from(receiver: crate::UnorderedReceiver) -> Self {
        Self(receiver)
    }
}

impl From<UnorderedReceiver> for crate::UnorderedReceiver {
    fn from(receiver: UnorderedReceiver) -> Self {
        receiver.0
    }
}

impl UnorderedReceiver {
    /// Waits for the next message that is complete, as [`crate::UnorderedReceiver::recv`] does.
    ///
    /// *Cancelling* takes nothing: a message that has arrived is the next call's.
    ///
    /// # Errors
    /// Those of [`crate::UnorderedReceiver::recv`].
    pub async fn recv(&mut self) -> Result<Vec<u8>, Error> {
        poll_fn(|cx| self.0.poll_recv(cx)).await
    }

    /// [`recv`](Self::recv), polled.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, Error>> {
        self.0.poll_recv(cx)
    }
}

impl Session {
    /// Sends a message that arrives whole whatever becomes of others, as [`crate::Session::send_message`] does.
    ///
    /// *Cancelling* gives the message up, unless all of it has been taken: the receiver never gets a part.
    ///
    /// # Errors
    /// Those of [`crate::Session::send_message`].
    pub async fn send_message(&self, message: &[u8]) -> Result<SendStream, Error> {
        check_len(message)?;
        let mut stream = self.open_uni().await?;
        if !message.is_empty() {
            stream.write_all(message).await?;
        }
        stream.finish().await?;
        Ok(stream)
    }

    /// Takes every stream with one direction that the peer opens for a message, as [`crate::Session::receive_messages`] does.
    pub fn receive_messages(&self) -> UnorderedReceiver {
        self.as_blocking().receive_messages().into()
    }
}
