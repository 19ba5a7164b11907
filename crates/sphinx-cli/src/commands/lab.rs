//! `sphx lab`.

use sphinx_lab::TestbedError;

use super::Context;
use crate::args::lab::LabCommand;
use crate::failure::{Outcome, usage};

/// Runs a command of the lab and returns its exit code. `namespaces` tells how getting the rights to
/// namespaces went, for commands that need them.
pub(crate) fn run(
    command: LabCommand,
    _namespaces: Option<Result<(), TestbedError>>,
    _context: &Context,
) -> Outcome<u8> {
    match command {
        LabCommand::Link(_)
        | LabCommand::Run(_)
        | LabCommand::Figure(_)
        | LabCommand::Report(_) => Err(usage("not built yet")),
    }
}
