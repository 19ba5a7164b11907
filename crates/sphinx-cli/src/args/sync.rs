//! `sphx sync`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::CommonArgs;
use super::ssh::SshArgs;
use crate::units;

#[derive(Args, Debug)]
pub(crate) struct SyncArgs {
    /// Change nothing: say what would be sent, made and deleted
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Delete what is in DST and not in SRC, once everything else has come
    #[arg(long)]
    pub(crate) delete: bool,
    /// Delete nothing if it would be more than so many things
    #[arg(long, value_name = "N", requires = "delete")]
    pub(crate) max_delete: Option<u64>,
    /// Leave out what matches, at both ends: as rsync's --exclude; any number of times
    #[arg(long, value_name = "PATTERN")]
    pub(crate) exclude: Vec<OsString>,
    /// Read rules from this file, '- PATTERN' and '+ PATTERN', one a line; the first that matches decides, those of --exclude come first
    #[arg(long, value_name = "F")]
    pub(crate) filter_from: Option<PathBuf>,
    /// Compare files of the same size by their contents, not by their time
    #[arg(short, long)]
    pub(crate) checksum: bool,
    /// Send files that have changed as a whole
    #[arg(short = 'W', long)]
    pub(crate) whole_file: bool,
    /// Send no faster than this (the same as --limit)
    #[arg(long, value_name = "RATE", value_parser = units::rate, conflicts_with = "limit")]
    pub(crate) bwlimit: Option<u64>,
    /// Remove what has come of a file that is not complete, instead of keeping it for the same command to go on with
    #[arg(long)]
    pub(crate) no_partial: bool,
    /// When the session is lost connect again, for so long after that, and go on
    #[arg(long, value_name = "DURATION", value_parser = units::duration_positive)]
    pub(crate) retry: Option<Duration>,
    /// The directory that is right; with a slash at its end, what is in it
    #[arg(value_name = "SRC")]
    pub(crate) source: OsString,
    /// The directory that becomes the same; one side is HOST:PATH or USER@HOST:PATH
    #[arg(value_name = "DST")]
    pub(crate) destination: OsString,
    #[command(flatten)]
    pub(crate) ssh: SshArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}
