//! Messages through a program that carries datagrams, such as `srt-live-transmit`: one datagram each, and
//! what the program gives up stays away.

use std::{
    fs,
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use sphinx_netdev::usage::monotonic_ns;

use super::{
    PEER_TIMEOUT, Pattern, PeerError, PeerTask, Preamble, Received, Tally,
    external::{ENTRANCE_PORT, INNER_PORT, POLL, Program, START, directory},
    tally::{checked_head, number_of, schedule_of, write_block},
    tried,
    udp::{beginning_until, bind, next},
};
use crate::Workload;

/// What goes ahead of the messages until the first one of it has come through: the program's own
/// connection is not what is measured. Shorter than any message.
const GREETING: &[u8] = b"hello";
/// From one greeting to the next.
const GREETINGS: Duration = Duration::from_millis(20);
/// Files by which the ends tell each other that a greeting has come, and that nothing is expected any more.
const MET: &str = "met";
const OVER: &str = "over";

/// Number, size and distance of the messages.
fn schedule(task: &PeerTask) -> Result<(u64, u64, Duration), PeerError> {
    match task.workload {
        Workload::Live {
            count,
            bytes,
            interval,
            ..
        } => Ok((count, bytes, interval)),
        _ => Err(PeerError::Cannot("relay anything but live messages")),
    }
}

fn is_there(directory: &Path, name: &str) -> bool {
    directory.join(name).exists()
}

/// Receives what comes out of the program that is the task's command.
pub(super) fn receive(
    task: &PeerTask,
    listening: &dyn Fn(SocketAddr),
) -> Result<Received, PeerError> {
    let (_, bytes, interval) = schedule(task)?;
    let directory = directory(task)?;
    let socket = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, INNER_PORT)))?;
    let _program = Program::start(task, false)?;
    thread::sleep(START);
    listening(task.address);
    let pattern = Pattern::new(task.seed);
    let mut tally: Option<Tally> = None;
    let mut buffer = [0; 1 << 16];
    let mut until_ns = beginning_until(task);
    while let Some(length) = next(&socket, &mut buffer, until_ns)? {
        let now_ns = monotonic_ns();
        let message = &buffer[..length];
        if message == GREETING {
            tried("greeting", fs::write(directory.join(MET), ""))?;
            continue;
        }
        let head = checked_head(message, bytes, &pattern)?;
        let tally = match &mut tally {
            Some(tally) => tally,
            None => {
                let schedule_ns = schedule_of(head, interval);
                tally.insert(task.tally(Preamble {
                    start_ns: schedule_ns,
                    schedule_ns,
                })?)
            }
        };
        // A relay may deliver a message twice.
        if !tally.has_block(head) {
            tally.add(bytes, now_ns);
            tally.add_block(head, now_ns)?;
        }
        until_ns = tally.may_come_until(number_of(head), now_ns);
        if tally.is_complete() || tally.left(now_ns).is_none() {
            break;
        }
    }
    tried("end", fs::write(directory.join(OVER), ""))?;
    Ok(tally.ok_or(PeerError::Closed(0))?.close_at_last())
}

/// Sends into the program that is the task's command; the payload bytes sent.
pub(super) fn send(task: &PeerTask) -> Result<u64, PeerError> {
    let (count, bytes, interval) = schedule(task)?;
    let directory = directory(task)?;
    let _program = Program::start(task, false)?;
    let socket = tried("socket", UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)))?;
    tried(
        "connect",
        socket.connect((Ipv4Addr::LOCALHOST, ENTRANCE_PORT)),
    )?;
    let patience = Instant::now() + PEER_TIMEOUT;
    while !is_there(directory, MET) {
        if Instant::now() > patience {
            return Err(PeerError::Cannot("get anything through the relay"));
        }
        hand_over(&socket, GREETING)?;
        thread::sleep(GREETINGS);
    }
    let pattern = Pattern::new(task.seed);
    let schedule_ns = monotonic_ns();
    let started = Instant::now();
    let deadline = started + task.limit;
    let mut message = Vec::new();
    for number in 0..count {
        let after = interval.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX));
        let after_ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        let due_ns = schedule_ns.saturating_add(after_ns);
        write_block(&mut message, (number, due_ns), bytes, &pattern);
        thread::sleep((started + after).saturating_duration_since(Instant::now()));
        hand_over(&socket, &message)?;
    }
    // The program has to live until the last message is through.
    while !is_there(directory, OVER) && Instant::now() < deadline {
        thread::sleep(POLL);
    }
    Ok(count * bytes)
}

/// A program that does not listen yet, or has no room, loses it like any other datagram.
fn hand_over(socket: &UdpSocket, datagram: &[u8]) -> Result<(), PeerError> {
    match socket.send(datagram) {
        Err(error)
            if !matches!(
                error.kind(),
                ErrorKind::ConnectionRefused | ErrorKind::WouldBlock
            ) =>
        {
            tried("send", Err(error))
        }
        _ => Ok(()),
    }
}
