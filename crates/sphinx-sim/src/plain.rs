//! Packet protection without secrets, for worlds where nobody forges.

use std::ops::Range;
use std::sync::Arc;

use sphinx_driver::keys::{OpenError, Permit, SealError, Sequencer};
use sphinx_driver::{OpenPacket, PacketProtection, SealPacket};
use sphinx_proto::wire::{HEADER_LEN, Header, OVERHEAD, TAG_LEN};
use sphinx_proto::{Nanos, PacketNumber, PathId, Time};

/// Leaves packets readable and puts a checksum where the tag of a sealed packet is: what was changed on its
/// way does not open. As with real keys, a packet number is used once.
#[derive(Debug)]
pub struct Plain {
    sequencer: Sequencer,
    path: PathId,
}

impl Plain {
    fn of(path: PathId) -> Self {
        let sequencer = Sequencer::new(path);
        Self { sequencer, path }
    }
}

impl Default for Plain {
    /// The protection of the first path.
    fn default() -> Self {
        Self::of(PathId::FIRST)
    }
}

/// What puts the checksums of a path, and compares them.
struct Check(PathId);

impl SealPacket for Check {
    fn seal(&self, permit: Permit, header: &Header, datagram: &mut [u8]) -> Result<(), SealError> {
        let packet_number = permit.packet_number();
        let header = Header {
            packet_number: packet_number.truncated(),
            ..*header
        };
        datagram[..HEADER_LEN].copy_from_slice(&header.encode());
        let (sealed, tag) = datagram.split_at_mut(datagram.len() - TAG_LEN);
        tag.copy_from_slice(&checksum(self.0, packet_number, sealed));
        Ok(())
    }

    fn seal_from(
        &self,
        permit: Permit,
        header: &Header,
        body: &[u8],
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        let place = datagram.get_mut(HEADER_LEN..HEADER_LEN + body.len());
        place.ok_or(SealError::BufferSize)?.copy_from_slice(body);
        self.seal(permit, header, datagram)
    }
}

impl OpenPacket for Check {
    fn open(&self, packet_number: PacketNumber, datagram: &mut [u8]) -> Option<Range<usize>> {
        let body = HEADER_LEN..datagram.len() - TAG_LEN;
        let (sealed, tag) = datagram.split_at(body.end);
        (*tag == checksum(self.0, packet_number, sealed)).then_some(body)
    }
}

impl PacketProtection for Plain {
    fn of_path(&self, path: PathId) -> Option<Self> {
        Some(Self::of(path))
    }

    fn seal(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        let permit = self.permit(packet_number)?;
        Check(self.path).seal(permit, header, datagram)
    }

    fn seal_from(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        body: &[u8],
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        let permit = self.permit(packet_number)?;
        Check(self.path).seal_from(permit, header, body, datagram)
    }

    fn seal_run(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        (bodies, body_len): (&[u8], usize),
        datagrams: &mut [u8],
    ) -> Result<(), SealError> {
        let packets = bodies.chunks(body_len);
        let packets = packets.zip(datagrams.chunks_mut(body_len + OVERHEAD));
        for (at, (body, datagram)) in (0..).zip(packets) {
            let row = header.row + at;
            let header = Header { row, ..*header };
            self.seal_from(&header, packet_number + u64::from(at), body, datagram)?;
        }
        Ok(())
    }

    fn permit(&mut self, packet_number: PacketNumber) -> Result<Permit, SealError> {
        self.sequencer.permit(0, packet_number)
    }

    fn sealing(&self) -> Arc<dyn SealPacket> {
        Arc::new(Check(self.path))
    }

    fn acked(&mut self, _packet_number: PacketNumber) {}

    fn wants_answer(&self) -> bool {
        false
    }

    fn unprotect(&self, datagram: &mut [u8]) -> Option<Header> {
        if datagram.len() < OVERHEAD {
            return None;
        }
        Header::decode(datagram.first_chunk()?)
    }

    fn unprotect_all(&self, _datagrams: &mut [u8], _stride: usize) {}

    fn open(
        &mut self,
        _header: &Header,
        packet_number: PacketNumber,
        datagram: &mut [u8],
        _now: Time,
        _pto: Nanos,
    ) -> Result<Range<usize>, OpenError> {
        let body = Check(self.path).open(packet_number, datagram);
        body.ok_or(OpenError::Invalid)
    }

    fn open_into(
        &mut self,
        _header: &Header,
        packet_number: PacketNumber,
        (datagram, body): (&[u8], &mut [u8]),
        _now: Time,
        _pto: Nanos,
    ) -> Result<(), OpenError> {
        let (sealed, tag) = datagram.split_at(datagram.len() - TAG_LEN);
        // As a cipher does, which finds out at the end.
        body.copy_from_slice(&sealed[HEADER_LEN..]);
        let is_whole = *tag == checksum(self.path, packet_number, sealed);
        is_whole.then_some(()).ok_or(OpenError::Invalid)
    }

    fn choose(
        &mut self,
        _header: &Header,
        _packet_number: PacketNumber,
        _now: Time,
    ) -> Result<u64, OpenError> {
        Ok(0)
    }

    fn opening(&self, _epoch: u64) -> Option<Arc<dyn OpenPacket>> {
        Some(Arc::new(Check(self.path)))
    }

    fn note(
        &mut self,
        _epoch: u64,
        _packet_number: PacketNumber,
        _is_open: bool,
        _now: Time,
        _pto: Nanos,
    ) -> Result<(), OpenError> {
        Ok(())
    }
}

/// Of everything in front of the tag, and of the packet number's upper half, which no packet carries.
fn checksum(path: PathId, packet_number: PacketNumber, sealed: &[u8]) -> [u8; TAG_LEN] {
    let mut sum = packet_number.get() ^ (sealed.len() as u64) << 48 ^ u64::from(path.get()) << 32;
    let mut add = |word: u64| {
        sum = (sum ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    };
    let (words, rest) = sealed.as_chunks();
    words.iter().for_each(|word| add(u64::from_le_bytes(*word)));
    rest.iter().for_each(|byte| add(u64::from(*byte)));
    let mut tag = [0; TAG_LEN];
    tag[..8].copy_from_slice(&sum.to_le_bytes());
    tag
}
