//! The contents of one received file: written in any order, hashed in order.

use std::collections::BTreeMap;
use std::io;

use super::target::Temporary;
use super::tree::ContentDigest;

/// Read back at once, to be hashed.
const READ_BYTES: usize = 64 << 10;

/// Contents on their way into a file.
///
/// What continues the part that has been hashed is hashed as it comes. What comes earlier than its
/// predecessors is hashed when they are there, from the file: it is in the page cache still.
pub(super) struct Contents<'a> {
    file: &'a Temporary,
    digest: ContentDigest,
    /// Everything below is in the digest.
    hashed: u64,
    /// What is written beyond: starts and ends, neither overlapping nor touching.
    ahead: BTreeMap<u64, u64>,
    /// The file may end with a hole.
    holes: bool,
    buffer: Vec<u8>,
}

impl<'a> Contents<'a> {
    pub(super) fn new(file: &'a Temporary) -> Self {
        Self {
            file,
            digest: ContentDigest::default(),
            hashed: 0,
            ahead: BTreeMap::new(),
            holes: false,
            buffer: Vec::new(),
        }
    }

    /// Writes data that belongs at `offset`. No byte may come twice.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, data)?;
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
        self.digest.hole(offset, bytes);
        self.hashed = offset + bytes;
        self.holes = true;
    }

    /// The digest of the file, which has `size` bytes.
    pub(super) fn finish(self, size: u64) -> io::Result<[u8; 32]> {
        if self.holes {
            self.file.set_size(size)?;
        }
        Ok(self.digest.finish())
    }

    /// Hashes what was written ahead and has been reached.
    fn catch_up(&mut self) -> io::Result<()> {
        let Some(end) = self.ahead.remove(&self.hashed) else {
            return Ok(());
        };
        self.buffer.resize(READ_BYTES, 0);
        while self.hashed < end {
            let left = usize::try_from(end - self.hashed).unwrap_or(usize::MAX);
            let piece = &mut self.buffer[..left.min(READ_BYTES)];
            self.file.read_at(self.hashed, piece)?;
            self.digest.data(piece);
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
    use crate::files::OutputDir;
    use crate::files::paths::SafePath;

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
            let output = OutputDir::open(directory.path(), false).expect("writable");
            let path = SafePath::new(b"file".to_vec()).expect("a name");
            let mut target = output.target();
            let file = target.create(&path).expect("created");
            let mut contents = Contents::new(&file);
            for ((start, end), _) in pieces {
                contents.write(start, &bytes[start as usize..end as usize]).expect("written");
            }
            prop_assert!(contents.ahead.is_empty());
            let digest = contents.finish(SIZE).expect("finished");
            prop_assert_eq!(digest, *blake3::hash(&bytes).as_bytes());
            let attributes = crate::files::wire::Attributes { mode: 0o600, mtime_s: 0, mtime_ns: 0 };
            target.commit(&path, file, attributes).expect("committed");
            prop_assert!(fs::read(directory.path().join("file")).expect("there") == bytes);
        }
    }
}
