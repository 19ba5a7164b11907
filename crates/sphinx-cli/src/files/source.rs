//! How a sender knows its files again, and what it told a receiver of them, without keeping a record of either.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::Stat;
use rustix::rand::{GetRandomFlags, getrandom};

use super::digest::Checkpoint;
use super::roots::{Root, Source};

pub(super) const SOURCE_ID_BYTES: usize = 16;
const KEY_BYTES: usize = 32;

/// The id that a sender gives to something that it sends. It means nothing to others. The same file, unchanged, has the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SourceId([u8; SOURCE_ID_BYTES]);

/// Says that a sender has computed a checkpoint of one of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seal(pub(super) [u8; 32]);

/// A checkpoint as it is told and kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sealed {
    pub(super) checkpoint: Checkpoint,
    pub(super) seal: Seal,
}

/// A secret of this user on this machine. Who does not have it can neither guess an id nor make a seal.
pub(crate) struct SourceKey([u8; KEY_BYTES]);

impl SourceId {
    /// `None` for all zeros, which on the wire mean that there is no id.
    pub(super) fn from_bytes(bytes: [u8; SOURCE_ID_BYTES]) -> Option<Self> {
        (bytes != [0; SOURCE_ID_BYTES]).then_some(Self(bytes))
    }

    pub(super) fn bytes(id: Option<Self>) -> [u8; SOURCE_ID_BYTES] {
        id.map_or([0; SOURCE_ID_BYTES], |id| id.0)
    }
}

impl SourceKey {
    /// Reads the key, or makes it. Where it cannot be kept it is a new one: then nothing that was sent before is known
    /// again.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub(crate) fn load() -> io::Result<Self> {
        let kept = path().and_then(|path| match read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(&path).ok(),
            read => read.ok(),
        });
        kept.map_or_else(random, Ok).map(Self)
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn of(byte: u8) -> Self {
        Self([byte; KEY_BYTES])
    }

    /// The id of a file. Content that changes gives it another time of change (`ctime`), which nobody can set back.
    pub(super) fn file(&self, stat: &Stat) -> SourceId {
        let numbers = [
            stat.st_dev.to_be_bytes(),
            stat.st_ino.to_be_bytes(),
            stat.st_size.to_be_bytes(),
            stat.st_mtime.to_be_bytes(),
            stat.st_mtime_nsec.to_be_bytes(),
            stat.st_ctime.to_be_bytes(),
            stat.st_ctime_nsec.to_be_bytes(),
        ];
        self.id(b"file", &numbers.concat())
    }

    /// The id of everything together that a command sends.
    pub(crate) fn roots(&self, roots: &[Root]) -> SourceId {
        let mut named = Vec::new();
        for root in roots {
            let path = match &root.source {
                Source::Path(path) => fs::canonicalize(path).unwrap_or_else(|_| path.clone()),
                Source::Stdin => PathBuf::new(),
            };
            for part in [root.name.as_bytes(), path.as_os_str().as_encoded_bytes()] {
                named.extend_from_slice(&(part.len() as u64).to_be_bytes());
                named.extend_from_slice(part);
            }
        }
        self.id(b"root", &named)
    }

    pub(super) fn seal(&self, source: SourceId, checkpoint: &Checkpoint) -> Seal {
        let mut hasher = self.hasher(b"seal");
        hasher.update(&source.0).update(&checkpoint.encode());
        Seal(hasher.finalize().into())
    }

    fn id(&self, what: &[u8; 4], named: &[u8]) -> SourceId {
        let hash = self.hasher(what).update(named).finalize();
        let (id, _) = hash.as_bytes().split_first_chunk().expect("32 bytes");
        SourceId(*id)
    }

    fn hasher(&self, what: &[u8; 4]) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(what);
        hasher
    }
}

/// `$XDG_STATE_HOME/sphinx/source-key` or `~/.local/state/sphinx/source-key`.
fn path() -> Option<PathBuf> {
    let absolute = |variable| {
        let path = PathBuf::from(std::env::var_os(variable)?);
        path.is_absolute().then_some(path)
    };
    let state =
        absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("sphinx/source-key"))
}

fn read(path: &Path) -> io::Result<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    fs::File::open(path)?.read_exact(&mut key)?;
    Ok(key)
}

fn make(path: &Path) -> io::Result<[u8; KEY_BYTES]> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    (fs::DirBuilder::new().recursive(true).mode(0o700)).create(directory)?;
    let key = random()?;
    // Whole or not at all: whoever looks meanwhile must not read half a key.
    let mut temporary = tempfile::NamedTempFile::new_in(directory)?;
    temporary.write_all(&key)?;
    temporary.as_file().sync_all()?;
    match temporary.persist_noclobber(path) {
        Ok(_) => Ok(key),
        // Another process has made the key first, and that one is used.
        Err(_) => read(path),
    }
}

fn random() -> io::Result<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    getrandom(&mut key, GetRandomFlags::empty())?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::digest::{ContentDigest, LEAF_BYTES};

    #[test]
    fn the_key_is_made_once_for_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b/source-key");
        let key = make(&path).unwrap();
        assert_eq!(make(&path).unwrap(), key);
        assert_eq!(read(&path).unwrap(), key);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn ids_and_seals_are_of_one_key_and_one_state() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let stat = || rustix::fs::fstat(file.as_file()).unwrap();
        let (ours, theirs) = (SourceKey::of(1), SourceKey::of(2));
        let before = ours.file(&stat());
        assert_eq!(ours.file(&stat()), before);
        assert_ne!(theirs.file(&stat()), before);
        file.as_file().set_len(1).unwrap();
        let after = ours.file(&stat());
        assert_ne!(after, before);

        let mut digest = ContentDigest::default();
        digest.data(&vec![1; 2 * LEAF_BYTES as usize]);
        let one = digest.checkpoint().unwrap();
        digest.hole(2 * LEAF_BYTES, 1);
        let other = digest.checkpoint().unwrap();
        let seal = ours.seal(after, &one);
        assert_eq!(ours.seal(after, &one), seal);
        assert_ne!(ours.seal(before, &one), seal);
        assert_ne!(ours.seal(after, &other), seal);
        assert_ne!(theirs.seal(after, &one), seal);
    }
}
