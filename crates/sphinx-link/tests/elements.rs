//! Active queue management, traces, flows and schedules in virtual time.

use std::{net::SocketAddr, time::Duration};

use sphinx_link::{
    Aqm, Blackout, CoDel, Datagram, Delivery, Depth, DualPi2, EcnRule, Event, Flows,
    GilbertElliott, IpPacket, Link, LinkConfig, Loss, LossTrace, Packet, Rate, RateTrace, Red,
    Signal, Time,
};

const MS: Time = 1_000_000;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A datagram of 1500 IP bytes that carries its number.
fn datagram(source: SocketAddr, number: u64, ecn: u8) -> Datagram {
    let mut payload = vec![0; 1472];
    payload[..8].copy_from_slice(&number.to_be_bytes());
    Datagram {
        source,
        destination: ([10, 0, 0, 2], 9).into(),
        ecn,
        payload,
    }
}

fn number(datagram: &Datagram) -> u64 {
    u64::from_be_bytes(datagram.payload[..8].try_into().unwrap())
}

fn source(port: u16) -> SocketAddr {
    ([10, 0, 0, 1], port).into()
}

fn drain<P: Packet>(link: &mut Link<P>) -> Vec<Delivery<P>> {
    let mut deliveries = Vec::new();
    while let Some(now) = link.next_event() {
        deliveries.extend(std::iter::from_fn(|| link.poll(now)));
    }
    deliveries
}

#[test]
fn packets_with_priority_overtake_those_that_wait_and_keep_their_own_order() {
    let mut link = Link::new(LinkConfig {
        rate: Rate::Constant(12_000_000),
        queue: Depth::Packets(6),
        priority: Some(46),
        ..LinkConfig::default()
    })
    .unwrap();
    let packet = |number: u8, dscp: u8| {
        let mut packet = vec![0; 1500];
        (packet[0], packet[1], packet[1499]) = (0x45, dscp << 2, number);
        IpPacket(packet)
    };
    for (number, dscp) in [(0, 0), (1, 0), (2, 46), (3, 45), (4, 46), (5, 0)] {
        link.enqueue(0, packet(number, dscp));
    }
    // One has been sent meanwhile, and the queue has room for one more; the next one is dropped all the same.
    link.enqueue(MS, packet(6, 46));
    link.enqueue(MS, packet(7, 46));
    link.enqueue(MS, packet(8, 46));
    let order: Vec<u8> = drain(&mut link)
        .iter()
        .map(|delivery| delivery.packet.0[1499])
        .collect();
    assert_eq!(order, [0, 2, 4, 6, 7, 1, 3, 5]);
    assert_eq!(link.counters().dropped_queue, 1);
}

#[test]
fn acknowledgements_may_count_for_less() {
    let mut link = Link::new(LinkConfig {
        // Six bytes take a millisecond, and 1500 a quarter of a second.
        rate: Rate::Constant(48_000),
        queue: Depth::Bytes(1512),
        compressed_ack: Some(6),
        ..LinkConfig::default()
    })
    .unwrap();
    let segment = |flags: u8, length: usize| {
        let mut packet = vec![0; length];
        (packet[0], packet[2], packet[3]) = (0x45, (length >> 8) as u8, length as u8);
        (packet[9], packet[32], packet[33]) = (6, 8 << 4, flags);
        IpPacket(packet)
    };
    for (flags, length) in [
        (0x10, 52),
        (0x10, 52),
        (0x10, 1500),
        (0x10, 52),
        (0x10, 52),
        (0x11, 52),
    ] {
        link.enqueue(0, segment(flags, length));
    }
    let arrivals: Vec<_> = drain(&mut link).iter().map(|it| it.at / MS).collect();
    // There is room for one more acknowledgement; another one is dropped, and so is the FIN, which counts whole.
    assert_eq!(arrivals, [1, 2, 252, 253]);
    assert_eq!(link.counters().dropped_queue, 2);
}

