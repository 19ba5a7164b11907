//! What `recv` and `perf server` share: listening, the ticket, one session after the other or many
//! side by side.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use sphinx_transport::{Options, Server, ServerKey, Service, Session, Ticket, TicketSecret};
use zeroize::Zeroizing;

use super::{Context, holder};
use crate::addresses::{advertised_again, everywhere};
use crate::args::{CommonArgs, ListenArgs};
use crate::failure::{Failure, Outcome, code, local_io, usage};
use crate::report::Event;
use crate::state::temporary;
use crate::text::printable;

/// How often a waiting server looks whether it has been asked to stop.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(200);
/// How often it looks whether what has begun has ended.
const END_INTERVAL: Duration = Duration::from_millis(5);
/// That a client was refused, or that there are too many, is told at most so often: whoever has seen a client's first packet can send it
/// again.
const REFUSED_INTERVAL: Duration = Duration::from_secs(60);
/// How long sessions get to end after a signal.
const STOP_TIME_MAX: Duration = Duration::from_secs(2);
/// Longest ticket file that is read; every ticket is shorter.
const TICKET_FILE_BYTES_MAX: u64 = 4096;
/// Sessions served at a time; more wait in the endpoint.
const SESSIONS_MAX: usize = 1024;

/// Binds the server and tells the world where it is.
pub(super) fn bind(
    args: &ListenArgs,
    common: &CommonArgs,
    service: Service,
    options: &Options,
    context: &Context,
    peer_command: &str,
) -> Outcome<Server> {
    let known = Known {
        services: &[service],
        key: &|| Ok(ServerKey::generate()),
        ticket: Given::First,
        before: &|| Ok(Vec::new()),
    };
    open(args, common, &known, options, context)?.announce(args, context, peer_command)
}

/// What a listening end is for, what it is known by, and the ticket that it gives out.
pub(super) struct Known<'a> {
    pub(super) services: &'a [Service],
    /// Gives the server's key; called once for each address that is tried.
    pub(super) key: &'a dyn Fn() -> Outcome<ServerKey>,
    pub(super) ticket: Given,
    /// Where tickets have said that it is, if that is kept. Asked for while the machine has no network.
    pub(super) before: &'a dyn Fn() -> Outcome<Vec<String>>,
}

/// The ticket that is given out at the start.
pub(super) enum Given {
    /// The ticket that belongs to the server's key.
    First,
    /// A ticket that was kept from an earlier run.
    Kept(TicketSecret),
    /// No ticket is given out: there are others.
    None,
}

/// A server that is bound and not announced yet.
pub(super) struct Bound {
    pub(super) server: Server,
    ticket: Ticket,
    gives: bool,
}

impl Bound {
    /// The addresses that its tickets name.
    pub(super) fn addresses(&self) -> &[String] {
        self.ticket.addresses()
    }

    /// Tells where the server listens: prints the ticket or writes its file.
    pub(super) fn announce(
        self,
        args: &ListenArgs,
        context: &Context,
        peer_command: &str,
    ) -> Outcome<Server> {
        let (ticket, listen) = (&self.ticket, self.server.local_addr());
        match &args.ticket_file {
            _ if !self.gives => announce_place(ticket, listen, context),
            Some(path) => announce_file(path, ticket, listen, context, peer_command)?,
            None => announce_text(ticket, context, peer_command)?,
        }
        Ok(self.server)
    }
}

