//! Random links, faults, applications and settings. A seed is the whole scenario.
//!
//! ```text
//! SPHINX_SIM_FIRST=4000 SPHINX_SIM_SEEDS=2000 cargo test -p sphinx-proto --release --test sim random
//! SPHINX_SIM_SEED=17 cargo test -p sphinx-proto --release --test sim random
//! ```
//!
//! `SPHINX_SIM_DIGESTS=FILE` writes a digest of all packets of each seed into a file. A change of shape alone
//! gives the same file as the build before it.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::panic::catch_unwind;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sphinx_driver::SendAs;
use sphinx_fec::CodeId;
use sphinx_link::{
    Aqm, Blackout, Corruption, Depth, GilbertElliott, Jitter, LinkConfig, Loss, Order, Policer,
    Rate, RateStep, Reorder,
};
use sphinx_proto::cc::CcKind;
use sphinx_proto::wire::FlowKind;
use sphinx_proto::wire::{OVERHEAD, block_symbols_max};
use sphinx_proto::{EPSILON, EcnMode, Icm, Nanos, PathMemory, Profile, RepairMode, Urgency};
use sphinx_sim::{
    End, MS, Messages, Pair, Plain, Plan, ReadOrder, Reader, Rng, SEC, Say, Scenario, Ways, Write,
};

use crate::codes::CODES;
use crate::departures::Departures;

/// Bytes of a block that are not data, at most, padding apart.
const SEGMENT_HEADER_MAX: u64 = 12;
/// Seeds of an ordinary test run.
const SEEDS: u64 = 200;

fn micros(rng: &mut Rng, low: u64, high: u64) -> Duration {
    Duration::from_micros(rng.within(low, high))
}

fn random_loss(rng: &mut Rng) -> Loss {
    let p = rng.pick(&[0.001, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4, 0.6]);
    match rng.below(4) {
        0 => Loss::None,
        // A burst is counted in packets: when probes are all that is sent, a long one is silence for
        // longer than the idle timeout.
        1 if p > 0.1 => Loss::GilbertElliott(GilbertElliott::bursts(p, 2.0)),
        1 => Loss::GilbertElliott(GilbertElliott::bursts(p, 1.0 + rng.below(8) as f64)),
        2 => Loss::Packets((0..rng.below(30)).map(|_| rng.below(300)).collect()),
        _ => Loss::Bernoulli(p),
    }
}

fn random_link(rng: &mut Rng) -> LinkConfig {
    let mbit = rng.pick(&[1, 5, 20, 100, 300]);
    let bits_per_second = mbit * 1_000_000;
    let delay = micros(rng, 0, 60_000);
    let bdp = bits_per_second / 8 * (2 * delay.as_micros() as u64) / 1_000_000;
    let mut link = LinkConfig {
        seed: rng.word(),
        mtu: Some(rng.pick(&[1280, 1400, 1500, 1500, 1500, 9000])),
        rate: Rate::Constant(bits_per_second),
        queue: Depth::Bytes(rng.pick(&[bdp / 4, bdp, 4 * bdp]).max(20_000)),
        loss: random_loss(rng),
        delay,
        ..LinkConfig::default()
    };
    if rng.chance(0.1) {
        let step = |rng: &mut Rng, at_ms| RateStep {
            at: Duration::from_millis(at_ms),
            bits_per_second: bits_per_second * rng.within(0, 20) / 10,
        };
        let steps = vec![step(rng, 0), step(rng, 300), step(rng, 600)];
        if steps.iter().any(|step| step.bits_per_second > 0) {
            let repeat = Some(Duration::from_millis(900));
            link.rate = Rate::Steps { steps, repeat };
        }
    }
    if rng.chance(0.1) {
        link.policer = Some(Policer {
            bits_per_second: bits_per_second / 2,
            burst_bytes: 20_000,
        });
    }
    if rng.chance(0.2) {
        link.aqm = Aqm::mark_above(Depth::Packets(rng.within(3, 50)));
    }
    if rng.chance(0.15) {
        let start = Duration::from_millis(rng.below(1000));
        let end = start + micros(rng, 1, 4_000_000);
        link.blackouts = vec![Blackout { start, end }];
    }
    if rng.chance(0.2) {
        link.corruption = Corruption {
            probability: rng.pick(&[0.001, 0.02, 0.1]),
            bits: 1 + rng.below(9) as u32,
        };
    }
    if rng.chance(0.2) {
        link.duplication = rng.pick(&[0.01, 0.3, 1.0]);
    }
    if rng.chance(0.3) {
        link.jitter = Jitter {
            max: micros(rng, 0, 40_000),
            order: rng.pick(&[Order::Kept, Order::Free]),
        };
    }
    if rng.chance(0.3) {
        link.reorder = Reorder {
            probability: rng.pick(&[0.001, 0.05, 0.5]),
            hold: micros(rng, 1, 80_000),
        };
    }
    link
}

