//! TCP segments as an agent sees them. All functions are total.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use etherparse::{IpDscp, Ipv4HeaderSlice, Ipv6HeaderSlice, TcpSlice};

use sphinx_netdev::checksum::Sum;
use sphinx_netdev::header::{ACK, ECE, FIN, PSH, RST, SYN, TCP, URG};

use crate::Bypass;

/// Longest IP packet that counts as one segment on a wire; joined ones (GSO, GRO) are longer.
const SEGMENT_BYTES_MAX: usize = 9216;
/// SACK blocks that fit into the options.
const SACK_BLOCKS_MAX: usize = 4;

/// Where things are in the fixed part of a TCP header.
mod field {
    pub(super) const SEQUENCE: usize = 4;
    pub(super) const ACKNOWLEDGMENT: usize = 8;
    /// Below the header's length: three bits of which nothing is known, and AE.
    pub(super) const RESERVED: usize = 12;
    pub(super) const FLAGS: usize = 13;
    pub(super) const WINDOW: usize = 14;
    pub(super) const CHECKSUM: usize = 16;
    pub(super) const OPTIONS: usize = 20;
}

/// Options that are a timestamp and nothing else, up to its values.
const TIMESTAMPS_ALONE: &[u8] = &[kind::NOP, kind::NOP, kind::TIMESTAMPS, 10];

/// Kinds of TCP options.
mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const NOP: u8 = 1;
    pub(super) const MSS: u8 = 2;
    pub(super) const WINDOW_SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
    pub(super) const TIMESTAMPS: u8 = 8;
    pub(super) const MD5: u8 = 19;
    pub(super) const AUTHENTICATION: u8 = 29;
    pub(super) const MPTCP: u8 = 30;
    pub(super) const FAST_OPEN: u8 = 34;
}

/// What the options of a segment say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The longest payload that the peer may send, options not counted (RFC 6691).
    pub(crate) mss: Option<u16>,
    pub(crate) window_scale: Option<u8>,
    pub(crate) sack_permitted: bool,
    /// TSval and TSecr.
    pub(crate) timestamps: Option<(u32, u32)>,
    pub(crate) mptcp: bool,
    /// TCP-MD5 or TCP-AO: nothing in the header may change.
    pub(crate) authenticated: bool,
    /// There is an option that is in none of these fields.
    pub(crate) unknown: bool,
    sack: [(u32, u32); SACK_BLOCKS_MAX],
    sack_count: u8,
    /// Where the SACK option lies in the IP packet.
    sack_place: Option<(u8, u8)>,
    /// Where TSecr lies there. Headers end before byte 120.
    echo_place: Option<u8>,
}

/// A whole TCP segment in an IP packet, with a right checksum.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) packet: Bytes,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) sequence: u32,
    pub(crate) acknowledgment: u32,
    pub(crate) window: u16,
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
    pub(crate) ack: bool,
    pub(crate) urg: bool,
    /// The bits AE, CWR and ECE.
    pub(crate) ecn: u8,
    pub(crate) payload: usize,
    pub(crate) options: Options,
    transport: usize,
}