/// The same with an identity that may have been kept, in two steps: whatever is to hold before anybody connects can be done between them.
pub(super) fn open(
    args: &ListenArgs,
    common: &CommonArgs,
    known: &Known<'_>,
    options: &Options,
    context: &Context,
) -> Outcome<Bound> {
    let gives = !matches!(known.ticket, Given::None);
    if gives && context.reporter.json() && args.ticket_file.is_none() {
        return Err(usage(
            "--json needs --ticket-file FILE: its events end up in logs, and the ticket is a secret",
        ));
    }
    let port = args.listen.port;
    let candidates = match args.listen.ip {
        Some(ip) if common.ipv4 && ip.is_ipv6() || common.ipv6 && ip.is_ipv4() => {
            return Err(usage(format!(
                "--listen {} is not of the family asked for",
                args.listen
            )));
        }
        Some(ip) => vec![SocketAddr::new(ip, port)],
        None => everywhere(port, common.ipv4, common.ipv6),
    };
    let server = first_bound(&candidates, known, options)?;
    let hosts = match args.advertise.is_empty() {
        true => {
            let (listen, own) = (server.local_addr(), server.own_addresses());
            let (hosts, are_of_before) = advertised_again(listen, own, known.before)?;
            if are_of_before {
                context.reporter.warn(
                    "there is no network: tickets name the addresses of before; start again if they have changed",
                );
            }
            hosts
        }
        false => args.advertise.clone(),
    };
    let ticket = match &known.ticket {
        Given::Kept(secret) => server.ticket_with(&hosts, secret)?,
        Given::First | Given::None => server.ticket(&hosts)?,
    };
    Ok(Bound {
        server,
        ticket,
        gives,
    })
}

fn announce_place(ticket: &Ticket, listen: SocketAddr, context: &Context) {
    let event = Event::new("listening").with("addresses", ticket.addresses());
    context
        .reporter
        .event(event.with("listen", listen.to_string()));
    let addresses = ticket.addresses().join(", ");
    context.reporter.note(&format!("Listening on {addresses}"));
}

/// The first address that can be bound; the reason why the last could not, if none: that of the first may be that there is no IPv6.
fn first_bound(candidates: &[SocketAddr], known: &Known<'_>, options: &Options) -> Outcome<Server> {
    let mut failed = None;
    for address in candidates {
        match Server::bind_with(*address, known.services, (known.key)()?, options) {
            Ok(server) => return Ok(server),
            Err(failure) => failed = Some((*address, failure)),
        }
    }
    let Some((address, failure)) = failed else {
        return Err(usage("there is no address to listen on"));
    };
    let busy = UdpSocket::bind(address).is_err_and(|error| error.kind() == ErrorKind::AddrInUse);
    Err(match holder::of_udp_port(address).filter(|_| busy) {
        Some(holder) => Failure::from(failure).with_hint(format!(
            "{holder} listens there; --listen :0 takes any free port"
        )),
        None => failure.into(),
    })
}

fn announce_file(
    path: &Path,
    ticket: &Ticket,
    listen: SocketAddr,
    context: &Context,
    command: &str,
) -> Outcome<()> {
    write_ticket(path, ticket)?;
    let shown = printable(path.as_os_str().as_encoded_bytes());
    context.reporter.event(
        Event::new("listening")
            .with("ticket_file", shown.as_str())
            .with("addresses", ticket.addresses())
            .with("listen", listen.to_string()),
    );
    context.reporter.note(&format!(
        "Listening on {}. At the other end, with a copy of {shown}, run:\n  \
         sphx {}",
        ticket.addresses().join(", "),
        command.replace("TICKET", &format!("--ticket-file {shown}"))
    ));
    Ok(())
}

fn announce_text(ticket: &Ticket, context: &Context, command: &str) -> Outcome<()> {
    let reporter = &context.reporter;
    reporter.note(&format!(
        "Listening on {}. At the other end run this and paste the ticket (it is a secret: send it \
         as you would a password; $SPHX_TICKET works too):\n  sphx {}",
        ticket.addresses().join(", "),
        command.replace("TICKET", "-")
    ));
    reporter.data(&ticket.to_string());
    reporter.end_data();
    // Waits for the reader: without the ticket nobody could ever connect.
    reporter.delivered("the ticket")
}

/// Writes a ticket to a file that only its owner can read.
pub(super) fn write_ticket(path: &Path, ticket: &Ticket) -> Outcome<()> {
    write_private(path, &line_of(ticket)).map_err(|error| {
        let exists = error.kind() == ErrorKind::AlreadyExists;
        let shown = printable(path.as_os_str().as_encoded_bytes());
        let failure = local_io("write the ticket to", &shown, error);
        match exists {
            true => failure.with_hint("remove it, or choose another name"),
            false => failure,
        }
    })
}

