//! Values of settings.

use std::time::Duration;

use sphinx_units as units;

use crate::{
    Blackout, Corruption, EcnRule, Flows, GilbertElliott, Jitter, LinkConfig, Loss, LossTrace,
    Order, Periods, Radio, Rate, RateStep, RateTrace, Reorder, Retries, Shift, Span, Varying, Wake,
};

/// Most packets that a list may name.
const PACKETS_MAX: usize = 1 << 20;

/// Nothing, or a value.
pub(super) fn optional<T>(
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    match text {
        "none" => Ok(None),
        _ => parse(text).map(Some),
    }
}

pub(super) fn number(text: &str) -> Result<u64, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("'{text}' is not a whole number"))
}

pub(super) fn gain(text: &str) -> Result<f64, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("'{text}' is not a number"))
}

pub(super) fn bytes(text: &str) -> Result<usize, String> {
    let bytes = units::size(text)?;
    usize::try_from(bytes).map_err(|_| format!("'{text}' is too large"))
}

/// Bits per second; 0 is a pause.
fn bits_per_second(text: &str) -> Result<u64, String> {
    match text.trim() {
        "0" => Ok(0),
        text => units::rate(text),
    }
}

pub(super) fn rate(text: &str) -> Result<Rate, String> {
    match text.split_once(':') {
        Some(("steps", list)) => steps(list),
        Some(("fading", list)) => fading(list).map(Rate::Varying),
        Some(("turns", list)) => turns(list).map(Rate::Varying),
        Some(("routes", list)) => routes(list).map(Rate::Varying),
        _ if text == "unlimited" => Ok(Rate::Unlimited),
        _ => bits_per_second(text).map(Rate::Constant),
    }
}

/// The parts of a list.
fn parts(list: &str) -> Vec<&str> {
    list.split(',').map(str::trim).collect()
}

fn fading(list: &str) -> Result<Varying, String> {
    let (median, factor, time, grant) = match parts(list)[..] {
        [median, factor, time] => (median, factor, time, "1ms"),
        [median, factor, time, grant] => (median, factor, time, grant),
        _ => {
            return Err(
                "write fading:MEDIAN,FACTOR,TIME or fading:MEDIAN,FACTOR,TIME,GRANT, such as \
                        fading:20mbit,2,500ms,10ms"
                    .into(),
            );
        }
    };
    Ok(Varying::Fading {
        median: units::rate(median)?,
        factor: factor
            .parse()
            .map_err(|_| format!("'{factor}' is not a factor"))?,
        time: units::period(time)?,
        grant: units::period(grant)?,
    })
}

fn turns(list: &str) -> Result<Varying, String> {
    let [gap, packets] = parts(list)[..] else {
        return Err("write turns:GAP,PACKETS, such as turns:1ms-8ms,28p".into());
    };
    let count = number(packets.trim_end_matches('p'))?;
    Ok(Varying::Turns {
        gap: span(gap)?,
        packets: u32::try_from(count).map_err(|_| format!("{count} packets are too many"))?,
    })
}

fn routes(list: &str) -> Result<Varying, String> {
    let [rates, every, pause] = parts(list)[..] else {
        return Err("write routes:SLOWEST-FASTEST,EVERY,PAUSE, such as routes:60mbit-250mbit,15s,50ms-200ms".into());
    };
    let (slowest, fastest) = rates.split_once('-').unwrap_or((rates, rates));
    Ok(Varying::Routes {
        rates: (units::rate(slowest)?, units::rate(fastest)?),
        every: units::period(every)?,
        pause: span(pause)?,
    })
}

fn steps(list: &str) -> Result<Rate, String> {
    let (mut steps, mut repeat) = (Vec::new(), None);
    for part in list.split(',') {
        let refuse = || format!("'{part}' is no step: write TIME=RATE, such as 5s=2mbit");
        let (at, value) = part.split_once('=').ok_or_else(refuse)?;
        if at.trim() == "repeat" {
            repeat = Some(units::period(value)?);
        } else {
            steps.push(RateStep {
                at: units::period(at)?,
                bits_per_second: bits_per_second(value)?,
            });
        }
    }
    Ok(Rate::Steps { steps, repeat })
}

