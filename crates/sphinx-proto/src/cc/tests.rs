//! Properties of the controllers over the test link.

use super::testlink::{App, Link, Report, World, mbit};
use super::{CcKind, CcParams, MS, Nanos, SEC, build};

/// Length of the runs of the table.
const SECONDS: u64 = 20;

fn bbr() -> Box<dyn super::RateControl> {
    build(CcKind::Bbr, CcParams::default())
}

fn saturate(link: Link, seconds: u64) -> Report {
    World::new(link)
        .add(bbr(), App::Saturating, 0)
        .run(seconds * SEC)
        .remove(0)
}

/// A row per link: utilisation, drops, queue, start-up.
#[test]
#[ignore = "prints a table"]
fn table() {
    println!("rate  rtt   loss |  util   drops  queue/BDP  lost capacity at start (RTT)");
    for (rate, rtt) in [
        (200.0, 10),
        (200.0, 100),
        (20.0, 50),
        (2.0, 50),
        (200.0, 600),
        (1000.0, 10),
    ] {
        for loss in [0.0, 0.001, 0.01, 0.06, 0.1, 0.2, 0.3] {
            row(
                &format!("{rate:5} {rtt:4} {loss:5.3}"),
                Link::new(rate, rtt, loss),
            );
        }
    }
    row(
        "1/4 BDP queue 6 %",
        Link {
            queue_bytes: 62_500.0,
            ..Link::new(200.0, 10, 0.06)
        },
    );
    row(
        "1/10 BDP queue 0 %",
        Link {
            queue_bytes: 25_000.0,
            ..Link::new(200.0, 10, 0.0)
        },
    );
    row(
        "1/10 BDP queue 6 %",
        Link {
            queue_bytes: 25_000.0,
            ..Link::new(200.0, 10, 0.06)
        },
    );
    row(
        "4 BDP queue 6 %",
        Link {
            queue_bytes: 1e6,
            ..Link::new(200.0, 10, 0.06)
        },
    );
    row(
        "sack loss 30 %",
        Link {
            sack_loss: 0.3,
            ..Link::new(200.0, 80, 0.03)
        },
    );
    row(
        "bursts 5x8",
        Link {
            burst: 8.0,
            ..Link::new(200.0, 50, 0.05)
        },
    );
    row(
        "bursts 5x40",
        Link {
            burst: 40.0,
            ..Link::new(200.0, 50, 0.05)
        },
    );
    row(
        "jitter 2 ms",
        Link {
            jitter: 2 * MS,
            ..Link::new(200.0, 20, 0.02)
        },
    );
    row(
        "CE at 1/4 BDP",
        Link {
            ce_threshold: Some(62_500.0),
            ..Link::new(200.0, 10, 0.01)
        },
    );
    row(
        "CE at 1/10 BDP",
        Link {
            ce_threshold: Some(25_000.0),
            ..Link::new(200.0, 10, 0.01)
        },
    );
    row(
        "RTT 20->60",
        Link {
            rtt_step: Some((3 * SEC, 60 * MS)),
            ..Link::new(200.0, 20, 0.01)
        },
    );
    for loss in [0.0, 0.01, 0.06, 0.2] {
        for (bucket, rtt) in [(15_000.0, 10), (60_000.0, 10), (60_000.0, 50)] {
            let policer = Some((mbit(100.0), bucket));
            let link = Link {
                policer,
                ..Link::new(1000.0, rtt, loss)
            };
            row(&format!("policer {loss} {bucket} rtt {rtt}"), link);
        }
    }
}

fn row(name: &str, link: Link) {
    let rate = link.policer.map_or(link.rates[0].1, |p| p.0);
    let rtt = link.rtt;
    let r = saturate(link, SECONDS);
    let from = (20 * rtt).max(SEC);
    let bdp = rate * rtt as f64 / SEC as f64;
    let start = 20 * rtt;
    let missing = (rate - r.rate(0, start)) * start as f64 / SEC as f64 / bdp;
    println!(
        "{name:24} | {:6.3} {:6.3}% {:6.2} {:6.2}  startup drops {:5.2}% total {:5.2}% {:?}",
        r.rate(from, SECONDS * SEC) / rate,
        100.0 * r.drops(from, SECONDS * SEC),
        r.mean_queue(from, SECONDS * SEC) / bdp,
        missing,
        100.0 * r.drops(0, start),
        100.0 * r.dropped as f64 / r.sent as f64,
        r.phases,
    );
}

#[test]
#[ignore = "trace"]
fn trace() {
    let v: Vec<f64> = std::env::var("CC")
        .unwrap()
        .split(',')
        .map(|x| x.parse().unwrap())
        .collect();
    let mut link = Link::new(v[0], v[1] as u64, v[2]);
    match std::env::var("K").as_deref() {
        Ok("policer") => link.policer = Some((mbit(v[4]), v[5])),
        Ok("ce") => link.ce_threshold = Some(v[4]),
        Ok("jitter") => link.jitter = v[4] as u64 * MS,
        Ok("queue") => link.queue_bytes = v[4],
        Ok("steps") => link.rates = vec![(0, mbit(v[0])), (SEC, mbit(v[4])), (2 * SEC, mbit(v[0]))],
        Ok("blackout") => link.blackout = Some((SEC, 6 * SEC)),
        Ok("burst") => link.burst = v[4],
        Ok("rtt") => link.rtt_step = Some((3 * SEC, v[4] as u64 * MS)),
        _ => {}
    }
    let app = if std::env::var_os("BLOCKS").is_some() {
        App::Blocks {
            bytes: 100_000,
            every: 40 * MS,
        }
    } else {
        App::Saturating
    };
    let r = World::new(link).add(bbr(), app, 0).run((v[3] * 1e9) as u64);
    println!("{} dropped of {}", r[0].dropped, r[0].sent);
}
