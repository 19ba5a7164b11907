//! Objects that a host fetches, each over a connection of its own, as browsers do first: its handshake, its request and what acknowledges the answer go against the answer.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use super::{
    Group,
    run::{BLOCK_BYTES, REST, Received, send_bytes},
};
use crate::path::{
    bed::{Bed, left_address, right_address},
    transfer::{Until, accept, connect, listen},
};

/// When the first object is fetched: what else there is has begun by then.
const FIRST: Duration = Duration::from_secs(2);
/// A request for a page, with a cookie or two.
const REQUEST: [u8; 400] = [b'?'; 400];

/// The flows of one group from `begin` until `end`: each fetches an object every `interval`, or when it has the one before.
pub(super) fn run(
    bed: &Bed,
    (group, upload): (&Group, bool),
    (bytes, interval): (u64, Duration),
    (begin, end): (Instant, Instant),
    stop: &AtomicBool,
) -> io::Result<Received> {
    let (server, client, mut address) = match group.is_upload(upload) {
        true => (&bed.right, &bed.left, right_address()),
        false => (&bed.left, &bed.right, left_address()),
    };
    address.set_port(group.port);
    let listener = listen(server, address, &group.congestion)?;
    let until = Until {
        deadline: end + REST,
        stop,
    };
    let fetch = || {
        let stream = connect(client, address, &group.congestion, until)?;
        let mut stream = stream.ok_or(io::ErrorKind::TimedOut)?;
        until.retry(|| stream.write_all(&REQUEST))?;
        read(&mut stream, until)
    };
    let fetch_all = || {
        let mut received = Received::default();
        let mut due = begin + FIRST;
        while due < end {
            until.wait(due);
            if until.is_over() {
                break;
            }
            let asked = Instant::now();
            received.asked += 1;
            // A request that fails counts as an object that has not arrived.
            let fetched = fetch().unwrap_or(0);
            if Instant::now() <= end {
                received.bytes += fetched;
            }
            if fetched == bytes {
                received.delays.push(asked.elapsed());
            }
            due = (due + interval).max(Instant::now());
        }
        received
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..group.flows).map(|_| scope.spawn(fetch_all)).collect();
        let mut all = Received::default();
        // The fetching threads end soon after the time is over, and without them `accept` would wait for nobody.
        while !until.is_over() && clients.iter().any(|client| !client.is_finished()) {
            let soon = Until {
                deadline: Instant::now() + Duration::from_millis(20),
                stop,
            };
            if let Some(stream) = accept(&listener, soon)? {
                scope.spawn(move || serve(stream, bytes, until));
            }
        }
        for client in clients {
            let received = client
                .join()
                .map_err(|_| io::Error::other("a thread panicked"))?;
            all.asked += received.asked;
            all.flow_bytes.push(received.bytes);
            all.bytes += received.bytes;
            all.delays.extend(received.delays);
        }
        Ok(all)
    })
}

/// Answers a request.
fn serve(mut stream: TcpStream, bytes: u64, until: Until<'_>) {
    let mut request = REQUEST;
    let Ok(Some(())) = until.retry(|| stream.read_exact(&mut request)) else {
        return;
    };
    if !send_bytes(&stream, bytes, until) {
        return;
    }
    // Fails if the other end has closed already.
    let _ = stream.shutdown(Shutdown::Write);
}

/// Reads to the end of the stream: how much that was.
fn read(stream: &mut TcpStream, until: Until<'_>) -> io::Result<u64> {
    let mut buffer = [0; BLOCK_BYTES];
    let mut total = 0;
    while let Some(read @ 1..) = until.retry(|| stream.read(&mut buffer))? {
        total += read as u64;
    }
    Ok(total)
}
