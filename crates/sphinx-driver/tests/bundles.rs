//! Thin streams, in virtual time: repairs of small messages ride in the packets of later ones (`docs/protocol.md` §5.5).
//!
//! ```text
//! cargo test -p sphinx-driver --release --test bundles -- --nocapture small
//! cargo test -p sphinx-driver --release --test bundles -- --ignored --nocapture
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use sphinx_driver::PacketProtection;
use sphinx_link::{Depth, LinkConfig, Loss, Rate};
use sphinx_proto::wire::{Bundle, PacketKind};
use sphinx_proto::{Nanos, PacketNumber, PathMemory, SessionStats, Time};
use sphinx_sim::{MS, Pair, Plain, ReadOrder, Rng, SEC, Scenario, Write};

/// When messages begin: path MTU discovery is over by then.
const BEGIN: Nanos = 5 * SEC;

/// Messages of a size at a pace.
#[derive(Debug, Clone)]
struct Messages {
    len: u64,
    period: Nanos,
    count: u64,
    rtt: Nanos,
    loss: Loss,
    /// What the client remembers of the path's losses.
    plr: Option<f64>,
    mtu: Option<usize>,
    bundle: u8,
    /// Share of them that are handed over late, by up to this time.
    late: (f64, Nanos),
    seed: u64,
}

/// What became of the messages.
struct Ran {
    /// Packets with symbols: their place among all that the client sent, and the blocks that they hold symbols of, their own first.
    packets: Vec<(u64, Vec<u64>)>,
    /// When each message was complete.
    arrivals: Vec<Nanos>,
    /// IP bytes that the client sent.
    ip_bytes: u64,
    stats: SessionStats,
}

impl Messages {
    /// The pace of the published tests: writes 10 ms apart, a round trip of 200 ms.
    fn published(len: u64, count: u64, bundle: u8, plr: f64) -> Self {
        Self {
            len,
            period: 10 * MS,
            count,
            rtt: 200 * MS,
            loss: Loss::None,
            plr: Some(plr),
            mtu: None,
            bundle,
            late: (0.0, 0),
            seed: 1,
        }
    }

    fn due(&self, message: u64) -> Nanos {
        BEGIN + message * self.period
    }

    fn scenario(&self) -> Scenario {
        let link = |seed, loss: &Loss| LinkConfig {
            seed,
            rate: Rate::Constant(20_000_000),
            queue: Depth::Bytes(200_000),
            delay: Duration::from_nanos(self.rtt / 2),
            mtu: self.mtu,
            loss: loss.clone(),
            ..LinkConfig::default()
        };
        let there = link(self.seed, &self.loss);
        let mut scenario = Scenario::new((there, link(self.seed ^ 1, &Loss::None)));
        scenario.bundle = self.bundle;
        scenario.server.order = ReadOrder::AsItComes;
        scenario.memory = self.plr.map(|plr| PathMemory {
            rate: 2_500_000,
            rtt: self.rtt,
            plr,
            datagram_len: 1200,
        });
        let (mut rng, mut at) = (Rng::new(self.seed ^ 0x6c61_7465), 0);
        scenario.client.writes = (0..self.count)
            .map(|message| Write {
                at: {
                    let is_late = rng.chance(self.late.0);
                    let late = if is_late { rng.below(self.late.1) } else { 0 };
                    at = at.max(self.due(message) + late);
                    at
                },
                stream: 0,
                len: self.len,
                end_of_stream: message + 1 == self.count,
            })
            .collect();
        scenario
    }

    fn run(&self) -> Ran {
        let mut pair = self.scenario().build();
        let packets = follow(&mut pair);
        pair.must_transfer(BEGIN + self.count * self.period + 60 * SEC);
        let arrivals = pair.server().message_arrivals(self.len, self.count);
        let arrivals = arrivals.into_iter().map(|at| at.expect("it is there"));
        let packets = packets.borrow().clone();
        Ran {
            packets,
            arrivals: arrivals.collect(),
            ip_bytes: pair.client().ip_bytes_sent,
            stats: pair.client().session().stats(),
        }
    }
}

