//! A receiver that stays the same between its starts: its key, its tickets, and what each of them is still good for.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sphinx_transport::{Access, AccessList, ErrorKind, ServerKey, TicketId, TicketSecret};

use crate::failure::{Outcome, fail_hint, local_io};
use crate::files::recv::too_large;
use crate::files::{Announced, SourceId};
use crate::report::Reporter;
use crate::state::date::Moment;
use crate::state::tickets::{self, Entry, Tickets};
use crate::state::watch::{self, Watched};
use crate::state::{Lock, Secrecy, StateDir, key};

/// Where in the state directory the key is, and the addresses that tickets name.
const KEY: &str = "key";
const ADDRESSES: &str = "addresses";
/// The ticket that a receiver makes by itself.
const FIRST: &str = "first";
/// Transfers of a ticket that were interrupted and are remembered.
const INTERRUPTED_MAX: usize = 1024;
/// Who is not on the list has the files read so often at most.
const STRANGER_INTERVAL: Duration = Duration::from_millis(20);

/// What a standing receiver keeps. Cheap to clone.
#[derive(Clone)]
pub(super) struct Standing(Arc<Inner>);

struct Inner {
    state: StateDir,
    _running: Lock,
    /// The number of transfers under way with each ticket.
    under_way: Mutex<HashMap<TicketId, u32>>,
    /// The sources of transfers that broke off, by ticket.
    interrupted: Mutex<HashMap<TicketId, BTreeSet<SourceId>>>,
}

impl Standing {
    /// Opens the state directory, which no other receiver may have. The first time it gets a ticket.
    pub(super) fn open(state: StateDir) -> Outcome<Self> {
        let running = state.run()?;
        if Tickets::read(&state)?.is_none() {
            Tickets::change(&state, |tickets| tickets.add(Entry::new(FIRST.to_owned())))?;
        }
        Ok(Self(Arc::new(Inner {
            state,
            _running: running,
            under_way: Mutex::default(),
            interrupted: Mutex::default(),
        })))
    }

    pub(super) fn key(&self) -> Outcome<ServerKey> {
        server_key(&self.0.state)
    }

    /// The secret of the first ticket, unless it was revoked.
    pub(super) fn first(&self) -> Outcome<Option<TicketSecret>> {
        let tickets = Tickets::read(&self.0.state)?.unwrap_or_default();
        Ok(tickets.find(FIRST).map(|entry| entry.secret.clone()))
    }

    /// Remembers where the receiver is, for tickets that are made later.
    pub(super) fn listens_at(&self, addresses: &[String]) -> Outcome<()> {
        keep_addresses(&self.0.state, addresses)
    }

    /// The addresses at which the receiver listened the last time.
    pub(super) fn was_at(&self) -> Outcome<Vec<String>> {
        addresses(&self.0.state)
    }

    /// Lets in whoever has a ticket, whatever becomes of these.
    pub(super) fn watch(&self, access: Access, reporter: &Reporter) -> Outcome<Watch> {
        let state = self.0.state.clone();
        let list = move |now: Moment| {
            let tickets = Tickets::read(&state)?.unwrap_or_default();
            let mut list = AccessList::new();
            tickets.admit(&mut list, now);
            let ends = tickets.0.iter().filter_map(|entry| entry.expires);
            Ok((list, ends.filter(|end| *end > now).min()))
        };
        let files = vec![Watched::new(&self.0.state.file(tickets::FILE))];
        Watch::start(Loader::new(files, list, access), reporter)
    }

    /// The ticket of a session, as it is now.
    pub(super) fn ticket(&self, id: TicketId) -> Outcome<Entry> {
        let mut tickets = Tickets::read(&self.0.state)?.unwrap_or_default();
        tickets.of_id(&id).cloned().ok_or_else(|| {
            // The engine closes the session of a revoked ticket by itself.
            fail_hint(ErrorKind::Authentication, "the ticket was revoked", "")
        })
    }

