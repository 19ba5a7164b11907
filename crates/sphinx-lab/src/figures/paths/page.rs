//! Tables, drawings and data of experiments over paths.

use sphinx_codes::svg::{Chart, Series, Style};

use super::{Experiment, Help, Hops, Run, goodputs, select};
use crate::{
    figures::{
        Check, Sheet,
        claim::Sample,
        curves::{in_interval, place},
        sheet::markdown_table,
    },
    stats::median,
};

/// Later than that, a packet has waited for the emulator instead of its link.
const LATE_MS: f64 = 10.0;

/// With so many decimal places, if there is something.
pub(in crate::figures) fn show(value: Option<f64>, places: usize) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.places$}"))
}

/// How many seeds the medians of an experiment are of.
pub(in crate::figures) fn seeds_text(experiment: &Experiment, runs: &[Run]) -> String {
    let (mut least, mut most) = (usize::MAX, 0);
    for hops in experiment.paths {
        for help in experiment.helps {
            for sender in experiment.senders {
                let count = select(runs, hops.name, help.name, sender.name).count();
                (least, most) = (least.min(count), most.max(count));
            }
        }
    }
    let seeds = match (least, most) {
        (1, 1) => "One seed".to_owned(),
        (least, most) if least == most => format!("Medians of {most} seeds"),
        (least, most) => format!("Medians of {least} to {most} seeds"),
    };
    format!(
        "{seeds}, the same in every row; {} paths at once. Every run: `{}.ndjson`.",
        experiment.at_once,
        experiment.figure.name()
    )
}

/// A paragraph that says whether emulator and agents were in time.
pub(in crate::figures) fn late_paragraph(runs: &[Run], sheet: &mut Sheet) {
    let latest = runs.iter().map(|run| run.late_ms_max).fold(0.0, f64::max);
    let late = runs.iter().filter(|run| run.late_ms_max > LATE_MS).count();
    let mut text = format!(
        "The latest packet of the emulator was {latest:.1} ms late; in {late} of the {} runs one was more than {LATE_MS:.0} ms late.",
        runs.len()
    );
    let overloads: Vec<u64> = runs.iter().filter_map(|run| run.overloads).collect();
    let overloaded = overloads.iter().filter(|count| **count > 0).count();
    if !overloads.is_empty() {
        text += &format!(
            " In {overloaded} of the {} runs with agents, one of these said that it was too late, and only passed packets for a while.",
            overloads.len()
        );
    }
    sheet.paragraph(&text);
}

/// Goodput over one path: helps by senders.
pub(in crate::figures) fn goodput_table(
    experiment: &Experiment,
    path: &str,
    runs: &[Run],
    sheet: &mut Sheet,
) {
    let names = experiment.senders.iter().map(|sender| sender.name);
    let header = ["Mbit/s"].into_iter().chain(names).map(str::to_owned);
    let rows = experiment.helps.iter().map(|help| {
        let cells = experiment
            .senders
            .iter()
            .map(|sender| cell(select(runs, path, help.name, sender.name)));
        [help.name.to_owned()].into_iter().chain(cells).collect()
    });
    sheet.summary(&header.collect::<Vec<_>>(), &rows.collect::<Vec<_>>());
}

/// A median goodput and its interval.
fn cell<'a>(runs: impl Iterator<Item = &'a Run>) -> String {
    let seeds = runs.map(|run| (run.seed, run.goodput_mbit_s));
    in_interval(&Sample::of_seeds(seeds), 2)
}

