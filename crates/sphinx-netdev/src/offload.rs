//! Offloads undone: what a kernel hands over unfinished becomes what would be on a wire.
//!
//! Between interfaces of one machine, and behind receive offload, frames are up to 64 KiB long and may
//! have no checksum yet. A virtio header in front of each says what is missing.

use crate::{
    checksum::Sum,
    header::{CWR, FIN, PSH, TCP, UDP},
};

/// Length of a `virtio_net_hdr`.
pub(crate) const HEADER: usize = 10;

/// The checksum is still to be computed.
pub(crate) const NEEDS_CHECKSUM: u8 = 1;
/// The frame stands for several TCP segments, or several UDP datagrams.
pub(crate) const GSO_TCP_V4: u8 = 1;
pub(crate) const GSO_TCP_V6: u8 = 4;
const GSO_UDP: u8 = 5;
/// Flag that is set besides for TCP with ECN.
const GSO_ECN: u8 = 0x80;

/// Length of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// Where the checksum of SCTP is in its header. No other protocol whose checksum may be left to a device has it there.
const SCTP_CHECKSUM: usize = 8;

/// Gives every frame that this one stands for to `emit`: itself with its checksum completed, or its
/// segments. `link` is the length of the link's header in front of IP: [`ETHERNET`], or none. Returns false if it is of a kind that cannot
/// be taken apart.
pub(crate) fn finish(
    header: [u8; HEADER],
    frame: &mut [u8],
    link: usize,
    emit: impl FnMut(&[u8]),
) -> bool {
    let [flags, kind, _, _, size @ .., _, _, _, _] = header;
    let number = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
    let size = usize::from(u16::from_ne_bytes(size));
    match kind & !GSO_ECN {
        0 => {
            let mut emit = emit;
            if flags & NEEDS_CHECKSUM != 0 && !complete(frame, number(6), number(8)) {
                return false;
            }
            emit(frame);
            true
        }
        kind @ (GSO_TCP_V4 | GSO_TCP_V6 | GSO_UDP) => {
            let protocol = if kind == GSO_UDP { UDP } else { TCP };
            let start = (flags & NEEDS_CHECKSUM != 0).then(|| number(6));
            match Layers::of(frame, link, protocol, start) {
                Some(layers) if size > 0 => {
                    layers.segment(frame, size, emit);
                    true
                }
                _ => false,
            }
        }
        _ => false,
    }
}

/// Completes a checksum: that of SCTP, or one that holds the sum of the pseudo-header so far.
fn complete(frame: &mut [u8], start: usize, offset: usize) -> bool {
    let Some(part) = frame.get_mut(start..) else {
        return false;
    };
    if offset == SCTP_CHECKSUM {
        let Some(place) = part.get_mut(offset..offset + 4) else {
            return false;
        };
        place.fill(0);
        let checksum = crc32c(part).to_le_bytes();
        part[offset..offset + 4].copy_from_slice(&checksum);
        return true;
    }
    let checksum = Sum::default().with(part).checksum();
    let Some(place) = part.get_mut(offset..offset + 2) else {
        return false;
    };
    // In UDP, 0 would mean that there is none; in TCP, both mean the same.
    let checksum = if checksum == 0 { 0xffff } else { checksum };
    place.copy_from_slice(&checksum.to_be_bytes());
    true
}

/// The checksum of SCTP (RFC 9260, appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let (mut crc, mut bit) = (byte as u32, 0);
            while bit < 8 {
                crc = (crc >> 1) ^ (POLYNOMIAL * (crc & 1));
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)]
    })
}

/// What has to be written in each segment of a frame.
struct Layers {
    /// What carries frames of a tunnel in datagrams, as VXLAN does.
    outer: Option<Layout>,
    inner: Layout,
}

impl Layers {
    /// `start`: where the header is whose checksum is missing, which is that of what is cut.
    fn of(frame: &[u8], link: usize, protocol: u8, start: Option<usize>) -> Option<Layers> {
        if let Some(inner) = Layout::of(frame, link, protocol)
            && start.is_none_or(|start| start == inner.transport)
        {
            return Some(Layers { outer: None, inner });
        }
        let (outer, start) = (Layout::of(frame, link, UDP)?, start?);
        // The headers of the frame inside end there.
        let inner = [(IPV4, 20), (IPV6, 40)]
            .into_iter()
            .find_map(|(kind, header)| {
                let ip = start.checked_sub(header)?;
                let is_it = ip >= outer.payload + ETHERNET && frame.get(ip - 2..ip)? == kind;
                let inner = is_it.then(|| Layout::of(frame, ip, protocol))??;
                (inner.transport == start).then_some(inner)
            })?;
        let outer = Some(outer);
        Some(Layers { outer, inner })
    }

