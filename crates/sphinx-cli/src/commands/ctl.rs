//! `sphx ctl`: questions to a command that runs with `--path`, and its answers.
//!
//! The command listens at a Unix socket without a name on disk, which belongs to the network namespace and goes with the process, as that of
//! `sphx pep` does. One line is asked, one line of JSON is the answer.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde_json::{Value, json};
use sphinx_transport::{ErrorKind, Session};

use super::Context;
use super::asked::{Asked, accepted};
use crate::args::{CtlArgs, CtlCommand, PathsCommand, bond, path};
use crate::failure::{Outcome, fail_hint, local_io};
use crate::report::{Names, Reporter, path_line, paths_of};
use crate::text::printable;

/// What names of sockets begin with; the id of the process follows.
const SOCKET: &str = "sphx-ctl-";
/// Longest question.
const QUESTION_BYTES_MAX: u64 = 4096;
/// How long a client may take to write its question, and to read a piece of the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The session that is asked about, and what its paths are called.
type Current = Arc<Mutex<Option<(Session, Names)>>>;

/// Answers questions while it lives.
pub(crate) struct Control {
    current: Current,
}

impl Control {
    /// Listens from now on. Where that is not possible nobody can ask, and everything else goes on.
    pub(crate) fn listen() -> Self {
        let current = Current::default();
        let listener = SocketAddr::from_abstract_name(name_of(std::process::id()));
        let listener = listener.and_then(|at| UnixListener::bind_addr(&at));
        if let Ok(listener) = listener {
            let current = Arc::clone(&current);
            let body = move || {
                for stream in accepted(listener.incoming()) {
                    // Whoever does not wait for the answer has no use for it.
                    let _ = tell(&stream, &current);
                }
            };
            // The thread is not joined: it ends with the process.
            let _ = thread::Builder::new()
                .name("control".to_owned())
                .spawn(body);
        }
        Self { current }
    }

    /// Questions are about this session while the result lives.
    pub(crate) fn about(&self, session: &Session, names: &Names) -> About {
        *lock(&self.current) = Some((session.clone(), names.clone()));
        About(Arc::clone(&self.current))
    }
}

/// While it lives, questions are about a session.
pub(crate) struct About(Current);

impl Drop for About {
    /// The session is not kept alive by those who might ask.
    fn drop(&mut self) {
        *lock(&self.0) = None;
    }
}

fn lock(current: &Current) -> std::sync::MutexGuard<'_, Option<(Session, Names)>> {
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

fn name_of(process: u32) -> String {
    format!("{SOCKET}{process}")
}

fn tell(stream: &UnixStream, current: &Current) -> io::Result<()> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    // Only root and the user of this process may ask.
    let user = socket_peercred(stream)?.uid;
    if !user.is_root() && user != geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut line = String::new();
    BufReader::new(stream.take(QUESTION_BYTES_MAX)).read_line(&mut line)?;
    let about = lock(current).clone();
    let answer = match about {
        Some((session, names)) => answer(line.trim_end(), &session, &names),
        None => Err("it has no session at present".to_owned()),
    };
    let answer = answer.unwrap_or_else(|why| json!({ "refusal": why }));
    let mut stream = stream;
    writeln!(stream, "{answer}")
}

/// What is said to a question; `Err`: why not.
fn answer(question: &str, session: &Session, names: &Names) -> Result<Value, String> {
    let (verb, rest) = question.split_once(' ').unwrap_or((question, ""));
    match verb {
        "paths" => {}
        "add" => {
            let path = path(rest)?;
            if named(session, names, &path.name).is_some() {
                return Err(format!("there is a path {} already", path.name));
            }
            let add = || session.add_path(&path.options);
            let added = names.put_added(&path.name, add);
            added.map_err(|error| error.to_string())?;
        }
        "remove" => {
            let id =
                named(session, names, rest).ok_or_else(|| format!("there is no path {rest}"))?;
            if !session.abandon_path(id) {
                return Err(format!("{rest} is the last path that works"));
            }
        }
        "bond" => {
            let bond = bond(rest)?;
            session.set_bond(bond);
            return Ok(json!({ "bond": bond.to_string(), "paths": paths_of(session, names) }));
        }
        _ => return Err(format!("{verb}: it does not know this")),
    }
    let bond = session.stats().bond.to_string();
    Ok(json!({ "bond": bond, "paths": paths_of(session, names) }))
}

