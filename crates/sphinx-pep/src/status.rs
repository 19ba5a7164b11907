//! An agent at a glance, for people, programs and Prometheus.

use std::{collections::BTreeMap, fmt};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeCounterValue, EncodeMetric, text::encode},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};
use serde::Serialize;

use crate::{Counts, Time};

/// What an agent does at present, and has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Flows seen so far.
    pub flows: u64,
    /// Flows known at present.
    pub flows_known: usize,
    /// Bytes of memory that these flows take.
    pub memory_bytes: usize,
    /// Whether packets only pass, as they came too late.
    pub overloaded: bool,
    /// How often the agent has become too late, and has begun to only pass packets.
    pub overloads: u64,
    /// Packets that the kernel did not take back.
    pub packets_refused: u64,
    /// How often the rate of the queue that filters acknowledgements seemed to be more than the link carries.
    pub rate_doubted: u64,
    /// Flows that another agent was told to take over, once for each time.
    pub flows_handed_over: u64,
    /// Flows that another agent has told of.
    pub flows_taken_over: u64,
    /// The longest lag, in nanoseconds.
    pub lag_ns_max: Time,
    /// Totals of all flows.
    #[serde(flatten)]
    pub counts: Counts,
}

impl Status {
    /// As text for Prometheus (OpenMetrics 1.0), in seconds and bytes.
    pub fn openmetrics(&self) -> String {
        let mut registry = Registry::with_prefix("sphx_pep");
        registry.register_collector(Box::new(self.clone()));
        let mut text = String::new();
        // Writing into a string does not fail.
        let _ = encode(&mut text, &registry);
        text
    }
}

/// One metric after another.
struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        let metric = ConstCounter::new(value);
        let encoder = &mut self.0;
        metric.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let metric = ConstGauge::new(value);
        let encoder = &mut self.0;
        metric.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    /// A counter for each value of a label.
    fn family(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (String, u64)>,
    ) -> fmt::Result {
        let encoder = &mut self.0;
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (value, count) in values {
            let labels = [(label, value.as_str())];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// A counter for each key of a map, whose name is the value of a label.
    fn by_key<K: Serialize>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        counts: &BTreeMap<K, u64>,
    ) -> fmt::Result {
        let values = counts.iter().map(|(key, count)| (name_of(key), *count));
        self.family(name, help, label, values)
    }
}

/// A counter for each of the fields, named as the field is.
macro_rules! counters {
    ($writer:ident, $of:expr; $($field:ident: $help:literal,)*) => {
        $($writer.counter(stringify!($field), $help, $of.$field)?;)*
    };
}

