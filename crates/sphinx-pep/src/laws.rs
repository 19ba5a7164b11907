//! The two laws, checked from outside.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use bytes::Bytes;

use crate::{
    Cause, FlowKey, Output, Side,
    segment::{Segment, with_dscp},
    sequence::nearest,
};

/// Watches what goes into an agent and what comes out, and finds what must not be. It remembers every
/// packet (16 bytes each): for tests, and for captures of finite length.
#[derive(Debug, Default)]
pub struct Laws {
    /// Hashes of what came from each side, of the same with DSCP 0, and of its versions without SACK option.
    seen: [HashSet<u64>; 2],
    unmarked: [HashSet<u64>; 2],
    bare: [HashSet<u64>; 2],
    /// The SACK blocks of each host.
    blocks: HashSet<(Side, FlowKey, (u32, u32))>,
    /// The highest acknowledgement of each host.
    acknowledged: HashMap<(Side, FlowKey), u64>,
}

impl Laws {
    /// To be called with every packet before the agent gets it.
    pub fn input(&mut self, from: Side, packet: &Bytes) {
        self.seen[from as usize].insert(hash(packet));
        self.unmarked[from as usize].insert(hash(&with_dscp(packet, 0)));
        let Ok(segment) = Segment::parse(packet.clone()) else {
            return;
        };
        if segment.ack {
            if let Some(bare) = segment.without_sack() {
                self.bare[from as usize].insert(hash(&bare));
            }
            let key = FlowKey::of(from, &segment);
            let blocks = segment.sack().iter().map(|block| (from, key, *block));
            self.blocks.extend(blocks);
            let highest = self
                .acknowledged
                .entry((from, key))
                .or_insert((1 << 32) + u64::from(segment.acknowledgment));
            if segment.syn || segment.rst {
                *highest = (1 << 32) + u64::from(segment.acknowledgment);
            }
            *highest = nearest(*highest, segment.acknowledgment).max(*highest);
        }
    }

    /// Checks a packet that comes out: it came in from the other side, byte for byte (but for a repair's DSCP), or it is an
    /// acknowledgement that lacks SACK blocks; and it acknowledges nothing new.
    ///
    /// # Errors
    ///
    /// Says which law it breaks.
    pub fn output(&self, output: &Output) -> Result<(), &'static str> {
        let from = output.to.other();
        let is_known = match output.cause {
            Cause::Concealed => self.lacks_blocks(from, &output.packet),
            // It may have another DSCP.
            Cause::Repair => {
                self.unmarked[from as usize].contains(&hash(&with_dscp(&output.packet, 0)))
            }
            _ => self.seen[from as usize].contains(&hash(&output.packet)),
        };
        if !is_known {
            return Err("a packet came out that had not come in");
        }
        // What passes, and repairs, are what the host itself has said.
        if matches!(output.cause, Cause::Concealed | Cause::Released)
            && let Ok(segment) = Segment::parse(output.packet.clone())
            && segment.ack
        {
            let key = (from, FlowKey::of(from, &segment));
            let highest = self.acknowledged.get(&key).copied().unwrap_or(0);
            if nearest(highest, segment.acknowledgment) > highest {
                return Err("the receiver has not acknowledged this");
            }
        }
        Ok(())
    }

    /// Whether an acknowledgement is one that came in, but for SACK blocks that are left out.
    fn lacks_blocks(&self, from: Side, packet: &Bytes) -> bool {
        let Ok(segment) = Segment::parse(packet.clone()) else {
            return false;
        };
        let key = FlowKey::of(from, &segment);
        let known = |block| self.blocks.contains(&(from, key, block));
        let bare = segment.without_sack();
        bare.is_some_and(|bare| self.bare[from as usize].contains(&hash(&bare)))
            && segment.sack().iter().all(|block| known(*block))
    }
}

fn hash(packet: &Bytes) -> u64 {
    let mut hasher = DefaultHasher::new();
    packet.hash(&mut hasher);
    hasher.finish()
}
