//! Two [`Control`]s joined by a link in virtual time.

mod access;
mod hostile;
mod loss;
mod resets;
mod shards;
mod small;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::*;
use crate::budget::Budget;
use sphinx_driver::keys::Direction;

const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 4000);
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 4433);

/// What the command line closes with when it is interrupted.
const CODE_CANCELLED: u64 = 6;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn settings(service: Service) -> Settings {
    Settings {
        sc: None,
        recv_window: None,
        paper: None,
        paths_max: 1,
        bond: None,
        service,
        services: Services::default(),
        budget: Budget::new(8 << 20),
        idle_timeout_ms: 15_000,
        max_udp_payload: 65_527,
        resumptions: true,
    }
}

/// Ids that only one end can read.
fn ids() -> IdMaker {
    IdMaker::new(None, 0, None)
}

/// Who has the first ticket.
fn guests(identity: &Identity) -> Guests {
    let mut list = AccessList::new();
    list.add_ticket(identity.own_secret(), true);
    Guests::new(list)
}

/// A ticket of a server with this pin and secret, whether or not there is one.
fn ticket_with(pin: [u8; 32], secret: [u8; 32]) -> Ticket {
    let addresses = vec!["10.0.0.2:4433".to_owned()];
    Ticket::new(addresses, pin, Zeroizing::new(secret)).expect("valid")
}

fn ticket_of(identity: &Identity) -> Ticket {
    identity
        .ticket_with(&["10.0.0.2:4433".to_owned()], &identity.own_secret())
        .expect("valid")
}

/// splitmix64: the tests' only randomness besides the keys.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn chance(&mut self, p: f64) -> bool {
        ((self.next() >> 11) as f64) < p * (1u64 << 53) as f64
    }
}

/// One end, what it was told, and what it sent.
struct End {
    address: SocketAddr,
    control: Control,
    events: Vec<(Duration, Event)>,
    datagrams_sent: usize,
    bytes_sent: u64,
    bytes_received: u64,
}

impl End {
    fn new(address: SocketAddr, control: Control) -> Self {
        Self {
            address,
            control,
            events: Vec::new(),
            datagrams_sent: 0,
            bytes_sent: 0,
            bytes_received: 0,
        }
    }

    fn failure(&self) -> Option<&Failure> {
        self.events.iter().find_map(|(_, event)| match event {
            Event::Failed { why, .. } => Some(why),
            _ => None,
        })
    }

    fn established_at(&self) -> Option<Duration> {
        self.events
            .iter()
            .find(|(_, event)| matches!(event, Event::Established { .. }))
            .map(|(at, _)| *at)
    }
}

struct Net {
    start: Instant,
    now: Instant,
    rng: Rng,
    loss: f64,
    one_way: Duration,
    /// Each datagram is delivered again this much later.
    echo: Option<Duration>,
    in_flight: BTreeMap<(Instant, u64), (SocketAddr, SocketAddr, Vec<u8>)>,
    sent: u64,
    ends: [End; 2],
}

impl Net {
    fn new(client: Control, server: Control) -> Self {
        let now = Instant::now();
        Self {
            start: now,
            now,
            rng: Rng(1),
            loss: 0.0,
            one_way: ms(5),
            echo: None,
            in_flight: BTreeMap::new(),
            sent: 0,
            ends: [End::new(CLIENT, client), End::new(SERVER, server)],
        }
    }

    /// A client of `ticket` and the server of `identity`, the same service.
    fn pair(identity: &Identity) -> Self {
        let server = Control::server(identity, guests(identity), settings(Service::PERF), ids());
        Self::new(Control::client(ids()), server)
    }

    fn client(&mut self) -> &mut End {
        &mut self.ends[0]
    }

    fn server(&mut self) -> &mut End {
        &mut self.ends[1]
    }

    fn connect(&mut self, ticket: &Ticket, service: Service) -> ConnId {
        self.ends[0]
            .control
            .connect(self.now, SERVER, ticket, &settings(service), None)
            .expect("a valid address")
            .id
    }

