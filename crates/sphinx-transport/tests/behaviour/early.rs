//! Sessions that begin before their handshakes are over: what is there at once, and what recordings of it are good for.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use sphinx_transport::asynchronous::Session as TaskSession;
use sphinx_transport::{
    AccessList, EarlyData, ErrorKind, Options, Server, ServerKey, Service, Session, Ticket,
    TicketSecret,
};
use tempfile::TempDir;

use crate::support::*;
use crate::tasks::block_on;

const KB: usize = 1000;

/// What becomes of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Passes,
    /// The datagram is lost.
    Lost,
    /// The datagram passes when those that are held are let go.
    Held,
}

/// Decides about datagrams of one direction, the first of which has number 0.
type Judge = Box<dyn FnMut(usize, &[u8]) -> Fate + Send>;

fn passes() -> Judge {
    Box::new(|_, _| Fate::Passes)
}

/// One direction of a relay.
struct Lane {
    judge: Judge,
    seen: usize,
    /// Of the data plane.
    data: usize,
    held: VecDeque<Vec<u8>>,
    passed: Vec<Vec<u8>>,
}

impl Lane {
    fn new() -> Self {
        Self {
            judge: passes(),
            seen: 0,
            data: 0,
            held: VecDeque::new(),
            passed: Vec::new(),
        }
    }
}

/// Stands between clients, one at a time, and a server, and sees every datagram.
struct Relay {
    front: UdpSocket,
    back: UdpSocket,
    server: Mutex<SocketAddr>,
    client: Mutex<Option<SocketAddr>>,
    /// To the server, to the client.
    lanes: [Mutex<Lane>; 2],
}

impl Relay {
    fn start(server: SocketAddr) -> Arc<Self> {
        let bind = || UdpSocket::bind(LOCALHOST).unwrap();
        let relay = Arc::new(Self {
            front: bind(),
            back: bind(),
            server: Mutex::new(server),
            client: Mutex::default(),
            lanes: [Mutex::new(Lane::new()), Mutex::new(Lane::new())],
        });
        for way in [0, 1] {
            let relay = Arc::clone(&relay);
            let _: JoinHandle<()> = std::thread::spawn(move || relay.run(way));
        }
        relay
    }

    fn address(&self) -> SocketAddr {
        self.front.local_addr().unwrap()
    }

    fn lane(&self, way: usize) -> MutexGuard<'_, Lane> {
        self.lanes[way].lock().unwrap()
    }

    /// For as long as the test's process lives.
    fn run(&self, way: usize) {
        let mut buf = vec![0; 65_536];
        loop {
            let socket = [&self.front, &self.back][way];
            let Ok((len, from)) = socket.recv_from(&mut buf) else {
                continue;
            };
            if way == 0 {
                *self.client.lock().unwrap() = Some(from);
            }
            let datagram = &buf[..len];
            let mut lane = self.lane(way);
            let number = lane.seen;
            lane.seen += 1;
            lane.data += usize::from(is_data(datagram));
            match (lane.judge)(number, datagram) {
                Fate::Passes => {
                    lane.passed.push(datagram.to_vec());
                    self.send(way, datagram);
                }
                Fate::Lost => {}
                Fate::Held => lane.held.push_back(datagram.to_vec()),
            }
        }
    }

    fn send(&self, way: usize, datagram: &[u8]) {
        let client = *self.client.lock().unwrap();
        let _ = match way {
            0 => self.back.send_to(datagram, *self.server.lock().unwrap()),
            _ => client.map_or(Ok(0), |client| self.front.send_to(datagram, client)),
        };
    }

    /// From the next datagram on, which has number 0.
    fn judge(&self, way: usize, judge: Judge) {
        let mut lane = self.lane(way);
        (lane.judge, lane.seen, lane.data) = (judge, 0, 0);
        lane.passed.clear();
    }

    /// What was held passes, and everything else too.
    fn let_go(&self, way: usize) {
        let mut lane = self.lane(way);
        lane.judge = passes();
        while let Some(datagram) = lane.held.pop_front() {
            lane.passed.push(datagram.clone());
            self.send(way, &datagram);
        }
    }

    fn passed_bytes(&self, way: usize) -> usize {
        let lane = self.lane(way);
        lane.passed.iter().map(|datagram| datagram.len() + 28).sum()
    }
}

