//! TCP ended at this end of a tunnel (`--split-tcp`): connections of this machine's programs become streams.
//!
//! No TCP is spoken here. Segments are turned round, so that the kernel that has sent them takes them for those of connections to a listener of its own ([`table`]),
//! and what is accepted there is carried as with `-L`. A SYN waits until the other end has connected, so that programs hear of a
//! refusal as they would without a tunnel.

pub(crate) mod table;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sphinx_netdev::tun::Unfinished;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};

use super::client::Client;
use super::segment::{Segment, Unreachable};
use crate::event::{Direction, Event, Events};
use crate::exchange;
use crate::live::Link;
use crate::permit::canonical;
use crate::relay::{First, Local, relay};
use crate::server::accept;
use crate::wire::{Refusal, Status, Target};
use table::{Connection, Id, Table, Verdict};

/// How long a program may take to open a connection that the other end has: the kernel gives up sooner.
const OPEN_TIME: Duration = Duration::from_secs(75);
/// How long what programs have sent and closed may take to be delivered when a tunnel ends.
const DELIVERY_TIME: Duration = Duration::from_secs(10);
/// How often connections that are long over are looked for.
const SWEEP_TIME: Duration = Duration::from_secs(10);

/// What becomes of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It goes through the tunnel.
    Through,
    /// It goes back to the kernel; it has been changed for that.
    Back,
    /// Nothing more is to be done about it.
    Done,
}

/// The connections that are ended here.
pub(super) struct Split {
    table: Mutex<Table<oneshot::Sender<TcpStream>>>,
    commands: UnboundedSender<Command>,
    /// The listener and the receiver of `commands`, until [`run`](Self::run) takes them.
    waiting: Mutex<Option<(TcpListener, UnboundedReceiver<Command>)>>,
    events: Events,
    /// Whether a warning was given that the server's rules are in the way, and one that something on this machine is.
    has_warned_of_rules: AtomicBool,
    has_warned_of_filter: AtomicBool,
}

/// What the task that serves connections is to do.
enum Command {
    Begun(Begun),
    /// Reset the connections that have not ended within this time, and say so.
    End {
        time: Duration,
        done: oneshot::Sender<()>,
    },
}

/// A connection that a program asks for.
struct Begun {
    connection: Connection,
    id: Id,
    socket: oneshot::Receiver<TcpStream>,
}

impl Split {
    /// For a listener that hears only what comes by the interface, in an event loop.
    ///
    /// # Errors
    /// Those of the system calls.
    pub(super) fn new(listener: std::net::TcpListener, events: &Events) -> std::io::Result<Self> {
        let listener = TcpListener::from_std(listener)?;
        let port = listener.local_addr()?.port();
        let (commands, received) = unbounded_channel();
        Ok(Self {
            table: Mutex::new(Table::new(port)),
            commands,
            waiting: Mutex::new(Some((listener, received))),
            events: events.clone(),
            has_warned_of_rules: AtomicBool::new(false),
            has_warned_of_filter: AtomicBool::new(false),
        })
    }

    fn waiting(&self) -> MutexGuard<'_, Option<(TcpListener, UnboundedReceiver<Command>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn table(&self) -> MutexGuard<'_, Table<oneshot::Sender<TcpStream>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is another session, whose server may have other rules.
    pub(super) fn renew(&self) {
        self.table().renew();
    }

    /// Whether a packet of the other end is for the listener, which hears programs of this machine only.
    pub(super) fn is_for_listener(&self, packet: &[u8]) -> bool {
        let segment = Segment::of(packet);
        segment.is_some_and(|segment| segment.destination.port() == self.table().listener())
    }

    /// Takes a packet of the device that comes from an address of this end.
    pub(super) fn take(&self, rest: Unfinished, packet: &mut [u8]) -> Taken {
        let Some(segment) = Segment::of(packet) else {
            return Taken::Through;
        };
        let mut table = self.table();
        let now = Instant::now();
        match table.judge(&segment, now) {
            Verdict::Through => Taken::Through,
            Verdict::Nowhere => Taken::Done,
            Verdict::Back(source, destination) => {
                segment.turn(packet, (source, destination), rest.has_checksum());
                Taken::Back
            }
            Verdict::Unheard => {
                let is_own = segment.source.port() == table.listener();
                self.warn_of_filter(table.listener());
                if is_own { Taken::Done } else { Taken::Through }
            }
            Verdict::Begins(connection) => {
                let mut syn = Vec::new();
                rest.finish(packet, |whole| syn = whole.to_vec());
                let (taker, socket) = oneshot::channel();
                let Some(id) = table.begin(connection, syn, taker, now) else {
                    return Taken::Through;
                };
                let _ = self.commands.send(Command::Begun(Begun {
                    connection,
                    id,
                    socket,
                }));
                Taken::Done
            }
        }
    }

    fn warn_of_filter(&self, port: u16) {
        if !self.has_warned_of_filter.swap(true, Ordering::Relaxed) {
            self.events.tell(Event::Warning(format!(
                "--split-tcp: this machine's packet filter lets nothing through to TCP port {port}: connections go as packets, until it lets in what comes \
                 by the tunnel's interface"
            )));
        }
    }

