//! How sessions end, and what each end is told.

use std::sync::Arc;
use std::time::Duration;

use sphinx_transport::{AccessList, Error, ErrorKind, LocalPath, Options, Session};

use crate::support::*;

#[test]
fn close_is_noticed_at_20_percent_loss() {
    bounded(|| {
        std::thread::scope(|scope| {
            for seed in 0..6 {
                scope.spawn(move || {
                    let pair = pair(link(0.2, 2 * seed), link(0.2, 2 * seed + 1));
                    let (closing, other) = match seed % 2 {
                        0 => (&pair.client, &pair.server),
                        _ => (&pair.server, &pair.client),
                    };
                    scope_close(closing, 6, "interrupted");
                    let error = end_of(other);
                    // The CLOSE has arrived: without it the peer would count as lost later.
                    assert_eq!(error.kind(), ErrorKind::Cancelled);
                    assert!(error.to_string().contains("interrupted"), "{error}");
                });
            }
        });
    });
}

/// Closes without waiting for the answer.
fn scope_close(session: &Session, code: u64, reason: &'static str) {
    let session = session.clone();
    std::thread::spawn(move || session.close(code, reason));
}

#[test]
fn close_codes_have_their_meaning_at_the_other_end() {
    bounded(|| {
        let kinds = [
            (0, ErrorKind::Cancelled),
            (5, ErrorKind::Protocol),
            (9, ErrorKind::RemoteIo),
            (10, ErrorKind::Integrity),
            (u64::MAX, ErrorKind::Other),
        ];
        for (code, kind) in kinds {
            let (_listener, client, server) = direct();
            client.close(code, "words\u{e4}".repeat(100).as_str());
            assert_eq!(end_of(&server).kind(), kind, "{code}");
            assert_eq!(end_of(&client).kind(), ErrorKind::Interrupted);
        }
    });
}

/// Who waits longer than clocks go waits without a limit.
#[test]
fn who_waits_for_ever_is_told() {
    bounded(|| {
        let listener = server();
        let ticket = ticket(&listener, listener.local_addr());
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept(Some(Duration::MAX)).unwrap());
            let near = client(&ticket, &Options::default()).unwrap();
            let far = accepting.join().unwrap().expect("there is no limit");
            let waiting = scope.spawn(move || far.wait_closed(Duration::MAX));
            near.close(6, "interrupted");
            let error = waiting.join().unwrap().expect("there is no limit");
            assert_eq!(error.kind(), ErrorKind::Cancelled);
        });
    });
}

/// Tests in virtual time check how soon this happens.
#[test]
fn a_peer_that_falls_silent_is_lost_at_both_ends() {
    bounded(|| {
        let options = Options {
            idle_timeout: ms(1000),
            ..Options::default()
        };
        let pair = pair_with(link(0.0, 1), link(0.0, 2), &options);
        transfer(&pair.client, &pair.server, &content(1, 100_000));
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| send_all(&pair.client, &content(2, 50_000_000)));
            let mut stream = pair.server.accept_uni().unwrap();
            stream.read(&mut [0; 1]).unwrap();
            pair.proxy.set_silent(true);
            let error = read_all(&mut stream).expect_err("nothing comes");
            assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
            let error = sending
                .join()
                .expect("no panic")
                .expect_err("nobody answers");
            assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        });
    });
}

/// Keep-alives go to and fro, but the data gets nowhere: both ends are told which one does not read what.
#[test]
fn a_peer_that_does_not_read_stalls_the_session() {
    bounded(|| {
        let options = Options {
            idle_timeout: ms(1000),
            ..Options::default()
        };
        let pair = pair_with(link(0.0, 1), link(0.0, 2), &options);
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| send_all(&pair.client, &content(2, 60_000_000)));
            let _unread = pair.server.accept_uni().unwrap();
            let error = sending.join().expect("no panic").expect_err("not read");
            assert_eq!(error.kind(), ErrorKind::Stalled, "{error}");
            let what = "no progress for 1 s: the other end answers, but its application has not read stream 2";
            assert!(error.to_string().starts_with(what), "{error}");
            // Nobody has cancelled anything.
            let error = end_of(&pair.server);
            assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
            let what =
                "the other end gave up: nothing of stream 2 was read at this end for too long";
            assert_eq!(error.to_string(), what);
        });
    });
}

