//! Where the peer is, and proof that it is there (`docs/protocol.md` §10.2).

use crate::types::Tuple;
use crate::wire::OVERHEAD;
use crate::{Nanos, PacketNumber, Time};

use super::stock::Stock;

/// Candidates kept; the oldest one makes room.
const CANDIDATES_MAX: usize = 4;
/// Waits after the copies of a challenge, in quarters of the probe timeout. After the last one the
/// candidate is forgotten.
const WAITS: [u64; 8] = [1, 1, 1, 2, 2, 4, 8, 16];
const COPIES: u8 = WAITS.len() as u8;
/// Where a challenge is repeated until it is answered, the wait doubles with every copy after those
/// of `WAITS`, up to this time, nanoseconds.
const AWAITED_WAIT_MAX: Nanos = 1_000_000_000;
const DOUBLINGS_MAX: usize = 16;
/// A home (see [`Validation`]) that does not answer for so many probe timeouts counts as gone.
const HOME_WAIT: Nanos = 3;
/// After the home has answered although packets came from elsewhere, other addresses become no
/// candidates for so many probe timeouts.
const TRUST: Nanos = 8;
/// Bytes sent to a candidate per byte received from it.
const AMPLIFICATION: u64 = 3;
/// Smallest packet with a challenge or its answer.
const PACKET_MIN: usize = OVERHEAD + 9;

/// Addresses that the peer may have moved to: a packet with the highest number so far came from
/// there. They are not validated yet.
#[derive(Debug)]
struct Candidate {
    tuple: Tuple,
    /// Number of the packet that made it a candidate.
    first_pn: PacketNumber,
    challenge: [u8; 8],
    received: u64,
    sent: u64,
    copies: u8,
    next_copy: Time,
    first_copy: Time,
    /// This end has chosen these addresses: the limit on amplification does not apply.
    is_chosen: bool,
    /// It is challenged until it answers: the round trip of a new path is not known.
    is_awaited: bool,
}

impl Candidate {
    fn new(tuple: Tuple, pn: PacketNumber, challenge: [u8; 8], len: usize, due: Time) -> Self {
        Self {
            tuple,
            first_pn: pn,
            challenge,
            received: len as u64,
            sent: 0,
            copies: 0,
            next_copy: due,
            first_copy: due,
            is_chosen: false,
            is_awaited: false,
        }
    }

    fn budget(&self) -> u64 {
        if self.is_chosen {
            return u64::MAX;
        }
        (AMPLIFICATION * self.received).saturating_sub(self.sent)
    }

    fn has_copies(&self) -> bool {
        self.is_awaited || self.copies < COPIES
    }

    fn may_send(&self) -> bool {
        self.budget() >= PACKET_MIN as u64
    }
}

/// A challenge of the peer that wants an answer.
#[derive(Debug)]
struct Challenge {
    tuple: Tuple,
    challenge: [u8; 8],
    datagram_len: usize,
}

/// Addresses at which the peer has answered a challenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validated {
    pub(crate) tuple: Tuple,
    /// Time from the first challenge to its answer.
    pub(crate) round_trip: Nanos,
}

/// A PATH_CHALLENGE or PATH_RESPONSE to be sent, to addresses of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathPacket {
    pub(crate) to: Tuple,
    pub(crate) data: [u8; 8],
    /// UDP payload, bytes.
    pub(crate) len: usize,
}

/// The addresses that may replace those in use.
///
/// Who copies packets and has the copies overtake them looks like a peer that has moved: the copies open, the originals
/// are replays (RFC 9000 §9.3.3). But a peer that has moved sends nothing from where it was. So originals that still come from
/// there make that place the *home*: it is challenged, and stays, or becomes again, where the peer is if the peer knows the challenge,
/// whichever way the answer comes. Replays prove nothing, as anybody can send them from any address; that is why the home must answer too.
#[derive(Debug, Default)]
pub(crate) struct Validation {
    /// Candidates for the peer's address, oldest first.
    candidates: Vec<Candidate>,
    /// Where originals come from: the place in use, or the one before.
    home: Option<Candidate>,
    /// When the home counts as gone.
    home_until: Time,
    /// A candidate that has answered before the home has: the peer is there if the home does not
    /// answer.
    proven: Option<(Validated, PacketNumber)>,
    /// The place before the present one, and the number of the packet that made the present one a candidate.
    before: Option<(Tuple, PacketNumber)>,
    /// Until then no addresses become candidates, as the peer has just proved to be at home.
    trusted_until: Time,
    /// Until then no further candidate gets its first challenge.
    quiet_until: Time,
    unanswered: Option<Challenge>,
}

