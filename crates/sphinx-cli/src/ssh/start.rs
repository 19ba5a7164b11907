//! The system's ssh, and the `sphx` that it starts at the other end.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use shlex::bytes::{split, try_quote};

use super::Host;
use super::pipe::{Message, Pipe};
use super::push::{CACHE, own_kind, own_name};
use crate::failure::{Failure, Outcome, fail_hint, local_io, usage};
use crate::report::Reporter;
use crate::signals::{Registration, Stop};
use crate::text::{own_command_line_with, printable, shell_line};
use sphinx_transport::ErrorKind;

/// Exit code of ssh where ssh itself fails.
const SSH_FAILED: i32 = 255;
/// Exit codes of shells where a program cannot be run (126), or there is none (127).
const NOT_FOUND: [i32; 2] = [126, 127];
/// How long ssh gets to end once there is nothing more to do.
const END_PATIENCE: Duration = Duration::from_secs(3);
/// The user is told of an end that runs and says nothing for so long.
const SILENCE_NOTICE_DELAY: Duration = Duration::from_secs(2);
/// Longest line of ssh or the other end that is shown.
const LINE_BYTES_MAX: u64 = 2000;
/// Files carry themselves: no forwarding, no terminal, no other command, whatever the configuration says.
const SSH_OPTIONS: [&str; 4] = [
    "-x",
    "-oClearAllForwardings=yes",
    "-oRemoteCommand=none",
    "-oRequestTTY=no",
];
/// Most addresses of the other machine that are tried.
const ADDRESSES_MAX: usize = 2;
/// Exit code of a sphx that does not know the command.
const NOT_KNOWN: i32 = 2;
/// The command by which the other end is started.
pub(crate) const END_COMMAND: &str = "ssh-end";

/// How to run ssh.
#[derive(Clone, Debug)]
pub(crate) struct Rsh {
    words: Vec<OsString>,
    /// How many of them were asked for.
    asked: usize,
    pub(super) host: Host,
}

impl Rsh {
    /// `command` is split into words as a shell does, but no shell is run.
    ///
    /// # Errors
    /// The command has no word, or a quote that does not end.
    pub(crate) fn new(command: &OsStr, host: &Host, ipv4: bool, ipv6: bool) -> Outcome<Self> {
        let words = split(command.as_bytes()).filter(|words| !words.is_empty());
        let Some(words) = words else {
            let shown = printable(command.as_bytes());
            return Err(usage(format!("'{shown}' is no command: -e 'ssh -p 2222'")));
        };
        let asked = words.len();
        let words = words.into_iter().map(OsString::from_vec);
        let family = [(ipv4, "-4"), (ipv6, "-6")];
        let family = family.into_iter().filter(|(wanted, _)| *wanted);
        Ok(Self {
            words: words
                .chain(SSH_OPTIONS.map(OsString::from))
                .chain(family.map(|(_, option)| option.into()))
                .collect(),
            asked,
            host: host.clone(),
        })
    }

    /// Runs a command line of the login shell at the other end.
    pub(super) fn command(&self, line: Option<&OsStr>) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).arg("--");
        command.arg(&self.host.destination).args(line);
        command
    }

    /// The line by which a person runs `command` there.
    fn line(&self, command: &str) -> String {
        let words = self.words[..self.asked].iter();
        let words = words.map(|word| word.as_bytes());
        let words = words.chain([self.host.destination.as_bytes()]);
        let words = words.map(printable).collect::<Vec<_>>();
        format!("{} {command}", shell_line(words))
    }

    /// The addresses that ssh goes to, as far as its configuration says; asked while it connects.
    pub(crate) fn resolve(&self) -> JoinHandle<Vec<IpAddr>> {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).arg("-G").arg("--");
        command.arg(&self.host.destination).stdin(Stdio::null());
        command.stderr(Stdio::null());
        let typed = self.host.name().to_owned();
        thread::spawn(move || {
            let output = command
                .output()
                .ok()
                .filter(|output| output.status.success());
            let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            let text = text.unwrap_or_default();
            let hostname = |line: &str| line.strip_prefix("hostname ").map(str::to_owned);
            let name = text.lines().find_map(hostname).unwrap_or(typed);
            let found = (name.as_str(), 0).to_socket_addrs();
            let found = found.into_iter().flatten().map(|address| address.ip());
            found.take(ADDRESSES_MAX).collect()
        })
    }
}

