//! What a transfer leaves in the output directory while it runs, and what the next one finds of a
//! receiver that was killed.
//!
//! Files are written under temporary names that carry the transfer's number. At the top of the output
//! directory a lock file of that number says in which directory the transfer is writing; it is locked
//! for as long as the receiver lives, so that nobody takes a living transfer's files for leftovers. A
//! directory at the top that is not complete holds a mark, locked likewise, so that the same transfer
//! may go on in it later. A file that is kept in part has a name that every transfer knows, and a journal beside it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, Dir, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::descent::open_directory;
use super::journal::{self, Slot};
use super::paths::{COMPONENT_BYTES_MAX, PATH_BYTES_MAX};
use super::source::{SOURCE_ID_BYTES, SourceId};
use crate::text::hex;

/// Numbers tried before giving up on a free one.
const ATTEMPTS: u32 = 16;
/// Digits of a transfer's number.
const ID_BYTES: usize = 8;
const MARK: &[u8] = b".sphx-";
const PART: &[u8] = b".part";
const LOCK: &[u8] = b".lock";
const JOURNAL: &[u8] = b".journal";
const UNFINISHED: &[u8] = b".sphx-unfinished";

/// The lock file of one transfer; removed when dropped.
pub(super) struct TransferLock {
    root: Arc<OwnedFd>,
    id: String,
    file: File,
    /// What the lock file says: the transfer's directory.
    directory: Vec<u8>,
}

impl TransferLock {
    pub(super) fn create(root: &Arc<OwnedFd>) -> Result<Self, Errno> {
        for _ in 0..ATTEMPTS {
            let mut random = [0; ID_BYTES / 2];
            getrandom(&mut random, GetRandomFlags::empty())?;
            let id = hex(&random);
            let file = match create_private(root, &lock_name(&id)) {
                Ok(file) => file,
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(error),
            };
            let own = Self {
                root: root.clone(),
                id,
                file,
                directory: Vec::new(),
            };
            // Between the two calls a receiver that starts may have taken it for a leftover.
            if !is_locked(&own.file) && fs::fstat(&own.file)?.st_nlink > 0 {
                return Ok(own);
            }
        }
        Err(Errno::EXIST)
    }

    /// Says where temporary files are about to be: a directory's path below the root.
    pub(super) fn set_directory(&mut self, path: &[u8]) -> io::Result<()> {
        if self.directory == path {
            return Ok(());
        }
        self.file.write_all_at(path, 0)?;
        self.file.set_len(path.len() as u64)?;
        self.directory.clear();
        self.directory.extend_from_slice(path);
        Ok(())
    }

    /// The hidden name of a temporary file of this transfer.
    pub(super) fn temporary_name(&self, name: &[u8]) -> Vec<u8> {
        hidden_name(name, &self.id, PART)
    }
}

/// The names of the part of a file that waits to be completed, and of its journal: the same for every transfer. Their
/// number is of the file's name, which is shortened where the whole would be too long.
pub(super) fn partial_names(name: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let number = hex(&blake3::hash(name).as_bytes()[..ID_BYTES / 2]);
    (
        hidden_name(name, &number, PART),
        hidden_name(name, &number, JOURNAL),
    )
}

/// `.NAME.sphx-XXXXXXXX.part` or `.journal`, NAME shortened where the whole would be too long: where a character ends, as
/// some file systems take whole characters only.
fn hidden_name(name: &[u8], id: &str, end: &[u8]) -> Vec<u8> {
    let room = COMPONENT_BYTES_MAX - 1 - MARK.len() - ID_BYTES - end.len();
    let kept = match std::str::from_utf8(name) {
        Ok(text) => text.floor_char_boundary(room),
        Err(_) => name.len().min(room),
    };
    [b".", &name[..kept], MARK, id.as_bytes(), end].concat()
}

impl Drop for TransferLock {
    fn drop(&mut self) {
        // Nothing better can be done about one that cannot be removed.
        let name = lock_name(&self.id);
        let _ = fs::unlinkat(&self.root, name.as_slice(), AtFlags::empty());
    }
}

/// Says that a directory is not complete; stays when dropped.
pub(super) struct Unfinished {
    directory: Arc<OwnedFd>,
    locked: File,
}

/// What a directory that exists says about itself.
pub(super) enum Found {
    /// It is complete, or has nothing to do with transfers.
    Nothing,
    /// A transfer that still runs is writing into it.
    InUse,
    Unfinished(Unfinished),
}

