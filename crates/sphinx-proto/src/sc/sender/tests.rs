//! A sender and a receiver of generations on two paths, without sessions: every loss pattern.

use std::collections::BTreeMap;

use sphinx_fec::generation::Generation as Symbols;
use sphinx_fec::{Added, RowMaker, generation};

use super::*;
use crate::sc::{Inbound, Rtts, ScReceiver, generation_cost};
use crate::time::time;

const MS: Nanos = 1_000_000;
const FAST: PathId = PathId::FIRST;
const SLOW: PathId = PathId::new(1);
/// Shortest and longest round-trip time.
const RTTS: Rtts = Rtts {
    shortest: 20 * MS,
    longest: 200 * MS,
};
const SYMBOL_LEN: u16 = 4;
const GENERATIONS: u64 = 2;
/// When a run that is not complete ends, nanoseconds.
const EVER: Nanos = 5_000 * MS;

fn rtt(path: PathId) -> Nanos {
    match path {
        FAST => RTTS.shortest,
        _ => RTTS.longest,
    }
}

#[derive(Debug, Clone, Copy)]
enum Happens {
    Arrives(PathId, BlockId, SymbolId),
    /// At the sender: a symbol is acknowledged, or counts as lost.
    Known(PathId, BlockId, SymbolId, bool),
    Warned(Warning),
    Complete(BlockId),
    Look,
}

/// Both ends, and what is on its way.
struct Model {
    sender: ScSender,
    receiver: ScReceiver,
    symbols: BTreeMap<BlockId, Symbols<Vec<u8>>>,
    rows: RowMaker,
    n: u16,
    now: Nanos,
    events: BTreeMap<(Nanos, u64), Happens>,
    count: u64,
    /// What has been given out, of what has arrived; and the most that was held of it.
    given: Vec<u8>,
    stored: u64,
    released: u64,
    stored_max: u64,
    complete: u64,
    answers: u32,
    /// State of the generator that draws which packets and answers are lost.
    draw: u64,
}

fn source(n: u16, block: u64) -> Vec<u8> {
    let bytes = usize::from(n) * usize::from(SYMBOL_LEN);
    (0..bytes)
        .map(|at| (at as u64 * 31 + block * 101 + 7) as u8)
        .collect()
}

impl Model {
    fn new(scheme: Sc, n: u16, r: u16, draw: u64) -> Self {
        let mut sender = ScSender::new(scheme);
        // A little more than the share of repairs, because of rounding down.
        let p = f64::from(r) / f64::from(n + r) + 1e-6;
        sender.plr = p;
        for path in [FAST, SLOW] {
            let losses = LossRate::known(p);
            sender.lanes.insert(path, Lane { losses, sent: 0 });
        }
        for block in 0..GENERATIONS {
            sender.push(BlockId::new(block), Slot(block as u32), (n, SYMBOL_LEN));
        }
        Self {
            sender,
            receiver: ScReceiver::new(scheme, time(0)),
            symbols: BTreeMap::new(),
            rows: RowMaker::new(),
            n,
            now: 0,
            events: BTreeMap::new(),
            count: 0,
            given: Vec::new(),
            stored: 0,
            released: 0,
            stored_max: 0,
            complete: 0,
            answers: 0,
            draw,
        }
    }

    fn buffer(&self) -> u64 {
        GENERATIONS * generation_cost((self.n, SYMBOL_LEN))
    }

    fn will(&mut self, after: Nanos, what: Happens) {
        self.count += 1;
        self.events.insert((self.now + after, self.count), what);
    }

    fn leaves(&mut self, path: PathId, choice: SymbolChoice, is_lost: bool) {
        let (block, symbol) = (choice.sequence, choice.symbol);
        if is_lost {
            let known = Happens::Known(path, block, symbol, false);
            self.will(rtt(path) * 5 / 4, known);
        } else {
            self.will(rtt(path) / 2, Happens::Arrives(path, block, symbol));
            self.will(rtt(path), Happens::Known(path, block, symbol, true));
        }
    }

    fn view(&self, path: PathId) -> LaneView {
        LaneView {
            path,
            is_slow: path == SLOW,
            waits: false,
            credit: self.released + self.buffer(),
        }
    }

    /// All that may leave, on the paths in turn as `ways` says.
    fn first_flight(&mut self, ways: u32, losses: u32) -> u32 {
        let mut left = 0;
        loop {
            let path = if ways >> (left % 8) & 1 == 1 {
                SLOW
            } else {
                FAST
            };
            let other = if path == FAST { SLOW } else { FAST };
            let mut next = [path, other].into_iter();
            let found = next.find_map(|path| Some((path, self.sender.next(self.view(path))?.0)));
            let Some((path, choice)) = found else {
                return left;
            };
            self.leaves(path, choice, losses >> left & 1 == 1);
            left += 1;
            // A microsecond a packet, so that they arrive in turn.
            self.now += 1000;
        }
    }

