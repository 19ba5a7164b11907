//! What an acknowledgement says, and whether another one says all of it (§1).

use super::{Dropped, Kept};
use crate::{segment::Segment, sequence::nearest};

/// Segments that a reader of AccECN's counter may be told of at once: of more, it has to take the counter for one that has gone
/// round (RFC 9768, 3.2.2.5.2).
const ACCECN_SEGMENTS: u64 = 6;

/// A segment with ACK, and no SYN or RST.
#[derive(Clone, Debug)]
pub(crate) struct Ack {
    position: u64,
    /// Position of the right edge of the host's window.
    edge: u64,
    /// The bits AE, CWR and ECE.
    ecn: u8,
    timestamps: Option<(u32, u32)>,
    sack: Vec<(u64, u64)>,
    /// It has no data, and no flags but ACK and those of ECN.
    is_pure: bool,
    /// It is behind where the host's own stream is: its reader may discard it with all that it says.
    is_behind: bool,
    /// Why it is never dropped in favour of a later one, if that is so.
    kept: Option<Kept>,
    /// Most bytes that may be acknowledged at once, if there is a bound (AccECN).
    reach: Option<u64>,
}

impl Ack {
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Position of the right edge of the host's window.
    pub(crate) fn edge(&self) -> u64 {
        self.edge
    }

    /// Whether it echoes congestion (RFC 3168), or says something by AccECN.
    pub(crate) fn has_ecn(&self) -> bool {
        self.ecn != 0
    }

    /// The timestamp that it echoes.
    pub(crate) fn echo(&self) -> Option<u32> {
        self.timestamps.map(|(_, echo)| echo)
    }

    /// Whether it repeats what `before` said, with or without new SACK: what a sender counts to find a loss.
    pub(crate) fn repeats(&self, before: &Ack) -> bool {
        self.is_pure
            && !matches!(self.kept, Some(Kept::Options | Kept::Probe))
            && self.position == before.position
            && self.edge == before.edge
    }

    /// The timestamp of its sender (TSval).
    pub(crate) fn sent(&self) -> Option<u32> {
        self.timestamps.map(|(sent, _)| sent)
    }

    pub(crate) fn is_pure(&self) -> bool {
        self.is_pure
    }

    /// Whether it tells of progress in order and of nothing else.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_pure && self.kept.is_none() && self.sack.is_empty()
    }

    /// Whether it is plain behind another one: what it says can wait for a while.
    pub(crate) fn follows(&self, before: &Ack) -> bool {
        self.is_plain()
            && self.position > before.position
            && self.edge >= before.edge
            && self.ecn == before.ecn
            && self.timestamps.is_some() == before.timestamps.is_some()
    }

    /// Whether the simulator would drop `old` for this one. What is not understood is kept there too.
    pub(crate) fn is_higher(&self, old: &Ack) -> bool {
        let is_known = !matches!(old.kept, Some(Kept::Options | Kept::Probe));
        self.is_pure && old.is_pure && is_known && old.position < self.position
    }

    /// Whether this one, directly behind `old`, says all that `old` says; `before` is the position of the one in front of `old`, if that
    /// is known.
    pub(crate) fn says(&self, old: &Ack, before: Option<u64>) -> Result<Dropped, Kept> {
        if let Some(why) = old.kept {
            return Err(why);
        }
        if self.position < old.position {
            return Err(Kept::Older);
        }
        if self.is_behind {
            return Err(Kept::Probe);
        }
        if self.ecn != old.ecn {
            return Err(Kept::Ecn);
        }
        let is_later = |new: u32, old: u32| new.wrapping_sub(old) as i32 >= 0;
        let in_order = match (self.timestamps, old.timestamps) {
            (None, None) => true,
            (Some(new), Some(old)) => is_later(new.0, old.0) && is_later(new.1, old.1),
            _ => false,
        };
        if !in_order {
            return Err(Kept::Timestamps);
        }
        if self.edge < old.edge {
            return Err(Kept::Window);
        }
        if !old.sack.iter().all(|block| self.knows(*block)) {
            return Err(Kept::Sack);
        }
        if self.position == old.position && self.sacked() <= old.sacked() {
            return Err(Kept::Duplicate);
        }
        if let Some(reach) = self.reach
            && before.is_none_or(|before| self.position > before + reach)
        {
            return Err(Kept::Ecn);
        }
        match self.position > old.position {
            true => Ok(Dropped::Acked),
            false => Ok(Dropped::Sacked),
        }
    }

    /// Whether it reports a range, or acknowledges it.
    fn knows(&self, (left, right): (u64, u64)) -> bool {
        let left = left.max(self.position);
        let within = |block: &(u64, u64)| block.0 <= left && right <= block.1;
        right <= left || self.sack.iter().any(within)
    }

    /// Bytes beyond its position that its SACK blocks report.
    fn sacked(&self) -> u64 {
        let behind = |block: &(u64, u64)| block.1.saturating_sub(block.0.max(self.position));
        let copy = usize::from(self.first_is_within_second());
        self.sack.iter().skip(copy).map(behind).sum()
    }

    fn first_is_within_second(&self) -> bool {
        match self.sack[..] {
            [first, second, ..] => second.0 <= first.0 && first.1 <= second.1,
            _ => false,
        }
    }

    /// Whether its first block reports a copy (RFC 2883), or one is none at all.
    fn tells_copy(&self) -> bool {
        let odd = |block: &(u64, u64)| block.0 < self.position || block.1 <= block.0;
        self.first_is_within_second() || self.sack.iter().any(odd)
    }
}

