//! IP packets of a network interface, carried by a session (`docs/tunnel.md`, IP packets).
//!
//! | room | holds |
//! | --- | --- |
//! | `packet` | IP packets: their ends, what is said to senders of those that are too big |
//! | `fq_codel` | the queue in front of a session |
//! | `outbox` | packets on their way from a device into a session |
//! | `path` | how a packet is sent: what is repaired, how long it is waited for |
//! | `device` | the interface |
//! | `segment` | TCP segments: whose they are, turned round, refused |
//! | `split` | connections that are ended here, and become streams |
//! | `settings` | what a server tells a client of its addresses |
//! | `client`, `server` | the two ends |

mod client;
mod device;
pub(crate) mod fq_codel;
#[cfg(test)]
mod inner;
mod outbox;
pub(crate) mod packet;
mod path;
pub(crate) mod segment;
mod server;
pub(crate) mod settings;
pub(crate) mod split;

use std::net::IpAddr;

pub(crate) use client::Client;
pub use client::{ProgramDevice, TunPlan};
pub(crate) use server::serve;
pub use server::{Hub, Pool, PoolTaken, Reserved};
pub use settings::Settings;
pub use sphinx_netdev::split::Prefix;

/// MTU of the interfaces: what fits a packet of ours on a path with 1500 bytes, with room for what a repair says of the packets that it covers.
pub const MTU: usize = 1360;

/// Reads an address with the length of its prefix; one alone has all bits.
///
/// # Errors
/// What is wrong with it.
pub fn parse_prefix(text: &str) -> Result<Prefix, String> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let wrong =
        || format!("'{text}' is no address with a prefix: expected 10.9.0.0/24 or fd00::/64");
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let prefix = match prefix {
        Some(text) if is_number(text) => text.parse().map_err(|_| wrong())?,
        Some(_) => return Err(wrong()),
        None => most,
    };
    match prefix <= most {
        true => Ok((address, prefix)),
        false => Err(wrong()),
    }
}

/// Reads a network: [`parse_prefix`], of which the bits behind the prefix do not matter.
///
/// # Errors
/// What is wrong with it.
pub fn parse_network(text: &str) -> Result<Prefix, String> {
    let prefix = parse_prefix(text)?;
    Ok((first_of(prefix), prefix.1))
}

/// Whether addresses have this beginning.
pub(crate) fn contains((first, prefix): Prefix, address: IpAddr) -> bool {
    first_of((first, prefix)) == first_of((address, prefix)) && first.is_ipv4() == address.is_ipv4()
}

/// Whether a network is so wide that nobody has all of it: no server gives its clients one, as what else is in it is for others.
fn is_wide((address, prefix): Prefix) -> bool {
    let least = if address.is_ipv4() { 8 } else { 32 };
    prefix < least
}

/// Whether there is an address with both beginnings.
fn overlap(one: Prefix, other: Prefix) -> bool {
    match one.1 <= other.1 {
        true => contains(one, other.0),
        false => contains(other, one.0),
    }
}

/// The first address with a beginning.
pub(crate) fn first_of((address, prefix): Prefix) -> IpAddr {
    match address {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32)));
            std::net::Ipv4Addr::from_bits(ip.to_bits() & mask.unwrap_or(0)).into()
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128)));
            std::net::Ipv6Addr::from_bits(ip.to_bits() & mask.unwrap_or(0)).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        for (text, address, prefix) in [
            ("10.9.0.2/24", "10.9.0.2", 24),
            ("10.9.0.2", "10.9.0.2", 32),
            ("0.0.0.0/0", "0.0.0.0", 0),
            ("::/0", "::", 0),
            ("fd00::1/64", "fd00::1", 64),
        ] {
            let expected = (address.parse().expect("an address"), prefix);
            assert_eq!(parse_prefix(text), Ok(expected));
        }
        for text in [
            "",
            "10.9.0",
            "10.9.0.0/33",
            "10.9.0.0/",
            "10.9.0.0/+1",
            "::/129",
            "a/8",
            "::1/999999",
        ] {
            assert!(parse_prefix(text).is_err(), "{text}");
        }
        for (text, first) in [("10.1.2.3/8", "10.0.0.0"), ("fd00::1/64", "fd00::")] {
            let network = parse_network(text).expect("a network");
            assert_eq!(network.0, first.parse::<IpAddr>().expect("an address"));
        }
    }

    #[test]
    fn beginnings() {
        let prefix = parse_prefix("10.9.0.7/24").expect("a prefix");
        for (address, is_in) in [("10.9.0.255", true), ("10.9.1.0", false), ("::1", false)] {
            let address = address.parse().expect("an address");
            assert_eq!(contains(prefix, address), is_in, "{address}");
        }
        for (other, shares) in [
            ("10.9.0.0/16", true),
            ("10.9.0.128/25", true),
            ("10.9.0.0/24", true),
            ("10.9.1.0/24", false),
            ("::/0", false),
        ] {
            let other = parse_prefix(other).expect("a prefix");
            assert_eq!(overlap(prefix, other), shares, "{other:?}");
            assert_eq!(overlap(other, prefix), shares, "{other:?}");
        }
        let all = parse_prefix("0.0.0.0/0").expect("a prefix");
        assert!(contains(all, IpAddr::from([1, 2, 3, 4])));
        assert!(!contains(all, IpAddr::from([0_u16; 8])));
    }
}
