//! The filter of acknowledgements in virtual time: whoever reads what is left of them ends with what they all said, in any combination with other
//! stages, and a thin return link no longer bounds what goes the other way.

use std::net::SocketAddr;
use std::time::Duration;

use sphinx_link::{Depth, LinkConfig, Rate};
use sphinx_pep::{
    Config, Place, Profile, Stage,
    acks::{AckCc, AckFilter, Marks, Mode, ReturnQueue},
    rdb::Rdb,
    returning::Returning,
    rsfc::{self, Rsfc},
};

use super::{
    Ended, Fate, Random, Scene, common, run, scene,
    smol::Smol,
    tcp::{MS, Settings, Tcp},
};

/// What a reader of acknowledgements knows of its stream, in positions from the first number that it has read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reader {
    first: Option<u32>,
    acknowledged: u32,
    edge: u32,
    /// Disjoint and ascending, behind what is acknowledged.
    reported: Vec<(u32, u32)>,
    copies: Vec<(u32, u32)>,
    echoed: u32,
    scale: u8,
    /// How often a right edge has moved left.
    pub(crate) falls: u32,
}

impl Reader {
    pub(crate) fn read(&mut self, packet: &[u8]) {
        let Some(segment) = common::Segment::read(packet) else {
            return;
        };
        let Some(number) = segment.ack.filter(|_| !segment.rst) else {
            return;
        };
        if let Some(scale) = segment.scale.filter(|_| segment.syn) {
            self.scale = scale;
        }
        let first = *self.first.get_or_insert(number);
        // What comes before the first number is none of those that matter.
        let at = |number: u32| number.wrapping_sub(first) as i32;
        let acknowledged = at(number).max(0) as u32;
        self.acknowledged = self.acknowledged.max(acknowledged);
        let scale = if segment.syn { 0 } else { self.scale };
        let edge = acknowledged + (u32::from(segment.window) << scale);
        self.falls += u32::from(acknowledged >= self.acknowledged && edge < self.edge);
        self.edge = self.edge.max(edge);
        let sack = &segment.sack;
        let blocks: Vec<(u32, u32)> = sack
            .iter()
            .map(|it| (at(it.0).max(0) as u32, at(it.1).max(0) as u32))
            .collect();
        if let [first, ..] = blocks[..] {
            let known = blocks
                .get(1)
                .is_some_and(|it| it.0 <= first.0 && first.1 <= it.1);
            if known || first.0 < acknowledged {
                self.copies.push(first);
            }
        }
        let mut all: Vec<(u32, u32)> = self.reported.drain(..).chain(blocks).collect();
        all.iter_mut()
            .for_each(|it| it.0 = it.0.max(self.acknowledged));
        all.retain(|it| it.0 < it.1);
        all.sort_unstable();
        for block in all {
            match self.reported.last_mut() {
                Some(last) if block.0 <= last.1 => last.1 = last.1.max(block.1),
                _ => self.reported.push(block),
            }
        }
        if let Some((_, echo)) = segment.timestamps {
            self.echoed = self.echoed.max(echo);
        }
    }
}

fn filter(random: &mut Random) -> AckFilter {
    let mode = [Mode::Conservative, Mode::Aggressive, Mode::Conservative];
    let queue = random.chance(70).then(|| ReturnQueue {
        bits_per_second: 5_000 + random.below(200_000),
        bytes: 1000 + random.below(50_000) as usize,
        acks_first: random.chance(50),
        mode: mode[random.below(3) as usize],
    });
    let every_ns = (queue.is_none() || random.chance(20)).then(|| (1 + random.below(50)) * MS);
    AckFilter { queue, every_ns }
}

/// Random paths on which most goes the other way.
fn random(seed: u64) -> Scene {
    let mut scene = scene(seed);
    let random = &mut Random(seed ^ 0xac);
    std::mem::swap(&mut scene.fixed.data, &mut scene.mobile.data);
    scene.mobile.reset_after = None;
    if random.chance(10) && !scene.mobile.data.is_empty() {
        scene.fixed.reset_after = Some(random.below(scene.mobile.data.len() as u64) as usize);
    }
    scene.agent.place = Place::Base;
    scene.agent.stage = match random.below(3) {
        0 => Stage::Pass,
        1 => Stage::Snoop([Profile::Sack, Profile::Classic, Profile::Ll][random.below(3) as usize]),
        _ => Stage::Rdb(Rdb::default()),
    };
    scene.agent.ack_filter = Some(filter(random));
    scene.agent.returning = match random.below(4) {
        0 | 1 => Returning::Reconstruct,
        2 => Returning::NoLimitedTransmit,
        _ => Returning::Pass,
    };
    scene.agent.pace = random.chance(50);
    if random.chance(30) {
        let filter = scene.agent.ack_filter.take().and_then(|it| it.queue);
        scene.agent.ack_cc = Some(AckCc {
            queue: filter.map(|queue| ReturnQueue {
                mode: Mode::Keep,
                ..queue
            }),
            mark_ns: random.below(50) * MS,
            most: 2 + random.below(20) as u32,
            marks: [Marks::Own, Marks::Own, Marks::Tell][seed as usize % 3],
        });
    }
    scene.agent.rsfc = random.chance(40).then(|| Rsfc {
        mode: match random.chance(30) {
            true => rsfc::Mode::Rledbat,
            false => rsfc::Mode::Rsfc,
        },
        target_ns: random.chance(50).then(|| (5 + random.below(100)) * MS),
    });
    scene
}