/// The path of this name, while it is open.
fn named(session: &Session, names: &Names, name: &str) -> Option<u32> {
    let stats = session.stats();
    let mut paths = stats.paths.iter().flatten();
    let path = paths.find(|path| names.of(path.option).as_deref() == Some(name))?;
    Some(path.id)
}

// ---- the other end --------------------------------------------------------------------------------

/// The command.
pub(crate) fn run(args: &CtlArgs, context: &Context) -> Outcome<()> {
    let question = match &args.command {
        CtlCommand::Paths { command: None } => "paths".to_owned(),
        CtlCommand::Paths {
            command: Some(PathsCommand::Add { path }),
        } => format!("add {path}"),
        CtlCommand::Paths {
            command: Some(PathsCommand::Remove { name }),
        } => format!("remove {name}"),
        CtlCommand::Bond { mode } => format!("bond {mode}"),
    };
    if question.contains(['\n', '\r']) {
        return Err(crate::failure::usage("a name of one line is expected"));
    }
    let process = args.pid.map_or_else(the_only_one, Ok)?;
    let answer =
        Asked::connect(name_of(process).as_bytes()).and_then(|asked| asked.answer(&question));
    let answer = answer.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => nobody(format!("process {process} has no paths")),
        _ => local_io("ask", &format!("process {process}"), error),
    })?;
    if let Some(why) = answer.get("refusal").and_then(Value::as_str) {
        return Err(fail_hint(ErrorKind::Usage, why.to_owned(), ""));
    }
    show(&answer, args.json, &context.reporter);
    Ok(())
}

fn nobody(why: String) -> crate::failure::Failure {
    fail_hint(
        ErrorKind::LocalIo,
        why,
        "sphx send and sphx perf client with --path can be asked, by the same user and in the same network namespace",
    )
}

/// The process of this user that can be asked, if it is one.
fn the_only_one() -> Outcome<u32> {
    let table = fs::read_to_string("/proc/net/unix")
        .map_err(|error| local_io("read", "/proc/net/unix", error))?;
    let mut processes = processes(&table);
    processes.retain(|process| {
        let asked = Asked::connect(name_of(*process).as_bytes());
        asked.is_ok_and(|asked| asked.user() == geteuid())
    });
    match processes[..] {
        [process] => Ok(process),
        [] => Err(nobody("no sphx with several paths is running".to_owned())),
        ref several => {
            let several: Vec<String> = several.iter().map(u32::to_string).collect();
            Err(fail_hint(
                ErrorKind::Usage,
                format!("several can be asked: processes {}", several.join(", ")),
                "name one: sphx ctl --pid PID …",
            ))
        }
    }
}

/// The processes that listen, from a table of sockets as the kernel writes it.
fn processes(table: &str) -> Vec<u32> {
    let name = |line: &str| {
        let name = line.rsplit_once(' ')?.1.strip_prefix('@')?;
        name.strip_prefix(SOCKET)?.parse::<u32>().ok()
    };
    let mut processes: Vec<u32> = table.lines().filter_map(name).collect();
    processes.sort_unstable();
    processes.dedup();
    processes
}

fn show(answer: &Value, is_json: bool, reporter: &Reporter) {
    if is_json {
        return reporter.data(&answer.to_string());
    }
    if let Some(bond) = answer["bond"].as_str() {
        reporter.data(&format!("bond {}", printable(bond.as_bytes())));
    }
    for path in answer["paths"].as_array().into_iter().flatten() {
        reporter.data(&path_line(path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_found_in_the_table() {
        let table = "Num RefCount Protocol Flags Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 1 /run/systemd/private\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 2 @sphx-ctl-4711\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 3 @sphx-ctl-4711\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 4 @sphx-pep\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 5 @sphx-ctl-12\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 6\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 7 @sphx-ctl-x\n";
        assert_eq!(processes(table), [12, 4711]);
        assert!(processes("").is_empty());
    }
}
