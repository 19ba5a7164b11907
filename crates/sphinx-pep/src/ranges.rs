//! Ranges of positions in a stream.

/// Most ranges that are remembered: a receiver reports the newest ones first, and repeats others later.
const RANGES_MAX: usize = 128;

/// Disjoint ranges of positions, ascending.
#[derive(Debug, Default)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }

    /// The end of the last one.
    pub(crate) fn end(&self) -> Option<u64> {
        self.0.last().map(|range| range.1)
    }

    /// Adds a range; false if it was there already.
    pub(crate) fn add(&mut self, start: u64, end: u64) -> bool {
        let first = self.0.partition_point(|range| range.1 < start);
        let last = self.0.partition_point(|range| range.0 <= end);
        match self.0.get(first..last) {
            Some([]) | None => {
                if self.0.len() < RANGES_MAX {
                    self.0.insert(first, (start, end));
                    return true;
                }
                false
            }
            Some(touched) => {
                let joined = (
                    touched[0].0.min(start),
                    touched[touched.len() - 1].1.max(end),
                );
                let is_new = touched != [joined];
                self.0.splice(first..last, [joined]);
                is_new
            }
        }
    }

    /// Adds a range; if there is no room, the first one is forgotten for it.
    pub(crate) fn add_and_forget(&mut self, start: u64, end: u64) {
        if !self.add(start, end) && !self.gaps(start, end).is_empty() {
            self.0.remove(0);
            self.add(start, end);
        }
    }

    /// The parts of a range that are not here, ascending.
    pub(crate) fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let (mut gaps, mut at) = (Vec::new(), start);
        let first = self.0.partition_point(|range| range.1 <= start);
        for &(from, to) in &self.0[first..] {
            if from >= end {
                break;
            }
            if at < from {
                gaps.push((at, from));
            }
            at = to;
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }

    pub(crate) fn remove_below(&mut self, position: u64) {
        self.0.retain_mut(|range| {
            range.0 = range.0.max(position);
            range.0 < range.1
        });
    }

    pub(crate) fn contains(&self, position: u64) -> bool {
        let next = self.0.partition_point(|range| range.1 <= position);
        self.0.get(next).is_some_and(|range| range.0 <= position)
    }

    /// Bytes in ranges behind a position.
    pub(crate) fn bytes_behind(&self, position: u64) -> u64 {
        let behind = |range: &(u64, u64)| range.1.saturating_sub(range.0.max(position));
        self.0.iter().map(behind).sum()
    }

    /// What is missing between `start` and the last range.
    pub(crate) fn holes(&self, start: u64) -> impl Iterator<Item = (u64, u64)> {
        let mut at = start;
        self.0.iter().filter_map(move |range| {
            let hole = (at, range.0);
            at = at.max(range.1);
            (hole.0 < hole.1).then_some(hole)
        })
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_and_holes_are_between_them() {
        let mut ranges = Ranges::default();
        assert!(ranges.add(30, 40) && ranges.add(10, 20) && !ranges.add(12, 18));
        assert_eq!(ranges.holes(5).collect::<Vec<_>>(), [(5, 10), (20, 30)]);
        assert_eq!((ranges.bytes_behind(15), ranges.end()), (15, Some(40)));
        assert!(ranges.contains(10) && !ranges.contains(20) && ranges.contains(39));
        assert_eq!(ranges.gaps(5, 45), [(5, 10), (20, 30), (40, 45)]);
        assert_eq!(ranges.gaps(20, 30), [(20, 30)]);
        assert_eq!(
            (ranges.gaps(12, 20), ranges.gaps(15, 22)),
            (vec![], vec![(20, 22)])
        );
        assert!(ranges.add(20, 30));
        assert_eq!(ranges.holes(5).collect::<Vec<_>>(), [(5, 10)]);
        ranges.remove_below(35);
        assert_eq!(ranges.0, [(35, 40)]);
        for n in 0..1000 {
            ranges.add(100 + 2 * n, 101 + 2 * n);
        }
        assert_eq!(ranges.0.len(), RANGES_MAX);
    }
}
