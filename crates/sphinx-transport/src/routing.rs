//! Connection ids that tell whoever has a key, and nobody else, where their packets belong (`docs/protocol.md` §10.3).

use std::fmt;

use aws_lc_rs::cipher::{self, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::rand;
use sphinx_proto::wire::{ConnectionId, is_data_plane};
use zeroize::Zeroizing;

use crate::access::NO_RANDOMNESS;
use crate::control::random_bytes;
use crate::shards::Place;

/// Length of a routing key in bytes.
pub const ROUTING_KEY_LEN: usize = 16;

/// Bytes of an id behind the first: server, worker and nonce, encrypted.
const ROUTED_LEN: usize = 7;
/// The upper bits of the first byte: which of several keys it is. This program has one at a time.
const CONFIG_BITS: u8 = 0xe0;
const CONFIG: u8 = 0;
/// Of AES, in bytes.
const BLOCK_LEN: usize = 16;

/// Half of what is encrypted; of the byte in the middle either half has four bits.
type Half = [u8; 4];

const LEFT: Half = [0xff, 0xff, 0xff, 0xf0];
const RIGHT: Half = [0x0f, 0xff, 0xff, 0xff];

/// Where a packet belongs, as its connection id says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// [`Options::server_id`](crate::Options::server_id) of the end that made the connection id.
    pub server_id: u16,
    /// Which of that end's shards ([`Options::shards`](crate::Options::shards)) serves the session.
    pub worker: u8,
}

/// The secret that a load balancer and the servers behind it share: it reads from a connection id where packets belong,
/// without a table of sessions. Ids are encrypted as QUIC-LB does it (draft-ietf-quic-load-balancers, four passes of AES-128) with a
/// server id of three bytes: those of [`Route`].
#[derive(Clone)]
pub struct RoutingKey(Zeroizing<[u8; ROUTING_KEY_LEN]>);

impl RoutingKey {
    /// From random bytes.
    pub fn new(bytes: [u8; ROUTING_KEY_LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// # Panics
    ///
    /// When the operating system gives no randomness.
    fn random() -> Self {
        let mut key = Zeroizing::new([0; ROUTING_KEY_LEN]);
        rand::fill(key.as_mut_slice()).expect(NO_RANDOMNESS);
        Self(key)
    }

    /// Where a datagram belongs; `None` if it is not of the data plane, or its connection id was made with another
    /// generation of keys. Whether the sender has made the id up shows only when the packet is opened.
    pub fn route(&self, datagram: &[u8]) -> Option<Route> {
        let [first, routed @ ..] = ConnectionId::of_datagram(datagram)?.bytes();
        if !is_data_plane(datagram) || first & CONFIG_BITS != CONFIG {
            return None;
        }
        let [high, low, worker, ..] = Passes::new(self).decrypt(routed);
        Some(Route {
            server_id: u16::from_be_bytes([high, low]),
            worker,
        })
    }
}

impl fmt::Debug for RoutingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RoutingKey(..)")
    }
}

/// A Feistel network of four passes over seven bytes.
struct Passes(EncryptingKey);

impl Passes {
    fn new(key: &RoutingKey) -> Self {
        let key = UnboundCipherKey::new(&cipher::AES_128, key.0.as_slice())
            .and_then(EncryptingKey::ecb)
            .expect("16 bytes, as needed");
        Self(key)
    }

    /// `half`, changed by what `other` is in this pass.
    fn pass(&self, pass: u8, half: Half, other: Half, mask: Half) -> Half {
        let mut block = [0; BLOCK_LEN];
        block[..4].copy_from_slice(&other);
        block[14] = ROUTED_LEN as u8;
        block[15] = pass;
        self.0
            .less_safe_encrypt(&mut block, EncryptionContext::None)
            .expect("one whole block");
        std::array::from_fn(|i| half[i] ^ block[i] & mask[i])
    }

