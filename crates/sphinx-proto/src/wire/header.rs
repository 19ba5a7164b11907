//! The 22-byte packet header (`docs/protocol.md` §4).

use std::fmt;

use super::{SymbolId, WireError};
use crate::numbers::PacketNumber;

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 22;
/// Length of the AEAD tag in bytes.
pub const TAG_LEN: usize = 16;
/// Bytes of a datagram that are not symbol.
pub const OVERHEAD: usize = HEADER_LEN + TAG_LEN;
/// Most source symbols in one block.
pub const MAX_BLOCK_SYMBOLS: u16 = 1024;
/// Most source symbols in a block of symbols of this size: the coefficients that decoding may need,
/// n × n bytes, stay in proportion to the block.
pub fn block_symbols_max(symbol_len: usize) -> usize {
    (2 * symbol_len).clamp(32, usize::from(MAX_BLOCK_SYMBOLS))
}

/// Blocks of a session from its first incomplete one on that may be open or complete.
pub const BLOCKS_AHEAD_MAX: u64 = 1 << 14;
/// Largest symbol in bytes.
pub const MAX_SYMBOL_LEN: usize = 9000;

/// Whether a datagram belongs to the data plane (else QUIC), by its first bytes.
///
/// RFC 9443 gives 0x80–0xBF to us; a QUIC Version Negotiation packet may begin with any byte
/// ≥ 0x80 but has version 0, which no connection id of ours imitates.
pub fn is_data_plane(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|b| b & 0xc0 == 0x80)
        && datagram.get(1..5).is_some_and(|v| v != [0; 4])
}

/// Names a session at its receiver; never starts with four zero bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId([u8; 8]);

impl ConnectionId {
    /// From eight bytes; `None` when the first four are zero (reserved for QUIC version 0).
    pub fn new(bytes: [u8; 8]) -> Option<Self> {
        (bytes[..4] != [0; 4]).then_some(Self(bytes))
    }

    /// The bytes on the wire.
    pub fn bytes(&self) -> [u8; 8] {
        self.0
    }

    /// The connection id of a data-plane datagram (bytes 1..9, never protected).
    #[inline]
    pub fn of_datagram(datagram: &[u8]) -> Option<Self> {
        Self::new(datagram.get(1..9)?.try_into().ok()?)
    }

    /// How many bytes those take at the beginning of these datagrams that are of the same plane and carry the same id. They lie one after another and have `stride`
    /// bytes each, at least 1, but for the last one, which may have fewer.
    #[inline]
    pub fn leading(datagrams: &[u8], stride: usize) -> usize {
        let first = datagrams.first_chunk::<9>();
        let is_same = |datagram: &&[u8]| {
            let pair = datagram.first_chunk::<9>().zip(first);
            pair.is_some_and(|(head, first)| {
                (head[0] ^ first[0]) & 0xc0 == 0 && head[1..] == first[1..]
            })
        };
        let count = datagrams.chunks(stride).take_while(is_same).count();
        datagrams.len().min(count.max(1) * stride)
    }
}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// What a packet carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketKind {
    /// One source or repair symbol.
    Symbol,
    /// Part of a symbol.
    Fragment,
    /// Control frames.
    Control,
    /// A symbol, and behind it some of other blocks.
    Bundle,
}

/// A header in the clear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the body holds.
    pub kind: PacketKind,
    /// Key phase: the epoch's lowest bit.
    pub phase: bool,
    /// The sender has, as far as it knows, nothing more to send after this packet.
    pub last_of_flight: bool,
    /// The receiver's connection id.
    pub cid: ConnectionId,
    /// Low 32 bits of the packet number.
    pub packet_number: u32,
    /// Low 32 bits of the block id.
    pub block: u32,
    /// 0 for a source symbol, else the erasure code (6 bits).
    pub code: u8,
    /// Source symbols in the block, 1–1024 (1 in control packets).
    pub n: u16,
    /// Source index or repair row (24 bits).
    pub row: u32,
}

impl Header {
    /// A control packet's header.
    pub fn control(cid: ConnectionId, packet_number: PacketNumber, phase: bool) -> Self {
        Self {
            kind: PacketKind::Control,
            phase,
            last_of_flight: false,
            cid,
            packet_number: packet_number.truncated(),
            block: 0,
            code: 0,
            n: 1,
            row: 0,
        }
    }

    /// The symbol that the packet carries, or a part of; of a bundle, the first one.
    ///
    /// # Errors
    /// If no code has the header's number.
    pub fn symbol(&self) -> Result<SymbolId, WireError> {
        SymbolId::from_wire(self.code, self.row)
    }