#[test]
fn letting_go_of_a_session_ends_it() {
    bounded(|| {
        let (_listener, client, server) = direct();
        let mut stream = client.open_uni().unwrap();
        stream.write_all(b"half a mess").unwrap();
        let keeps = client.clone();
        drop(client);
        assert!(keeps.closed().is_none());
        drop(keeps);
        assert_eq!(end_of(&server).kind(), ErrorKind::Cancelled);
        // The stream outlives the session without harm.
        wait_until("writing fails", || stream.write_all(b"age").is_err());
        assert!(stream.wait_delivered().is_err());
        assert!(server.open_uni().is_err());
        assert!(server.accept_uni().is_err() || server.accept_uni().is_err());
    });
}

#[test]
fn handles_may_go_in_any_order() {
    bounded(|| {
        for order in 0..6 {
            let (listener, client, server) = direct();
            let mut out = client.open_uni().unwrap();
            out.write_all(&[1; 5000]).unwrap();
            let mut incoming = server.accept_uni().unwrap();
            incoming.read(&mut [0; 10]).unwrap();
            match order {
                0 => drop((listener, client, server, out, incoming)),
                1 => drop((incoming, out, server, client, listener)),
                2 => drop((server, incoming, listener, out, client)),
                3 => drop((client, listener, incoming, server, out)),
                4 => drop((out, server, client, incoming, listener)),
                _ => drop((listener, incoming, client, out, server)),
            }
        }
    });
}

#[test]
fn a_server_that_goes_takes_its_sessions_with_it() {
    bounded(|| {
        let (listener, client, server) = direct();
        std::thread::scope(|scope| {
            let readers =
                [&client, &server].map(|session| scope.spawn(|| session.accept_uni().err()));
            drop(listener);
            let kinds =
                readers.map(|reader| reader.join().expect("no panic").expect("over").kind());
            assert_eq!(kinds, [ErrorKind::Cancelled, ErrorKind::Interrupted]);
        });
    });
}

/// As it is meant to be used, what looks has the list.
#[test]
fn a_server_that_goes_lets_go_of_what_looks_after_its_list() {
    bounded(|| {
        let listener = server();
        let access = listener.access();
        let kept = Arc::new(());
        let held = (access.clone(), Arc::clone(&kept));
        access.look_before_refusing(move || {
            let (access, _kept) = &held;
            access.replace(AccessList::new());
        });
        drop((listener, access));
        assert_eq!(Arc::strong_count(&kept), 1);
    });
}

#[test]
fn who_asks_something_of_paths_of_a_session_that_is_over_is_told_at_once() {
    bounded(|| {
        let (listener, client, _server) = direct();
        client.close(0, "");
        wait_until("it is over", || client.closed().is_some());
        drop(listener);
        let path = LocalPath::Address([127, 0, 0, 2].into()).into();
        // Each answer of an engine would be waited for for two seconds.
        for _ in 0..100 {
            let error = client.add_path(&path).expect_err("it is over");
            assert_eq!(error.kind(), ErrorKind::Interrupted);
            assert!(!client.abandon_path(0));
        }
    });
}

/// It lasts while it waits for the answer of a client that does not hear it. Who comes then is told, and not let in first.
#[test]
fn a_server_that_ends_lets_nobody_in() {
    bounded(|| {
        let Pair {
            client: _deaf,
            server,
            proxy,
            listener,
        } = pair(link(0.0, 1), link(0.0, 2));
        let ticket = ticket(&listener, listener.local_addr());
        proxy.set_silent(true);
        std::thread::scope(|scope| {
            scope.spawn(move || drop(listener));
            end_of(&server);
            let error = client(&ticket, &Options::default()).expect_err("too late");
            // Later the port is closed.
            let told = error.kind() == ErrorKind::Cancelled;
            assert!(told || error.kind() == ErrorKind::Unreachable, "{error}");
            if told {
                let what = "the peer cancelled: the other end has stopped";
                assert_eq!(error.to_string(), what);
            }
        });
    });
}

