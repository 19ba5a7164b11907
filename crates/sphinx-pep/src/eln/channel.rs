//! Reports between agents that share a key: sealed with keyed BLAKE3, numbered, never accepted twice.
//!
//! ```text
//! "SPE" 1 | epoch 8 | counter 8 | 4 or 6 | fixed address, port | mobile address, port | n | n × (from 4, to 4) | tag 16
//! ```
//!
//! All numbers are in network order. The epoch is that of the sealing process: later ones have larger ones. The
//! tag is the first half of the keyed hash of everything before it.

use super::{LossReport, RANGES_MAX};
use crate::sealed::{Key, Reader, write_flow};

const MAGIC: [u8; 4] = *b"SPE\x01";

/// Seals reports.
#[derive(Debug)]
pub struct Sealer {
    key: Key,
    epoch: u64,
    counter: u64,
}

impl Sealer {
    /// Begins an epoch, which must be larger than all that were begun with this key before: the time of
    /// day will do.
    pub fn new(key: Key, epoch: u64) -> Sealer {
        Sealer {
            key,
            epoch,
            counter: 0,
        }
    }

    /// A datagram with a report. Ranges beyond the 32nd are left out.
    pub fn seal(&mut self, report: &LossReport) -> Vec<u8> {
        self.counter += 1;
        let ranges = &report.ranges[..report.ranges.len().min(RANGES_MAX)];
        let mut out = MAGIC.to_vec();
        out.extend(self.epoch.to_be_bytes());
        out.extend(self.counter.to_be_bytes());
        write_flow(&mut out, &report.flow);
        out.push(ranges.len() as u8);
        for (from, to) in ranges {
            out.extend(from.to_be_bytes());
            out.extend(to.to_be_bytes());
        }
        self.key.seal(out)
    }
}

/// Opens reports of one sealer, each once and in order.
#[derive(Debug)]
pub struct Opener {
    key: Key,
    /// Epoch and counter of the newest one.
    newest: (u64, u64),
}

impl Opener {
    /// Opens what was sealed with this key.
    pub fn new(key: Key) -> Opener {
        Opener {
            key,
            newest: (0, 0),
        }
    }

    /// The report in a datagram; `None` if it is forged, damaged, or not newer than the newest so far.
    pub fn open(&mut self, datagram: &[u8]) -> Option<LossReport> {
        let mut reader = Reader(self.key.open(datagram)?);
        if reader.take()? != MAGIC {
            return None;
        }
        let number = (
            u64::from_be_bytes(reader.take()?),
            u64::from_be_bytes(reader.take()?),
        );
        let flow = reader.flow()?;
        let [count] = reader.take()?;
        let (numbers, []) = reader.0.as_chunks::<4>() else {
            return None;
        };
        let numbers: Vec<u32> = numbers.iter().map(|it| u32::from_be_bytes(*it)).collect();
        if numbers.len() != 2 * usize::from(count) || usize::from(count) > RANGES_MAX {
            return None;
        }
        if number <= self.newest {
            return None;
        }
        self.newest = number;
        let ranges = numbers.as_chunks::<2>().0.iter();
        let ranges = ranges.map(|[from, to]| (*from, *to)).collect();
        Some(LossReport { flow, ranges })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FlowKey;

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
        let (mut sealer, mut opener) = (Sealer::new(key.clone(), 5), Opener::new(key.clone()));
        let [first, second, third] = [false, true, false].map(|v6| sealer.seal(&report(v6)));
        assert_eq!(opener.open(&first), Some(report(false)));
        assert_eq!(opener.open(&third), Some(report(false)));
        // Again, and an older one.
        assert_eq!((opener.open(&third), opener.open(&second)), (None, None));
        // A process that began later begins to count anew; one that began earlier is over.
        assert_eq!(
            opener.open(&Sealer::new(key.clone(), 6).seal(&report(true))),
            Some(report(true))
        );
        assert_eq!(opener.open(&sealer.seal(&report(false))), None);
        assert_eq!(opener.open(&Sealer::new(key, 4).seal(&report(false))), None);
    }

    #[test]
    fn what_is_not_sealed_with_the_key_is_nothing() {
        let key = Key::new([7; 32]);
        let sealed = Sealer::new(key.clone(), 1).seal(&report(true));
        for at in 0..sealed.len() {
            let mut forged = sealed.clone();
            forged[at] ^= 1;
            assert_eq!(Opener::new(key.clone()).open(&forged), None, "{at}");
            assert_eq!(Opener::new(key.clone()).open(&sealed[..at]), None);
        }
        assert_eq!(Opener::new(Key::new([8; 32])).open(&sealed), None);
        assert!(Opener::new(key).open(&sealed).is_some());
    }
}
