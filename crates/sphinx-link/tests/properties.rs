//! Properties of any link: nothing vanishes, order and time are kept, equal seeds agree.

use std::time::Duration;

use proptest::prelude::*;
use sphinx_link::{
    Aqm, Blackout, CoDel, Corruption, Delivery, Depth, DualPi2, EcnRule, Flows, GilbertElliott,
    IpPacket, Jitter, Link, LinkConfig, Loss, LossTrace, Order, Pair, Periods, Policer, Radio,
    Rate, RateStep, RateTrace, Red, Reorder, Retries, Shift, Signal, Span, Time, Varying, Wake,
};

fn micros(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_micros)
}

fn rate() -> impl Strategy<Value = Rate> {
    let steps = prop::collection::vec((1u64..5000, 0u64..50_000_000), 0..6);
    prop_oneof![
        Just(Rate::Unlimited),
        trace().prop_map(Rate::Trace),
        varying().prop_map(Rate::Varying),
        (1_000u64..1_000_000_000).prop_map(Rate::Constant),
        (1u64..100_000_000, steps, any::<bool>()).prop_map(|(first, later, repeats)| {
            let mut at = Duration::ZERO;
            let mut steps = vec![RateStep {
                at,
                bits_per_second: first,
            }];
            for (gap, bits_per_second) in later {
                at += Duration::from_micros(gap);
                steps.push(RateStep {
                    at,
                    bits_per_second,
                });
            }
            let repeat = repeats.then_some(at + Duration::from_micros(700));
            Rate::Steps { steps, repeat }
        }),
    ]
}

fn milliseconds(range: std::ops::Range<u64>) -> impl Strategy<Value = Span> {
    (range.clone(), range).prop_map(|(one, other)| Span {
        shortest: Duration::from_millis(one.min(other)),
        longest: Duration::from_millis(one.max(other)),
    })
}

fn varying() -> impl Strategy<Value = Varying> {
    let rate = || 10_000u64..1_000_000_000;
    prop_oneof![
        (rate(), 1.0..20.0, 1u64..5000, 1u64..200).prop_map(|(median, factor, time, grant)| {
            Varying::Fading {
                median,
                factor,
                time: Duration::from_millis(time),
                grant: Duration::from_millis(grant),
            }
        }),
        (milliseconds(1..50), 1u32..100).prop_map(|(gap, packets)| Varying::Turns { gap, packets }),
        (rate(), rate(), 1000u64..30_000, milliseconds(1..900)).prop_map(
            |(one, other, every, pause)| {
                Varying::Routes {
                    rates: (one.min(other), one.max(other)),
                    every: Duration::from_millis(every),
                    pause,
                }
            }
        ),
    ]
}

fn depth() -> impl Strategy<Value = Depth> {
    prop_oneof![
        (0u64..100_000).prop_map(Depth::Bytes),
        (0u64..100).prop_map(Depth::Packets),
        micros(0..20_000).prop_map(Depth::Time),
    ]
}

fn signal() -> impl Strategy<Value = Signal> {
    prop::sample::select(vec![Signal::Drop, Signal::Mark, Signal::MarkOnly])
}

fn aqm() -> impl Strategy<Value = Aqm> {
    let codel =
        (micros(0..5000), micros(0..50_000), signal()).prop_map(|(target, interval, signal)| {
            Aqm::CoDel(CoDel {
                target,
                interval,
                signal,
            })
        });
    let red = (1u64..20, 1u64..20, 0.0..=1.0, 0.0..=1.0, signal()).prop_map(
        |(min, more, probability, weight, signal)| {
            Aqm::Red(Red {
                min: Depth::Packets(min),
                max: Depth::Packets(min + more),
                probability,
                weight,
                signal,
            })
        },
    );
    let step = (depth(), signal()).prop_map(|(threshold, signal)| Aqm::Step { threshold, signal });
    let dual =
        (micros(0..50_000), micros(0..5000), 0.0..3.0).prop_map(|(target, step, coupling)| {
            Aqm::DualPi2(DualPi2 {
                target,
                step,
                coupling,
                ..DualPi2::default()
            })
        });
    prop_oneof![Just(Aqm::None), codel, red, step, dual]
}

