//! The command line of `sphx pep`.

use std::{
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    time::Duration,
};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use sphinx_pep::{
    Config, Match, Network, Place, Radio, Stage, acks::AckFilter, rdb::Rdb, rsfc::Rsfc,
};

use super::stage::{self, Chosen, Stages};
use crate::failure::{Outcome, usage};
use crate::units;

/// `sphx pep`.
#[derive(Args, Debug)]
pub(crate) struct PepArgs {
    #[command(subcommand)]
    pub(crate) command: PepCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PepCommand {
    /// Help the TCP connections that this machine routes to a lossy hop
    #[command(after_help = "\
Examples:
  sphx pep run --wireless wlan0                    until Ctrl-C; eth0 and all others are wired
  sphx pep run --wireless wlan0 --dry-run          changes no packet, counts what it would do
  sphx pep run --wireless sat0 --wired eth0 --radio-rate 19mbit --json
  sphx pep run --wireless wlan0 --match 'tcp port 443' --match 'host 192.0.2.0/24'
  sphx pep run --config /etc/sphx/pep.toml         the same options, as lines: wireless = 'wlan0'
  sphx pep run --wireless wan0 --agent ack-filter:rate=480kbit      acknowledgements towards a thin uplink
  sphx pep run --wireless eth0 --agent rsfc        uploads that come in there do not fill their senders' links
  sphx pep run --agent rdb --port 25565            thin streams of this machine: games, terminals, control
  sphx pep run --preset game-server --port 25565   the same, as it suits games

Needs root (CAP_NET_ADMIN) and a machine that forwards. When the process dies, traffic goes on
without it. QUIC, VPNs and whatever else is no TCP in the clear is not touched.")]
    Run(RunArgs),
    /// Run a program whose thin TCP streams need not wait for retransmissions
    #[command(after_help = "\
Examples:
  sphx pep exec -- ./game-server --port 25565
  sphx pep exec --agent rdb:max_packets=0 -- sudo -u alice vncviewer host

The program and all that it starts are in a control group of their own, and nothing else is touched.
When it ends, so does the agent; the exit code is the program's. Needs root (CAP_NET_ADMIN).")]
    Exec(ExecArgs),
    /// Run an agent from the start of this machine on, by systemd
    #[command(after_help = "\
Examples:
  sphx pep install --wireless wlan0 --radio-rate 19mbit     installs, and starts
  sphx pep install --wireless wlan0 --print                 shows the unit, changes nothing

The options are those of 'sphx pep run'. A unit that is there already is replaced; if the agent cannot
start, everything is as before. It runs as a user of its own: sphx has to be where everybody may
run it, as in /usr/local/bin.")]
    Install(InstallArgs),
    /// Remove what 'sphx pep install' has installed
    Uninstall(UninstallArgs),
    /// Look for what spoils help on this machine
    #[command(after_help = "\
Examples:
  sphx pep doctor --wireless wlan0
  sphx pep doctor --agent rdb --port 25565         for thin streams of this machine

Changes nothing. What an agent that runs has seen is told too.")]
    Doctor(DoctorArgs),
    /// Show what the agent of this machine does
    #[command(after_help = "\
Examples:
  sphx pep show                       what it has done so far, as far as it has
  sphx pep show --flows               and for which connections
  sphx pep show --watch --json        a line a second, until Ctrl-C

For root, and the user that the agent runs as.")]
    Show(ShowArgs),
    /// Change settings of the agent of this machine: all of them, or none
    #[command(after_help = "\
Examples:
  sphx pep set dry-run=false
  sphx pep set radio-rate=18mbit radio-queue=128KiB lag-max=10ms
  sphx pep set radio-rate=off agent=snoop:profile=ll
  sphx pep set match='tcp port 443' match='host 192.0.2.0/24'

The values are those of the options of 'sphx pep run'. They hold until its worker ends.")]
    Set(SetArgs),
    /// A mobile host goes to another hop: its connections are helped there too
    #[command(after_help = "\
Examples:
  sphx pep handoff 10.0.0.9 --prefill 192.0.2.7:7750    it may go there: that agent is told for a minute
  sphx pep handoff 10.0.0.9 --to 192.0.2.7:7750         it has gone there
  sphx pep handoff 10.0.0.9 --arrived                   it is here now

For whatever knows where mobile hosts are, on the machines beside the hops. The agents there run with
--handoff-key and the same key.")]
    Handoff(HandoffArgs),
    /// Feed a capture to an agent, and write what it would have let out
    #[command(after_help = "\
Example:
  sphx pep replay in.pcap out.pcap --mobile 10.0.0.0/8

Reads pcap files of raw IP or Ethernet packets (not pcapng). The same capture gives the same
result. Segments that were joined, or whose checksums an interface had still to compute, pass
untouched: capture with offloads off, or beside the hop.")]
    Replay(ReplayArgs),
    /// Keys that agents share (--eln-key, --handoff-key, --marks-key)
    #[command(after_help = "\
Example:
  sphx pep key new eln.key            then copy it to the other machine, by a safe way")]
    Key(KeyArgs),
}

/// What may wait for the hop, unless something else is said.
pub(super) const RADIO_QUEUE_BYTES: usize = 256 << 10;

/// What the agent does.
#[derive(Args, Clone, Debug)]
pub(crate) struct AgentArgs {
    /// snoop, or snoop:profile=sack|classic|ll; rdb for thin streams, or rdb:KEY=VALUE,… with the keys mode, thin, dpifl_itt, max_packets,
    /// max_bytes, response, extra, max_extra (docs/rdb.md); ack-filter:rate=RATE or ack-filter:every=TIME for a thin link, with the keys queue,
    /// acks-first, conservative, aggressive, ns2 (docs/ack-path.md); rsfc, with the keys target and mode=rledbat, for uploads that come over the hop (docs/rsfc.md);
    /// ack-cc:rate=RATE, with the keys queue, mark, max, marks, for acknowledgements that become fewer while they wait; ack-reconstruct at the far end of a thin
    /// link; pace beside senders that do not pace; no-limited-transmit, for experiments (docs/ack-path.md). Once for each
    #[arg(long, value_name = "AGENT", default_value = "snoop", value_parser = stage::read)]
    pub(crate) agent: Vec<Chosen>,
    #[command(flatten)]
    pub(crate) preset: PresetArgs,
    /// Help only such connections: 'tcp port 443', 'port 80,8000-8080 and host 192.0.2.0/24'; either end may have the port or the
    /// address. Once for each kind
    #[arg(long = "match", value_name = "CONDITIONS")]
    pub(crate) matches: Vec<Match>,
    /// Rate of the hop, at the IP layer: packets then wait here, repairs overtake them, and what
    /// does not fit is the sender's business
    #[arg(long, value_name = "RATE", value_parser = radio_rate)]
    pub(crate) radio_rate: Option<u64>,
    /// What may wait with --radio-rate
    #[arg(long, value_name = "SIZE", default_value = "256KiB", value_parser = units::size)]
    #[arg(requires = "radio_rate")]
    pub(crate) radio_queue: u64,
    /// DSCP that repairs leave with (46 is expedited forwarding), for a queue behind this machine that lets them overtake
    #[arg(long, value_name = "0-63", value_parser = clap::value_parser!(u8).range(0..64))]
    pub(crate) repair_dscp: Option<u8>,
    /// Change nothing, count what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// One JSON object per line on standard output: every flow, then the totals
    #[arg(long)]
    pub(crate) json: bool,
    /// Say nothing but errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

impl AgentArgs {
    pub(crate) fn stages(&self) -> Outcome<Stages> {
        self.preset.stages(&self.agent)
    }

