//! The numbers at the end of a transfer or a measurement.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sphinx_transport::Stats;

use super::Event;
use crate::perf::Report;
use crate::units::{show_duration, show_percent, show_rate, show_size};
use crate::usage;

/// Which end of the data this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Sender,
    Receiver,
}

/// Latency of blocks from the scheduled time to complete reception.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct BlockNumbers {
    /// Blocks measured, those of the warm-up not counted.
    pub(crate) count: u64,
    /// Blocks scheduled during the first round trips.
    pub(crate) warmup: u64,
    /// Blocks whose turn never came because the ones before took all the time.
    pub(crate) unsent: u64,
    /// Present when the blocks are messages.
    pub(crate) messages: Option<Punctuality>,
    /// `None` when there was nothing but warm-up.
    pub(crate) ms: Option<BlockMs>,
}

/// How many messages came after their deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Punctuality {
    /// `None` when there is no deadline.
    pub(crate) late: Option<u64>,
}

/// Milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct BlockMs {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

/// Everything `done` says.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) role: Role,
    /// Application bytes that arrived (at the sending end: are known to have arrived).
    pub(crate) bytes: u64,
    /// First handshake datagram to last byte delivered.
    pub(crate) elapsed: Duration,
    /// When that was, on this machine's monotonic clock.
    pub(crate) at_ns: u64,
    /// Of the whole session, its end included.
    pub(crate) stats: Stats,
    pub(crate) cpu: Duration,
    pub(crate) block_ms: Option<BlockNumbers>,
    /// Whether both ends read one clock.
    pub(crate) clock: Option<String>,
}

impl Done {
    pub(crate) fn new(role: Role, bytes: u64, stats: Stats, cpu: Duration) -> Self {
        Self {
            role,
            bytes,
            elapsed: stats.elapsed,
            at_ns: usage::monotonic_ns(),
            stats,
            cpu,
            block_ms: None,
            clock: None,
        }
    }

    pub(crate) fn goodput_bits(&self) -> f64 {
        match self.elapsed.as_secs_f64() {
            seconds if seconds > 0.0 => self.bytes as f64 * 8.0 / seconds,
            _ => 0.0,
        }
    }

    /// Bytes on the wire towards the receiver per application byte, less one. The receiving end
    /// can only count what arrived.
    fn overhead(&self) -> Option<f64> {
        let wire = match self.role {
            Role::Sender => self.stats.wire_bytes_sent,
            Role::Receiver => self.stats.wire_bytes_received,
        };
        (self.bytes > 0).then(|| wire as f64 / self.bytes as f64 - 1.0)
    }

    /// The event, for scripts.
    pub(crate) fn event(&self) -> Event {
        let stats = &self.stats;
        let messages = self.block_ms.filter(|blocks| blocks.messages.is_some());
        let blocks = self.block_ms.filter(|blocks| blocks.messages.is_none());
        let measured = blocks.and_then(|blocks| blocks.ms);
        let block_ms = |pick: fn(BlockMs) -> f64| measured.map(|ms| rounded(pick(ms), 3));
        let mut event = Event::new("done")
            .with(
                "role",
                if self.role == Role::Sender {
                    "sender"
                } else {
                    "receiver"
                },
            )
            .with("bytes", self.bytes)
            .with("seconds", rounded(self.elapsed.as_secs_f64(), 6))
            .with("monotonic_seconds", rounded(self.at_ns as f64 / 1e9, 6))
            .with("goodput_mbit_s", rounded(self.goodput_bits() / 1e6, 3))
            .with("wire_bytes_sent", stats.wire_bytes_sent)
            .with("wire_packets_sent", stats.wire_packets_sent)
            .with("wire_bytes_received", stats.wire_bytes_received)
            .with("overhead", self.overhead().map(|share| rounded(share, 6)))
            .with("repair_proactive", stats.repair_proactive)
            .with("repair_reactive", stats.repair_reactive)
            .with("plr_mean", rounded(stats.plr_mean, 6))
            .with("burst", rounded(stats.burst, 3))
            .with("rtt_ms", rounded(stats.rtt.as_secs_f64() * 1e3, 3))
            .with("min_rtt_ms", rounded(stats.min_rtt.as_secs_f64() * 1e3, 3))
            .with("blocks", stats.blocks)
            .with("blocks_second_round", stats.blocks_second_round)
            .with("block_ms_mean", block_ms(|b| b.mean))
            .with("block_ms_p50", block_ms(|b| b.p50))
            .with("block_ms_p99", block_ms(|b| b.p99))
            .with("block_ms_max", block_ms(|b| b.max))
            .with("clock", self.clock.clone())
            .with("invalid_datagrams", stats.invalid_datagrams)
            .with("replayed_datagrams", stats.replayed_datagrams)
            .with("cpu_seconds", rounded(self.cpu.as_secs_f64(), 6))
            .with("peak_rss_bytes", usage::peak_rss_bytes())
            .with("icm", stats.icm)
            .with("cc", stats.cc)
            .with("codec", stats.codec)
            .with("profile", stats.profile)
            .with("io", stats.io);
        if let Some(blocks) = blocks {
            event = event
                .with("blocks_measured", blocks.count)
                .with("warmup_blocks", blocks.warmup)
                .with("blocks_unsent", blocks.unsent);
        }
        if let Some((numbers, punctuality)) =
            messages.and_then(|all| all.messages.map(|m| (all, m)))
        {
            let ms = |pick: fn(BlockMs) -> f64| numbers.ms.map(|ms| rounded(pick(ms), 3));
            // Streams are reliable: what was sent was delivered, or the measurement failed.
            let messages = numbers.count + numbers.warmup;
            event = event
                .with("messages_sent", messages)
                .with("messages_delivered", messages)
                .with("messages_late", punctuality.late)
                .with("messages_unsent", numbers.unsent)
                .with("warmup_messages", numbers.warmup)
                .with("message_ms_mean", ms(|m| m.mean))
                .with("message_ms_p50", ms(|m| m.p50))
                .with("message_ms_p90", ms(|m| m.p90))
                .with("message_ms_p99", ms(|m| m.p99))
                .with("message_ms_max", ms(|m| m.max));
        }
        event
    }

