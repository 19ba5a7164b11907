//! What a packet of a session costs, stage by stage, in the code that ships.
//!
//! Two ends in one thread, each with its driver, real keys and a back end, move a stream over loopback, or over a cable of the kernel's. The stages are measured from
//! outside: around calls of the driver, and inside them around those of packet protection, which the driver is generic over. A
//! stage's time excludes that of stages within it, and what reading the clock takes.

#![forbid(unsafe_code)]

mod cable;
mod end;
mod meter;
mod model;
mod workers;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::str::FromStr as _;

#[cfg(feature = "dpdk")]
use sphinx_dpdk::{DpdkConfig, DpdkIo};
use sphinx_driver::keys::{Direction, SessionSecret};
use sphinx_net::udp::{UdpConfig, UdpIo};
use sphinx_net::{MemoryIo, PacketIo, TURN_BYTES};
use sphinx_proto::cc::CcKind;
use sphinx_proto::{Config, ConnectionIds, Paper, PathId, Role, Tuple};
use sphinx_xdp::{XdpConfig, XdpIo};

use cable::{INTERFACE, Owner};
use end::{End, Loss};
use meter::{Gauge, Meter};
pub use meter::{PerStage, STAGES, Stage};
pub use model::{Cores, Threads};

/// IP and UDP headers.
const HEADERS: u16 = 28;
/// Parts that are measured, of which the median is taken.
const PARTS: usize = 9;
/// Faster than any loop: nothing waits for rate control, IP bytes per second.
const RATE: u64 = 20_000_000_000;
/// Turns without a packet after which something is wrong: some half a minute.
const IDLE_TURNS_MAX: u32 = 50_000_000;
/// Sends of many packets that may be on their way in memory.
const MEMORY_SENDS: usize = 64;

/// What the packets go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Io {
    /// The kernel's UDP sockets, over loopback.
    Udp,
    /// Memory: what there is to do without a kernel, but for copying each packet once.
    Memory,
    /// AF_XDP at one end of a pair of Ethernet interfaces (veth), and the kernel's UDP at the other, which is not measured.
    Xdp,
    /// DPDK's `net_af_packet` at that end.
    #[cfg(feature = "dpdk")]
    Dpdk,
}

