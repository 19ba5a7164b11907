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

    /// Datagrams that have arrived and were not taken may take so many bytes, not [`DATAGRAM_BYTES`](crate::DATAGRAM_BYTES): at least those of a few long ones.
    pub fn limit_datagrams(&mut self, bytes: usize) {
        self.datagrams.receiving.limit(bytes);
    }

    /// Memory of datagrams that have arrived and were not taken, bytes.
    pub fn datagram_bytes(&self) -> usize {
        self.datagrams.receiving.bytes()
    }

    // ---- sending ------------------------------------------------------------------------------

    /// Sends a datagram; its number, if its flow has numbers. Where there is no room the oldest of the least urgent goes.
    ///
    /// # Errors
    /// Why not.
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

    /// Whether a datagram of so many bytes finds room without another one going.
    pub fn has_datagram_room(&self, len: usize) -> bool {
        self.datagrams.sending.has_room(len)
    }

    /// Bytes of the datagrams that wait for their turn to be sent.
    pub fn datagram_bytes_waiting(&self) -> usize {
        self.datagrams.sending.bytes()
    }

    /// What tells that there is room, or that a flow of live messages has news.
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

    /// There will be no more datagrams in order of a flow, so that another one may have an order.
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

    /// What tells that a datagram has arrived.
    pub fn datagram_arrived(&self) -> A::Signal {
        self.datagrams.receiving.arrived.clone()
    }

    /// The next flow of live messages that the peer has opened, in the order in which they are heard of, and what tells news of it.
    pub fn accept_live(&mut self) -> Option<(u64, A::Signal)> {
        self.datagrams.receiving.accept()
    }

    /// What tells that there is such a flow.
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

    /// Numbers of live messages that will not come, came too late, or made room before they were taken, since the last call.
    pub fn take_missing(&mut self, flow: u64) -> Vec<Range<u64>> {
        self.datagrams.receiving.take_missing(flow)
    }

    /// From now on live messages are given out when their time has come, or as they come.
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