fn ecn() -> impl Strategy<Value = EcnRule> {
    prop::sample::select(vec![
        EcnRule::Keep,
        EcnRule::Clear,
        EcnRule::Classic,
        EcnRule::Mark,
        EcnRule::Drop,
    ])
}

fn trace() -> impl Strategy<Value = RateTrace> {
    prop::collection::vec(0u64..30, 1..30).prop_map(|mut times| {
        times.sort_unstable();
        times.push(30);
        let lines: Vec<String> = times.iter().map(u64::to_string).collect();
        RateTrace::parse(&lines.join("\n")).unwrap()
    })
}

fn loss() -> impl Strategy<Value = Loss> {
    prop_oneof![
        Just(Loss::None),
        (0.0..=1.0).prop_map(Loss::Bernoulli),
        (0.0..0.6, 1.0..20.0).prop_filter_map("a chain that cannot be", |(mean, burst)| {
            let model = GilbertElliott::bursts(mean, burst);
            (model.good_to_bad <= 1.0).then_some(Loss::GilbertElliott(model))
        }),
        prop::collection::vec(0u64..200, 0..50).prop_map(Loss::Packets),
        (1u64..100_000).prop_map(Loss::Bytes),
        (1u64..20, 1u64..20, 0.0..0.3, 0.0..=1.0).prop_map(
            |(good, bad, loss_in_good, loss_in_bad)| {
                let span = |longest| Span {
                    shortest: Duration::from_millis(1),
                    longest: Duration::from_millis(longest),
                };
                Loss::Periods(Periods {
                    good: span(good),
                    bad: span(bad),
                    loss_in_good,
                    loss_in_bad,
                })
            }
        ),
        "[01]{1,9}".prop_map(|text| Loss::Trace(LossTrace::parse(&text).unwrap())),
    ]
}

fn config() -> impl Strategy<Value = LinkConfig> {
    let policer =
        (1u64..50_000_000, 1500usize..10_000).prop_map(|(bits_per_second, burst_bytes)| Policer {
            bits_per_second,
            burst_bytes,
        });
    let blackout = (0u64..20_000, 1u64..5000).prop_map(|(start, length)| Blackout {
        start: Duration::from_micros(start),
        end: Duration::from_micros(start + length),
    });
    let front = (
        any::<u64>(),
        rate(),
        depth(),
        aqm(),
        prop::option::of(policer),
    );
    let channel = (
        loss(),
        prop::collection::vec(blackout, 0..3),
        0.0..0.3,
        0.0..0.3,
        any::<bool>(),
        any::<bool>(),
        ecn(),
    );
    let delays = (
        micros(0..50_000),
        micros(0..5000),
        any::<bool>(),
        0.0..0.3,
        micros(0..9000),
        prop::option::of((0.0..0.5, micros(0..9000), 0u32..5)),
        prop::option::of((micros(1..9000), micros(0..9000))),
        prop::option::of((micros(0..900), micros(0..9000))),
    );
    (front, channel, delays).prop_map(|(front, channel, delays)| LinkConfig {
        seed: front.0,
        mtu: Some(1400),
        policer: front.4,
        rate: front.1,
        queue: front.2,
        // Where all packets have it, nothing is different.
        priority: channel.5.then_some(0),
        // No datagram is an acknowledgement.
        compressed_ack: channel.5.then_some(6),
        ecn: channel.6,
        aqm: front.3,
        loss: channel.0,
        blackouts: channel.1,
        blackouts_repeat: channel.4.then_some(Duration::from_millis(30)),
        corruption: Corruption {
            probability: channel.2,
            bits: 2,
        },
        duplication: channel.3,
        delay: delays.0,
        jitter: Jitter {
            max: delays.1,
            order: if delays.2 { Order::Free } else { Order::Kept },
        },
        reorder: Reorder {
            probability: delays.3,
            hold: delays.4,
        },
        retries: delays
            .5
            .map_or(Retries::default(), |(probability, interval, limit)| {
                Retries {
                    probability,
                    interval,
                    limit,
                }
            }),
        shift: delays.6.map(|(every, max)| Shift { every, max }),
        wake: delays.7.map(|(idle, delay)| Wake { idle, delay }),
        radio: None,
        flows: if channel.5 {
            Flows::Apart
        } else {
            Flows::Together
        },
        records: 10_000,
    })
}

