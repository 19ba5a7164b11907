//! Networks of addresses, and which connections are helped.

use std::{fmt, net::IpAddr, ops::RangeInclusive, str::FromStr};

use thiserror::Error;

use crate::FlowKey;

/// Addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u32,
}

impl Network {
    /// Those whose first `prefix` bits are the ones of `address`; `None` for more bits than it has.
    pub fn new(address: IpAddr, prefix: u32) -> Option<Network> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        (prefix <= bits).then_some(Network { address, prefix })
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differing = own.to_bits() ^ other.to_bits();
                differing.leading_zeros() >= self.prefix
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differing = own.to_bits() ^ other.to_bits();
                differing.leading_zeros() >= self.prefix
            }
            _ => false,
        }
    }
}

/// A text that cannot be read, and what could be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Unreadable(String);

impl FromStr for Network {
    type Err = Unreadable;

    /// Reads `10.0.0.0/8`, or an address, which is a network of one.
    fn from_str(text: &str) -> Result<Network, Unreadable> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let parsed = address.parse::<IpAddr>().ok().and_then(|address| {
            let whole = if address.is_ipv4() { 32 } else { 128 };
            let prefix = prefix.map_or(Some(whole), |prefix| prefix.parse().ok())?;
            Network::new(address, prefix)
        });
        let refuse = || {
            Unreadable(format!(
                "'{text}' is no network, such as 10.0.0.0/8 or fd00::/8"
            ))
        };
        parsed.ok_or_else(refuse)
    }
}

/// Connections with such ports and hosts; all of them, by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// One end has one of these ports, unless there are none.
    ports: Vec<RangeInclusive<u16>>,
    /// One end is in one of these networks, unless there are none.
    hosts: Vec<Network>,
}

impl Match {
    /// Whether a flow matches these ports and hosts.
    pub fn contains(&self, flow: &FlowKey) -> bool {
        let ends = [flow.fixed, flow.mobile];
        let by_port =
            |range: &RangeInclusive<u16>| ends.iter().any(|it| range.contains(&it.port()));
        let by_host = |network: &Network| ends.iter().any(|it| network.contains(it.ip()));
        (self.ports.is_empty() || self.ports.iter().any(by_port))
            && (self.hosts.is_empty() || self.hosts.iter().any(by_host))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl fmt::Display for Match {
    /// Writes it in the form that is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = |range: &RangeInclusive<u16>| match range.start() == range.end() {
            true => range.start().to_string(),
            false => format!("{}-{}", range.start(), range.end()),
        };
        let ports: Vec<String> = self.ports.iter().map(port).collect();
        let hosts: Vec<String> = self.hosts.iter().map(Network::to_string).collect();
        let conditions = [("port", ports), ("host", hosts)];
        let said = conditions.iter().filter(|(_, list)| !list.is_empty());
        let said: Vec<String> = said
            .map(|(word, list)| format!("{word} {}", list.join(",")))
            .collect();
        f.write_str(&said.join(" and "))
    }
}

impl FromStr for Match {
    type Err = Unreadable;

    /// Reads `tcp port 443`, `port 80,8000-8080 and host 192.0.2.0/24`, `host fd00::/8`: conditions on either end, all of which
    /// have to hold. `tcp` and `and` are for people.
    fn from_str(text: &str) -> Result<Match, Unreadable> {
        let mut read = Match::default();
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            let mut list = || {
                let list = words.next().filter(|list| !list.is_empty());
                list.ok_or_else(|| Unreadable(format!("'{text}' ends behind '{word}'")))
            };
            match word {
                "tcp" | "and" => {}
                "port" if read.ports.is_empty() => {
                    read.ports = list()?.split(',').map(ports).collect::<Result<_, _>>()?;
                }
                "host" if read.hosts.is_empty() => {
                    read.hosts = list()?
                        .split(',')
                        .map(str::parse)
                        .collect::<Result<_, _>>()?;
                }
                "port" | "host" => {
                    let why = format!("'{word}' comes twice: write {word} A,B");
                    return Err(Unreadable(why));
                }
                _ => {
                    let why = format!(
                        "'{word}': write 'tcp port 443' or 'port 80,8000-8080 and host 192.0.2.0/24'"
                    );
                    return Err(Unreadable(why));
                }
            }
        }
        match read == Match::default() {
            true => Err(Unreadable("name a port or a host".to_owned())),
            false => Ok(read),
        }
    }
}

/// A port, or a range of them.
fn ports(text: &str) -> Result<RangeInclusive<u16>, Unreadable> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    match (port(first), port(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err(Unreadable(format!(
            "'{text}' is no port, such as 443 or 8000-8080"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(fixed: &str, mobile: &str) -> FlowKey {
        let parse = |text: &str| text.parse().expect("an address and a port");
        let (fixed, mobile) = (parse(fixed), parse(mobile));
        FlowKey { fixed, mobile }
    }

    #[test]
    fn conditions_hold_for_either_end() {
        let web = flow("192.0.2.1:443", "10.0.0.9:50000");
        let other = flow("[fd00::1]:8005", "[fe80::1]:50000");
        for (text, of_web, of_other) in [
            ("tcp port 443", true, false),
            ("port 80,8000-8010", false, true),
            ("host 10.0.0.0/8", true, false),
            ("host fd00::/8,192.0.2.1", true, true),
            ("port 443,8005 and host fd00::1", false, true),
            ("port 50000", true, true),
        ] {
            let read: Match = text.parse().expect(text);
            assert_eq!(read.contains(&web), of_web, "{text}");
            assert_eq!(read.contains(&other), of_other, "{text}");
        }
        assert!(Match::default().contains(&web));
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        for (text, reason) in [
            ("", "name a port or a host"),
            ("tcp", "name a port or a host"),
            ("udp port 53", "'udp'"),
            ("port", "ends behind 'port'"),
            ("port 0", "'0' is no port"),
            ("port 80-20", "'80-20' is no port"),
            ("port 80,", "'' is no port"),
            ("port 65536", "'65536' is no port"),
            ("port 80 port 81", "'port' comes twice"),
            ("host 10.0.0.0/33", "'10.0.0.0/33' is no network"),
            ("host 10.0.0.0/", "'10.0.0.0/' is no network"),
        ] {
            let error = text.parse::<Match>().expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
