//! Sends bytes, then blocks, across the link emulator and prints what came of it.
//!
//! ```text
//! cargo run --release -p sphinx-transport --example link -- [LOSS %] [RTT ms] [MB] [Mbit/s]
//! ```
//!
//! Needs root, or a system where unprivileged user namespaces may open TUN devices.

use std::error::Error;
use std::time::{Duration, Instant};

use sphinx_link::front::{Front, FrontConfig};
use sphinx_link::{Depth, LinkConfig, Loss, Rate};
use sphinx_netdev::netns::{Access, enter_user_namespace, probe};
use sphinx_transport::{Options, Profile, Server, Service, connect};

fn main() -> Result<(), Box<dyn Error>> {
    let argument = |n: usize, default: f64| {
        std::env::args()
            .nth(n)
            .map_or(Ok(default), |text| text.parse())
    };
    let loss = argument(1, 6.0)? / 100.0;
    let rtt = Duration::from_secs_f64(argument(2, 10.0)? / 1e3);
    let bytes = (argument(3, 50.0)? * 1e6) as usize;
    let rate = (argument(4, 200.0)? * 1e6) as u64;
    if probe()? == Access::UserNamespace {
        enter_user_namespace()?;
    }
    let link = LinkConfig {
        rate: Rate::Constant(rate),
        queue: Depth::Time(rtt),
        delay: rtt / 2,
        ..LinkConfig::default()
    };
    let front = Front::start(FrontConfig {
        left_to_right: LinkConfig {
            loss: Loss::Bernoulli(loss),
            seed: 1,
            ..link.clone()
        },
        right_to_left: link,
        ..FrontConfig::default()
    })?;
    bulk(&front, bytes, rate as f64 * (1.0 - loss))?;
    blocks(&front, 250)?;
    Ok(())
}

fn bulk(front: &Front, bytes: usize, ceiling: f64) -> Result<(), Box<dyn Error>> {
    let options = Options {
        profile: Profile::Bulk,
        ..Options::default()
    };
    let listen = (front.right().ipv4(), 4790).into();
    let server = front
        .right()
        .run(|| Server::bind(listen, Service::Application, &options))??;
    let ticket = server.ticket(&[listen.ip().to_string()])?;
    let receiver = std::thread::spawn(move || {
        let session = server.accept(None)?.ok_or("no session")?;
        let mut stream = session.accept_uni()?;
        let mut buf = vec![0; 1 << 16];
        let mut total = 0;
        loop {
            let n = stream.read(&mut buf)?;
            if n == 0 {
                break;
            }
            total += n;
        }
        let at = Instant::now();
        session.close(0, "");
        Ok::<_, Box<dyn Error + Send + Sync>>((total, at))
    });
    let began = Instant::now();
    let session = front
        .left()
        .run(|| connect(&ticket, Service::Application, &options))??;
    let connected = began.elapsed();
    let mut stream = session.open_uni()?;
    let data = vec![7; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let n = left.min(data.len());
        stream.write_all(&data[..n])?;
        left -= n;
    }
    stream.finish()?;
    let (total, at) = receiver
        .join()
        .expect("no panic")
        .map_err(|e| e.to_string())?;
    let seconds = (at - began).as_secs_f64();
    let goodput = total as f64 * 8.0 / seconds;
    session.close(0, "");
    let stats = session.stats();
    let counters = front.counters().left_to_right;
    println!(
        "bulk: {total} bytes in {seconds:.3} s (connected after {connected:?}): {:.1} Mbit/s, {:.3} of rate(1-p); \
         wire {:.4}, times (1-p) {:.4}; queue drops {}",
        goodput / 1e6,
        goodput / ceiling,
        stats.wire_bytes_sent as f64 / total as f64,
        counters.offered_bytes as f64 / total as f64
            * (1.0 - stats.losses_sent.map_or(0.0, |losses| losses.mean)),
        counters.dropped_queue,
    );
    println!("      {stats:?}");
    Ok(())
}

fn blocks(front: &Front, count: u32) -> Result<(), Box<dyn Error>> {
    const BLOCK: usize = 100_000;
    const INTERVAL: Duration = Duration::from_millis(40);
    let options = Options {
        profile: Profile::Latency,
        ..Options::default()
    };
    let listen = (front.right().ipv4(), 4791).into();
    let server = front
        .right()
        .run(|| Server::bind(listen, Service::Application, &options))??;
    let ticket = server.ticket(&[listen.ip().to_string()])?;
    let receiver = std::thread::spawn(move || {
        let session = server.accept(None)?.ok_or("no session")?;
        let mut stream = session.accept_uni()?;
        let mut times = Vec::new();
        let mut buf = vec![0; BLOCK];
        for _ in 0..count {
            let mut filled = 0;
            while filled < BLOCK {
                filled += stream.read(&mut buf[filled..])?;
            }
            times.push(Instant::now());
        }
        session.close(0, "");
        Ok::<_, Box<dyn Error + Send + Sync>>(times)
    });
    let session = front
        .left()
        .run(|| connect(&ticket, Service::Application, &options))??;
    let mut stream = session.open_uni()?;
    let data = vec![7; BLOCK];
    let first = Instant::now() + INTERVAL;
    for n in 0..count {
        let due = first + INTERVAL * n;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        stream.write_all(&data)?;
        stream.flush()?;
    }
    let times = receiver
        .join()
        .expect("no panic")
        .map_err(|e| e.to_string())?;
    let stats = session.stats();
    let mut ms: Vec<f64> = times
        .iter()
        .enumerate()
        .skip(5)
        .map(|(n, at)| (*at - (first + INTERVAL * n as u32)).as_secs_f64() * 1e3)
        .collect();
    ms.sort_by(f64::total_cmp);
    println!(
        "blocks: mean {:.2} ms, p50 {:.2}, p99 {:.2}, max {:.2}; second rounds {} of {}; first {:?}",
        ms.iter().sum::<f64>() / ms.len() as f64,
        ms[ms.len() / 2],
        ms[ms.len() * 99 / 100],
        ms[ms.len() - 1],
        stats.blocks_second_round,
        stats.blocks,
        times[0] - first,
    );
    println!("      {stats:?}");
    Ok(())
}
