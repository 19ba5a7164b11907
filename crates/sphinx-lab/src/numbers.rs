//! What a contestant says about itself.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::stats::quantile;

/// Latency of blocks from their scheduled time to complete reception, in milliseconds, one way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockNumbers {
    /// Blocks received, those of the warm-up not counted.
    pub count: u64,
    /// How many blocks were due. Quantiles are of all of these; one that did not come counts as slower than all that did. Of messages only those
    /// that came are counted. `None` in older files, whose quantiles are of the blocks that came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<u64>,
    /// Mean latency of the blocks that came.
    pub mean_ms: f64,
    /// The median; `None` if it falls on a block that did not come.
    pub p50_ms: Option<f64>,
    /// 99 of 100 blocks take no longer; none as above.
    pub p99_ms: Option<f64>,
    /// Latency of the slowest block that came.
    pub max_ms: f64,
}

impl BlockNumbers {
    /// From the latencies of the blocks that came, in any order, and how many were due; `None` if none came.
    pub(crate) fn of(latencies_ms: &[f64], due: u64) -> Option<BlockNumbers> {
        let mut sorted = latencies_ms.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        Some(BlockNumbers {
            count: sorted.len() as u64,
            due: Some(due),
            mean_ms: sorted.iter().sum::<f64>() / sorted.len() as f64,
            p50_ms: quantile(&sorted, due, 0.5),
            p99_ms: quantile(&sorted, due, 0.99),
            max_ms: *sorted.last()?,
        })
    }
}

/// What a bounded buffer of the receiver was like, of one stream that is read in order, in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BufferNumbers {
    /// Mean time from the arrival of a byte, or of a row that stands for one, to its being in order, in milliseconds.
    pub mean_ms: f64,
    /// 99 of 100 bytes wait no longer, if those that come first are the first to be in order: the least that it can be.
    pub p99_ms: f64,
    /// Bytes multiplied and added over GF(2^8) at both ends, for each byte delivered.
    pub field_operations: f64,
    /// Warnings that the receiver has sent.
    pub warnings: u64,
}

/// What a viewer saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VideoNumbers {
    /// Until the first picture; none if there was never one.
    pub startup_seconds: Option<f64>,
    /// How often the player's buffer ran empty.
    pub stalls: u64,
    /// Seconds of all stalls together.
    pub stall_seconds: f64,
    /// Segments fetched.
    pub segments: u64,
    /// Mean bit rate of the fetched segments, in Mbit/s.
    pub mean_mbit_s: f64,
    /// How often the quality changed.
    pub switches: u64,
    /// The buffer over time: seconds since the start, seconds of video.
    pub levels: Vec<(f64, f64)>,
}

/// What a browser's user saw.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WebNumbers {
    /// Whole pages.
    pub pages: u64,
    /// Mean time until a page was whole, in milliseconds.
    pub page_ms_mean: f64,
    /// Median time of a page.
    pub page_ms_p50: f64,
    /// Time of the slowest page.
    pub page_ms_max: f64,
    /// Median time of an object from its request to its last byte.
    pub object_ms_p50: f64,
    /// The time that 99 of 100 objects do not exceed.
    pub object_ms_p99: f64,
}

/// The event `done` of the end that reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Payload bytes delivered.
    pub bytes: u64,
    /// From the start of the connection to the last byte delivered, or to the cut-off.
    pub seconds: f64,
    /// Whether everything has arrived.
    pub complete: bool,
    /// Latency, if the task was one of blocks or messages.
    pub blocks: Option<BlockNumbers>,
    /// Messages that came behind their deadline or not at all, if they had one; those of the warm-up are not counted. But see `dropped`.
    #[serde(default)]
    pub late: Option<u64>,
    /// Those of them that did not come at all. `sphx perf` counts those of the warm-up as well, and so did all in the older files.
    #[serde(default)]
    pub dropped: Option<u64>,
    /// How a bounded buffer was, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<BufferNumbers>,
    /// How a video was.
    #[serde(default)]
    pub video: Option<VideoNumbers>,
    /// How pages came.
    #[serde(default)]
    pub web: Option<WebNumbers>,
}

/// Why an event is not a usable `done`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NotDone {
    /// A field is missing or of another type.
    #[error("'done' has no usable '{0}'")]
    Field(&'static str),
    /// The ends do not read one clock, so that one-way times mean nothing.
    #[error("the two ends did not agree that they share a clock, so block times are worthless")]
    Clock,
}

impl Done {
    /// Reads the event.
    ///
    /// # Errors
    ///
    /// [`NotDone`].
    pub fn parse(event: &Value) -> Result<Done, NotDone> {
        let seconds = number(event, "seconds")?;
        if seconds.is_nan() || seconds < 0.0 {
            return Err(NotDone::Field("seconds"));
        }
        let dropped = event["messages_dropped"].as_u64();
        let late = event["messages_late"].as_u64();
        // Messages that a sender which had fallen behind never sent count as missing, too.
        let unsent = ["messages_unsent", "blocks_unsent"].map(|field| event[field].as_u64());
        let unsent: u64 = unsent.iter().flatten().sum();
        let missing = dropped.unwrap_or(0) + unsent;
        // Where messages may be dropped, not all bytes of the sender are delivered: the receiver's count holds.
        let delivered = dropped.and_then(|_| event["peer_done"]["bytes"].as_u64());
        let bytes = event["bytes"].as_u64().ok_or(NotDone::Field("bytes"))?;
        Ok(Done {
            bytes: delivered.unwrap_or(bytes).min(bytes),
            seconds,
            complete: event["complete"].as_bool().unwrap_or(missing == 0),
            blocks: blocks(event)?,
            late: late.map(|late| late + missing),
            dropped: dropped.map(|_| missing),
            buffer: None,
            video: Deserialize::deserialize(&event["video"]).ok(),
            web: Deserialize::deserialize(&event["web"]).ok(),
        })
    }

