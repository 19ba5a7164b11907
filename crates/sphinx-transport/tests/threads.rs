//! Engines end with what they serve. A test of its own, because it counts the threads of the process.

use std::fs;
use std::future::Future;
use std::net::UdpSocket;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use sphinx_transport::{ErrorKind, Options, Server, Service, asynchronous, connect};

fn engines() -> usize {
    threads("sphinx-engine")
}

fn threads(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|its| its.trim().starts_with(name))
        .count()
}

fn wait_for(count: usize) {
    wait_until(count, engines);
}

fn wait_until(count: usize, threads: impl Fn() -> usize) {
    let begin = Instant::now();
    while threads() != count {
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "{} threads",
            threads()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn engine_threads_end() {
    let options = Options {
        connect_timeout: Duration::from_millis(300),
        ..Options::default()
    };
    let bind = || Server::bind(([127, 0, 0, 1], 0).into(), Service::Application, &options).unwrap();
    let server = bind();
    let ticket = server.ticket(&["127.0.0.1".to_owned()]).unwrap();
    wait_for(1);

    // A session that is closed, and one that is dropped.
    for close in [true, false] {
        let client = connect(&ticket, Service::Application, &options).unwrap();
        let accepted = server.accept(None).unwrap().unwrap();
        wait_for(2);
        if close {
            client.close(0, "");
        }
        drop(client);
        wait_for(1);
        drop(accepted);
    }

    // The peer closes, and this end keeps its handle.
    let client = connect(&ticket, Service::Application, &options).unwrap();
    server.accept(None).unwrap().unwrap().close(0, "");
    wait_for(1);
    assert_eq!(client.closed().unwrap().kind(), ErrorKind::Cancelled);

    // Attempts that fail.
    let deaf = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    let nowhere = server
        .ticket(&[deaf.local_addr().unwrap().to_string()])
        .unwrap();
    assert!(connect(&nowhere, Service::Application, &options).is_err());
    assert!(connect(&ticket, Service::Perf, &options).is_err());
    let other = bind();
    let local = server.local_addr().to_string();
    assert!(
        connect(
            &other.ticket(&[local]).unwrap(),
            Service::Application,
            &options
        )
        .is_err()
    );
    drop(other);
    wait_for(1);

    // An attempt that its task gives up.
    {
        let patient = Options {
            connect_timeout: Duration::from_secs(600),
            ..Options::default()
        };
        let mut attempt = pin!(asynchronous::connect(
            &nowhere,
            Service::Application,
            &patient
        ));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(attempt.as_mut().poll(&mut cx).is_pending());
        wait_for(2);
    }
    wait_for(1);

    // The server goes, with a session open.
    let client = connect(&ticket, Service::Application, &options).unwrap();
    drop(server);
    wait_for(0);
    assert!(client.closed().is_some());

    // Workers go with their engines.
    let options = Options {
        workers: 2,
        ..options.clone()
    };
    let server = Server::bind(([127, 0, 0, 1], 0).into(), Service::Application, &options).unwrap();
    let ticket = server.ticket(&["127.0.0.1".to_owned()]).unwrap();
    let client = connect(&ticket, Service::Application, &options).unwrap();
    let workers = || threads("sphinx-worker");
    assert_eq!(workers(), 4);
    drop((client, server));
    wait_for(0);
    wait_until(0, workers);
}
