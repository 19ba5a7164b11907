//! Peers and links that mean no good.

use quinn_proto::{Dir, Side, StreamId};

use super::*;
use crate::control::params::Credential;

/// What becomes of a message.
type Change = fn(&[u8]) -> Vec<u8>;

fn server() -> Control {
    let identity = Identity::generate();
    Control::server(&identity, guests(&identity), settings(Service::PERF), ids())
}

pub(super) fn flush(control: &mut Control, now: Instant) -> Vec<Vec<u8>> {
    let mut buf = Vec::new();
    let mut out = Vec::new();
    while control.poll_transmit(now, &mut buf).is_some() {
        out.push(buf.clone());
    }
    out
}

/// Clients that know the ticket of `server`, but not that its certificate is another one.
fn begin(client: &mut Control, now: Instant, server: &Identity) {
    let ticket = ticket_of(server);
    client
        .connect(
            now,
            SERVER,
            &ticket_with([0; 32], *ticket.secret()),
            &settings(Service::PERF),
            None,
        )
        .expect("a valid address");
}

/// First flights of clients that never go on.
fn first_flights(now: Instant, server: &Identity, count: usize) -> Vec<Vec<u8>> {
    let mut client = Control::client(ids());
    (0..count).for_each(|_| begin(&mut client, now, server));
    let flights = flush(&mut client, now);
    assert_eq!(flights.len(), count, "one datagram each");
    flights
}

#[test]
fn noise_is_counted_and_dropped() {
    let mut rng = Rng(3);
    let now = Instant::now();
    let mut control = server();
    for round in 0..2000 {
        let len = (rng.next() % 1300) as usize;
        let mut noise: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
        // Some look like long headers of version 1.
        if round % 2 == 0 && len > 6 {
            noise[..6].copy_from_slice(&[0xc0 | (round / 2 % 64) as u8, 0, 0, 0, 1, 8]);
        }
        control.handle_datagram(now, CLIENT, None, &noise);
        for answer in flush(&mut control, now) {
            assert!(answer.len() <= 3 * len, "{} for {len}", answer.len());
        }
    }
    assert!(control.sessions.is_empty());
    assert!(control.poll_event().is_none());
    assert!(control.stats().ignored_datagrams >= 1000);
}

#[test]
fn damaged_copies_do_no_harm() {
    let identity = Identity::generate();
    let ticket = ticket_of(&identity);
    for seed in 0..40 {
        let mut net = Net::pair(&identity);
        net.rng = Rng(seed);
        net.connect(&ticket, Service::PERF);
        // Ahead of each datagram comes a damaged copy of it.
        let until = net.start + ms(3000);
        let mut damaged = 0;
        while net.step(until) {
            net.drain();
            let fresh: Vec<_> = net
                .in_flight
                .iter()
                .filter(|((_, number), _)| *number > damaged)
                .map(|(_, datagram)| datagram.clone())
                .collect();
            damaged = net.sent;
            for (from, to, mut bytes) in fresh {
                let at = (net.rng.next() % bytes.len() as u64) as usize;
                bytes[at] ^= 1 << (net.rng.next() % 8);
                if let Some(end) = net.ends.iter_mut().find(|end| end.address == to) {
                    end.bytes_received += bytes.len() as u64;
                    end.control.handle_datagram(net.now, from, None, &bytes);
                }
            }
        }
        assert!(
            net.ends.iter().all(|end| end.established_at().is_some()),
            "seed {seed}: {:?} {:?}",
            net.ends[0].events,
            net.ends[1].events
        );
    }
}

#[test]
fn repeated_datagrams_make_no_second_session() {
    let identity = Identity::generate();
    let mut net = Net::pair(&identity);
    net.echo = Some(ms(40));
    net.connect(&ticket_of(&identity), Service::PERF);
    net.run(ms(3000));
    let [(_, Event::Established { .. }), (_, Event::Settled { .. })] = net.client().events[..]
    else {
        panic!("{:?}", net.client().events);
    };
    let [
        (_, Event::Pending { .. }),
        (_, Event::Established { .. }),
        (_, Event::Settled { .. }),
    ] = net.server().events[..]
    else {
        panic!("{:?}", net.server().events);
    };
    assert!(net.server().control.sessions.is_empty());
}

#[test]
fn clients_without_the_ticket_cost_nothing() {
    let now = Instant::now();
    let mut control = server();
    for flight in first_flights(now, &Identity::generate(), 2000) {
        control.handle_datagram(now, CLIENT, None, &flight);
        let answers = flush(&mut control, now);
        assert!(answers.iter().map(Vec::len).sum::<usize>() <= flight.len());
    }
    assert!(control.sessions.is_empty() && control.handshakes.is_empty());
    assert!(control.poll_event().is_none() && control.poll_timeout().is_none());
}

