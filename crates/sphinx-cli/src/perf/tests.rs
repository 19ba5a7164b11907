//! Both ends of a measurement against each other in memory.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use sphinx_transport::ErrorKind;

use super::client::{Request, measure};
use super::control::{Hello, Plan, Report, VERSION, Welcome, get, put};
use super::server::serve;
use super::{Direction, Limit, Measured, Pacing, send_data};
use crate::channel::{Channel, Outgoing};
use crate::failure::Outcome;
use crate::report::Progress;
use crate::testing::{End, pair};

fn run(request: Request) -> (Outcome<Measured>, Outcome<Measured>) {
    let (near, far) = pair();
    let server = thread::spawn(move || serve(&far, &Progress::default(), |_, _| {}));
    let client = measure(&near, request, &Progress::default());
    (client, server.join().expect("the server does not panic"))
}

fn request(limit: Limit) -> Request {
    Request {
        direction: Direction::Up,
        limit,
        streams: 1,
        pacing: None,
    }
}

#[test]
fn bulk_in_both_directions() {
    for direction in [Direction::Up, Direction::Down] {
        for streams in [1, 3] {
            let (client, server) = run(Request {
                direction,
                streams,
                ..request(Limit::Bytes(3_000_001))
            });
            let (client, server) = (client.unwrap(), server.unwrap());
            assert_eq!(
                (client.done.bytes, server.done.bytes),
                (3_000_001, 3_000_001)
            );
            assert_ne!(client.done.role, server.done.role);
            assert_eq!(client.peer.done["bytes"], 3_000_001);
            assert!(client.done.block_ms.is_none() && client.done.clock.is_none());
        }
    }
}

#[test]
fn nothing_at_all_can_be_measured() {
    let (client, server) = run(request(Limit::Bytes(0)));
    assert_eq!(
        (client.unwrap().done.bytes, server.unwrap().done.bytes),
        (0, 0)
    );
}

#[test]
fn bulk_for_a_time() {
    let (client, server) = run(request(Limit::Nanoseconds(50_000_000)));
    let (client, server) = (client.unwrap(), server.unwrap());
    assert!(client.done.bytes > 0);
    assert_eq!(client.done.bytes, server.done.bytes);
}

#[test]
fn paced_blocks_in_both_directions() {
    // 200 blocks, one each millisecond.
    let pacing = Pacing::new(8_000_000, 1000).unwrap();
    for direction in [Direction::Up, Direction::Down] {
        let (client, server) = run(Request {
            direction,
            streams: 3,
            pacing: Some(pacing),
            ..request(Limit::Nanoseconds(200_000_000))
        });
        let (client, server) = (client.unwrap().done, server.unwrap().done);
        assert_eq!(client.bytes, 200_000);
        assert_eq!(client.clock.as_deref(), Some("shared"));
        for field in ["block_ms_mean", "block_ms_max", "warmup_blocks"] {
            assert_eq!(client.event().get(field), server.event().get(field));
        }
        let numbers = client.block_ms.unwrap();
        assert_eq!(numbers.count + numbers.warmup + numbers.unsent, 200);
        let ms = numbers.ms.unwrap();
        assert!(
            ms.p50 <= ms.p99 && ms.p99 <= ms.max && ms.mean < 1000.0,
            "{ms:?}"
        );
        assert_eq!(
            client.event().get("warmup_blocks"),
            &serde_json::json!(numbers.warmup)
        );
    }
}

/// The client sets the times of the blocks, and may have gone long before the next one.
#[test]
fn who_waits_for_the_time_of_a_block_notices_that_the_session_is_over() {
    let (near, far) = pair();
    let progress = Arc::new(Progress::default());
    let sent = Arc::clone(&progress);
    let (told, hears) = mpsc::channel();
    thread::spawn(move || told.send(serve(&far, &progress, |_, _| {}).is_err()));
    let session = near.clone();
    let client = thread::spawn(move || {
        let request = Request {
            direction: Direction::Down,
            pacing: Some(Pacing::every(u64::MAX / 4, 1000, None).unwrap()),
            ..request(Limit::Bytes(2000))
        };
        measure(&session, request, &Progress::default())
    });
    while sent.bytes() == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    near.close(6, "gone");
    assert!(client.join().unwrap().is_err());
    // Long enough for any machine, and much less than it would wait.
    let noticed = hears.recv_timeout(Duration::from_secs(60));
    assert_eq!(noticed, Ok(true));
}

