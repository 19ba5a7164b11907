//! The contents of a file of known size.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom, Stat, fstat, seek};
use rustix::io::Errno;

use super::file::Ended;
use super::{READ_BYTES, Sender};
use crate::channel::Outgoing;
use crate::failure::Outcome;
use crate::files::digest::{ContentDigest, LEAF_BYTES};
use crate::files::holes::has_holes;
use crate::files::paths::Name;
use crate::files::replies::Answer;
use crate::files::source::{Sealed, SourceId};
use crate::files::wire::{Piece, put_piece};

/// Longest piece of data. What was announced has to be sent, also of a file that turns out to be
/// shorter; and a receiver that has refused a file gets the rest of the piece.
const PIECE_BYTES_MAX: u64 = 64 << 20;
/// Shorter pieces are not worth being sent before it is known what the receiver has.
const UNASKED_PIECE_BYTES_MIN: u64 = 64 << 10;
/// Checkpoints come no faster than this, unless they are as far apart as they may be, and not much slower.
const CHECKPOINT_INTERVAL_MIN: Duration = Duration::from_millis(500);
const CHECKPOINT_INTERVAL_MAX: Duration = Duration::from_secs(2);
const CHECKPOINT_LEAVES_MAX: u64 = PIECE_BYTES_MAX / LEAF_BYTES;

/// A file to be sent.
pub(super) struct OpenFile<'f> {
    pub(super) file: &'f mut File,
    pub(super) name: &'f Name,
    pub(super) stat: &'f Stat,
    pub(super) size: u64,
    pub(super) source: Option<SourceId>,
    /// The number of the offer, as long as the answer has not been looked at.
    pub(super) offer: Option<u64>,
    /// The answer, if it has been heard and not looked at.
    pub(super) answer: Option<Answer>,
}

impl OpenFile<'_> {
    pub(super) fn is_sparse(&self) -> bool {
        has_holes(&*self.file, self.stat)
    }
}

/// When the next checkpoint of a file is sent.
struct Checkpoints {
    source: SourceId,
    /// Leaves of the hash from one checkpoint to the next.
    leaves: u64,
    last: Instant,
}

impl Checkpoints {
    fn new(source: SourceId) -> Self {
        Self {
            source,
            leaves: 1,
            last: Instant::now(),
        }
    }

    /// Bytes of data until the next checkpoint is due.
    fn room(&self, data_bytes: u64) -> u64 {
        (data_bytes / LEAF_BYTES + self.leaves) * LEAF_BYTES - data_bytes
    }

    /// A checkpoint was sent.
    fn passed(&mut self) {
        let interval = self.last.elapsed();
        self.last = Instant::now();
        if interval < CHECKPOINT_INTERVAL_MIN {
            self.leaves = (2 * self.leaves).min(CHECKPOINT_LEAVES_MAX);
        } else if interval > CHECKPOINT_INTERVAL_MAX {
            self.leaves = (self.leaves / 2).max(1);
        }
    }
}