impl Collector for Status {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut it = Writer(encoder);
        let counts = &self.counts;
        let seconds = |ns: Time| ns as f64 / 1e9;
        it.counter("flows", "TCP connections seen", self.flows)?;
        it.gauge(
            "flows_known",
            "TCP connections known",
            self.flows_known as f64,
        )?;
        it.gauge("memory_bytes", "Memory of flows", self.memory_bytes as f64)?;
        let sides = [("fixed", counts.from_fixed), ("mobile", counts.from_mobile)];
        let sides = sides
            .map(|(side, count)| (side.to_owned(), count))
            .into_iter();
        it.family("packets", "Packets that came", "from", sides)?;
        counters! { it, counts;
            cached: "Data packets kept",
            repaired: "Packets sent again over the hop",
            resumed: "Packets that another hop may have lost, sent over this one",
            spurious: "Repairs that were not needed",
            held: "Acknowledgements held back",
            concealed: "Acknowledgements passed without SACK",
            dropped_queue: "Packets dropped by the own queue",
            attributed: "Holes in uploads reported as losses of the hop",
            unattributed: "Holes in uploads left to the sender",
            data_bytes: "Payload that senders sent for the first time",
            acks_marked: "Times at which acknowledgements became fewer, as they waited too long",
            acks_synthesised: "Acknowledgements put between those from the hop",
            acks_superseded: "Such that were not needed, as another one had come",
            duplicates_held: "Repeated acknowledgements that waited for the third",
            paced: "Packets that waited so that no burst went",
            thin: "New segments of thin streams",
            bundled: "New segments with earlier ones in front",
            copied_bytes: "Payload of those earlier ones",
            resent: "Segments that senders have sent again",
            losses_repaired: "Lost segments that came as copies",
            losses_unknown: "Segments that came perhaps only as copies",
            overtaken: "Segments taken for lost that were overtaken",
            dsacks_stripped: "Acknowledgements passed without the report of a copy",
            acked: "Segments whose acknowledgement was seen",
            uploads: "Uploads whose windows may be lowered",
            windows_lowered: "Acknowledgements that went on with a smaller window",
            acks_seen: "Acknowledgements towards the hop",
        }
        counters! { it, self;
            rate_doubted: "Times at which packets waited behind the own queue",
            flows_handed_over: "Flows that another agent was told to take over",
            flows_taken_over: "Flows that another agent has told of",
            overloads: "Times at which packets began to only pass",
            packets_refused: "Packets that the kernel did not take back",
        }
        let help = "Holes left to the sender";
        it.by_key("released", help, "reason", &counts.released)?;
        let help = "Packets left alone";
        it.by_key("bypassed", help, "reason", &counts.bypassed)?;
        let help = "New segments without copies";
        it.by_key("alone", help, "reason", &counts.alone)?;
        let help = "Acknowledgements dropped, as a later one says everything";
        it.by_key("acks_dropped", help, "reason", &counts.acks_dropped)?;
        let help = "Acknowledgements that waited when another one came, and were kept";
        it.by_key("acks_kept", help, "reason", &counts.acks_kept)?;
        let help = "Uploads of which nothing can be measured, or that may not be touched";
        it.by_key("unclamped", help, "reason", &counts.unclamped)?;
        let help = "Times at which uploads came into a state";
        it.by_key("upload_states", help, "state", &counts.upload_states)?;
        let help = "Times at which a sender was slowed down for losses that it did not see";
        it.by_key("slowed", help, "how", &counts.slowed)?;
        let overloaded = f64::from(u8::from(self.overloaded));
        it.gauge("overloaded", "Whether packets only pass", overloaded)?;
        it.gauge("lag_seconds_max", "Longest lag", seconds(self.lag_ns_max))?;
        let ratio = counts.ack_ratio_max as f64;
        it.gauge(
            "ack_ratio_max",
            "Acknowledgements for which one went, at most",
            ratio,
        )?;
        for (name, help, value) in [
            (
                "paced_seconds_max",
                "Longest wait so that no burst went",
                counts.paced_ns_max,
            ),
            ("held_seconds_max", "Longest hold", counts.held_ns_max),
            (
                "acked_seconds_max",
                "Longest time from segment to acknowledgement",
                counts.acked_ns_max,
            ),
            (
                "queued_seconds_max",
                "Longest wait in the own queue",
                counts.queued_ns_max,
            ),
            (
                "waited_seconds_max",
                "Longest wait for the agent, at most",
                counts.waited_ns_max,
            ),
        ] {
            it.gauge(name, help, seconds(value))?;
        }
        let help = "Time from segments to their acknowledgements";
        it.counter("acked_seconds", help, seconds(counts.acked_ns))?;
        let help = "Time that packets waited in the own queue";
        it.counter("queued_seconds", help, seconds(counts.queued_ns))
    }
}

/// The name of a key, as in JSON.
fn name_of(key: &impl Serialize) -> String {
    let name = serde_json::to_value(key).ok();
    let name = name.and_then(|name| name.as_str().map(str::to_owned));
    name.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bypass, Release};

    #[test]
    fn every_number_has_a_line() {
        let mut status = Status {
            flows: 3,
            flows_known: 2,
            packets_refused: 12,
            overloaded: true,
            lag_ns_max: 1_500_000,
            ..Status::default()
        };
        status.counts.from_mobile = 7;
        status.counts.repaired = 5;
        status.counts.losses_repaired = 6;
        status.counts.alone.insert(crate::rdb::Alone::Clean, 8);
        let (dropped, kept) = (crate::acks::Dropped::Acked, crate::acks::Kept::Window);
        status.counts.acks_dropped.insert(dropped, 10);
        status.counts.acks_kept.insert(kept, 11);
        status.counts.acked_ns = 1_500_000_000;
        status.counts.queued_ns = 2_500_000_000;
        status.counts.waited_ns_max = 3_000_000;
        status.counts.released.insert(Release::NotCached, 4);
        status.counts.bypassed.insert(Bypass::MidStream, 9);
        let text = status.openmetrics();
        for line in [
            "# TYPE sphx_pep_repaired counter",
            "sphx_pep_flows_total 3",
            "sphx_pep_flows_known 2.0",
            "sphx_pep_packets_total{from=\"mobile\"} 7",
            "sphx_pep_packets_refused_total 12",
            "sphx_pep_repaired_total 5",
            "sphx_pep_losses_repaired_total 6",
            "sphx_pep_alone_total{reason=\"clean\"} 8",
            "sphx_pep_acks_dropped_total{reason=\"acked\"} 10",
            "sphx_pep_acks_kept_total{reason=\"window\"} 11",
            "sphx_pep_acked_seconds_total 1.5",
            "sphx_pep_released_total{reason=\"not_cached\"} 4",
            "sphx_pep_bypassed_total{reason=\"mid_stream\"} 9",
            "sphx_pep_overloaded 1.0",
            "sphx_pep_lag_seconds_max 0.0015",
            "sphx_pep_queued_seconds_total 2.5",
            "sphx_pep_waited_seconds_max 0.003",
            "# EOF",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
    }
}
