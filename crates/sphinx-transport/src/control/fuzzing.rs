//! What the fuzz target `greetings` runs (`docs/fuzzing.md`).

use std::time::{Duration, Instant};

use sphinx_fuzz::Input;

use super::door::Door;
use super::greeting::{GREETING_LEN, greeting, is_greeting};
use super::params::Credential;
use super::session::identify;
use crate::access::{AccessList, ClientKey, DOOR_KEY_LEN, Guests, TicketSecret};
use sphinx_driver::keys::SECRET_LEN;
use sphinx_proto::wire::Reader;

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
    list.add_ticket(TicketSecret::new([5; 16]), true);
    list.add_key(ClientKey::generate().public_key());
    let guests = Guests::new(list);
    if let Ok(credential) = Credential::take(&mut Reader::new(data)) {
        let (proof, exporter) = ([1; SECRET_LEN], [2; SECRET_LEN]);
        assert!(identify(Some(&credential), &proof, &guests, &KEY, &exporter).is_none());
    }
}
