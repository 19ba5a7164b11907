//! `sphx ctl`: what is asked of a command that runs.

use clap::{Args, Subcommand};

use super::paths::{bond, path};

pub(super) const EXAMPLES: &str = "\
Examples:
  sphx ctl paths                           which there are, and what each is doing
  sphx ctl paths add wwan1,role=backup     what is written behind --path
  sphx ctl bond redundant

Finds the sphx send or sphx perf client of this user that runs with --path; --pid says which, where there are
several.";

/// What is asked.
#[derive(Args, Debug)]
pub(crate) struct CtlArgs {
    /// The process that is asked, where there are several
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// One JSON object on standard output
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: CtlCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CtlCommand {
    /// Show the paths, or add or remove one
    Paths {
        #[command(subcommand)]
        command: Option<PathsCommand>,
    },
    /// Change what the paths are for, in both directions
    Bond {
        /// As behind --bond
        #[arg(value_name = "MODE", value_parser = |text: &str| bond(text).map(|_| text.to_owned()))]
        mode: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PathsCommand {
    /// Use another path too
    Add {
        /// As behind --path
        #[arg(value_name = "[NAME=]IFACE | ADDR[,KEY=VALUE]...", value_parser = |text: &str| path(text).map(|_| text.to_owned()))]
        path: String,
    },
    /// Give a path up
    Remove {
        /// What it is called
        name: String,
    },
}
