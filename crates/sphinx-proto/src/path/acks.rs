//! Which of the peer's packets have arrived, and when that is told (Symbol-SACK).

use std::collections::VecDeque;

use crate::ranges::RangeSet;
use crate::types::PacketMeta;
use crate::wire::{Frame, MAX_SACK_RANGES, Sack, varint_len};
use crate::{Nanos, PacketNumber, PathId, Time};

use super::arrivals::Arrivals;
use super::monitor::Losses;

/// How many packets may wait for a SACK: the number received so far divided by `SACK_PART`, within
/// bounds. It begins low because rate control measures the first packet trains, and SACKs of these
/// may be lost.
const SACK_PART: u64 = 16;
const PACKETS_PER_SACK: (u64, u64) = (2, 64);
/// Bounds of the time that packets wait for a SACK.
const SACK_DELAY_MIN: Nanos = 250_000;
pub(crate) const SACK_DELAY_MAX: Nanos = 10_000_000;
/// SACKs never follow each other more closely, whatever asks for them.
const SACK_INTERVAL_MIN: Nanos = 250_000;
/// How often the last SACK is repeated when nothing more arrives, each time after twice as long: the sender
/// may be waiting for it.
const TAIL_REPEATS: u8 = 3;
/// Every range is repeated in so many SACKs: packets that arrived count as lost only if all of
/// these are lost.
const SACK_REPEATS: usize = 8;
/// A SACK has at least so many ranges if there are as many: the older ones report packets that
/// arrive very late.
const SACK_RANGES_MIN: usize = 32;
/// Bytes of a SACK with one range, at most.
const SACK_FRAME_MIN: usize = 1 + 9 * 8;
/// Bytes of the ECT1 frame in front of a SACK, at most.
const ECT1_LEN_MAX: usize = 2 + 8 + 8;
/// "Congestion experienced".
const CE: u8 = 0b11;

/// The receiver's side of a packet number space.
#[derive(Debug)]
pub(crate) struct Acks {
    received: RangeSet<PacketNumber>,
    arrivals: Arrivals,
    /// Largest number, and when its packet arrived.
    largest: Option<(PacketNumber, Time)>,
    /// Packets received with ECT(0) or ECT(1).
    ect: u64,
    /// Packets received with ECT(1); `ect` counts them too.
    ect1: u64,
    /// Packets received with CE; they are not among those with ECT.
    ce: u64,
    /// The latest packet had CE.
    was_marked: bool,
    sequence: u64,
    /// Packets to be acknowledged that no SACK has reported.
    unacked: u64,
    sack_at: Option<Time>,
    last_sack: Option<Time>,
    /// When the last SACK is repeated if nothing more arrives, how many repetitions are left, and
    /// how long after this one the next follows.
    tail_at: Option<Time>,
    tail_repeats: u8,
    tail_delay: Nanos,
    /// Largest packets of the last `SACK_REPEATS` SACKs, oldest first.
    told: VecDeque<PacketNumber>,
    last_eliciting: Time,
    /// The last packet to be acknowledged carried the last-of-flight mark.
    flight_over: bool,
}

/// What the SACK of a packet depends on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Marks {
    /// The packet is to be acknowledged.
    pub(crate) eliciting: bool,
    pub(crate) last_of_flight: bool,
    /// It only asks whether this end is there. Its SACK is not repeated: should it be lost, the
    /// peer asks again.
    pub(crate) is_sign_of_life: bool,
    /// Smoothed round trip of the path on which the SACK goes back, if that is another path.
    pub(crate) told_on: Option<Nanos>,
}

/// How long packets may wait for a SACK.
pub(super) fn sack_delay(rtt: Nanos) -> Nanos {
    (rtt / 8).clamp(SACK_DELAY_MIN, SACK_DELAY_MAX)
}

/// How many packets may wait for a SACK, of which the latest has this number.
fn packets_per_sack(number: PacketNumber) -> u64 {
    let (least, most) = PACKETS_PER_SACK;
    (number.get() / SACK_PART).clamp(least, most)
}

impl Acks {
    pub(super) fn new(now: Time) -> Self {
        Self {
            received: RangeSet::default(),
            arrivals: Arrivals::default(),
            largest: None,
            ect: 0,
            ect1: 0,
            ce: 0,
            was_marked: false,
            sequence: 0,
            unacked: 0,
            sack_at: None,
            last_sack: None,
            tail_at: None,
            tail_repeats: 0,
            tail_delay: SACK_DELAY_MAX,
            told: VecDeque::new(),
            last_eliciting: now,
            flight_over: false,
        }
    }