#[test]
fn silent_clients_are_forgotten() {
    let now = Instant::now();
    let identity = Identity::generate();
    let mut control = Control::server(&identity, guests(&identity), settings(Service::PERF), ids());
    for flight in first_flights(now, &identity, 10) {
        control.handle_datagram(now, CLIENT, None, &flight);
    }
    assert_eq!(control.sessions.len(), 10);
    let end = now + HANDSHAKE_TIMEOUT;
    while let Some(due) = control.poll_timeout().filter(|due| *due <= end) {
        control.handle_timeout(due);
        flush(&mut control, due);
    }
    assert!(control.sessions.is_empty());
    assert!(control.timers.is_empty() && control.handshakes.is_empty());
    assert_eq!(control.poll_timeout(), None);
    let timed_out =
        |event: &Event| matches!(event, Event::Failed { why, .. } if *why == Failure::Timeout);
    let events = std::iter::from_fn(|| control.poll_event());
    assert_eq!(events.filter(timed_out).count(), 10);
    assert_eq!(control.stats().failed_handshakes, 10);
}

#[test]
fn a_flood_of_clients_must_show_its_addresses() {
    let now = Instant::now();
    let identity = Identity::generate();
    let mut control = Control::server(&identity, guests(&identity), settings(Service::PERF), ids());
    // Not the honest client's: what they are sent again, once it is late, is not to reach that.
    let elsewhere = SocketAddr::new(CLIENT.ip(), CLIENT.port() + 1);
    for flight in first_flights(now, &identity, RETRY_FROM_HANDSHAKES + 50) {
        control.handle_datagram(now, elsewhere, None, &flight);
    }
    flush(&mut control, now);
    assert_eq!(control.sessions.len(), RETRY_FROM_HANDSHAKES);

    // An honest client gets through with one more round trip.
    while control.poll_event().is_some() {}
    let mut net = Net::new(Control::client(ids()), control);
    net.server().bytes_received = 1 << 30;
    net.connect(&ticket_of(&identity), Service::PERF);
    assert!(net.run_until_established(ms(1000)));
    assert_eq!(net.client().established_at(), Some(ms(20)));
}

/// What shows an address can be seen on its way, and be sent again by anybody.
#[test]
fn an_address_that_was_shown_begins_one_handshake() {
    let now = Instant::now();
    let identity = Identity::generate();
    let mut control = Control::server(&identity, guests(&identity), settings(Service::PERF), ids());
    for flight in first_flights(now, &identity, RETRY_FROM_HANDSHAKES) {
        control.handle_datagram(now, CLIENT, None, &flight);
    }
    flush(&mut control, now);
    let mut client = Control::client(ids());
    begin(&mut client, now, &identity);
    let hello = flush(&mut client, now).remove(0);
    control.handle_datagram(now, CLIENT, None, &hello);
    let retry = flush(&mut control, now).remove(0);
    assert_eq!(retry[0] >> 4, 0xf, "a Retry packet");
    client.handle_datagram(now, SERVER, None, &retry);
    let shown = flush(&mut client, now).remove(0);
    let elsewhere = SocketAddr::new(CLIENT.ip(), CLIENT.port() + 1);
    for (from, sessions) in [(elsewhere, 0), (CLIENT, 1), (CLIENT, 1), (elsewhere, 1)] {
        control.handle_datagram(now, from, None, &shown);
        flush(&mut control, now);
        assert_eq!(control.sessions.len(), RETRY_FROM_HANDSHAKES + sessions);
    }
    // Nor does it when that handshake has been given up.
    let end = now + HANDSHAKE_TIMEOUT;
    while let Some(due) = control.poll_timeout().filter(|due| *due <= end) {
        control.handle_timeout(due);
        flush(&mut control, due);
    }
    assert!(control.sessions.is_empty());
    control.handle_datagram(end, CLIENT, None, &shown);
    assert!(control.sessions.is_empty());
}

#[test]
fn the_oldest_unfinished_handshake_makes_room() {
    let now = Instant::now();
    let identity = Identity::generate();
    let mut control = Control::server(&identity, guests(&identity), settings(Service::PERF), ids());
    // From one address comes no more than a few clients have to say.
    for host in 0..(MAX_HANDSHAKES + 20) / 36 {
        let address = SocketAddr::new(CLIENT.ip(), 4000 + host as u16);
        let mut clients = Control::client(ids());
        (0..36).for_each(|_| begin(&mut clients, now, &identity));
        // Twice, because most are asked to show their address first.
        for _ in 0..2 {
            for flight in flush(&mut clients, now) {
                control.handle_datagram(now, address, None, &flight);
                let mut buf = Vec::new();
                while control.poll_transmit(now, &mut buf).is_some() {
                    // Only Retry packets (RFC 9000 §17.2.5) reach the clients.
                    if buf[0] >> 4 == 0xf {
                        clients.handle_datagram(now, SERVER, None, &buf);
                    }
                }
            }
        }
    }
    assert_eq!(control.sessions.len(), MAX_HANDSHAKES);
    assert_eq!(control.handshakes.len(), MAX_HANDSHAKES);
    assert_eq!(control.stats().failed_handshakes, 20);
}

