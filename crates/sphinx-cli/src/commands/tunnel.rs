//! `sphx tunnel` and `sphx server`.

pub(crate) mod inside;
mod interface;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use sd_notify::NotifyState;
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;
use sphinx_transport::asynchronous::Server as Endpoint;
use sphinx_transport::{ErrorKind, Options, Profile, ServerKey, Service, Ticket};
use sphinx_tunnel::{
    ClientError, Credentials, Event, Events, Forward, Grant, Granted, Hub, Listen, Permit, Plan,
    Server, Status,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::clients::{self, Place, Roster};
use super::listen::{Given, Known};
use super::{Context, listen};
use crate::args::tunnel::{JoinArgs, ServerArgs, ServerCommand, TunnelArgs};
use crate::args::{Command, CommonArgs, ListenArgs, ticket};
use crate::failure::{Failure, Outcome, fail, fail_hint, local_io, usage};
use crate::report::{self, Reporter};
use crate::state::servers::Servers;
use crate::state::{key, line};
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
    let options = options(&args.common);
    allow_files();
    let told = Told::start(&context.reporter, args.common.verbose)?;
    let runtime = runtime()?;
    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop);
    let _registration = context.stop.on_stop(move || stopped.notify_one());
    let (program, device) = match args.program.is_empty() {
        true => (None, None),
        false => {
            let (waiting, device) = inside::start(&args.program, &args.dns)?;
            (Some(Program::watch(waiting, &stop)?), Some(device))
        }
    };
    plan.tun = interface::plan(&args, device);
    let ended = runtime.block_on(async {
        let stop = stop.notified();
        match args.stdio {
            Some(target) => {
                sphinx_tunnel::stdio(target, &ticket, &options, &told.events, stop).await
            }
            None => sphinx_tunnel::forward(plan, &ticket, &options, &told.events, stop).await,
        }
    });
    // Standard input may be read for ever.
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
    /// With its end, the tunnel ends too.
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
    let argument = args.ticket.as_deref();
    let name = argument
        .and_then(OsStr::to_str)
        .and_then(|it| line::name(it).ok());
    if let (None, Some(name)) = (&args.ticket_file, name) {
        return Servers::ticket(&Servers::place()?, &name);
    }
    let environment = std::env::var_os("SPHX_TICKET");
    let (source, _) = ticket::find(args.ticket_file.as_deref(), argument, environment)?;
    ticket::note_exposure(&source, &context.reporter);
    ticket::read(source)
}

pub(crate) fn join(args: &JoinArgs, context: &Context) -> Outcome<()> {
    super::join::run(args, context)
}

pub(crate) fn serve(args: ServerArgs, context: &Context) -> Outcome<()> {
    match &args.command {
        Some(ServerCommand::Invite(args)) => return clients::invite(args, context),
        Some(ServerCommand::Clients(args)) => return clients::list(args, context),
        Some(ServerCommand::Revoke(args)) => return clients::revoke(args, context),
        Some(ServerCommand::Key(args)) => return clients::key(args, context),
        None => {}
    }
    if args.permit.is_none() && (args.key.is_some() || args.ticket_file.is_some()) {
        let failure = usage("a ticket is good for nothing without rules");
        return Err(failure.with_hint(
            "--permit tunnel lets those who have it reach what ssh would; --permit tunnel:tcp:db.corp:5432 one port",
        ));
    }
    let lets_tun = args.permit.as_ref().is_some_and(Permit::lets_tun);
    if lets_tun && args.tun_pool.is_empty() {
        let failure = usage("--permit tun: clients need addresses");
        return Err(failure.with_hint("--tun-pool 10.9.0.0/24 gives them some"));
    }
    let is_kept = args.state.is_some() || args.authorized.is_some() || args.permit.is_none();
    if !lets_tun && !is_kept && !args.tun_pool.is_empty() {
        let failure = usage("--tun-pool: no rule lets clients send IP packets");
        return Err(failure.with_hint("--permit tun does"));
    }
    let mut roster = match is_kept {
        true => {
            let place = Place::open(args.state.as_deref(), args.authorized.as_deref())?;
            Some(Roster::open(place, args.limits())?)
        }
        false => None,
    };
    // From here on it means to read the configuration again, whenever it comes.
    let hangups = match args.reloads() {
        true => {
            Some(Signals::new([SIGHUP]).map_err(|error| local_io("listen for", "signals", error))?)
        }
        false => None,
    };
    let options = args.serving.apply(&args.common, options(&args.common));
    let listen = ListenArgs {
        listen: args.listen,
        advertise: args.advertise.clone(),
        ticket_file: args.ticket_file.clone(),
        once: false,
        serving: args.serving,
    };
    let command = "tunnel TICKET -L 8080:localhost:80";
    let given = match (&mut roster, &args.permit) {
        (None, _) => Given::First,
        (Some(roster), Some(permit)) => Given::Kept(roster.give_first(permit.clone())),
        (Some(_), None) => Given::None,
    };
    let key = || match (&roster, &args.key) {
        (Some(roster), _) => roster.key(),
        (None, Some(path)) => key::server(path),
        (None, None) => Ok(ServerKey::generate()),
    };
    let known = Known {
        service: Service::Tunnel,
        key: &key,
        ticket: given,
    };
    let bound = listen::open(&listen, &args.common, &known, &options, context)?;
    // Before anybody hears of it.
    let _watch = match &roster {
        Some(roster) => {
            roster.listens_at(bound.addresses())?;
            Some(roster.watch(bound.server.access(), &context.reporter)?)
        }
        None => None,
    };
    let server = bound.announce(&listen, context, command)?;
    allow_files();
    let told = Told::start(&context.reporter, args.common.verbose)?;
    let runtime = runtime()?;
    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop);
    let _registration = context.stop.on_stop(move || stopped.notify_one());
    let mut serving = Server::new(told.events.clone());
    if !args.tun_pool.is_empty() {
        let reserved = roster.as_ref().map(Roster::reserved).unwrap_or_default();
        let opened = runtime.block_on(async { Hub::open(&args.tun_pool, &reserved, &told.events) });
        let hub = opened.map_err(|error| {
            interface::failure(format!("--tun-pool: opening a TUN device: {error}"), &error)
        })?;
        serving = serving.with_tun(hub);
    }
    let serving = Arc::new(serving);
    let roster = roster.map(Arc::new);
    let _reload = match hangups {
        Some(signals) => Some(Reload::start(
            &args,
            signals,
            roster.clone(),
            &context.reporter,
        )?),
        None => None,
    };
    // Under systemd (Type=notify); elsewhere nobody listens.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let ended: Outcome<()> = runtime.block_on(async {
        let endpoint = Endpoint::from(server);
        let mut clients = JoinSet::new();
        let ended = loop {
            while clients.try_join_next().is_some() {}
            let session = tokio::select! {
                session = endpoint.accept() => session,
                () = stop.notified() => break Ok(()),
            };
            let session = match session {
                Ok(session) => session,
                Err(error) => break Err(error.into()),
            };
            let grant = match (&roster, session.as_blocking().peer()) {
                (Some(roster), Some(peer)) => roster.grant(peer),
                _ => Ok(Granted::new(Grant::new(
                    session.as_blocking().remote_addr().to_string(),
                    args.permit.clone().unwrap_or_default(),
                    args.limits(),
                ))),
            };
            let (serving, roster) = (Arc::clone(&serving), roster.clone());
            clients.spawn(async move {
                match grant {
                    Ok(granted) => {
                        serving.serve(session, granted.clone()).await;
                        if let Some(roster) = roster {
                            roster.forget(&granted);
                        }
                    }
                    Err(failure) => {
                        let code = sphinx_transport::close_code::AUTHENTICATION;
                        session.close(code, &failure.message).await;
                    }
                }
            });
        };
        endpoint.shut_down().await;
        ended
    });
    drop(serving);
    drop(runtime);
    told.finish();
    match context.stop.requested() {
        true => Err(context.stop.failure()),
        false => ended,
    }
}

