//! A limit on the work that strangers can cause.
//!
//! A QUIC Initial packet is the dearest datagram that anybody can send us: its keys follow from the packet itself, so
//! it has to be decrypted before it can be found to be garbage. Everything else is dropped for the price of a
//! look at its first bytes. So before anything is decrypted it is asked where an Initial packet belongs, and who has
//! no ticket has an allowance that is not that of those who have it.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sphinx_proto::wire::Reader;

use super::greeting::{GREETING_LEN, is_greeting};
use crate::access::DOOR_KEY_LEN;

/// Every datagram of a client with an Initial packet has at least so many bytes (RFC 9000 §14.1).
const CLIENT_DATAGRAM_MIN: usize = 1200;
const QUIC_VERSION: [u8; 4] = 1_u32.to_be_bytes();
/// Datagrams that begin with one greeting: the client's first flight, with its repetitions and those of QUIC. Later
/// ones go to the connection id that the server has chosen.
const PER_GREETING: u8 = 64;
/// Greetings and addresses of one generation that are remembered; two generations are. Only who has the ticket, or
/// repeats who has, makes any, so this bounds memory (1 MB), not service.
const GENERATION: usize = 4096;

/// A rate limit for datagrams that are looked at: `per_second` in the long run, and `burst` at once after a pause.
pub(super) struct Rate {
    pub(super) per_second: u32,
    pub(super) burst: u32,
}

/// All clients with the server's door key together: a thousand handshakes a second, repetitions included.
const WELCOME: Rate = Rate {
    per_second: 10_000,
    burst: 2_000,
};
/// Each address from which a valid greeting has come. A whole handshake has about ten further datagrams, repetitions included.
const GUEST: Rate = Rate {
    per_second: 100,
    burst: 50,
};
/// Everybody else together. They are looked at so that clients with a ticket that is no longer valid are told so.
const STRANGERS: Rate = Rate {
    per_second: 1_000,
    burst: 100,
};

/// How much of a rate limit has been used.
#[derive(Default, Clone, Copy)]
pub(super) struct Used {
    /// When a whole burst is allowed again.
    rested_at: Option<Instant>,
}

impl Used {
    /// Whether one more may be looked at.
    pub(super) fn admit(&mut self, now: Instant, rate: &Rate) -> bool {
        let interval = Duration::from_secs(1) / rate.per_second;
        let rested_at = self.rested_at.map_or(now, |at| at.max(now)) + interval;
        let admitted = rested_at <= now + interval * rate.burst;
        if admitted {
            self.rested_at = Some(rested_at);
        }
        admitted
    }
}

/// What a greeting has been used for.
#[derive(Default, Clone, Copy)]
struct Greeting {
    datagrams: u8,
    /// A handshake has begun with it.
    begun: bool,
    /// The shard of the server that it has begun at, if that is another one.
    shard: Option<usize>,
}

