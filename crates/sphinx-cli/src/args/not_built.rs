//! Parts of the contract that come later: a usage error that says so.

use super::engine::Profile;
use super::{Cli, Command, CommonArgs, PathArgs, PerfCommand};
use crate::failure::{Failure, Outcome, fail_hint};
use sphinx_transport::ErrorKind;

/// Refuses what the grammar knows and this version does not do.
pub(crate) fn refuse_not_built(cli: &Cli) -> Outcome<()> {
    match &cli.command {
        Command::Recv(args) => without_deadlines(&args.common),
        Command::Send(args) => without_deadlines(&args.common).and_then(|()| paths(&args.paths)),
        Command::Cp(args) => without_deadlines(&args.common),
        Command::Sync(args) => without_deadlines(&args.common),
        // What was written has been looked at where it was.
        Command::SshEnd(_) => Ok(()),
        Command::Perf {
            command: PerfCommand::Server(args),
        } => without_deadlines(&args.common),
        Command::Perf {
            command: PerfCommand::Client(args),
        } => paths(&args.paths),
        Command::Perf {
            command: PerfCommand::Cost(_),
        } => Ok(()),
        Command::Pep(_)
        | Command::Ticket(_)
        | Command::Config(_)
        | Command::Ctl(_)
        | Command::Tools(_)
        | Command::Join(_)
        | Command::Tunnel(_)
        | Command::Server(_) => Ok(()),
        #[cfg(feature = "tunnel")]
        Command::Inside(_) => Ok(()),
    }
}

/// The same for a command that chooses nothing with a deadline. (What `perf client` asks for, its server does.)
fn without_deadlines(args: &CommonArgs) -> Outcome<()> {
    if args.profile == Profile::Live {
        return Err(fail_hint(
            ErrorKind::Usage,
            "--profile live is for messages with a deadline",
            "sphx perf client --profile live --message-size 1000B --interval 5ms sends such",
        ));
    }
    Ok(())
}

fn paths(args: &PathArgs) -> Outcome<()> {
    match args.later() {
        Some((flag, value)) => Err(not_built(&format!("{flag} {value}"))),
        None => Ok(()),
    }
}

/// What the contract has and this version has not.
fn not_built(what: &str) -> Failure {
    fail_hint(
        ErrorKind::Usage,
        format!("{what} is not built yet"),
        "it is planned; sphx --help shows what this version does",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn later_parts_say_so() {
        let line = "sphx send t a --path auto";
        let cli = Cli::try_parse_from(line.split_whitespace()).expect(line);
        let failure = refuse_not_built(&cli).expect_err(line);
        assert_eq!(failure.kind, ErrorKind::Usage);
        assert!(
            failure.message.ends_with("is not built yet"),
            "{}",
            failure.message
        );
    }

    #[test]
    fn what_is_built_passes() {
        for line in [
            "sphx recv",
            "sphx recv --io xdp:eth0:0,copy",
            "sphx send t a --codec srlt --cc fixed:1mbit",
            "sphx send t a --workers 2 --cpus 0,1",
            "sphx send t a --cc scavenger",
            "sphx send t a --codec rs",
            "sphx send t a --path wlan0 --path 10.0.0.1 --bond aggregate",
            "sphx perf client t --path a --path b --bond sc",
            "sphx send t a --path wlan0 --path wwan0,cost=5 --bond cheapest",
            "sphx send t a --codec fft-rs",
            "sphx send t a --codec lt",
            "sphx send t a --codec window",
            "sphx perf server --icm paper",
            "sphx perf server --icm off",
            "sphx perf client t --message-size 100B --interval 5ms --deadline 50ms",
            "sphx perf client t --message-size 100B --interval 5ms --profile live",
            #[cfg(feature = "lab")]
            "sphx demo",
            #[cfg(feature = "lab")]
            "sphx lab link",
        ] {
            let cli = Cli::try_parse_from(line.split_whitespace()).expect(line);
            assert!(refuse_not_built(&cli).is_ok(), "{line}");
        }
    }
}
