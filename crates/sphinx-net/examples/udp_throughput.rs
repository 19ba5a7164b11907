//! Measures the UDP back end over loopback: datagrams per second, and processor time per datagram
//! of the sending and of the receiving thread, with and without segmentation offload and batches.
//!
//! Usage: `cargo run --release -p sphinx-net --example udp_throughput -- [SECONDS] [BYTES]`
//! (seconds per row, 1 by default; bytes per datagram, 1200 by default).

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use sphinx_net::udp::{UdpConfig, UdpIo};
use sphinx_net::{Counters, Destination, Ecn, Interest, PacketIo, PacketRx, PacketTx};

/// How the datagrams are sent and received.
struct Mode {
    name: &'static str,
    gso: bool,
    gro: bool,
    /// Datagrams queued before each flush.
    burst: usize,
    recv_batch: usize,
}

const MODES: [Mode; 4] = [
    Mode {
        name: "one by one",
        gso: false,
        gro: false,
        burst: 1,
        recv_batch: 1,
    },
    Mode {
        name: "batches of 32",
        gso: false,
        gro: false,
        burst: 32,
        recv_batch: 32,
    },
    Mode {
        name: "GSO, GRO, bursts of 32",
        gso: true,
        gro: true,
        burst: 32,
        recv_batch: 16,
    },
    Mode {
        name: "GSO, GRO, bursts of 500",
        gso: true,
        gro: true,
        burst: 500,
        recv_batch: 16,
    },
];

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let seconds = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(1.0);
    let len = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(1200);
    println!("datagrams of {len} bytes; rates in thousands per second, cpu in ns per datagram");
    println!("| mode | sent | received | lost % | send cpu | receive cpu | per send call |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for mode in &MODES {
        measure(mode, Duration::from_secs_f64(seconds), len)?;
    }
    Ok(())
}

fn measure(mode: &Mode, time: Duration, len: usize) -> io::Result<()> {
    let bind = ([127, 0, 0, 1], 0).into();
    let (gso, gro, recv_batch) = (mode.gso, mode.gro, mode.recv_batch);
    let config = UdpConfig {
        gso,
        gro,
        recv_batch,
        ..UdpConfig::new(bind)
    };
    let mut sender = UdpIo::open(&config)?;
    let mut receiver = UdpIo::open(&config)?;
    let remote = receiver.local_addr();
    let waker = receiver.waker();
    let done = AtomicBool::new(false);
    let (sent, received) = std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&mut receiver, &done));
        let sent = send(
            &mut sender,
            &Destination {
                remote,
                local_ip: None,
                ecn: Ecn::Ect0,
            },
            mode,
            time,
            len,
        );
        done.store(true, Ordering::Release);
        waker.wake();
        (sent, receiving.join())
    });
    let sent = sent?;
    let received = received.map_err(|_| io::Error::other("the receiving thread panicked"))??;
    let (out, back) = (
        sent.counters.send_datagrams as f64,
        received.counters.recv_datagrams as f64,
    );
    println!(
        "| {} | {:.0} | {:.0} | {:.1} | {:.0} | {:.0} | {:.1} |",
        mode.name,
        out / sent.seconds / 1e3,
        back / sent.seconds / 1e3,
        100.0 * (1.0 - back / out),
        sent.cpu_ns / out,
        received.cpu_ns / back,
        out / sent.counters.send_calls as f64,
    );
    Ok(())
}

/// What one thread did.
struct Done {
    counters: Counters,
    seconds: f64,
    cpu_ns: f64,
}

fn send(
    io: &mut UdpIo,
    to: &Destination,
    mode: &Mode,
    time: Duration,
    len: usize,
) -> io::Result<Done> {
    let (start, cpu_start) = (Instant::now(), cpu_ns());
    let mut dropped = Vec::new();
    while start.elapsed() < time {
        for number in 0..mode.burst {
            let Some(frame) = io.tx().frame(to, len) else {
                break;
            };
            frame.fill(number as u8);
        }
        while !io.tx().flush(&mut dropped)? {
            io.wait(Interest::ReadWrite, Some(1_000_000_000))?;
        }
        dropped.clear();
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Done {
        counters: io.counters(),
        seconds,
        cpu_ns: cpu_ns() - cpu_start,
    })
}

fn receive(io: &mut UdpIo, done: &AtomicBool) -> io::Result<Done> {
    let (start, cpu_start) = (Instant::now(), cpu_ns());
    let mut sum = 0u64;
    loop {
        let count = io.rx().recv()?;
        for index in 0..count {
            if let Some(mut received) = io.rx().received(index) {
                sum += received
                    .segments()
                    .map(|segment| u64::from(segment[0]))
                    .sum::<u64>();
            }
        }
        if count == 0 {
            if done.load(Ordering::Acquire) {
                break;
            }
            io.wait(Interest::Read, Some(1_000_000_000))?;
        }
    }
    std::hint::black_box(sum);
    let seconds = start.elapsed().as_secs_f64();
    Ok(Done {
        counters: io.counters(),
        seconds,
        cpu_ns: cpu_ns() - cpu_start,
    })
}

/// Processor time of this thread in nanoseconds.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
