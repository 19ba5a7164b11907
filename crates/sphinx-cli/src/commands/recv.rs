//! `sphx recv`.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use sphinx_netdev::usage;
use sphinx_transport::{ErrorKind, Options, Profile, ServerKey, Service, Session, TicketId};

use super::consent::Consent;
use super::listen::{Given, Known};
use super::running::{COME_AGAIN, Running, Turn};
use super::standing::Standing;
use super::{Context, listen};
use crate::args::RecvArgs;
use crate::channel::Channel;
use crate::failure::{Failure, Outcome, code, fail_hint};
use crate::files::{Destination, OutputDir, Rules, recv};
use crate::report::{Done, Figures, Progress, Role, Ticker};
use crate::state::StateDir;
use crate::state::tickets::Entry;
use crate::units::show_duration;

pub(crate) fn run(args: RecvArgs, context: &Context) -> Outcome<u8> {
    // A directory that cannot be written to is found before anybody is invited to send.
    let destination = destination(&args)?;
    let standing = match args.identity {
        true => Some(Standing::open(StateDir::open(
            args.state.as_deref(),
            "recv",
        )?)?),
        false => None,
    };
    let once = args.listen.once || args.stdout;
    let options = Options {
        once,
        ..args.common.options(Profile::Bulk)?
    };
    let options = args.listen.serving.apply(&args.common, options);
    let key = || match &standing {
        Some(standing) => standing.key(),
        None => Ok(ServerKey::generate()),
    };
    let before = || match &standing {
        Some(standing) => standing.was_at(),
        None => Ok(Vec::new()),
    };
    let known = Known {
        services: &[Service::Files],
        key: &key,
        before: &before,
        ticket: match &standing {
            None => Given::First,
            Some(standing) => standing.first()?.map_or(Given::None, Given::Kept),
        },
    };
    let bound = listen::open(&args.listen, &args.common, &known, &options, context)?;
    // The tickets are watched before the server is announced.
    let _watch = match &standing {
        Some(standing) => {
            standing.listens_at(bound.addresses())?;
            Some(standing.watch(bound.server.access(), &context.reporter)?)
        }
        None => None,
    };
    let server = bound.announce(&args.listen, context, "send TICKET PATH…")?;
    let consent = Consent::new(args.yes, &context.reporter);
    let scope = context.clone();
    let running = Running::default();
    let (limits, output) = (rules(&args), args.output.clone());
    let session = move |session: &Session| {
        let receiver = Receiver {
            consent: &consent,
            running: &running,
            stays: !once,
            context: &scope,
        };
        let Some((standing, id)) = standing
            .as_ref()
            .zip(session.peer().and_then(|it| it.ticket()))
        else {
            return receive_one(session, session, &destination, None, &receiver);
        };
        let ticket = standing.ticket(id);
        let own = ticket.and_then(|ticket| of_ticket(&ticket, limits, output.as_deref()));
        let own = own.inspect_err(|failure| match failure.kind {
            ErrorKind::Authentication => {
                session.close(code::AUTHENTICATION, &failure.message);
            }
            // The failure itself is reported at this end only.
            _ => session.close(code::REMOTE_IO, "the receiver cannot use what it keeps"),
        })?;
        let using = Some((standing, id));
        receive_one(session, session, &own, using, &receiver)
    };
    let life = listen::Life {
        once,
        expires: args.expires,
    };
    if let Some(code) = listen::serve(&server, life, context, session)? {
        return Ok(code);
    }
    let time = show_duration(args.expires.unwrap_or_default());
    match life.once {
        true => Err(fail_hint(
            ErrorKind::Unreachable,
            format!("nobody has sent anything within {time}"),
            "receive again with a longer --expires",
        )),
        false => {
            let over = format!("no more transfers are accepted: --expires {time} is over");
            context.reporter.warn(&over);
            Ok(0)
        }
    }
}

/// The destination of files that are sent with a ticket.
fn of_ticket(ticket: &Entry, rules: Rules, output: Option<&Path>) -> Outcome<Destination> {
    Ok(match (output, &ticket.directory) {
        (Some(output), Some(below)) => {
            Destination::Directory(OutputDir::open(&output.join(below), rules)?)
        }
        (None, Some(below)) => Destination::Directory(OutputDir::open(below, rules)?),
        (Some(output), None) => Destination::Directory(OutputDir::open(output, rules)?),
        (None, None) => Destination::OwnDirectories(OutputDir::open(Path::new("."), rules)?),
    })
}

/// What holds unless something else is asked for.
#[cfg(feature = "tunnel")]
pub(super) fn rules_usual() -> Rules {
    Rules {
        partial: true,
        ..Rules::default()
    }
}