const TO_SERVER: usize = 0;
const TO_CLIENT: usize = 1;

fn is_data(datagram: &[u8]) -> bool {
    datagram[0] & 0xc0 == 0x80
}

/// A server, clients that have met it, and what is between them.
struct Place {
    listener: Option<Server>,
    key: Vec<u8>,
    relay: Arc<Relay>,
    ticket: Ticket,
    cache: TempDir,
    options: Options,
}

impl Place {
    /// With `early`, the server's application is given sessions at once.
    fn new(early: bool) -> Self {
        let key = ServerKey::generate().to_bytes().to_vec();
        let options = Options {
            early_data: early,
            ..Options::default()
        };
        let listener = listen(LOCALHOST, &key, &options);
        let relay = Relay::start(listener.local_addr());
        let ticket = ticket(&listener, relay.address());
        Self {
            listener: Some(listener),
            key,
            relay,
            ticket,
            cache: tempfile::tempdir().unwrap(),
            options,
        }
    }

    /// The same, and client and server have met.
    fn met(early: bool) -> Self {
        let place = Self::new(early);
        let (client, server) = place.session(&content(1, 2 * KB));
        assert_eq!(client.stats().early_data, EarlyData::None);
        assert!(client.is_confirmed() && server.is_confirmed());
        client.close(0, "done");
        place
    }

    fn server(&self) -> &Server {
        self.listener.as_ref().unwrap()
    }

    fn options(&self) -> Options {
        Options {
            early_data: true,
            path_memory: Some(self.cache.path().join("paths")),
            ..Options::default()
        }
    }

    fn connect(&self) -> Session {
        client(&self.ticket, &self.options()).unwrap()
    }

    /// A session that has carried `data`.
    fn session(&self, data: &[u8]) -> (Session, Session) {
        let client = self.connect();
        let sender = client.clone();
        let bytes = data.to_vec();
        let sending = std::thread::spawn(move || send_all(&sender, &bytes));
        let server = self.accept().expect("in time");
        assert!(read_all(&mut server.accept_uni().unwrap()).unwrap() == data);
        sending.join().unwrap().unwrap();
        (client, server)
    }

    fn accept(&self) -> Option<Session> {
        self.server().accept(Some(PATIENCE)).unwrap()
    }

    /// Nobody is given a session, as far as one can wait for that.
    fn nobody_comes(&self) {
        assert!(self.server().accept(Some(ms(300))).unwrap().is_none());
    }

    /// The same, of which early packets with `packets` datagrams at least leave before anything comes back.
    fn early_session(&self, data: &[u8], packets: usize) -> (Session, Session) {
        self.relay.judge(TO_CLIENT, hold_all());
        let relay = Arc::clone(&self.relay);
        let letting = std::thread::spawn(move || {
            wait_until("early packets have left", || {
                let lane = relay.lane(TO_SERVER);
                lane.data >= packets
            });
            relay.let_go(TO_CLIENT);
        });
        let session = self.session(data);
        letting.join().unwrap();
        session
    }

    /// The server is started again, and has this key.
    fn start_again(&mut self, key: &[u8]) {
        self.listener = None;
        // Another process may have taken its port meanwhile.
        let listener = listen(LOCALHOST, key, &self.options);
        *self.relay.server.lock().unwrap() = listener.local_addr();
        self.listener = Some(listener);
    }
}

fn listen(address: SocketAddr, key: &[u8], options: &Options) -> Server {
    let key = ServerKey::from_bytes(key).unwrap();
    Server::bind_with(address, &[Service::Application], key, options).unwrap()
}

/// Writes all of `data`, and its end, and waits for nothing.
fn write(session: &Session, data: &[u8]) -> sphinx_transport::SendStream {
    let mut stream = session.open_uni().unwrap();
    stream.write_all(data).unwrap();
    stream.finish().unwrap();
    stream
}

fn hold_all() -> Judge {
    Box::new(|_, _| Fate::Held)
}

