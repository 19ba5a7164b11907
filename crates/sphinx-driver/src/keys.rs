//! The key schedule, sealing and opening of data packets, header protection and key epochs
//! (`docs/protocol.md` §3 and §4).
//!
//! [`SessionSecret`] comes out of the handshake; a [`Sealer`] and an [`Opener`] per direction and
//! path come out of it. Neither allocates per packet. A receiver drives its side in this order:
//! [`Opener::unprotect`], [`ReplayWindow::expected`] to expand the packet number,
//! [`ReplayWindow::check`], [`Opener::open`], [`ReplayWindow::commit`].

mod replay;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{self, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::{constant_time, hkdf, hmac};
use sphinx_proto::wire::{HEADER_LEN, Header, OVERHEAD, TAG_LEN};
use sphinx_proto::{Nanos, PacketNumber, PathId, Time};
use zeroize::Zeroizing;

pub use replay::{Arrival, ReplayWindow};

/// Most packets sealed with one key (§3; the confidentiality limit of RFC 9001 §6.6).
const EPOCH_PACKETS: u64 = 1 << 23;
/// Most packets of a session that may fail to open (§3; the integrity limit of RFC 9001 §6.6).
const FAILURES_MAX: u64 = 1 << 52;
/// An epoch lasts at least so long (§3): no link carries 2^23 packets in this time, and a peer that flips the phase with every
/// packet would have a key derived for each.
const EPOCH_TIME_MIN: Nanos = 1_000_000;
/// The previous epoch's key is kept for this many probe timeouts (§3).
const PREVIOUS_KEY_PTOS: u64 = 3;
/// Length in bytes of the exporter output, of the ticket's secret and of the proof.
pub const SECRET_LEN: usize = 32;
/// Bytes of sealed body and tag that make the header-protection mask.
const SAMPLE_LEN: usize = 16;

type Secret = Zeroizing<[u8; SECRET_LEN]>;

/// Who sends the packets that a key seals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The end that connected sends.
    ClientToServer,
    /// The end that listened sends.
    ServerToClient,
}

impl Direction {
    fn label(self) -> &'static [u8] {
        match self {
            Direction::ClientToServer => b"c2s",
            Direction::ServerToClient => b"s2c",
        }
    }

    /// The other direction.
    pub fn reverse(self) -> Self {
        match self {
            Direction::ClientToServer => Direction::ServerToClient,
            Direction::ServerToClient => Direction::ClientToServer,
        }
    }
}

/// `prk` of §3: what the TLS handshake and the ticket's secret together give.
#[derive(Clone)]
pub struct SessionSecret(Secret);

impl SessionSecret {
    /// From the ticket's secret and the output of the TLS exporter.
    pub fn new(ticket_secret: &[u8; SECRET_LEN], exporter: &[u8; SECRET_LEN]) -> Self {
        // HKDF-Extract is HMAC (RFC 5869 §2.2).
        let tag = hmac::sign(
            &hmac::Key::new(hmac::HMAC_SHA256, ticket_secret),
            exporter.as_slice(),
        );
        let mut prk = Secret::default();
        prk.copy_from_slice(tag.as_ref());
        Self(prk)
    }

    /// What the client sends to show that it holds the ticket's secret.
    pub fn proof(&self) -> Secret {
        expand(&self.0, &[b"sphinx/2 proof"])
    }

    /// Whether `proof` is the one of this session; takes the same time wherever it differs.
    pub fn verify_proof(&self, proof: &[u8; SECRET_LEN]) -> bool {
        constant_time::verify_slices_are_equal(self.proof().as_slice(), proof).is_ok()
    }

    /// Seals what this end sends in `direction` on `path`.
    pub fn sealer(&self, direction: Direction, path: PathId) -> Sealer {
        let secret = self.epoch_zero(direction, path);
        Sealer {
            path,
            hp: HeaderKey::new(&secret),
            key: EpochKey::new(&secret),
            secret,
            epoch: 0,
            epoch_packets: EPOCH_PACKETS,
            first: PacketNumber::ZERO,
            next: PacketNumber::ZERO,
            confirmed: false,
        }
    }

