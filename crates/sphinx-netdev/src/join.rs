//! Offloads done again: TCP segments that follow each other in a stream go through the kernel as one packet.
//!
//! A packet costs the kernel about as much whatever its length is. Where a joined one leaves by a device that cannot take it, the kernel cuts it into the very
//! segments that it was made of. So only what comes out of that as it was is joined: numbers, lengths and checksums have to be those that cutting writes, and everything else
//! the same in all of them.

use crate::{
    checksum::Sum,
    header::{ACK, PSH, TCP},
    offload::{GSO_TCP_V4, GSO_TCP_V6, HEADER, Layout, NEEDS_CHECKSUM},
};

/// Length of the longest IP packet, in bytes.
const PACKET_BYTES_MAX: usize = 65_535;
/// Most segments in one packet: each is a part of a system call of its own, beside the headers, and the kernel takes 1024.
const SEGMENTS_MAX: usize = 1000;

/// Where IPv4 has what differs from segment to segment: total length, number and checksum.
const IPV4_LENGTH: usize = 2;
const IPV4_NUMBER: usize = 4;
const IPV4_CHECKSUM: usize = 10;
const DO_NOT_FRAGMENT: u8 = 0x40;
/// Where IPv6 has it: the length behind its header.
const IPV6_LENGTH: usize = 4;
const IPV6_HEADER: usize = 40;
const SEQUENCE: usize = 4;
/// The byte whose bits below the header's length are reserved, or AE.
const RESERVED: usize = 12;
const FLAGS: usize = 13;
const CHECKSUM: usize = 16;

/// Segments, the first ones of several packets, that can go as one.
#[derive(Debug)]
pub(crate) struct Run {
    /// Number of segments.
    pub(crate) segments: usize,
    /// What stands in front of their payloads: the virtio header, and the headers of IP and TCP.
    pub(crate) headers: Vec<u8>,
    /// Where the payload begins in each of them.
    pub(crate) payload: usize,
}

impl Run {
    /// The longest at the beginning of `packets`; `None` if the first one goes alone.
    pub(crate) fn first<T: AsRef<[u8]>>(packets: &[T]) -> Option<Run> {
        let [first, second, ..] = packets else {
            return None;
        };
        let first = Part::of(first.as_ref())?;
        // Most of what goes alone is known by its successor, before it is read whole.
        if !first.is_followed_by(&Part::of(second.as_ref())?, 1) || !first.is_right() {
            return None;
        }
        let (mut segments, mut length) = (1, first.packet.len());
        let (mut last, mut flags) = (first.layout.length, ACK);
        for packet in &packets[1..] {
            let Some(part) = Part::of(packet.as_ref()) else {
                break;
            };
            let more = part.layout.length;
            if last < first.layout.length
                || more > first.layout.length
                || length + more > PACKET_BYTES_MAX
                || segments == SEGMENTS_MAX
                || !first.is_followed_by(&part, segments)
                || !part.is_right()
            {
                break;
            }
            (segments, length, last) = (segments + 1, length + more, more);
            flags = part.flags();
            if flags != ACK {
                // Cutting leaves it to the last one.
                break;
            }
        }
        (segments > 1).then(|| first.run(segments, length, flags))
    }
}

/// A segment of a stream.
struct Part<'a> {
    packet: &'a [u8],
    layout: Layout,
}