/// No handshake ends: what comes back from the server is held. The application that wants it has everything all the same, and no more than three times of what has
/// come goes back.
#[test]
fn early_data_is_there_before_the_handshake_is_over() {
    bounded(|| {
        let place = Place::met(true);
        let data = content(2, 10 * KB);
        place.relay.judge(TO_CLIENT, hold_all());
        place.relay.judge(TO_SERVER, passes());
        let client = place.connect();
        let mut stream = write(&client, &data);
        let server = place.accept().expect("in time");
        assert!(read_all(&mut server.accept_uni().unwrap()).unwrap() == data);
        for end in [&client, &server] {
            assert!(!end.is_confirmed());
            assert_eq!(end.stats().early_data, EarlyData::Pending);
        }
        let back: usize = place
            .relay
            .lane(TO_CLIENT)
            .held
            .iter()
            .map(|d| d.len() + 28)
            .sum();
        assert!(back > 0 && back <= 3 * place.relay.passed_bytes(TO_SERVER));
        // It counts as delivered when it is known whom it was delivered to.
        place.relay.let_go(TO_CLIENT);
        stream.wait_delivered().unwrap();
        client.wait_confirmed().unwrap();
        server.wait_confirmed().unwrap();
        wait_until("told", || server.stats().early_data == EarlyData::Accepted);
        assert_eq!(client.stats().early_data, EarlyData::Accepted);
        assert!(client.stats().early_bytes >= 10_000 && server.stats().early_bytes >= 10_000);
        // And it goes on as any other session, in both directions.
        transfer(&client, &server, &content(3, 300 * KB));
        transfer(&server, &client, &content(4, 300 * KB));
    });
}

/// The server has everything and says so, and then that the client may not be there any more, before either has shown who it is.
#[test]
fn what_a_server_confirms_that_nobody_knows_is_not_delivered() {
    bounded(|| {
        let place = Place::met(true);
        let judge: Judge = Box::new(|_, datagram| match is_data(datagram) {
            true => Fate::Passes,
            false => Fate::Held,
        });
        place.relay.judge(TO_CLIENT, judge);
        let client = place.connect();
        let _stream = write(&client, &content(2, 10 * KB));
        let server = place.accept().expect("in time");
        let received = read_all(&mut server.accept_uni().unwrap()).unwrap();
        assert!(received == content(2, 10 * KB));
        let is_acknowledged = || client.stats().losses_sent.is_some();
        wait_until("packets are acknowledged", is_acknowledged);
        place.server().access().replace(AccessList::new());
        let error = client.wait_closed(PATIENCE).expect("it may not be there");
        assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
        assert_eq!(client.stats().bytes_delivered, 0);
    });
}

#[test]
fn an_application_that_does_not_want_it_is_given_nothing_before() {
    bounded(|| {
        let place = Place::met(false);
        let data = content(2, 50 * KB);
        place.relay.judge(TO_CLIENT, hold_all());
        let client = place.connect();
        let mut stream = write(&client, &data);
        place.nobody_comes();
        place.relay.let_go(TO_CLIENT);
        let server = place.accept().expect("in time");
        assert!(server.is_confirmed());
        assert!(read_all(&mut server.accept_uni().unwrap()).unwrap() == data);
        stream.wait_delivered().unwrap();
        assert_eq!(client.stats().early_data, EarlyData::Accepted);
        assert_eq!(server.stats().early_data, EarlyData::Accepted);
    });
}

/// Whoever has recorded all datagrams of a client sends them again: while its session goes on, when it is over, from its place and from another one.
#[test]
fn what_is_replayed_begins_nothing() {
    bounded(|| {
        for early in [true, false] {
            let place = Place::met(early);
            place.relay.judge(TO_SERVER, passes());
            let data = content(2, 10 * KB);
            let (client, server) = place.early_session(&data, 8);
            assert_eq!(client.stats().early_data, EarlyData::Accepted);
            let recorded = place.relay.lane(TO_SERVER).passed.clone();
            assert!(recorded.iter().any(|datagram| is_data(datagram)));
            let stranger = UdpSocket::bind(LOCALHOST).unwrap();
            let replay = || {
                for datagram in &recorded {
                    place.relay.send(TO_SERVER, datagram);
                    let server = place.server().local_addr();
                    stranger.send_to(datagram, server).unwrap();
                }
            };
            replay();
            let replayed = || server.stats().replayed_datagrams;
            wait_until("seen and dropped", || replayed() > 0);
            transfer(&client, &server, &content(3, 20 * KB));
            client.close(0, "done");
            replay();
            place.nobody_comes();
            assert_eq!(server.stats().bytes_received, 30_000);
        }
    });
}

