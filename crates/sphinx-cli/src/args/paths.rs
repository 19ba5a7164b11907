//! Several paths at once, of a command that connects.

use std::net::IpAddr;
use std::num::NonZeroU64;

use clap::Args;
use sphinx_transport::{
    Bond, Cc, Couple, ErrorKind, LocalPath, Options, PATHS_MAX, PathOptions, PathPolicy, PathRole,
    Sc,
};

use crate::addresses::check_host;
use crate::failure::{Failure, Outcome, fail_hint};
use crate::report::Names;
use crate::units;

/// Longest name of an interface (`IFNAMSIZ`).
const INTERFACE_MAX: usize = 15;
const KEYS: [&str; 6] = ["to", "role", "cost", "weight", "limit", "budget"];
/// Greatest weight.
const WEIGHT_MAX: u32 = 100;

/// Flags of commands that may use several paths.
#[derive(Args, Debug)]
#[command(next_help_heading = "Paths")]
pub(crate) struct PathArgs {
    /// Use the path that begins at this interface, or at this address of this machine; with several, all of them at once. The first is that of
    /// the handshake. Behind it, separated by commas: to=HOST:PORT, where else the server is reached; role=backup, used while no
    /// other works; cost=N, for --bond cheapest; weight=N, how much it is preferred; limit=RATE; budget=SIZE, after which it is given up.
    /// auto: every interface with a default route but tunnels, as they come and go
    #[arg(long, value_name = "auto | [NAME=]IFACE | ADDR[,KEY=VALUE]...", value_parser = wanted)]
    pub(crate) path: Vec<Wanted>,
    /// What several paths are for:
    ///   aggregate    the sum of their rates
    ///   redundant    everything on all of them; redundant:2 on two
    ///   backup       one at a time, in this order
    ///   cheapest     the cheapest, and dearer ones for what these cannot carry
    ///   sc           systematic coding as published, where the receive buffer is bounded (--recv-window at the
    ///                other end, docs/sc-multipath.md); sc:rlnc, min-rtt and ecf to compare it with
    #[arg(long, value_name = "MODE", default_value = "aggregate", value_parser = mode, requires = "path", verbatim_doc_comment)]
    pub(crate) bond: Mode,
    /// What paths of one session do that meet in one bottleneck, where they take as much as so many sessions:
    ///   auto         those whose queues rise and fall together count as one: one carries what there is
    ///   off          nothing
    ///   lia, olia    with --cc aimd-ecn: windows grow together, no faster than one flow on the best path
    ///                (RFC 6356), and OLIA, to compare them
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = couple, requires = "path", verbatim_doc_comment)]
    pub(crate) couple: Couple,
}

/// What several paths are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Bond(Bond),
    /// In a buffer that is bounded.
    Sc(Sc),
}

fn couple(text: &str) -> Result<Couple, String> {
    let known = Couple::ALL.into_iter().find(|one| one.name() == text);
    known.ok_or_else(|| format!("'{text}' is none of auto, off, lia, olia"))
}

/// A value of `--path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Those that begin at the machine's uplinks, whichever these are.
    Auto,
    Path(NamedPath),
}

/// A path, and what it is called in reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedPath {
    pub(crate) name: String,
    pub(crate) options: PathOptions,
}

fn wanted(text: &str) -> Result<Wanted, String> {
    match text {
        "auto" => Ok(Wanted::Auto),
        _ => path(text).map(Wanted::Path),
    }
}

