//! The contents of one received file: written in any order, hashed in order.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::Work;
use super::digest::ContentDigest;
use super::holes::is_hole;
use super::source::{Seal, Sealed};
use super::target::Place;
use super::temporary::Temporary;

/// Bytes that are read back from the file at a time, to be hashed.
const READ_BYTES: usize = 64 << 10;

/// Contents on their way into a file.
///
/// Data that continues the part hashed so far is hashed as it comes. Data that arrives behind a gap is written, and read back
/// from the file and hashed once the gap is closed: it is still in the page cache.
///
/// Where there is a file that must not be replaced, the contents are compared with it instead of being
/// written.
pub(super) struct Contents {
    place: Option<Place>,
    digest: ContentDigest,
    /// Everything before this offset is in the digest.
    hashed: u64,
    /// Ranges that are written beyond the hashed part: starts and ends, neither overlapping nor touching.
    ahead: BTreeMap<u64, u64>,
    /// The file may end with a hole.
    holes: bool,
    /// The sender was told that the file is there already, and sends no more of its contents.
    same: bool,
    /// Some pieces were copied from the file that was there, without being compared with anything.
    copied: bool,
    work: Work,
    buffer: Vec<u8>,
}

/// What has become of the contents of a file.
pub(super) enum Finished {
    /// They were written to this file; with their BLAKE3 hash.
    Written(Temporary, [u8; 32]),
    /// A file with the same contents was there before; with their BLAKE3 hash.
    Present([u8; 32]),
    /// The contents were not wanted, or differ from the file that was there.
    Nowhere,
    /// What is there is like them by size and time, but something else.
    Different,
    /// The digest of the contents differs from that of what was sent.
    Damaged,
}

impl Contents {
    /// Contents for which there is no place are thrown away.
    pub(super) fn new(place: Option<Place>) -> Self {
        Self {
            place,
            digest: ContentDigest::default(),
            hashed: 0,
            ahead: BTreeMap::new(),
            holes: false,
            same: false,
            copied: false,
            work: Work::default(),
            buffer: Vec::new(),
        }
    }

    /// Whether the contents are still written somewhere, or compared.
    pub(super) fn wanted(&self) -> bool {
        self.place.is_some()
    }

    /// The bytes that were read, reused and received for these contents.
    pub(super) fn work(&self) -> Work {
        self.work
    }

    /// Goes on behind what was there of them, as it is said to end at `until`. False if it is not there (any more).
    pub(super) fn reuse(&mut self, until: u64) -> bool {
        let Some(Place::New(file)) = &mut self.place else {
            return false;
        };
        let there = file.take_there();
        let Some(there) = there.filter(|there| there.checkpoint.offset() == until) else {
            return false;
        };
        self.digest = ContentDigest::from(&there.checkpoint);
        self.work.reused += until.saturating_sub(self.hashed);
        self.hashed = until;
        self.holes = true;
        true
    }

    /// The sender does not want what was there of them.
    pub(super) fn forget_there(&mut self) -> io::Result<()> {
        match &mut self.place {
            Some(Place::New(file)) => file.forget_there(self.hashed),
            _ => Ok(()),
        }
    }

    /// What has come is worth keeping, if all of it has.
    pub(super) fn checkpoint(&mut self, seal: Seal) -> io::Result<()> {
        if let Some(Place::New(file)) = &mut self.place
            && let Some(checkpoint) = self.digest.checkpoint()
            && checkpoint.offset() == self.hashed
        {
            if self.holes {
                file.set_size(self.hashed)?;
            }
            file.note(Sealed { checkpoint, seal });
        }
        Ok(())
    }

    /// They are said to be those of this file of `size` bytes, all of which are to be [compared](Self::compare).
    pub(super) fn same(&mut self, file: File, size: u64) {
        self.digest = ContentDigest::default();
        self.work.reused += size.saturating_sub(self.hashed);
        (self.same, self.hashed) = (true, 0);
        self.place = Some(Place::Existing(file));
        self.ahead = BTreeMap::from([(0, size)]);
    }

    /// Reads the next `bytes` of what is there; true if there is more.
    pub(super) fn compare(&mut self, bytes: u64) -> io::Result<bool> {
        let Some(end) = self.ahead.remove(&self.hashed) else {
            return Ok(false);
        };
        let now = end.min(self.hashed.saturating_add(bytes));
        self.hash_up_to(now)?;
        if now < end {
            self.ahead.insert(now, end);
        }
        Ok(now < end)
    }

    /// Takes `bytes` that belong at `at` from another version of the file.
    pub(super) fn copy(
        &mut self,
        version: &File,
        from: u64,
        bytes: u64,
        at: u64,
    ) -> io::Result<()> {
        self.copied = true;
        let mut buffer = vec![0; READ_BYTES];
        let mut done = 0;
        while done < bytes {
            let step = usize::try_from(bytes - done)
                .unwrap_or(usize::MAX)
                .min(READ_BYTES);
            let place = from.checked_add(done).ok_or(io::ErrorKind::UnexpectedEof)?;
            version.read_exact_at(&mut buffer[..step], place)?;
            self.write(at + done, &buffer[..step])?;
            done += step as u64;
        }
        self.work.read += bytes;
        self.work.reused += bytes;
        Ok(())
    }

    /// Drops the place: what still comes of these contents is not written.
    pub(super) fn abandon(&mut self) {
        self.place = None;
    }

    /// The sender will not complete them: nothing of them is worth keeping.
    pub(super) fn discard(&mut self) {
        if let Some(Place::New(file)) = &mut self.place {
            file.discard();
        }
        self.place = None;
    }

