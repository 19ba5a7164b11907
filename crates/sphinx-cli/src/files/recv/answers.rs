//! What a receiver says to have of what it is offered.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};

use super::Ledger;
use crate::failure::{Outcome, protocol};
use crate::files::Work;
use crate::files::chunks::{Chunks, SIZE_MIN};
use crate::files::descent::open_directory;
use crate::files::holes::has_holes;
use crate::files::leftovers::is_reserved;
use crate::files::offers::{Offer, Offered, SYNC_OFFERS_MAX, Series};
use crate::files::output::OutputDir;
use crate::files::paths::Name;
use crate::files::sync::Sync;
use crate::files::target::passes_by_time;
use crate::files::temporary::look_for_part;
use crate::files::wire::{Attributes, Reply};

/// Most answers that are collected before they are sent.
const ANSWERS_MAX: usize = 256;

/// Answers what is offered. A sender hears no more of what is there than whether it is its own: a part only if it knows
/// its source's id, a file only if it knows its time of modification, as finely as that is kept, and its size.
pub(super) struct Answers {
    output: OutputDir,
    /// How many offers have come.
    offers: u64,
    series: Series,
    /// The directory of the last offer, kept open: the next file is usually in the same one.
    directory: Option<(Arc<[u8]>, Arc<OwnedFd>)>,
    /// Answers that have not been sent yet.
    answers: Vec<Reply>,
    /// Files of a synchronization that may stay as they are; at most as many as there may be offers ahead.
    there: VecDeque<There>,
    /// Bytes of files read for answers that nobody has counted yet.
    read: u64,
}

/// A file that is here and like one that was offered.
pub(super) struct There {
    offer: u64,
    /// The path of its directory.
    pub(super) directory: Arc<[u8]>,
    pub(super) name: Name,
    pub(super) size: u64,
    /// The attributes that the sender's file has.
    pub(super) attributes: Attributes,
    /// What `stat` said before the file was read, if checksums were asked for.
    pub(super) read: Option<Stat>,
}

impl Answers {
    pub(super) fn new(output: OutputDir) -> Self {
        Self {
            output,
            offers: 0,
            series: Series::default(),
            directory: None,
            answers: Vec::new(),
            there: VecDeque::new(),
            read: 0,
        }
    }

    /// Looks for what is offered.
    pub(super) fn offer(&mut self, offer: &Offer, ledger: &mut Ledger<'_>) -> Outcome<()> {
        self.offers += 1;
        let offered = self.series.next(offer)?;
        let answer = self.look(&offered)?;
        let read = std::mem::take(&mut self.read);
        ledger.add_work(Work {
            read,
            ..Work::default()
        });
        // A list of chunks is long, so it is sent at once.
        let is_long = matches!(answer, Some(Reply::Chunks { .. }));
        match (self.answers.last_mut(), answer) {
            // Extends the last answer: offers in a row that are present are answered together.
            (Some(Reply::Present { first, count }), Some(Reply::Present { first: next, .. }))
                if *count < u32::MAX && *first + u64::from(*count) == next =>
            {
                *count += 1;
            }
            (_, answer) => self.answers.extend(answer),
        }
        match is_long || self.answers.len() >= ANSWERS_MAX {
            true => self.tell(ledger),
            false => Ok(()),
        }
    }

    /// Answers everything that has been offered.
    pub(super) fn ask(&mut self, ledger: &mut Ledger<'_>) -> Outcome<()> {
        let offer = self.offers;
        self.answers.push(Reply::Answered { offer });
        self.tell(ledger)
    }

    /// What was there of an offer, if it may stay as it is. Those before it are over.
    pub(super) fn take(&mut self, offer: u64) -> Option<There> {
        while self.there.front()?.offer < offer {
            self.there.pop_front();
        }
        match self.there.front()?.offer == offer {
            true => self.there.pop_front(),
            false => None,
        }
    }

    fn tell(&mut self, ledger: &mut Ledger<'_>) -> Outcome<()> {
        let answers = std::mem::take(&mut self.answers);
        ledger.tell(&answers)
    }

