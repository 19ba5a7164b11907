//! `sphx server`.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sd_notify::NotifyState;
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;
use sphinx_transport::asynchronous::{Server as Endpoint, Session};
use sphinx_transport::{Profile, ServerKey, Service, close_code};
use sphinx_tunnel::{Events, Grant, Granted, Hub, Limits, Permit, Server};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::clients::{self, Place, Roster};
use super::consent::Consent;
use super::listen::{Bound, Crowd, Given, Known, Refusals};
use super::running::Running;
use super::tunnel::{Told, allow_files, interface, options, runtime};
use super::{Context, listen, perf, recv};
use crate::args::tunnel::{ServerArgs, ServerCommand};
use crate::args::{Command, ListenArgs};
use crate::channel::{Channel, Metered};
use crate::failure::{Outcome, code, local_io, usage};
use crate::files::{Destination, OutputDir};
use crate::report::{self, Reporter};
use crate::state::key;

/// How often it is looked whether clients are refused.
const REFUSALS_INTERVAL: Duration = Duration::from_secs(5);
/// What is being written to the list of clients may take so long in the end.
const WRITES_TIME: Duration = Duration::from_secs(1);

pub(super) fn run(args: ServerArgs, context: &Context) -> Outcome<()> {
    match &args.command {
        Some(ServerCommand::Invite(args)) => return clients::invite(args, context),
        Some(ServerCommand::Clients(args)) => return clients::list(args, context),
        Some(ServerCommand::Revoke(args)) => return clients::revoke(args, context),
        Some(ServerCommand::Key(args)) => return clients::key(args, context),
        None => {}
    }
    check(&args)?;
    let mut roster = open_roster(&args)?;
    // From here on SIGHUP, whenever it comes, means to read the configuration again.
    let hangups = match args.reloads() {
        true => {
            Some(Signals::new([SIGHUP]).map_err(|error| local_io("listen for", "signals", error))?)
        }
        false => None,
    };
    let listen = ListenArgs {
        listen: args.listen,
        advertise: args.advertise.clone(),
        ticket_file: args.ticket_file.clone(),
        once: false,
        serving: args.serving,
    };
    let bound = bind(&args, &listen, &mut roster, context)?;
    // The files are watched before the server is announced.
    let _watch = match &roster {
        Some(roster) => {
            roster.listens_at(bound.addresses())?;
            Some(roster.watch(bound.server.access(), &context.reporter)?)
        }
        None => None,
    };
    let server = bound.announce(&listen, context, peer_command(args.permit.as_ref()))?;
    allow_files();
    let told = Told::start(&context.reporter, args.common.verbose)?;
    let runtime = runtime()?;
    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop);
    let _registration = context.stop.on_stop(move || stopped.notify_one());
    let mut tunnels = Server::new(told.events.clone());
    if let Some(hub) = open_hub(&args, roster.as_ref(), &told.events, &runtime)? {
        tunnels = tunnels.with_tun(hub);
    }
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
    let others = Others {
        output: args.output.clone(),
        running: Running::default(),
        crowd: Crowd::default(),
        context: context.clone(),
    };
    let crowd = others.crowd.clone();
    let dispatcher = Arc::new(Dispatcher {
        roster: roster.clone(),
        permit: args.permit.clone().unwrap_or_default(),
        limits: args.limits(),
        tunnels: Arc::new(tunnels),
        others,
    });
    let ended = runtime.block_on(dispatcher.run(server, &stop));
    crowd.wait(context);
    drop(dispatcher);
    // A name that is being asked for is waited for by nobody, and may take half a minute.
    runtime.shutdown_timeout(WRITES_TIME);
    told.finish();
    match context.stop.requested() {
        true => Err(context.stop.failure()),
        false => ended,
    }
}

/// Whether it keeps clients and tickets in files.
fn keeps_clients(args: &ServerArgs) -> bool {
    args.state.is_some() || args.authorized.is_some() || args.permit.is_none()
}

/// Finds what the server could not do, before anybody is told of it.
fn check(args: &ServerArgs) -> Outcome<()> {
    args.check_permit()?;
    args.check_pools()?;
    interface::check_pools(&args.tun_pool)?;
    if let Some(output) = &args.output {
        // One that cannot be written to is found before anybody is invited to send.
        OutputDir::open(output, recv::rules_usual())?;
    }
    let lets_tun = args.permit.as_ref().is_some_and(Permit::lets_tun);
    if !lets_tun && !keeps_clients(args) && !args.tun_pool.is_empty() {
        let failure = usage("--tun-pool: no rule lets clients send IP packets");
        return Err(failure.with_hint("--permit tun does"));
    }
    Ok(())
}

