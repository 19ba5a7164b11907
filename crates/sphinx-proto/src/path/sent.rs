//! The log of sent packets: which are in flight, which arrived, which are lost.

use std::collections::VecDeque;

use crate::cc::PacketInfo;
use crate::ranges::RangeSet;
use crate::wire::SymbolId;
use crate::{BlockId, Nanos, PacketNumber, Time};

use super::skips::Skips;
use super::stock::Stock;

/// Packets in the log. A peer that never resolves the oldest one costs no more than that …
const PACKETS_MAX: usize = 1 << 18;
/// … and of those that are not in flight no more than this behind one that is, and so many for each that is. That are the SACKs of eight seconds, which leave every 250 µs
/// at most: an end that only receives has hardly anything else in the log, and would keep them for as long as the peer leaves a PING unanswered.
const SETTLED_MAX: usize = 1 << 15;
const SETTLED_PER_IN_FLIGHT: usize = 4;

/// What a packet was sent for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carried {
    /// A symbol of the block with this sequence.
    Symbol {
        block: BlockId,
        round: u8,
        symbol: SymbolId,
    },
    /// Part of such a symbol; the number of its first part is lower by `after`.
    Fragment {
        block: BlockId,
        round: u8,
        symbol: SymbolId,
        after: u32,
    },
    /// A path MTU probe of this UDP payload.
    MtuProbe(u16),
    /// Frames; `reliable`: some are repeated until they are acknowledged.
    Frames { reliable: bool },
}

impl Carried {
    /// Whether rate control and the Monitor hear of the packet. A path MTU probe may be lost for
    /// its size, which says nothing about the path.
    pub(crate) fn counts(self) -> bool {
        !matches!(self, Self::MtuProbe(_))
    }

    /// The symbol that it carries whole.
    pub(super) fn symbol(self) -> Option<SymbolId> {
        match self {
            Self::Symbol { symbol, .. } => Some(symbol),
            Self::Fragment { .. } | Self::MtuProbe(_) | Self::Frames { .. } => None,
        }
    }

    /// Whether the packet carries new data.
    fn is_source(self) -> bool {
        match self {
            Self::Symbol { symbol, .. } | Self::Fragment { symbol, .. } => {
                symbol.source().is_some()
            }
            Self::MtuProbe(_) | Self::Frames { .. } => false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Wants no acknowledgement; or there is no packet of this number.
    Untracked,
    InFlight,
    Acked,
    Lost,
    /// Lost as far as anybody waits for it, when nothing came back from the path any more.
    GivenUp,
}

#[derive(Debug)]
struct SentPacket {
    sent_at: Time,
    ip_bytes: u32,
    carried: Carried,
    state: State,
}

/// A packet whose fate has become known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settled {
    pub(crate) info: PacketInfo,
    pub(crate) carried: Carried,
    /// Acknowledged after it had been declared lost.
    pub(crate) late: bool,
    /// It was given up with all others when the path fell silent, which says nothing about the losses of the channel.
    pub(crate) given_up: bool,
    /// If it is late, how far later packets had been acknowledged by then: the number by which it was overtaken.
    pub(crate) overtaken_by: u64,
}

impl Settled {
    /// Whether both arrived in time, the other one is as large and left no earlier, and they carry whole source symbols of the same block.
    pub(super) fn goes_on(&self, other: &Self) -> bool {
        let block_of = |packet: &Self| match packet.carried {
            Carried::Symbol {
                block,
                symbol: SymbolId::Source(_),
                ..
            } if !packet.late => Some(block),
            _ => None,
        };
        self.info.ip_bytes == other.info.ip_bytes
            && self.info.pn < other.info.pn
            && block_of(self).is_some_and(|block| block_of(other) == Some(block))
    }
}

/// All packets from the oldest unsettled one on, by number.
#[derive(Debug, Default)]
pub(crate) struct SentLog {
    packets: VecDeque<SentPacket>,
    /// Number of the first packet in the log.
    first: PacketNumber,
    /// No packet below is in flight.
    settled_below: PacketNumber,
    largest_acked: Option<PacketNumber>,
    acked_ranges: RangeSet<PacketNumber>,
    packets_in_flight: u64,
    /// Packets in flight that carry new data.
    sources_in_flight: u64,
    skips: Skips,
    /// When time will declare the next packet lost.
    loss_deadline: Option<Time>,
}

impl SentLog {
    pub(crate) fn largest_acked(&self) -> Option<PacketNumber> {
        self.largest_acked
    }

    /// Next packet number.
    pub(crate) fn next_pn(&self) -> PacketNumber {
        self.first + self.packets.len() as u64
    }

    pub(crate) fn packets_in_flight(&self) -> u64 {
        self.packets_in_flight
    }

