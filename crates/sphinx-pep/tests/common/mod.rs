//! TCP segments, written and read by another library than the agent's own views; what an agent puts out; random numbers.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use etherparse::{
    NetSlice, PacketBuilder, SlicedPacket, TcpHeader, TcpOptionElement, TcpOptionReadError,
    TransportSlice,
};
use sphinx_pep::{Agent, Laws, Output};

/// A segment to be sent, or one that has been received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) sequence: u32,
    pub(crate) ack: Option<u32>,
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
    pub(crate) ece: bool,
    pub(crate) cwr: bool,
    pub(crate) ae: bool,
    pub(crate) psh: bool,
    pub(crate) window: u16,
    pub(crate) sack: Vec<(u32, u32)>,
    pub(crate) sack_permitted: bool,
    pub(crate) scale: Option<u8>,
    pub(crate) mss: Option<u16>,
    pub(crate) timestamps: Option<(u32, u32)>,
    /// TCP options of other kinds, as bytes.
    pub(crate) other: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Segment {
    /// Writes it into an IP packet.
    pub(crate) fn packet(&self, from: SocketAddr, to: SocketAddr) -> Bytes {
        let mut header = TcpHeader::new(from.port(), to.port(), self.sequence, self.window);
        (header.syn, header.fin, header.rst) = (self.syn, self.fin, self.rst);
        (header.ece, header.cwr, header.ns) = (self.ece, self.cwr, self.ae);
        header.psh = self.psh;
        header.ack = self.ack.is_some();
        header.acknowledgment_number = self.ack.unwrap_or(0);
        let mut options = Vec::new();
        if let Some(scale) = self.scale {
            options.extend([1, 3, 3, scale]);
        }
        if let Some(mss) = self.mss {
            options.extend([2, 4]);
            options.extend(mss.to_be_bytes());
        }
        if self.sack_permitted {
            options.extend([1, 1, 4, 2]);
        }
        if let Some((value, echo)) = self.timestamps {
            options.extend([1, 1, 8, 10]);
            options.extend(value.to_be_bytes());
            options.extend(echo.to_be_bytes());
        }
        if !self.sack.is_empty() {
            options.extend([1, 1, 5, 2 + 8 * self.sack.len() as u8]);
            for (left, right) in &self.sack {
                options.extend(left.to_be_bytes());
                options.extend(right.to_be_bytes());
            }
        }
        options.extend(&self.other);
        header.set_options_raw(&options).expect("room for options");
        let builder = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                PacketBuilder::ipv4(from.octets(), to.octets(), 64)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                PacketBuilder::ipv6(from.octets(), to.octets(), 64)
            }
            _ => panic!("one family"),
        };
        let mut packet = Vec::new();
        let builder = builder.tcp_header(header);
        builder.write(&mut packet, &self.payload).expect("a packet");
        packet.into()
    }

    /// Reads an IP packet; `None` if its checksum is wrong.
    pub(crate) fn read(packet: &[u8]) -> Option<Segment> {
        let sliced = SlicedPacket::from_ip(packet).ok()?;
        let TransportSlice::Tcp(tcp) = sliced.transport? else {
            return None;
        };
        let checksum = match sliced.net? {
            NetSlice::Ipv4(ip) => {
                let header = ip.header();
                tcp.calc_checksum_ipv4(header.source(), header.destination())
            }
            NetSlice::Ipv6(ip) => {
                let header = ip.header();
                tcp.calc_checksum_ipv6(header.source(), header.destination())
            }
            NetSlice::Arp(_) => return None,
        };
        if checksum.ok()? != tcp.checksum() {
            return None;
        }
        let mut segment = Segment {
            sequence: tcp.sequence_number(),
            ack: tcp.ack().then_some(tcp.acknowledgment_number()),
            syn: tcp.syn(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            ece: tcp.ece(),
            cwr: tcp.cwr(),
            ae: tcp.ns(),
            psh: tcp.psh(),
            window: tcp.window_size(),
            payload: tcp.payload().to_vec(),
            ..Segment::default()
        };
        for option in tcp.options_iterator() {
            // Those of other kinds are written last.
            if let Err(TcpOptionReadError::UnknownId(_)) = option {
                break;
            }
            match option.ok()? {
                TcpOptionElement::WindowScale(scale) => segment.scale = Some(scale),
                TcpOptionElement::SelectiveAcknowledgementPermitted => {
                    segment.sack_permitted = true;
                }
                TcpOptionElement::Timestamp(value, echo) => {
                    segment.timestamps = Some((value, echo));
                }
                TcpOptionElement::SelectiveAcknowledgement(first, rest) => {
                    segment.sack.push(first);
                    segment.sack.extend(rest.into_iter().flatten());
                }
                TcpOptionElement::MaximumSegmentSize(mss) => segment.mss = Some(mss),
                TcpOptionElement::Noop => {}
            }
        }
        Some(segment)
    }
}

/// All that an agent has to put out, which the laws allow.
pub(crate) fn outputs(agent: &mut Agent, laws: &mut Laws) -> Vec<Output> {
    let outputs: Vec<Output> = std::iter::from_fn(|| agent.poll_output()).collect();
    for output in &outputs {
        laws.output(output)
            .unwrap_or_else(|law| panic!("{law}: {output:?}"));
    }
    outputs
}

/// Random numbers from a seed (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
