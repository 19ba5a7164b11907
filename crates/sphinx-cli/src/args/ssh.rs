//! How ssh starts the other end, and the command that it starts there.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::error::Error;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use sphinx_transport::Service;

use super::CommonArgs;
use crate::text::printable;

/// The ssh that is run unless another one is named.
const RSH: &str = "ssh";

/// Flags of every command that has ssh start the other end.
#[derive(Args, Debug)]
#[command(next_help_heading = "The other end")]
pub(crate) struct SshArgs {
    /// The ssh to run, with its options: 'ssh -p 2222'; split into words, no shell sees it
    #[arg(short = 'e', long, value_name = "CMD", default_value = RSH)]
    pub(crate) rsh: OsString,
    /// UDP ports that an end may listen on
    #[arg(long, value_name = "PORT[-PORT]", default_value_t = Ports::DEFAULT)]
    pub(crate) udp_port: Ports,
    /// The sphx to run there; a leading ~/ is the home directory there [default: what --push has put there, or sphx]
    #[arg(long, value_name = "PATH")]
    pub(crate) remote_sphx: Option<OsString>,
    /// Where there is no sphx, or one of another version, put this one into ~/.cache/sphx there, if system and processor are the same; asks on a terminal
    #[arg(long, conflicts_with = "remote_sphx")]
    pub(crate) push: bool,
    #[command(flatten)]
    pub(crate) written: Written,
}

impl SshArgs {
    /// Words of another command that is to get there in the same way.
    pub(crate) fn same_way(&self) -> Vec<String> {
        let shown = |text: &OsString| printable(text.as_encoded_bytes());
        let rsh = (self.rsh != RSH).then(|| ["-e".to_owned(), shown(&self.rsh)]);
        let sphx = self.remote_sphx.as_ref();
        let sphx = sphx.map(|sphx| ["--remote-sphx".to_owned(), shown(sphx)]);
        rsh.into_iter().chain(sphx).flatten().collect()
    }
}

/// What ssh starts at the other end: what it has to know to listen at once. Everything else comes through its pipe.
#[derive(Args, Debug)]
pub(crate) struct SshEndArgs {
    /// UDP ports to listen on
    #[arg(long, value_name = "PORT[-PORT]")]
    pub(crate) udp_port: Ports,
    /// Serve a measurement, not files
    #[arg(long)]
    pub(crate) measure: bool,
    #[command(flatten)]
    pub(crate) written: Written,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

impl SshEndArgs {
    /// What makes the other end know it.
    pub(crate) fn line(ports: Ports, service: Service, written: &Written) -> Vec<String> {
        let measure = (service == Service::Perf).then(|| "--measure".to_owned());
        [format!("--udp-port={ports}")]
            .into_iter()
            .chain(measure)
            .chain(written.0.iter().cloned())
            .collect()
    }
}

/// Ports to try in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    pub(crate) first: u16,
    pub(crate) last: u16,
}

impl Ports {
    /// Those of mosh: where that is let in, this is too.
    const DEFAULT: Self = Self {
        first: 60_000,
        last: 61_000,
    };

    pub(crate) fn iter(self) -> impl DoubleEndedIterator<Item = u16> {
        self.first..=self.last
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => self.first.fmt(f),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(format!(
                "'{text}' is no port or range of ports, such as 60000 or 60000-60010"
            )),
        }
    }
}

/// Options of the engine as they were written, for the other end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written(pub(crate) Vec<String>);

/// What makes sense at both ends, with a value.
const WITH_VALUE: [&str; 10] = [
    "codec",
    "profile",
    "epsilon",
    "icm",
    "cc",
    "ecn",
    "limit",
    "memory",
    "connect_timeout",
    "idle_timeout",
];
/// The same without one, and how it is written.
const WITHOUT: [(&str, &str); 2] = [("ipv4", "-4"), ("ipv6", "-6")];

impl FromArgMatches for Written {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let is_given = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
        let values = WITH_VALUE.into_iter().filter(|id| is_given(id));
        let values = values.flat_map(|id| {
            let raw = matches.get_raw(id).into_iter().flatten();
            raw.map(move |value| format!("--{}={}", id.replace('_', "-"), value.to_string_lossy()))
        });
        let flags = WITHOUT.into_iter().filter(|(id, _)| is_given(id));
        let flags = flags.map(|(_, written)| written.to_owned());
        Ok(Self(values.chain(flags).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Written {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

/// How long to try UDP before doing without, at either end.
pub(crate) fn udp_patience(written: &[String], common: &CommonArgs) -> Duration {
    const USUAL: Duration = Duration::from_secs(2);
    let is_given = (written.iter()).any(|option| option.starts_with("--connect-timeout="));
    if is_given {
        common.connect_timeout
    } else {
        USUAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    /// What the other end understands.
    fn end(line: &[String]) -> Option<SshEndArgs> {
        let words = ["sphx", "ssh-end"]
            .into_iter()
            .chain(line.iter().map(String::as_str));
        match Cli::try_parse_from(words).ok()?.command {
            Command::SshEnd(args) => Some(args),
            _ => None,
        }
    }

    #[test]
    fn ports() {
        assert_eq!("7".parse(), Ok(Ports { first: 7, last: 7 }));
        for text in ["60000-60010", "7749"] {
            assert_eq!(text.parse::<Ports>().unwrap().to_string(), text);
        }
        for wrong in ["", "0", "-", "5-", "5-4", "65536", "1-2-3", "a"] {
            assert!(wrong.parse::<Ports>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_other_end_hears_of_the_engine() {
        let line = "sphx cp -4 --cc fixed:1mbit --limit=2mbit --json a h:b";
        let cli = Cli::try_parse_from(line.split(' ')).expect(line);
        let Command::Cp(args) = cli.command else {
            panic!("{line}");
        };
        assert_eq!(
            args.ssh.written.0,
            ["--cc=fixed:1mbit", "--limit=2mbit", "-4"]
        );
        let line = SshEndArgs::line(args.ssh.udp_port, Service::Perf, &args.ssh.written);
        let end = end(&line).expect("what was written");
        assert!(end.measure && end.common.ipv4 && !end.common.json);
        assert_eq!(end.udp_port, args.ssh.udp_port);
        assert_eq!(end.common.limit, args.common.limit);
        assert_eq!(end.written.0, args.ssh.written.0);
        assert!(Cli::try_parse_from(["sphx", "ssh-end"]).is_err());
        assert_eq!(udp_patience(&[], &end.common), Duration::from_secs(2));
        let written = Written(vec!["--connect-timeout=7s".to_owned()]);
        let line = SshEndArgs::line(Ports::DEFAULT, Service::Files, &written);
        let end = self::end(&line).expect("an option");
        assert!(!end.measure);
        let patience = udp_patience(&end.written.0, &end.common);
        assert_eq!(patience, Duration::from_secs(7));
    }
}
