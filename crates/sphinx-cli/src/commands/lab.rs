//! `sphx lab`.

use std::path::PathBuf;

use sphinx_lab::TestbedError;

use super::{Context, link};
use crate::args::lab::LabCommand;
use crate::failure::{Outcome, usage};

/// How getting the rights to namespaces went, before the process had threads.
pub(crate) struct Namespaces {
    pub(crate) prepared: Result<(), TestbedError>,
    /// Where running links are found, as seen from outside of a user namespace.
    pub(crate) link_directory: PathBuf,
}

/// Runs a command of the lab and returns its exit code.
pub(crate) fn run(
    command: LabCommand,
    namespaces: Option<Namespaces>,
    context: &Context,
) -> Outcome<u8> {
    match command {
        LabCommand::Link(args) => link::run(*args, namespaces, context),
        LabCommand::Run(_) | LabCommand::Figure(_) | LabCommand::Report(_) => {
            Err(usage("not built yet"))
        }
    }
}
