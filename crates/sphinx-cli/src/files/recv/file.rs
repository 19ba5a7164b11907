//! What becomes of a file that comes.

use std::io;

use super::answers::There;
use super::version::Version;
use super::{COMPARE_BYTES, Tree};
use crate::channel::Incoming;
use crate::failure::{Outcome, fail, fail_hint, local_io, protocol};
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
        // Whether what becomes of it has been said already.
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

    /// A file that is as it was said to be.
    pub(super) fn keep(&mut self, there: &There) -> Outcome<()> {
        let There {
            directory,
            name,
            size,
            attributes,
            ..
        } = there;
        if self.left_out == 0 && !self.target.is_in(directory) {
            return Err(protocol("a file is kept that is somewhere else"));
        }
        let path = self.target.path_of(name);
        self.unsent(name, &path, *size, true, |target| {
            target.keep(name, *size, *attributes)
        })
    }

    /// A file that would be sent.
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
        let shown = printable(&self.target.path_of(name));
        let refused = |error: io::Error| local_io("write to", &shown, error);
        let mut first = first;
        let mut contents = Contents::new(place);
        let mut version = Version::default();
        let mut left = size;
        for number in 0_u64.. {
            let at = size - left;
            let piece = match first.take() {
                Some(first) => first,
                None => self.reader.piece()?,
            };
            if number > 0 && matches!(piece, Piece::Data { .. } | Piece::Hole { .. }) {
                contents.forget_there().map_err(refused)?;
            }
            match piece {
                Piece::Data { bytes } => {
                    left = take(left, bytes)?;
                    let progress = self.ledger.progress;
                    self.reader.data(bytes, &mut |place, data| {
                        let written = progress.at_disk(|| contents.write(at + place, data));
                        written.map_err(refused)?;
                        progress.add_bytes(data.len() as u64);
                        Ok(())
                    })?;
                }
                Piece::Hole { bytes } => {
                    left = take(left, bytes)?;
                    contents.forget_there().map_err(refused)?;
                    contents.hole(at, bytes);
                    self.ledger.progress.add_bytes(bytes);
                }
                Piece::Copy { from, bytes } => {
                    if !self.target.is_synchronized() {
                        return Err(protocol("a copy in a file that is not synchronized"));
                    }
                    left = take(left, bytes)?;
                    self.ledger.progress.add_bytes(bytes);
                    contents.forget_there().map_err(refused)?;
                    if contents.wanted()
                        && !version.copy(&self.target, name, from, bytes, at, &mut contents)?
                    {
                        contents.abandon();
                        self.gone(name, settled)?;
                    }
                }
                Piece::Trial => {
                    return Err(protocol("a piece that cannot be in a file that is sent"));
                }
                Piece::Checkpoint { seal } => contents.checkpoint(seal).map_err(refused)?,
                Piece::Reuse { until } => {
                    let bytes = (until.checked_sub(at))
                        .ok_or_else(|| protocol("what is reused has come already"))?;
                    left = take(left, bytes)?;
                    self.ledger.progress.add_bytes(bytes);
                    if !contents.reuse(until) {
                        contents.abandon();
                        self.gone(name, settled)?;
                    }
                }
                Piece::Same => {
                    self.ledger.progress.add_bytes(left);
                    left = 0;
                    if contents.wanted() {
                        match self.target.existing(name, size) {
                            Some(file) => {
                                contents.same(file, size);
                                let progress = self.ledger.progress;
                                let mut next =
                                    || progress.at_disk(|| contents.compare(COMPARE_BYTES));
                                while next().map_err(refused)? {}
                            }
                            None => {
                                contents.abandon();
                                self.gone(name, settled)?;
                            }
                        }
                    }
                }
                Piece::End { digest } => {
                    if left > 0 {
                        return Err(protocol("a file is shorter than announced"));
                    }
                    self.ledger.add_work(contents.work());
                    let finished =
                        (self.ledger.progress).at_disk(|| contents.finish(size, &digest));
                    return Ok(Some((size, finished.map_err(refused)?)));
                }
                Piece::Abort { reason } => {
                    contents.discard();
                    return self.aborted(name, &reason, *settled);
                }
            }
            self.tell_early(name, &contents, settled)?;
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
        let shown = printable(&self.target.path_of(name));
        let refused = |error: io::Error| local_io("write to", &shown, error);
        let mut contents = Contents::new(place);
        let mut at = 0_u64;
        loop {
            match self.reader.piece()? {
                Piece::Data { bytes } => {
                    self.ledger.expect_bytes(bytes)?;
                    let end = at
                        .checked_add(bytes)
                        .filter(|end| i64::try_from(*end).is_ok());
                    let end = end.ok_or_else(|| protocol("a file is too long"))?;
                    let progress = self.ledger.progress;
                    self.reader.data(bytes, &mut |place, data| {
                        let written = progress.at_disk(|| contents.write(at + place, data));
                        written.map_err(refused)?;
                        progress.add_bytes(data.len() as u64);
                        Ok(())
                    })?;
                    at = end;
                }
                Piece::Hole { .. }
                | Piece::Checkpoint { .. }
                | Piece::Reuse { .. }
                | Piece::Same
                | Piece::Trial
                | Piece::Copy { .. } => return Err(protocol("a piece that a stream cannot have")),
                Piece::End { digest } => {
                    self.ledger.add_work(contents.work());
                    let finished = (self.ledger.progress).at_disk(|| contents.finish(at, &digest));
                    return Ok(Some((at, finished.map_err(refused)?)));
                }
                Piece::Abort { reason } => return self.aborted(name, &reason, *settled),
            }
            self.tell_early(name, &contents, settled)?;
        }
    }

    /// What is known to be refused is said at once, so that the sender need not send the rest.
    fn tell_early(&mut self, name: &Name, contents: &Contents, settled: &mut bool) -> Outcome<()> {
        if !*settled && !contents.wanted() {
            *settled = true;
            self.refuse_existing(name)?;
        }
        Ok(())
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

fn take(left: u64, bytes: u64) -> Outcome<u64> {
    left.checked_sub(bytes)
        .ok_or_else(|| protocol("a file is longer than announced"))
}
