//! Bytes arrive exactly, whatever the link does.

use sphinx_link::{Corruption, GilbertElliott, Jitter, LinkConfig, Loss, Order, Reorder};
use sphinx_transport::{
    Codec, Error, ErrorKind, Options, Profile, RecvStream, SendStream, Session,
};

use crate::support::*;

#[test]
fn bytes_are_exact_on_a_clean_link() {
    bounded(|| {
        let pair = pair(link(0.0, 1), link(0.0, 2));
        let data = content(1, 3_000_000);
        transfer(&pair.client, &pair.server, &data);
        let stats = pair.client.stats();
        assert_eq!(stats.bytes_delivered, 3_000_000);
        assert_eq!(pair.server.stats().bytes_received, 3_000_000);
        assert!(stats.wire_bytes_sent > 3_000_000, "{stats:?}");
        assert_eq!((stats.invalid_datagrams, stats.replayed_datagrams), (0, 0));
    });
}

#[test]
fn bytes_are_exact_in_both_directions_at_once() {
    bounded(|| {
        let pair = pair(link(0.05, 1), link(0.05, 2));
        let (there, back) = (content(1, 2_000_000), content(2, 1_500_000));
        std::thread::scope(|scope| {
            scope.spawn(|| transfer(&pair.client, &pair.server, &there));
            scope.spawn(|| transfer(&pair.server, &pair.client, &back));
        });
    });
}

#[test]
fn streams_do_not_mix() {
    bounded(|| {
        let pair = pair(link(0.03, 1), link(0.03, 2));
        let data: Vec<_> = (0..8)
            .map(|n| content(n, 100_000 + 37 * n as usize))
            .collect();
        std::thread::scope(|scope| {
            for data in &data {
                let mut stream = pair.client.open_uni().unwrap();
                scope.spawn(move || write_and_wait(&mut stream, data).unwrap());
            }
            for data in &data {
                let mut stream = pair.server.accept_uni().unwrap();
                scope.spawn(move || assert!(read_all(&mut stream).unwrap() == *data));
            }
        });
    });
}

/// What arrives on a stream goes back on it, whichever end has opened it.
#[test]
fn streams_are_answered() {
    bounded(|| {
        let pair = pair(link(0.03, 1), link(0.03, 2));
        let echo = |session: &Session| {
            let (mut answer, mut request) = session.accept_bi().unwrap();
            let data = read_all(&mut request).unwrap();
            write_and_wait(&mut answer, &data).unwrap();
        };
        let ask = |session: &Session, seed| {
            let (mut request, mut answer) = session.open_bi().unwrap();
            let data = content(seed, 50_000 + seed as usize);
            write_and_wait(&mut request, &data).unwrap();
            assert!(read_all(&mut answer).unwrap() == data);
        };
        std::thread::scope(|scope| {
            for seed in 0..8 {
                let (from, to) = match seed % 2 {
                    0 => (&pair.client, &pair.server),
                    _ => (&pair.server, &pair.client),
                };
                scope.spawn(move || ask(from, seed));
                scope.spawn(move || echo(to));
            }
        });
    });
}

/// Who asks may want no answer, and who answers may have none to give.
#[test]
fn answers_are_given_up() {
    bounded(|| {
        let (_listener, client, server) = direct();
        let (mut request, answer) = client.open_bi().unwrap();
        answer.stop(7);
        let (mut unwanted, mut received) = server.accept_bi().unwrap();
        assert_eq!(unwanted.stopped().unwrap(), Some(7));
        write_and_wait_with(&mut request, b"one", &mut received);
        let (mut request, mut answer) = client.open_bi().unwrap();
        request.write_all(b"two").unwrap();
        request.finish().unwrap();
        let (mut none, mut received) = server.accept_bi().unwrap();
        none.reset(9);
        assert_eq!(read_all(&mut received).unwrap(), b"two");
        let error = read_all(&mut answer).unwrap_err();
        assert_eq!(
            (error.kind(), error.stream_code()),
            (ErrorKind::StreamReset, Some(9))
        );
    });
}

fn write_and_wait_with(request: &mut SendStream, data: &[u8], received: &mut RecvStream) {
    std::thread::scope(|scope| {
        scope.spawn(|| write_and_wait(request, data).unwrap());
        assert_eq!(read_all(received).unwrap(), data);
    });
}

