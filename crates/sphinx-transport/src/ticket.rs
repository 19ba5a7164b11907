//! Tickets and identities: how a client knows a server, and a server a client
//! (`docs/protocol.md` §2).

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use aws_lc_rs::{digest, rand};
use sphinx_proto::wire::Reader;
use zeroize::Zeroizing;

use sphinx_driver::keys::SECRET_LEN;

use crate::access::{ClientKey, DOOR_KEY_LEN, NO_RANDOMNESS, OWN_SECRET_LEN, TicketSecret};

/// Most addresses in one ticket.
const MAX_ADDRESSES: usize = 16;
/// Longest ticket in characters.
const MAX_TICKET_LEN: usize = 2048;
/// Longest address in bytes: a DNS name of 253 characters and a port fit.
const MAX_ADDRESS_LEN: usize = 255;
/// Name in the certificate; nobody looks at it.
const SUBJECT: &str = "sphinx";
const PREFIX: &str = "sphx1";
/// How a key that is kept begins.
const KEY_MAGIC: &[u8] = b"sphx server key 1\n";
const PIN_LEN: usize = 32;
const CHECKSUM_LEN: usize = 4;
/// RFC 4648 §6, in lower case: survives double clicks, phones and shells.
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Why a text is not a ticket, or a ticket cannot be made. All are mistakes of usage: a well-formed
/// ticket of another server is found out only by the handshake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TicketError {
    /// An address is not `host:port`.
    #[error("`{0}` is not an address (host:port, IPv6 in brackets)")]
    Address(String),
    /// The checksum does not fit: characters were lost or changed.
    #[error("the ticket is damaged: some characters are missing or wrong")]
    Damaged,
    /// Not made by this program, or by a later version of it.
    #[error("not a ticket: tickets begin with `sphx1`")]
    NotATicket,
    /// No address, more than 16, or more than 2048 characters in all.
    #[error("a ticket holds 1 to 16 addresses and at most 2048 characters")]
    Size,
}

/// Where a server is, how to recognise it, and what shows it that the client may come: a secret, a [key](ClientKey) of the client's own, or both.
///
/// The text form (`Display`, `FromStr`) is one token of at most 2048 characters: `sphx1` and, in
/// base32, the secret, the pin, the addresses and a checksum; a client's key is not in it. Whoever has the secret can connect: treat it
/// as a password. `Debug` leaves the secret out.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    addresses: Vec<String>,
    pin: [u8; PIN_LEN],
    /// What all tickets of the server begin with, then what only this one has; zeros where a key stands for that.
    secret: Zeroizing<[u8; SECRET_LEN]>,
    key: Option<ClientKey>,
}

impl Ticket {
    pub(crate) fn new(
        addresses: Vec<String>,
        pin: [u8; PIN_LEN],
        secret: Zeroizing<[u8; SECRET_LEN]>,
    ) -> Result<Self, TicketError> {
        if let Some(wrong) = addresses.iter().find(|address| !is_address(address)) {
            return Err(TicketError::Address(wrong.clone()));
        }
        let ticket = Self {
            addresses,
            pin,
            secret,
            key: None,
        };
        let len = PREFIX.len() + (ticket.payload().len() + CHECKSUM_LEN).div_ceil(5) * 8;
        if !(1..=MAX_ADDRESSES).contains(&ticket.addresses.len()) || len > MAX_TICKET_LEN {
            return Err(TicketError::Size);
        }
        Ok(ticket)
    }

