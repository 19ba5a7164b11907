//! What the uploads of one host share: its link. One address may be that of many hosts with a link each: then nothing is shared.

use std::net::IpAddr;

use crate::{FlowKey, MS, Time, table::Map};

/// Most hosts that are remembered, and most uploads of each.
const CLIENTS_MAX: usize = 4096;
const UPLOADS_MAX: usize = 64;
/// An upload that has been silent for so long has no share of its host's rate.
const SILENT_NS: Time = 1_000 * MS;
/// Uploads that have stood in different queues are taken for those of different hosts for so long.
const APART_NS: Time = 30_000 * MS;

/// What is seen of an upload when a packet of it comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// The upload's rate, and its rate while its packets wait, in bytes per second.
    pub(super) rates: (u64, u64),
    /// What this packet has waited, and what the last few have at least.
    pub(super) waited: (Time, Time),
    /// The shortest round trip.
    pub(super) rtt_min: Time,
    /// It still learns from others what its packets wait.
    pub(super) begins: bool,
}

#[derive(Clone, Copy, Debug)]
struct Share {
    key: FlowKey,
    seen: Seen,
    at: Time,
    /// By how much its last packet waited longer than it seemed, as packets of others show that came behind it.
    short: Time,
}

/// The uploads of one address.
#[derive(Debug, Default)]
struct Host {
    shares: Vec<Share>,
    /// When two of them were last seen to stand in different queues.
    apart: Option<Time>,
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

/// The uploads of all hosts, by address.
#[derive(Debug, Default)]
pub(crate) struct Clients(Map<IpAddr, Host>);

impl Clients {
    /// A packet of an upload comes.
    pub(super) fn share(&mut self, now: Time, key: FlowKey, seen: Seen) -> Common {
        let is_live = |it: &Share| now.saturating_sub(it.at) < SILENT_NS;
        let address = key.mobile.ip();
        let alone = Common {
            rate: seen.rates.0,
            link: seen.rates.1,
            short: 0,
            rtt_min: seen.rtt_min,
        };
        if self.0.len() >= CLIENTS_MAX && !self.0.contains_key(&address) {
            self.0.retain(|_, host| host.shares.iter().any(is_live));
            if self.0.len() >= CLIENTS_MAX {
                return alone;
            }
        }
        let host = self.0.entry(address).or_default();
        let mut common = alone;
        host.shares.retain(|it| {
            if it.key == key {
                common.short = it.short;
            }
            is_live(it) && it.key != key
        });
        for it in &mut host.shares {
            let before = (seen.waited.1).saturating_sub(now.saturating_sub(it.at));
            let short = before.saturating_sub(it.seen.waited.0);
            it.short = it.short.max(short);
            common.rtt_min = common.rtt_min.min(it.seen.rtt_min);
            // Of two that know what their packets wait, those of the other one have not waited in front of these.
            let knows = !seen.begins && !it.seen.begins;
            if knows && short > seen.rtt_min.max(it.seen.rtt_min) / 2 {
                host.apart = Some(now);
            }
        }
        if host.shares.len() < UPLOADS_MAX {
            host.shares.push(Share {
                key,
                seen,
                at: now,
                short: 0,
            });
        }
        if (host.apart).is_some_and(|at| now.saturating_sub(at) < APART_NS) {
            return alone;
        }
        let mean = |of: fn(&Seen) -> u64| {
            let all: u128 = (host.shares.iter())
                .map(|it| u128::from(of(&it.seen)))
                .sum();
            u64::try_from(all / host.shares.len() as u128).unwrap_or(u64::MAX)
        };
        (common.rate, common.link) = (mean(|it| it.rates.0), mean(|it| it.rates.1));
        common
    }
}
