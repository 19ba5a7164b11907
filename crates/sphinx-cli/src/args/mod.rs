//! The command line: what can be written, with help that teaches.

pub(crate) mod config;
pub(crate) mod cp;
mod ctl;
mod deadlines;
#[cfg(feature = "lab")]
pub(crate) mod demo;
pub(crate) mod engine;
#[cfg(feature = "lab")]
pub(crate) mod experiments;
#[cfg(feature = "lab")]
pub(crate) mod lab;
mod paths;
pub(crate) mod ssh;
pub(crate) mod sync;
pub(crate) mod ticket;
pub(crate) mod tickets;
#[cfg(feature = "tunnel")]
pub(crate) mod tunnel;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::addresses::{advertisable, check_host};
use crate::channel::Mode;
use crate::pep::PepArgs;
use crate::tools::{self, Tools};
#[cfg(not(feature = "tunnel"))]
use crate::tunnel::{JoinArgs, ServerArgs, TunnelArgs};
use crate::units;
pub(crate) use ctl::{CtlArgs, CtlCommand, PathsCommand};
pub(crate) use deadlines::refuse_deadlines;
pub(crate) use engine::{CommonArgs, ServingArgs};
pub(crate) use paths::{PathArgs, bond, path};
#[cfg(feature = "tunnel")]
use tunnel::{JoinArgs, ServerArgs, TunnelArgs};

/// The port `recv` and `perf server` listen on unless told otherwise ("SPHX" on a telephone's keys).
pub(crate) const DEFAULT_PORT: u16 = 7749;

/// A tunnel sleeps through a minute without network.
#[cfg(feature = "tunnel")]
const TUNNEL_IDLE: &str = "75s";

/// More reports than a hundred a second serve nobody.
const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// The version, and behind a `+` the commit, if `make` has built it: with another `+`, where that had been changed.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let version = env!("CARGO_PKG_VERSION");
    match option_env!("SPHINX_COMMIT").filter(|commit| !commit.is_empty()) {
        Some(commit) => format!("{version}+{commit}"),
        None => version.to_owned(),
    }
});

/// What stands below the help of `sphx`.
fn examples() -> String {
    format!(
        "\
Examples:
{}  sphx recv --output inbox --ticket-file t    receive files; writes the ticket to t
  sphx send --ticket-file t movie.mkv pics/   send them, from the other machine
  sphx cp film.mkv me@host:in/                or both with one command: ssh starts the other end
  sphx perf server --ticket-file t            measure: the other end of
  sphx perf client --ticket-file t --time 10s

A ticket holds the receiver's addresses and a secret: hand it over as you would a password.

Units: 200mbit (rates, in bits), 100kB (1000), 64KiB (1024), 5ms, 2s, 1m, 6% or 0.06. Every
quantity has its unit: a bare number is a usage error, but for 0 and shares below 1.
Exit codes: 0 ok, 1 other, 2 usage, 3 unreachable, 4 authentication, 5 protocol, 6 peer lost or
cancelled, 7 partial (something was left out, the rest arrived), 8 local I/O, 9 I/O at the other
end, 10 integrity, 128+n signal n.",
        tools::EXAMPLE
    )
}

/// Moves files over fast, lossy links: forward error correction instead of waiting.
#[derive(Debug, Parser)]
#[command(name = "sphx", version = VERSION.as_str(), after_help = examples(), max_term_width = 100)]
#[command(arg_required_else_help = true, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Receive files into a directory
    #[command(after_help = "\
Examples:
  sphx recv --output inbox --ticket-file t      stays up and receives any number of transfers
  sphx recv --once | ssh other sphx send - a.iso   the ticket travels through a pipe, not in argv
  sphx recv --stdout --ticket-file t | tar x    one file or stream, to standard output
  sphx recv --identity --output inbox --ticket-file t   the same ticket works after the next start

Nothing is ever written outside the output directory and nothing is overwritten without
--overwrite; a file that is there already with the same contents counts as received. A file
appears under its name only after its BLAKE3 hash has been verified. After a transfer that ended
early the same two commands go on with it (use --output, so that they find what is there). What is left out is told on
standard error, and in the exit code: 7 if something else has arrived.

On a terminal, recv asks before it receives anything, unless there is --yes or --json.")]
    Recv(RecvArgs),
    /// Send files and directories
    #[command(after_help = "\
