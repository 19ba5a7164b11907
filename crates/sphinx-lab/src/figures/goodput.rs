//! Figure 9: goodput against loss.

use sphinx_codes::svg::{Chart, Series, Style};

use super::{
    Check, Sheet, Studio,
    curves::{self, caveat, csv, curves, loss_percent, of, table},
    virtual_time::{self, Shown},
};
use crate::{Cell, runner::ScenarioFailure};

pub(super) const SCENARIOS: &[(&str, &str)] = &[
    ("fig9", include_str!("../../scenarios/fig9.toml")),
    (
        "fig9-virtual",
        include_str!("../../scenarios/fig9-virtual.toml"),
    ),
];

/// Payload of a full TCP packet over its IP bytes.
const TCP_PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(results) = studio.run(SCENARIOS[0])? else {
        return Ok(false);
    };
    sheet.title(
        "Figure 9: goodput against packet loss",
        &format!(
            "A file as fast as possible over 200 Mbit/s, RTT 10 ms, random loss; median over the \
             seeds, bars are 95 % intervals. `sphinx` is what you get without options, the others \
             with a name in two parts are the paper's variants. {}",
            caveat(&results)
        ),
    );
    sheet.note(&results);
    let mut series = curves(&results, &loss_percent, curves::goodput);
    let cells = results.cells.iter().map(|(cell, _)| cell);
    let bound = |cell: &Cell| {
        let rate = cell.link.rate as f64 / 1e6 * TCP_PAYLOAD_SHARE;
        (loss_percent(cell), rate * (1.0 - cell.link.forward_loss()))
    };
    series.push(Series::new(
        "what TCP could carry",
        Style::Dashes,
        cells.map(bound).collect(),
    ));
    sheet.chart(
        "goodput",
        &Chart {
            title: "Figure 9: goodput at RTT 10 ms".to_owned(),
            x_label: "packet loss rate (%)".to_owned(),
            y_label: "goodput (Mbit/s)".to_owned(),
            is_x_logarithmic: false,
            is_y_logarithmic: false,
            series,
        },
    )?;
    sheet.data("goodput", &csv(&results))?;
    let column = |cell: &Cell| format!("{} %", loss_percent(cell));
    let (header, rows) = table(&results, &column, 1, curves::goodput);
    sheet.paragraph(
        "Mbit/s by loss rate; times 125 these are packets of 1000 bytes per second after decoding, \
         the paper's unit (the CSV file has both).",
    );
    sheet.summary(&header, &rows);
    let value = |cell: &str, name: &str| of(&results, cell, name, curves::goodput);
    let show = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.1}"));
    let at = |cell: &str, names: [&str; 2]| {
        let [one, two] = names.map(|name| show(value(cell, name)));
        format!("{one} against {two}")
    };
    sheet.published(&[
        [
            "no loss".into(),
            "TCP is best".into(),
            at("r10-l0", ["tcp-cubic", "sphinx"]),
            "TCP has smaller headers and no seal; the difference is small".into(),
        ],
        [
            "with loss".into(),
            "all coded schemes ahead of TCP".into(),
            at("r10-l6", ["sphinx-paper", "tcp-cubic"]),
            "at 6 %: against CUBIC as published. BBR, which the paper does not compare with, is \
             ahead of the paper's code, as that spends more on redundancy"
                .into(),
        ],
        [
            "ICM".into(),
            "adds goodput".into(),
            at("r10-l6", ["sphinx-paper", "sphinx-no-icm"]),
            "at 6 %: in a bulk transfer later data keeps the link full while losses are repaired \
             late, so that it shows in latency (figure 10) and not in goodput"
                .into(),
        ],
        [
            "our default".into(),
            "–".into(),
            at("r10-l6", ["sphinx", "tcp-bbr"]),
            "at 6 %: repairs only what was lost".into(),
        ],
    ]);
    let shown = Shown {
        scenario: SCENARIOS[1],
        title: "Figure 9 continued: goodput up to 10 Gbit/s",
        about: "What a link carries in two seconds (with `--quick` 0.8 s), RTT 10 ms. What is missing to 1 is \
                headers (4.5 %), and start-up, which takes longer the more the rate has to grow. At 10 Gbit/s \
                a third part comes in with loss: a session's window of 24 MiB, two bandwidth-delay products, \
                is too small to go on while losses are repaired. `sphinx-srlt` is the paper's code and \
                compensation under our rate control.",
        values: &[("goodput / (rate × (1 − loss))", curves::share)],
        places: 3,
    };
    let Some(virtual_time) = virtual_time::draw(studio, sheet, &shown, &results)? else {
        return Ok(false);
    };
    let share = |cell: &str| of(&virtual_time, cell, "sphinx", curves::share);
    sheet.check(Check::at_least(
        "in virtual time at 6 % loss, Sphinx has at 10 Gbit/s at least 0.6 of its share at 200 Mbit/s",
        share("10000m-r10-l6"),
        0.6,
        share("200m-r10-l6"),
    ));
    sheet.check(Check::at_least(
        "at 6 % loss, Sphinx has at least 5 times the goodput of TCP CUBIC",
        value("r10-l6", "sphinx"),
        5.0,
        value("r10-l6", "tcp-cubic"),
    ));
    sheet.check(Check::at_least(
        "at 6 % loss, the paper's Sphinx has at least 5 times the goodput of TCP CUBIC",
        value("r10-l6", "sphinx-paper"),
        5.0,
        value("r10-l6", "tcp-cubic"),
    ));
    sheet.check(Check::at_least(
        "at 6 % loss, our default is ahead of the paper's code",
        value("r10-l6", "sphinx"),
        1.0,
        value("r10-l6", "sphinx-paper"),
    ));
    sheet.check(Check::at_least(
        "without loss, TCP CUBIC has at least 0.9 of the goodput of Sphinx",
        value("r10-l0", "tcp-cubic"),
        0.9,
        value("r10-l0", "sphinx"),
    ));
    Ok(true)
}
