//! What earlier sessions have agreed on, kept by the connecting end beside what it remembers of paths, so that later ones begin at once
//! (`docs/protocol.md` §3.1).
//!
//! The file is text: a line with the version, then a line for each resumption with its key, the connection id, the secret, what the server said of itself, and the
//! time at which they were agreed on (Unix seconds). A key is a hash of everything that makes the client and the server who they are. The file is its
//! owner's alone, and locked while it is looked at, since a resumption is for one session: it is removed before it is used. Lines
//! that make no sense are ignored, and any failure to read or write means only that nothing is known. A file that does not begin so is somebody
//! else's, and stays as it is.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use sphinx_driver::keys::SECRET_LEN;
use sphinx_proto::wire::ConnectionId;
use zeroize::Zeroizing;

use crate::control::{LIFETIME, Params, Resumption};
use crate::memory::{path_memory_file, unix_now};
use crate::ticket::Ticket;

const VERSION: &str = "sphinx-sessions 1";
/// Resumptions kept, the latest ones.
const ENTRIES_MAX: usize = 64;
/// Largest file that is read: more than so many resumptions need.
const FILE_MAX: u64 = 256 << 10;

/// The file of an application that begins sessions at once, and whom it is for.
#[derive(Debug, Clone)]
pub(crate) struct ResumptionFile {
    file: PathBuf,
    key: Key,
}

/// Names a client and a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key([u8; 16]);

/// A line of the file.
struct Entry {
    key: Key,
    resumption: Resumption,
    /// Unix seconds.
    agreed_at: u64,
}

impl Entry {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let mut next = || fields.next();
        let key = Key(bytes(next()?)?.as_slice().try_into().ok()?);
        let cid = bytes(next()?)?.as_slice().try_into().ok()?;
        let secret = bytes(next()?)?;
        let server = Params::decode(&bytes(next()?)?).ok()?;
        let agreed_at = next()?.parse().ok()?;
        let secret: &[u8; SECRET_LEN] = secret.as_slice().try_into().ok()?;
        let resumption = Resumption {
            cid: ConnectionId::new(cid)?,
            secret: Zeroizing::new(*secret),
            server,
        };
        next().is_none().then_some(Self {
            key,
            resumption,
            agreed_at,
        })
    }

    fn put(&self, text: &mut Zeroizing<Vec<u8>>) {
        let Resumption {
            cid,
            secret,
            server,
        } = &self.resumption;
        put_hex(text, &self.key.0);
        for field in [&cid.bytes()[..], secret.as_slice(), &server.encode()] {
            text.push(b' ');
            put_hex(text, field);
        }
        text.extend_from_slice(format!(" {}\n", self.agreed_at).as_bytes());
    }

    /// Neither too old nor from the future.
    fn is_fresh(&self, now: u64) -> bool {
        let age = now.checked_sub(self.agreed_at);
        age.is_some_and(|age| age < LIFETIME.as_secs())
    }
}

impl ResumptionFile {
    /// Beside the file that paths are remembered in, for who has this ticket.
    pub(crate) fn beside(paths: &Path, ticket: &Ticket) -> Self {
        let mut text = Zeroizing::new(b"sphinx sessions".to_vec());
        text.extend_from_slice(ticket.pin());
        text.extend_from_slice(ticket.secret());
        if let Some(key) = ticket.key() {
            text.extend_from_slice(&key.public_key().0);
        }
        let hash = digest::digest(&digest::SHA256, &text);
        let mut key = [0; 16];
        key.copy_from_slice(&hash.as_ref()[..16]);
        Self {
            file: file_beside(paths),
            key: Key(key),
        }
    }

    /// The latest resumption of this client and server. From now on nobody else finds it.
    pub(crate) fn take(&self) -> Option<Resumption> {
        let (mut file, mut entries) = open(&self.file, false).ok()?;
        let at = entries.iter().rposition(|entry| entry.key == self.key)?;
        let entry = entries.remove(at);
        store(&mut file, &entries).ok()?;
        Some(entry.resumption)
    }

