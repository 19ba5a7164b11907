//! Thin streams over a path that loses every tenth packet: the experiment of RDB's figure 6, on the TCP of today.

use std::time::Duration;

use sphinx_codes::svg::Chart;

use super::{PORT, PORT_ALONE, Run, Spread, Thin, conditions, csv, distribution, each, of};
use crate::{
    figures::{
        Check, Sheet, Studio, campaign,
        claim::Sample,
        paths::{seeds, show},
        sheet::markdown_table,
    },
    runner::ScenarioFailure,
};

const CELL: &str = "10 %, 75+75 ms";
const ONE_WAY_MS: f64 = 75.0;
const IN_TIME_MS: f64 = ONE_WAY_MS + 35.0;
const AT_ONCE: usize = 4;
const NAME: &str = "rdb-loss";

/// Who sends: the name, how many flows an agent helps, the agent, and kernel parameters.
const VARIANTS: [Variant; 8] = [
    Variant::new("TCP", 0, None),
    Variant::new(
        "10 with SPIFL 3, 10 TCP",
        10,
        Some("rdb:mode=paper,thin=spifl:3"),
    ),
    Variant::new(
        "10 with SPIFL 7, 10 TCP",
        10,
        Some("rdb:mode=paper,thin=spifl:7"),
    ),
    Variant::new(ONE, 20, Some("rdb:mode=paper")),
    Variant::new(ALL, 20, Some("rdb:mode=paper,max_packets=0,extra=1000%")),
    Variant::new(AUTO, 20, Some("rdb")),
    Variant::new("one packet, ECN", 20, Some("rdb:mode=paper")).with_ecn(),
    Variant::new(
        "one packet, no response",
        20,
        Some("rdb:mode=paper,response=none"),
    ),
];
const TCP: &str = "TCP";
const ONE: &str = "one packet";
const ALL: &str = "as many as fit";
const AUTO: &str = "auto";

struct Variant {
    name: &'static str,
    helped: usize,
    agent: Option<&'static str>,
    sysctl: &'static [&'static str],
}

impl Variant {
    const fn new(name: &'static str, helped: usize, agent: Option<&'static str>) -> Variant {
        Variant {
            name,
            helped,
            agent,
            sysctl: &[],
        }
    }

    const fn with_ecn(self) -> Variant {
        Variant {
            sysctl: &["net.ipv4.tcp_ecn=1"],
            ..self
        }
    }
}

pub(super) fn cases(quick: bool, seeds: u64) -> Vec<Thin> {
    let group = |name: &str, flows, port| {
        let text = format!("name={name} flows={flows} bytes=100B interval=30ms port={port}");
        (flows > 0).then_some(text)
    };
    let case = |seed, variant: &Variant| Thin {
        cell: CELL.to_owned(),
        variant: variant.name.to_owned(),
        seed,
        hop: "rate=100mbit queue=1000p rtt=150ms return.loss=10%".to_owned(),
        groups: [
            group("helped", variant.helped, PORT),
            group("alone", 20 - variant.helped, PORT_ALONE),
        ]
        .into_iter()
        .flatten()
        .collect(),
        agent: variant.agent,
        sysctl: variant.sysctl.to_vec(),
        time: Duration::from_secs(if quick { 3 } else { 30 }),
        in_time_ms: IN_TIME_MS,
    };
    (1..=seeds)
        .flat_map(|seed| VARIANTS.iter().map(move |variant| case(seed, variant)))
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
        "RDB: thin streams over a path that loses every tenth packet",
        &format!(
            "20 connections (kernel TCP, CUBIC at both ends), a message of 100 bytes every 30 ms in each, 75 ms each way, 100 Mbit/s; of the packets \
             with data every tenth is lost, of acknowledgements none. `sphx pep run --agent rdb` runs on the sending host. *In time* is what the \
             receiving program has read {IN_TIME_MS:.0} ms after it was due: {ONE_WAY_MS:.0} ms of the path, one interval, and 5 ms. {}",
            conditions(&runs, NAME, AT_ONCE)
        ),
    );
    for (part, title, pick) in [
        (
            "ack",
            "From the first transmission to the acknowledgement",
            (|it| &it.ack_ms) as fn(&super::GroupRun) -> &Spread,
        ),
        (
            "one-way",
            "From the first transmission to the first arrival",
            |it| &it.one_way_ms,
        ),
        (
            "delivery",
            "From the program that sends to the one that receives",
            |it| &it.delivery_ms,
        ),
    ] {
        let series = VARIANTS.iter().flat_map(|variant| {
            groups(variant)
                .into_iter()
                .map(|(group, name)| distribution(&runs, (CELL, variant.name, group), &name, pick))
        });
        let chart = Chart {
            title: title.to_owned(),
            x_label: "ms".to_owned(),
            y_label: "share of messages (%)".to_owned(),
            is_x_logarithmic: true,
            is_y_logarithmic: false,
            series: series.collect(),
        };
        sheet.chart(part, &chart);
    }
    table(&runs, sheet);
    agents(&runs, sheet);
    published(&runs, sheet);
    checks(&runs, sheet);
    sheet.data("", &csv(&runs));
    Ok(true)
}

/// The groups of a variant and their names.
fn groups(variant: &Variant) -> Vec<(&'static str, String)> {
    let name = variant.name;
    match variant.helped {
        0 => vec![("alone", name.to_owned())],
        20 => vec![("helped", name.to_owned())],
        _ => vec![
            ("helped", format!("{name}: those with RDB")),
            ("alone", format!("{name}: those without")),
        ],
    }
}

