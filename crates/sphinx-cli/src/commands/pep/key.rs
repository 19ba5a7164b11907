//! `sphx pep key`: keys that agents on both sides of a hop share.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::rand::GetRandomFlags;
use sphinx_pep::Key;

use super::args::{KeyArgs, KeyCommand};
use crate::failure::{Outcome, local_io, usage};

pub(super) fn run(args: &KeyArgs) -> Outcome<()> {
    match &args.command {
        KeyCommand::New { file } => {
            let name = file.display().to_string();
            write(file).map_err(|error| local_io("write", &name, error))
        }
    }
}

fn write(path: &Path) -> io::Result<()> {
    let mut bytes = [0; 32];
    // Up to 256 bytes are never given in part.
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    let mut options = OpenOptions::new();
    // A file that exists is not replaced: its key may be in use.
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    writeln!(file, "{}", Key::new(bytes).to_text())?;
    file.sync_all()
}

/// Reads a key.
pub(super) fn read(path: &Path) -> Outcome<Key> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|error| local_io("read", &name, error))?;
    Key::from_text(&text).ok_or_else(|| {
        let hint = "it should have 64 hexadecimal digits, as 'sphx pep key new' writes";
        usage(format!("{name} holds no key: {hint}"))
    })
}