    /// The numbers for the other end.
    pub(crate) fn report(&self) -> Report {
        Report {
            bytes: self.bytes,
            elapsed_ns: u64::try_from(self.elapsed.as_nanos()).unwrap_or(u64::MAX),
            blocks: self.block_ms,
            done: self.event().into_value(),
        }
    }

    /// One line for people.
    pub(crate) fn summary(&self) -> String {
        let verb = if self.role == Role::Sender {
            "sent"
        } else {
            "received"
        };
        let mut line = format!(
            "{verb} {} in {}: {}",
            show_size(self.bytes),
            show_duration(self.elapsed),
            show_rate(self.goodput_bits()),
        );
        if self.role == Role::Sender {
            line += &format!(", loss {}", show_percent(self.stats.plr_mean));
        }
        if let Some(overhead) = self.overhead() {
            line += &format!(", overhead {}", show_percent(overhead));
        }
        line + &format!(
            ", rtt {}, CPU {:.2} s",
            show_duration(self.stats.rtt),
            self.cpu.as_secs_f64()
        )
    }

    /// Block latency for people.
    pub(crate) fn block_summary(&self) -> Option<String> {
        let blocks = self.block_ms?;
        let what = if blocks.messages.is_some() {
            "message"
        } else {
            "block"
        };
        let Some(ms) = blocks.ms else {
            return Some(format!(
                "{what} latency: {} {what}s, all of them warm-up",
                blocks.warmup
            ));
        };
        let late = blocks.messages.and_then(|messages| messages.late);
        let late = late.map_or(String::new(), |late| format!("{late} late, "));
        let clock = self.clock.as_deref().unwrap_or("estimated");
        Some(format!(
            "{what} latency: mean {:.2} ms, p50 {:.2}, p90 {:.2}, p99 {:.2}, max {:.2} \
             ({late}{} {what}s and {} of warm-up, clock {clock})",
            ms.mean, ms.p50, ms.p90, ms.p99, ms.max, blocks.count, blocks.warmup,
        ))
    }
}

/// Digits beyond the accuracy of a measurement only make lines long. What is no number (a peer may
/// claim anything) is null.
fn rounded(value: f64, places: i32) -> Value {
    let scale = 10_f64.powi(places);
    json!((value * scale).round() / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DESIGN §6: the fields of `done`.
    const FIELDS: &str = "v event bytes seconds goodput_mbit_s wire_bytes_sent wire_packets_sent \
        wire_bytes_received overhead repair_proactive repair_reactive plr_mean burst rtt_ms blocks \
        blocks_second_round block_ms_mean block_ms_p50 block_ms_p99 block_ms_max clock \
        invalid_datagrams replayed_datagrams cpu_seconds peak_rss_bytes icm cc codec profile \
        io";

    fn done(bytes: u64) -> Done {
        let stats = Stats {
            elapsed: Duration::from_secs(2),
            wire_bytes_sent: 54_000_000,
            wire_bytes_received: 1_000_000,
            cc: "bbr",
            ..Stats::default()
        };
        Done::new(Role::Sender, bytes, stats, Duration::from_millis(700))
    }

    #[test]
    fn has_every_field_of_the_contract() {
        let event = done(50_000_000).event();
        for field in FIELDS.split_whitespace() {
            event.get(field);
        }
        assert_eq!(event.get("goodput_mbit_s"), &json!(200.0));
        assert_eq!(event.get("overhead"), &json!(0.08));
        assert_eq!(event.get("block_ms_p99"), &Value::Null);
        assert_eq!(event.get("cpu_seconds"), &json!(0.7));
    }

    #[test]
    fn nothing_transferred_has_no_overhead() {
        assert_eq!(done(0).event().get("overhead"), &Value::Null);
    }

    #[test]
    fn people_read_a_line() {
        let line = done(50_000_000).summary();
        assert!(
            line.starts_with("sent 47.7 MiB in 2.00 s: 200 Mbit/s, loss 0.0 %"),
            "{line}"
        );
    }

    #[test]
    fn what_is_no_number_is_null() {
        assert_eq!(rounded(f64::NAN, 3), Value::Null);
        assert_eq!(rounded(f64::INFINITY, 3), Value::Null);
    }
}