/// A path.
pub(crate) fn path(text: &str) -> Result<NamedPath, String> {
    let mut parts = text.split(',');
    let (name, begin) = named_place(parts.next().unwrap_or_default())?;
    let (mut policy, mut to) = (PathPolicy::default(), None);
    let mut seen = Vec::new();
    for part in parts {
        let known = part.split_once('=').filter(|(key, _)| KEYS.contains(key));
        let Some((key, value)) = known.filter(|(_, value)| !value.is_empty()) else {
            let keys = KEYS.join(", ");
            return Err(format!(
                "{part}: expected KEY=VALUE, with one of the keys {keys}"
            ));
        };
        if seen.contains(&key) {
            return Err(format!("{key} is given twice"));
        }
        seen.push(key);
        let wrong = |why: String| format!("{key}={value}: {why}");
        match key {
            "to" => to = Some(endpoint(value).map_err(wrong)?),
            "role" => policy.role = role(value).map_err(wrong)?,
            "cost" => policy.cost = number(value, 0, u32::MAX).map_err(wrong)?,
            "weight" => policy.weight = number(value, 1, WEIGHT_MAX).map_err(wrong)?,
            "limit" => {
                let bytes = units::rate(value).map_err(wrong)? / 8;
                policy.limit = NonZeroU64::new(bytes.max(1));
            }
            _ => policy.budget = Some(units::size_positive(value).map_err(wrong)?),
        }
    }
    let options = PathOptions { begin, to, policy };
    Ok(NamedPath { name, options })
}

/// A place, and what it is called.
fn named_place(text: &str) -> Result<(String, LocalPath), String> {
    const EXPECTED: &str = "expected an interface, such as wlan0, or an address of this machine";
    let (name, place) = match text.split_once('=') {
        Some((name, place)) if !name.is_empty() => (Some(name), place),
        Some(_) => return Err(EXPECTED.to_owned()),
        None => (None, text),
    };
    check_host(place)?;
    let address = place.trim_start_matches('[').trim_end_matches(']');
    let begin = match address.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() || address.is_multicast() => {
            return Err(format!("{address} is no address of one machine"));
        }
        Ok(address) => LocalPath::Address(address),
        Err(_) if is_interface(place) => LocalPath::Interface(place.to_owned()),
        Err(_) => return Err(EXPECTED.to_owned()),
    };
    let name = name.map_or_else(|| begin.to_string(), str::to_owned);
    Ok((name, begin))
}

fn endpoint(text: &str) -> Result<String, String> {
    check_host(text)?;
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    match port.map(|(_, port)| port.parse::<u16>()) {
        Some(Ok(1..)) => Ok(text.to_owned()),
        _ => Err("expected HOST:PORT".to_owned()),
    }
}

fn role(text: &str) -> Result<PathRole, String> {
    match text {
        "primary" => Ok(PathRole::Primary),
        "backup" => Ok(PathRole::Backup),
        _ => Err("expected primary or backup".to_owned()),
    }
}

fn number(text: &str, least: u32, most: u32) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n| (least..=most).contains(n));
    number.ok_or_else(|| format!("expected a number from {least} to {most}"))
}

/// Whether the kernel would take this as a name.
fn is_interface(name: &str) -> bool {
    let is_allowed = |c: char| !c.is_whitespace() && !c.is_control() && !"/:[]".contains(c);
    (1..=INTERFACE_MAX).contains(&name.len())
        && name.chars().all(is_allowed)
        && !matches!(name, "." | "..")
}

/// What `--bond` takes.
fn mode(text: &str) -> Result<Mode, String> {
    if let Some(sc) = Sc::by_name(text) {
        return Ok(Mode::Sc(sc));
    }
    bond(text).map(Mode::Bond).map_err(|error| {
        let schemes: Vec<_> = Sc::names().collect();
        format!("{error}, or {}", schemes.join(", "))
    })
}

/// What a session may be told to do with its paths while it runs.
pub(crate) fn bond(text: &str) -> Result<Bond, String> {
    const EXPECTED: &str = "expected aggregate, redundant, redundant:K, backup, cheapest";
    let bond = match text {
        "aggregate" => Bond::Aggregate,
        "redundant" => Bond::Redundant { copies: 0 },
        "backup" => Bond::Backup,
        "cheapest" => Bond::Cheapest,
        _ => match text.strip_prefix("redundant:") {
            Some(copies) => Bond::Redundant {
                copies: number(copies, 2, PATHS_MAX as u32)? as u8,
            },
            None => return Err(EXPECTED.to_owned()),
        },
    };
    Ok(bond)
}

fn wrong(message: String, hint: &str) -> Failure {
    fail_hint(ErrorKind::Usage, message, hint)
}

impl PathArgs {
    /// The scheme for a bounded buffer, if one is wanted.
    pub(crate) fn sc(&self) -> Option<Sc> {
        match self.bond {
            Mode::Sc(sc) => Some(sc),
            Mode::Bond(_) => None,
        }
    }