/// (gap to the packet before in ns, size in bytes)
fn arrivals() -> impl Strategy<Value = Vec<(Time, usize)>> {
    prop::collection::vec((0u64..500_000, 28usize..1500), 1..200)
}

/// Runs the arrivals through a link; with `eager`, polling at every event on the way.
fn run(
    config: &LinkConfig,
    arrivals: &[(Time, usize)],
    eager: bool,
) -> (Vec<Delivery<IpPacket>>, Link<IpPacket>) {
    let mut link = Link::new(config.clone()).unwrap();
    let mut deliveries = Vec::new();
    let mut poll = |link: &mut Link<IpPacket>, until: Time| {
        while let Some(now) = link.next_event().filter(|&now| now <= until) {
            while let Some(delivery) = link.poll(now) {
                assert!(
                    !eager || delivery.at == now,
                    "announced for {now}: {}",
                    delivery.at
                );
                deliveries.push(delivery);
            }
        }
    };
    let mut now = 0;
    for &(gap, bytes) in arrivals {
        now += gap;
        if eager {
            poll(&mut link, now);
        }
        let mut packet = vec![0; bytes];
        (packet[0], packet[1]) = (0x45, 2);
        link.enqueue(now, IpPacket(packet));
    }
    poll(&mut link, Time::MAX);
    (deliveries, link)
}

fn radio() -> impl Strategy<Value = Radio> {
    (micros(0..3000), micros(0..300), 1u32..4).prop_map(|(turnaround, slot, hops)| Radio {
        turnaround,
        slot,
        hops,
    })
}

type Arrivals = Vec<(Time, usize)>;
/// Direction, time and index of a delivery.
type Arrived = (usize, Time, u64, IpPacket);

/// Runs arrivals of both directions through a pair; with `eager`, polling at every event on the way. Each delivery with its direction.
fn run_pair(
    configs: &[LinkConfig; 2],
    arrivals: &[Arrivals; 2],
    eager: bool,
) -> (Vec<Arrived>, Pair<IpPacket>) {
    let mut pair = Pair::new(configs.clone()).unwrap();
    let mut deliveries = Vec::new();
    let mut poll = |pair: &mut Pair<IpPacket>, until: Time| {
        while let Some(now) = pair.next_event().filter(|&now| now <= until) {
            for direction in [0, 1] {
                while let Some(it) = pair.poll(now, direction) {
                    assert!(!eager || it.at == now, "announced for {now}: {}", it.at);
                    deliveries.push((direction, it.at, it.index, it.packet));
                }
            }
        }
    };
    let mut offered = Vec::new();
    for (direction, arrivals) in arrivals.iter().enumerate() {
        let mut now = 0;
        for &(gap, bytes) in arrivals {
            now += gap;
            offered.push((now, direction, bytes));
        }
    }
    offered.sort_unstable();
    for (now, direction, bytes) in offered {
        if eager {
            poll(&mut pair, now);
        }
        let mut packet = vec![0; bytes];
        (packet[0], packet[1]) = (0x45, 2);
        pair.enqueue(now, direction, IpPacket(packet));
    }
    poll(&mut pair, Time::MAX);
    (deliveries, pair)
}