    /// Payload megabits per second.
    pub fn goodput_mbit_s(&self) -> f64 {
        if self.seconds > 0.0 {
            self.bytes as f64 * 8e-6 / self.seconds
        } else {
            0.0
        }
    }
}

fn blocks(event: &Value) -> Result<Option<BlockNumbers>, NotDone> {
    // Messages are small blocks under another name.
    let (fields, count) = match event["message_ms_mean"].is_null() {
        false => (MESSAGE_FIELDS, messages_measured(event)),
        true => {
            let measured = event["blocks_measured"].as_u64();
            (BLOCK_FIELDS, measured.or(event["blocks"].as_u64()))
        }
    };
    let [mean, p50, p99, max] = fields;
    if event[mean].is_null() {
        return Ok(None);
    }
    if event["clock"] != "shared" {
        return Err(NotDone::Clock);
    }
    // Null if the quantile falls on a message that did not come.
    let quantile = |field| match event[field].is_null() {
        true => Ok(None),
        false => number(event, field).map(Some),
    };
    Ok(Some(BlockNumbers {
        count: count.ok_or(NotDone::Field("blocks"))?,
        due: event["blocks_due"].as_u64(),
        mean_ms: number(event, mean)?,
        p50_ms: quantile(p50)?,
        p99_ms: quantile(p99)?,
        max_ms: number(event, max)?,
    }))
}

/// Messages behind the warm-up that came, in the words of `sphx perf`.
pub(crate) fn messages_measured(event: &Value) -> Option<u64> {
    let warmup = event["warmup_messages"].as_u64().unwrap_or(0);
    Some(event["messages_delivered"].as_u64()?.saturating_sub(warmup))
}

const BLOCK_FIELDS: [&str; 4] = [
    "block_ms_mean",
    "block_ms_p50",
    "block_ms_p99",
    "block_ms_max",
];
const MESSAGE_FIELDS: [&str; 4] = [
    "message_ms_mean",
    "message_ms_p50",
    "message_ms_p99",
    "message_ms_max",
];

fn number(event: &Value, field: &'static str) -> Result<f64, NotDone> {
    event[field].as_f64().ok_or(NotDone::Field(field))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bulk() {
        let event = json!({"v": 1, "event": "done", "bytes": 50_000_000, "seconds": 2.5,
            "block_ms_mean": null, "cc": "bbr"});
        let done = Done::parse(&event).unwrap();
        assert_eq!(
            (done.bytes, done.complete, done.blocks),
            (50_000_000, true, None)
        );
        assert!((done.goodput_mbit_s() - 160.0).abs() < 1e-9);
    }

    #[test]
    fn blocks_need_one_clock() {
        let mut event = json!({"bytes": 1, "seconds": 1, "blocks": 610, "blocks_measured": 600,
            "block_ms_mean": 9.5, "block_ms_p50": 9.4, "block_ms_p99": 12, "block_ms_max": 13.5,
            "clock": "shared"});
        let blocks = Done::parse(&event).unwrap().blocks.unwrap();
        assert_eq!((blocks.count, blocks.p99_ms), (600, Some(12.0)));
        event["clock"] = json!("estimated");
        assert_eq!(Done::parse(&event), Err(NotDone::Clock));
    }

    /// As `sphx perf client` says of streams over a link that is too slow: nothing is dropped there.
    #[test]
    fn what_was_never_sent_has_not_arrived() {
        let messages = json!({"bytes": 100_000, "seconds": 1, "messages_delivered": 1000,
            "messages_dropped": 0, "messages_late": 40, "messages_unsent": 500});
        let done = Done::parse(&messages).unwrap();
        assert_eq!(
            (done.late, done.dropped, done.complete),
            (Some(540), Some(500), false)
        );
        let mut blocks = json!({"bytes": 100_000, "seconds": 1, "blocks_unsent": 500});
        assert!(!Done::parse(&blocks).unwrap().complete);
        blocks["blocks_unsent"] = json!(0);
        let done = Done::parse(&blocks).unwrap();
        assert_eq!((done.late, done.dropped, done.complete), (None, None, true));
    }

    #[test]
    fn messages_of_the_warm_up_are_not_measured() {
        let event = json!({"bytes": 1, "seconds": 1, "messages_delivered": 1990, "warmup_messages": 100,
            "message_ms_mean": 9.5, "message_ms_p50": 9.4, "message_ms_p99": 12, "message_ms_max": 13.5,
            "clock": "shared"});
        assert_eq!(Done::parse(&event).unwrap().blocks.unwrap().count, 1890);
    }

    #[test]
    fn nonsense_is_refused() {
        for (event, field) in [
            (json!(null), "seconds"),
            (json!({"seconds": "2", "bytes": 1}), "seconds"),
            (json!({"seconds": -1, "bytes": 1}), "seconds"),
            (json!({"seconds": 1, "bytes": -1}), "bytes"),
            (
                json!({"seconds": 1, "bytes": 1, "block_ms_mean": 1, "clock": "shared"}),
                "blocks",
            ),
        ] {
            assert_eq!(Done::parse(&event), Err(NotDone::Field(field)), "{event}");
        }
        let at_once = json!({"seconds": 0, "bytes": 1});
        assert_eq!(Done::parse(&at_once).unwrap().goodput_mbit_s(), 0.0);
    }
}
