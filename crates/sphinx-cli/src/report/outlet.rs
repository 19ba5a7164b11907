//! One output of the process, written by a thread of its own, so that a reader who does not read
//! holds up nobody who has something else to do.
//!
//! What waits to be read is bounded for each session and for all of them; `docs/reports.md` says what
//! happens at the bounds.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::writer::Item;
use crate::signals::Stop;

/// Bytes that one session may have waiting before its reports of files wait for the reader.
pub(super) const SESSION_BYTES: usize = 8 << 20;
/// Bytes that all sessions together may have waiting.
const TOTAL_BYTES: usize = 64 << 20;
/// Progress is dropped while more than this waits: by the time it is read it is history.
const PROGRESS_BYTES: usize = 16 << 10;
/// How often those who wait look whether the process has been asked to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(50);
/// How long the reader may take for the rest after a signal.
const STOP_PATIENCE: Duration = Duration::from_millis(500);

/// An output with its queue; clones share both.
#[derive(Clone)]
pub(super) struct Outlet(Arc<Shared>);

/// Bytes that one session has waiting; clones are the same session's.
#[derive(Clone, Default)]
pub(super) struct Share(Arc<AtomicUsize>);

/// The queue is full, or not empty yet, and the reader takes nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unread;

/// When there is room for an item in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// While the reader keeps up. Never waits: the next such item says more.
    WhenRead,
    /// While the item's session has not used up its share of the queue.
    OfSession,
    /// While all sessions together have not used up everything.
    OfAll,
}

type Write = Box<dyn FnMut(Item) -> io::Result<()> + Send>;
pub(super) type OnFailure = Box<dyn FnOnce(&io::Error) + Send>;

struct Shared {
    name: &'static str,
    state: Mutex<State>,
    /// There is something to write.
    filled: Condvar,
    /// Something has been written, or never will be.
    written: Condvar,
}

struct State {
    queue: VecDeque<(Item, Share)>,
    /// Bytes in the queue, those being written included.
    bytes: usize,
    /// Items that have been put into the queue, and those that have been written.
    given: u64,
    taken: u64,
    /// Why nothing is written any more.
    failed: Option<io::ErrorKind>,
    /// What the thread will run; `None` once it runs.
    idle: Option<(Write, OnFailure)>,
}

