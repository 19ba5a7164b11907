//! How `--agent` is written.

mod ack_cc;
mod ack_filter;

use std::fmt::{self, Write};

use sphinx_pep::acks::{AckCc, AckFilter, Marks};
use sphinx_pep::rdb::{ITT_NS_MIN, Mode, Rdb, Response, Thin};
use sphinx_pep::returning::Returning;
use sphinx_pep::rsfc::{self, Rsfc, TARGET_NS_MIN};
use sphinx_pep::{Config, Place, Profile, Stage};

use crate::units;

/// Names of stages without settings.
const RECONSTRUCT: &str = "ack-reconstruct";
const NO_LIMITED_TRANSMIT: &str = "no-limited-transmit";
const PACE: &str = "pace";

/// What one `--agent` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// What is done with data.
    Data(Stage),
    /// What is done with acknowledgements.
    AckFilter(AckFilter),
    /// Whether acknowledgements become fewer while they wait.
    AckCc(AckCc),
    /// What is done with acknowledgements that come from the hop.
    Returning(Returning),
    /// Segments are paced.
    Pace,
    /// What is done about uploads.
    Rsfc(Rsfc),
}

/// What all `--agent` options of a command say together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stages {
    pub(crate) data: Stage,
    pub(crate) ack_filter: Option<AckFilter>,
    pub(crate) ack_cc: Option<AckCc>,
    pub(crate) returning: Returning,
    pub(crate) pace: bool,
    pub(crate) rsfc: Option<Rsfc>,
}

impl Stages {
    /// A stage for data, and none of the other stages.
    pub(crate) fn data(data: Stage) -> Stages {
        Stages {
            data,
            ack_filter: None,
            ack_cc: None,
            returning: Returning::Pass,
            pace: false,
            rsfc: None,
        }
    }

    /// The stages of an agent with these settings.
    pub(crate) fn of(config: &Config) -> Stages {
        Stages {
            data: config.stage,
            ack_filter: config.ack_filter,
            ack_cc: config.ack_cc,
            returning: config.returning,
            pace: config.pace,
            rsfc: config.rsfc,
        }
    }

    /// `config` with these stages in the place of its own.
    pub(crate) fn set(self, config: Config) -> Config {
        Config {
            stage: self.data,
            ack_filter: self.ack_filter,
            ack_cc: self.ack_cc,
            returning: self.returning,
            pace: self.pace,
            rsfc: self.rsfc,
            ..config
        }
    }

    /// Each kind once.
    ///
    /// # Errors
    ///
    /// Says which two cannot be.
    pub(crate) fn together(chosen: &[Chosen]) -> Result<Stages, String> {
        let mut stages = Stages::data(Stage::Pass);
        let mut data = None;
        for chosen in chosen {
            let twice = match chosen {
                Chosen::Data(stage) => data.replace(*stage).is_some(),
                Chosen::AckFilter(filter) => stages.ack_filter.replace(*filter).is_some(),
                Chosen::AckCc(cc) => stages.ack_cc.replace(*cc).is_some(),
                Chosen::Returning(what) => {
                    std::mem::replace(&mut stages.returning, *what) != Returning::Pass
                }
                Chosen::Pace => std::mem::replace(&mut stages.pace, true),
                Chosen::Rsfc(settings) => stages.rsfc.replace(*settings).is_some(),
            };
            if twice {
                let name = match chosen {
                    Chosen::Data(_) => "snoop or rdb",
                    Chosen::AckFilter(_) => "ack-filter",
                    Chosen::AckCc(_) => "ack-cc",
                    Chosen::Returning(_) => "ack-reconstruct or no-limited-transmit",
                    Chosen::Pace => "pace",
                    Chosen::Rsfc(_) => "rsfc",
                };
                return Err(format!("--agent: one {name} is enough"));
            }
        }
        Ok(Stages {
            data: data.unwrap_or(Stage::Pass),
            ..stages
        })
    }
}

