//! What one run measured.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sphinx_link::{Counters, Time};

use crate::{Cell, Clock, Done, Workload, machine::Made, watch::Carried};

/// One contestant, once, on one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`Contestant::name`](crate::Contestant::name).
    pub contestant: String,
    /// [`Cell::name`](crate::Cell::name).
    pub cell: String,
    /// The link's seed.
    pub seed: u64,
    /// Which of several runs with this seed, from 0.
    #[serde(default)]
    pub repetition: u32,
    /// [`Contestant::settings`](crate::Contestant::settings).
    #[serde(default)]
    pub settings: String,
    /// [`Cell::description`](crate::Cell::description).
    #[serde(default)]
    pub description: String,
    /// The settings of the link and the task ([`Cell::details`]); empty in older runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
    /// The time in which it was made.
    #[serde(default)]
    pub clock: Clock,
    /// When it would have been cut off, in seconds: [`Experiment::limit`](crate::Experiment::limit). Older runs do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_seconds: Option<f64>,
    /// What arrived and when.
    #[serde(flatten)]
    pub done: Done,
    /// [`Done::goodput_mbit_s`].
    pub goodput_mbit_s: f64,
    /// What the emulator had counted when the last byte arrived.
    pub wire: Wire,
    /// What of that belongs to the transfer: from the sender's beginning to the last byte at the receiver. Of short transfers that arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<Carried>,
    /// CPU time spent meanwhile; none in virtual time.
    pub cpu: Option<Cpu>,
    /// Memory that the two processes needed.
    #[serde(default)]
    pub memory: Memory,
    /// How late the emulator delivered packets.
    pub lateness: Lateness,
    /// Whether the machine allowed a measurement.
    pub validity: Validity,
    /// The sender's own `done`, if it said any.
    pub sender: Option<Value>,
    /// The receiver's own `done`, if it said any.
    pub receiver: Option<Value>,
    /// What the emulator counted on each of several paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<Wire>,
    /// Under which conditions the run was made.
    #[serde(default)]
    pub made: Made,
}

impl Run {
    /// Whether another limit would have made no other run of it: it is this one, or all had arrived by then.
    pub(crate) fn is_within(&self, cell: &Cell, limit: Duration) -> bool {
        let by = (cell.workload.schedule() + limit).as_secs_f64();
        let has_arrived = self.done.complete && self.done.seconds <= by;
        has_arrived || self.limit_seconds == Some(limit.as_secs_f64())
    }

    /// Whether it was ended at the limit and has told nothing of its blocks or messages: then there is no number of them.
    pub fn is_silent(&self, cell: &Cell) -> bool {
        let Done {
            complete,
            blocks,
            late,
            ..
        } = &self.done;
        let has_blocks = matches!(
            cell.workload,
            Workload::Blocks { .. } | Workload::Live { .. }
        );
        has_blocks && !complete && blocks.is_none() && late.is_none()
    }

    /// IP bytes offered to the link per payload byte delivered.
    pub fn wire_ratio(&self) -> f64 {
        self.wire.forward_bytes as f64 / self.done.bytes as f64
    }

    /// Share of the sender's packets that found the queue full.
    pub fn queue_drop_share(&self) -> f64 {
        self.wire.queue_drops as f64 / self.wire.forward_packets.max(1) as f64
    }

    /// Seconds of CPU time of both processes per GB of payload.
    pub fn cpu_seconds_per_gb(&self) -> Option<f64> {
        let cpu = self.cpu?;
        Some((cpu.sender + cpu.receiver) * 1e9 / self.done.bytes as f64)
    }

    /// Seconds of CPU time of the whole machine per GB of payload, if the system tells.
    pub fn machine_seconds_per_gb(&self) -> Option<f64> {
        Some(self.cpu?.machine? * 1e9 / self.done.bytes as f64)
    }
}

/// The emulator's counters. Bytes are IP bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wire {
    /// Offered to the link by the sender, what the queue dropped included.
    pub forward_bytes: u64,
    /// Packets offered to the link by the sender.
    pub forward_packets: u64,
    /// Dropped because the queue was full.
    pub queue_drops: u64,
    /// Lost by the channel.
    pub losses: u64,
    /// The most that waited in the queue.
    pub queue_bytes_max: u64,
    /// How long 95 of 100 packets waited for the link at most, their own transmission included; of a varying link, for
    /// its rate to come back as well. Results from before it was counted have none.
    #[serde(default)]
    pub wait_p95_ms: Option<f64>,
    /// IP bytes offered to the way back by the receiver.
    pub back_bytes: u64,
    /// Packets offered to the way back by the receiver.
    pub back_packets: u64,
}

impl Wire {
    /// The sum over several paths; of what waited in queues, the largest.
    pub(crate) fn sum(paths: &[Wire]) -> Wire {
        let sum = |field: fn(&Wire) -> u64| paths.iter().map(field).sum();
        Wire {
            forward_bytes: sum(|one| one.forward_bytes),
            forward_packets: sum(|one| one.forward_packets),
            queue_drops: sum(|one| one.queue_drops),
            losses: sum(|one| one.losses),
            queue_bytes_max: (paths.iter().map(|one| one.queue_bytes_max))
                .max()
                .unwrap_or(0),
            wait_p95_ms: (paths.iter().filter_map(|one| one.wait_p95_ms)).reduce(f64::max),
            back_bytes: sum(|one| one.back_bytes),
            back_packets: sum(|one| one.back_packets),
        }
    }

