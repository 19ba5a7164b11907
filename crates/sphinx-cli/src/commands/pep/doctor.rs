//! `sphx pep doctor`: what spoils help, on this machine and as the agent that runs has seen.

use std::io;

use serde_json::{Value, json};
use sphinx_pep::Stage;
use sphinx_pep::doctor::{Finding, examine, examine_own, examine_queue};

use super::args::DoctorArgs;
use super::run::own;
use super::{Context, control, fields, with_all};
use crate::failure::{Outcome, usage};
use crate::report::Event;
use crate::text::printable;

/// From so many packets one way on, and none the other way, the agent sees one direction only.
const ONE_WAY: u64 = 10;

pub(super) fn run(args: &DoctorArgs, context: &Context) -> Outcome<()> {
    let stages = args.preset.stages(&[args.agent])?;
    let is_rdb = matches!(stages.data, Stage::Rdb(_));
    if args.own.is_given() && !is_rdb {
        return Err(usage("--port, --uid and --cgroup are for --agent rdb"));
    }
    let is_own = is_rdb && args.wireless.is_none();
    let mut found = match is_own {
        true => examine_own(&own(&args.own)?),
        false => examine(args.wireless.as_deref()),
    };
    let is_filter = stages.ack_filter.is_some() || stages.ack_cc.is_some();
    if let Some(wireless) = args.wireless.as_deref().filter(|_| is_filter) {
        found.extend(examine_queue(wireless));
    }
    match control::ask("flows") {
        Ok(status) => {
            found.extend(seen(&status));
            if is_own {
                found.extend(another(&status));
            }
        }
        // Without an agent that runs there are no numbers to look at.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        Err(error) => found.push(Finding {
            name: "agent",
            message: format!("what the agent here has seen is not known: {error}"),
            hint: "ask as root, or as the user that it runs as; see whether its process is stopped",
        }),
    }
    let reporter = &context.reporter;
    for finding in &found {
        reporter.event(with_all(Event::new("finding"), fields(json!(finding))));
        if !args.json {
            reporter.data(&format!("{:<14} {}", finding.name, finding.message));
            if !finding.hint.is_empty() {
                reporter.data(&format!("{:<14} {}", "", finding.hint));
            }
        }
    }
    if found.is_empty() {
        reporter.note("Nothing was found that spoils help.");
    }
    reporter.event(Event::new("done").with("findings", found.len()));
    Ok(())
}

/// The agent that runs, if it is not for thin streams.
fn another(status: &Value) -> Option<Finding> {
    let agent = status["settings"]["agent"].as_str().unwrap_or_default();
    (!agent.starts_with("rdb")).then(|| Finding {
        name: "agent",
        message: format!(
            "another agent ({}) runs in this network namespace",
            printable(agent.as_bytes())
        ),
        hint: "one is enough: end it, or have it help other machines elsewhere",
    })
}

/// What the agent's numbers tell.
fn seen(status: &Value) -> Vec<Finding> {
    let number = |of: &Value, name: &str| of[name].as_u64().unwrap_or(0);
    let none = Vec::new();
    let flows = status["newest_flows"].as_array().unwrap_or(&none);
    let one_way = |flow: &&Value| {
        let ways = [number(flow, "from_fixed"), number(flow, "from_mobile")];
        ways.contains(&0) && ways.iter().max() > Some(&ONE_WAY)
    };
    let one_way = flows.iter().filter(one_way).count();
    let mut found = Vec::new();
    if one_way > 0 {
        let all = flows.len();
        found.push(Finding {
            name: "one_way",
            message: format!("of {one_way} of {all} connections only one direction comes here"),
            hint: "run the agent where both directions pass",
        });
    }
    let overloads = number(status, "overloads");
    if overloads > 0 {
        let longest = number(status, "lag_ns_max") as f64 / 1e6;
        found.push(Finding {
            name: "overload",
            message: format!("the agent was late {overloads} times, by up to {longest:.0} ms"),
            hint: "give it a processor, or more time: 'sphx pep set lag-max=20ms'",
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_which_one_direction_comes_are_counted() {
        let flow = |fixed: u64, mobile: u64| json!({"from_fixed": fixed, "from_mobile": mobile});
        let status = |flows: &[Value], overloads: u64| json!({"newest_flows": flows, "overloads": overloads, "lag_ns_max": 7_600_000});
        assert_eq!(seen(&status(&[flow(100, 50), flow(3, 0)], 0)), []);
        let found = seen(&status(&[flow(100, 0), flow(0, 11), flow(20, 20)], 2));
        let messages: Vec<&str> = found.iter().map(|it| it.message.as_str()).collect();
        assert_eq!(
            messages,
            [
                "of 2 of 3 connections only one direction comes here",
                "the agent was late 2 times, by up to 8 ms"
            ]
        );
    }
}
