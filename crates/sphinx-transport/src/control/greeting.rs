//! The greeting of a client: shows with its first datagram that it has a ticket of the server.

use aws_lc_rs::{constant_time, hmac};

use crate::access::DOOR_KEY_LEN;

/// Length in bytes of a greeting, and of the random part that it begins with.
pub(crate) const GREETING_LEN: usize = 20;
const GREETING_NONCE_LEN: usize = 8;

/// The destination connection id of a client's first datagrams (§2): whoever has the door key sees
/// that the client has it too. All tickets of a server have the same, so that one look is enough however many there are.
pub(crate) fn greeting(
    door_key: &[u8; DOOR_KEY_LEN],
    nonce: [u8; GREETING_NONCE_LEN],
) -> [u8; GREETING_LEN] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, door_key);
    // Of no version: ends of different versions have to get so far that they can tell each other.
    let tag = hmac::sign(&key, &[&b"sphinx greeting"[..], &nonce].concat());
    let mut greeting = [0; GREETING_LEN];
    let (head, tail) = greeting.split_at_mut(GREETING_NONCE_LEN);
    head.copy_from_slice(&nonce);
    tail.copy_from_slice(&tag.as_ref()[..GREETING_LEN - GREETING_NONCE_LEN]);
    greeting
}

/// Whether a connection id is a greeting by somebody with the door key.
pub(crate) fn is_greeting(door_key: &[u8; DOOR_KEY_LEN], cid: &[u8]) -> bool {
    let Some(nonce) = cid.first_chunk::<GREETING_NONCE_LEN>() else {
        return false;
    };
    constant_time::verify_slices_are_equal(&greeting(door_key, *nonce), cid).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector of `docs/protocol.md` §12.
    #[test]
    fn vector() {
        let key: [u8; DOOR_KEY_LEN] = std::array::from_fn(|i| 32 + i as u8);
        let expected = [
            0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0xfd, 0x4f, 0x4d, 0x55, 0x2a, 0xab,
            0x8b, 0x66, 0xc2, 0x83, 0x1b, 0x57,
        ];
        assert_eq!(greeting(&key, [1, 2, 3, 4, 5, 6, 7, 8]), expected);
        assert!(is_greeting(&key, &expected));
    }
}
