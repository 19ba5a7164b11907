//! Both ends against each other in memory, and the receiver against a hostile sender.

mod expected;
mod resume;
mod slow_disk;
mod sync;
mod wire;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use sphinx_transport::ErrorKind;
use tempfile::TempDir;

use super::paths::Name;
use super::recv::{receive, receive_tree};
use super::send::{send, send_tree};
use super::source::SourceKey;
use super::wire::{Announced, Attributes, Entry, Piece, put_entry, put_piece, put_preamble};
use super::{Counts, Destination, OutputDir, Rules, Transferred, roots};
use crate::channel::{Arrived, Channel, Outgoing};
use crate::failure::Outcome;
use crate::report::{Progress, Reporter};
use crate::testing::{Kept, pair};

fn quiet() -> Reporter {
    Reporter::silent()
}

fn destination(output: &Path, rules: Rules) -> Outcome<Destination> {
    OutputDir::open(output, rules).map(Destination::Directory)
}

fn named(paths: &[&Path]) -> Vec<roots::Root> {
    let paths = paths.iter().map(PathBuf::from).collect();
    roots::roots(paths, None).expect("readable paths")
}

/// What `transfer` says of an end.
type End = Outcome<Counts>;

/// What a whole command would say: failed if nothing has arrived.
fn end(outcome: Said) -> End {
    let (transferred, _) = outcome?;
    transferred.exit_code()?;
    Ok(transferred.counts)
}

/// Sends `paths` into `output` through memory; the outcomes of sender and receiver.
fn transfer(paths: &[&Path], output: &Path, rules: Rules) -> (End, End) {
    let (sent, received) = transfer_by(&SourceKey::of(1), paths, output, rules);
    (end(sent), end(received))
}

/// What an end has to say.
type Said = Outcome<(Transferred, sphinx_transport::Stats)>;

/// The same of the sender with this key, and all that they say.
fn transfer_by(key: &SourceKey, paths: &[&Path], output: &Path, rules: Rules) -> (Said, Said) {
    let (near, far) = pair();
    let output = destination(output, rules).expect("an output directory");
    let receiver = thread::spawn(move || {
        let progress = Progress::default();
        receive(&far, &output, &|_| Ok(None), &progress, &quiet())
    });
    let roots = named(paths);
    let announced = roots::announce(&roots).expect("a readable tree");
    let sent = send(
        &near,
        &roots,
        announced,
        key,
        &Progress::default(),
        &quiet(),
    );
    let received = receiver.join().expect("the receiver does not panic");
    (sent, received)
}

/// What `paths` are on the wire.
fn written(paths: &[&Path]) -> Vec<u8> {
    let mut kept = Kept::default();
    let (progress, reporter) = (Progress::default(), quiet());
    let announced = Announced::default();
    let sent = send_tree(
        &mut kept,
        &named(paths),
        announced,
        &SourceKey::of(1),
        None,
        &progress,
        &reporter,
    );
    sent.expect("readable paths");
    kept.0
}

const REPLACE: Rules = Rules {
    overwrite: true,
    merge: true,
    allow_dotfiles: true,
    partial: true,
    exact_modes: false,
    max_bytes: None,
    max_entries: None,
};

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .expect("a directory")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

fn write(path: PathBuf, contents: &[u8]) -> PathBuf {
    fs::write(&path, contents).expect("a writable temporary directory");
    path
}

struct Dirs {
    _root: TempDir,
    from: PathBuf,
    to: PathBuf,
}

fn dirs() -> Dirs {
    let root = tempfile::tempdir().expect("a temporary directory");
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    fs::create_dir(&from).expect("a writable temporary directory");
    fs::create_dir(&to).expect("a writable temporary directory");
    Dirs {
        _root: root,
        from,
        to,
    }
}