    /// The text of a ticket with any payload and the checksum that belongs to it.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn text_of(payload: &[u8]) -> String {
        let mut bytes = payload.to_vec();
        bytes.extend_from_slice(&checksum(payload));
        format!("{PREFIX}{}", *base32(&bytes))
    }

    /// Where to connect, best first: `host:port`, IPv6 literals in brackets; 1–16 of them.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The same server, as it is reached at other addresses (`host:port`, best first): those behind a NAT, say.
    ///
    /// # Errors
    /// An address is not of that form, or there are none or too many.
    pub fn at(&self, addresses: &[String]) -> Result<Self, TicketError> {
        let moved = Self::new(addresses.to_vec(), self.pin, self.secret.clone())?;
        Ok(Self {
            key: self.key.clone(),
            ..moved
        })
    }

    /// The same ticket, of a client that shows `key` too: so it tells the server what it wants to be known by.
    pub fn with_key(&self, key: ClientKey) -> Self {
        Self {
            key: Some(key),
            ..self.clone()
        }
    }

    /// The same server, without what is this ticket's own: only for those whose [key](Self::with_key) the server knows.
    pub fn without_secret(&self) -> Self {
        let mut server = self.clone();
        server.secret[DOOR_KEY_LEN..].fill(0);
        server
    }

    /// Whether it is a ticket of the same server.
    pub fn is_of_same_server(&self, other: &Self) -> bool {
        self.pin == other.pin
    }

    /// What is this ticket's own, unless a key stands for it.
    pub(crate) fn own_secret(&self) -> Option<TicketSecret> {
        let (_, own) = split(&self.secret);
        (*own != [0; OWN_SECRET_LEN]).then(|| TicketSecret::new(*own))
    }

    /// The key with which the client signs.
    pub(crate) fn key(&self) -> Option<&ClientKey> {
        self.key.as_ref()
    }

    /// What shows with the first datagram that a client has some ticket of the server.
    pub(crate) fn door_key(&self) -> &[u8; DOOR_KEY_LEN] {
        split(&self.secret).0
    }

    /// SHA-256 of the server's certificate (DER).
    pub(crate) fn pin(&self) -> &[u8; PIN_LEN] {
        &self.pin
    }

    /// Salt of the session's keys (§3).
    pub(crate) fn secret(&self) -> &[u8; SECRET_LEN] {
        &self.secret
    }

    /// Secret, pin, and the addresses, each with its length in one byte.
    fn payload(&self) -> Zeroizing<Vec<u8>> {
        let addresses = self.addresses.iter().map(|a| a.len() + 1).sum::<usize>();
        let mut out = Zeroizing::new(Vec::with_capacity(
            SECRET_LEN + PIN_LEN + addresses + CHECKSUM_LEN,
        ));
        out.extend_from_slice(self.secret.as_slice());
        out.extend_from_slice(&self.pin);
        for address in &self.addresses {
            out.push(address.len() as u8);
            out.extend_from_slice(address.as_bytes());
        }
        out
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.payload();
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum);
        f.write_str(PREFIX)?;
        f.write_str(&base32(&bytes))
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    /// Accepts white space around the token and capital letters.
    fn from_str(text: &str) -> Result<Self, TicketError> {
        let text = text.trim();
        let body = text
            .get(..PREFIX.len())
            .filter(|prefix| prefix.eq_ignore_ascii_case(PREFIX))
            .and_then(|_| text.get(PREFIX.len()..))
            .ok_or(TicketError::NotATicket)?;
        if text.len() > MAX_TICKET_LEN {
            return Err(TicketError::Size);
        }
        let bytes = unbase32(body).ok_or(TicketError::Damaged)?;
        let (payload, sum) = bytes
            .split_last_chunk::<CHECKSUM_LEN>()
            .ok_or(TicketError::Damaged)?;
        if checksum(payload) != *sum {
            return Err(TicketError::Damaged);
        }

        // From here on the text is what some program wrote; errors are that program's.
        let mut reader = Reader::new(payload);
        let secret = reader.array().map_err(|_| TicketError::Size)?;
        let pin = reader.array().map_err(|_| TicketError::Size)?;
        let mut addresses = Vec::new();
        while !reader.is_empty() {
            let address = reader
                .u8()
                .and_then(|len| reader.take(usize::from(len)))
                .map_err(|_| TicketError::Size)?;
            addresses.push(String::from_utf8_lossy(address).into_owned());
        }
        Self::new(addresses, pin, Zeroizing::new(secret))
    }
}

/// What all tickets of a server begin with, and what only one has.
fn split(secret: &[u8; SECRET_LEN]) -> (&[u8; DOOR_KEY_LEN], &[u8; OWN_SECRET_LEN]) {
    let halves = secret.split_first_chunk();
    let (door, own) = halves.expect("a secret is longer than the door key");
    (door, own.try_into().expect("it ends behind its own part"))
}

/// The secret of a server's ticket.
pub(crate) fn joined(
    door: &[u8; DOOR_KEY_LEN],
    own: Option<&TicketSecret>,
) -> Zeroizing<[u8; SECRET_LEN]> {
    let mut secret = Zeroizing::new([0; SECRET_LEN]);
    secret[..DOOR_KEY_LEN].copy_from_slice(door);
    if let Some(own) = own {
        secret[DOOR_KEY_LEN..].copy_from_slice(own.bytes());
    }
    secret
}

/// What a server proves itself with: a self-signed certificate, its key, and the secret of its first
/// ticket. Made afresh for every run of a server, unless it is kept.
pub(crate) struct Identity {
    certificate: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
    secret: Zeroizing<[u8; SECRET_LEN]>,
}

