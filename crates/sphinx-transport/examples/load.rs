//! Many sessions on one server, and garbage beside them, on loopback: what does it cost?
//!
//! ```text
//! cargo run --release -p sphinx-transport --example load -- [SESSIONS] [kB PER SESSION] [GARBAGE/s]
//! ```

use std::error::Error;
use std::fs;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sphinx_transport::{Cc, Options, Server, Service, connect};

fn main() -> Result<(), Box<dyn Error>> {
    let argument = |n: usize, default: u64| {
        std::env::args()
            .nth(n)
            .map_or(Ok(default), |text| text.parse())
    };
    let (sessions, kb) = (argument(1, 200)?, argument(2, 500)?);
    let garbage = argument(3, 100_000)?;
    sessions_at_once(sessions, kb as usize * 1000)?;
    println!("garbage at {garbage}/s beside one session at 100 Mbit/s, 3 s each:");
    for (what, first) in [
        ("none", None),
        ("data plane", Some(0x80)),
        ("QUIC short", Some(0x40)),
        ("QUIC Initial", Some(0xc3)),
    ] {
        one_beside_garbage(what, first, garbage)?;
    }
    Ok(())
}

/// CPU time of a thread of this process, by name, summed over all of that name.
fn cpu(name: &str) -> Duration {
    let tasks = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let ticks = tasks.filter_map(|task| {
        let stat = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let comm = fs::read_to_string(task.path().join("comm")).ok()?;
        (comm.trim() == name)
            .then(|| stat.split(' ').next()?.parse::<u64>().ok())
            .flatten()
    });
    Duration::from_nanos(ticks.sum())
}

fn sessions_at_once(sessions: u64, bytes: usize) -> Result<(), Box<dyn Error>> {
    let options = Options::default();
    let server = Server::bind(([127, 0, 0, 1], 0).into(), Service::Application, &options)?;
    let ticket = server.ticket(&["127.0.0.1".to_owned()])?;
    let begin = Instant::now();
    let slowest = AtomicU64::new(0);
    let (idle, moved) = std::thread::scope(|scope| {
        for _ in 0..sessions {
            scope.spawn(|| {
                let session = connect(&ticket, Service::Application, &options).expect("connects");
                // All idle for a while, then all at once.
                std::thread::sleep(Duration::from_secs(6).saturating_sub(begin.elapsed()));
                let begin = Instant::now();
                let mut stream = session.open_stream().expect("open");
                stream.write_all(&vec![7; bytes]).expect("writes");
                stream.wait_delivered().expect("delivered");
                slowest.fetch_max(begin.elapsed().as_millis() as u64, Ordering::Relaxed);
                session.close(0, "");
            });
        }
        for _ in 0..sessions {
            let session = server.accept(None).expect("accepts").expect("no limit");
            scope.spawn(move || {
                let mut stream = session.accept_stream().expect("a stream");
                let mut buf = vec![0; 1 << 16];
                while stream.read(&mut buf).is_ok_and(|n| n > 0) {}
                while session.closed().is_none() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
        println!("{sessions} sessions after {:?}", begin.elapsed());
        std::thread::sleep(Duration::from_secs(3).saturating_sub(begin.elapsed()));
        let before = cpu("sphinx-engine");
        std::thread::sleep(Duration::from_secs(2));
        let idle = cpu("sphinx-engine").saturating_sub(before);
        (idle, Instant::now())
    });
    println!(
        "  idle: {:.1} % of one core, both ends",
        idle.as_secs_f64() / 2.0 * 100.0
    );
    println!(
        "  {bytes} bytes each at once: slowest {} ms, all over after {:?}",
        slowest.into_inner(),
        moved.elapsed(),
    );
    Ok(())
}

fn one_beside_garbage(what: &str, first: Option<u8>, rate: u64) -> Result<(), Box<dyn Error>> {
    let options = Options {
        cc: Cc::Fixed(12_500_000),
        ..Options::default()
    };
    let server = Server::bind(([127, 0, 0, 1], 0).into(), Service::Application, &options)?;
    let ticket = server.ticket(&["127.0.0.1".to_owned()])?;
    let target = server.local_addr();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        let sender = scope.spawn(|| -> u64 {
            let Some(first) = first else { return 0 };
            let socket = UdpSocket::bind(("127.0.0.1", 0)).expect("a socket");
            let (begin, mut sent) = (Instant::now(), 0);
            let mut packet = [0x5a; 1200];
            packet[0] = first;
            // Well formed for QUIC up to the encryption: version, lengths of connection ids, token
            // and packet.
            packet[1..6].copy_from_slice(&[0, 0, 0, 1, 8]);
            packet[14..18].copy_from_slice(&[0, 0, 0x44, 0x9e]);
            while !over.load(Ordering::Relaxed) {
                let due = (begin.elapsed().as_secs_f64() * rate as f64) as u64;
                while sent < due {
                    packet[6..14].copy_from_slice(&sent.to_be_bytes());
                    // Loopback may be full for a moment.
                    let _ = socket.send_to(&packet, target);
                    sent += 1;
                }
                std::thread::sleep(Duration::from_micros(500));
            }
            sent
        });
        let client = connect(&ticket, Service::Application, &options)?;
        let session = server.accept(None)?.ok_or("no session")?;
        let reader = session.clone();
        scope.spawn(move || {
            let mut stream = reader.accept_stream().expect("a stream");
            let mut buf = vec![0; 1 << 16];
            while stream.read(&mut buf).is_ok_and(|n| n > 0) {}
        });
        let mut stream = client.open_stream()?;
        let data = vec![7; 1 << 16];
        let (begin, before) = (Instant::now(), cpu("sphinx-engine"));
        while begin.elapsed() < Duration::from_secs(3) {
            stream.write_all(&data)?;
        }
        let used = cpu("sphinx-engine").saturating_sub(before);
        let stats = session.stats();
        over.store(true, Ordering::Relaxed);
        client.close(0, "");
        let sent = sender.join().expect("no panic");
        println!(
            "  {what}: {:.1} Mbit/s, engines {:.1} % of one core, {} invalid of {sent} sent, RTT {:?}",
            stats.bytes_received as f64 * 8.0 / 3e6,
            used.as_secs_f64() / 3.0 * 100.0,
            stats.invalid_datagrams,
            client.stats().rtt,
        );
        Ok(())
    })
}
