//! What there is to tell while tunnels are up.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::relay::Counts;

/// Something that has happened.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// There is a session.
    Connected {
        /// Where the server is.
        server: SocketAddr,
        /// Round-trip time.
        rtt: Duration,
    },
    /// A server has a client, or one less.
    Client {
        /// Where it is.
        client: SocketAddr,
        /// What it is called, its address if it has no name.
        name: String,
        /// Why it has gone; `None` when it comes.
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
        /// Its name.
        interface: String,
        /// Its addresses, with the lengths of their prefixes.
        addresses: Vec<String>,
        /// What people may want to run for packets to go further than this machine.
        commands: Vec<String>,
    },
    /// A flow has ended.
    Flow {
        /// One after the other.
        id: u64,
        /// `tcp`, `udp` or `unix`.
        proto: &'static str,
        /// Where it led.
        target: String,
        /// Bytes from the end that began it.
        bytes_up: u64,
        /// Bytes to it.
        bytes_down: u64,
        /// How long it was.
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
        /// What said no.
        rule: &'static str,
    },
    /// The session is lost, or an attempt to replace it has failed.
    Reconnecting {
        /// Why.
        reason: String,
        /// How many there were since there was a session.
        attempt: u32,
        /// When the next one is.
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
        let flows = AtomicU64::new(0);
        Self(Arc::new(Inner { tell, flows }))
    }

    pub(crate) fn tell(&self, event: Event) {
        (self.0.tell)(event);
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