/// A client that sends what it announces and says at the end that it sent `claimed` bytes; it closes
/// with `code` as soon as it has the server's report.
fn ended_with(claimed: u64, code: u64) -> Outcome<Measured> {
    let (near, far): (End, End) = pair();
    let server = thread::spawn(move || serve(&far, &Progress::default(), |_, _| {}));
    let plan = Plan {
        direction: Direction::Up,
        limit: Limit::Bytes(0),
        streams: 1,
        pacing: None,
        seed: 1,
        warmup_ns: 0,
    };
    let hello = Hello {
        version: VERSION,
        clock: None,
        plan,
    };
    let mut control = near.open_uni().unwrap();
    put(&mut control, &hello).unwrap();
    let mut done = send_data(&near, &plan, &Progress::default(), Duration::ZERO).unwrap();
    done.bytes = claimed;
    put(&mut control, &done.report()).unwrap();
    control.finish().unwrap();
    let mut answers = near.accept_uni().unwrap();
    let _: Welcome = get(&mut answers).unwrap();
    let report: Report = get(&mut answers).unwrap();
    assert_eq!(report.bytes, 0);
    near.close(code, "the end");
    server.join().unwrap()
}

#[test]
fn the_code_that_the_client_closes_with_decides() {
    for _ in 0..200 {
        assert_eq!(ended_with(0, 0).unwrap().done.bytes, 0);
    }
    assert_eq!(ended_with(1, 10).unwrap_err().kind, ErrorKind::Integrity);
    assert_eq!(ended_with(0, 6).unwrap_err().kind, ErrorKind::Cancelled);
}

/// A client that announces one thing and sends another.
fn hostile(plan: Plan, data: &[u8]) -> Outcome<Measured> {
    let (near, far): (End, End) = pair();
    let server = thread::spawn(move || serve(&far, &Progress::default(), |_, _| {}));
    let mut control = near.open_uni().unwrap();
    put(
        &mut control,
        &Hello {
            version: VERSION,
            clock: None,
            plan,
        },
    )
    .unwrap();
    if let Ok(mut stream) = near.open_uni() {
        let _ = stream.write_all(data).and_then(|()| stream.finish());
    }
    server.join().unwrap()
}

#[test]
fn what_arrives_is_verified() {
    let plan = Plan {
        direction: Direction::Up,
        limit: Limit::Bytes(100),
        streams: 1,
        pacing: None,
        seed: 1,
        warmup_ns: 0,
    };
    let failure = hostile(plan, &[0; 100]).unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Integrity);
    assert_eq!(hostile(plan, &[]).unwrap_err().kind, ErrorKind::Integrity);
    let many = Plan {
        streams: 10_001,
        ..plan
    };
    assert_eq!(hostile(many, &[]).unwrap_err().kind, ErrorKind::Protocol);
    let paced = Plan {
        streams: 257,
        pacing: Pacing::new(8_000_000, 1000).ok(),
        ..plan
    };
    assert_eq!(hostile(paced, &[]).unwrap_err().kind, ErrorKind::Protocol);
    let none = Plan { streams: 0, ..plan };
    assert_eq!(hostile(none, &[]).unwrap_err().kind, ErrorKind::Protocol);
    let unpaced = Plan {
        pacing: Pacing::new(8_000_000, 1000).ok(),
        ..plan
    };
    assert_eq!(hostile(unpaced, &[]).unwrap_err().kind, ErrorKind::Protocol);
}
