//! What `sphx tunnel` and `sphx server` take.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use sphinx_tunnel::{Forward, Permit, Pool, Prefix, Target};

use super::{CommonArgs, Listen, listen_address};
use crate::report::Settings;

/// `sphx tunnel`.
#[derive(Args, Debug)]
pub(crate) struct TunnelArgs {
    /// Read the ticket from this file
    #[arg(long, value_name = "F")]
    pub(crate) ticket_file: Option<PathBuf>,
    /// The ticket, unless it comes from --ticket-file or $SPHX_TICKET; - reads one line of standard input
    #[arg(value_name = "TICKET")]
    pub(crate) ticket: Option<OsString>,
    /// Listen here, connect there; HOST is resolved at the server. Either side may be the path of a Unix socket; /udp behind it carries
    /// datagrams, repaired if that helps within 60ms, or within /udp,deadline=TIME (0: not repaired)
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
    #[arg(long, value_name = "CIDR", num_args = 1.., value_parser = sphinx_tunnel::parse_prefix, requires = "tun", conflicts_with = "program")]
    pub(crate) route: Vec<Prefix>,
    /// What of it does not
    #[arg(long, value_name = "CIDR", num_args = 1.., value_parser = sphinx_tunnel::parse_prefix, requires = "route")]
    pub(crate) exclude: Vec<Prefix>,
    /// Where PROGRAM asks for names [default: where the server does]
    #[arg(long, value_name = "ADDR", requires = "program")]
    pub(crate) dns: Vec<IpAddr>,
    /// A program whose packets are carried, and its arguments
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
    #[arg(long, value_name = "HOST[:PORT]", num_args = 1..)]
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
    /// Addresses for clients that send IP packets (--permit tun); the server has the first one. Once for each family
    #[arg(long, value_name = "CIDR", value_parser = str::parse::<Pool>)]
    pub(crate) tun_pool: Vec<Pool>,
    /// Not built yet
    #[arg(long, hide = true, value_name = "F")]
    pub(crate) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) later: Option<ServerLater>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Parts of the contract that come later.
#[derive(Debug, Subcommand)]
pub(crate) enum ServerLater {
    /// Not built yet
    #[command(hide = true)]
    Invite(Later),
    /// Not built yet
    #[command(hide = true)]
    Clients(Later),
    /// Not built yet
    #[command(hide = true)]
    Revoke(Later),
    /// Not built yet
    #[command(hide = true)]
    Key(Later),
}

impl ServerLater {
    /// How it is called.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Invite(_) => "invite",
            Self::Clients(_) => "clients",
            Self::Revoke(_) => "revoke",
            Self::Key(_) => "key",
        }
    }
}

/// Whatever is written behind what is not built yet.
#[derive(Args, Debug)]
pub(crate) struct Later {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

impl TunnelArgs {
    pub(crate) fn settings(&self) -> Settings {
        self.common.settings()
    }
}

impl ServerArgs {
    /// What of it comes later.
    pub(crate) fn not_built(&self) -> Option<String> {
        let later = self.later.as_ref();
        let later = later.map(|later| format!("sphx server {}", later.name()));
        later.or_else(|| self.config.as_ref().map(|_| "--config".to_owned()))
    }

    pub(crate) fn settings(&self) -> Settings {
        self.common.settings()
    }
}
