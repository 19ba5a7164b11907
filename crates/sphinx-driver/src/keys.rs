//! The key schedule, sealing and opening of data packets, header protection and key epochs
//! (`docs/protocol.md` §3 and §4).
//!
//! [`SessionSecret`] comes out of the handshake; a [`Sealer`] and an [`Opener`] per direction and
//! path come out of it. Neither allocates per packet. A receiver drives its side in this order:
//! [`Opener::unprotect`], [`ReplayWindow::expected`] to expand the packet number,
//! [`ReplayWindow::check`], [`Opener::open`], [`ReplayWindow::commit`].

mod early;
mod opening;
mod replay;
mod sealing;
#[cfg(test)]
mod tests;

use std::fmt;

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{self, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::{constant_time, hkdf, hmac};
use sphinx_proto::wire::{HEADER_LEN, TAG_LEN};
use sphinx_proto::{PacketNumber, PathId};
use zeroize::Zeroizing;

pub use early::EarlySecret;
pub use opening::{OpenError, Opener, OpeningKey};
pub use replay::{Arrival, ReplayWindow};
pub use sealing::{Permit, SealError, Sealer, SealingKey, Sequencer};

/// Length in bytes of the exporter output, of the ticket's secret and of the proof.
pub const SECRET_LEN: usize = 32;
/// Bytes of sealed body and tag that make the header-protection mask.
const SAMPLE_LEN: usize = 16;
/// Masks that are made at once.
const MASKS: usize = 32;

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
        Sealer::new(self.epoch_zero(direction, path), path)
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
        Opener::new(&self.epoch_zero(direction, path), path)
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

/// Both ends of a session's packet protection at one end: what it sends, and what it receives.
pub struct Keys {
    /// Keys of what this end sends.
    pub sealer: Sealer,
    /// Keys of what this end receives.
    pub opener: Opener,
    /// What those of other paths come from, and the direction in which this end sends; without it there are none.
    pub origin: Option<(SessionSecret, Direction)>,
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
        if let Some((of_path, of_packet)) = nonce.split_first_chunk_mut::<4>()
            && let Some(of_packet) = of_packet.first_chunk_mut::<8>()
        {
            *of_path = (u32::from_be_bytes(*of_path) ^ path.get()).to_be_bytes();
            *of_packet = (u64::from_be_bytes(*of_packet) ^ packet_number.get()).to_be_bytes();
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

    /// Opens into `body`; whether the packet is whole, and its body as long as that.
    fn open_into(
        &self,
        path: PathId,
        packet_number: PacketNumber,
        datagram: &[u8],
        body: &mut [u8],
    ) -> bool {
        let Some((head, sealed)) = datagram.split_first_chunk::<HEADER_LEN>() else {
            return false;
        };
        let Some((sealed, tag)) = sealed.split_last_chunk::<TAG_LEN>() else {
            return false;
        };
        let nonce = self.nonce(path, packet_number);
        self.aead
            .open_separate_gather(nonce, Aad::from(*head), sealed, tag, body)
            .is_ok()
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
        if let Some(sample) = sample_of(datagram) {
            apply_mask(&self.mask(*sample), datagram);
        }
    }

    /// The same of datagrams one after another, of `stride` bytes each, but for the last one; those with less than 38 stay as they are.
    fn apply_all(&self, datagrams: &mut [u8], stride: usize) {
        let mut masks = [[0; SAMPLE_LEN]; MASKS];
        for some in datagrams.chunks_mut(stride.max(1) * MASKS) {
            let mut count = 0;
            for (mask, datagram) in std::iter::zip(&mut masks, some.chunks(stride.max(1))) {
                if let Some(sample) = sample_of(datagram) {
                    *mask = *sample;
                    count += 1;
                }
            }
            self.0
                .less_safe_encrypt(masks[..count].as_flattened_mut(), EncryptionContext::None)
                .expect("whole blocks, or none");
            for (mask, datagram) in std::iter::zip(&masks[..count], some.chunks_mut(stride.max(1)))
            {
                apply_mask(mask, datagram);
            }
        }
    }
}

/// The bytes that the mask of a datagram is made of, if it has them.
fn sample_of(datagram: &[u8]) -> Option<&[u8; SAMPLE_LEN]> {
    datagram.get(HEADER_LEN..)?.first_chunk()
}

fn apply_mask(mask: &[u8; SAMPLE_LEN], datagram: &mut [u8]) {
    let Some(head) = datagram.first_chunk_mut::<HEADER_LEN>() else {
        return;
    };
    head[0] ^= mask[0] & 0x3f;
    // Bytes 9 to 21 with those of the mask behind its first one, all at once.
    let mask = u128::from_be_bytes(*mask) << 8 >> 24;
    if let Some(last) = head.last_chunk_mut::<16>() {
        *last = (u128::from_be_bytes(*last) ^ mask).to_be_bytes();
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
