//! Streams that carry as much as they can: all of an end are tasks of one thread, however many there are, if they can be polled; those that
//! block have a thread each.

use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use sphinx_transport::ErrorKind;

use super::control::{Limit, Plan};
use super::data::damaged;
use super::pattern::Pattern;
use super::tasks::run_all;
use crate::channel::{Channel, TaskIn, TaskOut};
use crate::failure::{Outcome, fail};
use crate::report::Progress;

/// Bytes handed over or taken at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// What all streams of an end have in common.
pub(super) struct Bulk<'a> {
    pub(super) plan: &'a Plan,
    pub(super) pattern: &'a Pattern,
    pub(super) progress: &'a Progress,
}

/// One stream of the measurement.
pub(super) struct Stream<S: ?Sized> {
    stream: Box<S>,
    index: u16,
    /// Bytes of this stream so far.
    at: u64,
}

/// The streams of each thread.
pub(super) fn threads<C: Channel, S: ?Sized>(streams: Vec<Box<S>>) -> Vec<Vec<Stream<S>>> {
    let numbered = streams.into_iter().zip(0..);
    let new = numbered.map(|(stream, index)| Stream {
        stream,
        index,
        at: 0,
    });
    match C::HAS_TASKS {
        true => vec![new.collect()],
        false => new.map(|one| vec![one]).collect(),
    }
}

impl Bulk<'_> {
    /// Sends on streams until the limit of the plan, and waits until everything has been delivered: how many bytes.
    pub(super) fn send(&self, mut streams: Vec<Stream<dyn TaskOut>>) -> Outcome<u64> {
        let started = Instant::now();
        let sent = run_all(streams.len(), |task, cx| {
            self.step_out(&mut streams[task], started, cx)
        })?;
        Ok(sent.into_iter().sum())
    }

    /// Writes until the session takes no more.
    fn step_out(
        &self,
        stream: &mut Stream<dyn TaskOut>,
        started: Instant,
        cx: &mut Context<'_>,
    ) -> Poll<Outcome<Option<u64>>> {
        let (bytes_max, time_max) = match self.plan.limit {
            Limit::Bytes(bytes) => (self.plan.stream_bytes(bytes, stream.index), None),
            Limit::Nanoseconds(time) => (u64::MAX, Some(Duration::from_nanos(time))),
        };
        if stream.at >= bytes_max || time_max.is_some_and(|max| started.elapsed() >= max) {
            ready!(stream.stream.poll_delivered(cx))?;
            return Poll::Ready(Ok(Some(stream.at)));
        }
        let left = usize::try_from(bytes_max - stream.at).unwrap_or(usize::MAX);
        let chunk = self
            .pattern
            .slice(stream.index, stream.at, left.min(CHUNK_BYTES));
        let written = ready!(stream.stream.poll_write(cx, chunk))? as u64;
        stream.at += written;
        self.progress.add_bytes(written);
        Poll::Ready(Ok(None))
    }

    /// Receives streams to their ends: how many bytes.
    pub(super) fn receive(&self, mut streams: Vec<Stream<dyn TaskIn>>) -> Outcome<u64> {
        // One buffer for all streams: data is checked before another stream is read.
        let mut buffer = vec![0; CHUNK_BYTES];
        let received = run_all(streams.len(), |task, cx| {
            self.step_in(&mut streams[task], &mut buffer, cx)
        })?;
        Ok(received.into_iter().sum())
    }

    fn step_in(
        &self,
        stream: &mut Stream<dyn TaskIn>,
        buffer: &mut [u8],
        cx: &mut Context<'_>,
    ) -> Poll<Outcome<Option<u64>>> {
        let read = ready!(stream.stream.poll_read(cx, buffer))?;
        if read == 0 {
            return Poll::Ready(match self.plan.limit {
                Limit::Bytes(bytes) if stream.at != self.plan.stream_bytes(bytes, stream.index) => {
                    Err(fail(
                        ErrorKind::Integrity,
                        "the stream has another length than agreed",
                    ))
                }
                _ => Ok(Some(stream.at)),
            });
        }
        if !self
            .pattern
            .matches(stream.index, stream.at, &buffer[..read])
        {
            return Poll::Ready(Err(damaged()));
        }
        stream.at += read as u64;
        self.progress.add_bytes(read as u64);
        Poll::Ready(Ok(None))
    }
}
