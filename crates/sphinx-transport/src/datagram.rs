//! Datagrams and live messages, which are of no use when they arrive too late.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use sphinx_driver::{Arrived, LiveEnd, Refusal, SendAs};
use sphinx_proto::wire::{Datagram, Delivery, FlowKind, MAX_DATAGRAM};
use sphinx_proto::{Nanos, RepairMode, Time, Urgency};

use crate::error::{Error, ErrorKind};
use crate::shared::{Inner, Session, Shared};
use crate::signal::Waiter;

/// Default time for which a datagram is of use.
const EXPIRY: Duration = Duration::from_millis(100);
/// Default time for which a live message is of use.
const LATENCY: Duration = Duration::from_millis(120);
/// Shortest and longest time that a datagram may be of use.
const LIFE: Range<Duration> = Duration::from_millis(1)..Duration::from_secs(3600);

/// How a datagram is sent ([`Session::send_datagram`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramOptions {
    flow: u64,
    ordered: bool,
    urgency: Urgency,
    expiry: Duration,
    repair: RepairMode,
}

impl Default for DatagramOptions {
    /// On flow 0, given out as it arrives, of the usual urgency, of use for 100 ms, and not
    /// repaired when it is lost.
    fn default() -> Self {
        Self {
            flow: 0,
            ordered: false,
            urgency: Urgency::default(),
            expiry: EXPIRY,
            repair: RepairMode::None,
        }
    }
}

impl DatagramOptions {
    /// The flow, a number below 2^62: the receiver is told which datagrams belong together.
    #[must_use]
    pub fn flow(self, flow: u64) -> Self {
        let flow = flow.min(crate::shared::CODE_MAX);
        Self { flow, ..self }
    }

    /// Given out in the order of its flow: one that comes early waits until those before it are here, are known to be lost or are out of date, and
    /// one that comes after a later one is dropped. At most 256 flows of a session may have an order at a time ([`Session::end_ordered`]).
    #[must_use]
    pub fn ordered(self) -> Self {
        Self {
            ordered: true,
            ..self
        }
    }

    /// How urgent it is compared with other datagrams and streams (default 3).
    #[must_use]
    pub fn urgency(self, urgency: Urgency) -> Self {
        Self { urgency, ..self }
    }

    /// How long it may wait for being sent, and how long it is of use if it is ordered or repaired: 1 ms to an hour, default 100 ms.
    #[must_use]
    pub fn expiry(self, expiry: Duration) -> Self {
        let expiry = expiry.clamp(LIFE.start, LIFE.end);
        Self { expiry, ..self }
    }

    /// A loss is repaired as long as the repair can arrive within `deadline` of sending the
    /// datagram; the deadline replaces the [expiry](Self::expiry). Where no answer to a loss can be
    /// in time, repair is sent ahead.
    #[must_use]
    pub fn repaired_within(self, deadline: Duration) -> Self {
        Self {
            repair: RepairMode::InTime,
            ..self.expiry(deadline)
        }
    }

    /// The same for many datagrams that are [ordered](Self::ordered): if many leave within half a
    /// round trip, repair is sent ahead even where answers to losses would be in time. So a
    /// datagram hardly ever waits for an answer to the loss of an earlier one.
    #[must_use]
    pub fn repaired_together_within(self, deadline: Duration) -> Self {
        Self {
            repair: RepairMode::Together,
            ..self.expiry(deadline)
        }
    }

    fn send_as(&self) -> SendAs {
        SendAs {
            flow: self.flow,
            kind: self.ordered.then_some(FlowKind::Ordered),
            urgency: self.urgency,
            life: nanos(self.expiry),
            repair: self.repair,
        }
    }
}

/// What is known of a datagram that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramInfo {
    /// Length in bytes.
    pub len: usize,
    /// The flow that its sender has put it in.
    pub flow: u64,
    /// How many datagrams of its flow were sent before it, if it is [ordered](DatagramOptions::ordered).
    pub number: Option<u64>,
}

/// How live messages are sent ([`Session::open_live`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveOptions {
    latency: Duration,
    urgency: Urgency,
}

impl Default for LiveOptions {
    /// Of use for 120 ms, and of the usual urgency.
    fn default() -> Self {
        Self {
            latency: LATENCY,
            urgency: Urgency::default(),
        }
    }
}

impl LiveOptions {
    /// How long a message is of use after it was sent: 1 ms to an hour.
    #[must_use]
    pub fn latency(self, latency: Duration) -> Self {
        let latency = latency.clamp(LIFE.start, LIFE.end);
        Self { latency, ..self }
    }

