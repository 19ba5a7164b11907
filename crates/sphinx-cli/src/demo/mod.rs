//! `sphx demo`: the same emulated link for kernel TCP and for Sphinx, one after the other.
//!
//! The measured ends are processes of this same program, inside the namespaces at the ends of the
//! link. They all speak the `perf` protocol, TCP over a few connections, so every transport does the
//! same work and is measured by the same code.

mod contender;
mod machine;
pub(crate) mod part;
mod process;
mod relay;
mod scene;
mod table;
mod tcp;
mod view;

use std::time::Duration;

use serde_json::{Value, json};
use sphinx_transport::ErrorKind;

use crate::args::demo::DemoArgs;
use crate::commands::Context;
use crate::failure::{Outcome, fail_hint};
use crate::report::Event;
use contender::{Contender, Phase};
use machine::CpuMeter;
pub(crate) use scene::Scene;
use scene::Stage;

/// Size of the blocks whose latency is measured, in bytes.
const BLOCK_BYTES: u64 = 100_000;
/// Between two blocks, where the link is fast enough.
const BLOCK_INTERVAL: Duration = Duration::from_millis(40);

/// What one transport achieved; `None` where it was not measured.
#[derive(Clone, Debug, Default)]
struct Row {
    name: &'static str,
    goodput_mbit_s: Option<f64>,
    /// IP bytes handed to the link per byte delivered.
    wire_per_byte: Option<f64>,
    /// CPU seconds of the whole machine per GB delivered, those of the emulator included.
    cpu_s_per_gb: Option<f64>,
    block_ms_mean: Option<f64>,
    block_ms_p99: Option<f64>,
    block_ms_max: Option<f64>,
    blocks: u64,
    blocks_unsent: u64,
    failure: Option<String>,
}

impl Row {
    fn event(&self) -> Value {
        json!({
            "transport": self.name,
            "goodput_mbit_s": self.goodput_mbit_s,
            "wire_bytes_per_byte": self.wire_per_byte,
            "machine_cpu_seconds_per_gb": self.cpu_s_per_gb,
            "block_ms_mean": self.block_ms_mean,
            "block_ms_p99": self.block_ms_p99,
            "block_ms_max": self.block_ms_max,
            "blocks_measured": self.blocks,
            "blocks_unsent": self.blocks_unsent,
            "failure": self.failure,
        })
    }
}

/// Runs the demonstration on `scene`, which has been prepared before the process had threads.
pub(crate) fn run(args: &DemoArgs, scene: Scene, context: &Context) -> Outcome<()> {
    let reporter = &context.reporter;
    let contenders = scene.contenders();
    let total = args.seconds * u32::try_from(contenders.len()).unwrap_or(1);
    reporter.note(&format!("{}\n", table::introduction(args, &scene, total)));
    let mut rows = Vec::new();
    for contender in contenders {
        let row = measure(args, &scene, contender, context)?;
        reporter.event(Event::new("demo").with("row", row.event()));
        rows.push(row);
    }
    if !reporter.json() {
        reporter.data(&table::render(args, &rows));
    }
    if let Some((name, failure)) = rows
        .iter()
        .find_map(|row| row.failure.as_ref().map(|failure| (row.name, failure)))
    {
        return Err(fail_hint(
            ErrorKind::Other,
            format!("{name} could not be measured: {failure}"),
            "run again with another --seed, or with a lower --rate on a slow machine",
        ));
    }
    let rows: Vec<Value> = rows.iter().map(Row::event).collect();
    reporter.event(
        Event::new("done")
            .with("link", link_event(args))
            .with("scene", scene.name())
            .with("rows", rows),
    );
    Ok(())
}

fn link_event(args: &DemoArgs) -> Value {
    json!({
        "rate_mbit_s": args.rate as f64 / 1e6,
        "rtt_ms": args.rtt.as_secs_f64() * 1e3,
        "loss": args.loss,
        "seed": args.seed,
        "seconds": args.seconds.as_secs_f64(),
    })
}

/// Both phases of one transport, each on a fresh link. Only being asked to stop is an error here:
/// a transport that fails is shown as failed.
fn measure(
    args: &DemoArgs,
    scene: &Scene,
    contender: Contender,
    context: &Context,
) -> Outcome<Row> {
    let mut row = Row {
        name: contender.name(),
        ..Row::default()
    };
    for phase in Phase::both(args) {
        match measure_phase(args, scene, contender, phase, context) {
            Ok(measured) => row.add(phase, &measured),
            Err(_) if context.stop.requested() => return Err(context.stop.failure()),
            Err(failure) => {
                row.failure.get_or_insert(failure.message);
            }
        }
    }
    Ok(row)
}

/// What a phase leaves behind.
struct Measured {
    /// The sending end's `done`.
    done: Value,
    /// IP bytes that the sender handed to the link.
    wire_bytes: u64,
    cpu: Duration,
}

fn measure_phase(
    args: &DemoArgs,
    scene: &Scene,
    contender: Contender,
    phase: Phase,
    context: &Context,
) -> Outcome<Measured> {
    let stage = Stage::build(scene, args)?;
    for warning in stage.warnings() {
        context.reporter.note(&format!("sphx: {warning}"));
    }
    let cpu = CpuMeter::start();
    let done = contender.run(&stage, phase, context)?;
    Ok(Measured {
        done,
        wire_bytes: stage.offered_bytes(),
        cpu: cpu.elapsed(),
    })
}

impl Row {
    fn add(&mut self, phase: Phase, measured: &Measured) {
        let number = |field: &str| measured.done.get(field).and_then(Value::as_f64);
        let count = |field: &str| {
            measured
                .done
                .get(field)
                .and_then(Value::as_u64)
                .unwrap_or(0)
        };
        match phase {
            Phase::Bulk { .. } => {
                let bytes = count("bytes");
                self.goodput_mbit_s = number("goodput_mbit_s");
                if bytes > 0 {
                    self.wire_per_byte = Some(measured.wire_bytes as f64 / bytes as f64);
                    self.cpu_s_per_gb = Some(measured.cpu.as_secs_f64() * 1e9 / bytes as f64);
                }
            }
            Phase::Blocks { .. } => {
                self.block_ms_mean = number("block_ms_mean");
                self.block_ms_p99 = number("block_ms_p99");
                self.block_ms_max = number("block_ms_max");
                self.blocks = count("blocks_measured");
                self.blocks_unsent = count("blocks_unsent");
            }
        }
    }
}
