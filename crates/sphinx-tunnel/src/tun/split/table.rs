//! Which connections are ended here, and what becomes of a segment: without packets that are written, sockets and clocks.
//!
//! A program's connection to `far` and this end's own socket for it are two connections of one kernel, and each segment of one is turned round into one of the other:
//!
//! ```text
//! program                       own:40000 → far:443     far:443 → own:40000
//!                                   ↓ turned                ↑ turned
//! listener, at port L of own    far:40000 → own:L       own:L → far:40000
//! ```
//!
//! The port that stands in for the program's is the same, or another one if a connection to the same address has that already.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::tun::segment::Segment;

/// Connections at a time, those included that are over and not forgotten yet.
pub(crate) const CONNECTIONS_MAX: usize = 65_536;
/// Most connections among them that the other end has not connected yet. The SYNs of others are dropped: programs send them again.
pub(crate) const ASKED_MAX: usize = 1024;
/// A connection that is over is forgotten after so long without a segment: what is on its way, or is sent again, still finds it.
const OVER_TIME: Duration = Duration::from_secs(150);
/// How long such a connection is kept when there are too many.
const OVER_TIME_MIN: Duration = Duration::from_secs(2);
/// Least time between two searches for connections to forget, when there are too many.
const FULL_PAUSE: Duration = Duration::from_secs(1);
/// Targets that no rule lets through go as packets for so long, without being asked for.
const APART_TIME: Duration = Duration::from_secs(60);
const APART_MAX: usize = 4096;
/// Ports that are tried to stand in for a program's.
const PORTS_TRIED: u16 = 1024;
/// After so many SYNs of one connection without an answer of the own listener, which answers at once, something on this machine keeps it from
/// hearing.
const SYNS_UNHEARD: u32 = 3;
/// How long connections of that family then go as packets, before the listener is tried again.
const UNHEARD_TIME: Duration = Duration::from_secs(60);

/// A connection as its program sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Connection {
    pub(crate) own: SocketAddr,
    pub(crate) far: SocketAddr,
}

/// One of the connections that there were between two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Id(u64);

/// What becomes of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes through the tunnel as a packet.
    Through,
    /// It goes back to the kernel with its ends turned round and these ports.
    Back(u16, u16),
    /// Nothing: it is asked for already, or of nothing that is known.
    Nowhere,
    /// It asks for a connection that is new: [`Table::begin`].
    Begins(Connection),
    /// Something on this machine does not let the listener hear. Connections of this family go as packets for a while, this one too; but what
    /// was sent in the listener's place goes nowhere.
    Unheard,
}

#[derive(Debug)]
enum State<T> {
    /// The other end is to connect; its program's SYN waits.
    Asked { syn: Vec<u8>, taker: T },
    /// The listener has been given so many SYNs of the program, and may have granted one (SYN and ACK).
    Opening {
        taker: T,
        syns: u32,
        is_granted: bool,
    },
    /// The connection is carried as a stream.
    Carried,
    /// Nobody carries for it any more.
    Over,
}

#[derive(Debug)]
struct Entry<T> {
    id: Id,
    state: State<T>,
    /// Port that stands in for the program's towards the listener.
    port: u16,
    used: Instant,
}

/// All connections. `T` takes the socket of one.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// Port of the listener of this end.
    listener: u16,
    connections: HashMap<Connection, Entry<T>>,
    /// Connections by the address that the listener takes for the peer's.
    turned: HashMap<SocketAddr, Connection>,
    apart: HashMap<SocketAddr, Instant>,
    asked: usize,
    next: u64,
    /// Until when connections of IPv4 and IPv6 go as packets.
    unheard: [Option<Instant>; 2],
    looked: Option<Instant>,
}

fn family(ip: IpAddr) -> usize {
    usize::from(ip.is_ipv6())
}

impl<T> Table<T> {
    /// An empty table, for a listener at this port.
    pub(crate) fn new(listener: u16) -> Self {
        Self {
            listener,
            connections: HashMap::new(),
            turned: HashMap::new(),
            apart: HashMap::new(),
            asked: 0,
            next: 0,
            unheard: [None; 2],
            looked: None,
        }
    }

    /// Port of the listener of this end.
    pub(crate) fn listener(&self) -> u16 {
        self.listener
    }