    /// Takes data that belongs at `offset`. No byte may come twice.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        match &mut self.place {
            None => return Ok(()),
            Some(Place::New(file)) => file.write_at(offset, data)?,
            Some(Place::Existing(file)) => {
                self.buffer.resize(data.len().max(self.buffer.len()), 0);
                let there = &mut self.buffer[..data.len()];
                if file.read_exact_at(there, offset).is_err() || there != data {
                    self.place = None;
                    return Ok(());
                }
                self.work.read += data.len() as u64;
            }
        }
        let end = offset + data.len() as u64;
        if offset == self.hashed {
            self.digest.data(data);
            self.hashed = end;
            return self.catch_up();
        }
        let end = self.ahead.remove(&end).unwrap_or(end);
        match self.ahead.range_mut(..offset).next_back() {
            Some((_, before)) if *before == offset => *before = end,
            _ => {
                self.ahead.insert(offset, end);
            }
        }
        Ok(())
    }

    /// Leaves `bytes` at `offset` unwritten; everything before must have been written.
    pub(super) fn hole(&mut self, offset: u64, bytes: u64) {
        if let Some(Place::Existing(file)) = &self.place
            && !is_hole(file, offset, bytes)
        {
            self.place = None;
        }
        self.digest.hole(offset, bytes);
        self.hashed = offset + bytes;
        self.holes = true;
    }

    /// The file gets its `size`, which a hole at its end has not given it.
    pub(super) fn stretch(&mut self, size: u64) -> io::Result<()> {
        match &mut self.place {
            Some(Place::New(file)) if self.holes => file.set_size(size),
            _ => Ok(()),
        }
    }

    /// The file has `size` bytes, and all of them have come; this is their digest.
    pub(super) fn finish(self, size: u64, expected: &[u8; 32]) -> io::Result<Finished> {
        let digest = self.digest.finish();
        match self.place {
            None => Ok(Finished::Nowhere),
            Some(_) if self.same && digest != *expected => Ok(Finished::Different),
            Some(Place::New(mut file)) if digest != *expected => {
                file.discard();
                Ok(match self.copied {
                    // The file that pieces were copied from has changed meanwhile: that is no fault of the sender.
                    true => Finished::Different,
                    false => Finished::Damaged,
                })
            }
            Some(Place::Existing(_)) if digest != *expected => Ok(Finished::Damaged),
            Some(Place::New(file)) => Ok(Finished::Written(file, digest)),
            Some(Place::Existing(file)) if file.metadata()?.len() == size => {
                Ok(Finished::Present(digest))
            }
            Some(Place::Existing(_)) => Ok(Finished::Nowhere),
        }
    }

    /// Hashes what was written ahead and has been reached.
    fn catch_up(&mut self) -> io::Result<()> {
        match self.ahead.remove(&self.hashed) {
            Some(end) => self.hash_up_to(end),
            None => Ok(()),
        }
    }

    fn hash_up_to(&mut self, end: u64) -> io::Result<()> {
        self.buffer.resize(READ_BYTES.max(self.buffer.len()), 0);
        while self.hashed < end {
            let left = usize::try_from(end - self.hashed).unwrap_or(usize::MAX);
            let piece = &mut self.buffer[..left.min(READ_BYTES)];
            match &self.place {
                None => {}
                Some(Place::New(file)) => file.read_at(self.hashed, piece)?,
                Some(Place::Existing(file)) => file.read_exact_at(piece, self.hashed)?,
            }
            self.digest.data(piece);
            self.work.read += piece.len() as u64;
            self.hashed += piece.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::files::output::{OutputDir, Rules};
    use crate::files::paths::Name;
    use crate::files::target::Target;
    use crate::files::wire::Attributes;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_order_gives_the_same_file(
            cuts in proptest::collection::btree_set(1_u64..200_000, 0..40),
            order in proptest::collection::vec(any::<u16>(), 41),
        ) {
            const SIZE: u64 = 200_000;
            let bytes: Vec<u8> = (0..SIZE).map(|i| ((i * i) >> 7) as u8).collect();
            let ends: BTreeSet<u64> = cuts.into_iter().chain([SIZE]).collect();
            let starts = [0].into_iter().chain(ends.iter().copied());
            let mut pieces: Vec<_> = starts.zip(ends.iter().copied()).zip(&order).collect();
            pieces.sort_by_key(|(_, order)| **order);

            let directory = tempfile::tempdir().expect("a temporary directory");
            let output = OutputDir::open(directory.path(), Rules::default()).expect("writable");
            let name = Name::new(*b"file").expect("a name");
            let mut target = Target::new(output);
            // The first time it is written, the second time compared.
            for present in [false, true] {
                let place = target.create(&name, Some(SIZE), None).ok().expect("created");
                let mut contents = Contents::new(Some(place));
                for ((start, end), _) in &pieces {
                    contents.write(*start, &bytes[*start as usize..*end as usize]).expect("taken");
                }
                prop_assert!(contents.ahead.is_empty());
                let expected = *blake3::hash(&bytes).as_bytes();
                match contents.finish(SIZE, &expected).expect("finished") {
                    Finished::Written(file, digest) if !present => {
                        prop_assert_eq!(digest, expected);
                        let attributes = Attributes { mode: 0o600, mtime_s: 0, mtime_ns: 0 };
                        target.commit(&name, file, attributes).ok().expect("committed");
                    }
                    Finished::Present(digest) if present => prop_assert_eq!(digest, expected),
                    _ => panic!("it went nowhere"),
                }
            }
            prop_assert!(fs::read(directory.path().join("file")).expect("there") == bytes);
        }
    }
}
