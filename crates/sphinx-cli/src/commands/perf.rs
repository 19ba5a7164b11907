//! `sphx perf server` and `sphx perf client`.

use std::ffi::OsStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sphinx_transport::{Cc, EcnMode, ErrorKind, Options, Profile, Service, Session};

use super::ctl::Control;
use super::reach::{Watch, Way};
use super::uplinks::Following;
use super::{Context, listen};
use crate::args::engine::Profile as ProfileArg;
use crate::args::ticket::{self, Names};
use crate::args::{PathArgs, PerfClientArgs, PerfServerArgs};
use crate::channel::{Channel, Mode};
use crate::failure::{Outcome, fail_hint, usage};
use crate::perf::client::Request;
use crate::perf::{
    BLOCK_BYTES_MIN, DATAGRAM_BYTES_MAX, Direction, Limit, Measured, Messages, PACED_STREAMS_MAX,
    Pacing, client, server,
};
use crate::report::{Figures, PathTeller, Progress, Reporter, Role, Ticker};
use crate::ssh::Host;
use crate::ssh::meeting::Met;
use crate::ssh::messages::{CopyRules, Task};
use crate::units::{show_rate, show_size};

/// The size of the blocks that everything is compared with.
const BLOCK_BYTES_USUAL: u64 = 100_000;
/// Of live messages, unless another one is given.
const DEADLINE_LIVE: Duration = Duration::from_millis(120);
/// Shortest deadline of a message: no packet could arrive in less time.
const DEADLINE_MIN: Duration = Duration::from_millis(1);
/// Stands before a host that is reached by ssh, where a ticket may stand otherwise.
const SSH_PREFIX: &str = "ssh:";
const TIME_DEFAULT: Duration = Duration::from_secs(10);

pub(crate) fn serve(args: PerfServerArgs, context: &Context) -> Outcome<()> {
    // What the client measures decides what the engine optimises for.
    let options = Options {
        once: args.listen.once,
        // Nothing is done but to count.
        early_data: true,
        ..args.common.options(Profile::Auto)?
    };
    let options = args.listen.serving.apply(&args.common, options);
    let server = listen::bind(
        &args.listen,
        &args.common,
        Service::Perf,
        &options,
        context,
        "perf client TICKET",
    )?;
    let scope = context.clone();
    let chosen = options.profile;
    let session = move |session: &Session| serve_one(session, session, chosen, &scope);
    let life = listen::Life {
        once: args.listen.once,
        expires: None,
    };
    listen::serve(&server, life, context, session).map(drop)
}

/// Serves one measurement over `channel`, which is the session's.
pub(super) fn serve_one(
    session: &Session,
    channel: &impl Channel,
    chosen: Profile,
    context: &Context,
) -> Outcome<()> {
    let peer = session.remote_addr().to_string();
    let reporter = context.reporter.session();
    let progress = Arc::new(Progress::default());
    let stats = session.clone();
    // The end of the data that the server is; unknown until the client has said which.
    let role = Arc::new(OnceLock::new());
    let known = Arc::clone(&role);
    let ticker = Ticker::start(&reporter, progress.clone(), Some(peer.clone()), move || {
        Figures {
            role: known.get().copied(),
            stats: stats.stats(),
        }
    });
    let planned = |own, paced| {
        role.get_or_init(|| own);
        if chosen == Profile::Auto {
            session.set_profile(profile_of(paced));
        }
    };
    let measured = server::serve(channel, &progress, planned);
    drop(ticker);
    report(&measured?, Some(&peer), &reporter);
    Ok(())
}

pub(crate) fn measure(args: PerfClientArgs, context: &Context) -> Outcome<()> {
    let request = request(&args)?;
    let options = args.common.options(profile_of(request.pacing.is_some()))?;
    let mut options = args.paths.apply(options)?;
    options.bundle = args.bundle.unwrap_or(options.bundle);
    options.paper = args.paper.as_deref().copied();
    let host = args.ticket.as_deref().and_then(OsStr::to_str);
    if let Some(host) = host.and_then(|text| text.strip_prefix(SSH_PREFIX)) {
        return measure_at(&Host::parse(host)?, request, &args, &options, context);
    }
    let (source, _) = ticket::find(
        args.ticket_file.as_deref(),
        (args.ticket.as_deref(), Some(Names::Bare)),
        std::env::var_os("SPHX_TICKET"),
    )?;
    ticket::note_exposure(&source, &context.reporter);
    let ticket = ticket::read(source)?;
    options.early_data = true;
    let (session, _registration) = context.connect(&ticket, Service::Perf, &options)?;
    measure_over(&session, request, &args.paths, context)
}

