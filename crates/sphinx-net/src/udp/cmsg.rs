//! Control messages: encoding and parsing of what travels beside a datagram.
//!
//! The kernel's format is a sequence of records: length (a machine word that counts the header),
//! level and type (32 bits each), data, padding to the next machine word. It is handled here as
//! bytes, without pointers, so that no input can reach outside its buffer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::c_int;

use crate::Ecn;

/// Room for control messages of one datagram. What we ask the kernel for takes at most 172 bytes:
/// timestamp 32, overflow 24, packet information 40 and 32, traffic class 24, GRO size 24 (a
/// dual-stack socket gets both kinds of the packet information for IPv4). An error that ICMP
/// reports takes 64 more.
const CONTROL_BYTES: usize = 256;

const WORD: usize = size_of::<usize>();
const HEADER: usize = WORD + 2 * size_of::<c_int>();

/// A buffer of control messages, aligned as the kernel wants it.
#[derive(Clone)]
#[repr(C, align(8))]
pub(super) struct Control {
    bytes: [u8; CONTROL_BYTES],
}

impl Control {
    pub(super) const fn new() -> Self {
        Self {
            bytes: [0; CONTROL_BYTES],
        }
    }

    /// Writes what a datagram is sent with and returns the length in bytes. `v4` tells whether
    /// the packet will be IPv4, whatever the family of the socket. A source address of the other
    /// family is left out.
    pub(super) fn encode(&mut self, v4: bool, fields: &SendFields) -> usize {
        let mut len = 0;
        if let Some(ecn) = fields.ecn {
            let bits = c_int::from(ecn.bits()).to_ne_bytes();
            let (level, kind) = if v4 {
                (libc::IPPROTO_IP, libc::IP_TOS)
            } else {
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
            };
            self.push(&mut len, level, kind, &bits);
        }
        match fields.local_ip {
            Some(IpAddr::V4(ip)) if v4 => {
                // struct in_pktinfo: interface index, source address, (unused on sending).
                let mut data = [0; 12];
                data[4..8].copy_from_slice(&ip.octets());
                self.push(&mut len, libc::IPPROTO_IP, libc::IP_PKTINFO, &data);
            }
            Some(IpAddr::V6(ip)) if !v4 => {
                // struct in6_pktinfo: source address, interface index.
                let mut data = [0; 20];
                data[..16].copy_from_slice(&ip.octets());
                self.push(&mut len, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &data);
            }
            _ => {}
        }
        if let Some(size) = fields.segment_size {
            self.push(
                &mut len,
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                &size.to_ne_bytes(),
            );
        }
        len
    }