    /// Keeps another one, which was agreed on at this time (Unix seconds).
    pub(crate) fn keep(&self, resumption: Resumption, agreed_at: u64) {
        let Ok((mut file, mut entries)) = open(&self.file, true) else {
            return;
        };
        entries.push(Entry {
            key: self.key,
            resumption,
            agreed_at,
        });
        let surplus = entries.len().saturating_sub(ENTRIES_MAX);
        // Without it nothing is worse than it was.
        let _ = store(&mut file, &entries[surplus..]);
    }
}

/// Named after the file that paths are remembered in, as its directory is the application's; in the usual place, whose directory is Sphinx's, just
/// `sessions`.
fn file_beside(paths: &Path) -> PathBuf {
    if path_memory_file().as_deref() == Some(paths) {
        return paths.with_file_name("sessions");
    }
    let mut name = paths.file_name().unwrap_or_default().to_owned();
    name.push(".sessions");
    paths.with_file_name(name)
}

/// The file, locked until it is dropped and readable by its owner alone, and its fresh entries, oldest first.
fn open(path: &Path, creates: bool) -> io::Result<(File, Vec<Entry>)> {
    if creates {
        let directory = path.parent().unwrap_or(Path::new("."));
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
    }
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(creates)
        .truncate(false)
        .mode(0o600)
        .custom_flags(no_follow)
        .open(path)?;
    file.lock()?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Of a fixed size: no copy of what grows is left behind.
    let mut text = Zeroizing::new(Vec::with_capacity(FILE_MAX as usize));
    (&mut file).take(FILE_MAX).read_to_end(&mut text)?;
    let is_ours = text.split(|byte| *byte == b'\n').next() == Some(VERSION.as_bytes());
    if !is_ours && !text.is_empty() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        // Others may have read it, or may have written it.
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(0)?;
        return Ok((file, Vec::new()));
    }
    let entries = entries_of(&text);
    Ok((file, entries))
}

fn entries_of(text: &[u8]) -> Vec<Entry> {
    let lines = std::str::from_utf8(text).unwrap_or_default().lines();
    let now = unix_now();
    let entries = lines
        .skip(1)
        .filter_map(Entry::parse)
        .filter(|entry| entry.is_fresh(now));
    entries.take(ENTRIES_MAX).collect()
}

fn store(file: &mut File, entries: &[Entry]) -> io::Result<()> {
    let mut text = Zeroizing::new(Vec::with_capacity(FILE_MAX as usize));
    text.extend_from_slice(VERSION.as_bytes());
    text.push(b'\n');
    for entry in entries {
        entry.put(&mut text);
    }
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&text)
}

fn put_hex(text: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)]);
        text.push(DIGITS[usize::from(byte & 15)]);
    }
}