    /// Keys of the end that sends in `direction`, on `path`.
    pub fn keys(&self, direction: Direction, path: PathId) -> Keys {
        Keys {
            sealer: self.sealer(direction, path),
            opener: self.opener(direction.reverse(), path),
            origin: Some((self.clone(), direction)),
        }
    }

    /// Opens what this end receives from `direction` on `path`.
    pub fn opener(&self, direction: Direction, path: PathId) -> Opener {
        let secret = self.epoch_zero(direction, path);
        let next_secret = update(&secret);
        Opener {
            path,
            hp: HeaderKey::new(&secret),
            previous: None,
            current: EpochKey::new(&secret),
            next: EpochKey::new(&next_secret),
            next_secret,
            epoch: 0,
            next_from: Time::ZERO,
            opened: None,
            failures: 0,
            failures_max: FAILURES_MAX,
        }
    }

    fn epoch_zero(&self, direction: Direction, path: PathId) -> Secret {
        expand(
            &self.0,
            &[b"sphinx/2 ", direction.label(), &path.get().to_be_bytes()],
        )
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionSecret(..)")
    }
}

/// Why a packet was not sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The packet number is not above every number sealed before, so a nonce would repeat.
    #[error("packet number used before")]
    NumberUsed,
    /// The epoch is used up and the peer has not acknowledged any packet of it.
    #[error("key used up before the peer acknowledged any packet sealed with it")]
    EpochExhausted,
    /// The buffer does not have the size that the plaintext needs.
    #[error("datagram buffer has the wrong size")]
    BufferSize,
}

/// Why a packet was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It is not from the peer, or damaged, or of a forgotten epoch.
    #[error("packet does not open")]
    Invalid,
    /// So many packets did not open that a forged one might: none is opened any more.
    #[error("too many packets did not open")]
    TooManyInvalid,
}

/// Seals the packets of one direction and path, and moves through the epochs.
pub struct Sealer {
    path: PathId,
    hp: HeaderKey,
    key: EpochKey,
    secret: Secret,
    epoch: u64,
    epoch_packets: u64,
    /// First packet number of the epoch.
    first: PacketNumber,
    /// One above the largest packet number sealed.
    next: PacketNumber,
    /// A packet of the epoch has been acknowledged.
    confirmed: bool,
}

impl Sealer {
    /// Same, but an epoch lasts `packets` packets, instead of 2^23: lets tests see many epochs.
    pub fn with_epoch_packets(mut self, packets: u64) -> Self {
        self.epoch_packets = packets;
        self
    }

    /// Key phase of the packets being sealed: the epoch's lowest bit.
    pub fn phase(&self) -> bool {
        self.epoch & 1 == 1
    }

    /// Epochs begun, counted from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The peer has acknowledged `packet_number`; lets the next epoch begin in its time.
    pub fn acked(&mut self, packet_number: PacketNumber) {
        if (self.first..self.next).contains(&packet_number) {
            self.confirmed = true;
        }
    }

    /// Seals `datagram` in place: 22 bytes for the header, the plaintext body, 16 bytes for the tag.
    ///
    /// `phase` and `packet_number` of `header` are not looked at. Packet numbers must rise from call
    /// to call; gaps are allowed. On an error neither the datagram nor the sealer has changed.
    pub fn seal(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        let Some(body_len) = datagram.len().checked_sub(OVERHEAD) else {
            return Err(SealError::BufferSize);
        };
        self.admit(packet_number)?;
        let header = Header {
            phase: self.phase(),
            packet_number: packet_number.truncated(),
            ..*header
        };
        let head = header.encode();
        datagram[..HEADER_LEN].copy_from_slice(&head);
        let (body, tag) = datagram[HEADER_LEN..].split_at_mut(body_len);
        let sealed = self
            .key
            .aead
            .seal_in_place_separate_tag(
                self.key.nonce(self.path, packet_number),
                Aad::from(head),
                body,
            )
            .expect("a datagram is far below the size limit of AES-GCM");
        tag.copy_from_slice(sealed.as_ref());
        self.hp.apply(datagram);
        Ok(())
    }

    /// Seals a copy of `body` into `datagram`, which has exactly 38 bytes more. Else as [`seal`].
    ///
    /// [`seal`]: Self::seal
    #[cfg(test)]
    pub fn seal_from(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        body: &[u8],
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        if datagram.len() != body.len() + OVERHEAD {
            return Err(SealError::BufferSize);
        }
        datagram[HEADER_LEN..][..body.len()].copy_from_slice(body);
        self.seal(header, packet_number, datagram)
    }

