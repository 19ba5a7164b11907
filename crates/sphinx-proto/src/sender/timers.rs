//! When the sender acts without being told to: loss by time, and probes of a silent path.

use super::Sender;
use crate::Nanos;
use crate::selector::{EPSILON_REACTIVE, flight_repair};

/// Longest wait between probes of a silent path, and of one that has been silent for long although it
/// used to lose little: it is interrupted, and a probe at a time finds out when it is not.
const PROBE_INTERVAL_MAX: Nanos = 500_000_000;
const PROBE_INTERVAL_LONG: Nanos = 1_000_000_000;
const INTERRUPTED_AFTER: u32 = 8;
const INTERRUPTED_PLR_MAX: f64 = 0.2;

/// How often the number of probes doubles while they are not answered.
const PROBE_DOUBLINGS: u32 = 2;

/// A path is dead, and not merely losing a burst, after so many probes without an answer …
const PERSISTENT_PROBES: u32 = 3;
/// … and so many probe timeouts of silence (compare RFC 9002 §7.6).
const PERSISTENT_PTOS: u64 = 3;

impl Sender {
    fn probe_deadline(&self, max_ack_delay: Nanos) -> Option<Nanos> {
        let waiting = !self.blocks.is_empty() && !self.has_symbol();
        if self.log.packets_in_flight() == 0 && !waiting {
            return None;
        }
        // A window that is still open must not hide that nothing comes back.
        let wait = self.probe_wait(max_ack_delay);
        let heard = self.last_news.saturating_add(wait).max(self.last_probe);
        Some(self.last_sent.min(heard).saturating_add(wait))
    }

    /// How long a symbol's fate may stay unknown; longer the longer nothing is heard.
    pub(super) fn probe_wait(&self, max_ack_delay: Nanos) -> Nanos {
        let wait = self.rtt.pto(max_ack_delay);
        // Losing one probe or its answer is nothing special on a lossy path.
        let doublings = self.probes_unanswered.saturating_sub(1).min(6);
        let longest = if self.is_interrupted() {
            PROBE_INTERVAL_LONG
        } else {
            PROBE_INTERVAL_MAX
        };
        (wait << doublings).min(longest.max(wait))
    }

    /// Whether the silence is not a matter of chance.
    fn is_interrupted(&self) -> bool {
        self.probes_unanswered >= INTERRUPTED_AFTER && self.monitor.plr() < INTERRUPTED_PLR_MAX
    }

    /// When [`Sender::on_timeout`] has something to do.
    pub(crate) fn timeout(&self, max_ack_delay: Nanos) -> Option<Nanos> {
        self.log
            .loss_deadline()
            .into_iter()
            .chain(self.probe_deadline(max_ack_delay))
            .chain(self.block_deadline(max_ack_delay))
            .min()
    }

    /// Loss by time, and the probe timer. Returns how many probes are to be sent beyond the window.
    pub(crate) fn on_timeout(&mut self, now: Nanos, max_ack_delay: Nanos) -> u32 {
        if self.log.loss_deadline().is_some_and(|at| at <= now) {
            self.detect_losses(now);
            if !self.lost_infos.is_empty() {
                self.acked_infos.clear();
                self.tell_rate_control(now, None, None, 0);
            }
        }
        self.compensate_overdue(now, max_ack_delay);
        if self.probe_deadline(max_ack_delay).is_none_or(|at| at > now) {
            return 0;
        }
        self.probes_unanswered += 1;
        self.last_probe = now;
        let silence = now.saturating_sub(self.last_news);
        if self.probes_unanswered >= PERSISTENT_PROBES
            && silence >= PERSISTENT_PTOS * self.rtt.pto(max_ack_delay)
        {
            self.cc.on_persistent_loss(now);
        }
        // Silence: no later block will tell of these.
        self.compensate_waiting(now, u64::MAX);
        self.queue_probes()
    }

    /// Repair for the oldest incomplete blocks that have been sent; one packet in any case, which
    /// will be a PING if there is nothing to repair.
    fn queue_probes(&mut self) -> u32 {
        // One burst of losses may swallow several: where the last ones have not been answered, more follow.
        let again = self
            .probes_unanswered
            .saturating_sub(1)
            .min(PROBE_DOUBLINGS);
        let most = if self.is_interrupted() { 1 } else { 2 << again };
        if !self.repairs.is_empty() || !self.unsent.is_empty() {
            // There are symbols to send anyway; they serve as probes.
            return most;
        }
        let plr = self.monitor.plr();
        let first = self.first_sequence;
        let mut probes = 0;
        for (index, block) in self.blocks.iter_mut().enumerate() {
            let Some(block) = block else { continue };
            // Whether the flight was lost or only its SACK is unknown: one packet if it was the
            // SACK, a second in case this one is lost too.
            let rows = match again {
                0 => flight_repair(1, 0, plr, EPSILON_REACTIVE).min(most),
                _ => most - probes,
            };
            block.due += rows;
            block.rounds = block.rounds.max(1);
            self.repairs.insert(first + index as u64);
            probes += rows;
            if probes >= most {
                break;
            }
        }
        probes.max(1)
    }
}
