//! A transfer that goes on where another one stopped.

use std::io::Write;
use std::os::unix::fs::FileExt;

use super::sync::Changing;
use super::*;
use crate::channel::Incoming;
use crate::failure::local_io;
use crate::files::journal::{JOURNAL_BYTES, SLOT_BYTES, Slot};
use crate::files::leftovers::partial_names;
use crate::files::replies::Replies;

/// Two leaves of the tree are the first checkpoint; this has several.
const SIZE: usize = 9 << 20;

const KEEP: Rules = Rules {
    partial: true,
    ..NOTHING
};
const NOTHING: Rules = Rules {
    overwrite: false,
    merge: false,
    allow_dotfiles: false,
    partial: false,
    exact_modes: false,
    max_bytes: None,
    max_entries: None,
};

fn contents() -> Vec<u8> {
    (0..SIZE).map(|n| ((n * 31) >> 7) as u8).collect()
}

/// Writes a file, and waits until a change of it would show in its times.
fn settled(path: PathBuf, contents: &[u8]) -> PathBuf {
    let path = write(path, contents);
    thread::sleep(Duration::from_millis(25));
    path
}

/// The first `part` of what is sent of `path` arrives, and no more.
fn break_off(path: &Path, output: &Path, part: f64) {
    let bytes = written(&[path]);
    let bytes = &bytes[..(bytes.len() as f64 * part) as usize];
    let output = destination(output, KEEP).expect("an output directory");
    let arrived = Arrived { bytes, piece: 5000 };
    let received = receive_tree(
        arrived,
        &output,
        &|_| Ok(None),
        &mut |_| Ok(()),
        &Progress::default(),
        &quiet(),
    );
    received.expect_err("it ends too early");
}

/// Sends `path` again: what was not sent again, and of how many bytes. It must arrive whole, and nothing else stay.
#[track_caller]
fn complete(key: u8, path: &Path, output: &Path, rules: Rules) -> (u64, u64) {
    let (sent, received) = transfer_by(&SourceKey::of(key), &[path], output, rules);
    let (sent, received) = (sent.unwrap().0, received.unwrap().0);
    assert_eq!((received.counts.files, received.counts.skipped), (1, 0));
    assert_eq!(sent.work.reused, received.work.reused);
    let name = path.file_name().unwrap();
    assert!(fs::read(output.join(name)).unwrap() == fs::read(path).unwrap());
    assert_eq!(names(output), [name.to_str().unwrap()]);
    (sent.work.reused, sent.work.read)
}

fn part_and_journal(output: &Path, name: &str) -> (PathBuf, PathBuf) {
    let (part, journal) = partial_names(name.as_bytes());
    let path = |name: &[u8]| output.join(OsStr::from_bytes(name));
    (path(&part), path(&journal))
}

#[test]
fn the_same_transfer_goes_on() {
    let Dirs { _root, from, to } = dirs();
    let path = settled(from.join("a"), &contents());
    break_off(&path, &to, 0.7);
    assert_eq!(names(&to).len(), 2, "{:?}", names(&to));
    let (reused, read) = complete(1, &path, &to, KEEP);
    // From the last checkpoint on, at 4 MiB; a beginning may be sent before the answer is there.
    assert!((3 << 20..=4 << 20).contains(&reused), "{reused}");
    assert!(reused + read <= SIZE as u64 + (1 << 20), "{read} read");
}

#[test]
fn it_goes_on_as_often_as_it_breaks_off() {
    let Dirs { _root, from, to } = dirs();
    let path = settled(from.join("a"), &contents());
    for part in [0.3, 0.2, 0.6, 0.5, 0.9] {
        break_off(&path, &to, part);
    }
    // A sender that is not answered sends everything, and what has come last counts.
    let (reused, _) = complete(1, &path, &to, KEEP);
    assert!((7 << 20..9 << 20).contains(&reused), "{reused}");
}

