//! The receiving end of a transfer.

use std::io;

use super::OutputDir;
use super::contents::Contents;
use super::paths::{SafePath, link_target};
use super::target::{Target, Temporary};
use super::wire::{Attributes, Entry, Piece, Reader, Totals, put_verdict};
use crate::channel::{Channel, Incoming, Outgoing};
use crate::failure::{Outcome, close_code, fail, local_io, protocol};
use crate::report::{Progress, Reporter};
use crate::text::{hex, printable};
use sphinx_transport::{ErrorKind, Stats};

/// Large enough for writes and hashing to run at full speed, small enough for many sessions.
const BUFFER_BYTES: usize = 256 << 10;

/// Receives one transfer on `channel` and tells the sender how it went.
///
/// The statistics are those of the whole session, but their time ends with the last byte in place.
pub(crate) fn receive<C: Channel>(
    channel: &C,
    output: &OutputDir,
    progress: &Progress,
    reporter: &Reporter,
) -> Outcome<(Totals, Stats)> {
    let forward = channel.accept_stream()?;
    let mut reverse = channel.open_stream()?;
    let received = receive_tree(forward, output, progress, reporter);
    let elapsed = channel.stats().elapsed;
    let mut verdict = Vec::new();
    match received {
        Ok(totals) => {
            put_verdict(&mut verdict, Ok(totals));
            // The sender closes: it must have read the verdict before the session ends. How it
            // ends does not matter any more, everything is in place.
            let _ = reverse
                .write_all(&verdict)
                .and_then(|()| reverse.finish())
                .and_then(|()| channel.accept_stream());
            Ok((
                totals,
                Stats {
                    elapsed,
                    ..channel.stats()
                },
            ))
        }
        Err(failure) => {
            let code = close_code(failure.kind);
            put_verdict(&mut verdict, Err((code, &failure.message)));
            // Whether or not the verdict arrives, the close says the same.
            let _ = reverse
                .write_all(&verdict)
                .and_then(|()| reverse.finish())
                .and_then(|()| reverse.wait_delivered());
            channel.close(code, &failure.message);
            Err(failure)
        }
    }
}

/// Reads a whole tree from `input` into `output`.
pub(super) fn receive_tree(
    input: impl Incoming,
    output: &OutputDir,
    progress: &Progress,
    reporter: &Reporter,
) -> Outcome<Totals> {
    let mut tree = Tree {
        reader: Reader::new(input, BUFFER_BYTES),
        target: output.target(),
        progress,
        reporter,
        done: Totals::default(),
        open_directories: Vec::new(),
    };
    let announced = tree.reader.preamble()?;
    progress.expect_bytes(announced.bytes);
    while !tree.entry()? {}
    tree.reader.expect_end()?;
    Ok(tree.done)
}

struct Tree<'a, I> {
    reader: Reader<I>,
    target: Target,
    progress: &'a Progress,
    reporter: &'a Reporter,
    done: Totals,
    /// Directories begun and not ended, and whether this transfer made them.
    open_directories: Vec<(SafePath, bool)>,
}

impl<I: Incoming> Tree<'_, I> {
    /// Handles one entry; true after the last.
    fn entry(&mut self) -> Outcome<bool> {
        match self.reader.entry()? {
            Entry::Directory { path } => {
                self.inside_open_directory(&path)?;
                let made = self.target.make_directory(&path)?;
                self.open_directories.push((path, made));
            }
            Entry::DirectoryEnd { path, attributes } => {
                let (begun, made) = self
                    .open_directories
                    .pop()
                    .ok_or_else(|| protocol("the end of a directory that was not begun"))?;
                if begun != path {
                    return Err(protocol("directories end in the wrong order"));
                }
                // A directory that was there before keeps what its owner gave it.
                if made {
                    self.target.finish_directory(&path, attributes)?;
                }
            }
            Entry::File {
                path,
                attributes,
                size,
            } => {
                self.inside_open_directory(&path)?;
                self.file(&path, attributes, size)?;
            }
            Entry::Symlink {
                path,
                attributes,
                target,
            } => {
                self.inside_open_directory(&path)?;
                link_target(&path, &target)
                    .map_err(|error| protocol(format!("a link is refused: {error}")))?;
                self.target.make_link(&path, &target, attributes)?;
            }
            Entry::End { entries, bytes } => {
                if !self.open_directories.is_empty() {
                    return Err(protocol("the transfer ends inside a directory"));
                }
                return match self.done == (Totals { entries, bytes }) {
                    true => Ok(true),
                    false => Err(protocol("the transfer is not what its end says")),
                };
            }
        }
        self.done.entries += 1;
        Ok(false)
    }

    /// Entries come depth first, each directly inside the directory that is open.
    fn inside_open_directory(&self, path: &SafePath) -> Outcome<()> {
        let parent = path.split_last().0;
        let open = self
            .open_directories
            .last()
            .map_or(&b""[..], |(path, _)| path.as_bytes());
        match parent == open {
            true => Ok(()),
            false => Err(protocol("an entry lies outside the directory it comes in")),
        }
    }

    fn file(&mut self, path: &SafePath, attributes: Attributes, size: u64) -> Outcome<()> {
        self.progress.set_name(printable(path.as_bytes()));
        let file = self.target.create(path)?;
        let digest = self.contents(path, &file, size)?;
        self.target.commit(path, file, attributes)?;
        self.done.bytes = self.done.bytes.saturating_add(size);
        self.progress.add_file();
        self.reporter
            .file("received", path.as_bytes(), size, &digest)
    }

    /// Writes and verifies the contents of one file; returns its digest in hexadecimal.
    fn contents(&mut self, path: &SafePath, file: &Temporary, size: u64) -> Outcome<String> {
        let refused = |error: io::Error| local_io("write to", &printable(path.as_bytes()), error);
        let mut contents = Contents::new(file);
        let mut left = size;
        loop {
            let at = size - left;
            match self.reader.piece()? {
                Piece::Data { bytes } => {
                    left = take(left, bytes)?;
                    let progress = self.progress;
                    self.reader.data(bytes, &mut |place, data| {
                        contents.write(at + place, data).map_err(refused)?;
                        progress.add_bytes(data.len() as u64);
                        Ok(())
                    })?;
                }
                Piece::Hole { bytes } => {
                    left = take(left, bytes)?;
                    contents.hole(at, bytes);
                    self.progress.add_bytes(bytes);
                }
                Piece::End { digest: expected } => {
                    if left > 0 {
                        return Err(protocol("a file is shorter than announced"));
                    }
                    let actual = contents.finish(size).map_err(refused)?;
                    if actual != expected {
                        return Err(fail(
                            ErrorKind::Integrity,
                            format!("{} arrived damaged", printable(path.as_bytes())),
                        ));
                    }
                    return Ok(hex(&actual));
                }
            }
        }
    }
}

fn take(left: u64, bytes: u64) -> Outcome<u64> {
    left.checked_sub(bytes)
        .ok_or_else(|| protocol("a file is longer than announced"))
}