    fn flight(&mut self) {
        for path in [FAST, SLOW] {
            while let Some((choice, _)) = self.sender.next(self.view(path)) {
                self.answers += 1;
                self.draw = self.draw.wrapping_mul(6_364_136_223_846_793_005) + 1;
                let is_lost = self.draw >> 62 == 0;
                self.leaves(path, choice, is_lost);
            }
        }
    }

    fn arrives(&mut self, path: PathId, block: BlockId, symbol: SymbolId) {
        let now = time(self.now);
        let inbound = Inbound {
            block,
            shape: (self.n, SYMBOL_LEN),
            symbol,
        };
        let has_room = self.stored + symbol_cost(SYMBOL_LEN) <= self.buffer();
        let (added, is_whole) = self.receiver.add(now, &inbound, has_room);
        assert_ne!(added, Added::Invalid, "an honest sender's symbol");
        if added == Added::Innovative {
            let len = usize::from(SYMBOL_LEN);
            let source = source(self.n, block.get());
            let mut bytes = vec![0; len];
            let new = || Symbols::new(usize::from(self.n)).expect("a size");
            let symbols = self.symbols.entry(block).or_insert_with(new);
            let added = match symbol {
                SymbolId::Source(index) => {
                    let index = usize::from(index);
                    bytes.copy_from_slice(&source[index * len..][..len]);
                    symbols.add_source(index, bytes)
                }
                SymbolId::Repair(_, row) => {
                    generation::encode(&mut self.rows, row, len, &source, &mut bytes)
                        .expect("a row");
                    symbols.add_row(&mut self.rows, row, bytes)
                }
            };
            assert_eq!(added, Added::Innovative, "payload as the rank says");
            self.stored += symbol_cost(SYMBOL_LEN);
            self.stored_max = self.stored_max.max(self.stored);
        }
        while let Some(in_order) = self.receiver.next_in_order() {
            let symbols = self.symbols.get_mut(&in_order.block).expect("it is there");
            while symbols.taken() < usize::from(in_order.upto) {
                self.given.extend(symbols.take().expect("in order"));
                self.stored -= symbol_cost(SYMBOL_LEN);
                self.released += symbol_cost(SYMBOL_LEN);
            }
        }
        let held: usize = self.symbols.values().map(Symbols::held).sum();
        assert_eq!(self.stored, held as u64 * symbol_cost(SYMBOL_LEN));
        if is_whole {
            self.will(RTTS.shortest / 2, Happens::Complete(block));
        }
        let free = self.buffer() - self.stored;
        self.receiver
            .on_arrival(now, (path, block), (symbol_cost(SYMBOL_LEN), free), RTTS);
    }

    /// Runs until all generations are given out, or until [`EVER`].
    fn run(&mut self) {
        while self.complete < GENERATIONS && self.now < EVER {
            if let Some(warning) = self.receiver.take_warning() {
                self.will(RTTS.shortest / 2, Happens::Warned(warning));
            }
            if let Some(at) = self.receiver.timeout(RTTS) {
                let after = at.saturating_sub(time(self.now)).max(1);
                self.will(after, Happens::Look);
            }
            let Some(((at, _), what)) = self.events.pop_first() else {
                return;
            };
            self.now = at;
            let now = time(at);
            match what {
                Happens::Arrives(path, block, symbol) => self.arrives(path, block, symbol),
                Happens::Known(path, block, symbol, true) => {
                    let seen = (now, rtt(path));
                    self.sender.on_arrived(path, seen, (block, symbol), false);
                }
                Happens::Known(path, block, symbol, false) => {
                    self.sender.on_lost(path, (now, rtt(path)), (block, symbol));
                }
                Happens::Warned(warning) => self.sender.on_warning(&warning),
                Happens::Complete(block) => {
                    self.sender.forget(block);
                    self.complete += 1;
                }
                Happens::Look => {
                    let free = self.buffer() - self.stored;
                    self.receiver.consider(now, free, RTTS);
                    self.events.retain(|_, what| !matches!(what, Happens::Look));
                }
            }
            self.flight();
        }
    }

    fn check(&self, what: &str) {
        let all: Vec<u8> = (0..GENERATIONS).flat_map(|b| source(self.n, b)).collect();
        assert_eq!(self.given, all, "{what} after {} ms", self.now / MS);
        assert!(self.stored_max <= self.buffer(), "{what}");
        assert_eq!(self.stored, 0, "{what}");
    }
}

