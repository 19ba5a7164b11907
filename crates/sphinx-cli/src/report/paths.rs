//! What several paths are doing: an event and a line when something becomes of one, and their part of `done`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use sphinx_transport::{PathEvent, PathFigures, PathNews, PathRole, Session};

use super::done::rounded;
use super::{Event, Reporter};
use crate::text::printable;
use crate::units::show_size;

/// What the paths of a session's options are called, those that came later behind them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(Arc<Mutex<Vec<String>>>);

impl Names {
    pub(crate) fn new(names: Vec<String>) -> Self {
        Self(Arc::new(Mutex::new(names)))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the path at this place among those of the options; `None` if it has none.
    pub(crate) fn of(&self, option: Option<usize>) -> Option<String> {
        let name = self.lock().get(option?).cloned();
        name.filter(|name| !name.is_empty())
    }

    /// Sets the name of the path with this place among the options.
    pub(crate) fn put(&self, option: usize, name: &str) {
        put(&mut self.lock(), option, name);
    }

    /// A path is to come, by `add`, which gives its place among the options'. Whoever tells of it waits for its name.
    pub(crate) fn put_added<E>(
        &self,
        name: &str,
        add: impl FnOnce() -> Result<usize, E>,
    ) -> Result<(), E> {
        let mut names = self.lock();
        put(&mut names, add()?, name);
        Ok(())
    }
}

fn put(names: &mut Vec<String>, option: usize, name: &str) {
    if names.len() <= option {
        names.resize(option + 1, String::new());
    }
    name.clone_into(&mut names[option]);
}

/// Tells of the paths of a session as it goes.
#[derive(Clone)]
pub(crate) struct PathTeller {
    session: Session,
    reporter: Reporter,
    names: Names,
}

impl PathTeller {
    pub(crate) fn new(session: &Session, reporter: &Reporter, names: &Names) -> Self {
        Self {
            session: session.clone(),
            reporter: reporter.clone(),
            names: names.clone(),
        }
    }

    /// What has happened since the last call. Of a session with one path there is nothing to tell.
    pub(crate) fn tell(&self) {
        for event in self.session.take_path_events() {
            let name = self.names.of(event.option);
            let (state, reason) = state_of(event.news);
            self.reporter
                .event(json_of(&event, name.as_deref(), state, reason));
            let name = name.or_else(|| event.local.map(|local| local.to_string()));
            let name = name.unwrap_or_else(|| event.id.to_string());
            self.reporter.note(&match reason {
                Some(reason) => format!("sphx: path {name} is {state}: {reason}"),
                None => format!("sphx: path {name} is {state}"),
            });
        }
    }
}

/// In which state it is now, and why.
fn state_of(news: PathNews) -> (&'static str, Option<&'static str>) {
    match news {
        PathNews::Opened => ("up", None),
        PathNews::Suspect => ("suspect", Some("it does not answer; others take over")),
        PathNews::Back => ("back", None),
        PathNews::Abandoned => ("down", Some("it was given up")),
        PathNews::Spent => ("down", Some("its budget is spent")),
    }
}

fn json_of(event: &PathEvent, name: Option<&str>, state: &str, reason: Option<&str>) -> Event {
    Event::new("path")
        .with("path", event.id)
        .with("name", name)
        .with("local", event.local.map(|local| local.to_string()))
        .with("state", state)
        .with("reason", reason)
        .with("seconds", rounded(event.elapsed.as_secs_f64(), 6))
}

/// The open paths of a session, with their names.
pub(crate) fn paths_of(session: &Session, names: &Names) -> Vec<Value> {
    let stats = session.stats();
    let paths = stats.paths.iter().flatten().map(|path| {
        let mut value = figures(path);
        value["name"] = json!(names.of(path.option));
        value
    });
    paths.collect()
}

/// A path as [`paths_of`] has it, for people, whoever says so.
pub(crate) fn path_line(path: &Value) -> String {
    let text = |field: &str| path[field].as_str().map(str::to_owned);
    let name = text("name").or_else(|| text("local"));
    let name = name.unwrap_or_else(|| path["path"].to_string());
    let state = text("state").unwrap_or_default();
    let bytes = |field: &str| show_size(path[field].as_u64().unwrap_or(0));
    let mut line = format!(
        "{name}: {state}, {} sent, {} received, rtt {:.1} ms, {:.1} Mbit/s",
        bytes("wire_bytes_sent"),
        bytes("wire_bytes_received"),
        path["rtt_ms"].as_f64().unwrap_or(0.0),
        path["rate_mbit_s"].as_f64().unwrap_or(0.0),
    );
    if let Some(reason) = text("reason") {
        line += &format!(" ({reason})");
    }
    printable(line.as_bytes())
}

/// One of several paths.
pub(super) fn figures(path: &PathFigures) -> Value {
    let policy = path.policy;
    let left = policy.budget.map(|budget| {
        let carried = path.wire_bytes_sent + path.wire_bytes_received;
        budget.saturating_sub(carried)
    });
    json!({
        "path": path.id,
        "local": path.local.map(|local| local.to_string()),
        "remote": path.remote.to_string(),
        "state": path.state,
        "reason": path.reason,
        "role": match policy.role {
            PathRole::Primary => "primary",
            PathRole::Backup => "backup",
        },
        "cost": policy.cost,
        "budget_left": left,
        "wire_bytes_sent": path.wire_bytes_sent,
        "wire_bytes_received": path.wire_bytes_received,
        "wire_packets_sent": path.wire_packets_sent,
        "rtt_ms": rounded(path.rtt.as_secs_f64() * 1e3, 3),
        "min_rtt_ms": rounded(path.min_rtt.as_secs_f64() * 1e3, 3),
        "plr": rounded(path.plr, 6),
        "rate_mbit_s": rounded(path.pacing_rate as f64 * 8e-6, 3),
    })
}
