//! What `sphx tunnel` and `sphx server` take.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use sphinx_tunnel::{Forward, Limits, Permit, Pool, Prefix, Target};

use super::{CommonArgs, Listen, ServingArgs, listen_address};
use crate::addresses::advertisable;
use crate::failure::{Outcome, usage};
use crate::report::Settings;
use crate::state::date::Moment;
use crate::state::line;
use crate::units;

/// `sphx tunnel`.
#[derive(Args, Debug)]
pub(crate) struct TunnelArgs {
    /// Read the ticket from this file
    #[arg(long, value_name = "F")]
    pub(crate) ticket_file: Option<PathBuf>,
    /// A server that was joined (sphx join), by its name; or a ticket, unless that comes from --ticket-file or $SPHX_TICKET; - reads one line of
    /// standard input
    #[arg(value_name = "NAME | TICKET")]
    pub(crate) ticket: Option<OsString>,
    /// Listen here, connect there; HOST is resolved at the server. Either side may be the path of a Unix socket; /udp behind it carries
    /// datagrams, repaired if that helps within 60ms, or within /udp,deadline=TIME (0: not repaired); /udp,in-order keeps their order and waits up to 300ms, for a VPN inside
    #[arg(short = 'L', value_name = "[BIND:]PORT:HOST:PORT", value_parser = str::parse::<Forward>)]
    pub(crate) local: Vec<Forward>,
    /// Listen there, connect here
    #[arg(short = 'R', value_name = "[BIND:]PORT:HOST:PORT", value_parser = str::parse::<Forward>)]
    pub(crate) remote: Vec<Forward>,
    /// Listen here as a SOCKS5 and HTTP CONNECT proxy
    #[arg(short = 'D', value_name = "[BIND:]PORT", value_parser = sphinx_tunnel::listen_address)]
    pub(crate) proxy: Vec<SocketAddr>,
    /// What programs have to name to use -D: a file with USER:PASSWORD in its first line
    #[arg(long, value_name = "F", requires = "proxy")]
    pub(crate) proxy_auth: Option<PathBuf>,
    /// Carry standard input and output to HOST:PORT, or to a Unix socket there
    #[arg(short = 'W', value_name = "HOST:PORT", value_parser = sphinx_tunnel::target, conflicts_with_all = ["local", "remote", "proxy", "tun", "json"])]
    pub(crate) stdio: Option<Target>,
    /// Carry IP packets of a network interface, which is made for that (needs CAP_NET_ADMIN); with -- PROGRAM, that of one program, in
    /// namespaces of its own (needs no rights)
    #[arg(long, num_args = 0..=1, value_name = "IF", value_parser = interface)]
    pub(crate) tun: Option<Option<String>>,
    /// Address of the interface, one of each family [default: what the server gives]
    #[arg(long, value_name = "ADDR/LEN", value_parser = sphinx_tunnel::parse_prefix, requires = "tun")]
    pub(crate) address: Vec<Prefix>,
    /// What leads into the tunnel; never the server itself
    #[arg(long, value_name = "CIDR", num_args = 1.., value_parser = sphinx_tunnel::parse_network, requires = "tun", conflicts_with = "program")]
    pub(crate) route: Vec<Prefix>,
    /// What of it does not
    #[arg(long, value_name = "CIDR", num_args = 1.., value_parser = sphinx_tunnel::parse_network, requires = "route")]
    pub(crate) exclude: Vec<Prefix>,
    /// End the TCP connections that programs open through --tun at this end, and carry them as -L does: faster in bulk over long links, and over
    /// those that lose packets. The server connects from its own address, where it has a rule tunnel for that; what it has none for goes as packets
    #[arg(long, requires = "tun")]
    pub(crate) split_tcp: bool,
    /// Where PROGRAM asks for names [default: where the server does]
    #[arg(long, value_name = "ADDR", requires = "program")]
    pub(crate) dns: Vec<IpAddr>,
    /// A program whose packets are carried, and its arguments. With --json, what it prints goes to standard error
    #[arg(last = true, value_name = "PROGRAM", requires = "tun")]
    pub(crate) program: Vec<OsString>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// The name of an interface, as the kernel takes it.
fn interface(text: &str) -> Result<String, String> {
    let is_name = (1..=15).contains(&text.len())
        && !matches!(text, "." | "..")
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"/:%".contains(&byte));
    match is_name {
        true => Ok(text.to_owned()),
        false => Err("the name of an interface has 1 to 15 letters or digits".to_owned()),
    }
}

/// `sphx __inside`: what `sphx tunnel --tun -- PROGRAM` starts.
#[derive(Args, Debug)]
pub(crate) struct InsideArgs {
    /// Where the tunnel listens.
    #[arg(long)]
    pub(crate) directory: PathBuf,
    #[arg(long)]
    pub(crate) dns: Vec<IpAddr>,
    #[arg(long)]
    pub(crate) split_tcp: bool,
    #[arg(last = true, required = true)]
    pub(crate) program: Vec<OsString>,
}

