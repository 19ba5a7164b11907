//! Streams: which of their blocks exist, and how they share the window (`docs/protocol.md` §7).

mod outgoing;
mod shares;

pub(crate) use outgoing::SendStreams;
pub(crate) use shares::{COMMON_SHARE, common_part};