/// Offers so many packets to a link of 12 Mbit/s (one packet per millisecond), one every `gap`.
fn offer(aqm: Aqm, count: u64, gap: Time, ecn: u8) -> Link<Datagram> {
    let mut link = Link::new(LinkConfig {
        rate: Rate::Constant(12_000_000),
        queue: Depth::Packets(10_000),
        aqm,
        records: 100_000,
        ..LinkConfig::default()
    })
    .unwrap();
    for n in 0..count {
        link.enqueue(n * gap, datagram(source(9), n, ecn));
    }
    link
}

#[test]
fn codel_leaves_a_burst_alone_and_drops_from_a_standing_queue() {
    let codel = Aqm::CoDel(CoDel::default());
    // 90 packets at once are gone in 90 ms.
    let mut link = offer(codel, 90, 0, 0);
    assert_eq!(drain(&mut link).len(), 90);

    // 10 % too much: after 55 ms packets wait for 5 ms, and 100 ms later the first one is dropped.
    let mut link = offer(codel, 4000, MS * 10 / 11, 0);
    let delivered = drain(&mut link);
    let mut records = Vec::new();
    link.take_records(&mut records);
    assert_eq!(records[0].event, Event::DroppedAqm);
    assert!(
        (150 * MS..165 * MS).contains(&records[0].at),
        "{}",
        records[0].at
    );
    let dropped = link.counters().dropped_aqm;
    assert_eq!(delivered.len() as u64 + dropped, 4000);
    // Without it, 360 packets would wait at the end. It drops more and more until none does.
    let last = delivered.last().unwrap();
    let waited = last.at - number(&last.packet) * MS * 10 / 11;
    assert!(dropped > 250 && waited < 100 * MS, "{dropped} {waited}");
}

#[test]
fn codel_marks_instead_of_dropping() {
    for (signal, ecn) in [(Signal::Mark, 2), (Signal::MarkOnly, 2)] {
        let aqm = Aqm::CoDel(CoDel {
            signal,
            ..CoDel::default()
        });
        let mut link = offer(aqm, 1000, MS / 2, ecn);
        let delivered = drain(&mut link);
        let marked = delivered.iter().filter(|one| one.packet.ecn == 3).count() as u64;
        assert_eq!((delivered.len(), link.counters().dropped()), (1000, 0));
        assert_eq!(marked, link.counters().marked);
        assert!(marked > 5, "{marked}");
    }
    let aqm = Aqm::CoDel(CoDel {
        signal: Signal::Mark,
        ..CoDel::default()
    });
    let link = &mut offer(aqm, 1000, MS / 2, 0);
    drain(link);
    assert!(link.counters().dropped_aqm > 5 && link.counters().marked == 0);
}

#[test]
fn red_signals_between_its_thresholds() {
    for (min, max) in [
        (Depth::Packets(20), Depth::Packets(60)),
        (Depth::Bytes(30_000), Depth::Bytes(90_000)),
        (Depth::Time(ms(20)), Depth::Time(ms(60))),
    ] {
        let red = Red {
            weight: 0.05,
            ..Red::new(min, max)
        };
        // Never more than 15 wait: no signal.
        let mut link = offer(Aqm::Red(red), 15, 0, 0);
        drain(&mut link);
        assert_eq!(link.counters().dropped(), 0);
        // Twice as much as fits: dropped from some length on, long before 1000 wait.
        let mut link = offer(Aqm::Red(red), 2000, MS / 2, 0);
        drain(&mut link);
        let counters = *link.counters();
        assert_eq!(counters.dropped(), counters.dropped_aqm);
        assert!(counters.dropped_aqm > 700, "{counters:?}");
        assert!(counters.queue_bytes_max < 200_000, "{counters:?}");
        // The same decisions again, and others with marks.
        let mut again = offer(Aqm::Red(red), 2000, MS / 2, 0);
        drain(&mut again);
        assert_eq!(again.counters(), &counters);
        let signal = Signal::MarkOnly;
        let mut link = offer(Aqm::Red(Red { signal, ..red }), 2000, MS / 2, 1);
        drain(&mut link);
        assert!(link.counters().dropped() == 0 && link.counters().marked > 700);
    }
}

