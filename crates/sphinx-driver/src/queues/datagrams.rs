//! Datagrams and live messages, as the application leaves and takes them.

use std::ops::Range;

use sphinx_proto::{Nanos, Time};

use super::{Application, Queues};
use crate::datagrams::{Arrived, DatagramCounts, LiveEnd, Refusal, SendAs};
use crate::pool::BufferPool;

impl<A: Application> Queues<A> {
    /// What has become of datagrams so far.
    pub fn datagram_counts(&self) -> DatagramCounts {
        self.datagrams.counts()
    }

    /// Datagrams that have arrived and were not taken may hold at most so many bytes, instead of
    /// [`DATAGRAM_BYTES`](crate::DATAGRAM_BYTES). It has to be enough for a few long ones.
    pub fn limit_datagrams(&mut self, bytes: usize) {
        self.datagrams.receiving.limit(bytes);
    }

    /// Memory of datagrams that have arrived and were not taken, bytes.
    pub fn datagram_bytes(&self) -> usize {
        self.datagrams.receiving.bytes()
    }

    // ---- sending ------------------------------------------------------------------------------

    /// Queues a datagram. Returns its number, if its flow has numbers. If there is no room, the
    /// oldest of the least urgent ones that wait is dropped.
    ///
    /// # Errors
    /// Why the datagram cannot be sent.
    pub fn send_datagram(
        &mut self,
        now: Time,
        data: &[u8],
        send_as: SendAs,
        pool: &BufferPool,
    ) -> Result<Option<u64>, Refusal> {
        self.wanted = true;
        self.datagrams.sending.push(now, data, send_as, pool)
    }

    /// Whether there is room for a datagram of so many bytes without dropping another one.
    pub fn has_datagram_room(&self, len: usize) -> bool {
        self.datagrams.sending.has_room(len)
    }

    /// Bytes of the datagrams that wait for their turn to be sent.
    pub fn datagram_bytes_waiting(&self) -> usize {
        self.datagrams.sending.bytes()
    }

    /// Notified when there is room again, and when something about a flow of live messages changes.
    pub fn datagrams_left(&self) -> A::Signal {
        self.datagrams.sending.signal.clone()
    }

    /// The next flow of live messages; `None` while 256 are open.
    pub fn open_live(&mut self) -> Option<u64> {
        self.datagrams.sending.open_live()
    }

    /// There will be no more live messages of a flow.
    pub fn end_live(&mut self, flow: u64) {
        self.datagrams.sending.end_live(flow);
        self.wanted = true;
    }

    /// There will be no more ordered datagrams of this flow, which makes room for another ordered
    /// flow.
    pub fn end_ordered(&mut self, flow: u64) {
        self.datagrams.sending.end_ordered(flow);
    }

    /// Live messages of a flow that did not arrive in time, and how long the peer's application wants them to be of use, if it has said so.
    pub fn live_sent(&self, flow: u64) -> Option<(u64, Option<Nanos>)> {
        self.datagrams.sending.live(flow)
    }

    // ---- receiving ----------------------------------------------------------------------------

    /// The next datagram.
    pub fn next_datagram(&mut self) -> Option<Arrived> {
        self.datagrams.receiving.next()
    }

    /// Bytes of the next datagram.
    pub fn next_datagram_len(&self) -> Option<usize> {
        self.datagrams.receiving.next_len()
    }

    /// Notified when a datagram has arrived.
    pub fn datagram_arrived(&self) -> A::Signal {
        self.datagrams.receiving.arrived.clone()
    }

    /// The next flow of live messages that the peer has opened, in the order in which flows became
    /// known here, and the signal that is notified when something about it changes.
    pub fn accept_live(&mut self) -> Option<(u64, A::Signal)> {
        self.datagrams.receiving.accept()
    }

    /// Notified when there is a new flow of live messages.
    pub fn accepts_live(&self) -> A::Signal {
        self.datagrams.receiving.accepts.clone()
    }

    /// The next live message of a flow.
    pub fn next_live(&mut self, flow: u64) -> Option<Arrived> {
        self.datagrams.receiving.next_live(flow)
    }

    /// Bytes of the next live message.
    pub fn next_live_len(&self, flow: u64) -> Option<usize> {
        self.datagrams.receiving.next_live_len(flow)
    }

    /// Whether more may come of a flow.
    pub fn live_end(&self, flow: u64) -> LiveEnd {
        self.datagrams.receiving.live_end(flow)
    }

    /// Numbers of live messages that were lost, came too late, or were dropped for others before
    /// they were taken, since the last call.
    pub fn take_missing(&mut self, flow: u64) -> Vec<Range<u64>> {
        self.datagrams.receiving.take_missing(flow)
    }

    /// With `on_time` live messages are given out when their time has come from now on, otherwise
    /// as they arrive.
    pub fn set_on_time(&mut self, flow: u64, on_time: bool) {
        self.datagrams.receiving.set_on_time(flow, on_time);
        self.wanted = true;
    }

    /// Live messages are to be of use for so long from now on, which the peer is told.
    pub fn set_latency(&mut self, flow: u64, life: Nanos) {
        self.latencies.push((flow, life));
        self.wanted = true;
    }

    /// The application wants no more of a flow, which the peer is told.
    pub fn stop_live(&mut self, flow: u64) {
        self.datagrams.receiving.let_go(flow);
        self.set_latency(flow, 0);
    }
}