impl Segment {
    /// Reads an IP packet, or gives it back and says why an agent leaves it alone.
    pub(crate) fn parse(packet: Bytes) -> Result<Segment, (Bypass, Bytes)> {
        let place = match Place::of(&packet) {
            Ok(place) => place,
            Err(why) => return Err((why, packet)),
        };
        if packet.len() > SEGMENT_BYTES_MAX {
            return Err((Bypass::Joined, packet));
        }
        let bytes = &packet[place.transport..place.end];
        let Ok(tcp) = TcpSlice::from_slice(bytes) else {
            return Err((Bypass::Malformed, packet));
        };
        if sum(bytes, &place) != 0 {
            return Err((Bypass::Checksum, packet));
        }
        let first = place.transport + field::OPTIONS;
        let Some(options) = Options::parse(tcp.options(), first) else {
            return Err((Bypass::Malformed, packet));
        };
        Ok(Segment {
            source: SocketAddr::new(place.source, tcp.source_port()),
            destination: SocketAddr::new(place.destination, tcp.destination_port()),
            sequence: tcp.sequence_number(),
            acknowledgment: tcp.acknowledgment_number(),
            window: tcp.window_size(),
            syn: tcp.syn(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            ack: tcp.ack(),
            urg: tcp.urg(),
            ecn: u8::from(tcp.ns()) << 2 | u8::from(tcp.cwr()) << 1 | u8::from(tcp.ece()),
            payload: tcp.payload().len(),
            options,
            transport: place.transport,
            packet,
        })
    }

    /// Whether a packet begins or aborts a connection (SYN, RST). Cheaper than reading all of it.
    pub(crate) fn opens_or_resets(packet: &[u8]) -> bool {
        Segment::flags(packet) & (SYN | RST) != 0
    }

    /// Whether a packet asks for a connection: a SYN that answers none.
    pub(crate) fn opens(packet: &[u8]) -> bool {
        Segment::flags(packet) & (SYN | ACK) == SYN
    }

    /// Whether a packet asks for a connection, or answers that (SYN).
    pub(crate) fn begins(packet: &[u8]) -> bool {
        Segment::flags(packet) & SYN != 0
    }

    /// Whether a packet, which may be of several segments, ends a stream (FIN).
    pub(crate) fn ends_stream(packet: &[u8]) -> bool {
        Segment::flags(packet) & FIN != 0
    }

    /// The flags of a packet; none of one that is no TCP.
    fn flags(packet: &[u8]) -> u8 {
        let flags = |place: Place| packet.get(place.transport + field::FLAGS).copied();
        Place::of(packet).ok().and_then(flags).unwrap_or(0)
    }

    /// Source and destination of a TCP packet, which may be of several segments.
    pub(crate) fn ends(packet: &[u8]) -> Result<(SocketAddr, SocketAddr), Bypass> {
        let place = Place::of(packet)?;
        let tcp = TcpSlice::from_slice(&packet[place.transport..place.end]);
        let tcp = tcp.map_err(|_| Bypass::Malformed)?;
        Ok((
            SocketAddr::new(place.source, tcp.source_port()),
            SocketAddr::new(place.destination, tcp.destination_port()),
        ))
    }

    /// The timestamps of a TCP packet, which may be of several segments.
    pub(crate) fn timestamps(packet: &[u8]) -> Option<(u32, u32)> {
        let place = Place::of(packet).ok()?;
        let tcp = TcpSlice::from_slice(&packet[place.transport..place.end]).ok()?;
        let options = Options::parse(tcp.options(), place.transport + field::OPTIONS)?;
        options.timestamps
    }

    /// What the segment takes of the sequence space.
    pub(crate) fn sequence_len(&self) -> u32 {
        self.payload as u32 + u32::from(self.syn) + u32::from(self.fin)
    }

    /// The SACK blocks, in the order of the option.
    pub(crate) fn sack(&self) -> &[(u32, u32)] {
        &self.options.sack[..usize::from(self.options.sack_count)]
    }

    /// Whether it acknowledges and does nothing else: no data, no flag but ACK and those of ECN.
    pub(crate) fn is_pure_ack(&self) -> bool {
        let others = FIN | SYN | RST | PSH | URG;
        let flags = self.packet[self.transport + field::FLAGS] & (others | ACK);
        let reserved = self.packet[self.transport + field::RESERVED] & 0x0e;
        self.payload == 0 && flags == ACK && reserved == 0
    }

    /// Whether an agent may change a byte of the header: it knows everything in it.
    pub(crate) fn may_be_edited(&self) -> bool {
        !(self.options.unknown || self.options.authenticated || self.options.mptcp)
    }

    /// The packet with NOPs in the place of its SACK option: it then tells of nothing but what it
    /// acknowledges. `None` if it may not be edited, the packet itself if it has no such option.
    pub(crate) fn without_sack(&self) -> Option<Bytes> {
        self.with_sack(|_| false)
    }

    /// The packet with only those SACK blocks that `shows` wants, in their order, and NOPs in the place of the
    /// others. `None` if it may not be edited, the packet itself if all of them stay.
    pub(crate) fn with_sack(&self, shows: impl Fn((u32, u32)) -> bool) -> Option<Bytes> {
        self.rewritten(shows, &Slowing::default())
    }

    /// As [`with_sack`](Segment::with_sack), and with what is to slow down the sender.
    pub(crate) fn rewritten(
        &self,
        shows: impl Fn((u32, u32)) -> bool,
        slowing: &Slowing,
    ) -> Option<Bytes> {
        let shown = || self.sack().iter().filter(|block| shows(**block));
        let count = shown().count();
        let hidden = self
            .options
            .sack_place
            .filter(|_| count == 0 || count < self.sack().len());
        let window = slowing.window.filter(|window| *window < self.window);
        let ece = slowing.ece && self.ecn & 1 == 0;
        if hidden.is_none() && window.is_none() && !ece {
            return Some(self.packet.clone());
        }
        if !self.may_be_edited() {
            return None;
        }
        let mut packet = self.packet.to_vec();
        if let Some((start, end)) = hidden {
            let (start, end) = (usize::from(start), usize::from(end));
            packet[start..end].fill(kind::NOP);
            if count > 0 {
                packet[start..start + 2].copy_from_slice(&[kind::SACK, 2 + 8 * count as u8]);
            }
            for (index, (left, right)) in shown().enumerate() {
                let at = start + 2 + 8 * index;
                packet[at..at + 4].copy_from_slice(&left.to_be_bytes());
                packet[at + 4..at + 8].copy_from_slice(&right.to_be_bytes());
            }
        }
        if let Some(window) = window {
            let at = self.transport + field::WINDOW;
            packet[at..at + 2].copy_from_slice(&window.to_be_bytes());
        }
        if ece {
            packet[self.transport + field::FLAGS] |= ECE;
        }
        self.seal(packet)
    }

    /// The packet as an acknowledgement of less: with this number, window (unscaled) and, if it has timestamps, TSecr. `None` if it may not be
    /// edited.
    pub(crate) fn acknowledging(
        &self,
        acknowledgment: u32,
        window: u16,
        echo: u32,
    ) -> Option<Bytes> {
        if !self.may_be_edited() {
            return None;
        }
        let mut packet = self.packet.to_vec();
        let mut put = |at: usize, bytes: &[u8]| packet[at..at + bytes.len()].copy_from_slice(bytes);
        put(
            self.transport + field::ACKNOWLEDGMENT,
            &acknowledgment.to_be_bytes(),
        );
        put(self.transport + field::WINDOW, &window.to_be_bytes());
        if let Some(at) = self.options.echo_place {
            put(usize::from(at), &echo.to_be_bytes());
        }
        self.seal(packet)
    }

    /// The payload.
    pub(crate) fn data(&self) -> Bytes {
        self.packet.slice(self.packet.len() - self.payload..)
    }

    /// The headers, with zeros for what depends on the length of the payload: lengths, checksums, sequence number.
    pub(crate) fn headers_but_lengths(&self) -> Vec<u8> {
        let mut headers = self.packet[..self.packet.len() - self.payload].to_vec();
        match headers[0] >> 4 {
            4 => {
                headers[2..4].fill(0);
                headers[10..12].fill(0);
            }
            _ => headers[4..6].fill(0),
        }
        let (sequence, checksum) = (field::SEQUENCE, field::CHECKSUM);
        headers[self.transport + sequence..self.transport + sequence + 4].fill(0);
        headers[self.transport + checksum..self.transport + checksum + 2].fill(0);
        headers
    }

    /// Bytes of the TCP options, padding included.
    pub(crate) fn options_len(&self) -> usize {
        self.packet.len() - self.payload - self.transport - field::OPTIONS
    }

    /// The packet with more of the stream in front of its payload: what comes directly before it. `None` if it may not be edited, or would be
    /// too long for an IP packet.
    pub(crate) fn with_payload_before(&self, before: &[Bytes]) -> Option<Bytes> {
        if !self.may_be_edited() || self.urg {
            return None;
        }
        let extra: usize = before.iter().map(Bytes::len).sum();
        let headers = self.packet.len() - self.payload;
        let mut packet = Vec::with_capacity(self.packet.len() + extra);
        packet.extend(&self.packet[..headers]);
        before.iter().for_each(|bytes| packet.extend(bytes));
        packet.extend(&self.packet[headers..]);
        let at = self.transport + field::SEQUENCE;
        let sequence = self.sequence.wrapping_sub(extra as u32);
        packet[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
        if packet[0] >> 4 == 4 {
            let length = u16::try_from(packet.len()).ok()?;
            let mut header = Ipv4HeaderSlice::from_slice(&packet).ok()?.to_header();
            header.total_len = length;
            header.header_checksum = header.calc_header_checksum();
            let bytes = header.to_bytes();
            packet[..bytes.len()].copy_from_slice(&bytes);
        } else {
            let length = u16::try_from(packet.len() - self.transport).ok()?;
            let mut header = Ipv6HeaderSlice::from_slice(&packet).ok()?.to_header();
            header.payload_length = length;
            let bytes = header.to_bytes();
            packet[..bytes.len()].copy_from_slice(&bytes);
        }
        self.seal(packet)
    }

    /// An edited packet, with its TCP checksum.
    fn seal(&self, mut packet: Vec<u8>) -> Option<Bytes> {
        let place = Place::of(&packet).ok()?;
        let at = self.transport + field::CHECKSUM;
        packet[at..at + 2].fill(0);
        let checksum = sum(&packet[self.transport..place.end], &place);
        packet[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        Some(packet.into())
    }
}

/// What an acknowledgement is to say besides, so that the sender slows down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slowing {
    /// Sets ECE, which tells of congestion (RFC 3168).
    pub(crate) ece: bool,
    /// No larger window than this, unscaled as in the header.
    pub(crate) window: Option<u16>,
}

impl Options {
    /// Reads the options, which begin at `first` in the packet.
    #[inline]
    fn parse(bytes: &[u8], first: usize) -> Option<Options> {
        if let Some(value) = bytes.strip_prefix(TIMESTAMPS_ALONE)
            && let Ok(value) = <&[u8; 8]>::try_from(value)
        {
            // What nearly every segment has (RFC 7323, appendix A).
            let [a, b, c, d, e, f, g, h] = *value;
            let number = u32::from_be_bytes;
            return Some(Options {
                timestamps: Some((number([a, b, c, d]), number([e, f, g, h]))),
                echo_place: Some((first + 8) as u8),
                ..Options::default()
            });
        }
        Options::parse_each(bytes, first)
    }

    #[inline(never)]
    fn parse_each(bytes: &[u8], first: usize) -> Option<Options> {
        let mut options = Options::default();
        let mut at = 0;
        while let Some(&kind) = bytes.get(at) {
            match kind {
                kind::END => break,
                kind::NOP => at += 1,
                _ => {
                    let length = usize::from(*bytes.get(at + 1)?);
                    let value = bytes.get(at + 2..at + length.max(2))?;
                    if length < 2 {
                        return None;
                    }
                    options.add(kind, value)?;
                    if kind == kind::SACK {
                        let start = first + at;
                        options.sack_place = Some((start as u8, (start + length) as u8));
                    }
                    if kind == kind::TIMESTAMPS {
                        options.echo_place = Some((first + at + 6) as u8);
                    }
                    at += length;
                }
            }
        }
        Some(options)
    }

    fn add(&mut self, kind: u8, value: &[u8]) -> Option<()> {
        match (kind, value) {
            (kind::MSS, &[high, low]) => self.mss = Some(u16::from_be_bytes([high, low])),
            (kind::WINDOW_SCALE, &[scale]) => self.window_scale = Some(scale),
            (kind::SACK_PERMITTED, []) => self.sack_permitted = true,
            (kind::SACK, blocks) => self.add_sack(blocks)?,
            (kind::TIMESTAMPS, value) => {
                let (sent, rest) = value.split_first_chunk::<4>()?;
                let echoed = rest.first_chunk::<4>()?;
                let number = |bytes: &[u8; 4]| u32::from_be_bytes(*bytes);
                self.timestamps = Some((number(sent), number(echoed)));
            }
            (kind::MD5 | kind::AUTHENTICATION, _) => self.authenticated = true,
            (kind::MPTCP, _) => self.mptcp = true,
            (kind::FAST_OPEN, _) => {}
            _ => self.unknown = true,
        }
        Some(())
    }

    fn add_sack(&mut self, blocks: &[u8]) -> Option<()> {
        // A second option of this kind is something that no receiver sends.
        if self.sack_count > 0 || !blocks.len().is_multiple_of(8) {
            return None;
        }
        for (block, place) in blocks.as_chunks::<8>().0.iter().zip(&mut self.sack) {
            let [a, b, c, d, e, f, g, h] = *block;
            *place = (
                u32::from_be_bytes([a, b, c, d]),
                u32::from_be_bytes([e, f, g, h]),
            );
            self.sack_count += 1;
        }
        Some(())
    }
}

/// Where the TCP segment is in an IP packet, and what its checksum covers besides.
struct Place {
    source: IpAddr,
    destination: IpAddr,
    transport: usize,
    end: usize,
}

impl Place {
    #[inline]
    fn of(packet: &[u8]) -> Result<Place, Bypass> {
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => Place::of_v4(packet),
            Some(6) => Place::of_v6(packet),
            _ => Err(Bypass::NotTcp),
        }
    }

    #[inline]
    fn of_v4(packet: &[u8]) -> Result<Place, Bypass> {
        let header = Ipv4HeaderSlice::from_slice(packet).map_err(|_| Bypass::Malformed)?;
        if header.protocol().0 != TCP {
            return Err(Bypass::NotTcp);
        }
        if header.is_fragmenting_payload() {
            return Err(Bypass::Fragment);
        }
        // Packets that were joined beyond 64 KiB have 0 as their length.
        if header.total_len() == 0 {
            return Err(Bypass::Joined);
        }
        let place = Place {
            source: header.source_addr().into(),
            destination: header.destination_addr().into(),
            transport: header.slice().len(),
            end: usize::from(header.total_len()),
        };
        place.checked(packet)
    }

    /// Packets with extension headers are left alone.
    #[inline(never)]
    fn of_v6(packet: &[u8]) -> Result<Place, Bypass> {
        let header = Ipv6HeaderSlice::from_slice(packet).map_err(|_| Bypass::Malformed)?;
        if header.next_header().0 != TCP {
            return Err(Bypass::NotTcp);
        }
        if header.payload_length() == 0 {
            return Err(Bypass::Joined);
        }
        let transport = header.slice().len();
        let place = Place {
            source: header.source_addr().into(),
            destination: header.destination_addr().into(),
            transport,
            end: transport + usize::from(header.payload_length()),
        };
        place.checked(packet)
    }

    fn checked(self, packet: &[u8]) -> Result<Place, Bypass> {
        // Padding behind the packet is not ours to understand.
        match self.transport <= self.end && self.end == packet.len() {
            true => Ok(self),
            false => Err(Bypass::Malformed),
        }
    }
}

/// An IP packet with another DSCP (RFC 2474), 0 to 63; the packet itself if it cannot be read, or has it.
pub(crate) fn with_dscp(packet: &Bytes, dscp: u8) -> Bytes {
    let edited = match packet.first().map(|byte| byte >> 4) {
        Some(4) => ipv4_with_dscp(packet, dscp),
        Some(6) => ipv6_with_dscp(packet, dscp),
        _ => None,
    };
    edited.unwrap_or_else(|| packet.clone())
}

fn ipv4_with_dscp(packet: &Bytes, dscp: u8) -> Option<Bytes> {
    let mut header = Ipv4HeaderSlice::from_slice(packet).ok()?.to_header();
    if header.dscp.value() == dscp {
        return None;
    }
    header.dscp = IpDscp::try_new(dscp).ok()?;
    header.header_checksum = header.calc_header_checksum();
    let mut edited = packet.to_vec();
    let bytes = header.to_bytes();
    edited[..bytes.len()].copy_from_slice(&bytes);
    Some(edited.into())
}

fn ipv6_with_dscp(packet: &Bytes, dscp: u8) -> Option<Bytes> {
    let mut header = Ipv6HeaderSlice::from_slice(packet).ok()?.to_header();
    if header.dscp().value() == dscp {
        return None;
    }
    header.set_dscp(IpDscp::try_new(dscp).ok()?);
    let mut edited = packet.to_vec();
    let bytes = header.to_bytes();
    edited[..bytes.len()].copy_from_slice(&bytes);
    Some(edited.into())
}

/// The checksum of a TCP segment; 0 if the one in it is right.
fn sum(segment: &[u8], place: &Place) -> u16 {
    let of = |address| match address {
        IpAddr::V4(address) => Sum::few(&address.octets()),
        IpAddr::V6(address) => Sum::few(&address.octets()),
    };
    let [a, b, c, d] = (segment.len() as u32).to_be_bytes();
    Sum::few(&[a, b, c, d, 0, 0, 0, TCP])
        .and(of(place.source))
        .and(of(place.destination))
        .with(segment)
        .checksum()
}
