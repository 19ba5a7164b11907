//! What the application and the driver tell each other of datagrams.

use std::ops::Range;

use sphinx_proto::Time;
use sphinx_proto::wire::{DATAGRAMS_MAX, Datagram, FlowNews, WireError};

use super::Driver;
use crate::blocks::TxBlock;
use crate::datagrams::First;
use crate::executor::Executor;
use crate::pool::{BufferPool, PoolBuffer};
use crate::protection::PacketProtection;
use crate::queues::{Application, Queues};

/// Datagrams of a block, with the places of their data.
type Unpacked = Result<Vec<(Datagram, Range<usize>)>, WireError>;

impl<P: PacketProtection, E: Executor> Driver<P, E> {
    /// What is out of date goes, and what is due is given out.
    pub(super) fn handle_datagrams<A: Application>(&mut self, now: Time, queues: &mut Queues<A>) {
        let datagrams = &mut queues.datagrams;
        datagrams.receiving.handle_timeout(now);
        if datagrams.sending.expire(now) {
            queues.changed.push(datagrams.sending.signal.clone());
        }
    }

    /// Hands over a block of datagrams, unless what streams have is more urgent or there is no room. Whether there was one.
    pub(super) fn submit_datagrams<A: Application>(
        &mut self,
        now: Time,
        queues: &mut Queues<A>,
        pool: &BufferPool,
    ) -> bool {
        self.waiting_datagrams = None;
        let (_, symbol_len) = self.core.block_shape(1);
        let sending = &mut queues.datagrams.sending;
        let other = queues.outgoing.next_urgency();
        let Some(First {
            urgency,
            shape,
            lifetime,
            is_timed,
        }) = sending.first(symbol_len)
        else {
            self.datagrams_lead = 0;
            return false;
        };
        if other != Some(urgency) {
            self.datagrams_lead = 0;
        }
        if other.is_some_and(|other| other < urgency) || self.datagrams_lead > 0 {
            return false;
        }
        // One that would be late is not begun: else, where there is more than the path carries, all would be late.
        let way = if is_timed { self.core.one_way() } else { 0 };
        let leaves = self.core.last_leaves(now, shape, urgency, lifetime);
        if leaves.saturating_add(way) > lifetime.until {
            sending.expire_first();
            return true;
        }
        if !self.core.can_submit_datagrams(shape, urgency) {
            self.waiting_datagrams = Some((urgency, shape));
            return false;
        }
        let core = &self.core;
        let fits = |shape| core.can_submit_datagrams(shape, urgency);
        let Some(packed) = sending.pack(symbol_len, pool, fits) else {
            return false;
        };
        let (data_len, shape) = (packed.data_len, packed.shape);
        self.counters.copied_bytes += data_len;
        let block = TxBlock::new(packed.memory, shape, data_len, packed.sent);
        let slot = self.tx.insert(block);
        self.core
            .submit_datagrams(slot, shape, urgency, packed.lifetime);
        queues.changed.push(sending.signal.clone());
        self.datagrams_lead += data_len as i64;
        true
    }

    /// What the peer is to hear of flows; and when to look again.
    pub(super) fn tell_flows<A: Application>(&mut self, queues: &mut Queues<A>) {
        for (flow, life) in queues.latencies.drain(..) {
            let micros = life / 1000;
            self.core.tell_flow(FlowNews::Latency { flow, micros });
        }
        let datagrams = &mut queues.datagrams;
        for news in datagrams.sending.take_news() {
            self.core.tell_flow(news);
        }
        queues.changed.append(&mut datagrams.receiving.changed);
        self.datagrams_at = datagrams.timeout();
    }

    /// The peer says something of a flow.
    pub(super) fn hear_of_flow<A: Application>(
        &mut self,
        now: Time,
        news: FlowNews,
        queues: &mut Queues<A>,
    ) {
        let datagrams = &mut queues.datagrams;
        if let FlowNews::Latency { flow, micros } = news {
            let life = micros.saturating_mul(1000);
            datagrams.sending.on_latency(flow, life);
            queues.changed.push(datagrams.sending.signal.clone());
        } else {
            datagrams.receiving.on_news(now, news);
        }
    }

    /// Gives the application what a block holds.
    pub(super) fn give_datagrams<A: Application>(
        &mut self,
        now: Time,
        memory: PoolBuffer,
        datagrams: Unpacked,
        (queues, pool): (&mut Queues<A>, &BufferPool),
    ) {
        let datagrams = match datagrams {
            Ok(datagrams) if datagrams.len() <= DATAGRAMS_MAX => datagrams,
            Ok(_) => return self.violation(now, "too many datagrams in a block"),
            Err(_) => return self.violation(now, "malformed block"),
        };
        let way = self.core.base_rtt() / 2;
        let is_one = datagrams.len() == 1;
        let mut whole = Some(memory);
        for (datagram, data) in datagrams {
            self.counters.bytes_received += datagram.len as u64;
            let place = match whole.take_if(|_| is_one) {
                Some(memory) => (memory, data),
                None => {
                    self.counters.copied_bytes += data.len() as u64;
                    let mut own = pool.take(data.len());
                    own.copy_from_slice(whole.as_ref().map_or(&[], |block| &block[data]));
                    let data = 0..own.len();
                    (own, data)
                }
            };
            let receiving = &mut queues.datagrams.receiving;
            receiving.add(now, way, &datagram, place);
        }
    }
}
