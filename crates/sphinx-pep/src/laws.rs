//! The two laws, checked from outside.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use bytes::Bytes;

use crate::{
    Cause, FlowKey, Output, Side,
    segment::{Segment, Slowing, with_dscp},
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
    /// Hashes of its acknowledgements as they are at their slowest: without SACK option, with ECE, without window; and their windows.
    slowed: HashMap<(Side, u64), u16>,
    /// The hashes of `slowed` with DSCP 0.
    slowed_unmarked: HashMap<(Side, u64), u16>,
    /// Hashes of what they are as acknowledgements of nothing, and the timestamps that each host has echoed.
    forms: HashSet<(Side, u64)>,
    echoes: HashSet<(Side, FlowKey, u32)>,
    /// The payloads of each host by their first sequence number, and hashes of the headers of its segments.
    streams: HashMap<(Side, FlowKey), BTreeMap<u32, Bytes>>,
    headers: HashSet<(Side, u64)>,
    /// What each host has acknowledged in its connections, the present one last: what was held of one before may come out behind its end.
    acknowledged: HashMap<(Side, FlowKey), Vec<Acknowledged>>,
}

/// What a host has acknowledged in one connection.
#[derive(Debug)]
struct Acknowledged {
    /// What it began, or the one before ended with, if that was seen: one that comes again begins nothing.
    opener: Option<Opener>,
    highest: u64,
}

/// A segment with SYN or RST, which may begin or end a connection.
#[derive(Debug, PartialEq, Eq)]
struct Opener {
    syn: bool,
    sequence: u32,
}

impl Laws {
    /// To be called with every packet before the agent gets it.
    pub fn input(&mut self, from: Side, packet: &Bytes) {
        self.seen[from as usize].insert(hash(packet));
        self.unmarked[from as usize].insert(hash(&with_dscp(packet, 0)));
        let Ok(segment) = Segment::parse(packet.clone()) else {
            return;
        };
        let key = FlowKey::of(from, &segment);
        if segment.payload > 0 {
            let stream = self.streams.entry((from, key)).or_default();
            let known = stream.entry(segment.sequence).or_default();
            if known.len() < segment.payload {
                *known = segment.data();
            }
            self.headers.insert((from, header(&segment)));
        }
        if segment.ack {
            if let Some(bare) = segment.without_sack() {
                self.bare[from as usize].insert(hash(&bare));
            }
            if let Some(form) = form(&segment) {
                self.forms.insert((from, form));
            }
            if let Some((_, echo)) = segment.options.timestamps {
                self.echoes.insert((from, key, echo));
            }
            if let Some(slowest) = slowest(&segment) {
                for (known, packet) in [
                    (&mut self.slowed, &slowest),
                    (&mut self.slowed_unmarked, &with_dscp(&slowest, 0)),
                ] {
                    let window = known.entry((from, hash(packet))).or_default();
                    *window = segment.window.max(*window);
                }
            }
            let blocks = segment.sack().iter().map(|block| (from, key, *block));
            self.blocks.extend(blocks);
            let known = self.acknowledged.entry((from, key)).or_default();
            note(known, &segment);
        }
    }