/// What the mobile host's acknowledgements said is what was heard of them, where no stage for data changes them.
fn check_back(seed: u64, scene: &Scene, said: &Reader, heard: &Reader) {
    if scene.agent.stage == Stage::Pass {
        assert!(
            heard.falls <= said.falls,
            "seed {seed}: a right edge has moved left: {} {}",
            heard.falls,
            said.falls
        );
        let falls = heard.falls;
        let said = Reader {
            falls,
            ..said.clone()
        };
        // Repetitions may wait for a third one for ever.
        if scene.agent.returning != Returning::NoLimitedTransmit {
            assert_eq!(said, *heard, "seed {seed}");
        }
    }
}

/// Random paths on which most goes to the mobile host, whose acknowledgements the agent changes.
fn random_back(seed: u64) -> Scene {
    let mut scene = scene(seed);
    let random = &mut Random(seed ^ 0xba);
    scene.agent.place = Place::Base;
    scene.agent.returning = match random.chance(70) {
        true => Returning::Reconstruct,
        false => Returning::NoLimitedTransmit,
    };
    scene.agent.pace = random.chance(50);
    scene.agent.stage = match random.below(4) {
        0 | 1 => Stage::Pass,
        2 => Stage::Rdb(Rdb::default()),
        _ => scene.agent.stage,
    };
    scene
}

fn check_returning<E: super::End>(begin: fn(Settings) -> E, hanging: u64) -> [u64; 3] {
    let seeds = std::env::var("SPHINX_PEP_SEEDS").ok();
    let seeds = seeds.map_or(100, |seeds| seeds.parse().expect("a number"));
    let (mut hung, mut all) = (0, [0; 3]);
    for seed in 0..seeds {
        let scene = random_back(seed);
        println!("seed {seed}: {:?}, {:?}", scene.agent, scene.fate);
        let ended = run(&scene, begin, true);
        hung += u64::from(ended.hung);
        if ended.reset || ended.hung {
            assert!(
                scene.fixed.data.starts_with(&ended.to_mobile),
                "seed {seed}"
            );
        } else {
            assert!(ended.to_mobile == scene.fixed.data, "seed {seed}");
            assert!(ended.to_fixed == scene.mobile.data, "seed {seed}");
        }
        let Some(counts) = ended.counts else { continue };
        if matches!(scene.fate, Fate::Lives) {
            check_back(seed, &scene, &ended.said_back, &ended.heard_back);
        }
        all[0] += counts.acks_synthesised;
        all[1] += counts.paced;
        all[2] += counts.duplicates_held;
    }
    println!("synthesised, paced, held: {all:?}");
    assert!(100 * hung <= hanging * seeds, "{hung} hang");
    all
}

#[test]
fn acknowledgements_from_the_hop_say_the_same() {
    let all = check_returning(Tcp::new, 0);
    assert!(all.into_iter().all(|it| it > 0), "{all:?}");
}

#[test]
fn acknowledgements_from_the_hop_say_the_same_of_another_stack() {
    check_returning(Smol::new, 10);
}

