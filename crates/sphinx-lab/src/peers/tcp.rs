//! Kernel TCP: one connection, any congestion control the kernel has.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use sphinx_netdev::usage::monotonic_ns;

use super::{
    PEER_TIMEOUT, Pattern, PeerError, PeerTask, Preamble, Received, Tally, output,
    socket::{listen, socket},
    tally::write_block,
    tried,
};
use crate::Workload;

/// Bytes per read.
const READ_BYTES: usize = 256 << 10;
/// Unsent bytes the kernel may hold while blocks are sent: a later block must not queue behind data
/// that could not leave yet.
const NOTSENT_LOWAT_BYTES: u32 = 16 << 10;
/// What such an end is asked for in vain: a workload of requests.
const UNASKED: &str = "send what has to be asked for";
/// Between two looks at the clock while nothing moves.
const POLL: Duration = Duration::from_millis(20);

/// Receives one transfer; `listening` is called when a sender may come.
///
/// # Errors
///
/// [`PeerError`].
pub fn receive(task: &PeerTask, listening: &dyn Fn(SocketAddr)) -> Result<Received, PeerError> {
    let (listener, address) = listen(task, 1)?;
    listening(address);
    let (stream, _) = tried("accept", listener.accept())?;
    let mut stream = TcpStream::from(stream);
    tried(
        "accept",
        stream.set_read_timeout(Some(task.limit + PEER_TIMEOUT)),
    )?;
    let mut preamble = [0; Preamble::BYTES];
    tried("preamble", stream.read_exact(&mut preamble))?;
    tried("read", stream.set_read_timeout(Some(POLL)))?;
    let preamble = Preamble::from_bytes(preamble);
    let tally = task.tally(preamble)?;
    let mut incoming = Incoming {
        stream,
        tally,
        pattern: Pattern::new(task.seed),
        buffer: vec![0; READ_BYTES],
    };
    match task.workload {
        Workload::Bulk { .. } => incoming.bulk()?,
        Workload::Blocks { bytes, .. } | Workload::Live { bytes, .. } => {
            incoming.blocks(bytes as usize)?;
        }
        Workload::Video(_) | Workload::Web(_) => return Err(PeerError::Cannot(UNASKED)),
    }
    Ok(incoming.tally.close())
}

/// The receiving end of a connection.
struct Incoming {
    stream: TcpStream,
    tally: Tally,
    pattern: Pattern,
    buffer: Vec<u8>,
}

impl Incoming {
    fn bulk(&mut self) -> Result<(), PeerError> {
        while !self.tally.is_complete() {
            let offset = self.tally.bytes();
            let Some(length) = self.read(READ_BYTES)? else {
                break;
            };
            if !self.pattern.matches(offset, &self.buffer[..length]) {
                return Err(PeerError::Corrupt(offset));
            }
            if let Some(bytes) = self.tally.news(monotonic_ns()) {
                output::progress(bytes);
            }
        }
        Ok(())
    }

    fn blocks(&mut self, block_bytes: usize) -> Result<(), PeerError> {
        let mut block = Vec::with_capacity(block_bytes);
        while !self.tally.is_complete() {
            let missing = block_bytes - block.len();
            let Some(length) = self.read(missing.min(READ_BYTES))? else {
                break;
            };
            block.extend_from_slice(&self.buffer[..length]);
            if block.len() < block_bytes {
                continue;
            }
            let now_ns = monotonic_ns();
            let Some((head, rest)) = block.split_first_chunk() else {
                break;
            };
            self.tally.add_block(*head, now_ns)?;
            if !self.pattern.matches(head.len() as u64, rest) {
                return Err(PeerError::Corrupt(self.tally.bytes()));
            }
            block.clear();
        }
        Ok(())
    }

    /// Reads into the buffer; none at the cut-off.
    fn read(&mut self, max: usize) -> Result<Option<usize>, PeerError> {
        loop {
            if self.tally.left(monotonic_ns()).is_none() {
                return Ok(None);
            }
            match self.stream.read(&mut self.buffer[..max]) {
                // A sender that has nothing on its way closes at the cut-off.
                Ok(0) if self.tally.left(monotonic_ns()).is_none() => return Ok(None),
                Ok(0) => return Err(PeerError::Closed(self.tally.bytes())),
                Ok(length) => {
                    self.tally.add(length as u64, monotonic_ns());
                    return Ok(Some(length));
                }
                Err(error) if is_temporary(error.kind()) => {}
                Err(error) => return tried("read", Err(error)),
            }
        }
    }
}

