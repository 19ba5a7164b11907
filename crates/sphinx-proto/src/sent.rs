//! The log of sent packets: which are in flight, which arrived, which are lost.

use std::collections::VecDeque;

use crate::Nanos;
use crate::cc::PacketInfo;
use crate::ranges::RangeSet;
use crate::wire::SymbolId;

/// Later packets acknowledged before one counts as lost, until reordering is seen (RFC 9002).
const PACKET_THRESHOLD: u64 = 3;
/// The threshold never adapts beyond this; time decides then.
const PACKET_THRESHOLD_MAX: u64 = 1024;
/// So long after the last late packet the path counts as keeping the order again.
const REORDERING_MEMORY: Nanos = 10_000_000_000;
/// Packets in the log. A peer that never resolves the oldest one costs no more than that.
const PACKETS_MAX: usize = 1 << 18;

/// What a packet was sent for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carried {
    /// A symbol of the block with this sequence.
    Symbol {
        block: u64,
        round: u8,
        symbol: SymbolId,
    },
    /// Part of such a symbol, whose first part left `after` packets before.
    Fragment {
        block: u64,
        round: u8,
        symbol: SymbolId,
        after: u32,
    },
    /// A path MTU probe of this UDP payload.
    MtuProbe(u16),
    /// All connection ids that the peer may not know, up to this sequence number.
    ConnectionIds(u64),
    /// A PING or another frame that wants an answer.
    Frames,
}

impl Carried {
    /// Whether rate control and the Monitor hear of the packet. A path MTU probe may be lost for
    /// its size, which says nothing about the path.
    pub(crate) fn counts(self) -> bool {
        !matches!(self, Self::MtuProbe(_))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Wants no acknowledgement.
    Untracked,
    InFlight,
    Acked,
    Lost,
}

#[derive(Debug)]
struct SentPacket {
    sent_at: Nanos,
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
    /// It travelled the path that is in use.
    pub(crate) on_path: bool,
}

impl Settled {
    /// Whether rate control and the Monitor hear of it.
    pub(crate) fn counts(&self) -> bool {
        self.on_path && self.carried.counts()
    }
}

/// All packets from the oldest unsettled one on, by number.
#[derive(Debug, Default)]
pub(crate) struct SentLog {
    packets: VecDeque<SentPacket>,
    /// Number of the first packet in the log.
    first: u64,
    /// No packet below is in flight.
    settled_below: u64,
    largest_acked: Option<u64>,
    acked_ranges: RangeSet,
    reordering: Reordering,
    /// Packets below left on another path.
    path_first: u64,
    /// Bytes and packets in flight; the bytes are those that count.
    bytes_in_flight: u64,
    packets_in_flight: u64,
    /// When time will declare the next packet lost.
    loss_deadline: Option<Nanos>,
}

/// How far packets have been seen to overtake each other.
#[derive(Debug)]
struct Reordering {
    packet_threshold: u64,
    /// Longest time that a packet declared lost had been on its way.
    delay: Nanos,
    seen_at: Nanos,
}

impl Default for Reordering {
    fn default() -> Self {
        Self {
            packet_threshold: PACKET_THRESHOLD,
            delay: 0,
            seen_at: 0,
        }
    }
}

impl SentLog {
    pub(crate) fn largest_acked(&self) -> Option<u64> {
        self.largest_acked
    }

    /// Next packet number.
    pub(crate) fn next_pn(&self) -> u64 {
        self.first + self.packets.len() as u64
    }

    pub(crate) fn bytes_in_flight(&self) -> u64 {
        self.bytes_in_flight
    }

    pub(crate) fn packets_in_flight(&self) -> u64 {
        self.packets_in_flight
    }

    pub(crate) fn loss_deadline(&self) -> Option<Nanos> {
        self.loss_deadline
    }

    /// From now on packets travel another way through the network.
    pub(crate) fn begin_path(&mut self) {
        self.path_first = self.next_pn();
        self.bytes_in_flight = 0;
        self.reordering = Reordering::default();
    }

