//! What a running link and those who control it say to each other: one JSON object per line.

use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sphinx_link::{
    Counters,
    front::{FrontCounters, Inside},
    settings::{SETTINGS, Settings},
};

use super::{LinkError, LinkErrorKind};
use crate::Lateness;

/// A question or an order.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Changes these settings: all of them, or none.
    Set {
        /// `KEY=VALUE`, `forward.KEY=VALUE` or `return.KEY=VALUE`.
        settings: Vec<String>,
    },
    /// Asks for the whole state of the link.
    Show,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// The request was carried out; the state of the link after it.
    State(Box<State>),
    /// The request was refused.
    Refused {
        /// Why the request was refused.
        message: String,
        /// Whether a file of this machine is the reason.
        local: bool,
    },
}

/// Everything about a running link.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct State {
    /// The link's name.
    pub name: String,
    /// Id of the process that runs the link.
    pub process: u32,
    /// Seconds since the link's start.
    pub seconds: f64,
    /// Addresses of the left end.
    pub left: Vec<String>,
    /// Addresses of the right end.
    pub right: Vec<String>,
    /// From left to right.
    pub forward: DirectionState,
    /// From right to left.
    #[serde(rename = "return")]
    pub back: DirectionState,
    /// How long 95 % of the packets to the right took at most from their arrival until their last bit had left, ms.
    pub wait_p95_ms: f64,
    /// How late the emulator delivered packets.
    pub lateness: Lateness,
    /// CPU time of its thread, in which the kernel does most of the receivers' work too.
    pub cpu_seconds: f64,
    /// Multicast and broadcast packets that were left out.
    pub ignored_packets: u64,
    /// Packets that an interface refused.
    pub refused_packets: u64,
    /// What went wrong while the link ran.
    pub faults: Vec<String>,
}

/// One direction.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct DirectionState {
    /// Every setting as text, defaults included, in the order in which packets meet them.
    pub settings: Map<String, Value>,
    /// Totals of this direction.
    #[serde(flatten)]
    pub counters: Counters,
    /// Bytes in the queue at present.
    pub queue_bytes: u64,
    /// Packets in the queue, being sent or in flight at present.
    pub inside_packets: u64,
}

impl DirectionState {
    pub(super) fn new(settings: &Settings, counters: &Counters, inside: Inside) -> DirectionState {
        let text = |(key, value): (&str, &str)| (key.to_owned(), Value::from(value));
        DirectionState {
            settings: settings.iter().map(text).collect(),
            counters: *counters,
            queue_bytes: inside.queue_bytes,
            inside_packets: inside.packets as u64,
        }
    }

    fn counters(&self) -> [(&'static str, u64); 17] {
        let counters = &self.counters;
        [
            ("offered packets", counters.offered_packets),
            ("offered bytes", counters.offered_bytes),
            ("dropped: mtu", counters.dropped_mtu),
            ("dropped: policer", counters.dropped_policer),
            ("dropped: queue", counters.dropped_queue),
            ("dropped: aqm", counters.dropped_aqm),
            ("dropped: loss", counters.dropped_loss),
            ("dropped: blackout", counters.dropped_blackout),
            ("marked (ECN)", counters.marked),
            ("corrupted", counters.corrupted),
            ("duplicated", counters.duplicated),
            ("held back", counters.held_back),
            ("delivered packets", counters.delivered_packets),
            ("delivered bytes", counters.delivered_bytes),
            ("inside packets", self.inside_packets),
            ("queue bytes", self.queue_bytes),
            ("queue bytes, most", counters.queue_bytes_max),
        ]
    }
}

impl State {
    /// The state of a link that begins.
    pub(crate) fn of(name: &str, [left, right]: [Vec<String>; 2]) -> State {
        State {
            name: name.to_owned(),
            process: std::process::id(),
            seconds: 0.0,
            left,
            right,
            forward: DirectionState::default(),
            back: DirectionState::default(),
            wait_p95_ms: 0.0,
            lateness: Lateness::default(),
            cpu_seconds: 0.0,
            ignored_packets: 0,
            refused_packets: 0,
            faults: Vec::new(),
        }
    }

    /// Fills in the settings and counters, which change while the link runs.
    pub(crate) fn count(&mut self, settings: [&Settings; 2], counters: &FrontCounters) {
        self.forward = DirectionState::new(
            settings[0],
            &counters.left_to_right,
            counters.left_to_right_inside,
        );
        self.back = DirectionState::new(
            settings[1],
            &counters.right_to_left,
            counters.right_to_left_inside,
        );
        self.wait_p95_ms = counters.left_to_right_wait_p95 as f64 * 1e-6;
        self.lateness = Lateness::from(&counters.lateness);
        self.cpu_seconds = counters.cpu.as_secs_f64();
        self.ignored_packets = counters.ignored;
        self.refused_packets = counters.refused;
    }
}

/// For people: settings that are not the defaults, and counters that are not 0.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = vec![[String::new(), "forward →".to_owned(), "← return".to_owned()]];
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or("?").to_owned();
        for setting in SETTINGS {
            let values = [&self.forward, &self.back]
                .map(|direction| text(direction.settings.get(setting.key)));
            if values.iter().any(|value| value != setting.default) {
                let [forward, back] = values;
                rows.push([setting.key.to_owned(), forward, back]);
            }
        }
        let both = self
            .forward
            .counters()
            .into_iter()
            .zip(self.back.counters());
        for ((name, forward), (_, back)) in both {
            if forward > 0 || back > 0 {
                rows.push([name.to_owned(), forward.to_string(), back.to_string()]);
            }
        }
        let mut text = format!(
            "Link '{}', process {}, {:.1} s: left {}, right {}\n",
            self.name,
            self.process,
            self.seconds,
            self.left.join(" "),
            self.right.join(" ")
        );
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths = [0, 1, 2].map(|column| width(column).unwrap_or(0));
        for [name, forward, back] in &rows {
            let [name_width, forward_width, back_width] = widths;
            writeln!(
                text,
                "  {name:name_width$}  {forward:>forward_width$}  {back:>back_width$}"
            )?;
        }
        let late = &self.lateness;
        write!(
            text,
            "  packets late by {:.3} ms on average, 99 % by at most {:.2}, all by {:.2}; CPU {:.2} s",
            late.mean_ms, late.p99_ms, late.max_ms, self.cpu_seconds
        )?;
        for fault in &self.faults {
            write!(text, "\n  fault: {fault}")?;
        }
        f.write_str(&text)
    }
}

impl Answer {
    /// A refusal.
    pub(super) fn refused(error: &LinkError) -> Answer {
        Answer::Refused {
            message: error.message.clone(),
            local: error.kind == LinkErrorKind::Local,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_fields_of_their_direction() {
        let counters = Counters {
            offered_packets: 7,
            ..Counters::default()
        };
        let direction = DirectionState {
            counters,
            ..DirectionState::default()
        };
        let json = serde_json::to_value(&direction).unwrap();
        assert_eq!(json["offered_packets"], 7);
        assert_eq!(json["queue_bytes"], 0);
        assert_eq!(DirectionState::deserialize(json).unwrap(), direction);
    }
}
