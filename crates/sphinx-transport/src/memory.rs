//! What earlier sessions learned about paths, kept by the connecting end in a small file.
//!
//! The file is text: a line with the version and the file's salt, then a line for each path with its
//! key, rate (IP bytes per second), round trip (µs), loss (parts per million), UDP payload and the time
//! of writing (Unix seconds). A key is a salted hash of both ends' IP addresses, as RFC 9040 and the
//! metrics of kernel TCP have it: what is remembered belongs to the path, whichever peer is at its end
//! and however often that peer has been started anew. The salt keeps two files from being compared; it
//! does not hide addresses from somebody who reads this one and tries them all. Lines that make no
//! sense are ignored, and any failure to read or write means only that nothing is remembered: the core
//! takes what it is told with care (draft-ietf-tsvwg-careful-resume).

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::{digest, rand};
use sphinx_proto::PathMemory;

const VERSION: &str = "sphinx-paths 2";
/// Paths kept, the latest ones.
const ENTRIES_MAX: usize = 256;
/// Largest file that is read: more than so many paths need.
const FILE_MAX: u64 = 64 << 10;
/// How long a path is remembered: networks change.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
/// What is believed at most: 1 Tbit/s, a minute, 90 % loss.
const RATE_MAX: u64 = 125_000_000_000;
const RTT_MAX_US: u64 = 60_000_000;
const PLR_MAX_PPM: u32 = 900_000;
const DATAGRAM: std::ops::RangeInclusive<u16> = 1200..=65_527;

/// Where programs of the user keep what Sphinx learned about paths: `sphinx/paths` in
/// `$XDG_CACHE_HOME` or `~/.cache`; `None` where neither is known.
pub fn path_memory_file() -> Option<PathBuf> {
    let absolute = |name: &str| -> Option<PathBuf> {
        let path = std::env::var_os(name).filter(|value: &OsString| !value.is_empty())?;
        Some(PathBuf::from(path)).filter(|path| path.is_absolute())
    };
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("sphinx").join("paths"))
}

/// What the keys of a file are made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Salt(u128);

impl Salt {
    /// `None` when the operating system gives no randomness.
    fn random() -> Option<Self> {
        let mut bytes = [0; 16];
        rand::fill(&mut bytes).ok()?;
        Some(Self(u128::from_be_bytes(bytes)))
    }

    /// Names the path between two addresses.
    fn key(self, remote: IpAddr, local: Option<IpAddr>) -> Key {
        let mut text = b"sphinx path\0".to_vec();
        text.extend_from_slice(&self.0.to_be_bytes());
        for ip in [Some(remote), local] {
            match ip.map(|ip| ip.to_canonical()) {
                None => text.push(0),
                Some(IpAddr::V4(ip)) => {
                    text.push(4);
                    text.extend_from_slice(&ip.octets());
                }
                Some(IpAddr::V6(ip)) => {
                    text.push(6);
                    text.extend_from_slice(&ip.octets());
                }
            }
        }
        let hash = digest::digest(&digest::SHA256, &text);
        let mut key = [0; 16];
        key.copy_from_slice(&hash.as_ref()[..16]);
        Key(u128::from_be_bytes(key))
    }
}

/// Names a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key(u128);

#[derive(Debug, Clone, Copy, PartialEq)]
struct Entry {
    key: Key,
    memory: PathMemory,
    /// Unix seconds.
    written_at: u64,
}

impl Entry {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let mut next = || fields.next();
        let key = hex(next()?)?;
        let rate = next()?.parse().ok()?;
        let rtt_us: u64 = next()?.parse().ok()?;
        let plr_ppm: u32 = next()?.parse().ok()?;
        let datagram_len = next()?.parse().ok()?;
        let written_at = next()?.parse().ok()?;
        let sane = next().is_none()
            && (1..=RATE_MAX).contains(&rate)
            && (1..=RTT_MAX_US).contains(&rtt_us)
            && plr_ppm <= PLR_MAX_PPM
            && DATAGRAM.contains(&datagram_len);
        sane.then(|| Self {
            key: Key(key),
            memory: PathMemory {
                rate,
                rtt: rtt_us * 1000,
                plr: f64::from(plr_ppm) / 1e6,
                datagram_len,
            },
            written_at,
        })
    }

    fn line(&self) -> String {
        let PathMemory {
            rate,
            rtt,
            plr,
            datagram_len,
        } = self.memory;
        format!(
            "{:032x} {} {} {} {datagram_len} {}\n",
            self.key.0,
            rate.clamp(1, RATE_MAX),
            (rtt / 1000).clamp(1, RTT_MAX_US),
            ((plr * 1e6) as u32).min(PLR_MAX_PPM),
            self.written_at,
        )
    }

    /// Neither too old nor from the future.
    fn is_fresh(&self, now: u64) -> bool {
        now.checked_sub(self.written_at)
            .is_some_and(|age| age <= LIFETIME.as_secs())
    }
}