    /// Cuts a frame into segments of `size` bytes of payload each.
    fn segment(&self, frame: &[u8], size: usize, mut emit: impl FnMut(&[u8])) {
        let inner = &self.inner;
        let (headers, payload) = frame.split_at(inner.payload);
        let payload = &payload[..inner.length];
        let count = payload.len().div_ceil(size);
        let mut out = Vec::with_capacity(headers.len() + size);
        for (index, chunk) in payload.chunks(size).enumerate() {
            out.clear();
            out.extend(headers);
            out.extend(chunk);
            inner.write_ip(&mut out, index as u16);
            inner.write_transport(&mut out, index * size, index == 0, index + 1 == count);
            if let Some(outer) = &self.outer {
                outer.write_ip(&mut out, index as u16);
                outer.write_datagram(&mut out);
            }
            emit(&out);
        }
    }
}

/// Where things are in a frame.
pub(crate) struct Layout {
    link: usize,
    pub(crate) is_ipv4: bool,
    protocol: u8,
    pub(crate) transport: usize,
    pub(crate) payload: usize,
    /// Bytes of payload, which padding may follow.
    pub(crate) length: usize,
}

impl Layout {
    pub(crate) fn of(frame: &[u8], link: usize, protocol: u8) -> Option<Layout> {
        let ip = frame.get(link..)?;
        let kind = match link {
            ETHERNET => *frame.get(12..14)?.first_chunk::<2>()?,
            _ if ip.first()? >> 4 == 4 => IPV4,
            _ if ip.first()? >> 4 == 6 => IPV6,
            _ => return None,
        };
        let (is_ipv4, found, transport, end) = match kind {
            IPV4 => {
                let header = ip.first_chunk::<20>()?;
                let length = usize::from(header[0] & 15) * 4;
                let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
                // A total length of 0 is that of a packet beyond 64 KiB.
                let total = if total == 0 { ip.len() } else { total };
                (true, header[9], length.max(20), total)
            }
            IPV6 => {
                let header = ip.first_chunk::<40>()?;
                let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
                let total = if length == 0 { ip.len() } else { 40 + length };
                (false, header[6], 40, total)
            }
            _ => return None,
        };
        let transport = link + transport;
        let header = match protocol {
            TCP => usize::from(frame.get(transport + 12)? >> 4) * 4,
            _ => 8,
        };
        let payload = transport + header;
        let end = (link + end).min(frame.len());
        let is_whole = header >= if protocol == TCP { 20 } else { 8 };
        (found == protocol && is_whole && payload < end).then(|| Layout {
            link,
            is_ipv4,
            protocol,
            transport,
            payload,
            length: end - payload,
        })
    }

    /// The sum of what a checksum covers besides a segment of `length` bytes.
    pub(crate) fn pseudo(&self, frame: &[u8], length: usize) -> Sum {
        let addresses = match self.is_ipv4 {
            true => &frame[self.link + 12..self.link + 20],
            false => &frame[self.link + 8..self.link + 40],
        };
        let [a, b, c, d] = (length as u32).to_be_bytes();
        Sum::few(&[a, b, c, d, 0, 0, 0, self.protocol]).and(Sum::few(addresses))
    }

