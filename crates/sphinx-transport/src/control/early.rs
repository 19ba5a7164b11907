//! What a session begins with before its handshake is over: what an earlier one has agreed on (`docs/protocol.md` §3.1).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use sphinx_driver::keys::{EarlySecret, SECRET_LEN};
use sphinx_proto::wire::ConnectionId;
use zeroize::Zeroizing;

use super::params::{MAX_PARAMS_LEN, Params, Service};
use crate::access::{AccessList, Peer};

/// How long a server keeps what it has agreed on, and a client.
pub(crate) const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
/// Of so many sessions, the latest: 128 bytes each.
const KEPT_MAX: usize = 4096;
/// Of a connection id.
const CID_LEN: usize = 8;

/// What every server that hands resumptions out grants whoever comes with one, before it has said what it grants (§3.1): bytes of its window, …
pub(crate) const PROMISED_WINDOW: u64 = 384 << 10;
/// … how many of them may be filled at once, …
pub(crate) const PROMISED_CREDIT: u64 = 64 << 10;
/// … and streams of each kind.
pub(crate) const PROMISED_STREAMS: u64 = 256;

/// What a client has from an earlier session, to begin one other with.
pub(crate) struct Resumption {
    /// What data packets of that session are to carry.
    pub(crate) cid: ConnectionId,
    /// What both ends have agreed on.
    pub(crate) secret: Zeroizing<[u8; SECRET_LEN]>,
    /// What the server said of itself then.
    pub(crate) server: Params,
}

impl fmt::Debug for Resumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resumption({:?}, ..)", self.cid)
    }
}

/// What a client puts into the token of its first QUIC packets.
pub(super) fn token(resumption: &Resumption, early: &EarlySecret, params: &Params) -> Vec<u8> {
    let sealed = early.seal_parameters(resumption.cid, &params.encode());
    [&resumption.cid.bytes()[..], &sealed].concat()
}

/// How a session begins of which a server knows everything with the first datagram.
#[derive(Debug)]
pub(crate) struct Beginning {
    /// Gives the keys until the handshake is over.
    pub(crate) secret: EarlySecret,
    /// What the client says of itself.
    pub(crate) peer: Params,
    /// Who it was that the server has agreed with.
    pub(crate) who: Peer,
}

struct Kept {
    secret: Zeroizing<[u8; SECRET_LEN]>,
    who: Peer,
    until: Instant,
}

/// What a server has agreed on with clients, each for one use.
#[derive(Default)]
pub(super) struct Resumptions {
    kept: HashMap<ConnectionId, Kept>,
    /// By age. Those that were used are still here.
    order: VecDeque<(Instant, ConnectionId)>,
}

impl Resumptions {
    /// Keeps one more; the oldest go.
    pub(super) fn keep(
        &mut self,
        now: Instant,
        cid: ConnectionId,
        secret: Zeroizing<[u8; SECRET_LEN]>,
        who: Peer,
    ) {
        let until = now + LIFETIME;
        while let Some((end, cid)) = self.order.front().copied() {
            if end > now && self.order.len() < KEPT_MAX {
                break;
            }
            self.order.pop_front();
            self.kept.remove(&cid);
        }
        self.order.push_back((until, cid));
        self.kept.insert(cid, Kept { secret, who, until });
    }

    /// Whether packets may come that carry this id.
    pub(super) fn expects(&self, now: Instant, cid: ConnectionId) -> bool {
        self.kept.get(&cid).is_some_and(|kept| kept.until > now)
    }

