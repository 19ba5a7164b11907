//! Beyond the paper: one parameter at a time, cells where we lose included.

use sphinx_codes::svg::Chart;

use super::{
    Sheet, Studio,
    curves::{Pick, caveat, csv, curves, goodput, loss_percent, mean_ms, p99_ms, table},
};
use crate::{Cell, Workload, runner::ScenarioFailure};

macro_rules! scenario {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!("../../scenarios/", $name, ".toml")),
        )
    };
}

pub(super) const SCENARIOS: &[(&str, &str)] = &[
    scenario!("ablation-rtt"),
    scenario!("ablation-rate"),
    scenario!("ablation-bursts"),
    scenario!("ablation-feedback"),
    scenario!("ablation-block-size"),
    scenario!("ablation-profile"),
    scenario!("ablation-thin"),
    scenario!("ablation-live"),
    scenario!("ablation-web"),
];

/// One sweep, in the order of the scenarios.
struct Sweep {
    part: &'static str,
    title: &'static str,
    about: &'static str,
    x_label: &'static str,
    x: fn(&Cell) -> f64,
    is_x_logarithmic: bool,
    y_label: &'static str,
    is_y_logarithmic: bool,
    pick: Pick,
}

const GOODPUT: &str = "goodput (Mbit/s)";

const SWEEPS: [Sweep; 9] = [
    Sweep {
        part: "rtt",
        title: "Round-trip time",
        about: "20 MB at 2 % loss. Start-up takes its share of a short transfer on a long path.",
        x_label: "round-trip time (ms)",
        x: |cell| cell.link.rtt.as_secs_f64() * 1e3,
        is_x_logarithmic: true,
        y_label: GOODPUT,
        is_y_logarithmic: true,
        pick: goodput,
    },
    Sweep {
        part: "rate",
        title: "Rate of the link",
        about: "RTT 20 ms, 2 % loss. At the upper end, two cores carry sender, receiver and emulator.",
        x_label: "rate of the link (Mbit/s)",
        x: |cell| cell.link.rate as f64 / 1e6,
        is_x_logarithmic: true,
        y_label: GOODPUT,
        is_y_logarithmic: true,
        pick: goodput,
    },
    Sweep {
        part: "bursts",
        title: "Losses in bursts",
        about: "Blocks of 100 kB every 40 ms at 5 % loss, RTT 10 ms; the longer the bursts, the more \
                repair a single block would need.",
        x_label: "mean packets lost in a row",
        x: mean_burst,
        is_x_logarithmic: true,
        y_label: "99th percentile (ms)",
        is_y_logarithmic: true,
        pick: p99_ms,
    },
    Sweep {
        part: "feedback",
        title: "Loss on the way back",
        about: "20 MB at 3 % loss forward, RTT 40 ms: acknowledgements are lost as well.",
        x_label: "loss on the way back (%)",
        x: back_percent,
        is_x_logarithmic: false,
        y_label: GOODPUT,
        is_y_logarithmic: false,
        pick: goodput,
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
        y_label: "mean (ms)",
        is_y_logarithmic: true,
        pick: mean_ms,
    },
    Sweep {
        part: "profile",
        title: "Redundancy ahead of loss",
        about: "Blocks of 100 kB every 40 ms, RTT 10 ms: with repair ahead of loss (latency, bulk: only at \
                ends), and none at all.",
        x_label: "packet loss rate (%)",
        x: loss_percent,
        is_x_logarithmic: false,
        y_label: "mean (ms)",
        is_y_logarithmic: false,
        pick: mean_ms,
    },
    Sweep {
        part: "thin",
        title: "A thin stream",
        about: "200 bytes every 20 ms, RTT 50 ms: games, shells, control.",
        x_label: "packet loss rate (%)",
        x: loss_percent,
        is_x_logarithmic: false,
        y_label: "99th percentile (ms)",
        is_y_logarithmic: true,
        pick: p99_ms,
    },
    Sweep {
        part: "live",
        title: "A live stream",
        about: "1000 bytes every 5 ms, RTT 50 ms; what comes more than 100 ms behind its time is of no use.",
        x_label: "packet loss rate (%)",
        x: loss_percent,
        is_x_logarithmic: false,
        y_label: "messages too late (%)",
        is_y_logarithmic: false,
        pick: super::curves::late_percent,
    },
    Sweep {
        part: "web",
        title: "Web pages",
        about: "Pages of 31 objects, six side by side, RTT 50 ms, 50 Mbit/s.",
        x_label: "packet loss rate (%)",
        x: loss_percent,
        is_x_logarithmic: false,
        y_label: "mean time of a page (ms)",
        is_y_logarithmic: true,
        pick: super::curves::page_ms,
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
        let Some(results) = studio.run(*scenario)? else {
            return Ok(false);
        };
        sheet.note(&results);
        sheet.paragraph(&format!(
            "## {}\n\n{} {}",
            sweep.title,
            sweep.about,
            caveat(&results)
        ));
        sheet.chart(
            sweep.part,
            &Chart {
                title: sweep.title.to_owned(),
                x_label: sweep.x_label.to_owned(),
                y_label: sweep.y_label.to_owned(),
                is_x_logarithmic: sweep.is_x_logarithmic,
                is_y_logarithmic: sweep.is_y_logarithmic,
                series: curves(&results, &sweep.x, sweep.pick),
            },
        )?;
        let column = |cell: &Cell| format!("{}", (sweep.x)(cell));
        let (mut header, rows) = table(&results, &column, 1, sweep.pick);
        header[0] = format!("{} by {}", sweep.y_label, sweep.x_label);
        sheet.summary(&header, &rows);
        sheet.data(sweep.part, &csv(&results))?;
    }
    Ok(true)
}