#[test]
fn a_file_in_a_tree_goes_on_and_what_is_there_is_not_sent() {
    let Dirs { _root, from, to } = dirs();
    fs::create_dir_all(from.join("tree/d")).unwrap();
    settled(from.join("tree/d/a"), &vec![1; 100_000]);
    settled(from.join("tree/d/b"), &contents());
    settled(from.join("tree/d/c"), b"small");
    let tree = from.join("tree");
    break_off(&tree, &to, 0.8);
    assert!(to.join("tree/d/a").exists() && !to.join("tree/d/b").exists());
    let (sent, received) = transfer_by(&SourceKey::of(1), &[&tree], &to, KEEP);
    let (sent, received) = (sent.unwrap().0, received.unwrap().0);
    assert_eq!(received.counts.files_present, 1);
    assert_eq!(sent.work.reused, received.work.reused);
    assert!(sent.work.reused >= 3 << 20, "{:?}", sent.work);
    assert_eq!(names(&to.join("tree")), ["d"]);
    assert_eq!(names(&to.join("tree/d")), ["a", "b", "c"]);
    assert!(fs::read(to.join("tree/d/b")).unwrap() == contents());
    // Now everything is there, with merge or without.
    for rules in [KEEP, REPLACE] {
        let (sent, received) = transfer_by(&SourceKey::of(1), &[&tree], &to, rules);
        let (sent, received) = (sent.unwrap().0, received.unwrap().0);
        // What is small may be replaced before the receiver has said that it is there.
        let at_least = if rules.overwrite { 1 } else { 3 };
        assert!(received.counts.files_present >= at_least);
        assert_eq!(sent.work.reused, received.work.reused);
        assert!(sent.work.reused + (1 << 20) > SIZE as u64);
    }
}

#[test]
fn a_changed_source_is_sent_from_the_beginning() {
    let Dirs { _root, from, to } = dirs();
    let path = settled(from.join("a"), &contents());
    break_off(&path, &to, 0.7);
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"changed", 12_345).unwrap();
    // The modification time is set back, so that it does not show the change.
    file.set_modified(modified).unwrap();
    thread::sleep(Duration::from_millis(25));
    assert_eq!(complete(1, &path, &to, KEEP).0, 0);
}

#[test]
fn another_sender_hears_nothing_of_a_part() {
    let Dirs { _root, from, to } = dirs();
    let path = settled(from.join("a"), &contents());
    break_off(&path, &to, 0.7);
    assert_eq!(complete(2, &path, &to, KEEP).0, 0);
}

#[test]
fn without_partial_nothing_is_kept() {
    let Dirs { _root, from, to } = dirs();
    let path = settled(from.join("a"), &contents());
    let bytes = written(&[&path]);
    let bytes = &bytes[..bytes.len() / 2];
    feed_by(bytes, &to, NOTHING).unwrap_err();
    assert_eq!(names(&to), Vec::<String>::new());
    feed_by(bytes, &to, KEEP).unwrap_err();
    assert_eq!(names(&to).len(), 2);
}

#[test]
fn a_torn_journal_costs_time_only() {
    let Dirs { _root, from, to } = dirs();
    let path = settled(from.join("a"), &contents());
    let (_, journal) = part_and_journal(&to, "a");
    let torn: [fn(&mut Vec<u8>); 7] = [
        |bytes| bytes.clear(),
        |bytes| bytes.truncate(1000),
        |bytes| bytes.fill(0),
        |bytes| bytes.rotate_left(1),
        |bytes| bytes[100] ^= 1,
        |bytes| bytes[SLOT_BYTES + 100] ^= 1,
        |bytes| bytes[..SLOT_BYTES].fill(0xff),
    ];
    for tear in torn {
        break_off(&path, &to, 0.9);
        let mut bytes = fs::read(&journal).unwrap();
        assert_eq!(bytes.len(), JOURNAL_BYTES);
        tear(&mut bytes);
        fs::write(&journal, &bytes).unwrap();
        complete(1, &path, &to, KEEP);
        fs::remove_file(to.join("a")).unwrap();
    }
}