impl fmt::Display for Stages {
    /// Writes the stages as `--agent` reads them, with blanks between them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let data = match self.data {
            Stage::Pass => None,
            Stage::Snoop(Profile::Sack) => Some("snoop:profile=sack".to_owned()),
            Stage::Snoop(Profile::Classic) => Some("snoop:profile=classic".to_owned()),
            Stage::Snoop(Profile::Ll) => Some("snoop:profile=ll".to_owned()),
            Stage::Rdb(rdb) => Some(written_rdb(&rdb)),
        };
        let filter = self.ack_filter.map(|filter| ack_filter::written(&filter));
        let rsfc = self.rsfc.map(|rsfc| {
            let mode = match rsfc.mode {
                rsfc::Mode::Rsfc => None,
                rsfc::Mode::Rledbat => Some("mode=rledbat".to_owned()),
            };
            let target = rsfc.target_ns.map(|ns| format!("target={}us", ns / 1000));
            let keys: Vec<String> = mode.into_iter().chain(target).collect();
            match keys.is_empty() {
                true => "rsfc".to_owned(),
                false => format!("rsfc:{}", keys.join(",")),
            }
        });
        let cc = self.ack_cc.map(|cc| ack_cc::written(&cc));
        let returning = match self.returning {
            Returning::Pass => None,
            Returning::Reconstruct => Some(RECONSTRUCT.to_owned()),
            Returning::NoLimitedTransmit => Some(NO_LIMITED_TRANSMIT.to_owned()),
        };
        let pace = self.pace.then(|| PACE.to_owned());
        let all = [data, filter, cc, returning, pace, rsfc];
        let all: Vec<String> = all.into_iter().flatten().collect();
        f.write_str(&all.join(" "))
    }
}

/// Whether the settings of an agent can be together.
///
/// # Errors
///
/// Says which cannot.
pub(super) fn check(config: &Config) -> Result<(), String> {
    if config.reports && !matches!(config.stage, Stage::Snoop(_)) {
        let why = "agent: this one reports losses of uploads (--eln base), for which there has to be snoop: agent=snoop as well";
        return Err(why.to_owned());
    }
    let has_queue = config
        .ack_filter
        .is_some_and(|filter| filter.queue.is_some());
    if let Some(cc) = config.ack_cc {
        let filter = config.ack_filter;
        let why = if filter.is_some_and(|filter| filter.every_ns.is_some()) {
            "every: it is there in ack-filter, and lets acknowledgements wait too: one of the two"
        } else if has_queue && cc.queue.is_some() {
            "rate: there is that of ack-filter, which is a queue to the same hop: one of the two"
        } else if config.radio.is_some() && cc.queue.is_some() {
            "rate: there is --radio-rate, which is a queue to the same hop: one of the two"
        } else if cc.marks == Marks::Hear && cc.queue.is_some() {
            "rate: with marks=hear, the queue is that of the machine that tells: one of the two"
        } else if cc.marks != Marks::Hear && !has_queue && cc.queue.is_none() {
            "rate: how long acknowledgements wait is known of a queue of the agent's own: rate=RATE, slightly less than what the link \
             carries, here or in ack-filter"
        } else {
            ""
        };
        if !why.is_empty() {
            return Err(format!("ack-cc: {why}"));
        }
    }
    match config.radio {
        Some(_) if has_queue => {
            let why = "ack-filter: rate: there is --radio-rate, which is a queue to the same hop: one of the two";
            Err(why.to_owned())
        }
        _ => Ok(()),
    }
}

/// What an agent has from its start on, whatever its settings become.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ways {
    /// Only small packets of chosen connections of this machine come.
    pub(super) own: bool,
    /// There is a way to agents of other hops, for hand-overs.
    pub(super) moves: bool,
    /// There is a way to another machine, for marks of acknowledgements.
    pub(super) marks: bool,
}

/// Whether the settings are for an agent with these ways.
///
/// # Errors
///
/// Says which is not, by the option of `sphx pep run`.
pub(super) fn check_ways(config: &Config, ways: Ways) -> Result<(), String> {
    let is_rdb = matches!(config.stage, Stage::Rdb(_));
    let is_snoop = matches!(config.stage, Stage::Snoop(_));
    let of_snoop = [
        (config.reports || config.place == Place::Mobile, "--eln"),
        (ways.moves, "--handoff-key"),
        (config.radio.is_some(), "--radio-rate"),
        (config.repair_dscp.is_some(), "--repair-dscp"),
    ];
    match of_snoop.iter().find(|(given, _)| *given) {
        Some((_, option)) if !is_snoop => Err(format!("{option} is for --agent snoop")),
        _ if ways.own && Stages::of(config) != Stages::data(config.stage) => Err(
            "only snoop and rdb can be for chosen connections: other agents stand beside a link (--wireless): of chosen connections of this machine, large packets do not come by"
                .to_owned(),
        ),
        _ if ways.own && !is_rdb => Err(
            "--port, --uid and --cgroup are for --agent rdb: snoop stands beside a hop (--wireless)"
                .to_owned(),
        ),
        _ => Ok(()),
    }
}

