//! The `sphx` command: files, measurement and a demonstration over lossy links.
//!
//! `args` is what can be written, `commands` wires sessions to the application protocols in `files`
//! and `perf`, `report` is what comes out.

#![forbid(unsafe_code)]

mod addresses;
mod args;
mod channel;
mod commands;
mod config;
#[cfg(feature = "lab")]
mod demo;
mod failure;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
#[cfg(not(all(feature = "lab", feature = "pep", feature = "tunnel")))]
mod omitted;
mod perf;
mod report;
mod signals;
mod ssh;
mod state;
#[cfg(any(test, fuzzing))]
mod testing;
mod text;
#[cfg(feature = "lab")]
mod tools;

use std::ffi::OsString;
use std::io::Write;

use clap::error::ErrorKind as ClapError;
use clap::{CommandFactory, FromArgMatches};

use args::{Cli, Command, PerfCommand};
use commands::Context;
#[cfg(feature = "pep")]
use commands::pep;
#[cfg(feature = "tunnel")]
use commands::tunnel;
use failure::{Failure, usage};
#[cfg(not(feature = "pep"))]
use omitted::pep;
#[cfg(not(feature = "lab"))]
use omitted::tools;
#[cfg(not(feature = "tunnel"))]
use omitted::tunnel;
use report::{Reporter, Settings};
use signals::Stop;
use sphinx_transport::ErrorKind;
use sphinx_units as units;
use text::without_tickets;
use tools::Ground;

/// Runs the command line of this process, and ends it with the exit code.
pub fn run() -> ! {
    signals::outlive_file_size_limit();
    leave(follow_command_line())
}

/// Ends the process at once. Some of its threads may be at work: `exit` would have libraries tidy up while these still use them, and aws-lc, whose random
/// numbers a handshake asks for, aborts the process then.
pub(crate) fn leave(code: u8) -> ! {
    signal_hook::low_level::exit(code.into())
}

fn follow_command_line() -> u8 {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let grammar = grammar();
    let parsed = match grammar.clone().try_get_matches_from(&arguments) {
        Ok(matches) => match config::complete(&grammar, &arguments, matches) {
            Ok(matches) => Cli::from_arg_matches(&matches),
            Err(failure) => return refuse_failure(&failure, &arguments),
        },
        Err(error) => Err(error),
    };
    match parsed {
        Ok(cli) => dispatch(cli),
        Err(error) => refuse(&error, &arguments),
    }
}

/// The command line of this process with what its configuration says by now.
#[cfg(feature = "tunnel")]
fn parse_again() -> failure::Outcome<Cli> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let grammar = grammar();
    let parsed = grammar.clone().try_get_matches_from(&arguments);
    let matches = parsed.map_err(|error| usage(failure::sentence(&error)))?;
    let matches = config::complete(&grammar, &arguments, matches)?;
    Cli::from_arg_matches(&matches).map_err(|error| usage(failure::sentence(&error)))
}

/// What is wrong before there is a command: a configuration that cannot be followed.
fn refuse_failure(failure: &Failure, arguments: &[OsString]) -> u8 {
    let json = arguments.iter().any(|argument| argument == "--json");
    let reporter = Reporter::new(Settings::new(json, false), Stop::default());
    let code = reporter.end_with_error(failure, None);
    // Whether or not anybody reads it.
    let _ = reporter.finish();
    code
}

/// The command line as clap knows it: what can be written, and its help.
pub fn grammar() -> clap::Command {
    /// Every command tells the version of the program, not of a part of that name.
    fn named(command: clap::Command) -> clap::Command {
        command.display_name("sphx").mut_subcommands(named)
    }
    named(Cli::command())
}

/// Help, the version, or a command line that is not understood.
fn refuse(error: &clap::Error, arguments: &[OsString]) -> u8 {
    let shown = match error.kind() {
        ClapError::DisplayHelp | ClapError::DisplayVersion => 0,
        // clap shows the help; a script that forgot its arguments still has to notice.
        _ => 2,
    };
    let text = error.to_string();
    let shown_text = without_tickets(&text);
    let printed = match text == shown_text {
        true => error.print().and_then(|()| std::io::stdout().flush()),
        // Without colours, but also without the secret that was given in the wrong place.
        false => write!(std::io::stderr(), "{shown_text}"),
    };
    // Standard output may be closed: then nobody wants to read it.
    if let Err(error) = printed
        && shown == 0
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        let failure = failure::local_io("write to", "standard output", error);
        return refuse_failure(&failure, arguments);
    }
    if shown != 0 && arguments.iter().any(|argument| argument == "--json") {
        let failure = usage(failure::sentence(error));
        let settings = Settings::new(true, true);
        Reporter::new(settings, Stop::default()).error_event(&failure);
    }
    shown
}

