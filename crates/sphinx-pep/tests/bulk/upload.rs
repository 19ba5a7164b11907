//! An upload with an agent on either side of the hop: what it is worth, and whether what the base station reports
//! is what the hop has lost.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use sphinx_link::{Depth, Event, IpPacket, Link, LinkConfig, Loss, Rate, Record};
use sphinx_pep::{Config, Counts, Place, Side, eln::LossReport};
use sphinx_sim::linux::{Ack, Receiver, Sender};

use super::{
    END, ISN, MS, PAYLOAD, Time, WARM, Watched, answer_packet, common::Segment, data_packet, ends,
    link, read_answer, receive,
};

struct Case {
    agents: bool,
    bbr: bool,
    /// Rate of the hop, in bit/s.
    rate: u64,
    /// Length of the hop's queue, as time.
    queue: Time,
    /// One-way delay of the wired part.
    wired: Time,
    loss: f64,
    /// Share of the reports that are lost themselves.
    deaf: u64,
    seed: u64,
}

impl Default for Case {
    fn default() -> Case {
        Case {
            agents: true,
            bbr: false,
            rate: 20_000_000,
            queue: 50 * MS,
            wired: 48 * MS,
            loss: 0.01,
            deaf: 0,
            seed: 1,
        }
    }
}

#[derive(Debug)]
struct Ended {
    mbit: f64,
    sender: Sender,
    mobile: Counts,
    base: Counts,
    /// First bytes of the segments that were reported, that the hop lost, that its queue dropped.
    reported: BTreeSet<u32>,
    lost: BTreeSet<u32>,
    dropped: BTreeSet<u32>,
}

fn watched(place: Place) -> Watched {
    Watched::new(Config {
        place,
        reports: true,
        ..Config::default()
    })
}

/// The handshake: 4 ms over the hop.
fn open(mobile: &mut Watched, base: &mut Watched, wired: Time) -> Time {
    let [fixed_end, mobile_end] = ends();
    let syn = Segment {
        syn: true,
        sack_permitted: true,
        sequence: ISN,
        window: 60_000,
        timestamps: Some((1, 0)),
        ..Segment::default()
    };
    let answer = Segment {
        ack: Some(ISN.wrapping_add(1)),
        sequence: 77,
        ..syn.clone()
    };
    let third = Segment {
        syn: false,
        sack_permitted: false,
        sequence: ISN.wrapping_add(1),
        ack: Some(78),
        ..syn.clone()
    };
    let answered = 3 * MS + 2 * wired;
    let opened = answered + 2 * MS;
    for (from, packet, at_base, at_mobile) in [
        (Side::Mobile, syn.packet(mobile_end, fixed_end), 3 * MS, MS),
        (
            Side::Fixed,
            answer.packet(fixed_end, mobile_end),
            answered,
            opened,
        ),
        (
            Side::Mobile,
            third.packet(mobile_end, fixed_end),
            opened + 2 * MS,
            opened,
        ),
    ] {
        base.put(at_base, from, packet.clone());
        mobile.put(at_mobile, from, packet);
        while base.take().is_some() || mobile.take().is_some() {}
    }
    opened + 2 * MS
}

