//! What the system says of one path of several.

use sphinx_driver::keys::{Direction, SessionSecret};
use sphinx_driver::{BufferPool, Holding};
use sphinx_net::Waker;
use sphinx_proto::wire::{MAX_DATAGRAM, RESET_LEN};
use sphinx_proto::{Bond, Config, ConnectionIds, PathPolicy, Role};

use super::*;
use crate::shared::Doorbell;

const MS: Nanos = 1_000_000;

/// The client's addresses, one for each path.
const LOCALS: [[u8; 4]; 3] = [[10, 0, 0, 1], [10, 1, 0, 1], [10, 2, 0, 1]];
/// Where they lead: the third one to another address of the server.
const REMOTES: [[u8; 4]; 3] = [[10, 0, 0, 2], [10, 0, 0, 2], [10, 9, 0, 2]];
/// The ends' ports.
const PORTS: [u16; 2] = [1000, 2000];

/// Where datagrams of the client's path go.
fn on_path(path: usize) -> Destination {
    Destination {
        remote: (REMOTES[path], PORTS[1]).into(),
        // For the first path, routing chooses the local address.
        local_ip: (path > 0).then(|| LOCALS[path].into()),
        ecn: Ecn::Ect0,
    }
}

/// Keeps what is written.
#[derive(Default)]
struct Wire(Vec<(Destination, Vec<u8>)>);

impl PacketTx for Wire {
    fn frame(&mut self, to: &Destination, len: usize) -> Option<&mut [u8]> {
        self.0.push((*to, vec![0; len]));
        self.0.last_mut().map(|(_, frame)| &mut frame[..])
    }

    fn taken_bytes(&self) -> usize {
        0
    }

    fn flush(&mut self, _dropped: &mut Vec<(Destination, Dropped)>) -> io::Result<bool> {
        Ok(true)
    }

    fn last_error(&self) -> Option<io::Error> {
        None
    }
}

struct End {
    association: Association,
    workshop: Workshop,
    /// Source of connection ids, which need not be hard to guess.
    ids: u64,
}

impl End {
    fn new(role: Role) -> Self {
        let is_client = role == Role::Client;
        let cid = |role| ConnectionId::new([1 + role as u8; 8]).expect("not zero");
        let (own, peer) = (cid(role), cid(role.other()));
        let remote = match is_client {
            true => (REMOTES[0], PORTS[1]).into(),
            false => (LOCALS[0], PORTS[0]).into(),
        };
        let tuple = Tuple {
            remote,
            local_ip: None,
        };
        let ids = ConnectionIds { local: own, peer };
        let mut config = Config::new(role, tuple, ids);
        (config.paths_max, config.bond) = (3, Some(Bond::Aggregate));
        config.peer_datagram_max = 9_040;
        let direction = match is_client {
            true => Direction::ClientToServer,
            false => Direction::ServerToClient,
        };
        let keys = SessionSecret::new(&[1; 32], &[2; 32]).keys(direction, PathId::FIRST);
        let pool = BufferPool::new(1 << 20);
        let shared = Shared::new(
            Arc::new(Doorbell::new(Waker::new().unwrap())),
            own,
            pool.clone(),
            remote,
            (role, 16, MAX_DATAGRAM),
            Instant::now(),
            Time::ZERO,
        );
        let mut association = Association::new(
            Session::new(config, Time::ZERO),
            (keys, Coding::Inline),
            is_client,
            Arc::new(shared),
            &Options::default(),
            counts(),
        );
        if is_client {
            let further = (1..LOCALS.len()).map(|path| Further {
                local: LOCALS[path].into(),
                remote: Some(on_path(path).remote),
                policy: PathPolicy::default(),
            });
            association.will_open(None, further.collect());
        }
        Self {
            association,
            workshop: Workshop::new(pool),
            ids: 1 << 32,
        }
    }

