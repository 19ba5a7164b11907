//! What becomes of a file that comes.

use std::io;

use super::answers::There;
use super::version::Version;
use super::{COMPARE_BYTES, Tree};
use crate::channel::Incoming;
use crate::failure::{Failure, Outcome, fail, fail_hint, local_io, protocol};
use crate::files::contents::{Contents, Finished};
use crate::files::output::Refused;
use crate::files::paths::Name;
use crate::files::source::SourceId;
use crate::files::target::{Place, Target};
use crate::files::wire::{Attributes, Piece};
use crate::text::printable;
use sphinx_transport::ErrorKind;

impl<I: Incoming> Tree<'_, '_, I> {
    pub(super) fn file(
        &mut self,
        name: &Name,
        attributes: Attributes,
        size: Option<u64>,
        source: Option<SourceId>,
    ) -> Outcome<()> {
        let path = self.target.path_of(name);
        self.ledger.progress.set_name(printable(&path));
        let inside = self.left_out > 0;
        let mut first = None;
        if self.target.is_synchronized()
            && let Some(size) = size
        {
            let piece = self.reader.piece()?;
            if piece == Piece::Trial {
                return self.trial(name, &path, size);
            }
            first = Some(piece);
        }
        if self.target.is_trial() {
            return Err(protocol("contents in a trial"));
        }
        let place = match inside {
            true => {
                self.ledger.skip_inside();
                None
            }
            false => {
                let place = self.target.create(name, size, source);
                self.settle(name, place)?
            }
        };
        // Whether the sender has been told already what becomes of this file.
        let mut settled = place.is_none();
        let before = self.ledger.reused();
        let finished = match size {
            Some(size) => self.pieces(name, place, size, first, &mut settled)?,
            None => self.stream(name, place, &mut settled)?,
        };
        let Some((size, finished)) = finished else {
            return Ok(());
        };
        self.ledger.add_bytes(size);
        let reused = self.ledger.reused() - before;
        match finished {
            Finished::Written(file, digest) => {
                let progress = self.ledger.progress;
                let committed = progress.at_disk(|| self.target.commit(name, file, attributes));
                if self.settle(name, committed)?.is_some() {
                    self.ledger.add_file(&path, size, reused, &digest, false)?;
                }
            }
            Finished::Present(digest) => {
                self.ledger.add_file(&path, size, reused, &digest, true)?;
            }
            Finished::Nowhere if settled => {}
            Finished::Nowhere => self.refuse_existing(name)?,
            Finished::Different => {
                let message = format!(
                    "{} has changed meanwhile, or has the size and the time of what is sent but other contents",
                    printable(&path)
                );
                let hint = match self.target.outdate(name) {
                    true => "the same command again sends it",
                    false => {
                        "if what is sent is right, remove that file and run the same command again"
                    }
                };
                let failure = fail_hint(ErrorKind::LocalIo, message, hint);
                self.settle::<()>(name, Err(Refused::Entry(failure)))?;
            }
            Finished::Damaged => {
                let message = format!("{} arrived damaged", printable(&path));
                return Err(fail(ErrorKind::Integrity, message));
            }
        }
        Ok(())
    }

    /// Keeps a file that is already as the sender has it.
    pub(super) fn keep(&mut self, there: &There) -> Outcome<()> {
        let There {
            directory,
            name,
            size,
            attributes,
            read,
            ..
        } = there;
        if self.left_out == 0 && !self.target.is_in(directory) {
            return Err(protocol("a file is kept that is somewhere else"));
        }
        let path = self.target.path_of(name);
        self.unsent(name, &path, *size, true, |target| {
            target.keep(name, *size, *attributes, read.as_ref())
        })
    }

    /// A dry run: counts a file that would be sent.
    fn trial(&mut self, name: &Name, path: &[u8], size: u64) -> Outcome<()> {
        if !self.target.is_trial() {
            return Err(protocol("a trial that was not asked for"));
        }
        self.unsent(name, path, size, false, |target| target.would_come(name))
    }

    /// A file of which nothing comes: it is there already, or would be sent.
    fn unsent(
        &mut self,
        name: &Name,
        path: &[u8],
        size: u64,
        present: bool,
        settle: impl FnOnce(&mut Target) -> Result<(), Refused>,
    ) -> Outcome<()> {
        if self.left_out > 0 {
            self.ledger.skip_inside();
            self.ledger.add_bytes(size);
            return Ok(());
        }
        let done = settle(&mut self.target);
        match self.settle(name, done)? {
            Some(()) => self.ledger.add_unsent(path, size, present),
            None => {
                self.ledger.add_bytes(size);
                Ok(())
            }
        }
    }