#[test]
fn a_step_may_drop() {
    let aqm = |signal| Aqm::Step {
        threshold: Depth::Packets(4),
        signal,
    };
    for (signal, ecn, dropped, marked) in [
        (Signal::Drop, 2, 14, 0),
        (Signal::Mark, 2, 0, 14),
        (Signal::Mark, 0, 14, 0),
        (Signal::MarkOnly, 0, 0, 0),
    ] {
        let link = offer(aqm(signal), 20, 0, ecn);
        // One is sent, five find at most four waiting; without drops the queue goes on growing.
        let counters = link.counters();
        assert_eq!((counters.dropped_aqm, counters.marked), (dropped, marked));
    }
}

#[test]
fn red_thresholds_are_checked() {
    for (min, max) in [
        (Depth::Packets(5), Depth::Packets(5)),
        (Depth::Packets(5), Depth::Bytes(6)),
    ] {
        let config = LinkConfig {
            aqm: Aqm::Red(Red::new(min, max)),
            ..LinkConfig::default()
        };
        assert!(config.validate().is_err());
    }
}

#[test]
fn a_trace_delivers_at_its_opportunities() {
    let trace = RateTrace::parse("1\n1\n4\n10\n").unwrap();
    let mut link = Link::new(LinkConfig {
        rate: Rate::Trace(trace),
        delay: ms(3),
        ..LinkConfig::default()
    })
    .unwrap();
    for n in 0..8 {
        link.enqueue(0, datagram(source(9), n, 0));
    }
    let arrivals: Vec<Time> = drain(&mut link).iter().map(|one| one.at / MS).collect();
    assert_eq!(arrivals, [4, 4, 7, 13, 14, 14, 17, 23]);
    // An opportunity that nobody uses is gone.
    link.enqueue(24 * MS - 1, datagram(source(9), 8, 0));
    assert_eq!(drain(&mut link)[0].at, 27 * MS);
    link.enqueue(24 * MS, datagram(source(9), 9, 0));
    assert_eq!(drain(&mut link)[0].at, 33 * MS);
}

#[test]
fn blackouts_repeat() {
    let blackout = Blackout {
        start: ms(2),
        end: ms(4),
    };
    let config = LinkConfig {
        blackouts: vec![blackout],
        blackouts_repeat: Some(ms(10)),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config.clone()).unwrap();
    for n in 0..30 {
        link.enqueue(n * MS, datagram(source(9), n, 0));
    }
    let lost: Vec<u64> = {
        let arrived: Vec<u64> = drain(&mut link)
            .iter()
            .map(|one| number(&one.packet))
            .collect();
        (0..30).filter(|n| !arrived.contains(n)).collect()
    };
    assert_eq!(lost, [2, 3, 12, 13, 22, 23]);
    for repeat in [Duration::ZERO, ms(3)] {
        let config = LinkConfig {
            blackouts_repeat: Some(repeat),
            ..config.clone()
        };
        assert!(config.validate().is_err());
    }
}

/// The numbers, within their flow, of the packets of two flows that arrive; `turns` mixes them.
fn arrived(loss: &Loss, ports: [u16; 2], turns: impl Fn(u64) -> usize) -> [Vec<u64>; 2] {
    let mut link = Link::new(LinkConfig {
        seed: 11,
        loss: loss.clone(),
        flows: Flows::Apart,
        ..LinkConfig::default()
    })
    .unwrap();
    let mut next = [0, 0];
    // Both begin in the same order.
    for turn in 0..8000 {
        let flow = if turn < 2 { turn as usize } else { turns(turn) };
        link.enqueue(0, datagram(source(ports[flow]), next[flow], 0));
        next[flow] += 1;
    }
    let mut arrived = [Vec::new(), Vec::new()];
    for delivery in drain(&mut link) {
        let flow = usize::from(delivery.packet.source.port() == ports[1]);
        let number = number(&delivery.packet);
        if number < 2000 {
            arrived[flow].push(number);
        }
    }
    arrived
}