/// What one end's application does.
fn random_plan(rng: &mut Rng, budget: u64) -> Plan {
    let mut plan = Plan {
        reader: rng.pick(&[Reader::AnyOrder, Reader::InOrder, Reader::Slow(2_000_000)]),
        job_delay_max: rng.pick(&[0, 0, 100_000, 20 * MS]),
        ecn: match rng.chance(0.5) {
            true => EcnMode::Classic,
            false => EcnMode::Off,
        },
        ..Plan::default()
    };
    if rng.chance(0.2) {
        let symbol_len = rng.within(13, 1160);
        let n = rng.within(1, block_symbols_max(symbol_len as usize) as u64);
        plan.shape = Some((n as u16, symbol_len as u16));
    }
    let streams = rng.pick(&[0, 1, 1, 1, 3, 20]);
    for stream in 0..streams {
        let messages = rng.pick(&[1, 1, 2, 30]);
        let mut left = budget / streams;
        let mut at = rng.below(1000) * MS * rng.below(2);
        for message in 1..=messages {
            let len = match rng.below(4) {
                _ if message == messages => left,
                0 => 0,
                1 => rng.below(left.min(100) + 1),
                _ => rng.below(left + 1),
            };
            left -= len;
            plan.writes.push(Write {
                at,
                stream,
                len,
                end_of_stream: message == messages,
            });
            at += rng.below(200) * MS * rng.below(2);
        }
    }
    plan
}

/// Datagrams and live messages that one end's application sends.
fn random_says(rng: &mut Rng) -> Vec<Say> {
    let period = rng.pick(&[MS / 2, 5 * MS, 40 * MS]);
    let most = rng.pick(&[1, 300, 1200, 1200, 20_000, 65_507]);
    let count = rng.pick(&[0, 0, 0, 1, 40, 400]);
    let mut kinds = vec![None, Some(FlowKind::Ordered), Some(FlowKind::Live)];
    kinds.truncate(rng.within(1, 3) as usize);
    let (flows, life_max) = (rng.within(1, 4), rng.pick(&[5, 150, 2_000]));
    let begin = rng.below(1000) * MS;
    let say = |number| Say {
        at: begin + number * period,
        len: rng.within(0, most) as usize,
        send_as: SendAs {
            flow: rng.below(flows),
            kind: rng.pick(&kinds),
            urgency: Urgency::new(rng.below(8) as u8),
            life: rng.within(1, life_max) * MS,
            repair: rng.pick(&[
                RepairMode::None,
                RepairMode::InTime,
                RepairMode::InTime,
                RepairMode::Together,
            ]),
        },
    };
    (0..count).map(say).collect()
}

/// What one end was given of the datagrams of the other: each at most once, in order where that is promised, and each live message in time or the
/// news that it is missing.
fn check_heard(says: &[Say], from: &End<Plain>, to: &End<Plain>) {
    let heard = to.heard();
    let mut indices: Vec<usize> = heard.iter().filter_map(|heard| heard.index).collect();
    indices.sort_unstable();
    assert!(indices.is_sorted_by(|one, next| one < next), "twice");
    for flow in 0..4 {
        let of = |kind| {
            let heard = heard.iter();
            heard.filter(move |heard| (heard.kind, heard.flow) == (Some(kind), flow))
        };
        let ordered = of(FlowKind::Ordered).map(|heard| heard.number);
        assert!(ordered.is_sorted_by(|one, next| one < next), "out of order");
        let said = says.iter().map(|say| say.send_as);
        let said = said.filter(|say| (say.kind, say.flow) == (Some(FlowKind::Live), flow));
        let lives: Vec<Nanos> = said.map(|say| say.life).collect();
        for heard in of(FlowKind::Live) {
            let number = heard.number.expect("they have numbers") as usize;
            // When it was sent is known to this end but for the time on the way.
            let age = heard.at - heard.sent.expect("it carries its time");
            assert!(age <= lives[number], "flow {flow}: {number} is late");
        }
        let missing = to.missing().get(&flow).into_iter().flatten().cloned();
        let mut live: Vec<u64> = of(FlowKind::Live)
            .filter_map(|heard| heard.number)
            .collect();
        live.extend(missing.flatten());
        live.sort_unstable();
        let all: Vec<u64> = (0..lives.len() as u64).collect();
        assert_eq!(live, all, "each of flow {flow} is here or reported");
    }
    let counts = from.datagram_counts();
    let (heard, late) = (heard.len() as u64, to.datagram_counts());
    assert!(late.received + late.late <= counts.sent);
    assert!(heard + late.overrun <= late.received);
}

