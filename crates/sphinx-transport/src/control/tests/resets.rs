//! A server tells that it knows nothing of a session, and nothing of those that are about to begin.

use sphinx_proto::wire::{RESET_LEN, is_data_plane};

use super::*;

fn server(identity: &Identity) -> Control {
    let control = Control::server(identity, guests(identity), settings(Service::PERF), ids());
    control.with_resets(ResetKey::new(identity, 0, SERVER))
}

fn cid(n: u8) -> ConnectionId {
    ConnectionId::new([n; 8]).expect("not zero")
}

/// What is answered to a packet of `len` bytes with this id that comes from there.
fn answers(
    control: &mut Control,
    now: Instant,
    from: SocketAddr,
    cid: ConnectionId,
    len: usize,
) -> Vec<Vec<u8>> {
    let from = Tuple {
        remote: from,
        local_ip: Some(SERVER.ip()),
    };
    control.answer_stray(now, from, cid, len);
    let responses = control.responses.drain(..);
    let answers = responses.map(|(to, answer)| {
        assert_eq!((to.remote, to.local_ip), (from.remote, from.local_ip));
        answer
    });
    answers.collect()
}

#[test]
fn a_client_is_told_what_its_server_shows_when_it_has_forgotten() {
    let identity = Identity::generate();
    for tells in [true, false] {
        let mut net = Net::pair(&identity);
        if tells {
            net.server().control = server(&identity);
        }
        net.connect(&ticket_of(&identity), Service::PERF);
        assert!(net.run_until_established(ms(1000)));
        let [client, server] = &net.ends;
        let Some((_, Event::Established { peer, .. })) = client.events.last() else {
            panic!("{:?}", client.events);
        };
        assert_eq!(peer.reset_token, server.control.reset_token(peer.cid));
        // One of an earlier build says nothing.
        assert_eq!(peer.reset_token.is_some(), tells);
        // A server that was started again shows the same.
        let again = self::server(&identity).reset_token(peer.cid);
        assert!(!tells || peer.reset_token == again);
        // What a client would promise is not asked for.
        let told = server.events.iter().find_map(|(_, event)| match event {
            Event::Established { peer, .. } => Some(peer.reset_token),
            _ => None,
        });
        assert_eq!(told, Some(None));
    }
}

#[test]
fn packets_of_no_session_are_answered_with_less() {
    let identity = Identity::generate();
    let (mut control, now) = (server(&identity), Instant::now());
    let token = control.reset_token(cid(7)).expect("a server's");
    for len in [RESET_LEN + 1, 100, 1472] {
        let answers = answers(&mut control, now, CLIENT, cid(7), len);
        let [answer] = &answers[..] else {
            panic!("{answers:?}");
        };
        assert!(answer.len() == RESET_LEN && is_data_plane(answer));
        assert_eq!(answer.last_chunk(), Some(token.bytes()));
    }
    for len in [0, 9, RESET_LEN - 1, RESET_LEN] {
        assert!(answers(&mut control, now, CLIENT, cid(7), len).is_empty());
    }
    // Whoever has no identity says nothing.
    let mut client = Control::client(ids());
    assert_eq!(client.reset_token(cid(7)), None);
    assert!(answers(&mut client, now, SERVER, cid(7), 100).is_empty());
}

/// The first data packets of a session, and what of the last ones of one that was refused is still on its way, are of nobody that the engine knows.
#[test]
fn sessions_that_begin_or_were_refused_are_not_forgotten() {
    let identity = Identity::generate();
    let mut net = Net::pair(&identity);
    net.server().control = server(&identity);
    let stranger = Identity::generate();
    // It has the door key alone, which shows late.
    let mut secret = *ticket_of(&stranger).secret();
    secret[..DOOR_KEY_LEN].copy_from_slice(identity.door_key());
    let wrong = ticket_with(identity.pin(), secret);
    net.connect(&wrong, Service::PERF);
    while net.server().events.is_empty() {
        let until = net.now + ms(1000);
        assert!(net.step(until));
    }
    let [(_, Event::Pending { local_cid, .. })] = net.server().events[..] else {
        panic!("{:?}", net.server().events);
    };
    let now = net.now;
    let control = &mut net.server().control;
    let elsewhere = SocketAddr::from(([10, 0, 0, 9], 9));
    assert!(answers(control, now, elsewhere, local_cid, 100).is_empty());
    assert!(answers(control, now, CLIENT, cid(7), 100).is_empty());
    assert_eq!(answers(control, now, elsewhere, cid(7), 100).len(), 1);
    while net.server().failure().is_none() {
        let until = net.now + ms(1000);
        assert!(net.step(until));
    }
    let now = net.now;
    let control = &mut net.server().control;
    assert!(answers(control, now, CLIENT, local_cid, 100).is_empty());
    assert_eq!(answers(control, now, CLIENT, cid(7), 100).len(), 1);
    net.run(Duration::from_secs(20));
    let now = net.now;
    let control = &mut net.server().control;
    assert_eq!(answers(control, now, CLIENT, local_cid, 100).len(), 1);
}

/// Early data may come before what says what opens it.
#[test]
fn early_data_that_is_expected_is_not_answered() {
    let identity = Identity::generate();
    let (mut control, now) = (server(&identity), Instant::now());
    let who = Peer::Ticket(identity.own_secret().id());
    control.keep(now, cid(5), Zeroizing::new([1; SECRET_LEN]), who);
    assert!(answers(&mut control, now, CLIENT, cid(5), 1200).is_empty());
    assert_eq!(answers(&mut control, now, CLIENT, cid(6), 1200).len(), 1);
}
