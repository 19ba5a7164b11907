//! What the tests share.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use sphinx_net::udp::{UdpConfig, UdpIo};
use sphinx_net::{Destination, Dropped, Ecn, Interest, PacketIo, PacketRx, PacketTx};

pub(crate) const SECOND_NS: u64 = 1_000_000_000;

pub(crate) fn open(bind: &str) -> UdpIo {
    UdpIo::open(&UdpConfig::new(bind.parse().unwrap())).unwrap()
}

/// Opens a socket, or says why that family is skipped.
pub(crate) fn try_open(bind: &str) -> Option<UdpIo> {
    match UdpIo::open(&UdpConfig::new(bind.parse().unwrap())) {
        Ok(io) => Some(io),
        Err(error) => {
            sphinx_testing::skipped!("no IPv6 here ({error})");
            None
        }
    }
}

/// Datagrams to send: `len` bytes of an arena from `offset`, cut into pieces of `segment_size`, or one piece
/// if that is 0.
#[derive(Clone, Copy)]
pub(crate) struct Transmit {
    pub(crate) remote: SocketAddr,
    pub(crate) local_ip: Option<IpAddr>,
    pub(crate) ecn: Ecn,
    pub(crate) segment_size: usize,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

pub(crate) fn transmit(remote: SocketAddr, segment_size: usize, len: usize) -> Transmit {
    Transmit {
        remote,
        local_ip: None,
        ecn: Ecn::NotEct,
        segment_size,
        offset: 0,
        len,
    }
}

/// Writes the datagrams into frames.
pub(crate) fn fill(io: &mut UdpIo, arena: &[u8], transmits: &[Transmit]) {
    for transmit in transmits {
        let to = Destination {
            remote: transmit.remote,
            local_ip: transmit.local_ip,
            ecn: transmit.ecn,
        };
        let size = match transmit.segment_size {
            0 => transmit.len.max(1),
            size => size,
        };
        for piece in arena[transmit.offset..][..transmit.len].chunks(size) {
            let frame = io.tx().frame(&to, piece.len()).expect("a frame");
            frame.copy_from_slice(piece);
        }
    }
}

/// Sends everything, waiting as needed, and returns what was dropped.
pub(crate) fn send(io: &mut UdpIo, arena: &[u8], transmits: &[Transmit]) -> Vec<Dropped> {
    fill(io, arena, transmits);
    let mut dropped = Vec::new();
    while !io.tx().flush(&mut dropped).unwrap() {
        io.wait(Interest::ReadWrite, Some(SECOND_NS)).unwrap();
    }
    dropped.into_iter().map(|(_, drop)| drop).collect()
}

/// One datagram as it was received.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub(crate) remote: SocketAddr,
    pub(crate) local_ip: Option<IpAddr>,
    pub(crate) ecn: Ecn,
    pub(crate) timestamp_ns: Option<u64>,
    pub(crate) bytes: Vec<u8>,
}

/// Receives until there are `count` datagrams; fails if they do not come.
pub(crate) fn receive(io: &mut UdpIo, count: usize) -> Vec<Datagram> {
    let mut datagrams = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    while datagrams.len() < count {
        assert!(
            Instant::now() < deadline,
            "only {} of {count} came",
            datagrams.len()
        );
        io.wait(Interest::Read, Some(SECOND_NS)).unwrap();
        let buffers = io.rx().recv().unwrap();
        assert!(buffers <= io.capabilities().recv_batch_max);
        for index in 0..buffers {
            let mut received = io.rx().received(index).unwrap();
            let (remote, local_ip, ecn) = (received.remote, received.local_ip, received.ecn);
            let timestamp_ns = received.timestamp_ns;
            for segment in received.segments() {
                let bytes = segment.to_vec();
                datagrams.push(Datagram {
                    remote,
                    local_ip,
                    ecn,
                    timestamp_ns,
                    bytes,
                });
            }
        }
        assert!(io.rx().received(buffers).is_none());
    }
    datagrams
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|index| (index * 31 + index / 251) as u8)
        .collect()
}

pub(crate) fn lengths(datagrams: &[Datagram]) -> Vec<usize> {
    datagrams
        .iter()
        .map(|datagram| datagram.bytes.len())
        .collect()
}

pub(crate) fn joined(datagrams: &[Datagram]) -> Vec<u8> {
    datagrams
        .iter()
        .flat_map(|datagram| datagram.bytes.iter().copied())
        .collect()
}
