//! Figures of merit, as `done`, `progress` and people get to see them (docs/figures-of-merit.md). They are
//! of the direction of the data, at both ends. What is not known is `None`.

use sphinx_transport::{Losses, Stats};

/// Which end of the data this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Sender,
    Receiver,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        }
    }
}

/// Below so many bytes the handshake and the farewell are most of what is sent, and a share of the data
/// that says so helps nobody.
const OVERHEAD_BYTES_MIN: u64 = 100_000;

/// Where the bytes beyond the data went, in bytes per byte of data. The parts make up the whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Overhead {
    pub(crate) total: f64,
    /// Repair symbols sent before loss was seen.
    pub(crate) ahead: f64,
    /// Repair symbols, or lost symbols again, sent after loss was seen.
    pub(crate) after_loss: f64,
    /// Headers of all packets, records around the data, the handshake, feedback, the farewell.
    pub(crate) headers: f64,
}

/// The statistics of a session, seen from one end of its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// `None` while it is not known which way data will go.
    pub(crate) role: Option<Role>,
    pub(crate) stats: Stats,
}

impl Figures {
    pub(crate) fn new(role: Role, stats: Stats) -> Self {
        Self {
            role: Some(role),
            stats,
        }
    }

    /// Losses of the packets that carry the data.
    pub(crate) fn losses(&self) -> Option<Losses> {
        match self.role? {
            Role::Sender => self.stats.losses_sent,
            Role::Receiver => self.stats.losses_received,
        }
    }

    /// Losses of the packets in the other direction, which mostly are acknowledgements.
    pub(crate) fn losses_return(&self) -> Option<Losses> {
        match self.role? {
            Role::Sender => self.stats.losses_received,
            Role::Receiver => self.stats.losses_sent,
        }
    }

    /// Repair symbols, ahead and after loss, per source symbol; only their sender knows.
    pub(crate) fn redundancy(&self) -> Option<f64> {
        let stats = &self.stats;
        let repairs = stats.repair_proactive + stats.repair_reactive;
        (self.role? == Role::Sender && stats.source_sent > 0)
            .then(|| repairs as f64 / stats.source_sent as f64)
    }

    /// Bits per second that the data may leave at; only its sender knows.
    pub(crate) fn pacing_bits(&self) -> Option<f64> {
        (self.role? == Role::Sender).then_some(self.stats.pacing_rate as f64 * 8.0)
    }

    /// Milliseconds; `None` before there is one.
    pub(crate) fn rtt_ms(&self) -> Option<f64> {
        Some(self.stats.rtt.as_secs_f64() * 1e3).filter(|ms| *ms > 0.0)
    }

    /// Shortest round trip in milliseconds; `None` before there is one.
    pub(crate) fn min_rtt_ms(&self) -> Option<f64> {
        Some(self.stats.min_rtt.as_secs_f64() * 1e3).filter(|ms| *ms > 0.0)
    }

    /// The window for the data at its receiver; `None` before one is known.
    pub(crate) fn window_bytes(&self) -> Option<u64> {
        let window = match self.role? {
            Role::Sender => self.stats.peer_window,
            Role::Receiver => self.stats.recv_window,
        };
        Some(window).filter(|bytes| *bytes > 0)
    }

    /// How long, in milliseconds, data waited for nothing but that window; only its sender knows.
    pub(crate) fn window_limited_ms(&self) -> Option<f64> {
        let limited = self.stats.window_limited;
        (self.role? == Role::Sender).then_some(limited.as_secs_f64() * 1e3)
    }

    /// IP packets of the sending end for each of so many messages; only it knows.
    pub(crate) fn packets_per(&self, messages: u64) -> Option<f64> {
        let packets = self.stats.wire_packets_sent as f64;
        (self.role? == Role::Sender && messages > 0).then(|| packets / messages as f64)
    }

    /// Bytes that have come through the streams of the data, records around the data included.
    pub(crate) fn stream_bytes(&self) -> u64 {
        match self.role {
            Some(Role::Sender) => self.stats.bytes_delivered,
            Some(Role::Receiver) => self.stats.bytes_received,
            None => 0,
        }
    }

    /// What was sent beyond the `bytes` of data that crossed the network; `None` at the receiving end, which
    /// does not see what was lost, and for little data.
    pub(crate) fn overhead(&self, bytes: u64) -> Option<Overhead> {
        let stats = &self.stats;
        if self.role? == Role::Receiver || bytes < OVERHEAD_BYTES_MIN || stats.wire_bytes_sent == 0
        {
            return None;
        }
        let share = |part: u64| part as f64 / bytes as f64;
        let (ahead, after_loss) = (
            share(stats.repair_proactive_bytes),
            share(stats.repair_reactive_bytes),
        );
        let total = share(stats.wire_bytes_sent) - 1.0;
        Some(Overhead {
            total,
            ahead,
            after_loss,
            headers: total - ahead - after_loss,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn losses(share: f64) -> Option<Losses> {
        Some(Losses {
            recent: share,
            mean: share,
            burst: 1.0,
        })
    }

    #[test]
    fn loss_is_that_of_the_data_at_both_ends() {
        let stats = Stats {
            losses_sent: losses(0.1),
            losses_received: losses(0.2),
            ..Stats::default()
        };
        let sender = Figures::new(Role::Sender, stats);
        assert_eq!(sender.losses(), losses(0.1));
        assert_eq!(sender.losses_return(), losses(0.2));
        let receiver = Figures::new(Role::Receiver, stats);
        assert_eq!(receiver.losses(), losses(0.2));
        assert_eq!(receiver.losses_return(), losses(0.1));
        let unknown = Figures { role: None, stats };
        assert_eq!((unknown.losses(), unknown.losses_return()), (None, None));
    }

    #[test]
    fn what_nobody_has_measured_is_not_known() {
        for role in [Role::Sender, Role::Receiver] {
            let figures = Figures::new(role, Stats::default());
            assert_eq!((figures.losses(), figures.rtt_ms()), (None, None));
            assert_eq!((figures.redundancy(), figures.min_rtt_ms()), (None, None));
            assert_eq!(figures.overhead(1 << 40), None);
        }
    }

    proptest! {
        /// Whatever a session did, its parts add up and nothing is negative.
        #[test]
        fn overhead_is_explained_by_its_parts(
            bytes in 1_u64..1 << 40,
            ahead in 0_u64..1 << 30,
            after in 0_u64..1 << 30,
            headers in 1_u64..1 << 30,
        ) {
            let stats = Stats {
                wire_bytes_sent: bytes + ahead + after + headers,
                repair_proactive_bytes: ahead,
                repair_reactive_bytes: after,
                ..Stats::default()
            };
            let figures = Figures::new(Role::Sender, stats);
            match figures.overhead(bytes) {
                None => prop_assert!(bytes < OVERHEAD_BYTES_MIN),
                Some(overhead) => {
                    let Overhead { total, ahead, after_loss, headers } = overhead;
                    prop_assert!(total > 0.0 && headers > -1e-9);
                    prop_assert!((total - ahead - after_loss - headers).abs() <= 1e-9 * total.max(1.0));
                }
            }
            prop_assert_eq!(Figures::new(Role::Receiver, stats).overhead(bytes), None);
        }
    }
}
