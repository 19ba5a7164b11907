//! Garbage at a steady rate, from many addresses of this machine, for `scripts/bench-flood`.
//!
//! ```text
//! flood ADDRESS DATAGRAMS/s SECONDS KIND...
//! ```
//!
//! The kinds take turns, datagram by datagram:
//!
//! * `random`: random bytes, 1 to 1400 of them;
//! * `data`: data packets of sessions that do not exist;
//! * `initial`: QUIC Initial packets, well formed up to the encryption;
//! * `forge:FILE`: the connection id of the data packet in FILE, and random bytes;
//! * `replay:FILE`: the datagram in FILE itself.
//!
//! Prints, as one JSON object, how many were sent, how many the system refused, and the seconds that it took.

use std::error::Error;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Source addresses, from 127.1.0.0 on.
const SOURCES: u32 = 64;
/// The largest number of datagrams that are made up for when the machine was busy elsewhere.
const LAG_MAX: u64 = 2000;

enum Kind {
    Random,
    Data,
    Initial,
    Forge(Vec<u8>),
    Replay(Vec<u8>),
}

impl Kind {
    fn parse(text: &str) -> Result<Self, Box<dyn Error>> {
        Ok(match text.split_once(':') {
            None if text == "random" => Self::Random,
            None if text == "data" => Self::Data,
            None if text == "initial" => Self::Initial,
            Some(("forge", file)) => Self::Forge(fs::read(file)?),
            Some(("replay", file)) => Self::Replay(fs::read(file)?),
            _ => return Err(format!("{text}: no kind of garbage").into()),
        })
    }

    /// Writes a datagram into `packet`, which holds random bytes; its length.
    fn write(&self, random: u64, packet: &mut [u8; 1400]) -> usize {
        match self {
            Self::Random => {
                packet[0] = random as u8;
                1 + (random >> 8) as usize % packet.len()
            }
            Self::Data => {
                packet[0] = 0x80 | random as u8 & 0x3f;
                packet[1..9].copy_from_slice(&(random | 1 << 40).to_be_bytes());
                1200
            }
            Self::Initial => {
                // Version, lengths of connection ids, token and packet (RFC 9000 §17.2.2).
                packet[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 20]);
                packet[6..14].copy_from_slice(&random.to_be_bytes());
                packet[26..30].copy_from_slice(&[0, 0, 0x44, 0x92]);
                1200
            }
            Self::Forge(model) => {
                packet[0] = 0x80 | random as u8 & 0x3f;
                packet[1..9].copy_from_slice(&model[1..9]);
                packet[9..17].copy_from_slice(&random.to_be_bytes());
                1200
            }
            Self::Replay(datagram) => {
                let len = datagram.len().min(packet.len());
                packet[..len].copy_from_slice(&datagram[..len]);
                len
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || {
        arguments
            .next()
            .ok_or("ADDRESS DATAGRAMS/s SECONDS KIND...")
    };
    let target: SocketAddr = next()?.parse()?;
    let rate: f64 = next()?.parse()?;
    let time = Duration::from_secs_f64(next()?.parse()?);
    let kinds: Vec<Kind> = arguments
        .map(|kind| Kind::parse(&kind))
        .collect::<Result<_, _>>()?;
    let sockets: Vec<UdpSocket> = (0..SOURCES)
        .map(|n| UdpSocket::bind((Ipv4Addr::from_bits(0x7f01_0001 + n), 0)))
        .collect::<Result<_, _>>()?;

    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut packet = [0; 1400];
    packet.fill_with(|| random() as u8);
    let (begin, mut due, mut sent, mut refused) = (Instant::now(), 0u64, 0u64, 0u64);
    while begin.elapsed() < time && !kinds.is_empty() {
        let now_due = (begin.elapsed().as_secs_f64() * rate) as u64;
        due = due.max(now_due.saturating_sub(LAG_MAX));
        while due < now_due {
            let kind = &kinds[due as usize % kinds.len()];
            let len = kind.write(random(), &mut packet);
            let socket = &sockets[random() as usize % sockets.len()];
            match socket.send_to(&packet[..len], target) {
                Ok(_) => sent += 1,
                Err(_) => refused += 1,
            }
            due += 1;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(r#"{{"sent":{sent},"refused":{refused},"seconds":{seconds:.3}}}"#);
    Ok(())
}
