//! The elements of a link in virtual time.

use std::time::Duration;

use sphinx_link::{
    Aqm, Blackout, Corruption, Delivery, Depth, EcnRule, Event, FlowKey, GilbertElliott, IpPacket,
    Jitter, Link, LinkConfig, Loss, Order, Policer, Rate, RateStep, Record, Reorder, Retries,
    Shift, Signal, Time, Varying, Wake,
};

const MS: Time = 1_000_000;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// An IPv4 packet of this size that carries its number and is ECN-capable.
fn packet(number: u64, bytes: usize) -> IpPacket {
    let mut packet = vec![0; bytes];
    (packet[0], packet[1]) = (0x45, 0x02);
    packet[20..28].copy_from_slice(&number.to_be_bytes());
    IpPacket(packet)
}

fn number(packet: &IpPacket) -> u64 {
    u64::from_be_bytes(packet.0[20..28].try_into().unwrap())
}

fn link(config: LinkConfig) -> Link<IpPacket> {
    Link::new(config).unwrap()
}

/// Polls at every event until nothing is left.
fn drain(link: &mut Link<IpPacket>) -> Vec<Delivery<IpPacket>> {
    let mut deliveries = Vec::new();
    while let Some(now) = link.next_event() {
        deliveries.extend(std::iter::from_fn(|| link.poll(now)));
    }
    deliveries
}

fn numbers(deliveries: &[Delivery<IpPacket>]) -> Vec<u64> {
    deliveries
        .iter()
        .map(|delivery| number(&delivery.packet))
        .collect()
}

fn records(link: &mut Link<IpPacket>) -> Vec<Record> {
    let mut records = Vec::new();
    link.take_records(&mut records);
    records
}

#[test]
fn a_perfect_link_delivers_at_once() {
    let mut link = link(LinkConfig::default());
    link.enqueue(7, packet(1, 100));
    assert_eq!(link.next_event(), Some(7));
    let delivery = link.poll(7).unwrap();
    assert_eq!(
        (delivery.at, delivery.index, delivery.packet),
        (7, 0, packet(1, 100))
    );
    assert_eq!((link.poll(7), link.next_event()), (None, None));
}

#[test]
fn delay_and_serialisation_are_exact() {
    let rate = Rate::Constant(200_000_000);
    let mut link = link(LinkConfig {
        rate,
        delay: ms(5),
        ..LinkConfig::default()
    });
    link.enqueue(1000, packet(0, 1500));
    assert_eq!(link.poll(1000 + 5 * MS + 60_000 - 1), None);
    assert_eq!(
        link.poll(1000 + 5 * MS + 60_000).unwrap().at,
        1000 + 5 * MS + 60_000
    );
}

#[test]
fn the_rate_is_exact_over_a_long_time() {
    // 6 Mbit/s and 1000 bytes: 1.333... ms each, 750 a second.
    let rate = Rate::Constant(6_000_000);
    let queue = Depth::Packets(100_000);
    let mut link = link(LinkConfig {
        rate,
        queue,
        ..LinkConfig::default()
    });
    (0..75_000).for_each(|i| link.enqueue(0, packet(i, 1000)));
    let deliveries = drain(&mut link);
    assert_eq!(deliveries.last().unwrap().at, 100_000 * MS);
}

#[test]
fn an_idle_link_saves_no_capacity() {
    let rate = Rate::Constant(8_000_000);
    let mut link = link(LinkConfig {
        rate,
        ..LinkConfig::default()
    });
    link.enqueue(0, packet(0, 1000));
    link.enqueue(10 * MS, packet(1, 1000));
    let arrivals: Vec<Time> = drain(&mut link)
        .iter()
        .map(|delivery| delivery.at)
        .collect();
    assert_eq!(arrivals, [MS, 11 * MS]);
}

#[test]
fn drop_tail_limits_are_exact() {
    let rate = Rate::Constant(12_000_000);
    let depths = [
        Depth::Packets(10),
        Depth::Bytes(15_000),
        Depth::Bytes(16_499),
        Depth::Time(ms(10)),
    ];
    for queue in depths {
        let config = LinkConfig {
            rate: rate.clone(),
            queue,
            records: 100,
            ..LinkConfig::default()
        };
        let mut link = link(config);
        (0..20).for_each(|i| link.enqueue(0, packet(i, 1500)));
        // One being sent and ten waiting.
        assert_eq!(
            (link.counters().dropped_queue, link.queue_bytes()),
            (9, 15_000),
            "{queue:?}"
        );
        assert_eq!(link.counters().queue_bytes_max, 15_000);
        // A packet that comes just as the first has left finds one place.
        link.enqueue(MS, packet(20, 1500));
        link.enqueue(MS, packet(21, 1500));
        assert_eq!(link.counters().dropped_queue, 10, "{queue:?}");
        let dropped: Vec<u64> = records(&mut link)
            .iter()
            .map(|record| record.offered)
            .collect();
        assert_eq!(dropped, [11, 12, 13, 14, 15, 16, 17, 18, 19, 21]);
        let delivered = drain(&mut link);
        assert_eq!(numbers(&delivered), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20]);
        assert_eq!(delivered.last().unwrap().at, 12 * MS);
    }
}

