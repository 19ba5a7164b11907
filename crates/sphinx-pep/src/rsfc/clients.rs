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
    /// What its packets waited when one came last.
    waited: Time,
    rtt_min: Time,
    at: Time,
}

/// What an upload knows by the others of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Common {
    /// Its share of what all of them have, in bytes per second.
    pub(super) rate: u64,
    /// The same of what all of them have while their packets wait.
    pub(super) link: u64,
    /// What its packets wait at least, as those of others have: a queue drains no faster than time passes.
    pub(super) waited: Time,
    /// The shortest round trip of any: that of one which began behind a queue has the queue in it.
    pub(super) rtt_min: Time,
}

/// Of all flows of an agent.
#[derive(Debug, Default)]
pub(crate) struct Clients(Map<IpAddr, Vec<Share>>);

impl Clients {
    /// An upload comes at this rate, and at another one while its packets wait, in bytes per second; they wait so long, and its shortest round trip is this.
    pub(super) fn share(
        &mut self,
        now: Time,
        key: FlowKey,
        (rate, link): (u64, u64),
        (waited, rtt_min): (Time, Time),
    ) -> Common {
        let is_live = |it: &Share| now.saturating_sub(it.at) < SILENT_NS;
        let host = key.mobile.ip();
        if self.0.len() >= CLIENTS_MAX && !self.0.contains_key(&host) {
            self.0.retain(|_, shares| shares.iter().any(is_live));
            if self.0.len() >= CLIENTS_MAX {
                return Common {
                    rate,
                    link,
                    waited: 0,
                    rtt_min,
                };
            }
        }
        let shares = self.0.entry(host).or_default();
        shares.retain(|it| is_live(it) && it.key != key);
        let others = shares.iter();
        let others = others.map(|it| it.waited.saturating_sub(now.saturating_sub(it.at)));
        let longest = others.max().unwrap_or(0);
        let shortest = shares.iter().map(|it| it.rtt_min).min();
        if shares.len() < UPLOADS_MAX {
            shares.push(Share {
                key,
                rate,
                link,
                waited,
                rtt_min,
                at: now,
            });
        }
        let mean = |of: fn(&Share) -> u64| {
            let all: u128 = shares.iter().map(|it| u128::from(of(it))).sum();
            u64::try_from(all / shares.len() as u128).unwrap_or(u64::MAX)
        };
        Common {
            rate: mean(|it| it.rate),
            link: mean(|it| it.link),
            waited: longest,
            rtt_min: shortest.map_or(rtt_min, |it| it.min(rtt_min)),
        }
    }
}
