//! `sphx pep install`: a unit of systemd that runs an agent from the start of the machine on, and its removal.
//!
//! The rules that lead packets to the agent are those of `sphx pep run`: it makes them, and they go with it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind as Io, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sphinx_pep::attach;
use sphinx_transport::ErrorKind;

use super::args::{InstallArgs, UninstallArgs};
use super::{Context, control, file};
use crate::failure::{Failure, Outcome, fail, fail_hint, local_io, usage};

const UNIT: &str = "sphx-pep.service";
/// Where units of the administrator are, and what is started with the machine.
const UNITS: &str = "etc/systemd/system";
const WANTED: &str = "etc/systemd/system/multi-user.target.wants";
/// Options with a file, what systemd calls it, and where it puts it; a user of its own cannot read the file itself.
const FILES: [(&str, &str, &str); 4] = [
    ("--eln-key", "eln.key", "${CREDENTIALS_DIRECTORY}/eln.key"),
    (
        "--handoff-key",
        "handoff.key",
        "${CREDENTIALS_DIRECTORY}/handoff.key",
    ),
    (
        "--marks-key",
        "marks.key",
        "${CREDENTIALS_DIRECTORY}/marks.key",
    ),
    ("--config", "pep.toml", "${CREDENTIALS_DIRECTORY}/pep.toml"),
];

pub(super) fn install(args: &InstallArgs, context: &Context) -> Outcome<()> {
    let unit = unit(args)?;
    if args.print {
        unit.lines().for_each(|line| context.reporter.data(line));
        return context.reporter.delivered("the unit");
    }
    let place = Place::of(args.root.as_deref())?;
    if args.root.is_none() && !place.live {
        let hint = "--print shows the unit, --root DIR installs it in the tree of another system";
        let message = "systemd does not run here";
        return Err(fail_hint(ErrorKind::LocalIo, message, hint));
    }
    let program = program()?;
    if args.root.is_none()
        && let Some(directory) = closed(&program)
    {
        let hint = format!(
            "with 'install -m 755 {} /usr/local/bin/sphx' and /usr/local/bin/sphx pep install it can be",
            program.display()
        );
        let message = format!(
            "sphx is below {}, where the unit's own user may not go",
            directory.display()
        );
        return Err(fail_hint(ErrorKind::LocalIo, message, hint));
    }
    let before = fs::read_to_string(place.unit()).ok();
    place
        .write(&unit)
        .map_err(|error| failed("install", &place.unit(), error))?;
    if place.live
        && let Err(failure) = reload().and_then(|()| systemctl(&["restart", UNIT]))
    {
        // All or nothing: what was there before is there again, and runs again.
        let was_there = before.is_some();
        let undone = match before {
            Some(before) => place
                .write(&before)
                .map_err(|error| failed("write", &place.unit(), error))
                .and_then(|()| reload())
                .and_then(|()| systemctl(&["restart", UNIT])),
            None => take_away(&place),
        };
        let hint = match undone {
            Ok(()) => {
                let left = match was_there {
                    true => "what was installed before runs again",
                    false => "nothing was installed",
                };
                format!("{left}; 'journalctl --unit sphx-pep' says what it said")
            }
            Err(failure) => {
                format!("and what was there before is not as it was: {failure}")
            }
        };
        return Err(failure.with_hint(hint));
    }
    let verb = if place.live { "runs" } else { "is installed" };
    let path = place.unit();
    context
        .reporter
        .note(&format!("{UNIT} {verb}: {}", path.display()));
    Ok(())
}

pub(super) fn uninstall(args: &UninstallArgs, context: &Context) -> Outcome<()> {
    let place = Place::of(args.root.as_deref())?;
    if args.print {
        for path in place.files().iter().filter(|it| exists(it)) {
            context.reporter.data(&path.display().to_string());
        }
        return context.reporter.delivered("the files");
    }
    take_away(&place)?;
    if args.root.is_none() {
        // Rules of an agent that was killed; those of another one that runs are its own.
        if control::ask("status").is_err_and(|error| error.kind() == Io::ConnectionRefused) {
            attach::clean().map_err(|error| local_io("remove", "the rules", error))?;
        }
    }
    Ok(())
}

/// Stops the service if it runs, and removes its files.
fn take_away(place: &Place) -> Outcome<()> {
    if place.live && exists(&place.unit()) {
        systemctl(&["stop", UNIT])?;
    }
    place
        .remove()
        .map_err(|error| failed("remove", &place.unit(), error))?;
    if place.live {
        reload()?;
        // A unit that had failed would be remembered. There may be nothing to forget.
        let _ = systemctl(&["reset-failed", UNIT]);
    }
    Ok(())
}

