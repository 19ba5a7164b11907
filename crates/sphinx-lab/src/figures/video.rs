//! Figure 11: a player's buffer over time.

use sphinx_codes::svg::{Chart, Series, Style};

use super::{
    Check, Sheet, Studio,
    curves::{caveat, csv, quotable},
};
use crate::{
    VideoNumbers,
    runner::{Results, ScenarioFailure},
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
            caveat(&all[0])
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
    let mut csv_levels = "cell,contestant,seconds,buffer_seconds\n".to_owned();
    for (results, (part, title)) in all.iter().zip(titles) {
        sheet.note(results);
        sheet.chart(part, &chart(results, title, &mut csv_levels))?;
        let (header, rows) = rows(results);
        sheet.summary(&header, &rows);
        sheet.data(part, &csv(results))?;
    }
    sheet.data("buffer", &csv_levels)?;
    let fixed = |name| video_of(&all[0], name);
    let show = |name| match fixed(name) {
        None => "–".to_owned(),
        Some(video) => format!(
            "{:.1} s buffered at the end, {} stalls ({:.1} s)",
            video.levels.last().map_or(0.0, |last| last.1),
            video.stalls,
            video.stall_seconds
        ),
    };
    sheet.published(&[
        [
            "Sphinx, 2 % loss".into(),
            "the buffer grows".into(),
            show("sphinx"),
            "as published, until the player's limit".into(),
        ],
        [
            "TCP, 2 % loss".into(),
            "drops to zero".into(),
            show("tcp-cubic"),
            "CUBIC, as in the paper, at a quality above its goodput of about 9 Mbit/s; no trace of \
             the paper's stream (D-LiTE) is public"
                .into(),
        ],
        [
            "TCP BBR, 2 % loss".into(),
            "–".into(),
            show("tcp-bbr"),
            "not in the paper: has enough goodput too".into(),
        ],
    ]);
    let stalled = |name| fixed(name).map(|video| video.stall_seconds);
    sheet.check(Check::at_least(
        "at 2 % loss and 16 Mbit/s, TCP CUBIC stalls for at least a second more than Sphinx",
        stalled("tcp-cubic"),
        1.0,
        stalled("sphinx").map(|seconds| seconds + 1.0),
    ));
    Ok(true)
}

fn videos(results: &Results) -> impl Iterator<Item = (&str, &str, VideoNumbers)> {
    results.cells.iter().flat_map(|(cell, groups)| {
        groups.iter().filter_map(move |group| {
            let video = quotable(cell, group)?.video?;
            Some((cell.name.as_str(), group.contestant.as_str(), video))
        })
    })
}

fn video_of(results: &Results, contestant: &str) -> Option<VideoNumbers> {
    let found = videos(results).find(|(_, name, _)| *name == contestant);
    found.map(|(_, _, video)| video)
}

fn chart(results: &Results, title: &str, csv: &mut String) -> Chart {
    let mut series = Vec::new();
    for (cell, contestant, video) in videos(results) {
        for (seconds, buffer) in &video.levels {
            *csv += &format!("{cell},{contestant},{seconds},{buffer}\n");
        }
        series.push(Series::new(contestant, Style::Plain, video.levels));
    }
    Chart {
        title: format!("Figure 11: buffer, {title}"),
        x_label: "seconds since the start".to_owned(),
        y_label: "seconds of video buffered (first seed)".to_owned(),
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
    ];
    let rows = videos(results).map(|(_, contestant, video)| {
        vec![
            contestant.to_owned(),
            video
                .startup_seconds
                .map_or("–".to_owned(), |seconds| format!("{seconds:.2}")),
            video.stalls.to_string(),
            format!("{:.1}", video.stall_seconds),
            format!("{:.2}", video.mean_mbit_s),
            video.switches.to_string(),
        ]
    });
    (header.map(str::to_owned).to_vec(), rows.collect())
}
