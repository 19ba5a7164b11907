//! What two versions of a file have in common, found by cutting both where their contents say so.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};

use fastcdc::v2020::StreamCDC;

/// Smaller files are sent as a whole.
pub(super) const SIZE_MIN: u64 = 128 << 10;
/// Mean sizes of chunks, as powers of two: small enough that a change costs little, large enough that a list stays short.
pub(super) const MEAN_LOG2: std::ops::RangeInclusive<u8> = 16..=22;
/// Chunks of a list, about, as long as they can be larger.
const CHUNKS_ABOUT: u64 = 1 << 15;
/// Longest list: chunks are a quarter of their mean at least.
pub(super) const CHUNKS_MAX: usize = 1 << 17;

/// A chunk of what the receiver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) bytes: u32,
    /// The first 16 bytes of the chunk's BLAKE3 hash.
    pub(super) hash: [u8; 16],
}

/// The chunks that the receiver's version of a file consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunks {
    pub(super) mean_log2: u8,
    pub(super) list: Vec<Chunk>,
}

impl Chunks {
    /// Reads a file of `size` bytes from its position on. Nothing if its list would be too long.
    pub(super) fn of(file: &File, size: u64) -> io::Result<Option<Self>> {
        let fits = |log2: &u8| size >> log2 <= CHUNKS_ABOUT;
        let Some(mean_log2) = MEAN_LOG2.into_iter().find(fits) else {
            return Ok(None);
        };
        let mut list = Vec::new();
        for chunk in cut(file.take(size), mean_log2) {
            let data = chunk.map_err(io::Error::from)?.data;
            list.push(chunk_of(&data));
            if list.len() > CHUNKS_MAX {
                return Ok(None);
            }
        }
        Ok(Some(Self { mean_log2, list }))
    }

    /// Bytes of all chunks together.
    pub(super) fn bytes(&self) -> u64 {
        self.list.iter().map(|chunk| u64::from(chunk.bytes)).sum()
    }

    /// Offset in the file and length of the first chunk with each hash.
    pub(super) fn places(&self) -> HashMap<[u8; 16], (u64, u32)> {
        let mut at = 0;
        let mut places = HashMap::new();
        for chunk in &self.list {
            places.entry(chunk.hash).or_insert((at, chunk.bytes));
            at += u64::from(chunk.bytes);
        }
        places
    }
}

/// Cuts what is read.
pub(super) fn cut<R: Read>(input: R, mean_log2: u8) -> StreamCDC<R> {
    let mean = 1_usize << mean_log2;
    StreamCDC::new(input, mean / 4, mean, 4 * mean)
}

pub(super) fn chunk_of(data: &[u8]) -> Chunk {
    let hash = blake3::hash(data);
    let (hash, _) = hash.as_bytes().split_first_chunk().expect("32 bytes");
    Chunk {
        // It fits: a chunk has at most four times the largest mean.
        bytes: data.len() as u32,
        hash: *hash,
    }
}
