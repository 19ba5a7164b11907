//! Figure 9: goodput against loss.

use sphinx_codes::svg::{Chart, Series, Style};

use super::{
    Check, Sheet, Studio,
    claim::Sample,
    curves::{self, caveat, csv, curves, loss_percent, sample, table},
    sheet::Sentence,
    virtual_time::{self, Shown},
};
use crate::{Cell, Clock, runner::ScenarioFailure};

pub(super) const SCENARIOS: &[(&str, &str)] = &[
    ("fig9", include_str!("../../scenarios/fig9.toml")),
    (
        "fig9-virtual",
        include_str!("../../scenarios/fig9-virtual.toml"),
    ),
    scenario!("fig9-aimd"),
];

/// The round trip of the drawing, as in figure 9.
const DRAWN_RTT_MS: u128 = 10;
/// Payload of a full TCP packet over its IP bytes.
const TCP_PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(results) = studio.run(SCENARIOS[0])? else {
        return Ok(false);
    };
    sheet.title(
        "Figure 9: goodput against packet loss",
        &format!(
            "A file as fast as possible over 200 Mbit/s, RTT 10 ms, random loss; medians over the \
             seeds, bars are 95 % intervals, dots are runs. `sphinx` is what you get without options, the others \
             with a name in two parts are the paper's variants. `udp` is sent at 190 Mbit/s and repairs nothing. {}",
            caveat([&results])
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
    );
    sheet.data("goodput", &csv(&results));
    let column = |cell: &Cell| format!("{} %", loss_percent(cell));
    let (header, rows) = table(&results, &column, 1, curves::goodput);
    sheet.paragraph(
        "Mbit/s by loss rate; times 125 these are packets of 1000 bytes per second after decoding, \
         the paper's unit (the CSV file has both).",
    );
    sheet.summary(&header, &rows);
    let value = |cell: &str, name: &str| sample(&results, cell, name, curves::goodput);
    let coded = |cell: &str, best: fn(f64, f64) -> f64| {
        let all = ["sphinx-paper", "sphinx-lt", "sphinx-rs"];
        Sample::fold(all.map(|name| value(cell, name)), best)
    };
    let paper = || value("r10-l6", "sphinx-paper");
    let sentence = |about, published, (left, right), remark| Sentence {
        about,
        published,
        check: Some(Check::at_least("", &left, 1.0, &right)),
        remark,
    };
    sheet.paragraph("What the paper says of this figure, at 6 % loss where there is some:");
    sheet.sentences(&[
        sentence(
            "no loss: CUBIC against the best coded scheme",
            "TCP is best",
            (value("r10-l0", "tcp-cubic"), coded("r10-l0", f64::max)),
            "TCP has smaller headers and no seal",
        ),
        sentence(
            "with loss: the worst coded scheme against CUBIC",
            "all coded schemes are ahead of TCP",
            (coded("r10-l6", f64::min), value("r10-l6", "tcp-cubic")),
            "the paper compares with CUBIC only",
        ),
        sentence(
            "semi-random LT against traditional LT",
            "ahead",
            (paper(), value("r10-l6", "sphinx-lt")),
            "T and n are not told; here 0.5 and 100",
        ),
        sentence(
            "semi-random LT against Reed–Solomon",
            "ahead",
            (paper(), value("r10-l6", "sphinx-rs")),
            "where coding takes no time to speak of, bytes decide",
        ),
        sentence(
            "with ICM against without",
            "ICM adds goodput",
            (paper(), value("r10-l6", "sphinx-no-icm")),
            "in a bulk transfer later data keeps the link full while losses are repaired, so that a late repair can hardly be seen here",
        ),
        sentence(
            "with workers against without",
            "parallel coding adds goodput",
            (value("r10-l6", "sphinx-workers"), paper()),
            "200 Mbit/s do not fill one core",
        ),
        sentence(
            "what you get without options against TCP BBR",
            "–",
            (value("r10-l6", "sphinx"), value("r10-l6", "tcp-bbr")),
            "not in the paper",
        ),
        sentence(
            "TCP BBR against semi-random LT",
            "–",
            (value("r10-l6", "tcp-bbr"), paper()),
            "not in the paper",
        ),
    ]);
    let (header, rows) = table(&results, &column, 3, curves::wire_ratio);
    sheet.paragraph("IP bytes sent for a byte delivered, headers and handshake included:");
    sheet.summary(&header, &rows);
    let (header, rows) = table(&results, &column, 3, curves::back_ratio);
    sheet.paragraph(
        "IP bytes sent back for a byte delivered, which is feedback but for the handshake:",
    );
    sheet.summary(&header, &rows);
    let shown = Shown {
        scenario: SCENARIOS[1],
        title: "Figure 9 continued: goodput up to 10 Gbit/s",
        about: "What a link carries in two seconds (with `--quick` 0.8 s), RTT 10 ms. Headers take 4.5 %, and start-up takes longer \
                the more the rate has to grow. At 10 Gbit/s the window, 24 MiB, is two bandwidth-delay products. `sphinx-srlt` is the \
                paper's code and compensation under our rate control.",
        values: &[("goodput / (rate × (1 − loss))", curves::share)],
        places: 3,
    };
    let Some(virtual_time) = virtual_time::draw(studio, sheet, &shown, &results)? else {
        return Ok(false);
    };
    if !by_window(studio, sheet)? {
        return Ok(false);
    }
    let share = |cell: &str| sample(&virtual_time, cell, "sphinx", curves::share);
    sheet.check(Check::at_least(
        "in virtual time at 6 % loss, Sphinx has at 10 Gbit/s at least 0.6 of its share at 200 Mbit/s",
        &share("10000m-r10-l6"),
        0.6,
        &share("200m-r10-l6"),
    ));
    sheet.check(Check::at_least(
        "at 6 % loss, Sphinx has at least 5 times the goodput of TCP CUBIC",
        &value("r10-l6", "sphinx"),
        5.0,
        &value("r10-l6", "tcp-cubic"),
    ));
    sheet.check(Check::at_least(
        "at 6 % loss, the paper's Sphinx has at least 5 times the goodput of TCP CUBIC",
        &value("r10-l6", "sphinx-paper"),
        5.0,
        &value("r10-l6", "tcp-cubic"),
    ));
    sheet.check(Check::at_least(
        "at 6 % loss, our default is ahead of the paper's code",
        &value("r10-l6", "sphinx"),
        1.0,
        &value("r10-l6", "sphinx-paper"),
    ));
    sheet.check(Check::at_least(
        "without loss, TCP CUBIC has at least 0.9 of the goodput of Sphinx",
        &value("r10-l0", "tcp-cubic"),
        0.9,
        &value("r10-l0", "sphinx"),
    ));
    Ok(true)
}

