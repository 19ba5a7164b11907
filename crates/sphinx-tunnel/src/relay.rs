//! One connection here, one stream to the other end: bytes both ways, half-closes and resets as they come.

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use sphinx_transport::asynchronous::{RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Sleep, sleep_until};

use crate::exchange;
use crate::limits::Throttle;
use crate::wire::Refusal;

/// Bytes that are moved at a time.
const SCRATCH_BYTES: usize = 64 << 10;
/// What is written and not more than this is somebody's message: it leaves at once instead of a moment later.
const MESSAGE_BYTES: usize = 16 << 10;

thread_local! {
    /// Where bytes are between two sockets: one buffer for the thread, so that connections that are idle hold none.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

/// A connection of this machine.
#[derive(Debug)]
pub(crate) enum Local {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// Standard input and output.
    Stdio,
}

/// How much has been carried, both ways.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// From here into the stream.
    pub(crate) sent: AtomicU64,
    /// From the stream to here.
    pub(crate) received: AtomicU64,
}

/// Why a flow is over before both sides had said all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The connection of this machine broke.
    #[error("reset: {0}")]
    Local(io::Error),
    /// The stream broke, or the session.
    #[error("reset by the other end: {0}")]
    Remote(io::Error),
    /// The other end has not done what it was asked for.
    #[error("{0}")]
    Refused(Refusal),
}

/// What comes first on the stream from the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// The answer to what this end has asked for; what there is to send does not wait for it.
    Reply,
    /// Bytes of the connection.
    Data,
}

/// A connection that is reset unless it has come to its end, also when nobody carries for it any more.
struct Resetting {
    stream: TcpStream,
    is_whole: bool,
}

impl Drop for Resetting {
    fn drop(&mut self) {
        if !self.is_whole {
            // Closing a socket with this option resets the connection.
            let _ = self.stream.set_zero_linger();
        }
    }
}

/// Carries until both sides have said all, or one breaks; the other one learns of that as it would on one connection.
pub(crate) async fn relay(
    local: Local,
    streams: (SendStream, RecvStream),
    first: First,
    counts: &Counts,
) -> Result<(), Broken> {
    relay_within(local, streams, first, counts, &Throttle::default()).await
}

/// The same; what comes from the other end comes no faster than `throttle` lets it.
pub(crate) async fn relay_within(
    local: Local,
    (send, recv): (SendStream, RecvStream),
    first: First,
    counts: &Counts,
    throttle: &Throttle,
) -> Result<(), Broken> {
    match local {
        Local::Tcp(stream) => {
            let mut stream = Resetting {
                stream,
                is_whole: false,
            };
            let (read, write) = stream.stream.split();
            let ended = both(
                (read, write),
                (send, recv),
                first,
                (counts, throttle),
                false,
            )
            .await;
            stream.is_whole = ended.is_ok();
            ended
        }
        Local::Unix(mut stream) => {
            let (read, write) = stream.split();
            both(
                (read, write),
                (send, recv),
                first,
                (counts, throttle),
                false,
            )
            .await
        }
        Local::Stdio => {
            let (read, write) = (tokio::io::stdin(), tokio::io::stdout());
            both((read, write), (send, recv), first, (counts, throttle), true).await
        }
    }
}

