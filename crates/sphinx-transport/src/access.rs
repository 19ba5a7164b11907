//! Who may connect to a server: tickets, each with a secret of its own, and keys of clients. Both come and go while it runs
//! (`docs/protocol.md` §2).

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, PoisonError};

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use aws_lc_rs::{digest, rand};
use sphinx_driver::keys::SECRET_LEN;
use sphinx_net::Waker;
use zeroize::Zeroizing;

use crate::sync::{Mutex, MutexGuard};
use crate::ticket::{base32, unbase32};

/// Length in bytes of what all tickets of a server have in common, and of what only one has.
pub(crate) const DOOR_KEY_LEN: usize = 16;
pub(crate) const OWN_SECRET_LEN: usize = SECRET_LEN - DOOR_KEY_LEN;
/// Length in bytes of the name of a ticket on the wire.
pub(crate) const TICKET_ID_LEN: usize = 16;
/// Of Ed25519 (RFC 8032).
pub(crate) const PUBLIC_KEY_LEN: usize = 32;
pub(crate) const SIGNATURE_LEN: usize = 64;
const SEED_LEN: usize = 32;
const KEY_PREFIX: &str = "ed25519:";
/// How a client's key that is kept begins.
const KEY_MAGIC: &[u8] = b"sphx client key 1\n";
/// What is expected of the system's source of randomness: without it nothing can be kept secret, and the thread panics.
pub(crate) const NO_RANDOMNESS: &str = "the operating system gives randomness";
/// In front of what a client signs, so that the signature is of use nowhere else.
const SIGNED: &[u8] = b"sphinx/2 identity";

/// What one ticket of a server has and the others have not. Its text (`Display`, `FromStr`) is base32.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketSecret(Zeroizing<[u8; OWN_SECRET_LEN]>);

impl TicketSecret {
    /// A new one.
    ///
    /// # Panics
    /// When the operating system gives no randomness.
    pub fn generate() -> Self {
        let mut own = Zeroizing::new([0; OWN_SECRET_LEN]);
        rand::fill(own.as_mut_slice()).expect(NO_RANDOMNESS);
        Self(own)
    }

    pub(crate) fn new(own: [u8; OWN_SECRET_LEN]) -> Self {
        Self(Zeroizing::new(own))
    }

    pub(crate) fn bytes(&self) -> &[u8; OWN_SECRET_LEN] {
        &self.0
    }

    /// What the ticket is called on the wire.
    pub fn id(&self) -> TicketId {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(b"sphinx ticket");
        context.update(self.0.as_slice());
        let mut id = [0; TICKET_ID_LEN];
        id.copy_from_slice(&context.finish().as_ref()[..TICKET_ID_LEN]);
        TicketId(id)
    }
}

impl fmt::Debug for TicketSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketSecret(..)")
    }
}

impl fmt::Display for TicketSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base32(self.0.as_slice()))
    }
}

impl FromStr for TicketSecret {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let bytes = unbase32(text).ok_or(KeyError)?;
        let own = bytes.as_slice().try_into().map_err(|_| KeyError)?;
        Ok(Self(Zeroizing::new(own)))
    }
}

/// Names a ticket without saying its secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TicketId(pub(crate) [u8; TICKET_ID_LEN]);

impl fmt::Debug for TicketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TicketId({})", *base32(&self.0))
    }
}

/// What a client is known by, an Ed25519 key. Its text (`Display`, `FromStr`) is `ed25519:` and 52 characters of base32.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey(pub(crate) [u8; PUBLIC_KEY_LEN]);

/// A text is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is no key: one is `ed25519:` and 52 letters and digits")]
pub struct KeyError;

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{KEY_PREFIX}{}", *base32(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let body = text.strip_prefix(KEY_PREFIX).ok_or(KeyError)?;
        let bytes = unbase32(body).ok_or(KeyError)?;
        Ok(Self(bytes.as_slice().try_into().map_err(|_| KeyError)?))
    }
}

/// A client's own key: what a server with the public part in its list knows it by. Keep it where only its owner can read it.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientKey(Zeroizing<[u8; SEED_LEN]>);

impl ClientKey {
    /// A new one.
    ///
    /// # Panics
    /// When the operating system gives no randomness.
    pub fn generate() -> Self {
        let mut seed = Zeroizing::new([0; SEED_LEN]);
        rand::fill(seed.as_mut_slice()).expect(NO_RANDOMNESS);
        Self(seed)
    }

