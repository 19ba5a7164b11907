//! Plain UDP: paced datagrams, nothing repaired. What is lost stays lost.

use std::{
    collections::HashMap,
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use sphinx_netdev::usage::monotonic_ns;

use super::{
    PEER_TIMEOUT, Pattern, PeerError, PeerTask, Preamble, Received, Tally,
    tally::{block_head, number_of, schedule_of},
    tried,
};
use crate::Workload;

/// In front of the payload: the head of its block, and where in the block it belongs.
const HEADER_BYTES: usize = 24;
/// Headers of IP and UDP.
const OUTER_BYTES: u64 = 28;
/// Payload of a datagram: with all headers 1400 bytes of IP.
const PAYLOAD_BYTES: u64 = 1400 - OUTER_BYTES - HEADER_BYTES as u64;
/// Datagrams of a block are due in groups that take this long: a sleep for each would be late.
const GROUP: Duration = Duration::from_millis(1);
/// Between two looks at the clock while nothing comes.
const POLL: Duration = Duration::from_millis(20);

/// Bytes of a block, how many there are, and from one to the next; bulk is one block.
fn schedule(task: &PeerTask) -> Result<(u64, u64, Duration), PeerError> {
    match task.workload {
        Workload::Bulk { bytes } => Ok((bytes, 1, Duration::ZERO)),
        Workload::Blocks {
            count,
            bytes,
            interval,
        }
        | Workload::Live {
            count,
            bytes,
            interval,
            ..
        } => Ok((bytes, count, interval)),
        Workload::Video(_) | Workload::Web(_) => Err(PeerError::Cannot("answer requests over UDP")),
    }
}

fn rate(task: &PeerTask) -> Result<u64, PeerError> {
    task.rate
        .ok_or(PeerError::Cannot("carry UDP without a rate"))
}

/// How long `bytes` take at `rate` bits per second.
fn at_rate(bytes: u64, rate: u64) -> Duration {
    let ns = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// Sends one transfer at the task's [`rate`](PeerTask::rate); the payload bytes sent.
///
/// # Errors
///
/// [`PeerError`].
pub(super) fn send(task: &PeerTask) -> Result<u64, PeerError> {
    let (bytes, count, interval) = schedule(task)?;
    let rate = rate(task)?;
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let socket = tried("socket", UdpSocket::bind(any))?;
    tried("connect", socket.connect(task.address))?;
    let pattern = Pattern::new(task.seed);
    let start_ns = monotonic_ns();
    let started = Instant::now();
    let mut sender = Sender {
        socket,
        free_at: started,
        rate,
        sent: 0,
    };
    for number in 0..count {
        let after = interval.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX));
        // What leaves before it is due is early at the receiver.
        thread::sleep((started + after).saturating_duration_since(Instant::now()));
        sender.free_at = sender.free_at.max(started + after);
        let after_ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        let head = block_head(number, start_ns.saturating_add(after_ns));
        let mut at = 0;
        while at < bytes && started.elapsed() < task.limit {
            let payload = pattern.piece(at, PAYLOAD_BYTES.min(bytes - at));
            sender.send(&datagram(head, at, payload))?;
            sender.sent += payload.len() as u64;
            at += payload.len() as u64;
        }
    }
    Ok(sender.sent)
}

fn datagram(head: [u8; 16], at: u64, payload: &[u8]) -> Vec<u8> {
    [&head[..], &at.to_le_bytes(), payload].concat()
}

struct Sender {
    socket: UdpSocket,
    free_at: Instant,
    rate: u64,
    sent: u64,
}

impl Sender {
    fn send(&mut self, datagram: &[u8]) -> Result<(), PeerError> {
        let early = self.free_at.saturating_duration_since(Instant::now());
        if early > GROUP {
            thread::sleep(early);
        }
        self.free_at += at_rate(datagram.len() as u64 + OUTER_BYTES, self.rate);
        match self.socket.send(datagram) {
            Ok(_) => Ok(()),
            // Nobody listens yet or any more, or there is no room: lost like others.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionRefused | ErrorKind::WouldBlock
                ) =>
            {
                Ok(())
            }
            Err(error) => tried("send", Err(error)),
        }
    }
}

