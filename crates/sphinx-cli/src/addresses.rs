//! Which addresses to listen on and to put into a ticket.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sphinx_transport::can_advertise;

use crate::failure::Outcome;
use crate::text::printable;

/// More would make the ticket long and connecting slow.
const ADVERTISED_MAX: usize = 8;

/// Where to listen when the user named no address: in order, the first that can be bound.
pub(crate) fn everywhere(port: u16, ipv4: bool, ipv6: bool) -> Vec<SocketAddr> {
    let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    match (ipv4, ipv6) {
        (true, _) => vec![v4],
        (_, true) => vec![v6],
        // A dual-stack socket where the machine has IPv6 at all.
        _ => vec![v6, v4],
    }
}

/// The hosts that a ticket names when the user gave none. `own`: the addresses of the server, if they are not the machine's.
pub(crate) fn advertised(listen: SocketAddr, own: &[IpAddr]) -> Vec<String> {
    or_loopback(listen, found(listen, own))
}

/// The same for a server that keeps where it was `before`, HOST:PORT each: while the machine has no network it is still there for whoever
/// has a ticket. The second value says whether these are the addresses of `before`.
pub(crate) fn advertised_again(
    listen: SocketAddr,
    own: &[IpAddr],
    before: impl FnOnce() -> Outcome<Vec<String>>,
) -> Outcome<(Vec<String>, bool)> {
    let hosts = found(listen, own);
    if !hosts.is_empty() {
        return Ok((hosts, false));
    }
    let before = before()?;
    Ok(match still_right(listen, &before) {
        true => (before, true),
        false => (or_loopback(listen, hosts), false),
    })
}

/// Whether addresses of before are those of a server that listens here now, and lead to it from other machines.
fn still_right(listen: SocketAddr, before: &[String]) -> bool {
    let has_port = |address: &String| {
        let port = address.rsplit_once(':').map(|(_, port)| port);
        port.and_then(|port| port.parse().ok()) == Some(listen.port())
    };
    let leads_here = |address: &String| {
        let parsed = address.parse::<SocketAddr>();
        parsed.is_ok_and(|address| address.ip().is_loopback())
    };
    // What somebody has written there himself may be no address.
    let are_addresses = before.iter().all(|address| can_advertise(address));
    are_addresses && before.iter().any(has_port) && !before.iter().all(leads_here)
}

/// Where others may reach it; nothing while the machine has no network.
fn found(listen: SocketAddr, own: &[IpAddr]) -> Vec<String> {
    if !listen.ip().is_unspecified() {
        return vec![host(listen.ip())];
    }
    if !own.is_empty() {
        return choose(listen, own.iter().copied());
    }
    let found = if_addrs::get_if_addrs().unwrap_or_default();
    choose(listen, found.iter().map(if_addrs::Interface::ip))
}

fn choose(listen: SocketAddr, interfaces: impl Iterator<Item = IpAddr>) -> Vec<String> {
    let mut usable: Vec<IpAddr> = interfaces
        .filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
        .filter(|ip| match ip {
            IpAddr::V4(ip) => !ip.is_link_local(),
            // A link-local address means nothing without the peer's interface name.
            IpAddr::V6(ip) => listen.is_ipv6() && !ip.is_unicast_link_local(),
        })
        .collect();
    usable.sort_by_key(|ip| (rank(*ip), *ip));
    usable.dedup();
    usable.truncate(ADVERTISED_MAX);
    usable.into_iter().map(host).collect()
}

/// Without any other host it can be reached from its own machine.
fn or_loopback(listen: SocketAddr, hosts: Vec<String>) -> Vec<String> {
    if !hosts.is_empty() {
        return hosts;
    }
    let v4 = host(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let v6 = host(IpAddr::V6(Ipv6Addr::LOCALHOST));
    match listen.is_ipv6() {
        true => vec![v4, v6],
        false => vec![v4],
    }
}

/// What an option takes for a host, in brackets or not, with a port or without.
///
/// # Errors
/// It is a link-local IPv6 address: it means something on one link only, which each end would have to name.
pub(crate) fn check_host(text: &str) -> Result<(), String> {
    let host = text.trim_start_matches('[');
    let host = host.split(['%', ']']).next().unwrap_or_default();
    match host.parse::<Ipv6Addr>() {
        Ok(ip) if ip.is_unicast_link_local() => Err(format!(
            "{} is link-local, which is not supported: use another address of the machine, or its name",
            printable(text.as_bytes())
        )),
        _ => Ok(()),
    }
}

/// A host, or host:port, that is to stand in tickets.
pub(crate) fn advertisable(text: &str) -> Result<String, String> {
    check_host(text)?;
    match can_advertise(text) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "'{}' is no HOST or HOST:PORT (IPv6 addresses with a port in brackets)",
            printable(text.as_bytes())
        )),
    }
}

