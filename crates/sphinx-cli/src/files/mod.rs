//! The application protocol `files`: trees of files on one stream, replies on one stream back.
//!
//! `docs/file-transfer.md` specifies it byte by byte.

mod access;
mod chunks;
mod contents;
mod descent;
mod digest;
mod extraneous;
pub(crate) mod filter;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod holes;
mod journal;
mod landing;
mod leftovers;
mod offers;
mod output;
mod owners;
mod paths;
mod reader;
pub(crate) mod recv;
mod replies;
pub(crate) mod roots;
pub(crate) mod send;
mod source;
mod stdout;
pub(crate) mod sync;
mod target;
mod temporary;
mod walk;
mod wire;
mod xattrs;

#[cfg(test)]
mod tests;

use crate::failure::{Failure, Outcome, PARTIAL};
use crate::report::{Event, Reporter};
use crate::units::show_size;

pub(crate) use landing::Landing;
pub(crate) use output::{Destination, Expected, OutputDir, Rules};
pub(crate) use source::{SourceId, SourceKey};
pub(crate) use sync::{Sync, SyncRequest};
pub(crate) use wire::{Announced, Change, Counts};

/// What came of a transfer that both ends have seen to its end.
#[derive(Debug)]
pub(crate) struct Transferred {
    pub(crate) counts: Counts,
    pub(crate) work: Work,
    /// Why something was left out, or is not as it was to be, the first time.
    pub(crate) first_skip: Option<Failure>,
    /// The directory that received it, for people; none at the sender and for standard output.
    pub(crate) output: Option<String>,
}

/// What one end has done, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Read from files: at the receiver, what was there or was read back.
    pub(crate) read: u64,
    /// Not sent, because the receiver had these bytes.
    pub(crate) reused: u64,
    /// At the receiver: sent, whatever became of it.
    pub(crate) received: u64,
}

impl Transferred {
    /// The event that ends a transfer, with what is special to files.
    pub(crate) fn add_to(&self, done: Event) -> Event {
        let event = done
            .with("entries", self.counts.totals.entries)
            .with("files", self.counts.files)
            .with("files_present", self.counts.files_present)
            .with("entries_skipped", self.counts.skipped)
            .with("bytes_reused", self.work.reused)
            .with("bytes_read", self.work.read);
        match &self.output {
            Some(output) => event.with("output", output.as_str()),
            None => event,
        }
    }

    /// What the summary for people says besides the numbers of bytes.
    fn remark(&self) -> String {
        let mut remark = String::new();
        if self.counts.files_present > 0 {
            let files = self.counts.files_present;
            remark += &format!("; files that were there already: {files}");
        }
        if self.work.reused > 0 {
            let reused = show_size(self.work.reused);
            remark += &format!("; not sent again: {reused}");
        }
        if self.counts.skipped > 0 {
            remark += &format!(
                "; SKIPPED: {} of {}",
                self.counts.skipped, self.counts.totals.entries
            );
        } else if self.first_skip.is_some() {
            remark += "; NOT ALL AS IT WAS TO BE";
        }
        remark
    }

    /// Tells people how it went, and again what was left out.
    pub(crate) fn tell(&self, summary: &str, reporter: &Reporter) {
        reporter.remind(self.counts.totals.entries, self.counts.skipped);
        reporter.note(&format!("{summary}{}", self.remark()));
    }

    /// The exit code of a transfer of which at least something has arrived; otherwise why not.
    pub(crate) fn exit_code(&self) -> Outcome<u8> {
        match &self.first_skip {
            None => Ok(0),
            Some(failure) if self.counts.skipped >= self.counts.totals.entries => {
                Err(failure.clone())
            }
            Some(_) => Ok(PARTIAL),
        }
    }
}
