//! Datagrams that arrive as one are as those that come one by one, whatever has become of them on the way.

use sphinx_driver::{BufferPool, Counters, Driver, Inline, Origin, Outbox, Queues, Workshop};
use sphinx_link::Loss;
use sphinx_proto::wire::ConnectionId;
use sphinx_proto::{Config, ConnectionIds, Role, Session, StreamId, Time, Tuple};
use sphinx_sim::{Local, MS, Plain, Rng, SEC, Scenario, link};

use std::cell::RefCell;
use std::rc::Rc;

/// Datagrams that arrive as one, at most.
const JOINED: u64 = 40;

#[derive(Default)]
struct Sent(Vec<Vec<u8>>);

impl Outbox for Sent {
    fn len_bytes(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    fn push(&mut self, _to: &Tuple, _ecn: u8, len: usize) -> &mut [u8] {
        self.0.push(vec![0; len]);
        self.0.last_mut().expect("it is there")
    }
}

struct Receiver {
    driver: Driver<Plain, Inline>,
    workshop: Workshop,
    queues: Queues<Local>,
    random: Rng,
    sent: Sent,
    received: Vec<u8>,
}

impl Receiver {
    fn new(local: ConnectionId, tuple: Tuple) -> Self {
        let peer = ConnectionId::new([7; 8]).expect("not zero");
        let config = Config::new(Role::Server, tuple, ConnectionIds { local, peer });
        let streams = config.recv_streams;
        let session = Session::new(config, Time::ZERO);
        Self {
            driver: Driver::new(session, Plain::default(), Inline, false),
            workshop: Workshop::new(BufferPool::new(1 << 20)),
            queues: Queues::new(Role::Server, streams),
            random: Rng::new(1),
            sent: Sent::default(),
            received: Vec::new(),
        }
    }

    fn turn(&mut self, now: Time) {
        self.driver.handle_timeout(now, &mut self.workshop);
        let pool = self.workshop.pool();
        self.driver.exchange(now, &mut self.queues, pool);
        let stream = StreamId::new(Role::Client, 0);
        while let Some(chunk) = self.queues.incoming(stream).take_in_order() {
            self.received.extend_from_slice(chunk.data());
            self.queues.release(chunk.into_taken());
        }
        let random = RefCell::new(&mut self.random);
        let word = || random.borrow_mut().word();
        let cid = || ConnectionId::new((word() | 1 << 60).to_be_bytes()).expect("not zero");
        let spare_id = || (cid(), None);
        self.driver.supply(|| word().to_be_bytes(), spare_id);
        let (workshop, sent) = (&mut self.workshop, &mut self.sent);
        self.driver.transmit(now, usize::MAX, workshop, sent);
    }

    fn said(&self) -> (String, Counters) {
        let stats = self.driver.core().stats();
        (format!("{stats:?}"), self.driver.counters())
    }
}

/// What a client sends to a server over a path that loses, in turn.
fn transfer(seed: u64) -> Vec<Vec<u8>> {
    let loss = Loss::Bernoulli(0.02);
    let mut pair = Scenario::new(link(200, 20, loss, seed))
        .bulk(3_000_000)
        .build();
    let datagrams = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&datagrams);
    pair.tap = Some(Box::new(move |_, side, datagram| {
        if side == 0 {
            seen.borrow_mut().push(datagram.payload.clone());
        }
        Vec::new()
    }));
    pair.must_transfer(20 * SEC);
    datagrams.take()
}

#[test]
fn datagrams_that_arrive_as_one_are_as_those_that_come_one_by_one() {
    let mut received = 0;
    for seed in 0..4 {
        let datagrams = transfer(seed);
        let first = ConnectionId::of_datagram(&datagrams[0]).expect("a packet");
        let tuple = Tuple {
            remote: ([10, 0, 0, 1], 1).into(),
            local_ip: None,
        };
        let [mut alone, mut joined] = [(); 2].map(|()| Receiver::new(first, tuple));
        let mut rng = Rng::new(seed);
        let (mut now, mut rest, mut buffers) = (Time::ZERO, datagrams.into_iter().peekable(), 0);
        while rest.peek().is_some() {
            now += rng.below(2 * MS);
            // What arrives at once.
            let mut some: Vec<_> = rest.by_ref().take(1 + rng.below(JOINED) as usize).collect();
            some.retain(|_| !rng.chance(0.002));
            for _ in 0..some.len() / 10 {
                let at = rng.below(some.len() as u64) as usize;
                match rng.below(40) {
                    0 => some.swap(at, 0),
                    1 => some.push(some[at].clone()),
                    2 => {
                        let byte = rng.below(some[at].len() as u64) as usize;
                        some[at][byte] ^= 4;
                    }
                    3 => some[at].truncate(30),
                    _ => {}
                }
            }
            let origin = Origin {
                received_at: now,
                tuple,
                ecn: if rng.chance(0.05) { 3 } else { 2 },
            };
            for datagram in &some {
                let (driver, workshop) = (&mut alone.driver, &mut alone.workshop);
                driver.handle_datagram(now, origin, &mut datagram.clone(), workshop);
            }
            // Only the last one of a buffer may be shorter.
            let longest = some.iter().map(Vec::len).max();
            let is_open = |one: &Vec<u8>, _: &Vec<u8>| Some(one.len()) == longest;
            for like in some.chunk_by(is_open) {
                let (driver, workshop) = (&mut joined.driver, &mut joined.workshop);
                let segments = (&mut like.concat()[..], like[0].len());
                driver.handle_segments(now, origin, segments, workshop);
                buffers += 1;
            }
            alone.turn(now);
            joined.turn(now);
            assert_eq!(joined.said(), alone.said(), "seed {seed}, {now:?}");
            assert!(joined.sent.0 == alone.sent.0, "seed {seed}, {now:?}");
        }
        let stats = alone.driver.core().stats();
        assert!(stats.packets_received > 1500 && buffers < stats.packets_received / 4);
        assert!(joined.received == alone.received);
        received += alone.received.len();
    }
    assert!(received > 300_000, "{received} bytes");
}
