//! Datagrams and live messages over one session, in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use sphinx_driver::{DatagramCounts, SendAs};
use sphinx_link::Loss;
use sphinx_proto::wire::FlowKind;
use sphinx_proto::{Nanos, Profile, RepairMode, Urgency};
use sphinx_sim::{Heard, MS, Pair, Plain, SEC, Say, Scenario, Write, link};

const LIVE: Option<FlowKind> = Some(FlowKind::Live);
/// Sending begins when the handshake is long over.
const BEGIN: Nanos = SEC;

fn live(life: Nanos) -> SendAs {
    SendAs {
        flow: 0,
        kind: LIVE,
        urgency: Urgency::default(),
        life,
        repair: RepairMode::InTime,
    }
}

fn says(count: u64, period: Nanos, len: usize, send_as: SendAs) -> Vec<Say> {
    let say = |number| Say {
        at: BEGIN + number * period,
        len,
        send_as,
    };
    (0..count).map(say).collect()
}

/// A link of 20 Mbit/s that loses packets of both directions.
fn scenario(rtt_ms: u64, loss: f64, seed: u64) -> Scenario {
    let (forward, mut backward) = link(20, rtt_ms, Loss::Bernoulli(loss), seed);
    backward.loss = Loss::Bernoulli(loss);
    let mut scenario = Scenario::new((forward, backward));
    scenario.profile = Profile::Latency;
    scenario
}

/// Runs until everything said is heard or given up.
fn run(scenario: &Scenario) -> Pair<Plain> {
    let mut pair = scenario.build();
    let last = |says: &[Say]| says.last().map_or(0, |say| say.at);
    let until = last(&scenario.client.says).max(last(&scenario.server.says)) + 10 * SEC;
    let is_done =
        |pair: &mut Pair| pair.now > BEGIN && pair.ends.iter().all(|end| end.has_said_all());
    assert!(
        pair.run_until(until, is_done),
        "datagrams left without a fate"
    );
    // What was given up last is heard of, and flows end.
    pair.run_until(pair.now + 3 * SEC, |_| false);
    pair
}

fn counts(pair: &Pair) -> DatagramCounts {
    pair.client().datagram_counts()
}

/// How long each took, as their sender sees it.
fn delays(heard: &[Heard], says: &[Say]) -> Vec<Nanos> {
    let delay = |heard: &Heard| heard.at - says[heard.index.expect("long enough")].at;
    heard.iter().map(delay).collect()
}

/// What a thousand bytes every 5 ms cost over a path of 50 ms, and which share did not arrive within `life`: both ends agree.
fn cost_of_live(loss: f64, life: Nanos, seed: u64) -> (f64, f64) {
    cost_of((1000, 5 * MS), loss, life, seed)
}

/// The same of messages of `len` bytes, one in each `period`, for a minute.
fn cost_of((len, period): (usize, Nanos), loss: f64, life: Nanos, seed: u64) -> (f64, f64) {
    let count = 60 * SEC / period;
    let mut scenario = scenario(50, loss, seed);
    scenario.client.says = says(count, period, len, live(life));
    let pair = run(&scenario);
    let (client, server) = (pair.client(), pair.server());
    let heard = server.heard();
    let in_time = delays(heard, &scenario.client.says);
    // The first ones tell where the clock stands.
    let latest = in_time.iter().skip(20).max().copied().unwrap_or(0);
    // Its clock takes the fastest message for one that was on its way for half of the smallest round trip: here it took as long as the link took
    // to send it beyond that, 400 ns for a byte.
    let inexact = MS + 400 * len as Nanos;
    assert!(latest <= life + inexact, "late ones are dropped: {latest}");
    let missing: u64 = server.missing()[&0]
        .iter()
        .map(|range| range.end - range.start)
        .sum();
    assert_eq!(
        heard.len() as u64 + missing,
        count,
        "each is here or reported"
    );
    assert_eq!(server.live_ended(), 1);
    let bytes = client.ip_bytes_sent as f64 / (count * len as u64) as f64;
    (bytes, missing as f64 / count as f64)
}

#[test]
fn live_messages_use_the_round_trip_that_fits() {
    let (bytes, dropped) = cost_of_live(0.0, 100 * MS, 1);
    println!("no loss: {bytes:.3} bytes for one, {dropped:.4} dropped");
    assert!(bytes <= 1.12 && dropped == 0.0);
    let cells: Vec<_> = (1..=5)
        .map(|seed| cost_of_live(0.1, 100 * MS, seed))
        .collect();
    let mean = |of: fn(&(f64, f64)) -> f64| cells.iter().map(of).sum::<f64>() / cells.len() as f64;
    let (bytes, dropped) = (mean(|cell| cell.0), mean(|cell| cell.1));
    println!("10 %: {bytes:.3} bytes for one, {dropped:.4} dropped {cells:?}");
    assert!(bytes <= 1.40 && dropped <= 0.002);
}