/// Sends one transfer, and returns how many payload bytes the kernel took before the cut-off.
///
/// # Errors
///
/// [`PeerError`].
pub fn send(task: &PeerTask) -> Result<u64, PeerError> {
    let socket = socket(task)?;
    if !matches!(task.workload, Workload::Bulk { .. }) {
        tried("TCP_NODELAY", socket.set_tcp_nodelay(true))?;
        tried(
            "TCP_NOTSENT_LOWAT",
            socket.set_tcp_notsent_lowat(NOTSENT_LOWAT_BYTES),
        )?;
    }
    let start_ns = monotonic_ns();
    let deadline = Instant::now() + task.limit;
    tried(
        "connect",
        socket.connect_timeout(&task.address.into(), task.limit),
    )?;
    tried("connect", socket.set_write_timeout(Some(POLL)))?;
    tried("connect", socket.set_read_timeout(Some(POLL)))?;
    let mut outgoing = Outgoing {
        stream: TcpStream::from(socket),
        deadline,
        sent: 0,
    };
    let pattern = Pattern::new(task.seed);
    let taken = match task.workload {
        Workload::Bulk { bytes } => outgoing.bulk(start_ns, bytes, &pattern)?,
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
        } => outgoing.blocks(start_ns, count, bytes, interval, &pattern)?,
        Workload::Video(_) | Workload::Web(_) => return Err(PeerError::Cannot(UNASKED)),
    };
    outgoing.wait_for_close();
    Ok(taken.saturating_sub(Preamble::BYTES as u64))
}

/// The sending end of a connection.
struct Outgoing {
    stream: TcpStream,
    deadline: Instant,
    sent: u64,
}

impl Outgoing {
    fn bulk(&mut self, start_ns: u64, bytes: u64, pattern: &Pattern) -> Result<u64, PeerError> {
        let preamble = Preamble {
            start_ns,
            schedule_ns: start_ns,
        };
        // In one call with the first data: by itself it would be a segment of its own, one of the ten that the kernel sends first.
        let piece = pattern.piece(0, bytes);
        let mut open = self.write(&[&preamble.to_bytes()[..], piece].concat())?;
        let mut offset = piece.len() as u64;
        while open && offset < bytes {
            let piece = pattern.piece(offset, bytes - offset);
            open = self.write(piece)?;
            offset += piece.len() as u64;
        }
        Ok(self.sent)
    }

    fn blocks(
        &mut self,
        start_ns: u64,
        count: u64,
        bytes: u64,
        interval: Duration,
        pattern: &Pattern,
    ) -> Result<u64, PeerError> {
        let schedule_ns = monotonic_ns();
        let schedule = Instant::now();
        let preamble = Preamble {
            start_ns,
            schedule_ns,
        };
        let mut open = self.write(&preamble.to_bytes())?;
        let mut block = Vec::new();
        for number in 0..count {
            let after = interval.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX));
            let after_ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
            let due_ns = schedule_ns.saturating_add(after_ns);
            write_block(&mut block, (number, due_ns), bytes, pattern);
            thread::sleep((schedule + after).saturating_duration_since(Instant::now()));
            open = open && self.write(&block)?;
            if !open {
                break;
            }
        }
        Ok(self.sent)
    }

    /// Writes everything; false if the cut-off came, or the receiver has closed.
    fn write(&mut self, mut bytes: &[u8]) -> Result<bool, PeerError> {
        while !bytes.is_empty() {
            if Instant::now() >= self.deadline {
                return Ok(false);
            }
            match self.stream.write(bytes) {
                Ok(length) => {
                    self.sent += length as u64;
                    bytes = &bytes[length..];
                }
                Err(error) if is_temporary(error.kind()) => {}
                Err(error) if is_closed(error.kind()) => return Ok(false),
                Err(error) => return tried("write", Err(error)),
            }
        }
        Ok(true)
    }

    /// Waits until the receiver has everything, has cut off, or must have done so.
    fn wait_for_close(&mut self) {
        // It fails if the receiver has closed already.
        let _ = self.stream.shutdown(Shutdown::Write);
        while Instant::now() < self.deadline + POLL {
            match self.stream.read(&mut [0; 16]) {
                Err(error) if is_temporary(error.kind()) => {}
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
    }
}

/// Whether a call on a socket with a timeout is to be repeated: nothing came in time, or a signal came first.
pub(crate) fn is_temporary(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Interrupted | ErrorKind::TimedOut | ErrorKind::WouldBlock
    )
}