    /// Checks a packet that comes out: it came in from the other side, byte for byte (but for a repair's DSCP, and its window, if it had gone with a
    /// smaller one); or it is an acknowledgement that lacks SACK blocks, or has ECE or a smaller window besides; or one of less, without SACK and with a timestamp that was
    /// echoed before; or a segment that has what comes before it in the
    /// stream in front of its payload. And it acknowledges nothing new.
    ///
    /// # Errors
    ///
    /// Says which law it breaks.
    pub fn output(&self, output: &Output) -> Result<(), &'static str> {
        let from = output.to.other();
        let is_known = match output.cause {
            Cause::Concealed => self.lacks_blocks(from, &output.packet),
            Cause::Slowed => self.is_slower(from, &output.packet, &self.slowed),
            Cause::Reconstructed => self.is_copy(from, &output.packet),
            Cause::Bundled => self.is_bundle(from, &output.packet),
            // A repair may have another DSCP than the packet it repeats.
            Cause::Repair => {
                let packet = with_dscp(&output.packet, 0);
                let is_known = self.unmarked[from as usize].contains(&hash(&packet));
                is_known || self.is_slower(from, &packet, &self.slowed_unmarked)
            }
            _ => self.seen[from as usize].contains(&hash(&output.packet)),
        };
        if !is_known {
            return Err("a packet came out that had not come in");
        }
        // What passes, and repairs, are what the host itself has said.
        if matches!(
            output.cause,
            Cause::Concealed | Cause::Slowed | Cause::Released | Cause::Reconstructed
        ) && let Ok(segment) = Segment::parse(output.packet.clone())
            && segment.ack
        {
            let key = (from, FlowKey::of(from, &segment));
            let is_within =
                |it: &Acknowledged| nearest(it.highest, segment.acknowledgment) <= it.highest;
            let known = self.acknowledged.get(&key);
            if !known.is_some_and(|known| known.iter().any(is_within)) {
                return Err("the receiver has not acknowledged this");
            }
        }
        Ok(())
    }

    /// Whether an acknowledgement is one that came in, but for what slows the sender down and for SACK blocks that are left out.
    fn is_slower(&self, from: Side, packet: &Bytes, slowed: &HashMap<(Side, u64), u16>) -> bool {
        let Ok(segment) = Segment::parse(packet.clone()) else {
            return false;
        };
        let key = FlowKey::of(from, &segment);
        let known = |block| self.blocks.contains(&(from, key, block));
        let window = slowest(&segment).and_then(|it| slowed.get(&(from, hash(&it))));
        window.is_some_and(|window| segment.window <= *window)
            && segment.sack().iter().all(|block| known(*block))
    }

    /// Whether an acknowledgement is one that came in, but for what it acknowledges, allows and echoes.
    fn is_copy(&self, from: Side, packet: &Bytes) -> bool {
        let Ok(segment) = Segment::parse(packet.clone()) else {
            return false;
        };
        let key = FlowKey::of(from, &segment);
        let is_echo = |echo| self.echoes.contains(&(from, key, echo));
        segment.is_pure_ack()
            && segment.sack().is_empty()
            && form(&segment).is_some_and(|form| self.forms.contains(&(from, form)))
            && segment.options.timestamps.is_none_or(|it| is_echo(it.1))
    }

    /// Whether a segment is one that came in, with bytes of the same stream in front that came in at their places.
    fn is_bundle(&self, from: Side, packet: &Bytes) -> bool {
        let Ok(segment) = Segment::parse(packet.clone()) else {
            return false;
        };
        let stream = self.streams.get(&(from, FlowKey::of(from, &segment)));
        let mut data = segment.data();
        let mut at = segment.sequence;
        while !data.is_empty() {
            // Segments are as they came, or what is left of one of which a part was acknowledged; some have come with others' bytes.
            let rest = |(start, bytes): (&u32, &Bytes)| {
                let skipped = at.wrapping_sub(*start) as usize;
                (skipped < bytes.len()).then(|| bytes.slice(skipped..))
            };
            let known = stream.and_then(|stream| {
                let before = stream.range(..=at).rev();
                before.chain(stream.range(at..).rev()).find_map(rest)
            });
            let Some(known) = known else { return false };
            let length = known.len().min(data.len());
            if length == 0 || known[..length] != data[..length] {
                return false;
            }
            data = data.slice(length..);
            at = at.wrapping_add(length as u32);
        }
        self.headers.contains(&(from, header(&segment)))
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

/// Takes note of what a segment acknowledges: in the connection that it begins, or else in the present one.
fn note(known: &mut Vec<Acknowledged>, segment: &Segment) {
    let opener = (segment.syn || segment.rst).then_some(Opener {
        syn: segment.syn,
        sequence: segment.sequence,
    });
    let again = match &opener {
        Some(_) => known.iter().position(|it| it.opener == opener),
        None => known.len().checked_sub(1),
    };
    let mut connection = match again {
        Some(at) => known.remove(at),
        None => Acknowledged {
            opener,
            highest: (1 << 32) + u64::from(segment.acknowledgment),
        },
    };
    let highest = connection.highest;
    connection.highest = nearest(highest, segment.acknowledgment).max(highest);
    known.push(connection);
}

/// The acknowledgement as it slows its sender most: window 0 and ECE.
fn slowest(segment: &Segment) -> Option<Bytes> {
    let slowing = Slowing {
        ece: true,
        window: Some(0),
    };
    segment.rewritten(|_| false, &slowing)
}

/// An acknowledgement at its slowest, and of nothing.
fn form(segment: &Segment) -> Option<u64> {
    let slowest = Segment::parse(slowest(segment)?).ok()?;
    Some(hash(&slowest.acknowledging(0, 0, 0)?))
}

/// All of a segment but its payload, with the position of its end.
fn header(segment: &Segment) -> u64 {
    let mut hasher = DefaultHasher::new();
    let end = segment.sequence.wrapping_add(segment.payload as u32);
    segment.headers_but_lengths().hash(&mut hasher);
    end.hash(&mut hasher);
    hasher.finish()
}

fn hash(packet: &Bytes) -> u64 {
    let mut hasher = DefaultHasher::new();
    packet.hash(&mut hasher);
    hasher.finish()
}