#[test]
fn a_queue_in_time_follows_the_rate() {
    let steps = vec![
        RateStep {
            at: ms(0),
            bits_per_second: 12_000_000,
        },
        RateStep {
            at: ms(100),
            bits_per_second: 24_000_000,
        },
    ];
    let rate = Rate::Steps {
        steps,
        repeat: None,
    };
    let mut link = link(LinkConfig {
        rate,
        queue: Depth::Time(ms(10)),
        ..LinkConfig::default()
    });
    (0..30).for_each(|i| link.enqueue(0, packet(i, 1500)));
    assert_eq!(link.queue_bytes(), 15_000);
    (0..30).for_each(|i| link.enqueue(100 * MS, packet(i, 1500)));
    assert_eq!(link.queue_bytes(), 30_000);
}

#[test]
fn ecn_marks_exactly_above_the_step() {
    let rate = Rate::Constant(12_000_000);
    for threshold in [Depth::Packets(4), Depth::Bytes(6000), Depth::Time(ms(4))] {
        let config = LinkConfig {
            rate: rate.clone(),
            aqm: Aqm::Step {
                threshold,
                signal: Signal::MarkOnly,
            },
            ..LinkConfig::default()
        };
        let mut link = link(config);
        (0..10).for_each(|i| link.enqueue(0, packet(i, 1500)));
        let mut not_capable = packet(10, 1500);
        not_capable.0[1] = 0;
        link.enqueue(0, not_capable);
        // Packet 0 is sent, 1 to 5 find at most four waiting.
        let marks: Vec<u8> = drain(&mut link)
            .iter()
            .map(|delivery| delivery.packet.0[1])
            .collect();
        assert_eq!(marks, [2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 0], "{threshold:?}");
        assert_eq!(link.counters().marked, 4);
    }
}

#[test]
fn a_link_that_clears_ecn_has_nothing_to_mark() {
    let mut link = link(LinkConfig {
        rate: Rate::Constant(12_000_000),
        ecn: EcnRule::Clear,
        aqm: Aqm::Step {
            threshold: Depth::Packets(0),
            signal: Signal::MarkOnly,
        },
        ..LinkConfig::default()
    });
    (0..3).for_each(|i| link.enqueue(0, packet(i, 1500)));
    let classes = drain(&mut link).into_iter().map(|one| one.packet.0[1]);
    assert_eq!(classes.collect::<Vec<_>>(), [0; 3]);
    assert_eq!(link.counters().marked, 0);
}

#[test]
fn oversize_packets_are_dropped_and_recorded() {
    let mut link = link(LinkConfig {
        mtu: Some(1280),
        records: 1,
        ..LinkConfig::default()
    });
    link.enqueue(3, packet(0, 1281));
    link.enqueue(4, packet(1, 1280));
    link.enqueue(5, packet(2, 1500));
    assert_eq!(numbers(&drain(&mut link)), [1]);
    assert_eq!(link.counters().dropped_mtu, 2);
    let event = Event::DroppedMtu;
    assert_eq!(
        records(&mut link),
        [Record {
            at: 3,
            offered: 0,
            sent: None,
            flow: FlowKey {
                protocol: 0,
                source: ([0; 4], 0).into(),
                destination: ([0; 4], 0).into(),
            },
            sequence: None,
            bytes: 1281,
            event
        }]
    );
    assert_eq!(link.records_missed(), 1);
}

#[test]
fn a_policer_drops_without_delaying() {
    let policer = Some(Policer {
        bits_per_second: 8_000_000,
        burst_bytes: 2000,
    });
    let mut link = link(LinkConfig {
        policer,
        ..LinkConfig::default()
    });
    (0..10).for_each(|i| link.enqueue(i * MS / 2, packet(i, 1000)));
    let deliveries = drain(&mut link);
    assert_eq!(numbers(&deliveries), [0, 1, 2, 4, 6, 8]);
    assert_eq!(deliveries[3].at, 2 * MS);
    assert_eq!(link.counters().dropped_policer, 4);
}