impl Unfinished {
    pub(super) fn create(directory: &Arc<OwnedFd>) -> Result<Self, Errno> {
        let file = create_private(directory, UNFINISHED)?;
        // Between the two calls another transfer may have found it and gone on in the directory.
        if is_locked(&file) {
            return Err(Errno::AGAIN);
        }
        Ok(Self {
            directory: directory.clone(),
            locked: file,
        })
    }

    /// Creates the mark, with the id that the sender has for the transfer.
    pub(super) fn create_for(directory: &Arc<OwnedFd>, source: SourceId) -> io::Result<Self> {
        let mark = Self::create(directory)?;
        (mark.locked).write_all_at(&SourceId::bytes(Some(source)), 0)?;
        Ok(mark)
    }

    /// Whether it was made for what this sender sends.
    pub(super) fn is_for(&self, source: SourceId) -> bool {
        let mut bytes = [0; SOURCE_ID_BYTES];
        let read = self.locked.read_exact_at(&mut bytes, 0);
        read.is_ok() && SourceId::from_bytes(bytes) == Some(source)
    }

    /// Takes over what an earlier transfer left.
    pub(super) fn find(directory: &Arc<OwnedFd>) -> Found {
        let Ok(file) = open_plain(directory, UNFINISHED) else {
            return Found::Nothing;
        };
        if is_locked(&file) {
            return Found::InUse;
        }
        match fs::fstat(&file) {
            // Its transfer has completed the directory meanwhile.
            Ok(stat) if stat.st_nlink == 0 => Found::Nothing,
            _ => Found::Unfinished(Self {
                directory: directory.clone(),
                locked: file,
            }),
        }
    }

    pub(super) fn finish(self) -> Result<(), Errno> {
        fs::unlinkat(&self.directory, UNFINISHED, AtFlags::empty())
    }
}

/// Whether a transfer has made a directory and has not completed it.
pub(super) fn is_unfinished(directory: &Path) -> bool {
    directory.join(OsStr::from_bytes(UNFINISHED)).exists()
}

/// Whether a name is one of those above: no peer may use it.
pub(super) fn is_reserved(name: &[u8]) -> bool {
    name == UNFINISHED
        || id_between(name, MARK, LOCK).is_some()
        || hidden_id(name, PART).is_some()
        || hidden_id(name, JOURNAL).is_some()
}

/// Removes what receivers that live no more have left below `root`. What cannot be removed stays.
pub(super) fn sweep(root: &Arc<OwnedFd>) {
    for name in names(root).unwrap_or_default() {
        let Some(id) = id_between(&name, MARK, LOCK) else {
            continue;
        };
        let Ok(mut file) = open_plain(root, &name) else {
            continue;
        };
        let mut path = Vec::new();
        if lock_file(&file)
            && (&mut file)
                .take(PATH_BYTES_MAX as u64)
                .read_to_end(&mut path)
                .is_ok()
        {
            sweep_directory(root, &path, id);
            let _ = fs::unlinkat(root, name.as_slice(), AtFlags::empty());
        }
    }
}

/// Removes the temporary files of one transfer from one directory.
fn sweep_directory(root: &Arc<OwnedFd>, path: &[u8], id: &[u8]) {
    let mut directory = root.clone();
    for component in path.split(|byte| *byte == b'/').filter(|c| !c.is_empty()) {
        if component == b".." {
            return;
        }
        match open_directory(&directory, component) {
            Ok(inner) => directory = Arc::new(inner),
            Err(_) => return,
        }
    }
    for name in names(&directory).unwrap_or_default() {
        if hidden_id(&name, PART) == Some(id) {
            let _ = fs::unlinkat(&directory, name.as_slice(), AtFlags::empty());
        } else if hidden_id(&name, JOURNAL).is_some() {
            sweep_part(&directory, &name);
        }
    }
}

/// Removes a part of which nothing is known to be on the disk. One that can be gone on with stays.
fn sweep_part(directory: &OwnedFd, journal_name: &[u8]) {
    let Ok(journal) = open_plain(directory, journal_name) else {
        return;
    };
    if lock_file(&journal) && Slot::newest(&journal::read(&journal)).is_none() {
        let stem = &journal_name[..journal_name.len() - JOURNAL.len()];
        for name in [&[stem, PART].concat()[..], journal_name] {
            let _ = fs::unlinkat(directory, name, AtFlags::empty());
        }
    }
}

/// The names in a directory, in no order.
pub(super) fn names(directory: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        match entry.file_name().to_bytes() {
            b"." | b".." => {}
            name => names.push(name.to_vec()),
        }
    }
    Ok(names)
}

