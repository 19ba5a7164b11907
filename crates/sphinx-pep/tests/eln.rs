//! Uploads, packet by packet: what a base station reports, and what the agent of a mobile host does about it
//! (rules §2 in `docs/pep.md`).

mod common;

use std::net::SocketAddr;

use common::{Segment, outputs};
use sphinx_pep::{
    Agent, Cause, Config, FlowKey, Laws, Output, Place, Release, Side, eln::LossReport,
};

const MS: u64 = 1_000_000;
const PAYLOAD: u32 = 1000;

/// An upload through an agent. 2 ms over the hop, 100 ms on the wired side.
struct Upload {
    agent: Agent,
    laws: Laws,
    now: u64,
    isn: u32,
}

fn ends() -> (SocketAddr, SocketAddr) {
    (([192, 0, 2, 1], 443).into(), ([10, 0, 0, 9], 50_000).into())
}

impl Upload {
    fn new(place: Place) -> Upload {
        let mut upload = Upload {
            agent: Agent::new(Config {
                place,
                reports: true,
                ..Config::default()
            }),
            laws: Laws::default(),
            now: MS,
            isn: u32::MAX - 5000,
        };
        let syn = Segment {
            syn: true,
            sack_permitted: true,
            sequence: upload.isn,
            window: 1000,
            timestamps: Some((1, 0)),
            ..Segment::default()
        };
        upload.up(syn.clone());
        upload.now += 100 * MS;
        upload.down(Segment {
            sequence: 77,
            ack: Some(upload.isn.wrapping_add(1)),
            ..syn
        });
        upload.now += 2 * MS;
        upload
    }

    fn put(&mut self, from: Side, segment: Segment) -> Vec<Output> {
        let (fixed, mobile) = ends();
        let packet = match from {
            Side::Fixed => segment.packet(fixed, mobile),
            Side::Mobile => segment.packet(mobile, fixed),
        };
        self.laws.input(from, &packet);
        self.agent.handle_packet(self.now, from, packet);
        self.outputs()
    }

    fn up(&mut self, segment: Segment) -> Vec<Output> {
        self.put(Side::Mobile, segment)
    }

    fn down(&mut self, segment: Segment) -> Vec<Output> {
        self.put(Side::Fixed, segment)
    }

    fn outputs(&mut self) -> Vec<Output> {
        outputs(&mut self.agent, &mut self.laws)
    }

    fn number(&self, n: u32) -> u32 {
        self.isn.wrapping_add(1).wrapping_add(n * PAYLOAD)
    }

    /// The `n`-th segment, which the mobile host sent so many milliseconds ago.
    fn data_sent(&mut self, n: u32, ago: u64) {
        let segment = Segment {
            sequence: self.number(n),
            ack: Some(78),
            window: 500,
            timestamps: Some(((self.now / MS - ago) as u32, 1)),
            payload: vec![n as u8; PAYLOAD as usize],
            ..Segment::default()
        };
        let outputs = self.up(segment);
        assert_eq!(outputs.len(), 1);
        assert_eq!(
            (outputs[0].to, outputs[0].cause),
            (Side::Fixed, Cause::Passed)
        );
    }

    fn data_after(&mut self, ms: u64, n: u32, ago: u64) {
        self.now += ms * MS;
        self.data_sent(n, ago);
    }

    fn data(&mut self, n: u32) {
        self.data_sent(n, 2);
    }

    fn ack(&mut self, n: u32, blocks: &[(u32, u32)]) -> Vec<Cause> {
        let number = |n: u32| self.number(n);
        let answer = Segment {
            sequence: 78,
            ack: Some(number(n)),
            window: 1000,
            sack: blocks
                .iter()
                .map(|(a, b)| (number(*a), number(*b)))
                .collect(),
            timestamps: Some((1, 1)),
            ..Segment::default()
        };
        let outputs = self.down(answer);
        outputs.iter().map(|output| output.cause).collect()
    }

    /// What is reported, in segments.
    fn reported(&mut self) -> Vec<(u32, u32)> {
        let first = self.number(0);
        let index = |number: u32| number.wrapping_sub(first) / PAYLOAD;
        let mut ranges = Vec::new();
        while let Some(report) = self.agent.poll_report() {
            ranges.extend(report.ranges.iter().map(|it| (index(it.0), index(it.1))));
        }
        ranges
    }

    fn wait(&mut self, ms: u64) {
        let end = self.now + ms * MS;
        while let Some(at) = self.agent.next_timeout().filter(|at| *at <= end) {
            self.now = at.max(self.now);
            self.agent.handle_timeout(self.now);
        }
        self.now = end;
    }

