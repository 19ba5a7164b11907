//! Peers and links that mean no good.

use super::*;

fn server() -> Control {
    Control::server(&Identity::generate(), settings(Service::PERF))
}

fn flush(control: &mut Control, now: Instant) -> Vec<Vec<u8>> {
    let mut buf = Vec::new();
    let mut out = Vec::new();
    while control.poll_transmit(now, &mut buf).is_some() {
        out.push(buf.clone());
    }
    out
}

fn begin(client: &mut Control, now: Instant) {
    client
        .connect(now, SERVER, &[0; 32], &[0; 32], &settings(Service::PERF))
        .expect("a valid address");
}

/// First flights of clients that never go on.
fn first_flights(now: Instant, count: usize) -> Vec<Vec<u8>> {
    let mut client = Control::client();
    (0..count).for_each(|_| begin(&mut client, now));
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
    assert_eq!(net.client().events.len(), 1);
    assert_eq!(net.server().events.len(), 2);
    assert_eq!(net.server().control.sessions.len(), 1);
}

#[test]
fn silent_clients_are_forgotten() {
    let now = Instant::now();
    let mut control = server();
    for flight in first_flights(now, 10) {
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
    let mut control = Control::server(&identity, settings(Service::PERF));
    for flight in first_flights(now, RETRY_FROM_HANDSHAKES + 50) {
        control.handle_datagram(now, CLIENT, None, &flight);
    }
    flush(&mut control, now);
    assert_eq!(control.sessions.len(), RETRY_FROM_HANDSHAKES);

    // An honest client gets through with one more round trip.
    while control.poll_event().is_some() {}
    let mut net = Net::new(Control::client(), control);
    net.server().bytes_received = 1 << 30;
    net.connect(&ticket_of(&identity), Service::PERF);
    assert!(net.run_until_established(ms(1000)));
    assert_eq!(net.client().established_at(), Some(ms(20)));
}

#[test]
fn the_oldest_unfinished_handshake_makes_room() {
    let now = Instant::now();
    let mut control = server();
    let mut clients = Control::client();
    let total = MAX_HANDSHAKES + 20;
    (0..total).for_each(|_| begin(&mut clients, now));
    // Twice, because most are asked to show their address first.
    for _ in 0..2 {
        for flight in flush(&mut clients, now) {
            control.handle_datagram(now, CLIENT, None, &flight);
            let mut buf = Vec::new();
            while control.poll_transmit(now, &mut buf).is_some() {
                // Only Retry packets (RFC 9000 §17.2.5) reach the clients.
                if buf[0] >> 4 == 0xf {
                    clients.handle_datagram(now, SERVER, None, &buf);
                }
            }
        }
    }
    assert_eq!(control.sessions.len(), MAX_HANDSHAKES);
    assert_eq!(control.handshakes.len(), MAX_HANDSHAKES);
    assert_eq!(control.stats().failed_handshakes, 20);
}