    fn drain(&mut self) {
        let mut buf = Vec::new();
        for end in &mut self.ends {
            end.control.handle_timeout(self.now);
            while let Some(transmit) = end.control.poll_transmit(self.now, &mut buf) {
                assert!(buf.len() <= 1200, "larger than the smallest path");
                assert!(buf[0] & 0xc0 != 0x80, "looks like the data plane");
                end.datagrams_sent += 1;
                end.bytes_sent += buf.len() as u64;
                for delay in std::iter::once(ms(0)).chain(self.echo) {
                    if !self.rng.chance(self.loss) {
                        self.sent += 1;

                        self.in_flight.insert(
                            (self.now + self.one_way + delay, self.sent),
                            (end.address, transmit.remote, buf.clone()),
                        );
                    }
                }
            }
            let at = self.now - self.start;
            while let Some(event) = end.control.poll_event() {
                end.events.push((at, event));
            }
            let is_known = end
                .control
                .sessions
                .values()
                .any(|session| session.is_validated());
            let failed = end.failure().is_some();
            if end.address == SERVER && !is_known && !failed {
                assert!(end.bytes_sent <= 3 * end.bytes_received, "amplification");
            }
        }
    }

    /// One step of virtual time; false when nothing is to happen any more, or not before `until`.
    fn step(&mut self, until: Instant) -> bool {
        self.drain();
        let timers = self
            .ends
            .iter()
            .filter_map(|end| end.control.poll_timeout());
        let arrivals = self.in_flight.keys().map(|(at, _)| *at);
        let Some(next) = timers.chain(arrivals).min().filter(|at| *at <= until) else {
            return false;
        };
        self.now = self.now.max(next);
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (from, to, bytes) = entry.remove();
            if let Some(end) = self.ends.iter_mut().find(|end| end.address == to) {
                end.bytes_received += bytes.len() as u64;
                end.control.handle_datagram(self.now, from, None, &bytes);
            }
        }
        true
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
        self.now = until;
        self.drain();
    }

    /// Until both ends are established, or `limit` has passed since the start.
    fn run_until_established(&mut self, limit: Duration) -> bool {
        let until = self.start + limit;
        loop {
            if self.ends.iter().all(|end| end.established_at().is_some()) {
                return true;
            }
            if !self.step(until) {
                return false;
            }
        }
    }
}

#[test]
fn both_ends_get_the_same_keys_and_each_other_parameters() {
    let identity = Identity::generate();
    let mut net = Net::pair(&identity);
    let connected = net.connect(&ticket_of(&identity), Service::PERF);
    net.run_until_established(ms(1000));

    let [client, server] = &mut net.ends;
    let [(_, Event::Established { .. })] = &client.events[..] else {
        panic!("{:?}", client.events);
    };
    let [(_, Event::Pending { .. }), (_, Event::Established { .. })] = &server.events[..] else {
        panic!("{:?}", server.events);
    };
    let Some((
        at_client,
        Event::Established {
            id,
            remote,
            local_ip: None,
            local_cid: client_cid,
            window,
            peer: server_params,
            secret: client_secret,
            who: None,
            direction: Direction::ClientToServer,
            resumption,
            rtt,
        },
    )) = client.events.pop()
    else {
        panic!("checked above");
    };
    // One round trip, then half of another.
    assert_eq!(id, connected);
    assert_eq!((remote, at_client, rtt), (SERVER, ms(10), ms(10)));
    let Some((
        at_server,
        Event::Established {
            id: accepted,
            remote,
            local_cid: server_cid,
            peer: client_params,
            secret: server_secret,
            direction: Direction::ServerToClient,
            resumption: kept,
            rtt,
            ..
        },
    )) = server.events.pop()
    else {
        panic!("checked above");
    };
    assert_eq!((remote, at_server, rtt), (CLIENT, ms(15), ms(10)));
    assert!(kept.is_some() && kept == resumption && kept == server_params.resumption);
    let Some((_, Event::Pending { id, local_cid, .. })) = server.events.pop() else {
        panic!("checked above");
    };
    assert_eq!((id, local_cid), (accepted, server_cid));
    assert_eq!(server_params.cid, server_cid);
    assert_eq!(client_params.cid, client_cid);
    let told = |params: &Params| (params.receive_window, params.receive_credit, params.streams);
    assert_eq!(
        told(&client_params),
        (window.bytes, window.credit, window.streams)
    );
    assert_eq!(told(&client_params), (786_432, 786_432, 320));
    assert_eq!(told(&server_params), (786_432, 1 << 16, 320));
    assert_eq!(client_params.idle_timeout_ms, Some(15_000));
    assert_eq!(client_params.datagram_max, 65_507);
    assert_eq!(client_secret.proof(), server_secret.proof());
}

