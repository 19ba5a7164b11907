//! Many streams over one session, in virtual time: with links and applications of which a seed is the whole
//! description.
//!
//! ```text
//! SPHINX_STREAMS_SEEDS=2000 cargo test -p sphinx-driver --release --test streams
//! SPHINX_STREAMS_SEED=17 cargo test -p sphinx-driver --release --test streams
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use sphinx_driver::EndReason;
use sphinx_fec::CodeId;
use sphinx_link::{Depth, LinkConfig, Loss, Rate};
use sphinx_proto::cc::CcKind;
use sphinx_proto::{Nanos, Urgency};
use sphinx_sim::{End, MS, Pair, Plain, ReadOrder, Reader, Rng, SEC, Scenario, Ways, Write};

/// Seeds of an ordinary test run.
const SEEDS: u64 = 60;
/// A stream whose own part of a small window is all that others left it gets 64 bytes a round trip.
const LIMIT: Nanos = 600 * SEC;
/// Streams that may be open at a time, where that matters.
const OPEN_MAX: u64 = 320;

#[derive(Debug, Clone)]
struct Streams {
    seed: u64,
    count: u64,
    /// Bytes of every stream.
    len: u64,
    /// And of every answer, where streams have two directions.
    answer: Option<u64>,
    /// Bytes handed over at a time; 0: all at once.
    message: u64,
    /// Whether these are messages that end with a flush.
    flushes: bool,
    window: u64,
    order: ReadOrder,
    reader: Reader,
    /// Streams, from the first one on, that are accepted and never read.
    unread: u64,
    rate: u64,
    delay: Duration,
    loss: f64,
    cc: CcKind,
    code: Option<CodeId>,
    /// Share of packets that arrive twice.
    duplication: f64,
    packet_delay_max: Nanos,
    decode_delay_max: Nanos,
}

impl Streams {
    fn random(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let count = match rng.below(3) {
            0 => rng.pick(&[1, 2, 17, 32, 256]),
            _ => 1 + rng.below(256),
        };
        let window = rng.pick(&[400_000, 600_000, 1 << 20, 3 << 20]);
        let total = window * (50 + rng.below(150)) / 100;
        Self {
            seed,
            count,
            len: total / count + rng.below(2000),
            message: rng.pick(&[0, 0, 400, 400]),
            flushes: rng.chance(0.3),
            window,
            order: rng.pick(&[
                ReadOrder::AsItComes,
                ReadOrder::AllAtOnce,
                ReadOrder::OneByOne,
                ReadOrder::LastFirst,
                ReadOrder::Random,
            ]),
            reader: rng.pick(&[
                Reader::InOrder,
                Reader::InOrder,
                Reader::AnyOrder,
                Reader::Slow(20_000_000),
                Reader::Slow(2_000_000),
            ]),
            unread: rng.pick(&[0, 0, 0, count / 2, count - 1]),
            rate: rng.pick(&[20_000_000, 200_000_000, 1_000_000_000]),
            delay: Duration::from_micros(rng.pick(&[20, 1_000, 20_000])),
            loss: rng.pick(&[0.0, 0.0, 0.01, 0.2]),
            cc: rng.pick(&[CcKind::Bbr, CcKind::Bbr, CcKind::Fixed(25_000_000)]),
            code: rng.pick(&[
                Some(CodeId::Rlc),
                Some(CodeId::Rlc),
                Some(CodeId::Window),
                Some(CodeId::FftRs),
                None,
            ]),
            duplication: rng.pick(&[0.0, 0.0, 0.2]),
            packet_delay_max: rng.pick(&[0, 0, 100_000]),
            decode_delay_max: rng.pick(&[0, 0, 5_000_000]),
            answer: rng.chance(0.3).then(|| rng.below(window / count + 1)),
        }
    }

