//! Datagrams in a block (`docs/protocol.md` §5.3).

use std::ops::Range;

use super::{Reader, WireError, put_varint, varint_len};

/// Type of padding, which fills the rest of the block.
const PADDING: u8 = 0;
const PLAIN: u8 = 3;
const ORDERED: u8 = 4;
const LIVE: u8 = 5;
/// Longest datagram, bytes: the largest UDP payload over IPv4.
pub const MAX_DATAGRAM: usize = 65_507;
/// Most datagrams in one block.
pub const DATAGRAMS_MAX: usize = 16;
/// Bytes of a length, of which two suffice up to this value.
const LENGTH_LEN: usize = 4;
const SHORT_LEN: usize = 2;
const SHORT_MAX: usize = (1 << 14) - 1;

/// Flows of live messages, or of datagrams in order, that an end may use at a time.
pub const FLOWS_MAX: usize = 256;

/// Which flows a number names: each kind has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FlowKind {
    /// Datagrams that are given to the application in their order.
    Ordered,
    /// Live messages.
    Live,
}

/// What puts a datagram into its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Datagrams of the flow that were sent before this one.
    pub number: u64,
    /// Its sender's clock when it was handed over: the low 32 bits of microseconds of any origin.
    pub time: u32,
    /// How long it is of use from then on, microseconds.
    pub life: u64,
}

/// How a datagram is given to the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// As soon as it arrives.
    Plain,
    /// In the order of its flow, as long as waiting for another one is of use.
    Ordered(Stamp),
    /// As a live message.
    Live(Stamp),
}

/// What comes before the data of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    /// Its flow, among those of the same kind.
    pub flow: u64,
    /// How it is given to the application.
    pub delivery: Delivery,
    /// Bytes of data, at most [`MAX_DATAGRAM`].
    pub len: usize,
}

impl Delivery {
    fn parts(self) -> (u8, Option<Stamp>) {
        match self {
            Delivery::Plain => (PLAIN, None),
            Delivery::Ordered(stamp) => (ORDERED, Some(stamp)),
            Delivery::Live(stamp) => (LIVE, Some(stamp)),
        }
    }
}

impl Datagram {
    /// Bytes before the data.
    pub fn header_len(&self) -> usize {
        let stamp = self.delivery.parts().1.map_or(0, |stamp| {
            varint_len(stamp.number) + 4 + varint_len(stamp.life)
        });
        let len = match self.len {
            0..=SHORT_MAX => SHORT_LEN,
            _ => LENGTH_LEN,
        };
        1 + varint_len(self.flow) + stamp + len
    }

    /// Appends what comes before the data.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (kind, stamp) = self.delivery.parts();
        out.push(kind);
        put_varint(out, self.flow);
        if let Some(stamp) = stamp {
            put_varint(out, stamp.number);
            out.extend_from_slice(&stamp.time.to_be_bytes());
            put_varint(out, stamp.life);
        }
        match self.len {
            0..=SHORT_MAX => out.extend_from_slice(&(0x4000 | self.len as u16).to_be_bytes()),
            _ => out.extend_from_slice(&(0x8000_0000 | self.len as u32).to_be_bytes()),
        }
    }
}

/// The datagrams of a whole block, each with the place of its data there; ends after the first error.
#[derive(Debug, Clone)]
pub struct DatagramIter<'a> {
    block: &'a [u8],
    reader: Reader<'a>,
    failed: bool,
}

impl<'a> DatagramIter<'a> {
    /// Over all bytes of a block, padding included; `None` if it holds something else.
    pub fn new(block: &'a [u8]) -> Option<Self> {
        let is_datagrams = matches!(block.first(), Some(&(PLAIN | ORDERED | LIVE)));
        is_datagrams.then(|| Self {
            block,
            reader: Reader::new(block),
            failed: false,
        })
    }