/// What names the session is expected before its first datagram, and as long as nobody has been told that it begins: what came with it must find it.
#[test]
fn a_client_that_is_known_begins_with_its_first_datagram() {
    let identity = Identity::generate();
    let ticket = ticket_of(&identity);
    let mut net = Net::pair(&identity);
    net.connect(&ticket, Service::PERF);
    net.run_until_established(ms(1000));
    let [client, server] = &mut net.ends;
    let Some((_, Event::Established { secret, peer, .. })) = client.events.pop() else {
        panic!("{:?}", client.events);
    };
    let Some((
        _,
        Event::Established {
            secret: kept,
            who: Some(who),
            resumption: Some(cid),
            ..
        },
    )) = server.events.pop()
    else {
        panic!("{:?}", server.events);
    };
    let (now, settings) = (net.now, settings(Service::PERF));
    let [client, server] = &mut net.ends;
    let (client, server) = (&mut client.control, &mut server.control);
    server.keep(now, cid, kept.resumption(cid), who);
    let resumption = Resumption {
        cid,
        secret: secret.resumption(cid),
        server: *peer,
    };
    let begun = client
        .connect(now, SERVER, &ticket, &settings, Some(&resumption))
        .expect("a valid address");
    assert!(begun.secret.is_some());
    // Beside what the first connection still acknowledges.
    let sent = hostile::flush(client, now);
    let [flight] = &sent
        .iter()
        .filter(|it| it.len() == 1200)
        .collect::<Vec<_>>()[..]
    else {
        panic!("one datagram, with the token");
    };

    assert!(server.expects(now, cid));
    server.handle_datagram(now, CLIENT, None, flight);
    assert!(server.expects(now, cid));
    let Some(Event::Pending {
        local_cid,
        beginning: Some(beginning),
        ..
    }) = server.poll_event()
    else {
        panic!("it does not begin");
    };
    assert_eq!(
        (local_cid, beginning.peer.cid, beginning.who),
        (cid, begun.cid, who)
    );
    assert!(!server.expects(now, cid));
    // A copy of it begins nothing, nor does it from elsewhere.
    for remote in [CLIENT, ([10, 0, 0, 9], 9).into()] {
        server.handle_datagram(now, remote, None, flight);
        assert!(server.poll_event().is_none());
    }
}

#[test]
fn a_handshake_is_short() {
    let identity = Identity::generate();
    let mut net = Net::pair(&identity);
    net.connect(&ticket_of(&identity), Service::PERF);
    net.run(ms(3000));
    // Two flights of the client and one of the server, and what acknowledges them.
    let sent = (net.client().datagrams_sent, net.server().datagrams_sent);
    assert!(sent.0 <= 4 && sent.1 <= 4, "{sent:?}");
    // Nothing is left to do: no timers, no keep-alives.
    assert_eq!(net.client().control.poll_timeout(), None);
    assert_eq!(net.server().control.poll_timeout(), None);
    assert_eq!(net.server().control.stats().withheld_datagrams, 0);
}

#[test]
fn a_wrong_pin_is_an_authentication_failure() {
    let (identity, other) = (Identity::generate(), Identity::generate());
    let mut net = Net::pair(&identity);
    let (ticket, settings) = (ticket_of(&identity), settings(Service::PERF));
    let client = &mut net.ends[0].control;
    let connected = client
        .connect(
            net.now,
            SERVER,
            &ticket_with(other.pin(), *ticket.secret()),
            &settings,
            None,
        )
        .expect("a valid address")
        .id;
    net.run(ms(2000));
    assert!(matches!(net.client().events[..], [(_, Event::Failed { id, .. })] if id == connected));
    let Some(Failure::Authentication(message)) = net.client().failure() else {
        panic!("{:?}", net.client().events);
    };
    assert!(message.contains("10.0.0.2:4433"), "{message}");
    assert_eq!(net.client().established_at(), None);
    assert_eq!(net.server().established_at(), None);
    assert!(matches!(net.server().failure(), Some(Failure::Protocol(_))));
    assert_eq!(net.server().control.stats().failed_handshakes, 1);
    assert!(net.client().control.sessions.is_empty());
    assert!(net.server().control.sessions.is_empty());
}

#[test]
fn a_wrong_secret_is_refused_before_the_handshake() {
    let identity = Identity::generate();
    for seed in 0..20 {
        let mut net = Net::pair(&identity);
        net.rng = Rng(seed);
        net.loss = if seed == 0 { 0.0 } else { 0.3 };
        let pin = identity.pin();
        let settings = settings(Service::PERF);
        net.ends[0]
            .control
            .connect(net.now, SERVER, &ticket_with(pin, [1; 32]), &settings, None)
            .expect("a valid address");
        net.run(ms(3000));
        assert!(
            matches!(net.client().failure(), Some(Failure::Authentication(_))),
            "seed {seed}: {:?}",
            net.client().events
        );
        assert!(net.client().control.sessions.is_empty());
        assert_eq!(net.client().established_at(), None);
        // Nothing was kept of it, and nobody was told.
        assert!(net.server().control.sessions.is_empty() && net.server().events.is_empty());
        assert!(net.server().control.stats().failed_handshakes > 0);
    }
}

