//! Streams between the kernels of two hosts, and an agent on the second one that helps them.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    process::{Command, Stdio},
    sync::atomic::Ordering::Relaxed,
    thread,
    time::Duration,
};

use socket2::{Domain, SockRef};
use sphinx_pep::{Agent, Place, attach::Attachment};

use super::link::{Host, Link, carry};

const PORT: u16 = 7777;

/// What goes over one connection, which the first host opens.
#[derive(Clone, Copy)]
pub(crate) struct Streams {
    pub(crate) to: IpAddr,
    pub(crate) congestion: &'static str,
    /// Bytes that the first host sends, and bytes that come back.
    pub(crate) bytes: usize,
    pub(crate) back: usize,
}

/// The stream's byte at a position.
fn byte(position: usize) -> u8 {
    ((position * 7919) >> 5) as u8
}

fn write(mut stream: &TcpStream, length: usize) {
    let bytes: Vec<u8> = (0..length).map(byte).collect();
    stream.write_all(&bytes).expect("a stream");
    stream
        .shutdown(std::net::Shutdown::Write)
        .expect("a stream");
}

fn read(mut stream: &TcpStream, length: usize) {
    let mut received = Vec::new();
    stream.read_to_end(&mut received).expect("a stream");
    assert!(received.into_iter().eq((0..length).map(byte)));
}

/// What was sent arrives.
pub(crate) fn exchange(hosts: &[Host; 2], it: &Streams) {
    let address = SocketAddr::new(it.to, PORT);
    let domain = Domain::for_address(address);
    let socket = |host: &Host| {
        let new = || socket2::Socket::new(domain, socket2::Type::STREAM, None);
        let socket = host
            .namespace
            .run(new)
            .expect("a thread")
            .expect("a socket");
        socket.set_reuse_address(true).expect("an option");
        socket
    };
    let listening = socket(&hosts[1]);
    listening.bind(&address.into()).expect("a port");
    listening.listen(1).expect("a port");
    let listener = TcpListener::from(listening);
    thread::scope(|scope| {
        let receiving = scope.spawn(move || {
            let (stream, _) = listener.accept().expect("a connection");
            thread::scope(|scope| {
                scope.spawn(|| write(&stream, it.back));
                read(&stream, it.bytes);
            });
        });
        let sending = socket(&hosts[0]);
        let congestion = it.congestion.as_bytes();
        sending
            .set_tcp_congestion(congestion)
            .expect("a way to send");
        sending.connect(&address.into()).expect("a connection");
        let stream = TcpStream::from(sending);
        SockRef::from(&stream)
            .set_tcp_nodelay(true)
            .expect("an option");
        scope.spawn({
            let stream = stream.try_clone().expect("a stream");
            move || read(&stream, it.back)
        });
        write(&stream, it.bytes);
        receiving.join().expect("a receiver");
    });
}

/// The traffic of the second host; nothing where queues are not to be had, which is said.
pub(crate) fn attach(hosts: &[Host; 2]) -> Option<Attachment> {
    let open = || Attachment::nfqueue("link", Place::Base);
    match hosts[1].namespace.run(open).expect("a thread") {
        Ok(attachment) => Some(attachment),
        Err(error) => {
            sphinx_testing::skipped!("{error}");
            None
        }
    }
}

/// What was sent over `link` arrives while the agent helps.
pub(crate) fn exchange_helped(
    hosts: &[Host; 2],
    link: &Link,
    (attachment, agent): (&mut Attachment, &mut Agent),
    it: &Streams,
) {
    let stopper = attachment.stopper();
    thread::scope(|scope| {
        let namespace = &hosts[1].namespace;
        scope.spawn(move || carry(hosts, link));
        let serving = scope.spawn(move || namespace.run(|| attachment.run(agent, |_, _| {})));
        let result = catch_unwind(AssertUnwindSafe(|| exchange(hosts, it)));
        stopper.stop();
        link.done.store(true, Relaxed);
        let served = serving.join().expect("a thread").expect("a thread");
        served.expect("service");
        if let Err(panic) = result {
            resume_unwind(panic);
        }
    });
}

/// The variable by which this program is an agent that can be killed.
const IS_AGENT: &str = "SPHINX_TEST_AGENT";

/// Helps the traffic of this namespace until the process is killed, if that is what the process is for.
pub(crate) fn be_agent(agent: impl FnOnce() -> Agent) {
    if std::env::var_os(IS_AGENT).is_none() {
        return;
    }
    let mut attachment = Attachment::nfqueue("link", Place::Base).expect("an attachment");
    println!("serving");
    attachment.run(&mut agent(), |_, _| {}).expect("service");
}

/// What was sent over `link` arrives although the agent is killed when so many segments with data have come by. The agent is another process of
/// this program, in which `test` calls [`be_agent`].
pub(crate) fn exchange_abandoned(
    hosts: &[Host; 2],
    link: &Link,
    (test, segments): (&str, u64),
    it: &Streams,
) {
    let mut command = Command::new(std::env::current_exe().expect("a program"));
    command
        .args(["--exact", test, "--nocapture"])
        .env(IS_AGENT, "1")
        .stdout(Stdio::piped());
    let mut child = hosts[1].namespace.spawn(&mut command).expect("a process");
    let output = child.stdout.take().expect("its output");
    let mut lines = BufReader::new(output).lines();
    let serves = lines.any(|line| line.is_ok_and(|it| it.contains("serving")));
    assert!(serves, "an agent");
    thread::scope(|scope| {
        scope.spawn(move || carry(hosts, link));
        scope.spawn(move || {
            while link.segments.load(Relaxed) < segments && !link.done.load(Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
            child.kill().expect("a process");
            child.wait().expect("a process");
        });
        let result = catch_unwind(AssertUnwindSafe(|| exchange(hosts, it)));
        link.done.store(true, Relaxed);
        if let Err(panic) = result {
            resume_unwind(panic);
        }
    });
}
