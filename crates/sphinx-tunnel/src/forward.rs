//! Forwards as people write them: the grammar of ssh, plus `/udp`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::wire::Target;

/// Longest deadline.
const DEADLINE_MAX: Duration = Duration::from_secs(60);

/// How datagrams of a flow are given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Giving {
    /// How long after the one-way delay a lost one is of use; zero: it is not repaired.
    pub deadline: Duration,
    /// Whether later datagrams wait for a lost one for that long: connections inside take for lost what comes late.
    pub in_order: bool,
}

impl Default for Giving {
    /// As they come, repaired within 60 ms, as calls want it.
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(60),
            in_order: false,
        }
    }
}

impl Giving {
    /// As connections inside want it: what is lost for good halves their rate, and costs more than waiting for a few answers to losses.
    const IN_ORDER: Self = Self {
        deadline: Duration::from_millis(300),
        in_order: true,
    };
}

/// What is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carried {
    /// Connections.
    Stream,
    /// Datagrams.
    Datagrams(Giving),
}

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// An address; loopback unless one is written.
    Address(SocketAddr),
    /// A Unix socket.
    Path(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

impl Listen {
    /// Whether both cannot listen at the same time.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Path(one), Self::Path(other)) => one == other,
            (Self::Address(one), Self::Address(other)) => {
                let [ip, another] = [one, other].map(|it| it.ip().to_canonical());
                let same_host = covers(ip, another) || covers(another, ip);
                same_host && one.port() == other.port() && one.port() != 0
            }
            _ => false,
        }
    }
}

/// Whether who listens on one address has what comes to another one. All addresses of IPv6 are those of IPv4 too, but not the other way round.
fn covers(one: IpAddr, other: IpAddr) -> bool {
    one == other || (one.is_unspecified() && (one.is_ipv6() || other.is_ipv4()))
}

/// A forward that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no forward: {why}")]
pub struct ForwardError {
    text: String,
    why: String,
}

/// From where to where: what stands behind `-L` and `-R`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// Where to listen.
    pub listen: Listen,
    /// Where it leads, seen from the other end.
    pub target: Target,
    /// What it carries.
    pub carried: Carried,
    /// The forward as it was written.
    pub text: String,
}

impl FromStr for Forward {
    type Err = ForwardError;

    /// `[BIND:]PORT:HOST:PORT`, with Unix sockets in the place of either side, and `/udp[,deadline=TIME][,in-order]` behind it.
    fn from_str(text: &str) -> Result<Self, ForwardError> {
        let error = |why: String| ForwardError {
            text: text.to_owned(),
            why,
        };
        let (places, carried) = split_transport(text).map_err(error)?;
        let parts = split_colons(places).map_err(error)?;
        let taken = match parts.last() {
            Some(last) if last.contains('/') => 1,
            _ => 2,
        };
        let (Some(at), true) = (parts.len().checked_sub(taken), parts.len() > taken) else {
            return Err(error("expected [BIND:]PORT:HOST:PORT".to_owned()));
        };
        let (listen, target) = parts.split_at(at);
        let forward = Self {
            listen: listen_at(listen).map_err(error)?,
            target: target_of(target).map_err(error)?,
            carried,
            text: text.to_owned(),
        };
        let has_path =
            matches!(forward.listen, Listen::Path(_)) || matches!(forward.target, Target::Path(_));
        match forward.carried {
            Carried::Datagrams(_) if has_path => Err(error(
                "datagrams go to addresses, not to Unix sockets".to_owned(),
            )),
            _ => Ok(forward),
        }
    }
}

/// `[BIND:]PORT`, what stands behind `-D`.
///
/// # Errors
/// It is not that.
pub fn listen_address(text: &str) -> Result<SocketAddr, ForwardError> {
    let parsed = split_colons(text).and_then(|parts| listen_at(&parts));
    let why = match parsed {
        Ok(Listen::Address(address)) => return Ok(address),
        Ok(Listen::Path(_)) => "expected [BIND:]PORT".to_owned(),
        Err(why) => why,
    };
    let text = text.to_owned();
    Err(ForwardError { text, why })
}

/// `HOST:PORT` or a Unix socket, what stands behind `-W`.
///
/// # Errors
/// It is not that.
pub fn target(text: &str) -> Result<Target, ForwardError> {
    let parsed = split_colons(text).and_then(|parts| match parts.len() {
        1 if parts[0].contains('/') => target_of(&parts),
        2 => target_of(&parts),
        _ => Err("expected HOST:PORT".to_owned()),
    });
    let text = text.to_owned();
    parsed.map_err(|why| ForwardError { text, why })
}

