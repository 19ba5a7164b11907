//! What keeps packets from being read and changed.

use std::ops::Range;

use sphinx_proto::wire::Header;
use sphinx_proto::{Nanos, PacketNumber, PathId, Time};

use crate::keys::{Keys, OpenError, SealError};

/// Packet protection of one session, both directions (`docs/protocol.md` §3 and §4).
pub trait PacketProtection: Sized {
    /// That of another path of the same session; `None` if there is none.
    fn of_path(&self, path: PathId) -> Option<Self>;

    /// Seals `datagram` in place: 24 bytes for the header, the plaintext body, 16 bytes for the tag.
    /// `phase` and `packet_number` of `header` are not looked at.
    ///
    /// # Errors
    /// When the number is not above all sealed before, or the key is used up; nothing has changed then.
    fn seal(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        datagram: &mut [u8],
    ) -> Result<(), SealError>;

    /// The peer has acknowledged `packet_number`.
    fn acked(&mut self, packet_number: PacketNumber);

    /// Removes the header protection in place; `None` for what cannot be a packet, whose bytes are garbage
    /// then.
    fn unprotect(&self, datagram: &mut [u8]) -> Option<Header>;

    /// Opens in place a datagram whose header protection has been removed: where its body is. `now` never
    /// steps back; `pto` is the present probe timeout, which old keys outlive by little.
    ///
    /// # Errors
    /// When the packet is not the peer's as it was sent, or so many were not that the session has to end; its bytes
    /// are garbage then.
    fn open(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        datagram: &mut [u8],
        now: Time,
        pto: Nanos,
    ) -> Result<Range<usize>, OpenError>;
}

impl PacketProtection for Keys {
    fn of_path(&self, path: PathId) -> Option<Self> {
        let (secret, direction) = self.origin.as_ref()?;
        Some(secret.keys(*direction, path))
    }

    fn seal(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        self.sealer.seal(header, packet_number, datagram)
    }

    fn acked(&mut self, packet_number: PacketNumber) {
        self.sealer.acked(packet_number);
    }

    fn unprotect(&self, datagram: &mut [u8]) -> Option<Header> {
        self.opener.unprotect(datagram)
    }

    fn open(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        datagram: &mut [u8],
        now: Time,
        pto: Nanos,
    ) -> Result<Range<usize>, OpenError> {
        self.opener.open(header, packet_number, datagram, now, pto)
    }
}
