//! The command line.

use std::{ffi::OsString, path::PathBuf};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Subcommand};
use sphinx_link::settings::{MODELS, SETTINGS};

use super::place::NAME;

const EXAMPLES: &str = "\
The link joins two network namespaces, left (10.77.0.1, fd77::1) and right (10.77.0.2, fd77::2).
Settings hold for both directions; --forward KEY=VALUE sets one from left to right only, --return
KEY=VALUE from right to left. The same KEY=VALUE works while it runs, with 'sphx lab link set'.

Examples:
  sphx lab link --rate 20mbit --rtt 100ms --loss 1% -- ping -c 5 10.77.0.2
  sphx lab link --rate 100mbit --rtt 20ms --queue 40ms --right 'iperf3 -s -1' -- iperf3 -c 10.77.0.2
  sphx lab link --loss burst:2%,6 --return loss=0 --left bash --right 'python3 -m http.server'
  sphx lab link --like wifi --right 'iperf3 -s -1' -- iperf3 -c 10.77.0.2
  sphx lab link --rate trace:docs/examples/lte.down --log drops.ndjson --pcap caps
  sphx lab link --rate 20mbit --rtt 10ms --loss 1% --agent snoop --right 'iperf3 -s -1' -- iperf3 -c 10.77.0.2
  sphx lab link --interfaces eth1,eth2 --rtt 80ms --loss 2%     a box in the middle of a cable
  sphx lab link set loss=5% return.rate=1mbit       from another terminal, or from inside
  sphx lab link show

The exit code is that of the left command (without one, of the right command); 2, 8 and others are
those of 'sphx --help' when the link itself fails.";

/// `sphx lab link`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct LinkArgs {
    /// What to do with a link that runs.
    #[command(subcommand)]
    pub command: Option<LinkCommand>,
    /// The link to run.
    #[command(flatten)]
    pub run: RunArgs,
}

/// What can be done with a link that runs.
#[derive(Debug, Subcommand)]
pub enum LinkCommand {
    /// Change a running link
    Set(SetArgs),
    /// Show the settings and counters of a running link
    Show(ShowArgs),
    /// The first process of the commands' namespace (used by this program itself)
    #[command(name = "__init", hide = true)]
    Init,
}

/// A link to run.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Run this at the left end (by the shell)
    #[arg(long, value_name = "CMD")]
    pub left: Option<String>,
    /// Run this at the right end (by the shell), first; the left one follows when it listens
    #[arg(long, value_name = "CMD")]
    pub right: Option<String>,
    /// Run this at the left end
    #[arg(last = true, value_name = "CMD", conflicts_with = "left")]
    pub words: Vec<OsString>,
    /// Read settings from this file (TOML); what is on the command line comes on top
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of the link, for 'set' and 'show' [default: link]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Capture the packets of both ends into DIR/left.pcap and DIR/right.pcap
    #[arg(long, value_name = "DIR")]
    pub pcap: Option<PathBuf>,
    /// Write what happened to which packet, and why, to this file (one JSON object per line)
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Join two Ethernet interfaces of this machine instead of namespaces; they need no addresses
    #[arg(long, value_name = "LEFT,RIGHT", value_parser = interfaces)]
    #[arg(conflicts_with_all = ["left", "right", "words", "interface_mtu"])]
    pub interfaces: Option<[String; 2]>,
    /// MTU of the interfaces at both ends; below 1280 they have no IPv6 [default: 1500]
    #[arg(long, value_name = "BYTES", value_parser = sphinx_units::packet_size)]
    pub interface_mtu: Option<usize>,
    /// Help for TCP in front of the link, at its left end: as 'sphx pep run --agent', with this link as the lossy hop
    #[arg(long, value_name = "NAME[:KEY=VALUE,…]", conflicts_with = "interfaces")]
    pub agent: Vec<String>,
    /// JSON lines on standard output; that of the commands goes to standard error
    #[arg(long)]
    pub json: bool,
    /// Say nothing but errors
    #[arg(long, short)]
    pub quiet: bool,
    /// The link's settings. (Their heading would hold for what is behind them.)
    #[command(flatten)]
    pub settings: SettingFlags,
}

