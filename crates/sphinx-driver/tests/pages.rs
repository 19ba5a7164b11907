//! Pages of many objects, as browsers fetch them, in virtual time: what they take, and what they cost on the wire.
//!
//! ```text
//! cargo test -p sphinx-driver --release --test pages -- --ignored --nocapture
//! ```

use sphinx_link::Loss;
use sphinx_proto::{EPSILON, Nanos, Profile};
use sphinx_sim::{MS, Pair, Reader, Rng, SEC, Scenario, Ways, Write, link};

/// The workload `web` of the lab (`ablation-web`): a document, then its objects, fetched side by side; one page after the other.
const OBJECTS: u64 = 30;
const SIDE_BY_SIDE: u64 = 6;
const DOCUMENT_BYTES: u64 = 30_000;
/// `GET /object/0/12 HTTP/1.1`, `Host: lab`.
const REQUEST_BYTES: u64 = 40;
/// `HTTP/1.1 200 OK`, `Content-Length: 15000`.
const HEAD_BYTES: u64 = 42;

/// Bytes of an object as the lab has them; number 0 is the document.
fn object_bytes(seed: u64, page: u64, object: u64) -> u64 {
    if object == 0 {
        return DOCUMENT_BYTES;
    }
    let mut rng = Rng::new(seed ^ (page << 32 | object).wrapping_mul(0xd6e8_feb8_6659_fd93));
    let mut uniform = || (rng.word() >> 11) as f64 / (1_u64 << 53) as f64;
    let normal = (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
    (15_000.0 * (1.2 * normal).exp()).clamp(100.0, 1_000_000.0) as u64
}

/// What pages took and cost.
#[derive(Debug, Clone, Copy)]
struct Pages {
    /// Mean time of a page, milliseconds.
    ms: f64,
    /// IP bytes of the server for each byte of an object.
    bytes: f64,
}

/// Asks for the next object where one is there.
#[derive(Debug, Default)]
struct Browser {
    /// When this page was begun, its first stream, and how many of its objects have been asked for.
    began: Nanos,
    first: u64,
    asked: u64,
    took: Vec<Nanos>,
}

impl Browser {
    fn ask(&mut self, pair: &mut Pair) {
        pair.ends[0].write(Write {
            at: pair.now,
            stream: self.first + self.asked,
            len: REQUEST_BYTES,
            end_of_stream: true,
        });
        self.asked += 1;
    }

    /// How many pages are there.
    fn step(&mut self, pair: &mut Pair) -> u64 {
        if self.asked == 0 {
            self.began = pair.now;
            self.ask(pair);
        }
        let streams = self.first..self.first + self.asked;
        let there = streams.filter(|stream| pair.client().stream_ended(*stream));
        let there = there.count() as u64;
        if there == OBJECTS + 1 {
            self.took.push(pair.now - self.began);
            (self.asked, self.first) = (0, self.first + OBJECTS + 1);
            self.began = pair.now;
            self.ask(pair);
            return self.took.len() as u64;
        }
        // The document names the others.
        while there > 0 && self.asked <= OBJECTS && self.asked - there < SIDE_BY_SIDE {
            self.ask(pair);
        }
        self.took.len() as u64
    }
}

/// Six pages over 50 Mbit/s and 50 ms, where the server's packets are lost, and objects fail in their first flight with at most this probability.
fn pages(loss: f64, epsilon: f64, seed: u64) -> Pages {
    const PAGES: u64 = 6;
    let (there, mut back) = link(50, 50, Loss::None, seed);
    if loss > 0.0 {
        back.loss = Loss::Bernoulli(loss);
    }
    let mut scenario = Scenario::new((there, back));
    (scenario.profile, scenario.epsilon) = (Profile::Latency, epsilon);
    (scenario.client.ways, scenario.server.ways) = (Ways::Asks, Ways::Answers);
    for plan in [&mut scenario.client, &mut scenario.server] {
        (plan.gathers, plan.reader) = (true, Reader::InOrder);
    }
    let objects = (0..PAGES).flat_map(|page| (0..=OBJECTS).map(move |object| (page, object)));
    let lens: Vec<u64> = objects
        .map(|(page, object)| object_bytes(1, page, object))
        .collect();
    let writes = (0..).zip(&lens).map(|(stream, len)| Write {
        at: 0,
        stream,
        len: len + HEAD_BYTES,
        end_of_stream: true,
    });
    scenario.server.writes = writes.collect();
    let mut browser = Browser::default();
    let mut pair = scenario.build();
    assert!(pair.run_until(60 * SEC, |pair| browser.step(pair) == PAGES));
    let bytes = lens.iter().sum::<u64>() as f64;
    Pages {
        ms: browser.took.iter().sum::<u64>() as f64 / (PAGES * MS) as f64,
        bytes: pair.server().ip_bytes_sent as f64 / bytes,
    }
}

/// Medians over some seeds.
fn median(loss: f64, epsilon: f64, seeds: u64) -> Pages {
    let all: Vec<Pages> = (1..=seeds).map(|seed| pages(loss, epsilon, seed)).collect();
    let median = |of: fn(&Pages) -> f64| {
        let mut all: Vec<f64> = all.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    Pages {
        ms: median(|pages| pages.ms),
        bytes: median(|pages| pages.bytes),
    }
}

/// Pages are quick where little may fail, and cheap where more may (decision 74).
#[test]
fn pages_are_quick_or_cheap() {
    for (epsilon, ms, bytes) in [(EPSILON, 460.0, 1.47), (0.1, 485.0, 1.31)] {
        let pages = median(0.1, epsilon, 5);
        println!("{epsilon}: {pages:.3?}");
        assert!(pages.ms < ms && pages.bytes < bytes, "{epsilon}: {pages:?}");
    }
}

/// Numbers for decision 74.
#[test]
#[ignore = "a table for people"]
fn table_of_pages() {
    for loss in [0.1, 0.02, 0.0] {
        for epsilon in [EPSILON, 0.01, 0.02, 0.05, 0.1] {
            let Pages { ms, bytes } = median(loss, epsilon, 21);
            println!("loss {loss}, epsilon {epsilon}: {ms:.1} ms, {bytes:.3} B/B");
        }
    }
}
