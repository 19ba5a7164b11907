//! Where packets leave.

use sphinx_proto::Tuple;

/// Takes the datagrams that a driver sends.
pub trait Outbox {
    /// Bytes of the datagrams that it holds.
    fn len_bytes(&self) -> usize;

    /// The next datagram, of `len` bytes: the driver writes all of them before anything else happens.
    /// Where `to` names no address of this end, routing chooses.
    fn push(&mut self, to: &Tuple, len: usize) -> &mut [u8];
}
