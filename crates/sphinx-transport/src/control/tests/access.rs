//! Several tickets, clients with keys, and those who may not come.

use std::sync::atomic::{AtomicUsize, Ordering};

use quinn_proto::{Dir, Side, StreamId};

use super::*;
use crate::access::{Access, ClientKey, Peer, TicketSecret};
use crate::control::params::Credential;

/// A signature over a proof by one of two keys.
type Forge = fn(&ClientKey, &ClientKey, &[u8; 32]) -> [u8; 64];

const AT: &str = "10.0.0.2:4433";

/// How the handshake of a client with `ticket` ends at a server with this list: who it is, or what both are told.
fn meet(identity: &Identity, list: AccessList, ticket: &Ticket) -> Result<Peer, String> {
    meet_at(identity, Guests::new(list), ticket)
}

fn meet_at(identity: &Identity, guests: Guests, ticket: &Ticket) -> Result<Peer, String> {
    let server = Control::server(identity, guests, settings(Service::PERF), ids());
    let mut net = Net::new(Control::client(ids()), server);
    net.connect(ticket, Service::PERF);
    net.run(ms(1000));
    let who = net
        .server()
        .events
        .iter()
        .find_map(|(_, event)| match event {
            Event::Established { who, .. } => Some(who.expect("a client is somebody")),
            _ => None,
        });
    match (who, net.client().failure()) {
        (Some(who), None) => Ok(who),
        (None, Some(Failure::Authentication(why))) => Err(why.clone()),
        (who, failure) => panic!("{who:?}: {failure:?}"),
    }
}

fn list_of(secrets: &[&TicketSecret], keys: &[&ClientKey]) -> AccessList {
    let mut list = AccessList::new();
    secrets
        .iter()
        .for_each(|secret| list.add_ticket((*secret).clone(), true));
    keys.iter().for_each(|key| list.add_key(key.public_key()));
    list
}

fn ticket(identity: &Identity, secret: &TicketSecret) -> Ticket {
    identity
        .ticket_with(&[AT.to_owned()], secret)
        .expect("valid")
}

#[test]
fn each_ticket_is_known_and_one_can_be_taken_back() {
    let identity = Identity::generate();
    let [a, b] = [TicketSecret::generate(), TicketSecret::generate()];
    let list = list_of(&[&a, &b], &[]);
    for secret in [&a, &b] {
        let met = meet(&identity, list.clone(), &ticket(&identity, secret));
        assert_eq!(met, Ok(Peer::Ticket(secret.id())));
    }
    let one = list_of(&[&a], &[]);
    let refused = meet(&identity, one.clone(), &ticket(&identity, &b)).unwrap_err();
    assert!(refused.contains("revoked"), "{refused}");
    assert!(meet(&identity, one, &ticket(&identity, &a)).is_ok());
    let mut used_up = list;
    used_up.add_ticket(a.clone(), false);
    assert!(meet(&identity, used_up, &ticket(&identity, &a)).is_err());
}

#[test]
fn who_is_not_on_the_list_is_looked_for_before_being_refused() {
    let identity = Identity::generate();
    let [known, new, unknown] = [(); 3].map(|()| TicketSecret::generate());
    let key = ClientKey::generate();
    let by_key = ticket(&identity, &new)
        .without_secret()
        .with_key(key.clone());
    let guests = Guests::new(list_of(&[&known], &[]));
    let access = Access::new(guests.clone(), Vec::new());
    let (changed, looks) = (access.clone(), Arc::new(AtomicUsize::new(0)));
    let (list, counted) = (list_of(&[&known, &new], &[&key]), Arc::clone(&looks));
    access.look_before_refusing(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        changed.replace(list.clone());
    });
    let met = |ticket: &Ticket| {
        let met = meet_at(&identity, guests.clone(), ticket);
        (met.is_ok(), looks.swap(0, Ordering::Relaxed))
    };
    assert_eq!(met(&ticket(&identity, &known)), (true, 0));
    assert_eq!(met(&ticket(&identity, &new)), (true, 1));
    assert_eq!(met(&by_key), (true, 0));
    assert_eq!(met(&ticket(&identity, &unknown)), (false, 1));
    access.replace(list_of(&[&known], &[]));
    assert_eq!(met(&by_key), (true, 1));
}

