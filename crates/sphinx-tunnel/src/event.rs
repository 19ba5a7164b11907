//! What there is to tell while tunnels are up.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::relay::Counts;

/// How often it is told at most that something has run out.
const SCARCE_TIME: Duration = Duration::from_secs(60);

/// Something that has happened.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// There is a session.
    Connected {
        /// Where the server is.
        server: SocketAddr,
        /// Round-trip time of the session.
        rtt: Duration,
    },
    /// A server has a client, or one less.
    Client {
        /// Where it is.
        client: SocketAddr,
        /// What it is called, its address if it has no name.
        name: String,
        /// Why the client has gone; `None` when it has come.
        gone: Option<String>,
    },
    /// A listener works.
    Forward {
        /// As it was written, with its letter: `-L 8080:db:5432`.
        spec: String,
        /// Where it listens: the port is never 0.
        bound: String,
    },
    /// A network interface is there whose packets are carried.
    Tun {
        /// Name of the interface.
        interface: String,
        /// Its addresses, with the lengths of their prefixes.
        addresses: Vec<String>,
        /// What people may want to run for packets to go further than this machine.
        commands: Vec<String>,
    },
    /// A flow has ended.
    Flow {
        /// Number of the flow, counted from the first.
        id: u64,
        /// `tcp`, `udp` or `unix`.
        proto: &'static str,
        /// Target of the forward.
        target: String,
        /// Bytes from the end that began it.
        bytes_up: u64,
        /// Bytes to the end that began it.
        bytes_down: u64,
        /// How long it lasted.
        time: Duration,
        /// `ok`, or why it ended early.
        end: String,
    },
    /// A server did not let a client through.
    Denied {
        /// The client.
        client: String,
        /// What it asked for.
        target: String,
        /// Why: so far always that no rule lets it through.
        rule: &'static str,
    },
    /// The session is lost, or an attempt to replace it has failed.
    Reconnecting {
        /// Why the session or the attempt failed.
        reason: String,
        /// How many attempts there were since there was a session.
        attempt: u32,
        /// The time until the next attempt.
        next: Duration,
    },
    /// Something works less than it should.
    Warning(String),
}

/// Where events go.
#[derive(Clone)]
pub struct Events(Arc<Inner>);

struct Inner {
    tell: Box<dyn Fn(Event) + Send + Sync>,
    flows: AtomicU64,
    scarce: Mutex<Scarce>,
}

/// What has run out: when that was told last, and how often it was so since.
#[derive(Default)]
struct Scarce(HashMap<String, (tokio::time::Instant, u64)>);

impl Scarce {
    /// Counts once more that `what` has run out: the warning that is due now, if one is.
    fn again(&mut self, what: &str, remedy: &str) -> Option<String> {
        let now = tokio::time::Instant::now();
        if let Some((told, times)) = self.0.get_mut(what)
            && now < *told + SCARCE_TIME
        {
            *times += 1;
            return None;
        }
        let before = self.0.remove(what);
        // Only what has been told within that time is kept, so that the map stays small.
        self.0.retain(|_, (told, _)| now < *told + SCARCE_TIME);
        self.0.insert(what.to_owned(), (now, 0));
        let before = before.filter(|(_, times)| *times > 0);
        let often = before.map_or_else(String::new, |(told, times)| {
            let seconds = (now - told).as_secs();
            format!(" ({} times in {seconds} s)", times + 1)
        });
        Some(format!("{what}{often}: {remedy}"))
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    /// Calls `tell` with each, from any thread; it must not block.
    pub fn new(tell: impl Fn(Event) + Send + Sync + 'static) -> Self {
        let tell = Box::new(tell);
        Self(Arc::new(Inner {
            tell,
            flows: AtomicU64::new(0),
            scarce: Mutex::default(),
        }))
    }

    pub(crate) fn tell(&self, event: Event) {
        (self.0.tell)(event);
    }

    /// Something is refused, or has to wait, for want of something, and `remedy` allows more. That is told at once, and then once a minute at most, with how
    /// often it was so.
    pub(crate) fn scarce(&self, what: &str, remedy: &str) {
        let scarce = self.0.scarce.lock();
        let news = scarce
            .unwrap_or_else(PoisonError::into_inner)
            .again(what, remedy);
        if let Some(news) = news {
            self.tell(Event::Warning(news));
        }
    }

    /// Tells of an error that says that no more files may be open; whether it is one.
    pub(crate) fn scarce_files(&self, error: &io::Error) -> bool {
        match Errno::from_io_error(error) {
            Some(Errno::MFILE) => {
                let most = getrlimit(Resource::Nofile).current;
                let most = most.map_or_else(String::new, |most| format!(" than {most}"));
                self.scarce(
                    "connections wait or are refused, as this process has as many files open as it may",
                    &format!("LimitNOFILE= of its unit, or ulimit -n before it starts, allows more{most}"),
                );
            }
            Some(Errno::NFILE) => self.scarce(
                "connections wait or are refused, as this machine has as many files open as it may",
                "sysctl -w fs.file-max=N allows more",
            ),
            _ => return false,
        }
        true
    }

    /// A client has come, or is gone, and why.
    pub(crate) fn tell_of_client(&self, client: SocketAddr, name: &str, gone: Option<String>) {
        let name = name.to_owned();
        self.tell(Event::Client { client, name, gone });
    }

    /// A flow begins: it is told of when the result is dropped.
    pub(crate) fn flow(&self, proto: &'static str, target: String, up: Direction) -> Flow {
        Flow {
            events: self.clone(),
            id: self.0.flows.fetch_add(1, Ordering::Relaxed) + 1,
            proto,
            target,
            up,
            began: Instant::now(),
            counts: Arc::default(),
            end: None,
        }
    }
}

/// Which way is up: from the end that began the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// This end began it.
    Out,
    /// The other end began it.
    In,
}