    fn scenario(&self) -> Scenario {
        let link = |seed| LinkConfig {
            seed,
            rate: Rate::Constant(self.rate),
            queue: Depth::Bytes(200_000),
            delay: self.delay,
            loss: Loss::Bernoulli(self.loss),
            duplication: self.duplication,
            ..LinkConfig::default()
        };
        let mut scenario = Scenario::new((link(self.seed), link(self.seed ^ 1)));
        scenario.seed = self.seed;
        (scenario.cc, scenario.code) = (self.cc, self.code);
        scenario.idle_timeout = [5 * SEC; 2];
        scenario.recv_window = self.window;
        scenario.send_window = 4 << 20;
        // It grows and shrinks, but not below what it began with.
        let rng = &mut Rng::new(self.seed ^ 0x77);
        for _ in 0..rng.pick(&[0, 0, 2, 20]) {
            let at = rng.within(1, 3_000) * 1_000_000;
            scenario.windows.push((at, self.window * rng.within(1, 4)));
        }
        scenario.windows.sort_unstable();
        for id in 0..self.count {
            let mut left = self.len;
            while left > 0 {
                let len = match self.message {
                    0 => left,
                    message => message.min(left),
                };
                left -= len;
                scenario.client.writes.push(Write {
                    at: 0,
                    stream: id,
                    len,
                    end_of_stream: left == 0,
                });
            }
        }
        scenario.client.flushes = self.flushes;
        if let Some(len) = self.answer {
            (scenario.client.ways, scenario.server.ways) = (Ways::Asks, Ways::Answers);
            let answer = |stream| Write {
                at: 0,
                stream,
                len,
                end_of_stream: true,
            };
            scenario.server.writes = (0..self.count).map(answer).collect();
        }
        let server = &mut scenario.server;
        server.unread = (0..self.unread).collect();
        (server.order, server.reader) = (self.order, self.reader);
        server.packet_delay_max = self.packet_delay_max;
        server.job_delay_max = self.decode_delay_max;
        scenario
    }

    /// Whether everything that is read has been.
    fn is_read(&self, client: &End<Plain>, server: &End<Plain>) -> bool {
        let mut read = self.unread..self.count;
        let mut answered = 0..self.count;
        read.all(|id| server.stream_read(id) == Some(self.len))
            && (self.answer.is_none() || answered.all(|id| client.stream_read(id) == self.answer))
    }
}

/// Runs until everything that is read has been; how long that took.
fn transfer(streams: &Streams, limit: Nanos) -> Result<Nanos, (Nanos, EndReason)> {
    let mut pair = streams.scenario().build();
    let ended = |pair: &Pair| pair.ends.iter().find_map(|end| end.events.first().cloned());
    let done = pair.run_until(limit, |pair| {
        ended(pair).is_some()
            || streams.unread < streams.count && streams.is_read(pair.client(), pair.server())
    });
    let took = pair.now;
    match ended(&pair) {
        Some(end) => Err(end),
        None => {
            assert!(done, "not done");
            let stats = pair.ends.each_ref().map(|end| end.session().stats());
            for (end, peer) in [(0, 1), (1, 0)] {
                let (received, sent) = (stats[end].packets_received, stats[peer].packets_sent);
                assert!(received <= sent, "a packet opened twice");
            }
            // The last block may be with the reader.
            let read = pair.run_until(pair.now + SEC, |pair| pair.server().rx_held() == 0);
            assert!(
                read || streams.unread > 0,
                "memory of blocks that have been read"
            );
            Ok(took)
        }
    }
}

/// A number from the environment.
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// However many streams there are, and in whatever order they are read: what is read goes on.
#[test]
fn streams_that_are_read_go_on() {
    let (first, count) = match number("SPHINX_STREAMS_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("SPHINX_STREAMS_SEEDS").unwrap_or(SEEDS)),
    };
    let mut failed = Vec::new();
    for seed in first..first + count {
        let streams = Streams::random(seed);
        let run = || transfer(&streams, LIMIT);
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(_)) => continue,
            Ok(Err(end)) => println!("{streams:?}: {end:?}"),
            Err(_) => println!("{streams:?}"),
        }
        println!(
            "reproduce: SPHINX_STREAMS_SEED={seed} cargo test -p sphinx-driver --release --test streams"
        );
        failed.push(seed);
    }
    assert!(
        failed.is_empty(),
        "{} of {count} seeds failed: {failed:?}",
        failed.len()
    );
}