    /// When the oldest packet in flight left.
    pub(crate) fn oldest_in_flight(&self) -> Option<Time> {
        if self.packets_in_flight == 0 {
            return None;
        }
        let settled = self.settled_below.max(self.first) - self.first;
        let mut packets = self.packets.iter().skip(settled as usize);
        let oldest = packets.find(|packet| packet.state == State::InFlight)?;
        Some(oldest.sent_at)
    }

    pub(crate) fn sources_in_flight(&self) -> u64 {
        self.sources_in_flight
    }

    pub(crate) fn loss_deadline(&self) -> Option<Time> {
        self.loss_deadline
    }

    /// Record packet [`SentLog::next_pn`]. Packets that want no acknowledgement are recorded too,
    /// so that numbers stay dense.
    pub(crate) fn record(&mut self, now: Time, ip_bytes: u32, carried: Carried, eliciting: bool) {
        let state = if eliciting {
            self.packets_in_flight += 1;
            self.sources_in_flight += u64::from(carried.is_source());
            State::InFlight
        } else {
            State::Untracked
        };
        self.packets.push_back(SentPacket {
            sent_at: now,
            ip_bytes,
            carried,
            state,
        });
    }

    /// Leaves the next packet number out, if it is one to be left out. It is in the log, as numbers stay dense, but was
    /// never in flight: it cannot be lost, and counts nowhere.
    pub(crate) fn skip(&mut self, stock: &mut Stock) {
        if self.skips.leaves_out(self.next_pn()) {
            let nothing = Carried::Frames { reliable: false };
            self.record(Time::ZERO, 0, nothing, false);
            self.draw_skip(stock);
        }
    }

    /// Decides on the next number to leave out, if there is randomness for it.
    pub(crate) fn draw_skip(&mut self, stock: &mut Stock) {
        self.skips.draw(self.next_pn(), stock);
    }

    /// A number that was left out and that the peer may know of now.
    pub(crate) fn poll_spent_skip(&mut self) -> Option<PacketNumber> {
        self.skips.poll_spent(self.first, self.largest_acked)
    }

    /// Whether the peer may have the packets in `ranges` (largest first): they have been sent.
    pub(crate) fn may_have(&self, ranges: &[(PacketNumber, PacketNumber)]) -> bool {
        let newest = ranges
            .first()
            .map_or(PacketNumber::ZERO, |(_, largest)| *largest);
        newest < self.next_pn() && !self.skips.are_named_in(ranges)
    }

    fn packet_mut(&mut self, pn: PacketNumber) -> Option<&mut SentPacket> {
        let at = pn.checked_sub(self.first)?;
        self.packets.get_mut(usize::try_from(at).ok()?)
    }

    /// The peer has the packets in `ranges` (largest first). Those that are news go to `acked`.
    pub(crate) fn acknowledge(
        &mut self,
        ranges: &[(PacketNumber, PacketNumber)],
        acked: &mut Vec<Settled>,
    ) {
        let mut known = std::mem::take(&mut self.acked_ranges);
        let first = self.first;
        for &(low, high) in ranges.iter().take_while(|(_, high)| *high >= first) {
            known.insert(low.max(first), high, |low, high| {
                self.acknowledge_run(low, high, acked);
            });
        }
        self.acked_ranges = known;
        let newest = acked.iter().filter(|p| !p.late).map(|p| p.info.pn).max();
        self.largest_acked = self.largest_acked.max(newest);
    }

    /// The peer has packets `low` to `high`, of which it had none.
    fn acknowledge_run(&mut self, low: PacketNumber, high: PacketNumber, acked: &mut Vec<Settled>) {
        let at = |pn: PacketNumber| (pn - self.first) as usize;
        let to = (at(high) + 1).min(self.packets.len());
        let packets = self.packets.range_mut(at(low).min(to)..to);
        for (pn, packet) in low.until(high + 1).zip(packets) {
            let was = std::mem::replace(&mut packet.state, State::Acked);
            let is_late = match was {
                State::Acked | State::Untracked => continue,
                State::InFlight => {
                    self.packets_in_flight -= 1;
                    self.sources_in_flight -= u64::from(packet.carried.is_source());
                    false
                }
                State::Lost | State::GivenUp => true,
            };
            acked.push(Settled {
                info: PacketInfo {
                    pn,
                    sent_at: packet.sent_at,
                    ip_bytes: packet.ip_bytes,
                },
                carried: packet.carried,
                late: is_late,
                given_up: was == State::GivenUp,
                overtaken_by: match is_late {
                    true => overtaken_by(&self.skips, self.largest_acked, pn) + 1,
                    false => 0,
                },
            });
        }
    }

