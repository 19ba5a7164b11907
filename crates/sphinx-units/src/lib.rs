//! Rates, sizes, durations and fractions as people write them.
//!
//! Every parser here is total: any string gives a value or a sentence that says what was expected.
//! Numbers are decimal, computed exactly in integers, never through floating point.

#![forbid(unsafe_code)]

use std::time::Duration;

/// Longest number accepted, digits before and after the point together. Keeps the arithmetic far
/// inside `u128`.
const DIGITS_MAX: usize = 18;

/// Bits per second, from `200mbit`, `1.5gbit`, `100kbit`, `9600bit`; 1 or more.
///
/// # Errors
///
/// What was expected, in words; the same holds for the other parsers.
pub fn rate(text: &str) -> Result<u64, String> {
    const EXPECTED: &str = "write a rate in bits per second, such as 200mbit, 1.5gbit or 100kbit";
    let (number, unit) = split(text).ok_or_else(|| refuse(text, EXPECTED))?;
    if unit.contains('B') {
        return Err(format!("'{text}' counts bytes: {EXPECTED}"));
    }
    let unit = unit.to_ascii_lowercase();
    let base = unit
        .strip_suffix("bit/s")
        .or_else(|| unit.strip_suffix("bits/s"))
        .or_else(|| unit.strip_suffix("bit"))
        .or_else(|| unit.strip_suffix("bps"))
        .unwrap_or(&unit);
    let scale = match base {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        "t" => 1_000_000_000_000,
        "ki" => 1 << 10,
        "mi" => 1 << 20,
        "gi" => 1 << 30,
        _ => return Err(refuse(text, EXPECTED)),
    };
    match number.times(scale) {
        Some(Scaled { whole, .. }) if whole > 0 => Ok(whole),
        Some(_) => Err(format!("'{text}' is less than one bit per second")),
        None => Err(format!("'{text}' is too large")),
    }
}

/// Bytes, from `100kB` (1000), `64KiB` (1024), `10MB`, `1500`.
pub fn size(text: &str) -> Result<u64, String> {
    const EXPECTED: &str = "write a size in bytes, such as 1500, 100kB (1000), 64KiB (1024) or 2GB";
    let (number, unit) = split(text).ok_or_else(|| refuse(text, EXPECTED))?;
    let unit = unit.to_ascii_lowercase();
    if unit.contains("bit") {
        return Err(format!("'{text}' counts bits: {EXPECTED}"));
    }
    let scale = match unit.strip_suffix('b').unwrap_or(&unit) {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        "t" => 1_000_000_000_000,
        "ki" => 1 << 10,
        "mi" => 1 << 20,
        "gi" => 1 << 30,
        "ti" => 1 << 40,
        _ => return Err(refuse(text, EXPECTED)),
    };
    match number.times(scale) {
        Some(Scaled { whole, exact: true }) => Ok(whole),
        Some(_) => Err(format!("'{text}' is not a whole number of bytes")),
        None => Err(format!("'{text}' is too large")),
    }
}

/// A duration, from `5ms`, `2s`, `1m`, `1h`, `500us`, or plain seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "write a duration such as 5ms, 2s, 1.5s or 1m";
    let (number, unit) = split(text).ok_or_else(|| refuse(text, EXPECTED))?;
    let scale = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "" | "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(refuse(text, EXPECTED)),
    };
    match number.times(scale) {
        Some(Scaled { whole, .. }) => Ok(Duration::from_nanos(whole)),
        None => Err(format!("'{text}' is too long")),
    }
}

/// A duration that is not zero.
pub fn duration_positive(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(format!("'{text}' is zero: it must be longer")),
        some => Ok(some),
    }
}

/// A share of one, from `6%` or `0.06`.
pub fn fraction(text: &str) -> Result<f64, String> {
    const EXPECTED: &str = "write a share such as 6% or 0.06";
    // Parts per 10^12 keep the result exact to the last digit anybody writes.
    const ONE: u64 = 1_000_000_000_000;
    let (number, unit) = split(text).ok_or_else(|| refuse(text, EXPECTED))?;
    let scale = match unit {
        "" => ONE,
        "%" => ONE / 100,
        _ => return Err(refuse(text, EXPECTED)),
    };
    match number.times(scale) {
        Some(Scaled { whole, .. }) if whole <= ONE => Ok(whole as f64 / ONE as f64),
        _ if unit.is_empty() => Err(format!("'{text}' is more than 1: {EXPECTED}")),
        _ => Err(format!("'{text}' is more than 100 %")),
    }
}

/// A decimal number: `digits` / 10^`places`.
struct Decimal {
    digits: u64,
    places: u32,
}

/// `Decimal` × scale: the whole part, and whether there was nothing behind it.
struct Scaled {
    whole: u64,
    exact: bool,
}

impl Decimal {
    fn times(&self, scale: u64) -> Option<Scaled> {
        let product = u128::from(self.digits) * u128::from(scale);
        let divisor = 10_u128.pow(self.places);
        Some(Scaled {
            whole: u64::try_from(product / divisor).ok()?,
            exact: product.is_multiple_of(divisor),
        })
    }
}

