//! What becomes of a file whose turn has come.

use std::fs::File;
use std::io::{self, Read};

use rustix::fs::Stat;

use super::Sender;
use super::lookahead::{Ahead, source};
use super::pieces::OpenFile;
use crate::channel::Outgoing;
use crate::failure::{Failure, Outcome, local_io};
use crate::files::digest::ContentDigest;
use crate::files::paths::Name;
use crate::files::replies::Answer;
use crate::files::walk::attributes;
use crate::files::wire::{Attributes, Entry, Piece, put_piece};
use crate::text::{hex, printable};

/// How the contents of a file ended.
pub(super) enum Ended {
    Whole {
        size: u64,
        digest: [u8; 32],
    },
    /// A dry run: they would have been sent.
    Trial {
        size: u64,
    },
    /// The receiver does not want the contents.
    Unwanted,
    /// The contents cannot be read.
    Failed(Failure),
}

impl<O: Outgoing> Sender<'_, O> {
    pub(super) fn file(&mut self, name: Name, file: Option<File>, stat: &Stat) -> Outcome<()> {
        let path = self.walk.path_of(&name);
        self.progress.set_name(printable(&path));
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let ahead = self.lookahead.take(&path, size);
        self.offer()?;
        if self.hard_link(&name, stat)? {
            return Ok(());
        }
        // If the file has changed since it was offered, the answer is of no use, except for chunks, which only synchronizing asks for.
        let is_of_use = |ahead: &&Ahead| self.sync.is_some() || ahead.is_like(stat);
        let offer = ahead.as_ref().filter(is_of_use).map(|ahead| ahead.number);
        let (mut offer, mut answer) = (offer, None);
        if self.sync.is_some()
            && let Some(offer) = offer.take()
        {
            answer = self.answer(offer)?;
        }
        let mut stat = *stat;
        // The answer is about the file as it was offered: it holds only if the file has not changed since.
        let offered = |stat: &Stat| ahead.as_ref().filter(|ahead| ahead.is_like(stat));
        if let (Some(Answer::Present), Some(offered)) = (&answer, offered(&stat)) {
            return self.keep(name, &path, offered.number, None, &stat);
        }
        let mut file = match file {
            Some(file) => file,
            None => match self.walk.open(&name) {
                Ok((now, opened)) => {
                    stat = now;
                    opened
                }
                Err(error) => return self.cannot_read(name, error),
            },
        };
        if let (Some(Answer::Digest(digest)), Some(offered)) = (&answer, offered(&stat)) {
            match self.has_digest(&mut file, digest) {
                Ok(true) => return self.keep(name, &path, offered.number, Some(&file), &stat),
                Ok(false) => {}
                Err(error) => return self.cannot_read(name, error),
            }
        }
        let answer = answer.filter(|answer| !matches!(answer, Answer::Present | Answer::Digest(_)));
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if let Err(error) = self.tell_attributes(&name, Some(&file), &stat)? {
            return self.cannot_read(name, error);
        }
        let source = source(self.key, &stat);
        self.entry(&Entry::File {
            name: name.clone(),
            attributes: attributes(&stat),
            size,
            source,
        })?;
        let before = self.work.reused;
        let opened = OpenFile {
            answer,
            file: &mut file,
            name: &name,
            stat: &stat,
            size,
            source,
            offer,
        };
        let ended = match self.sync.clone() {
            Some(sync) => self.version(&sync, opened)?,
            None => self.contents(opened)?,
        };
        if let Ended::Whole { .. } | Ended::Trial { .. } = ended {
            self.likeness.has_come(&stat, &path);
        }
        self.end(&name, &path, self.work.reused - before, ended)
    }

    /// A file is left out before anything is said of it.
    pub(super) fn cannot_read(&mut self, name: Name, error: io::Error) -> Outcome<()> {
        let failure = local_io("read", &self.walk.source_of(&name), error);
        self.unread = true;
        let reason = failure.message.clone();
        self.skip(&name, failure);
        self.entry(&Entry::Skipped { name, reason })
    }

    pub(super) fn stream(
        &mut self,
        name: Name,
        input: Option<File>,
        attributes: Attributes,
    ) -> Outcome<()> {
        let mut input = input.expect("it is opened to be sent");
        let path = self.walk.path_of(&name);
        self.progress.set_name(printable(&path));
        self.entry(&Entry::Stream {
            name: name.clone(),
            attributes,
        })?;
        let mut digest = ContentDigest::default();
        let mut size = 0;
        let ended = loop {
            if self.hear() {
                break Ended::Unwanted;
            }
            let read = match input.read(&mut self.buffer) {
                Ok(0) => {
                    let digest = digest.finish();
                    break Ended::Whole { size, digest };
                }
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => break self.unreadable(&name, error),
            };
            digest.data(&self.buffer[..read]);
            self.work.read += read as u64;
            put_piece(&mut self.gathered, &Piece::Data { bytes: read as u64 });
            self.gathered.extend_from_slice(&self.buffer[..read]);
            size += read as u64;
            self.progress.add_bytes(read as u64);
            // What has been read is sent first: the next read may block for long.
            self.pass_on()?;
        };
        self.end(&name, &path, 0, ended)
    }

    /// Ends a file of which so much was not sent.
    fn end(&mut self, name: &Name, path: &[u8], reused: u64, ended: Ended) -> Outcome<()> {
        let piece = match ended {
            Ended::Whole { size, digest } => {
                self.totals.bytes = self.totals.bytes.saturating_add(size);
                self.progress.add_file();
                let digest_shown = hex(&digest);
                (self.reporter).file("sent", path, size, reused, &digest_shown)?;
                Piece::End { digest }
            }
            Ended::Trial { size } => {
                self.progress.pass_over(size);
                self.totals.bytes = self.totals.bytes.saturating_add(size);
                self.progress.add_file();
                self.reporter.file("sent", path, size, 0, "")?;
                Piece::Trial
            }
            Ended::Unwanted => Piece::Abort {
                reason: "the receiver does not want it".to_owned(),
            },
            Ended::Failed(failure) => {
                self.unread = true;
                let reason = failure.message.clone();
                self.skip(name, failure);
                Piece::Abort { reason }
            }
        };
        put_piece(&mut self.gathered, &piece);
        self.pass_on_if_full()
    }
}
