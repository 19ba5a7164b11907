//! The ECN codepoint that packets leave with, and whether the path carries it and marks (RFC 9000, section 13.4.2, and RFC 9331).

use std::fmt;

use crate::{Nanos, PacketNumber, Time};

const NOT_ECT: u8 = 0b00;
const ECT_1: u8 = 0b01;
const ECT_0: u8 = 0b10;

/// If so many ECN-capable packets are acknowledged while the peer's counts of codepoints do not
/// grow, the path erases codepoints. Two SACKs in the wrong order explain fewer.
const UNMARKED_MAX: u64 = 64;
/// If more than so many packets in a row, over more than this time and so many round trips, all
/// carried CE, the path marks everything: a queue stops marking all once its flows slow down.
const ALL_MARKED: u64 = 256;
const ALL_MARKED_TIME: Nanos = 1_000_000_000;
const ALL_MARKED_ROUNDS: Nanos = 32;

/// How an end wants to use ECN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnMode {
    /// As [`Classic`](Self::Classic): only sending ECT(1) shows what a path makes of it, and marks
    /// do not tell whether they come from an L4S queue or from one that is shared with classic
    /// flows.
    #[default]
    Auto,
    /// ECT(1) and the scalable response (RFC 9331), where rate control has one and as long as the path is proven to carry it.
    L4s,
    /// ECT(0) (RFC 3168).
    Classic,
    /// Packets leave without ECN.
    Off,
}

impl EcnMode {
    /// All, by what they are called.
    pub const ALL: [EcnMode; 4] = [Self::Auto, Self::L4s, Self::Classic, Self::Off];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::L4s => "l4s",
            Self::Classic => "classic",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for EcnMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a path uses ECN at present, and if not as wanted, why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnUse {
    /// Packets leave as ECT(1), and nothing speaks against it.
    L4s,
    /// Packets leave as ECT(0).
    #[default]
    Classic,
    /// Packets leave without ECN, as wanted.
    Off,
    /// The path clears codepoints. Packets that were to leave as ECT(1) leave without; those with
    /// ECT(0) keep it, in case that the path changes.
    Bleached,
    /// ECT(1) does not arrive as ECT(1), or the other end does not count it: packets leave as
    /// ECT(0).
    Unproven,
    /// The path marks everything: packets leave without.
    Mangled,
    /// The path drops what is ECN-capable: packets leave without.
    Dropped,
}

impl EcnUse {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::L4s => "l4s",
            Self::Classic => "classic",
            Self::Off => "off",
            Self::Bleached => "bleached",
            Self::Unproven => "unproven",
            Self::Mangled => "mangled",
            Self::Dropped => "dropped",
        }
    }
}

/// The peer's counts of ECN codepoints in all packets of a packet number space, whatever their
/// addresses were.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EcnCounts {
    ect: u64,
    /// Packets with ECT(1) among those with ECT, as far as the peer has said.
    ect1: u64,
    ce: u64,
}

impl EcnCounts {
    /// The peer has received so many packets with ECT(1).
    pub(crate) fn on_ect1(&mut self, count: u64) {
        self.ect1 = self.ect1.max(count);
    }

    /// Packets that the peer has received with CE.
    pub(crate) fn marked(&self) -> u64 {
        self.ce
    }
}

/// What a SACK says of ECN, and the state at its arrival.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) now: Time,
    pub(crate) rtt: Nanos,
    /// Number of the next packet to leave.
    pub(crate) next: PacketNumber,
    pub(crate) ect: u64,
    pub(crate) ce: u64,
}

/// What shows whether the path carries ECT(1): the peer's counts when the first such packet was
/// acknowledged, and how many have been since.
#[derive(Debug)]
struct Proof {
    base: EcnCounts,
    acked: u64,
}

/// Use of ECN on packets to the present addresses of a path.
#[derive(Debug)]
pub(crate) struct Ecn {
    mode: EcnMode,
    /// Why ECN is not used as the mode says, if it is not.
    fault: Option<EcnUse>,
    /// Packets from this number on leave with the present codepoint.
    from: PacketNumber,
    seen: bool,
    unmarked: u64,
    proof: Option<Proof>,
    /// Packets acknowledged since the last one without CE, and since when.
    all_marked: Option<(u64, Time)>,
    /// As nothing was acknowledged for a while, packets from this number on leave without ECN: the
    /// path may drop those with it.
    without_from: Option<PacketNumber>,
    /// An ECT packet has been acknowledged since ECT was last tried.
    arrives: bool,
}