    /// How urgent messages are compared with streams and datagrams (default 3).
    #[must_use]
    pub fn urgency(self, urgency: Urgency) -> Self {
        Self { urgency, ..self }
    }
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

fn refused(refusal: Refusal, len: usize) -> Error {
    let message = match refusal {
        Refusal::TooLong => {
            format!("a datagram of {len} bytes; the longest has {MAX_DATAGRAM}")
        }
        Refusal::TooManyFlows => "more than 256 flows of ordered datagrams".to_owned(),
        Refusal::Unwanted => "the peer's application wants no more of these messages".to_owned(),
    };
    let kind = match refusal {
        Refusal::Unwanted => ErrorKind::StreamStopped,
        Refusal::TooLong | Refusal::TooManyFlows => ErrorKind::Usage,
    };
    Error::new(kind, message)
}

fn too_small(buf: usize, len: usize) -> Error {
    let message = format!("a buffer of {buf} bytes for a message of {len}, which stays");
    Error::new(ErrorKind::Usage, message)
}

/// Fails if the session is over, or if the peer takes no datagrams.
fn may_send(inner: &Inner) -> Result<(), Error> {
    if let Some(error) = &inner.closed {
        return Err(error.clone());
    }
    if inner.datagram_max == 0 {
        let message = "the peer takes no datagrams or live messages: its version is older";
        return Err(Error::new(ErrorKind::Protocol, message));
    }
    Ok(())
}

/// Takes the next datagram with its bytes in place of what `buf` holds.
fn take_datagram(inner: &mut Inner, buf: &mut Vec<u8>) -> Option<DatagramInfo> {
    let arrived = inner.queues.next_datagram()?;
    buf.clear();
    buf.extend_from_slice(arrived.data());
    Some(DatagramInfo {
        len: buf.len(),
        flow: arrived.flow(),
        number: arrived.number(),
    })
}

/// Copies a datagram into `buf`. Returns its length.
fn copy(arrived: &Arrived, buf: &mut [u8]) -> usize {
    let data = arrived.data();
    buf[..data.len()].copy_from_slice(data);
    data.len()
}

impl Shared {
    /// Leaves a datagram for the engine. Returns its number, if its flow has numbers.
    fn send(&self, inner: &mut Inner, data: &[u8], send_as: SendAs) -> Result<Option<u64>, Error> {
        may_send(inner)?;
        if data.len() > inner.datagram_max {
            let (len, most) = (data.len(), inner.datagram_max);
            let message = format!("a datagram of {len} bytes; the peer takes at most {most}");
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let sent = inner
            .queues
            .send_datagram(self.now(), data, send_as, self.pool());
        sent.map_err(|refusal| refused(refusal, data.len()))
    }

    /// The same, but only if there is room without dropping another one; `None` otherwise. One that
    /// is too long is refused at once, as there will never be room for it.
    fn send_if_room(
        &self,
        inner: &mut Inner,
        data: &[u8],
        options: &DatagramOptions,
    ) -> Option<Result<(), Error>> {
        let has_room = inner.queues.has_datagram_room(data.len());
        let is_too_long = data.len() > inner.datagram_max;
        (has_room || is_too_long).then(|| self.send(inner, data, options.send_as()).map(|_| ()))
    }
}

/// Takes the next datagram, if it fits `buf`.
fn next_datagram(inner: &mut Inner, buf: &mut [u8]) -> Option<Result<DatagramInfo, Error>> {
    let len = inner.queues.next_datagram_len()?;
    if len > buf.len() {
        return Some(Err(too_small(buf.len(), len)));
    }
    let arrived = inner.queues.next_datagram()?;
    Some(Ok(DatagramInfo {
        len: copy(&arrived, buf),
        flow: arrived.flow(),
        number: arrived.number(),
    }))
}

impl Session {
    /// The longest datagram that fits one packet now, bytes; longer ones, up to 65 507, are cut and put together again. One whose
    /// [flow](DatagramOptions::flow) is 64 or more has room for up to 7 bytes less, and one that is [ordered](DatagramOptions::ordered), or a live
    /// message, for up to 20 bytes less besides.
    pub fn max_unfragmented(&self) -> usize {
        let (_, symbol_len) = self.shared().shape();
        let header = Datagram {
            flow: 0,
            delivery: Delivery::Plain,
            len: usize::from(symbol_len),
        };
        usize::from(symbol_len).saturating_sub(header.header_len())
    }

