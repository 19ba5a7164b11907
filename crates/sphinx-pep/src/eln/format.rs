//! A [`LossReport`] as bytes, version 2:
//!
//! ```text
//! 4 or 6 | fixed address, port | mobile address, port | n | n × (from 4, to 4)
//! ```
//!
//! All numbers are in network order. There is one way to write each report, and nothing follows.

use super::{LossReport, RANGES_MAX};
use crate::{
    channel::Message,
    sealed::{Reader, write_flow},
};

impl Message for LossReport {
    const MAGIC: [u8; 4] = *b"SPE\x02";

    /// Writes the report; ranges beyond the 32nd are left out.
    fn write(&self, out: &mut Vec<u8>) {
        let ranges = &self.ranges[..self.ranges.len().min(RANGES_MAX)];
        write_flow(out, &self.flow);
        out.push(ranges.len() as u8);
        for (from, to) in ranges {
            out.extend(from.to_be_bytes());
            out.extend(to.to_be_bytes());
        }
    }

    fn read(bytes: &[u8]) -> Option<LossReport> {
        let mut reader = Reader(bytes);
        let flow = reader.flow()?;
        let [count] = reader.take()?;
        let (numbers, []) = reader.0.as_chunks::<4>() else {
            return None;
        };
        let numbers: Vec<u32> = numbers.iter().map(|it| u32::from_be_bytes(*it)).collect();
        if numbers.len() != 2 * usize::from(count) || usize::from(count) > RANGES_MAX {
            return None;
        }
        let ranges = numbers.as_chunks::<2>().0.iter();
        let ranges = ranges.map(|[from, to]| (*from, *to)).collect();
        Some(LossReport { flow, ranges })
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        FlowKey, Key,
        eln::{LossReport, Opener, Sealer},
    };

    const NOW: u64 = 1_800_000_000_000_000_000;

    fn report(v6: bool) -> LossReport {
        let at = |host: u8, port: u16| match v6 {
            true => ([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host)], port).into(),
            false => ([10, 0, 0, host], port).into(),
        };
        LossReport {
            flow: FlowKey {
                fixed: at(1, 443),
                mobile: at(2, 40_000),
            },
            ranges: vec![(u32::MAX - 5, 10), (1000, 2400)],
        }
    }

    #[test]
    fn reports_are_opened_once_and_in_order() {
        let key = Key::new([7; 32]);
        let mut opener = Opener::new(key.clone(), NOW);
        let mut sealer = Sealer::new(key.clone(), 5);
        let [first, second, third] = [false, true, false].map(|v6| sealer.seal(NOW, &report(v6)));
        assert_eq!(opener.open(NOW, &first), Some(report(false)));
        assert_eq!(opener.open(NOW, &third), Some(report(false)));
        // A report that comes again, and one older than the last, are refused.
        assert_eq!(
            (opener.open(NOW, &third), opener.open(NOW, &second)),
            (None, None)
        );
        // Base stations between which a mobile host goes to and fro, whichever began first.
        let mut other = Sealer::new(key, 6);
        for n in 1..6 {
            for (sealer, v6) in [(&mut sealer, false), (&mut other, true)] {
                let sealed = sealer.seal(NOW + n, &report(v6));
                assert_eq!(opener.open(NOW + n, &sealed), Some(report(v6)));
                assert_eq!(opener.open(NOW + n, &sealed), None);
            }
        }
        // A report that was held back for six seconds is refused.
        let late = sealer.seal(NOW + 10, &report(false));
        assert_eq!(opener.open(NOW + 6_000_000_010, &late), None);
    }

    #[test]
    fn what_is_not_sealed_with_the_key_is_nothing() {
        let key = Key::new([7; 32]);
        let sealed = Sealer::new(key.clone(), 1).seal(NOW, &report(true));
        let opener = |key: &Key| Opener::new(key.clone(), NOW);
        for at in 0..sealed.len() {
            let mut forged = sealed.clone();
            forged[at] ^= 1;
            assert_eq!(opener(&key).open(NOW, &forged), None, "{at}");
            assert_eq!(opener(&key).open(NOW, &sealed[..at]), None);
        }
        assert_eq!(opener(&Key::new([8; 32])).open(NOW, &sealed), None);
        // A datagram with a byte more than a report has is refused.
        let longer = [&sealed[..sealed.len() - 16], &[0]].concat();
        assert_eq!(opener(&key).open(NOW, &key.seal(longer)), None);
        assert!(opener(&key).open(NOW, &sealed).is_some());
    }
}