#[test]
fn services_must_agree() {
    let identity = Identity::generate();
    let mut net = Net::pair(&identity);
    net.connect(&ticket_of(&identity), Service::FILES);
    net.run(ms(2000));
    assert_eq!(
        net.client().failure(),
        Some(&Failure::Protocol(
            "the other end is `sphx perf server`, not `sphx recv`".into()
        ))
    );
    assert_eq!(net.server().established_at(), None);
    assert!(net.server().failure().is_some());
}

/// A server may have several: the client says which it is to be.
#[test]
fn one_of_several_services() {
    let identity = Identity::generate();
    let several = Settings {
        services: [Service::FILES, Service::PERF].into_iter().collect(),
        ..settings(Service::TUNNEL)
    };
    for service in [
        Service::FILES,
        Service::PERF,
        Service::TUNNEL,
        Service::APPLICATION,
    ] {
        let mut net = Net::pair(&identity);
        net.server().control = Control::server(&identity, guests(&identity), several, ids());
        net.connect(&ticket_of(&identity), service);
        net.run(ms(2000));
        let is_served = service != Service::APPLICATION;
        assert_eq!(net.client().established_at().is_some(), is_served);
        assert_eq!(net.server().established_at().is_some(), is_served);
        if !is_served {
            let why = "the other end is `sphx server`, not another application";
            let expected = Failure::Protocol(why.into());
            assert_eq!(net.client().failure(), Some(&expected));
        }
    }
}

/// Only who serves measurements, or wants the mode itself, announces it: an end that serves files is to the client what one of an older
/// version is.
#[test]
fn a_peer_without_the_papers_mode_is_refused() {
    let identity = Identity::generate();
    let wants = |service| Settings {
        paper: Some(sphinx_proto::Paper::default()),
        ..settings(service)
    };
    for (service, knows) in [(Service::PERF, true), (Service::FILES, false)] {
        let mut net = Net::pair(&identity);
        net.server().control =
            Control::server(&identity, guests(&identity), settings(service), ids());
        let (now, ticket) = (net.now, ticket_of(&identity));
        let client = &mut net.client().control;
        client
            .connect(now, SERVER, &ticket, &wants(service), None)
            .expect("a valid address");
        net.run(ms(2000));
        assert_eq!(net.client().established_at().is_some(), knows);
        if !knows {
            let why = "the other end does not know the paper's mode: it is of an older version";
            let expected = Failure::Protocol(why.into());
            assert_eq!(net.client().failure(), Some(&expected));
            assert_eq!(net.server().established_at(), None);
        }
    }
}

/// A pair of which the server speaks these versions.
fn pair_of_versions(identity: &Identity, versions: &[&[u8]]) -> Net {
    let mut net = Net::pair(identity);
    let config = tls::server_config_of(identity, versions);
    net.server()
        .control
        .endpoint
        .set_server_config(Some(Arc::new(config)));
    net.connect(&ticket_of(identity), Service::PERF);
    net
}

#[test]
fn ends_without_a_common_version_tell_each_other() {
    let identity = Identity::generate();
    let expected = Failure::Protocol(
        "the other end speaks another version of the protocol (this program: version 2); \
         use the same release on both ends"
            .into(),
    );
    for seed in 0..20 {
        let mut net = pair_of_versions(&identity, &[b"sphinx/3"]);
        net.rng = Rng(seed);
        net.loss = if seed == 0 { 0.0 } else { 0.3 };
        net.run(ms(3000));
        assert_eq!(net.client().failure(), Some(&expected), "seed {seed}");
        assert_eq!(net.client().established_at(), None);
        let is_told =
            |(_, event): &(_, Event)| matches!(event, Event::Refused(why) if *why == expected);
        let server = net.server();
        assert!(!server.events.is_empty() && server.events.iter().all(is_told));
        assert!(server.control.sessions.is_empty());
    }
}

#[test]
fn ends_meet_at_a_version_that_both_speak() {
    let identity = Identity::generate();
    let mut net = pair_of_versions(&identity, &[b"sphinx/3", b"sphinx/2"]);
    assert!(net.run_until_established(ms(1000)));
}