/// A number of 32 hexadecimal digits.
fn hex(text: &str) -> Option<u128> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits
        .then(|| u128::from_str_radix(text, 16).ok())
        .flatten()
}

/// The file of an application that wants paths to be remembered.
#[derive(Debug, Clone)]
pub(crate) struct PathFile(PathBuf);

impl PathFile {
    pub(crate) fn new(file: PathBuf) -> Self {
        Self(file)
    }

    /// What is remembered about the path to `remote`.
    pub(crate) fn recall(&self, remote: IpAddr) -> Option<PathMemory> {
        let (salt, entries) = load(&self.0, unix_now())?;
        let key = salt.key(remote, local_ip(remote));
        let entry = entries.iter().rev().find(|entry| entry.key == key);
        entry.map(|entry| entry.memory)
    }

    /// Remembers the path in place of what was known about it. Two processes that write at the same
    /// moment lose one of their entries and nothing else.
    pub(crate) fn remember(&self, remote: IpAddr, memory: PathMemory) {
        let now = unix_now();
        let known = load(&self.0, now).or_else(|| Some((Salt::random()?, Vec::new())));
        let Some((salt, mut entries)) = known else {
            return;
        };
        let key = salt.key(remote, local_ip(remote));
        entries.retain(|entry| entry.key != key);
        entries.push(Entry {
            key,
            memory,
            written_at: now,
        });
        let surplus = entries.len().saturating_sub(ENTRIES_MAX);
        // Without it nothing is worse than it was.
        let _ = store(&self.0, salt, &entries[surplus..]);
    }
}

/// The salt and the fresh entries of the file, oldest first; `None` if there is no such file.
fn load(file: &Path, now: u64) -> Option<(Salt, Vec<Entry>)> {
    let mut text = Vec::new();
    let file = File::open(file).ok()?;
    file.take(FILE_MAX).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines();
    let salt = lines.next()?.strip_prefix(VERSION)?.strip_prefix(' ')?;
    let entries = lines
        .filter_map(Entry::parse)
        .filter(|entry| entry.is_fresh(now))
        .take(ENTRIES_MAX)
        .collect();
    Some((Salt(hex(salt)?), entries))
}

/// Replaces the file, readable by the user alone.
fn store(file: &Path, salt: Salt, entries: &[Entry]) -> io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("."));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let mut text = format!("{VERSION} {:032x}\n", salt.0);
    text.extend(entries.iter().map(Entry::line));
    let mut new = tempfile::NamedTempFile::new_in(directory)?;
    new.write_all(text.as_bytes())?;
    new.persist(file)?;
    Ok(())
}

