//! Datagrams of a flow that have arrived and wait for their time, or for others before them.

use std::collections::{BTreeMap, BTreeSet};

use super::Time;
use super::flows::Arrived;

/// By number, each with the time at which it is given out whatever is missing before it.
#[derive(Default)]
pub(crate) struct Waiting {
    datagrams: BTreeMap<u64, (Time, Arrived)>,
    dues: BTreeSet<(Time, u64)>,
}

impl Waiting {
    pub(crate) fn len(&self) -> usize {
        self.datagrams.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Adds a datagram; returns the one that had this number before.
    pub(crate) fn insert(&mut self, number: u64, due: Time, arrived: Arrived) -> Option<Arrived> {
        let (before, other) = self.datagrams.insert(number, (due, arrived)).unzip();
        if let Some(before) = before {
            self.dues.remove(&(before, number));
        }
        self.dues.insert((due, number));
        other
    }

    /// The lowest number.
    pub(crate) fn first_number(&self) -> Option<u64> {
        self.datagrams.first_key_value().map(|(number, _)| *number)
    }

    /// When the first of them is due, whichever that is: lives differ.
    pub(crate) fn first_due(&self) -> Option<Time> {
        self.dues.first().map(|(due, _)| *due)
    }

    /// The highest number that is due.
    pub(crate) fn last_due_number(&self, now: Time) -> Option<u64> {
        let due = self.dues.range(..=(now, u64::MAX));
        due.map(|(_, number)| *number).max()
    }

    /// Takes the datagram with the lowest number.
    pub(crate) fn pop_first(&mut self) -> Option<(u64, Arrived)> {
        let (number, (due, arrived)) = self.datagrams.pop_first()?;
        self.dues.remove(&(due, number));
        Some((number, arrived))
    }

    /// Takes the datagram that is due first, if it is due.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Arrived> {
        let &(due, number) = self.dues.first().filter(|(due, _)| *due <= now)?;
        self.dues.remove(&(due, number));
        self.datagrams.remove(&number).map(|(_, arrived)| arrived)
    }

    /// Takes all datagrams, by number.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Arrived> + use<> {
        self.dues.clear();
        let all = std::mem::take(&mut self.datagrams).into_values();
        all.map(|(_, arrived)| arrived)
    }
}
