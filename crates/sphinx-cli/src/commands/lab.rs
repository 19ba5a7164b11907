//! `sphx lab`.

use std::path::PathBuf;

use sphinx_lab::TestbedError;

use super::{Context, experiments, link, path, requests};
use crate::args::lab::LabCommand;
use crate::failure::Outcome;

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
    let prepared = |namespaces: Option<Namespaces>| namespaces.map(|found| found.prepared);
    match command {
        LabCommand::Link(args) => link::run(*args, namespaces, context),
        LabCommand::Path(args) => path::run(*args, prepared(namespaces), context),
        LabCommand::Run(args) => experiments::run(&args, prepared(namespaces), context),
        LabCommand::Figure(args) => {
            experiments::figure(&args, prepared(namespaces), context).map(|()| 0)
        }
        LabCommand::Report(args) => experiments::report(&args, context).map(|()| 0),
        LabCommand::Peer(peer) => Ok(requests::peer(&peer)),
    }
}
