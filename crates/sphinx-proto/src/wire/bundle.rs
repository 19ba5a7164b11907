//! The body of a BUNDLE packet (`docs/protocol.md` §5.5).

use std::ops::Range;

use super::{Header, PacketKind, Reader, WireError, put_varint, varint_len};

/// Most symbols that ride in a packet beside its own.
pub const BUNDLE_MAX: u8 = 8;
/// Distance in blocks, below 2^14; code; n; row; length.
const RIDER_PREFIX_MAX: usize = 2 + 1 + 2 + 4 + 2;
const MAIN_PREFIX_MAX: usize = 2;

/// A symbol that rides in a packet of another block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rider {
    /// The id of the packet's own block, less that of its block: at least 1.
    pub distance: u32,
    /// 0 for a source symbol, else the erasure code.
    pub code: u8,
    /// Source symbols in the block, 1–1024.
    pub n: u16,
    /// Source index or repair row.
    pub row: u32,
    /// Bytes of the symbol.
    pub symbol_len: u16,
}

impl Rider {
    /// Bytes that ride for a symbol of this size at most, with what says whose it is.
    pub fn len_max(symbol_len: usize) -> usize {
        RIDER_PREFIX_MAX + symbol_len
    }

    /// Appends the fields in front of the symbol.
    pub fn encode_prefix(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.distance));
        out.push(self.code);
        put_varint(out, u64::from(self.n));
        put_varint(out, u64::from(self.row));
        put_varint(out, u64::from(self.symbol_len));
    }

    fn len(&self) -> usize {
        let fields = [
            u64::from(self.distance),
            u64::from(self.n),
            u64::from(self.row),
            u64::from(self.symbol_len),
        ];
        1 + fields.map(varint_len).iter().sum::<usize>() + usize::from(self.symbol_len)
    }

    /// Reads the fields in front of the symbol.
    fn decode(body: &mut Reader<'_>) -> Result<Self, WireError> {
        let distance = body.varint()?;
        let code = body.u8()?;
        let (n, row, symbol_len) = (body.varint()?, body.varint()?, body.varint()?);
        let rider = Self {
            distance: field(distance, 1, u64::from(u32::MAX), "distance")? as u32,
            code: field(u64::from(code), 0, 0x3f, "code")? as u8,
            n: field(n, 1, 1024, "n")? as u16,
            row: field(row, 0, 0x00ff_ffff, "row")? as u32,
            symbol_len: field(symbol_len, 1, u64::from(u16::MAX), "symbol size")? as u16,
        };
        Ok(rider)
    }
}

fn field(value: u64, least: u64, most: u64, what: &'static str) -> Result<u64, WireError> {
    let is_valid = (least..=most).contains(&value);
    is_valid.then_some(value).ok_or(WireError::Invalid(what))
}

/// The layout of a BUNDLE's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bundle;

impl Bundle {
    /// Bytes of a body of at most `room` that are left beside a main symbol of this size.
    pub fn space(room: usize, main_len: usize) -> usize {
        room.saturating_sub(MAIN_PREFIX_MAX + main_len)
    }

