//! One received file to standard output.

use std::io::{self, Write};

use super::digest::ContentDigest;
use super::paths::Name;
use super::reader::Reader;
use super::recv::Ledger;
use super::wire::{Entry, Piece, Reply, Totals};
use crate::channel::Incoming;
use crate::failure::{Failure, Outcome, fail, fail_hint, local_io, protocol};
use crate::text::printable;
use sphinx_transport::ErrorKind;

/// Zeros that are written for a hole, so many at a time.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Reads the records of a transfer and writes the contents of its first file; everything else is left
/// out. What has been written cannot be taken back: whoever reads it has to wait for the exit code.
pub(super) fn receive_to_stdout(
    mut reader: Reader<impl Incoming>,
    ledger: &mut Ledger<'_>,
) -> Outcome<()> {
    let mut depth = 0_u64;
    let mut taken = false;
    let mut offers = 0;
    loop {
        let entry = reader.entry()?;
        if entry.counts() {
            ledger.add_entry()?;
        }
        match entry {
            Entry::File { name, .. } | Entry::Stream { name, .. } => {
                let wanted = depth == 0 && !taken;
                if !wanted {
                    refuse(ledger, &name)?;
                }
                taken |= wanted;
                contents(&mut reader, ledger, &name, wanted)?;
            }
            Entry::Directory { name, .. } => {
                depth += 1;
                refuse(ledger, &name)?;
            }
            Entry::DirectoryEnd { .. } => {
                depth = (depth.checked_sub(1))
                    .ok_or_else(|| protocol("the end of a directory that was not begun"))?;
            }
            Entry::Symlink { name, .. } | Entry::HardLink { name, .. } => refuse(ledger, &name)?,
            Entry::Owner(_) | Entry::Xattrs(_) => {}
            // There is nothing here that could be used again.
            Entry::Offer(_) => offers += 1,
            Entry::Ask => ledger.tell(&[Reply::Answered { offer: offers }])?,
            Entry::Kept { .. } => return Err(protocol("a file is kept that is not there")),
            // Nothing is deleted where nothing was asked to be.
            Entry::Delete => {}
            Entry::Skipped { name, reason } => ledger.skipped_by_sender(name.as_bytes(), &reason),
            Entry::End { entries, bytes } => {
                if depth > 0 {
                    return Err(protocol("the transfer ends inside a directory"));
                }
                ledger.check_end(Totals { entries, bytes })?;
                return reader.expect_end();
            }
        }
    }
}

fn refuse(ledger: &mut Ledger<'_>, name: &Name) -> Outcome<()> {
    let failure = fail_hint(
        ErrorKind::LocalIo,
        format!(
            "{} is refused: only one file goes to standard output",
            printable(name.as_bytes())
        ),
        "receive into a directory with --output",
    );
    ledger.skip(name.as_bytes(), failure)
}

fn contents(
    reader: &mut Reader<impl Incoming>,
    ledger: &mut Ledger<'_>,
    name: &Name,
    wanted: bool,
) -> Outcome<()> {
    let progress = ledger.progress;
    let mut out = io::stdout().lock();
    let mut digest = ContentDigest::default();
    let mut at = 0_u64;
    loop {
        match reader.piece()? {
            Piece::Data { bytes } => {
                at = extend(ledger, at, bytes)?;
                reader.data_in_order(bytes, &mut |_, data| {
                    progress.add_bytes(data.len() as u64);
                    if wanted {
                        digest.data(data);
                        let written = progress.at_disk(|| out.write_all(data));
                        written.map_err(refused)?;
                    }
                    Ok(())
                })?;
                // Flushed at once: the program at the other end of the pipe may wait for these bytes.
                progress.at_disk(|| out.flush()).map_err(refused)?;
            }
            Piece::Hole { bytes } => {
                digest.hole(at, bytes);
                at = extend(ledger, at, bytes)?;
                progress.pass_over(bytes);
                let mut left = if wanted { bytes } else { 0 };
                while left > 0 {
                    let piece = left.min(ZEROS.len() as u64);
                    let zeros = &ZEROS[..piece as usize];
                    let written = progress.at_disk(|| out.write_all(zeros));
                    written.map_err(refused)?;
                    left -= piece;
                }
            }
            Piece::Checkpoint { .. } => {}
            Piece::Reuse { .. } | Piece::Same | Piece::Trial | Piece::Copy { .. } => {
                return Err(protocol("something is reused that was not there"));
            }
            Piece::End { digest: expected } => {
                let actual = digest.finish();
                if wanted && actual != expected {
                    let message = format!("{} arrived damaged", printable(name.as_bytes()));
                    return Err(fail(ErrorKind::Integrity, message));
                }
                ledger.add_bytes(at);
                if wanted {
                    progress.at_disk(|| out.flush()).map_err(refused)?;
                    ledger.add_file(name.as_bytes(), at, 0, &actual, false)?;
                }
                return Ok(());
            }
            Piece::Abort { reason } => {
                if wanted {
                    ledger.skipped_by_sender(name.as_bytes(), &reason);
                }
                return Ok(());
            }
        }
    }
}

fn extend(ledger: &mut Ledger<'_>, at: u64, bytes: u64) -> Outcome<u64> {
    ledger.expect_bytes(bytes)?;
    at.checked_add(bytes)
        .ok_or_else(|| protocol("a file is too long"))
}

fn refused(error: io::Error) -> Failure {
    local_io("write to", "standard output", error)
}
