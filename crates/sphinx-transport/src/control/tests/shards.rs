//! Where the session of a client begins that has found one of several shards.

use sphinx_net::udp::Steering;

use super::*;
use crate::shards::Place;

/// The shard that has fewer sessions has the handshake, with all that belongs to it, and the other one keeps nothing but where it is.
#[test]
fn a_handshake_begins_where_there_are_fewest_sessions() {
    let (identity, steering) = (Identity::generate(), Steering::new([5; 8], 2));
    let shard = |(place, mut loads): (Place, Loads), sessions| {
        let ids = IdMaker::new(None, 0, Some(place));
        let control = Control::server(&identity, guests(&identity), settings(Service::PERF), ids);
        loads.tell(sessions);
        control.with_loads(Some(loads))
    };
    let loads = || std::iter::zip(Place::all(&steering), Loads::all(&steering));
    for sessions in [0, 1] {
        let mut loads = loads();
        let mut next = || loads.next().expect("two");
        let mut full = shard(next(), 1);
        // What it has, of which its number is told.
        full.settled.insert(ConnId {
            handle: 1 << 20,
            serial: 1 << 20,
        });
        let mut net = Net::new(Control::client(ids()), shard(next(), sessions));
        loop {
            net.client().control = Control::client(ids());
            net.connect(&ticket_of(&identity), Service::PERF);
            let mut flight = Vec::new();
            let client = &mut net.client().control;
            client
                .poll_transmit(Instant::now(), &mut flight)
                .expect("a flight");
            let head = flight[6..].first_chunk().copied().expect("a greeting");
            if steering.of_id(head) != 0 {
                continue;
            }
            let now = net.now;
            let mut to = |flight: &[u8]| full.handle_datagram(now, CLIENT, None, flight);
            let is_elsewhere = sessions == 0;
            // A repetition finds the same shard, although as many are there by then.
            let expected = is_elsewhere.then_some(1);
            assert_eq!([to(&flight), to(&flight)], [expected; 2]);
            assert_eq!(full.sessions.is_empty(), is_elsewhere);
            if is_elsewhere {
                let server = net.server();
                server.bytes_received += flight.len() as u64;
                let server = &mut server.control;
                assert_eq!(server.handle_datagram(now, CLIENT, None, &flight), None);
                assert!(net.run_until_established(ms(1000)));
            }
            break;
        }
    }
}
