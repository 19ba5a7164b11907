//! Figure 11: a player's buffer over time.

use sphinx_codes::svg::{Chart, Series, Style};

use super::{
    Check, Sheet, Studio,
    claim::Sample,
    curves::{Pick, back_ratio, caveat, csv, quotable, sample, shown},
    sheet::Sentence,
};
use crate::{
    Cell, Run, VideoNumbers,
    runner::{Results, ScenarioFailure},
    stats::Measured,
};

pub(super) const SCENARIOS: &[(&str, &str)] = &[
    (
        "fig11-fixed",
        include_str!("../../scenarios/fig11-fixed.toml"),
    ),
    (
        "fig11-cellular",
        include_str!("../../scenarios/fig11-cellular.toml"),
    ),
];

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let mut all = Vec::new();
    for scenario in SCENARIOS {
        let Some(results) = studio.run(*scenario)? else {
            return Ok(false);
        };
        all.push(results);
    }
    sheet.title(
        "Figure 11: the buffer of a video player",
        &format!(
            "A player fetches segments of 2 s whose sizes vary by ±30 % around the bit rate: with \
             HTTP over kernel TCP, and the same requests over the streams of a Sphinx session. Playing \
             begins, and goes on after a stall, with one segment. {}",
            caveat(&all)
        ),
    );
    let titles = [
        (
            "fixed",
            "always 16 Mbit/s (4K); 200 Mbit/s, RTT 10 ms, 2 % loss",
        ),
        (
            "cellular",
            "quality by BOLA; 12 Mbit/s varying, RTT 50 ms, 2 % loss",
        ),
    ];
    let mut csv_levels = "cell,contestant,seed,seconds,buffer_seconds\n".to_owned();
    for (results, (part, title)) in all.iter().zip(titles) {
        sheet.note(results);
        sheet.chart(part, &chart(results, title, &mut csv_levels));
        let (header, rows) = rows(results);
        sheet.summary(&header, &rows);
        sheet.data(part, &csv(results));
    }
    sheet.data("buffer", &csv_levels);
    let fixed = |name: &str, pick: Pick| match all[0].cells.first() {
        Some((cell, _)) => sample(&all[0], &cell.name, name, pick),
        None => Sample::fold([], f64::max),
    };
    let exactly = Sample::Exactly;
    let sentence = |about, published, (left, right), remark| Sentence {
        about,
        published,
        check: Some(Check::at_least("", &left, 1.0, &right)),
        remark,
    };
    sheet.sentences(&[
        sentence(
            "Sphinx: more than two segments (4 s) are buffered at the end",
            "the buffer grows",
            (fixed("sphinx-paper", buffered), exactly(4.0)),
            "until the player's limit, 60 s",
        ),
        sentence(
            "CUBIC: the buffer runs empty at least once",
            "drops to zero",
            (fixed("tcp-cubic", stalls), exactly(1.0)),
            "no trace of the paper's stream (D-LiTE) is public",
        ),
        sentence(
            "BBR: more than two segments are buffered at the end",
            "–",
            (fixed("tcp-bbr", buffered), exactly(4.0)),
            "not in the paper",
        ),
        sentence(
            "what you get without options: the same",
            "–",
            (fixed("sphinx", buffered), exactly(4.0)),
            "not in the paper",
        ),
    ]);
    sheet.check(Check::at_least(
        "at 2 % loss and 16 Mbit/s, who watches over TCP CUBIC waits for at least a second more than over Sphinx",
        &fixed("tcp-cubic", waiting_seconds),
        1.0,
        &fixed("sphinx", waiting_seconds).map(|seconds| seconds + 1.0),
    ));
    Ok(true)
}

fn buffered(_: &Cell, run: &Run) -> Option<Measured> {
    Some(run.done.video.as_ref()?.levels.last()?.1.into())
}

fn stalls(_: &Cell, run: &Run) -> Option<Measured> {
    Some((run.done.video.as_ref()?.stalls as f64).into())
}

/// Seconds of waiting for the first picture (the whole time, if there was none) and for the buffer.
fn waiting_seconds(cell: &Cell, run: &Run) -> Option<Measured> {
    let video = run.done.video.as_ref()?;
    let never = cell.workload.schedule().as_secs_f64();
    Some((video.startup_seconds.unwrap_or(never) + video.stall_seconds).into())
}

fn videos(results: &Results) -> impl Iterator<Item = (&Cell, &str, VideoNumbers)> {
    results.cells.iter().flat_map(|(cell, groups)| {
        groups.iter().filter_map(move |group| {
            let video = quotable(cell, group)?.video?;
            Some((cell, group.contestant.as_str(), video))
        })
    })
}

/// A line for every run, those of a contestant in one colour.
fn chart(results: &Results, title: &str, csv: &mut String) -> Chart {
    let mut series = Vec::new();
    for (cell, groups) in &results.cells {
        for (look, group) in groups.iter().enumerate() {
            let mut name = group.contestant.as_str();
            for run in group.used() {
                let Some(video) = &run.done.video else {
                    continue;
                };
                for (seconds, buffer) in &video.levels {
                    let (cell, contestant, seed) = (&cell.name, &group.contestant, run.seed);
                    *csv += &format!("{cell},{contestant},{seed},{seconds},{buffer}\n");
                }
                let levels = video.levels.clone();
                series.push(Series::new(name, Style::Plain, levels).with_look(look));
                // Further runs have no name: one entry in the legend is enough.
                name = "";
            }
        }
    }
    Chart {
        title: format!("Figure 11: buffer, {title}"),
        x_label: "seconds since the start".to_owned(),
        y_label: "seconds of video buffered, every run".to_owned(),
        is_x_logarithmic: false,
        is_y_logarithmic: false,
        series,
    }
}

fn rows(results: &Results) -> (Vec<String>, Vec<Vec<String>>) {
    let header = [
        "",
        "startup s",
        "stalls",
        "stalled s",
        "quality Mbit/s",
        "switches",
        "IP bytes back per byte",
    ];
    let rows = videos(results).map(|(cell, contestant, video)| {
        vec![
            contestant.to_owned(),
            video
                .startup_seconds
                .map_or("–".to_owned(), |seconds| format!("{seconds:.2}")),
            video.stalls.to_string(),
            format!("{:.1}", video.stall_seconds),
            format!("{:.2}", video.mean_mbit_s),
            video.switches.to_string(),
            shown(&sample(results, &cell.name, contestant, back_ratio), 3),
        ]
    });
    (header.map(str::to_owned).to_vec(), rows.collect())
}