#[test]
fn a_tree_arrives_as_it_is() {
    let Dirs { _root, from, to } = dirs();
    let tree = from.join("tree");
    fs::create_dir_all(tree.join("sub/empty")).unwrap();
    let big: Vec<u8> = (0..1_000_003_u32).map(|n| ((n * 7) >> 3) as u8).collect();
    write(tree.join("big"), &big);
    write(tree.join("nothing"), b"");
    let script = write(tree.join("sub/run.sh"), b"#!/bin/sh\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o4750)).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    fs::File::open(&script).unwrap().set_modified(then).unwrap();
    write(tree.join(OsStr::from_bytes(b"caf\xe9")), b"latin");
    symlink("sub/run.sh", tree.join("inside")).unwrap();
    symlink("/etc/passwd", tree.join("outside")).unwrap();
    symlink("../../x", tree.join("sub/above")).unwrap();
    symlink("./sub/../nothing", tree.join("detour")).unwrap();
    fs::set_permissions(tree.join("sub"), fs::Permissions::from_mode(0o555)).unwrap();
    let single = write(from.join("single"), b"one");

    let (sent, received) = transfer(&[&tree, &single], &to, Rules::default());
    let counts = received.unwrap();
    assert_eq!(sent.unwrap(), counts);
    assert_eq!((counts.files, counts.skipped), (5, 2));
    assert_eq!(names(&to), ["single", "tree"]);
    let there = to.join("tree");
    assert_eq!(
        names(&there),
        [
            ".sphx-unfinished",
            "big",
            "caf\u{fffd}",
            "detour",
            "inside",
            "nothing",
            "sub"
        ]
    );
    assert_eq!(fs::read(there.join("big")).unwrap(), big);
    assert_eq!(fs::read(there.join("nothing")).unwrap(), b"");
    assert_eq!(
        fs::read(there.join(OsStr::from_bytes(b"caf\xe9"))).unwrap(),
        b"latin"
    );
    assert_eq!(
        fs::read_link(there.join("inside")).unwrap(),
        Path::new("sub/run.sh")
    );
    assert_eq!(names(&there.join("sub")), ["empty", "run.sh"]);
    let script = fs::metadata(there.join("sub/run.sh")).unwrap();
    assert_eq!(script.permissions().mode() & 0o7777, 0o750);
    assert_eq!(script.modified().unwrap(), then);
    assert_eq!(
        fs::metadata(there.join("sub"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o555
    );
}

#[test]
fn a_sparse_file_stays_sparse() {
    let Dirs { _root, from, to } = dirs();
    let path = from.join("disk");
    let file = fs::File::create(&path).unwrap();
    use std::os::unix::fs::FileExt;
    file.write_all_at(b"start", 0).unwrap();
    file.write_all_at(b"middle", 40 << 20).unwrap();
    file.set_len(90 << 20).unwrap();
    drop(file);
    let (sent, received) = transfer(&[&path], &to, Rules::default());
    assert_eq!(sent.unwrap().totals.bytes, 90 << 20);
    received.unwrap();
    let there = to.join("disk");
    assert!(fs::read(&there).unwrap() == fs::read(&path).unwrap());
    let (here, there) = (fs::metadata(&path).unwrap(), fs::metadata(&there).unwrap());
    // Where the file system keeps holes, the copy has them too.
    if here.blocks() * 512 < here.len() / 2 {
        assert!(
            there.blocks() * 512 < there.len() / 2,
            "{} blocks",
            there.blocks()
        );
        // The file has arrived: another transfer of it sends nothing.
        let again = transfer(&[&path], &to, Rules::default()).1.unwrap();
        assert_eq!((again.files, again.files_present), (1, 1));
    }
}

#[test]
fn nothing_is_overwritten_unless_asked() {
    let Dirs { _root, from, to } = dirs();
    let path = write(from.join("a"), b"new");
    write(to.join("a"), b"old");
    let (sent, received) = transfer(&[&path], &to, Rules::default());
    assert_eq!(sent.unwrap_err().kind, ErrorKind::RemoteIo);
    let failure = received.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::LocalIo);
    assert_eq!(failure.message, "a exists already with other contents");
    assert_eq!(fs::read(to.join("a")).unwrap(), b"old");
    assert_eq!(names(&to), ["a"]);

    let (sent, received) = transfer(&[&path], &to, REPLACE);
    assert!(sent.is_ok() && received.is_ok());
    assert_eq!(fs::read(to.join("a")).unwrap(), b"new");
}

#[test]
fn links_in_the_output_directory_are_not_followed() {
    let Dirs { _root, from, to } = dirs();
    let outside = from.join("outside");
    fs::create_dir_all(from.join("tree/sub")).unwrap();
    fs::create_dir(&outside).unwrap();
    write(from.join("tree/sub/f"), b"x");
    let plain = write(from.join("plain"), b"new");
    write(outside.join("kept"), b"kept");
    // A directory and a file of the transfer exist as links that lead away.
    symlink(&outside, to.join("tree")).unwrap();
    symlink(outside.join("kept"), to.join("plain")).unwrap();

    let (sent, received) = transfer(&[&from.join("tree")], &to, REPLACE);
    assert_eq!(sent.unwrap_err().kind, ErrorKind::RemoteIo);
    assert_eq!(received.unwrap_err().kind, ErrorKind::LocalIo);
    // Replacing a link replaces the link.
    transfer(&[&plain], &to, REPLACE).1.unwrap();
    assert_eq!(fs::read(to.join("plain")).unwrap(), b"new");
    assert_eq!(names(&outside), ["kept"]);
    assert_eq!(fs::read(outside.join("kept")).unwrap(), b"kept");
}

#[test]
fn a_source_that_changes_is_noticed() {
    let Dirs { _root, from, to } = dirs();
    let path = from.join("log");
    write(path.clone(), &vec![1; 3 << 20]);
    // The receiver reads nothing until the file has grown.
    let (near, far) = pair();
    let output = destination(&to, Rules::default()).unwrap();
    let grow = path.clone();
    let receiver = thread::spawn(move || {
        assert!(far.wait_until_full().is_ok());
        fs::OpenOptions::new()
            .append(true)
            .open(grow)
            .unwrap()
            .set_len(4 << 20)
            .unwrap();
        let progress = Progress::default();
        receive(&far, &output, &|_| Ok(None), &progress, &quiet())
    });
    let announced = Announced::default();
    let failure = end(send(
        &near,
        &named(&[&path]),
        announced,
        &SourceKey::of(1),
        &Progress::default(),
        &quiet(),
    ))
    .unwrap_err();
    assert_eq!(failure.kind, ErrorKind::LocalIo);
    assert!(
        failure
            .message
            .ends_with("log changed while it was being sent"),
        "{failure}"
    );
    assert_eq!(
        end(receiver.join().unwrap()).unwrap_err().kind,
        ErrorKind::RemoteIo
    );
    assert_eq!(names(&to), Vec::<String>::new());
}

#[test]
fn a_peer_that_vanishes_leaves_nothing_behind() {
    let Dirs { _root, from, to } = dirs();
    let path = write(from.join("a"), &vec![1; 3 << 20]);
    let (near, far) = pair();
    let output = destination(&to, Rules::default()).unwrap();
    let receiver = thread::spawn(move || {
        let progress = Progress::default();
        receive(&far, &output, &|_| Ok(None), &progress, &quiet())
    });
    let closer = near.clone();
    let mut stream = near.open_uni().unwrap();
    stream.write_all(&written(&[&path])[..1 << 20]).unwrap();
    closer.close(6, "interrupted");
    assert_eq!(
        receiver.join().unwrap().unwrap_err().kind,
        ErrorKind::Cancelled
    );
    assert_eq!(names(&to), Vec::<String>::new());
}

#[test]
fn damage_is_not_given_a_name() {
    let Dirs { _root, from, to } = dirs();
    let path = write(from.join("a"), &vec![1; 100_000]);
    let mut bytes = written(&[&path]);
    bytes[50_000] ^= 1;
    assert_eq!(feed(&bytes, &to).unwrap_err().kind, ErrorKind::Integrity);
    assert_eq!(names(&to), Vec::<String>::new());
}

/// Whatever was announced: several at a time could have more than is allowed to all of them.
#[test]
fn no_more_is_sent_than_is_allowed() {
    let Dirs { _root, from, to } = dirs();
    let paths = ["a", "b"].map(|name| write(from.join(name), &[1; 1000]));
    let bytes = &written(&[&paths[0], &paths[1]]);
    for (allowed, arrives) in [(None, 2), (Some(2000), 2), (Some(1999), 1), (Some(0), 0)] {
        let output = destination(&to, Rules::default()).unwrap();
        let received = receive_tree(
            Arrived { bytes, piece: 100 },
            &output,
            &|_| Ok(allowed),
            &mut |_| Ok(()),
            &Progress::default(),
            &quiet(),
        );
        assert_eq!(received.is_ok(), arrives == 2, "{allowed:?}");
        assert_eq!(names(&to), ["a", "b"][..arrives]);
        for name in names(&to) {
            fs::remove_file(to.join(name)).unwrap();
        }
    }
}

#[test]
fn the_paths_are_checked_before_connecting() {
    let Dirs { _root, from, .. } = dirs();
    fs::create_dir(from.join("x")).unwrap();
    write(from.join("a"), b"");
    write(from.join("x/a"), b"");
    let missing = roots::roots(vec![from.join("missing")], None).unwrap_err();
    assert_eq!(missing.kind, ErrorKind::LocalIo);
    let twice = roots::roots(vec![from.join("a"), from.join("x/a")], None).unwrap_err();
    assert_eq!(twice.kind, ErrorKind::Usage);
    assert_eq!(
        roots::roots(vec!["/".into()], None).unwrap_err().kind,
        ErrorKind::Usage
    );
    assert!(roots::roots(vec![".".into()], None).is_ok());
}

#[test]
fn an_output_directory_must_be_one() {
    let Dirs { _root, to, .. } = dirs();
    let file = write(to.join("f"), b"");
    for path in [file.as_path(), &file.join("below"), Path::new("/proc/sphx")] {
        let failure = OutputDir::open(path, Rules::default())
            .err()
            .expect("must be refused");
        assert_eq!(failure.kind, ErrorKind::LocalIo, "{failure}");
    }
    OutputDir::open(&to.join("new/deep"), Rules::default()).unwrap();
    assert_eq!(names(&to.join("new/deep")), Vec::<String>::new());
}

fn feed(bytes: &[u8], output: &Path) -> Outcome<Counts> {
    let rules = Rules {
        overwrite: false,
        ..REPLACE
    };
    let transferred = receive_tree(
        Arrived { bytes, piece: 1000 },
        &destination(output, rules)?,
        &|_| Ok(None),
        &mut |_| Ok(()),
        &Progress::default(),
        &quiet(),
    )?;
    Ok(transferred.counts)
}

/// A record that a hostile sender could invent, valid in itself or nearly.
fn record() -> impl Strategy<Value = Vec<u8>> {
    let attributes = (0_u16..0o1000, -3_i64..3).prop_map(|(mode, mtime_s)| Attributes {
        // With all rights of the owner, so that the test can clean up directories.
        mode: mode | 0o700,
        mtime_s,
        mtime_ns: 0,
    });
    let target = "((\\.|\\.\\.|[abl])/){0,4}[ab]{0,3}";
    (0..9, "[abl]", attributes, target, 0_u64..9).prop_map(|(kind, name, attributes, target, n)| {
        let name = Name::new(name.into_bytes()).expect("the strategy makes valid names");
        let mut out = Vec::new();
        match kind {
            0 | 1 => put_entry(&mut out, &Entry::Directory { name, mode: 0o700 }),
            2 => put_entry(&mut out, &Entry::DirectoryEnd { attributes }),
            3 | 4 => {
                let target = target.into_bytes();
                put_entry(
                    &mut out,
                    &Entry::Symlink {
                        name,
                        attributes,
                        target,
                    },
                );
            }
            5 | 6 => {
                let entry = match kind {
                    5 => Entry::File {
                        name,
                        attributes,
                        size: n,
                        source: None,
                    },
                    _ => Entry::Stream { name, attributes },
                };
                put_entry(&mut out, &entry);
                if n > 0 {
                    put_piece(&mut out, &Piece::Data { bytes: n });
                    out.extend(std::iter::repeat_n(b'x', n as usize));
                }
                let digest = blake3::hash(&vec![b'x'; n as usize]).into();
                put_piece(&mut out, &Piece::End { digest });
            }
            7 => {
                put_entry(
                    &mut out,
                    &Entry::File {
                        name,
                        attributes,
                        size: 1 << n,
                        source: None,
                    },
                );
                put_piece(&mut out, &Piece::Hole { bytes: 1 << n });
            }
            _ => put_entry(
                &mut out,
                &Entry::End {
                    entries: n,
                    bytes: n,
                },
            ),
        }
        out
    })
}

/// Runs `bytes` into an output directory with neighbours, some reachable through links, and checks
/// that the neighbours are as before and no temporary is left.
fn stays_inside(bytes: &[u8]) {
    let Dirs { _root, from, to } = dirs();
    write(from.join("precious"), b"precious");
    symlink(&from, to.join("l")).expect("a link");
    let _ = feed(bytes, &to);
    assert_eq!(names(&from), ["precious"]);
    assert_eq!(
        fs::read(from.join("precious")).expect("still there"),
        b"precious"
    );
    assert_eq!(names(_root.path()), ["from", "to"]);
    let left = walk(&to);
    let temporary = |name: &String| name.ends_with(".part") || name.ends_with(".lock");
    assert!(!left.iter().any(temporary), "{left:?}");
}

/// Names below `directory`, not through links.
fn walk(directory: &Path) -> Vec<String> {
    let mut found = names(directory);
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
            found.extend(walk(&path));
        } else if let Ok(target) = fs::read_link(&path)
            && target.is_relative()
        {
            let reached = path.parent().expect("it has one").join(target);
            if let Ok(reached) = fs::canonicalize(reached) {
                assert!(
                    reached.starts_with(
                        directory
                            .ancestors()
                            .find(|a| a.ends_with("to"))
                            .expect("below to")
                    )
                );
            }
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_sequence_of_records_escapes(records in proptest::collection::vec(record(), 0..12)) {
        let mut bytes = Vec::new();
        put_preamble(&mut bytes, Announced::default());
        bytes.extend(records.concat());
        stays_inside(&bytes);
    }

    #[test]
    fn no_bytes_escape(bytes in proptest::collection::vec(any::<u8>(), 0..200), named: bool) {
        let mut stream = Vec::new();
        if named {
            put_preamble(&mut stream, Announced::default());
        }
        stream.extend(bytes);
        stays_inside(&stream);
    }
}
