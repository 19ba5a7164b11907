//! `codes plan`.

use std::error::Error;
use std::io::Write;

use clap::Args;
use serde_json::json;
use sphinx_fec::{Engine, params};
use sphinx_units as units;

use super::{burst, count, engine, loss_rate, symbols, threshold};
use crate::plan::{Choice, Plan, Request, choose, plan, repairs_max};

#[derive(Args, Clone, Debug)]
pub(super) struct PlanArgs {
    /// Packet loss rate: 6% or 0.06
    #[arg(long, value_name = "SHARE", value_parser = loss_rate)]
    plr: f64,
    /// Standard deviation of the loss rate, for the paper's rule
    #[arg(long, default_value = "0", value_name = "SHARE", value_parser = units::fraction)]
    deviation: f64,
    /// Mean number of packets lost in a row. Losses are independent unless it is more than these have,
    /// 1/(1 - PLR)
    #[arg(long, value_name = "PACKETS", default_value = "1", value_parser = burst)]
    burst: f64,
    /// Source symbols in a block
    #[arg(long, value_name = "N", default_value = "100", value_parser = symbols())]
    n: usize,
    /// Share of blocks that may fail in their first flight
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = units::failure_share)]
    epsilon: f64,
    /// T of the paper's rule, from 0.3: what its equations say below that is not exact
    #[arg(long, value_name = "T", default_value_t = params::srlt::PAPER_THRESHOLD, value_parser = threshold)]
    threshold: f64,
    /// Blocks that may be interleaved at most; sessions send one after the other
    #[arg(long, value_name = "BLOCKS", default_value = "8", value_parser = count(1..=1024))]
    depth_max: usize,
    /// Instructions that rows are measured with [default: the best that this processor has]
    #[arg(long, value_name = "ENGINE", value_parser = engine)]
    engine: Option<Engine>,
}

pub(super) fn run(
    args: &PlanArgs,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let request = Request {
        loss_rate: args.plr,
        deviation: args.deviation,
        mean_burst: args.burst,
        n: args.n,
        epsilon: args.epsilon,
        threshold: args.threshold,
        depth_max: args.depth_max,
        engine: args.engine.unwrap_or_else(Engine::detect),
    };
    let (plan, choice) = (plan(&request), choose(&request));
    if is_json {
        print_plan_json(&request, &plan, out)?;
        print_choice_json(choice.as_ref(), out)?;
    } else {
        print_plan(&request, &plan, out)?;
        writeln!(out, "\nwithout interleaving, as sessions send:")?;
        match choice {
            Some(choice) => print_choice(&request, &choice, out)?,
            None => {
                let most = repairs_max(request.n, request.loss_rate);
                writeln!(out, "{most} repairs would not be enough")?;
            }
        }
    }
    Ok(())
}

fn print_plan_json(request: &Request, plan: &Plan, out: &mut dyn Write) -> std::io::Result<()> {
    let head = json!({
        "v": 1, "event": "plan", "plr": request.loss_rate, "n": request.n,
        "epsilon": request.epsilon, "erasure_bound": plan.erasure_bound,
        "interleave_depth": plan.depth, "correlation": plan.correlation,
        "reactive": plan.reactive,
    });
    writeln!(out, "{head}")?;
    for code in &plan.codes {
        let redundancy = code.repairs.map(|r| r as f64 / request.n as f64);
        let line = json!({
            "v": 1, "event": "code_plan", "code": code.code.name(), "n": request.n,
            "interleave_depth": code.depth, "r": code.repairs, "redundancy": redundancy, "failure": code.failure,
            "degree": code.degree, "note": code.note,
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn print_plan(request: &Request, plan: &Plan, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(
        out,
        "loss {:.2} %, n = {}, at most {:.2} % of blocks may fail in the first flight",
        100.0 * request.loss_rate,
        request.n,
        100.0 * request.epsilon
    )?;
    writeln!(
        out,
        "erasure bound p/(1−p): {:.2} %",
        100.0 * plan.erasure_bound
    )?;
    writeln!(out, "blocks to interleave: {}", plan.depth)?;
    let [one, two, four, eight] = plan.reactive;
    writeln!(
        out,
        "symbols to send for a deficit of 1, 2, 4, 8: {one}, {two}, {four}, {eight}\n"
    )?;
    writeln!(
        out,
        "{:<8} {:>7} {:>11} {:>10} {:>7}  note",
        "code", "repairs", "redundancy", "failure", "degree"
    )?;
    for code in &plan.codes {
        let Some(repairs) = code.repairs else {
            writeln!(out, "{:<8} {:>7}  {}", code.code.name(), "none", code.note)?;
            continue;
        };
        let degree = code.degree.map_or("–".to_owned(), |d| format!("{d:.0}"));
        let failure = code
            .failure
            .map_or("–".to_owned(), |share| format!("{:.3} %", 100.0 * share));
        writeln!(
            out,
            "{:<8} {:>7} {:>9.1} % {failure:>10} {degree:>7}  {}",
            code.code.name(),
            repairs,
            100.0 * repairs as f64 / request.n as f64,
            code.note
        )?;
    }
    Ok(())
}

fn print_choice_json(choice: Option<&Choice>, out: &mut dyn Write) -> std::io::Result<()> {
    for one in choice.iter().flat_map(|choice| &choice.candidates) {
        let us = one
            .time
            .map(|time| (time.as_secs_f64() * 1e7).round() / 10.0);
        let line = json!({
            "v": 1, "event": "candidate", "rows": one.name, "r": one.repairs, "block_us": us,
        });
        writeln!(out, "{line}")?;
    }
    let ratio = choice.and_then(Choice::auto_over_best);
    let line = json!({
        "v": 1, "event": "choice", "best": choice.and_then(|choice| choice.best),
        "auto": choice.map(|choice| choice.auto),
        "auto_over_best": ratio.map(|ratio| (ratio * 1e3).round() / 1e3),
    });
    writeln!(out, "{line}")
}

fn print_choice(request: &Request, choice: &Choice, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(
        out,
        "{:<12} {:>7} {:>11} {:>13}",
        "rows", "repairs", "sent", "block, µs"
    )?;
    for one in &choice.candidates {
        let Some(repairs) = one.repairs else {
            writeln!(out, "{:<12} {:>7}", one.name, "none")?;
            continue;
        };
        let sent = 100.0 * (request.n + repairs) as f64 / request.n as f64;
        let time = one.time.map_or("–".to_owned(), |time| {
            format!("{:.1}", time.as_secs_f64() * 1e6)
        });
        writeln!(
            out,
            "{:<12} {repairs:>7} {sent:>9.1} % {time:>13}",
            one.name
        )?;
    }
    let best = choice.best.unwrap_or("none could be measured");
    let ratio = match choice.auto_over_best() {
        Some(ratio) => format!(", which takes {ratio:.2} of its time"),
        None => String::new(),
    };
    writeln!(
        out,
        "fastest here of those within 2 % of the least: {best}; sessions (--codec auto) use: {}{ratio}",
        choice.auto
    )?;
    writeln!(out, "({})", choice.why())
}
