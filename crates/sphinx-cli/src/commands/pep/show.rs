//! `sphx pep show` and `set`: what the agent of this network namespace does, and other settings for it.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;
use sphinx_transport::ErrorKind;

use super::args::{SetArgs, ShowArgs};
use super::{Context, control, fields, with_all};
use crate::failure::{Failure, Outcome, fail_hint, usage};
use crate::report::Event;
use crate::state::date::Moment;
use crate::text::printable;
use crate::units::{show_duration, show_size};

/// Time between two looks with `--watch`.
const INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn run(args: &ShowArgs, context: &Context) -> Outcome<()> {
    let question = if args.flows { "flows" } else { "status" };
    let (sender, stopped) = mpsc::channel();
    let _registration = context.stop.on_stop(move || {
        // The receiver lives until the end.
        let _ = sender.send(());
    });
    loop {
        let status = control::ask(question).map_err(refused)?;
        let is_empty = status["flows"].as_u64() == Some(0);
        if args.json {
            let event = with_all(Event::new("status"), fields(status));
            context.reporter.event(event);
        } else {
            if args.watch {
                context.reporter.data(&format!("--- {}", Moment::now()));
            }
            show(&status, context);
        }
        if !args.watch {
            if is_empty {
                context.reporter.note(
                    "No connection has come by yet; 'sphx pep doctor' says what may keep them away",
                );
            }
            return Ok(());
        }
        if stopped.recv_timeout(INTERVAL) != Err(mpsc::RecvTimeoutError::Timeout) {
            return Err(context.stop.failure());
        }
    }
}

/// Changes settings of the agent that runs, and shows those that hold then.
pub(super) fn set(args: &SetArgs, context: &Context) -> Outcome<()> {
    if args
        .settings
        .iter()
        .any(|word| word.contains(char::is_control))
    {
        return Err(usage("a setting is one line, without tabs"));
    }
    let mut answer = control::ask(&format!("set {}", args.settings.join("\t"))).map_err(refused)?;
    if let Some(why) = answer["refusal"].as_str() {
        return Err(usage(format!("nothing was changed: {why}")));
    }
    let settings = answer["settings"].take();
    if args.json {
        let event = with_all(Event::new("settings"), fields(settings));
        context.reporter.event(event);
    } else {
        show(&settings, context);
    }
    Ok(())
}

/// One line for each number that is not 0, then for each flow. Who answers may be anybody: nothing of it moves the cursor.
fn show(status: &Value, context: &Context) {
    for (name, value) in status.as_object().into_iter().flatten() {
        let name = printable(name.as_bytes());
        match value {
            Value::Array(flows) if name == "newest_flows" => {
                flows.iter().for_each(|flow| show_flow(flow, context));
            }
            Value::Object(parts) => {
                for (part, value) in parts {
                    let name = format!("{name} ({})", printable(part.as_bytes()));
                    let value = plain(value);
                    context.reporter.data(&format!("{name:<28} {value}"));
                }
            }
            Value::Number(number) if number.as_u64() == Some(0) => {}
            value => {
                let unit = with_unit(&name, value).map(|shown| format!("  ({shown})"));
                let (value, unit) = (plain(value), unit.unwrap_or_default());
                context.reporter.data(&format!("{name:<28} {value}{unit}"));
            }
        }
    }
}

/// A number as people read it, of which the name says that it is nanoseconds or bytes.
fn with_unit(name: &str, value: &Value) -> Option<String> {
    let number = value.as_u64()?;
    let mut words = name.split('_');
    match words.find(|word| ["ns", "bytes"].contains(word))? {
        "ns" => Some(show_duration(Duration::from_nanos(number))),
        _ => Some(show_size(number)),
    }
}

/// A value as people write it; what is not set is a dash.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => printable(text.as_bytes()),
        Value::Null => "-".to_owned(),
        Value::Array(values) if values.is_empty() => "-".to_owned(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(", "),
        value => printable(value.to_string().as_bytes()),
    }
}

fn show_flow(flow: &Value, context: &Context) {
    let text = |field: &str| plain(&flow[field]);
    let line = format!(
        "{} {} repaired {} held {} concealed {}{}{}{}",
        text("fixed"),
        text("mobile"),
        text("repaired"),
        text("held"),
        text("concealed"),
        match flow["acks_dropped"].as_object() {
            Some(reasons) if !reasons.is_empty() => {
                let dropped: u64 = reasons.values().filter_map(Value::as_u64).sum();
                format!(
                    " acknowledgements dropped {dropped} of {}",
                    text("acks_seen")
                )
            }
            _ => String::new(),
        },
        match &flow["upload"] {
            // (What is indexed is a value: of a map it would have to be there.)
            upload @ Value::Object(_) => {
                let ms = |name: &str| upload[name].as_u64().unwrap_or(0) / 1_000_000;
                format!(
                    " upload {} waits {} ms beyond {} ms, {:.1} Mbit/s, window {} of {}",
                    plain(&upload["state"]),
                    ms("waited_ns"),
                    ms("rtt_ns_min"),
                    upload["bytes_per_second"].as_f64().unwrap_or(0.0) * 8e-6,
                    plain(&upload["window_written"]),
                    plain(&upload["window_received"])
                )
            }
            _ => String::new(),
        },
        match flow["bypass"].as_str() {
            Some(why) => format!(" left alone: {}", printable(why.as_bytes())),
            None => String::new(),
        }
    );
    context.reporter.data(&line);
}

pub(super) fn refused(error: io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "'sphx pep run' starts one; an agent is seen in its own network namespace only"
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::PermissionDenied => {
            "the agent answers root, and the user that it runs as"
        }
        io::ErrorKind::TimedOut => {
            "it may be stopped, or wait for a processor: see what its process does, and try again"
        }
        _ => "",
    };
    let message = match error.kind() {
        io::ErrorKind::ConnectionRefused => "no agent runs here".to_owned(),
        _ => format!("the agent does not answer: {error}"),
    };
    fail_hint(ErrorKind::LocalIo, message, hint)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_shown_in_units_too() {
        for (name, value, expected) in [
            ("lag_ns_max", json!(527_362), Some("0.53 ms")),
            ("queued_ns", json!(90_000_000_000_u64), Some("1m30s")),
            ("memory_bytes", json!(2 << 20), Some("2.00 MiB")),
            ("repaired", json!(7), None),
            ("overloaded", json!(false), None),
        ] {
            assert_eq!(with_unit(name, &value).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn values_are_shown_as_they_are_written() {
        for (value, expected) in [
            (json!("snoop:profile=sack"), "snoop:profile=sack"),
            (json!(null), "-"),
            (json!([]), "-"),
            (
                json!(["port 443", "host 10.0.0.0/8"]),
                "port 443, host 10.0.0.0/8",
            ),
            (json!(7.5), "7.5"),
            (json!(false), "false"),
            (json!("\u{1b}[2J"), "\\u{1b}[2J"),
            (json!({ "\u{9b}2J": 1 }), "{\"\\u{9b}2J\":1}"),
        ] {
            assert_eq!(plain(&value), expected);
        }
    }
}