type Packets = Rc<RefCell<Vec<(u64, Vec<u64>)>>>;

/// The blocks in the packets that the client sends from now on.
fn follow(pair: &mut Pair) -> Packets {
    let packets = Packets::default();
    let (seen, mut count) = (Rc::clone(&packets), 0);
    pair.tap = Some(Box::new(move |_, side, datagram| {
        if side == 0 {
            let mut bytes = datagram.payload.clone();
            let mut peer = Plain::default();
            let header = peer.unprotect(&mut bytes).expect("a packet");
            let number = PacketNumber::expand(header.packet_number, PacketNumber::ZERO);
            let body = peer.open(&header, number, &mut bytes, Time::ZERO, 0);
            let body = &bytes[body.expect("it is whole")];
            let blocks = match header.kind {
                PacketKind::Symbol => vec![u64::from(header.block)],
                PacketKind::Bundle => {
                    let symbols = Bundle::split(&header, body).expect("a bundle");
                    let blocks = symbols.iter().map(|(of, _)| u64::from(of.block));
                    blocks.collect()
                }
                _ => Vec::new(),
            };
            if !blocks.is_empty() {
                seen.borrow_mut().push((count, blocks));
            }
            count += 1;
        }
        Vec::new()
    }));
    packets
}

impl Ran {
    /// The blocks in each packet from the first packet of this block on, counted from it.
    fn blocks_from(&self, first: u64) -> Vec<Vec<u64>> {
        let packets = self.packets.iter().map(|(_, blocks)| blocks);
        let packets = packets.skip_while(|blocks| blocks[0] < first);
        packets
            .map(|blocks| blocks.iter().map(|block| block - first).collect())
            .collect()
    }

    /// The place of a block's first packet among all that the client sent.
    fn place_of(&self, block: u64) -> u64 {
        let mut packets = self.packets.iter();
        let first = packets.find(|(_, blocks)| blocks[0] == block);
        first.expect("it was sent").0
    }
}

/// Messages before those of a sequence: the third one shows that there is a pace.
const LEAD_IN: u64 = 2;

/// The sequences of the tests of the Linux patch (packetdrill, `linux/rdb`), as blocks for its ranges of bytes. A block rides as often
/// as its repairs are worth it: where the patch bundles everything that is not acknowledged, some losses in a row are expected here. What
/// is left at the end leaves alone.
#[test]
fn sequences_of_redundant_data_bundling() {
    // tcp_rdb_max_packets = 1: 1:101, 1:201, 101:301, 201:401.
    let ran = Messages::published(100, LEAD_IN + 4, 1, 0.1).run();
    let expected = [vec![0], vec![1, 0], vec![2, 1], vec![3, 2], vec![3]];
    assert_eq!(ran.blocks_from(LEAD_IN), expected);
    assert_eq!((ran.stats.bundles, ran.stats.repair_reactive), (3, 0));

    // tcp_rdb_max_packets = 0, which is unlimited: 1:201, 1:401, 1:601, 1:801.
    let ran = Messages::published(200, LEAD_IN + 4, 8, 0.2).run();
    let expected = [vec![0], vec![1, 0], vec![2, 0, 1], vec![3, 0, 1, 2]];
    assert_eq!(sorted(&ran.blocks_from(LEAD_IN)[..4]), sorted(&expected));

    // tcp_rdb_max_bytes = 450 with 100 bytes each, four writes in a packet: 1:101 … 1:401, 101:501, 201:601.
    let mut four = Messages::published(230, LEAD_IN + 6, 8, 0.4);
    four.mtu = Some(1280);
    let ran = four.run();
    let expected = [
        vec![0],
        vec![1, 0],
        vec![2, 1, 0],
        vec![3, 2, 1, 0],
        vec![4, 3, 2, 1],
        vec![5, 4, 3, 2],
    ];
    assert_eq!(sorted(&ran.blocks_from(LEAD_IN)[..6]), sorted(&expected));
}