    /// Takes the packet number, after beginning the next epoch when it is time.
    fn admit(&mut self, packet_number: PacketNumber) -> Result<(), SealError> {
        if packet_number < self.next || packet_number == PacketNumber::MAX {
            return Err(SealError::NumberUsed);
        }
        if packet_number - self.first >= self.epoch_packets {
            if !self.confirmed {
                return Err(SealError::EpochExhausted);
            }
            self.secret = update(&self.secret);
            self.key = EpochKey::new(&self.secret);
            self.epoch += 1;
            self.first = packet_number;
            self.confirmed = false;
        }
        self.next = packet_number + 1;
        Ok(())
    }
}

/// Both ends of a session's packet protection at one end: what it sends, and what it receives.
pub struct Keys {
    /// Of what this end sends.
    pub sealer: Sealer,
    /// Of what it receives.
    pub opener: Opener,
    /// What those of other paths come from, and the direction in which this end sends; without it there are none.
    pub origin: Option<(SessionSecret, Direction)>,
}

/// Opens the packets of one direction and path, and follows the epochs.
pub struct Opener {
    path: PathId,
    hp: HeaderKey,
    /// The epoch before, and when to forget it.
    previous: Option<(EpochKey, Time)>,
    current: EpochKey,
    /// Derived ahead, so that a forged phase costs no more than any other forgery
    /// (RFC 9001 §6.3).
    next: EpochKey,
    next_secret: Secret,
    epoch: u64,
    /// The next epoch does not begin before.
    next_from: Time,
    /// Smallest and largest packet number opened with the current key.
    opened: Option<(PacketNumber, PacketNumber)>,
    /// Packets that some key did not open, in all epochs, and how many of them there may be.
    failures: u64,
    failures_max: u64,
}

impl Opener {
    /// Same, but at most `packets` packets may fail to open, instead of 2^52: lets tests see what follows.
    pub fn with_failures_max(mut self, packets: u64) -> Self {
        self.failures_max = packets;
        self
    }

    /// The epoch of the newest packets opened, counted from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Removes the header protection in place. `None` when the datagram is too short or the header
    /// is not one of this version; the packet is then to be dropped, and its bytes are garbage.
    pub fn unprotect(&self, datagram: &mut [u8]) -> Option<Header> {
        if datagram.len() < OVERHEAD {
            return None;
        }
        self.hp.apply(datagram);
        Header::decode(datagram.first_chunk()?)
    }

    /// Opens, in place, a datagram whose header protection has been removed, and returns where the
    /// plaintext body lies in it.
    ///
    /// `header` is what [`unprotect`] returned, `packet_number` its expansion to 64 bits, `now`
    /// a clock that never steps back and `pto` the present probe timeout; they decide how long
    /// the previous epoch's key is kept. After an error the opener is as before and the datagram's
    /// bytes are garbage.
    ///
    /// [`unprotect`]: Self::unprotect
    pub fn open(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        datagram: &mut [u8],
        now: Time,
        pto: Nanos,
    ) -> Result<Range<usize>, OpenError> {
        if self.failures > self.failures_max {
            return Err(OpenError::TooManyInvalid);
        }
        if self
            .previous
            .as_ref()
            .is_some_and(|(_, until)| *until < now)
        {
            self.previous = None;
        }
        let current_phase = self.epoch & 1 == 1;
        let (key, is_next) = match self.opened {
            _ if header.phase == current_phase => (&self.current, false),
            Some((_, largest)) if packet_number > largest && now >= self.next_from => {
                (&self.next, true)
            }
            Some((smallest, _)) if packet_number < smallest => {
                (&self.previous.as_ref().ok_or(OpenError::Invalid)?.0, false)
            }
            _ => return Err(OpenError::Invalid),
        };
        let Some(len) = key.open(self.path, packet_number, datagram) else {
            self.failures += 1;
            return Err(match self.failures > self.failures_max {
                true => OpenError::TooManyInvalid,
                false => OpenError::Invalid,
            });
        };

        if is_next {
            let until = now.saturating_add(pto.saturating_mul(PREVIOUS_KEY_PTOS));
            self.next_secret = update(&self.next_secret);
            let next = EpochKey::new(&self.next_secret);
            let current = std::mem::replace(&mut self.next, next);
            let previous = std::mem::replace(&mut self.current, current);
            self.previous = Some((previous, until));
            self.epoch += 1;
            self.next_from = now.saturating_add(EPOCH_TIME_MIN);
            self.opened = Some((packet_number, packet_number));
        } else if header.phase == current_phase {
            let (smallest, largest) = self.opened.unwrap_or((packet_number, packet_number));
            self.opened = Some((smallest.min(packet_number), largest.max(packet_number)));
        }
        Ok(HEADER_LEN..HEADER_LEN + len)
    }
}