/// What a host acknowledges, and from where in its own stream.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Scale of the host's window.
    scale: u8,
    reach: Option<u64>,
    /// Position behind what it has sent.
    next: u64,
    /// The last acknowledgement that came.
    last: Option<Ack>,
    reference: u64,
}

impl Stream {
    /// Scale of the host's window.
    pub(crate) fn scale(&self) -> u8 {
        self.scale
    }

    /// Of a host whose own data begins at `own` and which acknowledges from `acknowledged` on; with AccECN, `mss` says in segments of
    /// which length.
    pub(crate) fn new(own: u64, acknowledged: u64, scale: u8, accecn_mss: Option<u16>) -> Stream {
        Stream {
            scale: scale.min(14),
            reach: accecn_mss.map(|mss| u64::from(mss) * ACCECN_SEGMENTS),
            next: own,
            last: None,
            reference: acknowledged,
        }
    }

    /// What a segment says; `None` if it begins or aborts a connection, or acknowledges nothing.
    pub(crate) fn read(&mut self, segment: &Segment) -> Option<Ack> {
        if segment.syn || segment.rst || !segment.ack {
            return None;
        }
        let start = nearest(self.next, segment.sequence);
        let (is_next, is_behind) = (start == self.next, start < self.next);
        self.next = self.next.max(start + u64::from(segment.sequence_len()));
        let position = nearest(self.reference, segment.acknowledgment);
        self.reference = self.reference.max(position);
        let place = |number: u32| nearest(position, number);
        let sack = segment.sack().iter();
        let mut ack = Ack {
            position,
            edge: position + (u64::from(segment.window) << self.scale),
            ecn: segment.ecn,
            timestamps: segment.options.timestamps,
            sack: sack.map(|it| (place(it.0), place(it.1))).collect(),
            is_pure: segment.is_pure_ack(),
            is_behind,
            kept: None,
            reach: self.reach,
        };
        ack.kept = self.kept(segment, &ack, is_next);
        self.last = Some(ack.clone());
        Some(ack)
    }

    /// Why the acknowledgement must not be dropped; `None` if it may be.
    fn kept(&self, segment: &Segment, ack: &Ack, is_next: bool) -> Option<Kept> {
        if !segment.may_be_edited() {
            return Some(Kept::Options);
        }
        if !ack.is_pure || !is_next {
            return Some(Kept::Probe);
        }
        if ack.tells_copy() {
            return Some(Kept::Sack);
        }
        let last = self.last.as_ref()?;
        let was_closed = last.edge <= last.position && ack.edge > ack.position;
        if was_closed || (ack.position == last.position && ack.edge > last.edge) {
            return Some(Kept::Window);
        }
        let repeats = ack.position == last.position && ack.sacked() <= last.sacked();
        repeats.then_some(Kept::Duplicate)
    }
}