    /// A turn of its engine: what it sends.
    fn turn(&mut self, now: Time) -> Vec<(Destination, Vec<u8>)> {
        let Self {
            association,
            workshop,
            ids,
        } = self;
        association.service(now, Instant::now(), None, counts(), workshop);
        let random = || [7; 8];
        association.supply(random, || {
            *ids += 1;
            let cid = ConnectionId::new(ids.to_be_bytes()).expect("not zero");
            (cid, Some(token_of(cid)))
        });
        let mut wire = Wire::default();
        association.transmit(now, usize::MAX, workshop, &mut wire);
        wire.0
    }
}

/// The reset token of a connection id.
fn token_of(cid: ConnectionId) -> ResetToken {
    let mut token = [7; ResetToken::LEN];
    token[..8].copy_from_slice(&cid.bytes());
    ResetToken::new(token)
}

fn counts() -> EndpointCounts {
    EndpointCounts {
        strays: 0,
        load: Load::default(),
        io: "memory",
    }
}

/// Both ends, and ways between them that take no time and lose nothing.
struct Pair {
    ends: [End; 2],
    now: Time,
    /// The peer's connection ids that the client has used on each path, in turn.
    used: [Vec<ConnectionId>; 3],
}

impl Pair {
    /// All paths are open, and have found their MTUs.
    fn new() -> Self {
        let mut pair = Self {
            ends: [End::new(Role::Client), End::new(Role::Server)],
            now: Time::ZERO,
            used: Default::default(),
        };
        pair.run(8_000 * MS);
        assert_eq!(pair.mtus().len(), LOCALS.len());
        pair
    }

    fn run(&mut self, time: Nanos) {
        let until = self.now + time;
        while self.now < until {
            for side in 0..2 {
                for (to, mut datagram) in self.ends[side].turn(self.now) {
                    if side == 0 {
                        self.note_id(&to, &datagram);
                    }
                    let first = [LOCALS[0], REMOTES[0]][side].into();
                    let source = to.local_ip.unwrap_or(first);
                    let origin = Origin {
                        received_at: self.now,
                        tuple: Tuple {
                            remote: (source, PORTS[side]).into(),
                            local_ip: Some(to.remote.ip()),
                        },
                        ecn: to.ecn.bits(),
                    };
                    let End {
                        association,
                        workshop,
                        ..
                    } = &mut self.ends[1 - side];
                    association.handle_datagram(self.now, origin, &mut datagram, workshop);
                }
            }
            self.now += MS;
        }
    }

    fn note_id(&mut self, to: &Destination, datagram: &[u8]) {
        let mut paths = 0..LOCALS.len();
        let path = paths.find(|path| on_path(*path).local_ip == to.local_ip);
        let used = &mut self.used[path.expect("one of them")];
        let cid = ConnectionId::of_datagram(datagram).expect("a packet");
        if used.last() != Some(&cid) {
            used.push(cid);
        }
    }

    /// The path MTUs that the client knows.
    fn mtus(&self) -> Vec<u16> {
        let paths = self.ends[0].association.driver.core().path_stats();
        paths.iter().map(|path| path.datagram_len).collect()
    }

    /// The client's system has not sent something; whether that may have been its.
    fn not_sent(&mut self, to: Destination, segment_size: u16, reason: DropReason) -> bool {
        let dropped = Dropped {
            datagrams: 1,
            segment_size: segment_size.into(),
            reason,
        };
        let association = &mut self.ends[0].association;
        association.on_dropped(self.now, &to, &dropped)
    }
}

#[test]
fn what_is_too_large_for_one_path_is_not_so_for_others() {
    for path in 0..LOCALS.len() {
        let mut pair = Pair::new();
        let before = pair.mtus();
        assert!(before[1] > 1_400 && before[1] == before[2], "{before:?}");
        assert!(pair.not_sent(on_path(path), before[1], DropReason::TooLarge));
        let after = pair.mtus();
        for other in 1..LOCALS.len() {
            assert_eq!(after[other] < before[other], other == path, "{after:?}");
        }
        // A destination that belongs to no path.
        let to = Destination {
            remote: (REMOTES[0], 9).into(),
            ..on_path(0)
        };
        assert!(!pair.not_sent(to, before[1], DropReason::TooLarge));
        assert_eq!(pair.mtus(), after);
    }
}

