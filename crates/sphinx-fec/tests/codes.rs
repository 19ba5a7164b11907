//! What is particular to single codes.

use sphinx_fec::{
    Added, BlockDecoder, BlockReceiver, CodeId, Delivery, Encoder, Error, Repair, Row, RowMaker,
    SymbolDecoder, Tracker, WindowDecoder, WindowEncoder, bits, fft_rs, lt, rlc, rs, srlt,
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
}

/// Encodes `rows`, keeps only them, and returns what a decoder makes of them.
fn from_repairs_alone(
    mut decoder: BlockDecoder,
    n: usize,
    symbol_len: usize,
    rows: &[(CodeId, Row)],
) -> Result<usize, Error> {
    let source = Bytes(n as u64).fill(n * symbol_len);
    let mut symbols = vec![0; rows.len() * symbol_len];
    Encoder::new().encode_rows(n, symbol_len, &source, rows, &mut symbols)?;
    let repairs: Vec<Repair<'_>> = rows
        .iter()
        .zip(symbols.chunks(symbol_len))
        .map(|(&(code, row), symbol)| Repair { code, row, symbol })
        .collect();
    let mut memory = vec![0x55; n * symbol_len];
    let decoded = decoder.decode(n, symbol_len, &mut memory, &[], &repairs)?;
    assert!(memory == source);
    Ok(decoded)
}

#[test]
fn rs_restores_a_block_from_repairs_alone() {
    let sizes: &[usize] = if cfg!(miri) {
        &[1, 2, 9]
    } else {
        &[1, 2, 64, 128]
    };
    for &n in sizes {
        let rows: Vec<_> = rs::first_flight(n, n).collect();
        assert_eq!(rows.len(), n);
        assert_eq!(from_repairs_alone(BlockDecoder::new(), n, 33, &rows), Ok(n));
    }
    assert_eq!(rs::first_flight(200, 100).count(), 56);
    assert_eq!(rs::repairs_max(300), 0);
}

#[test]
fn lt_decodes_without_source_symbols() {
    let shape = lt::Shape::default();
    let sizes: &[usize] = if cfg!(miri) {
        &[1, 10]
    } else {
        &[1, 10, 100, 500]
    };
    for &n in sizes {
        let mut tracker = Tracker::new(n).unwrap();
        let mut likelier = Tracker::new(n).unwrap().maximum_likelihood();
        let mut maker = RowMaker::new();
        let mut needed = [0, 0];
        let mut rows = Vec::new();
        while !tracker.is_decodable() {
            let row = shape.row(rows.len() as u32);
            for (i, tracker) in [&mut tracker, &mut likelier].into_iter().enumerate() {
                if !tracker.is_decodable() {
                    tracker.add_repair(&mut maker, CodeId::Lt, row);
                    needed[i] += 1;
                }
            }
            rows.push((CodeId::Lt, row));
            assert!(rows.len() < 4 * n + 200);
        }
        assert!(needed[1] <= needed[0]);
        let peeling = BlockDecoder::new;
        let likelier = || BlockDecoder::new().maximum_likelihood();
        assert_eq!(from_repairs_alone(peeling(), n, 20, &rows), Ok(n));
        assert_eq!(
            from_repairs_alone(likelier(), n, 20, &rows[..needed[1]]),
            Ok(n)
        );
        for decoder in [peeling(), likelier()] {
            let too_few = from_repairs_alone(decoder, n, 20, &rows[..needed[1] - 1]);
            assert!(
                matches!(too_few, Err(Error::NotDecodable { .. })),
                "{too_few:?}"
            );
        }
    }
}

#[test]
fn fft_rs_works_where_it_is_built() {
    let rows: Vec<_> = fft_rs::first_flight(40).collect();
    let result = from_repairs_alone(BlockDecoder::new(), 40, 64, &rows);
    if !fft_rs::IS_BUILT {
        let code = CodeId::FftRs;
        assert_eq!(result, Err(Error::NotBuilt { code }));
        return;
    }
    assert_eq!(result, Ok(40));
    let odd = from_repairs_alone(BlockDecoder::new(), 40, 63, &rows);
    assert!(matches!(
        odd,
        Err(Error::SymbolLength { symbol_len: 63, .. })
    ));

    // A large block, a tenth of it lost.
    let n = if cfg!(miri) { 200 } else { 20_000 };
    let (symbol_len, lost) = (2, n / 10);
    let source = Bytes(3).fill(n * symbol_len);
    let rows: Vec<_> = fft_rs::first_flight(lost).collect();
    let mut symbols = vec![0; lost * symbol_len];
    Encoder::new()
        .encode_rows(n, symbol_len, &source, &rows, &mut symbols)
        .unwrap();
    let mut tracker = Tracker::for_code(CodeId::FftRs, n).unwrap();
    let mut receiver = BlockReceiver::new(0, n, symbol_len).unwrap();
    let mut memory = source.clone();
    for i in 0..n {
        if i % 10 == 7 {
            memory[i * symbol_len..(i + 1) * symbol_len].fill(9);
        } else {
            tracker.add_source(i);
            receiver.add_source(&mut memory, i as u64);
        }
    }
    assert_eq!(tracker.deficit(), lost);
    let mut maker = RowMaker::new();
    for (&(code, row), symbol) in rows.iter().zip(symbols.chunks(symbol_len)) {
        assert_eq!(tracker.add_repair(&mut maker, code, row), Added::Innovative);
        let repair = Repair { code, row, symbol };
        assert_eq!(
            receiver.add_repair(&mut memory, 0, n, repair),
            Added::Innovative
        );
    }
    assert!(tracker.is_decodable());
    assert_eq!(receiver.deficit(), 0);
    assert!(memory == source);
    assert!(Tracker::for_code(CodeId::FftRs, 32_769).is_err());
}

