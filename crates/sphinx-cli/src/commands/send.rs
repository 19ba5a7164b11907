//! `sphx send`.

use std::sync::Arc;

use sphinx_transport::{Profile, Service};

use super::Context;
use crate::args::{SendArgs, ticket};
use crate::failure::{Outcome, local_io, usage as misused};
use crate::files::{Announced, SourceKey, roots, send};
use crate::report::{Done, Figures, Progress, Role, Ticker};
use crate::usage;

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
    let key = SourceKey::load().map_err(|error| local_io("make", "a key", error))?;
    let announced = Announced {
        source: Some(key.roots(&roots)),
        ..roots::announce(&roots)?
    };
    ticket::note_exposure(&source, &context.reporter);
    let ticket = ticket::read(source)?;
    let options = args.common.options(Profile::Bulk);
    let (session, _registration) = context.connect(&ticket, Service::Files, &options)?;

    let reporter = context.reporter.session();
    let progress = Arc::new(Progress::default());
    progress.expect_bytes(announced.bytes.unwrap_or(0));
    let stats = session.clone();
    let ticker = Ticker::start(&reporter, progress.clone(), None, move || {
        Figures::new(Role::Sender, stats.stats())
    });
    let sent = send::send(&session, &roots, announced, &key, &progress, &reporter);
    drop(ticker);
    let (transferred, stats) = sent?;
    let code = transferred.exit_code()?;
    let bytes = transferred.counts.bytes;
    let done = Done::of_files(Role::Sender, bytes, stats, usage::cpu_time());
    reporter.done(transferred.add_to(done.event()));
    reporter.note(&format!("{}{}", done.summary(), transferred.remark()));
    Ok(code)
}