fn ideal(count: u64) -> Streams {
    Streams {
        seed: 1,
        count,
        len: 6_000_000 / count,
        answer: None,
        message: 0,
        flushes: true,
        window: 3 << 20,
        order: ReadOrder::AllAtOnce,
        reader: Reader::InOrder,
        unread: 0,
        rate: 500_000_000,
        delay: Duration::from_millis(2),
        loss: 0.0,
        cc: CcKind::Bbr,
        code: Some(CodeId::Rlc),
        duplication: 0.0,
        packet_delay_max: 0,
        decode_delay_max: 0,
    }
}

/// Many streams together are about as fast as one.
#[test]
fn many_streams_are_as_fast_as_one() {
    let time = |streams| transfer(&ideal(streams), 10 * SEC).expect("no end") as f64;
    let one = time(1);
    for streams in [32, 256] {
        let ratio = one / time(streams);
        assert!(ratio > 0.9, "{streams} streams: {ratio:.3} of one");
    }
}

/// Without a flush, what was written leaves when the application has paused for a millisecond.
#[test]
fn what_is_written_leaves_at_a_pause() {
    let mut scenario = ideal(1).scenario();
    let write = |at, end_of_stream| Write {
        at,
        stream: 0,
        len: 100,
        end_of_stream,
    };
    scenario.client.writes = vec![write(0, false), write(SEC, true)];
    scenario.client.flushes = false;
    let mut pair = scenario.build();
    pair.must_transfer(5 * SEC);
    let (arrival, ..) = pair.server().pieces_received()[0];
    assert!((3_000_000..5_000_000).contains(&arrival), "{arrival} ns");
}

/// Of three streams two are never read: they stop, the third one goes on, and the end that has data to send says
/// so, naming one of them, when nothing has come further for the idle timeout.
#[test]
fn a_stream_that_is_not_read_is_named() {
    let mut streams = ideal(3);
    (streams.unread, streams.order) = (2, ReadOrder::AsItComes);
    let read = transfer(&streams, 60 * SEC).expect("the third stream is read");
    streams.unread = 3;
    let (at, end) = transfer(&streams, 60 * SEC).expect_err("nothing is read");
    assert!(
        matches!(end, EndReason::Stalled { held_up: Some(_) }),
        "{end:?}"
    );
    assert!(
        read < SEC && (5 * SEC..6 * SEC).contains(&at),
        "{read} {at}"
    );
}

/// Messages that are written at the same time on several streams share packets: of 280 bytes, four fit one.
#[test]
fn messages_of_several_streams_share_packets() {
    let (streams, rounds) = (10, 50);
    let mut scenario = ideal(1).scenario();
    let writes = (0..rounds).flat_map(|round| {
        (0..streams).map(move |stream| Write {
            at: round * 20_000_000,
            stream,
            len: 280,
            end_of_stream: round + 1 == rounds,
        })
    });
    scenario.client.writes = writes.collect();
    let mut pair = scenario.build();
    assert!(pair.run_transfer(10 * SEC), "not done");
    let symbols = pair.client().session().stats().source_sent;
    assert!(symbols < 35 * streams * rounds / 100, "{symbols}");
}

/// Streams that either side gives up at any moment, or answers to them: the others are whole, nothing is held for what was given up, and
/// as many more can be opened as if they had ended.
#[test]
fn streams_that_are_given_up_leave_nothing_behind() {
    match number("SPHINX_STREAMS_SEED") {
        Some(seed) => give_up(seed),
        // Each opens more than a hundred times as many streams as those above.
        None => (0..number("SPHINX_STREAMS_SEEDS").unwrap_or(SEEDS) / 4).for_each(give_up),
    }
}