    /// The base station reports these segments lost.
    fn lost(&mut self, from: u32, to: u32) -> Vec<Output> {
        let (fixed, mobile) = ends();
        let report = LossReport {
            flow: FlowKey { fixed, mobile },
            ranges: vec![(self.number(from), self.number(to))],
        };
        self.agent.handle_report(self.now, &report);
        self.outputs()
    }
}

#[test]
fn what_the_hop_loses_of_an_upload_is_reported_at_once() {
    let mut upload = Upload::new(Place::Base);
    // Numbers wrap behind the fifth.
    [0, 1, 2, 5].into_iter().for_each(|n| upload.data(n));
    assert_eq!(upload.reported(), [(3, 5)]);
    upload.data(6);
    assert!(upload.reported().is_empty());
    let counts = upload.agent.counts();
    assert_eq!((counts.attributed, counts.unattributed), (1, 0));
    // Half of it is repaired; the rest is reported again, by time.
    upload.now += 4 * MS;
    upload.data(3);
    upload.wait(400);
    let again = upload.reported();
    assert!(
        !again.is_empty() && again.iter().all(|it| *it == (4, 5)),
        "{again:?}"
    );
    // The fixed host has it, however it came: nothing is left to be reported.
    upload.ack(7, &[]);
    upload.wait(10_000);
    assert!(upload.reported().is_empty());
    assert_eq!(upload.agent.next_timeout(), None);
}

/// Somebody who does not know where the stream is acknowledges in the fixed host's name, which the mobile host discards.
#[test]
fn what_has_not_come_is_not_taken_for_acknowledged() {
    let mut upload = Upload::new(Place::Base);
    [0, 2].into_iter().for_each(|n| upload.data(n));
    assert_eq!(upload.reported(), [(1, 2)]);
    upload.ack(1_000_000, &[]);
    upload.wait(400);
    let again = upload.reported();
    assert!(!again.is_empty() && again.iter().all(|it| *it == (1, 2)));
    upload.ack(3, &[]);
    upload.wait(10_000);
    assert!(upload.reported().is_empty());
}

#[test]
fn a_report_is_repeated_when_something_has_overtaken_the_repair() {
    let mut upload = Upload::new(Place::Base);
    [0, 1, 2, 4].into_iter().for_each(|n| upload.data(n));
    assert_eq!(upload.reported(), [(3, 4)]);
    // All this was sent before the report came there, and the repair waits behind it for longer than any before.
    (5..15).for_each(|n| upload.data_after(10, n, 10 * u64::from(n - 4)));
    upload.wait(5);
    assert!(upload.reported().is_empty());
    // This was sent 20 ms after the report.
    upload.data_after(5, 15, 90);
    assert_eq!(upload.reported(), [(3, 4)]);
    // What comes next was sent before the second report.
    (16..20).for_each(|n| upload.data_after(10, n, 90));
    assert!(upload.reported().is_empty());
}

#[test]
fn a_hole_is_reported_eight_times_at_most() {
    let mut upload = Upload::new(Place::Base);
    [0, 2].into_iter().for_each(|n| upload.data(n));
    upload.wait(600_000);
    assert_eq!(upload.reported(), [(1, 2); 8]);
}

#[test]
fn a_segment_that_is_only_late_makes_the_base_station_careful() {
    let mut upload = Upload::new(Place::Base);
    // A segment that comes 4 ms after its report may be its repair.
    [0, 2].into_iter().for_each(|n| upload.data(n));
    assert_eq!(upload.reported(), [(1, 2)]);
    upload.now += 4 * MS;
    upload.data(1);
    // Segment 3 comes at once after its report: it is no repair and was only late.
    upload.data(4);
    assert_eq!(upload.reported(), [(3, 4)]);
    upload.data(3);
    [6, 7].into_iter().for_each(|n| upload.data(n));
    assert!(upload.reported().is_empty());
    upload.data(8);
    assert_eq!(upload.reported(), [(5, 6)]);
}

/// An upload through a queue in which packets have waited for 40 ms, and that lets one go each millisecond.
fn queued() -> Upload {
    let mut upload = Upload::new(Place::Base);
    (0..10).for_each(|n| upload.data(n));
    upload.now += 50 * MS;
    (10..20).for_each(|n| upload.data_after(1, n, 42));
    upload
}

