//! The pipe to the end that ssh has started, or to the one that has started this: messages, and a channel for files
//! where UDP does not get through.

use std::collections::VecDeque;
use std::io::{BufReader, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use sphinx_transport::{ErrorKind, Stats};

use super::messages::{
    self, Carrier, Close, DATA_BYTES_MAX, Failed, Frame, Listening, Offer, Request,
};
use crate::channel::{Channel, Incoming, Outgoing};
use crate::failure::{Failure, Outcome, fail, kind_of_peer_code, local_io, protocol};

/// Data that has come and waits to be read.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// A stream with a limit is written in so many pieces a second.
const LIMITED_PIECES: u64 = 20;
/// Messages that wait to be read: there are no more in all.
const MESSAGES_MAX: usize = 4;
/// How long a farewell waits for data that is being written.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// A message of the other end.
#[derive(Debug, PartialEq)]
pub(crate) enum Message {
    Listening(Listening),
    Request(Request),
    Offer(Offer),
    Failed(Failed),
    Carrier(Carrier),
}

/// Both directions; clones are the same pipe.
#[derive(Clone)]
pub(crate) struct Pipe(Arc<Shared>);

struct Shared {
    output: Mutex<Option<Box<dyn Write + Send>>>,
    state: Mutex<State>,
    changed: Condvar,
    born: Instant,
    written: AtomicU64,
    read: AtomicU64,
    waits: Mutex<Waits>,
    /// Bytes of the stream that leave in a second at most.
    limit: OnceLock<u64>,
}

/// How long writing has waited for the other end, or what is between.
#[derive(Default)]
struct Waits {
    before: Duration,
    /// When the write that is under way began; `None` if there is none.
    since: Option<Instant>,
}

impl Waits {
    fn end(&mut self) {
        self.before += self
            .since
            .take()
            .map_or(Duration::ZERO, |since| since.elapsed());
    }

    fn all(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

#[derive(Default)]
struct State {
    greeted: bool,
    messages: VecDeque<Message>,
    data: VecDeque<u8>,
    finished: bool,
    /// Why nothing more can come; `None` while something may.
    ended: Option<Failure>,
    peer_code: Option<u64>,
    /// This end has closed the pipe and takes nothing more.
    closed: bool,
    /// The one stream of each direction has been given out.
    opened: bool,
    accepted: bool,
}

impl Pipe {
    /// Greets the other end and reads what comes.
    pub(crate) fn start(
        input: impl Read + Send + 'static,
        mut output: impl Write + Send + 'static,
    ) -> Outcome<Self> {
        // If the other end does not read it, reading from the pipe fails too, with a better reason.
        let _ = output.write_all(&messages::greeting());
        let pipe = Self(Arc::new(Shared {
            output: Mutex::new(Some(Box::new(output))),
            state: Mutex::default(),
            changed: Condvar::new(),
            born: Instant::now(),
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            waits: Mutex::default(),
            limit: OnceLock::new(),
        }));
        let reading = pipe.clone();
        let started = thread::Builder::new()
            .name("pipe".to_owned())
            .spawn(move || {
                let failure = reading.run(BufReader::with_capacity(2 * DATA_BYTES_MAX, input));
                reading.lock().ended.get_or_insert(failure);
                reading.0.changed.notify_all();
            });
        started.map_err(|error| local_io("start", "a thread", error))?;
        Ok(pipe)
    }

    /// Reads until there is nothing more: why.
    fn run(&self, mut input: impl Read) -> Failure {
        if let Err(failure) = messages::find_greeting(&mut input) {
            return failure;
        }
        self.lock().greeted = true;
        loop {
            let frame = match messages::read(&mut input) {
                Ok(Some(frame)) => frame,
                Ok(None) => return messages::lost(&std::io::ErrorKind::UnexpectedEof.into()),
                Err(failure) => return failure,
            };
            if let Err(failure) = self.take(frame) {
                return failure;
            }
        }
    }

    fn take(&self, frame: Frame) -> Outcome<()> {
        let message = match frame {
            Frame::Data(data) => return self.take_data(&data),
            Frame::Finish => {
                self.lock().finished = true;
                self.0.changed.notify_all();
                return Ok(());
            }
            Frame::Close(Close { code, reason }) => {
                let mut state = self.lock();
                state.peer_code = Some(code);
                return Err(fail(
                    kind_of_peer_code(code),
                    format!("the other end has closed: {reason}"),
                ));
            }
            Frame::Listening(listening) => Message::Listening(listening),
            Frame::Request(request) => Message::Request(request),
            Frame::Offer(offer) => Message::Offer(offer),
            Frame::Failed(failed) => Message::Failed(failed),
            Frame::Carrier(carrier) => Message::Carrier(carrier),
        };
        let mut state = self.lock();
        if state.messages.len() >= MESSAGES_MAX {
            return Err(protocol("more messages than there are"));
        }
        state.messages.push_back(message);
        self.0.changed.notify_all();
        Ok(())
    }

    fn take_data(&self, data: &[u8]) -> Outcome<()> {
        let mut state = self.lock();
        if state.finished {
            return Err(protocol("data after the end of the stream"));
        }
        while state.data.len() >= WAITING_BYTES_MAX && !state.closed {
            state = self.wait(state, None);
        }
        if !state.closed {
            state.data.extend(data);
            self.0.changed.notify_all();
        }
        Ok(())
    }

    /// Whether the other end has greeted.
    pub(crate) fn is_greeted(&self) -> bool {
        self.lock().greeted
    }

    /// Whether nothing more comes.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    /// The next message; `None` after `patience`, if there is one.
    pub(crate) fn message(&self, patience: Option<Duration>) -> Outcome<Option<Message>> {
        let until = patience.map(|patience| Instant::now() + patience);
        let mut state = self.lock();
        loop {
            if let Some(message) = state.messages.pop_front() {
                return Ok(Some(message));
            }
            if let Some(failure) = &state.ended {
                return Err(failure.clone());
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            state = self.wait(state, left);
        }
    }

    /// Waits until nothing more comes.
    pub(crate) fn wait_end(&self) -> Failure {
        let mut state = self.lock();
        loop {
            if let Some(failure) = &state.ended {
                return failure.clone();
            }
            state = self.wait(state, None);
        }
    }

    pub(crate) fn request(&self, request: Request) -> Outcome<()> {
        self.put(&Frame::Request(request))
    }

    pub(crate) fn listening(&self, listening: Listening) -> Outcome<()> {
        self.put(&Frame::Listening(listening))
    }

    pub(crate) fn offer(&self, offer: Offer) -> Outcome<()> {
        self.put(&Frame::Offer(offer))
    }

    pub(crate) fn failed(&self, failed: Failed) -> Outcome<()> {
        self.put(&Frame::Failed(failed))
    }

    pub(crate) fn carrier(&self, carrier: Carrier) -> Outcome<()> {
        self.put(&Frame::Carrier(carrier))
    }

    fn put(&self, frame: &Frame) -> Outcome<()> {
        self.write(&messages::put(frame)?)
    }

    fn write(&self, bytes: &[u8]) -> Outcome<()> {
        let mut output = self.0.output.lock().unwrap_or_else(PoisonError::into_inner);
        self.waits().since = Some(Instant::now());
        let written = match &mut *output {
            Some(output) => output.write_all(bytes).and_then(|()| output.flush()),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        self.waits().end();
        // If the other end has said why it reads no more, that is the error.
        written.map_err(|error| match &self.lock().ended {
            Some(failure) => failure.clone(),
            None => messages::lost(&error),
        })
    }

    /// The stream towards the other end takes no more than so many bytes a second.
    pub(crate) fn limit(&self, bytes_per_second: u64) {
        self.0.limit.get_or_init(|| bytes_per_second.max(1));
    }

    /// Nothing more is written: the other end sees the end.
    pub(crate) fn end_output(&self) {
        self.close_here();
        if let Ok(mut output) = self.0.output.try_lock() {
            *output = None;
        }
    }

    fn close_here(&self) {
        self.lock().closed = true;
        self.0.changed.notify_all();
    }

    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.0.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        time: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        match time {
            None => (self.0.changed.wait(state)).unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                let waited = self.0.changed.wait_timeout(state, time);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}

/// The stream towards the other end.
pub(crate) struct PipeOut {
    pipe: Pipe,
    /// Before that nothing may leave, where there is a limit.
    due: Instant,
}

impl PipeOut {
    /// Waits until so many bytes may leave.
    fn wait_turn(&mut self, bytes: usize, rate: u64) {
        let mut state = self.pipe.lock();
        loop {
            let now = Instant::now();
            let early = self.due.saturating_duration_since(now);
            if early.is_zero() || state.closed {
                // Time that passed without sending does not allow a burst afterwards.
                self.due = now + Duration::from_secs_f64(bytes as f64 / rate as f64);
                return;
            }
            state = self.pipe.wait(state, Some(early));
        }
    }
}

/// The stream from the other end.
pub(crate) struct PipeIn(Pipe);

/// One stream in each direction.
impl Channel for Pipe {
    type Out = PipeOut;
    type In = PipeIn;

    fn open_uni(&self) -> Outcome<PipeOut> {
        match std::mem::replace(&mut self.lock().opened, true) {
            false => Ok(PipeOut {
                pipe: self.clone(),
                due: self.0.born,
            }),
            true => Err(protocol("a pipe has one stream")),
        }
    }

    /// The first one; whoever asks for another one waits for the end.
    fn accept_uni(&self) -> Outcome<PipeIn> {
        if !std::mem::replace(&mut self.lock().accepted, true) {
            return Ok(PipeIn(self.clone()));
        }
        Err(self.wait_end())
    }

    /// What is known without seeing packets.
    fn stats(&self) -> Stats {
        Stats {
            elapsed: self.0.born.elapsed(),
            window_limited: self.waits().all(),
            bytes_delivered: self.0.written.load(Ordering::Relaxed),
            bytes_received: self.0.read.load(Ordering::Relaxed),
            icm: "off",
            cc: "tcp",
            codec: "none",
            profile: "bulk",
            io: "ssh",
            ..Stats::default()
        }
    }

    fn close(&self, code: u64, reason: &str) {
        self.close_here();
        let close = Frame::Close(Close {
            code,
            reason: reason.to_owned(),
        });
        let Ok(bytes) = messages::put(&close) else {
            return;
        };
        // Who is writing may wait for a reader for ever.
        let until = Instant::now() + FAREWELL_TIMEOUT;
        loop {
            match self.0.output.try_lock() {
                Ok(mut output) => {
                    if let Some(output) = &mut *output {
                        let _ = output.write_all(&bytes).and_then(|()| output.flush());
                    }
                    return;
                }
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(_) => return,
            }
        }
    }

    fn peer_code(&self) -> Option<u64> {
        self.lock().peer_code
    }
}

impl Outgoing for PipeOut {
    fn write_all(&mut self, data: &[u8]) -> Outcome<()> {
        let limit = self.pipe.0.limit.get().copied();
        let piece_bytes = limit.map_or(DATA_BYTES_MAX, |rate| {
            usize::try_from(rate / LIMITED_PIECES)
                .map_or(DATA_BYTES_MAX, |bytes| bytes.clamp(1, DATA_BYTES_MAX))
        });
        for piece in data.chunks(piece_bytes) {
            if let Some(rate) = limit {
                self.wait_turn(piece.len(), rate);
            }
            if self.pipe.lock().closed {
                return Err(fail(ErrorKind::Other, "this end has closed"));
            }
            self.pipe.write(&messages::framed_data(piece))?;
            (self.pipe.0.written).fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn flush(&mut self) -> Outcome<()> {
        Ok(())
    }

    fn finish(&mut self) -> Outcome<()> {
        self.pipe.put(&Frame::Finish)
    }

    /// Returns at once: of a pipe it is not known what has arrived.
    fn wait_delivered(&mut self) -> Outcome<()> {
        Ok(())
    }
}

impl Incoming for PipeIn {
    /// What has come is given out although the other end has closed.
    fn read(&mut self, buf: &mut [u8]) -> Outcome<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let mut state = self.0.lock();
        loop {
            if !state.data.is_empty() {
                let read = state.data.read(buf).unwrap_or(0);
                drop(state);
                self.0.0.changed.notify_all();
                self.0.0.read.fetch_add(read as u64, Ordering::Relaxed);
                return Ok(read);
            }
            if state.finished {
                return Ok(0);
            }
            if let Some(failure) = &state.ended {
                return Err(failure.clone());
            }
            if state.closed {
                return Err(fail(ErrorKind::Other, "this end has closed"));
            }
            state = self.0.wait(state, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::failure::code;

    /// Both ends of a pipe.
    fn pair() -> (Pipe, Pipe) {
        let (near, far) = UnixStream::pair().expect("sockets");
        let end = |socket: UnixStream| {
            let input = socket.try_clone().expect("a descriptor");
            Pipe::start(input, socket).expect("a thread")
        };
        (end(near), end(far))
    }

    #[test]
    fn messages_and_data_come_in_order() {
        let (near, far) = pair();
        near.carrier(Carrier::Ssh).unwrap();
        let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n >> 5) as u8).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut out = near.open_uni().unwrap();
                out.write_all(&data).unwrap();
                out.finish().unwrap();
                assert_eq!(near.accept_uni().unwrap().read(&mut [0; 9]), Ok(0));
                near.close(code::DONE, "done");
            });
            let message = far.message(None).unwrap();
            assert_eq!(message, Some(Message::Carrier(Carrier::Ssh)));
            let mut input = far.accept_uni().unwrap();
            let mut read = Vec::new();
            let mut buffer = vec![0; 100_000];
            loop {
                match input.read(&mut buffer).unwrap() {
                    0 => break,
                    n => read.extend_from_slice(&buffer[..n]),
                }
            }
            assert!(read == data);
            far.open_uni().unwrap().finish().unwrap();
            let failure = far.accept_uni().err().expect("it has closed");
            assert_eq!(failure.kind, ErrorKind::Cancelled);
            assert_eq!(far.peer_code(), Some(code::DONE));
        });
        assert_eq!(near.stats().bytes_delivered, 3_000_000);
        assert_eq!(far.stats().bytes_received, 3_000_000);
    }

    #[test]
    fn a_reader_that_wants_no_more_holds_nobody_up() {
        let (near, far) = pair();
        let mut out = near.open_uni().unwrap();
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                loop {
                    if let Err(failure) = out.write_all(&[0; DATA_BYTES_MAX]) {
                        return failure.kind;
                    }
                }
            });
            let mut input = far.accept_uni().unwrap();
            assert!(input.read(&mut [0; 10]).unwrap() > 0);
            // What is waited for shows while it is.
            let stalls = Duration::from_millis(50);
            while near.stats().window_limited < stalls {
                thread::sleep(Duration::from_millis(1));
            }
            far.close(code::REMOTE_IO, "full");
            assert_eq!(near.wait_end().kind, ErrorKind::RemoteIo);
            near.close(code::CANCELLED, "the other end has failed");
            writer.join().expect("it does not panic")
        });
    }

    /// A rate limit holds, however fast the pipe is.
    #[test]
    fn a_limit_is_kept() {
        let (near, far) = pair();
        near.limit(100_000);
        let begun = Instant::now();
        thread::scope(|scope| {
            let mut out = near.open_uni().unwrap();
            scope.spawn(move || out.write_all(&[0; 30_000]).and_then(|()| out.finish()));
            let mut input = far.accept_uni().unwrap();
            let mut read = 0;
            loop {
                match input.read(&mut [0; 10_000]).unwrap() {
                    0 => break,
                    n => read += n,
                }
            }
            assert_eq!(read, 30_000);
        });
        // The first piece leaves at once.
        assert!(begun.elapsed() >= Duration::from_millis(240));
    }

    #[test]
    fn who_waits_for_a_limit_does_not_hold_up_the_end() {
        let (near, far) = pair();
        near.limit(1);
        thread::scope(|scope| {
            let mut out = near.open_uni().unwrap();
            let writer = scope.spawn(move || out.write_all(&[0; 30_000]));
            let mut input = far.accept_uni().unwrap();
            assert_eq!(input.read(&mut [0; 10]), Ok(1));
            near.close(code::CANCELLED, "interrupted");
            assert!(writer.join().expect("it does not panic").is_err());
        });
    }

    #[test]
    fn the_end_of_the_pipe_ends_everything() {
        let (near, far) = pair();
        let (input, sink) = UnixStream::pair().expect("sockets");
        let alone = Pipe::start(input, std::io::sink()).unwrap();
        drop(sink);
        assert_eq!(alone.message(None).unwrap_err().kind, ErrorKind::PeerLost);
        assert!(!alone.is_greeted());
        assert_eq!(near.message(Some(Duration::from_millis(1))), Ok(None));
        drop((near, far));
    }
}