/// What stands before the transport, and the transport. A path may end in `/udp` too: a transport stands behind a port.
fn split_transport(text: &str) -> Result<(&str, Carried), String> {
    let stream = Ok((text, Carried::Stream));
    let last = text.rfind(':').map_or(0, |at| at + 1);
    let Some(slash) = text[last..].find('/').map(|at| last + at) else {
        return stream;
    };
    let port = &text[last..slash];
    if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return stream;
    }
    let (places, transport) = (&text[..slash], &text[slash + 1..]);
    let mut words = transport.split(',');
    match words.next() {
        Some("tcp") if transport == "tcp" => return Ok((places, Carried::Stream)),
        Some("tcp") => return Err("connections have no options".to_owned()),
        Some("udp") => {}
        _ => return Err(format!("/{transport} is neither /tcp nor /udp")),
    }
    let (mut in_order, mut deadline) = (false, None);
    for word in words {
        match word.split_once('=') {
            Some(("deadline", time)) => deadline = Some(sphinx_units::duration(time)?),
            None if word == "in-order" => in_order = true,
            _ => {
                return Err(format!(
                    "'{word}' is no option: expected deadline=60ms or in-order"
                ));
            }
        }
    }
    let usual = match in_order {
        true => Giving::IN_ORDER,
        false => Giving::default(),
    };
    let giving = Giving {
        deadline: deadline.unwrap_or(usual.deadline),
        in_order,
    };
    if giving.deadline > DEADLINE_MAX {
        return Err("a deadline is at most 60s".to_owned());
    }
    if giving.in_order && giving.deadline.is_zero() {
        return Err(
            "in-order waits for repairs until the deadline: not with deadline=0".to_owned(),
        );
    }
    Ok((places, Carried::Datagrams(giving)))
}

/// The parts between colons; what is in brackets is one part, without them.
fn split_colons(text: &str) -> Result<Vec<&str>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let (part, after) = match rest.strip_prefix('[') {
            Some(inner) => inner
                .split_once(']')
                .ok_or_else(|| "a bracket is not closed".to_owned())?,
            None => rest.split_at(rest.find(':').unwrap_or(rest.len())),
        };
        parts.push(part);
        match after.strip_prefix(':') {
            Some(after) => rest = after,
            None if after.is_empty() => return Ok(parts),
            None => return Err(format!("expected ':' before '{after}'")),
        }
    }
}

fn listen_at(parts: &[&str]) -> Result<Listen, String> {
    let address = |ip: IpAddr, port: &str| Ok(Listen::Address((ip, port_of(port)?).into()));
    match parts {
        [path] if path.contains('/') => match Target::path(path) {
            Ok(_) => Ok(Listen::Path(path.into())),
            Err(error) => Err(format!("'{path}' cannot be a socket: {error}")),
        },
        [port] => address(Ipv4Addr::LOCALHOST.into(), port),
        ["*" | "", port] => address(Ipv6Addr::UNSPECIFIED.into(), port),
        ["localhost", port] => address(Ipv4Addr::LOCALHOST.into(), port),
        [host, port] => match host.parse() {
            Ok(ip) => address(ip, port),
            Err(_) => Err(format!(
                "'{host}' is no address to listen on: expected one, localhost, or * for all"
            )),
        },
        _ => Err("expected [BIND:]PORT:HOST:PORT".to_owned()),
    }
}

fn target_of(parts: &[&str]) -> Result<Target, String> {
    match parts {
        [path] => Target::path(path).map_err(|error| format!("'{path}': {error}")),
        [host, port] => match port_of(port)? {
            0 => Err("there is no port 0 to connect to".to_owned()),
            port => Target::new(host, port).map_err(|_| format!("'{host}' is no host")),
        },
        _ => Err("expected HOST:PORT".to_owned()),
    }
}

