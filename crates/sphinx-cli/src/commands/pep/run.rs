//! The worker of `sphx pep run`: an agent in the traffic that this machine routes.

use std::io;
use std::time::SystemTime;

use serde_json::json;
use sphinx_pep::attach::{Attachment, Notice, interfaces};
use sphinx_pep::eln::Post;
use sphinx_pep::handoff::Courier;
use sphinx_pep::{Agent, Place};
use sphinx_transport::ErrorKind;

use super::args::{Attach, Eln, RunArgs};
use super::{Context, control, done, fields, flow_event, guard, key, report, with_all};
use crate::failure::{Failure, Outcome, fail_hint, local_io, usage};
use crate::report::Event;

pub(super) fn run(args: &RunArgs, context: &Context) -> Outcome<()> {
    guard::follow();
    let reporter = &context.reporter;
    let way = match (args.attach, args.place()) {
        (Attach::Tun, Place::Mobile) => {
            return Err(usage(
                "--eln mobile is for a host's own traffic: --attach nfqueue",
            ));
        }
        (_, Place::Mobile) => Attach::Nfqueue,
        (way, Place::Base) => chosen(way),
    };
    let wired = match (way, args.wired.is_empty()) {
        (Attach::Tun, true) => interfaces()
            .map_err(|error| local_io("list", "the interfaces", error))?
            .into_iter()
            .filter(|name| name != args.wireless())
            .collect(),
        (Attach::Tun, false) => args.wired.clone(),
        (_, true) => Vec::new(),
        (_, false) => {
            let message = "--wired is for --attach tun: a queue takes all of --wireless";
            return Err(usage(message));
        }
    };
    let (post, courier) = (post(args)?, courier(args)?);
    let opened = match way {
        Attach::Tun => Attachment::tun(&wired, args.wireless()),
        _ => Attachment::nfqueue(args.wireless(), args.place()),
    };
    let mut attachment = opened.map_err(refused)?;
    if let Some(post) = post {
        attachment = attachment.with_post(post);
    }
    let moves = courier.is_some();
    if let Some(courier) = courier {
        attachment = attachment.with_courier(courier);
    }
    let bell = attachment.stopper();
    let listening = control::listen(args.metrics, bell, moves);
    let (questions, metrics) = listening.map_err(|error| {
        let what = match args.metrics {
            Some(address) => format!("questions, and at {address}"),
            None => "questions".to_owned(),
        };
        local_io("listen for", &what, error)
    })?;
    let stopper = attachment.stopper();
    let orphaned = stopper.clone();
    let _registration = context.stop.on_stop(move || stopper.stop());
    reporter.event(
        Event::new("started")
            .with("attach", json!(way))
            .with("wireless", args.wireless())
            .with("wired", json!(wired))
            .with("metrics", json!(metrics))
            .with("worker", std::process::id())
            .with("profile", json!(args.agent.agent))
            .with("eln", json!(args.eln))
            .with("dry_run", args.agent.dry_run),
    );
    reporter.note(&format!(
        "TCP {} {} passes here until Ctrl-C{}.",
        match wired.is_empty() {
            true => "of".to_owned(),
            false => format!("between {} and", wired.join(", ")),
        },
        args.wireless(),
        match args.agent.dry_run {
            true => ", unchanged",
            false => "",
        }
    ));
    let mut agent = Agent::new(args.config());
    let result = attachment.run(&mut agent, |agent, notice| match notice {
        Notice::Alive(now) => {
            questions.answer(agent, now);
            if guard::tell_alive().is_err() {
                orphaned.stop();
            }
        }
        Notice::Ended(flow) => flow_event(&flow, context),
        Notice::Reported(report) => {
            reporter.event(with_all(Event::new("reported"), fields(json!(report))));
        }
        Notice::Overload(true) => {
            reporter.event(Event::new("overload").with("lag_ms", agent.lag_ns_max() as f64 / 1e6));
            reporter.note("sphx: too late: packets only pass until this is in time again");
        }
        Notice::Overload(false) => reporter.event(Event::new("recovered")),
    });
    report(&agent, context);
    // The numbers are what it was run for.
    reporter.event(
        done(&agent)
            .with("packets_refused", attachment.refused())
            .with("reports_refused", attachment.reports_refused())
            .with("handovers_refused", attachment.handovers_refused()),
    );
    drop(attachment);
    result.map_err(|error| local_io("serve", "the traffic", error))
}

/// The way of reports, if there are to be any.
fn post(args: &RunArgs) -> Outcome<Option<Post>> {
    let (Some(eln), Some(file)) = (args.eln, &args.eln_key) else {
        return Ok(None);
    };
    let (key, port) = (key::read(file)?, args.eln_port);
    // Later ones are larger, as long as the clock goes on.
    let epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let epoch = u64::try_from(epoch.as_nanos()).unwrap_or(u64::MAX);
    let post = match eln {
        Eln::Base => Post::tell(key, port, epoch),
        Eln::Mobile => Post::hear(key, port),
    };
    let post =
        post.map_err(|error| local_io("listen for", &format!("reports at port {port}"), error));
    post.map(Some)
}

/// The way to agents of other hops, if there is to be one.
fn courier(args: &RunArgs) -> Outcome<Option<Courier>> {
    let Some(file) = &args.handoff_key else {
        return Ok(None);
    };
    if args.place() == Place::Mobile {
        return Err(usage(
            "--handoff-key is for agents beside a hop: on the mobile host, an agent goes along with it",
        ));
    }
    let (key, port) = (key::read(file)?, args.handoff_port);
    let courier = Courier::open(key, port)
        .map_err(|error| local_io("listen for", &format!("agents at port {port}"), error));
    courier.map(Some)
}

/// The way that packets come to the agent.
fn chosen(way: Attach) -> Attach {
    let forwards = |path: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/{path}"));
        text.is_ok_and(|text| text.trim() == "1")
    };
    match way {
        Attach::Auto if forwards("ipv4/ip_forward") || forwards("ipv6/conf/all/forwarding") => {
            Attach::Tun
        }
        Attach::Auto => Attach::Nfqueue,
        way => way,
    }
}

fn refused(error: io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "run it as root, or with CAP_NET_ADMIN",
        io::ErrorKind::ResourceBusy | io::ErrorKind::AlreadyExists => {
            "an agent runs in this network namespace already: one is enough"
        }
        io::ErrorKind::NotFound => "'ip link' lists the interfaces",
        io::ErrorKind::Unsupported => {
            "--attach nfqueue needs nf_tables with 'queue', or NFQUEUE of iptables and NFT_COMPAT"
        }
        _ => "",
    };
    fail_hint(
        ErrorKind::LocalIo,
        format!("cannot lead traffic here: {error}"),
        hint,
    )
}
