//! What the programs print.

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    thread,
};

use rustix::process::{Signal, getpgrp, getpid, kill_current_process_group};
use serde_json::{Value, json};
use sphinx_netdev::usage::cpu_time;

use super::{Peer, PeerError, PeerTask, Received, Role, external, http, relay, tcp, udp};

/// A receiver: it calls the closure when a sender may come.
type Receive = fn(&PeerTask, &dyn Fn(SocketAddr)) -> Result<Received, PeerError>;

/// Runs one end and prints its events, as [`Contestant`](crate::Contestant) wants them. `more` runs
/// the ends that this crate does not have. Whether it went well.
pub fn run(peer: &Peer, more: impl FnOnce(Role, &PeerTask) -> Result<Value, PeerError>) -> bool {
    let task = &peer.task;
    let result = match peer.role {
        Role::TcpReceive => receive(task, tcp::receive),
        Role::TcpSend => send(task, tcp::send),
        Role::TunnelReceive => receive(task, external::tunnel_receive),
        Role::TunnelSend => send(task, external::tunnel_send),
        Role::RelayReceive => receive(task, relay::receive),
        Role::RelaySend => send(task, relay::send),
        Role::FileReceive => receive(task, external::file_receive),
        Role::FileSend => send(task, external::file_send),
        Role::IperfReceive => receive(task, external::iperf_receive),
        Role::IperfSend => send(task, external::iperf_send),
        Role::UdpReceive => receive(task, udp::receive),
        Role::UdpSend => send(task, udp::send),
        Role::HttpServer => http::serve_tcp(task, &|address| listening(address)),
        Role::HttpClient => http::use_client(task, &http::TcpClient::new(task)),
        #[cfg(feature = "quinn")]
        Role::QuicReceive => receive(task, super::quic::receive),
        #[cfg(feature = "quinn")]
        Role::QuicSend => send(task, super::quic::send),
        #[cfg(feature = "quinn")]
        Role::QuicServer => super::quic::serve(task, &|address| listening(address)),
        #[cfg(feature = "quinn")]
        Role::QuicClient => super::quic::ask(task),
        #[cfg(feature = "quinn")]
        Role::QuicCheck => super::quic::check_congestion(&task.congestion).map(|()| json!({})),
        other => more(other, task),
    };
    match result {
        Ok(event) => {
            print(&event);
            true
        }
        Err(error) => {
            print(&json!({"v": 1, "event": "error", "message": error.to_string()}));
            false
        }
    }
}

/// Ends the process when standard input is closed, which happens when whoever started it has died.
///
/// # Errors
///
/// Those of creating a thread.
pub fn watch_standard_input() -> io::Result<()> {
    let watch = || {
        let mut buffer = [0; 64];
        while io::stdin().read(&mut buffer).is_ok_and(|length| length > 0) {}
        // If this process leads its group, everything that it has started ends with it.
        if getpgrp() == getpid() {
            let _ = kill_current_process_group(Signal::KILL);
        }
        std::process::exit(1);
    };
    thread::Builder::new().name("watch".into()).spawn(watch)?;
    Ok(())
}

/// Says that the other end may come.
pub fn listening(address: SocketAddr) {
    print(&json!({"v": 1, "event": "listening", "addresses": [address.to_string()]}));
}

/// Says how much of a payload has arrived so far.
pub(super) fn progress(bytes: u64) {
    print(&json!({"v": 1, "event": "progress", "bytes": bytes}));
}

fn receive(task: &PeerTask, program: Receive) -> Result<Value, PeerError> {
    let received = program(task, &|address| listening(address))?;
    let blocks = received.block_ms;
    Ok(json!({
        "v": 1,
        "event": "done",
        "role": "receiver",
        "bytes": received.bytes,
        "seconds": received.seconds,
        "monotonic_seconds": received.end_ns.map(|end| end as f64 * 1e-9),
        "goodput_mbit_s": received.bytes as f64 * 8e-6 / received.seconds,
        "complete": received.complete,
        "blocks": received.blocks,
        "messages_late": received.late,
        "messages_dropped": received.dropped,
        "blocks_measured": blocks.map(|blocks| blocks.count),
        "blocks_due": blocks.and_then(|blocks| blocks.due),
        "block_ms_mean": blocks.map(|blocks| blocks.mean_ms),
        "block_ms_p50": blocks.and_then(|blocks| blocks.p50_ms),
        "block_ms_p99": blocks.and_then(|blocks| blocks.p99_ms),
        "block_ms_max": blocks.map(|blocks| blocks.max_ms),
        "clock": "shared",
        "cc": task.congestion,
        "socket_bytes": received.socket_bytes,
        "cpu_seconds": cpu_time().as_secs_f64(),
    }))
}

fn send(
    task: &PeerTask,
    program: fn(&PeerTask) -> Result<u64, PeerError>,
) -> Result<Value, PeerError> {
    let bytes = program(task)?;
    Ok(json!({
        "v": 1,
        "event": "done",
        "role": "sender",
        "bytes": bytes,
        "cc": task.congestion,
        "cpu_seconds": cpu_time().as_secs_f64(),
    }))
}

/// Printing may fail: a reader that has gone away needs no answer.
fn print(event: &Value) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{event}").and_then(|()| out.flush());
}
