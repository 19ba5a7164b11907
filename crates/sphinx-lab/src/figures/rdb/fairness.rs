//! Thin streams beside greedy ones in a bottleneck: the experiment of RDB's figures 7 and 8.

use std::time::Duration;

use sphinx_codes::svg::Chart;

use super::{GroupRun, PORT, PORT_ALONE, Run, Thin, conditions, csv, distribution, each};
use crate::{
    figures::{
        Check, Sheet, Studio, campaign,
        claim::Sample,
        paths::{seeds, show},
    },
    runner::ScenarioFailure,
};

const CELL: &str = "5 Mbit/s, 75+75 ms";
const NAME: &str = "rdb-fairness";
const AT_ONCE: usize = 4;
const ONE_WAY_MS: f64 = 75.0;
/// A round trip's worth of full packets.
const QUEUE_PACKETS: u64 = 63;
const GREEDY: &str = "greedy";

const TCP: &str = "20 TCP";
const ONE: &str = "10 with one packet, 10 TCP";
/// Who is thin: the name, how many flows an agent helps, and the agent.
const VARIANTS: [(&str, usize, Option<&str>); 4] = [
    (TCP, 0, None),
    (
        "10 with as many as fit, 10 TCP",
        10,
        Some("rdb:mode=paper,max_packets=0,extra=1000%"),
    ),
    (ONE, 10, Some("rdb:mode=paper")),
    ("10 with auto, 10 TCP", 10, Some("rdb")),
];

pub(super) fn cases(quick: bool, seeds: u64) -> Vec<Thin> {
    let thin = |name: &str, flows, port| {
        let text = format!("name={name} flows={flows} bytes=100B interval=30ms port={port}");
        (flows > 0).then_some(text)
    };
    let case = |seed, (variant, helped, agent): (&str, usize, Option<&'static str>)| Thin {
        cell: CELL.to_owned(),
        variant: variant.to_owned(),
        seed,
        hop: format!("return.rate=5mbit return.queue={QUEUE_PACKETS}p rtt=150ms"),
        groups: [
            thin("helped", helped, PORT),
            thin("alone", 20 - helped, PORT_ALONE),
            Some(format!("name={GREEDY} greedy flows=5 port=7201")),
        ]
        .into_iter()
        .flatten()
        .collect(),
        agent,
        sysctl: Vec::new(),
        time: Duration::from_secs(if quick { 5 } else { 60 }),
        in_time_ms: 2.0 * ONE_WAY_MS + 35.0,
    };
    (1..=seeds)
        .flat_map(|seed| VARIANTS.iter().map(move |variant| case(seed, *variant)))
        .collect()
}

pub(in crate::figures) fn duration(studio: &Studio<'_>) -> Duration {
    super::duration(&cases(studio.quick, seeds(studio)), AT_ONCE)
}

pub(in crate::figures) fn draw(
    studio: &mut Studio<'_>,
    sheet: &mut Sheet,
) -> Result<bool, ScenarioFailure> {
    let cases = cases(studio.quick, seeds(studio));
    let Some(runs) = campaign::measure((NAME, cases), AT_ONCE, studio, sheet)? else {
        return Ok(false);
    };
    sheet.title(
        "RDB: thin streams beside greedy ones",
        &format!(
            "5 greedy connections and 20 thin ones (kernel TCP, CUBIC; a message of 100 bytes every 30 ms) from one host through 5 Mbit/s with room for \
             {QUEUE_PACKETS} packets, 75 ms each way. Nothing is lost but what the queue drops. `sphx pep run --agent rdb` helps ten of the thin ones. \
             *Queueing* is what packets took that were sent once, less the {ONE_WAY_MS:.0} ms of the path. {}",
            conditions(&runs, NAME, AT_ONCE)
        ),
    );
    let series = VARIANTS.iter().flat_map(|(variant, helped, _)| {
        groups(variant, *helped).into_iter().map(|(group, name)| {
            distribution(&runs, (CELL, variant, group), &name, |it| &it.delivery_ms)
        })
    });
    sheet.chart(
        "",
        &Chart {
            title: "Messages of the thin streams, from program to program".to_owned(),
            x_label: "ms".to_owned(),
            y_label: "share of messages (%)".to_owned(),
            is_x_logarithmic: true,
            is_y_logarithmic: false,
            series: series.collect(),
        },
    );
    table(&runs, sheet);
    sheet.paragraph(
        "Ten streams that repeat each message once send 0.27 Mbit/s more, a fifteenth of what the greedy ones have: that they keep 0.97 of it cannot be where copies \
         are sent all the time, and packets are lost here all the time. Nor does slowing down the senders change that, which have two or three packets in flight.",
    );
    sheet.paragraph("## Published numbers");
    sheet.published(&[
        [
            "as many as fit: queueing of all".to_owned(),
            "higher than without RDB".to_owned(),
            ratio(&runs, VARIANTS[1].0),
            "it is the copies: they take what the greedy ones lose".to_owned(),
        ],
        [
            "one packet: queueing of all".to_owned(),
            "as without RDB".to_owned(),
            ratio(&runs, ONE),
            "–".to_owned(),
        ],
    ]);
    checks(&runs, sheet);
    sheet.data("", &csv(&runs));
    Ok(true)
}

