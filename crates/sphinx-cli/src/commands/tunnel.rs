//! `sphx tunnel`.

pub(crate) mod inside;
pub(super) mod interface;

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use sphinx_transport::{ErrorKind, Options, Profile, Ticket};
use sphinx_tunnel::{ClientError, Credentials, Event, Events, Forward, Listen, Plan, Status, Stop};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use super::Context;
use crate::args::CommonArgs;
use crate::args::ticket::{self, Names};
use crate::args::tunnel::{JoinArgs, ServerArgs, TunnelArgs};
use crate::failure::{Failure, Outcome, fail, fail_hint, local_io, usage};
use crate::report::{self, Reporter};
use crate::text::printable;
use crate::units::{show_duration, show_size};

/// Events that wait to be written; then the next ones are dropped: nobody's connection waits for a reader of events.
const EVENTS_MAX: usize = 1024;
/// Longest file with a user and a password.
const AUTH_BYTES_MAX: u64 = 1024;

/// Runs until it is stopped, or the program ends that was to be run: then with its code.
pub(crate) fn run(args: TunnelArgs, context: &Context) -> Outcome<u8> {
    let mut plan = plan(&args)?;
    let ticket = ticket_of(&args, context)?;
    let options = options(&args.common)?;
    allow_files();
    let told = Told::start(&context.reporter, args.common.verbose)?;
    let runtime = runtime()?;
    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop);
    let _registration = context.stop.on_stop(move || stopped.notify_one());
    let (program, device) = match args.program.is_empty() {
        true => (None, None),
        false => {
            let (waiting, device) = inside::start(&args)?;
            (Some(Program::watch(waiting, &stop)?), Some(device))
        }
    };
    plan.tun = interface::plan(&args, device);
    let ended = runtime.block_on(async {
        let stopped = stop.notified();
        match args.stdio {
            Some(target) => {
                sphinx_tunnel::stdio(target, &ticket, &options, &told.events, stopped).await
            }
            None => {
                let stop = async {
                    stopped.await;
                    // If no stop was requested, the program has ended: its last data is delivered.
                    match context.stop.requested() {
                        true => Stop::Now,
                        false => Stop::Delivered,
                    }
                };
                sphinx_tunnel::forward(plan, &ticket, &options, &told.events, stop).await
            }
        }
    });
    // A read of standard input may block for ever, so it is not waited for.
    runtime.shutdown_background();
    told.finish();
    let code = program.map(|program| program.end(ended.is_err() || context.stop.requested()));
    match context.stop.requested() {
        true => Err(context.stop.failure()),
        false => ended
            .map_err(session_failure)
            .and_then(|()| code.unwrap_or(Ok(0))),
    }
}

/// A program whose packets are carried.
struct Program {
    id: Pid,
    thread: JoinHandle<io::Result<ExitStatus>>,
    _directory: TempDir,
}

impl Program {
    /// Waits for the program in a thread; when it ends, the tunnel is told to stop.
    fn watch(waiting: inside::Waiting, stop: &Arc<Notify>) -> Outcome<Self> {
        let (mut child, directory) = waiting.into_parts();
        let id = Pid::from_child(&child);
        let stop = Arc::clone(stop);
        let wait = move || {
            let status = child.wait();
            stop.notify_one();
            status
        };
        let thread = thread::Builder::new()
            .name("program".to_owned())
            .spawn(wait);
        Ok(Self {
            id,
            thread: thread.map_err(|error| local_io("start", "a thread", error))?,
            _directory: directory,
        })
    }

    /// Waits for it; `early`: without a tunnel it is of no use.
    fn end(self, early: bool) -> Outcome<u8> {
        if early && !self.thread.is_finished() {
            let _ = kill_process(self.id, Signal::TERM);
        }
        let status = self.thread.join().ok().and_then(Result::ok);
        status.map(inside::code_of).ok_or_else(inside::lost)
    }
}

/// How to reach the server: by the name that it was joined under, or with a ticket.
fn ticket_of(args: &TunnelArgs, context: &Context) -> Outcome<Ticket> {
    ticket::refuse_two(args.ticket_file.as_deref(), args.ticket.as_deref())?;
    let argument = (args.ticket.as_deref(), Some(Names::Bare));
    let environment = std::env::var_os("SPHX_TICKET");
    let (source, _) = ticket::find(args.ticket_file.as_deref(), argument, environment)?;
    ticket::note_exposure(&source, &context.reporter);
    ticket::read(source)
}

pub(crate) fn serve(args: ServerArgs, context: &Context) -> Outcome<()> {
    super::server::run(args, context)
}

