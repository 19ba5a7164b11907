//! What a transfer has brought so far, and what is told of it.

use crate::failure::{Failure, Outcome, fail, fail_hint, protocol};
use crate::files::Work;
use crate::files::output::Rules;
use crate::files::wire::{Announced, Change, Counts, Reply, Totals};
use crate::report::{Progress, Reporter};
use crate::text::hex;
use sphinx_transport::ErrorKind;

/// What has come so far, what was left out, and how much more is allowed.
pub(in crate::files) struct Ledger<'a> {
    rules: Rules,
    counts: Counts,
    /// Bytes of files that have come, complete or not.
    bytes_seen: u64,
    /// Limit of the bytes that may be sent, if there is one.
    allowed: Option<Allowed>,
    work: Work,
    first_skip: Option<Failure>,
    tell: &'a mut dyn FnMut(&[Reply]) -> Outcome<()>,
    pub(in crate::files) progress: &'a Progress,
    reporter: &'a Reporter,
}

/// Bytes of files that may be sent: what is there already takes nothing from them.
struct Allowed {
    all: u64,
    left: u64,
    /// The limit is the number of bytes that was announced.
    announced: bool,
}

impl<'a> Ledger<'a> {
    /// The ledger of a transfer of which nothing has come yet.
    pub(super) fn new(
        rules: Rules,
        tell: &'a mut dyn FnMut(&[Reply]) -> Outcome<()>,
        progress: &'a Progress,
        reporter: &'a Reporter,
    ) -> Self {
        Self {
            rules,
            counts: Counts::default(),
            bytes_seen: 0,
            allowed: None,
            work: Work::default(),
            first_skip: None,
            tell,
            progress,
            reporter,
        }
    }

    /// Refuses a transfer that has announced more than may come.
    pub(super) fn check_announced(&self, announced: Announced) -> Outcome<()> {
        self.check_limits(announced.entries, announced.bytes.unwrap_or(0))
    }

    /// Says something to the sender.
    pub(in crate::files) fn tell(&mut self, replies: &[Reply]) -> Outcome<()> {
        (self.tell)(replies)
    }

    /// Nothing was left out so far, and nothing is other than it was to be.
    pub(super) fn is_complete(&self) -> bool {
        self.first_skip.is_none()
    }

    /// What has come, what that has cost, and why something was left out, the first time.
    pub(super) fn into_result(self) -> (Counts, Work, Option<Failure>) {
        (self.counts, self.work, self.first_skip)
    }

    /// Bytes that the sender did not have to send so far.
    pub(super) fn reused(&self) -> u64 {
        self.work.reused
    }

    pub(super) fn add_work(&mut self, work: Work) {
        self.work.read += work.read;
        self.work.reused += work.reused;
    }

    /// Counts one more entry.
    pub(in crate::files) fn add_entry(&mut self) -> Outcome<()> {
        self.counts.totals.entries += 1;
        self.check_limits(self.counts.totals.entries, self.bytes_seen)
    }

    /// More bytes of files are about to come.
    pub(in crate::files) fn expect_bytes(&mut self, bytes: u64) -> Outcome<()> {
        self.bytes_seen = self.bytes_seen.saturating_add(bytes);
        self.check_limits(self.counts.totals.entries, self.bytes_seen)
    }

    /// So many bytes of what was announced may be sent.
    pub(super) fn allow(&mut self, announced: Announced, bytes: Option<u64>) {
        self.allowed = bytes.map(|all| Allowed {
            all,
            left: all,
            announced: announced.bytes == Some(all),
        });
    }

    /// So many bytes are about to be sent.
    pub(super) fn expect_sent(&mut self, bytes: u64) -> Outcome<()> {
        self.work.received = self.work.received.saturating_add(bytes);
        let Some(allowed) = &mut self.allowed else {
            return Ok(());
        };
        let Some(left) = allowed.left.checked_sub(bytes) else {
            let all = allowed.all;
            return Err(match allowed.announced {
                true => fail_hint(
                    ErrorKind::LocalIo,
                    format!("the transfer has more than the {all} bytes that it announced"),
                    "the same command again announces what there is by now",
                ),
                false => too_large(all),
            });
        };
        allowed.left = left;
        Ok(())
    }

