//! Socket addresses in the kernel's format.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// `AF_INET` and `AF_INET6` as they stand at the beginning of an address.
const FAMILY_V4: [u8; 2] = (libc::AF_INET as u16).to_ne_bytes();
const FAMILY_V6: [u8; 2] = (libc::AF_INET6 as u16).to_ne_bytes();

const LEN_V4: usize = size_of::<libc::sockaddr_in>();
const LEN_V6: usize = size_of::<libc::sockaddr_in6>();

/// A `sockaddr_in` or `sockaddr_in6` as bytes: family, port (network order), and then either the
/// IPv4 address, or flow label, IPv6 address and scope.
#[derive(Clone)]
#[repr(C, align(8))]
pub(super) struct Name {
    bytes: [u8; LEN_V6],
}

impl Name {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; LEN_V6] }
    }

    /// Writes `addr` and returns its length in bytes. With `mapped`, for an IPv6 socket, an IPv4
    /// address takes its IPv6 form.
    pub(super) fn encode(&mut self, addr: &SocketAddr, mapped: bool) -> usize {
        self.bytes.fill(0);
        self.bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
        let v6 = match addr {
            SocketAddr::V4(v4) if !mapped => {
                self.bytes[..2].copy_from_slice(&FAMILY_V4);
                self.bytes[4..8].copy_from_slice(&v4.ip().octets());
                return LEN_V4;
            }
            SocketAddr::V4(v4) => SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0),
            SocketAddr::V6(v6) => *v6,
        };
        self.bytes[..2].copy_from_slice(&FAMILY_V6);
        self.bytes[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
        self.bytes[8..24].copy_from_slice(&v6.ip().octets());
        self.bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
        LEN_V6
    }

    /// Reads the address in the first `len` bytes; IPv4 in its IPv6 form becomes IPv4. `None`
    /// when it is neither family or too short.
    pub(super) fn decode(&self, len: usize) -> Option<SocketAddr> {
        let family = *self.bytes.first_chunk::<2>()?;
        let port = u16::from_be_bytes(self.field(2));
        if family == FAMILY_V4 && len >= LEN_V4 {
            return Some(SocketAddrV4::new(Ipv4Addr::from(self.field(4)), port).into());
        }
        if family != FAMILY_V6 || len < LEN_V6 {
            return None;
        }
        let ip = Ipv6Addr::from(self.field(8));
        Some(match ip.to_ipv4_mapped() {
            Some(v4) => SocketAddrV4::new(v4, port).into(),
            None => {
                let scope = u32::from_ne_bytes(self.field(24));
                // The flow label is left out: it would make two addresses of one peer differ.
                SocketAddrV6::new(ip, port, 0, scope).into()
            }
        })
    }

    /// The N bytes at `offset`, which is a constant that lies inside.
    fn field<const N: usize>(&self, offset: usize) -> [u8; N] {
        std::array::from_fn(|index| self.bytes[offset + index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(addr: &str, mapped: bool) -> (usize, SocketAddr) {
        let mut name = Name::new();
        let len = name.encode(&addr.parse().unwrap(), mapped);
        (len, name.decode(len).unwrap())
    }

    #[test]
    fn addresses_round_trip() {
        for (addr, mapped, len) in [
            ("192.0.2.1:4433", false, LEN_V4),
            ("192.0.2.1:4433", true, LEN_V6),
            ("[2001:db8::1]:4433", false, LEN_V6),
            ("[fe80::1%7]:4433", true, LEN_V6),
        ] {
            assert_eq!(round_trip(addr, mapped), (len, addr.parse().unwrap()));
        }
    }

    #[test]
    fn short_and_unknown_names_are_none() {
        let mut name = Name::new();
        assert_eq!(name.decode(LEN_V6), None);
        let len = name.encode(&"192.0.2.1:4433".parse().unwrap(), false);
        assert_eq!(name.decode(len - 1), None);
        let len = name.encode(&"[::1]:4433".parse().unwrap(), false);
        assert_eq!(name.decode(len - 1), None);
        assert_eq!(name.decode(0), None);
    }
}
