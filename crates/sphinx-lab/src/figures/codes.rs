//! Figures 7 and 8: what the codes need and cost, by `sphinx-codes`.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use sphinx_codes::{
    figures::{
        CodingTime, LOSS_RATES, coding_times, coding_times_of_older, look_of, redundancy, to_csv,
    },
    svg::{Chart, Series, Style},
};

use super::{
    Check, Figure, Sheet, Studio,
    campaign::{self, Case, NoRun},
    claim::Sample,
    curves::{place, shown},
    profec,
    sheet::Sentence,
};
use crate::runner::ScenarioFailure;

/// The loss rates of figure 7 where there is little time.
const QUICK_LOSS_RATES: [f64; 3] = [0.01, 0.03, 0.06];
const SYMBOLS: usize = 100;
/// Semi-random LT with what the paper sends.
const PAPER: &str = "srlt T=0.5 (paper)";

/// Rounds in which every code is measured in turn: also in a hurry, as a processor that others use spoils one now and then.
const ROUNDS: u64 = 10;
/// How long each code is measured in a round.
const TIME: Duration = Duration::from_millis(30);
const TIME_QUICK: Duration = Duration::from_millis(4);

/// About how long a figure takes.
pub(super) fn duration(figure: Figure, quick: bool) -> Duration {
    Duration::from_secs(match (figure, quick) {
        (Figure::Redundancy, false) => 600,
        (Figure::Redundancy, true) => 25,
        (Figure::CodingTime, false) => 60,
        (Figure::CodingTime, true) => 6,
        _ => 0,
    })
}

pub(super) fn draw(
    figure: Figure,
    studio: &mut Studio<'_>,
    sheet: &mut Sheet,
) -> Result<bool, ScenarioFailure> {
    match figure {
        Figure::Redundancy => draw_redundancy(studio, sheet),
        _ => draw_coding_time(studio, sheet),
    }
}

/// What figure 7 computes: the same on every machine.
struct Computation {
    loss_rates: &'static [f64],
}

/// A line of its file.
#[derive(Debug, Deserialize, Serialize)]
struct Computed {
    curves: BTreeMap<String, Vec<(f64, f64)>>,
}

impl Case for Computation {
    type Run = Computed;

    fn row(&self) -> String {
        "computed and simulated with seed 1".to_owned()
    }

    fn seed(&self) -> u64 {
        1
    }

    fn seeds_min(&self) -> Option<usize> {
        Some(1)
    }

    fn extent(&self) -> String {
        format!("{} loss rates", self.loss_rates.len())
    }

    fn is_of(&self, _: &Computed) -> bool {
        true
    }

    fn run(&self, _: &Studio<'_>) -> Result<Computed, NoRun> {
        let chart = redundancy(SYMBOLS, self.loss_rates, self.seed());
        let curves = chart.series.into_iter();
        Ok(Computed {
            curves: curves.map(|series| (series.name, series.points)).collect(),
        })
    }

    fn result(_: &Computed) -> String {
        "computed".to_owned()
    }
}

/// The value of a series at a point.
fn at(chart: &Chart, name: &str, x: f64) -> Option<f64> {
    let series = chart.series.iter().find(|series| series.name == name)?;
    let near = |point: &&(f64, f64)| (point.0 - x).abs() < 1e-6;
    Some(series.points.iter().find(near)?.1)
}