impl Validation {
    /// A packet has opened that came from where the peer is, with a number above all others: whoever sent from
    /// elsewhere was not the peer, or has come back.
    pub(crate) fn on_packet_from_peer(&mut self, current: &Tuple) {
        self.candidates.clear();
        self.proven = None;
        // If it is another place, that is where the peer may be although packets come from here.
        self.home.take_if(|home| home.tuple.is_same(current));
    }

    fn clear(&mut self) {
        self.candidates.clear();
        self.home = None;
        self.proven = None;
    }

    /// A packet from elsewhere has opened. `newest`: its number is above all others. `random` is what challenges are made
    /// of; without it nobody is challenged.
    pub(crate) fn on_packet(
        &mut self,
        now: Time,
        (tuple, pn): (Tuple, PacketNumber),
        len: usize,
        newest: bool,
        random: &mut Stock,
    ) {
        let known = self.candidates.iter_mut().find(|c| c.tuple == tuple);
        if let Some(candidate) = known {
            candidate.received += len as u64;
            return;
        }
        if !newest || now < self.trusted_until {
            return;
        }
        let Some(challenge) = random.take() else {
            return;
        };
        if self.candidates.len() == CANDIDATES_MAX {
            self.candidates.remove(0);
        }
        let due = now.max(self.quiet_until);
        let candidate = Candidate::new(tuple, pn, challenge, len, due);
        self.candidates.push(candidate);
    }

    /// The peer has opened a path, between the addresses of one of the candidates: these are
    /// challenged until one answers.
    pub(crate) fn await_answers(&mut self) {
        for candidate in &mut self.candidates {
            candidate.is_awaited = true;
        }
    }

    /// This end opens a path between these addresses.
    pub(crate) fn choose(&mut self, now: Time, tuple: Tuple, challenge: [u8; 8]) {
        self.candidates.push(Candidate {
            is_chosen: true,
            is_awaited: true,
            ..Candidate::new(tuple, PacketNumber::ZERO, challenge, 0, now)
        });
    }

    /// A packet that had opened before has come again, from `tuple`; `current` is where the peer is.
    pub(crate) fn on_replay(
        &mut self,
        now: Time,
        (tuple, pn): (Tuple, PacketNumber),
        len: usize,
        (current, pto): (&Tuple, Nanos),
        random: &mut Stock,
    ) {
        if let Some(home) = &mut self.home {
            if home.tuple.is_same(&tuple) {
                home.received += len as u64;
            }
            return;
        }
        let is_home = if tuple.is_same(current) {
            self.candidates.iter().any(|c| pn >= c.first_pn)
        } else {
            let mut before = self.before.iter();
            before.any(|(place, since)| place.is_same(&tuple) && pn >= *since)
        };
        if !is_home || now < self.trusted_until {
            return;
        }
        if let Some(challenge) = random.take() {
            self.home = Some(Candidate::new(tuple, pn, challenge, len, now));
            self.home_until = now + HOME_WAIT * pto;
        }
    }

    /// The peer challenges this end. Only its latest challenge is answered.
    pub(crate) fn on_challenge(&mut self, tuple: Tuple, challenge: [u8; 8], datagram_len: usize) {
        self.unanswered = Some(Challenge {
            tuple,
            challenge,
            datagram_len,
        });
    }

    /// An answer to a challenge came from `tuple`; `current` is where the peer was so far. Returns
    /// where it is instead, if it has moved.
    pub(crate) fn on_response(
        &mut self,
        now: Time,
        tuple: Tuple,
        answer: [u8; 8],
        (current, pto): (Tuple, Nanos),
    ) -> Option<Validated> {
        let answers = |c: &&Candidate| c.challenge == answer && c.copies > 0;
        let validated = |c: &Candidate| Validated {
            tuple: c.tuple,
            round_trip: now.saturating_sub(c.first_copy),
        };
        if let Some(home) = self.home.as_ref().filter(answers) {
            let validated = validated(home);
            self.clear();
            self.before = None;
            self.trusted_until = now + TRUST * pto;
            return Some(validated).filter(|v| !v.tuple.is_same(&current));
        }
        let mut candidates = self.candidates.iter();
        let found = candidates.find(|c| c.tuple == tuple && answers(c))?;
        self.proven = Some((validated(found), found.first_pn));
        self.poll_proven(now, current)
    }

