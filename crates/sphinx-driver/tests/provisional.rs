//! Sessions of which nobody knows yet whether the peer is the one that the application means, in virtual time.

use sphinx_driver::{EndReason, SendAs};
use sphinx_link::Loss;
use sphinx_proto::{RepairMode, Urgency};
use sphinx_sim::{MS, SEC, Say, Scenario, link};

#[test]
fn what_is_confirmed_counts_as_delivered_once_the_peer_is_certain() {
    let mut scenario = Scenario::new(link(20, 20, Loss::None, 1)).bulk(100_000);
    let say = |number| Say {
        at: number * MS,
        len: 100,
        send_as: SendAs {
            flow: 0,
            kind: None,
            urgency: Urgency::default(),
            life: SEC,
            repair: RepairMode::InTime,
        },
    };
    scenario.client.says = (0..10).map(say).collect();
    let mut pair = scenario.build();
    pair.ends[0].be_provisional();
    let delivered = |end: &sphinx_sim::End<_>| {
        let datagrams = end.datagram_counts().delivered;
        (end.counters().bytes_delivered, datagrams)
    };
    assert!(!pair.run_until(2 * SEC, |pair| delivered(pair.client()) != (0, 0)));
    // The other end has everything, and has said so.
    assert_eq!(pair.server().bytes_received, 100_000);
    assert_eq!(pair.server().heard().len(), 10);
    assert_eq!(pair.client().tx_held(), 0);
    pair.ends[0].be_certain();
    let end = pair.now + SEC;
    assert!(pair.run_until(end, |pair| delivered(pair.client()) == (101_000, 10)));
}

#[test]
fn who_closes_is_done_and_the_peer_is_told_once_it_is_certain() {
    let scenario = Scenario::new(link(20, 20, Loss::None, 1)).bulk(100_000);
    let mut pair = scenario.build();
    pair.ends[0].be_provisional();
    let (code, reason) = (7, "enough".to_owned());
    assert!(pair.run_until(SEC, |pair| pair.server().bytes_received == 100_000));
    pair.ends[0].close(code, &reason);
    let closed_at = pair.now;
    assert!(!pair.run_until(2 * SEC, |pair| !pair.server().events.is_empty()));
    let closed = (
        closed_at,
        EndReason::Closed {
            code,
            reason: reason.clone(),
        },
    );
    assert_eq!(pair.client().events, [closed]);
    pair.ends[0].be_certain();
    assert!(pair.run_until(3 * SEC, |pair| !pair.server().events.is_empty()));
    let told = &pair.server().events[0].1;
    assert_eq!(*told, EndReason::ClosedByPeer { code, reason });
    assert_eq!(pair.client().events.len(), 1);
}
