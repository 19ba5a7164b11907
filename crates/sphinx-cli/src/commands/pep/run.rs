//! The worker of `sphx pep run`: an agent in the traffic that this machine routes.

use std::io;
use std::path::PathBuf;

use serde_json::json;
use sphinx_pep::acks::MarkPost;
use sphinx_pep::attach::{Attachment, Cgroup, Notice, Own, interfaces, is_port, suits_devices};
use sphinx_pep::doctor::examine_way;
use sphinx_pep::eln::Post;
use sphinx_pep::handoff::Courier;
use sphinx_pep::{Agent, Place};
use sphinx_transport::ErrorKind;

use super::args::{Attach, Eln, OwnArgs, RunArgs};
use super::stage::{self, Ways};
use super::{Context, control, done, fields, flow_event, guard, key, report, rights, with_all};
use crate::failure::{Failure, Outcome, fail_hint, local_io, usage};
use crate::report::Event;

/// The longest packet that is led to an agent for thin streams, in IP bytes: with 1200 bytes of payload there is no room for more.
const SMALL_BYTES: u32 = 1280;

pub(super) fn run(args: &RunArgs, context: &Context) -> Outcome<()> {
    guard::follow();
    let config = args.config()?;
    let ways = Ways {
        own: args.own.is_given(),
        moves: args.handoff_key.is_some(),
        marks: args.marks_key.is_some(),
    };
    stage::check_ways(&config, ways).map_err(usage)?;
    stage::check_marks(&config, ways.marks).map_err(usage)?;
    let led = led(args)?;
    let (post, courier, marks) = (post(args)?, courier(args)?, marks(args)?);
    let reporter = &context.reporter;
    let opened = match &led {
        Led::Routed { wired } => Attachment::tun(wired, args.wireless()),
        Led::Interface => Attachment::nfqueue(args.wireless(), args.place()),
        Led::Own(own) => Attachment::own(own.clone()),
    };
    let mut attachment = opened.map_err(refused)?;
    if let Some(post) = post {
        attachment = attachment.with_post(post);
    }
    if let Some(courier) = courier {
        attachment = attachment.with_courier(courier);
    }
    if let Some(marks) = marks {
        attachment = attachment.with_marks(marks);
    }
    let bell = attachment.stopper();
    let listening = control::listen(args.metrics, bell, ways).map_err(|error| {
        let what = match args.metrics {
            Some(address) => format!("questions, and at {address}"),
            None => "questions".to_owned(),
        };
        local_io("listen for", &what, error)
    })?;
    let control::Listening {
        mut requests,
        metrics,
        is_named,
    } = listening;
    let stopper = attachment.stopper();
    let orphaned = stopper.clone();
    let _registration = context.stop.on_stop(move || stopper.stop());
    let wired: &[String] = match &led {
        Led::Routed { wired } => wired,
        Led::Interface | Led::Own(_) => &[],
    };
    reporter.event(
        Event::new("started")
            .with("attach", led.name())
            .with("wireless", json!(args.wireless))
            .with("wired", json!(wired))
            .with("metrics", json!(metrics))
            .with("worker", std::process::id())
            .with("agent", args.agent.stages()?.to_string())
            .with("eln", json!(args.eln))
            .with("dry_run", args.agent.dry_run),
    );
    let whose = match &led {
        Led::Routed { wired } => format!("between {} and {}", wired.join(", "), args.wireless()),
        Led::Interface => format!("of {}", args.wireless()),
        Led::Own(_) => "of the chosen connections of this machine, in small packets,".to_owned(),
    };
    let unchanged = match args.agent.dry_run {
        true => ", unchanged",
        false => "",
    };
    reporter.note(&format!("TCP {whose} passes here until Ctrl-C{unchanged}."));
    warn(&led, args, context);
    if !is_named {
        reporter.warn("another program has the name at which 'sphx pep show' and 'set' ask, @sphx-pep ('ss -xlp' lists it): nobody can ask until that is free");
    }
    // From here on packets wait for this thread, so it must not wait for readers of its output.
    let passing = Context {
        reporter: reporter.without_waiting(),
        stop: context.stop.clone(),
    };
    let reporter = &passing.reporter;
    let mut agent = Agent::new(config);
    let result = attachment.run(&mut agent, |agent, notice| match notice {
        Notice::Alive(now) => {
            requests.answer(agent, now);
            if guard::tell_alive().is_err() {
                orphaned.stop();
            }
        }
        Notice::Ended(flow) => flow_event(&flow, &passing),
        Notice::Reported(report) => {
            reporter.event(with_all(Event::new("reported"), fields(json!(report))));
        }
        Notice::Overload(true) => {
            reporter.event(Event::new("overload").with("lag_ms", agent.lag_ns_max() as f64 / 1e6));
            reporter.note("sphx: too late: packets only pass until this is in time again");
        }
        Notice::RateDoubted => {
            reporter.event(Event::new("rate_doubted").with("times", agent.rate_doubted()));
            if agent.rate_doubted() == 1 {
                reporter.note(
                    "sphx: packets wait behind this machine: the rate of ack-filter is probably more than the link carries",
                );
            }
        }
        Notice::Overload(false) => reporter.event(Event::new("recovered")),
        Notice::Restored => {
            reporter.event(Event::new("restored"));
            reporter.note("sphx: rules, routes or the port that lead packets here were gone, and are there again");
        }
    });
    report(&agent, context);
    // The totals are what the agent was run for: they wait for the reader.
    context.reporter.event(
        done(&agent)
            .with("reports_refused", attachment.reports_refused())
            .with("handovers_refused", attachment.handovers_refused())
            .with("marks_refused", attachment.marks_refused()),
    );
    drop(attachment);
    result.map_err(|error| local_io("serve", "the traffic", error))
}