fn draw_redundancy(studio: &Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let computation = Computation {
        loss_rates: match studio.quick {
            true => &QUICK_LOSS_RATES,
            false => &LOSS_RATES,
        },
    };
    let computed = campaign::measure(("fig7", vec![computation]), 1, studio, sheet)?;
    let Some(runs) = computed else {
        return Ok(false);
    };
    // The names and looks of its curves.
    let mut chart = redundancy(SYMBOLS, &[], 1);
    if let Some(run) = runs.first() {
        for series in &mut chart.series {
            if let Some(points) = run.curves.get(&series.name) {
                series.points.clone_from(points);
            }
        }
    }
    sheet.title(
        "Figure 7: redundancy against packet loss",
        "What each code sends on top of a block of 100 symbols. Computed and simulated with seeds: the \
         same on every machine. `rlc` and `rs` are solved for 1 % of blocks that need a second round, `rs` exactly, and `rlc` \
         so that no more than that explains what simulations count beyond it (one-sided, 97.5 %); `srlt` is the paper's rule for two values of its threshold T, with δ → 0 and its degree capped at n/2; `lt` is the mean at which a \
         block can be decoded, lost packets included, with a robust soliton distribution (c = 0.1, δ = 1), by peeling or with all \
         equations; `window` is the least at which a window of 100 symbols delivers all in order within 8 packets on average.",
    );
    sheet.chart("redundancy", &chart);
    sheet.data("redundancy", &to_csv(&chart));
    let names: Vec<&str> = chart
        .series
        .iter()
        .map(|series| series.name.as_str())
        .collect();
    let rates: Vec<f64> = (chart.series.iter())
        .find(|series| series.name.starts_with("rs"))
        .map(|series| series.points.iter().map(|point| point.0).collect())
        .unwrap_or_default();
    let mut header = vec!["redundancy (%) by packet loss rate".to_owned()];
    header.extend(rates.iter().map(|rate| format!("{rate} %")));
    let rows = names
        .iter()
        .filter(|name| !name.starts_with("published"))
        .map(|name| {
            let cells = rates.iter().map(|rate| {
                at(&chart, name, *rate).map_or("–".to_owned(), |value| format!("{value:.1}"))
            });
            [(*name).to_owned()].into_iter().chain(cells).collect()
        });
    let rows: Vec<Vec<String>> = rows.collect();
    sheet.summary(&header, &rows);
    let ours = |name| match at(&chart, name, 6.0) {
        Some(value) => Sample::Exactly(value),
        None => Sample::fold([], f64::max),
    };
    let (srlt, lt) = (|| ours(PAPER), || ours("lt (mean)"));
    let exactly = Sample::Exactly;
    sheet
        .paragraph("Of two limits, one on either side of the published number, both have to hold:");
    sheet.sentences(&[
        Sentence {
            about: "semi-random LT, 6 % loss: not above 14 %",
            published: "14 %",
            check: Some(Check::at_most("", &srlt(), 1.0, &exactly(14.0))),
            remark: "T is not told; at n = 100 a T just below 0.5 gives 14 packets, and half of the blocks then need another round",
        },
        Sentence {
            about: "semi-random LT, 6 % loss: within a packet of 14 %",
            published: "14 %",
            check: Some(Check::at_most("", &srlt(), 1.0, &exactly(15.0))),
            remark: "k* = 222 samples give 14.76 packets, rounded up",
        },
        Sentence {
            about: "traditional LT, 6 % loss: not above 30 %",
            published: "30 %",
            check: Some(Check::at_most("", &lt(), 1.0, &exactly(30.0))),
            remark: "what our distribution needs without any loss is 30 % at n = 100",
        },
        Sentence {
            about: "traditional LT against semi-random LT",
            published: "2.1 times",
            check: Some(Check::at_least("", &lt(), 30.0 / 14.0, &srlt())),
            remark: "at the mean, whatever the distribution",
        },
    ]);
    sheet.check(Check::at_least(
        "at 6 % loss, traditional LT needs at least 1.5 times the redundancy of semi-random LT",
        &lt(),
        1.5,
        &srlt(),
    ));
    profec::draw(studio, sheet)
}

/// A round of figure 8.
struct Round {
    number: u64,
    /// Time of a measurement, for each code.
    time: Duration,
}

/// A line of the file of results: codes by symbol length.
#[derive(Debug, Deserialize, Serialize)]
struct Rounded {
    round: u64,
    times: Vec<Timed>,
    /// Times with the instructions of older processors.
    #[serde(default)]
    older: Vec<OfEngine>,
}

#[derive(Debug, Deserialize, Serialize)]
struct OfEngine {
    engine: String,
    #[serde(flatten)]
    time: Timed,
}

#[derive(Debug, Deserialize, Serialize)]
struct Timed {
    code: String,
    /// Number of repairs; `None` in older runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    repairs: Option<usize>,
    symbol_bytes: usize,
    encode_us: f64,
    decode_us: f64,
}

impl From<CodingTime> for Timed {
    fn from(it: CodingTime) -> Timed {
        Timed {
            code: it.code.to_owned(),
            repairs: Some(it.repairs),
            symbol_bytes: it.symbol_bytes,
            encode_us: it.encode_us,
            decode_us: it.decode_us,
        }
    }
}

impl Case for Round {
    type Run = Rounded;

    fn row(&self) -> String {
        "every code, in turn".to_owned()
    }

    fn seed(&self) -> u64 {
        self.number
    }

    fn extent(&self) -> String {
        format!("{:?}", self.time)
    }

    fn is_of(&self, run: &Rounded) -> bool {
        run.round == self.number
    }