    /// A transfer begins: its bytes are taken from what the ticket is good for, all of that if nobody knows how many it has. Of
    /// one that was interrupted most may be here already: then there need not be as many.
    pub(super) fn begin(&self, id: TicketId, announced: Announced) -> Outcome<Use> {
        let source = announced.source;
        let is_rest = source.is_some_and(|source| {
            let interrupted = lock(&self.0.interrupted);
            let known = interrupted.get(&id);
            known.is_some_and(|known| known.contains(&source))
        });
        let mut under_way = self
            .0
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let others = under_way.get(&id).copied().unwrap_or(0);
        let reserved = Tickets::change(&self.0.state, |tickets| {
            let over = |why: String| {
                Err(fail_hint(ErrorKind::LocalIo, why, "ask for another ticket").refused())
            };
            let Some(entry) = tickets.of_id(&id) else {
                return over("the ticket was revoked".to_owned());
            };
            let name = &entry.name;
            if entry
                .uses
                .is_some_and(|uses| entry.used.saturating_add(others) >= uses)
            {
                return over(format!("the ticket {name} is good for no more transfers"));
            }
            let Some(left) = entry.left() else {
                return Ok(None);
            };
            let wanted = announced.bytes.unwrap_or(left);
            if wanted > left && !is_rest {
                return Err(too_large(left));
            }
            let reserved = wanted.min(left);
            entry.taken += reserved;
            Ok(Some(reserved))
        })?;
        under_way.insert(id, others + 1);
        Ok(Use {
            standing: self.clone(),
            id,
            source,
            reserved,
            ended: None,
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The key of a state directory.
pub(super) fn server_key(state: &StateDir) -> Outcome<ServerKey> {
    key::server(&state.file(KEY))
}

/// Whether a receiver or server has been started with a state directory.
pub(super) fn has_key(state: &StateDir) -> Outcome<bool> {
    std::fs::exists(state.file(KEY)).map_err(|error| local_io("look into", &state.shown(), error))
}

/// Forgets the key, so that the next start makes another.
#[cfg(feature = "tunnel")]
pub(super) fn remove_key(state: &StateDir) -> Outcome<bool> {
    match std::fs::remove_file(state.file(KEY)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(local_io("remove", &state.shown(), error)),
    }
}

pub(super) fn keep_addresses(state: &StateDir, addresses: &[String]) -> Outcome<()> {
    state.write(ADDRESSES, &(addresses.join("\n") + "\n"))
}

/// Where the receiver or server of a state directory was last.
pub(super) fn addresses(state: &StateDir) -> Outcome<Vec<String>> {
    let text = state.read(ADDRESSES, Secrecy::Public)?;
    let lines = text.iter().flat_map(|text| text.lines());
    Ok(lines
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect())
}

/// The use of a ticket by one transfer; it is settled when this is dropped.
pub(super) struct Use {
    standing: Standing,
    id: TicketId,
    source: Option<SourceId>,
    /// Nothing if the ticket is good for any number of bytes.
    reserved: Option<u64>,
    /// The bytes of one that has come to its end, or those that came of one that has not.
    ended: Option<(u64, bool)>,
}

impl Use {
    /// How many bytes may be sent, if that is bounded.
    pub(super) fn allowed(&self) -> Option<u64> {
        self.reserved
    }

    /// Remembers a transfer of which a part came, until all of it has.
    fn remember(&self, is_whole: bool) {
        let Some(source) = self.source else {
            return;
        };
        let mut interrupted = lock(&self.standing.0.interrupted);
        let known = interrupted.entry(self.id).or_default();
        if is_whole {
            known.remove(&source);
        } else if known.len() < INTERRUPTED_MAX {
            known.insert(source);
        }
        if known.is_empty() {
            interrupted.remove(&self.id);
        }
    }

    /// How many bytes came, and whether that was all.
    pub(super) fn ended(&mut self, bytes: u64, is_whole: bool) {
        self.ended = Some((bytes, is_whole));
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Some((_, is_whole)) = self.ended.filter(|_| self.reserved.is_some()) {
            self.remember(is_whole);
        }
        let inner = &self.standing.0;
        let mut under_way = inner
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((bytes, is_whole)) = self.ended {
            // If this cannot be written, the bytes that were reserved stay taken.
            let _ = Tickets::change(&inner.state, |tickets| {
                if let Some(entry) = tickets.of_id(&self.id) {
                    entry.used += u32::from(is_whole && entry.uses.is_some());
                    entry.taken = match entry.quota {
                        Some(_) => entry
                            .taken
                            .saturating_sub(self.reserved.unwrap_or(0))
                            .saturating_add(bytes),
                        None => 0,
                    };
                }
                Ok(())
            });
        }
        if let Some(count) = under_way.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.id);
            }
        }
    }
}

/// What the files say at a time: who may connect, and when that changes by itself.
type List = dyn Fn(Moment) -> Outcome<(AccessList, Option<Moment>)> + Send + Sync;

/// Keeps a server's list of who may connect the same as its files say.
pub(super) struct Loader {
    list: Box<List>,
    access: Access,
    files: Mutex<Files>,
    /// When the list changes by itself. Held while it is renewed.
    ends: Mutex<Option<Moment>>,
}

/// The files that the list is of. Held while they are looked at, and read if they have changed.
struct Files {
    watched: Vec<Watched>,
    /// Whether reading them failed the last time, so that they have to be read again.
    again: bool,
    /// When they were read last because of somebody who is not on the list.
    for_stranger: Option<Instant>,
}

impl Loader {
    pub(super) fn new(
        watched: Vec<Watched>,
        list: impl Fn(Moment) -> Outcome<(AccessList, Option<Moment>)> + Send + Sync + 'static,
        access: Access,
    ) -> Arc<Self> {
        Arc::new(Self {
            list: Box::new(list),
            access,
            files: Mutex::new(Files {
                watched,
                again: false,
                for_stranger: None,
            }),
            ends: Mutex::default(),
        })
    }

