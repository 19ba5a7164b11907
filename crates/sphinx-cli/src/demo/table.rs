//! What the demonstration says.

use std::time::Duration;

use super::Row;
use super::scene::Scene;
use crate::args::demo::DemoArgs;
use crate::units::{show_duration, show_percent, show_rate};

/// Fewer blocks have no 99th percentile worth the name.
const QUANTILE_BLOCKS_MIN: u64 = 100;

pub(super) fn introduction(args: &DemoArgs, scene: &Scene, total: Duration) -> String {
    let link = format!(
        "A link of {}, {} round trip, {} of the packets lost, seed {}.",
        show_rate(args.rate as f64),
        show_duration(args.rtt),
        show_percent(args.loss),
        args.seed
    );
    match scene {
        Scene::Namespaces => format!(
            "{link}\nEach transport gets it for {}, fresh: {} in all.",
            show_duration(args.seconds),
            show_duration(total)
        ),
        Scene::Relay(reason) => format!(
            "{link}\nIt is a relay on loopback, so kernel TCP cannot be shown beside Sphinx: \
             network namespaces are not allowed here.\n({reason})"
        ),
    }
}

/// The table and what to try next.
pub(super) fn render(args: &DemoArgs, rows: &[Row]) -> String {
    let mut lines = vec![
        columns([
            "",
            "goodput",
            "100 kB block",
            "100 kB block",
            "wire bytes",
            "CPU s",
        ]),
        columns(["", "Mbit/s", "mean ms", "p99 ms", "per byte", "per GB"]),
    ];
    let number = |value: Option<f64>, places: usize| match value {
        Some(value) => format!("{value:.places$}"),
        None => "–".to_owned(),
    };
    for row in rows {
        let late = match row.blocks {
            0..QUANTILE_BLOCKS_MIN if row.block_ms_max.is_some() => {
                format!("{} max of {}", number(row.block_ms_max, 1), row.blocks)
            }
            _ => number(row.block_ms_p99, 1),
        };
        lines.push(columns([
            row.name,
            &number(row.goodput_mbit_s, 1),
            &number(row.block_ms_mean, 1),
            &late,
            &number(row.wire_per_byte, 3),
            &number(row.cpu_s_per_gb, 1),
        ]));
    }
    lines.push(String::new());
    lines.extend(notes(rows));
    lines.extend(next(args));
    lines.join("\n")
}

fn columns([name, goodput, mean, late, wire, cpu]: [&str; 6]) -> String {
    format!("{name:<10} {goodput:>8} {mean:>13} {late:>17} {wire:>11} {cpu:>8}")
}

fn notes(rows: &[Row]) -> Vec<String> {
    let mut notes = Vec::new();
    for row in rows.iter().filter(|row| row.blocks_unsent > 0) {
        notes.push(format!(
            "{}: {} more blocks were due that it never came to send.",
            row.name, row.blocks_unsent
        ));
    }
    for row in rows {
        if let Some(failure) = &row.failure {
            notes.push(format!("{}: {failure}.", row.name));
        }
    }
    notes.push("CPU is that of the whole machine, the emulated link included.".to_owned());
    notes.push(String::new());
    notes
}

fn next(args: &DemoArgs) -> Vec<String> {
    let mut lines = vec!["What to try next:".to_owned()];
    let mut add = |command: &str, why: &str| lines.push(format!("  {command:<46} {why}"));
    if args.loss > 0.0 {
        add(
            "sphx demo --loss 0",
            "a clean link: nothing should be lost by coding",
        );
    }
    add(
        "sphx demo --rtt 100ms --loss 2% --seconds 16s",
        "a long path",
    );
    add(
        "sphx recv --output inbox --ticket-file t",
        "receive files, and at the other end:",
    );
    add("sphx send --ticket-file t FILE…", "");
    lines
        .iter()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> DemoArgs {
        DemoArgs {
            rate: 200_000_000,
            rtt: Duration::from_millis(10),
            loss: 0.06,
            seed: 1,
            seconds: Duration::from_secs(8),
            json: false,
            quiet: false,
        }
    }

    fn row(name: &'static str, blocks: u64) -> Row {
        Row {
            name,
            goodput_mbit_s: Some(178.25),
            block_ms_mean: Some(10.04),
            block_ms_p99: Some(14.0),
            block_ms_max: Some(99.9),
            blocks,
            ..Row::default()
        }
    }

    #[test]
    fn a_table_for_people() {
        let text = render(&args(), &[row("TCP BBR", 122), row("Sphinx", 122)]);
        assert!(text.contains("p99 ms") && text.contains("14.0"), "{text}");
        assert!(!text.contains("max of"), "{text}");
        assert!(
            text.contains("What to try next:\n  sphx demo --loss 0"),
            "{text}"
        );
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
    }

    #[test]
    fn few_blocks_have_a_maximum_and_a_count() {
        let mut failed = row("Sphinx", 40);
        failed.failure = Some("no way".to_owned());
        failed.blocks_unsent = 7;
        let text = render(&args(), &[row("TCP CUBIC", 99), failed]);
        assert!(
            text.contains("99.9 max of 99") && text.contains("99.9 max of 40"),
            "{text}"
        );
        assert!(
            text.contains("Sphinx: no way.") && text.contains("7 more blocks"),
            "{text}"
        );
    }
}
