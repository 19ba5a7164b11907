//! The subcommand `codes`: `bench`, `plan` and `simulate`.

mod bench;
mod plan;
mod simulate;

use std::error::Error;
use std::fmt;
use std::io::Write;
use std::ops::RangeInclusive;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use sphinx_fec::{CodeId, Engine, fft_rs, params};
use sphinx_units as units;

/// Why a program that is measured beside the codes has no speed: the command line was right.
#[derive(Debug)]
pub struct ProgramFailed(String);

impl fmt::Display for ProgramFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ProgramFailed {}

/// Arguments of `codes`.
#[derive(Args, Clone, Debug)]
pub struct CodesArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Measure coding speed on one core, in MB/s of source data
    Bench(bench::BenchArgs),
    /// Show what each code would send for a loss rate
    Plan(plan::PlanArgs),
    /// Send blocks or a stream through simulated loss
    Simulate(simulate::SimulateArgs),
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

/// Source symbols in a block: as many as the largest code takes.
fn symbols() -> RangedU64ValueParser<usize> {
    count(1..=fft_rs::SYMBOLS_MAX as u64)
}

fn count(range: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}

/// A loss rate for which redundancy can be computed.
fn loss_rate(text: &str) -> Result<f64, String> {
    match units::fraction(text)? {
        rate if rate <= params::LOSS_MAX => Ok(rate),
        _ => {
            let most = units::show_percent(params::LOSS_MAX);
            Err(format!(
                "no redundancy helps where more than {most} are lost"
            ))
        }
    }
}

/// T of the paper's rule.
fn threshold(text: &str) -> Result<f64, String> {
    let least = params::srlt::THRESHOLD_MIN;
    match units::fraction(text)? {
        some if (least..1.0).contains(&some) => Ok(some),
        some if some < least => Err(format!(
            "from {least} on: less cannot be reckoned with exactly"
        )),
        _ => Err("expected a probability below 1, such as 0.9".to_owned()),
    }
}

/// A mean number of packets lost in a row.
fn burst(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(packets) if (1.0..=1e6).contains(&packets) => Ok(packets),
        _ => Err("expected a number of packets from 1 to 1000000, such as 3 or 1.5".to_owned()),
    }
}

/// A constant of the robust soliton distribution.
fn constant(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 && number <= 1.0 => Ok(number),
        _ => Err("expected a number above 0 and at most 1, such as 0.05".to_owned()),
    }
}

