//! What the paper's figures 7 and 8 show: redundancy against loss rate, and
//! coding time against symbol length.

use std::time::Duration;

use sphinx_fec::{CodeId, Engine, lt, params};

use crate::bench::{self, Setting};
use crate::loss::Loss;
use crate::simulate::{self, Rows, Scenario};
use crate::svg::{Chart, Series, Style};

/// The look of a code, the same in all figures.
fn look(code: CodeId) -> usize {
    match code {
        CodeId::Rlc => 0,
        CodeId::Srlt => 1,
        CodeId::Lt => 2,
        CodeId::Rs => 3,
        CodeId::FftRs => 4,
        _ => 5,
    }
}

/// The erasure bound, variants of a code, and so on.
const OTHER_LOOKS: [usize; 3] = [9, 7, 6];

/// The paper's rule with the T that fits its figures, and with a high one, as
/// figures 7 and 8 call them.
const RULES: [(&str, f64); 2] = [
    ("srlt T=0.5 (paper)", params::srlt::PAPER_THRESHOLD),
    ("srlt T=0.9", 0.9),
];

const BLOCK_BYTES: usize = 100_000;
/// The loss rates of figure 7.
pub const LOSS_RATES: [f64; 9] = [0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.10];
const SYMBOL_LENGTHS: [usize; 6] = [250, 500, 1000, 2000, 4000, 8000];

/// Share of blocks that may fail in the first flight, where a code is solved
/// for that.
const EPSILON: f64 = 0.01;
/// Packets that are simulated to find out how many repairs of `rlc` that takes.
/// At 5 % an MDS code fails with 0.973 % already, and that little is left must
/// not be taken for too little.
const RLC_PACKETS: usize = 40_000_000;

/// The data of a chart, a line per point.
#[must_use]
pub fn to_csv(chart: &Chart) -> String {
    let mut csv = format!("series,{},{}\n", chart.x_label, chart.y_label);
    for series in &chart.series {
        for (x, y) in &series.points {
            let y = (y * 1000.0).round() / 1000.0;
            csv.push_str(&format!("{},{x},{y}\n", series.name));
        }
    }
    csv
}

/// Figure 7: redundancy in per cent against loss rate in per cent, for blocks
/// of `n` symbols. Seeded: the same everywhere.
#[must_use]
pub fn redundancy(n: usize, loss_rates: &[f64], seed: u64) -> Chart {
    let series = |name: &str, style, percent: &dyn Fn(f64) -> f64| {
        let points = loss_rates.iter().map(|p| (100.0 * p, percent(*p)));
        // Where nothing was found there is no point.
        let found = points.filter(|(_, percent)| percent.is_finite());
        Series::new(name, style, found.collect())
    };
    let per_cent = |packets: f64| 100.0 * packets / n as f64;
    let paper = |p: f64, threshold: f64| {
        use params::srlt as paper;
        let degree = paper::degree(p, 0.0, paper::degree_cap(n));
        per_cent(paper::packet_count(n, p, degree, threshold) as f64)
    };
    let mds = |p| params::repair_for(n, p, EPSILON);
    let rlc = |p| {
        let scenario = Scenario {
            n,
            repairs: 0,
            loss: Loss::Independent { rate: p },
            maximum_likelihood: false,
        };
        let numbers = mds(p)..=4 * n;
        simulate::repairs_for(Rows::Rlc, &scenario, EPSILON, numbers, RLC_PACKETS, seed)
            .map_or(f64::NAN, |repairs| repairs as f64)
    };
    let lt = |p, is_ml| {
        let loss = Loss::Independent { rate: p };
        let needed = simulate::rateless(lt::Shape::default(), n, loss, is_ml, 400, seed);
        per_cent(needed.mean() - n as f64)
    };
    let [bound, cautious, likelier] = OTHER_LOOKS;
    Chart {
        title: format!("Figure 7: redundancy against packet loss, n = {n}"),
        x_label: "packet loss rate (%)".to_owned(),
        y_label: "redundancy (%)".to_owned(),
        is_x_logarithmic: false,
        is_y_logarithmic: false,
        series: vec![
            series("erasure bound p/(1−p)", Style::Dashes, &|p| {
                100.0 * params::erasure_bound(p)
            })
            .with_look(bound),
            series("rlc (1 % fail)", Style::Line, &|p| per_cent(rlc(p)))
                .with_look(look(CodeId::Rlc)),
            series("rs (1 % fail)", Style::Dotted, &|p| per_cent(mds(p) as f64))
                .with_look(look(CodeId::Rs)),
            series("window (mean delay ≤ 8)", Style::Line, &|p| {
                window_redundancy(n, p, seed)
            })
            .with_look(look(CodeId::Window)),
            series(RULES[0].0, Style::Line, &|p| paper(p, RULES[0].1))
                .with_look(look(CodeId::Srlt)),
            series(RULES[1].0, Style::Line, &|p| paper(p, RULES[1].1)).with_look(cautious),
            series("lt (mean)", Style::Line, &|p| lt(p, false)).with_look(look(CodeId::Lt)),
            series("lt with ML (mean)", Style::Line, &|p| lt(p, true)).with_look(likelier),
            Series::new("published: srlt", Style::Marks, vec![(6.0, 14.0)])
                .with_look(look(CodeId::Srlt)),
            Series::new("published: lt", Style::Marks, vec![(6.0, 30.0)])
                .with_look(look(CodeId::Lt)),
        ],
    }
}

