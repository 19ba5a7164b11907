//! Links as people have them: goodput against what waits for the link.

use sphinx_codes::svg::{Chart, Series, Style};

use super::{
    Check, Sheet, Studio,
    claim::Sample,
    curves::{self, caveat, csv, sample, table},
    wishes::Wish,
};
use crate::{
    Cell,
    runner::{Results, ScenarioFailure},
};

pub(super) const SCENARIOS: &[(&str, &str)] = &[scenario!("links")];

/// Links whose rate varies, where the queue is long as soon as one fills it.
const VARYING: [&str; 5] = ["wifi", "lte", "5g", "leo", "geo"];

/// What Sphinx is to reach at one link.
fn wishes_of(results: &Results, cell: &Cell) -> Vec<Wish> {
    let name = &cell.name;
    let of = |contestant, pick| sample(results, name, contestant, pick);
    let wish = |check: Check| Wish {
        place: name.clone(),
        check,
    };
    let at_least = |what: &str, left: &Sample, times: f64, right: &Sample| {
        wish(Check::at_least(what, left, times, right))
    };
    let (ours, bbr) = (
        of("sphinx", curves::goodput),
        of("tcp-bbr", curves::goodput),
    );
    if VARYING.contains(&name.as_str()) {
        let (wait, bbr_wait) = (
            of("sphinx", curves::wait_p95_ms),
            of("tcp-bbr", curves::wait_p95_ms),
        );
        return vec![
            at_least("0.97 of the goodput of BBR", &ours, 0.97, &bbr),
            wish(Check::at_most(
                "half of what BBR's packets wait",
                &wait,
                0.5,
                &bbr_wait,
            )),
        ];
    }
    if !["jitter", "reorder"]
        .iter()
        .any(|kind| name.starts_with(kind))
    {
        return Vec::new();
    }
    let share = of("sphinx", curves::share);
    let worst = worst(&share);
    let one = Sample::Exactly(1.0);
    vec![
        at_least("0.88 of what the link delivers", &share, 0.88, &one),
        at_least("0.8 of it in the worst run", &worst, 0.8, &one),
        at_least("1.05 times the goodput of BBR", &ours, 1.05, &bbr),
    ]
}

/// The smallest number of the runs; none if there are no runs.
fn worst(runs: &Sample) -> Sample {
    let worst = runs.values().into_iter().reduce(f64::min);
    worst.map_or(Sample::fold([], f64::min), Sample::Exactly)
}

/// The plot of the papers about cellular links: right and low is good.
pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let Some(results) = studio.run(SCENARIOS[0])? else {
        return Ok(false);
    };
    sheet.title(
        "Links as people have them",
        &format!(
            "A long transfer over links whose rate and delay vary (`sphx lab link --like KIND`, `docs/emulator.md` says where their \
             numbers come from; `jitter-…` and `reorder-…` are 100 Mbit/s, RTT 40 ms, with delays that vary by so many milliseconds \
             both ways), told nothing. Medians over the seeds, bars are 95 % intervals; one seed is the same course of rates for all, \
             and the same delays and losses for all that go over UDP. What waits is measured by the emulator: from a packet's arrival at the link until its last bit has \
             left, pauses of the link included. The rate in a title is the mean of one course of two minutes, which says how much is sent; \
             each run has a course of its own. {}",
            caveat([&results])
        ),
    );
    sheet.note(&results);
    let cells = results.cells.iter().map(|(cell, _)| cell);
    let wishes = cells.flat_map(|cell| wishes_of(&results, cell));
    sheet.wishes("link", wishes);
    for (cell, groups) in &results.cells {
        let series = groups.iter().filter_map(|group| {
            let numbers = curves::quotable(cell, group)?;
            let at = (numbers.wait_p95_ms?, numbers.goodput_mbit_s);
            let mut one = Series::new(&group.contestant, Style::Line, vec![at]);
            let interval = numbers.goodput_interval;
            one.ranges
                .extend(interval.map(|(low, high)| (at.0, low, high)));
            let runs = group.used();
            one.dots
                .extend(runs.filter_map(|run| Some((run.wire.wait_p95_ms?, run.goodput_mbit_s))));
            Some(one)
        });
        sheet.chart(
            &cell.name,
            &Chart {
                title: format!("{}: {}", cell.name, cell.link.description()),
                x_label: "95 % of packets waited at most (ms)".to_owned(),
                y_label: "goodput (Mbit/s)".to_owned(),
                is_x_logarithmic: true,
                is_y_logarithmic: false,
                series: series.collect(),
            },
        );
    }
    let column = |cell: &Cell| cell.name.clone();
    let (mut header, rows) = table(&results, &column, 1, curves::goodput);
    header[0] = "goodput (Mbit/s)".to_owned();
    sheet.summary(&header, &rows);
    let (mut header, rows) = table(&results, &column, 1, curves::wait_p95_ms);
    header[0] = "95 % waited at most (ms)".to_owned();
    sheet.summary(&header, &rows);
    let (mut header, rows) = table(&results, &column, 3, curves::wire_ratio);
    header[0] = "IP bytes sent for a byte delivered".to_owned();
    sheet.summary(&header, &rows);
    sheet.data("", &csv(&results));
    for name in VARYING {
        let value = |contestant| sample(&results, name, contestant, curves::goodput);
        sheet.check(Check::at_least(
            &format!("{name}: Sphinx has at least 0.8 of the goodput of BBR"),
            &value("sphinx"),
            0.8,
            &value("tcp-bbr"),
        ));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Verdict;

    #[test]
    fn the_worst_of_no_run_is_not_measured() {
        let check = |runs: Sample| Check::at_least("", &worst(&runs), 0.8, &Sample::Exactly(1.0));
        let none = check(Sample::fold([], f64::min));
        assert_eq!(
            (none.measured.as_str(), none.verdict),
            ("– against 1", Verdict::NotMeasured)
        );
        let some = check(Sample::of_seeds([(1, 0.9), (2, 0.7)]));
        assert_eq!(some.verdict, Verdict::Fails);
    }
}
