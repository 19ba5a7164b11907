//! `codes simulate`.

use std::error::Error;
use std::io::Write;

use clap::Args;
use serde_json::json;
use sphinx_fec::{CodeId, fft_rs, lt, params, rs};
use sphinx_units as units;

use super::{burst, code, constant, count, loss_rate, symbols, threshold};
use crate::loss::Loss;
use crate::plan::{repairs_for, repairs_max};
use crate::simulate::{self, Rows, Scenario};

/// Most repairs of a block, as for all that `sphinx-fec` computes.
const REPAIRS_MAX: u64 = params::REPAIRS_MAX as u64;
/// Most blocks of a simulation, which take some minutes.
const BLOCKS_MAX: u64 = 10_000_000;
/// Most symbols of a stream. The delay of each is kept.
const STREAM_SYMBOLS_MAX: usize = 1 << 26;

const EXAMPLES: &str = "\
Examples:
  What the default code needs, and how often that does not suffice:
      sphx codes simulate --plr 6%
  The paper's operating point; about half of the blocks need a second round:
      sphx codes simulate --plr 6% --code srlt
  Its \"high\" threshold, a loss rate that varies, and all equations used:
      sphx codes simulate --plr 6% --code srlt --threshold 0.9 --deviation 1% --ml
  Packets that traditional LT takes until each block is decoded:
      sphx codes simulate --plr 6% --code lt --lt-c 0.05 --lt-delta 0.5
  Delay of a stream over a sliding window, in bursts of three on average:
      sphx codes simulate --plr 6% --code window --redundancy 20% --burst 3";

/// `simulate` sends whole blocks, or a stream for `window`, through seeded
/// losses and decodes what arrives from its coefficients. The same seed gives
/// the same losses for every code.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct SimulateArgs {
    /// Code to simulate: rlc, srlt, lt, rs, fft-rs or window
    #[arg(long, default_value = "rlc", value_parser = code)]
    code: CodeId,
    /// Packet loss rate, of source symbols and repairs alike: 6% or 0.06
    #[arg(long, value_name = "SHARE", value_parser = loss_rate)]
    plr: f64,
    /// Mean number of packets lost in a row (Gilbert-Elliott); independent
    /// losses if not given, or not more than these have, 1/(1 - PLR)
    #[arg(long, value_name = "PACKETS", value_parser = burst)]
    burst: Option<f64>,
    /// Source symbols in a block, or in the window
    #[arg(long, value_name = "N", default_value = "100", value_parser = symbols())]
    n: usize,
    /// Repairs of a block. If not given: for srlt what the paper's rule sends,
    /// for lt as many as each block takes, otherwise what --epsilon asks for
    #[arg(long, value_name = "R", conflicts_with = "redundancy", value_parser = count(0..=REPAIRS_MAX))]
    repairs: Option<usize>,
    /// Repairs as a share of the source symbols, instead of --repairs
    #[arg(long, value_name = "SHARE", value_parser = units::fraction)]
    redundancy: Option<f64>,
    /// Share of blocks that may fail, where that decides the repairs
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = units::failure_share)]
    epsilon: f64,
    /// Blocks to send; for window as many times N symbols
    #[arg(long, value_name = "BLOCKS", default_value = "4000", value_parser = count(1..=BLOCKS_MAX))]
    blocks: usize,
    /// Seed of the losses
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// srlt, lt: decode what all repairs together determine (maximum
    /// likelihood) instead of peeling
    #[arg(long)]
    ml: bool,
    /// srlt: T, the probability with which the samples should cover all losses,
    /// from 0.3: what the equations say below that is not exact
    #[arg(long, default_value_t = params::srlt::PAPER_THRESHOLD, value_name = "T", value_parser = threshold)]
    threshold: f64,
    /// srlt: δ, the standard deviation of the loss rate; lowers the degree
    /// D_h = 1/(p + δ)
    #[arg(long, default_value = "0", value_name = "SHARE", value_parser = units::fraction)]
    deviation: f64,
    /// srlt: cap on the degree D_h; N/2 if not given. The paper has none (N)
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(1..))]
    degree_cap: Option<u32>,
    /// lt: constant c of the robust soliton distribution (the nearest of 0.01
    /// to 0.5 that a row can name)
    #[arg(long, default_value_t = 0.1, value_name = "C", value_parser = constant)]
    lt_c: f64,
    /// lt: constant δ of the robust soliton distribution (the nearest of 0.01
    /// to 1 that a row can name)
    #[arg(long, default_value_t = 1.0, value_name = "DELTA", value_parser = constant)]
    lt_delta: f64,
}