pub(crate) fn join(args: &JoinArgs, context: &Context) -> Outcome<()> {
    super::join::run(args, context)
}

pub(super) fn options(common: &CommonArgs) -> Outcome<Options> {
    Ok(Options {
        quiet: true,
        readers_may_pause: true,
        ..common.options(Profile::Auto)?
    })
}

/// One thread for all connections: the engine, which does the work, has its own.
pub(super) fn runtime() -> Outcome<Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(|error| local_io("start", "the event loop", error))
}

/// Each connection is a file: as many as the system allows.
pub(super) fn allow_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    // With fewer, connections wait for others to end.
    let _ = setrlimit(Resource::Nofile, limit);
}

fn plan(args: &TunnelArgs) -> Outcome<Plan> {
    interface::check(args)?;
    let TunnelArgs {
        local,
        remote,
        proxy,
        ..
    } = args;
    if local.is_empty()
        && remote.is_empty()
        && proxy.is_empty()
        && args.stdio.is_none()
        && args.tun.is_none()
    {
        let failure = usage("there is nothing to forward");
        return Err(failure
            .with_hint("-L 8080:host:80 forwards a port; sphx tunnel --help shows the others"));
    }
    let of = |forwards: &[Forward], letter: &str| -> Vec<(String, Listen, bool)> {
        let mut all = Vec::new();
        for forward in forwards {
            let is_udp = matches!(forward.carried, sphinx_tunnel::Carried::Datagrams(_));
            all.push((
                format!("-{letter} {}", forward.text),
                forward.listen.clone(),
                is_udp,
            ));
        }
        all
    };
    let mut here = of(local, "L");
    here.extend(
        proxy
            .iter()
            .map(|at| (format!("-D {at}"), Listen::Address(*at), false)),
    );
    for listeners in [here, of(remote, "R")] {
        for (n, (spec, at, is_udp)) in listeners.iter().enumerate() {
            let mut before = listeners[..n].iter();
            if let Some((other, ..)) =
                before.find(|(_, other, udp)| udp == is_udp && other.overlaps(at))
            {
                return Err(usage(format!(
                    "{other} and {spec} listen on the same address"
                )));
            }
        }
    }
    if let Some(path) = remote
        .iter()
        .find(|forward| matches!(forward.listen, Listen::Path(_)))
    {
        return Err(usage(format!(
            "-R {}: listening on a Unix socket at the other end is not built yet",
            path.text
        )));
    }
    Ok(Plan {
        local: local.clone(),
        remote: remote.clone(),
        proxies: proxy.clone(),
        credentials: args.proxy_auth.as_deref().map(credentials).transpose()?,
        tun: None,
    })
}

fn credentials(path: &Path) -> Outcome<Credentials> {
    let shown = printable(path.as_os_str().as_encoded_bytes());
    let read = || {
        if fs::metadata(path)?.len() > AUTH_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long"));
        }
        fs::read_to_string(path)
    };
    let text = read().map_err(|error| local_io("read", &shown, error))?;
    let line = text.lines().next().unwrap_or_default();
    line.parse()
        .map_err(|why| usage(format!("the first line of {shown}: {why}")))
}

/// Whether the server admits the client with this ticket.
pub(super) fn is_known(runtime: &Runtime, ticket: &Ticket, options: &Options) -> bool {
    runtime.block_on(sphinx_tunnel::is_known(ticket, options))
}

pub(super) fn session_failure(error: ClientError) -> Failure {
    let message = error.to_string();
    match error {
        ClientError::Session(error) => error.into(),
        ClientError::Listen { source, .. } => {
            let hint = match source.kind() {
                io::ErrorKind::AddrInUse => {
                    "another program listens there; port 0 takes any free one"
                }
                io::ErrorKind::PermissionDenied => {
                    "ports below 1024 need root or the capability CAP_NET_BIND_SERVICE"
                }
                io::ErrorKind::AddrNotAvailable => "it is no address of this machine",
                _ => "",
            };
            fail_hint(ErrorKind::LocalIo, message, hint)
        }
        ClientError::Refused { refusal, .. } => match refusal.status {
            Status::Denied => fail_hint(
                ErrorKind::Authentication,
                message,
                "the server's --permit says what it lets through",
            ),
            _ => fail(ErrorKind::RemoteIo, message),
        },
        ClientError::Tun { source, .. } => interface::failure(message, &source),
        ClientError::Stdio(_) => fail(ErrorKind::LocalIo, message),
    }
}

/// Events on their way to whoever reads them: written by a thread that may wait for its readers.
pub(super) struct Told {
    pub(super) events: Events,
    thread: JoinHandle<()>,
}