    fn run(&self, _: &Studio<'_>) -> Result<Rounded, NoRun> {
        let older = coding_times_of_older(self.time, self.number).into_iter();
        Ok(Rounded {
            round: self.number,
            times: (coding_times(self.time, self.number).into_iter())
                .map(Timed::from)
                .collect(),
            older: older
                .map(|(engine, time)| OfEngine {
                    engine: engine.name().to_owned(),
                    time: time.into(),
                })
                .collect(),
        })
    }

    fn result(_: &Rounded) -> String {
        "measured".to_owned()
    }
}

/// The numbers of a code and a symbol length in each round.
fn times(runs: &[Rounded], code: &str, symbol_bytes: usize, pick: fn(&Timed) -> f64) -> Sample {
    let of_round = |run: &Rounded| {
        let is_one = |it: &&Timed| it.code == code && it.symbol_bytes == symbol_bytes;
        Some((run.round, pick(run.times.iter().find(is_one)?)))
    };
    Sample::of_seeds(runs.iter().filter_map(of_round))
}

fn draw_coding_time(studio: &Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let time = if studio.quick { TIME_QUICK } else { TIME };
    let rounds = (1..=ROUNDS).map(|number| Round { number, time }).collect();
    let Some(runs) = campaign::measure(("fig8", rounds), 1, studio, sheet)? else {
        return Ok(false);
    };
    sheet.title(
        "Figure 8: coding time of a block of 100 kB",
        "Against symbol length, on one core, at 6 % loss, decoding as many losses as that usually brings. Redundancy is not the same for all: \
         `rlc`, `rs`, `fft-rs` and `window` have the repairs with which an MDS code fails in 1 % of blocks; `srlt` what the paper's rule \
         sends for two values of its threshold T, and decodes the blocks that it can decode: for T = 0.5, as in figure 7, that is about half of them; \
         `lt` sends no source symbols and so restores all of them, from as many rows as it takes while 6 % of these are lost. \
         Measured: different on every machine. Every code in turn, in as many rounds as there are seeds, with other losses in each, and other rows of `srlt` and `lt`.",
    );
    // Keys in the order in which they were measured.
    let mut keys: Vec<(&str, usize)> = Vec::new();
    for timed in runs.iter().flat_map(|run| &run.times) {
        let key = (timed.code.as_str(), timed.symbol_bytes);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let mut codes: Vec<&str> = Vec::new();
    for (code, _) in &keys {
        if !codes.contains(code) {
            codes.push(code);
        }
    }
    type Pick = fn(&Timed) -> f64;
    let encode: Pick = |it| it.encode_us;
    let decode: Pick = |it| it.decode_us;
    for (verb, pick) in [("encode", encode), ("decode", decode)] {
        let chart = chart(&runs, &keys, &codes, (verb, pick));
        sheet.chart(verb, &chart);
        sheet.data(verb, &every_round(&runs, pick, verb));
    }
    let total = |code: &str| times(&runs, code, 1000, |it| it.encode_us + it.decode_us);
    // NaN, which is left out, where older runs have no number of repairs.
    let repairs_of: Pick = |it| it.repairs.map_or(f64::NAN, |repairs| repairs as f64);
    let header = [
        "µs with symbols of 1000 bytes",
        "published",
        "repairs",
        "encode",
        "decode",
        "both",
    ];
    let published = |code: &str| match code {
        PAPER => "2000",
        "lt" => "15 000",
        "rs" => "18 000",
        "fft-rs" => "\"comparable\"",
        _ => "–",
    };
    let rows: Vec<Vec<String>> = (codes.iter())
        .map(|code| {
            let of = |pick| shown(&times(&runs, code, 1000, pick), 1);
            let (encode, decode) = (of(|it| it.encode_us), of(|it| it.decode_us));
            let repairs = shown(&times(&runs, code, 1000, repairs_of), 0);
            let both = shown(&total(code), 1);
            [*code, published(code), &repairs, &encode, &decode, &both]
                .map(str::to_owned)
                .to_vec()
        })
        .collect();
    sheet.summary(&header.map(str::to_owned), &rows);
    sheet.paragraph(
        "The paper's processor is of 2014, and how its arithmetic was done is not told. Ours multiplies 16 to 64 bytes at once, by what instructions there are, and \
         adds up in registers, and what it takes is another order of magnitude; what can be compared is what codes take of each other. \
         Published is 1 : 7.5 : 9 for semi-random LT, traditional LT and Reed–Solomon, encoding and decoding; semi-random LT is that for T = 0.5 here:",
    );
    let sentence = |about, published, check, remark| Sentence {
        about,
        published,
        check: Some(check),
        remark,
    };
    let at_least = |code: &str, factor: f64, other: &str| {
        Check::at_least("", &total(code), factor, &total(other))
    };
    sheet.sentences(&[
        sentence(
            "traditional LT against semi-random LT",
            "7.5 times",
            at_least("lt", 7.5, PAPER),
            "both only add up",
        ),
        sentence(
            "Reed–Solomon against semi-random LT",
            "9 times",
            at_least("rs", 9.0, PAPER),
            "multiplication is nearly as cheap as XOR here",
        ),
        sentence(
            "Reed–Solomon against traditional LT",
            "1.2 times",
            at_least("rs", 1.2, "lt"),
            "traditional LT sends no originals, and so restores all",
        ),
        sentence(
            "FFT Reed–Solomon: at most twice semi-random LT",
            "comparable",
            Check::at_most("", &total("fft-rs"), 2.0, &total(PAPER)),
            "its decoding has a fixed cost of a transform over 65 536 points",
        ),
    ]);
    older_processors(&runs, sheet);
    sheet.check(Check::at_least(
        "decoding traditional LT takes at least 1.5 times as long as semi-random LT",
        &times(&runs, "lt", 1000, |it| it.decode_us),
        1.5,
        &times(&runs, PAPER, 1000, |it| it.decode_us),
    ));
    Ok(true)
}

/// Ratios of the codes on older processors, where multiplying costs more.
fn older_processors(runs: &[Rounded], sheet: &mut Sheet) {
    let mut engines: Vec<&str> = Vec::new();
    for of in runs.iter().flat_map(|run| &run.older) {
        if !engines.contains(&of.engine.as_str()) {
            engines.push(&of.engine);
        }
    }
    if engines.is_empty() {
        return;
    }
    let total = |engine: &str, code: &str| {
        Sample::of_seeds(runs.iter().filter_map(|run| {
            let is_one = |of: &&OfEngine| of.engine == engine && of.time.code == code;
            let time = &run.older.iter().find(is_one)?.time;
            Some((run.round, time.encode_us + time.decode_us))
        }))
    };
    sheet.paragraph(
        "With the instructions of older processors, symbols of 1000 bytes, encoding and decoding, `srlt` for T = 0.5 (`scalar`: tables, byte by byte; `ssse3`: 16 bytes at once):",
    );
    let header = ["engine", "srlt, µs", "lt : srlt", "rs : srlt", "published"];
    let rows = engines.iter().map(|engine| {
        let srlt = total(engine, PAPER);
        let times = |code| shown(&total(engine, code).zip(&srlt, |one, two| one / two), 1);
        let (lt, rs) = (times("lt"), times("rs"));
        let published = "7.5, 9".to_owned();
        vec![(*engine).to_owned(), shown(&srlt, 1), lt, rs, published]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    sheet.summary(&header.map(str::to_owned), &rows);
}

fn chart(
    runs: &[Rounded],
    keys: &[(&str, usize)],
    codes: &[&str],
    (verb, pick): (&str, fn(&Timed) -> f64),
) -> Chart {
    let curves = codes.iter().map(|code| {
        let mut series = Series::new(code, Style::Line, Vec::new()).with_look(look_of(code));
        for (_, symbol_bytes) in keys.iter().filter(|(one, _)| one == code) {
            let sample = times(runs, code, *symbol_bytes, pick);
            place(&mut series, *symbol_bytes as f64, &sample);
        }
        series
    });
    let published = [("srlt", 2000.0), ("lt", 15_000.0), ("rs", 18_000.0)];
    let published = published.map(|(code, time)| {
        let name = format!("published: {code}");
        Series::new(&name, Style::Marks, vec![(1000.0, time)]).with_look(look_of(code))
    });
    Chart {
        title: format!("Figure 8: time to {verb} a block of 100 kB"),
        x_label: "symbol length (bytes)".to_owned(),
        y_label: "time (µs)".to_owned(),
        is_x_logarithmic: true,
        is_y_logarithmic: true,
        series: curves.chain(published).collect(),
    }
}

fn every_round(runs: &[Rounded], pick: fn(&Timed) -> f64, verb: &str) -> String {
    let mut csv = format!("code,repairs,symbol_bytes,round,{verb}_us\n");
    for run in runs {
        for it in &run.times {
            let repairs = { it.repairs }.map_or(String::new(), |repairs| repairs.to_string());
            csv += &format!(
                "{},{repairs},{},{},{:.3}\n",
                it.code,
                it.symbol_bytes,
                run.round,
                pick(it)
            );
        }
    }
    csv
}