impl Identity {
    /// A new one.
    ///
    /// # Panics
    ///
    /// When the operating system gives no randomness.
    pub(crate) fn generate() -> Self {
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        rand::fill(secret.as_mut_slice()).expect(NO_RANDOMNESS);
        // Ed25519 keeps the server's first flight within one datagram.
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect(NO_RANDOMNESS);
        let certificate = rcgen::CertificateParams::new([SUBJECT.to_owned()])
            .and_then(|params| params.self_signed(&key))
            .expect("constant parameters make a certificate");
        Self {
            certificate: certificate.der().to_vec(),
            key: Zeroizing::new(key.serialize_der()),
            secret,
        }
    }

    /// All of it, for a file: magic, certificate and key with their lengths, secret, checksum.
    fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let parts = [self.certificate.as_slice(), self.key.as_slice()];
        let len = parts.iter().map(|part| part.len() + 2).sum::<usize>();
        let len = KEY_MAGIC.len() + len + SECRET_LEN + CHECKSUM_LEN;
        // With room for it from the beginning nothing is left where it was before it grew.
        let mut out = Zeroizing::new(Vec::with_capacity(len));
        out.extend_from_slice(KEY_MAGIC);
        for part in parts {
            out.extend_from_slice(&(part.len() as u16).to_be_bytes());
            out.extend_from_slice(part);
        }
        out.extend_from_slice(self.secret.as_slice());
        let sum = checksum(&out);
        out.extend_from_slice(&sum);
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (payload, sum) = bytes.split_last_chunk::<CHECKSUM_LEN>()?;
        if checksum(payload) != *sum {
            return None;
        }
        let mut reader = Reader::new(payload.strip_prefix(KEY_MAGIC)?);
        let mut part = || -> Option<Vec<u8>> {
            let len = u16::from_be_bytes(reader.array().ok()?);
            Some(reader.take(usize::from(len)).ok()?.to_vec())
        };
        let (certificate, key) = (part()?, Zeroizing::new(part()?));
        let secret = Zeroizing::new(reader.array().ok()?);
        rcgen::KeyPair::try_from(key.as_slice()).ok()?;
        reader.is_empty().then_some(Self {
            certificate,
            key,
            secret,
        })
    }

    /// A ticket of this server with a secret of its own, reachable at `addresses` (`host:port`, best first).
    ///
    /// # Errors
    ///
    /// An address is not of that form, or there are none or too many.
    pub(crate) fn ticket_with(
        &self,
        addresses: &[String],
        own: &TicketSecret,
    ) -> Result<Ticket, TicketError> {
        let secret = joined(self.door_key(), Some(own));
        Ticket::new(addresses.to_vec(), self.pin(), secret)
    }

    /// SHA-256 of the certificate.
    pub(crate) fn pin(&self) -> [u8; PIN_LEN] {
        pin_of(&self.certificate)
    }

    /// The certificate, DER.
    pub(crate) fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// The private key, PKCS #8 DER.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The part of the secret that belongs to the first ticket alone.
    pub(crate) fn own_secret(&self) -> TicketSecret {
        TicketSecret::new(*split(&self.secret).1)
    }

    /// What all its tickets begin with.
    pub(crate) fn door_key(&self) -> &[u8; DOOR_KEY_LEN] {
        split(&self.secret).0
    }
}

/// What a server is known by and the secret that it asks for, for one that is to be the same after it was started again: with the same key the
/// same tickets work. Whoever has it can be the server: keep it where only its owner can read it.
#[derive(Debug)]
pub struct ServerKey(pub(crate) Identity);

impl ServerKey {
    /// A new one.
    ///
    /// # Panics
    ///
    /// When the operating system gives no randomness.
    pub fn generate() -> Self {
        Self(Identity::generate())
    }

    /// What [`from_bytes`](Self::from_bytes) reads, wiped after use.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        self.0.to_bytes()
    }

    /// What was written once; `None` for anything else, damaged or of a later version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Identity::from_bytes(bytes).map(Self)
    }

    /// A ticket of the server with this key, which need not run, with a secret of its own: good as long as the server has that on its
    /// [list](crate::AccessList). `addresses` are `host:port`, best first.
    ///
    /// # Errors
    /// An address is not of that form, or there are none or too many.
    pub fn ticket(
        &self,
        addresses: &[String],
        secret: &TicketSecret,
    ) -> Result<Ticket, TicketError> {
        self.0.ticket_with(addresses, secret)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(..)")
    }
}

