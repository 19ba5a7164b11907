//! What a file's digest is, and how hashing goes on where an earlier transfer has stopped.

use blake3::Hasher;
use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};

/// Data in one leaf of the tree of [`TreeHash`]: checkpoints lie at its multiples.
pub(super) const LEAF_BYTES: u64 = 1 << 20;
/// Subtree values of a checkpoint: a file has less than 2^63 bytes, which are 2^43 leaves.
const SUBTREES_MAX: usize = 44;
/// Longest encoded checkpoint.
pub(super) const CHECKPOINT_BYTES_MAX: usize = 8 + 8 + 32 + 32 * SUBTREES_MAX;

/// BLAKE3 of a file's contents.
///
/// A file without holes has the digest that `b3sum` prints. Hashing a hole as zeros would let a
/// few bytes from a peer cost any amount of work, so a file with holes has the digest of: the
/// digest of its data, then a value into which its holes were chained (`docs/file-transfer.md`).
#[derive(Default)]
pub(super) struct ContentDigest {
    data: TreeHash,
    hole_bytes: u64,
    /// Each hole in order: BLAKE3 of the value before it, its offset and its length.
    holes: [u8; 32],
}

/// The state of a digest between two parts of a file: with it, what lies before need not be read again.
///
/// It says nothing about who made it; see [`Seal`](super::source::Seal).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Checkpoint {
    /// Data hashed so far, in bytes: a multiple of [`LEAF_BYTES`], two leaves at least.
    data: u64,
    hole_bytes: u64,
    holes: [u8; 32],
    /// Values of the complete subtrees, from the first bytes on.
    subtrees: Vec<ChainingValue>,
}

impl ContentDigest {
    pub(super) fn data(&mut self, bytes: &[u8]) {
        self.data.update(bytes);
    }

    pub(super) fn hole(&mut self, offset: u64, bytes: u64) {
        let mut chained = Hasher::new();
        chained.update(&self.holes);
        chained.update(&offset.to_be_bytes());
        chained.update(&bytes.to_be_bytes());
        self.holes = chained.finalize().into();
        self.hole_bytes = self.hole_bytes.saturating_add(bytes);
    }

    /// Data hashed so far, in bytes, without the holes.
    pub(super) fn data_bytes(&self) -> u64 {
        self.data.bytes()
    }

    /// The state, where there can be a checkpoint.
    pub(super) fn checkpoint(&self) -> Option<Checkpoint> {
        Some(Checkpoint {
            data: self.data.bytes(),
            hole_bytes: self.hole_bytes,
            holes: self.holes,
            subtrees: self.data.subtrees()?,
        })
    }

    pub(super) fn finish(&self) -> [u8; 32] {
        let data = self.data.finish();
        match self.hole_bytes {
            0 => data.into(),
            _ => {
                let mut both = Hasher::new();
                both.update(data.as_bytes());
                both.update(&self.holes);
                both.finalize().into()
            }
        }
    }
}

impl From<&Checkpoint> for ContentDigest {
    fn from(checkpoint: &Checkpoint) -> Self {
        Self {
            data: TreeHash::after(checkpoint.data / LEAF_BYTES, checkpoint.subtrees.clone()),
            hole_bytes: checkpoint.hole_bytes,
            holes: checkpoint.holes,
        }
    }
}

impl Checkpoint {
    /// How many hash values of subtrees stand for the data before it.
    pub(super) fn subtrees(&self) -> usize {
        self.subtrees.len()
    }

    /// The offset in the file up to which it goes.
    pub(super) fn offset(&self) -> u64 {
        self.data + self.hole_bytes
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let numbers = [self.data.to_be_bytes(), self.hole_bytes.to_be_bytes()];
        [&numbers.concat()[..], &self.holes, &self.subtrees.concat()].concat()
    }

    /// `None` if the bytes are no checkpoint that a file could have.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (data, rest) = bytes.split_first_chunk()?;
        let (hole_bytes, rest) = rest.split_first_chunk()?;
        let (holes, rest) = rest.split_first_chunk()?;
        let (subtrees, rest) = rest.as_chunks();
        let (data, hole_bytes) = (u64::from_be_bytes(*data), u64::from_be_bytes(*hole_bytes));
        let leaves = data / LEAF_BYTES;
        let possible = rest.is_empty()
            && data.is_multiple_of(LEAF_BYTES)
            && leaves >= 2
            && subtrees.len() == subtrees_of(leaves)
            && (hole_bytes > 0 || *holes == [0; 32])
            && (data.checked_add(hole_bytes)).is_some_and(|end| i64::try_from(end).is_ok());
        possible.then(|| Self {
            data,
            hole_bytes,
            holes: *holes,
            subtrees: subtrees.to_vec(),
        })
    }
}

/// BLAKE3 whose state can be taken out and put in again between two leaves.
///
/// The last leaf is closed, and the last two subtrees are joined, only when more comes: the root of the tree is
/// computed in another way than its inner nodes, and any of them may turn out to be the root.
#[derive(Default)]
struct TreeHash {
    /// Leaves whose values are in `subtrees`.
    leaves: u64,
    subtrees: Vec<ChainingValue>,
    /// The leaf that is still being filled.
    open: Hasher,
    /// Bytes in the open leaf.
    filled: u64,
}

/// How many values stand for so many leaves, at least one.
fn subtrees_of(leaves: u64) -> usize {
    (leaves - 1).count_ones() as usize + 1
}

