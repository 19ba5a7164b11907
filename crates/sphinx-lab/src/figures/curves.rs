//! From results to curves, tables and CSV.

use sphinx_codes::svg::{Series, Style};

use crate::{Cell, Group, GroupNumbers, Validity, runner::Results};

/// Bytes of the packets that the paper counts.
const PAPER_PACKET_BYTES: f64 = 1000.0;

/// One value of a group and its interval.
pub(super) struct Value {
    pub(super) value: f64,
    pub(super) interval: Option<(f64, f64)>,
}

/// What to take from a group.
pub(super) type Pick = fn(&GroupNumbers) -> Option<Value>;

pub(super) fn goodput(numbers: &GroupNumbers) -> Option<Value> {
    Some(Value {
        value: numbers.goodput_mbit_s,
        interval: numbers.goodput_interval,
    })
}

/// Goodput over what the link delivers.
pub(super) fn share(numbers: &GroupNumbers) -> Option<Value> {
    Some(Value {
        value: numbers.goodput_ratio,
        interval: None,
    })
}

pub(super) fn mean_ms(numbers: &GroupNumbers) -> Option<Value> {
    Some(Value {
        value: numbers.blocks?.mean_ms,
        interval: numbers.mean_ms_interval,
    })
}

pub(super) fn p99_ms(numbers: &GroupNumbers) -> Option<Value> {
    Some(Value {
        value: numbers.blocks?.p99_ms,
        interval: numbers.p99_ms_interval,
    })
}

pub(super) fn extra_percent(numbers: &GroupNumbers) -> Option<Value> {
    Some(Value {
        value: (numbers.wire_ratio - 1.0) * 100.0,
        interval: None,
    })
}

pub(super) fn late_percent(numbers: &GroupNumbers) -> Option<Value> {
    Some(Value {
        value: numbers.late_share? * 100.0,
        interval: None,
    })
}

pub(super) fn dropped_percent(numbers: &GroupNumbers) -> Option<Value> {
    Some(Value {
        value: numbers.dropped_share? * 100.0,
        interval: None,
    })
}

pub(super) fn wire_ratio(numbers: &GroupNumbers) -> Option<Value> {
    Some(Value {
        value: numbers.wire_ratio,
        interval: None,
    })
}

pub(super) fn wait_p95_ms(numbers: &GroupNumbers) -> Option<Value> {
    Some(Value {
        value: numbers.wait_p95_ms?,
        interval: None,
    })
}

pub(super) fn packets_per_message(numbers: &GroupNumbers) -> Option<Value> {
    Some(Value {
        value: numbers.packets_per_block?,
        interval: None,
    })
}

pub(super) fn page_ms(numbers: &GroupNumbers) -> Option<Value> {
    Some(Value {
        value: numbers.web?.page_ms_mean,
        interval: None,
    })
}

/// What may be quoted of a group; nothing of one that only has starved runs.
pub(super) fn quotable(cell: &Cell, group: &Group) -> Option<GroupNumbers> {
    let numbers = group.numbers(cell)?;
    (numbers.validity != Validity::Starved).then_some(numbers)
}

/// The value of a contestant in a cell.
pub(super) fn of(results: &Results, cell: &str, contestant: &str, pick: Pick) -> Option<f64> {
    let (cell, group) = results.group(cell, contestant)?;
    Some(pick(&quotable(cell, group)?)?.value)
}

/// Loss towards the receiver in per cent.
pub(super) fn loss_percent(cell: &Cell) -> f64 {
    (cell.link.forward_loss() * 1e6).round() / 1e4
}

/// One curve per contestant.
pub(super) fn curves(results: &Results, x: &dyn Fn(&Cell) -> f64, pick: Pick) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for (cell, groups) in &results.cells {
        for group in groups {
            let Some(value) = quotable(cell, group).and_then(|numbers| pick(&numbers)) else {
                continue;
            };
            let at = x(cell);
            let curve = match all.iter().position(|one| one.name == group.contestant) {
                Some(known) => &mut all[known],
                None => {
                    all.push(Series::new(&group.contestant, Style::Line, Vec::new()));
                    all.last_mut().unwrap_or_else(|| unreachable!("just added"))
                }
            };
            curve.points.push((at, value.value));
            if let Some((low, high)) = value.interval {
                curve.ranges.push((at, low, high));
            }
        }
    }
    all
}

/// A row per contestant, a column per cell.
pub(super) fn table(
    results: &Results,
    column: &dyn Fn(&Cell) -> String,
    places: usize,
    pick: Pick,
) -> (Vec<String>, Vec<Vec<String>>) {
    let mut header = vec![String::new()];
    header.extend(results.cells.iter().map(|(cell, _)| column(cell)));
    let names: Vec<&str> = match results.cells.first() {
        None => Vec::new(),
        Some((_, groups)) => groups.iter().map(|one| one.contestant.as_str()).collect(),
    };
    let mut rows: Vec<Vec<String>> = names
        .into_iter()
        .map(|name| {
            let value = |cell: &Cell| match of(results, &cell.name, name, pick) {
                Some(value) => format!("{value:.places$}"),
                None => "–".to_owned(),
            };
            let mut row = vec![name.to_owned()];
            row.extend(results.cells.iter().map(|(cell, _)| value(cell)));
            row
        })
        .collect();
    for (name, _) in &results.missing {
        let mut row = vec![name.clone()];
        row.resize(header.len(), "missing".to_owned());
        rows.push(row);
    }
    (header, rows)
}