/// SHA-256 of a certificate (DER): what tickets pin.
pub(crate) fn pin_of(certificate: &[u8]) -> [u8; PIN_LEN] {
    sha256(&[certificate])
}

fn checksum(payload: &[u8]) -> [u8; CHECKSUM_LEN] {
    let [a, b, c, d, ..] = sha256(&[PREFIX.as_bytes(), payload]);
    [a, b, c, d]
}

fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    parts.iter().for_each(|part| context.update(part));
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}

/// `name:port`, `1.2.3.4:port` or `[v6]:port`, port not 0; nothing that a resolver or a terminal
/// could misunderstand.
pub(crate) fn is_address(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else {
        return false;
    };
    let port_ok =
        port.bytes().all(|c| c.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|p| p > 0);
    let host_ok = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(v6) => v6.parse::<Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host
                    .bytes()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_'))
        }
    };
    port_ok && host_ok && address.len() <= MAX_ADDRESS_LEN
}

pub(crate) fn base32(bytes: &[u8]) -> Zeroizing<String> {
    let mut out = Zeroizing::new(String::with_capacity(bytes.len().div_ceil(5) * 8));
    for chunk in bytes.chunks(5) {
        let mut group = [0; 8];
        group[3..][..chunk.len()].copy_from_slice(chunk);
        let bits = u64::from_be_bytes(group);
        for i in 0..(chunk.len() * 8).div_ceil(5) {
            out.push(char::from(BASE32[(bits >> (35 - 5 * i)) as usize & 31]));
        }
    }
    out
}