    fn look(&mut self, wanted: &Offered) -> Outcome<Option<Reply>> {
        let mut names = Vec::new();
        for component in wanted.path.split(|byte| *byte == b'/') {
            let name = Name::new(component)
                .map_err(|error| protocol(format!("the path of an offer is refused: {error}")))?;
            names.push(name);
        }
        let name = names.pop().expect("what is split has a part");
        if self.output.missing {
            return Ok(None);
        }
        let rules = self.output.rules;
        let outermost = names.first().unwrap_or(&name).as_bytes();
        let is_hidden = outermost.starts_with(b".") && !rules.allow_dotfiles;
        if is_hidden || is_reserved(name.as_bytes()) {
            return Ok(None);
        }
        // A sender learns nothing about files that it was not asked for, or that the rules of the synchronization leave out.
        let left_out =
            |sync: &Arc<Sync>| !sync.filter.is_empty() && sync.filter.excludes(&wanted.path, false);
        if !self.output.expects(&wanted.path) || self.output.sync.as_ref().is_some_and(left_out) {
            return Ok(None);
        }
        let end = wanted.path.len() - name.as_bytes().len();
        let Some((path, directory)) = self.open(&names, &wanted.path[..end.saturating_sub(1)])
        else {
            return Ok(None);
        };
        if let Some(sync) = self.output.sync.clone() {
            let read = sync.asked.checksum.then(|| find_version(&directory, &name));
            let answer = self.look_at_version(wanted, &sync, &directory, &name);
            if let Some(Reply::Present { .. } | Reply::Digest { .. }) = answer {
                if self.there.len() == SYNC_OFFERS_MAX {
                    self.there.pop_front();
                }
                self.there.push_back(There {
                    offer: self.offers,
                    directory: path,
                    name,
                    size: wanted.size,
                    attributes: wanted.attributes,
                    read: read.flatten(),
                });
            }
            return Ok(answer);
        }
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        if let Ok(there) = fs::statat(&directory, name.as_bytes(), flags) {
            let like_it = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile
                && u64::try_from(there.st_size) == Ok(wanted.size)
                && passes_by_time(&directory, &there, wanted.attributes);
            if like_it && !is_sparse(&directory, &name) {
                return Ok(Some(present(self.offers)));
            }
            if !rules.overwrite {
                return Ok(None);
            }
        }
        let (true, Some(source)) = (rules.partial, wanted.source) else {
            return Ok(None);
        };
        let part = look_for_part(&directory, name.as_bytes(), wanted.size, source);
        Ok(part.map(|sealed| Reply::Part {
            offer: self.offers,
            sealed,
        }))
    }

    /// What there is of a file that is to be synchronized.
    fn look_at_version(
        &mut self,
        wanted: &Offered,
        sync: &Sync,
        directory: &OwnedFd,
        name: &Name,
    ) -> Option<Reply> {
        let offer = self.offers;
        let there = find_version(directory, name);
        let size = |stat: &Stat| u64::try_from(stat.st_size).unwrap_or(0);
        if let Some(stat) = &there
            && size(stat) == wanted.size
        {
            if sync.asked.checksum {
                let mut hasher = blake3::Hasher::new();
                // A file that cannot be opened or read is not answered for, and so replaced.
                let hashed = hasher.update_reader(open_version(directory, name)?);
                self.read += wanted.size;
                hashed.ok()?;
                let digest = hasher.finalize().into();
                return Some(Reply::Digest { offer, digest });
            }
            if passes_by_time(directory, stat, wanted.attributes) {
                return Some(present(offer));
            }
        }
        if sync.asked.dry_run {
            return None;
        }
        if let (true, Some(source)) = (self.output.rules.partial, wanted.source)
            && let Some(sealed) = look_for_part(directory, name.as_bytes(), wanted.size, source)
        {
            return Some(Reply::Part { offer, sealed });
        }
        let stat = there.filter(|_| !sync.asked.whole)?;
        if size(&stat).min(wanted.size) < SIZE_MIN {
            return None;
        }
        let file = open_version(directory, name)?;
        let chunks = Chunks::of(&file, size(&stat));
        self.read += size(&stat);
        let chunks = chunks.ok()??;
        Some(Reply::Chunks { offer, chunks })
    }

    /// A directory below the output directory and its path, if it is one and no link leads there.
    fn open(&mut self, names: &[Name], path: &[u8]) -> Option<(Arc<[u8]>, Arc<OwnedFd>)> {
        if let Some((last, directory)) = &self.directory
            && **last == *path
        {
            return Some((last.clone(), directory.clone()));
        }
        let left_out = |sync: &Arc<Sync>| !path.is_empty() && sync.filter.leaves_out(path);
        if self.output.sync.as_ref().is_some_and(left_out) {
            return None;
        }
        let mut directory = self.output.root.clone();
        for name in names {
            directory = Arc::new(open_directory(&directory, name.as_bytes()).ok()?);
        }
        let opened = (Arc::from(path), directory);
        self.directory = Some(opened.clone());
        Some(opened)
    }
}

fn present(offer: u64) -> Reply {
    Reply::Present {
        first: offer,
        count: 1,
    }
}

/// What the file of this name is, if it is one.
fn find_version(directory: &OwnedFd, name: &Name) -> Option<Stat> {
    let stat = fs::statat(directory, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some(stat)
}

/// The same, if it can be read. It may have become something else meanwhile, which is harmless to open.
fn open_version(directory: &OwnedFd, name: &Name) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::openat(directory, name.as_bytes(), flags, Mode::empty()).ok()?;
    Some(File::from(file))
}

/// Whether a file has holes, or cannot be read. The sender's digest would depend on where they are.
fn is_sparse(directory: &OwnedFd, name: &Name) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = fs::openat(directory, name.as_bytes(), flags, Mode::empty())
        .and_then(|file| Ok((fs::fstat(&file)?, File::from(file))));
    opened.map_or(true, |(stat, file)| has_holes(&file, &stat))
}
