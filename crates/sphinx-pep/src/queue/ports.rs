//! How packets leave a bridge.
//!
//! The machine need not have an address there, nor a route to anybody: what the agent sends by itself leaves by the port by which the last packet
//! from the same address to the same other one has left, between the Ethernet addresses from which the two send. Until both are known, which
//! they are once a connection was answered, packets go on as they came.

use std::{collections::HashMap, io, net::IpAddr};

use etherparse::{Ipv4HeaderSlice, Ipv6HeaderSlice};
use sphinx_netdev::nfqueue::{FrameSender, Mac, Queued, Way};

/// Pairs of addresses that are remembered.
const PAIRS_MAX: usize = 8192;

/// Source and destination.
type Pair = (IpAddr, IpAddr);

/// What is known of a bridge, one port of which is the wireless interface.
#[derive(Debug)]
pub(super) struct Ports {
    wireless: u32,
    /// By which port packets leave, and from which Ethernet address they come.
    pairs: HashMap<Pair, (u32, Mac)>,
    sender: FrameSender,
}

impl Ports {
    /// Of a port with this number.
    pub(super) fn new(wireless: u32) -> Ports {
        Ports {
            wireless,
            pairs: HashMap::new(),
            sender: FrameSender::default(),
        }
    }

    /// Takes note of the way of a packet; whether it came in by the wireless interface. `None` if it has none, or comes by another one.
    pub(super) fn learn(&mut self, queued: &Queued<'_>) -> Option<bool> {
        let [from, to] = queued.ports?;
        // Rules go by the name of the interface, which may be another one's by now.
        if from != self.wireless && to != self.wireless {
            return None;
        }
        let pair = ends(queued.packet)?;
        if self.pairs.len() >= PAIRS_MAX && !self.pairs.contains_key(&pair) {
            self.pairs.clear();
        }
        self.pairs.insert(pair, (to, queued.link_source?));
        Some(from == self.wireless)
    }

    /// Whether such a packet could be sent from here.
    pub(super) fn know_way_of(&self, packet: &[u8]) -> bool {
        ends(packet).is_some_and(|pair| self.way(pair).is_some())
    }

    fn way(&self, (source, destination): Pair) -> Option<Way> {
        let (port, from) = *self.pairs.get(&(source, destination))?;
        let (_, to) = *self.pairs.get(&(destination, source))?;
        Some(Way {
            port,
            source: from,
            destination: to,
        })
    }

    /// Sends a packet the way that others took.
    pub(super) fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        let way = ends(packet).and_then(|pair| self.way(pair));
        let way = way.ok_or(io::ErrorKind::HostUnreachable)?;
        self.sender.send(&way, packet)
    }
}

fn ends(packet: &[u8]) -> Option<Pair> {
    match packet.first()? >> 4 {
        4 => {
            let header = Ipv4HeaderSlice::from_slice(packet).ok()?;
            Some((
                header.source_addr().into(),
                header.destination_addr().into(),
            ))
        }
        6 => {
            let header = Ipv6HeaderSlice::from_slice(packet).ok()?;
            Some((
                header.source_addr().into(),
                header.destination_addr().into(),
            ))
        }
        _ => None,
    }
}
