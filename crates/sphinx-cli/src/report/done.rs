//! The numbers at the end of a transfer or a measurement.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sphinx_netdev::usage;
use sphinx_transport::{Sc, Stats};

use super::figures::{Figures, Overhead, Role};
use super::{Event, paths};
use crate::perf::Report;
use crate::units::{show_duration, show_percent, show_rate, show_size};

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
    /// `None` when only warm-up blocks arrived.
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
    /// Bytes that crossed the network: holes of files do not.
    pub(crate) carried: u64,
    /// From the first handshake datagram until the receiver had everything, and in a transfer of files had it
    /// verified and in place, as far as this end knows.
    pub(crate) elapsed: Duration,
    /// When that was, on this machine's monotonic clock.
    pub(crate) at_ns: u64,
    /// Statistics of the whole session, its end included.
    pub(crate) stats: Stats,
    pub(crate) cpu: Duration,
    pub(crate) block_ms: Option<BlockNumbers>,
    /// Messages that were sent and not given to the peer's application, where that may be.
    pub(crate) dropped: Option<u64>,
    /// Whether both ends read one clock.
    pub(crate) clock: Option<String>,
    /// What the sending end says its overhead is, for a receiving end that hears of it.
    pub(crate) peer_overhead: Option<f64>,
}

impl Done {
    pub(crate) fn new(role: Role, bytes: u64, stats: Stats, cpu: Duration) -> Self {
        Self {
            role,
            bytes,
            carried: bytes,
            elapsed: stats.elapsed,
            at_ns: usage::monotonic_ns(),
            stats,
            cpu,
            block_ms: None,
            dropped: None,
            clock: None,
            peer_overhead: None,
        }
    }

    /// The numbers of a transfer of files with so many `bytes`, of which holes did not have to be carried.
    pub(crate) fn of_files(role: Role, bytes: u64, stats: Stats, cpu: Duration) -> Self {
        let carried = bytes.min(Figures::new(role, stats).stream_bytes());
        Self {
            carried,
            ..Self::new(role, bytes, stats, cpu)
        }
    }

    fn figures(&self) -> Figures {
        Figures::new(self.role, self.stats)
    }

    /// Rate of the bytes that crossed the network, bits per second; `None` if no time has passed.
    pub(crate) fn goodput_bits(&self) -> Option<f64> {
        let seconds = self.elapsed.as_secs_f64();
        (seconds > 0.0).then(|| self.carried as f64 * 8.0 / seconds)
    }

    /// Share of the data; a receiving end has it from the sending end, if at all.
    fn overhead(&self) -> Option<f64> {
        let measured = self.figures().overhead(self.carried);
        let measured = measured.map(|overhead| overhead.total);
        measured.or(self.peer_overhead.filter(|_| self.role == Role::Receiver))
    }

    /// Takes over what only the other end of a measurement can know.
    pub(crate) fn hear(&mut self, peer: &Report) {
        match self.role {
            Role::Sender => self.block_ms = peer.blocks,
            Role::Receiver => {
                let overhead = peer.done.get("overhead").and_then(Value::as_f64);
                self.peer_overhead = overhead.filter(|share| *share >= 0.0);
            }
        }
    }

