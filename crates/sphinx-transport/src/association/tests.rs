//! Two associations and a link between them: key epochs as short as no session has them.

use std::time::Duration;

use sphinx_driver::BufferPool;
use sphinx_driver::keys::{Direction, SessionSecret};
use sphinx_link::{Datagram, Jitter, Link, LinkConfig, Loss, Order};
use sphinx_net::{MemoryIo, PacketIo};
use sphinx_proto::cc::CcKind;
use sphinx_proto::{Config, ConnectionIds, Role};

use super::*;
use crate::shared::{Doorbell, Session as Handle};

mod streams;

const PATIENCE: Duration = Duration::from_secs(30);

struct Side {
    association: Association,
    handle: Handle,
    workshop: Workshop,
    out: SendBatch,
    /// What this end sends goes out here and comes in at the other one.
    io: (MemoryIo, MemoryIo),
    link: Link<Datagram>,
    tuple: Tuple,
    /// First bytes of what was sent.
    sent: Vec<Vec<u8>>,
}

fn cid(n: u8) -> ConnectionId {
    ConnectionId::new([n; 8]).expect("not zero")
}

fn side(is_client: bool, epoch_packets: u64, link: LinkConfig, base: Instant) -> Side {
    side_with(is_client, epoch_packets, link, base, |_| {})
}

