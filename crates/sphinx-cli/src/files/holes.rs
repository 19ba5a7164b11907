//! Holes of files.

use std::fs::File;

use rustix::fs::{SeekFrom, Stat, seek};
use rustix::io::Errno;

/// Whether a file has holes. Moves its position to its beginning.
pub(super) fn has_holes(file: &File, stat: &Stat) -> bool {
    let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if blocks.saturating_mul(512) >= size {
        return false;
    }
    // Blocks are missing too where they are compressed or have not been chosen yet.
    let hole = seek(file, SeekFrom::Hole(0));
    // A position that cannot be set shows in what is read.
    let _ = seek(file, SeekFrom::Start(0));
    hole.is_ok_and(|hole| hole < size)
}

/// Whether there is a hole of so many bytes at `offset`. Reading the zeros of a file that has none there would let nine
/// bytes from a peer cost any amount of work, so only a hole is as good as a hole.
pub(super) fn is_hole(file: &File, offset: u64, bytes: u64) -> bool {
    match seek(file, SeekFrom::Data(offset)) {
        Ok(data) => data - offset >= bytes,
        Err(error) => error == Errno::NXIO,
    }
}
