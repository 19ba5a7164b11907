//! RDB in virtual time: thin streams over every pattern of losses, and over random paths.

use std::time::Duration;

use sphinx_link::{GilbertElliott, LinkConfig, Loss};
use sphinx_pep::{
    Config, Counts, Stage,
    rdb::{ITT_NS_MIN, Mode, Rdb, Response, Thin},
};

use super::{
    Ended, Fate, Random, Scene, common, run, scene,
    smol::Smol,
    tcp::{MS, Settings, Tcp},
};

/// Packets to the mobile host before data: the answer to its SYN, and what answers its first data.
const BEFORE: u64 = 2;
const PATTERN: u32 = 12;
const BYTES: usize = 100;

/// Messages of 100 bytes every 30 ms over 75 + 75 ms, to a host that opens the connection; these packets of the sender are lost.
fn thin(rdb: Rdb, lost: Vec<u64>, data: &[u8]) -> Scene {
    let at = |host: u8, port: u16| ([10, 0, 0, host], port).into();
    let (fixed, mobile) = (at(1, 443), at(2, 40_000));
    let end = |local, remote, active, data: &[u8], messages| Settings {
        local,
        remote,
        isn: 1000,
        sack: true,
        timestamps: true,
        rack: true,
        segment: 1200,
        buffer: 100_000,
        stall: None,
        active,
        data: data.to_vec(),
        messages,
        reset_after: None,
    };
    let link = |ms| LinkConfig {
        delay: Duration::from_millis(ms),
        ..LinkConfig::default()
    };
    let lossy = LinkConfig {
        loss: Loss::Packets(lost),
        ..link(75)
    };
    Scene {
        fixed: end(fixed, mobile, false, data, Some((BYTES, 30 * MS))),
        mobile: end(mobile, fixed, true, &[1], None),
        links: [link(0), link(0), lossy, link(75)],
        agent: Config {
            stage: Stage::Rdb(rdb),
            ..Config::default()
        },
        late: None,
        fate: Fate::Lives,
    }
}

/// New segments that were lost and came with a later packet: all, and those of them that the sender never sent again.
fn repaired(ended: &Ended, lost: &[u64]) -> (u64, u64) {
    let mut highest = 0;
    let mut packets = Vec::new();
    for (index, packet) in ended.forwarded.iter().enumerate() {
        let segment = common::Segment::read(packet).expect("a segment");
        let start = u64::from(segment.sequence.wrapping_sub(1001));
        let end = start + segment.payload.len() as u64;
        if segment.payload.is_empty() {
            continue;
        }
        let own = (end > highest).then_some((highest, end));
        highest = highest.max(end);
        packets.push((start, end, own, lost.contains(&(index as u64))));
    }
    let (mut all, mut unseen) = (0, 0);
    for (at, (_, _, own, is_lost)) in packets.iter().enumerate() {
        let (Some((first, end)), true) = (own, is_lost) else {
            continue;
        };
        let later = &packets[at + 1..];
        let came = later
            .iter()
            .any(|it| it.2.is_some() && it.0 <= *first && !it.3);
        let resent = packets
            .iter()
            .any(|it| it.2.is_none() && it.0 < *end && *first < it.1);
        all += u64::from(came);
        unseen += u64::from(came && !resent);
    }
    (all, unseen)
}

fn patterns(rdb: Rdb, count: u32) -> (u64, Counts) {
    let data = Random(7).data_of(BYTES * 16);
    let (mut truth, mut total) = (0, Counts::default());
    for pattern in 0..count {
        let lost: Vec<u64> = (0..PATTERN)
            .filter(|bit| pattern >> bit & 1 == 1)
            .map(|bit| BEFORE + u64::from(bit))
            .collect();
        let scene = thin(rdb, lost.clone(), &data);
        let ended = run(&scene, Tcp::new, true);
        assert_eq!(ended.to_mobile, data, "{pattern:b}");
        let counts = ended.counts.clone().expect("an agent");
        let (truly, unseen) = repaired(&ended, &lost);
        assert!(
            counts.losses_repaired <= truly,
            "{pattern:b}: a false loss: {counts:?}"
        );
        assert_eq!(ended.foreign_copies, 0, "{pattern:b}");
        for packet in &ended.forwarded {
            let segment = common::Segment::read(packet).expect("a segment");
            assert!(segment.payload.len() <= 1200);
        }
        truth += unseen;
        total.losses_repaired += counts.losses_repaired;
        total.losses_unknown += counts.losses_unknown;
        total.dsacks_stripped += counts.dsacks_stripped;
        total.resent += counts.resent;
    }
    (truth, total)
}

