//! Which symbols a repair of a sliding window covers (`docs/protocol.md` §5.2).

use super::{MAX_BLOCK_SYMBOLS, MAX_SYMBOL_LEN};

/// Runs of blocks in a window: small packets of many sizes have room for many.
const RUNS_MAX: usize = 64;
/// Symbols in a window, and blocks, as each has one at least.
const SYMBOLS_MAX: usize = 512;
const RUN_LEN: usize = 5;
/// Bytes before the symbol if the window has one run of blocks, or two.
pub const WINDOW_PREFIX_LEN: usize = 3 + 2 * RUN_LEN;

/// Consecutive blocks of one shape, or some that are not covered: of these n and the symbol size are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    blocks: u8,
    n: u16,
    symbol_len: u16,
}

impl Run {
    fn is_covered(&self) -> bool {
        self.n > 0
    }
}

/// A block that a repair covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanBlock {
    /// Blocks from it to the newest one, 0 for that itself.
    pub back: u64,
    /// Source symbols in the block.
    pub n: u16,
    /// Bytes per symbol.
    pub symbol_len: u16,
}

/// The symbols that a repair covers: whole blocks up to the newest one, of that only the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowSpan {
    upto: u16,
    /// Runs of blocks, newest first.
    runs: Vec<Run>,
}

impl WindowSpan {
    /// The first `upto` symbols of one block, if that is within the limits.
    pub fn new(upto: u16, n: u16, symbol_len: u16) -> Option<Self> {
        let run = Run {
            blocks: 1,
            n,
            symbol_len,
        };
        let span = Self {
            upto,
            runs: vec![run],
        };
        span.is_valid().then_some(span)
    }

    /// Covers an older block as well, all n symbols of it, behind `skipped` ones that are not covered, if the body then has at most
    /// `room` bytes and no limit is passed; whether it does.
    pub fn extend(&mut self, skipped: u8, n: u16, symbol_len: u16, room: usize) -> bool {
        let (before, last) = (self.runs.len(), self.runs.last().copied());
        if skipped > 0 {
            self.runs.push(Run {
                blocks: skipped,
                n: 0,
                symbol_len: 0,
            });
        }
        match self.runs.last_mut() {
            Some(run) if (run.n, run.symbol_len) == (n, symbol_len) && run.blocks < u8::MAX => {
                run.blocks += 1;
            }
            _ => self.runs.push(Run {
                blocks: 1,
                n,
                symbol_len,
            }),
        }
        let fits = self.is_valid() && self.body_len() <= room;
        if !fits {
            self.runs.truncate(before);
            if let Some((run, last)) = self.runs.last_mut().zip(last) {
                *run = last;
            }
        }
        fits
    }

    fn is_valid(&self) -> bool {
        let is_block = |run: &Run| {
            run.n <= MAX_BLOCK_SYMBOLS
                && usize::from(run.symbol_len) <= MAX_SYMBOL_LEN
                && run.is_covered() == (run.symbol_len > 0)
                && run.blocks > 0
        };
        (1..=RUNS_MAX).contains(&self.runs.len())
            && self.runs.iter().all(is_block)
            && self.runs.last().is_some_and(Run::is_covered)
            && (1..=self.runs[0].n).contains(&self.upto)
            && self.symbols() <= SYMBOLS_MAX
    }

