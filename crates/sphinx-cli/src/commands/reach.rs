//! Reaching another machine through ssh, for whatever is done there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sphinx_transport::{ErrorKind, Io, Options, Session};

use super::Context;
use crate::args::CommonArgs;
use crate::args::ssh::{SshArgs, SshEndArgs, udp_patience};
use crate::failure::{Failure, Outcome, code, fail, local_io, usage};
use crate::files::SyncRequest;
use crate::report::{Event, Reporter};
use crate::ssh::Host;
use crate::ssh::meeting::{Endpoint, Meeting, Met, meet, ticket_at, unexpected};
use crate::ssh::messages::{CopyRules, Listening, Offer, Request, Task};
use crate::ssh::pipe::{Message, Pipe};
use crate::ssh::push::push;
use crate::ssh::start::{NoEnd, Rsh, Ssh};
use crate::text::printable;

/// How long a farewell may come after the pipe has ended.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// The way to another machine.
pub(super) struct Way<'a> {
    pub(super) host: &'a Host,
    pub(super) args: &'a SshArgs,
    pub(super) common: &'a CommonArgs,
    pub(super) options: &'a Options,
}

/// The other end, at work.
pub(super) struct Reached<T> {
    pub(super) met: Met,
    /// What the only thing that is sent to it is to be called, if that is another name.
    pub(super) name: Option<Vec<u8>>,
    /// The result of what was done while ssh connected.
    pub(super) meanwhile: T,
    /// The other end works for as long as this lives: last, so that it is the last to go.
    pub(super) ssh: Ssh,
}

/// Notices that the other end has gone, which the session would notice much later.
pub(super) struct Watch {
    pipe: Pipe,
    gone: Arc<AtomicBool>,
}

impl Watch {
    /// Ends `session` when the other end has ended without ending it.
    pub(super) fn start(ssh: &Ssh, session: &Session) -> Outcome<Self> {
        let gone = Arc::new(AtomicBool::new(false));
        let (pipe, session, told) = (ssh.pipe.clone(), session.clone(), gone.clone());
        let body = move || {
            pipe.wait_end();
            // The other end may still close the session with a reason, which says more.
            if session.wait_closed(FAREWELL_TIMEOUT).is_none() {
                told.store(true, Ordering::Relaxed);
                session.close(code::CANCELLED, "the ssh connection has ended");
            }
        };
        let started = thread::Builder::new().name("watch".to_owned()).spawn(body);
        started.map_err(|error| local_io("start", "a thread", error))?;
        Ok(Self {
            pipe: ssh.pipe.clone(),
            gone,
        })
    }

    /// `failure`, or its cause where that was the end of ssh or of the other end.
    pub(super) fn reason(&self, failure: Failure) -> Failure {
        // Without its pipe the other end gives up, and may say so by the session.
        let is_cancelled = failure.kind == ErrorKind::Cancelled && self.pipe.has_ended();
        match is_cancelled || self.gone.load(Ordering::Relaxed) {
            true => fail(ErrorKind::PeerLost, "the other end, or ssh, has ended"),
            false => failure,
        }
    }
}

impl Way<'_> {
    /// Has the other end do something; does something itself meanwhile.
    pub(super) fn reach<T>(
        &self,
        task: Task,
        rules: CopyRules,
        sync: Option<SyncRequest>,
        meanwhile: impl FnOnce() -> Outcome<T>,
        context: &Context,
    ) -> Outcome<Reached<T>> {
        if self.options.io != Io::Udp {
            let why = "--io is udp where ssh starts the other end: either end may be the one that listens";
            return Err(usage(why));
        }
        let CommonArgs { ipv4, ipv6, .. } = *self.common;
        let options = Options {
            connect_timeout: udp_patience(&self.args.written.0, self.common),
            ..self.options.clone()
        };
        let rsh = Rsh::new(&self.args.rsh, self.host, ipv4, ipv6)?;
        let addresses = rsh.resolve();
        let service = task.service();
        let ports = self.args.udp_port.iter().rev();
        let endpoint = Endpoint::open(ports, None, service, &options, (ipv4, ipv6));
        let request = Request {
            task,
            rules,
            sync,
            ticket: endpoint.as_ref().map(Endpoint::ticket),
        };
        let ssh = self.ask(&rsh, &request, context)?;
        let meanwhile = meanwhile()?;
        let (ssh, listening) = match listening(ssh, &context.reporter) {
            Err(NoEnd::Unfit(_)) if self.args.push => {
                push(&rsh, &context.reporter)?;
                let again = self.ask(&rsh, &request, context)?;
                listening(again, &context.reporter).map_err(NoEnd::into_failure)?
            }
            listening => listening.map_err(NoEnd::into_failure)?,
        };
        // A name service that is slower than ssh has nothing to say that ssh did not know.
        let addresses = match addresses.is_finished() {
            true => addresses.join().unwrap_or_default(),
            false => Vec::new(),
        };
        let ticket = (listening.ticket.as_deref()).map(|text| ticket_at(text, &addresses, false));
        // While it looks whether it can do what it is asked for.
        let meeting = Meeting::begin(ticket.transpose()?, service, &options)?;
        let offer = offer(&ssh, &context.reporter).map_err(NoEnd::into_failure)?;
        let met = meet(&ssh.pipe, endpoint, meeting, options.connect_timeout)?;
        self.announce(&met, &context.reporter);
        Ok(Reached {
            ssh,
            met,
            name: offer.name,
            meanwhile,
        })
    }

    fn ask(&self, rsh: &Rsh, request: &Request, context: &Context) -> Outcome<Ssh> {
        let sphx = self.args.remote_sphx.as_deref();
        let (ports, written) = (self.args.udp_port, &self.args.written);
        let line = SshEndArgs::line(ports, request.task.service(), written);
        let ssh = Ssh::start(rsh, sphx, &line, &context.reporter, &context.stop)?;
        // What fails here is told better by what comes back.
        let _ = ssh.pipe.request(request.clone());
        Ok(ssh)
    }

    fn announce(&self, met: &Met, reporter: &Reporter) {
        let event = Event::new("carrier").with("carrier", met.name());
        reporter.event(match met {
            Met::Udp { session, .. } => event.with("peer", session.remote_addr().to_string()),
            Met::Ssh => event.with("udp_ports", self.args.udp_port.to_string()),
        });
    }

    /// A hint for people: which UDP ports to let in at the other end's host.
    pub(super) fn advice(&self) -> String {
        let host = printable(self.host.destination.as_bytes());
        format!("let UDP ports {} in at {host}", self.args.udp_port)
    }
}

/// Where the other end listens.
fn listening(ssh: Ssh, reporter: &Reporter) -> Result<(Ssh, Listening), NoEnd> {
    match ssh.next(reporter)? {
        Message::Listening(listening) => Ok((ssh, listening)),
        message => Err(NoEnd::Failed(unexpected(message))),
    }
}

/// What the other end is ready for.
fn offer(ssh: &Ssh, reporter: &Reporter) -> Result<Offer, NoEnd> {
    match ssh.next(reporter)? {
        Message::Offer(offer) => Ok(offer),
        message => Err(NoEnd::Failed(unexpected(message))),
    }
}
