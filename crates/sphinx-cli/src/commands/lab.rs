//! `sphx lab`.

use sphinx_lab::TestbedError;

use super::{Context, experiments, requests};
use crate::args::lab::LabCommand;
use crate::failure::{Outcome, usage};

/// Runs a command of the lab and returns its exit code. `namespaces` tells how getting the rights to
/// namespaces went, for commands that need them.
pub(crate) fn run(
    command: LabCommand,
    namespaces: Option<Result<(), TestbedError>>,
    context: &Context,
) -> Outcome<u8> {
    match command {
        LabCommand::Link(_) => Err(usage("not built yet")),
        LabCommand::Run(args) => experiments::run(&args, namespaces, context).map(|()| 0),
        LabCommand::Figure(args) => experiments::figure(&args, namespaces, context).map(|()| 0),
        LabCommand::Report(args) => experiments::report(&args, context).map(|()| 0),
        LabCommand::Peer(peer) => Ok(requests::peer(&peer)),
    }
}
