//! Connection ids: what this end hands out, and what the peer has handed out
//! (`docs/protocol.md` §10.3).

use std::collections::{BTreeMap, VecDeque};

use crate::wire::{ConnectionId, Frame, ResetToken};
use crate::{CidSequence, Nanos, PathId, Time};

/// How many unused spare ids the peer is to hold.
const SPARES: usize = 2;
/// Spare ids that one end keeps at most, those about to be retired included.
const SPARES_MAX: usize = 8;

#[derive(Debug)]
struct Issued {
    sequence: CidSequence,
    cid: ConnectionId,
    /// When packets with it are no longer accepted; `None` while it may be in use.
    retire_at: Option<Time>,
}

/// Ids that packets to this end may carry.
#[derive(Debug)]
pub(crate) struct LocalIds {
    /// The path whose packets may carry these ids.
    path: PathId,
    /// The id with number 0, which is valid for as long as the path is open.
    first: ConnectionId,
    /// The id in the newest packet.
    used: (CidSequence, ConnectionId),
    /// Spare ids, rising.
    issued: VecDeque<Issued>,
    next_sequence: CidSequence,
}

impl LocalIds {
    /// The ids of a path; the peer has the first one.
    pub(crate) fn new(path: PathId, first: ConnectionId) -> Self {
        Self {
            path,
            first,
            used: (CidSequence::ZERO, first),
            issued: VecDeque::new(),
            next_sequence: CidSequence::new(1),
        }
    }

    /// How many fresh ids the peer is to get.
    pub(crate) fn wanted(&self) -> usize {
        let unused = self.issued.iter().filter(|id| id.sequence > self.used.0);
        SPARES
            .saturating_sub(unused.count())
            .min(SPARES_MAX - self.issued.len())
    }

    /// Hand out a fresh id: the frame that tells the peer, unless there are too many.
    pub(crate) fn add(&mut self, cid: ConnectionId) -> Option<Frame<'static>> {
        if self.issued.len() >= SPARES_MAX {
            return None;
        }
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.issued.push_back(Issued {
            sequence,
            cid,
            retire_at: None,
        });
        Some(Frame::NewConnectionId {
            path: self.path,
            sequence,
            cid,
        })
    }

    /// Whether packets may carry this id.
    pub(crate) fn has(&self, cid: ConnectionId) -> bool {
        self.first == cid || self.issued.iter().any(|id| id.cid == cid)
    }

    /// All ids that packets may carry.
    pub(crate) fn all(&self) -> impl Iterator<Item = (CidSequence, ConnectionId)> + '_ {
        let issued = self.issued.iter().map(|id| (id.sequence, id.cid));
        std::iter::once((CidSequence::ZERO, self.first)).chain(issued)
    }

    /// A packet with this id has opened.
    pub(crate) fn on_packet(
        &mut self,
        now: Time,
        cid: ConnectionId,
        newest: bool,
        pto: impl FnOnce() -> Nanos,
    ) {
        if cid == self.used.1 || !newest {
            return;
        }
        let Some(found) = self.issued.iter().find(|id| id.cid == cid) else {
            return;
        };
        if found.sequence < self.used.0 {
            return;
        }
        self.used = (found.sequence, cid);
        let retire_at = now + 3 * pto();
        for id in &mut self.issued {
            if id.sequence < self.used.0 {
                id.retire_at.get_or_insert(retire_at);
            }
        }
    }

    /// A spare id that is no longer valid, and its sequence number.
    pub(crate) fn poll_retired(&mut self, now: Time) -> Option<(CidSequence, ConnectionId)> {
        let due = self.issued.front()?.retire_at.is_some_and(|at| at <= now);
        due.then(|| self.issued.pop_front().map(|id| (id.sequence, id.cid)))?
    }

    /// When [`LocalIds::poll_retired`] has something to do.
    pub(crate) fn timeout(&self) -> Option<Time> {
        self.issued.front()?.retire_at
    }
}

/// Ids that the peer has given this end.
#[derive(Debug)]
pub(crate) struct PeerIds {
    current: (CidSequence, ConnectionId),
    spares: BTreeMap<CidSequence, ConnectionId>,
    /// Reset tokens of these ids, as far as the peer has given them.
    tokens: Vec<(CidSequence, ResetToken)>,
}

impl PeerIds {
    pub(crate) fn new(first: ConnectionId) -> Self {
        Self {
            current: (CidSequence::ZERO, first),
            spares: BTreeMap::new(),
            tokens: Vec::new(),
        }
    }

    /// What packets to the peer carry.
    pub(crate) fn current(&self) -> ConnectionId {
        self.current.1
    }

    /// The peer offers an id; repetitions and what is more than a bounded number are ignored.
    pub(crate) fn offer(&mut self, sequence: CidSequence, cid: ConnectionId) {
        if sequence > self.current.0 && self.spares.len() < SPARES_MAX {
            self.spares.entry(sequence).or_insert(cid);
        }
    }

    /// The peer gives the reset token of one of these ids; repetitions and other ids are ignored.
    pub(crate) fn tell(&mut self, sequence: CidSequence, token: ResetToken) {
        let is_known = sequence == self.current.0 || self.spares.contains_key(&sequence);
        let is_told = self.tokens.iter().any(|(told, _)| *told == sequence);
        if is_known && !is_told {
            self.tokens.push((sequence, token));
        }
    }

