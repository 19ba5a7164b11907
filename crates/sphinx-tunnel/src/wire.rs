//! What the ends of a tunnel tell each other at the beginning of a stream (`docs/tunnel.md`, Protocol).

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::{Buf, BufMut};

use crate::forward::Giving;

/// Longest header or reply, bytes behind its length.
pub(crate) const HEADER_MAX: usize = 1024;
/// Longest name in bytes: a DNS name fits.
const NAME_MAX: usize = 255;
/// Longest path of a Unix socket that the kernel takes, bytes.
const PATH_MAX: usize = 107;
/// Longest explanation that goes with a refusal, bytes.
const MESSAGE_MAX: usize = 300;

const CONNECT: u8 = 1;
const UDP: u8 = 2;
const ASSOCIATE: u8 = 3;
const LISTEN: u8 = 4;
const LISTEN_UDP: u8 = 5;
const ACCEPTED: u8 = 6;
const ACCEPTED_UDP: u8 = 7;
const TUN: u8 = 8;
const UDP_IN_ORDER: u8 = 9;
const LISTEN_UDP_IN_ORDER: u8 = 10;
const JOIN: u8 = 20;

const FORM_IPV4: u8 = 1;
const FORM_IPV6: u8 = 2;
const FORM_NAME: u8 = 3;
const FORM_PATH: u8 = 4;

/// Why something cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Longer than [`HEADER_MAX`], or than a name or path may be.
    #[error("a header is too long")]
    TooLong,
    /// It ends too early, or something follows it.
    #[error("a header has another length than it says")]
    Length,
    /// A name, path or port that cannot be one.
    #[error("an address is none")]
    Address,
    /// Of a later version.
    #[error("a header of an unknown kind")]
    Unknown,
}

/// Something to connect to, or to listen on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// An address.
    Ip(SocketAddr),
    /// A name, which the far end resolves, and a port.
    Name(String, u16),
    /// A Unix socket.
    Path(String),
}

impl Target {
    /// A host as people write it, without brackets, and a port.
    ///
    /// # Errors
    /// It is neither an address nor can it be a name.
    pub fn new(host: &str, port: u16) -> Result<Self, WireError> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(Self::Ip(SocketAddr::new(ip, port)));
        }
        match is_name(host) {
            true => Ok(Self::Name(host.to_owned(), port)),
            false => Err(WireError::Address),
        }
    }

    /// A Unix socket.
    ///
    /// # Errors
    /// The path is empty, too long for a socket, or holds a NUL.
    pub fn path(path: &str) -> Result<Self, WireError> {
        match path.len() {
            0 => Err(WireError::Address),
            1..=PATH_MAX if !path.contains('\0') => Ok(Self::Path(path.to_owned())),
            1..=PATH_MAX => Err(WireError::Address),
            _ => Err(WireError::TooLong),
        }
    }

    /// Appends the target.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ip(address) => {
                put_ip(out, address.ip());
                out.put_u16(address.port());
            }
            Self::Name(name, port) => {
                out.put_u8(FORM_NAME);
                // The length was checked where the name was made.
                out.put_u8(name.len().min(NAME_MAX) as u8);
                out.put_slice(&name.as_bytes()[..name.len().min(NAME_MAX)]);
                out.put_u16(*port);
            }
            Self::Path(path) => {
                out.put_u8(FORM_PATH);
                out.put_u8(path.len().min(PATH_MAX) as u8);
                out.put_slice(&path.as_bytes()[..path.len().min(PATH_MAX)]);
            }
        }
    }

    /// Takes a target from the front of `data`.
    pub(crate) fn take(data: &mut &[u8]) -> Result<Self, WireError> {
        let short = |_| WireError::Length;
        Ok(match data.try_get_u8().map_err(short)? {
            FORM_IPV4 => {
                let ip = data.try_get_u32().map_err(short)?;
                let port = data.try_get_u16().map_err(short)?;
                Self::Ip((std::net::Ipv4Addr::from(ip), port).into())
            }
            FORM_IPV6 => {
                let ip = data.try_get_u128().map_err(short)?;
                let port = data.try_get_u16().map_err(short)?;
                Self::Ip((std::net::Ipv6Addr::from(ip), port).into())
            }
            FORM_NAME => {
                let name = text(data)?;
                let port = data.try_get_u16().map_err(short)?;
                match is_name(&name) {
                    true => Self::Name(name, port),
                    false => return Err(WireError::Address),
                }
            }
            FORM_PATH => Self::path(&text(data)?)?,
            _ => return Err(WireError::Unknown),
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
            Self::Path(path) => f.write_str(path),
        }
    }
}