/// A flow under way.
#[derive(Debug)]
pub(crate) struct Flow {
    events: Events,
    id: u64,
    proto: &'static str,
    target: String,
    up: Direction,
    began: Instant,
    pub(crate) counts: Arc<Counts>,
    end: Option<String>,
}

impl Flow {
    /// How it has ended.
    pub(crate) fn ended(&mut self, how: Result<(), impl fmt::Display>) {
        self.end = Some(how.map_or_else(|why| why.to_string(), |()| "ok".to_owned()));
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        let sent = self.counts.sent.load(Ordering::Relaxed);
        let received = self.counts.received.load(Ordering::Relaxed);
        let (bytes_up, bytes_down) = match self.up {
            Direction::Out => (sent, received),
            Direction::In => (received, sent),
        };
        self.events.tell(Event::Flow {
            id: self.id,
            proto: self.proto,
            target: std::mem::take(&mut self.target),
            bytes_up,
            bytes_down,
            time: self.began.elapsed(),
            end: self
                .end
                .take()
                .unwrap_or_else(|| "the session has ended".to_owned()),
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_runs_out_is_told_once_in_a_while_with_how_often_it_did() {
        let (told, news) = std::sync::mpsc::channel();
        let events = Events::new(move |event| told.send(event).expect("it is read"));
        let tell = |times: usize, what: &str| {
            (0..times).for_each(|_| events.scarce(what, "more helps"));
            news.try_iter().collect::<Vec<_>>()
        };
        let warning = |text: &str| vec![Event::Warning(text.to_owned())];
        assert_eq!(tell(1000, "no room"), warning("no room: more helps"));
        assert_eq!(tell(2, "no time"), warning("no time: more helps"));
        advance(SCARCE_TIME / 2).await;
        assert_eq!(tell(1000, "no room"), []);
        advance(SCARCE_TIME).await;
        let again = warning("no room (2000 times in 90 s): more helps");
        assert_eq!(tell(2, "no room"), again);
        // What has not been so for a while is forgotten, and begins anew.
        advance(3 * SCARCE_TIME).await;
        assert_eq!(tell(1, "no time"), warning("no time: more helps"));
        assert_eq!(tell(1, "no room"), warning("no room: more helps"));
    }

    #[test]
    fn only_want_of_files_is_one() {
        let (told, news) = std::sync::mpsc::channel();
        let events = Events::new(move |event| told.send(event).expect("it is read"));
        for (error, part) in [
            (Errno::MFILE, Some("LimitNOFILE=")),
            (Errno::NFILE, Some("fs.file-max")),
            (Errno::CONNREFUSED, None),
        ] {
            assert_eq!(events.scarce_files(&error.into()), part.is_some());
            let told: Vec<_> = news.try_iter().collect();
            assert_eq!(told.len(), usize::from(part.is_some()));
            for event in told {
                let Event::Warning(text) = event else {
                    panic!("{event:?}");
                };
                assert!(part.is_some_and(|part| text.contains(part)), "{text}");
            }
        }
    }
}
