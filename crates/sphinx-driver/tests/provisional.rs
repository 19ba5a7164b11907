//! Sessions of which nobody knows yet whether the peer is the one that the application means, in virtual time.

use sphinx_driver::{
    BufferPool, Driver, EndReason, Executor, JobKind, Origin, PacketProtection, SendAs, Task,
    TaskId, WorkerId, Workshop,
};
use sphinx_link::Loss;
use sphinx_proto::wire::{ConnectionId, Frame, HEADER_LEN, Header, OVERHEAD};
use sphinx_proto::{
    Config, ConnectionIds, PacketNumber, RepairMode, Role, Session, Time, Tuple, Urgency,
};
use sphinx_sim::{MS, Plain, SEC, Say, Scenario, link};

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

/// Takes packets that are to be opened, and is never done with them.
#[derive(Default)]
struct Away(Vec<Task>);

impl Executor for Away {
    fn takes(&self, kind: JobKind) -> bool {
        kind == JobKind::Open
    }

    fn bytes_min(&self) -> usize {
        0
    }

    fn hand_over(
        &mut self,
        _now: Time,
        task: Task,
        _owner: Option<WorkerId>,
    ) -> Result<WorkerId, Task> {
        self.0.push(task);
        Ok(WorkerId(0))
    }

    fn take_done(&mut self, _now: Time) -> Option<Task> {
        None
    }

    fn next_done(&self) -> Option<Time> {
        None
    }

    fn recall(&mut self, _id: TaskId) -> Option<Task> {
        None
    }
}

fn cid(byte: u8) -> ConnectionId {
    ConnectionId::new([byte; 8]).expect("not zero")
}

/// A client whose handshake ends with another address goes on there if nothing of the first has opened: a packet of that which is opened later would
/// confirm what the other one never got.
#[test]
fn what_comes_before_the_peer_is_certain_is_heard_at_once() {
    let tuple = Tuple {
        remote: ([10, 0, 0, 2], 1).into(),
        local_ip: None,
    };
    let ids = ConnectionIds {
        local: cid(1),
        peer: cid(2),
    };
    let session = Session::new(Config::new(Role::Client, tuple, ids), Time::ZERO);
    let mut driver = Driver::new(session, Plain::default(), Away::default(), true);
    let mut workshop = Workshop::new(BufferPool::new(0));
    let origin = Origin {
        received_at: Time::ZERO,
        tuple,
        ecn: 0,
    };
    let mut packets = 0;
    let mut hears = |driver: &mut Driver<Plain, Away>| {
        let mut body = Vec::new();
        Frame::Ping.encode(&mut body);
        let number = PacketNumber::new(packets);
        packets += 1;
        let mut datagram = vec![0; body.len() + OVERHEAD];
        datagram[HEADER_LEN..][..body.len()].copy_from_slice(&body);
        let header = Header::control(cid(1), PacketNumber::ZERO, false);
        let sealed = Plain::default().seal(&header, number, &mut datagram);
        sealed.expect("a number of its own");
        let len = datagram.len();
        driver.handle_segments(Time::ZERO, origin, (&mut datagram, len), &mut workshop);
        let heard = driver.core().stats().packets_received;
        driver.handle_timeout(Time::ZERO, &mut workshop);
        heard
    };
    driver.be_provisional();
    assert!(!driver.takes_joined(64 << 10));
    assert_eq!([hears(&mut driver), hears(&mut driver)], [1, 2]);
    driver.be_certain();
    assert!(driver.takes_joined(64 << 10));
    assert_eq!([hears(&mut driver), hears(&mut driver)], [2, 2]);
}