/// The text of the systemd unit that runs the agent with these arguments.
fn unit(args: &InstallArgs) -> Outcome<String> {
    if args.run.worker {
        return Err(usage("--worker is for the guard"));
    }
    let mut words = vec![program()?.into_os_string(), "pep".into(), "run".into()];
    let options = options(std::env::args_os());
    let run = file::complete(&args.run, options.clone())?;
    words.extend(options);
    let mut keys = String::new();
    let files = [
        (&args.run.eln_key, &run.eln_key),
        (&args.run.handoff_key, &run.handoff_key),
        (&args.run.marks_key, &run.marks_key),
        (&args.run.config, &None),
    ];
    for ((option, name, place), (given, of_file)) in FILES.iter().zip(files) {
        let Some(path) = given.as_ref().or(of_file.as_ref()) else {
            continue;
        };
        if given.is_none() {
            words.extend([option.into(), place.into()]);
        }
        let path = fs::canonicalize(path)
            .map_err(|error| local_io("read", &path.display().to_string(), error))?;
        // systemd reads no quotes in this setting.
        let path = one_line(path.into())?.replace('%', "%%");
        keys += &format!("LoadCredential={name}:{path}\n");
    }
    let line = words.into_iter().map(quoted).collect::<Outcome<Vec<_>>>()?;
    let what = match run.own.is_given() {
        true => "thin TCP streams of this machine".to_owned(),
        false => format!("TCP over {}", quoted(run.wireless().into())?),
    };
    Ok(format!(
        "[Unit]
Description=Help for {what} (sphx pep)
After=network.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={line}
{keys}Restart=on-failure
RestartSec=5
SuccessExitStatus=130 143
WatchdogSec=10
DynamicUser=yes
NoNewPrivileges=yes
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_SYS_NICE
AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW CAP_SYS_NICE
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_PACKET

[Install]
WantedBy=multi-user.target
",
        line = line.join(" ")
    ))
}

/// The program that the unit runs: this one.
fn program() -> Outcome<PathBuf> {
    std::env::current_exe().map_err(|error| local_io("find", "sphx", error))
}

/// The first directory on the way to a file that users without rights may not enter.
fn closed(path: &Path) -> Option<&Path> {
    let directories: Vec<&Path> = path.ancestors().skip(1).collect();
    let is_closed =
        |directory: &&Path| fs::metadata(directory).is_ok_and(|it| it.mode() & 0o001 == 0);
    directories.into_iter().rev().find(is_closed)
}

/// The options for `sphx pep run` among those of `sphx pep install`.
fn options(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words = words.skip_while(|word| word != "install").skip(1);
    let mut options = Vec::new();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (&*text, None),
        };
        let key = FILES.iter().find(|(option, _, _)| *option == name);
        match key {
            Some((option, _, place)) => options.extend([option.into(), place.into()]),
            None if name == "--print" || name == "--root" => {}
            None => {
                options.push(word);
                continue;
            }
        }
        if value.is_none() && name != "--print" {
            words.next();
        }
    }
    options
}

/// A word as systemd reads it in a command line.
fn quoted(word: OsString) -> Outcome<String> {
    let word = one_line(word)?;
    if FILES.iter().any(|(_, _, place)| word == *place) {
        return Ok(word);
    }
    let plain = |it: char| it.is_ascii_alphanumeric() || "-_./:=,@+|".contains(it);
    if !word.is_empty() && word.chars().all(plain) {
        return Ok(word);
    }
    let mut text = String::from('"');
    for letter in word.chars() {
        match letter {
            '"' | '\\' => text.extend(['\\', letter]),
            '%' | '$' => text.extend([letter, letter]),
            _ => text.push(letter),
        }
    }
    text.push('"');
    Ok(text)
}

fn one_line(word: OsString) -> Outcome<String> {
    match word.into_string() {
        Err(_) => Err(usage("a unit can only have words of UTF-8")),
        Ok(word) if word.chars().any(char::is_control) => {
            Err(usage("a unit can only have words of one line"))
        }
        Ok(word) => Ok(word),
    }
}

/// Where the unit belongs.
#[derive(Debug)]
struct Place {
    root: PathBuf,
    /// The place is this machine's own tree, and systemd runs here.
    live: bool,
}

