//! A [`Handover`] as bytes, version 1:
//!
//! ```text
//! flags 1 | 4 or 6 | fixed address, port | mobile address, port | number of the first SYN 4, of its answer 4
//!   | acknowledged 4 | highest 4 | window 2 | ECN 1 | path's round trip 4
//!   | [echoed timestamp 4] | [told up to 4] | [hop's round trip 4, its variation 4]
//!   | n | n × (from 4, to 4) | [length 2, packet]
//! ```
//!
//! All numbers are in network order, times in microseconds. The flags say what in brackets is there. There is one way to write
//! each message, and nothing follows.

use bytes::Bytes;

use super::{Handover, Move};
use crate::{
    Side,
    flow::Opened,
    sealed::{Reader, write_flow},
    snoop::{RANGES_MAX, SPAN_MAX, State},
};

mod flag {
    pub(super) const LEAVE: u8 = 1;
    pub(super) const MOBILE_OPENED: u8 = 2;
    pub(super) const SACK: u8 = 4;
    pub(super) const ECHOED: u8 = 8;
    pub(super) const YIELDED: u8 = 16;
    pub(super) const HOP_RTT: u8 = 32;
    pub(super) const PACKET: u8 = 64;
    pub(super) const SENDER_REPAIRED: u8 = 128;
}

const ECN_MAX: u8 = 7;

impl Handover {
    /// Appends the message. The caller has made it of a flow, so that it is a possible one; ranges beyond the 32nd are left
    /// out.
    pub fn write(&self, out: &mut Vec<u8>) {
        let state = &self.state;
        let sender_repaired = self.packet.as_ref().is_some_and(|it| it.1);
        let flags = [
            (flag::LEAVE, self.kind == Move::Leave),
            (flag::MOBILE_OPENED, self.opened.by == Side::Mobile),
            (flag::SACK, state.sack),
            (flag::ECHOED, state.echoed.is_some()),
            (flag::YIELDED, state.yielded.is_some()),
            (flag::HOP_RTT, state.hop_rtt_us.is_some()),
            (flag::PACKET, self.packet.is_some()),
            (flag::SENDER_REPAIRED, sender_repaired),
        ];
        let set = flags.iter().filter(|(_, is_set)| *is_set);
        out.push(set.fold(0, |flags, (flag, _)| flags | flag));
        write_flow(out, &self.flow);
        for number in [
            self.opened.sequence,
            self.opened.answer,
            state.acknowledged,
            state.highest,
        ] {
            out.extend(number.to_be_bytes());
        }
        out.extend(state.window.to_be_bytes());
        out.push(state.ecn);
        out.extend(state.path_rtt_us.to_be_bytes());
        let hop = state
            .hop_rtt_us
            .map(|(smoothed, variation)| [smoothed, variation]);
        let options = state.echoed.into_iter().chain(state.yielded);
        for number in options.chain(hop.into_iter().flatten()) {
            out.extend(number.to_be_bytes());
        }
        let ranges = &state.reported[..state.reported.len().min(RANGES_MAX)];
        out.push(ranges.len() as u8);
        for (left, right) in ranges {
            out.extend(left.to_be_bytes());
            out.extend(right.to_be_bytes());
        }
        if let Some((packet, _)) = &self.packet {
            // An IP packet that counts as one segment is no longer than 9216 bytes.
            out.extend((packet.len() as u16).to_be_bytes());
            out.extend(packet);
        }
    }

