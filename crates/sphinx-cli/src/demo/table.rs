//! What the demonstration says.

use std::time::Duration;

use super::Row;
use super::scene::Scene;
use crate::args::DemoArgs;
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
            "{link}\nThis system allows no network namespaces ({reason}),\nso the link is a relay on \
             loopback and kernel TCP cannot be shown beside Sphinx."
        ),
    }
}

/// The table and what to try next.
pub(super) fn render(args: &DemoArgs, rows: &[Row]) -> String {
    let few = rows
        .iter()
        .any(|row| row.blocks > 0 && row.blocks < QUANTILE_BLOCKS_MIN);
    let slowest = if few { "max" } else { "p99" };
    let mut lines = vec![
        format!(
            "{:<10} {:>13} {:>12} {:>14} {:>11} {:>11}",
            "", "goodput", "100 kB block", "100 kB block", "wire bytes", "CPU s"
        ),
        format!(
            "{:<10} {:>13} {:>12} {:>14} {:>11} {:>11}",
            "",
            "Mbit/s",
            "mean ms",
            format!("{slowest} ms"),
            "per byte",
            "per GB"
        ),
    ];
    let number = |value: Option<f64>, places: usize| match value {
        Some(value) => format!("{value:.places$}"),
        None => "–".to_owned(),
    };
    for row in rows {
        let late = if few {
            row.block_ms_max
        } else {
            row.block_ms_p99
        };
        lines.push(format!(
            "{:<10} {:>13} {:>12} {:>14} {:>11} {:>11}",
            row.name,
            number(row.goodput_mbit_s, 1),
            number(row.block_ms_mean, 1),
            number(late, 1),
            number(row.wire_per_byte, 3),
            number(row.cpu_s_per_gb, 1),
        ));
    }
    lines.push(String::new());
    lines.extend(notes(rows, few));
    lines.extend(next(args));
    lines.join("\n")
}

fn notes(rows: &[Row], few: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if few {
        let counts: Vec<String> = rows.iter().map(|row| row.blocks.to_string()).collect();
        notes.push(format!("Blocks measured: {}.", counts.join(", ")));
    }
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
        "sphx demo --rtt 100ms --loss 2% --seconds 16",
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
        assert!(!text.contains("Blocks measured"), "{text}");
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
        assert!(text.contains("max ms") && text.contains("99.9"), "{text}");
        assert!(text.contains("Blocks measured: 99, 40."), "{text}");
        assert!(
            text.contains("Sphinx: no way.") && text.contains("7 more blocks"),
            "{text}"
        );
    }
}
