//! What RDB does for the TCP of today, over many paths.

use std::time::Duration;

use sphinx_codes::svg::{Chart, Series, Style};

use super::{PORT, Run, Thin, conditions, csv, each, of};
use crate::{
    figures::{
        Check, Sheet, Studio, campaign,
        claim::Sample,
        curves::{
            dropped_percent, late_percent, loss_percent, p99_ms, packets_per_message, place, shown,
            wire_ratio,
        },
        paths::{seeds, show},
        sheet::markdown_table,
        sweep::{Sweep, View},
    },
    runner::ScenarioFailure,
};

const NAME: &str = "rdb-today";
const AT_ONCE: usize = 12;
/// Loss of packets with data.
const LOSSES: [(&str, &str); 6] = [
    (CLEAN, "0%"),
    ("0.1 %", "0.1%"),
    (SOME, "1%"),
    ("3 %", "3%"),
    ("10 %", "10%"),
    ("3 % in bursts of 3", "burst:3%,3"),
];
const CLEAN: &str = "none";
const SOME: &str = "1 %";
const RTTS_MS: [u64; 3] = [20, 100, 300];
const INTERVALS_MS: [u64; 2] = [30, 100];

pub(in crate::figures) const SCENARIOS: &[(&str, &str)] = &[scenario!("rdb-today-others")];

/// Who sends, congestion control, the agent, kernel parameters, and what it is compared with.
struct Variant {
    name: &'static str,
    congestion: &'static str,
    agent: Option<&'static str>,
    sysctl: Option<&'static str>,
    base: Option<&'static str>,
}

impl Variant {
    const fn new(name: &'static str, congestion: &'static str) -> Variant {
        Variant {
            name,
            congestion,
            agent: None,
            sysctl: None,
            base: None,
        }
    }

    const fn helped(self, agent: &'static str, base: &'static str) -> Variant {
        Variant {
            agent: Some(agent),
            base: Some(base),
            ..self
        }
    }
}

const CUBIC: &str = "cubic";
const BBR: &str = "bbr";
const AUTO: &str = "cubic, RDB auto";
const ALWAYS: &str = "cubic, RDB always";
const VARIANTS: [Variant; 7] = [
    Variant::new(CUBIC, CUBIC),
    Variant {
        sysctl: Some("net.ipv4.tcp_thin_linear_timeouts=1"),
        ..Variant::new("cubic, linear timeouts", CUBIC)
    },
    Variant::new(AUTO, CUBIC).helped("rdb", CUBIC),
    Variant::new(ALWAYS, CUBIC).helped("rdb:mode=paper", CUBIC),
    Variant::new("cubic, RDB as many as fit", CUBIC)
        .helped("rdb:mode=paper,max_packets=0,extra=1000%", CUBIC),
    Variant::new(BBR, BBR),
    Variant::new("bbr, RDB auto", BBR).helped("rdb", BBR),
];

const OTHERS: Sweep = Sweep {
    part: "others",
    title: "Beside QUIC and Sphinx itself",
    about: "One stream, a message of 100 bytes every 30 ms, RTT 100 ms: kernel TCP alone, QUIC (quinn) and `sphinx` by a stream, and Sphinx by datagrams. Late is \
            what comes more than 35 ms behind the path's own 50 ms. All bytes count that go over the link, handshakes and ends included.",
    x_label: "packet loss rate (%)",
    x: loss_percent,
    is_x_logarithmic: false,
    views: &[
        View::linear("messages late or dropped (%)", late_percent)
            .part("-late")
            .with_places(2),
        View::linear("messages dropped (%)", dropped_percent)
            .part("-dropped")
            .with_places(2),
        View::logarithmic("99th percentile (ms) of what came", p99_ms).part("-p99"),
        View::linear("IP bytes sent for a byte delivered", wire_ratio)
            .part("-bytes")
            .with_places(2),
        View::linear("packets sent for a message delivered", packets_per_message)
            .part("-packets")
            .with_places(2),
    ],
};

