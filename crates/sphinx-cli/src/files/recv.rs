//! The receiving end of a transfer.

mod answers;
mod ledger;
mod version;

use std::io;

use answers::Answers;
pub(super) use ledger::Ledger;
use version::Version;

use super::Transferred;
use super::contents::{Contents, Finished};
use super::output::{Destination, OutputDir, Refused};
use super::paths::Name;
use super::reader::Reader;
use super::source::SourceId;
use super::stdout::receive_to_stdout;
use super::target::{Place, Target};
use super::wire::{Announced, Attributes, Entry, Piece, Reply, Totals, put_reply};
use crate::channel::{Channel, Incoming, Outgoing, reason};
use crate::failure::{Outcome, close_code, fail, fail_hint, local_io, protocol};
use crate::report::{Progress, Reporter};
use crate::text::printable;
use sphinx_transport::{ErrorKind, Stats};

/// Of a file that is there, read at once.
const COMPARE_BYTES: u64 = 8 << 20;
/// Large enough for writes and hashing to run at full speed, small enough for many sessions.
const BUFFER_BYTES: usize = 256 << 10;

/// Asks whoever is in charge whether a transfer may begin.
pub(crate) type Consent<'a> = dyn Fn(Announced) -> Outcome<()> + 'a;

/// Receives one transfer on `channel` and tells the sender how it went.
///
/// The statistics are those of the whole session, but their time ends with the last byte in place.
pub(crate) fn receive<C: Channel>(
    channel: &C,
    destination: &Destination,
    consent: &Consent<'_>,
    progress: &Progress,
    reporter: &Reporter,
) -> Outcome<(Transferred, Stats)> {
    // Held until the sender has heard the verdict: a stream that nobody reads any more would end its side without one.
    let mut forward = channel.accept_uni()?;
    let mut reverse = channel.open_uni()?;
    let mut tell = |replies: &[Reply]| {
        let mut bytes = Vec::new();
        for reply in replies {
            put_reply(&mut bytes, reply);
        }
        reverse.write_all(&bytes).and_then(|()| reverse.flush())
    };
    let received = receive_tree(
        &mut forward,
        destination,
        consent,
        &mut tell,
        progress,
        reporter,
    );
    let elapsed = channel.stats().elapsed;
    match received {
        Ok(transferred) => {
            // The sender closes: it must have read the verdict before the session ends. How it
            // ends does not matter any more, everything is in place.
            let _ = tell(&[Reply::Done(transferred.counts)])
                .and_then(|()| reverse.finish())
                .and_then(|()| channel.accept_uni());
            let stats = Stats {
                elapsed,
                ..channel.stats()
            };
            Ok((transferred, stats))
        }
        Err(failure) => {
            let failure = reason(channel, failure);
            let code = close_code(failure.kind);
            let verdict = Reply::Failed {
                code: u8::try_from(code).unwrap_or(u8::MAX),
                message: failure.message.clone(),
            };
            // Whether or not the verdict arrives, the close says the same.
            let _ = tell(&[verdict])
                .and_then(|()| reverse.finish())
                .and_then(|()| reverse.wait_delivered());
            channel.close(code, &failure.message);
            Err(failure)
        }
    }
}

/// Reads a whole transfer from `input`.
pub(super) fn receive_tree(
    input: impl Incoming,
    destination: &Destination,
    consent: &Consent<'_>,
    tell: &mut dyn FnMut(&[Reply]) -> Outcome<()>,
    progress: &Progress,
    reporter: &Reporter,
) -> Outcome<Transferred> {
    let mut reader = Reader::new(input, BUFFER_BYTES);
    let announced = reader.preamble()?;
    let rules = match destination {
        Destination::Directory(output) | Destination::OwnDirectories(output) => output.rules,
        Destination::Stdout(rules) => *rules,
    };
    let mut ledger = Ledger::new(rules, tell, progress, reporter);
    ledger.check_announced(announced)?;
    consent(announced)?;
    progress.expect_bytes(announced.bytes.unwrap_or(0));
    let own = match destination {
        Destination::OwnDirectories(output) => Some((output, output.own(announced.source)?)),
        Destination::Directory(_) | Destination::Stdout(_) => None,
    };
    let received = ledger
        .tell(&[Reply::Ready])
        .and_then(|()| match destination {
            Destination::Directory(output) => Tree::new(reader, output.clone(), &mut ledger).run(),
            Destination::OwnDirectories(output) => {
                let output = own.as_ref().map_or(output, |(_, own)| &own.output);
                Tree::new(reader, output.clone(), &mut ledger).run()
            }
            Destination::Stdout(_) => receive_to_stdout(reader, &mut ledger),
        });
    let output = match (own, destination) {
        (Some((output, own)), _) => {
            let shown = own.output.shown.clone();
            output.end_own(own, received.is_ok() && ledger.is_complete());
            Some(shown)
        }
        (None, Destination::Directory(output)) => Some(output.shown.clone()),
        (None, _) => None,
    };
    received?;
    let (counts, work, first_skip) = ledger.into_result();
    Ok(Transferred {
        counts,
        work,
        first_skip,
        output,
    })
}

