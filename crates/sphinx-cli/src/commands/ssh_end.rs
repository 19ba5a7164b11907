//! The end that ssh starts: everything it is told and everything it says goes through the pipe.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sphinx_transport::{ErrorKind, Options, Profile, Service, Session};

use super::{Context, perf};
use crate::args::ssh::{SshEndArgs, udp_patience};
use crate::channel::Channel;
use crate::failure::{Failure, Outcome, code, fail, fail_hint, local_io, protocol};
use crate::files::roots::Root;
use crate::files::{
    Announced, Destination, Expected, Landing, OutputDir, SourceKey, Sync, recv, roots, send,
};
use crate::report::Progress;
use crate::ssh::address::Ends;
use crate::ssh::meeting::{Endpoint, Met, meet_started, ticket_at};
use crate::ssh::messages::{Failed, Listening, Named, Offer, Request, Task, Why};
use crate::ssh::pipe::{Message, Pipe};

/// How long files get to be let go of once ssh has gone.
const GRACE: Duration = Duration::from_secs(3);

pub(crate) fn run(args: &SshEndArgs, context: &Context) -> Outcome<u8> {
    if io::stdin().is_terminal() {
        return Err(fail_hint(
            ErrorKind::Usage,
            "this is for ssh to start",
            "sphx cp and sphx perf client do that, from another machine",
        ));
    }
    let refused = |error| local_io("use", "standard input and output", error);
    let input = io::stdin().as_fd().try_clone_to_owned().map_err(refused)?;
    let output = io::stdout().as_fd().try_clone_to_owned().map_err(refused)?;
    // The end that asks tells its user; said twice, by somebody else, it would only confuse.
    let nowhere = File::options()
        .write(true)
        .open("/dev/null")
        .map_err(refused)?;
    rustix::stdio::dup2_stderr(&nowhere).map_err(|error| refused(error.into()))?;
    let pipe = Pipe::start(File::from(input), File::from(output))?;
    let served = serve(&pipe, args, context);
    if let Err(failed) = &served {
        // It fails if the other end has gone, which needs no reason then.
        let _ = pipe.failed(failed.clone());
    }
    served.map_err(Failure::from)
}

/// What this end is to do.
enum Job {
    Receive(OutputDir),
    Send(Vec<Root>),
    Measure,
}

fn serve(pipe: &Pipe, args: &SshEndArgs, context: &Context) -> Result<u8, Failed> {
    let common = &args.common;
    let (service, profile) = match args.measure {
        false => (Service::Files, Profile::Bulk),
        // Auto: the profile depends on what the client measures.
        true => (Service::Perf, Profile::Auto),
    };
    let options = Options {
        connect_timeout: udp_patience(&args.written.0, common),
        ..common.options(profile)?
    };
    let ends = Ends::of_this_process();
    let family = (common.ipv4, common.ipv6);
    let reached = ends.map(|ends| ends.server);
    let endpoint = Endpoint::open(args.udp_port.iter(), reached, service, &options, family);
    let ticket = endpoint.as_ref().map(Endpoint::ticket);
    // Before anything is asked for: ssh has passed nothing on yet, and the other end can be on its way.
    pipe.listening(Listening { ticket })?;
    let request = match pipe.message(None)? {
        Some(Message::Request(request)) if request.task.service() == service => request,
        _ => return Err(protocol("a message out of turn").into()),
    };
    let (job, name) = prepare(&request)?;
    pipe.offer(Offer { name })?;
    let client: Vec<_> = ends.map(|ends| ends.client).into_iter().collect();
    let asking = request.ticket.as_deref();
    let asking = asking
        .map(|text| ticket_at(text, &client, true))
        .transpose()?;
    let met = meet_started(pipe, endpoint, asking, service, &options)?;
    let done = match &met {
        Met::Udp { session, .. } => {
            let _registration = context.close_on_stop(session);
            end_with(pipe, Some(session))?;
            match job {
                Job::Measure => {
                    perf::serve_one(session, session, options.profile, context).map(|()| 0)
                }
                job => work(session, &job, context),
            }
        }
        Met::Ssh => {
            if let Some(limit) = options.limit {
                pipe.limit(limit);
            }
            end_with(pipe, None)?;
            work(pipe, &job, context)
        }
    };
    Ok(done?)
}

/// Once the pipe has gone nobody is left to work for.
fn end_with(pipe: &Pipe, session: Option<&Session>) -> Outcome<()> {
    let (pipe, session) = (pipe.clone(), session.cloned());
    let body = move || {
        pipe.wait_end();
        if let Some(session) = session {
            session.close(code::CANCELLED, "the ssh connection has ended");
        }
        thread::sleep(GRACE);
        crate::leave(6)
    };
    let started = thread::Builder::new().name("watch".to_owned()).spawn(body);
    started
        .map(drop)
        .map_err(|error| local_io("start", "a thread", error))
}