    fn write_ip(&self, frame: &mut [u8], index: u16) {
        let length = frame.len() - self.link;
        let ip = &mut frame[self.link..self.transport];
        if self.is_ipv4 {
            ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(index);
            ip[4..6].copy_from_slice(&id.to_be_bytes());
            ip[10..12].fill(0);
            let checksum = Sum::default().with(ip).checksum();
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            ip[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
        }
    }

    /// The header of a datagram with a tunnel's packet. Most tunnels do without its checksum.
    fn write_datagram(&self, frame: &mut [u8]) {
        let has_checksum = frame[self.transport + 6..self.transport + 8] != [0, 0];
        self.write_transport(frame, 0, true, true);
        if !has_checksum {
            frame[self.transport + 6..self.transport + 8].fill(0);
        }
    }

    fn write_transport(&self, frame: &mut [u8], offset: usize, is_first: bool, is_last: bool) {
        let length = frame.len() - self.transport;
        let pseudo = self.pseudo(frame, length);
        let transport = &mut frame[self.transport..];
        let place = match self.protocol {
            TCP => {
                let sequence = [transport[4], transport[5], transport[6], transport[7]];
                let sequence = u32::from_be_bytes(sequence).wrapping_add(offset as u32);
                transport[4..8].copy_from_slice(&sequence.to_be_bytes());
                if !is_last {
                    transport[13] &= !(FIN | PSH);
                }
                if !is_first {
                    transport[13] &= !CWR;
                }
                16
            }
            _ => {
                transport[4..6].copy_from_slice(&(length as u16).to_be_bytes());
                6
            }
        };
        transport[place..place + 2].fill(0);
        let checksum = pseudo.with(transport).checksum();
        let checksum = if checksum == 0 { 0xffff } else { checksum };
        transport[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flags: u8, kind: u8, size: u16, start: u16, offset: u16) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        (header[0], header[1]) = (flags, kind);
        header[4..6].copy_from_slice(&size.to_ne_bytes());
        header[6..8].copy_from_slice(&start.to_ne_bytes());
        header[8..10].copy_from_slice(&offset.to_ne_bytes());
        header
    }

    /// Where the transport's header is in a frame.
    fn transport(ipv4: bool) -> u16 {
        if ipv4 { 34 } else { 54 }
    }

    /// A frame of one protocol with this payload, without checksums.
    fn frame(ipv4: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend(if ipv4 { IPV4 } else { IPV6 });
        let transport = if protocol == TCP { 20 } else { 8 };
        let length = (transport + payload.len()) as u16;
        if ipv4 {
            frame.extend([0x45, 0]);
            frame.extend((20 + length).to_be_bytes());
            frame.extend([
                0xff, 0xff, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
            ]);
        } else {
            frame.extend([0x60, 0, 0, 0]);
            frame.extend(length.to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend([7; 32]);
        }
        let mut header = vec![0; transport];
        header[..4].copy_from_slice(&[1, 2, 3, 4]);
        if protocol == TCP {
            header[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
            (header[12], header[13]) = (0x50, FIN | PSH | CWR | 0x10);
        } else {
            header[4..6].copy_from_slice(&length.to_be_bytes());
        }
        frame.extend(header);
        frame.extend(payload);
        frame
    }

    /// Checks lengths and checksums; returns (sequence, flags, payload).
    fn check(frame: &[u8], protocol: u8) -> (u32, u8, Vec<u8>) {
        let layout = Layout::of(frame, ETHERNET, protocol).unwrap();
        assert_eq!(layout.payload + layout.length, frame.len());
        if layout.is_ipv4 {
            let ip = &frame[ETHERNET..layout.transport];
            assert_eq!(Sum::default().with(ip).checksum(), 0);
        }
        let transport = &frame[layout.transport..];
        let pseudo = layout.pseudo(frame, transport.len());
        assert_eq!(pseudo.with(transport).checksum(), 0);
        let sequence = u32::from_be_bytes(transport[4..8].try_into().unwrap());
        (
            sequence,
            transport[13.min(transport.len() - 1)],
            frame[layout.payload..].to_vec(),
        )
    }

    #[test]
    fn a_super_packet_becomes_segments() {
        let payload: Vec<u8> = (0..3001_u32).map(|n| n as u8).collect();
        for ipv4 in [true, false] {
            let kind = if ipv4 { GSO_TCP_V4 } else { GSO_TCP_V6 } | GSO_ECN;
            let mut frame = frame(ipv4, TCP, &payload);
            // Padding of the link is not payload.
            frame.extend([0xee; 3]);
            let mut segments = Vec::new();
            let header = header(NEEDS_CHECKSUM, kind, 1400, transport(ipv4), 16);
            assert!(finish(header, &mut frame, ETHERNET, |segment| segments
                .push(check(segment, TCP))));
            let told: Vec<_> = segments.iter().map(|(s, f, p)| (*s, *f, p.len())).collect();
            assert_eq!(
                told,
                [
                    (u32::MAX, CWR | 0x10, 1400),
                    (1399, 0x10, 1400),
                    (2799, FIN | PSH | 0x10, 201)
                ]
            );
            let joined: Vec<u8> = segments.into_iter().flat_map(|(_, _, part)| part).collect();
            assert_eq!(joined, payload);
        }
    }

    #[test]
    fn packets_without_a_link_header_are_the_same_packets() {
        for ipv4 in [true, false] {
            let kind = if ipv4 { GSO_TCP_V4 } else { GSO_TCP_V6 };
            let mut frame = frame(ipv4, TCP, &[9; 3000]);
            let mut packet = frame[ETHERNET..].to_vec();
            let at = |start| header(NEEDS_CHECKSUM, kind, 1400, start, 16);
            let (start, link) = (transport(ipv4), ETHERNET as u16);
            let (mut framed, mut bare) = (Vec::new(), Vec::new());
            assert!(finish(at(start), &mut frame, ETHERNET, |part| framed
                .push(part[ETHERNET..].to_vec())));
            assert!(finish(at(start - link), &mut packet, 0, |part| bare
                .push(part.to_vec())));
            assert!(bare.len() == 3 && framed == bare);
            assert!(!finish(at(start - link), &mut [], 0, |_| {}));
        }
    }

    #[test]
    fn datagrams_that_were_joined_are_parted() {
        for ipv4 in [true, false] {
            let mut frame = frame(ipv4, UDP, &[5; 250]);
            let mut lengths = Vec::new();
            let header = header(NEEDS_CHECKSUM, GSO_UDP, 100, transport(ipv4), 6);
            let whole = finish(header, &mut frame, ETHERNET, |part| {
                lengths.push(check(part, UDP).2.len());
            });
            assert!(whole && lengths == [100, 100, 50], "{lengths:?}");
        }
    }

    #[test]
    fn what_a_tunnel_carries_is_cut_inside() {
        let payload: Vec<u8> = (0..3000_u32).map(|n| n as u8).collect();
        for (outside, inside, protocol) in [
            (true, true, TCP),
            (true, false, TCP),
            (false, true, TCP),
            (false, false, UDP),
        ] {
            let inner = frame(inside, protocol, &payload);
            let vxlan = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &inner].concat();
            for checksum in [[0, 0], [1, 1]] {
                let mut frame = frame(outside, UDP, &vxlan);
                let udp = usize::from(transport(outside));
                frame[udp + 6..udp + 8].copy_from_slice(&checksum);
                let (kind, offset) = match (protocol, inside) {
                    (UDP, _) => (GSO_UDP, 6),
                    (_, true) => (GSO_TCP_V4, 16),
                    (_, false) => (GSO_TCP_V6, 16),
                };
                let start = (udp + 16) as u16 + transport(inside);
                let header = header(NEEDS_CHECKSUM, kind, 1400, start, offset);
                let (mut joined, mut lengths) = (Vec::new(), Vec::new());
                let whole = finish(header, &mut frame, ETHERNET, |segment| {
                    let layout = Layout::of(segment, ETHERNET, UDP).expect("a datagram");
                    assert_eq!(layout.payload + layout.length, segment.len());
                    let field = &segment[udp + 6..udp + 8];
                    assert_eq!(field == [0, 0], checksum == [0, 0]);
                    if checksum != [0, 0] {
                        check(segment, UDP);
                    }
                    let (_, _, part) = check(&segment[udp + 16..], protocol);
                    lengths.push(part.len());
                    joined.extend(part);
                });
                assert!(whole && lengths == [1400, 1400, 200] && joined == payload);
            }
        }
        // Where nothing says what is inside, nothing is guessed.
        let mut frame = frame(true, UDP, &frame(true, TCP, &payload));
        let header = header(0, GSO_TCP_V4, 1400, 0, 0);
        assert!(!finish(header, &mut frame, ETHERNET, |_| {}));
    }

    #[test]
    fn the_checksum_of_sctp_is_its_own() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let mut frame = frame(true, TCP, &[0; 100]);
        frame[ETHERNET + 9] = 132;
        frame[42..46].fill(7);
        let mut count = 0;
        let header = header(NEEDS_CHECKSUM, 0, 0, 34, 8);
        assert!(finish(header, &mut frame, ETHERNET, |frame| {
            let mut packet = frame[34..].to_vec();
            packet[8..12].fill(0);
            assert_eq!(frame[42..46], crc32c(&packet).to_le_bytes());
            count += 1;
        }));
        assert_eq!(count, 1);
    }

    #[test]
    fn a_partial_checksum_is_completed() {
        let mut frame = frame(true, TCP, b"hello");
        let layout = Layout::of(&frame, ETHERNET, TCP).unwrap();
        let pseudo = !layout.pseudo(&frame, 25).checksum();
        frame[50..52].copy_from_slice(&pseudo.to_be_bytes());
        frame[24..26].fill(0);
        let ip = Sum::default().with(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&ip.to_be_bytes());
        let mut count = 0;
        let header = header(NEEDS_CHECKSUM, 0, 0, 34, 16);
        assert!(finish(header, &mut frame, ETHERNET, |frame| {
            check(frame, TCP);
            count += 1;
        }));
        assert_eq!(count, 1);
    }

    #[test]
    fn nonsense_is_refused() {
        let good = frame(true, TCP, &[0; 100]);
        for kind in 0..=255 {
            for length in 0..good.len() {
                for size in [0, 1, 60_000] {
                    let header = header(NEEDS_CHECKSUM, kind, size, 34, 16);
                    finish(header, &mut good[..length].to_vec(), ETHERNET, |_| {});
                }
            }
        }
        let mut frame = good.clone();
        assert!(!finish(
            header(1, 0, 0, 5000, 16),
            &mut frame,
            ETHERNET,
            |_| {}
        ));
        assert!(!finish(
            header(1, 0, 0, 34, 60_000),
            &mut frame,
            ETHERNET,
            |_| {}
        ));
        assert!(!finish(
            header(0, 3, 100, 0, 0),
            &mut frame,
            ETHERNET,
            |_| {}
        ));
        assert!(!finish(
            header(0, GSO_UDP, 100, 0, 0),
            &mut frame,
            ETHERNET,
            |_| {}
        ));
    }
}