pub(super) fn loss(text: &str) -> Result<Loss, String> {
    match text.split_once(':') {
        Some(("burst", list)) => match &parts(list)[..] {
            [mean, burst] => {
                let burst: f64 = burst
                    .parse()
                    .ok()
                    .filter(|burst: &f64| burst.is_finite())
                    .ok_or_else(|| format!("'{burst}' is not a number of packets"))?;
                let model = GilbertElliott::bursts(units::fraction(mean)?, burst);
                Ok(Loss::GilbertElliott(model))
            }
            _ => Err("write burst:MEAN_LOSS,MEAN_BURST, such as burst:5%,8".into()),
        },
        Some(("gilbert", list)) => {
            let shares: Result<Vec<f64>, String> = parts(list)
                .iter()
                .map(|part| units::fraction(part))
                .collect();
            let (rates, losses) = match shares?[..] {
                [p, r] => ([p, r], [0.0, 1.0]),
                [p, r, good, bad] => ([p, r], [good, bad]),
                _ => {
                    return Err(
                        "write gilbert:P,R or gilbert:P,R,LOSS_GOOD,LOSS_BAD (shares): P \
                                and R are the probabilities to leave the good and the bad state"
                            .into(),
                    );
                }
            };
            Ok(Loss::GilbertElliott(GilbertElliott {
                good_to_bad: rates[0],
                bad_to_good: rates[1],
                loss_in_good: losses[0],
                loss_in_bad: losses[1],
            }))
        }
        Some(("bytes", mean)) => units::size(mean.trim()).map(Loss::Bytes),
        Some(("periods", list)) => match &parts(list)[..] {
            [good, bad, losses @ ..] => periods(good, bad, losses),
            _ => Err(PERIODS_FORM.into()),
        },
        Some(("packets", list)) => packets(list).map(Loss::Packets),
        _ => units::fraction(text).map(|share| match share {
            0.0 => Loss::None,
            _ => Loss::Bernoulli(share),
        }),
    }
}

/// A time, or the shortest and the longest one.
fn span(text: &str) -> Result<Span, String> {
    let (shortest, longest) = text.split_once('-').unwrap_or((text, text));
    Ok(Span {
        shortest: units::period(shortest)?,
        longest: units::period(longest)?,
    })
}

const PERIODS_FORM: &str = "write periods:GOOD,BAD or periods:GOOD,BAD,LOSS_GOOD,LOSS_BAD: how long a channel is good \
                            and bad, each a time or a range such as 1ms-20s, and the shares lost";

fn periods(good: &str, bad: &str, losses: &[&str]) -> Result<Loss, String> {
    let (loss_in_good, loss_in_bad) = match losses {
        [] => (0.0, 1.0),
        [good, bad] => (units::fraction(good)?, units::fraction(bad)?),
        _ => return Err(PERIODS_FORM.into()),
    };
    Ok(Loss::Periods(Periods {
        good: span(good)?,
        bad: span(bad)?,
        loss_in_good,
        loss_in_bad,
    }))
}

pub(super) fn priority(text: &str) -> Result<Option<u8>, String> {
    let dscp = optional(text, number)?;
    // Values above 255 become 255, which is no DSCP either and refused later.
    Ok(dscp.map(|dscp| u8::try_from(dscp).unwrap_or(u8::MAX)))
}

/// Numbers and ranges of numbers.
fn packets(list: &str) -> Result<Vec<u64>, String> {
    let mut packets = Vec::new();
    for part in list.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last {
            return Err(format!("'{part}' ends before it begins"));
        }
        if last - first >= (PACKETS_MAX - packets.len()) as u64 {
            return Err(format!("more than {PACKETS_MAX} packets are listed"));
        }
        packets.extend(first..=last);
    }
    Ok(packets)
}

/// The content of the file that `rate` or `loss` names.
pub(super) fn trace(
    config: &mut LinkConfig,
    key: &str,
    path: &str,
    content: &str,
) -> Result<(), String> {
    let result = match key {
        "rate" => RateTrace::parse(content).map(|trace| config.rate = Rate::Trace(trace)),
        _ => LossTrace::parse(content).map(|trace| config.loss = Loss::Trace(trace)),
    };
    result.map_err(|error| format!("{path}: {error}"))
}

pub(super) fn blackouts(text: &str) -> Result<(Vec<Blackout>, Option<Duration>), String> {
    let (mut blackouts, mut repeat) = (Vec::new(), None);
    if text == "none" {
        return Ok((blackouts, repeat));
    }
    for part in text.split(',') {
        if let Some(time) = part.trim().strip_prefix("repeat=") {
            repeat = Some(units::period(time)?);
            continue;
        }
        let refuse = || format!("'{part}' is no time span: write START-END, such as 10s-12s");
        let (start, end) = part.split_once('-').ok_or_else(refuse)?;
        blackouts.push(Blackout {
            start: units::period(start)?,
            end: units::period(end)?,
        });
    }
    Ok((blackouts, repeat))
}

