//! Streams as tokio knows them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;

use super::{RecvStream, SendStream};

/// Polls what moves bytes unless the task has used up its budget: one that always finds data, or room, lets others run now and then.
fn within_budget<T>(
    cx: &mut Context<'_>,
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    let budget = ready!(coop::poll_proceed(cx));
    let polled = poll(cx);
    if polled.is_ready() {
        budget.made_progress();
    }
    polled
}

impl AsyncRead for RecvStream {
    /// As [`RecvStream::poll_read`], within tokio's budget; errors are those of `io::Error::from`.
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let most = buf.remaining();
        let read = within_budget(cx, |cx| {
            stream.poll_read_into(cx, most, |data| buf.put_slice(data))
        });
        read.map_ok(drop).map_err(io::Error::from)
    }
}

impl AsyncWrite for SendStream {
    /// As [`SendStream::poll_write`], within tokio's budget.
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let written = within_budget(cx, |cx| stream.poll_write(cx, data));
        written.map_err(io::Error::from)
    }

    /// As [`SendStream::poll_flush`]: what was written is on its way; it has not arrived.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.get_mut().poll_flush(cx);
        flushed.map_err(io::Error::from)
    }

    /// [Finishes](SendStream::finish) the stream: ready when its last piece is queued.
    /// [`SendStream::wait_delivered`] waits until the peer has all of it, and has to come before the session is closed.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let finished = self.get_mut().poll_finish(cx);
        finished.map_err(io::Error::from)
    }
}
