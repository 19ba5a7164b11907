//! What the tests share.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use sphinx_net::udp::{UdpConfig, UdpIo};
use sphinx_net::{Dropped, Ecn, Interest, PacketIo, Transmit};

pub(crate) const SECOND_NS: u64 = 1_000_000_000;

pub(crate) fn open(bind: &str) -> UdpIo {
    UdpIo::open(&UdpConfig::new(bind.parse().unwrap())).unwrap()
}

/// Opens a socket, or says why that family is skipped.
pub(crate) fn try_open(bind: &str) -> Option<UdpIo> {
    match UdpIo::open(&UdpConfig::new(bind.parse().unwrap())) {
        Ok(io) => Some(io),
        Err(error) => {
            eprintln!("skipped: no IPv6 here ({error})");
            None
        }
    }
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

/// Sends everything, waiting as needed, and returns what was dropped.
pub(crate) fn send(io: &mut UdpIo, arena: &[u8], transmits: &[Transmit]) -> Vec<Dropped> {
    let mut transmits = transmits.to_vec();
    let (mut finished, mut dropped) = (0, Vec::new());
    while finished < transmits.len() {
        finished += io
            .send(arena, &mut transmits[finished..], &mut dropped)
            .unwrap();
        if finished < transmits.len() {
            io.wait(Interest::ReadWrite, Some(SECOND_NS)).unwrap();
        }
    }
    dropped
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
        let buffers = io.recv().unwrap();
        assert!(buffers <= io.capabilities().recv_batch_max);
        for index in 0..buffers {
            let mut received = io.received(index).unwrap();
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
        assert!(io.received(buffers).is_none());
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
