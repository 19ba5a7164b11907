//! `sphx lab`: the link emulator and the experiments on it.

use clap::{Args, Subcommand};
use sphinx_lab::emulator::{LinkArgs, LinkCommand};
use sphinx_lab::path::PathArgs;
use sphinx_lab::peers::Peer;

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
    Link(Box<LinkArgs>),
    /// Download or upload over two hops, with any programs on the way
    Path(Box<PathArgs>),
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
    /// Whether it starts links between namespaces of this process. A user namespace can be entered
    /// only before the process has threads.
    pub(crate) fn needs_namespaces(&self) -> bool {
        match self {
            LabCommand::Link(args) => args.command.is_none() && args.run.interfaces.is_none(),
            LabCommand::Path(_) | LabCommand::Run(_) | LabCommand::Figure(_) => true,
            LabCommand::Report(_) | LabCommand::Peer(_) => false,
        }
    }

    /// Whether this is the first process of the namespace of a link's programs.
    pub(crate) fn is_init(&self) -> bool {
        matches!(self, LabCommand::Link(args) if matches!(args.command, Some(LinkCommand::Init)))
    }

    /// Whether JSON lines are wanted on standard output, and nothing for people.
    pub(crate) fn output(&self) -> (bool, bool) {
        match self {
            LabCommand::Link(args) => match &args.command {
                None => (args.run.json, args.run.quiet),
                Some(LinkCommand::Set(args)) => (args.json, false),
                Some(LinkCommand::Show(args)) => (args.json, false),
                Some(LinkCommand::Init) => (false, true),
            },
            LabCommand::Path(args) => (args.json, args.quiet),
            LabCommand::Run(args) => (args.output.json, false),
            LabCommand::Figure(args) => (args.output.json, false),
            LabCommand::Report(args) => (args.output.json, false),
            LabCommand::Peer(_) => (true, false),
        }
    }
}
