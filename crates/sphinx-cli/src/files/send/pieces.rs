//! The contents of a file of known size.

use std::fs::File;
use std::io::{self, Read};

use rustix::fs::{SeekFrom, Stat, fstat, seek};
use rustix::io::Errno;

use super::{Ended, READ_BYTES, Sender};
use crate::channel::Outgoing;
use crate::failure::Outcome;
use crate::files::digest::ContentDigest;
use crate::files::paths::Name;
use crate::files::wire::{Piece, put_piece};

/// Longest piece of data. What was announced has to be sent, also of a file that turns out to be
/// shorter; and a receiver that has refused a file gets the rest of the piece.
const PIECE_BYTES_MAX: u64 = 64 << 20;

impl<O: Outgoing> Sender<'_, O> {
    pub(super) fn contents(
        &mut self,
        file: &mut File,
        name: &Name,
        before: &Stat,
        size: u64,
    ) -> Outcome<Ended> {
        // Fewer blocks than bytes: there may be holes.
        let sparse = u64::try_from(before.st_blocks)
            .unwrap_or(0)
            .saturating_mul(512)
            < size;
        let mut digest = ContentDigest::default();
        let mut at = 0;
        while at < size {
            self.hear()?;
            if self.unwanted {
                return Ok(Ended::Unwanted);
            }
            let extent = match sparse {
                true => match extent(file, at, size) {
                    Ok(extent) => extent,
                    Err(error) => return Ok(self.unreadable(name, error)),
                },
                false => None,
            };
            let data_end = match extent {
                Some(extent) => {
                    if extent.data > at {
                        let bytes = extent.data - at;
                        put_piece(&mut self.gathered, &Piece::Hole { bytes });
                        digest.hole(at, bytes);
                        self.progress.add_bytes(bytes);
                        at = extent.data;
                    }
                    extent.end
                }
                None => size,
            };
            let data_end = data_end.min(at + PIECE_BYTES_MAX);
            if at < data_end {
                let bytes = data_end - at;
                put_piece(&mut self.gathered, &Piece::Data { bytes });
            }
            while at < data_end {
                let wanted = (data_end - at).min(READ_BYTES as u64) as usize;
                if let Err(error) = file.read_exact(&mut self.buffer[..wanted]) {
                    self.fill_up(data_end - at)?;
                    return Ok(match error.kind() {
                        io::ErrorKind::UnexpectedEof => self.changed(name),
                        _ => self.unreadable(name, error),
                    });
                }
                digest.data(&self.buffer[..wanted]);
                self.data(wanted)?;
                at += wanted as u64;
            }
        }
        // One byte more, or another size or time, and what was sent is no state the file ever had.
        let after = file
            .read(&mut [0])
            .and_then(|more| Ok((more > 0, fstat(&*file)?)));
        let stamp = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
        match after {
            Ok((false, after)) if stamp(before) == stamp(&after) => Ok(Ended::Whole {
                size,
                digest: digest.finish(),
            }),
            Ok(_) => Ok(self.changed(name)),
            Err(error) => Ok(self.unreadable(name, error)),
        }
    }

    /// Sends zeros for the rest of a piece that was announced.
    fn fill_up(&mut self, bytes: u64) -> Outcome<()> {
        self.buffer.fill(0);
        let mut left = bytes;
        while left > 0 {
            let wanted = left.min(READ_BYTES as u64);
            self.data(wanted as usize)?;
            left -= wanted;
        }
        Ok(())
    }
}

/// Data from `data` to `end`; before it a hole, if `data` is not where the question started.
struct Extent {
    data: u64,
    end: u64,
}

/// The next data at or after `at`, and positions the file there; `None` where the file system keeps
/// no holes.
fn extent(file: &File, at: u64, size: u64) -> Result<Option<Extent>, Errno> {
    let data = match seek(file, SeekFrom::Data(at)) {
        // A file that grows meanwhile must not carry the position past the announced end.
        Ok(data) => data.min(size),
        // Only a hole follows.
        Err(Errno::NXIO) => size,
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
        Err(error) => return Err(error),
    };
    let end = match seek(file, SeekFrom::Hole(data)) {
        Ok(end) if end > data => end.min(size),
        // Data that ends where it starts has been changed meanwhile; reading it will tell.
        _ => size,
    };
    seek(file, SeekFrom::Start(data))?;
    Ok(Some(Extent { data, end }))
}