fn give_up(seed: u64) {
    let rng = &mut Rng::new(seed ^ 0x6769_7665);
    let mut streams = Streams::random(seed);
    (streams.rate, streams.window) = (200_000_000, 1 << 20);
    streams.delay = Duration::from_micros(rng.pick(&[20, 1_000, 20_000]));
    streams.reader = rng.pick(&[Reader::InOrder, Reader::Slow(20_000_000)]);
    (streams.order, streams.count, streams.unread) = (ReadOrder::AsItComes, 0, 0);
    streams.answer = rng.chance(0.5).then_some(0);
    let mut scenario = streams.scenario();
    scenario.streams_max = OPEN_MAX;
    let count = 2 * OPEN_MAX;
    let mut kept = Vec::new();
    for stream in 0..count {
        let (at, len) = (stream * 8_000_000, rng.below(60_000));
        let write = |at, len, end_of_stream| Write {
            at,
            stream,
            len,
            end_of_stream,
        };
        let second = at + rng.below(40_000_000);
        let is_reset = rng.chance(0.4);
        // Some are never finished.
        let ends = !is_reset || rng.chance(0.5);
        scenario.client.writes.push(write(at, len, false));
        scenario
            .client
            .writes
            .push(write(second, rng.below(3000), ends));
        let stops = rng.chance(0.3);
        if is_reset {
            let reset = at + rng.below(100_000_000);
            scenario
                .client
                .resets
                .push((reset.max(if ends { at } else { second }), stream));
        }
        if stops {
            scenario.server.stops.insert(stream, rng.below(2 * len + 1));
        }
        if !is_reset && !stops {
            kept.push(stream);
        }
        if streams.answer.is_some() {
            let len = rng.below(20_000);
            scenario.server.writes.push(write(at, len, true));
            if rng.chance(0.3) {
                let reset = at + rng.below(100_000_000);
                scenario.server.resets.push((reset, stream));
            }
            if rng.chance(0.3) {
                scenario.client.stops.insert(stream, rng.below(2 * len + 1));
            }
        }
    }
    let mut pair = scenario.build();
    let has_answers = streams.answer.is_some();
    let is_over = |pair: &Pair| {
        let is_over = |end: &End<Plain>, stream| {
            end.stream_read(stream).is_some() || end.stream_given_up(stream)
        };
        let (client, server) = (pair.client(), pair.server());
        client.all_delivered()
            && server.all_delivered()
            && (0..count)
                .all(|stream| is_over(server, stream) && (!has_answers || is_over(client, stream)))
    };
    let done = pair.run_until(LIMIT, |pair| is_over(pair));
    let ends = pair.ends.each_ref().map(|end| end.events.clone());
    assert!(done, "seed {seed} is not done: {ends:?}");
    let written: Vec<_> = pair.client().streams().collect();
    for stream in kept {
        let (_, bytes) = written[stream as usize];
        assert_eq!(
            pair.server().stream_read(stream),
            Some(bytes),
            "seed {seed}"
        );
    }
    let is_free = |end: &End<Plain>| end.tx_held() == 0 && end.rx_held() == 0;
    let all_free = |pair: &mut Pair| is_free(pair.client()) && is_free(pair.server());
    assert!(
        pair.run_until(pair.now + 10 * SEC, all_free),
        "seed {seed}: memory"
    );
}

/// Of a stream that is given up nothing is sent or repaired any more, and its memory is free at once.
#[test]
fn a_stream_that_is_given_up_is_not_repaired() {
    let mut streams = ideal(2);
    (streams.rate, streams.loss) = (20_000_000, 0.1);
    let mut scenario = streams.scenario();
    scenario.client.resets = vec![(200_000_000, 0), (200_000_000, 1)];
    let mut pair = scenario.build();
    pair.run_until(200_000_001, |_| false);
    let before = pair.client().session().stats();
    assert!(
        before.source_sent > 100 && before.source_sent < 1000,
        "{before:?}"
    );
    assert_eq!(pair.client().tx_held(), 0);
    pair.run_until(SEC, |_| false);
    let after = pair.client().session().stats();
    assert_eq!(after.source_sent, before.source_sent);
    assert_eq!(after.repair_reactive, before.repair_reactive);
    assert!((0..2).all(|stream| pair.server().stream_given_up(stream)));
    assert_eq!(pair.server().rx_held(), 0);
}

