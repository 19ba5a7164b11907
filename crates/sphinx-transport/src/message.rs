//! Messages: a stream on which each write arrives as one read.
//!
//! In front of each message stands its length, as a variable-length integer of RFC 9000 §16 (`docs/protocol.md` §5.4).

use std::task::{Context, Poll, ready};

use sphinx_driver::{MessageError, MessageReader, prefix_of};
use sphinx_proto::Urgency;

use crate::error::{Error, ErrorKind};
use crate::recv_stream::RecvStream;
use crate::send_stream::SendStream;
use crate::unordered::check_len;

/// Read of a stream at a time, bytes.
const PART: usize = 16 * 1024;

/// Sends messages, whole and in order, on a stream.
#[derive(Debug)]
pub struct MessageSender(SendStream);

/// Receives the messages of a stream.
#[derive(Debug)]
pub struct MessageReceiver {
    stream: RecvStream,
    incoming: MessageReader,
}

impl SendStream {
    /// Sends messages from now on: where bytes have been written, both ends must know how many.
    pub fn into_messages(self) -> MessageSender {
        MessageSender(self)
    }
}

impl RecvStream {
    /// Receives messages from now on, each of at most 16 MiB.
    pub fn into_messages(self) -> MessageReceiver {
        MessageReceiver {
            stream: self,
            incoming: MessageReader::default(),
        }
    }
}

impl MessageSender {
    /// Sends a message of at most 16 MiB, which leaves at once; waits while window and queue are full.
    ///
    /// # Errors
    /// Those of [`SendStream::write_all`]; and if the message is too long: nothing of it is sent then.
    pub fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        check_len(message)?;
        self.0.write_all(&prefix_of(message.len()))?;
        self.0.write_all(message)?;
        self.0.flush()
    }

    /// How urgent the messages are from now on.
    pub fn set_urgency(&mut self, urgency: Urgency) {
        self.0.set_urgency(urgency);
    }

    /// The stream: to finish or to reset it, or to wait until everything has arrived.
    pub fn into_stream(self) -> SendStream {
        self.0
    }
}

impl MessageReceiver {
    /// Takes no longer messages than this, bytes, at most 16 MiB: what is read of a message is kept until all of it has arrived.
    #[must_use]
    pub fn at_most(mut self, most: usize) -> Self {
        self.incoming.limit(most);
        self
    }

    /// Waits for the next message and copies it into `buf`: its length; `None` when the stream has ended.
    ///
    /// # Errors
    /// Those of [`RecvStream::read`]. If `buf` is too small the error tells the length, and the message stays, so that another call with a larger
    /// one gets it; [`next_len`](Self::next_len) tells it too. If the peer sends a message that is too long, or the stream ends within one, no other call succeeds.
    pub fn recv(&mut self, buf: &mut [u8]) -> Result<Option<usize>, Error> {
        match self.complete()? {
            true => Ok(Some(self.incoming.copy(buf)?)),
            false => Ok(None),
        }
    }

    /// Waits for the next message; `None` when the stream has ended.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv), but for that of a buffer.
    pub fn recv_vec(&mut self) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.complete()?.then(|| self.incoming.take()))
    }

    /// Bytes of the message that is arriving, or is here, if its length is known.
    pub fn next_len(&self) -> Option<usize> {
        self.incoming.next_len()
    }

    /// Waits until a message is whole. `false`: the stream has ended.
    fn complete(&mut self) -> Result<bool, Error> {
        let mut part = [0; PART];
        loop {
            let most = match self.incoming.wants()? {
                0 => return Ok(true),
                wanted => wanted.min(PART),
            };
            match self.stream.read(&mut part[..most])? {
                0 => {
                    self.incoming.ended()?;
                    return Ok(false);
                }
                read => self.incoming.push(&part[..read]),
            }
        }
    }

    /// The same, polled. What has been read of a message stays here.
    fn poll_complete(&mut self, cx: &Context<'_>) -> Poll<Result<bool, Error>> {
        let Self { stream, incoming } = self;
        loop {
            let most = match incoming.wants()? {
                0 => return Poll::Ready(Ok(true)),
                wanted => wanted.min(PART),
            };
            let read = stream.poll_read(cx, most, |data| incoming.push(data));
            if ready!(read)? == 0 {
                incoming.ended()?;
                return Poll::Ready(Ok(false));
            }
        }
    }

    pub(crate) fn poll_recv(
        &mut self,
        cx: &Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<Option<usize>, Error>> {
        Poll::Ready(match ready!(self.poll_complete(cx))? {
            true => Ok(Some(self.incoming.copy(buf)?)),
            false => Ok(None),
        })
    }

    pub(crate) fn poll_recv_vec(
        &mut self,
        cx: &Context<'_>,
    ) -> Poll<Result<Option<Vec<u8>>, Error>> {
        let is_whole = ready!(self.poll_complete(cx))?;
        Poll::Ready(Ok(is_whole.then(|| self.incoming.take())))
    }
}

impl From<MessageError> for Error {
    fn from(error: MessageError) -> Self {
        let kind = match error {
            MessageError::TooSmall { .. } => ErrorKind::Usage,
            MessageError::TooLong { .. } | MessageError::Longer(_) | MessageError::CutOff => {
                ErrorKind::Protocol
            }
        };
        Self::new(kind, error.to_string())
    }
}

/// Every message that is whole, and how the stream ends; read in pieces of at most `piece` bytes.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_pieces(
    mut data: &[u8],
    most: usize,
    piece: usize,
) -> (Vec<Vec<u8>>, Result<(), MessageError>) {
    let mut incoming = MessageReader::default();
    incoming.limit(most);
    let mut messages = Vec::new();
    loop {
        match incoming.wants() {
            Err(error) => return (messages, Err(error)),
            Ok(0) => messages.push(incoming.take()),
            Ok(wanted) => {
                let (part, rest) = data.split_at(wanted.min(piece).min(data.len()));
                if part.is_empty() {
                    return (messages, incoming.ended());
                }
                incoming.push(part);
                data = rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_come_as_they_were_sent(
            sent in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..10),
            piece in 1_usize..100,
        ) {
            let mut data = Vec::new();
            for message in &sent {
                data.extend(prefix_of(message.len()));
                data.extend(message);
            }
            prop_assert_eq!(read_pieces(&data, 200, piece), (sent, Ok(())));
        }

        /// Whatever the peer sends: no panic, nothing longer than is taken, and the same however it is cut into pieces.
        #[test]
        fn anything_is_read(
            data in prop::collection::vec(any::<u8>(), 0..300),
            most in 0_usize..100,
            piece in 1_usize..50,
        ) {
            let (messages, end) = read_pieces(&data, most, piece);
            prop_assert!(messages.iter().all(|message| message.len() <= most));
            prop_assert_eq!((messages, end), read_pieces(&data, most, usize::MAX));
        }
    }
}