/// The paper's two windows, by round trip, with marks and without ECN, in virtual time; false after an interruption.
fn by_window(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(results) = studio.run(SCENARIOS[2])? else {
        return Ok(false);
    };
    sheet.paragraph(&format!(
        "## Figure 9 continued: windows that adapt\n\n**{}.** 20 MB (with `--quick` 10 MB) over 200 Mbit/s with \
         a queue of 20 ms, by round trip. *window of 16* is the paper's mode as above. *AIMD* is its window that adapts: one block more in each round trip, half of \
         it when a packet was marked (where more than 10 ms were waiting). Where packets keep no ECN codepoint, reports of the receiver, every 1000 packets, say \
         which of the two. A window of one or two blocks never has the third that a Symbol-SACK needs to be on, so that what it misses waits for the timer.",
        virtual_time::capitalised(Clock::Virtual.label())
    ));
    sheet.note(&results);
    let losses = virtual_time::losses(&results);
    let mut header = vec!["Mbit/s".to_owned()];
    header.extend(losses.iter().map(|loss| format!("{loss} %")));
    let mut rtts: Vec<u128> = (results.cells.iter())
        .map(|(cell, _)| cell.link.rtt.as_millis())
        .collect();
    rtts.sort_unstable();
    rtts.dedup();
    let mut rows = Vec::new();
    let mut series = Vec::new();
    for rtt in rtts {
        for (name, said) in [("marks", "marks"), ("no-ecn", "no ECN")] {
            for contestant in results.contestants() {
                let title = format!("{contestant}, {said}");
                let mut curve = Series::new(&title, Style::Line, Vec::new());
                let mut row = vec![format!("RTT {rtt} ms, {title}")];
                for loss in &losses {
                    let cell = format!("{name}-r{rtt}-l{loss}");
                    let value = sample(&results, &cell, contestant, curves::goodput);
                    row.push(curves::shown(&value, 1));
                    curves::place(&mut curve, *loss, &value);
                }
                rows.push(row);
                if rtt == DRAWN_RTT_MS {
                    series.push(curve);
                }
            }
        }
    }
    sheet.chart(
        "aimd",
        &Chart {
            title: format!(
                "Figure 9 continued: windows that adapt, RTT {DRAWN_RTT_MS} ms ({})",
                Clock::Virtual.label()
            ),
            x_label: "packet loss rate (%)".to_owned(),
            y_label: "goodput (Mbit/s)".to_owned(),
            is_x_logarithmic: false,
            is_y_logarithmic: false,
            series,
        },
    );
    sheet.summary(&header, &rows);
    sheet.data("aimd", &csv(&results));
    Ok(true)
}
