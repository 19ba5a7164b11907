//! `sphx lab path`: two hops, a program between them, and a transfer across.

use serde_json::{Value, json};
use sphinx_lab::TestbedError;
use sphinx_lab::path::{
    self, Carried, Delays, GroupReport, Output, Outputs, PathArgs, Plan, Report,
};

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
    match report.carried.is_complete() {
        true => Ok(0),
        // Only a part has arrived.
        false => Ok(PARTIAL),
    }
}

fn text(report: &Report) -> String {
    let [wired, wireless] = &report.hops;
    let way = if report.upload { "up " } else { "" };
    let sack = if report.sack { "" } else { " without SACK" };
    let carried = match &report.carried {
        Carried::Transfer(transfer) => format!(
            "{:.3} MB in {:.2} s{}: {:.2} Mbit/s {way}by {}{sack}; nothing for {:.0} ms at most; {} segments sent, {} of them again",
            transfer.bytes as f64 / 1e6,
            transfer.seconds,
            if transfer.complete {
                ""
            } else {
                ", then the time was over"
            },
            transfer.goodput_mbit_s,
            report.congestion,
            transfer.pause_ms_max,
            transfer.segments_sent,
            transfer.segments_again,
        ),
        Carried::Flows(flowed) => {
            let groups = flowed
                .groups
                .iter()
                .map(|group| format!("{}\n", of_group(group)));
            format!(
                "{}{way}for {:.0} s{sack}: {} segments sent, {} of them again",
                groups.collect::<String>(),
                flowed.seconds,
                flowed.segments_sent,
                flowed.segments_again,
            )
        }
    };
    format!("{carried}\n{wired}\n{wireless}")
}

fn of_group(group: &GroupReport) -> String {
    let GroupReport {
        name,
        flows,
        congestion,
        goodput_mbit_s,
        ..
    } = group;
    let ms = |delays: &Delays| {
        let at = |share| {
            delays
                .quantile(share)
                .map_or("–".to_owned(), |ms| format!("{ms:.0}"))
        };
        format!("{} | {} | {} ms", at(0.5), at(0.9), at(0.99))
    };
    let shown = format!("{name}: {flows} flows, {congestion}, {goodput_mbit_s:.3} Mbit/s");
    match group.messages {
        0 => format!(
            "{shown}; transit p50 | p90 | p99: {}",
            ms(&group.transit_ms)
        ),
        messages => format!(
            "{shown}; {} of {messages} messages; p50 | p90 | p99 of delivery: {}; one way: {}; acknowledged: {}",
            group.delivered,
            ms(&group.delivery_ms),
            ms(&group.one_way_ms),
            ms(&group.ack_ms),
        ),
    }
}