Examples:
  sphx send --ticket-file t movie.mkv pictures/
  sphx send - movie.mkv < t                      ticket from standard input
  SPHX_TICKET=$(cat t) sphx send movie.mkv       ticket from the environment
  tar c x | sphx send --ticket-file t --stdin x.tar   a stream, called x.tar at the other end
  sphx send office: movie.mkv                    office is a server that was joined (sphx join)

Exits 0 only after the receiver has verified every file and given it its name. What is left out
(unreadable, changed while it was read, a link that leads out of what is sent, refused at the
other end) is told on standard error, and in the exit code: 7 if something else has arrived.
A pipe that is named is read to its end; links inside a directory are sent as links.")]
    Send(SendArgs),
    /// Copy files to or from another machine, as cp and scp do
    #[command(after_help = "\
Examples:
  sphx cp film.mkv host:                         into the home directory there
  sphx cp -r host:/srv/data/ .                   directories need -r
  sphx cp -e 'ssh -p 2222 -J gate' a b me@host:in/

The system's ssh starts sphx at the other end, with its configuration, keys, agent and prompts; the
files go over UDP, and through ssh where UDP does not get through. Files that exist are replaced,
each at once when its BLAKE3 hash has been verified; those that are there already are not sent.
After anything the same command goes on. Nothing at the other end is expanded but a leading ~/.")]
    Cp(cp::CpArgs),
    /// Make a directory at another machine the same as one here, or the other way round, as rsync does
    #[command(after_help = "\
Examples:
  sphx sync photos/ host:photos/                 what is in photos goes into photos there
  sphx sync photos host:backup/                  becomes backup/photos
  sphx sync -n --delete host:site/ site/         what would be sent and deleted, and nothing else
  sphx sync --exclude '*.o' --exclude /build/ src/ host:src/

With a slash behind SRC its contents go into DST, without one the directory itself. Files of the same size
and time are left alone (-c reads them instead); of others only what has changed is sent. Permissions,
times and links become those of SRC. What is not in SRC stays, unless there is --delete; nothing is
deleted when something in SRC could not be read. The files go as those of sphx cp do.")]
    Sync(sync::SyncArgs),
    /// The other end, started by ssh
    #[command(name = crate::ssh::start::END_COMMAND, hide = true)]
    SshEnd(ssh::SshEndArgs),
    /// Tickets of a receiver that stays the same: make, list and revoke them
    #[command(arg_required_else_help = true)]
    #[command(after_help = "\
Examples:
  sphx ticket new anna --ticket-file t --quota 10GB --directory anna
  sphx ticket new once --uses 1 --expires 24h
  sphx ticket list
  sphx ticket revoke anna

The tickets are those of sphx recv --identity, which need not run; one that runs notices within a
second. A ticket that is revoked ends the transfers that it has begun, with exit code 4.")]
    Ticket(tickets::TicketArgs),
    /// Check and show configuration: your own, or a server's
    #[command(arg_required_else_help = true)]
    #[command(after_help = "\
Examples:
  sphx config check                              ~/.config/sphinx/config.toml, or $SPHX_CONFIG
  sphx config check --server /etc/sphinx/server.toml
  sphx config show --origin                      every setting, and where it comes from

