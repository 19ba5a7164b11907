//! Streams: their life, and how they share the window (`docs/protocol.md` §7).

mod incoming;
mod outgoing;
mod shares;
mod window;

use crate::config::Role;
use crate::types::StreamId;

pub(crate) use incoming::{IMPOSSIBLE, RecvStreams, Resetting};
pub(crate) use outgoing::SendStreams;
pub(crate) use window::RecvWindow;

/// A stream's place in tables, where those of one kind lie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// [`StreamId::kind`].
    kind: u8,
    index: u64,
}

impl Key {
    /// Index of the stream's kind.
    fn at(self) -> usize {
        usize::from(self.kind)
    }

    fn stream(self) -> StreamId {
        let opener = if self.kind & 1 == 0 {
            Role::Client
        } else {
            Role::Server
        };
        if self.kind & 2 == 0 {
            StreamId::bi(opener, self.index)
        } else {
            StreamId::new(opener, self.index)
        }
    }
}

impl From<StreamId> for Key {
    fn from(stream: StreamId) -> Self {
        Self {
            kind: stream.kind(),
            index: stream.index(),
        }
    }
}
