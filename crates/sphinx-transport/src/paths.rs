//! Where the paths of a connecting end begin and lead: before its session, and while that runs.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;

use sphinx_net::udp::{UdpConfig, UdpIo};
use sphinx_net::{Family, resolve};
use sphinx_netdev::lookup;
use sphinx_proto::{Bond, PathId, PathPolicy};

use crate::engine::Further;
use crate::error::{Error, ErrorKind};
use crate::options::{LocalPath, PathOptions};
use crate::shared::Session;

/// How long the application waits for the engine's answer: it comes sooner, or not at all.
const ENGINE_PATIENCE: Duration = Duration::from_secs(2);

/// What the engine is to do with paths of a running session.
pub(crate) enum PathWish {
    /// Use this one too; the answer is whether it can be tried.
    Add {
        path: Further,
        device: Option<String>,
        answer: SyncSender<Result<usize, Error>>,
    },
    /// Give this one up; the answer is whether it was there, and is not the last one.
    Abandon {
        path: PathId,
        answer: SyncSender<bool>,
    },
    /// Use a path according to this policy.
    Policy { path: PathId, policy: PathPolicy },
    /// Use all paths in this mode from now on.
    Bond(Bond),
}

/// A socket for each path of a client, the peer's addresses of one family, and where the paths but the first begin.
type Opened = (UdpIo, Vec<SocketAddr>, Vec<Further>);