const COLUMNS: &str = "cell,contestant,loss_percent,rtt_ms,rate_mbit_s,goodput_mbit_s,goodput_low,\
    goodput_high,packets_per_s,block_interval_ms,goodput_ratio,wire_ratio,queue_drop_share,wait_p95_ms,\
    cpu_seconds_per_gb,machine_seconds_per_gb,peak_rss_bytes,blocks,block_ms_mean,block_ms_mean_low,\
    block_ms_mean_high,block_ms_p50,block_ms_p99,block_ms_p99_low,block_ms_p99_high,block_ms_max,\
    messages_late_share,messages_dropped_share,packets_per_block,startup_seconds,stalls,stall_seconds,quality_mbit_s,page_ms_mean,page_ms_max,\
    object_ms_p99,runs,runs_used,runs_complete,validity,clock\n";

/// Everything about every group, a line each.
pub(super) fn csv(results: &Results) -> String {
    let mut csv = COLUMNS.to_owned();
    let show = |value: Option<f64>| match value {
        Some(value) if value.is_finite() => format!("{}", (value * 1e4).round() / 1e4),
        _ => String::new(),
    };
    for (cell, groups) in &results.cells {
        for group in groups {
            let Some(numbers) = group.numbers(cell) else {
                continue;
            };
            let bytes_per_s = numbers.goodput_mbit_s * 1e6 / 8.0;
            let interval = |range: Option<(f64, f64)>| {
                [show(range.map(|it| it.0)), show(range.map(|it| it.1))]
            };
            let blocks = numbers.blocks;
            let (video, web) = (numbers.video.as_ref(), numbers.web.as_ref());
            let [low, high] = interval(numbers.goodput_interval);
            let [mean_low, mean_high] = interval(numbers.mean_ms_interval);
            let [p99_low, p99_high] = interval(numbers.p99_ms_interval);
            let fields = [
                cell.name.clone(),
                group.contestant.clone(),
                show(Some(loss_percent(cell))),
                show(Some(cell.link.rtt.as_secs_f64() * 1e3)),
                show(Some(cell.link.rate as f64 / 1e6)),
                show(Some(numbers.goodput_mbit_s)),
                low,
                high,
                show(Some((bytes_per_s / PAPER_PACKET_BYTES).round())),
                show(Some(1e5 / bytes_per_s * 1e3)),
                show(Some(numbers.goodput_ratio)),
                show(Some(numbers.wire_ratio)),
                show(Some(numbers.queue_drop_share)),
                show(numbers.wait_p95_ms),
                show(numbers.cpu_seconds_per_gb),
                show(numbers.machine_seconds_per_gb),
                show(numbers.peak_rss.map(|bytes| bytes as f64)),
                show(blocks.map(|blocks| blocks.count as f64)),
                show(blocks.map(|blocks| blocks.mean_ms)),
                mean_low,
                mean_high,
                show(blocks.map(|blocks| blocks.p50_ms)),
                show(blocks.map(|blocks| blocks.p99_ms)),
                p99_low,
                p99_high,
                show(blocks.map(|blocks| blocks.max_ms)),
                show(numbers.late_share),
                show(numbers.dropped_share),
                show(numbers.packets_per_block),
                show(video.and_then(|video| video.startup_seconds)),
                show(video.map(|video| video.stalls as f64)),
                show(video.map(|video| video.stall_seconds)),
                show(video.map(|video| video.mean_mbit_s)),
                show(web.map(|web| web.page_ms_mean)),
                show(web.map(|web| web.page_ms_max)),
                show(web.map(|web| web.object_ms_p99)),
                numbers.runs.to_string(),
                numbers.runs_used.to_string(),
                numbers.runs_complete.to_string(),
                format!("{:?}", numbers.validity).to_lowercase(),
                cell.clock.name().to_owned(),
            ];
            csv += &fields.join(",");
            csv += "\n";
        }
    }
    csv
}

/// What readers must know about the machine before quoting.
pub(super) fn caveat(results: &Results) -> String {
    let numbers = || {
        results
            .cells
            .iter()
            .flat_map(|(cell, groups)| groups.iter().filter_map(move |group| group.numbers(cell)))
    };
    let count = |kind| numbers().filter(|one| one.validity == kind).count();
    let (all, noisy, starved) = (
        numbers().count(),
        count(Validity::Noisy),
        count(Validity::Starved),
    );
    match (noisy, starved) {
        (0, 0) if results.environment.made.real_time => {
            "Real traffic, at real-time priority: other programs had to wait.".to_owned()
        }
        (0, 0) => "Real traffic; the machine was quiet.".to_owned(),
        (_, 0) => format!(
            "Real traffic. In {noisy} of {all} cells other programs used the machine: the emulator \
             was in time, but transports in user space were short of CPU time, and CPU times are \
             worthless."
        ),
        _ => format!(
            "Real traffic. In {noisy} of {all} cells other programs used the machine; in {starved} \
             the emulator was starved: those are left out."
        ),
    }
}
