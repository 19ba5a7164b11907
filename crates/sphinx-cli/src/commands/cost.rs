//! `sphx perf cost`: what a packet costs this machine, stage by stage, and what links ask of it.

use std::io;

use serde_json::{Map, Value, json};
use sphinx_cost::{Costs, Io, Load, PerStage, STAGES, Threads};

use crate::args::PerfCostArgs;
use crate::commands::Context;
use crate::failure::{Failure, Outcome, bypass, local_io, usage};
use crate::report::Event;
use crate::units::show_rate;

/// With more there is more repair than data.
const LOSS_MAX: f64 = 0.5;
const BYTES_MIN: u64 = 10_000_000;
/// Packets that are measured if nobody says which, IP bytes.
const MTUS: [u16; 2] = [1500, 9000];
/// Links that the model is for, bits per second.
const LINKS: [f64; 3] = [10e9, 40e9, 100e9];

pub(crate) fn run(args: &PerfCostArgs, context: &Context) -> Outcome<()> {
    if args.loss > LOSS_MAX {
        return Err(usage("--loss: at most 50%"));
    }
    if args.bytes < BYTES_MIN {
        return Err(usage(
            "--bytes: at least 10MB, or there is nothing to take a median of",
        ));
    }
    let paper = args.paper.as_deref().copied();
    let most = args.io.mtu_max();
    if args.mtu.is_some_and(|mtu| mtu > most) {
        return Err(usage(format!("--mtu: at most {most} with this --io")));
    }
    let mtus = match (args.mtu, paper) {
        (Some(mtu), _) => vec![mtu],
        (None, Some(_)) => vec![MTUS[0]],
        (None, None) => MTUS.into_iter().filter(|mtu| *mtu <= most).collect(),
    };
    for mtu in mtus {
        let load = Load {
            bytes: args.bytes,
            mtu,
            loss: args.loss,
            io: args.io,
            workers: args.workers,
            paper,
        };
        let costs = sphinx_cost::measure(&load).map_err(|error| failed(args.io, error))?;
        if context.reporter.json() {
            context.reporter.event(event(&load, &costs));
        } else {
            for line in table(&load, &costs) {
                context.reporter.data(&line);
            }
        }
    }
    Ok(())
}

fn io_name(io: Io) -> &'static str {
    match io {
        Io::Udp => "udp",
        Io::Memory => "memory",
        Io::Xdp => "xdp",
        #[cfg(feature = "dpdk")]
        Io::Dpdk => "dpdk",
    }
}

fn failed(io: Io, error: io::Error) -> Failure {
    let of_interface = error.get_ref().and_then(|source| bypass::hint(source));
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "run it as root: it makes network namespaces",
        io::ErrorKind::NotFound => "it needs the program ip (iproute2)",
        _ => "",
    };
    let hint = of_interface.unwrap_or_else(|| hint.to_owned());
    local_io("measure over", io_name(io), error).with_hint(hint)
}

/// Time between packets of this size on a link of this rate, nanoseconds. Those of the paper are as large as they are.
fn interval_ns(load: &Load, costs: &Costs, bits: f64) -> f64 {
    let bytes = match load.paper {
        Some(_) => costs.packet_bytes,
        None => f64::from(load.mtu),
    };
    bytes * 8e9 / bits
}

fn event(load: &Load, costs: &Costs) -> Event {
    let end = |of: &PerStage| {
        let stages = std::iter::zip(STAGES, of);
        let mut fields: Map<String, Value> = stages
            .map(|(stage, cost)| (stage.name().to_owned(), tenths(*cost)))
            .collect();
        let threads = Threads::of(of);
        fields.insert("engine".to_owned(), tenths(threads.engine));
        fields.insert("kernel".to_owned(), tenths(threads.kernel));
        Value::Object(fields)
    };
    let ends = [&costs.sender, &costs.receiver].map(Threads::of);
    let model = LINKS.map(|bits| {
        let interval = interval_ns(load, costs, bits);
        let cores = |threads: &Threads| {
            let cores = threads.for_interval(interval);
            json!({
                "engines": hundredths(cores.engines),
                "workers": hundredths(cores.workers),
                "cores": cores.needed(),
            })
        };
        let [sender, receiver] = ends.each_ref().map(cores);
        json!({"bits_s": bits, "packet_ns": interval, "sender": sender, "receiver": receiver})
    });
    let [sender, receiver] = match &costs.instructions {
        Some(counted) => counted.each_ref().map(end),
        None => [Value::Null, Value::Null],
    };
    Event::new("cost")
        .with("io", io_name(load.io))
        .with("workers", load.workers)
        .with("paper", load.paper.is_some())
        .with("mtu", load.mtu)
        .with("loss", load.loss)
        .with("packets", costs.packets)
        .with("packet_bytes", tenths(costs.packet_bytes))
        .with("payload_bytes", tenths(costs.payload_bytes))
        .with("clock_ns", tenths(costs.clock_ns))
        .with("sender_ns", end(&costs.sender))
        .with("receiver_ns", end(&costs.receiver))
        .with("sender_instructions", sender)
        .with("receiver_instructions", receiver)
        .with("model", model.to_vec())
}

