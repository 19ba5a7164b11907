//! An agent in the traffic that this machine routes.
//!
//! Rules lead TCP packets that arrive at the wireless interface to one TUN device, and those that arrive
//! at the wired ones to another. What the agent lets out goes into the device that it came from, and the
//! machine routes it on. The devices are not persistent: when the process dies, however that happens, they
//! vanish with their routes, and packets go where they went before.

use std::{
    fs, io,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fd::OwnedFd,
    io::Errno,
};
use sphinx_netdev::{
    netns::Namespace,
    route::Diversion,
    tun::{MTU_MAX, Tun, TunConfig, serve_in_time},
};

use crate::{Agent, FlowReport, MS, Side, Time};

/// Where packets from fixed and from mobile hosts are led: devices, and routing tables.
const PLACES: [(&str, Diversion); 2] = [
    (
        "pep-fixed",
        Diversion {
            priority: 7749,
            table: 7_749_001,
        },
    ),
    (
        "pep-mobile",
        Diversion {
            priority: 7750,
            table: 7_749_002,
        },
    ),
];
const SIDES: [Side; 2] = [Side::Fixed, Side::Mobile];

/// The devices' address, which nobody talks to (RFC 7600): loose checks of source addresses refuse all
/// packets that come from a device without one.
const DUMMY: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
/// Packets that wait for the agent; the kernel drops more.
const QUEUE_PACKETS: u32 = 5000;
/// Most packets read from one device before the other has its turn.
const BATCH: usize = 64;
/// How long what is on its way to the agent may take to come, once nothing new is led there.
const DRAIN_NS: Time = 250 * MS;

/// Ends [`Attachment::run`] from another thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Stop>);

#[derive(Debug)]
struct Stop {
    asked: AtomicBool,
    wake: OwnedFd,
}

impl Stopper {
    /// Lets [`Attachment::run`] return soon.
    pub fn stop(&self) {
        self.0.asked.store(true, Ordering::Release);
        // It fails only when 2^64 - 2 wake-ups are pending already.
        let _ = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
    }
}

/// The devices and rules. The rules are removed when this is dropped.
#[derive(Debug)]
pub struct Attachment {
    devices: [Tun; 2],
    stop: Stopper,
    refused: u64,
}

impl Attachment {
    /// Leads the TCP traffic of these interfaces of the calling thread's namespace here: those at which
    /// packets from fixed hosts arrive, and the one for mobile hosts. What rules a killed process left
    /// is replaced.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such interface, `ResourceBusy` if an agent runs already,
    /// `PermissionDenied` without `CAP_NET_ADMIN`.
    pub fn open(wired: &[String], wireless: &str) -> io::Result<Attachment> {
        let known = interfaces()?;
        for name in wired.iter().map(String::as_str).chain([wireless]) {
            if !known.iter().any(|other| other == name) {
                let message = format!("there is no interface {name}");
                return Err(io::Error::new(io::ErrorKind::NotFound, message));
            }
        }
        // Whoever has the devices is the one agent of the namespace.
        let [fixed, mobile] = PLACES.map(|(name, _)| open(name));
        let attachment = Attachment {
            devices: [fixed?, mobile?],
            stop: Stopper(Arc::new(Stop {
                asked: AtomicBool::new(false),
                wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            })),
            refused: 0,
        };
        for ((_, diversion), device) in PLACES.iter().zip(&attachment.devices) {
            diversion.remove()?;
            diversion.route_to(device)?;
        }
        let [(_, to_fixed), (_, to_mobile)] = &PLACES;
        for interface in wired {
            to_fixed.divert(interface)?;
        }
        to_mobile.divert(wireless)?;
        Ok(attachment)
    }

    /// What ends [`run`](Attachment::run).
    pub fn stopper(&self) -> Stopper {
        self.stop.clone()
    }

    /// Packets that the kernel did not take back.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Serves the agent until told to stop, and tells `ended` of flows that end. The rules are removed
    /// then, and packets that are on their way served.
    ///
    /// # Errors
    ///
    /// Those of waiting, and of removing the rules.
    pub fn run(&mut self, agent: &mut Agent, mut ended: impl FnMut(FlowReport)) -> io::Result<()> {
        // Where that is not allowed, packets wait a little longer.
        let _ = serve_in_time();
        let start = Instant::now();
        let now = || Time::try_from(start.elapsed().as_nanos()).unwrap_or(Time::MAX);
        let mut buffer = vec![0; MTU_MAX];
        let mut until = None;
        loop {
            if until.is_none() && self.stop.0.asked.load(Ordering::Acquire) {
                remove_rules()?;
                until = Some(now() + DRAIN_NS);
            }
            let mut received = 0;
            for index in 0..self.devices.len() {
                received += self.receive(index, &mut buffer, agent, &now);
            }
            if agent.next_timeout().is_some_and(|at| at <= now()) {
                agent.handle_timeout(now());
                self.send(agent);
            }
            while let Some(report) = agent.poll_ended() {
                ended(report);
            }
            if until.is_some_and(|until| until <= now()) {
                return Ok(());
            }
            if received == 0 {
                let next = agent.next_timeout().into_iter().chain(until).min();
                self.sleep(next.map(|at| at.saturating_sub(now())))?;
            }
        }
    }

