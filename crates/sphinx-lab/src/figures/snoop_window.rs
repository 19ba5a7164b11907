//! How the sender's window moves while a hop has bit errors, with and without agents: E-SN3.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sphinx_codes::svg::{Chart, Series, Style};

use super::{
    Check, Sheet, Studio,
    campaign::{self, Case, NoRun},
    claim::Sample,
    over_path::{Files, agent, carry, late_ms_max},
    paths::{seeds, show},
    snoop::{MTU, WIRED, WIRELESS},
};
use crate::{
    path::{Carried, PathArgs},
    runner::ScenarioFailure,
};

const NAME: &str = "snoop-window";
const TIME: Duration = Duration::from_secs(60);
const AT_ONCE: usize = 8;
const NONE: &str = "none";
const LL: &str = "ll";
const SACK: &str = "sack";
/// Kinds of help: the name, and the options of the agent.
const HELPS: [(&str, Option<&str>); 4] = [
    (NONE, None),
    (LL, Some("snoop:profile=ll")),
    ("classic", Some("snoop:profile=classic")),
    (SACK, Some("snoop:profile=sack")),
];
const SENDERS: [&str; 2] = ["reno", "cubic"];

#[derive(Clone, Copy)]
struct Trace {
    help: &'static str,
    agent: Option<&'static str>,
    sender: &'static str,
    time: Duration,
    seed: u64,
}

/// A line of the file of results.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Run {
    help: String,
    sender: String,
    seed: u64,
    goodput_mbit_s: f64,
    /// Milliseconds, segments, slow-start threshold.
    windows: Vec<(u64, i64, i64)>,
    late_ms_max: f64,
}

impl Run {
    fn window_mean(&self) -> Option<f64> {
        let sum: i64 = self.windows.iter().map(|it| it.1).sum();
        (!self.windows.is_empty()).then(|| sum as f64 / self.windows.len() as f64)
    }

    /// How often the window has become smaller by a tenth or more.
    fn cuts(&self) -> usize {
        let pairs = self.windows.windows(2);
        pairs.filter(|pair| pair[1].1 * 10 <= pair[0].1 * 9).count()
    }
}

fn cases(studio: &Studio<'_>) -> Vec<Trace> {
    let time = if studio.quick { TIME / 6 } else { TIME };
    let mut cases = Vec::new();
    for seed in 1..=seeds(studio) {
        for (help, agent) in HELPS {
            cases.extend(SENDERS.map(|sender| Trace {
                help,
                agent,
                sender,
                time,
                seed,
            }));
        }
    }
    cases
}

pub(super) fn duration(studio: &Studio<'_>) -> Duration {
    let sum: Duration = cases(studio).iter().map(|case| case.time).sum();
    sum / AT_ONCE as u32
}

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let measured = campaign::measure((NAME, cases(studio)), AT_ONCE, studio, sheet)?;
    let Some(runs) = measured else {
        return Ok(false);
    };
    let latest = runs.iter().map(|run| run.late_ms_max).fold(0.0, f64::max);
    let count = runs.iter().map(|run| run.seed).max().unwrap_or(0);
    sheet.title(
        "Snoop and the sender's window",
        &format!(
            "The congestion window of the sender, looked at every 10 ms, over the path of the figure `snoop` ({WIRED}, then {WIRELESS} with an error in 64 KiB in both directions): repair alone (`ll`) leaves \
             the duplicate acknowledgements to the sender, who takes them for congestion. Drawn is seed 1; numbers are medians of {count} seeds. The latest packet of the emulator was {latest:.1} ms late. \
             Every run: `{NAME}.ndjson`."
        ),
    );
    for sender in SENDERS {
        let header = ["", "Mbit/s", "mean window, segments", "cuts in a minute"];
        let rows = HELPS.map(|(help, _)| {
            let of =
                |pick: &dyn Fn(&Run) -> Option<f64>| numbers(&runs, (help, sender), pick).median();
            let minutes = |run: &Run| run.windows.last().map_or(1.0, |it| it.0 as f64 / 60_000.0);
            vec![
                format!("{help}, {sender}"),
                show(of(&|run| Some(run.goodput_mbit_s)), 2),
                show(of(&Run::window_mean), 1),
                show(of(&|run| Some(run.cuts() as f64 / minutes(run))), 0),
            ]
        });
        sheet.summary(&header.map(str::to_owned), &rows);
        let series = HELPS.iter().filter_map(|(help, _)| {
            let is_first = |run: &&Run| run.help == *help && run.sender == sender && run.seed == 1;
            let run = runs.iter().find(is_first)?;
            let points = run
                .windows
                .iter()
                .map(|it| (it.0 as f64 / 1e3, it.1 as f64));
            Some(Series::new(help, Style::Plain, points.collect()))
        });
        let chart = Chart {
            title: format!("Congestion window, {sender}"),
            x_label: "s".to_owned(),
            y_label: "segments".to_owned(),
            is_x_logarithmic: false,
            is_y_logarithmic: false,
            series: series.collect(),
        };
        sheet.chart(sender, &chart);
        let window = |help| numbers(&runs, (help, sender), &Run::window_mean);
        sheet.check(Check::at_least(
            &format!("{sender}: with `sack`, the window is at least that of repair alone (0.98)"),
            &window(SACK),
            0.98,
            &window(LL),
        ));
    }
    sheet.paragraph(
        "Published (Balakrishnan et al., 1995): repair without suppression keeps a small window, and Snoop is 30 to 35 % faster. Senders of today recover \
         by SACK and forget a loss that RACK sees to have been none, so that less is to be gained.",
    );
    let mut csv = "help,sender,seed,goodput_mbit_s,window_mean,cuts,late_ms_max\n".to_owned();
    for run in &runs {
        csv += &format!(
            "\"{}\",{},{},{:.4},{:.2},{},{:.3}\n",
            run.help,
            run.sender,
            run.seed,
            run.goodput_mbit_s,
            run.window_mean().unwrap_or(0.0),
            run.cuts(),
            run.late_ms_max
        );
    }
    sheet.data("", &csv);
    Ok(true)
}

