//! The machine of the receiving end loses power in the middle of a transfer: what was written and not forced to stable
//! storage is gone, whatever had come of it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::server::Sshd;
use super::sync::{Random, left_for_rsync};
use super::there;
use crate::common::{PATIENCE, Scratch, appears, command};

const FILM: usize = 60_000_000;
/// As `docs/file-transfer.md` has the journal.
const SLOT_BYTES: usize = 2048;

/// Receives into a file system of its own, in a mount namespace of its own, until a line comes; then takes the state of the
/// device as it is, without anything that waits to be written: nothing is asked of the file system, and the copy is taken
/// again if something was written to the device meanwhile. What the same command makes of that goes to `after`.
const POWER_LOSS: &str = r#"truncate -s 160m disk && mkfs.ext4 -q disk && mount -o loop disk in || exit 77
device=$(findmnt -n -o SOURCE in) || exit 77
written=/sys/block/${device#/dev/}/stat
"$@" >first 2>first.stderr & victim=$!
read -r now
kill -9 $victim; wait $victim 2>/dev/null
until before=$(cat $written) && cp --sparse=always disk crashed.disk && [ "$(cat $written)" = "$before" ]; do :; done
umount in && mount -o loop crashed.disk in && cp -a in crashed || exit 78
"$@" >second 2>second.stderr; code=$?
cp -a in after && umount in || exit 79
exit $code"#;

/// The events that a command has written to a file so far.
fn events(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The last line may not be whole.
    (text.lines())
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// Waits until the command has received so much, or has ended.
fn wait_for_bytes(path: &Path, bytes: u64) {
    let deadline = Instant::now() + PATIENCE;
    let has_come = |event: &Value| {
        event["event"] == "done" || event["bytes"].as_u64().is_some_and(|came| came >= bytes)
    };
    while !events(path).iter().any(has_come) {
        assert!(Instant::now() < deadline, "too little comes");
        thread::sleep(Duration::from_millis(2));
    }
}

/// What the newest slot of a journal vouches for, in bytes.
fn vouched(journal: &[u8]) -> u64 {
    let number = |bytes: &[u8], at: usize| {
        u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
    };
    let slots = journal.chunks(SLOT_BYTES);
    let newest = slots
        .filter(|slot| slot.starts_with(b"SPHXJNL\x01"))
        .max_by_key(|slot| number(slot, 8));
    // Behind the seal and the length: data, and holes.
    newest.map_or(0, |slot| number(slot, 82) + number(slot, 90))
}

/// Small files around a large one, one of them with a hole at its end.
fn grow(scratch: &Scratch, random: &mut Random) {
    for n in 0..40 {
        let directory = ["a", "a/b", "z"][n % 3];
        scratch.file(&format!("src/{directory}/f{n}"), random.below(100_000));
    }
    scratch.file("src/film", FILM);
    for name in ["src/b-sparse", "src/z/sparse"] {
        let file = fs::File::create(scratch.path(name)).unwrap();
        file.write_all_at(&[1; 70_000], 0).unwrap();
        file.set_len(1 << 20).unwrap();
    }
}

/// The files below a directory that one of the same path below another one is the same as: contents and time.
fn same_files(scratch: &Scratch, one: &str, other: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut directories = vec![String::new()];
    while let Some(inner) = directories.pop() {
        for entry in fs::read_dir(scratch.path(one).join(&inner)).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{inner}{}", entry.file_name().to_str().expect("text"));
            if entry.file_type().unwrap().is_dir() {
                directories.push(format!("{path}/"));
                continue;
            }
            let twin = scratch.path(other).join(&path);
            let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
            if twin.is_file()
                && time(&twin) == time(&entry.path())
                && fs::read(&twin).unwrap() == fs::read(entry.path()).unwrap()
            {
                found.insert(path, entry.metadata().unwrap().len());
            }
        }
    }
    found
}

/// Names that a transfer gives to what is not complete.
fn leftovers(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().unwrap().is_dir() {
            found.extend(leftovers(&entry.path()));
        } else if name.starts_with('.') && name.contains("sphx-") {
            found.push(name);
        }
    }
    found
}

