//! `codes bench`.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use sphinx_fec::{CodeId, Engine, fft_rs, params};
use sphinx_units as units;

use super::{ProgramFailed, code, count, engine, symbols};
use crate::bench::{self, Arrival, Program, Ratio, Setting, Speed};

/// Largest block with its repairs: what is measured should fit into memory several times.
const BLOCK_BYTES_MAX: usize = 256 << 20;

#[derive(Args, Clone, Debug)]
pub(super) struct BenchArgs {
    /// Codes to measure; may be repeated
    #[arg(long = "code", value_name = "CODE", value_parser = code)]
    codes: Vec<CodeId>,
    /// Source symbols in a block; may be repeated
    #[arg(long, value_name = "N", value_parser = symbols())]
    n: Vec<usize>,
    /// Bytes of a symbol
    #[arg(long, default_value = "1200", value_name = "BYTES", value_parser = count(1..=65535))]
    symbol_bytes: usize,
    /// Repairs of a block; what 6 % loss asks for, if not given. srlt has in any case what the paper's
    /// rule sends for T = 0.9, and lt, which sends nothing else, the rows that it takes
    #[arg(long, value_name = "R", value_parser = count(0..=params::REPAIRS_MAX as u64))]
    repairs: Option<usize>,
    /// Symbols lost, of lt the same share of rows; both as many as repairs and as many as 6 % loss
    /// usually takes, if not given
    #[arg(long, value_name = "L", value_parser = count(0..=fft_rs::SYMBOLS_MAX as u64))]
    lost: Option<usize>,
    /// Instructions to use: scalar, ssse3, avx2, avx512, avx2-gfni, avx512-gfni, neon
    #[arg(long, value_name = "ENGINE", value_parser = engine)]
    engine: Option<Engine>,
    /// A program that measures another code, as NAME=PROGRAM: it is run with source symbols, repairs,
    /// bytes of a symbol, symbols lost and milliseconds, and prints MB/s encoded and decoded
    #[arg(long = "peer", value_name = "NAME=PROGRAM", value_parser = program)]
    programs: Vec<Program>,
    /// Rounds in which everything is measured in turn; ratios have 95 % intervals from two on
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// How long to measure each figure, in milliseconds
    #[arg(long, default_value_t = 60, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    time_ms: u64,
}

pub(super) fn run(
    args: &BenchArgs,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let mut codes: Vec<CodeId> = Vec::new();
    for code in &args.codes {
        if !codes.contains(code) {
            codes.push(*code);
        }
    }
    if codes.is_empty() {
        codes.extend(CodeId::ALL);
    }
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
        // There may be more repairs than symbols.
        let all = vec![repairs.min(n), usual];
        let losses = args.lost.map_or(all, |lost| vec![lost]);
        if (n + repairs) * args.symbol_bytes > BLOCK_BYTES_MAX {
            let most = units::show_size(BLOCK_BYTES_MAX as u64);
            return Err(format!("a block and its repairs are more than {most}").into());
        }
        for lost in losses {
            if lost > n {
                return Err(format!("a block of {n} symbols cannot lose {lost}").into());
            }
            let setting = Setting {
                engine: args.engine.unwrap_or_else(Engine::detect),
                n,
                repairs,
                lost,
                symbol_len: args.symbol_bytes,
                time: Duration::from_millis(args.time_ms),
                draw: 0,
            };
            let mut rounds = Vec::new();
            for round in 0..args.rounds {
                rounds.push(measure(
                    args,
                    &codes,
                    &setting,
                    round == 0 && !is_json,
                    out,
                )?);
            }
            for name in rounds[0].iter().map(|speed| &speed.code) {
                print_speed(&middle(&rounds, name), is_json, out)?;
            }
            // The default code is the one to compare, if it was measured.
            if rounds[0].iter().any(|speed| speed.code == OURS) {
                let is_ours = |name: &str| CodeId::by_name(name).is_some();
                let peers = rounds[0].iter().filter(|speed| !is_ours(&speed.code));
                for peer in peers {
                    print_ratios(&rounds, peer, is_json, out)?;
                }
                print_arrival(&bench::measure_arrival(&setting)?, is_json, out)?;
            }
        }
    }
    Ok(())
}

/// The default code.
const OURS: &str = "rlc";

