//! Beyond the paper: one parameter at a time, cells where we lose included.

use sphinx_codes::{
    figures::to_csv,
    svg::{Chart, Series, Style},
};
use sphinx_fec::params;
use sphinx_proto::EPSILON;

use super::{
    Sheet, Studio,
    curves::{delivered_percent, extra_percent, goodput, loss_percent, mean_ms, p99_ms, page_ms},
    sweep::{Sweep, View},
};
use crate::{Cell, Workload, runner::ScenarioFailure};

pub(super) const SCENARIOS: &[(&str, &str)] = &[
    scenario!("ablation-rtt"),
    scenario!("ablation-rate"),
    scenario!("ablation-bursts"),
    scenario!("ablation-feedback"),
    scenario!("ablation-block-size"),
    scenario!("ablation-profile"),
    scenario!("ablation-epsilon"),
    scenario!("ablation-web"),
];

const GOODPUT: &str = "goodput (Mbit/s)";
const P99: View = View::logarithmic("99th percentile (ms)", p99_ms);
/// Latencies say less, the less of it there was.
const DELIVERED: View =
    View::linear("delivered before the cut-off (%)", delivered_percent).part("-delivered");
/// Headers, repairs and what is sent again.
const EXTRA: View = View::linear("bytes sent beyond the payload (%)", extra_percent).part("-extra");

const SWEEPS: [Sweep; 8] = [
    Sweep {
        part: "rtt",
        title: "Round-trip time",
        about: "20 MB at 2 % loss. Start-up takes its share of a short transfer on a long path.",
        x_label: "round-trip time (ms)",
        x: |cell| cell.link.rtt.as_secs_f64() * 1e3,
        is_x_logarithmic: true,
        views: &[View::logarithmic(GOODPUT, goodput)],
    },
    Sweep {
        part: "rate",
        title: "Rate of the link",
        about: "RTT 20 ms, 2 % loss. At the upper end, two cores carry sender, receiver and emulator.",
        x_label: "rate of the link (Mbit/s)",
        x: |cell| cell.link.rate as f64 / 1e6,
        is_x_logarithmic: true,
        views: &[View::logarithmic(GOODPUT, goodput)],
    },
    Sweep {
        part: "bursts",
        title: "Losses in bursts",
        about: "Blocks of 100 kB every 40 ms at 5 % loss, RTT 10 ms. The sender measures how many packets are \
                lost in a row; the longer the bursts, the more repair a block needs.",
        x_label: "mean packets lost in a row",
        x: mean_burst,
        is_x_logarithmic: true,
        views: &[P99, DELIVERED, EXTRA],
    },
    Sweep {
        part: "feedback",
        title: "Loss on the way back",
        about: "20 MB at 3 % loss forward, RTT 40 ms: acknowledgements are lost as well.",
        x_label: "loss on the way back (%)",
        x: back_percent,
        is_x_logarithmic: false,
        views: &[View::linear(GOODPUT, goodput)],
    },
    Sweep {
        part: "block-size",
        title: "Size of blocks",
        about: "20 Mbit/s offered at 6 % loss, RTT 10 ms.",
        x_label: "bytes of a block",
        x: |cell| match cell.workload {
            Workload::Blocks { bytes, .. } => bytes as f64,
            _ => f64::NAN,
        },
        is_x_logarithmic: true,
        views: &[View::logarithmic("mean (ms)", mean_ms), DELIVERED],
    },
    Sweep {
        part: "profile",
        title: "Redundancy ahead of loss",
        about: "Blocks of 100 kB every 40 ms, RTT 10 ms: with repair ahead of loss (latency, bulk: only at \
                ends), and none at all.",
        x_label: "packet loss rate (%)",
        x: loss_percent,
        is_x_logarithmic: false,
        views: &[View::linear("mean (ms)", mean_ms), DELIVERED],
    },
    Sweep {
        part: "epsilon",
        title: "How sure the first flight is",
        about: "The same blocks, for the share of them that may need a second round (ε).",
        x_label: "packet loss rate (%)",
        x: loss_percent,
        is_x_logarithmic: false,
        views: &[P99, EXTRA],
    },
    Sweep {
        part: "web",
        title: "Web pages",
        about: "Pages of 31 objects, six side by side, RTT 50 ms, 50 Mbit/s.",
        x_label: "packet loss rate (%)",
        x: loss_percent,
        is_x_logarithmic: false,
        views: &[
            View::logarithmic("mean time of a page (ms)", page_ms),
            DELIVERED,
        ],
    },
];

fn mean_burst(cell: &Cell) -> f64 {
    match &cell.link.forward {
        sphinx_link::Loss::GilbertElliott(model) => (1.0 / model.bad_to_good).round(),
        _ => 1.0,
    }
}

fn back_percent(cell: &Cell) -> f64 {
    match cell.link.back {
        sphinx_link::Loss::Bernoulli(share) => (share * 1e6).round() / 1e4,
        _ => 0.0,
    }
}

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    sheet.title(
        "Beyond the paper",
        "One parameter at a time; cells in which we lose are shown like the others.",
    );
    for (scenario, sweep) in SCENARIOS.iter().zip(&SWEEPS) {
        if !sweep.draw(*scenario, studio, sheet)? {
            return Ok(false);
        }
        if sweep.part == "bursts" {
            draw_interleaving(sheet);
        }
    }
    Ok(true)
}

/// What interleaving would save: computed, since sessions do not interleave.
fn draw_interleaving(sheet: &mut Sheet) {
    const SYMBOLS: usize = 84;
    const LOSS: f64 = 0.05;
    const BURSTS: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];
    let repairs = |depth| {
        let share = |burst| {
            let repairs =
                params::burst_repair_for(SYMBOLS, LOSS, burst, depth, EPSILON, 2 * SYMBOLS);
            (burst, 100.0 * repairs as f64 / SYMBOLS as f64)
        };
        BURSTS.map(share).to_vec()
    };
    let name = |depth: &usize| match depth {
        1 => "one block at a time".to_owned(),
        _ => format!("{depth} blocks in turn"),
    };
    let curves = [1, 2, 4, 8].map(|depth| (name(&depth), repairs(depth)));
    sheet.paragraph(
        "### Interleaving\n\nRepair that such a block needs for ε = 0.2 %, if packets of several blocks are \
         sent in turn. Computed, not measured: sessions do not interleave. A block then waits for the \
         others, here 40 ms for each; a second round costs it 10 ms.",
    );
    let series =
        |(name, points): &(String, Vec<(f64, f64)>)| Series::new(name, Style::Line, points.clone());
    let chart = Chart {
        title: "Interleaving (computed)".to_owned(),
        x_label: "mean packets lost in a row".to_owned(),
        y_label: "repair (%)".to_owned(),
        is_x_logarithmic: true,
        is_y_logarithmic: false,
        series: curves.iter().map(series).collect(),
    };
    sheet.chart("interleaving", &chart);
    let mut header = vec![format!("{} by {}", chart.y_label, chart.x_label)];
    header.extend(BURSTS.map(|burst| format!("{burst}")));
    let row = |(name, points): &(String, Vec<(f64, f64)>)| {
        let shares = points.iter().map(|(_, share)| format!("{share:.0}"));
        [name.clone()].into_iter().chain(shares).collect()
    };
    sheet.summary(&header, &curves.iter().map(row).collect::<Vec<_>>());
    sheet.data("interleaving", &to_csv(&chart));
}
