//! The sending end of a transfer.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;

use super::paths::SafePath;
use super::tree::{ContentDigest, Root, Step, Walk, attributes, shown};
use super::wire::{
    Entry, Reader, Totals, put_data, put_entry, put_file_end, put_hole, put_preamble,
};
use crate::channel::{Channel, Outgoing};
use crate::failure::{Failure, Outcome, close_code, code, fail, fail_hint, local_io, protocol};
use crate::report::{Progress, Reporter};
use crate::text::{hex, printable};
use sphinx_transport::{ErrorKind, Stats};

/// One read from a file.
const READ_BYTES: usize = 256 << 10;
/// Small records are gathered up to this before they go to the session.
const GATHER_BYTES: usize = 64 << 10;
const VERDICT_BUFFER_BYTES: usize = 4096;

/// Sends `roots` on `channel`; returns when the receiver has everything in place.
///
/// The statistics are those of the whole session, but their time ends with the last byte delivered.
pub(crate) fn send<C: Channel>(
    channel: &C,
    roots: &[Root],
    announced: Totals,
    progress: &Progress,
    reporter: &Reporter,
) -> Outcome<(Totals, Stats)> {
    let mut forward = channel.open_stream()?;
    let verdict = Verdict::watch(channel.clone())?;
    let sent = send_tree(&mut forward, roots, announced, progress, reporter).and_then(|totals| {
        forward
            .wait_delivered()
            .map(|()| (totals, channel.stats().elapsed))
    });
    let (totals, elapsed) = match sent {
        Ok(sent) => sent,
        Err(failure) => return Err(explain(channel, &verdict, failure)),
    };
    match verdict.wait() {
        Ok(confirmed) if confirmed == totals => {
            channel.close(code::DONE, "done");
            Ok((
                totals,
                Stats {
                    elapsed,
                    ..channel.stats()
                },
            ))
        }
        Ok(_) => {
            let failure = protocol("the receiver confirms something else than was sent");
            channel.close(close_code(failure.kind), &failure.message);
            Err(failure)
        }
        Err(failure) => {
            channel.close(code::CANCELLED, "the receiver failed");
            Err(failure)
        }
    }
}

/// What ended the transfer early: a reason the receiver gave goes before the mere end of the
/// session, and a reason on this side is told to the receiver.
fn explain<C: Channel>(channel: &C, verdict: &Verdict, failure: Failure) -> Failure {
    if let Some(Err(reason)) = verdict.known() {
        channel.close(code::CANCELLED, "the receiver failed");
        return reason;
    }
    // What waits to be sent is of no use any more: the close overtakes it.
    channel.close(close_code(failure.kind), &failure.message);
    failure
}

/// Writes the whole tree and the end of the stream.
pub(super) fn send_tree(
    out: &mut impl Outgoing,
    roots: &[Root],
    announced: Totals,
    progress: &Progress,
    reporter: &Reporter,
) -> Outcome<Totals> {
    let mut sender = Sender {
        out,
        gathered: Vec::with_capacity(2 * GATHER_BYTES),
        buffer: vec![0; READ_BYTES],
        done: Totals::default(),
        progress,
        reporter,
    };
    put_preamble(&mut sender.gathered, announced);
    for step in Walk::new(roots) {
        sender.step(step?)?;
    }
    let Totals { entries, bytes } = sender.done;
    put_entry(&mut sender.gathered, &Entry::End { entries, bytes });
    sender.pass_on()?;
    sender.out.finish()?;
    Ok(sender.done)
}

struct Sender<'a, O> {
    out: &'a mut O,
    /// Records that wait to be passed on together.
    gathered: Vec<u8>,
    /// What is read from the file.
    buffer: Vec<u8>,
    done: Totals,
    progress: &'a Progress,
    reporter: &'a Reporter,
}