/// Text behind its length in one byte.
fn text(data: &mut &[u8]) -> Result<String, WireError> {
    let len = data.try_get_u8().map_err(|_| WireError::Length)?;
    let Some((text, rest)) = data.split_at_checked(usize::from(len)) else {
        return Err(WireError::Length);
    };
    *data = rest;
    let text = std::str::from_utf8(text).map_err(|_| WireError::Address)?;
    Ok(text.to_owned())
}

/// What may be asked of a name service: anything else would end up in logs and terminals.
fn is_name(text: &str) -> bool {
    let fits = (1..=NAME_MAX).contains(&text.len());
    fits && text
        .chars()
        .all(|c| c.is_alphanumeric() || matches!(c, '-' | '.' | '_'))
}

/// What a stream is for: the first thing on it, from the end that opens it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// Connect, and carry bytes both ways.
    Connect(Target),
    /// Exchange datagrams with one target, for as long as the stream is open.
    Udp {
        /// The number that its datagrams have.
        flow: u64,
        /// How they are given out.
        giving: Giving,
        /// Where they go.
        target: Target,
    },
    /// Exchange datagrams with any target: each has an address in front.
    Associate {
        /// The number that its datagrams have.
        flow: u64,
        /// How they are given out.
        giving: Giving,
    },
    /// Listen for connections, for as long as the stream is open.
    Listen {
        /// What this end calls the listener.
        listener: u32,
        /// Where to listen.
        at: Target,
    },
    /// Listen for datagrams, for as long as the stream is open.
    ListenUdp {
        /// What this end calls the listener.
        listener: u32,
        /// How they are given out.
        giving: Giving,
        /// Where to listen.
        at: Target,
    },
    /// Exchange IP packets, for as long as the stream is open.
    Tun {
        /// The first of the numbers that its datagrams have.
        flow: u64,
        /// Addresses that this end asks for; none: any.
        addresses: Vec<IpAddr>,
    },
    /// A listener has accepted a connection.
    Accepted {
        /// Number of the listener.
        listener: u32,
    },
    /// A listener has heard from a new source.
    AcceptedUdp {
        /// Number of the listener.
        listener: u32,
        /// The number that its datagrams have.
        flow: u64,
    },
    /// Add this client to those that the server knows.
    Join,
}

impl Request {
    /// The header, with its length in front.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0, 0];
        match self {
            Self::Connect(target) => {
                out.put_u8(CONNECT);
                target.put(&mut out);
            }
            Self::Udp {
                flow,
                giving,
                target,
            } => {
                out.put_u8(if giving.in_order { UDP_IN_ORDER } else { UDP });
                out.put_u64(*flow);
                out.put_u16(millis(giving.deadline));
                target.put(&mut out);
            }
            Self::Associate { flow, giving } => {
                out.put_u8(ASSOCIATE);
                out.put_u64(*flow);
                out.put_u16(millis(giving.deadline));
            }
            Self::Listen { listener, at } => {
                out.put_u8(LISTEN);
                out.put_u32(*listener);
                at.put(&mut out);
            }
            Self::ListenUdp {
                listener,
                giving,
                at,
            } => {
                out.put_u8(match giving.in_order {
                    true => LISTEN_UDP_IN_ORDER,
                    false => LISTEN_UDP,
                });
                out.put_u32(*listener);
                out.put_u16(millis(giving.deadline));
                at.put(&mut out);
            }
            Self::Accepted { listener } => {
                out.put_u8(ACCEPTED);
                out.put_u32(*listener);
            }
            Self::AcceptedUdp { listener, flow } => {
                out.put_u8(ACCEPTED_UDP);
                out.put_u32(*listener);
                out.put_u64(*flow);
            }
            Self::Tun { flow, addresses } => {
                out.put_u8(TUN);
                out.put_u64(*flow);
                put_list(&mut out, addresses, |out, ip| put_ip(out, *ip));
            }
            Self::Join => out.put_u8(JOIN),
        }
        with_length(out)
    }

    /// What a header says, without its length.
    ///
    /// # Errors
    /// It is none, or of a kind that this version does not know.
    pub(crate) fn parse(mut data: &[u8]) -> Result<Self, WireError> {
        let short = |_| WireError::Length;
        let data = &mut data;
        let kind = data.try_get_u8().map_err(short)?;
        let giving = |data: &mut &[u8]| -> Result<Giving, WireError> {
            Ok(Giving {
                deadline: deadline(data)?,
                in_order: matches!(kind, UDP_IN_ORDER | LISTEN_UDP_IN_ORDER),
            })
        };
        let request = match kind {
            CONNECT => Self::Connect(Target::take(data)?),
            UDP | UDP_IN_ORDER => Self::Udp {
                flow: data.try_get_u64().map_err(short)?,
                giving: giving(data)?,
                target: Target::take(data)?,
            },
            ASSOCIATE => Self::Associate {
                flow: data.try_get_u64().map_err(short)?,
                giving: giving(data)?,
            },
            LISTEN => Self::Listen {
                listener: data.try_get_u32().map_err(short)?,
                at: Target::take(data)?,
            },
            LISTEN_UDP | LISTEN_UDP_IN_ORDER => Self::ListenUdp {
                listener: data.try_get_u32().map_err(short)?,
                giving: giving(data)?,
                at: Target::take(data)?,
            },
            ACCEPTED => Self::Accepted {
                listener: data.try_get_u32().map_err(short)?,
            },
            ACCEPTED_UDP => Self::AcceptedUdp {
                listener: data.try_get_u32().map_err(short)?,
                flow: data.try_get_u64().map_err(short)?,
            },
            TUN => Self::Tun {
                flow: data.try_get_u64().map_err(short)?,
                addresses: take_list(data, take_ip)?,
            },
            JOIN => Self::Join,
            _ => return Err(WireError::Unknown),
        };
        match data.is_empty() {
            true => Ok(request),
            false => Err(WireError::Length),
        }
    }
}