const PAPER: Rdb = Rdb {
    mode: Mode::Paper,
    thin: Thin::Dpifl,
    dpifl_itt_ns: ITT_NS_MIN,
    max_packets: 1,
    max_bytes: 0,
    response: Response::Auto,
    extra_percent: 1000,
    max_extra: None,
};

/// Every pattern of losses among twelve packets: the stream is whole, the sender never hears of the agent's copies, and no loss is inferred that was none.
#[test]
fn every_pattern_of_losses() {
    for max_packets in [1, 2, 0] {
        let rdb = Rdb {
            max_packets,
            ..PAPER
        };
        let (truth, counts) = patterns(rdb, 1 << PATTERN);
        println!(
            "{max_packets}: {truth} repaired, {} seen, {} unknown, {} resent",
            counts.losses_repaired, counts.losses_unknown, counts.resent
        );
        let known = truth.saturating_sub(counts.losses_unknown);
        assert!(100 * counts.losses_repaired >= 99 * known);
        assert!(5 * counts.losses_repaired >= 2 * truth && truth > 1000);
    }
}

/// What plain TCP needs a round trip for, or several, takes one interval.
#[test]
fn a_lost_message_comes_with_the_next_one() {
    let data = Random(7).data_of(BYTES * 16);
    let times = |rdb| {
        let ended = run(&thin(rdb, vec![BEFORE + 5], &data), Tcp::new, true);
        (
            ended.counts.expect("an agent").resent,
            ended.forwarded.len(),
        )
    };
    let (resent, packets) = times(PAPER);
    // The packets are those of a path without loss.
    let clean = run(&thin(PAPER, Vec::new(), &data), Tcp::new, false);
    let plain = run(&thin(PAPER, Vec::new(), &data), Tcp::new, true);
    assert_eq!((resent, packets), (0, plain.forwarded.len()));
    assert_eq!(plain.at, clean.at);
}

/// Bursts of three: the first ones cost the sender its repetitions; from then on, three copies go along.
#[test]
fn bursts_are_repaired_once_they_are_known() {
    let data = Random(7).data_of(BYTES * 120);
    let resent = |rdb, bursts: u64| {
        let lost = (0..bursts).flat_map(|n| (0..3).map(move |it| BEFORE + 8 + 20 * n + it));
        let ended = run(&thin(rdb, lost.collect(), &data), Tcp::new, true);
        assert_eq!(ended.to_mobile, data);
        ended.counts.expect("an agent").resent
    };
    let auto = Rdb {
        mode: Mode::Auto,
        ..PAPER
    };
    let [three, five] = [3, 5].map(|bursts| resent(auto, bursts));
    let always_one = [3, 5].map(|bursts| resent(PAPER, bursts));
    println!(
        "sent again: {three} in three bursts and {five} in five; with one copy {always_one:?}"
    );
    assert_eq!(three, five);
    assert_eq!(always_one[1] - always_one[0], 4);
}

