//! Where the peer is, and proof that it is there (`docs/protocol.md` §10.2).

use crate::Nanos;
use crate::types::Tuple;
use crate::wire::OVERHEAD;

use super::stock::Stock;

/// Candidates kept; the oldest one makes room.
const CANDIDATES_MAX: usize = 4;
/// Waits after the copies of a challenge, in quarters of the probe timeout. After the last one the
/// candidate is forgotten.
const WAITS: [u64; 8] = [1, 1, 1, 2, 2, 4, 8, 16];
const COPIES: u8 = WAITS.len() as u8;
/// Bytes sent to a candidate per byte received from it.
const AMPLIFICATION: u64 = 3;
/// Smallest packet with a challenge or its answer.
const PACKET_MIN: usize = OVERHEAD + 9;

/// Addresses from which newer packets than all others came, not validated yet.
#[derive(Debug)]
struct Candidate {
    tuple: Tuple,
    challenge: [u8; 8],
    received: u64,
    sent: u64,
    copies: u8,
    next_copy: Nanos,
    first_copy: Nanos,
}

impl Candidate {
    fn budget(&self) -> u64 {
        (AMPLIFICATION * self.received).saturating_sub(self.sent)
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

/// The peer has proved that it is there.
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
#[derive(Debug, Default)]
pub(crate) struct Validation {
    /// Oldest first.
    candidates: Vec<Candidate>,
    /// No other candidate gets its first challenge before.
    quiet_until: Nanos,
    unanswered: Option<Challenge>,
}

impl Validation {
    /// A packet has opened that came from where the peer is, with a number above all others: whoever sent from
    /// elsewhere was not the peer, or has come back.
    pub(crate) fn on_packet_from_peer(&mut self) {
        self.candidates.clear();
    }

    /// A packet from elsewhere has opened. `newest`: its number is above all others. `random` is what challenges are made
    /// of; without it nobody is challenged.
    pub(crate) fn on_packet(
        &mut self,
        now: Nanos,
        tuple: Tuple,
        len: usize,
        newest: bool,
        random: &mut Stock,
    ) {
        let known = self.candidates.iter_mut().find(|c| c.tuple == tuple);
        if let Some(candidate) = known {
            candidate.received += len as u64;
            return;
        }
        if !newest {
            return;
        }
        let Some(challenge) = random.take() else {
            return;
        };
        if self.candidates.len() == CANDIDATES_MAX {
            self.candidates.remove(0);
        }
        self.candidates.push(Candidate {
            tuple,
            challenge,
            received: len as u64,
            sent: 0,
            copies: 0,
            next_copy: now.max(self.quiet_until),
            first_copy: now,
        });
    }

    /// The peer challenges this end; the last challenge wins.
    pub(crate) fn on_challenge(&mut self, tuple: Tuple, challenge: [u8; 8], datagram_len: usize) {
        self.unanswered = Some(Challenge {
            tuple,
            challenge,
            datagram_len,
        });
    }

    /// An answer came from `tuple`.
    pub(crate) fn on_response(
        &mut self,
        now: Nanos,
        tuple: Tuple,
        answer: [u8; 8],
    ) -> Option<Validated> {
        let found = self
            .candidates
            .iter()
            .find(|c| c.tuple == tuple && c.challenge == answer && c.copies > 0)?;
        let validated = Validated {
            tuple,
            round_trip: now.saturating_sub(found.first_copy),
        };
        self.candidates.clear();
        Some(validated)
    }

    /// The answer to a challenge. It is as long as the challenge, so that the peer learns what the
    /// way back carries, and nobody can have more sent to a victim than he sends himself.
    pub(crate) fn poll_response(&mut self, len_max: usize) -> Option<PathPacket> {
        let asked = self.unanswered.take()?;
        let len = asked.datagram_len.clamp(PACKET_MIN, len_max);
        let candidate = self.candidates.iter_mut();
        if let Some(candidate) = { candidate }.find(|c| c.tuple == asked.tuple) {
            candidate.sent += len as u64;
        }
        Some(PathPacket {
            to: asked.tuple,
            data: asked.challenge,
            len,
        })
    }

    /// A copy of a challenge that is due.
    pub(crate) fn poll_challenge(
        &mut self,
        now: Nanos,
        pto: Nanos,
        len_max: usize,
    ) -> Option<PathPacket> {
        self.candidates
            .retain(|c| c.copies < COPIES || now < c.next_copy);
        let candidate = self
            .candidates
            .iter_mut()
            .find(|c| c.copies < COPIES && c.next_copy <= now && c.may_send())?;
        let len = if candidate.budget() >= len_max as u64 {
            len_max
        } else {
            PACKET_MIN
        };
        if candidate.copies == 0 {
            candidate.first_copy = now;
            self.quiet_until = now + pto / 4;
        }
        let wait = WAITS.get(usize::from(candidate.copies)).copied();
        candidate.next_copy = now + (pto / 4 * wait.unwrap_or(1)).max(1);
        candidate.copies += 1;
        candidate.sent += len as u64;
        Some(PathPacket {
            to: candidate.tuple,
            data: candidate.challenge,
            len,
        })
    }

    /// When [`Validation::poll_challenge`] has something to do.
    pub(crate) fn timeout(&self) -> Option<Nanos> {
        self.candidates
            .iter()
            .filter(|c| c.copies == COPIES || c.may_send())
            .map(|c| c.next_copy)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTO: Nanos = 40_000_000;
    const LEN: usize = 1200;

    fn tuple(host: u8, port: u16) -> Tuple {
        Tuple {
            remote: ([10, 0, 0, host], port).into(),
            local_ip: None,
        }
    }

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
        validation.on_packet(0, tuple(2, 1), 1500, false, &mut stock());
        assert_eq!(validation.poll_challenge(0, PTO, LEN), None);
        validation.on_packet(0, tuple(2, 1), 1500, true, &mut stock());
        let packet = validation.poll_challenge(0, PTO, LEN).expect("challenged");
        assert_eq!((packet.to, packet.len), (tuple(2, 1), LEN));
    }

    #[test]
    fn a_challenge_is_answered_from_where_it_went() {
        let mut validation = Validation::default();
        validation.on_packet(0, tuple(2, 1), 1500, true, &mut stock());
        let packet = validation.poll_challenge(5, PTO, LEN).expect("challenged");
        assert_eq!(validation.on_response(9, tuple(1, 1), packet.data), None);
        assert_eq!(validation.on_response(9, tuple(2, 1), [0xff; 8]), None);
        let moved = Validated {
            tuple: tuple(2, 1),
            round_trip: 4,
        };
        assert_eq!(
            validation.on_response(9, tuple(2, 1), packet.data),
            Some(moved)
        );
        assert_eq!(validation.on_response(10, tuple(2, 1), packet.data), None);
    }

    #[test]
    fn a_newer_packet_from_the_old_place_ends_it() {
        let mut validation = Validation::default();
        validation.on_packet(0, tuple(2, 1), 1500, true, &mut stock());
        let packet = validation.poll_challenge(0, PTO, LEN).expect("challenged");
        validation.on_packet_from_peer();
        assert_eq!(validation.on_response(2, tuple(2, 1), packet.data), None);
        assert_eq!(validation.timeout(), None);
    }

    #[test]
    fn a_silent_place_gets_at_most_three_times_its_bytes_and_eight_copies() {
        for len in [49, 200, 1500, 100_000] {
            let mut validation = Validation::default();
            validation.on_packet(0, tuple(2, 1), len, true, &mut stock());
            validation.on_challenge(tuple(2, 1), [7; 8], len);
            let answer = validation.poll_response(LEN).expect("answered");
            assert!(answer.len <= len);
            let (mut sent, mut copies, mut now) = (answer.len, 0, 0);
            while let Some(at) = validation.timeout() {
                now = at.max(now);
                assert!(now < 20 * PTO);
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

    #[test]
    fn candidates_are_bounded() {
        let (mut validation, mut stock) = (Validation::default(), stock());
        for n in 2..200 {
            validation.on_packet(0, tuple(n, 1), 1500, true, &mut stock);
            stock.add([n; 8]);
        }
        assert_eq!(validation.candidates.len(), CANDIDATES_MAX);
        assert!(validation.candidates.iter().all(|c| c.tuple != tuple(2, 1)));
    }
}
