//! Uploads of CUBIC whose windows an agent on the receiver's machine lowers: what the upload keeps, and what its packets wait.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use sphinx_link::{Aqm, CoDel, Depth, IpPacket, Link, LinkConfig, Rate, RateTrace};
use sphinx_pep::{Config, Counts, Side, Stage, rsfc::Rsfc};
use sphinx_sim::linux::{Ack, Receiver, Sender};

use super::{ISN, MS, PAYLOAD, Time, Watched, common::Segment, number, read_answer};

const SECOND: Time = 1000 * MS;
/// One-way delay of the path.
const WAY: Time = 35 * MS;
/// Window scale of a receiver with up to 32 MB of buffer.
const SCALE: u8 = 10;
/// The receiver's window, unscaled.
const WINDOW: u16 = 6_250;
/// The first ports of the hosts that send, and of those that fetch.
const UPLOADS: u16 = 40_000;
const DOWNLOADS: u16 = 50_000;
/// Segments of a download of one megabyte.
const DOWNLOAD: u64 = 1_000_000 / PAYLOAD as u64;
/// Rate downwards in bit/s, where there are downloads.
const RATE_DOWN: u64 = 7_200_000;

#[derive(Clone)]
struct Case {
    rsfc: Option<Rsfc>,
    uploads: usize,
    /// From the beginning of one to that of the next.
    apart: Time,
    rate: Rate,
    queue: Depth,
    aqm: Aqm,
    /// From then on, the way up takes so much longer.
    step: Option<(Time, Time)>,
    /// A megabyte goes down every so often, over a link with a queue of its own, which makes the answers to the uploads wait.
    downloads: Option<Time>,
    /// The agent is late every so often, by 20 ms.
    late: Option<Time>,
    end: Time,
}

impl Default for Case {
    fn default() -> Case {
        Case {
            rsfc: Some(Rsfc::default()),
            uploads: 1,
            apart: 0,
            rate: Rate::Constant(2_000_000),
            queue: Depth::Bytes(1_000_000),
            aqm: Aqm::None,
            step: None,
            downloads: None,
            late: None,
            end: 60 * SECOND,
        }
    }
}

#[derive(Debug)]
struct Ended {
    /// When each segment arrived, of which upload it was, and what it took on its way up.
    arrived: Vec<(Time, usize, Time)>,
    /// Segments that came in order: when, of which upload, and how many.
    whole: Vec<(Time, usize, u64)>,
    counts: Counts,
}

impl Ended {
    /// Payload in Mbit/s, of an upload or of all.
    fn rate(&self, of: Option<usize>, from: Time, to: Time) -> f64 {
        let these = self
            .whole
            .iter()
            .filter(|it| it.0 >= from && it.0 < to && of.is_none_or(|of| of == it.1));
        let segments: u64 = these.map(|it| it.2).sum();
        (segments * u64::from(PAYLOAD) * 8) as f64 * 1e3 / (to - from) as f64
    }

    /// The round trip that so many percent of the segments after a time had at most, in milliseconds.
    fn rtt(&self, percent: usize, from: Time) -> f64 {
        let mut took: Vec<Time> = self
            .arrived
            .iter()
            .filter(|it| it.0 >= from)
            .map(|it| it.2)
            .collect();
        took.sort_unstable();
        took[took.len() * percent / 100] as f64 / 1e6 + WAY as f64 / 1e6
    }
}

fn ends(of: usize) -> [SocketAddr; 2] {
    let port = UPLOADS + of as u16;
    [([192, 0, 2, 1], 443).into(), ([10, 0, 0, 9], port).into()]
}

/// A download beside the uploads, over a new connection each time. The agent has nothing to do with it.
struct Download {
    sender: Sender,
    receiver: Receiver,
    port: u16,
    /// When the next download begins.
    next: Time,
}

impl Download {
    fn new(port: u16, next: Time) -> Download {
        let mut sender = Sender::default();
        sender.written = DOWNLOAD;
        Download {
            sender,
            receiver: Receiver::default(),
            port,
            next,
        }
    }

    fn ends(&self) -> [SocketAddr; 2] {
        [
            ([192, 0, 2, 1], 80).into(),
            ([10, 0, 0, 9], self.port).into(),
        ]
    }

    fn is_complete(&self) -> bool {
        self.sender.oldest() == DOWNLOAD
    }

    fn next_event(&self, now: Time) -> Option<Time> {
        match self.is_complete() {
            true => Some(self.next.max(now)),
            false => (self.sender.next_event(now).into_iter())
                .chain(self.receiver.next_event())
                .min(),
        }
    }
}

