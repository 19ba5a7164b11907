//! Messages over streams (`docs/protocol.md` §5.4): on a stream, each behind its length; and in no order, each a stream of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::mem;
use std::task::Poll;

use sphinx_proto::wire::{Reader, put_varint, varint_len};

/// Longest message, bytes.
pub const MAX_MESSAGE: usize = 16 << 20;

/// Why a message is not given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The message is too long, as its announced length says before any of it has come.
    #[error("the peer sends a message of {len} bytes, and at most {most} are taken")]
    TooLong {
        /// Length that the peer announces, bytes.
        len: u64,
        /// Longest message that is taken, bytes.
        most: usize,
    },
    /// A message of unannounced length has become longer than this, bytes.
    #[error("the peer sends a message of more than {0} bytes")]
    Longer(usize),
    /// The stream ends where no message does.
    #[error("the stream ended within a message")]
    CutOff,
    /// It does not fit where it is to be copied to.
    #[error("a buffer of {room} bytes for a message of {len}, which stays")]
    TooSmall {
        /// Bytes of the buffer.
        room: usize,
        /// Bytes of the message.
        len: usize,
    },
}

/// What stands in front of a message of so many bytes on a stream.
pub fn prefix_of(len: usize) -> Vec<u8> {
    let len = len as u64;
    let mut prefix = Vec::with_capacity(varint_len(len));
    put_varint(&mut prefix, len);
    prefix
}

/// The message that is arriving on a stream of messages.
#[derive(Debug)]
pub struct MessageReader {
    most: usize,
    /// The first bytes of the length, while there are not all of it.
    prefix: Vec<u8>,
    /// How long the message is, and what has arrived of it.
    len: Option<usize>,
    message: Vec<u8>,
}

impl Default for MessageReader {
    fn default() -> Self {
        Self {
            most: MAX_MESSAGE,
            prefix: Vec::new(),
            len: None,
            message: Vec::new(),
        }
    }
}

impl MessageReader {
    /// Takes no longer messages than this, bytes.
    pub fn limit(&mut self, most: usize) {
        self.most = most.min(MAX_MESSAGE);
    }

    /// Bytes of the message, if its length is known.
    pub fn next_len(&self) -> Option<usize> {
        self.len
    }

    /// Bytes to read before there is anything to decide; 0: the message is whole.
    ///
    /// # Errors
    /// If the message is too long. Then it stays so.
    pub fn wants(&mut self) -> Result<usize, MessageError> {
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
            Err(_) => Err(MessageError::CutOff),
        }
    }

    /// A message is as long as the peer says, if it may be. (The prefix stays if not, so that no other call succeeds.)
    fn begin(&mut self, len: u64) -> Result<usize, MessageError> {
        let most = self.most;
        let allowed = usize::try_from(len).ok().filter(|len| *len <= most);
        let allowed = allowed.ok_or(MessageError::TooLong { len, most })?;
        self.prefix.clear();
        self.len = Some(allowed);
        Ok(allowed)
    }

    /// What was read, no more than was wanted.
    pub fn push(&mut self, data: &[u8]) {
        match self.len {
            Some(_) => self.message.extend_from_slice(data),
            None => self.prefix.extend_from_slice(data),
        }
    }

    /// The stream ends here.
    ///
    /// # Errors
    /// If it may not.
    pub fn ended(&self) -> Result<(), MessageError> {
        match self.len.is_none() && self.prefix.is_empty() {
            true => Ok(()),
            false => Err(MessageError::CutOff),
        }
    }

    /// Copies the message, which is whole: its length.
    ///
    /// # Errors
    /// If it does not fit: it stays.
    pub fn copy(&mut self, buf: &mut [u8]) -> Result<usize, MessageError> {
        let (room, len) = (buf.len(), self.message.len());
        let place = buf.get_mut(..len);
        let place = place.ok_or(MessageError::TooSmall { room, len })?;
        place.copy_from_slice(&self.message);
        self.message.clear();
        self.len = None;
        Ok(len)
    }

    /// Takes the message, which is whole.
    pub fn take(&mut self) -> Vec<u8> {
        self.len = None;
        mem::take(&mut self.message)
    }
}

