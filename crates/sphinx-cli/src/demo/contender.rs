//! The transports that are compared, and how each is run.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use sphinx_transport::ErrorKind;

use super::process::Process;
use super::scene::{Side, Stage};
use super::view::View;
use super::{BLOCK_BYTES, BLOCK_INTERVAL};
use crate::args::DEFAULT_PORT;
use crate::args::demo::DemoArgs;
use crate::commands::Context;
use crate::failure::{Outcome, fail, local_io};

/// Starting up and draining queues may take this long on top of a phase.
const EXTRA_TIME: Duration = Duration::from_secs(30);
/// A listening end that is not up by then never will be.
const LISTEN_TIME_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    TcpCubic,
    TcpBbr,
    Sphinx,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// As much as possible.
    Bulk { time: Duration },
    /// One block after the other, each at its time.
    Blocks { time: Duration, rate: u64 },
}

impl Phase {
    /// The time of one transport, divided: enough blocks for a 99th percentile, the rest in bulk.
    pub(super) fn both(args: &DemoArgs) -> [Self; 2] {
        let bulk = args.seconds * 3 / 8;
        let blocks = args.seconds - bulk;
        // Blocks must not fill the link: their latency would be that of a queue.
        let rate = (BLOCK_BYTES as f64 * 8.0 / BLOCK_INTERVAL.as_secs_f64()) as u64;
        [
            Self::Bulk { time: bulk },
            Self::Blocks {
                time: blocks,
                rate: rate.min(args.rate / 2),
            },
        ]
    }

    fn time(self) -> Duration {
        match self {
            Self::Bulk { time } | Self::Blocks { time, .. } => time,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Bulk { .. } => "bulk",
            Self::Blocks { .. } => "100 kB blocks",
        }
    }

    fn arguments(self) -> Vec<String> {
        let mut arguments = vec!["--time".to_owned(), format!("{}ns", self.time().as_nanos())];
        if let Self::Blocks { rate, .. } = self {
            arguments.extend(["--rate".to_owned(), format!("{rate}bit")]);
            arguments.extend(["--block-size".to_owned(), format!("{BLOCK_BYTES}B")]);
        }
        arguments
    }
}

impl Contender {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::TcpCubic => "TCP CUBIC",
            Self::TcpBbr => "TCP BBR",
            Self::Sphinx => "Sphinx",
        }
    }

    /// The kernel's name of the TCP congestion control.
    pub(super) fn congestion_control(self) -> Option<&'static str> {
        match self {
            Self::TcpCubic => Some("cubic"),
            Self::TcpBbr => Some("bbr"),
            Self::Sphinx => None,
        }
    }

    /// Runs one phase on `stage`; the sender's `done`.
    pub(super) fn run(self, stage: &Stage, phase: Phase, context: &Context) -> Outcome<Value> {
        let listen = stage.listen(DEFAULT_PORT);
        let directory = tempfile::tempdir()
            .map_err(|error| local_io("make", "a directory for the ticket", error))?;
        let ticket = directory.path().join("ticket").display().to_string();
        let arguments = self.receiver(stage, listen, &ticket);
        let mut receiver = Process::start(stage, Side::Receiver, &arguments, context)?;
        let listening = receiver.wait_for("listening", LISTEN_TIME_MAX, context, |_| {})?;
        let address = listening.get("listen").and_then(Value::as_str);
        if let Some(Ok(address)) = address.map(str::parse) {
            stage.connect(address);
        }
        let arguments = self.sender(listen, phase, &ticket);
        let mut sender = Process::start(stage, Side::Sender, &arguments, context)?;
        let title = format!("{:<9} {}", self.name(), phase.name());
        let mut view = View::new(&context.reporter, title, phase.time());
        let time_max = phase.time() + EXTRA_TIME;
        let done = sender.wait_for("done", time_max, context, |_| {
            view.show(stage.delivered_bytes());
        })?;
        // The receiver's numbers are in the sender's; that it ends is enough.
        drop(receiver);
        match done.is_object() {
            true => Ok(done),
            false => Err(fail(ErrorKind::Other, "no result came back")),
        }
    }

    fn receiver(self, stage: &Stage, listen: SocketAddr, ticket: &str) -> Vec<String> {
        let listen = listen.to_string();
        match self {
            Self::TcpCubic | Self::TcpBbr => words(&["tcp-server", &listen]),
            Self::Sphinx => {
                let mut arguments = words(&[
                    "perf",
                    "server",
                    "--once",
                    "--json",
                    "--quiet",
                    "--ticket-file",
                    ticket,
                    "--listen",
                    &listen,
                ]);
                if let Some(address) = stage.advertise() {
                    arguments.extend(["--advertise".to_owned(), address.to_string()]);
                }
                arguments
            }
        }
    }

    fn sender(self, receiver: SocketAddr, phase: Phase, ticket: &str) -> Vec<String> {
        let mut arguments = match self.congestion_control() {
            Some(name) => words(&["tcp-client", &receiver.to_string(), "--cc", name]),
            None => words(&[
                "perf",
                "client",
                "--json",
                "--quiet",
                "--no-cache",
                "--ticket-file",
                ticket,
            ]),
        };
        arguments.extend(phase.arguments());
        arguments
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
