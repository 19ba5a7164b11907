//! What stands on the link emulator and the codes by themselves: `sphx demo`, `codes` and `lab`. Nothing
//! of it is needed to move files; the feature `lab` has it in the build (`omitted` stands in for it).

use clap::{Args, Subcommand};
use sphinx_lab::Testbed;

use crate::args::demo::{DemoArgs, DemoPartArgs};
use crate::args::lab::LabArgs;
use crate::commands::lab::Namespaces;
use crate::commands::{self, Context};
use crate::demo::{self, Scene};
use crate::failure::Outcome;
use crate::report::Settings;

/// The first of the examples below the help of `sphx`.
pub(crate) const EXAMPLE: &str =
    "  sphx demo                                   watch Sphinx and TCP on the same lossy link\n";

#[derive(Debug, Subcommand)]
pub(crate) enum Tools {
    /// Watch Sphinx and TCP on the same emulated lossy link
    #[command(after_help = "\
Examples:
  sphx demo                                  200 Mbit/s, 10 ms round trip, 6 % loss
  sphx demo --rate 50mbit --rtt 100ms --loss 2%

Runs on this machine alone, without root where unprivileged user namespaces are allowed.")]
    Demo(DemoArgs),
    /// Erasure codes: speed, plans, simulation, figures
    Codes(CodesArgs),
    /// Link emulator and experiments
    #[command(arg_required_else_help = true)]
    Lab(LabArgs),
    /// Runs a measured end inside a network namespace
    #[command(name = "__demo", hide = true)]
    DemoPart(DemoPartArgs),
}

/// `sphx codes`.
#[derive(Args, Debug)]
// The flattened arguments have a group of the same name.
#[group(skip)]
pub(crate) struct CodesArgs {
    #[command(flatten)]
    pub(crate) codes: sphinx_codes::cli::CodesArgs,
    /// Print one JSON object per line
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// What a command stands on that has to be there before the process has threads.
pub(crate) enum Ground {
    Nothing,
    Demo(Scene),
    Namespaces(Namespaces),
}

impl Tools {
    /// Stays here for ever if this is the first process of a namespace of processes.
    pub(crate) fn serve_if_init(&self) {
        if let Self::Lab(args) = self
            && args.command.is_init()
        {
            sphinx_netdev::pidns::serve_as_init();
        }
    }

    pub(crate) fn prepare(&self) -> Ground {
        match self {
            Self::Demo(_) => Ground::Demo(Scene::prepare()),
            Self::Lab(args) if args.command.needs_namespaces() => Ground::Namespaces(Namespaces {
                link_directory: sphinx_lab::emulator::directory(),
                prepared: Testbed::prepare_process(),
            }),
            _ => Ground::Nothing,
        }
    }

    /// Runs the command and returns the exit code.
    pub(crate) fn run(self, ground: Ground, context: &Context) -> Outcome<u8> {
        match self {
            Self::Demo(args) => {
                let scene = match ground {
                    Ground::Demo(scene) => scene,
                    _ => Scene::prepare(),
                };
                demo::run(&args, scene, context)?;
            }
            Self::DemoPart(args) => demo::part::run(&args, context)?,
            Self::Codes(args) => commands::codes::run(&args)?,
            Self::Lab(args) => {
                let namespaces = match ground {
                    Ground::Namespaces(prepared) => Some(prepared),
                    _ => None,
                };
                return commands::lab::run(args.command, namespaces, context);
            }
        }
        Ok(0)
    }

    pub(crate) fn settings(&self) -> Settings {
        match self {
            Self::Demo(args) => Settings::new(args.json, args.quiet),
            Self::DemoPart(_) => Settings::new(true, true),
            Self::Codes(args) => Settings::new(args.json, false),
            Self::Lab(args) => {
                let (json, quiet) = args.command.output();
                Settings::new(json, quiet)
            }
        }
    }
}
