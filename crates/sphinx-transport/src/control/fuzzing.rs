//! What the fuzz target `greetings` runs (`docs/fuzzing.md`).

use std::time::{Duration, Instant};

use sphinx_fuzz::Input;

use super::door::{Door, token};
use super::early::Resumptions;
use super::greeting::{GREETING_LEN, greeting, is_greeting};
use super::params::Credential;
use super::session::identify;
use crate::access::{AccessList, ClientKey, DOOR_KEY_LEN, Guests, Peer, TicketSecret};
use sphinx_driver::keys::SECRET_LEN;
use sphinx_proto::wire::{ConnectionId, Reader};
use zeroize::Zeroizing;

const KEY: [u8; DOOR_KEY_LEN] = [7; DOOR_KEY_LEN];

/// See [`crate::fuzzing::greetings`].
pub(crate) fn greetings(data: &[u8]) {
    let mut input = Input::new(data);
    let own = input.any();
    let mut door = Door::default();
    let mut now = Instant::now();
    for chunk in data.chunks(40) {
        now += Duration::from_micros(u64::from(chunk[0]));
        let remote = ([10, 0, 0, chunk[0]], 1000).into();
        let mut datagram = chunk.to_vec();
        datagram.resize(1200, 0);
        door.admits(now, remote, Some(&KEY), &datagram);
        door.admits(now, remote, None, chunk);
        let cid = &chunk[..chunk.len().min(GREETING_LEN)];
        assert!(!is_greeting(&KEY, cid) || cid.len() == GREETING_LEN);
        assert!(!is_greeting(&KEY, &datagram), "it is too long");
    }
    let known = greeting(&KEY, own.to_be_bytes());
    assert!(is_greeting(&KEY, &known) && !is_greeting(&[8; DOOR_KEY_LEN], &known));

    // Whoever does not have what is on the list gets nowhere, whatever it says.
    let mut list = AccessList::new();
    let secret = TicketSecret::new([5; 16]);
    let who = Peer::Ticket(secret.id());
    list.add_ticket(secret, true);
    list.add_key(ClientKey::generate().public_key());

    // Nor does it begin a session that others have agreed on, even if it knows its id.
    let mut resumptions = Resumptions::default();
    let id = ConnectionId::new([1; 8]).expect("not zero");
    resumptions.keep(now, id, Zeroizing::new([3; SECRET_LEN]), who);
    let named = [&id.bytes()[..], data].concat();
    for token in [token(data), Some(data), Some(&named)]
        .into_iter()
        .flatten()
    {
        assert!(
            resumptions
                .take(now, &known, token, (&list, |_| true))
                .is_none()
        );
    }
    assert!(resumptions.expects(now, id));
    let guests = Guests::new(list);
    if let Ok(credential) = Credential::take(&mut Reader::new(data)) {
        let (proof, exporter) = ([1; SECRET_LEN], [2; SECRET_LEN]);
        assert!(identify(Some(&credential), &proof, &guests, &KEY, &exporter).is_none());
    }
}
