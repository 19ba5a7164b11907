//! The greeting of a client: shows with its first datagram that it has the ticket's secret.

use aws_lc_rs::{constant_time, hmac};
use sphinx_driver::keys::SECRET_LEN;

/// Length in bytes of a greeting, and of the random part that it begins with.
pub(crate) const GREETING_LEN: usize = 20;
const GREETING_NONCE_LEN: usize = 8;

/// The destination connection id of a client's first datagrams (§2): whoever has the ticket's secret sees
/// that the client has it too.
pub(crate) fn greeting(
    ticket_secret: &[u8; SECRET_LEN],
    nonce: [u8; GREETING_NONCE_LEN],
) -> [u8; GREETING_LEN] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, ticket_secret);
    let tag = hmac::sign(&key, &[&b"sphinx/1 greeting"[..], &nonce].concat());
    let mut greeting = [0; GREETING_LEN];
    let (head, tail) = greeting.split_at_mut(GREETING_NONCE_LEN);
    head.copy_from_slice(&nonce);
    tail.copy_from_slice(&tag.as_ref()[..GREETING_LEN - GREETING_NONCE_LEN]);
    greeting
}

/// Whether a connection id is a greeting by somebody with the ticket's secret.
pub(crate) fn is_greeting(ticket_secret: &[u8; SECRET_LEN], cid: &[u8]) -> bool {
    let Some(nonce) = cid.first_chunk::<GREETING_NONCE_LEN>() else {
        return false;
    };
    constant_time::verify_slices_are_equal(&greeting(ticket_secret, *nonce), cid).is_ok()
}
