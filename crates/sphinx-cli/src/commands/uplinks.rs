//! `--path auto`: the paths of a session begin at the machine's uplinks, as these come and go.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sphinx_netdev::lookup::way;
use sphinx_netdev::uplinks::{Changes, uplinks};
use sphinx_transport::{LocalPath, Session};

use crate::failure::{Outcome, local_io};
use crate::report::{Names, Reporter};

/// After so long what could not be done is tried again: to begin a path, or to give one up that was the last one.
const RETRY_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};

/// Follows the uplinks while it lives.
pub(super) struct Following {
    /// The thread ends when this is closed.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Following {
    /// The session uses the uplinks that there are now, and those that come.
    pub(super) fn start(session: &Session, names: &Names, reporter: &Reporter) -> Outcome<Self> {
        let failed = |error| local_io("follow", "interfaces", error);
        let changes = Changes::open().map_err(failed)?;
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        let mut follower = Follower {
            session: session.clone(),
            names: names.clone(),
            reporter: reporter.clone(),
            known: Vec::new(),
            leaving: Vec::new(),
            is_behind: false,
            told: String::new(),
        };
        follower.update();
        let body = move || {
            loop {
                let mut ready = [
                    PollFd::from_borrowed_fd(changes.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN),
                ];
                let patience = follower.is_behind.then_some(&RETRY_INTERVAL);
                // An interruption by a signal is treated as a change of the uplinks.
                let _ = poll(&mut ready, patience);
                if !ready[1].revents().is_empty() {
                    return;
                }
                changes.clear();
                follower.update();
            }
        };
        let thread = thread::Builder::new().name("uplinks".to_owned());
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread.spawn(body).map_err(failed)?),
        })
    }
}

impl Drop for Following {
    /// The session is not kept alive by who follows.
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // What it says of a panic has been printed.
            let _ = thread.join();
        }
    }
}

/// Where a path begins: an interface and one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    interface: String,
    address: IpAddr,
}

struct Follower {
    session: Session,
    names: Names,
    reporter: Reporter,
    /// The places of the uplinks, of those at which there is, or was, a path.
    known: Vec<Place>,
    /// No uplinks any more, but with a path that could not be given up.
    leaving: Vec<Place>,
    /// Something could not be done yet and is tried again after [`RETRY_INTERVAL`].
    is_behind: bool,
    /// The last reason reported for a path that could not begin.
    told: String,
}

impl Follower {
    fn update(&mut self) {
        let Some(places) = self.places() else {
            // What has changed is not known, and nobody tells of it again.
            self.is_behind = true;
            return;
        };
        let gone = |place: &Place| !places.contains(place);
        self.leaving
            .extend(self.known.extract_if(.., |place| gone(place)));
        self.leaving.retain(gone);
        self.is_behind = false;
        for place in places {
            if self.known.contains(&place) {
                continue;
            }
            match self.begin(&place) {
                true => self.known.push(place),
                false => self.is_behind = true,
            }
        }
        let leaving = std::mem::take(&mut self.leaving);
        self.leaving = leaving
            .into_iter()
            .filter(|place| !self.leave(place))
            .collect();
        self.is_behind |= !self.leaving.is_empty();
    }

    /// Where paths to the other end may begin.
    fn places(&self) -> Option<Vec<Place>> {
        let remote = self.session.remote_addr().ip();
        let uplinks = uplinks(remote.is_ipv6()).ok()?;
        let places = uplinks.into_iter().filter_map(|uplink| {
            let way = way(remote, None, Some(uplink.index)).ok()??;
            Some(Place {
                interface: uplink.name,
                address: way.source?,
            })
        });
        Some(places.collect())
    }

    /// Whether there is a path now that begins there.
    fn begin(&mut self, place: &Place) -> bool {
        // At first nothing is known of the session's own path, which may begin there.
        if self.session.stats().paths.iter().flatten().next().is_none() {
            return false;
        }
        if let Some((_, option)) = self.path_at(place) {
            if let Some(option) = option {
                self.names.put(option, &place.interface);
            }
            return true;
        }
        let begin = LocalPath::Interface(place.interface.clone());
        let add = || self.session.add_path(&begin.into());
        match self.names.put_added(&place.interface, add) {
            Ok(()) => true,
            Err(error) => {
                let why = format!("sphx: no path by {}: {error}", place.interface);
                if why != self.told {
                    self.reporter.note(&why);
                    self.told = why;
                }
                false
            }
        }
    }

    /// Whether there is no path any more that begins there.
    fn leave(&self, place: &Place) -> bool {
        match self.path_at(place) {
            Some((id, _)) => self.session.abandon_path(id),
            None => true,
        }
    }

    /// The id and the place among the options' paths of what begins there.
    fn path_at(&self, place: &Place) -> Option<(u32, Option<usize>)> {
        let stats = self.session.stats();
        let mut paths = stats.paths.iter().flatten();
        let path = paths.find(|path| path.local == Some(place.address))?;
        Some((path.id, path.option))
    }
}