/// The receiving end, in a namespace of its own; `None`, with the reason on standard error, where there can be none.
fn receiver(scratch: &Scratch, sshd: &Sshd) -> Option<Child> {
    let ssh = sshd.ssh();
    let from = format!("{}/", there(scratch, "src"));
    let slow = ["--cc", "fixed:200mbit", "--interval-report", "10ms"];
    let base = ["sync", "--json", "--connect-timeout", "20s", "-e", &ssh];
    let of = command(
        &scratch.path(""),
        &[&base[..], &slow, &[&from, "in"]].concat(),
    );
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--mount", "sh", "-c", POWER_LOSS, "sh"])
        .arg(of.get_program())
        .args(of.get_args())
        .envs(
            of.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .current_dir(scratch.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let Ok(mut child) = unshare.spawn() else {
        sphinx_testing::skipped!("there is no unshare");
        return None;
    };
    match appears(&scratch.path("first"), &mut child) {
        Ok(()) => Some(child),
        Err(status) => {
            assert!(matches!(status.code(), Some(1 | 77)), "{status}");
            sphinx_testing::skipped!("no privileges, or no loop device, to mount a file system");
            None
        }
    }
}

#[test]
fn after_a_loss_of_power_only_what_was_not_stored_is_sent_again() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let Some(sshd) = Sshd::start() else { return };
    let mut random = Random(number("SPHINX_CRASHES_SEED", 1));
    let mut reused_at_all = 0;
    for round in 0..number("SPHINX_CRASHES", 2) {
        let scratch = Scratch::new();
        grow(&scratch, &mut random);
        let Some(mut receiver) = receiver(&scratch, &sshd) else {
            return;
        };
        let moment = FILM as u64 / 10 * (2 + random.below(9) as u64);
        wait_for_bytes(&scratch.path("first"), moment);
        let mut stdin = receiver.stdin.take().expect("it is piped");
        stdin.write_all(b"now\n").expect("it waits for this");
        let code = receiver.wait().expect("it is our child").code();
        let said = fs::read_to_string(scratch.path("second.stderr")).unwrap_or_default();
        assert_eq!(code, Some(0), "round {round}, killed at {moment}: {said}");

        // What the journal vouches for was there: data goes before it.
        let film = fs::read(scratch.path("src/film")).unwrap();
        let crashed = fs::read_dir(scratch.path("crashed")).unwrap();
        let names = crashed.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let hidden: Vec<String> = names.filter(|name| name.starts_with(".film.")).collect();
        let read = |end: &str| {
            let name = hidden.iter().find(|name| name.ends_with(end));
            name.map_or(Vec::new(), |name| {
                fs::read(scratch.path("crashed").join(name)).unwrap()
            })
        };
        let (part, vouched) = (read(".part"), vouched(&read(".journal")));
        let stored = usize::try_from(vouched).unwrap();
        assert!(
            part.len() >= stored && part[..stored] == film[..stored],
            "round {round}"
        );

        // The same, and no more of it on the way than was lost.
        let left = left_for_rsync(&scratch, &["--exclude", "/lost+found"], "src", "after");
        assert_eq!(
            left.unwrap_or_default(),
            "",
            "round {round}, killed at {moment}"
        );
        let all = same_files(&scratch, "src", "after").len();
        assert_eq!(all, 43, "round {round}, killed at {moment}");
        assert_eq!(leftovers(&scratch.path("after")), Vec::<String>::new());
        let second = events(&scratch.path("second"));
        let state = |path: &str| {
            let is_it = |event: &&Value| event["event"] == "file" && event["path"] == path;
            let event = second.iter().find(is_it).expect("every file is told");
            event["state"].as_str().expect("a word").to_owned()
        };
        let mut there = vouched;
        for (path, bytes) in same_files(&scratch, "src", "crashed") {
            assert_eq!(state(&path), "unchanged", "round {round}: {path}");
            there += bytes;
        }
        let reused = second.last().expect("its end")["bytes_reused"].as_u64();
        assert_eq!(reused, Some(there), "round {round}, killed at {moment}");
        reused_at_all += vouched;
        scratch.remove();
    }
    assert!(reused_at_all > 0, "no journal vouched for anything");
}