impl TreeHash {
    fn after(leaves: u64, subtrees: Vec<ChainingValue>) -> Self {
        Self {
            leaves,
            subtrees,
            open: leaf(leaves),
            filled: 0,
        }
    }

    fn bytes(&self) -> u64 {
        self.leaves * LEAF_BYTES + self.filled
    }

    fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.filled == LEAF_BYTES {
                push(&mut self.subtrees, self.leaves, &self.open);
                self.leaves += 1;
                self.open = leaf(self.leaves);
                self.filled = 0;
            }
            let room = usize::try_from(LEAF_BYTES - self.filled).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.open.update(now);
            self.filled += now.len() as u64;
            bytes = later;
        }
    }

    /// The values of all leaves, if the last one is complete and there are two at least: the value of a single one could
    /// not become the root.
    fn subtrees(&self) -> Option<Vec<ChainingValue>> {
        let mut subtrees = self.subtrees.clone();
        match self.filled {
            0 => {}
            LEAF_BYTES => push(&mut subtrees, self.leaves, &self.open),
            _ => return None,
        }
        (self.bytes() >= 2 * LEAF_BYTES).then_some(subtrees)
    }

    fn finish(&self) -> blake3::Hash {
        if self.leaves == 0 {
            return self.open.finalize();
        }
        let mut subtrees = self.subtrees.clone();
        if self.filled > 0 {
            push(&mut subtrees, self.leaves, &self.open);
        }
        let mut right = subtrees.pop().expect("there is a leaf");
        while let Some(left) = subtrees.pop() {
            if subtrees.is_empty() {
                return merge_subtrees_root(&left, &right, Mode::Hash);
            }
            right = merge_subtrees_non_root(&left, &right, Mode::Hash);
        }
        unreachable!("a leaf is closed only when there is another, and checkpoints have two")
    }
}

/// The hasher of the leaf with this number, counted from 0.
fn leaf(number: u64) -> Hasher {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(number * LEAF_BYTES);
    hasher
}

/// Adds a leaf behind `leaves` others; joins those that are whole subtrees together.
fn push(subtrees: &mut Vec<ChainingValue>, leaves: u64, leaf: &Hasher) {
    while subtrees.len() > leaves.count_ones() as usize {
        let (Some(right), Some(left)) = (subtrees.pop(), subtrees.pop()) else {
            break;
        };
        subtrees.push(merge_subtrees_non_root(&left, &right, Mode::Hash));
    }
    subtrees.push(leaf.finalize_non_root());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: u64) -> Vec<u8> {
        (0..len).map(|n| ((n * n) >> 9) as u8).collect()
    }

    #[test]
    fn the_tree_is_that_of_blake3() {
        let bytes = bytes(9 * LEAF_BYTES + 1);
        for leaves in 0..10 {
            for more in [0, 1, LEAF_BYTES - 1] {
                let len = leaves * LEAF_BYTES + more;
                let Some(bytes) = bytes.get(..len as usize) else {
                    continue;
                };
                let mut digest = ContentDigest::default();
                bytes.chunks(300_001).for_each(|piece| digest.data(piece));
                assert_eq!(digest.finish(), *blake3::hash(bytes).as_bytes(), "{len}");
            }
        }
    }

    #[test]
    fn hashing_goes_on_at_every_checkpoint() {
        let bytes = bytes(8 * LEAF_BYTES + 77);
        for total in [2 * LEAF_BYTES, 5 * LEAF_BYTES, bytes.len() as u64] {
            for at in (0..=total / LEAF_BYTES).map(|leaves| leaves * LEAF_BYTES) {
                let (first, second) = bytes[..total as usize].split_at(at as usize);
                let mut digest = ContentDigest::default();
                digest.data(first);
                digest.hole(at, 5);
                assert_eq!(digest.data_bytes(), at);
                let checkpoint = digest.checkpoint();
                assert_eq!(checkpoint.is_some(), at >= 2 * LEAF_BYTES, "{at}");
                let Some(checkpoint) = checkpoint else {
                    continue;
                };
                assert_eq!(checkpoint.offset(), at + 5);
                let encoded = checkpoint.encode();
                assert_eq!(Checkpoint::decode(&encoded).as_ref(), Some(&checkpoint));
                assert!(Checkpoint::decode(&encoded[1..]).is_none());
                assert!(Checkpoint::decode(&[&encoded[..], &[0]].concat()).is_none());
                let mut resumed = ContentDigest::from(&checkpoint);
                for digest in [&mut digest, &mut resumed] {
                    digest.data(second);
                }
                assert_eq!(resumed.finish(), digest.finish());
                assert_eq!(resumed.checkpoint(), digest.checkpoint());
            }
        }
    }

    #[test]
    fn there_is_no_checkpoint_within_a_leaf() {
        let mut digest = ContentDigest::default();
        digest.data(&bytes(3 * LEAF_BYTES + 1));
        assert!(digest.checkpoint().is_none());
    }

    #[test]
    fn holes_count() {
        let digest = |holes: &[(u64, u64)]| {
            let mut digest = ContentDigest::default();
            digest.data(b"data");
            for (offset, bytes) in holes {
                digest.hole(*offset, *bytes);
            }
            digest.finish()
        };
        assert_eq!(digest(&[]), *blake3::hash(b"data").as_bytes());
        assert_ne!(digest(&[(4, 1)]), digest(&[(4, 2)]));
        assert_ne!(digest(&[(4, 1), (5, 1)]), digest(&[(4, 2)]));
    }
}
