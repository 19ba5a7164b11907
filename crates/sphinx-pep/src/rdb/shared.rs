//! What flows have in common: where packets are lost, and how much more may be sent in all.

use std::net::IpAddr;

use super::{ACTIVE_NS, runs::Runs};
use crate::{Time, table::Map};

/// Most destinations that are remembered.
const DESTINATIONS_MAX: usize = 4096;
/// Copies that may be sent at once after a pause: what the rate gives in so many nanoseconds.
const BURST_NS: u128 = 100_000_000;
/// And in bytes at least, so that one bundle always fits.
const BURST_BYTES_MIN: u64 = 1500;

/// What all flows of an agent share: losses by destination, and the budget for copies.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    losses: Map<IpAddr, Losses>,
    budget: Budget,
}

/// The losses on the path to a host.
#[derive(Debug)]
struct Losses {
    /// When the last packet was lost.
    at: Time,
    runs: Runs,
}

impl Shared {
    /// A packet to this host was lost.
    pub(super) fn lost(&mut self, now: Time, host: IpAddr) {
        if self.losses.len() >= DESTINATIONS_MAX {
            self.losses
                .retain(|_, it| now.saturating_sub(it.at) < ACTIVE_NS);
            if self.losses.len() >= DESTINATIONS_MAX {
                return;
            }
        }
        let runs = Runs::default();
        let losses = self.losses.entry(host);
        losses.or_insert(Losses { at: now, runs }).at = now;
    }

    /// Of packets to this host, so many in a row were lost, which was [said](Shared::lost) already.
    pub(super) fn lost_in_a_row(&mut self, now: Time, host: IpAddr, run: u32) {
        if let Some(losses) = self.losses.get_mut(&host) {
            losses.runs.see(now, run);
        }
    }

    /// How many packets to this host are usually lost in a row, if several are.
    pub(super) fn usual_run(&self, now: Time, host: IpAddr) -> u32 {
        self.losses.get(&host).map_or(0, |it| it.runs.usual(now))
    }

    /// Whether packets to this host were lost lately.
    pub(super) fn loses(&self, now: Time, host: IpAddr) -> bool {
        let losses = self.losses.get(&host);
        losses.is_some_and(|it| now.saturating_sub(it.at) < ACTIVE_NS)
    }

    /// How many bytes may be copied now, at a rate in bits per second.
    pub(super) fn budget(&mut self, now: Time, rate: u64) -> u64 {
        self.budget.fill(now, rate);
        self.budget.bytes
    }

    /// Takes these bytes of copies from the budget.
    pub(super) fn spend(&mut self, bytes: u64) {
        self.budget.bytes = self.budget.bytes.saturating_sub(bytes);
    }
}

/// A token bucket, in bytes.
#[derive(Debug, Default)]
struct Budget {
    bytes: u64,
    filled: Option<Time>,
}

impl Budget {
    fn fill(&mut self, now: Time, rate: u64) {
        let worth =
            |ns: u128| u64::try_from(u128::from(rate) * ns / 8_000_000_000).unwrap_or(u64::MAX);
        let most = worth(BURST_NS).max(BURST_BYTES_MIN);
        let Some(filled) = self.filled else {
            (self.bytes, self.filled) = (most, Some(now));
            return;
        };
        let gained = worth(u128::from(now.saturating_sub(filled)));
        // The time that is worth less than a byte is left for the next call.
        let taken = u128::from(gained) * 8_000_000_000 / u128::from(rate.max(1));
        self.bytes = self.bytes.saturating_add(gained).min(most);
        self.filled = Some(filled.saturating_add(taken.try_into().unwrap_or(Time::MAX)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MS;

    #[test]
    fn no_more_than_the_rate_is_spent() {
        let mut shared = Shared::default();
        let mut spent = 0;
        // 1 Mbit/s for ten seconds.
        for n in 0..10_000 {
            if shared.budget(n * MS, 1_000_000) >= 300 {
                shared.spend(300);
                spent += 300;
            }
        }
        let most = 12_500 + 1_250_000;
        assert!(spent <= most && spent > most - 20_000, "{spent}");
    }

    #[test]
    fn losses_are_remembered_for_a_minute() {
        let mut shared = Shared::default();
        let host = |n: u32| IpAddr::from(n.to_be_bytes());
        shared.lost(0, host(1));
        assert!(shared.loses(ACTIVE_NS - 1, host(1)) && !shared.loses(0, host(2)));
        assert!(!shared.loses(ACTIVE_NS, host(1)));
        (0..10_000).for_each(|n| shared.lost(MS, host(n)));
        assert_eq!(shared.losses.len(), DESTINATIONS_MAX);
        shared.lost(ACTIVE_NS + MS, host(20_000));
        assert_eq!(shared.losses.len(), 1);
    }
}
