//! What is kept of streams that are open and say nothing. A test of its own, because it counts what the process allocates.

use std::alloc::System;
use std::time::{Duration, Instant};

use sphinx_transport::{Options, RecvStream, SendStream, Server, Service, Session, connect};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const STREAMS: usize = 10_000;
/// Pools of buffers fill and empty meanwhile: the least of so many rounds, behind a first one that does not count.
const ROUNDS: usize = 2;
/// What an end may keep of an idle stream, with the handle that its application holds: as much as the endpoint's budget counts.
const BYTES_MAX: f64 = 512.0;

/// Bytes that the process holds, once that has not changed for a while: what is on its way has arrived and is acknowledged then.
fn held() -> f64 {
    const QUIET: Duration = Duration::from_millis(300);
    let now = || {
        let stats = ALLOCATOR.stats();
        // What is reallocated is counted in both.
        stats.bytes_allocated as i64 - stats.bytes_deallocated as i64
    };
    let begin = Instant::now();
    let (mut last, mut since) = (now(), begin);
    while since.elapsed() < QUIET && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
        let bytes = now();
        // A packet or two come and go even then.
        if bytes.abs_diff(last) > 4096 {
            (last, since) = (bytes, Instant::now());
        }
    }
    now() as f64
}

/// Opens streams, each of which says something that is read.
fn open(client: &Session, server: &Session, ends: &mut Vec<(SendStream, RecvStream)>) {
    let mut buf = [0; 100];
    for _ in 0..STREAMS {
        let mut sender = client.open_uni().unwrap();
        sender.write_all(b"hello").unwrap();
        sender.flush().unwrap();
        let mut receiver = server.accept_uni().unwrap();
        let mut read = 0;
        while read < 5 {
            read += receiver.read(&mut buf).unwrap();
        }
        ends.push((sender, receiver));
    }
}

/// Ends all these streams.
fn close(ends: &mut Vec<(SendStream, RecvStream)>) {
    for (sender, _) in ends.iter_mut() {
        sender.finish().unwrap();
    }
    for (_, mut receiver) in ends.drain(..) {
        assert_eq!(receiver.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn an_idle_stream_costs_half_a_kilobyte() {
    let options = Options::default();
    let listen = ([127, 0, 0, 1], 0).into();
    let server = Server::bind(listen, Service::Application, &options).unwrap();
    let ticket = server.ticket(&["127.0.0.1".to_owned()]).unwrap();
    let client = connect(&ticket, Service::Application, &options).unwrap();
    let accepted = server.accept(None).unwrap().unwrap();
    let handles = (size_of::<SendStream>(), size_of::<RecvStream>());
    // The memory of the handles is here before, and stays.
    let mut ends = Vec::with_capacity(STREAMS);
    let mut least = f64::INFINITY;
    for round in 0..=ROUNDS {
        open(&client, &accepted, &mut ends);
        let many = held();
        close(&mut ends);
        let both = (many - held()) / STREAMS as f64 + (handles.0 + handles.1) as f64;
        let each = both / 2.0;
        println!("{each:.0} bytes for an end of an idle stream, handles of {handles:?} included");
        if round > 0 {
            least = least.min(each);
        }
    }
    assert!(least <= BYTES_MAX, "{least:.0} bytes");
}
