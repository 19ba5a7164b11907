//! Runs the flows: a thread for each of their ends.

use std::{
    collections::HashMap,
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Mutex, PoisonError, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};

use super::{Delays, Flowed, Group, GroupReport, Watch, Work, fetch};
use crate::path::{
    bed::{Bed, left_address},
    transfer::{Until, accept, connect, listen, segments},
};

/// How long connections may take, on a path that loses packets.
const CONNECT: Duration = Duration::from_secs(30);
/// After the last message, what is still missing may come.
pub(super) const REST: Duration = Duration::from_secs(5);
pub(super) const BLOCK_BYTES: usize = 1 << 16;
/// The golden ratio: multiples of it, less their whole part, are spread evenly, however many there are.
const GOLDEN: f64 = 0.618_033_988_749_895;

/// A connection of a group.
struct Flow {
    group: usize,
    work: Work,
    /// When its first message is due, after the beginning.
    offset: Duration,
    sender: TcpStream,
    receiver: TcpStream,
}

/// What the receivers of a flow, or of all flows of a group, have got.
#[derive(Default)]
pub(super) struct Received {
    group: usize,
    /// Until the senders ended; of each flow, where there are several.
    pub(super) bytes: u64,
    pub(super) flow_bytes: Vec<u64>,
    /// Messages that were asked for.
    pub(super) asked: u64,
    pub(super) delays: Vec<Duration>,
}

/// Flows between the left host, which listens, and the right one, which connects; for so long.
pub(in crate::path) fn run(
    bed: &Bed,
    (groups, upload): (&[Group], bool),
    time: Duration,
    watch: &Mutex<Watch>,
    stop: &AtomicBool,
) -> io::Result<Flowed> {
    let host = if upload { &bed.right } else { &bed.left };
    let before = segments(host)?;
    let flows = connect_all(bed, groups, upload, stop)?;
    let begin = Instant::now();
    let end = begin + time;
    let received = thread::scope(|scope| {
        let mut receivers = Vec::new();
        for flow in flows {
            let (group, work, first) = (flow.group, flow.work, begin + flow.offset);
            let until = |deadline| Until { deadline, stop };
            let (sending, receiving) = (until(end), until(end + REST));
            scope.spawn(move || send(flow.sender, work, first, sending));
            receivers.push(scope.spawn(move || {
                let received = receive(flow.receiver, work, (first, end), receiving)?;
                Ok(Received {
                    group,
                    flow_bytes: vec![received.bytes],
                    ..received
                })
            }));
        }
        for (index, group) in groups.iter().enumerate() {
            if let Work::Fetches { bytes, interval } = group.work {
                receivers.push(scope.spawn(move || {
                    let times = (begin, end);
                    let received =
                        fetch::run(bed, (group, upload), (bytes, interval), times, stop)?;
                    Ok(Received {
                        group: index,
                        ..received
                    })
                }));
            }
        }
        let panicked = |_| Err(io::Error::other("a thread panicked"));
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(panicked);
        receivers
            .into_iter()
            .map(join)
            .collect::<io::Result<Vec<Received>>>()
    })?;
    let after = segments(host)?;
    let watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
    let reports = groups.iter().enumerate().map(|(index, group)| {
        let these = || received.iter().filter(move |it| it.group == index);
        let seen = watch.seen(group.port);
        let bytes: u64 = these().map(|it| it.bytes).sum();
        GroupReport {
            name: group.name.clone(),
            flows: group.flows,
            congestion: group.congestion.clone(),
            messages: (0..group.flows)
                .map(|flow| {
                    due(
                        group.work,
                        time.saturating_sub(offset(group.work, number(groups, index, flow))),
                    )
                })
                .chain(these().map(|it| it.asked))
                .sum(),
            delivered: these().map(|it| it.delays.len() as u64).sum(),
            goodput_mbit_s: bytes as f64 * 8.0 / time.as_secs_f64() / 1e6,
            jain: jain(these().flat_map(|it| it.flow_bytes.iter().copied())),
            delivery_ms: these()
                .flat_map(|it| it.delays.iter().copied())
                .collect::<Delays>(),
            one_way_ms: seen.one_way,
            ack_ms: seen.ack,
            transit_ms: seen.transit,
        }
    });
    Ok(Flowed {
        seconds: time.as_secs_f64(),
        segments_sent: after.0 - before.0,
        segments_again: after.1 - before.1,
        groups: reports.collect(),
    })
}