    pub(crate) fn config(&self) -> Outcome<Config> {
        let stages = self.stages()?;
        let config = stages.set(Config {
            matches: self.matches.clone(),
            repair_dscp: self.repair_dscp,
            radio: self.radio_rate.map(|bits_per_second| Radio {
                bits_per_second,
                queue_bytes: usize::try_from(self.radio_queue).unwrap_or(usize::MAX),
            }),
            dry_run: self.dry_run,
            ..Config::default()
        });
        stage::check(&config).map_err(usage)?;
        Ok(config)
    }
}

impl RunArgs {
    pub(crate) fn config(&self) -> Outcome<Config> {
        Ok(Config {
            place: self.place(),
            reports: self.eln == Some(Eln::Base),
            lag_ns_max: u64::try_from(self.lag_max.as_nanos()).unwrap_or(u64::MAX),
            ..self.agent.config()?
        })
    }

    /// The interface to the hop. Only a line that has a file, which has not been read yet, lacks it.
    pub(crate) fn wireless(&self) -> &str {
        self.wireless.as_deref().unwrap_or_default()
    }

    pub(crate) fn place(&self) -> Place {
        match self.eln {
            Some(Eln::Mobile) => Place::Mobile,
            Some(Eln::Base) | None => Place::Base,
        }
    }
}

/// Help for uploads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Eln {
    /// Beside the hop: report to mobile hosts what it has lost of their uploads
    Base,
    /// On the mobile host: repair what the base station reports
    Mobile,
}

/// How packets come to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Attach {
    /// tun on machines that forward and whose packet filter has no rules for that, else nfqueue
    Auto,
    /// Routed traffic, by rules that lead to TUN devices
    Tun,
    /// All traffic of the wireless interface, this machine's own too, by the packet filter's queue
    Nfqueue,
}