impl Outlet {
    /// `write` runs in a thread that starts with the first item: a process that says nothing stays
    /// single-threaded. After its first error, which `on_failure` is told, nothing is written any more.
    pub(super) fn new(
        name: &'static str,
        write: impl FnMut(Item) -> io::Result<()> + Send + 'static,
        on_failure: OnFailure,
    ) -> Self {
        Self(Arc::new(Shared {
            name,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                bytes: 0,
                given: 0,
                taken: 0,
                failed: None,
                idle: Some((Box::new(write), on_failure)),
            }),
            filled: Condvar::new(),
            written: Condvar::new(),
        }))
    }

    /// Queues `item`. Waits for room until the reader has taken nothing for `patience` (`None`: for
    /// ever) or the process is asked to stop. An output that has failed takes everything.
    pub(super) fn push(
        &self,
        item: Item,
        share: &Share,
        room: Room,
        patience: Option<Duration>,
        stop: &Stop,
    ) -> Result<(), Unread> {
        let bytes = item.bytes();
        let fits = |state: &State| match room {
            Room::WhenRead => state.bytes <= PROGRESS_BYTES,
            Room::OfSession => fits(share.bytes(), bytes, SESSION_BYTES) && fits_all(state, bytes),
            Room::OfAll => fits_all(state, bytes),
        };
        let patience = match room {
            Room::WhenRead => Some(Duration::ZERO),
            _ => patience,
        };
        let mut state = self.wait(self.lock(), fits, patience, stop, Duration::ZERO);
        if state.failed.is_some() {
            return Ok(());
        }
        if !fits(&state) {
            return Err(Unread);
        }
        state.bytes += bytes;
        state.given += 1;
        share.0.fetch_add(bytes, Ordering::Relaxed);
        state.queue.push_back((item, share.clone()));
        let idle = state.idle.take();
        drop(state);
        self.0.filled.notify_one();
        if let Some((write, on_failure)) = idle {
            self.start(write, on_failure);
        }
        Ok(())
    }

    /// Waits until what has been queued so far is written, with the patience of [`push`](Self::push);
    /// after a signal the reader still gets half a second.
    pub(super) fn flush(&self, patience: Option<Duration>, stop: &Stop) -> Result<(), Unread> {
        let state = self.lock();
        let given = state.given;
        let done = |state: &State| state.taken >= given;
        let state = self.wait(state, done, patience, stop, STOP_PATIENCE);
        match done(&state) || state.failed.is_some() {
            true => Ok(()),
            false => Err(Unread),
        }
    }

    /// Why nothing is written any more, if that is so.
    pub(super) fn failed(&self) -> Option<io::ErrorKind> {
        self.lock().failed
    }

    /// Waits until `ready`, the output has failed, or waiting has no sense any more.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        ready: impl Fn(&State) -> bool,
        patience: Option<Duration>,
        stop: &Stop,
        stop_patience: Duration,
    ) -> MutexGuard<'a, State> {
        let (mut last, mut taken) = (Instant::now(), state.taken);
        let mut stopped = None;
        while !ready(&state) && state.failed.is_none() {
            let now = Instant::now();
            if state.taken != taken {
                (last, taken) = (now, state.taken);
            }
            let stopped = stop
                .requested()
                .then(|| now - *stopped.get_or_insert(now) >= stop_patience);
            if stopped == Some(true) || patience.is_some_and(|patience| now - last >= patience) {
                break;
            }
            let waited = self.0.written.wait_timeout(state, STOP_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    fn start(&self, write: Write, on_failure: OnFailure) {
        let outlet = self.clone();
        let started = thread::Builder::new()
            .name(self.0.name.to_owned())
            .spawn(move || {
                let error = outlet.run(write);
                on_failure(&error);
            });
        if let Err(error) = started {
            self.fail(&error);
        }
    }

    /// Writes what comes until writing fails.
    fn run(&self, mut write: Write) -> io::Error {
        let mut state = self.lock();
        loop {
            let Some((item, share)) = state.queue.pop_front() else {
                let waited = self.0.filled.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let bytes = item.bytes();
            if let Err(error) = write(item) {
                self.fail(&error);
                return error;
            }
            share.0.fetch_sub(bytes, Ordering::Relaxed);
            state = self.lock();
            state.bytes -= bytes;
            state.taken += 1;
            self.0.written.notify_all();
        }
    }

    fn fail(&self, error: &io::Error) {
        let mut state = self.lock();
        state.failed = Some(error.kind());
        state.queue.clear();
        self.0.written.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let state = self.0.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn fits_all(state: &State, bytes: usize) -> bool {
    fits(state.bytes, bytes, TOTAL_BYTES)
}

/// One item alone always fits.
fn fits(waiting: usize, more: usize, most: usize) -> bool {
    waiting == 0 || waiting + more <= most
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{self, Receiver, Sender};

    const SHORT: Option<Duration> = Some(Duration::from_millis(20));

    /// An output whose reader takes an item for each message, and what it has taken.
    fn outlet() -> (Outlet, Sender<()>, Receiver<String>) {
        let (read, reading) = mpsc::channel::<()>();
        let (taken, items) = mpsc::channel();
        let write = move |item| {
            reading
                .recv()
                .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
            // A test that has ended looks at nothing any more.
            let _ = taken.send(format!("{item:?}"));
            Ok(())
        };
        (Outlet::new("test", write, Box::new(|_| {})), read, items)
    }

    fn line(bytes: usize) -> Item {
        Item::Note("x".repeat(bytes))
    }

    #[test]
    fn a_session_waits_for_its_own_reports_only() {
        let (outlet, _read, _items) = outlet();
        let stop = Stop::default();
        let (one, other) = (Share::default(), Share::default());
        let push = |share, room| outlet.push(line(1 << 20), share, room, SHORT, &stop);
        while push(&one, Room::OfSession).is_ok() {}
        assert!(one.bytes() > SESSION_BYTES - (2 << 20) && one.bytes() <= SESSION_BYTES);
        assert_eq!(push(&one, Room::WhenRead), Err(Unread));
        assert_eq!(push(&one, Room::OfAll), Ok(()));
        assert_eq!(push(&other, Room::OfSession), Ok(()));
    }

    #[test]
    fn all_sessions_together_are_bounded() {
        let (outlet, _read, _items) = outlet();
        let stop = Stop::default();
        let push = || {
            let share = Share::default();
            outlet.push(line(1 << 20), &share, Room::OfAll, SHORT, &stop)
        };
        let pushed = (0..1000).take_while(|_| push().is_ok()).count();
        assert!((60..=64).contains(&pushed), "{pushed}");
    }

    #[test]
    fn a_slow_reader_gets_everything_in_order() {
        let (outlet, read, items) = outlet();
        let stop = Stop::default();
        let share = Share::default();
        for n in 0..5 {
            let item = Item::Note(n.to_string());
            outlet
                .push(item, &share, Room::OfSession, SHORT, &stop)
                .unwrap();
        }
        assert_eq!(outlet.flush(SHORT, &stop), Err(Unread));
        (0..5).for_each(|_| read.send(()).unwrap());
        outlet.flush(None, &stop).unwrap();
        let taken: Vec<String> = items.try_iter().collect();
        assert_eq!(taken.len(), 5);
        assert!(taken.is_sorted(), "{taken:?}");
        assert_eq!(share.bytes(), 0);
    }

    #[test]
    fn a_reader_that_goes_away_releases_those_who_wait() {
        let (outlet, read, _items) = outlet();
        let stop = Stop::default();
        let share = Share::default();
        let push = |room| outlet.push(line(5 << 20), &share, room, None, &stop);
        push(Room::OfSession).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| push(Room::OfSession));
            drop(read);
            assert_eq!(waiting.join().unwrap(), Ok(()));
        });
        assert_eq!(outlet.failed(), Some(io::ErrorKind::BrokenPipe));
        assert_eq!(outlet.flush(None, &stop), Ok(()));
        assert_eq!(push(Room::WhenRead), Ok(()));
    }
}
