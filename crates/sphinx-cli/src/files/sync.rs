//! What makes a synchronization of a copy: both ends know it, and the same of it.

use serde::{Deserialize, Serialize};

use super::filter::Filter;
use crate::failure::Outcome;

/// As it is asked for, and travels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SyncRequest {
    /// What is in the directory goes into the other one, not the directory itself.
    pub(crate) contents: bool,
    /// Nothing is changed.
    pub(crate) dry_run: bool,
    /// What is there and does not come goes.
    pub(crate) delete: bool,
    /// No more than this, or nothing.
    pub(crate) max_delete: Option<u64>,
    /// Files are compared by their contents, not by size and time.
    pub(crate) checksum: bool,
    /// Files that have changed are sent as a whole.
    pub(crate) whole: bool,
    /// Filter rules, a line each.
    pub(crate) filter: Vec<Vec<u8>>,
}

/// The same, understood.
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
