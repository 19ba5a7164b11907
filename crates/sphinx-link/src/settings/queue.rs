//! Values about queues.

use sphinx_units as units;

use super::value::{bytes, gain, number};
use crate::{Aqm, CoDel, Depth, DualPi2, Policer, Red, Signal};

pub(super) fn policer(text: &str) -> Result<Policer, String> {
    let parts = text.split_once(',');
    let (rate, burst) = parts.ok_or("write RATE,BURST, such as 10mbit,30kB")?;
    Ok(Policer {
        bits_per_second: units::rate(rate)?,
        burst_bytes: bytes(burst)?,
    })
}

pub(super) fn depth(text: &str) -> Result<Depth, String> {
    let text = text.trim();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let count = &text[..text.len() - unit.len()];
    match unit.trim_start() {
        "p" | "packet" | "packets" => number(count).map(Depth::Packets),
        unit if unit.ends_with('B') => units::size(text).map(Depth::Bytes),
        "ns" | "us" | "µs" | "ms" | "s" | "m" | "min" => units::duration(text).map(Depth::Time),
        _ => Err("write 100p (packets), 250kB (bytes) or 50ms (of the present rate)".into()),
    }
}

pub(super) fn aqm(text: &str) -> Result<Aqm, String> {
    let (kind, list) = text.split_once(':').unwrap_or((text, ""));
    let mut parts = list
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let foreign = |part: &str| Err(format!("'{part}' is no part of {kind}"));
    match kind {
        "none" if list.is_empty() => Ok(Aqm::None),
        "codel" => {
            let mut codel = CoDel::default();
            for part in parts {
                match part.split_once('=') {
                    Some(("target", time)) => codel.target = units::duration(time)?,
                    Some(("interval", time)) => codel.interval = units::duration(time)?,
                    _ => match signal(part) {
                        Some(signal) => codel.signal = signal,
                        None => return foreign(part),
                    },
                }
            }
            Ok(Aqm::CoDel(codel))
        }
        "red" => {
            let (Some(min), Some(max)) = (parts.next(), parts.next()) else {
                return Err("write red:MIN,MAX, such as red:5ms,15ms".into());
            };
            let mut red = Red::new(depth(min)?, depth(max)?);
            for part in parts {
                match part.split_once('=') {
                    Some(("p", share)) => red.probability = units::fraction(share)?,
                    Some(("weight", share)) => red.weight = units::fraction(share)?,
                    _ => match signal(part) {
                        Some(signal) => red.signal = signal,
                        None => return foreign(part),
                    },
                }
            }
            Ok(Aqm::Red(red))
        }
        "step" => {
            let threshold = depth(parts.next().unwrap_or_default())?;
            // By default it only marks: a step is mostly used with scalable congestion control.
            let mut how = Signal::MarkOnly;
            for part in parts {
                match signal(part) {
                    Some(signal) => how = signal,
                    None => return foreign(part),
                }
            }
            Ok(Aqm::Step {
                threshold,
                signal: how,
            })
        }
        "dualpi2" => {
            let mut dual = DualPi2::default();
            for part in parts {
                match part.split_once('=') {
                    Some(("target", time)) => dual.target = units::duration(time)?,
                    Some(("step", time)) => dual.step = units::duration(time)?,
                    Some(("tupdate", time)) => dual.tupdate = units::duration(time)?,
                    Some(("alpha", text)) => dual.alpha = gain(text)?,
                    Some(("beta", text)) => dual.beta = gain(text)?,
                    Some(("k", text)) => dual.coupling = gain(text)?,
                    _ => return foreign(part),
                }
            }
            Ok(Aqm::DualPi2(dual))
        }
        _ => Err(format!(
            "'{text}' is none of none, codel, red:MIN,MAX, step:DEPTH and dualpi2"
        )),
    }
}

fn signal(text: &str) -> Option<Signal> {
    match text {
        "drop" => Some(Signal::Drop),
        "mark" => Some(Signal::Mark),
        "mark-only" => Some(Signal::MarkOnly),
        _ => None,
    }
}