/// Whoever keeps a client's datagrams from arriving, and sends them when the client has gone, shows nobody anything who waits for the handshake.
#[test]
fn what_arrives_when_its_sender_has_gone_is_shown_to_nobody_who_waits_for_the_handshake() {
    bounded(|| {
        let place = Place::met(false);
        place.relay.judge(TO_SERVER, hold_all());
        let options = Options {
            connect_timeout: ms(300),
            ..place.options()
        };
        let gone = client(&place.ticket, &options).unwrap();
        let error = send_all(&gone, &content(2, 10 * KB)).expect_err("nothing arrives");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        let error = gone.wait_confirmed().expect_err("nothing arrives");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        place.relay.let_go(TO_SERVER);
        place.nobody_comes();
        // The next one is a first contact.
        let (client, _server) = place.session(&content(3, 10 * KB));
        assert_eq!(client.stats().early_data, EarlyData::None);
    });
}

#[test]
fn what_is_half_lost_is_there_once() {
    bounded(|| {
        // Which of the datagrams do not arrive, the first of which begins the handshake.
        let losses: [fn(usize) -> bool; 3] = [|n| n % 2 == 1, |n| n % 2 == 0, |n| n < 8];
        for is_lost in losses {
            for way in [TO_SERVER, TO_CLIENT] {
                let place = Place::met(true);
                let judge: Judge =
                    Box::new(move |number, _| match number < 14 && is_lost(number) {
                        true => Fate::Lost,
                        false => Fate::Passes,
                    });
                place.relay.judge(way, judge);
                let data = content(2, 40 * KB);
                let (client, server) = match way {
                    TO_SERVER => place.early_session(&data, 20),
                    _ => place.session(&data),
                };
                assert_eq!(server.stats().bytes_received, 40_000);
                client.wait_confirmed().unwrap();
                server.wait_confirmed().unwrap();
            }
        }
    });
}

/// The first data packets come before the datagram that says what opens them.
#[test]
fn what_overtakes_the_handshake_is_held_and_taken() {
    bounded(|| {
        let place = Place::met(true);
        let relay = Arc::clone(&place.relay);
        let judge: Judge = Box::new(|_, datagram| match is_data(datagram) {
            true => Fate::Passes,
            false => Fate::Held,
        });
        relay.judge(TO_SERVER, judge);
        let client = place.connect();
        let mut stream = write(&client, &content(2, 10 * KB));
        wait_until("it has left", || relay.lane(TO_SERVER).passed.len() >= 8);
        relay.let_go(TO_SERVER);
        let server = place.accept().expect("in time");
        let received = read_all(&mut server.accept_uni().unwrap()).unwrap();
        assert!(received == content(2, 10 * KB));
        stream.wait_delivered().unwrap();
        let replayed = server.stats().replayed_datagrams;
        assert_eq!(client.stats().early_data, EarlyData::Accepted, "{replayed}");
    });
}

#[test]
fn a_server_that_was_started_again_gets_everything_as_on_first_contact() {
    bounded(|| {
        for early in [true, false] {
            let mut place = Place::met(early);
            let key = place.key.clone();
            place.start_again(&key);
            let data = content(2, 200 * KB);
            place.relay.judge(TO_SERVER, passes());
            let (client, server) = place.early_session(&data, 10);
            assert_eq!(client.stats().early_data, EarlyData::Refused);
            assert_eq!(server.stats().early_data, EarlyData::None);
            assert!(client.stats().early_bytes > 10_000);
            assert_eq!(server.stats().bytes_received, 200_000);
            transfer(&server, &client, &content(4, 100 * KB));
            client.close(0, "done");
            // From then on they know each other again.
            let (client, _server) = place.session(&data);
            assert_eq!(client.stats().early_data, EarlyData::Accepted);
        }
    });
}