impl Ecn {
    /// For new addresses, to which packets from number `from` on leave.
    pub(crate) fn new(mode: EcnMode, from: PacketNumber) -> Self {
        Self {
            mode,
            fault: None,
            from,
            seen: false,
            unmarked: 0,
            proof: None,
            all_marked: None,
            without_from: None,
            arrives: false,
        }
    }

    /// From packet `from` on the codepoint may be another one: rate control has changed, or ECT is
    /// tried again.
    pub(crate) fn restart(&mut self, from: PacketNumber) {
        self.from = from;
        self.proof = None;
        self.all_marked = None;
    }

    /// The codepoint of the next packet; `can_scale`: rate control has the scalable response.
    pub(crate) fn codepoint(&self, can_scale: bool) -> u8 {
        match (self.fault, self.without_from, self.mode) {
            (Some(EcnUse::Unproven), None, _) => ECT_0,
            (Some(_), ..) | (_, Some(_), _) | (.., EcnMode::Off) => NOT_ECT,
            (None, None, EcnMode::L4s) if can_scale => ECT_1,
            (None, None, _) => ECT_0,
        }
    }

    /// Whether packets leave as ECT(1).
    pub(crate) fn is_scalable(&self, can_scale: bool) -> bool {
        self.codepoint(can_scale) == ECT_1
    }

    /// How ECN is used.
    pub(crate) fn in_use(&self, can_scale: bool) -> EcnUse {
        let is_l4s = self.mode == EcnMode::L4s && can_scale;
        match (self.fault, self.mode) {
            (Some(fault), _) => fault,
            (None, EcnMode::Off) => EcnUse::Off,
            (None, _) if is_l4s => EcnUse::L4s,
            (None, _) if self.unmarked > UNMARKED_MAX => EcnUse::Bleached,
            (None, _) => EcnUse::Classic,
        }
    }

    /// A SACK has arrived, with the peer's counts, that acknowledges `acked` for the first time.
    /// Returns how many more packets have arrived with CE.
    pub(crate) fn on_sack(
        &mut self,
        counts: &mut EcnCounts,
        told: Told,
        acked: impl Iterator<Item = PacketNumber>,
        can_scale: bool,
    ) -> u64 {
        let before = *counts;
        let marked = told.ce.saturating_sub(counts.ce);
        let grown = told.ect.saturating_sub(counts.ect);
        counts.ect = counts.ect.max(told.ect);
        counts.ce = counts.ce.max(told.ce);
        let capable = self.count(acked, told.next);
        if marked > 0 || grown > 0 {
            self.seen = true;
            self.unmarked = 0;
        } else {
            self.unmarked = self.unmarked.saturating_add(capable);
        }
        if capable > 0 && self.is_scalable(can_scale) {
            let proof = self.proof.get_or_insert(Proof {
                base: before,
                acked: 0,
            });
            proof.acked += capable;
            self.fault = proof.fault(counts);
        }
        if capable > 0 && self.codepoint(can_scale) != NOT_ECT {
            self.look_for_mangling(told, (marked, grown), capable);
        }
        marked
    }

    /// Counts the packets among `acked` that left with the present codepoint, if that is ECT.
    fn count(&mut self, acked: impl Iterator<Item = PacketNumber>, next: PacketNumber) -> u64 {
        let mut capable = 0;
        for packet in acked {
            match self.without_from {
                Some(without) if packet >= without => {
                    // A packet without ECT arrives after none with it did. If some with ECT arrived
                    // before, the silence had another reason.
                    self.without_from = None;
                    match self.arrives {
                        true => self.restart(next),
                        false => self.fault = Some(EcnUse::Dropped),
                    }
                    self.arrives = false;
                }
                _ if packet >= self.from && self.mode != EcnMode::Off => {
                    self.arrives = true;
                    capable += 1;
                }
                _ => {}
            }
        }
        capable
    }