    /// What becomes of a segment of this machine.
    pub(crate) fn judge(&mut self, segment: &Segment, now: Instant) -> Verdict {
        if segment.source.port() == self.listener {
            return self.judge_own(segment, now);
        }
        let connection = Connection {
            own: segment.source,
            far: segment.destination,
        };
        let listener = self.listener;
        let Some(entry) = self.connections.get_mut(&connection) else {
            return self.judge_new(segment, connection, now);
        };
        match &mut entry.state {
            State::Asked { .. } => return Verdict::Nowhere,
            State::Over if segment.opens() => {
                return self.judge_new(segment, connection, now);
            }
            State::Opening {
                syns,
                is_granted: false,
                ..
            } if segment.opens() => {
                *syns += 1;
                if *syns >= SYNS_UNHEARD {
                    return self.unheard(connection, now);
                }
            }
            // Whoever waits for the socket learns that none comes.
            State::Opening { .. } if segment.resets() => entry.state = State::Over,
            _ => {}
        }
        entry.used = now;
        Verdict::Back(entry.port, listener)
    }

    /// What becomes of a segment that the listener's sockets send.
    fn judge_own(&mut self, segment: &Segment, now: Instant) -> Verdict {
        let Some(connection) = self.turned.get(&segment.destination).copied() else {
            return Verdict::Nowhere;
        };
        let Some(entry) = self.connections.get_mut(&connection) else {
            return Verdict::Nowhere;
        };
        match &mut entry.state {
            // They are of the connection between the same ends before.
            State::Asked { .. } => return Verdict::Nowhere,
            State::Opening { is_granted, .. } => {
                *is_granted |= segment.grants();
                // A listener refuses nobody: somebody does in its place.
                if segment.resets() && !*is_granted {
                    return self.unheard(connection, now);
                }
            }
            State::Carried | State::Over => {}
        }
        entry.used = now;
        Verdict::Back(connection.far.port(), connection.own.port())
    }

    fn judge_new(&mut self, segment: &Segment, connection: Connection, now: Instant) -> Verdict {
        if !segment.opens() {
            return Verdict::Through;
        }
        let far = connection.far;
        let is_apart = self.apart.get(&far).is_some_and(|until| now < *until);
        let is_unheard = self.unheard[family(far.ip())].is_some_and(|until| now < until);
        if is_apart || is_unheard {
            // The next segments are of what goes as packets now.
            self.forget(&connection);
            return Verdict::Through;
        }
        if self.asked >= ASKED_MAX || self.is_full(&connection, now) {
            return Verdict::Nowhere;
        }
        Verdict::Begins(connection)
    }

    fn is_full(&mut self, connection: &Connection, now: Instant) -> bool {
        let is_full = |table: &Self| table.connections.len() >= CONNECTIONS_MAX;
        if !is_full(self) || self.connections.contains_key(connection) {
            return false;
        }
        if self.looked.is_none_or(|looked| now >= looked + FULL_PAUSE) {
            self.looked = Some(now);
            self.forget_older(OVER_TIME_MIN, now);
        }
        is_full(self)
    }

    fn unheard(&mut self, connection: Connection, now: Instant) -> Verdict {
        self.unheard[family(connection.far.ip())] = Some(now + UNHEARD_TIME);
        self.forget(&connection);
        Verdict::Unheard
    }

    /// Keeps the SYN of a connection that is new, until the other end has connected. `None`: no port can stand in for its program's, and it goes as packets.
    pub(crate) fn begin(
        &mut self,
        connection: Connection,
        syn: Vec<u8>,
        taker: T,
        now: Instant,
    ) -> Option<Id> {
        // One that is over lets its port go to the one between the same ends that follows it.
        self.forget(&connection);
        let ip = connection.far.ip();
        let port = (0..PORTS_TRIED)
            .map(|tried| connection.own.port().wrapping_add(tried))
            .find(|port| *port != 0 && !self.turned.contains_key(&SocketAddr::new(ip, *port)))?;
        let id = Id(self.next);
        self.next += 1;
        self.asked += 1;
        self.turned.insert(SocketAddr::new(ip, port), connection);
        let entry = Entry {
            id,
            state: State::Asked { syn, taker },
            port,
            used: now,
        };
        self.connections.insert(connection, entry);
        Some(id)
    }

    fn get(&mut self, connection: &Connection, id: Id) -> Option<&mut Entry<T>> {
        let entry = self.connections.get_mut(connection);
        entry.filter(|entry| entry.id == id)
    }