/// A change to make.
#[derive(Args, Debug)]
pub struct SetArgs {
    /// What to change: loss=2%, forward.rate=5mbit, return.delay=50ms, rtt=100ms
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Name of the link
    #[arg(long, value_name = "NAME", default_value = NAME)]
    pub name: String,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// A link to look at.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Name of the link
    #[arg(long, value_name = "NAME", default_value = NAME)]
    pub name: String,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// A flag for every setting, `--rtt`, `--forward` and `--return`: keys and values in this order, so
/// that what is special comes after what is general.
#[derive(Debug, Default)]
pub struct SettingFlags(pub Vec<(String, String)>);

/// Flags for one direction, and the prefix of their keys.
const DIRECTIONS: [(&str, &str, &str); 2] = [
    ("forward", "forward.", "Set KEY from left to right only"),
    ("return", "return.", "Set KEY from right to left only"),
];

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        let command = command.next_help_heading("Link (each direction)");
        let rtt = Arg::new("rtt")
            .long("rtt")
            .value_name("DURATION")
            .help("Round-trip time: sets the delay of each direction to half of it");
        let models: Vec<String> = (MODELS.iter())
            .map(|model| format!("- {}: {}", model.name, model.help))
            .collect();
        let like = Arg::new("like")
            .long("like")
            .value_name("KIND")
            .help(format!(
                "A link as people have them, where nothing else is said:\n{}",
                models.join("\n")
            ));
        let command = SETTINGS
            .iter()
            .fold(command.arg(like).arg(rtt), |command, setting| {
                let help = format!("{} [default: {}]", setting.help, setting.default);
                let arg = Arg::new(setting.key)
                    .long(setting.key)
                    .value_name(setting.value_name)
                    .help(help);
                command.arg(match setting.key {
                    "delay" => arg.conflicts_with("rtt"),
                    _ => arg,
                })
            });
        DIRECTIONS.iter().fold(command, |command, (flag, _, help)| {
            let arg = Arg::new(*flag).long(*flag).value_name("KEY=VALUE");
            command.arg(arg.help(*help).action(clap::ArgAction::Append))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        SettingFlags::augment_args(command)
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SettingFlags, clap::Error> {
        let mut flags = SettingFlags::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let keys = ["like", "rtt"]
            .into_iter()
            .chain(SETTINGS.iter().map(|setting| setting.key));
        for key in keys {
            if let Some(value) = matches.get_one::<String>(key) {
                self.0.push((key.to_owned(), value.clone()));
            }
        }
        for (flag, prefix, _) in DIRECTIONS {
            for text in matches.get_many::<String>(flag).unwrap_or_default() {
                let Some((key, value)) = text.split_once('=') else {
                    let message = format!("--{flag} {text}: write KEY=VALUE, such as loss=2%\n");
                    return Err(clap::Error::raw(
                        clap::error::ErrorKind::ValueValidation,
                        message,
                    ));
                };
                self.0
                    .push((format!("{prefix}{}", key.trim()), value.to_owned()));
            }
        }
        Ok(())
    }
}

fn interfaces(text: &str) -> Result<[String; 2], String> {
    match text.split_once(',') {
        Some((left, right)) if left != right => Ok([left.to_owned(), right.to_owned()]),
        _ => Err("write two names, such as eth1,eth2".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        link: LinkArgs,
    }

    fn parse(line: &str) -> Result<LinkArgs, clap::Error> {
        Line::try_parse_from(line.split_whitespace()).map(|line| line.link)
    }

    #[test]
    fn the_grammar_is_consistent() {
        Line::command().debug_assert();
    }

    #[test]
    fn what_can_be_written() {
        let link = parse(
            "link --rate 20mbit --rtt 10ms --return rate=1mbit --return loss=0 --loss 2% \
             --right x --name n -- ping -c 5",
        )
        .unwrap();
        assert_eq!(link.run.words, ["ping", "-c", "5"]);
        let settings: Vec<String> = (link.run.settings.0)
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        assert_eq!(
            settings,
            [
                "rtt=10ms",
                "rate=20mbit",
                "loss=2%",
                "return.rate=1mbit",
                "return.loss=0"
            ]
        );
        let link = parse("link set loss=2% --name x").unwrap();
        assert!(matches!(link.command, Some(LinkCommand::Set(set)) if set.name == "x"));
        assert!(parse("link").unwrap().command.is_none());
    }

    #[test]
    fn what_cannot() {
        for (line, reason) in [
            ("link --rtt 1ms --delay 1ms", "cannot be used with"),
            ("link --left a -- b", "cannot be used with"),
            ("link --return loss", "write KEY=VALUE"),
            ("link --interfaces a", "write two names"),
            ("link --interfaces a,b -- ping", "cannot be used with"),
            ("link set", "required"),
            ("link ping", "unexpected argument"),
            ("link --rate 1mbit show", "unexpected argument"),
        ] {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}
