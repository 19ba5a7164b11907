//! What a base station reports as lost by the hop, beside what the emulator says that it was.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Packets up to so long carry no data: headers of IPv4 and TCP with all options.
const EMPTY_BYTES: u64 = 80;

/// Segments of an upload, by what became of them when they were sent first. (That one sent again is lost too leaves no new hole.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(in crate::figures) struct Truth {
    /// Segments that the hop has lost.
    pub(in crate::figures) lost: u64,
    /// Segments of `lost` that the base station has reported.
    pub(in crate::figures) reported: u64,
    /// The hop has lost them, and the queue in front of it has dropped nothing of the same hole. (The rest of a hole that a queue has a part in
    /// is left to the sender, who has to slow down for it.)
    pub(in crate::figures) apart: u64,
    /// Segments of `apart` that the base station has reported.
    pub(in crate::figures) apart_reported: u64,
    /// Segments that the queue has dropped.
    pub(in crate::figures) dropped: u64,
    /// Those of them that the base station has reported as lost by the hop, wrongly.
    pub(in crate::figures) mistaken: u64,
    /// Ranges that were reported and in which nothing was missing.
    pub(in crate::figures) invented: u64,
}

impl Truth {
    /// Compares the emulator's log of an upload with what the base station's agent has said.
    pub(super) fn read(log: &Path, said: &str) -> io::Result<Truth> {
        let mut drops = Vec::new();
        for line in BufReader::new(File::open(log)?).lines() {
            let line = line?;
            if line.starts_with("{\"event\":\"missed\"") {
                return Err(io::Error::other("the log is not complete"));
            }
            // Other lines are not about a packet, or about one without sequence numbers.
            if let Ok(Line {
                link,
                direction,
                drop,
            }) = serde_json::from_str(&line)
                && link == "wireless"
                && direction == "return"
                && drop.bytes > EMPTY_BYTES
            {
                drops.push(drop);
            }
        }
        let ranges = said.lines().filter_map(reported).flatten();
        Ok(Truth::compare(&firsts(drops), &ranges.collect::<Vec<_>>()))
    }

    fn compare(firsts: &[Drop], ranges: &[(u32, u32)]) -> Truth {
        let is_in = |&(start, end): &(u32, u32), drop: &Drop| {
            drop.sequence.wrapping_sub(start) < end.wrapping_sub(start)
        };
        let mut truth = Truth::default();
        for hole in firsts.chunk_by(Drop::is_before) {
            let is_lost = |drop: &&Drop| drop.what == "loss";
            let is_told = |drop: &&Drop| ranges.iter().any(|range| is_in(range, drop));
            let (lost, told) = (hole.iter().filter(is_lost), hole.iter().filter(is_told));
            let (lost, told) = (lost.count() as u64, told.count() as u64);
            let right = hole.iter().filter(is_lost).filter(is_told).count() as u64;
            truth.lost += lost;
            truth.reported += right;
            truth.dropped += hole.len() as u64 - lost;
            truth.mistaken += told - right;
            if lost == hole.len() as u64 {
                truth.apart += lost;
                truth.apart_reported += right;
            }
        }
        let is_empty = |range: &&(u32, u32)| !firsts.iter().any(|drop| is_in(range, drop));
        truth.invented = ranges.iter().filter(is_empty).count() as u64;
        truth
    }

    pub(in crate::figures) fn add(self, other: Truth) -> Truth {
        Truth {
            lost: self.lost + other.lost,
            reported: self.reported + other.reported,
            apart: self.apart + other.apart,
            apart_reported: self.apart_reported + other.apart_reported,
            dropped: self.dropped + other.dropped,
            mistaken: self.mistaken + other.mistaken,
            invented: self.invented + other.invented,
        }
    }

    /// Of what was reported, the share that the hop has lost.
    pub(in crate::figures) fn precision(&self) -> Option<f64> {
        let all = self.reported + self.mistaken + self.invented;
        (all > 0).then(|| self.reported as f64 / all as f64)
    }

