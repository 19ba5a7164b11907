//! What keeps packets from being read and changed.

use std::ops::Range;
use std::sync::Arc;

use sphinx_proto::wire::Header;
use sphinx_proto::{Nanos, PacketNumber, PathId, Time};

use crate::keys::{Keys, OpenError, OpeningKey, Permit, SealError, SealingKey};

/// What seals packets of one epoch and path, in any thread.
pub trait SealPacket: Send + Sync {
    /// Seals `datagram` in place: 22 bytes for the header, the plaintext body, 16 bytes for the tag.
    /// `phase` and `packet_number` of `header` are not looked at.
    ///
    /// # Errors
    /// When the permit is for another key.
    fn seal(&self, permit: Permit, header: &Header, datagram: &mut [u8]) -> Result<(), SealError>;

    /// The same of `body`, which stays as it is, into `datagram`.
    ///
    /// # Errors
    /// When the permit is for another key, or `datagram` is not 38 bytes longer than `body`.
    fn seal_from(
        &self,
        permit: Permit,
        header: &Header,
        body: &[u8],
        datagram: &mut [u8],
    ) -> Result<(), SealError>;
}

/// What opens packets of one epoch and path, in any thread.
pub trait OpenPacket: Send + Sync {
    /// Opens in place a datagram whose header protection has been removed: where its body is, if it is the peer's as it was sent. Its
    /// bytes are garbage otherwise.
    fn open(&self, packet_number: PacketNumber, datagram: &mut [u8]) -> Option<Range<usize>>;
}

/// Packet protection of one session, both directions (`docs/protocol.md` §3 and §4).
///
/// [`seal`](Self::seal) and [`open`](Self::open) do all of it here and now. Where it is done elsewhere, `permit` and
/// `sealing` come before, and `choose` and `opening`; and `note` after, in the order of arrival.
pub trait PacketProtection: Sized {
    /// That of another path of the same session; `None` if there is none.
    fn of_path(&self, path: PathId) -> Option<Self>;

    /// Seals `datagram` in place, as [`SealPacket::seal`] does.
    ///
    /// # Errors
    /// When the number is not above all sealed before, or the key is used up; nothing has changed then.
    fn seal(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        datagram: &mut [u8],
    ) -> Result<(), SealError>;

    /// Seals `body`, which stays as it is, into `datagram`, which is 38 bytes longer. Otherwise as [`seal`](Self::seal).
    ///
    /// # Errors
    /// Those of [`seal`](Self::seal).
    fn seal_from(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        body: &[u8],
        datagram: &mut [u8],
    ) -> Result<(), SealError>;

    /// Seals bodies of `body_len` bytes each, which lie one after another and stay as they are, into datagrams that do so too, each 38 bytes longer. The first one has this header and
    /// number, and each of the others the number and the row behind those of the one before.
    ///
    /// # Errors
    /// Those of [`seal`](Self::seal), of any of them; what the datagrams hold is not to leave then.
    fn seal_run(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        bodies: (&[u8], usize),
        datagrams: &mut [u8],
    ) -> Result<(), SealError>;

    /// The right to seal this packet elsewhere.
    ///
    /// # Errors
    /// Those of [`seal`](Self::seal).
    fn permit(&mut self, packet_number: PacketNumber) -> Result<Permit, SealError>;

    /// What seals with the permit that was given last, and with others of its epoch.
    fn sealing(&self) -> Arc<dyn SealPacket>;

    /// The peer has acknowledged `packet_number`.
    fn acked(&mut self, packet_number: PacketNumber);

    /// Whether the peer is to be asked to acknowledge something: sooner or later nothing is sealed without that.
    fn wants_answer(&self) -> bool;

    /// Removes the header protection in place; `None` for what cannot be a packet, whose bytes are garbage
    /// then.
    fn unprotect(&self, datagram: &mut [u8]) -> Option<Header>;

    /// Removes the header protection of datagrams that lie one after another, each of `stride` bytes but for the last one. Those that are too short for a
    /// packet stay as they are; of the others [`Header::decode`] says which can be one.
    fn unprotect_all(&self, datagrams: &mut [u8], stride: usize);

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