pub(super) fn corruption(text: &str) -> Result<Corruption, String> {
    if text == "0" {
        return Ok(Corruption::default());
    }
    let (share, bits) = text.split_once(',').unwrap_or((text, "1"));
    let bits = number(bits)?;
    Ok(Corruption {
        probability: units::fraction(share)?,
        bits: u32::try_from(bits).map_err(|_| format!("{bits} bits are too many"))?,
    })
}

pub(super) fn jitter(text: &str) -> Result<Jitter, String> {
    let (max, order) = match text.split_once(',') {
        None => (text, Order::Kept),
        Some((max, word)) if word.trim() == "reorder" => (max, Order::Free),
        Some((_, word)) => return Err(format!("'{word}' is not 'reorder'")),
    };
    let max = units::duration(max)?;
    Ok(Jitter { max, order })
}

pub(super) fn retries(text: &str) -> Result<Retries, String> {
    match parts(text)[..] {
        ["0"] => Ok(Retries::default()),
        [share, interval, tries] => {
            let limit = number(tries)?;
            Ok(Retries {
                probability: units::fraction(share)?,
                interval: units::duration(interval)?,
                limit: u32::try_from(limit).unwrap_or(u32::MAX),
            })
        }
        _ => Err("write SHARE,INTERVAL,TRIES, such as 10%,8ms,4".into()),
    }
}

pub(super) fn shift(text: &str) -> Result<Shift, String> {
    let [every, max] = parts(text)[..] else {
        return Err("write EVERY,DURATION, such as 15s,20ms".into());
    };
    Ok(Shift {
        every: units::period(every)?,
        max: units::duration(max)?,
    })
}

/// What an acknowledgement counts for.
pub(super) fn compress(text: &str) -> Result<usize, String> {
    let form = "write acks:BYTES, such as acks:6B";
    let ("acks", bytes) = text.split_once(':').ok_or(form)? else {
        return Err(form.into());
    };
    match units::packet_size(bytes)? {
        0 => Err("1B is the least".into()),
        bytes => Ok(bytes),
    }
}

pub(super) fn wake(text: &str) -> Result<Wake, String> {
    let [idle, delay] = parts(text)[..] else {
        return Err("write IDLE,DELAY, such as 10s,100ms".into());
    };
    Ok(Wake {
        idle: units::duration(idle)?,
        delay: units::duration(delay)?,
    })
}

pub(super) fn radio(text: &str) -> Result<Radio, String> {
    let (turnaround, slot, hops) = match parts(text)[..] {
        [turnaround, slot] => (turnaround, slot, "1"),
        [turnaround, slot, hops] => (turnaround, slot, hops),
        _ => {
            return Err(
                "write TURNAROUND,SLOT or TURNAROUND,SLOT,HOPS, such as 2ms,100us,3".into(),
            );
        }
    };
    Ok(Radio {
        turnaround: units::duration(turnaround)?,
        slot: units::duration(slot)?,
        hops: u32::try_from(number(hops)?).unwrap_or(u32::MAX),
    })
}

pub(super) fn reorder(text: &str) -> Result<Reorder, String> {
    match text.split_once(',') {
        Some((share, hold)) => Ok(Reorder {
            probability: units::fraction(share)?,
            hold: units::duration(hold)?,
        }),
        None if text == "0" => Ok(Reorder::default()),
        None => Err("write SHARE,DURATION, such as 1%,10ms".into()),
    }
}

pub(super) fn ecn(text: &str) -> Result<EcnRule, String> {
    match text {
        "keep" => Ok(EcnRule::Keep),
        "clear" => Ok(EcnRule::Clear),
        "classic" => Ok(EcnRule::Classic),
        "mark" => Ok(EcnRule::Mark),
        "drop" => Ok(EcnRule::Drop),
        _ => Err("write keep, clear, classic, mark or drop".into()),
    }
}

pub(super) fn flows(text: &str) -> Result<Flows, String> {
    match text {
        "apart" => Ok(Flows::Apart),
        "together" => Ok(Flows::Together),
        _ => Err("write apart or together".into()),
    }
}
