//! What clients that do nothing cost their server. A test of its own, because it counts what the process allocates; the clients are in another one.

use std::alloc::System;
use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sphinx_transport::{Options, Service, Session, Ticket, connect};
use sphinx_tunnel::{Events, Grant, Granted, Limits, Permit, Server};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(40);
/// Clients before the first look: what all of them share is there then.
const FIRST: usize = 32;
const CLIENTS: usize = 128;
/// What a session may hold at rest, and what it may with a tunnel's server behind it, bytes.
const SESSION_MAX: usize = 24_500;
const CLIENT_MAX: usize = 27_500;
/// Where the clients find the ticket.
const TICKET: &str = "SPHINX_TEST_TICKET";

/// Bytes that the process holds, once that has not changed for a while: handshakes are over, and what has been sent late is acknowledged then.
fn held() -> usize {
    const QUIET: Duration = Duration::from_millis(1000);
    let now = || {
        let stats = ALLOCATOR.stats();
        // What is reallocated is counted in both.
        stats.bytes_allocated - stats.bytes_deallocated
    };
    let begin = Instant::now();
    let (mut last, mut since) = (now(), begin);
    while since.elapsed() < QUIET && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
        let bytes = now();
        // A packet or two come and go even then.
        if bytes.abs_diff(last) > 4096 {
            (last, since) = (bytes, Instant::now());
        }
    }
    now()
}

/// Bytes that each of the clients since then holds, once that is no more than `most`; what it is in the end, if that does not come.
fn of_each(before: usize, most: usize) -> usize {
    let begin = Instant::now();
    loop {
        let bytes = held().saturating_sub(before) / CLIENTS;
        if bytes <= most || begin.elapsed() >= PATIENCE {
            return bytes;
        }
    }
}

/// Clients in a process of their own.
struct Clients {
    process: Child,
    wanted: ChildStdin,
}

impl Clients {
    fn start(ticket: &Ticket) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "clients", "--ignored", "--nocapture"])
            .env(TICKET, ticket.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let wanted = process.stdin.take().unwrap();
        Self { process, wanted }
    }

    /// Starts `count` more clients; returns their sessions at the server.
    fn come(&mut self, count: usize, server: &sphinx_transport::Server) -> Vec<Session> {
        writeln!(self.wanted, "{count}").unwrap();
        let next = || server.accept(Some(PATIENCE)).unwrap().expect("in time");
        std::iter::repeat_with(next).take(count).collect()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The other process: as many sessions as each line of standard input says, until it ends.
#[test]
#[ignore = "begun by the other test"]
fn clients() {
    let Ok(ticket) = std::env::var(TICKET) else {
        return;
    };
    let ticket: Ticket = ticket.parse().unwrap();
    let mut sessions = Vec::new();
    for line in std::io::stdin().lines() {
        for _ in 0..line.unwrap().parse().unwrap() {
            let session = connect(&ticket, Service::Tunnel, &Options::default());
            sessions.push(session.unwrap());
        }
    }
}

#[test]
fn a_client_at_rest_costs_little() {
    let listen = ([127, 0, 0, 1], 0).into();
    let endpoint =
        sphinx_transport::Server::bind(listen, Service::Tunnel, &Options::default()).unwrap();
    let ticket = endpoint.ticket(&["127.0.0.1".to_owned()]).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let server = Arc::new(Server::new(Events::new(drop)));
    let permit: Permit = "tunnel".parse().unwrap();
    let serve = |sessions: Vec<Session>| {
        for session in sessions {
            let grant = Grant::new("client", permit.clone(), Limits::default());
            let served = Arc::clone(&server).serve(session.into(), Granted::new(grant));
            runtime.spawn(served);
        }
    };
    let mut clients = Clients::start(&ticket);
    serve(clients.come(FIRST, &endpoint));
    let before = held();
    let sessions = clients.come(CLIENTS, &endpoint);
    let session = of_each(before, SESSION_MAX);
    serve(sessions);
    let client = of_each(before, CLIENT_MAX);
    println!("{session} bytes for a session at rest, {client} for an idle client");
    assert!(session <= SESSION_MAX, "{session} bytes for a session");
    assert!(client <= CLIENT_MAX, "{client} bytes for a client");
}