/// Measures to a machine where ssh starts the other end.
fn measure_at(
    host: &Host,
    request: Request,
    args: &PerfClientArgs,
    options: &Options,
    context: &Context,
) -> Outcome<()> {
    if args.ticket_file.is_some() {
        return Err(usage(
            "there is a host to start the other end at, and a ticket of another one",
        ));
    }
    let way = Way {
        host,
        args: &args.ssh,
        common: &args.common,
        options,
    };
    let reached = way.reach(
        Task::Measure,
        CopyRules::default(),
        None,
        || Ok(()),
        context,
    )?;
    match &reached.met {
        Met::Udp { session, .. } => {
            let _registration = context.close_on_stop(session);
            let watch = Watch::start(&reached.ssh, session)?;
            let measured = measure_over(session, request, &args.paths, context);
            reached.ssh.done();
            measured.map_err(|failure| watch.reason(failure))
        }
        Met::Ssh => Err(fail_hint(
            ErrorKind::Unreachable,
            "UDP does not get through",
            way.advice(),
        )),
    }
}

/// Measures, over the options' paths.
fn measure_over(
    session: &Session,
    request: Request,
    paths: &PathArgs,
    context: &Context,
) -> Outcome<()> {
    let reporter = context.reporter.session();
    let progress = Arc::new(Progress::default());
    if let Limit::Bytes(bytes) = request.limit {
        progress.expect_bytes(bytes);
    }
    let stats = session.clone();
    let role = request.direction.client();
    let names = paths.names();
    let control = paths.is_used().then(Control::listen);
    let _asked = control
        .as_ref()
        .map(|control| control.about(session, &names));
    let follow = || Following::start(session, &names, &reporter);
    let _following = paths.is_auto().then(follow).transpose()?;
    let teller = PathTeller::new(session, &reporter, &names);
    let teller_meanwhile = teller.clone();
    let ticker = Ticker::start(&reporter, progress.clone(), None, move || {
        teller_meanwhile.tell();
        Figures::new(role, stats.stats())
    });
    let measured = client::measure(session, request, &progress);
    drop(ticker);
    teller.tell();
    report(&measured?, None, &reporter);
    Ok(())
}

/// The profile that `--profile auto` chooses: latency for paced blocks, otherwise bulk.
fn profile_of(paced: bool) -> Profile {
    match paced {
        true => Profile::Latency,
        false => Profile::Bulk,
    }
}

/// The size of blocks that nobody asked for: of the usual size, but on a slow path small enough that
/// there are many of them. In bytes, for a rate in bits per second.
fn usual_block(rate: u64) -> u64 {
    const INTERVALS_PER_SECOND: u64 = 25;
    (rate / 8 / INTERVALS_PER_SECOND).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_USUAL)
}

fn request(args: &PerfClientArgs) -> Outcome<Request> {
    check_paper(args)?;
    check_sc(args)?;
    ticket::refuse_two(args.ticket_file.as_deref(), args.ticket.as_deref())?;
    let mode = mode(args)?;
    check_bundle(args)?;
    let limit = match (args.bytes, args.time) {
        (Some(bytes), _) => Limit::Bytes(bytes),
        (None, time) => {
            let time = time.unwrap_or(TIME_DEFAULT).as_nanos();
            Limit::Nanoseconds(u64::try_from(time).unwrap_or(u64::MAX))
        }
    };
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let blocks = args.rate.map(|rate| {
        let bytes = args.block_size.unwrap_or_else(|| usual_block(rate));
        Pacing::new(rate, bytes)
    });
    let messages = args
        .interval
        .zip(args.message_size)
        .map(|(interval, bytes)| {
            let usual = (mode == Mode::Live).then_some(DEADLINE_LIVE);
            let deadline_ns = args.deadline.or(usual).map(nanoseconds);
            let messages = Messages { mode, deadline_ns };
            Pacing::every(nanoseconds(interval), bytes, Some(messages))
        });
    let pacing = blocks.or(messages).transpose().map_err(usage)?;
    check_mode(mode, args)?;
    if pacing.is_some() && args.streams > PACED_STREAMS_MAX {
        return Err(usage(format!(
            "blocks and messages at fixed times go over at most {PACED_STREAMS_MAX} streams, not {}",
            args.streams
        )));
    }
    if let Some(pacing) = pacing {
        pacing.blocks(limit).map_err(usage)?;
    }
    let direction = if args.reverse {
        Direction::Down
    } else {
        Direction::Up
    };
    Ok(Request {
        direction,
        limit,
        streams: args.streams,
        pacing,
    })
}

