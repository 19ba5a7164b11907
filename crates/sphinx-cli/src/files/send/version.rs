//! Of a file that is to be synchronized, what has changed.

use std::io::{self, Read, Seek};

use super::Sender;
use super::file::Ended;
use super::pieces::OpenFile;
use crate::channel::Outgoing;
use crate::failure::Outcome;
use crate::files::chunks::{Chunks, chunk_of, cut};
use crate::files::digest::ContentDigest;
use crate::files::replies::Answer;
use crate::files::sync::Sync;
use crate::files::wire::{Piece, put_piece};

impl<O: Outgoing> Sender<'_, O> {
    /// A file of which the receiver does not have all, by size and time at least.
    pub(super) fn version(&mut self, sync: &Sync, mut opened: OpenFile<'_>) -> Outcome<Ended> {
        self.hear()?;
        if self.unwanted {
            return Ok(Ended::Unwanted);
        }
        let size = opened.size;
        let answer = opened.answer.take();
        if let Some(Answer::Digest(digest)) = &answer {
            match self.has_digest(&mut opened, digest) {
                Ok(true) => return self.unsent(size, true),
                Ok(false) => {}
                Err(error) => return Ok(self.unreadable(opened.name, error)),
            }
        }
        if sync.asked.dry_run {
            return self.unsent(size, false);
        }
        match answer {
            // What has holes keeps them.
            Some(Answer::Chunks(chunks)) if !opened.is_sparse() => {
                self.changes(&mut opened, &chunks)
            }
            answer => {
                opened.answer = answer;
                self.contents(opened)
            }
        }
    }

    /// A file of which nothing is sent: it is there, or this is a trial.
    pub(super) fn unsent(&mut self, size: u64, present: bool) -> Outcome<Ended> {
        self.hear()?;
        if self.unwanted {
            return Ok(Ended::Unwanted);
        }
        let piece = match present {
            true => Piece::Unchanged,
            false => Piece::Trial,
        };
        put_piece(&mut self.gathered, &piece);
        self.pass_on_if_full()?;
        Ok(Ended::Unsent { size, present })
    }

    /// Reads all of a file, and looks whether that is what the receiver has read.
    fn has_digest(&mut self, opened: &mut OpenFile<'_>, digest: &[u8; 32]) -> io::Result<bool> {
        let mut hasher = blake3::Hasher::new();
        loop {
            let progress = self.progress;
            let read = progress.at_disk(|| opened.file.read(&mut self.buffer))?;
            if read == 0 {
                break;
            }
            hasher.update(&self.buffer[..read]);
            self.work.read += read as u64;
        }
        opened.file.seek(io::SeekFrom::Start(0))?;
        Ok(hasher.finalize() == blake3::Hash::from(*digest))
    }

    /// Sends what is not among the chunks that the receiver has.
    fn changes(&mut self, opened: &mut OpenFile<'_>, there: &Chunks) -> Outcome<Ended> {
        let places = there.places();
        // A receiver copies no more from what it has than that has.
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
            self.hear()?;
            if self.unwanted {
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
                self.progress.add_bytes(bytes);
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
