//! `sphx recv`.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use sphinx_transport::{ErrorKind, Options, Profile, Service, Session};

use super::consent::Consent;
use super::running::Running;
use super::{Context, listen};
use crate::args::RecvArgs;
use crate::failure::{Outcome, fail_hint};
use crate::files::{Destination, OutputDir, Rules, recv};
use crate::report::{Done, Figures, Progress, Role, Ticker};
use crate::units::show_duration;
use crate::usage;

pub(crate) fn run(args: RecvArgs, context: &Context) -> Outcome<u8> {
    // A directory that cannot be written to is found before anybody is invited to send.
    let destination = destination(&args)?;
    let once = args.listen.once || args.stdout;
    let options = Options {
        once,
        ..args.common.options(Profile::Bulk)
    };
    let server = listen::bind(
        &args.listen,
        &args.common,
        Service::Files,
        &options,
        context,
        "send TICKET PATH…",
    )?;
    let consent = Consent::new(args.yes, &context.reporter);
    let scope = context.clone();
    let running = Running::default();
    let session =
        move |session: &Session| receive_one(session, &destination, &consent, &running, &scope);
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

fn destination(args: &RecvArgs) -> Outcome<Destination> {
    let rules = Rules {
        overwrite: args.overwrite,
        merge: args.merge,
        allow_dotfiles: args.allow_dotfiles,
        partial: !args.no_partial,
        exact_modes: false,
        max_bytes: args.max_bytes,
        max_entries: args.max_entries,
    };
    Ok(match &args.output {
        _ if args.stdout => Destination::Stdout(rules),
        Some(output) => Destination::Directory(OutputDir::open(output, rules)?),
        None => Destination::OwnDirectories(OutputDir::open(Path::new("."), rules)?),
    })
}

/// Receives one transfer; its exit code.
fn receive_one(
    session: &Session,
    destination: &Destination,
    consent: &Consent,
    running: &Running,
    context: &Context,
) -> Outcome<u8> {
    let cpu_before = usage::cpu_time();
    let peer = session.remote_addr().to_string();
    let reporter = context.reporter.session();
    let progress = Arc::new(Progress::default());
    let place = destination.to_string();
    // A bar would write over the question.
    let ticker = RefCell::new(None);
    // Until what was being received has let go of its files.
    let turn = RefCell::new(None);
    let ask = |announced| {
        if !running.is_accepted(announced) {
            consent.ask(&peer, announced, &place)?;
        }
        turn.replace(running.begin(announced, session));
        let stats = session.clone();
        let started = Ticker::start(&reporter, progress.clone(), Some(peer.clone()), move || {
            Figures::new(Role::Receiver, stats.stats())
        });
        ticker.replace(Some(started));
        Ok(())
    };
    let received = recv::receive(session, destination, &ask, &progress, &reporter);
    drop(ticker);
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
