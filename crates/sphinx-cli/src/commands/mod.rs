//! The commands: arguments in, a session to a peer, an outcome out.

mod asked;
#[cfg(feature = "tunnel")]
pub(crate) mod clients;
#[cfg(feature = "lab")]
pub(crate) mod codes;
pub(crate) mod config;
mod consent;
pub(crate) mod cost;
pub(crate) mod cp;
pub(crate) mod ctl;
#[cfg(feature = "lab")]
mod experiments;
mod holder;
#[cfg(feature = "tunnel")]
pub(crate) mod join;
#[cfg(feature = "lab")]
pub(crate) mod lab;
#[cfg(feature = "lab")]
mod link;
mod listen;
#[cfg(feature = "lab")]
mod path;
#[cfg(feature = "pep")]
pub(crate) mod pep;
pub(crate) mod perf;
mod reach;
pub(crate) mod recv;
#[cfg(feature = "lab")]
mod requests;
mod retry;
mod running;
pub(crate) mod send;
#[cfg(feature = "tunnel")]
mod server;
pub(crate) mod ssh_end;
mod standing;
pub(crate) mod tickets;
#[cfg(feature = "tunnel")]
pub(crate) mod tunnel;
mod uplinks;

use sphinx_transport::{Options, Service, Session, Ticket, connect};

use crate::failure::{Outcome, code};
use crate::report::Reporter;
use crate::signals::{Registration, Stop};

/// What every command has.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) reporter: Reporter,
    pub(crate) stop: Stop,
}

impl Context {
    /// Tells the peer when a signal comes, for as long as the result lives.
    pub(crate) fn close_on_stop(&self, session: &Session) -> Registration {
        let session = session.clone();
        self.stop
            .on_stop(move || session.close(code::CANCELLED, "interrupted"))
    }

    /// Connects; the signal handler leaves at once while this blocks, there is no peer to tell.
    pub(crate) fn connect(
        &self,
        ticket: &Ticket,
        service: Service,
        options: &Options,
    ) -> Outcome<(Session, Registration)> {
        let session = connect(ticket, service, options)?;
        let registration = self.close_on_stop(&session);
        Ok((session, registration))
    }
}
