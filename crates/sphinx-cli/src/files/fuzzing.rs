//! The receiving end of a transfer against a hostile sender, and the sending one against a hostile receiver.

mod parts;
mod receivers;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

pub use parts::journal;
use parts::{THERE_BYTES, known, put_part, there};
pub use receivers::receivers;
use sphinx_fuzz::Input;

use super::digest::ContentDigest;
use super::leftovers::{is_reserved, partial_names};
use super::offers::{Offered, Series};
use super::owners::Owner;
use super::paths::{Name, Walker, link_target};
use super::reader::Reader;
use super::recv::receive_tree;
use super::source::{Seal, SourceId};
use super::wire::{
    Announced, Attributes, Entry, Piece, Reply, Totals, put_entry, put_piece, put_preamble,
    put_reply,
};
use super::xattrs::Xattrs;
use super::{Destination, OutputDir, Rules, Sync, SyncRequest};
use crate::channel::Arrived;
use crate::report::{Progress, Reporter};

/// Names and link targets from a peer: what passes stays below its root.
pub fn paths(data: &[u8]) {
    let input = &mut Input::new(data);
    let len = usize::from(input.byte());
    let (name, target) = (input.take(len), input.take(usize::MAX));
    if let Ok(name) = Name::new(name) {
        let bytes = name.as_bytes();
        assert!(!matches!(bytes, b"" | b"." | b"..") && bytes.len() < 256);
        assert!(!bytes.contains(&0) && !bytes.contains(&b'/'));
    }
    // How deep the link is, and which names are directories.
    let (mut depth, directories) = (len & 7, len);
    let mut walker = Everywhere { directories };
    if link_target(depth, target, &mut walker).is_ok() {
        // Depth below the parent of the object that was sent: a link never climbs back to it.
        let mut parts = Vec::new();
        for part in target.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => {
                    let left = parts.pop();
                    assert!(left.is_none_or(|name| walker.enter(name)));
                    depth -= usize::from(left.is_none());
                }
                name => parts.push(name),
            }
            assert!(depth >= 1);
        }
    }
}

/// A tree in which names of some lengths are directories wherever they are.
struct Everywhere {
    directories: usize,
}

impl Walker for Everywhere {
    fn up(&mut self) {}
    fn enter(&mut self, name: &[u8]) -> bool {
        self.directories >> (name.len() & 7) & 1 != 0
    }
}

/// The parsers of records, one after the other on the same bytes: what is read is written back.
pub fn records(data: &[u8]) {
    let input = &mut Input::new(data);
    let piece = 1 + usize::from(input.byte());
    let bytes = input.take(usize::MAX);
    let reader = || Reader::new(Arrived { bytes, piece }, 64);

    // Messages are made printable; everything else comes back as it was.
    let mut entries = reader();
    let mut written = Vec::new();
    let (mut there, mut here) = (Series::default(), Series::default());
    while let Ok(entry) = entries.entry() {
        if matches!(entry, Entry::Skipped { .. }) {
            break;
        }
        // What is offered can be offered again; a sender shares as much as it can.
        if let Entry::Offer(offer) = &entry
            && let Ok(offered) = there.next(offer)
        {
            let offer = here.offer(&offered);
            assert_eq!(
                Series::default().next(&Series::default().offer(&offered)),
                Ok(offered.clone())
            );
            assert!(offer.shared as usize + offer.rest.len() == offered.path.len());
        }
        put_entry(&mut written, &entry);
        assert!(bytes.starts_with(&written));
    }

    let mut pieces = reader();
    let mut at = 0;
    while let Ok(piece) = pieces.piece() {
        if matches!(piece, Piece::Abort { .. }) {
            break;
        }
        let mut written = Vec::new();
        put_piece(&mut written, &piece);
        assert!(bytes[at..].starts_with(&written));
        at += written.len();
        if let Piece::Data { bytes: length } = piece {
            let mut read = 0;
            let mut sink = |place, data: &[u8]| {
                assert!(!data.is_empty() && bytes[at + place as usize..].starts_with(data));
                read += data.len();
                Ok(())
            };
            if pieces.data(length, &mut sink).is_err() {
                return;
            }
            assert_eq!(read as u64, length);
            at += read;
        }
    }

    if let Ok(totals) = reader().preamble() {
        let mut written = Vec::new();
        put_preamble(&mut written, totals);
        assert!(bytes.starts_with(&written));
    }
    let mut replies = reader();
    while let Ok(reply) = replies.reply() {
        put_reply(&mut Vec::new(), &reply);
    }
}

/// One for all inputs: each has a thread of its own, which stays.
static QUIET: LazyLock<Reporter> = LazyLock::new(Reporter::silent);

