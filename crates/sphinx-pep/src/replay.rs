//! An agent over a capture: what it would have let out.
//!
//! The same capture gives the same result, on any machine. It is one-sided: what was captured is what
//! happened without the agent, so the ends do not react to what it does.

use std::{
    borrow::Cow,
    io::{self, Read, Write},
    net::IpAddr,
    time::Duration,
};

use bytes::Bytes;
use pcap_file::{
    DataLink, PcapError,
    pcap::{PcapPacket, PcapReader, PcapWriter},
};
use thiserror::Error;

use crate::{Agent, Laws, Network, Output, Side, Time};

/// Bytes in front of an IP packet in an Ethernet frame.
const ETHERNET: usize = 14;
/// How long the agent goes on behind the last packet: its timers end within.
const REST_NS: Time = 5_000_000_000;

/// Why a capture could not be replayed.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// It is no capture, or it is broken.
    #[error("{0}")]
    Capture(String),
    /// Packets of this kind of link are not understood.
    #[error("packets of link type {0}: only raw IP and Ethernet are read")]
    LinkType(u32),
    /// Reading or writing failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The agent broke a law, which is a fault of this program.
    #[error("packet {packet}: {law}")]
    Law {
        /// The packet that came in last, from 1.
        packet: u64,
        /// The law that was broken.
        law: &'static str,
    },
}

impl From<PcapError> for ReplayError {
    fn from(error: PcapError) -> ReplayError {
        match error {
            PcapError::IoError(error) => ReplayError::Io(error),
            error => ReplayError::Capture(error.to_string()),
        }
    }
}

/// The results of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Packets read.
    pub read: u64,
    /// Packets written.
    pub written: u64,
}

/// Feeds a capture (pcap, raw IP or Ethernet) to an agent and writes what comes out, with its times, as
/// a capture of the same kind. Packets to or from the `mobile` networks are the agent's; others are
/// copied. Padding of Ethernet frames is left out.
///
/// # Errors
///
/// Captures that cannot be read or written, and broken laws.
pub fn replay(
    input: impl Read,
    output: impl Write,
    mobile: &[Network],
    agent: &mut Agent,
) -> Result<Replayed, ReplayError> {
    let mut reader = PcapReader::new(input)?;
    let header = reader.header();
    let prefix = match header.datalink {
        DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => 0,
        DataLink::ETHERNET => ETHERNET,
        other => return Err(ReplayError::LinkType(other.into())),
    };
    let mut replay = Replay {
        writer: PcapWriter::with_header(output, header)?,
        laws: Laws::default(),
        headers: [Vec::new(), Vec::new()],
        totals: Replayed::default(),
    };
    let (mut start, mut now) = (None, 0);
    while let Some(packet) = reader.next_packet() {
        let packet = packet?;
        replay.totals.read += 1;
        let start = *start.get_or_insert(packet.timestamp);
        let time = packet.timestamp.saturating_sub(start);
        // Captures of several interfaces may step back a little.
        now = Time::try_from(time.as_nanos())
            .unwrap_or(Time::MAX)
            .max(now);
        replay.run_until(agent, start, now)?;
        let frame = packet.data.as_ref();
        let is_ip = prefix == 0 || matches!(frame.get(12..14), Some([0x08, 0x00] | [0x86, 0xdd]));
        let ip = frame.get(prefix..).filter(|_| is_ip);
        let found = ip.and_then(|ip| side(ip, mobile));
        let Some((from, length)) = found else {
            replay.write(start, now, frame)?;
            continue;
        };
        replay.headers[from.other() as usize] = frame[..prefix].to_vec();
        let ip = Bytes::copy_from_slice(&frame[prefix..prefix + length]);
        replay.laws.input(from, &ip);
        agent.handle_packet(now, from, ip);
        replay.take(agent, start, now)?;
    }
    replay.run_until(agent, start.unwrap_or_default(), now + REST_NS)?;
    replay.writer.into_writer().flush()?;
    Ok(replay.totals)
}

struct Replay<W: Write> {
    writer: PcapWriter<W>,
    laws: Laws,
    /// The last link header of packets towards each side.
    headers: [Vec<u8>; 2],
    totals: Replayed,
}

impl<W: Write> Replay<W> {
    /// Lets the agent's timers fire.
    fn run_until(
        &mut self,
        agent: &mut Agent,
        start: Duration,
        now: Time,
    ) -> Result<(), ReplayError> {
        while let Some(at) = agent.next_timeout().filter(|at| *at <= now) {
            agent.handle_timeout(at);
            self.take(agent, start, at)?;
        }
        Ok(())
    }

    fn take(&mut self, agent: &mut Agent, start: Duration, now: Time) -> Result<(), ReplayError> {
        while let Some(output) = agent.poll_output() {
            self.laws.output(&output).map_err(|law| ReplayError::Law {
                packet: self.totals.read,
                law,
            })?;
            let frame = self.frame(&output);
            self.write(start, now, &frame)?;
        }
        Ok(())
    }

    fn frame(&self, output: &Output) -> Vec<u8> {
        let mut frame = self.headers[output.to as usize].clone();
        frame.extend(&output.packet);
        frame
    }

    fn write(&mut self, start: Duration, now: Time, frame: &[u8]) -> Result<(), ReplayError> {
        self.totals.written += 1;
        let packet = PcapPacket {
            timestamp: start + Duration::from_nanos(now),
            orig_len: u32::try_from(frame.len()).unwrap_or(u32::MAX),
            data: Cow::Borrowed(frame),
        };
        self.writer.write_packet(&packet)?;
        Ok(())
    }
}

/// Where an IP packet comes from, and its length without padding; `None` if it is not the agent's.
fn side(packet: &[u8], mobile: &[Network]) -> Option<(Side, usize)> {
    let (source, destination, length): (IpAddr, IpAddr, usize) = match packet.first()? >> 4 {
        4 => {
            let header = packet.first_chunk::<20>()?;
            let address = |at: usize| header[at..].first_chunk::<4>().copied();
            let length = u16::from_be_bytes([header[2], header[3]]);
            (address(12)?.into(), address(16)?.into(), length.into())
        }
        6 => {
            let header = packet.first_chunk::<40>()?;
            let address = |at: usize| header[at..].first_chunk::<16>().copied();
            let length = usize::from(u16::from_be_bytes([header[4], header[5]])) + 40;
            (address(8)?.into(), address(24)?.into(), length)
        }
        _ => return None,
    };
    let is_mobile = |address| mobile.iter().any(|network| network.contains(address));
    // What a capture has cut off is not the agent's business.
    let length = (20..=packet.len()).contains(&length).then_some(length)?;
    match (is_mobile(source), is_mobile(destination)) {
        (true, false) => Some((Side::Mobile, length)),
        (false, true) => Some((Side::Fixed, length)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_what_they_say() {
        let network = |text: &str, prefix| Network::new(text.parse().unwrap(), prefix).unwrap();
        let contains = |network: Network, text: &str| network.contains(text.parse().unwrap());
        assert!(contains(network("10.1.0.0", 16), "10.1.255.3"));
        assert!(!contains(network("10.1.0.0", 16), "10.2.0.0"));
        assert!(contains(network("0.0.0.0", 0), "10.2.0.0"));
        assert!(!contains(network("0.0.0.0", 0), "::1"));
        assert!(contains(network("fd00::", 8), "fdff::1"));
        assert!(!contains(network("fd00::", 128), "fd00::1"));
        assert_eq!(Network::new("10.0.0.0".parse().unwrap(), 33), None);
    }
}