/// Connections of this machine.
#[derive(Args, Clone, Debug)]
pub(crate) struct OwnArgs {
    /// With --agent rdb, this machine's own connections: those where either end has this port, or one of FIRST-LAST
    #[arg(long, value_name = "PORT", value_parser = ports)]
    pub(crate) port: Vec<RangeInclusive<u16>>,
    /// Those of programs of this user, by name or number
    #[arg(long, value_name = "USER", value_parser = user)]
    pub(crate) uid: Vec<u32>,
    /// Those of programs in this control group (version 2)
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Vec<PathBuf>,
}

impl OwnArgs {
    /// Whether any are chosen.
    pub(crate) fn is_given(&self) -> bool {
        !(self.port.is_empty() && self.uid.is_empty() && self.cgroup.is_empty())
    }
}

/// `sphx pep run`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    /// How packets come to the agent
    #[arg(long, value_name = "WAY", default_value = "auto", conflicts_with_all = ["port", "uid", "cgroup"])]
    pub(crate) attach: Attach,
    /// The interface to the lossy hop
    #[arg(long, value_name = "NAME")]
    #[arg(required_unless_present_any = ["config", "port", "uid", "cgroup"], conflicts_with_all = ["port", "uid", "cgroup"])]
    pub(crate) wireless: Option<String>,
    /// An interface to the senders, once for each; for tun [default: all others that exist now]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["port", "uid", "cgroup"])]
    pub(crate) wired: Vec<String>,
    #[command(flatten)]
    pub(crate) own: OwnArgs,
    /// How late the agent may be; later, packets only pass until it is in time again
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = units::duration)]
    pub(crate) lag_max: Duration,
    /// Numbers for Prometheus, at http://ADDR:PORT/metrics; port 0 takes any free one
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Help for uploads too, by agents on both sides of the hop
    #[arg(long, value_name = "WHERE", requires = "eln_key")]
    pub(crate) eln: Option<Eln>,
    /// The key that both share, of 'sphx pep key new'
    #[arg(long, value_name = "FILE", requires = "eln")]
    pub(crate) eln_key: Option<PathBuf>,
    /// UDP port at which mobile hosts hear of losses
    #[arg(long, value_name = "PORT", default_value = "7749", requires = "eln")]
    pub(crate) eln_port: u16,
    /// Connections of mobile hosts that go from one hop to another: the key of the agents there, of 'sphx pep key new'
    #[arg(long, value_name = "FILE")]
    pub(crate) handoff_key: Option<PathBuf>,
    /// UDP port at which such agents are heard
    #[arg(
        long,
        value_name = "PORT",
        default_value = "7750",
        requires = "handoff_key"
    )]
    pub(crate) handoff_port: u16,
    /// With --agent ack-cc:marks=tell or marks=hear: the key that both machines share, of 'sphx pep key new'
    #[arg(long, value_name = "FILE")]
    pub(crate) marks_key: Option<PathBuf>,
    /// UDP port at which marks are heard
    #[arg(
        long,
        value_name = "PORT",
        default_value = "7751",
        requires = "marks_key"
    )]
    pub(crate) marks_port: u16,
    /// Options that are not given here come from this file (TOML): the names without dashes
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
    /// Serve, and let another process, at standard input, watch
    #[arg(long, hide = true)]
    pub(crate) worker: bool,
    /// End with this process, 'sphx pep exec', which has started this one; that is no failure
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) ends_with: Option<i32>,
}

