//! Bulk by tasks beside bulk by threads: one session on loopback, streams in turn by one and by the other (`make bench-async`).
//!
//! ```text
//! cargo run --release -p sphinx-transport --features tokio --example tokio_bulk -- [MB PER STREAM] [ROUNDS]
//! ```

use std::error::Error;
use std::time::Instant;

use sphinx_transport::asynchronous::Session as TaskSession;
use sphinx_transport::{Options, Server, Service, Session, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

/// What is written and read at a time.
const BUFFER: usize = 256 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let argument = |n: usize, default: u64| {
        let text = std::env::args().nth(n);
        text.map_or(Ok(default), |text| text.parse())
    };
    let (megabytes, rounds) = (argument(1, 1000)?, argument(2, 9)?);
    let bytes = megabytes * 1_000_000;
    let options = Options::default();
    let server = Server::bind(([127, 0, 0, 1], 0).into(), Service::Application, &options)?;
    let ticket = server.ticket(&["127.0.0.1".to_owned()])?;
    let client = connect(&ticket, Service::Application, &options)?;
    let accepted = server.accept(None)?.ok_or("waits without limit")?;
    // As many as there are threads otherwise.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()?;

    // The first ones find the rate.
    by_threads(&client, &accepted, bytes)?;
    by_tasks(&runtime, &client, &accepted, bytes)?;
    let (mut threads, mut tasks) = (Vec::new(), Vec::new());
    println!("{megabytes} MB per stream, Gbit/s\nround  threads  tasks");
    for round in 0..rounds {
        // Whoever goes first has no advantage of it.
        if round % 2 == 0 {
            threads.push(by_threads(&client, &accepted, bytes)?);
            tasks.push(by_tasks(&runtime, &client, &accepted, bytes)?);
        } else {
            tasks.push(by_tasks(&runtime, &client, &accepted, bytes)?);
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
    runtime: &Runtime,
    client: &Session,
    server: &Session,
    bytes: u64,
) -> Result<f64, Box<dyn Error>> {
    let (client, server) = (client.clone(), server.clone());
    let begin = Instant::now();
    let reading = runtime.spawn(async move {
        let mut stream = TaskSession::from(server).accept_uni().await?;
        let (mut buf, mut all) = (vec![0; BUFFER], 0);
        loop {
            match AsyncReadExt::read(&mut stream, &mut buf).await? {
                0 => return Ok::<u64, std::io::Error>(all),
                read => all += read as u64,
            }
        }
    });
    let writing = runtime.spawn(async move {
        let mut stream = TaskSession::from(client).open_uni().await?;
        let (buf, mut left) = (vec![7; BUFFER], bytes);
        while left > 0 {
            let len = left.min(BUFFER as u64);
            AsyncWriteExt::write_all(&mut stream, &buf[..len as usize]).await?;
            left -= len;
        }
        stream.wait_delivered().await?;
        Ok::<_, std::io::Error>(())
    });
    runtime.block_on(writing)??;
    let read = runtime.block_on(reading)??;
    assert_eq!(read, bytes);
    Ok(rate(bytes, begin))
}