fn numbers(
    runs: &[Run],
    (help, sender): (&str, &str),
    pick: &dyn Fn(&Run) -> Option<f64>,
) -> Sample {
    let these = runs
        .iter()
        .filter(|run| run.help == help && run.sender == sender);
    Sample::of_seeds(these.filter_map(|run| Some((run.seed, pick(run)?))))
}

impl Case for Trace {
    type Run = Run;

    fn row(&self) -> String {
        format!("{}, {}", self.help, self.sender)
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn extent(&self) -> String {
        format!("{:?}", self.time)
    }

    fn is_of(&self, run: &Run) -> bool {
        run.help == self.help && run.sender == self.sender && run.seed == self.seed
    }

    fn run(&self, studio: &Studio<'_>) -> Result<Run, NoRun> {
        let files = Files::new()?;
        let command = |options| {
            let more = format!("--wireless wireless --agent {options}");
            agent(&studio.programs.sphx, &more)
        };
        let args = PathArgs {
            hops: vec![WIRED.to_owned(), format!("{WIRELESS} loss=bytes:64KiB")],
            middle: self.agent.map(command),
            right: None,
            upload: false,
            split: false,
            flows: Vec::new(),
            // More than the hop carries in that time.
            bytes: 1_000_000_000,
            time: self.time,
            cc: self.sender.to_owned(),
            no_sack: false,
            sysctl: Vec::new(),
            seed: self.seed,
            interface_mtu: MTU,
            windows: true,
            log: None,
            json: true,
            quiet: true,
        };
        let ended = carry(studio, &files, args)?;
        let late_ms_max = late_ms_max(&ended.report);
        let Carried::Transfer(transfer) = ended.report.carried else {
            return Err("no transfer".into());
        };
        Ok(Run {
            help: self.help.to_owned(),
            sender: self.sender.to_owned(),
            seed: self.seed,
            goodput_mbit_s: transfer.goodput_mbit_s,
            windows: transfer.windows,
            late_ms_max,
        })
    }

    fn result(run: &Run) -> String {
        let window = run.window_mean().unwrap_or(0.0);
        format!("{:.2} Mbit/s, {window:.0} segments", run.goodput_mbit_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_counted() {
        let run = Run {
            help: String::new(),
            sender: String::new(),
            seed: 1,
            goodput_mbit_s: 1.0,
            windows: [10, 20, 19, 10, 9, 30].map(|it| (0, it, -1)).to_vec(),
            late_ms_max: 0.0,
        };
        assert_eq!((run.cuts(), run.window_mean()), (2, Some(98.0 / 6.0)));
    }
}