    /// Resets all connections; `delivers`: their programs have closed them, and what they have sent is delivered first, unless that takes too long.
    pub(super) async fn end(&self, delivers: bool) {
        let is_served = self.waiting().is_none();
        let (done, ended) = oneshot::channel();
        let time = if delivers {
            DELIVERY_TIME
        } else {
            Duration::ZERO
        };
        if is_served && self.commands.send(Command::End { time, done }).is_ok() {
            let _ = ended.await;
        }
    }

    /// Carries what begins, until [`end`](Self::end).
    pub(super) async fn run(self: Arc<Self>, client: Arc<Client>, link: Link) {
        let Some((listener, mut commands)) = self.waiting().take() else {
            return;
        };
        let mut connections = JoinSet::new();
        let mut sweep = interval(SWEEP_TIME);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut end: Option<(tokio::time::Instant, oneshot::Sender<()>)> = None;
        while end.is_none() || !connections.is_empty() {
            let until = end.as_ref().map(|(until, _)| *until);
            tokio::select! {
                Some(command) = commands.recv() => match command {
                    Command::Begun(begun) => {
                        let carried = Arc::clone(&self).carry(begun, Arc::clone(&client), link.clone());
                        connections.spawn(carried);
                    }
                    Command::End { time, done } => end = Some((tokio::time::Instant::now() + time, done)),
                },
                stream = accept(&listener, &self.events) => self.accepted(stream),
                Some(_) = connections.join_next() => {}
                _ = sweep.tick() => self.table().sweep(Instant::now()),
                () = sleep_until(until.unwrap_or_else(tokio::time::Instant::now)), if until.is_some() => break,
            }
        }
        connections.shutdown().await;
        if let Some((_, done)) = end {
            let _ = done.send(());
        }
    }

    /// Gives a socket to who waits for it. One that no program's SYN has opened is closed.
    fn accepted(&self, stream: TcpStream) {
        let Ok(peer) = stream.peer_addr() else {
            return;
        };
        let peer = SocketAddr::new(canonical(peer.ip()), peer.port());
        let taker = self.table().accepted(peer);
        if let Some(taker) = taker {
            // Whoever has asked for it may have gone.
            let _ = taker.send(stream);
        }
    }

    /// One connection, from the SYN to the end.
    async fn carry(self: Arc<Self>, begun: Begun, client: Arc<Client>, link: Link) {
        let Begun {
            connection,
            id,
            socket,
        } = begun;
        let far = connection.far;
        let Some(live) = link.live().await else {
            // The program sends its SYN again, unless it has given up by then.
            self.table().refused(&connection, id);
            return;
        };
        let both = match exchange::open(&live.session, &Target::Ip(far)).await {
            Ok((both, _)) => both,
            Err(refusal) => {
                let is_lost = live.session.as_blocking().closed().is_some();
                return self.refuse((connection, id), &refusal, is_lost, &client);
            }
        };
        let mut flow = self.events.flow("tcp", far.to_string(), Direction::Out);
        let Some(syn) = self.table().connected(&connection, id) else {
            return flow.ended(Err("its program has gone"));
        };
        client.give(&syn);
        match timeout(OPEN_TIME, socket).await {
            Ok(Ok(stream)) => {
                let _ = stream.set_nodelay(true);
                let ended = relay(Local::Tcp(stream), both, First::Data, &flow.counts).await;
                flow.ended(ended);
            }
            _ => flow.ended(Err("its program has gone")),
        }
        self.table().over(&connection, id, Instant::now());
    }

    /// Tells a program why its connection does not come about. What only a rule of the server is in the way of goes as packets, which others let through.
    fn refuse(
        &self,
        (connection, id): (Connection, Id),
        refusal: &Refusal,
        is_lost: bool,
        client: &Client,
    ) {
        let mut table = self.table();
        if refusal.status == Status::Denied {
            table.set_apart(connection.far, Instant::now());
        }
        let Some(syn) = table.refused(&connection, id) else {
            return;
        };
        drop(table);
        let Some(segment) = Segment::of(&syn) else {
            return;
        };
        let answer = match refusal.status {
            Status::Denied => {
                self.warn_of_rules(refusal);
                return client.send(&syn);
            }
            // Nothing is said: the program sends its SYN again.
            Status::Limit => None,
            _ if is_lost => None,
            Status::Refused => segment.refused(),
            Status::NetworkUnreachable => segment.unreachable(&syn, Unreachable::Network),
            _ => segment.unreachable(&syn, Unreachable::Host),
        };
        if let Some(answer) = answer {
            client.give(&answer);
        }
    }

    fn warn_of_rules(&self, refusal: &Refusal) {
        if !self.has_warned_of_rules.swap(true, Ordering::Relaxed) {
            self.events.tell(Event::Warning(format!(
                "--split-tcp: {refusal}: such connections go as packets. The server connects where it has a rule tunnel:tcp:HOST:PORT, or tunnel"
            )));
        }
    }
}
