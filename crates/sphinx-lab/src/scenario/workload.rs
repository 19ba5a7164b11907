//! `[workload]`: what is carried.

use std::time::Duration;

use serde::Deserialize;

use super::{
    ScenarioError,
    value::{Period, Rate, Size, Time},
};
use crate::{
    Workload,
    video::{Quality, Video},
    web::Web,
};

/// A `[workload]` table as it is written in the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub(super) enum WorkloadTable {
    /// One file as fast as possible: so many bytes, or as many as the link carries in so long.
    Bulk {
        #[serde(default)]
        name: Option<String>,
        bytes: Option<Size>,
        time: Option<Period>,
    },
    /// Whole blocks at fixed times.
    Blocks {
        #[serde(default)]
        name: Option<String>,
        bytes: Size,
        rate: Rate,
        time: Period,
    },
    /// Small messages at fixed times.
    Thin {
        #[serde(default)]
        name: Option<String>,
        bytes: Size,
        interval: Time,
        time: Period,
    },
    /// Messages at fixed times that are of use until a deadline.
    Live {
        #[serde(default)]
        name: Option<String>,
        bytes: Size,
        interval: Time,
        deadline: Time,
        time: Period,
    },
    /// A player of a video in segments.
    Video {
        #[serde(default)]
        name: Option<String>,
        time: Period,
        segment: Period,
        buffer: Period,
        quality: QualityText,
        #[serde(default)]
        seed: u64,
    },
    /// A browser that loads pages.
    Web {
        #[serde(default)]
        name: Option<String>,
        pages: u64,
        objects: u64,
        #[serde(default)]
        seed: u64,
    },
}

/// A quality, checked where it is written.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct QualityText(Quality);

impl TryFrom<String> for QualityText {
    type Error = String;

    fn try_from(text: String) -> Result<QualityText, String> {
        text.parse().map(QualityText)
    }
}

impl WorkloadTable {
    pub(super) fn hurry(&mut self, fewer: Option<Size>, shorter: Option<Period>) {
        match self {
            WorkloadTable::Bulk { bytes, time, .. } => {
                *bytes = bytes.map(|bytes| fewer.unwrap_or(bytes));
                *time = time.map(|time| shorter.unwrap_or(time));
            }
            WorkloadTable::Blocks { time, .. }
            | WorkloadTable::Thin { time, .. }
            | WorkloadTable::Live { time, .. }
            | WorkloadTable::Video { time, .. } => *time = shorter.unwrap_or(*time),
            WorkloadTable::Web { .. } => {}
        }
    }

    /// Whether its bytes can be [fewer](WorkloadTable::hurry).
    pub(super) fn has_quick_bytes(&self) -> bool {
        matches!(self, WorkloadTable::Bulk { bytes: Some(_), .. })
    }

    pub(super) fn has_time(&self) -> bool {
        !matches!(
            self,
            WorkloadTable::Bulk { time: None, .. } | WorkloadTable::Web { .. }
        )
    }

    /// The workload and its name, on a link of `rate` bits per second.
    fn build(self, rate: u64) -> Result<(String, Workload), ScenarioError> {
        let (name, kind, workload) = match self {
            WorkloadTable::Bulk { name, bytes, time } => {
                let bytes = match (bytes, time) {
                    (Some(Size(bytes)), None) => bytes,
                    (None, Some(Period(time))) => {
                        ((rate as f64 / 8.0 * time.as_secs_f64()) as u64).max(1)
                    }
                    _ => {
                        let text = "a bulk workload has either 'bytes' or a 'time'";
                        return Err(ScenarioError::Sense(text.to_owned()));
                    }
                };
                (name, "bulk", Workload::Bulk { bytes })
            }
            WorkloadTable::Blocks {
                name,
                bytes,
                rate,
                time,
            } => {
                let nanos = u128::from(bytes.0) * 8_000_000_000 / u128::from(rate.0);
                let interval = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
                (name, "blocks", paced(bytes.0, interval, time.0))
            }
            WorkloadTable::Thin {
                name,
                bytes,
                interval,
                time,
            } => (name, "thin", paced(bytes.0, interval.0, time.0)),
            WorkloadTable::Live {
                name,
                bytes,
                interval,
                deadline,
                time,
            } => {
                let live = Workload::Live {
                    count: count(interval.0, time.0),
                    bytes: bytes.0,
                    interval: interval.0,
                    deadline: deadline.0,
                };
                (name, "live", live)
            }
            WorkloadTable::Video {
                name,
                time,
                segment,
                buffer,
                quality,
                seed,
            } => {
                let video = Video {
                    watch: time.0,
                    segment: segment.0,
                    buffer: buffer.0,
                    quality: quality.0,
                    seed,
                };
                (name, "video", Workload::Video(video))
            }
            WorkloadTable::Web {
                name,
                pages,
                objects,
                seed,
            } => {
                let web = Web {
                    pages,
                    objects,
                    seed,
                };
                (name, "web", Workload::Web(web))
            }
        };
        Ok((name.unwrap_or_else(|| kind.to_owned()), workload))
    }
}

fn paced(bytes: u64, interval: Duration, time: Duration) -> Workload {
    Workload::Blocks {
        count: count(interval, time),
        bytes,
        interval,
    }
}

fn count(interval: Duration, time: Duration) -> u64 {
    let count = time.as_nanos() / interval.as_nanos().max(1);
    u64::try_from(count).unwrap_or(u64::MAX).max(1)
}

/// The workloads with their names, on a link of `rate` bits per second.
pub(super) fn expand(
    tables: &[WorkloadTable],
    rate: u64,
) -> Result<Vec<(String, Workload)>, ScenarioError> {
    let workloads: Result<Vec<_>, _> = tables
        .iter()
        .map(|table| table.clone().build(rate))
        .collect();
    let workloads = workloads?;
    for (name, workload) in &workloads {
        let sense = |ok: bool, text: String| match ok {
            true => Ok(()),
            false => Err(ScenarioError::Sense(format!("workload '{name}': {text}"))),
        };
        match workload {
            Workload::Blocks { bytes, count, .. } | Workload::Live { bytes, count, .. } => {
                let sizes = Workload::BLOCK_BYTES_MIN..=16 << 20;
                let text = format!("blocks have {} B to 16 MiB", Workload::BLOCK_BYTES_MIN);
                sense(sizes.contains(bytes), text)?;
                sense(*count <= 1 << 20, "more than 1048576 blocks".to_owned())?;
            }
            Workload::Web(web) => {
                let most = web.pages.saturating_mul(web.objects.saturating_add(1));
                let text = "a session has room for 200 objects altogether".to_owned();
                sense((1..=200).contains(&most), text)?;
            }
            Workload::Video(video) => {
                let segments = video.watch + video.buffer;
                let many = segments.as_nanos() / video.segment.as_nanos().max(1);
                let text = "a session has room for 200 segments".to_owned();
                sense(many <= 200 && video.buffer > video.segment, text)?;
            }
            Workload::Bulk { .. } => {}
        }
    }
    Ok(workloads)
}