/// The probability that `count` packets of `degree` symbols each, of a block of
/// `n`, do not cover all lost symbols between them, where each packet of any
/// kind is lost with probability `p`, exactly. `distinct`: the symbols of a
/// packet are; otherwise each is drawn anew, and one that comes twice counts.
#[must_use]
pub fn not_covered(n: usize, p: f64, degree: u32, count: u32, distinct: bool) -> f64 {
    let n = n as u32;
    // That one packet has none of j certain symbols.
    let misses = |j: u32| -> f64 {
        let (n, j) = (f64::from(n), f64::from(j));
        (0..degree)
            .map(|drawn| {
                let left = if distinct { n - f64::from(drawn) } else { n };
                (1.0 - j / left).max(0.0)
            })
            .product()
    };
    let misses: Vec<f64> = (0..=n).map(misses).collect();
    let lost_symbols = binomial(n, p);
    let arriving = binomial(count, 1.0 - p);
    let mut covered = 0.0;
    for (arrived, likely) in arriving.iter().enumerate() {
        for (lost, lost_likely) in lost_symbols.iter().enumerate() {
            // What is less likely is of no account, and its sum would cancel out.
            if likely * lost_likely < 1e-12 {
                continue;
            }
            let mut choices = 1.0;
            let mut all = 0.0;
            for (j, misses) in misses.iter().enumerate().take(lost + 1) {
                all += choices * misses.powi(arrived as i32);
                choices *= -((lost - j) as f64) / (j + 1) as f64;
            }
            covered += likely * lost_likely * all.clamp(0.0, 1.0);
        }
    }
    (1.0 - covered).clamp(0.0, 1.0)
}

/// The share of `blocks` blocks that peeling does not complete, with such
/// packets of distinct symbols. Seeded.
#[must_use]
pub fn not_peeled(n: usize, p: f64, degree: u32, count: u32, blocks: usize) -> f64 {
    let scenario = Scenario {
        n,
        repairs: count as usize,
        loss: Loss::Independent { rate: p },
        maximum_likelihood: false,
    };
    simulate::blocks(Rows::Srlt { degree }, &scenario, blocks, 1).failure()
}

fn binomial(n: u32, p: f64) -> Vec<f64> {
    let mut all = vec![(1.0 - p).powi(n as i32)];
    for k in 0..n {
        let ratio = f64::from(n - k) / f64::from(k + 1) * p / (1.0 - p);
        all.push(all[k as usize] * ratio);
    }
    all
}

/// The smallest redundancy, in steps of a tenth of a percentage point, at which
/// a window of `n` symbols delivers 400 000 symbols in order within 8 packets on
/// average.
fn window_redundancy(n: usize, p: f64, seed: u64) -> f64 {
    let loss = Loss::Independent { rate: p };
    let suffices = |tenths: usize| {
        let stream = simulate::window(n, tenths as f64 / 1000.0, loss, 400_000, seed);
        stream.lost == 0 && stream.delay_mean <= 8.0
    };
    let mut too_few = (1000.0 * params::erasure_bound(p)) as usize;
    let mut enough = 2 * too_few + 50;
    while enough - too_few > 1 {
        let middle = usize::midpoint(too_few, enough);
        if suffices(middle) {
            enough = middle;
        } else {
            too_few = middle;
        }
    }
    enough as f64 / 10.0
}

/// What a block of 100 kB takes in one code, in microseconds.
#[derive(Clone, Debug)]
pub struct CodingTime {
    /// The code, and T where the paper's rule says how many repairs it has.
    pub code: &'static str,
    /// Repairs that are sent; rows of `lt`, which sends nothing else.
    pub repairs: usize,
    /// Bytes of a symbol.
    pub symbol_bytes: usize,
    /// To encode.
    pub encode_us: f64,
    /// To decode.
    pub decode_us: f64,
}

