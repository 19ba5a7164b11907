//! `sphx cp`: this end.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use sphinx_transport::{ErrorKind, Profile};

use super::Context;
use super::reach::{Watch, Way};
use crate::args::cp::CpArgs;
use crate::channel::Channel;
use crate::failure::{Failure, Outcome, PARTIAL, fail_hint, local_io, usage};
use crate::files::roots::Root;
use crate::files::{
    Announced, Destination, Expected, Landing, OutputDir, SourceKey, recv, roots, send,
};
use crate::report::{Done, Figures, Progress, Reporter, Role, Ticker};
use crate::ssh::meeting::Met;
use crate::ssh::messages::{CopyRules, Named, Task};
use crate::ssh::{Host, Place};
use crate::text::{own_command_line, own_command_line_with, printable, shell_line};
use crate::usage as used;

pub(crate) fn run(args: CpArgs, context: &Context) -> Outcome<u8> {
    let (host, job) = Job::plan(&args)?;
    let copied = copy(&args, &host, job, context);
    match copied {
        Ok(PARTIAL) => {
            let line = own_command_line();
            let note = format!("what is missing is copied by the same command again: {line}");
            context.reporter.note(&note);
            Ok(PARTIAL)
        }
        Err(failure) if is_interruption(&failure) => {
            let again = format!("the same command goes on: {}", own_command_line());
            let hint = match failure.hint.is_empty() {
                true => again,
                false => format!("{}; {again}", failure.hint),
            };
            Err(failure.with_hint(hint))
        }
        copied => copied,
    }
}

/// Whether the same command can do better another time.
fn is_interruption(failure: &Failure) -> bool {
    matches!(
        failure.kind,
        ErrorKind::PeerLost | ErrorKind::Stalled | ErrorKind::RemoteIo | ErrorKind::Cancelled
    )
}

/// Which way, with what is wrong on this side found before the other is troubled.
enum Job {
    Send {
        roots: Vec<Root>,
        destination: Vec<u8>,
    },
    Receive {
        sources: Vec<Named>,
        output: OutputDir,
    },
}

impl Job {
    fn plan(args: &CpArgs) -> Outcome<(Host, Self)> {
        let (host, mut sources, destination) = sides(args)?;
        if let Some(source) = sources.iter().find(|source| source.path.contains(&0)) {
            return Err(usage(format!(
                "{} has a NUL in it",
                printable(&source.path)
            )));
        }
        if destination.host.is_some() {
            let roots = roots_of(args, &sources)?;
            let destination = destination.path;
            return Ok((host, Self::Send { roots, destination }));
        }
        let path = PathBuf::from(OsString::from_vec(destination.path));
        let landing = Landing::find(&path, sources.len(), args.recursive)?;
        let mut names = BTreeSet::new();
        let mut named = Vec::new();
        for source in &mut sources {
            let name = match (&landing.name, source.name()) {
                (Some(name), _) => name.clone(),
                (None, Some(name)) => name.to_vec(),
                (None, None) => return Err(nameless(source, &path)),
            };
            if !names.insert(name.clone()) {
                return Err(twice(&name));
            }
            let path = std::mem::take(&mut source.path);
            named.push(Named { path, name });
        }
        let output = OutputDir::open(&landing.directory, rules(args).of_receiver())?;
        let expected = Expected {
            names,
            directories: args.recursive,
        };
        let job = Self::Receive {
            sources: named,
            output: output.expecting(expected),
        };
        Ok((host, job))
    }

    /// What it is for the other end.
    fn task(&self) -> Task {
        match self {
            Self::Send { roots, destination } => Task::Receive {
                destination: destination.clone(),
                names: roots.iter().map(Root::name).collect(),
            },
            Self::Receive { sources, .. } => Task::Send {
                sources: sources.clone(),
            },
        }
    }
}

