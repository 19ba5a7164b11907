//! What each code means for a session: of what a block's first flight is made, and which symbol
//! replaces a lost one.

use sphinx_fec::{CodeId, Decoding, Row, fft_rs, lt, params, rlc, rs, srlt};

use super::selector::{EPSILON, flight_repair};
use super::store::TxBlock;
use crate::wire::{MAX_BLOCK_SYMBOLS, WINDOW_PREFIX_LEN};

/// Most symbols in a block that is not large for its code's sake.
const SYMBOLS_MAX: u16 = 256;
/// Rows of `rlc` that may equal some of `rs`.
const RLC_CAUCHY_ROWS: u32 = 256;
/// Half of the 256 symbols of `rs`, so that as many repairs as sources can be sent.
const RS_SYMBOLS_MAX: u16 = 128;
const WINDOW_BLOCK_SYMBOLS_MAX: u16 = 64;
/// Symbols that a sliding window reaches back, at least.
pub(crate) const WINDOW_SYMBOLS: usize = 128;
/// Probability that a window has more losses than repairs.
const WINDOW_EPSILON: f64 = 0.01;
/// More than the rows of any transform that a receiver takes.
const BEHIND_ROWS: u32 = 1 << 20;
/// Rows of a transform (`fft-rs`) per source symbol, once n is rounded up to a power of two.
const TRANSFORM_RATIO_MAX: u32 = 4;

/// Most source symbols in the blocks that a session proposes for a code.
pub(crate) fn block_symbols(code: Option<CodeId>) -> u16 {
    match code {
        Some(CodeId::Rs) => RS_SYMBOLS_MAX,
        Some(CodeId::FftRs) => MAX_BLOCK_SYMBOLS,
        // Streams are delivered block by block, and the window does not end with a block.
        Some(CodeId::Window) => WINDOW_BLOCK_SYMBOLS_MAX,
        _ => SYMBOLS_MAX,
    }
}

/// Whether the receiver peels: which repairs are of use depends on which symbols are lost, and what was
/// lost is best sent again as it was.
pub(crate) fn is_peeling(code: Option<CodeId>) -> bool {
    code == Some(CodeId::Srlt)
}

/// Whether source symbols may be sent again before they count as lost, for want of further rows.
pub(crate) fn is_finite(code: Option<CodeId>) -> bool {
    code == Some(CodeId::FftRs)
}

/// Whether no source symbol is ever sent, only rows.
pub(crate) fn is_rateless(code: Option<CodeId>) -> bool {
    code == Some(CodeId::Lt)
}

/// Symbols that must arrive beyond n before a block of this code can mostly be decoded: about 2·n^¼
/// rows of `lt` with elimination (spec table: 5 of 32, 6 of 100, 8 of 256, 10 of 1024).
pub(crate) fn surplus(code: Option<CodeId>, n: u16) -> u32 {
    if is_rateless(code) && n > 1 {
        (2.0 * f64::from(n).powf(0.25)).round() as u32
    } else {
        0
    }
}

/// What the proactive rows of a block are like, if there will be `repair` of them against losses of this share, so many in
/// a row. Rows of a transform that has begun go on.
pub(crate) fn shape(
    code: CodeId,
    block: &TxBlock,
    repair: u32,
    (plr, burst): (f64, f64),
    epsilon: f64,
) -> u32 {
    match code {
        CodeId::Rlc | CodeId::Window => {
            let open = u32::from(block.n).saturating_sub(block.acked()) as usize;
            rlc::spread_for(open, repair as usize, plr, burst, epsilon)
        }
        _ => block.shape,
    }
}

/// Bytes of a packet that no symbol uses, so that its repairs fit too.
pub(crate) fn symbol_reserve(code: Option<CodeId>) -> u16 {
    match code {
        // Rounded up to an even number.
        Some(CodeId::Window) => (WINDOW_PREFIX_LEN as u16).next_multiple_of(2),
        _ => 0,
    }
}

/// Repairs of a sliding window for every source symbol.
pub(crate) fn window_rate(plr: f64) -> f64 {
    let window = WINDOW_SYMBOLS as u32;
    f64::from(flight_repair(window, window, plr, WINDOW_EPSILON)) / f64::from(window)
}

/// Degree D_h and number N_pro of the ProFEC packets behind a block of n symbols, at the paper's
/// operating point (§3.2.2).
pub(crate) fn semi_random(n: u16, plr: f64, deviation: f64) -> (u32, u32) {
    let n = usize::from(n);
    let degree = params::srlt::degree(plr, deviation, params::srlt::degree_cap(n));
    let count = params::srlt::packet_count(n, plr, degree, params::srlt::PAPER_THRESHOLD);
    // Beyond n packets it is cheaper to send what was lost again.
    (degree, count.min(n) as u32)
}

/// Transform of `fft-rs` for a block of n symbols of which `due` repairs are wanted now: for twice that
/// or what a flight needs, but at most what receivers accept.
fn transform_size(n: u16, plr: f64, due: u32) -> u32 {
    let flight = flight_repair(u32::from(n), u32::from(n), plr, EPSILON).max(due);
    let least = u32::from(n / 8).max(4);
    let rows = (2 * flight).max(least).min(transform_rows_max(n));
    fft_rs::size_for(rows as usize).unwrap_or(0)
}

fn transform_rows_max(n: u16) -> u32 {
    TRANSFORM_RATIO_MAX * u32::from(n.next_power_of_two())
}

