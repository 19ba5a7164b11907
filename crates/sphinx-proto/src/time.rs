//! Points in time, and the spans between them.

use std::ops::{Add, AddAssign, Sub};

/// A span of time in nanoseconds: how long something lasts, or how far two [points in time](Time) are apart.
pub type Nanos = u64;

/// A point in time: nanoseconds since the origin of a clock, of the caller's choice, that stays the same for a session.
///
/// What lies between two points is a span, plain [`Nanos`], which moves a point when added to it. Two points cannot be added, and a point
/// and a span cannot be compared. Arithmetic that leaves the range of 64 bits panics as that of integers does, in builds that check it.
///
/// A peer's clock has an origin of its own: of points on it only the spans between them say anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Time(Nanos);

impl Time {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// After anything that happens: never.
    pub const MAX: Self = Self(Nanos::MAX);

    /// The point so many nanoseconds after the origin.
    pub const fn from_nanos(since_origin: Nanos) -> Self {
        Self(since_origin)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> Nanos {
        self.0
    }

    /// The point `span` later, [`Self::MAX`] at most.
    pub const fn saturating_add(self, span: Nanos) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// The point `span` earlier, the origin if it were before that.
    pub const fn earlier_by(self, span: Nanos) -> Self {
        Self(self.0.saturating_sub(span))
    }

    /// How long after `earlier` it is, 0 if it is not.
    pub const fn saturating_sub(self, earlier: Self) -> Nanos {
        self.0.saturating_sub(earlier.0)
    }

    /// How long after `earlier` it is, if it is not before it.
    pub const fn checked_sub(self, earlier: Self) -> Option<Nanos> {
        self.0.checked_sub(earlier.0)
    }

    /// The difference to a point on another clock, modulo 2^64: as an `i64`, it may be negative.
    pub(crate) const fn wrapping_sub(self, other: Self) -> Nanos {
        self.0.wrapping_sub(other.0)
    }
}

impl Add<Nanos> for Time {
    type Output = Self;

    fn add(self, span: Nanos) -> Self {
        Self(self.0 + span)
    }
}

impl AddAssign<Nanos> for Time {
    fn add_assign(&mut self, span: Nanos) {
        self.0 += span;
    }
}

/// How long after `earlier` it is, which is not later.
impl Sub for Time {
    type Output = Nanos;

    fn sub(self, earlier: Self) -> Nanos {
        self.0 - earlier.0
    }
}

/// The point in time of a test.
#[cfg(test)]
pub(crate) const fn time(since_origin: Nanos) -> Time {
    Time(since_origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_and_spans() {
        let (early, late) = (time(30), time(100));
        assert_eq!((late - early, early + 70), (70, late));
        let mut now = early;
        now += 70;
        assert_eq!((now, now.as_nanos()), (late, 100));
        assert!(Time::ZERO < early && early < late && late < Time::MAX);
        assert_eq!(Time::default(), Time::ZERO);
    }

    #[test]
    fn what_would_leave_the_range_stays_at_its_end() {
        let (early, late) = (time(30), time(100));
        assert_eq!(late.saturating_sub(early), 70);
        assert_eq!(early.saturating_sub(late), 0);
        assert_eq!(
            (late.checked_sub(early), early.checked_sub(late)),
            (Some(70), None)
        );
        assert_eq!(
            (late.earlier_by(70), late.earlier_by(101)),
            (early, Time::ZERO)
        );
        assert_eq!(
            (early.saturating_add(70), early.saturating_add(Nanos::MAX)),
            (late, Time::MAX)
        );
    }

    #[test]
    fn clocks_of_any_origin_may_be_compared() {
        assert_eq!(time(100).wrapping_sub(time(30)) as i64, 70);
        assert_eq!(time(30).wrapping_sub(time(100)) as i64, -70);
    }
}
