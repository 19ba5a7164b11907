//! The log: what happened to which packet, and why.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    time::SystemTime,
};

use serde::Serialize;
use sphinx_link::{Record, Time, front::Direction};

use super::{LinkError, State};

/// A log file.
#[derive(Debug)]
pub(crate) struct Log {
    file: BufWriter<File>,
}

/// A line.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    /// The first line: the link as it starts.
    Start {
        /// Time 0 of the link, in nanoseconds of Unix time.
        unix_ns: u64,
        link: &'a State,
    },
    Drop(Packet),
    /// The packet went on with changes, such as a mark or bit errors.
    Change(Packet),
    /// The link has been changed.
    Set {
        at_ns: Time,
        settings: &'a [String],
    },
    /// So many lines are missing: the link had more records than it keeps between two looks.
    Missed {
        records: u64,
    },
    /// The last line: the link as it ends.
    End {
        link: &'a State,
    },
}

#[derive(Debug, Serialize)]
struct Packet {
    at_ns: Time,
    /// The link's name; `None` where there is only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<&'static str>,
    direction: &'static str,
    /// What happened: `loss`, `queue`, `marked`.
    what: &'static str,
    /// Index among the packets offered in this direction, from 0.
    packet: u64,
    /// Index, from 0, among the packets of its flow that have used the link (of all flows with
    /// `flows=together`); losses are by this index.
    sent: Option<u64>,
    /// Number of the IP packet's protocol.
    protocol: u8,
    source: String,
    destination: String,
    /// Sequence number of a TCP segment or an ICMP echo.
    sequence: Option<u32>,
    bytes: usize,
}

impl Log {
    pub(crate) fn create(path: &Path) -> Result<Log, LinkError> {
        let file = File::create(path)
            .map_err(|error| LinkError::io("create the log", path.to_string_lossy(), &error))?;
        Ok(Log {
            file: BufWriter::new(file),
        })
    }

    pub(crate) fn start(&mut self, started: SystemTime, link: &State) -> io::Result<()> {
        let unix = started
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let unix_ns = u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX);
        self.line(&Line::Start { unix_ns, link })?;
        self.file.flush()
    }

    /// `link` is its name, where there are several.
    pub(crate) fn records(
        &mut self,
        link: Option<&'static str>,
        direction: Direction,
        records: &[Record],
    ) -> io::Result<()> {
        for record in records {
            let packet = Packet {
                at_ns: record.at,
                link,
                direction: match direction {
                    Direction::LeftToRight => "forward",
                    Direction::RightToLeft => "return",
                },
                what: record.event.name(),
                packet: record.offered,
                sent: record.sent,
                protocol: record.flow.protocol,
                source: record.flow.source.to_string(),
                destination: record.flow.destination.to_string(),
                sequence: record.sequence,
                bytes: record.bytes,
            };
            self.line(&match record.event.is_drop() {
                true => Line::Drop(packet),
                false => Line::Change(packet),
            })?;
        }
        Ok(())
    }

    pub(super) fn set(&mut self, at_ns: Time, settings: &[String]) -> io::Result<()> {
        self.line(&Line::Set { at_ns, settings })
    }

    pub(crate) fn missed(&mut self, records: u64) -> io::Result<()> {
        self.line(&Line::Missed { records })
    }

    pub(crate) fn end(&mut self, link: &State) -> io::Result<()> {
        self.line(&Line::End { link })
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    fn line(&mut self, line: &Line<'_>) -> io::Result<()> {
        serde_json::to_writer(&mut self.file, line)?;
        self.file.write_all(b"\n")
    }
}
