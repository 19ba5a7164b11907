//! Who may do what: rules for resolved addresses, files and measurements, and nothing without a rule.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// How something is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// Kinds of addresses that a rule reaches only if it is meant for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Ordinary,
    /// The machine itself: by `tunnel` and by rules that name it, not by rules for names.
    Loopback,
    /// Link-local addresses, those of the metadata services of clouds, multicast: only by a rule for these addresses.
    Special,
}

/// Metadata services of clouds that do not have link-local addresses.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// The address that the kernel would connect to: IPv4 in IPv6 is IPv4, and the unspecified address is this machine.
pub(crate) fn canonical(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

fn class(ip: IpAddr) -> Class {
    match ip {
        ip if ip.is_loopback() => Class::Loopback,
        IpAddr::V4(ip) => class_v4(ip),
        IpAddr::V6(ip) => {
            let special =
                ip.is_unicast_link_local() || ip.is_multicast() || METADATA_V6.contains(&ip);
            match (special, embedded(ip)) {
                (true, _) => Class::Special,
                // Translators on the way would make of it what must not be reached.
                (false, Some(inner)) if class(inner.into()) != Class::Ordinary => Class::Special,
                _ => Class::Ordinary,
            }
        }
    }
}

/// Whether IP packets to there are carried: not to a machine itself, and not to where no rule leads by accident.
pub(crate) fn is_ordinary(ip: IpAddr) -> bool {
    class(canonical(ip)) == Class::Ordinary
}

fn class_v4(ip: Ipv4Addr) -> Class {
    let is_special = ip.is_link_local()
        || ip.is_multicast()
        || ip.is_broadcast()
        || ip.octets()[0] == 0
        || METADATA_V4.contains(&ip);
    match is_special {
        true => Class::Special,
        false => Class::Ordinary,
    }
}

/// The IPv4 address in one that is translated (NAT64, 6to4) or of the form `::a.b.c.d`.
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = ip.to_bits();
    let low = Ipv4Addr::from_bits(bits as u32);
    match ip.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0, 0, ..] => Some(low),
        [0x2002, ..] => Some(Ipv4Addr::from_bits((bits >> 80) as u32)),
        _ => None,
    }
}

/// Addresses with a common beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Net {
    first: IpAddr,
    prefix: u8,
    /// All of it is [`Class::Special`], so that whoever wrote it means that.
    is_special: bool,
}

impl Net {
    fn new(ip: IpAddr, prefix: u8) -> Option<Self> {
        let first: IpAddr = match ip {
            IpAddr::V4(ip) if prefix <= 32 => {
                Ipv4Addr::from_bits(ip.to_bits() & mask_v4(prefix)).into()
            }
            IpAddr::V6(ip) if prefix <= 128 => {
                Ipv6Addr::from_bits(ip.to_bits() & mask_v6(prefix)).into()
            }
            _ => return None,
        };
        let (last, shortest): (IpAddr, u8) = match first {
            IpAddr::V4(ip) => (
                Ipv4Addr::from_bits(ip.to_bits() | !mask_v4(prefix)).into(),
                4,
            ),
            IpAddr::V6(ip) => (
                Ipv6Addr::from_bits(ip.to_bits() | !mask_v6(prefix)).into(),
                8,
            ),
        };
        // Both ends of everything are special too, so that it has to be short enough.
        let is_special =
            prefix >= shortest && [first, last].iter().all(|ip| class(*ip) == Class::Special);
        Some(Self {
            first,
            prefix,
            is_special,
        })
    }

    fn contains(&self, ip: IpAddr) -> bool {
        match (self.first, ip) {
            (IpAddr::V4(first), IpAddr::V4(ip)) => {
                ip.to_bits() & mask_v4(self.prefix) == first.to_bits()
            }
            (IpAddr::V6(first), IpAddr::V6(ip)) => {
                ip.to_bits() & mask_v6(self.prefix) == first.to_bits()
            }
            _ => false,
        }
    }
}

fn mask_v4(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

fn mask_v6(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Any,
    Localhost,
    Name(String),
    /// `*.NAME`: the name with the dot in front.
    Suffix(String),
    Net(Net),
}

/// An address without its brackets.
fn bare(text: &str) -> &str {
    let inside = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    inside.unwrap_or(text)
}

impl Host {
    fn parse(text: &str) -> Option<Self> {
        let bare = bare(text);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            let ip = canonical(ip);
            return Net::new(ip, if ip.is_ipv4() { 32 } else { 128 }).map(Self::Net);
        }
        if let Some((ip, prefix)) = bare.split_once('/') {
            return Net::new(ip.parse().ok()?, prefix.parse().ok()?).map(Self::Net);
        }
        let name = normal(text);
        let is_name = |name: &str| {
            !name.is_empty()
                && name
                    .chars()
                    .all(|c| c.is_alphanumeric() || "-._".contains(c))
        };
        match name.strip_prefix('*') {
            Some("") => Some(Self::Any),
            Some(suffix) if suffix.starts_with('.') && is_name(&suffix[1..]) => {
                Some(Self::Suffix(suffix.to_owned()))
            }
            Some(_) => None,
            None if name == "localhost" => Some(Self::Localhost),
            None => is_name(&name).then_some(Self::Name(name)),
        }
    }

    /// Whether `ip`, which `name` has led to if there was one, is this host.
    fn matches(&self, name: Option<&str>, ip: IpAddr) -> bool {
        let class = class(ip);
        match self {
            Self::Any => class != Class::Special,
            Self::Localhost => class == Class::Loopback,
            // Whoever owns the name chooses its addresses: they must not lead to the machine itself.
            Self::Name(_) | Self::Suffix(_) => {
                class == Class::Ordinary && name.is_some_and(|name| self.is_named(name))
            }
            Self::Net(net) => net.contains(ip) && (class != Class::Special || net.is_special),
        }
    }

    fn is_named(&self, name: &str) -> bool {
        let name = normal(name);
        match self {
            Self::Name(own) => *own == name,
            Self::Suffix(suffix) => name.len() > suffix.len() && name.ends_with(suffix.as_str()),
            _ => false,
        }
    }
}

