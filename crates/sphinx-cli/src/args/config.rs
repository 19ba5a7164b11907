//! What `sphx config` takes.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::config::Kind;
use crate::report::Settings;

/// `sphx config`.
#[derive(Args, Debug)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say whether a file can be followed
    Check(WhichArgs),
    /// Show what holds
    Show(ShowArgs),
}

/// Which file.
#[derive(Args, Debug)]
pub(crate) struct WhichArgs {
    /// A server's file, instead of your own (~/.config/sphinx/config.toml, or $SPHX_CONFIG)
    #[arg(long, value_name = "F")]
    pub(crate) server: Option<PathBuf>,
    /// Events as JSON lines on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// `sphx config show`.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// Say where each value comes from
    #[arg(long)]
    pub(crate) origin: bool,
}

impl WhichArgs {
    pub(crate) fn kind(&self) -> Kind {
        match self.server {
            Some(_) => Kind::Server,
            None => Kind::User,
        }
    }
}

impl ConfigArgs {
    pub(crate) fn settings(&self) -> Settings {
        let which = match &self.command {
            ConfigCommand::Check(which) => which,
            ConfigCommand::Show(args) => &args.which,
        };
        Settings::new(which.json, false)
    }
}
