//! Rate control: how fast one path may be filled.
//!
//! One [`RateControl`] object serves one path. It is told every packet that counts against the
//! path's capacity and every SACK, and answers with a pacing rate and a window. It reads no clock
//! and draws no random number, so the same calls give the same answers.
//!
//! All byte counts are **IP bytes on the wire**: headers, repair and control packets included, so
//! that coding never takes more than its share of a link (RFC 9265, section 2). All rates are IP
//! bytes per second.
//!
//! | controller | rule | source |
//! | --- | --- | --- |
//! | [`Bbr`] | model of the link: rate, round trip, channel loss | draft-ietf-ccwg-bbr, own loss model |
//! | [`AimdEcn`] | window of blocks, +1 per round trip, halved on CE | the Sphinx paper, section 3.3 |
//! | [`Cubic`] | window that grows with the cube of the time since the last loss, × 0.7 on one | RFC 9438, RFC 9406 |
//! | [`Scavenger`] | window that yields to every queue | LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus), own loss model |
//! | [`Fixed`] | the rate that the user asked for | – |
//!
//! One may take another's place while packets are under way: it begins with what that one has found out
//! ([`Before`]), and hears nothing of packets that left before.
//!
//! A new one is a file here and a line in each of the tables of `kind.rs`; an application can bring its own
//! ([`CcKind::Own`]).

mod aimd;
mod bbr;
mod coupled;
mod cubic;
mod fixed;
mod jitter;
#[cfg(test)]
mod kernel_bbr;
mod kind;
mod limited;
mod loss;
#[cfg(test)]
mod low_latency;
#[cfg(test)]
mod neighbours;
mod path;
#[cfg(test)]
mod prague;
mod resume;
mod sampler;
mod scavenger;
mod startup;
#[cfg(test)]
mod testflows;
#[cfg(test)]
mod tests;

pub use crate::numbers::PacketNumber;
pub use crate::time::{Nanos, Time};
pub use aimd::AimdEcn;
pub use bbr::{Bbr, Phase};
pub use coupled::Couple;
pub(crate) use coupled::Window;
pub use cubic::Cubic;
pub use fixed::Fixed;
pub use kind::{CcKind, OwnController};
pub(crate) use limited::Limited;
pub(crate) use path::RotatingMin;
pub use scavenger::Scavenger;

use crate::config::PathMemory;

/// One millisecond.
pub(crate) const MS: Nanos = 1_000_000;
/// One second.
pub(crate) const SEC: Nanos = 1_000_000_000;

/// What one SACK told the sender about one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInfo {
    /// Packet number.
    pub pn: PacketNumber,
    /// Sender's clock when the packet was released.
    pub sent_at: Time,
    /// Size on the wire, IP header included.
    pub ip_bytes: u32,
}

/// Arrival of one packet on the receiver's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The packet: the largest packet number that this SACK newly acknowledges.
    pub pn: PacketNumber,
    /// Receiver's clock, any origin, when the kernel or the driver took the packet in. Differences
    /// between arrivals matter and steps of the clock are tolerated. Expected noise: 0.1 ms.
    pub received_at: Time,
}

/// Everything a controller learns from one SACK.
///
/// A packet is reported at most once: acknowledged or lost. A loss that turns out to be spurious
/// is reported as lost only.
#[derive(Clone, Copy, Debug)]
pub struct AckSummary<'a> {
    /// Sender's clock.
    pub now: Time,
    /// Packets acknowledged for the first time, in any order.
    pub acked: &'a [PacketInfo],
    /// Packets declared lost by this SACK, in any order.
    pub lost: &'a [PacketInfo],
    /// Round trip of the largest newly acknowledged packet, without the receiver's SACK delay.
    pub rtt_sample: Option<Nanos>,
    /// Smoothed round trip (RFC 9002, section 5.3); 0 before the first sample.
    pub srtt: Nanos,
    /// Arrival of the largest newly acknowledged packet, if the SACK carried its time.
    pub arrival: Option<Arrival>,
    /// Packets newly reported as carrying ECN-CE.
    pub ce_marked: u64,
    /// Whether packets leave as ECT(1), so that marks ask for the scalable response of RFC 9331.
    pub is_scalable: bool,
    /// Whether marks can be trusted: the path passed ECN validation (RFC 9000, section 13.4.2).
    pub ecn_capable: bool,
    /// IP bytes in flight once this SACK has been applied.
    pub bytes_in_flight: u64,
}