#[test]
fn a_forged_journal_costs_time_only() {
    let Dirs { _root, from, to } = dirs();
    let path = settled(from.join("a"), &contents());
    let other = settled(from.join("b"), &vec![7; SIZE]);
    let (part, journal) = part_and_journal(&to, "a");
    let forge: [fn(&mut Slot, &Slot); 5] = [
        // Of another file, with the seal that belongs to it or with ours.
        |slot, other| slot.sealed = other.sealed.clone(),
        |slot, other| slot.sealed.checkpoint = other.sealed.checkpoint.clone(),
        |slot, _| slot.sealed.seal.0[0] ^= 1,
        |slot, _| slot.subject.inode += 1,
        |slot, other| slot.subject.source = other.subject.source,
    ];
    for (number, forge) in forge.iter().enumerate() {
        break_off(&other, &to, 0.95);
        let (other_part, other_journal) = part_and_journal(&to, "b");
        let theirs = Slot::newest(&fs::read(&other_journal).unwrap()).unwrap();
        fs::remove_file(other_part).unwrap();
        fs::remove_file(other_journal).unwrap();
        break_off(&path, &to, 0.95);
        let mut slot = Slot::newest(&fs::read(&journal).unwrap()).unwrap();
        forge(&mut slot, &theirs);
        fs::write(&journal, slot.encode()).unwrap();
        assert_eq!(complete(1, &path, &to, KEEP).0, 0, "{number}");
        fs::remove_file(to.join("a")).unwrap();
    }
    // A part that is shorter than its journal says.
    break_off(&path, &to, 0.9);
    fs::OpenOptions::new()
        .write(true)
        .open(part)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    assert_eq!(complete(1, &path, &to, KEEP).0, 0);
}

#[test]
fn holes_are_gone_on_with() {
    let Dirs { _root, from, to } = dirs();
    let path = from.join("disk");
    let file = fs::File::create(&path).unwrap();
    let data = contents();
    file.write_all_at(&data[..4 << 20], 8 << 20).unwrap();
    file.write_all_at(&data[4 << 20..8 << 20], 64 << 20)
        .unwrap();
    file.set_len(90 << 20).unwrap();
    thread::sleep(Duration::from_millis(25));
    // All data have come before the interruption, and the last hole has not.
    break_off(&path, &to, 0.999_995);
    let (reused, _) = complete(1, &path, &to, KEEP);
    if fs::metadata(&path).unwrap().blocks() * 512 < 20 << 20 {
        assert!(reused >= 66 << 20, "{reused}");
        assert!(fs::metadata(to.join("disk")).unwrap().blocks() * 512 < 20 << 20);
    }
}

#[test]
fn a_part_of_other_holes_leaves_nothing_behind() {
    let Dirs { _root, from, to } = dirs();
    let path = settled(from.join("disk"), &contents());
    break_off(&path, &to, 0.9);
    // Of the same size and, says a forged journal, the same source: but where there was data is a hole.
    let file = fs::File::create(&path).unwrap();
    file.write_all_at(&contents()[..100_000], 0).unwrap();
    file.set_len(SIZE as u64).unwrap();
    thread::sleep(Duration::from_millis(25));
    let source = SourceKey::of(1).file(&rustix::fs::fstat(&file).unwrap());
    let (_, journal) = part_and_journal(&to, "disk");
    let mut slot = Slot::newest(&fs::read(&journal).unwrap()).unwrap();
    slot.subject.source = source;
    fs::write(&journal, slot.encode()).unwrap();
    assert_eq!(complete(1, &path, &to, KEEP).0, 0);
}

#[test]
fn what_is_like_it_but_different_is_told() {
    for rules in [KEEP, REPLACE] {
        let Dirs { _root, from, to } = dirs();
        let path = settled(from.join("a"), &contents());
        transfer(&[&path], &to, rules).1.unwrap();
        let there = to.join("a");
        let modified = fs::metadata(&there).unwrap().modified().unwrap();
        let file = fs::OpenOptions::new().write(true).open(&there).unwrap();
        file.write_all_at(b"rotten", 5 << 20).unwrap();
        file.set_modified(modified).unwrap();
        let (sent, received) = transfer(&[&path], &to, rules);
        assert_eq!(sent.unwrap_err().kind, ErrorKind::RemoteIo);
        let failure = received.unwrap_err();
        assert!(failure.message.contains("other contents"), "{failure}");
        assert_eq!(names(&to), ["a"]);
        assert!(fs::read(&there).unwrap() != contents());
        // Where it may be replaced, the next transfer does.
        let (_, received) = transfer(&[&path], &to, rules);
        assert_eq!(received.is_ok(), rules.overwrite);
        assert_eq!(fs::read(there).unwrap() == contents(), rules.overwrite);
    }
}