#[test]
fn what_a_queue_drops_is_not_reported() {
    let mut upload = queued();
    // What comes behind it is as early as if nothing were missing.
    upload.data_after(1, 21, 42);
    assert!(upload.reported().is_empty());
    assert_eq!(upload.agent.counts().unattributed, 1);
    (22..30).for_each(|n| upload.data_after(1, n, 42));
    // A gap of 2 ms: the hop has spent the time for the missing segment.
    upload.data_after(2, 31, 42);
    assert_eq!(upload.reported(), [(30, 31)]);
    (32..34).for_each(|n| upload.data_after(1, n, 42));
    // And for this: the other millisecond is that of a repair.
    upload.data_after(2, 30, 80);
    upload.data_after(1, 35, 42);
    assert_eq!(upload.reported(), [(34, 35)]);
    upload.data_after(1, 34, 80);
    upload.data_after(1, 37, 42);
    assert!(upload.reported().is_empty());
    let counts = upload.agent.counts();
    assert_eq!((counts.attributed, counts.unattributed), (2, 2));
}

#[test]
fn a_burst_whose_end_a_queue_dropped_is_not_reported_when_the_queue_is_empty_again() {
    let mut upload = queued();
    upload.data_after(60, 40, 2);
    assert!(upload.reported().is_empty());
    assert_eq!(upload.agent.counts().unattributed, 1);
}

#[test]
fn where_the_pace_is_irregular_only_a_full_queue_drops() {
    let mut upload = queued();
    (20..40).for_each(|n| upload.data_after(1 + 2 * u64::from(n % 2), n, 42));
    upload.data_after(2, 41, 42);
    assert!(upload.reported().is_empty());
    upload.data_after(2, 42, 34);
    upload.data_after(2, 44, 34);
    assert_eq!(upload.reported(), [(43, 44)]);
    // All at once: there is no pace.
    let mut upload = queued();
    (20..40).for_each(|n| upload.data_after(0, n, 42));
    upload.data_after(0, 41, 42);
    assert!(upload.reported().is_empty());
}

#[test]
fn a_late_agent_does_not_take_a_full_queue_for_one_with_room() {
    let mut upload = queued();
    // The agent read this packet 60 ms too late.
    upload.data_after(60, 20, 100);
    upload.agent.handle_lag(upload.now, 60 * MS);
    upload.now += 200 * MS;
    (21..40).for_each(|n| upload.data_after(1 + 2 * u64::from(n % 2), n, 42));
    upload.data_after(2, 41, 42);
    assert!(upload.reported().is_empty());
    upload.data_after(2, 42, 34);
    upload.data_after(2, 44, 34);
    assert_eq!(upload.reported(), [(43, 44)]);
}

/// A segment each 10 ms, with such a timestamp, and then a hole: what is reported.
fn with_timestamps(timestamp: impl Fn(u64) -> Option<u32>) -> Vec<(u32, u32)> {
    let mut upload = Upload::new(Place::Base);
    for n in (0..1000).chain([1001]) {
        upload.now += 10 * MS;
        let segment = Segment {
            sequence: upload.number(n),
            ack: Some(78),
            timestamps: timestamp(upload.now).map(|sent| (sent, 1)),
            payload: vec![1; PAYLOAD as usize],
            ..Segment::default()
        };
        upload.up(segment);
    }
    let counts = upload.agent.counts();
    assert_eq!(counts.attributed + counts.unattributed, 1);
    upload.reported()
}

#[test]
fn without_timestamps_of_a_known_unit_nothing_is_reported() {
    for tick in [MS, 1000] {
        let reported = with_timestamps(|now| Some((now / tick) as u32));
        assert_eq!(reported, [(1000, 1001)], "{tick}");
    }
    for tick in [4 * MS, 10 * MS, 500 * MS, MS / 10] {
        let reported = with_timestamps(|now| Some((now / tick) as u32));
        assert!(reported.is_empty(), "{tick}");
    }
    assert!(with_timestamps(|_| None).is_empty());
    assert!(with_timestamps(|_| Some(7)).is_empty());
}

#[test]
fn data_that_waited_at_first_ends_no_reports() {
    let mut upload = Upload::new(Place::Base);
    upload.now += 5_000 * MS;
    upload.data_sent(0, 1200);
    (1..40).for_each(|n| upload.data_after(10, n, 2));
    upload.data_after(10, 41, 2);
    assert_eq!(upload.reported(), [(40, 41)]);
}

#[test]
fn a_clock_that_is_a_little_fast_ends_no_reports() {
    let mut upload = Upload::new(Place::Base);
    // A segment a minute for seven hours, by a clock that is fast by 50 millionths.
    for n in (0..420).chain([421]) {
        upload.now += 60_000 * MS;
        let clock = upload.now / MS + upload.now / MS * 50 / 1_000_000;
        let segment = Segment {
            sequence: upload.number(n),
            ack: Some(78),
            timestamps: Some((clock as u32, 1)),
            payload: vec![1; PAYLOAD as usize],
            ..Segment::default()
        };
        upload.up(segment);
    }
    assert_eq!(upload.reported(), [(420, 421)]);
}