    /// What the files say now holds when this returns; what cannot be read changes nothing.
    pub(super) fn load(&self) -> Outcome<()> {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let (list, next) = (self.list)(Moment::now())?;
        *ends = next;
        self.access.replace(list);
        Ok(())
    }

    fn is_due(&self) -> bool {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.is_some_and(|end| end <= Moment::now())
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads what may have changed since the last call; `None` if nothing has.
    fn look(&self, files: &mut Files) -> Option<Outcome<()>> {
        let mut is_new = self.is_due() || files.again;
        for file in &mut files.watched {
            is_new |= file.may_have_changed();
        }
        let loaded = is_new.then(|| self.load());
        files.again = matches!(loaded, Some(Err(_)));
        loaded
    }

    /// Somebody comes who is not on the list. Whoever does that again and again has the files looked at, and not read, each time.
    fn look_for_stranger(&self) {
        let mut files = self.files();
        let last = files.for_stranger;
        if last.is_none_or(|at| at.elapsed() >= STRANGER_INTERVAL)
            && self.look(&mut files).is_some()
        {
            files.for_stranger = Some(Instant::now());
        }
    }
}

/// A thread that looks whether the files have changed, until it is dropped.
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// What cannot be read is warned of, once.
    ///
    /// # Errors
    /// The files cannot be read at the beginning.
    pub(super) fn start(loader: Arc<Loader>, reporter: &Reporter) -> Outcome<Self> {
        for file in &mut loader.files().watched {
            // Marks the present state as seen: only changes from here on count.
            let _ = file.may_have_changed();
        }
        loader.load()?;
        let known = Arc::downgrade(&loader);
        loader.access.look_before_refusing(move || {
            if let Some(loader) = known.upgrade() {
                loader.look_for_stranger();
            }
        });
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, reporter) = (Arc::clone(&stop), reporter.clone());
        let body = move || {
            let mut warned = None;
            while !stopped.load(Ordering::Relaxed) {
                thread::park_timeout(watch::INTERVAL);
                let failure = match loader.look(&mut loader.files()) {
                    None => continue,
                    Some(loaded) => loaded.err().map(|failure| failure.message),
                };
                if let Some(message) = failure.as_ref().filter(|_| failure != warned) {
                    reporter.warn(&format!("nothing changes: {message}"));
                }
                warned = failure;
            }
        };
        let thread = thread::Builder::new().name("access".to_owned()).spawn(body);
        let thread = thread.map_err(|error| local_io("start", "a thread", error))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}
