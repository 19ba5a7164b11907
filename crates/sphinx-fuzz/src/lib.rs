//! What the fuzz targets run, from bytes that stand for anything a peer, a file or a person may
//! bring. `fuzz/` feeds these functions with libFuzzer, the tests of this crate with the corpora
//! and with random bytes (`docs/fuzzing.md`).
//!
//! Targets that need the private parts of a crate are in that crate's `fuzzing` module and take
//! [`Input`] and [`replay`] from here.

#![forbid(unsafe_code)]

pub mod card;
pub mod driver;
pub mod fec;
pub mod generations;
pub mod link;
pub mod paper;
pub mod pep;
pub mod session;
pub mod wire;

use std::path::Path;

/// Takes numbers and bytes from the front of the input; zeros behind its end.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of `data`.
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Whether everything has been taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// The next bytes, at most `len`.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        head
    }

    /// A number of so many bytes, at most 8.
    pub fn number(&mut self, bytes: usize) -> u64 {
        (0..bytes).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// A number below `bound`, 0 for a bound of 0; from one byte where that is enough.
    pub fn below(&mut self, bound: u64) -> u64 {
        let bytes = match bound {
            0..=0x100 => 1,
            0x101..=0x1_0000 => 2,
            _ => 8,
        };
        self.number(bytes) % bound.max(1)
    }

    /// Any number; small ones and those about powers of two more often than others.
    pub fn any(&mut self) -> u64 {
        match self.byte() {
            kind @ 0..0x60 => u64::from(kind),
            0x60..0x80 => self.number(2),
            kind @ 0x80..0xc0 => (1 << (kind & 63)) + self.number(1),
            kind @ 0xc0.. => (u64::MAX >> (kind & 63)).wrapping_sub(self.number(1)),
        }
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// True for one byte in `odds`.
    pub fn rarely(&mut self, odds: u8) -> bool {
        self.byte() % odds == odds - 1
    }
}

/// Runs a target on every file of its corpus.
///
/// # Panics
///
/// If the target does, or if there is no corpus.
pub fn replay(target: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let files = std::fs::read_dir(&corpus).expect("a corpus");
    let mut count = 0;
    for file in files {
        let path = file.expect("a readable directory").path();
        run(&std::fs::read(path).expect("a readable file"));
        count += 1;
    }
    assert!(count > 0, "no files for {target}");
}