/// Fewer than the server allows are assumed to be until it has said how many, with what was sent early or without. Threads and tasks that want more wait
/// for that.
#[test]
fn as_many_streams_may_be_open_as_the_server_allows() {
    const ASSUMED: usize = 256;
    const MORE: usize = 744;
    bounded(|| {
        for expected in [EarlyData::Accepted, EarlyData::Refused] {
            let mut place = Place::met(true);
            if expected == EarlyData::Refused {
                let key = place.key.clone();
                place.start_again(&key);
            }
            place.relay.judge(TO_CLIENT, hold_all());
            let client = place.connect();
            let mut streams: Vec<_> = (0..ASSUMED).map(|_| write(&client, &[1])).collect();
            let session = client.clone();
            let thread = std::thread::spawn(move || {
                let more = (0..MORE).map(|_| write(&session, &[1]));
                more.collect::<Vec<_>>()
            });
            let session = TaskSession::from(client.clone());
            let task = std::thread::spawn(move || {
                let open = || block_on(session.open_bi());
                (0..ASSUMED + MORE).map(|_| open()).collect::<Vec<_>>()
            });
            place.relay.let_go(TO_CLIENT);
            streams.extend(thread.join().unwrap());
            let answered = task.join().unwrap();
            assert!(answered.iter().all(Result::is_ok));
            assert_eq!(client.stats().early_data, expected);
            let server = place.accept().expect("in time");
            for _ in 0..ASSUMED + MORE {
                let received = read_all(&mut server.accept_uni().unwrap()).unwrap();
                assert_eq!(received, [1]);
            }
            for stream in &mut streams {
                stream.wait_delivered().unwrap();
            }
        }
    });
}

#[test]
fn another_ticket_of_the_same_server_begins_as_on_first_contact() {
    bounded(|| {
        let mut place = Place::met(true);
        let secret = TicketSecret::generate();
        let mut list = AccessList::new();
        list.add_ticket(secret.clone(), true);
        place.server().access().replace(list);
        let advertise = [place.relay.address().to_string()];
        let rotated = place.server().ticket_with(&advertise, &secret).unwrap();
        let old = std::mem::replace(&mut place.ticket, rotated);
        let (session, _server) = place.session(&content(2, 10 * KB));
        assert_eq!(session.stats().early_data, EarlyData::None);
        // Who comes with the old one is not let in, and what it sends is shown to nobody.
        let revoked = client(&old, &place.options()).unwrap();
        let error = send_all(&revoked, &content(3, 10 * KB)).expect_err("not let in");
        assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
        place.nobody_comes();
    });
}

#[test]
fn a_server_with_another_key_is_found_out_and_given_nothing() {
    bounded(|| {
        let mut place = Place::met(true);
        place.start_again(&ServerKey::generate().to_bytes());
        let session = place.connect();
        let error = send_all(&session, &content(2, 10 * KB)).expect_err("another server");
        assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
        assert_eq!(session.wait_confirmed().unwrap_err().kind(), error.kind());
        place.nobody_comes();
    });
}

/// A cache is copied, as with a disk, and both begin with the same entry: packets of the second client are for the session of the first one by their id,
/// and would be replays in it, or open, if they were sealed with the same keys.
#[test]
fn two_clients_with_one_cache_never_begin_with_the_same() {
    bounded(|| {
        let place = Place::met(true);
        let cache = place.cache.path().join("paths.sessions");
        let copy = std::fs::read(&cache).unwrap();
        place.relay.judge(TO_CLIENT, hold_all());
        let one = place.connect();
        let mut stream_of_one = write(&one, &content(2, 10 * KB));
        let at_one = place.accept().expect("in time");
        let received = read_all(&mut at_one.accept_uni().unwrap()).unwrap();
        assert!(received == content(2, 10 * KB));

        std::fs::write(&cache, copy).unwrap();
        let relay = Relay::start(place.server().local_addr());
        relay.judge(TO_CLIENT, hold_all());
        let ticket = ticket(place.server(), relay.address());
        let two = client(&ticket, &place.options()).unwrap();
        let mut stream_of_two = write(&two, &content(3, 40 * KB));
        wait_until("early packets have left", || {
            relay.lane(TO_SERVER).data >= 20
        });
        // Some look as if they were of the handshake's keys, and are held.
        let invalid = || at_one.stats().invalid_datagrams;
        wait_until("they do not open", || invalid() >= 5);
        assert_eq!(at_one.stats().replayed_datagrams, 0);
        assert_eq!(at_one.stats().bytes_received, 10_000);

        place.relay.let_go(TO_CLIENT);
        relay.let_go(TO_CLIENT);
        let at_two = place.accept().expect("in time");
        let received = read_all(&mut at_two.accept_uni().unwrap()).unwrap();
        assert!(received == content(3, 40 * KB));
        stream_of_one.wait_delivered().unwrap();
        stream_of_two.wait_delivered().unwrap();
        let begun = [&one, &two].map(|client| client.stats().early_data);
        assert_eq!(begun, [EarlyData::Accepted, EarlyData::Refused]);
        // Each has agreed on one more.
        one.close(0, "done");
        two.close(0, "done");
        for _ in 0..2 {
            let (client, _server) = place.session(&content(4, 20 * KB));
            assert_eq!(client.stats().early_data, EarlyData::Accepted);
            drop(client);
        }
    });
}