/// The ticket as a line, wiped after use. With room for it from the beginning nothing is left where it was before it grew.
fn line_of(ticket: &Ticket) -> Zeroizing<String> {
    let mut line = Zeroizing::new(String::with_capacity(TICKET_FILE_BYTES_MAX as usize));
    let _ = writeln!(line, "{ticket}");
    line
}

/// Puts the ticket into a file that only its owner can read. Readers see the whole ticket or none.
/// What is there already is replaced only if it is a ticket too: any other name is a mistake that
/// shall not cost a file.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let refuse = |why: &str| Err(io::Error::new(ErrorKind::AlreadyExists, why));
    let replace = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => return Err(error),
        Ok(there) if there.is_file() => match is_replaceable(path)? {
            true => true,
            false => return refuse("it exists and is no ticket"),
        },
        // A device or a pipe is written to in place, and not replaced by a file.
        Ok(_) => match fs::metadata(path) {
            Ok(target) if !target.is_file() && !target.is_dir() => {
                let mut device = OpenOptions::new().write(true).open(path)?;
                return device.write_all(text.as_bytes());
            }
            Ok(target) if target.is_dir() => return Err(ErrorKind::IsADirectory.into()),
            _ => return refuse("it is a symbolic link"),
        },
    };
    let temporary = temporary(path, text.as_bytes())?;
    let placed = match replace {
        true => temporary.persist(path),
        false => temporary.persist_noclobber(path),
    };
    placed.map(drop).map_err(|error| error.error)
}

/// Whether a file holds a ticket or nothing at all.
fn is_replaceable(path: &Path) -> io::Result<bool> {
    let mut start = Zeroizing::new(String::with_capacity(TICKET_FILE_BYTES_MAX as usize + 1));
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)?;
    match file.take(TICKET_FILE_BYTES_MAX).read_to_string(&mut start) {
        Ok(_) => Ok(start.is_empty() || start.parse::<Ticket>().is_ok()),
        Err(error) if error.kind() == ErrorKind::InvalidData => Ok(false),
        Err(error) => Err(error),
    }
}

/// When a notice was given last that could be given again and again.
#[derive(Clone, Default)]
struct Seldom(Arc<Mutex<Option<Instant>>>);

impl Seldom {
    /// Whether the notice is due. If so, it counts as given now.
    fn is_due(&self, now: Instant) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = told.is_none_or(|at| now.saturating_duration_since(at) >= REFUSED_INTERVAL);
        if is_due {
            *told = Some(now);
        }
        is_due
    }
}

/// Tells that a server refuses clients, and why.
#[derive(Default)]
pub(super) struct Refusals(Option<Instant>);

impl Refusals {
    /// Warns if the server has refused a client, once in [`REFUSED_INTERVAL`] at most.
    pub(super) fn look(&mut self, server: &Server, context: &Context) {
        if self.0.is_none_or(|at| at.elapsed() >= REFUSED_INTERVAL)
            && let Some(error) = server.take_refused()
        {
            self.0 = Some(Instant::now());
            let line = format!("a client was refused: {error}");
            context.reporter.warn(&line);
        }
    }
}

/// Sessions that have a thread each.
#[derive(Clone, Default)]
pub(super) struct Crowd {
    count: Arc<AtomicUsize>,
    fullness: Seldom,
}

