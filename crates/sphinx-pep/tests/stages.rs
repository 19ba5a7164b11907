//! The stages beside the filter of acknowledgements, packet by packet: reconstruction, fewer of them for a long queue, pacing, and no Limited
//! Transmit.

mod common;

use bytes::Bytes;
use common::Segment;
use sphinx_pep::{
    Agent, Cause, Config, FlowKey, Laws, Output, Side, Stage,
    acks::{AckCc, Dropped, Mark, Marks, Mode, ReturnQueue},
    returning::Returning,
};

const MS: u64 = 1_000_000;
const MSS: u32 = 1000;
/// Between the agent and the mobile host and back.
const RTT: u64 = 40 * MS;

/// A fixed host, the agent and a mobile host. Numbers are counted from the SYNs'.
struct Path {
    agent: Agent,
    laws: Laws,
    now: u64,
}

impl Path {
    fn new(config: Config) -> Path {
        let agent = Agent::new(Config {
            stage: Stage::Pass,
            ..config
        });
        let mut path = Path {
            agent,
            laws: Laws::default(),
            now: 0,
        };
        let syn = Segment {
            syn: true,
            mss: Some(MSS as u16),
            scale: Some(7),
            window: 65_535,
            timestamps: Some((1, 0)),
            sack_permitted: true,
            ..Segment::default()
        };
        path.put(Side::Fixed, &syn);
        path.wait(RTT);
        let answer = Segment {
            ack: Some(1),
            timestamps: Some((1, 1)),
            ..syn
        };
        path.put(Side::Mobile, &answer);
        path.put(Side::Fixed, &path.ack(1));
        path.wait(RTT);
        path
    }

    /// At the present time, by a clock of milliseconds.
    fn ack(&self, number: u32) -> Segment {
        let at = (self.now / MS) as u32 + 1;
        Segment {
            sequence: 1,
            ack: Some(number),
            window: 1000,
            timestamps: Some((at, at.saturating_sub(40))),
            ..Segment::default()
        }
    }

    fn data(&self, number: u32) -> Segment {
        Segment {
            sequence: number,
            payload: vec![7; MSS as usize],
            ..self.ack(1)
        }
    }

    fn put(&mut self, from: Side, segment: &Segment) -> Vec<Output> {
        let (fixed, mobile) = (([10, 0, 0, 1], 443).into(), ([10, 0, 0, 2], 4000).into());
        let packet: Bytes = match from {
            Side::Fixed => segment.packet(fixed, mobile),
            Side::Mobile => segment.packet(mobile, fixed),
        };
        self.laws.input(from, &packet);
        self.agent.handle_packet(self.now, from, packet);
        self.take()
    }

    fn take(&mut self) -> Vec<Output> {
        let mut all = Vec::new();
        while let Some(output) = self.agent.poll_output() {
            self.laws.output(&output).expect("a lawful packet");
            all.push(output);
        }
        all
    }

    /// Lets time pass: what came out, and when.
    fn wait(&mut self, ns: u64) -> Vec<(u64, Output)> {
        let end = self.now + ns;
        let mut all = Vec::new();
        while let Some(at) = self.agent.next_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.agent.handle_timeout(self.now);
            let now = self.now;
            all.extend(self.take().into_iter().map(|output| (now, output)));
        }
        self.now = end;
        all
    }

    /// So many segments from the fixed host at once; what came out.
    fn send(&mut self, from: u32, segments: u32) -> Vec<Output> {
        let all = (0..segments).map(|n| from + n * MSS);
        let segments: Vec<Segment> = all.map(|number| self.data(number)).collect();
        let out = segments.iter().map(|it| self.put(Side::Fixed, it));
        out.flatten().collect()
    }
}

fn read(output: &Output) -> Segment {
    Segment::read(&output.packet).expect("a segment")
}

fn reconstructing() -> Path {
    let mut path = Path::new(Config {
        returning: Returning::Reconstruct,
        ..Config::default()
    });
    path.send(1, 40);
    path.wait(RTT);
    let first = path.put(Side::Mobile, &path.ack(1 + 2 * MSS));
    assert_eq!(first.len(), 1);
    path.wait(20 * MS);
    path
}