    /// The event, for scripts.
    pub(crate) fn event(&self) -> Event {
        let (stats, figures) = (&self.stats, self.figures());
        let (losses, losses_return) = (figures.losses(), figures.losses_return());
        let parts = figures.overhead(self.carried);
        let part = |pick: fn(Overhead) -> f64| parts.map(|parts| rounded(pick(parts), 6));
        let messages = self.block_ms.filter(|blocks| blocks.messages.is_some());
        let blocks = self.block_ms.filter(|blocks| blocks.messages.is_none());
        let measured = blocks.and_then(|blocks| blocks.ms);
        let block_ms = |pick: fn(BlockMs) -> f64| measured.map(|ms| rounded(pick(ms), 3));
        let mut event = Event::new("done")
            .with("role", self.role.name())
            .with("bytes", self.bytes)
            .with("bytes_carried", self.carried)
            .with("seconds", rounded(self.elapsed.as_secs_f64(), 6))
            .with("monotonic_seconds", rounded(self.at_ns as f64 / 1e9, 6))
            .with(
                "goodput_mbit_s",
                self.goodput_bits().map(|bits| rounded(bits / 1e6, 6)),
            )
            .with("wire_bytes_sent", stats.wire_bytes_sent)
            .with("wire_packets_sent", stats.wire_packets_sent)
            .with("wire_bytes_received", stats.wire_bytes_received)
            .with("early_data", stats.early_data.name())
            .with("early_data_bytes", stats.early_bytes)
            .with("overhead", self.overhead().map(|share| rounded(share, 6)))
            .with("overhead_headers", part(|parts| parts.headers))
            .with("overhead_repair_ahead", part(|parts| parts.ahead))
            .with("overhead_repair_after_loss", part(|parts| parts.after_loss))
            .with("repair_proactive", stats.repair_proactive)
            .with("repair_reactive", stats.repair_reactive)
            .with("bundled_bytes", stats.bundled_bytes)
            .with("bundles", stats.bundles)
            .with(
                "redundancy",
                figures.redundancy().map(|share| rounded(share, 6)),
            )
            .with("plr_mean", losses.map(|losses| rounded(losses.mean, 6)))
            .with(
                "plr_return_mean",
                losses_return.map(|losses| rounded(losses.mean, 6)),
            )
            .with("burst", losses.map(|losses| rounded(losses.burst, 3)))
            .with("rtt_ms", figures.rtt_ms().map(|ms| rounded(ms, 3)))
            .with("min_rtt_ms", figures.min_rtt_ms().map(|ms| rounded(ms, 3)))
            .with("window_bytes", figures.window_bytes())
            .with(
                "window_limited_ms",
                figures.window_limited_ms().map(|ms| rounded(ms, 3)),
            )
            .with("streams_peak", stats.streams_peak)
            .with("datagrams_sent", stats.datagrams.sent)
            .with("datagrams_delivered", stats.datagrams.delivered)
            .with("datagrams_expired", stats.datagrams.expired)
            .with("datagrams_evicted", stats.datagrams.evicted)
            .with("datagrams_lost", stats.datagrams.lost)
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
            .with("wakeups", stats.load.wakeups)
            .with("syscalls", stats.load.syscalls())
            .with(
                "packets_per_send",
                ratio(stats.load.datagrams_sent, stats.load.sends),
            )
            .with(
                "packets_per_receive",
                ratio(stats.load.datagrams_received, stats.load.receives),
            )
            .with("gso_downgrades", stats.load.gso_downgrades)
            .with(
                "kernel_datagrams",
                (stats.io != "udp").then_some(stats.load.kernel_datagrams),
            )
            .with("workers", stats.load.workers)
            .with("worker_busy", worker_busy(stats))
            .with("shards", stats.load.shards)
            .with("steering", stats.load.steering)
            .with("handovers", stats.load.handovers)
            .with("copied_bytes", stats.copied_bytes)
            .with("icm", stats.icm)
            .with("cc", stats.cc)
            .with("ecn", stats.ecn)
            .with("packets_marked", stats.packets_marked)
            .with("codec", stats.codec)
            .with("profile", stats.profile)
            .with("io", stats.io);
        let paths: Vec<_> = stats.paths.iter().flatten().map(paths::figures).collect();
        if paths.len() > 1 {
            event = event.with("paths", paths);
        }
        if Sc::by_name(stats.profile).is_some() {
            event = event
                .with("warnings_sent", stats.warnings_sent)
                .with("warnings_received", stats.warnings_received)
                .with("field_operations", stats.field_operations);
        }
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
            let delivered = numbers.count + numbers.warmup;
            let messages = delivered + self.dropped.unwrap_or(0);
            event = event
                .with("messages_sent", messages)
                .with("messages_delivered", delivered)
                .with("messages_dropped", self.dropped.unwrap_or(0))
                .with("messages_recovered", stats.blocks_second_round)
                .with(
                    "packets_per_message",
                    figures
                        .packets_per(messages)
                        .map(|packets| rounded(packets, 3)),
                )
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
        let (size, time) = (show_size(self.bytes), show_duration(self.elapsed));
        let mut line = format!("{verb} {size} in {time}");
        let figures = self.figures();
        if let Some(bits) = self.goodput_bits().filter(|_| self.carried > 0) {
            line += &format!(": {}", show_rate(bits));
        }
        if self.carried < self.bytes {
            line += &format!(", {} of it over the link", show_size(self.carried));
        }
        if let Some(losses) = figures.losses() {
            line += &format!(", loss {}", show_percent(losses.mean));
        }
        if let Some(overhead) = self.overhead() {
            line += &format!(", overhead {}", show_percent(overhead));
        }
        if let Some(parts) = figures.overhead(self.carried) {
            line += &format!(
                " (headers {}, repair ahead {}, repair after loss {})",
                show_percent(parts.headers),
                show_percent(parts.ahead),
                show_percent(parts.after_loss)
            );
        }
        if figures.rtt_ms().is_some() {
            line += &format!(", rtt {}", show_duration(self.stats.rtt));
        }
        line + &format!(", CPU {:.2} s", self.cpu.as_secs_f64())
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
        let dropped = self.dropped;
        let dropped = dropped.map_or(String::new(), |dropped| format!("{dropped} dropped, "));
        let clock = self.clock.as_deref().unwrap_or("estimated");
        Some(format!(
            "{what} latency: mean {:.2} ms, p50 {:.2}, p90 {:.2}, p99 {:.2}, max {:.2} \
             ({late}{dropped}{} {what}s and {} of warm-up, clock {clock})",
            ms.mean, ms.p50, ms.p90, ms.p99, ms.max, blocks.count, blocks.warmup,
        ))
    }
}

