//! How `--agent ack-cc` is written.

use std::fmt::Write;

use sphinx_pep::acks::{AckCc, Marks, Mode, RATIO_MAX, ReturnQueue};

use super::{ack_filter::queue_bytes, each};
use crate::units;

/// Reads the settings behind the name.
///
/// # Errors
///
/// Says what can be written.
pub(super) fn read(settings: &[&str]) -> Result<AckCc, String> {
    let (mut cc, mut rate, mut bytes) = (AckCc::default(), None, None);
    let has = |key: &str| settings.iter().any(|it| it.split('=').next() == Some(key));
    each(settings, |setting| {
        let named = |why: String| format!("{setting}: {why}");
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        match key {
            "rate" => rate = Some(units::rate(value).map_err(named)?),
            "queue" => bytes = Some(units::size_positive(value).map_err(named)?),
            "mark" => {
                let time = units::duration_positive(value).map_err(named)?;
                cc.mark_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            }
            "max" => {
                let most = value.parse().ok();
                let most = most.filter(|most| (2..=RATIO_MAX).contains(most));
                cc.most = most.ok_or_else(|| named(format!("write 2 to {RATIO_MAX}")))?;
            }
            "marks" => {
                cc.marks = match value {
                    "own" => Marks::Own,
                    "tell" => Marks::Tell,
                    "hear" => Marks::Hear,
                    _ => return Err(named("write own, tell or hear".to_owned())),
                };
            }
            _ => {
                let keys = "rate=RATE, queue=SIZE, mark=TIME, max=N, marks=own|tell|hear";
                return Err(named(format!("the keys are {keys}")));
            }
        }
        Ok(())
    })?;
    cc.queue = rate.map(|bits_per_second| ReturnQueue {
        bits_per_second,
        bytes: queue_bytes(bits_per_second, bytes),
        acks_first: false,
        mode: Mode::Keep,
    });
    match (rate, bytes, cc.marks) {
        (None, Some(_), _) => Err("queue: is for the queue of rate=RATE".to_owned()),
        (_, _, Marks::Hear) if has("mark") => {
            Err("mark: is for the machine that has the queue, and tells (marks=tell)".to_owned())
        }
        (_, _, Marks::Tell) if has("max") => {
            Err("max: is for the machine that hears of marks (marks=hear)".to_owned())
        }
        _ => Ok(cc),
    }
}

/// The settings as `--agent` reads them.
pub(super) fn written(cc: &AckCc) -> String {
    let (mark, most) = (cc.mark_ns / 1000, cc.most);
    let mut text = match cc.marks {
        Marks::Own => format!("ack-cc:mark={mark}us,max={most}"),
        Marks::Tell => format!("ack-cc:marks=tell,mark={mark}us"),
        Marks::Hear => format!("ack-cc:marks=hear,max={most}"),
    };
    if let Some(queue) = cc.queue {
        let (rate, bytes) = (queue.bits_per_second, queue.bytes);
        // Writing into a string does not fail.
        let _ = write!(text, ",rate={rate}bit,queue={bytes}B");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<AckCc, String> {
        read(&text.split(',').collect::<Vec<_>>())
    }

    #[test]
    fn what_can_be_written() {
        let all = parse("rate=28kbit,queue=4kB,mark=80ms,max=9").expect("all keys");
        assert_eq!((all.mark_ns, all.most), (80_000_000, 9));
        let queue = all.queue.expect("a rate");
        assert_eq!((queue.bits_per_second, queue.bytes), (28_000, 4000));
        let text = written(&all);
        assert_eq!(parse(text.trim_start_matches("ack-cc:")), Ok(all));
        for text in [
            "marks=tell,mark=80ms,rate=28kbit",
            "marks=hear,max=9",
            "marks=own",
        ] {
            let cc = parse(text).expect(text);
            let again = written(&cc);
            assert_eq!(parse(again.trim_start_matches("ack-cc:")), Ok(cc), "{text}");
        }
        for (text, reason) in [
            ("marks=both", "own, tell or hear"),
            (
                "marks=hear,mark=9ms",
                "mark: is for the machine that has the queue",
            ),
            ("marks=tell,max=9", "max: is for the machine that hears"),
            ("max=1", "2 to 100"),
            ("queue=4kB", "for the queue of rate"),
            ("mark=0ms", "mark=0ms"),
            ("mark", "mark"),
            ("every=3ms", "the keys are rate"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