/// An agent by what it is for.
#[derive(Args, Clone, Debug)]
pub(crate) struct PresetArgs {
    /// Instead of --agent: what suits an application
    #[arg(long, value_name = "NAME", conflicts_with = "agent")]
    pub(crate) preset: Option<Preset>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// rdb:max_packets=0: small messages that have to come soon, also when several in a row are lost
    GameServer,
    /// ack-filter:every=40ms: a modem or router with a thin way back and long round trips
    SatelliteModem,
    /// ack-filter:every=10ms: a router whose uplink is thin, and changes
    LteRouter,
    /// rsfc: a server that receives uploads over deep buffers
    UploadServer,
}

impl PresetArgs {
    /// The preset's stages, or those that were chosen.
    pub(crate) fn stages(&self, chosen: &[Chosen]) -> Outcome<Stages> {
        let every = |ms: u64| {
            let filter = AckFilter {
                queue: None,
                every_ns: Some(ms * 1_000_000),
            };
            Stages {
                ack_filter: Some(filter),
                ..Stages::data(Stage::Pass)
            }
        };
        match self.preset {
            Some(Preset::SatelliteModem) => Ok(every(40)),
            Some(Preset::LteRouter) => Ok(every(10)),
            Some(Preset::UploadServer) => Ok(Stages {
                rsfc: Some(Rsfc::default()),
                ..Stages::data(Stage::Pass)
            }),
            Some(Preset::GameServer) => Ok(Stages::data(Stage::Rdb(Rdb {
                max_packets: 0,
                ..Rdb::default()
            }))),
            None => Stages::together(chosen).map_err(usage),
        }
    }
}