/// What the receiver has is like what was offered, and that is not there any more.
#[test]
fn a_file_that_changes_after_it_was_offered_is_sent() {
    let Dirs { _root, from, to } = dirs();
    // More than is sent before an answer is waited for.
    let first = settled(from.join("a"), &contents()[..2 << 20]);
    let second = settled(from.join("b"), &[1; 10_000]);
    let modified = fs::metadata(&second).unwrap().modified().unwrap();
    let there = fs::File::open(write(to.join("b"), &[1; 10_000])).unwrap();
    there.set_modified(modified).unwrap();
    let (near, far) = pair();
    let output = destination(&to, REPLACE).unwrap();
    let receiver = thread::spawn(move || {
        let progress = Progress::default();
        receive(&far, &output, &|_| Ok(None), &progress, &quiet())
    });
    let mut out = Changing {
        out: near.open_uni().unwrap(),
        path: second.clone(),
        contents: vec![2; 20_000],
        writes: 0,
    };
    let replies = Replies::listen(near.clone(), quiet(), false).unwrap();
    send_tree(
        &mut out,
        &named(&[&first, &second]),
        Announced::default(),
        &SourceKey::of(1),
        Some(&replies),
        &Progress::default(),
        &quiet(),
    )
    .unwrap();
    let (counts, _) = replies.wait().unwrap();
    near.close(0, "done");
    receiver.join().unwrap().unwrap();
    assert_eq!((counts.files, counts.skipped), (2, 0));
    assert_eq!(fs::read(to.join("b")).unwrap(), [2; 20_000]);
}

#[test]
fn two_transfers_of_a_file_do_not_share_a_part() {
    let Dirs { _root, from, to } = dirs();
    let path = settled(from.join("a"), &contents());
    let (near, far) = pair();
    let output = destination(&to, KEEP).unwrap();
    let receiver = thread::spawn(move || {
        let progress = Progress::default();
        receive(&far, &output, &|_| Ok(None), &progress, &quiet())
    });
    let mut stream = near.open_uni().unwrap();
    let bytes = written(&[&path]);
    stream.write_all(&bytes[..bytes.len() / 2]).unwrap();
    // A second transfer of the same file while the first one is halfway.
    let (sent, received) = transfer(&[&path], &to, KEEP);
    assert_eq!(sent.unwrap(), received.unwrap());
    stream.write_all(&bytes[bytes.len() / 2..]).unwrap();
    stream.finish().unwrap();
    // The answer comes before the close.
    let mut answer = near.accept_uni().unwrap();
    let mut replies = Vec::new();
    let mut buffer = [0; 100];
    while let n @ 1.. = Incoming::read(&mut answer, &mut buffer).unwrap() {
        replies.write_all(&buffer[..n]).unwrap();
    }
    near.close(0, "done");
    let failure = end(receiver.join().unwrap()).unwrap_err();
    assert!(failure.message.contains("from elsewhere"), "{failure}");
    assert!(fs::read(to.join("a")).unwrap() == contents());
}

fn feed_by(bytes: &[u8], output: &Path, rules: Rules) -> Outcome<Counts> {
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

/// Bytes that arrive while somebody else puts a file in place.
struct Overtaken<'a> {
    arrived: Arrived<'a>,
    place: PathBuf,
}

impl Incoming for Overtaken<'_> {
    fn read(&mut self, buf: &mut [u8]) -> Outcome<usize> {
        if self.arrived.bytes.len() < SIZE / 16 {
            fs::write(&self.place, b"another")
                .map_err(|error| local_io("write to", "the output directory", error))?;
        }
        self.arrived.read(buf)
    }
}

#[test]
fn what_is_whole_and_finds_its_name_taken_does_not_stay() {
    let Dirs { _root, from, to } = dirs();
    let path = settled(from.join("a"), &contents());
    let input = Overtaken {
        arrived: Arrived {
            bytes: &written(&[&path]),
            piece: 5000,
        },
        place: to.join("a"),
    };
    let received = receive_tree(
        input,
        &destination(&to, KEEP).expect("an output directory"),
        &|_| Ok(None),
        &mut |_| Ok(()),
        &Progress::default(),
        &quiet(),
    );
    assert_eq!(received.unwrap().counts.skipped, 1);
    assert_eq!(names(&to), ["a"]);
    assert_eq!(fs::read(to.join("a")).unwrap(), b"another");
}