/// Tells what keeps packets from the agent, or is in their way.
fn warn(led: &Led, args: &RunArgs, context: &Context) {
    let is_routed = match led {
        Led::Routed { .. } => true,
        Led::Interface => false,
        Led::Own(_) => return,
    };
    for finding in examine_way(args.wireless()) {
        // A host that forwards nothing has connections of its own.
        if is_routed || finding.name != "forwarding" {
            let line = format!("{} ({})", finding.message, finding.hint);
            context.reporter.warn(&line);
        }
    }
}

/// How packets are led to the agent.
#[derive(Debug)]
enum Led {
    /// Routed traffic, from and to these interfaces.
    Routed {
        wired: Vec<String>,
    },
    /// All traffic of the wireless interface.
    Interface,
    Own(Own),
}

impl Led {
    fn name(&self) -> &'static str {
        match self {
            Led::Routed { .. } => "tun",
            Led::Interface => "nfqueue",
            Led::Own(_) => "own",
        }
    }
}

fn led(args: &RunArgs) -> Outcome<Led> {
    if args.own.is_given() {
        return own(&args.own).map(Led::Own);
    }
    let way = match (args.attach, args.place()) {
        (Attach::Tun, Place::Mobile) => {
            return Err(usage(
                "--eln mobile is for a host's own traffic: --attach nfqueue",
            ));
        }
        (_, Place::Mobile) => Attach::Nfqueue,
        (Attach::Auto, Place::Base) if suits_devices(args.wireless()) => Attach::Tun,
        (Attach::Auto, Place::Base) => Attach::Nfqueue,
        (way, Place::Base) => way,
    };
    match (way, args.wired.is_empty()) {
        (Attach::Tun, true) => {
            let known = interfaces().map_err(|error| local_io("list", "the interfaces", error))?;
            let mut wired = known;
            // What comes by a port and is routed comes by its bridge.
            wired.retain(|name| name != args.wireless() && !is_port(name));
            Ok(Led::Routed { wired })
        }
        (Attach::Tun, false) => {
            let wired = args.wired.clone();
            if wired.iter().any(|name| name == args.wireless()) {
                let name = args.wireless();
                return Err(usage(format!(
                    "--wired {name}: that is --wireless, behind which the mobile hosts are"
                )));
            }
            Ok(Led::Routed { wired })
        }
        (_, true) => Ok(Led::Interface),
        (_, false) => {
            let message = "--wired is for --attach tun: a queue takes all of --wireless";
            let unsuited = "--wired is for --attach tun, which is not for machines that forward nothing or have a packet filter for what they forward: a queue takes all of --wireless";
            Err(usage(match args.attach {
                Attach::Auto => unsuited,
                _ => message,
            }))
        }
    }
}

/// What --port, --uid and --cgroup choose.
pub(super) fn own(args: &OwnArgs) -> Outcome<Own> {
    let group = |path: &PathBuf| {
        let found = Cgroup::at(path);
        found.map_err(|error| local_io("find", &format!("--cgroup {}", path.display()), error))
    };
    let cgroups: Outcome<Vec<Cgroup>> = args.cgroup.iter().map(group).collect();
    Ok(Own {
        ports: args.port.clone(),
        uids: args.uid.clone(),
        cgroups: cgroups?,
        bytes_max: SMALL_BYTES,
    })
}

/// Sends and receives reports of losses (ELN), if that is asked for.
fn post(args: &RunArgs) -> Outcome<Option<Post>> {
    let (Some(eln), Some(file)) = (args.eln, &args.eln_key) else {
        return Ok(None);
    };
    let (key, port) = (key::read(file)?, args.eln_port);
    let post = match eln {
        Eln::Base => Post::tell(key, port),
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

/// Sends and receives marks of `ack-cc`, if that is asked for.
fn marks(args: &RunArgs) -> Outcome<Option<MarkPost>> {
    let Some(file) = &args.marks_key else {
        return Ok(None);
    };
    let (key, port) = (key::read(file)?, args.marks_port);
    let post = MarkPost::open(key, port)
        .map_err(|error| local_io("listen for", &format!("marks at port {port}"), error));
    post.map(Some)
}

fn refused(error: io::Error) -> Failure {
    let lacking = rights::lacking().join(" and ");
    let rights = format!("run it as root, or with {lacking}");
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied if !lacking.is_empty() => rights.as_str(),
        io::ErrorKind::ResourceBusy | io::ErrorKind::AlreadyExists => {
            "an agent runs in this network namespace already: one is enough"
        }
        io::ErrorKind::NotFound => "'ip link' lists the interfaces",
        io::ErrorKind::InvalidInput => "--attach nfqueue takes packets on their way",
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
