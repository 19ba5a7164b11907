//! Where our reading of the paper may differ from it: one assumption at a time, with ICM and without.

use sphinx_codes::svg::{Chart, Series, Style};

use super::{
    Check, Sheet, Studio, Verdict,
    claim::Sample,
    curves::{self, csv, loss_percent, mean_ms, place, sample, shown, wire_ratio},
};
use crate::{
    Cell,
    runner::{Results, ScenarioFailure},
};

pub(super) const SCENARIOS: &[(&str, &str)] = &[
    scenario!("gap-assumptions"),
    scenario!("gap-links"),
    scenario!("gap-load"),
];

/// Ends the name of a contestant without ICM.
const NO_ICM: &str = ", no ICM";
/// Contestants of the scenario of assumptions with one trigger only, and what they are compared with.
const ONE_TRIGGER: [&str; 2] = ["Block-SACKs only", "Symbol-SACKs only"];
const AS_READ: &str = "as read";
const CODES: [&str; 3] = ["semi-random LT", "traditional LT", "Reed–Solomon"];
/// Latencies that the paper gives for a block of 100 kB, in ms.
const PUBLISHED_MS: [f64; 3] = [2.0, 15.0, 18.0];
/// A block of 100 kB.
const BLOCK_MEGABITS: f64 = 0.8;
/// Smaller ratios than this do not count as more.
const MATTERS: f64 = 1.001;

/// Where a published sentence was looked for, and what came of it.
struct Sought {
    sentence: &'static str,
    found: Vec<(String, Verdict)>,
}

impl Sought {
    fn new(sentence: &'static str) -> Sought {
        Sought {
            sentence,
            found: Vec::new(),
        }
    }

    fn add(&mut self, place: &str, check: &Check) {
        self.found.push((place.to_owned(), check.verdict));
    }

    /// The result in words: where the sentence holds, or that it holds nowhere.
    fn says(&self) -> String {
        let all = self.found.len();
        let are = |verdict| {
            let these = self.found.iter().filter(move |(_, it)| *it == verdict);
            these.map(|(place, _)| place.as_str()).collect::<Vec<_>>()
        };
        let (holds, fails) = (are(Verdict::Holds), are(Verdict::Fails));
        let undecided = all - holds.len() - fails.len();
        let sentence = self.sentence;
        match holds.len() {
            0 => format!(
                "- **{sentence}: not reproduced** in any of {all} places ({} contradict it, {undecided} are undecided).",
                fails.len()
            ),
            count if count == all => format!("- {sentence}: reproduced in all {all} places."),
            count => format!(
                "- {sentence}: reproduced in {count} of {all} places; contradicted in {} ({}), undecided in {undecided}.",
                fails.len(),
                listed(&fails)
            ),
        }
    }
}