/// The other machine, the sources, and where they go. One side is there.
fn sides(args: &CpArgs) -> Outcome<(Host, Vec<Place>, Place)> {
    let places: Outcome<Vec<Place>> = args.paths.iter().map(|text| Place::parse(text)).collect();
    let mut sources = places?;
    let destination = sources.pop().filter(|_| !sources.is_empty());
    let Some(destination) = destination else {
        return Err(fail_hint(
            ErrorKind::Usage,
            "there is one path where two are needed",
            "what to copy comes first, then where to: sphx cp FILE HOST:",
        ));
    };
    let is_there = sources.iter().any(|source| source.host.is_some());
    if let Some(host) = &destination.host {
        let Some(source) = sources.iter().find_map(|source| source.host.as_ref()) else {
            return Ok((host.clone(), sources, destination));
        };
        let paths = args
            .paths
            .iter()
            .map(|path| printable(path.as_encoded_bytes()));
        let here = format!("{}:", source.destination);
        let paths = paths.map(|path| path.strip_prefix(&here).map_or(path.clone(), str::to_owned));
        let options = args.recursive.then(|| "-r".to_owned());
        let line = ["sphx".to_owned(), "cp".to_owned()]
            .into_iter()
            .chain(options);
        let line = shell_line(line.chain(paths));
        return Err(fail_hint(
            ErrorKind::Usage,
            "both sides are at other machines",
            format!(
                "run it at one of them: {}",
                shell_line(["ssh".to_owned(), source.destination.clone(), line])
            ),
        ));
    }
    if !is_there {
        let paths = args
            .paths
            .iter()
            .map(|path| printable(path.as_encoded_bytes()));
        let options = args.recursive.then(|| "-r".to_owned());
        let line = ["cp".to_owned()].into_iter().chain(options).chain(paths);
        return Err(fail_hint(
            ErrorKind::Usage,
            "both sides are on this machine",
            format!(
                "another machine is written HOST:PATH; here this does it: {}",
                shell_line(line)
            ),
        ));
    }
    let host = sources.iter().find_map(|source| source.host.clone());
    let host = host.expect("one of them is there");
    if sources
        .iter()
        .any(|source| source.host.as_ref() != Some(&host))
    {
        return Err(fail_hint(
            ErrorKind::Usage,
            "the sources are not at one machine",
            "copy what is at each machine with a command of its own",
        ));
    }
    Ok((host, sources, destination))
}

fn roots_of(args: &CpArgs, sources: &[Place]) -> Outcome<Vec<Root>> {
    let mut names = BTreeSet::new();
    let mut things = Vec::new();
    for source in sources {
        let path = PathBuf::from(OsString::from_vec(source.path.clone()));
        let name = source.name().ok_or_else(|| {
            let shown = printable(&source.path);
            fail_hint(
                ErrorKind::Usage,
                format!("'{shown}' has no name to get at the other end"),
                "name what is to be copied: sphx cp -r ../DIRECTORY HOST:",
            )
        })?;
        if !names.insert(name.to_vec()) {
            return Err(twice(name));
        }
        things.push((path, name.to_vec()));
    }
    let roots = roots::renamed(things)?;
    match roots::find_directory(&roots) {
        Some(shown) if !args.recursive => Err(directory(&shown)),
        _ => Ok(roots),
    }
}

fn twice(name: &[u8]) -> Failure {
    let shown = printable(name);
    usage(format!("two of the sources are called {shown}"))
        .with_hint("copy one of them under another name, with a command of its own")
}

fn nameless(source: &Place, destination: &std::path::Path) -> Failure {
    let host = source.host.as_ref().map_or("", |host| host.name());
    let destination = printable(destination.as_os_str().as_encoded_bytes());
    let destination = destination.trim_end_matches('/');
    fail_hint(
        ErrorKind::Usage,
        format!("what is at {host} has no name to get here"),
        format!("give it one: sphx cp -r {host}:… {destination}/NAME"),
    )
}

/// A directory where none was asked for.
pub(super) fn directory(shown: &str) -> Failure {
    fail_hint(
        ErrorKind::Usage,
        format!("{shown} is a directory"),
        format!("directories need -r: {}", own_command_line_with("-r")),
    )
}