/// The order in which symbols ride is of no matter.
fn sorted(packets: &[Vec<u64>]) -> Vec<Vec<u64>> {
    let mut packets = packets.to_vec();
    packets.iter_mut().for_each(|blocks| blocks.sort_unstable());
    packets
}

/// The tests with losses: what a bundle hides from the receiver's application is no secret to the sender. (The patch has to guess
/// it from the acknowledgements; here packets have numbers.)
#[test]
fn a_hidden_loss_is_repaired_by_the_next_packet_and_counts() {
    for (lost, bundle) in [(1, 1), (2, 2)] {
        let mut messages = Messages::published(100, 20, bundle, 0.1);
        messages.period = 15 * MS;
        let clean = messages.run();
        let first = 8;
        let places = (first..first + lost).map(|block| clean.place_of(block));
        messages.loss = Loss::Packets(places.collect());
        let ran = messages.run();
        let rescue = ran.arrivals[(first + lost) as usize];
        for message in 0..messages.count {
            let is_hit = (first..first + lost).contains(&message);
            let on_time = clean.arrivals[message as usize];
            let expected = if is_hit { rescue } else { on_time };
            // The rescuer is larger than the packet that was lost.
            let late = ran.arrivals[message as usize].abs_diff(expected);
            assert!(late < MS / 2, "{message}: {late} ns");
        }
        let losses = ran.stats.losses_sent.expect("some are known");
        let packets = ran.stats.packets_sent as f64;
        assert!(losses.mean * packets > lost as f64 - 0.5, "{losses:?}");
        assert_eq!(ran.stats.repair_reactive, 0, "answered although repaired");
    }
}

/// Without loss nothing changes: not one packet is another one.
#[test]
fn nothing_rides_where_nothing_is_lost() {
    for (len, period) in [(200, 20 * MS), (1000, 5 * MS), (100, 10 * MS)] {
        let ran = |bundle| {
            let mut messages = thin(len, period, 0.0, 1);
            messages.bundle = bundle;
            messages.count = 500;
            messages.run()
        };
        let (with, without) = (ran(8), ran(0));
        assert_eq!(with.stats.bundles, 0);
        assert_eq!(with.packets, without.packets);
        assert_eq!(with.ip_bytes, without.ip_bytes);
    }
}

/// Messages that are further apart than a repair may wait are repaired at once, as without bundling.
#[test]
fn what_is_no_stream_does_not_wait() {
    let ran = |bundle| {
        let mut messages = Messages::published(100, 50, bundle, 0.1);
        messages.period = 40 * MS;
        messages.run()
    };
    let (with, without) = (ran(1), ran(0));
    assert_eq!(with.packets, without.packets);
    assert_eq!(with.arrivals, without.arrivals);
}

/// A minute of messages where the share `loss` of the packets is lost, over a round trip of 50 ms.
fn thin(len: u64, period: Nanos, loss: f64, seed: u64) -> Messages {
    Messages {
        len,
        period,
        count: 60 * SEC / period,
        rtt: 50 * MS,
        loss: if loss > 0.0 {
            Loss::Bernoulli(loss)
        } else {
            Loss::None
        },
        plr: None,
        mtu: None,
        bundle: 1,
        late: (0.0, 0),
        seed,
    }
}

/// What a stream of small messages costs on the wire, and how many of them arrive soon after the path's delay.
#[derive(Debug)]
struct Cost {
    /// IP bytes sent for each byte of a message, packets with symbols for each message.
    bytes: f64,
    packets: f64,
    /// Share of the messages that are there within half a round trip and 25 ms, and of those that are so with all before them.
    in_time: f64,
    in_order: f64,
    /// Of all, in milliseconds after that half round trip.
    p999: f64,
}