impl Part<'_> {
    /// A segment with data and without anything unusual.
    fn of(packet: &[u8]) -> Option<Part<'_>> {
        let layout = Layout::of(packet, 0, TCP)?;
        let number = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
        let is_plain = match layout.is_ipv4 {
            // Without IP options, and not a fragment.
            true => {
                packet[0] == 0x45
                    && packet[6] & !DO_NOT_FRAGMENT == 0
                    && packet[7] == 0
                    && number(IPV4_LENGTH) == packet.len()
            }
            false => number(IPV6_LENGTH) + IPV6_HEADER == packet.len(),
        };
        let has_reserved = packet[layout.transport + RESERVED] & 0x0f != 0;
        let part = Part { packet, layout };
        (is_plain && !has_reserved && part.flags() & !PSH == ACK).then_some(part)
    }

    fn flags(&self) -> u8 {
        self.packet[self.layout.transport + FLAGS]
    }

    /// Whether `later` has the headers that the kernel gives to the segment so many behind this one.
    fn is_followed_by(&self, later: &Part<'_>, behind: usize) -> bool {
        let (own, other) = (self.packet, later.packet);
        let (transport, payload) = (self.layout.transport, self.layout.payload);
        if later.layout.payload != payload
            || later.layout.is_ipv4 != self.layout.is_ipv4
            || self.flags() != ACK
        {
            return false;
        }
        let same = |start: usize, end: usize| own[start..end] == other[start..end];
        let ip = match self.layout.is_ipv4 {
            true => {
                let number = |packet: &[u8]| {
                    u16::from_be_bytes([packet[IPV4_NUMBER], packet[IPV4_NUMBER + 1]])
                };
                number(own).wrapping_add(behind as u16) == number(other)
                    && same(0, IPV4_LENGTH)
                    && same(IPV4_NUMBER + 2, IPV4_CHECKSUM)
                    && same(IPV4_CHECKSUM + 2, transport)
            }
            false => same(0, IPV6_LENGTH) && same(IPV6_LENGTH + 2, transport),
        };
        let sequence = |packet: &[u8]| {
            let at = transport + SEQUENCE;
            u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
        };
        let offset = (behind * self.layout.length) as u32;
        ip && sequence(own).wrapping_add(offset) == sequence(other)
            && same(transport, transport + SEQUENCE)
            && same(transport + SEQUENCE + 4, transport + FLAGS)
            && same(transport + FLAGS + 1, transport + CHECKSUM)
            && same(transport + CHECKSUM + 2, payload)
    }

    /// Whether its checksums are right: those of a joined packet are not what was received but computed anew, and a fault must not become right by that.
    fn is_right(&self) -> bool {
        let (ip, segment) = self.packet.split_at(self.layout.transport);
        let pseudo = self.layout.pseudo(self.packet, segment.len());
        (!self.layout.is_ipv4 || Sum::default().with(ip).checksum() == 0)
            && pseudo.with(segment).checksum() == 0
    }

    /// The packet of `length` bytes that has so many segments, this one first, the last one with these flags.
    fn run(&self, segments: usize, length: usize, flags: u8) -> Run {
        let (transport, payload) = (self.layout.transport, self.layout.payload);
        let mut virtio = [0; HEADER];
        virtio[0] = NEEDS_CHECKSUM;
        virtio[1] = match self.layout.is_ipv4 {
            true => GSO_TCP_V4,
            false => GSO_TCP_V6,
        };
        let numbers = [payload, self.layout.length, transport, CHECKSUM];
        for (place, number) in virtio[2..].chunks_exact_mut(2).zip(numbers) {
            place.copy_from_slice(&(number as u16).to_ne_bytes());
        }
        let mut ip = self.packet[..transport].to_vec();
        if self.layout.is_ipv4 {
            ip[IPV4_LENGTH..IPV4_LENGTH + 2].copy_from_slice(&(length as u16).to_be_bytes());
            ip[IPV4_CHECKSUM..IPV4_CHECKSUM + 2].fill(0);
            let checksum = Sum::default().with(&ip).checksum();
            ip[IPV4_CHECKSUM..IPV4_CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
        } else {
            let length = (length - IPV6_HEADER) as u16;
            ip[IPV6_LENGTH..IPV6_LENGTH + 2].copy_from_slice(&length.to_be_bytes());
        }
        let mut tcp = self.packet[transport..payload].to_vec();
        // The sum so far: what it is to be completed from.
        let pseudo = !self
            .layout
            .pseudo(self.packet, length - transport)
            .checksum();
        tcp[FLAGS] = flags;
        tcp[CHECKSUM..CHECKSUM + 2].copy_from_slice(&pseudo.to_be_bytes());
        Run {
            segments,
            headers: [&virtio[..], &ip, &tcp].concat(),
            payload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::finish;

    const SIZE: usize = 1000;

    /// A joined packet as the kernel hands it over, with the virtio header: so many bytes of payload, timestamps, PSH at the end.
    fn joined(is_ipv4: bool, bytes: usize) -> ([u8; HEADER], Vec<u8>) {
        let transport = if is_ipv4 { 20 } else { IPV6_HEADER };
        let payload = transport + 32;
        let length = payload + bytes;
        let mut packet = vec![0; payload];
        if is_ipv4 {
            packet[..10].copy_from_slice(&[0x45, 2, 0, 0, 0xff, 0xfe, 0x40, 0, 64, TCP]);
            packet[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        } else {
            packet[..8].copy_from_slice(&[0x60, 0, 0, 9, 0, 0, TCP, 64]);
            packet[4..6].copy_from_slice(&((length - IPV6_HEADER) as u16).to_be_bytes());
            packet[8..40].fill(7);
        }
        let tcp = &mut packet[transport..];
        tcp[..4].copy_from_slice(&[1, 2, 3, 4]);
        tcp[4..8].copy_from_slice(&(u32::MAX - 1500).to_be_bytes());
        (tcp[12], tcp[13], tcp[15]) = (0x80, ACK | PSH, 99);
        tcp[20..24].copy_from_slice(&[1, 1, 8, 10]);
        packet.extend((0..bytes).map(|at| at as u8));
        let mut header = [0; HEADER];
        header[0] = NEEDS_CHECKSUM;
        header[1] = if is_ipv4 { GSO_TCP_V4 } else { GSO_TCP_V6 };
        header[4..6].copy_from_slice(&(SIZE as u16).to_ne_bytes());
        header[6..8].copy_from_slice(&(transport as u16).to_ne_bytes());
        (header, packet)
    }

    fn cut((header, mut packet): ([u8; HEADER], Vec<u8>)) -> Vec<Vec<u8>> {
        let mut segments = Vec::new();
        assert!(finish(header, &mut packet, 0, |it| segments.push(it.to_vec())));
        segments
    }

    /// What the kernel makes of a run.
    fn cut_again(run: &Run, segments: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let (header, packet) = run.headers.split_first_chunk::<HEADER>().unwrap();
        let mut packet = packet.to_vec();
        packet.extend(segments.iter().flat_map(|it| it[run.payload..].iter()));
        cut((*header, packet))
    }

    #[test]
    fn what_was_cut_goes_as_it_came() {
        for is_ipv4 in [true, false] {
            // The last one is as long as the others, shorter, or a single byte.
            for bytes in [2000, 45_000, 45_200, 1001] {
                let segments = cut(joined(is_ipv4, bytes));
                let run = Run::first(&segments).unwrap();
                assert_eq!(run.segments, segments.len());
                let (_, packet) = joined(is_ipv4, bytes);
                let headers = &run.headers[HEADER..];
                // But for the checksums, of which those of the kernel's own have only the beginning.
                assert_eq!(headers.len(), run.payload);
                assert_eq!(headers[..10], packet[..10]);
                assert_eq!(cut_again(&run, &segments), segments);
            }
        }
    }

    #[test]
    fn whatever_differs_ends_a_run() {
        for is_ipv4 in [true, false] {
            let segments = cut(joined(is_ipv4, 2 * SIZE));
            let headers = segments[1].len() - SIZE;
            // A byte of the payload makes the checksum wrong.
            for at in 0..=headers {
                for bit in 0..8 {
                    let mut other = segments.clone();
                    other[1][at] ^= 1 << bit;
                    // Where nothing but its checksums tells, they are made right.
                    if at < headers {
                        other[1] = sealed(other[1].clone());
                    }
                    let Some(run) = Run::first(&other) else {
                        continue;
                    };
                    // PSH, and the checksums, which were made right.
                    assert_eq!(cut_again(&run, &other), other, "bit {bit} of byte {at}");
                }
            }
        }
    }

    /// With the right checksums, if it has places for them.
    fn sealed(mut packet: Vec<u8>) -> Vec<u8> {
        let Some(layout) = Layout::of(&packet, 0, TCP) else {
            return packet;
        };
        let transport = layout.transport;
        if layout.is_ipv4 {
            packet[IPV4_CHECKSUM..IPV4_CHECKSUM + 2].fill(0);
            let checksum = Sum::default().with(&packet[..transport]).checksum();
            packet[IPV4_CHECKSUM..IPV4_CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        let pseudo = layout.pseudo(&packet, packet.len() - transport);
        let at = transport + CHECKSUM;
        packet[at..at + 2].fill(0);
        let checksum = pseudo.with(&packet[transport..]).checksum();
        packet[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        packet
    }

    #[test]
    fn runs_end_where_segments_do_not_follow() {
        let segments = cut(joined(true, 10 * SIZE));
        let count = |segments: &[Vec<u8>]| Run::first(segments).map_or(1, |run| run.segments);
        // A segment is missing, came twice, or was overtaken.
        assert_eq!(count(&[&segments[..3], &segments[4..]].concat()), 3);
        assert_eq!(count(&[&segments[..3], &segments[2..]].concat()), 3);
        let mut other = segments.clone();
        other.swap(5, 6);
        assert_eq!(count(&other), 5);
        // A short one is the last.
        let short = cut(joined(true, 2 * SIZE + 1));
        assert_eq!(count(&short), 3);
        let mut behind = sealed(segments[3].clone());
        let sequence = (u32::MAX - 1500).wrapping_add(2001);
        behind[24..28].copy_from_slice(&sequence.to_be_bytes());
        let behind = sealed(behind);
        assert_eq!(count(&[&short[..], &[behind]].concat()), 3);
        // What has ended is not gone on with: PSH is that of the last one.
        let more = [segments.clone(), cut(joined(true, 2 * SIZE))].concat();
        assert_eq!(count(&more), 10);
        assert_eq!(count(&segments[9..]), 1);
        assert_eq!(count(&segments[..0]), 1);
    }

    #[test]
    fn a_run_is_one_ip_packet() {
        for is_ipv4 in [true, false] {
            let mut segments = cut(joined(is_ipv4, 60 * SIZE));
            let (_, packet) = joined(is_ipv4, 0);
            // As many as are below 64 KiB, by hand: the numbers go on.
            for _ in 0..10 {
                let mut next = segments[segments.len() - 2].clone();
                let at = packet.len() - 32 + SEQUENCE;
                let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
                let sequence = number(&next[at..at + 4]).wrapping_add(2 * SIZE as u32);
                next[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
                if is_ipv4 {
                    let id = u16::from_be_bytes([next[4], next[5]]).wrapping_add(2);
                    next[4..6].copy_from_slice(&id.to_be_bytes());
                }
                let last = segments.len() - 1;
                segments[last][packet.len() - 32 + FLAGS] = ACK;
                segments[last] = sealed(segments[last].clone());
                segments.push(sealed(next));
            }
            let run = Run::first(&segments).unwrap();
            assert_eq!(run.segments, (PACKET_BYTES_MAX - packet.len()) / SIZE);
            let first = &segments[..run.segments];
            assert_eq!(cut_again(&run, first), first);
        }
    }
}