#[test]
fn without_a_cache_or_the_wish_nothing_is_kept() {
    bounded(|| {
        let place = Place::met(true);
        let plain = Options {
            early_data: false,
            ..place.options()
        };
        let no_cache = Options {
            path_memory: None,
            ..place.options()
        };
        for options in [plain, no_cache] {
            let session = client(&place.ticket, &options).unwrap();
            assert!(session.is_confirmed());
            let server = place.accept().expect("in time");
            transfer(&session, &server, &content(2, 10 * KB));
            assert_eq!(session.stats().early_data, EarlyData::None);
            session.close(0, "done");
        }
        let kept = std::fs::read_to_string(place.cache.path().join("paths.sessions")).unwrap();
        assert_eq!(
            kept.lines().count(),
            2,
            "the version, and that of the first session"
        );
    });
}

/// The first address of the ticket is deaf, and the second one has the server.
#[test]
fn another_address_that_answers_gets_everything() {
    bounded(|| {
        let place = Place::met(true);
        let deaf = UdpSocket::bind(LOCALHOST).unwrap();
        let addresses = [deaf.local_addr().unwrap(), place.relay.address()];
        let addresses = addresses.map(|address| address.to_string());
        let ticket = place.server().ticket(&addresses).unwrap();
        let session = client(&ticket, &place.options()).unwrap();
        let mut stream = write(&session, &content(2, 60 * KB));
        let server = place.accept().expect("in time");
        let received = read_all(&mut server.accept_uni().unwrap()).unwrap();
        assert!(received == content(2, 60 * KB));
        stream.wait_delivered().unwrap();
        assert_eq!(session.stats().early_data, EarlyData::Refused);
        assert_eq!(session.remote_addr(), place.relay.address());
        transfer(&server, &session, &content(3, 100 * KB));
    });
}

/// Nothing gets through: neither who closes waits for that, nor others that wait for the session. The server is told when it is there.
#[test]
fn closing_does_not_wait_for_the_handshake() {
    bounded(|| {
        let place = Place::met(true);
        place.relay.judge(TO_SERVER, hold_all());
        let hour = Duration::from_secs(3600);
        let options = Options {
            connect_timeout: hour,
            idle_timeout: hour,
            ..place.options()
        };
        let session = client(&place.ticket, &options).unwrap();
        let reader = session.clone();
        let reading = std::thread::spawn(move || reader.accept_uni().map(drop));
        block_on(TaskSession::from(session.clone()).close(7, "enough"));
        let error = reading.join().unwrap().expect_err("there is no stream");
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
        assert!(session.closed().is_some() && !session.is_confirmed());
        place.relay.let_go(TO_SERVER);
        let server = place.accept().expect("in time");
        server.wait_closed(PATIENCE).expect("it is told");
        assert_eq!(server.peer_code(), Some(7));
    });
}

#[test]
fn what_is_let_go_of_before_the_handshake_is_over_ends() {
    bounded(|| {
        let place = Place::met(true);
        place.relay.judge(TO_CLIENT, hold_all());
        let session = place.connect();
        write(&session, &content(2, KB));
        let server = place.accept().expect("in time");
        drop(session);
        place.relay.let_go(TO_CLIENT);
        let error = server.wait_closed(PATIENCE).expect("it ends");
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    });
}
