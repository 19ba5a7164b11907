//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Parser, Subcommand};
use sphinx_lab::{CellSet, peers::Peer};
use sphinx_units as units;

/// Measure Sphinx beside kernel TCP and QUIC on an emulated link
///
/// Every run has a fresh link of two network namespaces, seeded losses for every
/// contestant, and two processes. Needs root or unprivileged user namespaces with /dev/net/tun. All
/// else should be quiet: the emulator shares the processors with what it measures.
#[derive(Debug, Parser)]
#[command(name = "bench-link", version, subcommand_negates_reqs = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Which cells: 'slice' (RTT 10 ms) or 'full' (more losses, long paths, bursts)
    #[arg(long, default_value = "slice")]
    pub(crate) set: CellSet,
    /// Only these cells, by name, from either set
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) cells: Vec<String>,
    /// Only these contestants, by name
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) contestants: Vec<String>,
    /// One run per seed; the results are medians
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "1,2,3"
    )]
    pub(crate) seeds: Vec<u64>,
    /// Size of a bulk transfer
    #[arg(long, value_name = "SIZE", default_value = "50MB", value_parser = units::size_positive)]
    pub(crate) bytes: u64,
    /// How long blocks are offered
    #[arg(long, value_name = "DURATION", default_value = "24s", value_parser = seconds)]
    pub(crate) block_time: Duration,
    /// Cut a transfer off after this (blocks: this long after the last one is due)
    /// [default: 10s, 2s for blocks]
    #[arg(long, value_name = "DURATION", value_parser = seconds)]
    pub(crate) limit: Option<Duration>,
    /// Also write the results here, one JSON object per line
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// The sphx command, with the feature 'lab' [default: beside this one]
    #[arg(long, value_name = "PATH")]
    pub(crate) sphx: Option<PathBuf>,
    /// One more contestant, Sphinx with other options: 'sphinx-fixed=--cc fixed:190mbit'
    #[arg(long, value_name = "NAME=OPTIONS", value_parser = variant)]
    pub(crate) sphinx: Vec<Variant>,
    /// Print the names of all cells and contestants
    #[arg(long)]
    pub(crate) list: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// One end of a contestant (used by this program itself)
    #[command(hide = true)]
    Peer(Peer),
}

/// Sphinx with options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) name: String,
    pub(crate) options: Vec<String>,
}

fn variant(text: &str) -> Result<Variant, String> {
    let (name, options) = text
        .split_once('=')
        .ok_or("write a name, '=', and options of sphx perf client")?;
    Ok(Variant {
        name: name.to_owned(),
        options: options.split_whitespace().map(ToOwned::to_owned).collect(),
    })
}

fn seconds(text: &str) -> Result<Duration, String> {
    let time = units::period(text)?;
    match time.as_secs_f64() {
        0.05..=3600.0 => Ok(time),
        _ => Err("must be between 50 ms and an hour".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn times() {
        assert_eq!(seconds("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["", "x", "-1s", "0", "24", "NaN", "inf", "1000000s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists_and_variants() {
        let line = [
            "bench-link",
            "--cells",
            "r10-l0,r10-l6",
            "--seeds",
            "4,5",
            "--sphinx",
            "fixed=--cc fixed:190mbit",
        ];
        let arguments = Arguments::parse_from(line);
        assert_eq!(arguments.cells, ["r10-l0", "r10-l6"]);
        assert_eq!(arguments.seeds, [4, 5]);
        assert_eq!(arguments.sphinx[0].options, ["--cc", "fixed:190mbit"]);
        assert!(Arguments::try_parse_from(["bench-link", "--sphinx", "x"]).is_err());
        assert!(Arguments::try_parse_from(["bench-link", "--set", "small"]).is_err());
    }
}