#[test]
fn reported_segments_are_repaired_and_their_duplicates_held() {
    let mut upload = Upload::new(Place::Mobile);
    (0..6).for_each(|n| upload.data(n));
    upload.now += 4 * MS;
    let outputs = upload.lost(2, 4);
    let repairs: Vec<u32> = outputs
        .iter()
        .map(|it| Segment::read(&it.packet).expect("a segment").sequence)
        .collect();
    assert_eq!(repairs, [upload.number(2), upload.number(3)]);
    let is_repair = |it: &Output| (it.to, it.cause) == (Side::Fixed, Cause::Repair);
    assert!(outputs.iter().all(is_repair));
    upload.now += 100 * MS;
    assert_eq!(upload.ack(2, &[]), [Cause::Passed]);
    assert_eq!(upload.ack(2, &[(4, 5)]), []);
    assert_eq!(upload.ack(2, &[(4, 6)]), []);
    assert_eq!(upload.ack(3, &[(4, 6)]), [Cause::Concealed]);
    assert_eq!(upload.ack(6, &[]), [Cause::Passed]);
    let counts = upload.agent.counts();
    assert_eq!((counts.repaired, counts.held), (2, 2));
}

#[test]
fn a_repair_is_repeated_only_if_that_is_reported() {
    let mut upload = Upload::new(Place::Mobile);
    (0..8).for_each(|n| upload.data(n));
    upload.now += 4 * MS;
    assert_eq!(upload.lost(2, 3).len(), 1);
    upload.now += 100 * MS;
    assert_eq!(upload.ack(2, &[]), [Cause::Passed]);
    // It waits behind others, or is lost: the base station knows.
    for last in 4..8 {
        upload.now += 30 * MS;
        upload.ack(2, &[(3, last)]);
    }
    upload.wait(5000);
    assert_eq!(upload.agent.counts().repaired, 1);
    upload.lost(2, 3);
    assert_eq!(upload.agent.counts().repaired, 2);
}

#[test]
fn what_was_not_reported_is_the_senders() {
    let mut upload = Upload::new(Place::Mobile);
    (0..6).for_each(|n| upload.data(n));
    upload.now += 100 * MS;
    assert_eq!(upload.ack(2, &[(3, 4)]), [Cause::Passed]);
    upload.wait(30);
    assert_eq!(upload.ack(2, &[(3, 6)]), [Cause::Passed]);
    let counts = upload.agent.counts();
    assert_eq!((counts.repaired, counts.held), (0, 0));
    assert_eq!(counts.releases(Release::NotReported), 1);
    // Nor is anything repaired by time where the tail is late.
    upload.ack(6, &[]);
    upload.data(6);
    upload.wait(5000);
    assert_eq!(upload.agent.counts().repaired, 0);
}

#[test]
fn reports_of_what_is_not_known_do_nothing() {
    let mut upload = Upload::new(Place::Mobile);
    (0..4).for_each(|n| upload.data(n));
    // Behind what was sent, backwards, and acknowledged.
    assert_eq!(upload.lost(3, 9), []);
    assert_eq!(upload.lost(3, 1), []);
    upload.ack(4, &[]);
    assert_eq!(upload.lost(1, 3), []);
    // Segments of another flow.
    let (fixed, mobile) = ends();
    let report = LossReport {
        flow: FlowKey {
            fixed: mobile,
            mobile: fixed,
        },
        ranges: vec![(1, 2)],
    };
    upload.agent.handle_report(upload.now, &report);
    assert_eq!((upload.outputs(), upload.agent.flows_known()), (vec![], 1));
    // A base station is not sent reports.
    let mut upload = Upload::new(Place::Base);
    (0..4).for_each(|n| upload.data(n));
    assert_eq!(upload.lost(1, 3), []);
}

#[test]
fn what_passed_while_the_agent_was_late_is_not_reported() {
    let mut upload = Upload::new(Place::Base);
    (0..3).for_each(|n| upload.data(n));
    upload.agent.handle_lag(upload.now, 50 * MS);
    // These segments pass unread, as the agent is late.
    (3..6).for_each(|n| upload.data(n));
    upload.now += 200 * MS;
    upload.data(6);
    assert!(upload.reported().is_empty());
    upload.data(8);
    assert_eq!(upload.reported(), [(7, 8)]);
}