fn listed(places: &[&str]) -> String {
    match places.is_empty() {
        true => "none".to_owned(),
        false => places.join("; "),
    }
}

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let mut all = Vec::new();
    for scenario in SCENARIOS {
        let Some(results) = studio.run(*scenario)? else {
            return Ok(false);
        };
        sheet.note(&results);
        all.push(results);
    }
    let [assumptions, links, load] = &all[..] else {
        unreachable!("as many as there are scenarios")
    };
    sheet.title(
        "Where we may differ from the paper",
        "The paper's mode in virtual time, where processors have no limit: one assumption at a time, everything else as in `docs/paper.md`. \
         Blocks leave at 190 of 200 Mbit/s; ratios are of runs with one seed, and what is less than a thousandth counts as nothing.",
    );
    let mut sought = [
        Sought::new("ICM adds goodput"),
        Sought::new("ICM shortens the completion of blocks"),
        Sought::new("semi-random LT is ahead of traditional LT"),
        Sought::new("semi-random LT is ahead of Reed–Solomon"),
    ];
    let [icm, latency, lt, rs] = &mut sought;
    let by_assumption = gains(assumptions, icm);
    let by_link = of_links(links, icm, lt, rs);
    let by_load = of_load(load, latency);
    let said: Vec<String> = sought.iter().map(Sought::says).collect();
    sheet.paragraph(&said.join("\n"));

    sheet.paragraph(
        "## Assumptions\n\nA file over 200 Mbit/s, RTT 10 ms, 6 % loss. What ICM adds is what the timer would have cost: a block that fails \
         keeps its place in the window until it is compensated.",
    );
    let header = [
        "assumption",
        "with ICM, Mbit/s",
        "without",
        "gain",
        "\"ICM adds goodput\"",
        "IP bytes per byte, with",
    ];
    sheet.summary(&header.map(str::to_owned), &by_assumption);
    for (part, word, unit, x_label) in [
        ("window", "window ", "", "window (blocks)"),
        ("timer", "timer ", " ms", "timer (ms)"),
    ] {
        sheet.chart(part, &gain_by(assumptions, (word, unit), x_label));
    }
    sheet.data("assumptions", &csv(assumptions));

    sheet.paragraph(
        "## Links and codes\n\nThe same by round-trip time and loss. Without the limit of a processor, the order of codes is that of the bytes that they send: \
         Reed–Solomon \
         sends 14 % whatever is lost. At 100 ms the window, 16 blocks, is less than the path holds.",
    );
    let header = [
        "link",
        "semi-random LT, Mbit/s",
        "ICM's gain",
        "against traditional LT",
        "against Reed–Solomon",
    ];
    sheet.summary(&header.map(str::to_owned), &by_link);
    sheet.data("links", &csv(links));
    processors(links, sheet);

    sheet.paragraph(
        "## Load\n\nBlocks of 100 kB at a fixed rate over 200 Mbit/s, RTT 10 ms, 6 % loss: mean time from when a block is due to its completion. A Symbol-SACK \
         compensates if it is on more than two blocks, so that a block waits for two others at least, 80 ms at 20 Mbit/s; the timer takes 200 ms.",
    );
    let header = [
        "load",
        "with ICM, ms",
        "without",
        "without against with",
        "\"ICM shortens it\"",
    ];
    sheet.summary(&header.map(str::to_owned), &by_load);
    sheet.data("load", &csv(load));
    sheet.paragraph(
        "Not varied, as virtual time has no processors: how many of these the paper's ends had, and whether parallel coding adds goodput.",
    );
    Ok(true)
}

/// Checks that the first is more than the second.
fn more(left: &Sample, right: &Sample) -> Check {
    Check::at_least("", left, MATTERS, right)
}

/// The ratio in a check's numbers, without what is compared.
fn times(check: &Check) -> String {
    match check.measured.split_once(": ") {
        Some((_, times)) => times.to_owned(),
        None => check.measured.clone(),
    }
}

fn goodput(results: &Results, cell: &Cell, name: &str) -> Sample {
    sample(results, &cell.name, name, curves::goodput)
}

/// Contestants with ICM, each with the name of the same one without.
fn pairs(results: &Results) -> Vec<(String, String)> {
    let without = |name: &str| match ONE_TRIGGER.contains(&name) {
        true => format!("{AS_READ}{NO_ICM}"),
        false => format!("{name}{NO_ICM}"),
    };
    let names = results.contestants().filter(|name| !name.ends_with(NO_ICM));
    names.map(|name| (name.to_owned(), without(name))).collect()
}

fn gains(results: &Results, icm: &mut Sought) -> Vec<Vec<String>> {
    let Some((cell, _)) = results.cells.first() else {
        return Vec::new();
    };
    let row = |(name, without): (String, String)| {
        let (with, none) = (
            goodput(results, cell, &name),
            goodput(results, cell, &without),
        );
        let check = more(&with, &none);
        icm.add(&name, &check);
        let bytes = sample(results, &cell.name, &name, wire_ratio);
        vec![
            name,
            shown(&with, 1),
            shown(&none, 1),
            times(&check),
            check.verdict.of_a_sentence().to_owned(),
            shown(&bytes, 3),
        ]
    };
    pairs(results).into_iter().map(row).collect()
}

