//! Short transfers: how long they take from before the connection to the last byte at the receiver, and what they send for that.

use std::collections::BTreeSet;

use sphinx_codes::svg::Chart;

use super::{
    Check, Sheet, Studio,
    claim::Sample,
    curves::{Pick, caveat, csv, curves, loss_percent, sample, table},
    wishes,
};
use crate::{
    Cell, Run,
    runner::{Results, ScenarioFailure},
    stats::Measured,
};

pub(super) const SCENARIOS: &[(&str, &str)] = &[scenario!("short")];

/// A goal: in a cell, a contestant of ours takes at most this long.
struct Wish {
    cell: &'static str,
    whose: &'static str,
    most: Most,
}

/// The contestant whose ends remember nothing of each other.
const STRANGERS: &str = "sphinx";
/// The contestant whose ends have met before.
const KNOWN: &str = "sphinx-known";

enum Most {
    /// Most time, as round trips plus milliseconds.
    Time(f64, f64),
    /// Most time, as a share of what another contestant takes.
    Of(f64, &'static str),
    /// Most kilobytes, to the receiver and back.
    Bytes(f64, f64),
}

/// 8 ms are what 100 kB need on the link themselves.
const WISHES: &[Wish] = &[
    Wish::new("10kB-r40-l0", STRANGERS, Most::Time(1.5, 4.0)),
    Wish::new("10kB-r150-l0", STRANGERS, Most::Time(1.5, 4.0)),
    Wish::new("10kB-r40-l0", STRANGERS, Most::Bytes(17.0, 7.0)),
    Wish::new("10kB-r40-l0", KNOWN, Most::Time(0.5, 4.0)),
    Wish::new("10kB-r150-l0", KNOWN, Most::Time(0.5, 4.0)),
    Wish::new("100kB-r40-l0", STRANGERS, Most::Time(2.2, 8.0)),
    Wish::new("100kB-r40-l2", STRANGERS, Most::Time(2.2, 8.0)),
    Wish::new("100kB-r40-l0", KNOWN, Most::Time(1.6, 8.0)),
    Wish::new("100kB-r40-l2", KNOWN, Most::Time(1.6, 8.0)),
    Wish::new("1MB-r150-l2", STRANGERS, Most::Of(0.7, "quinn-bbr")),
    Wish::new("10MB-r150-l2", STRANGERS, Most::Time(0.0, 1300.0)),
];

impl Wish {
    const fn new(cell: &'static str, whose: &'static str, most: Most) -> Wish {
        Wish { cell, whose, most }
    }