impl Io {
    /// Largest packet that it carries, IP bytes.
    pub fn mtu_max(self) -> u16 {
        match self {
            Io::Udp | Io::Memory | Io::Xdp => 9000,
            // As large as a buffer of the driver.
            #[cfg(feature = "dpdk")]
            Io::Dpdk => 1500,
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Data of the whole measurement, bytes.
    pub bytes: u64,
    /// Largest packet, IP bytes: 1228 to 9000.
    pub mtu: u16,
    /// Share of packets, 0–1, that the receiver throws away before it looks at them.
    pub loss: f64,
    /// What the packets go through.
    pub io: Io,
    /// Code as with workers, whose part is a stage of its own then; otherwise the engine codes in place.
    pub workers: bool,
    /// The mode of the paper at both ends, instead of the default one.
    pub paper: Option<Paper>,
}

/// What each stage takes for every packet that the sender sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Packets that were measured.
    pub packets: u64,
    /// Mean size of a packet, IP bytes.
    pub packet_bytes: f64,
    /// Data bytes for each packet.
    pub payload_bytes: f64,
    /// What reading the clock took, which is not part of the stages, nanoseconds.
    pub clock_ns: f64,
    /// Where it sends, nanoseconds.
    pub sender: PerStage,
    /// Where it receives, nanoseconds.
    pub receiver: PerStage,
    /// The same, sender and receiver, in instructions without the kernel's; none where the processor does not count them.
    pub instructions: Option<[PerStage; 2]>,
}

impl Costs {
    /// Data, bits per second, that one core moves which needs so many nanoseconds a packet.
    pub fn core_bits(&self, ns: f64) -> f64 {
        self.payload_bytes * 8e9 / ns
    }
}

/// Moves `load` and measures; and once more, for instructions, where the processor counts them.
///
/// # Errors
/// When sockets cannot be had or fail, or the transfer stops (`TimedOut`). Past the kernel: without the right to make network namespaces
/// (`PermissionDenied`), without the program `ip`, and what the back end lacks (`XdpError` or `DpdkError`, inside).
pub fn measure(load: &Load) -> io::Result<Costs> {
    let bind = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match load.io {
        Io::Udp => counted(|gauge| {
            let open = || UdpIo::open(&UdpConfig::new(bind(0)));
            between(load, (&mut open()?, &mut open()?), TURN_BYTES, gauge)
        }),
        Io::Memory => counted(|gauge| {
            let (mut a, mut b) = MemoryIo::pair(bind(1), bind(2), MEMORY_SENDS)?;
            between(load, (&mut a, &mut b), TURN_BYTES, gauge)
        }),
        Io::Xdp => cable::measure(load, Owner::Kernel, |bind| {
            let config = XdpConfig::from_str(INTERFACE).map_err(io::Error::other)?;
            let kernel = UdpIo::open(&UdpConfig::new(bind))?;
            XdpIo::open(&config, kernel).map_err(io::Error::other)
        }),
        #[cfg(feature = "dpdk")]
        Io::Dpdk => cable::measure(load, Owner::BackEnd, |bind| {
            let config = format!(
                "-l 0 --no-huge -m 128 --no-shconf --no-pci --no-telemetry --vdev=net_af_packet0,iface={INTERFACE} -- {}/24",
                bind.ip()
            );
            let config = DpdkConfig::from_str(&config).map_err(io::Error::other)?;
            DpdkIo::open(&config, bind).map_err(io::Error::other)
        }),
    }
}

/// Measures by time, and by instructions if somebody counts them.
fn counted(mut by: impl FnMut(&Rc<Gauge>) -> io::Result<Costs>) -> io::Result<Costs> {
    let costs = by(&Rc::new(Gauge::clock()))?;
    let instructions = match Gauge::instructions() {
        Ok(gauge) => {
            let gauge = Rc::new(gauge);
            let counted = by(&gauge)?;
            gauge.counts().then_some([counted.sender, counted.receiver])
        }
        Err(_) => None,
    };
    Ok(Costs {
        instructions,
        ..costs
    })
}

/// From the first to the second, so many bytes at most in a turn.
fn between<A: PacketIo, B: PacketIo>(
    load: &Load,
    (io_a, io_b): (&mut A, &mut B),
    turn_bytes: usize,
    gauge: &Rc<Gauge>,
) -> io::Result<Costs> {
    let addresses = [io_a.local_addr(), io_b.local_addr()];
    let own = gauge.own();
    let begin = |role, direction, [local, peer]: [u64; 2], remote| {
        let ids = ConnectionIds {
            local: end::id(local),
            peer: end::id(peer),
        };
        let tuple = Tuple {
            remote,
            local_ip: None,
        };
        let mut config = Config::new(role, tuple, ids);
        config.cc = CcKind::Fixed(RATE);
        config.paper = load.paper;
        config.initial_rtt = 1_000_000;
        config.mtu_candidates = vec![load.mtu - HEADERS];
        config.peer_datagram_max = load.mtu - HEADERS;
        let keys = SessionSecret::new(&[1; 32], &[2; 32]).keys(direction, PathId::FIRST);
        (config, keys, Meter::new(Rc::clone(gauge), own))
    };
    let client = begin(
        Role::Client,
        Direction::ClientToServer,
        [1, 2],
        addresses[1],
    );
    let mut sender = End::new(client, (io_a, turn_bytes), load.workers);
    let server = begin(
        Role::Server,
        Direction::ServerToClient,
        [2, 1],
        addresses[0],
    );
    let mut receiver = End::new(server, (io_b, turn_bytes), load.workers);
    let loss = Loss::new(load.loss);
    transfer(load.bytes, (&mut sender, &mut receiver), loss, own)
}

fn transfer<A: PacketIo, B: PacketIo>(
    bytes: u64,
    (sender, receiver): (&mut End<'_, A>, &mut End<'_, B>),
    mut loss: Loss,
    own: f64,
) -> io::Result<Costs> {
    sender.open();
    let part = (bytes / (PARTS as u64 + 1)).max(1);
    let mut parts = Vec::with_capacity(PARTS);
    let (mut before, mut due, mut idle) = (Marks::default(), part, 0);
    while parts.len() < PARTS {
        sender.write()?;
        let mut moved = sender.turn(&mut Loss::new(0.0))?;
        moved += receiver.turn(&mut loss)?;
        receiver.read();
        idle = if moved > 0 { 0 } else { idle + 1 };
        sender.check()?;
        receiver.check()?;
        if idle > IDLE_TURNS_MAX {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the transfer has stopped",
            ));
        }
        if receiver.received < due {
            continue;
        }
        due += part;
        let now = Marks::of(sender, receiver);
        // The first part is warm-up: buffers, path MTU.
        if before.packets > 0 {
            parts.push(now.since(&before));
        }
        before = now;
    }
    Ok(median(&parts, own))
}

/// What has been counted at some point.
#[derive(Default)]
struct Marks {
    packets: u64,
    ip_bytes: u64,
    payload: u64,
    sender: PerStage,
    receiver: PerStage,
}

impl Marks {
    fn of<A: PacketIo, B: PacketIo>(sender: &End<'_, A>, receiver: &End<'_, B>) -> Self {
        let sent = sender.sent();
        Self {
            packets: sent.send_datagrams,
            ip_bytes: sent.send_bytes + u64::from(HEADERS) * sent.send_datagrams,
            payload: receiver.received,
            sender: sender.meter.stages(),
            receiver: receiver.meter.stages(),
        }
    }