/// Receives into a directory.
struct Tree<'a, 'l, I> {
    reader: Reader<I>,
    target: Target,
    answers: Answers,
    ledger: &'a mut Ledger<'l>,
    /// Directories begun and not ended that are left out, inside those of the target.
    left_out: usize,
}

impl<'a, 'l, I: Incoming> Tree<'a, 'l, I> {
    fn new(reader: Reader<I>, output: OutputDir, ledger: &'a mut Ledger<'l>) -> Self {
        Self {
            reader,
            answers: Answers::new(output.clone()),
            target: Target::new(output),
            ledger,
            left_out: 0,
        }
    }

    fn run(mut self) -> Outcome<()> {
        loop {
            let ended = self.entry()?;
            for (change, path) in self.target.take_changes() {
                self.ledger.changed(change, path)?;
            }
            for (path, failure) in self.target.take_complaints() {
                self.ledger.skip(&path, failure)?;
            }
            if ended {
                break;
            }
        }
        self.reader.expect_end()?;
        self.target.finish()
    }

    /// Handles one entry; true after the last.
    fn entry(&mut self) -> Outcome<bool> {
        let entry = self.reader.entry()?;
        if entry.counts() {
            self.ledger.add_entry()?;
        }
        let inside = self.left_out > 0;
        if let (false, Some(name)) = (inside, entry.name()) {
            self.target.note(name);
        }
        match entry {
            Entry::Directory { .. } if inside => {
                self.left_out += 1;
                self.ledger.skip_inside();
            }
            Entry::Directory { name, mode } => {
                let entered = self.target.enter(&name, mode);
                if self.settle(&name, entered)?.is_none() {
                    self.left_out = 1;
                }
            }
            Entry::DirectoryEnd { .. } if inside => {
                self.left_out -= 1;
                self.target.forget_xattrs();
            }
            Entry::DirectoryEnd { attributes } => {
                self.end_directory(attributes)?;
                self.target.forget_xattrs();
            }
            Entry::File {
                name,
                attributes,
                size,
                source,
            } => {
                self.ledger.expect_bytes(size)?;
                self.file(&name, attributes, Some(size), source)?;
                self.target.forget_xattrs();
            }
            Entry::Stream { name, attributes } => self.file(&name, attributes, None, None)?,
            Entry::Offer(offer) => self.answers.offer(&offer, self.ledger)?,
            Entry::Ask => self.answers.ask(self.ledger)?,
            Entry::Delete => {
                if self.target.depth() > 0 || inside {
                    return Err(protocol("something is deleted before everything has come"));
                }
                if let Err(failure) = self.target.delete() {
                    let path = self.target.own_path();
                    self.ledger.skip(&path, failure)?;
                }
            }
            Entry::Symlink { .. } | Entry::HardLink { .. } | Entry::Skipped { .. } if inside => {
                self.ledger.skip_inside();
            }
            Entry::HardLink { name, path } => {
                let made = self.target.make_hard_link(&name, &path);
                self.settle(&name, made)?;
            }
            Entry::Owner(owner) => self.target.set_owner(&owner)?,
            Entry::Xattrs(xattrs) => self.target.set_xattrs(xattrs)?,
            Entry::Symlink {
                name,
                attributes,
                target,
            } => {
                let made = self.target.make_link(&name, &target, attributes);
                self.settle(&name, made)?;
            }
            Entry::Skipped { name, reason } => {
                self.target.leave_out();
                let path = self.target.path_of(&name);
                self.ledger.skipped_by_sender(&path, &reason);
            }
            Entry::End { entries, bytes } => {
                if self.target.depth() > 0 || inside {
                    return Err(protocol("the transfer ends inside a directory"));
                }
                self.ledger.check_end(Totals { entries, bytes })?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn end_directory(&mut self, attributes: Attributes) -> Outcome<()> {
        if self.target.depth() == 0 {
            return Err(protocol("the end of a directory that was not begun"));
        }
        self.target.leave(attributes)
    }

    /// Takes note of what is refused: of one entry, in the ledger; of the transfer, as its end.
    fn settle<T>(&mut self, name: &Name, result: Result<T, Refused>) -> Outcome<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Refused::Transfer(failure)) => Err(failure),
            Err(Refused::Entry(failure)) => {
                self.target.leave_out();
                let path = self.target.path_of(name);
                self.ledger.skip(&path, failure)?;
                Ok(None)
            }
        }
    }

    fn file(
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
            // For most files nothing has to be made.
            let piece = self.reader.piece()?;
            if let Piece::Unchanged | Piece::Trial = piece {
                return self.unsent(name, &path, attributes, size, piece == Piece::Unchanged);
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

    /// A file that is there already, or that would be sent.
    fn unsent(
        &mut self,
        name: &Name,
        path: &[u8],
        attributes: Attributes,
        size: u64,
        present: bool,
    ) -> Outcome<()> {
        if !present && !self.target.is_trial() {
            return Err(protocol("a trial that was not asked for"));
        }
        if self.left_out > 0 {
            self.ledger.skip_inside();
            self.ledger.add_bytes(size);
            return Ok(());
        }
        let done = match present {
            true => self.target.keep(name, attributes),
            false => self.target.would_come(name),
        };
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
                Piece::Unchanged | Piece::Trial => {
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
                | Piece::Unchanged
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