/// Key and IV of one epoch.
struct EpochKey {
    aead: LessSafeKey,
    iv: Zeroizing<[u8; aead::NONCE_LEN]>,
}

impl EpochKey {
    fn new(secret: &Secret) -> Self {
        let key = expand::<16>(secret, &[b"sphinx/2 key"]);
        let key = UnboundKey::new(&aead::AES_128_GCM, key.as_slice()).expect("16 bytes, as needed");
        Self {
            aead: LessSafeKey::new(key),
            iv: expand(secret, &[b"sphinx/2 iv"]),
        }
    }

    fn nonce(&self, path: PathId, packet_number: PacketNumber) -> Nonce {
        let mut nonce = *self.iv;
        let (of_path, of_packet) = nonce.split_at_mut(4);
        for (n, p) in of_path.iter_mut().zip(path.get().to_be_bytes()) {
            *n ^= p;
        }
        for (n, p) in of_packet.iter_mut().zip(packet_number.get().to_be_bytes()) {
            *n ^= p;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    /// Opens in place; the length of the plaintext, if the packet is whole.
    fn open(
        &self,
        path: PathId,
        packet_number: PacketNumber,
        datagram: &mut [u8],
    ) -> Option<usize> {
        let (head, sealed) = datagram.split_first_chunk_mut::<HEADER_LEN>()?;
        if sealed.len() < TAG_LEN {
            return None;
        }
        self.aead
            .open_in_place(self.nonce(path, packet_number), Aad::from(*head), sealed)
            .map(|body| body.len())
            .ok()
    }
}

/// Key of the header protection; one for all epochs.
struct HeaderKey(EncryptingKey);

impl HeaderKey {
    fn new(secret: &Secret) -> Self {
        let key = expand::<16>(secret, &[b"sphinx/2 hp"]);
        let key = UnboundCipherKey::new(&cipher::AES_128, key.as_slice())
            .and_then(EncryptingKey::ecb)
            .expect("16 bytes, as needed");
        Self(key)
    }

    fn mask(&self, sample: [u8; SAMPLE_LEN]) -> [u8; SAMPLE_LEN] {
        let mut mask = sample;
        self.0
            .less_safe_encrypt(&mut mask, EncryptionContext::None)
            .expect("one whole block");
        mask
    }

    /// Protects or unprotects; the datagram has at least 38 bytes.
    fn apply(&self, datagram: &mut [u8]) {
        let Some((head, sealed)) = datagram.split_first_chunk_mut::<HEADER_LEN>() else {
            return;
        };
        let Some(sample) = sealed.first_chunk() else {
            return;
        };
        let mask = self.mask(*sample);
        head[0] ^= mask[0] & 0x3f;
        for (h, m) in head[9..].iter_mut().zip(&mask[1..]) {
            *h ^= m;
        }
    }
}

fn update(secret: &Secret) -> Secret {
    expand(secret, &[b"sphinx/2 update"])
}

/// HKDF-Expand with SHA-256 (RFC 5869 §2.3).
fn expand<const N: usize>(secret: &Secret, info: &[&[u8]]) -> Zeroizing<[u8; N]> {
    struct Len(usize);
    impl hkdf::KeyType for Len {
        fn len(&self) -> usize {
            self.0
        }
    }
    let mut out = Zeroizing::new([0; N]);
    hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret.as_slice())
        .expand(info, Len(N))
        .and_then(|okm| okm.fill(out.as_mut_slice()))
        .expect("far below the limit of 255 hashes");
    out
}
