//! The receiving end of a transfer.

mod answers;
mod file;
mod ledger;
mod version;

use answers::Answers;
pub(super) use ledger::Ledger;
pub(crate) use ledger::too_large;

use super::Transferred;
use super::output::{Destination, OutputDir, Refused};
use super::paths::Name;
use super::reader::Reader;
use super::stdout::receive_to_stdout;
use super::target::Target;
use super::wire::{Announced, Attributes, Entry, Reply, Totals, VERDICT_REFUSED, put_reply};
use crate::channel::{Channel, Incoming, Outgoing, reason};
use crate::failure::{Outcome, close_code, protocol};
use crate::report::{Progress, Reporter};
use sphinx_transport::Stats;

/// Bytes of an existing file that are read and compared at a time.
const COMPARE_BYTES: u64 = 8 << 20;
/// Large enough for writes and hashing to run at full speed, small enough for many sessions.
const BUFFER_BYTES: usize = 256 << 10;

/// Asks whoever is in charge whether a transfer may begin, and how many bytes of files may be sent, if that is bounded.
pub(crate) type Consent<'a> = dyn Fn(Announced) -> Outcome<Option<u64>> + 'a;

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
                code: match failure.is_refusal {
                    true => VERDICT_REFUSED,
                    false => u8::try_from(code).unwrap_or(u8::MAX),
                },
                message: failure.for_the_other_end(),
            };
            // If the verdict does not arrive, the close that follows has the same code and message.
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
    ledger.allow(announced, consent(announced)?);
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
            self.tell_changes()?;
            if ended {
                break;
            }
        }
        self.reader.expect_end()?;
        self.target.finish()?;
        self.tell_changes()
    }

    /// Tells what the last entry has changed besides what it was about, and what it did not get.
    fn tell_changes(&mut self) -> Outcome<()> {
        for (change, path) in self.target.take_changes() {
            self.ledger.changed(change, path)?;
        }
        for (path, failure) in self.target.take_complaints() {
            self.ledger.complain(&path, failure)?;
        }
        Ok(())
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
            Entry::Kept { first, count } => self.kept(first, count)?,
            Entry::Delete => {
                if self.target.depth() > 0 || inside {
                    return Err(protocol("something is deleted before everything has come"));
                }
                if let Err(failure) = self.target.delete() {
                    let path = self.target.own_path();
                    self.ledger.complain(&path, failure)?;
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

    /// Handles files that were offered and that the sender leaves as this end has them.
    fn kept(&mut self, first: u64, count: u32) -> Outcome<()> {
        for step in 0..u64::from(count) {
            let there = (first.checked_add(step)).and_then(|offer| self.answers.take(offer));
            let there = there.ok_or_else(|| protocol("a file is kept that is not there"))?;
            self.ledger.add_entry()?;
            self.ledger.expect_bytes(there.size)?;
            if self.left_out == 0 {
                self.target.note(&there.name);
            }
            self.keep(&there)?;
            self.target.forget_xattrs();
            self.tell_changes()?;
        }
        Ok(())
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
}
