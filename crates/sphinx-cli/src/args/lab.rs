//! `sphx lab`: the link emulator and the experiments on it.

use clap::{Args, Subcommand};

use sphinx_lab::peers::Peer;

use super::LaterArgs;
use super::experiments::{FigureArgs, ReportArgs, RunArgs};

/// `sphx lab`.
#[derive(Args, Debug)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Emulate a link between two network namespaces
    Link(LaterArgs),
    /// Run an experiment: links, workloads and contestants from a file
    Run(RunArgs),
    /// Reproduce a figure of the paper
    Figure(FigureArgs),
    /// Render the results as one page
    Report(ReportArgs),
    /// One end of a contestant
    #[command(hide = true)]
    Peer(Peer),
}

impl LabCommand {
    /// Its name.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            LabCommand::Link(_) => "link",
            LabCommand::Run(_) => "run",
            LabCommand::Figure(_) => "figure",
            LabCommand::Report(_) => "report",
            LabCommand::Peer(_) => "peer",
        }
    }

    /// Whether it starts links between namespaces of this process. A user namespace can be entered
    /// only before the process has threads.
    pub(crate) fn needs_namespaces(&self) -> bool {
        matches!(
            self,
            LabCommand::Link(_) | LabCommand::Run(_) | LabCommand::Figure(_)
        )
    }

    /// Whether JSON lines are wanted on standard output.
    pub(crate) fn json(&self) -> bool {
        match self {
            LabCommand::Link(args) => args.rest.iter().any(|word| word == "--json"),
            LabCommand::Run(args) => args.output.json,
            LabCommand::Figure(args) => args.output.json,
            LabCommand::Report(args) => args.output.json,
            LabCommand::Peer(_) => true,
        }
    }
}