pub(crate) fn data(number: u64, now: Time, echo: u32) -> Segment {
    Segment {
        sequence: sequence(number),
        ack: Some(78),
        window: 1000,
        timestamps: Some(((now / MS) as u32, echo)),
        payload: vec![number as u8; PAYLOAD as usize],
        ..Segment::default()
    }
}

pub(crate) fn answer(answer: &Ack, now: Time) -> Segment {
    let blocks = answer.blocks.iter();
    Segment {
        sequence: 78,
        ack: Some(sequence(answer.next)),
        window: WINDOW,
        sack: blocks.map(|it| (sequence(it.0), sequence(it.1))).collect(),
        timestamps: Some(((now / MS) as u32, answer.echo as u32)),
        ..Segment::default()
    }
}

/// The first byte of a segment.
fn sequence(number: u64) -> u32 {
    ISN.wrapping_add(1)
        .wrapping_add((number as u32).wrapping_mul(PAYLOAD))
}

/// What an agent makes of a packet, which goes on at once.
fn pass(agent: &mut Watched, now: Time, from: Side, packet: Bytes) -> Bytes {
    agent.put(now, from, packet);
    agent.take().expect("what came").packet
}

fn open(agent: &mut Watched, now: Time, of: usize) {
    let [server, client] = ends(of);
    let syn = Segment {
        syn: true,
        sack_permitted: true,
        sequence: ISN,
        window: 65_535,
        scale: Some(SCALE),
        // Timestamps take 12 bytes of each segment.
        mss: Some(PAYLOAD as u16 + 12),
        timestamps: Some(((now / MS) as u32, 0)),
        ..Segment::default()
    };
    let answer = Segment {
        ack: Some(ISN.wrapping_add(1)),
        sequence: 77,
        timestamps: Some((((now + WAY) / MS) as u32, (now / MS) as u32)),
        ..syn.clone()
    };
    let (syn, answer) = (syn.packet(client, server), answer.packet(server, client));
    pass(agent, now + WAY, Side::Mobile, syn);
    pass(agent, now + WAY, Side::Fixed, answer);
}