    /// The other end has connected: the SYN that the listener gets now.
    pub(crate) fn connected(&mut self, connection: &Connection, id: Id) -> Option<Vec<u8>> {
        let listener = self.listener;
        let entry = self.get(connection, id)?;
        let port = entry.port;
        let (mut syn, taker) = match std::mem::replace(&mut entry.state, State::Over) {
            State::Asked { syn, taker } => (syn, taker),
            other => {
                entry.state = other;
                return None;
            }
        };
        entry.state = State::Opening {
            taker,
            syns: 1,
            is_granted: false,
        };
        self.asked -= 1;
        Segment::of(&syn)?.turn(&mut syn, (port, listener), true);
        Some(syn)
    }

    /// The other end has not connected: the SYN, to be answered or to go its way.
    pub(crate) fn refused(&mut self, connection: &Connection, id: Id) -> Option<Vec<u8>> {
        self.get(connection, id)?;
        match self.forget(connection)? {
            State::Asked { syn, .. } => Some(syn),
            _ => None,
        }
    }

    /// No rule lets connections to `far` through: for a while they go as packets.
    pub(crate) fn set_apart(&mut self, far: SocketAddr, now: Instant) {
        if self.apart.len() >= APART_MAX {
            self.apart.retain(|_, until| now < *until);
        }
        if self.apart.len() < APART_MAX {
            self.apart.insert(far, now + APART_TIME);
        }
    }

    /// There is another session, whose rules may be others.
    pub(crate) fn renew(&mut self) {
        self.apart.clear();
    }

    /// The listener has accepted a connection that comes from `peer`: who takes it. Nobody if it is none that a program began.
    pub(crate) fn accepted(&mut self, peer: SocketAddr) -> Option<T> {
        let connection = self.turned.get(&peer)?;
        let entry = self.connections.get_mut(connection)?;
        match std::mem::replace(&mut entry.state, State::Carried) {
            State::Opening { taker, .. } => Some(taker),
            other => {
                entry.state = other;
                None
            }
        }
    }

    /// Nobody carries for a connection any more.
    pub(crate) fn over(&mut self, connection: &Connection, id: Id, now: Instant) {
        if let Some(entry) = self.get(connection, id) {
            entry.used = now;
            let before = std::mem::replace(&mut entry.state, State::Over);
            self.asked -= usize::from(matches!(before, State::Asked { .. }));
        }
    }

    /// Forgets what is long over.
    pub(crate) fn sweep(&mut self, now: Instant) {
        self.forget_older(OVER_TIME, now);
        self.apart.retain(|_, until| now < *until);
    }

    fn forget_older(&mut self, time: Duration, now: Instant) {
        self.connections.retain(|connection, entry| {
            let is_over = matches!(entry.state, State::Over);
            let stays = !is_over || now.saturating_duration_since(entry.used) < time;
            if !stays {
                self.turned
                    .remove(&SocketAddr::new(connection.far.ip(), entry.port));
            }
            stays
        });
    }

    fn forget(&mut self, connection: &Connection) -> Option<State<T>> {
        let entry = self.connections.remove(connection)?;
        self.turned
            .remove(&SocketAddr::new(connection.far.ip(), entry.port));
        self.asked -= usize::from(matches!(entry.state, State::Asked { .. }));
        Some(entry.state)
    }

    /// # Panics
    /// If what is said of one thing in two places differs.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn check(&self) {
        assert!(self.connections.len() <= CONNECTIONS_MAX && self.asked <= ASKED_MAX);
        assert_eq!(self.connections.len(), self.turned.len());
        let mut asked = 0;
        for (connection, entry) in &self.connections {
            let peer = SocketAddr::new(connection.far.ip(), entry.port);
            assert_eq!(self.turned.get(&peer), Some(connection));
            asked += usize::from(matches!(entry.state, State::Asked { .. }));
        }
        assert_eq!(asked, self.asked);
        assert!(self.apart.len() <= APART_MAX);
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    const LISTENER: u16 = 7749;
    const FAR: &str = "192.0.2.1:443";

    /// What the ends of a connection send, and when.
    struct Model {
        table: Table<u32>,
        now: Instant,
    }

    fn packet((from, to): (SocketAddr, SocketAddr), flags: &str) -> Vec<u8> {
        let ips = (from.ip(), to.ip());
        let (IpAddr::V4(source), IpAddr::V4(destination)) = ips else {
            panic!("{ips:?}");
        };
        let mut tcp = PacketBuilder::ipv4(source.octets(), destination.octets(), 64).tcp(
            from.port(),
            to.port(),
            1,
            9,
        );
        for flag in flags.split_ascii_whitespace() {
            tcp = match flag {
                "syn" => tcp.syn(),
                "rst" => tcp.rst(),
                "ack" => tcp.ack(1),
                other => panic!("{other}"),
            };
        }
        let mut out = Vec::new();
        tcp.write(&mut out, &[]).expect("built");
        out
    }