    /// Sends a datagram of at most 65 507 bytes; never waits. While more are sent than the path
    /// takes, those that are out of date are dropped, and where a mebibyte waits the oldest of the
    /// least urgent: [`Stats::datagrams`](crate::Stats::datagrams) counts them.
    ///
    /// # Errors
    /// When the session has ended, the datagram is too long, or the peer takes none.
    pub fn send_datagram(&self, data: &[u8], options: &DatagramOptions) -> Result<(), Error> {
        let shared = self.shared();
        let sent = shared.update(|inner| shared.send(inner, data, options.send_as()));
        sent.map(|_| ())
    }

    /// There will be no more [ordered](DatagramOptions::ordered) datagrams of this flow: another
    /// flow may have an order in its place. What was sent still leaves. The flow's number should
    /// not be used for ordered datagrams again: the peer would take them for late ones and drop
    /// them.
    pub fn end_ordered(&self, flow: u64) {
        self.shared().lock().queues.end_ordered(flow);
    }

    /// The same as [`send_datagram`](Self::send_datagram), but waits until there is room without
    /// dropping another one.
    ///
    /// # Errors
    /// Those of [`send_datagram`](Self::send_datagram).
    pub fn send_datagram_wait(&self, data: &[u8], options: &DatagramOptions) -> Result<(), Error> {
        let shared = self.shared();
        let left = shared.lock().queues.datagrams_left();
        shared.wait(&left, |inner| shared.send_if_room(inner, data, options))?
    }

    pub(crate) fn poll_send_datagram(
        &self,
        waiter: &mut Waiter,
        cx: &Context<'_>,
        (data, options): (&[u8], &DatagramOptions),
    ) -> Poll<Result<(), Error>> {
        let shared = self.shared();
        let sent = shared.poll(waiter, cx, |inner| {
            shared.send_if_room(inner, data, options)
        });
        sent.map(Result::flatten)
    }

    pub(crate) fn poll_datagrams_below(
        &self,
        waiter: &mut Waiter,
        cx: &Context<'_>,
        bytes: usize,
    ) -> Poll<Result<(), Error>> {
        self.shared().poll(waiter, cx, |inner| {
            (inner.queues.datagram_bytes_waiting() <= bytes).then_some(())
        })
    }

    pub(crate) fn datagram_room_waiter(&self) -> Waiter {
        Waiter::new(&self.shared().lock().queues.datagrams_left())
    }

    /// Waits for a datagram and copies it into `buf`. Those that are not taken are kept, up to 5
    /// MiB in the largest first window (24 MiB), else up to a sixteenth of the window (96 KiB at
    /// least); then the oldest are dropped.
    ///
    /// # Errors
    /// When the session has ended, or `buf` is too small: then the error tells the length, and the datagram stays.
    pub fn recv_datagram(&self, buf: &mut [u8]) -> Result<DatagramInfo, Error> {
        let shared = self.shared();
        let arrived = shared.lock().queues.datagram_arrived();
        shared.wait(&arrived, |inner| next_datagram(inner, buf))?
    }

