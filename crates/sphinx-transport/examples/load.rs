//! Many sessions on one server, on loopback: what do they cost?
//!
//! ```text
//! cargo run --release -p sphinx-transport --example load -- [SESSIONS] [kB PER SESSION]
//! ```

use std::error::Error;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sphinx_transport::{Options, Server, Service, connect};

fn main() -> Result<(), Box<dyn Error>> {
    let argument = |n: usize, default: u64| {
        std::env::args()
            .nth(n)
            .map_or(Ok(default), |text| text.parse())
    };
    let (sessions, kb) = (argument(1, 200)?, argument(2, 500)?);
    sessions_at_once(sessions, kb as usize * 1000)
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
                let mut stream = session.open_uni().expect("open");
                stream.write_all(&vec![7; bytes]).expect("writes");
                stream.wait_delivered().expect("delivered");
                slowest.fetch_max(begin.elapsed().as_millis() as u64, Ordering::Relaxed);
                session.close(0, "");
            });
        }
        for _ in 0..sessions {
            let session = server.accept(None).expect("accepts").expect("no limit");
            scope.spawn(move || {
                let mut stream = session.accept_uni().expect("a stream");
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