/// A repair that waits to be peeled may hold the symbols that elimination
/// restores together.
#[test]
fn symbols_are_restored_once() {
    let (n, symbol_len) = (2, 4);
    let source = Bytes(5).fill(n * symbol_len);
    let rows = [
        (CodeId::Srlt, srlt::row(2, 0)),
        (CodeId::Rlc, rlc::row(1, 0)),
        (CodeId::Rlc, rlc::row(1, 1)),
    ];
    let mut symbols = vec![0; rows.len() * symbol_len];
    Encoder::new()
        .encode_rows(n, symbol_len, &source, &rows, &mut symbols)
        .unwrap();
    let mut receiver = BlockReceiver::new(0, n, symbol_len).unwrap();
    let mut memory = vec![0; n * symbol_len];
    for (&(code, row), symbol) in rows.iter().zip(symbols.chunks(symbol_len)) {
        let repair = Repair { code, row, symbol };
        let added = receiver.add_repair(&mut memory, 0, n, repair);
        assert_eq!(added, Added::Innovative);
    }
    let restored: Vec<u64> = std::iter::from_fn(|| receiver.next_restored()).collect();
    assert_eq!(restored, [0, 1]);
    assert!(memory == source);
}

/// A decoder that has repairs of a transform uses no others: what counts is
/// what came first.
#[test]
fn transforms_count_with_no_other_repairs() {
    let n = 3;
    let mut maker = RowMaker::new();
    let transform = |i| (CodeId::FftRs, fft_rs::row(2, i).unwrap());
    let dense = |i| (CodeId::Rlc, rlc::row(1, i));
    let of_all = |seed| (CodeId::Srlt, srlt::row(3, seed));
    let of_one = |seed| (CodeId::Srlt, srlt::row(1, seed));
    let mut tracker = Tracker::new(n).unwrap();
    let mut add = |tracker: &mut Tracker, (code, row)| tracker.add_repair(&mut maker, code, row);
    if !fft_rs::IS_BUILT {
        assert_eq!(add(&mut tracker, transform(0)), Added::Redundant);
        return;
    }
    assert_eq!(add(&mut tracker, transform(0)), Added::Innovative);
    for other in [dense(0), dense(1), of_all(1), of_one(1)] {
        assert_eq!(add(&mut tracker, other), Added::Redundant);
    }
    assert_eq!((tracker.deficit(), tracker.known()[0]), (2, 0));
    for i in 1..3 {
        assert_eq!(add(&mut tracker, transform(i)), Added::Innovative);
    }
    assert!(tracker.is_decodable());

    let symbol = [1_u8, 2];
    for first in [dense(0), of_all(1), of_one(1)] {
        let mut tracker = Tracker::new(n).unwrap();
        assert_eq!(add(&mut tracker, first), Added::Innovative);
        assert_eq!(add(&mut tracker, transform(0)), Added::Redundant);
        // And so where symbols are restored as they come.
        let mut receiver = BlockReceiver::new(0, n, 2).unwrap();
        let mut receive = |(code, row)| {
            let repair = Repair {
                code,
                row,
                symbol: &symbol,
            };
            receiver.add_repair(&mut [0; 6], 0, n, repair)
        };
        assert_eq!(receive(first), Added::Innovative);
        assert_eq!(receive(transform(0)), Added::Redundant);
    }
}

