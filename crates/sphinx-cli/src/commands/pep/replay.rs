//! `sphx pep replay`: an agent over a capture.

use std::fs::{self, File, Permissions};
use std::io::{self, BufReader, BufWriter};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sphinx_pep::Agent;
use sphinx_pep::replay::{ReplayError, replay};
use sphinx_transport::ErrorKind;
use tempfile::NamedTempFile;

use super::args::ReplayArgs;
use super::{Context, done, flow_event, report, stage};
use crate::failure::{Failure, Outcome, fail, fail_hint, local_io, usage};
use crate::state::{directory_of, keep_rights};

pub(super) fn run(args: &ReplayArgs, context: &Context) -> Outcome<()> {
    let name = args.input.to_string_lossy();
    let input = File::open(&args.input).map_err(|error| local_io("open", &name, error))?;
    let same = |other: &File| -> io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let (one, other) = (input.metadata()?, other.metadata()?);
        Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
    };
    if let Ok(output) = File::open(&args.output)
        && same(&output).map_err(|error| local_io("read", &name, error))?
    {
        return Err(fail(
            ErrorKind::Usage,
            "the capture would be written over itself",
        ));
    }
    let config = args.agent.config()?;
    stage::check_alone(&config).map_err(usage)?;
    let written = args.output.to_string_lossy();
    let unwritten = |error| local_io("create", &written, error);
    let output = Output::open(&args.output).map_err(unwritten)?;
    let mut agent = Agent::new(config);
    let totals = replay(
        BufReader::new(input),
        BufWriter::new(output.file()),
        &args.mobile,
        &mut agent,
    )
    .map_err(|error| failure(error, &name))?;
    output.keep().map_err(unwritten)?;
    while let Some(flow) = agent.poll_ended() {
        flow_event(&flow, context);
    }
    report(&agent, context);
    context.reporter.event(
        done(&agent)
            .with("packets_read", totals.read)
            .with("packets_written", totals.written),
    );
    Ok(())
}

/// Where the result goes. Half a capture looks like one: a file gets its name when there is all of it, and what was there before stays until then.
/// What is no file, or was named by a link (`/dev/stdout`), is written to as it is.
enum Output<'a> {
    File(NamedTempFile, &'a Path),
    Other(File),
}

impl<'a> Output<'a> {
    fn open(path: &'a Path) -> io::Result<Self> {
        let before = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Ok(before) if before.is_file() => Some(before),
            _ => return File::create(path).map(Self::Other),
        };
        let file = tempfile::Builder::new()
            .prefix(".sphx-replay-")
            .suffix(".part")
            // As any new file: what the umask leaves of it.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory_of(path))?;
        if let Some(before) = before {
            keep_rights(&before, file.as_file())?;
        }
        Ok(Self::File(file, path))
    }

    fn file(&self) -> &File {
        match self {
            Self::File(file, _) => file.as_file(),
            Self::Other(file) => file,
        }
    }

    fn keep(self) -> io::Result<()> {
        match self {
            Self::File(file, path) => file.persist(path).map(drop).map_err(|error| error.error),
            Self::Other(_) => Ok(()),
        }
    }
}

fn failure(error: ReplayError, name: &str) -> Failure {
    match error {
        ReplayError::Io(error) => local_io("replay", name, error),
        ReplayError::Law { .. } => fail(ErrorKind::Other, format!("a fault of the agent: {error}")),
        ReplayError::Capture(_) | ReplayError::LinkType(_) => fail_hint(
            ErrorKind::LocalIo,
            format!("cannot replay {name}: {error}"),
            "pcapng and other kinds can be converted: editcap -F pcap IN OUT",
        ),
    }
}