A flag goes before the environment (SPHX_CC, SPHX_SERVER_LISTEN …), that before the file, and the file
before what holds by default.")]
    Config(config::ConfigArgs),
    /// Measure goodput, loss and block latency between two machines
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Perf {
        #[command(subcommand)]
        command: PerfCommand,
    },
    /// Ask or change a sphx that runs with --path: its paths, and what they are for
    #[command(arg_required_else_help = true)]
    #[command(after_help = ctl::EXAMPLES)]
    Ctl(CtlArgs),
    #[command(flatten)]
    Tools(Tools),
    /// Help unmodified TCP over a lossy hop, from a machine in its path
    #[cfg_attr(feature = "pep", command(arg_required_else_help = true))]
    #[cfg_attr(not(feature = "pep"), command(hide = true, disable_help_flag = true))]
    Pep(PepArgs),
    /// Forward ports, Unix sockets, datagrams and IP packets, or be a SOCKS proxy, over a lossy link
    #[cfg_attr(feature = "tunnel", command(arg_required_else_help = true))]
    #[cfg_attr(
        not(feature = "tunnel"),
        command(hide = true, disable_help_flag = true)
    )]
    #[cfg_attr(feature = "tunnel", command(mut_arg("idle_timeout", |arg| arg.default_value(TUNNEL_IDLE))))]
    #[cfg_attr(
        feature = "tunnel",
        command(after_help = "\
Examples:
  sphx tunnel --ticket-file t -L 8080:db:5432        port 8080 here is port 5432 of db there
  sphx tunnel office -L 8080:db:5432                 office is a server that was joined (sphx join)
  sphx tunnel --ticket-file t -D 1080                a proxy: SOCKS5 and HTTP CONNECT
  sphx tunnel --ticket-file t -R 2222:localhost:22   port 2222 of the server is port 22 here
  sphx tunnel --ticket-file t -L 5000:phone:5000/udp,deadline=60ms   datagrams, repaired if that is in time
  sphx tunnel --ticket-file t -L 51820:wg:51820/udp,in-order         and kept in order, as a VPN needs it
  ssh -o ProxyCommand='sphx tunnel --ticket-file t -W %h:%p' build1
  sphx tunnel --ticket-file t --tun --route 10.0.0.0/8        a network interface (needs CAP_NET_ADMIN)
  sphx tunnel --ticket-file t --tun -- firefox                all packets of one program

Listens on loopback unless an address stands in front. Forwards can be repeated. When the session is
lost, listeners stay and it connects again; with port 0 the line \"listening on\" tells the port.
Exits with 3 if nobody answers, 4 if the server refuses, 8 if a port is in use, 9 if the other end
cannot do what it was asked for.")
    )]
    Tunnel(TunnelArgs),
    /// What a tunnel starts for a program of its own
    #[cfg(feature = "tunnel")]
    #[command(name = crate::tunnel::inside::COMMAND, hide = true)]
    Inside(tunnel::InsideArgs),
    /// Serve tunnels, files and measurements on one port, to those who may
    #[cfg_attr(
        not(feature = "tunnel"),
        command(hide = true, disable_help_flag = true)
    )]
    #[cfg_attr(feature = "tunnel", command(mut_arg("idle_timeout", |arg| arg.default_value(TUNNEL_IDLE))))]
    #[cfg_attr(
        feature = "tunnel",
        command(after_help = "\
Examples:
  sphx server --permit tunnel --ticket-file t
  sphx server --permit tunnel:tcp:*.corp:443,tunnel:udp:9.9.9.9:53,listen:2222 --ticket-file t
  sphx server --permit tun --tun-pool 10.9.0.0/24 --ticket-file t
  sphx server --permit files,perf --output inbox --ticket-file t
  sphx server --state /var/lib/sphinx              for many: keeps its key and its clients
  sphx server invite laptop --permit tunnel --state /var/lib/sphinx --ticket-file t
  sphx server revoke laptop --state /var/lib/sphinx

Rules, with commas between:
  tunnel                  what ssh would let through: any address, this machine's loopback included; -R on loopback
  tunnel:tcp:HOST:PORT    HOST is *, a name, *.corp, an address or addresses (10.0.0.0/8, [2001:db8::]/32);
  tunnel:udp:HOST:PORT    PORT is *, a number, or 1-1023
  tunnel:unix:/PATH       one Unix socket
  listen:[HOST:]PORT      -R, on loopback or on that address (*: all)
  tun                     IP packets, to wherever this machine's routes and packet filter let them
  files, files:DIR        sphx send, into --output, or DIR below it
  perf                    sphx perf client
Rules see the addresses that names lead to: a name never leads to loopback, and to link-local, multicast
and metadata addresses (169.254.169.254) leads nothing but a rule for them.")
    )]
    Server(Box<ServerArgs>),
    /// Join a server that has invited you: from then on it is known by a name
    #[cfg_attr(feature = "tunnel", command(arg_required_else_help = true))]
    #[cfg_attr(
        not(feature = "tunnel"),
        command(hide = true, disable_help_flag = true)
    )]
    #[cfg_attr(
        feature = "tunnel",
        command(after_help = "\
Examples:
  sphx join --ticket-file t --as office          with the invitation that sphx server invite wrote
  sphx tunnel office -L 8080:db:5432             from then on, as far as the server lets it,
  sphx send office: movie.mkv
  sphx perf client office

This user gets a key of its own for that server, which the server keeps the other half of. An
invitation works once.")
    )]
    Join(JoinArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum PerfCommand {
    /// Wait for clients that measure
    Server(Box<PerfServerArgs>),
    /// Measure against a perf server
    #[command(after_help = "\
Examples:
  sphx perf client --ticket-file t --bytes 50MB
  sphx perf client --ticket-file t --time 10s --reverse
  sphx perf client ssh:me@host                   no server to start, no ticket to carry
  sphx perf client --ticket-file t --rate 20mbit --block-size 100kB --time 60s

With --rate one whole block (--block-size B) is handed over every B/R; its latency counts from
that scheduled time to its complete reception, so a sender that falls behind is not excused.")]
    Client(Box<PerfClientArgs>),
    /// Measure what a packet costs this machine, stage by stage
    #[command(after_help = "\
Examples:
  sphx perf cost
  sphx perf cost --mtu 9000 --loss 2% --json
  sphx perf cost --workers --io memory

Two ends in one thread move data over loopback, with real keys. The kernel's part is that of
loopback, where joined packets are not cut; the rest is what the engine of each end does.")]
    Cost(PerfCostArgs),
}

/// Where a listening end listens and how it is found.
#[derive(Args, Debug)]
pub(crate) struct ListenArgs {
    /// Address and port to listen on; without an address all of them, port 0 is any free one
    #[arg(long, value_name = "[ADDR]:PORT", default_value_t = Listen::DEFAULT, value_parser = listen_address)]
    pub(crate) listen: Listen,
    /// Host or host:port to put into the ticket, once for each [default: this machine's addresses]
    #[arg(long, value_name = "HOST[:PORT]", num_args = 1.., value_parser = advertisable)]
    pub(crate) advertise: Vec<String>,
    /// Write the ticket to this file (readable only by you) instead of printing it; needed with --json
    #[arg(long, value_name = "F")]
    pub(crate) ticket_file: Option<PathBuf>,
    /// Exit after the first transfer, with its exit code
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) serving: ServingArgs,
}

