//! Sessions whose payload is coded, sealed and opened by other threads.

use sphinx_transport::{Codec, ErrorKind, Options, Profile, connect};

use crate::support::*;

fn with_workers(workers: usize) -> Options {
    Options {
        workers,
        ..Options::default()
    }
}

/// Lossless, so that what is sent is what the socket takes, in long runs; and both ways at once.
#[test]
fn bytes_are_exact_on_loopback_with_any_number_of_workers() {
    for workers in [0, 1, 2, 3] {
        bounded(move || {
            let options = with_workers(workers);
            let listener = server_with(&options);
            let ticket = ticket(&listener, listener.local_addr());
            let client = client(&ticket, &options).unwrap();
            let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
            let (there, back) = (content(1, 30_000_000), content(2, 20_000_000));
            std::thread::scope(|scope| {
                scope.spawn(|| transfer(&client, &server, &there));
                scope.spawn(|| transfer(&server, &client, &back));
            });
            for stats in [client.stats(), server.stats()] {
                assert_eq!(stats.load.workers, workers);
                assert_eq!(stats.load.busy.is_zero(), workers == 0, "{stats:?}");
                // Packets of a handshake that were sent twice, as the machine was busy, may come when nobody waits for them any more.
                assert!(stats.invalid_datagrams < 10, "{stats:?}");
            }
        });
    }
}

#[test]
fn bytes_are_exact_across_lossy_links_with_every_code() {
    for codec in ["rlc", "window", "rs", "fft-rs", "srlt", "lt", "none"] {
        bounded(move || {
            let options = Options {
                codec: Codec::by_name(codec).expect("a code"),
                profile: Profile::Latency,
                ..with_workers(2)
            };
            let pair = pair_with(link(0.05, 1), link(0.05, 2), &options);
            transfer(&pair.client, &pair.server, &content(1, 1_000_000));
            transfer(&pair.server, &pair.client, &content(2, 1_000_000));
        });
    }
}

/// All sessions of an endpoint share its workers; one that ends in the middle leaves the others alone.
#[test]
fn sessions_share_the_workers_of_an_endpoint() {
    bounded(|| {
        let options = with_workers(2);
        let listener = server_with(&options);
        let ticket = ticket(&listener, listener.local_addr());
        let sessions: Vec<_> = (0..4)
            .map(|_| {
                let client = client(&ticket, &options).unwrap();
                let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
                (client, server)
            })
            .collect();
        std::thread::scope(|scope| {
            for (number, (client, server)) in sessions.iter().enumerate() {
                scope.spawn(move || match number {
                    0 => {
                        let mut stream = client.open_uni().unwrap();
                        let _ = stream.write_all(&content(9, 1_000_000));
                        client.close(0, "");
                    }
                    _ => transfer(client, server, &content(number as u64, 8_000_000)),
                });
            }
        });
    });
}

#[test]
fn a_processor_that_there_is_not_is_an_error() {
    let options = Options {
        cpus: vec![0, 1023],
        ..Options::default()
    };
    let listener = server();
    let ticket = ticket(&listener, listener.local_addr());
    let Err(error) = connect(&ticket, sphinx_transport::Service::Application, &options) else {
        panic!("it has connected");
    };
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("1023"), "{error}");
}