/// Pairs of hexadecimal digits.
fn bytes(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let digit = |byte: u8| (byte as char).to_digit(16);
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() / 2));
    for pair in text.as_bytes().chunks(2) {
        let [high, low] = pair else {
            return None;
        };
        bytes.push((digit(*high)? << 4 | digit(*low)?) as u8);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn ticket(n: u8) -> Ticket {
        let addresses = vec!["10.0.0.2:4433".to_owned()];
        Ticket::new(addresses, [n; 32], Zeroizing::new([n; 32])).expect("valid")
    }

    fn resumption(n: u8) -> Resumption {
        Resumption {
            cid: ConnectionId::new([n; 8]).expect("not zero"),
            secret: Zeroizing::new([n; SECRET_LEN]),
            server: Params::decode(&[3, 1, 7, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8]).expect("well formed"),
        }
    }

    fn taken(file: &ResumptionFile) -> Option<u8> {
        let taken = file.take()?;
        assert_eq!(*taken.secret, [taken.cid.bytes()[0]; SECRET_LEN]);
        Some(taken.cid.bytes()[0])
    }

    #[test]
    fn each_is_taken_once_and_by_whom_it_is_for() {
        let directory = tempfile::tempdir().unwrap();
        let paths = directory.path().join("cache/sphinx/paths");
        let [one, two] = [1, 2].map(|n| ResumptionFile::beside(&paths, &ticket(n)));
        assert_eq!(taken(&one), None);
        let now = unix_now();
        for (file, n) in [(&one, 11), (&one, 12), (&two, 21)] {
            file.keep(resumption(n), now);
        }
        assert_eq!(taken(&one), Some(12), "the latest first");
        // Another process that has read nothing yet.
        let again = ResumptionFile::beside(&paths, &ticket(1));
        assert_eq!([taken(&again), taken(&one)], [Some(11), None]);
        assert_eq!([taken(&two), taken(&two)], [Some(21), None]);
        let mode = fs::metadata(&one.file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn two_at_a_time_never_take_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let file = ResumptionFile::beside(&directory.path().join("paths"), &ticket(1));
        (1..=40).for_each(|n| file.keep(resumption(n), unix_now()));
        let all: Vec<u8> = std::thread::scope(|scope| {
            let takers = [(); 4]
                .map(|()| scope.spawn(|| std::iter::from_fn(|| taken(&file)).collect::<Vec<u8>>()));
            takers
                .into_iter()
                .flat_map(|taker| taker.join().unwrap())
                .collect()
        });
        let mut sorted = all;
        sorted.sort_unstable();
        assert_eq!(sorted, (1..=40).collect::<Vec<u8>>());
    }

    #[test]
    fn old_ones_go_and_their_number_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let file = ResumptionFile::beside(&directory.path().join("paths"), &ticket(1));
        let (now, day) = (unix_now(), LIFETIME.as_secs());
        file.keep(resumption(1), now - day);
        file.keep(resumption(2), now + 100);
        assert_eq!(taken(&file), None);
        (1..=ENTRIES_MAX as u8 + 1).for_each(|n| file.keep(resumption(n), now));
        assert!(fs::metadata(&file.file).unwrap().len() < FILE_MAX);
        let all: Vec<u8> = std::iter::from_fn(|| taken(&file)).collect();
        assert_eq!(all, (2..=ENTRIES_MAX as u8 + 1).rev().collect::<Vec<u8>>());
    }

    #[test]
    fn what_others_may_have_read_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let file = ResumptionFile::beside(&directory.path().join("paths"), &ticket(1));
        file.keep(resumption(1), unix_now());
        fs::set_permissions(&file.file, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(taken(&file), None);
        file.keep(resumption(2), unix_now());
        assert_eq!(taken(&file), Some(2));
        // A file behind a symbolic link is not used either.
        let other = directory.path().join("other");
        fs::rename(&file.file, &other).unwrap();
        std::os::unix::fs::symlink(&other, &file.file).unwrap();
        file.keep(resumption(3), unix_now());
        assert_eq!(taken(&file), None);
    }

    #[test]
    fn its_name_is_that_of_the_paths_but_in_the_usual_place() {
        let file_of = |paths: &Path| ResumptionFile::beside(paths, &ticket(1)).file;
        let own = file_of(Path::new("/srv/app/paths.txt"));
        assert_eq!(own, Path::new("/srv/app/paths.txt.sessions"));
        if let Some(usual) = path_memory_file() {
            assert_eq!(file_of(&usual), usual.with_file_name("sessions"));
        }
    }

    #[test]
    fn what_is_somebody_elses_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let file = ResumptionFile::beside(&directory.path().join("paths"), &ticket(1));
        let later = format!("{VERSION}0\n");
        for content in ["alice 2026-11-29\n", "\n", later.as_str()] {
            for mode in [0o644, 0o600] {
                fs::write(&file.file, content).unwrap();
                fs::set_permissions(&file.file, Permissions::from_mode(mode)).unwrap();
                assert_eq!(taken(&file), None);
                file.keep(resumption(1), unix_now());
                assert_eq!(taken(&file), None);
                assert_eq!(fs::read_to_string(&file.file).unwrap(), content);
                let metadata = fs::metadata(&file.file).unwrap();
                assert_eq!(metadata.permissions().mode() & 0o777, mode);
            }
        }
    }

    proptest! {
        #[test]
        fn any_file_is_read_and_replaced(garbage: Vec<u8>, is_empty: bool) {
            let directory = tempfile::tempdir().unwrap();
            let file = ResumptionFile::beside(&directory.path().join("paths"), &ticket(1));
            let bytes = match is_empty {
                true => Vec::new(),
                false => [format!("{VERSION}\n").as_bytes(), &garbage].concat(),
            };
            fs::write(&file.file, bytes).unwrap();
            fs::set_permissions(&file.file, Permissions::from_mode(0o600)).unwrap();
            prop_assert_eq!(taken(&file), None);
            file.keep(resumption(1), unix_now());
            prop_assert_eq!(taken(&file), Some(1));
        }
    }
}