#[test]
fn copies_go_before_one_that_acknowledges_many() {
    let mut path = reconstructing();
    let before = path.ack(1).timestamps.expect("timestamps");
    let real = path.ack(1 + 22 * MSS);
    let mut all: Vec<(u64, Output)> = Vec::new();
    let began = path.now;
    let out = path.put(Side::Mobile, &real);
    all.extend(out.into_iter().map(|it| (began, it)));
    all.extend(path.wait(200 * MS));
    let numbers: Vec<u32> = all.iter().filter_map(|it| read(&it.1).ack).collect();
    let expected: Vec<u32> = (2..=11).map(|n| 1 + 2 * n * MSS).collect();
    assert_eq!(numbers, expected);
    let (last, copies) = all.split_last().expect("some");
    assert_eq!(last.1.cause, Cause::Released);
    assert_eq!(read(&last.1), real);
    assert!(last.0 > began && last.0 <= began + RTT, "a round trip late");
    let mut edge = 1 + 2 * MSS + (1000 << 7);
    for (at, output) in copies {
        assert_eq!(output.cause, Cause::Reconstructed);
        let copy = read(output);
        let (sent, echo) = copy.timestamps.expect("timestamps");
        assert_eq!(Some(sent), real.timestamps.map(|it| it.0));
        assert!(echo < before.1, "an earlier one");
        let next = copy.ack.expect("ACK") + (u32::from(copy.window) << 7);
        assert!(next >= edge && next <= 1 + 22 * MSS + (1000 << 7));
        edge = next;
        assert!(*at <= last.0);
    }
    assert!(
        copies.windows(2).all(|it| it[0].0 < it[1].0),
        "with time between"
    );
    assert_eq!(path.agent.counts().acks_synthesised, 9);
}

#[test]
fn a_real_one_supersedes_what_waits() {
    let mut path = reconstructing();
    path.put(Side::Mobile, &path.ack(1 + 22 * MSS));
    let out = path.put(Side::Mobile, &path.ack(1 + 24 * MSS));
    let numbers: Vec<u32> = out.iter().filter_map(|it| read(it).ack).collect();
    assert_eq!(numbers, [1 + 22 * MSS, 1 + 24 * MSS]);
    assert_eq!(path.wait(RTT), []);
    assert_eq!(path.agent.counts().acks_superseded, 8);
}

/// Whoever does not know where the stream is gets no more packets sent than he sends.
#[test]
fn what_acknowledges_more_than_was_sent_has_no_copies() {
    let mut path = reconstructing();
    for number in [41, 1000, 1_000_000] {
        let forged = path.ack(1 + number * MSS);
        assert_eq!(path.put(Side::Mobile, &forged).len(), 1);
        assert_eq!(path.wait(MS), []);
    }
    let out = path.put(Side::Mobile, &path.ack(1 + 22 * MSS));
    assert_eq!(out[0].cause, Cause::Reconstructed);
}

/// A sender that repairs takes an acknowledgement of a part for the sign of another loss.
#[test]
fn nothing_is_put_between_while_a_loss_is_repaired() {
    let mut path = reconstructing();
    for _ in 0..3 {
        let repeated = Segment {
            sack: vec![(1 + 3 * MSS, 1 + 5 * MSS)],
            ..path.ack(1 + 2 * MSS)
        };
        assert_eq!(path.put(Side::Mobile, &repeated).len(), 1);
    }
    for number in [22, 40] {
        let real = path.ack(1 + number * MSS);
        let out = path.put(Side::Mobile, &real);
        assert_eq!(out.len(), 1, "{number}");
        assert_eq!((out[0].cause, read(&out[0])), (Cause::Passed, real));
    }
    path.send(1 + 40 * MSS, 20);
    path.wait(RTT);
    let out = path.put(Side::Mobile, &path.ack(1 + 60 * MSS));
    assert_eq!(out[0].cause, Cause::Reconstructed, "all is repaired");
}

