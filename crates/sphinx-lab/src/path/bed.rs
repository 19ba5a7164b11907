//! The hosts and the hops between them.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::{Instant, SystemTime},
};

use sphinx_link::{
    Record,
    front::{
        Direction, Interface, LinkThread, Observer, Side, TCP_PARAMETERS, between, carries_ipv6,
        has_ipv6,
    },
    settings::LinkSettings,
};
use sphinx_netdev::{netns::Namespace, route::default_route};

use super::{
    Plan,
    flows::{Edge, Watch},
    plan::HopPlan,
};
use crate::emulator::{LinkError, LinkErrorKind, Log, RECORDS_MAX, State};

/// The hops' names; the middle host's interfaces are called so too.
const NAMES: [&str; 2] = ["wired", "wireless"];
/// What the kernel may keep per interface while the emulator is busy: the queues are the hops' own.
const QUEUE_PACKETS: u32 = 10_000;

/// Three hosts in a row, and two hops. When this is dropped, nothing remains of them.
pub(super) struct Bed {
    pub(super) left: Namespace,
    pub(super) middle: Namespace,
    pub(super) right: Namespace,
    pub(super) hops: [Hop; 2],
}

/// A hop that runs.
pub(super) struct Hop {
    name: &'static str,
    settings: LinkSettings,
    link: LinkThread,
    begun: Instant,
    base: State,
}

fn ipv4(hop: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, hop + 1, host)
}

fn ipv6(hop: u8, host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, u16::from(hop) + 1, 0, 0, 0, 0, 0, u16::from(host))
}

/// The address of the left host, with port 0.
pub(super) fn left_address() -> SocketAddr {
    (ipv4(0, 1), 0).into()
}

/// The address of the right host, with port 0.
pub(super) fn right_address() -> SocketAddr {
    (ipv4(1, 2), 0).into()
}

/// The address of the host in the middle at the right hop, with port 0.
pub(super) fn middle_address() -> SocketAddr {
    (ipv4(1, 1), 0).into()
}

impl Bed {
    /// `watch` is told what passes at both ends of the path.
    pub(super) fn start(plan: &Plan, watch: Option<&Arc<Mutex<Watch>>>) -> Result<Bed, LinkError> {
        let [mut wired, mut wireless] = plan.hops.clone();
        let records = if plan.log.is_some() { RECORDS_MAX } else { 0 };
        for config in wired.configs.iter_mut().chain(&mut wireless.configs) {
            config.records = records;
        }
        let host = || Namespace::new().map_err(|error| local("create a network namespace", &error));
        let (left, middle, right) = (host()?, host()?, host()?);
        let mtu = plan.interface_mtu;
        let edge = |side| {
            let new = |watch| Box::new(Edge::new(watch, side, side == Side::Left));
            watch.map(|watch| new(watch) as Box<dyn Observer>)
        };
        let ends = [(&left, "left"), (&middle, NAMES[0])];
        let observer = edge(Side::Left);
        let wired = Hop::start(0, wired, ends, mtu, observer)?;
        let ends = [(&middle, NAMES[1]), (&right, "right")];
        let observer = edge(Side::Right);
        let wireless = Hop::start(1, wireless, ends, mtu, observer)?;
        let bed = Bed {
            left,
            middle,
            right,
            hops: [wired, wireless],
        };
        bed.connect(plan)
            .map_err(|error| local("connect the hosts", &error))?;
        Ok(bed)
    }

    fn connect(&self, plan: &Plan) -> io::Result<()> {
        let sack = plan.transfer.sack;
        for (end, device) in [(&self.left, "left"), (&self.right, "right")] {
            end.run(|| default_route(device))??;
            end.sysctl("net.ipv4.tcp_sack", if sack { "1" } else { "0" })?;
        }
        for host in [&self.left, &self.middle, &self.right] {
            for (name, value) in TCP_PARAMETERS {
                host.sysctl(name, value)?;
            }
        }
        for host in [&self.left, &self.right] {
            for (name, value) in &plan.parameters {
                let set = host.sysctl(name, value);
                set.map_err(|error| {
                    io::Error::new(error.kind(), format!("{name} = {value}: {error}"))
                })?;
            }
        }
        self.middle.sysctl("net.ipv4.ip_forward", "1")?;
        match has_ipv6() {
            true => self.middle.sysctl("net.ipv6.conf.all.forwarding", "1"),
            false => Ok(()),
        }
    }

    pub(super) fn states(&self) -> [State; 2] {
        self.hops.each_ref().map(Hop::state)
    }

    /// Ends both hops; what they have done can still be asked.
    pub(super) fn halt(&mut self) -> io::Result<()> {
        self.hops.iter_mut().try_for_each(|hop| hop.link.halt())
    }
}

impl Hop {
    fn start(
        number: u8,
        HopPlan { settings, configs }: HopPlan,
        ends: [(&Namespace, &str); 2],
        mtu: usize,
        observer: Option<Box<dyn Observer>>,
    ) -> Result<Hop, LinkError> {
        let with_ipv6 = carries_ipv6(mtu);
        let interface = |(namespace, name), host| Interface {
            namespace,
            name,
            ipv4: (ipv4(number, host), 24),
            ipv6: with_ipv6.then_some((ipv6(number, host), 64)),
            mtu,
            queue_packets: QUEUE_PACKETS,
        };
        let [left, right] = ends;
        let (left, right) = (interface(left, 1), interface(right, 2));
        let link = between([&left, &right], configs, observer)?;
        let addresses = |interface: &Interface<'_>| {
            let ipv6 = interface.ipv6.map(|(address, _)| address.to_string());
            [interface.ipv4.0.to_string()]
                .into_iter()
                .chain(ipv6)
                .collect()
        };
        let name = NAMES[usize::from(number)];
        Ok(Hop {
            name,
            base: State::of(name, [addresses(&left), addresses(&right)]),
            settings,
            link,
            begun: Instant::now(),
        })
    }

    pub(super) fn started(&self) -> SystemTime {
        self.link.started()
    }

    pub(super) fn state(&self) -> State {
        let mut state = State {
            seconds: self.begun.elapsed().as_secs_f64(),
            ..self.base.clone()
        };
        let settings = [&self.settings.forward, &self.settings.back];
        state.count(settings, &self.link.counters());
        state
    }

    /// Writes what has happened since the last time.
    pub(super) fn log(&self, log: &mut Log) -> io::Result<()> {
        let mut records: Vec<Record> = Vec::new();
        for direction in [Direction::LeftToRight, Direction::RightToLeft] {
            records.clear();
            self.link.take_records(direction, &mut records);
            log.records(Some(self.name), direction, &records)?;
        }
        Ok(())
    }

    /// Records for which there was no room.
    pub(super) fn missed(&self) -> u64 {
        self.link.counters().records_missed
    }
}

pub(super) fn local(what: &str, error: &io::Error) -> LinkError {
    let hint = "it needs root, or unprivileged user namespaces, and /dev/net/tun";
    LinkError::new(
        LinkErrorKind::Local,
        format!("cannot {what}: {error}"),
        hint,
    )
}