/// Every loss pattern of two generations of up to four symbols with up to two rows, on two paths: all is given out as it was, and never
/// more is stored than is granted. Answers are lost too.
#[test]
fn every_loss_pattern() {
    for scheme in [Sc::Systematic, Sc::Rlnc] {
        for n in 1..=4 {
            for r in 0..=2.min(n / 2) {
                // On which of the paths packets leave, in turn: the fast one, the slow one, both.
                for ways in [0, 0xff, 0x55, 0xcc, 0x0f] {
                    let first = Model::new(scheme, n, r, 0).first_flight(ways, 0);
                    assert_eq!(first, 2 * u32::from(n + r));
                    for losses in 0..1 << first {
                        let draw = u64::from(losses) << 20 | u64::from(ways);
                        let mut model = Model::new(scheme, n, r, draw);
                        model.first_flight(ways, losses);
                        model.run();
                        model.check(&format!("{scheme:?} n {n} r {r} ways {ways:x} {losses:b}"));
                    }
                }
            }
        }
    }
}

/// As many losses as there are rows cost no answer, if the rows came first.
#[test]
fn rows_make_up_for_as_many_losses() {
    for losses in [0b0000_0100, 0b0000_1000, 0b0010_0000] {
        let mut model = Model::new(Sc::Systematic, 4, 1, 0);
        assert_eq!(model.first_flight(0, losses), 10);
        model.run();
        model.check("one loss, one row");
        assert_eq!(model.answers, 0, "{losses:b}");
    }
    let mut model = Model::new(Sc::Systematic, 4, 1, 0);
    model.first_flight(0, 0b1100);
    model.run();
    assert!(model.answers > 0);
}

#[test]
fn without_coding_what_is_lost_goes_again_on_its_path() {
    let mut sender = ScSender::new(Sc::MinRtt);
    sender.push(BlockId::ZERO, Slot(0), (3, SYMBOL_LEN));
    let lane = |path| LaneView {
        path,
        is_slow: path == SLOW,
        waits: false,
        credit: u64::MAX,
    };
    let at = (time(0), MS);
    let (one, _) = sender.next(lane(SLOW)).expect("an original");
    let (two, _) = sender.next(lane(FAST)).expect("an original");
    sender.on_lost(SLOW, at, (one.sequence, one.symbol));
    let (three, _) = sender.next(lane(FAST)).expect("an original");
    assert_eq!(three.symbol, SymbolId::Source(2));
    assert!(!sender.has_symbol(lane(FAST)));
    let (again, kind) = sender.next(lane(SLOW)).expect("once more");
    assert_eq!((again.symbol, kind), (one.symbol, Kind::Reactive));
    // Where the path is no more, the other one takes it.
    sender.on_lost(SLOW, at, (again.sequence, again.symbol));
    assert!(!sender.has_symbol(lane(FAST)));
    sender.on_path_gone(SLOW);
    assert!(sender.has_symbol(lane(FAST)));
    // The symbol arrives after all: it was only late.
    sender.on_arrived(SLOW, at, (one.sequence, one.symbol), true);
    assert!(!sender.has_symbol(lane(FAST)));
    sender.on_arrived(FAST, at, (two.sequence, two.symbol), false);
}

/// Its path would seem to lose more than it does, and rows ahead would make up for that.
#[test]
fn what_was_only_late_is_no_loss_of_its_path() {
    let mut sender = ScSender::new(Sc::Systematic);
    sender.push(BlockId::ZERO, Slot(0), (2, SYMBOL_LEN));
    let lane = LaneView {
        path: FAST,
        is_slow: false,
        waits: false,
        credit: u64::MAX,
    };
    let [late, other] = [(); 2].map(|()| {
        let (choice, _) = sender.next(lane).expect("an original");
        (choice.sequence, choice.symbol)
    });
    let begins = (time(0), rtt(FAST));
    sender.on_lost(FAST, begins, late);
    sender.on_arrived(FAST, begins, late, true);
    // This packet ends the round trip.
    let ends = (time(rtt(FAST)), rtt(FAST));
    sender.on_arrived(FAST, ends, other, false);
    assert_eq!(sender.lanes[&FAST].losses.rate(), 0.0);
}

/// However often the peer warns, and of whatever, there are at most as many rows under way as it can lack.
#[test]
fn answers_are_bounded() {
    let mut sender = ScSender::new(Sc::Systematic);
    sender.push(BlockId::ZERO, Slot(0), (8, SYMBOL_LEN));
    let lane = LaneView {
        path: FAST,
        is_slow: false,
        waits: false,
        credit: u64::MAX,
    };
    while sender.next(lane).is_some() {}
    let mut rows = 0;
    for deficit in [1, 8, u64::MAX, 3, 8] {
        for block in [0, 1, u64::MAX >> 2] {
            sender.on_warning(&Warning {
                block: BlockId::new(block),
                first: deficit % 5,
                deficit,
                free: 0,
            });
        }
        while sender.next(lane).is_some() {
            rows += 1;
        }
    }
    assert!(rows <= 8, "{rows}");
}