/// The command line that starts the other end: one word of a shell for everything that is not ours.
///
/// # Errors
/// A path, or an option, with a NUL.
pub(super) fn remote_line(sphx: Option<&OsStr>, options: &[String]) -> Outcome<OsString> {
    let mut arguments = format!(" {END_COMMAND}").into_bytes();
    for option in options {
        let quoted = try_quote(option.as_bytes());
        let quoted = quoted.map_err(|_| usage("an option has a NUL in it"))?;
        arguments.push(b' ');
        arguments.extend_from_slice(&quoted);
    }
    let Some(sphx) = sphx else {
        // The name in the cache is a digest of this program. If that cannot be read, this end cannot have pushed it.
        let pushed = match own_name() {
            // Machines of several architectures may share the home directory: a program for another one is passed over.
            Ok(name) => format!(
                "c=\"{CACHE}/{name}\"; [ -x \"$c\" ] && [ \"$(uname -sm)\" = \"{}\" ] && \
                 exec \"$c\" \"$@\"; ",
                own_kind()
            ),
            Err(_) => String::new(),
        };
        // The line runs in sh, as login shells differ in what they understand.
        let line = format!(
            "exec sh -c '{pushed}\
             command -v sphx >/dev/null 2>&1 && exec sphx \"$@\"; exit 127' sh"
        );
        return Ok(OsString::from_vec([line.into_bytes(), arguments].concat()));
    };
    let bytes = sphx.as_bytes();
    // `~/` is left unquoted, so that the shell at the other end resolves it.
    let (home, path) = match bytes.strip_prefix(b"~/") {
        Some(path) => (&b"~/"[..], path),
        None => (&b""[..], bytes),
    };
    let quoted = try_quote(path).map_err(|_| usage("--remote-sphx has a NUL in it"))?;
    let line = [b"exec ", home, &*quoted, &arguments].concat();
    Ok(OsString::from_vec(line))
}

/// A running ssh with an end of ours behind it.
pub(crate) struct Ssh {
    pub(crate) pipe: Pipe,
    child: Arc<Mutex<Child>>,
    stderr: JoinHandle<()>,
    last_line: Arc<Mutex<String>>,
    rsh: Rsh,
    /// The program that was named, if one was.
    sphx: Option<String>,
    /// Nothing that ssh still has to do is waited for.
    done: AtomicBool,
    _registration: Registration,
}

impl Ssh {
    /// Starts it; `options` are for the end that it starts. What it says goes to standard error, line by line and made safe to print.
    pub(crate) fn start(
        rsh: &Rsh,
        sphx: Option<&OsStr>,
        options: &[String],
        reporter: &Reporter,
        stop: &Stop,
    ) -> Outcome<Self> {
        let line = remote_line(sphx, options)?;
        let mut command = rsh.command(Some(&line));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        let program = printable(rsh.words[0].as_bytes());
        let mut child = (command.spawn()).map_err(|error| local_io("start", &program, error))?;
        let taken = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = taken else {
            unreachable!("all three are piped");
        };
        let pipe = Pipe::start(stdout, stdin)?;
        let reporter = reporter.clone();
        let last_line = Arc::new(Mutex::default());
        let last = last_line.clone();
        let stderr = thread::spawn(move || pass_on(stderr, &reporter, &last));
        let child = Arc::new(Mutex::new(child));
        let killed = child.clone();
        let registration = stop.on_stop(move || {
            let _ = lock(&killed).kill();
        });
        Ok(Self {
            pipe,
            child,
            stderr,
            last_line,
            rsh: rsh.clone(),
            sphx: sphx.map(|sphx| printable(sphx.as_bytes())),
            done: AtomicBool::new(false),
            _registration: registration,
        })
    }

