//! Rates, sizes, durations and shares as people write them, and errors as people read them.
//!
//! One rule for all of them: **a quantity has its unit**. A bare number is refused with the unit that
//! was probably meant, since `--interval 20` may mean milliseconds to one person and seconds to the
//! next. Zero needs none, and a share may be a number below one (`0.06`), which has no other reading.
//!
//! Every parser here is total: any string gives a value or a sentence that says what was expected.
//! Numbers are decimal, computed exactly in integers, never through floating point.

#![forbid(unsafe_code)]

use std::io;
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
    let is_of_bytes = unit.contains('B');
    let unit = unit.to_ascii_lowercase();
    if is_of_bytes && !unit.contains("bit") {
        return Err(format!("'{text}' counts bytes: {EXPECTED}"));
    }
    let named = ["bit/s", "bits/s", "bit", "bps"];
    let named = named.iter().find_map(|name| unit.strip_suffix(name));
    let scale = match named.unwrap_or(&unit) {
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
    let scaled = number.times(scale);
    match (named, scaled) {
        (_, Some(Scaled { whole: 0, .. })) => {
            Err(format!("'{text}' is less than one bit per second"))
        }
        // Whoever counts out millions of bits means them.
        (None, Some(Scaled { whole, .. })) if unit.is_empty() && whole < 1_000_000 => {
            Err(unitless(text, "mbit"))
        }
        (None, _) => Err(unitless(text, "bit")),
        (_, Some(Scaled { whole, .. })) => Ok(whole),
        (_, None) => Err(format!("'{text}' is too large")),
    }
}

/// Bytes, from `100kB` (1000), `64KiB` (1024), `10MB`, `1500B`, or `0`.
pub fn size(text: &str) -> Result<u64, String> {
    const EXPECTED: &str =
        "write a size in bytes, such as 1500B, 100kB (1000), 64KiB (1024) or 2GB";
    let (number, unit) = split(text).ok_or_else(|| refuse(text, EXPECTED))?;
    let unit = unit.to_ascii_lowercase();
    if unit.contains("bit") {
        return Err(format!("'{text}' counts bits: {EXPECTED}"));
    }
    let named = unit.strip_suffix('b');
    let scale = match named.unwrap_or(&unit) {
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
    match (named, number.times(scale)) {
        (None, _) if number.digits != 0 => Err(unitless(text, "B")),
        (_, Some(Scaled { whole, exact: true })) => Ok(whole),
        (_, Some(_)) => Err(format!("'{text}' is not a whole number of bytes")),
        (_, None) => Err(format!("'{text}' is too large")),
    }
}

/// A size that is not zero.
pub fn size_positive(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err(format!("'{text}' is nothing: it must be more")),
        some => Ok(some),
    }
}

/// The length of a packet in bytes: a plain number, as MTUs are written everywhere, or a [`size`].
pub fn packet_size(text: &str) -> Result<usize, String> {
    let bytes = match text.trim().parse() {
        Ok(bytes) => bytes,
        Err(_) => size(text)?,
    };
    usize::try_from(bytes).map_err(|_| format!("'{text}' is too large"))
}

/// A duration, from `5ms`, `2s`, `1m`, `1h`, `500us`, or `0`: one of those that mostly are written
/// in milliseconds, which a bare number is asked about.
pub fn duration(text: &str) -> Result<Duration, String> {
    duration_probably(text, "ms")
}

/// A [`duration`] that is not zero.
pub fn duration_positive(text: &str) -> Result<Duration, String> {
    positive(text, duration(text)?)
}

/// A duration of those that mostly are written in seconds: how long something goes on.
pub fn period(text: &str) -> Result<Duration, String> {
    duration_probably(text, "s")
}

/// A [`period`] that is not zero.
pub fn period_positive(text: &str) -> Result<Duration, String> {
    positive(text, period(text)?)
}

fn duration_probably(text: &str, probable: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "write a duration such as 5ms, 2s, 1.5s or 1m";
    let (number, unit) = split(text).ok_or_else(|| refuse(text, EXPECTED))?;
    let scale = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "" if number.digits == 0 => 1,
        "" => return Err(unitless(text, probable)),
        _ => return Err(refuse(text, EXPECTED)),
    };
    match number.times(scale) {
        Some(Scaled { whole, .. }) => Ok(Duration::from_nanos(whole)),
        None => Err(format!("'{text}' is too long")),
    }
}

fn positive(text: &str, duration: Duration) -> Result<Duration, String> {
    match duration {
        Duration::ZERO => Err(format!("'{text}' is zero: it must be longer")),
        some => Ok(some),
    }
}

/// A share of one, from `6%` or `0.06`. Without the sign it must be below 1: `1` may be meant as 1 %
/// or as all.
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
        Some(Scaled { whole, .. }) if whole < ONE => Ok(whole as f64 / ONE as f64),
        Some(Scaled {
            whole: ONE,
            exact: true,
        }) if unit == "%" => Ok(1.0),
        Some(Scaled { whole, .. }) if unit.is_empty() && whole <= 100 * ONE => {
            Err(unitless(text, "%"))
        }
        _ => Err(format!("'{text}' is more than 100 %: {EXPECTED}")),
    }
}