fn dispatch(cli: Cli) -> u8 {
    if let Command::Tools(tool) = &cli.command {
        tool.serve_if_init();
    }
    // Namespaces can only be left while there is one thread: before the reporter's.
    #[cfg(feature = "tunnel")]
    if let Command::Inside(args) = &cli.command {
        return tunnel::inside::run(args);
    }
    let stop = Stop::default();
    let reporter = Reporter::new(output_settings(&cli.command), stop.clone());
    // A user namespace can only be entered while there is one thread: before the signals'.
    let ground = match &cli.command {
        Command::Tools(tool) => Some(tool.prepare()),
        _ => None,
    };
    let outcome = args::refuse_deadlines(&cli)
        .and_then(|()| match &cli.command {
            Command::Pep(args) => args.prepare(),
            _ => Ok(()),
        })
        .and_then(|()| {
            if matches!(&cli.command, Command::Pep(args) if args.hands_on_signals()) {
                return Ok(());
            }
            let reporter = reporter.clone();
            let leaving = stop.clone();
            let reloads = matches!(&cli.command, Command::Server(args) if args.reloads());
            stop.listen(!reloads, move |signal| {
                let code = reporter.end_with_error(&leaving.failure(), Some(signal));
                let _ = reporter.finish();
                leave(code)
            })
        })
        .and_then(|()| {
            let context = Context {
                reporter: reporter.clone(),
                stop: stop.clone(),
            };
            execute(cli.command, ground, &context)
        });
    let outcome = outcome.inspect(|_| reporter.ended());
    // A failure is told before its reader is waited for, success needs its reader to have taken all.
    let outcome = outcome
        .map_err(|failure| reporter.end_with_error(&asked_to(&stop, failure), stop.signal()));
    match (outcome, reporter.finish()) {
        (Ok(0), Err(failure)) => reporter.error(&failure, None, None),
        (Ok(code) | Err(code), _) => code,
    }
}

/// After a signal every failure is a consequence of it.
fn asked_to(stop: &Stop, failure: Failure) -> Failure {
    match stop.requested() || failure.kind == ErrorKind::Interrupted {
        true => stop.failure(),
        false => failure,
    }
}

/// Runs the command and returns the exit code.
fn execute(command: Command, ground: Option<Ground>, context: &Context) -> failure::Outcome<u8> {
    match command {
        Command::Recv(args) => return commands::recv::run(args, context),
        Command::Send(args) => return commands::send::run(args, context),
        Command::Cp(args) => return commands::cp::run(args, context),
        Command::Sync(args) => return commands::cp::sync(args, context),
        Command::SshEnd(args) => return commands::ssh_end::run(&args, context),
        Command::Perf {
            command: PerfCommand::Server(args),
        } => commands::perf::serve(*args, context)?,
        Command::Perf {
            command: PerfCommand::Client(args),
        } => commands::perf::measure(*args, context)?,
        Command::Perf {
            command: PerfCommand::Cost(args),
        } => commands::cost::run(&args, context)?,
        Command::Ctl(args) => commands::ctl::run(&args, context)?,
        Command::Tools(tool) => {
            let ground = ground.unwrap_or_else(|| tool.prepare());
            return tool.run(ground, context);
        }
        Command::Pep(args) => return pep::run(args, context),
        Command::Tunnel(args) => return tunnel::run(args, context),
        #[cfg(feature = "tunnel")]
        Command::Inside(args) => return Ok(tunnel::inside::run(&args)),
        Command::Server(args) => tunnel::serve(*args, context)?,
        Command::Join(args) => tunnel::join(&args, context)?,
        Command::Ticket(args) => commands::tickets::run(args, context)?,
        Command::Config(args) => commands::config::run(&args, context)?,
    }
    Ok(0)
}

fn output_settings(command: &Command) -> Settings {
    let common = match command {
        Command::Recv(args) => &args.common,
        Command::Send(args) => &args.common,
        Command::Cp(args) => &args.common,
        Command::Sync(args) => &args.common,
        Command::SshEnd(_) => return Settings::new(false, true),
        Command::Perf {
            command: PerfCommand::Server(args),
        } => &args.common,
        Command::Perf {
            command: PerfCommand::Client(args),
        } => &args.common,
        Command::Perf {
            command: PerfCommand::Cost(args),
        } => return Settings::new(args.json, false),
        Command::Ctl(args) => return Settings::new(args.json, false),
        Command::Tools(tool) => return tool.settings(),
        Command::Tunnel(args) => return args.settings(),
        #[cfg(feature = "tunnel")]
        Command::Inside(_) => return Settings::new(false, true),
        Command::Server(args) => return args.settings(),
        Command::Join(args) => return args.settings(),
        Command::Ticket(args) => return args.settings(),
        Command::Config(args) => return args.settings(),
        Command::Pep(args) => return args.output(),
    };
    Settings {
        changes: matches!(command, Command::Sync(args) if args.dry_run),
        ..common.settings()
    }
}