    /// What [`from_bytes`](Self::from_bytes) reads, wiped after use.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(KEY_MAGIC.len() + 64));
        out.extend_from_slice(KEY_MAGIC);
        out.extend_from_slice(base32(self.0.as_slice()).as_bytes());
        out.push(b'\n');
        out
    }

    /// What was written once; `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let body = bytes.strip_prefix(KEY_MAGIC)?.trim_ascii_end();
        let seed = unbase32(std::str::from_utf8(body).ok()?)?;
        Some(Self(Zeroizing::new(seed.as_slice().try_into().ok()?)))
    }

    fn pair(&self) -> Ed25519KeyPair {
        // It fails only for another length.
        Ed25519KeyPair::from_seed_unchecked(self.0.as_slice()).expect("32 bytes are a seed")
    }

    /// The public key, by which servers know the client.
    pub fn public_key(&self) -> PublicKey {
        let mut key = [0; PUBLIC_KEY_LEN];
        key.copy_from_slice(self.pair().public_key().as_ref());
        PublicKey(key)
    }

    /// Shows that this end of a session, whose proof (§3) this is, has the key.
    pub(crate) fn sign(&self, proof: &[u8; SECRET_LEN]) -> [u8; SIGNATURE_LEN] {
        let mut signature = [0; SIGNATURE_LEN];
        let signed = self.pair().sign(&[SIGNED, proof].concat());
        signature.copy_from_slice(signed.as_ref());
        signature
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientKey(..)")
    }
}

/// Whether whoever has `key` is at the other end of the session with this proof.
pub(crate) fn is_signed_by(
    key: &PublicKey,
    proof: &[u8; SECRET_LEN],
    signature: &[u8; SIGNATURE_LEN],
) -> bool {
    let key = UnparsedPublicKey::new(&ED25519, key.0);
    key.verify(&[SIGNED, proof].concat(), signature).is_ok()
}

/// How a client has shown who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// By a ticket's secret.
    Ticket(TicketId),
    /// By a key that the server knows.
    Key(PublicKey),
    /// By a ticket, together with a key that the server need not know yet.
    Both(TicketId, PublicKey),
}

impl Peer {
    /// The ticket, if there was one.
    pub fn ticket(&self) -> Option<TicketId> {
        match self {
            Self::Ticket(id) | Self::Both(id, _) => Some(*id),
            Self::Key(_) => None,
        }
    }

    /// The key, if there was one.
    pub fn key(&self) -> Option<PublicKey> {
        match self {
            Self::Key(key) | Self::Both(_, key) => Some(*key),
            Self::Ticket(_) => None,
        }
    }
}

#[derive(Debug, Clone)]
struct TicketEntry {
    secret: TicketSecret,
    admits: bool,
}

/// Who may connect. To find one of ten thousand takes as long as to find one of ten.
#[derive(Debug, Clone, Default)]
pub struct AccessList {
    tickets: HashMap<TicketId, TicketEntry>,
    keys: HashMap<PublicKey, ()>,
}

impl AccessList {
    /// A list that admits nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a ticket. One that no longer `admits` keeps the sessions that it has, and begins none.
    pub fn add_ticket(&mut self, secret: TicketSecret, admits: bool) {
        let entry = TicketEntry { secret, admits };
        self.tickets.insert(entry.secret.id(), entry);
    }

    /// Adds a client's key.
    pub fn add_key(&mut self, key: PublicKey) {
        self.keys.insert(key, ());
    }

    /// The secret of a ticket that begins sessions.
    pub(crate) fn secret_of(&self, id: &TicketId) -> Option<&TicketSecret> {
        let entry = self.tickets.get(id).filter(|entry| entry.admits)?;
        Some(&entry.secret)
    }

    pub(crate) fn has_key(&self, key: &PublicKey) -> bool {
        self.keys.contains_key(key)
    }

    /// Whether this peer may begin a session: a ticket's client needs the ticket, whatever key it has besides.
    pub(crate) fn admits(&self, peer: &Peer) -> bool {
        match peer {
            Peer::Ticket(id) | Peer::Both(id, _) => self.secret_of(id).is_some(),
            Peer::Key(key) => self.has_key(key),
        }
    }

    /// Whether a session of this peer goes on.
    pub(crate) fn keeps(&self, peer: &Peer) -> bool {
        let has_ticket = |id| self.tickets.contains_key(&id);
        peer.ticket().is_some_and(has_ticket) || peer.key().is_some_and(|key| self.has_key(&key))
    }
}

/// The list of a server, as its engine sees it.
#[derive(Clone)]
pub(crate) struct Guests(Arc<Mutex<Current>>);

/// Looks whether the list is still what it should be.
type Look = Arc<dyn Fn() + Send + Sync>;

struct Current {
    list: Arc<AccessList>,
    /// How often the list was replaced.
    changes: u64,
    look: Option<Look>,
}

