//! `sphx join`: keeps what a server has invited this user to.

use sphinx_transport::{ErrorKind, Ticket};

use super::Context;
use super::tunnel::{options, runtime, session_failure};
use crate::args::ticket;
use crate::args::tunnel::JoinArgs;
use crate::failure::{Outcome, usage};
use crate::report::Event;
use crate::state::key;
use crate::state::line;
use crate::state::servers::{Servers, key_file};

pub(crate) fn run(args: &JoinArgs, context: &Context) -> Outcome<()> {
    ticket::refuse_two(args.ticket_file.as_deref(), args.ticket.as_deref())
        .map_err(|failure| failure.with_hint("--as NAME says what to call the server here"))?;
    let (source, _) = ticket::find(
        args.ticket_file.as_deref(),
        (args.ticket.as_deref(), None),
        std::env::var_os("SPHX_TICKET"),
    )?;
    ticket::note_exposure(&source, &context.reporter);
    let invitation = ticket::read(source)?;
    let options = options(&args.common)?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => name_of(&invitation)?,
    };
    let place = Servers::place()?;
    // Kept before it is used up: whatever happens next, the key that the server gets is there.
    Servers::add(&place, &name, &invitation)?;
    let key = key::client(&place.file(&key_file(&name)))?;
    let runtime = runtime()?;
    let joining = invitation.with_key(key);
    match runtime.block_on(sphinx_tunnel::join(&joining, &options)) {
        Ok(()) => {}
        Err(error) => {
            let failure = session_failure(error);
            // The answer of an attempt before may have been lost: then the server knows the key.
            let known = failure.kind == ErrorKind::Authentication
                && super::tunnel::is_known(&runtime, &Servers::ticket(&place, &name)?, &options);
            if !known {
                return Err(match failure.kind {
                    ErrorKind::Authentication => failure
                        .with_hint("an invitation works once, and not for long: ask for another"),
                    _ => failure,
                });
            }
        }
    }
    context
        .reporter
        .event(Event::new("joined").with("server", name.as_str()));
    context
        .reporter
        .note(&format!("Joined {name}: sphx tunnel {name} -D 1080"));
    Ok(())
}

/// A server is called by its host, unless that is a number.
fn name_of(ticket: &Ticket) -> Outcome<String> {
    let host = ticket.addresses().iter().find_map(|address| {
        let (host, _) = address.rsplit_once(':')?;
        let is_number = host.starts_with('[') || host.parse::<std::net::IpAddr>().is_ok();
        line::name(host).ok().filter(|_| !is_number)
    });
    host.ok_or_else(|| {
        let failure = usage("the invitation names no host to call the server by");
        failure.with_hint("say what you want to call it: --as office")
    })
}