#[derive(Args, Debug)]
pub(crate) struct RecvArgs {
    #[command(flatten)]
    pub(crate) listen: ListenArgs,
    /// Directory that receives the files [default: a new one for each transfer: received-1, …]
    #[arg(long, short, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Replace files that exist
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Put things into directories that exist in the output directory
    #[arg(long)]
    pub(crate) merge: bool,
    /// Accept names that begin with a dot directly in the output directory
    #[arg(long)]
    pub(crate) allow_dotfiles: bool,
    /// Remove what has come of a file that is not complete, instead of keeping it for the same transfer to go on with
    #[arg(long)]
    pub(crate) no_partial: bool,
    /// Do not ask before receiving
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Refuse transfers of more bytes
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub(crate) max_bytes: Option<u64>,
    /// Refuse transfers of more files, directories and links
    #[arg(long, value_name = "N")]
    pub(crate) max_entries: Option<u64>,
    /// Accept no transfer after this long; those that have begun go on
    #[arg(long, value_name = "DURATION", value_parser = units::duration_positive)]
    pub(crate) expires: Option<Duration>,
    /// Write the contents of one file to standard output, and exit after that transfer
    #[arg(long, requires = "ticket_file", conflicts_with_all = ["output", "overwrite", "merge", "allow_dotfiles", "json"])]
    pub(crate) stdout: bool,
    /// Be the same receiver after each start: keep key and tickets, which sphx ticket makes, lists and revokes
    #[arg(long, conflicts_with = "stdout")]
    pub(crate) identity: bool,
    /// Where to keep them [default: ~/.local/state/sphinx/recv]
    #[arg(long, value_name = "DIR", requires = "identity")]
    pub(crate) state: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

#[derive(Args, Debug)]
pub(crate) struct SendArgs {
    /// Read the ticket from this file; every argument is then a path
    #[arg(long, value_name = "F")]
    pub(crate) ticket_file: Option<PathBuf>,
    /// Send standard input too, as a file of this name
    #[arg(long, value_name = "NAME")]
    pub(crate) stdin: Option<std::ffi::OsString>,
    /// When the session is lost connect again, for so long after that, and go on
    #[arg(long, value_name = "DURATION", value_parser = units::duration_positive)]
    pub(crate) retry: Option<Duration>,
    /// The ticket unless it comes from --ticket-file or $SPHX_TICKET (- reads one line of standard
    /// input), or the name of a server that was joined with a colon behind it (office:), then files,
    /// directories and pipes (- is standard input, sent as "stdin")
    #[arg(
        value_name = "TICKET | NAME: | PATH",
        required_unless_present = "stdin"
    )]
    pub(crate) arguments: Vec<std::ffi::OsString>,
    #[command(flatten)]
    pub(crate) paths: PathArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