impl Guests {
    pub(crate) fn new(list: AccessList) -> Self {
        let list = Arc::new(list);
        Self(Arc::new(Mutex::new(Current {
            list,
            changes: 0,
            look: None,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The list, and how often it has changed.
    pub(crate) fn current(&self) -> (Arc<AccessList>, u64) {
        let current = self.lock();
        (Arc::clone(&current.list), current.changes)
    }

    /// The list after whoever keeps it has looked whether it has to be another one.
    pub(crate) fn looked_after(&self) -> Arc<AccessList> {
        let look = self.lock().look.clone();
        if let Some(look) = look {
            look();
        }
        self.current().0
    }

    /// Nobody looks any more. What does may hold the list, and so itself.
    pub(crate) fn end_looking(&self) {
        let look = self.lock().look.take();
        // It is somebody else's code: not under the lock.
        drop(look);
    }

    fn replace(&self, list: AccessList) {
        let mut current = self.lock();
        current.list = Arc::new(list);
        current.changes += 1;
    }
}

/// Changes who may connect to a server while it runs. Cheap to clone; of no effect once the server has gone.
#[derive(Clone)]
pub struct Access {
    guests: Guests,
    wakers: Vec<Waker>,
}

impl Access {
    /// `wakers` are those of the server's engines.
    pub(crate) fn new(guests: Guests, wakers: Vec<Waker>) -> Self {
        Self { guests, wakers }
    }

    /// From now on those of `list` may connect and nobody else. Sessions of others end at once, with
    /// [`close_code::AUTHENTICATION`](crate::close_code::AUTHENTICATION); those of `list` notice nothing.
    pub fn replace(&self, list: AccessList) {
        self.guests.replace(list);
        for waker in &self.wakers {
            waker.wake();
        }
    }

    /// From now on `look` is called when somebody comes who is not on the list, before that one is refused: it may
    /// [replace](Self::replace) the list. It is called by an engine, for whoever has ever had a ticket, and has to be quick.
    pub fn look_before_refusing(&self, look: impl Fn() + Send + Sync + 'static) {
        self.guests.lock().look = Some(Arc::new(look));
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_kept_and_named() {
        let key = ClientKey::generate();
        let bytes = key.to_bytes();
        assert_eq!(ClientKey::from_bytes(&bytes), Some(key.clone()));
        for end in 0..bytes.len() - 1 {
            assert_eq!(ClientKey::from_bytes(&bytes[..end]), None);
        }
        let public = key.public_key();
        assert_eq!(public.to_string().len(), KEY_PREFIX.len() + 52);
        assert_eq!(public.to_string().parse(), Ok(public));
        for wrong in ["", "ed25519:", "ed25519:abc", "rsa:abc"] {
            assert_eq!(wrong.parse::<PublicKey>(), Err(KeyError));
        }
        let secret = TicketSecret::generate();
        assert_eq!(secret.to_string().parse(), Ok(secret));
    }

    /// The vectors of `docs/protocol.md` §12.
    #[test]
    fn vectors() {
        let secret = TicketSecret::new(std::array::from_fn(|i| 0x30 + i as u8));
        let id: String = secret.id().0.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(id, "77754f8f8727001e312e84f414435757");
        let key = ClientKey(Zeroizing::new(std::array::from_fn(|i| 0x40 + i as u8)));
        assert_eq!(
            key.public_key().to_string(),
            "ed25519:evb3sl7rbfkrcr3k3sbwtw3n3sjtmznbdf4n3ikaj3qqm3fjkwoq"
        );
        let signature = key.sign(&[0x5a; SECRET_LEN]);
        let hex: String = signature.iter().map(|b| format!("{b:02x}")).collect();
        let expected = "ee26a2fbf6996164d9f0116b1534438119647bc210d4bef521f03bd327f2e619\
                        f438450b65bb44406b5f28f9ce4b80054a00c31217940f93cf14a916937a1603";
        assert_eq!(hex, expected);
        assert!(is_signed_by(
            &key.public_key(),
            &[0x5a; SECRET_LEN],
            &signature
        ));
        assert!(!is_signed_by(
            &key.public_key(),
            &[0x5b; SECRET_LEN],
            &signature
        ));
    }

    #[test]
    fn who_is_not_on_the_list_any_more_is_not_kept() {
        let (secret, key) = (TicketSecret::generate(), ClientKey::generate().public_key());
        let mut list = AccessList::new();
        let (by_ticket, by_key) = (Peer::Ticket(secret.id()), Peer::Key(key));
        let both = Peer::Both(secret.id(), key);
        assert!(
            ![by_ticket, by_key, both]
                .iter()
                .any(|peer| list.keeps(peer))
        );
        list.add_ticket(secret.clone(), true);
        assert!(list.keeps(&by_ticket) && list.keeps(&both) && !list.keeps(&by_key));
        assert!(list.admits(&by_ticket) && list.admits(&both) && !list.admits(&by_key));
        assert_eq!(list.secret_of(&secret.id()), Some(&secret));
        list.add_ticket(secret.clone(), false);
        assert!(list.keeps(&by_ticket) && list.secret_of(&secret.id()).is_none());
        assert!(!list.admits(&by_ticket) && !list.admits(&both));
        let mut list = AccessList::new();
        list.add_key(key);
        assert!(!list.keeps(&by_ticket) && list.keeps(&both) && list.keeps(&by_key));
        assert!(!list.admits(&by_ticket) && !list.admits(&both) && list.admits(&by_key));
    }
}