/// The number of a flow among those of all groups.
fn number(groups: &[Group], group: usize, flow: usize) -> usize {
    groups[..group].iter().map(|it| it.flows).sum::<usize>() + flow
}

/// When the first message of a flow is due: not all flows send at once.
fn offset(work: Work, number: usize) -> Duration {
    match work {
        Work::Greedy | Work::Fetches { .. } => Duration::ZERO,
        Work::Messages { interval, .. } => interval.mul_f64((number as f64 * GOLDEN).fract()),
    }
}

/// Jain's index of fairness; flows that all carry nothing share nothing.
fn jain(bytes: impl Iterator<Item = u64>) -> Option<f64> {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for bytes in bytes {
        let bytes = bytes as f64;
        (count, sum, squares) = (count + 1.0, sum + bytes, squares + bytes * bytes);
    }
    (squares > 0.0).then(|| sum * sum / (count * squares))
}

/// Messages that are due in so long.
fn due(work: Work, time: Duration) -> u64 {
    match work {
        Work::Greedy | Work::Fetches { .. } => 0,
        Work::Messages { interval, .. } => {
            u64::try_from(time.as_nanos().div_ceil(interval.as_nanos().max(1))).unwrap_or(u64::MAX)
        }
    }
}

fn connect_all(
    bed: &Bed,
    groups: &[Group],
    upload: bool,
    stop: &AtomicBool,
) -> io::Result<Vec<Flow>> {
    let until = Until {
        deadline: Instant::now() + CONNECT,
        stop,
    };
    let none = || io::Error::new(ErrorKind::TimedOut, "not all flows could connect");
    let mut flows = Vec::new();
    let stay = |group: &Group| !matches!(group.work, Work::Fetches { .. });
    for (index, group) in groups.iter().enumerate().filter(|it| stay(it.1)) {
        let mut address = left_address();
        address.set_port(group.port);
        let listener: TcpListener = listen(&bed.left, address, &group.congestion)?;
        let (accepted, connected) = thread::scope(|scope| {
            let connecting: Vec<_> = (0..group.flows)
                .map(|_| scope.spawn(|| connect(&bed.right, address, &group.congestion, until)))
                .collect();
            let mut accepted = HashMap::new();
            for _ in 0..group.flows {
                let stream = accept(&listener, until)?.ok_or_else(none)?;
                accepted.insert(stream.peer_addr()?, stream);
            }
            let panicked = |_| Err(io::Error::other("a thread panicked"));
            let connected = connecting.into_iter().map(|thread| {
                let stream = thread.join().unwrap_or_else(panicked)?;
                stream.ok_or_else(none)
            });
            io::Result::Ok((accepted, connected.collect::<io::Result<Vec<_>>>()?))
        })?;
        let mut accepted = accepted;
        for (flow, right) in connected.into_iter().enumerate() {
            let left = accepted.remove(&right.local_addr()?).ok_or_else(none)?;
            let (sender, receiver) = match group.is_upload(upload) {
                true => (right, left),
                false => (left, right),
            };
            flows.push(Flow {
                group: index,
                work: group.work,
                offset: offset(group.work, number(groups, index, flow)),
                sender,
                receiver,
            });
        }
    }
    Ok(flows)
}

