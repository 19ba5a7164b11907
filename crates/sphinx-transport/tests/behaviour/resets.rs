//! A server that was started again tells its clients that it does not know their sessions; nobody else can.

use std::collections::BTreeSet;
use std::io::ErrorKind as IoErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use sphinx_testing::uninterrupted;
use sphinx_transport::{ErrorKind, Options, Server, ServerKey, Service, Session};

use crate::proxy::{Proxy, Way};
use crate::support::*;

/// Bytes of a reset, and of what it ends with.
const RESET: usize = 39;
const TOKEN: usize = 16;
/// Bytes in front of a connection id.
const ID_AT: usize = 1;

/// A client whose server has gone without a word, and is there again at the same address.
struct Lost {
    client: Session,
    proxy: Proxy,
    listener: Server,
}

impl Lost {
    fn new(shards: usize) -> Self {
        loop {
            // Another program may take the port meanwhile.
            if let Some(lost) = Self::attempt(shards) {
                return lost;
            }
        }
    }

    fn attempt(shards: usize) -> Option<Self> {
        let options = Options {
            shards,
            ..Options::default()
        };
        let key = ServerKey::generate().to_bytes();
        let listen = |address: SocketAddr| {
            let key = ServerKey::from_bytes(&key).unwrap();
            Server::bind_with(address, &[Service::Application], key, &options)
        };
        let listener = listen(LOCALHOST).unwrap();
        let address = listener.local_addr();
        let proxy = Proxy::start(address, link(0.0, 1), link(0.0, 2));
        let client = client(&ticket(&listener, proxy.address()), &patient()).unwrap();
        let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
        transfer(&client, &server, &content(1, 100_000));
        transfer(&server, &client, &content(2, 100_000));
        // The CLOSE of the server is lost.
        proxy.set_silent(true);
        drop(server);
        drop(listener);
        let listener = listen(address).ok()?;
        proxy.set_silent(false);
        Some(Self {
            client,
            proxy,
            listener,
        })
    }
}

/// A client that would wait for longer than the test does.
fn patient() -> Options {
    Options {
        idle_timeout: Duration::from_secs(3600),
        ..Options::default()
    }
}

#[test]
fn a_client_learns_from_its_server_that_this_was_started_again() {
    for shards in [1, 2] {
        bounded(move || {
            let lost = Lost::new(shards);
            let error = send_all(&lost.client, b"hello").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
            assert_eq!(error.io_kind(), Some(IoErrorKind::ConnectionReset));
            assert_eq!(
                error.to_string(),
                "the server does not know this session any more: it was started again, or had given it up"
            );
            assert!(lost.client.closed().is_some());
            // The same ticket leads to a session that is known.
            let ticket = ticket(&lost.listener, lost.proxy.address());
            let client = client(&ticket, &Options::default()).unwrap();
            let accepted = lost.listener.accept(Some(PATIENCE)).unwrap();
            transfer(&client, &accepted.expect("in time"), &content(3, 100_000));
        });
    }
}

/// Whoever waits only hears of it with the next packet that leaves, which the session sends by itself.
#[test]
fn a_client_that_only_waits_learns_it_too() {
    bounded(|| {
        let lost = Lost::new(1);
        let error = end_of(&lost.client);
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        assert_eq!(error.io_kind(), Some(IoErrorKind::ConnectionReset));
    });
}

/// Somebody without a session who sends packets to the server.
struct Stranger {
    socket: UdpSocket,
    server: SocketAddr,
}