fn cost(messages: &Messages) -> Cost {
    let ran = messages.run();
    let lateness = |arrivals: &[Nanos]| {
        let late = (0..).zip(arrivals);
        let late = late.map(|(message, at)| at - messages.due(message) - messages.rtt / 2);
        let mut late: Vec<Nanos> = late.collect();
        late.sort_unstable();
        late
    };
    let count = messages.count as f64;
    let within = |late: &[Nanos]| late.partition_point(|late| *late <= 25 * MS) as f64 / count;
    let late = lateness(&ran.arrivals);
    let mut before = 0;
    let in_order = ran.arrivals.iter().map(|at| {
        before = before.max(*at);
        before
    });
    let in_order: Vec<Nanos> = in_order.collect();
    Cost {
        bytes: ran.ip_bytes as f64 / (messages.len as f64 * count),
        packets: ran.packets.len() as f64 / count,
        in_time: within(&late),
        in_order: within(&lateness(&in_order)),
        p999: late[late.len() * 999 / 1000] as f64 / MS as f64,
    }
}

/// A message of one packet leaves once where nothing is lost, but for the beginning, when nothing is known of the path. At 10 % loss its
/// repair rides where the stream is thin; where it is not, it leaves with as many repairs as that asks for, and not with one more.
#[test]
fn small_messages_cost_little() {
    for seed in 1..=5 {
        for (len, period, loss, packets, bytes, in_time, in_order) in [
            (200, 20 * MS, 0.0, 1.05, 1.5, 1.0, 1.0),
            (200, 20 * MS, 0.1, 1.3, 2.6, 0.985, 0.94),
            (1000, 5 * MS, 0.0, 1.02, 1.12, 1.0, 1.0),
            (1000, 5 * MS, 0.1, 3.1, 4.4, 0.995, 0.9),
        ] {
            let cost = cost(&thin(len, period, loss, seed));
            println!("{len} B, {loss}, seed {seed}: {cost:.4?}");
            assert!(cost.packets < packets && cost.bytes < bytes, "{cost:?}");
            assert!(
                cost.in_time >= in_time && cost.in_order >= in_order,
                "{cost:?}"
            );
        }
    }
}

/// An application or an engine that shares its processor hands over late now and then: repairs go on riding.
#[test]
fn late_messages_change_little() {
    for (share, most, bytes) in [(0.05, 20 * MS, 2.63), (0.2, 10 * MS, 2.66)] {
        for seed in 1..=3 {
            let mut messages = thin(200, 20 * MS, 0.1, seed);
            messages.late = (share, most);
            let cost = cost(&messages);
            println!("{share} late by up to {most} ns, seed {seed}: {cost:.4?}");
            assert!(cost.bytes < bytes, "{cost:?}");
        }
    }
}

/// Numbers for decision 32.
#[test]
#[ignore = "a table for people"]
fn table_of_bundles() {
    for (len, period) in [(200, 20), (100, 10), (200, 33)] {
        for loss in [0.01, 0.05, 0.1, 0.2] {
            for bundle in [0, 1, 2] {
                let costs: Vec<Cost> = (1..=5)
                    .map(|seed| {
                        let mut messages = thin(len, period * MS, loss, seed);
                        messages.bundle = bundle;
                        cost(&messages)
                    })
                    .collect();
                let median = |of: fn(&Cost) -> f64| {
                    let mut all: Vec<f64> = costs.iter().map(of).collect();
                    all.sort_by(f64::total_cmp);
                    all[2]
                };
                println!(
                    "{len} B / {period} ms, loss {:2.0} %, bundle {bundle}: {:.3} B/B, {:.3} packets, {:.2} % in time, {:.2} % in order, p99.9 {:5.1} ms",
                    100.0 * loss,
                    median(|c| c.bytes),
                    median(|c| c.packets),
                    100.0 * median(|c| c.in_time),
                    100.0 * median(|c| c.in_order),
                    median(|c| c.p999),
                );
            }
        }
    }
}

/// A stream of messages, one in a packet, and behind each something of earlier ones: how long until each is known.
struct Stream {
    rng: Rng,
    /// What of messages that are not known the rows say: coefficients modulo [`PRIME`], by message.
    rows: Vec<BTreeMap<usize, u64>>,
    known_at: Vec<Option<usize>>,
}

