//! Groups of flows at once, instead of one transfer: messages at fixed times, or as much as fits.

mod delays;
mod fetch;
mod run;
mod watch;

use std::time::Duration;

use serde::Serialize;

pub use delays::Delays;
pub(super) use run::run;
pub(super) use watch::{Edge, Watch};

use super::plan::usage;
use crate::emulator::LinkError;

/// The first port of groups that name none; further ones get the following ports.
const PORT: u16 = 7001;
/// Most flows of all groups together: each has two threads.
const FLOWS_MAX: usize = 500;

/// Messages of published applications: bytes, and milliseconds from one to the next. Means of table 1 of Petlund, Evensen,
/// Griwodz and Halvorsen, and of their later measurements of remote desktops and games.
const APPLICATIONS: [(&str, u64, u64); 6] = [
    ("vnc", 8, 34),
    ("skype", 236, 34),
    ("ssh", 48, 323),
    ("anarchy-online", 98, 632),
    ("wow", 26, 314),
    ("age-of-conan", 80, 86),
];

/// Flows that do the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group's name.
    pub name: String,
    /// Number of connections.
    pub flows: usize,
    /// What each of them carries.
    pub work: Work,
    /// Congestion control of the sender.
    pub congestion: String,
    /// Port at which the left host listens, or for objects the host from which they are fetched.
    pub port: u16,
    /// They send from the receiving end of the path to the sending one.
    pub back: bool,
}

/// What a flow carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// As much data as the path carries.
    Greedy,
    /// Messages at fixed times, whatever became of the earlier ones.
    Messages {
        /// Bytes of one message.
        bytes: u64,
        /// Time from one message to the next.
        interval: Duration,
    },
    /// Objects that whoever receives fetches, each over a new connection; the next one waits for the one before.
    Fetches {
        /// Bytes of one object.
        bytes: u64,
        /// Time from one object to the next.
        interval: Duration,
    },
}

/// The results of all groups.
#[derive(Clone, Debug, Serialize)]
pub struct Flowed {
    /// How long they sent.
    pub seconds: f64,
    /// Segments that the sending host has sent, handshakes included.
    pub segments_sent: u64,
    /// Segments sent again among these.
    pub segments_again: u64,
    /// The groups in the order in which they were asked for.
    pub groups: Vec<GroupReport>,
}

impl Flowed {
    /// Whether every message has arrived.
    pub fn is_complete(&self) -> bool {
        self.groups.iter().all(|it| it.messages == it.delivered)
    }
}

/// The result of a group.
#[derive(Clone, Debug, Serialize)]
pub struct GroupReport {
    /// The group's name.
    pub name: String,
    /// Number of connections.
    pub flows: usize,
    /// Congestion control of the sender.
    pub congestion: String,
    /// How many messages were due, or were asked for; 0 if it is greedy.
    pub messages: u64,
    /// Messages or objects that have arrived whole and in order.
    pub delivered: u64,
    /// What has arrived in order, of all its flows, while they sent.
    pub goodput_mbit_s: f64,
    /// Jain's index of what its flows have carried meanwhile: 1 if all have carried as much, 1/n if one of n has carried all. None if none has carried anything.
    pub jain: Option<f64>,
    /// From the time at which a message was due, or was asked for, to the time at which the receiver had read it.
    pub delivery_ms: Delays,
    /// From the first packet that carried a message to its first arrival at the receiving host, in order or not.
    pub one_way_ms: Delays,
    /// From the first packet that carried a message to the acknowledgement of it at the sending host.
    pub ack_ms: Delays,
    /// What packets with data took that were sent only once: delays and queues of the path.
    pub transit_ms: Delays,
}

impl Group {
    /// Whether the right host sends, on a path whose direction is `upload`.
    pub(super) fn is_upload(&self, upload: bool) -> bool {
        upload != self.back
    }

    /// Whether who sends is the one that has listened: the left host does, but for objects.
    pub(super) fn sender_listens(&self, upload: bool) -> bool {
        matches!(self.work, Work::Fetches { .. }) || !self.is_upload(upload)
    }