    /// Bytes on the wire, before protection. `n` outside 1–1024 and bits of `code` and `row` above
    /// their fields are cut off.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        let kind = match self.kind {
            PacketKind::Symbol => 0,
            PacketKind::Fragment => 1,
            PacketKind::Control => 2,
            PacketKind::Bundle => 3,
        };
        out[0] = 0x80 | kind << 4 | u8::from(self.phase) << 3 | u8::from(self.last_of_flight) << 2;
        out[1..9].copy_from_slice(&self.cid.0);
        out[9..13].copy_from_slice(&self.packet_number.to_be_bytes());
        out[13..17].copy_from_slice(&self.block.to_be_bytes());
        let code_n = u16::from(self.code & 0x3f) << 10 | (self.n.wrapping_sub(1) & 0x3ff);
        out[17..19].copy_from_slice(&code_n.to_be_bytes());
        out[19..22].copy_from_slice(&self.row.to_be_bytes()[1..]);
        out
    }

    /// Whether these bytes, whose protection has been removed, are the header of the packet behind one with the header `before`, which has the next symbol of the same
    /// block and shares all the rest with it.
    #[inline]
    pub fn is_next(bytes: &[u8; HEADER_LEN], before: &[u8; HEADER_LEN]) -> bool {
        let row = |of: &[u8; HEADER_LEN]| be32(of, 18) & 0x00ff_ffff;
        be32(bytes, 9) == be32(before, 9).wrapping_add(1)
            && row(bytes) == row(before) + 1
            && bytes[..9] == before[..9]
            && bytes[13..19] == before[13..19]
    }

    /// From bytes whose protection has been removed. `None` for bits that this version
    /// does not know; the caller drops such a packet (after opening it, if it wants to blame the peer).
    #[inline]
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        let kind = match bytes[0] >> 4 & 3 {
            0 => PacketKind::Symbol,
            1 => PacketKind::Fragment,
            2 => PacketKind::Control,
            _ => PacketKind::Bundle,
        };
        if bytes[0] & 0xc3 != 0x80 {
            return None;
        }
        let code_n = u16::from_be_bytes([bytes[17], bytes[18]]);
        Some(Self {
            kind,
            phase: bytes[0] & 8 != 0,
            last_of_flight: bytes[0] & 4 != 0,
            cid: ConnectionId::of_datagram(bytes)?,
            packet_number: be32(bytes, 9),
            block: be32(bytes, 13),
            code: (code_n >> 10) as u8,
            n: (code_n & 0x3ff) + 1,
            row: u32::from_be_bytes([0, bytes[19], bytes[20], bytes[21]]),
        })
    }
}

fn be32(bytes: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cid() -> ConnectionId {
        ConnectionId::new([1, 2, 3, 4, 5, 6, 7, 8]).expect("non-zero")
    }

    #[test]
    fn vector() {
        let header = Header {
            kind: PacketKind::Symbol,
            phase: true,
            last_of_flight: true,
            cid: cid(),
            packet_number: 0x1122_3344,
            block: 0x5566_7788,
            code: 1,
            n: 100,
            row: 0x00ab_cdef,
        };
        let bytes = header.encode();
        assert_eq!(
            bytes,
            [
                0x8c, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x04,
                99, 0xab, 0xcd, 0xef
            ]
        );
        assert_eq!(Header::decode(&bytes), Some(header));
    }

    #[test]
    fn what_comes_next_differs_in_number_and_row() {
        let before = Header {
            kind: PacketKind::Symbol,
            n: 100,
            row: 0xff,
            packet_number: u32::MAX,
            ..Header::control(cid(), PacketNumber::ZERO, false)
        };
        let next = Header {
            row: 0x100,
            packet_number: 0,
            ..before
        };
        let is_next = |next: &Header| Header::is_next(&next.encode(), &before.encode());
        assert!(is_next(&next) && !is_next(&before));
        for other in [
            Header { row: 0x101, ..next },
            Header { n: 101, ..next },
            Header { code: 1, ..next },
            Header { block: 1, ..next },
            Header {
                phase: true,
                ..next
            },
            Header {
                packet_number: 1,
                ..next
            },
            Header {
                last_of_flight: true,
                ..next
            },
        ] {
            assert!(!is_next(&other), "{other:?}");
        }
    }

    #[test]
    fn datagrams_with_the_same_id_are_together() {
        let of = |first: u8, id: u8| [first, id, id, id, id, id, id, id, id, 0];
        let all = [
            of(0x80, 1),
            of(0x8f, 1),
            of(0xc0, 1),
            of(0xc0, 1),
            of(0xc0, 2),
        ]
        .concat();
        assert_eq!(ConnectionId::leading(&all, 10), 20);
        assert_eq!(ConnectionId::leading(&all[20..], 10), 20);
        assert_eq!(ConnectionId::leading(&all[40..], 10), 10);
        // The last one may be shorter, and too short for an id.
        assert_eq!(ConnectionId::leading(&all[..19], 10), 19);
        assert_eq!(ConnectionId::leading(&all[..15], 10), 10);
        assert_eq!(ConnectionId::leading(&all[..4], 10), 4);
        assert_eq!(ConnectionId::leading(&[], 10), 0);
    }

    #[test]
    fn version_negotiation_is_quic() {
        assert!(!is_data_plane(&[0x80, 0, 0, 0, 0, 9]));
        assert!(is_data_plane(&[0x80, 0, 0, 0, 1]));
        assert!(!is_data_plane(&[0xc0, 0, 0, 0, 1]));
        assert!(!is_data_plane(&[0x40, 1, 1, 1, 1]));
        assert!(!is_data_plane(&[]));
        assert_eq!(ConnectionId::new([0, 0, 0, 0, 1, 1, 1, 1]), None);
    }

    proptest! {
        #[test]
        fn any_header_survives(bytes in prop::array::uniform22(any::<u8>())) {
            if let Some(header) = Header::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }
}