/// The clients and tickets that files name, if the server keeps any.
fn open_roster(args: &ServerArgs) -> Outcome<Option<Roster>> {
    if !keeps_clients(args) {
        return Ok(None);
    }
    let place = Place::open(args.state.as_deref(), args.authorized.as_deref())?;
    Roster::open(place, args.limits()).map(Some)
}

/// Binds the server under the key, and with the ticket, that its options ask for.
fn bind(
    args: &ServerArgs,
    listen: &ListenArgs,
    roster: &mut Option<Roster>,
    context: &Context,
) -> Outcome<Bound> {
    let options = args.serving.apply(&args.common, options(&args.common)?);
    let given = match (&mut *roster, &args.permit) {
        (None, _) => Given::First,
        (Some(roster), Some(permit)) => Given::Kept(roster.give_first(permit.clone())),
        (Some(_), None) => Given::None,
    };
    let roster = roster.as_ref();
    let key = || match (roster, &args.key) {
        (Some(roster), _) => roster.key(),
        (None, Some(path)) => key::server(path),
        (None, None) => Ok(ServerKey::generate()),
    };
    // Files are served only if there is a directory for them.
    let mut services = vec![Service::Tunnel, Service::Perf];
    services.extend(args.output.as_ref().map(|_| Service::Files));
    let before = || match roster {
        Some(roster) => roster.was_at(),
        None => Ok(Vec::new()),
    };
    let known = Known {
        services: &services,
        key: &key,
        ticket: given,
        before: &before,
    };
    listen::open(listen, &args.common, &known, &options, context)
}

/// The command that is shown for the other end, by what the ticket of `--permit` is for.
fn peer_command(permit: Option<&Permit>) -> &'static str {
    match permit {
        Some(permit) if permit.lets_tunnel() => "tunnel TICKET -L 8080:localhost:80",
        Some(permit) if permit.lets_send().is_some() => "send TICKET PATH…",
        Some(_) => "perf client TICKET",
        None => "",
    }
}

/// The interface for clients that send IP packets, if there are addresses for them.
fn open_hub(
    args: &ServerArgs,
    roster: Option<&Roster>,
    events: &Events,
    runtime: &Runtime,
) -> Outcome<Option<Hub>> {
    if args.tun_pool.is_empty() {
        return Ok(None);
    }
    let reserved = roster.map(Roster::reserved).unwrap_or_default();
    let opened = runtime.block_on(async { Hub::open(&args.tun_pool, &reserved, events) });
    opened.map(Some).map_err(|error| {
        interface::failure(format!("--tun-pool: opening a TUN device: {error}"), &error)
    })
}

/// Gives each session to what serves it.
struct Dispatcher {
    roster: Option<Arc<Roster>>,
    /// What clients may do if there is no roster, which says it for each of them.
    permit: Permit,
    limits: Limits,
    tunnels: Arc<Server>,
    others: Others,
}

impl Dispatcher {
    /// Accepts sessions until `stop`, or until the endpoint fails, and shuts the endpoint down.
    async fn run(self: &Arc<Self>, server: sphinx_transport::Server, stop: &Notify) -> Outcome<()> {
        let endpoint = Endpoint::from(server);
        // Dropping it ends the tasks: not before the endpoint has shut down.
        let mut clients = JoinSet::new();
        let mut refusals = Refusals::default();
        let mut looks = tokio::time::interval(REFUSALS_INTERVAL);
        let ended = loop {
            while clients.try_join_next().is_some() {}
            let session = tokio::select! {
                session = endpoint.accept() => session,
                () = stop.notified() => break Ok(()),
                _ = looks.tick() => {
                    refusals.look(endpoint.as_blocking(), &self.others.context);
                    continue;
                }
            };
            let session = match session {
                Ok(session) => session,
                Err(error) => break Err(error.into()),
            };
            let granted = self.grant(&session);
            let dispatcher = Arc::clone(self);
            clients.spawn(async move { dispatcher.serve(session, granted).await });
        };
        endpoint.shut_down().await;
        ended
    }