/// Whether all stages can do without another machine.
///
/// # Errors
///
/// Says which cannot.
pub(super) fn check_alone(config: &Config) -> Result<(), String> {
    match config.ack_cc {
        Some(cc) if cc.marks != Marks::Own => {
            Err("ack-cc: marks: only 'sphx pep run' has a way to another machine".to_owned())
        }
        _ => Ok(()),
    }
}

/// Whether a stage needs a key that is shared with another machine, or cannot do with one; `given` says whether there is one.
///
/// # Errors
///
/// Says what is missing, or needless.
pub(super) fn check_marks(config: &Config, given: bool) -> Result<(), String> {
    let wanted = config.ack_cc.is_some_and(|cc| cc.marks != Marks::Own);
    match (wanted, given) {
        (true, false) => Err(
            "ack-cc: marks: --marks-key FILE, of 'sphx pep key new', has to be there from the start, on both machines"
                .to_owned(),
        ),
        (false, true) => Err("--marks-key is for --agent ack-cc:marks=tell or marks=hear".to_owned()),
        _ => Ok(()),
    }
}

/// Reads `snoop`, `snoop:profile=ll`, `rdb`, `rdb:max_packets=0,mode=paper`, `ack-filter:rate=480kbit`, `rsfc` or `rsfc:target=30ms`.
///
/// # Errors
///
/// Says what can be written.
pub(super) fn read(text: &str) -> Result<Chosen, String> {
    let (name, settings) = match text.split_once(':') {
        Some((name, settings)) => (name, settings.split(',').collect()),
        None => (text, Vec::new()),
    };
    let snoop = |profile| Ok(Chosen::Data(Stage::Snoop(profile)));
    match (name, &settings[..]) {
        ("snoop", [] | ["profile=sack"]) => snoop(Profile::Sack),
        ("snoop", ["profile=classic"]) => snoop(Profile::Classic),
        ("snoop", ["profile=ll"]) => snoop(Profile::Ll),
        ("rdb", settings) => {
            let mut rdb = Rdb::default();
            each(settings, |setting| {
                let (key, value) = setting.split_once('=').ok_or("write KEY=VALUE")?;
                set(&mut rdb, key, value).map_err(|why| format!("{setting}: {why}"))
            })
            .map_err(|why| format!("rdb: {why}"))?;
            Ok(Chosen::Data(Stage::Rdb(rdb)))
        }
        ("rsfc", settings) => {
            let mut rsfc = Rsfc::default();
            each(settings, |setting| {
                if let Some(mode) = setting.strip_prefix("mode=") {
                    rsfc.mode = match mode {
                        "rsfc" => rsfc::Mode::Rsfc,
                        "rledbat" => rsfc::Mode::Rledbat,
                        _ => return Err(format!("{setting}: write rsfc or rledbat")),
                    };
                    return Ok(());
                }
                let value = setting.strip_prefix("target=");
                let value = value.ok_or("the keys are target=TIME and mode=rsfc|rledbat")?;
                let target = units::duration(value).map_err(|why| format!("{setting}: {why}"))?;
                let target = u64::try_from(target.as_nanos()).unwrap_or(u64::MAX);
                if target < TARGET_NS_MIN {
                    return Err(format!("{setting}: 5ms is the shortest"));
                }
                rsfc.target_ns = Some(target);
                Ok(())
            })
            .map_err(|why| format!("rsfc: {why}"))?;
            Ok(Chosen::Rsfc(rsfc))
        }
        ("ack-filter", settings) => {
            let read = ack_filter::read(settings);
            read.map(Chosen::AckFilter)
                .map_err(|why| format!("ack-filter: {why}"))
        }
        ("ack-cc", settings) => ack_cc::read(settings)
            .map(Chosen::AckCc)
            .map_err(|why| format!("ack-cc: {why}")),
        (RECONSTRUCT, []) => Ok(Chosen::Returning(Returning::Reconstruct)),
        (NO_LIMITED_TRANSMIT, []) => Ok(Chosen::Returning(Returning::NoLimitedTransmit)),
        (PACE, []) => Ok(Chosen::Pace),
        (RECONSTRUCT | NO_LIMITED_TRANSMIT | PACE, _) => Err(format!("{name}: it has no keys")),
        _ => Err(
            "write snoop, snoop:profile=sack|classic|ll, rdb or rdb:KEY=VALUE,…, ack-filter:rate=RATE or ack-filter:every=TIME, \
             ack-cc:rate=RATE, ack-reconstruct, pace, rsfc or rsfc:target=TIME"
                .into(),
        ),
    }
}