    /// Whether paths were chosen.
    pub(crate) fn is_used(&self) -> bool {
        !self.path.is_empty()
    }

    /// Whether they follow the machine's uplinks.
    pub(crate) fn is_auto(&self) -> bool {
        self.path.contains(&Wanted::Auto)
    }

    /// What the paths are called, in the order of the options' paths.
    pub(crate) fn names(&self) -> Names {
        let names = self.path.iter().map(|wanted| match wanted {
            // An automatic path is named after its interface, which is known once there is a session.
            Wanted::Auto => String::new(),
            Wanted::Path(path) => path.name.clone(),
        });
        Names::new(names.collect())
    }

    /// The options with these paths. With [`auto`](Self::is_auto) there is one at first, where routing sends it.
    ///
    /// # Errors
    /// If one is named twice, or there are too many, or fewer than the mode needs.
    pub(crate) fn apply(&self, options: Options) -> Outcome<Options> {
        if self.is_auto() && self.path.len() > 1 {
            return Err(wrong(
                "--path auto stands alone".to_owned(),
                "name every path, or leave all of them to auto",
            ));
        }
        let (mut paths, mut names): (Vec<PathOptions>, Vec<&str>) = Default::default();
        for wanted in &self.path {
            let Wanted::Path(NamedPath { name, options }) = wanted else {
                paths.push(LocalPath::Routed.into());
                continue;
            };
            if paths.iter().any(|known| known.begin == options.begin) {
                return Err(wrong(
                    format!("--path {} is given twice", options.begin),
                    "each path needs an interface, or an address, of its own",
                ));
            }
            if names.contains(&name.as_str()) {
                return Err(wrong(
                    format!("two paths are called {name}"),
                    "reports name paths: choose another name",
                ));
            }
            names.push(name);
            paths.push(options.clone());
        }
        if paths.len() > PATHS_MAX {
            return Err(wrong(
                format!("{} paths: a session has at most {PATHS_MAX}", paths.len()),
                "leave the slowest ones out",
            ));
        }
        let bond = match self.bond {
            Mode::Bond(bond) => bond,
            Mode::Sc(_) => Bond::default(),
        };
        if let Bond::Redundant { copies } = bond
            && usize::from(copies) > paths.len()
            && !self.is_auto()
        {
            return Err(wrong(
                format!("--bond {bond}: there are only {} paths", paths.len()),
                "redundant, without a number, uses all of them",
            ));
        }
        if !paths.is_empty()
            && paths
                .iter()
                .all(|path| path.policy.role == PathRole::Backup)
        {
            return Err(wrong(
                "all paths have role=backup".to_owned(),
                "a backup takes over from a path without it",
            ));
        }
        if matches!(self.couple, Couple::Lia | Couple::Olia) && options.cc != Cc::AimdEcn {
            return Err(wrong(
                format!("--couple {} is for --cc aimd-ecn", self.couple),
                "other rate controls have no window that grows by steps; --couple auto is for all",
            ));
        }
        Ok(Options {
            paths,
            bond,
            couple: self.couple,
            sc: self.sc(),
            ..options
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn places() {
        let interface = LocalPath::Interface("wlan0".to_owned());
        let wlan = path("wlan0").expect("a path");
        assert_eq!(
            (wlan.name.as_str(), wlan.options),
            ("wlan0", interface.into())
        );
        let address = LocalPath::Address([10, 0, 0, 1].into());
        assert_eq!(path("lte=10.0.0.1").expect("a path").name, "lte");
        assert_eq!(path("10.0.0.1").expect("a path").options, address.into());
        assert!(matches!(
            path("[fd00::1]").expect("a path").options.begin,
            LocalPath::Address(_)
        ));
    }

    #[test]
    fn auto_stands_alone() {
        let auto = applied(&["auto"], "redundant:2").expect("more may come");
        assert_eq!(auto.paths, [LocalPath::Routed.into()]);
        let failure = applied(&["auto", "wlan0"], "aggregate").expect_err("two");
        assert_eq!(failure.kind, ErrorKind::Usage);
    }

    #[test]
    fn what_a_path_is_for() {
        let text = "lte=wwan0,to=a.example:7,role=backup,cost=5,weight=3,limit=8mbit,budget=2GB";
        let options = path(text).expect(text).options;
        assert_eq!(options.to.as_deref(), Some("a.example:7"));
        let expected = PathPolicy {
            role: PathRole::Backup,
            cost: 5,
            weight: 3,
            limit: NonZeroU64::new(1_000_000),
            budget: Some(2_000_000_000),
        };
        assert_eq!(options.policy, expected);
    }

    #[test]
    fn what_cannot_be() {
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
            "wlan0,budget=0",
            "wlan0,cost=-1",
            "wlan0,cost=1,cost=2",
            "wlan0,weight=0",
            "wlan0,weight=101",
            "wlan0,limit=0",
            "wlan0,role=spare",
            "wlan0,to=host",
            "wlan0,to=:7",
            "wlan0,to=host:0",
        ] {
            assert!(path(bad).is_err(), "{bad}");
        }
        for bad in ["fe80::1", "[fe80::1%wlan0]", "wlan0,to=[fe80::1]:7"] {
            assert!(path(bad).unwrap_err().contains("link-local"), "{bad}");
        }
    }

    #[test]
    fn modes() {
        assert_eq!(mode("sc:rlnc"), Ok(Mode::Sc(Sc::Rlnc)));
        assert_eq!(mode("backup"), Ok(Mode::Bond(Bond::Backup)));
        assert!(mode("sc:").unwrap_err().contains("min-rtt"));
        for (text, expected) in [
            ("aggregate", Bond::Aggregate),
            ("redundant", Bond::Redundant { copies: 0 }),
            ("redundant:2", Bond::Redundant { copies: 2 }),
            ("backup", Bond::Backup),
            ("cheapest", Bond::Cheapest),
        ] {
            assert_eq!(bond(text), Ok(expected));
            assert_eq!(expected.to_string(), text);
        }
        for bad in [
            "fast",
            "redundantly",
            "redundant:",
            "redundant:1",
            "redundant:9",
        ] {
            assert!(bond(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_windows_that_grow_by_steps_are_coupled() {
        assert_eq!(couple("lia"), Ok(Couple::Lia));
        assert!(couple("both").unwrap_err().contains("auto, off, lia, olia"));
        let args = PathArgs {
            path: vec![wanted("wlan0").expect("a path")],
            bond: Mode::Bond(Bond::Aggregate),
            couple: Couple::Olia,
        };
        let of = |cc| {
            args.apply(Options {
                cc,
                ..Options::default()
            })
        };
        assert!(of(Cc::Bbr).is_err());
        assert_eq!(of(Cc::AimdEcn).expect("it can be").couple, Couple::Olia);
    }

    fn applied(paths: &[&str], bond: &str) -> Outcome<Options> {
        let args = PathArgs {
            path: paths.iter().map(|text| wanted(text).expect(text)).collect(),
            bond: mode(bond).expect(bond),
            couple: Couple::default(),
        };
        args.apply(Options::default())
    }

    #[test]
    fn what_does_not_go_together() {
        assert!(applied(&[], "aggregate").is_ok());
        let two = applied(&["a", "b,cost=2"], "redundant:2").expect("two paths");
        assert_eq!(
            (two.paths.len(), two.bond),
            (2, Bond::Redundant { copies: 2 })
        );
        let nine = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        for (paths, mode, word) in [
            (&["a", "x=a"][..], "aggregate", "twice"),
            (&["x=a", "x=b"], "aggregate", "called x"),
            (&nine, "aggregate", "at most 8"),
            (&["a", "b"], "redundant:3", "only 2"),
            (&["a,role=backup"], "aggregate", "role=backup"),
        ] {
            let failure = applied(paths, mode).expect_err(word);
            assert_eq!(failure.kind, ErrorKind::Usage);
            assert!(failure.message.contains(word), "{}", failure.message);
        }
    }

    proptest! {
        #[test]
        fn total(text in ".*", value in "[^,]*") {
            let _ = (wanted(&text), bond(&text));
            for key in KEYS {
                let _ = path(&format!("wlan0,{key}={value}"));
            }
        }
    }
}
