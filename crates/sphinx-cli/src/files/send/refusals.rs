//! What a receiver leaves out of what has been sent.
//!
//! It may say so of anything, again and again, while nobody listens: only what still makes a difference is kept.

use crate::failure::{Outcome, protocol};

/// What has been sent and can still be refused.
#[derive(Debug, Default)]
pub(in crate::files) struct Refusals {
    /// Entries sent so far.
    entries: u64,
    /// The numbers of the directories that are open.
    directories: Vec<u64>,
    /// The receiver does not want the entry sent last.
    last: bool,
    /// Depth of an open directory whose remaining entries are refused, until `take` has told that.
    depth: Option<usize>,
}

/// What the receiver has refused and need not be sent any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::files) struct Unwanted {
    /// The rest of the entry sent last.
    pub(in crate::files) last: bool,
    /// What is still to come in the open directory of this depth (0 is the outermost).
    pub(in crate::files) depth: Option<usize>,
}

impl Refusals {
    /// Notes that an entry is sent. A directory is open from then on.
    pub(in crate::files) fn entry(&mut self, is_directory: bool) {
        self.entries += 1;
        self.last = false;
        if is_directory {
            self.directories.push(self.entries);
        }
    }

    /// The innermost directory ends.
    pub(in crate::files) fn leave(&mut self) {
        self.directories.pop();
        self.depth = self.depth.filter(|depth| *depth < self.directories.len());
    }

    /// The receiver leaves out the entry of this number.
    ///
    /// # Errors
    /// The receiver refuses an entry that was not sent.
    pub(in crate::files) fn refuse(&mut self, entry: u64) -> Outcome<()> {
        if entry == 0 || entry > self.entries {
            return Err(protocol("the receiver refuses what was not sent"));
        }
        self.last |= entry == self.entries;
        if let Ok(depth) = self.directories.binary_search(&entry) {
            self.depth = Some(self.depth.map_or(depth, |other| other.min(depth)));
        }
        Ok(())
    }

    /// What has been refused since the last call; a directory is reported once.
    pub(in crate::files) fn take(&mut self) -> Unwanted {
        Unwanted {
            last: self.last,
            depth: self.depth.take(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unwanted(last: bool, depth: Option<usize>) -> Unwanted {
        Unwanted { last, depth }
    }

    #[test]
    fn what_is_over_makes_no_difference() {
        let mut refusals = Refusals::default();
        assert!(refusals.refuse(1).is_err());
        // a/b/c, a/d
        refusals.entry(true);
        refusals.entry(true);
        refusals.entry(false);
        assert!(refusals.refuse(0).is_err() && refusals.refuse(4).is_err());
        refusals.refuse(3).unwrap();
        assert_eq!(refusals.take(), unwanted(true, None));
        refusals.leave();
        refusals.entry(false);
        for entry in [2, 3] {
            refusals.refuse(entry).unwrap();
        }
        assert_eq!(refusals.take(), unwanted(false, None));
        refusals.refuse(1).unwrap();
        assert_eq!(refusals.take(), unwanted(false, Some(0)));
        assert_eq!(refusals.take(), unwanted(false, None));
    }

    #[test]
    fn the_outermost_directory_counts_as_long_as_it_is_open() {
        let mut refusals = Refusals::default();
        refusals.entry(true);
        refusals.entry(true);
        for entry in [2, 1, 2] {
            refusals.refuse(entry).unwrap();
        }
        assert_eq!(refusals.take(), unwanted(true, Some(0)));
        refusals.refuse(2).unwrap();
        refusals.leave();
        // Another one is as deep as the one that has ended.
        refusals.entry(true);
        assert_eq!(refusals.take(), unwanted(false, None));
    }
}
