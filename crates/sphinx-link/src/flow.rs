//! Flows: packets that belong together, and their indexes.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use crate::{
    config::Flows,
    ip,
    loss::Channel,
    random::{mix, mix_bytes},
};

/// Flows that are remembered; beyond that, those that have been silent for longest are forgotten.
const FLOWS_MAX: usize = 1 << 16;

/// What the packets of a flow have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// The IP protocol: 6 is TCP, 17 UDP.
    pub protocol: u8,
    /// Where it comes from; port 0 if there is none.
    pub source: SocketAddr,
    /// Where it goes.
    pub destination: SocketAddr,
}

impl Default for FlowKey {
    /// The key of everything that is not IP.
    fn default() -> FlowKey {
        let nowhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        FlowKey {
            protocol: 0,
            source: nowhere,
            destination: nowhere,
        }
    }
}

impl FlowKey {
    /// That of an IP packet; ports are 0 in fragments behind the first.
    pub fn of(packet: &[u8]) -> FlowKey {
        ip::flow(packet)
    }

    /// What is the same when the same program runs again: without the ephemeral port.
    fn service(&self) -> u64 {
        let port = self.source.port().min(self.destination.port());
        let mut hash = mix(u64::from(self.protocol) << 16 | u64::from(port));
        for address in [self.source.ip(), self.destination.ip()] {
            hash = match address {
                IpAddr::V4(address) => mix_bytes(hash, &address.octets()),
                IpAddr::V6(address) => mix_bytes(hash, &address.octets()),
            };
        }
        hash
    }
}

/// The state of one series of packet indexes.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    /// Seed of its random decisions.
    pub(crate) seed: u64,
    /// Packets that have used the link.
    pub(crate) sent: u64,
    pub(crate) channel: Channel,
    /// When the flow last sent, counted in packets of all flows.
    used: u64,
}

impl Flow {
    fn new(seed: u64) -> Flow {
        Flow {
            seed,
            sent: 0,
            channel: Channel::default(),
            used: 0,
        }
    }
}

/// The series of indexes of a link.
#[derive(Debug)]
pub(crate) struct FlowTable {
    seed: u64,
    all: Flow,
    /// The series of each flow, with [`Flows::Apart`].
    apart: Option<Apart>,
    packets: u64,
}

#[derive(Debug, Default)]
struct Apart {
    flows: HashMap<FlowKey, Flow>,
    /// Flows that have begun, by [`FlowKey::service`].
    begun: HashMap<u64, u64>,
}

impl FlowTable {
    pub(crate) fn new(flows: Flows, seed: u64) -> FlowTable {
        FlowTable {
            seed,
            all: Flow::new(seed),
            apart: (flows == Flows::Apart).then(Apart::default),
            packets: 0,
        }
    }

    /// Goes on counting with other settings. The channels begin anew with `restart`.
    pub(crate) fn reconfigure(&mut self, flows: Flows, seed: u64, restart: bool) {
        match flows {
            Flows::Together => self.apart = None,
            Flows::Apart => {
                self.apart.get_or_insert_default();
            }
        }
        let change = self.seed ^ seed;
        self.seed = seed;
        let apart = self
            .apart
            .iter_mut()
            .flat_map(|apart| apart.flows.values_mut());
        for flow in apart.chain([&mut self.all]) {
            // The seed of a flow is the link's combined by XOR with a value of the flow, so this replaces the link's part.
            flow.seed ^= change;
            if restart {
                flow.channel = Channel::default();
            }
        }
    }

    /// The series that a packet belongs to. `key` is asked for only where it matters.
    pub(crate) fn of(&mut self, key: impl FnOnce() -> FlowKey) -> &mut Flow {
        self.packets += 1;
        let Some(apart) = &mut self.apart else {
            return &mut self.all;
        };
        let key = key();
        if apart.flows.len() >= FLOWS_MAX && !apart.flows.contains_key(&key) {
            apart.forget(self.packets);
        }
        let (seed, begun) = (self.seed, &mut apart.begun);
        let flow = apart.flows.entry(key).or_insert_with(|| {
            let service = key.service();
            let before = begun.entry(service).or_insert(0);
            let number = *before;
            *before += 1;
            Flow::new(seed ^ mix(service ^ mix(number)))
        });
        flow.used = self.packets;
        flow
    }
}

impl Apart {
    /// Makes room. At most half of the flows can have sent one of the last packets.
    fn forget(&mut self, packets: u64) {
        let recent = packets.saturating_sub(FLOWS_MAX as u64 / 2);
        self.flows.retain(|_, flow| flow.used > recent);
        if self.begun.len() >= FLOWS_MAX {
            self.begun.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(source: u16, destination: u16) -> FlowKey {
        FlowKey {
            protocol: 17,
            source: ([10, 0, 0, 1], source).into(),
            destination: ([10, 0, 0, 2], destination).into(),
        }
    }

    #[test]
    fn ephemeral_ports_do_not_matter_and_the_order_does() {
        let seeds = |keys: [FlowKey; 3]| {
            let mut table = FlowTable::new(Flows::Apart, 7);
            keys.map(|key| table.of(|| key).seed)
        };
        let first = seeds([key(40_000, 53), key(50_000, 53), key(40_000, 80)]);
        let second = seeds([key(60_000, 53), key(33_333, 53), key(1_000, 80)]);
        assert_eq!(first, second);
        assert!(first[0] != first[1] && first[0] != first[2]);
        let back = seeds([key(53, 40_000), key(53, 50_000), key(40_000, 80)]);
        assert_eq!(first[0], back[0]);
    }

    #[test]
    fn memory_is_bounded_and_living_flows_are_kept() {
        let mut table = FlowTable::new(Flows::Apart, 1);
        let source = |n: u32| FlowKey {
            source: (Ipv4Addr::from_bits(n), 9).into(),
            ..key(9, 9)
        };
        for n in 0..3 * FLOWS_MAX as u32 {
            table.of(|| source(n)).sent += 1;
            table.of(|| key(1, 2)).sent += 1;
        }
        let apart = table.apart.as_ref().unwrap();
        assert!(apart.flows.len() <= FLOWS_MAX && apart.begun.len() <= FLOWS_MAX);
        assert_eq!(table.of(|| key(1, 2)).sent, 3 * FLOWS_MAX as u64);
    }

    #[test]
    fn together_there_is_one_series() {
        let mut table = FlowTable::new(Flows::Together, 7);
        table.of(|| key(1, 2)).sent += 1;
        let flow = table.of(|| key(3, 4));
        assert_eq!((flow.seed, flow.sent), (7, 1));
    }
}