/// `sphx pep exec`.
#[derive(Args, Debug)]
pub(crate) struct ExecArgs {
    /// rdb, or rdb:KEY=VALUE,…
    #[arg(long, value_name = "AGENT", default_value = "rdb", value_parser = stage::read)]
    pub(crate) agent: Chosen,
    #[command(flatten)]
    pub(crate) preset: PresetArgs,
    /// Change nothing, count what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// One JSON object per line on standard error: every flow, then the totals
    #[arg(long)]
    pub(crate) json: bool,
    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

/// `sphx pep doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Interface to the lossy hop
    #[arg(long, value_name = "NAME", conflicts_with_all = ["port", "uid", "cgroup"])]
    pub(crate) wireless: Option<String>,
    /// snoop, or another one with or without its settings: for which agent
    #[arg(long, value_name = "AGENT", default_value = "snoop", value_parser = stage::read)]
    pub(crate) agent: Chosen,
    #[command(flatten)]
    pub(crate) preset: PresetArgs,
    #[command(flatten)]
    pub(crate) own: OwnArgs,
    /// One JSON object per line on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// `sphx pep install`.
#[derive(Args, Debug)]
pub(crate) struct InstallArgs {
    /// Show the unit, change nothing
    #[arg(long)]
    pub(crate) print: bool,
    /// Install in the tree of another system, and start nothing
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// `sphx pep uninstall`.
#[derive(Args, Debug)]
pub(crate) struct UninstallArgs {
    /// Show which files would be removed, change nothing
    #[arg(long)]
    pub(crate) print: bool,
    /// Remove it from the tree of another system
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
}

/// `sphx pep key`.
#[derive(Args, Debug)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    pub(crate) command: KeyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Write a new key into a new file, which only its owner may read
    New {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// `sphx pep set`.
#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    /// agent, dry-run, lag-max, match (or any), radio-queue, radio-rate (or off), repair-dscp (or own)
    #[arg(value_name = "KEY=VALUE", required = true)]
    pub(crate) settings: Vec<String>,
    /// One JSON object with the settings on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// `sphx pep show`.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// Connections too: the 1000 used last, the newest first
    #[arg(long)]
    pub(crate) flows: bool,
    /// Once a second, until Ctrl-C
    #[arg(long)]
    pub(crate) watch: bool,
    /// One JSON object per line on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// `sphx pep handoff`.
#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct HandoffArgs {
    /// The mobile host
    #[arg(value_name = "ADDRESS")]
    pub(crate) mobile: IpAddr,
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
    /// One JSON object on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// What has become of a mobile host.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct ChangeArgs {
    /// It has gone to the hop of the agent at this address
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) to: Option<SocketAddr>,
    /// It may go there
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) prefill: Option<SocketAddr>,
    /// It has come here
    #[arg(long)]
    pub(crate) arrived: bool,
}

/// `sphx pep replay`.
#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// The capture
    #[arg(value_name = "IN.pcap")]
    pub(crate) input: PathBuf,
    /// What comes out; a file that exists is replaced when all of it is there
    #[arg(value_name = "OUT.pcap")]
    pub(crate) output: PathBuf,
    /// Addresses behind the lossy hop, once for each network
    #[arg(long, value_name = "NET", required = true)]
    pub(crate) mobile: Vec<Network>,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(first..=last),
        _ => Err("write a port, or two as in 7000-7010".into()),
    }
}

