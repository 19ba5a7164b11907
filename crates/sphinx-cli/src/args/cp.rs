//! `sphx cp`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::CommonArgs;
use super::ssh::SshArgs;
use crate::units;

#[derive(Args, Debug)]
pub(crate) struct CpArgs {
    /// Copy directories with what is in them
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// Keep permissions exactly, whatever the umask at the other end says; times are always kept
    #[arg(short, long)]
    pub(crate) preserve: bool,
    /// Remove what has come of a file that is not complete, instead of keeping it for the same command to go on with
    #[arg(long)]
    pub(crate) no_partial: bool,
    /// When the session is lost connect again, for so long after that, and go on
    #[arg(long, value_name = "DURATION", value_parser = units::duration_positive)]
    pub(crate) retry: Option<Duration>,
    #[arg(value_name = "SRC… DST", required = true, num_args = 1.., help = "What to copy, and where to: one side is [USER@]HOST:PATH")]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) ssh: SshArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}