    fn refuse_existing(&mut self, name: &Name) -> Outcome<()> {
        let refused = self.target.exists(name);
        self.settle::<()>(name, Err(refused)).map(drop)
    }

    /// The contents of a file of known size; nothing if the sender has given it up.
    fn pieces(
        &mut self,
        name: &Name,
        place: Option<Place>,
        size: u64,
        first: Option<Piece>,
        settled: &mut bool,
    ) -> Outcome<Option<(u64, Finished)>> {
        let mut writing = Writing::new(printable(&self.target.path_of(name)), place);
        let mut first = first;
        let mut version = Version::default();
        let mut left = size;
        for number in 0_u64.. {
            let at = size - left;
            let piece = match first.take() {
                Some(first) => first,
                None => self.reader.piece()?,
            };
            if number > 0 && matches!(piece, Piece::Data { .. } | Piece::Hole { .. }) {
                writing.attempt(Contents::forget_there)?;
            }
            match piece {
                Piece::Data { bytes } => {
                    left = take(left, bytes)?;
                    self.data(at, bytes, &mut writing)?;
                }
                Piece::Hole { bytes } => {
                    left = take(left, bytes)?;
                    writing.attempt(Contents::forget_there)?;
                    writing.contents.hole(at, bytes);
                    self.ledger.progress.pass_over(bytes);
                }
                Piece::Copy { from, bytes } => {
                    if !self.target.is_synchronized() {
                        return Err(protocol("a copy in a file that is not synchronized"));
                    }
                    left = take(left, bytes)?;
                    self.ledger.progress.pass_over(bytes);
                    writing.attempt(Contents::forget_there)?;
                    if writing.contents.wanted() {
                        let contents = &mut writing.contents;
                        match version.copy(&self.target, name, from, bytes, at, contents) {
                            Ok(true) => {}
                            Ok(false) => {
                                contents.abandon();
                                self.gone(name, settled)?;
                            }
                            Err(refused) => writing.refused(refused)?,
                        }
                    }
                }
                Piece::Trial => {
                    return Err(protocol("a piece that cannot be in a file that is sent"));
                }
                Piece::Checkpoint { seal } => {
                    writing.attempt(|contents| contents.checkpoint(seal))?;
                }
                Piece::Reuse { until } => {
                    let bytes = (until.checked_sub(at))
                        .ok_or_else(|| protocol("what is reused has come already"))?;
                    left = take(left, bytes)?;
                    self.ledger.progress.pass_over(bytes);
                    if !writing.contents.reuse(until) {
                        writing.contents.abandon();
                        self.gone(name, settled)?;
                    }
                }
                Piece::Same => {
                    self.ledger.progress.pass_over(left);
                    left = 0;
                    if writing.contents.wanted() {
                        match self.target.existing(name, size) {
                            Some(file) => {
                                writing.contents.same(file, size);
                                let progress = self.ledger.progress;
                                let mut next = || {
                                    progress.at_disk(|| {
                                        writing.attempt(|contents| contents.compare(COMPARE_BYTES))
                                    })
                                };
                                while next()? == Some(true) {}
                            }
                            None => {
                                writing.contents.abandon();
                                self.gone(name, settled)?;
                            }
                        }
                    }
                }
                Piece::End { digest } => {
                    if left > 0 {
                        return Err(protocol("a file is shorter than announced"));
                    }
                    return self.complete(name, size, &digest, writing, settled);
                }
                Piece::Abort { reason } => {
                    writing.contents.discard();
                    return self.aborted(name, &reason, *settled);
                }
            }
            self.tell_early(name, &mut writing, settled)?;
        }
        unreachable!("pieces are not that many")
    }

    /// The contents of a file whose size shows only at its end.
    fn stream(
        &mut self,
        name: &Name,
        place: Option<Place>,
        settled: &mut bool,
    ) -> Outcome<Option<(u64, Finished)>> {
        let mut writing = Writing::new(printable(&self.target.path_of(name)), place);
        let mut at = 0_u64;
        loop {
            match self.reader.piece()? {
                Piece::Data { bytes } => {
                    self.ledger.expect_bytes(bytes)?;
                    let end = at
                        .checked_add(bytes)
                        .filter(|end| i64::try_from(*end).is_ok());
                    let end = end.ok_or_else(|| protocol("a file is too long"))?;
                    self.data(at, bytes, &mut writing)?;
                    at = end;
                }
                Piece::Hole { .. }
                | Piece::Checkpoint { .. }
                | Piece::Reuse { .. }
                | Piece::Same
                | Piece::Trial
                | Piece::Copy { .. } => return Err(protocol("a piece that a stream cannot have")),
                Piece::End { digest } => {
                    return self.complete(name, at, &digest, writing, settled);
                }
                Piece::Abort { reason } => return self.aborted(name, &reason, *settled),
            }
            self.tell_early(name, &mut writing, settled)?;
        }
    }