/// What passes a late agent is not seen: copies would say again what the sender knows.
#[test]
fn nothing_is_put_behind_what_passed_unseen() {
    let mut path = reconstructing();
    path.agent.handle_lag(path.now, 100 * MS);
    assert_eq!(path.put(Side::Mobile, &path.ack(1 + 12 * MSS)).len(), 1);
    path.wait(200 * MS);
    let real = path.ack(1 + 22 * MSS);
    let out = path.put(Side::Mobile, &real);
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].cause, read(&out[0])), (Cause::Passed, real));
    assert_eq!(path.wait(RTT), []);
    assert_eq!(path.agent.counts().acks_synthesised, 0);
}

#[test]
fn copies_are_bounded() {
    let mut path = reconstructing();
    path.send(1 + 40 * MSS, 400);
    path.wait(RTT);
    let mut count = path.put(Side::Mobile, &path.ack(1 + 440 * MSS)).len();
    count += path.wait(RTT).len();
    assert!((60..=65).contains(&count), "{count}");
}

#[test]
fn two_repetitions_wait_for_the_third() {
    let mut path = Path::new(Config {
        returning: Returning::NoLimitedTransmit,
        ..Config::default()
    });
    path.send(1, 10);
    path.wait(RTT);
    assert_eq!(path.put(Side::Mobile, &path.ack(1 + 2 * MSS)).len(), 1);
    let repeated = |path: &Path, upto: u32| Segment {
        sack: vec![(1 + 3 * MSS, 1 + upto * MSS)],
        ..path.ack(1 + 2 * MSS)
    };
    for (upto, count) in [(4, 0), (5, 0), (6, 3), (7, 1)] {
        let out = path.put(Side::Mobile, &repeated(&path, upto));
        assert_eq!(out.len(), count, "{upto}");
    }
    assert_eq!(path.put(Side::Mobile, &path.ack(1 + 8 * MSS)).len(), 1);
    // Fewer than three go with the next one that says more.
    let again = Segment {
        sack: vec![(1 + 9 * MSS, 1 + 10 * MSS)],
        ..path.ack(1 + 8 * MSS)
    };
    assert_eq!(path.put(Side::Mobile, &again).len(), 0);
    assert_eq!(path.put(Side::Mobile, &path.ack(1 + 10 * MSS)).len(), 2);
    assert_eq!(path.agent.counts().duplicates_held, 3);
}

#[test]
fn no_more_than_four_go_back_to_back() {
    let mut path = Path::new(Config {
        pace: true,
        ..Config::default()
    });
    let began = path.now;
    assert_eq!(path.send(1, 20).len(), 4);
    // What takes nothing of the stream does not overtake it.
    assert_eq!(path.put(Side::Fixed, &path.ack(1)), []);
    let mut later = path.wait(500 * MS);
    let (_, last) = later.pop().expect("the acknowledgement");
    assert!(read(&last).payload.is_empty());
    let numbers: Vec<u32> = later.iter().map(|it| read(&it.1).sequence).collect();
    let expected: Vec<u32> = (4..20).map(|n| 1 + n * MSS).collect();
    assert_eq!(numbers, expected, "in order");
    let times: Vec<u64> = later.iter().map(|it| it.0 - began).collect();
    assert!(times.windows(2).all(|it| it[0] < it[1]), "{times:?}");
    // The handshake said two times 40 ms.
    assert!(times.iter().all(|at| *at <= 2 * RTT), "{times:?}");
    assert_eq!(path.agent.counts().paced, 17);
    // A window of a few segments never waits.
    path.put(Side::Mobile, &path.ack(1 + 20 * MSS));
    assert_eq!(path.send(1 + 20 * MSS, 4).len(), 4);
}

/// Of more than a mebibyte, what has waited longest goes.
#[test]
fn a_burst_takes_no_more_memory_than_a_flow_may() {
    let mut path = Path::new(Config {
        pace: true,
        ..Config::default()
    });
    let out = path.send(1, 2000);
    let least = 2000 - (1 << 20) / MSS as usize;
    assert!(out.len() >= least, "{}", out.len());
    assert!(path.agent.memory_bytes() < (1 << 20) + 20_000);
    let all = out
        .into_iter()
        .chain(path.wait(500 * MS).into_iter().map(|it| it.1));
    let numbers: Vec<u32> = all.map(|it| read(&it).sequence).collect();
    let expected: Vec<u32> = (0..2000).map(|n| 1 + n * MSS).collect();
    assert_eq!(numbers, expected);
}

