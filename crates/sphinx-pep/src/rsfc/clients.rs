//! What the uploads of one host share: its link.

use std::net::IpAddr;

use crate::{FlowKey, MS, Time, table::Map};

/// Hosts that are remembered, and uploads of each.
const CLIENTS_MAX: usize = 4096;
const UPLOADS_MAX: usize = 64;
/// An upload that has been silent for so long takes nothing.
const SILENT_NS: Time = 1_000 * MS;

#[derive(Clone, Copy, Debug)]
struct Share {
    key: FlowKey,
    rate: u64,
    link: u64,
    /// What its last packet seemed to wait, and when it came.
    waited: Time,
    at: Time,
    /// By how much it waited longer, as packets of others show that came behind it.
    short: Time,
    rtt_min: Time,
}

/// What an upload knows by the others of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Common {
    /// Its share of what all of them have, in bytes per second.
    pub(super) rate: u64,
    /// The same of what all of them have while their packets wait.
    pub(super) link: u64,
    /// By how much its last packet waited longer than it seemed: of two packets from one queue, the one that comes later has waited longer by no more than the
    /// time between them.
    pub(super) short: Time,
    /// The shortest round trip of any: that of one which began behind a queue has the queue in it.
    pub(super) rtt_min: Time,
}

/// Of all flows of an agent.
#[derive(Debug, Default)]
pub(crate) struct Clients(Map<IpAddr, Vec<Share>>);

impl Clients {
    /// A packet of an upload comes. Rates: the upload's, and that while its packets wait, in bytes per second. What this packet has waited, and what the
    /// last few have at least. The shortest round trip.
    pub(super) fn share(
        &mut self,
        now: Time,
        key: FlowKey,
        (rate, link): (u64, u64),
        (waited, least): (Time, Time),
        rtt_min: Time,
    ) -> Common {
        let is_live = |it: &Share| now.saturating_sub(it.at) < SILENT_NS;
        let host = key.mobile.ip();
        let mut common = Common {
            rate,
            link,
            short: 0,
            rtt_min,
        };
        if self.0.len() >= CLIENTS_MAX && !self.0.contains_key(&host) {
            self.0.retain(|_, shares| shares.iter().any(is_live));
            if self.0.len() >= CLIENTS_MAX {
                return common;
            }
        }
        let shares = self.0.entry(host).or_default();
        shares.retain(|it| {
            if it.key == key {
                common.short = it.short;
            }
            is_live(it) && it.key != key
        });
        for it in shares.iter_mut() {
            let before = least.saturating_sub(now.saturating_sub(it.at));
            it.short = it.short.max(before.saturating_sub(it.waited));
            common.rtt_min = common.rtt_min.min(it.rtt_min);
        }
        if shares.len() < UPLOADS_MAX {
            shares.push(Share {
                key,
                rate,
                link,
                waited,
                at: now,
                short: 0,
                rtt_min,
            });
        }
        let mean = |of: fn(&Share) -> u64| {
            let all: u128 = shares.iter().map(|it| u128::from(of(it))).sum();
            u64::try_from(all / shares.len() as u128).unwrap_or(u64::MAX)
        };
        (common.rate, common.link) = (mean(|it| it.rate), mean(|it| it.link));
        common
    }
}