    fn encrypt(&self, plain: [u8; ROUTED_LEN]) -> [u8; ROUTED_LEN] {
        let (mut left, mut right) = halves(plain);
        right = self.pass(1, right, left, RIGHT);
        left = self.pass(2, left, right, LEFT);
        right = self.pass(3, right, left, RIGHT);
        left = self.pass(4, left, right, LEFT);
        joined(left, right)
    }

    fn decrypt(&self, routed: [u8; ROUTED_LEN]) -> [u8; ROUTED_LEN] {
        let (mut left, mut right) = halves(routed);
        left = self.pass(4, left, right, LEFT);
        right = self.pass(3, right, left, RIGHT);
        left = self.pass(2, left, right, LEFT);
        right = self.pass(1, right, left, RIGHT);
        joined(left, right)
    }
}

fn halves([a, b, c, middle, d, e, f]: [u8; ROUTED_LEN]) -> (Half, Half) {
    ([a, b, c, middle & LEFT[3]], [middle & RIGHT[0], d, e, f])
}

fn joined(left: Half, right: Half) -> [u8; ROUTED_LEN] {
    let ([a, b, c, above], [below, d, e, f]) = (left, right);
    [a, b, c, above | below, d, e, f]
}

/// Makes the connection ids of one shard of an endpoint, or of an endpoint that has one only.
pub(crate) struct IdMaker {
    passes: Passes,
    route: Route,
    place: Option<Place>,
    /// Of the next id that is tried. It repeats after 2^32 of them, and so do ids.
    nonce: u32,
}

impl IdMaker {
    /// Without a key, only this endpoint can read its ids. With a `place` all of them name it.
    pub(crate) fn new(key: Option<&RoutingKey>, server_id: u16, place: Option<Place>) -> Self {
        let passes = match key {
            Some(key) => Passes::new(key),
            None => Passes::new(&RoutingKey::random()),
        };
        let nonce = random_bytes();
        Self {
            passes,
            route: Route {
                server_id,
                // There are less than 256.
                worker: place.as_ref().map_or(0, |place| place.shard() as u8),
            },
            place,
            nonce: u32::from_be_bytes(nonce),
        }
    }

    /// Which of several shards it is that ids name.
    pub(crate) fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// A connection id that was not made before, as long as 2^32 have not been tried.
    pub(crate) fn make(&mut self) -> ConnectionId {
        loop {
            let [random] = random_bytes();
            let nonce = self.nonce;
            self.nonce = nonce.wrapping_add(1);
            // Four zeros at the beginning are not allowed.
            let id = self.id(random, nonce);
            let is_ours = |id: &ConnectionId| {
                let place = self.place.as_ref();
                place.is_none_or(|place| place.is_named_by(id.bytes()))
            };
            if let Some(id) = id.filter(is_ours) {
                return id;
            }
        }
    }