/// The last [`GENERATION`] keys at least, twice as many at most, with something about each.
struct Recent<K, V> {
    new: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self {
            new: HashMap::new(),
            old: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash + Copy, V: Default> Recent<K, V> {
    /// What is known, if anything is.
    fn get(&mut self, key: K) -> Option<&mut V> {
        let is_known = self.new.contains_key(&key) || self.old.contains_key(&key);
        is_known.then(|| self.get_or_default(key))
    }

    /// The same; from now on something is.
    fn get_or_default(&mut self, key: K) -> &mut V {
        let before = self.old.remove(&key).unwrap_or_default();
        if self.new.len() >= GENERATION && !self.new.contains_key(&key) {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.entry(key).or_insert(before)
    }
}

/// Decides which Initial packets are looked at.
#[derive(Default)]
pub(super) struct Door {
    greetings: Recent<[u8; GREETING_LEN], Greeting>,
    /// Addresses that a greeting came from, and those that this end has called on.
    guests: Recent<SocketAddr, Used>,
    welcome: Used,
    strangers: Used,
}

impl Door {
    /// This end begins a handshake with `remote`, and may be answered.
    pub(super) fn expect(&mut self, remote: SocketAddr) {
        self.guests.get_or_default(remote);
    }

    /// Whether QUIC may look at a datagram from `remote`; `key` is the door key of a server. It takes at most one
    /// HMAC to tell.
    pub(super) fn admits(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        key: Option<&[u8; DOOR_KEY_LEN]>,
        datagram: &[u8],
    ) -> bool {
        if !is_initial(datagram) {
            return true;
        }
        if let Some(key) = key {
            if datagram.len() < CLIENT_DATAGRAM_MIN {
                return false;
            }
            let greeting = destination(datagram).filter(|cid| is_greeting(key, cid));
            if let Some(greeting) = greeting.and_then(|cid| cid.try_into().ok()) {
                let admitted = self.is_fresh(greeting) && self.welcome.admit(now, &WELCOME);
                if admitted {
                    self.guests.get_or_default(remote);
                }
                return admitted;
            }
        }
        match self.guests.get(remote) {
            Some(used) => used.admit(now, &GUEST) && self.welcome.admit(now, &WELCOME),
            // Nobody but its servers has any reason to send one to a client.
            None => key.is_some() && self.strangers.admit(now, &STRANGERS),
        }
    }

    /// Counts a datagram with a greeting; whether no more have come than any client sends. Whoever sees a greeting on
    /// its way can send it as often as he likes, and shall use up nothing but it.
    fn is_fresh(&mut self, greeting: [u8; GREETING_LEN]) -> bool {
        let greeting = self.greetings.get_or_default(greeting);
        greeting.datagrams = greeting.datagrams.saturating_add(1);
        greeting.datagrams <= PER_GREETING
    }

    /// Whether a handshake may begin with a greeting: with each one only once, though it is sent again when that
    /// handshake is long over.
    pub(super) fn may_begin(&mut self, greeting: [u8; GREETING_LEN]) -> bool {
        let greeting = self.greetings.get_or_default(greeting);
        !std::mem::replace(&mut greeting.begun, true)
    }

    /// The handshake begins at another shard, which is to have all that comes with this greeting.
    pub(super) fn begins_at(&mut self, greeting: [u8; GREETING_LEN], shard: usize) {
        self.greetings.get_or_default(greeting).shard = Some(shard);
    }

    /// The other shard that is to have a client's datagram, because the handshake has begun there.
    pub(super) fn shard_of(&mut self, datagram: &[u8]) -> Option<usize> {
        let greeting = destination(datagram)?.try_into().ok()?;
        self.greetings.get(greeting)?.shard
    }

    /// The handshake did not begin after all: nothing is kept of it, and a copy of the client's datagram gets the same
    /// answer, in case the first one is lost.
    pub(super) fn did_not_begin(&mut self, greeting: [u8; GREETING_LEN]) {
        self.greetings.get_or_default(greeting).begun = false;
    }
}

/// Whether a control-plane datagram begins with an Initial packet (RFC 9000 §17.2.2).
fn is_initial(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|byte| byte & 0xf0 == 0xc0)
}

/// Whether a datagram is of the first flight of a client: later ones go to the id that the server has chosen, which is
/// shorter.
pub(super) fn is_first_flight(datagram: &[u8]) -> bool {
    is_initial(datagram) && destination(datagram).is_some_and(|cid| cid.len() == GREETING_LEN)
}

/// The destination connection id of an Initial packet of our version.
fn destination(datagram: &[u8]) -> Option<&[u8]> {
    let (_, rest) = datagram.split_first()?;
    let rest = rest.strip_prefix(&QUIC_VERSION)?;
    let (len, rest) = rest.split_first()?;
    rest.get(..usize::from(*len))
}

/// The token of an Initial packet of our version (RFC 9000 §17.2.2): empty without any.
pub(super) fn token(datagram: &[u8]) -> Option<&[u8]> {
    if !is_initial(datagram) {
        return None;
    }
    let mut reader = Reader::new(datagram.get(1 + QUIC_VERSION.len()..)?);
    for _id in ["destination", "source"] {
        let len = reader.u8().ok()?;
        reader.take(usize::from(len)).ok()?;
    }
    let len = usize::try_from(reader.varint().ok()?).ok()?;
    reader.take(len).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::greeting::greeting;

    const KEY: [u8; DOOR_KEY_LEN] = [7; DOOR_KEY_LEN];

    fn initial(cid: &[u8]) -> Vec<u8> {
        let mut datagram = vec![0xc3, 0, 0, 0, 1, cid.len() as u8];
        datagram.extend_from_slice(cid);
        datagram.resize(1200, 0);
        datagram
    }

    fn greeting_of(n: u64) -> Vec<u8> {
        initial(&greeting(&KEY, n.to_be_bytes()))
    }

    fn remote(port: u16) -> SocketAddr {
        ([10, 0, 0, 1], port).into()
    }

    #[test]
    fn an_allowance_is_a_burst_and_then_a_rate() {
        let (mut used, begin) = (Used::default(), Instant::now());
        let mut admitted = |ms, offered| {
            let now = begin + Duration::from_millis(ms);
            (0..offered).filter(|_| used.admit(now, &WELCOME)).count()
        };
        assert_eq!(admitted(0, 5_000), 2_000);
        assert_eq!(admitted(100, 5_000), 1_000);
        assert_eq!(admitted(10_000, 5_000), 2_000);
    }

    /// Whatever strangers send, and however often a greeting that somebody has seen is sent again: others' first
    /// flights and handshakes under way are looked at.
    #[test]
    fn garbage_uses_up_no_allowance_but_its_own() {
        let (mut door, now) = (Door::default(), Instant::now());
        door.admits(now, remote(1), Some(&KEY), &greeting_of(77));
        let mut admitted =
            |from: u16, datagram: &[u8]| door.admits(now, remote(from), Some(&KEY), datagram);
        let strange = (0..100_000_u32).filter(|n| admitted(9, &initial(&n.to_be_bytes())));
        assert_eq!(strange.count(), STRANGERS.burst as usize);
        let replayed = (0..100_000).filter(|_| admitted(9, &greeting_of(0)));
        assert_eq!(replayed.count(), usize::from(PER_GREETING));
        let first_flights = (100..1100).filter(|n| admitted(8, &greeting_of(*n)));
        assert_eq!(first_flights.count(), 1000);
        // Further datagrams of a handshake that goes on, and of one that has had to show its address.
        assert!(admitted(1, &initial(&[1; 8])) && admitted(8, &initial(&[1; 8])));
        let flooded = (0..1000).filter(|_| admitted(1, &initial(&[1; 8])));
        assert_eq!(flooded.count(), GUEST.burst as usize - 1);
    }

    #[test]
    fn what_nobody_can_mean_is_not_looked_at() {
        let (mut door, now) = (Door::default(), Instant::now());
        let short = &greeting_of(1)[..1199];
        assert!(!door.admits(now, remote(9), Some(&KEY), short));
        assert!(!door.admits(now, remote(9), Some(&KEY), &[0xc0]));
        // To a client only its servers speak.
        assert!(!door.admits(now, remote(9), None, &greeting_of(1)));
        door.expect(remote(9));
        assert!(door.admits(now, remote(9), None, short));
        assert!(!door.admits(now, remote(8), None, short));
    }

    #[test]
    fn memory_is_bounded_and_old_greetings_stay_used() {
        let (mut door, now) = (Door::default(), Instant::now());
        let old = (0..200).filter(|_| door.is_fresh(greeting(&KEY, [0; 8])));
        assert_eq!(old.count(), usize::from(PER_GREETING));
        for n in 1..3 * GENERATION as u64 {
            door.is_fresh(greeting(&KEY, n.to_be_bytes()));
            if n == GENERATION as u64 + 10 {
                assert!(!door.is_fresh(greeting(&KEY, [0; 8])));
            }
        }
        assert!(door.greetings.new.len() <= GENERATION);
        assert!(door.greetings.old.len() <= GENERATION);
        assert!(door.admits(now, remote(1), Some(&KEY), &greeting_of(u64::MAX)));
    }

    #[test]
    fn a_greeting_begins_one_handshake() {
        let mut door = Door::default();
        let greetings = [0, 1, 0].map(|n: u64| greeting(&KEY, n.to_be_bytes()));
        assert_eq!(
            greetings.map(|greeting| door.may_begin(greeting)),
            [true, true, false]
        );
    }

    #[test]
    fn a_token_is_found_wherever_it_ends() {
        let mut datagram = vec![0xc3, 0, 0, 0, 1, 3, 1, 2, 3, 2, 4, 5, 0x40, 4];
        datagram.extend_from_slice(b"ticket");
        assert_eq!(token(&datagram), Some(&b"tick"[..]));
        for cut in 0..18 {
            assert_eq!(token(&datagram[..cut]), None, "{cut}");
        }
        datagram[0] = 0xd3;
        assert_eq!(token(&datagram), None);
        assert_eq!(token(&[0xc3; 1200]), None);
    }

    #[test]
    fn other_packets_are_not_initial() {
        // Long headers of the types Initial, 0-RTT, Handshake and Retry; a short header.
        let found = [0xc3, 0xd3, 0xe3, 0xf3, 0x43].map(|byte| is_initial(&[byte]));
        assert_eq!(found, [true, false, false, false, false]);
        assert!(!is_initial(&[]));
        assert_eq!(destination(&initial(&[5; 20])), Some(&[5; 20][..]));
        for cut in 0..26 {
            assert_eq!(destination(&initial(&[5; 20])[..cut]), None);
        }
    }
}
