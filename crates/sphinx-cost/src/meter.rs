//! Time, given to the stages that take it.

use std::cell::{Cell, RefCell};
use std::time::Instant;

/// A part of the way of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The application's bytes go into the piece of a stream, on the application's thread.
    Slice,
    /// Pieces become blocks, and the core hears of them.
    HandOver,
    /// The core chooses what leaves, and a symbol is copied or encoded into its frame.
    Encode,
    /// Sealing and header protection.
    Seal,
    /// The send calls.
    Send,
    /// The receive calls.
    Receive,
    /// Header protection is removed.
    Unprotect,
    /// Opening.
    Open,
    /// The core hears of a packet; a symbol goes into its block, which is decoded if that completes it.
    Place,
    /// What blocks hold goes to the streams.
    Deliver,
    /// Timers.
    Timers,
}

/// All of them, in their order.
pub const STAGES: [Stage; 11] = [
    Stage::Slice,
    Stage::HandOver,
    Stage::Encode,
    Stage::Seal,
    Stage::Send,
    Stage::Receive,
    Stage::Unprotect,
    Stage::Open,
    Stage::Place,
    Stage::Deliver,
    Stage::Timers,
];

impl Stage {
    /// As in the output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slice => "slice",
            Self::HandOver => "hand_over",
            Self::Encode => "encode",
            Self::Seal => "seal",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Unprotect => "unprotect",
            Self::Open => "open",
            Self::Place => "place",
            Self::Deliver => "deliver",
            Self::Timers => "timers",
        }
    }

    /// Whether it is system calls.
    pub fn is_kernel(&self) -> bool {
        matches!(self, Self::Send | Self::Receive)
    }
}

/// What one end's stages have taken.
#[derive(Debug)]
pub(crate) struct Meter {
    clock_ns: f64,
    ns: RefCell<[f64; STAGES.len()]>,
    /// Of the stage under way: nanoseconds of stages within it, and what reading the clock for them took.
    within: Cell<f64>,
}

impl Meter {
    pub(crate) fn new(clock_ns: f64) -> Self {
        Self {
            clock_ns,
            ns: RefCell::default(),
            within: Cell::new(0.0),
        }
    }

    pub(crate) fn time<R>(&self, stage: Stage, work: impl FnOnce() -> R) -> R {
        let outer = self.within.replace(0.0);
        let begin = Instant::now();
        let result = work();
        let span = begin.elapsed().as_nanos() as f64;
        // One reading of two falls into the span; the other into that of the stage around it.
        self.ns.borrow_mut()[stage as usize] += span - self.clock_ns - self.within.get();
        self.within.set(outer + span + self.clock_ns);
        result
    }

    pub(crate) fn ns(&self) -> [f64; STAGES.len()] {
        *self.ns.borrow()
    }
}

/// What it takes to read the clock, nanoseconds.
pub(crate) fn clock_ns() -> f64 {
    const READINGS: u32 = 100_000;
    let begin = Instant::now();
    for _ in 0..READINGS {
        std::hint::black_box(Instant::now());
    }
    begin.elapsed().as_nanos() as f64 / f64::from(READINGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_within_another_is_not_part_of_it() {
        let spin = |us: u64| {
            let begin = Instant::now();
            while (begin.elapsed().as_micros() as u64) < us {}
        };
        let meter = Meter::new(0.0);
        let begin = Instant::now();
        meter.time(Stage::Place, || {
            meter.time(Stage::Open, || spin(2000));
            meter.time(Stage::Open, || spin(1000));
            spin(1000);
        });
        let whole = begin.elapsed().as_nanos() as f64;
        let ns = meter.ns();
        let of = |stage| ns[stage as usize];
        assert!(of(Stage::Open) >= 3e6 && of(Stage::Place) >= 1e6, "{ns:?}");
        assert!(of(Stage::Open) + of(Stage::Place) <= whole, "{ns:?}");
    }
}
