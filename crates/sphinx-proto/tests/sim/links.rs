//! Links as people have them: their rate, delay and losses are never the same for long.

use sphinx_link::settings::{LinkSettings, MODELS};
use sphinx_link::{Datagram, Depth, Link, LinkConfig, Loss, Retries};
use sphinx_proto::Nanos;
use sphinx_sim::{SEC, Scenario};

use crate::random::number;

/// Both directions of one of [`MODELS`], Ethernet's MTU included.
fn named(name: &str, seed: u64) -> [LinkConfig; 2] {
    let mut settings = LinkSettings::default();
    settings.set("like", name).expect("a model");
    settings.set("seed", &seed.to_string()).expect("a seed");
    settings
        .configs(&|_| Err(std::io::ErrorKind::NotFound.into()))
        .expect("a link")
}

/// Packets that always wait for a link, and on the way: more than it takes at once.
const WAITING: u32 = 20_000;

/// Bytes of IP that a link carries and does not lose within the time, if something always waits for it.
fn capacity(config: &LinkConfig, time: Nanos) -> f64 {
    let lost = match config.loss {
        Loss::None => 0.0,
        ref loss => loss.mean(),
    };
    let mut link = Link::new(LinkConfig {
        queue: Depth::Packets(u64::MAX),
        policer: None,
        loss: Loss::None,
        retries: Retries::default(),
        ..config.clone()
    })
    .expect("a link");
    let packet = || {
        let payload = vec![0; 1472];
        let (source, destination) = (([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into());
        Datagram {
            source,
            destination,
            ecn: 0,
            payload,
        }
    };
    for _ in 0..WAITING {
        link.enqueue(0, packet());
    }
    while let Some(now) = link.next_event().filter(|now| *now <= time) {
        while link.poll(now).is_some() {
            link.enqueue(now, packet());
        }
    }
    let policed = config.policer.map_or(f64::MAX, |policer| {
        policer.bits_per_second as f64 / 8.0 * (time / SEC) as f64
    });
    (link.counters().delivered_bytes as f64).min(policed) * (1.0 - lost)
}

/// What a saturating sender came to: goodput over what the link carries, the 95th percentile of waiting in ms, and the share
/// of packets dropped by the queue or a policer.
fn saturate(name: &str, time: Nanos, seed: u64) -> [f64; 3] {
    let [forward, back] = named(name, seed);
    let capacity = capacity(&forward, time);
    let mut pair = Scenario::new(
        [forward, back]
            .map(|link| LinkConfig {
                mtu: Some(1500),
                ..link
            })
            .into(),
    )
    .bulk(2 * capacity as u64)
    .build();
    pair.run_until(time, |_| false);
    let pieces = pair.server().pieces_received().iter();
    let delivered: u64 = pieces.map(|(.., bytes)| u64::from(*bytes)).sum();
    let counters = pair.links[0].counters();
    let dropped = counters.dropped_queue + counters.dropped_policer;
    [
        delivered as f64 / capacity,
        pair.links[0].waits().quantile(0.95) as f64 / 1e6,
        dropped as f64 / counters.offered_packets as f64,
    ]
}

/// What is left of a link after headers (38 bytes of 1500, and those of UDP), start-up and, where its rate is never the same,
/// looking for it: less than this in a run of ten seconds is a defect, and so are 95 of 100 packets that wait so many milliseconds
/// for the link at most, or more, and a larger part of them dropped.
const BOUNDS: [(&str, f64, f64, f64); 7] = [
    ("wifi", 0.82, 56.0, 0.01),
    ("lte", 0.65, 200.0, 0.001),
    ("5g", 0.65, 125.0, 0.01),
    ("leo", 0.85, 30.0, 0.001),
    ("geo", 0.7, 200.0, 0.001),
    ("policed", 0.85, 1.0, 0.02),
    ("docsis", 0.88, 12.0, 0.001),
];

#[test]
fn links_of_every_kind_are_filled_and_hardly_more() {
    for (name, least, longest, most) in BOUNDS {
        let seeds = number("SPHINX_SIM_SEEDS").map_or(1, |_| 5);
        for seed in 1..=seeds {
            let [goodput, wait, dropped] = saturate(name, 10 * SEC, seed);
            let found = format!("{name}, seed {seed}: {goodput:.3}, {wait:.1} ms, {dropped:.4}");
            assert!(goodput > least, "{found}");
            assert!(wait < longest && dropped < most, "{found}");
        }
    }
}

#[test]
#[ignore = "a table for people"]
fn table_of_links() {
    let seeds = number("SPHINX_SIM_TABLE_SEEDS").unwrap_or(8);
    println!(
        "30 s, {seeds} seeds: goodput over what the link carries (worst), p95 of waiting, drops"
    );
    for model in MODELS {
        let run = |seed| saturate(model.name, 30 * SEC, seed);
        let mut runs: Vec<_> = (1..=seeds).map(run).collect();
        let worst = runs.iter().map(|run| run[0]).fold(f64::MAX, f64::min);
        let mut median = |of: usize| {
            runs.sort_by(|a, b| a[of].total_cmp(&b[of]));
            runs[runs.len() / 2][of]
        };
        println!(
            "{:8} {:.3} ({worst:.3}) {:7.1} ms {:6.2} %",
            model.name,
            median(0),
            median(1),
            100.0 * median(2)
        );
    }
}
