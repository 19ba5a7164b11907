//! Messages between agents that share a key, sealed with keyed BLAKE3.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::SystemTime,
};

use crate::FlowKey;

const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 16;

/// The secret key that two agents share.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

impl Key {
    /// A key of these bytes, which nobody else should know.
    pub fn new(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    /// Reads what [`to_text`](Key::to_text) has written; white space around it does not matter.
    pub fn from_text(text: &str) -> Option<Key> {
        let text = text.trim().as_bytes();
        let (pairs, []) = text.as_chunks::<2>() else {
            return None;
        };
        let pairs: &[[u8; 2]; KEY_BYTES] = pairs.try_into().ok()?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let mut key = [0; KEY_BYTES];
        for (byte, [high, low]) in key.iter_mut().zip(pairs) {
            *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
        }
        Some(Key(key))
    }

    /// The key as 64 hexadecimal digits.
    pub fn to_text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A message with its tag behind it.
    pub(crate) fn seal(&self, mut message: Vec<u8>) -> Vec<u8> {
        let tag = self.tag(&message);
        message.extend(&tag.as_bytes()[..TAG_BYTES]);
        message
    }

    /// The message in a datagram; `None` if somebody without the key has written any of it.
    pub(crate) fn open<'a>(&self, datagram: &'a [u8]) -> Option<&'a [u8]> {
        let (message, tag) = datagram.split_last_chunk::<TAG_BYTES>()?;
        let mut expected = [0; KEY_BYTES];
        expected[..TAG_BYTES].copy_from_slice(tag);
        let hash = self.tag(message);
        expected[TAG_BYTES..].copy_from_slice(&hash.as_bytes()[TAG_BYTES..]);
        // Compared in constant time.
        if hash != blake3::Hash::from_bytes(expected) {
            return None;
        }
        Some(message)
    }

    fn tag(&self, message: &[u8]) -> blake3::Hash {
        blake3::keyed_hash(&self.0, message)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// A socket for such messages at a port, for both families where there are both. It never blocks.
pub(crate) fn socket(port: u16) -> io::Result<UdpSocket> {
    let socket = match UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?
        }
        socket => socket?,
    };
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Sends a message from such a socket.
pub(crate) fn send(socket: &UdpSocket, datagram: &[u8], peer: SocketAddr) -> io::Result<()> {
    let address = match (peer.ip(), socket.local_addr()?) {
        (IpAddr::V4(address), SocketAddr::V6(_)) => address.to_ipv6_mapped().into(),
        (address, _) => address,
    };
    let sent = socket.send_to(datagram, (address, peer.port()));
    sent.map(|_| ())
}

/// Nanoseconds since 1970.
pub(crate) fn time_of_day() -> u64 {
    let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Writes the ends of a flow, in network order: 4 or 6, then address and port of the fixed and of the mobile host. Both have to
/// be of one family, as those of every packet are.
pub(crate) fn write_flow(out: &mut Vec<u8>, flow: &FlowKey) {
    out.push(if flow.fixed.is_ipv4() { 4 } else { 6 });
    for end in [flow.fixed, flow.mobile] {
        match end.ip() {
            IpAddr::V4(address) => out.extend(address.octets()),
            IpAddr::V6(address) => out.extend(address.octets()),
        }
        out.extend(end.port().to_be_bytes());
    }
}

/// Reads a message from its beginning; what is left is in it.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*bytes)
    }

    /// The ends of a flow, as [`write_flow`] writes them.
    pub(crate) fn flow(&mut self) -> Option<FlowKey> {
        let [family] = self.take()?;
        Some(FlowKey {
            fixed: self.end(family)?,
            mobile: self.end(family)?,
        })
    }

    fn end(&mut self, family: u8) -> Option<SocketAddr> {
        let address: IpAddr = match family {
            4 => self.take::<4>()?.into(),
            6 => self.take::<16>()?.into(),
            _ => return None,
        };
        Some(SocketAddr::new(address, u16::from_be_bytes(self.take()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_written_and_read() {
        let key = Key::new(std::array::from_fn(|n| n as u8 * 7));
        assert_eq!(Key::from_text(&format!(" {}\n", key.to_text())), Some(key));
        for text in ["", "00", &"0".repeat(63), &"0".repeat(66), &"g".repeat(64)] {
            assert_eq!(Key::from_text(text), None, "{text}");
        }
    }
}