    /// The reset token of the id that packets carry now.
    pub(crate) fn token(&self) -> Option<&ResetToken> {
        let mut tokens = self.tokens.iter();
        let token = tokens.find(|(told, _)| *told == self.current.0);
        token.map(|(_, token)| token)
    }

    /// Take the next spare id, if there is one.
    pub(crate) fn change(&mut self) {
        if let Some(next) = self.spares.pop_first() {
            self.current = next;
            // Tokens of ids that were used before are dropped: whoever has seen such an id may be
            // able to get its token (RFC 9000 §10.3.1).
            self.tokens.retain(|(told, _)| *told >= self.current.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::time;

    fn cid(n: u8) -> ConnectionId {
        ConnectionId::new([n; 8]).expect("not zero")
    }

    #[test]
    fn a_used_id_retires_the_ones_before_and_is_replaced() {
        let mut ids = LocalIds::new(PathId::FIRST, cid(1));
        ids.add(cid(2));
        ids.add(cid(3));
        ids.on_packet(time(0), cid(2), false, || 10);
        assert_eq!(ids.wanted(), 0);
        ids.on_packet(time(0), cid(2), true, || 10);
        assert_eq!((ids.wanted(), ids.timeout()), (1, None));
        ids.add(cid(4));
        ids.on_packet(time(5), cid(4), true, || 10);
        assert_eq!(ids.timeout(), Some(time(35)));
        assert_eq!(ids.poll_retired(time(34)), None);
        // An older id in a newer packet changes nothing.
        ids.on_packet(time(20), cid(3), true, || 10);
        assert_eq!(
            ids.poll_retired(time(35)),
            Some((CidSequence::new(1), cid(2)))
        );
        assert_eq!(
            ids.poll_retired(time(35)),
            Some((CidSequence::new(2), cid(3)))
        );
        assert_eq!(ids.poll_retired(time(35)), None);
    }

    /// Packets that carry it may still be on their way, and whoever routes by ids is told when the path ends.
    #[test]
    fn the_first_id_of_a_path_is_not_retired_before_the_path() {
        let mut ids = LocalIds::new(PathId::new(3), cid(1));
        ids.add(cid(2));
        ids.add(cid(3));
        ids.on_packet(time(0), cid(3), true, || 10);
        while ids.poll_retired(time(30)).is_some() {}
        assert!(ids.has(cid(1)) && !ids.has(cid(2)) && ids.has(cid(3)));
        let all: Vec<_> = ids.all().collect();
        let sequences = [0, 2].map(CidSequence::new);
        assert_eq!(all, [(sequences[0], cid(1)), (sequences[1], cid(3))]);
    }

    #[test]
    fn a_peer_in_a_hurry_gets_no_more_than_eight() {
        let mut ids = LocalIds::new(PathId::FIRST, cid(1));
        let mut next = 2;
        for _ in 0..100 {
            while ids.wanted() > 0 {
                ids.add(cid(next));
                next += 1;
            }
            ids.on_packet(time(0), cid(next - 1), true, || 10);
        }
        assert!(ids.issued.len() <= SPARES_MAX && next < 12);
        while ids.poll_retired(time(30)).is_some() {}
        assert_eq!((ids.issued.len(), ids.wanted()), (1, 2));
    }

    #[test]
    fn offers_are_taken_in_order_and_bounded() {
        let mut ids = PeerIds::new(cid(1));
        ids.change();
        assert_eq!(ids.current(), cid(1));
        for n in (2..100).rev() {
            ids.offer(CidSequence::new(u64::from(n)), cid(n));
        }
        assert_eq!(ids.spares.len(), SPARES_MAX);
        ids.change();
        assert_eq!(ids.current(), cid(92));
        ids.offer(CidSequence::new(92), cid(9));
        ids.offer(CidSequence::new(3), cid(9));
        assert_eq!(ids.spares.len(), SPARES_MAX - 1);
    }

    #[test]
    fn what_is_shown_of_an_id_counts_while_that_is_used() {
        let token = |n| ResetToken::new([n; ResetToken::LEN]);
        let sequence = |n| CidSequence::new(u64::from(n));
        let mut ids = PeerIds::new(cid(1));
        assert_eq!(ids.token(), None);
        ids.tell(sequence(0), token(10));
        ids.tell(sequence(0), token(20));
        assert_eq!(ids.token(), Some(&token(10)), "the first is meant");
        // Tokens of ids that the peer has not issued are not kept.
        (1..100).for_each(|n| ids.tell(sequence(n), token(30)));
        assert_eq!(ids.tokens.len(), 1);
        for n in [1, 2] {
            ids.offer(sequence(n), cid(1 + n));
            ids.tell(sequence(n), token(10 + n));
        }
        ids.change();
        assert_eq!(ids.token(), Some(&token(11)));
        assert_eq!(ids.tokens.len(), 2, "that of the id before is gone");
        ids.offer(sequence(3), cid(4));
        ids.change();
        ids.change();
        assert_eq!((ids.current(), ids.token()), (cid(4), None));
        assert!(ids.tokens.is_empty());
    }
}
