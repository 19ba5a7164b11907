//! Two ends of a session joined in memory, for tests of the protocols above it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use sphinx_transport::{ErrorKind, Stats};

use crate::channel::{Channel, Incoming, Outgoing};
use crate::failure::{Failure, Outcome, fail, kind_of_peer_code};

const CAPACITY: usize = 1 << 18;

/// One direction of one stream.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    finished: bool,
}

#[derive(Default)]
struct Shared {
    /// Streams opened by each side, and how many of them the other side has accepted.
    opened: [Vec<Pipe>; 2],
    accepted: [usize; 2],
    /// The side that closed, with its code and reason.
    closed: Option<(usize, u64, String)>,
}

struct Wire {
    shared: Mutex<Shared>,
    changed: Condvar,
    since: Instant,
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared
            .lock()
            .expect("no test thread panics with the lock")
    }

    /// Waits until `ready` gives something; a session that ends gives its error first.
    fn wait<T>(&self, side: usize, ready: impl Fn(&mut Shared) -> Option<T>) -> Outcome<T> {
        let mut shared = self.lock();
        loop {
            // What has arrived is given out even after the session has ended.
            if let Some(value) = ready(&mut shared) {
                self.changed.notify_all();
                return Ok(value);
            }
            if let Some(failure) = shared.ended(side) {
                return Err(failure);
            }
            let (guard, wait) = self
                .changed
                .wait_timeout(shared, Duration::from_secs(20))
                .expect("no test thread panics with the lock");
            assert!(!wait.timed_out(), "side {side} waits for ever");
            shared = guard;
        }
    }
}

impl Shared {
    fn ended(&self, side: usize) -> Option<Failure> {
        let (by, code, reason) = self.closed.as_ref()?;
        let kind = if *by == side {
            ErrorKind::Other
        } else {
            kind_of_peer_code(*code)
        };
        Some(fail(kind, reason.clone()))
    }
}

/// One end.
#[derive(Clone)]
pub(crate) struct End {
    wire: Arc<Wire>,
    side: usize,
}

impl End {
    /// Whether either end has closed the session.
    pub(crate) fn is_over(&self) -> bool {
        self.wire.lock().closed.is_some()
    }

    /// Waits until so much of a stream of the other end as fits is on its way.
    #[cfg(test)]
    pub(crate) fn wait_until_full(&self) -> Outcome<()> {
        let is_full = |pipe: &Pipe| pipe.bytes.len() == CAPACITY;
        self.wire.wait(self.side, |shared| {
            let pipes = &shared.opened[1 - self.side];
            pipes.iter().any(is_full).then_some(())
        })
    }
}

pub(crate) struct Out {
    end: End,
    id: usize,
}

pub(crate) struct In {
    end: End,
    id: usize,
}

/// A connected pair.
pub(crate) fn pair() -> (End, End) {
    let wire = Arc::new(Wire {
        shared: Mutex::default(),
        changed: Condvar::new(),
        since: Instant::now(),
    });
    (
        End {
            wire: wire.clone(),
            side: 0,
        },
        End { wire, side: 1 },
    )
}

impl Channel for End {
    type Out = Out;
    type In = In;

    fn open_uni(&self) -> Outcome<Out> {
        let mut shared = self.wire.lock();
        if let Some(failure) = shared.ended(self.side) {
            return Err(failure);
        }
        shared.opened[self.side].push(Pipe::default());
        self.wire.changed.notify_all();
        Ok(Out {
            end: self.clone(),
            id: shared.opened[self.side].len() - 1,
        })
    }

    fn accept_uni(&self) -> Outcome<In> {
        let peer = 1 - self.side;
        let id = self.wire.wait(self.side, |shared| {
            let next = shared.accepted[peer];
            (next < shared.opened[peer].len()).then(|| {
                shared.accepted[peer] += 1;
                next
            })
        })?;
        Ok(In {
            end: self.clone(),
            id,
        })
    }

    fn stats(&self) -> Stats {
        Stats {
            elapsed: self.wire.since.elapsed(),
            rtt: Duration::from_micros(100),
            min_rtt: Duration::from_micros(50),
            cc: "bbr",
            codec: "rlc",
            profile: "bulk",
            io: "memory",
            has_ended: self.is_over(),
            ..Stats::default()
        }
    }

    fn close(&self, code: u64, reason: &str) {
        let mut shared = self.wire.lock();
        shared
            .closed
            .get_or_insert((self.side, code, reason.to_owned()));
        self.wire.changed.notify_all();
    }

    fn peer_code(&self) -> Option<u64> {
        let shared = self.wire.lock();
        let (by, code, _) = shared.closed.as_ref()?;
        (*by != self.side).then_some(*code)
    }
}

impl Outgoing for Out {
    fn write_all(&mut self, mut data: &[u8]) -> Outcome<()> {
        let (side, id) = (self.end.side, self.id);
        while !data.is_empty() {
            let room = self.end.wire.wait(side, |shared| {
                if shared.closed.is_some() {
                    return None;
                }
                match CAPACITY - shared.opened[side][id].bytes.len() {
                    0 => None,
                    room => Some(room),
                }
            })?;
            let (now, later) = data.split_at(room.min(data.len()));
            self.end.wire.lock().opened[side][id].bytes.extend(now);
            self.end.wire.changed.notify_all();
            data = later;
        }
        Ok(())
    }

    fn flush(&mut self) -> Outcome<()> {
        Ok(())
    }

    fn finish(&mut self) -> Outcome<()> {
        self.end.wire.lock().opened[self.end.side][self.id].finished = true;
        self.end.wire.changed.notify_all();
        Ok(())
    }

    fn wait_delivered(&mut self) -> Outcome<()> {
        match self.end.wire.lock().ended(self.end.side) {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }
}

impl Incoming for In {
    fn read(&mut self, buf: &mut [u8]) -> Outcome<usize> {
        let (peer, id) = (1 - self.end.side, self.id);
        let bytes: Vec<u8> = self.end.wire.wait(self.end.side, |shared| {
            let pipe = &mut shared.opened[peer][id];
            let n = pipe.bytes.len().min(buf.len());
            (n > 0 || pipe.finished).then(|| {
                let (head, tail) = pipe.bytes.as_slices();
                let cut = n.min(head.len());
                let bytes = [&head[..cut], &tail[..n - cut]].concat();
                pipe.bytes.drain(..n);
                bytes
            })
        })?;
        buf[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

/// An output that keeps what is written to it.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Kept(pub(crate) Vec<u8>);

#[cfg(test)]
impl Outgoing for Kept {
    fn write_all(&mut self, data: &[u8]) -> Outcome<()> {
        self.0.extend_from_slice(data);
        Ok(())
    }
    fn flush(&mut self) -> Outcome<()> {
        Ok(())
    }
    fn finish(&mut self) -> Outcome<()> {
        Ok(())
    }
    fn wait_delivered(&mut self) -> Outcome<()> {
        Ok(())
    }
}
