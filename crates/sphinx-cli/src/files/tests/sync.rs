//! Synchronizing: a hostile sender, a hostile receiver, and what is not read.

use std::collections::BTreeSet;
use std::os::unix::fs::chown;
use std::sync::Arc;

use rustix::process::{Uid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_res_uid,
};

use super::*;
use crate::files::chunks::{Chunk, Chunks};
use crate::files::offers::{Offered, SYNC_OFFERS_MAX, Series};
use crate::files::owners::Owner;
use crate::files::reader::Reader;
use crate::files::replies::Replies;
use crate::files::wire::{Change, Reply, put_reply};
use crate::files::xattrs::Xattrs;
use crate::files::{Expected, Sync, SyncRequest};

const DELETE: fn() -> SyncRequest = || SyncRequest {
    contents: true,
    delete: true,
    ..SyncRequest::default()
};

const ATTRIBUTES: Attributes = Attributes {
    mode: 0o700,
    mtime_s: 1_000_000_000,
    mtime_ns: 0,
};

/// Who owns nothing.
const NOBODY: u32 = 65_534;

/// A transfer of these records; the directory's own begin and end are around them.
fn records(inside: &[Entry], pieces: &[Piece], end: &[Entry]) -> Vec<u8> {
    let name = |name: &str| Name::new(name.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    put_preamble(&mut bytes, Announced::default());
    let directory = Entry::Directory {
        name: name("contents"),
        mode: 0o700,
    };
    put_entry(&mut bytes, &directory);
    for entry in inside {
        put_entry(&mut bytes, entry);
        if matches!(entry, Entry::File { .. }) {
            pieces.iter().for_each(|piece| put_piece(&mut bytes, piece));
        }
    }
    let attributes = ATTRIBUTES;
    put_entry(&mut bytes, &Entry::DirectoryEnd { attributes });
    end.iter().for_each(|entry| put_entry(&mut bytes, entry));
    bytes
}

fn file(size: u64) -> Entry {
    Entry::File {
        name: Name::new(b"f").unwrap(),
        attributes: ATTRIBUTES,
        size,
        source: None,
    }
}

/// What the receiver makes of it.
fn receive_into(to: &Path, asked: SyncRequest, bytes: &[u8]) -> Outcome<Transferred> {
    let sync = Arc::new(Sync::new(asked).unwrap());
    receive_at(OutputDir::synchronized(to, true, sync).unwrap(), bytes)
}

fn receive_at(output: OutputDir, bytes: &[u8]) -> Outcome<Transferred> {
    let (progress, reporter) = (Progress::default(), quiet());
    receive_tree(
        Arrived { bytes, piece: 1000 },
        &Destination::Directory(output),
        &|_| Ok(None),
        &mut |_| Ok(()),
        &progress,
        &reporter,
    )
}

fn end(entries: u64, bytes: u64) -> Entry {
    Entry::End { entries, bytes }
}

#[test]
fn nothing_is_deleted_unless_everything_was_read() {
    let Dirs { to, .. } = &dirs();
    write(to.join("old"), b"x");
    receive_into(to, DELETE(), &records(&[], &[], &[end(1, 0)])).unwrap();
    assert_eq!(names(to), ["old"]);
    // Nor unless it was asked for, whatever the sender says.
    let bytes = records(&[], &[], &[Entry::Delete, end(1, 0)]);
    let keep = SyncRequest {
        contents: true,
        ..SyncRequest::default()
    };
    receive_into(to, keep, &bytes).unwrap();
    assert_eq!(names(to), ["old"]);
    let before = fs::metadata(to).unwrap().permissions().mode() & 0o777;
    assert_eq!(before, 0o700);
    receive_into(to, DELETE(), &bytes).unwrap();
    assert_eq!(names(to), [] as [&str; 0]);
    assert_eq!(fs::metadata(to).unwrap().mtime(), 1_000_000_000);
}

/// Directories of somebody else's, which may be written to but not be given anything.
#[test]
fn a_directory_that_keeps_its_attributes_stops_nothing_else() {
    if !geteuid().is_root() {
        sphinx_testing::skipped!("only root can be two users");
        return;
    }
    let name = |name: &str| Name::new(name.as_bytes()).unwrap();
    let empty = *blake3::hash(b"").as_bytes();
    let inside = [
        Entry::Directory {
            name: name("asub"),
            mode: 0o700,
        },
        file(0),
        Entry::DirectoryEnd {
            attributes: ATTRIBUTES,
        },
        file(0),
    ];
    let pieces = [Piece::End { digest: empty }];
    let bytes = &records(&inside, &pieces, &[Entry::Delete, end(4, 0)]);
    for foreign in ["asub", "."] {
        let Dirs { _root, to, .. } = &dirs();
        fs::create_dir(to.join("asub")).unwrap();
        write(to.join("old"), b"x");
        for directory in [".", "asub"] {
            let path = to.join(directory);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
            if directory != foreign {
                chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        // Twice: what is there already changes nothing about it.
        for _ in 0..2 {
            let sync = Arc::new(Sync::new(DELETE()).unwrap());
            let output = OutputDir::synchronized(to, true, sync).unwrap();
            let received = thread::scope(|scope| {
                let as_nobody = || {
                    let nobody = Uid::from_raw(NOBODY);
                    set_thread_res_uid(nobody, nobody, nobody).unwrap();
                    receive_at(output, bytes)
                };
                scope.spawn(as_nobody).join().unwrap()
            });
            let done = received.unwrap();
            assert_eq!((done.counts.skipped, done.counts.files), (0, 2));
            assert_eq!(done.exit_code(), Ok(7));
            let shown = match foreign {
                "." => to.to_string_lossy(),
                _ => foreign.into(),
            };
            let message = format!(
                "cannot give its attributes to {shown}, which is in place: operation not permitted"
            );
            assert_eq!(done.first_skip.unwrap().message, message);
            assert_eq!(names(to), ["asub", "f"]);
            assert_eq!(names(&to.join("asub")), ["f"]);
        }
        for directory in [".", "asub"] {
            let there = fs::metadata(to.join(directory)).unwrap();
            let is_like = (there.mtime(), there.mode() & 0o777) == (1_000_000_000, 0o700);
            assert_eq!(is_like, directory != foreign, "{directory}");
        }
    }
}

/// What this thread makes of it as a user who owns what there is, and nothing more.
fn receive_as_nobody(to: &Path, asked: SyncRequest, bytes: &[u8]) -> Outcome<Transferred> {
    thread::scope(|scope| {
        let as_nobody = || {
            let nobody = Uid::from_raw(NOBODY);
            set_thread_res_uid(nobody, nobody, nobody).unwrap();
            receive_into(to, asked, bytes)
        };
        scope.spawn(as_nobody).join().unwrap()
    })
}

/// Gives a file or a directory to nobody, with these permissions.
fn disown(path: &Path, mode: u32) {
    chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_keeps_its_owner_out_is_made_the_same_and_deleted_all_the_same() {
    if !geteuid().is_root() {
        sphinx_testing::skipped!("only root can be two users");
        return;
    }
    let directory = |name: &str| Entry::Directory {
        name: Name::new(name.as_bytes()).unwrap(),
        mode: 0o555,
    };
    let attributes = Attributes {
        mode: 0o555,
        ..ATTRIBUTES
    };
    let back = || Entry::DirectoryEnd { attributes };
    let kept = Entry::Kept { first: 1, count: 1 };
    let inside = [offers(&["f"]), vec![kept, directory("d"), back()]].concat();
    let inside = [inside, vec![directory("e"), back()]].concat();
    let bytes = &records(&inside, &[], &[Entry::Delete, end(4, 8)]);
    for mode in [0o555, 0o400, 0] {
        let Dirs { _root, to, .. } = &dirs();
        fs::set_permissions(_root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for path in ["d/old/older", "e", "gone/d"] {
            fs::create_dir_all(to.join(path)).unwrap();
        }
        for name in ["d/old/f", "e/f", "gone/d/f"] {
            write(to.join(name), b"x");
        }
        write_with_time(to.join("f"), b"12345678");
        for path in ["f", "d/old/older", "d/old", "d", "e", "gone/d", "gone", "."] {
            disown(&to.join(path), mode);
        }
        let trial = SyncRequest {
            dry_run: true,
            ..DELETE()
        };
        if mode == 0o555 {
            let done = receive_as_nobody(to, trial, bytes).unwrap();
            assert_eq!(done.exit_code(), Ok(0), "{:?}", done.first_skip);
            assert_eq!(names(to), ["d", "e", "f", "gone"]);
            let gone = fs::metadata(to.join("gone")).unwrap().permissions().mode();
            assert_eq!(gone & 0o7777, mode);
        }
        let done = receive_as_nobody(to, DELETE(), bytes).unwrap();
        assert_eq!(done.exit_code(), Ok(0), "{mode:o}: {:?}", done.first_skip);
        assert_eq!(names(to), ["d", "e", "f"]);
        for (name, expected) in [("d", 0o555), ("e", 0o555), ("f", 0o700)] {
            let there = fs::metadata(to.join(name)).unwrap();
            assert_eq!(there.permissions().mode() & 0o7777, expected, "{name}");
            assert_eq!(there.mtime(), ATTRIBUTES.mtime_s, "{name}");
        }
        assert_eq!(names(&to.join("d")), [] as [&str; 0]);
        assert_eq!(names(&to.join("e")), [] as [&str; 0]);
    }
    // What is not deleted keeps what it had, and so does what is somebody else's.
    let Dirs { _root, to, .. } = &dirs();
    fs::set_permissions(_root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for path in ["d", "e", "own", "theirs"] {
        fs::create_dir(to.join(path)).unwrap();
        write(to.join(path).join("f"), b"x");
    }
    write_with_time(to.join("f"), b"12345678");
    for path in ["f", "d", "e", "own", "."] {
        disown(&to.join(path), 0o100);
    }
    fs::set_permissions(to.join("theirs"), fs::Permissions::from_mode(0o700)).unwrap();
    let done = receive_as_nobody(to, DELETE(), bytes).unwrap();
    assert_eq!(done.exit_code(), Ok(7));
    assert!(
        done.first_skip
            .unwrap()
            .message
            .contains("nothing is deleted")
    );
    for (name, mode) in [("own", 0o100), ("theirs", 0o700)] {
        let there = fs::metadata(to.join(name)).unwrap().permissions().mode();
        assert_eq!(there & 0o7777, mode, "{name}");
        assert_eq!(names(&to.join(name)), ["f"]);
    }
}

/// As where the file system keeps no owners, or a server lets nobody give them.
#[test]
fn where_no_owner_can_be_given_files_are_put_in_place() {
    if !geteuid().is_root() {
        sphinx_testing::skipped!("only root is asked to give owners");
        return;
    }
    let Dirs { _root, to, .. } = &dirs();
    let name = |name: &str| Name::new(name.as_bytes()).unwrap();
    let owner = Owner {
        uid: NOBODY,
        gid: NOBODY,
        user: Vec::new(),
        group: Vec::new(),
    };
    let digest = *blake3::hash(b"").as_bytes();
    let kept = Entry::Kept { first: 1, count: 1 };
    let link = Entry::Symlink {
        name: name("link"),
        attributes: ATTRIBUTES,
        target: b"f".to_vec(),
    };
    write_with_time(to.join("kept"), b"12345678");
    let inside = [
        offers(&["kept"]),
        vec![Entry::Owner(owner), file(0), kept, link],
    ];
    let pieces = [Piece::End { digest }];
    let bytes = records(&inside.concat(), &pieces, &[end(4, 8)]);
    let received = thread::scope(|scope| {
        let without_the_right = || {
            let sets = capabilities(None).unwrap();
            let effective = sets.effective - CapabilitySet::CHOWN;
            set_capabilities(None, CapabilitySets { effective, ..sets }).unwrap();
            receive_into(to, DELETE(), &bytes)
        };
        scope.spawn(without_the_right).join().unwrap()
    });
    let done = received.unwrap();
    assert_eq!((done.counts.files, done.counts.skipped), (2, 0));
    assert_eq!(done.exit_code(), Ok(7));
    let why = "f is in place, but without its owner: Operation not permitted (os error 1)";
    assert_eq!(done.first_skip.unwrap().message, why);
    assert_eq!(names(to), ["f", "kept", "link"]);
    for name in ["f", "kept"] {
        let there = fs::metadata(to.join(name)).unwrap();
        let is_like = (there.mtime(), there.mode() & 0o777);
        assert_eq!(is_like, (1_000_000_000, 0o700), "{name}");
        assert_eq!(there.uid(), 0);
    }
}

#[test]
fn deleting_follows_no_link() {
    let Dirs { from, to, .. } = &dirs();
    write(from.join("kept"), b"x");
    symlink(from, to.join("link")).unwrap();
    fs::create_dir(to.join("d")).unwrap();
    symlink(from, to.join("d/link")).unwrap();
    receive_into(
        to,
        DELETE(),
        &records(&[], &[], &[Entry::Delete, end(1, 0)]),
    )
    .unwrap();
    assert_eq!(names(to), [] as [&str; 0]);
    assert_eq!(names(from), ["kept"]);
}

#[test]
fn a_hostile_sender_gets_nothing_that_was_not_asked_for() {
    let refused = |asked: SyncRequest, bytes: &[u8]| {
        let Dirs { to, .. } = &dirs();
        write(to.join("f"), b"12345678");
        let failure = receive_into(to, asked, bytes).unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Protocol, "{failure}");
        assert_eq!(names(to), ["f"]);
        assert_eq!(fs::read(to.join("f")).unwrap(), b"12345678");
    };
    // More bytes would be copied than the receiver's file has.
    let copy = Piece::Copy { from: 0, bytes: 8 };
    let pieces = [copy.clone(), copy.clone()];
    refused(DELETE(), &records(&[file(16)], &pieces, &[]));
    // Contents in a trial, and a trial where there is none.
    let trial = SyncRequest {
        dry_run: true,
        ..DELETE()
    };
    refused(trial, &records(&[file(8)], &[copy], &[]));
    refused(DELETE(), &records(&[file(8)], &[Piece::Trial], &[]));
    // Deleting before everything has come.
    refused(DELETE(), &records(&[Entry::Delete], &[], &[]));
    // One that was longer when its chunks were told.
    let Dirs { to, .. } = &dirs();
    write(to.join("f"), b"12345678");
    let pieces = [
        Piece::Copy { from: 0, bytes: 8 },
        Piece::Copy { from: 8, bytes: 4 },
        Piece::End { digest: [0; 32] },
    ];
    let bytes = records(&[file(12)], &pieces, &[end(2, 12)]);
    let done = receive_into(to, DELETE(), &bytes).unwrap();
    assert_eq!(done.counts.skipped, 1);
    assert_eq!(fs::read(to.join("f")).unwrap(), b"12345678");
    // What is not there is left out, and so is what is something else than it was said to be.
    let Dirs { to, .. } = &dirs();
    write(to.join("f"), b"12345678");
    for pieces in [
        &[
            Piece::Copy { from: 4, bytes: 8 },
            Piece::End { digest: [0; 32] },
        ][..],
        &[
            Piece::Copy { from: 0, bytes: 8 },
            Piece::End { digest: [0; 32] },
        ],
    ] {
        let bytes = records(&[file(8)], pieces, &[end(2, 8)]);
        let done = receive_into(to, DELETE(), &bytes).unwrap();
        assert_eq!(done.counts.skipped, 1);
        assert_eq!(names(to), ["f"]);
        assert_eq!(fs::read(to.join("f")).unwrap(), b"12345678");
    }
}

/// What is beside the directory that was asked for, and what both ends leave out.
#[test]
fn a_hostile_sender_gets_at_nothing_that_was_not_asked_for() {
    let asked = |rule: &str| SyncRequest {
        checksum: true,
        filter: vec![rule.as_bytes().to_vec()],
        ..SyncRequest::default()
    };
    let receive = |rule: &str, bytes: &[u8]| {
        let dirs = dirs();
        fs::create_dir_all(dirs.to.join("contents/keys")).unwrap();
        for path in ["beside", "contents/f", "contents/keys/k"] {
            write(dirs.to.join(path), b"secret");
        }
        let sync = Arc::new(Sync::new(asked(rule)).unwrap());
        let output = OutputDir::synchronized(&dirs.to, true, sync).unwrap();
        let expected = Expected {
            names: BTreeSet::from([b"contents".to_vec()]),
            directories: true,
        };
        let mut told = 0;
        let received = receive_tree(
            Arrived { bytes, piece: 1000 },
            &Destination::Directory(output.expecting(expected)),
            &|_| Ok(None),
            &mut |replies: &[Reply]| {
                let digests = replies
                    .iter()
                    .filter(|it| matches!(it, Reply::Digest { .. }));
                told += digests.count();
                Ok(())
            },
            &Progress::default(),
            &quiet(),
        );
        (dirs, received, told)
    };
    // A protected file is not told of, even where an offer is like it.
    for (rule, path, expected) in [
        ("- x", "contents/f", 1),
        ("- x", "contents/keys/k", 1),
        ("- x", "beside", 0),
        ("- f", "contents/f", 0),
        ("- keys/", "contents/keys/k", 0),
    ] {
        let offer = Series::default().offer(&Offered {
            path: path.as_bytes().to_vec(),
            size: 6,
            attributes: ATTRIBUTES,
            source: None,
        });
        let bytes = records(&[Entry::Offer(offer), Entry::Ask], &[], &[end(1, 0)]);
        let (_dirs, received, told) = receive(rule, &bytes);
        received.unwrap();
        assert_eq!(told, expected, "{rule}: {path}");
    }
    // A hard link to a protected file is refused.
    for (rule, path, is_allowed) in [
        ("- x", "contents/f", true),
        ("- x", "beside", false),
        ("- f", "contents/f", false),
        ("- keys/", "contents/keys/k", false),
    ] {
        let link = Entry::HardLink {
            name: Name::new(b"link").unwrap(),
            path: path.as_bytes().to_vec(),
        };
        let (dirs, received, _) = receive(rule, &records(&[link], &[], &[end(2, 0)]));
        let is_refused = received.is_err_and(|failure| failure.kind == ErrorKind::Protocol);
        assert_eq!(is_refused, !is_allowed, "{rule}: {path}");
        assert_eq!(dirs.to.join("contents/link").exists(), is_allowed);
    }
    // A protected file is not replaced.
    let empty = Piece::End {
        digest: *blake3::hash(b"").as_bytes(),
    };
    for (rule, skipped, left) in [("- f", 1, &b"secret"[..]), ("- x", 0, &b""[..])] {
        let bytes = records(&[file(0)], std::slice::from_ref(&empty), &[end(2, 0)]);
        let (dirs, received, _) = receive(rule, &bytes);
        assert_eq!(received.unwrap().counts.skipped, skipped, "{rule}");
        assert_eq!(fs::read(dirs.to.join("contents/f")).unwrap(), left);
    }
    // Neither a link nor a directory gets its name.
    let name = || Name::new(b"f").unwrap();
    let link = [Entry::Symlink {
        name: name(),
        attributes: ATTRIBUTES,
        target: b"x".to_vec(),
    }];
    let directory = [
        Entry::Directory {
            name: name(),
            mode: 0o700,
        },
        Entry::DirectoryEnd {
            attributes: ATTRIBUTES,
        },
    ];
    for inside in [&link[..], &directory] {
        for (rule, skipped) in [("- f", 1), ("- x", 0)] {
            let (dirs, received, _) = receive(rule, &records(inside, &[], &[end(2, 0)]));
            assert_eq!(received.unwrap().counts.skipped, skipped, "{rule}");
            let there = fs::symlink_metadata(dirs.to.join("contents/f")).unwrap();
            assert_eq!(there.is_file(), skipped == 1, "{rule}: {inside:?}");
        }
    }
}

/// Where contents are compared, much may be read before its turn comes.
#[test]
fn what_changes_after_it_was_read_keeps_its_time() {
    let asked = SyncRequest {
        contents: true,
        checksum: true,
        ..SyncRequest::default()
    };
    for changes in [false, true] {
        let Dirs { to, .. } = &dirs();
        write_with_time(to.join("f"), b"as read!");
        let offer = Series::default().offer(&Offered {
            path: b"f".to_vec(),
            size: 8,
            attributes: Attributes {
                mtime_s: 999_999_999,
                ..ATTRIBUTES
            },
            source: None,
        });
        let kept = Entry::Kept { first: 1, count: 1 };
        let bytes = &records(&[Entry::Offer(offer), Entry::Ask, kept], &[], &[end(2, 8)]);
        let sync = Arc::new(Sync::new(asked.clone()).unwrap());
        let received = receive_tree(
            Arrived { bytes, piece: 1000 },
            &Destination::Directory(OutputDir::synchronized(to, true, sync).unwrap()),
            &|_| Ok(None),
            &mut |replies: &[Reply]| {
                if changes && replies.iter().any(|it| matches!(it, Reply::Digest { .. })) {
                    write(to.join("f"), b"written!");
                }
                Ok(())
            },
            &Progress::default(),
            &quiet(),
        );
        assert_eq!(received.unwrap().counts.skipped, u64::from(changes));
        let has_its_time = fs::metadata(to.join("f")).unwrap().mtime() == 999_999_999;
        assert_eq!(has_its_time, !changes);
    }
}

/// As rsync: a directory that comes with its name is a path like others.
#[test]
fn a_directory_that_is_excluded_itself_is_not_sent() {
    let Dirs { from, .. } = &dirs();
    write(from.join("f"), b"x");
    for (rule, contents, entries) in [
        ("- /from", false, 0),
        ("- *", false, 0),
        ("- f", false, 1),
        ("- /from", true, 2),
        ("- *", true, 1),
    ] {
        let asked = SyncRequest {
            contents,
            filter: vec![rule.as_bytes().to_vec()],
            ..SyncRequest::default()
        };
        let sync = Arc::new(Sync::new(asked).unwrap());
        let roots = roots::synchronized(from.clone(), b"from".to_vec(), sync).unwrap();
        let announced = roots::announce(&roots).unwrap();
        assert_eq!(announced.entries, entries, "{rule}, {contents}");
    }
}

#[test]
fn lists_of_chunks_are_bounded() {
    let chunk = Chunk {
        bytes: 7,
        hash: [1; 16],
    };
    let list = |mean_log2, count| {
        let list = vec![chunk; count];
        let mut bytes = Vec::new();
        let chunks = Chunks { mean_log2, list };
        put_reply(&mut bytes, &Reply::Chunks { offer: 1, chunks });
        bytes
    };
    let read = |bytes: &[u8]| Reader::new(Arrived { bytes, piece: 5 }, 64).reply();
    assert!(read(&list(16, 1000)).is_ok());
    for mut bytes in [list(15, 1), list(23, 1), list(16, 2), list(16, 2)] {
        // A list with an empty chunk, a chunk that is too long, or too many chunks.
        match bytes.len() {
            34 => {}
            _ => bytes[10..14].copy_from_slice(&u32::MAX.to_be_bytes()),
        }
        assert!(read(&bytes).is_err());
    }
    for length in [0_u32, (4 << 16) + 1] {
        let mut bytes = list(16, 1);
        bytes[14..18].copy_from_slice(&length.to_be_bytes());
        assert!(read(&bytes).is_err(), "{length}");
    }
}

#[test]
fn a_sender_that_could_not_read_something_lets_nothing_be_deleted() {
    let Dirs { from, .. } = &dirs();
    write(from.join("a"), &[7; 300_000]);
    write(from.join("b"), b"x");
    let sync = Arc::new(Sync::new(DELETE()).unwrap());
    let roots = roots::synchronized(from.clone(), b"contents".to_vec(), sync).unwrap();
    let last = |vanishes: bool| {
        let mut kept = Vanishing {
            kept: Kept::default(),
            path: vanishes.then(|| from.join("b")),
        };
        let (progress, reporter) = (Progress::default(), quiet());
        let announced = Announced::default();
        let key = SourceKey::of(1);
        let sent = send_tree(
            &mut kept, &roots, announced, &key, None, &progress, &reporter,
        );
        assert_eq!(sent.unwrap().first_skip.is_some(), vanishes);
        // The stream ends with a type byte and two numbers, and before them DELETE may stand.
        let bytes = kept.kept.0;
        bytes[bytes.len() - 18] == crate::files::wire::DELETE
    };
    assert!(last(false));
    assert!(!last(true));
}

/// Removes a file while another one is sent, when the names in their directory have been read.
struct Vanishing {
    kept: Kept,
    path: Option<PathBuf>,
}

impl Outgoing for Vanishing {
    fn write_all(&mut self, data: &[u8]) -> Outcome<()> {
        if let Some(path) = self.path.take_if(|_| data.len() > 1000) {
            fs::remove_file(path).unwrap();
        }
        self.kept.write_all(data)
    }
    fn flush(&mut self) -> Outcome<()> {
        Ok(())
    }
    fn finish(&mut self) -> Outcome<()> {
        Ok(())
    }
    fn wait_delivered(&mut self) -> Outcome<()> {
        Ok(())
    }
}

#[test]
fn other_names_of_files_lead_nowhere_else() {
    let link = |name: &[u8], path: &[u8]| Entry::HardLink {
        name: Name::new(name).unwrap(),
        path: path.to_vec(),
    };
    let of = |path: &[u8]| records(&[link(b"h", path)], &[], &[end(2, 0)]);
    let Dirs { from, to, .. } = &dirs();
    write(from.join("secret"), b"x");
    symlink(from, to.join("link")).unwrap();
    symlink(from.join("secret"), to.join("file")).unwrap();
    fs::create_dir(to.join("d")).unwrap();
    write(to.join("f"), b"x");
    // Names that nothing can have.
    for path in [&b""[..], b"/etc/passwd", b"../f", b"d/../f", b"d//f", b"."] {
        let failure = receive_into(to, DELETE(), &of(path)).unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Protocol, "{failure}");
    }
    // What is not a file of the tree, and what is not there.
    for path in [&b"link/secret"[..], b"file", b"d", b"gone", b"f/f"] {
        let done = receive_into(to, DELETE(), &of(path)).unwrap();
        assert_eq!(done.counts.skipped, 1, "{path:?}");
        assert!(!to.join("h").exists());
    }
    receive_into(to, DELETE(), &of(b"f")).unwrap();
    let inode = |name: &str| fs::metadata(to.join(name)).unwrap().ino();
    assert_eq!(inode("h"), inode("f"));
    assert_eq!(names(to), ["d", "f", "file", "h", "link"]);
    assert_eq!(names(from), ["secret"]);
}

#[test]
fn only_who_synchronizes_is_told_of_owners_attributes_and_other_names() {
    let owner = Owner {
        uid: 0,
        gid: 0,
        user: Vec::new(),
        group: Vec::new(),
    };
    let mut xattrs = Xattrs::default();
    xattrs.add(b"user.a".to_vec(), b"1".to_vec()).unwrap();
    let name = Name::new(b"h").unwrap();
    let path = b"f".to_vec();
    for entry in [
        Entry::Owner(owner),
        Entry::Xattrs(xattrs),
        Entry::HardLink { name, path },
    ] {
        let Dirs { to, .. } = &dirs();
        let output = OutputDir::open(to, Rules::default()).unwrap();
        let bytes = &records(&[entry], &[], &[]);
        let (progress, reporter) = (Progress::default(), quiet());
        let received = receive_tree(
            Arrived { bytes, piece: 1000 },
            &Destination::Directory(output),
            &|_| Ok(None),
            &mut |_| Ok(()),
            &progress,
            &reporter,
        );
        assert_eq!(received.unwrap_err().kind, ErrorKind::Protocol);
    }
}

/// A file with the time of `ATTRIBUTES`.
fn write_with_time(path: PathBuf, contents: &[u8]) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = fs::File::options().write(true).open(write(path, contents));
    file.unwrap().set_modified(time).unwrap();
}

/// Offers of these files, of eight bytes and the time of `ATTRIBUTES`, and the question about them.
fn offers(paths: &[&str]) -> Vec<Entry> {
    let mut series = Series::default();
    let offer = |path: &&str| {
        Entry::Offer(series.offer(&Offered {
            path: path.as_bytes().to_vec(),
            size: 8,
            attributes: ATTRIBUTES,
            source: None,
        }))
    };
    paths.iter().map(offer).chain([Entry::Ask]).collect()
}

#[test]
fn a_file_is_kept_only_where_it_was_said_to_be() {
    let directory = |name: &str| Entry::Directory {
        name: Name::new(name.as_bytes()).unwrap(),
        mode: 0o700,
    };
    let back = || Entry::DirectoryEnd {
        attributes: ATTRIBUTES,
    };
    let kept = |first, count| Entry::Kept { first, count };
    let receive = |asked: SyncRequest, inside: Vec<Entry>, files: u64| {
        let Dirs { to, .. } = &dirs();
        fs::create_dir(to.join("d")).unwrap();
        for name in ["f", "g", "d/f"] {
            write_with_time(to.join(name), b"12345678");
        }
        write(to.join("other"), b"12345678");
        let inside = [offers(&["f", "g", "d/f", "other"]), inside].concat();
        let directories = inside
            .iter()
            .filter(|entry| matches!(entry, Entry::Directory { .. }));
        let entries = 1 + files + directories.count() as u64;
        let bytes = records(&inside, &[], &[end(entries, 8 * files)]);
        let received = receive_into(to, asked, &bytes);
        let mode = |name: &str| fs::metadata(to.join(name)).unwrap().permissions().mode() & 0o777;
        assert!(received.is_ok() || mode("d/f") != 0o700);
        assert!(received.is_err() || mode("f") == 0o700);
        received.map(|received| received.counts)
    };
    // Each once, in its place; those that are passed over are over.
    let good = vec![kept(1, 2), directory("d"), kept(3, 1), back()];
    let counts = receive(DELETE(), good.clone(), 3).unwrap();
    assert_eq!(
        (counts.files, counts.files_present, counts.skipped),
        (3, 3, 0)
    );
    assert_eq!(receive(DELETE(), vec![kept(1, 1)], 1).unwrap().files, 1);
    for wrong in [
        vec![kept(0, 1)],
        vec![kept(1, 3)],
        vec![kept(3, 1)],
        vec![kept(4, 1)],
        vec![kept(5, 1)],
        vec![kept(u64::MAX, 2)],
        vec![kept(2, 1), kept(1, 1)],
        vec![kept(1, 1), kept(1, 1)],
        vec![directory("d"), kept(1, 1), back()],
    ] {
        let failure = receive(DELETE(), wrong.clone(), 1).unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Protocol, "{wrong:?}: {failure}");
    }
}

#[test]
fn of_what_may_be_kept_only_the_last_are_remembered() {
    let Dirs { to, .. } = &dirs();
    write_with_time(to.join("f"), b"12345678");
    for (first, is_known) in [(1, false), (2, true)] {
        let mut inside = offers(&vec!["f"; 1 + SYNC_OFFERS_MAX]);
        inside.push(Entry::Kept { first, count: 1 });
        let bytes = records(&inside, &[], &[end(2, 8)]);
        assert_eq!(receive_into(to, DELETE(), &bytes).is_ok(), is_known);
    }
}

#[test]
fn a_file_that_changes_after_it_was_offered_is_sent() {
    let Dirs { from, to, .. } = &dirs();
    for directory in [from, to] {
        write_with_time(directory.join("a"), b"before");
        write_with_time(directory.join("b"), b"before");
    }
    let (near, far) = pair();
    let sync = Arc::new(Sync::new(DELETE()).unwrap());
    let output = OutputDir::synchronized(to, true, sync.clone()).unwrap();
    let receiver = thread::spawn(move || {
        let progress = Progress::default();
        let destination = Destination::Directory(output);
        receive(&far, &destination, &|_| Ok(None), &progress, &quiet())
    });
    let roots = roots::synchronized(from.clone(), b"contents".to_vec(), sync).unwrap();
    let mut out = Changing {
        out: near.open_uni().unwrap(),
        path: from.join("b"),
        contents: b"later!".to_vec(),
        writes: 0,
    };
    let replies = Replies::listen(near.clone(), quiet(), true).unwrap();
    let (key, progress) = (SourceKey::of(1), Progress::default());
    send_tree(
        &mut out,
        &roots,
        Announced::default(),
        &key,
        Some(&replies),
        &progress,
        &quiet(),
    )
    .unwrap();
    let (counts, _) = replies.wait().unwrap();
    near.close(0, "done");
    receiver.join().unwrap().unwrap();
    assert_eq!((counts.files, counts.files_present), (2, 1));
    assert_eq!(fs::read(to.join("b")).unwrap(), b"later!");
    let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    assert_eq!(modified(&to.join("b")), modified(&from.join("b")));
}

/// Changes a file when it has been offered and its turn has not come: with the second thing that is written, as the
/// preamble is the first.
pub(super) struct Changing<O> {
    pub(super) out: O,
    pub(super) path: PathBuf,
    pub(super) contents: Vec<u8>,
    pub(super) writes: usize,
}

impl<O: Outgoing> Outgoing for Changing<O> {
    fn write_all(&mut self, data: &[u8]) -> Outcome<()> {
        self.writes += 1;
        if self.writes == 2 {
            write(self.path.clone(), &self.contents);
        }
        self.out.write_all(data)
    }
    fn flush(&mut self) -> Outcome<()> {
        self.out.flush()
    }
    fn finish(&mut self) -> Outcome<()> {
        self.out.finish()
    }
    fn wait_delivered(&mut self) -> Outcome<()> {
        self.out.wait_delivered()
    }
}

#[test]
fn what_is_read_for_an_answer_counts() {
    let Dirs { to, .. } = &dirs();
    let contents = vec![5; 200_000];
    write(to.join("f"), &contents);
    let offered = Offered {
        path: b"f".to_vec(),
        size: contents.len() as u64,
        attributes: ATTRIBUTES,
        source: None,
    };
    let offer = Entry::Offer(Series::default().offer(&offered));
    let bytes = records(&[offer, Entry::Ask], &[], &[end(1, 0)]);
    for (checksum, whole, read) in [
        (true, false, 200_000),
        (false, false, 200_000),
        (false, true, 0),
    ] {
        let asked = SyncRequest {
            contents: true,
            checksum,
            whole,
            ..SyncRequest::default()
        };
        let received = receive_into(to, asked, &bytes).unwrap();
        assert_eq!((received.work.read, received.work.reused), (read, 0));
    }
}

#[test]
fn what_only_synchronizing_says_is_heard_nowhere_else() {
    let chunks = Chunks {
        mean_log2: 16,
        list: Vec::new(),
    };
    let digest = [0; 32];
    for reply in [
        Reply::Chunks { offer: 1, chunks },
        Reply::Digest { offer: 1, digest },
        Reply::Changed {
            change: Change::Deleted,
            path: b"f".to_vec(),
        },
    ] {
        for is_sync in [false, true] {
            let (near, far) = pair();
            let replies = Replies::listen(near, quiet(), is_sync).unwrap();
            replies.expect_answers(1);
            let mut out = far.open_uni().unwrap();
            let mut bytes = Vec::new();
            put_reply(&mut bytes, &reply);
            put_reply(&mut bytes, &Reply::Done(Counts::default()));
            out.write_all(&bytes).unwrap();
            out.finish().unwrap();
            let said = replies.wait();
            let refused = said.err().map(|failure| failure.kind);
            assert_eq!(refused, (!is_sync).then_some(ErrorKind::Protocol));
        }
    }
}
