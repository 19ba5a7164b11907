//! What a server tells a client of its addresses.

use std::net::IpAddr;

use bytes::{Buf, BufMut};

use super::Prefix;
use crate::wire::{WireError, put_ip, put_list, take_ip, take_list, with_length};

/// What a client's interface is like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Its addresses, with the lengths of their prefixes.
    pub addresses: Vec<Prefix>,
    /// Resolvers that the server itself asks.
    pub nameservers: Vec<IpAddr>,
}

impl Settings {
    /// The settings, behind their length.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0, 0];
        put_list(&mut out, &self.addresses, |out, (address, prefix)| {
            put_ip(out, *address);
            out.put_u8(*prefix);
        });
        put_list(&mut out, &self.nameservers, |out, ip| put_ip(out, *ip));
        with_length(out)
    }

    /// What they say, without their length.
    ///
    /// # Errors
    /// They are none.
    pub fn parse(mut data: &[u8]) -> Result<Self, WireError> {
        let data = &mut data;
        let addresses = take_list(data, |data| {
            let address = take_ip(data)?;
            let prefix = data.try_get_u8().map_err(|_| WireError::Length)?;
            match prefix <= if address.is_ipv4() { 32 } else { 128 } {
                true => Ok((address, prefix)),
                false => Err(WireError::Address),
            }
        })?;
        let nameservers = take_list(data, take_ip)?;
        match data.is_empty() {
            true => Ok(Self {
                addresses,
                nameservers,
            }),
            false => Err(WireError::Length),
        }
    }
}