/// Receives one transfer: counts what comes, each part of it once, and whole blocks if it is one of blocks.
///
/// # Errors
///
/// [`PeerError`].
pub(super) fn receive(
    task: &PeerTask,
    listening: &dyn Fn(SocketAddr),
) -> Result<Received, PeerError> {
    let (bytes, count, interval) = schedule(task)?;
    let rate = rate(task)?;
    let socket = bind(task.address)?;
    listening(tried("address", socket.local_addr())?);
    let pattern = Pattern::new(task.seed);
    let mut tally: Option<Tally> = None;
    let mut blocks = HashMap::<u64, Parts>::new();
    let mut buffer = [0; 2048];
    let mut until_ns = beginning_until(task);
    while let Some(length) = next(&socket, &mut buffer, until_ns)? {
        let now_ns = monotonic_ns();
        let Some((head, rest)) = buffer[..length].split_first_chunk::<16>() else {
            continue;
        };
        let Some((at, payload)) = rest.split_first_chunk::<8>() else {
            continue;
        };
        let (number, at) = (number_of(*head), u64::from_le_bytes(*at));
        if number >= count || !is_part(bytes, at, payload) || !pattern.matches(at, payload) {
            return Err(PeerError::Corrupt(at));
        }
        let tally = match &mut tally {
            Some(tally) => tally,
            None => {
                let start_ns = schedule_of(*head, interval);
                tally.insert(task.tally(Preamble {
                    start_ns,
                    schedule_ns: start_ns,
                })?)
            }
        };
        let parts = blocks.entry(number).or_insert_with(|| Parts::of(bytes));
        if parts.take(at) {
            tally.add(payload.len() as u64, now_ns);
            let is_bulk = matches!(task.workload, Workload::Bulk { .. });
            if parts.missing == 0 && !is_bulk {
                tally.add_block(*head, now_ns)?;
            }
        }
        let left = (bytes - at).div_ceil(PAYLOAD_BYTES) * (PAYLOAD_BYTES + HEADER_BYTES as u64);
        let left_ns = u64::try_from(at_rate(left, rate).as_nanos()).unwrap_or(u64::MAX);
        until_ns = tally.may_come_until(number, now_ns.saturating_add(left_ns));
        if tally.is_complete() || tally.left(now_ns).is_none() {
            break;
        }
    }
    let tally = tally.ok_or(PeerError::Closed(0))?;
    Ok(tally.close_at_last())
}

/// Until when the first datagram may come.
pub(super) fn beginning_until(task: &PeerTask) -> u64 {
    let patience = u64::try_from((task.limit + PEER_TIMEOUT).as_nanos()).unwrap_or(u64::MAX);
    monotonic_ns().saturating_add(patience)
}

/// A socket for [`next`].
pub(super) fn bind(address: SocketAddr) -> Result<UdpSocket, PeerError> {
    let socket = tried("bind", UdpSocket::bind(address))?;
    tried("listen", socket.set_read_timeout(Some(POLL)))?;
    Ok(socket)
}

/// Receives the next datagram; none if the time has come without one.
pub(super) fn next(
    socket: &UdpSocket,
    buffer: &mut [u8],
    until_ns: u64,
) -> Result<Option<usize>, PeerError> {
    loop {
        match socket.recv(buffer) {
            Ok(length) => return Ok(Some(length)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if monotonic_ns() >= until_ns {
                    return Ok(None);
                }
            }
            Err(error) => return tried("receive", Err(error)),
        }
    }
}

/// Which parts of a block have come, a datagram each.
struct Parts {
    has: Vec<bool>,
    missing: usize,
}

impl Parts {
    /// The parts of a block of this many bytes, none of which has come.
    fn of(bytes: u64) -> Parts {
        let missing = usize::try_from(bytes.div_ceil(PAYLOAD_BYTES)).unwrap_or(usize::MAX);
        Parts {
            has: vec![false; missing],
            missing,
        }
    }

    /// The part that belongs there has come; whether it is the first time.
    fn take(&mut self, at: u64) -> bool {
        let index = usize::try_from(at / PAYLOAD_BYTES).ok();
        let is_new = index
            .and_then(|index| self.has.get_mut(index))
            .is_some_and(|has| !std::mem::replace(has, true));
        self.missing -= usize::from(is_new);
        is_new
    }
}