fn is_closed(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::{super::tests::task, *};

    fn blocks() -> PeerTask {
        task(Workload::Blocks {
            count: 60,
            bytes: 100_000,
            interval: Duration::from_millis(2),
        })
    }

    fn bulk(bytes: u64) -> PeerTask {
        task(Workload::Bulk { bytes })
    }

    /// Both ends over loopback.
    fn transfer(task: &PeerTask) -> (Received, u64) {
        thread::scope(|scope| {
            let (ready, address) = mpsc::channel();
            let receiver = scope.spawn(move || receive(task, &|at| ready.send(at).unwrap()));
            let task = PeerTask {
                address: address.recv().unwrap(),
                ..task.clone()
            };
            let sent = send(&task).unwrap();
            (receiver.join().unwrap().unwrap(), sent)
        })
    }

    #[test]
    fn bulk_arrives() {
        let (received, sent) = transfer(&bulk(1_000_003));
        assert_eq!((received.bytes, sent), (1_000_003, 1_000_003));
        assert!(received.complete && received.seconds > 0.0);
        assert_eq!(received.block_ms, None);
    }

    #[test]
    fn blocks_arrive_and_are_timed() {
        let (received, _) = transfer(&blocks());
        assert_eq!((received.blocks, received.bytes), (60, 6_000_000));
        let block_ms = received.block_ms.unwrap();
        assert_eq!(block_ms.count, 10);
        assert!(block_ms.mean_ms > 0.0 && Some(block_ms.max_ms) >= block_ms.p50_ms);
    }

    /// A segment of its own in front would take the place of one with data, and 100 kB a round trip more.
    #[test]
    fn the_first_segment_carries_data() {
        // What is written in one call comes as one message there, however late it is read.
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (near, far) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let mut outgoing = Outgoing {
            stream: TcpStream::from(near),
            deadline: Instant::now() + PEER_TIMEOUT,
            sent: 0,
        };
        let all = Preamble::BYTES + 1000;
        let sent = outgoing.bulk(monotonic_ns(), 1000, &Pattern::new(5));
        assert_eq!(sent.unwrap(), all as u64);
        let mut buffer = [0; 4096];
        assert_eq!(TcpStream::from(far).read(&mut buffer).unwrap(), all);
    }

    /// The sender looks at the clock first; the receiver still waits for more.
    #[test]
    fn a_sender_that_closes_at_the_cut_off_is_cut_off() {
        let task = blocks();
        let (ready, address) = mpsc::channel();
        thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(&task, &|at| ready.send(at).unwrap()));
            let mut stream = TcpStream::connect(address.recv().unwrap()).unwrap();
            // The transfer began so long ago that only 200 ms are left until the cut-off.
            let limit = u64::try_from(task.limit.as_nanos()).unwrap();
            let cut_off = monotonic_ns() + 200_000_000;
            let preamble = Preamble {
                start_ns: cut_off - limit,
                schedule_ns: cut_off - limit,
            };
            stream.write_all(&preamble.to_bytes()).unwrap();
            thread::sleep(Duration::from_nanos(cut_off.saturating_sub(monotonic_ns())));
            drop(stream);
            let received = receiver.join().unwrap().unwrap();
            assert_eq!((received.bytes, received.complete), (0, false));
        });
    }

    #[test]
    fn a_wrong_payload_is_noticed() {
        let receiver_task = bulk(100_000);
        let (ready, address) = mpsc::channel();
        thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(&receiver_task, &|at| ready.send(at).unwrap()));
            let sender_task = PeerTask {
                address: address.recv().unwrap(),
                seed: 6,
                ..receiver_task.clone()
            };
            send(&sender_task).unwrap();
            let result = receiver.join().unwrap();
            assert!(matches!(result, Err(PeerError::Corrupt(_))), "{result:?}");
        });
    }
}