    /// Whether the latest packet was the last of its flight.
    pub(super) fn flight_is_over(&self) -> bool {
        self.flight_over
    }

    /// How many packets may wait for a SACK at present.
    pub(super) fn packets_per_sack(&self) -> u64 {
        packets_per_sack(self.largest().unwrap_or(PacketNumber::ZERO))
    }

    /// Largest packet number opened.
    pub(crate) fn largest(&self) -> Option<PacketNumber> {
        self.largest.map(|(pn, _)| pn)
    }

    /// Packets seen with ECT and with CE.
    pub(crate) fn marks(&self) -> (u64, u64) {
        (self.ect, self.ce)
    }

    /// What the peer's packets have lost; `None` before the first one.
    pub(crate) fn losses(&self) -> Option<Losses> {
        self.arrivals.losses()
    }

    /// Notes an opened packet for the next SACK.
    #[inline]
    pub(super) fn on_packet(&mut self, meta: &PacketMeta, marks: Marks, rtt: Nanos) {
        self.received.insert_one(meta.packet_number);
        self.arrivals.on_packet(meta.packet_number);
        self.received.truncate_low(MAX_SACK_RANGES);
        if self.largest.is_none_or(|(pn, _)| meta.packet_number > pn) {
            self.largest = Some((meta.packet_number, meta.received_at));
        }
        match meta.ecn {
            0b01 => (self.ect, self.ect1) = (self.ect + 1, self.ect1 + 1),
            0b10 => self.ect += 1,
            0b11 => self.ce += 1,
            _ => {}
        }
        // Queues for ECT(1) mark early and often (RFC 9331): there, of several CE marks in a row
        // only the first one is reported at once.
        let is_marked = meta.ecn == CE;
        let is_news = is_marked && !(self.ect1 > 0 && self.was_marked);
        self.was_marked = is_marked;
        if !marks.eliciting {
            return;
        }
        let delay = sack_delay(rtt);
        self.tail_at = None;
        if !marks.is_sign_of_life {
            self.tail_repeats = TAIL_REPEATS;
        }
        self.tail_delay = (delay / 2).max(SACK_INTERVAL_MIN);
        self.unacked += 1;
        self.flight_over = marks.last_of_flight;
        let first_after_idle = meta.now.saturating_sub(self.last_eliciting) > 2 * rtt.max(delay);
        self.last_eliciting = meta.now;
        let at_once = marks.last_of_flight
            || is_news
            || self.unacked >= packets_per_sack(meta.packet_number)
            || first_after_idle;
        // The delay counts from the arrival, however late the packet is handled.
        let in_time = meta.received_at + delay;
        self.want_sack(if at_once { meta.now } else { in_time });
    }

    /// So many packets arrived together with this one, which has the highest number so far: their
    /// numbers follow its own, and their times of arrival and marks are the same.
    pub(super) fn on_followers(
        &mut self,
        meta: &PacketMeta,
        marks: Marks,
        (rtt, count): (Nanos, u64),
    ) {
        self.received.extend(count);
        self.arrivals.on_followers(count);
        let last = meta.packet_number.saturating_add(count);
        self.largest = Some((last, meta.received_at));
        match meta.ecn {
            0b01 => (self.ect, self.ect1) = (self.ect + count, self.ect1 + count),
            0b10 => self.ect += count,
            CE => self.ce += count,
            _ => {}
        }
        if !marks.eliciting {
            return;
        }
        let is_news = meta.ecn == CE && self.ect1 == 0;
        let before = self.unacked;
        self.unacked += count;
        // From packet to packet the number that waits rises by one, and the number that may wait
        // rises more slowly. So a SACK is due at once if the last follower needs it, and if the
        // first does, no packet waits for the delay.
        let at_once = |follower: u64| {
            let may_wait = packets_per_sack(meta.packet_number.saturating_add(follower));
            marks.last_of_flight || is_news || before + follower >= may_wait
        };
        if at_once(count) {
            self.want_sack(meta.now);
        }
        if !at_once(1) {
            self.want_sack(meta.received_at + sack_delay(rtt));
        }
    }

    /// The peer says that no packet has this number. From then on it counts as received: a gap that never fills would
    /// take the place of a range that the peer has to hear of.
    pub(super) fn on_skipped(&mut self, packet_number: PacketNumber) {
        if self.received.contains(packet_number) {
            return;
        }
        let number = packet_number.get();
        let is_received = |n: u64| self.received.contains(PacketNumber::new(n));
        let alone = number.checked_sub(1).is_some_and(is_received)
            && number.checked_add(1).is_some_and(is_received);
        if self.arrivals.on_skipped(packet_number, alone) {
            self.received.insert_one(packet_number);
            self.received.truncate_low(MAX_SACK_RANGES);
        }
    }

