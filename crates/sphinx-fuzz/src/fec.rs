//! The decoders against hostile rows and symbols.

use sphinx_fec::{
    Added, BlockDecoder, BlockReceiver, CodeId, Delivery, Repair, Row, RowMaker, SymbolDecoder,
    Tracker, WindowDecoder, bits, fft_rs,
};

use crate::Input;

fn any_row(input: &mut Input<'_>) -> Row {
    Row::new(input.number(3) as u32).expect("24 bits")
}

fn any_code(input: &mut Input<'_>) -> CodeId {
    input.pick(&CodeId::ALL)
}

/// A large transform takes as long as hundreds of blocks without.
fn of_small_transform(row: Row) -> Row {
    let small = fft_rs::split(row).and_then(|(size, index)| {
        let size = size % 7;
        fft_rs::row(size, index & ((1 << size) - 1))
    });
    small.unwrap_or(row)
}

/// Any rows, source symbols, duplicates and contents, for one block.
pub fn blocks(data: &[u8]) {
    let input = &mut Input::new(data);
    // Mostly small blocks: what is wrong with a large one seldom needs all of it.
    let n = match input.byte() {
        small @ 0..0xf0 => 1 + usize::from(small) % 60,
        _ => 1 + input.number(2) as usize % 300,
    };
    let symbol_len = usize::from(input.byte()) % 40;
    let is_maximum_likelihood = input.byte() % 2 == 1;
    let Ok(mut tracker) = Tracker::new(n) else {
        return;
    };
    let mut decoder = BlockDecoder::new();
    let Ok(mut receiver) = BlockReceiver::new(5, n, symbol_len) else {
        return;
    };
    if is_maximum_likelihood {
        tracker = tracker.maximum_likelihood();
        decoder = decoder.maximum_likelihood();
        receiver = receiver.maximum_likelihood();
    }
    let mut maker = RowMaker::new();
    let mut memory = vec![0; n * symbol_len];
    let mut kept: Vec<(CodeId, Row, Vec<u8>)> = Vec::new();
    while !input.is_empty() && kept.len() < 400 {
        if input.byte() & 1 == 0 {
            let symbol = input.number(2) as usize % (n + 3);
            let added = tracker.add_source(symbol);
            assert_eq!(added == Added::Invalid, symbol >= n);
            receiver.add_source(&mut memory, symbol as u64 + 5);
            continue;
        }
        let (code, mut row, content) = (any_code(input), any_row(input), input.byte());
        if code == CodeId::FftRs && n % 16 > 0 {
            row = of_small_transform(row);
        }
        let symbol = vec![content; symbol_len];
        let before = tracker.deficit();
        let added = tracker.add_repair(&mut maker, code, row);
        assert!(tracker.deficit() <= before);
        let repair = Repair {
            code,
            row,
            symbol: &symbol,
        };
        receiver.add_repair(&mut memory, 5, n, repair);
        receiver.add_repair(&mut memory, 6, n, repair);
        if added == Added::Innovative {
            kept.push((code, row, symbol));
        }
    }
    assert!(tracker.deficit() <= tracker.missing());
    while receiver.next_restored().is_some() {}
    // What the tracker says, the decoder does, but where symbols have a length that no transform has: of that it knows nothing.
    let is_transform = kept.iter().any(|(code, ..)| *code == CodeId::FftRs);
    let is_possible = !is_transform || symbol_len > 0 && symbol_len.is_multiple_of(2);
    let repairs: Vec<Repair<'_>> = kept
        .iter()
        .map(|(code, row, symbol)| Repair {
            code: *code,
            row: *row,
            symbol,
        })
        .collect();
    let have = tracker.received();
    let result = decoder.decode(n, symbol_len, &mut memory, have, &repairs);
    if is_possible {
        assert_eq!(result.is_ok(), tracker.is_decodable());
    }
    assert_eq!(bits::absent(have, n).count(), tracker.missing());
}

/// Any windows, source symbols, duplicates and contents, for one stream.
pub fn window(data: &[u8]) {
    let input = &mut Input::new(data);
    let capacity = 1 + input.number(2) as usize % 300;
    let symbol_len = usize::from(input.byte()) % 40;
    let Ok(mut decoder) = WindowDecoder::new(capacity, symbol_len) else {
        return;
    };
    let mut memory = vec![0; capacity * symbol_len];
    let mut delivered = 0;
    while !input.is_empty() {
        let kind = input.byte();
        // Mostly near the window, sometimes anywhere.
        let number = if kind & 0x70 == 0x70 {
            input.number(8)
        } else {
            decoder.oldest().saturating_add(input.number(2) % 600)
        };
        if kind & 1 == 0 {
            if let Some(slot) = decoder.slot(number) {
                memory[slot * symbol_len..][..symbol_len].fill(kind);
                decoder.add_source(&mut memory, number);
            }
        } else {
            let count = input.number(2) as usize % 310;
            let symbol = vec![kind; symbol_len];
            let code = if kind & 8 == 0 {
                CodeId::Window
            } else {
                any_code(input)
            };
            let repair = Repair {
                code,
                row: any_row(input),
                symbol: &symbol,
            };
            decoder.add_repair(&mut memory, number, count, repair);
        }
        assert!(decoder.deficit() <= capacity);
        while let Some(delivery) = decoder.next_in_order() {
            let next = match delivery {
                Delivery::Symbol { symbol, slot } => {
                    assert!(slot < capacity && symbol == delivered);
                    symbol + 1
                }
                Delivery::Lost { first, count } => {
                    assert!(first == delivered && count > 0);
                    first + count
                }
            };
            delivered = next;
        }
        if kind & 4 == 0 {
            while decoder.next_restored().is_some() {}
        }
    }
}