    /// The new addresses of the peer, if a candidate has answered and the home has not done so in
    /// its time.
    pub(crate) fn poll_proven(&mut self, now: Time, current: Tuple) -> Option<Validated> {
        self.home.take_if(|_| self.home_until <= now);
        if self.home.is_some() {
            return None;
        }
        let (validated, since) = self.proven.take()?;
        self.clear();
        self.before = Some((current, since));
        Some(validated)
    }

    /// The answer to a challenge. It is as long as the challenge, so that the peer learns what the
    /// way back carries, and nobody can have more sent to a victim than he sends himself.
    pub(crate) fn poll_response(&mut self, len_max: usize) -> Option<PathPacket> {
        let asked = self.unanswered.take()?;
        let len = asked.datagram_len.clamp(PACKET_MIN, len_max);
        let mut places = self.candidates.iter_mut().chain(&mut self.home);
        if let Some(place) = places.find(|c| c.tuple == asked.tuple) {
            place.sent += len as u64;
        }
        Some(PathPacket {
            to: asked.tuple,
            data: asked.challenge,
            len,
        })
    }

    /// The next copy of a challenge, if one is due.
    pub(crate) fn poll_challenge(
        &mut self,
        now: Time,
        pto: Nanos,
        len_max: usize,
    ) -> Option<PathPacket> {
        self.candidates
            .retain(|c| c.has_copies() || now < c.next_copy);
        let places = self.home.iter_mut().chain(&mut self.candidates);
        let candidate =
            { places }.find(|c| c.has_copies() && c.next_copy <= now && c.may_send())?;
        let len = if candidate.budget() >= len_max as u64 {
            len_max
        } else {
            PACKET_MIN
        };
        if candidate.copies == 0 {
            candidate.first_copy = now;
            self.quiet_until = now + pto / 4;
        }
        let last = WAITS.len() - 1;
        let copies = usize::from(candidate.copies);
        // The probe timeout of a new path is only a guess, so that waits go on doubling.
        let doublings = copies.saturating_sub(last).min(DOUBLINGS_MAX);
        let wait = (pto / 4 * WAITS[last.min(copies)]).max(1);
        candidate.next_copy = now + (wait << doublings).min(wait.max(AWAITED_WAIT_MAX));
        candidate.copies = candidate.copies.saturating_add(1);
        candidate.sent += len as u64;
        Some(PathPacket {
            to: candidate.tuple,
            data: candidate.challenge,
            len,
        })
    }

    /// When [`Validation::poll_challenge`] has something to do.
    pub(crate) fn timeout(&self) -> Option<Time> {
        // For a candidate this includes the end of the wait after its last copy, when it is
        // forgotten. The home is forgotten at `home_until`.
        let candidates = self.candidates.iter();
        let candidates = candidates.filter(|c| !c.has_copies() || c.may_send());
        let home = self.home.iter();
        let home = home.filter(|c| c.copies < COPIES && c.may_send());
        let copies = candidates.chain(home).map(|c| c.next_copy);
        let gone = self.home.iter().map(|_| self.home_until);
        copies.chain(gone).min()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use super::*;
    use crate::numbers::pn;
    use crate::time::time;

    const PTO: Nanos = 40_000_000;
    const LEN: usize = 1200;

    fn tuple(host: u8, port: u16) -> Tuple {
        Tuple {
            remote: ([10, 0, 0, host], port).into(),
            local_ip: None,
        }
    }

    /// Where the peer is.
    const HERE: (Tuple, Nanos) = (
        Tuple {
            remote: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 1),
            local_ip: None,
        },
        PTO,
    );

    fn stock() -> Stock {
        let mut stock = Stock::default();
        for n in 0..9 {
            stock.add([n; 8]);
        }
        assert_eq!(stock.wanted(), 0);
        stock
    }