    fn connection(port: u16, far: &str) -> Connection {
        Connection {
            own: ([10, 9, 0, 2], port).into(),
            far: far.parse().expect("an address"),
        }
    }

    impl Model {
        fn new() -> Self {
            let (table, now) = (Table::new(LISTENER), Instant::now());
            Self { table, now }
        }

        fn pass(&mut self, seconds: u64) {
            self.now += Duration::from_secs(seconds);
        }

        fn hears(&mut self, ends: (SocketAddr, SocketAddr), flags: &str) -> Verdict {
            let segment = Segment::of(&packet(ends, flags)).expect("a segment");
            let verdict = self.table.judge(&segment, self.now);
            self.table.check();
            verdict
        }

        /// The program sends.
        fn program(&mut self, connection: &Connection, flags: &str) -> Verdict {
            self.hears((connection.own, connection.far), flags)
        }

        /// A socket of the listener sends to what it takes for the other end.
        fn listener(&mut self, connection: &Connection, port: u16, flags: &str) -> Verdict {
            let own = SocketAddr::new(connection.own.ip(), LISTENER);
            let far = SocketAddr::new(connection.far.ip(), port);
            self.hears((own, far), flags)
        }

        fn begins(&mut self, connection: &Connection, taker: u32) -> Id {
            assert_eq!(
                self.program(connection, "syn"),
                Verdict::Begins(*connection)
            );
            let syn = packet((connection.own, connection.far), "syn");
            let id = self.table.begin(*connection, syn, taker, self.now);
            self.table.check();
            id.expect("a port")
        }

        /// Up to the socket: what stands in for the port.
        fn opens(&mut self, connection: &Connection, taker: u32) -> (Id, u16) {
            let id = self.begins(connection, taker);
            let syn = self.table.connected(connection, id).expect("a SYN");
            let turned = Segment::of(&syn).expect("a segment");
            assert_eq!(turned.destination.port(), LISTENER);
            let port = turned.source.port();
            let back = Verdict::Back(connection.far.port(), connection.own.port());
            assert_eq!(self.listener(connection, port, "syn ack"), back);
            let peer = SocketAddr::new(connection.far.ip(), port);
            assert_eq!(self.table.accepted(peer), Some(taker));
            (id, port)
        }
    }

    #[test]
    fn a_connection_is_asked_for_once_and_carried_until_it_is_long_over() {
        let (mut model, one) = (Model::new(), connection(40_000, FAR));
        assert_eq!(model.program(&one, "ack"), Verdict::Through);
        let id = model.begins(&one, 1);
        for _ in 0..5 {
            assert_eq!(model.program(&one, "syn"), Verdict::Nowhere);
        }
        let syn = model.table.connected(&one, id).expect("a SYN");
        assert_eq!(
            Segment::of(&syn).expect("a segment").source,
            "192.0.2.1:40000".parse().expect("an address")
        );
        let (to, from) = (Verdict::Back(40_000, LISTENER), Verdict::Back(443, 40_000));
        assert_eq!(model.listener(&one, 40_000, "syn ack"), from);
        assert_eq!(model.program(&one, "ack"), to);
        let peer = "192.0.2.1:40000".parse().expect("an address");
        assert_eq!(model.table.accepted(peer), Some(1));
        assert_eq!(model.table.accepted(peer), None);
        model.table.over(&one, id, model.now);
        // What is sent again is still let through.
        model.pass(149);
        model.table.sweep(model.now);
        assert_eq!(model.program(&one, "ack"), to);
        model.pass(149);
        model.table.sweep(model.now);
        assert_eq!(model.listener(&one, 40_000, "ack"), from);
        model.pass(151);
        model.table.sweep(model.now);
        assert_eq!(model.program(&one, "ack"), Verdict::Through);
        assert_eq!(model.listener(&one, 40_000, "ack"), Verdict::Nowhere);
    }

    #[test]
    fn a_port_that_leads_to_two_services_of_a_machine_has_two_that_stand_in_for_it() {
        let mut model = Model::new();
        let ports = [443_u32, 80, 22].map(|port| {
            let one = connection(40_000, &format!("192.0.2.1:{port}"));
            model.opens(&one, port).1
        });
        assert_eq!(ports, [40_000, 40_001, 40_002]);
        let other = connection(40_000, "192.0.2.2:443");
        assert_eq!(model.opens(&other, 4).1, 40_000);
    }

