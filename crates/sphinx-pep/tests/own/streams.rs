//! Streams between the kernels of two hosts.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    thread,
};

use socket2::{Domain, SockRef};

use super::link::Host;

const PORT: u16 = 7777;

/// What goes over one connection, which the first host opens.
#[derive(Clone, Copy)]
pub(crate) struct Streams {
    pub(crate) to: IpAddr,
    pub(crate) congestion: &'static str,
    /// From the first host, and back.
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
