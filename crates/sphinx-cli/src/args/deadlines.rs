//! `--profile live` is for what has a deadline.

use super::engine::Profile;
use super::{Cli, Command, CommonArgs, PerfCommand};
use crate::failure::{Outcome, fail_hint};
use sphinx_transport::ErrorKind;

/// Refuses a profile for deadlines where nothing has any.
pub(crate) fn refuse_deadlines(cli: &Cli) -> Outcome<()> {
    match &cli.command {
        Command::Recv(args) => without_deadlines(&args.common),
        Command::Send(args) => without_deadlines(&args.common),
        Command::Cp(args) => without_deadlines(&args.common),
        Command::Sync(args) => without_deadlines(&args.common),
        // Its options were checked by the command that started it over ssh.
        Command::SshEnd(_) => Ok(()),
        Command::Perf {
            command: PerfCommand::Server(args),
        } => without_deadlines(&args.common),
        // Only `perf client` has messages with deadlines to send; its server does what it asks for.
        Command::Perf {
            command: PerfCommand::Client(_) | PerfCommand::Cost(_),
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn only_what_measures_knows_deadlines() {
        for (line, is_refused) in [
            ("sphx recv --profile live", true),
            ("sphx send t a --profile live", true),
            ("sphx perf server --profile live", true),
            ("sphx send t a --profile latency", false),
            (
                "sphx perf client t --message-size 100B --interval 5ms --profile live",
                false,
            ),
        ] {
            let cli = Cli::try_parse_from(line.split_whitespace()).expect(line);
            assert_eq!(refuse_deadlines(&cli).is_err(), is_refused, "{line}");
        }
    }
}