/// Names are the same in capital letters, and with the dot that ends them.
fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_lowercase()
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Connect {
        /// TCP or UDP; `None`: any.
        transport: Option<Transport>,
        host: Host,
        ports: RangeInclusive<u16>,
    },
    Unix(String),
    /// IP packets.
    Tun,
    /// Files, into a directory below that of the server; empty: into that.
    Files(PathBuf),
    /// Measurements.
    Perf,
    Listen {
        /// Loopback if it is [`Host::Localhost`], all of them if it is [`Host::Any`].
        host: Host,
        ports: RangeInclusive<u16>,
    },
}

/// A rule that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{rule}' is no rule: {expected}")]
pub struct PermitError {
    rule: String,
    expected: String,
}

/// What one client may do: rules separated by commas.
///
/// | rule | lets through |
/// | --- | --- |
/// | `tunnel` | every address but link-local, metadata and multicast ones, this machine's loopback included; listening on loopback |
/// | `tunnel:tcp:HOST:PORT` | connections: HOST is `*`, a name, `*.corp`, an address, or addresses with their prefix; PORT is `*`, a number, or `1-1023` |
/// | `tunnel:udp:HOST:PORT` | datagrams |
/// | `tunnel:unix:/PATH` | one Unix socket |
/// | `listen:PORT`, `listen:HOST:PORT` | listening, on loopback, or on that address (`*`: any) |
/// | `tun` | IP packets from an address of the client's own, wherever the server's kernel takes them, but to link-local, metadata and multicast addresses |
/// | `files`, `files:DIR` | sending files, into the server's directory for them or DIR below it; one such rule at most |
/// | `perf` | measuring |
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permit(Vec<Rule>);

impl FromStr for Permit {
    type Err = PermitError;

    fn from_str(text: &str) -> Result<Self, PermitError> {
        let mut rules = Vec::new();
        for text in text.split(',') {
            let wrong = |expected| PermitError {
                rule: text.trim().to_owned(),
                expected,
            };
            parse_rule(text.trim(), &mut rules).map_err(wrong)?;
            let mut places = rules.iter().filter(|rule| matches!(rule, Rule::Files(_)));
            if places.nth(1).is_some() {
                return Err(wrong("files go to one place".to_owned()));
            }
        }
        Ok(Self(rules))
    }
}

fn parse_rule(text: &str, rules: &mut Vec<Rule>) -> Result<(), String> {
    let all = 0..=u16::MAX;
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    match (kind, rest) {
        ("tunnel", "") if !text.contains(':') => {
            rules.push(Rule::Connect {
                transport: None,
                host: Host::Any,
                ports: all.clone(),
            });
            rules.push(Rule::Listen {
                host: Host::Localhost,
                ports: all,
            });
        }
        ("tunnel", rest) => match rest.split_once(':') {
            Some(("unix", path)) if path.starts_with('/') => {
                rules.push(Rule::Unix(path.to_owned()));
            }
            Some((transport @ ("tcp" | "udp"), place)) => {
                let (host, ports) = parse_place(place)?;
                let transport = match transport {
                    "tcp" => Transport::Tcp,
                    _ => Transport::Udp,
                };
                rules.push(Rule::Connect {
                    transport: Some(transport),
                    host,
                    ports,
                });
            }
            _ => {
                return Err(
                    "expected tunnel:tcp:HOST:PORT, tunnel:udp:HOST:PORT or tunnel:unix:/PATH"
                        .to_owned(),
                );
            }
        },
        ("listen", rest) => {
            let (host, ports) = match rest.contains(':') {
                true => parse_place(rest)?,
                false => (Host::Localhost, parse_ports(rest)?),
            };
            // To connect to it is to reach this machine; to listen on it is something else.
            let ip = |text: &str| bare(text).parse::<IpAddr>();
            let address = rest.rsplit_once(':').and_then(|(host, _)| ip(host).ok());
            if address.is_some_and(|ip| ip.to_canonical().is_unspecified()) {
                return Err("listening on all addresses is listen:*:PORT".to_owned());
            }
            if matches!(host, Host::Name(_) | Host::Suffix(_)) {
                return Err("a listener has an address, not a name".to_owned());
            }
            rules.push(Rule::Listen { host, ports });
        }
        ("tun", "") if !text.contains(':') => rules.push(Rule::Tun),
        ("tun", _) => return Err("tun has nothing behind it".to_owned()),
        ("files", "") if !text.contains(':') => rules.push(Rule::Files(PathBuf::new())),
        ("files", below) => rules.push(Rule::Files(parse_directory(below)?)),
        ("perf", "") if !text.contains(':') => rules.push(Rule::Perf),
        ("perf", _) => return Err("perf has nothing behind it".to_owned()),
        _ => return Err("expected tunnel, listen, tun, files or perf".to_owned()),
    }
    Ok(())
}

