//! What crosses the link.

use std::net::SocketAddr;

use sphinx_link::Packet;
use sphinx_proto::wire::{HEADER_LEN, OVERHEAD};

/// Bytes of the IPv4 and UDP headers.
pub const IP_OVERHEAD: u16 = 28;
/// ECN codepoint "congestion experienced" (RFC 3168).
const CE: u8 = 0b11;

/// A datagram on the link: unsealed, but with the size of a sealed one.
#[derive(Debug, Clone)]
pub struct Datagram {
    /// Where it seems to come from.
    pub from: SocketAddr,
    /// Where it goes.
    pub to: SocketAddr,
    pub(crate) header: [u8; HEADER_LEN],
    pub(crate) body: Vec<u8>,
    pub(crate) ecn: u8,
    /// Would not open.
    pub(crate) corrupted: bool,
}

impl Datagram {
    /// Bytes of its UDP payload.
    #[expect(clippy::len_without_is_empty, reason = "it always has a header")]
    pub fn len(&self) -> usize {
        OVERHEAD + self.body.len()
    }
}

impl Packet for Datagram {
    fn ip_len(&self) -> usize {
        usize::from(IP_OVERHEAD) + OVERHEAD + self.body.len()
    }

    fn mark_ce(&mut self) -> bool {
        let capable = self.ecn != 0;
        if capable {
            self.ecn = CE;
        }
        capable
    }

    fn corruptible_bits(&self) -> u64 {
        8 * (OVERHEAD + self.body.len()) as u64
    }

    fn flip_bit(&mut self, _bit: u64) {
        self.corrupted = true;
    }

    fn duplicate(&self) -> Self {
        self.clone()
    }
}