/// However often the agent looks: in five microseconds, less than a byte may go.
#[test]
fn many_packets_of_the_peer_make_nobody_wait_longer() {
    let mut path = Path::new(Config {
        pace: true,
        ..Config::default()
    });
    assert_eq!(path.send(1, 5).len(), 4);
    let mut fifth = Vec::new();
    // A quarter of the round trip, where it is due after a fifth.
    for number in 1..=2000 {
        let data = Segment {
            sequence: number,
            payload: vec![1],
            ..path.ack(1)
        };
        assert_eq!(path.put(Side::Mobile, &data).len(), 1);
        fifth.extend(path.wait(5_000));
    }
    assert_eq!(fifth.len(), 1, "{fifth:?}");
}

/// What waits goes when nobody wants it to wait any more.
#[test]
fn what_waits_goes_with_other_settings() {
    let mut path = Path::new(Config {
        pace: true,
        returning: Returning::NoLimitedTransmit,
        ..Config::default()
    });
    path.send(1, 20);
    for _ in 0..2 {
        path.put(Side::Mobile, &path.ack(1));
    }
    let config = Config {
        stage: Stage::Pass,
        ..Config::default()
    };
    path.agent.reconfigure(path.now, config);
    let out = path.take();
    assert_eq!(out.len(), 17);
    assert_eq!(path.send(1 + 20 * MSS, 20).len(), 20);
}

#[test]
fn fewer_go_while_they_wait_too_long() {
    let mut path = Path::new(Config {
        ack_cc: Some(AckCc {
            queue: Some(ReturnQueue {
                bits_per_second: 28_800,
                bytes: 50_000,
                acks_first: false,
                mode: Mode::Keep,
            }),
            mark_ns: 50 * MS,
            most: 25,
            marks: Marks::Own,
        }),
        ..Config::default()
    });
    let mut out = 0;
    let mut number = 1;
    for n in 0..4000_u32 {
        // The server's data, and an answer to each two segments.
        let echo = path.ack(1).timestamps.expect("timestamps").0;
        let data = Segment {
            sequence: 1 + n * MSS,
            payload: vec![1; MSS as usize],
            timestamps: Some((echo, echo.saturating_sub(100))),
            ..path.ack(1)
        };
        path.put(Side::Mobile, &data);
        if n % 2 == 1 {
            number += 2 * MSS;
            out += path.put(Side::Fixed, &path.ack(number)).len();
        }
        out += path.wait(2 * MS).len();
    }
    let counts = path.agent.counts();
    let thinned = counts.acks_dropped[&Dropped::Thinned];
    assert!(
        counts.acks_marked > 3 && counts.ack_ratio_max >= 8,
        "{counts:?}"
    );
    // 8 s carry 553 of 52 bytes.
    assert!(thinned > 1200, "{thinned}");
    assert!(out > 300, "{out}");
    assert_eq!(counts.dropped_queue, 0);
    // A repetition, and one that echoes congestion, go at once, behind the one that waits.
    let before = path.agent.counts().acks_dropped[&Dropped::Thinned];
    let ece = Segment {
        ece: true,
        ..path.ack(number + 2 * MSS)
    };
    path.put(Side::Fixed, &ece);
    path.put(Side::Fixed, &path.ack(number + 2 * MSS));
    assert_eq!(path.agent.counts().acks_dropped[&Dropped::Thinned], before);
}

/// The server's data, and answers to it: what goes on at once, and then, of so many.
fn answered(path: &mut Path, number: &mut u32, answers: u32) -> usize {
    let mut out = 0;
    for _ in 0..answers {
        let echo = path.ack(1).timestamps.expect("timestamps").0;
        let data = Segment {
            sequence: *number,
            payload: vec![1; MSS as usize],
            timestamps: Some((echo, echo.saturating_sub(100))),
            ..path.ack(1)
        };
        path.put(Side::Mobile, &data);
        *number += 2 * MSS;
        out += path.put(Side::Fixed, &path.ack(*number)).len();
        out += path.wait(4 * MS).len();
    }
    out
}

fn cc(queue: Option<ReturnQueue>, marks: Marks) -> Config {
    Config {
        ack_cc: Some(AckCc {
            queue,
            marks,
            ..AckCc::default()
        }),
        ..Config::default()
    }
}

