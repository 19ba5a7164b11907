//! Which numbers of a flow are known of.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that are kept of a flow; beyond, the lowest gap is given up.
pub(crate) const RANGES_MAX: usize = 1024;
/// Ranges of all flows together, where there are many: each has an equal part, …
const RANGES_ALL: usize = 4 * RANGES_MAX;
/// … but at least so many.
const RANGES_MIN: usize = 32;

/// Ranges that are kept of one of so many flows: a peer that leaves gaps everywhere must not fill memory with what is known of them.
pub(crate) fn ranges_max(flows: usize) -> usize {
    (RANGES_ALL / flows.max(1)).clamp(RANGES_MIN, RANGES_MAX)
}

/// Numbers of a flow that have arrived, or will not. A range costs as much as a number.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// All numbers below are known of.
    floor: u64,
    /// Above it, where they begin and end; no two touch.
    ranges: BTreeMap<u64, u64>,
}

impl Numbers {
    /// Adds these: which of them are news. And the gap that is known of from now on as there are more ranges than `most`, if that is so.
    pub(crate) fn insert(
        &mut self,
        numbers: Range<u64>,
        most: usize,
    ) -> (Vec<Range<u64>>, Option<Range<u64>>) {
        let mut news = Vec::new();
        let Range { start, end } = numbers.start.max(self.floor)..numbers.end;
        if start >= end {
            return (news, None);
        }
        let before = self.ranges.range(..=start).next_back();
        let before = before.filter(|(_, before)| **before >= start);
        let begin = before.map_or(start, |(begin, _)| *begin);
        let touched = self.ranges.range(begin..=end);
        let touched: Vec<_> = touched.map(|(low, high)| (*low, *high)).collect();
        let (mut at, mut last) = (start, end);
        for (low, high) in touched {
            self.ranges.remove(&low);
            if low > at {
                news.push(at..low.min(end));
            }
            at = at.max(high);
            last = last.max(high);
        }
        if at < end {
            news.push(at..end);
        }
        if begin <= self.floor {
            self.floor = last;
        } else {
            self.ranges.insert(begin, last);
        }
        let mut given_up = None;
        if self.ranges.len() > most
            && let Some((begin, end)) = self.ranges.pop_first()
        {
            given_up = Some(self.floor..begin);
            self.floor = end;
        }
        (news, given_up)
    }

    /// How many ranges are kept.
    #[cfg(test)]
    pub(super) fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Whether all of these numbers are known of.
    pub(crate) fn contains(&self, numbers: &Range<u64>) -> bool {
        let start = numbers.start.max(self.floor);
        let around = self.ranges.range(..=start).next_back();
        start >= numbers.end || around.is_some_and(|(_, end)| *end >= numbers.end)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_set(ranges in prop::collection::vec((0..200_u64, 0..20_u64), 0..60)) {
            let (mut numbers, mut set) = (Numbers::default(), BTreeSet::new());
            for (start, len) in ranges {
                let range = start..start + len;
                let is_known = range.clone().all(|number| set.contains(&number));
                prop_assert_eq!(numbers.contains(&range), is_known);
                let (news, given_up) = numbers.insert(range.clone(), RANGES_MAX);
                prop_assert_eq!(given_up, None);
                let news: Vec<u64> = news.into_iter().flatten().collect();
                let expected: Vec<u64> = range.filter(|number| set.insert(*number)).collect();
                prop_assert_eq!(news, expected);
                let mut ends = numbers.ranges.iter();
                prop_assert!(ends.all(|(low, high)| low < high && *low > numbers.floor));
            }
        }
    }

    #[test]
    fn the_lowest_gap_is_given_up_first() {
        let mut numbers = Numbers::default();
        for number in 1..=RANGES_MAX as u64 + 1 {
            let (news, given_up) = numbers.insert(2 * number..2 * number + 1, RANGES_MAX);
            assert_eq!(news.len(), 1);
            let is_too_many = number > RANGES_MAX as u64;
            assert_eq!(given_up, is_too_many.then_some(0..2));
        }
        assert_eq!(numbers.ranges.len(), RANGES_MAX);
        assert!(numbers.contains(&(0..3)) && numbers.insert(1..2, RANGES_MAX).0.is_empty());
        assert!(!numbers.contains(&(3..4)));
        let (all, _) = numbers.insert(0..u64::MAX, RANGES_MAX);
        assert_eq!(all.len(), RANGES_MAX + 1);
        assert!(numbers.contains(&(0..u64::MAX)) && numbers.ranges.is_empty());
    }
}
