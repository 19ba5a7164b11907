//! Where packets leave.

use sphinx_proto::Tuple;

use crate::pool::PoolBuffer;

/// Takes the datagrams that a driver sends.
pub trait Outbox {
    /// Bytes of the datagrams that it holds.
    fn len_bytes(&self) -> usize;

    /// Whether what is for there would wait although others leave: its socket takes no more.
    fn is_full(&self, to: &Tuple) -> bool {
        let _ = to;
        false
    }

    /// The next datagram, of `len` bytes: the driver writes all of them before anything else happens.
    /// Where `to` names no address of this end, routing chooses. `ecn`: the codepoint to leave with, 0–2.
    fn push(&mut self, to: &Tuple, ecn: u8, len: usize) -> &mut [u8];

    /// The next datagrams of `len` bytes each, at most so many, and at least one: as [`push`](Self::push) gives one. They lie one after another.
    fn push_run(&mut self, to: &Tuple, ecn: u8, len: usize, _most: usize) -> &mut [u8] {
        self.push(to, ecn, len)
    }

    /// The next datagrams, of these lengths, which lie in `memory` one after another. How many bytes were copied.
    fn push_sealed(
        &mut self,
        to: &Tuple,
        ecn: u8,
        memory: PoolBuffer,
        lens: &mut dyn Iterator<Item = usize>,
    ) -> usize {
        let mut at = 0;
        for len in lens {
            self.push(to, ecn, len)
                .copy_from_slice(&memory[at..][..len]);
            at += len;
        }
        at
    }
}