    /// Appends one record at `len`. The buffer is larger than all records that we send together;
    /// one that did not fit would be left out.
    fn push(&mut self, len: &mut usize, level: c_int, kind: c_int, data: &[u8]) {
        let end = *len + HEADER + data.len().next_multiple_of(WORD);
        let Some(record) = self.bytes.get_mut(*len..end) else {
            return;
        };
        record.fill(0);
        record[..WORD].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        record[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        record[WORD + 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        record[HEADER..HEADER + data.len()].copy_from_slice(data);
        *len = end;
    }

    /// Reads what a datagram arrived with from the first `len` bytes. Unknown and malformed
    /// records are skipped.
    pub(super) fn parse(&self, len: usize) -> RecvFields {
        let mut fields = RecvFields::default();
        for (level, kind, data) in Records(self.bytes.get(..len).unwrap_or(&self.bytes)) {
            fields.take(level, kind, data);
        }
        fields
    }
}

/// What a datagram is sent with.
#[derive(Clone, Copy, Default)]
pub(super) struct SendFields {
    pub(super) ecn: Option<Ecn>,
    pub(super) local_ip: Option<IpAddr>,
    /// The kernel cuts the message into datagrams of this size.
    pub(super) segment_size: Option<u16>,
}

/// What a datagram arrived with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecvFields {
    pub(super) ecn: Ecn,
    pub(super) local_ip: Option<IpAddr>,
    pub(super) timestamp_ns: Option<u64>,
    /// The kernel joined datagrams of this size.
    pub(super) segment_size: Option<usize>,
    /// Datagrams the socket has lost so far for want of room, modulo 2^32.
    pub(super) overflows: Option<u32>,
    /// The error that an ICMP message stands for; the datagram is the one that it answers.
    pub(super) icmp_error: Option<c_int>,
}

impl RecvFields {
    fn take(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                // The kernel gives one byte for IPv4 and an int for IPv6.
                let byte = first(data)
                    .map(c_int::from_ne_bytes)
                    .or(data.first().map(|b| (*b).into()));
                if let Some(value) = byte {
                    self.ecn = Ecn::from_bits((value & 0xff) as u8);
                }
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // struct in_pktinfo: interface index, local address, destination of the packet.
                if let Some(ip) = data.get(4..8).and_then(first::<4>) {
                    self.local_ip = Some(Ipv4Addr::from(ip).into());
                }
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let Some(ip) = first::<16>(data) {
                    self.local_ip = Some(Ipv6Addr::from(ip).to_canonical());
                }
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => self.timestamp_ns = timestamp_ns(data),
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                self.overflows = first(data).map(u32::from_ne_bytes);
            }
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                // struct sock_extended_err: the error (u32), where it comes from (u8), …
                let by_icmp = data.get(4).is_some_and(|origin| {
                    [libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6].contains(origin)
                });
                self.icmp_error = first(data).map(c_int::from_ne_bytes).filter(|_| by_icmp);
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let size = first(data).map(c_int::from_ne_bytes);
                self.segment_size = size.and_then(|size| usize::try_from(size).ok());
            }
            _ => {}
        }
    }
}

/// Nanoseconds since the epoch from a `struct timespec`; `None` before 1970 or after 2554.
fn timestamp_ns(data: &[u8]) -> Option<u64> {
    let (seconds, nanoseconds) = if let Some(words) = first::<16>(data) {
        let (seconds, nanoseconds) = words.split_at(8);
        (
            i64::from_ne_bytes(first(seconds)?),
            i64::from_ne_bytes(first(nanoseconds)?),
        )
    } else {
        let (seconds, nanoseconds) = data.split_at_checked(4)?;
        (
            i32::from_ne_bytes(first(seconds)?).into(),
            i32::from_ne_bytes(first(nanoseconds)?).into(),
        )
    };
    let seconds_ns = u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?;
    seconds_ns.checked_add(u64::try_from(nanoseconds).ok()?)
}

/// The first N bytes.
fn first<const N: usize>(data: &[u8]) -> Option<[u8; N]> {
    data.first_chunk().copied()
}

/// The records of a control buffer: level, type, data. It ends at the first malformed length.
struct Records<'a>(&'a [u8]);