    /// Takes what a device has, up to a batch, and returns how much that was.
    fn receive(
        &mut self,
        index: usize,
        buffer: &mut [u8],
        agent: &mut Agent,
        now: &impl Fn() -> Time,
    ) -> usize {
        for count in 0..BATCH {
            match self.devices[index].receive(buffer) {
                Ok(length) => {
                    let packet = &mut buffer[..length];
                    restore_hops(packet);
                    agent.handle_packet(now(), SIDES[index], Bytes::copy_from_slice(packet));
                    self.send(agent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return count,
                Err(_) => {
                    self.refused += 1;
                    return count;
                }
            }
        }
        BATCH
    }

    fn send(&mut self, agent: &mut Agent) {
        while let Some(output) = agent.poll_output() {
            // Back into the device that packets of its kind came from.
            let device = &self.devices[output.to.other() as usize];
            self.refused += u64::from(device.send(&output.packet).is_err());
        }
    }

    fn sleep(&self, timeout_ns: Option<Time>) -> io::Result<()> {
        let timeout = timeout_ns.map(Duration::from_nanos);
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut files = [
            PollFd::new(&self.devices[0], PollFlags::IN),
            PollFd::new(&self.devices[1], PollFlags::IN),
            PollFd::new(&self.stop.0.wake, PollFlags::IN),
        ];
        match poll(&mut files, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // One ring is enough.
        let _ = rustix::io::read(&self.stop.0.wake, &mut [0; 8]);
        Ok(())
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // Rules without a device lead nowhere, and the next agent removes them.
        let _ = remove_rules();
    }
}

/// The interfaces of the calling thread's namespace except loopback.
///
/// # Errors
///
/// Those of reading a file in `/proc`.
pub fn interfaces() -> io::Result<Vec<String>> {
    let text = fs::read_to_string("/proc/thread-self/net/dev")?;
    let names = text.lines().filter_map(|line| line.split_once(':'));
    let names = names.map(|(name, _)| name.trim().to_owned());
    Ok(names.filter(|name| name != "lo").collect())
}

fn remove_rules() -> io::Result<()> {
    PLACES
        .iter()
        .try_for_each(|(_, diversion)| diversion.remove())
}

/// A device that packets can be routed to and come from.
fn open(name: &str) -> io::Result<Tun> {
    let device = Tun::open(&TunConfig {
        name: name.to_owned(),
        mtu: MTU_MAX,
        queue_packets: QUEUE_PACKETS,
        addresses: vec![(DUMMY.into(), 32)],
    })?;
    // No route leads back through the device: only loose checks of source addresses can pass. Where the
    // parameter is missing, there is no such check.
    if let Ok(namespace) = Namespace::current() {
        let _ = namespace.sysctl(&format!("net.ipv4.conf.{name}.rp_filter"), "2");
    }
    Ok(device)
}

/// Gives back the hop that the way to the device took, so that the machine counts once.
fn restore_hops(packet: &mut [u8]) {
    match packet.first().map(|byte| byte >> 4) {
        Some(4) if packet.len() >= 20 && packet[8] < u8::MAX => {
            packet[8] += 1;
            // RFC 1624: the word grew by 0x100, so the checksum falls by it.
            let checksum = u16::from_be_bytes([packet[10], packet[11]]);
            let (checksum, borrow) = checksum.overflowing_sub(0x100);
            let checksum = checksum.wrapping_sub(u16::from(borrow));
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        Some(6) if packet.len() >= 40 => packet[7] = packet[7].saturating_add(1),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{Ipv4Header, Ipv4HeaderSlice};

    use super::*;

    #[test]
    fn a_restored_hop_keeps_the_checksum_right() {
        for id in 0..=u16::MAX {
            let mut header = Ipv4Header::new(0, 63, etherparse::IpNumber::TCP, [10; 4], [7; 4])
                .expect("a header");
            header.identification = id;
            header.header_checksum = header.calc_header_checksum();
            let mut packet = header.to_bytes().to_vec();
            restore_hops(&mut packet);
            let header = Ipv4HeaderSlice::from_slice(&packet)
                .expect("a header")
                .to_header();
            assert_eq!(header.time_to_live, 64);
            assert_eq!(
                header.header_checksum,
                header.calc_header_checksum(),
                "{id}"
            );
        }
    }
}