/// `sphx server`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ServerArgs {
    /// Address and port to listen on; without an address all of them, port 0 is any free one
    #[arg(long, value_name = "[ADDR]:PORT", default_value_t = Listen::DEFAULT, value_parser = listen_address)]
    pub(crate) listen: Listen,
    /// Host or host:port to put into the ticket, once for each [default: this machine's addresses]
    #[arg(long, value_name = "HOST[:PORT]", num_args = 1.., value_parser = advertisable)]
    pub(crate) advertise: Vec<String>,
    /// Write the ticket to this file (readable only by you) instead of printing it; needed with --json
    #[arg(long, value_name = "F")]
    pub(crate) ticket_file: Option<PathBuf>,
    /// Keep what the server is known by in this file (readable only by you), made the first time: the same ticket works after the server was
    /// started again. To have old tickets refused, remove it [default: another ticket each time]
    #[arg(long, value_name = "F")]
    pub(crate) key: Option<PathBuf>,
    /// What those who have the ticket may do, rules with commas between; nothing without one
    #[arg(long, value_name = "RULES", value_parser = str::parse::<Permit>)]
    pub(crate) permit: Option<Permit>,
    /// Directory that receives what clients with permit=files send; without one no files are received
    #[arg(long, short, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Addresses for clients that send IP packets (permit=tun); the server has the first one. At most once for each family
    #[arg(long, value_name = "CIDR", value_parser = str::parse::<Pool>)]
    pub(crate) tun_pool: Vec<Pool>,
    /// Keep the server's key, tickets and clients in this directory: who was invited (sphx server invite) and has joined (sphx join) may
    /// come after every start [default: ~/.local/state/sphinx/server, unless there is --permit]
    #[arg(long, value_name = "DIR", conflicts_with = "key")]
    pub(crate) state: Option<PathBuf>,
    /// The file with the clients [default: authorized in the state directory]
    #[arg(long, value_name = "F", conflicts_with = "key")]
    pub(crate) authorized: Option<PathBuf>,
    /// Read settings from this file, TOML, which flags go before ($SPHX_SERVER_CONFIG works too); SIGHUP reads it again
    #[arg(long, value_name = "F")]
    pub(crate) config: Option<PathBuf>,
    /// Streams that a client may have at a time: connections, flows of datagrams, listeners
    #[arg(long, value_name = "N", default_value = "4096", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) streams_per_client: u32,
    /// Flows of datagrams that a client may have at a time
    #[arg(long, value_name = "N", default_value = "4096", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) flows_per_client: u32,
    /// Connections of a client that may wait for their targets at a time
    #[arg(long, value_name = "N", default_value = "2048", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pending_per_client: u32,
    /// Most that goes to a client and comes from it, each way [default: as much as there is room for]
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub(crate) rate_per_client: Option<u64>,
    /// What a client's session may hold, in each direction, beyond what it begins with [default: its share of --memory]
    #[arg(long, value_name = "SIZE", value_parser = units::size_positive)]
    pub(crate) memory_per_client: Option<u64>,
    #[command(subcommand)]
    pub(crate) command: Option<ServerCommand>,
    #[command(flatten)]
    pub(crate) serving: ServingArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// What changes or shows who a server's clients are, whether or not it runs.
#[derive(Debug, Subcommand)]
pub(crate) enum ServerCommand {
    /// Invite somebody to become a client: an invitation works once
    Invite(InviteArgs),
    /// Show clients, invitations and tickets
    Clients(ClientsArgs),
    /// Cut a client off within a second, or take an invitation or a ticket back
    Revoke(RevokeArgs),
    /// The server's own key
    Key(KeyArgs),
}

/// Which server's.
#[derive(Args, Debug)]
pub(crate) struct PlaceArgs {
    /// Directory where the server keeps its key, tickets and clients [default: ~/.local/state/sphinx/server]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// The file with the clients [default: authorized in the state directory]
    #[arg(long, value_name = "F")]
    pub(crate) authorized: Option<PathBuf>,
    /// Events as JSON lines on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Only errors on standard error
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// `sphx server invite`.
#[derive(Args, Debug)]
pub(crate) struct InviteArgs {
    /// What the client is going to be called
    #[arg(value_parser = line::name)]
    pub(crate) name: String,
    /// What it may do, rules as for sphx server --permit
    #[arg(long, value_name = "RULES", value_parser = super::tickets::permit)]
    pub(crate) permit: String,
    /// How long the invitation works
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = units::period_positive)]
    pub(crate) expires: Duration,
    /// Write the invitation to this file (readable only by you) instead of printing it; needed with --json
    #[arg(long, value_name = "F", required_if_eq("json", "true"))]
    pub(crate) ticket_file: Option<PathBuf>,
    /// Most that goes to the client and comes from it, each way
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) rate: Option<String>,
    /// Its address in the server's network of tunnels
    #[arg(long, value_name = "IP")]
    pub(crate) address: Option<IpAddr>,
    /// When the client is cut off: 2027-01-01, or 2027-01-01T18:00:00Z
    #[arg(long, value_name = "DATE", value_parser = date)]
    pub(crate) until: Option<String>,
    /// Host or host:port to put into the invitation, once for each [default: where the server was last]
    #[arg(long, value_name = "HOST:PORT", num_args = 1.., value_parser = advertisable)]
    pub(crate) advertise: Vec<String>,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