/// Runs the subcommand, writing tables or, with `is_json`, one object per line
/// to `out`.
///
/// # Errors
/// For parameters that a code cannot have, [`ProgramFailed`], and if writing fails.
pub fn run(args: &CodesArgs, is_json: bool, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    match &args.command {
        Command::Bench(args) => bench::run(args, is_json, out),
        Command::Plan(args) => plan::run(args, is_json, out),
        Command::Simulate(args) => simulate::run(args, is_json, out),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

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
        let events: Vec<serde_json::Value> = (lines.lines())
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let count = |name| events.iter().filter(|event| event["event"] == name).count();
        assert_eq!((count("plan"), count("code_plan")), (1, CodeId::ALL.len()));
        let rlc = &events[1];
        assert_eq!((&rlc["code"], &rlc["r"]), (&json!("rlc"), &json!(13)));
        assert_eq!(rlc["degree"], 34.0);
    }

    #[test]
    fn simulate_and_bench_print_json() {
        let simulate = |args: &str| -> serde_json::Value {
            let args = format!("simulate --plr 6% --blocks 50 {args}");
            serde_json::from_str(&output(&args, true).unwrap()).unwrap()
        };
        for code in CodeId::ALL.map(CodeId::name) {
            let value = simulate(&format!("--n 50 --repairs 9 --code {code}"));
            assert_eq!(value["event"], "simulation");
            let value = simulate(&format!("--n 50 --redundancy 18% --ml --code {code}"));
            assert_eq!(value["redundancy"], 0.18, "{value}");
        }
        // 0.14 · 100 is more than 14, as it is computed.
        for (share, repairs) in [("0%", 0), ("7%", 7), ("14%", 14), ("14.1%", 15)] {
            let value = simulate(&format!("--code rlc --redundancy {share}"));
            assert_eq!(value["r"], repairs, "{share}");
        }
        let srlt = simulate("--code srlt");
        assert_eq!((&srlt["r"], &srlt["degree"]), (&json!(15), &json!(16)));
        let srlt = simulate("--code srlt --threshold 0.9 --deviation 0.024 --degree-cap 10");
        assert_eq!((&srlt["r"], &srlt["degree"]), (&json!(43), &json!(10)));
        let lt = simulate("--code lt --lt-c 0.09 --lt-delta 0.5");
        assert_eq!((&lt["c"], &lt["delta"]), (&json!(0.1), &json!(0.5)));
        assert!(lt["packets_mean"].as_f64() > Some(110.0));
        // Each code once, however often it is named.
        let twice = "bench --code rlc --code rlc --n 16 --time-ms 1 --lost 2";
        let lines = output(twice, true).unwrap();
        let values: Vec<serde_json::Value> = (lines.lines())
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let ours = |value: &&serde_json::Value| value["code"] == "rlc" && value["event"] == "code";
        assert_eq!(values.iter().filter(ours).count(), 1, "{lines}");
        assert!(values[0]["encode_mb_s"].as_f64() > Some(0.0));
    }

    #[test]
    fn repairs_are_enough_for_bursts() {
        for code in ["rlc", "rs"] {
            let args = format!("simulate --plr 6% --burst 10 --code {code}");
            let value: serde_json::Value =
                serde_json::from_str(&output(&args, true).unwrap()).unwrap();
            let r = value["r"].as_u64().unwrap();
            assert!(r.abs_diff(51) <= 4, "{value}");
            let failure = value["failure"].as_f64().unwrap();
            assert!((0.003..0.025).contains(&failure), "{value}");
        }
        let given_up = "simulate --code lt --plr 95% --burst 100000 --n 10 --blocks 2000";
        let text = output(given_up, false).unwrap();
        assert!(text.contains("were given up"), "{text}");
        let text = output("plan --plr 6% --burst 10", false).unwrap();
        let [plan, choice] = text.split("without interleaving").collect::<Vec<_>>()[..] else {
            panic!("{text}")
        };
        assert!(plan.contains("blocks to interleave: 8") && plan.contains("not interleaved"));
        let repairs: Vec<&str> = choice
            .lines()
            .filter(|line| line.contains("sparse"))
            .collect();
        assert!(repairs[0].contains(" 51 "), "{text}");
        let text = output("plan --plr 6% --burst 1000000", false).unwrap();
        assert_eq!(text.matches("would not be enough").count(), 4, "{text}");
    }

    #[test]
    fn programs_have_names_of_their_own() {
        let args = "bench --code rlc --n 16 --time-ms 1 --peer a=/bin/false --peer";
        let message = |last: &str| {
            let result = output(&format!("{args} {last}=/bin/false"), false);
            result.unwrap_err().to_string()
        };
        assert!(message("a").contains("another name"), "{}", message("a"));
        assert!(!message("b").contains("another name"), "{}", message("b"));
    }

    #[test]
    fn impossible_parameters_are_errors() {
        for args in [
            "plan --plr 6% --n 0",
            "plan --plr 101%",
            "simulate --plr 6% --code window --n 4096",
            "simulate --plr 6% --code rs --n 250 --repairs 9",
            "simulate --plr 6% --code abacus",
            "simulate --plr 6% --repairs 9 --redundancy 9%",
            "simulate --plr 6% --code srlt --degree-cap 0",
            "simulate --plr 6% --code srlt --threshold 0.1",
            "simulate --plr 6% --code srlt --threshold 100%",
            "simulate --plr 6% --burst 1000000",
            "plan --plr 6% --threshold 0.29",
            "bench --n 16 --time-ms 1 --code rlc --peer rlc=/bin/true",
            "bench --engine abacus",
            "bench --code rs --n 300 --time-ms 1",
        ] {
            assert!(output(args, false).is_err(), "{args}");
        }
    }
}