/// Sessions at rest hold nothing of QUIC, whatever was lost of its last packets.
#[test]
fn connections_that_have_done_their_part_are_let_go() {
    let identity = Identity::generate();
    for seed in 0..100 {
        let mut net = Net::pair(&identity);
        net.rng = Rng(seed);
        net.loss = if seed == 0 { 0.0 } else { 0.3 };
        let id = net.connect(&ticket_of(&identity), Service::PERF);
        net.run(ms(60_000));
        for end in &mut net.ends {
            let control = &end.control;
            assert!(control.sessions.is_empty(), "seed {seed}");
            assert_eq!(control.endpoint.open_connections(), 0, "seed {seed}");
            assert_eq!(control.poll_timeout(), None, "seed {seed}");
            assert!(end.established_at().is_some(), "seed {seed}");
            // Where the last acknowledgement was lost, the other end hears that there is no connection any more: that is no end of the session.
            let settled = match end.events.last() {
                Some((_, Event::Settled { id, traffic })) => Some((*id, *traffic)),
                Some((_, Event::Failed { why, .. })) if seed > 0 => {
                    assert!(matches!(why, Failure::Unreachable(_)), "seed {seed}: {why}");
                    None
                }
                other => panic!("seed {seed}: {other:?}"),
            };
            if let Some((settled, traffic)) = settled
                && seed == 0
            {
                assert!(end.address == SERVER || settled == id);
                assert_eq!(traffic.datagrams_sent, end.datagrams_sent as u64);
                assert_eq!(traffic.bytes_sent, end.bytes_sent);
            }
        }
        let now = net.now;
        net.client().control.close(now, id, CODE_CANCELLED, "late");
        assert!(net.client().control.settled.is_empty());
    }
}

/// Nobody takes himself for let in by a server that is about to go.
#[test]
fn a_server_that_ends_turns_clients_away() {
    let identity = Identity::generate();
    for seed in 0..20 {
        let mut net = Net::pair(&identity);
        net.rng = Rng(seed);
        net.loss = if seed == 0 { 0.0 } else { 0.2 };
        net.server().control.end("it goes");
        net.connect(&ticket_of(&identity), Service::PERF);
        net.run(ms(10_000));
        let is_told = |event: &Event| matches!(event, Event::Closed { code: CODE_CANCELLED, reason, .. } if reason == "it goes");
        let [(_, event)] = &net.client().events[..] else {
            panic!("seed {seed}: {:?}", net.client().events);
        };
        assert!(is_told(event), "seed {seed}: {event:?}");
        assert_eq!(net.server().established_at(), None);
        assert!(net.server().control.sessions.is_empty());
    }
}

#[test]
fn closing_reaches_the_other_end_under_loss() {
    let identity = Identity::generate();
    let mut reached = 0;
    for seed in 0..100 {
        let mut net = Net::pair(&identity);
        net.rng = Rng(seed);
        let id = net.connect(&ticket_of(&identity), Service::PERF);
        assert!(net.run_until_established(ms(1000)));
        let Some((_, Event::Established { id: accepted, .. })) = net.server().events.pop() else {
            panic!("{:?}", net.server().events);
        };
        net.loss = 0.3;
        let now = net.now;
        net.client().control.close(
            now,
            id,
            CODE_CANCELLED,
            "stopped\u{7} by \u{1b}[31mthe user",
        );
        net.run(ms(2000));
        assert!(net.client().control.sessions.is_empty());
        assert_eq!(net.client().events.len(), 1, "no event for one's own close");
        reached += usize::from(net.server().events.iter().any(|(_, event)| {
            matches!(event, Event::Closed { id, code: CODE_CANCELLED, reason }
                if *id == accepted && reason == "stopped by [31mthe user")
        }));
    }
    // Three sendings within 15 ms: at least 97.3 % expected.
    assert!(reached >= 93, "{reached} of 100");
}

#[test]
fn a_cancelled_attempt_leaves_nothing() {
    let identity = Identity::generate();
    let mut net = Net::pair(&identity);
    net.loss = 1.0;
    let id = net.connect(&ticket_of(&identity), Service::PERF);
    net.run(ms(3000));
    let now = net.now;
    net.client()
        .control
        .close(now, id, CODE_CANCELLED, "too slow");
    net.run(ms(60_000));
    assert!(net.client().events.is_empty());
    assert!(net.client().control.sessions.is_empty());
    // An id that is no longer known is ignored.
    net.client().control.close(now, id, 0, "");
}

#[test]
fn impossible_addresses_are_refused() {
    for address in ["0.0.0.0:1", "10.0.0.1:0"] {
        let result = Control::client(ids()).connect(
            Instant::now(),
            address.parse().expect("valid"),
            &ticket_with([0; 32], [0; 32]),
            &settings(Service::PERF),
            None,
        );
        assert!(matches!(result, Err(Failure::Unreachable(_))), "{address}");
    }
}