#[test]
fn a_key_is_shown_without_a_ticket_and_with_one() {
    let identity = Identity::generate();
    let (secret, key) = (TicketSecret::generate(), ClientKey::generate());
    let invitation = ticket(&identity, &secret);
    let joined = invitation.without_secret().with_key(key.clone());
    let public = key.public_key();
    let both = meet(
        &identity,
        list_of(&[&secret], &[]),
        &invitation.with_key(key.clone()),
    );
    assert_eq!(both, Ok(Peer::Both(secret.id(), public)));
    let by_key = meet(&identity, list_of(&[], &[&key]), &joined);
    assert_eq!(by_key, Ok(Peer::Key(public)));
    // Not one that is not known, nor the invitation alone once it is used up.
    assert!(meet(&identity, list_of(&[&secret], &[]), &joined).is_err());
    assert!(meet(&identity, list_of(&[], &[&key]), &invitation.with_key(key)).is_err());
}

/// All tickets of a server open its door; that alone is good for nothing.
#[test]
fn the_door_key_alone_is_good_for_nothing() {
    let identity = Identity::generate();
    let secret = TicketSecret::generate();
    let list = list_of(&[&secret], &[]);
    let nobody = ticket(&identity, &secret).without_secret();
    assert!(meet(&identity, list.clone(), &nobody).is_err());
    let guessed = ticket(&identity, &TicketSecret::generate());
    assert!(meet(&identity, list.clone(), &guessed).is_err());
    let unknown = nobody.with_key(ClientKey::generate());
    assert!(meet(&identity, list, &unknown).is_err());
}

/// Whoever has the door key and knows whom the server knows cannot be it: neither with another key's signature nor with one that was
/// made for another session.
#[test]
fn a_signature_is_good_for_its_key_and_session() {
    let (key, other) = (ClientKey::generate(), ClientKey::generate());
    let forged: [Forge; 3] = [
        |key, _, proof| key.sign(proof),
        |_, other, proof| other.sign(proof),
        |key, _, _| key.sign(&[7; 32]),
    ];
    for (n, forge) in forged.iter().enumerate() {
        let identity = Identity::generate();
        let guests = Guests::new(list_of(&[], &[&key]));
        let control = Control::server(&identity, guests, settings(Service::PERF), ids());
        let mut net = Net::new(Control::client(ids()), control);
        let ticket = ticket_of(&identity).without_secret().with_key(key.clone());
        let id = net.connect(&ticket, Service::PERF);
        // As if it had said its own already.
        let client = net.client().control.session(id).expect("alive");
        client.outgoing = Some(StreamId::new(Side::Client, Dir::Uni, 9));
        net.run(ms(500));
        let Some((_, Event::Established { secret, .. })) = net.client().events.pop() else {
            panic!("the server speaks first");
        };
        let proof = secret.proof();
        let settings = settings(Service::PERF);
        let cid = ids().make();
        let signature = forge(&key, &other, &proof);
        let params = Params {
            credential: Some(Credential::Key(key.public_key(), signature)),
            ..local_params(&settings, settings.budget.window(0), cid)
        };
        let message = [proof.as_slice(), &params.encode()].concat();
        let session = net.client().control.session(id).expect("alive");
        let stream = session.conn.streams().open(Dir::Uni).expect("allowed");
        let mut stream = session.conn.send_stream(stream);
        assert_eq!(stream.write(&message), Ok(message.len()));
        stream.finish().expect("open");
        let now = net.now;
        net.client().control.drive(id.handle, now);
        net.run(ms(500));
        let is_refused = matches!(net.server().failure(), Some(Failure::Authentication(_)));
        assert_eq!(is_refused, n > 0);
    }
}

/// Ten thousand clients are told apart as ten are: one look at the door, one into a table.
#[test]
fn ten_thousand_clients_are_known() {
    let identity = Identity::generate();
    let secrets: Vec<TicketSecret> = (0..10_000).map(|_| TicketSecret::generate()).collect();
    let list = list_of(&secrets.iter().collect::<Vec<_>>(), &[]);
    for secret in [&secrets[0], &secrets[9_999]] {
        let met = meet(&identity, list.clone(), &ticket(&identity, secret));
        assert_eq!(met, Ok(Peer::Ticket(secret.id())));
    }
}
