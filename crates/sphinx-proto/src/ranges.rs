//! Sets of numbers kept as inclusive ranges.

use std::collections::VecDeque;
use std::marker::PhantomData;

use crate::numbers::Ordinal;

/// A set of numbers as rising, disjoint, non-adjacent ranges. Insertion near the top is cheap.
#[derive(Debug, Clone)]
pub(crate) struct RangeSet<T> {
    ranges: VecDeque<(u64, u64)>,
    of: PhantomData<T>,
}

impl<T> Default for RangeSet<T> {
    fn default() -> Self {
        Self {
            ranges: VecDeque::new(),
            of: PhantomData,
        }
    }
}

impl<T: Ordinal> RangeSet<T> {
    /// Ranges, rising.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (T, T)> + '_ {
        let ranges = self.ranges.iter();
        ranges.map(|(low, high)| (T::from_u64(*low), T::from_u64(*high)))
    }

    /// Whether `value` is a member.
    pub(crate) fn contains(&self, value: T) -> bool {
        let value = value.to_u64();
        let i = self.first_ending_at_or_after(value);
        self.ranges.get(i).is_some_and(|r| r.0 <= value)
    }

    /// Add `low..=high` and hand every part that was not a member to `new`, rising.
    pub(crate) fn insert(&mut self, low: T, high: T, mut new: impl FnMut(T, T)) {
        debug_assert!(low <= high);
        let (low, high) = (low.to_u64(), high.to_u64());
        let mut new = |low, high| new(T::from_u64(low), T::from_u64(high));
        // Ranges that touch or overlap [low, high] are merged into one.
        let from = self.first_ending_at_or_after(low.saturating_sub(1));
        let (mut merged_low, mut merged_high) = (low, high);
        let mut next = Some(low);
        let mut to = from;
        while let Some(&(l, h)) = self.ranges.get(to) {
            if l > high.saturating_add(1) {
                break;
            }
            if let Some(n) = next {
                if l > n && n <= high {
                    new(n, high.min(l - 1));
                }
                next = h.checked_add(1).map(|after| after.max(n));
            }
            merged_low = merged_low.min(l);
            merged_high = merged_high.max(h);
            to += 1;
        }
        if let Some(n) = next
            && n <= high
        {
            new(n, high);
        }
        if to == from {
            self.ranges.insert(from, (merged_low, merged_high));
        } else {
            self.ranges[from] = (merged_low, merged_high);
            self.ranges.drain(from + 1..to);
        }
    }

    /// Add one value; whether it is new.
    #[inline]
    pub(crate) fn insert_one(&mut self, value: T) -> bool {
        // The common case: the successor of the largest member.
        if let Some(last) = self.ranges.back_mut()
            && last.1.checked_add(1) == Some(value.to_u64())
        {
            last.1 = value.to_u64();
            return true;
        }
        let mut added = false;
        self.insert(value, value, |_, _| added = true);
        added
    }

    /// Add so many values behind the largest member.
    pub(crate) fn extend(&mut self, count: u64) {
        if let Some(last) = self.ranges.back_mut() {
            last.1 = last.1.saturating_add(count);
        }
    }

    /// Members below `value`.
    pub(crate) fn len_below(&self, value: T) -> u64 {
        let value = value.to_u64();
        let below = self.ranges.iter().take_while(|range| range.0 < value);
        below.map(|(low, high)| value.min(high + 1) - low).sum()
    }

    /// Forget the lowest ranges until at most `limit` are left.
    pub(crate) fn truncate_low(&mut self, limit: usize) {
        // Hardly ever is there something to forget, and to be asked that is part of every packet.
        if self.ranges.len() > limit {
            self.ranges.drain(..self.ranges.len() - limit);
        }
    }

    /// Forget every member below `floor`.
    pub(crate) fn remove_below(&mut self, floor: T) {
        let floor = floor.to_u64();
        while let Some(first) = self.ranges.front_mut() {
            if first.1 < floor {
                self.ranges.pop_front();
            } else {
                first.0 = first.0.max(floor);
                return;
            }
        }
    }

    fn first_ending_at_or_after(&self, value: u64) -> usize {
        match self.ranges.back() {
            Some(last) if last.1 >= value => self.ranges.partition_point(|r| r.1 < value),
            _ => self.ranges.len(),
        }
    }
}

/// A set that fills from 0 upwards: all numbers below its base, and ranges of others above.
#[derive(Debug)]
pub(crate) struct Filling<T> {
    base: T,
    above: RangeSet<T>,
}

impl<T: Ordinal> Default for Filling<T> {
    fn default() -> Self {
        Self {
            base: T::from_u64(0),
            above: RangeSet::default(),
        }
    }
}

impl<T: Ordinal> Filling<T> {
    /// Every number below is a member, this one is not.
    pub(crate) fn base(&self) -> T {
        self.base
    }

    /// The members above, as rising ranges.
    pub(crate) fn above(&self) -> impl Iterator<Item = (T, T)> + '_ {
        self.above.iter()
    }

    /// Whether `value` is a member.
    pub(crate) fn contains(&self, value: T) -> bool {
        value < self.base || self.above.contains(value)
    }

    /// Members below `value`.
    pub(crate) fn len_below(&self, value: T) -> u64 {
        self.base.min(value).to_u64() + self.above.len_below(value)
    }

    /// Adds a number.
    pub(crate) fn insert(&mut self, value: T) {
        if value < self.base {
            return;
        }
        self.above.insert_one(value);
        let lowest = self.above.iter().next();
        if let Some((low, high)) = lowest
            && low <= self.base
        {
            self.base = T::from_u64(high.to_u64() + 1);
            self.above.remove_below(self.base);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set(inserts in prop::collection::vec((0u64..60, 0u64..12), 0..40), floor in 0u64..70) {
            let mut set = RangeSet::default();
            let mut model = BTreeSet::new();
            for (low, len) in inserts {
                let mut new = Vec::new();
                set.insert(low, low + len, |l, h| new.extend(l..=h));
                let expected: Vec<u64> =
                    (low..=low + len).filter(|v| !model.contains(v)).collect();
                prop_assert_eq!(new, expected);
                model.extend(low..=low + len);
            }
            let members: Vec<u64> = set.iter().flat_map(|(l, h)| l..=h).collect();
            prop_assert_eq!(&members, &model.iter().copied().collect::<Vec<_>>());
            let ranges: Vec<_> = set.iter().collect();
            prop_assert!(ranges.windows(2).all(|w| w[0].1 + 1 < w[1].0));
            prop_assert!((0..80).all(|v| set.contains(v) == model.contains(&v)));
            set.remove_below(floor);
            let members: Vec<u64> = set.iter().flat_map(|(l, h)| l..=h).collect();
            prop_assert_eq!(members, model.range(floor..).copied().collect::<Vec<_>>());
        }

        #[test]
        fn one_at_a_time(values in prop::collection::vec(0u64..50, 0..60)) {
            let mut set = RangeSet::default();
            let mut model = BTreeSet::new();
            for v in values {
                prop_assert_eq!(set.insert_one(v), model.insert(v));
            }
            prop_assert_eq!(set.iter().last().map(|r| r.1), model.last().copied());
        }
    }
}
