//! Figure 10: completion time of blocks against loss.

use sphinx_codes::svg::Chart;

use super::{
    Check, Sheet, Studio,
    curves::{Pick, caveat, csv, curves, loss_percent, mean_ms, of, p99_ms, table},
    virtual_time::{self, Shown},
};
use crate::{Cell, report::runs_on_file, runner::ScenarioFailure, stats::median};

pub(super) const SCENARIOS: &[(&str, &str)] = &[
    ("fig10", include_str!("../../scenarios/fig10.toml")),
    (
        "fig10-virtual",
        include_str!("../../scenarios/fig10-virtual.toml"),
    ),
];

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(results) = studio.run(SCENARIOS[0])? else {
        return Ok(false);
    };
    sheet.title(
        "Figure 10: completion time of blocks against packet loss",
        &format!(
            "A block of 100 kB every 40 ms over 200 Mbit/s, RTT 10 ms; from the moment it is due to \
             complete reception, one way. The floor is 9.2 ms: 5 ms of delay and 4.1 ms on the wire. \
             A transport that cannot carry 20 Mbit/s (CUBIC from 1 % on) only shows its backlog. {}",
            caveat(&results)
        ),
    );
    sheet.note(&results);
    let parts: [(&str, &str, Pick); 2] = [
        ("mean", "mean", mean_ms),
        ("p99", "99th percentile", p99_ms),
    ];
    for (part, title, pick) in parts {
        sheet.chart(
            part,
            &Chart {
                title: format!("Figure 10: completion time of 100 kB, {title}"),
                x_label: "packet loss rate (%)".to_owned(),
                y_label: "milliseconds".to_owned(),
                is_x_logarithmic: false,
                is_y_logarithmic: true,
                series: curves(&results, &loss_percent, pick),
            },
        )?;
        let column = |cell: &Cell| format!("{} %", loss_percent(cell));
        let (mut header, rows) = table(&results, &column, 1, pick);
        header[0] = format!("{part}, ms");
        sheet.summary(&header, &rows);
    }
    sheet.data("", &csv(&results))?;
    let value = |name, pick| of(&results, "blocks-r10-l6", name, pick);
    let show =
        |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.1} ms"));
    let fig9 = runs_on_file(&studio.directory.join("fig9.ndjson"));
    let interval = |contestant: &str| {
        let runs = fig9
            .iter()
            .filter(|run| run.cell == "r10-l6" && run.contestant == contestant);
        let goodput = median(runs.map(|run| run.goodput_mbit_s))?;
        Some(0.8 / goodput * 1e3)
    };
    let both = |name| {
        format!(
            "{} mean latency; {} interval",
            show(value(name, mean_ms)),
            show(interval(name))
        )
    };
    sheet.paragraph(
        "The published 4 ms are less than half of the round trip, so the paper's APUCT is most likely \
         time divided by blocks, the interval between completions under full load, and not the \
         latency of a block. Both at 6 % loss (the interval from the goodput of figure 9):",
    );
    sheet.published(&[
        [
            "Sphinx".into(),
            "about 4 ms (with workers)".into(),
            both("sphinx"),
            "the interval is that of a link of 200 Mbit/s; the paper does not tell its rate".into(),
        ],
        [
            "Sphinx, the paper's code".into(),
            "–".into(),
            both("sphinx-paper"),
            "half of the blocks need a second round at T = 0.5".into(),
        ],
        [
            "TCP".into(),
            "more than 100 ms".into(),
            both("tcp-cubic"),
            "CUBIC, as in the paper; its latency is that of a growing backlog".into(),
        ],
        [
            "TCP BBR".into(),
            "–".into(),
            both("tcp-bbr"),
            "not in the paper: the interval does not tell it from Sphinx, the latency does".into(),
        ],
    ]);
    let shown = Shown {
        scenario: SCENARIOS[1],
        title: "Figure 10 continued: blocks up to 10 Gbit/s",
        about: "A block of 100 kB every 40 ms, 20 Mbit/s on every link. The floor is 5 ms of delay and the time on \
                the wire: 4.2 ms at 200 Mbit/s, 0.1 ms at 10 Gbit/s. What is above it is pacing: 20 Mbit/s never show \
                rate control the whole of a fast link.",
        values: &[
            ("mean completion time (ms)", mean_ms),
            ("99th percentile (ms)", p99_ms),
        ],
        places: 1,
    };
    if virtual_time::draw(studio, sheet, &shown, &results)?.is_none() {
        return Ok(false);
    }
    sheet.check(Check::at_least(
        "at 6 % loss, blocks over TCP CUBIC take at least 10 times as long as over Sphinx",
        value("tcp-cubic", mean_ms),
        10.0,
        value("sphinx", mean_ms),
    ));
    sheet.check(Check::at_least(
        "at 6 % loss, blocks over TCP BBR take at least 1.5 times as long as over Sphinx",
        value("tcp-bbr", mean_ms),
        1.5,
        value("sphinx", mean_ms),
    ));
    Ok(true)
}