    /// Compares each part of the wish with the runs.
    fn looked_at(&self, results: &Results) -> Vec<wishes::Wish> {
        let ours = |pick| sample(results, self.cell, self.whose, pick);
        let found = results
            .cells
            .iter()
            .find(|(cell, _)| cell.name == self.cell);
        let Some((cell, _)) = found else {
            return Vec::new();
        };
        let one = |what: String, value: &Sample, times: f64, limit: &Sample| wishes::Wish {
            place: place(cell),
            check: Check::at_most(&format!("{}: {what}", self.whose), value, times, limit),
        };
        let exactly =
            |what: String, limit: f64, pick| one(what, &ours(pick), 1.0, &Sample::Exactly(limit));
        match self.most {
            Most::Time(round_trips, ms) => {
                let limit = round_trips * cell.link.rtt.as_secs_f64() * 1e3 + ms;
                vec![exactly(format!("at most {limit:.0} ms"), limit, whole_ms)]
            }
            Most::Of(part, other) => {
                let others = sample(results, self.cell, other, whole_ms);
                let what = format!("at most {part} of the time of {other}");
                vec![one(what, &ours(whole_ms), part, &others)]
            }
            Most::Bytes(there, back) => vec![
                exactly(format!("at most {there} kB there"), there, kilobytes_there),
                exactly(format!("at most {back} kB back"), back, kilobytes_back),
            ],
        }
    }
}

/// From before the connection to the last byte at the receiver, or to the cut-off.
fn whole_ms(_: &Cell, run: &Run) -> Option<Measured> {
    let ms = run.done.seconds * 1e3;
    Some(match run.done.complete {
        true => Measured::Exactly(ms),
        false => Measured::AtLeast(ms),
    })
}

fn kilobytes_there(_: &Cell, run: &Run) -> Option<Measured> {
    Some((run.carried?.forward_bytes as f64 / 1e3).into())
}

fn kilobytes_back(_: &Cell, run: &Run) -> Option<Measured> {
    Some((run.carried?.back_bytes as f64 / 1e3).into())
}

fn kilobytes(cell: &Cell) -> f64 {
    cell.workload.bytes() as f64 / 1e3
}

/// What a chart is of: round trip in ms, loss in hundredths of a per cent.
fn link(cell: &Cell) -> (u128, u64) {
    let hundredths = (loss_percent(cell) * 100.0).round() as u64;
    (cell.link.rtt.as_millis(), hundredths)
}

fn place(cell: &Cell) -> String {
    let (kilobytes, percent) = (kilobytes(cell), loss_percent(cell));
    let rtt = cell.link.rtt.as_millis();
    format!("{kilobytes} kB, RTT {rtt} ms, {percent} %")
}

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(results) = studio.run(SCENARIOS[0])? else {
        return Ok(false);
    };
    sheet.title(
        "Short transfers",
        &format!(
            "One transfer over a new connection to an end that nothing is remembered of: from before the connection to the last byte at the receiver, \
             handshake included, and all bytes that went over the link until then. The ends of `sphinx-known` have carried 10 MB over the same link just \
             before, and remember what they do by default. 100 Mbit/s, a queue of one bandwidth-delay product. Medians of the seeds. {}",
            caveat([&results])
        ),
    );
    sheet.note(&results);
    let wishes = WISHES.iter().flat_map(|wish| wish.looked_at(&results));
    sheet.wishes("transfer", wishes);
    let links: BTreeSet<_> = results.cells.iter().map(|(cell, _)| link(cell)).collect();
    for (rtt, hundredths) in links {
        let of_link = of_link(&results, (rtt, hundredths));
        let percent = hundredths as f64 / 100.0;
        sheet.paragraph(&format!("## RTT {rtt} ms, {percent} % loss"));
        sheet.chart(
            &format!("r{rtt}-l{percent}"),
            &Chart {
                title: format!("RTT {rtt} ms, {percent} % loss"),
                x_label: "size (kB)".to_owned(),
                y_label: "time to the last byte (ms)".to_owned(),
                is_x_logarithmic: true,
                is_y_logarithmic: true,
                series: curves(&of_link, &kilobytes, whole_ms),
            },
        );
        let column = |cell: &Cell| format!("{} kB", kilobytes(cell));
        let views: [(&str, Pick); 3] = [
            ("time to the last byte (ms)", whole_ms),
            ("kB sent", kilobytes_there),
            ("kB sent back", kilobytes_back),
        ];
        for (what, pick) in views {
            let (mut header, rows) = table(&of_link, &column, 1, pick);
            what.clone_into(&mut header[0]);
            sheet.summary(&header, &rows);
        }
    }
    sheet.data("", &csv(&results));
    for name in results.cells.iter().map(|(cell, _)| &cell.name) {
        let value = |contestant| sample(&results, name, contestant, whole_ms);
        sheet.check(Check::at_most(
            &format!("{name}: Sphinx takes at most 1.1 times as long as kernel BBR"),
            &value("sphinx"),
            1.1,
            &value("tcp-bbr"),
        ));
    }
    Ok(true)
}

fn of_link(results: &Results, of: (u128, u64)) -> Results {
    let cells = results.cells.iter().filter(|(cell, _)| link(cell) == of);
    Results {
        environment: results.environment.clone(),
        missing: results.missing.clone(),
        cells: cells.cloned().collect(),
        interrupted: results.interrupted,
    }
}