    pub(crate) fn poll_recv_datagram(
        &self,
        waiter: &mut Waiter,
        cx: &Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<DatagramInfo, Error>> {
        let polled = self
            .shared()
            .poll(waiter, cx, |inner| next_datagram(inner, buf));
        polled.map(Result::flatten)
    }

    pub(crate) fn poll_take_datagram(
        &self,
        waiter: &mut Waiter,
        cx: &Context<'_>,
        buf: &mut Vec<u8>,
    ) -> Poll<Result<DatagramInfo, Error>> {
        self.shared()
            .poll(waiter, cx, |inner| take_datagram(inner, buf))
    }

    pub(crate) fn datagram_waiter(&self) -> Waiter {
        Waiter::new(&self.shared().lock().queues.datagram_arrived())
    }

    pub(crate) fn live_waiter(&self) -> Waiter {
        Waiter::new(&self.shared().lock().queues.accepts_live())
    }

    /// Begins a flow of live messages, at most 256 at a time. The peer hears of it with the first message that arrives.
    ///
    /// # Errors
    /// When the session has ended, the peer takes none, or too many flows are open.
    pub fn open_live(&self, options: &LiveOptions) -> Result<LiveSender, Error> {
        let shared = self.shared();
        let mut inner = shared.lock();
        may_send(&inner)?;
        let flow = inner.queues.open_live().ok_or_else(|| {
            let message = "256 flows of live messages are open, which is the most";
            Error::new(ErrorKind::Usage, message)
        })?;
        Ok(LiveSender {
            flow,
            shared: Arc::clone(shared),
            options: *options,
            wanted: None,
        })
    }

    /// Waits for a flow of live messages that the peer has begun.
    ///
    /// Flows that nobody accepts, or that are kept when they have ended, do no harm: beyond 512 in
    /// all, the one that has been silent for longest is dropped.
    ///
    /// # Errors
    /// When the session has ended.
    pub fn accept_live(&self) -> Result<LiveReceiver, Error> {
        let shared = self.shared();
        let accepts = shared.lock().queues.accepts_live();
        let accepted = shared.wait(&accepts, |inner| inner.queues.accept_live())?;
        Ok(LiveReceiver::new(accepted, shared))
    }

    pub(crate) fn poll_accept_live(
        &self,
        waiter: &mut Waiter,
        cx: &Context<'_>,
    ) -> Poll<Result<LiveReceiver, Error>> {
        let shared = self.shared();
        let accepted = shared.poll(waiter, cx, |inner| inner.queues.accept_live());
        accepted.map_ok(|accepted| LiveReceiver::new(accepted, shared))
    }
}

/// Sends live messages. Each is of use for a while, and is dropped after that at either end. A loss
/// is repaired if that can be in time; where no answer to a loss can be, repair is sent ahead.
///
/// Dropping it ends the flow.
pub struct LiveSender {
    flow: u64,
    shared: Arc<Shared>,
    options: LiveOptions,
    /// The latency that the peer's application has asked for, as far as `options` follow it
    /// already.
    wanted: Option<Nanos>,
}

impl fmt::Debug for LiveSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveSender")
            .field("flow", &self.flow)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl LiveSender {
    /// Sends a message of at most 65 507 bytes, which is of use for the [latency](Self::latency);
    /// never waits. Returns its number, which is how many were sent before.
    ///
    /// # Errors
    /// When the session has ended, the message is too long, the peer takes none, or its application wants no more.
    pub fn send(&mut self, data: &[u8]) -> Result<u64, Error> {
        let life = self.latency();
        self.send_expiring(data, life)
    }

    /// The same for one that is of use for `life`.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub fn send_expiring(&mut self, data: &[u8], life: Duration) -> Result<u64, Error> {
        let send_as = SendAs {
            flow: self.flow,
            kind: Some(FlowKind::Live),
            urgency: self.options.urgency,
            life: nanos(life.clamp(LIFE.start, LIFE.end)),
            repair: RepairMode::InTime,
        };
        let shared = &self.shared;
        let number = shared.update(|inner| shared.send(inner, data, send_as))?;
        Ok(number.unwrap_or_default())
    }

    /// How long messages are of use from now on. This end's application and the peer's may both say
    /// so: the latest counts.
    pub fn set_latency(&mut self, latency: Duration) {
        self.wanted = self.asked();
        self.options = self.options.latency(latency);
    }

    /// How long the next message is of use.
    pub fn latency(&mut self) -> Duration {
        let asked = self.asked();
        if let Some(asked) = asked.filter(|_| asked != self.wanted) {
            self.wanted = Some(asked);
            self.options = self.options.latency(Duration::from_nanos(asked));
        }
        self.options.latency
    }

    /// The latency that the peer's application has asked for last.
    fn asked(&self) -> Option<Nanos> {
        let inner = self.shared.lock();
        inner.queues.live_sent(self.flow)?.1
    }

    /// How many messages did not arrive in time, as far as is known.
    pub fn dropped(&self) -> u64 {
        let inner = self.shared.lock();
        inner.queues.live_sent(self.flow).map_or(0, |sent| sent.0)
    }
}

impl Drop for LiveSender {
    fn drop(&mut self) {
        self.shared.update(|inner| inner.queues.end_live(self.flow));
    }
}

/// A live message that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveInfo {
    /// Bytes.
    pub len: usize,
    /// How many messages were sent before it.
    pub number: u64,
    /// How long ago it was sent, not counting the time on the way of the fastest recent message:
    /// clocks of both ends cannot be compared.
    pub age: Duration,
}

/// Receives live messages, as soon as they arrive or, after [`set_on_time`](Self::set_on_time), evenly. Those that come too late are dropped.
///
/// Dropping it tells the peer that no more are wanted.
pub struct LiveReceiver {
    flow: u64,
    shared: Arc<Shared>,
    news: Waiter,
}

impl fmt::Debug for LiveReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveReceiver")
            .field("flow", &self.flow)
            .finish_non_exhaustive()
    }
}

impl LiveReceiver {
    fn new((flow, signal): (u64, crate::signal::Signal), shared: &Arc<Shared>) -> Self {
        Self {
            flow,
            shared: Arc::clone(shared),
            news: Waiter::new(&signal),
        }
    }