fn cell(loss: &str, rtt_ms: u64, interval_ms: u64) -> String {
    format!("{loss}, RTT {rtt_ms} ms, every {interval_ms} ms")
}

pub(super) fn cases(quick: bool, seeds: u64) -> Vec<Thin> {
    let mut cases = Vec::new();
    for seed in 1..=seeds {
        for (loss_name, loss) in LOSSES {
            for rtt_ms in RTTS_MS {
                for interval_ms in INTERVALS_MS {
                    // A corner of the table has to do where there is little time.
                    if quick && (loss != "10%" || rtt_ms != 100 || interval_ms != 30) {
                        continue;
                    }
                    cases.extend(VARIANTS.iter().map(|variant| {
                        Thin {
                            cell: cell(loss_name, rtt_ms, interval_ms),
                            variant: variant.name.to_owned(),
                            seed,
                            hop: format!(
                                "rate=100mbit queue=1000p rtt={rtt_ms}ms return.loss={loss}"
                            ),
                            // The same port with and without an agent: the link tells flows apart by it, and so loses the same packets of both.
                            groups: vec![format!(
                                "flows=10 bytes=100B interval={interval_ms}ms cc={} port={PORT}",
                                variant.congestion
                            )],
                            agent: variant.agent,
                            sysctl: variant.sysctl.into_iter().collect(),
                            time: Duration::from_secs(if quick { 3 } else { 10 }),
                            in_time_ms: rtt_ms as f64 / 2.0 + interval_ms as f64 + 5.0,
                        }
                    }));
                }
            }
        }
    }
    cases
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
        "RDB: thin streams over the TCP of today",
        &format!(
            "10 connections of this kernel's TCP with a message of 100 bytes each, by loss of packets with data, round trip and interval; 100 Mbit/s. *In time* is \
             what the receiving program has read half a round trip, an interval and 5 ms after it was due. What did not come within 5 s of the end took longer than all that did: then \
             a percentile is only known to be above what came. Cells without gain are in the tables too. {}",
            conditions(&runs, NAME, AT_ONCE)
        ),
    );
    for interval_ms in INTERVALS_MS {
        for rtt_ms in RTTS_MS {
            part(&runs, (rtt_ms, interval_ms), sheet);
        }
    }
    for variant in &VARIANTS {
        if let Some(base) = variant.base {
            sheet.check(worst(&runs, variant.name, base));
        }
    }
    auto(&runs, sheet);
    sheet.data("", &csv(&runs));
    OTHERS.draw(SCENARIOS[0], studio, sheet)
}

fn p99(runs: &[Run], cell: &str, variant: &str) -> Sample {
    each(runs, (cell, variant), |run| {
        run.groups.first()?.delivery(99)
    })
}

