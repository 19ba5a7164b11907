//! Figure 10: completion time of blocks against loss.

use sphinx_codes::svg::Chart;

use super::{
    Check, Sheet, Studio,
    claim::Sample,
    curves::{
        Pick, back_ratio, caveat, csv, curves, goodput as goodput_of, loss_percent, mean_ms,
        p99_ms, sample, table, wire_ratio,
    },
    goodput,
    sheet::Sentence,
    virtual_time::{self, Shown},
};
use crate::{Cell, runner::ScenarioFailure};

pub(super) const SCENARIOS: &[(&str, &str)] = &[
    ("fig10", include_str!("../../scenarios/fig10.toml")),
    (
        "fig10-virtual",
        include_str!("../../scenarios/fig10-virtual.toml"),
    ),
];

const SIX: &str = "blocks-r10-l6";

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(results) = studio.run(SCENARIOS[0])? else {
        return Ok(false);
    };
    sheet.title(
        "Figure 10: completion time of blocks against packet loss",
        &format!(
            "A block of 100 kB every 40 ms over 200 Mbit/s, RTT 10 ms; from the moment it is due to \
             complete reception, one way. The floor is 9.2 ms: 5 ms of delay and 4.1 ms on the wire. \
             A transport that cannot carry 20 Mbit/s only shows its backlog. Dots are runs. {}",
            caveat([&results])
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
        );
        let column = |cell: &Cell| format!("{} %", loss_percent(cell));
        let (mut header, rows) = table(&results, &column, 1, pick);
        header[0] = format!("{part}, ms");
        sheet.summary(&header, &rows);
    }
    let column = |cell: &Cell| format!("{} %", loss_percent(cell));
    let (mut header, rows) = table(&results, &column, 3, wire_ratio);
    header[0] = "IP bytes sent for a byte delivered".to_owned();
    sheet.summary(&header, &rows);
    let (mut header, rows) = table(&results, &column, 3, back_ratio);
    header[0] = "IP bytes sent back for a byte delivered".to_owned();
    sheet.summary(&header, &rows);
    sheet.data("", &csv(&results));
    let value = |name, pick| sample(&results, SIX, name, pick);
    // The interval between blocks of 100 kB where they follow each other as fast as they can, in ms.
    let fig9 = studio.recalled(goodput::SCENARIOS[0])?;
    let interval = |name: &str| {
        let goodput = match &fig9 {
            Some(results) => sample(results, "r10-l6", name, goodput_of),
            None => Sample::fold([], f64::max),
        };
        goodput.map(|megabits| 0.8 / megabits * 1e3)
    };
    if let Some(results) = &fig9 {
        for name in ["sphinx-paper", "sphinx-workers", "tcp-cubic"] {
            if let Some((cell, group)) = results.group("r10-l6", name) {
                sheet.note_group(cell, group);
            }
        }
    }
    sheet.paragraph(
        "The published 4 ms are less than half of the round trip, so the paper's APUCT is most likely \
         time divided by blocks, the interval between completions under full load (from the goodput of figure 9), and not the \
         latency of a block, which is here. At 6 % loss:",
    );
    let exactly = Sample::Exactly;
    let sentence = |about, published, check, remark| Sentence {
        about,
        published,
        check: Some(check),
        remark,
    };
    let longer = |left: Sample, right: Sample| Check::at_least("", &left, 1.0, &right);
    sheet.sentences(&[
        sentence(
            "interval with workers: at most a tenth above 4 ms",
            "about 4 ms",
            Check::at_most("", &interval("sphinx-workers"), 1.0, &exactly(4.4)),
            "the rate of the paper's link is not told; at 200 Mbit/s no interval is shorter than 4 ms / (1 − p)",
        ),
        sentence(
            "TCP: interval above 100 ms",
            "more than 100 ms",
            longer(interval("tcp-cubic"), exactly(100.0)),
            "CUBIC, as in the paper",
        ),
        sentence(
            "TCP: mean latency above 100 ms",
            "more than 100 ms",
            longer(value("tcp-cubic", mean_ms), exactly(100.0)),
            "that of a backlog, which grows as long as the run lasts",
        ),
        sentence(
            "latency without ICM against with",
            "ICM shortens it",
            longer(value("sphinx-no-icm", mean_ms), value("sphinx-paper", mean_ms)),
            "a block each 40 ms: when a Symbol-SACK is on a third block, the first was due 80 ms before",
        ),
        sentence(
            "latency of traditional LT against semi-random LT",
            "longer",
            longer(value("sphinx-lt", mean_ms), value("sphinx-paper", mean_ms)),
            "both as the paper has them: many blocks need another round",
        ),
        sentence(
            "latency of Reed–Solomon against semi-random LT",
            "longer",
            longer(value("sphinx-rs", mean_ms), value("sphinx-paper", mean_ms)),
            "a fixed share of 14 %, which hardly any block exceeds",
        ),
        sentence(
            "latency of TCP BBR against what you get without options",
            "–",
            longer(value("tcp-bbr", mean_ms), value("sphinx", mean_ms)),
            "not in the paper",
        ),
    ]);
    let shown = Shown {
        scenario: SCENARIOS[1],
        title: "Figure 10 continued: blocks up to 10 Gbit/s",
        about: "A block of 100 kB every 40 ms, 20 Mbit/s on every link. The floor is 5 ms of delay and the time on \
                the wire: 4.2 ms at 200 Mbit/s, 0.1 ms at 10 Gbit/s. Above it there is pacing, as 20 Mbit/s never show \
                rate control the whole of a fast link.",
        values: &[
            ("mean completion time (ms)", mean_ms),
            ("99th percentile (ms)", p99_ms),
        ],
        places: 1,
    };
    let Some(virtual_time) = virtual_time::draw(studio, sheet, &shown, &results)? else {
        return Ok(false);
    };
    let simulated = |name| sample(&virtual_time, "blocks-200m-r10-l6", name, mean_ms);
    sheet.check(Check::at_least(
        "in virtual time at 6 % loss, blocks with the paper's code take at least 1.3 times as long as with ours",
        &simulated("sphinx-srlt"),
        1.3,
        &simulated("sphinx"),
    ));
    sheet.check(Check::at_least(
        "at 6 % loss, blocks over TCP CUBIC take at least 10 times as long as over Sphinx",
        &value("tcp-cubic", mean_ms),
        10.0,
        &value("sphinx", mean_ms),
    ));
    // In a hurry there are too few blocks for that: what BBR takes varies by half.
    if !studio.quick {
        sheet.check(Check::at_least(
            "at 6 % loss, blocks over TCP BBR take at least 1.5 times as long as over Sphinx",
            &value("tcp-bbr", mean_ms),
            1.5,
            &value("sphinx", mean_ms),
        ));
    }
    Ok(true)
}
