//! The link emulator, with the packets and settings that its users bring.

use std::time::Duration;

use sphinx_link::{
    Aqm, Blackout, CoDel, Corruption, Depth, DualPi2, EcnRule, FlowKey, Flows, GilbertElliott,
    IpPacket, Jitter, LinkConfig, Loss, LossTrace, Order, Packet, Pair, Policer, Radio, Rate,
    RateStep, RateTrace, Red, Reorder, Retries, Shift, Signal, Span, Varying, Wake,
};

use crate::Input;

/// Marks and bit errors on bytes that need not be IP.
pub fn packet(data: &[u8]) {
    let input = &mut Input::new(data);
    let bit = input.any();
    let original = IpPacket(input.take(usize::MAX).to_vec());
    assert_eq!(original.ip_len(), original.0.len());

    let mut marked = original.duplicate();
    let header = if marked.mark_ce() {
        check_mark(&original.0, &marked.0);
        let once = marked.clone();
        assert!(marked.mark_ce() && marked == once, "marked twice");
        if original.0[0] >> 4 == 4 { 20 } else { 40 }
    } else {
        assert_eq!(marked, original);
        0
    };

    if original.flow() == FlowKey::default() {
        assert_eq!(original.sequence(), None);
    }
    let bits = original.corruptible_bits();
    assert!(bits <= 8 * original.ip_len() as u64);
    let mut flipped = original.clone();
    flipped.flip_bit(bit);
    if bit < bits {
        let differing = |pair: (&u8, &u8)| (pair.0 ^ pair.1).count_ones();
        let changed = original.0.iter().zip(&flipped.0).map(differing);
        assert_eq!(changed.sum::<u32>(), 1);
        assert_eq!(original.0[..header], flipped.0[..header]);
        flipped.flip_bit(bit);
    }
    assert_eq!(flipped, original);
}

/// A mark changes the ECN field and, in IPv4, the checksum, which stays as right as it was.
fn check_mark(before: &[u8], after: &[u8]) {
    assert_eq!(before.len(), after.len());
    let is_v4 = before[0] >> 4 == 4;
    let ecn = if is_v4 { 0x03 } else { 0x30 };
    assert_eq!(after[1], before[1] | ecn);
    for at in (0..before.len()).filter(|at| *at != 1) {
        let may_change = is_v4 && (10..12).contains(&at);
        assert!(may_change || before[at] == after[at], "byte {at}");
    }
    if is_v4 {
        assert_eq!(is_sound(&before[..20]), is_sound(&after[..20]));
    }
}

