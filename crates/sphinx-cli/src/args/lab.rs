//! `sphx lab`: the link emulator and the experiments on it.

use clap::{Args, Subcommand};
use sphinx_lab::link::{LinkArgs, LinkCommand};

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
    Link(Box<LinkArgs>),
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
        matches!(self, LabCommand::Link(args) if args.command.is_none())
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
            LabCommand::Run(args) | LabCommand::Figure(args) | LabCommand::Report(args) => {
                (args.rest.iter().any(|word| word == "--json"), false)
            }
        }
    }
}
