//! Measures the link on this machine: delay, rate, loss, and the CPU time and lateness of its thread.
//!
//! ```text
//! cargo run --release -p sphinx-link --example accuracy [SECONDS]
//! ```
//!
//! Needs root, or a system where unprivileged user namespaces may open TUN devices.

use std::{
    error::Error,
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use sphinx_link::{
    Depth, LinkConfig, Loss, Rate,
    front::{Front, FrontConfig, FrontCounters},
};
use sphinx_netdev::netns::{Access, enter_user_namespace, probe};

/// UDP payload that makes IPv4 packets of 1500 bytes.
const PAYLOAD: usize = 1472;

fn main() -> Result<(), Box<dyn Error>> {
    let seconds = std::env::args()
        .nth(1)
        .map_or(Ok(4), |argument| argument.parse())?;
    let span = Duration::from_secs(seconds);
    if probe()? == Access::UserNamespace {
        enter_user_namespace()?;
    }
    println!(
        "Medians and maxima in ms; late = delivered after the due time; CPU of the link's thread."
    );
    for delay_ms in [0, 1, 5, 50] {
        delay(Duration::from_millis(delay_ms), span)?;
    }
    for megabit in [1, 10, 100, 200, 500, 800] {
        rate(megabit, span)?;
    }
    for percent in [0.1, 1.0, 6.0, 20.0] {
        loss(percent, span)?;
    }
    for megabit in [200, 500, 800] {
        tcp(megabit, span)?;
    }
    Ok(())
}

fn start(link: LinkConfig) -> Result<Front, Box<dyn Error>> {
    let right_to_left = LinkConfig {
        seed: 2,
        rate: Rate::Unlimited,
        loss: Loss::None,
        ..link.clone()
    };
    Ok(Front::start(FrontConfig {
        left_to_right: link,
        right_to_left,
        ..FrontConfig::default()
    })?)
}

/// A connected socket at each end.
fn sockets(front: &Front) -> Result<(UdpSocket, UdpSocket), Box<dyn Error>> {
    let left = front
        .left()
        .run(|| UdpSocket::bind((front.left().ipv4(), 0)))??;
    let right = front
        .right()
        .run(|| UdpSocket::bind((front.right().ipv4(), 0)))??;
    left.connect(right.local_addr()?)?;
    right.connect(left.local_addr()?)?;
    Ok((left, right))
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

fn report(counters: &FrontCounters, span: Duration) -> String {
    let late = &counters.lateness;
    format!(
        "late {:.3} p99 {:.2} max {:.2}, CPU {:.0} %",
        ms(late.mean()),
        ms(late.quantile(0.99)),
        ms(late.max()),
        100.0 * counters.cpu.as_secs_f64() / span.as_secs_f64()
    )
}

/// One-way times of single packets, 2 ms apart.
fn delay(delay: Duration, span: Duration) -> Result<(), Box<dyn Error>> {
    let front = start(LinkConfig {
        delay,
        ..LinkConfig::default()
    })?;
    let (left, right) = sockets(&front)?;
    let count = (span.as_millis() / 2) as usize;
    let origin = Instant::now();
    let receiver = thread::spawn(move || {
        let mut buffer = [0; 64];
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            right.recv(&mut buffer)?;
            let sent = u64::from_le_bytes(buffer[..8].try_into().unwrap_or_default());
            times.push(origin.elapsed() - Duration::from_nanos(sent));
        }
        times.sort_unstable();
        std::io::Result::Ok(times)
    });
    for _ in 0..count {
        left.send(&(origin.elapsed().as_nanos() as u64).to_le_bytes())?;
        thread::sleep(Duration::from_millis(2));
    }
    let times = receiver.join().map_err(|_| "the receiver panicked")??;
    println!(
        "delay {:>4.0} ms: least +{:.3}, median +{:.3}, p99 +{:.3}; {}",
        ms(delay),
        ms(times[0] - delay),
        ms(times[count / 2] - delay),
        ms(times[count * 99 / 100] - delay),
        report(&front.stop()?, span)
    );
    Ok(())
}

/// Sends UDP packets at a rate until the time is over.
fn flood(socket: &UdpSocket, megabit: u64, span: Duration) -> std::io::Result<()> {
    let start = Instant::now();
    let gap = Duration::from_nanos(1500 * 8 * 1000 / megabit);
    let mut sent = 0;
    while start.elapsed() < span {
        let due = start.elapsed().as_nanos() / gap.as_nanos();
        while sent < due {
            socket.send(&[0; PAYLOAD])?;
            sent += 1;
        }
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// The rate at which packets come out while more are offered than fit.
fn rate(megabit: u64, span: Duration) -> Result<(), Box<dyn Error>> {
    let front = start(LinkConfig {
        rate: Rate::Constant(megabit * 1_000_000),
        queue: Depth::Time(Duration::from_millis(50)),
        ..LinkConfig::default()
    })?;
    let (left, _right) = sockets(&front)?;
    let sender = thread::spawn(move || flood(&left, megabit * 11 / 10 + 1, span));
    let warm = span / 4;
    thread::sleep(warm);
    let (first, begin) = (front.counters(), Instant::now());
    thread::sleep(span / 2);
    let (last, end) = (front.counters(), Instant::now());
    sender.join().map_err(|_| "the sender panicked")??;
    let bytes = last.left_to_right.delivered_bytes - first.left_to_right.delivered_bytes;
    let measured = bytes as f64 * 8e-6 / (end - begin).as_secs_f64();
    println!(
        "rate {megabit:>4} Mbit/s: {measured:.2} ({:+.2} %), {} dropped at the queue; {}",
        100.0 * (measured / megabit as f64 - 1.0),
        last.left_to_right.dropped_queue,
        report(&front.stop()?, span)
    );
    Ok(())
}

/// The share of packets lost.
fn loss(percent: f64, span: Duration) -> Result<(), Box<dyn Error>> {
    let probability = percent / 100.0;
    let front = start(LinkConfig {
        seed: 1,
        loss: Loss::Bernoulli(probability),
        ..LinkConfig::default()
    })?;
    let (left, _right) = sockets(&front)?;
    flood(&left, 100, span)?;
    thread::sleep(Duration::from_millis(100));
    let counters = front.stop()?;
    let sent = counters.left_to_right.sent_packets as f64;
    let lost = counters.left_to_right.dropped_loss as f64;
    let deviation = (sent * probability * (1.0 - probability)).sqrt();
    println!(
        "loss {percent:>4.1} %: {:.3} % of {sent} packets ({:+.1} standard deviations)",
        100.0 * lost / sent,
        (lost - sent * probability) / deviation
    );
    Ok(())
}

/// Goodput of kernel TCP, whose receiver's work is done inside the link's thread.
fn tcp(megabit: u64, span: Duration) -> Result<(), Box<dyn Error>> {
    let front = start(LinkConfig {
        rate: Rate::Constant(megabit * 1_000_000),
        queue: Depth::Time(Duration::from_millis(10)),
        delay: Duration::from_millis(5),
        ..LinkConfig::default()
    })?;
    let address = (front.right().ipv4(), 5001);
    let listener = front.right().run(|| TcpListener::bind(address))??;
    let receiver = thread::spawn(move || -> std::io::Result<u64> {
        let (mut stream, _) = listener.accept()?;
        let mut buffer = vec![0; 1 << 18];
        let mut bytes = 0;
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(bytes),
                count => bytes += count as u64,
            }
        }
    });
    let mut stream = front.left().run(|| TcpStream::connect(address))??;
    let start = Instant::now();
    let data = vec![0; 1 << 18];
    while start.elapsed() < span {
        stream.write_all(&data)?;
    }
    drop(stream);
    let bytes = receiver.join().map_err(|_| "the receiver panicked")??;
    let elapsed = start.elapsed();
    println!(
        "tcp  {megabit:>4} Mbit/s: goodput {:.1} of {:.1} Mbit/s; {}",
        bytes as f64 * 8e-6 / elapsed.as_secs_f64(),
        megabit as f64 * 1448.0 / 1500.0,
        report(&front.stop()?, elapsed)
    );
    Ok(())
}