/// Most addresses of one list.
pub(crate) const LIST_MAX: usize = 8;

/// Appends what is in a list behind its length in one byte.
pub(crate) fn put_list<T>(out: &mut Vec<u8>, list: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    let list = &list[..list.len().min(LIST_MAX)];
    out.put_u8(list.len() as u8);
    list.iter().for_each(|item| put(out, item));
}

/// Takes a list from the front of `data`.
pub(crate) fn take_list<T>(
    data: &mut &[u8],
    take: impl Fn(&mut &[u8]) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    let len = usize::from(data.try_get_u8().map_err(|_| WireError::Length)?);
    if len > LIST_MAX {
        return Err(WireError::TooLong);
    }
    (0..len).map(|_| take(data)).collect()
}

/// Appends an address behind its form.
pub(crate) fn put_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => {
            out.put_u8(FORM_IPV4);
            out.put_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.put_u8(FORM_IPV6);
            out.put_slice(&ip.octets());
        }
    }
}

/// Takes an address from the front of `data`.
pub(crate) fn take_ip(data: &mut &[u8]) -> Result<IpAddr, WireError> {
    let short = |_| WireError::Length;
    Ok(match data.try_get_u8().map_err(short)? {
        FORM_IPV4 => std::net::Ipv4Addr::from(data.try_get_u32().map_err(short)?).into(),
        FORM_IPV6 => std::net::Ipv6Addr::from(data.try_get_u128().map_err(short)?).into(),
        _ => return Err(WireError::Unknown),
    })
}

fn deadline(data: &mut &[u8]) -> Result<Duration, WireError> {
    let millis = data.try_get_u16().map_err(|_| WireError::Length)?;
    Ok(Duration::from_millis(u64::from(millis)))
}

fn millis(deadline: Duration) -> u16 {
    u16::try_from(deadline.as_millis()).unwrap_or(u16::MAX)
}

/// Writes the length into the two bytes that were left for it in front.
pub(crate) fn with_length(mut out: Vec<u8>) -> Vec<u8> {
    let len = (out.len() - 2) as u16;
    out[..2].copy_from_slice(&len.to_be_bytes());
    out
}

/// Why something was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// The rules of the far end do not let it.
    Denied,
    /// The target refused the connection.
    Refused,
    /// No way to the network.
    NetworkUnreachable,
    /// No way to the host.
    HostUnreachable,
    /// The name has no address.
    NoName,
    /// The target did not answer in time.
    TimedOut,
    /// Too many at a time.
    Limit,
    /// A request that is not known, or not possible there.
    Unsupported,
    /// Somebody listens there already.
    InUse,
    /// Anything else.
    Other,
}

/// Codes of refusals in a reply.
const STATUSES: [(u8, Status); 10] = [
    (1, Status::Denied),
    (2, Status::Refused),
    (3, Status::NetworkUnreachable),
    (4, Status::HostUnreachable),
    (5, Status::NoName),
    (6, Status::TimedOut),
    (7, Status::Limit),
    (8, Status::Unsupported),
    (9, Status::InUse),
    (10, Status::Other),
];

/// A refusal with its reason, for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Why the request was refused.
    pub status: Status,
    /// The reason in words.
    pub message: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, message }
    }
}

/// The answer to a [`Request`], from the other end: where it is connected from or listens, or why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply(pub Result<Option<SocketAddr>, Refusal>);