/// Reads the configuration again whenever SIGHUP comes, until it is dropped.
struct Reload {
    signals: signal_hook::iterator::Handle,
    thread: Option<JoinHandle<()>>,
}

impl Reload {
    fn start(
        args: &ServerArgs,
        mut signals: Signals,
        roster: Option<Arc<Roster>>,
        reporter: &Reporter,
    ) -> Outcome<Self> {
        let handle = signals.handle();
        let fixed = Fixed::of(args);
        let reporter = reporter.clone();
        let body = move || {
            for _ in &mut signals {
                if let Ok(now) = NotifyState::monotonic_usec_now() {
                    let _ = sd_notify::notify(&[NotifyState::Reloading, now]);
                }
                let read = crate::parse_again().map(|cli| match cli.command {
                    Command::Server(args) => Some(args),
                    _ => None,
                });
                match (read, &roster) {
                    (Ok(Some(args)), Some(roster)) => {
                        roster.set_limits(args.limits());
                        if Fixed::of(&args) != fixed {
                            reporter
                                .warn("the limits hold; what else has changed needs another start");
                        }
                        reporter.event(report::Event::new("reloaded"));
                        reporter.note("The configuration was read again");
                    }
                    (Ok(_), _) => {
                        reporter.warn("without clients of its own a server reads nothing again");
                    }
                    (Err(failure), _) => {
                        reporter.warn(&format!("nothing changes: {}", failure.message));
                    }
                }
                let _ = sd_notify::notify(&[NotifyState::Ready]);
            }
        };
        let thread = thread::Builder::new().name("reload".to_owned()).spawn(body);
        let thread = thread.map_err(|error| local_io("start", "a thread", error))?;
        Ok(Self {
            signals: handle,
            thread: Some(thread),
        })
    }
}

impl Drop for Reload {
    fn drop(&mut self) {
        self.signals.close();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}

/// What a server cannot change while it runs.
#[derive(PartialEq)]
struct Fixed(String);

impl Fixed {
    fn of(args: &ServerArgs) -> Self {
        Self(format!(
            "{:?}",
            (
                args.listen,
                &args.advertise,
                &args.permit,
                &args.authorized,
                &args.state,
                &args.ticket_file,
                args.common.memory,
                args.common.idle_timeout,
            )
        ))
    }
}

pub(super) fn options(common: &CommonArgs) -> Options {
    Options {
        quiet: true,
        readers_may_pause: true,
        ..common.options(Profile::Auto)
    }
}

/// One thread for all connections: the engine, which does the work, has its own.
pub(super) fn runtime() -> Outcome<Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(|error| local_io("start", "the event loop", error))
}

/// Each connection is a file: as many as the system allows.
fn allow_files() {
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

/// Whether a server lets the client in.
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
struct Told {
    events: Events,
    thread: JoinHandle<()>,
}

impl Told {
    fn start(reporter: &Reporter, verbose: u8) -> Outcome<Self> {
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

    /// Waits until everything is told.
    fn finish(self) {
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
            reporter.note(&format!("{name} ({client}): {what}"));
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
