//! How `--agent ack-filter` is written.

use std::fmt::Write;

use sphinx_pep::acks::{AckFilter, Mode, ReturnQueue};

use super::each;
use crate::units;

/// A queue that is not given a length holds what its rate carries in so many milliseconds, and at least so many bytes.
const QUEUE_MS: u64 = 200;
const QUEUE_BYTES_MIN: u64 = 16 << 10;
/// The longest interval: senders time out after 200 ms at the earliest, and receivers delay by 40 ms.
const EVERY_MS_MAX: u128 = 100;

/// Reads the settings behind the name.
///
/// # Errors
///
/// Says what can be written.
pub(super) fn read(settings: &[&str]) -> Result<AckFilter, String> {
    let (mut rate, mut bytes, mut every, mut mode, mut acks_first) = (None, None, None, None, None);
    each(settings, |setting| {
        let (key, value) = match setting.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (setting, None),
        };
        let named = |why: String| format!("{setting}: {why}");
        match (key, value) {
            ("rate", Some(value)) => rate = Some(units::rate(value).map_err(named)?),
            ("queue", Some(value)) => {
                bytes = Some(units::size_positive(value).map_err(named)?);
            }
            ("every", Some(value)) => every = Some(interval(value).map_err(named)?),
            ("acks-first", None) => acks_first = Some("acks-first"),
            ("conservative" | "aggressive" | "ns2", None) => {
                let new = match key {
                    "conservative" => (key.to_owned(), Mode::Conservative),
                    "aggressive" => (key.to_owned(), Mode::Aggressive),
                    _ => (key.to_owned(), Mode::Ns2),
                };
                if let Some((other, _)) = mode.replace(new) {
                    return Err(format!("{key}: there is {other} already"));
                }
            }
            _ => {
                return Err(named(
                    "the keys are rate=RATE, queue=SIZE, every=TIME, acks-first, and one of conservative, aggressive, ns2".to_owned(),
                ));
            }
        }
        Ok(())
    })?;
    let Some(bits_per_second) = rate else {
        let of_queue = [
            bytes.map(|_| "queue"),
            acks_first,
            mode.as_ref().map(|(name, _)| name.as_str()),
        ];
        if let Some(key) = of_queue.into_iter().flatten().next() {
            return Err(format!("{key}: is for the queue of rate=RATE"));
        }
        if every.is_none() {
            return Err(
                "only acknowledgements that wait can be dropped: with rate=RATE, slightly less than what the link carries, they wait \
                 here and not in the link's own queue; every=TIME lets one go in each interval, whatever the link is"
                    .to_owned(),
            );
        }
        return Ok(AckFilter {
            queue: None,
            every_ns: every,
        });
    };
    Ok(AckFilter {
        queue: Some(ReturnQueue {
            bits_per_second,
            bytes: queue_bytes(bits_per_second, bytes),
            acks_first: acks_first.is_some(),
            mode: mode.map_or(Mode::default(), |(_, mode)| mode),
        }),
        every_ns: every,
    })
}

/// What may wait for a link, of which perhaps somebody has said how much that is.
pub(super) fn queue_bytes(bits_per_second: u64, said: Option<u64>) -> usize {
    let carried = bits_per_second / 8 * QUEUE_MS / 1000;
    let bytes = said.unwrap_or(carried.max(QUEUE_BYTES_MIN));
    usize::try_from(bytes).unwrap_or(usize::MAX / 4)
}

fn interval(text: &str) -> Result<u64, String> {
    let time = units::duration_positive(text)?;
    if time.as_millis() > EVERY_MS_MAX {
        return Err("100ms is the longest: senders would time out".into());
    }
    u64::try_from(time.as_nanos()).map_err(|error| error.to_string())
}

/// The settings as `--agent` reads them.
pub(super) fn written(filter: &AckFilter) -> String {
    let mut text = String::from("ack-filter:");
    // Writing into a string does not fail.
    if let Some(queue) = filter.queue {
        let mode = match queue.mode {
            Mode::Conservative => "conservative",
            Mode::Aggressive => "aggressive",
            // The queue drops no acknowledgements: it is one without a filter.
            Mode::Keep => "keep",
            Mode::Ns2 => "ns2",
        };
        let first = if queue.acks_first { ",acks-first" } else { "" };
        let (rate, bytes) = (queue.bits_per_second, queue.bytes);
        let _ = write!(text, "rate={rate}bit,queue={bytes}B{first},{mode}");
    }
    if let Some(every) = filter.every_ns {
        let comma = if filter.queue.is_some() { "," } else { "" };
        let _ = write!(text, "{comma}every={}us", every / 1000);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<AckFilter, String> {
        match text {
            "" => read(&[]),
            text => read(&text.split(',').collect::<Vec<_>>()),
        }
    }

    #[test]
    fn what_can_be_written() {
        let queue = ReturnQueue {
            bits_per_second: 480_000,
            bytes: 16_384,
            acks_first: false,
            mode: Mode::Conservative,
        };
        let plain = AckFilter {
            queue: Some(queue),
            every_ns: None,
        };
        assert_eq!(parse("rate=480kbit"), Ok(plain));
        let fast = parse("rate=80mbit").map(|it| it.queue.map(|it| it.bytes));
        assert_eq!(fast, Ok(Some(2_000_000)));
        let all = AckFilter {
            queue: Some(ReturnQueue {
                bytes: 5000,
                acks_first: true,
                mode: Mode::Aggressive,
                ..queue
            }),
            every_ns: Some(20_000_000),
        };
        let text = "every=20ms,aggressive,rate=480kbit,acks-first,queue=5kB";
        assert_eq!(parse(text), Ok(all));
        for filter in [plain, all, parse("every=1ms").expect("an interval")] {
            let text = written(&filter);
            let settings = text.strip_prefix("ack-filter:").expect("a name");
            assert_eq!(parse(settings), Ok(filter), "{text}");
        }
    }

    #[test]
    fn what_cannot() {
        for (text, reason) in [
            ("", "only acknowledgements that wait can be dropped"),
            ("acks-first", "acks-first: is for the queue of rate=RATE"),
            ("every=5ms,aggressive", "aggressive: is for the queue"),
            ("every=5ms,queue=5kB", "queue: is for the queue"),
            ("rate=0bit", "rate=0bit: "),
            ("rate=5", "rate=5: "),
            ("rate", "rate: the keys are"),
            ("every=0ms", "every=0ms: "),
            ("every=101ms", "100ms is the longest"),
            (
                "rate=1mbit,ns2,aggressive",
                "aggressive: there is ns2 already",
            ),
            ("rate=1mbit,rate=2mbit", "rate is there twice"),
            ("rate=1mbit,color=red", "color=red: the keys are"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