/// Refuses `--bundle` where no small messages are sent.
fn check_bundle(args: &PerfClientArgs) -> Outcome<()> {
    let is_bulk = args.common.profile == ProfileArg::Engine(Profile::Bulk);
    if args.bundle.is_some() && (is_bulk || args.message_size.is_none()) {
        return Err(usage(
            "--bundle cannot be used with bulk: it is for small messages, which --message-size and --interval make",
        ));
    }
    Ok(())
}

/// Refuses options that do not go with `--paper`.
fn check_paper(args: &PerfClientArgs) -> Outcome<()> {
    if args.paper.is_none() {
        return Ok(());
    }
    let ticket = args.ticket.as_deref().and_then(OsStr::to_str);
    if ticket.is_some_and(|ticket| ticket.contains('=')) {
        return Err(usage(
            "the keys of --paper follow an equals sign: --paper=code=lt,n=64",
        ));
    }
    if !args.paths.path.is_empty() {
        return Err(usage("--paper knows one path: not with --path"));
    }
    if args.mode.is_some_and(|mode| mode != Mode::Stream) {
        return Err(usage("--paper carries streams only: --mode stream or none"));
    }
    if args.common.ecn == EcnMode::L4s {
        return Err(usage(
            "--paper has no response to the share of marks: not with --ecn l4s",
        ));
    }
    match args.common.cc {
        Cc::Bbr | Cc::AimdEcn | Cc::Fixed(_) => Ok(()),
        other => Err(usage(format!(
            "--paper has a window of its own, or with --cc fixed:RATE a rate; not {}",
            other.name()
        ))),
    }
}

/// Refuses options that do not go with generations.
fn check_sc(args: &PerfClientArgs) -> Outcome<()> {
    let Some(sc) = args.paths.sc() else {
        return Ok(());
    };
    let is_live = args.common.profile == ProfileArg::Live;
    if is_live || args.mode.is_some_and(|mode| mode != Mode::Stream) {
        return Err(usage(format!(
            "--bond {} carries streams only: --mode stream or none",
            sc.name()
        )));
    }
    Ok(())
}

/// How messages are carried; refuses options for messages where there are none.
fn mode(args: &PerfClientArgs) -> Outcome<Mode> {
    let is_live = args.common.profile == ProfileArg::Live;
    if is_live && args.message_size.is_none() {
        return Err(usage(
            "--profile live is for messages with a deadline: --message-size and --interval say which",
        ));
    }
    match args.mode {
        Some(_) if args.message_size.is_none() => Err(usage(
            "--mode says what carries messages: --message-size and --interval say which",
        )),
        Some(mode) if is_live && !mode.is_lossy() => Err(usage(
            "--profile live is for --mode live or datagram: what a stream carries arrives, however late",
        )),
        None if is_live => Ok(Mode::Live),
        mode => Ok(mode.unwrap_or_default()),
    }
}

/// Refuses sizes and deadlines that this mode of messages cannot carry.
fn check_mode(mode: Mode, args: &PerfClientArgs) -> Outcome<()> {
    let size = args.message_size.unwrap_or(0);
    if args
        .deadline
        .is_some_and(|deadline| deadline < DEADLINE_MIN)
    {
        return Err(usage("--deadline is at least 1ms"));
    }
    if mode != Mode::Stream && args.streams > 1 {
        return Err(usage("--streams belongs to --mode stream"));
    }
    if mode.is_lossy() && size > DATAGRAM_BYTES_MAX {
        return Err(usage(format!(
            "live messages and datagrams have at most {DATAGRAM_BYTES_MAX} bytes, not {size}"
        )));
    }
    Ok(())
}

fn report(measured: &Measured, peer: Option<&str>, reporter: &Reporter) {
    let Measured { done, peer: other } = measured;
    let event = done.event().with("peer_done", other.done.clone());
    reporter.done(match peer {
        Some(peer) => event.with("peer", peer),
        None => event,
    });
    let suffix = peer
        .map(|peer| format!(", client {peer}"))
        .unwrap_or_default();
    reporter.note(&format!("{}{suffix}", done.summary()));
    let verb = if done.role == Role::Sender {
        "received"
    } else {
        "sent"
    };
    let seconds = other.elapsed().as_secs_f64();
    let size = show_size(other.bytes);
    let mut line = format!("the other end {verb} {size} in {seconds:.2} s");
    if seconds > 0.0 && other.bytes > 0 {
        let rate = other.bytes as f64 * 8.0 / seconds;
        line += &format!(": {}", show_rate(rate));
    }
    reporter.note(&line);
    if let Some(line) = done.block_summary() {
        reporter.note(&line);
    }
}