    #[test]
    fn a_connection_between_the_same_ends_follows_one_that_is_over() {
        let (mut model, one) = (Model::new(), connection(40_000, FAR));
        let (first, port) = model.opens(&one, 1);
        model.table.over(&one, first, model.now);
        let second = model.begins(&one, 2);
        // The first one's task has nothing more to say.
        model.table.over(&one, first, model.now);
        assert_eq!(model.table.refused(&one, first), None);
        let syn = model.table.connected(&one, second).expect("a SYN");
        assert_eq!(Segment::of(&syn).expect("a segment").source.port(), port);
    }

    #[test]
    fn what_is_refused_begins_anew_and_what_no_rule_lets_through_goes_as_packets() {
        let (mut model, one) = (Model::new(), connection(40_000, FAR));
        let id = model.begins(&one, 1);
        assert!(model.table.refused(&one, id).is_some());
        let id = model.begins(&one, 2);
        model.table.set_apart(one.far, model.now);
        assert!(model.table.refused(&one, id).is_some());
        assert_eq!(model.program(&one, "syn"), Verdict::Through);
        model.opens(&connection(40_000, "192.0.2.1:80"), 3);
        model.pass(61);
        let id = model.begins(&one, 4);
        model.table.set_apart(one.far, model.now);
        model.table.refused(&one, id);
        model.table.renew();
        model.begins(&one, 5);
    }

    #[test]
    fn a_listener_that_never_hears_is_left_alone_for_a_while() {
        let mut model = Model::new();
        let (one, two) = (connection(40_000, FAR), connection(40_001, FAR));
        model.opens(&connection(39_999, FAR), 0);
        let id = model.begins(&one, 1);
        model.table.connected(&one, id).expect("a SYN");
        assert_eq!(model.program(&one, "syn"), Verdict::Back(40_000, LISTENER));
        assert_eq!(model.program(&one, "syn"), Verdict::Unheard);
        for connection in [&one, &two] {
            assert_eq!(model.program(connection, "syn"), Verdict::Through);
        }
        model.pass(61);
        // Somebody refuses in its place.
        let id = model.begins(&two, 2);
        model.table.connected(&two, id).expect("a SYN");
        assert_eq!(model.listener(&two, 40_001, "rst ack"), Verdict::Unheard);
        assert_eq!(model.program(&two, "syn"), Verdict::Through);
    }

    #[test]
    fn a_program_that_gives_up_is_told_to_who_waits() {
        let (mut model, one) = (Model::new(), connection(40_000, FAR));
        let id = model.begins(&one, 1);
        model.table.connected(&one, id).expect("a SYN");
        model.listener(&one, 40_000, "syn ack");
        assert_eq!(model.program(&one, "rst"), Verdict::Back(40_000, LISTENER));
        let peer = SocketAddr::new(one.far.ip(), 40_000);
        assert_eq!(model.table.accepted(peer), None);
        model.begins(&one, 2);
    }

    #[test]
    fn what_goes_as_packets_is_not_of_the_connection_before() {
        let (mut model, one) = (Model::new(), connection(40_000, FAR));
        let (id, _) = model.opens(&one, 1);
        model.table.set_apart(one.far, model.now);
        assert_eq!(model.program(&one, "ack"), Verdict::Back(40_000, LISTENER));
        model.table.over(&one, id, model.now);
        assert_eq!(model.program(&one, "syn"), Verdict::Through);
        assert_eq!(model.program(&one, "ack"), Verdict::Through);
    }

    #[test]
    fn there_is_an_end_to_how_many_there_are() {
        let mut model = Model::new();
        let far = |n: usize| format!("192.0.{}.{}:443", n >> 8 & 255, n & 255);
        let one = |n: usize| connection(1 + (n >> 16) as u16 + (n & 0xfff) as u16, &far(n));
        for n in 0..ASKED_MAX {
            model.begins(&one(n), 0);
        }
        assert_eq!(model.program(&one(ASKED_MAX), "syn"), Verdict::Nowhere);
        let mut table = Model::new();
        for n in 0..CONNECTIONS_MAX {
            let syn = packet((one(n).own, one(n).far), "syn");
            let id = table
                .table
                .begin(one(n), syn, 0, table.now)
                .expect("a port");
            table.table.over(&one(n), id, table.now);
        }
        let next = connection(9, "198.51.100.1:443");
        assert_eq!(table.program(&next, "syn"), Verdict::Nowhere);
        table.pass(3);
        assert_eq!(table.program(&next, "syn"), Verdict::Begins(next));
        assert!(table.table.connections.is_empty());
    }
}
