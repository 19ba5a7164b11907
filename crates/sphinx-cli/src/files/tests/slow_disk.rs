//! A disk that takes nothing for a while, at the end of a real session.

use std::sync::{Arc, Condvar, Mutex};

use sphinx_transport::{
    Options, RecvStream, SendStream, Server, Service, Session, Stats, Ticket, connect,
};

use super::*;
use crate::channel::{Incoming, Sink};
use crate::failure::Failure;

const PATIENCE: Duration = Duration::from_secs(30);
/// The windows of both ends, what is being sliced and what is being read.
const HELD_MAX: u64 = 60 << 20;

/// Holds writes up until it is opened.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let is_open = self.is_open.lock().expect("no thread panics with it");
        let passed = self.changed.wait_while(is_open, |is_open| !*is_open);
        drop(passed.expect("no thread panics with it"));
    }

    fn open(&self) {
        *self.is_open.lock().expect("no thread panics with it") = true;
        self.changed.notify_all();
    }
}

/// A session whose receiver writes to such a disk.
#[derive(Clone)]
struct SlowDisk {
    session: Session,
    gate: Arc<Gate>,
}

struct SlowlyWritten {
    stream: RecvStream,
    gate: Arc<Gate>,
}

impl Incoming for SlowlyWritten {
    fn read(&mut self, buf: &mut [u8]) -> Outcome<usize> {
        Incoming::read(&mut self.stream, buf)
    }

    fn read_unordered(&mut self, len: u64, sink: &mut Sink<'_>) -> Outcome<()> {
        let gate = &self.gate;
        let mut write = |at, data: &[u8]| {
            gate.pass();
            sink(at, data)
        };
        Incoming::read_unordered(&mut self.stream, len, &mut write)
    }
}

impl Channel for SlowDisk {
    type Out = SendStream;
    type In = SlowlyWritten;

    fn open_uni(&self) -> Outcome<SendStream> {
        Ok(self.session.open_uni()?)
    }

    fn accept_uni(&self) -> Outcome<SlowlyWritten> {
        Ok(SlowlyWritten {
            stream: self.session.accept_uni()?,
            gate: Arc::clone(&self.gate),
        })
    }

    fn stats(&self) -> Stats {
        self.session.stats()
    }

    fn close(&self, code: u64, reason: &str) {
        self.session.close(code, reason);
    }

    fn peer_code(&self) -> Option<u64> {
        self.session.peer_code()
    }
    fn wait_closed(&self, patience: Duration) -> Option<Failure> {
        self.session.wait_closed(patience).map(Failure::from)
    }
}

fn send_file(ticket: &Ticket, file: &Path, progress: &Progress) -> Outcome<()> {
    let session = connect(ticket, Service::Files, &Options::default())?;
    let roots = named(&[file]);
    let announced = roots::announce(&roots)?;
    end(send(
        &session,
        &roots,
        announced,
        &SourceKey::of(1),
        progress,
        &quiet(),
    ))
    .map(drop)
}

fn receive_file(channel: &impl Channel, output: &Path) -> Outcome<()> {
    let output = destination(output, Rules::default())?;
    let progress = Progress::default();
    end(receive(
        channel,
        &output,
        &|_| Ok(None),
        &progress,
        &quiet(),
    ))
    .map(drop)
}

#[test]
fn a_disk_that_hangs_stops_its_sender_and_nothing_else() {
    let Dirs { _root, from, to } = dirs();
    let large = write(from.join("large"), &[7; 100_000_000]);
    let small = write(from.join("small"), &[8; 10_000_000]);
    let options = Options::default();
    let server = Server::bind(([127, 0, 0, 1], 0).into(), Service::Files, &options).unwrap();
    let ticket = server.ticket(&["127.0.0.1".to_owned()]).unwrap();
    let accept = || server.accept(Some(PATIENCE)).unwrap().expect("in time");
    let gate = Arc::new(Gate::default());
    let progress = Progress::default();
    let on_their_way = thread::scope(|scope| {
        let sending = scope.spawn(|| send_file(&ticket, &large, &progress));
        let disk = SlowDisk {
            session: accept(),
            gate: Arc::clone(&gate),
        };
        let receiving = scope.spawn(|| receive_file(&{ disk }, &to));
        let mut stopped = 0;
        loop {
            thread::sleep(Duration::from_millis(300));
            let now = progress.bytes();
            if now > 0 && std::mem::replace(&mut stopped, now) == now {
                break;
            }
        }
        let other = scope.spawn(|| send_file(&ticket, &small, &Progress::default()));
        let beside = receive_file(&accept(), &to);
        let on_their_way = progress.bytes();
        // Whatever went wrong so far, everybody comes to an end.
        gate.open();
        beside.unwrap();
        for thread in [sending, receiving, other] {
            thread.join().expect("no panic").unwrap();
        }
        on_their_way
    });
    assert!(on_their_way < HELD_MAX, "{on_their_way} bytes");
    for name in ["large", "small"] {
        let (sent, received) = (fs::read(from.join(name)), fs::read(to.join(name)));
        assert!(sent.unwrap() == received.unwrap(), "{name} differs");
    }
}
