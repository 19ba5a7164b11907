//! Links, sessions and bytes for the tests.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::time::Duration;

use sphinx_link::{Depth, LinkConfig, Loss, Rate};
use sphinx_transport::{
    Error, Options, RecvStream, SendStream, Server, Service, Session, Ticket, connect,
};

use crate::proxy::Proxy;

/// Long enough for any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Runs a test that must come to an end.
pub(crate) fn bounded(test: impl FnOnce() + Send + 'static) {
    let (done, over) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        // The receiver is gone only if we were too late.
        let _ = done.send(());
    });
    match over.recv_timeout(PATIENCE) {
        Ok(()) => {}
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("not done after {PATIENCE:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("it did not finish"))
        }
    }
}

/// Asks until the answer is yes.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE / 2, "still not so: {what}");
        std::thread::sleep(ms(5));
    }
}

/// Why a session ends, which is about to.
pub(crate) fn end_of(session: &Session) -> Error {
    wait_until("the session is over", || session.closed().is_some());
    session.closed().expect("just seen")
}

/// 40 Mbit/s, one way 5 ms, MTU 1500.
pub(crate) fn link(loss: f64, seed: u64) -> LinkConfig {
    LinkConfig {
        seed,
        mtu: Some(1500),
        rate: Rate::Constant(40_000_000),
        queue: Depth::Time(ms(40)),
        delay: ms(5),
        loss: Loss::Bernoulli(loss),
        ..LinkConfig::default()
    }
}

pub(crate) const LOCALHOST: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

pub(crate) fn server() -> Server {
    server_with(&Options::default())
}

pub(crate) fn server_with(options: &Options) -> Server {
    Server::bind(LOCALHOST, Service::Application, options).unwrap()
}

/// A ticket for `address` instead of the server's own.
pub(crate) fn ticket(server: &Server, address: SocketAddr) -> Ticket {
    server.ticket(&[address.to_string()]).unwrap()
}

pub(crate) fn client(ticket: &Ticket, options: &Options) -> Result<Session, Error> {
    connect(ticket, Service::Application, options)
}

/// Two ends of a session, the link between them and the server that has to stay.
pub(crate) struct Pair {
    pub(crate) client: Session,
    pub(crate) server: Session,
    pub(crate) proxy: Proxy,
    pub(crate) listener: Server,
}

/// A session across two links.
pub(crate) fn pair(to_server: LinkConfig, to_client: LinkConfig) -> Pair {
    pair_with(to_server, to_client, &Options::default())
}

pub(crate) fn pair_with(to_server: LinkConfig, to_client: LinkConfig, options: &Options) -> Pair {
    let listener = server_with(options);
    let proxy = Proxy::start(listener.local_addr(), to_server, to_client);
    let client = client(&ticket(&listener, proxy.address()), options).unwrap();
    let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
    Pair {
        client,
        server,
        proxy,
        listener,
    }
}

/// A session on loopback itself.
pub(crate) fn direct() -> (Server, Session, Session) {
    let listener = server();
    let client = client(
        &ticket(&listener, listener.local_addr()),
        &Options::default(),
    )
    .unwrap();
    let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
    (listener, client, server)
}

/// Bytes that look random.
pub(crate) fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| step()).collect();
    bytes.truncate(len);
    bytes
}

/// Reads a stream to its end.
pub(crate) fn read_all(stream: &mut RecvStream) -> Result<Vec<u8>, Error> {
    let (mut all, mut buf) = (Vec::new(), vec![0; 50_000]);
    loop {
        match stream.read(&mut buf)? {
            0 => return Ok(all),
            n => all.extend_from_slice(&buf[..n]),
        }
    }
}

/// Sends all of `data` on a stream of its own and waits until it is there.
pub(crate) fn send_all(session: &Session, data: &[u8]) -> Result<(), Error> {
    let mut stream = session.open_uni()?;
    write_and_wait(&mut stream, data)
}

pub(crate) fn write_and_wait(stream: &mut SendStream, data: &[u8]) -> Result<(), Error> {
    // Pieces of odd sizes: blocks are cut at all places.
    for piece in data.chunks(33_333) {
        stream.write_all(piece)?;
    }
    stream.wait_delivered()
}

/// Moves `data` from one end to the other and compares.
pub(crate) fn transfer(from: &Session, to: &Session, data: &[u8]) {
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| send_all(from, data));
        let received = read_all(&mut to.accept_uni().unwrap()).unwrap();
        assert_eq!(received.len(), data.len());
        assert!(received == data, "other bytes");
        sending.join().expect("no panic").unwrap();
    });
}

/// The other ends of these clients, which wait to be accepted: each is told a number.
pub(crate) fn accept_each(listener: &Server, clients: &[Session]) -> Vec<Session> {
    let mut servers: Vec<_> = clients.iter().map(|_| None).collect();
    for (number, client) in clients.iter().enumerate() {
        let mut stream = client.open_uni().unwrap();
        stream.write_all(&[number as u8]).unwrap();
        stream.finish().unwrap();
    }
    for _ in clients {
        let session = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
        let number = read_all(&mut session.accept_uni().unwrap()).unwrap();
        servers[usize::from(number[0])] = Some(session);
    }
    let servers = servers.into_iter().map(|server| server.expect("each once"));
    servers.collect()
}