/// A stream of records, right or wrong, into a directory that has things of its own.
pub fn files(data: &[u8]) {
    let input = &mut Input::new(data);
    let rules = input.byte();
    let sync = (rules & 64 != 0).then(|| SyncRequest {
        contents: rules & 1 != 0,
        delete: rules & 2 != 0,
        dry_run: rules & 4 != 0,
        ..SyncRequest::default()
    });
    let overwrite = rules & 1 != 0 || sync.is_some();
    let rules = Rules {
        overwrite,
        merge: rules & 2 != 0,
        allow_dotfiles: rules & 4 != 0,
        partial: rules & 32 != 0,
        exact_modes: false,
        max_bytes: (rules & 8 != 0).then_some(1000),
        max_entries: (rules & 16 != 0).then_some(10),
    };
    let piece = 1 + usize::from(input.byte());
    let stream = Stream::write(input);

    let sandbox = tempfile::tempdir().expect("a temporary directory");
    let (inside, outside) = (sandbox.path().join("in"), sandbox.path().join("out"));
    prepare(&inside, &outside).expect("a writable temporary directory");
    put_part(&inside, &there().encode()).expect("a writable temporary directory");

    let is_sync = sync.is_some();
    let output = match sync {
        Some(asked) => {
            let sync = Sync::new(asked).expect("no filter is wrong");
            OutputDir::synchronized(&inside, rules.partial, Arc::new(sync))
        }
        None => OutputDir::open(&inside, rules),
    };
    let output = output.expect("a writable directory");
    let output = Destination::Directory(output);
    let arrived = Arrived {
        bytes: &stream.bytes,
        piece,
    };
    let mut told = 0;
    let mut tell = |replies: &[Reply]| {
        told += replies.len();
        // What is there of a file hears only who knows its source.
        let part = |reply: &Reply| matches!(reply, Reply::Part { .. });
        assert!(stream.knows || !replies.iter().any(part));
        Ok(())
    };
    let progress = Progress::default();
    let received = receive_tree(
        arrived,
        &output,
        &|_| Ok(None),
        &mut tell,
        &progress,
        &QUIET,
    );
    if let Ok(received) = received {
        assert!(received.counts.totals.entries <= stream.bytes.len() as u64);
        let told = received.counts.files + received.counts.skipped;
        assert!(told <= received.counts.totals.entries);
        assert!(received.counts.files_present <= received.counts.files);
    }
    assert!(told <= 1 + stream.bytes.len());

    // Nothing outside has changed.
    assert_eq!(names(sandbox.path()), ["in", "out"]);
    assert_eq!(names(&outside), ["kept"]);
    assert_eq!(fs::read(outside.join("kept")).expect("readable"), b"kept");
    // Inside, what was there stays unless it may be replaced, and links lead nowhere else.
    if !overwrite {
        let kept = fs::read_link(inside.join("link")).expect("still a link");
        assert_eq!(kept, Path::new("../out"));
        assert_eq!(fs::read(inside.join("file")).expect("readable"), b"mine");
    }
    let root = inside.canonicalize().expect("still there");
    // Synchronized links are copied as they are.
    let links = (!is_sync).then_some(root.as_path());
    let mut held = Held::default();
    held.check(&root, &root, links, rules.partial);
    held.remove();
}

/// A file, a directory and a link out of the tree; and what the link points at.
fn prepare(inside: &Path, outside: &Path) -> std::io::Result<()> {
    fs::create_dir(inside)?;
    fs::create_dir(outside)?;
    fs::write(outside.join("kept"), "kept")?;
    fs::write(inside.join("file"), "mine")?;
    fs::File::options()
        .write(true)
        .open(inside.join("file"))?
        .set_modified(std::time::UNIX_EPOCH)?;
    fs::create_dir(inside.join("dir"))?;
    symlink("../out", inside.join("link"))
}

fn names(directory: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.expect("an entry").file_name();
        name.to_string_lossy().into_owned()
    };
    let entries = fs::read_dir(directory).expect("a directory");
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

/// What a directory holds, and the directories below it.
#[derive(Default)]
struct Held {
    /// Every directory comes after the one that it is in.
    directories: Vec<PathBuf>,
    others: Vec<PathBuf>,
}