#[test]
fn the_same_packets_of_each_flow_are_lost_however_they_are_mixed() {
    for loss in [
        Loss::Bernoulli(0.06),
        Loss::GilbertElliott(GilbertElliott::bursts(0.05, 8.0)),
        Loss::Packets(vec![3, 1000]),
        Loss::Trace(LossTrace::parse("0001000").unwrap()),
    ] {
        let one = arrived(&loss, [40_000, 50_000], |turn| usize::from(turn % 2 == 1));
        let other = arrived(&loss, [55_555, 33_333], |turn| usize::from(turn % 3 == 0));
        assert_eq!(one, other, "{loss:?}");
        assert!(one[0].len() < 2000 && one[1].len() < 2000);
        // Flows differ where the seed matters.
        let by_index = matches!(loss, Loss::Packets(_) | Loss::Trace(_));
        assert_eq!(one[0] == one[1], by_index, "{loss:?}");
    }
}

#[test]
fn records_name_the_flow() {
    let mut link = Link::new(LinkConfig {
        loss: Loss::Packets(vec![1]),
        flows: Flows::Apart,
        records: 10,
        ..LinkConfig::default()
    })
    .unwrap();
    for port in [40_000, 40_001, 40_001, 40_000] {
        link.enqueue(0, datagram(source(port), 0, 0));
    }
    let mut records = Vec::new();
    link.take_records(&mut records);
    let told: Vec<(u64, u16, Option<u64>)> = records
        .iter()
        .map(|record| (record.offered, record.flow.source.port(), record.sent))
        .collect();
    assert_eq!(told, [(2, 40_001, Some(1)), (3, 40_000, Some(1))]);
}

#[test]
fn low_latency_overtakes_and_is_marked_where_classic_is_dropped() {
    let mut link = Link::new(LinkConfig {
        seed: 3,
        rate: Rate::Constant(12_000_000),
        queue: Depth::Packets(10_000),
        aqm: Aqm::DualPi2(DualPi2::default()),
        ..LinkConfig::default()
    })
    .unwrap();
    // Twice what the link carries of packets that are not capable, for 120 ms; 20 % of it of scalable ones, two at a time.
    for n in 0..240_u64 {
        link.enqueue(n * MS / 2, datagram(source(9), n, 0));
        if n % 20 == 0 {
            for _ in 0..2 {
                link.enqueue(n * MS / 2, datagram(source(9), n, 1));
            }
        }
    }
    let delivered = drain(&mut link);
    let low: Vec<_> = { delivered.iter() }
        .filter(|it| it.packet.ecn != 0)
        .collect();
    assert_eq!(low.len(), 24);
    let waited = |it: &&Delivery<Datagram>| it.at - number(&it.packet) * MS / 2;
    // The one being sent, the other one of the pair and themselves; a classic one whose turn it is.
    assert!(low.iter().map(waited).max().unwrap() <= 4 * MS);
    let marked = low.iter().filter(|it| it.packet.ecn == 3).count();
    assert!((3..24).contains(&marked), "{marked}");
    let counters = *link.counters();
    assert_eq!(counters.marked, marked as u64);
    assert!(counters.dropped_aqm > 2, "{counters:?}");

    // Packets that wait when one queue takes the place of two still leave.
    (0..5).for_each(|n| link.enqueue(5000 * MS, datagram(source(9), n, n as u8 % 2)));
    let one = LinkConfig {
        aqm: Aqm::None,
        ..link.config().clone()
    };
    link.reconfigure(5000 * MS, one).unwrap();
    assert_eq!(drain(&mut link).len(), 5);
}

#[test]
fn paths_change_codepoints() {
    let through = |ecn| -> Vec<Vec<u8>> {
        let of = |codepoint| {
            let mut link = Link::new(LinkConfig {
                ecn,
                ..LinkConfig::default()
            })
            .unwrap();
            link.enqueue(0, datagram(source(9), 0, codepoint));
            let came = drain(&mut link).into_iter().map(|it| it.packet.ecn);
            came.collect()
        };
        (0..4).map(of).collect()
    };
    for (rule, wanted) in [
        (EcnRule::Keep, [&[0][..], &[1], &[2], &[3]]),
        (EcnRule::Clear, [&[0], &[0], &[0], &[0]]),
        (EcnRule::Classic, [&[0], &[2], &[2], &[3]]),
        (EcnRule::Mark, [&[0], &[3], &[3], &[3]]),
        (EcnRule::Drop, [&[0], &[], &[], &[]]),
    ] {
        assert_eq!(through(rule), wanted, "{rule:?}");
    }
}
