//! Servers with several engines behind one port.

use sphinx_transport::{AccessList, ErrorKind, Io, Options, Server, Service, Session};

use crate::proxy::Proxy;
use crate::support::*;

fn with_shards(shards: usize) -> Options {
    Options {
        shards,
        ..Options::default()
    }
}

/// Steered by the connection id, or by the kernel's hash of addresses.
fn steered(shards: usize, by_hash: bool) -> Options {
    Options {
        shards_by_hash: by_hash,
        ..with_shards(shards)
    }
}

fn connect_all(listener: &Server, clients: usize) -> Vec<Session> {
    let ticket = ticket(listener, listener.local_addr());
    let connect = |_| client(&ticket, &Options::default()).unwrap();
    (0..clients).map(connect).collect()
}

/// How many of these sessions each shard has.
fn of_each_shard(sessions: &[Session], shards: usize) -> Vec<usize> {
    let shard_of = |session: &Session| session.stats().load.shard;
    let of = |shard| sessions.iter().filter(|it| shard_of(it) == shard).count();
    (0..shards).map(of).collect()
}

fn handovers(sessions: &[Session]) -> u64 {
    sessions.iter().map(|s| s.stats().load.handovers).sum()
}

#[test]
fn two_hundred_sessions_on_two_shards_all_finish() {
    const SESSIONS: usize = 200;
    bounded(|| {
        let listener = server_with(&with_shards(2));
        let clients = connect_all(&listener, SESSIONS);
        let servers = accept_each(&listener, &clients);
        // Eight at a time, all of them open.
        std::thread::scope(|scope| {
            for part in 0..8 {
                let (clients, servers) = (&clients, &servers);
                scope.spawn(move || {
                    for number in (part..SESSIONS).step_by(8) {
                        let data = content(number as u64, 100_000);
                        transfer(&clients[number], &servers[number], &data);
                        transfer(&servers[number], &clients[number], &data);
                    }
                });
            }
        });
        for server in &servers {
            let load = server.stats().load;
            assert_eq!((load.shards, load.steering), (2, Some("bpf")));
            // But for those first packets whose session is to be at the other shard, which each of them hears of once.
            assert!(load.handovers <= SESSIONS as u64, "the kernel steers");
        }
        assert_eq!(of_each_shard(&servers, 2), [SESSIONS / 2; 2]);
        let load = clients[0].stats().load;
        assert_eq!((load.shards, load.steering), (1, None));
    });
}

#[test]
fn new_sessions_go_where_there_are_fewest() {
    for by_hash in [false, true] {
        bounded(move || {
            let listener = server_with(&steered(3, by_hash));
            let clients = connect_all(&listener, 12);
            let servers = accept_each(&listener, &clients);
            assert_eq!(of_each_shard(&servers, 3), [4; 3]);
            for (client, server) in std::iter::zip(&clients, &servers) {
                transfer(client, server, &content(1, 10_000));
            }
        });
    }
}

/// What the kernel steers by is not the address.
#[test]
fn a_client_that_changes_its_address_stays_with_its_session() {
    for by_hash in [false, true] {
        bounded(move || {
            let listener = server_with(&steered(3, by_hash));
            let proxies: Vec<_> = (0..6)
                .map(|n| Proxy::start(listener.local_addr(), link(0.01, n), link(0.01, 99 + n)))
                .collect();
            let clients: Vec<_> = proxies
                .iter()
                .map(|proxy| {
                    let ticket = ticket(&listener, proxy.address());
                    client(&ticket, &Options::default()).unwrap()
                })
                .collect();
            let servers = accept_each(&listener, &clients);
            let before = handovers(&servers);
            let mut addresses: Vec<_> = servers.iter().map(Session::remote_addr).collect();
            for round in 0..4 {
                std::thread::scope(|scope| {
                    for (client, server) in std::iter::zip(&clients, &servers) {
                        scope.spawn(move || transfer(client, server, &content(round, 200_000)));
                    }
                });
                if round > 0 {
                    for (server, address) in std::iter::zip(&servers, &mut addresses) {
                        // Where packets of the check are lost it is sent again.
                        wait_until("the server has checked the new address", || {
                            server.remote_addr() != *address
                        });
                        *address = server.remote_addr();
                    }
                }
                proxies.iter().for_each(Proxy::rebind);
            }
            match by_hash {
                false => assert_eq!(handovers(&servers), before),
                // 18 addresses at least, each of which leads to the right shard in one of three cases.
                true => assert!(handovers(&servers) > before),
            }
        });
    }
}

#[test]
fn where_the_kernel_cannot_steer_strays_are_handed_over() {
    bounded(|| {
        let options = Options {
            workers: 1,
            ..steered(2, true)
        };
        let listener = server_with(&options);
        let clients = connect_all(&listener, 16);
        let servers = accept_each(&listener, &clients);
        for (client, server) in std::iter::zip(&clients, &servers) {
            transfer(client, server, &content(1, 1_000_000));
            transfer(server, client, &content(2, 300_000));
            let stats = server.stats();
            assert_eq!(stats.load.steering, Some("hash"));
            // Of handshakes something may come when they are forgotten, and machines that do too much fill queues.
            let all = stats.load.datagrams_received;
            assert!(stats.invalid_datagrams * 10 <= all, "{stats:?}");
        }
        assert!(handovers(&servers) > 0);
        let stray = |server: &&Session| server.stats().load.handovers > 0;
        assert!(servers.iter().any(|server| stray(&server)));
    });
}

#[test]
fn a_port_that_has_shards_is_taken() {
    bounded(|| {
        let listener = server_with(&with_shards(2));
        for shards in [1, 2] {
            let options = with_shards(shards);
            let second = Server::bind(listener.local_addr(), Service::Application, &options);
            assert_eq!(second.unwrap_err().kind(), ErrorKind::LocalIo);
        }
        let alone = server();
        let second = Server::bind(alone.local_addr(), Service::Application, &with_shards(2));
        assert_eq!(second.unwrap_err().kind(), ErrorKind::LocalIo);
    });
}

#[test]
fn one_session_in_its_life_is_one_on_all_shards() {
    bounded(|| {
        let options = Options {
            once: true,
            ..with_shards(4)
        };
        let listener = server_with(&options);
        let ticket = ticket(&listener, listener.local_addr());
        let (accepted, refused): (Vec<_>, Vec<_>) = (0..12)
            .map(|_| {
                client(&ticket, &Options::default()).and_then(|s| send_all(&s, b"x").map(|()| s))
            })
            .partition(Result::is_ok);
        assert_eq!((accepted.len(), refused.len()), (1, 11));
    });
}

/// Who may connect is of the server, and so is its end.
#[test]
fn all_shards_hear_of_a_new_list_and_of_the_end() {
    bounded(|| {
        let listener = server_with(&with_shards(4));
        let clients = connect_all(&listener, 12);
        let servers = accept_each(&listener, &clients);
        listener.access().replace(AccessList::new());
        for session in servers.iter().chain(&clients) {
            wait_until("the session has ended", || session.open_uni().is_err());
        }
        let listener = server_with(&with_shards(4));
        let clients = connect_all(&listener, 12);
        // A client is connected before the server has heard the end of its handshake, which would else be what is aborted.
        let _servers = accept_each(&listener, &clients);
        drop(listener);
        for client in &clients {
            let error = client.accept_uni().map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        }
    });
}

#[test]
fn shards_past_the_kernel_need_a_card() {
    let options = Options {
        io: Io::Xdp("lo".parse().unwrap()),
        ..with_shards(2)
    };
    let error = Server::bind(LOCALHOST, Service::Application, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LocalIo);
}
