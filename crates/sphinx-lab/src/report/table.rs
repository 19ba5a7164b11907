//! A table for people.

use crate::{Cell, Group, GroupNumbers, Latencies, Validity, Workload, stats::Measured};

const BULK_COLUMNS: [&str; 8] = [
    "",
    "Mbit/s",
    "of rate*(1-p)",
    "wire/payload",
    "*(1-p)",
    "queue drops",
    "CPU s/GB",
    "machine s/GB",
];
const VIDEO_COLUMNS: [&str; 8] = [
    "",
    "startup s",
    "stalls",
    "stalled s",
    "quality Mbit/s",
    "switches",
    "buffer at end s",
    "wire/payload",
];
const WEB_COLUMNS: [&str; 8] = [
    "",
    "pages",
    "page mean ms",
    "p50 ms",
    "max ms",
    "object p50 ms",
    "p99 ms",
    "wire/payload",
];
const BLOCK_COLUMNS: [&str; 10] = [
    "",
    "blocks",
    "mean ms",
    "p50 ms",
    "p99 ms",
    "max ms",
    "of offered",
    "late",
    "wire/payload",
    "CPU s/GB",
];

/// The medians of all contestants in one cell.
pub fn table(cell: &Cell, groups: &[Group]) -> String {
    let header: &[&str] = match cell.workload {
        Workload::Bulk { .. } => &BULK_COLUMNS,
        Workload::Blocks { .. } | Workload::Live { .. } => &BLOCK_COLUMNS,
        Workload::Video(_) => &VIDEO_COLUMNS,
        Workload::Web(_) => &WEB_COLUMNS,
    };
    let mut rows = vec![header.iter().map(ToString::to_string).collect::<Vec<_>>()];
    let mut notes = vec![String::new()];
    for group in groups {
        let numbers = group.numbers(cell);
        let mut row = vec![group.contestant.clone()];
        row.extend(
            numbers
                .as_ref()
                .map_or_else(Vec::new, |numbers| columns(cell, numbers)),
        );
        row.resize(header.len(), "-".into());
        rows.push(row);
        notes.push(note(group, numbers.as_ref()));
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = format!("{}: {}\n", cell.name, cell.description());
    for (row, note) in rows.iter().zip(&notes) {
        let mut line = format!("  {:<width$}", row[0], width = widths[0]);
        for (value, width) in row.iter().zip(&widths).skip(1) {
            line += &format!("  {value:>width$}");
        }
        line = format!("{line}  {note}");
        text += line.trim_end();
        text += "\n";
    }
    text
}

fn columns(cell: &Cell, numbers: &GroupNumbers) -> Vec<String> {
    let cpu = numbers.cpu_seconds_per_gb.unwrap_or(f64::NAN);
    let machine = numbers.machine_seconds_per_gb.unwrap_or(f64::NAN);
    match cell.workload {
        Workload::Bulk { .. } => vec![
            show(numbers.goodput_mbit_s, 1),
            show(numbers.goodput_ratio, 3),
            show(numbers.wire_ratio, 3),
            show(numbers.wire_ratio_delivered, 3),
            show(numbers.queue_drop_share * 100.0, 2) + " %",
            show(cpu, 1),
            show(machine, 1),
        ],
        Workload::Blocks { .. } | Workload::Live { .. } => {
            let block = |pick: fn(&Latencies) -> Measured| {
                show(numbers.blocks.as_ref().map_or(f64::NAN.into(), pick), 2)
            };
            vec![
                numbers.blocks.map_or(0, |blocks| blocks.count).to_string(),
                block(|blocks| blocks.mean_ms),
                block(|blocks| blocks.p50_ms),
                block(|blocks| blocks.p99_ms),
                block(|blocks| blocks.max_ms),
                show(numbers.goodput_ratio, 3),
                numbers.late_share.map_or("-".into(), |share| {
                    show(share.map(|it| it * 100.0), 2) + " %"
                }),
                show(numbers.wire_ratio, 3),
                show(cpu, 1),
            ]
        }
        Workload::Video(_) => match &numbers.video {
            None => Vec::new(),
            Some(video) => vec![
                show(video.startup_seconds.unwrap_or(f64::NAN), 2),
                video.stalls.to_string(),
                show(video.stall_seconds, 1),
                show(video.mean_mbit_s, 2),
                video.switches.to_string(),
                show(video.levels.last().map_or(f64::NAN, |last| last.1), 1),
                show(numbers.wire_ratio, 3),
            ],
        },
        Workload::Web(_) => match &numbers.web {
            None => Vec::new(),
            Some(web) => vec![
                web.pages.to_string(),
                show(web.page_ms_mean, 0),
                show(web.page_ms_p50, 0),
                show(web.page_ms_max, 0),
                show(web.object_ms_p50, 1),
                show(web.object_ms_p99, 1),
                show(numbers.wire_ratio, 3),
            ],
        },
    }
}

fn show(value: impl Into<Measured>, places: usize) -> String {
    let value = value.into();
    match value.least().is_finite() {
        true => format!("{value:.places$}"),
        false => "-".into(),
    }
}

/// What a reader must know before quoting the row.
fn note(group: &Group, numbers: Option<&GroupNumbers>) -> String {
    let mut notes = Vec::new();
    if let Some(numbers) = numbers {
        if numbers.runs_used > 1 && numbers.goodput_spread > 0.1 {
            notes.push(format!("spread {:.0} %", numbers.goodput_spread * 100.0));
        }
        let cut_off = numbers.runs_used - numbers.runs_complete;
        if cut_off > 0 {
            notes.push(format!("{cut_off} of {} cut off", numbers.runs_used));
        }
        match numbers.validity {
            Validity::Valid => {}
            Validity::Noisy => notes.push("noisy: the machine was in use".into()),
            Validity::Starved => notes.push("INVALID: the emulator was starved".into()),
        }
        if numbers.runs_used < numbers.runs {
            notes.push(format!(
                "{} starved runs left out",
                numbers.runs - numbers.runs_used
            ));
        }
    }
    let (failures, first) = (group.failures.len(), group.failures.first());
    if let Some(first) = first {
        notes.push(format!("{failures} failed ({first})"));
    }
    notes.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockNumbers, cell::tests::cell, run::tests::example};

    #[test]
    fn bulk() {
        let mut cut_off = example("tcp-cubic", 1);
        cut_off.done.complete = false;
        let groups = [
            Group {
                runs: vec![cut_off],
                ..Group::new("tcp-cubic")
            },
            Group {
                failures: vec!["the sender failed: no reason".into()],
                ..Group::new("x")
            },
        ];
        let expected = "\
r10-l6: 200 Mbit/s, RTT 10 ms, 6 % loss; 50 MB
             Mbit/s  of rate*(1-p)  wire/payload  *(1-p)  queue drops  CPU s/GB  machine s/GB
  tcp-cubic   150.0          0.798         1.200   1.128       1.00 %      15.0          30.0  1 of 1 cut off
  x               -              -             -       -            -         -             -  1 failed (the sender failed: no reason)
";
        assert_eq!(table(&cell("r10-l6"), &groups), expected);
    }

    #[test]
    fn blocks() {
        let mut run = example("tcp-bbr", 1);
        run.goodput_mbit_s = 20.0;
        run.validity = Validity::Starved;
        run.done.blocks = Some(BlockNumbers {
            count: 597,
            due: Some(597),
            mean_ms: 30.05,
            p50_ms: Some(29.014),
            p99_ms: Some(56.7),
            max_ms: 99.999,
        });
        let groups = [Group {
            runs: vec![run],
            ..Group::new("tcp-bbr")
        }];
        let text = table(&cell("blocks20-l6"), &groups);
        let row = text.lines().last().unwrap();
        let words: Vec<_> = row.split_whitespace().take(10).collect();
        let expected = [
            "tcp-bbr", "597", "30.05", "29.01", "56.70", "100.00", "1.000", "-", "1.200", "15.0",
        ];
        assert_eq!(words, expected);
        assert!(row.ends_with("INVALID: the emulator was starved"), "{row}");
    }
}
