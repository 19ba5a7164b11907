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
use sphinx_tunnel::{Grant, Granted, Hub, Limits, Permit, Server};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::clients::{self, Place, Roster};
use super::consent::Consent;
use super::listen::{Crowd, Given, Known, Refusals};
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
    args.check_permit()?;
    let lets_tun = args.permit.as_ref().is_some_and(Permit::lets_tun);
    args.check_pools()?;
    interface::check_pools(&args.tun_pool)?;
    if let Some(output) = &args.output {
        // One that cannot be written to is found before anybody is invited to send.
        OutputDir::open(output, recv::rules_usual())?;
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
    let options = args.serving.apply(&args.common, options(&args.common)?);
    let listen = ListenArgs {
        listen: args.listen,
        advertise: args.advertise.clone(),
        ticket_file: args.ticket_file.clone(),
        once: false,
        serving: args.serving,
    };
    let command = match &args.permit {
        Some(permit) if permit.lets_tunnel() => "tunnel TICKET -L 8080:localhost:80",
        Some(permit) if permit.lets_send().is_some() => "send TICKET PATH…",
        Some(_) => "perf client TICKET",
        None => "",
    };
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
    // What there is no place for is not served.
    let mut services = vec![Service::Tunnel, Service::Perf];
    services.extend(args.output.as_ref().map(|_| Service::Files));
    let before = || match &roster {
        Some(roster) => roster.was_at(),
        None => Ok(Vec::new()),
    };
    let known = Known {
        services: &services,
        key: &key,
        ticket: given,
        before: &before,
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
    let others = Others {
        output: args.output.clone(),
        running: Running::default(),
        crowd: Crowd::default(),
        context: context.clone(),
    };
    let crowd = others.crowd.clone();
    let ended: Outcome<()> = runtime.block_on(async {
        let endpoint = Endpoint::from(server);
        let mut clients = JoinSet::new();
        let mut refusals = Refusals::default();
        let mut looks = tokio::time::interval(REFUSALS_INTERVAL);
        let ended = loop {
            while clients.try_join_next().is_some() {}
            let session = tokio::select! {
                session = endpoint.accept() => session,
                () = stop.notified() => break Ok(()),
                _ = looks.tick() => {
                    refusals.look(endpoint.as_blocking(), context);
                    continue;
                }
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
            let others = others.clone();
            clients.spawn(async move {
                match grant {
                    Ok(granted) => {
                        let wanted = session.as_blocking().service();
                        match wanted {
                            Service::Files | Service::Perf => {
                                others.serve(wanted, session, &granted, &serving).await;
                            }
                            _ => serving.serve(session, granted.clone()).await,
                        }
                        if let Some(roster) = roster {
                            roster.forget(&granted);
                        }
                    }
                    Err(failure) => {
                        let code = close_code::AUTHENTICATION;
                        session.close(code, &failure.message).await;
                    }
                }
            });
        };
        endpoint.shut_down().await;
        ended
    });
    crowd.wait(context);
    drop(serving);
    // A name that is being asked for is waited for by nobody, and may take half a minute.
    runtime.shutdown_timeout(WRITES_TIME);
    told.finish();
    match context.stop.requested() {
        true => Err(context.stop.failure()),
        false => ended,
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

    /// What a client may have done, if it may.
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
            // What it is, is told here.
            session.close(code::REMOTE_IO, "the server cannot use its directory");
        });
        let destination = Destination::Directory(opened?);
        // Its rule is the consent.
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