/// Opens them to the peer's addresses of the family of its first one, or of the other family if there are such and not all paths have a way
/// to the former: an interface may have one family only. Through one without IPv4 Linux finds a way all the same, from another one's address: that
/// is taken if nothing better is left.
pub(crate) fn open_paths(paths: &[PathOptions], remotes: Vec<SocketAddr>) -> Result<Opened, Error> {
    let first = paths.first();
    let remotes = match first.and_then(|first| first.to.as_deref()) {
        Some(to) => found_at(to)?,
        None => remotes,
    };
    let begins_in = |is_v6| match first.map(|first| &first.begin) {
        Some(LocalPath::Address(address)) => address.is_ipv6() == is_v6,
        _ => true,
    };
    let preferred = remotes.first().is_some_and(SocketAddr::is_ipv6);
    let has_both = remotes.iter().any(|remote| remote.is_ipv6() != preferred);
    let (mut doubtful, mut failed) = (None, None);
    for is_v6 in [preferred, !preferred] {
        let mut family = remotes.clone();
        family.retain(|remote| remote.is_ipv6() == is_v6);
        if family.is_empty() || !begins_in(is_v6) {
            continue;
        }
        match open_in_family(paths, family) {
            Ok((opened, sockets)) if !has_both || sockets.iter().all(has_own_address) => {
                return Ok(opened);
            }
            Ok((opened, _)) => doubtful = doubtful.or(Some(opened)),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    if let Some(opened) = doubtful {
        return Ok(opened);
    }
    Err(failed.unwrap_or_else(|| {
        let why = "the other end has no address of the family of the first --path";
        Error::new(ErrorKind::Usage, why)
    }))
}

/// The same to these addresses, all of one family; and how each socket was opened.
fn open_in_family(
    paths: &[PathOptions],
    remotes: Vec<SocketAddr>,
) -> Result<(Opened, Vec<UdpConfig>), Error> {
    let Some(remote) = remotes.first() else {
        return Err(Error::new(ErrorKind::Usage, "the other end has no address"));
    };
    let is_v6 = remote.is_ipv6();
    let mut configs: Vec<UdpConfig> = Vec::new();
    let mut further = Vec::new();
    for path in paths {
        let to = leads_to(path, is_v6)?;
        let (address, device) = begin(&path.begin, to.unwrap_or(*remote))?;
        if configs.iter().any(|known| known.bind.ip() == address) {
            return Err(begins_there_too(address));
        }
        if !configs.is_empty() {
            further.push(Further {
                local: address,
                remote: to,
                policy: path.policy,
            });
        }
        configs.push(UdpConfig {
            device,
            ..UdpConfig::new((address, 0).into())
        });
    }
    let mut sockets = configs.iter().zip(paths);
    let Some((first, path)) = sockets.next() else {
        return Err(Error::new(ErrorKind::Usage, "no path"));
    };
    let mut io = UdpIo::open(first).map_err(|error| cannot_use(&path.begin, error))?;
    for (config, path) in sockets {
        io.attach_with(config)
            .map_err(|error| cannot_use(&path.begin, error))?;
    }
    Ok(((io, remotes, further), configs))
}

/// Whether the address of a socket is one of the interface that it is bound to, as far as that can be known. Of IPv6 no other one is taken.
fn has_own_address(socket: &UdpConfig) -> bool {
    let address = socket.bind.ip();
    let Some(name) = socket.device.as_ref().filter(|_| address.is_ipv4()) else {
        return true;
    };
    let Ok(known) = lookup::attached(false) else {
        return true;
    };
    let mut known = known.iter();
    known.any(|it| it.interface == *name && it.network.0 == address)
}

/// Why two paths cannot both begin there.
pub(crate) fn begins_there_too(address: IpAddr) -> Error {
    let why = format!("two paths begin at {address}: paths are told apart by their addresses");
    Error::new(ErrorKind::Usage, why)
}

fn cannot_use(path: &LocalPath, error: io::Error) -> Error {
    let why = format!("cannot use path {path}: {error}");
    Error::new(ErrorKind::LocalIo, why).caused_by(error)
}

fn found_at(to: &str) -> Result<Vec<SocketAddr>, Error> {
    let found = resolve(to, None, Family::default());
    found.map_err(|error| Error::new(ErrorKind::Unreachable, error.to_string()).caused_by(error))
}

/// Where the path leads, if not where the others do.
fn leads_to(path: &PathOptions, is_v6: bool) -> Result<Option<SocketAddr>, Error> {
    let Some(to) = &path.to else {
        return Ok(None);
    };
    let mut found = found_at(to)?.into_iter();
    match found.find(|to| to.is_ipv6() == is_v6) {
        Some(to) => Ok(Some(to)),
        None => {
            let why = format!("{to} has no address of the family of the first --path");
            Err(Error::new(ErrorKind::Usage, why))
        }
    }
}

/// The address that a path towards `remote` begins at, and the interface that it is bound to.
fn begin(path: &LocalPath, remote: SocketAddr) -> Result<(IpAddr, Option<String>), Error> {
    match path {
        LocalPath::Address(address) if address.is_ipv6() != remote.is_ipv6() => Err(Error::new(
            ErrorKind::Usage,
            format!("path {address} is of another address family than {remote}"),
        )),
        LocalPath::Address(address) => Ok((*address, None)),
        LocalPath::Routed => {
            let no_route = |error| {
                let why = format!("there is no route to {remote}");
                Error::new(ErrorKind::Unreachable, why).caused_by(error)
            };
            match routed_to(remote).map_err(no_route)? {
                Some(name) => begin(&LocalPath::Interface(name), remote),
                // The peer is on this machine.
                None => {
                    let address = UdpIo::address_towards(remote, None).map_err(no_route)?;
                    Ok((address, None))
                }
            }
        }
        LocalPath::Interface(name) => match UdpIo::address_towards(remote, Some(name)) {
            Ok(address) => Ok((address, Some(name.clone()))),
            Err(error) => {
                let hint = match error.raw_os_error() {
                    // ENODEV
                    Some(19) => "there is no such interface",
                    // ENETUNREACH
                    Some(101) => {
                        "it has no route to there: give it one of its own, such as `ip route add default via GATEWAY dev IFACE metric 1000`"
                    }
                    _ => "it is down, or has no address",
                };
                let why = format!("cannot use path {name} towards {remote}: {hint}");
                Err(Error::new(ErrorKind::LocalIo, why).caused_by(error))
            }
        },
    }
}

/// The name of the interface through which packets for `remote` leave; `None` if it is this machine.
fn routed_to(remote: SocketAddr) -> io::Result<Option<String>> {
    let way = lookup::way(remote.ip(), None, None)?;
    way.map(|way| lookup::name(way.interface)).transpose()
}

impl Session {
    /// Uses another path too, of a session that began with [`Options::paths`](crate::Options::paths): its place among these, behind those that
    /// are there. It is opened as soon as the other end allows; [`take_path_events`](Self::take_path_events) tells.
    ///
    /// # Errors
    /// [`ErrorKind::LocalIo`] when it cannot begin there; [`ErrorKind::Usage`] when another one does, when there are as many as may be, or when the
    /// session knows one path only.
    pub fn add_path(&self, path: &PathOptions) -> Result<usize, Error> {
        let remote = self.remote_addr();
        let to = leads_to(path, remote.is_ipv6())?;
        let (local, device) = begin(&path.begin, to.unwrap_or(remote))?;
        let further = Further {
            local,
            remote: to,
            policy: path.policy,
        };
        let (answer, answered) = mpsc::sync_channel(1);
        self.shared().wish(PathWish::Add {
            path: further,
            device,
            answer,
        });
        let added = answered.recv_timeout(ENGINE_PATIENCE).map_err(|_| {
            let over = Error::new(ErrorKind::Other, "the session does not answer");
            self.closed().unwrap_or(over)
        })?;
        added.map_err(|error| match error.kind() {
            ErrorKind::LocalIo => {
                let why = format!("cannot use path {}: {error}", path.begin);
                Error::new(ErrorKind::LocalIo, why).caused_by(error)
            }
            _ => error,
        })
    }

    /// Gives the path with this id up, in both directions; whether it was open, and is not the last one on which the other end has answered.
    pub fn abandon_path(&self, path: u32) -> bool {
        let (answer, answered) = mpsc::sync_channel(1);
        let path = PathId::new(path);
        self.shared().wish(PathWish::Abandon { path, answer });
        answered.recv_timeout(ENGINE_PATIENCE).unwrap_or(false)
    }

    /// What the path with this id is to be used for from now on, in both directions where this end connected.
    pub fn set_path_policy(&self, path: u32, policy: PathPolicy) {
        let path = PathId::new(path);
        self.shared().wish(PathWish::Policy { path, policy });
    }

    /// What several paths are for from now on, in both directions where this end connected.
    pub fn set_bond(&self, bond: Bond) {
        self.shared().wish(PathWish::Bond(bond));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_address_of_another_interface_is_found_out() {
        let socket = |ip: Ipv4Addr, device: Option<&str>| UdpConfig {
            device: device.map(str::to_owned),
            ..UdpConfig::new((ip, 0).into())
        };
        assert!(has_own_address(&socket(Ipv4Addr::LOCALHOST, Some("lo"))));
        assert!(has_own_address(&socket(Ipv4Addr::LOCALHOST, None)));
        for other in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(192, 0, 2, 1)] {
            assert!(!has_own_address(&socket(other, Some("lo"))), "{other}");
        }
    }
}
