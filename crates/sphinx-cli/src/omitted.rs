//! Stand-ins for commands that this build is without: usage errors that say how to get them.

use std::ffi::OsString;

use clap::Args;

use crate::failure::{Failure, fail_hint};
use sphinx_transport::ErrorKind;

/// Whatever is written behind the command.
#[derive(Args, Debug)]
pub(crate) struct Anything {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

impl Anything {
    /// Whether JSON lines are wanted on standard output.
    fn json(&self) -> bool {
        self.arguments.iter().any(|argument| argument == "--json")
    }
}

fn omitted(command: &str, feature: &str) -> Failure {
    fail_hint(
        ErrorKind::Usage,
        format!("sphx {command} is not part of this build"),
        format!(
            "it was built without the feature {feature}: 'cargo build --release --package sphinx-cli' \
             builds everything"
        ),
    )
}

#[cfg(not(feature = "lab"))]
pub(crate) mod tools {
    use clap::Subcommand;

    use super::{Anything, omitted};
    use crate::commands::Context;
    use crate::failure::Outcome;
    use crate::report::Settings;

    /// No example.
    pub(crate) const EXAMPLE: &str = "";

    #[derive(Debug, Subcommand)]
    pub(crate) enum Tools {
        /// Not part of this build
        #[command(hide = true, disable_help_flag = true)]
        Demo(Anything),
        /// Not part of this build
        #[command(hide = true, disable_help_flag = true)]
        Codes(Anything),
        /// Not part of this build
        #[command(hide = true, disable_help_flag = true)]
        Lab(Anything),
    }

    /// Nothing has to be there before the process has threads.
    pub(crate) struct Ground;

    impl Tools {
        fn parts(&self) -> (&'static str, &Anything) {
            match self {
                Self::Demo(rest) => ("demo", rest),
                Self::Codes(rest) => ("codes", rest),
                Self::Lab(rest) => ("lab", rest),
            }
        }

        pub(crate) fn serve_if_init(&self) {}

        pub(crate) fn prepare(&self) -> Ground {
            Ground
        }

        pub(crate) fn run(self, _: Ground, _: &Context) -> Outcome<u8> {
            Err(omitted(self.parts().0, "lab"))
        }

        pub(crate) fn settings(&self) -> Settings {
            Settings::new(self.parts().1.json(), false)
        }
    }
}

#[cfg(not(feature = "pep"))]
pub(crate) mod pep {
    use super::{Anything, omitted};
    use crate::commands::Context;
    use crate::failure::Outcome;
    use crate::report::Settings;

    pub(crate) type PepArgs = Anything;

    pub(crate) fn run(_: PepArgs, _: &Context) -> Outcome<u8> {
        Err(omitted("pep", "pep"))
    }

    /// No agent in front of an emulated link.
    #[cfg(feature = "lab")]
    #[derive(Clone)]
    pub(crate) enum InLink {}

    #[cfg(feature = "lab")]
    impl InLink {
        pub(crate) fn new(agents: &[String]) -> Outcome<Option<InLink>> {
            match agents {
                [] => Ok(None),
                _ => Err(omitted("lab link --agent", "pep")),
            }
        }

        pub(crate) fn report(&self, _: &Context) {
            match *self {}
        }
    }

    #[cfg(feature = "lab")]
    impl sphinx_lab::emulator::Stage for InLink {
        fn packet(&mut self, _: sphinx_lab::emulator::Side, _: u64, _: &[u8]) {
            match *self {}
        }

        fn timeout(&mut self, _: u64) {
            match *self {}
        }

        fn next_timeout(&self) -> Option<u64> {
            match *self {}
        }

        fn drain(&mut self, _: &mut dyn FnMut(sphinx_lab::emulator::Side, &[u8])) {
            match *self {}
        }
    }

    impl Anything {
        pub(crate) fn hands_on_signals(&self) -> bool {
            false
        }

        pub(crate) fn prepare(&self) -> Outcome<()> {
            Ok(())
        }

        pub(crate) fn output(&self) -> Settings {
            Settings::new(self.json(), false)
        }
    }
}

#[cfg(not(feature = "tunnel"))]
pub(crate) mod tunnel {
    use super::{Anything, omitted};
    use crate::commands::Context;
    use crate::failure::Outcome;
    use crate::report::Settings;

    pub(crate) type TunnelArgs = Anything;
    pub(crate) type ServerArgs = Anything;
    pub(crate) type JoinArgs = Anything;

    pub(crate) fn run(_: TunnelArgs, _: &Context) -> Outcome<u8> {
        Err(omitted("tunnel", "tunnel"))
    }

    pub(crate) fn serve(_: ServerArgs, _: &Context) -> Outcome<()> {
        Err(omitted("server", "tunnel"))
    }

    pub(crate) fn join(_: &JoinArgs, _: &Context) -> Outcome<()> {
        Err(omitted("join", "tunnel"))
    }

    impl Anything {
        pub(crate) fn reloads(&self) -> bool {
            false
        }

        pub(crate) fn settings(&self) -> Settings {
            Settings::new(self.json(), false)
        }
    }
}