fn run(case: &Case) -> Ended {
    let hop = LinkConfig {
        rate: Rate::Constant(case.rate),
        queue: Depth::Time(Duration::from_nanos(case.queue)),
        loss: Loss::Bernoulli(case.loss),
        records: 100_000,
        ..link(2 * MS, case.seed)
    };
    let (there, back) = (link(case.wired, 1), link(case.wired, 2));
    // Mobile to base, base to fixed, fixed to base, base to mobile.
    let links = [hop, there, back, link(2 * MS, 3)];
    let mut links = links.map(|config| Link::new(config).expect("a link"));
    let mut agents = case
        .agents
        .then(|| (watched(Place::Mobile), watched(Place::Base)));
    let mut now = match &mut agents {
        Some((mobile, base)) => open(mobile, base, case.wired),
        None => 7 * MS + 2 * case.wired,
    };
    let [fixed_end, mobile_end] = ends();
    let way = [mobile_end, fixed_end];
    let mut sender = match case.bbr {
        true => Sender::with_bbr(),
        false => Sender::default(),
    };
    let (start, mut receiver) = (now, Receiver::default());
    let mut reports: VecDeque<(Time, LossReport)> = VecDeque::new();
    let (mut warm, mut reported, mut count) = (0, BTreeSet::new(), 0_u64);
    while now < start + END {
        // The mobile host and its agent send.
        while let Some(number) = sender.poll(now) {
            let packet = data_packet(number, now, way);
            match &mut agents {
                Some((mobile, _)) => mobile.put(now, Side::Mobile, packet),
                None => links[0].enqueue(now, IpPacket(packet.to_vec())),
            }
        }
        while let Some((_, report)) = reports.pop_front_if(|(at, _)| *at <= now) {
            if let Some((mobile, _)) = &mut agents {
                mobile.agent.handle_report(now, &report);
            }
        }
        let mut answers = Vec::new();
        while let Some(delivery) = links[3].poll(now) {
            match &mut agents {
                Some((mobile, _)) => mobile.put(now, Side::Fixed, delivery.packet.0.into()),
                None => answers.push(delivery.packet),
            }
        }
        if let Some((mobile, base)) = &mut agents {
            mobile.agent.handle_timeout(now);
            while let Some(output) = mobile.take() {
                let packet = IpPacket(output.packet.to_vec());
                match output.to {
                    Side::Fixed => links[0].enqueue(now, packet),
                    Side::Mobile => answers.push(packet),
                }
            }
            // Packets arrive at the base station.
            for (from, link) in [(Side::Mobile, 0), (Side::Fixed, 2)] {
                while let Some(delivery) = links[link].poll(now) {
                    base.put(now, from, delivery.packet.0.into());
                }
            }
            base.agent.handle_timeout(now);
            while let Some(output) = base.take() {
                let link = if output.to == Side::Fixed { 1 } else { 3 };
                links[link].enqueue(now, IpPacket(output.packet.to_vec()));
            }
            while let Some(report) = base.agent.poll_report() {
                for &(from, to) in &report.ranges {
                    let segments = to.wrapping_sub(from) / PAYLOAD;
                    reported.extend((0..segments).map(|n| from.wrapping_add(n * PAYLOAD)));
                }
                count += 1;
                if case.deaf == 0 || count % case.deaf != 0 {
                    reports.push_back((now + 2 * MS, report));
                }
            }
        } else {
            for (from, to) in [(0, 1), (2, 3)] {
                while let Some(delivery) = links[from].poll(now) {
                    links[to].enqueue(now, delivery.packet);
                }
            }
        }
        for packet in answers {
            let segment = Segment::read(&packet.0).expect("a segment");
            sender.acknowledge(now, &read_answer(&segment, &sender));
        }
        // The fixed host receives and answers.
        let mut answers: Vec<Ack> = receiver.timeout(now).into_iter().collect();
        while let Some(delivery) = links[1].poll(now) {
            answers.extend(receive(&mut receiver, now, &delivery.packet));
        }
        for answer in answers {
            let packet = answer_packet(&answer, now, way);
            links[2].enqueue(now, IpPacket(packet.to_vec()));
        }
        if now <= start + WARM {
            warm = receiver.expected;
        }
        let events = links.iter().filter_map(Link::next_event);
        let timers = sender
            .next_event(now)
            .into_iter()
            .chain(receiver.next_event());
        let agents = agents
            .iter()
            .flat_map(|(mobile, base)| [mobile.agent.next_timeout(), base.agent.next_timeout()]);
        now = events
            .chain(timers)
            .chain(agents.flatten())
            .chain(reports.front().map(|it| it.0))
            .min()
            .expect("an event")
            .max(now);
        sender.timeout(now);
    }
    let mut records: Vec<Record> = Vec::new();
    links[0].take_records(&mut records);
    // A hole is what the first sending of a segment has left. That one sent again is lost too leaves none.
    let mut first = BTreeMap::new();
    for record in &records {
        if let Some(sequence) = record.sequence {
            first.entry(sequence).or_insert(record.event);
        }
    }
    let of = |event| {
        let those = first.iter().filter(|it| *it.1 == event);
        those.map(|it| *it.0).collect()
    };
    let bits = (receiver.expected - warm) * u64::from(PAYLOAD) * 8;
    let counts = agents.map(|(mobile, base)| (mobile.agent.counts(), base.agent.counts()));
    let (mobile, base) = counts.unwrap_or_default();
    Ended {
        mbit: bits as f64 / (END - WARM) as f64 * 1e3,
        sender,
        mobile,
        base,
        reported,
        lost: of(Event::DroppedLoss),
        dropped: of(Event::DroppedQueue),
    }
}