#[test]
fn a_lost_packet_has_used_the_link() {
    let rate = Rate::Constant(12_000_000);
    let loss = Loss::Packets(vec![0, 1, 2]);
    let mut link = link(LinkConfig {
        rate,
        loss,
        records: 9,
        ..LinkConfig::default()
    });
    (0..4).for_each(|i| link.enqueue(0, packet(i, 1500)));
    let deliveries = drain(&mut link);
    assert_eq!((numbers(&deliveries), deliveries[0].at), (vec![3], 4 * MS));
    assert_eq!(
        (link.counters().sent_bytes, link.counters().delivered_bytes),
        (6000, 1500)
    );
    let times: Vec<Time> = records(&mut link).iter().map(|record| record.at).collect();
    assert_eq!(times, [MS, 2 * MS, 3 * MS]);
}

#[test]
fn blackouts_lose_what_is_sent_within() {
    let rate = Rate::Constant(12_000_000);
    let blackouts = vec![Blackout {
        start: ms(3),
        end: ms(5),
    }];
    let mut link = link(LinkConfig {
        rate,
        blackouts,
        ..LinkConfig::default()
    });
    (0..8).for_each(|i| link.enqueue(0, packet(i, 1500)));
    assert_eq!(numbers(&drain(&mut link)), [0, 1, 4, 5, 6, 7]);
    assert_eq!(link.counters().dropped_blackout, 2);
}

#[test]
fn jitter_keeps_order_unless_asked() {
    for (order, seed) in [
        (Order::Kept, 1),
        (Order::Free, 1),
        (Order::Kept, 2),
        (Order::Free, 2),
    ] {
        let jitter = Jitter { max: ms(3), order };
        let mut link = link(LinkConfig {
            seed,
            delay: ms(10),
            jitter,
            ..LinkConfig::default()
        });
        (0..2000).for_each(|i| link.enqueue(i * MS, packet(i, 100)));
        let deliveries = drain(&mut link);
        assert_eq!(deliveries.len(), 2000);
        assert_eq!(
            deliveries.is_sorted_by_key(|d| number(&d.packet)),
            order == Order::Kept
        );
        let extra: Vec<Time> = deliveries
            .iter()
            .map(|d| d.at - number(&d.packet) * MS - 10 * MS)
            .collect();
        let (least, most) = (*extra.iter().min().unwrap(), *extra.iter().max().unwrap());
        assert!(
            least < MS / 10 && (3 * MS * 9 / 10..=3 * MS).contains(&most),
            "{least} {most}"
        );
    }
}

#[test]
fn held_back_packets_are_overtaken() {
    let reorder = Reorder {
        probability: 0.1,
        hold: Duration::from_micros(2500),
    };
    let mut link = link(LinkConfig {
        seed: 3,
        reorder,
        records: 9999,
        ..LinkConfig::default()
    });
    (0..1000).for_each(|i| link.enqueue(i * MS, packet(i, 100)));
    let deliveries = drain(&mut link);
    let late: Vec<u64> = deliveries
        .iter()
        .filter(|d| d.at > number(&d.packet) * MS)
        .inspect(|d| assert_eq!(d.at, number(&d.packet) * MS + 2_500_000))
        .map(|d| number(&d.packet))
        .collect();
    let recorded: Vec<u64> = records(&mut link)
        .iter()
        .map(|record| record.offered)
        .collect();
    assert_eq!(late, recorded);
    assert!((60..140).contains(&late.len()), "{}", late.len());
}

#[test]
fn duplicates_follow_their_originals() {
    let mut link = link(LinkConfig {
        duplication: 0.5,
        delay: ms(1),
        ..LinkConfig::default()
    });
    (0..1000).for_each(|i| link.enqueue(i, packet(i, 100)));
    let deliveries = drain(&mut link);
    let extra = deliveries
        .windows(2)
        .filter(|pair| pair[0] == pair[1])
        .count() as u64;
    assert_eq!(
        (extra, deliveries.len() as u64),
        (link.counters().duplicated, 1000 + extra)
    );
    assert!((400..600).contains(&extra), "{extra}");
}

