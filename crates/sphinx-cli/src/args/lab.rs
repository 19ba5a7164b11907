//! `sphx lab`: the link emulator and the experiments on it.

use clap::{Args, Subcommand};

use super::LaterArgs;

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
    /// Run an experiment (not built yet)
    #[command(hide = true)]
    Run(LaterArgs),
    /// Reproduce a figure of the paper (not built yet)
    #[command(hide = true)]
    Figure(LaterArgs),
    /// Render the results (not built yet)
    #[command(hide = true)]
    Report(LaterArgs),
}

impl LabCommand {
    /// Its name.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            LabCommand::Link(_) => "link",
            LabCommand::Run(_) => "run",
            LabCommand::Figure(_) => "figure",
            LabCommand::Report(_) => "report",
        }
    }

    /// Whether it starts links between namespaces of this process. A user namespace can be entered
    /// only before the process has threads.
    pub(crate) fn needs_namespaces(&self) -> bool {
        matches!(self, LabCommand::Link(_))
    }

    /// Whether JSON lines are wanted on standard output.
    pub(crate) fn json(&self) -> bool {
        match self {
            LabCommand::Link(args)
            | LabCommand::Run(args)
            | LabCommand::Figure(args)
            | LabCommand::Report(args) => args.rest.iter().any(|word| word == "--json"),
        }
    }
}