/// Loss at the redundancy that should make up for it: everything arrives, in
/// order, soon.
#[test]
fn a_window_delivers_everything_in_order() {
    let total: u64 = if cfg!(miri) { 150 } else { 20_000 };
    let (window, symbol_len) = (100, 5);
    let capacity = 2 * window;
    let mut rng = Bytes(11);
    let mut encoder = WindowEncoder::new(window, 0.13, symbol_len).unwrap();
    let mut decoder = WindowDecoder::new(capacity, symbol_len).unwrap();
    let mut memory = vec![0; capacity * symbol_len];
    let mut sent = Vec::new();
    let mut expected = 0;
    let mut restored = 0;
    let mut lost = 0;
    for number in 0..total {
        let symbol = rng.fill(symbol_len);
        assert_eq!(encoder.push(&symbol), number);
        if rng.next() % 100 >= 6 {
            let slot = decoder.slot(number).unwrap();
            memory[slot * symbol_len..][..symbol_len].copy_from_slice(&symbol);
            assert_eq!(decoder.add_source(&mut memory, number), Added::Innovative);
            assert_eq!(decoder.add_source(&mut memory, number), Added::Redundant);
        } else {
            lost += 1;
        }
        sent.push(symbol);
        let mut repair = vec![0; symbol_len];
        while let Some((first, count, row)) = encoder.next_repair(&mut repair) {
            if rng.next() % 100 < 6 {
                continue;
            }
            let code = CodeId::Window;
            let repair = Repair {
                code,
                row,
                symbol: &repair,
            };
            let added = decoder.add_repair(&mut memory, first, count, repair);
            assert_ne!(added, Added::Invalid);
        }
        restored += std::iter::from_fn(|| decoder.next_restored()).count();
        while let Some(delivery) = decoder.next_in_order() {
            let Delivery::Symbol { symbol, slot } = delivery else {
                panic!("{delivery:?}");
            };
            assert_eq!(symbol, expected);
            let bytes = &memory[slot * symbol_len..][..symbol_len];
            assert_eq!(bytes, sent[symbol as usize]);
            expected += 1;
        }
    }
    assert!(total - expected < 200, "{expected} of {total}");
    assert!(lost - restored < 20, "{restored} of {lost}");
}

#[test]
fn a_window_gives_up_what_is_too_old() {
    let symbol_len = 3;
    let mut encoder = WindowEncoder::new(4, 1.0, symbol_len).unwrap();
    let mut decoder = WindowDecoder::new(8, symbol_len).unwrap();
    let mut memory = vec![0; 8 * symbol_len];
    let mut repair = vec![0; symbol_len];
    // Two symbols and all repairs of them are lost, a third one is outstanding.
    for _ in 0..3 {
        encoder.push(&[1, 2, 3]);
    }
    let (first, count, row) = encoder.repair(&mut repair).unwrap();
    let code = CodeId::Window;
    let kept = Repair {
        code,
        row,
        symbol: &repair,
    };
    assert_eq!(
        decoder.add_repair(&mut memory, first, count, kept),
        Added::Innovative
    );
    assert_eq!(
        decoder.add_repair(&mut memory, first, count, kept),
        Added::Redundant
    );
    assert_eq!(decoder.deficit(), 2);
    assert_eq!(decoder.add_source(&mut memory, 9), Added::Innovative);
    assert_eq!(decoder.oldest(), 2);
    assert_eq!(
        decoder.next_in_order(),
        Some(Delivery::Lost { first: 0, count: 2 })
    );
    assert_eq!(decoder.next_in_order(), None);
    assert_eq!(decoder.slot(1), None);
    assert_eq!(decoder.add_source(&mut memory, 1), Added::Redundant);
    assert_eq!(
        decoder.add_repair(&mut memory, first, count, kept),
        Added::Redundant
    );
    // A symbol far ahead gives up all missing ones at once.
    assert_eq!(decoder.add_source(&mut memory, 1 << 40), Added::Innovative);
    assert_eq!(decoder.deficit(), 7);
    let lost = (1 << 40) - 7 - 2;
    assert_eq!(
        decoder.next_in_order(),
        Some(Delivery::Lost {
            first: 2,
            count: lost
        })
    );
    // Gaps that are empty, or beyond what there can be.
    for (first, count) in [(0, 0), (0, 9), (u64::MAX, 2)] {
        assert_eq!(
            decoder.add_repair(&mut memory, first, count, kept),
            Added::Invalid
        );
    }
    assert_eq!(decoder.slot(u64::MAX), None);
    assert!(WindowDecoder::new(0, 1).is_err() && WindowDecoder::new(4097, 1).is_err());
    assert!(WindowEncoder::new(0, 0.1, 1).is_err());
    let mut never = WindowEncoder::new(4, f64::NAN, 1).unwrap();
    never.push(&[1]);
    assert_eq!(never.next_repair(&mut [0]), None);
}

/// All code rows for block sizes at the edges of what there is.
#[test]
fn block_sizes_up_to_4096() {
    let sizes: &[usize] = if cfg!(miri) {
        &[1, 30]
    } else {
        &[1, 255, 256, 4096]
    };
    for &n in sizes {
        let source = Bytes(1).fill(n * 2);
        let rows: Vec<_> = rlc::first_flight(4, 20).collect();
        let mut symbols = vec![0; rows.len() * 2];
        Encoder::new()
            .encode_rows(n, 2, &source, &rows, &mut symbols)
            .unwrap();
        let mut memory = source.clone();
        let mut have = vec![u64::MAX; bits::words(n)];
        for i in (0..n).rev().take(15) {
            bits::remove(&mut have, i);
            memory[2 * i..2 * i + 2].fill(0);
        }
        let repairs: Vec<_> = rows
            .iter()
            .zip(symbols.chunks(2))
            .map(|(&(code, row), symbol)| Repair { code, row, symbol })
            .collect();
        let mut decoder = BlockDecoder::new();
        let result = decoder.decode(n, 2, &mut memory, &have, &repairs);
        assert_eq!(result, Ok(n.min(15)));
        assert!(memory == source);
    }
}