/// `sphx server clients`.
#[derive(Args, Debug)]
pub(crate) struct ClientsArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

/// `sphx server revoke`.
#[derive(Args, Debug)]
pub(crate) struct RevokeArgs {
    /// The client, invitation or ticket
    #[arg(value_parser = line::name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

/// `sphx server key`.
#[derive(Args, Debug)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    pub(crate) command: KeyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make another key: tickets and invitations of before are of no use any more
    Rotate(PlaceArgs),
}

/// `sphx join`.
#[derive(Args, Debug)]
pub(crate) struct JoinArgs {
    /// Read the invitation from this file
    #[arg(long, value_name = "F")]
    pub(crate) ticket_file: Option<PathBuf>,
    /// The invitation, unless it comes from --ticket-file or $SPHX_TICKET; - reads one line of standard input
    #[arg(value_name = "TICKET")]
    pub(crate) ticket: Option<OsString>,
    /// What to call the server here [default: its host]
    #[arg(long = "as", value_name = "NAME", value_parser = line::name)]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// A rate, as it is written.
fn rate(text: &str) -> Result<String, String> {
    units::rate(text).map(|_| text.to_owned())
}

/// A date, as it is written.
fn date(text: &str) -> Result<String, String> {
    Moment::parse(text).map(|_| text.to_owned())
}

impl ServerCommand {
    fn place(&self) -> &PlaceArgs {
        match self {
            Self::Invite(args) => &args.place,
            Self::Clients(args) => &args.place,
            Self::Revoke(args) => &args.place,
            Self::Key(KeyArgs {
                command: KeyCommand::Rotate(place),
            }) => place,
        }
    }
}

impl JoinArgs {
    pub(crate) fn settings(&self) -> Settings {
        self.common.settings()
    }
}

impl TunnelArgs {
    pub(crate) fn settings(&self) -> Settings {
        self.common.settings()
    }
}

impl ServerArgs {
    /// Whether there is a file to read again.
    pub(crate) fn reloads(&self) -> bool {
        self.command.is_none() && self.config_file().is_some()
    }

    /// The file of its settings.
    pub(crate) fn config_file(&self) -> Option<PathBuf> {
        let named = || std::env::var_os("SPHX_SERVER_CONFIG").filter(|it| !it.is_empty());
        self.config.clone().or_else(|| named().map(PathBuf::from))
    }

    /// Whether what is permitted can be done, and a ticket is good for something.
    pub(crate) fn check_permit(&self) -> Outcome<()> {
        let Some(permit) = &self.permit else {
            if self.key.is_none() && self.ticket_file.is_none() {
                return Ok(());
            }
            let failure = usage("a ticket is good for nothing without rules");
            return Err(failure.with_hint(
                "--permit tunnel lets those who have it reach what ssh would; --permit tunnel:tcp:db.corp:5432 one port",
            ));
        };
        if permit.lets_tun() && self.tun_pool.is_empty() {
            let failure = usage("--permit tun: clients need addresses");
            return Err(failure.with_hint("--tun-pool 10.9.0.0/24 gives them some"));
        }
        if permit.lets_send().is_some() && self.output.is_none() {
            let failure = usage("--permit files: there is no place for them");
            return Err(failure.with_hint("--output DIR is one; files:inbox is inbox below it"));
        }
        Ok(())
    }

    /// Whether the interface can have these networks: it has one address of each family.
    pub(crate) fn check_pools(&self) -> Outcome<()> {
        for (n, second) in self.tun_pool.iter().enumerate() {
            let mut before = self.tun_pool[..n].iter();
            if let Some(first) = before.find(|first| first.is_like(second)) {
                let failure = usage(format!(
                    "--tun-pool {first} and {second}: both are of one family"
                ));
                return Err(
                    failure.with_hint("one larger network, like 10.9.0.0/16, has room for more")
                );
            }
        }
        Ok(())
    }

    /// What a client may have at a time, unless its line says something else.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            streams: self.streams_per_client as usize,
            flows: self.flows_per_client as usize,
            pending: self.pending_per_client as usize,
            rate: self.rate_per_client.map(|bits| bits / 8),
            memory: self.memory_per_client,
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        match &self.command {
            Some(command) => Settings::new(command.place().json, command.place().quiet),
            None => self.common.settings(),
        }
    }
}