/// Whether a block of so many bytes has such a part there.
fn is_part(bytes: u64, at: u64, payload: &[u8]) -> bool {
    at < bytes
        && at.is_multiple_of(PAYLOAD_BYTES)
        && payload.len() as u64 == PAYLOAD_BYTES.min(bytes - at)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::task, *};

    fn live(count: u64, bytes: u64, interval: Duration) -> PeerTask {
        PeerTask {
            rate: Some(100_000_000),
            ..task(Workload::Live {
                count,
                bytes,
                interval,
                deadline: Duration::from_millis(50),
            })
        }
    }

    /// Parts of blocks of a schedule that began at `start_ns`, as the sender of a task sends them.
    fn parts(task: &PeerTask, start_ns: u64, parts: &[(u64, u64)]) -> Vec<Vec<u8>> {
        let (bytes, _, interval) = schedule(task).unwrap();
        let pattern = Pattern::new(task.seed);
        let one = |&(number, part): &(u64, u64)| {
            let after_ns = number * interval.as_nanos() as u64;
            let at = part * PAYLOAD_BYTES;
            let payload = pattern.piece(at, PAYLOAD_BYTES.min(bytes - at));
            datagram(block_head(number, start_ns + after_ns), at, payload)
        };
        parts.iter().map(one).collect()
    }

    /// Receives what waits for the receiver when it begins to look.
    fn received(task: &PeerTask, datagrams: &[Vec<u8>]) -> Result<Received, PeerError> {
        receive(task, &|address| send_to(address, datagrams))
    }

    fn send_to(address: SocketAddr, datagrams: &[Vec<u8>]) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for datagram in datagrams {
            socket.send_to(datagram, address).unwrap();
        }
    }

    #[test]
    fn what_comes_twice_counts_once() {
        let last = 3000 - 2 * PAYLOAD_BYTES;
        let came = [(0, 0), (0, 0), (0, 2), (1, 0), (1, 1), (1, 2), (1, 2)];
        let task = live(2, 3000, Duration::from_millis(1));
        let start_ns = monotonic_ns() - 1_000_000;
        let received = received(&task, &parts(&task, start_ns, &came)).unwrap();
        assert_eq!(
            (received.bytes, received.blocks, received.complete),
            (3000 + PAYLOAD_BYTES + last, 1, false)
        );
        let bulk = PeerTask {
            workload: Workload::Bulk { bytes: 3000 },
            ..task
        };
        let came = parts(&bulk, monotonic_ns(), &[(0, 0), (0, 0), (0, 2)]);
        assert!(!self::received(&bulk, &came).unwrap().complete);
    }

    #[test]
    fn a_wrong_payload_is_noticed() {
        let task = live(1, 3000, Duration::ZERO);
        let mut came = parts(&task, monotonic_ns(), &[(0, 1)]);
        came[0][HEADER_BYTES] ^= 1;
        let result = received(&task, &came);
        assert!(matches!(result, Err(PeerError::Corrupt(PAYLOAD_BYTES))));
    }

    #[test]
    fn silence_in_the_middle_is_no_end() {
        let task = live(100, 100, Duration::from_millis(100));
        // All blocks are due already when the transfer begins.
        let start_ns = monotonic_ns() - 10_000_000_000;
        let numbers: Vec<_> = (0..100).map(|number| (number, 0)).collect();
        let came = parts(&task, start_ns, &numbers);
        let (first, later) = came.split_at(1);
        let received = thread::scope(|scope| {
            receive(&task, &|address| {
                send_to(address, first);
                scope.spawn(move || {
                    thread::sleep(Duration::from_secs(1));
                    send_to(address, later);
                });
            })
        });
        assert!(received.unwrap().complete);
    }

    #[test]
    fn nothing_leaves_before_it_is_due() {
        let task = live(50, 100, Duration::from_micros(500));
        let received = thread::scope(|scope| {
            receive(&task, &|address| {
                let task = PeerTask {
                    address,
                    ..task.clone()
                };
                scope.spawn(move || send(&task).unwrap());
            })
        });
        // A message that comes from the future is a failure.
        assert_eq!(received.unwrap().blocks, 50);
    }
}