fn copy(args: &CpArgs, host: &Host, mut job: Job, context: &Context) -> Outcome<u8> {
    let options = args.common.options(Profile::Bulk);
    let way = Way {
        host,
        args: &args.ssh,
        common: &args.common,
        options: &options,
    };
    let meanwhile = || match &job {
        Job::Send { roots, .. } => Sending::of(roots).map(Some),
        Job::Receive { .. } => Ok(None),
    };
    let reached = way.reach(job.task(), rules(args), meanwhile, context)?;
    if let (Job::Send { roots, .. }, Some(name)) = (&mut job, reached.name) {
        roots::rename(roots, name)?;
    }
    let end = End {
        job: &job,
        sending: reached.meanwhile,
        host: printable(host.destination.as_bytes()),
        carrier: reached.met.name(),
        reporter: context.reporter.session(),
    };
    let copied = match &reached.met {
        Met::Udp { session, .. } => {
            let _registration = context.close_on_stop(session);
            let watch = Watch::start(&reached.ssh, session)?;
            end.copy(session).map_err(|failure| watch.reason(failure))
        }
        Met::Ssh => {
            context.reporter.warn(&format!(
                "UDP does not get through: going on through ssh, which slows down where packets are lost; to change \
                 that, {}",
                way.advice()
            ));
            end.copy(&reached.ssh.pipe)
        }
    };
    if copied.is_ok() {
        reached.ssh.done();
    }
    copied
}

fn rules(args: &CpArgs) -> CopyRules {
    CopyRules {
        recursive: args.recursive,
        preserve: args.preserve,
        partial: !args.no_partial,
    }
}

/// What a sender has to know of what it sends.
struct Sending {
    key: SourceKey,
    announced: Announced,
}

impl Sending {
    fn of(roots: &[Root]) -> Outcome<Self> {
        Ok(Self {
            key: SourceKey::load().map_err(|error| local_io("make", "a key", error))?,
            announced: roots::announce(roots)?,
        })
    }
}

/// This end of a copy that is about to begin.
struct End<'a> {
    job: &'a Job,
    sending: Option<Sending>,
    host: String,
    carrier: &'static str,
    reporter: Reporter,
}

impl End<'_> {
    fn copy<C: Channel>(&self, channel: &C) -> Outcome<u8> {
        let cpu_before = used::cpu_time();
        let progress = Arc::new(Progress::default());
        let role = match self.job {
            Job::Send { .. } => Role::Sender,
            Job::Receive { .. } => Role::Receiver,
        };
        let stats = channel.clone();
        let ticker = Ticker::start(&self.reporter, progress.clone(), None, move || {
            Figures::new(role, stats.stats())
        });
        let copied = match (self.job, &self.sending) {
            (Job::Send { roots, .. }, Some(Sending { key, announced })) => {
                let announced = Announced {
                    source: Some(key.roots(roots)),
                    ..*announced
                };
                progress.expect_bytes(announced.bytes.unwrap_or(0));
                send::send(channel, roots, announced, key, &progress, &self.reporter)
            }
            (Job::Receive { output, .. }, _) => {
                let destination = Destination::Directory(output.clone());
                recv::receive(
                    channel,
                    &destination,
                    &|_| Ok(()),
                    &progress,
                    &self.reporter,
                )
            }
            (Job::Send { .. }, None) => unreachable!("who sends knows what"),
        };
        drop(ticker);
        let (transferred, stats) = copied?;
        let code = transferred.exit_code()?;
        let cpu = used::cpu_time().saturating_sub(cpu_before);
        let done = Done::of_files(role, transferred.counts.bytes, stats, cpu);
        let event = transferred.add_to(done.event());
        self.reporter.done(event.with("carrier", self.carrier));
        transferred.tell(&self.summary(&done), &self.reporter);
        Ok(code)
    }

    fn summary(&self, done: &Done) -> String {
        let place = match self.job {
            Job::Send { .. } => format!("to {}", self.host),
            Job::Receive { .. } => format!("from {}", self.host),
        };
        let by = match self.carrier {
            "ssh" => " through ssh",
            _ => "",
        };
        format!("{} {place}{by}", done.summary())
    }
}
