//! Proactive repair (ProFEC): what is sent ahead of loss, and how much.

use crate::config::Profile;
use crate::path::Monitor;
use crate::types::Urgency;
use crate::{BlockId, Time};

use super::Redundancy;
use super::coding;
use super::riding::{Pace, Rides};
use super::selector::{BurstRepair, Offered};
use super::store::{BlockStore, TxBlock};

/// Why there is nothing to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idle {
    /// The application has handed over nothing more.
    Application,
    /// The application has more data, which waits for the window or for the peer's credit.
    Window,
}

/// The end of a flight: every symbol of at least this urgency has left, so that no later one shows what is lost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tail {
    pub(crate) now: Time,
    pub(crate) idle: Idle,
    /// What the link carries, bytes per second.
    pub(crate) capacity: u64,
    /// The flight holds blocks of this urgency and of higher ones; less urgent blocks go on and are not protected here.
    pub(crate) urgency: Urgency,
    /// If given, repairs of small blocks may wait to share packets with later symbols.
    pub(crate) rides: Option<Rides>,
}

/// Adds proactive repair to the last blocks of a flight.
#[derive(Debug, Default)]
pub(crate) struct Protection {
    bursts: BurstRepair,
    offered: Offered,
    pace: Pace,
}

impl Protection {
    /// Decides on proactive repair for every incomplete block of the flight that has had none.
    pub(crate) fn protect_tail(
        &mut self,
        blocks: &mut BlockStore,
        redundancy: Redundancy,
        tail: Tail,
        monitor: &Monitor,
    ) {
        let Some(code) = redundancy.code else { return };
        let last = blocks.last_before(tail.urgency);
        let ended = tail.idle == Idle::Application && last.is_some_and(|block| block.tail);
        if redundancy.profile == Profile::Bulk && !ended {
            return;
        }
        let is_bare = |block: &TxBlock| {
            block.urgency <= tail.urgency && !block.protected && block.acked() < block.needed()
        };
        let bare = blocks.iter().filter(|(_, block)| is_bare(block));
        let (sequences, bytes): (Vec<BlockId>, Vec<u64>) =
            bare.map(|(at, block)| (at, block.bytes())).unzip();
        let bytes = bytes.into_iter().sum();
        if bytes == 0 {
            return;
        }
        let losses = monitor.of_flights();
        let spare = self.offered.spare(tail.now, bytes, tail.capacity);
        self.pace.note(tail.now);
        // Of a rateless code there is no new data that would tell a thin stream.
        let may_ride = |rides: &Rides| {
            self.pace.is_within(rides.wait) && !coding::is_rateless(redundancy.code)
        };
        let rides = tail.rides.filter(may_ride);
        for sequence in sequences {
            let Some(block) = blocks.get_mut(sequence) else {
                continue;
            };
            block.protected = true;
            // Repairs of a sliding window count among those that arrived, but do not cover the symbols that left after them.
            let needed = block.needed() + block.windowed - block.acked();
            let flight = (needed, block.expected());
            let mut repair = self
                .bursts
                .flight_repair(flight, losses, redundancy.epsilon, spare);
            if monitor.is_cold() {
                repair = repair.max(2);
            }
            if repair > 0 {
                block.shape = coding::shape(code, block, repair, losses, redundancy.epsilon);
                let riding = rides.map(|rides| (rides.of_block(block), rides.wait));
                match riding.filter(|(most, _)| *most > 0) {
                    Some((most, wait)) => {
                        let until = tail.now.saturating_add(wait);
                        blocks.owe_rides(sequence, repair.min(most), until);
                    }
                    None => blocks.owe(sequence, repair, true),
                }
            }
        }
    }
}