    /// Record packet [`SentLog::next_pn`]. Packets that want no acknowledgement are recorded too,
    /// so that numbers stay dense.
    pub(crate) fn record(&mut self, now: Nanos, ip_bytes: u32, carried: Carried, eliciting: bool) {
        let state = if eliciting {
            self.packets_in_flight += 1;
            self.bytes_in_flight += self.counted(self.next_pn(), carried, ip_bytes);
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

    fn packet_mut(&mut self, pn: u64) -> Option<&mut SentPacket> {
        let at = pn.checked_sub(self.first)?;
        self.packets.get_mut(usize::try_from(at).ok()?)
    }

    /// The peer has the packets in `ranges` (largest first). Those that are news go to `acked`.
    pub(crate) fn acknowledge(
        &mut self,
        now: Nanos,
        ranges: &[(u64, u64)],
        acked: &mut Vec<Settled>,
    ) {
        let mut known = std::mem::take(&mut self.acked_ranges);
        let first = self.first;
        for &(low, high) in ranges.iter().take_while(|(_, high)| *high >= first) {
            known.insert(low.max(first), high, |low, high| {
                acked.extend((low..=high).filter_map(|pn| self.acknowledge_one(now, pn)));
            });
        }
        self.acked_ranges = known;
        let newest = acked.iter().filter(|p| !p.late).map(|p| p.info.pn).max();
        self.largest_acked = self.largest_acked.max(newest);
    }

    fn acknowledge_one(&mut self, now: Nanos, pn: u64) -> Option<Settled> {
        let packet = self.packet_mut(pn)?;
        let was = std::mem::replace(&mut packet.state, State::Acked);
        let (sent_at, ip_bytes, carried) = (packet.sent_at, packet.ip_bytes, packet.carried);
        match was {
            State::Acked | State::Untracked => return None,
            State::InFlight => {
                self.packets_in_flight -= 1;
                self.bytes_in_flight -= self.counted(pn, carried, ip_bytes);
            }
            // Another path's delays say nothing about this one.
            State::Lost if pn < self.path_first => {}
            State::Lost => self.note_late(now, pn, now.saturating_sub(sent_at)),
        }
        Some(Settled {
            info: PacketInfo {
                pn,
                sent_at,
                ip_bytes,
            },
            carried,
            late: was == State::Lost,
            on_path: pn >= self.path_first,
        })
    }

    /// A packet was late, not lost: be more patient with this path.
    fn note_late(&mut self, now: Nanos, pn: u64, delay: Nanos) {
        let overtaken_by = self.largest_acked.unwrap_or(0).saturating_sub(pn) + 1;
        let r = &mut self.reordering;
        r.packet_threshold = r
            .packet_threshold
            .max(overtaken_by)
            .min(PACKET_THRESHOLD_MAX);
        r.delay = r.delay.max(delay);
        r.seen_at = now;
    }

    /// Declare packets lost by number and by time (RFC 9002 §6.1) and hand them to `lost`. `delay` is
    /// the time threshold while packets keep their order; reordering may double it.
    pub(crate) fn detect_losses(&mut self, now: Nanos, delay: Nanos, lost: &mut Vec<Settled>) {
        self.loss_deadline = None;
        let Some(largest) = self.largest_acked else {
            return;
        };
        if now.saturating_sub(self.reordering.seen_at) > REORDERING_MEMORY {
            self.reordering = Reordering::default();
        }
        let threshold = self.reordering.packet_threshold;
        let delay = delay.max(self.reordering.delay.min(2 * delay));
        let mut all_settled = true;
        let mut pn = self.settled_below.max(self.first);
        while pn < largest {
            let Some(packet) = self.packet_mut(pn) else {
                break;
            };
            if packet.state == State::InFlight {
                let due = packet.sent_at.saturating_add(delay);
                if largest - pn >= threshold || now >= due {
                    lost.extend(self.lose(pn));
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

    fn lose(&mut self, pn: u64) -> Option<Settled> {
        let packet = self.packet_mut(pn)?;
        packet.state = State::Lost;
        let (sent_at, ip_bytes, carried) = (packet.sent_at, packet.ip_bytes, packet.carried);
        self.packets_in_flight -= 1;
        self.bytes_in_flight -= self.counted(pn, carried, ip_bytes);
        Some(Settled {
            info: PacketInfo {
                pn,
                sent_at,
                ip_bytes,
            },
            carried,
            late: false,
            on_path: pn >= self.path_first,
        })
    }

    /// Drop settled packets from the front; lost ones stay for `patience`, so that late
    /// acknowledgements are recognised. What must leave a full log unsettled goes to `lost`.
    pub(crate) fn forget(&mut self, now: Nanos, patience: Nanos, lost: &mut Vec<Settled>) {
        while let Some(front) = self.packets.front() {
            let is_full = self.packets.len() > PACKETS_MAX;
            let gone = match front.state {
                State::InFlight if is_full => {
                    lost.extend(self.lose(self.first));
                    true
                }
                State::InFlight => false,
                State::Acked | State::Untracked => true,
                State::Lost => is_full || now.saturating_sub(front.sent_at) > patience,
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

    /// Number of the oldest packet in the log.
    pub(crate) fn first_pn(&self) -> u64 {
        self.first
    }

    fn counted(&self, pn: u64, carried: Carried, ip_bytes: u32) -> u64 {
        if pn >= self.path_first && carried.counts() {
            u64::from(ip_bytes)
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Nanos = 100;

    fn log(packets: u64) -> SentLog {
        let mut log = SentLog::default();
        for at in 0..packets {
            log.record(at, 1000, Carried::Frames, true);
        }
        log
    }

    fn numbers(settled: &[Settled]) -> Vec<u64> {
        settled.iter().map(|s| s.info.pn).collect()
    }

    #[test]
    fn number_and_time_declare_losses() {
        let mut log = log(10);
        let (mut acked, mut lost) = (Vec::new(), Vec::new());
        log.acknowledge(20, &[(5, 5), (1, 2)], &mut acked);
        assert_eq!(numbers(&acked), [5, 1, 2]);
        log.detect_losses(20, DELAY, &mut lost);
        assert_eq!(numbers(&lost), [0], "three later ones arrived");
        assert_eq!(log.loss_deadline(), Some(3 + DELAY));
        log.detect_losses(3 + DELAY, DELAY, &mut lost);
        assert_eq!(numbers(&lost), [0, 3]);
        assert_eq!((log.packets_in_flight(), log.bytes_in_flight()), (5, 5000));
        log.forget(1000, DELAY, &mut lost);
        assert_eq!((log.first, lost.len()), (4, 2));
    }

    #[test]
    fn late_packets_make_it_patient() {
        let mut log = log(30);
        let (mut acked, mut lost) = (Vec::new(), Vec::new());
        log.acknowledge(40, &[(10, 10)], &mut acked);
        log.detect_losses(40, DELAY, &mut lost);
        assert_eq!(lost.len(), 8);
        acked.clear();
        log.acknowledge(45, &[(0, 10)], &mut acked);
        assert_eq!(acked.iter().filter(|p| p.late).count(), 8);
        // Ten packets may overtake now.
        lost.clear();
        log.acknowledge(50, &[(20, 20)], &mut acked);
        log.detect_losses(50, DELAY, &mut lost);
        assert_eq!(lost.len(), 0);
        log.detect_losses(50 + REORDERING_MEMORY, DELAY, &mut lost);
        assert_eq!(lost.len(), 9);
    }

    #[test]
    fn the_old_path_says_nothing_about_the_new_one() {
        let mut log = log(5);
        log.begin_path();
        assert_eq!(log.bytes_in_flight(), 0);
        log.record(5, 1000, Carried::Frames, true);
        let (mut acked, mut lost) = (Vec::new(), Vec::new());
        log.acknowledge(9, &[(4, 5)], &mut acked);
        assert_eq!(
            acked.iter().map(Settled::counts).collect::<Vec<_>>(),
            [false, true]
        );
        log.detect_losses(9, DELAY, &mut lost);
        assert_eq!(numbers(&lost), [0, 1, 2]);
        assert!(lost.iter().all(|packet| !packet.counts()));
        assert_eq!((log.packets_in_flight(), log.bytes_in_flight()), (1, 0));
    }

    #[test]
    fn a_full_log_gives_up_the_oldest() {
        let mut log = log(PACKETS_MAX as u64 + 3);
        let mut lost = Vec::new();
        log.forget(0, DELAY, &mut lost);
        assert_eq!(numbers(&lost), [0, 1, 2]);
        assert_eq!(log.packets_in_flight(), PACKETS_MAX as u64);
    }
}
