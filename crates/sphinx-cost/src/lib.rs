//! What a packet of a session costs, stage by stage, in the code that ships.
//!
//! Two ends in one thread, each with its driver, real keys and a UDP socket, move a stream over loopback. The stages are measured from
//! outside: around calls of the driver, and inside them around those of packet protection, which the driver is generic over. A
//! stage's time excludes that of stages within it, and what reading the clock takes.

#![forbid(unsafe_code)]

mod end;
mod meter;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use sphinx_driver::keys::{Direction, SessionSecret};
use sphinx_net::PacketIo;
use sphinx_net::udp::{UdpConfig, UdpIo};
use sphinx_proto::cc::CcKind;
use sphinx_proto::{Config, ConnectionIds, PathId, Role, Tuple};

use end::{End, Loss};
pub use meter::{STAGES, Stage};

/// IP and UDP headers.
const HEADERS: u16 = 28;
/// Parts that are measured, of which the median is taken.
const PARTS: usize = 9;
/// Faster than any loop: nothing waits for rate control, IP bytes per second.
const RATE: u64 = 20_000_000_000;
/// Turns without a packet after which something is wrong: some half a minute.
const IDLE_TURNS_MAX: u32 = 50_000_000;

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Data of the whole measurement, bytes.
    pub bytes: u64,
    /// Largest packet, IP bytes: 1228 to 9000.
    pub mtu: u16,
    /// Share of packets, 0–1, that the receiver throws away before it looks at them.
    pub loss: f64,
}

/// Nanoseconds of each stage, in the order of [`STAGES`], for every packet that the sender sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Packets that were measured.
    pub packets: u64,
    /// IP bytes of one, on the average.
    pub packet_bytes: f64,
    /// Data bytes for each packet.
    pub payload_bytes: f64,
    /// What reading the clock took, which is not part of the stages.
    pub clock_ns: f64,
    /// Where it sends.
    pub sender: [f64; STAGES.len()],
    /// Where it receives.
    pub receiver: [f64; STAGES.len()],
}

impl Costs {
    /// Sum of the stages that a thread of the engine does without the kernel, nanoseconds a packet.
    pub fn engine_ns(of: &[f64; STAGES.len()]) -> f64 {
        let own = |stage: &Stage| !stage.is_kernel() && *stage != Stage::Slice;
        sum(of, own)
    }

    /// Sum of the stages that are system calls.
    pub fn kernel_ns(of: &[f64; STAGES.len()]) -> f64 {
        sum(of, Stage::is_kernel)
    }

    /// Data, bits per second, that one core moves which needs so many nanoseconds a packet.
    pub fn core_bits(&self, ns: f64) -> f64 {
        self.payload_bytes * 8e9 / ns
    }
}

fn sum(of: &[f64; STAGES.len()], wanted: impl Fn(&Stage) -> bool) -> f64 {
    let stages = std::iter::zip(STAGES, of);
    let wanted = stages.filter(|(stage, _)| wanted(stage));
    wanted.map(|(_, ns)| ns).sum()
}

/// Moves `load` and measures.
///
/// # Errors
/// When loopback sockets cannot be had or fail, or the transfer stops (`TimedOut`).
pub fn measure(load: &Load) -> io::Result<Costs> {
    let bind = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (io_a, io_b) = (
        UdpIo::open(&UdpConfig::new(bind))?,
        UdpIo::open(&UdpConfig::new(bind))?,
    );
    let addresses = [io_a.local_addr(), io_b.local_addr()];
    let clock_ns = meter::clock_ns();
    let end = |role, io, direction, [own, peer]: [u64; 2], remote| {
        let ids = ConnectionIds {
            local: end::id(own),
            peer: end::id(peer),
        };
        let tuple = Tuple {
            remote,
            local_ip: None,
        };
        let mut config = Config::new(role, tuple, ids);
        config.cc = CcKind::Fixed(RATE);
        config.initial_rtt = 1_000_000;
        config.mtu_candidates = vec![load.mtu - HEADERS];
        config.peer_datagram_max = load.mtu - HEADERS;
        let keys = SessionSecret::new(&[1; 32], &[2; 32]).keys(direction, PathId::FIRST);
        End::new(config, keys, io, clock_ns)
    };
    let mut sender = end(
        Role::Client,
        io_a,
        Direction::ClientToServer,
        [1, 2],
        addresses[1],
    );
    let mut receiver = end(
        Role::Server,
        io_b,
        Direction::ServerToClient,
        [2, 1],
        addresses[0],
    );
    let loss = Loss::new(load.loss);
    transfer(load.bytes, (&mut sender, &mut receiver), loss, clock_ns)
}

