//! A transfer by the kernel's TCP.

use std::{
    fs,
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use serde::Serialize;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use sphinx_netdev::{netns::Namespace, tcp};

use super::bed::{Bed, left_address, middle_address};
use crate::peers::tcp::is_temporary;

/// Between two looks at the clock while nothing moves.
const POLL: Duration = Duration::from_millis(20);
/// Between two looks at whether it is over, for whoever waits for its time.
const NAP: Duration = Duration::from_millis(100);
const BLOCK_BYTES: usize = 1 << 16;
/// Time between two looks at the sender's congestion window.
const WINDOWS: Duration = Duration::from_millis(10);

/// What to transfer, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Whether the right host sends to the left one, instead of the other way round.
    pub upload: bool,
    /// Bytes to transfer.
    pub bytes: u64,
    /// The transfer is cut off after this time.
    pub limit: Duration,
    /// Congestion control of all that send.
    pub congestion: String,
    /// Whether the ends negotiate SACK.
    pub sack: bool,
    /// Whether the host in the middle ends the connection and begins another one.
    pub split: bool,
    /// Whether the sender's congestion window is recorded.
    pub windows: bool,
}

/// The results of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transferred {
    /// Bytes that have arrived, in order.
    pub bytes: u64,
    /// Whether all bytes have arrived.
    pub complete: bool,
    /// From the beginning of the connection to the last byte.
    pub seconds: f64,
    /// Goodput: `bytes` over `seconds`, in Mbit/s.
    pub goodput_mbit_s: f64,
    /// The longest time in which nothing arrived in order.
    pub pause_ms_max: f64,
    /// Segments that the sending host has sent.
    pub segments_sent: u64,
    /// Segments sent again among these.
    pub segments_again: u64,
    /// The sender's congestion window every 10 ms, if that was asked for: milliseconds, segments, and the slow-start threshold (-1 if there is
    /// none yet).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<(u64, i64, i64)>,
}

/// When to give up.
#[derive(Clone, Copy)]
pub(super) struct Until<'a> {
    pub(super) deadline: Instant,
    pub(super) stop: &'a AtomicBool,
}

impl Until<'_> {
    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || Instant::now() >= self.deadline
    }

    /// Waits for a time, or until it is over.
    pub(super) fn wait(&self, at: Instant) {
        while !self.is_over() {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(NAP));
        }
    }

    /// Does something with a socket again while it only says that there is nothing to do yet; none when it is over.
    pub(super) fn retry<T>(
        &self,
        mut action: impl FnMut() -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        while !self.is_over() {
            match action() {
                Ok(done) => return Ok(Some(done)),
                Err(error) if is_temporary(error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// A way to a connection; none when the time is over before.
type Open<'a> = dyn Fn() -> io::Result<Option<TcpStream>> + Sync + 'a;

/// Transfers between the left host, which listens, and the right one, which connects.
pub(super) fn run(bed: &Bed, transfer: &Transfer, stop: &AtomicBool) -> io::Result<Transferred> {
    let start = Instant::now();
    let until = Until {
        deadline: start + transfer.limit,
        stop,
    };
    let congestion = &transfer.congestion;
    let listener = listen(&bed.left, left_address(), congestion)?;
    let server = listener.local_addr()?;
    let relay = match transfer.split {
        true => Some(listen(&bed.middle, middle_address(), congestion)?),
        false => None,
    };
    let target = match &relay {
        Some(relay) => relay.local_addr()?,
        None => server,
    };
    let left = || accept(&listener, until);
    let right = || connect(&bed.right, target, congestion, until);
    let (host, sender, receiver): (_, &Open<'_>, &Open<'_>) = match transfer.upload {
        false => (&bed.left, &left, &right),
        true => (&bed.right, &right, &left),
    };
    let before = segments(host)?;
    let done = AtomicBool::new(false);
    let panicked = || io::Error::other("a thread panicked");
    let (transferred, windows) = thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let Some(stream) = sender()? else {
                return Ok(Vec::new());
            };
            thread::scope(|scope| {
                let windows = transfer
                    .windows
                    .then(|| scope.spawn(|| look_at_windows(&stream, start, &done)));
                send(&stream, transfer.bytes, until);
                windows.map_or(Ok(Vec::new()), |thread| {
                    thread.join().unwrap_or_else(|_| Err(panicked()))
                })
            })
        });
        let relaying = relay.as_ref().map(|relay| {
            let right = || accept(relay, until);
            let left = || connect(&bed.middle, server, congestion, until);
            scope.spawn(move || copy(&right, &left, transfer.upload, until))
        });
        let received = receive(receiver, start, transfer.bytes, until);
        done.store(true, Ordering::Relaxed);
        // If the receiver got nothing, the cause is at the sender or the relay: their errors are reported first.
        let windows = sending.join().unwrap_or_else(|_| Err(panicked()))?;
        if let Some(relaying) = relaying {
            relaying.join().unwrap_or_else(|_| Err(panicked()))?;
        }
        io::Result::Ok((received?, windows))
    })?;
    let after = segments(host)?;
    Ok(Transferred {
        segments_sent: after.0 - before.0,
        segments_again: after.1 - before.1,
        windows,
        ..transferred
    })
}

