//! The sphx command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    sphinx_cli::run()
}
