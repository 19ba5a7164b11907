//! Offers run ahead of the files themselves, so that what the receiver has of a file is known when its turn comes.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::Stat;

use crate::files::descent::Identity;
use crate::files::offers::{Offered, SYNC_OFFERS_MAX, Series};
use crate::files::roots::Root;
use crate::files::source::{SourceId, SourceKey};
use crate::files::walk::{Step, Walk, attributes};
use crate::files::wire::{Attributes, Entry, put_entry};

/// Files offered and not sent yet: as many small ones as a long and fast path carries in a round trip.
const OFFERS_MAX: usize = 4096;
/// Most bytes of the paths of files that were offered and not sent yet.
const PATHS_BYTES_MAX: usize = 512 << 10;
/// Most bytes of their paths in a synchronization, where every file is offered ([`SYNC_OFFERS_MAX`]).
const SYNC_PATHS_BYTES_MAX: usize = 4 << 20;
/// Offers are made in this many batches: answers to the first ones come while the others are on their way.
const BATCHES: usize = 16;
/// Smaller files are not worth an offer where they are sent without waiting for the answer.
const OFFER_SIZE_MIN: u64 = 1 << 10;
/// Smaller files are not worth keeping in part.
const SOURCE_SIZE_MIN: u64 = 4 << 20;
/// More than the time between two ticks of a system's clock.
const SETTLED_AFTER: Duration = Duration::from_millis(20);

pub(super) struct Lookahead<'a> {
    walk: Walk<'a>,
    /// Files that were offered and not sent yet, in the order of sending.
    ahead: VecDeque<Ahead>,
    series: Series,
    path_bytes: usize,
    /// How many offers have been made.
    number: u64,
    ended: bool,
    /// Files with several names that were offered under one of them, where the others are only told.
    linked: Option<BTreeSet<Identity>>,
    limits: Limits,
}

/// Which files are offered, and how far ahead.
struct Limits {
    offers: usize,
    path_bytes: usize,
    /// Smaller files are not worth an offer.
    size_min: u64,
}

/// A file that was offered.
pub(super) struct Ahead {
    path: Vec<u8>,
    pub(super) number: u64,
    size: u64,
    attributes: Attributes,
}

impl Ahead {
    /// Whether the file is still what was offered.
    pub(super) fn is_like(&self, stat: &Stat) -> bool {
        u64::try_from(stat.st_size) == Ok(self.size) && attributes(stat) == self.attributes
    }
}

impl<'a> Lookahead<'a> {
    pub(super) fn new(roots: &'a [Root]) -> Self {
        let is_sync = roots.iter().any(|root| root.sync.is_some());
        Self {
            linked: is_sync.then(BTreeSet::new),
            walk: Walk::to_count(roots),
            ahead: VecDeque::new(),
            series: Series::default(),
            path_bytes: 0,
            number: 0,
            ended: false,
            limits: match is_sync {
                true => Limits {
                    offers: SYNC_OFFERS_MAX,
                    path_bytes: SYNC_PATHS_BYTES_MAX,
                    size_min: 0,
                },
                false => Limits {
                    offers: OFFERS_MAX,
                    path_bytes: PATHS_BYTES_MAX,
                    size_min: OFFER_SIZE_MIN,
                },
            },
        }
    }

    /// How many offers there were.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Whether there may be more to offer, and room for a batch of it beside the file whose turn it is.
    pub(super) fn has_room(&self) -> bool {
        let Limits {
            offers, path_bytes, ..
        } = self.limits;
        !self.ended
            && self.ahead.len() + 1 + offers / BATCHES <= offers
            && self.path_bytes + path_bytes / BATCHES <= path_bytes
    }

    /// Writes a batch of offers, for which there is room, and the question about them; true if there were any left.
    pub(super) fn top_up(&mut self, key: &SourceKey, out: &mut Vec<u8>) -> bool {
        let Limits {
            offers, path_bytes, ..
        } = self.limits;
        let before = self.number;
        let last = before + (offers / BATCHES) as u64;
        while !self.ended && self.number < last && self.path_bytes < path_bytes {
            self.step(key, out);
        }
        if self.number > before {
            put_entry(out, &Entry::Ask);
        }
        self.number > before
    }

    fn step(&mut self, key: &SourceKey, out: &mut Vec<u8>) {
        match self.walk.next() {
            Ok(Some(Step::File { name, stat, .. })) => {
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                let linked = self.linked.as_mut().filter(|_| stat.st_nlink > 1);
                let again = linked.is_some_and(|linked| !linked.insert(Identity::of_stat(&stat)));
                if again || size < self.limits.size_min {
                    return;
                }
                let path = self.walk.path_of(&name);
                self.number += 1;
                self.path_bytes += path.len();
                let offered = Offered {
                    path,
                    size,
                    attributes: attributes(&stat),
                    source: source(key, &stat),
                };
                put_entry(out, &Entry::Offer(self.series.offer(&offered)));
                self.ahead.push_back(Ahead {
                    path: offered.path,
                    number: self.number,
                    size,
                    attributes: offered.attributes,
                });
            }
            // What cannot be walked is told when its turn comes.
            Ok(None | Some(Step::Failed(_))) | Err(_) => self.ended = true,
            Ok(Some(_)) => {}
        }
    }

    /// The offer of a file whose turn has come. Those before it are over: what they offered has gone meanwhile.
    pub(super) fn take(&mut self, path: &[u8], size: u64) -> Option<Ahead> {
        if size < self.limits.size_min {
            return None;
        }
        let at = (self.ahead.iter()).position(|offered| offered.path == path)?;
        for gone in self.ahead.drain(..at) {
            self.path_bytes -= gone.path.len();
        }
        let offered = self.ahead.pop_front()?;
        self.path_bytes -= offered.path.len();
        Some(offered)
    }
}

/// The id of a file, if a part of it would be worth keeping. A file that has changed a moment ago has none: it may change again within one tick
/// of the system's clock, some milliseconds, and keep its time of change.
pub(in crate::files) fn source(key: &SourceKey, stat: &Stat) -> Option<SourceId> {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let changed = u64::try_from(stat.st_ctime).unwrap_or(0);
    let nanoseconds = u32::try_from(stat.st_ctime_nsec).unwrap_or(0);
    let changed = UNIX_EPOCH.checked_add(Duration::new(changed, nanoseconds))?;
    let settled = SystemTime::now() >= changed.checked_add(SETTLED_AFTER)?;
    (size >= SOURCE_SIZE_MIN && settled).then(|| key.file(stat))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_whose_turn_it_is_has_its_place() {
        let mut lookahead = Lookahead::new(&[]);
        let most = lookahead.limits.offers;
        let ahead = |number| Ahead {
            path: Vec::new(),
            number,
            size: 0,
            attributes: Attributes {
                mode: 0,
                mtime_s: 0,
                mtime_ns: 0,
            },
        };
        let batch = most / BATCHES;
        lookahead.ahead = (0..(most - batch) as u64).map(ahead).collect();
        assert!(!lookahead.has_room());
        lookahead.ahead.pop_front();
        assert!(lookahead.has_room());
        lookahead.ended = true;
        assert!(!lookahead.has_room());
    }
}
