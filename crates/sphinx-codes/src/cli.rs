//! The subcommand `codes`: `bench`, `plan`, `simulate` and `figures`.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use sphinx_fec::{CodeId, Engine, lt, params};

use crate::bench::{self, Setting, Speed};
use crate::figures;
use crate::loss::Loss;
use crate::plan::{Plan, Request, plan};
use crate::simulate::{self, Rows, Scenario};

/// Arguments of `codes`.
#[derive(Args, Clone, Debug)]
pub struct CodesArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Measure coding speed on one core, in MB/s of source data
    Bench(BenchArgs),
    /// Show what each code would send for a loss rate
    Plan(PlanArgs),
    /// Send blocks or a stream through simulated loss
    Simulate(SimulateArgs),
    /// Draw the paper's figures 7 and 8 as CSV and SVG
    Figures(FiguresArgs),
}

#[derive(Args, Clone, Debug)]
struct BenchArgs {
    /// Codes to measure
    #[arg(long = "code", value_name = "CODE", value_parser = code)]
    codes: Vec<CodeId>,
    /// Source symbols in a block; may be repeated
    #[arg(long, value_name = "N")]
    n: Vec<usize>,
    /// Bytes of a symbol
    #[arg(long, default_value_t = 1200, value_name = "BYTES")]
    symbol_bytes: usize,
    /// Repairs of a block; what 6 % loss asks for, if not given
    #[arg(long, value_name = "R")]
    repairs: Option<usize>,
    /// Symbols lost; both as many as repairs and as many as 6 % loss usually
    /// takes, if not given
    #[arg(long, value_name = "L")]
    lost: Option<usize>,
    /// Instructions to use: scalar, ssse3, avx2, avx2-gfni, avx512-gfni, neon
    #[arg(long, value_parser = engine)]
    engine: Option<Engine>,
    /// How long to measure each figure, in milliseconds
    #[arg(long, default_value_t = 60, value_name = "MS")]
    time_ms: u64,
}

#[derive(Args, Clone, Debug)]
struct PlanArgs {
    /// Packet loss rate: 6% or 0.06
    #[arg(long, value_parser = share)]
    plr: f64,
    /// Standard deviation of the loss rate, for the paper's rule
    #[arg(long, default_value = "0", value_parser = share)]
    deviation: f64,
    /// Mean number of packets lost in a row
    #[arg(long, default_value_t = 1.0)]
    burst: f64,
    /// Source symbols in a block
    #[arg(long, default_value_t = 100)]
    n: usize,
    /// Share of blocks that may fail in their first flight
    #[arg(long, default_value = "1%", value_parser = share)]
    epsilon: f64,
    /// T of the paper's rule
    #[arg(long, default_value_t = params::srlt::PAPER_THRESHOLD)]
    threshold: f64,
    /// Blocks that may be interleaved at most
    #[arg(long, default_value_t = 8)]
    depth_max: usize,
}

#[derive(Args, Clone, Debug)]
struct SimulateArgs {
    /// Code to simulate
    #[arg(long, default_value = "rlc", value_parser = code)]
    code: CodeId,
    /// Packet loss rate: 6% or 0.06
    #[arg(long, value_parser = share)]
    plr: f64,
    /// Mean number of packets lost in a row
    #[arg(long)]
    burst: Option<f64>,
    /// Source symbols in a block, or in the window
    #[arg(long, default_value_t = 100)]
    n: usize,
    /// Repairs of a block; what the loss rate asks for, if not given
    #[arg(long, value_name = "R")]
    repairs: Option<usize>,
    /// Blocks to send; for the window as many times N symbols
    #[arg(long, default_value_t = 4000)]
    blocks: usize,
    /// Seed of the losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Decode what all repairs together determine instead of peeling
    #[arg(long)]
    ml: bool,
    /// Constant c of the robust soliton distribution
    #[arg(long, default_value_t = 0.1)]
    lt_c: f64,
    /// Constant δ of the robust soliton distribution
    #[arg(long, default_value_t = 1.0)]
    lt_delta: f64,
}

#[derive(Args, Clone, Debug)]
struct FiguresArgs {
    /// Where to write the files
    #[arg(long, default_value = "docs/figures", value_name = "DIR")]
    output: PathBuf,
}

fn code(name: &str) -> Result<CodeId, String> {
    CodeId::by_name(name).ok_or_else(|| {
        let names = CodeId::ALL.map(CodeId::name).join(", ");
        format!("the codes are {names}")
    })
}

fn engine(name: &str) -> Result<Engine, String> {
    Engine::by_name(name).ok_or_else(|| {
        let names: Vec<_> = Engine::available().map(Engine::name).collect();
        format!("this processor has {}", names.join(", "))
    })
}

fn share(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.strip_suffix('%') {
        Some(number) => (number, 0.01),
        None => (text, 1.0),
    };
    match number.trim().parse::<f64>() {
        Ok(value) if (0.0..=1.0).contains(&(value * scale)) => Ok(value * scale),
        _ => Err("expected a share like 6% or 0.06".to_owned()),
    }
}