    /// Bytes that belong at `at`.
    fn data(&mut self, at: u64, bytes: u64, writing: &mut Writing) -> Outcome<()> {
        self.ledger.expect_sent(bytes)?;
        let progress = self.ledger.progress;
        self.reader.data(bytes, &mut |place, data| {
            progress.at_disk(|| writing.attempt(|contents| contents.write(at + place, data)))?;
            progress.add_bytes(data.len() as u64);
            Ok(())
        })
    }

    /// Everything has come.
    fn complete(
        &mut self,
        name: &Name,
        size: u64,
        digest: &[u8; 32],
        mut writing: Writing,
        settled: &mut bool,
    ) -> Outcome<Option<(u64, Finished)>> {
        self.ledger.add_work(writing.contents.work());
        let progress = self.ledger.progress;
        progress.at_disk(|| writing.attempt(|contents| contents.stretch(size)))?;
        self.tell_early(name, &mut writing, settled)?;
        let Writing {
            shown, contents, ..
        } = writing;
        let finished = progress.at_disk(|| contents.finish(size, digest));
        let finished = finished.map_err(|error| local_io("write to", &shown, error))?;
        Ok(Some((size, finished)))
    }

    /// What is known to be refused is said at once, so that the sender need not send the rest.
    fn tell_early(
        &mut self,
        name: &Name,
        writing: &mut Writing,
        settled: &mut bool,
    ) -> Outcome<()> {
        if *settled || writing.contents.wanted() {
            return Ok(());
        }
        *settled = true;
        match writing.failed.take() {
            Some(failure) => {
                let refused = Err(Refused::Entry(failure));
                self.settle::<()>(name, refused).map(drop)
            }
            None => self.refuse_existing(name),
        }
    }

    /// What the sender was told to be there is so no more.
    fn gone(&mut self, name: &Name, settled: &mut bool) -> Outcome<()> {
        if *settled {
            return Ok(());
        }
        *settled = true;
        let path = self.target.path_of(name);
        let message = format!("what was there of {} is gone or in use", printable(&path));
        let failure = fail_hint(
            ErrorKind::LocalIo,
            message,
            "the same command again sends it",
        );
        self.settle::<()>(name, Err(Refused::Entry(failure)))
            .map(drop)
    }

    /// The sender does not give the rest; if this end did not want it anyhow, that has been said.
    fn aborted<T>(&mut self, name: &Name, reason: &str, settled: bool) -> Outcome<Option<T>> {
        if !settled {
            self.target.leave_out();
            let path = self.target.path_of(name);
            self.ledger.skipped_by_sender(&path, reason);
        }
        Ok(None)
    }
}

/// Contents on their way, and why they go nowhere any more.
struct Writing {
    /// The path of the file, as it is shown to people.
    shown: String,
    contents: Contents,
    /// What the file system has against this file, until that has been said.
    failed: Option<Failure>,
}

impl Writing {
    fn new(shown: String, place: Option<Place>) -> Self {
        Self {
            shown,
            contents: Contents::new(place),
            failed: None,
        }
    }

    /// Does something with the contents; nothing if the file system does not take them.
    ///
    /// # Errors
    /// It would not take others either.
    fn attempt<T>(
        &mut self,
        step: impl FnOnce(&mut Contents) -> io::Result<T>,
    ) -> Outcome<Option<T>> {
        match step(&mut self.contents) {
            Ok(done) => Ok(Some(done)),
            Err(error) => {
                let refused = Refused::io("write to", &self.shown, error);
                self.refused(refused).map(|()| None)
            }
        }
    }

    /// Gives up what is refused.
    fn refused(&mut self, refused: Refused) -> Outcome<()> {
        match refused {
            Refused::Transfer(failure) => Err(failure),
            Refused::Entry(failure) => {
                self.contents.discard();
                self.failed.get_or_insert(failure);
                Ok(())
            }
        }
    }
}

fn take(left: u64, bytes: u64) -> Outcome<u64> {
    left.checked_sub(bytes)
        .ok_or_else(|| protocol("a file is longer than announced"))
}
