//! `sphx pep replay`: an agent over a capture.

use std::fs::File;
use std::io::{BufReader, BufWriter};

use sphinx_pep::Agent;
use sphinx_pep::replay::{ReplayError, replay};
use sphinx_transport::ErrorKind;

use super::args::ReplayArgs;
use super::{Context, done, flow_event, report, stage};
use crate::failure::{Failure, Outcome, fail, fail_hint, local_io, usage};

pub(super) fn run(args: &ReplayArgs, context: &Context) -> Outcome<()> {
    let name = args.input.to_string_lossy();
    let input = File::open(&args.input).map_err(|error| local_io("open", &name, error))?;
    let same = |other: &File| -> std::io::Result<bool> {
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
    let output = File::create(&args.output).map_err(|error| local_io("create", &written, error))?;
    let mut agent = Agent::new(config);
    let totals = replay(
        BufReader::new(input),
        BufWriter::new(output),
        &args.mobile,
        &mut agent,
    )
    .map_err(|error| {
        // Half a capture looks like one. What is no file is not ours to remove.
        if args.output.is_file() {
            let _ = std::fs::remove_file(&args.output);
        }
        failure(error, &name)
    })?;
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
