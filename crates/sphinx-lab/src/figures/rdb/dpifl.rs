//! Which streams are thin: limits on packets in flight, and what the agent chooses.

use std::time::Duration;

use sphinx_codes::svg::{Chart, Series, Style};

use super::{PORT, Run, Thin, conditions, csv, each};
use crate::{
    figures::{
        Check, Sheet, Studio, campaign,
        claim::Sample,
        paths::{seeds, show},
    },
    runner::ScenarioFailure,
};

const NAME: &str = "rdb-dpifl";
const AT_ONCE: usize = 6;
pub(super) const VARIANT: &str = "dpifl";
/// Nothing is lost, so that more seeds tell nothing more.
pub(super) const SEEDS_MAX: u64 = 3;
const RTTS_MS: [u64; 6] = [10, 20, 50, 100, 200, 300];
const INTERVALS_MS: [u64; 5] = [5, 10, 20, 30, 100];

fn cell(rtt_ms: u64, interval_ms: u64) -> String {
    format!("every {interval_ms} ms, RTT {rtt_ms} ms")
}

pub(super) fn cases(quick: bool, seeds: u64) -> Vec<Thin> {
    let case = |seed, rtt_ms, interval_ms| Thin {
        cell: cell(rtt_ms, interval_ms),
        variant: VARIANT.to_owned(),
        seed,
        hop: format!("rate=100mbit queue=1000p rtt={rtt_ms}ms"),
        groups: vec![format!(
            "flows=5 bytes=100B interval={interval_ms}ms port={PORT}"
        )],
        agent: Some("rdb:mode=paper"),
        sysctl: Vec::new(),
        time: Duration::from_secs(if quick { 2 } else { 10 }),
        in_time_ms: rtt_ms as f64,
    };
    let mut cases = Vec::new();
    for seed in 1..=seeds.min(SEEDS_MAX) {
        for rtt_ms in RTTS_MS {
            let intervals = INTERVALS_MS.iter();
            cases.extend(intervals.map(|interval_ms| case(seed, rtt_ms, *interval_ms)));
        }
    }
    cases
}

pub(in crate::figures) fn duration(studio: &Studio<'_>) -> Duration {
    super::duration(&cases(studio.quick, seeds(studio)), AT_ONCE)
}

pub(in crate::figures) fn draw(
    studio: &mut Studio<'_>,
    sheet: &mut Sheet,
) -> Result<bool, ScenarioFailure> {
    let cases = cases(studio.quick, seeds(studio));
    let Some(runs) = campaign::measure((NAME, cases), AT_ONCE, studio, sheet)? else {
        return Ok(false);
    };
    sheet.title(
        "RDB: which streams are thin",
        &format!(
            "A stream is thin while fewer packets are in flight than a round trip has shortest intervals (DPIFL: the limit grows with the round trip), or \
             fewer than a fixed number (SPIFL, as `tcp_thin_linear_timeouts` of Linux has it: 3). The drawing has the limits for several shortest intervals, \
             and what streams with a message every 5 to 30 ms have in flight; the table how many segments were thin to the agent with \
             `dpifl_itt=10ms`, the default, for 100 messages, each of which is a segment of its own but where the kernel joins some; over a path without losses. \
             Those with messages more than 10 ms apart should be. {}",
            conditions(&runs, NAME, AT_ONCE)
        ),
    );
    let limit = |itt: u64| {
        let points = RTTS_MS
            .iter()
            .map(|rtt| (*rtt as f64, *rtt as f64 / itt as f64));
        Series::new(&format!("limit, {itt} ms"), Style::Line, points.collect())
    };
    let spifl = Series::new("limit 3", Style::Dashes, vec![(10.0, 3.0), (300.0, 3.0)]);
    let chart = Chart {
        title: "Packets in flight below which a stream is thin".to_owned(),
        x_label: "round trip (ms)".to_owned(),
        y_label: "packets in flight".to_owned(),
        is_x_logarithmic: false,
        is_y_logarithmic: false,
        series: [5, 10, 20, 30]
            .map(limit)
            .into_iter()
            .chain([spifl])
            .collect(),
    };
    sheet.chart("", &chart);
    let mut header = vec!["thin, for 100 messages, by round trip".to_owned()];
    header.extend(RTTS_MS.map(|rtt| format!("{rtt} ms")));
    let rows = INTERVALS_MS.map(|interval| {
        let cells = RTTS_MS.map(|rtt| {
            let share = thin(&runs, rtt, interval).median();
            show(share.map(|it| it * 100.0), 0)
        });
        [format!("every {interval} ms")]
            .into_iter()
            .chain(cells)
            .collect()
    });
    sheet.summary(&header, &rows);
    let share = |interval: u64, best: fn(f64, f64) -> f64| {
        let shares = RTTS_MS.iter().filter(|rtt| **rtt >= 50);
        Sample::fold(shares.map(|rtt| thin(&runs, *rtt, interval)), best)
    };
    sheet.check(Check::at_least(
        "every 30 ms, from 50 ms of round trip on: 0.95 thin segments for a message",
        &share(30, f64::min),
        0.95,
        &Sample::Exactly(1.0),
    ));
    sheet.check(Check::at_most(
        "every 5 ms, from 50 ms of round trip on: at most 0.1 are",
        &share(5, f64::max),
        0.1,
        &Sample::Exactly(1.0),
    ));
    sheet.data("", &csv(&runs));
    Ok(true)
}

/// Segments that were thin to the agent, for a message that was due.
fn thin(runs: &[Run], rtt_ms: u64, interval_ms: u64) -> Sample {
    each(runs, (&cell(rtt_ms, interval_ms), VARIANT), |run| {
        let messages: u64 = run.groups.iter().map(|group| group.messages).sum();
        Some(run.agent?.thin as f64 / messages.max(1) as f64)
    })
}