impl Stranger {
    fn new(server: SocketAddr) -> Self {
        let socket = UdpSocket::bind(LOCALHOST).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, server }
    }

    /// Sends a packet of so many bytes with this id.
    fn send(&self, id: [u8; 8], len: usize) {
        let mut packet = content(7, len);
        packet[0] = 0x81;
        packet[ID_AT..9].copy_from_slice(&id);
        self.socket.send_to(&packet, self.server).unwrap();
    }

    /// The next thing that comes.
    fn hear(&self) -> Vec<u8> {
        let mut answer = [0; 2000];
        let len = uninterrupted(|| self.socket.recv(&mut answer)).unwrap();
        answer[..len].to_vec()
    }

    /// What the server answers to such a packet.
    fn ask(&self, id: [u8; 8], len: usize) -> Vec<u8> {
        self.send(id, len);
        self.hear()
    }
}

fn token(reset: &[u8]) -> &[u8] {
    assert_eq!(reset.len(), RESET);
    assert_eq!(reset[0] >> 6, 0b10, "of the data plane");
    &reset[RESET - TOKEN..]
}

#[test]
fn a_reset_of_another_session_or_of_nobody_changes_nothing() {
    bounded(|| {
        let pair = pair(link(0.0, 1), link(0.0, 2));
        transfer(&pair.client, &pair.server, &content(1, 100_000));
        let stranger = Stranger::new(pair.listener.local_addr());
        for n in 1..=10 {
            // Real ones, of ids that are nobody's.
            let mut reset = stranger.ask([n; 8], 100);
            pair.proxy.inject(Way::ToClient, &reset);
            pair.proxy.inject(Way::ToServer, &reset);
            // With an id of this session.
            let packet = pair.proxy.latest(Way::ToClient).pop().expect("an answer");
            reset[ID_AT..9].copy_from_slice(&packet[ID_AT..9]);
            pair.proxy.inject(Way::ToClient, &reset);
            for len in [RESET - 1, RESET, 100, 1400] {
                let mut forged = content(u64::from(n), len);
                forged[0] = 0x80 | forged[0] & 0x3f;
                pair.proxy.inject(Way::ToClient, &forged);
            }
        }
        transfer(&pair.client, &pair.server, &content(2, 100_000));
        transfer(&pair.server, &pair.client, &content(3, 100_000));
        assert!(pair.client.stats().invalid_datagrams >= 50);
    });
}

/// Whatever is in them, and wherever they come from: with what the server would show, their session could be ended.
#[test]
fn packets_with_an_id_that_is_known_are_not_answered() {
    bounded(|| {
        let pair = pair(link(0.0, 1), link(0.0, 2));
        transfer(&pair.client, &pair.server, &content(1, 100_000));
        let stranger = Stranger::new(pair.listener.local_addr());
        let latest = pair.proxy.latest(Way::ToServer);
        let ours = latest.iter().filter(|packet| packet[0] >> 6 == 0b10);
        let ids: BTreeSet<[u8; 8]> = ours
            .map(|packet| packet[ID_AT..9].try_into().unwrap())
            .collect();
        assert!(!ids.is_empty());
        for id in ids {
            (10..1400)
                .step_by(100)
                .for_each(|len| stranger.send(id, len));
        }
        // It answers in turn.
        let answer = stranger.ask([9; 8], 100);
        assert_eq!(token(&answer), token(&stranger.ask([9; 8], 40)));
        transfer(&pair.server, &pair.client, &content(2, 100_000));
    });
}

/// Else two ends could be made to answer each other for ever.
#[test]
fn what_may_be_a_reset_is_not_answered() {
    bounded(|| {
        let listener = server();
        let stranger = Stranger::new(listener.local_addr());
        let reset = stranger.ask([1; 8], 100);
        stranger
            .socket
            .send_to(&reset, listener.local_addr())
            .unwrap();
        (9..=RESET).for_each(|len| stranger.send([2; 8], len));
        // It answers in turn, and with something else each time but for what it shows.
        let [one, two] = [(); 2].map(|()| stranger.ask([3; 8], RESET + 1));
        assert_eq!(token(&one), token(&two));
        assert_ne!(one[ID_AT..9], two[ID_AT..9]);
        assert_ne!(token(&one), token(&reset));
    });
}