    fn covered(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|run| run.is_covered())
    }

    /// Symbols that the newest block has in the window.
    pub fn upto(&self) -> u16 {
        self.upto
    }

    /// The covered blocks, newest first.
    pub fn blocks(&self) -> impl Iterator<Item = SpanBlock> + '_ {
        let runs = self.runs.iter().scan(0, |back, run| {
            let first = *back;
            *back += u64::from(run.blocks);
            Some((first..*back, run))
        });
        let covered = runs.filter(|(_, run)| run.is_covered());
        covered.flat_map(|(backs, run)| {
            backs.map(|back| SpanBlock {
                back,
                n: run.n,
                symbol_len: run.symbol_len,
            })
        })
    }

    /// Symbols covered.
    pub fn symbols(&self) -> usize {
        let all = self
            .covered()
            .map(|run| usize::from(run.blocks) * usize::from(run.n));
        // All of the newest block but what is not in the window.
        all.sum::<usize>() - usize::from(self.runs[0].n - self.upto)
    }

    /// Bytes of the repair symbol: those of the largest symbol covered; shorter ones count as padded
    /// with zeros.
    pub fn symbol_len(&self) -> usize {
        let sizes = self.runs.iter().map(|run| usize::from(run.symbol_len));
        sizes.max().unwrap_or(0)
    }

    fn prefix_len(&self) -> usize {
        3 + RUN_LEN * self.runs.len()
    }

    /// Bytes of the body.
    pub fn body_len(&self) -> usize {
        self.prefix_len() + self.symbol_len()
    }

    /// The bytes before the symbol.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.prefix_len());
        out.extend_from_slice(&self.upto.to_be_bytes());
        out.push(self.runs.len() as u8);
        for run in &self.runs {
            out.push(run.blocks);
            out.extend_from_slice(&run.n.to_be_bytes());
            out.extend_from_slice(&run.symbol_len.to_be_bytes());
        }
        out
    }

    /// A body's span and its symbol; `None` if it is malformed or passes a limit.
    pub fn split(body: &[u8]) -> Option<(Self, &[u8])> {
        let (fixed, rest) = body.split_at_checked(3)?;
        let count = usize::from(fixed[2]);
        let (runs, symbol) = rest.split_at_checked(RUN_LEN * count)?;
        let span = Self {
            upto: u16::from_be_bytes([fixed[0], fixed[1]]),
            runs: runs
                .chunks_exact(RUN_LEN)
                .map(|run| Run {
                    blocks: run[0],
                    n: u16::from_be_bytes([run[1], run[2]]),
                    symbol_len: u16::from_be_bytes([run[3], run[4]]),
                })
                .collect(),
        };
        (span.is_valid() && symbol.len() == span.symbol_len()).then_some((span, symbol))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn vector() {
        let mut span = WindowSpan::new(3, 64, 4).unwrap();
        assert!(span.extend(0, 64, 4, 100) && span.extend(0, 2, 6, 100));
        let prefix = [0, 3, 2, 2, 0, 64, 0, 4, 1, 0, 2, 0, 6];
        assert_eq!(span.encode(), prefix);
        assert_eq!(span.symbols(), 3 + 64 + 2);
        let body = [&prefix[..], &[7; 6]].concat();
        assert_eq!(body.len(), span.body_len());
        assert_eq!(WindowSpan::split(&body), Some((span, &[7; 6][..])));
    }

    /// The number of blocks of a run is one byte.
    #[test]
    fn as_many_blocks_as_symbols() {
        let mut span = WindowSpan::new(1, 1, 2).unwrap();
        let extended = (1..1000).take_while(|_| span.extend(0, 1, 2, 100)).count();
        assert_eq!(
            (extended, span.symbols(), span.body_len()),
            (511, 512, 3 + 3 * 5 + 2)
        );
        assert!(span.blocks().map(|block| block.back).eq(0..512));
        let body = [&span.encode()[..], &[7; 2]].concat();
        assert_eq!(WindowSpan::split(&body), Some((span, &[7; 2][..])));
    }

    /// Two blocks of one symbol, three that are not covered between them.
    #[test]
    fn blocks_that_are_not_covered() {
        let mut span = WindowSpan::new(1, 1, 2).unwrap();
        assert!(span.extend(3, 1, 2, 100));
        let prefix = [0, 1, 3, 1, 0, 1, 0, 2, 3, 0, 0, 0, 0, 1, 0, 1, 0, 2];
        assert_eq!(span.encode(), prefix);
        assert!(span.blocks().map(|block| block.back).eq([0, 4]));
        assert_eq!((span.symbols(), span.symbol_len()), (2, 2));
        let body = [&prefix[..], &[7; 2]].concat();
        assert_eq!(WindowSpan::split(&body), Some((span, &[7; 2][..])));
        // None of them may be the last.
        let body = [0, 1, 2, 1, 0, 1, 0, 2, 3, 0, 0, 0, 0, 7, 7];
        assert_eq!(WindowSpan::split(&body), None);
    }

    #[test]
    fn limits() {
        let mut span = WindowSpan::new(1, 100, 1000).unwrap();
        assert!(!span.extend(0, 100, 1001, 3 + 2 * RUN_LEN + 1000));
        assert!(span.extend(0, 100, 1001, 3 + 2 * RUN_LEN + 1001));
        let symbols = (0..100)
            .take_while(|_| span.extend(0, 100, 1001, 2000))
            .count();
        assert!(symbols == 4 && span.symbols() <= SYMBOLS_MAX);
    }

    proptest! {
        #[test]
        fn total(body in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some((span, symbol)) = WindowSpan::split(&body) {
                prop_assert_eq!([&span.encode()[..], symbol].concat(), body);
            }
        }
    }
}