    #[test]
    fn only_the_newest_packet_makes_a_candidate() {
        let mut validation = Validation::default();
        validation.on_packet(time(0), (tuple(2, 1), pn(5)), 1500, false, &mut stock());
        assert_eq!(validation.poll_challenge(time(0), PTO, LEN), None);
        validation.on_packet(time(0), (tuple(2, 1), pn(5)), 1500, true, &mut stock());
        let packet = validation
            .poll_challenge(time(0), PTO, LEN)
            .expect("challenged");
        assert_eq!((packet.to, packet.len), (tuple(2, 1), LEN));
    }

    #[test]
    fn a_challenge_is_answered_from_where_it_went() {
        let mut validation = Validation::default();
        validation.on_packet(time(0), (tuple(2, 1), pn(5)), 1500, true, &mut stock());
        let packet = validation
            .poll_challenge(time(5), PTO, LEN)
            .expect("challenged");
        assert_eq!(
            validation.on_response(time(9), tuple(1, 1), packet.data, HERE),
            None
        );
        assert_eq!(
            validation.on_response(time(9), tuple(2, 1), [0xff; 8], HERE),
            None
        );
        let moved = Validated {
            tuple: tuple(2, 1),
            round_trip: 4,
        };
        assert_eq!(
            validation.on_response(time(9), tuple(2, 1), packet.data, HERE),
            Some(moved)
        );
        assert_eq!(
            validation.on_response(time(10), tuple(2, 1), packet.data, HERE),
            None
        );
    }

    #[test]
    fn a_newer_packet_from_the_old_place_ends_it() {
        let mut validation = Validation::default();
        validation.on_packet(time(0), (tuple(2, 1), pn(5)), 1500, true, &mut stock());
        let packet = validation
            .poll_challenge(time(0), PTO, LEN)
            .expect("challenged");
        validation.on_packet_from_peer(&tuple(1, 1));
        assert_eq!(
            validation.on_response(time(2), tuple(2, 1), packet.data, HERE),
            None
        );
        assert_eq!(validation.timeout(), None);
    }

    #[test]
    fn a_silent_place_gets_at_most_three_times_its_bytes_and_eight_copies() {
        for len in [49, 200, 1500, 100_000] {
            let mut validation = Validation::default();
            validation.on_packet(time(0), (tuple(2, 1), pn(5)), len, true, &mut stock());
            validation.on_challenge(tuple(2, 1), [7; 8], len);
            let answer = validation.poll_response(LEN).expect("answered");
            assert!(answer.len <= len);
            let (mut sent, mut copies, mut now) = (answer.len, 0, Time::ZERO);
            while let Some(at) = validation.timeout() {
                now = at.max(now);
                assert!(now < time(20 * PTO));
                if let Some(packet) = validation.poll_challenge(now, PTO, LEN) {
                    sent += packet.len;
                    copies += 1;
                }
            }
            assert!(
                sent <= 3 * len && copies <= 8,
                "{sent} for {len}, {copies} copies"
            );
        }
    }

    /// A candidate that looks like the peer while originals still come from where the peer is, challenged as that place is.
    fn doubted() -> (Validation, PathPacket, PathPacket) {
        let mut validation = Validation::default();
        let stock = &mut stock();
        validation.on_packet(time(0), (tuple(2, 1), pn(5)), 1500, true, stock);
        let candidate = validation
            .poll_challenge(time(0), PTO, LEN)
            .expect("challenged");
        validation.on_replay(time(1), (HERE.0, pn(4)), 1500, (&HERE.0, PTO), stock);
        assert!(
            validation.home.is_none(),
            "a copy of what came before it says nothing"
        );
        validation.on_replay(time(1), (HERE.0, pn(5)), 1500, (&HERE.0, PTO), stock);
        let home = validation
            .poll_challenge(time(1), PTO, LEN)
            .expect("challenged");
        assert_eq!((candidate.to, home.to), (tuple(2, 1), HERE.0));
        (validation, candidate, home)
    }