/// A code of figure 8: what it is called, and T of the paper's rule.
type Contestant = (&'static str, CodeId, Option<f64>);

fn contestants() -> impl Iterator<Item = Contestant> {
    CodeId::ALL.into_iter().flat_map(|code| match code {
        CodeId::Srlt => RULES
            .map(|(name, threshold)| (name, code, Some(threshold)))
            .to_vec(),
        _ => vec![(code.name(), code, None)],
    })
}

/// Figure 8, once: every code with every symbol length, one after the other, for repairs against 6 % loss, and for as many losses as
/// that usually brings. Measured: different on every machine. Losses, and rows that are drawn, are others for each `draw`.
#[must_use]
pub fn coding_times(time: Duration, draw: u64) -> Vec<CodingTime> {
    let settings =
        SYMBOL_LENGTHS.map(|symbol_len| setting(symbol_len, Engine::detect(), time, draw));
    { settings.iter() }
        .flat_map(|setting| contestants().map(move |one| (one, setting)))
        .filter_map(|(one, setting)| coding_time(one, setting))
        .collect()
}

/// The same of the three codes that the paper compares, with symbols of 1000
/// bytes and the instructions of older processors, as far as they are not the
/// best ones here.
#[must_use]
pub fn coding_times_of_older(time: Duration, draw: u64) -> Vec<(Engine, CodingTime)> {
    let engines = ["scalar", "ssse3"].into_iter().filter_map(Engine::by_name);
    let older = engines.filter(|engine| engine.name() != Engine::detect().name());
    let compared = [RULES[0].0, CodeId::Lt.name(), CodeId::Rs.name()];
    older
        .flat_map(|engine| contestants().map(move |one| (engine, one)))
        .filter(|(_, (name, ..))| compared.contains(name))
        .filter_map(|(engine, one)| {
            Some((
                engine,
                coding_time(one, &setting(1000, engine, time, draw))?,
            ))
        })
        .collect()
}

fn setting(symbol_len: usize, engine: Engine, time: Duration, draw: u64) -> Setting {
    let n = BLOCK_BYTES / symbol_len;
    Setting {
        engine,
        n,
        repairs: params::repair_for(n, 0.06, EPSILON),
        lost: bench::usual_losses(n),
        symbol_len,
        time,
        draw,
    }
}

fn coding_time((name, code, threshold): Contestant, setting: &Setting) -> Option<CodingTime> {
    let speed = match threshold {
        Some(threshold) => bench::measure_srlt(setting, threshold),
        None => bench::measure(code, setting),
    };
    let speed = speed.ok()?;
    Some(CodingTime {
        code: name,
        repairs: speed.repairs,
        symbol_bytes: setting.symbol_len,
        encode_us: speed.encode.as_secs_f64() * 1e6,
        decode_us: speed.decode.as_secs_f64() * 1e6,
    })
}

/// The look of the code of this name.
#[must_use]
pub fn look_of(code: &str) -> usize {
    match { RULES.iter() }.position(|(name, _)| *name == code) {
        Some(0) => look(CodeId::Srlt),
        Some(_) => OTHER_LOOKS[1],
        None => CodeId::by_name(code).map_or(OTHER_LOOKS[0], look),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T = 0.5 and 6 % loss: 15 packets of 16 symbols.
    #[test]
    fn distinct_symbols_cover_more_and_peeling_takes_back() {
        let covered = |distinct| not_covered(100, 0.06, 16, 15, distinct);
        assert!((covered(false) - 0.468).abs() < 0.001, "{}", covered(false));
        assert!((covered(true) - 0.406).abs() < 0.001, "{}", covered(true));
        let peeled = not_peeled(100, 0.06, 16, 15, 4000);
        assert!((peeled - 0.472).abs() < 0.025, "{peeled}");
        let none = not_covered(100, 0.06, 16, 0, true);
        assert!((none - (1.0 - 0.94_f64.powi(100))).abs() < 1e-9, "{none}");
    }

    #[test]
    fn redundancy_at_the_papers_points() {
        let chart = redundancy(100, &[0.05, 0.06], 1);
        let points = |name: &str| {
            let series = chart.series.iter().find(|series| series.name == name);
            &series.expect("a series of this name").points
        };
        let of = |name: &str| points(name).last().expect("a point").1;
        // As many as an MDS code, also where that leaves little.
        assert_eq!(points("rlc (1 % fail)"), points("rs (1 % fail)"));
        assert_eq!(points("rlc (1 % fail)"), &[(5.0, 11.0), (6.0, 13.0)]);
        assert_eq!(of("srlt T=0.5 (paper)"), 15.0);
        assert_eq!(of("srlt T=0.9"), 27.0);
        assert!((11.8..12.5).contains(&of("window (mean delay ≤ 8)")));
        assert!(of("lt (mean)") >= 29.0);
        assert!(of("lt with ML (mean)") < of("lt (mean)"));
        assert!(to_csv(&chart).contains("published: lt,6,30\n"));
    }

    /// Measures one symbol length only, as it takes time.
    #[test]
    fn coding_times_tell_their_repairs() {
        let setting = setting(1000, Engine::detect(), Duration::ZERO, 3);
        let times: Vec<CodingTime> = contestants()
            .filter_map(|one| coding_time(one, &setting))
            .collect();
        let repairs = |code: &str| {
            let one = times.iter().find(|time| time.code == code);
            one.expect("it was measured").repairs
        };
        let solved = ["rlc", "rs", "window"].map(repairs);
        assert_eq!(solved, [13; 3]);
        assert_eq!(RULES.map(|(name, _)| repairs(name)), [15, 27]);
        assert!((115..170).contains(&repairs("lt")), "{}", repairs("lt"));
        let looks = RULES.map(|(name, _)| look_of(name));
        assert_eq!(looks, [look(CodeId::Srlt), OTHER_LOOKS[1]]);
    }
}