impl<O: Outgoing> Sender<'_, O> {
    pub(super) fn contents(&mut self, mut opened: OpenFile<'_>) -> Outcome<Ended> {
        let size = opened.size;
        let sparse = opened.is_sparse();
        let mut checkpoints = opened.source.map(Checkpoints::new);
        let mut digest = ContentDigest::default();
        let mut at = 0;
        while at < size {
            if self.hear() {
                return Ok(Ended::Unwanted);
            }
            let mut piece_max = PIECE_BYTES_MAX;
            if let Some(Answer::Part(sealed)) = opened.answer.take()
                && self.is_known(&opened, &sealed)
            {
                // On an error nothing of the file has been sent, so that it can still be left out.
                match self.reuse(&mut opened, &sealed, at) {
                    Ok(reused) => (digest, at) = reused,
                    Err(error) => return Ok(self.unreadable(opened.name, error)),
                }
                continue;
            }
            if let Some(offer) = opened.offer {
                piece_max = self.unasked();
                let enough = sparse || at > 0 || piece_max < UNASKED_PIECE_BYTES_MIN;
                if enough || self.is_answered(offer) {
                    opened.offer = None;
                    match self.answer(offer)? {
                        Some(Answer::Present) if !sparse => return self.same(opened, digest, at),
                        Some(Answer::Part(sealed)) if self.is_known(&opened, &sealed) => {
                            match self.reuse(&mut opened, &sealed, at) {
                                Ok(reused) => (digest, at) = reused,
                                Err(error) => return Ok(self.unreadable(opened.name, error)),
                            }
                        }
                        _ => {}
                    }
                    continue;
                }
            }
            let extent = match sparse {
                true => match extent(opened.file, at, size) {
                    Ok(extent) => extent,
                    Err(error) => return Ok(self.unreadable(opened.name, error)),
                },
                false => None,
            };
            let data_end = match extent {
                Some(extent) => {
                    if extent.data > at {
                        let bytes = extent.data - at;
                        put_piece(&mut self.gathered, &Piece::Hole { bytes });
                        digest.hole(at, bytes);
                        self.progress.pass_over(bytes);
                        at = extent.data;
                    }
                    extent.end
                }
                None => size,
            };
            if let Some(checkpoints) = &checkpoints {
                piece_max = piece_max.min(checkpoints.room(digest.data_bytes()));
            }
            let data_end = data_end.min(at + piece_max);
            if at < data_end {
                let bytes = data_end - at;
                put_piece(&mut self.gathered, &Piece::Data { bytes });
            }
            while at < data_end {
                let wanted = (data_end - at).min(READ_BYTES as u64) as usize;
                if let Err(error) = self.read(opened.file, wanted, &mut digest) {
                    self.fill_up(data_end - at)?;
                    return Ok(self.unread(opened.name, error));
                }
                self.data(wanted)?;
                at += wanted as u64;
            }
            if let Some(checkpoints) = &mut checkpoints
                && at < size
                && let Some(checkpoint) = digest.checkpoint()
            {
                let seal = self.key.seal(checkpoints.source, &checkpoint);
                put_piece(&mut self.gathered, &Piece::Checkpoint { seal });
                checkpoints.passed();
            }
        }
        Ok(self.whole(&mut opened, &digest))
    }

    /// Goes on behind what the receiver has.
    fn reuse(
        &mut self,
        opened: &mut OpenFile<'_>,
        sealed: &Sealed,
        at: u64,
    ) -> io::Result<(ContentDigest, u64)> {
        let until = sealed.checkpoint.offset();
        opened.file.seek(io::SeekFrom::Start(until))?;
        put_piece(&mut self.gathered, &Piece::Reuse { until });
        self.progress.pass_over(until.saturating_sub(at));
        self.work.reused += until.saturating_sub(at);
        Ok((ContentDigest::from(&sealed.checkpoint), until))
    }

    /// Whether what the receiver has is what this end has sent of the file as it is now.
    fn is_known(&self, opened: &OpenFile<'_>, sealed: &Sealed) -> bool {
        let Sealed { checkpoint, seal } = sealed;
        checkpoint.offset() <= opened.size
            && (opened.source).is_some_and(|source| self.key.seal(source, checkpoint) == *seal)
    }

    /// The receiver has a file like this one: whether its contents are the same shows the digest.
    fn same(
        &mut self,
        mut opened: OpenFile<'_>,
        mut digest: ContentDigest,
        mut at: u64,
    ) -> Outcome<Ended> {
        put_piece(&mut self.gathered, &Piece::Same);
        // Sent at once: the receiver reads its copy while this end reads the file.
        self.pass_on()?;
        let reused = opened.size - at;
        while at < opened.size {
            if self.hear() {
                return Ok(Ended::Unwanted);
            }
            let wanted = (opened.size - at).min(READ_BYTES as u64) as usize;
            if let Err(error) = self.read(opened.file, wanted, &mut digest) {
                return Ok(self.unread(opened.name, error));
            }
            self.progress.pass_over(wanted as u64);
            at += wanted as u64;
        }
        self.work.reused += reused;
        Ok(self.whole(&mut opened, &digest))
    }

    /// Reads and hashes the next `wanted` bytes.
    fn read(
        &mut self,
        file: &mut File,
        wanted: usize,
        digest: &mut ContentDigest,
    ) -> io::Result<()> {
        let progress = self.progress;
        progress.at_disk(|| file.read_exact(&mut self.buffer[..wanted]))?;
        digest.data(&self.buffer[..wanted]);
        self.work.read += wanted as u64;
        Ok(())
    }

    pub(super) fn unread(&self, name: &Name, error: io::Error) -> Ended {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.changed(name),
            _ => self.unreadable(name, error),
        }
    }

    /// All of the file has been read. One byte more, or another size or time, and what was sent is no state it ever had.
    pub(super) fn whole(&self, opened: &mut OpenFile<'_>, digest: &ContentDigest) -> Ended {
        let OpenFile { file, name, .. } = opened;
        let after = file
            .read(&mut [0])
            .and_then(|more| Ok((more > 0, fstat(&*file)?)));
        let stamp = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
        match after {
            Ok((false, after)) if stamp(opened.stat) == stamp(&after) => Ended::Whole {
                size: opened.size,
                digest: digest.finish(),
            },
            Ok(_) => self.changed(name),
            Err(error) => self.unreadable(name, error),
        }
    }

    /// Sends zeros for the rest of a piece that was announced.
    fn fill_up(&mut self, bytes: u64) -> Outcome<()> {
        self.buffer.fill(0);
        let mut left = bytes;
        while left > 0 {
            let wanted = left.min(READ_BYTES as u64);
            self.data(wanted as usize)?;
            left -= wanted;
        }
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
fn extent(file: &File, at: u64, size: u64) -> Result<Option<Extent>, Errno> {
    let data = match seek(file, SeekFrom::Data(at)) {
        // A file that grows meanwhile must not carry the position past the announced end.
        Ok(data) => data.min(size),
        // Only a hole follows, up to the end of the file.
        Err(Errno::NXIO) => size,
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
        Err(error) => return Err(error),
    };
    let end = match seek(file, SeekFrom::Hole(data)) {
        Ok(end) if end > data => end.min(size),
        // Data that ends where it starts has been changed meanwhile; reading it will tell.
        _ => size,
    };
    seek(file, SeekFrom::Start(data))?;
    Ok(Some(Extent { data, end }))
}