fn is_sound(header: &[u8]) -> bool {
    let words = header.as_chunks::<2>().0;
    let mut sum: u32 = words
        .iter()
        .map(|w| u32::from(u16::from_be_bytes(*w)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum == 0xffff
}

fn span(input: &mut Input<'_>) -> Duration {
    Duration::from_nanos(input.any())
}

fn probability(input: &mut Input<'_>) -> f64 {
    match input.byte() {
        255 => f64::NAN,
        254 => -1.0,
        byte => f64::from(byte) / 200.0,
    }
}

fn depth(input: &mut Input<'_>) -> Depth {
    match input.byte() % 3 {
        0 => Depth::Bytes(input.any()),
        1 => Depth::Packets(input.any()),
        _ => Depth::Time(span(input)),
    }
}

fn signal(input: &mut Input<'_>) -> Signal {
    input.pick(&[Signal::Drop, Signal::Mark, Signal::MarkOnly])
}

fn aqm(input: &mut Input<'_>) -> Aqm {
    match input.byte() % 5 {
        0 => Aqm::None,
        1 => Aqm::Step {
            threshold: depth(input),
            signal: signal(input),
        },
        2 => Aqm::CoDel(CoDel {
            target: span(input),
            interval: span(input),
            signal: signal(input),
        }),
        3 => Aqm::DualPi2(DualPi2 {
            target: span(input),
            step: span(input),
            tupdate: span(input),
            alpha: f64::from(input.byte()),
            beta: f64::from(input.byte()),
            coupling: f64::from(input.byte()) / 16.0,
        }),
        _ => Aqm::Red(Red {
            min: depth(input),
            max: depth(input),
            probability: probability(input),
            weight: probability(input),
            signal: signal(input),
        }),
    }
}

/// A trace from a few numbers, or nothing where they make none.
fn trace(input: &mut Input<'_>) -> Option<RateTrace> {
    let count = input.below(5);
    let times: Vec<String> = (0..count).map(|_| input.any().to_string()).collect();
    RateTrace::parse(&times.join("\n")).ok()
}

fn varying(input: &mut Input<'_>) -> Varying {
    let times = |input: &mut Input<'_>| Span {
        shortest: span(input),
        longest: span(input),
    };
    match input.byte() % 3 {
        0 => Varying::Fading {
            median: input.any(),
            factor: f64::from(input.byte()) / 4.0,
            time: span(input),
            grant: span(input),
        },
        1 => Varying::Turns {
            gap: times(input),
            packets: input.number(2) as u32,
        },
        _ => Varying::Routes {
            rates: (input.any(), input.any()),
            every: span(input),
            pause: times(input),
        },
    }
}

fn rate(input: &mut Input<'_>) -> Rate {
    match input.byte() % 5 {
        4 => Rate::Varying(varying(input)),
        3 => trace(input).map_or(Rate::Unlimited, Rate::Trace),
        0 => Rate::Unlimited,
        1 => Rate::Constant(input.any()),
        _ => {
            let count = input.below(4);
            let step = |_| RateStep {
                at: span(input),
                bits_per_second: input.any(),
            };
            let steps = (0..count).map(step).collect();
            let repeat = input.rarely(2).then(|| span(input));
            Rate::Steps { steps, repeat }
        }
    }
}

fn loss(input: &mut Input<'_>) -> Loss {
    match input.byte() % 5 {
        4 => LossTrace::parse(input.pick(&["0", "01", "0 0 1"])).map_or(Loss::None, Loss::Trace),
        0 => Loss::None,
        1 => Loss::Bernoulli(probability(input)),
        2 => Loss::GilbertElliott(GilbertElliott {
            good_to_bad: probability(input),
            bad_to_good: probability(input),
            loss_in_good: probability(input),
            loss_in_bad: probability(input),
        }),
        _ => Loss::Packets((0..input.below(4)).map(|_| input.any()).collect()),
    }
}

fn config(input: &mut Input<'_>) -> LinkConfig {
    // Absent fields are as in a perfect link, so that short inputs make simple links.
    let fields = input.number(2);
    let mut has = {
        let mut bit = 0;
        move || {
            bit += 1;
            fields >> (bit - 1) & 1 == 1
        }
    };
    let mut config = LinkConfig {
        seed: input.number(1),
        ..LinkConfig::default()
    };
    if has() {
        config.mtu = Some(input.any() as usize);
    }
    if has() {
        config.policer = Some(Policer {
            bits_per_second: input.any(),
            burst_bytes: input.any() as usize,
        });
    }
    if has() {
        config.rate = rate(input);
    }
    if has() {
        config.queue = depth(input);
    }
    if has() {
        config.aqm = aqm(input);
        let rules = [
            EcnRule::Keep,
            EcnRule::Clear,
            EcnRule::Classic,
            EcnRule::Mark,
            EcnRule::Drop,
        ];
        if input.rarely(2) {
            config.ecn = input.pick(&rules);
        }
    }
    if has() {
        config.loss = loss(input);
    }
    if has() {
        let (start, end) = (span(input), span(input));
        config.blackouts.push(Blackout { start, end });
        config.blackouts_repeat = input.rarely(2).then(|| span(input));
    }
    if has() {
        config.corruption = Corruption {
            probability: probability(input),
            bits: input.below(20) as u32,
        };
    }
    if has() {
        config.duplication = probability(input);
    }
    if has() {
        config.delay = span(input);
    }
    if has() {
        config.jitter = Jitter {
            max: span(input),
            order: input.pick(&[Order::Kept, Order::Free]),
        };
    }
    if has() {
        config.reorder = Reorder {
            probability: probability(input),
            hold: span(input),
        };
    }
    if has() {
        config.records = input.below(1000) as usize;
    }
    if has() {
        config.flows = Flows::Apart;
    }
    if has() {
        config.retries = Retries {
            probability: probability(input),
            interval: span(input),
            limit: input.number(2) as u32,
        };
        config.shift = input.rarely(2).then(|| Shift {
            every: span(input),
            max: span(input),
        });
        config.wake = input.rarely(2).then(|| Wake {
            idle: span(input),
            delay: span(input),
        });
    }
    if has() {
        config.radio = Some(Radio {
            turnaround: span(input),
            slot: span(input),
            hops: input.number(1) as u32,
        });
    }
    config
}

/// Any settings, changed under way, and any packets at any time: all are accounted for, and none
/// comes before its time. Half of the packets of a radio go back.
pub fn settings(data: &[u8]) {
    let input = &mut Input::new(data);
    let first = config(input);
    let radio = first.radio;
    let back = LinkConfig {
        seed: 1,
        radio,
        ..LinkConfig::default()
    };
    let Ok(mut pair) = Pair::new([first, back]) else {
        return;
    };
    let (mut now, mut offered) = (0u64, 0);
    while !input.is_empty() && offered < 100 {
        now = now.saturating_add(if input.rarely(2) { input.any() } else { 0 });
        match input.byte() % 8 {
            0 => {
                // Refused settings leave the link as it was.
                let changed = LinkConfig {
                    radio,
                    ..config(input)
                };
                let _ = pair.reconfigure(now, 0, changed);
            }
            1..3 => run(&mut pair, now, now),
            _ => {
                let mut packet = vec![input.byte(); usize::from(input.byte()) * 8];
                if let [first, second, ..] = &mut packet[..] {
                    (*first, *second) = (0x45, input.byte());
                }
                let direction = usize::from(radio.is_some() && packet.len() % 16 == 8);
                pair.enqueue(now, direction, IpPacket(packet));
                offered += 1;
            }
        }
    }
    run(&mut pair, now, u64::MAX);
    let mut accounted = 0;
    for link in [0, 1].map(|direction| pair.link(direction)) {
        let counters = link.counters();
        accounted += counters.offered_packets;
        assert_eq!(
            counters.offered_packets + counters.duplicated,
            counters.dropped() + link.packets_inside() as u64 + counters.delivered_packets
        );
    }
    assert_eq!(accounted, offered);
}

/// Takes everything that is due between now and `until`.
fn run(pair: &mut Pair<IpPacket>, now: u64, until: u64) {
    let mut rounds = 0;
    let mut last = now;
    while let Some(event) = pair.next_event().filter(|event| *event <= until) {
        let at = event.max(now);
        assert!(at >= last, "time steps back");
        rounds = if at > last { 0 } else { rounds + 1 };
        assert!(rounds < 1000, "stuck at {at}");
        last = at;
        for direction in [0, 1] {
            while let Some(delivery) = pair.poll(at, direction) {
                assert!(delivery.at <= at);
            }
        }
    }
}
