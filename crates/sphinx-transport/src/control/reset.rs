//! What a server shows of sessions that it knows nothing of any more (`docs/protocol.md` §9.1).

use std::net::SocketAddr;
use std::time::Instant;

use aws_lc_rs::hmac;
use sphinx_proto::wire::{ConnectionId, RESET_LEN, ResetToken};

use super::door::{Rate, Used};
use super::random_bytes;
use crate::ticket::Identity;

/// All who send packets of no session, together: a server that was started again has a client for each of thousands of sessions to tell. No more at once than leaves
/// room for answers to those who begin a handshake.
pub(super) const RESETS: Rate = Rate {
    per_second: 1_000,
    burst: 32,
};

/// Makes the tokens of a server's connection ids. It follows from what the server proves itself with, so that it is the same when the server is started
/// again, and that no client knows it. Two endpoints that have one identity, but are known by different ids or listen at different addresses, do not show each
/// other's tokens.
pub(crate) struct ResetKey(hmac::Key);

impl ResetKey {
    pub(crate) fn new(identity: &Identity, server_id: u16, listen: SocketAddr) -> Self {
        Self::of(identity.key(), server_id, listen)
    }

    fn of(private_key: &[u8], server_id: u16, listen: SocketAddr) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, private_key);
        let mut context = hmac::Context::with_key(&key);
        context.update(b"sphinx reset");
        context.update(&server_id.to_be_bytes());
        context.update(listen.to_string().as_bytes());
        Self(hmac::Key::new(hmac::HMAC_SHA256, context.sign().as_ref()))
    }

    /// What is shown of this id.
    pub(super) fn token(&self, cid: ConnectionId) -> ResetToken {
        let tag = hmac::sign(&self.0, &cid.bytes());
        let token = tag.as_ref().first_chunk();
        ResetToken::new(*token.expect("an HMAC is longer"))
    }
}

/// Tells that sessions are forgotten, so often.
pub(super) struct Resets {
    key: ResetKey,
    used: Used,
}

impl Resets {
    pub(super) fn new(key: ResetKey) -> Self {
        Self {
            key,
            used: Used::default(),
        }
    }

    /// What is shown of this id.
    pub(super) fn token(&self, cid: ConnectionId) -> ResetToken {
        self.key.token(cid)
    }

    /// Whether a packet of so many bytes may be answered now. One that may be a reset itself is not: two ends would answer each other for ever.
    pub(super) fn may_answer(&mut self, now: Instant, len: usize) -> bool {
        len > RESET_LEN && self.used.admit(now, &RESETS)
    }

    /// The answer to a packet with this id.
    ///
    /// # Panics
    ///
    /// When the operating system gives no randomness.
    pub(super) fn answer(&self, cid: ConnectionId) -> [u8; RESET_LEN] {
        self.token(cid).reset(random_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    fn cid(n: u8) -> ConnectionId {
        ConnectionId::new([n; 8]).expect("not zero")
    }

    fn at(address: &str) -> SocketAddr {
        address.parse().expect("an address")
    }

    /// The vector of `docs/protocol.md` §12.
    #[test]
    fn vector() {
        let private_key: Vec<u8> = (0..83).collect();
        let key = ResetKey::of(&private_key, 0x3144, at("192.0.2.1:4433"));
        let cid = ConnectionId::new([1, 2, 3, 4, 5, 6, 7, 8]).expect("not zero");
        let expected = [
            0x60, 0x62, 0xb2, 0xb2, 0x1a, 0xf5, 0x61, 0x4f, 0xca, 0x9b, 0x4a, 0xe4, 0x63, 0x39,
            0x20, 0x2b,
        ];
        assert_eq!(key.token(cid).bytes(), &expected);
    }

    /// Started again, a server shows what it has promised; any other shows something else, and nothing that tickets hold tells what.
    #[test]
    fn tokens_are_of_an_identity_its_place_and_an_id() {
        let (one, other) = (Identity::generate(), Identity::generate());
        let listen = at("0.0.0.0:4433");
        let token = |identity, server_id, listen: &str, n| {
            *ResetKey::new(identity, server_id, at(listen))
                .token(cid(n))
                .bytes()
        };
        let first = token(&one, 0, "0.0.0.0:4433", 1);
        assert_eq!(*ResetKey::new(&one, 0, listen).token(cid(1)).bytes(), first);
        let tokens = [
            first,
            token(&one, 0, "0.0.0.0:4433", 2),
            token(&one, 1, "0.0.0.0:4433", 1),
            token(&one, 0, "0.0.0.0:4434", 1),
            token(&one, 0, "[::]:4433", 1),
            token(&other, 0, "0.0.0.0:4433", 1),
        ];
        assert_eq!(BTreeSet::from(tokens).len(), tokens.len());
    }

    #[test]
    fn resets_differ_in_all_but_what_they_show() {
        let key = ResetKey::new(&Identity::generate(), 0, at("0.0.0.0:1"));
        let resets = Resets::new(key);
        let [one, two] = [resets.answer(cid(1)), resets.answer(cid(1))];
        let split = RESET_LEN - ResetToken::LEN;
        assert_eq!(one[split..], two[split..]);
        assert_ne!(one[1..9], two[1..9]);
        assert_ne!(one[9..split], two[9..split]);
    }

    #[test]
    fn what_may_be_a_reset_is_not_answered_and_nothing_is_all_the_time() {
        let key = ResetKey::new(&Identity::generate(), 0, at("0.0.0.0:1"));
        let (mut resets, now) = (Resets::new(key), Instant::now());
        assert!((0..=RESET_LEN).all(|len| !resets.may_answer(now, len)));
        let mut answered = |ms, len| {
            let now = now + Duration::from_millis(ms);
            (0..5000).filter(|_| resets.may_answer(now, len)).count()
        };
        assert_eq!(answered(0, RESET_LEN + 1), RESETS.burst as usize);
        assert_eq!(answered(10, 1500), 10);
    }
}
