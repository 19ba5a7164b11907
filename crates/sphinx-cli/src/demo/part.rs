//! The hidden subcommand behind the demonstration and the lab: one measured end.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use clap::{Parser, Subcommand};

use super::tcp::TcpChannel;
use crate::args::PerfCommand;
use crate::args::demo::DemoPartArgs;
use crate::commands::{self, Context};
use crate::failure::{Outcome, local_io, usage};
use crate::perf::client::{Request, measure};
use crate::perf::server::serve;
use crate::perf::{Direction, Limit, Pacing};
use crate::report::{Event, Progress};
use crate::units;

#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Part {
    #[command(subcommand)]
    command: PartCommand,
}

#[derive(Debug, Subcommand)]
enum PartCommand {
    TcpServer {
        listen: SocketAddr,
    },
    TcpClient {
        server: SocketAddr,
        #[arg(long)]
        cc: String,
        #[arg(long, value_parser = units::duration_positive)]
        time: Duration,
        #[arg(long, value_parser = units::rate)]
        rate: Option<u64>,
        #[arg(long, value_parser = units::size_positive)]
        block_size: Option<u64>,
    },
    Perf {
        #[command(subcommand)]
        command: PerfCommand,
    },
}

pub(crate) fn run(args: &DemoPartArgs, context: &Context) -> Outcome<()> {
    let part = Part::try_parse_from(&args.arguments).map_err(|error| usage(error.to_string()))?;
    end_with_parent()?;
    match part.command {
        PartCommand::Perf {
            command: PerfCommand::Server(args),
        } => commands::perf::serve(*args, context),
        PartCommand::Perf {
            command: PerfCommand::Client(args),
        } => commands::perf::measure(*args, context),
        PartCommand::Perf {
            command: PerfCommand::Cost(args),
        } => commands::cost::run(&args, context),
        PartCommand::TcpServer { listen } => tcp_server(listen, context),
        PartCommand::TcpClient {
            server,
            cc,
            time,
            rate,
            block_size,
        } => {
            let pacing = match (rate, block_size) {
                (Some(rate), Some(bytes)) => Some(Pacing::new(rate, bytes).map_err(usage)?),
                _ => None,
            };
            let limit = Limit::Nanoseconds(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
            let request = Request {
                direction: Direction::Up,
                limit,
                streams: 1,
                pacing,
            };
            let name = ["cubic", "bbr"].into_iter().find(|name| *name == cc);
            let name = name.ok_or_else(|| usage("--cc is cubic or bbr"))?;
            let channel = TcpChannel::connect(server, name);
            let measured = measure(&channel, request, &Progress::default())?;
            context.reporter.event(measured.done.event());
            Ok(())
        }
    }
}

fn tcp_server(listen: SocketAddr, context: &Context) -> Outcome<()> {
    let listener = TcpListener::bind(listen)
        .map_err(|error| local_io("listen on", &listen.to_string(), error))?;
    context
        .reporter
        .event(Event::new("listening").with("listen", listen.to_string()));
    let measured = serve(
        &TcpChannel::accept(listener),
        &Progress::default(),
        |_, _| {},
    )?;
    context.reporter.event(measured.done.event());
    Ok(())
}

/// Whoever started this part holds the other end of standard input: when they are gone, however they
/// ended, it has no reason to go on.
fn end_with_parent() -> Outcome<()> {
    let watch = || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        crate::leave(1)
    };
    thread::Builder::new()
        .name("parent".to_owned())
        .spawn(watch)
        .map(drop)
        .map_err(|error| local_io("start", "a thread", error))
}