    fn since(&self, before: &Self) -> Self {
        let less = |now: &PerStage, before: &PerStage| {
            std::array::from_fn(|stage| now[stage] - before[stage])
        };
        Self {
            packets: self.packets - before.packets,
            ip_bytes: self.ip_bytes - before.ip_bytes,
            payload: self.payload - before.payload,
            sender: less(&self.sender, &before.sender),
            receiver: less(&self.receiver, &before.receiver),
        }
    }
}

/// The median of each stage.
fn median(parts: &[Marks], own: f64) -> Costs {
    let packets: u64 = parts.iter().map(|part| part.packets).sum();
    let per_packet = |count: fn(&Marks) -> u64| {
        parts.iter().map(count).sum::<u64>() as f64 / packets.max(1) as f64
    };
    let of = |stages: fn(&Marks) -> &PerStage| {
        std::array::from_fn(|stage| {
            let cost = |part: &Marks| stages(part)[stage] / part.packets.max(1) as f64;
            let mut costs: Vec<f64> = parts.iter().map(cost).collect();
            costs.sort_by(f64::total_cmp);
            costs.get(costs.len() / 2).copied().unwrap_or(0.0)
        })
    };
    Costs {
        packets,
        packet_bytes: per_packet(|part| part.ip_bytes),
        payload_bytes: per_packet(|part| part.payload),
        clock_ns: own,
        sender: of(|part| &part.sender),
        receiver: of(|part| &part.receiver),
        instructions: None,
    }
}

#[cfg(test)]
mod tests {
    use super::Stage::*;
    use super::*;

    const LOAD: Load = Load {
        bytes: 20_000_000,
        mtu: 1500,
        loss: 0.02,
        io: Io::Udp,
        workers: false,
        paper: None,
    };

    fn takes(of: &PerStage, stages: &[Stage]) -> bool {
        stages.iter().all(|stage| of[*stage as usize] > 0.0)
    }

    #[test]
    fn every_stage_of_a_lossy_transfer_takes_time() {
        for io in [Io::Udp, Io::Memory] {
            let costs = measure(&Load { io, ..LOAD }).expect("loopback");
            assert!(costs.packets > 10_000, "{costs:?}");
            assert!((1300.0..=1500.0).contains(&costs.packet_bytes), "{costs:?}");
            assert!(costs.payload_bytes < costs.packet_bytes, "{costs:?}");
            let ends = [(costs.sender, costs.receiver)];
            let counted = costs
                .instructions
                .map(|[sender, receiver]| (sender, receiver));
            for (sender, receiver) in ends.into_iter().chain(counted) {
                let (sends, receives) = (
                    [Slice, HandOver, Encode, Seal, Send],
                    [Receive, Unprotect, Open, Place, Deliver],
                );
                assert!(
                    takes(&sender, &sends) && takes(&receiver, &receives),
                    "{costs:?}"
                );
                assert_eq!(receiver[Slice as usize], 0.0);
                assert_eq!((sender[Work as usize], receiver[Work as usize]), (0.0, 0.0));
            }
        }
    }

    /// A symbol of 1000 bytes in each packet, with ProFEC packets beside them; each is answered.
    #[test]
    fn the_papers_mode_takes_its_time() {
        for workers in [false, true] {
            let load = Load {
                loss: 0.06,
                paper: Some(Paper::default()),
                workers,
                ..LOAD
            };
            let costs = measure(&load).expect("loopback");
            assert!((1000.0..=1100.0).contains(&costs.packet_bytes), "{costs:?}");
            // 15 ProFEC packets for 100 originals, and what answers losses.
            let share = costs.payload_bytes / 1000.0;
            assert!((0.8..0.9).contains(&share), "{costs:?}");
            // Where it is sealed and opened is the workers' affair.
            let engine = [HandOver, Encode, Send, Receive, Unprotect];
            assert!(takes(&costs.sender, &engine), "{costs:?}");
            assert!(takes(&costs.receiver, &[Receive, Place, Send]), "{costs:?}");
            assert_eq!(costs.sender[Work as usize] > 0.0, workers, "{costs:?}");
        }
    }

    /// The engine has header protection of what arrives and the core; sealing and opening are theirs.
    #[test]
    fn workers_take_their_part() {
        let load = Load {
            workers: true,
            ..LOAD
        };
        let costs = measure(&load).expect("loopback");
        assert!(
            takes(&costs.sender, &[HandOver, Encode, Send, Work]),
            "{costs:?}"
        );
        assert!(
            takes(&costs.receiver, &[Receive, Unprotect, Place, Work]),
            "{costs:?}"
        );
        let (here, there) = (costs.sender[Seal as usize], costs.sender[Work as usize]);
        assert!(here < there / 4.0, "{costs:?}");
    }
}