/// Lets every setting be followed, and each key be there once.
fn each(
    settings: &[&str],
    mut follow: impl FnMut(&str) -> Result<(), String>,
) -> Result<(), String> {
    let mut keys = Vec::new();
    for setting in settings {
        let key = setting.split('=').next().unwrap_or_default();
        if keys.contains(&key) {
            return Err(format!("{key} is there twice"));
        }
        keys.push(key);
        follow(setting)?;
    }
    Ok(())
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
            // A number without a unit is bytes, as in the kernel patch.
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

/// The settings as `--agent` reads them.
fn written_rdb(rdb: &Rdb) -> String {
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

    fn written(chosen: Chosen) -> String {
        Stages::together(&[chosen]).expect("one").to_string()
    }

    #[test]
    fn ways_do_not_fit_all_settings() {
        let own = Ways {
            own: true,
            ..Ways::default()
        };
        let moves = Ways {
            moves: true,
            ..Ways::default()
        };
        let radio = sphinx_pep::Radio {
            bits_per_second: 1_000_000,
            queue_bytes: 1,
        };
        let plain = Config::default();
        let repairs = Config {
            radio: Some(radio),
            repair_dscp: Some(46),
            reports: true,
            ..plain.clone()
        };
        for (config, ways, agents, refused) in [
            (&plain, own, &["rdb"][..], None),
            (&plain, own, &["snoop"], Some("--port")),
            (&plain, own, &["rsfc"], Some("chosen connections")),
            (&plain, own, &["rdb", "pace"], Some("chosen connections")),
            (
                &plain,
                own,
                &["ack-reconstruct"],
                Some("chosen connections"),
            ),
            (&plain, moves, &["snoop", "pace"], None),
            (&plain, moves, &["rdb"], Some("--handoff-key")),
            (&repairs, Ways::default(), &["snoop"], None),
            (&repairs, Ways::default(), &["rdb"], Some("--eln")),
        ] {
            let chosen: Vec<Chosen> = agents.iter().map(|it| read(it).expect(it)).collect();
            let stages = Stages::together(&chosen).expect("one of each");
            let checked = check_ways(&stages.set(config.clone()), ways);
            let why = checked.as_ref().err();
            let is_expected = match (why, refused) {
                (Some(why), Some(words)) => why.contains(words),
                (None, None) => true,
                _ => false,
            };
            assert!(is_expected, "{agents:?}, {ways:?}: {checked:?}");
        }
    }

    #[test]
    fn what_can_be_written() {
        for text in [
            "snoop",
            "snoop:profile=classic",
            "snoop:profile=ll",
            "rdb",
            "rsfc",
            "rsfc:target=30ms",
            "rsfc:mode=rledbat",
            "rsfc:mode=rledbat,target=30ms",
            "ack-cc:rate=1mbit",
            "ack-reconstruct",
            "no-limited-transmit",
            "pace",
        ] {
            let stage = read(text).expect(text);
            assert_eq!(read(&written(stage)), Ok(stage));
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
        let expected = Chosen::Data(Stage::Rdb(expected));
        assert_eq!(read(text), Ok(expected));
        assert_eq!(read(&written(expected)), Ok(expected));
        for (text, reason) in [
            ("eln", "write snoop"),
            ("snoop:profile=x", "write snoop"),
            ("rdb:", "KEY=VALUE"),
            ("rsfc:target=1ms", "5ms is the shortest"),
            ("rsfc:mode=fast", "rsfc or rledbat"),
            ("pace:burst=4", "pace: it has no keys"),
            ("rsfc:rate=1mbit", "the keys are target"),
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

    #[test]
    fn several_together() {
        let all = ["ack-filter:every=20ms", "snoop:profile=ll"].map(|text| read(text).expect(text));
        let stages = Stages::together(&all).expect("both");
        assert_eq!(stages.data, Stage::Snoop(Profile::Ll));
        assert_eq!(
            stages.to_string(),
            "snoop:profile=ll ack-filter:every=20000us"
        );
        assert_eq!(
            Stages::together(&all[..1]).map(|it| it.data),
            Ok(Stage::Pass)
        );
        for (first, second, reason) in [
            ("snoop", "rdb", "one snoop or rdb"),
            ("rsfc", "rsfc:target=9ms", "one rsfc"),
            ("pace", "pace", "one pace"),
            ("ack-cc", "ack-cc:max=9", "one ack-cc"),
            (
                "ack-reconstruct",
                "no-limited-transmit",
                "one ack-reconstruct or",
            ),
            (
                "ack-filter:every=1ms",
                "ack-filter:rate=1mbit",
                "one ack-filter",
            ),
        ] {
            let chosen = [first, second].map(|text| read(text).expect(text));
            let error = Stages::together(&chosen).expect_err(first);
            assert!(error.contains(reason), "{error}");
        }
    }
}