impl<O: Outgoing> Sender<'_, O> {
    fn step(&mut self, step: Step) -> Outcome<()> {
        match step {
            Step::Skipped { reason } => {
                self.reporter.warn(&reason);
                return Ok(());
            }
            Step::File { path, source } => self.file(path, &source)?,
            Step::Directory { path } => self.record(&Entry::Directory { path })?,
            Step::DirectoryEnd { path, attributes } => {
                self.record(&Entry::DirectoryEnd { path, attributes })?;
            }
            Step::Symlink {
                path,
                attributes,
                target,
            } => {
                self.record(&Entry::Symlink {
                    path,
                    attributes,
                    target,
                })?;
            }
        }
        self.done.entries += 1;
        Ok(())
    }

    fn record(&mut self, entry: &Entry) -> Outcome<()> {
        put_entry(&mut self.gathered, entry);
        self.pass_on_if_full()
    }

    fn file(&mut self, path: SafePath, source: &Path) -> Outcome<()> {
        let refused = |error: io::Error| local_io("read", &shown(source), error);
        self.progress.set_name(printable(path.as_bytes()));
        // A path that has become a pipe since the walk must not block here.
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(source)
            .map_err(refused)?;
        let before = file.metadata().map_err(refused)?;
        if !before.is_file() {
            return Err(changed(source));
        }
        let size = before.len();
        let name = path.as_bytes().to_owned();
        let entry = Entry::File {
            path,
            attributes: attributes(&before),
            size,
        };
        put_entry(&mut self.gathered, &entry);
        let digest = self.contents(&mut file, source, &before)?;
        put_file_end(&mut self.gathered, &digest);
        self.pass_on_if_full()?;
        self.done.bytes = self.done.bytes.saturating_add(size);
        self.progress.add_file();
        self.reporter.file("sent", &name, size, &hex(&digest))
    }

    fn contents(&mut self, file: &mut File, source: &Path, before: &Metadata) -> Outcome<[u8; 32]> {
        let refused = |error: io::Error| local_io("read", &shown(source), error);
        let size = before.len();
        // Fewer blocks than bytes: there may be holes.
        let sparse = before.blocks().saturating_mul(512) < size;
        let mut digest = ContentDigest::default();
        let mut at = 0;
        while at < size {
            let extent = match sparse {
                true => extent(file, at, size).map_err(refused)?,
                false => None,
            };
            let data_end = match extent {
                Some(extent) => {
                    if extent.data > at {
                        put_hole(&mut self.gathered, extent.data - at);
                        digest.hole(at, extent.data - at);
                        self.progress.add_bytes(extent.data - at);
                        at = extent.data;
                    }
                    extent.end
                }
                None => size,
            };
            if at < data_end {
                put_data(&mut self.gathered, data_end - at);
            }
            while at < data_end {
                let wanted = (data_end - at).min(READ_BYTES as u64) as usize;
                let read = self.data(file, wanted, source, &mut digest)?;
                at += read as u64;
            }
        }
        // One byte more, or another size or time, and what was sent is no state the file ever had.
        let grown = file.read(&mut [0]).map_err(refused)? > 0;
        let after = file.metadata().map_err(refused)?;
        let stamp = |m: &Metadata| (m.len(), m.mtime(), m.mtime_nsec());
        if grown || stamp(before) != stamp(&after) {
            return Err(changed(source));
        }
        Ok(digest.finish())
    }

    /// Reads and sends the next `wanted` bytes; returns their number.
    fn data(
        &mut self,
        file: &mut File,
        wanted: usize,
        source: &Path,
        digest: &mut ContentDigest,
    ) -> Outcome<usize> {
        match file.read_exact(&mut self.buffer[..wanted]) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(changed(source));
            }
            Err(error) => return Err(local_io("read", &shown(source), error)),
        }
        digest.data(&self.buffer[..wanted]);
        if self.gathered.len() + wanted <= GATHER_BYTES {
            self.gathered.extend_from_slice(&self.buffer[..wanted]);
        } else {
            self.pass_on()?;
            self.out.write_all(&self.buffer[..wanted])?;
        }
        self.progress.add_bytes(wanted as u64);
        Ok(wanted)
    }

    fn pass_on_if_full(&mut self) -> Outcome<()> {
        match self.gathered.len() >= GATHER_BYTES {
            true => self.pass_on(),
            false => Ok(()),
        }
    }

    fn pass_on(&mut self) -> Outcome<()> {
        self.out.write_all(&self.gathered)?;
        self.gathered.clear();
        Ok(())
    }
}

/// Data from `data` to `end`; before it a hole, if `data` is not where the question started.
struct Extent {
    data: u64,
    end: u64,
}

/// The next data at or after `at`, and positions the file there; `None` where the file system keeps
/// no holes.
fn extent(file: &File, at: u64, size: u64) -> io::Result<Option<Extent>> {
    let data = match seek(file, SeekFrom::Data(at)) {
        // A file that grows meanwhile must not carry the position past the announced end.
        Ok(data) => data.min(size),
        // Only a hole follows.
        Err(Errno::NXIO) => size,
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let end = match seek(file, SeekFrom::Hole(data)) {
        Ok(end) if end > data => end.min(size),
        // Data that ends where it starts has been changed meanwhile; reading it will tell.
        _ => size,
    };
    seek(file, SeekFrom::Start(data))?;
    Ok(Some(Extent { data, end }))
}

fn changed(source: &Path) -> Failure {
    fail_hint(
        ErrorKind::LocalIo,
        format!("{} changed while it was being sent", shown(source)),
        "send it again when nothing writes to it",
    )
}

/// Listens for the receiver's verdict beside the sending thread, so that a receiver that fails
/// early stops the sender early.
struct Verdict {
    known: Arc<Mutex<Option<Outcome<Totals>>>>,
    thread: thread::JoinHandle<()>,
}

impl Verdict {
    fn watch<C: Channel>(channel: C) -> Outcome<Self> {
        let known = Arc::new(Mutex::new(None));
        let slot = known.clone();
        let body = move || {
            let verdict = channel.accept_stream().and_then(|input| {
                let mut reader = Reader::new(input, VERDICT_BUFFER_BYTES);
                reader.verdict()
            });
            let failed = verdict.is_err();
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(verdict);
            if failed {
                // Wakes the sending thread if the window keeps it waiting.
                channel.close(code::CANCELLED, "the receiver failed");
            }
        };
        let thread = thread::Builder::new()
            .name("verdict".to_owned())
            .spawn(body)
            .map_err(|error| local_io("start", "a thread", error))?;
        Ok(Self { known, thread })
    }

    fn known(&self) -> Option<Outcome<Totals>> {
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn wait(self) -> Outcome<Totals> {
        let Self { known, thread } = self;
        // A panic there leaves the slot empty.
        let _ = thread.join();
        let verdict = known.lock().unwrap_or_else(PoisonError::into_inner).take();
        verdict.unwrap_or_else(|| Err(fail(ErrorKind::Other, "the verdict was not read")))
    }
}