/// Flows of live messages that a plan opens.
fn live_flows(says: &[Say]) -> u64 {
    let live = says.iter().map(|say| say.send_as);
    let live = live.filter(|say| say.kind == Some(FlowKind::Live));
    live.map(|say| say.flow + 1).max().unwrap_or(0)
}

fn random_scenario(seed: u64) -> Scenario {
    let rng = &mut Rng::new(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
    let mut scenario = Scenario::new((random_link(rng), random_link(rng)));
    scenario.seed = seed;
    scenario.profile = rng.pick(&[Profile::Bulk, Profile::Latency]);
    let special = rng.below(4) >= 2;
    scenario.cc = rng.pick(&[
        CcKind::Bbr,
        CcKind::Bbr,
        CcKind::AimdEcn,
        CcKind::Fixed(2_000_000),
    ]);
    scenario.recv_window = rng.pick(&[1_500_000, 4 << 20, 32 << 20]);
    scenario.send_window = rng.pick(&[1_500_000, 32 << 20]);
    // Random losses may leave less than a tenth of the slowest link.
    let budget = rng.pick(&[1_000, 50_000, 400_000, 1_500_000]);
    scenario.client = random_plan(rng, budget);
    scenario.server = random_plan(rng, budget);
    scenario.icm = rng.pick(&[Icm::Default, Icm::Default, Icm::Paper, Icm::Off]);
    if special {
        scenario.code = rng.pick(&CODES);
    }
    scenario.epsilon = rng.pick(&[EPSILON, EPSILON, 1e-6, 0.3]);
    // Chosen apart, so that a seed's links and writes are what they were.
    let rng = &mut Rng::new(seed ^ 0x6f72_6465_7273);
    for plan in [&mut scenario.client, &mut scenario.server] {
        plan.packet_delay_max = rng.pick(&[0, 0, 0, 50_000, 2 * MS]);
        plan.flushes = rng.chance(0.7);
        plan.order = rng.pick(&[
            ReadOrder::AsItComes,
            ReadOrder::AsItComes,
            ReadOrder::Random,
        ]);
    }
    // Chosen apart as well, for the same reason.
    let rng = &mut Rng::new(seed ^ 0x6761_7468_6572);
    for plan in [&mut scenario.client, &mut scenario.server] {
        plan.gathers = rng.chance(0.5);
    }
    // Chosen apart as well, for the same reason.
    let rng = &mut Rng::new(seed ^ 0x0077_696e_646f);
    scenario.window_max = rng.pick(&[0, 8 << 20, 64 << 20]);
    for _ in 0..rng.pick(&[0, 0, 1, 3, 30]) {
        let at = rng.within(1, 3_000) * MS;
        let size = rng.pick(&[1, 1, 2, 5]) * scenario.recv_window;
        scenario.windows.push((at, size - rng.below(size / 2)));
    }
    scenario.windows.sort_unstable();
    let rng = &mut Rng::new(seed ^ 0x6461_7461_6772);
    for plan in [&mut scenario.client, &mut scenario.server] {
        plan.says = random_says(rng);
        plan.on_time = rng.chance(0.5);
    }
    let rng = &mut Rng::new(seed ^ 0x7261_7465_7300);
    let kind = |rng: &mut Rng| {
        rng.pick(&[
            CcKind::Cubic,
            CcKind::Scavenger,
            CcKind::Bbr,
            CcKind::AimdEcn,
            CcKind::Fixed(2_000_000),
        ])
    };
    if rng.chance(0.2) {
        scenario.cc = kind(rng);
    }
    for plan in [&mut scenario.client, &mut scenario.server] {
        if rng.chance(0.2) {
            let changes = 1 + rng.below(4);
            let mut times: Vec<Nanos> = (0..changes).map(|_| rng.below(3000) * MS).collect();
            times.sort_unstable();
            plan.controllers = times.into_iter().map(|at| (at, kind(rng))).collect();
        }
        if rng.chance(0.1) {
            let from = rng.below(1000) * MS;
            plan.limits = vec![(from, Some(100_000)), (from + SEC, None)];
        }
    }
    // Chosen apart as well, for the same reason.
    let rng = &mut Rng::new(seed ^ 0x6275_6e64_6c65);
    scenario.bundle = rng.pick(&[1, 0, 2, 8]);
    if rng.chance(0.15) {
        // Small messages at a steady pace, on a path that is known to lose some.
        scenario.memory = Some(PathMemory {
            rate: 1_000_000,
            rtt: 50 * MS,
            plr: rng.pick(&[0.05, 0.2]),
            datagram_len: 1200,
        });
        let (len, interval) = (rng.within(1, 300), rng.within(1, 25) * MS);
        scenario.client.writes = (0..200)
            .map(|message| Write {
                at: message * interval,
                stream: message % 2,
                len,
                end_of_stream: message >= 198,
            })
            .collect();
    }
    // Chosen apart as well, for the same reason.
    let rng = &mut Rng::new(seed ^ 0x7265_7365_7473);
    if rng.chance(0.5) {
        give_up_streams(rng, &mut scenario, budget);
    }
    // Chosen apart as well, for the same reason.
    let rng = &mut Rng::new(seed ^ 0x6d65_7373_6167);
    if rng.chance(0.4) {
        send_messages(rng, &mut scenario);
    }
    scenario
}

/// Streams of messages, or streams that are messages.
fn send_messages(rng: &mut Rng, scenario: &mut Scenario) {
    let mut send = |plan: &mut Plan, peer: &mut Plan| {
        plan.messages = rng.pick(&[Messages::No, Messages::Framed, Messages::Streams]);
        if plan.messages == Messages::Streams {
            // Their reader takes all of them.
            peer.stops.clear();
        }
    };
    send(&mut scenario.client, &mut scenario.server);
    send(&mut scenario.server, &mut scenario.client);
}

/// More streams, and some that either end gives up at any moment; no more may be open at a time than there are.
fn give_up_streams(rng: &mut Rng, scenario: &mut Scenario, budget: u64) {
    for plan in [&mut scenario.client, &mut scenario.server] {
        let first = plan.streams() as u64;
        let more = rng.pick(&[1, 4, 20]);
        for stream in first..first + more {
            let mut at = rng.below(2_000) * MS;
            for end_of_stream in [false, rng.chance(0.7)] {
                plan.writes.push(Write {
                    at,
                    stream,
                    len: rng.below(budget / more),
                    end_of_stream,
                });
                at += rng.below(500) * MS * rng.below(2);
            }
            if rng.chance(0.2) {
                let urgency = Urgency::new(rng.below(8) as u8);
                plan.urgencies.insert(stream, urgency);
            }
        }
        plan.writes.sort_by_key(|write| write.at);
    }
    if rng.chance(0.3) {
        scenario.client.ways = Ways::Asks;
        scenario.server.ways = Ways::Answers;
        let answer = |stream| Write {
            at: rng.below(2_000) * MS * rng.below(2),
            stream,
            len: rng.below(budget / 4),
            end_of_stream: true,
        };
        scenario.server.writes = (0..scenario.client.streams() as u64).map(answer).collect();
    }
    let (client, server) = (&mut scenario.client, &mut scenario.server);
    end_early(rng, client, server);
    end_early(rng, server, client);
    scenario.streams_max = client.streams().max(server.streams()) as u64;
}

/// Some streams are reset, some dropped, and some stopped by their reader; those that have no end are given up in any case.
fn end_early(rng: &mut Rng, writer: &mut Plan, reader: &mut Plan) {
    for stream in 0..writer.streams() as u64 {
        let of_stream = writer.writes.iter().filter(|write| write.stream == stream);
        let of_stream: Vec<Write> = of_stream.copied().collect();
        let first = of_stream.first().map_or(0, |write| write.at);
        let last = of_stream.last().map_or(0, |write| write.at);
        let ends = of_stream.iter().any(|write| write.end_of_stream);
        // What has not been opened is not given up.
        let at = if ends { first } else { last } + rng.below(1_500) * MS * rng.below(2);
        match rng.below(6) {
            0 => writer.resets.push((at, stream)),
            1 => writer.drops.push((at, stream)),
            _ if !ends => writer.drops.push((at, stream)),
            2 => {
                let len: u64 = of_stream.iter().map(|write| write.len).sum();
                reader.stops.insert(stream, rng.below(2 * len + 1));
            }
            _ => {}
        }
    }
}

/// Whether streams may be given up.
fn gives_up(scenario: &Scenario) -> bool {
    [&scenario.client, &scenario.server]
        .iter()
        .any(|plan| !plan.resets.is_empty() || !plan.drops.is_empty() || !plan.stops.is_empty())
}

/// Streams that were given up hold nothing, neither of the number that may be open nor of the window: as many can be opened again, and what they
/// cost is free at both ends.
fn check_returned(pair: &mut Pair, scenario: &Scenario, departures: &Departures, patience: Nanos) {
    let before = [0, 1].map(|side| departures.opened(side));
    for (end, plan) in pair
        .ends
        .iter_mut()
        .zip([&scenario.client, &scenario.server])
    {
        let first = match plan.ways {
            Ways::One => plan.streams() as u64,
            Ways::Asks | Ways::Answers => scenario.streams_max,
        };
        for stream in first..first + scenario.streams_max {
            end.write(Write {
                at: pair.now,
                stream,
                len: 300,
                end_of_stream: true,
            });
        }
    }
    pair.must_transfer(pair.now + patience);
    // What was read last is told by a SACK that leaves later than the stream has been delivered.
    let wanted = [0, 1].map(|side| before[side] + pair.ends[1 - side].session().recv_window());
    let allowed = || [0, 1].map(|side| departures.allowed(side));
    let is_told = |_: &mut Pair| std::iter::zip(allowed(), wanted).all(|(told, all)| told >= all);
    assert!(
        pair.run_until(pair.now + patience, is_told),
        "credit: {:?} of {wanted:?}",
        allowed()
    );
}

/// Now and then the client moves, or the path becomes narrow.
fn disturb(pair: &mut Pair, rng: &mut Rng) {
    if !rng.chance(0.3) {
        return;
    }
    for n in 0..1 + rng.below(4) as u8 {
        let until = pair.now + rng.within(1, 400) * MS;
        pair.run_until(until, |_| false);
        match rng.below(3) {
            0 => pair.ends[0].address.set_port(1001 + u16::from(n)),
            1 => {
                let address = ([10, 0, 1, n], 1000).into();
                pair.ends[0].address = address;
                pair.ends[0].own_address = address;
            }
            _ => {
                for link in &mut pair.links {
                    let mut config = link.config().clone();
                    config.mtu = Some(rng.pick(&[1280, 1400, 1500]));
                    link.reconfigure(pair.now, config).expect("a valid link");
                }
            }
        }
    }
}

/// How long a transfer may take: five minutes, unless a link and its policer need longer for packets that are
/// mostly headers. A fixed rate far above a policer loses nearly all of its repair, and an answer to losses that is
/// to fail in one of 500 cases is then ln 500 = 6.2 times as long as need be: of what passes most is redundant.
fn patience(scenario: &Scenario) -> Nanos {
    const REDUNDANCY: u64 = 7;
    const HEADERS: u64 = 28 + OVERHEAD as u64;
    let directions = [
        (&scenario.forward, &scenario.client),
        (&scenario.backward, &scenario.server),
    ];
    let needed = directions.map(|(link, plan)| {
        let (Some((n, len)), Rate::Constant(rate)) = (plan.shape, &link.rate) else {
            return 0;
        };
        let (n, len) = (u64::from(n), u64::from(len));
        let rate = link.policer.as_ref().map_or(*rate, |p| p.bits_per_second);
        let bytes: u64 = plan.writes.iter().map(|write| write.len).sum();
        let blocks = bytes / (n * len - SEGMENT_HEADER_MAX) + 1;
        REDUNDANCY * blocks * n * (len + HEADERS) * 8 * SEC / rate
    });
    // Where half of the packets are lost, CUBIC has two on their way, and a scavenger between blackouts and duplicates:
    // slow, and not stuck.
    let plans = [&scenario.client, &scenario.server];
    let changes = plans.iter().flat_map(|plan| &plan.controllers);
    let kinds = changes.map(|(_, cc)| *cc).chain([scenario.cc]);
    let crawls = kinds
        .into_iter()
        .any(|cc| matches!(cc, CcKind::Cubic | CcKind::Scavenger));
    let least = if crawls { 1500 * SEC } else { 300 * SEC };
    needed.into_iter().fold(least, Nanos::max)
}

fn run(seed: u64) {
    let scenario = random_scenario(seed);
    let patience = patience(&scenario);
    let mut pair = scenario.build();
    let departures = Departures::default();
    let digest = follow(&mut pair, departures.clone(), digests().is_some());
    disturb(&mut pair, &mut Rng::new(seed ^ 0x6d6f_7665));
    pair.must_transfer(patience);
    // The peers are told last which messages did not arrive.
    let says = [&scenario.client.says, &scenario.server.says];
    let ended = pair.run_until(pair.now + 40 * SEC, |pair| {
        (0..2).all(|side| pair.ends[1 - side].live_ended() == live_flows(says[side]))
    });
    assert!(ended, "flows of live messages do not end");
    check_heard(says[0], &pair.ends[0], &pair.ends[1]);
    check_heard(says[1], &pair.ends[1], &pair.ends[0]);
    if gives_up(&scenario) {
        check_returned(&mut pair, &scenario, &departures, patience);
        // Repairs of sliding windows need the blocks that they cover: these go on.
        if scenario.code != Some(CodeId::Window) {
            let sealing = [&scenario.client, &scenario.server].map(|plan| plan.packet_delay_max);
            departures.check(&pair, sealing);
        }
    }
    // And both ends agree that it is over.
    let now = pair.now;
    pair.ends[(seed % 2) as usize].close(0, "done");
    let closed = pair.run_until(now + 40 * SEC, |pair| {
        pair.ends.iter().all(|end| end.session().is_finished())
    });
    assert!(closed, "not closed");
    if let Some(mut file) = digests() {
        let end = pair.now;
        writeln!(file, "{seed} {:016x} {end}", digest.get()).expect("a file to write to");
    }
}

/// Where digests go, if they are wanted.
fn digests() -> Option<std::fs::File> {
    let path = std::env::var_os("SPHINX_SIM_DIGESTS")?;
    let file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path);
    Some(file.expect("a file to write to"))
}