fn show(name: &str, ended: &Ended) {
    let sender = &ended.sender;
    println!(
        "{name:<12} {:5.1} Mbit/s, {} recoveries ({} undone), {} sent again, {} time-outs | reported {}, \
         lost {}, dropped {} | {} repaired, {} spurious, {} held, {:?} | {} attributed, {} not",
        ended.mbit,
        sender.recoveries,
        sender.undone,
        sender.sent_again,
        sender.timeouts,
        ended.reported.len(),
        ended.lost.len(),
        ended.dropped.len(),
        ended.mobile.repaired,
        ended.mobile.spurious,
        ended.mobile.held,
        ended.mobile.released,
        ended.base.attributed,
        ended.base.unattributed,
    );
}

#[test]
fn a_cubic_upload_is_several_times_faster_and_the_reports_are_right() {
    let (mut gains, mut reported, mut lost, mut right) = (Vec::new(), 0, 0, 0);
    for seed in 1..=5 {
        let case = |agents| Case {
            agents,
            seed,
            ..Case::default()
        };
        let (none, with) = (run(&case(false)), run(&case(true)));
        show("none", &none);
        show("eln", &with);
        gains.push(with.mbit / none.mbit);
        reported += with.reported.len();
        lost += with.lost.len();
        right += with.reported.intersection(&with.lost).count();
    }
    gains.sort_by(f64::total_cmp);
    let gain = gains[gains.len() / 2];
    let (precision, recall) = (right as f64 / reported as f64, right as f64 / lost as f64);
    println!("gain {gain:.1}, precision {precision:.4}, recall {recall:.4}");
    assert!(gain >= 5.0, "{gain}");
    assert!(precision >= 0.99 && recall >= 0.99, "{precision}, {recall}");
}

#[test]
fn reports_that_are_lost_are_repeated() {
    let case = |agents| Case {
        agents,
        deaf: 3,
        ..Case::default()
    };
    let (none, deaf) = (run(&case(false)), run(&case(true)));
    show("deaf", &deaf);
    assert!(deaf.mbit >= 5.0 * none.mbit, "{} {}", deaf.mbit, none.mbit);
}

#[test]
fn nothing_is_reported_where_only_a_queue_drops() {
    let ended = run(&Case {
        loss: 0.0,
        ..Case::default()
    });
    show("no loss", &ended);
    let wrong = ended.reported.len();
    let most = ended.dropped.len() / 50;
    assert!(wrong <= most, "{wrong} of {}", ended.dropped.len());
}

/// Losses do not slow down BBR: with agents it has to be as fast as without.
#[test]
fn a_bbr_upload_is_no_slower() {
    for (name, rate, queue, wired, loss, least) in [
        ("50 ms, 32 KiB", 2_000_000, 128 * MS, 23 * MS, 0.042, 0.98),
        ("100 ms, 32 KiB", 2_000_000, 128 * MS, 48 * MS, 0.042, 0.98),
        ("100 ms, 8 KiB", 2_000_000, 128 * MS, 48 * MS, 0.16, 0.98),
        ("20 Mbit/s, 1 %", 20_000_000, 50 * MS, 48 * MS, 0.01, 0.97),
    ] {
        let mut shares = Vec::new();
        for seed in 1..=5 {
            let [none, with] = [false, true].map(|agents| {
                run(&Case {
                    agents,
                    bbr: true,
                    rate,
                    queue,
                    wired,
                    loss,
                    seed,
                    ..Case::default()
                })
            });
            println!("{name}, seed {seed}");
            show("none", &none);
            show("eln", &with);
            shares.push(with.mbit / none.mbit);
        }
        shares.sort_by(f64::total_cmp);
        println!("{name}: {shares:.3?}");
        assert!(shares[shares.len() / 2] >= least, "{name}: {shares:.3?}");
    }
}