impl Told {
    pub(super) fn start(reporter: &Reporter, verbose: u8) -> Outcome<Self> {
        let (sender, events) = sync_channel::<Event>(EVENTS_MAX);
        let reporter = reporter.clone();
        let body = move || {
            for event in events {
                tell(event, &reporter);
            }
        };
        let thread = thread::Builder::new().name("events".to_owned()).spawn(body);
        let thread = thread.map_err(|error| local_io("start", "a thread", error))?;
        let tell = move |event| give(&sender, event, verbose);
        let events = Events::new(tell);
        Ok(Self { events, thread })
    }

    /// Waits until all events have been reported.
    pub(super) fn finish(self) {
        drop(self.events);
        // A panic there has been printed.
        let _ = self.thread.join();
    }
}

fn give(sender: &SyncSender<Event>, event: Event, verbose: u8) {
    if verbose > 0 || !matches!(event, Event::Flow { .. } | Event::Client { .. }) {
        let _ = sender.try_send(event);
    }
}

fn tell(event: Event, reporter: &Reporter) {
    match event {
        Event::Connected { server, rtt } => {
            let rtt_ms = (rtt.as_secs_f64() * 1e6).round() / 1e3;
            let told = report::Event::new("connected");
            reporter.event(
                told.with("server", server.to_string())
                    .with("rtt_ms", rtt_ms),
            );
            reporter.note(&format!("Connected to {server}, round trip {rtt_ms} ms"));
        }
        Event::Client { client, name, gone } => {
            let gone = gone.map(|why| printable(why.as_bytes()));
            let told = report::Event::new("client").with("client", client.to_string());
            let told = told.with("name", name.as_str());
            reporter.event(told.with("gone", gone.as_deref()));
            let what = gone.map_or_else(|| "connected".to_owned(), |why| format!("gone: {why}"));
            // A client without a name goes by its address, which is then shown once only.
            let who = match name == client.to_string() {
                true => name,
                false => format!("{name} ({client})"),
            };
            reporter.note(&format!("{who}: {what}"));
        }
        Event::Forward { spec, bound } => {
            let told = report::Event::new("forward");
            reporter.event(
                told.with("spec", spec.as_str())
                    .with("bound", bound.as_str()),
            );
            reporter.note(&format!("{spec}: listening on {bound}"));
        }
        Event::Tun {
            interface,
            addresses,
            commands,
        } => {
            let told = report::Event::new("tun").with("interface", interface.as_str());
            let told = told.with("addresses", &addresses[..]);
            reporter.event(told.with("commands", &commands[..]));
            let addresses = addresses.join(", ");
            reporter.note(&format!("{interface}: {addresses}"));
            if !commands.is_empty() {
                reporter
                    .note("For clients to reach more than this machine, run what is missing of:");
            }
            for command in commands {
                reporter.note(&format!("  {command}"));
            }
        }
        Event::Flow {
            id,
            proto,
            target,
            bytes_up,
            bytes_down,
            time,
            end,
        } => {
            let (target, end) = (printable(target.as_bytes()), printable(end.as_bytes()));
            let told = report::Event::new("flow")
                .with("id", id)
                .with("proto", proto)
                .with("target", target.as_str())
                .with("bytes_up", bytes_up)
                .with("bytes_down", bytes_down)
                .with("seconds", time.as_secs_f64())
                .with("end", end.as_str());
            reporter.event(told);
            let (up, down) = (show_size(bytes_up), show_size(bytes_down));
            let time = show_duration(Duration::from_millis(time.as_millis() as u64));
            reporter.note(&format!(
                "{proto} {target}: {up} up, {down} down in {time}: {end}"
            ));
        }
        Event::Denied {
            client,
            target,
            rule,
        } => {
            let target = printable(target.as_bytes());
            let told = report::Event::new("denied").with("client", client.as_str());
            reporter.event(told.with("target", target.as_str()).with("rule", rule));
            reporter.note(&format!("{client}: {target} denied: {rule}"));
        }
        Event::Reconnecting {
            reason,
            attempt,
            next,
        } => {
            let reason = printable(reason.as_bytes());
            let told = report::Event::new("reconnecting").with("reason", reason.as_str());
            let next_ms = next.as_millis() as u64;
            reporter.event(told.with("attempt", attempt).with("next_ms", next_ms));
            let next = show_duration(next);
            reporter.note(&format!("{reason}; connecting again in {next}"));
        }
        Event::Warning(message) => reporter.warn(&printable(message.as_bytes())),
        _ => {}
    }
}