/// `is_pipe`: nothing tells that the reader has gone but that it cannot be written to.
async fn both(
    (read, mut write): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
    (mut send, mut recv): (SendStream, RecvStream),
    first: First,
    (counts, throttle): (&Counts, &Throttle),
    is_pipe: bool,
) -> Result<(), Broken> {
    let up = async {
        // A stream that is dropped before it is finished is reset.
        match copy(
            read,
            &mut send,
            (&counts.sent, &Throttle::default()),
            MESSAGE_BYTES,
            SendStream::poll_stopped_early,
        )
        .await
        {
            Ok(()) => {
                // Whoever closes the session afterwards loses nothing; a target that wants no more has said so.
                let finished = send.finish().await;
                if finished.is_ok() {
                    let _ = send.wait_delivered().await;
                }
                Ok(())
            }
            Err(CopyError::Read(error)) => Err(Broken::Local(error)),
            // The other end wants no more of it. What it has to say itself still comes.
            Err(CopyError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(CopyError::Write(error)) => Err(Broken::Remote(error)),
        }
    };
    let down = async {
        if first == First::Reply {
            exchange::reply(&mut recv).await.map_err(Broken::Refused)?;
        }
        match copy(
            recv,
            &mut write,
            (&counts.received, throttle),
            usize::MAX,
            |_, _| Poll::Pending,
        )
        .await
        {
            Ok(()) if is_pipe => end_output(&mut write).await.map_err(Broken::Local),
            // That the connection has been closed already is no failure.
            Ok(()) => {
                let _ = write.shutdown().await;
                Ok(())
            }
            Err(CopyError::Read(error)) => Err(Broken::Remote(error)),
            Err(CopyError::Write(error)) if is_pipe => Err(Broken::Local(error)),
            // The stream has been stopped; whether the connection is broken is told by reading from it.
            Err(CopyError::Write(_)) => Ok(()),
        }
    };
    tokio::try_join!(up, down).map(|_| ())
}

/// Ends standard output. A thread writes it, for which closing it does not wait; and its reader hears of the end only once nothing here leads there
/// any more.
async fn end_output(output: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    output.flush().await?;
    // The number must not become another file's. Without a device that takes it, the end is that of the process.
    if let Ok(nowhere) = OpenOptions::new().write(true).open("/dev/null") {
        rustix::stdio::dup2_stdout(nowhere)?;
    }
    Ok(())
}

/// What the peer may do to a stream that is being written.
trait StoppedEarly {
    fn poll_stopped_early(&mut self, cx: &mut Context<'_>) -> Poll<io::Error>;
}

impl StoppedEarly for SendStream {
    /// Ready once nothing more can be written.
    fn poll_stopped_early(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        Poll::Ready(match ready!(self.poll_stopped(cx)) {
            Ok(_) => io::ErrorKind::BrokenPipe.into(),
            Err(error) => error.into(),
        })
    }
}

#[derive(Debug)]
enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

/// Copies to the end. Holds memory only for what has been read and cannot be written yet. What is written leaves at once if it is
/// at most `message` bytes and nothing follows.
async fn copy<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    mut from: R,
    to: &mut W,
    (count, throttle): (&AtomicU64, &Throttle),
    message: usize,
    mut gone: impl FnMut(&mut W, &mut Context<'_>) -> Poll<io::Error>,
) -> Result<(), CopyError> {
    // What is left of a piece that there was no room for, and where it begins.
    let mut held: (Vec<u8>, usize) = (Vec::new(), 0);
    let mut unflushed = 0;
    // Until when the throttle lets nothing more be read.
    let mut pause: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|cx| {
        loop {
            if let Some(rest) = &mut pause {
                ready!(rest.as_mut().poll(cx));
                pause = None;
            }
            while held.1 < held.0.len() {
                let written = Pin::new(&mut *to).poll_write(cx, &held.0[held.1..]);
                held.1 += written_some(ready!(written))?;
            }
            held = (Vec::new(), 0);
            let moved = SCRATCH.with_borrow_mut(|scratch| {
                let mut buffer = ReadBuf::new(scratch);
                match Pin::new(&mut from).poll_read(cx, &mut buffer) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(CopyError::Read(error))),
                    Poll::Ready(Ok(())) => {}
                }
                let data = buffer.filled();
                count.fetch_add(data.len() as u64, Ordering::Relaxed);
                pause = throttle
                    .take(data.len())
                    .map(|at| Box::pin(sleep_until(at)));
                let mut written = 0;
                while written < data.len() {
                    match Pin::new(&mut *to).poll_write(cx, &data[written..]) {
                        Poll::Ready(result) => written += written_some(result)?,
                        Poll::Pending => {
                            held = (data[written..].to_vec(), 0);
                            break;
                        }
                    }
                }
                Poll::Ready(Ok(data.len()))
            });
            match moved? {
                Poll::Ready(0) => return Poll::Ready(Ok(())),
                Poll::Ready(bytes) => unflushed += bytes,
                Poll::Pending => {
                    let mut is_flushed = true;
                    if (1..=message).contains(&unflushed) {
                        // Standard output is still writing then, and keeps what ends no line: it has to be told again.
                        match Pin::new(&mut *to).poll_flush(cx) {
                            Poll::Ready(Ok(())) => {}
                            Poll::Ready(Err(error)) => {
                                return Poll::Ready(Err(CopyError::Write(error)));
                            }
                            Poll::Pending => is_flushed = false,
                        }
                    }
                    if is_flushed {
                        unflushed = 0;
                    }
                    return gone(to, cx).map(|error| Err(CopyError::Write(error)));
                }
            }
        }
    })
    .await
}

fn written_some(result: io::Result<usize>) -> Result<usize, CopyError> {
    match result {
        Ok(0) => Err(CopyError::Write(io::ErrorKind::WriteZero.into())),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(CopyError::Write(error)),
    }
}