    /// A client begins with `greeting`, and this token: which resumption it is and how its session begins. It is of no use from then on, before anything else
    /// of the client's is looked at: so whoever sends the same again gets nowhere. A token that does not open, one of a client that may not come any
    /// more, and one for a service that the server does not have, change nothing.
    pub(super) fn take(
        &mut self,
        now: Instant,
        greeting: &[u8],
        token: &[u8],
        (list, serves): (&AccessList, impl Fn(Service) -> bool),
    ) -> Option<(ConnectionId, Beginning)> {
        if token.len() > CID_LEN + MAX_PARAMS_LEN + 16 {
            return None;
        }
        let (cid, sealed) = token.split_first_chunk::<CID_LEN>()?;
        let cid = ConnectionId::new(*cid)?;
        let kept = self.kept.get(&cid).filter(|kept| kept.until > now)?;
        let secret = EarlySecret::new(&kept.secret, greeting);
        let params = secret.open_parameters(cid, sealed)?;
        let kept = self.kept.remove(&cid)?;
        let peer = Params::decode(&params).ok()?;
        // Which of these is used depends on both ends.
        let is_plain = peer.paper.flatten().is_none() && peer.sc.flatten().is_none();
        let who = kept.who;
        let begins = is_plain && serves(peer.service) && list.admits(&who);
        begins.then_some((cid, Beginning { secret, peer, who }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{ClientKey, TicketSecret};

    fn cid(n: u32) -> ConnectionId {
        ConnectionId::new((u64::from(n + 1) << 32).to_be_bytes()).expect("not zero")
    }

    fn params() -> Params {
        let bytes = [3, 1, 7, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8];
        Params::decode(&bytes).expect("well formed")
    }

    fn list() -> (AccessList, Peer) {
        let (mut list, secret) = (AccessList::new(), TicketSecret::new([5; 16]));
        let id = secret.id();
        list.add_ticket(secret, true);
        (list, Peer::Ticket(id))
    }

    fn token_of(n: u32, greeting: &[u8], params: &Params) -> Vec<u8> {
        let resumption = Resumption {
            cid: cid(n),
            secret: Zeroizing::new([n as u8; SECRET_LEN]),
            server: *params,
        };
        let early = EarlySecret::new(&resumption.secret, greeting);
        token(&resumption, &early, params)
    }

    fn keep(store: &mut Resumptions, now: Instant, n: u32, who: Peer) {
        store.keep(now, cid(n), Zeroizing::new([n as u8; SECRET_LEN]), who);
    }

    /// At a server for measurements, and for what [`params`] are for.
    fn take(
        store: &mut Resumptions,
        now: Instant,
        greeting: &[u8],
        token: &[u8],
        list: &AccessList,
    ) -> Option<(ConnectionId, Beginning)> {
        let serves = |service| [Service::APPLICATION, Service::PERF].contains(&service);
        store.take(now, greeting, token, (list, serves))
    }

    #[test]
    fn each_is_good_once_and_for_who_has_it() {
        let (now, (list, who)) = (Instant::now(), list());
        let mut store = Resumptions::default();
        keep(&mut store, now, 1, who);
        let token = token_of(1, b"greeting", &params());
        // With another greeting, for another one, or damaged it opens nothing, and burns nothing.
        assert!(take(&mut store, now, b"other", &token, &list).is_none());
        let mut wrong = token.clone();
        wrong[0] ^= 1;
        assert!(take(&mut store, now, b"greeting", &wrong, &list).is_none());
        for cut in 0..token.len() {
            let cut = &token[..cut];
            assert!(take(&mut store, now, b"greeting", cut, &list).is_none());
        }
        assert!(store.expects(now, cid(1)));
        let (taken, beginning) = take(&mut store, now, b"greeting", &token, &list).expect("known");
        assert_eq!(
            (taken, beginning.peer, beginning.who),
            (cid(1), params(), who)
        );
        assert!(take(&mut store, now, b"greeting", &token, &list).is_none());
        assert!(!store.expects(now, cid(1)));
    }

    #[test]
    fn who_may_not_come_any_more_begins_nothing() {
        let now = Instant::now();
        let (key, secret) = (ClientKey::generate().public_key(), TicketSecret::generate());
        let id = secret.id();
        let begins = |who, list: &AccessList| {
            let mut store = Resumptions::default();
            keep(&mut store, now, 1, who);
            let token = token_of(1, b"greeting", &params());
            take(&mut store, now, b"greeting", &token, list).is_some()
        };
        let [by_ticket, by_key] = [Peer::Ticket(id), Peer::Key(key)];
        let both = Peer::Both(id, key);
        let mut list = AccessList::new();
        assert!(
            ![by_ticket, by_key, both]
                .iter()
                .any(|who| begins(*who, &list))
        );
        // A key alone is not what a ticket's client has shown.
        list.add_key(key);
        assert!(begins(by_key, &list) && !begins(by_ticket, &list) && !begins(both, &list));
        list.add_ticket(secret.clone(), true);
        assert!(begins(by_ticket, &list) && begins(both, &list));
        // Used up: what it has goes on, and nothing else begins.
        list.add_ticket(secret, false);
        assert!(begins(by_key, &list) && !begins(by_ticket, &list) && !begins(both, &list));
    }

    #[test]
    fn the_latest_are_kept_for_a_day() {
        let (begin, (_, who)) = (Instant::now(), list());
        let mut store = Resumptions::default();
        for n in 0..KEPT_MAX as u32 + 10 {
            keep(&mut store, begin, n, who);
        }
        assert!(store.kept.len() <= KEPT_MAX && store.order.len() <= KEPT_MAX);
        assert!(!store.expects(begin, cid(9)) && store.expects(begin, cid(10)));
        let end = begin + LIFETIME;
        assert!(!store.expects(end, cid(100)));
        keep(&mut store, end, 7, who);
        assert_eq!((store.kept.len(), store.order.len()), (1, 1));
    }

    #[test]
    fn what_a_server_does_not_have_does_not_begin_early() {
        let (now, (list, who)) = (Instant::now(), list());
        for (service, expected) in [(Service::PERF, true), (Service::FILES, false)] {
            let mut store = Resumptions::default();
            keep(&mut store, now, 1, who);
            let wants = Params {
                service,
                ..params()
            };
            let token = token_of(1, b"greeting", &wants);
            let taken = take(&mut store, now, b"greeting", &token, &list);
            assert_eq!(taken.is_some(), expected);
            assert!(!store.expects(now, cid(1)));
        }
    }

    #[test]
    fn a_mode_that_both_ends_choose_does_not_begin_early() {
        let (now, (list, who)) = (Instant::now(), list());
        let mut store = Resumptions::default();
        keep(&mut store, now, 1, who);
        let wants = Params {
            sc: Some(Some(sphinx_proto::Sc::Ecf)),
            service: Service::PERF,
            ..params()
        };
        let token = token_of(1, b"greeting", &wants);
        assert!(take(&mut store, now, b"greeting", &token, &list).is_none());
    }
}