impl<'a> Iterator for Records<'a> {
    type Item = (c_int, c_int, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = usize::from_ne_bytes(first(self.0)?);
        let record = self.0.get(..len)?;
        let level = c_int::from_ne_bytes(first(record.get(WORD..)?)?);
        let kind = c_int::from_ne_bytes(first(record.get(WORD + 4..)?)?);
        let data = record.get(HEADER..)?;
        // The padding of the last record may be missing. A record has at least its header, so
        // every step makes progress.
        let padded = len.checked_next_multiple_of(WORD)?;
        self.0 = self.0.get(padded..).unwrap_or_default();
        Some((level, kind, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_parsed() {
        let v4: IpAddr = "192.0.2.1".parse().unwrap();
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        for (is_v4, ip) in [(true, v4), (false, v6)] {
            let mut control = Control::new();
            let fields = SendFields {
                ecn: Some(Ecn::Ce),
                local_ip: Some(ip),
                segment_size: Some(1200),
            };
            let len = control.encode(is_v4, &fields);
            let parsed = control.parse(len);
            assert_eq!((parsed.ecn, parsed.local_ip), (Ecn::Ce, Some(ip)));
            // Of the same level, but another type than the one that is received.
            assert_eq!(parsed.segment_size, None);
            assert_eq!(Records(&control.bytes[..len]).count(), 3);
            assert_eq!(
                control.encode(!is_v4, &fields),
                len - (HEADER + ip_data_len(is_v4))
            );
        }
    }

    fn ip_data_len(is_v4: bool) -> usize {
        if is_v4 {
            12_usize.next_multiple_of(WORD)
        } else {
            20_usize.next_multiple_of(WORD)
        }
    }

    #[test]
    fn nothing_to_say_takes_no_room() {
        assert_eq!(Control::new().encode(true, &SendFields::default()), 0);
    }

    #[test]
    fn mapped_addresses_and_timestamps_are_converted() {
        let mut control = Control::new();
        let mut len = 0;
        let mut data = [0; 20];
        let mapped = Ipv4Addr::new(192, 0, 2, 7).to_ipv6_mapped();
        data[..16].copy_from_slice(&mapped.octets());
        control.push(&mut len, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &data);
        let mut time = [0; 16];
        time[..8].copy_from_slice(&3i64.to_ne_bytes());
        time[8..].copy_from_slice(&5i64.to_ne_bytes());
        control.push(&mut len, libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &time);
        control.push(
            &mut len,
            libc::SOL_UDP,
            libc::UDP_GRO,
            &1200i32.to_ne_bytes(),
        );
        control.push(
            &mut len,
            libc::SOL_SOCKET,
            libc::SO_RXQ_OVFL,
            &9u32.to_ne_bytes(),
        );
        let expected = RecvFields {
            ecn: Ecn::NotEct,
            local_ip: Some("192.0.2.7".parse().unwrap()),
            timestamp_ns: Some(3_000_000_005),
            segment_size: Some(1200),
            overflows: Some(9),
            icmp_error: None,
        };
        assert_eq!(control.parse(len), expected);
    }

    #[test]
    fn timestamps_outside_of_the_range_are_none() {
        let spec = |seconds: i64, nanoseconds: i64| {
            let mut data = [0; 16];
            data[..8].copy_from_slice(&seconds.to_ne_bytes());
            data[8..].copy_from_slice(&nanoseconds.to_ne_bytes());
            data
        };
        assert_eq!(timestamp_ns(&spec(-1, 0)), None);
        assert_eq!(timestamp_ns(&spec(1, -1)), None);
        assert_eq!(timestamp_ns(&spec(i64::MAX, 0)), None);
        assert_eq!(timestamp_ns(&[0; 7]), None);
        assert_eq!(timestamp_ns(&[0; 8]), Some(0));
    }

    #[test]
    fn malformed_records_end_the_parsing() {
        let mut control = Control::new();
        // Lengths below the header, beyond the buffer, and so large that padding overflows.
        for len in [
            0,
            1,
            WORD,
            HEADER - 1,
            CONTROL_BYTES + 1,
            usize::MAX - 1,
            usize::MAX,
        ] {
            control.bytes[..WORD].copy_from_slice(&len.to_ne_bytes());
            for available in [0, 1, HEADER - 1, HEADER, CONTROL_BYTES, CONTROL_BYTES + 1] {
                assert_eq!(control.parse(available), RecvFields::default());
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_parsed_without_panic() {
        let mut state = 1u64;
        let mut control = Control::new();
        for round in 0..20_000 {
            for byte in &mut control.bytes {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                *byte = (state >> 56) as u8;
            }
            // Small lengths now and then, so that some records are walked.
            for record in control.bytes.chunks_exact_mut(HEADER + WORD) {
                let len = HEADER + (record[0] as usize % (WORD + 3));
                record[..WORD].copy_from_slice(&len.to_ne_bytes());
            }
            control.parse(round % (CONTROL_BYTES + 8));
        }
    }
}