    fn datagram(&mut self) -> Result<Option<(Datagram, Range<usize>)>, WireError> {
        let r = &mut self.reader;
        let kind = match r.u8()? {
            PADDING => return Ok(None),
            kind @ (PLAIN | ORDERED | LIVE) => kind,
            _ => return Err(WireError::Invalid("type of datagram")),
        };
        let flow = r.varint()?;
        let mut stamp = || -> Result<Stamp, WireError> {
            Ok(Stamp {
                number: r.varint()?,
                time: u32::from_be_bytes(r.array()?),
                life: r.varint()?,
            })
        };
        let delivery = match kind {
            PLAIN => Delivery::Plain,
            ORDERED => Delivery::Ordered(stamp()?),
            _ => Delivery::Live(stamp()?),
        };
        let len = usize::try_from(r.varint()?).map_err(|_| WireError::Truncated)?;
        if len > MAX_DATAGRAM {
            return Err(WireError::Invalid("length of a datagram"));
        }
        r.take(len)?;
        let end = self.block.len() - r.len();
        let datagram = Datagram {
            flow,
            delivery,
            len,
        };
        Ok(Some((datagram, end - len..end)))
    }
}

impl Iterator for DatagramIter<'_> {
    type Item = Result<(Datagram, Range<usize>), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.is_empty() {
            return None;
        }
        let datagram = self.datagram();
        self.failed = !matches!(datagram, Ok(Some(_)));
        datagram.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::VARINT_MAX;
    use proptest::prelude::*;

    fn block(datagrams: &[Datagram]) -> Vec<u8> {
        let mut out = Vec::new();
        for datagram in datagrams {
            let before = out.len();
            datagram.encode(&mut out);
            assert_eq!(out.len() - before, datagram.header_len());
            out.resize(out.len() + datagram.len, 7);
        }
        out
    }

    fn stamp() -> impl Strategy<Value = Stamp> {
        (0..=VARINT_MAX, any::<u32>(), 0..=VARINT_MAX).prop_map(|(number, time, life)| Stamp {
            number,
            time,
            life,
        })
    }

    fn datagram() -> impl Strategy<Value = Datagram> {
        let delivery = prop_oneof![
            Just(Delivery::Plain),
            stamp().prop_map(Delivery::Ordered),
            stamp().prop_map(Delivery::Live),
        ];
        let len = prop_oneof![0..200_usize, 16_000..17_000_usize];
        (0..=VARINT_MAX, delivery, len).prop_map(|(flow, delivery, len)| Datagram {
            flow,
            delivery,
            len,
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(datagrams in prop::collection::vec(datagram(), 1..4), padding in 0..9_usize) {
            let mut bytes = block(&datagrams);
            bytes.resize(bytes.len() + padding, 0);
            let read: Result<Vec<_>, _> = DatagramIter::new(&bytes).expect("datagrams").collect();
            let read = read.expect("well formed");
            prop_assert!(read.iter().all(|(_, data)| bytes[data.clone()].iter().all(|byte| *byte == 7)));
            prop_assert_eq!(read.into_iter().map(|(datagram, _)| datagram).collect::<Vec<_>>(), datagrams);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            for (datagram, data) in DatagramIter::new(&bytes).into_iter().flatten().flatten() {
                prop_assert_eq!(bytes[data].len(), datagram.len);
            }
        }
    }

    /// The vector of the specification.
    #[test]
    fn a_block_of_three_datagrams() {
        let stamp = Stamp {
            number: 300,
            time: 0x0102_0304,
            life: 100_000,
        };
        let datagram = |flow, delivery, len| Datagram {
            flow,
            delivery,
            len,
        };
        let all = [
            datagram(0, Delivery::Plain, 2),
            datagram(1, Delivery::Ordered(stamp), 0),
            datagram(70, Delivery::Live(stamp), 1),
        ];
        let mut bytes = block(&all);
        bytes.extend([0, 0]);
        let expected =
            "030040020707 0401412c01020304800186a04000 054046412c01020304800186a0400107 0000";
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected.replace(' ', ""));
    }

    #[test]
    fn other_blocks_and_lengths_are_told_apart() {
        assert!(DatagramIter::new(&[]).is_none() && DatagramIter::new(&[1, 2]).is_none());
        let too_long = [&[3, 0][..], &0x8001_0000_u32.to_be_bytes()].concat();
        let too_long: Result<Vec<_>, _> = DatagramIter::new(&too_long).expect("one").collect();
        assert_eq!(
            too_long.err(),
            Some(WireError::Invalid("length of a datagram"))
        );
        let mixed: Result<Vec<_>, _> = DatagramIter::new(&[3, 0, 0, 1]).expect("one").collect();
        assert_eq!(mixed.err(), Some(WireError::Invalid("type of datagram")));
    }
}
