//! What a reader that does not read holds up, and what it does not.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Scope;

use sphinx_link::{Depth, LinkConfig};
use sphinx_transport::{ErrorKind, Options, RecvStream, Session};

use crate::support::*;

/// What the windows of both ends hold, and what is being sliced.
const HELD_MAX: usize = 56 << 20;
const PIECE: usize = 1 << 18;

/// Writes to a new stream of `session` until that ends; what has been written is counted.
fn write_on<'scope>(
    scope: &'scope Scope<'scope, '_>,
    session: &'scope Session,
    written: &'scope AtomicUsize,
) {
    scope.spawn(|| {
        let mut stream = session.open_uni().unwrap();
        let piece = content(9, PIECE);
        while stream.write_all(&piece).is_ok() {
            written.fetch_add(piece.len(), Ordering::Relaxed);
        }
    });
}

/// Looks in a row that find nothing more written before a writer counts as stopped: a busy machine lets
/// threads wait for longer than one of them takes.
const STILL: u32 = 5;

/// Waits until a writer has to wait; what it has written.
fn wait_until_stopped(written: &AtomicUsize) -> usize {
    let (mut before, mut still) = (0, 0);
    wait_until("the writer stops", || {
        std::thread::sleep(ms(200));
        let now = written.load(Ordering::Relaxed);
        still = if now > 0 && now == before {
            still + 1
        } else {
            0
        };
        before = now;
        still == STILL
    });
    before
}

/// Reads on until the writer has gone on.
fn read_beyond(stream: &mut RecvStream, before: usize) {
    let (mut all, mut buf) = (0, vec![0; 1 << 16]);
    while all < before + (1 << 20) {
        all += stream.read(&mut buf).unwrap();
    }
}

#[test]
fn a_slow_reader_stops_the_writer_and_no_other_session() {
    bounded(|| {
        let listener = server();
        let ticket = ticket(&listener, listener.local_addr());
        let connect = || {
            let client = client(&ticket, &Options::default()).unwrap();
            (
                client,
                listener.accept(Some(PATIENCE)).unwrap().expect("in time"),
            )
        };
        let (slow, (quick, quick_server)) = (connect(), connect());
        let written = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            write_on(scope, &slow.0, &written);
            let before = wait_until_stopped(&written);
            assert!(before < HELD_MAX, "{before}");
            transfer(&quick, &quick_server, &content(10, 2_000_000));
            assert!(written.load(Ordering::Relaxed) <= before + PIECE);
            // Once somebody reads, it goes on.
            read_beyond(&mut slow.1.accept_uni().unwrap(), before);
            assert!(written.load(Ordering::Relaxed) > before);
            slow.0.close(0, "");
        });
    });
}

#[test]
fn small_writes_to_a_slow_reader_stop_too() {
    bounded(|| {
        let (_listener, client, _server) = direct();
        let written = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = client.open_uni().unwrap();
                // Fills most of the peer's window first.
                stream.write_all(&content(11, 18 << 20)).unwrap();
                while stream.write_all(&[1; 100]).is_ok() {
                    written.fetch_add(100, Ordering::Relaxed);
                }
            });
            let small = wait_until_stopped(&written);
            assert!(small < HELD_MAX, "{small}");
            client.close(0, "");
        });
    });
}

#[test]
fn a_stream_that_nobody_wants_does_not_fill_the_window() {
    bounded(|| {
        let (_listener, client, server) = direct();
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| send_all(&client, &content(12, 40_000_000)));
            let mut unwanted = server.accept_uni().unwrap();
            unwanted.read(&mut [0; 10]).unwrap();
            drop(unwanted);
            let error = sender.join().expect("no panic").expect_err("stopped");
            assert_eq!(error.kind(), ErrorKind::StreamStopped);
        });
        transfer(&client, &server, &content(13, 1_000_000));
    });
}

#[test]
fn streams_that_are_not_read_leave_the_others_their_share_of_the_window() {
    bounded(|| {
        let (_listener, client, server) = direct();
        let written = [const { AtomicUsize::new(0) }; 3];
        std::thread::scope(|scope| {
            let mut unread = Vec::new();
            for (n, written) in written.iter().enumerate() {
                write_on(scope, &client, written);
                let before = wait_until_stopped(written);
                unread.push((server.accept_uni().unwrap(), before));
                // What is left of the window carries many times its size, in both directions.
                transfer(&client, &server, &content(14 + n as u64, 3_000_000));
                transfer(&server, &client, &content(17 + n as u64, 1_000_000));
            }
            let all: usize = unread.iter().map(|(_, before)| before).sum();
            assert!(all < HELD_MAX, "{all}");
            // The first one took most; the others share what it left for those that are not read.
            assert!(unread[0].1 > unread[1].1 && unread[0].1 > unread[2].1);
            for (stream, before) in &mut unread {
                read_beyond(stream, *before);
            }
            client.close(0, "");
        });
    });
}

/// A window grows over a path that is long for it, and what it has grown by is given back when another session comes.
#[test]
fn a_window_grows_and_makes_room_for_another_session() {
    const MEMORY: u64 = 4 << 20;
    let far = |seed| LinkConfig {
        delay: ms(200),
        queue: Depth::Time(ms(400)),
        ..link(0.0, seed)
    };
    bounded(move || {
        let options = Options {
            memory: MEMORY,
            ..Options::default()
        };
        let pair = pair_with(far(1), far(2), &options);
        let begun = pair.server.stats().recv_window;
        assert!(begun < MEMORY / 8);
        let written = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            write_on(scope, &pair.client, &written);
            let mut stream = pair.server.accept_uni().unwrap();
            scope.spawn(move || {
                let mut buf = vec![0; 1 << 16];
                while stream.read(&mut buf).is_ok_and(|read| read > 0) {}
            });
            let has_grown = || pair.server.stats().recv_window >= MEMORY / 2;
            wait_until("the window has grown", has_grown);
            let ticket = ticket(&pair.listener, pair.listener.local_addr());
            let other = client(&ticket, &options).unwrap();
            let accepted = pair.listener.accept(Some(PATIENCE)).unwrap();
            wait_until("each has its share", || {
                let windows = [
                    pair.server.stats().recv_window,
                    pair.client.stats().peer_window,
                ];
                windows.iter().all(|window| *window <= MEMORY / 8 * 3)
            });
            assert!(pair.client.stats().window_limited > ms(0));
            drop((other, accepted));
            wait_until("the other's share is free again", has_grown);
            pair.client.close(0, "done");
        });
    });
}