#[test]
fn what_has_arrived_is_read_after_the_peer_has_closed() {
    bounded(|| {
        let (_listener, client, server) = direct();
        let data = content(1, 300_000);
        send_all(&client, &data).unwrap();
        client.close(0, "");
        end_of(&server);
        assert!(read_all(&mut server.accept_uni().unwrap()).unwrap() == data);
        assert_eq!(
            server.accept_uni().expect_err("over").kind(),
            ErrorKind::Cancelled
        );
    });
}

#[test]
fn a_reader_that_closes_after_the_last_byte_does_not_hide_the_delivery() {
    bounded(|| {
        std::thread::scope(|scope| {
            for seed in 0..6 {
                scope.spawn(move || {
                    let pair = pair(link(0.2, 2 * seed), link(0.2, 2 * seed + 1));
                    let reader = pair.server.clone();
                    let reading = std::thread::spawn(move || {
                        let data = read_all(&mut reader.accept_uni().unwrap()).unwrap();
                        reader.close(0, "thank you");
                        data
                    });
                    let data = content(seed, 60_000);
                    send_all(&pair.client, &data).unwrap();
                    assert_eq!(pair.client.stats().bytes_delivered, 60_000);
                    assert!(reading.join().expect("no panic") == data);
                });
            }
        });
    });
}

#[test]
fn a_delivery_that_was_cut_short_is_an_error() {
    bounded(|| {
        let pair = pair(link(0.0, 1), link(0.0, 2));
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| send_all(&pair.client, &content(1, 20_000_000)));
            wait_until("some of it has been sent", || {
                pair.client.stats().source_sent > 0
            });
            pair.client.close(6, "enough");
            let error = sending
                .join()
                .expect("no panic")
                .expect_err("not all of it");
            assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
        });
        let mut late = pair.client.open_uni();
        assert!(late.as_mut().is_err());
    });
}

#[test]
fn a_finished_stream_takes_no_more() {
    bounded(|| {
        let (_listener, client, server) = direct();
        let mut stream = client.open_uni().unwrap();
        stream.write_all(b"all").unwrap();
        stream.finish().unwrap();
        stream.finish().unwrap();
        let error = stream.write_all(b"more").expect_err("finished");
        assert_eq!(error.kind(), ErrorKind::Usage);
        stream.wait_delivered().unwrap();
        stream.wait_delivered().unwrap();
        assert!(read_all(&mut server.accept_uni().unwrap()).unwrap() == b"all");
    });
}

/// A stream that its writer drops must not look whole to its reader.
#[test]
fn a_stream_that_is_given_up_is_an_error_to_its_reader() {
    bounded(|| {
        let (_listener, client, server) = direct();
        for code in [None, Some(0), Some((1 << 62) - 1), Some(u64::MAX)] {
            let mut stream = client.open_uni().unwrap();
            stream.write_all(b"half").unwrap();
            stream.flush().unwrap();
            let mut reader = server.accept_uni().unwrap();
            // Of what has not been read nothing remains.
            assert_eq!(reader.read(&mut [0; 4]).unwrap(), 4);
            match code {
                None => drop(stream),
                Some(code) => {
                    stream.reset(code);
                    let error = stream.write_all(b"more").expect_err("given up");
                    assert_eq!(error.kind(), ErrorKind::Usage);
                    let error = stream.wait_delivered().expect_err("given up");
                    assert_eq!(error.kind(), ErrorKind::Usage);
                    assert_eq!(stream.stopped().unwrap(), None);
                }
            }
            let error = reader.read(&mut [0; 4]).expect_err("no end");
            let told = code.unwrap_or(0).min((1 << 62) - 1);
            assert_eq!(
                (error.kind(), error.stream_code()),
                (ErrorKind::StreamReset, Some(told))
            );
        }
        // Before anything has been written, and in the midst of what is read in any order.
        drop(client.open_uni().unwrap());
        let error = read_all(&mut server.accept_uni().unwrap()).expect_err("no end");
        assert_eq!(error.kind(), ErrorKind::StreamReset);
        let mut stream = client.open_uni().unwrap();
        stream.write_all(b"half").unwrap();
        stream.flush().unwrap();
        let mut reader = server.accept_uni().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let sink = |_: u64, _: &[u8]| Ok::<(), Error>(());
                let error = reader.read_unordered(8, sink).expect_err("no more");
                assert_eq!(error.kind(), ErrorKind::StreamReset);
            });
            drop(stream);
        });
        transfer(&client, &server, &content(5, 100_000));
    });
}