#[derive(Args, Debug)]
pub(crate) struct PerfServerArgs {
    #[command(flatten)]
    pub(crate) listen: ListenArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

#[derive(Args, Debug)]
pub(crate) struct PerfCostArgs {
    /// Bytes to move, at least 10MB
    #[arg(long, value_name = "SIZE", default_value = "1GB", value_parser = units::size_positive)]
    pub(crate) bytes: u64,
    /// Largest packet, IP bytes [default: 1500, and then 9000]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1228..=9000))]
    pub(crate) mtu: Option<u16>,
    /// Share of packets that the receiver throws away, so that there is something to repair; at most half
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = units::fraction)]
    pub(crate) loss: f64,
    /// What the packets go through: udp, sockets over loopback; memory, without the kernel; xdp or dpdk, past it, at one end of a pair of Ethernet interfaces that the command makes (root, iproute2), with the kernel's UDP at the other
    #[arg(long, value_name = "IO", default_value = "udp", value_parser = cost_io)]
    pub(crate) io: sphinx_cost::Io,
    /// Code as with --workers of other commands, and show what the engine has to do and what its workers have
    #[arg(long)]
    pub(crate) workers: bool,
    /// Measure the mode of the published paper: --paper or --paper=code=lt,n=64 (keys: docs/paper.md); its packets have a symbol each, whatever --mtu allows
    #[arg(long, value_name = "KEY=VALUE,...", num_args = 0..=1, require_equals = true, default_missing_value = engine::PAPER_DEFAULT, value_parser = engine::paper)]
    pub(crate) paper: Option<Box<sphinx_transport::Paper>>,
    /// Print a JSON object for each size of packets
    #[arg(long)]
    pub(crate) json: bool,
}

fn cost_io(text: &str) -> Result<sphinx_cost::Io, String> {
    match text {
        "udp" => Ok(sphinx_cost::Io::Udp),
        "memory" => Ok(sphinx_cost::Io::Memory),
        "xdp" => Ok(sphinx_cost::Io::Xdp),
        #[cfg(feature = "dpdk")]
        "dpdk" => Ok(sphinx_cost::Io::Dpdk),
        #[cfg(not(feature = "dpdk"))]
        "dpdk" => Err("dpdk:"
            .parse::<sphinx_transport::Io>()
            .expect_err("it is not in this build")),
        _ => Err("expected udp, memory, xdp or dpdk".to_owned()),
    }
}

#[derive(Args, Debug)]
pub(crate) struct PerfClientArgs {
    /// Read the ticket from this file
    #[arg(long, value_name = "F")]
    pub(crate) ticket_file: Option<PathBuf>,
    /// A server that was joined (sphx join), by its name; or the ticket, unless it comes from --ticket-file or $SPHX_TICKET; - reads one line
    /// of standard input; with ssh:HOST, ssh starts the other end
    #[arg(value_name = "NAME | TICKET | ssh:HOST")]
    pub(crate) ticket: Option<std::ffi::OsString>,
    /// Stop after this many bytes
    #[arg(long, value_name = "SIZE", value_parser = units::size_positive, conflicts_with = "time")]
    pub(crate) bytes: Option<u64>,
    /// Stop after this long [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = units::period_positive)]
    pub(crate) time: Option<Duration>,
    /// Offer this much instead of as much as possible, in blocks handed over at fixed times
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub(crate) rate: Option<u64>,
    /// Size of one block [default: what --rate carries in 40 ms, at most 100kB]
    #[arg(long, value_name = "SIZE", value_parser = units::size_positive, requires = "rate")]
    pub(crate) block_size: Option<u64>,
    /// Streams side by side, at most 10000, and not more than the other end has memory for; with --rate or --message-size 256
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) streams: u16,
    /// The server sends, the client receives
    #[arg(long)]
    pub(crate) reverse: bool,
    /// Send messages of this size, one every --interval: a thin or live stream
    #[arg(long, value_name = "SIZE", value_parser = units::size_positive, requires = "interval", conflicts_with = "rate")]
    pub(crate) message_size: Option<u64>,
    /// Time between messages
    #[arg(long, value_name = "DURATION", value_parser = units::duration_positive, requires = "message_size")]
    pub(crate) interval: Option<Duration>,
    /// What carries the messages [default: stream; with --profile live, live]
    #[arg(long, value_enum)]
    pub(crate) mode: Option<Mode>,
    /// Count messages that take longer as late; live messages and datagrams are of use for so long; at least 1ms [default: live 120ms]
    #[arg(long, value_name = "DURATION", value_parser = units::duration, requires = "message_size")]
    pub(crate) deadline: Option<Duration>,
    /// Messages of which a repair may ride in the packet of a later one, where few packets are on their way and some are lost: 0 to 8 [default: 1]
    #[arg(long, value_name = "N", value_parser = engine::bundle, conflicts_with = "reverse")]
    pub(crate) bundle: Option<u8>,
    /// The mode of the published paper, for comparison, both ways: --paper or --paper=code=lt,n=64 (keys: docs/paper.md). With --cc fixed:RATE its window's blocks leave at that rate
    #[arg(long, value_name = "KEY=VALUE,...", num_args = 0..=1, require_equals = true, default_missing_value = engine::PAPER_DEFAULT, value_parser = engine::paper,
        conflicts_with_all = ["codec", "profile", "icm", "epsilon", "bundle"])]
    pub(crate) paper: Option<Box<sphinx_transport::Paper>>,
    #[command(flatten)]
    pub(crate) ssh: ssh::SshArgs,
    #[command(flatten)]
    pub(crate) paths: PathArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Where to listen: without an address on all that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listen {
    pub(crate) ip: Option<IpAddr>,
    pub(crate) port: u16,
}

