//! What a handshake costs: nothing is sent twice unless a loss is likely.

use super::*;

/// Bytes of IPv4 and UDP headers.
const IP_OVERHEAD: u64 = 28;

/// IP bytes that both ends send until they have nothing more to say, over a link with this delay and loss.
fn bytes(one_way: Duration, known: Option<f64>) -> ([u64; 2], [u64; 2]) {
    let identity = Identity::generate();
    let mut net = Net::pair(&identity);
    net.one_way = one_way;
    let id = net.connect(&ticket_of(&identity), Service::PERF);
    if let Some(plr) = known {
        net.ends[0].control.remember(id, 2 * one_way, plr);
    }
    net.run(ms(5000));
    assert!(net.ends.iter().all(|end| end.established_at().is_some()));
    let sent = |end: &End| end.bytes_sent + IP_OVERHEAD * end.datagrams_sent as u64;
    let copies = |end: &End| end.control.stats().repeated_datagrams;
    (
        [sent(&net.ends[0]), sent(&net.ends[1])],
        [copies(&net.ends[0]), copies(&net.ends[1])],
    )
}

#[test]
fn a_clean_path_sees_every_datagram_once() {
    for one_way in [0, 1, 5, 10, 20, 24].map(ms) {
        let (sent, copies) = bytes(one_way, None);
        assert_eq!(copies, [0, 0], "{one_way:?}");
        assert!(sent[0] < 3000 && sent[1] < 2200, "{one_way:?}: {sent:?}");
    }
}

/// An answer that takes longer than anybody can know costs a copy of the first flight, and of the answer to it.
#[test]
fn a_long_path_costs_few_copies() {
    for (one_way, most) in [(30, 4_000), (75, 4_000), (150, 7_500), (300, 24_000)] {
        let one_way = ms(one_way);
        let (sent, copies) = bytes(one_way, None);
        println!("one way {one_way:?}: {sent:?} bytes, {copies:?} copies");
        assert!(
            sent.iter().all(|sent| *sent < most),
            "{one_way:?}: {sent:?}"
        );
        // Who knows the path waits for its answer.
        let (sent, copies) = bytes(one_way, Some(0.0));
        assert_eq!(copies[0], 0, "{one_way:?}");
        assert!(sent[0] < 5500, "{one_way:?}: {sent:?}");
    }
}

#[test]
fn where_losses_are_known_copies_do_not_wait() {
    let (sent, copies) = bytes(ms(20), Some(0.06));
    // Two of each flight of the client, and as many of the server's, which hears what the client expects.
    assert_eq!(copies, [4, 2]);
    assert!(sent[0] < 8000, "{sent:?}");
}

/// The server's flight is lost; the client asks again long before QUIC would send it again.
#[test]
fn a_first_flight_that_is_sent_again_is_answered_again() {
    let identity = Identity::generate();
    let mut net = Net::pair(&identity);
    net.one_way = ms(20);
    net.connect(&ticket_of(&identity), Service::PERF);
    let until = net.start + ms(5000);
    while net.server().datagrams_sent == 0 {
        assert!(net.step(until));
    }
    net.drain();
    net.in_flight.clear();
    assert!(net.run_until_established(ms(5000)));
    // A copy after 50 ms, its answer, and what proves the client's secret.
    let at = net.server().established_at().expect("checked");
    assert!(at <= ms(60 + 3 * 20), "{at:?}");
}

/// Whoever has seen a first flight on its way gets few answers to it.
#[test]
fn a_first_flight_is_answered_a_few_times_only() {
    let now = Instant::now();
    let identity = Identity::generate();
    let mut server = Control::server(&identity, guests(&identity), settings(Service::PERF), ids());
    let flight = {
        let mut client = Control::client(ids());
        let (ticket, settings) = (ticket_of(&identity), settings(Service::PERF));
        client
            .connect(now, SERVER, &ticket, &settings, None)
            .expect("a valid address");
        let mut flight = Vec::new();
        client.poll_transmit(now, &mut flight).expect("a flight");
        flight
    };
    let (mut received, mut sent, mut buf) = (0, 0, Vec::new());
    for _ in 0..1000 {
        server.handle_datagram(now, CLIENT, None, &flight);
        received += flight.len();
        while server.poll_transmit(now, &mut buf).is_some() {
            sent += buf.len();
        }
        assert!(sent <= 3 * received);
    }
    assert!(sent <= 8 * 1200, "{sent}");
}
