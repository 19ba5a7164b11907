//! Keys in files that only their owner can read.

use std::io;
use std::path::Path;

#[cfg(feature = "tunnel")]
use sphinx_transport::ClientKey;
use sphinx_transport::{ErrorKind, ServerKey};
use zeroize::Zeroizing;

use super::{Secrecy, check, create_private, show};
use crate::failure::{Outcome, fail_hint, local_io};

/// More than the longest key of a server.
const KEY_BYTES_MAX: u64 = 16 << 10;

/// The key of a server, which is made if there is none.
pub(crate) fn server(path: &Path) -> Outcome<ServerKey> {
    let Some(bytes) = read(path)? else {
        let key = ServerKey::generate();
        return match make(path, &key.to_bytes())? {
            true => Ok(key),
            false => server(path),
        };
    };
    ServerKey::from_bytes(&bytes).ok_or_else(|| {
        fail_hint(
            ErrorKind::LocalIo,
            format!("{} is no key of a server, or damaged", show(path)),
            "without it another one is made, and tickets of before are refused",
        )
    })
}

/// The key of a client, which is made if there is none.
#[cfg(feature = "tunnel")]
pub(crate) fn client(path: &Path) -> Outcome<ClientKey> {
    let Some(bytes) = read(path)? else {
        let key = ClientKey::generate();
        return match make(path, &key.to_bytes())? {
            true => Ok(key),
            false => client(path),
        };
    };
    ClientKey::from_bytes(&bytes).ok_or_else(|| {
        fail_hint(
            ErrorKind::LocalIo,
            format!("{} is no key of a client, or damaged", show(path)),
            "without it another one is made, and servers have to invite it again",
        )
    })
}

/// Whether it was made; not if another was faster.
fn make(path: &Path, bytes: &[u8]) -> Outcome<bool> {
    match create_private(path, bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(local_io("write the key", &show(path), error)),
    }
}

fn read(path: &Path) -> Outcome<Option<Zeroizing<Vec<u8>>>> {
    use io::Read;
    let unreadable = |error: io::Error| local_io("read the key", &show(path), error);
    let file = match std::fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(unreadable)?,
    };
    check(path, &file.metadata().map_err(unreadable)?, Secrecy::Secret)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(KEY_BYTES_MAX as usize));
    file.take(KEY_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    Ok(Some(bytes))
}
