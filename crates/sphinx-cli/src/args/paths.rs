//! Several paths at once, of a command that connects. What is not built yet is understood, so that the answer is "not built yet".

use std::net::IpAddr;

use clap::Args;
use sphinx_transport::{LocalPath, PATHS_MAX, Sc};

use super::engine::Choice;
use crate::failure::{Outcome, fail_hint};
use sphinx_transport::ErrorKind;

/// Longest name of an interface (`IFNAMSIZ`).
const INTERFACE_MAX: usize = 15;
/// What a path may be given besides where it begins.
const LATER: [&str; 6] = ["to", "role", "cost", "weight", "limit", "budget"];

/// Flags of commands that may use several paths.
#[derive(Args, Debug)]
#[command(next_help_heading = "Paths")]
pub(crate) struct PathArgs {
    /// Use the path that begins at this interface, or at this address of this machine; with several, all of them at once. The first is that of
    /// the handshake
    #[arg(long, value_name = "IFACE | ADDR", value_parser = path)]
    pub(crate) path: Vec<Choice<LocalPath>>,
    /// What several paths are for: aggregate, the sum of their rates; or, in a receive buffer that is bounded (--recv-window at the other end), sc,
    /// systematic coding as published (docs/sc-multipath.md), with sc:rlnc, min-rtt and ecf to compare it with
    #[arg(long, value_name = "MODE", default_value = "aggregate", value_parser = bond, requires = "path")]
    pub(crate) bond: Choice<Bond>,
}

/// What several paths are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Bond {
    #[default]
    Aggregate,
    Sc(Sc),
}

/// Where a path begins.
pub(crate) fn path(text: &str) -> Result<Choice<LocalPath>, String> {
    const EXPECTED: &str = "expected an interface, such as wlan0, or an address of this machine";
    if text == "auto" {
        return Ok(Choice::Later(text.to_owned()));
    }
    let mut parts = text.split(',');
    let place = parts.next().unwrap_or_default();
    let mut is_later = false;
    for part in parts {
        match part.split_once('=') {
            Some((key, value)) if LATER.contains(&key) && !value.is_empty() => is_later = true,
            _ => {
                return Err(format!(
                    "{part}: expected KEY=VALUE, with one of the keys {}",
                    LATER.join(", ")
                ));
            }
        }
    }
    let place = match place.split_once('=') {
        Some((name, place)) if !name.is_empty() => {
            is_later = true;
            place
        }
        Some(_) => return Err(EXPECTED.to_owned()),
        None => place,
    };
    let address = place.trim_start_matches('[').trim_end_matches(']');
    let path = match address.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() || address.is_multicast() => {
            return Err(format!("{address} is no address of one machine"));
        }
        Ok(address) => LocalPath::Address(address),
        Err(_) if is_interface(place) => LocalPath::Interface(place.to_owned()),
        Err(_) => return Err(EXPECTED.to_owned()),
    };
    Ok(match is_later {
        true => Choice::Later(text.to_owned()),
        false => Choice::Built(path),
    })
}

/// Whether the kernel would take this as a name.
fn is_interface(name: &str) -> bool {
    let is_allowed = |c: char| !c.is_whitespace() && !c.is_control() && !"/:[]".contains(c);
    (1..=INTERFACE_MAX).contains(&name.len())
        && name.chars().all(is_allowed)
        && !matches!(name, "." | "..")
}

/// A mode.
pub(crate) fn bond(text: &str) -> Result<Choice<Bond>, String> {
    let later = |name| text == name || text.strip_prefix(name).is_some_and(|k| k.starts_with(':'));
    if let Some(sc) = Sc::by_name(text) {
        return Ok(Choice::Built(Bond::Sc(sc)));
    }
    match text {
        "aggregate" => Ok(Choice::Built(Bond::Aggregate)),
        "backup" | "cheapest" => Ok(Choice::Later(text.to_owned())),
        _ if later("redundant") => Ok(Choice::Later(text.to_owned())),
        _ => {
            let schemes: Vec<_> = Sc::names().collect();
            Err(format!("expected aggregate, {}", schemes.join(", ")))
        }
    }
}

impl PathArgs {
    /// The first value that is not built yet, with its flag.
    pub(crate) fn later(&self) -> Option<(&'static str, &str)> {
        let paths = self.path.iter().find_map(Choice::later);
        let bond = self.bond.later().map(|mode| ("--bond", mode));
        paths.map(|path| ("--path", path)).or(bond)
    }

    /// The scheme for a bounded buffer, if one is wanted.
    pub(crate) fn sc(&self) -> Option<Sc> {
        match &self.bond {
            Choice::Built(Bond::Sc(sc)) => Some(*sc),
            Choice::Built(Bond::Aggregate) | Choice::Later(_) => None,
        }
    }

    /// Where the paths begin.
    ///
    /// # Errors
    /// If one is named twice, or there are too many.
    pub(crate) fn paths(&self) -> Outcome<Vec<LocalPath>> {
        let mut paths: Vec<LocalPath> = Vec::new();
        for choice in &self.path {
            let Choice::Built(path) = choice else {
                continue;
            };
            if paths.contains(path) {
                return Err(fail_hint(
                    ErrorKind::Usage,
                    format!("--path {path} is given twice"),
                    "each path needs an interface, or an address, of its own",
                ));
            }
            paths.push(path.clone());
        }
        if paths.len() > PATHS_MAX {
            return Err(fail_hint(
                ErrorKind::Usage,
                format!("{} paths: a session has at most {PATHS_MAX}", paths.len()),
                "leave the slowest ones out",
            ));
        }
        Ok(paths)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn places() {
        let interface = LocalPath::Interface("wlan0".to_owned());
        assert_eq!(path("wlan0"), Ok(Choice::Built(interface)));
        let address = LocalPath::Address([10, 0, 0, 1].into());
        assert_eq!(path("10.0.0.1"), Ok(Choice::Built(address)));
        assert!(matches!(
            path("[fd00::1]"),
            Ok(Choice::Built(LocalPath::Address(_)))
        ));
        for later in [
            "auto",
            "wwan0,cost=5,budget=2GB",
            "lte=wwan0",
            "wlan0,to=a.example:7",
        ] {
            assert_eq!(path(later).expect(later).later(), Some(later));
        }
        for bad in [
            "",
            "0.0.0.0",
            "a/b",
            "=wlan0",
            "wlan0,",
            "wlan0,cost",
            "wlan0,price=5",
            "an-interface-too-long",
            "a b",
        ] {
            assert!(path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn modes() {
        assert_eq!(bond("aggregate"), Ok(Choice::Built(Bond::Aggregate)));
        let rlnc = Bond::Sc(Sc::Rlnc);
        assert_eq!(bond("sc:rlnc"), Ok(Choice::Built(rlnc)));
        assert!(bond("sc:").unwrap_err().contains("min-rtt"));
        for later in ["redundant", "redundant:2", "backup"] {
            assert_eq!(bond(later).expect(later).later(), Some(later));
        }
        assert!(bond("fast").is_err() && bond("redundantly").is_err());
    }

    proptest! {
        #[test]
        fn total(text in ".*") {
            let _ = (path(&text), bond(&text));
        }
    }
}
