//! The command line.

use std::path::PathBuf;

use clap::Args;

use super::plan::{BYTES, CONGESTION, INTERFACE_MTU, LIMIT};

const EXAMPLES: &str = "\
Three hosts in a row: left (10.77.1.1, fd77:1::1) sends, right (10.77.2.2, fd77:2::2) receives, or with --upload the other way round, and the middle
forwards. Its interfaces are 'wired' (10.77.1.2) towards the left and 'wireless' (10.77.2.1) towards the right; those of left and right are
called 'left' and 'right'.

A hop is KEY=VALUE…, with spaces between them: the settings of 'sphx lab link --help', rtt, and forward. or return. for one direction
(forward is from left to right). The first --hop is the wired one.

--flows is KEY=VALUE… too: flows (how many connections), and what each of them carries: greedy (as much as fits), or bytes and interval of its
messages, or app, the messages of an application as published: vnc, skype, ssh, anarchy-online, wow or age-of-conan. name, cc, and port, where the
left host listens (7001 and the following). back: they send against the direction of the path. fetch, with bytes and interval: whoever receives fetches
objects, each over a new connection.

The middle command is started first, by the shell, then the right one; what follows begins when a command says that it is ready (sd_notify,
as 'sphx pep run' does), or after 2 seconds.

Examples:
  sphx lab path --hop 'rate=50mbit rtt=96ms' --hop 'rate=50mbit rtt=4ms queue=50ms forward.loss=1%'
  sphx lab path --hop rtt=96ms --hop 'rate=50mbit rtt=4ms forward.loss=1%' --middle 'sphx pep run --wireless wireless'
  sphx lab path --hop 'rate=10mbit rtt=50ms' --hop 'rate=2mbit rtt=2ms loss=bytes:64KiB' --cc reno --no-sack --log drops.ndjson
  sphx lab path --hop rtt=96ms --hop 'rtt=4ms rate=5mbit' --middle 'tcpdump -w middle.pcap -i wireless' --bytes 10MB

  sphx lab path --hop '' --hop 'rtt=150ms return.loss=10%' --upload --time 30s --flows 'flows=20 bytes=100B interval=30ms'
  sphx lab path --hop '' --hop 'rtt=150ms rate=5mbit return.queue=94500B' --upload --flows 'app=ssh flows=10' --flows 'greedy flows=5' \
--right 'sphx pep run --agent rdb --port 7001'

  sphx pep key new eln.key
  sphx lab path --hop rtt=96ms --hop 'rate=20mbit rtt=4ms return.loss=1%' --upload --middle 'sphx pep run --wireless wireless --eln base \
--eln-key eln.key' --right 'sphx pep run --wireless right --eln mobile --eln-key eln.key'

The exit code is 0 if everything arrived and 7 if the time was over before; 2, 8 and others are those of 'sphx --help'.";

/// `sphx lab path`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PathArgs {
    /// A hop, twice: the wired one from left to middle, then the wireless one from middle to right
    #[arg(long = "hop", value_name = "SETTINGS", required = true)]
    pub hops: Vec<String>,
    /// Run this on the host in the middle (by the shell), for as long as the transfer takes
    #[arg(long, value_name = "CMD")]
    pub middle: Option<String>,
    /// Run this on the right host
    #[arg(long, value_name = "CMD")]
    pub right: Option<String>,
    /// The right host sends, the left one receives
    #[arg(long)]
    pub upload: bool,
    /// Two connections instead of one, and a relay in the middle that copies from one to the other: what a split proxy does
    #[arg(long)]
    pub split: bool,
    /// Connections that do the same, instead of one transfer; repeatable, all groups at once
    #[arg(long, value_name = "SETTINGS", conflicts_with_all = ["bytes", "split"])]
    pub flows: Vec<String>,
    /// How much to transfer
    #[arg(long, value_name = "SIZE", default_value = BYTES, value_parser = sphinx_units::size_positive)]
    pub bytes: u64,
    /// Give up after this time; with --flows, they send for so long
    #[arg(long, value_name = "DURATION", default_value = LIMIT, value_parser = sphinx_units::duration_positive)]
    pub time: std::time::Duration,
    /// Congestion control of the sender: cubic, reno, bbr, what the kernel has
    #[arg(long, value_name = "NAME", default_value = CONGESTION)]
    pub cc: String,
    /// Left and right do not negotiate SACK
    #[arg(long)]
    pub no_sack: bool,
    /// A kernel parameter of left and right, such as net.ipv4.tcp_ecn=1; repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    pub sysctl: Vec<String>,
    /// Seed of both hops, unless theirs say another one
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// MTU of all interfaces; below 1280 they have no IPv6
    #[arg(long, value_name = "BYTES", default_value = INTERFACE_MTU, value_parser = sphinx_units::packet_size)]
    pub interface_mtu: usize,
    /// Tell the sender's congestion window and slow-start threshold too, every 10 ms (in 'done': windows, [ms, segments, segments])
    #[arg(long, requires = "json", conflicts_with = "flows")]
    pub windows: bool,
    /// Write what happened to which packet on which hop, and why, to this file (one JSON object per line)
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// JSON lines on standard output; that of the commands goes to standard error
    #[arg(long)]
    pub json: bool,
    /// Say nothing but errors
    #[arg(long, short)]
    pub quiet: bool,
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        path: PathArgs,
    }

    #[test]
    fn the_grammar_is_consistent() {
        Line::command().debug_assert();
        let words = ["path", "--hop", "rtt=5ms", "--hop", "loss=1%"];
        let path = Line::try_parse_from(words).unwrap().path;
        assert_eq!(path.hops, ["rtt=5ms", "loss=1%"]);
        assert_eq!((path.bytes, path.interface_mtu), (2_000_000, 1500));
        assert!(Line::try_parse_from(["path"]).is_err());
    }
}
