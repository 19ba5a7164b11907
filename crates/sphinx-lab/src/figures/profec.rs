//! Figure 7 from sessions of the paper's mode: what they send ahead and in all, and how many blocks need another round.

use serde::{Deserialize, Serialize};
use sphinx_codes::{
    figures::{not_covered, not_peeled},
    svg::{Chart, Series, Style},
};
use sphinx_link::Loss;
use sphinx_proto::{Delta, Paper, Redundant, cc::CcKind, redundant};
use sphinx_sim::{SEC, Scenario, link};

use super::{
    Check, Sheet, Studio,
    campaign::{self, Case, NoRun},
    claim::Sample,
    curves::{in_interval, place},
    paths::seeds,
    sheet::Sentence,
};
use crate::runner::ScenarioFailure;

/// Loss rates in millionths.
const LOSSES: [u32; 6] = [10_000, 20_000, 40_000, 60_000, 80_000, 100_000];
const LOSSES_QUICK: [u32; 1] = [60_000];
/// The loss rate for which the paper gives numbers, in millionths.
const PUBLISHED: u32 = 60_000;
/// The threshold T, in millionths.
const THRESHOLDS: [u32; 3] = [300_000, 500_000, 900_000];
const SYMBOLS: u16 = 100;
const BLOCKS: u64 = 500;
const BLOCKS_QUICK: u64 = 300;
/// Blocks that are drawn, and not sent.
const DRAWN: usize = 20_000;
const DRAWN_QUICK: usize = 2000;
/// Rates of the link and of the sender, in Mbit/s.
const LINK: u64 = 100;
const RATE: u64 = 95;

/// One transfer of a file in blocks.
struct Sent {
    threshold: u32,
    /// Whether δ is measured; otherwise it is 0.
    measured: bool,
    loss: u32,
    seed: u64,
    blocks: u64,
}

/// The result of a run.
#[derive(Debug, Deserialize, Serialize)]
struct Came {
    threshold: u32,
    measured: bool,
    loss: u32,
    seed: u64,
    blocks: u64,
    /// Packets: originals, ahead of loss, and in answer to it.
    originals: u64,
    ahead: u64,
    answers: u64,
    /// Blocks that needed another round of repairs.
    again: u64,
}

impl Came {
    fn ahead_percent(&self) -> f64 {
        100.0 * self.ahead as f64 / self.originals as f64
    }

    fn in_all_percent(&self) -> f64 {
        100.0 * (self.ahead + self.answers) as f64 / self.originals as f64
    }

    fn again_percent(&self) -> f64 {
        100.0 * self.again as f64 / self.blocks as f64
    }
}

impl Case for Sent {
    type Run = Came;

