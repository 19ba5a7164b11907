//! Of a file that is to be synchronized, what has changed.

use std::fs::File;
use std::io::{self, Read, Seek};

use rustix::fs::Stat;

use super::Sender;
use super::file::Ended;
use super::pieces::OpenFile;
use crate::channel::Outgoing;
use crate::failure::Outcome;
use crate::files::chunks::{Chunks, chunk_of, cut};
use crate::files::digest::ContentDigest;
use crate::files::paths::Name;
use crate::files::replies::Answer;
use crate::files::sync::Sync;
use crate::files::wire::{Entry, Piece, put_entry, put_piece};

impl<O: Outgoing> Sender<'_, O> {
    /// A file of which the receiver does not have all, by size and time at least.
    pub(super) fn version(&mut self, sync: &Sync, mut opened: OpenFile<'_>) -> Outcome<Ended> {
        if self.hear() {
            return Ok(Ended::Unwanted);
        }
        if sync.asked.dry_run {
            return Ok(Ended::Trial { size: opened.size });
        }
        match opened.answer.take() {
            // A file with holes is sent as such: chunks know no holes.
            Some(Answer::Chunks(chunks)) if !opened.is_sparse() => {
                self.changes(&mut opened, &chunks)
            }
            answer => {
                opened.answer = answer;
                self.contents(opened)
            }
        }
    }

    /// A file that the receiver has as it was offered.
    pub(super) fn keep(
        &mut self,
        name: Name,
        path: &[u8],
        offer: u64,
        file: Option<&File>,
        stat: &Stat,
    ) -> Outcome<()> {
        if let Err(error) = self.tell_attributes(&name, file, stat)? {
            return self.cannot_read(name, error);
        }
        match &mut self.kept {
            Some((first, count)) if *first + u64::from(*count) == offer => *count += 1,
            _ => {
                self.tell_kept();
                self.kept = Some((offer, 1));
            }
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        self.count(false);
        self.totals.bytes = self.totals.bytes.saturating_add(size);
        self.work.reused += size;
        self.likeness.has_come(stat, path);
        self.progress.add_file();
        self.progress.pass_over(size);
        self.reporter.file("present", path, size, size, "")
    }

    /// Tells the receiver of the files that it has, before anything else is told.
    pub(super) fn tell_kept(&mut self) {
        if let Some((first, count)) = self.kept.take() {
            put_entry(&mut self.gathered, &Entry::Kept { first, count });
        }
    }

    /// Reads all of a file, and looks whether that is what the receiver has read.
    pub(super) fn has_digest(&mut self, file: &mut File, digest: &[u8; 32]) -> io::Result<bool> {
        let mut hasher = blake3::Hasher::new();
        loop {
            let progress = self.progress;
            let read = progress.at_disk(|| file.read(&mut self.buffer))?;
            if read == 0 {
                break;
            }
            hasher.update(&self.buffer[..read]);
            self.work.read += read as u64;
        }
        file.seek(io::SeekFrom::Start(0))?;
        Ok(hasher.finalize() == blake3::Hash::from(*digest))
    }

    /// Sends what is not among the chunks that the receiver has.
    fn changes(&mut self, opened: &mut OpenFile<'_>, there: &Chunks) -> Outcome<Ended> {
        let places = there.places();
        // A receiver copies at most as many bytes as its version of the file has (`recv/version.rs`).
        let mut left = there.bytes();
        let mut digest = ContentDigest::default();
        let mut copy: Option<(u64, u64)> = None;
        let mut at = 0;
        let input = opened.file.try_clone().map(|file| file.take(opened.size));
        let input = match input {
            Ok(input) => input,
            Err(error) => return Ok(self.unreadable(opened.name, error)),
        };
        for chunk in cut(input, there.mean_log2) {
            if self.hear() {
                return Ok(Ended::Unwanted);
            }
            let data = match chunk {
                Ok(chunk) => chunk.data,
                Err(error) => return Ok(self.unreadable(opened.name, io::Error::from(error))),
            };
            let bytes = data.len() as u64;
            digest.data(&data);
            self.work.read += bytes;
            at += bytes;
            let known = chunk_of(&data);
            let place = places
                .get(&known.hash)
                .filter(|(_, bytes)| *bytes == known.bytes);
            if let Some((place, _)) = place.filter(|_| bytes <= left) {
                left -= bytes;
                copy = match copy {
                    Some((from, copied)) if from + copied == *place => Some((from, copied + bytes)),
                    other => {
                        self.copied(other);
                        Some((*place, bytes))
                    }
                };
                self.progress.pass_over(bytes);
                continue;
            }
            self.copied(copy.take());
            put_piece(&mut self.gathered, &Piece::Data { bytes });
            for part in data.chunks(self.buffer.len()) {
                self.buffer[..part.len()].copy_from_slice(part);
                self.data(part.len())?;
            }
        }
        self.copied(copy);
        if at < opened.size {
            return Ok(self.unread(opened.name, io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(self.whole(opened, &digest))
    }

    fn copied(&mut self, copy: Option<(u64, u64)>) {
        if let Some((from, bytes)) = copy {
            put_piece(&mut self.gathered, &Piece::Copy { from, bytes });
            self.work.reused += bytes;
        }
    }
}
