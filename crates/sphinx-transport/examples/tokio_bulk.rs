//! Bulk by tasks beside bulk by threads: one session, streams in turn by one and by the other (`make bench-async`).
//!
//! ```text
//! cargo run --release -p sphinx-transport --features tokio --example tokio_bulk -- [--veth] [MB PER STREAM] [ROUNDS]
//! ```
//!
//! The ends meet on loopback, or over a veth pair between two namespaces (`--veth`; root, iproute2).

use std::error::Error;
use std::io;
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Instant;

use sphinx_netdev::netns::Namespace;
use sphinx_transport::asynchronous::Session as TaskSession;
use sphinx_transport::{Options, Server, Service, Session, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

/// What is written and read at a time.
const BUFFER: usize = 256 << 10;
/// Ends of the veth pair.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 2, 1), Ipv4Addr::new(10, 77, 2, 2)];

fn main() -> Result<(), Box<dyn Error>> {
    let (flags, numbers): (Vec<_>, Vec<_>) = std::env::args()
        .skip(1)
        .partition(|argument| argument == "--veth");
    let argument = |n: usize, default: u64| {
        let text = numbers.get(n);
        text.map_or(Ok(default), |text| text.parse())
    };
    let (megabytes, rounds) = (argument(0, 1000)?, argument(1, 9)?);
    let bytes = megabytes * 1_000_000;
    let (ends, address) = match flags.is_empty() {
        true => (
            [Namespace::current()?, Namespace::current()?],
            Ipv4Addr::LOCALHOST,
        ),
        false => (joined()?, ADDRESSES[1]),
    };
    let options = Options::default();
    // Threads of an endpoint are in the namespace of the one that makes it.
    let bind = || Server::bind((address, 0).into(), Service::Application, &options);
    let server = ends[1].run(bind)??;
    let ticket = server.ticket(&[address.to_string()])?;
    let client = ends[0].run(|| connect(&ticket, Service::Application, &options))??;
    let accepted = server.accept(None)?.ok_or("waits without limit")?;
    // One for each end, as between two machines, and as many workers as there are threads otherwise.
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).build()
    };
    let runtimes = [runtime()?, runtime()?];

    // The first transfers find the rate, and are not measured.
    by_threads(&client, &accepted, bytes)?;
    by_tasks(&runtimes, &client, &accepted, bytes)?;
    let (mut threads, mut tasks) = (Vec::new(), Vec::new());
    println!("{megabytes} MB per stream, Gbit/s\nround  threads  tasks");
    for round in 0..rounds {
        // Both take turns at going first, so that the order favours neither.
        if round % 2 == 0 {
            threads.push(by_threads(&client, &accepted, bytes)?);
            tasks.push(by_tasks(&runtimes, &client, &accepted, bytes)?);
        } else {
            tasks.push(by_tasks(&runtimes, &client, &accepted, bytes)?);
            threads.push(by_threads(&client, &accepted, bytes)?);
        }
        if let (Some(threads), Some(tasks)) = (threads.last(), tasks.last()) {
            println!("{:>5}  {threads:>7.2}  {tasks:>5.2}", round + 1);
        }
    }
    let (threads, tasks) = (median(threads), median(tasks));
    println!("median {threads:>6.2}  {tasks:>5.2}");
    println!("tasks / threads: {:.3}", tasks / threads);
    client.close(0, "");
    Ok(())
}

/// Two namespaces that a veth pair joins, with [`ADDRESSES`]. They go with the process.
fn joined() -> io::Result<[Namespace; 2]> {
    let ends = [Namespace::new()?, Namespace::new()?];
    let link = || {
        // A thread in a namespace names it.
        let other = rustix::thread::gettid().as_raw_nonzero();
        let pair = format!("link add veth0 type veth peer name veth0 netns {other}");
        ends[0].run(|| ip(&pair))?
    };
    ends[1].run(link)??;
    for (end, address) in ends.iter().zip(ADDRESSES) {
        end.run(|| ip(&format!("address add {address}/24 dev veth0")))??;
        end.run(|| ip("link set veth0 up"))??;
    }
    Ok(ends)
}

/// Runs `ip` in the namespace of this thread.
fn ip(arguments: &str) -> io::Result<()> {
    let status = Command::new("ip").args(arguments.split(' ')).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("ip {arguments}: {status}"))),
    }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Gbit/s since `begin`.
fn rate(bytes: u64, begin: Instant) -> f64 {
    bytes as f64 * 8e-9 / begin.elapsed().as_secs_f64()
}

fn by_threads(client: &Session, server: &Session, bytes: u64) -> Result<f64, Box<dyn Error>> {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut stream = server.accept_uni()?;
            let (mut buf, mut all) = (vec![0; BUFFER], 0);
            loop {
                match stream.read(&mut buf)? {
                    0 => return Ok::<u64, sphinx_transport::Error>(all),
                    read => all += read as u64,
                }
            }
        });
        let mut stream = client.open_uni()?;
        let (buf, mut left) = (vec![7; BUFFER], bytes);
        while left > 0 {
            let len = left.min(BUFFER as u64);
            stream.write_all(&buf[..len as usize])?;
            left -= len;
        }
        stream.wait_delivered()?;
        let read = reading.join().expect("the reader does not panic")?;
        assert_eq!(read, bytes);
        Ok(rate(bytes, begin))
    })
}

fn by_tasks(
    [writer, reader]: &[Runtime; 2],
    client: &Session,
    server: &Session,
    bytes: u64,
) -> Result<f64, Box<dyn Error>> {
    let (client, server) = (client.clone(), server.clone());
    let begin = Instant::now();
    let reading = reader.spawn(async move {
        let mut stream = TaskSession::from(server).accept_uni().await?;
        let (mut buf, mut all) = (vec![0; BUFFER], 0);
        loop {
            match AsyncReadExt::read(&mut stream, &mut buf).await? {
                0 => return Ok::<u64, io::Error>(all),
                read => all += read as u64,
            }
        }
    });
    let writing = writer.spawn(async move {
        let mut stream = TaskSession::from(client).open_uni().await?;
        let (buf, mut left) = (vec![7; BUFFER], bytes);
        while left > 0 {
            let len = left.min(BUFFER as u64);
            AsyncWriteExt::write_all(&mut stream, &buf[..len as usize]).await?;
            left -= len;
        }
        stream.wait_delivered().await?;
        Ok::<_, io::Error>(())
    });
    writer.block_on(writing)??;
    let read = reader.block_on(reading)??;
    assert_eq!(read, bytes);
    Ok(rate(bytes, begin))
}