impl Place {
    fn of(root: Option<&Path>) -> Outcome<Place> {
        let live = root.is_none() && exists(Path::new("/run/systemd/system"));
        let root = root.unwrap_or(Path::new("/")).to_owned();
        if !root.is_dir() {
            let message = format!("there is no directory {}", root.display());
            return Err(fail(ErrorKind::LocalIo, message));
        }
        Ok(Place { root, live })
    }

    fn unit(&self) -> PathBuf {
        self.root.join(UNITS).join(UNIT)
    }

    fn wanted(&self) -> PathBuf {
        self.root.join(WANTED).join(UNIT)
    }

    /// The unit file while it is being written, before it gets its name.
    fn unfinished(&self) -> PathBuf {
        self.root.join(UNITS).join(format!(".{UNIT}.new"))
    }

    /// All files that an installation may have left, also after a crash.
    fn files(&self) -> [PathBuf; 3] {
        [self.wanted(), self.unit(), self.unfinished()]
    }

    /// The file gets its name when all of it has been written.
    fn write(&self, unit: &str) -> io::Result<()> {
        fs::create_dir_all(self.root.join(WANTED))?;
        let mut file = File::create(self.unfinished())?;
        file.write_all(unit.as_bytes())?;
        file.sync_all()?;
        fs::rename(self.unfinished(), self.unit())?;
        match symlink(Path::new("/").join(UNITS).join(UNIT), self.wanted()) {
            Err(error) if error.kind() == Io::AlreadyExists => {}
            made => made?,
        }
        File::open(self.root.join(UNITS))?.sync_all()
    }

    fn remove(&self) -> io::Result<()> {
        for path in self.files() {
            match fs::remove_file(path) {
                Err(error) if error.kind() == Io::NotFound => {}
                removed => removed?,
            }
        }
        // A directory that is empty now may have been there for us; one that is not stays.
        let _ = fs::remove_dir(self.root.join(WANTED));
        Ok(())
    }
}

/// Whether something has this name, be it a link that leads nowhere.
fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn reload() -> Outcome<()> {
    systemctl(&["daemon-reload"])
}

fn systemctl(words: &[&str]) -> Outcome<()> {
    let mut command = Command::new("systemctl");
    command.args(words).stdin(Stdio::null());
    let output = command
        .output()
        .map_err(|error| local_io("run", "systemctl", error))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let message = format!("systemctl {}: {}", words.join(" "), said.trim());
            Err(fail(ErrorKind::LocalIo, message))
        }
    }
}

fn failed(verb: &str, path: &Path, error: io::Error) -> Failure {
    local_io(verb, &path.display().to_string(), error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_program_that_the_units_user_cannot_reach_is_known() {
        let scratch = tempfile::tempdir().expect("a directory");
        let (outer, inner) = (scratch.path().join("o"), scratch.path().join("o/i"));
        fs::create_dir_all(&inner).expect("directories");
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its own");
        };
        mode(scratch.path(), 0o755);
        mode(&outer, 0o755);
        mode(&inner, 0o755);
        let open = closed(&inner.join("sphx")).map(Path::to_owned);
        mode(&outer, 0o700);
        // Whatever is closed above the test's own directory.
        let expected = open.unwrap_or(outer);
        assert_eq!(closed(&inner.join("sphx")), Some(&*expected));
    }

    #[test]
    fn words_are_written_as_systemd_reads_them() {
        for (word, expected) in [
            ("--wireless", "--wireless"),
            ("wlan0", "wlan0"),
            ("snoop:profile=ll", "snoop:profile=ll"),
            ("", "\"\""),
            ("a b", "\"a b\""),
            ("100%$HOME", "\"100%%$$HOME\""),
            ("a\"\\b", "\"a\\\"\\\\b\""),
            ("ä;", "\"ä;\""),
        ] {
            assert_eq!(quoted(word.into()).expect("one line"), expected);
        }
        quoted("a\nExecStartPre=b".into()).expect_err("two lines");
    }

    #[test]
    fn only_options_of_the_agent_are_kept() {
        let options = |line: &str| {
            let words = options(line.split(' ').map(OsString::from));
            let words: Vec<_> = words.iter().map(|it| it.to_string_lossy()).collect();
            words.join(" ")
        };
        assert_eq!(
            options("sphx pep install --print --wireless w --root r --json --root=r"),
            "--wireless w --json"
        );
        for key in ["--eln-key k", "--eln-key=k"] {
            assert_eq!(
                options(&format!("sphx pep install --eln base {key} -q")),
                format!("--eln base --eln-key {} -q", FILES[0].2)
            );
        }
    }
}
