//! What is asked for, as people write it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A port of DPDK: `EAL ARGS -- ADDRESS/LENGTH[,gw=ADDRESS]… [mtu=BYTES]`. What stands before `--` is DPDK's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkConfig {
    /// Arguments of DPDK's environment (EAL).
    pub eal: Vec<String>,
    /// The addresses of the port, at least one.
    pub addresses: Vec<Address>,
    /// Largest IP packet of the port, bytes; as its driver has it if not given, which is 1500 with most.
    pub mtu: Option<u16>,
}

/// Nothing smaller carries IPv6 (RFC 8200, section 5).
const MTU_MIN: u16 = 1280;

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Bits that the addresses on the link have in common.
    pub prefix: u8,
    /// Who gets what is for other addresses: one on the link, which for IPv6 may also be link-local, as routers announce themselves.
    pub gateway: Option<IpAddr>,
}

impl Address {
    /// Whether an address is on the link.
    pub(crate) fn is_near(&self, other: IpAddr) -> bool {
        let same = |own: u128, other: u128, bits: u8| {
            let beyond = u32::from(bits - self.prefix.min(bits));
            (own ^ other).checked_shr(beyond).unwrap_or(0) == 0
        };
        match (self.ip, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                same(u128::from(own.to_bits()), u128::from(other.to_bits()), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => same(own.to_bits(), other.to_bits(), 128),
            _ => false,
        }
    }

    /// Whether a gateway is on the link.
    fn reaches(&self, gateway: IpAddr) -> bool {
        let is_link_local = match gateway {
            IpAddr::V4(_) => false,
            IpAddr::V6(gateway) => self.ip.is_ipv6() && gateway.is_unicast_link_local(),
        };
        is_link_local || self.is_near(gateway)
    }
}

const EXPECTED: &str = "expected dpdk:EAL ARGS -- ADDRESS/LENGTH[,gw=ADDRESS] [mtu=BYTES]: \"dpdk:-l 0 -a 0000:03:00.0 -- 10.0.0.2/24,gw=10.0.0.1\"";

impl FromStr for DpdkConfig {
    type Err = String;

    /// Reads what stands behind `dpdk:`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_ascii_whitespace();
        let eal: Vec<_> = words.by_ref().take_while(|word| *word != "--").collect();
        // The words are handed to C as strings, which a zero byte would end.
        if text.contains('\0') {
            return Err(EXPECTED.to_owned());
        }
        let mut addresses: Vec<Address> = Vec::new();
        let mut mtu = None;
        for word in words {
            if let Some(bytes) = word.strip_prefix("mtu=") {
                let is_number = bytes.bytes().all(|byte| byte.is_ascii_digit());
                let bytes = bytes.parse().ok().filter(|bytes| *bytes >= MTU_MIN);
                let bytes = bytes.filter(|_| is_number && mtu.is_none());
                mtu = Some(bytes.ok_or_else(|| {
                    format!("\"{word}\": expected mtu=BYTES once, from {MTU_MIN} to 65535")
                })?);
                continue;
            }
            let address: Address = word.parse()?;
            if addresses.iter().any(|known| known.ip == address.ip) {
                return Err(format!("{} is there twice", address.ip));
            }
            addresses.push(address);
        }
        if addresses.is_empty() {
            return Err(EXPECTED.to_owned());
        }
        Ok(Self {
            eal: eal.into_iter().map(str::to_owned).collect(),
            addresses,
            mtu,
        })
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("\"{text}\": {EXPECTED}");
        let (place, gateway) = match text.split_once(",gw=") {
            Some((place, gateway)) => (
                place,
                Some(gateway.parse::<IpAddr>().map_err(|_| expected())?),
            ),
            None => (text, None),
        };
        let (ip, prefix) = place.split_once('/').ok_or_else(expected)?;
        let ip: IpAddr = ip.parse().map_err(|_| expected())?;
        let is_number = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        let prefix = prefix
            .parse()
            .ok()
            .filter(|prefix| is_number && *prefix <= bits);
        let address = Self {
            ip,
            prefix: prefix.ok_or_else(expected)?,
            gateway,
        };
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(format!("{ip} is no address of a port"));
        }
        match gateway {
            Some(gateway) if !address.reaches(gateway) || gateway == ip => Err(format!(
                "the gateway {gateway} is not on the link of {place}"
            )),
            _ => Ok(address),
        }
    }
}

impl fmt::Display for DpdkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for word in &self.eal {
            write!(f, "{word} ")?;
        }
        f.write_str("--")?;
        for address in &self.addresses {
            write!(f, " {}/{}", address.ip, address.prefix)?;
            if let Some(gateway) = address.gateway {
                write!(f, ",gw={gateway}")?;
            }
        }
        if let Some(mtu) = self.mtu {
            write!(f, " mtu={mtu}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn arguments_and_addresses_are_told_apart() {
        let text = "-l 0 --vdev=net_af_packet0,iface=v0 -- 10.0.0.2/24,gw=10.0.0.1 fd00::2/64";
        let config: DpdkConfig = text.parse().unwrap();
        assert_eq!(config.eal, ["-l", "0", "--vdev=net_af_packet0,iface=v0"]);
        assert_eq!(config.to_string(), text);
        let [v4, v6] = config.addresses[..] else {
            panic!()
        };
        let near = |address: Address, text: &str| address.is_near(text.parse().unwrap());
        assert!(near(v4, "10.0.0.9") && !near(v4, "10.0.1.9") && !near(v4, "fd00::1"));
        assert!(near(v6, "fd00::1") && !near(v6, "fd00:1::1"));
        assert_eq!(config.mtu, None);
        let large: DpdkConfig = "-- mtu=9000 10.0.0.2/24".parse().unwrap();
        assert_eq!(large.mtu, Some(9000));
        assert_eq!(large.to_string(), "-- 10.0.0.2/24 mtu=9000");
        let text = "-- fd00::2/64,gw=fe80::1";
        let routed: DpdkConfig = text.parse().unwrap();
        assert_eq!(routed.addresses[0].gateway, "fe80::1".parse().ok());
        assert_eq!(routed.to_string(), text);
        let all: DpdkConfig = "-- 10.0.0.2/0".parse().unwrap();
        assert!(near(all.addresses[0], "192.0.2.1"));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for text in [
            "",
            "-l 0",
            "-l 0 --",
            "-- 10.0.0.2",
            "-- 10.0.0.2/33",
            "-- 10.0.0.2/+1",
            "-- 10.0.0.2/24,gw=10.0.1.1",
            "-- 10.0.0.2/24,gw=fd00::1",
            "-- 10.0.0.2/24,gw=fe80::1",
            "-- fe80::1/64,gw=fe80::1",
            "-- 0.0.0.0/24",
            "-- ff02::1/64",
            "-- 10.0.0.2/24 10.0.0.2/24",
            "-- 10.0.0.2/24,gw=10.0.0.2",
            "-- 10.0.0.2/24 mtu=",
            "-- 10.0.0.2/24 mtu=+9000",
            "-- 10.0.0.2/24 mtu=1279",
            "-- 10.0.0.2/24 mtu=65536",
            "-- 10.0.0.2/24 mtu=9000 mtu=9000",
            "-- mtu=9000",
        ] {
            assert!(text.parse::<DpdkConfig>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_and_read_again(text in "(-[a-z] [0-9] ){0,2}-- [0-9./]{5,14}(,gw=[0-9.]{7})?( mtu=[0-9]{4})?|.*") {
            if let Ok(config) = text.parse::<DpdkConfig>() {
                prop_assert_eq!(config.to_string().parse(), Ok(config));
            }
        }
    }
}
