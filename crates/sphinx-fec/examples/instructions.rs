//! A fixed amount of coding, to count instructions of: see
//! `scripts/bench-instructions`.
//!
//! Arguments: `rlc`, `rs` or `srlt`; `encode` or `decode`; number of blocks.

use sphinx_fec::{BlockDecoder, CodeId, Encoder, Repair, Row, bits, rlc, rs, srlt};

const SYMBOL_LEN: usize = 1200;
const N: usize = 100;
const REPAIRS: usize = 14;
/// What sessions make these of at 6 % loss.
const SPREAD: u32 = 3;

fn main() -> Result<(), sphinx_fec::Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize| args.get(i).map_or("", String::as_str);
    let rows: Vec<(CodeId, Row)> = match arg(0) {
        "rs" => rs::first_flight(N, REPAIRS).collect(),
        "srlt" => (0..27).map(|s| (CodeId::Srlt, srlt::row(16, s))).collect(),
        _ => rlc::first_flight(SPREAD, REPAIRS).collect(),
    };
    let blocks: usize = arg(2).parse().unwrap_or(1);
    let source: Vec<u8> = (0..N * SYMBOL_LEN).map(|i| ((i * i) >> 5) as u8).collect();
    let mut symbols = vec![0; rows.len() * SYMBOL_LEN];
    let mut encoder = Encoder::new();
    encoder.encode_rows(N, SYMBOL_LEN, &source, &rows, &mut symbols)?;
    if arg(1) != "decode" {
        for _ in 0..blocks {
            encoder.encode_rows(N, SYMBOL_LEN, &source, &rows, &mut symbols)?;
        }
        return Ok(());
    }
    // Six losses, what 6 % takes on average.
    let mut have = vec![u64::MAX; bits::words(N)];
    for lost in [3, 20, 41, 58, 77, 90] {
        bits::remove(&mut have, lost);
    }
    let repairs: Vec<Repair<'_>> = rows
        .iter()
        .zip(symbols.chunks(SYMBOL_LEN))
        .map(|(&(code, row), symbol)| Repair { code, row, symbol })
        .collect();
    let mut decoder = BlockDecoder::new();
    let mut memory = source.clone();
    for _ in 0..=blocks {
        decoder.decode(N, SYMBOL_LEN, &mut memory, &have, &repairs)?;
    }
    assert!(memory == source, "restored something else");
    Ok(())
}
