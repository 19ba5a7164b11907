//! What protects packets that leave before the handshake is over (`docs/protocol.md` §3.1): a secret that an earlier session of the
//! same two ends has agreed on, and the greeting of this one.

use std::fmt;

use aws_lc_rs::aead::Aad;
use aws_lc_rs::hmac;
use sphinx_proto::wire::{ConnectionId, TAG_LEN};
use sphinx_proto::{PacketNumber, PathId};

use super::{Direction, EpochKey, Keys, Opener, SECRET_LEN, Sealer, Secret, SessionSecret, expand};

impl SessionSecret {
    /// What a later session between the same ends may begin with, once; `cid` names it.
    pub fn resumption(&self, cid: ConnectionId) -> Secret {
        expand(&self.0, &[b"sphinx/2 resume", &cid.bytes()])
    }
}

/// `early` of §3.1: of one connection, as its greeting is.
#[derive(Clone)]
pub struct EarlySecret(Secret);

impl EarlySecret {
    /// From what the earlier session has agreed on and the greeting, which is never the same twice.
    pub fn new(resumption: &[u8; SECRET_LEN], greeting: &[u8]) -> Self {
        // HKDF-Extract is HMAC (RFC 5869 §2.2).
        let key = hmac::Key::new(hmac::HMAC_SHA256, greeting);
        let mut early = Secret::default();
        early.copy_from_slice(hmac::sign(&key, resumption).as_ref());
        Self(early)
    }

    /// Seals what the client says of itself. To be called once: there is one nonce.
    pub fn seal_parameters(&self, cid: ConnectionId, parameters: &[u8]) -> Vec<u8> {
        let mut sealed = parameters.to_vec();
        let key = self.parameters_key();
        let nonce = key.nonce(PathId::FIRST, PacketNumber::ZERO);
        key.aead
            .seal_in_place_append_tag(nonce, Aad::from(cid.bytes()), &mut sealed)
            .expect("parameters are far below the size limit of AES-GCM");
        sealed
    }

    /// Opens that; `None` if it was not sealed by who has the same secret and greeting.
    pub fn open_parameters(&self, cid: ConnectionId, sealed: &[u8]) -> Option<Vec<u8>> {
        if sealed.len() < TAG_LEN {
            return None;
        }
        let key = self.parameters_key();
        let nonce = key.nonce(PathId::FIRST, PacketNumber::ZERO);
        let mut parameters = sealed.to_vec();
        let aad = Aad::from(cid.bytes());
        let opened = key.aead.open_in_place(nonce, aad, &mut parameters).ok()?;
        let len = opened.len();
        parameters.truncate(len);
        Some(parameters)
    }

    fn parameters_key(&self) -> EpochKey {
        EpochKey::new(&expand(&self.0, &[b"sphinx/2 early parameters"]))
    }

    /// Keys of the first path for the end that sends in `direction`, good until they are [confirmed](Keys::confirm).
    pub fn keys(&self, direction: Direction) -> Keys {
        Keys {
            sealer: Sealer::new(self.secret(direction), PathId::FIRST),
            opener: Opener::early(&self.secret(direction.reverse()), PathId::FIRST),
            origin: None,
        }
    }

    pub(super) fn secret(&self, direction: Direction) -> Secret {
        expand(&self.0, &[b"sphinx/2 early ", direction.label()])
    }
}

impl fmt::Debug for EarlySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EarlySecret(..)")
    }
}

impl Keys {
    /// The handshake is over: what this end, which sends in `direction`, seals from now on is of the next epoch, whose keys are the handshake's, and so
    /// are those of other paths. What still comes of the early epoch opens until three probe timeouts after the first packet of the next one.
    pub fn confirm(&mut self, secret: &SessionSecret, direction: Direction) {
        self.sealer
            .follow_with(secret.epoch_zero(direction, PathId::FIRST));
        self.opener
            .follow_with(secret.epoch_zero(direction.reverse(), PathId::FIRST));
        self.origin = Some((secret.clone(), direction));
    }
}