fn user(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match nix::unistd::User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err("there is no such user".into()),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn radio_rate(text: &str) -> Result<u64, String> {
    match units::rate(text)? {
        0 => Err("a hop of rate 0 carries nothing".into()),
        rate => Ok(rate),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use sphinx_pep::Profile;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        pep: PepArgs,
    }

    fn parse(line: &str) -> Result<PepCommand, clap::Error> {
        Line::try_parse_from(line.split_whitespace()).map(|line| line.pep.command)
    }

    #[test]
    fn what_can_be_written() {
        let Ok(PepCommand::Run(run)) = parse(
            "pep run --attach tun --wireless w --wired a --wired b --agent snoop:profile=ll \
             --radio-rate 10mbit --radio-queue 64KiB --lag-max 20ms --dry-run --json",
        ) else {
            panic!("run");
        };
        assert_eq!(run.wired, ["a", "b"]);
        let config = run.config().expect("settings");
        assert_eq!(config.lag_ns_max, 20_000_000);
        assert_eq!(config.stage, Stage::Snoop(Profile::Ll));
        assert_eq!(config.ack_filter, None);
        assert!(config.dry_run);
        let radio = config.radio.expect("a rate");
        assert_eq!(
            (radio.bits_per_second, radio.queue_bytes),
            (10_000_000, 65_536)
        );
        let line = "pep run --wireless w --eln mobile --eln-key k --eln-port 5";
        let Ok(PepCommand::Run(run)) = parse(line) else {
            panic!("run");
        };
        assert_eq!((run.place(), run.eln_port), (Place::Mobile, 5));
        assert!(!run.config().expect("settings").reports);
        let stage = |line: &str| match parse(line) {
            Ok(PepCommand::Run(run)) => run.agent.stages().expect(line),
            Ok(PepCommand::Exec(exec)) => exec.preset.stages(&[exec.agent]).expect(line),
            Ok(PepCommand::Install(install)) => install.run.agent.stages().expect(line),
            other => panic!("{line}: {other:?}"),
        };
        for (preset, same) in [
            ("satellite-modem", "ack-filter:every=40ms"),
            ("lte-router", "ack-filter:every=10ms"),
            ("upload-server", "rsfc"),
        ] {
            let same = stage::read(same).expect("a stage");
            let line = format!("pep install --preset {preset} --wireless w");
            assert_eq!(Stages::together(&[same]), Ok(stage(&line)), "{preset}");
        }
        let games = stage::read("rdb:max_packets=0").expect("a stage");
        let games = Stages::together(&[games]).expect("one");
        for line in [
            "pep run --preset game-server --port 25565",
            "pep install --preset game-server --port 25565",
            "pep exec --preset game-server -- server",
        ] {
            assert_eq!(stage(line), games, "{line}");
        }
        let line = "pep run --wireless w --agent snoop:profile=ll --agent ack-filter:every=10ms";
        assert_eq!(stage(line).data, Stage::Snoop(Profile::Ll));
        assert!(stage(line).ack_filter.is_some());
        let line = "pep run --wireless w --agent ack-filter:every=10ms";
        assert_eq!(stage(line).data, Stage::Pass);
        let line = "pep handoff fd00::9 --prefill [fd00::1]:5";
        let Ok(PepCommand::Handoff(handoff)) = parse(line) else {
            panic!("handoff");
        };
        assert!(handoff.change.prefill.is_some() && !handoff.change.arrived);
        let line = "pep replay a b --mobile 10.0.0.0/8 --mobile fd00::1";
        assert!(matches!(parse(line), Ok(PepCommand::Replay(args)) if args.mobile.len() == 2));
    }

    #[test]
    fn what_cannot() {
        for (line, reason) in [
            ("pep run", "--wireless"),
            ("pep run --wireless w --eln base", "--eln-key"),
            ("pep run --wireless w --eln-key k", "--eln"),
            ("pep key new", "FILE"),
            ("pep run --wireless w --handoff-port 5", "--handoff-key"),
            ("pep run --wireless w --marks-port 5", "--marks-key"),
            ("pep handoff 10.0.0.9", "--to"),
            ("pep handoff 10.0.0.9 --to 10.0.0.1", "--to"),
            (
                "pep handoff 10.0.0.9 --arrived --to 10.0.0.1:5",
                "cannot be used with",
            ),
            ("pep run --wireless w --agent eln", "write snoop"),
            (
                "pep run --wireless w --agent ack-filter",
                "only acknowledgements that wait",
            ),
            (
                "pep run --wireless w --attach xdp",
                "possible values: auto, tun, nfqueue",
            ),
            ("pep run --wireless w --radio-rate 0mbit", "rate"),
            ("pep run --wireless w --radio-queue 1kB", "--radio-rate"),
            ("pep replay a b", "--mobile"),
            ("pep replay a b --mobile 10.0.0.0/33", "is no network"),
            ("pep replay a b --mobile 10.0.0.0/", "is no network"),
            ("pep run --wireless w --match udp", "write 'tcp port 443'"),
            ("pep run --wireless w --repair-dscp 64", "0..64"),
            ("pep run --port 1 --preset chess", "game-server"),
            (
                "pep run --port 1 --preset game-server --agent rdb",
                "cannot be used with",
            ),
            ("pep run --preset game-server", "--wireless"),
            ("pep run --port 1 --attach tun", "cannot be used with"),
            ("pep run --uid 0 --wired w", "cannot be used with"),
            ("pep doctor --wireless w --port 1", "cannot be used with"),
            (
                "pep doctor --preset lte-router --agent rsfc",
                "cannot be used with",
            ),
        ] {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}
