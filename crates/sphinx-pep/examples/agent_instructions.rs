//! A fixed number of packets through an agent, to count instructions of: see `scripts/bench-instructions`.
//!
//! Arguments: `clean`, `lossy` (one segment in a hundred is lost behind the agent), `queue` (the same, with the agent's own queue),
//! `upload` (the same from the mobile host, reported), `stages` (a download like `lossy`, through every stage that goes together with `snoop`), `stages-upload`
//! (an upload through them), `thin` (messages of 100 bytes, each acknowledged), `copies` (the same, with a copy in
//! every second one) or `stages-thin` (the same, through every stage that goes together with `rdb`); how many segments there are, and how many of them pass. Between two runs that
//! differ in the last number alone lies what these segments and their acknowledgements cost.

mod common;

use std::{env, net::SocketAddr};

use bytes::Bytes;
use etherparse::{PacketBuilder, TcpHeader, TcpOptionElement};
use sphinx_pep::{
    Agent, Config, Radio, Side, Stage,
    rdb::{Mode, Rdb},
};

use common::every_stage;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const PAYLOAD: u32 = 1400;
const THIN_PAYLOAD: u32 = 100;
/// Time between two segments, in nanoseconds: 50 Mbit/s.
const INTERVAL_NS: u64 = 230_000;
/// A lost segment comes again behind so many others, as the round trip behind the agent is that long.
const REPAIRED_AFTER: u32 = 10;
const RTT_NS: u64 = REPAIRED_AFTER as u64 * INTERVAL_NS;
const LOST_EVERY: u32 = 100;
/// Rate of the hop in bit/s: a little more than comes.
const RATE: u64 = 60_000_000;
const QUEUE_BYTES: usize = 256 << 10;

/// What comes to the agent.
struct Arrival {
    at: u64,
    from: Side,
    packet: Bytes,
}

/// One connection: `sender` has the data.
struct Connection {
    sender: Side,
    arrivals: Vec<Arrival>,
    now: u64,
}

impl Connection {
    fn arrive(
        &mut self,
        after: u64,
        from: Side,
        mut header: TcpHeader,
        payload: usize,
    ) -> Outcome<()> {
        let (fixed, mobile): (SocketAddr, SocketAddr) =
            (([192, 0, 2, 1], 443).into(), ([10, 0, 0, 9], 50_000).into());
        let (source, destination) = match from {
            Side::Fixed => (fixed, mobile),
            Side::Mobile => (mobile, fixed),
        };
        let (SocketAddr::V4(source), SocketAddr::V4(destination)) = (source, destination) else {
            return Err("addresses of IPv4".into());
        };
        (header.source_port, header.destination_port) = (source.port(), destination.port());
        let ip = PacketBuilder::ipv4(source.ip().octets(), destination.ip().octets(), 64);
        let mut packet = Vec::new();
        ip.tcp_header(header)
            .write(&mut packet, &vec![7; payload])?;
        self.arrivals.push(Arrival {
            at: self.now + after,
            from,
            packet: packet.into(),
        });
        Ok(())
    }

    /// A header with timestamps, in milliseconds.
    fn header(&self, sequence: u32, acknowledged: u32, sack: &[(u32, u32)]) -> Outcome<TcpHeader> {
        let mut header = TcpHeader::new(0, 0, sequence, 1000);
        (header.ack, header.acknowledgment_number) = (true, acknowledged);
        let time = (self.now / 1_000_000) as u32;
        let mut options = vec![
            TcpOptionElement::Noop,
            TcpOptionElement::Noop,
            TcpOptionElement::Timestamp(time, time),
        ];
        if let [first, ..] = sack {
            options.extend([TcpOptionElement::Noop, TcpOptionElement::Noop]);
            options.push(TcpOptionElement::SelectiveAcknowledgement(
                *first, [None; 3],
            ));
        }
        header.set_options(&options)?;
        Ok(header)
    }

    fn open(&mut self) -> Outcome<()> {
        let (sender, receiver) = (self.sender, self.sender.other());
        let mut syn = self.header(0, 0, &[])?;
        let options = [
            TcpOptionElement::SelectiveAcknowledgementPermitted,
            TcpOptionElement::Timestamp(0, 0),
        ];
        syn.set_options(&options)?;
        (syn.syn, syn.ack) = (true, false);
        self.arrive(0, receiver, syn.clone(), 0)?;
        self.now += 2_000_000;
        (syn.ack, syn.acknowledgment_number) = (true, 1);
        self.arrive(0, sender, syn, 0)?;
        self.now += 2_000_000;
        let header = self.header(1, 1, &[])?;
        self.arrive(0, receiver, header, 0)
    }

