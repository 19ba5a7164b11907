//! `sphx send`.

use std::sync::Arc;

use sphinx_transport::{Profile, Service};

use super::Context;
use crate::args::{SendArgs, ticket};
use crate::failure::Outcome;
use crate::files::{send, tree};
use crate::report::{Done, Progress, Role, Ticker};
use crate::usage;

pub(crate) fn run(args: SendArgs, context: &Context) -> Outcome<()> {
    let environment = std::env::var_os("SPHX_TICKET");
    let (source, paths) =
        ticket::split_arguments(args.ticket_file.as_deref(), args.arguments, environment)?;
    // What is wrong on this side is found before the other is troubled.
    let roots = tree::roots(paths)?;
    let announced = tree::totals(&roots)?;
    let ticket = ticket::read(source)?;
    let options = args.common.options(Profile::Bulk);
    let (session, _registration) = context.connect(&ticket, Service::Files, &options)?;

    let reporter = context.reporter.session();
    let progress = Arc::new(Progress::default());
    progress.expect_bytes(announced.bytes);
    let stats = session.clone();
    let ticker = Ticker::start(&reporter, progress.clone(), None, move || stats.stats());
    let sent = send::send(&session, &roots, announced, &progress, &reporter);
    drop(ticker);
    let (totals, stats) = sent?;
    let done = Done::new(Role::Sender, totals.bytes, stats, usage::cpu_time());
    reporter.done(done.event().with("entries", totals.entries));
    reporter.note(&done.summary());
    Ok(())
}