/// Runs the subcommand, writing tables or, with `is_json`, one object per line
/// to `out`.
///
/// # Errors
/// For parameters that a code cannot have, and if writing fails.
pub fn run(args: &CodesArgs, is_json: bool, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    match &args.command {
        Command::Bench(args) => run_bench(args, is_json, out),
        Command::Plan(args) => run_plan(args, is_json, out),
        Command::Simulate(args) => run_simulate(args, is_json, out),
        Command::Figures(args) => {
            for file in figures::write_all(&args.output)? {
                writeln!(out, "{}", file.display())?;
            }
            Ok(())
        }
    }
}

fn run_bench(args: &BenchArgs, is_json: bool, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let codes = if args.codes.is_empty() {
        CodeId::ALL.to_vec()
    } else {
        args.codes.clone()
    };
    let sizes = if args.n.is_empty() {
        vec![16, 32, 100, 256, 1024]
    } else {
        args.n.clone()
    };
    if !is_json {
        writeln!(
            out,
            "{:<21} {:<12} {:>5} {:>5} {:>6} {:>5} {:>12} {:>12}",
            "code", "engine", "n", "r", "bytes", "lost", "encode MB/s", "decode MB/s"
        )?;
    }
    for n in sizes {
        let repairs = args.repairs.unwrap_or_else(|| bench::usual_repairs(n));
        let usual = bench::usual_losses(n);
        let losses = args.lost.map_or(vec![repairs, usual], |lost| vec![lost]);
        for lost in losses {
            let setting = Setting {
                engine: args.engine.unwrap_or_else(Engine::detect),
                n,
                repairs,
                lost,
                symbol_len: args.symbol_bytes,
                time: Duration::from_millis(args.time_ms),
            };
            for code in &codes {
                match bench::measure(*code, &setting) {
                    Ok(speed) => print_speed(&speed, is_json, out)?,
                    Err(error) if args.codes.is_empty() => {
                        let name = code.name();
                        if !is_json {
                            writeln!(out, "{name:<21} n = {n}, {lost} lost: {error}")?;
                        }
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            for speed in bench::measure_peers(&setting) {
                print_speed(&speed, is_json, out)?;
            }
        }
    }
    Ok(())
}

fn print_speed(speed: &Speed, is_json: bool, out: &mut dyn Write) -> std::io::Result<()> {
    if is_json {
        let line = json!({
            "v": 1,
            "event": "code",
            "code": speed.code,
            "engine": speed.engine,
            "n": speed.n,
            "r": speed.repairs,
            "symbol_bytes": speed.symbol_len,
            "lost": speed.lost,
            "encode_mb_s": speed.encode_mb_s().round(),
            "decode_mb_s": speed.decode_mb_s().round(),
        });
        return writeln!(out, "{line}");
    }
    writeln!(
        out,
        "{:<21} {:<12} {:>5} {:>5} {:>6} {:>5} {:>12.0} {:>12.0}",
        speed.code,
        speed.engine,
        speed.n,
        speed.repairs,
        speed.symbol_len,
        speed.lost,
        speed.encode_mb_s(),
        speed.decode_mb_s()
    )
}

fn run_plan(args: &PlanArgs, is_json: bool, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    if args.n == 0 || args.n > sphinx_fec::fft_rs::SYMBOLS_MAX {
        return Err(sphinx_fec::Error::BlockSize { n: args.n }.into());
    }
    let request = Request {
        loss_rate: args.plr,
        deviation: args.deviation,
        mean_burst: args.burst,
        n: args.n,
        epsilon: args.epsilon,
        threshold: args.threshold,
        depth_max: args.depth_max,
    };
    let plan = plan(&request);
    if is_json {
        print_plan_json(&request, &plan, out)?;
    } else {
        print_plan(&request, &plan, out)?;
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
            "r": code.repairs, "redundancy": redundancy, "failure": code.failure,
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
        writeln!(
            out,
            "{:<8} {:>7} {:>9.1} % {:>8.3} % {:>7}  {}",
            code.code.name(),
            repairs,
            100.0 * repairs as f64 / request.n as f64,
            100.0 * code.failure.unwrap_or(0.0),
            degree,
            code.note
        )?;
    }
    Ok(())
}

fn run_simulate(
    args: &SimulateArgs,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let SimulateArgs { n, plr, .. } = *args;
    let most = match args.code {
        CodeId::FftRs => sphinx_fec::fft_rs::SYMBOLS_MAX,
        CodeId::Window => sphinx_fec::SYMBOLS_MAX / 8,
        _ => sphinx_fec::SYMBOLS_MAX,
    };
    if n == 0 || n > most {
        return Err(sphinx_fec::Error::BlockSize { n }.into());
    }
    let loss = Loss::new(plr, args.burst);
    let repairs = args
        .repairs
        .unwrap_or_else(|| params::repair_for(n, plr, 0.01));
    if args.code == CodeId::Rs && repairs > sphinx_fec::rs::repairs_max(n) {
        return Err(format!(
            "rs has {} repairs for n = {n}",
            sphinx_fec::rs::repairs_max(n)
        )
        .into());
    }
    if args.code == CodeId::Window {
        return simulate_window(args, loss, repairs, is_json, out);
    }
    let rows = match args.code {
        CodeId::Rs | CodeId::FftRs => Rows::Mds,
        CodeId::Srlt => {
            let cap = params::srlt::degree_cap(n);
            let degree = params::srlt::degree(plr, 0.0, cap);
            Rows::Srlt { degree }
        }
        CodeId::Lt => Rows::Lt {
            shape: lt::Shape::nearest(args.lt_c, args.lt_delta),
        },
        _ => Rows::Rlc,
    };
    let scenario = Scenario {
        n,
        repairs,
        loss,
        maximum_likelihood: args.ml,
    };
    let outcome = simulate::blocks(rows, &scenario, args.blocks, args.seed);
    let loss_rate = outcome.lost as f64 / outcome.sent.max(1) as f64;
    if is_json {
        let line = json!({
            "v": 1, "event": "simulation", "code": args.code.name(), "n": n, "r": repairs,
            "blocks": outcome.blocks, "failed": outcome.failed, "failure": outcome.failure(),
            "plr": loss_rate, "seed": args.seed,
        });
        writeln!(out, "{line}")?;
    } else {
        writeln!(
            out,
            "{}: n = {n}, {repairs} repairs, {:.2} % of packets lost: {} of {} blocks failed ({:.3} %)",
            args.code.name(),
            100.0 * loss_rate,
            outcome.failed,
            outcome.blocks,
            100.0 * outcome.failure()
        )?;
    }
    Ok(())
}

fn simulate_window(
    args: &SimulateArgs,
    loss: Loss,
    repairs: usize,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let redundancy = repairs as f64 / args.n as f64;
    let symbols = args.blocks * args.n;
    let stream = simulate::window(args.n, redundancy, loss, symbols, args.seed);
    if is_json {
        let line = json!({
            "v": 1, "event": "simulation", "code": "window", "n": args.n,
            "redundancy": redundancy, "symbols": stream.symbols, "lost": stream.lost,
            "delay_mean": stream.delay_mean, "delay_p50": stream.delay_p50,
            "delay_p90": stream.delay_p90, "delay_p99": stream.delay_p99, "seed": args.seed,
        });
        writeln!(out, "{line}")?;
    } else {
        writeln!(
            out,
            "window: {} symbols, window {}, redundancy {:.1} %: {} lost; in-order delay in \
             packets: mean {:.1}, p50 {}, p90 {}, p99 {}",
            stream.symbols,
            args.n,
            100.0 * redundancy,
            stream.lost,
            stream.delay_mean,
            stream.delay_p50,
            stream.delay_p90,
            stream.delay_p99
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        codes: CodesArgs,
    }

    fn output(args: &str, is_json: bool) -> Result<String, Box<dyn Error>> {
        let args = std::iter::once("codes").chain(args.split_whitespace());
        let cli = Cli::try_parse_from(args)?;
        let mut out = Vec::new();
        run(&cli.codes, is_json, &mut out)?;
        Ok(String::from_utf8(out)?)
    }

    #[test]
    fn plan_prints_every_code_and_the_bound() {
        let text = output("plan --plr 6% --n 100", false).unwrap();
        assert!(text.contains("6.38 %"), "{text}");
        for code in CodeId::ALL {
            assert!(text.contains(code.name()), "{text}");
        }
        let lines = output("plan --plr 0.06", true).unwrap();
        assert_eq!(lines.lines().count(), 7);
        let rlc = lines.lines().nth(1).unwrap();
        let rlc: serde_json::Value = serde_json::from_str(rlc).unwrap();
        assert_eq!((&rlc["code"], &rlc["r"]), (&json!("rlc"), &json!(13)));
        assert_eq!(rlc["degree"], 34.0);
    }

    #[test]
    fn simulate_and_bench_print_json() {
        for code in ["rlc", "srlt", "lt", "rs", "fft-rs", "window"] {
            let args = format!("simulate --code {code} --plr 6% --blocks 50 --n 50 --repairs 9");
            let line = output(&args, true).unwrap();
            let value: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(value["event"], "simulation");
        }
        let line = output("bench --code rlc --n 16 --time-ms 1 --lost 2", true).unwrap();
        let line = line.lines().next().unwrap();
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["event"], "code");
        assert!(value["encode_mb_s"].as_f64() > Some(0.0));
    }

    #[test]
    fn impossible_parameters_are_errors() {
        for args in [
            "plan --plr 6% --n 0",
            "plan --plr 101%",
            "simulate --plr 6% --code window --n 4096",
            "simulate --plr 6% --code rs --n 250 --repairs 9",
            "simulate --plr 6% --code abacus",
            "bench --engine abacus",
            "bench --code rs --n 300 --time-ms 1",
        ] {
            assert!(output(args, false).is_err(), "{args}");
        }
    }
}