fn check<E: super::End>(begin: fn(Settings) -> E, hanging: u64) {
    let seeds = std::env::var("SPHINX_PEP_SEEDS").ok();
    let seeds = seeds.map_or(100, |seeds| seeds.parse().expect("a number"));
    let (mut hung, mut dropped, mut compared, mut lowered) = (0, 0, 0, 0);
    let mut others = [0; 2];
    for seed in 0..seeds {
        let scene = random(seed);
        println!("seed {seed}: {:?}, {:?}", scene.agent, scene.fate);
        let ended = run(&scene, begin, true);
        hung += u64::from(ended.hung);
        if ended.reset || ended.hung {
            assert!(
                scene.fixed.data.starts_with(&ended.to_mobile),
                "seed {seed}"
            );
            assert!(
                scene.mobile.data.starts_with(&ended.to_fixed),
                "seed {seed}"
            );
        } else {
            assert!(ended.to_mobile == scene.fixed.data, "seed {seed}");
            assert!(ended.to_fixed == scene.mobile.data, "seed {seed}");
        }
        let Some(counts) = ended.counts else { continue };
        dropped += counts.acks_dropped.values().sum::<u64>();
        // What has no room in the queue is lost, as it would be in the link's own.
        if matches!(scene.fate, Fate::Lives) && counts.dropped_queue == 0 {
            compared += 1;
            let (mut said, mut heard) = (ended.said, ended.heard);
            // What Snoop sends again has the window of then.
            assert!(
                counts.repaired > 0 || heard.falls <= said.falls,
                "seed {seed}: a right edge has moved left: {} {}",
                heard.falls,
                said.falls
            );
            (said.falls, heard.falls) = (0, 0);
            check_back(seed, &scene, &ended.said_back, &ended.heard_back);
            if scene.agent.rsfc.is_some() {
                // The edge may be lower: lowering windows is what RSFC is for.
                said.edge = heard.edge.min(said.edge);
            }
            assert_eq!(said, heard, "seed {seed}");
        }
        lowered += counts.windows_lowered;
        others = [others[0] + counts.paced, others[1] + counts.acks_marked];
    }
    assert!(
        dropped > 2 * seeds && 10 * compared > seeds,
        "{dropped} dropped, {compared} compared"
    );
    assert!(others.iter().all(|it| 10 * it > seeds), "{others:?}");
    assert!(lowered > seeds, "{lowered} windows lowered");
    assert!(100 * hung <= hanging * seeds, "{hung} hang");
}

#[test]
fn random_paths_carry_the_same_streams() {
    check(Tcp::new, 0);
}

/// As for Snoop: smoltcp itself hangs now and then.
#[test]
fn random_paths_carry_the_same_streams_of_another_stack() {
    check(Smol::new, 10);
}

/// 10 Mbit/s towards a host whose own link carries 28.8 kbit/s, with room for so many packets, 50 ms away.
fn thin(packets: u64, ack_filter: Option<AckFilter>) -> Ended {
    download(packets, 1_000_000, ack_filter)
}

/// An end with the window of the published experiments.
fn end(local: SocketAddr, remote: SocketAddr, active: bool, data: Vec<u8>) -> Settings {
    Settings {
        local,
        remote,
        isn: 1000,
        sack: true,
        timestamps: true,
        rack: true,
        segment: 1448,
        buffer: 100_000,
        stall: None,
        active,
        data,
        messages: None,
        reset_after: None,
    }
}

fn link(ms: u64, rate: u64, packets: u64) -> LinkConfig {
    LinkConfig {
        delay: Duration::from_millis(ms),
        rate: Rate::Constant(rate),
        queue: Depth::Packets(packets),
        ..LinkConfig::default()
    }
}

fn download(packets: u64, bytes: usize, ack_filter: Option<AckFilter>) -> Ended {
    let at = |host: u8, port: u16| ([10, 0, 0, host], port).into();
    let (host, server) = (at(1, 40_000), at(2, 443));
    let scene = Scene {
        fixed: end(host, server, true, vec![1; 100]),
        mobile: end(server, host, false, vec![7; bytes]),
        links: [
            link(0, 100_000_000, 1000),
            link(0, 100_000_000, 1000),
            link(50, 28_800, packets),
            link(5, 10_000_000, 1000),
        ],
        agent: Config {
            stage: Stage::Pass,
            ack_filter,
            ..Config::default()
        },
        late: None,
        fate: Fate::Lives,
    };
    let ended = run(&scene, Tcp::new, ack_filter.is_some());
    assert!(ended.to_fixed == scene.mobile.data);
    ended
}

#[test]
fn a_thin_return_link_bounds_nothing() {
    for packets in [10, 50] {
        let none = thin(packets, None);
        let queue = |mode| AckFilter {
            queue: Some(ReturnQueue {
                bits_per_second: 28_000,
                bytes: 16_384,
                acks_first: false,
                mode,
            }),
            every_ns: None,
        };
        let every = AckFilter {
            queue: None,
            every_ns: Some(40 * MS),
        };
        for filter in [queue(Mode::Conservative), queue(Mode::Aggressive), every] {
            let some = thin(packets, Some(filter));
            println!(
                "{packets} packets: {} ms, with {filter:?} {} ms; longest silence {} and {} ms",
                none.at / MS,
                some.at / MS,
                none.silence / MS,
                some.silence / MS
            );
            assert!(some.at < none.at, "{filter:?}");
            // A timeout is 200 ms and a round trip.
            assert!(some.silence <= none.silence + 400 * MS, "{filter:?}");
        }
    }
}

