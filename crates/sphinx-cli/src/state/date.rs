//! Points in time as people write them: `2027-01-01`, or `2027-01-01T18:00:00Z`.

use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self(since.unwrap_or_default().as_secs())
    }

    /// The moment so many seconds later, at most the last of the year 9999.
    pub(crate) fn after(self, seconds: u64) -> Self {
        const LAST: u64 = 253_402_300_799;
        Self(self.0.saturating_add(seconds).min(LAST))
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        // A date without a time means midnight at its beginning.
        let full = match text.len() == "2027-01-01".len() {
            true => format!("{text}T00:00:00Z"),
            false => text.to_owned(),
        };
        let moment = OffsetDateTime::parse(&full, &Rfc3339).ok();
        let seconds = moment.and_then(|moment| u64::try_from(moment.unix_timestamp()).ok());
        seconds.map(Self).ok_or_else(|| {
            format!("'{text}' is no date: write 2027-01-01, or 2027-01-01T18:00:00Z")
        })
    }
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let moment = i64::try_from(self.0).ok();
        let moment = moment.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
        let text = moment.and_then(|moment| moment.format(&Rfc3339).ok());
        f.write_str(&text.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_and_written() {
        for (text, seconds) in [
            ("1970-01-01", 0),
            ("2027-01-01", 1_798_761_600),
            ("2027-01-01T18:00:00Z", 1_798_826_400),
            ("2027-01-01T18:00:00+02:00", 1_798_819_200),
        ] {
            assert_eq!(Moment::parse(text), Ok(Moment(seconds)), "{text}");
        }
        let moment = Moment(1_798_826_400);
        assert_eq!(moment.to_string(), "2027-01-01T18:00:00Z");
        assert_eq!(
            Moment::parse(&moment.after(u64::MAX).to_string()),
            Ok(moment.after(u64::MAX))
        );
        for wrong in [
            "",
            "2027",
            "2027-13-01",
            "tomorrow",
            "1969-01-01",
            "20270101",
            "2027-W01-1",
        ] {
            assert!(Moment::parse(wrong).is_err(), "{wrong}");
        }
    }
}