fn run(case: &Case) -> Ended {
    let up = LinkConfig {
        rate: case.rate.clone(),
        queue: case.queue,
        aqm: case.aqm,
        delay: Duration::from_nanos(WAY),
        ..LinkConfig::default()
    };
    let longer = case.step.map(|(at, more)| {
        let config = LinkConfig {
            delay: up.delay + Duration::from_nanos(more),
            ..up.clone()
        };
        (at, config)
    });
    let mut longer = longer;
    let mut up = Link::new(up).expect("a link");
    let back = LinkConfig {
        delay: Duration::from_nanos(WAY),
        queue: Depth::Packets(100_000),
        ..LinkConfig::default()
    };
    let back = match case.downloads {
        None => back,
        Some(_) => LinkConfig {
            rate: Rate::Constant(RATE_DOWN),
            queue: Depth::Time(Duration::from_millis(100)),
            ..back
        },
    };
    let mut back = Link::new(back).expect("a link");
    let mut download = case.downloads.map(|every| Download::new(DOWNLOADS, every));
    let mut agent = Watched::new(Config {
        stage: Stage::Pass,
        rsfc: case.rsfc,
        ..Config::default()
    });
    // What the senders echo.
    let mut echoes = vec![0; case.uploads];
    let mut hosts: Vec<(Sender, Receiver)> = (0..case.uploads)
        .map(|_| (Sender::default(), Receiver::default()))
        .collect();
    for (sender, _) in &mut hosts {
        sender.edge = 0;
    }
    let mut opened = 0;
    let of = |port: u16| usize::from(port - UPLOADS);
    let mut ended = Ended {
        arrived: Vec::new(),
        whole: Vec::new(),
        counts: Counts::default(),
    };
    let mut now = 2 * WAY;
    let mut late = case.late;
    while now < case.end {
        if let (Some(at), Some(every)) = (&mut late, case.late)
            && *at <= now
        {
            agent.agent.handle_lag(now, 20 * MS);
            *at += every;
        }
        while opened < case.uploads && opened as u64 * case.apart + 2 * WAY <= now {
            open(&mut agent, now - 2 * WAY, opened);
            hosts[opened].0.edge = u64::from(u16::MAX) / u64::from(PAYLOAD);
            opened += 1;
        }
        if let Some((_, config)) = longer.take_if(|(at, _)| *at <= now) {
            up.reconfigure(now, config).expect("a link");
        }
        for (of, (sender, _)) in hosts.iter_mut().enumerate() {
            let [server, client] = ends(of);
            while let Some(number) = sender.poll(now) {
                let segment = data(number, now, echoes[of]);
                up.enqueue(now, IpPacket(segment.packet(client, server).to_vec()));
            }
        }
        if let Some(it) = &mut download {
            if it.is_complete() && it.next <= now {
                let every = case.downloads.unwrap_or_default();
                *it = Download::new(it.port + 1, now + every);
            }
            let [server, client] = it.ends();
            while let Some(number) = it.sender.poll(now) {
                let segment = data(number, now, 1);
                back.enqueue(now, IpPacket(segment.packet(server, client).to_vec()));
            }
        }
        let mut answers = Vec::new();
        while let Some(delivery) = up.poll(now) {
            let port = u16::from_be_bytes([delivery.packet.0[20], delivery.packet.0[21]]);
            if port >= DOWNLOADS {
                let segment = Segment::read(&delivery.packet.0).expect("a segment");
                if let Some(it) = download.as_mut().filter(|it| it.port == port) {
                    let ack = read_answer(&segment, &it.sender);
                    it.sender.acknowledge(now, &ack);
                }
                continue;
            }
            let packet = pass(&mut agent, now, Side::Mobile, delivery.packet.0.into());
            let segment = Segment::read(&packet).expect("a segment");
            let stamp = segment.timestamps.expect("one").0;
            let took = now - u64::from(stamp) * MS;
            ended.arrived.push((now, of(port), took));
            let receiver = &mut hosts[of(port)].1;
            let before = receiver.expected;
            let number = number(segment.sequence, before);
            let answer = receiver.receive(now, number, u64::from(stamp));
            ended
                .whole
                .push((now, of(port), receiver.expected - before));
            answers.extend(answer.map(|answer| (of(port), answer)));
        }
        for (of, (_, receiver)) in hosts.iter_mut().enumerate() {
            answers.extend(receiver.timeout(now).map(|answer| (of, answer)));
        }
        for (of, said) in answers {
            let [server, client] = ends(of);
            let packet = answer(&said, now).packet(server, client);
            let packet = pass(&mut agent, now, Side::Fixed, packet);
            back.enqueue(now, IpPacket(packet.to_vec()));
        }
        let mut fetched = Vec::new();
        while let Some(delivery) = back.poll(now) {
            let port = u16::from_be_bytes([delivery.packet.0[22], delivery.packet.0[23]]);
            let segment = Segment::read(&delivery.packet.0).expect("a segment");
            if port >= DOWNLOADS {
                if let Some(it) = download.as_mut().filter(|it| it.port == port) {
                    let number = number(segment.sequence, it.receiver.expected);
                    let stamp = u64::from(segment.timestamps.expect("one").0);
                    fetched.extend(it.receiver.receive(now, number, stamp));
                }
                continue;
            }
            let sender = &mut hosts[of(port)].0;
            let ack = read_answer(&segment, sender);
            let room = (u64::from(segment.window) << SCALE) / u64::from(PAYLOAD);
            sender.edge = sender.edge.max(ack.next + room);
            echoes[of(port)] = segment.timestamps.expect("one").0;
            sender.acknowledge(now, &ack);
        }
        if let Some(it) = &mut download {
            fetched.extend(it.receiver.timeout(now));
            let [server, client] = it.ends();
            for said in fetched {
                let segment = answer(&said, now);
                up.enqueue(now, IpPacket(segment.packet(client, server).to_vec()));
            }
        }
        let timers = hosts.iter().flat_map(|(sender, receiver)| {
            (sender.next_event(now).into_iter()).chain(receiver.next_event())
        });
        now = timers
            .chain(up.next_event())
            .chain(back.next_event())
            .chain(download.as_ref().and_then(|it| it.next_event(now)))
            .chain(longer.as_ref().map(|it| it.0))
            .chain(late)
            .chain((opened < case.uploads).then(|| opened as u64 * case.apart + 2 * WAY))
            .min()
            .expect("an event")
            .max(now);
        let fetching = download.iter_mut().map(|it| &mut it.sender);
        for sender in hosts.iter_mut().map(|it| &mut it.0).chain(fetching) {
            sender.timeout(now);
        }
    }
    ended.counts = agent.agent.counts();
    ended
}

/// What an upload keeps, of that without the agent, and the round trips of its packets, in milliseconds: medians, and what 95 % have at most, without and with it.
fn compared(name: &str, case: &Case) -> (f64, [f64; 2], [f64; 2]) {
    let from = 10 * SECOND;
    let [none, some] = [None, case.rsfc].map(|rsfc| {
        run(&Case {
            rsfc,
            ..case.clone()
        })
    });
    let rates = [&none, &some].map(|it| it.rate(None, 0, case.end));
    let [medians, most] = [50, 95].map(|percent| [&none, &some].map(|it| it.rtt(percent, from)));
    println!(
        "{name}: {rates:.3?} Mbit/s, round trips {medians:.0?} ms, 95 % {most:.0?} ms, {:?}",
        some.counts.upload_states
    );
    (rates[1] / rates[0], medians, most)
}