/// For each sender, goodput of every help over every path, as a drawing and a table.
pub(in crate::figures) fn sweep(
    experiment: &Experiment,
    x_label: &str,
    runs: &[Run],
    sheet: &mut Sheet,
) {
    for sender in experiment.senders {
        sheet.paragraph(&format!("## {}", sender.name));
        let series = experiment.helps.iter().map(|help| {
            let mut series = Series::new(help.name, Style::Line, Vec::new());
            for hops in experiment.paths {
                if let Some(x) = hops.x {
                    let sample = goodputs(runs, hops.name, help.name, sender.name);
                    place(&mut series, x, &sample);
                }
            }
            series
        });
        let chart = Chart {
            title: format!("Goodput, {}", sender.name),
            x_label: x_label.to_owned(),
            y_label: "goodput (Mbit/s)".to_owned(),
            is_x_logarithmic: true,
            is_y_logarithmic: false,
            series: series.collect(),
        };
        let part: String = sender
            .name
            .chars()
            .filter(|it| it.is_ascii_alphanumeric())
            .collect();
        sheet.chart(&part.to_lowercase(), &chart);
        sheet.summary(
            &header("Mbit/s", experiment.paths),
            &rows(experiment, |hops, help| {
                cell(select(runs, hops.name, help.name, sender.name))
            }),
        );
        let again = |run: &Run| run.segments_again as f64 / run.segments_sent.max(1) as f64;
        sheet.paragraph(&markdown_table(
            &header("sent again by the sender, %", experiment.paths),
            &rows(experiment, |hops, help| {
                let runs = select(runs, hops.name, help.name, sender.name);
                show(median(runs.map(|run| again(run) * 100.0)), 1)
            }),
        ));
    }
}

fn header(what: &str, paths: &[Hops]) -> Vec<String> {
    let names = paths.iter().map(|hops| hops.name);
    [what].into_iter().chain(names).map(str::to_owned).collect()
}

fn rows(experiment: &Experiment, cell: impl Fn(&Hops, &Help) -> String) -> Vec<Vec<String>> {
    let row = |help: &Help| {
        let cells = experiment.paths.iter().map(|hops| cell(hops, help));
        [help.name.to_owned()].into_iter().chain(cells).collect()
    };
    experiment.helps.iter().map(row).collect()
}

/// Claims that a help is nowhere below so many times another one; tells of the worst place.
pub(in crate::figures) fn worst(
    experiment: &Experiment,
    runs: &[Run],
    claim: &str,
    (help, factor, base): (&str, f64, &str),
) -> Check {
    let places = experiment.paths.iter().flat_map(|hops| {
        experiment.senders.iter().map(move |sender| {
            let of = |help| goodputs(runs, hops.name, help, sender.name);
            let place = match hops.name {
                "" => sender.name.to_owned(),
                name => format!("{}, {name}", sender.name),
            };
            (place, of(help), of(base))
        })
    });
    Check::everywhere(claim, factor, places)
}

/// Every run, a line each.
pub(in crate::figures) fn csv(runs: &[Run]) -> String {
    let mut text = "path,help,sender,seed,complete,seconds,goodput_mbit_s,pause_ms_max,segments_sent,segments_again,\
                    useful_wired,useful_wireless,repaired,spurious,held,overloads,lost,reported,apart,apart_reported,dropped,mistaken,invented,late_ms_max\n"
        .to_owned();
    let count = |count: Option<u64>| count.map_or(String::new(), |count| count.to_string());
    for run in runs {
        let truth = run.truth.map(|truth| {
            [
                truth.lost,
                truth.reported,
                truth.apart,
                truth.apart_reported,
                truth.dropped,
                truth.mistaken,
                truth.invented,
            ]
        });
        let counts = [run.repaired, run.spurious, run.held, run.overloads].map(count);
        let truth = [0, 1, 2, 3, 4, 5, 6].map(|at| count(truth.map(|it| it[at])));
        text += &format!(
            "\"{}\",\"{}\",\"{}\",{},{},{:.3},{:.4},{:.1},{},{},{:.4},{:.4},{},{},{:.3}\n",
            run.path,
            run.help,
            run.sender,
            run.seed,
            run.complete,
            run.seconds,
            run.goodput_mbit_s,
            run.pause_ms_max,
            run.segments_sent,
            run.segments_again,
            run.useful[0],
            run.useful[1],
            counts.join(","),
            truth.join(","),
            run.late_ms_max,
        );
    }
    text
}
