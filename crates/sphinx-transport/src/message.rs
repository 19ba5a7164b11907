//! Messages: a stream on which each write arrives as one read.
//!
//! In front of each message stands its length, as a variable-length integer of RFC 9000 §16 (`docs/protocol.md` §5.4).

use std::mem;
use std::task::{Context, Poll, ready};

use sphinx_proto::Urgency;
use sphinx_proto::wire::{Reader, put_varint, varint_len};

use crate::error::{Error, ErrorKind};
use crate::recv_stream::RecvStream;
use crate::send_stream::SendStream;
use crate::unordered::check_len;

/// Longest message, bytes.
pub const MAX_MESSAGE: usize = 16 << 20;
/// Read of a stream at a time, bytes.
const PART: usize = 16 * 1024;

/// Sends messages, whole and in order, on a stream.
#[derive(Debug)]
pub struct MessageSender(SendStream);

/// Receives them.
#[derive(Debug)]
pub struct MessageReceiver {
    stream: RecvStream,
    incoming: Incoming,
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
            incoming: Incoming::default(),
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
        self.0.write_all(&prefix_of(message))?;
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
        self.incoming.most = most.min(MAX_MESSAGE);
        self
    }

    /// Waits for the next message and copies it into `buf`: its length; `None` when the stream has ended.
    ///
    /// # Errors
    /// Those of [`RecvStream::read`]. If `buf` is too small the error tells the length, and the message stays, so that another call with a larger
    /// one gets it; [`next_len`](Self::next_len) tells it too. If the peer sends a message that is too long, or the stream ends within one, no other call succeeds.
    pub fn recv(&mut self, buf: &mut [u8]) -> Result<Option<usize>, Error> {
        match self.complete()? {
            true => self.incoming.copy(buf).map(Some),
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
        self.incoming.len
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
                0 => return self.incoming.ended().map(|()| false),
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
                return Poll::Ready(incoming.ended().map(|()| false));
            }
        }
    }

    pub(crate) fn poll_recv(
        &mut self,
        cx: &Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<Option<usize>, Error>> {
        Poll::Ready(match ready!(self.poll_complete(cx))? {
            true => self.incoming.copy(buf).map(Some),
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

/// The message that is arriving.
#[derive(Debug)]
struct Incoming {
    most: usize,
    /// The first bytes of the length, while there are not all of it.
    prefix: Vec<u8>,
    /// How long the message is, and what has arrived of it.
    len: Option<usize>,
    message: Vec<u8>,
}

impl Default for Incoming {
    fn default() -> Self {
        Self {
            most: MAX_MESSAGE,
            prefix: Vec::new(),
            len: None,
            message: Vec::new(),
        }
    }
}

impl Incoming {
    /// Bytes to read before there is anything to decide; 0: the message is whole.
    fn wants(&mut self) -> Result<usize, Error> {
        if let Some(len) = self.len {
            return Ok(len - self.message.len());
        }
        let prefix_len = self.prefix.first().map_or(1, |first| 1 << (first >> 6));
        let missing = prefix_len - self.prefix.len();
        if missing > 0 {
            return Ok(missing);
        }
        match Reader::new(&self.prefix).varint() {
            Ok(len) => self.begin(len),
            Err(_) => Err(cut_off()),
        }
    }

    /// A message is as long as the peer says, if it may be. (The prefix stays if not, so that no other call succeeds.)
    fn begin(&mut self, len: u64) -> Result<usize, Error> {
        match usize::try_from(len).ok().filter(|len| *len <= self.most) {
            Some(len) => {
                self.prefix.clear();
                self.len = Some(len);
                Ok(len)
            }
            None => {
                let why = format!(
                    "the peer sends a message of {len} bytes, and at most {} are taken",
                    self.most
                );
                Err(Error::new(ErrorKind::Protocol, why))
            }
        }
    }

    /// What was read, no more than was wanted.
    fn push(&mut self, data: &[u8]) {
        match self.len {
            Some(_) => self.message.extend_from_slice(data),
            None => self.prefix.extend_from_slice(data),
        }
    }

    /// Whether the stream may end here.
    fn ended(&self) -> Result<(), Error> {
        match self.len.is_none() && self.prefix.is_empty() {
            true => Ok(()),
            false => Err(cut_off()),
        }
    }

    /// Copies the message, which is whole; it stays if it does not fit.
    fn copy(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        let len = self.message.len();
        if len > buf.len() {
            let why = format!(
                "a buffer of {} bytes for a message of {len}, which stays",
                buf.len()
            );
            return Err(Error::new(ErrorKind::Usage, why));
        }
        buf[..len].copy_from_slice(&self.message);
        self.message.clear();
        self.len = None;
        Ok(len)
    }

    /// Takes the message, which is whole.
    fn take(&mut self) -> Vec<u8> {
        self.len = None;
        mem::take(&mut self.message)
    }
}

/// What stands in front of a message.
pub(crate) fn prefix_of(message: &[u8]) -> Vec<u8> {
    let len = message.len() as u64;
    let mut prefix = Vec::with_capacity(varint_len(len));
    put_varint(&mut prefix, len);
    prefix
}

fn cut_off() -> Error {
    Error::new(ErrorKind::Protocol, "the stream ended within a message")
}

/// Every message that is whole, and how the stream ends; read in pieces of at most `piece` bytes.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_pieces(
    mut data: &[u8],
    most: usize,
    piece: usize,
) -> (Vec<Vec<u8>>, Result<(), ErrorKind>) {
    let mut incoming = Incoming {
        most,
        ..Incoming::default()
    };
    let mut messages = Vec::new();
    loop {
        match incoming.wants() {
            Err(error) => return (messages, Err(error.kind())),
            Ok(0) => messages.push(incoming.take()),
            Ok(wanted) => {
                let (part, rest) = data.split_at(wanted.min(piece).min(data.len()));
                if part.is_empty() {
                    return (messages, incoming.ended().map_err(|error| error.kind()));
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
                data.extend(prefix_of(message));
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