/// Addresses that are reachable from more places first.
fn rank(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(ip) if !ip.is_private() => 0,
        IpAddr::V6(ip) if !ip.is_unique_local() => 1,
        IpAddr::V4(_) => 2,
        IpAddr::V6(_) => 3,
    }
}

/// The address as it stands in `host:port`: an IPv6 address in brackets.
fn host(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(listen: &str, interfaces: &[&str]) -> Vec<String> {
        let interfaces = interfaces.iter().map(|ip| ip.parse().expect("an address"));
        let listen = listen.parse().expect("an address");
        or_loopback(listen, choose(listen, interfaces))
    }

    #[test]
    fn link_local_addresses_are_told_of() {
        for text in [
            "fe80::1",
            "[fe80::1]:7",
            "[fe80::1%2]:7",
            "fe80::a%eth0",
            "febf::1",
        ] {
            let told = advertisable(text).expect_err(text);
            assert!(told.contains("link-local"), "{told}");
        }
        for text in ["fec0::1", "[fd00::1]:7", "169.254.0.1", "a.example:7"] {
            assert_eq!(advertisable(text).as_deref(), Ok(text));
        }
        let told = advertisable("bad host").expect_err("no host");
        assert!(told.contains("'bad host' is no HOST"), "{told}");
    }

    #[test]
    fn a_listen_address_is_advertised_as_it_is() {
        let own = ["10.0.0.7".parse().unwrap()];
        for (listen, host) in [("127.0.0.1:5", "127.0.0.1"), ("[::1]:5", "[::1]")] {
            assert_eq!(advertised(listen.parse().unwrap(), &own), [host]);
        }
    }

    #[test]
    fn addresses_that_the_machine_does_not_know_are_advertised() {
        let own = ["fd00::2", "10.0.0.7"].map(|ip| ip.parse().unwrap());
        let advertised = |listen: &str| advertised(listen.parse().unwrap(), &own);
        assert_eq!(advertised("[::]:5"), ["10.0.0.7", "[fd00::2]"]);
        assert_eq!(advertised("0.0.0.0:5"), ["10.0.0.7"]);
    }

    #[test]
    fn what_was_known_before_is_right_if_it_leads_here() {
        let is_right = |before: &[&str]| {
            let before: Vec<String> = before.iter().map(|it| (*it).to_owned()).collect();
            still_right("[::]:5".parse().unwrap(), &before)
        };
        assert!(is_right(&["10.0.0.7:5", "[fd00::2]:5"]));
        assert!(is_right(&["a.example:9", "10.0.0.7:5"]));
        // Nothing, another port, this machine only, and no address.
        let wrong: [&[&str]; 4] = [
            &[],
            &["10.0.0.7:6"],
            &["127.0.0.1:5", "[::1]:5"],
            &["10.0.0.7:5", "a b:5"],
        ];
        for wrong in wrong {
            assert!(!is_right(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn a_server_with_an_address_asks_for_none_of_before() {
        let own = ["10.0.0.7".parse().unwrap()];
        for listen in ["0.0.0.0:5", "10.0.0.7:5"] {
            let listen = listen.parse().unwrap();
            let hosts = advertised_again(listen, &own, || unreachable!("it has one"));
            assert_eq!(hosts, Ok((vec!["10.0.0.7".to_owned()], false)));
        }
    }

    #[test]
    fn interfaces() {
        let all = [
            "127.0.0.1",
            "10.0.0.7",
            "fe80::1",
            "203.0.113.9",
            "2001:db8::1",
            "10.0.0.7",
        ];
        assert_eq!(
            chosen("[::]:1", &all),
            ["203.0.113.9", "[2001:db8::1]", "10.0.0.7"]
        );
        assert_eq!(chosen("0.0.0.0:1", &all), ["203.0.113.9", "10.0.0.7"]);
        assert_eq!(
            chosen("[::]:1", &["::1", "127.0.0.1"]),
            ["127.0.0.1", "[::1]"]
        );
        assert_eq!(chosen("0.0.0.0:1", &[]), ["127.0.0.1"]);
    }
}
