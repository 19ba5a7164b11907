//! `sphx perf cost`: what a packet costs this machine, stage by stage.

use serde_json::{Map, Value, json};
use sphinx_cost::{Costs, Load, STAGES};

use crate::args::PerfCostArgs;
use crate::commands::Context;
use crate::failure::{Outcome, local_io, usage};
use crate::report::Event;
use crate::units::show_rate;

/// With more there is more repair than data.
const LOSS_MAX: f64 = 0.5;
const BYTES_MIN: u64 = 10_000_000;

pub(crate) fn run(args: &PerfCostArgs, context: &Context) -> Outcome<()> {
    if args.loss > LOSS_MAX {
        return Err(usage("--loss: at most 50%"));
    }
    if args.bytes < BYTES_MIN {
        return Err(usage(
            "--bytes: at least 10MB, or there is nothing to take a median of",
        ));
    }
    let load = Load {
        bytes: args.bytes,
        mtu: args.mtu,
        loss: args.loss,
    };
    let costs =
        sphinx_cost::measure(&load).map_err(|error| local_io("measure over", "loopback", error))?;
    if context.reporter.json() {
        context.reporter.event(event(&load, &costs));
    } else {
        for line in table(&costs) {
            context.reporter.data(&line);
        }
    }
    Ok(())
}

fn event(load: &Load, costs: &Costs) -> Event {
    let end = |of: &[f64; STAGES.len()]| {
        let stages = std::iter::zip(STAGES, of);
        let mut fields: Map<String, Value> = stages
            .map(|(stage, ns)| (stage.name().to_owned(), tenths(*ns)))
            .collect();
        fields.insert("engine".to_owned(), tenths(Costs::engine_ns(of)));
        fields.insert("kernel".to_owned(), tenths(Costs::kernel_ns(of)));
        Value::Object(fields)
    };
    Event::new("cost")
        .with("mtu", load.mtu)
        .with("loss", load.loss)
        .with("packets", costs.packets)
        .with("packet_bytes", tenths(costs.packet_bytes))
        .with("payload_bytes", tenths(costs.payload_bytes))
        .with("clock_ns", tenths(costs.clock_ns))
        .with("sender_ns", end(&costs.sender))
        .with("receiver_ns", end(&costs.receiver))
}

fn tenths(value: f64) -> Value {
    json!((value * 10.0).round() / 10.0)
}

fn table(costs: &Costs) -> Vec<String> {
    let mut lines = vec![format!(
        "{:12} {:>9} {:>9}",
        "ns a packet", "sender", "receiver"
    )];
    let mut row = |name: &str, sender: f64, receiver: f64| {
        lines.push(format!("{name:12} {sender:9.1} {receiver:9.1}"));
    };
    for (stage, (sender, receiver)) in STAGES
        .iter()
        .zip(std::iter::zip(costs.sender, costs.receiver))
    {
        row(&stage.name().replace('_', " "), sender, receiver);
    }
    let of = |sum: fn(&[f64; STAGES.len()]) -> f64| (sum(&costs.sender), sum(&costs.receiver));
    let (engine, kernel) = (of(Costs::engine_ns), of(Costs::kernel_ns));
    row("engine", engine.0, engine.1);
    row("kernel", kernel.0, kernel.1);
    let line = |what: &str, (sender, receiver): (f64, f64)| {
        let rate = |ns| show_rate(costs.core_bits(ns));
        format!(
            "one core, {what}: sends {}, receives {}",
            rate(sender),
            rate(receiver)
        )
    };
    lines.push(line("engine alone", engine));
    let both = (engine.0 + kernel.0, engine.1 + kernel.1);
    lines.push(line("loopback's kernel included", both));
    lines.push(format!(
        "{} packets of {:.0} IP bytes, {:.0} of them data; a reading of the clock ({:.0} ns) is not counted",
        costs.packets, costs.packet_bytes, costs.payload_bytes, costs.clock_ns
    ));
    lines
}