const PRIME: u64 = 65_521;

impl Stream {
    /// Whether the first packet of message `at` brings it, and with it a row over the `window` messages before: with one, a copy.
    fn packet(&mut self, at: usize, window: usize) {
        self.learn(at, at);
        let row = (at.saturating_sub(window)..at).map(|of| (of, 1 + self.rng.below(PRIME - 1)));
        let row: BTreeMap<usize, u64> = row.collect();
        self.rows.push(row);
        self.eliminate(at);
    }

    fn learn(&mut self, message: usize, at: usize) {
        self.known_at[message].get_or_insert(at);
    }

    /// Solves for what the rows determine.
    fn eliminate(&mut self, at: usize) {
        let mut rows = std::mem::take(&mut self.rows);
        for row in &mut rows {
            row.retain(|message, _| self.known_at[*message].is_none());
        }
        let mut pivots: Vec<(usize, BTreeMap<usize, u64>)> = Vec::new();
        for mut row in rows {
            for (pivot, other) in &pivots {
                reduce(&mut row, *pivot, other);
            }
            let Some((&pivot, &leading)) = row.first_key_value() else {
                continue;
            };
            let inverse = power(leading, PRIME - 2);
            row.values_mut().for_each(|c| *c = *c * inverse % PRIME);
            for (_, other) in &mut pivots {
                reduce(other, pivot, &row);
            }
            pivots.push((pivot, row));
        }
        for (pivot, row) in pivots {
            if row.len() == 1 {
                self.learn(pivot, at);
            } else {
                self.rows.push(row);
            }
        }
    }
}

fn reduce(row: &mut BTreeMap<usize, u64>, pivot: usize, by: &BTreeMap<usize, u64>) {
    let Some(factor) = row.get(&pivot).copied() else {
        return;
    };
    for (message, coefficient) in by {
        let value = row.entry(*message).or_default();
        *value = (*value + (PRIME - factor) * coefficient) % PRIME;
    }
    row.retain(|_, coefficient| *coefficient != 0);
}

fn power(base: u64, exponent: u64) -> u64 {
    (0..64).rev().fold(1, |power, bit| {
        let square = power * power % PRIME;
        if exponent >> bit & 1 == 1 {
            square * base % PRIME
        } else {
            square
        }
    })
}

/// Copies of the message before against rows over the last ones, in the same space: which messages are known how many packets later
/// without any answer to a loss. Of a message in one packet that is all that differs.
#[test]
#[ignore = "a table for people"]
fn copies_or_rows() {
    const MESSAGES: usize = 20_000;
    for loss in [0.02, 0.1, 0.2] {
        for window in 1..=4 {
            let mut shares = [0.0; 4];
            for seed in 1..=5 {
                let mut links = Rng::new(seed);
                let mut stream = Stream {
                    rng: Rng::new(seed ^ 0xc0ffee),
                    rows: Vec::new(),
                    known_at: vec![None; MESSAGES],
                };
                for at in 0..MESSAGES {
                    if !links.chance(loss) {
                        stream.packet(at, window);
                    }
                    // A loss is answered after some round trips.
                    if at >= 16 {
                        stream.learn(at - 16, usize::MAX);
                    }
                }
                let waits = (0..MESSAGES - 32).map(|at| {
                    let known = stream.known_at[at].unwrap_or(usize::MAX);
                    known - at
                });
                let waits: Vec<usize> = waits.collect();
                for (share, wait) in shares.iter_mut().zip([0, 1, 3, 8]) {
                    let within = waits.iter().filter(|waited| **waited <= wait).count();
                    *share += 100.0 * within as f64 / waits.len() as f64 / 5.0;
                }
            }
            let [at_once, one, three, eight] = shares;
            println!(
                "loss {:2.0} %, rows over {window}: {at_once:.2} % at once, {one:.2} % within 1 packet, {three:.3} % within 3, {eight:.3} % within 8",
                100.0 * loss
            );
        }
    }
}