    /// What the client of a session may do.
    fn grant(&self, session: &Session) -> Outcome<Granted> {
        match (&self.roster, session.as_blocking().peer()) {
            (Some(roster), Some(peer)) => roster.grant(peer),
            _ => Ok(Granted::new(Grant::new(
                session.as_blocking().remote_addr().to_string(),
                self.permit.clone(),
                self.limits,
            ))),
        }
    }

    /// Serves a client until its session ends, or closes the session if the client may do nothing.
    async fn serve(&self, session: Session, granted: Outcome<Granted>) {
        let granted = match granted {
            Ok(granted) => granted,
            Err(failure) => {
                let code = close_code::AUTHENTICATION;
                return session.close(code, &failure.message).await;
            }
        };
        let wanted = session.as_blocking().service();
        match wanted {
            Service::Files | Service::Perf => {
                let tunnels = &self.tunnels;
                self.others.serve(wanted, session, &granted, tunnels).await;
            }
            _ => {
                let tunnels = Arc::clone(&self.tunnels);
                tunnels.serve(session, granted.clone()).await;
            }
        }
        if let Some(roster) = &self.roster {
            roster.forget(&granted);
        }
    }
}

/// What is served besides tunnels: on a thread for each session, by what `sphx recv` and `sphx perf server` do it with.
#[derive(Clone)]
struct Others {
    /// Where files go to.
    output: Option<PathBuf>,
    running: Running,
    crowd: Crowd,
    context: Context,
}

impl Others {
    /// Does what the client wants, if a rule lets it, until its session ends.
    async fn serve(&self, wanted: Service, session: Session, granted: &Granted, server: &Server) {
        let grant = granted.now();
        let Limits { rate, memory, .. } = *grant.limits();
        let Some(work) = self.work(wanted, grant.permit()) else {
            let what = match wanted {
                Service::Files => "files",
                _ => "perf",
            };
            return server.refuse(&session, granted, what).await;
        };
        if self.crowd.is_full(&self.context) {
            let why = "it has too many sessions";
            return session.close(close_code::CANCELLED, why).await;
        }
        session.as_blocking().set_limit(rate);
        session.as_blocking().set_memory(memory);
        let others = self.clone();
        let serve = move |session: &sphinx_transport::Session| match rate {
            Some(rate) => others.run(work, session, &Metered::new(session, rate)),
            None => others.run(work, session, session),
        };
        let begun = session.as_blocking().clone();
        if let Err(failure) = self.crowd.serve(begun, &self.context, serve) {
            self.context.reporter.error(&failure, None, None);
            let why = "it cannot start a thread";
            return session.close(close_code::CANCELLED, why).await;
        }
        server.watch(&session, granted).await;
    }

    /// The work for a client that wants this service; `None` if its permit does not allow it.
    fn work(&self, wanted: Service, permit: &Permit) -> Option<Work> {
        match wanted {
            Service::Files => {
                let output = self.output.as_ref()?;
                Some(Work::Receive(output.join(permit.lets_send()?)))
            }
            Service::Perf => permit.lets_measure().then_some(Work::Measure),
            _ => None,
        }
    }

    fn run(
        &self,
        work: Work,
        session: &sphinx_transport::Session,
        channel: &impl Channel,
    ) -> Outcome<()> {
        let place = match work {
            Work::Measure => {
                return perf::serve_one(session, channel, Profile::Auto, &self.context);
            }
            Work::Receive(place) => place,
        };
        let opened = OutputDir::open(&place, recv::rules_usual());
        let opened = opened.inspect_err(|_| {
            // The failure itself is reported at this end only.
            session.close(code::REMOTE_IO, "the server cannot use its directory");
        });
        let destination = Destination::Directory(opened?);
        // The permit is the consent: nobody is asked.
        let consent = Consent::new(true, &self.context.reporter);
        let receiver = recv::Receiver {
            consent: &consent,
            running: &self.running,
            stays: true,
            context: &self.context,
        };
        recv::receive_one(session, channel, &destination, None, &receiver).map(drop)
    }
}

/// What a thread does for a client.
enum Work {
    /// Into this directory.
    Receive(PathBuf),
    Measure,
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
                                .warn("the clients' limits hold; other changes need another start");
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

/// The settings that a server cannot change while it runs.
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
                &args.output,
                &args.tun_pool,
                &args.authorized,
                &args.state,
                &args.ticket_file,
                args.common.memory,
                args.common.idle_timeout,
            )
        ))
    }
}
