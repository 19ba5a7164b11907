//! `sphx recv`.

use std::sync::Arc;

use sphinx_transport::{Profile, Service, Session};

use super::{Context, listen};
use crate::args::RecvArgs;
use crate::failure::Outcome;
use crate::files::{OutputDir, recv};
use crate::report::{Done, Progress, Role, Ticker};
use crate::usage;

pub(crate) fn run(args: RecvArgs, context: &Context) -> Outcome<()> {
    // A directory that cannot be written to is found before anybody is invited to send.
    let output = OutputDir::open(&args.output, args.overwrite)?;
    let options = args.common.options(Profile::Bulk);
    let server = listen::bind(
        &args.listen,
        &args.common,
        Service::Files,
        &options,
        context,
        "send TICKET PATH…",
    )?;
    let scope = context.clone();
    let session = move |session: &Session| receive_one(session, &output, &scope);
    listen::serve(&server, args.listen.once, context, session)
}

fn receive_one(session: &Session, output: &OutputDir, context: &Context) -> Outcome<()> {
    let cpu_before = usage::cpu_time();
    let peer = session.remote_addr().to_string();
    let reporter = context.reporter.session();
    let progress = Arc::new(Progress::default());
    let stats = session.clone();
    let ticker = Ticker::start(&reporter, progress.clone(), Some(peer.clone()), move || {
        stats.stats()
    });
    let received = recv::receive(session, output, &progress, &reporter);
    drop(ticker);
    let (totals, stats) = received?;
    let cpu = usage::cpu_time().saturating_sub(cpu_before);
    let done = Done::new(Role::Receiver, totals.bytes, stats, cpu);
    reporter.done(
        done.event()
            .with("entries", totals.entries)
            .with("peer", peer.as_str()),
    );
    reporter.note(&format!("{} from {peer}", done.summary()));
    Ok(())
}