    fn look_for_mangling(&mut self, told: Told, (marked, grown): (u64, u64), acked: u64) {
        if grown > 0 || marked == 0 {
            if grown > 0 {
                self.all_marked = None;
            }
            return;
        }
        let (packets, since) = self.all_marked.get_or_insert((0, told.now));
        *packets += acked;
        let least = ALL_MARKED_TIME.max(ALL_MARKED_ROUNDS * told.rtt);
        if *packets > ALL_MARKED && told.now.saturating_sub(*since) > least {
            self.fault = Some(EcnUse::Mangled);
        }
    }

    /// Nothing has been acknowledged for several probe timeouts: packets from `next` on leave
    /// without ECT until one is acknowledged.
    pub(crate) fn on_silence(&mut self, next: PacketNumber) {
        if self.fault.is_none() && self.mode != EcnMode::Off {
            self.without_from.get_or_insert(next);
        }
    }

    /// Whether codepoints arrive, so that a packet without CE shows that no queue has marked it.
    pub(crate) fn is_capable(&self) -> bool {
        self.seen && self.unmarked <= UNMARKED_MAX
    }
}

impl Proof {
    /// What the peer's counts say is wrong with the path, if anything.
    fn fault(&self, counts: &EcnCounts) -> Option<EcnUse> {
        let [ect, ect1, ce] = [
            counts.ect - self.base.ect,
            counts.ect1 - self.base.ect1,
            counts.ce - self.base.ce,
        ];
        if self.acked > ect + ce + UNMARKED_MAX {
            Some(EcnUse::Bleached)
        } else if ect > ect1 + UNMARKED_MAX {
            Some(EcnUse::Unproven)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::pn;
    use crate::time::time;

    const MS: Nanos = 1_000_000;

    /// A peer that counts, behind a path that changes codepoints.
    struct Peer {
        ecn: Ecn,
        counts: EcnCounts,
        next: u64,
        now: Nanos,
        told: [u64; 4],
        says_ect1: bool,
    }

    impl Peer {
        fn of(mode: EcnMode) -> Self {
            Self {
                ecn: Ecn::new(mode, pn(0)),
                counts: EcnCounts::default(),
                next: 0,
                now: 0,
                told: [0; 4],
                says_ect1: true,
            }
        }

        /// So many packets, one SACK each eight, 5 ms apart.
        fn pass(&mut self, packets: u64, path: impl Fn(u8) -> Option<u8>) -> &mut Self {
            for _ in 0..packets / 8 {
                let numbers = self.next..self.next + 8;
                self.next += 8;
                let arriving = path(self.ecn.codepoint(true));
                self.now += 5 * MS;
                let Some(arriving) = arriving else {
                    self.ecn.on_silence(pn(self.next));
                    continue;
                };
                self.told[usize::from(arriving)] += 8;
                if self.says_ect1 {
                    self.counts.on_ect1(self.told[1]);
                }
                let told = Told {
                    now: time(self.now),
                    rtt: 10 * MS,
                    next: pn(self.next),
                    ect: self.told[1] + self.told[2],
                    ce: self.told[3],
                };
                let acked = numbers.map(pn);
                self.ecn.on_sack(&mut self.counts, told, acked, true);
            }
            self
        }

        fn state(&self) -> (EcnUse, u8) {
            (self.ecn.in_use(true), self.ecn.codepoint(true))
        }
    }

    #[test]
    fn marks_are_trusted_while_they_arrive() {
        let mut counts = EcnCounts::default();
        let counts = &mut counts;
        let mut ecn = Ecn::new(EcnMode::Classic, pn(0));
        let mut number = 0;
        let mut sack = |ecn: &mut Ecn, ect, ce, acked| {
            let numbers = number..number + acked;
            number += acked;
            let told = Told {
                now: Time::ZERO,
                rtt: MS,
                next: pn(number),
                ect,
                ce,
            };
            ecn.on_sack(counts, told, numbers.map(pn), true)
        };
        assert!(!ecn.is_capable());
        assert_eq!(sack(&mut ecn, 10, 0, 10), 0);
        assert!(ecn.is_capable());
        assert_eq!(sack(&mut ecn, 15, 5, 10), 5);
        // An older SACK comes late.
        assert_eq!(sack(&mut ecn, 12, 2, 0), 0);
        assert!(ecn.is_capable());
        // A router begins to erase marks.
        assert_eq!(sack(&mut ecn, 15, 5, 100), 0);
        assert!(!ecn.is_capable());
        assert_eq!(ecn.in_use(true), EcnUse::Bleached);
        assert_eq!(sack(&mut ecn, 16, 5, 1), 0);
        assert!(ecn.is_capable());
        // At other addresses it begins anew, and the counts go on.
        let mut ecn = Ecn::new(EcnMode::Classic, pn(0));
        assert_eq!(sack(&mut ecn, 17, 5, 1), 0);
        assert!(ecn.is_capable());
    }

    #[test]
    fn a_path_that_carries_ect1_is_proven() {
        let mut peer = Peer::of(EcnMode::L4s);
        peer.pass(800, Some);
        // Every packet arrives with CE for a while, but not for long.
        peer.pass(400, |_| Some(3)).pass(800, Some);
        assert_eq!(peer.state(), (EcnUse::L4s, ECT_1));
        assert!(!Peer::of(EcnMode::L4s).ecn.is_scalable(false));
    }

    #[test]
    fn bleaching_and_marking_of_everything_end_the_use() {
        for seen in [0, 800] {
            let mut peer = Peer::of(EcnMode::L4s);
            peer.pass(seen, Some).pass(160, |_| Some(0));
            assert_eq!(peer.state(), (EcnUse::Bleached, NOT_ECT));
            let mut peer = Peer::of(EcnMode::L4s);
            peer.pass(seen, Some).pass(3200, |_| Some(3));
            assert_eq!(peer.state(), (EcnUse::Mangled, NOT_ECT));
            let mut peer = Peer::of(EcnMode::Classic);
            peer.pass(seen, Some).pass(400, |_| Some(3));
            assert_eq!(peer.state(), (EcnUse::Classic, ECT_0));
            peer.pass(3200, |_| Some(3));
            assert_eq!(peer.state(), (EcnUse::Mangled, NOT_ECT));
        }
    }

    #[test]
    fn ect1_that_becomes_ect0_or_is_not_counted_is_left() {
        let mut peer = Peer::of(EcnMode::L4s);
        peer.pass(800, Some)
            .pass(160, |ecn| Some(if ecn == ECT_1 { ECT_0 } else { ecn }));
        assert_eq!(peer.state(), (EcnUse::Unproven, ECT_0));
        let mut peer = Peer::of(EcnMode::L4s);
        peer.says_ect1 = false;
        peer.pass(160, Some);
        assert_eq!(peer.state(), (EcnUse::Unproven, ECT_0));
    }

    #[test]
    fn what_is_dropped_for_its_codepoint_leaves_without() {
        let firewall = |ecn| (ecn == NOT_ECT).then_some(ecn);
        for mode in [EcnMode::L4s, EcnMode::Auto] {
            let mut peer = Peer::of(mode);
            peer.pass(80, firewall);
            assert_eq!(peer.state(), (EcnUse::Dropped, NOT_ECT));
            // It comes later, behind an outage that is one for all.
            let before = Peer::of(mode).state();
            let mut peer = Peer::of(mode);
            peer.pass(80, Some).pass(16, |_| None).pass(80, Some);
            assert_eq!(peer.state(), before);
            peer.pass(80, firewall);
            assert_eq!(peer.state(), (EcnUse::Dropped, NOT_ECT));
        }
    }

    #[test]
    fn modes_choose_codepoints() {
        for (mode, state) in [
            (EcnMode::Auto, (EcnUse::Classic, ECT_0)),
            (EcnMode::L4s, (EcnUse::L4s, ECT_1)),
            (EcnMode::Classic, (EcnUse::Classic, ECT_0)),
            (EcnMode::Off, (EcnUse::Off, NOT_ECT)),
        ] {
            assert_eq!(Peer::of(mode).pass(800, Some).state(), state);
        }
    }
}