/// A share of blocks that may fail: above 0, and at most half of them.
pub fn failure_share(text: &str) -> Result<f64, String> {
    match fraction(text)? {
        share if (1e-9..=0.5).contains(&share) => Ok(share),
        _ => Err("expected a share above 0 and at most 50%, such as 1%".to_owned()),
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
    match text.bytes().filter(u8::is_ascii_digit).count() {
        ..=DIGITS_MAX => format!("'{text}' is not understood: {expected}"),
        _ => format!("'{text}' has more than {DIGITS_MAX} digits: {expected}"),
    }
}

/// Refuses a number, or one with a prefix such as `M`, and names what was probably meant.
fn unitless(text: &str, probable: &str) -> String {
    format!(
        "'{text}' has no unit: did you mean {}{probable}?",
        text.trim()
    )
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

/// What the system said of an error, without Rust's "(os error 2)".
pub fn show_io_error(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
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
        assert_eq!(rate("100Mbps"), Ok(100_000_000));
        assert_eq!(rate("9600bit"), Ok(9600));
        assert_eq!(rate("1mibit"), Ok(1 << 20));
        assert_eq!(rate("20MBit/s"), Ok(20_000_000));
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
        assert_eq!(size("1500B"), Ok(1500));
        assert_eq!(size("1.5kb"), Ok(1500));
        assert_eq!(size("0"), Ok(0));
        assert!(size_positive("0").is_err());
        assert_eq!(packet_size("1500"), Ok(1500));
        assert_eq!(packet_size("1500B"), Ok(1500));
        assert!(packet_size("-1").is_err());
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
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert!(duration_positive("0s").is_err());
        assert!(duration("5 parsecs").is_err());
    }

    #[test]
    fn fractions() {
        assert_eq!(fraction("6%"), Ok(0.06));
        assert_eq!(fraction("0.06"), Ok(0.06));
        assert_eq!(fraction("100%"), Ok(1.0));
        assert_eq!(fraction("0"), Ok(0.0));
        for text in [
            "101%",
            "100.1%",
            "100.0000000000001%",
            "101",
            "99999999999999999",
        ] {
            assert!(
                fraction(text).unwrap_err().contains("more than 100 %"),
                "{text}"
            );
        }
    }

    #[test]
    fn shares_that_may_fail() {
        assert_eq!(failure_share("1%"), Ok(0.01));
        for text in ["0", "60%", "-1%", "nan", "some"] {
            assert!(failure_share(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_bare_number_names_the_unit_that_was_probably_meant() {
        for (error, text) in [
            (rate("20").err(), "20mbit?"),
            (rate("20000000").err(), "20000000bit?"),
            (rate("100M").err(), "100Mbit?"),
            (size("1000").err(), "1000B?"),
            (size("64Ki").err(), "64KiB?"),
            (duration("20").err(), "20ms?"),
            (duration_positive(" 1.5 ").err(), "1.5ms?"),
            (period("20").err(), "20s?"),
            (period_positive("10").err(), "10s?"),
            (fraction("6").err(), "6%?"),
            (fraction("1").err(), "1%?"),
        ] {
            let error = error.expect(text);
            assert!(error.ends_with(&format!("did you mean {text}")), "{error}");
        }
    }

    #[test]
    fn shown() {
        assert_eq!(show_rate(182_400_000.0), "182 Mbit/s");
        assert_eq!(show_rate(1_500_000_000.0), "1.50 Gbit/s");
        assert_eq!(show_size(1023), "1023 B");
        assert_eq!(show_size(52_428_800), "50.0 MiB");
        assert_eq!(show_duration(Duration::from_millis(250)), "250 ms");
        assert_eq!(show_duration(Duration::from_secs(3700)), "1h01m");
        let missing = io::Error::from_raw_os_error(2);
        assert_eq!(show_io_error(&missing), "no such file or directory");
        assert_eq!(show_io_error(&io::Error::other("Own words")), "Own words");
    }

    proptest! {
        #[test]
        fn total(text in ".*") {
            let _ = (rate(&text), size(&text), duration(&text), fraction(&text), packet_size(&text));
        }

        #[test]
        fn total_near_the_grammar(text in "[0-9.]{0,24} ?[a-zA-Z%µ/]{0,6}") {
            let _ = (rate(&text), size(&text), duration(&text), fraction(&text), packet_size(&text));
        }

        #[test]
        fn whole_numbers_come_back(n in 1_u64..=999_999_999_999) {
            prop_assert_eq!(rate(&format!("{n}bit")), Ok(n));
            prop_assert_eq!(size(&format!("{n}B")), Ok(n));
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