/// The thin groups of a variant and their names.
fn groups(variant: &str, helped: usize) -> Vec<(&'static str, String)> {
    match helped {
        0 => vec![("alone", variant.to_owned())],
        _ => vec![
            ("helped", format!("{variant}: those with RDB")),
            ("alone", format!("{variant}: those without")),
        ],
    }
}

/// The mean queueing of a group in ms.
fn queueings(runs: &[Run], variant: &str, group: &str) -> Sample {
    numbers(runs, variant, group, |it| {
        Some(it.transit_ms.mean - ONE_WAY_MS)
    })
}

fn queueing(runs: &[Run], variant: &str, group: &str) -> Option<f64> {
    queueings(runs, variant, group).median()
}

fn numbers(runs: &[Run], variant: &str, group: &str, pick: fn(&GroupRun) -> Option<f64>) -> Sample {
    each(runs, (CELL, variant), |run| pick(run.group(group)?))
}

fn number(
    runs: &[Run],
    variant: &str,
    group: &str,
    pick: fn(&GroupRun) -> Option<f64>,
) -> Option<f64> {
    numbers(runs, variant, group, pick).median()
}

fn ratio(runs: &[Run], variant: &str) -> String {
    let of = |variant| queueing(runs, variant, GREEDY);
    let ratio = of(variant)
        .zip(of(TCP))
        .map(|(with, without)| with / without);
    show(ratio, 2) + " times"
}

fn table(runs: &[Run], sheet: &mut Sheet) {
    let header = [
        "",
        "delivery p50, ms",
        "p90",
        "p99",
        "queueing of greedy packets, ms",
        "of packets of thin streams without RDB",
        "greedy, Mbit/s",
    ];
    let mut rows = Vec::new();
    for (variant, helped, _) in VARIANTS {
        for (group, name) in groups(variant, helped) {
            rows.push(vec![
                name,
                show(
                    number(runs, variant, group, |it| it.delivery_ms.percentile(50)),
                    0,
                ),
                show(
                    number(runs, variant, group, |it| it.delivery_ms.percentile(90)),
                    0,
                ),
                show(
                    number(runs, variant, group, |it| it.delivery_ms.percentile(99)),
                    0,
                ),
                show(queueing(runs, variant, GREEDY), 1),
                show(queueing(runs, variant, "alone"), 1),
                show(
                    number(runs, variant, GREEDY, |it| Some(it.goodput_mbit_s)),
                    3,
                ),
            ]);
        }
    }
    sheet.summary(&header.map(str::to_owned), &rows);
}

fn checks(runs: &[Run], sheet: &mut Sheet) {
    for (group, others) in [(GREEDY, "greedy ones"), ("alone", "thin ones without RDB")] {
        sheet.check(Check::at_most(
            &format!(
                "one packet: the queueing of the {others} is at most 1.05 times that beside 20 TCP"
            ),
            &queueings(runs, ONE, group),
            1.05,
            &queueings(runs, TCP, group),
        ));
    }
    let goodput = |variant| numbers(runs, variant, GREEDY, |it| Some(it.goodput_mbit_s));
    sheet.check(Check::at_least(
        "one packet: the greedy ones keep 0.97 of their goodput",
        &goodput(ONE),
        0.97,
        &goodput(TCP),
    ));
}
