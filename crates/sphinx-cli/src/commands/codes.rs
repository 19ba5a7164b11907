//! `sphx codes`: what the erasure codes cost and achieve.

use std::io::{self, Write};

use sphinx_codes::cli::ProgramFailed;
use sphinx_transport::ErrorKind;

use crate::failure::{Outcome, fail, usage};
use crate::tools::CodesArgs;

/// Prints tables, or JSON lines. A reader that has seen enough (a closed pipe) is no failure.
pub(crate) fn run(args: &CodesArgs) -> Outcome<()> {
    let mut out = io::stdout().lock();
    let result = sphinx_codes::cli::run(&args.codes, args.json, &mut out);
    let flushed = out.flush();
    match result {
        Ok(()) => flushed.or_else(allow_broken_pipe).map_err(local),
        Err(error) => match error.downcast::<io::Error>() {
            Ok(error) => allow_broken_pipe(*error).map_err(local),
            Err(error) if error.is::<ProgramFailed>() => {
                Err(fail(ErrorKind::Other, error.to_string()))
            }
            Err(error) => Err(usage(error.to_string())),
        },
    }
}

fn allow_broken_pipe(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    }
}

fn local(error: io::Error) -> crate::failure::Failure {
    fail(ErrorKind::LocalIo, format!("cannot write: {error}"))
}