    /// The message that these bytes are; `None` if they are none. The packet in it may be anything.
    pub fn read(bytes: &[u8]) -> Option<Handover> {
        let mut reader = Reader(bytes);
        let [flags] = reader.take()?;
        let has = |flag: u8| flags & flag != 0;
        let flow = reader.flow()?;
        let mut number = || reader.take().map(u32::from_be_bytes);
        let (sequence, answer) = (number()?, number()?);
        let (acknowledged, highest) = (number()?, number()?);
        if highest.wrapping_sub(acknowledged) > SPAN_MAX {
            return None;
        }
        let window = u16::from_be_bytes(reader.take()?);
        let [ecn] = reader.take()?;
        if ecn > ECN_MAX {
            return None;
        }
        let mut number = || reader.take().map(u32::from_be_bytes);
        let path_rtt_us = number()?;
        let mut option = |flag| match has(flag) {
            true => number().map(Some),
            false => Some(None),
        };
        let (echoed, yielded) = (option(flag::ECHOED)?, option(flag::YIELDED)?);
        let hop = (option(flag::HOP_RTT)?, option(flag::HOP_RTT)?);
        let [count] = reader.take()?;
        if usize::from(count) > RANGES_MAX {
            return None;
        }
        let mut reported = Vec::new();
        for _ in 0..count {
            let mut number = || reader.take().map(u32::from_be_bytes);
            reported.push((number()?, number()?));
        }
        let packet = match has(flag::PACKET) {
            true => {
                let length = usize::from(u16::from_be_bytes(reader.take()?));
                let packet = reader.0.split_at_checked(length)?;
                reader.0 = packet.1;
                Some((Bytes::copy_from_slice(packet.0), has(flag::SENDER_REPAIRED)))
            }
            false if has(flag::SENDER_REPAIRED) => return None,
            false => None,
        };
        let by = match has(flag::MOBILE_OPENED) {
            true => Side::Mobile,
            false => Side::Fixed,
        };
        reader.0.is_empty().then(|| Handover {
            flow,
            kind: match has(flag::LEAVE) {
                true => Move::Leave,
                false => Move::Prefill,
            },
            opened: Opened {
                by,
                sequence,
                answer,
            },
            state: State {
                sack: has(flag::SACK),
                acknowledged,
                highest,
                window,
                ecn,
                echoed,
                yielded,
                path_rtt_us,
                hop_rtt_us: hop.0.zip(hop.1),
                reported,
            },
            packet,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::FlowKey;

    /// Messages with everything in them and with as little as there may be.
    pub(crate) fn messages() -> [Handover; 2] {
        let full = Handover {
            flow: FlowKey {
                fixed: ([0xfd00, 0, 0, 0, 0, 0, 0, 1], 443).into(),
                mobile: ([0xfd00, 0, 0, 0, 0, 0, 0, 2], 40_000).into(),
            },
            kind: Move::Leave,
            opened: Opened {
                by: Side::Mobile,
                sequence: 77,
                answer: u32::MAX,
            },
            state: State {
                sack: true,
                acknowledged: u32::MAX - 5,
                highest: 5000,
                window: 501,
                ecn: 5,
                echoed: Some(9),
                yielded: Some(1000),
                path_rtt_us: 100_000,
                hop_rtt_us: Some((4000, 700)),
                reported: vec![(100, 200), (300, 400)],
            },
            packet: Some((Bytes::from_static(&[0x45, 0, 1]), true)),
        };
        let least = Handover {
            flow: FlowKey {
                fixed: ([10, 0, 0, 1], 443).into(),
                mobile: ([10, 0, 0, 2], 40_000).into(),
            },
            kind: Move::Prefill,
            opened: Opened {
                by: Side::Fixed,
                ..full.opened
            },
            state: State::default(),
            packet: None,
        };
        [full, least]
    }

    fn written(message: &Handover) -> Vec<u8> {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        bytes
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        for message in messages() {
            let bytes = written(&message);
            assert_eq!(Handover::read(&bytes), Some(message));
            for length in 0..bytes.len() {
                assert_eq!(Handover::read(&bytes[..length]), None, "{length}");
            }
            assert_eq!(Handover::read(&[&bytes[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn what_no_flow_is_like_is_refused() {
        let [mut full, mut least] = messages();
        full.state.ecn = 8;
        least.state.highest = SPAN_MAX + 1;
        for message in [&full, &least] {
            assert_eq!(Handover::read(&written(message)), None);
        }
        least.state.highest = 0;
        let mut bytes = written(&least);
        // A packet that the sender has repaired, without the packet.
        bytes[0] |= flag::SENDER_REPAIRED;
        assert_eq!(Handover::read(&bytes), None);
        full.state.ecn = 0;
        full.state.reported = (0..100).map(|n| (2 * n, 2 * n + 1)).collect();
        let read = Handover::read(&written(&full)).expect("a message");
        assert_eq!(read.state.reported, full.state.reported[..RANGES_MAX]);
    }
}
