//! A receiver that has asked for something, as `sphx cp` does, and a sender that sends something else.

use std::collections::BTreeSet;

use super::*;
use crate::files::Expected;

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