/// Separates number and unit; one space between them is fine.
fn split(text: &str) -> Option<(Decimal, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, places) = number.split_once('.').unwrap_or((number, ""));
    let count = whole.len() + places.len();
    // A second point would be left in `places`.
    if count == 0 || count > DIGITS_MAX || places.contains('.') {
        return None;
    }
    let mut digits = 0_u64;
    for digit in whole.bytes().chain(places.bytes()) {
        digits = digits * 10 + u64::from(digit - b'0');
    }
    let places = u32::try_from(places.len()).ok()?;
    Some((Decimal { digits, places }, unit.trim_start()))
}

fn refuse(text: &str, expected: &str) -> String {
    format!("'{text}' is not understood: {expected}")
}

/// A rate for people, in bits.
pub fn show_rate(bits_per_second: f64) -> String {
    let (value, unit) = match bits_per_second {
        x if x >= 1e9 => (x / 1e9, "Gbit/s"),
        x if x >= 1e6 => (x / 1e6, "Mbit/s"),
        x if x >= 1e3 => (x / 1e3, "kbit/s"),
        x => (x, "bit/s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// A size for people, in IEC units.
pub fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// A share for people, in percent.
pub fn show_percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A length of time for people.
pub fn show_duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match time.as_secs() {
        0 => format!("{} ms", three_digits(seconds * 1000.0)),
        1..=59 => format!("{seconds:.2} s"),
        60..=3599 => format!("{}m{:02}s", time.as_secs() / 60, time.as_secs() % 60),
        s => format!("{}h{:02}m", s / 3600, s / 60 % 60),
    }
}

fn three_digits(value: f64) -> String {
    match value {
        x if x >= 99.95 => format!("{x:.0}"),
        x if x >= 9.995 => format!("{x:.1}"),
        x => format!("{x:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates() {
        assert_eq!(rate("200mbit"), Ok(200_000_000));
        assert_eq!(rate("1.5gbit"), Ok(1_500_000_000));
        assert_eq!(rate("100kbit"), Ok(100_000));
        assert_eq!(rate("1.5 Gbit/s"), Ok(1_500_000_000));
        assert_eq!(rate("100M"), Ok(100_000_000));
        assert_eq!(rate("100Mbps"), Ok(100_000_000));
        assert_eq!(rate("9600"), Ok(9600));
        assert_eq!(rate("1mibit"), Ok(1 << 20));
        assert!(rate("25MB/s").unwrap_err().contains("bytes"));
        assert!(rate("0mbit").is_err());
        assert!(rate("-1mbit").is_err());
        assert!(rate("999999999999tbit").is_err());
    }

    #[test]
    fn sizes() {
        assert_eq!(size("100kB"), Ok(100_000));
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("10MB"), Ok(10_000_000));
        assert_eq!(size("1500"), Ok(1500));
        assert_eq!(size("1.5k"), Ok(1500));
        assert_eq!(size("0"), Ok(0));
        assert!(size("1.0001kB").unwrap_err().contains("whole"));
        assert!(size("10mbit").unwrap_err().contains("bits"));
        assert!(size("kB").is_err());
        assert!(size("1..5kB").is_err());
        assert!(size("100000000TiB").unwrap_err().contains("large"));
    }

    #[test]
    fn durations() {
        assert_eq!(duration("5ms"), Ok(Duration::from_millis(5)));
        assert_eq!(duration("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("1m"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        assert!(duration_positive("0s").is_err());
        assert!(duration("5 parsecs").is_err());
    }

    #[test]
    fn fractions() {
        assert_eq!(fraction("6%"), Ok(0.06));
        assert_eq!(fraction("0.06"), Ok(0.06));
        assert_eq!(fraction("100%"), Ok(1.0));
        assert_eq!(fraction("0"), Ok(0.0));
        assert!(fraction("6").unwrap_err().contains("6%"));
        assert!(fraction("101%").is_err());
    }

    #[test]
    fn shown() {
        assert_eq!(show_rate(182_400_000.0), "182 Mbit/s");
        assert_eq!(show_rate(1_500_000_000.0), "1.50 Gbit/s");
        assert_eq!(show_size(1023), "1023 B");
        assert_eq!(show_size(52_428_800), "50.0 MiB");
        assert_eq!(show_duration(Duration::from_millis(250)), "250 ms");
        assert_eq!(show_duration(Duration::from_secs(3700)), "1h01m");
    }

    proptest! {
        #[test]
        fn total(text in ".*") {
            let _ = (rate(&text), size(&text), duration(&text), fraction(&text));
        }

        #[test]
        fn total_near_the_grammar(text in "[0-9.]{0,24} ?[a-zA-Z%µ/]{0,6}") {
            let _ = (rate(&text), size(&text), duration(&text), fraction(&text));
        }

        #[test]
        fn whole_numbers_come_back(n in 1_u64..=999_999_999_999) {
            prop_assert_eq!(rate(&format!("{n}bit")), Ok(n));
            prop_assert_eq!(size(&n.to_string()), Ok(n));
            prop_assert_eq!(size(&format!("{n}kB")), Ok(n * 1000));
            prop_assert_eq!(duration(&format!("{n}us")), Ok(Duration::from_micros(n)));
        }

        #[test]
        fn decimals_are_exact(whole in 0_u64..1_000_000, milli in 0_u64..1000) {
            let text = format!("{whole}.{milli:03}");
            prop_assert_eq!(size(&format!("{text}kB")), Ok(whole * 1000 + milli));
            let ms = Duration::from_millis(whole * 1000 + milli);
            prop_assert_eq!(duration(&format!("{text}s")), Ok(ms));
        }
    }
}
