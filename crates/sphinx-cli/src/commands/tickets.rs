//! `sphx ticket`: tickets of a receiver or server that keeps them.

use sphinx_transport::Ticket;

use super::{Context, listen, standing};
use crate::args::tickets::{NewTicketArgs, StateArgs, TicketArgs, TicketCommand};
use crate::failure::{Outcome, usage};
use crate::report::Event;
use crate::state::StateDir;
use crate::state::date::Moment;
use crate::state::tickets::{Entry, Tickets};
use crate::units::show_size;

pub(crate) fn run(args: TicketArgs, context: &Context) -> Outcome<()> {
    match args.command {
        TicketCommand::New(args) => new(args, context),
        TicketCommand::List(args) => list(&open(&args.state)?, context),
        TicketCommand::Revoke(args) => {
            let state = open(&args.state)?;
            Tickets::change(&state, |tickets| tickets.remove(&args.name))?;
            let event = Event::new("revoked").with("name", args.name.as_str());
            context.reporter.event(event);
            context.reporter.note(&format!("{} is revoked", args.name));
            Ok(())
        }
    }
}

fn open(args: &StateArgs) -> Outcome<StateDir> {
    StateDir::open(args.state.as_deref(), "recv")
}

fn new(args: NewTicketArgs, context: &Context) -> Outcome<()> {
    let state = open(&args.state)?;
    let expires = args
        .expires
        .map(|time| Moment::now().after(time.as_secs().max(1)));
    let entry = Entry {
        expires,
        uses: args.uses,
        quota: args.quota,
        directory: args.directory,
        permit: args.permit,
        ..Entry::new(args.name)
    };
    let ticket = ticket_of(&state, &entry, &args.advertise)?;
    let name = entry.name.clone();
    // Adding comes first: where the name is taken, no ticket file is written.
    Tickets::change(&state, |tickets| {
        tickets.add(entry)?;
        match &args.ticket_file {
            Some(path) => listen::write_ticket(path, &ticket),
            None => Ok(()),
        }
    })?;
    let event = Event::new("ticket").with("name", name.as_str());
    let event = match &args.ticket_file {
        Some(path) => event.with("ticket_file", crate::state::show(path)),
        None => event,
    };
    context
        .reporter
        .event(event.with("addresses", ticket.addresses()));
    if args.ticket_file.is_none() {
        context.reporter.data(&ticket.to_string());
        context.reporter.end_data();
        context.reporter.delivered("the ticket")?;
    }
    Ok(())
}

/// A ticket for a receiver or server that need not run.
pub(super) fn ticket_of(state: &StateDir, entry: &Entry, advertise: &[String]) -> Outcome<Ticket> {
    let addresses = match advertise.is_empty() {
        true => standing::addresses(state)?,
        false => advertise.to_vec(),
    };
    if addresses.is_empty() {
        let failure = usage("nobody knows yet where the receiver will be");
        return Err(failure.with_hint("start it once, or say so with --advertise HOST:PORT"));
    }
    Ok(standing::server_key(state)?.ticket(&addresses, &entry.secret)?)
}

pub(super) fn list(state: &StateDir, context: &Context) -> Outcome<()> {
    let tickets = Tickets::read(state)?.unwrap_or_default();
    if !standing::has_key(state)? {
        // An empty list says the same as one of another directory.
        context.reporter.note(&format!(
            "sphx: no receiver or server has been started with {}; --state says which directory it has",
            state.shown()
        ));
    }
    let now = Moment::now();
    for entry in &tickets.0 {
        let kind = match entry.grant {
            Some(_) => "invitation",
            None => "ticket",
        };
        let directory = entry
            .directory
            .as_ref()
            .map(|it| it.to_string_lossy().into_owned());
        let event = Event::new("ticket")
            .with("name", entry.name.as_str())
            .with("kind", kind)
            .with("works", entry.admits(now))
            .with("expires", entry.expires.map(|it| it.to_string()))
            .with("uses", entry.uses)
            .with("used", entry.used)
            .with("quota", entry.quota)
            .with("taken", entry.taken)
            .with("directory", directory.clone())
            .with("permit", entry.permits());
        context.reporter.event(event);
        if context.reporter.json() {
            continue;
        }
        let mut line = format!("{:<16} {kind}", entry.name);
        let mut say = |what: Option<String>| line.extend(what.map(|what| format!("  {what}")));
        say((!entry.admits(now)).then(|| "works no more".to_owned()));
        say(entry.expires.map(|it| format!("expires {it}")));
        say(entry
            .uses
            .map(|uses| format!("used {} of {uses}", entry.used)));
        say(entry
            .quota
            .map(|quota| format!("{} of {}", show_size(entry.taken), show_size(quota))));
        say(directory.map(|it| format!("into {it}")));
        say(entry.permits().map(|it| format!("permit {it}")));
        context.reporter.data(&line);
    }
    context.reporter.end_data();
    // Whoever reads it may take as much as he likes.
    Ok(())
}
