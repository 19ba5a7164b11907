//! How `--agent` is written.

use std::fmt::Write;

use sphinx_pep::rdb::{ITT_NS_MIN, Mode, Rdb, Response, Thin};
use sphinx_pep::{Profile, Stage};

use crate::units;

/// Reads `snoop`, `snoop:profile=ll`, `rdb` or `rdb:max_packets=0,mode=paper`.
///
/// # Errors
///
/// Says what can be written.
pub(super) fn read(text: &str) -> Result<Stage, String> {
    let (name, settings) = match text.split_once(':') {
        Some((name, settings)) => (name, settings.split(',').collect()),
        None => (text, Vec::new()),
    };
    match (name, &settings[..]) {
        ("snoop", [] | ["profile=sack"]) => Ok(Stage::Snoop(Profile::Sack)),
        ("snoop", ["profile=classic"]) => Ok(Stage::Snoop(Profile::Classic)),
        ("snoop", ["profile=ll"]) => Ok(Stage::Snoop(Profile::Ll)),
        ("rdb", settings) => {
            let mut rdb = Rdb::default();
            let mut keys = Vec::new();
            for setting in settings {
                let (key, value) = setting.split_once('=').ok_or("rdb: write KEY=VALUE")?;
                if keys.contains(&key) {
                    return Err(format!("rdb: {key} is there twice"));
                }
                keys.push(key);
                set(&mut rdb, key, value).map_err(|why| format!("rdb: {setting}: {why}"))?;
            }
            Ok(Stage::Rdb(rdb))
        }
        _ => Err("write snoop, snoop:profile=sack|classic|ll, rdb or rdb:KEY=VALUE,…".into()),
    }
}

fn set(rdb: &mut Rdb, key: &str, value: &str) -> Result<(), String> {
    let number = || {
        value
            .parse::<u32>()
            .map_err(|_| "no such number".to_owned())
    };
    match (key, value) {
        ("mode", "auto") => rdb.mode = Mode::Auto,
        ("mode", "paper") => rdb.mode = Mode::Paper,
        ("mode", _) => return Err("write auto or paper".into()),
        ("thin", "dpifl") => rdb.thin = Thin::Dpifl,
        ("thin", "always") => rdb.thin = Thin::Always,
        ("thin", _) => {
            let most = value
                .strip_prefix("spifl:")
                .and_then(|most| most.parse().ok());
            rdb.thin = Thin::Spifl(most.ok_or("write dpifl, spifl:N or always")?);
        }
        ("dpifl_itt", _) => {
            let itt = units::duration(value)?.as_nanos();
            rdb.dpifl_itt_ns = u64::try_from(itt).unwrap_or(u64::MAX);
            if rdb.dpifl_itt_ns < ITT_NS_MIN {
                return Err("10ms is the shortest".into());
            }
        }
        ("max_packets", _) => rdb.max_packets = number()?,
        ("max_bytes", _) => {
            // Without a unit too, as the patch has it.
            rdb.max_bytes = match value.parse() {
                Ok(bytes) => bytes,
                Err(_) => usize::try_from(units::size(value)?).unwrap_or(usize::MAX),
            };
        }
        ("response", "auto") => rdb.response = Response::Auto,
        ("response", "ecn") => rdb.response = Response::Ecn,
        ("response", "window") => rdb.response = Response::Window,
        ("response", "none") => rdb.response = Response::None,
        ("response", _) => return Err("write auto, ecn, window or none".into()),
        ("extra", _) => {
            let percent = value
                .strip_suffix('%')
                .and_then(|percent| percent.parse().ok());
            rdb.extra_percent = percent.ok_or("write a percentage, such as 300%")?;
        }
        ("max_extra", "off") => rdb.max_extra = None,
        ("max_extra", _) => rdb.max_extra = Some(units::rate(value)?),
        _ => {
            let keys = "mode, thin, dpifl_itt, max_packets, max_bytes, response, extra, max_extra";
            return Err(format!("the keys are {keys}"));
        }
    }
    Ok(())
}

/// A stage, as it can be read.
pub(super) fn written(stage: &Stage) -> String {
    let rdb = match stage {
        Stage::Snoop(Profile::Sack) => return "snoop:profile=sack".to_owned(),
        Stage::Snoop(Profile::Classic) => return "snoop:profile=classic".to_owned(),
        Stage::Snoop(Profile::Ll) => return "snoop:profile=ll".to_owned(),
        Stage::Rdb(rdb) => rdb,
    };
    let mode = match rdb.mode {
        Mode::Auto => "auto",
        Mode::Paper => "paper",
    };
    let thin = match rdb.thin {
        Thin::Dpifl => "dpifl".to_owned(),
        Thin::Spifl(most) => format!("spifl:{most}"),
        Thin::Always => "always".to_owned(),
    };
    let response = match rdb.response {
        Response::Auto => "auto",
        Response::Ecn => "ecn",
        Response::Window => "window",
        Response::None => "none",
    };
    let mut text = format!(
        "rdb:mode={mode},thin={thin},dpifl_itt={}us,max_packets={},max_bytes={},response={response},extra={}%",
        rdb.dpifl_itt_ns / 1000,
        rdb.max_packets,
        rdb.max_bytes,
        rdb.extra_percent
    );
    if let Some(rate) = rdb.max_extra {
        // Writing into a string does not fail.
        let _ = write!(text, ",max_extra={rate}bit");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_written() {
        for text in ["snoop", "snoop:profile=classic", "snoop:profile=ll", "rdb"] {
            let stage = read(text).expect(text);
            assert_eq!(read(&written(&stage)), Ok(stage));
        }
        let text = "rdb:mode=paper,thin=spifl:7,dpifl_itt=20ms,max_packets=0,max_bytes=450,response=none,\
                    extra=100%,max_extra=1mbit";
        let expected = Rdb {
            mode: Mode::Paper,
            thin: Thin::Spifl(7),
            dpifl_itt_ns: 20_000_000,
            max_packets: 0,
            max_bytes: 450,
            response: Response::None,
            extra_percent: 100,
            max_extra: Some(1_000_000),
        };
        assert_eq!(read(text), Ok(Stage::Rdb(expected)));
        assert_eq!(
            read(&written(&Stage::Rdb(expected))),
            Ok(Stage::Rdb(expected))
        );
        for (text, reason) in [
            ("eln", "write snoop"),
            ("snoop:profile=x", "write snoop"),
            ("rdb:", "KEY=VALUE"),
            ("rdb:thin=thick", "dpifl, spifl:N or always"),
            ("rdb:dpifl_itt=9ms", "10ms is the shortest"),
            ("rdb:max_packets=-1", "no such number"),
            ("rdb:max_bytes=many", "many"),
            ("rdb:extra=3", "such as 300%"),
            ("rdb:mode=auto,mode=paper", "mode is there twice"),
            ("rdb:color=red", "the keys are mode"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
