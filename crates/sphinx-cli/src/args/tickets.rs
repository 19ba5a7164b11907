//! What `sphx ticket` takes.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::addresses::advertisable;
use crate::report::Settings;
use crate::state::{line, tickets};
use crate::units;

/// `sphx ticket`.
#[derive(Args, Debug)]
pub(crate) struct TicketArgs {
    #[command(subcommand)]
    pub(crate) command: TicketCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TicketCommand {
    /// Make another ticket, which works at once
    New(NewTicketArgs),
    /// Show the tickets, and what each is still good for; never their secrets
    List(ListTicketsArgs),
    /// Take a ticket back: who has it is cut off within a second
    Revoke(RevokeTicketArgs),
}

/// Whose tickets.
#[derive(Args, Debug)]
pub(crate) struct StateArgs {
    /// State directory of the receiver or server [default: that of sphx recv --identity]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Events as JSON lines on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Only errors on standard error
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Args, Debug)]
pub(crate) struct NewTicketArgs {
    /// What it is called in lists, and taken back by
    #[arg(value_parser = line::name)]
    pub(crate) name: String,
    /// Write the ticket to this file (readable only by you) instead of printing it; needed with --json
    #[arg(long, value_name = "F", required_if_eq("json", "true"))]
    pub(crate) ticket_file: Option<PathBuf>,
    /// No transfer begins after this long
    #[arg(long, value_name = "DURATION", value_parser = units::period_positive)]
    pub(crate) expires: Option<Duration>,
    /// How many transfers it is good for; one that has not come to its end does not count
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) uses: Option<u32>,
    /// How many bytes may be sent with it, all in all
    #[arg(long, value_name = "SIZE", value_parser = units::size_positive)]
    pub(crate) quota: Option<u64>,
    /// Put what is sent with it into this directory below that of --output
    #[arg(long, value_name = "DIR", value_parser = tickets::directory)]
    pub(crate) directory: Option<PathBuf>,
    /// What it may do at a server, rules as for sphx server --permit (files:DIR says where files go)
    #[arg(long, value_name = "RULES", value_parser = permit, conflicts_with_all = ["quota", "directory"])]
    pub(crate) permit: Option<String>,
    /// Host or host:port to put into the ticket, once for each [default: where the receiver was last]
    #[arg(long, value_name = "HOST:PORT", num_args = 1.., value_parser = advertisable)]
    pub(crate) advertise: Vec<String>,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ListTicketsArgs {
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

#[derive(Args, Debug)]
pub(crate) struct RevokeTicketArgs {
    /// Its name
    #[arg(value_parser = line::name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// Rules, as they are written.
pub(crate) fn permit(text: &str) -> Result<String, String> {
    #[cfg(feature = "tunnel")]
    text.parse::<sphinx_tunnel::Permit>()
        .map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

impl TicketArgs {
    pub(crate) fn settings(&self) -> Settings {
        let state = match &self.command {
            TicketCommand::New(args) => &args.state,
            TicketCommand::List(args) => &args.state,
            TicketCommand::Revoke(args) => &args.state,
        };
        Settings::new(state.json, state.quiet)
    }
}