pub(super) fn run(
    args: &SimulateArgs,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let n = args.n;
    let most = match args.code {
        CodeId::FftRs => fft_rs::SYMBOLS_MAX,
        CodeId::Window => sphinx_fec::SYMBOLS_MAX / 8,
        _ => sphinx_fec::SYMBOLS_MAX,
    };
    if n == 0 || n > most {
        return Err(sphinx_fec::Error::BlockSize { n }.into());
    }
    // A product that should be whole may be a hair more.
    let share_of_n = |share: f64| (share * n as f64 - 1e-9).ceil() as usize;
    let repairs = args.repairs.or(args.redundancy.map(share_of_n));
    let as_mds = || {
        let burst = args.burst.unwrap_or(1.0);
        repairs_for(n, args.plr, burst, 1, args.epsilon).ok_or_else(|| {
            let most = repairs_max(n, args.plr);
            format!("{most} repairs would not be enough: give --repairs or --redundancy")
        })
    };
    let or_as_mds = |repairs: Option<usize>| repairs.map_or_else(as_mds, Ok);
    match args.code {
        CodeId::Window => {
            let redundancy = match args.redundancy {
                Some(redundancy) => redundancy,
                None => or_as_mds(args.repairs)? as f64 / n as f64,
            };
            run_window(args, redundancy, is_json, out)
        }
        CodeId::Rs | CodeId::FftRs => {
            let repairs = or_as_mds(repairs)?;
            let most = match args.code {
                CodeId::Rs => rs::repairs_max(n),
                _ => fft_rs::REPAIRS_MAX,
            };
            if repairs > most {
                let name = args.code.name();
                return Err(format!("{name} has {most} repairs for n = {n}").into());
            }
            run_blocks(args, Rows::Mds, repairs, is_json, out)
        }
        CodeId::Srlt => {
            use params::srlt as paper;
            // No row can have more symbols than the block.
            let cap = args.degree_cap.unwrap_or_else(|| paper::degree_cap(n));
            let cap = cap.min(n as u32).min(sphinx_fec::srlt::DEGREE_MAX);
            let degree = paper::degree(args.plr, args.deviation, cap);
            let by_rule = || paper::packet_count(n, args.plr, degree, args.threshold);
            let repairs = repairs.unwrap_or_else(by_rule);
            run_blocks(args, Rows::Srlt { degree }, repairs, is_json, out)
        }
        CodeId::Lt => {
            let shape = lt::Shape::nearest(args.lt_c, args.lt_delta);
            match repairs {
                Some(repairs) => run_blocks(args, Rows::Lt { shape }, repairs, is_json, out),
                None => run_rateless(args, shape, is_json, out),
            }
        }
        _ => run_blocks(args, Rows::Rlc, or_as_mds(repairs)?, is_json, out),
    }
}

fn run_blocks(
    args: &SimulateArgs,
    rows: Rows,
    repairs: usize,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let (name, n) = (args.code.name(), args.n);
    let scenario = Scenario {
        n,
        repairs,
        loss: Loss::new(args.plr, args.burst),
        maximum_likelihood: args.ml,
    };
    let outcome = simulate::blocks(rows, &scenario, args.blocks, args.seed);
    let loss_rate = outcome.lost as f64 / outcome.sent.max(1) as f64;
    let degree = match rows {
        Rows::Srlt { degree } => Some(degree),
        _ => None,
    };
    if is_json {
        let line = json!({
            "v": 1, "event": "simulation", "code": name, "n": n, "r": repairs,
            "redundancy": repairs as f64 / n as f64, "degree": degree, "ml": args.ml,
            "blocks": outcome.blocks, "failed": outcome.failed, "failure": outcome.failure(),
            "plr": loss_rate, "seed": args.seed,
        });
        writeln!(out, "{line}")?;
    } else {
        let degree = degree.map_or(String::new(), |d| format!(" of {d} symbols each"));
        writeln!(
            out,
            "{name}: n = {n}, {repairs} repairs{degree}, {:.2} % of packets lost: {} of {} blocks \
             failed ({:.3} %)",
            100.0 * loss_rate,
            outcome.failed,
            outcome.blocks,
            100.0 * outcome.failure()
        )?;
    }
    Ok(())
}

fn run_rateless(
    args: &SimulateArgs,
    shape: lt::Shape,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let loss = Loss::new(args.plr, args.burst);
    let needed = simulate::rateless(shape, args.n, loss, args.ml, args.blocks, args.seed);
    let redundancy = needed.mean() / args.n as f64 - 1.0;
    let given_up = needed.given_up();
    let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|share| needed.quantile(share));
    if is_json {
        let line = json!({
            "v": 1, "event": "simulation", "code": "lt", "n": args.n, "ml": args.ml,
            "c": shape.c(), "delta": shape.delta(), "blocks": args.blocks,
            "packets_mean": needed.mean(), "packets_p50": p50, "packets_p90": p90,
            "packets_p99": p99, "given_up": given_up, "redundancy": redundancy, "seed": args.seed,
        });
        writeln!(out, "{line}")?;
    } else {
        let [p50, p90, p99] =
            [p50, p90, p99].map(|packets| packets.map_or("–".to_owned(), |all| all.to_string()));
        writeln!(
            out,
            "lt: n = {}, c = {}, δ = {}: decoded after {:.1} packets on average, lost ones \
             included ({:.1} % redundancy); p50 {p50}, p90 {p90}, p99 {p99}",
            args.n,
            shape.c(),
            shape.delta(),
            needed.mean(),
            100.0 * redundancy,
        )?;
        if given_up > 0 {
            writeln!(
                out,
                "not counting {given_up} of {} blocks, which were given up",
                args.blocks
            )?;
        }
    }
    Ok(())
}

fn run_window(
    args: &SimulateArgs,
    redundancy: f64,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let loss = Loss::new(args.plr, args.burst);
    let symbols = args.blocks * args.n;
    if symbols > STREAM_SYMBOLS_MAX {
        let text = format!("{symbols} symbols are more than {STREAM_SYMBOLS_MAX}: fewer blocks");
        return Err(text.into());
    }
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
             packets: mean {:.2}, p50 {}, p90 {}, p99 {}",
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
