//! What each path has of its own: keys, and which of the peer's packets have been opened.

use sphinx_proto::{PacketNumber, PathId};

use crate::keys::ReplayWindow;
use crate::protection::PacketProtection;

/// One path.
pub(super) struct Lane<P> {
    path: PathId,
    pub(super) protection: P,
    pub(super) replay: ReplayWindow,
}

/// The paths of a session; the first one stays although it may not be in use any more, as the others' keys come from it.
pub(super) struct Lanes<P>(Vec<Lane<P>>);

impl<P: PacketProtection> Lanes<P> {
    /// The first path.
    pub(super) fn new(protection: P) -> Self {
        Self(vec![Lane {
            path: PathId::FIRST,
            protection,
            replay: ReplayWindow::default(),
        }])
    }

    pub(super) fn first(&self) -> &P {
        &self.0[0].protection
    }

    pub(super) fn first_mut(&mut self) -> &mut P {
        &mut self.0[0].protection
    }

    /// The first path has other keys, with which nothing of what was sealed or opened so far counts.
    pub(super) fn begin_again(&mut self, protection: P) {
        *self = Self::new(protection);
    }

    /// That of this path, which is begun if need be; `None` if it cannot be. To be asked for paths only that the core has.
    pub(super) fn of(&mut self, path: PathId) -> Option<&mut Lane<P>> {
        let known = self.0.iter().position(|lane| lane.path == path);
        let at = match known {
            Some(at) => at,
            None => {
                let protection = self.first().of_path(path)?;
                self.0.push(Lane {
                    path,
                    protection,
                    replay: ReplayWindow::default(),
                });
                self.0.len() - 1
            }
        };
        self.0.get_mut(at)
    }

    /// The path is no more, and its id is never used again.
    pub(super) fn forget(&mut self, path: PathId) {
        self.0
            .retain(|lane| lane.path != path || path == PathId::FIRST);
    }

    /// Paths on which the peer is to be asked to acknowledge something.
    pub(super) fn wanting_answers(&self) -> impl Iterator<Item = PathId> {
        let lanes = self.0.iter();
        lanes
            .filter(|lane| lane.protection.wants_answer())
            .map(|lane| lane.path)
    }

    /// Tells which packets the peer has.
    pub(super) fn on_acked(&mut self, largest: impl Fn(PathId) -> Option<PacketNumber>) {
        for lane in &mut self.0 {
            if let Some(largest) = largest(lane.path) {
                lane.protection.acked(largest);
            }
        }
    }
}