fn program(text: &str) -> Result<Program, String> {
    let (name, path) = text.split_once('=').ok_or("expected NAME=PROGRAM")?;
    match name.is_empty() || path.is_empty() || CodeId::by_name(name).is_some() {
        true => Err("expected NAME=PROGRAM, with a name that no code of ours has".to_owned()),
        false => Ok(Program {
            name: name.to_owned(),
            path: path.into(),
        }),
    }
}

/// Everything once, in turn.
fn measure(
    args: &BenchArgs,
    codes: &[CodeId],
    setting: &Setting,
    is_told: bool,
    out: &mut dyn Write,
) -> Result<Vec<Speed>, Box<dyn Error>> {
    let mut speeds = Vec::new();
    for code in codes {
        match bench::measure(*code, setting) {
            Ok(speed) => speeds.push(speed),
            Err(error) if args.codes.is_empty() => {
                if is_told {
                    let (name, n, lost) = (code.name(), setting.n, setting.lost);
                    writeln!(out, "{name:<21} n = {n}, {lost} lost: {error}")?;
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    speeds.extend(bench::measure_peers(setting));
    for (i, program) in args.programs.iter().enumerate() {
        let others = args.programs[..i].iter().map(|other| &other.name);
        let mut names = others.chain(speeds.iter().map(|speed| &speed.code));
        // What has one name would count as one code.
        if names.any(|name| *name == program.name) {
            return Err(format!("{} is measured already: another name", program.name).into());
        }
    }
    for program in &args.programs {
        speeds.push(program.measure(setting).map_err(ProgramFailed)?);
    }
    Ok(speeds)
}

/// The code of this name in every round.
fn of<'a>(rounds: &'a [Vec<Speed>], name: &'a str) -> impl Iterator<Item = &'a Speed> {
    rounds
        .iter()
        .flatten()
        .filter(move |speed| speed.code == name)
}

/// The median of all rounds, of encoding and of decoding.
fn middle(rounds: &[Vec<Speed>], name: &str) -> Speed {
    let median = |pick: fn(&Speed) -> Duration| {
        let mut all: Vec<Duration> = of(rounds, name).map(pick).collect();
        all.sort_unstable();
        all[all.len() / 2]
    };
    let first = of(rounds, name).next().expect("the name is of a round");
    Speed {
        encode: median(|speed| speed.encode),
        decode: median(|speed| speed.decode),
        ..first.clone()
    }
}

/// How many times as fast as one of the others the default code is.
fn print_ratios(
    rounds: &[Vec<Speed>],
    peer: &Speed,
    is_json: bool,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let ratio = |pick: fn(&Speed) -> f64| {
        let pairs = of(rounds, OURS).zip(of(rounds, &peer.code));
        let ratios: Vec<f64> = pairs
            .map(|(ours, theirs)| pick(ours) / pick(theirs))
            .collect();
        Ratio::of(&ratios)
    };
    let (Some(encode), Some(decode)) = (ratio(Speed::encode_mb_s), ratio(Speed::decode_mb_s))
    else {
        return Ok(());
    };
    if is_json {
        let shown = |value: f64| (value * 1000.0).round() / 1000.0;
        let interval = |ratio: Ratio| ratio.interval.map(|(low, high)| [shown(low), shown(high)]);
        let line = json!({
            "v": 1, "event": "ratio", "code": OURS, "against": peer.code, "n": peer.n, "lost": peer.lost,
            "encode_ratio": shown(encode.mean), "encode_interval": interval(encode),
            "decode_ratio": shown(decode.mean), "decode_interval": interval(decode),
        });
        return writeln!(out, "{line}");
    }
    let shown = |ratio: Ratio| match ratio.interval {
        Some((low, high)) => format!("{:.2} ({low:.2} to {high:.2})", ratio.mean),
        None => format!("{:.2}", ratio.mean),
    };
    writeln!(
        out,
        "  {OURS} against {}: encodes {} times as fast, decodes {} times",
        peer.code,
        shown(encode),
        shown(decode)
    )
}

fn print_arrival(arrival: &Arrival, is_json: bool, out: &mut dyn Write) -> std::io::Result<()> {
    let [all, last] = [arrival.all, arrival.last].map(|time| time.as_secs_f64() * 1e6);
    if is_json {
        let line = json!({
            "v": 1, "event": "arrival", "code": "rlc", "block_us": all, "last_symbol_us": last,
        });
        return writeln!(out, "{line}");
    }
    writeln!(
        out,
        "  rlc decoded as symbols arrive: {all:.1} microseconds, of these {last:.1} for the last"
    )
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