    /// Opens such a datagram, which stays as it is, into `body`, which is as long as its body. Otherwise as [`open`](Self::open).
    ///
    /// # Errors
    /// Those of [`open`](Self::open); what `body` holds is garbage then.
    fn open_into(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        packet: (&[u8], &mut [u8]),
        now: Time,
        pto: Nanos,
    ) -> Result<(), OpenError>;

    /// The epoch whose key is to open the packet elsewhere.
    ///
    /// # Errors
    /// When there is none, or no packet is opened any more.
    fn choose(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        now: Time,
    ) -> Result<u64, OpenError>;

    /// What opens packets of an epoch that has just been chosen.
    fn opening(&self, epoch: u64) -> Option<Arc<dyn OpenPacket>>;

    /// A packet was opened with the key of `epoch`, or was not.
    ///
    /// # Errors
    /// When so many were not that the session has to end.
    fn note(
        &mut self,
        epoch: u64,
        packet_number: PacketNumber,
        is_open: bool,
        now: Time,
        pto: Nanos,
    ) -> Result<(), OpenError>;
}

impl SealPacket for SealingKey {
    fn seal(&self, permit: Permit, header: &Header, datagram: &mut [u8]) -> Result<(), SealError> {
        SealingKey::seal(self, permit, header, datagram)
    }

    fn seal_from(
        &self,
        permit: Permit,
        header: &Header,
        body: &[u8],
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        SealingKey::seal_from(self, permit, header, body, datagram)
    }
}

impl OpenPacket for OpeningKey {
    fn open(&self, packet_number: PacketNumber, datagram: &mut [u8]) -> Option<Range<usize>> {
        OpeningKey::open(self, packet_number, datagram)
    }
}

impl PacketProtection for Keys {
    fn of_path(&self, path: PathId) -> Option<Self> {
        let (secret, direction) = self.origin.as_ref()?;
        let Keys {
            sealer,
            opener,
            origin,
        } = secret.keys(*direction, path);
        Some(Self {
            sealer: sealer.with_epoch_packets(self.sealer.epoch_packets()),
            opener,
            origin,
        })
    }

    fn seal(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        self.sealer.seal(header, packet_number, datagram)
    }

    fn seal_from(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        body: &[u8],
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        self.sealer.seal_from(header, packet_number, body, datagram)
    }

    fn seal_run(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        bodies: (&[u8], usize),
        datagrams: &mut [u8],
    ) -> Result<(), SealError> {
        self.sealer
            .seal_run(header, packet_number, bodies, datagrams)
    }

    fn permit(&mut self, packet_number: PacketNumber) -> Result<Permit, SealError> {
        self.sealer.permit(packet_number)
    }

    fn sealing(&self) -> Arc<dyn SealPacket> {
        Arc::clone(self.sealer.key()) as _
    }

    fn acked(&mut self, packet_number: PacketNumber) {
        self.sealer.acked(packet_number);
    }

    fn wants_answer(&self) -> bool {
        self.sealer.wants_answer()
    }

    fn unprotect(&self, datagram: &mut [u8]) -> Option<Header> {
        self.opener.unprotect(datagram)
    }

    fn unprotect_all(&self, datagrams: &mut [u8], stride: usize) {
        self.opener.unprotect_all(datagrams, stride);
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

    fn open_into(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        packet: (&[u8], &mut [u8]),
        now: Time,
        pto: Nanos,
    ) -> Result<(), OpenError> {
        self.opener
            .open_into(header, packet_number, packet, now, pto)
    }

    fn choose(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        now: Time,
    ) -> Result<u64, OpenError> {
        self.opener.choose(header, packet_number, now)
    }

    fn opening(&self, epoch: u64) -> Option<Arc<dyn OpenPacket>> {
        let key = self.opener.key(epoch)?;
        Some(Arc::clone(key) as _)
    }

    fn note(
        &mut self,
        epoch: u64,
        packet_number: PacketNumber,
        is_open: bool,
        now: Time,
        pto: Nanos,
    ) -> Result<(), OpenError> {
        self.opener.note(epoch, packet_number, is_open, now, pto)
    }
}
