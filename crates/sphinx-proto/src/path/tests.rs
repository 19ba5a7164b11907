use crate::numbers::pn;
use crate::time::time;
use crate::{BlockId, PacketNumber};

use super::*;
use crate::cc::CcKind;
use crate::config::{ConnectionIds, Role};
use crate::wire::{ConnectionId, Sack, SymbolId};

const MS: Nanos = 1_000_000;

/// Nothing of interest.
struct Nobody;

impl Contents for Nobody {
    fn symbols_arrived(
        &mut self,
        _block: BlockId,
        _symbols: impl Iterator<Item = SymbolId>,
        _arrived: Arrived,
    ) -> bool {
        true
    }

    fn symbol_lost(&mut self, _block: BlockId, _round: u8, _symbol: SymbolId, _monitor: &Monitor) {}

    fn frames_arrived(&mut self, _packet_number: PacketNumber) {}

    fn frames_lost(&mut self, _packet_number: PacketNumber) {}

    fn is_empty(&self) -> bool {
        false
    }
}

fn tuple(host: u8, port: u16) -> Tuple {
    Tuple {
        remote: ([10, 0, 0, host], port).into(),
        local_ip: None,
    }
}

fn path() -> Path {
    path_with(CcKind::Fixed(1_000_000))
}

fn path_with(cc: CcKind) -> Path {
    let cid = ConnectionId::new([1; 8]).expect("not zero");
    let ids = ConnectionIds {
        local: cid,
        peer: cid,
    };
    let mut config = Config::new(Role::Client, tuple(1, 1), ids);
    config.initial_rtt = 10 * MS;
    config.cc = cc;
    let mut path = Path::new(&config, Time::ZERO);
    for n in 0..4 {
        // So that no packet number is left out for long.
        path.add_random([!n; 8]);
    }
    path
}

fn send(path: &mut Path, now: Nanos) {
    let carried = Carried::Frames { reliable: false };
    path.record(time(now), 1000, carried);
}

fn sack(path: &mut Path, now: Nanos, low: u64, high: u64) {
    let sack = Sack {
        ranges: vec![(pn(low), pn(high))],
        ..Sack::default()
    };
    assert!(path.on_sack(time(now), &sack, &mut Nobody));
}

/// The peer is found at other addresses.
fn move_to(path: &mut Path, now: Nanos, to: Tuple) {
    let now = time(now);
    path.on_packet_from(now, (to, pn(9)), 1200, true);
    let challenge = path.poll_challenge(now).expect("challenged");
    assert_eq!(challenge.to, to);
    assert!(path.on_response(now + 7 * MS, to, challenge.data));
    assert_eq!(path.tuple(), to);
}

/// The receiver's clock is set by 100 ms between a packet's arrival and its SACK.
#[test]
fn a_delay_longer_than_the_round_trip_is_none() {
    for cc in [CcKind::Bbr, CcKind::Scavenger] {
        let mut path = path_with(cc);
        for (n, delay_us) in [(0, 0), (1, 100_000), (2, 0)] {
            let at = n * 30 * MS;
            send(&mut path, at);
            let sack = Sack {
                ranges: vec![(pn(n), pn(n))],
                delay_us,
                ..Sack::default()
            };
            assert!(path.on_sack(time(at + 20 * MS), &sack, &mut Nobody));
            assert_eq!(path.address.cc.min_rtt(), Some(20 * MS), "{cc:?}");
        }
    }
}

#[test]
fn what_left_for_other_addresses_says_nothing_about_these() {
    let mut path = path();
    for at in 0..5 {
        send(&mut path, at);
    }
    assert_eq!(path.address.bytes_in_flight, 5000);
    move_to(&mut path, 10, tuple(2, 1));
    assert_eq!(path.address.bytes_in_flight, 0);
    assert_eq!(path.rtt().smoothed(), 7 * MS);
    send(&mut path, 8 * MS);
    assert_eq!(path.next_pn(), pn(6), "numbers go on");
    sack(&mut path, 9 * MS, 4, 5);
    // The peer has packets 4 and 5: the others are lost, and of 5 alone the Monitor hears.
    let losses = path.monitor().losses().expect("one");
    assert_eq!(losses.mean, 0.0);
    assert_eq!(path.address.bytes_in_flight, 0);
    assert_eq!(path.space.sent.packets_in_flight(), 0);
    // Late packets of the other addresses do not make these patient.
    sack(&mut path, 10 * MS, 0, 5);
    assert_eq!(
        path.address.reordering.thresholds(time(10 * MS), MS),
        (3, MS)
    );
    assert_eq!(path.losses_spurious(), 0);
}

#[test]
fn a_new_port_is_the_same_path() {
    let mut path = path();
    send(&mut path, 0);
    move_to(&mut path, 10, tuple(1, 2));
    assert_eq!(path.address.bytes_in_flight, 1000);
    assert_eq!(path.rtt().smoothed(), 10 * MS);
}

#[test]
fn late_packets_make_it_patient() {
    let mut path = path();
    for at in 0..30 {
        send(&mut path, at);
    }
    sack(&mut path, 40, 10, 10);
    assert_eq!(path.scratch.lost_infos.len(), 8);
    sack(&mut path, 45, 0, 10);
    assert_eq!(path.losses_spurious(), 8);
    // Ten packets may overtake now.
    sack(&mut path, 50, 20, 20);
    assert_eq!(path.scratch.lost_infos.len(), 0);
}