impl Reply {
    /// The reply with its length.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0, 0];
        match &self.0 {
            Ok(address) => {
                out.put_u8(0);
                if let Some(address) = address {
                    Target::Ip(*address).put(&mut out);
                }
            }
            Err(refusal) => {
                let mut named = STATUSES.iter();
                let code = named.find(|(_, status)| *status == refusal.status);
                out.put_u8(code.map_or(10, |(code, _)| *code));
                let mut end = refusal.message.len().min(MESSAGE_MAX);
                while !refusal.message.is_char_boundary(end) {
                    end -= 1;
                }
                out.put_slice(&refusal.message.as_bytes()[..end]);
            }
        }
        with_length(out)
    }

    /// What a reply says, without its length.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn parse(mut data: &[u8]) -> Result<Self, WireError> {
        let data = &mut data;
        let code = data.try_get_u8().map_err(|_| WireError::Length)?;
        if code == 0 {
            let address = match data.is_empty() {
                true => None,
                false => match Target::take(data)? {
                    Target::Ip(address) if data.is_empty() => Some(address),
                    _ => return Err(WireError::Address),
                },
            };
            return Ok(Self(Ok(address)));
        }
        let mut named = STATUSES.iter();
        // What a later version may say is a failure too.
        let status = named.find(|(known, _)| *known == code);
        let status = status.map_or(Status::Other, |(_, status)| *status);
        let message = String::from_utf8_lossy(&data[..data.len().min(MESSAGE_MAX)]);
        Ok(Self(Err(Refusal::new(status, message))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written() {
        let giving = Giving::default();
        let in_order = Giving {
            in_order: true,
            ..giving
        };
        let target = Target::new("db.corp", 5432).unwrap();
        for request in [
            Request::Connect(Target::new("::1", 80).unwrap()),
            Request::Connect(Target::path("/run/db.sock").unwrap()),
            Request::Udp {
                flow: 1 << 40,
                giving,
                target: target.clone(),
            },
            Request::Udp {
                flow: 2,
                giving: in_order,
                target: target.clone(),
            },
            Request::Associate { flow: 3, giving },
            Request::Listen {
                listener: 7,
                at: Target::new("127.0.0.1", 0).unwrap(),
            },
            Request::ListenUdp {
                listener: 7,
                giving,
                at: target.clone(),
            },
            Request::ListenUdp {
                listener: 7,
                giving: in_order,
                at: target,
            },
            Request::Accepted { listener: 7 },
            Request::AcceptedUdp {
                listener: 7,
                flow: 9,
            },
            Request::Tun {
                flow: 4,
                addresses: vec![[10, 9, 0, 2].into(), [1_u16; 8].into()],
            },
        ] {
            let bytes = request.to_bytes();
            assert!(bytes.len() <= 2 + HEADER_MAX);
            assert_eq!(
                usize::from(bytes[0]) << 8 | usize::from(bytes[1]),
                bytes.len() - 2
            );
            assert_eq!(Request::parse(&bytes[2..]), Ok(request.clone()));
            for end in 2..bytes.len() {
                assert!(
                    Request::parse(&bytes[2..end]).is_err(),
                    "{request:?} cut at {end}"
                );
            }
            let longer = [&bytes[2..], &[0]].concat();
            assert_eq!(Request::parse(&longer), Err(WireError::Length));
        }
    }

    #[test]
    fn the_bytes_of_the_specification() {
        let request = Request::Connect(Target::new("db", 5432).unwrap());
        assert_eq!(request.to_bytes(), [0, 7, 1, 3, 2, b'd', b'b', 0x15, 0x38]);
        let request = Request::Tun {
            flow: 2,
            addresses: vec![[10, 9, 0, 2].into()],
        };
        let expected = [0, 15, 8, 0, 0, 0, 0, 0, 0, 0, 2, 1, 1, 10, 9, 0, 2];
        assert_eq!(request.to_bytes(), expected);
        let reply = Reply(Ok(Some(([192, 0, 2, 1], 80).into())));
        assert_eq!(reply.to_bytes(), [0, 8, 0, 1, 192, 0, 2, 1, 0, 80]);
        let reply = Reply(Err(Refusal::new(Status::Refused, "no")));
        assert_eq!(reply.to_bytes(), [0, 3, 2, b'n', b'o']);
        assert_eq!(Reply::parse(&reply.to_bytes()[2..]), Ok(reply));
    }

    #[test]
    fn names_are_names() {
        for wrong in ["", "a b", "a\n", "a/b", "a:b", "[", &"a".repeat(256)] {
            assert!(Target::new(wrong, 1).is_err(), "{wrong:?}");
        }
        for name in ["localhost", "xn--a.example.", "_srv.a-b", "bücher.example"] {
            assert!(
                matches!(Target::new(name, 1), Ok(Target::Name(..))),
                "{name}"
            );
        }
        assert!(Target::path(&"p".repeat(108)).is_err());
    }
}