#[test]
fn corruption_flips_as_many_bits_as_asked() {
    for bits in [1, 3, 16] {
        let corruption = Corruption {
            probability: 0.3,
            bits,
        };
        let mut link = link(LinkConfig {
            seed: 9,
            corruption,
            ..LinkConfig::default()
        });
        (0..1000).for_each(|i| link.enqueue(i, packet(i, 200)));
        let mut corrupted = 0;
        for delivery in drain(&mut link) {
            let original = packet(delivery.index, 200);
            let flipped: u32 = original
                .0
                .iter()
                .zip(&delivery.packet.0)
                .map(|(a, b)| (a ^ b).count_ones())
                .sum();
            assert_eq!(original.0[..20], delivery.packet.0[..20]);
            assert!(flipped == 0 || flipped == bits, "{flipped}");
            corrupted += u64::from(flipped > 0);
        }
        assert_eq!(corrupted, link.counters().corrupted);
        assert!((250..350).contains(&corrupted), "{corrupted}");
    }
}

#[test]
fn losses_depend_on_the_packet_index_only() {
    let losses = [
        Loss::Bernoulli(0.06),
        Loss::GilbertElliott(GilbertElliott::bursts(0.05, 8.0)),
    ];
    for loss in losses {
        let survivors = |gap: Time, rate: Rate, jitter: Jitter, duplication: f64| {
            let queue = Depth::Packets(10_000);
            let seed = 42;
            let config = LinkConfig {
                seed,
                rate,
                queue,
                jitter,
                duplication,
                loss: loss.clone(),
                ..LinkConfig::default()
            };
            let mut link = link(config);
            (0..5000).for_each(|i| link.enqueue(i * gap, packet(i, 100)));
            let mut numbers = numbers(&drain(&mut link));
            numbers.sort_unstable();
            numbers.dedup();
            numbers
        };
        let jitter = Jitter {
            max: ms(7),
            order: Order::Free,
        };
        let plain = survivors(1, Rate::Unlimited, Jitter::default(), 0.0);
        assert_eq!(
            plain,
            survivors(MS, Rate::Constant(1_000_000), Jitter::default(), 0.0)
        );
        assert_eq!(
            plain,
            survivors(MS / 3, Rate::Constant(2_000_000), jitter, 0.2)
        );
    }
}

#[test]
fn a_change_of_rate_takes_effect_within_the_packet_being_sent() {
    let config = LinkConfig {
        rate: Rate::Constant(12_000_000),
        ..LinkConfig::default()
    };
    let mut link = link(config.clone());
    (0..3).for_each(|i| link.enqueue(0, packet(i, 1500)));
    // Half of the first packet is out; the other half takes four times as long now.
    link.reconfigure(
        MS / 2,
        LinkConfig {
            rate: Rate::Constant(3_000_000),
            ..config
        },
    )
    .unwrap();
    let arrivals: Vec<Time> = drain(&mut link)
        .iter()
        .map(|delivery| delivery.at)
        .collect();
    assert_eq!(arrivals, [MS * 5 / 2, MS * 13 / 2, MS * 21 / 2]);
}

#[test]
fn a_paused_link_goes_on_when_the_rate_returns() {
    let mut link = link(LinkConfig {
        rate: Rate::Constant(0),
        ..LinkConfig::default()
    });
    link.enqueue(0, packet(0, 1500));
    assert_eq!((link.next_event(), link.poll(1000 * MS)), (None, None));
    link.reconfigure(
        1000 * MS,
        LinkConfig {
            rate: Rate::Constant(12_000_000),
            ..LinkConfig::default()
        },
    )
    .unwrap();
    assert_eq!(drain(&mut link)[0].at, 1001 * MS);
}

/// A rate of 0 has no bytes in any time: all but one were dropped.
#[test]
fn what_comes_in_a_pause_waits_where_the_queue_has_a_time() {
    let with = |rate| LinkConfig {
        rate: Rate::Constant(rate),
        queue: Depth::Time(Duration::from_millis(50)),
        ..LinkConfig::default()
    };
    let mut link = link(with(12_000_000));
    link.reconfigure(0, with(0)).unwrap();
    link.reconfigure(MS, with(0)).unwrap();
    // One is being sent, and 50 wait.
    for n in 0..60 {
        link.enqueue(2 * MS, packet(n, 1500));
    }
    assert_eq!(link.counters().dropped_queue, 9);
    link.reconfigure(100 * MS, with(12_000_000)).unwrap();
    assert_eq!(drain(&mut link).len(), 51);
}

#[test]
fn a_refused_change_leaves_the_link_as_it_was() {
    let mut link = link(LinkConfig::default());
    let bad = LinkConfig {
        duplication: 2.0,
        ..LinkConfig::default()
    };
    assert!(link.reconfigure(0, bad.clone()).is_err());
    assert!(Link::<IpPacket>::new(bad).is_err());
    assert_eq!(link.config(), &LinkConfig::default());
}