/// Sees all datagrams that leave from now on; a digest of them in their order, if it is wanted.
fn follow(pair: &mut Pair, departures: Departures, wants_digest: bool) -> Rc<Cell<u64>> {
    let digest = Rc::new(Cell::new(0));
    let so_far = Rc::clone(&digest);
    pair.tap = Some(Box::new(move |now, side, datagram| {
        departures.see(now, side, datagram);
        if wants_digest {
            let mut hasher = DefaultHasher::new();
            (so_far.get(), side, format!("{datagram:?}")).hash(&mut hasher);
            so_far.set(hasher.finish());
        }
        Vec::new()
    }));
    digest
}

/// A number from the environment.
pub(crate) fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn random() {
    let (first, count) = match number("SPHINX_SIM_SEED") {
        Some(seed) => (seed, 1),
        None => (
            number("SPHINX_SIM_FIRST").unwrap_or(0),
            number("SPHINX_SIM_SEEDS").unwrap_or(SEEDS),
        ),
    };
    let next = AtomicU64::new(first);
    let failed = Mutex::new(Vec::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return;
            }
            if catch_unwind(|| run(seed)).is_err() {
                println!("{:?}", random_scenario(seed));
                println!(
                    "reproduce: SPHINX_SIM_SEED={seed} cargo test -p sphinx-proto --release --test sim random"
                );
                failed.lock().expect("no panic").push(seed);
            }
        }
    };
    // Digests are written in the order of seeds.
    let threads = match digests() {
        Some(_) => 1,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().expect("no panic");
    assert!(
        failed.is_empty(),
        "{} of {count} seeds failed: {failed:?}",
        failed.len()
    );
}
