//! `sphx lab link`: an emulated link for any program.

use std::process::Command;

use serde_json::{Value, json};
use sphinx_lab::emulator::{
    LinkArgs, LinkCommand, LinkError, LinkErrorKind, Plan, Request, RunArgs, Session, Stage, State,
    ask, directory,
};
use sphinx_transport::ErrorKind;

use super::Context;
use super::lab::Namespaces;
use crate::failure::{Failure, Outcome, exit_code, fail_hint, local_io};
use crate::pep::InLink;
use crate::report::Event;

pub(crate) fn run(
    args: LinkArgs,
    namespaces: Option<Namespaces>,
    context: &Context,
) -> Outcome<u8> {
    let answer = |name: &str, request: &Request| {
        let state = ask(name, request).map_err(failure)?;
        context.reporter.event(state_event("link", &state));
        Ok::<State, Failure>(state)
    };
    match args.command {
        None => return emulate(args.run, namespaces, context),
        Some(LinkCommand::Set(args)) => {
            answer(&args.name, &Request::set(&args.settings))?;
        }
        Some(LinkCommand::Show(args)) => {
            let state = answer(&args.name, &Request::Show)?;
            if !args.json {
                context.reporter.data(&state.to_string());
            }
        }
        Some(LinkCommand::Init) => sphinx_netdev::pidns::serve_as_init(),
    }
    Ok(0)
}

/// Runs a link until its program has ended, and returns that program's exit code.
fn emulate(args: RunArgs, namespaces: Option<Namespaces>, context: &Context) -> Outcome<u8> {
    let reporter = &context.reporter;
    // What was asked for wrongly is wrong whatever this machine allows.
    let plan = Plan::new(args).map_err(failure)?;
    let agent = InLink::new(plan.agents())?;
    let directory = match namespaces {
        Some(namespaces) => {
            namespaces.prepared.map_err(|error| failure(error.into()))?;
            namespaces.link_directory
        }
        // Interfaces are those of this process's own namespace.
        None => directory(),
    };
    let stage = agent.clone().map(|agent| Box::new(agent) as Box<dyn Stage>);
    let session = Session::start(plan, stage, &directory, init()?).map_err(failure)?;
    let stopper = session.stopper();
    let _registration = context.stop.on_stop(move || stopper.stop());

    let state = session.state();
    reporter.event(state_event("started", &state));
    reporter.note(&introduction(&state));
    for warning in session.warnings() {
        reporter.warn(&warning);
    }
    let ended = session
        .run(&mut |text| reporter.warn(text))
        .map_err(failure)?;
    let code = ended.exit_code();
    reporter.note(&ended.state.to_string());
    if let Some(agent) = agent {
        agent.report(context);
    }
    // A link without programs ends in no other way: it has done what it was for.
    reporter.event(state_event("done", &ended.state).with("exit_code", code));
    if context.stop.requested() {
        return Err(context.stop.failure());
    }
    if code == 0 && !ended.state.faults.is_empty() {
        // The program has done its work, but not everything that was asked for is there.
        return Ok(exit_code(ErrorKind::LocalIo, None));
    }
    Ok(code)
}

/// The first process of a namespace for programs.
pub(super) fn init() -> Outcome<Command> {
    let program = std::env::current_exe()
        .map_err(|error| local_io("find", "the file of this program", error))?;
    let mut init = Command::new(program);
    init.args(["lab", "link", "__init"]);
    Ok(init)
}

fn introduction(state: &State) -> String {
    let options = match state.name.as_str() {
        sphinx_lab::emulator::NAME => String::new(),
        name => format!(" --name {name}"),
    };
    format!(
        "Link '{}': left {}, right {}. 'sphx lab link show{options}' shows it, 'sphx lab link set{options} \
         loss=2%' changes it.",
        state.name,
        state.left.join(" "),
        state.right.join(" ")
    )
}

fn state_event(name: &str, state: &State) -> Event {
    let fields = match json!(state) {
        Value::Object(fields) => fields,
        _ => Default::default(),
    };
    fields
        .into_iter()
        .fold(Event::new(name), |event, (field, value)| {
            event.with(&field, value)
        })
}

pub(super) fn failure(error: LinkError) -> Failure {
    let kind = match error.kind {
        LinkErrorKind::Usage => ErrorKind::Usage,
        LinkErrorKind::Local => ErrorKind::LocalIo,
        LinkErrorKind::Other => ErrorKind::Other,
    };
    fail_hint(kind, error.message, error.hint)
}
