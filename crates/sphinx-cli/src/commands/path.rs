//! `sphx lab path`: two hops, a program between them, and a transfer across.

use serde_json::{Value, json};
use sphinx_lab::TestbedError;
use sphinx_lab::path::{self, Output, Outputs, PathArgs, Plan, Report};

use super::Context;
use super::experiments::stop_flag;
use super::link::{failure, init};
use crate::failure::{Outcome, PARTIAL};
use crate::report::Event;

/// Returns the exit code: 0 if everything has arrived.
pub(super) fn run(
    args: PathArgs,
    prepared: Option<Result<(), TestbedError>>,
    context: &Context,
) -> Outcome<u8> {
    let reporter = &context.reporter;
    let json = args.json;
    // What was asked for wrongly is wrong whatever this machine allows.
    let plan = Plan::new(args).map_err(failure)?;
    if let Some(Err(error)) = prepared {
        return Err(failure(error.into()));
    }
    let (stop, _registration) = stop_flag(context);
    let mut notice = |text: &str| reporter.warn(text);
    let output = || match json {
        true => Output::Errors,
        false => Output::Inherited,
    };
    let outputs = Outputs {
        middle: output(),
        right: output(),
    };
    let report = path::run(&plan, init()?, outputs, &stop, &mut notice).map_err(failure)?;
    let Some(report) = report else {
        return Err(context.stop.failure());
    };
    reporter.note(&text(&report));
    let fields = match json!(report) {
        Value::Object(fields) => fields,
        _ => Default::default(),
    };
    let done = fields
        .into_iter()
        .fold(Event::new("done"), |event, (field, value)| {
            event.with(&field, value)
        });
    reporter.event(done);
    match report.transfer.complete {
        true => Ok(0),
        // The rest has arrived.
        false => Ok(PARTIAL),
    }
}

fn text(report: &Report) -> String {
    let transfer = &report.transfer;
    let [wired, wireless] = &report.hops;
    format!(
        "{:.3} MB in {:.2} s{}: {:.2} Mbit/s {}by {}{}; nothing for {:.0} ms at most; {} segments sent, {} of them again\n\
         {wired}\n{wireless}",
        transfer.bytes as f64 / 1e6,
        transfer.seconds,
        if transfer.complete {
            ""
        } else {
            ", then the time was over"
        },
        transfer.goodput_mbit_s,
        if report.upload { "up " } else { "" },
        report.congestion,
        if report.sack { "" } else { " without SACK" },
        transfer.pause_ms_max,
        transfer.segments_sent,
        transfer.segments_again,
    )
}
