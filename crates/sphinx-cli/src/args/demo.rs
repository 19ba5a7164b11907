//! `sphx demo`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use crate::units;

/// With more than that nothing is there to be shown: hardly anything arrives.
const LOSS_MAX: f64 = 0.95;

fn loss(text: &str) -> Result<f64, String> {
    match units::fraction(text)? {
        loss if loss <= LOSS_MAX => Ok(loss),
        _ => Err(format!("'{text}' is too much: at most 95%")),
    }
}

#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Rate of the emulated link, at the IP layer
    #[arg(long, value_name = "RATE", default_value = "200mbit", value_parser = units::rate)]
    pub(crate) rate: u64,
    /// Its round-trip time
    #[arg(long, value_name = "DURATION", default_value = "10ms", value_parser = units::duration_positive)]
    pub(crate) rtt: Duration,
    /// Share of packets it loses at random, towards the receiver, at most 95%
    #[arg(long, value_name = "SHARE", default_value = "6%", value_parser = loss)]
    pub(crate) loss: f64,
    /// Seed of the emulated link's randomness
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// How long each transport runs in each phase
    #[arg(long, value_name = "DURATION", default_value = "8s", value_parser = units::period_positive)]
    pub(crate) seconds: Duration,
    /// One JSON object per line on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress, only the result
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// The demonstration runs its measured ends as processes of their own, so that each joins its
/// namespace before it has threads; and so does the lab.
#[derive(Args, Debug)]
pub(crate) struct DemoPartArgs {
    /// What to run there.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) arguments: Vec<OsString>,
}