fn side_with(
    is_client: bool,
    epoch_packets: u64,
    link: LinkConfig,
    base: Instant,
    change: impl FnOnce(&mut Config),
) -> Side {
    let addresses = [([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into()];
    let (own, peer) = if is_client { (1, 2) } else { (2, 1) };
    let tuple = Tuple {
        remote: addresses[usize::from(peer) - 1],
        local_ip: None,
    };
    let role = if is_client {
        Role::Client
    } else {
        Role::Server
    };
    let ids = ConnectionIds {
        local: cid(own),
        peer: cid(peer),
    };
    let mut config = Config::new(role, tuple, ids);
    config.cc = CcKind::Fixed(2_500_000);
    config.initial_rtt = 10_000_000;
    config.idle_timeout = 5_000_000_000;
    config.recv_window = 4 << 20;
    config.send_window = 4 << 20;
    config.peer_window = 4 << 20;
    config.mtu_candidates = Vec::new();
    config.peer_datagram_max = 1472;
    change(&mut config);
    let core = Session::new(config, 0);
    let io = MemoryIo::pair(addresses[usize::from(own) - 1], tuple.remote, 1000).expect("memory");
    let pool = BufferPool::new(1 << 20);
    let shared = Arc::new(Shared::new(
        Arc::new(Doorbell::new(io.0.waker())),
        cid(own),
        pool.clone(),
        tuple.remote,
        is_client,
        base,
        0,
    ));
    shared.set_shape(core.block_shape(1));
    let secret = SessionSecret::new(&[1; 32], &[2; 32]);
    let direction = if is_client {
        Direction::ClientToServer
    } else {
        Direction::ServerToClient
    };
    let keys = Keys {
        sealer: secret
            .sealer(direction, 0)
            .with_epoch_packets(epoch_packets),
        opener: secret.opener(direction.reverse(), 0),
    };
    let handle = Handle::new(Arc::clone(&shared));
    Side {
        association: Association::new(core, keys, is_client, None, shared, &Options::default(), 0),
        handle,
        workshop: Workshop::new(pool),
        out: SendBatch {
            queue: SendQueue::default(),
            segments_max: 64,
        },
        io,
        link: Link::new(link).expect("a valid link"),
        tuple,
        sent: Vec::new(),
    }
}

impl Side {
    /// One turn of an engine; what leaves goes onto the link.
    fn turn(&mut self, now: Nanos, base: Instant) {
        let clock = base + Duration::from_nanos(now);
        self.association
            .service(now, clock, None, 0, &mut self.workshop);
        self.association
            .transmit(now, 1 << 18, &mut self.workshop, &mut self.out);
        let flushed = self.out.queue.flush(&mut self.io.0, &mut Vec::new());
        assert!(flushed.expect("memory"));
        while let count @ 1.. = self.io.1.recv().expect("memory") {
            for index in 0..count {
                let mut received = self.io.1.received(index).expect("just received");
                for payload in received.segments() {
                    self.sent.push(payload.to_vec());
                    let datagram = Datagram {
                        // The link does not care where it comes from.
                        source: self.tuple.remote,
                        destination: self.tuple.remote,
                        ecn: 0,
                        payload: payload.to_vec(),
                    };
                    self.link.enqueue(now, datagram);
                }
            }
        }
    }

    fn receive(&mut self, now: Nanos, payload: &mut [u8]) {
        let origin = Origin {
            received_at: now,
            tuple: self.tuple,
            ecn: 0,
        };
        self.association
            .handle_datagram(now, origin, payload, &mut self.workshop);
    }
}

/// Runs both ends until `done`.
fn run(sides: &mut [Side; 2], base: Instant, mut done: impl FnMut(&[Side; 2]) -> bool) {
    while !done(sides) {
        assert!(base.elapsed() < PATIENCE, "not done");
        let now = base.elapsed().as_nanos() as Nanos;
        for from in 0..2 {
            sides[from].turn(now, base);
            while let Some(mut delivery) = sides[from].link.poll(now) {
                sides[1 - from].receive(now, &mut delivery.packet.payload);
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn lossy(seed: u64) -> LinkConfig {
    LinkConfig {
        seed,
        delay: Duration::from_millis(2),
        loss: Loss::Bernoulli(0.06),
        jitter: Jitter {
            max: Duration::from_millis(3),
            order: Order::Free,
        },
        ..LinkConfig::default()
    }
}

#[test]
fn keys_change_many_times_under_loss_and_reordering() {
    const EPOCH: u64 = 128;
    let base = Instant::now();
    let mut sides = [
        side(true, EPOCH, lossy(1), base),
        side(false, EPOCH, lossy(2), base),
    ];
    let handles = sides.each_ref().map(|side| side.handle.clone());
    let data = |seed: u8| {
        (0..1_500_000u32).map(move |i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 ^ seed)
    };
    std::thread::scope(|scope| {
        let mut streams = Vec::new();
        for (own, seed) in [(0, 1), (1, 2)] {
            let sending = handles[own].clone();
            streams.push(scope.spawn(move || {
                let mut stream = sending.open_stream().expect("open");
                let bytes: Vec<u8> = data(seed).collect();
                stream.write_all(&bytes).expect("open");
                stream.wait_delivered().expect("open");
            }));
            let receiving = handles[1 - own].clone();
            streams.push(scope.spawn(move || {
                let mut stream = receiving.accept_stream().expect("open");
                let (mut bytes, mut buf) = (Vec::new(), [0; 10_000]);
                while let n @ 1.. = stream.read(&mut buf).expect("open") {
                    bytes.extend_from_slice(&buf[..n]);
                }
                assert!(bytes.iter().copied().eq(data(seed)), "other bytes");
            }));
        }
        run(&mut sides, base, |_| {
            streams
                .iter()
                .all(std::thread::ScopedJoinHandle::is_finished)
        });
    });
    for side in &sides {
        let association = &side.association;
        let keys = association.driver.protection();
        let epochs = (keys.sealer.epoch(), keys.opener.epoch());
        println!("epochs {epochs:?}");
        assert!(epochs.0 >= 3 && epochs.1 >= 3);
        assert_eq!(handle_error(side), None);
    }
}

fn handle_error(side: &Side) -> Option<String> {
    side.handle.closed().map(|error| error.to_string())
}

/// No acknowledgement comes back: the key is used up, and the session says so. What would have been the
/// next packet does not leave in the clear.
#[test]
fn a_key_that_is_used_up_ends_the_session() {
    let base = Instant::now();
    let dead = LinkConfig {
        loss: Loss::Bernoulli(1.0),
        ..lossy(4)
    };
    let mut sides = [side(true, 20, lossy(3), base), side(false, 20, dead, base)];
    let writer = sides[0].handle.clone();
    let text = b"nobody else may read this ".repeat(5000);
    let secret = text.clone();
    let writing = std::thread::spawn(move || {
        let mut stream = writer.open_stream().expect("open");
        stream
            .write_all(&text)
            .and_then(|()| stream.wait_delivered())
    });
    run(&mut sides, base, |sides| handle_error(&sides[0]).is_some());
    let error = handle_error(&sides[0]).expect("just seen");
    assert!(error.contains("key used up"), "{error}");
    let failed = writing
        .join()
        .expect("no panic")
        .expect_err("not delivered");
    assert_eq!(failed.kind(), ErrorKind::Other);
    assert!(sides[0].association.is_finished());
    assert!(sides[0].sent.len() >= 20);
    for datagram in &sides[0].sent {
        let in_clear = secret
            .windows(16)
            .take(26)
            .any(|text| datagram.windows(16).any(|window| window == text));
        assert!(!in_clear, "plaintext on the wire");
    }
}