    /// A message that the other end owes, however long somebody needs to type a password.
    ///
    /// # Errors
    /// There is no end of ours: what to do about it.
    pub(crate) fn next(&self, reporter: &Reporter) -> Result<Message, NoEnd> {
        let mut told = false;
        loop {
            match self.pipe.message(Some(SILENCE_NOTICE_DELAY)) {
                Ok(Some(message)) => return Ok(message),
                // Before the greeting, ssh may be waiting for a password.
                Ok(None) if self.pipe.is_greeted() && !told => {
                    told = true;
                    reporter.warn("the other end runs, and waits for its disk");
                }
                Ok(None) => {}
                Err(failure) => return Err(self.no_first(failure)),
            }
        }
    }

    fn no_first(&self, failure: Failure) -> NoEnd {
        match (self.pipe.is_greeted(), failure.kind) {
            (true, _) => NoEnd::Failed(failure),
            // The greeting was one of another version.
            (false, ErrorKind::Protocol) => {
                let hint = format!(
                    "use the same version at both ends: {}",
                    self.other("this one")
                );
                NoEnd::Unfit(failure.with_hint(hint))
            }
            (false, _) => self.diagnose(),
        }
    }

    /// Why there was no greeting.
    fn diagnose(&self) -> NoEnd {
        self.pipe.end_output();
        let code = self.end();
        // Gives the thread that reads standard error time for the last line.
        let until = Instant::now() + Duration::from_millis(500);
        while !self.stderr.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        let host = printable(self.rsh.host.destination.as_bytes());
        let works = self.rsh.line("true");
        let said = lock(&self.last_line).clone();
        match code {
            Some(SSH_FAILED) if !said.is_empty() => {
                let refused = ["Permission denied", "Host key verification failed"];
                let kind = match refused.iter().any(|words| said.contains(words)) {
                    true => ErrorKind::Authentication,
                    false => ErrorKind::Unreachable,
                };
                let message = format!("ssh does not get to {host}: {said}");
                let hint = format!("see that this works: {works}");
                NoEnd::Failed(fail_hint(kind, message, hint))
            }
            // ssh exits with this code, too, if a signal has ended the remote program.
            Some(SSH_FAILED) => NoEnd::Unfit(fail_hint(
                ErrorKind::Unreachable,
                format!("ssh does not get to {host}, or the sphx there does not run"),
                format!(
                    "see that this works: {works}; if it does, {}",
                    self.other("it")
                ),
            )),
            Some(code) if NOT_FOUND.contains(&code) => NoEnd::Unfit(fail_hint(
                ErrorKind::Unreachable,
                match &self.sphx {
                    Some(sphx) => format!("there is no {sphx} at {host}"),
                    None => format!("there is no sphx at {host}"),
                },
                self.other("it"),
            )),
            Some(NOT_KNOWN) => NoEnd::Unfit(fail_hint(
                ErrorKind::Protocol,
                format!("the sphx at {host} is an older one"),
                self.other("this one"),
            )),
            Some(code) => NoEnd::Unfit(fail_hint(
                ErrorKind::Protocol,
                format!("the sphx at {host} has not answered (exit status {code})"),
                format!(
                    "it has to be of the version of this end: {}",
                    self.other("this one")
                ),
            )),
            None => NoEnd::Failed(fail_hint(
                ErrorKind::Protocol,
                format!("the sphx at {host} has not answered"),
                format!("see that this works: {works}"),
            )),
        }
    }

    /// How there comes to be another sphx at the other end than the one that was started.
    fn other(&self, what: &str) -> String {
        match &self.sphx {
            Some(_) => {
                "name another with --remote-sphx; without it, --push puts this one there".to_owned()
            }
            None => format!(
                "put {what} there with this line: {}; or say where it is with --remote-sphx PATH",
                own_command_line_with("--push")
            ),
        }
    }

    /// Everything has been done at both ends. ssh takes round trips to end, and more where packets are lost: nobody has to
    /// wait for that, nor is it killed, as other connections may share it.
    pub(crate) fn done(&self) {
        self.done.store(true, Ordering::Relaxed);
    }