fn port_of(text: &str) -> Result<u16, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(port) if digits => Ok(port),
        _ => Err(format!("'{text}' is no port: expected 0 to 65535")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_written() {
        for (text, listen, target, carried) in [
            ("8080:db:5432", "127.0.0.1:8080", "db:5432", Carried::Stream),
            (
                "8080:db:5432/tcp",
                "127.0.0.1:8080",
                "db:5432",
                Carried::Stream,
            ),
            (
                "0:127.0.0.1:80",
                "127.0.0.1:0",
                "127.0.0.1:80",
                Carried::Stream,
            ),
            ("*:8080:db:5432", "[::]:8080", "db:5432", Carried::Stream),
            (":8080:db:5432", "[::]:8080", "db:5432", Carried::Stream),
            (
                "[::1]:8080:[fe80::1]:80",
                "[::1]:8080",
                "[fe80::1]:80",
                Carried::Stream,
            ),
            ("0.0.0.0:1:a:2", "0.0.0.0:1", "a:2", Carried::Stream),
            ("./db.sock:db:5432", "./db.sock", "db:5432", Carried::Stream),
            (
                "8080:/run/udp",
                "127.0.0.1:8080",
                "/run/udp",
                Carried::Stream,
            ),
            (
                "127.0.0.1:8080:/run/x",
                "127.0.0.1:8080",
                "/run/x",
                Carried::Stream,
            ),
            ("/a:/b", "/a", "/b", Carried::Stream),
            (
                "51820:wg:51820/udp",
                "127.0.0.1:51820",
                "wg:51820",
                Carried::Datagrams(Giving::default()),
            ),
            (
                "1:wg:2/udp,deadline=0",
                "127.0.0.1:1",
                "wg:2",
                Carried::Datagrams(Giving {
                    deadline: Duration::ZERO,
                    in_order: false,
                }),
            ),
            (
                "1:wg:2/udp,deadline=5ms",
                "127.0.0.1:1",
                "wg:2",
                Carried::Datagrams(Giving {
                    deadline: Duration::from_millis(5),
                    in_order: false,
                }),
            ),
            (
                "1:wg:2/udp,in-order",
                "127.0.0.1:1",
                "wg:2",
                Carried::Datagrams(Giving::IN_ORDER),
            ),
            (
                "1:wg:2/udp,in-order,deadline=200ms",
                "127.0.0.1:1",
                "wg:2",
                Carried::Datagrams(Giving {
                    deadline: Duration::from_millis(200),
                    in_order: true,
                }),
            ),
        ] {
            let forward: Forward = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(forward.listen.to_string(), listen, "{text}");
            assert_eq!(forward.target.to_string(), target, "{text}");
            assert_eq!(forward.carried, carried, "{text}");
        }
        assert_eq!(target("build1:22").unwrap().to_string(), "build1:22");
        assert_eq!(
            listen_address("1080").unwrap().to_string(),
            "127.0.0.1:1080"
        );
        assert_eq!(listen_address("[::1]:0").unwrap().to_string(), "[::1]:0");
    }

    #[test]
    fn what_cannot_is_told() {
        for (text, why) in [
            ("", "expected"),
            ("8080", "expected"),
            ("a:1", "expected"),
            ("99999:a:1", "no port"),
            ("+1:a:1", "no port"),
            ("1:a:0", "port 0"),
            ("1:a:1/tcp6", "neither"),
            ("1:a:1/udp,x=1", "no option"),
            ("1:a:1/udp,deadline=5", "unit"),
            ("1:a:1/udp,deadline=2m", "at most"),
            ("1:a:1/udp,in-order=1", "no option"),
            ("1:a:1/udp,in-order,deadline=0", "not with deadline=0"),
            ("1:a:1/tcp,deadline=5ms", "no options"),
            ("./s:a:1/udp", "Unix"),
            ("host:1:a:1", "no address"),
            ("1:2:3:a:4", "expected"),
            ("[::1:1:a:1", "bracket"),
            ("[::1]1:a:1", "expected ':'"),
            ("1:a b:1", "no host"),
        ] {
            let error = text.parse::<Forward>().expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(listen_address("./x").is_err());
        assert!(target("build1").is_err());
    }

    #[test]
    fn overlapping_listeners() {
        let at = |text: &str| Listen::Address(text.parse().unwrap());
        assert!(at("127.0.0.1:1").overlaps(&at("127.0.0.1:1")));
        for (one, other, overlap) in [
            ("[::]:1", "127.0.0.1:1", true),
            ("[::]:1", "0.0.0.0:1", true),
            ("[::]:1", "[::1]:1", true),
            ("0.0.0.0:1", "127.0.0.1:1", true),
            ("[::ffff:127.0.0.1]:1", "0.0.0.0:1", true),
            ("0.0.0.0:1", "[::1]:1", false),
            ("127.0.0.1:1", "[::1]:1", false),
            ("0.0.0.0:1", "[::1]:2", false),
        ] {
            let (one, other) = (at(one), at(other));
            assert_eq!(one.overlaps(&other), overlap, "{one} {other}");
            assert_eq!(other.overlaps(&one), overlap, "{one} {other}");
        }
        assert!(!at("127.0.0.1:0").overlaps(&at("127.0.0.1:0")));
        assert!(!at("127.0.0.1:1").overlaps(&at("127.0.0.1:2")));
        assert!(!at("127.0.0.1:1").overlaps(&at("127.0.0.2:1")));
    }
}
