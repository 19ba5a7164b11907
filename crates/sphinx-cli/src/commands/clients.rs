//! `sphx server` for many: who its clients are, and the commands that change that, whether or not it runs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sphinx_transport::{
    Access, AccessList, ErrorKind, Peer, PublicKey, ServerKey, TicketId, TicketSecret,
};
use sphinx_tunnel::{Grant, Granted, Limits, Permit, Reserved};

use super::standing::{Loader, Watch, addresses, has_key, keep_addresses, remove_key, server_key};
use super::{Context, listen, tickets as shown};
use crate::args::tunnel::{ClientsArgs, InviteArgs, KeyArgs, KeyCommand, PlaceArgs, RevokeArgs};
use crate::failure::{Outcome, fail};
use crate::report::{Event, Reporter};
use crate::state::clients::{self, Clients, File, Rights};
use crate::state::date::Moment;
use crate::state::tickets::{self, Entry, Tickets};
use crate::state::watch::Watched;
use crate::state::{Lock, StateDir};

/// Where a server's clients and tickets are.
#[derive(Clone)]
pub(super) struct Place {
    state: StateDir,
    authorized: PathBuf,
}

impl Place {
    /// `authorized` is that of the configuration, if it names one.
    pub(super) fn open(state: Option<&Path>, authorized: Option<&Path>) -> Outcome<Self> {
        let state = StateDir::open(state, "server")?;
        let authorized = authorized.map_or_else(|| state.file(clients::FILE), Path::to_owned);
        Ok(Self { state, authorized })
    }

    pub(super) fn of(args: &PlaceArgs) -> Outcome<Self> {
        Self::open(args.state.as_deref(), args.authorized.as_deref())
    }

    fn file(&self) -> File {
        File::new(&self.state, &self.authorized)
    }

    /// Clients and tickets. These first: whoever joins meanwhile becomes a client before the invitation goes, and is found.
    fn read(&self) -> Outcome<(Clients, Tickets)> {
        let tickets = Tickets::read(&self.state)?.unwrap_or_default();
        Ok((Clients::read(&self.authorized)?, tickets))
    }
}

/// Who may do what, as the files say at present.
pub(super) struct Roster {
    place: Place,
    _running: Lock,
    state: Arc<Mutex<State>>,
    /// Secret and permit of the ticket that `--permit` makes for this run; no file holds it.
    first: Option<(TicketSecret, Permit)>,
    loader: OnceLock<Arc<Loader>>,
}

#[derive(Default)]
struct State {
    clients: Clients,
    tickets: Tickets,
    limits: Limits,
    /// The peers that are connected, with what each of them may do.
    granted: Vec<(Peer, Granted)>,
    /// Addresses of the server's network that belong to clients.
    reserved: Reserved,
}

impl Roster {
    /// Nobody else serves from this place meanwhile.
    pub(super) fn open(place: Place, limits: Limits) -> Outcome<Self> {
        let running = place.state.run()?;
        let state = State {
            limits,
            ..State::default()
        };
        Ok(Self {
            place,
            _running: running,
            state: Arc::new(Mutex::new(state)),
            first: None,
            loader: OnceLock::new(),
        })
    }

    pub(super) fn key(&self) -> Outcome<ServerKey> {
        server_key(&self.place.state)
    }

    /// A ticket for this run alone.
    pub(super) fn give_first(&mut self, permit: Permit) -> TicketSecret {
        let secret = TicketSecret::generate();
        self.first = Some((secret.clone(), permit));
        secret
    }

    pub(super) fn listens_at(&self, addresses: &[String]) -> Outcome<()> {
        keep_addresses(&self.place.state, addresses)
    }

    /// The addresses at which the server listened the last time.
    pub(super) fn was_at(&self) -> Outcome<Vec<String>> {
        addresses(&self.place.state)
    }

    /// Addresses that belong to clients, as long as the files say so.
    pub(super) fn reserved(&self) -> Reserved {
        lock(&self.state).reserved.clone()
    }

    /// Other limits for all clients, from now on.
    pub(super) fn set_limits(&self, limits: Limits) {
        let mut state = lock(&self.state);
        state.limits = limits;
        state.grant_again();
    }