    /// A SACK is to leave at this time, or as soon after it as `SACK_INTERVAL_MIN` allows.
    pub(crate) fn want_sack(&mut self, at: Time) {
        let at = self
            .last_sack
            .map_or(at, |last| at.max(last + SACK_INTERVAL_MIN));
        self.sack_at = Some(self.sack_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// When a SACK is due.
    pub(crate) fn timeout(&self) -> Option<Time> {
        self.largest?;
        self.sack_at.into_iter().chain(self.tail_at).min()
    }

    /// Writes feedback of at most `room` bytes into `out`: what `blocks` writes into half of the room, and a SACK
    /// with this credit.
    ///
    /// Block-SACKs come first: the sender then does not compensate losses in blocks that are complete.
    pub(crate) fn write(
        &mut self,
        (now, credit, room): (Time, u64, usize),
        path: PathId,
        out: &mut Vec<u8>,
        blocks: impl FnOnce(usize, bool, &mut Vec<u8>),
    ) {
        let Some(largest) = self.largest() else {
            return;
        };
        let end = out.len() + room;
        self.last_sack = Some(now);
        self.sack_at = None;
        self.tail_at = None;
        if self.tail_repeats > 0 {
            self.tail_at = Some(now + self.tail_delay);
            self.tail_repeats -= 1;
            self.tail_delay *= 2;
        }
        self.unacked = 0;
        blocks(out.len() + room / 2, self.flight_over, out);
        let ranges = self.ranges(end.saturating_sub(out.len() + self.frames_min()));
        if self.told.len() == SACK_REPEATS {
            self.told.pop_front();
        }
        self.told.push_back(largest);
        self.write_sack((now, credit), path, ranges, out);
    }

    /// Writes the SACK once more, for another path than its own, with this credit: at most `room` bytes.
    pub(crate) fn write_again(
        &mut self,
        (now, credit, room): (Time, u64, usize),
        path: PathId,
        out: &mut Vec<u8>,
    ) {
        let ranges = self.ranges(room.saturating_sub(self.frames_min()));
        self.write_sack((now, credit), path, ranges, out);
    }

    fn write_sack(
        &mut self,
        (now, credit): (Time, u64),
        path: PathId,
        ranges: Vec<(PacketNumber, PacketNumber)>,
        out: &mut Vec<u8>,
    ) {
        let Some((_, received_at)) = self.largest else {
            return;
        };
        let sack = Sack {
            sequence: self.sequence,
            delay_us: now.saturating_sub(received_at) / 1000,
            time_us: received_at.as_nanos() / 1000,
            ect: self.ect,
            ce: self.ce,
            credit,
            ranges,
        };
        self.sequence += 1;
        // It comes before the SACK: the peer compares its count with those in the SACK, which are
        // of the same packets.
        if self.ect1 > 0 {
            let count = self.ect1;
            Frame::Ect1 { path, count }.encode(out);
        }
        match path {
            PathId::FIRST => Frame::Sack(sack),
            path => Frame::PathSack { path, sack },
        }
        .encode(out);
    }

    /// Bytes of a SACK with one range and of the ECT1 frame before it, at most.
    fn frames_min(&self) -> usize {
        match self.ect1 {
            0 => SACK_FRAME_MIN,
            _ => ECT1_LEN_MAX + SACK_FRAME_MIN,
        }
    }

    /// The largest packet numbers: what arrived since the last few SACKs, in at most `room` bytes.
    fn ranges(&self, room: usize) -> Vec<(PacketNumber, PacketNumber)> {
        let floor = match self.told.front() {
            Some(oldest) if self.told.len() == SACK_REPEATS => *oldest,
            _ => PacketNumber::ZERO,
        };
        let mut ranges = Vec::new();
        let mut room_left = room;
        let mut below = None;
        for (low, high) in self.received.iter().rev() {
            let gap = below.map_or(0, |below: PacketNumber| below - high - 2);
            let size = varint_len(gap) + varint_len(high - low);
            let enough = high < floor && ranges.len() >= SACK_RANGES_MIN;
            if !ranges.is_empty() && (enough || size > room_left) {
                break;
            }
            room_left = room_left.saturating_sub(size);
            ranges.push((low, high));
            below = Some(low);
        }
        ranges
    }
}