    #[test]
    fn a_home_that_answers_stays_whoever_passes_its_answer_on() {
        let (mut validation, candidate, home) = doubted();
        let mut respond = |now, data| validation.on_response(time(now), tuple(2, 1), data, HERE);
        assert_eq!(respond(2, candidate.data), None);
        assert_eq!(respond(3, home.data), None);
        assert_eq!(respond(4, candidate.data), None);
        assert_eq!(validation.poll_proven(time(9 * PTO), HERE.0), None);
        // For a while no other address is challenged.
        for (now, is_challenged) in [(time(8 * PTO), false), (time(9 * PTO), true)] {
            validation.on_packet(now, (tuple(2, 1), pn(9)), 1500, true, &mut stock());
            let challenge = validation.poll_challenge(now, PTO, LEN);
            assert_eq!(challenge.is_some(), is_challenged);
        }
    }

    /// Anybody can send copies from where the peer was. That only delays what is so anyway.
    #[test]
    fn a_home_that_does_not_answer_is_left() {
        let (mut validation, candidate, _) = doubted();
        let response = validation.on_response(time(2), tuple(2, 1), candidate.data, HERE);
        assert_eq!(response, None);
        let until = time(1 + HOME_WAIT * PTO);
        let mut challenges = 0;
        while let Some(at) = validation.timeout().filter(|at| *at < until) {
            challenges += u8::from(validation.poll_challenge(at, PTO, LEN).is_some());
        }
        assert!((5..=16).contains(&challenges), "{challenges}");
        assert_eq!(validation.poll_proven(until.earlier_by(1), HERE.0), None);
        let moved = validation.poll_proven(until, HERE.0).expect("moved");
        assert_eq!((moved.tuple, moved.round_trip), (tuple(2, 1), 2));
        assert_eq!(validation.timeout(), None);
    }

    /// The probe timeout has become so short since that all copies have gone before that.
    #[test]
    fn a_home_that_was_asked_for_the_last_time_is_waited_for() {
        let (mut validation, stock) = (Validation::default(), &mut stock());
        validation.on_packet(time(0), (tuple(9, 9), pn(5)), 100, true, stock);
        validation.on_replay(time(1), (HERE.0, pn(5)), 15_000, (&HERE.0, PTO), stock);
        let mut now = time(1);
        let mut asked = 0;
        while validation.home.is_some() {
            while let Some(packet) = validation.poll_challenge(now, PTO / 100, LEN) {
                asked += u32::from(packet.to == HERE.0);
            }
            let next = validation.timeout().expect("the end of the home");
            assert!(next > now, "called at {next:?} again");
            now = next;
            validation.poll_proven(now, HERE.0);
        }
        assert_eq!(asked, u32::from(COPIES));
        assert!(now >= time(1) + HOME_WAIT * PTO);
    }

    #[test]
    fn the_place_before_is_home_again_if_originals_come_from_there() {
        let (mut validation, stock) = (Validation::default(), &mut stock());
        validation.on_packet(time(0), (tuple(2, 1), pn(5)), 1500, true, stock);
        let packet = validation
            .poll_challenge(time(0), PTO, LEN)
            .expect("challenged");
        let moved = validation.on_response(time(2), tuple(2, 1), packet.data, HERE);
        let now_at = (moved.expect("moved").tuple, PTO);
        for (place, number) in [(tuple(3, 1), 6), (HERE.0, 4), (now_at.0, 6)] {
            validation.on_replay(time(3), (place, pn(number)), 1500, (&now_at.0, PTO), stock);
            assert_eq!(validation.poll_challenge(time(3), PTO, LEN), None);
        }
        validation.on_replay(time(4), (HERE.0, pn(6)), 1500, (&now_at.0, PTO), stock);
        let packet = validation
            .poll_challenge(time(4), PTO, LEN)
            .expect("challenged");
        assert_eq!(packet.to, HERE.0);
        // What comes by the relay does not end that.
        validation.on_packet_from_peer(&now_at.0);
        let back = validation.on_response(time(5), tuple(2, 1), packet.data, now_at);
        assert_eq!(back.map(|v| v.tuple), Some(HERE.0));
    }

    #[test]
    fn candidates_are_bounded() {
        let (mut validation, mut stock) = (Validation::default(), stock());
        for n in 2..200 {
            validation.on_packet(time(0), (tuple(n, 1), pn(5)), 1500, true, &mut stock);
            stock.add([n; 8]);
        }
        assert_eq!(validation.candidates.len(), CANDIDATES_MAX);
        assert!(validation.candidates.iter().all(|c| c.tuple != tuple(2, 1)));
    }
}
