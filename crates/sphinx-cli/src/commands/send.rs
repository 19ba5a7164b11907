//! `sphx send`.

use std::sync::Arc;

use sphinx_netdev::usage;
use sphinx_transport::{Options, Profile, Service, Ticket};

use super::Context;
use super::ctl::Control;
use super::retry::{Deed, Retry, tell_how};
use super::uplinks::Following;
use crate::args::{SendArgs, ticket};
use crate::failure::{Outcome, local_io, usage as misused};
use crate::files::roots::Root;
use crate::files::{Announced, SourceKey, roots, send};
use crate::report::{Done, Figures, Names, PathTeller, Progress, Role, Ticker};

pub(crate) fn run(args: SendArgs, context: &Context) -> Outcome<u8> {
    let environment = std::env::var_os("SPHX_TICKET");
    let (source, paths) =
        ticket::split_arguments(args.ticket_file.as_deref(), args.arguments, environment)?;
    if paths.is_empty() && args.stdin.is_none() {
        return Err(misused("there is a ticket but no path to send"));
    }
    // What is wrong on this side is found before the other is troubled.
    let roots = roots::roots(paths, args.stdin.as_deref())?;
    if source == ticket::Source::Stdin && roots::reads_stdin(&roots) {
        return Err(misused(
            "standard input cannot be both the ticket and what is sent",
        ));
    }
    let can_go_on = roots::can_be_read_again(&roots);
    if args.retry.is_some() && !can_go_on {
        return Err(misused(
            "--retry cannot read a stream a second time: send files and directories",
        ));
    }
    let key = SourceKey::load().map_err(|error| local_io("make", "a key", error))?;
    let announced = roots::announce(&roots)?;
    ticket::note_exposure(&source, &context.reporter);
    // What comes twice is the same transfer, and nothing is done for who cannot finish the handshake.
    let options = Options {
        early_data: true,
        ..args.common.options(Profile::Bulk)?
    };
    let sending = Sending {
        ticket: ticket::read(source)?,
        options: args.paths.apply(options)?,
        names: args.paths.names(),
        control: args.paths.is_used().then(Control::listen),
        is_auto: args.paths.is_auto(),
        roots,
        key,
        context,
    };
    let mut retry = Retry::new(args.retry);
    let sent = sending.until_done(announced, &mut retry);
    tell_how(sent, Deed::Sends, can_go_on && retry.has_begun(), context)
}

/// What stays the same for all sessions of one sending command.
struct Sending<'a> {
    ticket: Ticket,
    options: Options,
    /// Names of the session's paths.
    names: Names,
    /// Answers questions about the paths (`sphx ctl`).
    control: Option<Control>,
    /// Whether paths follow the machine's uplinks.
    is_auto: bool,
    roots: Vec<Root>,
    key: SourceKey,
    context: &'a Context,
}

impl Sending<'_> {
    /// Sends; connects again for so long after a session was lost.
    fn until_done(&self, announced: Announced, retry: &mut Retry) -> Outcome<u8> {
        let mut announced = announced;
        loop {
            let failure = match self.once(announced, retry) {
                Ok(code) => return Ok(code),
                Err(failure) => failure,
            };
            retry.wait(failure, self.context)?;
            announced = roots::announce(&self.roots)?;
        }
    }

    fn once(&self, announced: Announced, retry: &mut Retry) -> Outcome<u8> {
        let (session, _registration) =
            (self.context).connect(&self.ticket, Service::Files, &self.options)?;
        if session.is_confirmed() {
            retry.connected();
        }
        let announced = Announced {
            source: Some(self.key.roots(&self.roots)),
            ..announced
        };
        let reporter = self.context.reporter.session();
        let progress = Arc::new(Progress::default());
        progress.expect_bytes(announced.bytes.unwrap_or(0));
        let stats = session.clone();
        let teller = PathTeller::new(&session, &reporter, &self.names);
        let control = self.control.as_ref();
        let _asked = control.map(|control| control.about(&session, &self.names));
        let follow = || Following::start(&session, &self.names, &reporter);
        let _following = self.is_auto.then(follow).transpose()?;
        let paths = teller.clone();
        let ticker = Ticker::start(&reporter, progress.clone(), None, move || {
            paths.tell();
            Figures::new(Role::Sender, stats.stats())
        });
        let sent = send::send(
            &session,
            &self.roots,
            announced,
            &self.key,
            &progress,
            &reporter,
        );
        drop(ticker);
        teller.tell();
        if session.is_confirmed() {
            retry.connected();
        }
        let (transferred, stats) = sent?;
        let code = transferred.exit_code()?;
        let bytes = transferred.counts.bytes;
        let done = Done::of_files(Role::Sender, bytes, stats, usage::cpu_time());
        reporter.done(transferred.add_to(done.event()));
        transferred.tell(&done.summary(), &reporter);
        Ok(code)
    }
}
