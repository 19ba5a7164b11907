//! What an agent tells of all its flows together is the sum of what it tells of each.

mod common;

use std::net::SocketAddr;

use common::{Random, Segment};
use sphinx_pep::{Agent, Bypass, Config, Counts, FlowReport, Side, Status};

const MS: u64 = 1_000_000;
const ISN: u32 = 5000;
const PAYLOAD: u32 = 1000;
/// Ports of the mobile host. The connections of the second half began before.
const PORTS: u64 = 300;

/// An agent, and what it has told of flows that have ended.
struct Scene {
    agent: Agent,
    random: Random,
    now: u64,
    ended: Vec<FlowReport>,
}

impl Scene {
    fn put(&mut self, from: Side, port: u16, segment: &Segment) {
        let fixed: SocketAddr = ([192, 0, 2, 1], 443).into();
        let mobile: SocketAddr = ([10, 0, 0, 9], port).into();
        let packet = match from {
            Side::Fixed => segment.packet(fixed, mobile),
            Side::Mobile => segment.packet(mobile, fixed),
        };
        self.agent.handle_packet(self.now, from, packet);
        self.take();
    }

    fn take(&mut self) {
        while self.agent.poll_output().is_some() {}
        while let Some(flow) = self.agent.poll_ended() {
            self.ended.push(flow);
        }
    }

    /// A connection begins, goes on, loses something or ends; or time passes.
    fn step(&mut self) {
        let port = 1 + self.random.below(PORTS);
        let (port, is_missed) = (port as u16, port > PORTS / 2);
        let number = |n: u64| ISN + 1 + n as u32 * PAYLOAD;
        let (n, more) = (self.random.below(4), 1 + self.random.below(5));
        let answer = Segment {
            sequence: 78,
            ack: Some(number(n)),
            window: 60_000,
            ..Segment::default()
        };
        match self.random.below(12) {
            0 | 1 if !is_missed => {
                let syn = Segment {
                    syn: true,
                    sack_permitted: true,
                    sequence: 77,
                    window: 60_000,
                    ..Segment::default()
                };
                self.put(Side::Mobile, port, &syn);
                let syn = Segment {
                    ack: Some(78),
                    sequence: ISN,
                    ..syn
                };
                self.put(Side::Fixed, port, &syn);
                let ack = Some(number(0));
                self.put(Side::Mobile, port, &Segment { ack, ..answer });
            }
            0..=5 => {
                for n in n..n + more {
                    let data = Segment {
                        sequence: number(n),
                        ack: Some(78),
                        window: 60_000,
                        payload: vec![n as u8; PAYLOAD as usize],
                        ..Segment::default()
                    };
                    self.put(Side::Fixed, port, &data);
                }
            }
            6 | 7 => self.put(Side::Mobile, port, &answer),
            8 => {
                let sack = vec![(number(n + 1), number(n + 2))];
                self.put(Side::Mobile, port, &Segment { sack, ..answer });
            }
            9 => {
                let reset = Segment {
                    rst: true,
                    sequence: 78,
                    ..Segment::default()
                };
                self.put(Side::Mobile, port, &reset);
            }
            _ => {
                self.now += self.random.below(2000) * MS;
                self.agent.handle_timeout(self.now);
                self.take();
            }
        }
    }

    /// Sums over all flows, from the reports of each flow.
    fn sum(&self) -> [u64; 6] {
        let ended = self.ended.iter().map(|flow| &flow.counts);
        let known = self.agent.flows();
        sum(ended.chain(known.iter().map(|flow| &flow.counts)))
    }

    /// Told in steps, between each two of which so many things happen.
    fn told(&mut self, between: u64) -> Status {
        loop {
            let flows = 1 + self.random.below(60) as usize;
            if let Some(status) = self.agent.status_in_steps(flows) {
                return status;
            }
            (0..between).for_each(|_| self.step());
        }
    }
}

/// Sums of counters that never decrease.
fn sum<'a>(all: impl Iterator<Item = &'a Counts>) -> [u64; 6] {
    all.fold([0; 6], |sums, counts| {
        let numbers = [
            counts.from_fixed,
            counts.from_mobile,
            counts.cached,
            counts.repaired,
            counts.released.values().sum(),
            counts.bypasses(Bypass::MidStream),
        ];
        std::array::from_fn(|at| sums[at] + numbers[at])
    })
}

#[test]
fn totals_are_the_sum_of_all_flows_however_they_are_added_up() {
    for seed in 0..20 {
        let mut scene = Scene {
            agent: Agent::new(Config::default()),
            random: Random(seed),
            now: MS,
            ended: Vec::new(),
        };
        let mut before = [0; 6];
        for _ in 0..20 {
            (0..200).for_each(|_| scene.step());
            let least = scene.sum();
            assert_eq!(sum([&scene.agent.counts()].into_iter()), least);
            // Nothing happens meanwhile: it is the very same.
            assert_eq!(scene.told(0), scene.agent.status());
            // Packets come, connections begin, and others are forgotten: each is counted as it was at some time.
            let told = sum([&scene.told(5).counts].into_iter());
            let most = scene.sum();
            for (at, number) in told.iter().enumerate() {
                let bounds = least[at].max(before[at])..=most[at];
                assert!(bounds.contains(number), "{seed}, {at}: {bounds:?} {number}");
            }
            before = told;
        }
        // Each of these counters has counted something.
        assert!(before.iter().all(|number| *number > 0), "{before:?}");
        assert!(scene.ended.len() > 50, "{}", scene.ended.len());
    }
}
