//! What makes a synchronization of a copy: both ends know it, and the same of it.

use serde::{Deserialize, Serialize};

use super::filter::Filter;
use crate::failure::Outcome;

/// What the user asks for, as it is sent to the other end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SyncRequest {
    /// The contents of the directory go into the other one, not the directory itself (`DIR/`).
    pub(crate) contents: bool,
    /// A trial: nothing is changed.
    pub(crate) dry_run: bool,
    /// Deletes what the receiver has and the sender has not.
    pub(crate) delete: bool,
    /// Where more would have to be deleted, nothing is.
    pub(crate) max_delete: Option<u64>,
    /// Files are compared by their contents, not by size and time.
    pub(crate) checksum: bool,
    /// Files that have changed are sent as a whole.
    pub(crate) whole: bool,
    /// Filter rules, a line each.
    pub(crate) filter: Vec<Vec<u8>>,
}

/// A request with its rules parsed.
#[derive(Debug, Default)]
pub(crate) struct Sync {
    pub(super) asked: SyncRequest,
    pub(super) filter: Filter,
}

impl Sync {
    /// # Errors
    /// A filter rule is none.
    pub(crate) fn new(asked: SyncRequest) -> Outcome<Self> {
        let filter = Filter::parse(asked.filter.iter().map(Vec::as_slice))?;
        Ok(Self { asked, filter })
    }
}