#[test]
fn live_messages_are_protected_ahead_where_no_round_trip_fits() {
    let cells: Vec<_> = (1..=5)
        .map(|seed| cost_of_live(0.1, 60 * MS, seed))
        .collect();
    let mean = |of: fn(&(f64, f64)) -> f64| cells.iter().map(of).sum::<f64>() / cells.len() as f64;
    let (bytes, dropped) = (mean(|cell| cell.0), mean(|cell| cell.1));
    println!("10 %, 60 ms: {bytes:.3} bytes for one, {dropped:.4} dropped {cells:?}");
    assert!(bytes <= 2.0 && dropped <= 0.002);
}

#[test]
#[ignore = "a table for people"]
fn table_of_live_messages() {
    println!("bytes for one, share dropped: mean of 3 seeds");
    for (len, period) in [(1000, 5), (200, 20), (10_000, 33)] {
        for life in [60, 100] {
            for loss in [0.0, 0.02, 0.05, 0.1, 0.2] {
                let cells: Vec<_> = (1..=3)
                    .map(|seed| cost_of((len, period * MS), loss, life * MS, seed))
                    .collect();
                let mean = |of: fn(&(f64, f64)) -> f64| cells.iter().map(of).sum::<f64>() / 3.0;
                println!(
                    "{len} B, {period} ms, deadline {life} ms, loss {loss}: {:.3}, {:.3} %",
                    mean(|cell| cell.0),
                    100.0 * mean(|cell| cell.1)
                );
            }
        }
    }
}

/// Each message is given out as long after it was sent as any other, though losses and queues make them arrive unevenly.
#[test]
fn live_messages_come_on_time() {
    let mut scenario = scenario(40, 0.05, 5);
    scenario.client.says = says(2000, 10 * MS, 500, live(120 * MS));
    scenario.server.on_time = true;
    let pair = run(&scenario);
    let heard = pair.server().heard();
    assert!(heard.len() > 1990);
    let delays = delays(heard, &scenario.client.says);
    // The first ones tell where the clock stands.
    let (least, most) = (delays[20..].iter().min(), delays[20..].iter().max());
    let (least, most) = (least.expect("many"), most.expect("many"));
    assert!(most - least < 2 * MS && *most <= 121 * MS, "{least} {most}");
    assert!(heard.is_sorted_by_key(|heard| heard.number));
}

/// More than the link carries: what is out of date makes room, and what arrives is in time.
/// A longer way is no queue, once it has been there for some time: all were taken for late, and none left any more.
#[test]
fn live_messages_go_on_over_a_path_that_has_become_longer() {
    let mut scenario = scenario(20, 0.0, 1);
    scenario.client.says = says(2000, 20 * MS, 400, live(120 * MS));
    let mut pair: Pair<Plain> = scenario.build();
    pair.run_until(BEGIN + 3 * SEC, |_| false);
    for link in &mut pair.links {
        let mut config = link.config().clone();
        config.delay += Duration::from_millis(60);
        link.reconfigure(pair.now, config).expect("a valid link");
    }
    pair.run_until(BEGIN + 20 * SEC, |_| false);
    let before = pair.server().heard().len();
    pair.run_until(BEGIN + 40 * SEC, |_| false);
    let heard = pair.server().heard().len() - before;
    assert!(heard > 980, "{heard} of 1000");
}

#[test]
fn overload_costs_the_oldest() {
    let mut scenario = scenario(20, 0.01, 7);
    scenario.client.says = says(4000, MS, 10_000, live(100 * MS));
    let pair = run(&scenario);
    let delays = delays(pair.server().heard(), &scenario.client.says);
    // The fastest tells when messages were sent: it took as long as ten packets take on this link, besides the way.
    assert!(delays.iter().all(|delay| *delay <= 110 * MS));
    let counts = counts(&pair);
    assert_eq!(
        counts.live_dropped,
        counts.expired + counts.evicted + counts.lost
    );
    // 20 of 80 Mbit/s, of which repair ahead takes a part.
    let share = delays.len() as f64 / 4000.0;
    assert!((0.15..0.26).contains(&share), "{share} {counts:?}");
}

#[test]
fn datagrams_are_lost_or_repaired_as_wanted() {
    for (repair, least, most) in [
        (RepairMode::None, 0.87, 0.93),
        (RepairMode::InTime, 0.999, 1.0),
        (RepairMode::Together, 0.999, 1.0),
    ] {
        let mut scenario = scenario(20, 0.1, 9);
        let plain = SendAs {
            kind: None,
            repair,
            life: 200 * MS,
            ..live(0)
        };
        scenario.client.says = says(5000, 2 * MS, 800, plain);
        let pair = run(&scenario);
        let (counts, heard) = (counts(&pair), pair.server().heard());
        // Start-up takes a while to find out that the application sends little.
        let share = heard.iter().filter(|heard| heard.index > Some(999)).count() as f64 / 4000.0;
        assert!((least..=most).contains(&share), "{share} {counts:?}");
        // Nothing of the window is lost with them.
        assert_eq!((pair.client().tx_held(), pair.server().rx_held()), (0, 0));
    }
}