/// Goodput with and without ICM by the number in the contestants' names.
fn gain_by(results: &Results, (word, unit): (&str, &str), x_label: &str) -> Chart {
    let number = |name: &str| -> Option<f64> {
        let text = name.strip_prefix(word)?;
        match text.strip_suffix(" s") {
            Some(seconds) => Some(seconds.parse::<f64>().ok()? * 1e3),
            None => text.strip_suffix(unit)?.parse().ok(),
        }
    };
    let mut points: Vec<(f64, String, String)> = (pairs(results).into_iter())
        .filter_map(|(name, without)| Some((number(&name)?, name, without)))
        .collect();
    let as_read = match word {
        "window " => 16.0,
        _ => 200.0,
    };
    points.push((as_read, AS_READ.to_owned(), format!("{AS_READ}{NO_ICM}")));
    points.sort_by(|one, two| one.0.total_cmp(&two.0));
    let mut series = [
        Series::new("with ICM", Style::Line, Vec::new()),
        Series::new("without", Style::Line, Vec::new()),
    ];
    if let Some((cell, _)) = results.cells.first() {
        for (x, name, without) in &points {
            place(&mut series[0], *x, &goodput(results, cell, name));
            place(&mut series[1], *x, &goodput(results, cell, without));
        }
    }
    Chart {
        title: format!("Goodput by {x_label}, 6 % loss"),
        x_label: x_label.to_owned(),
        y_label: "goodput (Mbit/s)".to_owned(),
        is_x_logarithmic: true,
        is_y_logarithmic: false,
        series: series.into(),
    }
}

fn of_links(
    results: &Results,
    icm: &mut Sought,
    lt: &mut Sought,
    rs: &mut Sought,
) -> Vec<Vec<String>> {
    let [paper, traditional, reed_solomon] = CODES;
    let mut rows = Vec::new();
    for (cell, _) in &results.cells {
        let of = |name: &str| goodput(results, cell, name);
        let place = format!(
            "RTT {} ms, {} %",
            cell.link.rtt.as_millis(),
            loss_percent(cell)
        );
        let ours = of(paper);
        let checks = [
            more(&ours, &of(&format!("{paper}{NO_ICM}"))),
            more(&ours, &of(traditional)),
            more(&ours, &of(reed_solomon)),
        ];
        for (sought, check) in [&mut *icm, &mut *lt, &mut *rs].into_iter().zip(&checks) {
            sought.add(&place, check);
        }
        let mut row = vec![place, shown(&ours, 1)];
        row.extend(checks.iter().map(times));
        rows.push(row);
    }
    rows
}

/// What a processor would do to the order of codes.
fn processors(results: &Results, sheet: &mut Sheet) {
    let six =
        |cell: &&Cell| cell.link.rtt.as_millis() == 10 && (loss_percent(cell) - 6.0).abs() < 1e-6;
    let Some(cell) = results.cells.iter().map(|(cell, _)| cell).find(six) else {
        return;
    };
    sheet.paragraph(&format!(
        "What one processor allows is another limit: with the published times for a block (2, 15 and 18 ms), codes come in the published order, whatever they send. \
         At RTT 10 ms and 6 % loss:\n\n{}",
        super::sheet::markdown_table(
            &["code", "by bytes, Mbit/s", "published time of a block, ms", "one core at that, Mbit/s"].map(str::to_owned),
            &CODES
                .iter()
                .zip(PUBLISHED_MS)
                .map(|(name, ms)| {
                    vec![
                        (*name).to_owned(),
                        shown(&goodput(results, cell, name), 1),
                        format!("{ms}"),
                        format!("{:.1}", BLOCK_MEGABITS / ms * 1e3),
                    ]
                })
                .collect::<Vec<_>>(),
        )
    ));
}

fn of_load(results: &Results, latency: &mut Sought) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (cell, _) in &results.cells {
        let megabits = cell.workload.offered_bits().unwrap_or(0) / 1_000_000;
        for (name, without) in pairs(results) {
            let of = |name: &str| sample(results, &cell.name, name, mean_ms);
            let (with, none) = (of(&name), of(&without));
            let check = more(&none, &with);
            let place = format!("{megabits} Mbit/s, {name}");
            latency.add(&place, &check);
            rows.push(vec![
                place,
                shown(&with, 1),
                shown(&none, 1),
                times(&check),
                check.verdict.of_a_sentence().to_owned(),
            ]);
        }
    }
    rows
}