fn table(runs: &[Run], sheet: &mut Sheet) {
    let header = [
        "",
        "in time, %",
        "delivery p50, ms",
        "p90",
        "p99",
        "p99.9",
        "one way p99",
        "acknowledged within 155 ms, %",
        "acknowledged p99, ms",
    ];
    let mut rows = Vec::new();
    for variant in &VARIANTS {
        for (group, name) in groups(variant) {
            let number = |pick: &dyn Fn(&super::GroupRun) -> Option<f64>| {
                of(runs, (CELL, variant.name), |run| pick(run.group(group)?))
            };
            rows.push(vec![
                name,
                show(number(&|it| Some(it.in_time * 100.0)), 1),
                show(number(&|it| it.delivery_ms.percentile(50)), 0),
                show(number(&|it| it.delivery_ms.percentile(90)), 0),
                show(number(&|it| it.delivery_ms.percentile(99)), 0),
                show(number(&|it| Some(it.delivery_ms.p999)), 0),
                show(number(&|it| it.one_way_ms.percentile(99)), 0),
                show(number(&|it| Some(share_within(&it.ack_ms, 155.0))), 0),
                show(number(&|it| it.ack_ms.percentile(99)), 0),
            ]);
        }
    }
    sheet.summary(&header.map(str::to_owned), &rows);
}

/// Share of the messages that took at most `ms`, in percent.
fn share_within(spread: &Spread, ms: f64) -> f64 {
    let within = spread.percentiles.iter().filter(|it| **it <= ms).count();
    within.saturating_sub(1) as f64
}

fn agents(runs: &[Run], sheet: &mut Sheet) {
    let header = [
        "",
        "packets",
        "MB",
        "sent again by the kernel",
        "packets with copies",
        "copied bytes, %",
        "losses repaired",
        "unknown",
    ];
    let rows = VARIANTS.iter().map(|variant| {
        let number = |pick: &dyn Fn(&Run) -> Option<f64>| of(runs, (CELL, variant.name), pick);
        vec![
            variant.name.to_owned(),
            show(number(&|run| Some(run.packets as f64)), 0),
            show(number(&|run| Some(run.bytes as f64 / 1e6)), 2),
            show(number(&|run| Some(run.segments_again as f64)), 0),
            show(number(&|run| Some(run.agent?.bundled as f64)), 0),
            show(
                number(&|run| {
                    let agent = run.agent?;
                    Some(agent.copied_bytes as f64 / agent.data_bytes.max(1) as f64 * 100.0)
                }),
                0,
            ),
            show(number(&|run| Some(run.agent?.losses_repaired as f64)), 0),
            show(number(&|run| Some(run.agent?.losses_unknown as f64)), 0),
        ]
    });
    sheet.paragraph("## What it costs");
    sheet.paragraph(
        "The agent adds no packets. But a connection that waits for a repair gathers its messages in fewer, longer packets, and with RDB it seldom waits: \
         its kernel then sends each message by itself.",
    );
    sheet.paragraph(&markdown_table(
        &header.map(str::to_owned),
        &rows.collect::<Vec<_>>(),
    ));
}

fn published(runs: &[Run], sheet: &mut Sheet) {
    let late = |variant, group: &'static str| {
        of(runs, (CELL, variant), |run| {
            Some(share_within(&run.group(group)?.ack_ms, 155.0))
        })
    };
    sheet.paragraph("## Published numbers");
    sheet.published(&[
        row(
            "TCP: acknowledged more than a round trip after they were sent",
            "almost 60 %",
            show(late(TCP, "alone").map(|it| 100.0 - it), 0) + " %",
            "a kernel of 2010 to 2015, without RACK and TLP; ours counts from 155 ms on",
        ),
        row(
            "RDB, limit 7: acknowledged without delay",
            "90 %",
            show(late("10 with SPIFL 7, 10 TCP", "helped"), 0) + " %",
            "how many packets a bundle had there is not told; here one",
        ),
    ]);
}

fn row(what: &str, published: &str, ours: String, why: &str) -> [String; 4] {
    [what.to_owned(), published.to_owned(), ours, why.to_owned()]
}

fn checks(runs: &[Run], sheet: &mut Sheet) {
    let in_time = |variant| {
        each(runs, (CELL, variant), |run| {
            Some(run.group("helped")?.in_time)
        })
    };
    let one = &Sample::Exactly(1.0);
    sheet.check(Check::at_least(
        "one packet: 0.90 of the messages are in time",
        &in_time(ONE),
        0.9,
        one,
    ));
    sheet.check(Check::at_least(
        "as many as fit: 0.98 of the messages are in time",
        &in_time(ALL),
        0.98,
        one,
    ));
    let alone = each(runs, (CELL, TCP), |run| Some(run.group("alone")?.in_time));
    sheet.check(Check::at_least(
        "one packet: 1.3 times as many are in time as with TCP alone",
        &in_time(ONE),
        1.3,
        &alone,
    ));
    let p99 = each(runs, (CELL, ALL), |run| run.group("helped")?.delivery(99));
    sheet.check(Check::at_most(
        "as many as fit: p99 is at most the way and 70 ms",
        &p99,
        1.0,
        &Sample::Exactly(ONE_WAY_MS + 70.0),
    ));
    for variant in [ONE, ALL, AUTO] {
        let claim = format!(
            "{variant}: no packet leaves the host that its kernel's TCP has not sent, but for a few of IPv6"
        );
        let sent = each(runs, (CELL, variant), |run| Some(run.segments_sent as f64));
        let left = each(runs, (CELL, variant), |run| Some(run.packets as f64));
        sheet.check(Check::at_most(&claim, &left, 1.001, &sent));
    }
    let gain = |variant| in_time(variant).zip(&alone, |helped, alone| helped - alone);
    sheet.check(Check::at_least(
        "auto: 0.9 of the gain of copies from the beginning",
        &gain(AUTO),
        0.9,
        &gain(ONE),
    ));
}
