//! Models of the threads that meet at an endpoint: loom runs them in every order (`make loom`).

use loom::thread::{self, JoinHandle};
use sphinx_net::Interest;

use super::*;
use crate::shared::models::{Meeting, in_every_order};
use crate::signal::models::block_on;

/// What somebody who waits for a session is told.
fn accepting(lobby: &Arc<Lobby>) -> JoinHandle<Result<Option<Session>, Error>> {
    let lobby = Arc::clone(lobby);
    thread::spawn(move || lobby.next(None))
}

#[test]
fn a_session_that_arrives_is_accepted() {
    in_every_order(|| {
        let lobby = Lobby::new();
        let session = Meeting::new().session();
        let accepting = accepting(&lobby);
        lobby.arrive(session);
        assert!(accepting.join().unwrap().unwrap().is_some());
    });
}

#[test]
fn a_task_accepts_a_session_that_arrives() {
    in_every_order(|| {
        let lobby = Lobby::new();
        let session = Meeting::new().session();
        let accepting = thread::spawn({
            let lobby = Arc::clone(&lobby);
            let mut waiter = Waiter::new(&lobby.changed);
            move || block_on(|cx| lobby.poll_next(&mut waiter, cx)).map(drop)
        });
        lobby.arrive(session);
        accepting.join().unwrap().unwrap();
    });
}

#[test]
fn whoever_accepts_hears_of_a_failure() {
    in_every_order(|| {
        let lobby = Lobby::new();
        let accepting = accepting(&lobby);
        lobby.fail(Error::new(ErrorKind::LocalIo, "the socket has failed"));
        let error = accepting.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LocalIo);
    });
}

#[test]
fn an_engine_that_sleeps_is_told_to_stop() {
    in_every_order(|| {
        let (lobby, waker) = (Lobby::new(), Waker::new().unwrap());
        let engine = thread::spawn({
            let (lobby, waker) = (Arc::clone(&lobby), waker.clone());
            move || {
                while !lobby.stop.load(Ordering::Relaxed) {
                    waker.wait(None, Interest::Read, None).unwrap();
                }
            }
        });
        let engine_of = EngineOf {
            waker,
            thread: None,
            pool: BufferPool::new(0),
        };
        let server = Server {
            lobby,
            engines: vec![engine_of],
            local_addr: ([127, 0, 0, 1], 1).into(),
            own_addresses: Vec::new(),
            identity: Identity::generate(),
            guests: Guests::new(AccessList::new()),
        };
        drop(server);
        engine.join().unwrap();
    });
}
