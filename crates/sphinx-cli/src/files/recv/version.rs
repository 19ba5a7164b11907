//! Copies from the version of a file that is there.

use std::fs::File;
use std::io;

use crate::failure::protocol;
use crate::files::contents::Contents;
use crate::files::output::Refused;
use crate::files::paths::Name;
use crate::files::target::Target;
use crate::text::printable;

/// What is there under the name of a file that comes.
#[derive(Default)]
pub(super) struct Version {
    file: Option<File>,
    /// Length of the file, in bytes.
    len: u64,
    /// Bytes that may be copied yet. A file has its own length of them at most: seventeen bytes from a peer must not cost
    /// any amount of work.
    left: u64,
}

impl Version {
    /// Copies `bytes` from there; false if there is no such file any more.
    ///
    /// # Errors
    /// They cannot be read, or not be written where they belong.
    pub(super) fn copy(
        &mut self,
        target: &Target,
        name: &Name,
        from: u64,
        bytes: u64,
        at: u64,
        contents: &mut Contents,
    ) -> Result<bool, Refused> {
        let shown = printable(&target.path_of(name));
        let refused = |error| Refused::io("copy from", &shown, error);
        if self.file.is_none() {
            let Some(file) = target.version(name) else {
                return Ok(false);
            };
            self.len = file.metadata().map_err(refused)?.len();
            self.left = self.len;
            self.file = Some(file);
        }
        let Some(file) = &self.file else {
            return Ok(false);
        };
        // Somebody has made it shorter since the sender was told what it consists of: no fault of the sender's.
        if from.checked_add(bytes).is_none_or(|end| end > self.len) {
            return Ok(false);
        }
        self.left = (self.left.checked_sub(bytes)).ok_or_else(|| {
            Refused::Transfer(protocol("more is copied from a file than there is"))
        })?;
        match contents.copy(file, from, bytes, at) {
            Ok(()) => Ok(true),
            // The file has become shorter since it was opened.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(refused(error)),
        }
    }
}