/// A stream that has been read makes room for another one: more are opened in a session's life than may be open at a
/// time, though packets are lost both ways.
#[test]
fn a_session_opens_streams_for_ever() {
    opens_for_ever(None);
}

/// … and so do streams with answers.
#[test]
fn a_session_opens_streams_with_answers_for_ever() {
    opens_for_ever(Some(500));
}

fn opens_for_ever(answer: Option<u64>) {
    let count = 4 * OPEN_MAX;
    let mut streams = ideal(1);
    (streams.loss, streams.order) = (0.05, ReadOrder::AsItComes);
    (streams.count, streams.answer) = (count, answer);
    let mut scenario = streams.scenario();
    scenario.streams_max = OPEN_MAX;
    let write = |stream| Write {
        at: stream * 5_000_000,
        stream,
        len: 300,
        end_of_stream: true,
    };
    scenario.client.writes = (0..count).map(write).collect();
    let mut pair = scenario.build();
    pair.must_transfer(60 * SEC);
    assert!((0..count).all(|stream| pair.server().stream_read(stream) == Some(300)));
    if answer.is_some() {
        assert!((0..count).all(|stream| pair.client().stream_read(stream) == answer));
    }
}

/// Streams that say nothing beside a busy one. The simulator looks at each of them at every event, so an ordinary run has few.
const IDLE: u64 = 999;

/// One stream beside many that have said something and say nothing more is about as fast as beside one that has said all that:
/// `SPHINX_STREAMS_IDLE` of them.
#[test]
fn idle_streams_cost_a_busy_one_nothing() {
    let most = number("SPHINX_STREAMS_IDLE").unwrap_or(IDLE);
    let time = |idle| {
        let mut streams = ideal(1);
        (streams.window, streams.len) = (24 << 20, 5_000_000);
        (streams.order, streams.count) = (ReadOrder::AsItComes, 0);
        let mut scenario = streams.scenario();
        let say = |number| Write {
            at: number * 50_000,
            stream: number % idle,
            len: 100,
            end_of_stream: false,
        };
        let begin = SEC;
        scenario.client.writes = (0..most).map(say).collect();
        scenario.client.writes.push(Write {
            at: begin,
            stream: idle,
            len: streams.len,
            end_of_stream: true,
        });
        let mut pair = scenario.build();
        let is_read = |pair: &mut Pair| pair.server().stream_read(idle) == Some(streams.len);
        assert!(pair.run_until(30 * SEC, is_read), "not done");
        (pair.now - begin) as f64
    };
    let (alone, beside) = (time(1), time(most));
    assert!(alone / beside > 0.98, "{alone} {beside}");
}

/// Messages of an urgent stream beside one that fills the link: hardly later than alone, though 6 % of the packets are lost.
#[test]
fn what_is_urgent_goes_first() {
    let (period, count, one_way) = (100 * MS, 200, 5 * MS);
    let mut streams = ideal(1);
    (streams.rate, streams.loss) = (200_000_000, 0.06);
    (streams.delay, streams.window) = (Duration::from_nanos(one_way), 24 << 20);
    (streams.order, streams.len) = (ReadOrder::AsItComes, 0);
    let mut scenario = streams.scenario();
    let write = |at, stream, len, end_of_stream| Write {
        at,
        stream,
        len,
        end_of_stream,
    };
    let message = |number| write(SEC + number * period, 0, 1000, number + 1 == count);
    scenario.client.writes = (0..count).map(message).collect();
    scenario.client.writes.push(write(0, 1, 800_000_000, true));
    scenario.client.urgencies.insert(0, Urgency::MOST);
    let mut pair = scenario.build();
    pair.run_until(SEC + count * period + SEC, |_| false);
    let arrivals = pair.server().message_arrivals(1000, count);
    let mut delays: Vec<Nanos> = arrivals
        .into_iter()
        .zip(0..)
        .map(|(at, number)| at.expect("it has arrived") - (SEC + number * period))
        .collect();
    delays.sort_unstable();
    let p99 = delays[delays.len() * 99 / 100];
    assert!(
        p99 <= one_way + 8 * MS,
        "{p99} ns; median {}",
        delays[delays.len() / 2]
    );
}
