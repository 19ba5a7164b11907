//! Traffic that this machine routes, led to an agent.
//!
//! Rules lead TCP packets that arrive at the wireless interface to one TUN device, and those that arrive
//! at the wired ones to another. What the agent lets out goes into the device that it came from, and the
//! machine routes it on. The devices are not persistent: when the process dies, however that happens, they
//! vanish with their routes, and packets go where they went before.
//!
//! So a packet is routed twice, and the packet filter sees it twice, the first time on its way to a device. What connection tracking remembers of it is of that
//! first time: translation of addresses that was to be done on the way out is not done any more.

use std::{
    io,
    net::Ipv4Addr,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread::{self, JoinHandle},
    time::Duration,
};

use bytes::Bytes;
use rustix::fd::{AsFd, BorrowedFd};
use sphinx_netdev::{
    ethernet::index_and_is_port,
    filter::{sees_routed, translates},
    netns::write_sysctl,
    route::Diversion,
    tun::{JoiningTun, MTU_MAX, TunConfig, Unfinished},
};

use crate::{
    Agent, Side, Time,
    attach::{Port, Served, interfaces},
    queue,
};

/// Where packets from fixed and from mobile hosts are led: devices, and routing tables. The rules come in front of those of tunnels
/// ([`sphinx_netdev::split`]), which have other priorities: who removes the ones does not remove the others.
const PLACES: [(&str, Diversion); 2] = [
    (
        "pep-fixed",
        Diversion {
            priority: 7747,
            table: 7_749_001,
        },
    ),
    (
        "pep-mobile",
        Diversion {
            priority: 7748,
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
/// How often it is looked whether packets are still led here.
const RULES_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The devices, and the rules that lead there. The rules are removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Devices {
    devices: [JoiningTun; 2],
    /// Packets that are to go into each of the devices.
    leaving: [Vec<Bytes>; 2],
    buffer: Vec<u8>,
    refused: u64,
    watch: Option<Watch>,
}

impl Devices {
    /// See [`Attachment::tun`](crate::attach::Attachment::tun).
    pub(crate) fn open(wired: &[String], wireless: &str) -> io::Result<Devices> {
        for interface in wired.iter().map(String::as_str).chain([wireless]) {
            if index_and_is_port(interface)?.1 {
                let message = format!(
                    "{interface} is a port of a bridge, and what this machine routes comes by the bridge: name that"
                );
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
        }
        refuse_translation()?;
        // Whoever has the devices is the one agent of the namespace. When it is killed, the kernel closes first what was opened last, and takes some
        // 20 ms to remove a device. What is on its way to one that nobody reads is lost: less of that matters where acknowledgements come from.
        let [(fixed, _), (mobile, _)] = PLACES;
        let mobile = open(mobile)?;
        let mut opened = Devices {
            devices: [open(fixed)?, mobile],
            leaving: [Vec::new(), Vec::new()],
            buffer: vec![0; MTU_MAX],
            refused: 0,
            watch: None,
        };
        remove_rules()?;
        let lead = Lead {
            wired: wired.to_vec(),
            wireless: wireless.to_owned(),
        };
        lead.lay()?;
        opened.watch = Some(Watch::start(lead)?);
        Ok(opened)
    }
}

/// Where packets are led here from.
#[derive(Debug)]
struct Lead {
    wired: Vec<String>,
    wireless: String,
}

impl Lead {
    /// Adds the routes and the rules that are not there. Whether there were such.
    fn lay(&self) -> io::Result<bool> {
        let [(fixed, to_fixed), (mobile, to_mobile)] = &PLACES;
        let mut any = to_fixed.route_to(fixed)? | to_mobile.route_to(mobile)?;
        for interface in &self.wired {
            any |= to_fixed.divert(interface)?;
        }
        Ok(any | to_mobile.divert(&self.wireless)?)
    }
}

/// Looks whether packets are still led here: other programs remove rules that they do not know. It has a thread of its own, as the kernel's lock
/// for changes may be others' for longer than packets should wait.
#[derive(Debug)]
struct Watch {
    stop: Sender<()>,
    thread: JoinHandle<()>,
    /// What was missing is there again; or why the agent cannot stay.
    told: Receiver<io::Result<()>>,
}

impl Watch {
    fn start(lead: Lead) -> io::Result<Watch> {
        let (stop, stopped) = channel::<()>();
        let (tell, told) = channel();
        let was_seen = is_seen();
        let look = move || {
            refuse_translation()?;
            if !was_seen && is_seen() {
                return Err(io::Error::other(
                    "the packet filter has got rules for what is routed: packets have to come here in another way",
                ));
            }
            lead.lay()
        };
        let body = move || {
            while stopped.recv_timeout(RULES_POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let found = match look() {
                    Ok(false) => continue,
                    Ok(true) => Ok(()),
                    Err(error) => Err(error),
                };
                let is_over = found.is_err();
                if tell.send(found).is_err() || is_over {
                    return;
                }
            }
        };
        let thread = thread::Builder::new()
            .name("rules".to_owned())
            .spawn(body)?;
        Ok(Watch { stop, thread, told })
    }

    /// Ends the thread that watches the rules; afterwards it adds none.
    fn end(self) {
        drop(self.stop);
        // If it has panicked, it adds no rules either.
        let _ = self.thread.join();
    }
}

/// Whether the packet filter of the calling thread's namespace sees what is routed. One that cannot be asked does not.
pub(crate) fn is_seen() -> bool {
    sees_routed(queue::TABLE).unwrap_or(false)
}

fn refuse_translation() -> io::Result<()> {
    match translates() {
        Ok(true) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "addresses are translated here (NAT), which packets that are led to a device are kept from",
        )),
        // Where the packet filter cannot be asked, it does not translate.
        _ => Ok(()),
    }
}

impl Devices {
    /// Hands a packet to the agent, or its segments, and takes what comes out; how many there were.
    fn handle(
        &mut self,
        input: usize,
        rest: Unfinished,
        packet: &mut [u8],
        agent: &mut Agent,
        now: &dyn Fn() -> Time,
    ) -> usize {
        restore_hops(packet);
        let from = SIDES[input];
        let mut packets = 0;
        let whole = rest.is_joined() && agent.pass_joined(now(), from, packet);
        let cut = !whole
            && rest.finish(packet, |segment| {
                packets += 1;
                agent.handle_packet(now(), from, Bytes::copy_from_slice(segment));
                self.take(agent);
            });
        if !cut {
            // As it came, but for the hop, behind what came before.
            self.flush();
            let sent = self.devices[input].send_unfinished(rest, packet);
            self.refused += u64::from(sent.is_err());
        }
        packets.max(1)
    }

    /// Takes what the agent lets out: it goes back into the device that packets of its kind came from.
    fn take(&mut self, agent: &mut Agent) {
        while let Some(output) = agent.poll_output() {
            self.leaving[output.to.other() as usize].push(output.packet);
        }
    }

    /// Sends what is to go, as few packets: what follows each other is joined, as most of it came.
    fn flush(&mut self) {
        for (device, packets) in self.devices.iter().zip(&mut self.leaving) {
            self.refused += device.send_all(packets);
            packets.clear();
        }
    }
}

impl Port for Devices {
    fn inputs(&self) -> Vec<BorrowedFd<'_>> {
        self.devices.iter().map(AsFd::as_fd).collect()
    }

    fn serve(
        &mut self,
        input: usize,
        agent: &mut Agent,
        now: &dyn Fn() -> Time,
    ) -> io::Result<Served> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut packets = 0;
        let result = loop {
            if packets >= BATCH {
                break Ok(false);
            }
            match self.devices[input].receive(&mut buffer) {
                Ok((rest, length)) => {
                    packets += self.handle(input, rest, &mut buffer[..length], agent, now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(true),
                Err(error) => break Err(error),
            }
        };
        self.buffer = buffer;
        self.flush();
        result.map(|emptied| Served { packets, emptied })
    }

    fn send(&mut self, agent: &mut Agent) {
        self.take(agent);
        self.flush();
    }

    fn look(&mut self) -> io::Result<bool> {
        let told = self.watch.as_ref().map(|watch| watch.told.try_recv());
        match told {
            Some(Ok(found)) => found.map(|()| true),
            _ => Ok(false),
        }
    }

    fn withdraw(&mut self) -> io::Result<()> {
        if let Some(watch) = self.watch.take() {
            watch.end();
        }
        remove_rules()
    }

    fn refused(&self) -> u64 {
        self.refused
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // Rules without a device lead nowhere, and the next agent removes them.
        let _ = self.withdraw();
    }
}

/// Whether an agent of this kind is there.
pub(crate) fn is_open() -> io::Result<bool> {
    let known = interfaces()?;
    Ok(PLACES
        .iter()
        .any(|(name, _)| known.iter().any(|it| it == name)))
}

/// Whether rules lead to an agent of this kind.
pub(crate) fn is_led() -> io::Result<bool> {
    let [(_, to_fixed), (_, to_mobile)] = &PLACES;
    Ok(to_fixed.leads()? && to_mobile.leads()?)
}

pub(crate) fn remove_rules() -> io::Result<()> {
    PLACES
        .iter()
        .try_for_each(|(_, diversion)| diversion.remove())
}

/// A device that packets can be routed to and come from.
fn open(name: &str) -> io::Result<JoiningTun> {
    let device = JoiningTun::open(&TunConfig {
        name: name.to_owned(),
        mtu: MTU_MAX,
        queue_packets: QUEUE_PACKETS,
        addresses: vec![(DUMMY.into(), 32)],
    })?;
    // No route leads back through the device: only loose checks of source addresses can pass. Where the
    // parameter is missing, there is no such check.
    let _ = write_sysctl(&format!("net.ipv4.conf.{name}.rp_filter"), "2");
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