    fn check_limits(&self, entries: u64, bytes: u64) -> Outcome<()> {
        let Rules {
            max_bytes,
            max_entries,
            ..
        } = self.rules;
        match (max_entries, max_bytes) {
            (Some(max), _) if entries > max => Err(larger(max, "entries", "--max-entries")),
            (_, Some(max)) if bytes > max => Err(too_large(max)),
            _ => Ok(()),
        }
    }

    /// This end leaves out the entry that came last.
    pub(in crate::files) fn skip(&mut self, path: &[u8], failure: Failure) -> Outcome<()> {
        self.counts.skipped += 1;
        self.complain(path, failure)
    }

    /// No entry is left out, but something is in place that is not all that it was to be, or still there. It is told in
    /// the same way.
    pub(super) fn complain(&mut self, path: &[u8], failure: Failure) -> Outcome<()> {
        self.reporter.skipped(path, &failure);
        (self.tell)(&[Reply::Skipped {
            entry: self.counts.totals.entries,
            path: path.to_vec(),
            reason: failure.for_the_other_end(),
        }])?;
        self.first_skip.get_or_insert(failure);
        Ok(())
    }

    /// The sender leaves out the entry that came last.
    pub(in crate::files) fn skipped_by_sender(&mut self, path: &[u8], reason: &str) {
        self.counts.skipped += 1;
        let message = format!("at the other end: {reason}");
        let failure = fail(ErrorKind::RemoteIo, message);
        self.reporter.skipped(path, &failure);
        self.first_skip.get_or_insert(failure);
    }

    /// The entry that came last belongs to a directory that is left out.
    pub(in crate::files) fn skip_inside(&mut self) {
        self.counts.skipped += 1;
    }

    /// A file has come to its end.
    pub(in crate::files) fn add_bytes(&mut self, size: u64) {
        let bytes = &mut self.counts.totals.bytes;
        *bytes = bytes.saturating_add(size);
    }

    /// A file is in place, of which `reused` bytes were not sent.
    ///
    /// # Errors
    /// Nobody reads the reports any more.
    pub(in crate::files) fn add_file(
        &mut self,
        path: &[u8],
        size: u64,
        reused: u64,
        digest: &[u8; 32],
        present: bool,
    ) -> Outcome<()> {
        self.counts.files += 1;
        self.counts.bytes = self.counts.bytes.saturating_add(size);
        self.counts.files_present += u64::from(present);
        self.progress.add_file();
        let status = if present { "present" } else { "received" };
        (self.reporter).file(status, path, size, reused, &hex(digest))
    }

    /// A file is as it is to be already, or would be sent.
    ///
    /// # Errors
    /// Nobody reads the reports any more.
    pub(in crate::files) fn add_unsent(
        &mut self,
        path: &[u8],
        size: u64,
        present: bool,
    ) -> Outcome<()> {
        self.add_bytes(size);
        self.counts.files += 1;
        self.counts.bytes = self.counts.bytes.saturating_add(size);
        self.counts.files_present += u64::from(present);
        self.progress.add_file();
        self.progress.pass_over(size);
        let (status, reused) = match present {
            true => ("present", size),
            false => ("received", 0),
        };
        self.work.reused += reused;
        (self.reporter).file(status, path, size, reused, "")
    }

    /// Something was made or deleted; both ends tell it.
    pub(in crate::files) fn changed(&mut self, change: Change, path: Vec<u8>) -> Outcome<()> {
        self.reporter.changed(change, &path)?;
        (self.tell)(&[Reply::Changed { change, path }])
    }

    /// The end of the records must say what has come.
    pub(in crate::files) fn check_end(&self, totals: Totals) -> Outcome<()> {
        match self.counts.totals == totals {
            true => Ok(()),
            false => Err(protocol("the transfer is not what its end says")),
        }
    }
}

/// A transfer has more bytes than this, which is what it may have.
pub(crate) fn too_large(max: u64) -> Failure {
    let options = "--max-bytes, or with a ticket of a larger --quota";
    larger(max, "bytes", options)
}

fn larger(max: u64, what: &str, options: &str) -> Failure {
    fail_hint(
        ErrorKind::LocalIo,
        format!("the transfer has more than {max} {what}"),
        format!("receive with a larger {options}"),
    )
    .refused()
}