/// Gathers messages of which each is a stream. `S` is what the streams are read by.
pub struct Gatherer<S> {
    most: usize,
    /// What is kept of messages that are not whole, besides the oldest of them, bytes. What is beyond stays in the window, and so with
    /// its sender.
    kept_max: usize,
    /// Numbers streams in the order in which they came.
    next: u64,
    open: BTreeMap<u64, Partial<S>>,
    /// Those with data that is left in the window for now.
    held: BTreeSet<u64>,
    /// Bytes of all messages that are arriving.
    kept: usize,
}

/// A message that is arriving.
struct Partial<S> {
    stream: S,
    message: Vec<u8>,
}

impl<S> fmt::Debug for Gatherer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gatherer")
            .field("arriving", &self.open.len())
            .field("kept", &self.kept)
            .finish_non_exhaustive()
    }
}

impl<S> Gatherer<S> {
    /// Keeps so many bytes of messages that are not whole, and the oldest one besides.
    pub fn new(kept_max: usize) -> Self {
        Self {
            most: MAX_MESSAGE,
            kept_max,
            next: 0,
            open: BTreeMap::new(),
            held: BTreeSet::new(),
            kept: 0,
        }
    }

    /// Takes no longer messages than this, bytes.
    pub fn limit(&mut self, most: usize) {
        self.most = most.min(MAX_MESSAGE);
    }

    /// Another stream, made for its number; which that is.
    pub fn begin(&mut self, stream: impl FnOnce(u64) -> S) -> u64 {
        let number = self.next;
        self.next += 1;
        let partial = Partial {
            stream: stream(number),
            message: Vec::new(),
        };
        self.open.insert(number, partial);
        number
    }

    /// The stream to read next, if `news` has some. The oldest one can always be read; others while there is room for what is not whole.
    pub fn next_to_read(&mut self, news: Option<u64>) -> Option<u64> {
        let oldest = || self.open.keys().next().copied();
        news.or_else(|| oldest().filter(|oldest| self.held.remove(oldest)))
            .or_else(|| match self.kept < self.kept_max {
                true => self.held.pop_first(),
                false => None,
            })
    }

    /// Reads what there is of a stream: its message, if that is now whole. `piece` appends what comes next of it, and says how many bytes
    /// that are, none at the end of the stream; `None`: its sender has given it up, or it was cut off by the end of the session.
    ///
    /// # Errors
    /// If it is too long. The stream is dropped, and others go on.
    pub fn read(
        &mut self,
        number: u64,
        mut piece: impl FnMut(&mut S, &mut Vec<u8>) -> Poll<Option<usize>>,
    ) -> Result<Option<Vec<u8>>, MessageError> {
        let is_oldest = self.open.keys().next() == Some(&number);
        let Some(partial) = self.open.get_mut(&number) else {
            return Ok(None);
        };
        loop {
            if !is_oldest && self.kept >= self.kept_max {
                self.held.insert(number);
                return Ok(None);
            }
            match piece(&mut partial.stream, &mut partial.message) {
                Poll::Pending => return Ok(None),
                Poll::Ready(Some(0)) => return Ok(self.end(number)),
                Poll::Ready(Some(len)) => self.kept += len,
                Poll::Ready(None) => {
                    self.end(number);
                    return Ok(None);
                }
            }
            if partial.message.len() > self.most {
                self.end(number);
                return Err(MessageError::Longer(self.most));
            }
        }
    }

    /// Nothing more of a stream is kept.
    fn end(&mut self, number: u64) -> Option<Vec<u8>> {
        let partial = self.open.remove(&number)?;
        self.held.remove(&number);
        self.kept -= partial.message.len();
        Some(partial.message)
    }
}