    /// Bytes of the body.
    pub fn body_len<'a>(main_len: u16, riders: impl IntoIterator<Item = &'a Rider>) -> usize {
        let riders: usize = riders.into_iter().map(Rider::len).sum();
        varint_len(u64::from(main_len)) + usize::from(main_len) + riders
    }

    /// The symbols of a body, the packet's own first: for each the header that it would have had alone, and where its bytes
    /// are.
    ///
    /// # Errors
    /// If it is not one or more symbols beside a main one, as many as there may be, and nothing else.
    pub fn split(header: &Header, body: &[u8]) -> Result<Vec<(Header, Range<usize>)>, WireError> {
        let mut reader = Reader::new(body);
        let place = |reader: &mut Reader<'_>, len: usize| {
            let from = body.len() - reader.len();
            reader.take(len).map(|symbol| from..from + symbol.len())
        };
        let main = field(reader.varint()?, 1, u64::from(u16::MAX), "symbol size")?;
        let alone = Header {
            kind: PacketKind::Symbol,
            ..*header
        };
        let mut symbols = vec![(alone, place(&mut reader, main as usize)?)];
        while !reader.is_empty() {
            if symbols.len() > usize::from(BUNDLE_MAX) {
                return Err(WireError::Invalid("number of symbols"));
            }
            let rider = Rider::decode(&mut reader)?;
            let header = Header {
                block: header.block.wrapping_sub(rider.distance),
                code: rider.code,
                n: rider.n,
                row: rider.row,
                ..alone
            };
            let at = place(&mut reader, usize::from(rider.symbol_len))?;
            symbols.push((header, at));
        }
        match symbols.len() {
            1 => Err(WireError::Truncated),
            _ => Ok(symbols),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::pn;
    use crate::wire::{ConnectionId, HEADER_LEN};
    use proptest::prelude::*;

    fn header(block: u32) -> Header {
        let cid = ConnectionId::new([1; 8]).expect("not zero");
        Header {
            kind: PacketKind::Bundle,
            block,
            row: 0,
            n: 1,
            ..Header::control(cid, pn(7), false)
        }
    }

    fn encode(main: &[u8], riders: &[(Rider, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        put_varint(&mut body, main.len() as u64);
        body.extend_from_slice(main);
        for (rider, symbol) in riders {
            rider.encode_prefix(&mut body);
            body.extend_from_slice(symbol);
        }
        body
    }

    fn rider(distance: u32, symbol_len: u16) -> Rider {
        Rider {
            distance,
            code: 1,
            n: 1,
            row: 0,
            symbol_len,
        }
    }

    #[test]
    fn vector() {
        let body = encode(b"newest", &[(rider(1, 5), b"older")]);
        let hex = "066e65776573740101010005 6f6c646572".replace(' ', "");
        let bytes: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(bytes, hex);
        let symbols = Bundle::split(&header(9), &body).expect("a bundle");
        let [(main, at), (older, place)] = &symbols[..] else {
            panic!("two symbols");
        };
        assert_eq!((main.block, &body[at.clone()]), (9, &b"newest"[..]));
        assert_eq!(main.kind, PacketKind::Symbol);
        assert_eq!((older.block, older.code, older.n), (8, 1, 1));
        assert_eq!(&body[place.clone()], b"older");
        assert_eq!(Bundle::body_len(6, &[rider(1, 5)]), body.len());
    }

    #[test]
    fn what_is_no_bundle_is_an_error() {
        let split = |body: &[u8]| Bundle::split(&header(9), body);
        let symbol: &[u8] = b"older";
        assert!(split(&[]).is_err());
        assert!(split(&encode(b"alone", &[])).is_err(), "nothing rides");
        assert!(split(&encode(b"", &[(rider(1, 5), symbol)])).is_err());
        assert!(split(&encode(b"main", &[(rider(0, 5), symbol)])).is_err());
        assert!(split(&encode(b"main", &[(rider(1, 0), b"")])).is_err());
        assert!(split(&encode(b"main", &[(rider(1, 6), symbol)])).is_err());
        let many = |count| encode(b"main", &vec![(rider(1, 5), symbol); count]);
        assert!(split(&many(usize::from(BUNDLE_MAX))).is_ok());
        assert!(split(&many(usize::from(BUNDLE_MAX) + 1)).is_err());
        let of = |rider| encode(b"main", &[(rider, symbol)]);
        let good = rider(1, 5);
        assert!(split(&of(Rider { n: 1024, ..good })).is_ok());
        assert!(split(&of(Rider { n: 1025, ..good })).is_err());
        assert!(split(&of(Rider { code: 64, ..good })).is_err());
        let row = 1 << 24;
        assert!(split(&of(Rider { row, ..good })).is_err());
    }

    proptest! {
        #[test]
        fn splitting_is_total(body in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(symbols) = Bundle::split(&header(9), &body) {
                prop_assert!(symbols.len() > 1 && symbols.len() <= 1 + usize::from(BUNDLE_MAX));
                for (header, at) in symbols {
                    prop_assert!(!at.is_empty() && at.end <= body.len());
                    prop_assert_eq!(header.encode().len(), HEADER_LEN);
                }
            }
        }

        #[test]
        fn what_is_written_is_read(
            main in prop::collection::vec(any::<u8>(), 1..300),
            riders in prop::collection::vec(
                (1u32..1 << 14, 0u8..64, 1u16..=1024, 0u32..1 << 24, 1u16..=300), 1..8),
        ) {
            let bytes = [7; 300];
            let riders: Vec<_> = riders
                .into_iter()
                .map(|(distance, code, n, row, symbol_len)| {
                    let rider = Rider { distance, code, n, row, symbol_len };
                    (rider, &bytes[..usize::from(symbol_len)])
                })
                .collect();
            let body = encode(&main, &riders);
            let all = riders.iter().map(|(rider, _)| rider);
            prop_assert_eq!(Bundle::body_len(main.len() as u16, all), body.len());
            let symbols = Bundle::split(&header(1 << 20), &body).expect("a bundle");
            prop_assert_eq!(symbols.len(), 1 + riders.len());
            for ((header, at), (rider, _)) in symbols[1..].iter().zip(&riders) {
                prop_assert_eq!(header.block, (1 << 20) - rider.distance);
                prop_assert_eq!((header.code, header.n, header.row), (rider.code, rider.n, rider.row));
                prop_assert_eq!(at.len(), usize::from(rider.symbol_len));
                let len = Rider::len_max(at.len());
                prop_assert!(rider.len() <= len);
            }
        }
    }
}