#[test]
fn large_datagrams_are_cut_and_put_together() {
    let mut scenario = scenario(20, 0.02, 11);
    let plain = SendAs {
        kind: None,
        life: SEC,
        ..live(0)
    };
    scenario.client.says = says(100, 40 * MS, 65_507, plain);
    scenario.client.says.push(Say {
        at: BEGIN + 5 * SEC,
        len: 0,
        send_as: plain,
    });
    let pair = run(&scenario);
    let heard = pair.server().heard();
    assert_eq!(heard.len(), 101);
    assert_eq!(
        heard.iter().filter(|heard| heard.index.is_none()).count(),
        1
    );
}

#[test]
fn order_is_kept_within_a_flow() {
    let mut scenario = scenario(30, 0.1, 13);
    let flow = |number| SendAs {
        flow: number % 3,
        kind: Some(FlowKind::Ordered),
        life: 150 * MS,
        repair: match number % 3 {
            2 => RepairMode::None,
            _ => RepairMode::InTime,
        },
        ..live(0)
    };
    scenario.client.says = (0..6000)
        .map(|number| Say {
            at: BEGIN + number * MS,
            len: 300,
            send_as: flow(number),
        })
        .collect();
    let pair = run(&scenario);
    let heard = pair.server().heard();
    let mut next: BTreeMap<u64, u64> = BTreeMap::new();
    for heard in heard {
        let number = heard.number.expect("they have numbers");
        let next = next.entry(heard.flow).or_default();
        assert!(
            number >= *next,
            "flow {}: {number} after {next}",
            heard.flow
        );
        *next = number + 1;
    }
    // After start-up.
    let later = heard.iter().filter(|heard| heard.index >= Some(2400));
    let of = |flow| later.clone().filter(|heard| heard.flow == flow).count();
    assert!(of(0) > 1197 && of(1) > 1197, "{} {}", of(0), of(1));
    // Of what is not repaired a tenth is lost, and holds up the others until that is known.
    assert!((1030..1130).contains(&of(2)), "{}", of(2));
    let delays = delays(heard, &scenario.client.says);
    assert!(delays.iter().all(|delay| *delay <= 152 * MS));
}

/// Datagrams beside a stream that fills the link: as urgent as that they share it, and urgent ones go first.
#[test]
fn datagrams_and_streams_share() {
    for (urgency, within) in [(Urgency::default(), 90 * MS), (Urgency::MOST, 30 * MS)] {
        let mut scenario = scenario(20, 0.02, 15);
        scenario.profile = Profile::Bulk;
        scenario.client.writes.push(Write {
            at: 0,
            stream: 0,
            len: 30_000_000,
            end_of_stream: true,
        });
        let plain = SendAs {
            kind: None,
            urgency,
            life: 200 * MS,
            ..live(0)
        };
        scenario.client.says = says(1000, 5 * MS, 1000, plain);
        let pair = run(&scenario);
        let mut delays = delays(pair.server().heard(), &scenario.client.says);
        assert!(delays.len() >= 995, "{} {:?}", delays.len(), counts(&pair));
        delays.sort_unstable();
        let p95 = delays[delays.len() * 95 / 100];
        assert!(p95 <= within, "{p95} ns");
        assert!(
            pair.server().bytes_received > 9_000_000,
            "the stream goes on"
        );
    }
}

/// What fills a long path in order waits for answers to losses hardly ever, if it shares repair ahead of them, and often if it does not.
#[test]
fn what_is_sent_in_quantity_shares_repair() {
    let run_with = |repair| {
        let (forward, backward) = link(200, 100, Loss::Bernoulli(0.06), 17);
        let mut scenario = Scenario::new((forward, backward));
        let ordered = SendAs {
            kind: Some(FlowKind::Ordered),
            repair,
            life: 400 * MS,
            ..live(0)
        };
        scenario.client.says = says(40_000, MS / 4, 1380, ordered);
        let pair = run(&scenario);
        // After start-up.
        let heard = pair.server().heard().iter();
        let heard: Vec<_> = heard
            .filter(|it| it.index > Some(20_000))
            .copied()
            .collect();
        let later = delays(&heard, &scenario.client.says);
        let late = later.iter().filter(|delay| **delay > 100 * MS).count();
        let stats = pair.client().session().stats();
        let repairs = (stats.repair_proactive + stats.repair_reactive) as f64;
        (late as f64 / later.len() as f64, repairs / 40_000.0)
    };
    let (alone, _) = run_with(RepairMode::InTime);
    let (together, repairs) = run_with(RepairMode::Together);
    assert!(alone > 0.5, "{alone}");
    assert!(together < 0.02 && repairs < 0.25, "{together} {repairs}");
}
