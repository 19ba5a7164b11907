//! Settings of an agent that runs: KEY=VALUE, as the options of `sphx pep run` are written.

use serde_json::{Value, json};
use sphinx_pep::{Config, Profile, Radio};

use super::args::{self, RADIO_QUEUE_BYTES};
use crate::units;

/// The settings that result if all of these words can be followed.
///
/// # Errors
///
/// Says which word cannot be followed, and why.
pub(super) fn changed<'a>(
    mut config: Config,
    words: impl Iterator<Item = &'a str>,
) -> Result<Config, String> {
    let mut rate = config.radio.map(|radio| radio.bits_per_second);
    let mut queue = config.radio.map(|radio| radio.queue_bytes);
    for word in words {
        let refuse = |why: String| format!("{word}: {why}");
        let (key, value) =
            (word.split_once('=')).ok_or_else(|| refuse("write KEY=VALUE".to_owned()))?;
        match key {
            "agent" => config.profile = args::agent(value).map_err(refuse)?,
            "dry-run" => {
                let parsed = value.parse();
                config.dry_run = parsed.map_err(|_| refuse("write true or false".to_owned()))?;
            }
            "lag-max" => {
                let time = units::duration(value).map_err(refuse)?;
                config.lag_ns_max = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            }
            "radio-rate" if value == "off" => (rate, queue) = (None, None),
            "radio-rate" => rate = Some(args::radio_rate(value).map_err(refuse)?),
            "radio-queue" => {
                let bytes = units::size(value).map_err(refuse)?;
                queue = Some(usize::try_from(bytes).unwrap_or(usize::MAX));
            }
            _ => {
                let known = "agent, dry-run, lag-max, radio-rate, radio-queue";
                return Err(refuse(format!("the keys are {known}")));
            }
        }
    }
    config.radio = match (rate, queue) {
        (Some(bits_per_second), queue) => Some(Radio {
            bits_per_second,
            queue_bytes: queue.unwrap_or(RADIO_QUEUE_BYTES),
        }),
        (None, Some(_)) => return Err("radio-queue: there is no radio-rate".to_owned()),
        (None, None) => None,
    };
    Ok(config)
}

/// Settings as they are shown.
pub(super) fn shown(config: &Config) -> Value {
    let radio = config.radio;
    let profile: Profile = config.profile;
    json!({
        "profile": profile,
        "dry_run": config.dry_run,
        "lag_ms_max": config.lag_ns_max as f64 / 1e6,
        "radio_bits_per_second": radio.map(|radio| radio.bits_per_second),
        "radio_queue_bytes": radio.map(|radio| radio.queue_bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(config: Config, words: &str) -> Result<Config, String> {
        changed(config, words.split(' '))
    }

    #[test]
    fn all_words_are_followed_or_none() {
        let config = change(
            Config::default(),
            "agent=snoop:profile=ll lag-max=7ms radio-rate=5mbit dry-run=true",
        );
        let config = config.expect("possible settings");
        assert_eq!(
            (config.profile, config.lag_ns_max),
            (Profile::Ll, 7_000_000)
        );
        assert!(config.dry_run);
        let radio = config.radio.expect("a rate");
        assert_eq!(
            (radio.bits_per_second, radio.queue_bytes),
            (5_000_000, RADIO_QUEUE_BYTES)
        );
        let smaller = change(config, "radio-queue=10kB").expect("possible settings");
        let radio = smaller.radio.expect("a rate");
        assert_eq!(
            (radio.bits_per_second, radio.queue_bytes),
            (5_000_000, 10_000)
        );
        let off = change(smaller, "radio-rate=off").expect("possible settings");
        assert_eq!(off.radio, None);
        for (words, reason) in [
            ("lag-max=7ms color=red", "color=red: the keys are"),
            ("lag-max", "KEY=VALUE"),
            ("lag-max=7", "lag-max=7"),
            ("radio-rate=0mbit", "radio-rate=0mbit"),
            ("radio-queue=10kB", "no radio-rate"),
            ("dry-run=maybe", "true or false"),
            ("agent=split", "write snoop"),
        ] {
            let error = change(Config::default(), words).expect_err(words);
            assert!(error.contains(reason), "{words}: {error}");
        }
    }
}
