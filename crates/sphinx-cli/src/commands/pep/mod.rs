//! `sphx pep`: help for TCP connections over a lossy hop.

mod args;
mod control;
mod doctor;
mod exec;
mod file;
mod guard;
mod handoff;
#[cfg(feature = "lab")]
mod in_link;
mod install;
mod key;
mod replay;
mod rights;
mod run;
mod settings;
mod show;
mod stage;

use serde_json::{Map, Value, json};
use sphinx_pep::acks::Dropped;
use sphinx_pep::returning::Returning;
use sphinx_pep::{Agent, FlowReport, Stage};

pub(crate) use args::{PepArgs, PepCommand};
#[cfg(feature = "lab")]
pub(crate) use in_link::InLink;

use super::Context;
use crate::failure::Outcome;
use crate::report::{Event, Settings};

/// Runs the command and returns the exit code.
pub(crate) fn run(args: PepArgs, context: &Context) -> Outcome<u8> {
    match args.command {
        PepCommand::Run(args) if args.worker => {
            let words = std::env::args_os().skip_while(|word| word != "run").skip(1);
            run::run(&file::complete(&args, words.collect())?, context)?;
        }
        PepCommand::Run(args) => return guard::run(&args, context),
        PepCommand::Exec(args) => return exec::run(&args, context),
        PepCommand::Show(args) => show::run(&args, context)?,
        PepCommand::Set(args) => show::set(&args, context)?,
        PepCommand::Handoff(args) => handoff::run(&args, context)?,
        PepCommand::Replay(args) => replay::run(&args, context)?,
        PepCommand::Key(args) => key::run(&args)?,
        PepCommand::Doctor(args) => doctor::run(&args, context)?,
        PepCommand::Install(args) => install::install(&args, context)?,
        PepCommand::Uninstall(args) => install::uninstall(&args, context)?,
    }
    Ok(0)
}

impl PepArgs {
    /// What has to be done before the process has threads: the worker gives up the rights that it does not need.
    pub(crate) fn prepare(&self) -> Outcome<()> {
        match &self.command {
            PepCommand::Run(args) if args.worker => rights::give_up(),
            _ => Ok(()),
        }
    }

    /// Whether signals are for a program that it runs.
    pub(crate) fn hands_on_signals(&self) -> bool {
        matches!(self.command, PepCommand::Exec(_))
    }

    /// JSON lines on standard output, and nothing for people.
    pub(crate) fn output(&self) -> Settings {
        let (json, quiet) = match &self.command {
            PepCommand::Run(args) => {
                return Settings::beside_packets(args.agent.json, args.agent.quiet);
            }
            // `--json` and `--quiet` belong to the agent that the unit runs.
            PepCommand::Install(_) | PepCommand::Uninstall(_) => (false, false),
            // Standard output belongs to the program that is run.
            PepCommand::Exec(_) => (false, false),
            PepCommand::Show(args) => (args.json, false),
            PepCommand::Set(args) => (args.json, false),
            PepCommand::Handoff(args) => (args.json, false),
            PepCommand::Doctor(args) => (args.json, false),
            PepCommand::Replay(args) => (args.agent.json, args.agent.quiet),
            PepCommand::Key(_) => (false, false),
        };
        Settings::new(json, quiet)
    }
}

/// Tells what was done for a flow.
fn flow_event(flow: &FlowReport, context: &Context) {
    let fields = fields(json!(flow));
    context.reporter.event(with_all(Event::new("flow"), fields));
}

