//! What the fuzz targets of this crate run (`docs/fuzzing.md`).

use std::time::Duration;

use sphinx_fuzz::Input;
#[cfg(feature = "lab")]
use sphinx_lab::emulator::{Plan, Request};
#[cfg(feature = "lab")]
use sphinx_link::settings::LinkSettings;
#[cfg(feature = "lab")]
use sphinx_link::{IpPacket, Pair};

use crate::{text, units};

pub use crate::files::filter::fuzzing::filters;
pub use crate::files::fuzzing::{files, journal, paths, receivers, records};
pub use crate::perf::fuzzing::measurement;
pub use crate::ssh::fuzzing::ssh;
pub use crate::state::fuzzing::state;

/// Smallest number with too many digits to be understood.
const DIGITS_END: u64 = 1_000_000_000_000_000_000;

/// What people write for rates, sizes, durations and shares; and what is shown to them.
pub fn units(data: &[u8]) {
    let written = String::from_utf8_lossy(data);
    let _ = (units::rate(&written), units::fraction(&written));
    if let Ok(bytes) = units::size(&written) {
        // `DIGITS_END` and more have too many digits to be read again.
        let again = units::size(&format!("{bytes}B"));
        assert!(again == Ok(bytes) || bytes >= DIGITS_END);
    }
    if let Ok(time) = units::duration(&written) {
        let again = units::duration(&format!("{}ns", time.as_nanos()));
        assert!(again == Ok(time) || time.as_nanos() >= u128::from(DIGITS_END));
        assert_eq!(units::duration_positive(&written).is_ok(), !time.is_zero());
    }
    if let Ok(share) = units::fraction(&written) {
        assert!((0.0..=1.0).contains(&share));
    }
    let number = Input::new(data).any();
    for shown in [
        units::show_rate(f64::from_bits(number)),
        units::show_size(number),
        units::show_duration(Duration::from_nanos(number)),
        units::show_percent(f64::from_bits(number)),
    ] {
        assert!(!shown.is_empty());
    }
    let shown = text::printable(data);
    assert!(shown.chars().all(|c| !c.is_control()));
    assert_eq!(text::printable(shown.as_bytes()), shown);
}

/// What people write about an emulated link: a configuration file, a message to a running link, and,
/// line by line, settings, with the whole as the trace that any of them names.
#[cfg(feature = "lab")]
pub fn emulator(data: &[u8]) {
    let _ = serde_json::from_slice::<Request>(data);
    let written = String::from_utf8_lossy(data);
    let _ = Plan::from_toml(&written);
    let mut settings = LinkSettings::default();
    for line in written.lines() {
        let before = settings.clone();
        if settings.set_text(line).is_err() {
            assert_eq!(settings.forward, before.forward);
        }
        let read = |_: &str| Ok(written.clone().into_owned());
        let Ok(configs) = settings.configs(&read) else {
            settings = before;
            continue;
        };
        // The settings as they are shown make the same link again.
        let mut again = LinkSettings::default();
        for (key, value) in settings.forward.iter() {
            again.set(key, value).expect("a setting");
        }
        let [forward, _] = again.configs(&read).expect("what was understood before");
        assert_eq!(forward, configs[0]);
        Pair::<IpPacket>::new(configs).expect("what has been checked");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sphinx_fuzz::replay;

    use super::*;

    #[test]
    fn corpora() {
        replay("files", files);
        replay("filters", filters);
        replay("receivers", receivers);
        replay("records", records);
        replay("paths", paths);
        replay("journal", journal);
        replay("measurements", measurement);
        replay("ssh", ssh);
        replay("units", units);
        #[cfg(feature = "lab")]
        replay("emulator", emulator);
    }

    proptest! {
        #[cfg(feature = "lab")]
        #[test]
        fn random_settings(
            key in "(forward.|return.)?(mtu|policer|queue|priority|aqm|rate|loss|blackout|corrupt|jitter|rtt)",
            value in "(steps:|burst:|gilbert:|bytes:|periods:|packets:|trace:|codel:|red:|step:)?([0-9.]{1,12}(mbit|ms|s|p|kB|%)?[,=-]?){0,5}",
        ) {
            emulator(format!("{key}={value}\n5\n").as_bytes());
        }

        #[test]
        fn random(data in prop::collection::vec(any::<u8>(), 0..300)) {
            files(&data);
            receivers(&data);
            filters(&data);
            records(&data);
            paths(&data);
            journal(&data);
            measurement(&data);
            ssh(&data);
            units(&data);
            #[cfg(feature = "lab")]
            emulator(&data);
        }
    }
}