    /// Declare packets lost by number and by time (RFC 9002 §6.1) and hand them to `lost`: those before
    /// `threshold` acknowledged ones, and those sent before an acknowledged one and `delay` ago.
    pub(crate) fn detect_losses(
        &mut self,
        now: Time,
        (threshold, delay): (u64, Nanos),
        lost: &mut Vec<Settled>,
    ) {
        self.loss_deadline = None;
        let Some(largest) = self.largest_acked else {
            return;
        };
        let mut all_settled = true;
        let mut pn = self.settled_below.max(self.first);
        let behind = self.packets.iter().skip((pn - self.first) as usize);
        let settled = behind.take_while(|packet| packet.state != State::InFlight);
        pn += settled
            .take(largest.checked_sub(pn).unwrap_or(0) as usize)
            .count() as u64;
        self.settled_below = pn;
        while pn < largest {
            let Some(packet) = self.packet_mut(pn) else {
                break;
            };
            if packet.state == State::InFlight {
                let due = packet.sent_at.saturating_add(delay);
                // The cheaper test comes first.
                let overtaken = largest - pn >= threshold
                    && overtaken_by(&self.skips, Some(largest), pn) >= threshold;
                if overtaken || now >= due {
                    lost.extend(self.lose(pn, State::Lost));
                } else {
                    all_settled = false;
                    let deadline = self.loss_deadline.get_or_insert(due);
                    *deadline = due.min(*deadline);
                }
            }
            pn += 1;
            if all_settled {
                self.settled_below = pn;
            }
        }
    }

    /// Everything in flight is given up, and goes to `lost`.
    pub(crate) fn lose_all(&mut self, lost: &mut Vec<Settled>) {
        let mut pn = self.settled_below.max(self.first);
        while let Some(packet) = self.packet_mut(pn) {
            if packet.state == State::InFlight {
                lost.extend(self.lose(pn, State::GivenUp));
            }
            pn += 1;
        }
        self.loss_deadline = None;
    }

    fn lose(&mut self, pn: PacketNumber, how: State) -> Option<Settled> {
        let packet = self.packet_mut(pn)?;
        packet.state = how;
        let (sent_at, ip_bytes, carried) = (packet.sent_at, packet.ip_bytes, packet.carried);
        self.packets_in_flight -= 1;
        self.sources_in_flight -= u64::from(carried.is_source());
        Some(Settled {
            info: PacketInfo {
                pn,
                sent_at,
                ip_bytes,
            },
            carried,
            late: false,
            given_up: how == State::GivenUp,
            overtaken_by: 0,
        })
    }

    /// Drop settled packets from the front; lost ones stay for `patience`, so that late
    /// acknowledgements are recognised. What must leave a full log unsettled goes to `lost`.
    pub(crate) fn forget(&mut self, now: Time, patience: Nanos, lost: &mut Vec<Settled>) {
        while let Some(front) = self.packets.front() {
            let is_full = self.packets.len() > PACKETS_MAX;
            let gone = match front.state {
                State::InFlight if is_full || self.is_held_up() => {
                    lost.extend(self.lose(self.first, State::Lost));
                    true
                }
                State::InFlight => false,
                State::Acked | State::Untracked => true,
                State::Lost | State::GivenUp => {
                    is_full || now.saturating_sub(front.sent_at) > patience
                }
            };
            if !gone {
                break;
            }
            self.packets.pop_front();
            self.first += 1;
        }
        self.settled_below = self.settled_below.max(self.first);
        self.acked_ranges.remove_below(self.first);
    }

    /// Whether the packet in flight that is the oldest in the log keeps too many there that are not.
    fn is_held_up(&self) -> bool {
        let in_flight = self.packets_in_flight as usize;
        let settled = self.packets.len() - in_flight;
        settled > SETTLED_MAX + SETTLED_PER_IN_FLIGHT * in_flight
    }