#[test]
fn only_the_first_path_goes_on_from_another_address() {
    for reason in [DropReason::Unreachable, DropReason::Other] {
        for path in 0..LOCALS.len() {
            let mut pair = Pair::new();
            let before = pair.used.each_ref().map(Vec::len);
            assert_eq!(before, [1; 3]);
            assert!(pair.not_sent(on_path(path), 100, reason));
            // A PING leaves on each of the paths.
            pair.run(8_000 * MS);
            let after = pair.used.each_ref().map(Vec::len);
            assert_eq!(after, [if path == 0 { 2 } else { 1 }, 1, 1], "{path}");
        }
    }
}

#[test]
fn a_reset_is_what_the_server_has_promised_of_a_path_and_comes_from_there() {
    for path in 0..LOCALS.len() {
        let mut pair = Pair::new();
        let promised = pair.used.each_ref().map(|used| token_of(used[0]));
        let association = &mut pair.ends[0].association;
        association.driver.expect_reset(promised[0]);
        let mut hear = |remote: SocketAddr, shown: &[u8; ResetToken::LEN]| {
            let reset = ResetToken::new(*shown).reset([0; RESET_LEN]);
            let shown = ResetToken::shown_by(&reset).expect("long enough");
            association.on_reset(remote, shown)
        };
        let remote = on_path(path).remote;
        for bit in 0..8 * ResetToken::LEN {
            let mut wrong = *promised[path].bytes();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!hear(remote, &wrong));
        }
        let elsewhere = [(REMOTES[path], 9), ([10, 0, 0, 9], PORTS[1])];
        for remote in elsewhere {
            assert!(!hear(remote.into(), promised[path].bytes()));
        }
        // Where the third path leads, only what was promised of that counts.
        let other = if path == 2 { 0 } else { 2 };
        assert!(!hear(remote, promised[other].bytes()));
        assert!(hear(remote, promised[path].bytes()));
        assert!(association.is_finished());
        let closed = association.shared.lock().closed.clone();
        let error = closed.expect("it has ended");
        assert_eq!(error.kind(), ErrorKind::PeerLost);
        assert_eq!(error.io_kind(), Some(io::ErrorKind::ConnectionReset));
    }
}

/// The other end would take a session that ends without a word for one that has done its part.
#[test]
fn who_cannot_go_on_says_why() {
    let mut client = End::new(Role::Client);
    client.association.give_up("connect again");
    assert!(client.association.is_finished());
    let (code, reason) = client.association.finish();
    assert_eq!((code, &reason[..]), (close_code::PROTOCOL, "connect again"));
}

/// Whoever begins many sessions and ends no handshake fills one memory, and no other of each session.
#[test]
fn what_a_session_holds_before_its_keys_counts_with_what_the_endpoint_holds() {
    let packet = [0; 64_000];
    let origin = Origin {
        received_at: Time::ZERO,
        tuple: Tuple {
            remote: (LOCALS[0], PORTS[0]).into(),
            local_ip: None,
        },
        ecn: 0,
    };
    let id = |n: u64| ConnectionId::new((n << 32).to_be_bytes()).expect("not zero");
    let mut endpoint = Holding::default();
    let mut association = End::new(Role::Server).association;
    association.begin_early(Time::ZERO, id(1), &endpoint);
    // More than there is room for in all.
    for n in 2..100 {
        endpoint.begin(id(n), Time::ZERO);
        (0..4).for_each(|_| assert!(endpoint.hold(id(n), origin, &packet)));
    }
    let Phase::Early { cid, held } = &mut association.phase else {
        panic!("its handshake is under way");
    };
    assert!(held.hold(*cid, origin, &packet));
    // The others have ended, and leave it their room.
    drop(endpoint);
    assert!(held.hold(*cid, origin, &packet));
    let waiting = held.end(*cid).expect("it holds what is for it");
    assert_eq!(waiting.packets.len(), 1);
}