fn tenths(value: f64) -> Value {
    json!((value * 10.0).round() / 10.0)
}

fn hundredths(value: f64) -> Value {
    json!((value * 100.0).round() / 100.0)
}

fn table(load: &Load, costs: &Costs) -> Vec<String> {
    let title = match load.paper {
        Some(_) => "paper, ns".to_owned(),
        None => format!("MTU {}, ns", load.mtu),
    };
    let mut lines = columns(&title, &costs.sender, &costs.receiver);
    match &costs.instructions {
        Some([sender, receiver]) => lines.extend(columns("instructions", sender, receiver)),
        None => lines.push("instructions: nobody counts them here".to_owned()),
    }
    let [sender, receiver] = [&costs.sender, &costs.receiver].map(Threads::of);
    let line = |what: &str, sender: f64, receiver: f64| {
        let rate = |ns| show_rate(costs.core_bits(ns));
        format!(
            "one engine, {what}: sends {}, receives {}",
            rate(sender),
            rate(receiver)
        )
    };
    lines.push(line("without the kernel", sender.engine, receiver.engine));
    let (sends, receives) = (sender.engine_and_kernel(), receiver.engine_and_kernel());
    let what = match load.io {
        Io::Udp => "with loopback's kernel",
        Io::Memory => "with the copy through memory",
        Io::Xdp => "with AF_XDP",
        #[cfg(feature = "dpdk")]
        Io::Dpdk => "with DPDK and its driver",
    };
    lines.push(line(what, sends, receives));
    if load.workers {
        lines.push(format!(
            "workers that one engine keeps busy: {:.1} where it sends, {:.1} where it receives",
            sender.workers_per_engine(),
            receiver.workers_per_engine()
        ));
    }
    for bits in LINKS {
        let interval = interval_ns(load, costs, bits);
        let part = |threads: &Threads| {
            let cores = threads.for_interval(interval);
            let needed = match cores.needed() {
                1 => "1 core".to_owned(),
                needed => format!("{needed} cores"),
            };
            format!(
                "{needed} ({:.2} engines, {:.2} workers)",
                cores.engines, cores.workers
            )
        };
        lines.push(format!(
            "{:.0} Gbit/s, {interval:.0} ns a packet: sends with {}, receives with {}",
            bits / 1e9,
            part(&sender),
            part(&receiver)
        ));
    }
    lines.push(format!(
        "{} packets of {:.0} IP bytes, {:.0} of them data; a reading of the clock ({:.0} ns) is not counted",
        costs.packets, costs.packet_bytes, costs.payload_bytes, costs.clock_ns
    ));
    lines
}

/// A row for each stage, and what they sum up to.
fn columns(title: &str, sender: &PerStage, receiver: &PerStage) -> Vec<String> {
    let mut lines = vec![format!("{title:14} {:>9} {:>9}", "sender", "receiver")];
    let mut row = |name: &str, sender: f64, receiver: f64| {
        lines.push(format!("{name:14} {sender:9.1} {receiver:9.1}"));
    };
    for (stage, (sender, receiver)) in STAGES.iter().zip(std::iter::zip(sender, receiver)) {
        row(&stage.name().replace('_', " "), *sender, *receiver);
    }
    let [sender, receiver] = [sender, receiver].map(Threads::of);
    row("engine", sender.engine, receiver.engine);
    row("kernel", sender.kernel, receiver.kernel);
    lines
}