#[test]
fn time_never_goes_backwards() {
    let mut link = link(LinkConfig {
        delay: ms(1),
        ..LinkConfig::default()
    });
    link.enqueue(10 * MS, packet(0, 100));
    link.enqueue(5 * MS, packet(1, 100));
    let arrivals: Vec<Time> = drain(&mut link)
        .iter()
        .map(|delivery| delivery.at)
        .collect();
    assert_eq!(arrivals, [11 * MS, 11 * MS]);
}

/// 200 packets of 1500 bytes, one every 10 ms: their numbers and when they arrive.
fn spaced(config: LinkConfig) -> Vec<(u64, Time)> {
    let mut link = link(config);
    let mut arrivals = Vec::new();
    for n in 0..200 {
        link.enqueue(n * 10 * MS, packet(n, 1500));
        while let Some(now) = link.next_event().filter(|&now| now <= n * 10 * MS) {
            arrivals.extend(link.poll(now));
        }
    }
    arrivals.extend(drain(&mut link));
    let of = |delivery: &Delivery<IpPacket>| (number(&delivery.packet), delivery.at);
    arrivals.iter().map(of).collect()
}

#[test]
fn a_link_that_sends_again_delays_in_steps_and_loses_what_it_gives_up() {
    let retries = Retries {
        probability: 0.3,
        interval: ms(8),
        limit: 2,
    };
    let free = Jitter {
        order: Order::Free,
        ..Jitter::default()
    };
    let config = |jitter| LinkConfig {
        retries,
        jitter,
        ..LinkConfig::default()
    };
    let arrivals = spaced(config(free));
    let tries = |steps: Time| {
        let took = |&&(n, at): &&(u64, Time)| at - n * 10 * MS == steps * 8 * MS;
        arrivals.iter().filter(took).count()
    };
    assert_eq!(tries(0) + tries(1) + tries(2), arrivals.len());
    // 0.7, 0.21 and 0.063 of 200, and 0.027 are given up.
    assert!((120..160).contains(&tries(0)), "{}", tries(0));
    assert!((28..58).contains(&tries(1)), "{}", tries(1));
    assert!((4..24).contains(&tries(2)), "{}", tries(2));
    assert!((1..14).contains(&(200 - arrivals.len())));
    assert!(
        !arrivals.is_sorted(),
        "a later packet overtakes none that is tried for the second time"
    );
    let in_order = spaced(config(Jitter::default()));
    assert!(in_order.is_sorted() && in_order.is_sorted_by_key(|(_, at)| *at));
}

#[test]
fn a_route_adds_the_same_delay_until_it_changes() {
    let shift = Shift {
        every: ms(500),
        max: ms(5),
    };
    let arrivals = spaced(LinkConfig {
        shift: Some(shift),
        ..LinkConfig::default()
    });
    let delays: Vec<Time> = arrivals.iter().map(|(n, at)| at - n * 10 * MS).collect();
    for route in delays.chunks(50) {
        assert!(
            route
                .iter()
                .all(|delay| *delay == route[0] && *delay <= 5 * MS)
        );
    }
    assert_ne!(delays[0], delays[50]);
}

#[test]
fn a_link_that_sleeps_wakes_up_first() {
    let wake = Wake {
        idle: ms(100),
        delay: ms(30),
    };
    let mut link = link(LinkConfig {
        rate: Rate::Constant(12_000_000),
        wake: Some(wake),
        ..LinkConfig::default()
    });
    for (n, at) in [200, 210, 231, 330, 435].into_iter().enumerate() {
        link.enqueue(at * MS, packet(n as u64, 1500));
    }
    let arrivals: Vec<Time> = drain(&mut link)
        .iter()
        .map(|delivery| delivery.at / MS)
        .collect();
    // The second one waits for the first; 331 to 435 is longer than 100 ms.
    assert_eq!(arrivals, [231, 232, 233, 331, 466]);
}

#[test]
fn turns_let_packets_go_together() {
    let gap = sphinx_link::Span {
        shortest: ms(2),
        longest: ms(2),
    };
    let mut link = link(LinkConfig {
        rate: Rate::Varying(Varying::Turns { gap, packets: 3 }),
        ..LinkConfig::default()
    });
    for n in 0..7 {
        link.enqueue(MS, packet(n, 1500));
    }
    let at: Vec<Time> = drain(&mut link)
        .iter()
        .map(|delivery| delivery.at / MS)
        .collect();
    assert_eq!(at, [2, 2, 2, 4, 4, 4, 6]);
}