/// The base round trip is 70 ms.
#[test]
fn an_upload_behind_a_deep_buffer_keeps_its_rate_and_does_not_wait() {
    let (kept, medians, most) = compared("1 MB", &Case::default());
    assert!(kept >= 0.97, "{kept}");
    assert!(medians[0] > 2000.0, "{}", medians[0]);
    assert!(
        medians[1] <= 140.0 && most[1] <= 210.0,
        "{medians:?} {most:?}"
    );
}

#[test]
fn an_upload_that_waits_little_loses_nothing() {
    let short = Case {
        queue: Depth::Bytes(64 << 10),
        ..Case::default()
    };
    let managed = Case {
        aqm: Aqm::CoDel(CoDel::default()),
        ..Case::default()
    };
    for (name, case) in [("64 KB", short), ("CoDel", managed)] {
        let (kept, ..) = compared(name, &case);
        assert!(kept >= 0.97, "{name}: {kept}");
    }
}

/// Answers wait behind each download for up to 100 ms, while the upload's own packets do not.
#[test]
fn an_upload_beside_downloads() {
    for (name, queue) in [
        ("1 MB, downloads", 1_000_000),
        ("64 KB, downloads", 64 << 10),
    ] {
        let case = Case {
            queue: Depth::Bytes(queue),
            downloads: Some(10 * SECOND),
            ..Case::default()
        };
        let (kept, medians, most) = compared(name, &case);
        assert!(kept >= 0.97, "{name}: {kept}");
        assert!(
            medians[1] <= 140.0 && most[1] <= 210.0,
            "{name}: {medians:?} {most:?}"
        );
    }
}

#[test]
fn an_upload_over_a_cellular_link() {
    let trace = include_str!("../../../../docs/examples/lte.up");
    let (kept, _, most) = compared(
        "LTE",
        &Case {
            rate: Rate::Trace(RateTrace::parse(trace).expect("a trace")),
            ..Case::default()
        },
    );
    assert!(kept >= 0.85 && most[1] <= 0.5 * most[0], "{kept} {most:?}");
}

/// Five seconds after the way up has become longer, the rate is what it was.
#[test]
fn an_upload_whose_way_becomes_longer() {
    let at = 20 * SECOND;
    let rate = |more| {
        let ended = run(&Case {
            step: Some((at, more)),
            ..Case::default()
        });
        ended.rate(None, at + 5 * SECOND, 60 * SECOND)
    };
    let before = rate(0);
    for more in [20, 60, 200] {
        let after = rate(more * MS);
        println!("{more} ms longer: {after:.3} of {before:.3} Mbit/s");
        assert!(after >= 0.9 * before, "{more} ms: {after} of {before}");
    }
}

/// What it may send, a sender is told for good: an agent that let windows open when it is late would have a full queue for as long as that lasts.
#[test]
fn an_agent_that_is_late_now_and_then() {
    for downloads in [None, Some(10 * SECOND)] {
        let case = Case {
            downloads,
            late: Some(7 * SECOND),
            ..Case::default()
        };
        let (kept, medians, most) = compared("late", &case);
        assert!(kept >= 0.97, "{kept}");
        assert!(
            medians[1] <= 140.0 && most[1] <= 210.0,
            "{medians:?} {most:?}"
        );
    }
}

/// However much later the second one begins: behind the queue of the first one, which is all that its own packets have ever seen.
#[test]
fn two_uploads_of_one_host_share_it_whenever_they_begin() {
    for apart in [0, 247 * MS, 500 * MS, 10 * SECOND] {
        let ended = run(&Case {
            uploads: 2,
            apart,
            ..Case::default()
        });
        let from = 20 * SECOND;
        let [first, second] = [0, 1].map(|of| ended.rate(Some(of), from, 60 * SECOND));
        let sum = first + second;
        let jain = sum.powi(2) / (2.0 * (first.powi(2) + second.powi(2)));
        let [median, most] = [50, 95].map(|percent| ended.rtt(percent, from));
        println!(
            "{} ms apart: {first:.3} and {second:.3} Mbit/s, Jain {jain:.3}, round trip {median:.0} ms, 95 % {most:.0} ms",
            apart / MS
        );
        assert!(jain >= 0.95 && sum >= 0.9 * 1.928, "{apart}: {jain} {sum}");
        assert!(median <= 140.0 && most <= 210.0, "{apart}: {median} {most}");
    }
}