impl Held {
    /// No temporary file is left, and every link but the one of the user stays in the tree.
    fn check(
        &mut self,
        directory: &Path,
        root: &Path,
        links_stay_in: Option<&Path>,
        partial: bool,
    ) {
        // The peer may have taken the permissions away.
        let mut permissions = fs::metadata(directory).expect("there").permissions();
        if permissions.mode() & 0o700 != 0o700 {
            permissions.set_mode(0o700);
            fs::set_permissions(directory, permissions).expect("its owner may");
        }
        self.directories.push(directory.to_owned());
        let (part, journal) = partial_names(b"a");
        for entry in fs::read_dir(directory).expect("a directory") {
            let entry = entry.expect("an entry");
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.as_bytes();
            // What says that a directory is not complete may stay; and what is kept in part.
            let kept = partial || directory == root;
            assert!(
                name == b".sphx-unfinished"
                    || kept && (name == part || name == journal)
                    || !is_reserved(name),
                "a temporary file is left"
            );
            let kind = entry.file_type().expect("still there");
            if kind.is_dir() {
                self.check(&path, root, links_stay_in, partial);
                continue;
            }
            if let Some(root) = links_stay_in
                && kind.is_symlink()
                && path != root.join("link")
            {
                let target = fs::read_link(&path).expect("a link");
                assert!(target.is_relative());
                // One that leads nowhere yet is judged by its text (`paths`).
                if let Ok(end) = path.canonicalize() {
                    assert!(end.starts_with(root) && end != root, "{path:?} leads out");
                }
            }
            self.others.push(path);
        }
    }

    /// Looking at everything once more would take as long as all the rest.
    fn remove(&self) {
        for path in &self.others {
            fs::remove_file(path).expect("its owner may");
        }
        for path in self.directories.iter().rev() {
            fs::remove_dir(path).expect("nothing is left in it");
        }
    }
}

/// Writes the records of a transfer.
struct Stream {
    bytes: Vec<u8>,
    totals: Totals,
    series: Series,
    /// Whether the sender has named the source of the part that is there.
    knows: bool,
}

impl Stream {
    fn write(input: &mut Input<'_>) -> Self {
        let mut stream = Self {
            bytes: Vec::new(),
            totals: Totals::default(),
            series: Series::default(),
            knows: false,
        };
        put_preamble(&mut stream.bytes, Announced::default());
        while !input.is_empty() {
            stream.record(input);
        }
        stream
    }

    fn record(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        match kind & 7 {
            0 => {
                let name = self.name(input);
                self.entry(|name| Entry::Directory { name, mode: 0o755 }, &name);
            }
            1 => {
                let attributes = attributes(input);
                put_entry(&mut self.bytes, &Entry::DirectoryEnd { attributes });
            }
            // Files that are worth keeping in part, and offers.
            2 | 3 if kind & 0xc0 == 0x80 => self.file(input, true),
            2 | 3 if kind & 0xc0 == 0xc0 => self.offer(input),
            2 | 3 => self.file(input, false),
            4 => {
                let name = self.name(input);
                let attributes = attributes(input);
                let target = match input.byte() {
                    0 => b"..".to_vec(),
                    1 => b"../..".to_vec(),
                    2 => b"../link".to_vec(),
                    3 => b"../link/kept".to_vec(),
                    4 => b"link".to_vec(),
                    5 => b"a/b".to_vec(),
                    6 => b"../a/b".to_vec(),
                    8 => b"a/../b".to_vec(),
                    9 => b"link/../..".to_vec(),
                    10 => b"a/b/../../..".to_vec(),
                    7 => b"/tmp".to_vec(),
                    len => input.take(usize::from(len & 15)).to_vec(),
                };
                let make = |name| Entry::Symlink {
                    name,
                    attributes,
                    target,
                };
                self.entry(make, &name);
            }
            5 if kind & 0xc0 == 0x40 => {
                let name = self.name(input);
                let path = self.name(input);
                let path = match input.rarely(4) {
                    true => [b"dir/", &path[..]].concat(),
                    false => path,
                };
                self.entry(|name| Entry::HardLink { name, path }, &name);
            }
            5 if kind & 0xc0 == 0x80 => {
                let (uid, gid) = (input.byte(), input.byte());
                let user = input.take(usize::from(uid & 7)).to_vec();
                let group = Vec::new();
                put_entry(
                    &mut self.bytes,
                    &Entry::Owner(Owner {
                        uid: uid.into(),
                        gid: gid.into(),
                        user,
                        group,
                    }),
                );
            }
            5 if kind & 0xc0 == 0xc0 => {
                let mut xattrs = Xattrs::default();
                let length = usize::from(input.byte());
                let value = input.take(length).to_vec();
                xattrs.add(b"user.a".to_vec(), value).expect("it is short");
                put_entry(&mut self.bytes, &Entry::Xattrs(xattrs));
            }
            // Claims to keep files, whether or not they were offered.
            5 if kind & 0x30 == 0x30 => {
                let (first, count) = (input.byte(), input.byte());
                let (first, count) = (u64::from(first & 7), 1 + u32::from(count >> 6));
                put_entry(&mut self.bytes, &Entry::Kept { first, count });
                self.totals.entries += u64::from(count);
                self.totals.bytes = self.totals.bytes.saturating_add(4 * u64::from(count));
            }
            5 => {
                let Totals { entries, bytes } = self.totals;
                put_entry(&mut self.bytes, &Entry::End { entries, bytes });
            }
            _ => {
                let raw = input.take(usize::from(kind >> 3));
                self.bytes.extend_from_slice(raw);
            }
        }
    }