impl Listen {
    const DEFAULT: Self = Self {
        ip: None,
        port: DEFAULT_PORT,
    };
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            Some(ip) => SocketAddr::new(ip, self.port).fmt(f),
            None => write!(f, ":{}", self.port),
        }
    }
}

fn listen_address(text: &str) -> Result<Listen, String> {
    let port = text.strip_prefix(':').unwrap_or(text);
    if port.bytes().all(|byte| byte.is_ascii_digit())
        && let Ok(port) = port.parse()
    {
        return Ok(Listen { ip: None, port });
    }
    check_host(text)?;
    let address: Result<SocketAddr, String> = text.parse().map_err(|_| {
        format!("'{text}' is not an address and a port, such as 0.0.0.0:7749, [::]:7749 or :7749")
    });
    match address? {
        // `Listen` keeps no zone, so one would be dropped without a word.
        SocketAddr::V6(address) if address.scope_id() > 0 => {
            Err(format!("'{text}': only link-local addresses have a zone"))
        }
        address => Ok(Listen {
            ip: Some(address.ip()),
            port: address.port(),
        }),
    }
}

/// An interval at which reporting costs nothing that matters.
fn report_interval(text: &str) -> Result<Duration, String> {
    match units::duration(text)? {
        often if often < REPORT_INTERVAL_MIN => Err(format!("'{text}' is too often: 10ms or more")),
        interval => Ok(interval),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn grammar_is_consistent() {
        Cli::command().debug_assert();
    }

    /// A heading holds for what follows it: nothing of a command's own shall.
    #[test]
    fn headings_stand_over_their_own_options_only() {
        let mut own = Vec::new();
        for augment in [
            CommonArgs::augment_args,
            ServingArgs::augment_args,
            PathArgs::augment_args,
            ssh::SshArgs::augment_args,
            #[cfg(feature = "lab")]
            sphinx_lab::emulator::SettingFlags::augment_args,
        ] {
            own.extend(headed(&augment(clap::Command::new("own"))));
        }
        let mut commands = vec![Cli::command()];
        while let Some(command) = commands.pop() {
            for option in headed(&command) {
                let name = command.get_name();
                assert!(own.contains(&option), "sphx … {name}: {option:?}");
            }
            commands.extend(command.get_subcommands().cloned());
        }
        let command = Cli::command();
        let recv = command.find_subcommand("recv").expect("it is there");
        let output = recv.get_arguments().find(|arg| arg.get_id() == "output");
        assert_eq!(output.expect("it is there").get_help_heading(), None);
    }

    /// Options with a heading, and that.
    fn headed(command: &clap::Command) -> Vec<(String, String)> {
        let headed = command.get_arguments().filter_map(|arg| {
            let heading = arg.get_help_heading()?.to_owned();
            Some((arg.get_id().to_string(), heading))
        });
        headed.collect()
    }

    #[test]
    fn every_flag_of_the_contract() {
        for line in [
            "sphx recv --listen [::]:0 --advertise a.example b.example:9 --output d --once --overwrite --ticket-file t",
            "sphx recv --advertise a --advertise b --json",
            "sphx send --ticket-file t a b c",
            "sphx send sphx1abc a",
            "sphx send - a",
            "sphx send --ticket-file t -- -",
            "sphx send --ticket-file t --stdin x.tar",
            "sphx send --retry 10m --ticket-file t a",
            "sphx recv --no-partial --merge --allow-dotfiles --yes --max-bytes 1GB --max-entries 10 --expires 1h",
            "sphx recv --stdout --ticket-file t",
            "sphx perf server --listen 127.0.0.1:0 --ticket-file t --once",
            "sphx perf client --ticket-file t --bytes 50MB --streams 4 --reverse",
            "sphx perf client --ticket-file t --rate 20mbit",
            "sphx perf client --ticket-file t --time 10s --rate 20mbit --block-size 100kB",
            "sphx perf client - --message-size 200B --interval 20ms --deadline 100ms",
            "sphx perf client - --message-size 200B --interval 20ms --bundle 0",
            #[cfg(feature = "lab")]
            "sphx demo --rate 200mbit --rtt 10ms --loss 6% --seed 3 --seconds 2s",
            #[cfg(feature = "lab")]
            "sphx codes bench --json",
            #[cfg(feature = "lab")]
            "sphx lab run x",
            "sphx send --io xdp:eth0 --workers 4 --codec window --profile live --icm paper --cc cubic t a",
            "sphx send --connect-timeout 1s --idle-timeout 2s -4 --json --quiet -v t a",
            "sphx send --no-cache --epsilon 1% t a",
            "sphx recv --cc fixed:190mbit -6",
            "sphx recv --interval-report 10ms",
        ] {
            if let Err(error) = parse(line) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn refused_with_reasons() {
        for (line, reason) in [
            ("sphx send", "required"),
            ("sphx recv --listen nowhere", "not an address"),
            ("sphx recv --stdout", "--ticket-file"),
            (
                "sphx recv --stdout --ticket-file t --output d",
                "cannot be used with",
            ),
            (
                "sphx perf client t --bytes 1B --time 1s",
                "cannot be used with",
            ),
            ("sphx perf client t --block-size 1kB", "--rate"),
            ("sphx perf client t --streams 0", "1..=10000"),
            ("sphx perf client t --bundle 9", "at most 8"),
            ("sphx send t a -4 -6", "cannot be used with"),
            ("sphx send t a --cc fast", "bbr"),
            #[cfg(feature = "lab")]
            ("sphx demo --loss 6", "6%"),
            ("sphx recv --idle-timeout 0s", "zero"),
            ("sphx recv --interval-report 0s", "10ms"),
            ("sphx recv --interval-report 1ms", "10ms"),
        ] {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn where_to_listen() {
        let anywhere = |port| Ok(Listen { ip: None, port });
        let at = |ip: &str, port| {
            let ip = Some(ip.parse().expect("an address"));
            Ok(Listen { ip, port })
        };
        assert_eq!(listen_address(":0"), anywhere(0));
        assert_eq!(listen_address("0"), anywhere(0));
        assert_eq!(listen_address(":7749"), Ok(Listen::DEFAULT));
        assert_eq!(listen_address("65535"), anywhere(65_535));
        assert_eq!(listen_address("[::]:0"), at("::", 0));
        assert_eq!(listen_address("0.0.0.0:0"), at("0.0.0.0", 0));
        assert_eq!(listen_address("[::1]:7"), at("::1", 7));
        for (text, why) in [("[fe80::1%2]:7", "link-local"), ("[::1%2]:7", "a zone")] {
            assert!(listen_address(text).unwrap_err().contains(why), "{text}");
        }
        for text in [":7749", "[::1]:7", "0.0.0.0:0"] {
            assert_eq!(listen_address(text).unwrap().to_string(), text);
        }
        for wrong in [
            "",
            ":",
            "::",
            "65536",
            ":65536",
            "-1",
            "+1",
            ":+1",
            "::1:7",
            "a:7",
            "127.0.0.1",
        ] {
            assert!(listen_address(wrong).is_err(), "{wrong}");
        }
    }
}