/// `part` of `whole`, rounded to three digits; `None` if `whole` is 0.
fn ratio(part: u64, whole: u64) -> Option<Value> {
    (whole > 0).then(|| rounded(part as f64 / whole as f64, 3))
}

/// Share of the session for which its workers, on the average, had something to do; null without any.
fn worker_busy(stats: &Stats) -> Value {
    let time = stats.elapsed.as_secs_f64() * stats.load.workers as f64;
    match time > 0.0 {
        true => rounded(stats.load.busy.as_secs_f64() / time, 4),
        false => Value::Null,
    }
}

/// Digits beyond the accuracy of a measurement only make lines long. What is no number (a peer may
/// claim anything) is null.
pub(super) fn rounded(value: f64, places: i32) -> Value {
    let scale = 10_f64.powi(places);
    json!((value * scale).round() / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of `done` (`docs/figures-of-merit.md`).
    const FIELDS: &str = "v event bytes seconds goodput_mbit_s wire_bytes_sent wire_packets_sent \
        wire_bytes_received overhead overhead_headers overhead_repair_ahead \
        overhead_repair_after_loss redundancy bytes_carried plr_return_mean repair_proactive repair_reactive bundled_bytes bundles plr_mean burst rtt_ms window_bytes window_limited_ms streams_peak blocks \
        blocks_second_round block_ms_mean block_ms_p50 block_ms_p99 block_ms_max clock \
        invalid_datagrams replayed_datagrams cpu_seconds peak_rss_bytes icm cc ecn packets_marked codec profile \
        io wakeups syscalls packets_per_send packets_per_receive gso_downgrades workers worker_busy \
        shards steering handovers copied_bytes datagrams_sent datagrams_delivered datagrams_expired datagrams_evicted";

    fn done(bytes: u64) -> Done {
        let stats = Stats {
            elapsed: Duration::from_secs(2),
            wire_bytes_sent: 54_000_000,
            wire_bytes_received: 1_000_000,
            bytes_delivered: bytes + 100,
            repair_reactive_bytes: 1_500_000,
            cc: "bbr",
            ..Stats::default()
        };
        Done::of_files(Role::Sender, bytes, stats, Duration::from_millis(700))
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
            line.starts_with(
                "sent 47.7 MiB in 2.00 s: 200 Mbit/s, overhead 8.0 % \
                 (headers 5.0 %, repair ahead 0.0 %, repair after loss 3.0 %), CPU"
            ),
            "{line}"
        );
    }

    #[test]
    fn people_read_nothing_that_is_not_known() {
        for bytes in [0, 1] {
            let line = done(bytes).summary();
            for word in ["loss", "overhead", "rtt"] {
                assert!(!line.contains(word), "{line}");
            }
        }
        assert_eq!(done(0).summary(), "sent 0 B in 2.00 s, CPU 0.70 s");
        assert!(done(0).event().get("plr_mean").is_null());
    }

    #[test]
    fn holes_have_no_goodput() {
        let Done { stats, cpu, .. } = done(50_000_000);
        let sparse = Done::of_files(Role::Sender, 1 << 40, stats, cpu);
        let event = sparse.event();
        assert_eq!(event.get("bytes"), &json!(1_u64 << 40));
        assert_eq!(event.get("bytes_carried"), &json!(50_000_100));
        assert_eq!(event.get("goodput_mbit_s"), &json!(200.0004));
        assert!(sparse.summary().contains("47.7 MiB of it over the link"));
    }

    #[test]
    fn what_is_no_number_is_null() {
        assert_eq!(rounded(f64::NAN, 3), Value::Null);
        assert_eq!(rounded(f64::INFINITY, 3), Value::Null);
    }
}
