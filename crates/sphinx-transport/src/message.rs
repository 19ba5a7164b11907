//! Messages: a stream on which each write arrives as one read.
//!
//! In front of each message stands its length, as a variable-length integer of RFC 9000 §16 (`docs/protocol.md` §5.4).

use sphinx_proto::Urgency;
use sphinx_proto::wire::{Reader, put_varint, varint_len};

use crate::error::{Error, ErrorKind};
use crate::recv_stream::RecvStream;
use crate::send_stream::SendStream;
use crate::unordered::check_len;

/// Longest message, bytes.
pub const MAX_MESSAGE: usize = 16 << 20;

/// Sends messages, whole and in order, on a stream.
#[derive(Debug)]
pub struct MessageSender(SendStream);

/// Receives them.
#[derive(Debug)]
pub struct MessageReceiver {
    stream: RecvStream,
    most: usize,
    /// The first bytes of the length, while there are not all of it.
    prefix: Vec<u8>,
    /// How long the present message is, and what has arrived of it.
    len: Option<usize>,
    message: Vec<u8>,
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
            most: MAX_MESSAGE,
            prefix: Vec::new(),
            len: None,
            message: Vec::new(),
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
        let mut prefix = Vec::with_capacity(varint_len(message.len() as u64));
        put_varint(&mut prefix, message.len() as u64);
        self.0.write_all(&prefix)?;
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
    pub fn at_most(self, most: usize) -> Self {
        let most = most.min(MAX_MESSAGE);
        Self { most, ..self }
    }

    /// Waits for the next message and copies it into `buf`: its length; `None` when the stream has ended.
    ///
    /// # Errors
    /// Those of [`RecvStream::read`]. If `buf` is too small the error tells the length, and the message stays, so that another call with a larger
    /// one gets it; [`next_len`](Self::next_len) tells it too. If the peer sends a message that is too long, or the stream ends within one, no other call succeeds.
    pub fn recv(&mut self, buf: &mut [u8]) -> Result<Option<usize>, Error> {
        if !self.complete()? {
            return Ok(None);
        }
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
        Ok(Some(len))
    }

    /// Waits for the next message; `None` when the stream has ended.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv), but for that of a buffer.
    pub fn recv_vec(&mut self) -> Result<Option<Vec<u8>>, Error> {
        if !self.complete()? {
            return Ok(None);
        }
        self.len = None;
        Ok(Some(std::mem::take(&mut self.message)))
    }

    /// Bytes of the message that is arriving, or is here, if its length is known.
    pub fn next_len(&self) -> Option<usize> {
        self.len
    }

    /// Waits until a message is whole. `false`: the stream has ended.
    fn complete(&mut self) -> Result<bool, Error> {
        let len = match self.len {
            Some(len) => len,
            None => match self.read_len()? {
                Some(len) => *self.len.insert(len),
                None => return Ok(false),
            },
        };
        let mut part = [0; 16 * 1024];
        while self.message.len() < len {
            let most = part.len().min(len - self.message.len());
            let read = self.stream.read(&mut part[..most])?;
            if read == 0 {
                return Err(cut_off());
            }
            self.message.extend_from_slice(&part[..read]);
        }
        Ok(true)
    }

    fn read_len(&mut self) -> Result<Option<usize>, Error> {
        loop {
            let first = self.prefix.first();
            if first.is_some_and(|first| self.prefix.len() == 1 << (first >> 6))
                && let Ok(len) = Reader::new(&self.prefix).varint()
            {
                return self.checked(len).map(Some);
            }
            let mut byte = [0];
            if self.stream.read(&mut byte)? == 0 {
                return match self.prefix.is_empty() {
                    true => Ok(None),
                    false => Err(cut_off()),
                };
            }
            self.prefix.push(byte[0]);
        }
    }

    /// The length that the peer says, if it may be so long. (The prefix stays if not, so that no other call succeeds.)
    fn checked(&mut self, len: u64) -> Result<usize, Error> {
        match usize::try_from(len).ok().filter(|len| *len <= self.most) {
            Some(len) => {
                self.prefix.clear();
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
}

fn cut_off() -> Error {
    Error::new(ErrorKind::Protocol, "the stream ended within a message")
}