    fn id(&self, random: u8, nonce: u32) -> Option<ConnectionId> {
        let [high, low] = self.route.server_id.to_be_bytes();
        let [n0, n1, n2, n3] = nonce.to_be_bytes();
        let plain = [high, low, self.route.worker, n0, n1, n2, n3];
        let [a, b, c, d, e, f, g] = self.passes.encrypt(plain);
        let first = CONFIG | random & !CONFIG_BITS;
        ConnectionId::new([first, a, b, c, d, e, f, g])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sphinx_net::udp::Steering;

    use super::*;

    const KEY: [u8; ROUTING_KEY_LEN] = [
        0xfd, 0xf7, 0x26, 0xa9, 0x89, 0x3e, 0xc0, 0x5c, 0x06, 0x32, 0xd3, 0x95, 0x66, 0x80, 0xba,
        0xf0,
    ];

    fn maker(server_id: u16, worker: u8) -> IdMaker {
        let mut maker = IdMaker::new(Some(&RoutingKey::new(KEY)), server_id, None);
        maker.route.worker = worker;
        maker
    }

    fn datagram(id: ConnectionId) -> Vec<u8> {
        [&[0x80][..], &id.bytes(), &[0; 40]].concat()
    }

    /// The example of the draft, §5.4.2; `docs/protocol.md` §12 has it too.
    #[test]
    fn vector() {
        let maker = maker(0x3144, 0x1a);
        let id = maker.id(7, 0x9c69_c275).expect("not zero");
        assert_eq!(id.bytes(), [7, 0x67, 0x94, 0x7d, 0x29, 0xbe, 0x05, 0x4a]);
        // Bits that say which key it is are not random.
        let same = maker.id(0xe7, 0x9c69_c275).expect("not zero");
        assert_eq!(same, id);
    }

    #[test]
    fn who_has_the_key_reads_where_packets_belong() {
        let (key, other) = (RoutingKey::new(KEY), RoutingKey::random());
        let mut misread = 0;
        for worker in 0..=255 {
            let route = Route {
                server_id: u16::from(worker) * 257,
                worker,
            };
            let datagram = datagram(maker(route.server_id, worker).make());
            assert_eq!(key.route(&datagram), Some(route));
            misread += u32::from(other.route(&datagram) == Some(route));
        }
        assert!(misread < 3, "{misread}");
        assert_eq!(key.route(&[0x40; 60]), None, "not of the data plane");
        assert_eq!(key.route(&[0x80]), None);
        let other_config = ConnectionId::new([0x20; 8]).expect("not zero");
        assert_eq!(key.route(&datagram(other_config)), None);
    }

    /// Whoever has the key reads the shard too, and whoever hashes finds it.
    #[test]
    fn ids_of_a_shard_name_it() {
        let (key, steering) = (RoutingKey::new(KEY), Steering::new([1; 8], 5));
        for place in Place::all(&steering) {
            let shard = place.shard();
            let mut maker = IdMaker::new(Some(&key), 7, Some(place));
            for _ in 0..100 {
                let id = maker.make();
                assert_eq!(steering.of_id(id.bytes()), shard);
                let route = key.route(&datagram(id)).expect("made with it");
                assert_eq!((route.server_id, usize::from(route.worker)), (7, shard));
            }
        }
    }

    #[test]
    fn ids_are_unique() {
        let mut makers = [maker(0, 0), maker(0, 1), maker(1, 0)];
        let ids = makers
            .iter_mut()
            .flat_map(|maker| (0..20_000).map(|_| maker.make()));
        let routed: BTreeSet<[u8; 7]> = ids
            .map(|id| *id.bytes().last_chunk().expect("eight bytes"))
            .collect();
        assert_eq!(routed.len(), 60_000);
    }

    /// Every bit that is not the key's number is 1 in half of the ids, whoever made them; and each changes in half of the cases
    /// when nothing but the worker does.
    #[test]
    fn without_the_key_ids_of_all_workers_look_alike() {
        const IDS: u32 = 4096;
        let half = |count: &u32| count.abs_diff(IDS / 2) < IDS / 16;
        let mut first = maker(0, 0);
        for (server_id, worker) in [(0, 0), (0, 1), (0, 255), (1, 0), (0xffff, 7)] {
            let mut maker = maker(server_id, worker);
            let (mut ones, mut changed) = ([0; 64], [0; 56]);
            for _ in 0..IDS {
                let id = u64::from_be_bytes(maker.make().bytes());
                (0..64).for_each(|bit| ones[bit] += (id >> bit) as u32 & 1);
                first.nonce = maker.nonce.wrapping_sub(1);
                let other = u64::from_be_bytes(first.make().bytes()) ^ id;
                (0..56).for_each(|bit| changed[bit] += (other >> bit) as u32 & 1);
            }
            assert!(ones[..61].iter().all(half), "{ones:?}");
            assert_eq!(ones[61..], [0; 3]);
            let is_first = (server_id, worker) == (0, 0);
            assert!(is_first || changed.iter().all(half), "{changed:?}");
        }
    }
}
