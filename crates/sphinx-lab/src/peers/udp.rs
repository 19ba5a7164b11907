//! Plain UDP: paced datagrams, nothing repaired. What is lost stays lost.

use std::{
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use super::{
    PATIENCE, Pattern, PeerError, PeerTask, Preamble, Received, SILENCE, Tally, tally::block_head,
    tried,
};
use crate::{Workload, machine::monotonic_ns};

/// In front of the payload: when the transfer began, when its schedule did, where the payload belongs.
const HEADER_BYTES: usize = 24;
/// Payload of a datagram: with all headers 1400 bytes of IP.
const PAYLOAD_BYTES: u64 = 1400 - 28 - HEADER_BYTES as u64;
/// Datagrams are due in groups that take this long: a sleep for each would be late.
const GROUP: Duration = Duration::from_millis(1);

/// Sends one transfer at the task's [`rate`](PeerTask::rate); the payload bytes sent.
///
/// # Errors
///
/// [`PeerError`].
pub(super) fn send(task: &PeerTask) -> Result<u64, PeerError> {
    let rate = task
        .rate
        .ok_or(PeerError::Cannot("send UDP without a rate"))?;
    let (bytes, count, interval) = match task.workload {
        Workload::Bulk { bytes } => (bytes, 1, Duration::ZERO),
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
        } => (bytes, count, interval),
        Workload::Video(_) | Workload::Web(_) => {
            return Err(PeerError::Cannot("answer requests over UDP"));
        }
    };
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let socket = tried("socket", UdpSocket::bind(any))?;
    tried("connect", socket.connect(task.address))?;
    let pattern = Pattern::new(task.seed);
    let (started, start_ns) = (Instant::now(), monotonic_ns());
    let mut sender = Sender {
        socket,
        free_at: started,
        rate,
        sent: 0,
    };
    for number in 0..count {
        let after = interval.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX));
        sender.free_at = sender.free_at.max(started + after);
        let after_ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        let head = block_head(number, start_ns.saturating_add(after_ns));
        let mut at = 0;
        while at < bytes && started.elapsed() < task.limit {
            let length = PAYLOAD_BYTES.min(bytes - at);
            let mut datagram = Vec::with_capacity(HEADER_BYTES + length as usize);
            datagram.extend(start_ns.to_le_bytes());
            datagram.extend(head);
            datagram.extend_from_slice(pattern.piece(at, length));
            sender.send(&datagram)?;
            sender.sent += length;
            at += length;
        }
    }
    Ok(sender.sent)
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
        let bits = (datagram.len() as u64 + 28) * 8;
        self.free_at += Duration::from_nanos(bits * 1_000_000_000 / self.rate.max(1));
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

/// Receives one transfer: counts what comes, whole blocks if it is one of blocks.
///
/// # Errors
///
/// [`PeerError`].
pub(super) fn receive(
    task: &PeerTask,
    listening: &dyn Fn(SocketAddr),
) -> Result<Received, PeerError> {
    let socket = tried("bind", UdpSocket::bind(task.address))?;
    listening(tried("address", socket.local_addr())?);
    let patience = task.limit + PATIENCE;
    tried("listen", socket.set_read_timeout(Some(patience)))?;
    let block_bytes = match task.workload {
        Workload::Blocks { bytes, .. } | Workload::Live { bytes, .. } => Some(bytes),
        _ => None,
    };
    let silence = match task.workload {
        Workload::Blocks { interval, .. } | Workload::Live { interval, .. } => interval,
        _ => Duration::ZERO,
    } + SILENCE;
    let mut tally: Option<Tally> = None;
    let mut blocks = std::collections::HashMap::<[u8; 16], u64>::new();
    let mut buffer = [0; 2048];
    loop {
        let length = match socket.recv(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                break;
            }
            Err(error) => return tried("receive", Err(error)),
        };
        let now_ns = monotonic_ns();
        let Some((start, rest)) = buffer[..length].split_first_chunk::<8>() else {
            continue;
        };
        let Some((head, payload)) = rest.split_first_chunk::<16>() else {
            continue;
        };
        let start_ns = u64::from_le_bytes(*start);
        let tally = match &mut tally {
            Some(tally) => tally,
            None => {
                let preamble = Preamble {
                    start_ns,
                    schedule_ns: start_ns,
                };
                tried("listen", socket.set_read_timeout(Some(silence)))?;
                tally.insert(task.tally(preamble)?)
            }
        };
        tally.add(payload.len() as u64, now_ns);
        if let Some(whole) = block_bytes {
            let have = blocks.entry(*head).or_default();
            *have += payload.len() as u64;
            if *have == whole {
                tally.add_block(*head, now_ns)?;
            }
        }
        if tally.is_complete() || tally.left(now_ns).is_none() {
            break;
        }
    }
    let tally = tally.ok_or(PeerError::Closed(0))?;
    Ok(tally.close_at_last())
}