/// One round trip and one interval: a drawing, and tables by loss.
fn part(runs: &[Run], (rtt_ms, interval_ms): (u64, u64), sheet: &mut Sheet) {
    let title = format!("RTT {rtt_ms} ms, a message every {interval_ms} ms");
    sheet.paragraph(&format!("## {title}"));
    let series = VARIANTS.iter().map(|variant| {
        let mut series = Series::new(variant.name, Style::Line, Vec::new());
        for (index, percent) in [(1, 0.1), (2, 1.0), (3, 3.0), (4, 10.0)] {
            let cell = cell(LOSSES[index].0, rtt_ms, interval_ms);
            place(&mut series, percent, &p99(runs, &cell, variant.name));
        }
        series
    });
    let chart = Chart {
        title,
        x_label: "independent loss (%)".to_owned(),
        y_label: "99th percentile of delivery (ms)".to_owned(),
        is_x_logarithmic: true,
        is_y_logarithmic: true,
        series: series.collect(),
    };
    sheet.chart(&format!("r{rtt_ms}-i{interval_ms}"), &chart);
    let header = |what: &str| {
        let losses = LOSSES.iter().map(|(name, _)| (*name).to_owned());
        [what.to_owned()]
            .into_iter()
            .chain(losses)
            .collect::<Vec<_>>()
    };
    let rows = |pick: &dyn Fn(&str, &str) -> String| {
        let row = |variant: &Variant| {
            let cells = LOSSES
                .iter()
                .map(|(loss, _)| pick(&cell(loss, rtt_ms, interval_ms), variant.name));
            [variant.name.to_owned()].into_iter().chain(cells).collect()
        };
        VARIANTS.iter().map(row).collect::<Vec<_>>()
    };
    let delays = rows(&|cell, variant| shown(&p99(runs, cell, variant), 0));
    sheet.summary(
        &header(&format!("p99, ms; RTT {rtt_ms} ms, every {interval_ms} ms")),
        &delays,
    );
    let in_time = rows(&|cell, variant| {
        let share = of(runs, (cell, variant), |run| {
            Some(run.groups.first()?.in_time * 100.0)
        });
        show(share, 1)
    });
    sheet.paragraph(&markdown_table(&header("in time, %"), &in_time));
    let bytes = rows(&|cell, variant| {
        let bytes = of(runs, (cell, variant), |run| {
            let messages: u64 = run.groups.iter().map(|group| group.messages).sum();
            Some(run.bytes as f64 / messages.max(1) as f64)
        });
        show(bytes, 0)
    });
    sheet.paragraph(&markdown_table(
        &header("IP bytes sent for a message"),
        &bytes,
    ));
}

/// Copies only where something is lost cost nothing elsewhere, and hardly less is repaired.
fn auto(runs: &[Run], sheet: &mut Sheet) {
    let cells = |loss| {
        let paths = RTTS_MS
            .iter()
            .flat_map(|rtt_ms| INTERVALS_MS.map(|interval_ms| (*rtt_ms, interval_ms)));
        paths.map(move |(rtt_ms, interval_ms)| cell(loss, rtt_ms, interval_ms))
    };
    let copied = cells(CLEAN).map(|cell| {
        each(runs, (&cell, AUTO), |run| {
            let agent = run.agent?;
            Some(agent.copied_bytes as f64 / agent.data_bytes.max(1) as f64)
        })
    });
    sheet.check(Check::at_most(
        "auto, nothing lost: copies are at most 0.01 of the bytes",
        &Sample::fold(copied, f64::max),
        0.01,
        &Sample::Exactly(1.0),
    ));
    // Over all cells.
    let in_time = |variant: &str| {
        let shares = cells(SOME).map(|cell| {
            each(runs, (&cell, variant), |run| {
                Some(run.groups.first()?.in_time)
            })
        });
        Sample::fold(shares, |one, two| one + two)
    };
    let alone = in_time(CUBIC);
    let gain = |variant| in_time(variant).zip(&alone, |helped, alone| helped - alone);
    sheet.check(Check::at_least(
        "auto, 1 % lost: 0.9 of the messages that copies from the beginning bring in time",
        &gain(AUTO),
        0.9,
        &gain(ALWAYS),
    ));
}

/// Nowhere is the 99th percentile above 1.02 times that without help.
fn worst(runs: &[Run], variant: &str, base: &str) -> Check {
    let places = LOSSES.iter().flat_map(|(loss, _)| {
        RTTS_MS.iter().flat_map(move |rtt_ms| {
            INTERVALS_MS.map(|interval_ms| {
                let cell = cell(loss, *rtt_ms, interval_ms);
                let [helped, alone] = [variant, base].map(|who| p99(runs, &cell, who));
                (cell, helped, alone)
            })
        })
    });
    let claim = format!("{variant}: p99 is nowhere above 1.02 times that of {base}");
    Check::nowhere_above(&claim, 1.02, places)
}