    fn row(&self) -> String {
        let delta = if self.measured { "measured" } else { "0" };
        let (t, loss) = (part(self.threshold), 100.0 * part(self.loss));
        format!("sessions: T = {t}, δ = {delta}, {loss} % loss")
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn extent(&self) -> String {
        format!("{} blocks", self.blocks)
    }

    fn is_of(&self, run: &Came) -> bool {
        let of_run = (run.threshold, run.measured, run.loss, run.seed);
        of_run == (self.threshold, self.measured, self.loss, self.seed)
    }

    fn run(&self, _: &Studio<'_>) -> Result<Came, NoRun> {
        let loss = Loss::Bernoulli(part(self.loss));
        let len = self.blocks * u64::from(SYMBOLS) * 1000;
        let mut scenario = Scenario::new(link(LINK, 10, loss, self.seed)).bulk(len);
        scenario.paper = Some(Paper {
            threshold: self.threshold,
            delta: match self.measured {
                true => Delta::Measured,
                false => Delta::Share(0),
            },
            initial: self.loss,
            // Whatever fails: no block waits for another.
            window: 64,
            ..Paper::default()
        });
        scenario.cc = CcKind::Fixed(RATE * 1_000_000 / 8);
        let mut pair = scenario.build();
        if !pair.run_transfer(600 * SEC) {
            return Err("not all has arrived".into());
        }
        let stats = pair.client().session().stats();
        Ok(Came {
            threshold: self.threshold,
            measured: self.measured,
            loss: self.loss,
            seed: self.seed,
            blocks: stats.blocks,
            originals: stats.source_sent,
            ahead: stats.repair_proactive,
            answers: stats.repair_reactive,
            again: stats.blocks_second_round,
        })
    }

    fn result(run: &Came) -> String {
        format!(
            "{:.1} % ahead, {:.1} % of blocks again",
            run.ahead_percent(),
            run.again_percent()
        )
    }
}

/// Millionths as a share from 0 to 1.
fn part(millionths: u32) -> f64 {
    f64::from(millionths) / 1e6
}

/// Runs them and puts them on the page; false after an interruption.
pub(super) fn draw(studio: &Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let losses: &[u32] = match studio.quick {
        true => &LOSSES_QUICK,
        false => &LOSSES,
    };
    let blocks = if studio.quick { BLOCKS_QUICK } else { BLOCKS };
    let mut cases = Vec::new();
    for loss in losses.iter().copied() {
        for threshold in THRESHOLDS {
            for measured in [false, true] {
                cases.extend((1..=seeds(studio)).map(|seed| Sent {
                    threshold,
                    measured,
                    loss,
                    seed,
                    blocks,
                }));
            }
        }
    }
    let Some(runs) = campaign::measure(("fig7-sessions", cases), 2, studio, sheet)? else {
        return Ok(false);
    };
    let says = |loss, threshold| redundant(SYMBOLS, part(loss), 0.0, part(threshold));
    let of = |(loss, threshold, measured), pick: fn(&Came) -> f64| {
        let these = runs
            .iter()
            .filter(|run| (run.loss, run.threshold, run.measured) == (loss, threshold, measured));
        Sample::of_seeds(these.map(|run| (run.seed, pick(run))))
    };
    sheet.paragraph(
        "## From sessions\n\nSessions of the paper's mode in virtual time: 100 Mbit/s, RTT 10 ms, blocks of 100 symbols, peeled. Packets beyond the originals, \
         in per cent of these: ahead of loss (ProFEC), and with what answers it (originals again and ReFEC). With δ measured, it is the deviation of reports of 1000 packets.",
    );
    for (name, measured, delta) in [("sessions", false, "0"), ("deviation", true, "measured")] {
        let mut series = Vec::new();
        for (look, threshold) in THRESHOLDS.into_iter().enumerate() {
            let t = part(threshold);
            if !measured {
                let says =
                    |loss: &u32| (100.0 * part(*loss), f64::from(says(*loss, threshold).count));
                let points = losses.iter().map(says).collect();
                series.push(
                    Series::new(&format!("T = {t}: equations"), Style::Dashes, points)
                        .with_look(look),
                );
            }
            let curve = |what: &str, style, pick: fn(&Came) -> f64| {
                let mut curve =
                    Series::new(&format!("T = {t}: {what}"), style, Vec::new()).with_look(look);
                for loss in losses.iter().copied() {
                    place(
                        &mut curve,
                        100.0 * part(loss),
                        &of((loss, threshold, measured), pick),
                    );
                }
                curve
            };
            series.push(curve("ProFEC", Style::Line, Came::ahead_percent));
            series.push(curve("in all", Style::Dotted, Came::in_all_percent));
        }
        sheet.chart(
            name,
            &Chart {
                title: format!("Figure 7 from sessions, δ {delta}"),
                x_label: "packet loss rate (%)".to_owned(),
                y_label: "redundancy (%)".to_owned(),
                is_x_logarithmic: false,
                is_y_logarithmic: false,
                series,
            },
        );
    }
    let header = [
        "at 6 % loss",
        "δ",
        "equations",
        "ProFEC",
        "in all",
        "blocks with another round",
    ];
    let mut rows = Vec::new();
    for threshold in THRESHOLDS {
        for (measured, delta) in [(false, "0"), (true, "measured")] {
            let of = |pick| in_interval(&of((PUBLISHED, threshold, measured), pick), 1);
            let equations = match measured {
                true => "–".to_owned(),
                false => format!("{} %", says(PUBLISHED, threshold).count),
            };
            rows.push(vec![
                format!("T = {}", part(threshold)),
                delta.to_owned(),
                equations,
                of(Came::ahead_percent),
                of(Came::in_all_percent),
                of(Came::again_percent),
            ]);
        }
    }
    sheet.summary(&header.map(str::to_owned), &rows);
    let drawn = if studio.quick { DRAWN_QUICK } else { DRAWN };
    sheet.paragraph(
        "Why not 1 − T, step by step, for δ = 0. The equations reckon with exactly n·p lost originals, and with symbols each of which is drawn anew; then with as many losses as chance \
         brings; then with packets of distinct symbols, as one that is drawn twice would cancel out: these cover more. Covered is not yet peeled: two lost symbols may be in one packet only. The last two \
         columns are the same process, drawn and from sessions, which have to measure p:",
    );
    let header = [
        "blocks that need another round (%)",
        "1 − T",
        "not covered, symbols drawn anew",
        "not covered, distinct",
        "not peeled, distinct (drawn)",
        "sessions",
    ];
    let mut rows = Vec::new();
    for loss in losses.iter().copied() {
        for threshold in THRESHOLDS {
            let Redundant { degree, count } = says(loss, threshold);
            let p = part(loss);
            let covered = |distinct| not_covered(SYMBOLS.into(), p, degree, count, distinct);
            let peeled = not_peeled(SYMBOLS.into(), p, degree, count, drawn);
            let percent = |share: f64| format!("{:.1}", 100.0 * share);
            rows.push(vec![
                format!("{} % loss, T = {}", 100.0 * p, part(threshold)),
                percent(1.0 - part(threshold)),
                percent(covered(false)),
                percent(covered(true)),
                percent(peeled),
                in_interval(&of((loss, threshold, false), Came::again_percent), 1),
            ]);
        }
    }
    sheet.summary(&header.map(str::to_owned), &rows);
    let exactly = Sample::Exactly;
    sheet.paragraph("What the equations mean to bring about, at 6 % loss with δ = 0; of two limits, one on either side, both have to hold:");
    let mut sought: Vec<(String, String, Check)> = Vec::new();
    for threshold in THRESHOLDS {
        let t = part(threshold);
        let sessions = |pick| of((PUBLISHED, threshold, false), pick);
        let count = f64::from(says(PUBLISHED, threshold).count);
        let far = sessions(Came::ahead_percent).map(|it| (it - count).abs());
        sought.push((
            format!("T = {t}: ProFEC, packets of a block away from the equations"),
            "at most 1".to_owned(),
            Check::at_most("", &far, 1.0, &exactly(1.0)),
        ));
        let means = 100.0 * (1.0 - t);
        let again = || sessions(Came::again_percent);
        sought.push((
            format!("T = {t}: blocks with another round, not less than 1 − T by 3 points"),
            format!("{:.0} %", means),
            Check::at_least("", &again(), 1.0, &exactly(means - 3.0)),
        ));
        sought.push((
            format!("T = {t}: not more than 1 − T by 3 points"),
            format!("{:.0} %", means),
            Check::at_most("", &again(), 1.0, &exactly(means + 3.0)),
        ));
    }
    sought.push((
        "T = 0.5: packets in all beyond the originals, per cent of these".to_owned(),
        "at most 19".to_owned(),
        Check::at_most(
            "",
            &of((PUBLISHED, 500_000, false), Came::in_all_percent),
            1.0,
            &exactly(19.0),
        ),
    ));
    let sentences: Vec<Sentence<'_>> = (sought.iter())
        .map(|(about, published, check)| Sentence {
            about,
            published,
            check: Some(check.clone()),
            remark: "",
        })
        .collect();
    sheet.sentences(&sentences);
    sheet.check(Check::at_least(
        "in virtual time at 6 % loss, twice as many blocks at least need another round where T = 0.5 as where T = 0.9",
        &of((PUBLISHED, 500_000, false), Came::again_percent),
        2.0,
        &of((PUBLISHED, 900_000, false), Came::again_percent),
    ));
    sheet.data("sessions", &csv(&runs));
    Ok(true)
}

fn csv(runs: &[Came]) -> String {
    let mut csv =
        "threshold,delta,loss,seed,ahead_percent,in_all_percent,again_percent\n".to_owned();
    for run in runs {
        csv += &format!(
            "{},{},{},{},{:.3},{:.3},{:.3}\n",
            part(run.threshold),
            if run.measured { "measured" } else { "0" },
            part(run.loss),
            run.seed,
            run.ahead_percent(),
            run.in_all_percent(),
            run.again_percent()
        );
    }
    csv
}
