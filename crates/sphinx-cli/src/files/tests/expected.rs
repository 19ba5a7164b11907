//! A receiver that has asked for something, as `sphx cp` does, and a sender that sends something else.

use std::collections::BTreeSet;

use super::*;
use crate::files::Expected;
use crate::files::offers::{Offered, Series};
use crate::files::wire::Reply;

/// Receives `paths` where only `a` was asked for, with directories or without.
fn ask_for_a(paths: &[&Path], output: &Path, directories: bool) -> Counts {
    let expected = Expected {
        names: BTreeSet::from([b"a".to_vec()]),
        directories,
    };
    let output = OutputDir::open(output, REPLACE).expect("an output directory");
    let transferred = receive_tree(
        Arrived {
            bytes: &written(paths),
            piece: 1000,
        },
        &Destination::Directory(output.expecting(expected)),
        &|_| Ok(None),
        &mut |_| Ok(()),
        &Progress::default(),
        &quiet(),
    );
    transferred.expect("what is refused is left out").counts
}

#[test]
fn nothing_comes_that_nobody_has_asked_for() {
    let Dirs { _root, from, to } = dirs();
    let (a, b) = (write(from.join("a"), b"a"), write(from.join("b"), b"b"));
    write(to.join("b"), b"mine");
    let counts = ask_for_a(&[&b, &a], &to, true);
    assert_eq!((counts.files, counts.skipped), (1, 1));
    assert_eq!(fs::read(to.join("a")).unwrap(), b"a");
    assert_eq!(fs::read(to.join("b")).unwrap(), b"mine");
}

/// Nor is anything told of it: who guesses its size and its time would learn that it is there.
#[test]
fn nothing_is_told_of_what_nobody_has_asked_for() {
    let Dirs { _root, to, .. } = dirs();
    for name in ["a", "b"] {
        let there = fs::File::create(to.join(name)).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        there.set_modified(time).unwrap();
    }
    for (name, presents) in [("a", 1), ("b", 0)] {
        let offer = Series::default().offer(&Offered {
            path: name.as_bytes().to_vec(),
            size: 0,
            attributes: Attributes {
                mode: 0o600,
                mtime_s: 1_000_000_000,
                mtime_ns: 0,
            },
            source: None,
        });
        let mut bytes = Vec::new();
        put_preamble(&mut bytes, Announced::default());
        let end = Entry::End {
            entries: 0,
            bytes: 0,
        };
        for entry in [Entry::Offer(offer), Entry::Ask, end] {
            put_entry(&mut bytes, &entry);
        }
        let expected = Expected {
            names: BTreeSet::from([b"a".to_vec()]),
            directories: true,
        };
        let output = OutputDir::open(&to, REPLACE).expect("an output directory");
        let mut told = 0;
        let transferred = receive_tree(
            Arrived {
                bytes: &bytes,
                piece: 1000,
            },
            &Destination::Directory(output.expecting(expected)),
            &|_| Ok(None),
            &mut |replies: &[Reply]| {
                let present = |reply: &&Reply| matches!(reply, Reply::Present { .. });
                told += replies.iter().filter(present).count();
                Ok(())
            },
            &Progress::default(),
            &quiet(),
        );
        transferred.expect("an empty transfer");
        assert_eq!(told, presents, "{name}");
    }
}

#[test]
fn no_directory_comes_where_a_file_was_asked_for() {
    let Dirs { _root, from, to } = dirs();
    fs::create_dir(from.join("a")).unwrap();
    write(from.join("a/f"), b"f");
    let counts = ask_for_a(&[&from.join("a")], &to, false);
    assert_eq!((counts.files, counts.skipped), (0, 2));
    assert_eq!(names(&to), Vec::<String>::new());
    let counts = ask_for_a(&[&from.join("a")], &to, true);
    assert_eq!((counts.files, counts.skipped), (1, 0));
    assert_eq!(fs::read(to.join("a/f")).unwrap(), b"f");
}

/// A copy has one command, and no other end that somebody would have to start again.
#[test]
fn whose_directory_was_removed_runs_the_same_command_again() {
    let Dirs { _root, from, to } = dirs();
    let a = write(from.join("a"), b"a");
    let expected = Expected {
        names: BTreeSet::from([b"a".to_vec()]),
        directories: false,
    };
    let output = OutputDir::open(&to, REPLACE).expect("an output directory");
    fs::remove_dir(&to).unwrap();
    let failure = receive_tree(
        Arrived {
            bytes: &written(&[&a]),
            piece: 1000,
        },
        &Destination::Directory(output.expecting(expected)),
        &|_| Ok(None),
        &mut |_| Ok(()),
        &Progress::default(),
        &quiet(),
    )
    .expect_err("nothing can be written there");
    assert_eq!(failure.kind, ErrorKind::LocalIo);
    assert!(
        failure.message.ends_with("was removed meanwhile"),
        "{failure}"
    );
    assert_eq!(failure.hint, "make it again, then run the same command");
}
