//! Puts this program where the other end finds it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use rustix::system::uname;
use sphinx_transport::ErrorKind;

use super::start::{Rsh, pass_on};
use crate::failure::{Failure, Outcome, fail, fail_hint, local_io};
use crate::report::Reporter;
use crate::text::printable;
use crate::units::show_size;

/// Where programs are put; for a shell, in double quotes.
pub(super) const CACHE: &str = "${XDG_CACHE_HOME:-$HOME/.cache}/sphx";
/// Most bytes that the other end may answer, with what its login shell prints before.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// This program's own file, also once another one has its name.
const OWN: &str = "/proc/self/exe";
/// So much of a program's hash is in its name: enough to tell builds apart. Nobody but the user writes to the cache.
const NAME_DIGITS: usize = 16;

/// The name of this program in the cache, which no other build has.
///
/// # Errors
/// It cannot be read.
pub(super) fn own_name() -> Outcome<String> {
    let refused = |error: io::Error| local_io("read", "this program", error);
    let program = File::open(OWN).map_err(refused)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(program).map_err(refused)?;
    let hash = hasher.finalize().to_hex();
    Ok(format!("sphx-{}", &hash[..NAME_DIGITS]))
}

/// System and processor of this machine, as `uname -sm` says them.
pub(super) fn own_kind() -> String {
    let own = uname();
    let own = [own.sysname(), own.machine()].map(|word| word.to_string_lossy().into_owned());
    own.join(" ")
}

/// Asks, where there is somebody to ask, and copies this program into the cache of the user at the other end.
///
/// # Errors
/// The other machine is not of this kind, or does not take it; or nobody wants that.
pub(crate) fn push(rsh: &Rsh, reporter: &Reporter) -> Outcome<()> {
    let host = printable(rsh.host.destination.as_bytes());
    let own = own_kind();
    let mut command = rsh.command(Some(OsStr::new("uname -sm")));
    command.stdin(Stdio::null());
    let answer = run(command, reporter)?;
    let theirs = answer.lines().rfind(|line| !line.trim().is_empty());
    let theirs = theirs.unwrap_or_default().trim();
    if theirs != own {
        return Err(fail_hint(
            ErrorKind::Unreachable,
            format!(
                "{host} is {}, and this program is for {own}",
                printable(theirs.as_bytes())
            ),
            format!("install a sphx for that machine at {host}"),
        ));
    }
    let refused = |error: io::Error| local_io("read", "this program", error);
    let program = File::open(OWN).map_err(refused)?;
    let bytes = program.metadata().map_err(refused)?.len();
    let size = show_size(bytes);
    let name = own_name()?;
    let asks = io::stdin().is_terminal() && io::stderr().is_terminal() && !reporter.json();
    if asks {
        let question = format!("Put this sphx ({size}) into ~/.cache/sphx at {host}? [y/N] ");
        let answer = reporter.ask(&question);
        let answer = answer.map_err(|error| local_io("ask on", "the terminal", error))?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(fail(ErrorKind::Cancelled, "it was declined"));
        }
    }
    // Written beside its place and renamed, with umask 077: it is there whole or not at all, and nobody else can change it. Its length
    // is compared because a lost connection looks to `cat` like the end of the program.
    let line = format!(
        "exec sh -c 'set -e; umask 077; d=\"{CACHE}\"; mkdir -p \"$d\"; t=\"$d/.new-$$\"; \
         trap \"rm -f \\\"\\$t\\\"\" EXIT; cat >\"$t\"; \
         [ $(wc -c <\"$t\") -eq {bytes} ] || {{ echo \"only a part of it has come\" >&2; exit 1; }}; \
         chmod 700 \"$t\"; mv -f \"$t\" \"$d/{name}\"'"
    );
    let mut command = rsh.command(Some(OsStr::new(&line)));
    command.stdin(program);
    run(command, reporter)?;
    reporter.note(&format!(
        "put this sphx ({size}) into ~/.cache/sphx at {host}"
    ));
    Ok(())
}

/// Runs a line at the other end: what it says.
fn run(mut command: Command, reporter: &Reporter) -> Outcome<String> {
    let refused = |error| local_io("run", "ssh", error);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(refused)?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        unreachable!("both are piped");
    };
    let reporter = reporter.clone();
    let errors = thread::spawn(move || pass_on(stderr, &reporter, &Mutex::default()));
    let mut answer = Vec::new();
    let read = stdout.take(ANSWER_BYTES_MAX).read_to_end(&mut answer);
    let status = child.wait().map_err(refused)?;
    let _ = errors.join();
    read.map_err(refused)?;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&answer).into_owned()),
        false => Err(not_pushed()),
    }
}

fn not_pushed() -> Failure {
    fail_hint(
        ErrorKind::RemoteIo,
        "the other machine does not take this program",
        "what it said is above",
    )
}