    /// Of what the hop has lost, the share that was reported.
    pub(in crate::figures) fn recall(&self) -> Option<f64> {
        (self.lost > 0).then(|| self.reported as f64 / self.lost as f64)
    }

    /// The same of what it has lost apart from drops of the queue.
    pub(in crate::figures) fn recall_apart(&self) -> Option<f64> {
        (self.apart > 0).then(|| self.apart_reported as f64 / self.apart as f64)
    }
}

/// A line of the log that is about a packet.
#[derive(Deserialize)]
struct Line {
    link: String,
    direction: String,
    #[serde(flatten)]
    drop: Drop,
}

/// A packet that did not arrive.
#[derive(Deserialize)]
struct Drop {
    /// Why: `loss` is the hop's, everything else its queue's.
    what: String,
    /// Its index among all packets that were sent, retransmissions included.
    packet: u64,
    sequence: u32,
    bytes: u64,
}

impl Drop {
    /// Whether nothing is between this segment and the next one. (Two are longer than the packet of one, with its headers.)
    fn is_before(&self, next: &Drop) -> bool {
        u64::from(next.sequence.wrapping_sub(self.sequence)) < self.bytes
    }
}

/// Drops of packets that were sent for the first time, in order: nothing behind these in the sequence had been sent before.
fn firsts(mut drops: Vec<Drop>) -> Vec<Drop> {
    drops.sort_by_key(|drop| drop.packet);
    let mut highest = None;
    drops.retain(|drop| {
        let is_first = highest
            .is_none_or(|highest: u32| (drop.sequence.wrapping_sub(highest) as i32).is_positive());
        if is_first {
            highest = Some(drop.sequence);
        }
        is_first
    });
    drops
}

/// The ranges that a line of the agent reports as lost.
fn reported(line: &str) -> Option<Vec<(u32, u32)>> {
    let mut event: Value = serde_json::from_str(line).ok()?;
    let is_report = event["event"] == "reported";
    is_report.then(|| serde_json::from_value(event["ranges"].take()).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_compared_with_what_was_lost() {
        let drop = |what: &str, packet: u64, sequence: u32, bytes: u64| {
            format!(
                "{{\"event\":\"drop\",\"at_ns\":1,\"link\":\"wireless\",\"direction\":\"return\",\"what\":\"{what}\",\
                 \"packet\":{packet},\"sequence\":{sequence},\"bytes\":{bytes}}}\n"
            )
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = [
            "{\"event\":\"start\",\"unix_ns\":0,\"link\":{}}\n".to_owned(),
            // A queue drops before the hop loses. The repair of what it has dropped leaves no hole.
            drop("queue", 20, 4348, 1500),
            drop("queue", 22, 7244, 1500),
            drop("loss", 30, 4348, 1500),
            // Lost, and lost again; across the end of sequence numbers; beside a drop of the queue; an acknowledgement.
            drop("loss", 10, u32::MAX - 99, 1500),
            drop("loss", 11, 1348, 1500),
            drop("loss", 12, u32::MAX - 99, 1500),
            drop("loss", 21, 5796, 1500),
            drop("loss", 23, 20_000, 52),
            drop("loss", 24, 30_000, 1500),
        ];
        std::fs::write(file.path(), log.concat()).unwrap();
        let said = "{\"event\":\"started\"}\n\
                    {\"event\":\"reported\",\"ranges\":[[4294967196,2796]]}\n\
                    {\"event\":\"reported\",\"ranges\":[[4294967196,1348],[7244,8692],[60000,61448]]}\n";
        let truth = Truth::read(file.path(), said).unwrap();
        let expected = Truth {
            lost: 4,
            reported: 2,
            apart: 3,
            apart_reported: 2,
            dropped: 2,
            mistaken: 1,
            invented: 1,
        };
        assert_eq!(truth, expected);
        assert_eq!(truth.precision(), Some(0.5));
        assert_eq!(
            (truth.recall(), truth.recall_apart()),
            (Some(0.5), Some(2.0 / 3.0))
        );
        assert_eq!(Truth::default().precision(), None);
    }
}