#[test]
fn fewer_go_once_another_machine_says_that_they_wait() {
    let mut path = Path::new(cc(None, Marks::Hear));
    let mut number = 1;
    assert_eq!(answered(&mut path, &mut number, 200), 200);
    let (fixed, mobile) = (([10, 0, 0, 1], 443).into(), ([10, 0, 0, 2], 4000).into());
    let flow = FlowKey { fixed, mobile };
    // Of a flow that is not known, and one that was said too long ago.
    let other = FlowKey {
        mobile: ([10, 0, 0, 2], 4001).into(),
        ..flow
    };
    path.agent.handle_mark(path.now, &Mark { flow: other });
    assert_eq!(answered(&mut path, &mut number, 200), 200);
    path.agent.handle_mark(path.now, &Mark { flow });
    path.wait(1000 * MS);
    assert_eq!(answered(&mut path, &mut number, 200), 200);
    // One is heard once, however many round trips there are in the second for which it counts.
    path.agent.handle_mark(path.now, &Mark { flow });
    answered(&mut path, &mut number, 200);
    let counts = path.agent.counts();
    assert_eq!((counts.acks_marked, counts.ack_ratio_max), (1, 2));
    // However many are heard in a round trip, the ratio is doubled once.
    for _ in 0..10 {
        path.agent.handle_mark(path.now, &Mark { flow });
        answered(&mut path, &mut number, 1);
    }
    let counts = path.agent.counts();
    assert_eq!((counts.acks_marked, counts.ack_ratio_max), (2, 2));
    // Each round trip, which an echo tells, has one.
    for _ in 0..40 {
        path.agent.handle_mark(path.now, &Mark { flow });
        answered(&mut path, &mut number, 30);
    }
    let counts = path.agent.counts();
    assert!(counts.acks_marked > 20, "{counts:?}");
    assert_eq!(counts.ack_ratio_max, 25);
    assert!(counts.acks_dropped[&Dropped::Thinned] > 800, "{counts:?}");
    // Whoever hears of congestion hears all of it at once.
    for _ in 0..10 {
        number += 2 * MSS;
        let ece = Segment {
            ece: true,
            ..path.ack(number)
        };
        let out = path.put(Side::Fixed, &ece);
        assert_eq!(out.last().map(read), Some(ece));
    }
}

#[test]
fn the_machine_with_the_queue_marks_and_lets_all_go() {
    let queue = ReturnQueue {
        bits_per_second: 28_800,
        bytes: 50_000,
        acks_first: false,
        mode: Mode::Keep,
    };
    let mut path = Path::new(cc(Some(queue), Marks::Tell));
    let mut number = 1;
    let out = answered(&mut path, &mut number, 500);
    let marks: Vec<Mark> = std::iter::from_fn(|| path.agent.poll_mark()).collect();
    let counts = path.agent.counts();
    assert_eq!(counts.acks_marked, marks.len() as u64);
    // Two seconds, in which one goes every 20 ms at most.
    assert!((50..=100).contains(&marks.len()), "{}", marks.len());
    assert!(marks.iter().all(|it| it.flow.fixed.port() == 443));
    assert!(counts.acks_dropped.is_empty());
    assert!(out + path.wait(100_000 * MS).len() >= 500);
    // An agent that only tells of marks ignores one that comes.
    path.agent.handle_mark(path.now, &marks[0]);
    assert_eq!(path.agent.counts().ack_ratio_max, 0);
    // A mark from before does not count once the agent is to hear of marks.
    let config = Config {
        stage: Stage::Pass,
        ..cc(None, Marks::Hear)
    };
    path.agent.reconfigure(path.now, config);
    answered(&mut path, &mut number, 100);
    assert_eq!(path.agent.counts().ack_ratio_max, 1);
    // Nobody is told in a dry run.
    let config = Config {
        stage: Stage::Pass,
        dry_run: true,
        ..cc(Some(queue), Marks::Tell)
    };
    path.agent.reconfigure(path.now, config);
    answered(&mut path, &mut number, 500);
    assert_eq!(path.agent.poll_mark(), None);
    assert!(path.agent.counts().acks_marked > marks.len() as u64);
}
