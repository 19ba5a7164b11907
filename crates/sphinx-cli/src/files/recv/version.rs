//! Copies from the version of a file that is there.

use std::fs::File;

use crate::failure::{Outcome, local_io, protocol};
use crate::files::contents::Contents;
use crate::files::paths::Name;
use crate::files::target::Target;
use crate::text::printable;

/// What is there under the name of a file that comes.
#[derive(Default)]
pub(super) struct Version {
    file: Option<File>,
    /// Bytes that may be copied yet. A file has its own length of them at most: seventeen bytes from a peer must not cost
    /// any amount of work.
    left: u64,
}

impl Version {
    /// Copies `bytes` from there; false if there is no such file any more.
    pub(super) fn copy(
        &mut self,
        target: &Target,
        name: &Name,
        from: u64,
        bytes: u64,
        at: u64,
        contents: &mut Contents,
    ) -> Outcome<bool> {
        let shown = printable(&target.path_of(name));
        let refused = |error| local_io("copy from", &shown, error);
        if self.file.is_none() {
            let Some(file) = target.version(name) else {
                return Ok(false);
            };
            self.left = file.metadata().map_err(refused)?.len();
            self.file = Some(file);
        }
        let Some(file) = &self.file else {
            return Ok(false);
        };
        self.left = (self.left.checked_sub(bytes))
            .ok_or_else(|| protocol("more is copied from a file than there is"))?;
        match contents.copy(file, from, bytes, at) {
            Ok(()) => Ok(true),
            // It has become shorter.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(refused(error)),
        }
    }
}
