//! Offloads undone: what a kernel hands over unfinished becomes what would be on a wire.
//!
//! Between interfaces of one machine, and behind receive offload, frames are up to 64 KiB long and may
//! have no checksum yet. A virtio header in front of each says what is missing.

use crate::checksum::Sum;

/// Length of a `virtio_net_hdr`.
pub(crate) const HEADER: usize = 10;

/// The checksum is still to be computed.
pub(crate) const NEEDS_CHECKSUM: u8 = 1;
/// The frame stands for several TCP segments, or several UDP datagrams.
pub(crate) const GSO_TCP_V4: u8 = 1;
pub(crate) const GSO_TCP_V6: u8 = 4;
const GSO_UDP: u8 = 5;
/// Set besides for TCP with ECN.
const GSO_ECN: u8 = 0x80;

/// Length of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
pub(crate) const TCP: u8 = 6;
const UDP: u8 = 17;

const FIN: u8 = 1;
pub(crate) const PSH: u8 = 8;
const CWR: u8 = 0x80;

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
        GSO_TCP_V4 | GSO_TCP_V6 => segment(frame, link, TCP, size, emit),
        GSO_UDP => segment(frame, link, UDP, size, emit),
        _ => false,
    }
}

/// Completes a checksum that holds the sum of the pseudo-header so far.
fn complete(frame: &mut [u8], start: usize, offset: usize) -> bool {
    let Some(part) = frame.get_mut(start..) else {
        return false;
    };
    let checksum = Sum::default().with(part).checksum();
    let Some(place) = part.get_mut(offset..offset + 2) else {
        return false;
    };
    // In UDP, 0 would mean that there is none; in TCP, both mean the same.
    let checksum = if checksum == 0 { 0xffff } else { checksum };
    place.copy_from_slice(&checksum.to_be_bytes());
    true
}

/// Cuts a frame into segments of `size` bytes of payload each.
fn segment(
    frame: &[u8],
    link: usize,
    protocol: u8,
    size: usize,
    mut emit: impl FnMut(&[u8]),
) -> bool {
    let Some(layout) = Layout::of(frame, link, protocol) else {
        return false;
    };
    if size == 0 {
        return false;
    }
    let (headers, payload) = frame.split_at(layout.payload);
    let payload = &payload[..layout.length];
    let count = payload.len().div_ceil(size);
    let mut out = Vec::with_capacity(headers.len() + size);
    for (index, chunk) in payload.chunks(size).enumerate() {
        out.clear();
        out.extend(headers);
        out.extend(chunk);
        layout.write_ip(&mut out, index as u16);
        layout.write_transport(&mut out, index * size, index == 0, index + 1 == count);
        emit(&out);
    }
    true
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
            let header = header(NEEDS_CHECKSUM, kind, 1400, 34, 16);
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
            let header = header(NEEDS_CHECKSUM, kind, 1400, 20, 16);
            let (mut framed, mut bare) = (Vec::new(), Vec::new());
            assert!(finish(header, &mut frame, ETHERNET, |part| framed
                .push(part[ETHERNET..].to_vec())));
            assert!(finish(header, &mut packet, 0, |part| bare.push(part.to_vec())));
            assert!(bare.len() == 3 && framed == bare);
            assert!(!finish(header, &mut [], 0, |_| {}));
        }
    }

    #[test]
    fn datagrams_that_were_joined_are_parted() {
        for ipv4 in [true, false] {
            let mut frame = frame(ipv4, UDP, &[5; 250]);
            let mut lengths = Vec::new();
            let header = header(NEEDS_CHECKSUM, GSO_UDP, 100, 34, 6);
            let whole = finish(header, &mut frame, ETHERNET, |part| {
                lengths.push(check(part, UDP).2.len());
            });
            assert!(whole && lengths == [100, 100, 50], "{lengths:?}");
        }
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