/// A stream that was delivered is whole, whatever its writer says later.
#[test]
fn what_is_delivered_cannot_be_given_up() {
    bounded(|| {
        let (_listener, client, server) = direct();
        let mut stream = client.open_uni().unwrap();
        write_and_wait(&mut stream, b"all").unwrap();
        stream.reset(7);
        stream.wait_delivered().unwrap();
        assert_eq!(stream.stopped().unwrap(), None);
        assert!(read_all(&mut server.accept_uni().unwrap()).unwrap() == b"all");
    });
}

/// Who wants no more of a stream stops its writer, wherever it waits, and nobody else.
#[test]
fn a_stream_that_is_stopped_is_an_error_to_its_writer() {
    bounded(|| {
        let (_listener, client, server) = direct();
        let mut stream = client.open_uni().unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                // More than any window holds.
                let error = stream.write_all(&vec![1; 60 << 20]).expect_err("stopped");
                (error.kind(), error.stream_code(), stream.stopped().unwrap())
            });
            let mut reader = server.accept_uni().unwrap();
            assert!(reader.read(&mut [0; 4]).unwrap() > 0);
            reader.stop(99);
            let told = writer.join().expect("no panic");
            assert_eq!(told, (ErrorKind::StreamStopped, Some(99), Some(99)));
        });
        let mut stream = client.open_uni().unwrap();
        stream.write_all(b"x").unwrap();
        stream.flush().unwrap();
        let reader = server.accept_uni().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| stream.stopped());
            drop(reader);
            assert_eq!(waiting.join().expect("no panic").unwrap(), Some(0));
        });
        let error = stream.finish().expect_err("stopped");
        assert_eq!(error.kind(), ErrorKind::StreamStopped);
        transfer(&client, &server, &content(5, 100_000));
    });
}

#[test]
fn a_session_has_ten_thousand_streams_open_at_a_time() {
    bounded(|| {
        let (_listener, client, server) = direct();
        for n in 0..10_240_u16 {
            let mut stream = client.open_uni().unwrap();
            stream.write_all(&n.to_be_bytes()).unwrap();
            stream.finish().unwrap();
        }
        assert_eq!(
            client.open_uni().expect_err("too many").kind(),
            ErrorKind::Usage
        );
        for n in 0..10_240_u16 {
            let mut stream = server.accept_uni().unwrap();
            assert_eq!(read_all(&mut stream).unwrap(), n.to_be_bytes());
        }
    });
}

#[test]
fn the_numbers_of_a_session_stand_still_after_its_end() {
    bounded(|| {
        let pair = pair(link(0.02, 1), link(0.02, 2));
        let data = content(1, 500_000);
        transfer(&pair.client, &pair.server, &data);
        let delivered = pair.client.stats();
        assert_eq!(delivered.bytes_delivered, 500_000);
        // Names and addresses of the handshake are counted too: five datagrams at least.
        let data_plane = delivered.source_sent + delivered.repair_reactive;
        assert!(
            delivered.wire_packets_sent > data_plane + 3,
            "{delivered:?}"
        );
        pair.client.close(0, "");
        let closed = pair.client.stats();
        assert!(closed.elapsed >= delivered.elapsed);
        assert!(closed.wire_bytes_sent > delivered.wire_bytes_sent);
        assert_eq!(closed.bytes_delivered, 500_000);
        end_of(&pair.server);
        let later = pair.client.stats();
        assert_eq!(later.elapsed, closed.elapsed);
        let other = pair.server.stats();
        assert_eq!(other.bytes_received, 500_000);
        assert!(other.wire_bytes_received > 500_000);
        // What one end sent, less the losses, is what the other end got.
        assert!(other.wire_bytes_received <= later.wire_bytes_sent);
        assert!(other.wire_bytes_received > later.wire_bytes_sent * 9 / 10);
    });
}