/// What is to be done, once it is known to be possible; and the name that the only thing that comes is to have.
fn prepare(request: &Request) -> Result<(Job, Option<Vec<u8>>), Failed> {
    let sync = request
        .sync
        .clone()
        .map(|asked| Sync::new(asked).map(Arc::new));
    if let Some(sync) = sync.transpose()? {
        return prepare_sync(request, sync);
    }
    match &request.task {
        Task::Receive {
            destination,
            names,
            again,
        } => {
            let (destination, things) = (path(destination), names.len());
            let landing = match *again && things == 1 {
                true => Landing::under_its_name(&destination)?,
                false => Landing::find(&destination, things, request.rules.recursive)?,
            };
            let rules = request.rules.of_receiver();
            let names = match &landing.name {
                Some(name) => BTreeSet::from([name.clone()]),
                None => names.iter().cloned().collect(),
            };
            let expected = Expected {
                names,
                directories: request.rules.recursive,
            };
            let output = OutputDir::open(&landing.directory, rules)?;
            Ok((Job::Receive(output.expecting(expected)), landing.name))
        }
        Task::Send { sources } => {
            let named = |source: &Named| (path(&source.path), source.name.clone());
            let roots = roots::renamed(sources.iter().map(named).collect())?;
            match roots::find_directory(&roots) {
                Some(shown) if !request.rules.recursive => Err(Failed {
                    why: Why::Directory,
                    message: shown,
                    hint: String::new(),
                }),
                _ => Ok((Job::Send(roots), None)),
            }
        }
        Task::Measure => Ok((Job::Measure, None)),
    }
}

/// As [`prepare`], for a synchronization.
fn prepare_sync(request: &Request, sync: Arc<Sync>) -> Result<(Job, Option<Vec<u8>>), Failed> {
    let job = match &request.task {
        Task::Receive {
            destination, names, ..
        } => {
            let expected = Expected {
                names: names.iter().cloned().collect(),
                directories: true,
            };
            let partial = request.rules.partial;
            let output = OutputDir::synchronized(&path(destination), partial, sync)?;
            Job::Receive(output.expecting(expected))
        }
        Task::Send { sources } => match &sources[..] {
            [source] => {
                let (path, name) = (path(&source.path), source.name.clone());
                if let Some(shown) = roots::no_directory(&path) {
                    return Err(Failed {
                        why: Why::NoDirectory,
                        message: shown,
                        hint: String::new(),
                    });
                }
                Job::Send(roots::synchronized(path, name, sync)?)
            }
            _ => return Err(protocol("a synchronization of several directories").into()),
        },
        Task::Measure => return Err(protocol("a synchronization of nothing").into()),
    };
    Ok((job, None))
}

/// A path at this end: relative to the home directory, where ssh begins.
fn path(bytes: &[u8]) -> PathBuf {
    let home = || std::env::var_os("HOME").map(PathBuf::from);
    let below = |rest: &[u8]| home().map(|home| home.join(OsString::from_vec(rest.to_vec())));
    let found = match bytes {
        b"" => Some(PathBuf::from(".")),
        b"~" => home(),
        [b'~', b'/', rest @ ..] => below(rest),
        _ => None,
    };
    found.unwrap_or_else(|| PathBuf::from(OsString::from_vec(bytes.to_vec())))
}

/// Does it; what went wrong with single files the other end has heard.
fn work<C: Channel>(channel: &C, job: &Job, context: &Context) -> Outcome<u8> {
    let progress = Progress::default();
    let reporter = context.reporter.session();
    let (transferred, _) = match job {
        Job::Receive(output) => {
            let destination = Destination::Directory(output.clone());
            recv::receive(channel, &destination, &|_| Ok(None), &progress, &reporter)?
        }
        Job::Send(roots) => {
            let key = SourceKey::load().map_err(|error| local_io("make", "a key", error))?;
            let announced = Announced {
                source: Some(key.roots(roots)),
                ..roots::announce(roots)?
            };
            send::send(channel, roots, announced, &key, &progress, &reporter)?
        }
        Job::Measure => return Err(protocol("what is measured is UDP")),
    };
    transferred.exit_code()
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self {
            why: match failure.kind {
                ErrorKind::Usage => Why::Usage,
                ErrorKind::LocalIo => Why::Io,
                ErrorKind::Protocol => Why::Protocol,
                _ => Why::Other,
            },
            message: failure.message,
            hint: failure.hint,
        }
    }
}

impl From<Failed> for Failure {
    fn from(failed: Failed) -> Self {
        let kind = match failed.why {
            Why::Directory => {
                return super::cp::directory(&failed.message);
            }
            Why::NoDirectory => {
                return super::cp::no_directory(&failed.message);
            }
            Why::Usage => ErrorKind::Usage,
            Why::Io => ErrorKind::RemoteIo,
            Why::Protocol => ErrorKind::Protocol,
            Why::Other => ErrorKind::Other,
        };
        let message = format!("at the other end: {}", failed.message);
        fail(kind, message).with_hint(failed.hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_home_directory_is_expanded() {
        let home = std::env::var_os("HOME")
            .map(PathBuf::from)
            .unwrap_or_default();
        assert_eq!(path(b""), PathBuf::from("."));
        for plain in ["a/~", "~me/x", "$HOME", "*", "/x"] {
            assert_eq!(path(plain.as_bytes()), PathBuf::from(plain));
        }
        if home.is_absolute() {
            assert_eq!(path(b"~"), home);
            assert_eq!(path(b"~/x/"), home.join("x/"));
        }
    }
}
