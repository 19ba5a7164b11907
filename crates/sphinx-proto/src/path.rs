//! Where the peer is, and proof that it is there (`docs/protocol.md` §10.2).

use crate::Nanos;
use crate::types::Tuple;
use crate::wire::OVERHEAD;

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
/// Random challenges kept in stock.
const STOCK: usize = CANDIDATES_MAX;

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
struct Question {
    tuple: Tuple,
    challenge: [u8; 8],
    datagram_len: usize,
}

/// The path has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Only the peer's port differs.
    pub(crate) same_hosts: bool,
    /// Time from the first challenge to its answer.
    pub(crate) round_trip: Nanos,
}

/// A packet to be sent to a place of its own: the challenge or answer, and the datagram's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Letter {
    pub(crate) to: Tuple,
    pub(crate) data: [u8; 8],
    pub(crate) len: usize,
}

/// The path in use and those that may replace it.
#[derive(Debug)]
pub(crate) struct Paths {
    current: Tuple,
    /// Oldest first.
    candidates: Vec<Candidate>,
    stock: Vec<[u8; 8]>,
    /// No other candidate gets its first challenge before.
    quiet_until: Nanos,
    question: Option<Question>,
}

impl Paths {
    pub(crate) fn new(current: Tuple) -> Self {
        Self {
            current,
            candidates: Vec::new(),
            stock: Vec::new(),
            quiet_until: 0,
            question: None,
        }
    }

    /// Where everything but challenges and their answers goes.
    pub(crate) fn current(&self) -> Tuple {
        self.current
    }

    /// Random challenges that are missing in the stock.
    pub(crate) fn challenges_wanted(&self) -> usize {
        STOCK - self.stock.len()
    }

    /// Eight bytes that nobody can guess.
    pub(crate) fn add_challenge(&mut self, challenge: [u8; 8]) {
        if self.stock.len() < STOCK {
            self.stock.push(challenge);
        }
    }

    /// A packet has opened. `newest`: its number is above all others.
    pub(crate) fn on_packet(&mut self, now: Nanos, tuple: Tuple, len: usize, newest: bool) {
        if self.current.is_same(&tuple) {
            if newest {
                // The peer is where it was; whoever sent from elsewhere was not the peer, or has
                // come back.
                self.candidates.clear();
                self.current.local_ip = tuple.local_ip.or(self.current.local_ip);
            }
            return;
        }
        let known = self.candidates.iter_mut().find(|c| c.tuple == tuple);
        if let Some(candidate) = known {
            candidate.received += len as u64;
            return;
        }
        if !newest {
            return;
        }
        let Some(challenge) = self.stock.pop() else {
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
        self.question = Some(Question {
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
    ) -> Option<Moved> {
        let found = self
            .candidates
            .iter()
            .find(|c| c.tuple == tuple && c.challenge == answer && c.copies > 0)?;
        let moved = Moved {
            same_hosts: found.tuple.same_hosts(&self.current),
            round_trip: now.saturating_sub(found.first_copy),
        };
        self.current = tuple;
        self.candidates.clear();
        Some(moved)
    }

    /// The answer to a challenge. It is as long as the challenge, so that the peer learns what the
    /// way back carries, and nobody can have more sent to a victim than he sends himself.
    pub(crate) fn poll_response(&mut self, len_max: usize) -> Option<Letter> {
        let question = self.question.take()?;
        let len = question.datagram_len.clamp(PACKET_MIN, len_max);
        let candidate = self.candidates.iter_mut();
        if let Some(candidate) = { candidate }.find(|c| c.tuple == question.tuple) {
            candidate.sent += len as u64;
        }
        Some(Letter {
            to: question.tuple,
            data: question.challenge,
            len,
        })
    }

    /// A copy of a challenge that is due.
    pub(crate) fn poll_challenge(
        &mut self,
        now: Nanos,
        pto: Nanos,
        len_max: usize,
    ) -> Option<Letter> {
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
        Some(Letter {
            to: candidate.tuple,
            data: candidate.challenge,
            len,
        })
    }

    /// When [`Paths::poll_challenge`] has something to do.
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

    fn paths() -> Paths {
        let mut paths = Paths::new(tuple(1, 1));
        for n in 0..9 {
            paths.add_challenge([n; 8]);
        }
        assert_eq!(paths.challenges_wanted(), 0);
        paths
    }

    #[test]
    fn only_the_newest_packet_makes_a_candidate() {
        let mut paths = paths();
        paths.on_packet(0, tuple(2, 1), 1500, false);
        assert_eq!(paths.poll_challenge(0, PTO, LEN), None);
        paths.on_packet(0, tuple(2, 1), 1500, true);
        let letter = paths.poll_challenge(0, PTO, LEN).expect("challenged");
        assert_eq!((letter.to, letter.len), (tuple(2, 1), LEN));
        assert_eq!(paths.current(), tuple(1, 1));
    }

    #[test]
    fn a_challenge_is_answered_from_where_it_went() {
        let mut paths = paths();
        paths.on_packet(0, tuple(2, 1), 1500, true);
        let letter = paths.poll_challenge(5, PTO, LEN).expect("challenged");
        assert_eq!(paths.on_response(9, tuple(1, 1), letter.data), None);
        assert_eq!(paths.on_response(9, tuple(2, 1), [0xff; 8]), None);
        let moved = Moved {
            same_hosts: false,
            round_trip: 4,
        };
        assert_eq!(paths.on_response(9, tuple(2, 1), letter.data), Some(moved));
        assert_eq!(paths.current(), tuple(2, 1));
        assert_eq!(paths.on_response(10, tuple(2, 1), letter.data), None);
    }

    #[test]
    fn a_new_port_is_the_same_path() {
        let mut paths = paths();
        paths.on_packet(0, tuple(1, 2), 1500, true);
        let letter = paths.poll_challenge(0, PTO, LEN).expect("challenged");
        let moved = paths.on_response(1, tuple(1, 2), letter.data);
        assert!(moved.is_some_and(|moved| moved.same_hosts));
    }

    #[test]
    fn a_newer_packet_from_the_old_place_ends_it() {
        let mut paths = paths();
        paths.on_packet(0, tuple(2, 1), 1500, true);
        let letter = paths.poll_challenge(0, PTO, LEN).expect("challenged");
        paths.on_packet(1, tuple(1, 1), 1500, true);
        assert_eq!(paths.on_response(2, tuple(2, 1), letter.data), None);
        assert_eq!(paths.timeout(), None);
    }

    #[test]
    fn a_silent_place_gets_at_most_three_times_its_bytes_and_eight_copies() {
        for len in [49, 200, 1500, 100_000] {
            let mut paths = paths();
            paths.on_packet(0, tuple(2, 1), len, true);
            paths.on_challenge(tuple(2, 1), [7; 8], len);
            let answer = paths.poll_response(LEN).expect("answered");
            assert!(answer.len <= len);
            let (mut sent, mut copies, mut now) = (answer.len, 0, 0);
            while let Some(at) = paths.timeout() {
                now = at.max(now);
                assert!(now < 20 * PTO);
                if let Some(letter) = paths.poll_challenge(now, PTO, LEN) {
                    sent += letter.len;
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
    fn candidates_and_stock_are_bounded() {
        let mut paths = paths();
        for n in 2..200 {
            paths.on_packet(0, tuple(n, 1), 1500, true);
            paths.add_challenge([n; 8]);
        }
        assert_eq!(paths.candidates.len(), CANDIDATES_MAX);
        assert!(paths.stock.len() <= STOCK);
        assert!(paths.candidates.iter().all(|c| c.tuple != tuple(2, 1)));
    }
}
