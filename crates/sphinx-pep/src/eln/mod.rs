//! Uploads: what the hop loses on the way from a mobile host (rules §2).
//!
//! The base station sees what is missing behind the hop, and decides whether the hop lost it or a queue dropped
//! it (`watch`, `hop`). It reports what the hop lost to the agent of the mobile host (`channel`, `post`), which sends it again
//! and keeps from the mobile host's TCP what would slow it down (`snoop`).

mod channel;
mod hop;
mod post;
pub(crate) mod watch;

pub use channel::{Opener, Sealer};
pub use post::Post;

use serde::Serialize;

use crate::FlowKey;

/// Most ranges of one report.
pub(crate) const RANGES_MAX: usize = 32;

/// What the base station has seen the hop lose of a flow's upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LossReport {
    /// The flow.
    #[serde(flatten)]
    pub flow: FlowKey,
    /// Sequence numbers, from the first that is missing to the one behind the last; at most 32 ranges.
    pub ranges: Vec<(u32, u32)>,
}
