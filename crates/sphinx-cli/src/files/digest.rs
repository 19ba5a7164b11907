//! What a file's digest is.

/// BLAKE3 of a file's contents.
///
/// A file without holes has the digest that `b3sum` prints. Hashing a hole as zeros would let a
/// few bytes from a peer cost any amount of work, so a file with holes has the digest of: the
/// digest of its data, then the digest of the list of its holes (offset and length, 8 bytes each).
#[derive(Default)]
pub(super) struct ContentDigest {
    data: blake3::Hasher,
    holes: Option<blake3::Hasher>,
}

impl ContentDigest {
    pub(super) fn data(&mut self, bytes: &[u8]) {
        self.data.update(bytes);
    }

    pub(super) fn hole(&mut self, offset: u64, bytes: u64) {
        let holes = self.holes.get_or_insert_default();
        holes.update(&offset.to_be_bytes());
        holes.update(&bytes.to_be_bytes());
    }

    pub(super) fn finish(&self) -> [u8; 32] {
        let data = self.data.finalize();
        match &self.holes {
            None => data.into(),
            Some(holes) => {
                let mut both = blake3::Hasher::new();
                both.update(data.as_bytes());
                both.update(holes.finalize().as_bytes());
                both.finalize().into()
            }
        }
    }
}