/// The congestion window of a connection, until all has arrived.
fn look_at_windows(
    sender: &TcpStream,
    start: Instant,
    done: &AtomicBool,
) -> io::Result<Vec<(u64, i64, i64)>> {
    let mut windows = Vec::new();
    while !done.load(Ordering::Relaxed) {
        let window = tcp::send_window(sender)?;
        let ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let threshold = window.threshold.map_or(-1, i64::from);
        windows.push((ms, window.congestion.into(), threshold));
        thread::sleep(WINDOWS);
    }
    Ok(windows)
}

/// What it accepts sends with the congestion control that is wanted.
pub(super) fn listen(
    host: &Namespace,
    address: SocketAddr,
    congestion: &str,
) -> io::Result<TcpListener> {
    let listener = host.run(|| TcpListener::bind(address))??;
    SockRef::from(&listener).set_tcp_congestion(congestion.as_bytes())?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

pub(super) fn accept(listener: &TcpListener, until: Until<'_>) -> io::Result<Option<TcpStream>> {
    let look = || {
        listener.accept().inspect_err(|error| {
            if error.kind() == ErrorKind::WouldBlock {
                thread::sleep(Duration::from_millis(1));
            }
        })
    };
    let Some((stream, _)) = until.retry(look)? else {
        return Ok(None);
    };
    stream.set_nonblocking(false)?;
    with_timeouts(stream).map(Some)
}

pub(super) fn connect(
    host: &Namespace,
    target: SocketAddr,
    congestion: &str,
    until: Until<'_>,
) -> io::Result<Option<TcpStream>> {
    let open = || {
        Socket::new(
            Domain::for_address(target),
            Type::STREAM,
            Some(Protocol::TCP),
        )
    };
    let socket = host.run(open)??;
    socket.set_tcp_congestion(congestion.as_bytes())?;
    // Not blocking, so that a wish to stop is noticed.
    socket.set_nonblocking(true)?;
    match socket.connect(&target.into()) {
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        result => result?,
    }
    let poll_time = Timespec::try_from(POLL).ok();
    let look = || {
        let mut files = [PollFd::new(&socket, PollFlags::OUT)];
        match poll(&mut files, poll_time.as_ref())? {
            0 => Err(ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    };
    if until.retry(look)?.is_none() {
        return Ok(None);
    }
    match socket.take_error()? {
        None => {}
        Some(error) if is_temporary(error.kind()) => return Ok(None),
        Some(error) => return Err(error),
    }
    socket.set_nonblocking(false)?;
    with_timeouts(socket.into()).map(Some)
}

fn with_timeouts(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_write_timeout(Some(POLL))?;
    stream.set_read_timeout(Some(POLL))?;
    Ok(stream)
}

/// Sends so many bytes, unless the receiver has gone before or there is no more time.
fn send(mut stream: &TcpStream, bytes: u64, until: Until<'_>) {
    let block = vec![7; BLOCK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(BLOCK_BYTES as u64) as usize;
        match until.retry(|| stream.write(&block[..length])) {
            Ok(Some(written)) => left -= written as u64,
            Ok(None) | Err(_) => return,
        }
    }
    finish(stream, until);
}

/// Waits until the other end has everything.
fn finish(mut stream: &TcpStream, until: Until<'_>) {
    // Fails if the other end has closed already.
    let _ = stream.shutdown(Shutdown::Write);
    let _ = until.retry(|| stream.read(&mut [0]));
}

/// The relay of a split path: what comes from the left goes to the right, or the other way round.
fn copy(right: &Open<'_>, left: &Open<'_>, upload: bool, until: Until<'_>) -> io::Result<()> {
    let Some(right) = right()? else {
        return Ok(());
    };
    let Some(left) = left()? else {
        return Ok(());
    };
    let (mut from, mut to) = match upload {
        false => (left, right),
        true => (right, left),
    };
    let mut buffer = vec![0; BLOCK_BYTES];
    // Whatever ends one connection ends the other.
    while let Ok(Some(read @ 1..)) = until.retry(|| from.read(&mut buffer)) {
        let mut written = 0;
        while written < read {
            match until.retry(|| to.write(&buffer[written..read])) {
                Ok(Some(more)) => written += more,
                _ => return Ok(()),
            }
        }
    }
    finish(&to, until);
    Ok(())
}

/// `start` is when the connection was begun.
fn receive(
    open: &Open<'_>,
    start: Instant,
    wanted: u64,
    until: Until<'_>,
) -> io::Result<Transferred> {
    let (mut last, mut pause, mut bytes) = (start, Duration::ZERO, 0);
    let mut buffer = vec![0; 4 * BLOCK_BYTES];
    if let Some(mut stream) = open()? {
        while bytes < wanted {
            let Some(read) = until.retry(|| stream.read(&mut buffer))? else {
                break;
            };
            if read == 0 && until.is_over() {
                // The time is over, and the sender has noticed that before this end and closed.
                break;
            }
            if read == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let now = Instant::now();
            (pause, last) = (pause.max(now - last), now);
            bytes += read as u64;
        }
    }
    let complete = bytes == wanted;
    let end = if complete { last } else { Instant::now() };
    let seconds = (end - start).as_secs_f64();
    Ok(Transferred {
        bytes,
        complete,
        seconds,
        goodput_mbit_s: bytes as f64 * 8.0 / seconds.max(1e-9) / 1e6,
        pause_ms_max: pause.max(end - last).as_secs_f64() * 1e3,
        segments_sent: 0,
        segments_again: 0,
        windows: Vec::new(),
    })
}

/// Segments that a host has sent, and how many of them once more.
pub(super) fn segments(host: &Namespace) -> io::Result<(u64, u64)> {
    let text = host.run(|| fs::read_to_string("/proc/thread-self/net/snmp"))??;
    let value = |name| field(&text, name).ok_or(ErrorKind::InvalidData);
    // `OutSegs` does not count what is sent again.
    let again = value("RetransSegs")?;
    Ok((value("OutSegs")? + again, again))
}

/// A number of the kernel's TCP: a line of names, and below it one of values.
fn field(text: &str, wanted: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut fields = names.split(' ').zip(values.split(' '));
    let (_, value) = fields.find(|(name, _)| *name == wanted)?;
    value.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The queue of a listener is full: a further connection comes to no end.
    #[test]
    fn whoever_connects_is_told_to_stop() {
        let host = Namespace::current().expect("a namespace");
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        listener.bind(&local.into()).expect("a port");
        listener.listen(0).expect("a listener");
        let target = listener.local_addr().expect("an address");
        let target = target.as_socket().expect("an address of IP");
        let hour = Duration::from_secs(3600);
        let none = AtomicBool::new(false);
        let until = Until {
            deadline: Instant::now() + hour,
            stop: &none,
        };
        let first = connect(&host, target, "reno", until).expect("a connection");
        assert!(first.is_some());
        let stop = AtomicBool::new(false);
        let until = Until {
            stop: &stop,
            ..until
        };
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                until.wait(Instant::now() + hour);
                until.is_over()
            });
            let connecting = scope.spawn(|| connect(&host, target, "reno", until));
            stop.store(true, Ordering::Relaxed);
            assert!(waiting.join().expect("no panic"));
            let connected = connecting.join().expect("no panic");
            assert!(connected.expect("no error").is_none());
        });
    }

    /// A relay, or the sender, may be the first to see that the time is over; without that, an end is a failure.
    #[test]
    fn what_is_closed_in_the_end_is_cut_off() {
        let none = AtomicBool::new(false);
        for (time, is_cut_off) in [(200, true), (3_600_000, false)] {
            let until = Until {
                deadline: Instant::now() + Duration::from_millis(time),
                stop: &none,
            };
            let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
            let target = listener.local_addr().expect("an address");
            let received = thread::scope(|scope| {
                scope.spawn(move || {
                    let (mut stream, _) = listener.accept().expect("a connection");
                    stream.write_all(b"x").expect("room for it");
                    if is_cut_off {
                        until.wait(until.deadline);
                    }
                });
                // The receiver waits for a second byte until the connection ends or is cut off.
                let open = || TcpStream::connect(target).map(Some);
                receive(&open, Instant::now(), 2, until)
            });
            match received {
                Ok(received) => assert!(is_cut_off && !received.complete),
                Err(error) => {
                    assert!(!is_cut_off, "{error}");
                    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                }
            }
        }
    }

    #[test]
    fn the_kernels_numbers_are_found_by_name() {
        let text = "Ip: A\nIp: 1\nTcp: InSegs OutSegs RetransSegs\nTcp: 5 17 3\n";
        assert_eq!(field(text, "OutSegs"), Some(17));
        assert_eq!(field(text, "RetransSegs"), Some(3));
        assert_eq!(field(text, "Nothing"), None);
        assert_eq!(field("Tcp: A\nTcp: x\n", "A"), None);
        assert_eq!(field("", "A"), None);
    }
}