    /// Lets in whom the files name, whatever becomes of these.
    pub(super) fn watch(&self, access: Access, reporter: &Reporter) -> Outcome<Watch> {
        let files = vec![
            Watched::new(&self.place.authorized),
            Watched::new(&self.place.state.file(tickets::FILE)),
        ];
        let (place, state) = (self.place.clone(), Arc::clone(&self.state));
        let first = self.first.clone();
        let list = move |now: Moment| {
            let (clients, tickets) = place.read()?;
            let mut list = AccessList::new();
            tickets.admit(&mut list, now);
            if let Some((secret, _)) = &first {
                list.add_ticket(secret.clone(), true);
            }
            for client in clients.0.values() {
                if client.rights.expires.is_none_or(|end| now < end) {
                    list.add_key(client.key);
                }
            }
            let of_tickets = tickets.0.iter().filter_map(|entry| entry.expires);
            let of_clients = clients
                .0
                .values()
                .filter_map(|client| client.rights.expires);
            let next = of_tickets.chain(of_clients).filter(|end| *end > now).min();
            let mut state = lock(&state);
            state.reserved.set(clients.addresses());
            (state.clients, state.tickets) = (clients, tickets);
            state.grant_again();
            Ok((list, next))
        };
        let loader = Loader::new(files, list, access);
        // Fails only if it is set already, and a roster is watched once.
        let _ = self.loader.set(Arc::clone(&loader));
        Watch::start(loader, reporter)
    }

    /// What somebody who has connected may do.
    pub(super) fn grant(&self, peer: Peer) -> Outcome<Granted> {
        let grant = match peer {
            Peer::Ticket(id) => self.by_ticket(id)?,
            Peer::Key(key) => lock(&self.state).of_key(&key),
            Peer::Both(id, key) => self.by_invitation(id, key)?,
        };
        let Some(grant) = grant else {
            return Err(fail(
                ErrorKind::Authentication,
                "the client may do nothing here",
            ));
        };
        let granted = Granted::new(grant);
        let mut state = lock(&self.state);
        state.granted.push((peer, granted.clone()));
        Ok(granted)
    }

    /// Forgets what was granted to a peer that has gone.
    pub(super) fn forget(&self, granted: &Granted) {
        lock(&self.state)
            .granted
            .retain(|(_, other)| !other.is(granted));
    }

    fn by_ticket(&self, id: TicketId) -> Outcome<Option<Grant>> {
        if let Some((secret, permit)) = &self.first
            && secret.id() == id
        {
            let limits = lock(&self.state).limits;
            return Ok(Some(Grant::new("ticket", permit.clone(), limits)));
        }
        let entry = Tickets::change(&self.place.state, |tickets| {
            let Some(entry) = tickets
                .of_id(&id)
                .filter(|entry| entry.admits(Moment::now()))
            else {
                return Ok(None);
            };
            entry.used += u32::from(entry.uses.is_some());
            Ok(Some(entry.clone()))
        })?;
        let limits = lock(&self.state).limits;
        Ok(entry.and_then(|entry| grant_of(&entry, limits)))
    }

    fn by_invitation(&self, id: TicketId, key: PublicKey) -> Outcome<Option<Grant>> {
        let mut tickets = Tickets::read(&self.place.state)?.unwrap_or_default();
        let Some(entry) = tickets.of_id(&id).cloned() else {
            return Ok(None);
        };
        let name = entry.name.clone();
        let place = self.place.clone();
        let Some(settings) = entry.grant else {
            // It is no invitation but a ticket, for which the client's key does not matter.
            return self.by_ticket(id);
        };
        let loader = self.loader.get().cloned();
        let enrol = move || {
            let enrolled = enrol(&place, id, key, &name, &settings);
            // The client may connect as soon as it is told: so the files are read again first.
            let enrolled = enrolled.and_then(|()| loader.as_ref().map_or(Ok(()), |it| it.load()));
            enrolled.map_err(|failure| failure.message)
        };
        Ok(Some(Grant::invitation(entry.name, enrol)))
    }
}

/// Adds a client; its invitation is used up, whoever is faster.
fn enrol(place: &Place, id: TicketId, key: PublicKey, name: &str, settings: &str) -> Outcome<()> {
    let held = place.state.lock()?;
    Tickets::change_held(&place.state, &held, |tickets| {
        let is_it = |entry: &Entry| entry.secret.id() == id && entry.admits(Moment::now());
        let Some(at) = tickets.0.iter().position(is_it) else {
            return Err(fail(ErrorKind::Authentication, "the invitation is used up"));
        };
        // First, as whoever reads the files in between would otherwise find neither, and end the session. A crash leaves both: with the invitation nobody
        // but this client comes in then, as its name is taken.
        place.file().add(&held, key, (name, settings))?;
        tickets.0.remove(at);
        Ok(())
    })
}