/// Whether a receiver takes this row of `fft-rs`: symbols are even, and the transform is not out of
/// proportion to the block.
pub(crate) fn is_transform_possible(n: u16, symbol_len: u16, row: Row) -> bool {
    let fits = |(size, _)| 1_u32 << size <= transform_rows_max(n);
    symbol_len.is_multiple_of(2) && fft_rs::split(row).is_some_and(fits)
}

/// The next repair row of a block, with the code that names it on the wire; `None` if the code has no
/// more. Rows of elimination codes that answer a loss are dense: each must help whatever is missing.
pub(crate) fn next_row(
    code: CodeId,
    block: &mut TxBlock,
    proactive: bool,
    plr: f64,
) -> Option<(CodeId, Row)> {
    let index = block.next_row;
    let row = match code {
        CodeId::Srlt => {
            let degree = block
                .shape
                .clamp(1, srlt::DEGREE_MAX.min(u32::from(block.n)));
            srlt::row(degree, index % srlt::SEED_COUNT)
        }
        CodeId::Lt => lt::Shape::default().row(index),
        CodeId::Rs => match rs::row(usize::from(block.n), index as usize) {
            Some(row) => row,
            // Rows of `rlc` beyond the Cauchy ones go with those of `rs`; each another one, or it would not help.
            None => {
                block.next_row += 1;
                let index = (RLC_CAUCHY_ROWS + index) % rlc::INDEX_COUNT;
                return Some((CodeId::Rlc, rlc::row(1, index)));
            }
        },
        CodeId::FftRs => {
            if index == 0 {
                block.shape = transform_size(block.n, plr, block.due() + 1);
            }
            let row = fft_rs::row(block.shape, index)?;
            is_transform_possible(block.n, block.symbol_len, row).then_some(row)?
        }
        _ => {
            let spread = if proactive { block.shape } else { 1 };
            rlc::row(spread.clamp(1, rlc::SPREAD_MAX), index % rlc::INDEX_COUNT)
        }
    };
    block.next_row += 1;
    let code = match code {
        // Within a block the window's repairs are those of `rlc`.
        CodeId::Window => CodeId::Rlc,
        code => code,
    };
    Some((code, row))
}

/// What to send of a block whose code has no more rows: the originals that are not known to have
/// arrived, in turn.
pub(crate) fn original(block: &mut TxBlock) -> u16 {
    let n = u32::from(block.n);
    let turns = (0..n).map(|i| (block.next_row + i) % n);
    let mut missing = turns.filter(|at| !block.has_arrived(*at as usize));
    let at = missing.next().unwrap_or(0);
    // Behind all rows of the code, and of the next symbol modulo n.
    block.next_row = (BEHIND_ROWS / n) * n + at + 1;
    at as u16
}

/// Whether the code's repairs are those of a transform.
pub(crate) fn is_transform(code: CodeId) -> bool {
    code.decoding() == Decoding::Transform
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::store::{Demands, NewBlock};
    use crate::types::{Slot, Urgency};

    fn block(n: u16, symbol_len: u16) -> TxBlock {
        let new = NewBlock {
            streams: Box::default(),
            slot: Slot(0),
            n,
            symbol_len,
            tail: false,
            urgency: Urgency::default(),
            lifetime: None,
        };
        TxBlock::new(new, Demands::default())
    }

    #[test]
    fn finite_codes_end() {
        let count = |code, n, symbol_len| {
            let mut block = block(n, symbol_len);
            (0..2000)
                .map_while(|_| next_row(code, &mut block, false, 0.06))
                .count()
        };
        assert_eq!(count(CodeId::FftRs, 100, 1000), 32);
        assert_eq!(count(CodeId::FftRs, 1, 1000), 4);
        assert_eq!(count(CodeId::FftRs, 100, 1001), 0);
        let unlimited = [
            CodeId::Rlc,
            CodeId::Rs,
            CodeId::Lt,
            CodeId::Srlt,
            CodeId::Window,
        ];
        for code in unlimited {
            assert_eq!(count(code, 100, 1000), 2000);
        }
    }

    #[test]
    fn receivers_take_what_senders_choose() {
        for n in [1, 2, 3, 100, 1023, 1024] {
            for (plr, due) in [(0.0, 0), (0.06, 1), (0.06, 50), (0.5, 0), (0.95, 5000)] {
                let size = transform_size(n, plr, due);
                assert!(
                    1 << size >= due.min(transform_rows_max(n)),
                    "{n} {plr} {due}"
                );
                let row = fft_rs::row(size, 0).unwrap();
                assert!(is_transform_possible(n, 2, row), "{n} {plr} {due}");
            }
            let larger = n.next_power_of_two().trailing_zeros() + 3;
            let row = fft_rs::row(larger, 0).unwrap();
            assert!(!is_transform_possible(n, 2, row));
        }
    }

    #[test]
    fn no_repair_of_rs_comes_twice() {
        for n in [1, 100, 128, 700] {
            let mut block = block(n, 100);
            let rows: std::collections::BTreeSet<_> = (0..600)
                .filter_map(|_| next_row(CodeId::Rs, &mut block, false, 0.1))
                .map(|(code, row)| (code.to_wire(), row))
                .collect();
            assert_eq!(rows.len(), 600, "n = {n}");
        }
    }

    #[test]
    fn surplus_follows_the_published_table() {
        let of = |n| surplus(Some(CodeId::Lt), n);
        assert_eq!([1, 32, 100, 256, 1024].map(of), [0, 5, 6, 8, 11]);
        assert_eq!(surplus(Some(CodeId::Rlc), 100), 0);
    }
}