#[test]
fn duplicated_reordered_and_corrupted_packets_do_no_harm() {
    bounded(|| {
        let rough = |seed| LinkConfig {
            duplication: 0.1,
            corruption: Corruption {
                probability: 0.03,
                bits: 3,
            },
            reorder: Reorder {
                probability: 0.1,
                hold: ms(8),
            },
            jitter: Jitter {
                max: ms(3),
                order: Order::Free,
            },
            ..link(0.03, seed)
        };
        let pair = pair(rough(1), rough(2));
        transfer(&pair.client, &pair.server, &content(1, 1_500_000));
        transfer(&pair.server, &pair.client, &content(2, 500_000));
        for stats in [pair.client.stats(), pair.server.stats()] {
            assert!(stats.replayed_datagrams > 10, "{stats:?}");
            assert!(stats.invalid_datagrams > 5, "{stats:?}");
        }
    });
}

#[test]
fn bytes_may_be_read_in_the_order_in_which_they_arrive() {
    bounded(|| {
        // A reader that gets no processor for long finds what was missing in its place: there are more goes than one.
        let jumps = (0..20)
            .map(|seed| jumps_of_a_stream_read_out_of_order(2 * seed + 1))
            .find(|jumps| *jumps > 0);
        assert!(jumps.is_some(), "no piece came out of order");
    });
}

/// Checks a transfer of which parts are read as they arrive, and returns how often a piece was not the next one.
fn jumps_of_a_stream_read_out_of_order(seed: u64) -> usize {
    let pair = pair(link(0.06, seed), link(0.01, seed + 1));
    // In order, then out of order in two goes, then in order to the end.
    let (first, second, third) = (10_007, 1_500_000, 2_400_001);
    let data = content(5, first + second + third + 777);
    std::thread::scope(|scope| {
        let mut stream = pair.client.open_uni().unwrap();
        let sent = &data;
        scope.spawn(move || write_and_wait(&mut stream, sent).unwrap());
        let mut stream = pair.server.accept_uni().unwrap();
        let mut received = vec![0; first];
        let mut filled = 0;
        while filled < first {
            filled += stream.read(&mut received[filled..]).unwrap();
        }
        let mut jumps = 0;
        for len in [second, third] {
            let start = received.len();
            received.resize(start + len, 0);
            let mut next = 0;
            let sink = |at: u64, piece: &[u8]| {
                jumps += usize::from(at != next);
                next = at + piece.len() as u64;
                let place = &mut received[start + at as usize..][..piece.len()];
                assert!(place.iter().all(|byte| *byte == 0), "twice at {at}");
                place.copy_from_slice(piece);
                Ok::<(), Error>(())
            };
            stream.read_unordered(len as u64, sink).unwrap();
        }
        received.extend(read_all(&mut stream).unwrap());
        assert!(received == data);
        jumps
    })
}

#[test]
fn reading_nothing_out_of_order_skips_nothing() {
    bounded(|| {
        let (_listener, client, server) = direct();
        send_all(&client, b"one and two").unwrap();
        let mut stream = server.accept_uni().unwrap();
        let mut first = [0; 4];
        assert_eq!(stream.read(&mut first).unwrap(), 4);
        let sink = |_: u64, _: &[u8]| -> Result<(), Error> { panic!("nothing was asked for") };
        stream.read_unordered(0, sink).unwrap();
        assert_eq!(read_all(&mut stream).unwrap(), b"and two");
    });
}

/// What a sink was given when it failed is read, as far as the window is concerned.
#[test]
fn a_sink_that_fails_costs_no_window() {
    bounded(|| {
        let options = Options {
            memory: 384 << 10,
            idle_timeout: ms(2000),
            ..Options::default()
        };
        let pair = pair_with(link(0.0, 1), link(0.0, 2), &options);
        // More than the window, all together.
        for _ in 0..120 {
            let mut sending = pair.client.open_uni().unwrap();
            sending.write_all(&[7; 50_000]).unwrap();
            sending.finish().unwrap();
            let mut stream = pair.server.accept_uni().unwrap();
            let sink = |_: u64, _: &[u8]| {
                let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
                Err(Box::<dyn std::error::Error>::from(full))
            };
            stream.read_unordered(50_000, sink).unwrap_err();
        }
        transfer(&pair.client, &pair.server, &content(1, 300_000));
    });
}