    /// From what the link counted in both directions.
    pub(crate) fn new(forward: &Counters, back: &Counters, wait_p95: Time) -> Wire {
        Wire {
            wait_p95_ms: Some(wait_p95 as f64 / 1e6),
            forward_bytes: forward.offered_bytes,
            forward_packets: forward.offered_packets,
            queue_drops: forward.dropped_queue,
            losses: forward.dropped_loss,
            queue_bytes_max: forward.queue_bytes_max,
            back_bytes: back.offered_bytes,
            back_packets: back.offered_packets,
        }
    }
}

/// CPU time in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// The sender's process from start to end.
    pub sender: f64,
    /// The receiver's process from start to end.
    pub receiver: f64,
    /// The emulator's thread. The kernel does most of a TCP receiver's work there.
    pub emulator: f64,
    /// The whole machine, if the system tells.
    pub machine: Option<f64>,
    /// Processors, on average, that were busy with something else.
    pub others: Option<f64>,
    /// Seconds that the hypervisor took away.
    pub stolen: Option<f64>,
}

/// The most memory that the processes were seen to have resident, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The sender's process.
    pub sender: Option<u64>,
    /// The receiver's process.
    pub receiver: Option<u64>,
}

/// How long after their due time packets were delivered, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    /// Mean lateness.
    pub mean_ms: f64,
    /// The lateness that 99 of 100 packets did not exceed.
    pub p99_ms: f64,
    /// Longest lateness.
    pub max_ms: f64,
}

impl Lateness {
    /// The worst of several links.
    pub(crate) fn worst(links: impl Iterator<Item = Lateness>) -> Lateness {
        links.fold(Lateness::default(), |worst, one| Lateness {
            mean_ms: worst.mean_ms.max(one.mean_ms),
            p99_ms: worst.p99_ms.max(one.p99_ms),
            max_ms: worst.max_ms.max(one.max_ms),
        })
    }
}

impl From<&sphinx_link::front::Lateness> for Lateness {
    fn from(late: &sphinx_link::front::Lateness) -> Lateness {
        let ms = |span: Duration| span.as_secs_f64() * 1e3;
        Lateness {
            mean_ms: ms(late.mean()),
            p99_ms: ms(late.quantile(0.99)),
            max_ms: ms(late.max()),
        }
    }
}

/// Whether a run may be quoted; the greater, the less so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Validity {
    /// The run may be quoted.
    Valid,
    /// With care: something else was using the machine.
    Noisy,
    /// No: the emulator was starved, so that the link was another one.
    Starved,
}

impl Validity {
    /// A run is starved when one packet in a hundred is later than this.
    pub const LATENESS_P99_MS_MAX: f64 = 1.0;
    /// A run is noisy when others use more than this many processors.
    pub const OTHERS_MAX: f64 = 0.3;

    /// Judges a run. Others do not disturb one that goes before them (`real_time`), as long as the emulator is in time.
    pub fn judge(lateness: &Lateness, cpu: &Cpu, real_time: bool) -> Validity {
        if lateness.p99_ms > Validity::LATENESS_P99_MS_MAX {
            Validity::Starved
        } else if !real_time
            && cpu
                .others
                .is_some_and(|others| others > Validity::OTHERS_MAX)
        {
            Validity::Noisy
        } else {
            Validity::Valid
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A run at 150 Mbit/s.
    pub(crate) fn example(contestant: &str, seed: u64) -> Run {
        Run {
            contestant: contestant.into(),
            cell: "r10-l6".into(),
            seed,
            repetition: 0,
            settings: "x 1".into(),
            description: "a link".into(),
            details: String::new(),
            clock: Clock::Real,
            limit_seconds: None,
            done: Done {
                bytes: 50_000_000,
                seconds: 8.0 / 3.0,
                complete: true,
                ..Done::default()
            },
            goodput_mbit_s: 150.0,
            carried: None,
            wire: Wire {
                forward_bytes: 60_000_000,
                forward_packets: 40_000,
                queue_drops: 400,
                losses: 2_400,
                queue_bytes_max: 250_000,
                wait_p95_ms: Some(12.5),
                back_bytes: 1_000_000,
                back_packets: 20_000,
            },
            cpu: Some(Cpu {
                sender: 0.5,
                receiver: 0.25,
                emulator: 0.4,
                machine: Some(1.5),
                others: Some(0.1),
                stolen: Some(0.0),
            }),
            memory: Memory::default(),
            lateness: Lateness {
                mean_ms: 0.02,
                p99_ms: 0.1,
                max_ms: 1.0,
            },
            validity: Validity::Valid,
            sender: None,
            receiver: None,
            paths: Vec::new(),
            made: Made::default(),
        }
    }

    #[test]
    fn ratios() {
        let run = example("x", 1);
        assert!((run.wire_ratio() - 1.2).abs() < 1e-12);
        assert!((run.queue_drop_share() - 0.01).abs() < 1e-12);
        assert_eq!(run.cpu_seconds_per_gb(), Some(15.0));
        assert_eq!(run.machine_seconds_per_gb(), Some(30.0));
    }

    #[test]
    fn a_starved_emulator_invalidates() {
        let Run {
            mut lateness, cpu, ..
        } = example("x", 1);
        let mut cpu = cpu.unwrap();
        assert_eq!(Validity::judge(&lateness, &cpu, false), Validity::Valid);
        cpu.others = Some(0.5);
        assert_eq!(Validity::judge(&lateness, &cpu, false), Validity::Noisy);
        assert_eq!(Validity::judge(&lateness, &cpu, true), Validity::Valid);
        lateness.p99_ms = 1.01;
        assert_eq!(Validity::judge(&lateness, &cpu, true), Validity::Starved);
        cpu.others = None;
        lateness.p99_ms = 0.5;
        assert_eq!(Validity::judge(&lateness, &cpu, false), Validity::Valid);
    }
}