    /// An entry, if it can be written at all.
    fn entry(&mut self, make: impl FnOnce(Name) -> Entry, name: &[u8]) {
        if let Ok(name) = Name::new(name) {
            put_entry(&mut self.bytes, &make(name));
            self.totals.entries += 1;
        }
    }

    /// An offer and, now and then, the question about all of them.
    fn offer(&mut self, input: &mut Input<'_>) {
        let name = self.name(input);
        let path = match input.rarely(4) {
            true => [b"dir/", &name[..]].concat(),
            false => name,
        };
        let (size, source) = self.source(input);
        let offered = Offered {
            path,
            size,
            attributes: attributes(input),
            source,
        };
        put_entry(&mut self.bytes, &Entry::Offer(self.series.offer(&offered)));
        if input.rarely(2) {
            put_entry(&mut self.bytes, &Entry::Ask);
        }
    }

    /// A size and a source: those of what is there in part as a rule.
    fn source(&mut self, input: &mut Input<'_>) -> (u64, Option<SourceId>) {
        match input.byte() {
            0..0xc0 => {
                self.knows = true;
                (THERE_BYTES + 1, Some(known()))
            }
            0xc0..0xe0 => (4, SourceId::from_bytes([1; 16])),
            _ => (input.any(), None),
        }
    }

    fn file(&mut self, input: &mut Input<'_>, resumable: bool) {
        let name = self.name(input);
        let attributes = attributes(input);
        let mut contents = Vec::new();
        let mut digest = ContentDigest::default();
        let mut size = 0u64;
        let (whole, source) = match resumable {
            true => self.source(input),
            false => (0, None),
        };
        for _ in 0..input.below(4) {
            match input.byte() {
                0xd0 if resumable => {
                    let seal = Seal([1; 32]);
                    put_piece(&mut contents, &Piece::Checkpoint { seal });
                }
                0xd1..0xd8 if resumable => {
                    let until = THERE_BYTES;
                    put_piece(&mut contents, &Piece::Reuse { until });
                    digest = ContentDigest::from(&there().sealed.checkpoint);
                    size = until;
                }
                0xd8..0xe0 if resumable => {
                    put_piece(&mut contents, &Piece::Same);
                    size = whole;
                }
                0xe0.. => {
                    let hole = input.any().max(1);
                    put_piece(&mut contents, &Piece::Hole { bytes: hole });
                    digest.hole(size, hole);
                    size = size.saturating_add(hole);
                }
                len => {
                    let data = input.take(usize::from(len));
                    let bytes = data.len() as u64;
                    put_piece(&mut contents, &Piece::Data { bytes });
                    contents.extend_from_slice(data);
                    digest.data(data);
                    size = size.saturating_add(data.len() as u64);
                }
            }
        }
        let mut digest = digest.finish();
        // Damaged, or of another size than announced, now and then.
        digest[0] ^= u8::from(input.rarely(16));
        let announced = if input.rarely(16) { input.any() } else { size };
        let stream = input.rarely(4);
        let make = |name| match stream {
            true => Entry::Stream { name, attributes },
            false => Entry::File {
                name,
                attributes,
                size: announced,
                source,
            },
        };
        self.entry(make, &name);
        self.bytes.append(&mut contents);
        let last = match input.rarely(16) {
            true => Piece::Abort {
                reason: "gone".to_owned(),
            },
            false => Piece::End { digest },
        };
        put_piece(&mut self.bytes, &last);
        self.totals.bytes = self.totals.bytes.saturating_add(announced);
    }

    fn name(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let kind = input.byte();
        let name: &[u8] = match kind & 7 {
            0..3 => &b"abc"[usize::from(kind & 7)..][..1],
            3 => b"dir",
            4 => b"link",
            5 => b"file",
            6 => b".sphx-unfinished",
            _ => input.take(usize::from(kind >> 4)),
        };
        name.to_vec()
    }
}

fn attributes(input: &mut Input<'_>) -> Attributes {
    match input.byte() {
        0..0xf0 => Attributes {
            mode: 0o755,
            mtime_s: 0,
            mtime_ns: 0,
        },
        _ => Attributes {
            mode: input.number(2) as u16 & 0o7777,
            mtime_s: input.any() as i64,
            mtime_ns: (input.number(4) % 1_000_000_000) as u32,
        },
    }
}
