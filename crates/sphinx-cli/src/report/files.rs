//! What becomes of the files of a transfer.

use std::sync::PoisonError;

use sphinx_transport::ErrorKind;

use super::outlet::{Room, SESSION_BYTES, Unread};
use super::writer::Item;
use super::{Event, Reporter};
use crate::failure::{Failure, Outcome, fail_hint, kind_name};
use crate::files::Change;
use crate::text::printable;

/// Entries that were left out and are said again at the end.
const REMINDED_MAX: usize = 20;
/// With fewer entries, all lines are still on the screen at the end.
const REMINDED_ENTRIES_MIN: u64 = 50;

/// What was left out of a session.
#[derive(Default)]
pub(super) struct Skipped {
    /// The first lines about entries that were left out.
    lines: Vec<String>,
    /// How many such lines there were, those not kept included.
    told: u64,
}

impl Reporter {
    /// A file is complete: in both forms. `status` is sent, received or present; `blake3` is empty where nobody has
    /// computed it; `reused` bytes were not sent. Waits for
    /// readers that are behind.
    ///
    /// # Errors
    /// The reader of either output takes nothing any more.
    pub(crate) fn file(
        &self,
        status: &str,
        path: &[u8],
        bytes: u64,
        reused: u64,
        blake3: &str,
    ) -> Outcome<()> {
        if self.json() {
            let state = match (status, reused) {
                ("present", _) => "unchanged",
                (_, 0) => "sent",
                (_, reused) if reused >= bytes => "unchanged",
                _ => "resumed",
            };
            let event = Event::new("file")
                .with_path(path)
                .with("bytes", bytes)
                .with("reused", reused)
                .with("blake3", (!blake3.is_empty()).then_some(blake3))
                .with("status", status)
                .with("state", state);
            let pushed = self.push(Item::Data(event.into_line()), Room::OfSession);
            pushed.map_err(|Unread| self.unread("standard output"))?;
        }
        if self.tells_lines(status) {
            let line = format!("{status} {}", printable(path));
            let pushed = self.push(Item::Note(line), Room::OfSession);
            pushed.map_err(|Unread| self.unread("standard error"))?;
        }
        Ok(())
    }

    /// Reports a change of the tree other than a file that was sent.
    ///
    /// # Errors
    /// The reader of either output takes nothing any more.
    pub(crate) fn changed(&self, change: Change, path: &[u8]) -> Outcome<()> {
        let state = match change {
            Change::Made => "made",
            Change::Deleted => "deleted",
        };
        if self.json() {
            let event = Event::new("file").with_path(path).with("state", state);
            let pushed = self.push(Item::Data(event.into_line()), Room::OfSession);
            pushed.map_err(|Unread| self.unread("standard output"))?;
        }
        if self.tells_lines(state) {
            let line = format!("{state} {}", printable(path));
            let pushed = self.push(Item::Note(line), Room::OfSession);
            pushed.map_err(|Unread| self.unread("standard error"))?;
        }
        Ok(())
    }

    fn tells_lines(&self, status: &str) -> bool {
        let settings = &self.inner.settings;
        let asked = settings.verbose > 0 || settings.changes && status != "present";
        asked && !settings.quiet
    }

    /// Something of a transfer that is left out: an error, although the transfer goes on.
    pub(crate) fn skipped(&self, path: &[u8], failure: &Failure) {
        let reason = printable(failure.message.as_bytes());
        let state = Event::new("file").with_path(path);
        self.event(state.with("state", "skipped"));
        self.event(
            Event::new("skipped")
                .with_path(path)
                .with("kind", kind_name(failure.kind))
                .with("reason", reason.as_str()),
        );
        let line = format!("skipped {}: {reason}", printable(path));
        self.say(Item::Note(format!("sphx: {line}")));
        let skipped = self.session.skipped.lock();
        let mut skipped = skipped.unwrap_or_else(PoisonError::into_inner);
        skipped.told += 1;
        if skipped.lines.len() < REMINDED_MAX {
            skipped.lines.push(line);
        }
    }

    /// Says again what was left out of a session with so many entries, where that may have gone by unseen.
    pub(crate) fn remind(&self, entries: u64, skipped: u64) {
        if entries < REMINDED_ENTRIES_MIN {
            return;
        }
        let told = self.session.skipped.lock();
        let Skipped { lines, told } =
            std::mem::take(&mut *told.unwrap_or_else(PoisonError::into_inner));
        for line in &lines {
            self.note(line);
        }
        // Entries in a directory that is left out are counted without a line of their own; entries that have come without
        // all of their attributes have a line and are not counted.
        let more = skipped.max(told).saturating_sub(lines.len() as u64);
        if more > 0 {
            self.note(&format!("and {more} more"));
        }
    }

    fn unread(&self, what: &str) -> Failure {
        if self.inner.stop.requested() {
            return self.inner.stop.failure();
        }
        fail_hint(
            ErrorKind::LocalIo,
            format!(
                "nobody reads {what}: {} MiB of reports wait there",
                SESSION_BYTES >> 20
            ),
            "read it, or close it to go on without reports",
        )
    }
}
