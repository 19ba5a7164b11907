//! What clients cost a server that does not accept them.

use sphinx_transport::{ErrorKind, Options, Server};

use crate::support::*;

/// What every client wants to send.
const LEN: usize = 200_000;
/// Looks in a row that find no more memory in use before clients count as held up.
const STILL: u32 = 5;

/// What the sessions hold when they are held up.
fn held(server: &Server) -> usize {
    let (mut before, mut still) = (0, 0);
    wait_until("clients are held up", || {
        std::thread::sleep(ms(100));
        let now = server.held_bytes();
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

#[test]
fn clients_that_nobody_accepts_hold_little_and_too_many_are_refused() {
    const CLIENTS: usize = 80;
    bounded(|| {
        let options = Options {
            memory: 24 << 20,
            ..Options::default()
        };
        let server = server_with(&options);
        let ticket = ticket(&server, server.local_addr());
        let sessions: Vec<_> = (0..CLIENTS)
            .map(|_| client(&ticket, &Options::default()).unwrap())
            .collect();
        std::thread::scope(|scope| {
            for session in &sessions {
                scope.spawn(|| {
                    // Until the session ends.
                    let mut stream = session.open_uni().ok();
                    let written = stream.as_mut().map(|stream| stream.write_all(&[7; LEN]));
                    let finished = stream.as_mut().map(|stream| stream.finish());
                    drop((written, finished));
                });
            }
            let held = held(&server);
            println!("{held} bytes held");
            assert!(held > 1 << 20 && held < options.memory as usize / 4);
            let refused: Vec<_> = sessions.iter().filter_map(|s| s.closed()).collect();
            assert!((1..CLIENTS * 3 / 4).contains(&refused.len()));
            for error in refused {
                assert_eq!(error.kind(), ErrorKind::Cancelled);
                assert!(error.to_string().contains("no memory"), "{error}");
            }
            // Who runs the server hears of it too, and what would help.
            let told = server.take_refused().expect("clients were refused");
            assert_eq!(told.kind(), ErrorKind::Cancelled);
            assert!(told.to_string().contains("--memory"), "{told}");
            // Those that are there go on once they are accepted.
            for _ in 0..3 {
                let session = server.accept(Some(PATIENCE)).unwrap().expect("waiting");
                let mut stream = session.accept_uni().unwrap();
                let (mut read, mut buf) = (0, [0; 1 << 14]);
                while read < LEN {
                    read += stream.read(&mut buf).unwrap();
                }
            }
            drop(server);
        });
    });
}

/// Who sends something, closes and goes leaves behind what nobody has taken.
#[test]
fn what_sessions_leave_that_nobody_has_accepted_counts() {
    const LEFT: usize = 50_000;
    bounded(|| {
        let options = Options {
            memory: 4 << 20,
            ..Options::default()
        };
        let server = server_with(&options);
        let ticket = ticket(&server, server.local_addr());
        let comes = || {
            client(&ticket, &Options::default()).is_ok_and(|session| {
                let sent = send_all(&session, &content(1, LEFT));
                session.close(0, "");
                sent.is_ok()
            })
        };
        // Those that have just ended take some of the room as well, for a moment.
        let comes_soon = || {
            (0..4).any(|_| {
                let has_come = comes();
                if !has_come {
                    std::thread::sleep(ms(500));
                }
                has_come
            })
        };
        let mut came = 0;
        while comes_soon() {
            came += 1;
            assert!(came < 200, "{} bytes are held", server.held_bytes());
        }
        assert!(came > 20, "{came}");
        assert!(server.held_bytes() < options.memory as usize);
        while server.accept(Some(ms(0))).unwrap().is_some() {}
        assert!(comes_soon());
    });
}

#[test]
fn a_server_of_one_session_refuses_others_at_once() {
    bounded(|| {
        let options = Options {
            once: true,
            ..Options::default()
        };
        let server = server_with(&options);
        let ticket = ticket(&server, server.local_addr());
        let connect = || client(&ticket, &Options::default()).unwrap();
        let refused = |session: sphinx_transport::Session| {
            wait_until("refused", || session.closed().is_some());
            let error = session.closed().expect("just seen");
            assert_eq!(error.kind(), ErrorKind::Cancelled);
            assert!(error.to_string().contains("one session only"), "{error}");
        };
        let first = connect();
        // That it is there shows in its being accepted.
        let accepted = server.accept(Some(PATIENCE)).unwrap().expect("in time");
        refused(connect());
        transfer(&first, &accepted, &content(5, 100_000));
        first.close(0, "done");
        refused(connect());
        assert!(server.accept(Some(ms(0))).unwrap().is_none());
    });
}
