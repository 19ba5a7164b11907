//! Packet protection without secrets, for worlds where nobody forges.

use std::ops::Range;

use sphinx_driver::PacketProtection;
use sphinx_driver::keys::{OpenError, SealError};
use sphinx_proto::wire::{HEADER_LEN, Header, OVERHEAD, TAG_LEN};
use sphinx_proto::{Nanos, PacketNumber, PathId, Time};

/// Leaves packets readable and puts a checksum where the tag of a sealed packet is: what was changed on its
/// way does not open. As with real keys, a packet number is used once.
#[derive(Debug, Clone, Copy)]
pub struct Plain {
    /// One above the largest packet number sealed.
    next: PacketNumber,
    path: PathId,
}

impl Default for Plain {
    /// That of the first path.
    fn default() -> Self {
        Self {
            next: PacketNumber::ZERO,
            path: PathId::FIRST,
        }
    }
}

impl PacketProtection for Plain {
    fn of_path(&self, path: PathId) -> Option<Self> {
        Some(Self {
            path,
            ..Self::default()
        })
    }

    fn seal(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        if packet_number < self.next {
            return Err(SealError::NumberUsed);
        }
        self.next = packet_number + 1;
        let header = Header {
            packet_number: packet_number.truncated(),
            ..*header
        };
        datagram[..HEADER_LEN].copy_from_slice(&header.encode());
        let (sealed, tag) = datagram.split_at_mut(datagram.len() - TAG_LEN);
        tag.copy_from_slice(&checksum(self.path, packet_number, sealed));
        Ok(())
    }

    fn acked(&mut self, _packet_number: PacketNumber) {}

    fn unprotect(&self, datagram: &mut [u8]) -> Option<Header> {
        if datagram.len() < OVERHEAD {
            return None;
        }
        Header::decode(datagram.first_chunk()?)
    }

    fn open(
        &mut self,
        _header: &Header,
        packet_number: PacketNumber,
        datagram: &mut [u8],
        _now: Time,
        _pto: Nanos,
    ) -> Result<Range<usize>, OpenError> {
        let body = HEADER_LEN..datagram.len() - TAG_LEN;
        let (sealed, tag) = datagram.split_at(body.end);
        if *tag != checksum(self.path, packet_number, sealed) {
            return Err(OpenError::Invalid);
        }
        Ok(body)
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
