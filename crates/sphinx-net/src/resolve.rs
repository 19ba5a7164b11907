//! From what a user typed to socket addresses.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// Which address family to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Family {
    /// Both, in the order of the system's resolver.
    #[default]
    Any,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

impl Family {
    fn admits(self, addr: &SocketAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => addr.is_ipv4(),
            Self::V6 => addr.is_ipv6(),
        }
    }
}

/// Why a target could not be turned into addresses.
#[derive(Debug)]
#[non_exhaustive]
pub enum ResolveError {
    /// The name has addresses, but none of the family asked for.
    FamilyMissing {
        /// The host as given.
        host: String,
        /// The family asked for.
        family: Family,
    },
    /// The host part is empty or its brackets do not match.
    HostInvalid {
        /// The whole target as given.
        target: String,
    },
    /// The resolver failed, or does not know the name.
    NotFound {
        /// The host as given.
        host: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// What follows the last colon is not a number from 0 to 65535.
    PortInvalid {
        /// The whole target as given.
        target: String,
    },
    /// There is no port and no default.
    PortMissing {
        /// The whole target as given.
        target: String,
    },
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FamilyMissing {
                host,
                family: Family::V4,
            } => {
                write!(f, "{host} has no IPv4 address")
            }
            Self::FamilyMissing {
                host,
                family: Family::V6,
            } => {
                write!(f, "{host} has no IPv6 address")
            }
            Self::FamilyMissing {
                host,
                family: Family::Any,
            } => {
                write!(f, "{host} has no address")
            }
            Self::HostInvalid { target } => {
                write!(
                    f,
                    "no valid host in \"{target}\" (expected HOST:PORT or [IPV6]:PORT)"
                )
            }
            Self::NotFound { host, source } => write!(f, "cannot resolve {host}: {source}"),
            Self::PortInvalid { target } => {
                write!(f, "no valid port in \"{target}\" (expected 0 to 65535)")
            }
            Self::PortMissing { target } => {
                write!(
                    f,
                    "no port in \"{target}\" (expected HOST:PORT or [IPV6]:PORT)"
                )
            }
        }
    }
}

impl Error for ResolveError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::NotFound { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Turns `HOST:PORT`, `ADDRESS:PORT` or `[IPV6]:PORT` into at least one address. With a
/// `default_port` the port may be left out, and an IPv6 address then needs no brackets.
///
/// Names are looked up by the system's resolver, which may block for seconds.
///
/// # Errors
///
/// See [`ResolveError`]; each says what was wrong and what was expected.
pub fn resolve(
    target: &str,
    default_port: Option<u16>,
    family: Family,
) -> Result<Vec<SocketAddr>, ResolveError> {
    let (host, port) = split(target, default_port)?;
    let found = match host.parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, port)],
        Err(_) => (host, port)
            .to_socket_addrs()
            .map_err(|source| ResolveError::NotFound {
                host: host.to_owned(),
                source,
            })?
            .collect(),
    };
    let mut addresses: Vec<SocketAddr> = Vec::with_capacity(found.len());
    for addr in found {
        if family.admits(&addr) && !addresses.contains(&addr) {
            addresses.push(addr);
        }
    }
    if addresses.is_empty() {
        return Err(ResolveError::FamilyMissing {
            host: host.to_owned(),
            family,
        });
    }
    Ok(addresses)
}

/// Host (without brackets) and port of `target`.
fn split(target: &str, default_port: Option<u16>) -> Result<(&str, u16), ResolveError> {
    let host_invalid = || ResolveError::HostInvalid {
        target: target.to_owned(),
    };
    let port_missing = || ResolveError::PortMissing {
        target: target.to_owned(),
    };
    let (host, port) = if let Some(rest) = target.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or_else(host_invalid)?;
        match after.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if after.is_empty() => (host, None),
            None => return Err(host_invalid()),
        }
    } else if target.parse::<Ipv6Addr>().is_ok() {
        (target, None)
    } else {
        match target.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (target, None),
        }
    };
    if host.is_empty() || host.contains(['[', ']']) {
        return Err(host_invalid());
    }
    let port = match port {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().map_err(|_| ResolveError::PortInvalid {
                target: target.to_owned(),
            })?
        }
        Some(_) => {
            return Err(ResolveError::PortInvalid {
                target: target.to_owned(),
            });
        }
        None => default_port.ok_or_else(port_missing)?,
    };
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn literals_need_no_resolver() {
        let any = Family::Any;
        assert_eq!(
            resolve("192.0.2.1:53", None, any).unwrap(),
            [addr("192.0.2.1:53")]
        );
        assert_eq!(
            resolve("[2001:db8::1]:53", None, any).unwrap(),
            [addr("[2001:db8::1]:53")]
        );
        assert_eq!(
            resolve("[2001:db8::1]", Some(7), any).unwrap(),
            [addr("[2001:db8::1]:7")]
        );
        assert_eq!(
            resolve("2001:db8::1", Some(7), any).unwrap(),
            [addr("[2001:db8::1]:7")]
        );
        assert_eq!(
            resolve("192.0.2.1", Some(7), any).unwrap(),
            [addr("192.0.2.1:7")]
        );
    }

    #[test]
    fn localhost_is_found_in_the_family_asked_for() {
        let found = resolve("localhost:4433", None, Family::V4).unwrap();
        assert_eq!(found, [addr("127.0.0.1:4433")]);
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let fails = |target: &str| resolve(target, None, Family::Any).unwrap_err();
        assert!(matches!(
            fails("localhost"),
            ResolveError::PortMissing { .. }
        ));
        assert!(matches!(fails("::1"), ResolveError::PortMissing { .. }));
        assert!(matches!(fails("[::1]"), ResolveError::PortMissing { .. }));
        assert!(matches!(
            fails("localhost:"),
            ResolveError::PortInvalid { .. }
        ));
        assert!(matches!(
            fails("localhost:+1"),
            ResolveError::PortInvalid { .. }
        ));
        assert!(matches!(
            fails("localhost:65536"),
            ResolveError::PortInvalid { .. }
        ));
        assert!(matches!(fails(":1"), ResolveError::HostInvalid { .. }));
        assert!(matches!(fails(""), ResolveError::HostInvalid { .. }));
        assert!(matches!(fails("[::1:1"), ResolveError::HostInvalid { .. }));
        assert!(matches!(
            fails("[::1]x:1"),
            ResolveError::HostInvalid { .. }
        ));
        assert!(matches!(
            fails("no-such-host.invalid:1"),
            ResolveError::NotFound { .. }
        ));
        let error = resolve("192.0.2.1:1", None, Family::V6).unwrap_err();
        assert_eq!(error.to_string(), "192.0.2.1 has no IPv6 address");
    }
}