fn parse_place(text: &str) -> Result<(Host, RangeInclusive<u16>), String> {
    let (host, ports) = text
        .rsplit_once(':')
        .ok_or_else(|| "there is no port".to_owned())?;
    if host.contains(':') && !host.starts_with('[') {
        return Err("IPv6 addresses stand in brackets".to_owned());
    }
    let host = Host::parse(host).ok_or_else(|| format!("'{host}' is no host"))?;
    Ok((host, parse_ports(ports)?))
}

/// A directory below another one, whatever it is called.
fn parse_directory(text: &str) -> Result<PathBuf, String> {
    let is_below = |part| matches!(part, Component::Normal(_));
    match !text.is_empty() && Path::new(text).components().all(is_below) {
        true => Ok(PathBuf::from(text)),
        false => Err(format!(
            "'{text}' is no directory below the server's: expected files:DIR, without .. and no / in front"
        )),
    }
}

fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let wrong = || format!("'{text}' is no port: expected *, a number, or two with a dash between");
    let port = |text: &str| text.parse::<u16>().map_err(|_| wrong());
    match text.split_once('-') {
        _ if text == "*" => Ok(0..=u16::MAX),
        Some((first, last)) => {
            let ports = port(first)?..=port(last)?;
            match ports.is_empty() {
                true => Err(wrong()),
                false => Ok(ports),
            }
        }
        None => port(text).map(|port| port..=port),
    }
}

impl Permit {
    /// Whether a client may reach `address`, which the name that it asked for has led to, if it was a name.
    pub fn lets_reach(
        &self,
        transport: Transport,
        name: Option<&str>,
        address: SocketAddr,
    ) -> bool {
        let ip = canonical(address.ip());
        self.0.iter().any(|rule| match rule {
            Rule::Connect {
                transport: only,
                host,
                ports,
            } => {
                only.is_none_or(|only| only == transport)
                    && ports.contains(&address.port())
                    && host.matches(name, ip)
            }
            _ => false,
        })
    }

    /// Whether there is any point in resolving a name: some address of it may be let through.
    pub fn lets_resolve(&self, transport: Transport, name: &str, port: u16) -> bool {
        self.0.iter().any(|rule| match rule {
            Rule::Connect {
                transport: only,
                host,
                ports,
            } => {
                let is_other =
                    matches!(host, Host::Name(_) | Host::Suffix(_)) && !host.is_named(name);
                only.is_none_or(|only| only == transport) && ports.contains(&port) && !is_other
            }
            _ => false,
        })
    }

    /// Whether a client may connect to a Unix socket.
    pub fn lets_reach_path(&self, path: &str) -> bool {
        self.0
            .iter()
            .any(|rule| matches!(rule, Rule::Unix(own) if own == path))
    }

    /// Whether a client may send and receive IP packets.
    pub fn lets_tun(&self) -> bool {
        self.0.contains(&Rule::Tun)
    }

    /// Whether a client may open sessions for any of what `sphx tunnel` does.
    pub fn lets_tunnel(&self) -> bool {
        let is_other = |rule: &Rule| matches!(rule, Rule::Files(_) | Rule::Perf);
        !self.0.iter().all(is_other)
    }

    /// Where below the server's directory a client may send files to.
    pub fn lets_send(&self) -> Option<&Path> {
        self.0.iter().find_map(|rule| match rule {
            Rule::Files(below) => Some(below.as_path()),
            _ => None,
        })
    }

    /// Whether a client may measure.
    pub fn lets_measure(&self) -> bool {
        self.0.contains(&Rule::Perf)
    }

    /// Whether a client may have the server listen there.
    pub fn lets_listen(&self, address: SocketAddr) -> bool {
        self.0.iter().any(|rule| match rule {
            Rule::Listen { host, ports } => {
                let fits = match host {
                    Host::Any => true,
                    Host::Localhost => address.ip().to_canonical().is_loopback(),
                    Host::Net(net) => net.contains(address.ip().to_canonical()),
                    Host::Name(_) | Host::Suffix(_) => false,
                };
                // Any port is one of those that the kernel chooses.
                let port_fits = match address.port() {
                    0 => *ports.start() <= 1024 && *ports.end() == u16::MAX,
                    port => ports.contains(&port),
                };
                fits && port_fits
            }
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests;
