//! What generations hold is given to streams, symbol by symbol.

use sphinx_fec::Error;
use sphinx_proto::wire::{DatagramIter, Segment};
use sphinx_proto::{StreamPart, Time, share_cost, symbol_cost};

use super::exchange::unpack;
use super::{Driver, EndReason, Workshop};
use crate::executor::Executor;
use crate::generations::{Reading, Ready};
use crate::incoming::{Chunk, Taken};
use crate::pool::{BufferPool, PoolBuffer};
use crate::protection::PacketProtection;
use crate::queues::{Application, Queues};

const MALFORMED: &str = "malformed block";

/// A symbol that the core has found to be of use.
pub(super) type Useful = (sphinx_proto::BlockId, u16, sphinx_proto::wire::SymbolId);

impl<P: PacketProtection, E: Executor> Driver<P, E> {
    /// Stores a symbol, and finds what is in order now.
    pub(super) fn store_of_generation(
        &mut self,
        now: Time,
        (block, n, symbol): Useful,
        bytes: &[u8],
        workshop: &Workshop,
    ) {
        let mut memory = workshop.pool().take(bytes.len());
        memory.copy_from_slice(bytes);
        self.counters.copied_bytes += bytes.len() as u64;
        self.rx.charge(symbol_cost(bytes.len() as u16));
        let mut is_right = self.generations.store((block, n), symbol, memory);
        while let Some(in_order) = self.core.next_in_order() {
            is_right &= self.generations.release(&in_order);
        }
        if !is_right {
            // The core follows the same rows.
            debug_assert!(false, "out of step with the core");
            self.core.close(now, 1, "cannot decode");
            let (n, found) = (usize::from(n), bytes.len());
            let error = Error::Length { expected: n, found };
            self.end(EndReason::CannotDecode(error));
        }
    }

    /// Gives the application what is in order.
    pub(super) fn give_in_order<A: Application>(
        &mut self,
        now: Time,
        (queues, pool): (&mut Queues<A>, &BufferPool),
    ) -> bool {
        let mut any = false;
        while let Some(ready) = self.generations.next() {
            any = true;
            let given = match ready.n {
                1 => self.give_one(now, ready.memory, (queues, pool)),
                _ => self.give_next(now, ready, queues),
            };
            if let Err(what) = given {
                self.violation(now, what);
                return true;
            }
        }
        any
    }

    /// A generation of one symbol may hold pieces of several streams.
    fn give_one<A: Application>(
        &mut self,
        now: Time,
        memory: PoolBuffer,
        to: (&mut Queues<A>, &BufferPool),
    ) -> Result<(), &'static str> {
        let cost = symbol_cost(memory.len() as u16);
        if DatagramIter::new(&memory).is_some() {
            return Err("datagrams in a generation");
        }
        let (segments, mut parts) = unpack(&memory)?;
        share_cost(cost, &mut parts);
        if parts.is_empty() {
            self.give_nothing(&memory);
        }
        if self.core.parts_in_order(now, &parts) {
            self.give_segments(now, memory, (segments, &parts), to);
        }
        Ok(())
    }

    fn give_nothing(&mut self, memory: &PoolBuffer) {
        let symbol_len = memory.len() as u16;
        self.core.nothing_in_order(symbol_len);
        self.rx.release(symbol_cost(symbol_len));
    }

    /// Others hold one segment, and then padding.
    fn give_next<A: Application>(
        &mut self,
        now: Time,
        ready: Ready,
        queues: &mut Queues<A>,
    ) -> Result<(), &'static str> {
        let Ready { memory, index, n } = ready;
        let mut from = 0;
        if index == 0 {
            let begun = Segment::begin(&memory).map_err(|_| MALFORMED)?;
            self.generations.reading = begun.map(|(rest, data_at)| {
                from = data_at;
                Reading {
                    rest,
                    last: None,
                    cost: 0,
                }
            });
        }
        let Some(reading) = &mut self.generations.reading else {
            self.give_nothing(&memory);
            return Ok(());
        };
        reading.cost += symbol_cost(memory.len() as u16);
        if reading.last.is_none() {
            let rest = &mut reading.rest;
            let here = (memory.len() - from).min(rest.len as usize) as u32;
            let ends = here == rest.len;
            let piece = Segment {
                len: here,
                end_of_stream: rest.end_of_stream && ends,
                ..*rest
            };
            rest.offset += u64::from(here);
            rest.len -= here;
            if ends || here > 0 {
                reading.last = Some((memory, from, piece));
            }
            let is_done = index + 1 == n;
            if is_done && !ends {
                return Err(MALFORMED);
            }
            // Its last piece waits for the padding behind it; and where the header fills the symbol, there is none yet.
            if ends && !is_done || reading.last.is_none() {
                return Ok(());
            }
        } else if index + 1 < n {
            return Ok(());
        }
        let cost = std::mem::take(&mut reading.cost);
        let Some((memory, from, piece)) = reading.last.take() else {
            return Err(MALFORMED);
        };
        let part = StreamPart {
            stream: piece.stream,
            bytes: piece.len,
            end_of_stream: piece.end_of_stream,
            cost,
        };
        if self.core.parts_in_order(now, &[part]) {
            self.give_piece(now, memory, (from, &piece, cost), queues);
        }
        Ok(())
    }

    /// A piece of a stream that has memory of its own.
    fn give_piece<A: Application>(
        &mut self,
        now: Time,
        memory: PoolBuffer,
        (from, piece, cost): (usize, &Segment, u64),
        queues: &mut Queues<A>,
    ) {
        let stream = piece.stream;
        let incoming = queues.incoming.entry(stream).or_default();
        let has_ended = match self.put_in_order(incoming, piece) {
            Ok(has_ended) => has_ended,
            Err(what) => return self.violation(now, what),
        };
        if incoming.abandoned || incoming.reset().is_some() {
            let is_over = has_ended && incoming.abandoned;
            self.release(now, Taken { stream, cost });
            if is_over {
                queues.incoming.remove(&stream);
            }
            return;
        }
        let chunk = Chunk::new(memory, from, piece, cost);
        incoming.chunks.insert(piece.offset, chunk);
        queues.changed.push(incoming.signal.clone());
    }
}
