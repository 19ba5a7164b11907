//! Numbers that count along an order of their own, each a type of its own: one of a packet is no use where one of a block is asked
//! for. The difference of two of them is a count, a plain `u64`.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A number that a [set of ranges](crate::ranges::RangeSet) may hold.
pub(crate) trait Ordinal: Copy + Ord {
    fn from_u64(number: u64) -> Self;
    fn to_u64(self) -> u64;
}

/// Indices of the streams of one kind, which [`StreamId`](crate::StreamId) makes.
impl Ordinal for u64 {
    fn from_u64(number: u64) -> Self {
        number
    }

    fn to_u64(self) -> u64 {
        self
    }
}

macro_rules! ordinal {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(u64);

        impl $name {
            /// The first number, 0.
            pub const ZERO: Self = Self(0);

            /// The number that `number` others precede.
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// How many numbers precede this one.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl Add<u64> for $name {
            type Output = Self;

            fn add(self, count: u64) -> Self {
                Self(self.0 + count)
            }
        }

        impl AddAssign<u64> for $name {
            fn add_assign(&mut self, count: u64) {
                self.0 += count;
            }
        }

        /// How far it is behind the other one, which is not larger.
        impl Sub for $name {
            type Output = u64;

            fn sub(self, other: Self) -> u64 {
                self.0 - other.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// Those that headers carry the low 32 bits of, and of which sets are kept.
macro_rules! truncated {
    ($name:ident) => {
        impl $name {
            /// Larger than any number in use.
            pub const MAX: Self = Self(u64::MAX);

            /// The number nearest to `expected` with these low 32 bits, which are all that headers carry (`expected` is one above
            /// the largest seen; compare RFC 9000 appendix A.3).
            pub fn expand(truncated: u32, expected: Self) -> Self {
                Self(expand(truncated, expected.0))
            }

            /// The low 32 bits of the number.
            pub const fn truncated(self) -> u32 {
                self.0 as u32
            }

            /// How far it is behind the other one, if that is not larger.
            pub(crate) fn checked_sub(self, other: Self) -> Option<u64> {
                self.0.checked_sub(other.0)
            }

            /// Those from this one on that are below `end`, rising.
            pub fn until(self, end: Self) -> impl DoubleEndedIterator<Item = Self> {
                (self.0..end.0).map(Self)
            }
        }

        impl Ordinal for $name {
            fn from_u64(number: u64) -> Self {
                Self(number)
            }

            fn to_u64(self) -> u64 {
                self.0
            }
        }
    };
}

ordinal! {
    /// A packet's place among those sent on one path in one direction, from 0. None is used twice (`docs/protocol.md` §4).
    PacketNumber
}
truncated!(PacketNumber);

ordinal! {
    /// A block's place among those that one end has sent, from 0. None is used twice (`docs/protocol.md` §5).
    BlockId
}
truncated!(BlockId);

ordinal! {
    /// How often a receiver of data had changed its window when it set this one (`docs/protocol.md` §7.1).
    WindowNumber
}

ordinal! {
    /// A connection id's place among those that one end has given out for a path (`docs/protocol.md` §10.3).
    CidSequence
}

ordinal! {
    /// A [job](crate::Job)'s place among those of a session.
    JobId
}

/// A path of a session, from 0 (`docs/protocol.md` §10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(u32);

impl PathId {
    /// The path of the handshake.
    pub const FIRST: Self = Self(0);

    /// The path with this number on the wire.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number of the path on the wire.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl PacketNumber {
    pub(crate) fn saturating_add(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }
}

/// The packet number that is lower by `count`.
impl Sub<u64> for PacketNumber {
    type Output = Self;

    fn sub(self, count: u64) -> Self {
        Self(self.0 - count)
    }
}

/// The 64-bit number nearest to `expected` whose low 32 bits are `truncated`.
fn expand(truncated: u32, expected: u64) -> u64 {
    const WINDOW: u64 = 1 << 32;
    let candidate = (expected & !(WINDOW - 1)) | u64::from(truncated);
    if candidate.saturating_add(WINDOW / 2) <= expected && candidate < u64::MAX - WINDOW {
        candidate + WINDOW
    } else if candidate > expected.saturating_add(WINDOW / 2) && candidate >= WINDOW {
        candidate - WINDOW
    } else {
        candidate
    }
}

/// The packet number of a test.
#[cfg(test)]
pub(crate) const fn pn(number: u64) -> PacketNumber {
    PacketNumber::new(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn expansion_at_the_ends() {
        assert_eq!(expand(u32::MAX, 0), u64::from(u32::MAX));
        assert_eq!(expand(u32::MAX, u64::MAX), u64::MAX);
        assert_eq!(expand(0, u64::MAX), u64::MAX << 32);
    }

    proptest! {
        #[test]
        fn expansion_is_nearest(expected in 0u64..1 << 40, distance in -(1i64 << 31) + 1..1i64 << 31) {
            if let Some(number) = expected.checked_add_signed(distance) {
                prop_assert_eq!(expand(number as u32, expected), number);
            }
        }
    }
}