/// Sends until the deadline; what the receiver does not take any more is its loss.
fn send(mut stream: TcpStream, work: Work, first: Instant, until: Until<'_>) {
    match work {
        // Each fetch has a connection of its own.
        Work::Fetches { .. } => {}
        Work::Greedy => {
            let block = vec![7; BLOCK_BYTES];
            while let Ok(Some(_)) = until.retry(|| stream.write(&block)) {}
        }
        Work::Messages { bytes, interval } => {
            // Best effort: where TCP_NODELAY cannot be set, the delays show it.
            let _ = stream.set_nodelay(true);
            let mut at = first;
            while at < until.deadline {
                until.wait(at);
                // A message that is due has to be sent, even if the socket has room for it only after the end.
                let rest = Until {
                    deadline: until.deadline + REST,
                    ..until
                };
                if !send_bytes(&stream, bytes, rest) {
                    return;
                }
                at += interval;
            }
        }
    }
    // Fails if the other end has closed already.
    let _ = stream.shutdown(Shutdown::Write);
}

/// Sends so many bytes; whether that was possible in time. Nobody needs room for all of them at once.
pub(super) fn send_bytes(mut stream: &TcpStream, bytes: u64, until: Until<'_>) -> bool {
    let of = |bytes: u64| {
        usize::try_from(bytes)
            .unwrap_or(usize::MAX)
            .min(BLOCK_BYTES)
    };
    let block = vec![7; of(bytes)];
    let mut left = bytes;
    while left > 0 {
        let next = of(left);
        match until.retry(|| stream.write(&block[..next])) {
            Ok(Some(written)) => left -= written as u64,
            _ => return false,
        }
    }
    true
}

/// Reads to the end of the stream, or until the deadline.
fn receive(
    mut stream: TcpStream,
    work: Work,
    (first, end): (Instant, Instant),
    until: Until<'_>,
) -> io::Result<Received> {
    let mut received = Received::default();
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut total = 0;
    while let Some(read @ 1..) = until.retry(|| stream.read(&mut buffer))? {
        let now = Instant::now();
        total += read as u64;
        if now <= end {
            received.bytes = total;
        }
        match work {
            Work::Greedy if now > end => break,
            Work::Greedy | Work::Fetches { .. } => {}
            Work::Messages { bytes, interval } => {
                while (received.delays.len() as u64 + 1) * bytes <= total {
                    let number = u32::try_from(received.delays.len()).unwrap_or(u32::MAX);
                    let due = first + interval * number;
                    received.delays.push(now.saturating_duration_since(due));
                }
            }
        }
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_message_has_to_fit_into_memory() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let work = Work::Messages {
            bytes: 1 << 60,
            interval: Duration::from_secs(1),
        };
        let stop = AtomicBool::new(false);
        let until = Until {
            deadline: Instant::now() + Duration::from_secs(3600),
            stop: &stop,
        };
        thread::scope(|scope| {
            scope.spawn(|| send(stream, work, Instant::now(), until));
            let (mut receiver, _) = listener.accept().unwrap();
            receiver.read_exact(&mut vec![0; 3 * BLOCK_BYTES]).unwrap();
            // The sender ends when the receiver is dropped.
        });
    }

    #[test]
    fn messages_are_due_from_their_offset_on() {
        let work = Work::Messages {
            bytes: 10,
            interval: Duration::from_millis(30),
        };
        let ms = Duration::from_millis;
        assert_eq!(
            [0, 1, 30, 31, 90].map(|time| due(work, ms(time))),
            [0, 1, 1, 2, 3]
        );
        assert_eq!(due(Work::Greedy, ms(90)), 0);
        assert_eq!(jain([5, 5, 5].into_iter()), Some(1.0));
        assert_eq!(jain([5, 0, 0, 0].into_iter()), Some(0.25));
        assert_eq!(jain([0, 0].into_iter()), None);
        let offsets: Vec<_> = (0..20).map(|number| offset(work, number)).collect();
        assert!(offsets.iter().all(|it| *it < ms(30)));
        let mut sorted = offsets.clone();
        sorted.sort_unstable();
        assert!(
            sorted
                .windows(2)
                .all(|pair| pair[1] - pair[0] > Duration::from_micros(500))
        );
    }
}