#[test]
fn a_stream_that_ends_too_early_is_an_error() {
    bounded(|| {
        let pair = pair(link(0.0, 1), link(0.0, 2));
        let mut stream = pair.client.open_uni().unwrap();
        stream.write_all(&[7; 5000]).unwrap();
        stream.finish().unwrap();
        let mut stream = pair.server.accept_uni().unwrap();
        let mut read = 0;
        let sink = |_: u64, piece: &[u8]| {
            read += piece.len();
            Ok::<(), Error>(())
        };
        let error = stream.read_unordered(5001, sink).unwrap_err();
        assert_eq!((error.kind(), read), (ErrorKind::Protocol, 5000));
        // What was skipped is not forgotten.
        assert_eq!(
            stream.read(&mut [0; 9]).unwrap_err().kind(),
            ErrorKind::Usage
        );
    });
}

#[test]
fn every_code_and_profile_survives_bursts_of_loss() {
    bounded(|| {
        let bursts = Loss::GilbertElliott(GilbertElliott::bursts(0.08, 6.0));
        let bursty = |seed| LinkConfig {
            loss: bursts.clone(),
            ..link(0.0, seed)
        };
        let variants = [
            (Codec::Rlc, Profile::Bulk),
            (Codec::Rlc, Profile::Latency),
            (Codec::Window, Profile::Bulk),
            (Codec::Window, Profile::Latency),
            (Codec::Rs, Profile::Bulk),
            (Codec::Rs, Profile::Latency),
            (Codec::FftRs, Profile::Bulk),
            (Codec::FftRs, Profile::Latency),
            (Codec::SemiRandomLt, Profile::Latency),
            (Codec::Lt, Profile::Bulk),
            (Codec::Lt, Profile::Latency),
            (Codec::None, Profile::Bulk),
        ];
        std::thread::scope(|scope| {
            for (codec, profile) in variants {
                scope.spawn(move || {
                    let options = Options {
                        codec,
                        profile,
                        ..Options::default()
                    };
                    let pair = pair_with(bursty(1), bursty(2), &options);
                    transfer(&pair.client, &pair.server, &content(3, 400_000));
                });
            }
        });
    });
}

#[test]
fn a_stream_without_data_ends() {
    bounded(|| {
        let pair = pair(link(0.1, 1), link(0.1, 2));
        transfer(&pair.client, &pair.server, &[]);
        transfer(&pair.client, &pair.server, &[]);
        transfer(&pair.server, &pair.client, &[7]);
    });
}

#[test]
fn many_small_messages_arrive() {
    bounded(|| {
        let options = Options {
            profile: Profile::Latency,
            ..Options::default()
        };
        let pair = pair_with(link(0.05, 1), link(0.05, 2), &options);
        let data = content(4, 150_000);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = pair.client.open_uni().unwrap();
                let mut rest = data.as_slice();
                for n in 0.. {
                    let (message, later) = rest.split_at(rest.len().min(1 + n % 150));
                    if message.is_empty() {
                        break;
                    }
                    stream.write_all(message).unwrap();
                    stream.flush().unwrap();
                    rest = later;
                }
                stream.wait_delivered().unwrap();
            });
            let mut stream = pair.server.accept_uni().unwrap();
            assert!(read_all(&mut stream).unwrap() == data);
        });
    });
}

#[test]
fn what_is_written_is_sent_without_a_flush() {
    bounded(|| {
        let (_listener, client, server) = direct();
        let mut stream = client.open_uni().unwrap();
        for round in 0..20_u8 {
            stream.write_all(&[round; 10]).unwrap();
            if round == 0 {
                stream.flush().unwrap();
            }
        }
        let mut incoming = server.accept_uni().unwrap();
        let (mut all, mut buf) = (0, [0; 64]);
        while all < 200 {
            all += incoming.read(&mut buf).unwrap();
        }
    });
}

#[test]
fn a_round_trip_of_600_ms_is_only_slow() {
    bounded(|| {
        let far = |seed| LinkConfig {
            delay: ms(300),
            ..link(0.01, seed)
        };
        let pair = pair(far(1), far(2));
        transfer(&pair.client, &pair.server, &content(5, 300_000));
        assert!(pair.client.stats().min_rtt >= ms(600));
    });
}