fn lock_name(id: &str) -> Vec<u8> {
    [MARK, id.as_bytes(), LOCK].concat()
}

/// The number in a hidden name.
fn hidden_id<'n>(name: &'n [u8], end: &[u8]) -> Option<&'n [u8]> {
    let at = (name.len()).checked_sub(MARK.len() + ID_BYTES + end.len())?;
    match name[0] {
        b'.' if at > 0 => id_between(&name[at..], MARK, end),
        _ => None,
    }
}

fn id_between<'n>(name: &'n [u8], before: &[u8], after: &[u8]) -> Option<&'n [u8]> {
    let id = name.strip_prefix(before)?.strip_suffix(after)?;
    (id.len() == ID_BYTES && id.iter().all(u8::is_ascii_hexdigit)).then_some(id)
}

pub(super) fn create_private(directory: &OwnedFd, name: &[u8]) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

/// Opens what is to be locked: for writing too, as NFS gives no exclusive lock on anything else.
pub(super) fn open_plain(directory: &OwnedFd, name: &[u8]) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    fs::openat(directory, name, flags, Mode::empty()).map(File::from)
}

/// False if another receiver has it. Where files cannot be locked nothing is ever taken for a
/// leftover of a dead one, and so nothing is.
pub(super) fn lock_file(file: &File) -> bool {
    lock(file).is_ok()
}

/// Whether another receiver has it, as far as anybody can know.
fn is_locked(file: &File) -> bool {
    is_taken(lock(file))
}

/// Locks a file without waiting. The error is `WOULDBLOCK` if another receiver has the lock.
pub(super) fn lock(file: &File) -> Result<(), Errno> {
    fs::flock(file, FlockOperation::NonBlockingLockExclusive)
}

/// Whether it is known that another receiver has it. Where files cannot be locked (Lustre without `flock`, NFS without its
/// lock daemon) nobody is known to, and what this one makes is its own.
pub(super) fn is_taken(locked: Result<(), Errno>) -> bool {
    locked == Err(Errno::WOULDBLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_our_own_are_known() {
        for name in [
            &b".a.sphx-0123abcd.part"[..],
            b".sphx-0123abcd.lock",
            b".sphx-unfinished",
            b"..sphx-0123abcd.part",
            b".a.sphx-0123abcd.journal",
        ] {
            assert!(is_reserved(name));
        }
        for name in [
            &b""[..],
            b".",
            b".part",
            b".sphx-0123abcd.part",
            b"a.sphx-0123abcd.part",
            b".a.sphx-0123abcg.part",
            b".a.sphx-0123abcd.parts",
            b".sphx-0123abc.lock",
        ] {
            assert!(!is_reserved(name), "{}", String::from_utf8_lossy(name));
        }
    }

    /// The lock file is open for writing: NFS locks no other.
    #[test]
    fn what_is_locked_is_open_for_writing() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = Arc::new(fs::open(root.path(), flags, Mode::empty()).unwrap());
        drop(Unfinished::create(&directory).unwrap());
        let Found::Unfinished(mark) = Unfinished::find(&directory) else {
            panic!("nobody has it");
        };
        let mode = fs::fcntl_getfl(&mark.locked).unwrap() & OFlags::RWMODE;
        assert_eq!(mode, OFlags::RDWR);
        assert!(matches!(Unfinished::find(&directory), Found::InUse));
    }

    #[test]
    fn where_files_cannot_be_locked_nobody_is_known_to_have_them() {
        assert!(is_taken(Err(Errno::WOULDBLOCK)));
        assert!(!is_taken(Ok(())));
        for error in [Errno::NOSYS, Errno::NOLCK, Errno::OPNOTSUPP] {
            assert!(!is_taken(Err(error)));
        }
    }

    #[test]
    fn what_is_shortened_ends_with_a_whole_character() {
        for end in [PART, JOURNAL] {
            for name in ["a".repeat(255), "名".repeat(85), "é".repeat(127)] {
                let hidden = hidden_name(name.as_bytes(), "0123abcd", end);
                assert!(hidden.len() <= COMPONENT_BYTES_MAX && is_reserved(&hidden));
                let hidden = String::from_utf8(hidden).expect("whole characters");
                assert!(COMPONENT_BYTES_MAX - hidden.len() < 3, "{hidden}");
            }
            // A name that is not UTF-8 is cut at any byte.
            let hidden = hidden_name(&[0xe5; 255], "0123abcd", end);
            assert_eq!(hidden.len(), COMPONENT_BYTES_MAX);
        }
    }
}
