//! Settings of an agent that runs: KEY=VALUE, as the options of `sphx pep run` are written.

use serde_json::{Value, json};
use sphinx_pep::{Config, Match, Radio};

use super::args::{self, RADIO_QUEUE_BYTES};
use super::stage::{self, Stages};
use crate::units;

/// The settings that result if all of these words can be followed.
///
/// # Errors
///
/// Says which word cannot be followed, and why.
pub(super) fn changed<'a>(
    config: &Config,
    words: impl Iterator<Item = &'a str>,
) -> Result<Config, String> {
    let mut config = config.clone();
    let mut matches: Option<Vec<Match>> = None;
    let mut chosen = Vec::new();
    let mut rate = config.radio.map(|radio| radio.bits_per_second);
    let mut queue = config.radio.map(|radio| radio.queue_bytes);
    for word in words {
        let refuse = |why: String| format!("{word}: {why}");
        let (key, value) =
            (word.split_once('=')).ok_or_else(|| refuse("write KEY=VALUE".to_owned()))?;
        match key {
            // What is said once replaces what was, and further ones are added; so for `match`.
            "agent" => chosen.push(stage::read(value).map_err(refuse)?),
            "dry-run" => {
                let parsed = value.parse();
                config.dry_run = parsed.map_err(|_| refuse("write true or false".to_owned()))?;
            }
            "lag-max" => {
                let time = units::duration(value).map_err(refuse)?;
                config.lag_ns_max = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            }
            "match" if value == "any" => matches = Some(Vec::new()),
            "match" => {
                let read: Match = value.parse().map_err(|why| refuse(format!("{why}")))?;
                matches.get_or_insert_default().push(read);
            }
            "radio-rate" if value == "off" => (rate, queue) = (None, None),
            "radio-rate" => rate = Some(args::radio_rate(value).map_err(refuse)?),
            "radio-queue" => {
                let bytes = units::size(value).map_err(refuse)?;
                queue = Some(usize::try_from(bytes).unwrap_or(usize::MAX));
            }
            "repair-dscp" if value == "own" => config.repair_dscp = None,
            "repair-dscp" => {
                let dscp = value.parse().ok().filter(|dscp| *dscp < 64);
                let why = || refuse("write 0 to 63, or own".to_owned());
                config.repair_dscp = Some(dscp.ok_or_else(why)?);
            }
            _ => {
                let known = "agent, dry-run, lag-max, match, radio-queue, radio-rate, repair-dscp";
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
    config.matches = matches.unwrap_or(config.matches);
    if !chosen.is_empty() {
        config = Stages::together(&chosen)?.set(config);
    }
    stage::check(&config)?;
    Ok(config)
}

/// Settings as `sphx pep show` and `sphx pep set` show them.
pub(super) fn shown(config: &Config) -> Value {
    let radio = config.radio;
    json!({
        "agent": Stages::of(config).to_string(),
        "dry_run": config.dry_run,
        "matches": config.matches.iter().map(Match::to_string).collect::<Vec<_>>(),
        "lag_ms_max": config.lag_ns_max as f64 / 1e6,
        "radio_bits_per_second": radio.map(|radio| radio.bits_per_second),
        "radio_queue_bytes": radio.map(|radio| radio.queue_bytes),
        "repair_dscp": config.repair_dscp,
    })
}

#[cfg(test)]
mod tests {
    use sphinx_pep::{Profile, Stage};

    use super::*;

    fn change(config: &Config, words: &str) -> Result<Config, String> {
        changed(config, words.split(' '))
    }

    #[test]
    fn all_words_are_followed_or_none() {
        let config = change(
            &Config::default(),
            "agent=snoop:profile=ll lag-max=7ms radio-rate=5mbit dry-run=true",
        );
        let config = config.expect("possible settings");
        assert_eq!(
            (config.stage, config.lag_ns_max),
            (Stage::Snoop(Profile::Ll), 7_000_000)
        );
        assert!(config.dry_run);
        let radio = config.radio.expect("a rate");
        assert_eq!(
            (radio.bits_per_second, radio.queue_bytes),
            (5_000_000, RADIO_QUEUE_BYTES)
        );
        let smaller = change(&config, "radio-queue=10kB").expect("possible settings");
        let radio = smaller.radio.expect("a rate");
        assert_eq!(
            (radio.bits_per_second, radio.queue_bytes),
            (5_000_000, 10_000)
        );
        let off = change(&smaller, "radio-rate=off").expect("possible settings");
        assert_eq!(off.radio, None);
        let words = [
            "match=tcp port 443",
            "match=port 80-81 and host fd00::/8",
            "repair-dscp=46",
        ];
        let narrow = changed(&off, words.into_iter()).expect("possible settings");
        let shown = shown(&narrow);
        assert_eq!(
            shown["matches"],
            json!(["port 443", "port 80-81 and host fd00::/8"])
        );
        assert_eq!(narrow.repair_dscp, Some(46));
        let again = change(&narrow, "match=any repair-dscp=own").expect("possible settings");
        assert_eq!((again.matches.len(), again.repair_dscp), (0, None));
        let both = change(&narrow, "agent=snoop agent=ack-filter:rate=1mbit");
        let both = both.expect("possible settings");
        assert!(both.ack_filter.is_some_and(|it| it.queue.is_some()));
        assert_eq!(both.stage, Stage::Snoop(Profile::Sack));
        let one = change(&both, "agent=rdb").expect("possible settings");
        assert_eq!(one.ack_filter, None);
        let error = change(&both, "radio-rate=1mbit").expect_err("two queues");
        assert!(error.contains("ack-filter: rate:"), "{error}");
        // Segments that come joined would not be looked at any more, and count as lost.
        let reports = Config {
            reports: true,
            ..Config::default()
        };
        let error = change(&reports, "agent=ack-filter:every=20ms").expect_err("no snoop");
        assert!(error.contains("agent=snoop as well"), "{error}");
        let both = change(&reports, "agent=ack-filter:every=20ms agent=snoop");
        assert!(both.is_ok_and(|it| it.reports && it.ack_filter.is_some()));
        for (words, reason) in [
            ("lag-max=7ms color=red", "color=red: the keys are"),
            ("lag-max", "KEY=VALUE"),
            ("lag-max=7", "lag-max=7"),
            ("radio-rate=0mbit", "radio-rate=0mbit"),
            ("radio-queue=10kB", "no radio-rate"),
            ("dry-run=maybe", "true or false"),
            ("agent=split", "write snoop"),
            ("agent=snoop agent=rdb", "one snoop or rdb"),
            ("agent=ack-filter", "only acknowledgements that wait"),
            ("agent=ack-cc", "ack-cc: rate: how long"),
            (
                "agent=ack-cc agent=ack-filter:every=9ms",
                "ack-cc: every: it is there",
            ),
            (
                "agent=ack-cc:rate=1mbit agent=ack-filter:rate=1mbit",
                "ack-cc: rate: there is that of ack-filter",
            ),
            (
                "radio-rate=1mbit agent=ack-cc:rate=1mbit",
                "ack-cc: rate: there is --radio-rate",
            ),
            ("match=udp", "write 'tcp port 443'"),
            ("repair-dscp=64", "0 to 63"),
        ] {
            let error = change(&Config::default(), words).expect_err(words);
            assert!(error.contains(reason), "{words}: {error}");
        }
    }
}
