//! `sphx cp`: this end.

mod plan;
mod sync;

use std::sync::Arc;

use sphinx_netdev::usage;
use sphinx_transport::Profile;

use super::Context;
use super::reach::{Watch, Way};
use super::retry::{Deed, Retry, tell_how};
use crate::args::CommonArgs;
use crate::args::cp::CpArgs;
use crate::args::ssh::SshArgs;
use crate::channel::Channel;
use crate::failure::{Outcome, local_io};
use crate::files::roots::Root;
use crate::files::{
    Announced, Destination, SourceKey, SyncRequest, Transferred, recv, roots, send,
};
use crate::report::{Done, Figures, Progress, Reporter, Role, Ticker};
use crate::ssh::Host;
use crate::ssh::meeting::Met;
use crate::ssh::messages::CopyRules;
use crate::text::printable;
use crate::units::show_size;

pub(super) use plan::directory;
use plan::{Job, rules};
pub(super) use sync::no_directory;
pub(crate) use sync::run as sync;

pub(crate) fn run(args: CpArgs, context: &Context) -> Outcome<u8> {
    let (host, mut job) = Job::plan(&args)?;
    let asked = Asked {
        host: &host,
        ssh: &args.ssh,
        common: &args.common,
        rules: rules(&args),
        sync: None,
    };
    let mut retry = Retry::new(args.retry);
    let copied = until_done(&asked, &mut job, &mut retry, context);
    tell_how(copied, Deed::Copies, retry.has_begun(), context)
}

/// What is asked of both ends, besides the files.
struct Asked<'a> {
    host: &'a Host,
    ssh: &'a SshArgs,
    common: &'a CommonArgs,
    rules: CopyRules,
    sync: Option<SyncRequest>,
}

fn until_done(
    asked: &Asked<'_>,
    job: &mut Job,
    retry: &mut Retry,
    context: &Context,
) -> Outcome<u8> {
    loop {
        match copy(asked, job, retry, context) {
            Ok(code) => return Ok(code),
            Err(failure) => retry.wait(failure, context)?,
        }
    }
}

fn copy(asked: &Asked<'_>, job: &mut Job, retry: &mut Retry, context: &Context) -> Outcome<u8> {
    let Asked {
        host, ssh, common, ..
    } = *asked;
    let options = common.options(Profile::Bulk)?;
    let way = Way {
        host,
        args: ssh,
        common,
        options: &options,
    };
    let meanwhile = || match &*job {
        Job::Send { roots, .. } => Sending::of(roots).map(Some),
        Job::Receive { .. } => Ok(None),
    };
    let reached = way.reach(
        job.task(),
        asked.rules,
        asked.sync.clone(),
        meanwhile,
        context,
    )?;
    retry.connected();
    if let (Job::Send { roots, named, .. }, Some(name)) = (&mut *job, reached.name) {
        roots::rename(roots, name)?;
        *named = true;
    }
    let end = End {
        job,
        sending: reached.meanwhile,
        host: printable(host.destination.as_bytes()),
        carrier: reached.met.name(),
        dry_run: asked.sync.as_ref().is_some_and(|sync| sync.dry_run),
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
            if let Some(limit) = options.limit {
                reached.ssh.pipe.limit(limit);
            }
            end.copy(&reached.ssh.pipe)
        }
    };
    if copied.is_ok() {
        reached.ssh.done();
    }
    copied
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
    dry_run: bool,
    reporter: Reporter,
}

impl End<'_> {
    fn copy<C: Channel>(&self, channel: &C) -> Outcome<u8> {
        let cpu_before = usage::cpu_time();
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
                    &|_| Ok(None),
                    &progress,
                    &self.reporter,
                )
            }
            (Job::Send { .. }, None) => unreachable!("who sends knows what"),
        };
        drop(ticker);
        let (transferred, stats) = copied?;
        let code = transferred.exit_code()?;
        let cpu = usage::cpu_time().saturating_sub(cpu_before);
        let done = Done::of_files(role, transferred.counts.bytes, stats, cpu);
        let event = transferred.add_to(done.event());
        let event = event.with("carrier", self.carrier);
        self.reporter.done(match self.dry_run {
            true => event.with("dry_run", true),
            false => event,
        });
        let summary = match self.dry_run {
            true => self.trial_summary(&transferred),
            false => self.summary(&done),
        };
        transferred.tell(&summary, &self.reporter);
        Ok(code)
    }

    fn summary(&self, done: &Done) -> String {
        let by = match self.carrier {
            "ssh" => " through ssh",
            _ => "",
        };
        format!("{} {}{by}", done.summary(), self.place())
    }

    /// The summary of a dry run, for people.
    fn trial_summary(&self, transferred: &Transferred) -> String {
        let Transferred { counts, work, .. } = transferred;
        let verb = match self.job {
            Job::Send { .. } => "sent",
            Job::Receive { .. } => "received",
        };
        format!(
            "nothing was changed: {} of {} files would be {verb} {}, {} at most",
            counts.files.saturating_sub(counts.files_present),
            counts.files,
            self.place(),
            show_size(counts.bytes.saturating_sub(work.reused)),
        )
    }

    fn place(&self) -> String {
        match self.job {
            Job::Send { .. } => format!("to {}", self.host),
            Job::Receive { .. } => format!("from {}", self.host),
        }
    }
}