/// Tells of every flow that is known, and people of the totals.
fn report(agent: &Agent, context: &Context) {
    for flow in agent.flows() {
        flow_event(&flow, context);
    }
    let counts = agent.counts();
    let config = agent.config();
    if matches!(config.stage, Stage::Rdb(_)) {
        let thin = Thin {
            flows: agent.flows_seen(),
            data_bytes: counts.data_bytes,
            bundled: counts.bundled,
            copied_bytes: counts.copied_bytes,
            losses_repaired: counts.losses_repaired,
            resent: counts.resent,
        };
        return context.reporter.note(&thin.summary(config.dry_run));
    }
    if config.ack_filter.is_some() {
        let dropped: u64 = counts.acks_dropped.values().sum();
        let would = if config.dry_run {
            "would have been "
        } else {
            ""
        };
        context.reporter.note(&format!(
            "{} flows: {dropped} of {} acknowledgements {would}dropped; the queue held packets for {:.0} ms at most",
            agent.flows_seen(),
            counts.acks_seen,
            counts.queued_ns_max as f64 / 1e6
        ));
    }
    if let Some(note) = ack_path(agent) {
        context.reporter.note(&note);
    }
    if config.rsfc.is_some() {
        let would = match config.dry_run {
            true => "would have gone",
            false => "went",
        };
        context.reporter.note(&format!(
            "{} flows, {} of them uploads: {} acknowledgements {would} on with a smaller window",
            agent.flows_seen(),
            counts.uploads,
            counts.windows_lowered
        ));
    }
    if matches!(config.stage, Stage::Pass) {
        return;
    }
    context.reporter.note(&format!(
        "{} flows: {} packets to the hop and {} back, {} repaired, {} acknowledgements held",
        agent.flows_seen(),
        counts.from_fixed,
        counts.from_mobile,
        counts.repaired,
        counts.held
    ));
}

/// What stages beside the filter of acknowledgements have done, for people.
fn ack_path(agent: &Agent) -> Option<String> {
    let (counts, config) = (agent.counts(), agent.config());
    let would = if config.dry_run { "would have " } else { "" };
    let cc = config.ack_cc.map(|_| {
        let thinned = counts.acks_dropped.get(&Dropped::Thinned).unwrap_or(&0);
        format!(
            "{thinned} of {} acknowledgements {would}stayed away, one for {} went at most",
            counts.acks_seen, counts.ack_ratio_max
        )
    });
    let returning = match config.returning {
        Returning::Pass => None,
        Returning::Reconstruct => Some(format!(
            "{} acknowledgements {would}went between those from the hop, {} were superseded",
            counts.acks_synthesised, counts.acks_superseded
        )),
        Returning::NoLimitedTransmit => Some(format!(
            "{} repeated acknowledgements {would}waited for the third",
            counts.duplicates_held
        )),
    };
    let pace = config.pace.then(|| {
        format!(
            "{} packets {would}waited so that no burst went, for {:.0} ms at most",
            counts.paced,
            counts.paced_ns_max as f64 / 1e6
        )
    });
    let all: Vec<String> = [cc, returning, pace].into_iter().flatten().collect();
    (!all.is_empty()).then(|| format!("{} flows: {}", agent.flows_seen(), all.join("; ")))
}

/// What was done for thin streams, as it is printed for people.
struct Thin {
    flows: u64,
    data_bytes: u64,
    bundled: u64,
    copied_bytes: u64,
    losses_repaired: u64,
    resent: u64,
}

impl Thin {
    fn summary(&self, dry_run: bool) -> String {
        let Thin {
            flows,
            bundled,
            losses_repaired,
            resent,
            ..
        } = self;
        let extra = 100.0 * self.copied_bytes as f64 / self.data_bytes.max(1) as f64;
        match dry_run {
            true => format!(
                "{flows} flows: would have repaired {losses_repaired} of {resent} losses, +{extra:.0} % bytes"
            ),
            false => format!(
                "{flows} flows: {bundled} packets with copies, +{extra:.0} % bytes; {losses_repaired} losses repaired, \
                 {resent} segments sent again"
            ),
        }
    }
}

/// The last event, with the totals.
fn done(agent: &Agent) -> Event {
    totals("done", agent)
}

fn totals(event: &str, agent: &Agent) -> Event {
    with_all(Event::new(event), fields(json!(agent.status())))
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn with_all(event: Event, fields: Map<String, Value>) -> Event {
    fields
        .into_iter()
        .fold(event, |event, (field, value)| event.with(&field, value))
}
