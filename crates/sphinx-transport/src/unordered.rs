//! Messages in no order: each is a stream of its own, so that one that waits for repair holds up no other (`docs/protocol.md` §5.4).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use sphinx_driver::{Gatherer, MAX_MESSAGE};

use crate::error::{Error, ErrorKind};
use crate::recv_stream::RecvStream;
use crate::send_stream::SendStream;
use crate::shared::Session;
use crate::signal::Waiter;
use crate::sync::{Mutex, MutexGuard};

/// Read of a stream at a time, bytes.
const PIECE: usize = 64 << 10;
/// What is kept of messages that are not whole, besides the oldest of them, bytes.
const GATHERED_BYTES_MAX: usize = 32 << 20;

impl Session {
    /// Sends a message of at most 16 MiB, which arrives whole whatever becomes of others: the peer's [`UnorderedReceiver`] gets it as soon as it is
    /// complete. Waits while as many streams are open as [may be](Self::open_uni), and while window and queue are full.
    ///
    /// It goes over a new stream with one direction, which is returned finished: [`wait_delivered`](SendStream::wait_delivered) tells when it has
    /// arrived, [`reset`](SendStream::reset) gives it up; dropping the stream changes nothing.
    ///
    /// # Errors
    /// When the session ends, or the peer wants no more of this message; and if it is too long: nothing of it is sent then.
    pub fn send_message(&self, message: &[u8]) -> Result<SendStream, Error> {
        check_len(message)?;
        let mut waiter = Waiter::new(&self.signals().opening_uni);
        let mut stream = block_on(|cx| self.poll_open_uni(&mut waiter, cx))?;
        stream.write_all(message)?;
        stream.finish()?;
        Ok(stream)
    }

    /// Takes every stream with one direction that the peer opens, and is not accepted elsewhere, for a message.
    pub fn receive_messages(&self) -> UnorderedReceiver {
        UnorderedReceiver {
            accepting: Waiter::new(&self.signals().accepting_uni),
            session: self.clone(),
            gatherer: Gatherer::new(GATHERED_BYTES_MAX),
            news: Arc::default(),
        }
    }
}

/// Whether a message may be so long.
pub(crate) fn check_len(message: &[u8]) -> Result<(), Error> {
    let len = message.len();
    match len <= MAX_MESSAGE {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::Usage,
            format!("a message of {len} bytes; the longest has {MAX_MESSAGE}"),
        )),
    }
}

/// Receives messages in the order in which they are complete.
///
/// Of messages that are not, it keeps 32 MiB, and the oldest one whole. Dropping it drops them, which stops their senders with code 0.
pub struct UnorderedReceiver {
    session: Session,
    accepting: Waiter,
    gatherer: Gatherer<Arriving>,
    news: Arc<News>,
}

/// The stream of a message, and who is woken when there is more of it.
struct Arriving {
    stream: RecvStream,
    waker: Waker,
}

/// Which streams have news, and who waits for them.
#[derive(Default)]
struct News(Mutex<(BTreeSet<u64>, Option<Waker>)>);

impl News {
    fn lock(&self) -> MutexGuard<'_, (BTreeSet<u64>, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes for one stream.
struct Alarm {
    news: Arc<News>,
    number: u64,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        let mut news = self.news.lock();
        news.0.insert(self.number);
        let waker = news.1.take();
        // Nobody else's code runs under the lock.
        drop(news);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl fmt::Debug for UnorderedReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnorderedReceiver")
            .field("gatherer", &self.gatherer)
            .finish_non_exhaustive()
    }
}

impl UnorderedReceiver {
    /// Takes no longer messages than this, bytes, at most 16 MiB.
    #[must_use]
    pub fn at_most(mut self, most: usize) -> Self {
        self.gatherer.limit(most);
        self
    }

    /// Waits for the next message that is complete. One that its sender gives up never is.
    ///
    /// # Errors
    /// When the session ends; messages that were complete by then are given out before. If a message is too long: it is stopped with code 0, and
    /// the next call goes on with the others.
    pub fn recv(&mut self) -> Result<Vec<u8>, Error> {
        block_on(|cx| self.poll_recv(cx))
    }

    /// Polls for the next message, as [`Self::recv`] waits for it.
    pub(crate) fn poll_recv(&mut self, cx: &Context<'_>) -> Poll<Result<Vec<u8>, Error>> {
        // Before anything is looked at, so that nothing that comes now is missed.
        self.news.lock().1 = Some(cx.waker().clone());
        let ended = loop {
            match self.session.poll_accept_uni(&mut self.accepting, cx) {
                Poll::Ready(Ok(stream)) => self.begin(stream),
                Poll::Ready(Err(error)) => break Some(error),
                Poll::Pending => break None,
            }
        };
        loop {
            let news = self.news.lock().0.pop_first();
            let Some(number) = self.gatherer.next_to_read(news) else {
                break;
            };
            if let Some(message) = self.read(number)? {
                return Poll::Ready(Ok(message));
            }
        }
        match ended {
            Some(error) => Poll::Ready(Err(error)),
            None => Poll::Pending,
        }
    }

    fn begin(&mut self, stream: RecvStream) {
        let news = Arc::clone(&self.news);
        let arriving = |number| Arriving {
            stream,
            waker: Waker::from(Arc::new(Alarm { news, number })),
        };
        let number = self.gatherer.begin(arriving);
        self.news.lock().0.insert(number);
    }

    /// Reads what there is of a stream: its message, if that is now whole.
    fn read(&mut self, number: u64) -> Result<Option<Vec<u8>>, Error> {
        let piece = |arriving: &mut Arriving, message: &mut Vec<u8>| {
            let cx = Context::from_waker(&arriving.waker);
            let append = |data: &[u8]| message.extend_from_slice(data);
            arriving
                .stream
                .poll_read(&cx, PIECE, append)
                .map(Result::ok)
        };
        Ok(self.gatherer.read(number, piece)?)
    }
}

/// Wakes a thread that blocks.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread until `poll` is ready.
fn block_on<T>(mut poll: impl FnMut(&Context<'_>) -> Poll<T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = poll(&cx) {
            return value;
        }
        thread::park();
    }
}