fn transfer(
    bytes: u64,
    (sender, receiver): (&mut End, &mut End),
    mut loss: Loss,
    clock_ns: f64,
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
                "the transfer over loopback has stopped",
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
    Ok(median(&parts, clock_ns))
}

/// What has been counted at some point.
#[derive(Default)]
struct Marks {
    packets: u64,
    ip_bytes: u64,
    payload: u64,
    sender: [f64; STAGES.len()],
    receiver: [f64; STAGES.len()],
}

impl Marks {
    fn of(sender: &End, receiver: &End) -> Self {
        let sent = sender.sent();
        Self {
            packets: sent.send_datagrams,
            ip_bytes: sent.send_bytes + u64::from(HEADERS) * sent.send_datagrams,
            payload: receiver.received,
            sender: sender.meter.ns(),
            receiver: receiver.meter.ns(),
        }
    }

    fn since(&self, before: &Self) -> Self {
        let less = |now: &[f64; STAGES.len()], before: &[f64; STAGES.len()]| {
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
fn median(parts: &[Marks], clock_ns: f64) -> Costs {
    let packets: u64 = parts.iter().map(|part| part.packets).sum();
    let per_packet = |count: fn(&Marks) -> u64| {
        parts.iter().map(count).sum::<u64>() as f64 / packets.max(1) as f64
    };
    let of = |stages: fn(&Marks) -> &[f64; STAGES.len()]| {
        std::array::from_fn(|stage| {
            let ns = |part: &Marks| stages(part)[stage] / part.packets.max(1) as f64;
            let mut ns: Vec<f64> = parts.iter().map(ns).collect();
            ns.sort_by(f64::total_cmp);
            ns.get(ns.len() / 2).copied().unwrap_or(0.0)
        })
    };
    Costs {
        packets,
        packet_bytes: per_packet(|part| part.ip_bytes),
        payload_bytes: per_packet(|part| part.payload),
        clock_ns,
        sender: of(|part| &part.sender),
        receiver: of(|part| &part.receiver),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_of_a_lossy_transfer_takes_time() {
        let load = Load {
            bytes: 20_000_000,
            mtu: 1500,
            loss: 0.02,
        };
        let costs = measure(&load).expect("loopback");
        assert!(costs.packets > 10_000, "{costs:?}");
        assert!((1300.0..=1500.0).contains(&costs.packet_bytes), "{costs:?}");
        assert!(costs.payload_bytes < costs.packet_bytes, "{costs:?}");
        let ns = |of: &[f64; STAGES.len()], stage: Stage| of[stage as usize];
        use Stage::*;
        for stage in [Slice, HandOver, Encode, Seal, Send] {
            assert!(ns(&costs.sender, stage) > 0.0, "{stage:?}: {costs:?}");
        }
        for stage in [Receive, Unprotect, Open, Place, Deliver] {
            assert!(ns(&costs.receiver, stage) > 0.0, "{stage:?}: {costs:?}");
        }
        assert_eq!(ns(&costs.receiver, Slice), 0.0);
        let of = &costs.sender;
        let parts = Costs::engine_ns(of) + Costs::kernel_ns(of) + ns(of, Slice);
        assert!((parts - of.iter().sum::<f64>()).abs() < 1e-6);
    }
}