/// `None` unless the text is exactly what [`base32`] writes, but for capital letters.
pub(crate) fn unbase32(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let mut out = Zeroizing::new(Vec::with_capacity(text.len() * 5 / 8));
    let (mut bits, mut count) = (0u32, 0);
    for c in text.bytes() {
        let value = match c.to_ascii_lowercase() {
            c @ b'a'..=b'z' => c - b'a',
            c @ b'2'..=b'7' => c - b'2' + 26,
            _ => return None,
        };
        bits = (bits << 5 | u32::from(value)) & 0xfff;
        count += 5;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    (count < 5 && bits & ((1 << count) - 1) == 0).then_some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ticket(addresses: &[&str]) -> Result<Ticket, TicketError> {
        let addresses = addresses.iter().map(|a| (*a).to_owned()).collect();
        Ticket::new(addresses, [7; 32], Zeroizing::new([9; 32]))
    }

    #[test]
    fn a_key_that_is_kept_is_the_same_and_a_damaged_one_is_none() {
        let key = ServerKey::generate();
        let bytes = key.to_bytes();
        let again = ServerKey::from_bytes(&bytes).expect("what was written");
        let at = ["a.example:1".to_owned()];
        let own = key.0.own_secret();
        assert_eq!(again.0.own_secret(), own);
        assert_eq!(again.ticket(&at, &own), key.ticket(&at, &own));
        assert_eq!(again.to_bytes(), bytes);
        for end in 0..bytes.len() {
            assert!(ServerKey::from_bytes(&bytes[..end]).is_none());
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1;
            assert!(ServerKey::from_bytes(&damaged).is_none());
        }
    }

    #[test]
    fn vector() {
        let text = "sphx1beeqscijbeeqscijbeeqscijbeeqscijbeeqscijbeeqscijbeeqobyha4dqobyha\
                    4dqobyha4dqobyha4dqobyha4dqobyha4dqobyqmv4gc3lqnrss433sm45dinbtgn3zokc2";
        let written = ticket(&["example.org:4433"]).expect("valid").to_string();
        assert_eq!(written, text);
    }

    #[test]
    fn base32_vectors_of_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "my"),
            ("fo", "mzxq"),
            ("foo", "mzxw6"),
            ("foob", "mzxw6yq"),
            ("fooba", "mzxw6ytb"),
            ("foobar", "mzxw6ytboi"),
        ] {
            assert_eq!(*base32(bytes.as_bytes()), text);
            assert_eq!(
                unbase32(text).as_deref().map(Vec::as_slice),
                Some(bytes.as_bytes())
            );
        }
        for wrong in ["m", "mz1w6", "mzx", "mzxw6ytboj", "mzxw6===", "mä"] {
            assert_eq!(unbase32(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn addresses_are_checked() {
        for right in [
            "a:1",
            "[::1]:65535",
            "10.0.0.1:80",
            "sub.example-1.org:4433",
        ] {
            let ticket = ticket(&[right]).expect("valid");
            assert_eq!(ticket.addresses(), [right]);
            assert_eq!(ticket.to_string().parse(), Ok(ticket));
        }
        let long = format!("{}:1", "a".repeat(254));
        for wrong in [
            "", "a", "a:", ":1", "a:0", "a:65536", "a:+1", "::1:80", "[::1]", "[a]:1", "a b:1",
            "a\n:1", "ä:1", &long,
        ] {
            assert_eq!(
                ticket(&[wrong]),
                Err(TicketError::Address(wrong.to_owned())),
                "{wrong}"
            );
        }
        assert_eq!(ticket(&[]), Err(TicketError::Size));
        assert_eq!(ticket(&["a:1"; 17]), Err(TicketError::Size));
        assert_eq!(ticket(&[&long[1..]; 6]), Err(TicketError::Size));
    }

    #[test]
    fn usage_errors_are_told_apart() {
        let text = ticket(&["a:1"]).expect("valid").to_string();
        for (wrong, error) in [
            (String::new(), TicketError::NotATicket),
            ("/tmp/file".to_owned(), TicketError::NotATicket),
            (text.replace("sphx1", "sphx2"), TicketError::NotATicket),
            ("sphx1".to_owned(), TicketError::Damaged),
            (text[..text.len() - 1].to_owned(), TicketError::Damaged),
            (format!("{text}a"), TicketError::Damaged),
            (format!("{text}{text}"), TicketError::Damaged),
            ("sphx1".repeat(500), TicketError::Size),
        ] {
            assert_eq!(wrong.parse::<Ticket>(), Err(error), "{wrong}");
        }
        for at in PREFIX.len()..text.len() {
            let mut typo = text.clone().into_bytes();
            typo[at] = if typo[at] == b'a' { b'b' } else { b'a' };
            let typo = String::from_utf8(typo).expect("ASCII");
            assert_eq!(typo.parse::<Ticket>(), Err(TicketError::Damaged));
        }
    }

    #[test]
    fn a_server_may_be_reached_elsewhere() {
        let ticket = ticket(&["10.0.0.1:7"]).expect("valid");
        let elsewhere = ticket.at(&["example.org:7".to_owned()]).expect("valid");
        assert_eq!(elsewhere.addresses(), ["example.org:7"]);
        assert_eq!(
            (elsewhere.pin(), elsewhere.secret()),
            (ticket.pin(), ticket.secret())
        );
        assert_eq!(ticket.at(&[]), Err(TicketError::Size));
    }

    #[test]
    fn files_and_shouting_are_forgiven() {
        let ticket = ticket(&["a:1"]).expect("valid");
        let text = format!(" {}\r\n", ticket.to_string().to_ascii_uppercase());
        assert_eq!(text.parse(), Ok(ticket));
    }

    #[test]
    fn identities_differ_and_keep_their_secret() {
        let (one, two) = (Identity::generate(), Identity::generate());
        assert_ne!(one.pin(), two.pin());
        assert_ne!(one.secret, two.secret);
        let ticket = one
            .ticket_with(&["localhost:9".to_owned()], &one.own_secret())
            .expect("valid");
        assert_eq!(ticket.pin(), &pin_of(one.certificate()));
        assert_eq!(ticket.secret, one.secret);
        for text in [format!("{ticket:?}"), format!("{one:?}")] {
            assert!(!text.contains(&format!("{:?}", one.secret[0..2].to_vec())));
            assert!(text.len() < 80, "{text}");
        }
    }

    proptest! {
        #[test]
        fn parsing_is_total(text in "(sphx1)?[a-z2-7]{0,200}", any in any::<String>()) {
            prop_assert!(text.parse::<Ticket>().is_err());
            prop_assert!(any.parse::<Ticket>().is_err());
        }

        /// Even with a right checksum.
        #[test]
        fn payloads_are_checked(payload in prop::collection::vec(any::<u8>(), 0..200)) {
            let text = Ticket::text_of(&payload);
            if let Ok(ticket) = text.parse::<Ticket>() {
                prop_assert_eq!(ticket.to_string(), text);
            }
        }

        #[test]
        fn round_trip(
            addresses in prop::collection::vec("[a-z0-9.-]{1,60}:[1-9][0-9]{0,3}", 1..=16),
            pin in any::<[u8; 32]>(),
            secret in any::<[u8; 32]>(),
        ) {
            if let Ok(ticket) = Ticket::new(addresses, pin, Zeroizing::new(secret)) {
                let text = ticket.to_string();
                prop_assert!(text.len() <= MAX_TICKET_LEN);
                prop_assert_eq!(text.parse(), Ok(ticket));
            }
        }
    }
}