    /// Messages in pairs, the second one with the first in flight, and an acknowledgement of both, which reports a copy.
    fn message(&mut self, number: u32, has_copies: bool) -> Outcome<()> {
        self.now += INTERVAL_NS;
        let start = |number: u32| 1 + number * THIN_PAYLOAD;
        let header = self.header(start(number), 1, &[])?;
        self.arrive(0, self.sender, header, THIN_PAYLOAD as usize)?;
        let answer = match has_copies {
            true if number.is_multiple_of(2) => return Ok(()),
            true => self.header(1, start(number + 1), &[(start(number - 1), start(number))])?,
            false => self.header(1, start(number + 1), &[])?,
        };
        self.arrive(INTERVAL_NS / 4, self.sender.other(), answer, 0)
    }

    /// A segment, and what the receiver says to it: of every second one, and of each behind a loss.
    fn segment(&mut self, number: u32, has_losses: bool) -> Outcome<()> {
        self.now += INTERVAL_NS;
        let start = |number: u32| 1 + number * PAYLOAD;
        let behind = number % LOST_EVERY;
        let lost = number - behind;
        let is_missing = has_losses && number >= LOST_EVERY && behind < REPAIRED_AFTER;
        // What comes over the hop comes without what is lost there.
        let (late, rtt) = match self.sender {
            Side::Fixed => (0, RTT_NS),
            Side::Mobile => (RTT_NS, 0),
        };
        let late = if is_missing && behind == 0 { late } else { 0 };
        let header = self.header(start(number), 1, &[])?;
        self.arrive(late, self.sender, header, PAYLOAD as usize)?;
        let answer = match is_missing {
            true if behind == 0 => return Ok(()),
            true => {
                let block = (start(lost + 1), start(number + 1));
                self.header(1, start(lost), &[block])?
            }
            false if number.is_multiple_of(2) => return Ok(()),
            false => self.header(1, start(number + 1), &[])?,
        };
        self.arrive(rtt, self.sender.other(), answer, 0)
    }
}

fn main() -> Outcome<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [scene, segments, passing] = &args[..] else {
        return Err("write: SCENE SEGMENTS PASSING".into());
    };
    let (segments, passing): (u32, u32) = (segments.parse()?, passing.parse()?);
    let rdb = Stage::Rdb(Rdb {
        mode: Mode::Paper,
        ..Rdb::default()
    });
    let (config, sender) = match scene.as_str() {
        "clean" | "lossy" => (Config::default(), Side::Fixed),
        "queue" => {
            let radio = Some(Radio {
                bits_per_second: RATE,
                queue_bytes: QUEUE_BYTES,
            });
            let config = Config {
                radio,
                ..Config::default()
            };
            (config, Side::Fixed)
        }
        "upload" => {
            let config = Config {
                reports: true,
                ..Config::default()
            };
            (config, Side::Mobile)
        }
        "stages" => (
            every_stage(Stage::default(), RATE, QUEUE_BYTES),
            Side::Fixed,
        ),
        "stages-upload" => (
            every_stage(Stage::default(), RATE, QUEUE_BYTES),
            Side::Mobile,
        ),
        "thin" | "copies" => {
            let config = Config {
                stage: rdb,
                ..Config::default()
            };
            (config, Side::Fixed)
        }
        "stages-thin" => (every_stage(rdb, RATE, QUEUE_BYTES), Side::Fixed),
        _ => return Err(format!("there is no scene {scene}").into()),
    };
    let mut connection = Connection {
        sender,
        arrivals: Vec::new(),
        now: 1_000_000,
    };
    connection.open()?;
    let mut until = 0;
    for number in 0..segments {
        match scene.as_str() {
            "thin" | "copies" | "stages-thin" => connection.message(number, scene != "thin")?,
            _ => connection.segment(number, scene != "clean")?,
        }
        if number < passing {
            until = connection.now;
        }
    }
    connection.arrivals.sort_by_key(|arrival| arrival.at);
    let passes = connection
        .arrivals
        .partition_point(|arrival| arrival.at <= until);
    let mut agent = Agent::new(config);
    let mut sent = 0;
    for arrival in connection.arrivals.drain(..).take(passes) {
        while let Some(at) = agent.next_timeout().filter(|at| *at <= arrival.at) {
            agent.handle_timeout(at);
        }
        agent.handle_packet(arrival.at, arrival.from, arrival.packet);
        while agent.poll_output().is_some() {
            sent += 1;
        }
        while agent.poll_report().is_some() {}
    }
    let counts = agent.counts();
    println!(
        "{passes} packets in, {sent} out, {} repaired, {} reported, {} with copies",
        counts.repaired, counts.attributed, counts.bundled
    );
    Ok(())
}
