//! RDB, packet by packet: what is bundled, what is learned from answers, and what the sender hears of it. The first tests are the
//! sequences of the published patch's own tests (packetdrill, `net/ipv4/tcp_rdb.c`).

mod common;

use bytes::Bytes;
use common::{Segment, outputs};
use sphinx_pep::{
    Agent, Cause, Config, Laws, Output, Side, Stage,
    rdb::{Alone, Mode, Rdb, Response, Slowed, Thin},
};

const MS: u64 = 1_000_000;
const RTT: u64 = 200 * MS;

/// A connection through an agent, which the sender has opened. Sequence numbers are counted from the SYN's, as packetdrill does.
struct Path {
    agent: Agent,
    laws: Laws,
    now: u64,
    /// Sequence number behind what the sender has sent.
    next: u32,
    window: u16,
    v6: bool,
    /// The receiver's TCP port.
    port: u16,
}

const PAPER: Rdb = Rdb {
    mode: Mode::Paper,
    thin: Thin::Dpifl,
    dpifl_itt_ns: 10 * MS,
    max_packets: 1,
    max_bytes: 0,
    response: Response::Auto,
    extra_percent: 10_000,
    max_extra: None,
};

fn bytes(from: u32, to: u32) -> Vec<u8> {
    (from..to)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

impl Path {
    fn new(rdb: Rdb) -> Path {
        Path::with(rdb, |_, _| {})
    }

    /// A path whose SYNs have been changed.
    fn with(rdb: Rdb, change: impl Fn(&mut Segment, &mut Segment)) -> Path {
        let config = Config {
            stage: Stage::Rdb(rdb),
            ..Config::default()
        };
        let mut path = Path {
            agent: Agent::new(config),
            laws: Laws::default(),
            now: 0,
            next: 1,
            window: 500,
            v6: false,
            port: 40_000,
        };
        path.open(change);
        path
    }

    /// A connection, in place of the one before.
    fn open(&mut self, change: impl Fn(&mut Segment, &mut Segment)) {
        self.next = 1;
        let mut syn = Segment {
            syn: true,
            mss: Some(1460),
            scale: Some(7),
            sack_permitted: true,
            window: 65_535,
            ..Segment::default()
        };
        let mut answer = Segment {
            ack: Some(1),
            ..syn.clone()
        };
        change(&mut syn, &mut answer);
        self.put(Side::Fixed, &syn);
        self.now += RTT;
        self.put(Side::Mobile, &answer);
        self.put(
            Side::Fixed,
            &Segment {
                sequence: 1,
                ack: Some(1),
                window: 500,
                ..Segment::default()
            },
        );
    }

    fn put(&mut self, from: Side, segment: &Segment) -> Vec<Output> {
        let ends = match self.v6 {
            true => [
                ([0xfd00, 0, 0, 0, 0, 0, 0, 1], 443).into(),
                ([0xfd00, 0, 0, 0, 0, 0, 0, 2], self.port).into(),
            ],
            false => [
                ([10, 0, 0, 1], 443).into(),
                ([10, 0, 0, 2], self.port).into(),
            ],
        };
        let [fixed, mobile] = ends;
        let packet = match from {
            Side::Fixed => segment.packet(fixed, mobile),
            Side::Mobile => segment.packet(mobile, fixed),
        };
        self.put_packet(from, packet)
    }

    fn put_packet(&mut self, from: Side, packet: Bytes) -> Vec<Output> {
        self.laws.input(from, &packet);
        self.agent.handle_packet(self.now, from, packet);
        outputs(&mut self.agent, &mut self.laws)
    }

    /// A new segment of so many bytes: what goes on, as packetdrill writes it.
    fn write(&mut self, length: u32) -> (u32, u32) {
        let segment = self.segment(length);
        self.send(&segment)
    }

    fn segment(&mut self, length: u32) -> Segment {
        let from = self.next;
        self.next += length;
        Segment {
            sequence: from,
            ack: Some(1),
            window: 500,
            payload: bytes(from, from + length),
            ..Segment::default()
        }
    }

    fn send(&mut self, segment: &Segment) -> (u32, u32) {
        let outputs = self.put(Side::Fixed, segment);
        let [output] = &outputs[..] else {
            panic!("{outputs:?}")
        };
        let sent = Segment::read(&output.packet).expect("a whole segment");
        let end = sent.sequence + sent.payload.len() as u32;
        assert_eq!(sent.payload, bytes(sent.sequence, end));
        assert_eq!(
            output.cause == Cause::Bundled,
            sent.sequence < segment.sequence
        );
        assert_eq!(
            (sent.ack, sent.window, sent.fin, sent.cwr),
            (segment.ack, segment.window, segment.fin, segment.cwr)
        );
        (sent.sequence, end)
    }

    /// An acknowledgement with these SACK blocks: what the sender gets.
    fn ack(&mut self, ack: u32, sack: &[(u32, u32)]) -> Segment {
        let segment = Segment {
            sequence: 1,
            ack: Some(ack),
            window: self.window,
            sack: sack.to_vec(),
            ..Segment::default()
        };
        let outputs = self.put(Side::Mobile, &segment);
        let [output] = &outputs[..] else {
            panic!("{outputs:?}")
        };
        let got = Segment::read(&output.packet).expect("a whole segment");
        assert_eq!(got.ack, Some(ack));
        got
    }

    fn wait(&mut self, ms: u64) {
        self.now += ms * MS;
    }

    /// So many writes, 10 ms apart.
    fn writes(&mut self, count: usize, length: u32) -> Vec<(u32, u32)> {
        (0..count)
            .map(|_| {
                self.wait(10);
                self.write(length)
            })
            .collect()
    }
}

#[test]
fn as_many_packets_as_fit() {
    let mut path = Path::new(Rdb {
        max_packets: 0,
        ..PAPER
    });
    assert_eq!(
        path.writes(4, 200),
        [(1, 201), (1, 401), (1, 601), (1, 801)]
    );
    // With 1200 bytes, the oldest ones stay behind.
    assert_eq!(path.writes(3, 200), [(1, 1001), (1, 1201), (201, 1401)]);
}

#[test]
fn no_more_bytes_than_wanted() {
    let mut path = Path::new(Rdb {
        max_packets: 0,
        max_bytes: 450,
        ..PAPER
    });
    let expected = [
        (1, 101),
        (1, 201),
        (1, 301),
        (1, 401),
        (101, 501),
        (201, 601),
    ];
    assert_eq!(path.writes(6, 100), expected);
}

#[test]
fn so_many_packets() {
    let mut path = Path::new(PAPER);
    assert_eq!(
        path.writes(4, 100),
        [(1, 101), (1, 201), (101, 301), (201, 401)]
    );
    let mut path = Path::new(Rdb {
        max_packets: 2,
        ..PAPER
    });
    assert_eq!(
        path.writes(4, 100),
        [(1, 101), (1, 201), (1, 301), (101, 401)]
    );
}

#[test]
fn ipv6_and_timestamps() {
    let mut path = Path::new(PAPER);
    path.v6 = true;
    // Mid-stream over another family: nothing is known of it.
    assert_eq!(path.writes(2, 100), [(1, 101), (101, 201)]);
    let with = |path: &mut Path| {
        let segment = path.segment(100);
        path.send(&Segment {
            timestamps: Some((7, 8)),
            ..segment
        })
    };
    let mut path = Path::new(PAPER);
    assert_eq!([with(&mut path), with(&mut path)], [(1, 101), (1, 201)]);
    // The options take room from the payload.
    path.next = 1;
    let mut path = Path::with(PAPER, |_, answer| answer.mss = Some(212));
    assert_eq!([with(&mut path), with(&mut path)], [(1, 101), (1, 201)]);
    let mut path = Path::with(PAPER, |_, answer| answer.mss = Some(211));
    assert_eq!([with(&mut path), with(&mut path)], [(1, 101), (101, 201)]);
}

/// `packets_in_flight × itt < srtt`: with 10 ms and 200 ms up to 19 packets in flight.
#[test]
fn only_thin_streams_repeat() {
    let mut path = Path::new(PAPER);
    let bundled = |sent: Vec<(u32, u32)>| sent.iter().filter(|it| it.1 - it.0 > 10).count();
    let mut sent = Vec::new();
    for _ in 0..30 {
        path.wait(1);
        sent.push(path.write(10));
    }
    // The first one has nothing to repeat.
    assert_eq!(bundled(sent), 19);
    assert_eq!(path.agent.counts().alone[&Alone::Thick], 10);

    let mut path = Path::new(Rdb {
        thin: Thin::Spifl(3),
        ..PAPER
    });
    assert_eq!(bundled(path.writes(10, 10)), 3);
    let mut path = Path::new(Rdb {
        thin: Thin::Always,
        ..PAPER
    });
    assert_eq!(bundled(path.writes(100, 10)), 99);
}

#[test]
fn what_is_not_bundled() {
    let mut path = Path::new(PAPER);
    path.write(100);
    // The end of the stream.
    let fin = path.segment(100);
    assert_eq!(path.send(&Segment { fin: true, ..fin }), (101, 201));
    // Behind which nothing should come.
    path.next += 1;
    assert_eq!(path.write(100), (202, 302));

    let mut path = Path::new(PAPER);
    path.write(100);
    // An option that is not known, and MPTCP.
    for other in [vec![1, 1, 253, 4, 1, 2, 1, 1], vec![30, 4, 0, 0]] {
        let segment = path.segment(100);
        let outputs = path.put(Side::Fixed, &Segment { other, ..segment });
        assert_eq!(outputs[0].cause, Cause::Passed);
    }
    assert_eq!(path.agent.counts().alone[&Alone::Marked], 2);

    // A full segment, and the one behind it, get no copies.
    let mut path = Path::new(PAPER);
    path.write(100);
    assert_eq!(path.write(1460), (101, 1561));
    assert_eq!(path.write(100), (1561, 1661));

    // What the sender sends again, and what follows something that was not seen.
    let mut path = Path::new(PAPER);
    path.write(100);
    path.next = 1;
    assert_eq!(path.write(100), (1, 101));
    path.next = 201;
    assert_eq!(path.write(100), (201, 301));
    assert_eq!(path.write(100), (201, 401));
    assert_eq!(path.agent.counts().alone[&Alone::Unseen], 1);

    // What the receiver has reported by SACK is not copied.
    let mut path = Path::new(PAPER);
    path.writes(2, 100);
    path.ack(1, &[(101, 201)]);
    assert_eq!(path.write(100), (201, 301));

    // No bundle goes beyond a window that has become smaller.
    let mut path = Path::new(PAPER);
    path.write(100);
    path.window = 1;
    path.ack(1, &[]);
    assert_eq!(path.write(100), (101, 201));
    assert_eq!(path.agent.counts().alone[&Alone::Window], 1);
}

#[test]
fn a_part_that_is_acknowledged_is_not_repeated() {
    let mut path = Path::new(PAPER);
    path.write(100);
    path.ack(41, &[]);
    assert_eq!(path.write(100), (41, 201));
    path.ack(201, &[]);
    assert_eq!(path.write(100), (201, 301));
}

/// Every copy that was not needed is answered by a D-SACK, of which the sender never hears.
#[test]
fn reports_of_copies_are_kept_from_the_sender() {
    let mut path = Path::new(PAPER);
    path.writes(4, 100);
    assert_eq!(path.ack(101, &[]).sack, []);
    assert_eq!(path.ack(201, &[(1, 101)]).sack, []);
    // Others stay: of a hole, and of what nobody has sent twice.
    assert_eq!(path.ack(201, &[(101, 201), (301, 401)]).sack, [(301, 401)]);
    let counts = path.agent.counts();
    assert_eq!((counts.dsacks_stripped, counts.losses_repaired), (2, 0));
    let mut path = Path::new(PAPER);
    path.writes(2, 100);
    assert_eq!(path.ack(201, &[(101, 201)]).sack, [(101, 201)]);
}

/// What the sender itself has sent twice is its own business: it undoes its response by such reports.
#[test]
fn reports_of_the_senders_own_copies_stay() {
    let mut path = Path::new(PAPER);
    path.writes(2, 100);
    path.next = 1;
    path.write(100);
    path.next = 201;
    let got = path.ack(201, &[(1, 101)]);
    assert_eq!(got.sack, [(1, 101)]);
    // The other copy was the agent's.
    assert_eq!(path.ack(201, &[(1, 101)]).sack, []);
}

#[test]
fn a_loss_is_known_by_the_missing_report() {
    let mut path = Path::new(PAPER);
    path.writes(5, 100);
    path.ack(101, &[]);
    path.ack(201, &[(1, 101)]);
    // 201:301 was lost, and came with the next one.
    path.ack(401, &[]);
    path.ack(501, &[(301, 401)]);
    let counts = path.agent.counts();
    assert_eq!((counts.losses_repaired, counts.losses_unknown), (1, 0));
}

/// The published rule takes an acknowledgement of two packets for a loss.
#[test]
fn delayed_acknowledgements_are_no_losses() {
    let mut path = Path::new(PAPER);
    path.writes(6, 100);
    path.ack(201, &[(1, 101)]);
    path.ack(401, &[(201, 301)]);
    path.ack(601, &[(401, 501)]);
    assert_eq!(path.agent.counts().losses_unknown, 0);
    path.writes(3, 100);
    path.ack(901, &[(701, 801)]);
    let counts = path.agent.counts();
    assert_eq!(counts.losses_repaired, 0);
    // Of two bundles in one acknowledgement, only the last one's copy is reported.
    assert_eq!(counts.losses_unknown, 1);
}

#[test]
fn nothing_is_known_of_a_receiver_that_does_not_report_copies() {
    let mut path = Path::new(PAPER);
    path.writes(4, 100);
    path.ack(201, &[]);
    path.ack(401, &[]);
    assert_eq!(path.agent.counts().losses_repaired, 0);
    // Nor where data comes with the acknowledgement: an earlier one may have had the report.
    path.writes(2, 100);
    path.ack(501, &[(301, 401)]);
    path.ack(601, &[(401, 501)]);
    path.writes(2, 100);
    let data = Segment {
        sequence: 1,
        ack: Some(801),
        window: 500,
        payload: vec![1],
        ..Segment::default()
    };
    path.put(Side::Mobile, &data);
    assert_eq!(path.agent.counts().losses_repaired, 0);
}

/// A sender that has timed out may join what it sends again: such a segment is too long to be led here.
#[test]
fn what_may_have_been_sent_again_unseen_is_unknown() {
    let mut path = Path::new(PAPER);
    path.writes(3, 100);
    path.ack(201, &[(1, 101)]);
    path.ack(301, &[(101, 201)]);
    path.writes(3, 500);
    path.wait(500);
    path.ack(1801, &[]);
    let counts = path.agent.counts();
    assert_eq!((counts.losses_repaired, counts.losses_unknown), (0, 2));
}

#[test]
fn what_was_overtaken_was_not_lost() {
    let mut path = Path::new(PAPER);
    path.writes(4, 100);
    path.ack(101, &[]);
    path.ack(201, &[(1, 101)]);
    path.ack(401, &[]);
    assert_eq!(path.agent.counts().losses_repaired, 1);
    // 201:301 comes after all.
    assert_eq!(path.ack(401, &[(201, 301)]).sack, []);
    let counts = path.agent.counts();
    assert_eq!((counts.losses_repaired, counts.overtaken), (0, 1));
}

/// A sender with ECN hears of congestion until it has answered, once in a round trip.
#[test]
fn losses_count_as_congestion_with_ecn() {
    let mut path = Path::with(PAPER, |syn, answer| {
        (syn.ece, syn.cwr, answer.ece) = (true, true, true);
    });
    path.writes(8, 100);
    path.wait(150);
    path.ack(101, &[]);
    assert!(!path.ack(201, &[(1, 101)]).ece);
    assert!(path.ack(401, &[]).ece);
    assert!(path.ack(501, &[(301, 401)]).ece);
    let answer = path.segment(100);
    path.send(&Segment {
        cwr: true,
        ..answer
    });
    assert!(!path.ack(501, &[]).ece);
    // Another loss within the round trip.
    assert!(!path.ack(701, &[]).ece);
    let counts = path.agent.counts();
    assert_eq!(counts.losses_repaired, 2);
    assert_eq!(
        counts.slowed.into_iter().collect::<Vec<_>>(),
        [(Slowed::Ecn, 1)]
    );
    // The answer may be in a segment that is too long to be led here.
    path.ack(901, &[(601, 701)]);
    path.wait(500);
    path.writes(3, 100);
    path.ack(1001, &[]);
    assert!(path.ack(1201, &[]).ece);
    path.next += 1460;
    path.write(100);
    assert!(!path.ack(1201, &[]).ece);
}

/// ECN as in RFC 3168 also comes of a client that offers AccECN (RFC 9768) to a server that has not got it; AccECN itself counts marks,
/// and is not for the agent to write.
#[test]
fn classic_and_accurate_ecn_are_told_apart() {
    let slowed_by = |change: fn(&mut Segment, &mut Segment)| {
        let mut path = Path::with(PAPER, change);
        path.writes(4, 100);
        path.ack(101, &[]);
        path.ack(201, &[(1, 101)]);
        path.ack(401, &[]);
        let slowed = path.agent.counts().slowed;
        slowed.into_keys().collect::<Vec<_>>()
    };
    let fallen_back = slowed_by(|syn, answer| {
        (syn.ae, syn.ece, syn.cwr) = (true, true, true);
        answer.ece = true;
    });
    assert_eq!(fallen_back, [Slowed::Ecn]);
    let both = slowed_by(|syn, answer| {
        (syn.ae, syn.ece, syn.cwr) = (true, true, true);
        answer.cwr = true;
    });
    assert_eq!(both, [Slowed::NoEffect]);
}

#[test]
fn without_ecn_the_window_is_smaller_for_a_round_trip() {
    let rdb = Rdb {
        thin: Thin::Always,
        ..PAPER
    };
    let mut path = Path::new(rdb);
    path.writes(3, 100);
    path.ack(101, &[]);
    path.ack(201, &[(1, 101)]);
    // Too little in flight for a smaller window to matter.
    path.writes(2, 100);
    path.ack(401, &[]);
    assert_eq!(path.agent.counts().slowed[&Slowed::NoEffect], 1);
    path.ack(501, &[(301, 401)]);
    path.wait(500);
    path.writes(20, 600);
    path.wait(100);
    // Half of what is in flight, 10 800 bytes, in units of 128.
    let got = path.ack(1701, &[]);
    assert_eq!(got.window, 43);
    assert_eq!(path.agent.counts().slowed[&Slowed::Window], 1);
    path.wait(2000);
    assert_eq!(path.ack(1701, &[]).window, 500);

    let mut path = Path::new(Rdb {
        response: Response::None,
        ..rdb
    });
    path.writes(4, 600);
    path.ack(601, &[]);
    path.ack(1201, &[(1, 601)]);
    path.ack(2401, &[]);
    assert_eq!(path.agent.counts().losses_repaired, 1);
    assert!(path.agent.counts().slowed.is_empty());
}

/// No copies on a clean path; for a minute after a sign of loss, in any flow to the host.
#[test]
fn copies_only_where_packets_are_lost() {
    let mut path = Path::new(Rdb {
        mode: Mode::Auto,
        ..PAPER
    });
    assert_eq!(path.writes(3, 100), [(1, 101), (101, 201), (201, 301)]);
    path.ack(1, &[(101, 301)]);
    assert_eq!(path.write(100), (301, 401));
    assert_eq!(path.write(100), (301, 501));
    path.ack(501, &[(301, 401)]);
    path.wait(59_000);
    assert_eq!(path.writes(2, 100), [(501, 601), (501, 701)]);
    path.ack(701, &[(501, 601)]);
    path.wait(2_000);
    assert_eq!(path.writes(2, 100), [(701, 801), (801, 901)]);
    assert_eq!(path.agent.counts().alone[&Alone::Clean], 5);
    // Another connection to the same host.
    path.ack(701, &[(801, 901)]);
    path.port += 1;
    path.open(|_, _| {});
    assert_eq!(path.writes(2, 100), [(1, 101), (1, 201)]);
}

/// Where several segments in a row are lost more than once, as many go along, as long as that is so.
#[test]
fn as_many_copies_as_are_lost_in_a_row() {
    let mut path = Path::new(Rdb {
        mode: Mode::Auto,
        ..PAPER
    });
    // Three of four are lost, and the fourth has no copy yet.
    path.writes(4, 100);
    path.ack(1, &[(301, 401)]);
    path.ack(401, &[]);
    // A run that was seen once only does not count.
    assert_eq!(path.writes(2, 100), [(401, 501), (401, 601)]);
    path.ack(601, &[(401, 501)]);
    // Again three, of which the copy of one came with the fourth.
    path.writes(4, 100);
    path.ack(601, &[(801, 1001)]);
    path.ack(1001, &[]);
    let more = path.writes(5, 100);
    assert_eq!(more[3..], [(1001, 1401), (1101, 1501)]);
    // Those three are repaired together: it is still so a minute after the first ones.
    path.wait(50_000);
    path.ack(1101, &[]);
    path.ack(1501, &[(1101, 1201)]);
    path.writes(4, 100);
    path.ack(1901, &[]);
    path.wait(20_000);
    assert_eq!(path.writes(4, 100)[3], (1901, 2301));
    path.ack(2301, &[(1901, 2001)]);
    // A minute later nothing is known any more.
    path.wait(59_000);
    path.writes(3, 100);
    path.ack(2301, &[(2501, 2601)]);
    path.ack(2601, &[]);
    assert_eq!(path.writes(3, 100)[2], (2701, 2901));
}

/// The published mode repeats as many as it was told to, whatever was lost in a row.
#[test]
fn the_published_mode_has_one_copy_whatever_is_lost() {
    let mut path = Path::new(PAPER);
    for first in [1, 401, 801] {
        path.writes(4, 100);
        path.ack(first, &[(first + 200, first + 400)]);
        path.ack(first + 400, &[]);
    }
    let sent = path.writes(5, 100);
    assert_eq!(sent[3..], [(1401, 1601), (1501, 1701)]);
}

#[test]
fn copies_have_a_budget() {
    let mut path = Path::new(Rdb {
        max_packets: 0,
        extra_percent: 100,
        ..PAPER
    });
    let sent = path.writes(40, 30);
    let wire: u32 = sent.iter().map(|it| it.1 - it.0).sum();
    assert!(wire <= 2 * 40 * 30 && wire > 40 * 30 + 500, "{wire}");
    // 8 kbit/s are 10 bytes in 10 ms, and one packet at the beginning.
    let mut path = Path::new(Rdb {
        max_extra: Some(8_000),
        thin: Thin::Always,
        ..PAPER
    });
    let sent = path.writes(100, 100);
    let bundled = sent.iter().filter(|it| it.1 - it.0 > 100).count();
    assert!((24..=25).contains(&bundled), "{bundled}");
}

/// Bundles that never arrive while plain segments do: the path is too narrow for them. So it is if longer ones have arrived before.
#[test]
fn bundles_that_vanish_become_shorter() {
    bundles_vanish(false);
    bundles_vanish(true);
}

fn bundles_vanish(was_wider: bool) {
    let mut path = Path::new(PAPER);
    let mut from = 1;
    if was_wider {
        assert_eq!(path.writes(2, 500), [(1, 501), (1, 1001)]);
        path.ack(501, &[]);
        path.ack(1001, &[(1, 501)]);
        from = 1001;
    }
    for _ in 0..3 {
        path.next = from;
        let sent = path.writes(2, 500);
        assert_eq!(sent[1], (from, from + 1000));
        path.ack(from + 500, &[]);
        // The sender repeats what the bundle had, and that arrives.
        path.next = from + 500;
        path.write(500);
        path.ack(from + 1000, &[]);
        from += 1000;
        path.wait(1000);
    }
    path.next = from;
    assert_eq!(
        path.writes(2, 500),
        [(from, from + 500), (from + 500, from + 1000)]
    );
    path.ack(from + 1000, &[]);
    assert_eq!(
        path.writes(2, 100),
        [(from + 1000, from + 1100), (from + 1000, from + 1200)]
    );
}

#[test]
fn a_dry_run_says_what_would_have_been() {
    let mut path = Path::new(PAPER);
    let config = Config {
        dry_run: true,
        ..path.agent.config().clone()
    };
    path.agent.reconfigure(path.now, config);
    for n in 0..3 {
        let from = path.next;
        let outputs = path.segment(100);
        let outputs = path.put(Side::Fixed, &outputs);
        assert_eq!(outputs[0].cause, Cause::Passed, "{n}");
        assert_eq!(
            Segment::read(&outputs[0].packet).map(|it| it.sequence),
            Some(from)
        );
    }
    // The first one was lost: the second one would have had it.
    path.ack(1, &[(101, 301)]);
    let again = Segment {
        sequence: 1,
        ack: Some(1),
        window: 500,
        payload: bytes(1, 101),
        ..Segment::default()
    };
    path.put(Side::Fixed, &again);
    let counts = path.agent.counts();
    assert_eq!(
        (counts.resent, counts.losses_repaired, counts.bundled),
        (1, 1, 2)
    );
}

/// The agent may vanish, or begin, at any packet: what it has not seen from the beginning passes.
#[test]
fn a_connection_that_began_before_the_agent_is_left_alone() {
    let mut path = Path::new(PAPER);
    let config = path.agent.config().clone();
    path.writes(2, 100);
    path.agent = Agent::new(config);
    assert_eq!(path.writes(2, 100), [(201, 301), (301, 401)]);
}