/// Twice what the link carries: packets wait in front of it, as they would without the agent, and somebody has to be told.
#[test]
fn a_rate_that_is_wrong_is_doubted() {
    let doubted = |rate| {
        let queue = ReturnQueue {
            bits_per_second: rate,
            bytes: 16_384,
            acks_first: false,
            mode: Mode::Conservative,
        };
        let filter = AckFilter {
            queue: Some(queue),
            every_ns: None,
        };
        download(50, 10_000_000, Some(filter)).rate_doubted
    };
    assert_eq!(doubted(28_000), 0);
    assert!(doubted(57_600) > 0);
}

/// The same link from its far end: the agent is beside the server, and acknowledgements are lost in front of the thin link. What fits into the
/// queue towards the host is `room` packets.
fn behind(packets: u64, room: u64, agent: Option<Config>) -> Ended {
    let at = |host: u8, port: u16| ([10, 0, 0, host], port).into();
    let (server, host) = (at(1, 443), at(2, 40_000));
    let with_agent = agent.is_some();
    let scene = Scene {
        fixed: end(server, host, false, vec![7; 1_000_000]),
        mobile: end(host, server, true, vec![1; 100]),
        links: [
            link(1, 100_000_000, 1000),
            link(1, 100_000_000, 1000),
            link(5, 10_000_000, room),
            link(50, 28_800, packets),
        ],
        agent: agent.unwrap_or_default(),
        late: None,
        fate: Fate::Lives,
    };
    let ended = run(&scene, Tcp::new, with_agent);
    assert!(ended.to_mobile == scene.fixed.data);
    ended
}

#[test]
fn bursts_of_a_thin_return_link_are_spread() {
    for (packets, room) in [(10, 10), (10, 1000), (50, 10), (50, 1000)] {
        let none = behind(packets, room, None);
        let plain = Config {
            stage: Stage::Pass,
            ..Config::default()
        };
        let back = Config {
            returning: Returning::Reconstruct,
            ..plain.clone()
        };
        let pace = Config {
            pace: true,
            ..plain
        };
        for (name, config) in [("ack-reconstruct", back), ("pace", pace)] {
            let some = behind(packets, room, Some(config));
            println!(
                "{packets} packets back, {room} there: {} ms, with {name} {} ms",
                none.at / MS,
                some.at / MS
            );
            assert!(some.silence <= none.silence + 400 * MS, "{name}");
        }
    }
}

/// Paths without chance and with room for everything: only the agents differ. A queue of the agent's is that of the link behind it.
fn calm(seed: u64) -> Scene {
    let mut scene = random(seed);
    for link in &mut scene.links {
        *link = LinkConfig {
            delay: link.delay,
            rate: link.rate.clone(),
            queue: Depth::Packets(100_000),
            ..LinkConfig::default()
        };
    }
    for end in [&mut scene.fixed, &mut scene.mobile] {
        (end.stall, end.reset_after) = (None, None);
    }
    let agent = &mut scene.agent;
    (agent.radio, scene.late, scene.fate) = (None, None, Fate::Lives);
    // This stage makes senders wait on purpose, so it is left out.
    if agent.returning == Returning::NoLimitedTransmit {
        agent.returning = Returning::Pass;
    }
    let filter = agent.ack_filter.as_mut().map(|it| &mut it.queue);
    let cc = agent.ack_cc.as_mut().map(|it| &mut it.queue);
    for queue in [filter, cc].into_iter().flatten().flatten() {
        queue.bytes = 100_000_000;
        scene.links[2].rate = Rate::Constant(queue.bits_per_second * 100 / 95);
    }
    scene
}

#[test]
fn nobody_waits_longer_than_without_an_agent_and_a_time_out() {
    let seeds = std::env::var("SPHINX_PEP_SEEDS").ok();
    let seeds = seeds.map_or(100, |seeds| seeds.parse().expect("a number"));
    let mut longest = 0;
    for seed in 0..seeds {
        let scene = calm(seed);
        let [none, some] = [false, true].map(|agent| run(&scene, Tcp::new, agent));
        assert!(some.to_fixed == scene.mobile.data && some.to_mobile == scene.fixed.data);
        let more = some.silence.saturating_sub(none.silence);
        longest = longest.max(more);
        println!(
            "seed {seed}: {} and {} ms: {:?}",
            none.silence / MS,
            some.silence / MS,
            scene.agent
        );
        // A timeout is 200 ms and a round trip, which is as long as the link is slow.
        let timeout = 200 * MS + none.silence.max(200 * MS);
        assert!(more <= timeout, "seed {seed}: {} ms more", more / MS);
    }
    println!("{} ms more at most", longest / MS);
}
