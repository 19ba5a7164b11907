//! `codes bench`.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use sphinx_fec::{CodeId, Engine, fft_rs, params};
use sphinx_units as units;

use super::{code, count, engine, symbols};
use crate::bench::{self, Arrival, Setting, Speed};

/// Largest block with its repairs: what is measured should fit into memory several times.
const BLOCK_BYTES_MAX: usize = 256 << 20;

#[derive(Args, Clone, Debug)]
pub(super) struct BenchArgs {
    /// Codes to measure
    #[arg(long = "code", value_name = "CODE", value_parser = code)]
    codes: Vec<CodeId>,
    /// Source symbols in a block; may be repeated
    #[arg(long, value_name = "N", value_parser = symbols())]
    n: Vec<usize>,
    /// Bytes of a symbol
    #[arg(long, default_value = "1200", value_name = "BYTES", value_parser = count(1..=65535))]
    symbol_bytes: usize,
    /// Repairs of a block; what 6 % loss asks for, if not given
    #[arg(long, value_name = "R", value_parser = count(0..=params::REPAIRS_MAX as u64))]
    repairs: Option<usize>,
    /// Symbols lost; both as many as repairs and as many as 6 % loss usually
    /// takes, if not given
    #[arg(long, value_name = "L", value_parser = count(0..=fft_rs::SYMBOLS_MAX as u64))]
    lost: Option<usize>,
    /// Instructions to use: scalar, ssse3, avx2, avx512, avx2-gfni, avx512-gfni, neon
    #[arg(long, value_name = "ENGINE", value_parser = engine)]
    engine: Option<Engine>,
    /// How long to measure each figure, in milliseconds
    #[arg(long, default_value_t = 60, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    time_ms: u64,
}

pub(super) fn run(
    args: &BenchArgs,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
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
            };
            let mut ours = Vec::new();
            for code in &codes {
                match bench::measure(*code, &setting) {
                    Ok(speed) => {
                        print_speed(&speed, is_json, out)?;
                        ours.push(speed);
                    }
                    Err(error) if args.codes.is_empty() => {
                        let name = code.name();
                        if !is_json {
                            writeln!(out, "{name:<21} n = {n}, {lost} lost: {error}")?;
                        }
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            let peers = bench::measure_peers(&setting);
            for speed in &peers {
                print_speed(speed, is_json, out)?;
            }
            // The default code is the one to compare, if it was measured.
            let ours = ours.iter().find(|speed| speed.code == "rlc");
            if let Some(ours) = ours {
                print_ratio(ours, &peers, is_json, out)?;
                print_arrival(&bench::measure_arrival(&setting)?, is_json, out)?;
            }
        }
    }
    Ok(())
}

/// How many times as fast as the fastest of the others `ours` is.
fn print_ratio(
    ours: &Speed,
    peers: &[Speed],
    is_json: bool,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let fastest = |of: fn(&Speed) -> f64| {
        let peers = peers.iter();
        peers.max_by(|a, b| of(a).total_cmp(&of(b)))
    };
    let (Some(encode), Some(decode)) = (fastest(Speed::encode_mb_s), fastest(Speed::decode_mb_s))
    else {
        return Ok(());
    };
    let ratios = [
        ours.encode_mb_s() / encode.encode_mb_s(),
        ours.decode_mb_s() / decode.decode_mb_s(),
    ];
    if is_json {
        let [encode_ratio, decode_ratio] = ratios.map(|ratio| (ratio * 100.0).round() / 100.0);
        let line = json!({
            "v": 1, "event": "ratio", "code": ours.code, "n": ours.n, "lost": ours.lost,
            "encode_ratio": encode_ratio, "encode_against": encode.code,
            "decode_ratio": decode_ratio, "decode_against": decode.code,
        });
        return writeln!(out, "{line}");
    }
    writeln!(
        out,
        "  {} encodes {:.1} times as fast as {} and decodes {:.1} times as fast as {}",
        ours.code, ratios[0], encode.code, ratios[1], decode.code
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