/// The address that packets to `remote` leave from at present: which network this end is in.
fn local_ip(remote: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match remote {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a datagram socket asks for the route and sends nothing.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((remote, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

pub(crate) fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    const MEMORY: PathMemory = PathMemory {
        rate: 25_000_000,
        rtt: 10_000_000,
        plr: 0.06,
        datagram_len: 1472,
    };

    fn path(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    #[test]
    fn a_path_is_remembered_for_its_addresses_alone() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cache/sphinx/paths");
        let paths = PathFile::new(file.clone());
        assert_eq!(paths.recall(path(1)), None);
        paths.remember(path(1), MEMORY);
        assert_eq!(paths.recall(path(1)), Some(MEMORY));
        let newer = PathMemory {
            rate: 1_000_000,
            ..MEMORY
        };
        paths.remember(path(1), newer);
        paths.remember(path(2), MEMORY);
        assert_eq!(paths.recall(path(1)), Some(newer));
        assert_eq!(paths.recall(path(2)), Some(MEMORY));
        assert_eq!(paths.recall(path(3)), None);
        // Nobody else reads it, nothing is left beside it, and it names no address.
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        assert!(!fs::read_to_string(&file).unwrap().contains("127.0"));
    }

    #[test]
    fn the_salt_and_both_addresses_make_the_key() {
        let key = |salt, remote, local| Salt(salt).key(path(remote), local);
        let local = |last| Some(path(last));
        assert_eq!(key(1, 1, local(7)), key(1, 1, local(7)));
        for other in [
            key(2, 1, local(7)),
            key(1, 2, local(7)),
            key(1, 1, local(8)),
            key(1, 1, None),
        ] {
            assert_ne!(other, key(1, 1, local(7)));
        }
        let mapped = "::ffff:127.0.0.1".parse().unwrap();
        assert_eq!(key(1, 1, None), Salt(1).key(mapped, None));
        assert_eq!(local_ip(path(1)), Some(path(1)));
    }

    #[test]
    fn old_paths_go_and_their_number_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("paths");
        let now = unix_now();
        let entry = |n: u32, written_at| Entry {
            key: Key(u128::from(n)),
            memory: MEMORY,
            written_at,
        };
        let day = LIFETIME.as_secs();
        let ages = [
            entry(1, now - day - 1),
            entry(2, now - day),
            entry(3, now + 9),
        ];
        store(&file, Salt(7), &ages).unwrap();
        assert_eq!(load(&file, now), Some((Salt(7), vec![ages[1]])));
        let many: Vec<Entry> = (0..ENTRIES_MAX as u32).map(|n| entry(n, now)).collect();
        store(&file, Salt(7), &many).unwrap();
        assert!(fs::metadata(&file).unwrap().len() < FILE_MAX);
        let paths = PathFile::new(file.clone());
        paths.remember(path(1), MEMORY);
        let (salt, kept) = load(&file, now).unwrap();
        assert_eq!((salt, kept.len(), kept[0]), (Salt(7), ENTRIES_MAX, many[1]));
        assert_eq!(paths.recall(path(1)), Some(MEMORY));
    }

    #[test]
    fn what_cannot_be_written_is_not_remembered() {
        let directory = tempfile::tempdir().unwrap();
        let blocked = directory.path().join("file");
        fs::write(&blocked, "").unwrap();
        let paths = PathFile::new(blocked.join("paths"));
        paths.remember(path(1), MEMORY);
        assert_eq!(paths.recall(path(1)), None);
    }

    proptest! {
        #[test]
        fn any_file_is_read_and_replaced(garbage: Vec<u8>, whole: bool) {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("paths");
            let mut bytes = Vec::new();
            if whole {
                bytes.extend(format!("{VERSION} {:032x}\n", 7).bytes());
            }
            bytes.extend(garbage);
            fs::write(&file, bytes).unwrap();
            let paths = PathFile::new(file);
            prop_assert_eq!(paths.recall(path(1)), None);
            paths.remember(path(1), MEMORY);
            prop_assert_eq!(paths.recall(path(1)), Some(MEMORY));
        }

        #[test]
        fn lines_say_what_they_were_made_from(
            (key, rate, rtt_us) in (any::<u128>(), 1..=RATE_MAX, 1..=RTT_MAX_US),
            (plr_ppm, datagram_len, written_at) in (0..=PLR_MAX_PPM, DATAGRAM, any::<u64>()),
        ) {
            let line = format!("{key:032x} {rate} {rtt_us} {plr_ppm} {datagram_len} {written_at}");
            let entry = Entry::parse(&line).expect("well formed");
            let again = Entry::parse(entry.line().trim_end()).expect("well formed");
            prop_assert!((entry.memory.plr - again.memory.plr).abs() < 2e-6);
            let plr = entry.memory.plr;
            let again = Entry { memory: PathMemory { plr, ..again.memory }, ..again };
            prop_assert_eq!(again, entry);
            let more = format!("{line} 1");
            prop_assert_eq!(Entry::parse(&more), None);
        }
    }
}