impl Crowd {
    /// Whether there are as many as may be; warns of that, once in [`REFUSED_INTERVAL`] at most.
    pub(super) fn is_full(&self, context: &Context) -> bool {
        let is_full = self.count.load(Ordering::Relaxed) >= SESSIONS_MAX;
        if is_full && self.fullness.is_due(Instant::now()) {
            let line = format!("{SESSIONS_MAX} sessions are served, the most at a time");
            context.reporter.warn(&line);
        }
        is_full
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Serves one more session in a thread of its own; its failure is reported.
    pub(super) fn serve<T>(
        &self,
        session: Session,
        context: &Context,
        serve: impl FnOnce(&Session) -> Outcome<T> + Send + 'static,
    ) -> Outcome<()> {
        let (count, scope) = (Arc::clone(&self.count), context.clone());
        count.fetch_add(1, Ordering::Relaxed);
        let body = move || {
            let peer = session.remote_addr().to_string();
            let _registration = scope.close_on_stop(&session);
            if let Err(failure) = serve(&session)
                && !scope.stop.requested()
            {
                scope.reporter.error(&failure, None, Some(&peer));
            }
            count.fetch_sub(1, Ordering::Relaxed);
        };
        let started = thread::Builder::new()
            .name("session".to_owned())
            .spawn(body);
        started.map(drop).map_err(|error| {
            self.count.fetch_sub(1, Ordering::Relaxed);
            local_io("start", "a thread", error)
        })
    }

    /// What has begun goes on, but not for long once it has been asked to stop.
    pub(super) fn wait(&self, context: &Context) {
        let mut deadline = None;
        while !self.is_empty() {
            if context.stop.requested() {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + STOP_TIME_MAX);
                if Instant::now() >= deadline {
                    break;
                }
            }
            thread::sleep(END_INTERVAL);
        }
    }
}

/// How long a server accepts sessions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    /// The server ends after the first session.
    pub(super) once: bool,
    /// The server ends after this time.
    pub(super) expires: Option<Duration>,
}

/// Serves sessions until told to stop, until `life` is over, or one with `once`.
///
/// `session` is one session; with `once` its outcome is the command's, otherwise a failure is reported
/// and the server stays up. Nothing is returned when the time is over.
pub(super) fn serve<T>(
    server: &Server,
    life: Life,
    context: &Context,
    session: impl Fn(&Session) -> Outcome<T> + Send + Sync + 'static,
) -> Outcome<Option<T>> {
    let end = life
        .expires
        .and_then(|time| Instant::now().checked_add(time));
    let expired = || end.is_some_and(|end| Instant::now() >= end);
    // A server that has only to stop listening can do so at once.
    let _waiting = context.stop.on_stop(|| {});
    let session = Arc::new(session);
    let crowd = Crowd::default();
    let mut refusals = Refusals::default();
    while !context.stop.requested() && !expired() {
        refusals.look(server, context);
        if crowd.is_full(context) {
            thread::sleep(ACCEPT_INTERVAL);
            continue;
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let wait = left.unwrap_or(ACCEPT_INTERVAL).min(ACCEPT_INTERVAL);
        let accepted = server.accept(Some(wait))?;
        let Some(accepted) = accepted else {
            continue;
        };
        if life.once {
            let _registration = context.close_on_stop(&accepted);
            return session(&accepted).map(Some);
        }
        let (session, refused) = (session.clone(), accepted.clone());
        let begun = crowd.serve(accepted, context, move |accepted| session(accepted));
        if let Err(failure) = begun {
            // Those that have begun go on, and there may be room again when they have ended.
            let peer = refused.remote_addr().to_string();
            context.reporter.error(&failure, None, Some(&peer));
            refused.close(code::CANCELLED, "it cannot start a thread");
        }
    }
    // Whoever comes now hears so at once, and does not wait until what has begun is over.
    while !context.stop.requested() && !crowd.is_empty() {
        if let Some(late) = server.accept(Some(END_INTERVAL))? {
            let why = "no more sessions are accepted: --expires is over";
            late.close(code::CANCELLED, why);
        }
    }
    crowd.wait(context);
    match context.stop.requested() {
        true => Err(context.stop.failure()),
        false => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_so_again_and_again_is_told_once_a_minute() {
        let (told, now) = (Seldom::default(), Instant::now());
        assert!(told.is_due(now));
        let soon = now + REFUSED_INTERVAL / 2;
        assert!(!told.is_due(soon) && !told.clone().is_due(soon));
        assert!(told.is_due(now + REFUSED_INTERVAL));
        assert!(!told.is_due(now + REFUSED_INTERVAL));
    }

    #[test]
    fn tickets_are_private_and_placed_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t");
        write_private(&path, "new\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        // A file whose contents are no ticket is not replaced.
        assert!(write_private(&path, "newer\n").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
        fs::write(&path, "").unwrap();
        write_private(&path, "newer\n").unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(write_private(&directory.path().join("no/t"), "new").is_err());
        assert!(write_private(directory.path(), "new").is_err());
    }
}