/// What the server says of a client that sends `messages(proof, params)` of what would be right, each on a stream of its own.
fn failure_after(messages: impl Fn(&[u8], &[u8]) -> Vec<Vec<u8>>) -> Option<Failure> {
    let mut net = after(Service::PERF, messages);
    net.server().failure().cloned()
}

/// What has become of a server of this service and such a client.
fn after(service: Service, messages: impl Fn(&[u8], &[u8]) -> Vec<Vec<u8>>) -> Net {
    let identity = Identity::generate();
    let settings = settings(service);
    let cid = ids().make();
    let params = Params {
        credential: Some(Credential::Ticket(identity.own_secret().id())),
        ..local_params(&settings, settings.budget.window(0), cid)
    };
    let mut net = Net::pair(&identity);
    net.server().control = Control::server(&identity, guests(&identity), settings, ids());
    let id = net.connect(&ticket_of(&identity), service);
    let client = net.client().control.session(id).expect("alive");
    // As if it had said its own already.
    client.outgoing = Some(StreamId::new(Side::Client, Dir::Uni, 9));
    net.run(ms(500));
    let Some((_, Event::Established { secret, .. })) = net.client().events.pop() else {
        panic!("the server speaks first");
    };
    assert_eq!(net.server().failure(), None);
    let until = net.now + ms(500);
    for message in messages(secret.proof().as_slice(), &params.encode()) {
        // The server allows the next stream when it has read the one before. It goes out with what acknowledges that, as then QUIC has
        // done its part, and the server may let go of it.
        let stream = loop {
            let session = net.client().control.session(id).expect("alive");
            match session.conn.streams().open(Dir::Uni) {
                Some(stream) => break stream,
                None => assert!(net.step(until), "allowed"),
            }
        };
        let session = net.client().control.session(id).expect("alive");
        let mut stream = session.conn.send_stream(stream);
        assert_eq!(stream.write(&message), Ok(message.len()));
        stream.finish().expect("open");
        let now = net.now;
        net.client().control.drive(id.handle, now);
    }
    net.run(ms(500));
    net
}

/// Its settings decide what this end keeps and how fast it sends. An honest client that wants the mode closes if the server does not follow;
/// another one may ask and go on all the same.
#[test]
fn nobody_is_made_to_work_in_the_papers_mode() {
    let settings = sphinx_proto::Paper::default().encode();
    let wanted = [&[10, settings.len() as u8][..], &settings].concat();
    let mut net = after(Service::FILES, |proof, params| {
        vec![[proof, params, &wanted].concat()]
    });
    let mut events = net.server().events.iter();
    let heard = events.find_map(|(_, event)| match event {
        Event::Established { peer, .. } => Some(peer.paper),
        _ => None,
    });
    assert_eq!(heard, Some(None));
}

#[test]
fn malformed_messages_end_the_session() {
    let with = |proof: &[u8], params: &[u8]| [proof, params].concat();

    assert_eq!(
        failure_after(|proof, params| vec![with(proof, params)]),
        None
    );
    for wrong in [0, 31] {
        let failure = failure_after(|proof, params| {
            let mut message = with(proof, params);
            message[wrong] ^= 1;
            vec![message]
        });
        assert!(matches!(failure, Some(Failure::Authentication(_))));
    }
    let failure = failure_after(|proof, _| vec![proof[..31].to_vec()]);
    assert!(matches!(failure, Some(Failure::Authentication(_))));
    let bad: [Change; 3] = [
        |_| Vec::new(),
        |params| params[..params.len() - 1].to_vec(),
        |params| [params, &[60, 0x44, 0], &[0; 1024]].concat()[..1025].to_vec(),
    ];
    for bad in bad {
        let failure = failure_after(|proof, params| vec![with(proof, &bad(params))]);
        assert!(matches!(failure, Some(Failure::Protocol(_))), "{failure:?}");
    }
    let failure = failure_after(|proof, params| vec![with(proof, params), vec![1]]);
    assert_eq!(
        failure,
        Some(Failure::Protocol(
            "the other end opened a second stream".into()
        ))
    );
}
