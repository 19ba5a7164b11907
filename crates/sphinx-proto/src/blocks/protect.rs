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
    /// More data waits outside for window or credit.
    Window,
}

/// A flight that ends: nothing is left to send that is as urgent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tail {
    pub(crate) now: Time,
    pub(crate) idle: Idle,
    /// Of the link, bytes per second.
    pub(crate) capacity: u64,
    /// Blocks that are less urgent have not ended.
    pub(crate) urgency: Urgency,
    /// Where repairs of small blocks may ride in later packets.
    pub(crate) rides: Option<Rides>,
}

/// Protects flights that end.
#[derive(Debug, Default)]
pub(crate) struct Protection {
    bursts: BurstRepair,
    offered: Offered,
    pace: Pace,
}

impl Protection {
    /// Protects what is on its way of a flight that ends, once per block.
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
            // Repairs of a window say nothing about the symbols behind them.
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