fn rules(args: &RecvArgs) -> Rules {
    Rules {
        overwrite: args.overwrite,
        merge: args.merge,
        allow_dotfiles: args.allow_dotfiles,
        partial: !args.no_partial,
        exact_modes: false,
        max_bytes: args.max_bytes,
        max_entries: args.max_entries,
    }
}

fn destination(args: &RecvArgs) -> Outcome<Destination> {
    let rules = rules(args);
    Ok(match &args.output {
        _ if args.stdout => Destination::Stdout(rules),
        Some(output) => Destination::Directory(OutputDir::open(output, rules)?),
        None => Destination::OwnDirectories(OutputDir::open(Path::new("."), rules)?),
    })
}

/// What all transfers of a receiver have in common.
pub(super) struct Receiver<'a> {
    pub(super) consent: &'a Consent,
    pub(super) running: &'a Running,
    /// The receiver waits for further transfers after this one.
    pub(super) stays: bool,
    pub(super) context: &'a Context,
}

impl Receiver<'_> {
    /// What is to be said of a transfer that has begun and failed.
    fn explain(&self, failure: Failure, session: &Session, turn: Option<&Turn>) -> Failure {
        let Some(turn) = turn else {
            // No transfer has begun, so there is none to go on with.
            return failure;
        };
        if turn.makes_way() {
            return Failure {
                message: COME_AGAIN.to_owned(),
                ..failure
            };
        }
        let again = match self.stays {
            true => "the same command at the other end goes on: this end waits for it",
            false => "the same commands at both ends go on",
        };
        if self.context.stop.requested() {
            let note = "what has come is kept: the same commands at both ends go on";
            self.context.reporter.note(note);
            return failure;
        }
        let is_lost = matches!(failure.kind, ErrorKind::PeerLost | ErrorKind::Stalled);
        // A sender also ends its side so when it has heard that this end failed, which knows better what to do about it.
        let is_cancelled = session.peer_code() == Some(code::CANCELLED) && failure.hint.is_empty();
        match is_lost || is_cancelled {
            true => failure.with_hint(again),
            false => failure,
        }
    }
}

/// Receives one transfer over `channel`, which is the session's; its exit code.
pub(super) fn receive_one(
    session: &Session,
    channel: &impl Channel,
    destination: &Destination,
    using: Option<(&Standing, TicketId)>,
    receiver: &Receiver<'_>,
) -> Outcome<u8> {
    let Receiver {
        consent,
        running,
        context,
        ..
    } = *receiver;
    let cpu_before = usage::cpu_time();
    let peer = session.remote_addr().to_string();
    let reporter = context.reporter.session();
    let progress = Arc::new(Progress::default());
    let place = destination.to_string();
    // Started after the question for consent: a progress bar would write over it.
    let ticker = RefCell::new(None);
    // Until what was being received has let go of its files.
    let turn = RefCell::new(None);
    let counted = RefCell::new(None);
    let ask = |announced| {
        if !running.is_accepted(announced) {
            consent.ask(&peer, announced, &place)?;
        }
        turn.replace(running.begin(announced, session));
        let mut allowed = None;
        if let Some((standing, id)) = using {
            let begun = standing.begin(id, announced)?;
            allowed = begun.allowed();
            counted.replace(Some(begun));
        }
        let stats = session.clone();
        let started = Ticker::start(&reporter, progress.clone(), Some(peer.clone()), move || {
            Figures::new(Role::Receiver, stats.stats())
        });
        ticker.replace(Some(started));
        Ok(allowed)
    };
    let received = recv::receive(channel, destination, &ask, &progress, &reporter);
    drop(ticker);
    if let Some(mut counted) = counted.take() {
        match &received {
            Ok((transferred, _)) => counted.ended(transferred.work.received, true),
            Err(_) => counted.ended(session.stats().bytes_received, false),
        }
    }
    let turn = turn.into_inner();
    let explain = |failure| receiver.explain(failure, session, turn.as_ref());
    let received = received.map_err(explain);
    drop(turn);
    let (transferred, stats) = received?;
    let code = transferred.exit_code()?;
    let cpu = usage::cpu_time().saturating_sub(cpu_before);
    let done = Done::of_files(Role::Receiver, transferred.counts.bytes, stats, cpu);
    let event = transferred.add_to(done.event());
    reporter.done(event.with("peer", peer.as_str()));
    let into = transferred.output.as_deref().unwrap_or(&place);
    let summary = format!("{} from {peer} into {into}", done.summary());
    transferred.tell(&summary, &reporter);
    Ok(code)
}