/// Messages over a path: how long they took to be read, ascending.
fn delays(rdb: Option<Rdb>, path: (&Loss, u64, u64), seed: u64) -> Vec<u64> {
    /// Index of the first packet behind the handshake.
    const FIRST: usize = 20;
    const COUNT: usize = 2000;
    let (loss, rtt_ms, every_ms) = path;
    let data = Random(seed).data_of(BYTES * COUNT);
    let mut scene = thin(rdb.unwrap_or(PAPER), Vec::new(), &data);
    scene.fixed.messages = Some((BYTES, every_ms * MS));
    for hop in &mut scene.links[2..] {
        hop.delay = Duration::from_millis(rtt_ms / 2);
    }
    (scene.links[2].loss, scene.links[2].seed) = (loss.clone(), seed);
    let ended = run(&scene, Tcp::new, rdb.is_some());
    assert_eq!(ended.to_mobile, data);
    let delay = |message: usize| {
        let whole = (message + 1) * BYTES;
        let at = ended.arrived.partition_point(|it| it.1 < whole);
        ended.arrived[at].0 - message as u64 * every_ms * MS
    };
    let mut delays: Vec<u64> = (FIRST..COUNT).map(delay).collect();
    delays.sort_unstable();
    delays
}

/// The paths of `sphx lab figure rdb-today`, with as many bursts as it takes to tell: copies delay the slowest message in a hundred nowhere.
#[test]
fn copies_cost_no_time_on_any_path() {
    let auto = Rdb {
        mode: Mode::Auto,
        extra_percent: 300,
        ..PAPER
    };
    let always = Rdb {
        extra_percent: 300,
        ..PAPER
    };
    let p99 = |rdb, path, seeds| {
        let mut all: Vec<u64> = (0..seeds)
            .flat_map(|seed| delays(rdb, path, seed))
            .collect();
        all.sort_unstable();
        all[all.len() * 99 / 100]
    };
    let single = [0.001, 0.01, 0.03, 0.1].map(Loss::Bernoulli);
    let bursts = Loss::GilbertElliott(GilbertElliott::bursts(0.03, 3.0));
    // One message in a hundred is the first of a burst: few of them tell nothing.
    let losses = single.iter().map(|loss| (loss, 2)).chain([(&bursts, 12)]);
    for (loss, seeds) in losses {
        for rtt_ms in [20, 100, 300] {
            for every_ms in [30, 100] {
                let path = (loss, rtt_ms, every_ms);
                let alone = p99(None, path, seeds);
                for rdb in [auto, always] {
                    let helped = p99(Some(rdb), path, seeds);
                    println!("{path:?}: {helped} ns, {alone} without copies");
                    assert!(100 * helped <= 102 * alone);
                }
            }
        }
    }
}

/// Random settings over random paths.
fn random(seed: u64) -> Scene {
    let mut scene = scene(seed);
    let random = &mut Random(seed ^ 0x5eed);
    let thin = [Thin::Dpifl, Thin::Spifl(3), Thin::Always];
    let responses = [
        Response::Auto,
        Response::Ecn,
        Response::Window,
        Response::None,
    ];
    scene.agent.stage = Stage::Rdb(Rdb {
        mode: match random.chance(50) {
            true => Mode::Auto,
            false => Mode::Paper,
        },
        thin: thin[random.below(3) as usize],
        dpifl_itt_ns: ITT_NS_MIN,
        max_packets: random.below(4) as u32,
        max_bytes: if random.chance(30) {
            100 + random.below(1000) as usize
        } else {
            0
        },
        response: responses[random.below(4) as usize],
        extra_percent: 50 + random.below(1000) as u32,
        max_extra: random.chance(20).then(|| 10_000 + random.below(1_000_000)),
    });
    scene.agent.place = sphinx_pep::Place::Base;
    for end in [&mut scene.fixed, &mut scene.mobile] {
        if random.chance(70) {
            let (bytes, every) = (1 + random.below(400) as usize, 5 + random.below(100));
            end.messages = Some((bytes, every * MS));
            end.data.truncate(bytes * (10 + random.below(100) as usize));
        }
    }
    if scene.fixed.data.is_empty() {
        scene.mobile.reset_after = None;
    }
    scene
}

fn check<E: super::End>(begin: fn(Settings) -> E, hanging: u64) {
    let seeds = std::env::var("SPHINX_PEP_SEEDS").ok();
    let seeds = seeds.map_or(100, |seeds| seeds.parse().expect("a number"));
    let (mut hung, mut bundled) = (0, 0);
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
        bundled += ended.counts.map_or(0, |counts| counts.bundled);
    }
    assert!(bundled > seeds, "{bundled} bundles");
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
