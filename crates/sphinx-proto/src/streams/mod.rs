//! Streams: their life, and how they share the window (`docs/protocol.md` §7).

mod incoming;
mod outgoing;
mod shares;

pub(crate) use incoming::{IMPOSSIBLE, RecvStreams, Resetting};
pub(crate) use outgoing::SendStreams;