    /// Number of the oldest packet in the log.
    pub(crate) fn first_pn(&self) -> PacketNumber {
        self.first
    }
}

/// How many packets behind this one have left up to the largest one that was acknowledged.
fn overtaken_by(skips: &Skips, largest: Option<PacketNumber>, pn: PacketNumber) -> u64 {
    let largest = largest.unwrap_or_default();
    let behind = largest.checked_sub(pn).unwrap_or(0);
    behind - skips.between(pn, largest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::pn;
    use crate::time::time;

    const DELAY: Nanos = 100;

    fn log(packets: u64) -> SentLog {
        let mut log = SentLog::default();
        for at in 0..packets {
            log.record(time(at), 1000, Carried::Frames { reliable: false }, true);
        }
        log
    }

    fn numbers(settled: &[Settled]) -> Vec<u64> {
        settled.iter().map(|s| s.info.pn.get()).collect()
    }

    #[test]
    fn number_and_time_declare_losses() {
        let mut log = log(10);
        let (mut acked, mut lost) = (Vec::new(), Vec::new());
        log.acknowledge(&[(pn(5), pn(5)), (pn(1), pn(2))], &mut acked);
        assert_eq!(numbers(&acked), [5, 1, 2]);
        log.detect_losses(time(20), (3, DELAY), &mut lost);
        assert_eq!(numbers(&lost), [0], "three later ones arrived");
        assert_eq!(log.loss_deadline(), Some(time(3 + DELAY)));
        log.detect_losses(time(3 + DELAY), (3, DELAY), &mut lost);
        assert_eq!(numbers(&lost), [0, 3]);
        assert_eq!(log.packets_in_flight(), 5);
        log.forget(time(1000), DELAY, &mut lost);
        assert_eq!((log.first, lost.len()), (pn(4), 2));
    }

    /// An end that only receives sends SACKs, and now and then a PING: the peer answers none.
    #[test]
    fn what_nobody_acknowledges_does_not_fill_the_log() {
        let (mut log, mut acked, mut lost) = (log(2), Vec::new(), Vec::new());
        let mut most = 0;
        for at in 2..100_000 {
            log.record(time(at), 1000, Carried::Frames { reliable: false }, false);
            // It may say that it has these.
            log.acknowledge(&[(pn(at), pn(at))], &mut acked);
            log.forget(time(at), DELAY, &mut lost);
            most = most.max(log.packets.len());
        }
        assert_eq!((numbers(&lost), acked.len()), (vec![0, 1], 0));
        assert!((SETTLED_MAX..=SETTLED_MAX + 3 * SETTLED_PER_IN_FLIGHT).contains(&most));
        assert!(log.packets.is_empty());
        // Where much is in flight, more may be behind the oldest.
        for at in 100_000..200_000 {
            let eliciting = at % 4 == 0;
            log.record(
                time(at),
                1000,
                Carried::Frames { reliable: false },
                eliciting,
            );
            log.forget(time(at), DELAY, &mut lost);
        }
        assert_eq!((log.packets.len(), lost.len()), (100_000, 2));
    }

    /// Packets 0, 2, 4, 5 and 6: of the numbers 1 and 3 there is none.
    fn log_with_gaps() -> SentLog {
        let mut stock = Stock::default();
        stock.add([0; 8]);
        stock.add([0; 8]);
        let mut log = SentLog::default();
        log.draw_skip(&mut stock);
        while log.next_pn() < pn(7) {
            let at = log.next_pn().get();
            log.record(time(at), 1000, Carried::Frames { reliable: false }, true);
            log.skip(&mut stock);
        }
        assert_eq!(log.packets_in_flight(), 5);
        log
    }

    #[test]
    fn numbers_left_out_are_not_lost_and_overtake_nothing() {
        let mut log = log_with_gaps();
        let (mut acked, mut lost) = (Vec::new(), Vec::new());
        log.acknowledge(&[(pn(4), pn(4))], &mut acked);
        log.detect_losses(time(20), (3, DELAY), &mut lost);
        assert!(lost.is_empty(), "one packet or two are between");
        log.acknowledge(&[(pn(5), pn(5))], &mut acked);
        log.detect_losses(time(20), (3, DELAY), &mut lost);
        assert_eq!(numbers(&lost), [0], "three later ones");
        log.acknowledge(&[(pn(0), pn(0))], &mut acked);
        assert_eq!(acked.last().map(|late| late.overtaken_by), Some(4));
        log.detect_losses(time(1000), (3, DELAY), &mut lost);
        assert_eq!(numbers(&lost), [0, 2], "never 1 or 3");
        assert_eq!(log.packets_in_flight(), 1);
    }

    #[test]
    fn numbers_left_out_must_not_be_acknowledged_before_they_are_told() {
        let mut log = log_with_gaps();
        assert!(log.may_have(&[(pn(4), pn(6)), (pn(2), pn(2)), (pn(0), pn(0))]));
        assert!(!log.may_have(&[(pn(0), pn(6))]) && !log.may_have(&[(pn(1), pn(1))]));
        assert!(!log.may_have(&[(pn(7), pn(7))]), "never sent");
        let (mut acked, mut lost) = (Vec::new(), Vec::new());
        log.acknowledge(&[(pn(2), pn(2)), (pn(0), pn(0))], &mut acked);
        log.forget(time(0), DELAY, &mut lost);
        assert_eq!(log.poll_spent_skip(), Some(pn(1)));
        assert_eq!(log.poll_spent_skip(), None, "nothing behind 3 has arrived");
        assert!(log.may_have(&[(pn(0), pn(2))]) && !log.may_have(&[(pn(0), pn(4))]));
    }

    #[test]
    fn a_full_log_gives_up_the_oldest() {
        let mut log = log(PACKETS_MAX as u64 + 3);
        let mut lost = Vec::new();
        log.forget(time(0), DELAY, &mut lost);
        assert_eq!(numbers(&lost), [0, 1, 2]);
        assert_eq!(log.packets_in_flight(), PACKETS_MAX as u64);
    }
}