/// Decides how fast and how far ahead one path is filled.
///
/// Calls carry times that never go back. Packets that do not count against the window (pure SACKs)
/// are not reported. Limits may change in any call; read them again afterwards.
pub trait RateControl: Send {
    /// A packet was released. `bytes_in_flight` includes it. Packet numbers grow.
    fn on_sent(&mut self, now: Time, pn: PacketNumber, ip_bytes: u32, bytes_in_flight: u64);

    /// A SACK was processed. Also called with nothing acknowledged when a timer declares losses.
    fn on_ack(&mut self, ack: &AckSummary<'_>);

    /// The window and the pacer would have allowed another packet, but there was none to send.
    fn on_app_limited(&mut self, now: Time);

    /// Packets of `from` and later have left later than that, since the thread that sends them had no processor. When they
    /// arrive says less than the controller may believe.
    fn on_late(&mut self, _from: Time) {}

    /// Nothing has been acknowledged for at least three probe timeouts although three probes were
    /// sent (a blackout). May be repeated. Until something is acknowledged the controller allows probes only.
    fn on_persistent_loss(&mut self, now: Time);

    /// Rate at which packets may be released, IP bytes per second, at least 1.
    fn pacing_rate(&self) -> u64;

    /// IP bytes that may be in flight.
    fn cwnd(&self) -> u64;

    /// Estimated capacity of the link in IP bytes per second, channel losses included.
    fn bandwidth_estimate(&self) -> u64;

    /// Smallest round trip believed in, if one was measured.
    fn min_rtt(&self) -> Option<Nanos>;

    /// The estimated capacity, if it has been measured and is worth remembering.
    fn measured_rate(&self) -> Option<u64> {
        None
    }

    /// Whether it still looks for what the path carries, as it does at its beginning.
    fn is_starting(&self) -> bool {
        false
    }

    /// Whether it has a scalable response to marks (RFC 9331, section 4.3): only then may packets leave as ECT(1).
    fn can_scale(&self) -> bool {
        false
    }

    /// What was acknowledged between losses, in bytes, of a window that grows additively: such windows can be [coupled](Couple).
    fn between_losses(&self) -> Option<u64> {
        None
    }

    /// From now on its window grows by so many times of what it would alone.
    fn set_gain(&mut self, _gain: f64) {}

    /// From now on a full packet has this many IP bytes.
    fn set_packet_bytes(&mut self, _ip_bytes: u32) {}

    /// Name of the present phase, for traces.
    fn phase_name(&self) -> &'static str;
}

/// What the session knows about a path before its first packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CcParams {
    /// Size of a full packet, IP bytes.
    pub packet_bytes: u32,
    /// Packets per block, the step of [`AimdEcn`].
    pub block_packets: u32,
    /// Round trip that the handshake took.
    pub rtt: Option<Nanos>,
    /// What an earlier session on this path measured.
    pub memory: Option<PathMemory>,
    /// What the controller before it has found out, if there was one.
    pub before: Option<Before>,
}

/// What a controller has found out about the path, for the one that takes its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Before {
    /// Sender's clock.
    pub now: Time,
    /// Its [estimate](RateControl::bandwidth_estimate), IP bytes per second.
    pub rate: u64,
    /// Its [window](RateControl::cwnd), IP bytes.
    pub cwnd: u64,
    /// Smallest round trip.
    pub min_rtt: Nanos,
    /// Smoothed round trip.
    pub srtt: Nanos,
    /// Whether it was [still looking](RateControl::is_starting) for what the path carries.
    pub is_starting: bool,
}

impl Before {
    /// IP bytes that it had under way without a queue.
    pub fn window(&self) -> f64 {
        bytes_in(self.rate as f64, self.min_rtt).min(self.cwnd as f64)
    }
}

impl Default for CcParams {
    fn default() -> Self {
        Self {
            packet_bytes: 1500,
            block_packets: 100,
            rtt: None,
            memory: None,
            before: None,
        }
    }
}

/// Bytes per second, 0 if no time passed.
pub(crate) fn rate_of(bytes: f64, span: Nanos) -> f64 {
    if span == 0 {
        0.0
    } else {
        bytes * SEC as f64 / span as f64
    }
}

/// Bytes that `rate` carries in `span`.
pub(crate) fn bytes_in(rate: f64, span: Nanos) -> f64 {
    rate * span as f64 / SEC as f64
}

/// Time that `bytes` take at `rate`.
pub(crate) fn time_for(bytes: f64, rate: f64) -> Nanos {
    (bytes * SEC as f64 / rate.max(1.0)) as Nanos
}
