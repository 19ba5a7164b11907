//! Encode, lose, track and decode, for all codes and engines.

use proptest::prelude::*;
use sphinx_fec::{
    Added, BlockDecoder, BlockReceiver, CodeId, Encoder, Engine, Error, Repair, Row, RowMaker,
    SymbolDecoder, Tracker, bits, lt, rlc, srlt,
};

/// A small generator of test bytes.
struct Bytes(u64);

impl Bytes {
    fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    fn fill(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    fn chance(&mut self, per_mille: u32) -> bool {
        self.next() % 1000 < per_mille
    }
}

struct Case {
    n: usize,
    symbol_len: usize,
    seed: u64,
    loss_per_mille: u32,
    rows: Vec<(CodeId, Row)>,
    is_maximum_likelihood: bool,
}

/// Sends a block through loss and checks what tracker and decoder say. Returns
/// whether it was decoded.
fn transfer(engine: Engine, case: &Case) -> bool {
    let Case { n, symbol_len, .. } = *case;
    let mut rng = Bytes(case.seed);
    let source = rng.fill(n * symbol_len);
    let mut repairs = vec![0; case.rows.len() * symbol_len];
    Encoder::with_engine(engine)
        .encode_rows(n, symbol_len, &source, &case.rows, &mut repairs)
        .unwrap();

    // Sources and repairs arrive in a random order.
    let mut arrivals: Vec<usize> = (0..n + case.rows.len()).collect();
    if case.seed % 2 == 1 {
        for i in (1..arrivals.len()).rev() {
            arrivals.swap(i, rng.next() as usize % (i + 1));
        }
    }
    let mut maker = RowMaker::new();
    let mut tracker = Tracker::new(n).unwrap();
    let mut decoder = BlockDecoder::with_engine(engine);
    let mut receiver = BlockReceiver::new(7, n, symbol_len).unwrap();
    receiver = receiver.with_engine(engine);
    if case.is_maximum_likelihood {
        tracker = tracker.maximum_likelihood();
        decoder = decoder.maximum_likelihood();
        receiver = receiver.maximum_likelihood();
    }
    let mut received = vec![0xdd; n * symbol_len];
    let mut memory = vec![0xee; n * symbol_len];
    let mut have = vec![0; bits::words(n)];
    let mut kept = Vec::new();
    let mut all = Vec::new();
    for i in arrivals {
        if rng.chance(case.loss_per_mille) {
            continue;
        }
        let before = tracker.deficit();
        let added;
        if i < n {
            let range = i * symbol_len..(i + 1) * symbol_len;
            memory[range.clone()].copy_from_slice(&source[range.clone()]);
            bits::insert(&mut have, i);
            added = tracker.add_source(i);
            received[range.clone()].copy_from_slice(&source[range]);
            receiver.add_source(&mut received, 7 + i as u64);
        } else {
            let (code, row) = case.rows[i - n];
            let symbol = &repairs[(i - n) * symbol_len..][..symbol_len];
            let repair = Repair { code, row, symbol };
            added = tracker.add_repair(&mut maker, code, row);
            let received = receiver.add_repair(&mut received, 7, n, repair);
            assert_ne!(received, Added::Invalid);
            all.push(repair);
            if added == Added::Innovative {
                kept.push(repair);
            }
        }
        assert_ne!(added, Added::Invalid);
        assert!(tracker.deficit() <= before);
        if added == Added::Redundant && i >= n {
            assert_eq!(tracker.deficit(), before);
        }
    }
    assert_eq!(tracker.received(), have);
    let lost = tracker.missing();
    // What the receiver restores early helps it to peel more than the tracker
    // counts on.
    assert!(receiver.deficit() <= tracker.deficit());
    assert_eq!(receiver.deficit() == 0, receiver.known() == full(n));
    for i in (0..n).filter(|i| bits::contains(receiver.known(), *i)) {
        let range = i * symbol_len..(i + 1) * symbol_len;
        assert!(received[range.clone()] == source[range]);
    }
    let mut from_all = memory.clone();
    let result = decoder.decode(n, symbol_len, &mut from_all, &have, &all);
    let deficit = tracker.deficit();
    if deficit == 0 {
        assert_eq!(result, Ok(lost));
        assert!(from_all == source);
        // What the tracker called redundant is not needed.
        assert_eq!(
            decoder.decode(n, symbol_len, &mut memory, &have, &kept),
            Ok(lost)
        );
        assert!(memory == source);
    } else {
        assert_eq!(result, Err(Error::NotDecodable { deficit }));
        assert!(from_all == memory);
    }
    deficit == 0
}

fn full(n: usize) -> Vec<u64> {
    let mut map = vec![0; bits::words(n)];
    (0..n).for_each(|i| bits::insert(&mut map, i));
    map
}

fn any_row() -> impl Strategy<Value = (CodeId, Row)> {
    let spread = prop_oneof![Just(1), 1..=rlc::SPREAD_MAX];
    let index = prop_oneof![0..20_u32, 0..rlc::INDEX_COUNT];
    prop_oneof![
        (spread, index).prop_map(|(spread, index)| (CodeId::Rlc, rlc::row(spread, index))),
        (1..12_u32, 0..srlt::SEED_COUNT).prop_map(|(d, seed)| (CodeId::Srlt, srlt::row(d, seed))),
        (0..lt::SEED_COUNT).prop_map(|seed| (CodeId::Lt, lt::Shape::default().row(seed))),
        (0..100_u32).prop_map(|i| (CodeId::Rs, Row::new(i).unwrap())),
        (0..1_u32 << 24).prop_map(|i| (CodeId::Window, Row::new(i).unwrap())),
    ]
}

proptest! {
    #[test]
    fn tracker_and_decoder_agree_for_any_rows(
        n in 12..if cfg!(miri) { 20 } else { 80_usize },
        symbol_len in 1..if cfg!(miri) { 9 } else { 200_usize },
        seed: u64,
        loss_per_mille in 0_u32..700,
        rows in prop::collection::vec(any_row(), 0..if cfg!(miri) { 9 } else { 60 }),
        is_maximum_likelihood: bool,
    ) {
        let case = Case { n, symbol_len, seed, loss_per_mille, rows, is_maximum_likelihood };
        transfer(Engine::detect(), &case);
    }

    #[test]
    fn hostile_rows_do_no_harm(
        n in 1..if cfg!(miri) { 30 } else { 300_usize },
        numbers in prop::collection::vec((0_usize..6, 0_u32..1 << 24), 1..if cfg!(miri) { 9 } else { 80 }),
        sources in prop::collection::vec(0_usize..400, 0..if cfg!(miri) { 9 } else { 40 }),
    ) {
        let mut maker = RowMaker::new();
        let mut tracker = Tracker::new(n).unwrap();
        for (i, (code, number)) in numbers.into_iter().enumerate() {
            let code = CodeId::ALL[code];
            tracker.add_repair(&mut maker, code, Row::new(number).unwrap());
            if let Some(source) = sources.get(i) {
                let added = tracker.add_source(*source);
                prop_assert_eq!(added == Added::Invalid, *source >= n);
            }
            prop_assert!(tracker.deficit() <= tracker.missing());
        }
    }
}

#[test]
fn every_engine_restores_whole_blocks() {
    for engine in Engine::available() {
        for (n, symbol_len, repairs) in [
            (1, 1200, 2),
            (2, 1, 3),
            (16, 31, 8),
            (100, 1200, 16),
            (100, 1233, 16),
            (255, 9000, 30),
            (256, 64, 30),
            (300, 33, 40),
            (1024, 100, 110),
        ] {
            // Miri takes minutes for the larger ones.
            if cfg!(miri) && n * symbol_len > 2000 {
                continue;
            }
            let spread = 1 + repairs as u32 / 8;
            let rows = rlc::first_flight(spread, repairs).collect();
            let case = Case {
                n,
                symbol_len,
                seed: 6,
                loss_per_mille: 50,
                rows,
                is_maximum_likelihood: false,
            };
            assert!(transfer(engine, &case), "{engine:?} {n} {symbol_len}");
        }
    }
}

#[test]
fn first_cauchy_rows_are_mds() {
    // Lose more and more of the front of the block, keep as many repairs.
    let (n, symbol_len) = (if cfg!(miri) { 8 } else { 64 }, 3);
    let source = Bytes(1).fill(n * symbol_len);
    let rows: Vec<_> = (0..n as u32)
        .map(|i| (CodeId::Rlc, rlc::row(1, 3 * i)))
        .collect();
    let mut repairs = vec![0; rows.len() * symbol_len];
    let mut encoder = Encoder::new();
    encoder
        .encode_rows(n, symbol_len, &source, &rows, &mut repairs)
        .unwrap();
    let repairs: Vec<Repair<'_>> = rows
        .iter()
        .zip(repairs.chunks(symbol_len))
        .map(|(&(code, row), symbol)| Repair { code, row, symbol })
        .collect();
    for lost in 0..=n {
        let mut memory = source.clone();
        memory[..lost * symbol_len].fill(0);
        let have = u64::MAX.checked_shl(lost as u32).unwrap_or(0);
        let mut decoder = BlockDecoder::new();
        let result = decoder.decode(n, symbol_len, &mut memory, &[have], &repairs[n - lost..]);
        assert_eq!(result, Ok(lost));
        assert!(memory == source);
    }
}

#[test]
fn impossible_arguments_are_errors() {
    let mut encoder = Encoder::new();
    let mut decoder = BlockDecoder::new();
    let row = rlc::row(1, 0);
    for n in [0, 4097] {
        let result = encoder.encode(CodeId::Rlc, n, 1, &vec![0; n], row, &mut [0]);
        assert_eq!(result, Err(Error::BlockSize { n }));
        let result = decoder.decode(n, 1, &mut vec![0; n], &[], &[]);
        assert_eq!(result, Err(Error::BlockSize { n }));
        assert!(Tracker::new(n).is_err());
    }
    let result = encoder.encode(CodeId::Rlc, 4, 3, &[0; 11], row, &mut [0; 3]);
    assert_eq!(
        result,
        Err(Error::Length {
            expected: 12,
            found: 11
        })
    );
    let result = encoder.encode(CodeId::Rlc, 4, 3, &[0; 12], row, &mut [0; 2]);
    assert_eq!(
        result,
        Err(Error::Length {
            expected: 3,
            found: 2
        })
    );
    let row = srlt::row(5, 0);
    let result = encoder.encode(CodeId::Srlt, 4, 3, &[0; 12], row, &mut [0; 3]);
    assert_eq!(
        result,
        Err(Error::Row {
            code: CodeId::Srlt,
            n: 4,
            row
        })
    );
    let repair = Repair {
        code: CodeId::Srlt,
        row,
        symbol: &[0; 3],
    };
    let result = decoder.decode(4, 3, &mut [0; 12], &[0b1110], &[repair]);
    assert_eq!(result, Err(Error::NotDecodable { deficit: 1 }));
    let mut tracker = Tracker::new(4).unwrap();
    assert_eq!(
        tracker.add_repair(&mut RowMaker::new(), CodeId::Srlt, row),
        Added::Invalid
    );
    // Sizes whose product is more than a buffer can have.
    let result = encoder.encode(CodeId::Rlc, 4, usize::MAX / 2, &[], rlc::row(1, 0), &mut []);
    assert!(matches!(result, Err(Error::Length { .. })));
    let result = decoder.decode(4, usize::MAX / 2, &mut [], &[], &[]);
    assert!(matches!(result, Err(Error::Length { .. })));
    // Symbols of no bytes are nothing to compute, but not an error.
    let rows = [(CodeId::Rlc, rlc::row(1, 0))];
    assert_eq!(encoder.encode_rows(4, 0, &[], &rows, &mut []), Ok(()));
    let repair = Repair {
        code: CodeId::Rlc,
        row: rlc::row(1, 0),
        symbol: &[],
    };
    assert_eq!(decoder.decode(4, 0, &mut [], &[0b1110], &[repair]), Ok(1));
}

/// The paper operating point: about half of the blocks decode in the first
/// flight.
#[cfg(feature = "std")]
#[test]
fn srlt_at_the_paper_operating_point() {
    use sphinx_fec::params::srlt as paper;
    let (n, p) = (100, 0.06);
    let degree = paper::degree(p, 0.0, paper::degree_cap(n));
    let count = paper::packet_count(n, p, degree, paper::PAPER_THRESHOLD);
    assert_eq!((degree, count), (16, 15));
    let blocks = if cfg!(miri) { 1 } else { 400_u64 };
    let decoded = (0..blocks)
        .filter(|block| {
            let seed = *block as u32 * 16;
            let rows = (0..count as u32).map(|i| (CodeId::Srlt, srlt::row(degree, seed + i)));
            let case = Case {
                n,
                symbol_len: 8,
                seed: 2 * block,
                loss_per_mille: 60,
                rows: rows.collect(),
                is_maximum_likelihood: false,
            };
            transfer(Engine::detect(), &case)
        })
        .count();
    if !cfg!(miri) {
        assert!((160..=250).contains(&decoded), "{decoded} of 400");
    }
}

#[test]
fn a_receiver_restores_block_after_block() {
    let (n, symbol_len, repairs) = (50, 40, 12);
    let mut rng = Bytes(9);
    let mut encoder = Encoder::new();
    let mut receiver = BlockReceiver::new(0, n, symbol_len).unwrap();
    for block in 0..if cfg!(miri) { 2 } else { 40_u64 } {
        let first = block * n as u64;
        receiver.reset(first, n, symbol_len).unwrap();
        let source = rng.fill(n * symbol_len);
        let rows: Vec<_> = rlc::first_flight(2, repairs).collect();
        let mut symbols = vec![0; repairs * symbol_len];
        encoder
            .encode_rows(n, symbol_len, &source, &rows, &mut symbols)
            .unwrap();
        let mut memory = vec![0; n * symbol_len];
        let mut lost = Vec::new();
        for symbol in first..first + n as u64 {
            if rng.chance(100) {
                lost.push(symbol);
                continue;
            }
            let slot = receiver.slot(symbol).unwrap();
            let range = slot * symbol_len..(slot + 1) * symbol_len;
            memory[range.clone()].copy_from_slice(&source[range]);
            assert_eq!(receiver.add_source(&mut memory, symbol), Added::Innovative);
        }
        for (&(code, row), symbol) in rows.iter().zip(symbols.chunks(symbol_len)) {
            let done = receiver.deficit() == 0;
            let repair = Repair { code, row, symbol };
            let added = receiver.add_repair(&mut memory, first, n, repair);
            assert!(!done || added == Added::Redundant);
            let added = receiver.add_repair(&mut memory, first + 1, n, repair);
            assert_eq!(added, Added::Invalid);
        }
        let mut restored: Vec<u64> = std::iter::from_fn(|| receiver.next_restored()).collect();
        restored.sort_unstable();
        if lost.len() <= repairs {
            assert_eq!(restored, lost);
            assert!(memory == source);
        } else {
            assert_eq!(receiver.deficit(), lost.len() - repairs);
        }
        assert_eq!(receiver.slot(first + n as u64), None);
        assert_eq!(
            receiver.add_source(&mut memory, first + n as u64),
            Added::Invalid
        );
    }
}