fn grant_of(entry: &Entry, limits: Limits) -> Option<Grant> {
    let permit = entry.permit.as_ref()?.parse::<Permit>().ok()?;
    Some(Grant::new(entry.name.as_str(), permit, limits))
}

impl State {
    fn of_key(&self, key: &PublicKey) -> Option<Grant> {
        let client = self.clients.0.get(key)?;
        Some(client.rights.grant(&client.name, self.limits))
    }

    /// Those who are connected may do from now on what the files say by now.
    fn grant_again(&mut self) {
        let by_id: HashMap<TicketId, &Entry> = self
            .tickets
            .0
            .iter()
            .map(|entry| (entry.secret.id(), entry))
            .collect();
        for (peer, granted) in &self.granted {
            let grant = match peer {
                Peer::Key(key) => self.of_key(key),
                Peer::Ticket(id) => by_id.get(id).and_then(|entry| grant_of(entry, self.limits)),
                Peer::Both(..) => None,
            };
            if let Some(grant) = grant {
                granted.set(grant);
            }
        }
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn invite(args: &InviteArgs, context: &Context) -> Outcome<()> {
    let place = Place::of(&args.place)?;
    // With a key made here, it would be an invitation of no server that runs.
    if !has_key(&place.state)? {
        let message = format!("no server has been started with {}", place.state.shown());
        let hint = "say with --state which directory the server has; or start it first";
        return Err(crate::failure::usage(message).with_hint(hint));
    }
    let mut words = vec![format!("permit={}", args.permit)];
    words.extend(args.rate.as_ref().map(|it| format!("rate={it}")));
    words.extend(args.address.map(|it| format!("address={it}")));
    words.extend(args.until.as_ref().map(|it| format!("expires={it}")));
    let rights = Rights::parse(&words).map_err(crate::failure::usage)?;
    let known = Clients::read(&place.authorized)?;
    if let Some(address) = args
        .address
        .filter(|it| known.addresses().any(|own| own == *it))
    {
        let message = format!("another client has the address {address}");
        return Err(crate::failure::usage(message).with_hint("revoke it first, or choose another"));
    }
    if known.named(&args.name).is_some() {
        let failure = crate::failure::usage(format!("there is a client {} already", args.name));
        return Err(failure.with_hint("revoke it first, or choose another name"));
    }
    let entry = Entry {
        expires: Some(Moment::now().after(args.expires.as_secs().max(1))),
        grant: Some(rights.text().to_owned()),
        ..Entry::new(args.name.clone())
    };
    let ticket = shown::ticket_of(&place.state, &entry, &args.advertise)?;
    Tickets::change(&place.state, |tickets| {
        tickets.add(entry)?;
        match &args.ticket_file {
            Some(path) => listen::write_ticket(path, &ticket),
            None => Ok(()),
        }
    })?;
    let event = Event::new("invited").with("name", args.name.as_str());
    context
        .reporter
        .event(event.with("addresses", ticket.addresses()));
    match &args.ticket_file {
        Some(path) => context.reporter.note(&format!(
            "At the other end, with a copy of {0}, run:\n  sphx join --ticket-file {0}",
            crate::state::show(path)
        )),
        None => {
            context.reporter.data(&ticket.to_string());
            context.reporter.end_data();
            context.reporter.delivered("the invitation")?;
        }
    }
    Ok(())
}

pub(crate) fn list(args: &ClientsArgs, context: &Context) -> Outcome<()> {
    let place = Place::of(&args.place)?;
    let clients = Clients::read(&place.authorized)?;
    let now = Moment::now();
    for client in clients.sorted() {
        let works = client.rights.expires.is_none_or(|end| now < end);
        let event = Event::new("client")
            .with("name", client.name.as_str())
            .with("key", client.key.to_string())
            .with("works", works)
            .with("settings", client.rights.text());
        context.reporter.event(event);
        if !context.reporter.json() {
            let gone = if works { "" } else { "  works no more" };
            let line = format!("{:<16} {}{gone}", client.name, client.rights.text());
            context.reporter.data(&line);
        }
    }
    shown::list(&place.state, context)
}

pub(crate) fn revoke(args: &RevokeArgs, context: &Context) -> Outcome<()> {
    let place = Place::of(&args.place)?;
    let is_client = place.file().remove(&args.name)?;
    let is_ticket = Tickets::change(&place.state, |tickets| {
        let before = tickets.0.len();
        tickets.0.retain(|entry| entry.name != args.name);
        Ok(tickets.0.len() < before)
    })?;
    if !is_client && !is_ticket {
        let (clients, tickets) = place.read()?;
        let names = clients.0.values().map(|client| client.name.as_str());
        let names: Vec<&str> = names
            .chain(tickets.0.iter().map(|it| it.name.as_str()))
            .collect();
        return Err(clients::nobody(&args.name, &names));
    }
    let event = Event::new("revoked").with("name", args.name.as_str());
    context.reporter.event(event);
    context.reporter.note(&format!("{} is revoked", args.name));
    Ok(())
}

pub(crate) fn key(args: &KeyArgs, context: &Context) -> Outcome<()> {
    let KeyCommand::Rotate(place) = &args.command;
    let place = Place::of(place)?;
    // Under a server that runs it would change nothing before the next start.
    let _running = place.state.run()?;
    let had = remove_key(&place.state)?;
    server_key(&place.state)?;
    context
        .reporter
        .event(Event::new("key").with("rotated", had));
    match had {
        true => context.reporter.note(
            "The server has another key. Tickets and invitations of before are of no use any more, and clients have to be invited again.",
        ),
        // What was to be of no use any more still is, if that server is elsewhere.
        false => context.reporter.warn(&format!(
            "no server had been started with {}: it has a key now, and no other server has changed; --state says which directory a server has",
            place.state.shown()
        )),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;
    use std::mem::MaybeUninit;
    use std::thread;

    use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use sphinx_transport::ClientKey;

    use super::*;

    const SETTINGS: &str = "permit=tunnel";

    /// A server's place with an invitation for `laptop`.
    fn invited(scratch: &Path) -> (Place, TicketId) {
        let place = Place::open(Some(scratch), None).unwrap();
        let entry = Entry {
            grant: Some(SETTINGS.to_owned()),
            ..Entry::new("laptop".to_owned())
        };
        let id = entry.secret.id();
        Tickets::change(&place.state, |tickets| tickets.add(entry)).unwrap();
        (place, id)
    }

    #[test]
    fn who_joins_is_a_client_before_the_invitation_goes() {
        let scratch = tempfile::tempdir().unwrap();
        let (place, id) = invited(scratch.path());
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, scratch.path(), WatchFlags::MOVED_TO).unwrap();
        let key = ClientKey::generate().public_key();
        enrol(&place, id, key, "laptop", SETTINGS).unwrap();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&watch, &mut buffer);
        let mut written = Vec::new();
        while let Ok(event) = events.next() {
            let name = event.file_name().unwrap();
            written.push(name.to_str().unwrap().to_owned());
        }
        assert_eq!(written, [clients::FILE, tickets::FILE]);
        let (clients, tickets) = place.read().unwrap();
        assert!(clients.named("laptop").is_some() && tickets.0.is_empty());
    }

    /// As a crash leaves it after the client was written and before its invitation was removed.
    #[test]
    fn an_invitation_whose_client_is_there_lets_nobody_else_in() {
        let scratch = tempfile::tempdir().unwrap();
        let (place, id) = invited(scratch.path());
        let before = fs::read(place.state.file(tickets::FILE)).unwrap();
        let [own, other] = [0; 2].map(|_| ClientKey::generate().public_key());
        let enrol = |key| enrol(&place, id, key, "laptop", SETTINGS);
        enrol(own).unwrap();
        fs::write(place.state.file(tickets::FILE), before).unwrap();
        let refused = enrol(other).unwrap_err();
        assert!(
            refused.message.contains("another client laptop"),
            "{refused}"
        );
        // The same client is told that it is in, and the invitation goes.
        enrol(own).unwrap();
        assert!(enrol(own).is_err());
        let (clients, _) = place.read().unwrap();
        assert_eq!(clients.0.len(), 1);
    }

    #[test]
    fn who_joins_while_the_files_are_read_is_in_one_of_them() {
        let scratch = tempfile::tempdir().unwrap();
        let place = Place::open(Some(scratch.path()), None).unwrap();
        // Whoever reads the tickets waits until they are written.
        let pipe = place.state.file(tickets::FILE);
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let reading = place.clone();
        let reader = thread::spawn(move || reading.read());
        let mut tickets = OpenOptions::new().write(true).open(&pipe).unwrap();
        let key = ClientKey::generate().public_key();
        let held = place.state.lock().unwrap();
        place.file().add(&held, key, ("laptop", SETTINGS)).unwrap();
        tickets.write_all(b"# none\n").unwrap();
        drop(tickets);
        let (clients, _) = reader.join().unwrap().unwrap();
        assert!(clients.named("laptop").is_some());
    }
}