    /// Lets ssh end: its exit code.
    fn end(&self) -> Option<i32> {
        let until = Instant::now() + END_PATIENCE;
        loop {
            match lock(&self.child).try_wait() {
                Ok(Some(status)) => return status.code(),
                Ok(None) if Instant::now() < until => {}
                _ => return None,
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        self.pipe.end_output();
        if !self.done.load(Ordering::Relaxed) && self.end().is_none() {
            let mut child = lock(&self.child);
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Why the other end could not be started.
pub(crate) enum NoEnd {
    /// There is no sphx, or none that does what it is started for.
    Unfit(Failure),
    Failed(Failure),
}

impl NoEnd {
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Self::Unfit(failure) | Self::Failed(failure) => failure,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shows lines that come from elsewhere, and keeps the last one.
pub(super) fn pass_on(input: impl Read, reporter: &Reporter, last: &Mutex<String>) {
    let mut input = BufReader::new(input);
    loop {
        let mut line = Vec::new();
        match input
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
        {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let shown = printable(line.trim_ascii_end());
        if !shown.is_empty() {
            reporter.notice(&shown);
            *lock(last) = shown;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(sphx: &str) -> String {
        let options = ["--udp-port=1-2".to_owned(), "--cc=a b'c".to_owned()];
        let line = remote_line(Some(OsStr::new(sphx)), &options).expect("no NUL");
        line.into_string().expect("text")
    }

    #[test]
    fn a_shell_sees_one_word() {
        for (path, quoted) in [
            ("/opt/sphx", "/opt/sphx"),
            ("~/bin/sphx", "~/bin/sphx"),
            ("a b", "'a b'"),
            ("x; rm -rf /", "'x; rm -rf /'"),
            ("$(x)", "'$(x)'"),
        ] {
            let line = line(path);
            let (start, end) = line.split_once(" ssh-end ").expect("the command");
            assert_eq!(start, format!("exec {quoted}"));
            let words = split(end.as_bytes()).expect("words");
            assert_eq!(words, [&b"--udp-port=1-2"[..], b"--cc=a b'c"]);
        }
        for path in ["it's", "~/it's; x", "a\nb", "`x`", "!!", "~root/x"] {
            let line = line(path);
            let words = split(line.as_bytes()).expect("a line");
            assert_eq!(words.len(), 5, "{line}");
            assert_eq!(words[1], path.as_bytes(), "{line}");
        }
        assert!(line("~root/x").starts_with("exec '"));
    }

    #[test]
    fn what_was_pushed_from_here_runs_on_such_machines_only() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let put = |path: &str, line: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a directory")).unwrap();
            sphinx_testing::write_program(&path, line).unwrap();
        };
        let line = remote_line(None, &["-4".to_owned()]).expect("no NUL");
        let run = || {
            let mut shell = Command::new("sh");
            let path = format!("{}:/usr/bin:/bin", root.path().join("bin").display());
            shell.arg("-c").arg(&line).env("PATH", path);
            let output = shell.env("XDG_CACHE_HOME", root.path()).output();
            String::from_utf8(output.expect("a shell").stdout).expect("text")
        };
        put("bin/sphx", "echo installed \"$@\"");
        assert_eq!(run(), "installed ssh-end -4\n");
        let name = own_name().expect("this program");
        put(&format!("sphx/{name}"), "echo pushed \"$@\"");
        assert_eq!(run(), "pushed ssh-end -4\n");
        put("bin/uname", "echo Plan9 mips");
        assert_eq!(run(), "installed ssh-end -4\n");
    }

    #[test]
    fn options_are_split_and_no_shell_runs() {
        let host = Host {
            destination: "me@h".to_owned(),
        };
        let rsh = Rsh::new(OsStr::new("ssh -p 22 -i 'my key' $(x)"), &host, true, false);
        let command = rsh.expect("words").command(Some(OsStr::new("line")));
        let words: Vec<&OsStr> = command.get_args().collect();
        let before = ["-p", "22", "-i", "my key", "$(x)"];
        let after = ["-4", "--", "me@h", "line"];
        let expected = before.iter().chain(&SSH_OPTIONS).chain(&after);
        assert_eq!(words, expected.map(OsStr::new).collect::<Vec<_>>());
        for wrong in ["", "  ", "ssh 'x"] {
            assert!(Rsh::new(OsStr::new(wrong), &host, false, false).is_err());
        }
    }

    #[test]
    fn lines_from_elsewhere_are_shown_safely() {
        let last = Mutex::default();
        pass_on(&b"one\n\x1b[2Jtwo\r\n\n"[..], &Reporter::silent(), &last);
        assert_eq!(*lock(&last), "\\u{1b}[2Jtwo");
    }
}
