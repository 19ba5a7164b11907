//! `sphx lab run`, `figure`, `report`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// `sphx lab run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The experiment, in TOML (docs/lab.md describes it)
    #[arg(value_name = "SCENARIO.toml")]
    pub(crate) scenario: PathBuf,
    /// Results, one JSON object per line; what is there already is not run again
    /// [default: the scenario's name with .ndjson, here]
    #[arg(long, value_name = "FILE")]
    pub(crate) results: Option<PathBuf>,
    /// Apply the scenario's section 'quick'
    #[arg(long)]
    pub(crate) quick: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `sphx lab figure`.
#[derive(Args, Debug)]
pub(crate) struct FigureArgs {
    /// Which
    #[arg(value_name = "FIGURE")]
    pub(crate) figure: Which,
    /// Fewer points and shorter runs: all the paper's figures in less than six minutes
    #[arg(long)]
    pub(crate) quick: bool,
    /// Figure 9 with five pairs at once, over 1 Gbit/s each: paper, with 500 MB for each pair and at least eight processors; or model, in virtual time with what sphx perf cost says
    #[arg(long, value_enum)]
    pub(crate) scale: Option<Scale>,
    /// Seeds of each case of 7, --scale, neighbours (3 without this), multipath-fairness (5 without this, with --quick 3), snoop…, eln, asymmetry, limited-transmit, rsfc… and rdb-… [default: 10, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: Option<u64>,
    /// Directory for CSV, SVG, PNG, Markdown and NDJSON; runs that are there are not run again
    /// [default: docs/results, with --quick lab-quick]
    #[arg(long = "output", short, value_name = "DIR")]
    pub(crate) output_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `sphx lab report`.
#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// Directory that `sphx lab figure` wrote; index.html goes there as well
    #[arg(value_name = "DIR", default_value = "docs/results")]
    pub(crate) directory: PathBuf,
    /// Write every figure's page, drawings and tables anew from its runs on file first
    #[arg(long)]
    pub(crate) redraw: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// What comes out.
#[derive(Args, Debug)]
pub(crate) struct OutputArgs {
    /// One JSON object per line on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress, only the result
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// How large an experiment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scale {
    /// As large as the paper's
    Paper,
    /// The same as a model
    Model,
}

/// A figure of the paper, or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Which {
    /// Redundancy against loss
    #[value(name = "7")]
    Seven,
    /// Coding time against symbol length
    #[value(name = "8")]
    Eight,
    /// Goodput against loss
    #[value(name = "9")]
    Nine,
    /// Completion time of blocks against loss
    #[value(name = "10")]
    Ten,
    /// Buffer of a video player over time
    #[value(name = "11")]
    Eleven,
    /// Reliability, goodput, efficiency, computation and latency as numbers
    Table1,
    /// The paper's mode, one assumption at a time, in virtual time: what ICM adds, and the order of the codes
    Gap,
    /// What carries small messages: streams, live messages, datagrams, beside TCP, QUIC and SRT
    Modes,
    /// Links as people have them: goodput against what waits, beside TCP and QUIC.
    Links,
    /// Transfers of 10 kB to 10 MB over new connections: time to the last byte and bytes sent, beside TCP and QUIC
    Short,
    /// Who shares a bottleneck with whom, and how: in pairs, beside ten, ten of a kind (real time, 40 minutes)
    Neighbours,
    /// What else matters: block size, redundancy, bursts, feedback loss, round-trip times, rates
    Ablations,
    /// Kernel TCP over a hop with bit errors, with and without agents in its path (sphx pep)
    Snoop,
    /// The same, by the rate of errors
    SnoopBer,
    /// Kernel TCP over a hop that loses packets, by the length of the path, with and without agents
    SnoopDelay,
    /// The sender's congestion window over a hop with bit errors, with and without agents
    SnoopWindow,
    /// Small objects over a hop with bad periods, with and without agents
    SnoopWeb,
    /// Uploads over a hop with errors, with and without agents on both sides of it
    Eln,
    /// Transfers whose acknowledgements have a thin way, with and without agents for these
    Asymmetry,
    /// Messages over a path that loses packets, with Limited Transmit and without
    LimitedTransmit,
    /// Uploads that fill their senders' links, and what is beside them, with receiver-side flow control and without
    Rsfc,
    /// Pages beside an upload
    RsfcWeb,
    /// Uploads by how long their packets may wait, over a path that changes, and two at once
    RsfcAblation,
    /// Thin streams that lose every tenth packet, with and without RDB (sphx pep)
    RdbLoss,
    /// Thin streams beside greedy ones, with and without RDB
    RdbFairness,
    /// Which streams are thin
    RdbDpifl,
    /// Thin streams by loss, round trip and interval, with and without RDB; beside QUIC and Sphinx
    RdbToday,
    /// Two unequal paths by the receive buffer, beside the kernel's multipath TCP
    MultipathBuffer,
    /// A path of two that falls silent and comes back
    MultipathFailover,
    /// Several paths as people have them
    MultipathToday,
    /// What bytes wait for in a bounded receive buffer, by the way of using two unequal paths
    MultipathDelay,
    /// What coding costs there
    MultipathComplexity,
    /// Two unequal paths whose losses change
    MultipathChange,
    /// Several paths in one bottleneck beside others, with --couple auto and without
    MultipathFairness,
    /// All of the paper's; without --quick all others as well
    All,
}
