//! Uploads: what the hop loses on the way from a mobile host (rules §2).
//!
//! The base station sees what is missing behind the hop, and decides whether the hop lost it or a queue dropped
//! it (`watch`, `hop`). It reports what the hop lost to the agent of the mobile host (`format`, `post`), which sends it again
//! and keeps from the mobile host's TCP what would slow it down (`snoop`).

mod format;
mod hop;
mod post;
pub(crate) mod watch;

pub use post::Post;

use serde::Serialize;

use crate::{FlowKey, channel};

/// Seals reports.
pub type Sealer = channel::Sealer<LossReport>;
/// Opens reports of any senders, each once and in order.
pub type Opener = channel::Opener<LossReport>;

/// Most ranges of one report.
pub(crate) const RANGES_MAX: usize = 32;

/// What the base station has seen the hop lose of a flow's upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LossReport {
    /// The flow that has lost segments.
    #[serde(flatten)]
    pub flow: FlowKey,
    /// Sequence numbers, from the first that is missing to the one behind the last; at most 32 ranges.
    pub ranges: Vec<(u32, u32)>,
}