    /// Waits for the next message and copies it into `buf`; `None` when the flow has ended. Those
    /// that are not taken are kept, of all flows as many as [`Session::recv_datagram`] says; then
    /// the oldest are dropped.
    ///
    /// # Errors
    /// When the session has ended, or `buf` is too small: then the error tells the length, and the message stays.
    pub fn recv(&mut self, buf: &mut [u8]) -> Result<Option<LiveInfo>, Error> {
        let (shared, flow) = (&self.shared, self.flow);
        let now = || shared.now();
        shared.wait(self.news.signal(), |inner| {
            next_live(inner, (flow, now()), buf)
        })?
    }

    pub(crate) fn poll_recv(
        &mut self,
        cx: &Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<Option<LiveInfo>, Error>> {
        let (shared, flow) = (&self.shared, self.flow);
        let now = shared.now();
        let next = |inner: &mut Inner| next_live(inner, (flow, now), buf);
        shared.poll(&mut self.news, cx, next).map(Result::flatten)
    }

    /// With `true`, every message is given out when it has reached the end of its latency, so that
    /// all are given out evenly and in order. With `false` they are given out as they arrive. Where
    /// latencies differ, a message with a shorter one may come before an earlier one with a longer.
    pub fn set_on_time(&mut self, on_time: bool) {
        self.shared
            .update(|inner| inner.queues.set_on_time(self.flow, on_time));
    }

    /// How long messages are to be of use: 1 ms to an hour. It counts for those that are sent after the peer has heard of it.
    pub fn set_latency(&mut self, latency: Duration) {
        let latency = nanos(latency.clamp(LIFE.start, LIFE.end));
        self.shared
            .update(|inner| inner.queues.set_latency(self.flow, latency));
    }

    /// Numbers of messages that were lost, came too late, or were dropped for others before they
    /// were taken, since the last call. Each message is either given out or among these. What is
    /// not taken here is kept, up to 1025 ranges, or fewer where there are more than four flows;
    /// then the oldest are forgotten.
    pub fn take_missing(&mut self) -> Vec<Range<u64>> {
        self.shared
            .update(|inner| inner.queues.take_missing(self.flow))
    }
}

impl Drop for LiveReceiver {
    fn drop(&mut self) {
        self.shared
            .update(|inner| inner.queues.stop_live(self.flow));
    }
}

/// Takes the next message of a flow, if it fits `buf`.
fn next_live(
    inner: &mut Inner,
    (flow, now): (u64, Time),
    buf: &mut [u8],
) -> Option<Result<Option<LiveInfo>, Error>> {
    let Some(len) = inner.queues.next_live_len(flow) else {
        let is_over = inner.queues.live_end(flow) == LiveEnd::Ended;
        return is_over.then_some(Ok(None));
    };
    if len > buf.len() {
        return Some(Err(too_small(buf.len(), len)));
    }
    let arrived = inner.queues.next_live(flow)?;
    let sent = arrived.sent().unwrap_or(now);
    Some(Ok(Some(LiveInfo {
        len: copy(&arrived, buf),
        number: arrived.number().unwrap_or_default(),
        age: Duration::from_nanos(now.saturating_sub(sent)),
    })))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Options, Server, Service, connect};

    /// A call that needs what the peer does not support fails, and nothing else does.
    #[test]
    fn a_peer_without_datagrams_still_takes_streams() {
        let options = Options::default();
        let server = Server::bind(([127, 0, 0, 1], 0).into(), Service::Application, &options);
        let server = server.expect("a socket");
        let ticket = server.ticket(&["127.0.0.1".to_owned()]).expect("a ticket");
        let client = connect(&ticket, Service::Application, &options).expect("connected");
        let peer = server.accept(None).expect("accepted").expect("a session");
        // As after a handshake with a peer that does not announce datagrams.
        client.shared().lock().datagram_max = 0;

        let datagram = DatagramOptions::default();
        let refusals = [
            client.send_datagram(b"one", &datagram).err(),
            client.send_datagram_wait(b"one", &datagram).err(),
            client.open_live(&LiveOptions::default()).err(),
        ];
        for error in refusals {
            let error = error.expect("refused");
            assert_eq!(error.kind(), ErrorKind::Protocol);
            assert!(error.to_string().contains("no datagrams"), "{error}");
        }
        let mut stream = client.open_uni().expect("a stream");
        stream.write_all(b"goes on").expect("written");
        stream.finish().expect("finished");
        let mut buf = [0; 10];
        let mut stream = peer.accept_uni().expect("a stream");
        assert_eq!(stream.read(&mut buf).expect("read"), 7);
    }
}