proptest! {
    /// Whatever the two directions are: all packets are accounted for, and polling late changes nothing.
    #[test]
    fn both_directions_of_a_radio(
        configs in [config(), config()],
        radio in prop::option::of(radio()),
        arrivals in [arrivals(), arrivals()],
    ) {
        let configs = configs.map(|config| LinkConfig { radio, ..config });
        let (mut eager, first) = run_pair(&configs, &arrivals, true);
        let (mut lazy, second) = run_pair(&configs, &arrivals, false);
        // In the order of each direction.
        eager.sort_by_key(|it| it.0);
        lazy.sort_by_key(|it| it.0);
        prop_assert_eq!(&eager, &lazy);
        for direction in [0, 1] {
            let link = first.link(direction);
            let counters = link.counters();
            prop_assert_eq!(counters, second.link(direction).counters());
            prop_assert_eq!(counters.offered_packets, arrivals[direction].len() as u64);
            prop_assert_eq!(
                counters.offered_packets + counters.duplicated,
                counters.dropped() + link.packets_inside() as u64 + counters.delivered_packets
            );
        }
    }

    /// One packet is on the channel at a time, after its turnaround, as often as there are hops.
    #[test]
    fn one_channel_carries_one_packet_at_a_time(
        radio in radio(),
        arrivals in [arrivals(), arrivals()],
    ) {
        let config = LinkConfig {
            rate: Rate::Constant(8_000_000),
            queue: Depth::Packets(1000),
            radio: Some(radio),
            ..LinkConfig::default()
        };
        let (mut deliveries, _) = run_pair(&[config.clone(), config], &arrivals, true);
        prop_assert_eq!(deliveries.len(), arrivals[0].len() + arrivals[1].len());
        deliveries.sort_by_key(|it| it.1);
        let mut before = 0;
        for (_, at, _, packet) in deliveries {
            // A microsecond a byte.
            let bytes = packet.0.len() as Time * 1000;
            let takes = Time::from(radio.hops) * (bytes + radio.turnaround.as_nanos() as Time);
            prop_assert!(at >= before + takes, "{at} after {before}: {takes}");
            before = at;
        }
    }

    #[test]
    fn every_packet_is_accounted_for(config in config(), arrivals in arrivals()) {
        let (deliveries, link) = run(&config, &arrivals, true);
        let counters = link.counters();
        prop_assert_eq!(counters.offered_packets, arrivals.len() as u64);
        prop_assert_eq!(counters.delivered_packets, deliveries.len() as u64);
        prop_assert_eq!(
            counters.offered_packets + counters.duplicated,
            counters.dropped() + link.packets_inside() as u64 + counters.delivered_packets
        );
        let bytes: usize = deliveries.iter().map(|delivery| delivery.packet.0.len()).sum();
        prop_assert_eq!(counters.delivered_bytes, bytes as u64);
    }

    #[test]
    fn packets_arrive_in_time_and_not_before_their_delay(
        config in config(),
        arrivals in arrivals(),
    ) {
        let (deliveries, _) = run(&config, &arrivals, true);
        prop_assert!(deliveries.is_sorted_by_key(|delivery| delivery.at));
        let delay = config.delay.as_nanos() as Time;
        for delivery in &deliveries {
            let sent: Time = arrivals[..=delivery.index as usize].iter().map(|(gap, _)| gap).sum();
            prop_assert!(delivery.at >= sent + delay);
        }
        if config.jitter.order == Order::Kept && config.reorder.probability == 0.0 {
            prop_assert!(deliveries.is_sorted_by_key(|delivery| delivery.index));
        }
    }

    #[test]
    fn polling_late_changes_nothing(config in config(), arrivals in arrivals()) {
        let (eager, mut first) = run(&config, &arrivals, true);
        let (lazy, mut second) = run(&config, &arrivals, false);
        let strip = |deliveries: Vec<Delivery<IpPacket>>| {
            deliveries.into_iter().map(|d| (d.at, d.index, d.packet)).collect::<Vec<_>>()
        };
        prop_assert_eq!(strip(eager), strip(lazy));
        prop_assert_eq!(first.counters(), second.counters());
        let (mut one, mut two) = (Vec::new(), Vec::new());
        first.take_records(&mut one);
        second.take_records(&mut two);
        prop_assert_eq!(one, two);
    }
}