    /// Reads what is written for the group number `index` (from 0): `KEY=VALUE…` with spaces between them.
    ///
    /// # Errors
    ///
    /// A key that does not exist, a value that cannot be.
    pub(super) fn parse(text: &str, index: usize, congestion: &str) -> Result<Group, LinkError> {
        let mut group = Group {
            name: String::new(),
            flows: 1,
            work: Work::Greedy,
            congestion: congestion.to_owned(),
            port: u16::try_from(index).map_or(PORT, |index| PORT.saturating_add(index)),
            back: false,
        };
        let (mut greedy, mut fetch, mut bytes, mut interval) = (false, false, None, None);
        for word in text.split_whitespace() {
            let refuse = |reason: String| usage(format!("--flows: {word}: {reason}"));
            let number = |value: &str| {
                value
                    .parse::<u16>()
                    .map_err(|_| refuse("not a number".to_owned()))
            };
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            match key {
                "greedy" if value.is_empty() => greedy = true,
                "fetch" if value.is_empty() => fetch = true,
                "back" if value.is_empty() => group.back = true,
                "name" => value.clone_into(&mut group.name),
                "flows" => group.flows = number(value)?.into(),
                "port" => group.port = number(value)?,
                "cc" => value.clone_into(&mut group.congestion),
                "bytes" => bytes = Some(sphinx_units::size_positive(value).map_err(refuse)?),
                "interval" => {
                    interval = Some(sphinx_units::duration_positive(value).map_err(refuse)?);
                }
                "app" => {
                    let known = APPLICATIONS.iter().find(|(name, ..)| *name == value);
                    let Some((name, size, ms)) = known else {
                        let names = APPLICATIONS.map(|(name, ..)| name).join(", ");
                        return Err(refuse(format!("there are {names}")));
                    };
                    (bytes, interval) = (Some(*size), Some(Duration::from_millis(*ms)));
                    if group.name.is_empty() {
                        (*name).clone_into(&mut group.name);
                    }
                }
                _ => {
                    let known = "there are name, flows, greedy, app, bytes, interval, fetch, cc, port and back";
                    return Err(refuse(known.to_owned()));
                }
            }
        }
        group.work = match (greedy, bytes, interval) {
            (true, None, None) if !fetch => Work::Greedy,
            (false, Some(bytes), Some(interval)) if fetch => Work::Fetches { bytes, interval },
            (false, Some(bytes), Some(interval)) => Work::Messages { bytes, interval },
            _ => {
                let text = format!(
                    "--flows '{text}': either 'greedy', or 'app', or 'bytes' and 'interval'"
                );
                return Err(usage(text));
            }
        };
        if group.name.is_empty() {
            group.name = match group.work {
                Work::Greedy => "greedy".to_owned(),
                Work::Messages { .. } => "thin".to_owned(),
                Work::Fetches { .. } => "objects".to_owned(),
            };
        }
        Ok(group)
    }

    /// All groups of a path.
    ///
    /// # Errors
    ///
    /// As [`Group::parse`]; too many flows, or two groups at one port.
    pub(super) fn parse_all(texts: &[String], congestion: &str) -> Result<Vec<Group>, LinkError> {
        let groups = texts
            .iter()
            .enumerate()
            .map(|(index, text)| Group::parse(text, index, congestion));
        let groups: Vec<Group> = groups.collect::<Result<_, _>>()?;
        let flows = groups
            .iter()
            .fold(0_usize, |sum, group| sum.saturating_add(group.flows));
        if !texts.is_empty() && !(1..=FLOWS_MAX).contains(&flows) {
            return Err(usage(format!(
                "--flows: 1 to {FLOWS_MAX} flows, not {flows}"
            )));
        }
        for (index, group) in groups.iter().enumerate() {
            let is_taken = |other: &Group| other.port == group.port;
            if group.port == 0 || groups[..index].iter().any(is_taken) {
                let text = format!(
                    "--flows: port={}: each group has one of its own",
                    group.port
                );
                return Err(usage(text));
            }
        }
        Ok(groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(texts: &[&str]) -> Result<Vec<Group>, String> {
        let texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
        Group::parse_all(&texts, "cubic").map_err(|error| error.message)
    }

    #[test]
    fn groups_are_described_by_settings() {
        let groups = groups(&[
            "flows=20 bytes=100B interval=30ms cc=bbr",
            "app=ssh",
            "greedy back flows=5 name=bulk port=80",
        ]);
        let groups = groups.unwrap();
        let names: Vec<_> = groups.iter().map(|group| &group.name[..]).collect();
        assert_eq!(names, ["thin", "ssh", "bulk"]);
        assert_eq!(
            groups.iter().map(|it| it.port).collect::<Vec<_>>(),
            [7001, 7002, 80]
        );
        assert_eq!((groups[0].flows, &groups[0].congestion[..]), (20, "bbr"));
        assert!(groups[2].back && !groups[0].back);
        let pages = Group::parse("fetch bytes=40kB interval=4s", 0, "cubic").unwrap();
        assert_eq!(pages.name, "objects");
        assert!(matches!(pages.work, Work::Fetches { bytes: 40_000, .. }));
        let ssh = Work::Messages {
            bytes: 48,
            interval: Duration::from_millis(323),
        };
        assert_eq!((groups[1].work, groups[2].work), (ssh, Work::Greedy));
    }

    #[test]
    fn mistakes_are_told() {
        for (texts, reason) in [
            (&["flows=x"][..], "--flows: flows=x: not a number"),
            (&["bytes=10"], "--flows: bytes=10: "),
            (&["bytes=10B"], "--flows 'bytes=10B': either"),
            (
                &["greedy interval=3ms"],
                "--flows 'greedy interval=3ms': either",
            ),
            (&["app=tetris"], "--flows: app=tetris: there are vnc, "),
            (&["fetch greedy"], "--flows 'fetch greedy': either"),
            (&["colour=red"], "--flows: colour=red: there are name, "),
            (&["greedy flows=0"], "--flows: 1 to 500 flows, not 0"),
            (
                &["greedy flows=400", "greedy flows=101"],
                "--flows: 1 to 500 flows",
            ),
            (
                &["greedy", "greedy port=7001"],
                "--flows: port=7001: each group",
            ),
        ] {
            let error = groups(texts).expect_err(reason);
            assert!(error.starts_with(reason), "{error}");
        }
        assert_eq!(groups(&[]), Ok(Vec::new()));
    }
}
